#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# linear_like.sh: the conformance suite on plugins/linear_like.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/linear_like.so"
