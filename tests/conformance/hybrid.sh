#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hybrid.sh: the conformance suite on plugins/hybrid, a sample, as each of its four composites has all of it once more:
# one of the four, by the commit, or all where it changes them or the checks (part.sh).
# The suite makes their children, of cpu_native; of the layers that it asks about some go to either child of
# hybrid_linear. What the options of each composite mean is checked by plugins/hybrid/tests/stand_ins.sh.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
composites=$(printf '%s\n' autotune hybrid_linear hybrid_phase route | sh "$ATTNHOST_TEST_SRCDIR/tests/tools/part.sh" 1 \
    "the composites" plugins/hybrid host/check) || exit 1
set --
if test "$(echo "$composites" | wc -l)" -eq 1; then
    set -- --filter 'hybrid/*' --filter "$composites/*"
fi
sample - "$@" --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option full_attn_layers=0-5 "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
