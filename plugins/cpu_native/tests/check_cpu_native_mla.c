/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cpu_native_mla.c: what `attnhost check` cannot see of the plugin's latent attention: into how many units
 * of work a decode is cut, that probabilities are rounded where the option says so, that heads do not depend on each
 * other, and which lists of chosen keys are refused. Results, caches and the other refusals are judged by the suite
 * (tests/conformance/cpu_native.sh).
 *
 * The .so is $ATTNHOST_CPU_NATIVE, else cpu_native.so in $ATTNHOST_TEST_PLUGIN_DIR.
 */
#include "tests/tools/mla_fixture.h"
#include "tests/tools/plugin_test.h"
#include "tests/tools/test_main.h"

static const attn_backend_type *type;
static host_error error;

static void open_plugin(void)
{
    attn_plugin plugin;
    host_error_init(&error);
    open_plugin_file("ATTNHOST_CPU_NATIVE", "cpu_native.so", &plugin, &error.base);
    ck_assert_int_eq(plugin.describe(0, &type, &error.base), ATTN_OK);
}

/* ---- A decode -------------------------------------------------------------------------------- */

struct decode {
    fixture f;
    attn_mla_dims dims;
    attn_sparse_dims sparse;
    attn_sparse_batch chosen;
    attn_device device;
    attn_bounds bounds;
    double *numbers;
    uint64_t random;
};

/* Sequences of so many keys, which are in the cache but for the last one. */
static struct decode *decode_of(int32_t heads, attn_dtype dtype, const int32_t *lens, int32_t count)
{
    struct decode *d = calloc(1, sizeof *d);
    fixture *f = &d->f;
    mla_sequence sequences[FIXTURE_SEQS] = {{0}};
    int64_t all = 0, used = 0;
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
        d->numbers[n] = fixture_random(&d->random, 128) / 64;
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
    d->device = (attn_device){.struct_size = sizeof d->device, .type = ATTN_DEVICE_CPU};
    d->bounds = (attn_bounds){.struct_size = sizeof d->bounds,
                              .modes = ATTN_MODE_BIT(ATTN_MODE_DECODE),
                              .mask_kinds = 1u << ATTN_MASK_LAYER,
                              .uses = ATTN_USES_LSE,
                              .max_seqs = f->batch.num_seqs,
                              .max_tokens = f->batch.num_tokens,
                              .max_q_len = 1,
                              .max_kv_len = FIXTURE_KEYS};
    f->problem.device = &d->device;
    f->problem.bounds = &d->bounds;
    f->batch.num_kv_groups = 1;
    return d;
}

static void decode_free(struct decode *d)
{
    fixture_finish(&d->f);
    free(d->numbers);
    free(d);
}

static int64_t last_count; /* tasks of the last call */

static attn_status test_parallel_for(void *ctx, int64_t count, attn_task task, void *arg)
{
    attn_status status = ATTN_OK;
    (void)ctx;
    last_count = count;
    for (int64_t i = 0; i < count && status == ATTN_OK; i++)
        status = task(arg, i, 0);
    return status;
}

/* Splits have 64 keys. */
static attn_status forward(struct decode *d, uint32_t workers, int64_t rounds)
{
    const attn_services services = {.struct_size = sizeof services,
                                    .num_workers = workers,
                                    .allocate = test_allocate,
                                    .release = test_release,
                                    .parallel_for = test_parallel_for};
    const attn_option_value values[] = {
        {sizeof values[0], .key = "kv_split_tokens", .integer = 64, .text = ""},
        {sizeof values[0], .key = "kv_index", .integer = 0, .text = ""},
        {sizeof values[0], .key = "isa", .integer = 0, .text = ""},
        {sizeof values[0], .key = "round_probabilities", .integer = rounds, .text = ""}};
    const attn_options options = {.struct_size = sizeof options, .num_values = 4, .values = values};
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
#define MUST(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))
    MUST(type->create(type, &d->f.problem, 1, &options, &services, &instance, &error.base));
    MUST(type->ops->metadata_size(instance, ATTN_METADATA_EAGER, &d->bounds, &size, &error.base));
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        memory.size[region] = size.size[region];
        memory.base[region] = test_allocate(NULL, 0, size.size[region] + 64, 64);
    }
    MUST(type->ops->metadata_create(instance, ATTN_METADATA_EAGER, &d->bounds, &memory, &metadata,
                                    &error.base));
    MUST(type->ops->init_forward_metadata(metadata, &d->f.batch, NULL, &error.base));
#undef MUST
    attn_status status = type->ops->forward_decode(metadata, 3, &d->f.args, NULL, &error.base);
    type->ops->metadata_destroy(metadata);
    type->ops->destroy(instance);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++)
        free(memory.base[region]);
    return status;
}

static void run(struct decode *d, uint32_t workers, int64_t rounds)
{
    ck_assert_msg(forward(d, workers, rounds) == ATTN_OK, "%s", host_error_text(&error));
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
    struct decode *d = decode_of(unit_cases[_i].heads, ATTN_F32, unit_cases[_i].lens, count);
    run(d, unit_cases[_i].workers, 0);
    ck_assert_msg(last_count == unit_cases[_i].units,
                  "%u workers, %d heads, %d keys ..: %lld units, expected %lld: %s",
                  unit_cases[_i].workers, unit_cases[_i].heads, unit_cases[_i].lens[0],
                  (long long)last_count, (long long)unit_cases[_i].units, unit_cases[_i].why);
    decode_free(d);
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
    struct decode *d = decode_of(16, ATTN_BF16, lens, 3);
    attn_tensor *out = &d->f.tensors[ATTN_ROLE_OUT], *lse = &d->f.tensors[ATTN_ROLE_LSE];
    size_t bytes, lse_bytes;
    run(d, 1, 1);
    void *rounded = copy_of(out, &bytes), *rounded_lse = copy_of(lse, &lse_bytes);
    run(d, 1, 0);
    ck_assert_mem_eq(rounded_lse, lse->data, lse_bytes);
    ck_assert_int_eq(memcmp(rounded, out->data, bytes) != 0, multiplies_bf16());
    free(rounded);
    free(rounded_lse);
    decode_free(d);
}

/* A probability that is rounded once is what the pass rule is made for. */
LOOP_OF(work, rounding_is_no_reduced_precision, 0, 2)
{
    static const int32_t len = 7;
    struct decode *d = decode_of(16, _i ? ATTN_BF16 : ATTN_F32, &len, 1);
    for (int64_t rounds = 0; rounds < 2; rounds++) {
        const attn_option_value value = {sizeof value, .key = "round_probabilities",
                                         .integer = rounds, .text = ""};
        const attn_options options = {
            .struct_size = sizeof options, .num_values = 1, .values = &value};
        attn_verdict verdict = {.struct_size = sizeof verdict};
        ck_assert_int_eq(type->query(type, &options, NULL, &d->f.problem, &verdict, &error.base),
                         ATTN_OK);
        ck_assert_uint_eq(verdict.supported, 1);
        ck_assert_int_eq(verdict.notes & ATTN_NOTE_REDUCED_PRECISION, 0);
    }
    decode_free(d);
}

/* ---- Heads ----------------------------------------------------------------------------------- */

/* A head by itself gives the bits that it has among others. */
LOOP_OF(work, heads_by_themselves, 0, 2)
{
    static const uint32_t roles[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE, ATTN_ROLE_Q_NOPE,
                                     ATTN_ROLE_Q_PE};
    static const int32_t lens[] = {190, 60, 7}, heads = 20;
    struct decode *d = decode_of(heads, _i ? ATTN_BF16 : ATTN_F32, lens, 3);
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
    decode_free(d);
}

/* ---- Chosen keys ----------------------------------------------------------------------------- */

static void expect_refused(struct decode *d, const char *word)
{
    ck_assert_int_eq(forward(d, 1, 0), ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(host_error_text(&error), word), "%s", host_error_text(&error));
}

/* A slot outside the cache, a new latent that is not saved, and no list. */
TEST_OF(refused, senseless_lists)
{
    enum { TOP_K = 4 };
    static const int32_t len = 40;
    struct decode *d = decode_of(16, ATTN_F32, &len, 1);
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
    expect_refused(d, "in slot 1073741824");
    f->args.flags = 0;
    expect_refused(d, "c_kv is given without SAVE_KV");
    f->args.flags = ATTN_FORWARD_SAVE_KV;
    f->operands[ATTN_ROLE_SPARSE_INDICES] = NULL;
    expect_refused(d, "sparse_indices");
    decode_free(d);
}

GROUP(refused, .set_up_once = open_plugin);
GROUP(work, .set_up_once = open_plugin);
TESTS("cpu_native_mla");
