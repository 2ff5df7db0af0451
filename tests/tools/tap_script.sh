#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tap_script.sh: runs a test that prints TAP. `attnhost check` ends with 77 where all of its cases are
# skipped, which automake's TAP driver calls an error, although each skipped case says why. A script that
# ends before its plan is an error still: by its missing plan.
#
#   tap_script.sh SCRIPT [ARGUMENT]...
"${SHELL:-/bin/sh}" "$@"
code=$?
test $code -eq 77 || exit $code
