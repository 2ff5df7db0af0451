/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle of latent attention against DeepSeek V3's own code in float64 (tests/golden/mla.txt):
 * the absorbed form, the expanded one at once and in chunks, quantised caches to the bit; and what
 * it refuses.
 */
#include "tests/tools/golden_file.h"
#include "tests/tools/mla_fixture.h"
#include "tests/tools/test_main.h"

#define TOLERANCE 1e-12

static const int32_t page_sizes[] = {1, 16, 32, 64, 128};

/* A case: its arrays as numbers, and a batch of it. */
struct golden_mla {
    fixture f;
    attn_mla_dims dims;
    const golden_case *record;
    int32_t heads, v_dim, tokens, kv_len;
    double *arrays[8];
    int num_arrays;
    mla_sequence sequence;
    float scale;
};

/* ---- A batch of a case ----------------------------------------------------------------------- */

static double *in_units(struct golden_mla *g, const char *key)
{
    int64_t count;
    const double *values = golden_find(g->record, key, &count);
    if (!values)
        return NULL;
    double *scaled = calloc((size_t)count + 1, sizeof *scaled);
    for (int64_t n = 0; n < count; n++)
        scaled[n] = values[n] / 4096;
    g->arrays[g->num_arrays++] = scaled;
    return scaled;
}

static int32_t integer(const struct golden_mla *g, const char *key)
{
    return (int32_t)golden_number(g->record, key);
}

static void golden_mla_init(struct golden_mla *g, const golden_case *record)
{
    memset(g, 0, sizeof *g);
    g->record = record;
    g->dims =
        (attn_mla_dims){sizeof g->dims, integer(g, "lora"), integer(g, "rope"), integer(g, "nope")};
    g->heads = integer(g, "heads");
    g->v_dim = integer(g, "v_dim");
    g->tokens = integer(g, "tokens");
    g->kv_len = integer(g, "kv_len");
    g->sequence = (mla_sequence){in_units(g, "q_nope"), in_units(g, "q_pe"), in_units(g, "c_kv"),
                                 in_units(g, "k_pe"),   in_units(g, "q"),    in_units(g, "k"),
                                 in_units(g, "v")};
}

static void golden_mla_finish(struct golden_mla *g)
{
    for (int n = 0; n < g->num_arrays; n++)
        free(g->arrays[n]);
}

/* The cached rows of a quantised cache are the authors'. */
static void put_bytes(struct golden_mla *g)
{
    int64_t count;
    const double *bytes = golden_get(g->record, "bytes", &count);
    const attn_tensor *cache = &g->f.tensors[ATTN_ROLE_LATENT_CACHE];
    ck_assert_int_eq(count, g->kv_len * cache->shape[2]);
    for (int64_t j = 0; j < g->f.sequences[0].kv_len - g->f.sequences[0].num_new; j++) {
        char *to = mla_slot(&g->f, cache, g->f.req_to_token[g->f.requests[0]][j]);
        for (int64_t n = 0; n < cache->shape[2]; n++)
            to[n] = (char)(uint8_t)bytes[j * cache->shape[2] + n];
    }
}

/* The first `end` keys, the last num_new of them new, and all queries. */
static void begin(struct golden_mla *g, uint32_t mode, int expanded, int32_t page_size, int32_t end,
                  int32_t num_new)
{
    fixture *f = &g->f;
    mla_init(f, g->heads, &g->dims, g->v_dim);
    f->group.sm_scale = (float)golden_number(g->record, "sm_scale");
    f->problem.page_size = page_size;
    f->problem.mla_expanded = expanded ? ATTN_MODE_BIT(mode) : ~ATTN_MODE_BIT(mode);
    f->batch.mode = mode;
    f->with_new_indptr = 1;
    fixture_sequence *sequence = mla_add(f, g->tokens, end);
    sequence->num_new = num_new;
    sequence->prefix_len = g->kv_len - g->tokens;
    int packed = golden_find(g->record, "packed", NULL) != NULL;
    if (packed || golden_find(g->record, "fp8", NULL))
        f->problem.kv_dtype = ATTN_FP8_E4M3;
    if (packed) {
        f->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT_FP8;
    } else if (f->problem.kv_dtype == ATTN_FP8_E4M3) {
        g->scale = (float)golden_number(g->record, "scale");
        f->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
        f->scales[ATTN_ROLE_LATENT_CACHE] =
            (attn_scale){sizeof(attn_scale), ATTN_SCALE_PER_TENSOR, 1, 0, &g->scale, NULL};
    }
    mla_build(f, &g->sequence);
    if (f->problem.kv_dtype == ATTN_FP8_E4M3)
        put_bytes(g);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void assert_near(const struct golden_mla *g, const char *what, int64_t n, double actual,
                        double expected)
{
    ck_assert_msg(fabs(actual - expected) <= TOLERANCE * fmax(1, fabs(expected)),
                  "%s: %s[%lld] is %.17g, not %.17g", g->record->name, what, (long long)n, actual,
                  expected);
}

static void assert_all_near(const struct golden_mla *g, const char *key, const double *actual,
                            int64_t count)
{
    int64_t expected_count;
    const double *expected = golden_get(g->record, key, &expected_count);
    ck_assert_int_eq(count, expected_count);
    for (int64_t n = 0; n < count; n++)
        assert_near(g, key, n, actual[n], expected[n]);
}

static void check_lse(const struct golden_mla *g, const reference_result *result)
{
    const double *lse = golden_get(g->record, "lse", NULL);
    for (int64_t n = 0; n < result->num_rows * result->num_heads; n++)
        assert_near(g, "lse", n, result->rows[n].lse, lse[n]);
}

/* The latent output is right, and after W_UV it is the module's. */
static void check_absorbed(struct golden_mla *g, const reference_options *options)
{
    reference_result result = fixture_forward(&g->f, options);
    int32_t lora = g->dims.kv_lora_rank;
    ck_assert_int_eq(result.v_head_dim, lora);
    assert_all_near(g, "latent", result.out, (int64_t)g->tokens * g->heads * lora);
    check_lse(g, &result);
    const double *w_uv = golden_get(g->record, "w_uv", NULL);
    const double *expected = golden_get(g->record, "out", NULL);
    for (int64_t n = 0; n < (int64_t)g->tokens * g->heads * g->v_dim; n++) {
        int64_t row = n / g->v_dim, weights = row % g->heads * g->v_dim + n % g->v_dim;
        double sum = 0;
        for (int32_t d = 0; d < lora; d++)
            sum += w_uv[weights * lora + d] / 4096 * result.out[row * lora + d];
        assert_near(g, "out", n, sum, expected[n]);
    }
    reference_result_finish(&result);
}

/* ---- The forms ------------------------------------------------------------------------------- */

/* `check` for each case; returns how many there were. */
static int for_each_case(void (*check)(struct golden_mla *g, int32_t page_size), int32_t page_size,
                         const char *needs)
{
    golden_case record;
    FILE *file = golden_open("mla.txt");
    int cases = 0;
    while (golden_next(file, &record)) {
        if (!needs || golden_find(&record, needs, NULL)) {
            struct golden_mla *g = malloc(sizeof *g);
            golden_mla_init(g, &record);
            check(g, page_size);
            golden_mla_finish(g);
            free(g);
            cases++;
        }
        golden_finish(&record);
    }
    fclose(file);
    return cases;
}

static void absorbed_of_case(struct golden_mla *g, int32_t page_size)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_TARGET_VERIFY, ATTN_MODE_DECODE};
    for (int m = 0; m < (g->tokens == 1 ? 3 : 2); m++) {
        begin(g, modes[m], 0, page_size, g->kv_len, g->tokens);
        for (uint32_t form = 0; form < 3; form++)
            check_absorbed(g, &(reference_options){.index_form = 1u << form});
        g->f.args.flags = 0;
        check_absorbed(g, NULL);
        fixture_finish(&g->f);
    }
}

LOOP_OF(golden, absorbed_form, 0, 5)
{
    ck_assert_int_eq(for_each_case(absorbed_of_case, page_sizes[_i], NULL), 12);
}

/* All rows saved by one forward are read by the next. */
static void cached_of_case(struct golden_mla *g, int32_t page_size)
{
    int64_t place[4];
    begin(g, ATTN_MODE_EXTEND, 0, page_size, g->kv_len, g->kv_len);
    fixture *f = &g->f;
    attn_tensor *cache = &f->tensors[ATTN_ROLE_LATENT_CACHE];
    attn_tensor before = *cache;
    before.data =
        malloc((size_t)(cache->shape[0] * cache->strides[0]) * attn_dtype_size(cache->dtype));
    memcpy(before.data, cache->data,
           (size_t)(cache->shape[0] * cache->strides[0]) * attn_dtype_size(cache->dtype));
    check_absorbed(g, NULL);
    ck_assert_int_eq(
        reference_expected_kv(&f->problem, &f->batch, 3, &f->args, cache, NULL, &f->error.base),
        ATTN_OK);
    ck_assert_int_gt(reference_compare_kv(&f->problem, cache, &before, place), 0);
    free(before.data);
    f->operands[ATTN_ROLE_C_KV] = f->operands[ATTN_ROLE_K_PE] = NULL;
    check_absorbed(g, NULL);
    if (f->problem.kv_dtype == ATTN_FP8_E4M3) {
        const double *bytes = golden_get(g->record, "bytes", NULL);
        for (int64_t n = 0; n < g->kv_len * cache->shape[2]; n++) {
            int64_t slot = f->req_to_token[f->requests[0]][n / cache->shape[2]];
            uint8_t byte = (uint8_t)mla_slot(f, cache, slot)[n % cache->shape[2]];
            ck_assert_msg(byte == (uint8_t)bytes[n], "%s: byte %lld of key %lld", g->record->name,
                          (long long)(n % cache->shape[2]), (long long)(n / cache->shape[2]));
        }
    }
    fixture_finish(f);
}

LOOP_OF(golden, cached, 0, 5)
{
    ck_assert_int_eq(for_each_case(cached_of_case, page_sizes[_i], NULL), 12);
}

/* The partial result of keys first..end, given expanded. The cache is not looked at. */
static reference_result expanded_part(struct golden_mla *g, int32_t first, int32_t end,
                                      int is_chunk)
{
    static const attn_mask none = {.struct_size = sizeof none, .kind = ATTN_MASK_NONE};
    begin(g, ATTN_MODE_EXTEND, 1, 16, end, end - first);
    fixture *f = &g->f;
    f->args.flags = 0;
    f->kv.index_forms = 0;
    for (uint32_t role = ATTN_ROLE_C_KV; role <= ATTN_ROLE_LATENT_CACHE; role++)
        f->operands[role] = NULL;
    f->batch.mask = is_chunk ? &none : NULL;
    reference_result result = fixture_forward(f, NULL);
    fixture_finish(f);
    f->batch.mask = NULL;
    return result;
}

static void expanded_of_case(struct golden_mla *g, int32_t chunk)
{
    int32_t prefix = g->kv_len - g->tokens;
    reference_result sum = expanded_part(g, chunk ? prefix : 0, g->kv_len, 0);
    ck_assert_int_eq(sum.v_head_dim, g->v_dim);
    for (int32_t first = 0; chunk && first < prefix; first += chunk) {
        int32_t end = first + chunk < prefix ? first + chunk : prefix;
        reference_result part = expanded_part(g, first, end, 1);
        for (int64_t n = 0; n < (int64_t)g->tokens * g->heads; n++) {
            ck_assert_int_eq(part.rows[n].num_seen, end - first);
            reference_merge(g->v_dim, sum.out + n * g->v_dim, sum.rows[n].lse,
                            part.out + n * g->v_dim, part.rows[n].lse, sum.out + n * g->v_dim,
                            &sum.rows[n].lse);
        }
        reference_result_finish(&part);
    }
    assert_all_near(g, "out", sum.out, (int64_t)g->tokens * g->heads * g->v_dim);
    check_lse(g, &sum);
    reference_result_finish(&sum);
}

LOOP_OF(golden, expanded_form, 0, 4)
{
    static const int32_t chunks[] = {0, 1, 4, 100};
    ck_assert_int_eq(for_each_case(expanded_of_case, chunks[_i], "k"), 9);
}

/* The expanded form saves latents, too, and reads none. */
static void saved_expanded_of_case(struct golden_mla *g, int32_t page_size)
{
    begin(g, ATTN_MODE_EXTEND, 1, page_size, g->kv_len, g->kv_len);
    fixture *f = &g->f;
    reference_result result = fixture_forward(f, NULL);
    assert_all_near(g, "out", result.out, (int64_t)g->tokens * g->heads * g->v_dim);
    reference_result_finish(&result);
    attn_tensor *cache = &f->tensors[ATTN_ROLE_LATENT_CACHE];
    ck_assert_int_eq(
        reference_expected_kv(&f->problem, &f->batch, 3, &f->args, cache, NULL, &f->error.base),
        ATTN_OK);
    for (int64_t j = 0; j < g->kv_len; j++) {
        const float *row =
            (const float *)(const void *)mla_slot(f, cache, f->req_to_token[f->requests[0]][j]);
        for (int64_t d = 0; d < cache->shape[2]; d++) {
            int64_t lora = g->dims.kv_lora_rank, rope = g->dims.rope_dim;
            double x =
                d < lora ? g->sequence.c_kv[j * lora + d] : g->sequence.k_pe[j * rope + d - lora];
            ck_assert_double_eq((double)row[d], x);
        }
    }
    fixture_finish(f);
}

LOOP_OF(golden, saved_expanded, 0, 5)
{
    ck_assert_int_eq(for_each_case(saved_expanded_of_case, page_sizes[_i], "k"), 9);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

enum { LORA = 128, ROPE = 2, NOPE = 3, HEADS = 2, V_DIM = 4 };

static const attn_mla_dims small = {sizeof small, LORA, ROPE, NOPE};

static void begin_small(fixture *f, uint32_t expanded, const char *layout)
{
    static const double zeros[4 * LORA * HEADS];
    mla_sequence sequence = {zeros, zeros, zeros, zeros, zeros, zeros, zeros};
    mla_init(f, HEADS, &small, V_DIM);
    f->problem.mla_expanded = expanded;
    f->problem.kv_layout = layout;
    if (mla_is_packed(f))
        f->problem.kv_dtype = ATTN_FP8_E4M3;
    mla_add(f, 2, 3);
    mla_build(f, &sequence);
}

LOOP_OF(refusals, missing_operands, 0, 11)
{
    static const struct {
        uint32_t expanded, role;
        const char *name;
    } needed[] = {{0, ATTN_ROLE_Q_NOPE, "q_nope"},
                  {0, ATTN_ROLE_Q_PE, "q_pe"},
                  {0, ATTN_ROLE_C_KV, "c_kv"},
                  {0, ATTN_ROLE_K_PE, "k_pe"},
                  {0, ATTN_ROLE_LATENT_CACHE, "latent_cache"},
                  {~0u, ATTN_ROLE_Q, "q"},
                  {~0u, ATTN_ROLE_K, "k"},
                  {~0u, ATTN_ROLE_V, "v"},
                  {~0u, ATTN_ROLE_C_KV, "c_kv"},
                  {~0u, ATTN_ROLE_K_PE, "k_pe"},
                  {~0u, ATTN_ROLE_LATENT_CACHE, "latent_cache"}};
    fixture *f = malloc(sizeof *f);
    begin_small(f, needed[_i].expanded, ATTN_LAYOUT_MLA_LATENT);
    reference_result result = fixture_forward(f, NULL);
    reference_result_finish(&result);
    f->operands[needed[_i].role] = NULL;
    char text[64];
    snprintf(text, sizeof text, "operand %s is missing", needed[_i].name);
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, text);
    fixture_finish(f);
    free(f);
}

TEST_OF(refusals, senseless_groups)
{
    fixture *f = malloc(sizeof *f);
    begin_small(f, 0, ATTN_LAYOUT_MLA_LATENT);
    attn_mla_dims other = small;
    f->group.mla = NULL;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "no mla dimensions");
    f->group.mla = &other;
    other.rope_dim = -1;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "rope_dim -1");
    other.rope_dim = ROPE + 1;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "head_dim 5: accepted nope_dim + rope_dim, 6");
    f->group.mla = &small;
    f->group.attn_type = ATTN_TYPE_CROSS;
    fixture_refuse(f, ATTN_UNSUPPORTED, "attn_type 2");
    f->group.attn_type = ATTN_TYPE_DECODER;
    f->problem.kv_layout = ATTN_LAYOUT_KV_NHD;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "kv_layout kv.nhd/1");
    f->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT;
    f->layer.flags = ATTN_LAYER_KV_READ_ONLY;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "accepted no c_kv and k_pe");
    fixture_finish(f);
    free(f);
}

TEST_OF(refusals, senseless_scales)
{
    fixture *f = malloc(sizeof *f);
    begin_small(f, 0, ATTN_LAYOUT_MLA_LATENT_FP8);
    f->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT,
                   "kv_scale_granularity 1 of a latent cache: accepted 0");
    f->group.kv_scale_granularity = ATTN_SCALE_NONE;
    f->problem.kv_dtype = ATTN_BF16;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "kv_dtype bf16");
    fixture_finish(f);
    begin_small(f, 0, ATTN_LAYOUT_MLA_LATENT);
    f->problem.kv_dtype = f->tensors[ATTN_ROLE_LATENT_CACHE].dtype = ATTN_FP8_E4M3;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT,
                   "kv_scale_granularity 0 of a latent cache: accepted 1");
    f->group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT,
                   "kv_scale_granularity 2 of a latent cache: accepted 1");
    f->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "the scale of latent_cache is missing");
    fixture_finish(f);
    free(f);
}

/* A layer that only reads may be called expanded, but not to save. */
TEST_OF(refusals, read_only_expanded)
{
    fixture *f = malloc(sizeof *f);
    begin_small(f, ~0u, ATTN_LAYOUT_MLA_LATENT);
    f->layer.flags = ATTN_LAYER_KV_READ_ONLY;
    fixture_refuse(f, ATTN_INVALID_ARGUMENT, "accepted no SAVE_KV");
    f->args.flags = 0;
    reference_result result = fixture_forward(f, NULL);
    reference_result_finish(&result);
    fixture_finish(f);
    free(f);
}

TESTS("reference_mla");
