# SPDX-License-Identifier: Apache-2.0
#
# pairs.awk: from lines of AXIS=VALUE, with tabs between, the pairs of values that no line has, as a Markdown table.
# Not counted: pairs of axes of which one says what the other may be.

BEGIN {
    FS = "\t"
    decided = "layer:KV heads,layer:dimension,layer:q,layer:output,layer:input scales,layer:new k and v,layer:cache," \
              "layer:cache scales,layer:scales,layer:positions,layer:mask,layer:window,layer:chunk,layer:keys," \
              "layer:queries of a head,layer:prefix,KV heads:queries of a head,cache:cache scales,cache:new k and v," \
              "q:new k and v,q:input scales,input scales:new k and v,output:new k and v,scales:cache," \
              "mode:new tokens,sequences:prefix,new tokens:tokens,mask:window,mask:chunk,q:cache," \
              "cache scales:prefix,cache scales:hint,"
}

{
    for (i = 1; i <= NF; i++) {
        seen[$i]
        for (j = 1; j < i; j++)
            together[$j, $i] = together[$i, $j] = 1
    }
    lines[$0]
}

function axis_of(token)
{
    return substr(token, 1, index(token, "=") - 1)
}

function words_of(token)
{
    sub(/=/, " ", token)
    return token
}

function are_decided(a, b)
{
    return index(decided, a ":" b ",") || index(decided, b ":" a ",")
}

function sort_tokens(tokens, count, i, j, token)
{
    for (i = 2; i <= count; i++)
        for (j = i; j > 1 && tokens[j] < tokens[j - 1]; j--) {
            token = tokens[j]
            tokens[j] = tokens[j - 1]
            tokens[j - 1] = token
        }
}

function count_pairs(i, j, a, b)
{
    for (i = 2; i <= num_tokens; i++)
        for (j = 1; j < i; j++) {
            a = tokens[i]
            b = tokens[j]
            if (axis_of(a) == axis_of(b) || are_decided(axis_of(a), axis_of(b)))
                continue
            num_pairs++
            if ((a, b) in together)
                continue
            num_missing++
            missing[a, b] = missing[b, a] = 1
            left[a]++
            left[b]++
        }
}

# The value that most others are missing of; the first of several.
function worst(i, found)
{
    for (i = 1; i <= num_tokens; i++)
        if (left[tokens[i]] > left[found])
            found = tokens[i]
    return found
}

# The values that `token` is never together with, which are done then.
function take_missing(token, i, axis, before, text)
{
    for (i = 1; i <= num_tokens; i++) {
        if (!missing[token, tokens[i]])
            continue
        axis = axis_of(tokens[i])
        text = text (text == "" ? "" : axis == before ? ", " : "; ")
        text = text (axis == before ? substr(tokens[i], length(axis) + 2) : words_of(tokens[i]))
        before = axis
        missing[token, tokens[i]] = missing[tokens[i], token] = 0
        left[tokens[i]]--
    }
    left[token] = 0
    return text
}

END {
    for (token in seen)
        tokens[++num_tokens] = token
    sort_tokens(tokens, num_tokens)
    for (line in lines)
        num_lines++
    count_pairs()
    printf "%d specs have %d values. Of %d pairs %d never occur:\n", num_lines, num_tokens, num_pairs, num_missing
    print "| value | never together with |\n|---|---|"
    for (token = worst(); left[token] > 3; token = worst())
        printf "| %s | %s |\n", words_of(token), take_missing(token)
    for (; left[token] > 0; token = worst())
        others = others (others == "" ? "" : "; ") words_of(token) " with " take_missing(token)
    if (others != "")
        printf "| others | %s |\n", others
}
