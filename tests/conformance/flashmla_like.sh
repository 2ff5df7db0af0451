#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# flashmla_like.sh: the conformance suite on plugins/flashmla_like.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/flashmla_like.so"
