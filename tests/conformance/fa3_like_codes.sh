#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_codes.sh: the cases of MEAN-22 on fa3_like as a run without options has them, on the fake driver,
# where host functions stand in for its kernels: they pass, and each kernel for queries that are codes is
# among those launched. Without nvcc there is nothing to stand in for.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

ATTNHOST_FAKE_LAUNCHES=$folder/launches ATTNHOST_FAKE_KERNELS=fa3_like \
    ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_fa3_kernels.so \
    "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so" --device cuda \
    --filter 'MEAN-22*' >"$folder/report" 2>"$folder/err"
code=$?
if test $code -eq 0; then
    tap_ok "MEAN-22 on the fake driver"
else
    tap_not_ok "MEAN-22 on the fake driver" "exit code $code
$(grep -A 2 '^not ok' "$folder/report" | head -20)
$(head -5 "$folder/err")"
fi
count()
{
    grep -c "^$1\$" "$folder/launches" 2>/dev/null
}
# launched LEAST NAME: so many times at least.
launched()
{
    times=$(count "$2")
    tap_try "$2 is launched $1 times or more: ${times:-0}" test "${times:-0}" -ge "$1"
}
# Head dimension 128 goes to the kernels for codes, the others to those of the library, widened.
launched 1 fa3_forward_codes_d128_f16
launched 3 fa3_forward_codes_d128_bf16
tap_try "the values of each batch for these are turned" test "$(count fa3_turn_values)" -eq \
    $(($(count fa3_forward_codes_d128_bf16) + $(count fa3_forward_codes_d128_f16)))
launched 20 fa3_widen
for dim in 64 96 192 256; do
    launched 3 "fi_prefill_\(half_\)*d${dim}_bf16_e4m3"
done
tap_end
