#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# quickstart.sh: what `./dev quickstart` builds, beside cpu_native: the command without the conformance suite runs the
# quickstart's trace, and says of what it lacks how to get it.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"

program=$(cd "$build" && pwd)/attnhost-quickstart
tap_folder scratch
unset ATTNHOST_PLUGIN_PATH

# Beside what it was built with, as in a build folder with one plugin.
mkdir -p "$scratch/build/plugins/.libs"
umask 022
cp "$program" "$scratch/build"
cp "$build/plugins/.libs/cpu_native.so" "$scratch/build/plugins/.libs"
ln -s "$top"/* "$scratch" 2>/dev/null
tap_try "it runs the quickstart with cpu_native alone" sh -c '
    cd "$1" && build/attnhost-quickstart run examples/quickstart.ini >printed && grep "^verify .* 0 failed" printed' \
    sh "$scratch"

for name in check fuzz check-load; do
    "$program" $name --quick some.so >"$scratch/out" 2>"$scratch/err"
    code=$?
    if test $code -eq 2 && test ! -s "$scratch/out" &&
        test "$(cat "$scratch/err")" = "attnhost $name: not in attnhost-quickstart, which ./dev quickstart builds; ./dev build makes all of attnhost"; then
        tap_ok "$name says where it is"
    else
        tap_not_ok "$name says where it is" "exit code $code, expected 2" "$(cat "$scratch/err")"
    fi
done
tap_try "its help says so of both" sh -c 'test "$("$1" --help | grep -c "only in the full program")" = 2' sh "$program"

# Two fifths of the host's sources are the suite's.
if command -v nm >/dev/null; then
    tap_try "the conformance suite is not in it" sh -c '! nm "$1" | grep -q " T check_report_add$"' sh "$program"
fi
tap_end
