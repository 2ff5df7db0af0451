#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dsa_like.sh: the conformance suite on plugins/dsa_like.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/dsa_like.so"
