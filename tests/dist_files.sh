#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dist_files.sh: `make dist` packs every file of the repository. A fragment that forgets one builds here,
# and nowhere else. And what `make install` says to a folder with spaces.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this

said=$(make -C "$build" -n --no-print-directory install-libLTLIBRARIES DESTDIR='/a folder' 2>&1 >/dev/null)
case $said in
*"'/a folder"*"has a space: accepted"*) tap_ok "a DESTDIR with a space is refused" ;;
*) tap_not_ok "a DESTDIR with a space is refused" "$said" ;;
esac

if ! tracked=$(git -C "$top" ls-files 2>/dev/null) || test ! -e "$top/.git"; then
    tap_skip "make dist packs every file" "no git repository, or no git"
    tap_end
fi

tap_folder scratch
make -C "$build" -s --no-print-directory print-distfiles >"$scratch/packed" 2>/dev/null

# forgotten TRACKED: files that are neither packed nor in a folder that is.
forgotten()
{
    printf '%s\n' "$1" | awk '
        NR == FNR { sub(/^(.*\.)?\.\//, ""); packed[$0] = 1; next }
        {
            path = $0
            do {
                if (path in packed)
                    next
            } while (sub(/\/[^\/]*$/, "", path))
            print
        }' "$scratch/packed" -
}

tap_try "there is something to look at" grep -q 'host/base/error.h$' "$scratch/packed"
none=$(forgotten "$(printf '%s\n' "$tracked" | grep -v '^\.gitignore$')")
if test -z "$none"; then
    tap_ok "make dist packs every file"
else
    tap_not_ok "make dist packs every file" "$none"
fi
tap_try "finds a file that is not" test "$(forgotten host/base/nowhere.h)" = host/base/nowhere.h
tap_end
