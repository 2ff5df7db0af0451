#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# commit.sh SRCDIR: the commit of a source tree, with "-dirty" if files have been changed since; of an unpacked
# tarball the one it was made from; "unknown" else. A repository around the tree is not its own.
if test -e "$1/.git" && commit=$(git -C "$1" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null); then
    echo "$commit"
elif test -f "$1/.commit"; then
    cat "$1/.commit"
else
    echo unknown
fi
