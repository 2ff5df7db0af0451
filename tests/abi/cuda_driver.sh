#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cuda_driver.sh: the host's and the plugins' declarations of the CUDA driver API agree with cuda.h,
# where one of CUDA 13 or later is installed. CUDA_HOME names its folder if it is an unusual one.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

include=
nvcc=$(command -v nvcc || :)
for folder in "${CUDA_HOME:+$CUDA_HOME/include}" "${nvcc%/bin/nvcc}/include" \
    /usr/local/cuda/include /usr/include; do
    if test -z "$include" && test -n "$folder" && test -f "$folder/cuda.h"; then
        include=$folder
    fi
done
version=$(sed -n 's/^#define CUDA_VERSION *//p' "${include:-/dev}/cuda.h" 2>/dev/null)

# compare NAME FILE: with both compilers.
compare()
{
    for compiler in gcc clang; do
        if test "${version:-0}" -lt 13000; then
            tap_skip "$1 ($compiler)" "no cuda.h of CUDA 13 or later"
        elif ! command -v "$compiler" >/dev/null; then
            tap_skip "$1 ($compiler)" "not installed"
        else
            tap_try "$1 ($compiler)" "$compiler" -std=gnu11 -Wall -Wextra -Werror \
                -I"$top" -I"$top/include" -I"$include" -fsyntax-only "$top/tests/abi/$2"
        fi
    done
}

compare "host/device/cuda_driver.h agrees with cuda.h" cuda_driver.c
compare "plugins/common/cuda/cuda_api.h agrees with cuda.h" cuda_api.c
tap_end
