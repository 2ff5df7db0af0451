#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# anchor.sh: abidiff between the stored ABI (anchor.abi) and the headers as they are.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
abidiff=${ABIDIFF:-abidiff}
. "$top/tests/tools/tap.sh"

if ! command -v "$abidiff" >/dev/null; then
    tap_skip "anchor.abi" "no abidiff here (Debian: abigail-tools)"
    tap_end
fi
# No --headers-dir: all types here are public, and libabigail hides changes within function pointers
# of types whose headers it finds by another path.
if message=$("$abidiff" --no-show-locs \
    "$top/tests/abi/anchor.abi" "$build/tests/abi/anchor.so" 2>&1); then
    tap_ok "the ABI is the stored one"
else
    tap_not_ok "the ABI is the stored one" "$message
The ABI differs from tests/abi/anchor.abi. If the change is meant: make abi-update, and a line in
CHANGELOG.md."
fi
tap_end
