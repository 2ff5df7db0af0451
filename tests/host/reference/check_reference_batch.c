/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle's batches: that each row of each mode gets the keys, positions and rounding it should,
 * that what is written to the cache is known to the bit, and that malformed calls are refused. Rows
 * are compared with reference_row_compute() on plain arrays, which other tests hold to the truth.
 */
#include "tests/host/reference/reference_fixture.h"
#include "tests/tools/test_main.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 6, V_DIM = 3, MAX_KEYS = FIXTURE_KEYS };

static double queries[FIXTURE_SEQS][MAX_KEYS * HEADS * DIM];
static double keys[FIXTURE_SEQS][MAX_KEYS * KV_HEADS * DIM];
static double values[FIXTURE_SEQS][MAX_KEYS * KV_HEADS * V_DIM];
static fixture f;

/* Random multiples of 1/64, exact in fp32 and fp16. */
static void setup(void)
{
    uint64_t state = 7;
    for (int s = 0; s < FIXTURE_SEQS; s++) {
        for (int n = 0; n < MAX_KEYS * HEADS * DIM; n++)
            queries[s][n] = fixture_random(&state, 200) / 64;
        for (int n = 0; n < MAX_KEYS * KV_HEADS * DIM; n++)
            keys[s][n] = fixture_random(&state, 200) / 64;
        for (int n = 0; n < MAX_KEYS * KV_HEADS * V_DIM; n++)
            values[s][n] = fixture_random(&state, 200) / 64;
    }
    fixture_init(&f, HEADS, KV_HEADS, DIM, V_DIM);
}

static void teardown(void)
{
    fixture_finish(&f);
}

static fixture_sequence *add(int32_t num_queries, int32_t kv_len)
{
    int32_t s = f.batch.num_seqs;
    return fixture_add(&f, num_queries, kv_len, queries[s], keys[s], values[s]);
}

/* Row t of head h of sequence s, from the plain arrays. */
static double plain_row(int32_t s, int32_t t, int32_t h, double out[V_DIM])
{
    const fixture_sequence *sequence = &f.sequences[s];
    int32_t kv_head = h / (HEADS / KV_HEADS);
    reference_kv_arrays arrays = {sequence->k + kv_head * DIM,
                                  sequence->v + kv_head * V_DIM,
                                  KV_HEADS * DIM,
                                  KV_HEADS * V_DIM,
                                  DIM,
                                  V_DIM};
    reference_row row = {.head_dim = DIM,
                         .v_head_dim = V_DIM,
                         .kv_len = sequence->kv_len,
                         .sm_scale = (double)f.group.sm_scale,
                         .query = sequence->q + ((int64_t)t * HEADS + h) * DIM,
                         .sight = reference_sight_all()};
    row.sight.position = sequence->prefix_len + t;
    row.sight.window_left = f.group.window_left;
    row.sight.window_right = f.group.window_right;
    reference_kv kv = reference_kv_array(&arrays);
    reference_scratch scratch;
    reference_scratch_init(&scratch);
    reference_row_result result;
    ck_assert_int_eq(reference_row_compute(&row, &kv, &scratch, out, NULL, &result, NULL), ATTN_OK);
    reference_scratch_finish(&scratch);
    return result.lse;
}

static void assert_plain(const reference_result *result)
{
    for (int32_t s = 0; s < f.batch.num_real_seqs; s++)
        for (int32_t t = 0; t < f.sequences[s].num_queries; t++)
            for (int32_t h = 0; h < HEADS; h++) {
                double out[V_DIM];
                int64_t entry = (int64_t)(f.q_indptr[s] + t) * HEADS + h;
                double lse = plain_row(s, t, h, out);
                ck_assert_int_eq(result->kind[f.q_indptr[s] + t], REFERENCE_ROW_REAL);
                ck_assert_double_eq(result->rows[entry].lse, lse);
                for (int32_t d = 0; d < V_DIM; d++)
                    ck_assert_double_eq(result->out[entry * V_DIM + d], out[d]);
            }
}

static void run_and_assert_plain(void)
{
    RESULT(result) = fixture_forward(&f, NULL);
    assert_plain(&result);
}

/* ---- The three cu_seqlens cases -------------------------------------------------------------- */

/* Keys differ, one query each: q_indptr [0 1 2 3]. */
TEST_OF(rows, one_query_each)
{
    add(1, 9), add(1, 4), add(1, 17);
    fixture_build(&f);
    ck_assert_mem_eq(f.q_indptr, ((int32_t[]){0, 1, 2, 3}), 4 * sizeof(int32_t));
    run_and_assert_plain();
}

/* As many keys as queries: q_indptr [0 5 6 14] is that of the keys, too. */
TEST_OF(rows, no_cached_prefix)
{
    add(5, 5), add(1, 1), add(8, 8);
    fixture_build(&f);
    ck_assert_mem_eq(f.prefix_lens, ((int32_t[]){0, 0, 0}), 3 * sizeof(int32_t));
    run_and_assert_plain();
}

/* Both: each sequence is one token that sees itself alone. */
TEST_OF(rows, one_query_each_and_no_cached_prefix)
{
    add(1, 1), add(1, 1), add(1, 1);
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    assert_plain(&result);
    for (int32_t s = 0; s < 3; s++)
        for (int32_t h = 0; h < HEADS; h++)
            for (int32_t d = 0; d < V_DIM; d++)
                ck_assert_double_eq(result.out[(s * HEADS + h) * V_DIM + d],
                                    values[s][h / 2 * V_DIM + d]);
}

/* ---- Modes ----------------------------------------------------------------------------------- */

LOOP_OF(rows, extend_of_all_lengths, 0, 6)
{
    add(3, 9), add(1, 4), add(6, 6), add(2, 33);
    f.problem.page_size = 1 + _i * 2;
    f.problem.kv_layout = _i & 1 ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD;
    f.group.window_left = _i > 2 ? 4 : -1;
    fixture_build(&f);
    run_and_assert_plain();
}

TEST_OF(rows, decode_reads_no_q_indptr)
{
    add(1, 9), add(1, 4), add(1, 30);
    f.batch.mode = ATTN_MODE_DECODE;
    f.group.window_left = 3; /* so that the position counts */
    fixture_build(&f);
    ck_assert_ptr_null(f.batch.q_indptr.device);
    memset(&f.batch.prefix_lens, 0, sizeof f.batch.prefix_lens);
    run_and_assert_plain();
}

LOOP_OF(rows, mixed_and_the_other_extend_modes, 0, 3)
{
    static const uint32_t modes[] = {ATTN_MODE_MIXED, ATTN_MODE_TARGET_VERIFY,
                                     ATTN_MODE_DRAFT_EXTEND};
    add(3, 9), add(4, 4), add(1, 8), add(1, 21);
    f.batch.mode = modes[_i];
    f.batch.num_decode_seqs = _i == 0 ? 2 : 0;
    f.batch.first_decode_seq = f.batch.num_decode_seqs;
    f.batch.decode_q_len = _i == 0;
    fixture_build(&f);
    run_and_assert_plain();
    if (_i == 0) {
        f.batch.num_decode_seqs = 3;
        f.batch.first_decode_seq = 1;
        fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "MIXED");
    }
}

TEST_OF(rows, idle_is_empty)
{
    add(1, 9);
    fixture_build(&f);
    f.batch.mode = ATTN_MODE_IDLE;
    reference_result result = fixture_forward(&f, NULL);
    ck_assert_int_eq(result.num_rows, 0);
    ck_assert_int_eq(result.v_head_dim, V_DIM);
    reference_result_finish(&result);
    reference_result_finish(&result);
    reference_result_finish(NULL);
}

/* A slice of a batch: its first row is not row 0. */
TEST_OF(rows, indptr_need_not_start_at_0)
{
    add(3, 9), add(2, 4);
    f.row_offset = 5;
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    ck_assert_int_eq(result.num_rows, 10);
    for (int row = 0; row < 5; row++)
        ck_assert_int_eq(result.kind[row], REFERENCE_ROW_ABSENT);
    assert_plain(&result);
}

TEST_OF(rows, padding_is_told_apart)
{
    int32_t real_seqs = 2, real_tokens = 3;
    add(1, 9), add(2, 4), add(1, 1);
    fixture_build(&f);
    f.seq_lens[2] = f.kv_lens[2] = 0; /* fill value 0: a query without a key, request row 0 */
    f.requests[2] = 0;
    f.out_cache_loc[3] = -1;
    f.batch.num_real_seqs_device = &real_seqs; /* these hold, not the scalars */
    f.batch.num_real_tokens_device = &real_tokens;
    RESULT(result) = fixture_forward(&f, NULL);
    ck_assert_int_eq(result.kind[2], REFERENCE_ROW_REAL);
    ck_assert_int_eq(result.kind[3], REFERENCE_ROW_PADDING);
    f.batch.num_real_seqs = 2;
    assert_plain(&result);
}

TEST_OF(rows, encoder_keys_of_cross_attention)
{
    f.group.attn_type = ATTN_TYPE_CROSS;
    f.group.window_right = -1;
    f.with_new_indptr = 1;
    add(3, 9)->num_new = 9;   /* its encoder ran just now */
    add(1, 11)->num_new = 11; /* rows 9 to 19 of k, row 3 of q */
    add(2, 0)->num_new = 0;   /* no encoder at all: rows that see no key */
    f.sequences[0].prefix_len = 4;
    f.sequences[1].prefix_len = 20;
    f.sequences[2].prefix_len = 0;
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    assert_plain(&result);
    ck_assert(isinf(result.rows[4 * HEADS].lse));
}

TEST_OF(rows, sinks_are_per_query_head)
{
    f.group.flags = ATTN_GROUP_HAS_SINKS;
    for (int h = 0; h < HEADS; h++)
        f.sinks[h] = (float)h - 1.5f;
    add(1, 5);
    fixture_build(&f);
    reference_result with = fixture_forward(&f, NULL);
    f.args.flags |= ATTN_FORWARD_OMIT_SINK;
    f.operands[ATTN_ROLE_SINKS] = NULL; /* not needed then */
    reference_result without = fixture_forward(&f, NULL);
    assert_plain(&without);
    for (int h = 0; h < HEADS; h++)
        ck_assert_double_eq_tol(exp(with.rows[h].lse),
                                exp(without.rows[h].lse) + exp((double)f.sinks[h]), 1e-9);
    reference_result_finish(&with);
    reference_result_finish(&without);
}

/* ---- Partials -------------------------------------------------------------------------------- */

/* The prefix, mask NONE, from the cache alone; the new tokens among themselves; merged. One of the
 * two has the sink. */
TEST_OF(rows, partials_merge_to_the_whole)
{
    f.group.flags = ATTN_GROUP_HAS_SINKS;
    f.sinks[0] = f.sinks[2] = 1.25f;
    add(4, 13), add(2, 7);
    fixture_build(&f);
    reference_result whole = fixture_forward(&f, NULL);
    attn_mask none = {.struct_size = sizeof none, .kind = ATTN_MASK_NONE};
    attn_forward_args all = f.args;
    f.args.flags = ATTN_FORWARD_OMIT_SINK;
    f.group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    memset(&f.batch.prefix_lens, 0, sizeof f.batch.prefix_lens);
    reference_result suffix = fixture_forward(&f, NULL);
    f.group.attn_type = ATTN_TYPE_DECODER;
    f.args = all;
    f.operands[ATTN_ROLE_K] = f.operands[ATTN_ROLE_V] = NULL;
    f.batch.mask = &none;
    f.batch.prefix_lens.device = f.kv_lens; /* anything that is beyond all keys */
    f.kv_lens[0] = 9, f.kv_lens[1] = 5;
    f.last_page_len[0] = 1, f.last_page_len[1] = 1;
    reference_result prefix = fixture_forward(&f, NULL);
    for (int64_t n = 0; n < 6 * HEADS; n++) {
        double out[V_DIM], lse;
        reference_merge(V_DIM, prefix.out + n * V_DIM, prefix.rows[n].lse, suffix.out + n * V_DIM,
                        suffix.rows[n].lse, out, &lse);
        ck_assert_double_eq_tol(lse, whole.rows[n].lse, 1e-12);
        for (int d = 0; d < V_DIM; d++)
            ck_assert_double_eq_tol(out[d], whole.out[n * V_DIM + d], 1e-12);
    }
    reference_result_finish(&whole);
    reference_result_finish(&prefix);
    reference_result_finish(&suffix);
}

/* ---- The cache ------------------------------------------------------------------------------- */

static attn_tensor copy_of(const attn_tensor *cache)
{
    attn_tensor copy = *cache;
    size_t size = (size_t)(cache->shape[0] * cache->strides[0]) * attn_dtype_size(cache->dtype);
    copy.data = malloc(size);
    memcpy(copy.data, cache->data, size);
    return copy;
}

static void expect(attn_tensor image[2])
{
    image[0] = copy_of(&f.tensors[ATTN_ROLE_K_CACHE]);
    image[1] = copy_of(&f.tensors[ATTN_ROLE_V_CACHE]);
    attn_status status = reference_expected_kv(&f.problem, &f.batch, 3, &f.args, &image[0],
                                               &image[1], &f.error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&f.error));
}

static void release(attn_tensor image[2])
{
    free(image[0].data);
    free(image[1].data);
}

LOOP_OF(cache, new_keys_are_written_to_their_slots_and_nothing_else, 0, 2)
{
    attn_tensor image[2];
    int64_t place[4];
    add(3, 9), add(1, 4);
    f.problem.kv_layout = _i ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD;
    fixture_build(&f);
    f.out_cache_loc[1] = -1; /* not written */
    f.out_cache_loc[2] = 2;  /* page 0 is like any other */
    expect(image);
    const attn_tensor *cache = &f.tensors[ATTN_ROLE_K_CACHE];
    int64_t bytes = reference_compare_kv(&f.problem, cache, &image[0], place);
    /* NaN was there: a float's four bytes differ, or three if one byte is the same by chance. */
    ck_assert_int_gt(bytes, 3 * KV_HEADS * DIM);
    ck_assert_int_le(bytes, 3 * KV_HEADS * DIM * 4);
    for (int64_t h = 0; h < KV_HEADS; h++)
        for (int64_t d = 0; d < DIM; d++)
            ck_assert_double_eq(
                dtype_load(ATTN_F32, fixture_slot(&f, &image[0], f.out_cache_loc[3], h), d),
                keys[1][(3 * KV_HEADS + h) * DIM + d]);
    ck_assert_int_eq(place[0], 0);
    release(image);
}

LOOP_OF(cache, a_changed_byte_is_found_and_placed, 0, 2)
{
    attn_tensor image[2];
    int64_t place[4] = {0};
    add(3, 9);
    f.problem.kv_layout = _i ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD;
    fixture_build(&f);
    expect(image);
    attn_tensor written = copy_of(&image[1]);
    ck_assert_int_eq(reference_compare_kv(&f.problem, &written, &image[1], NULL), 0);
    fixture_slot(&f, &written, 5 * 4 + 3, 1)[2 * 4] ^= 1;
    ck_assert_int_eq(reference_compare_kv(&f.problem, &written, &image[1], place), 1);
    ck_assert_mem_eq(place, ((int64_t[]){5, 3, 1, 2}), sizeof place);
    free(written.data);
    release(image);
}

TEST_OF(cache, unsaved_keys_are_not_written)
{
    attn_tensor image[2];
    add(3, 9);
    f.args.flags = 0;
    fixture_build(&f);
    expect(image);
    ck_assert_int_eq(
        reference_compare_kv(&f.problem, &f.tensors[ATTN_ROLE_K_CACHE], &image[0], NULL), 0);
    run_and_assert_plain();
    release(image);
}

static void set_scales(float *k_scale, float *v_scale)
{
    f.problem.kv_dtype = ATTN_FP8_E4M3;
    f.group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    attn_scale scale = {
        .struct_size = sizeof scale, .granularity = ATTN_SCALE_PER_HEAD, .count = KV_HEADS};
    f.scales[ATTN_ROLE_K_CACHE] = f.scales[ATTN_ROLE_V_CACHE] = scale;
    f.scales[ATTN_ROLE_K_CACHE].host = k_scale;
    f.scales[ATTN_ROLE_V_CACHE].host = v_scale;
}

/* Reading new keys as stored is reading them from the cache after they were written. */
TEST_OF(cache, new_keys_are_read_as_stored_unless_told)
{
    float k_scale[] = {0.3f, 0.07f}, v_scale[] = {0.01f, 1.7f};
    attn_tensor image[2], before[2];
    set_scales(k_scale, v_scale);
    add(5, 5), add(2, 6);
    fixture_build(&f);
    before[0] = copy_of(&f.tensors[ATTN_ROLE_K_CACHE]);
    before[1] = copy_of(&f.tensors[ATTN_ROLE_V_CACHE]);
    reference_result stored = fixture_forward(&f, NULL);
    reference_result given = fixture_forward(
        &f, &(reference_options){.reads_new_unquantised = ATTN_MODE_BIT(ATTN_MODE_EXTEND)});
    reference_result other = fixture_forward(
        &f, &(reference_options){.reads_new_unquantised = ATTN_MODE_BIT(ATTN_MODE_DECODE)});
    for (uint32_t n = 0; n < 2; n++) /* the oracle writes no cache */
        ck_assert_int_eq(
            reference_compare_kv(&f.problem, &f.tensors[ATTN_ROLE_K_CACHE + n], &before[n], NULL),
            0);
    expect(image);
    f.operands[ATTN_ROLE_K] = f.operands[ATTN_ROLE_V] = NULL;
    f.operands[ATTN_ROLE_K_CACHE] = &image[0];
    f.operands[ATTN_ROLE_V_CACHE] = &image[1];
    reference_result cached = fixture_forward(&f, NULL);
    size_t size = sizeof(double) * 7 * HEADS * V_DIM;
    ck_assert_mem_eq(stored.out, cached.out, size);
    ck_assert_mem_eq(stored.out, other.out, size);
    ck_assert_mem_ne(stored.out, given.out, size);
    double out[V_DIM]; /* a sequence without prefix, unquantised, is the plain one */
    plain_row(0, 4, 3, out);
    for (int d = 0; d < V_DIM; d++)
        ck_assert_double_eq(given.out[(4 * HEADS + 3) * V_DIM + d], out[d]);
    reference_result_finish(&stored);
    reference_result_finish(&given);
    reference_result_finish(&other);
    reference_result_finish(&cached);
    release(image);
    release(before);
}

/* ---- Strides --------------------------------------------------------------------------------- */

/* Queries [heads, tokens, dim + 3] at a byte offset; a cache whose pages hold K and V. */
TEST_OF(rows, outer_strides_are_free)
{
    add(3, 9), add(2, 4);
    fixture_build(&f);
    const attn_tensor *plain = &f.tensors[ATTN_ROLE_Q], *cache = &f.tensors[ATTN_ROLE_K_CACHE];
    int64_t page = cache->strides[0];
    attn_tensor q = *plain, both = *cache;
    q.data = calloc(1 + 5 * HEADS * (DIM + 3), sizeof(float));
    q.byte_offset = sizeof(float);
    q.strides[0] = DIM + 3;
    q.strides[1] = 5 * (DIM + 3);
    for (int64_t t = 0; t < 5; t++)
        for (int64_t h = 0; h < HEADS; h++)
            memcpy(fixture_at(&q, t, h, 0), fixture_at(plain, t, h, 0), DIM * sizeof(float));
    both.data = calloc((size_t)(FIXTURE_PAGES * 2 * page), sizeof(float));
    both.strides[0] = 2 * page;
    for (int64_t p = 0; p < FIXTURE_PAGES; p++)
        memcpy(fixture_at(&both, p, 0, 0), fixture_at(cache, p, 0, 0),
               (size_t)page * sizeof(float));
    f.operands[ATTN_ROLE_Q] = &q;
    f.operands[ATTN_ROLE_K_CACHE] = &both;
    run_and_assert_plain();
    free(q.data);
    free(both.data);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Output and LSE as a perfect backend would give them. */
static void write_outputs(const reference_result *result)
{
    attn_tensor *out = &f.tensors[ATTN_ROLE_OUT], *lse = &f.tensors[ATTN_ROLE_LSE];
    int64_t count = result->num_rows * result->num_heads;
    dtype_from_double(out->dtype, result->out, count * V_DIM, out->data);
    for (int64_t n = 0; n < count; n++)
        dtype_store(ATTN_F32, lse->data, n, result->rows[n].lse);
}

static reference_report compare(const reference_result *result)
{
    reference_report report = {0};
    ck_assert_int_eq(reference_compare(result, &f.tensors[ATTN_ROLE_OUT], &f.tensors[ATTN_ROLE_LSE],
                                       &report, NULL),
                     ATTN_OK);
    return report;
}

LOOP_OF(comparing, perfect_outputs_pass, 0, 3)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    add(3, 9), add(2, 4);
    f.problem.out_dtype = dtypes[_i];
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    write_outputs(&result);
    reference_report report = compare(&result);
    ck_assert(reference_report_passed(&report));
    ck_assert_int_eq(report.rows_checked, 5 * HEADS);
    ck_assert_int_eq(report.lse_checked, 5 * HEADS);
    ck_assert_double_lt(report.max_rel_error, 0.01);
    ck_assert_double_le(report.worst_ratio, 1);
}

/* One V element, changed so that its row moves by ten bars, or one wrong place, fails that row. */
TEST_OF(comparing, one_wrong_element_fails)
{
    add(3, 9), add(2, 4);
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    write_outputs(&result);
    float *out = f.tensors[ATTN_ROLE_OUT].data;
    int64_t entry = 2 * HEADS + 1;
    out[entry * V_DIM + 2] += (float)(10 * result.bars[entry * V_DIM + 2]);
    reference_report report = compare(&result);
    ck_assert(!reference_report_passed(&report));
    ck_assert_int_eq(report.rows_failed, 1);
    ck_assert_int_eq(report.lse_failed, 0);
    ck_assert_ptr_nonnull(strstr(report.message, "output row 2 head 1 element 2"));
    ck_assert_double_eq_tol(report.worst_ratio, 10, 0.5);
}

/* A row that is judged alone has the verdict that it has among all. */
TEST_OF(comparing, rows_are_judged_alone)
{
    add(3, 9), add(2, 4);
    fixture_build(&f);
    reference_result result = fixture_forward(&f, NULL);
    write_outputs(&result);
    float *out = f.tensors[ATTN_ROLE_OUT].data;
    out[(2 * HEADS + 1) * V_DIM + 2] += (float)(10 * result.bars[(2 * HEADS + 1) * V_DIM + 2]);
    out[(4 * HEADS + 3) * V_DIM] = NAN;
    reference_result_finish(&result);
    for (int64_t row = 0; row < 5; row++)
        for (int32_t head = 0; head < HEADS; head++) {
            reference_verdict verdict;
            ck_assert_int_eq(reference_judge_row(&f.problem, &f.batch, 3, &f.args, NULL, row, head,
                                                 &verdict, &f.error.base),
                             ATTN_OK);
            int bent = row == 2 && head == 1, nan = row == 4 && head == 3;
            ck_assert_int_eq(verdict.code, bent  ? REFERENCE_ERROR_TOO_LARGE
                                           : nan ? REFERENCE_NOT_FINITE_HERE
                                                 : REFERENCE_PASS);
            if (bent)
                ck_assert_double_eq_tol(reference_verdict_ratio(&verdict), 10, 0.5);
        }
    static const int64_t none[][2] = {{5, 0}, {-1, 0}, {0, HEADS}, {0, -1}};
    for (size_t n = 0; n < sizeof none / sizeof *none; n++) {
        reference_verdict verdict;
        ck_assert_int_eq(reference_judge_row(&f.problem, &f.batch, 3, &f.args, NULL, none[n][0],
                                             (int32_t)none[n][1], &verdict, &f.error.base),
                         ATTN_INVALID_ARGUMENT);
    }
}

TEST_OF(comparing, a_changed_value_of_the_cache_fails)
{
    add(3, 9);
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    write_outputs(&result);
    reference_result_finish(&result);
    char *value = fixture_slot(&f, &f.tensors[ATTN_ROLE_V_CACHE], f.req_to_token[8][4], 1);
    dtype_store(ATTN_F32, value, 0, dtype_load(ATTN_F32, value, 0) + 1);
    result = fixture_forward(&f, NULL);
    reference_report report = compare(&result);
    ck_assert_int_gt(report.rows_failed, 0);
    ck_assert_int_le(report.rows_failed, 3 * HEADS / KV_HEADS); /* heads of KV head 1 alone */
}

TEST_OF(comparing, nan_and_wrong_lse_fail)
{
    add(3, 9);
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    write_outputs(&result);
    float *out = f.tensors[ATTN_ROLE_OUT].data, *lse = f.tensors[ATTN_ROLE_LSE].data;
    out[7] = NAN;
    lse[9] *= 1.001f;
    reference_report report = compare(&result);
    ck_assert_int_eq(report.rows_failed, 1);
    ck_assert_int_eq(report.lse_failed, 1);
    ck_assert(isinf(report.worst_ratio));
    ck_assert_ptr_nonnull(strstr(report.message, "NaN or infinity where another value"));
}

TEST_OF(comparing, a_report_only_gets_worse)
{
    add(3, 9);
    fixture_build(&f);
    RESULT(result) = fixture_forward(&f, NULL);
    reference_report report = {0};
    const attn_tensor *out = &f.tensors[ATTN_ROLE_OUT];
    ck_assert(!reference_report_passed(&report)); /* nothing was compared */
    ck_assert_int_eq(reference_compare(&result, out, NULL, &report, NULL), ATTN_OK);
    ck_assert(!reference_report_passed(&report)); /* zeros are wrong */
    int64_t failed = report.rows_failed;
    write_outputs(&result);
    ck_assert_int_eq(reference_compare(&result, out, NULL, &report, NULL), ATTN_OK);
    ck_assert(!reference_report_passed(&report));
    ck_assert_int_eq(report.rows_failed, failed);
    ck_assert_int_eq(report.rows_checked, 2 * 3 * HEADS);
    ck_assert_int_eq(report.lse_checked, 0);
}

TEST_OF(comparing, padding_must_be_finite)
{
    add(1, 9), add(1, 1);
    fixture_build(&f);
    f.batch.num_real_seqs = f.batch.num_real_tokens = 1;
    RESULT(result) = fixture_forward(&f, NULL);
    write_outputs(&result);
    float *out = f.tensors[ATTN_ROLE_OUT].data, *lse = f.tensors[ATTN_ROLE_LSE].data;
    out[HEADS * V_DIM + 4] = 12345;
    lse[HEADS] = -INFINITY;
    reference_report report = compare(&result);
    ck_assert(reference_report_passed(&report));
    ck_assert_int_eq(report.rows_checked, HEADS);
    ck_assert_int_eq(report.padding_checked, 1);
    out[HEADS * V_DIM + 4] = INFINITY;
    report = compare(&result);
    ck_assert_int_eq(report.padding_failed, 1);
    ck_assert(!reference_report_passed(&report));
}

TEST_OF(comparing, what_cannot_be_compared_is_refused)
{
    add(3, 9);
    fixture_build(&f);
    reference_report report = {0};
    RESULT(result) = fixture_forward(&f, &(reference_options){.without_bars = 1});
    ck_assert_int_eq(
        reference_compare(&result, &f.tensors[ATTN_ROLE_OUT], NULL, &report, &f.error.base),
        ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(
        reference_compare(&result, &f.tensors[ATTN_ROLE_Q], NULL, &report, &f.error.base),
        ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&f.error), "shape"));
    ck_assert_int_eq(report.rows_checked, 0);
}

/* ---- Malformed calls ------------------------------------------------------------------------- */

TEST_OF(malformed, missing_operands_are_named)
{
    add(3, 9);
    f.group.flags = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI;
    fixture_build(&f);
    static const struct {
        uint32_t role;
        const char *name;
    } needed[] = {{ATTN_ROLE_Q, "operand q "},
                  {ATTN_ROLE_K, "operand k "},
                  {ATTN_ROLE_V, "operand v "},
                  {ATTN_ROLE_K_CACHE, "k_cache"},
                  {ATTN_ROLE_V_CACHE, "v_cache"},
                  {ATTN_ROLE_SINKS, "sinks"},
                  {ATTN_ROLE_ALIBI_SLOPES, "alibi_slopes"}};
    for (size_t n = 0; n < sizeof needed / sizeof needed[0]; n++) {
        const attn_tensor *kept = f.operands[needed[n].role];
        f.operands[needed[n].role] = NULL;
        fixture_refuse(&f, ATTN_INVALID_ARGUMENT, needed[n].name);
        f.operands[needed[n].role] = kept;
    }
    f.tensors[ATTN_ROLE_Q].shape[1] = HEADS + 1;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "operand q ");
}

TEST_OF(malformed, scales_are_never_guessed)
{
    float k_scale[] = {0.3f, 0.07f}, v_scale[] = {0.01f, 1.7f};
    set_scales(k_scale, v_scale);
    add(3, 9);
    fixture_build(&f);
    f.scale_pointers[ATTN_ROLE_V_CACHE] = NULL;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "scale of v_cache is missing");
    f.scale_pointers[ATTN_ROLE_V_CACHE] = &f.scales[ATTN_ROLE_V_CACHE];
    f.scales[ATTN_ROLE_K_CACHE].count = 1;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "1 values");
    f.scales[ATTN_ROLE_K_CACHE].count = KV_HEADS;
    k_scale[1] = 0;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "value 0");
    f.group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "granularity");
}

TEST_OF(malformed, cross_attention_has_no_position)
{
    f.group.attn_type = ATTN_TYPE_CROSS;
    f.group.window_right = -1;
    add(1, 9);
    fixture_build(&f);
    f.group.window_left = 3;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "window_left 3");
    f.group.window_left = -1;
    f.group.window_right = 0;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "window_right 0");
    f.group.window_right = -1;
    f.group.attention_chunk = 8;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "attention_chunk 8");
    f.group.attention_chunk = 0;
    f.group.flags = ATTN_GROUP_HAS_ALIBI;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "ALiBi yes");
}

TEST_OF(malformed, slots_are_checked)
{
    add(3, 9);
    fixture_build(&f);
    int32_t *slot = &f.req_to_token[f.requests[0]][4], kept = *slot;
    *slot = FIXTURE_PAGES * 4;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "slot 2400");
    *slot = -1;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "slot -1");
    *slot = kept;
    f.out_cache_loc[1] += 1;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "read from slot");
    f.out_cache_loc[1] -= 1;
    f.kv.index_forms = ATTN_INDEX_CSR;
    f.last_page_len[0] = 2;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "last_page_len");
    f.kv.index_forms = 0;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "index forms");
}

TEST_OF(malformed, layers_and_batches_are_checked)
{
    int32_t positions[3] = {6, 7, 8};
    add(3, 9);
    fixture_build(&f);
    f.batch.positions.host = positions;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "positions");
    f.batch.positions.host = NULL;
    f.layer.flags = ATTN_LAYER_KV_READ_ONLY;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "only reads");
    f.layer.flags = 0;
    f.group.kv_group = 1;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "kv_group 1");
    f.group.kv_group = 0;
    f.group.kind = ATTN_KIND_LINEAR;
    fixture_refuse(&f, ATTN_UNSUPPORTED, "kind 2");
    f.group.kind = ATTN_KIND_SOFTMAX;
    f.kv_lens[0] = 2;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "2 keys");
    f.kv_lens[0] = 9;
    f.q_indptr[1] = 4;
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "rows");
    f.q_indptr[1] = 3;
    memset(&f.kv.out_cache_loc, 0, sizeof f.kv.out_cache_loc);
    fixture_refuse(&f, ATTN_INVALID_ARGUMENT, "out_cache_loc");
    f.args.flags = 0;
    run_and_assert_plain(); /* not needed then, and all else is well again */
}

TEST_OF(malformed, an_unknown_layer_is_refused)
{
    reference_result result;
    add(3, 9);
    fixture_build(&f);
    ck_assert_int_eq(
        reference_forward(&f.problem, &f.batch, 4, &f.args, NULL, &result, &f.error.base),
        ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&f.error), "layer_id 4"));
}

TESTS("reference_batch", .set_up = setup, .tear_down = teardown);
