# SPDX-License-Identifier: Apache-2.0
#
# plugins.awk: whether plugins keep apart, from facts (facts.sh): a plugin includes include/,
# plugins/common, itself, and another whose library its fragment says that it links; a folder of
# plugins/hybrid includes core and itself. Files in the folder of a plugin, in none of hybrid's, are
# what joins them. Tests may include anything. Prints what is wrong.

$1 == "source" { sources[$2] = 1 }
$1 == "links" { links[$2, $3] = 1 }
$1 == "include" { including[++count] = $2; target[count] = $3 }

function folder_of(path)
{
    sub(/\/[^\/]*$/, "", path)
    return path
}

# Why `path` may not include `name`; "" = it may.
function why_not(path, name, own, of, n, m)
{
    if (name !~ /\//)
        return (folder_of(path) "/" name) in sources || ("include/" name) in sources ? "" : "is in no folder that it sees"
    n = split(path, own, "/")
    m = split(name, of, "/")
    if (name ~ /\.\.\// || of[1] != "plugins")
        return "accepted: include/, plugins/common, its own files"
    if (of[2] != "common" && of[2] != own[2] && !((own[2], of[2]) in links))
        return "is another plugin's"
    if (own[2] == "hybrid" && of[2] == "hybrid" && n > 3 && m > 3 && of[3] != own[3] && of[3] != "core")
        return "accepted in hybrid/" own[3] ": hybrid/core, its own files"
    return ""
}

END {
    for (i = 1; i <= count; i++) {
        if (including[i] !~ /^plugins\// || including[i] ~ /\/tests\//)
            continue
        why = why_not(including[i], target[i])
        if (why != "")
            print including[i] " includes " target[i] ": " why
    }
}
