#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hybrid.sh: the conformance suite on plugins/hybrid. The suite makes their children, of cpu_native;
# of the layers that it asks about some go to either child of hybrid_linear.
exec "$ATTNHOST_TEST_COMMAND" check --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option full_attn_layers=0-5 "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
