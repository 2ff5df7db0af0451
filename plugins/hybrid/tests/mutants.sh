#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# mutants.sh: mutants of hybrid; arguments are those of mutants.py.
plugin=hybrid
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/mutants/run.sh"
