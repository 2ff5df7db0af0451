#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# turn.sh: of a test that takes long and that few commits can break: it is run if the commit, or the working tree,
# changes a file of these folders, and by one commit in six, chosen by its hash: the longest tests each by another
# one. With ATTNHOST_TEST_ALL=1 in the environment it always is. Ends with 0 if it is to be run; else it says why not.
#
#   sh turn.sh NAME FOLDER...      a folder, or what git takes for some files: ':!FOLDER', without these
set -eu
name=$1
shift
. "$(dirname "$0")/commit.sh"
test "${ATTNHOST_TEST_ALL-}" != 1 || exit 0
! commit_changes "$@" || exit 0
case $name in
models) place=0 ;;
engines) place=1 ;;
newest | drafts) place=2 ;;
torch_backends) place=5 ;;
*) place=$(echo "$name" | cksum | cut -d ' ' -f 1) ;;
esac
test $((($(commit_number) + place) % 6)) -ne 0 || exit 0
echo "this commit changes nothing of $(echo "$*" | sed 's/ *:![^ ]*//g'); one in six runs it, and ATTNHOST_TEST_ALL=1"
exit 1
