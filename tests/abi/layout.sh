#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# layout.sh: the layout computed from the headers by the ABI's rules (layout.py) is the stored one,
# and layout.py itself refuses what the ABI does not allow.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
python=${PYTHON3:-python3}
. "$top/tests/tools/tap.sh"

if ! command -v "$python" >/dev/null; then
    tap_skip "layout.golden" "no python3 here"
    tap_end
fi
tap_folder scratch

layout()
{
    PYTHONDONTWRITEBYTECODE=1 "$python" "$top/tests/abi/layout.py" "$1"
}

if ! layout "$top/include" >"$scratch/layout" 2>"$scratch/message"; then
    tap_not_ok "the headers keep the rules of the ABI" "$(cat "$scratch/message")"
elif ! diff -u "$top/tests/abi/layout.golden" "$scratch/layout" >"$scratch/diff"; then
    tap_not_ok "layout.golden is the headers' layout" "$(cat "$scratch/diff")
The headers and tests/abi/layout.golden differ. If the change is meant: make abi-update, and a line
in CHANGELOG.md. Only a member appended to a struct keeps older plugins working."
else
    tap_ok "layout.golden is the headers' layout"
fi

# refused NAME MEMBERS PATTERN: a struct with these members is refused with that message.
refused()
{
    mkdir -p "$scratch/$1"
    {
        echo "#include <stdint.h>"
        echo "typedef struct attn_y { uint32_t struct_size; uint32_t a; } attn_y;"
        echo "typedef struct attn_x {"
        echo "$2"
        echo "} attn_x;"
    } >"$scratch/$1/attn_x.h"
    if layout "$scratch/$1" >"$scratch/output" 2>&1; then
        tap_not_ok "refuses $1" "accepted: $(cat "$scratch/output")"
    elif ! grep -q "$3" "$scratch/output"; then
        tap_not_ok "refuses $1" "$(cat "$scratch/output")"
    else
        tap_ok "refuses $1"
    fi
}

refused "padding inside" "uint32_t struct_size; uint64_t b;" "4 bytes of padding before b"
refused "padding at the end" "uint32_t struct_size; uint32_t a; uint64_t b; char c;" \
    "7 bytes of padding at the end"
refused "another first member" "uint64_t a; uint32_t struct_size; uint32_t b;" "first member"
refused "bool" "uint32_t struct_size; _Bool a;" "no type of fixed width"
refused "enum" "uint32_t struct_size; enum attn_e a;" "no type of fixed width"
refused "int" "uint32_t struct_size; unsigned a;" "no type of fixed width"
refused "long" "uint32_t struct_size; uint32_t a; long b;" "no type of fixed width"
refused "bit-field" "uint32_t struct_size; uint32_t a : 3;" "bit-field"
refused "growing struct by value" "uint32_t struct_size; attn_y a;" "may grow"
refused "union" "uint32_t struct_size; union { uint32_t b; float c; } a;" "not allowed"

# changed NAME SCRIPT: the layout of headers that this sed script changed differs in a line of NAME.
changed()
{
    rm -rf "$scratch/changed"
    cp -R "$top/include" "$scratch/changed"
    chmod -R u+w "$scratch/changed"
    sed -i "$2" "$scratch/changed"/attn_*.h
    if layout "$scratch/changed" 2>&1 | diff "$top/tests/abi/layout.golden" - |
        grep -q "^> .* $1 "; then
        tap_ok "sees a change of $1"
    else
        tap_not_ok "sees a change of $1"
    fi
}

changed ATTN_BF16 's/\(ATTN_BF16 *\)0x11004u/\10x11005u/'
changed ATTN_LAYOUT_KV_NHD 's,"kv.nhd/1","kv.nhd/2",'
changed ATTN_LAYOUT_MLA_LATENT_FP8 's,"mla.latent_fp8/1","mla.latent_fp8/2",'
changed ATTN_MAX_DIMS 's/ATTN_MAX_DIMS 6u/ATTN_MAX_DIMS 8u/'
changed ATTN_REGION_COUNT 's/\(ATTN_REGION_COUNT *\)9u/\112u/'
changed ATTN_PLUGIN_ENTRY 's/"attn_plugin_entry"/"attn_entry"/'
changed ATTN_ABI_MAJOR 's/ATTN_ABI_MAJOR 0u/ATTN_ABI_MAJOR 9u/'
changed attn_dtype 's/typedef uint32_t attn_dtype/typedef int32_t attn_dtype/'
changed attn_plugin_entry_fn 's/(\*attn_plugin_entry_fn)(const /(*attn_plugin_entry_fn)(/'
changed poll_error 's/(\*poll_error)(void \*ctx, attn_error \*error/(*poll_error)(attn_error *error, void *ctx/'
changed trace_begin 's/uint64_t (\*trace_begin)/int64_t (*trace_begin)/'
tap_end
