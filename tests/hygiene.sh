#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hygiene.sh: who may include whom, and what the built objects show to the world.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tap.sh"

# no_include NAME PATTERN FOLDER: no file of the folder includes what the pattern names.
no_include()
{
    found=$(find "$top/$3" \( -name '*.[chi]*' -o -name '*.cu*' \) \
        -exec grep -nE "#include *\"$2" /dev/null {} +)
    if test -z "$found"; then
        tap_ok "$1"
    else
        tap_not_ok "$1" "$found"
    fi
}

no_include "plugins include nothing of the host" '(\.\./)*host/' plugins
no_include "the host includes nothing of the plugins" '(\.\./)*plugins/' host
no_include "the oracle includes nothing of the plugins" '(\.\./)*(\.\./)*plugins/' host/reference
no_include "public headers include public headers alone" '(.*/|[^a])' include

exports()
{
    nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort
}

for plugin in "$build"/plugins/.libs/*.so; do
    name=$(basename "$plugin")
    found=$(exports "$plugin")
    if test "$found" = attn_plugin_entry; then
        tap_ok "$name exports attn_plugin_entry alone"
    else
        tap_not_ok "$name exports attn_plugin_entry alone" "$found"
    fi
    found=$(readelf -dW "$plugin" | grep -E 'NEEDED.*(libattnhost|libcuda|libcudart|RUNPATH|RPATH)')
    if test -z "$found"; then
        tap_ok "$name needs neither the host nor CUDA"
    else
        tap_not_ok "$name needs neither the host nor CUDA" "$found"
    fi
    flags=$(readelf -dW "$plugin")
    case $flags in
    *NODELETE*) tap_ok "$name is never unmapped" ;;
    *) tap_not_ok "$name is never unmapped" "$flags" ;;
    esac
    case $flags in
    *"Flags: NOW"*) tap_ok "$name binds all symbols at once" ;;
    *) tap_not_ok "$name binds all symbols at once" "$flags" ;;
    esac
done

library=$build/.libs/libattnhost.so
found=$(exports "$library" | grep -v '^attnhost_')
if test -n "$found"; then
    tap_not_ok "libattnhost exports attnhost_* alone" "$found"
elif test -z "$(exports "$library")"; then
    tap_not_ok "libattnhost exports attnhost_* alone" "it exports nothing: include/attnhost.h needs #pragma GCC visibility push(default)"
else
    tap_ok "libattnhost exports attnhost_* alone"
fi
found=$(readelf -dW "$library" "$build/attnhost" | grep -E 'NEEDED.*libcuda')
if test -z "$found"; then
    tap_ok "the host links no CUDA library"
else
    tap_not_ok "the host links no CUDA library" "$found"
fi
tap_end
