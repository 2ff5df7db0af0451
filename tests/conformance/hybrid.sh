#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hybrid.sh: the conformance suite on plugins/hybrid, with cpu_native as both children.
exec "$ATTNHOST_TEST_COMMAND" check --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option prefill=cpu_native --option decode=cpu_native "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
