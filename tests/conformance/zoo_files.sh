#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_files.sh: of the zoo: files that load badly, or whose entry or describe is wrong.
set -- files
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/conformance/zoo_run.sh"
