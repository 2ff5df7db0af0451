#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hybrid_linear.sh: what of the conformance suite depends on the child that a layer goes to, on
# `hybrid_linear` by kind of layer, between cpu_native and cpu_linear. The rest of the suite is
# hybrid.sh's.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/hybrid host/check/composites' --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_linear.so" \
    --option full=cpu_native --option linear=cpu_linear --filter 'hybrid_linear/COMP-*' \
    --filter 'hybrid_linear/CAPS-*' --filter 'hybrid_linear/WORK-*' \
    --filter 'hybrid_linear/MEAN-18*' --filter 'hybrid_linear/KV-09*' \
    --filter 'hybrid_linear/INVAR-01.linear_layer_groups*' "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
