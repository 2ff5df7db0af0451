#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# plugin_cpp.sh: examples/plugin_cpp, built by each C++ compiler that is here without a warning, passes
# `attnhost check`; and so it finds a fault in it.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

umask 022
tap_folder scratch

# build COMPILER SOURCE OUTPUT: as the example's Makefile does, from the tree.
build()
{
    "$1" -O2 -std=c++17 -Wall -Wextra -Wpedantic -Werror -fno-exceptions -fno-rtti -I"$top/include" \
        -fPIC -fvisibility=hidden -shared -Wl,--version-script="$top/include/attn_plugin.map" \
        -Wl,-z,now -Wl,-z,relro -o "$3" "$2" -lm
}

source=$top/examples/plugin_cpp/example_cpp.cpp
compilers=0
for compiler in g++ clang++; do
    if ! command -v "$compiler" >/dev/null; then
        tap_skip "$compiler" "no $compiler here"
        continue
    fi
    compilers=$((compilers + 1))
    mkdir "$scratch/$compiler"
    tap_try "$compiler builds the example" build "$compiler" "$source" "$scratch/$compiler/example_cpp.so"
    last=$compiler
done
if test "$compilers" = 0; then
    tap_end
fi
if turn=$(sh "$top/tests/tools/turn.sh" plugin_cpp examples/plugin_cpp tests/command/plugin_cpp.sh host/check include); then
    quick=
else
    quick=--quick
    echo "# a sample of the suite: $turn"
fi
tap_try "attnhost check example_cpp.so" \
    "$ATTNHOST_TEST_COMMAND" check $quick "$scratch/$last/example_cpp.so"
# A window that is one key too narrow.
sed 's/first = row.position - g.window_left;/first = row.position - g.window_left + 1;/' "$source" \
    >"$scratch/narrow.cpp"
tap_try "the fault is one" test "$(cmp "$source" "$scratch/narrow.cpp" | wc -l)" = 1
tap_try "a narrow window builds" build "$last" "$scratch/narrow.cpp" "$scratch/$last/narrow.so"
"$ATTNHOST_TEST_COMMAND" check --filter 'MEAN-*' "$scratch/$last/narrow.so" >"$scratch/report" 2>&1
tap_try "attnhost check finds it" test $? = 1
tap_end
