#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# live.sh: what attnhost reads of a config.json, against models that Transformers builds on the spot.
# The stored ones are compared by tests/host/model/check_live; this needs Transformers 5 and torch:
# make check PYTHON3=... names an interpreter that has them.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

built="Transformers builds the models"
read="attnhost reads their layers as they are"
tap_folder folder

if test "${PYTHON3-no}" = no; then
    tap_skip "$built" "no python3"
    tap_end
fi
"$PYTHON3" "$top/tests/models/live/live.py" "$folder/live" 2>"$folder/said"
code=$?
if test $code = 77; then
    tap_skip "$built" "$(tail -n 1 "$folder/said")"
    tap_end
fi
if test $code = 0; then
    tap_ok "$built"
else
    tap_not_ok "$built" "$(cat "$folder/said")"
fi
ATTNHOST_TEST_LIVE=$folder/live
CK_RUN_CASE=live
export ATTNHOST_TEST_LIVE CK_RUN_CASE
tap_try "$read" "$ATTNHOST_TEST_BUILDDIR/tests/host/model/check_live"
tap_end
