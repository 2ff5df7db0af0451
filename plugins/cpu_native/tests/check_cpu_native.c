/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cpu_native.c: what the plugin's .so refuses beyond the rules. Its results, and what any backend
 * refuses, are judged by `attnhost check` (tests/conformance/cpu_native.sh).
 *
 * The .so is $ATTNHOST_CPU_NATIVE, else cpu_native.so in $ATTNHOST_TEST_PLUGIN_DIR.
 */
#include "tests/host/reference/reference_fixture.h"
#include "tests/tools/plugin_test.h"
#include "tests/tools/test_main.h"

static const attn_backend_type *type;
static host_error error;

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

static void open_plugin(void)
{
    attn_plugin plugin;
    host_error_init(&error);
    open_plugin_file("ATTNHOST_CPU_NATIVE", "cpu_native.so", &plugin, &error.base);
    ck_assert_int_eq(plugin.describe(0, &type, &error.base), ATTN_OK);
    ck_assert_int_eq(plugin.describe(1, &type, &error.base), ATTN_INVALID_ARGUMENT);
}

/* ---- A plugin at work ------------------------------------------------------------------------ */

/* Two sequences with a prefix, sinks, slopes and an fp8 cache; an instance and metadata for them. */
typedef struct setup {
    fixture f;
    attn_device device;
    attn_bounds bounds;
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory memory;
} setup;

static setup *case_create(void)
{
    static const double zeros[1024];
    static const float scale = 0.5f;
    setup *u = calloc(1, sizeof *u);
    fixture *f = &u->f;
    fixture_init(f, 4, 2, 16, 16);
    f->group.flags = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI;
    f->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    f->problem.kv_dtype = ATTN_FP8_E4M3;
    for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++)
        f->scales[role] =
            (attn_scale){sizeof(attn_scale), ATTN_SCALE_PER_TENSOR, 1, 0, &scale, NULL};
    fixture_add(f, 5, 20, zeros, zeros, zeros);
    fixture_add(f, 3, 9, zeros, zeros, zeros);
    fixture_build(f);
    f->kv.index_forms = ATTN_INDEX_REQ_TO_TOKEN;
    u->device = (attn_device){.struct_size = sizeof u->device, .type = ATTN_DEVICE_CPU};
    u->bounds = (attn_bounds){.struct_size = sizeof u->bounds,
                              .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND),
                              .mask_kinds = 1u << ATTN_MASK_LAYER,
                              .uses = ATTN_USES_LSE,
                              .max_seqs = 2,
                              .max_tokens = 8,
                              .max_q_len = 5,
                              .max_kv_len = FIXTURE_KEYS};
    f->problem.device = &u->device;
    f->problem.bounds = &u->bounds;
    return u;
}

static setup *setup_create(void)
{
    setup *u = case_create();
    attn_memory_size size = {.struct_size = sizeof size};
    /* Of which forms of indices the case has one: all. */
    const attn_option_value value = {.struct_size = sizeof value, .key = "kv_index", .integer = 3};
    const attn_options options = {.struct_size = sizeof options, .num_values = 1, .values = &value};
    u->memory.struct_size = sizeof u->memory;
#define MUST(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))
    MUST(type->create(type, &u->f.problem, 1, &options, &services, &u->instance, &error.base));
    ck_assert_uint_eq(type->ops->index_forms(u->instance), 7);
    MUST(
        type->ops->metadata_size(u->instance, ATTN_METADATA_EAGER, &u->bounds, &size, &error.base));
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        u->memory.size[region] = size.size[region];
        u->memory.base[region] = test_allocate(NULL, 0, size.size[region] + 64, 64);
    }
    MUST(type->ops->metadata_create(u->instance, ATTN_METADATA_EAGER, &u->bounds, &u->memory,
                                    &u->metadata, &error.base));
    MUST(type->ops->init_forward_metadata(u->metadata, &u->f.batch, NULL, &error.base));
    MUST(type->ops->forward_extend(u->metadata, 3, &u->f.args, NULL, &error.base));
#undef MUST
    return u;
}

static void case_destroy(setup *u)
{
    fixture_finish(&u->f);
    free(u);
}

static void setup_destroy(setup *u)
{
    type->ops->metadata_destroy(u->metadata);
    type->ops->destroy(u->instance);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(u->memory.base[region]);
    case_destroy(u);
}

static attn_status forward(setup *u)
{
    return type->ops->forward_extend(u->metadata, u->f.layer.layer_id, &u->f.args, NULL,
                                     &error.base);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static attn_status plan(setup *u)
{
    return type->ops->init_forward_metadata(u->metadata, &u->f.batch, NULL, &error.base);
}

static void expect_named(const char *word)
{
    ck_assert_msg(strstr(host_error_text(&error), word), "\"%s\" does not name %s",
                  host_error_text(&error), word);
}

static void expect_refused(setup *u, const char *word)
{
    ck_assert_int_eq(plan(u), ATTN_OK);
    ck_assert_msg(forward(u) == ATTN_INVALID_ARGUMENT, "accepted in spite of %s", word);
    expect_named(word);
}

TEST_OF(refused, operands_that_are_wrong)
{
    setup *u = setup_create();
    fixture *f = &u->f;
    static const uint32_t needed[] = {ATTN_ROLE_Q,     ATTN_ROLE_K,           ATTN_ROLE_V,
                                      ATTN_ROLE_OUT,   ATTN_ROLE_K_CACHE,     ATTN_ROLE_V_CACHE,
                                      ATTN_ROLE_SINKS, ATTN_ROLE_ALIBI_SLOPES};
    static const char *const names[] = {"operand q",     "operand k",           "operand v",
                                        "operand out",   "operand k_cache",     "operand v_cache",
                                        "operand sinks", "operand alibi_slopes"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const attn_tensor *good = f->operands[needed[i]];
        attn_tensor bad = *good;
        f->operands[needed[i]] = NULL;
        expect_refused(u, names[i]);
        f->operands[needed[i]] = &bad;
        bad.dtype = ATTN_I32;
        expect_refused(u, names[i]);
        bad = *good;
        bad.shape[bad.ndim - 1]++;
        expect_refused(u, names[i]);
        bad = *good;
        bad.strides[bad.ndim - 1] = 2;
        expect_refused(u, names[i]);
        bad = *good;
        bad.ndim--;
        expect_refused(u, names[i]);
        bad = *good;
        bad.device_type = ATTN_DEVICE_CUDA;
        expect_refused(u, names[i]);
        f->operands[needed[i]] = good;
    }
    for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++) {
        const attn_scale *good = f->scale_pointers[role];
        attn_scale bad = *good;
        f->scale_pointers[role] = NULL;
        expect_refused(u, "scale of");
        f->scale_pointers[role] = &bad;
        bad.granularity = 3 - bad.granularity;
        expect_refused(u, "scale of");
        bad = *good;
        bad.count++;
        expect_refused(u, "scale of");
        f->scale_pointers[role] = good;
    }
    int64_t slot = f->out_cache_loc[0];
    f->out_cache_loc[0] = FIXTURE_PAGES * f->problem.page_size;
    expect_refused(u, "out_cache_loc");
    f->out_cache_loc[0] = slot;
    f->req_to_token[f->requests[0]][f->prefix_lens[0] - 1] = 0x7ffffff0;
    expect_refused(u, "slot 2147483632");
    ck_assert_int_eq(
        type->ops->forward_decode(u->metadata, f->layer.layer_id, &f->args, NULL, &error.base),
        ATTN_BAD_STATE);
    f->layer.layer_id++;
    expect_refused(u, "layer_id");
    setup_destroy(u);
}

static void expect_unplanned(setup *u, const char *word)
{
    ck_assert_msg(plan(u) == ATTN_INVALID_ARGUMENT, "planned in spite of %s", word);
    expect_named(word);
    ck_assert_int_eq(forward(u), ATTN_BAD_STATE);
}

/* Rows of a table that are one entry too short for the longest sequence, then just long enough. */
TEST_OF(refused, tables_with_short_rows)
{
    setup *u = setup_create();
    attn_kv_batch *kv = &u->f.kv;
    const int32_t longest = u->f.kv_lens[0], page = u->f.problem.page_size;
    kv->req_to_token_stride = longest - 1;
    expect_unplanned(u, "req_to_token_stride");
    kv->req_to_token_stride = longest;
    ck_assert_int_eq(plan(u), ATTN_OK);
    kv->index_forms = ATTN_INDEX_BLOCK_TABLE;
    kv->block_table_stride = (longest + page - 1) / page - 1;
    expect_unplanned(u, "block_table_stride");
    kv->block_table_stride++;
    ck_assert_int_eq(plan(u), ATTN_OK);
    kv->index_forms = 0;
    expect_unplanned(u, "index_forms");
    setup_destroy(u);
}

TEST_OF(refused, one_form_of_indices_is_asked_for)
{
    setup *u = case_create();
    ck_assert_int_eq(
        type->create(type, &u->f.problem, 1, NULL, &services, &u->instance, &error.base), ATTN_OK);
    ck_assert_uint_eq(type->ops->index_forms(u->instance), ATTN_INDEX_BLOCK_TABLE);
    type->ops->destroy(u->instance);
    case_destroy(u);
}

static attn_status ask(const setup *u)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    attn_status status = type->query(type, NULL, NULL, &u->f.problem, &verdict, &error.base);
    ck_assert_int_eq(verdict.supported, status == ATTN_OK);
    return status;
}

TEST_OF(refused, cross_attention_without_a_position)
{
    setup *u = case_create();
    attn_layer_group *group = &u->f.group;
    group->attn_type = ATTN_TYPE_CROSS;
    group->flags = 0;
    group->window_right = -1;
    ck_assert_int_eq(ask(u), ATTN_OK);
    group->window_right = 0;
    ck_assert_int_eq(ask(u), ATTN_INVALID_ARGUMENT);
    group->window_right = -1;
    group->flags = ATTN_GROUP_HAS_ALIBI;
    ck_assert_int_eq(ask(u), ATTN_INVALID_ARGUMENT);
    case_destroy(u);
}

GROUP(refused, .set_up_once = open_plugin);
TESTS("cpu_native");
