#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_meanings.sh: of the zoo: backends that get lists of keys and hints of shared prefixes wrong, or other bits late.
set -- meanings
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/conformance/zoo_run.sh"
