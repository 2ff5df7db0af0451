#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench_scripts.sh: what of bench/ can be tried without PyTorch and without a GPU: the scripts'
# syntax, the plan of gpu_attention.py, and the shims through ctypes.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"

python=${PYTHON3:-python3}
if test "$python" = no || ! command -v "$python" >/dev/null; then
    tap_skip "scripts of bench/" "python3 is not installed"
    tap_end
fi
PYTHONDONTWRITEBYTECODE=1
export PYTHONDONTWRITEBYTECODE

for script in "$top"/bench/*.py; do
    tap_try "$(basename "$script") is Python" \
        "$python" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$script"
done

# Counted by hand: 4 x 8 x 32 heads x 128 x 2048 x 2049 / 2 operations; 2 x 8 x 2048 x 128 x 2 bytes
# for each of 32 heads of q and out and 8 heads of k and v.
plan=$("$python" "$top/bench/gpu_attention.py" --dry-run 2>&1)
case $plan in
*"prefill bf16 B8 H32/8 D128 N2048: 0.275 TFLOP, 0.3355 GB"*) tap_ok "the plan counts" ;;
*) tap_not_ok "the plan counts" "$plan" ;;
esac
"$python" "$top/bench/gpu_attention.py" --dry-run --filter nowhere >/dev/null 2>&1
if test $? -eq 1; then
    tap_ok "a filter that nothing passes is an error"
else
    tap_not_ok "a filter that nothing passes is an error"
fi

# 100 bytes a request would be 6 MiB; the trace itself is read before.
if grep -q __asan_init "$build/.libs/attnhost" "$build/attnhost"; then
    tap_skip "the memory of a run is flat" "a sanitizer keeps what was freed"
else
    tap_try "the memory of a run is flat" \
        "$python" "$top/bench/run_memory.py" --attnhost "$build/attnhost" --requests 60000 --most 1024
fi

shim=$build/bench/.libs/attention_shim.so
if grep -q __asan_init "$shim"; then
    tap_skip "the shims through ctypes" "it is built with a sanitizer, python3 is not"
else
    tap_try "the shims through ctypes" "$python" "$top/tests/independent/bench_shim.py" "$build"
fi
tap_end
