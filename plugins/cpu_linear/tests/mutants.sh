#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# mutants.sh: mutants of cpu_linear; arguments are those of mutants.py.
plugin=cpu_linear
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/mutants/run.sh"
