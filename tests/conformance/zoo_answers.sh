#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_answers.sh: of the zoo: backends that answer wrong, and composites.
set -- answers
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/conformance/zoo_run.sh"
