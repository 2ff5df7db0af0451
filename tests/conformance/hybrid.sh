#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hybrid.sh: the conformance suite on plugins/hybrid: all that is about composites, a sample of the rest,
# which each of them has once more. The suite makes their children, of cpu_native; of the layers that it
# asks about some go to either child of hybrid_linear.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
sample 'COMP-*' --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option full_attn_layers=0-5 "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
