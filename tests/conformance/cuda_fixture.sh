#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cuda_fixture.sh: the checks that need a CUDA device, on a backend of the fake driver that computes, and those of its
# results: masks, windows, scores, and what is read and saved.
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_cuda_kernels.so ATTNHOST_FAKE_KERNELS=cuda_fixture
export ATTNHOST_LIBCUDA ATTNHOST_FAKE_KERNELS
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_FIXTURE_DIR/cuda_fixture.so" \
    --device cuda --filter 'PURE-*' --filter 'CAPT-*' --filter 'LIFE-09*' --filter 'WORK-07*' \
    --filter 'ERR-04*' --filter 'MEAN-0*' --filter 'KV-0[1268]*'
