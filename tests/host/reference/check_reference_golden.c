/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle against PyTorch in float64 (tests/golden): each case as a whole forward, in both
 * layouts, by each index form, and with several page sizes.
 */
#include "tests/tools/golden_file.h"
#include "tests/host/reference/reference_fixture.h"
#include "tests/tools/test_main.h"

#define TOLERANCE 1e-12

/* A case as batch, with what hangs on it. */
struct golden_batch {
    fixture f;
    attn_mask mask;
    attn_multi_item items;
    double *operands[3];
    uint8_t *bits;
    int64_t bits_indptr[2];
    uint16_t token_pos[32];
    int32_t items_prefix;
    int32_t positions[32];
    float scale_values[2][4];
};

static double *in_units(const golden_case *record, const char *key)
{
    int64_t count;
    const double *values = golden_get(record, key, &count);
    double *scaled = calloc((size_t)count + 1, sizeof *scaled);
    for (int64_t n = 0; n < count; n++)
        scaled[n] = values[n] / 64;
    return scaled;
}

static void set_group(struct golden_batch *golden, const golden_case *record)
{
    attn_layer_group *group = &golden->f.group;
    group->attn_type = (uint32_t)golden_number(record, "type");
    group->sm_scale = (float)golden_number(record, "sm_scale");
    group->logit_cap = (float)golden_number(record, "cap");
    group->window_left = (int32_t)golden_number(record, "left");
    group->window_right = (int32_t)golden_number(record, "right");
    group->attention_chunk = (int32_t)golden_number(record, "chunk");
    const double *sinks = golden_find(record, "sinks", NULL);
    const double *slopes = golden_find(record, "slopes", NULL);
    for (int32_t h = 0; h < group->num_q_heads; h++) {
        golden->f.sinks[h] = sinks ? (float)sinks[h] : NAN;
        golden->f.slopes[h] = slopes ? (float)slopes[h] : NAN;
    }
    group->flags = (sinks ? ATTN_GROUP_HAS_SINKS : 0) | (slopes ? ATTN_GROUP_HAS_ALIBI : 0);
    if (golden_number(record, "omit_sink") != 0)
        golden->f.args.flags |= ATTN_FORWARD_OMIT_SINK;
}

static void set_mask(struct golden_batch *golden, const golden_case *record)
{
    int64_t count;
    const double *bytes = golden_find(record, "mask", &count);
    golden->mask = (attn_mask){.struct_size = sizeof golden->mask,
                               .kind = (uint32_t)golden_number(record, "mask_kind")};
    golden->f.batch.mask = &golden->mask;
    if (!bytes)
        return;
    /* Not at the start of the bits, so that the indptr counts. */
    golden->bits_indptr[0] = 3;
    golden->bits_indptr[1] = 3 + count;
    golden->bits = calloc((size_t)count + 3, 1);
    for (int64_t n = 0; n < count; n++)
        golden->bits[3 + n] = (uint8_t)bytes[n];
    golden->mask.bits = golden->bits;
    golden->mask.indptr.device = golden->bits_indptr;
}

static void set_extras(struct golden_batch *golden, const golden_case *record)
{
    int64_t count;
    const double *positions = golden_find(record, "positions", &count);
    for (int64_t n = 0; n < count; n++)
        golden->positions[n] = (int32_t)positions[n];
    if (positions)
        golden->f.batch.positions.device = golden->positions;
    const double *token_pos = golden_find(record, "token_pos", &count);
    if (!token_pos)
        return;
    for (int64_t n = 0; n < count; n++)
        golden->token_pos[n] = (uint16_t)token_pos[n];
    golden->items_prefix = (int32_t)golden_number(record, "items_prefix");
    golden->items = (attn_multi_item){.struct_size = sizeof golden->items,
                                      .token_pos_stride = (int32_t)count,
                                      .prefix_lens = {.device = &golden->items_prefix},
                                      .token_pos = golden->token_pos};
    golden->f.batch.multi_item = &golden->items;
}

static void set_quantisation(struct golden_batch *golden, const golden_case *record)
{
    static const char *const keys[] = {"k_scale", "v_scale"};
    if (!golden_find(record, "k_codes", NULL))
        return;
    golden->f.problem.kv_dtype = golden_number(record, "e5m2") != 0 ? ATTN_FP8_E5M2 : ATTN_FP8_E4M3;
    for (uint32_t n = 0; n < 2; n++) {
        int64_t count;
        const double *values = golden_get(record, keys[n], &count);
        for (int64_t h = 0; h < count; h++)
            golden->scale_values[n][h] = (float)values[h];
        uint32_t granularity = count > 1 ? ATTN_SCALE_PER_HEAD : ATTN_SCALE_PER_TENSOR;
        golden->f.group.kv_scale_granularity = granularity;
        golden->f.scales[ATTN_ROLE_K_CACHE + n] = (attn_scale){.struct_size = sizeof(attn_scale),
                                                               .granularity = granularity,
                                                               .count = (uint32_t)count,
                                                               .host = golden->scale_values[n]};
    }
}

static void golden_batch_init(struct golden_batch *golden, const golden_case *record,
                              const char *layout, int32_t page_size)
{
    memset(golden, 0, sizeof *golden);
    fixture *f = &golden->f;
    fixture_init(f, (int32_t)golden_number(record, "heads"),
                 (int32_t)golden_number(record, "kv_heads"), (int32_t)golden_number(record, "dim"),
                 (int32_t)golden_number(record, "v_dim"));
    f->problem.kv_layout = layout;
    f->problem.page_size = page_size;
    set_group(golden, record);
    set_mask(golden, record);
    set_extras(golden, record);
    set_quantisation(golden, record);
    golden->operands[0] = in_units(record, "q");
    golden->operands[1] = in_units(record, "k");
    golden->operands[2] = in_units(record, "v");
    fixture_sequence *sequence = fixture_add(
        f, (int32_t)golden_number(record, "tokens"), (int32_t)golden_number(record, "kv_len"),
        golden->operands[0], golden->operands[1], golden->operands[2]);
    sequence->prefix_len = (int32_t)golden_number(record, "prefix_len");
    if (f->group.attn_type == ATTN_TYPE_CROSS) {
        sequence->num_new = 0;
        f->with_new_indptr = 1;
    }
    fixture_build(f);
    if (f->group.attn_type == ATTN_TYPE_ENCODER_ONLY) {
        f->batch.num_kv_groups = 0;
        f->operands[ATTN_ROLE_K_CACHE] = f->operands[ATTN_ROLE_V_CACHE] = NULL;
    }
}

static void golden_batch_finish(struct golden_batch *golden)
{
    for (int n = 0; n < 3; n++)
        free(golden->operands[n]);
    free(golden->bits);
    fixture_finish(&golden->f);
}

static void assert_near(const golden_case *record, const char *what, int64_t n, double actual,
                        double expected)
{
    int same = actual == expected || (isnan(actual) && isnan(expected)) ||
               fabs(actual - expected) <= TOLERANCE * fmax(1, fabs(expected));
    ck_assert_msg(same, "%s: %s[%lld] is %.17g, not %.17g", record->name, what, (long long)n,
                  actual, expected);
}

static void check_forward(struct golden_batch *golden, const golden_case *record,
                          const reference_options *options)
{
    int64_t outs, lses;
    const double *out = golden_get(record, "out", &outs);
    const double *lse = golden_get(record, "lse", &lses);
    reference_result result = fixture_forward(&golden->f, options);
    ck_assert_int_eq(result.num_rows * result.num_heads, lses);
    ck_assert_int_eq(lses * result.v_head_dim, outs);
    for (int64_t n = 0; n < outs; n++)
        assert_near(record, "out", n, result.out[n], out[n]);
    for (int64_t n = 0; n < lses; n++)
        assert_near(record, "lse", n, result.rows[n].lse, lse[n]);
    reference_result_finish(&result);
}

LOOP_OF(golden, attention, 0, 8)
{
    const char *layout = _i & 1 ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD;
    static const int32_t page_sizes[] = {1, 4, 5, 16};
    golden_case record;
    FILE *file = golden_open("attention.txt");
    int cases = 0;
    while (golden_next(file, &record)) {
        struct golden_batch *golden = malloc(sizeof *golden);
        golden_batch_init(golden, &record, layout, page_sizes[_i / 2]);
        for (uint32_t form = 0; form < 3; form++)
            check_forward(golden, &record, &(reference_options){.index_form = 1u << form});
        golden->f.args.flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
        check_forward(golden, &record, NULL);
        golden_batch_finish(golden);
        free(golden);
        golden_finish(&record);
        cases++;
    }
    fclose(file);
    ck_assert_int_ge(cases, 55);
}

/* The images of the caches after a forward hold PyTorch's codes: of old and of new keys. */
static void check_codes(struct golden_batch *golden, const golden_case *record, uint32_t role,
                        const char *key)
{
    const double *codes = golden_get(record, key, NULL);
    const attn_tensor *cache = &golden->f.tensors[role];
    int64_t heads = golden->f.group.num_kv_heads, dim = cache->shape[3];
    for (int64_t j = 0; j < golden->f.kv_lens[0]; j++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < dim; d++) {
                int64_t slot = golden->f.req_to_token[golden->f.requests[0]][j];
                uint8_t code = ((uint8_t *)fixture_slot(&golden->f, cache, slot, h))[d];
                ck_assert_uint_eq(code, (uint8_t)codes[(j * heads + h) * dim + d]);
            }
}

TEST_OF(golden, quantised_cache)
{
    golden_case record;
    FILE *file = golden_open("attention.txt");
    int cases = 0;
    while (golden_next(file, &record)) {
        if (golden_find(&record, "k_codes", NULL)) {
            struct golden_batch *golden = malloc(sizeof *golden);
            golden_batch_init(golden, &record, ATTN_LAYOUT_KV_HND, 3);
            fixture *f = &golden->f;
            attn_status status = reference_expected_kv(
                &f->problem, &f->batch, 3, &f->args, &f->tensors[ATTN_ROLE_K_CACHE],
                &f->tensors[ATTN_ROLE_V_CACHE], &f->error.base);
            ck_assert_int_eq(status, ATTN_OK);
            check_codes(golden, &record, ATTN_ROLE_K_CACHE, "k_codes");
            check_codes(golden, &record, ATTN_ROLE_V_CACHE, "v_codes");
            golden_batch_finish(golden);
            free(golden);
            cases++;
        }
        golden_finish(&record);
    }
    fclose(file);
    ck_assert_int_eq(cases, 4);
}

TEST_OF(golden, merging)
{
    golden_case record;
    FILE *file = golden_open("merge.txt");
    int cases = 0;
    while (golden_next(file, &record)) {
        int64_t count;
        double merged[16], lse;
        const double *out = golden_get(&record, "out", &count);
        reference_merge((int32_t)count, golden_get(&record, "out1", NULL),
                        golden_number(&record, "lse1"), golden_get(&record, "out2", NULL),
                        golden_number(&record, "lse2"), merged, &lse);
        for (int64_t n = 0; n < count; n++)
            assert_near(&record, "out", n, merged[n], out[n]);
        assert_near(&record, "lse", 0, lse, golden_number(&record, "lse"));
        golden_finish(&record);
        cases++;
    }
    fclose(file);
    ck_assert_int_eq(cases, 5);
}

TESTS("reference_golden");
