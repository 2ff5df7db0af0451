#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# wrong_backends.sh ATTNHOST TOP FIRST: backends in Python that are wrong on purpose are each caught by the
# rule that names it, and the right one, sdpa.py, passes the same cases. TAP from number FIRST + 1 on, then
# "# last COUNT FAILED". ATTNHOST_PYTHON is a Python that has torch.
set -u
attnhost=$1 top=$2
. "$top/tests/tools/tap.sh"
tap_count=$3
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
umask 022
XDG_CACHE_HOME=$scratch/cache # what is scanned depends on WRONG
ATTNHOST_SDPA=$top/examples/python/sdpa.py
export ATTNHOST_SDPA XDG_CACHE_HOME
cp "$top/tests/python/wrong_backends.py" "$top/examples/python/sdpa.py" "$scratch"

# caught NAME RULE TEXT: a case of the rule fails, and TEXT is in what it says.
caught()
{
    WRONG=$1
    export WRONG
    "$attnhost" check --jobs 1 --inactivity "${inactivity:-30}" --fail-fast --filter "$2" "$scratch/wrong_backends.py" \
        >"$scratch/report" 2>"$scratch/errors"
    if grep -q '^not ok ' "$scratch/report" && grep -q -e "$3" "$scratch/report"; then
        tap_ok "$1 is caught by $2"
    else
        tap_not_ok "$1 is caught by $2" "$(tail -n 12 "$scratch/report" "$scratch/errors")"
    fi
}

tap_try "sdpa.py passes the rules that catch the others" \
    "$attnhost" check --jobs 1 --filter 'MEAN-06.windows/0' --filter 'INVAR-01.two_batches/0' \
    --filter 'LIFE-07.instances' --filter 'ERR-03.*' "$scratch/sdpa.py"
caught window 'MEAN-06.*' 'output row'
caught stale_table 'KV-06.*' 'output row'
caught sink 'MEAN-1*' 'output row'
caught lse_base_2 'MEAN-13.*' 'LSE'
caught unsynchronised 'MEAN-06.*' 'output row'
caught keeps_out 'MEAN-06.*' 'keeps a reference to out'
caught exception 'MEAN-06.*' 'ValueError: no such head (wrong_backends.py:'
caught exits 'MEAN-06.*' 'CRASH: .*exit'
inactivity=15
caught hangs 'MEAN-06.*' 'no sign of life'
inactivity=30
caught leaks 'LIFE-07.*' 'leave .* behind'
echo "# last $tap_count $tap_failed"
