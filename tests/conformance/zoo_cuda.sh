#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_cuda.sh: of the zoo: backends on the fake CUDA driver.
set -- cuda
. "${ATTNHOST_TEST_SRCDIR:-.}/tests/conformance/zoo_run.sh"
