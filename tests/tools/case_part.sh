#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# case_part.sh: which cases of a long test a commit runs. Prints K/6: each sixth case from the K-th on, where K, from
# 0 to 5, is chosen by the commit's hash, for each test another one. Prints nothing, which is all cases, if the commit,
# or the working tree, changes a file of these folders, and with ATTNHOST_TEST_ALL=1 in the environment.
#
#   sh case_part.sh NAME [FOLDER]...
set -eu
name=$1
shift
. "$(dirname "$0")/commit.sh"
test "${ATTNHOST_TEST_ALL-}" != 1 || exit 0
if test $# -gt 0 && commit_changes "$@"; then
    exit 0
fi
echo "$((($(commit_number) + $(echo "$name" | cksum | cut -d ' ' -f 1)) % 6))/6"
