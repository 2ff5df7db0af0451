/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cpu_native.c: what the plugin's .so refuses beyond the rules. Its results, and what any backend
 * refuses, are judged by `attnhost check` (tests/conformance/cpu_native.sh).
 *
 * The .so is $ATTNHOST_CPU_NATIVE, else cpu_native.so in $ATTNHOST_TEST_PLUGIN_DIR.
 */
#include "tests/tools/test_main.h"
#include "tests/tools/cpu_native_case.h"
#include "tests/tools/plugin_test.h"

#include <string.h>

static const attn_backend_type *type;
static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

static attn_status test_parallel_for(void *ctx, int64_t count, attn_task task, void *arg)
{
    (void)ctx;
    attn_status status = ATTN_OK;
    for (int64_t i = 0; i < count && status == ATTN_OK; i++)
        status = task(arg, i, 0);
    return status;
}

static const attn_services services = {.struct_size = sizeof services,
                                       .num_workers = 2,
                                       .allocate = test_allocate,
                                       .release = test_release,
                                       .parallel_for = test_parallel_for};

/* ---- A plugin at work ------------------------------------------------------------------------ */

static void open_plugin(void)
{
    attn_plugin plugin;
    open_plugin_file("ATTNHOST_CPU_NATIVE", "cpu_native.so", &plugin, &error);
    ck_assert_int_eq(plugin.describe(0, &type, &error), ATTN_OK);
    ck_assert_int_eq(plugin.describe(1, &type, &error), ATTN_INVALID_ARGUMENT);
}

/* An instance and metadata for a case. */
typedef struct setup {
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory memory;
} setup;

static setup setup_create(const attn_case *c)
{
    setup u = {.memory = {.struct_size = sizeof u.memory}};
    attn_memory_size size = {.struct_size = sizeof size};
    /* Of which forms of indices the case has one: all. */
    const attn_option_value value = {.struct_size = sizeof value, .key = "kv_index", .integer = 3};
    const attn_options options = {.struct_size = sizeof options, .num_values = 1, .values = &value};
    ck_assert_msg(type->create(type, &c->problem, 1, &options, &services, &u.instance, &error) ==
                      ATTN_OK,
                  "%s", message);
    ck_assert_uint_eq(type->ops->index_forms(u.instance), 7);
    ck_assert_int_eq(
        type->ops->metadata_size(u.instance, ATTN_METADATA_EAGER, &c->bounds, &size, &error),
        ATTN_OK);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        u.memory.size[region] = size.size[region];
        u.memory.base[region] = test_allocate(NULL, 0, size.size[region] + 64, 64);
    }
    ck_assert_int_eq(type->ops->metadata_create(u.instance, ATTN_METADATA_EAGER, &c->bounds,
                                                &u.memory, &u.metadata, &error),
                     ATTN_OK);
    return u;
}

static void setup_destroy(setup *u)
{
    type->ops->metadata_destroy(u->metadata);
    type->ops->destroy(u->instance);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(u->memory.base[region]);
}

static attn_status forward(setup *u, const attn_case *c)
{
    return type->ops->forward_extend(u->metadata, c->layer.layer_id, &c->args, NULL, &error);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static attn_case *plain_case(void)
{
    case_wishes wishes = {
        ATTN_TYPE_DECODER, ATTN_MODE_EXTEND, ATTN_MASK_LAYER, ATTN_INDEX_REQ_TO_TOKEN, 0, 100};
    for (uint64_t seed = 900000;; seed++) {
        attn_case *c = case_create(seed, &wishes);
        if (c->problem.kv_dtype == ATTN_FP8_E4M3 && !c->from_cache && c->q_len[0] > 1 &&
            c->prefix[0] > 1 && c->group.flags == 3 && !c->batch.multi_item &&
            c->args.flags == ATTN_FORWARD_SAVE_KV)
            return c;
        case_destroy(c);
    }
}

static void expect_refused(setup *u, attn_case *c, const char *word)
{
    ck_assert_int_eq(type->ops->init_forward_metadata(u->metadata, &c->batch, NULL, &error),
                     ATTN_OK);
    ck_assert_msg(forward(u, c) == ATTN_INVALID_ARGUMENT, "accepted in spite of %s", word);
    ck_assert_msg(strstr(message, word), "\"%s\" does not name %s", message, word);
}

TEST_OF(refused, operands_that_are_wrong)
{
    attn_case *c = plain_case();
    setup u = setup_create(c);
    static const uint32_t needed[] = {ATTN_ROLE_Q,     ATTN_ROLE_K,           ATTN_ROLE_V,
                                      ATTN_ROLE_OUT,   ATTN_ROLE_K_CACHE,     ATTN_ROLE_V_CACHE,
                                      ATTN_ROLE_SINKS, ATTN_ROLE_ALIBI_SLOPES};
    static const char *const names[] = {"operand q",     "operand k",           "operand v",
                                        "operand out",   "operand k_cache",     "operand v_cache",
                                        "operand sinks", "operand alibi_slopes"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const attn_tensor *good = c->operands[needed[i]];
        attn_tensor bad = *good;
        c->operands[needed[i]] = NULL;
        expect_refused(&u, c, names[i]);
        c->operands[needed[i]] = &bad;
        bad.dtype = ATTN_I32;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.shape[bad.ndim - 1]++;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.strides[bad.ndim - 1] = 2;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.ndim--;
        expect_refused(&u, c, names[i]);
        bad = *good;
        bad.device_type = ATTN_DEVICE_CUDA;
        expect_refused(&u, c, names[i]);
        c->operands[needed[i]] = good;
    }
    for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++) {
        const attn_scale *good = c->scales[role];
        attn_scale bad = *good;
        c->scales[role] = NULL;
        expect_refused(&u, c, "scale of");
        c->scales[role] = &bad;
        bad.granularity = 3 - bad.granularity;
        expect_refused(&u, c, "scale of");
        bad = *good;
        bad.count++;
        expect_refused(&u, c, "scale of");
        c->scales[role] = good;
    }
    int64_t slot = c->out_cache_loc[c->q_indptr[0]];
    c->out_cache_loc[c->q_indptr[0]] = (int64_t)c->num_pages * c->problem.page_size;
    expect_refused(&u, c, "out_cache_loc");
    c->out_cache_loc[c->q_indptr[0]] = slot;
    int32_t *index =
        &c->req_to_token[c->requests[0] * c->kv.req_to_token_stride + c->prefix[0] - 1];
    *index = 0x7ffffff0;
    expect_refused(&u, c, "slot 2147483632");
    ck_assert_int_eq(
        type->ops->forward_decode(u.metadata, c->layer.layer_id, &c->args, NULL, &error),
        ATTN_BAD_STATE);
    c->layer.layer_id++;
    expect_refused(&u, c, "layer_id");
    setup_destroy(&u);
    case_destroy(c);
}

static void expect_unplanned(setup *u, attn_case *c, const char *word)
{
    ck_assert_msg(type->ops->init_forward_metadata(u->metadata, &c->batch, NULL, &error) ==
                      ATTN_INVALID_ARGUMENT,
                  "planned in spite of %s", word);
    ck_assert_msg(strstr(message, word), "\"%s\" does not name %s", message, word);
    ck_assert_int_eq(forward(u, c), ATTN_BAD_STATE);
}

/* Rows of a table that are one entry too short for the longest sequence, then just long enough. */
TEST_OF(refused, tables_with_short_rows)
{
    attn_case *c = plain_case();
    setup u = setup_create(c);
    int32_t longest = 0, page = c->problem.page_size;
    for (int32_t s = 0; s < c->batch.num_seqs; s++)
        longest = c->kv_lens[s] > longest ? c->kv_lens[s] : longest;
    c->kv.req_to_token_stride = longest - 1;
    expect_unplanned(&u, c, "req_to_token_stride");
    c->kv.req_to_token_stride = longest;
    ck_assert_int_eq(type->ops->init_forward_metadata(u.metadata, &c->batch, NULL, &error),
                     ATTN_OK);
    c->kv.index_forms = ATTN_INDEX_BLOCK_TABLE;
    c->kv.block_table = c->kv.req_to_token; /* which planning does not read */
    c->kv.block_table_stride = (longest + page - 1) / page - 1;
    expect_unplanned(&u, c, "block_table_stride");
    c->kv.block_table_stride++;
    ck_assert_int_eq(type->ops->init_forward_metadata(u.metadata, &c->batch, NULL, &error),
                     ATTN_OK);
    c->kv.index_forms = 0;
    expect_unplanned(&u, c, "index_forms");
    setup_destroy(&u);
    case_destroy(c);
}

TEST_OF(refused, one_form_of_indices_is_asked_for)
{
    attn_case *c = plain_case();
    attn_instance *instance = NULL;
    ck_assert_int_eq(type->create(type, &c->problem, 1, NULL, &services, &instance, &error),
                     ATTN_OK);
    ck_assert_uint_eq(type->ops->index_forms(instance), ATTN_INDEX_BLOCK_TABLE);
    type->ops->destroy(instance);
    case_destroy(c);
}

TEST_OF(refused, cross_attention_without_a_position)
{
    attn_case *c = plain_case();
    attn_verdict verdict = {.struct_size = sizeof verdict};
    c->group.attn_type = ATTN_TYPE_CROSS;
    c->group.flags = 0;
    c->group.window_left = c->group.window_right = -1;
    c->group.attention_chunk = 0;
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    c->group.window_right = 0;
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error),
                     ATTN_INVALID_ARGUMENT);
    c->group.window_right = -1;
    c->group.flags = ATTN_GROUP_HAS_ALIBI;
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->problem, &verdict, &error),
                     ATTN_INVALID_ARGUMENT);
    case_destroy(c);
}

GROUP(refused, .set_up_once = open_plugin);
TESTS("cpu_native");
