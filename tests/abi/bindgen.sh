#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bindgen.sh: Rust's bindgen reads the headers as the stored layout has them: every constant, the size of
# every struct, the place of every member.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

# Without rustfmt bindgen writes everything on one line, which neither bindgen.py nor grep reads.
for tool in bindgen rustfmt python3; do
    if ! command -v "$tool" >/dev/null; then
        tap_skip "bindgen reads the headers" "no $tool here (Debian: $tool)"
        tap_end
    fi
done
tap_folder scratch
if ! message=$(bindgen --no-prepend-enum-name "$top/include/attn_plugin.h" -o "$scratch/attn.rs" -- \
    -I"$top/include" 2>&1); then
    tap_not_ok "bindgen reads the headers" "$message"
    tap_end
fi
if message=$(python3 "$top/tests/abi/bindgen.py" "$top/tests/abi/layout.golden" \
    "$scratch/attn.rs"); then
    tap_ok "bindgen reads the headers: $message"
else
    tap_not_ok "bindgen reads the headers" "$message"
fi
# A type without a name in the headers gets a number here, which changes with every type before it.
tap_try "every enumeration has a name" sh -c '! grep _bindgen_ty_ "$1"' - "$scratch/attn.rs"
for name in ATTN_MODE_BIT_DECODE ATTN_MASK_BIT_QLEN ATTN_REGION_HOST_METADATA ATTN_TRAIT_PROMISES; do
    tap_try "$name is a constant" grep -q "pub const $name:" "$scratch/attn.rs"
done
tap_end
