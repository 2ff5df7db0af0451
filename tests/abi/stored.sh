#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# stored.sh: plugins built with headers of other versions, kept as they were. plugin_0_1.b64 is
# tests/fixtures/bad_nothing.c of ABI 0.1, for x86-64 (gcc -Os -s), in base64.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
command=${ATTNHOST_TEST_COMMAND:-./attnhost}
. "$top/tests/tools/tap.sh"

if test "$(uname -m)" != x86_64; then
    tap_skip "plugin_0_1" "it is built for x86-64"
    tap_end
fi
umask 022
tap_folder folder

# refused NAME SENTENCE: the stored plugin of this name is refused with this sentence.
refused()
{
    base64 -d "$top/tests/abi/$1.b64" >"$folder/$1.so"
    chmod 755 "$folder/$1.so"
    "$command" inspect "$folder/$1.so" >"$folder/out" 2>&1
    code=$?
    if test $code -eq 3 && grep -q "$1.so: $2" "$folder/out"; then
        tap_ok "$1 is refused with a sentence"
    else
        tap_not_ok "$1 is refused with a sentence" "exit $code: $(cat "$folder/out")"
    fi
}

refused plugin_0_1 "it is built for ABI 0.1; accepted: 0.2, as before 1.0 no two minor versions"
tap_end
