# SPDX-License-Identifier: Apache-2.0
# commit.sh: what the commit at hand decides of the tests. To be sourced by a script of this folder.

repository()
{
    git -c safe.directory='*' -C "$(dirname "$0")/../.." "$@" 2>/dev/null # also where another user made the clone
}

# commit_changes FOLDER...: does it, or the working tree, change a file of these? Where none came before, no.
commit_changes()
{
    commit_changed=$(repository diff --name-only HEAD~1 -- "$@") && test -n "$commit_changed"
}

# A number of 28 bits that is the same wherever it is checked out; 0 where there is none, in a released archive.
commit_number()
{
    commit_hash=$(repository rev-parse HEAD) || commit_hash=0
    printf '%d' "0x$(printf '%.7s' "$commit_hash")"
}
