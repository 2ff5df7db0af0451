#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# flashinfer_like.sh: the conformance suite on plugins/flashinfer_like.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/flashinfer_like.so"
