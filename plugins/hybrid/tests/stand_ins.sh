#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# stand_ins.sh: what the options of hybrid's composites mean: the checks of stand_ins/, on each of the four, over
# children that record what they are given. All cases where the commit changes hybrid or it is its turn (turn.sh), else
# a sample. What any composite has to keep is in tests/conformance/hybrid.sh.
ATTNHOST_TEST_COMMAND=$ATTNHOST_TEST_BUILDDIR/plugins/hybrid/tests/hybrid_check
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite plugins/hybrid --with "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" --filter 'COMP-0?.stand_ins' \
    --filter 'COMP-08.*' --filter 'COMP-07.*' --filter WORK-02.measured "$ATTNHOST_TEST_PLUGIN_DIR/hybrid.so"
