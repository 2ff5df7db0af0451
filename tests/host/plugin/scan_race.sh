#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# scan_race.sh: the thread sanitizer sees no race between scans and the setting of their limit, and sees
# one where the limit is no atomic variable.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
tap_folder folder
TSAN_OPTIONS=exitcode=66
export TSAN_OPTIONS

# build SCAN PROGRAM
build()
{
    # shellcheck disable=SC2086
    (cd "$top" && ${CC:-cc} -std=gnu11 -g -fsanitize=thread -I. -Iinclude tests/host/plugin/scan_race.c "$1" \
        host/base/error.c host/base/log.c host/base/message.c host/base/text.c -o "$2" -lpthread)
}

echo 'int main(void) { return 0; }' >"$folder/empty.c"
if ! ${CC:-cc} -fsanitize=thread "$folder/empty.c" -o "$folder/empty" >"$folder/said" 2>&1 ||
    ! "$folder/empty" >>"$folder/said" 2>&1; then
    tap_skip "scans and their limit" "no program of ${CC:-cc} -fsanitize=thread runs here: $(head -n 1 "$folder/said")"
    tap_end
fi
sed 's/_Atomic double limit_s/double limit_s/' "$top/host/plugin/scan.c" >"$folder/plain.c"
tap_try "scans while their limit is set are built" build host/plugin/scan.c "$folder/race"
tap_try "the sanitizer sees no race" "$folder/race"
tap_try "the same with a plain variable is built" build "$folder/plain.c" "$folder/plain"
"$folder/plain" >"$folder/said" 2>&1
tap_try "where it sees one" grep -q 'data race .*limit_of' "$folder/said"
tap_end
