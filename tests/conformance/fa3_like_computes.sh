#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_computes.sh: a sample of the suite on the fake driver, where host functions stand in for
# fa3_like's kernels and for those of plugins/flashinfer_like: what is planned and launched, by what
# comes of it. Whatever can be cut into tiles is, as few of these batches are so large that they would be
# of themselves. Without nvcc there is nothing to stand in for.
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_fa3_kernels.so ATTNHOST_FAKE_KERNELS=fa3_like
export ATTNHOST_LIBCUDA ATTNHOST_FAKE_KERNELS
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
sample - "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so" --device cuda --option tiles=always \
    --option split_tile_size=64 --option many_items=never
