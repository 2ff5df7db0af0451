#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cpu_native.sh: the conformance suite on plugins/cpu_native.
exec "$ATTNHOST_TEST_COMMAND" check "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so"
