#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# flashmla_like.sh: the conformance suite on plugins/flashmla_like.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/flashmla_like plugins/common' "$ATTNHOST_TEST_PLUGIN_DIR/flashmla_like.so"
