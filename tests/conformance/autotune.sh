#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# autotune.sh: what of the conformance suite has to do with choosing, on `autotune` between cpu_native
# and a composite of it. The rest of the suite is hybrid.sh's.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/hybrid host/check/composites' --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option prefill=cpu_native --option decode=cpu_native \
    --option candidate=cpu_native --option candidate=hybrid_phase --option seconds=0.02 \
    --filter 'autotune/COMP-*' --filter 'autotune/LIFE-*' --filter 'autotune/WORK-*' \
    --filter 'autotune/PURE-*' "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
