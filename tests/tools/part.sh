#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# part.sh: of the cases of a long test a commit runs a part, chosen by its hash, so that each commit
# runs another one and all come to be run. With ATTNHOST_TEST_ALL=1 in the environment it is all.
#
#   sh part.sh PARTS WHAT <CASES    prints every PARTS-th line, and says which part it is on stderr
set -eu
parts=$1 what=$2
if test "${ATTNHOST_TEST_ALL-}" = 1; then
    exec cat
fi
# Also where another user made the clone. Where there is no commit, in a released archive, the first part.
commit=$(git -c safe.directory='*' -C "$(dirname "$0")" rev-parse HEAD 2>/dev/null) || commit=0
part=$(($(printf '%d' "0x$(printf '%.7s' "$commit")") % parts))
echo "# part $((part + 1)) of $parts of $what, by the commit; ATTNHOST_TEST_ALL=1 runs all" >&2
awk -v parts="$parts" -v part="$part" '(NR - 1) % parts == part'
