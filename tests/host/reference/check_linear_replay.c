/* SPDX-License-Identifier: Apache-2.0
 *
 * check_linear_replay.c: the oracle's recurrence some rows and some heads at a time: to the bit
 * what a whole forward gives, in both forms.
 */
#include "host/reference/linear_replay.h"

#include <math.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/mix.h"
#include "host/reference/linear_step.h"
#include "tests/tools/linear_run_fixture.h"
#include "tests/tools/test_main.h"

/* ---- The replay in pieces -------------------------------------------------------------------- */

/* What a forward's tensors hold, as the replay wants it. */
static double *as_doubles(const struct forward *f, uint32_t role)
{
    const attn_tensor *tensor = f->operands[role];
    int64_t count = 1;
    if (!tensor)
        return NULL;
    for (uint32_t d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    double *doubles = malloc((size_t)count * sizeof *doubles);
    dtype_to_double(tensor->dtype, tensor->data, count, doubles);
    return doubles;
}

struct replay_case {
    struct forward *whole;
    reference_linear_layer layer;
    double *operands[ATTN_ROLE_COUNT];
    reference_scratch scratch;
};

static void case_init(struct replay_case *c, bool with_z)
{
    *c = (struct replay_case){.whole = forward_create(0, 1, 0, RUN_MAX_LEN, NULL, with_z)};
    ck_assert_int_eq(
        reference_linear_layer_init(&c->layer, run.group, run.model->dtype, run.model->dtype, NULL),
        ATTN_OK);
    for (uint32_t role = ATTN_ROLE_MIXED_QKV; role <= ATTN_ROLE_CONV_BIAS; role++)
        c->operands[role] = as_doubles(c->whole, role);
    const attn_linear_dims *dims = run.group->linear;
    double *skip = c->operands[ATTN_ROLE_D_SKIP];
    if (skip) { /* one for each element */
        double *wide = malloc((size_t)(dims->num_v_heads * dims->head_v_dim) * sizeof *wide);
        for (int32_t n = 0; n < dims->num_v_heads * dims->head_v_dim; n++)
            wide[n] = skip[n / dims->head_v_dim];
        free(skip);
        c->operands[ATTN_ROLE_D_SKIP] = wide;
    }
    c->layer.weight = c->operands[ATTN_ROLE_CONV_WEIGHT];
    c->layer.bias = c->operands[ATTN_ROLE_CONV_BIAS];
    c->layer.a_log = c->operands[ATTN_ROLE_A_LOG];
    c->layer.dt_bias = c->operands[ATTN_ROLE_DT_BIAS];
    c->layer.skip = c->operands[ATTN_ROLE_D_SKIP];
    reference_scratch_init(&c->scratch);
}

static void case_finish(struct replay_case *c)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        free(c->operands[role]);
    reference_scratch_finish(&c->scratch);
    forward_destroy(c->whole);
}

static reference_linear_rows rows_at(const struct replay_case *c, int64_t first, int64_t count)
{
    reference_linear_rows rows = {.count = count};
    const double **const to[] = {&rows.mixed, &rows.a, &rows.b, &rows.z};
    for (uint32_t n = 0; n < 4; n++) {
        uint32_t role = ATTN_ROLE_MIXED_QKV + n;
        if (c->operands[role])
            *to[n] = c->operands[role] + first * generator_linear_elements(run.group, role);
    }
    return rows;
}

/* Replay rows `first` .. of some heads, and hold them to the whole forward; row t is wanted unless
 * `skipped` divides t. */
static void advance(struct replay_case *c, reference_linear_replay *replay, int64_t first,
                    int64_t count, int64_t skipped)
{
    static double out[RUN_MAX_LEN * RUN_MAX_HEADS * RUN_MAX_DIM];
    static reference_row_result results[RUN_MAX_LEN * RUN_MAX_HEADS];
    const reference_result *whole = &c->whole->result;
    uint8_t wanted[RUN_MAX_LEN];
    double most = 0;
    size_t v_dim = (size_t)whole->v_head_dim;
    reference_linear_rows rows = rows_at(c, first, count);
    for (int64_t t = 0; t < count; t++)
        wanted[t] = (first + t) % skipped != 0;
    memset(out, 0xa5, sizeof out);
    memset(results, 0xa5, sizeof results);
    ck_assert_int_eq(reference_linear_replay_advance(replay, &rows,
                                                     skipped > RUN_MAX_LEN ? NULL : wanted,
                                                     &c->scratch, out, results, NULL),
                     ATTN_OK);
    for (int64_t t = 0; t < count; t++)
        for (int32_t h = 0; h < replay->num_heads; h++) {
            int64_t n = t * replay->num_heads + h;
            int64_t entry = (first + t) * whole->num_heads + replay->first_head + h;
            if (skipped <= RUN_MAX_LEN && !wanted[t]) {
                ck_assert_int_eq(*(const uint8_t *)&out[n * (int64_t)v_dim], 0xa5);
                ck_assert_int_eq(*(const uint8_t *)&results[n], 0xa5);
                continue;
            }
            ck_assert_mem_eq(out + n * (int64_t)v_dim, whole->out + entry * (int64_t)v_dim,
                             v_dim * sizeof *out);
            ck_assert_double_eq(results[n].bar, whole->rows[entry].bar);
            ck_assert_double_eq(results[n].terms, whole->rows[entry].terms);
            /* A sum is at most that of its absolute terms. */
            for (size_t d = 0; d < v_dim; d++)
                most = fmax(most, fabs(out[n * (int64_t)v_dim + (int64_t)d]) / results[n].terms);
        }
    ck_assert_double_le(most, 1 + 1e-12);
}

/* Both forms' final states are those of the whole forward. */
static void states_equal(const struct replay_case *c, const reference_linear_replay *replay)
{
    const attn_linear_dims *dims = run.group->linear;
    const reference_state *entry = &c->whole->states.entries[0];
    int different = 0;
    for (int32_t h = 0; entry->state && h < replay->num_heads; h++) {
        double error = 0;
        for (int32_t i = 0; i < dims->head_k_dim; i++)
            for (int32_t j = 0; j < dims->head_v_dim; j++) {
                int64_t row = (int64_t)(replay->first_head + h) * dims->head_k_dim + i;
                int64_t n = ((int64_t)h * dims->head_k_dim + i) * replay->stride + j;
                different += replay->truth[n] != entry->state[row * dims->head_v_dim + j];
                error = fmax(error, fabs(dtype_round(dims->state_dtype, (double)replay->naive[n]) -
                                         replay->truth[n]));
            }
        ck_assert_double_eq(error, entry->error[replay->first_head + h]);
    }
    for (int32_t channel = 0; channel < replay->channels.total; channel++)
        for (int32_t n = 0; n < c->layer.taps; n++)
            different += replay->inputs[(int64_t)n * replay->channels.total + channel] !=
                         entry->conv[(int64_t)reference_linear_channel(&replay->channels, channel) *
                                         c->layer.taps +
                                     n];
    ck_assert_int_eq(different, 0);
}

/* All cuts of the heads into runs of `heads`, of the rows into lengths that grow, and two runs of
 * one replay. */
static void replay_in(struct replay_case *c, int32_t heads, int64_t skipped)
{
    for (int32_t first_head = 0; first_head < run.group->linear->num_v_heads; first_head += heads) {
        int32_t left = run.group->linear->num_v_heads - first_head;
        reference_linear_replay replay;
        ck_assert_int_eq(reference_linear_replay_init(&replay, &c->layer, first_head,
                                                      left < heads ? left : heads, NULL),
                         ATTN_OK);
        for (int again = 0; again < 2; again++) {
            int64_t done = 0;
            for (int64_t length = again; done < RUN_MAX_LEN; length = length % 7 + 1) {
                int64_t count = done + length < RUN_MAX_LEN ? length : RUN_MAX_LEN - done;
                advance(c, &replay, done, count, skipped);
                done += count;
            }
            states_equal(c, &replay);
            reference_linear_replay_reset(&replay);
        }
        reference_linear_replay_finish(&replay);
    }
    reference_linear_replay_finish(NULL);
}

LOOP_OF(replay, in_pieces, 0, 2 * RUN_MODELS)
{
    struct replay_case c;
    linear_run_init(_i / 2, 1);
    case_init(&c, _i % 2);
    replay_in(&c, RUN_MAX_HEADS, RUN_MAX_LEN + 1);
    replay_in(&c, 1, 3);
    replay_in(&c, 2, 2);
    replay_in(&c, 5, RUN_MAX_LEN + 1);
    case_finish(&c);
    linear_run_finish();
}

/* Storing rounds the naive form and what the convolution keeps, and not the truth. */
LOOP_OF(replay, storing, 0, RUN_MODELS)
{
    struct replay_case c;
    reference_linear_replay replay;
    linear_run_init(_i, 1);
    case_init(&c, false);
    const attn_linear_dims *dims = run.group->linear;
    ck_assert_int_eq(reference_linear_replay_init(&replay, &c.layer, 0, dims->num_v_heads, NULL),
                     ATTN_OK);
    advance(&c, &replay, 0, RUN_MAX_LEN, RUN_MAX_LEN + 1);
    size_t size = (size_t)dims->num_v_heads * (size_t)dims->head_k_dim * (size_t)replay.stride;
    size_t inputs = (size_t)c.layer.taps * (size_t)replay.channels.total;
    double *truth = malloc((size + inputs) * sizeof *truth + 1);
    float *naive = malloc(size * sizeof *naive + 1);
    memcpy(truth, replay.truth, size * sizeof *truth);
    memcpy(naive, replay.naive, size * sizeof *naive);
    memcpy(truth + size, replay.inputs, inputs * sizeof *truth);
    reference_linear_replay_store(&replay);
    int different = 0;
    for (size_t n = 0; n < size; n++)
        different += (double)replay.naive[n] != dtype_round(dims->state_dtype, (double)naive[n]);
    ck_assert_mem_eq(truth, replay.truth, size * sizeof *truth);
    for (size_t n = 0; n < inputs; n++)
        different += replay.inputs[n] != dtype_round(dims->conv_dtype, truth[size + n]);
    ck_assert_int_eq(different, 0);
    free(truth);
    free(naive);
    reference_linear_replay_finish(&replay);
    case_finish(&c);
    linear_run_finish();
}

/* Three steps by each set of instructions: outputs, sums of terms and states, to the bit. */
LOOP_OF(replay, kernels_agree, 0, 2)
{
    enum { K = 19, V = 21, STRIDE = 24, STEPS = 3 };
    reference_linear_layer layer = {
        .dims = {.family = _i % 2 ? ATTN_LINEAR_GDN : ATTN_LINEAR_MAMBA2,
                 .head_k_dim = K,
                 .head_v_dim = V},
        .sm_scale = 0.3};
    double in[STEPS][2 * K + V + K], truth[2][K * STRIDE], to[2][2][STEPS][2 * V];
    float naive[2][K * STRIDE];
    double *work = malloc((size_t)linear_step_work(&layer) * sizeof *work);
    for (int t = 0; t < STEPS; t++)
        for (int n = 0; n < 3 * K + V; n++)
            in[t][n] = (double)(mix_stream((uint64_t)t, (uint64_t)n) >> 11) / 0x1p53 - 0.25;
    for (int32_t set = 0; linear_kernels_here(set); set++) {
        int at = set > 0;
        memset(truth[at], 0, sizeof truth[at]);
        memset(naive[at], 0, sizeof naive[at]);
        memset(to[at], 0, sizeof to[at]);
        for (int t = 0; t < STEPS; t++)
            for (int n = 0; n < 2; n++) {
                const linear_token token = {.q = in[t],
                                            .k = in[t] + K,
                                            .v = in[t] + 2 * K,
                                            .decay = in[t] + 2 * K + V,
                                            .beta = 0.7,
                                            .wanted = t != 1,
                                            .out = to[at][n][t],
                                            .terms = to[at][n][t] + V};
                if (n == 0)
                    linear_kernels_here(set)->truth(&layer, &token, truth[at], work);
                else
                    linear_kernels_here(set)->naive(&layer, &token, naive[at], work);
            }
        ck_assert_double_ne(to[at][0][2][0], 0);
        ck_assert_mem_eq(truth[at], truth[0], sizeof truth[0]);
        ck_assert_mem_eq(naive[at], naive[0], sizeof naive[0]);
        ck_assert_mem_eq(to[at], to[0], sizeof to[0]);
    }
    free(work);
}

/* The quick way of rounding to bf16 is that of dtype.h: random numbers, ties, ends of the range. */
TEST_OF(replay, rounding)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
    int different = 0;
    for (uint64_t n = 0; n < 200000; n++) {
        uint64_t word = mix_stream(1, n);
        uint32_t bits = (uint32_t)word;
        float x;
        if (n % 3 == 0)
            bits = (bits & 0xffff0000u) | 0x8000u;
        if (n % 17 == 0)
            bits |= 0x7f7f0000u;
        if (n % 19 == 0)
            bits &= 0x807fffffu;
        memcpy(&x, &bits, sizeof x);
        for (int d = 0; d < 3; d++) {
            double quick = linear_round(dtypes[d], (double)x);
            double slow = dtype_round(dtypes[d], (double)x);
            different += isnan(slow) ? !isnan(quick) : quick != slow;
        }
    }
    ck_assert_int_eq(different, 0);
}

TESTS("linear_replay");
