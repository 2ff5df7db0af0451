#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# support_matrix.sh: the matrix of docs/MATRIX.md is what `attnhost list --matrix` prints of this build, cell
# by cell; and what our backends can do against what is published of those they are named after.
# `make readme-update` writes it there.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

python=${PYTHON3-no}
if test "$python" = no; then
    tap_skip "the support matrix" "no python3"
    tap_end
fi
umask 022
tap_folder folder
cp "$ATTNHOST_TEST_FIXTURE_DIR/example_rows.so" "$folder" || exit 1
if ! ATTNHOST_PLUGIN_PATH=$ATTNHOST_TEST_PLUGIN_DIR:$folder \
    "$ATTNHOST_TEST_COMMAND" list --matrix >"$folder/printed"; then
    echo "Bail out! attnhost list --matrix failed"
    exit 1
fi
sed '/^Built without kernels here: /d' "$folder/printed" >"$folder/matrix" # of this build, not of the backends
compare=$top/tests/independent/support_matrix.py
if test "${1-}" = --update; then
    "$python" "$compare" --update "$top/docs/MATRIX.md" "$folder/matrix"
else
    "$python" "$compare" "$top/docs/MATRIX.md" "$folder/matrix" "$top/tests/tools/published_features.txt"
fi
