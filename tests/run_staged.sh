#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run_staged.sh: `run-tests` of a tree made by `./dev stage`: runs the unit tests and the examples of
# embedding there, on a machine without compiler or make. The last line counts, as `./dev test` does.
# Tests that need what the machine lacks skip themselves.
set -u
here=$(cd "$(dirname "$0")" && pwd)
ATTNHOST_TEST_SRCDIR=$here
ATTNHOST_TEST_BUILDDIR=$here
ATTNHOST_TEST_PLUGIN_DIR=$here/plugins
ATTNHOST_TEST_FIXTURE_DIR=$here/tests/fixtures
ATTNHOST_TEST_COMMAND=$here/bin/attnhost
export ATTNHOST_TEST_SRCDIR ATTNHOST_TEST_BUILDDIR ATTNHOST_TEST_PLUGIN_DIR \
    ATTNHOST_TEST_FIXTURE_DIR ATTNHOST_TEST_COMMAND

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cd "$here" || exit 1

# take NAME: the TAP in $log.one; what is not simply good is shown.
take()
{
    sed "s|^|$1: |" "$log.one" | grep -vE ': (ok [^#]*|1\.\.[0-9]+)$' >&2
    cat "$log.one" >>"$log"
}

for program in "$here"/tests/check_* "$here"/tests/device_*; do
    "$program" >"$log.one" 2>&1
    status=$?
    take "$(basename "$program")"
    # A program that ends badly without a failed test of its own counts as one.
    if test $status -ne 0 && ! grep -q '^not ok' "$log.one"; then
        echo "not ok - $(basename "$program") ended with $status" >>"$log"
    fi
done
# An example prints text; its last line says why it failed, or what is missing here (77).
for program in embed embed_cuda; do
    text=$("$here/bin/$program" "$here/plugins" 2>&1)
    case $? in
    0) echo "ok - $program" ;;
    77) echo "ok - $program # SKIP $(echo "$text" | tail -n 1)" ;;
    *) echo "not ok - $program: $(echo "$text" | tail -n 1)" ;;
    esac >"$log.one"
    take examples
done
rm -f "$log.one"
awk '
    /^1\.\.0 # SKIP/ || /^ok .*# SKIP/ { skipped++; next }
    /^ok / { passed++ }
    /^not ok/ { failed++ }
    END {
        printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        exit failed > 0 || passed == 0
    }' "$log"
