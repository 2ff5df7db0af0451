#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_expanded.sh: latent attention in the expanded form by fa3_like: the cases of the form pass, some of each
# check, and it is the forward kernel that is launched.
set -u
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/fa3_like_fake.sh"
pass_on_fake "the expanded form" --filter 'MEAN-20*' --filter 'MEAN-19*' --filter 'KV-10.mla*' --filter 'KV-04.mla*'
for check in mla_expanded mla_as_given mla_chunks mla_merge; do
    tap_try "cases of MEAN-20.$check pass" \
        test "$(grep "^ok .*/MEAN-20\.$check/" "$folder/report" | grep -vc SKIP)" -gt 0
done
tap_try "latents are saved" \
    test "$(grep '^ok .*/KV-10\.mla_saved/' "$folder/report" | grep -vc SKIP)" -gt 0
for name in fa3_forward_d192_v128_bf16 fa3_forward_d192_v128_f16 fi_save; do
    launched 1 "$name"
done
tap_end
