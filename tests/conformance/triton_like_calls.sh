#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# triton_like_calls.sh: which calls of the driver triton_like makes: on the fake one, where its
# kernels do nothing.
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
for sources in triton_like/kernels common/cuda; do # in one folder, as they are installed
    cp "$ATTNHOST_TEST_SRCDIR/plugins/$sources/"*.[chu]* "$folder/" 2>/dev/null
done
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_cuda_kernels.so XDG_CACHE_HOME=$folder
export ATTNHOST_LIBCUDA XDG_CACHE_HOME
"$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/triton_like.so" \
    --device cuda --option "kernel_dir=$folder" \
    --filter 'PURE-*' --filter 'CAPT-*' --filter 'LIFE-09*' --filter 'WORK-07*' --filter 'ERR-04*'
