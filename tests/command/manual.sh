#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# manual.sh: man pages and completion, as `make` has them made: a page for each command, with the options
# that its help has; groff finds nothing to say; bash completes what is typed.
set -u
top=${ATTNHOST_TEST_SRCDIR:-$(dirname "$0")/..}
. "$top/tests/tools/tap.sh"

attnhost=$ATTNHOST_TEST_COMMAND
made=$ATTNHOST_TEST_BUILDDIR/host/cmd
tap_folder folder
cd "$folder" || exit 1

commands=$("$attnhost" help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
tap_try "there are commands" test "$(echo "$commands" | wc -l)" -ge 7
pages=$(cd "$made/man" && ls)
# shellcheck disable=SC2086
wanted=$({ echo attnhost.1 && printf 'attnhost-%s.1\n' $commands; } | sort)
tap_try "a page for each command" test "$(echo "$pages" | sort)" = "$wanted"

for command in $commands; do
    "$attnhost" "$command" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' | sort >in_help
    sed -n 's/^\\fB\\-\\-\([a-z\\-]*\)\\fR.*/--\1/p' "$made/man/attnhost-$command.1" | tr -d '\\' | sort >in_page
    tap_try "attnhost-$command(1) has the options of its help" cmp in_help in_page
done
for page in $pages; do
    if ! command -v groff >/dev/null; then
        tap_skip "$page: groff" "groff is not installed"
        continue
    fi
    groff -man -Tascii -ww -z "$made/man/$page" >said 2>&1
    tap_try "$page: groff warns of nothing" test ! -s said
done
if command -v man >/dev/null && man -l "$made/man/attnhost-run.1" 2>/dev/null | grep -q .; then
    tap_try "man shows attnhost-run(1)" sh -c \
        'MANWIDTH=80 man -l "$1" 2>&1 | grep -q "^ *attnhost run CONFIG.ini"' sh "$made/man/attnhost-run.1"
else
    tap_skip "man shows attnhost-run(1)" "man is not installed, or shows nothing"
fi

# ---- Completion ----------------------------------------------------------------------------------

# completes NAME EXPECTED WORD...: the last word is under the cursor.
completes()
{
    what=$1 expected=$2
    shift 2
    got=$(bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _attnhost
        printf "%s\n" "${COMPREPLY[@]}"' bash "$made/completion/attnhost" "$@" 2>&1 | sort | tr '\n' ' ')
    tap_try "bash completes $what" test "$got" = "$expected"
}

: >config.ini
if command -v bash >/dev/null; then
    completes "a command" "inspect " attnhost ins
    completes "help's command" "explain " attnhost help ex
    completes "an option" "--print-config " attnhost run --pri
    completes "an option of another command" "--matrix " attnhost list --m
    completes "a file" "config.ini " attnhost run con
    completes "an option's file" "config.ini " attnhost bench --json con
    completes "an option's word" "auto " attnhost bench --device a
    completes "nothing of an option that is none" " " attnhost run --matr
else
    tap_skip "bash completion" "bash is not installed"
fi
for shell in zsh:_attnhost fish:attnhost.fish; do
    if command -v "${shell%%:*}" >/dev/null; then
        tap_try "${shell%%:*} reads its completion" "${shell%%:*}" -n "$made/completion/${shell#*:}"
    else
        tap_skip "${shell%%:*} reads its completion" "${shell%%:*} is not installed"
    fi
done
tap_end
