#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fa3_like.sh: the conformance suite on plugins/fa3_like.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/fa3_like.so"
