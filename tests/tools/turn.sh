#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# turn.sh: of a test that takes long and that few commits can break: it is run if the commit, or the working tree,
# changes a file of these folders, and by one commit in six, chosen by its hash, for each test other ones. With
# ATTNHOST_TEST_ALL=1 in the environment it always is. Ends with 0 if it is to be run; else it says why not.
#
#   sh turn.sh NAME FOLDER...
set -eu
name=$1
shift
. "$(dirname "$0")/commit.sh"
test "${ATTNHOST_TEST_ALL-}" != 1 || exit 0
! commit_changes "$@" || exit 0
test $(($(echo "$(commit_number) $name" | cksum | cut -d ' ' -f 1) % 6)) -ne 0 || exit 0
echo "this commit changes nothing of $*; one in six runs it, and ATTNHOST_TEST_ALL=1"
exit 1
