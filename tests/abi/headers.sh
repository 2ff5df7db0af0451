#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# headers.sh: every public header compiles alone, and the stored layout holds, as C11, C17 and C++17
# under gcc and clang, without a warning.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"

tap_folder scratch
warnings="-Wall -Wextra -Wpedantic -Werror"

# compile COMPILER LANGUAGE STANDARD: standard input, no output but messages.
compile()
{
    # shellcheck disable=SC2086
    "$1" -x "$2" -std="$3" $warnings -I"$top/include" -I"$build/tests/abi" -c -o "$scratch/x.o" -
}

header_alone()
{
    printf '#include "%s"\nextern int nothing_else;\n' "$4" | compile "$1" "$2" "$3"
}

layout_holds()
{
    compile "$1" "$2" "$3" <"$top/tests/abi/layout.c"
}

for row in "gcc c c11" "gcc c c17" "g++ c++ c++17" "clang c c11" "clang c c17" "clang++ c++ c++17"; do
    # shellcheck disable=SC2086
    set -- $row
    if ! command -v "$1" >/dev/null; then
        tap_skip "$1 -std=$3" "no $1 here"
        continue
    fi
    for header in "$top"/include/*.h; do
        name=$(basename "$header")
        if message=$(header_alone "$1" "$2" "$3" "$name" 2>&1); then
            tap_ok "$name alone, $1 -std=$3"
        else
            tap_not_ok "$name alone, $1 -std=$3" "$message"
        fi
    done
    if message=$(layout_holds "$1" "$2" "$3" 2>&1); then
        tap_ok "layout, $1 -std=$3"
    else
        tap_not_ok "layout, $1 -std=$3" "$message
The layout differs from tests/abi/layout.golden. If it is meant to: make abi-update, and a line in
CHANGELOG.md."
    fi
done
tap_end
