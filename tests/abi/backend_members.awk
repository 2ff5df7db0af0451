# SPDX-License-Identifier: Apache-2.0
#
# attn_backend.h -> backend_members.inc: a macro call for each member of attn_backend_type and of
# attn_backend_ops. A slot is OPTIONAL where the comment before it says that it may be NULL.
/^typedef struct attn_backend_ops \{/ { macro = "OPS_MEMBER" }
/^struct attn_backend_type \{/ { macro = "TYPE_MEMBER" }
/^}/ { macro = "" }
macro == "" { next }
/^ *\/\*/ { comment = "" }
{ comment = comment " " $0 }
!in_call && /^    [a-z].*\(\*[a-z_]+\)\(/ {
    name = $0
    sub(/^[^(]*\(\*/, "", name)
    sub(/\).*/, "", name)
    optional = comment ~ /\(optional|may be NULL/ ? "OPTIONAL" : "NEEDED"
    print macro "(" name ", " optional ")"
    in_call = $0 !~ /;/
    next
}
in_call { in_call = $0 !~ /;/; next }
/^    [a-z].*;/ {
    name = $0
    sub(/;.*/, "", name)
    sub(/.*[ *]/, "", name)
    print macro "(" name ", DATA)"
}
