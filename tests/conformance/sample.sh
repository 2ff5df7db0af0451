# SPDX-License-Identifier: Apache-2.0
#
# sample.sh: `attnhost check` on a plugin whose cases are many and much alike, a few cases of each check;
# with ATTNHOST_TEST_ALL=1 in the environment, all of them. To be sourced.
#
#   sample WHOLE ARGUMENT...    all cases of the pattern WHOLE (- = of none), a sample of the rest
#   suite FOLDERS ARGUMENT...   all cases if the commit changes these folders or it is its turn (turn.sh), else a sample

suite()
{
    # shellcheck disable=SC2086
    said=$(sh "$ATTNHOST_TEST_SRCDIR/tests/tools/turn.sh" "${0##*/}" $1) || is_sample=yes
    test "${ATTNHOST_TEST_SLOW-}" != 1 || is_sample=yes said="under the sanitizers"
    shift
    if test "${is_sample-}" = yes; then
        echo "# a sample: $said" >&2
        set -- --quick "$@"
    fi
    exec "$ATTNHOST_TEST_COMMAND" check "$@"
}

sample()
{
    whole=$1
    shift
    if test "${ATTNHOST_TEST_ALL-}" = 1; then
        exec "$ATTNHOST_TEST_COMMAND" check "$@"
    fi
    if test "$whole" = -; then
        exec "$ATTNHOST_TEST_COMMAND" check --quick "$@"
    fi
    # Two reports as one. One that was cut off has no plan.
    {
        "$ATTNHOST_TEST_COMMAND" check --filter "$whole" "$@"
        "$ATTNHOST_TEST_COMMAND" check --quick "$@"
    } | awk '
        /^TAP version/ { if (plans++ == 0) print; next }
        /^1\.\./ { ended++; next }
        /^(not )?ok [0-9]/ { sub(/ok [0-9]+/, "ok " ++count) }
        { print }
        END {
            if (ended != 2)
                printf "not ok %d - both reports have an end\n", ++count
            print "1.." count
        }'
}
