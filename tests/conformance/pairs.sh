#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# pairs.sh: docs/CONFORMANCE.md has the pairs of values that no case of a default run on cpu_native has: those that
# spec_pairs notes, as pairs.awk counts them. `awk -f pairs.awk FILE` prints the rows anew.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
name="CONFORMANCE.md has the pairs that never occur"
if ! not_now=$(sh "$top/tests/tools/turn.sh" pairs host/check/cases host/check/numerics host/check/relations \
    tests/conformance/pairs.awk tests/host/check/spec_pairs.c); then
    tap_skip "$name" "$not_now"
    tap_end
    exit
fi
tap_folder folder

SPEC_PAIRS=$folder/specs "$ATTNHOST_TEST_BUILDDIR/tests/host/check/spec_pairs" check \
    "$ATTNHOST_TEST_PLUGIN_DIR/cpu_native.so" >"$folder/report"
code=$?
tap_try "cpu_native passes" test $code -eq 0
tap_try "some thousand cases are different" test "$(sort -u "$folder/specs" | wc -l)" -gt 4000
LC_ALL=C awk -f "$top/tests/conformance/pairs.awk" "$folder/specs" >"$folder/pairs"
tap_try "$name" sh -c 'sed -n "/[0-9] specs have/,/^###/{s/.*[^0-9]\([0-9]* specs have\)/\1/;/^###/d;/^$/d;p;}" "$1" |
    diff - "$2"' - "$top/docs/CONFORMANCE.md" "$folder/pairs"
tap_end
