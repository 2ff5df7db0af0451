# SPDX-License-Identifier: Apache-2.0
# layout.golden -> anchor.c: a shared object with one function for each struct of the ABI. Tables
# cross the ABI as pointers that no exported function names, so abidiff would never see them; through
# these functions it follows every member and every function pointer.
BEGIN {
    print "/* made by anchor.awk */"
    print "#include \"attn_plugin.h\""
    print "attn_plugin_entry_fn anchor_entry(attn_plugin_entry_fn p);"
    print "attn_plugin_entry_fn anchor_entry(attn_plugin_entry_fn p) { return p; }"
}
$1 == "struct" || $1 == "value" {
    printf "%s *anchor_%s(%s *p);\n", $2, $2, $2
    printf "%s *anchor_%s(%s *p) { return p; }\n", $2, $2, $2
}
