#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# linear.sh: the conformance suite on plugins/linear.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/linear.so"
