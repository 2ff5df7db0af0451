#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench_command.sh: `attnhost bench` as a command: its exit codes and messages, its table, and its
# JSON, whose figures are computed again from its samples and from the shapes alone.
set -u
top=${ATTNHOST_TEST_SRCDIR:-$(dirname "$0")/..}
. "$top/tests/tools/tap.sh"

tap_python "attnhost bench"
exec "$python" "$top/tests/independent/bench_report.py"
