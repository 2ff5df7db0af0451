/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cpu_native.c: what `attnhost check` cannot see of the plugin's .so: what it refuses beyond the rules, into how
 * many units of work a decode of latent attention is cut, that probabilities are rounded where the option says so, and
 * that heads do not depend on each other. Results, caches and the other refusals are judged by the suite
 * (tests/conformance/cpu_native.sh).
 *
 * The .so is $ATTNHOST_CPU_NATIVE, else cpu_native.so in $ATTNHOST_TEST_PLUGIN_DIR.
 */
#include "plugins/common/cpu_isa.h"
#include "tests/tools/mla_fixture.h"
#include "tests/tools/plugin_test.h"
#include "tests/tools/test_main.h"

static const attn_backend_type *type;
static host_error error;

static int64_t last_count; /* tasks of the last call */

static attn_status test_parallel_for(void *ctx, int64_t count, attn_task task, void *arg)
{
    (void)ctx;
    attn_status status = ATTN_OK;
    last_count = count;
    for (int64_t i = 0; i < count && status == ATTN_OK; i++)
        status = task(arg, i, 0);
    return status;
}

static void open_plugin(void)
{
    attn_plugin plugin;
    host_error_init(&error);
    open_plugin_file("ATTNHOST_CPU_NATIVE", "cpu_native.so", &plugin, &error.base);
    ck_assert_int_eq(plugin.describe(0, &type, &error.base), ATTN_OK);
    ck_assert_int_eq(plugin.describe(1, &type, &error.base), ATTN_INVALID_ARGUMENT);
}

/* ---- A plugin at work ------------------------------------------------------------------------ */

/* A case, an instance and metadata for it. */
typedef struct setup {
    fixture f;
    attn_device device;
    attn_bounds bounds;
    attn_mla_dims dims; /* of latent layers */
    attn_sparse_dims sparse;
    attn_sparse_batch chosen;
    double *numbers;
    attn_services services;
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory memory;
} setup;

static void set_problem(setup *u, uint32_t mode, int32_t max_q_len)
{
    u->device = (attn_device){.struct_size = sizeof u->device, .type = ATTN_DEVICE_CPU};
    u->bounds = (attn_bounds){.struct_size = sizeof u->bounds,
                              .modes = ATTN_MODE_BIT(mode),
                              .mask_kinds = 1u << ATTN_MASK_LAYER,
                              .uses = ATTN_USES_LSE,
                              .max_seqs = u->f.batch.num_seqs,
                              .max_tokens = u->f.batch.num_tokens,
                              .max_q_len = max_q_len,
                              .max_kv_len = FIXTURE_KEYS};
    u->f.problem.device = &u->device;
    u->f.problem.bounds = &u->bounds;
}

#define MUST(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))

static void create(setup *u, uint32_t workers, const attn_options *options)
{
    u->services = (attn_services){.struct_size = sizeof u->services,
                                  .num_workers = workers,
                                  .allocate = test_allocate,
                                  .release = test_release,
                                  .parallel_for = test_parallel_for};
    MUST(type->create(type, &u->f.problem, 1, options, &u->services, &u->instance, &error.base));
}

static void open_metadata(setup *u)
{
    attn_memory_size size = {.struct_size = sizeof size};
    u->memory = (attn_memory){.struct_size = sizeof u->memory};
    MUST(
        type->ops->metadata_size(u->instance, ATTN_METADATA_EAGER, &u->bounds, &size, &error.base));
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        u->memory.size[region] = size.size[region];
        u->memory.base[region] = test_allocate(NULL, 0, size.size[region] + 64, 64);
    }
    MUST(type->ops->metadata_create(u->instance, ATTN_METADATA_EAGER, &u->bounds, &u->memory,
                                    &u->metadata, &error.base));
    MUST(type->ops->init_forward_metadata(u->metadata, &u->f.batch, NULL, &error.base));
}

static void close_metadata(setup *u)
{
    type->ops->metadata_destroy(u->metadata);
    type->ops->destroy(u->instance);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(u->memory.base[region]);
}

static void case_destroy(setup *u)
{
    fixture_finish(&u->f);
    free(u->numbers);
    free(u);
}

/* ---- What is refused ------------------------------------------------------------------------- */

/* Two sequences with a prefix, sinks, slopes and an fp8 cache. */
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
    set_problem(u, ATTN_MODE_EXTEND, 5);
    return u;
}

static setup *setup_create(void)
{
    setup *u = case_create();
    /* Of which forms of indices the case has one: all. */
    const attn_option_value value = {.struct_size = sizeof value, .key = "kv_index", .integer = 3};
    const attn_options options = {.struct_size = sizeof options, .num_values = 1, .values = &value};
    create(u, 2, &options);
    ck_assert_uint_eq(type->ops->index_forms(u->instance), 7);
    open_metadata(u);
    MUST(type->ops->forward_extend(u->metadata, 3, &u->f.args, NULL, &error.base));
    return u;
}

static void setup_destroy(setup *u)
{
    close_metadata(u);
    case_destroy(u);
}

static attn_status forward(setup *u)
{
    return type->ops->forward_extend(u->metadata, u->f.layer.layer_id, &u->f.args, NULL,
                                     &error.base);
}

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
        bad = *good;
        bad.shape[0]--; /* a row, or a page, that is missing */
        expect_refused(u, names[i] + strlen("operand "));
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
    int32_t *last = &f->req_to_token[f->requests[0]][f->prefix_lens[0] - 1];
    *last = FIXTURE_PAGES * f->problem.page_size; /* the first one behind the cache */
    expect_refused(u, "accepted 0..");
    *last = 0x7ffffff0;
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
    create(u, 2, NULL);
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

/* ---- A decode of latents ---------------------------------------------------------------------- */

/* Sequences of so many keys, which are in the cache but for the last one. */
static setup *decode_of(int32_t heads, attn_dtype dtype, const int32_t *lens, int32_t count)
{
    setup *d = calloc(1, sizeof *d);
    fixture *f = &d->f;
    mla_sequence sequences[FIXTURE_SEQS] = {{0}};
    int64_t all = 0, used = 0;
    uint64_t random = 0;
    d->dims = (attn_mla_dims){sizeof d->dims, 32, 16, 8};
    mla_init(f, heads, &d->dims, 8);
    f->problem.page_size = 16;
    f->problem.q_dtype = f->problem.kv_dtype = f->problem.out_dtype = dtype;
    f->batch.mode = ATTN_MODE_DECODE;
    f->batch.mask = NULL;
    for (int32_t s = 0; s < count; s++)
        all += (heads + lens[s]) * (d->dims.kv_lora_rank + d->dims.rope_dim);
    d->numbers = malloc((size_t)all * sizeof *d->numbers);
    for (int64_t n = 0; n < all; n++)
        d->numbers[n] = fixture_random(&random, 128) / 64;
    for (int32_t s = 0; s < count; s++) {
        const int64_t sizes[] = {heads * d->dims.kv_lora_rank, heads * d->dims.rope_dim,
                                 lens[s] * d->dims.kv_lora_rank, lens[s] * d->dims.rope_dim};
        const double **const to[] = {&sequences[s].q_nope, &sequences[s].q_pe, &sequences[s].c_kv,
                                     &sequences[s].k_pe};
        for (int n = 0; n < 4; used += sizes[n++])
            *to[n] = d->numbers + used;
        mla_add(f, 1, lens[s])->prefix_len = lens[s] - 1;
    }
    mla_build(f, sequences);
    set_problem(d, ATTN_MODE_DECODE, 1);
    return d;
}

/* Splits have 64 keys. */
static attn_status decode(setup *d, uint32_t workers, int64_t rounds)
{
    const attn_option_value values[] = {
        {sizeof values[0], .key = "kv_split_tokens", .integer = 64, .text = ""},
        {sizeof values[0], .key = "kv_index", .integer = 0, .text = ""},
        {sizeof values[0], .key = "isa", .integer = 0, .text = ""},
        {sizeof values[0], .key = "round_probabilities", .integer = rounds, .text = ""}};
    const attn_options options = {.struct_size = sizeof options, .num_values = 4, .values = values};
    create(d, workers, &options);
    open_metadata(d);
    attn_status status = type->ops->forward_decode(d->metadata, 3, &d->f.args, NULL, &error.base);
    close_metadata(d);
    return status;
}

static void run(setup *d, uint32_t workers, int64_t rounds)
{
    MUST(decode(d, workers, rounds));
}

/* ---- Units ----------------------------------------------------------------------------------- */

/* A decode, and how many units of work it is. What is to be merged here is too
 * little to wake workers for. */
static const struct {
    uint32_t workers;
    int32_t heads;
    int32_t lens[4];
    int64_t units;
    const char *why;
} unit_cases[] = {
    {1, 128, {190, 60}, 2, "no sequence to share with"},
    {2, 128, {190, 190}, 2, "balanced as they are"},
    {2, 128, {190, 60, 60, 60}, 4, "likewise: 3 splits against 3"},
    {2, 128, {190}, 2, "two times 64 rows"},
    {2, 128, {190, 190, 190}, 6, "likewise, of each"},
    {4, 128, {190}, 4, "four times 32 rows"},
    {3, 128, {190}, 3, "rows do not balance it: by splits"},
    {5, 128, {190}, 12, "more workers than splits: both"},
    {2, 16, {190}, 3, "rows cannot be cut: by splits"},
    {2, 16, {190, 60}, 4, "likewise, the long one"},
    {2, 128, {190, 1}, 4, "two times 64 rows, of both"},
};

LOOP_OF(work, units_of_work, 0, COUNT(unit_cases))
{
    int32_t count = 0;
    while (count < 4 && unit_cases[_i].lens[count] > 0)
        count++;
    setup *d = decode_of(unit_cases[_i].heads, ATTN_F32, unit_cases[_i].lens, count);
    run(d, unit_cases[_i].workers, 0);
    ck_assert_msg(last_count == unit_cases[_i].units,
                  "%u workers, %d heads, %d keys ..: %lld units, expected %lld: %s",
                  unit_cases[_i].workers, unit_cases[_i].heads, unit_cases[_i].lens[0],
                  (long long)last_count, (long long)unit_cases[_i].units, unit_cases[_i].why);
    case_destroy(d);
}

/* ---- Rounded probabilities ------------------------------------------------------------------- */

static bool multiplies_bf16(void)
{
#if defined(__x86_64__) && (__GNUC__ >= 10 || __clang_major__ >= 9)
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return false;
#endif
}

static void *copy_of(const attn_tensor *tensor, size_t *bytes)
{
    *bytes = (size_t)(tensor->shape[0] * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
    return memcpy(malloc(*bytes), tensor->data, *bytes);
}

/* Sums, and the LSE with them, are of probabilities as they were. */
TEST_OF(work, rounded_probabilities)
{
    static const int32_t lens[] = {190, 60, 7};
    setup *d = decode_of(16, ATTN_BF16, lens, 3);
    attn_tensor *out = &d->f.tensors[ATTN_ROLE_OUT], *lse = &d->f.tensors[ATTN_ROLE_LSE];
    size_t bytes, lse_bytes;
    run(d, 1, 1);
    void *rounded = copy_of(out, &bytes), *rounded_lse = copy_of(lse, &lse_bytes);
    run(d, 1, 0);
    ck_assert_mem_eq(rounded_lse, lse->data, lse_bytes);
    ck_assert_int_eq(memcmp(rounded, out->data, bytes) != 0, multiplies_bf16());
    free(rounded);
    free(rounded_lse);
    case_destroy(d);
}

/* A probability that is rounded once is what the pass rule is made for. */
LOOP_OF(work, rounding_is_no_reduced_precision, 0, 2)
{
    static const int32_t len = 7;
    setup *d = decode_of(16, _i ? ATTN_BF16 : ATTN_F32, &len, 1);
    for (int64_t rounds = 0; rounds < 2; rounds++) {
        const attn_option_value value = {sizeof value, .key = "round_probabilities",
                                         .integer = rounds, .text = ""};
        const attn_options options = {
            .struct_size = sizeof options, .num_values = 1, .values = &value};
        attn_verdict verdict = {.struct_size = sizeof verdict};
        ck_assert_int_eq(type->query(type, &options, NULL, &d->f.problem, &verdict, &error.base),
                         ATTN_OK);
        ck_assert_uint_eq(verdict.supported, 1);
        ck_assert_int_eq(verdict.traits & ATTN_TRAIT_REDUCED_PRECISION, 0);
    }
    case_destroy(d);
}

/* ---- Instruction sets ------------------------------------------------------------------------ */

/* The device of the problem decides, which may be simulated, and not the processor of this machine. */
LOOP_OF(work, isa_that_the_device_lacks, 0, 3)
{
    static const int32_t len = 7;
    static const struct {
        int64_t isa;
        uint32_t has;
    } lacking[] = {{CPU_ISA_AVX2, 0}, {CPU_ISA_AVX512, 0}, {CPU_ISA_AVX512, ATTN_CPU_AVX2}};
    setup *d = decode_of(16, ATTN_F32, &len, 1);
    attn_device device = *d->f.problem.device;
    const attn_option_value value = {sizeof value, .key = "isa", .integer = lacking[_i].isa,
                                     .text = ""};
    const attn_options options = {.struct_size = sizeof options, .num_values = 1, .values = &value};
    attn_reason reasons[2] = {{.struct_size = sizeof *reasons}, {.struct_size = sizeof *reasons}};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons = reasons, .reasons_capacity = COUNT(reasons)};
    device.cpu_isa = lacking[_i].has;
    d->f.problem.device = &device;
    ck_assert_int_eq(type->query(type, &options, NULL, &d->f.problem, &verdict, &error.base),
                     ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 2);
    ck_assert_uint_eq(reasons[0].field, ATTN_FIELD_OPTION);
    ck_assert_uint_eq(reasons[1].field, ATTN_FIELD_DEVICE_CPU_ISA);
    case_destroy(d);
}

/* ---- Heads ----------------------------------------------------------------------------------- */

/* A head by itself gives the bits that it has among others. */
LOOP_OF(work, heads_by_themselves, 0, 2)
{
    static const uint32_t roles[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE, ATTN_ROLE_Q_NOPE,
                                     ATTN_ROLE_Q_PE};
    static const int32_t lens[] = {190, 60, 7}, heads = 20;
    setup *d = decode_of(heads, _i ? ATTN_BF16 : ATTN_F32, lens, 3);
    const attn_tensor *out = &d->f.tensors[ATTN_ROLE_OUT];
    const size_t row_bytes = (size_t)out->shape[2] * attn_dtype_size(out->dtype);
    size_t bytes;
    run(d, 1, 1);
    char *all = copy_of(out, &bytes);
    d->f.group.num_q_heads = d->f.group.num_kv_heads = 1;
    for (int i = 0; i < COUNT(roles); i++)
        d->f.tensors[roles[i]].shape[1] = 1;
    for (int32_t head = 0; head < heads; head++) {
        run(d, 1, 1);
        for (int64_t row = 0; row < out->shape[0]; row++) {
            const char *alone = fixture_at(out, row, 0, 0);
            ck_assert_mem_eq(alone, all + (alone - (const char *)out->data), row_bytes);
        }
        for (int i = 0; i < COUNT(roles); i++) {
            attn_tensor *tensor = &d->f.tensors[roles[i]];
            tensor->byte_offset += (uint64_t)tensor->strides[1] * attn_dtype_size(tensor->dtype);
        }
    }
    free(all);
    case_destroy(d);
}

/* ---- Chosen keys ----------------------------------------------------------------------------- */

static void expect_undecoded(setup *d, const char *word)
{
    ck_assert_int_eq(decode(d, 1, 0), ATTN_INVALID_ARGUMENT);
    expect_named(word);
}

/* A slot outside the cache, a new latent that is not saved, and no list. */
TEST_OF(refused, senseless_lists)
{
    enum { TOP_K = 4 };
    static const int32_t len = 40;
    setup *d = decode_of(16, ATTN_F32, &len, 1);
    fixture *f = &d->f;
    d->sparse = (attn_sparse_dims){.struct_size = sizeof d->sparse,
                                   .index_kind = ATTN_SPARSE_TOKEN,
                                   .top_k = TOP_K,
                                   .block_size = 1};
    d->chosen = (attn_sparse_batch){.struct_size = sizeof d->chosen, .max_count = TOP_K};
    f->group.kind = ATTN_KIND_SPARSE;
    f->group.sparse = &d->sparse;
    f->batch.sparse = &d->chosen;
    int32_t *slots =
        fixture_tensor(f, ATTN_ROLE_SPARSE_INDICES, ATTN_I32, 2, (int64_t[]){1, TOP_K})->data;
    for (int32_t j = 0; j < TOP_K; j++)
        slots[j] = (int32_t)f->req_to_token[f->requests[0]][j];
    run(d, 1, 0);
    slots[0] = 1 << 30;
    expect_undecoded(d, "in slot 1073741824");
    f->args.flags = 0;
    expect_undecoded(d, "c_kv is given without SAVE_KV");
    f->args.flags = ATTN_FORWARD_SAVE_KV;
    f->operands[ATTN_ROLE_SPARSE_INDICES] = NULL;
    expect_undecoded(d, "sparse_indices");
    case_destroy(d);
}

TESTS("cpu_native", .set_up_once = open_plugin);
