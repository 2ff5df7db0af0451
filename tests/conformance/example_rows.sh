#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# example_rows.sh: the conformance suite on examples/plugin.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_FIXTURE_DIR/example_rows.so"
