#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_shared.sh: cases of the suite on fa3_like with tiles = shared, on the fake driver, where host
# functions stand in for its kernels: tiles go by low ones, their keys in parts that are joined, and what
# tiles cannot read is gathered first. Without nvcc there is nothing to stand in for.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

for filter in 'MEAN-0*' 'KV-0[1-4]*'; do
    ATTNHOST_FAKE_LAUNCHES=$folder/launches ATTNHOST_FAKE_KERNELS=fa3_like \
        ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_fa3_kernels.so \
        "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so" --device cuda \
        --quick --option tiles=shared --filter "$filter" >"$folder/report" 2>"$folder/err"
    code=$?
    if test $code -eq 0; then
        tap_ok "$filter on the fake driver"
    else
        tap_not_ok "$filter on the fake driver" "exit code $code
$(grep -A 2 '^not ok' "$folder/report" | head -20)
$(head -5 "$folder/err")"
    fi
done
for name in fa3_gather fa3_join fa3_forward_d64_low_bf16; do
    times=$(grep -c "^$name\$" "$folder/launches" 2>/dev/null)
    tap_try "$name is launched 5 times or more: ${times:-0}" test "${times:-0}" -ge 5
done
tap_end
