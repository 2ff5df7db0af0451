#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# nvcc_rule.sh: a .cu file is compiled for the architectures of its folder, and anew only if it, what it
# includes or its flags have changed (plugins/nvcc.mk).
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this
object=tests/fixtures/noop.lo
source=$(sed -n 's/^srcdir = //p' "$build/Makefile") # as the Makefile calls it

if test ! -f "$build/$object"; then
    tap_skip "the rule for .cu files" "no nvcc at configure time"
    tap_end
fi

# compiles ARGUMENTS...: the command by which make would make the object, nothing if it would not.
compiles()
{
    make -C "$build" -n "$@" "$object" 2>/dev/null | grep -e '-fatbin -MMD'
}

# says NAME PATTERN TEXT
says()
{
    case $3 in
    $2) tap_ok "$1" ;;
    *) tap_not_ok "$1" "got '$3', expected $2" ;;
    esac
}

says "what is up to date is not compiled" '' "$(compiles)"
says "another file is" '?*' "$(compiles -W "$source/tests/fixtures/noop.cu")"
says "a header that is not included changes nothing" '' "$(compiles -W "$source/include/attn_plugin.h")"
says "other flags of all" '*-O1*' "$(compiles NVCCFLAGS=-O1)"
says "other flags of a folder" '*--fmad=false*' "$(compiles fixtures_NVCCFLAGS=--fmad=false)"
says "another compiler" '*/nowhere/nvcc*' "$(compiles NVCC=/nowhere/nvcc)"
says "the file's architectures" '*code=sm_86 -gencode arch=compute_90,code=compute_90 *' \
    "$(compiles noop_GENCODE='sm_86 compute_90')"
says "the file's before the folder's" '' "$(compiles fixtures_GENCODE=sm_86)"
says "the folder's where the file has none" '*-gencode arch=compute_86,code=sm_86 *' \
    "$(compiles noop_GENCODE= tests_GENCODE=sm_80 fixtures_GENCODE=sm_86)"
says "the architectures of configure apply to a plugin without its own" '*arch=compute_100a,code=sm_100a*' \
    "$(compiles noop_GENCODE= NVCC_CODES=sm_100a)"
says "a draft, in a build for tests" '*-Ofc=max *' "$(compiles fixtures_DRAFT=yes NVCC_PART=1 NVCC_DRAFTS=yes)"
says "a draft is for the last architecture" '*-Ofc=max *' \
    "$(compiles fixtures_DRAFT=yes NVCC_PART=1 NVCC_DRAFTS=yes | grep -v compute_80)"
says "a draft that is left out is not compiled" '' "$(compiles fixtures_DRAFT=yes NVCC_PART=1 NVCC_DRAFTS=no)"
says "nothing is left out of another build" '' "$(compiles fixtures_DRAFT=yes NVCC_PART= NVCC_DRAFTS=no)"
says "no draft in another build" '' "$(compiles fixtures_DRAFT=yes NVCC_PART=)"
says "no draft for a folder without one" '' "$(compiles NVCC_PART=1)"
tap_end
