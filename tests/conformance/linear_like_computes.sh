#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# linear_like_computes.sh: the conformance suite on the fake driver, where host functions stand in
# for linear_like's kernels, judged by what any backend keeps and by profile linear at once:
# operands, slots and launches, by their results. linear_fixture.so is the plugin with images that
# need no nvcc.
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_linear_kernels.so ATTNHOST_FAKE_KERNELS=linear_like
export ATTNHOST_LIBCUDA ATTNHOST_FAKE_KERNELS
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
profiles=$ATTNHOST_TEST_SRCDIR/host/check/profiles
both=$(mktemp) || exit 1
trap 'rm -f "$both"' EXIT
cat "$profiles/core.txt" "$profiles/linear.txt" >"$both" || exit 1
(sample - --profile "$both" "$ATTNHOST_TEST_FIXTURE_DIR/linear_fixture.so" --device cuda)
