#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_calls.sh: of the zoo: backends that are called and do something wrong.
set -- calls
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/conformance/zoo_run.sh"
