#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hybrid.sh: the conformance suite on plugins/hybrid: all that is about composites where the commit changes them
# or it is its turn (turn.sh), else a sample; a sample of the rest, which each of them has once more. The suite makes their children, of cpu_native; of the layers that it
# asks about some go to either child of hybrid_linear.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
whole='COMP-*'
if ! said=$(sh "$ATTNHOST_TEST_SRCDIR/tests/tools/turn.sh" hybrid.sh plugins/hybrid host/check/composites); then
    whole=-
    echo "# a sample of COMP-* too: $said" >&2
fi
sample "$whole" --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option full_attn_layers=0-5 "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
