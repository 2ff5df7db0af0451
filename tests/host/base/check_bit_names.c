/* SPDX-License-Identifier: Apache-2.0
 *
 * check_bit_names.c: sets in words; a host and a plugin, which share no code, write the same ones.
 */
#include "host/base/bit_names.h"

#include "attn_plugin_util.h"

#include "tests/tools/test_main.h"

static void assert_text(uint32_t field, uint32_t set, const char *expected)
{
    char ours[96], theirs[96];
    bit_names_text(field, set, ours, sizeof ours);
    attn_util_set_text(field, set, theirs, sizeof theirs);
    ck_assert_str_eq(ours, expected);
    ck_assert_str_eq(theirs, expected);
}

TEST_OF(texts, words)
{
    assert_text(ATTN_FIELD_MODES, ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_MIXED),
                "extend, mixed");
    assert_text(ATTN_FIELD_INDEX_FORMS, ATTN_INDEX_ALL, "req_to_token, block_table, csr");
    assert_text(ATTN_FIELD_INDEX_FORMS, ATTN_INDEX_CSR | 1u << 9, "csr, 0x200");
    assert_text(ATTN_FIELD_USES, 0, "empty");
    assert_text(ATTN_FIELD_HEAD_DIM, 6, "0x6"); /* no set */
}

TEST_OF(texts, same_names)
{
    uint32_t sets = 0;
    for (uint32_t field = 0; field < ATTN_FIELD_COUNT; field++) {
        sets += bit_names_is_field(field);
        for (uint32_t bit = 0; bit < 32; bit++) {
            const char *ours = bit_names_member(field, bit);
            const char *theirs = attn_util_member_name(field, bit);
            uint32_t set = 0;
            ck_assert_int_eq(!ours, !theirs);
            if (!ours)
                continue;
            ck_assert_str_eq(ours, theirs);
            ck_assert(bit_names_add(field, ours, &set));
            ck_assert_uint_eq(set, 1u << bit);
        }
    }
    ck_assert_uint_ge(sets, 8);
}

TEST_OF(texts, cut)
{
    char text[8];
    bit_names_text(ATTN_FIELD_INDEX_FORMS, ATTN_INDEX_ALL, text, sizeof text);
    ck_assert_str_eq(text, "req_to_");
}

TESTS("set");
