#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_expanded.sh: latent attention in the expanded form by fa3_like, on the fake driver, where host
# functions stand in for its kernels: the cases of the form pass, some of each check, and it is the forward
# kernel that is launched. Without nvcc there is nothing to stand in for.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

ATTNHOST_FAKE_LAUNCHES=$folder/launches ATTNHOST_FAKE_KERNELS=fa3_like \
    ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_fa3_kernels.so \
    "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so" --device cuda \
    --filter 'MEAN-20*' --filter 'MEAN-19*' --filter 'KV-10.mla*' --filter 'KV-04.mla*' \
    >"$folder/report" 2>"$folder/err"
code=$?
if test $code -eq 0; then
    tap_ok "the expanded form on the fake driver"
else
    tap_not_ok "the expanded form on the fake driver" "exit code $code
$(grep -A 2 '^not ok' "$folder/report" | head -20)
$(head -5 "$folder/err")"
fi
for check in mla_expanded mla_as_given mla_chunks mla_merge; do
    tap_try "cases of MEAN-20.$check pass" \
        test "$(grep "^ok .*/MEAN-20\.$check/" "$folder/report" | grep -vc SKIP)" -gt 0
done
tap_try "latents are saved" \
    test "$(grep '^ok .*/KV-10\.mla_saved/' "$folder/report" | grep -vc SKIP)" -gt 0
for name in fa3_forward_d192_v128_bf16 fa3_forward_d192_v128_f16 fi_save; do
    tap_try "$name is launched" grep -q "^$name\$" "$folder/launches"
done
tap_end
