#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# triton_like.sh: the conformance suite on plugins/triton_like.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/triton_like.so"
