#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cpu_native.sh: mutants of plugins/cpu_native; arguments are those of mutants.py.
plugin=cpu_native
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/mutants/run.sh"
