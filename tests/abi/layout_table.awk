# SPDX-License-Identifier: Apache-2.0
# layout.golden -> layout_table.inc: one line of macro calls for each line of the stored layout.
$1 == "const" { printf "LAYOUT_CONST(%s, %s)\n", $2, $3 }
$1 == "macro" && $3 ~ /^[0-9]+$/ { printf "LAYOUT_CONST(%s, %s)\n", $2, $3 }
$1 == "struct" || $1 == "value" {
    end_of_struct()
    name = $2
    printf "LAYOUT_SIZE(%s, %s)\n", name, $3
}
$1 == "struct" { printf "LAYOUT_FIRST(%s)\n", name }
$1 == "member" {
    printf "LAYOUT_MEMBER(%s, %s, %s, %s)\n", $2, $3, $4, $5
    sum = sum "\n    LAYOUT_ADD(" $2 ", " $3 ")"
}
END { end_of_struct() }

function end_of_struct()
{
    if (name != "")
        printf "LAYOUT_NO_PADDING(%s,%s)\n", name, sum
    sum = ""
}
