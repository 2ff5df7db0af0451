#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like_computes.sh: all of the suite on the fake driver, where host functions stand in for fa3_like's
# kernels: what is planned and launched, by what comes of it. Without nvcc there is nothing to stand in for.
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_fa3_kernels.so ATTNHOST_FAKE_KERNELS=fa3_like
export ATTNHOST_LIBCUDA ATTNHOST_FAKE_KERNELS
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so" --device cuda
