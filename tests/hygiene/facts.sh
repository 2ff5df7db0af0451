# SPDX-License-Identifier: Apache-2.0
# facts.sh: what rooms.awk and plugins.awk judge. To be sourced.

# sources_of TREE FOLDER: files that are compiled or included, from the tree's top; none that a build
# in the tree has made.
sources_of()
{
    (cd "$1" && find "$2" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) \
        ! -name 'Makefile.am.inc' ! -name '*.fatbin.c' -print)
}

# includes_of TREE FOLDER: "include PATH TARGET" for each #include, with quotes or brackets, of what is
# not the system's.
includes_of()
{
    (cd "$1" && find "$2" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) \
        -exec grep -E '^[ 	]*#[ 	]*include[ 	]*("|<(\.\./|host/|plugins/|tests/))' /dev/null {} +) |
        sed -e 's/[ 	]*#[ 	]*include[ 	]*["<]/ /' -e 's/[">].*//' -e 's/:[0-9]*: / /' -e 's/: / /' \
            -e 's/^/include /'
}

# room_facts TREE BUILD: of host/.
room_facts()
{
    (cd "$1" && find host -mindepth 2 -name Makefile.am.inc -print) | while read -r fragment; do
        room=${fragment#host/}
        room=${room%/Makefile.am.inc}
        echo "fragment $room"
        sed -n "s,^# May include:,may $room,p" "$1/$fragment"
    done
    (cd "$1" && find host -name Makefile.am.inc -exec cat {} +) |
        awk '!/^#/ { while (match($0, /host\/[A-Za-z0-9_\/.-]+/)) {
            print "listed " substr($0, RSTART, RLENGTH); $0 = substr($0, RSTART + RLENGTH) } }'
    sources_of "$1" host | sed 's/^/source /'
    includes_of "$1" host
    (cd "$2" && find host \( -name 'libattnhost_*.o' -o -name 'attnhost-*.o' \) \
        -exec nm -A -P -g {} +) |
        awk '{ path = $1; sub(/:$/, "", path); sub(/\/\.libs\//, "/", path)
            print ($3 == "U" || $3 == "w" ? "needs " : "defines ") path " " $2 }'
}

# plugin_facts TREE: also "links ONE OTHER" where ONE's fragment says so.
plugin_facts()
{
    (cd "$1" && for fragment in plugins/*/Makefile.am.inc; do
        plugin=${fragment#plugins/}
        test ! -f "$fragment" || sed -n "s,^# Links the library of:,links ${plugin%/*},p" "$fragment"
    done)
    for under in plugins include; do
        sources_of "$1" "$under" | sed 's/^/source /'
    done
    includes_of "$1" plugins
}
