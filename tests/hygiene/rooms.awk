# SPDX-License-Identifier: Apache-2.0
#
# rooms.awk: whether a tree keeps to what the fragments of its rooms say, from facts (facts.sh), a line
# each:
#
#   fragment ROOM          host/ROOM/Makefile.am.inc is there
#   may ROOM NAME...       its line "# May include:"; "nothing" = no room
#   listed PATH            a fragment has the file
#   source PATH            the file is there
#   include PATH TARGET    the file has #include "TARGET"
#   defines PATH SYMBOL    the object does
#   needs PATH SYMBOL      the object leaves it to others
#
# What an object is made of is a source of its folder; one whose source is gone is left over from
# an older build, and is not looked at.
#
# Prints what is wrong of one kind, `what`: include, circle, symbol, file or fragment; nothing if all
# is well. A path belongs to the room of its longest folder that has a fragment.

$1 == "fragment" { rooms[$2] = 1 }
$1 == "may" {
    said[$2] = 1
    for (i = 3; i <= NF; i++)
        if ($i != "nothing")
            may[$2, $i] = 1
    names[$2] = substr($0, length($1 $2) + 3)
}
$1 == "listed" { listed[$2] = 1 }
$1 == "source" { sources[$2] = 1 }
$1 == "include" { including[++num_includes] = $2; target[num_includes] = $3 }
$1 == "defines" && is_current($2) { definer[$3] = definer[$3] " " $2 }
$1 == "needs" && is_current($2) { needing[++num_needs] = $2; symbol[num_needs] = $3 }

# The program stands before these of the C library (host/cmd/exits.c).
BEGIN { split("exit _exit _Exit kill raise syscall dlsym pthread_cancel fclose munmap", own); for (i in own) c_library[own[i]] = 1 }

# host/ROOM/libattnhost_core_la-NAME.o is made of host/ROOM/NAME.c.
function is_current(path)
{
    sub(/(libattnhost_[a-z]*_la|attnhost)-/, "", path)
    sub(/\.o$/, "", path)
    return (path ".c") in sources || (path ".cu") in sources
}

function room_of(path, folder)
{
    folder = path
    sub(/^host\//, "", folder)
    while (sub(/\/[^\/]*$/, "", folder))
        if (folder in rooms)
            return folder
    return ""
}

function allowed(from, to)
{
    return from == to || (from, to) in may
}

function judge_includes(i, from, to)
{
    for (i = 1; i <= num_includes; i++) {
        if (target[i] ~ /\.\.\//)
            print including[i] " includes " target[i] ": accepted: paths from the top"
        if (target[i] !~ /^host\//)
            continue
        from = room_of(including[i])
        to = room_of(target[i])
        if (!allowed(from, to))
            print including[i] " includes " target[i] ": " from " may include " names[from]
    }
}

# Rooms are taken away that include none of those left; what then is left goes in circles.
function judge_circles(room, other, left, taken, waits)
{
    for (room in rooms)
        left[room] = 1
    do {
        taken = 0
        for (room in rooms) {
            waits = 0
            for (other in left)
                waits += other != room && (room, other) in may
            if (room in left && !waits) {
                delete left[room]
                taken++
            }
        }
    } while (taken)
    for (room in left)
        for (other in left)
            if (other != room && (room, other) in may)
                print room " may include " other ", from which a way leads back"
}

# What no room defines is the system's.
function judge_symbols(i, n, paths, p, from, good, seen)
{
    for (i = 1; i <= num_needs; i++) {
        if (symbol[i] in c_library || !(symbol[i] in definer))
            continue
        from = room_of(needing[i])
        good = 0
        n = split(definer[symbol[i]], paths, " ")
        for (p = 1; p <= n; p++)
            good = good || allowed(from, room_of(paths[p]))
        if (!good && !((from, symbol[i]) in seen))
            print needing[i] " needs " symbol[i] " of " paths[1] ": " from " may include " names[from]
        seen[from, symbol[i]] = 1
    }
}

function judge_files(path)
{
    for (path in sources)
        if (!(path in listed))
            print path " is in no fragment"
}

# A folder with C files is a room; a vendor's under vendor/ is a part of the room around it.
function judge_fragments(path, folder, room, reported)
{
    for (path in sources) {
        folder = path
        sub(/^host\//, "", folder)
        if (!sub(/\/[^\/]*$/, "", folder))
            folder = "."
        if (path ~ /\.c$/ && path !~ /\/vendor\// && !(folder in rooms) && !(folder in reported)) {
            reported[folder] = 1
            print "host/" folder " has C files and no Makefile.am.inc"
        }
    }
    for (room in rooms)
        if (!(room in said))
            print "host/" room "/Makefile.am.inc has no line \"# May include:\""
    for (path in may) {
        split(path, pair, SUBSEP)
        if (!(pair[2] in rooms))
            print "host/" pair[1] "/Makefile.am.inc: " pair[2] " is no room"
    }
}

END {
    if (what == "include")
        judge_includes()
    else if (what == "circle")
        judge_circles()
    else if (what == "symbol")
        judge_symbols()
    else if (what == "file")
        judge_files()
    else
        judge_fragments()
}
