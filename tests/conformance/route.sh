#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# route.sh: what of the conformance suite depends on who is picked, on `route` with rows by phase,
# batch size and length, between cpu_native and a composite of it. The rest of the suite is
# hybrid.sh's.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'plugins/hybrid host/check/composites' --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" \
    --option prefill=cpu_native --option decode=cpu_native \
    --option 'when=phase=decode kv=0-8' --option then=hybrid_phase \
    --option 'when=phase=prefill batch=2-3' --option then=hybrid_phase \
    --option otherwise=cpu_native --filter 'route/COMP-*' --filter 'route/CAPS-*' \
    --filter 'route/INVAR-03*' --filter 'route/WORK-*' --filter 'route/CAPT-*' \
    "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
