#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_meanings.sh: of the zoo: backends that compute something else than attention.
set -- meanings
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/conformance/zoo_run.sh"
