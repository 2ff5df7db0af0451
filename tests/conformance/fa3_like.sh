#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like.sh: the conformance suite on plugins/fa3_like.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/fa3_like plugins/flashinfer_like plugins/common' "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so"
