/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cpu_native_mla.c: latent attention of the plugin's .so: units of work, packed latents, rounded
 * probabilities, rows by themselves, and what it refuses. Random cases against the oracle are those of
 * `attnhost check` (tests/conformance/cpu_native.sh).
 *
 * The .so is $ATTNHOST_CPU_NATIVE, else cpu_native.so in $ATTNHOST_TEST_PLUGIN_DIR.
 */
#include "tests/tools/mla_fixture.h"
#include "tests/tools/plugin_test.h"
#include "tests/tools/test_main.h"

#include <float.h>
#include <stdio.h>

enum {
    MAX_HEADS = 20,
    MAX_LORA = 512,
    MAX_ROPE = 70,
    MAX_NOPE = 24,
    MAX_V = 40,
    CASES = 128,
    PLAIN_CASES = CASES * 3 / 4 /* the others are packed */
};

static const attn_backend_type *type;
static host_error error;

/* ---- The plugin ------------------------------------------------------------------------------ */

static void open_plugin(void)
{
    attn_plugin plugin;
    host_error_init(&error);
    open_plugin_file("ATTNHOST_CPU_NATIVE", "cpu_native.so", &plugin, &error.base);
    ck_assert_int_eq(plugin.describe(0, &type, &error.base), ATTN_OK);
}

static int64_t last_count; /* tasks of the last call */

/* Workers take turns, the last task first. */
static attn_status test_parallel_for(void *ctx, int64_t count, attn_task task, void *arg)
{
    uint32_t workers = *(const uint32_t *)ctx;
    attn_status first = ATTN_OK;
    last_count = count;
    for (int64_t i = count - 1; i >= 0; i--) {
        attn_status status = task(arg, i, (uint32_t)(i * 5 % workers));
        first = first == ATTN_OK ? status : first;
    }
    return first;
}

/* ---- A random case --------------------------------------------------------------------------- */

struct mla_case {
    fixture f;
    attn_mla_dims dims;
    attn_device device;
    attn_bounds bounds;
    attn_mask mask;
    float scale;
    int64_t split;
    uint32_t form;  /* of indices */
    int64_t rounds; /* probabilities */
    double *arrays[FIXTURE_SEQS * 7];
    mla_sequence sequences[FIXTURE_SEQS];
    uint64_t random;
    char what[256];
};

static int32_t pick(struct mla_case *c, int32_t count)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((c->random >> 33) % (uint64_t)count);
}

#define CHOOSE(c, values) values[pick(c, (int32_t)(sizeof values / sizeof values[0]))]

static const double *numbers(struct mla_case *c, int n, int64_t count)
{
    double *made = malloc((size_t)(count + 1) * sizeof *made);
    for (int64_t i = 0; i < count; i++)
        made[i] = fixture_random(&c->random, 128) / 64;
    return c->arrays[n] = made;
}

static void choose_group(struct mla_case *c, int absorbed)
{
    static const int32_t heads[] = {1, 2, 3, 5, 16, MAX_HEADS}, loras[] = {1, 8, 33, 64, 130},
                         ropes[] = {0, 1, 2, 7, 16, 64}, pages[] = {1, 16, 32, 64, 128};
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16},
                            fp8[] = {ATTN_FP8_E4M3, ATTN_FP8_E5M2};
    fixture *f = &c->f;
    int32_t lora = CHOOSE(c, loras), q_heads = CHOOSE(c, heads);
    int v3 = pick(c, 8) == 0; /* DeepSeek V3's latent */
    c->dims = (attn_mla_dims){sizeof c->dims, v3 ? 512 : lora, v3 ? 64 : CHOOSE(c, ropes),
                              1 + pick(c, MAX_NOPE)};
    mla_init(f, q_heads, &c->dims, 1 + pick(c, MAX_V));
    f->problem.page_size = CHOOSE(c, pages);
    f->problem.q_dtype = f->problem.kv_dtype = CHOOSE(c, dtypes);
    f->problem.out_dtype = CHOOSE(c, dtypes);
    f->problem.mla_expanded = absorbed ? 0 : ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    f->group.window_left = pick(c, 4) == 0 ? pick(c, 90) : -1;
    f->group.logit_cap = pick(c, 6) == 0 ? 5.0f : 0;
    f->group.flags = pick(c, 4) == 0 ? ATTN_GROUP_HAS_SINKS : 0;
    for (int32_t h = 0; h < MAX_HEADS; h++)
        f->sinks[h] = 0.25f * (float)h - 1;
    if (pick(c, 3) == 0) {
        c->scale = 0.0125f;
        f->problem.kv_dtype = CHOOSE(c, fp8);
        f->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
        f->scales[ATTN_ROLE_LATENT_CACHE] =
            (attn_scale){sizeof(attn_scale), ATTN_SCALE_PER_TENSOR, 1, 0, &c->scale, NULL};
    }
}

/* mla.latent_fp8/1, which has its scales in its rows. */
static void choose_packed(struct mla_case *c)
{
    static const int32_t loras[] = {128, 256, 384, 512};
    fixture *f = &c->f;
    c->dims.kv_lora_rank = CHOOSE(c, loras);
    f->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT_FP8;
    f->problem.kv_dtype = ATTN_FP8_E4M3;
    f->group.kv_scale_granularity = ATTN_SCALE_NONE;
    f->scales[ATTN_ROLE_LATENT_CACHE] = (attn_scale){0};
}

/* Rows of the cache with scales that no writer of these numbers would give. */
static void put_packed(struct mla_case *c, const double *c_kv, const double *k_pe, char *to)
{
    int32_t lora = c->dims.kv_lora_rank, scales = lora / 128 * (int32_t)sizeof(float);
    for (int32_t d = 0; d < lora; d++) {
        float scale = (float)(1 + d / 128 + pick(c, 2) * (d % 128 == 0)) * 0.0037f;
        if (d % 128 == 0)
            memcpy(to + lora + d / 128 * (int32_t)sizeof scale, &scale, sizeof scale);
        memcpy(&scale, to + lora + d / 128 * (int32_t)sizeof scale, sizeof scale);
        dtype_quantise(ATTN_FP8_E4M3, to, d, (float)c_kv[d], scale);
    }
    for (int32_t d = 0; d < c->dims.rope_dim; d++)
        dtype_store(ATTN_BF16, to + lora + scales, d, k_pe[d]);
}

static void fill_packed(struct mla_case *c)
{
    fixture *f = &c->f;
    for (int32_t s = 0; s < f->batch.num_seqs; s++)
        for (int32_t j = 0; j < f->sequences[s].kv_len - f->sequences[s].num_new; j++)
            put_packed(c, c->sequences[s].c_kv + (int64_t)j * c->dims.kv_lora_rank,
                       c->sequences[s].k_pe + (int64_t)j * c->dims.rope_dim,
                       mla_slot(f, &f->tensors[ATTN_ROLE_LATENT_CACHE],
                                f->req_to_token[f->requests[s]][j]));
}

static void choose_sequences(struct mla_case *c, int absorbed)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_TARGET_VERIFY};
    fixture *f = &c->f;
    int64_t heads = f->group.num_q_heads;
    f->batch.mode = absorbed ? CHOOSE(c, modes) : ATTN_MODE_EXTEND;
    f->with_new_indptr = !absorbed || pick(c, 2);
    for (int32_t s = 0, count = 1 + pick(c, 3); s < count; s++) {
        int32_t queries = f->batch.mode == ATTN_MODE_DECODE ? 1 : 1 + pick(c, 9);
        int32_t prefix = pick(c, 4) ? pick(c, 180) : 0, kv_len = prefix + queries;
        if (!absorbed && prefix > 0 && pick(c, 2)) /* a chunk of the prefix */
            kv_len = 1 + pick(c, prefix);
        fixture_sequence *sequence = mla_add(f, queries, kv_len);
        sequence->prefix_len = prefix;
        if (f->with_new_indptr)
            sequence->num_new = absorbed && pick(c, 2) ? pick(c, 2) * queries : 1 + pick(c, kv_len);
        sequence->num_new = sequence->num_new > kv_len ? kv_len : sequence->num_new;
        c->sequences[s] =
            (mla_sequence){numbers(c, s * 7, queries * heads * c->dims.kv_lora_rank),
                           numbers(c, s * 7 + 1, queries * heads * c->dims.rope_dim),
                           numbers(c, s * 7 + 2, (int64_t)kv_len * c->dims.kv_lora_rank),
                           numbers(c, s * 7 + 3, (int64_t)kv_len * c->dims.rope_dim),
                           numbers(c, s * 7 + 4, queries * heads * f->group.head_dim),
                           numbers(c, s * 7 + 5, kv_len * heads * f->group.head_dim),
                           numbers(c, s * 7 + 6, kv_len * heads * f->group.v_head_dim)};
    }
}

static void set_problem(struct mla_case *c)
{
    fixture *f = &c->f;
    c->device = (attn_device){.struct_size = sizeof c->device, .type = ATTN_DEVICE_CPU};
    c->bounds = (attn_bounds){.struct_size = sizeof c->bounds,
                              .modes = (1u << ATTN_MODE_COUNT) - 1,
                              .mask_kinds = (1u << ATTN_MASK_COUNT) - 1,
                              .uses = ATTN_USES_LSE | ATTN_USES_UNSAVED_KV,
                              .max_seqs = f->batch.num_seqs,
                              .max_tokens = f->batch.num_tokens,
                              .max_q_len = 16,
                              .max_kv_len = FIXTURE_KEYS};
    f->problem.device = &c->device;
    f->problem.bounds = &c->bounds;
    f->batch.num_kv_groups = 1;
}

static struct mla_case *case_of(uint64_t seed)
{
    static const int64_t splits[] = {64, 128, 512};
    struct mla_case *c = calloc(1, sizeof *c);
    c->random = seed * 977 + 13;
    int absorbed = pick(c, 3) != 0;
    choose_group(c, absorbed);
    if (seed >= PLAIN_CASES)
        choose_packed(c);
    choose_sequences(c, absorbed);
    if (absorbed || pick(c, 2))
        c->f.batch.mask = NULL;
    else {
        c->mask = (attn_mask){.struct_size = sizeof c->mask, .kind = ATTN_MASK_NONE};
        c->f.batch.mask = &c->mask;
    }
    mla_build(&c->f, c->sequences);
    if (mla_is_packed(&c->f))
        fill_packed(c);
    if (pick(c, 3) == 0)
        c->f.args.flags = 0;
    for (int32_t row = 0; pick(c, 4) == 0 && row < c->f.new_indptr[c->f.batch.num_seqs]; row += 3)
        c->f.out_cache_loc[row] = -1;
    set_problem(c);
    c->split = CHOOSE(c, splits);
    c->form = (uint32_t)pick(c, 3);
    snprintf(c->what, sizeof c->what,
             "seed %llu: %s%s, mode %u, %d heads, %d + %d, %d, page %d, dtypes %u %u, flags %#x",
             (unsigned long long)seed, mla_is_packed(&c->f) ? "packed, " : "",
             absorbed ? "absorbed" : "expanded", c->f.batch.mode, c->f.group.num_q_heads,
             c->dims.kv_lora_rank, c->dims.rope_dim, c->f.group.v_head_dim, c->f.problem.page_size,
             c->f.problem.q_dtype, c->f.problem.kv_dtype, c->f.args.flags);
    return c;
}

static void case_free(struct mla_case *c)
{
    fixture_finish(&c->f);
    for (size_t n = 0; n < sizeof c->arrays / sizeof c->arrays[0]; n++)
        free(c->arrays[n]);
    free(c);
}

static size_t tensor_bytes(const attn_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static void run(struct mla_case *c, uint32_t workers, int64_t isa)
{
    fixture *f = &c->f;
    attn_services services = {.struct_size = sizeof services,
                              .num_workers = workers,
                              .ctx = &workers,
                              .allocate = test_allocate,
                              .release = test_release,
                              .parallel_for = test_parallel_for};
    attn_option_value values[] = {
        {sizeof values[0], .key = "kv_split_tokens", .integer = c->split, .text = ""},
        {sizeof values[0], .key = "kv_index", .integer = c->form, .text = ""},
        {sizeof values[0], .key = "isa", .integer = isa, .text = ""},
        {sizeof values[0], .key = "round_probabilities", .integer = c->rounds, .text = ""}};
    attn_options options = {.struct_size = sizeof options, .num_values = 4, .values = values};
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
#define MUST(call) ck_assert_msg((call) == ATTN_OK, "%s: %s", c->what, host_error_text(&error))
    MUST(type->create(type, &f->problem, 1, &options, &services, &instance, &error.base));
    MUST(type->ops->metadata_size(instance, ATTN_METADATA_EAGER, &c->bounds, &size, &error.base));
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        memory.size[region] = size.size[region];
        memory.base[region] = test_allocate(NULL, 0, size.size[region] + 64, 64);
        memset(memory.base[region], 0xff, size.size[region] + 64);
    }
    MUST(type->ops->metadata_create(instance, ATTN_METADATA_EAGER, &c->bounds, &memory, &metadata,
                                    &error.base));
    MUST(type->ops->init_forward_metadata(metadata, &f->batch, NULL, &error.base));
    if (f->batch.mode == ATTN_MODE_DECODE)
        MUST(type->ops->forward_decode(metadata, 3, &f->args, NULL, &error.base));
    else
        MUST(type->ops->forward_extend(metadata, 3, &f->args, NULL, &error.base));
#undef MUST
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        const uint8_t *end = (const uint8_t *)memory.base[region] + size.size[region];
        for (int i = 0; i < 64; i++)
            ck_assert_msg(end[i] == 0xff, "%s: region %u was overrun", c->what, region);
        free(memory.base[region]);
    }
    type->ops->destroy(instance);
}

/* ---- Units ----------------------------------------------------------------------------------- */

/* A decode in splits of 64 keys, and how many units of work it is. What is to be merged here is too
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

LOOP_OF(oracle, units_of_work, 0, COUNT(unit_cases))
{
    static const attn_mla_dims dims = {sizeof dims, 32, 16, 8};
    struct mla_case *c = calloc(1, sizeof *c);
    fixture *f = &c->f;
    mla_init(f, unit_cases[_i].heads, &dims, 8);
    f->problem.page_size = 16;
    f->batch.mode = ATTN_MODE_DECODE;
    for (int s = 0; s < 4 && unit_cases[_i].lens[s] > 0; s++) {
        const int32_t len = unit_cases[_i].lens[s], heads = unit_cases[_i].heads;
        mla_add(f, 1, len)->prefix_len = len - 1;
        c->sequences[s] =
            (mla_sequence){.q_nope = numbers(c, s * 7, (int64_t)heads * dims.kv_lora_rank),
                           .q_pe = numbers(c, s * 7 + 1, (int64_t)heads * dims.rope_dim),
                           .c_kv = numbers(c, s * 7 + 2, (int64_t)len * dims.kv_lora_rank),
                           .k_pe = numbers(c, s * 7 + 3, (int64_t)len * dims.rope_dim)};
    }
    f->batch.mask = NULL;
    mla_build(f, c->sequences);
    set_problem(c);
    c->split = 64;
    snprintf(c->what, sizeof c->what, "%s", unit_cases[_i].why);
    run(c, unit_cases[_i].workers, 0);
    ck_assert_msg(last_count == unit_cases[_i].units,
                  "%u workers, %d heads, %d keys ..: %lld units, "
                  "expected %lld: %s",
                  unit_cases[_i].workers, unit_cases[_i].heads, unit_cases[_i].lens[0],
                  (long long)last_count, (long long)unit_cases[_i].units, unit_cases[_i].why);
    case_free(c);
}

/* ---- mla.latent_fp8/1 ------------------------------------------------------------------------ */

/* What a writer may meet, by row. */
static double special_number(struct mla_case *c, int64_t row, int32_t d)
{
    static const double specials[] = {INFINITY, -INFINITY, NAN, 0.0, -0.0, 6e4, -3e-5};
    switch (row % 6) {
    case 0: /* a separate scale for each group of 128, by magnitudes that differ a thousandfold */
        return fixture_random(&c->random, 997) * pow(10, d / 128 - 3);
    case 1:
        return 0;
    case 2: /* scales below the smallest */
        return fixture_random(&c->random, 100) * (double)FLT_MIN;
    case 3:
        return pick(c, 5) == 0 ? CHOOSE(c, specials) : fixture_random(&c->random, 50);
    case 4: /* nothing finite */
        return specials[pick(c, 3)];
    default: /* numbers half way between codes */
        return d % 128 == 0 ? 448 : fixture_random(&c->random, 480) / 16;
    }
}

/* The cache after SAVE_KV, to the bit, in either form. */
LOOP_OF(oracle, packed_writer, 0, 6)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    uint64_t seed = PLAIN_CASES + (uint64_t)_i;
    struct mla_case *c = case_of(seed);
    while (c->f.args.flags == 0 || c->f.new_indptr[c->f.batch.num_seqs] < 4 ||
           c->f.problem.q_dtype != dtypes[_i % 3]) {
        case_free(c);
        c = case_of(seed += 6);
    }
    fixture *f = &c->f;
    attn_tensor *cache = &f->tensors[ATTN_ROLE_LATENT_CACHE], image = *cache;
    const attn_tensor *c_kv = &f->tensors[ATTN_ROLE_C_KV], *k_pe = &f->tensors[ATTN_ROLE_K_PE];
    for (int64_t row = 0; row < c_kv->shape[0]; row++) {
        for (int32_t d = 0; d < c->dims.kv_lora_rank; d++)
            dtype_store(c_kv->dtype, fixture_at(c_kv, row, 0, 0), d, special_number(c, row, d));
        for (int32_t d = 0; d < c->dims.rope_dim; d++) /* of more digits than bf16 has */
            dtype_store(k_pe->dtype, fixture_at(k_pe, row, 0, 0), d,
                        fixture_random(&c->random, 99999) / 777);
    }
    image.data = malloc(tensor_bytes(cache));
    memcpy(image.data, cache->data, tensor_bytes(cache));
    ck_assert_int_eq(
        reference_expected_kv(&f->problem, &f->batch, 3, &f->args, &image, NULL, &error.base),
        ATTN_OK);
    ck_assert_int_gt(reference_compare_kv(&f->problem, cache, &image, NULL), 0);
    run(c, 2, _i % 2);
    int64_t place[4] = {0};
    ck_assert_msg(reference_compare_kv(&f->problem, cache, &image, place) == 0,
                  "%s: page %lld, row %lld, byte %lld", c->what, (long long)place[0],
                  (long long)place[1], (long long)place[3]);
    free(image.data);
    case_free(c);
}

/* Whether latents come from the arguments or were saved before changes no bit. */
LOOP_OF(oracle, packed_saved_then_read, 0, 8)
{
    const uint64_t end = PLAIN_CASES + (uint64_t)random_cases(96);
    for (uint64_t seed = PLAIN_CASES + (uint64_t)_i; seed < end; seed += 8) {
        struct mla_case *c = case_of(seed);
        fixture *f = &c->f;
        attn_tensor *out = &f->tensors[ATTN_ROLE_OUT], *lse = &f->tensors[ATTN_ROLE_LSE];
        char *first = malloc(tensor_bytes(out)), *first_lse = malloc(tensor_bytes(lse));
        int unsaved = f->args.flags == 0;
        for (int32_t row = 0; row < f->new_indptr[f->batch.num_seqs]; row++)
            unsaved |= f->out_cache_loc[row] == -1;
        if (!unsaved && f->problem.mla_expanded == 0 && f->operands[ATTN_ROLE_C_KV]) {
            run(c, 2, seed % 4 == 3);
            memcpy(first, out->data, tensor_bytes(out));
            memcpy(first_lse, lse->data, tensor_bytes(lse));
            memset(out->data, 0xff, tensor_bytes(out));
            f->operands[ATTN_ROLE_C_KV] = f->operands[ATTN_ROLE_K_PE] = NULL;
            f->args.flags = 0;
            run(c, 1, seed % 4 == 3);
            ck_assert_msg(memcmp(first, out->data, tensor_bytes(out)) == 0, "%s", c->what);
            ck_assert_msg(memcmp(first_lse, lse->data, tensor_bytes(lse)) == 0, "%s", c->what);
        }
        free(first);
        free(first_lse);
        case_free(c);
    }
}

/* ---- Rounded probabilities ------------------------------------------------------------------- */

static int may_round(const struct mla_case *c)
{
    const attn_problem *problem = &c->f.problem;
    return problem->mla_expanded == 0 && problem->q_dtype == ATTN_BF16 &&
           problem->kv_dtype == ATTN_BF16;
}

/* One of whose probabilities are rounded, if the processor can. */
static struct mla_case *rounding_case(uint64_t n)
{
    uint64_t seed = n * 5 % PLAIN_CASES;
    struct mla_case *c = case_of(seed);
    while (!may_round(c)) {
        case_free(c);
        c = case_of(seed = (seed + 1) % PLAIN_CASES);
    }
    c->rounds = 1;
    return c;
}

static int multiplies_bf16(void)
{
#if defined(__x86_64__) && (__GNUC__ >= 10 || __clang_major__ >= 9)
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return 0;
#endif
}

static double largest_latent(const struct mla_case *c)
{
    double largest = 0;
    for (int32_t s = 0; s < c->f.batch.num_seqs; s++) {
        int64_t count = (int64_t)c->f.sequences[s].kv_len * c->dims.kv_lora_rank;
        for (int64_t n = 0; n < count; n++)
            largest = fmax(largest, fabs(c->sequences[s].c_kv[n]));
    }
    return largest;
}

/* A probability is off by 2^-9 of itself at most, so an output by that of the largest value; both
 * outputs are rounded. Sums, and the LSE with them, are of the exact ones. Returns 1 if the outputs
 * differ. */
static int check_rounding(struct mla_case *c)
{
    attn_tensor *out = &c->f.tensors[ATTN_ROLE_OUT], *lse = &c->f.tensors[ATTN_ROLE_LSE];
    const size_t bytes = tensor_bytes(out), lse_bytes = tensor_bytes(lse);
    attn_tensor exact = *out;
    char *exact_lse = malloc(lse_bytes);
    exact.data = malloc(bytes);
    run(c, 2, 0);
    memcpy(exact.data, out->data, bytes);
    memcpy(exact_lse, lse->data, lse_bytes);
    c->rounds = 0;
    run(c, 1, 0);
    const double bar = ldexp(largest_latent(c), -9);
    for (int64_t row = 0; row < c->f.q_indptr[c->f.batch.num_seqs]; row++)
        for (int64_t head = 0; head < out->shape[1]; head++)
            for (int64_t d = 0; d < out->shape[2]; d++) {
                double a = dtype_load(out->dtype, fixture_at(out, row, head, 0), d);
                double b = dtype_load(out->dtype, fixture_at(&exact, row, head, 0), d);
                ck_assert_msg(fabs(a - b) <= bar + ldexp(fmax(fabs(a), fabs(b)), -8),
                              "%s: %g, rounded %g", c->what, a, b);
            }
    ck_assert_msg(memcmp(lse->data, exact_lse, lse_bytes) == 0, "%s: LSE", c->what);
    const int differ = memcmp(out->data, exact.data, bytes) != 0;
    free(exact.data);
    free(exact_lse);
    return differ;
}

TEST_OF(oracle, rounded_probabilities)
{
    int differ = 0;
    for (uint64_t n = 0; n < 16; n++) {
        struct mla_case *c = rounding_case(n);
        differ += check_rounding(c);
        case_free(c);
    }
    if (multiplies_bf16())
        ck_assert_int_ge(differ, 8); /* not where a query sees a single key */
    else
        puts("not rounded: this processor has no AVX512-BF16");
}

/* ---- Many heads ------------------------------------------------------------------------------ */

/* A head by itself gives the bits that it has among others. */
LOOP_OF(oracle, rows_by_themselves, 0, 12)
{
    struct mla_case *c = _i < 8 ? case_of(1 + 4 * (uint64_t)_i) : rounding_case((uint64_t)_i);
    while (c->f.problem.mla_expanded != 0) {
        uint64_t seed = c->random;
        case_free(c);
        c = case_of(seed);
    }
    fixture *f = &c->f;
    attn_tensor *out = &f->tensors[ATTN_ROLE_OUT];
    int64_t heads = f->group.num_q_heads;
    size_t bytes = (size_t)out->shape[2] * attn_dtype_size(out->dtype);
    char *all = malloc(tensor_bytes(out));
    f->args.flags = 0;
    f->group.flags = 0;
    run(c, 1, 0);
    memcpy(all, out->data, tensor_bytes(out));
    f->group.num_q_heads = f->group.num_kv_heads = 1;
    const uint32_t roles[] = {ATTN_ROLE_OUT, ATTN_ROLE_LSE, ATTN_ROLE_Q_NOPE, ATTN_ROLE_Q_PE};
    for (int i = 0; i < 4; i++)
        f->tensors[roles[i]].shape[1] = 1;
    for (int64_t head = 0; head < heads; head++) {
        run(c, 1, 0);
        for (int64_t row = 0; row < f->q_indptr[f->batch.num_seqs]; row++)
            ck_assert_msg(
                memcmp(fixture_at(out, row, 0, 0),
                       all + ((const char *)fixture_at(out, row, 0, 0) - (const char *)out->data),
                       bytes) == 0,
                "%s: row %lld of head %lld", c->what, (long long)row, (long long)head);
        for (int i = 0; i < 4; i++) {
            attn_tensor *tensor = &f->tensors[roles[i]];
            tensor->byte_offset += (uint64_t)tensor->strides[1] * attn_dtype_size(tensor->dtype);
        }
    }
    for (int i = 0; i < 4; i++)
        f->tensors[roles[i]].byte_offset = 0;
    free(all);
    case_free(c);
}

/* NaN in the last new latent changes the last query of its sequence alone. */
LOOP_OF(oracle, hidden_nan, 0, 12)
{
    uint64_t seed = (uint64_t)(_i % 8) * (CASES / 8);
    const int64_t isa = _i < 8 ? _i % 2 : 0;
    struct mla_case *c = case_of(seed);
    while (c->f.problem.mla_expanded != 0 || c->f.sequences[0].num_queries < 2 ||
           c->f.sequences[0].num_new < 1 || (_i >= 8 && !may_round(c))) {
        case_free(c);
        c = case_of(_i < 8 ? ++seed : ++seed % PLAIN_CASES);
    }
    c->rounds = _i >= 8;
    fixture *f = &c->f;
    attn_tensor *out = &f->tensors[ATTN_ROLE_OUT], *c_kv = &f->tensors[ATTN_ROLE_C_KV];
    size_t row = (size_t)out->strides[0] * attn_dtype_size(out->dtype), all = tensor_bytes(out);
    size_t last = (size_t)f->q_indptr[1] - 1;
    char *kept = malloc(all);
    f->args.flags = 0;
    run(c, 1, isa);
    memcpy(kept, out->data, all);
    for (int32_t d = 0; d < c->dims.kv_lora_rank; d++)
        dtype_store(c_kv->dtype, fixture_at(c_kv, f->new_indptr[1] - 1, 0, 0), d, NAN);
    run(c, 1, isa);
    ck_assert_msg(memcmp(kept, out->data, last * row) == 0, "%s", c->what);
    ck_assert_msg(memcmp(kept + last * row, (char *)out->data + last * row, row) != 0, "%s",
                  c->what);
    ck_assert_msg(memcmp(kept + (last + 1) * row, (char *)out->data + (last + 1) * row,
                         all - (last + 1) * row) == 0,
                  "%s", c->what);
    free(kept);
    case_free(c);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static attn_reason reasons[16];

static attn_verdict ask(struct mla_case *c)
{
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 16, .reasons = reasons};
    for (int i = 0; i < 16; i++)
        reasons[i].struct_size = sizeof reasons[i];
    ck_assert_int_eq(type->query(type, NULL, NULL, &c->f.problem, &verdict, &error.base), ATTN_OK);
    return verdict;
}

/* One reason, and it is this one. */
static void refuses(struct mla_case *c, uint32_t code, uint32_t field, const char *accepted)
{
    attn_verdict verdict = ask(c);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 1);
    ck_assert_uint_eq(reasons[0].code, code);
    ck_assert_uint_eq(reasons[0].field, field);
    ck_assert_str_eq(reasons[0].accepted, accepted);
}

static struct mla_case *plain(void)
{
    struct mla_case *c = case_of(1);
    fixture *f = &c->f;
    f->problem.kv_dtype = f->problem.q_dtype;
    f->group.kv_scale_granularity = ATTN_SCALE_NONE;
    c->dims = (attn_mla_dims){sizeof c->dims, 512, 64, 128};
    f->group.head_dim = 192;
    f->group.v_head_dim = 128;
    ck_assert_uint_eq(ask(c).supported, 1);
    return c;
}

/* A probability that is rounded once is what the pass rule is made for: sums stay fp32. */
TEST_OF(refused, rounding_is_no_reduced_precision)
{
    struct mla_case *c = plain();
    attn_option_value value = {sizeof value, .key = "round_probabilities", .integer = 1,
                               .text = ""};
    attn_options options = {.struct_size = sizeof options, .num_values = 1, .values = &value};
    for (int n = 0; n < 4; n++) {
        attn_verdict verdict = {.struct_size = sizeof verdict};
        value.integer = n % 2;
        c->f.problem.q_dtype = c->f.problem.kv_dtype = n < 2 ? ATTN_F32 : ATTN_BF16;
        ck_assert_int_eq(type->query(type, &options, NULL, &c->f.problem, &verdict, &error.base),
                         ATTN_OK);
        ck_assert_uint_eq(verdict.supported, 1);
        ck_assert_int_eq(verdict.notes & ATTN_NOTE_REDUCED_PRECISION, 0);
    }
    case_free(c);
}

TEST_OF(refused, reasons_of_a_refusal)
{
    struct mla_case *c = plain();
    fixture *f = &c->f;
    c->dims.kv_lora_rank = 513;
    refuses(c, ATTN_REASON_HEAD_DIM, ATTN_FIELD_KV_LORA_RANK, "1..512");
    c->dims.kv_lora_rank = 512;
    c->dims.nope_dim = 127;
    refuses(c, ATTN_REASON_HEAD_DIM, ATTN_FIELD_HEAD_DIM, "191");
    c->dims.nope_dim = 128;
    f->problem.kv_layout = ATTN_LAYOUT_KV_NHD;
    refuses(c, ATTN_REASON_KV_LAYOUT, ATTN_FIELD_KV_LAYOUT, ATTN_LAYOUT_MLA_LATENT);
    f->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT_FP8;
    refuses(c, ATTN_REASON_DTYPE, ATTN_FIELD_KV_DTYPE, "fp8_e4m3");
    f->problem.kv_dtype = ATTN_FP8_E4M3;
    ck_assert_uint_eq(ask(c).supported, 1);
    f->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    refuses(c, ATTN_REASON_SCALE_GRANULARITY, ATTN_FIELD_SCALE_GRANULARITY, "none");
    f->group.kv_scale_granularity = ATTN_SCALE_NONE;
    c->dims.kv_lora_rank = 320;
    refuses(c, ATTN_REASON_HEAD_DIM, ATTN_FIELD_KV_LORA_RANK, "128..512/128");
    c->dims.kv_lora_rank = 512;
    f->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT;
    f->problem.kv_dtype = f->problem.q_dtype;
    f->group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    refuses(c, ATTN_REASON_ATTN_TYPE, ATTN_FIELD_ATTN_TYPE, "decoder");
    f->group.attn_type = ATTN_TYPE_DECODER;
    f->problem.kv_dtype = ATTN_FP8_E4M3;
    f->group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    refuses(c, ATTN_REASON_SCALE_GRANULARITY, ATTN_FIELD_SCALE_GRANULARITY, "per_tensor");
    f->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    ck_assert_uint_eq(ask(c).supported, 1);
    f->problem.mla_expanded = 1u << ATTN_MODE_COUNT;
    refuses(c, ATTN_REASON_MLA_FORM, ATTN_FIELD_MLA_EXPANDED,
            "extend, decode, mixed, idle, target_verify, draft_extend");
    f->group.mla = NULL;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    ck_assert_int_eq(type->query(type, NULL, NULL, &f->problem, &verdict, &error.base),
                     ATTN_INVALID_ARGUMENT);
    case_free(c);
}

GROUP(oracle, .set_up_once = open_plugin, .timeout = 120);
GROUP(refused, .set_up_once = open_plugin);
TESTS("cpu_native_mla");
