#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# trust_table.sh: each attack of docs/TRUST.md has the test that its row names.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

rows=$(mktemp) || exit 1
trap 'rm -f "$rows"' EXIT
sed -n 's/^| .* | `\([^`]*\)` | `\([^`]*\)` |$/\1\t\2/p' "$top/docs/TRUST.md" >"$rows"
tab=$(printf '\t')
while IFS=$tab read -r file name; do
    case $file in
    *.c) tap_try "$file: $name" grep -qE -e "^(TEST|LOOP)_OF\(\w+, $name[,)]" "$top/$file" ;;
    *) tap_try "$file: $name" grep -qF -e "\"$name\"" "$top/$file" ;;
    esac
done <"$rows"
tap_try "the table has its rows" test "$(wc -l <"$rows")" -ge 34
tap_end
