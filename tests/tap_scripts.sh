#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tap_scripts.sh: a test of which everything is skipped, since something is missing on this machine, is no
# error. Each script of tests/conformance/ runs with a command that skips what it is asked for.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
tap_folder folder

# driven SCRIPT: its results, as automake's driver notes them, are in $folder/trs.
driven()
{
    # shellcheck disable=SC2086
    sh "$top/build-aux/tap-driver.sh" --test-name "$1" --log-file "$folder/log" --trs-file "$folder/trs" \
        --color-tests no --enable-hard-errors yes --expect-failure no -- \
        $ATTNHOST_TEST_SCRIPT_RUNNER "$1" >/dev/null 2>&1 </dev/null
}

results()
{
    sed -n 's/^:test-result: *\([A-Z]*\).*/\1/p' "$folder/trs" | sort -u | tr '\n' ' '
}

cat >"$folder/skips" <<'END'
#!/bin/sh
echo 'TAP version 13'
echo '1..1'
echo 'ok 1 - nothing # SKIP it is not here'
exit 77
END
chmod +x "$folder/skips"
tap_try "the command that skips everything ends with 77" sh -c '"$0" >/dev/null; test $? -eq 77' "$folder/skips"

ATTNHOST_TEST_COMMAND=$folder/skips
export ATTNHOST_TEST_COMMAND
sed -n 's/^\t\(tests\/conformance\/.*\.sh\).*/\1/p' "$top/tests/conformance/Makefile.am.inc" >"$folder/scripts"
tap_try "there are scripts" test "$(wc -l <"$folder/scripts")" -gt 20
while read -r script; do
    driven "$top/$script"
    name="where everything is skipped, $(basename "$script") ends well"
    if ! test -s "$folder/trs"; then
        tap_not_ok "$name" "it left no results"
    elif grep -q 'status 77' "$folder/log" "$folder/trs"; then
        tap_not_ok "$name" "$(cat "$folder/trs")"
    else
        tap_ok "$name: $(results)"
    fi
done <"$folder/scripts"

# What fails, or ends too early, is noticed as before.
printf 'echo "1..1"; echo "not ok 1"; exit 77\n' >"$folder/fails.sh"
driven "$folder/fails.sh"
tap_try "a failed case is one, whatever the exit code: $(results)" grep -q '^:test-result: *FAIL' "$folder/trs"
printf 'exit 77\n' >"$folder/early.sh"
driven "$folder/early.sh"
tap_try "a script that ends before its plan is an error: $(results)" grep -q '^:test-result: *ERROR' "$folder/trs"
tap_end
