#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hybrid.sh: the conformance suite on plugins/hybrid, a sample, as each of its four composites has all of it once more.
# The suite makes their children, of cpu_native; of the layers that it asks about some go to either child of
# hybrid_linear. What the options of each composite mean is checked by plugins/hybrid/tests/stand_ins.sh.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
sample - --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option full_attn_layers=0-5 "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
