#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# example_rows.sh: the conformance suite on examples/plugin.
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
suite 'examples/plugin host/check' "$ATTNHOST_TEST_FIXTURE_DIR/example_rows.so"
