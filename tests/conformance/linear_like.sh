#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# linear_like.sh: the conformance suite on plugins/linear_like.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/linear_like plugins/common' "$ATTNHOST_TEST_PLUGIN_DIR/linear_like.so"
