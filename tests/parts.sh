#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# parts.sh: of a long test a commit runs a part of the cases. The six parts are all cases, each once; a commit that
# changes what a test is of runs all.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"
unset ATTNHOST_TEST_ALL ATTNHOST_TEST_PART ATTNHOST_TEST_SLOW ATTNHOST_TEST_LONG ATTNHOST_TEST_UNDER CK_RUN_CASE CK_EXCLUDE_TAGS
tap_folder scratch
umask 022

# cases [PART]: what a unit test says that passed, without its numbers.
cases()
{
    ATTNHOST_TEST_PART=${1-} "$ATTNHOST_TEST_BUILDDIR/tests/host/base/check_text" | sed -n 's/^ok [0-9]* - //p'
}
if test -x "$ATTNHOST_TEST_BUILDDIR/tests/host/base/check_text"; then
    cases | sort >"$scratch/all"
    for k in 0 1 2 3 4 5; do
        cases $k/6 >"$scratch/part"
        wc -l <"$scratch/part" >>"$scratch/sizes"
        cat "$scratch/part"
    done | sort >"$scratch/parts"
    tap_try "a program has enough cases to be cut" test "$(wc -l <"$scratch/all")" -ge 6
    tap_try "six parts are all cases, each once" cmp "$scratch/all" "$scratch/parts"
    tap_try "the parts are equally long" test $(($(sort -n "$scratch/sizes" | tail -n 1) - $(sort -n "$scratch/sizes" | head -n 1))) -le 1
else
    tap_skip "six parts are all cases, each once" "unit tests were not built: the Check library is missing"
fi

if ! command -v git >/dev/null; then
    tap_skip "what a commit runs" "no git"
    tap_end
fi

# A tree of two rooms with two commits, of which the last changes the first room; "$scratch/says" for a program.
tree=$scratch/tree
mkdir -p "$tree/tests/tools" "$tree/tests/host/one" "$tree/host/one" "$tree/tests/host/two" "$tree/host/two"
cp "$top/tests/tools/commit.sh" "$top/tests/tools/case_part.sh" "$top/tests/tools/unit_test.sh" "$tree/tests/tools"
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "part ${ATTNHOST_TEST_PART-all}"\n' >"$tree/tests/host/one/check_a"
chmod +x "$tree/tests/host/one/check_a"
cp "$tree/tests/host/one/check_a" "$tree/tests/host/two/check_b"
# commit MESSAGE FILE: one that changes this file.
commit()
{
    echo "$1" >>"$tree/$2"
    git -C "$tree" add -A && git -C "$tree" -c user.name=a -c user.email=a@example.org -c commit.gpgsign=false commit -qm "$1"
}
tap_try "git init" git init -q "$tree"
tap_try "a commit" commit first host/two/file
tap_try "a second commit" commit second host/one/file

# runs NAME PATTERN PROGRAM [VARIABLE=VALUE]...: what the program says of the part that it was asked for.
runs()
{
    name=$1 pattern=$2 program=$3
    shift 3
    said=$(cd "$tree" && env "$@" sh tests/tools/unit_test.sh "./$program" 2>&1 | tail -n 1)
    # shellcheck disable=SC2254
    case $said in
    $pattern) tap_ok "$name" ;;
    *) tap_not_ok "$name" "got '$said', expected '$pattern'" ;;
    esac
}
# shellcheck disable=SC2016
printf 'echo "under $("$@")"\n' >"$scratch/under"
a=tests/host/one/check_a b=tests/host/two/check_b
runs "a program that is not long is whole" "part all" $b ATTNHOST_TEST_LONG=$a
runs "a long one whose room the commit changes is whole" "part all" $a ATTNHOST_TEST_LONG="$a $b"
runs "a long one of another room is cut" "part [0-5]/6" $b ATTNHOST_TEST_LONG="$a $b"
runs "with ATTNHOST_TEST_ALL=1 it is whole" "part all" $b ATTNHOST_TEST_LONG="$a $b" ATTNHOST_TEST_ALL=1
runs "under the sanitizers a long one is always cut" "part [0-5]/6" $a ATTNHOST_TEST_LONG=$a ATTNHOST_TEST_SLOW=1
runs "a short one of another room is cut there, too" "part [0-5]/6" $b ATTNHOST_TEST_LONG=$a ATTNHOST_TEST_SLOW=1
runs "a short one whose room the commit changes is whole" "part all" $a ATTNHOST_TEST_LONG=$b ATTNHOST_TEST_SLOW=1
runs "a program is run under the command that is given" "under part [0-5]/6" $b ATTNHOST_TEST_LONG=$a ATTNHOST_TEST_SLOW=1 \
    ATTNHOST_TEST_UNDER="sh $scratch/under"
echo more >>"$tree/host/two/file"
runs "a long one whose room the working tree changes is whole" "part all" $b ATTNHOST_TEST_LONG="$a $b"
tap_end
