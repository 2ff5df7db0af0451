# SPDX-License-Identifier: Apache-2.0
# documented.sh: runs the commands of a page, as the README. Source it after tap.sh; then
# documented PAGE FOLDER START, where the first block begins in START.
#
# Blocks are marked by what follows ```sh; any other block of sh is a failure:
#   run [exit=N] [needs=COMMAND] [suite]   runs, and ends with N, by default 0; skipped without the command. suite:
#                                  runs the whole conformance suite on a copy of the example, as make check does
#                                  where the suite changes: here where the commit changes page or example, or it is
#                                  its turn (turn.sh)
#   skip: REASON                   is not run
# Each begins in the folder, and with the exports, that the one before it left. A command that fails before a pipe
# counts, where the shell can see it (bash). A line that begins with
# `attnhost ` or `$ attnhost ` in a block of another kind is a failure too, and so is a command that is
# indented: it would be left out silently. A synopsis, which is not a command to run, is a block of ```text.

# Cuts the page into FOLDER/NNN.sh, whose first line is the mark; FOLDER/unmarked: what has none.
documented_cut()
{
    awk -v folder="$2" '
        /^```/ && inside { inside = 0; next }
        /^```sh/ { inside = 1; file = sprintf("%s/%03d.sh", folder, ++count)
                   print "# " substr($0, 7) >file; next }
        /^```text/ { inside = 2; next }
        /^```/ { inside = 3; next }
        !inside && /^    ( *)(\$ )?(attnhost|cc|cmake|git|make|pip|python3|sh|\.\/[^ ]*) / ||
        inside == 3 && /^(\$ )?attnhost / { print FNR ": " $0 >(folder "/unmarked") }
        inside == 1 { print >file }' "$1"
}

documented_block()
{
    mark=$(sed -n '1s/^# //p' "$1")
    name="$page: $(sed -n '2s/ *\\*$//p' "$1")"
    expected=0 needed= turn=
    for word in $mark; do
        case $word in
        skip:)
            tap_skip "$name" "${mark#skip: }"
            return
            ;;
        exit=*) expected=${word#exit=} ;;
        needs=*) needed=${word#needs=} ;;
        suite)
            turn=$(sh "$top/tests/tools/turn.sh" "$name" docs/PLUGIN_GUIDE.md examples/plugin) || {
                tap_skip "$name" "$turn"
                return
            }
            ;;
        run) ;;
        *) mark= ;;
        esac
    done
    if test -z "$mark"; then
        tap_not_ok "$name" "a block has to be marked 'run' or 'skip: REASON'"
        return
    fi
    if test -n "$needed" && ! command -v "$needed" >/dev/null; then
        tap_skip "$name" "$needed is not installed"
        return
    fi
    (
        # shellcheck disable=SC1091
        . "$2/state"
        set -eu
        # shellcheck disable=SC3040
        ! (set -o pipefail) 2>/dev/null || set -o pipefail
        # shellcheck disable=SC1090
        . "$1"
        { export -p && printf 'cd "%s"\n' "$PWD"; } >"$2/state"
    ) >"$2/output" 2>&1 </dev/null
    got=$?
    if test $got -eq "$expected"; then
        tap_ok "$name"
    else
        tap_not_ok "$name" "exit code $got, expected $expected: $(cat "$2/output")"
    fi
}

documented()
{
    page=$(basename "$1") blocks=$2
    mkdir -p "$blocks" "$3" || exit 1
    printf 'cd "%s"\n' "$3" >"$blocks/state"
    documented_cut "$1" "$blocks"
    if test -s "$blocks/unmarked"; then
        tap_not_ok "$page: commands outside of blocks of sh" "$(cat "$blocks/unmarked")"
    fi
    for block in "$blocks"/*.sh; do
        test -e "$block" || continue # a page without commands
        documented_block "$block" "$blocks"
    done
}
