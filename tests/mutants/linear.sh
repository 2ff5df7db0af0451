#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# linear.sh: mutants of plugins/linear; arguments are those of mutants.py.
plugin=linear
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/mutants/run.sh"
