#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# flashinfer_like_computes.sh: a sample of the suite on the fake driver, where host functions stand in
# for flashinfer_like's kernels: what is planned and launched, by what comes of it. Keys that sequences
# share are always read by runs, as none of these batches shares enough of them to be worth it of itself;
# where bits must not depend on the batch, splits are as short as they can be, so that there are some. Few
# rows of DECODE go to the kernels for many items, others to half tiles; in fa3_like_computes.sh to the
# other kernels.
# Without nvcc there is nothing to stand in for.
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_fi_kernels.so ATTNHOST_FAKE_KERNELS=flashinfer_like
export ATTNHOST_LIBCUDA ATTNHOST_FAKE_KERNELS
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
sample - "$ATTNHOST_TEST_PLUGIN_DIR/flashinfer_like.so" --device cuda --option cascade=always \
    --option split_tile_size=64 --option many_items=always --option half_tiles=always
