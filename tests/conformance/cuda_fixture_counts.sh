#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cuda_fixture_counts.sh: a backend on a device that plans with lengths on the host.
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_cuda_kernels.so ATTNHOST_FAKE_KERNELS=cuda_fixture
export ATTNHOST_LIBCUDA ATTNHOST_FAKE_KERNELS
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_FIXTURE_DIR/cuda_fixture.so" \
    --device cuda --option counts_keys=yes --filter 'CAPS-09*' --filter 'WORK-06*' \
    --filter 'PURE-0[67]*'
