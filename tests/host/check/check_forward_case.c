/* SPDX-License-Identifier: Apache-2.0
 *
 * check_forward_case.c: cases of the conformance suite and their judge: equal specs and seeds give
 * equal cases, needles stand out, variants have their base's tokens, and whatever is wrong with a
 * result is found.
 */
#include "tests/host/check/subject_fixture.h"
#include "tests/tools/wrong_backend.h"

#include "host/check/cases/forward_case_private.h"
#include "host/check/cases/grid.h"
#include "host/check/cases/linear_case.h"
#include "host/base/dtype.h"

#include <nettle/sha2.h>

static struct subject_fixture f;

static void open_native(void)
{
    subject_create_host(&f, 1);
    subject_load(&f, "ATTNHOST_TEST_PLUGIN_DIR", "cpu_native");
    subject_resolve(&f, "cpu_native", ATTN_DEVICE_CPU);
}

static void close_native(void)
{
    subject_destroy(&f);
}

static struct case_spec plain_spec(void)
{
    return (struct case_spec){.mode = ATTN_MODE_EXTEND,
                              .q_dtype = ATTN_BF16,
                              .kv_dtype = ATTN_BF16,
                              .out_dtype = ATTN_BF16,
                              .kv_layout = ATTN_LAYOUT_KV_NHD,
                              .num_q_heads = 4,
                              .num_kv_heads = 2,
                              .head_dim = 64,
                              .v_head_dim = 64,
                              .page_size = 16,
                              .index_form = ATTN_INDEX_BLOCK_TABLE,
                              .slots = SLOTS_SHUFFLED_PAGES,
                              .window_left = -1,
                              .flags = ATTN_FORWARD_SAVE_KV,
                              .wants_lse = true,
                              .num_sequences = 3,
                              .sequences = {{.prefix_len = 20, .num_new = 9},
                                            {.num_new = 33},
                                            {.prefix_len = 70, .num_new = 1}}};
}

static struct forward_case *make(const struct case_spec *spec, uint64_t seed)
{
    struct forward_case *c = NULL;
    GOOD(forward_case_create(spec, seed, f.device, &c, &failure.base));
    return c;
}

/* The grid of cpu_native, for many kinds of specs. */
static struct grid *make_grid(void)
{
    struct grid *grid = NULL;
    struct grid_backend backend = {f.subject.type, f.subject.options, f.subject.services, f.device,
                                   NULL};
    GOOD(grid_create(&backend, 3, false, &grid, &failure.base));
    return grid;
}

/* ---- Cases ----------------------------------------------------------------------------------- */

TEST_OF(cases, equal_seeds_give_equal_cases)
{
    struct case_spec spec = plain_spec();
    struct forward_case *a = make(&spec, 5), *b = make(&spec, 5), *other = make(&spec, 6);
    ck_assert_uint_eq(a->bytes, b->bytes);
    ck_assert_mem_eq(a->image, b->image, a->bytes);
    ck_assert(other->bytes != a->bytes || memcmp(a->image, other->image, a->bytes) != 0);
    forward_case_destroy(a);
    forward_case_destroy(b);
    forward_case_destroy(other);
}

/* All bytes of some cases, made once and written down: integer arithmetic, and floating-point
 * operations that IEEE 754 defines, are the same everywhere. */
static void assert_digest(const struct case_spec *specs, int count, const char *golden)
{
    struct sha256_ctx sha256;
    uint8_t digest[SHA256_DIGEST_SIZE];
    char hex[2 * SHA256_DIGEST_SIZE + 1];
    sha256_init(&sha256);
    for (int n = 0; n < count; n++) {
        struct forward_case *c = make(&specs[n], 7);
        sha256_update(&sha256, c->bytes, (const uint8_t *)c->image);
        forward_case_destroy(c);
    }
    sha256_digest(&sha256, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    ck_assert_str_eq(hex, golden);
}

TEST_OF(cases, cases_are_the_same_on_every_machine)
{
    static const char golden[] = "5fe84ed9ba6c8004b8d98b0f6e9f124cb19be34b1f3a7c277f3f63ca2735e9fc";
    struct case_spec specs[5];
    for (int n = 0; n < 5; n++)
        specs[n] = plain_spec();
    specs[1].q_dtype = specs[1].kv_dtype = specs[1].out_dtype = ATTN_F32;
    specs[1].alibi = specs[1].sinks = true;
    specs[2].kv_dtype = ATTN_FP8_E4M3;
    specs[2].scale_granularity = ATTN_SCALE_PER_HEAD;
    specs[3].mask_kind = ATTN_MASK_FULL;
    specs[3].slots = SLOTS_INTERLEAVED_PAGES;
    specs[4].growing_scores = true;
    specs[4].window_left = 15;
    assert_digest(specs, 5, golden);
}

static struct case_spec latent_spec(bool expanded)
{
    struct case_spec spec = plain_spec();
    spec.kv_layout = ATTN_LAYOUT_MLA_LATENT;
    spec.latent = (struct case_latent){128, 16, 24, 33, expanded};
    case_spec_set_form(&spec, expanded);
    return spec;
}

TEST_OF(cases, latents_are_the_same_on_every_machine)
{
    static const char golden[] = "875e6e740dd47e5dc40c5ee77e974ff3951eb187ac5e41acf5ec603f74ad725a";
    struct case_spec specs[4];
    for (int n = 0; n < 4; n++)
        specs[n] = latent_spec(n == 1);
    specs[2].kv_dtype = specs[3].kv_dtype = ATTN_FP8_E4M3;
    specs[2].scale_granularity = ATTN_SCALE_PER_TENSOR;
    specs[3].kv_layout = ATTN_LAYOUT_MLA_LATENT_FP8;
    assert_digest(specs, 4, golden);
}

TEST_OF(cases, latents_that_contradict_themselves)
{
    struct case_spec spec = latent_spec(false);
    ck_assert_ptr_null(case_spec_defect(&spec));
    spec.latent.expanded = true; /* without the heads and dims of that form */
    ck_assert_str_eq(case_spec_defect(&spec), "latent");
    case_spec_set_form(&spec, true);
    ck_assert_ptr_null(case_spec_defect(&spec));
    spec.flags = 0;
    spec.from_cache = true;
    ck_assert_str_eq(case_spec_defect(&spec), "from_cache");
    spec = latent_spec(true);
    spec.mask_kind = ATTN_MASK_NONE;
    spec.partial = true; /* chunks of a prefix are not saved */
    ck_assert_str_eq(case_spec_defect(&spec), "partial");
    spec.flags = 0;
    ck_assert_ptr_null(case_spec_defect(&spec));
    spec.sequences[0].num_new_keys = 3;
    spec.sequences[0].chunk_end = 2;
    ck_assert_str_eq(case_spec_defect(&spec), "sequences");
    spec = latent_spec(false);
    spec.kv_layout = ATTN_LAYOUT_MLA_LATENT_FP8;
    ck_assert_str_eq(case_spec_defect(&spec), "kv_layout");
    spec.kv_dtype = ATTN_FP8_E4M3;
    ck_assert_ptr_null(case_spec_defect(&spec));
    spec.scale_granularity = ATTN_SCALE_PER_TENSOR;
    ck_assert_str_eq(case_spec_defect(&spec), "scale_granularity");
}

/* A prefix is in the cache of the absorbed form, a key in a row, and nowhere in the expanded one.
 */
TEST_OF(cases, latents_lie_where_they_are_looked_for)
{
    struct case_spec absorbed = latent_spec(false), expanded = latent_spec(true);
    struct forward_case *a = make(&absorbed, 4), *e = make(&expanded, 4);
    const struct case_shape *shape = &a->shapes[PART_LATENT_CACHE];
    ck_assert_int_eq(shape->ndim, 3);
    ck_assert_int_eq(shape->shape[2], 128 + 16);
    for (int32_t j = 0; j < 20; j++) {
        uint8_t row[144 * 2];
        dtype_from_float(ATTN_BF16, case_latent_of(a, 0, j), 144, row);
        ck_assert_mem_eq(case_slot_vector(a, a->image, PART_LATENT_CACHE, case_slot(a, 0, j), 0),
                         row, sizeof row);
        memset(row, CASE_POISON, sizeof row);
        ck_assert_mem_eq(case_slot_vector(e, e->image, PART_LATENT_CACHE, case_slot(e, 0, j), 0),
                         row, sizeof row);
    }
    ck_assert_uint_eq(a->posed.problem.mla_expanded, 0);
    ck_assert_uint_eq(e->posed.problem.mla_expanded, ATTN_MODE_BIT(ATTN_MODE_EXTEND));
    ck_assert_int_eq(a->posed.group.head_dim, 24 + 16);
    ck_assert_float_eq(a->posed.group.sm_scale, 1 / sqrtf(24 + 16));
    ck_assert_float_eq(e->posed.group.sm_scale, a->posed.group.sm_scale);
    forward_case_destroy(a);
    forward_case_destroy(e);
}

/* Rows of gates lie at odd distances, too, where a processor promises no alignment of an even number of heads. */
TEST_OF(cases, rows_of_linear_layers_lie_at_any_distance)
{
    int odd = 0;
    for (uint64_t n = 0; n < 60; n++) {
        struct case_spec spec = {.kind = ATTN_KIND_LINEAR};
        linear_spec_draw(&spec, ATTN_LINEAR_GDN, n);
        struct forward_case *c = make(&spec, n);
        odd += spec.linear.v_heads % 2 == 0 && c->shapes[PART_GATE_A].strides[0] % 2 == 1;
        forward_case_destroy(c);
    }
    ck_assert_int_gt(odd, 0);
}

TEST_OF(cases, specs_that_contradict_themselves)
{
    struct forward_case *c = NULL;
    struct case_spec spec = plain_spec();
    spec.from_cache = true;
    ck_assert_int_eq(forward_case_create(&spec, 1, f.device, &c, &failure.base),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_null(c);
    spec = plain_spec();
    spec.attn_type = ATTN_TYPE_ENCODER_ONLY;
    ck_assert_str_eq(case_spec_defect(&spec), "kv_layout");
    spec = plain_spec();
    spec.multi_item = true;
    spec.mask_kind = ATTN_MASK_FULL;
    ck_assert_str_eq(case_spec_defect(&spec), "multi_item");
    spec = plain_spec();
    spec.kv_dtype = ATTN_FP8_E4M3;
    ck_assert_str_eq(case_spec_defect(&spec), "scale_granularity");
    spec = plain_spec();
    spec.padded = 2;
    ck_assert_str_eq(case_spec_defect(&spec), "padded");
    spec = plain_spec();
    spec.special_values = true;
    ck_assert_ptr_null(case_spec_defect(&spec));
    spec.window_left = 15;
    ck_assert_str_eq(case_spec_defect(&spec), "special_values");
    spec.window_left = -1;
    spec.attention_chunk = 16;
    ck_assert_str_eq(case_spec_defect(&spec), "special_values");
}

/* A variant has the tokens of its base, wherever it puts them. */
TEST_OF(cases, variants_have_the_tokens_of_their_base)
{
    struct case_spec spec = plain_spec(), changed;
    struct forward_case *base = make(&spec, 9), *variant = NULL;
    changed = spec;
    changed.num_sequences = 1;
    changed.sequences[0] =
        (struct case_sequence){.prefix_len = 12, .num_new = 5, .tokens_of = 1, .first_query = 12};
    GOOD(forward_case_create_variant(&changed, base, &variant, &failure.base));
    for (int32_t t = 0; t < 5; t++)
        for (int32_t head = 0; head < 4; head++)
            ck_assert_mem_eq(case_vector(variant, variant->image, PART_Q,
                                         variant->lengths.first_row[0] + t, head, 0),
                             case_vector(base, base->image, PART_Q,
                                         base->lengths.first_row[1] + 12 + t, head, 0),
                             128);
    for (int32_t j = 0; j < 12; j++)
        ck_assert_mem_eq(
            case_slot_vector(variant, variant->image, PART_K_CACHE, case_slot(variant, 0, j), 1),
            case_vector(base, base->image, PART_K, base->lengths.first_new[1] + j, 1, 0), 128);
    forward_case_destroy(variant);
    variant = NULL;
    changed.sequences[0].num_new = 22;
    ck_assert_int_eq(forward_case_create_variant(&changed, base, &variant, &failure.base),
                     ATTN_INVALID_ARGUMENT);
    forward_case_destroy(base);
}

static void slots_of(enum slot_order order, int32_t *first_of_new, int32_t *second_of_new)
{
    struct case_spec spec = plain_spec();
    spec.slots = order;
    struct forward_case *c = make(&spec, 2);
    uint8_t taken[512] = {0};
    for (int32_t s = 0; s < 3; s++)
        for (int32_t j = 0; j < c->lengths.kv_len[s]; j++) {
            int64_t slot = case_slot(c, s, j);
            ck_assert_int_ge(slot, 16); /* page 0 belongs to no sequence */
            ck_assert_int_lt(slot, (int64_t)c->num_pages * 16);
            ck_assert_msg(!taken[slot]++, "slot %lld has two tokens", (long long)slot);
        }
    *first_of_new = (int32_t)case_slot(c, 1, 0);
    *second_of_new = (int32_t)case_slot(c, 1, 16);
    forward_case_destroy(c);
}

TEST_OF(cases, every_token_has_a_slot)
{
    int32_t first, second;
    slots_of(SLOTS_CONTIGUOUS, &first, &second);
    ck_assert_int_eq(second, first + 16);
    slots_of(SLOTS_INTERLEAVED_PAGES, &first, &second);
    ck_assert_int_eq(second, first + 3 * 16);
    slots_of(SLOTS_NON_MONOTONIC_EXTEND, &first, &second);
    ck_assert_int_eq(second, first - 16);
    slots_of(SLOTS_SHUFFLED_PAGES, &first, &second);
}

/* ---- Needles --------------------------------------------------------------------------------- */

/* One row of a case by itself: its keys as they are read, and which of them it sees. */
struct lone_row {
    reference_row row;
    reference_kv_arrays arrays;
    double *keys, *values, *query, *out, *moved, *bars;
    uint8_t *bits;
    reference_row_result result;
};

static float scale_of(const struct forward_case *c, enum case_part_id part, int32_t head)
{
    const float *scales = case_part(c, case_is_absorbed(&c->spec) ? PART_LATENT_SCALE : part);
    return scales ? scales[c->spec.scale_granularity == ATTN_SCALE_PER_HEAD ? head : 0] : 1;
}

static void read_vector(const struct forward_case *c, const float *from, int32_t count, float scale,
                        double *to)
{
    attn_dtype dtype = case_is_expanded(&c->spec) ? c->spec.q_dtype : c->spec.kv_dtype;
    for (int32_t d = 0; d < count; d++) {
        double stored;
        dtype_quantise(dtype, &stored, 0, from[d], scale);
        to[d] = dtype_dequantise(dtype, &stored, 0, scale);
    }
}

static void read_keys(struct lone_row *lone, const struct forward_case *c, int32_t s,
                      int32_t kv_head)
{
    int32_t dim = c->spec.head_dim, v_dim = c->spec.v_head_dim;
    for (int32_t j = 0; j < c->lengths.kv_len[s]; j++) {
        int64_t token = case_key_token(c, s, j) * c->spec.num_kv_heads + kv_head;
        read_vector(c, c->tokens->k + token * dim, dim, scale_of(c, PART_K_SCALE, kv_head),
                    lone->keys + (int64_t)j * dim);
        if (case_is_absorbed(&c->spec)) /* the value is the first part of the key */
            memcpy(lone->values + (int64_t)j * v_dim, lone->keys + (int64_t)j * dim,
                   (size_t)v_dim * sizeof *lone->values);
        else
            read_vector(c, c->tokens->v + token * v_dim, v_dim, scale_of(c, PART_V_SCALE, kv_head),
                        lone->values + (int64_t)j * v_dim);
    }
}

static float per_head(const struct forward_case *c, enum case_part_id part, int32_t head)
{
    float value;
    memcpy(&value, case_vector(c, c->image, part, head, 0, 0), sizeof value);
    return value;
}

static void lone_row_init(struct lone_row *lone, const struct forward_case *c,
                          const struct case_needle *needle)
{
    const struct case_spec *spec = &c->spec;
    int32_t len = c->lengths.kv_len[needle->s], dim = spec->head_dim, v_dim = spec->v_head_dim;
    int64_t query = case_query_token(c, needle->s, needle->t) * spec->num_q_heads + needle->head;
    lone->keys = calloc((size_t)len * (size_t)dim, sizeof(double));
    lone->values = calloc((size_t)len * (size_t)v_dim, sizeof(double));
    lone->query = calloc((size_t)dim, sizeof(double));
    lone->out = calloc((size_t)v_dim, sizeof(double));
    lone->moved = calloc((size_t)v_dim, sizeof(double));
    lone->bars = calloc((size_t)v_dim, sizeof(double));
    lone->bits = calloc((size_t)len / 8 + 1, 1);
    read_keys(lone, c, needle->s, needle->head / (spec->num_q_heads / spec->num_kv_heads));
    for (int32_t d = 0; d < dim; d++)
        lone->query[d] = (double)c->tokens->q[query * dim + d];
    reference_sight sight = case_sight(c, needle->s, needle->t);
    for (int32_t j = 0; j < len; j++)
        if (reference_sees(&sight, j))
            lone->bits[j / 8] |= (uint8_t)(1u << j % 8);
    lone->arrays = (reference_kv_arrays){lone->keys, lone->values, dim, v_dim, dim, v_dim};
    bool sink = spec->sinks && !(spec->flags & ATTN_FORWARD_OMIT_SINK);
    lone->row = (reference_row){
        .head_dim = dim,
        .v_head_dim = v_dim,
        .kv_len = len,
        .sm_scale = (double)c->posed.group.sm_scale,
        .logit_cap = (double)spec->logit_cap,
        .alibi_slope = spec->alibi ? (double)per_head(c, PART_SLOPES, needle->head) : 0,
        .sink = sink ? (double)per_head(c, PART_SINKS, needle->head) : 0,
        .has_sink = sink,
        .operand_dtype = spec->q_dtype,
        .out_dtype = spec->out_dtype,
        .query = lone->query,
        .sight = sight};
    lone->row.sight.mask_kind = ATTN_MASK_FULL;
    lone->row.sight.mask_bits = lone->bits;
    lone->row.sight.mask_first_bit = 0;
    lone->row.sight.mask_columns = len;
    lone->row.sight.window_left = lone->row.sight.window_right = -1;
    lone->row.sight.attention_chunk = 0;
    lone->row.sight.has_items = 0;
}

static void lone_row_finish(struct lone_row *lone)
{
    void *all[] = {lone->keys,  lone->values, lone->query, lone->out,
                   lone->moved, lone->bars,   lone->bits};
    for (int i = 0; i < 7; i++)
        free(all[i]);
}

static void compute(struct lone_row *lone, double *out, double *bars)
{
    reference_kv kv = reference_kv_array(&lone->arrays);
    reference_scratch scratch;
    reference_scratch_init(&scratch);
    GOOD(reference_row_compute(&lone->row, &kv, &scratch, out, bars, &lone->result, &failure.base));
    reference_scratch_finish(&scratch);
}

/* By how many bars the row has moved since it was computed first. */
static double bars_moved(struct lone_row *lone)
{
    double largest = 0;
    compute(lone, lone->moved, NULL);
    for (int32_t d = 0; d < lone->row.v_head_dim; d++)
        largest = fmax(largest, fabs(lone->moved[d] - lone->out[d]) / lone->bars[d]);
    return largest;
}

/* The least that the row moves when the needle is left out (or taken in), or has the value of a key
 * next to it. */
static double least_move(const struct forward_case *c, const struct case_needle *needle)
{
    struct lone_row lone;
    int32_t j = needle->key, len = c->lengths.kv_len[needle->s], v_dim = c->spec.v_head_dim;
    lone_row_init(&lone, c, needle);
    compute(&lone, lone.out, lone.bars);
    lone.bits[j / 8] ^= (uint8_t)(1u << j % 8);
    double least = bars_moved(&lone);
    lone.bits[j / 8] ^= (uint8_t)(1u << j % 8);
    for (int32_t beside = j - 1; beside <= j + 1; beside += 2) {
        double own[512];
        size_t size = (size_t)v_dim * sizeof(double);
        if (!needle->is_seen || beside < 0 || beside >= len)
            continue;
        memcpy(own, lone.values + (int64_t)j * v_dim, size);
        memcpy(lone.values + (int64_t)j * v_dim, lone.values + (int64_t)beside * v_dim, size);
        least = fmin(least, bars_moved(&lone));
        memcpy(lone.values + (int64_t)j * v_dim, own, size);
    }
    lone_row_finish(&lone);
    return least;
}

static void look_at_needles(const struct case_spec *spec, uint64_t seed, int32_t *looked,
                            double *least)
{
    struct forward_case *c = make(spec, seed);
    char text[600];
    case_spec_describe(spec, text, sizeof text);
    for (int32_t i = 0; i < c->num_needles; i += 1 + c->num_needles / 20) {
        const struct case_needle *needle = &c->needles[i];
        double moved = least_move(c, needle);
        ck_assert_msg(
            moved >= 10, "key %d (seen: %d) moves query %d of sequence %d, head %d, by %g bars: %s",
            needle->key, needle->is_seen, needle->t, needle->s, needle->head, moved, text);
        *least = fmin(*least, moved);
        (*looked)++;
    }
    forward_case_destroy(c);
}

/* Ten bars or more. Those of fp8 operands, whose bars are wide, are for the judge to ask about. */
TEST_OF(needles, needles_stand_out)
{
    struct grid *grid = make_grid();
    int32_t looked = 0;
    double least = INFINITY;
    for (int32_t n = 0; n < grid->num_points; n += 2) {
        struct case_spec spec;
        ck_assert(grid_accepts(grid, &grid->points[n], &spec, NULL, 0));
        if (!spec.input_granularity && spec.out_dtype != ATTN_FP8_E4M3)
            look_at_needles(&spec, (uint64_t)n, &looked, &least);
    }
    printf("# %d needles of %g bars and more\n", looked, least);
    ck_assert_int_gt(looked, 400);
    grid_destroy(grid);
}

TEST_OF(needles, needles_of_latents_stand_out)
{
    struct grid *grid = make_grid();
    int32_t looked = 0;
    double least = INFINITY;
    for (uint64_t n = 0; n < 400 && looked < 1000; n++) {
        struct grid_point point = grid_random_latent(grid, 5, n, 0);
        struct case_spec spec;
        point.value[AXIS_LATENT_CACHE] = 0;
        if (grid_accepts(grid, &point, &spec, NULL, 0) && !spec.input_granularity)
            look_at_needles(&spec, n, &looked, &least);
    }
    printf("# %d needles of %g bars and more\n", looked, least);
    ck_assert_int_gt(looked, 400);
    grid_destroy(grid);
}

/* Every kind of border has needles on both sides. */
TEST_OF(needles, needles_are_at_every_border)
{
    struct case_spec spec = plain_spec();
    int32_t window_in = 0, window_out = 0, last = 0, page = 0, prefix = 0, split = 0;
    spec.window_left = 40;
    spec.num_kv_heads = 4;
    spec.sequences[2] = (struct case_sequence){.prefix_len = 130, .num_new = 7};
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct forward_case *c = make(&spec, seed);
        for (int32_t n = 0; n < c->num_needles; n++) {
            const struct case_needle *needle = &c->needles[n];
            int32_t i = c->lengths.prefix[needle->s] + needle->t;
            window_in += needle->key == i - 40;
            window_out += needle->key == i - 41;
            last += needle->key == i;
            page += needle->key % 16 == 0;
            prefix += needle->s == 0 && needle->key == 20;
            split += needle->key == 128 || needle->key == 127;
        }
        forward_case_destroy(c);
    }
    ck_assert_int_gt(window_in, 0);
    ck_assert_int_gt(window_out, 0);
    ck_assert_int_gt(last, 0);
    ck_assert_int_gt(page, 0);
    ck_assert_int_gt(prefix, 0);
    ck_assert_int_gt(split, 0);
}

/* ---- The judge ------------------------------------------------------------------------------- */

static struct case_verdict judge(const struct case_spec *spec, enum wrong wrong, int32_t repeat)
{
    struct case_backend backend = f.backend;
    struct case_run how = {.exact_memory = true, .repeat = repeat};
    struct case_verdict verdict;
    struct forward_case *c = make(spec, 11);
    backend.type = make_wrong(f.backend.type, wrong);
    forward_case_judge(c, &backend, &how, &verdict);
    forward_case_destroy(c);
    return verdict;
}

TEST_OF(judge, what_is_right_is_good)
{
    struct case_spec spec = plain_spec();
    struct case_verdict verdict = judge(&spec, NOTHING_WRONG, 3);
    ck_assert_msg(verdict.good, "%s", verdict.text);
    spec.padded = 5;
    spec.special_values = true;
    spec.kv_dtype = ATTN_FP8_E4M3;
    spec.scale_granularity = ATTN_SCALE_PER_HEAD;
    verdict = judge(&spec, NOTHING_WRONG, 2);
    ck_assert_msg(verdict.good, "%s", verdict.text);
    spec = plain_spec();
    spec.read_only_layer = true;
    verdict = judge(&spec, NOTHING_WRONG, 2);
    ck_assert_msg(verdict.good, "%s", verdict.text);
}

static const struct {
    enum wrong wrong;
    int32_t repeat;
    const char *word; /* of the verdict's text */
} finds[] = {
    {SCALE_OFF, 1, "error too large"},
    {LAST_KEY_DROPPED, 1, "error too large"},
    {POSITION_LATER, 1, "error too large"},
    {LSE_BASE_2, 1, "LSE row"},
    {LAST_ROW_MISSING, 1, "NaN or infinity"},
    {NEIGHBOUR_VALUE, 1, ""},
    {KV_NOT_SAVED, 1, "k_cache: "},
    {WRITES_BEYOND, 1, "out: byte"},
    {WRITES_QUERY, 1, "q: byte"},
    {WRITES_PAGE, 1, "page 1, offset 0, head 0"},
    {OVERRUNS_MEMORY, 1, "region 0"},
    {NOT_DETERMINISTIC, 2,
     "INVAR-02: repetition 2 of 2: out, row 0 (query 0 of sequence 0), head 0, element 0: got "},
    {KEEPS_SCRATCH, 3, "INVAR-02: repetition 2 of 3: out, row 0 (query 0 of sequence 0), head 0"},
};

LOOP_OF(judge, what_is_wrong_is_bad, 0, COUNT(finds))
{
    struct case_spec spec = plain_spec();
    struct case_verdict verdict = judge(&spec, finds[_i].wrong, finds[_i].repeat);
    ck_assert_msg(!verdict.good, "%d passes", finds[_i].wrong);
    ck_assert_msg(strstr(verdict.text, finds[_i].word), "\"%s\" is not in \"%s\"", finds[_i].word,
                  verdict.text);
}

static void count_note(void *ctx, int32_t run)
{
    int32_t *last = ctx;
    ck_assert_int_eq(run, *last + 1);
    *last = run;
}

/* Of a backend that promises no bits each run is judged; each but the first is named. */
TEST_OF(judge, repetitions_without_a_promise)
{
    struct case_spec spec = plain_spec();
    struct case_backend backend = f.backend;
    struct case_verdict verdict;
    int32_t last = 1;
    struct case_run how = {.exact_memory = true, .repeat = 5, .note = count_note, .ctx = &last};
    struct forward_case *c = make(&spec, 11);
    backend.type = make_wrong(f.backend.type, NOT_DETERMINISTIC);
    wrong_backend.promises_nothing = true;
    forward_case_judge(c, &backend, &how, &verdict);
    ck_assert_msg(verdict.good, "%s", verdict.text);
    ck_assert_int_eq(last, 5);
    ck_assert_uint_eq(wrong_backend.forwards, 5);
    ck_assert_int_eq(c->judged.rows_checked % 5, 0);
    last = 1;
    backend.type = make_wrong(f.backend.type, KEEPS_SCRATCH);
    wrong_backend.promises_nothing = true;
    forward_case_judge(c, &backend, &how, &verdict);
    ck_assert_msg(!verdict.good && strncmp(verdict.text, "repetition 2 of 5: ", 19) == 0 &&
                      strstr(verdict.text, "NaN or infinity"),
                  "%s", verdict.text);
    forward_case_destroy(c);
}

/* What is written anew each time: caches, and the outputs of a second layer; and padding. */
TEST_OF(judge, repetitions_begin_anew)
{
    struct case_spec spec = plain_spec();
    spec.read_only_layer = true;
    spec.padded = 5;
    spec.kv_dtype = ATTN_FP8_E4M3;
    spec.scale_granularity = ATTN_SCALE_PER_HEAD;
    struct case_verdict verdict = judge(&spec, NOTHING_WRONG, 20);
    ck_assert_msg(verdict.good, "%s", verdict.text);
    verdict = judge(&spec, NOT_DETERMINISTIC, 1);
    ck_assert_msg(verdict.good, "%s", verdict.text);
    spec.read_only_layer = false;
    verdict = judge(&spec, WRITES_PAGE_LATE, 2);
    ck_assert_msg(verdict.good, "%s", verdict.text);
    verdict = judge(&spec, WRITES_PAGE_LATE, 3);
    ck_assert_msg(strstr(verdict.text, "INVAR-02: repetition 3 of 3: v_cache: 1 bytes differ from "
                                       "the bytes after the first run"),
                  "%s", verdict.text);
}

/* With values at the limits: which rows may be anything. */
TEST_OF(judge, rows_that_are_excused)
{
    struct case_spec spec = plain_spec();
    struct case_backend backend = f.backend;
    struct case_run how = {.exact_memory = true};
    struct case_verdict verdict;
    spec.special_values = true;
    spec.num_sequences = 4;
    spec.sequences[2].num_new = 4;
    spec.sequences[3] = (struct case_sequence){.num_new = 5};
    struct forward_case *c = make(&spec, 3);
    backend.type = make_wrong(f.backend.type, ONE_ROW_MISSING);
    for (int32_t s = 0; s < 4; s++)
        for (int64_t row = c->lengths.first_row[s]; row < c->lengths.first_row[s + 1]; row++) {
            wrong_backend.row = row;
            forward_case_judge(c, &backend, &how, &verdict);
            ck_assert_msg(verdict.good ==
                              (s == 2 || (s % 2 && row == c->lengths.first_row[s + 1] - 1)),
                          "sequence %d, row %d: %s", s, (int)row, verdict.text);
        }
    forward_case_destroy(c);
}

/* A value that is NaN and seen by all: in new ones, and in the cache. */
TEST_OF(judge, nan_has_to_arrive)
{
    struct case_spec spec = plain_spec();
    spec.special_values = true;
    for (int cached = 0; cached < 2; cached++) {
        spec.sequences[0].prefix_len = cached ? 20 : 0;
        struct case_verdict verdict = judge(&spec, NAN_HIDDEN, 1);
        ck_assert_msg(!verdict.good && strstr(verdict.text, "finite"), "%s", verdict.text);
    }
}

TEST_OF(judge, what_is_wrong_with_latents_is_bad)
{
    static const struct {
        enum wrong wrong;
        bool expanded;
        const char *word;
    } of[] = {{SCALE_OFF, false, "error too large"},   {LAST_KEY_DROPPED, false, "error too large"},
              {KV_NOT_SAVED, false, "latent_cache: "}, {KV_NOT_SAVED, true, "latent_cache: "},
              {WRITES_QUERY, true, "q: byte"},         {LAST_ROW_MISSING, true, "NaN or infinity"}};
    for (size_t n = 0; n < sizeof of / sizeof of[0]; n++) {
        struct case_spec spec = latent_spec(of[n].expanded);
        struct case_verdict verdict = judge(&spec, NOTHING_WRONG, 1);
        ck_assert_msg(verdict.good, "%s", verdict.text);
        verdict = judge(&spec, of[n].wrong, 1);
        ck_assert_msg(!verdict.good && strstr(verdict.text, of[n].word), "%zu: \"%s\"", n,
                      verdict.text);
    }
}

/* Where the value of a key lies in the device's memory: in v, or in the cache. */
static char *value_at(const struct forward_case *c, int32_t s, int32_t j, int32_t head)
{
    int32_t n = j - (c->lengths.kv_len[s] - c->lengths.num_new[s]);
    return n >= 0 ? case_vector(c, c->memory, PART_V, c->lengths.first_new[s] + n, head, 0)
                  : case_slot_vector(c, c->memory, PART_V_CACHE, case_slot(c, s, j), head);
}

/* A program that takes the value of the key next to a needle for the needle's own is found out, at
 * every single needle. */
TEST_OF(judge, one_value_for_its_neighbour)
{
    struct case_spec spec = plain_spec();
    struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    struct case_backend backend = f.backend;
    const struct case_run once = {.repeat = 1};
    struct case_session *session = NULL;
    struct case_verdict verdict;
    spec.flags = 0; /* what is saved would differ, too */
    struct forward_case *c = make(&spec, 21);
    int32_t looked = 0;
    backend.type = make_wrong(f.backend.type, NOTHING_WRONG);
    GOOD(case_session_create(&backend, c, &setup, &session, &failure.base));
    case_session_repeat(session, c, &once, &verdict);
    ck_assert_msg(verdict.good, "%s", verdict.text);
    wrong_backend.wrong = ANOTHER_VALUE;
    wrong_backend.size = 128;
    for (int32_t n = 0; n < c->num_needles; n += 3) {
        const struct case_needle *needle = &c->needles[n];
        int32_t kv_head = needle->head / 2, beside = needle->key + (needle->key > 0 ? -1 : 1);
        if (!needle->is_seen || beside >= c->lengths.kv_len[needle->s])
            continue;
        wrong_backend.to = value_at(c, needle->s, needle->key, kv_head);
        wrong_backend.from = value_at(c, needle->s, beside, kv_head);
        case_session_repeat(session, c, &once, &verdict);
        ck_assert_msg(!verdict.good && strstr(verdict.text, "error too large"),
                      "needle %d: key %d of sequence %d, query %d, head %d (%g bars): %s", n,
                      needle->key, needle->s, needle->t, needle->head, least_move(c, needle),
                      verdict.text);
        looked++;
    }
    ck_assert_int_gt(looked, 20);
    case_session_destroy(session);
    forward_case_destroy(c);
}

GROUP(needles, .set_up = open_native, .tear_down = close_native, .timeout = 200);
TESTS("forward_case", .set_up = open_native, .tear_down = close_native);
