#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hygiene.sh: who may include whom, and what the built objects show to the world.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"

# none NAME FOUND: what must not be there was not found.
none()
{
    if test -z "$2"; then
        tap_ok "$1"
    else
        tap_not_ok "$1" "$2"
    fi
}

# no_include NAME PATTERN FOLDER: no file of the folder includes what the pattern names, which begins
# with the quote or the bracket.
no_include()
{
    found=$(find "$top/$3" \( -name '*.[chi]*' -o -name '*.cu*' \) \
        -exec grep -nE "^[ 	]*#[ 	]*include[ 	]*($2)" /dev/null {} +)
    none "$1" "$found"
}

no_include "plugins include nothing of the host" '["<](\.\./)*host/' plugins
no_include "the host includes nothing of the plugins" '["<](\.\./)*plugins/' host
no_include "the oracle includes nothing of the plugins" '["<](\.\./)*plugins/' host/reference
no_include "public headers include public headers alone" '"(.*/|[^a])|<(.*/|attn)' include

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
    found=$(readelf -dW "$plugin" | grep -E 'NEEDED.*(libattnhost|libcuda|libcudart)')
    none "$name needs neither the host nor CUDA" "$found"
    flags=$(readelf -dW "$plugin")
    none "$name searches libraries where the system does" \
        "$(echo "$flags" | grep -E '\((RUNPATH|RPATH)\)')"
    none "$name has no text relocations" "$(echo "$flags" | grep TEXTREL)"
    stack=$(readelf -lW "$plugin" | grep GNU_STACK)
    case $stack in
    *RWE*) tap_not_ok "$name has no executable stack" "$stack" ;;
    *RW*) tap_ok "$name has no executable stack" ;;
    *) tap_not_ok "$name has no executable stack" "no GNU_STACK, so it is executable: $stack" ;;
    esac
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
none "the host links no CUDA library" "$found"
none "no text has a placeholder left" \
    "$(find "$top" -name .git -prune -o -name '*.md' -exec grep -nE '@[A-Z][A-Z0-9_]*@' /dev/null {} +)"
tap_end
