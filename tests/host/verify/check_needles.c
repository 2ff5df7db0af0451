/* SPDX-License-Identifier: Apache-2.0
 *
 * check_needles: a run's queries are needles for one of their keys (workload/generator.h). One key
 * too many or too few must move such a row by ten bars or more, or a wrong border would go through.
 */
#include "host/reference/reference.h"
#include "host/workload/generator.h"

#include <math.h>

#include "tests/tools/test_main.h"

enum { WIDEST = 576, LENGTH = 1500, ROWS = 40 };

static const generator_layer layers[] = {
    {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128, .v_head_dim = 128, .window_left = -1},
    {.kv_layer = 1,
     .num_q_heads = 2,
     .num_kv_heads = 2,
     .head_dim = 64,
     .v_head_dim = 64,
     .window_left = 100},
    {.kv_layer = 2,
     .num_q_heads = 4,
     .num_kv_heads = 1,
     .head_dim = 256,
     .v_head_dim = 256,
     .window_left = -1,
     .attention_chunk = 256},
    {.kv_layer = 3,
     .num_q_heads = 3,
     .num_kv_heads = 3,
     .head_dim = 192,
     .v_head_dim = 128,
     .window_left = 31},
    {.kv_layer = 4,
     .num_q_heads = 4,
     .num_kv_heads = 1,
     .head_dim = 576,
     .v_head_dim = 512,
     .window_left = -1,
     .latent = 1},
};
enum { LAYERS = sizeof layers / sizeof layers[0] };

/* Latent scores are scaled for the dot product that they are made of. */
static const double scaled_for[LAYERS] = {128, 64, 256, 192, 192};

static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_F16, ATTN_F32};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static const int64_t hash_ids[3] = {7, 8, 9};
static trace_request request = {
    .input_length = LENGTH, .output_length = 40, .num_hash_ids = 3, .hash_ids = hash_ids};
static struct workload workload;
static struct generator generator;

static void set_up(void)
{
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 1, .requests = &request};
    ck_assert_int_eq(workload_init(&workload, &trace,
                                   &(workload_params){.length_scale = 1, .max_context_len = 2000},
                                   NULL),
                     ATTN_OK);
    ck_assert_int_eq(generator_init(&generator, 5, layers, LAYERS, 16, 256, NULL), ATTN_OK);
}

static void tear_down(void)
{
    workload_finish(&workload);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The keys of one KV head that a query sees: `begin` .. `end`, and one that is left out or added.
 */
struct keys {
    int32_t layer, head;
    int64_t begin, end;
    int64_t changed; /* -1 = none */
};

static int is_inside(const struct keys *keys, int64_t j)
{
    return j >= keys->begin && j < keys->end;
}

/* The token at index i: a key that is added comes last. */
static int64_t token_at(const struct keys *keys, int64_t i)
{
    int64_t j = keys->begin + i;
    if (keys->changed < 0)
        return j;
    if (is_inside(keys, keys->changed))
        return j < keys->changed ? j : j + 1;
    return j < keys->end ? j : keys->changed;
}

static int64_t count_keys(const struct keys *keys)
{
    int64_t count = keys->end - keys->begin;
    return keys->changed < 0 ? count : is_inside(keys, keys->changed) ? count - 1 : count + 1;
}

static void read_key(void *ctx, int64_t i, double *key, double *value)
{
    const struct keys *keys = ctx;
    const generator_layer *layer = &layers[keys->layer];
    struct request_tokens tokens = workload_tokens(&workload, 0);
    token_key token = token_key_at(&tokens, token_at(keys, i));
    int8_t raw[WIDEST];
    int32_t value_role = layer->latent ? GENERATOR_KEY : GENERATOR_VALUE;
    if (key)
        generator_raw(&generator, token, keys->layer, keys->head, GENERATOR_KEY, layer->head_dim,
                      raw);
    for (int32_t d = 0; key && d < layer->head_dim; d++)
        key[d] = raw[d] / (double)GENERATOR_UNITS;
    if (value)
        generator_raw(&generator, token, keys->layer, keys->head, value_role, layer->v_head_dim,
                      raw);
    for (int32_t d = 0; value && d < layer->v_head_dim; d++)
        value[d] = raw[d] / (double)GENERATOR_UNITS;
}

static void compute(const struct keys *keys, int64_t position, int32_t q_head, attn_dtype dtype,
                    double *out, double *bars)
{
    const generator_layer *layer = &layers[keys->layer];
    int16_t raw[WIDEST];
    double query[WIDEST];
    generator_query(&generator, &workload, 0, position, keys->layer, q_head, raw);
    for (int32_t d = 0; d < layer->head_dim; d++)
        query[d] = raw[d] / (double)GENERATOR_UNITS;
    const reference_row row = {.head_dim = layer->head_dim,
                               .v_head_dim = layer->v_head_dim,
                               .kv_len = count_keys(keys),
                               .sm_scale = 1 / sqrt(scaled_for[keys->layer]),
                               .operand_dtype = dtype,
                               .out_dtype = dtype,
                               .query = query,
                               .sight = reference_sight_all()};
    const reference_kv kv = {.read = read_key, .ctx = (void *)(uintptr_t)keys};
    reference_row_result result;
    reference_scratch scratch;
    reference_scratch_init(&scratch);
    ck_assert_int_eq(reference_row_compute(&row, &kv, &scratch, out, bars, &result, NULL), ATTN_OK);
    reference_scratch_finish(&scratch);
}

/* By how many bars the row moves at its worst element if the key is left out or added. */
static double moves(struct keys keys, int64_t position, int32_t q_head, int64_t target,
                    attn_dtype dtype)
{
    double truth[WIDEST], bars[WIDEST], changed[WIDEST], worst = 0;
    compute(&keys, position, q_head, dtype, truth, bars);
    keys.changed = target;
    compute(&keys, position, q_head, dtype, changed, NULL);
    for (int32_t d = 0; d < layers[keys.layer].v_head_dim; d++)
        worst = fmax(worst, fabs(changed[d] - truth[d]) / bars[d]);
    return worst;
}

/* What a causal query of this layer sees. */
static struct keys seen_from(int32_t layer, int32_t q_head, int64_t position)
{
    const generator_layer *geometry = &layers[layer];
    int64_t window = geometry->window_left < 0 ? 0 : position - geometry->window_left;
    int64_t chunk = geometry->attention_chunk;
    int64_t begin = chunk ? position / chunk * chunk : window > 0 ? window : 0;
    return (struct keys){.layer = layer,
                         .head = q_head / (geometry->num_q_heads / geometry->num_kv_heads),
                         .begin = begin,
                         .end = position + 1,
                         .changed = -1};
}

/* ---- Tests ----------------------------------------------------------------------------------- */

LOOP_OF(needles, a_needle_moves_its_row, 0, (LAYERS * DTYPES))
{
    const int32_t layer = _i / DTYPES;
    const attn_dtype dtype = dtypes[_i % DTYPES];
    int needles = 0, outside = 0;
    for (int64_t n = 0; needles < ROWS; n++) {
        int64_t position = 2 + n * 37 % (LENGTH - 2);
        int32_t q_head = (int32_t)(n % layers[layer].num_q_heads);
        int64_t target = generator_needle(&generator, &workload, 0, position, layer, q_head);
        struct keys keys = seen_from(layer, q_head, position);
        ck_assert_int_lt(n, 1000);
        if (target < 0)
            continue;
        double moved = moves(keys, position, q_head, target, dtype);
        ck_assert_msg(moved >= 10,
                      "layer %d, position %lld, head %d, key %lld: it moves the row by %.3g bars",
                      layer, (long long)position, q_head, (long long)target, moved);
        outside += !is_inside(&keys, target);
        needles++;
    }
    ck_assert_int_gt(outside, 0);
    ck_assert_int_lt(outside, needles);
}

GROUP(needles, .set_up = set_up, .tear_down = tear_down);
TESTS("needles");
