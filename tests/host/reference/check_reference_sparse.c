/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle of sparse latent attention against DeepSeek V3.2's own code in float64
 * (tests/golden/sparse.txt): logits, choices and outputs, chosen by the oracle and given, labels in
 * fp32 and e4m3 to the bit; what it says of choices that are wrong; and what it refuses.
 */
#include "host/reference/sparse.h"
#include "tests/tools/golden_file.h"
#include "tests/tools/mla_fixture.h"
#include "tests/tools/test_main.h"

#define TOLERANCE 1e-12

static const int32_t page_sizes[] = {1, 4, 16, 64};
enum { PAGE_SIZES = sizeof page_sizes / sizeof *page_sizes };

/* A case, and a batch of it. */
struct golden_sparse {
    fixture f;
    attn_mla_dims dims;
    attn_sparse_dims sparse;
    const golden_case *record;
    int32_t heads, tokens, kv_len, v_dim;
    double *arrays[8];
    int num_arrays;
    mla_sequence sequence;
    const double *index_q, *index_k;
};

/* ---- A batch of a case ----------------------------------------------------------------------- */

static double *in_units(struct golden_sparse *g, const char *key)
{
    int64_t count;
    const double *values = golden_get(g->record, key, &count);
    double *scaled = calloc((size_t)count + 1, sizeof *scaled);
    for (int64_t n = 0; n < count; n++)
        scaled[n] = values[n] / 4096;
    g->arrays[g->num_arrays++] = scaled;
    return scaled;
}

static int32_t integer(const struct golden_sparse *g, const char *key)
{
    return (int32_t)golden_number(g->record, key);
}

static int has_codes(const struct golden_sparse *g)
{
    return integer(g, "codes");
}

static void golden_sparse_init(struct golden_sparse *g, const golden_case *record)
{
    memset(g, 0, sizeof *g);
    g->record = record;
    g->dims =
        (attn_mla_dims){sizeof g->dims, integer(g, "lora"), integer(g, "rope"), integer(g, "nope")};
    g->sparse = (attn_sparse_dims){.struct_size = sizeof g->sparse,
                                   .index_kind = ATTN_SPARSE_TOKEN,
                                   .top_k = integer(g, "top_k"),
                                   .block_size = 1,
                                   .label_dim = integer(g, "label"),
                                   .label_dtype = has_codes(g) ? ATTN_FP8_E4M3 : ATTN_F32,
                                   .index_heads = integer(g, "index_heads"),
                                   .index_dtype = ATTN_F32};
    g->heads = integer(g, "heads");
    g->tokens = integer(g, "tokens");
    g->kv_len = integer(g, "kv_len");
    g->v_dim = integer(g, "v_dim");
    g->sequence = (mla_sequence){in_units(g, "q_nope"),
                                 in_units(g, "q_pe"),
                                 in_units(g, "c_kv"),
                                 in_units(g, "k_pe"),
                                 NULL,
                                 NULL,
                                 NULL};
    g->index_q = in_units(g, "index_q");
    g->index_k = in_units(g, "index_k");
}

static void golden_sparse_finish(struct golden_sparse *g)
{
    for (int n = 0; n < g->num_arrays; n++)
        free(g->arrays[n]);
}

/* The label of key `j` as the authors' cache has it, byte by byte. */
static void put_label(struct golden_sparse *g, const attn_tensor *cache, int64_t slot, int64_t j)
{
    int64_t page_size = g->f.problem.page_size, offset = slot % page_size;
    int32_t dim = g->sparse.label_dim;
    char *page = (char *)cache->data +
                 slot / page_size * cache->strides[0] * (int64_t)attn_dtype_size(cache->dtype);
    for (int32_t d = 0; d < dim; d++)
        if (has_codes(g))
            page[offset * dim + d] =
                (char)(uint8_t)golden_get(g->record, "label_codes", NULL)[j * dim + d];
        else
            ((float *)(void *)page)[offset * dim + d] = (float)g->index_k[j * dim + d];
    if (has_codes(g)) {
        float scale = (float)golden_get(g->record, "label_scales", NULL)[j];
        memcpy(page + page_size * dim + offset * (int64_t)sizeof scale, &scale, sizeof scale);
    }
}

static int64_t slot_of(const struct golden_sparse *g, int64_t j)
{
    return g->f.req_to_token[g->f.requests[0]][j];
}

static attn_tensor *add_label_cache(struct golden_sparse *g)
{
    fixture *f = &g->f;
    int64_t page = f->problem.page_size, pages = f->tensors[ATTN_ROLE_LATENT_CACHE].shape[0];
    int64_t dim = g->sparse.label_dim;
    attn_tensor *cache =
        has_codes(g)
            ? fixture_tensor(f, ATTN_ROLE_LABEL_CACHE, ATTN_U8, 2,
                             (int64_t[]){pages, page * (dim + (int64_t)sizeof(float))})
            : fixture_tensor(f, ATTN_ROLE_LABEL_CACHE, ATTN_F32, 3, (int64_t[]){pages, page, dim});
    memset(cache->data, 0xff, (size_t)(pages * cache->strides[0]) * attn_dtype_size(cache->dtype));
    return cache;
}

/* Operands of the indexer; labels before the new keys are in the cache. */
static void add_index(struct golden_sparse *g)
{
    fixture *f = &g->f;
    int64_t heads = g->sparse.index_heads, dim = g->sparse.label_dim, tokens = g->tokens;
    int64_t num_new = f->sequences[0].num_new, first_new = g->kv_len - num_new;
    attn_tensor *q =
        fixture_tensor(f, ATTN_ROLE_INDEX_Q, ATTN_F32, 3, (int64_t[]){tokens, heads, dim});
    attn_tensor *weights =
        fixture_tensor(f, ATTN_ROLE_INDEX_WEIGHTS, ATTN_F32, 2, (int64_t[]){tokens, heads});
    attn_tensor *k = fixture_tensor(f, ATTN_ROLE_INDEX_K, ATTN_F32, 2, (int64_t[]){num_new, dim});
    attn_tensor *cache = add_label_cache(g);
    dtype_from_double(ATTN_F32, g->index_q, tokens * heads * dim, q->data);
    dtype_from_double(ATTN_F32, golden_get(g->record, "weights", NULL), tokens * heads,
                      weights->data);
    dtype_from_double(ATTN_F32, g->index_k + first_new * dim, num_new * dim, k->data);
    for (int64_t j = 0; j < first_new; j++)
        put_label(g, cache, slot_of(g, j), j);
}

/* Which keys a query chooses, as slots, from the last to the first. */
static void add_choice(struct golden_sparse *g, int with_count)
{
    int64_t top_k = g->sparse.top_k, tokens = g->tokens;
    const double *chosen = golden_get(g->record, "chosen", NULL);
    int32_t *indices =
        fixture_tensor(&g->f, ATTN_ROLE_SPARSE_INDICES, ATTN_I32, 2, (int64_t[]){tokens, top_k})
            ->data;
    int32_t *counts =
        fixture_tensor(&g->f, ATTN_ROLE_SPARSE_COUNT, ATTN_I32, 1, (int64_t[]){tokens})->data;
    for (int64_t t = 0; t < tokens; t++) {
        int32_t count = 0;
        for (int64_t n = top_k; n-- > 0;)
            if (chosen[t * top_k + n] >= 0)
                indices[t * top_k + count++] = (int32_t)slot_of(g, (int64_t)chosen[t * top_k + n]);
        for (int64_t n = count; n < top_k; n++)
            indices[t * top_k + n] = -1;
        counts[t] = count;
    }
    if (!with_count)
        g->f.operands[ATTN_ROLE_SPARSE_COUNT] = NULL;
}

static void add_logits(struct golden_sparse *g)
{
    const double *logits = golden_get(g->record, "logits", NULL);
    attn_tensor *tensor = fixture_tensor(&g->f, ATTN_ROLE_INDEX_LOGITS, ATTN_F32, 2,
                                         (int64_t[]){g->tokens, g->kv_len + 3});
    for (int64_t t = 0; t < g->tokens; t++)
        dtype_from_double(ATTN_F32, logits + t * g->kv_len, g->kv_len, fixture_at(tensor, t, 0, 0));
}

static void begin(struct golden_sparse *g, uint32_t mode, int32_t page_size, int32_t num_new)
{
    fixture *f = &g->f;
    mla_init(f, g->heads, &g->dims, g->v_dim);
    f->group.kind = ATTN_KIND_SPARSE;
    f->group.sparse = &g->sparse;
    f->group.sm_scale = (float)golden_number(g->record, "sm_scale");
    f->problem.page_size = page_size;
    f->batch.mode = mode;
    f->with_new_indptr = 1;
    fixture_sequence *sequence = mla_add(f, g->tokens, g->kv_len);
    sequence->num_new = num_new;
    sequence->prefix_len = g->kv_len - g->tokens;
    mla_build(f, &g->sequence);
}

static int for_each_case(void (*check)(struct golden_sparse *g, int32_t page_size),
                         int32_t page_size)
{
    golden_case record;
    FILE *file = golden_open("sparse.txt");
    int cases = 0;
    while (golden_next(file, &record)) {
        struct golden_sparse *g = malloc(sizeof *g);
        golden_sparse_init(g, &record);
        check(g, page_size);
        golden_sparse_finish(g);
        free(g);
        golden_finish(&record);
        cases++;
    }
    fclose(file);
    return cases;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static void assert_near(const struct golden_sparse *g, const char *what, int64_t n, double actual,
                        double expected)
{
    ck_assert_msg(fabs(actual - expected) <= TOLERANCE * fmax(1, fabs(expected)),
                  "%s: %s[%lld] is %.17g, not %.17g", g->record->name, what, (long long)n, actual,
                  expected);
}

/* The latent output is right, and after W_UV it is the module's. */
static void check_output(struct golden_sparse *g, const reference_options *options)
{
    reference_result result = fixture_forward(&g->f, options);
    int32_t lora = g->dims.kv_lora_rank;
    const double *latent = golden_get(g->record, "latent", NULL);
    const double *lse = golden_get(g->record, "lse", NULL);
    const double *w_uv = golden_get(g->record, "w_uv", NULL);
    const double *out = golden_get(g->record, "out", NULL);
    for (int64_t n = 0; n < (int64_t)g->tokens * g->heads * lora; n++)
        assert_near(g, "latent", n, result.out[n], latent[n]);
    for (int64_t n = 0; n < (int64_t)g->tokens * g->heads; n++)
        assert_near(g, "lse", n, result.rows[n].lse, lse[n]);
    for (int64_t n = 0; n < (int64_t)g->tokens * g->heads * g->v_dim; n++) {
        int64_t row = n / g->v_dim, weights = row % g->heads * g->v_dim + n % g->v_dim;
        double sum = 0;
        for (int32_t d = 0; d < lora; d++)
            sum += w_uv[weights * lora + d] / 4096 * result.out[row * lora + d];
        assert_near(g, "out", n, sum, out[n]);
    }
    reference_result_finish(&result);
}

/* The oracle chooses: new labels from INDEX_K, all others from the cache. */
static void chosen_of_case(struct golden_sparse *g, int32_t page_size)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_TARGET_VERIFY, ATTN_MODE_DECODE};
    for (int m = 0; m < (g->tokens == 1 ? 3 : 2); m++) {
        begin(g, modes[m], page_size, g->tokens);
        add_index(g);
        for (uint32_t form = 0; form < 3; form++)
            check_output(g, &(reference_options){.index_form = 1u << form});
        fixture_finish(&g->f);
    }
}

LOOP_OF(sparse, chosen_here, 0, PAGE_SIZES)
{
    ck_assert_int_eq(for_each_case(chosen_of_case, page_sizes[_i]), 7);
}

/* The engine chooses; the indexer is not asked. */
static void given_of_case(struct golden_sparse *g, int32_t page_size)
{
    for (int with_count = 0; with_count < 2; with_count++) {
        begin(g, ATTN_MODE_EXTEND, page_size, g->tokens);
        add_choice(g, with_count);
        check_output(g, NULL);
        fixture_finish(&g->f);
    }
}

LOOP_OF(sparse, given, 0, PAGE_SIZES)
{
    ck_assert_int_eq(for_each_case(given_of_case, page_sizes[_i]), 7);
}

/* By logits that are given. */
static void logits_of_case(struct golden_sparse *g, int32_t page_size)
{
    begin(g, ATTN_MODE_EXTEND, page_size, g->tokens);
    add_logits(g);
    check_output(g, NULL);
    fixture_finish(&g->f);
}

LOOP_OF(sparse, by_logits, 0, PAGE_SIZES)
{
    ck_assert_int_eq(for_each_case(logits_of_case, page_sizes[_i]), 7);
}

/* New labels in the cache are the authors', and are read by the next forward. */
static void labels_of_case(struct golden_sparse *g, int32_t page_size)
{
    begin(g, ATTN_MODE_EXTEND, page_size, g->kv_len);
    fixture *f = &g->f;
    add_index(g);
    attn_tensor *cache = &f->tensors[ATTN_ROLE_LABEL_CACHE], saved = *cache;
    size_t bytes = (size_t)(cache->shape[0] * cache->strides[0]) * attn_dtype_size(cache->dtype);
    saved.data = malloc(bytes);
    memcpy(saved.data, cache->data, bytes);
    ck_assert_int_eq(
        reference_expected_labels(&f->problem, &f->batch, 3, &f->args, &saved, &f->error.base),
        ATTN_OK);
    ck_assert_int_gt(reference_compare_kv(&f->problem, cache, &saved, NULL), 0);
    for (int64_t j = 0; j < g->kv_len; j++)
        put_label(g, cache, slot_of(g, j), j);
    ck_assert_int_eq(reference_compare_kv(&f->problem, cache, &saved, NULL), 0);
    f->operands[ATTN_ROLE_INDEX_K] = NULL;
    check_output(g, NULL);
    free(saved.data);
    fixture_finish(f);
}

LOOP_OF(sparse, labels, 0, PAGE_SIZES)
{
    ck_assert_int_eq(for_each_case(labels_of_case, page_sizes[_i]), 7);
}

/* ---- Choices --------------------------------------------------------------------------------- */

static reference_choice_report judge(struct golden_sparse *g)
{
    reference_choice_report report = {0};
    fixture *f = &g->f;
    attn_status status =
        reference_check_choice(&f->problem, &f->batch, 3, &f->args, &report, &f->error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&f->error));
    return report;
}

static void begin_choice(struct golden_sparse *g, int32_t page_size, int index_only)
{
    begin(g, ATTN_MODE_EXTEND, page_size, g->tokens);
    add_index(g);
    add_choice(g, 1);
    add_logits(g);
    for (uint32_t role = 0; index_only && role < ATTN_ROLE_LABEL_CACHE; role++)
        g->f.operands[role] = NULL;
}

/* What the authors chose passes, in a whole call and in one that stops before attention. */
static void right_of_case(struct golden_sparse *g, int32_t page_size)
{
    for (int index_only = 0; index_only < 2; index_only++) {
        begin_choice(g, page_size, index_only);
        reference_choice_report report = judge(g);
        ck_assert_msg(report.message[0] == 0, "%s: %s", g->record->name, report.message);
        ck_assert_int_eq(report.rows_checked, g->tokens);
        ck_assert_int_eq(report.logits_checked, (int64_t)g->tokens * g->kv_len);
        g->f.operands[ATTN_ROLE_INDEX_Q] = g->f.operands[ATTN_ROLE_INDEX_K] = NULL;
        report = judge(g);
        ck_assert_int_eq(report.rows_checked - report.rows_failed, g->tokens);
        ck_assert_int_eq(report.logits_checked, 0);
        fixture_finish(&g->f);
    }
}

LOOP_OF(sparse, right, 0, PAGE_SIZES)
{
    ck_assert_int_eq(for_each_case(right_of_case, page_sizes[_i]), 7);
}

/* The last row of a case, whose choice a test spoils. */
struct last_row {
    int32_t *indices, *count;
    float *logits;
};

static struct last_row last_row(struct golden_sparse *g)
{
    const attn_tensor *tensors = g->f.tensors;
    int64_t t = g->tokens - 1;
    return (struct last_row){
        (int32_t *)(void *)fixture_at(&tensors[ATTN_ROLE_SPARSE_INDICES], t, 0, 0),
        (int32_t *)tensors[ATTN_ROLE_SPARSE_COUNT].data + t,
        (float *)(void *)fixture_at(&tensors[ATTN_ROLE_INDEX_LOGITS], t, 0, 0),
    };
}

static void assert_wrong(struct golden_sparse *g, int32_t code, const char *word)
{
    reference_choice_report report = judge(g);
    ck_assert_msg(report.rows_failed == 1 && report.first_code == code &&
                      strstr(report.message, word),
                  "%s: %lld rows failed, code %d: '%s' has no '%s'", g->record->name,
                  (long long)report.rows_failed, report.first_code, report.message, word);
}

/* A key that the last row left out. */
static int32_t left_out(struct golden_sparse *g, const struct last_row *row)
{
    for (int64_t j = 0; j < g->kv_len; j++) {
        int32_t slot = (int32_t)slot_of(g, j), taken = 0;
        for (int32_t n = 0; n < *row->count; n++)
            taken |= row->indices[n] == slot;
        if (!taken)
            return slot;
    }
    return -1;
}

static void wrong_of_case(struct golden_sparse *g, int32_t page_size)
{
    int32_t top_k = g->sparse.top_k;
    begin_choice(g, page_size, 0);
    struct last_row row = last_row(g);
    int32_t count = *row.count, last = row.indices[count - 1];
    row.indices[count - 1] = -1;
    *row.count = count - 1;
    assert_wrong(g, REFERENCE_CHOICE_COUNT, "keys are chosen; accepted: ");
    *row.count = count;
    row.indices[count - 1] = (int32_t)slot_of(g, g->kv_len - 1) + 100000;
    assert_wrong(g, REFERENCE_CHOICE_NO_KEY, "but is not a key of the sequence");
    if (count > 1) {
        row.indices[count - 1] = row.indices[0];
        assert_wrong(g, REFERENCE_CHOICE_TWICE, "is chosen twice");
    }
    if (count == top_k && g->kv_len > top_k) { /* the worst for any other: by logits alone, too */
        row.indices[count - 1] = last;
        row.indices[0] = left_out(g, &row); /* the largest one's place: they are in reverse */
        assert_wrong(g, REFERENCE_CHOICE_WORSE, "is not; accepted error:");
    }
    row.indices[count - 1] = last;
    fixture_finish(&g->f);
}

LOOP_OF(sparse, wrong, 0, PAGE_SIZES)
{
    ck_assert_int_eq(for_each_case(wrong_of_case, page_sizes[_i]), 7);
}

/* A key after the query, one entry after the count, a logit that is off by more than rounding. */
TEST_OF(sparse, other_wrongs)
{
    golden_case record;
    FILE *file = golden_open("sparse.txt");
    struct golden_sparse *g = malloc(sizeof *g);
    while (golden_next(file, &record) && strcmp(record.name, "verify") != 0)
        golden_finish(&record);
    golden_sparse_init(g, &record);
    begin_choice(g, 4, 0);
    struct last_row row = last_row(g);
    int32_t *first = g->f.tensors[ATTN_ROLE_SPARSE_INDICES].data, kept = first[0];
    first[0] = (int32_t)slot_of(g, g->kv_len - 1);
    assert_wrong(g, REFERENCE_CHOICE_UNSEEN, "but the query does not see it");
    first[0] = kept;
    --*row.count;
    assert_wrong(g, REFERENCE_CHOICE_COUNT, "keys are chosen");
    ++*row.count;
    float logit = row.logits[2];
    row.logits[2] *= 1.001f;
    reference_choice_report report = judge(g);
    ck_assert_int_eq(report.logits_failed, 1);
    ck_assert_ptr_nonnull(strstr(report.message, "the logit of key 2 is"));
    row.logits[2] = nextafterf(logit, 2 * logit);
    ck_assert_int_eq(judge(g).logits_failed, 0);
    fixture_finish(&g->f);
    golden_sparse_finish(g);
    golden_finish(&record);
    free(g);
    fclose(file);
}

/* Equal logits: any of them may be taken; the oracle takes the first. */
TEST_OF(sparse, ties)
{
    const double logits[] = {1, 3, 2, 2, 2, -INFINITY};
    uint8_t chosen[6];
    for (int64_t j = 2; j <= 4; j++) {
        const int64_t keys[] = {1, j};
        ck_assert_int_eq(reference_judge_choice(logits, NULL, 6, 2, keys, 2, chosen).code,
                         REFERENCE_CHOICE_RIGHT);
    }
    const int64_t worse[] = {1, 0};
    reference_choice choice = reference_judge_choice(logits, NULL, 6, 2, worse, 2, chosen);
    ck_assert_int_eq(choice.code, REFERENCE_CHOICE_WORSE);
    ck_assert_int_eq(choice.key, 0);
    ck_assert_int_eq(choice.rival, 2);
    const double bars[] = {0.6, 0, 0.5, 0, 0, 0};
    ck_assert_int_eq(reference_judge_choice(logits, bars, 3, 2, worse, 2, chosen).code,
                     REFERENCE_CHOICE_RIGHT);
    reference_choose(logits, 6, 3, chosen);
    ck_assert_mem_eq(chosen, ((uint8_t[]){0, 1, 1, 1, 0, 0}), 6);
    reference_choose(logits, 6, 9, chosen);
    ck_assert_mem_eq(chosen, ((uint8_t[]){1, 1, 1, 1, 1, 0}), 6);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static const struct {
    uint32_t role;
    const char *word;
} missing[] = {{ATTN_ROLE_INDEX_WEIGHTS, "index_weights"},
               {ATTN_ROLE_LABEL_CACHE, "label_cache"},
               {ATTN_ROLE_INDEX_Q, "sparse_indices"},
               {ATTN_ROLE_Q_PE, "q_pe"}};

TEST_OF(sparse, refusals)
{
    golden_case record;
    FILE *file = golden_open("sparse.txt");
    struct golden_sparse *g = malloc(sizeof *g);
    ck_assert(golden_next(file, &record));
    golden_sparse_init(g, &record);
    begin(g, ATTN_MODE_EXTEND, 4, g->tokens);
    add_index(g);
    for (size_t n = 0; n < sizeof missing / sizeof *missing; n++) {
        const attn_tensor *kept = g->f.operands[missing[n].role];
        g->f.operands[missing[n].role] = NULL;
        fixture_refuse(&g->f, ATTN_INVALID_ARGUMENT, missing[n].word);
        g->f.operands[missing[n].role] = kept;
    }
    add_choice(g, 1);
    int32_t *indices = g->f.tensors[ATTN_ROLE_SPARSE_INDICES].data;
    indices[1] = indices[0] = (int32_t)slot_of(g, 0);
    ((int32_t *)g->f.tensors[ATTN_ROLE_SPARSE_COUNT].data)[0] = 2;
    fixture_refuse(&g->f, ATTN_INVALID_ARGUMENT, "is given twice");
    indices[1] = 1;
    fixture_refuse(&g->f, ATTN_INVALID_ARGUMENT, "is not a key of its sequence");
    g->sparse.block_size = 8;
    fixture_refuse(&g->f, ATTN_UNSUPPORTED, "block_size 8");
    fixture_finish(&g->f);
    golden_sparse_finish(g);
    golden_finish(&record);
    free(g);
    fclose(file);
}

TESTS("sparse oracle");
