#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_table.sh: run the zoo and write its table into docs/FAULTS.md, between the marks. To be
# called in a build folder after `make check`: sh SRCDIR/tests/conformance/zoo_table.sh [LINES]
# LINES is a file with what zoo_run.sh has left in ZOO_TABLE before; then nothing is run.
set -eu
here=$(dirname "$0")
ATTNHOST_TEST_SRCDIR=$(cd "$here/../.." && pwd)
ATTNHOST_TEST_FIXTURE_DIR=$PWD/tests/fixtures/.libs
ATTNHOST_TEST_PLUGIN_DIR=$PWD/plugins/.libs
ATTNHOST_TEST_COMMAND=$PWD/attnhost
ATTNHOST_TEST_ALL=1
ZOO_TABLE=$(mktemp)
trap 'rm -f "$ZOO_TABLE" "$ZOO_TABLE.md"' EXIT
export ATTNHOST_TEST_ALL ATTNHOST_TEST_SRCDIR ATTNHOST_TEST_FIXTURE_DIR ATTNHOST_TEST_PLUGIN_DIR ATTNHOST_TEST_COMMAND ZOO_TABLE

if test $# -gt 0; then
    cat "$1" >"$ZOO_TABLE"
else
    for section in files calls answers meanings cuda; do
        sh "$here/zoo_$section.sh"
    done
fi
{
    echo
    echo "| fault | what it does | found | seconds |"
    echo "|---|---|---|---|"
    awk -F ' [|] ' '{
        gsub(/=FAIL/, "", $3)
        gsub(/=/, " ", $3)
        gsub(/ (CRASH|TIMEOUT|WARN|REFUSED)/, " (&)", $3)
        gsub(/\( /, "(", $3)
        $3 = $3 == "-" ? "nothing" : tolower_codes($3)
        split($4, spent, " ")
        printf "| `%s` | %s | %s | %.1f |\n", $1, $2, $3, spent[2] - spent[1]
    }
    function tolower_codes(text) {
        sub(/TIMEOUT/, "timeout", text)
        sub(/WARN/, "warning", text)
        sub(/REFUSED/, "refused", text)
        gsub(/CRASH/, "crash", text)
        return text
    }' "$ZOO_TABLE"
    echo
} >"$ZOO_TABLE.md"
document=$ATTNHOST_TEST_SRCDIR/docs/FAULTS.md
awk -v table="$ZOO_TABLE.md" '
    /<!-- \/zoo -->/ { inside = 0 }
    !inside { print }
    /<!-- zoo -->/ {
        inside = 1
        while ((getline line <table) > 0) print line
    }' "$document" >"$document.new"
mv "$document.new" "$document"
