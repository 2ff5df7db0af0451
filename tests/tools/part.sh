#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# part.sh: of the cases of a long test a commit runs a part, chosen by its hash, so that each commit
# runs another one, so that all are run over time. With ATTNHOST_TEST_ALL=1 in the environment it is
# all.
#
#   sh part.sh PARTS WHAT [FOLDER]... <CASES    prints every PARTS-th line, and says which part it is on
#                                               stderr; a quarter of that where folders are named, and the
#                                               commit changes nothing of them
set -eu
parts=$1 what=$2
shift 2
if test "${ATTNHOST_TEST_ALL-}" = 1; then
    exec cat
fi
. "$(dirname "$0")/commit.sh"
if test $# -gt 0 && ! commit_changes "$@"; then
    parts=$((parts * 4)) what="$what, as it changes nothing of $*"
fi
part=$(($(commit_number) % parts))
echo "# part $((part + 1)) of $parts of $what, by the commit; ATTNHOST_TEST_ALL=1 runs all" >&2
awk -v parts="$parts" -v part="$part" '(NR - 1) % parts == part'
