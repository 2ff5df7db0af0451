#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# timed.sh: a test driver of automake that adds to the test's results, in its .trs file, what it took of the
# processor: `:seconds: 12.3`, which ./dev shows. Unlike the clock, it does not depend on what else runs.
#
#   timed.sh DRIVER [ARGUMENT]... --trs-file FILE [ARGUMENT]...
"$@"
code=$?
while test $# -gt 0 && test "$1" != --trs-file; do shift; done
test -f "${2-}" || exit $code
times >"$2.times" # in a pipe it would be another process's
awk 'NR == 2 { gsub(/[ms]/, " "); printf ":seconds: %.1f\n", $1 * 60 + $2 + $3 * 60 + $4 }' "$2.times" >>"$2"
rm -f "$2.times"
exit $code
