/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_plugin_util.h by itself: what plugins show only now and then. Texts that are cut, structs of
 * other sizes, reasons beyond the room for them, memory that is one byte short.
 */
#include "attn_plugin_util.h"
#include "tests/tools/test_main.h"

#include <check.h>
#include <stdlib.h>

static char text[64];
static attn_error error;

static void setup(void)
{
    ATTN_UTIL_INIT(&error);
    memset(text, '#', sizeof text);
    error.message = text;
    error.capacity = sizeof text;
}

/* ---- Errors ---------------------------------------------------------------------------------- */

TEST_OF(plugin_util, errors_are_cut_between_characters)
{
    static const char *const whole =
        "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"; /* 1 + 2 + 3 + 4 + 1 */
    static const size_t kept[12] = {0, 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (uint32_t capacity = 1; capacity < 12; capacity++) {
        memset(text, '#', sizeof text);
        error.capacity = capacity;
        ck_assert_int_eq(attn_util_fail(&error, ATTN_INTERNAL, "%s", whole), ATTN_INTERNAL);
        ck_assert_uint_eq(strlen(text), kept[capacity]);
        ck_assert(memcmp(text, whole, kept[capacity]) == 0);
        ck_assert_int_eq(text[capacity], '#');
    }
    error.capacity = 12;
    attn_util_fail(&error, ATTN_INTERNAL, "%s", whole);
    ck_assert_str_eq(text, whole);
}

TEST_OF(plugin_util, errors_name_fields)
{
    ck_assert_int_eq(
        attn_util_fail_field(&error, ATTN_UNSUPPORTED, ATTN_FIELD_HEAD_DIM, "head_dim %d", 3),
        ATTN_UNSUPPORTED);
    ck_assert_int_eq(error.code, ATTN_UNSUPPORTED);
    ck_assert_uint_eq(error.field, ATTN_FIELD_HEAD_DIM);
    ck_assert_int_eq(attn_util_fail_prefix(&error, ATTN_CHILD_FAILED, "child %s", "x"),
                     ATTN_CHILD_FAILED);
    ck_assert_str_eq(text, "child x: head_dim 3");
    ck_assert_uint_eq(error.field, ATTN_FIELD_HEAD_DIM);
    attn_util_fail(&error, ATTN_INTERNAL, "else");
    ck_assert_uint_eq(error.field, ATTN_FIELD_NONE);
    ck_assert_int_eq(attn_util_fail(NULL, ATTN_TIMEOUT, "no reader"), ATTN_TIMEOUT);
    error.message = NULL;
    ck_assert_int_eq(attn_util_fail(&error, ATTN_TIMEOUT, "no reader"), ATTN_TIMEOUT);
    error.message = text;
    error.capacity = 0;
    memset(text, '#', sizeof text);
    attn_util_fail(&error, ATTN_TIMEOUT, "no reader");
    ck_assert_int_eq(text[0], '#');
}

/* ---- Sized structs --------------------------------------------------------------------------- */

/* One struct that has grown, and what older headers knew of it. */
struct grown {
    uint32_t struct_size, a, b, c;
};

TEST_OF(plugin_util, structs_are_read_as_far_as_they_go)
{
    struct grown theirs = {8, 1, 2, 3}, ours = {99, 99, 99, 99};
    ATTN_UTIL_READ(&ours, &theirs);
    ck_assert(ours.struct_size == sizeof ours && ours.a == 1 && ours.b == 0 && ours.c == 0);
    theirs.struct_size = 64; /* newer than ours: what we know is read */
    ATTN_UTIL_READ(&ours, &theirs);
    ck_assert(ours.struct_size == sizeof ours && ours.a == 1 && ours.b == 2 && ours.c == 3);
}

TEST_OF(plugin_util, structs_are_written_as_far_as_they_go)
{
    struct grown ours = {sizeof ours, 1, 2, 3}, theirs = {12, 99, 99, 99};
    ATTN_UTIL_WRITE(&theirs, &ours);
    ck_assert(theirs.struct_size == 12 && theirs.a == 1 && theirs.b == 2 && theirs.c == 99);
    struct grown larger[2] = {{sizeof larger, 99, 99, 99}, {99, 99, 99, 99}};
    ATTN_UTIL_WRITE(&larger[0], &ours);
    ck_assert(larger[0].struct_size == sizeof larger && larger[0].c == 3 && larger[1].a == 99);
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

/* An element of the caller's array may be larger or smaller than ours. */
static void refuse_into(size_t element)
{
    _Alignas(8) unsigned char bytes[2 * (sizeof(attn_reason) + 32) + 1];
    const uint32_t size = (uint32_t)element;
    memset(bytes, '#', sizeof bytes);
    for (uint32_t r = 0; r < 2; r++)
        memcpy(bytes + r * size, &size, sizeof size);
    attn_verdict given, verdict;
    ATTN_UTIL_INIT(&given);
    given.reasons_capacity = 2;
    given.reasons = (attn_reason *)(void *)bytes;
    attn_util_verdict_begin(&given, &verdict);
    ck_assert_uint_eq(verdict.supported, 1);
    attn_util_refuse(&verdict, ATTN_REASON_USES, ATTN_FIELD_USES, "0", "%u", 7u);
    attn_util_refuse_with(&verdict, ATTN_FIELD_PAGE_SIZE, ATTN_FIELD_KV_DTYPE, "16", "%d", 8);
    attn_util_refuse(&verdict, ATTN_REASON_OTHER, ATTN_FIELD_LAYERS, "0", "no room");
    attn_util_verdict_end(&verdict, &given);
    ck_assert(given.supported == 0 && given.num_reasons == 3);
    const attn_reason *second = (const attn_reason *)attn_at(given.reasons, 1);
    ck_assert(second->struct_size == size && second->code == ATTN_REASON_COMBINATION);
    ck_assert(second->field == ATTN_FIELD_PAGE_SIZE && second->with_field == ATTN_FIELD_KV_DTYPE);
    ck_assert_str_eq(second->got, "8");
    ck_assert_int_eq(bytes[2 * size], '#');
}

TEST_OF(plugin_util, reasons_go_into_elements_of_any_size)
{
    refuse_into(sizeof(attn_reason));
    refuse_into(sizeof(attn_reason) + 32);
    refuse_into(offsetof(attn_reason, accepted));
}

TEST_OF(plugin_util, what_was_got_is_cut_between_characters)
{
    attn_reason reason;
    attn_verdict given, verdict;
    ATTN_UTIL_INIT(&reason);
    ATTN_UTIL_INIT(&given);
    given.reasons_capacity = 1;
    given.reasons = &reason;
    attn_util_verdict_begin(&given, &verdict);
    attn_util_refuse(&verdict, ATTN_REASON_OTHER, ATTN_FIELD_FEATURE, "absent", "%62s\xc3\xa9",
                     "x");
    ck_assert_uint_eq(strlen(reason.got), 62);
}

/* ---- Layers and memory ----------------------------------------------------------------------- */

TEST_OF(plugin_util, layers_are_listed_once)
{
    attn_layer layers[2] = {{sizeof layers[0], ATTN_LAYER_KV_READ_ONLY, 4, 0},
                            {sizeof layers[0], 0, 7, 0}};
    attn_layer_group group;
    ATTN_UTIL_INIT(&group);
    group.num_layers = 2;
    group.layers = layers;
    attn_util_layer listed[4] = {{0}}, *next = listed;
    ck_assert_int_eq(attn_util_list_layers(&group, listed, &next, &error), ATTN_OK);
    ck_assert(next == listed + 2 && listed[0].layer_id == 4 && listed[0].kv_read_only == 1);
    ck_assert(listed[1].layer_id == 7 && listed[1].kv_read_only == 0);
    ck_assert_int_eq(attn_util_list_layers(&group, listed, &next, &error), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(error.field, ATTN_FIELD_LAYER_ID);
    ck_assert_str_eq(text, "layer_id 4 twice, or below 0");
    layers[0].layer_id = -1;
    next = listed;
    ck_assert_int_eq(attn_util_list_layers(&group, listed, &next, &error), ATTN_INVALID_ARGUMENT);
}

TEST_OF(plugin_util, memory_is_checked_to_the_byte)
{
    static _Alignas(64) char block[256];
    attn_memory memory;
    ATTN_UTIL_INIT(&memory);
    memory.base[5] = block;
    memory.size[5] = 99;
    ck_assert_int_eq(attn_util_check_region(&memory, 5, "it", 99, 64, &error), ATTN_OK);
    ck_assert_int_eq(attn_util_check_region(&memory, 5, "it", 100, 64, &error),
                     ATTN_BUFFER_TOO_SMALL);
    ck_assert_uint_eq(error.needed, 100);
    ck_assert_str_eq(text, "it is 99 bytes: accepted 100 and more");
    memory.base[5] = block + 32;
    ck_assert_int_eq(attn_util_check_region(&memory, 5, "it", 9, 64, &error),
                     ATTN_INVALID_ARGUMENT);
    error.struct_size = offsetof(attn_error, needed); /* older headers have no such member */
    error.needed = 1;
    attn_util_check_region(&memory, 5, "it", 100, 64, &error);
    ck_assert_uint_eq(error.needed, 1);
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* Rows 3 to 8 of the operands: two sequences of 2 and 3 queries, one row of padding. */
TEST_OF(plugin_util, rows_and_keys_are_found)
{
    static const int32_t indptr[3] = {3, 5, 8}, prefixes[2] = {10, 0}, lens[2] = {12, 3};
    static const int32_t table[6] = {1, 2, 3, 4, 5, 6};
    attn_batch batch;
    attn_kv_batch kv;
    attn_util_row rows[6];
    ATTN_UTIL_INIT(&batch);
    ATTN_UTIL_INIT(&kv);
    batch.num_seqs = 2;
    batch.num_tokens = 6;
    batch.seq_lens.device = lens;
    batch.prefix_lens.device = prefixes;
    batch.q_indptr.device = indptr;
    kv.page_size = 4;
    kv.block_table_stride = 3;
    kv.block_table.device = table;
    attn_util_list_rows(&batch, rows);
    ck_assert(rows[0].seq == 0 && rows[0].position == 10 && rows[1].position == 11);
    ck_assert(rows[2].seq == 1 && rows[4].position == 2 && rows[5].seq == -1);
    ck_assert_int_eq(attn_util_first_row(&batch), 3);
    attn_util_keys keys = attn_util_find_keys(&batch, &kv, 0);
    ck_assert(keys.count == 12 && keys.first_new == 10 && keys.new_row == 3);
    ck_assert_int_eq(attn_util_find_page(&kv, 1, 4), 5);
    batch.mode = ATTN_MODE_DECODE; /* q_indptr is not read */
    batch.q_indptr.device = NULL;
    batch.num_tokens = 2;
    attn_util_list_rows(&batch, rows);
    ck_assert(rows[1].seq == 1 && rows[1].position == 2);
    keys = attn_util_find_keys(&batch, &kv, 1);
    ck_assert(keys.count == 3 && keys.first_new == 2 && keys.new_row == 1);
    ck_assert_int_eq(attn_util_first_row(&batch), 0);
}

/* ---- The entry ------------------------------------------------------------------------------- */

TEST_OF(plugin_util, entry_agrees_on_a_version)
{
    attn_host_info host;
    attn_plugin mine, plugin;
    ATTN_UTIL_INIT(&host);
    ATTN_UTIL_INIT(&mine);
    ATTN_UTIL_INIT(&plugin);
    mine.name = "mine";
    host.abi_major_min = host.abi_major_max = ATTN_ABI_MAJOR;
    ck_assert_int_eq(attn_util_entry(&host, &mine, &plugin, &error), ATTN_OK);
    ck_assert(plugin.abi_major == ATTN_ABI_MAJOR && plugin.abi_minor == ATTN_ABI_MINOR);
    ck_assert_str_eq(plugin.name, "mine");
    host.abi_major_min = host.abi_major_max = ATTN_ABI_MAJOR + 1;
    ck_assert_int_eq(attn_util_entry(&host, &mine, &plugin, &error), ATTN_INCOMPATIBLE_VERSION);
    plugin.name = NULL;
    plugin.struct_size = offsetof(attn_plugin, name); /* a host that knows no more */
    host.abi_major_min = ATTN_ABI_MAJOR;
    ck_assert_int_eq(attn_util_entry(&host, &mine, &plugin, &error), ATTN_OK);
    ck_assert_ptr_null(plugin.name);
}

GROUP(plugin_util, .set_up = setup);
TESTS("plugin_util");
