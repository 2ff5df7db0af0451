#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# example_warps.sh: a sample of the conformance suite on examples/plugin_cuda, on the fake driver with the
# kernels compiled as C. Without nvcc there is no image to load, and create says so.
. "$ATTNHOST_TEST_SRCDIR/tests/tools/tap.sh"
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
plugin=$ATTNHOST_TEST_FIXTURE_DIR/example_warps.so
ATTNHOST_LIBCUDA=$ATTNHOST_TEST_FIXTURE_DIR/fake_cuda_kernels.so ATTNHOST_FAKE_KERNELS=example_warps
export ATTNHOST_LIBCUDA ATTNHOST_FAKE_KERNELS
if nm "$plugin" | grep -q warps_kernels_fatbin; then
    sample - "$plugin" --device cuda
fi
text=$("$ATTNHOST_TEST_COMMAND" check "$plugin" --device cuda --filter 'LIFE-02.pairs')
case $text in
*"DEPENDENCY_MISSING: kernels warps_kernels: not in this build, as configure found no nvcc"*)
    tap_ok "a build without nvcc says so in create"
    ;;
*) tap_not_ok "a build without nvcc says so in create" "$text" ;;
esac
tap_end
