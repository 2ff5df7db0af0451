#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_codes.sh: the cases of MEAN-22 on fa3_like as a run without options has them: each kernel for queries that
# are codes is among those launched.
set -u
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/fa3_like_fake.sh"
pass_on_fake "MEAN-22" --filter 'MEAN-22*'
# Head dimension 128 goes to the kernels for codes, the others to those of the library, widened.
launched 1 fa3_forward_codes_d128_f16
launched 3 fa3_forward_codes_d128_bf16
tap_try "the values of each batch for these are turned" test "$(count_launches fa3_turn_values)" -eq \
    $(($(count_launches fa3_forward_codes_d128_bf16) + $(count_launches fa3_forward_codes_d128_f16)))
launched 20 fa3_widen
for dim in 64 96 192 256; do
    launched 3 "fi_prefill_\(half_\)*d${dim}_bf16_e4m3"
done
tap_end
