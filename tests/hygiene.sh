#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hygiene.sh: who may include whom, as the fragments of host/'s rooms say it ("# May include:"),
# what the built objects show to the world, and lists that have to agree.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"
. "$top/tests/hygiene/facts.sh"

# none NAME FOUND: what must not be there was not found.
none()
{
    if test -z "$2"; then
        tap_ok "$1"
    else
        tap_not_ok "$1" "$2"
    fi
}

tap_folder scratch

# ---- Who may include whom ------------------------------------------------------------------------

# What is wrong: `wrong FACTS KIND`, a kind of rooms.awk, or plugin.
wrong()
{
    case $2 in
    plugin) awk -f "$top/tests/hygiene/plugins.awk" "$1" ;;
    *) awk -v what="$2" -f "$top/tests/hygiene/rooms.awk" "$1" ;;
    esac || echo "awk failed"
}

room_facts "$top" "$build" >"$scratch/rooms"
plugin_facts "$top" >"$scratch/plugins"
for kind in fragment may listed source include defines needs; do
    tap_try "there is something to look at: $kind" grep -q "^$kind " "$scratch/rooms"
done
none "a room includes what its fragment names, and itself" "$(wrong "$scratch/rooms" include)"
none "no way leads back to a room" "$(wrong "$scratch/rooms" circle)"
none "what a room calls is in a room that it may include" "$(wrong "$scratch/rooms" symbol)"
none "every file of the host is in a fragment" "$(wrong "$scratch/rooms" file)"
none "every room has a fragment, which names rooms" "$(wrong "$scratch/rooms" fragment)"
none "plugins include nothing of the host and nothing of each other" \
    "$(wrong "$scratch/plugins" plugin)"

# A machine may have cJSON or inih as well: what was compiled since configure must not need them.
none "cJSON and inih are those of the tree" "$(find "$build" -name '*.P*o' -newer "$build/Makefile" \
    -exec grep -lE '/include/(cjson/|ini\.h)' {} +)"

# no_include NAME PATTERN FOLDER: no file of the folder includes what the pattern names, which begins
# with the quote or the bracket.
no_include()
{
    found=$(find "$top/$3" \( -name '*.[chi]*' -o -name '*.cu*' \) \
        -exec grep -nE "^[ 	]*#[ 	]*include[ 	]*($2)" /dev/null {} +)
    none "$1" "$found"
}

no_include "the host includes nothing of the plugins" '["<](\.\./)*plugins/' host
no_include "public headers include public headers alone" '"(.*/|[^a])|<(.*/|attn)' include

# ---- Whether these would be found ----------------------------------------------------------------

# A tree of two rooms and two plugins in which all is well. Names are made up.
make_tree()
{
    rm -rf "$scratch/tree"
    mkdir -p "$scratch/tree/host/low" "$scratch/tree/host/high" "$scratch/tree/include" \
        "$scratch/tree/plugins/common" "$scratch/tree/plugins/one" "$scratch/tree/plugins/two" \
        "$scratch/tree/plugins/hybrid/core" "$scratch/tree/plugins/hybrid/phase" \
        "$scratch/tree/plugins/hybrid/linear" || exit 1
    cd "$scratch/tree" || exit 1
    printf '%s\n' '# May include: nothing' 'host_sources += host/low/a.c host/low/a.h' \
        >host/low/Makefile.am.inc
    printf '%s\n' '# May include: low' 'host_sources += host/high/b.c host/high/b.h' \
        >host/high/Makefile.am.inc
    echo 'int low_answer(void);' >host/low/a.h
    echo 'int high_answer(void);' >host/high/b.h
    printf '%s\n' '#include "host/low/a.h"' 'int low_answer(void) { return 1; }' >host/low/a.c
    printf '%s\n' '#include "host/high/b.h"' '#include "host/low/a.h"' \
        'int high_answer(void) { return low_answer(); }' >host/high/b.c
    : >include/attn_types.h
    : >plugins/common/help.h
    : >plugins/two/two.h
    : >plugins/hybrid/core/core.h
    : >plugins/hybrid/linear/linear.h
    printf '%s\n' '#include "attn_types.h"' '#include "plugins/common/help.h"' >plugins/one/one.c
    echo '#include "plugins/hybrid/core/core.h"' >plugins/hybrid/phase/phase.c
    cd - >/dev/null || exit 1
}

compile_tree()
{
    for object in low/a high/b; do
        $CC -c -I"$scratch/tree" -o "$scratch/tree/host/${object%/*}/libattnhost_core_la-${object#*/}.o" \
            "$scratch/tree/host/$object.c" || exit 1
    done
}

# finds KIND NAME TEXT: in the tree as it is now; "" = nothing.
finds()
{
    case $1 in
    plugin) plugin_facts "$scratch/tree" ;;
    *) room_facts "$scratch/tree" "$scratch/tree" ;;
    esac >"$scratch/facts"
    wrong "$scratch/facts" "$1" >"$scratch/found"
    found=$(cat "$scratch/found")
    if test -z "$3"; then
        none "$2" "$found"
    else
        tap_try "$2" grep -F -e "$3" "$scratch/found"
    fi
}

CC=${CC:-cc}
make_tree
compile_tree
for kind in include circle symbol file fragment plugin; do
    finds $kind "finds nothing where all is well: $kind" ""
done
echo '#include "host/high/b.h"' >>"$scratch/tree/host/low/a.c"
finds include "finds an include upward" "host/low/a.c includes host/high/b.h"
echo '#include "../low/a.h"' >>"$scratch/tree/host/high/b.c"
finds include "finds an include that goes up the tree" "includes ../low/a.h"
make_tree
sed 's/nothing/high/' "$scratch/tree/host/low/Makefile.am.inc" >"$scratch/fragment"
cp "$scratch/fragment" "$scratch/tree/host/low/Makefile.am.inc"
finds circle "finds a circle" "low may include high"
make_tree
echo 'int high_answer(void); int more(void); int more(void) { return high_answer(); }' \
    >>"$scratch/tree/host/low/a.c"
compile_tree
finds symbol "finds a call upward without an include" "needs high_answer of host/high/"
make_tree
: >"$scratch/tree/host/low/c.c"
finds file "finds a file in no fragment" "host/low/c.c is in no fragment"
mkdir "$scratch/tree/host/new"
: >"$scratch/tree/host/new/d.c"
finds fragment "finds a room without a fragment" "host/new has C files and no Makefile.am.inc"
echo 'host_sources += host/new/d.c' >"$scratch/tree/host/new/Makefile.am.inc"
finds fragment "finds a fragment that does not say whom the room may include" "has no line"
echo '# May include: nowhere' >>"$scratch/tree/host/new/Makefile.am.inc"
finds fragment "finds a room that is not there" "nowhere is no room"
echo '#include "plugins/two/two.h"' >>"$scratch/tree/plugins/one/one.c"
finds plugin "finds a plugin that includes another" "is another plugin's"
echo '# Links the library of: two' >"$scratch/tree/plugins/one/Makefile.am.inc"
finds plugin "a plugin may include another whose library its fragment says that it links" ""
make_tree
echo '#include <host/low/a.h>' >>"$scratch/tree/plugins/one/one.c"
finds plugin "finds a plugin that includes the host" "includes host/low/a.h"
make_tree
echo '#include "plugins/hybrid/linear/linear.h"' >>"$scratch/tree/plugins/hybrid/phase/phase.c"
finds plugin "finds a folder of hybrid that includes another" "accepted in hybrid/phase"

# ---- What objects show ---------------------------------------------------------------------------

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
tap_try "the guide's plugin has fewer than 250 lines, as docs/PLUGIN_GUIDE.md says" \
    test "$(wc -l <"$top/examples/plugin/example_rows.c")" -lt 250

# The bars of README's picture are figures of the page that says how they were measured.
sed -n 's/^[0-9]*k\t\([0-9.]*\)\t\([0-9.]*\)\t1$/\1 \2/p' "$top/docs/speed.dat" >"$scratch/bars"
tap_try "docs/speed.dat has bars" test "$(wc -l <"$scratch/bars")" -eq 3
tap_try "docs/speed.dat has the figures of docs/PERFORMANCE.md" awk '
    NR == FNR { bars[NR] = $1; others[NR] = $2; count = NR; next }
    /^\| causal, 2k \/ 8k \/ 16k / { row = $0 }
    END {
        split(row, cell, "|")
        for (i = 1; i <= count; i++)
            if (!index(cell[4], "(" bars[i] " x)") || !index(cell[6], "(" others[i] " x)"))
                exit 1
        exit row == ""
    }' "$scratch/bars" "$top/docs/PERFORMANCE.md"

# ---- Mutants that survive ------------------------------------------------------------------------

name="the mutants of tests/mutation/survivors.txt exist"
python=${PYTHON3:-python3}
if test "$python" = no || ! command -v "$python" >/dev/null; then
    tap_skip "$name" "python3 is not installed"
else
    export PYTHONDONTWRITEBYTECODE=1
    tap_try "$name" "$python" "$top/tests/mutation/run.py" --list
fi
tap_end
