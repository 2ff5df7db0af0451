#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# plugin_rust.sh: examples/plugin_rust declares the ABI as the headers do, is built without a warning, and
# passes `attnhost check` with profile core, or a sample of it (turn.sh), which finds a fault that is put into it.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

umask 022
tap_folder scratch

if command -v python3 >/dev/null; then
    tap_try "abi.rs is what the headers say" python3 "$top/tests/abi/rust.py" \
        "$top/tests/abi/layout.golden" "$top/examples/plugin_rust/abi.rs"
    sed 's/attn_tensor = 144 { */&flag: u32, /; s/DETERMINISM = 24/DETERMINISM = 25/' \
        "$top/examples/plugin_rust/abi.rs" >"$scratch/wrong.rs"
    tap_try "a wrong abi.rs is found" sh -c '! python3 "$@" >/dev/null' - "$top/tests/abi/rust.py" \
        "$top/tests/abi/layout.golden" "$scratch/wrong.rs"
else
    tap_skip "abi.rs is what the headers say" "no python3 here"
fi
grep -vE ' ATTN_(FIELD_COUNT|FIELD_NONE|ROLE_COUNT|MODE_BIT_ALL) ' "$top/tests/abi/layout.golden" >"$scratch/constants"
# What a language without C's macros takes the words from.
words=$("$ATTNHOST_TEST_COMMAND" list --words)
tap_try "list --words has every field, role and mode" sh -c '
    for set in FIELD ROLE MODE_BIT; do
        test "$(echo "$1" | grep -c "	ATTN_${set}_")" = \
            "$(grep -c "^const ATTN_${set}_" "$2")" || exit 1
    done' - "$words" "$scratch/constants"
if ! command -v rustc >/dev/null || ! command -v make >/dev/null; then
    tap_skip "examples/plugin_rust" "no rustc, or no make, here"
    tap_end
fi
mkdir "$scratch/plugin_rust"
cp "$top"/examples/plugin_rust/* "$scratch/plugin_rust"
chmod -R u+w "$scratch/plugin_rust"
example=$scratch/plugin_rust/example_rust
tap_try "rustc builds the example" make -C "$scratch/plugin_rust" RUSTFLAGS="-O -D warnings"
tap_try "it exports the entry alone" sh -c \
    'test "$(nm -D --defined-only "$1" | cut -d " " -f 3)" = attn_plugin_entry' - "$example.so"
if turn=$(sh "$top/tests/tools/turn.sh" plugin_rust examples/plugin_rust tests/command/plugin_rust.sh host/check include); then
    suite="--profile core"
else
    suite=--quick
    echo "# a sample of the suite: $turn"
fi
# shellcheck disable=SC2086
tap_try "attnhost check example_rust.so" "$ATTNHOST_TEST_COMMAND" check $suite "$example.so"
# A window that is one key too narrow.
sed 's/(position - g.window_left as i64)/(position - g.window_left as i64 + 1)/' "$example.rs" \
    >"$scratch/narrow.rs"
tap_try "the fault is one" test "$(diff "$example.rs" "$scratch/narrow.rs" | grep -c '^>')" = 1
cp "$scratch/narrow.rs" "$example.rs"
tap_try "a narrow window builds" make -C "$scratch/plugin_rust" RUSTFLAGS="-O -D warnings"
"$ATTNHOST_TEST_COMMAND" check --filter 'MEAN-*' "$example.so" >"$scratch/report" 2>&1
tap_try "attnhost check finds it" test $? = 1
tap_end
