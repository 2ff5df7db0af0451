#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cpu_linear.sh: the conformance suite on plugins/cpu_linear, judged by what any backend keeps and by
# profile linear at once.
profiles=$ATTNHOST_TEST_SRCDIR/host/check/profiles
both=$(mktemp) || exit 1
trap 'rm -f "$both"' EXIT
cat "$profiles/core.txt" "$profiles/linear.txt" >"$both" || exit 1
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
(suite 'plugins/cpu_linear plugins/common host/check' --profile "$both" "$ATTNHOST_TEST_PLUGIN_DIR/cpu_linear.so")
