#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# embed_cuda.sh: examples/embed_cuda.c on the fake CUDA driver, with a backend whose kernels are host
# functions: the example's own memory, stream and graphs, where there is no GPU.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

tap_try "examples/embed_cuda on the fake driver" "$ATTNHOST_TEST_BUILDDIR/tests/command/embed_cuda_fake" \
    "$ATTNHOST_TEST_FIXTURE_DIR/cuda_fixture.so" cuda_fixture
tap_end
