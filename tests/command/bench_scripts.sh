#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench_scripts.sh: what of bench/ can be tried without PyTorch and without a GPU: the scripts'
# syntax, the plan of gpu_attention.py, and the shims through ctypes.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"

tap_python "scripts of bench/"

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

# serving_grid.py: a grid of its own, so that every row is looked at.
grid=$(mktemp) || exit 1
trap 'rm -f "$grid" "$grid.bad"' EXIT
cat >"$grid" <<'END'
[models]
Small = softmax 32/8 128
Latent = mla 16 512+64
Net = gdn 16/32 128x128
Mixed = mamba2 8/16 128x64, softmax 32/8 128
[shards]
ranks = 1 8
[softmax]
decode = 1x8192
verify = 1x8192q4
chunk = 1x8704q512
prefill = 1x512
pages = 16 1
dtypes = bf16 bf16/fp8_e4m3
[mla]
decode = 1x32768
verify = 1x32768q4
pages = 64
dtypes = bf16
[linear]
decode = 32x1
prefill = 1x2048
dtypes = bf16
[reference]
gdn decode bf16 B32 H16/32 D128x128 N1 = 35.7 FlashInfer
END
plan=$("$python" "$top/bench/serving_grid.py" --grid "$grid" --dry-run 2>&1)

# says TEXT NAME: the plan has this line's beginning.
says()
{
    case $plan in
    *"$1"*) tap_ok "$2" ;;
    *) tap_not_ok "$2" "$plan" ;;
    esac
}
# By hand, at 770 TFLOP/s, 4.2 TB/s and 2.5 us a launch. 4 x 32 x 128 x 8192 operations; 2 x 8192 x 8 x 128 x 2
# bytes of keys and values and 2 x 32 x 128 x 2 of q and out: 33.57 MB, 7.99 us.
says "decode bf16 B1 H32/8 D128 N8192 p16: 0.1342 GFLOP, 33.57 MB, at least 8.0 us (memory); Small/1 Mixed/1" \
    "the floor of a decode, with all models of its shape"
# A rank of eight has 4/1 heads: 4.2 MB are read in 1.0 us, less than a launch.
says "decode bf16 B1 H4/1 D128 N8192 p1: 0.01678 GFLOP, 4.196 MB, at least 2.5 us (launch); Small/8 Mixed/8" \
    "the floor of a rank's decode is the launch"
# 512 queries see 8704 - 255.5 keys on the mean: 4 x 32 x 128 x 512 x 8448.5 operations, 92.0 us.
says "chunk bf16 B1 H32/8 D128 N8704 q512 p16: 70.87 GFLOP, 44.04 MB, at least 92.0 us (products)" "the floor of a chunk"
# 4 queries of 16 heads over 32768 - 1.5 latents of 576 and 512; 32768 x 576 x 2 bytes of them.
says "mla verify bf16 B1 H16 D512+64 N32768 q4 p64: 4.563 GFLOP, 37.89 MB, at least 9.0 us (memory)" "the floor of latents"
# 2 x 4 x 32 x 32 x 128 x 128 bytes of states, 32 x (8192 x 2 + 256 + 4096 x 2) of rows.
says "gdn decode bf16 B32 H16/32 D128x128 N1: 0.1258 GFLOP, 135 MB, at least 32.1 us (memory)" "the floor of a state"
count=$(printf '%s\n' "$plan" | grep -c -e '^prefill.*p1:' -e '^prefill.*kv fp8')
tap_try "prompts read no cache, so they are there once" test "$count" -eq 0
count=$(printf '%s\n' "$plan" | sed -n '1,12s/ bf16.*//p' | sort -u | wc -l)
tap_try "a short run has every phase of every kind" test "$count" -eq 10

# refused EDIT TEXT: with this edit the file is refused, in these words.
refused()
{
    sed "$1" "$grid" >"$grid.bad"
    said=$("$python" "$top/bench/serving_grid.py" --grid "$grid.bad" --dry-run 2>&1)
    case $?:$said in
    1:"serving_grid: $grid.bad: $2"*) tap_ok "refused: $2" ;;
    *) tap_not_ok "refused: $2" "$said" ;;
    esac
}
refused 's/32\/8 128$/32x8 128/' "[models] Small: 32x8: accepted numbers of 1 or more as in 32/8"
refused 's/1x8192$/1x8192q4/' "[softmax] decode: 1x8192q4: accepted: queries"
refused 's/= 1 8/= 1 0/' "[shards] ranks: 0: accepted numbers"
refused 's/= bf16$/= int4/' "[mla] dtypes: int4: accepted: fp32"
refused 's/^gdn decode/gdx decode/' "[reference] gdx decode bf16"
refused '/^ranks/d' "'ranks' is missing"
"$python" - "$top/bench" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import serving_grid
rows, references = serving_grid.read(serving_grid.DATA)
names = [str(row) for row in rows]
assert len(set(names)) == len(names) > 1000 and references
for shape in "8/1 16/1 16/2 12/2 28/4 40/8 64/8 32/32 71/1".split():
    assert any(f" H{shape} " in name for name in names), shape
END
tap_try "the grid itself is read, and has the heads that ranks have" test $? -eq 0

shim=$build/bench/.libs/attention_shim.so
if grep -q __asan_init "$shim"; then
    tap_skip "the shims through ctypes" "it is built with a sanitizer, python3 is not"
else
    tap_try "the shims through ctypes" "$python" "$top/tests/independent/bench_shim.py" "$build"
fi
tap_end
