#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# unit_test.sh: runs a program of `make check`, whole or a part of its cases (case_part.sh; test_main.h takes it).
# A program of $ATTNHOST_TEST_LONG runs whole where the commit changes what it tests: its own folder, and the room
# or plugin of that name. With ATTNHOST_TEST_SLOW=1 (sanitizers, valgrind), which makes all programs many times as
# long, so does every other program, and those of the list run a part in each commit: they run whole elsewhere.
# $ATTNHOST_TEST_UNDER is a command that runs the program: valgrind.
#
#   sh unit_test.sh PROGRAM [ARGUMENT]...
set -u
program=${1#./}
own=${program%/*}
case ${program##*/} in
check_*) ;;
*) exec ${ATTNHOST_TEST_UNDER-} "$@" ;; # no unit test
esac
case $own in
*/tests) tested=${own%/tests} ;; # plugins/NAME/tests
tests/*) tested=${own#tests/} ;;   # tests/host/ROOM
*) exec ${ATTNHOST_TEST_UNDER-} "$@" ;;
esac
folders="$own $tested"
case " ${ATTNHOST_TEST_LONG-} " in
*" $program "*) test "${ATTNHOST_TEST_SLOW-}" != 1 || folders= ;;
*) test "${ATTNHOST_TEST_SLOW-}" = 1 || exec ${ATTNHOST_TEST_UNDER-} "$@" ;;
esac
# shellcheck disable=SC2086
part=$(sh "$(dirname "$0")/case_part.sh" "$program" $folders) || exit 1
if test -n "$part"; then
    echo "# cases $part, by the commit; ATTNHOST_TEST_ALL=1 runs all"
    ATTNHOST_TEST_PART=$part
    export ATTNHOST_TEST_PART
fi
exec ${ATTNHOST_TEST_UNDER-} "$@"
