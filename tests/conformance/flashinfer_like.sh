#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# flashinfer_like.sh: the conformance suite on plugins/flashinfer_like.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/flashinfer_like plugins/common' "$ATTNHOST_TEST_PLUGIN_DIR/flashinfer_like.so"
