#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run_identities.sh: what `attnhost run` reports, against counts made from the trace file alone.
#
#   tests/command/run_identities.sh                                   as `make check` runs it
#   tests/command/run_identities.sh TRACE FORMAT SCALE REQUESTS       on another trace, with its figures
#
# FORMAT is mooncake or azure. By hand, ATTNHOST_TEST_COMMAND and ATTNHOST_TEST_PLUGIN_DIR name the
# command and the folder of plugins, by default those of the build in the working directory, and
# VERIFY_RATE is the share of the rows that is verified, by default 0.001.
set -u
top=${ATTNHOST_TEST_SRCDIR:-$(dirname "$0")/..}
. "$top/tests/tools/tap.sh"

tap_python "identities of a run"
exec "$python" "$top/tests/independent/run_identities.py" "$@"
