# SPDX-License-Identifier: Apache-2.0
#
# venv.sh: what the scripts of this folder do in common: is there a Python to test with, an environment in
# $venv, tests in it. Sourced after tap.sh, with $top, $python and $venv set.

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
umask 022
PKG_CONFIG_PATH=$ATTNHOST_TEST_LIBDIR/pkgconfig
PYTHONDONTWRITEBYTECODE=1
PIP_DISABLE_PIP_VERSION_CHECK=1
export PKG_CONFIG_PATH PYTHONDONTWRITEBYTECODE PIP_DISABLE_PIP_VERSION_CHECK
unset MAKEFLAGS MFLAGS MAKELEVEL PYTHONPATH

# What engines alone see of the package and its tests, for turn.sh; and what the models of Transformers do not.
engine_files='python/bridges tests/python/engines.sh tests/python/requirements-vllm.txt tests/python/cuda_on_cpu.py
    tests/python/smollm.py tests/python/stubs.py tests/python/test_minisgl.py tests/python/test_nanovllm.py
    tests/python/test_sglang.py tests/python/test_vllm.py tests/python/unmet.py'
no_engine_files=$(printf ':!%s ' $engine_files)

# skip_all WHAT REASON: nothing more can be tested here.
skip_all()
{
    tap_skip "$1" "$2"
    tap_end
}

# in_turn NAME WHAT FOLDER...: is it to be run by this commit (turn.sh)? Else it is skipped, with the reason.
in_turn()
{
    name=$1 what=$2
    shift 2
    turn=$(sh "$top/tests/tools/turn.sh" "$name" "$@") || {
        tap_skip "$what" "$turn"
        return 1
    }
}

# has PACKAGES...: pip installs them, if they are not there yet.
has()
{
    "$venv/bin/pip" install -q --no-compile "$@" >"$scratch/pip" 2>&1
}

# run MODULE...: the tests of these modules, numbered on from here.
run()
{
    "${run_python:-$venv/bin/python}" "$top/tests/python/run.py" "$tap_count" "$@" >"$scratch/run" 2>"$scratch/errors" </dev/null
    grep -E '^(not )?ok |^#' "$scratch/run" | grep -v '^# last '
    last=$(sed -n 's/^# last //p' "$scratch/run")
    if test -z "$last"; then
        tap_count=$(grep -c '^\(not \)\?ok ' "$scratch/run" | awk -v n="$tap_count" '{ print n + $1 }')
        tap_not_ok "$*: ran to its end" "$(tail -n 20 "$scratch/errors")"
        return
    fi
    tap_count=${last% *}
    tap_failed=$((tap_failed + ${last#* }))
}

# need_python WHAT: one that can be tested with, or all of it is skipped.
need_python()
{
    test -z "${ATTNHOST_NO_PYTHON-}" || skip_all "$1" "ATTNHOST_NO_PYTHON is set"
    test -z "$ATTNHOST_TEST_DESTDIR" || skip_all "$1" "pkg-config's paths do not know DESTDIR"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        skip_all "$1" "no Python 3.10 or newer here"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        skip_all "$1" "this Python has no venv module (Debian: python3-venv)"
    "$python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        skip_all "$1" "no Python.h here (Debian: python3-dev)"
}

# need_venv WHAT REQUIREMENTS: the environment, made anew where what is asked of it has changed.
need_venv()
{
    wanted="$("$python" -VV) $(cat "$2")"
    if ! test -f "$venv/wanted" || test "$(cat "$venv/wanted")" != "$wanted"; then
        rm -rf "$venv"
        "$python" -m venv "$venv" || skip_all "$1" "python3 -m venv failed"
        has "setuptools>=77" numpy || skip_all "$1" "pip installs nothing here: $(tail -n 1 "$scratch/pip")"
        printf '%s' "$wanted" >"$venv/wanted"
    fi
}

# copied FOLDER NAME: a source tree of a package to install from, without what an earlier installation left.
copied()
{
    cp -R "$1" "$scratch/$2"
    rm -rf "$scratch/$2/build"
    chmod -R u+w "$scratch/$2"
}

# torch_without_cuda: PyTorch's wheel, built with CUDA, is made to answer that there is no device.
torch_without_cuda()
{
    "$python" "$top/tests/python/torch_without_cuda.py" \
        "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib"
}
