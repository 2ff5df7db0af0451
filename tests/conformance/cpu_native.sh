#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cpu_native.sh: the conformance suite on plugins/cpu_native, judged by what any backend keeps and by
# profiles mla and sparse at once.
profiles=$ATTNHOST_TEST_SRCDIR/host/check/profiles
both=$(mktemp) || exit 1
trap 'rm -f "$both"' EXIT
cat "$profiles/core.txt" "$profiles/mla.txt" "$profiles/sparse.txt" >"$both" || exit 1
. "$ATTNHOST_TEST_SRCDIR/tests/conformance/sample.sh"
(suite 'plugins/cpu_native plugins/common host/check' --profile "$both" "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so")
