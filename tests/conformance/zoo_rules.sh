#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zoo_rules.sh: the zoo is whole: each MUST of docs/ABI.md that the suite enforces is broken by a
# fault of zoo.txt or a mutant of a plugin, no fault names a rule that is not there, and every fault of the fixtures is
# in zoo.txt.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

tap_folder folder

# Rules of the suite that no plugin can break, each with the reason.
unbreakable()
{
    cat <<'END'
COMP-05 children are resolved by the host, before a plugin is asked
END
}

zoo=$top/tests/conformance/zoo.txt
grep '^| [A-Z]*-[0-9]* |' "$top/docs/ABI.md" | awk -F ' *[|] *' '{ print $2, $3, $(NF - 1) }' \
    >"$folder/rules"
awk '$2 == "MUST" && / suite/ { print $1 }' "$folder/rules" | sort >"$folder/must"
cut -d ' ' -f 1 "$folder/rules" | sort >"$folder/all"
grep '^[a-z]' "$zoo" | awk -F ' *[|] *' '{ n = split($3, rules, " ")
    for (i = 1; i <= n; i++) if (rules[i] != "-") { sub(/=.*/, "", rules[i]); print rules[i] } }' |
    sort -u >"$folder/broken"
# What layers mean, and what composites do with their children, is got wrong by mutants of the plugins.
sed -n 's/^rule *\([^ ]*\).*/\1/p' "$top"/plugins/*/tests/mutants/*.txt | sort -u >"$folder/mutated"

unbreakable | cut -d ' ' -f 1 | sort >"$folder/unbreakable"

# none NAME FILE: an empty file is what is wanted.
none()
{
    if test -s "$2"; then
        tap_not_ok "$1" "$(cat "$2")"
    else
        tap_ok "$1"
    fi
}

tap_try "docs/ABI.md has rules for the suite" test "$(wc -l <"$folder/must")" -gt 60
sort -u "$folder/broken" "$folder/mutated" "$folder/unbreakable" >"$folder/covered"
comm -23 "$folder/must" "$folder/covered" >"$folder/missing"
none "each MUST of the suite is broken by a fault, or by a mutant" "$folder/missing"
comm -13 "$folder/all" "$folder/broken" >"$folder/unknown"
none "each rule that a fault breaks is in docs/ABI.md" "$folder/unknown"

comm -12 "$folder/broken" "$folder/unbreakable" >"$folder/odd"
comm -23 "$folder/unbreakable" "$folder/must" >>"$folder/odd"
none "what no plugin can break is not broken, and is a rule of the suite" "$folder/odd"

# The faults of the sources, by their lists of names.
cat "$top/tests/fixtures/zoo.h" "$top/tests/fixtures/zoo_cuda.h" |
    sed -n 's/^ *X([A-Z0-9_]*, \([a-z0-9_]*\)).*/\1/p' | sort >"$folder/made"
sed -n 's/^\([a-z0-9_]*\) | \(zoo\|wrap\|mla\|cuda\) |.*/\1/p' "$zoo" | sort >"$folder/used"
comm -3 "$folder/made" "$folder/used" >"$folder/odd"
none "zoo.txt has the faults of the sources and no others" "$folder/odd"
sed -n 's/^\([a-z0-9_]*\) |.*/\1/p' "$zoo" | sort | uniq -d >"$folder/twice"
none "each once" "$folder/twice"
tap_end
