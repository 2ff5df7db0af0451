#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# triton_like.sh: the conformance suite on plugins/triton_like.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/triton_like plugins/common' "$ATTNHOST_TEST_PLUGIN_DIR/triton_like.so"
