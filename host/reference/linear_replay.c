/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_replay.c: a recurrence computed row by row, in the exact and in the naive form.
 */
#include "host/reference/linear_step.h"

#include "host/base/error.h"
#include "host/base/fpu.h"

#include <stdlib.h>

enum { TRUTH, NAIVE, FORMS };

/* The pass rule of linear layers: linear.h. */
static const double naive_factor = 2, floor_factor = 1e-5;

/* ---- The layer ------------------------------------------------------------------------------- */

static attn_status check_dims(const attn_linear_dims *dims, attn_error *error)
{
    int has_keys = dims->family != ATTN_LINEAR_SHORT_CONV;
    if (dims->family >= ATTN_LINEAR_COUNT)
        return host_fail(error, ATTN_UNSUPPORTED, "linear.family %u has no oracle: accepted 0..%d",
                         dims->family, ATTN_LINEAR_COUNT - 1);
    if (dims->num_v_heads < 1 || dims->head_v_dim < 1 || dims->conv_width < 0 ||
        (has_keys && (dims->num_k_heads < 1 || dims->head_k_dim < 1 ||
                      dims->num_v_heads % dims->num_k_heads != 0)) ||
        (!has_keys && (dims->num_k_heads != 0 || dims->head_k_dim != 0 || dims->conv_width < 1)))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "linear dims: %d k heads of %d, %d v heads of %d, conv_width %d: accepted "
                         "v heads a multiple of k heads; short_conv: no k heads, a convolution",
                         dims->num_k_heads, dims->head_k_dim, dims->num_v_heads, dims->head_v_dim,
                         dims->conv_width);
    if (dims->family == ATTN_LINEAR_MAMBA2 && dims->num_groups != dims->num_k_heads)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "linear.num_groups %d: accepted num_k_heads, %d", dims->num_groups,
                         dims->num_k_heads);
    return ATTN_OK;
}

attn_status reference_linear_layer_init(reference_linear_layer *layer,
                                        const attn_layer_group *group, attn_dtype operand_dtype,
                                        attn_dtype out_dtype, attn_error *error)
{
    const attn_linear_dims *dims = group->linear;
    if (group->kind != ATTN_KIND_LINEAR || !dims)
        return host_fail(error, ATTN_UNSUPPORTED, "layer kind %u: accepted %d, with dimensions",
                         group->kind, ATTN_KIND_LINEAR);
    attn_status status = check_dims(dims, error);
    if (status != ATTN_OK)
        return status;
    int32_t keys = dims->num_k_heads * dims->head_k_dim;
    int32_t values = dims->num_v_heads * dims->head_v_dim;
    int mamba2 = dims->family == ATTN_LINEAR_MAMBA2;
    *layer = (reference_linear_layer){
        .dims = *dims,
        .sm_scale = (double)group->sm_scale,
        .operand_dtype = operand_dtype,
        .out_dtype = out_dtype,
        .channels = 2 * keys + values,
        .first = {mamba2 ? values + keys : 0, mamba2 ? values : keys, mamba2 ? 0 : 2 * keys},
        .taps = dims->conv_width > 1 ? dims->conv_width - 1 : 0,
    };
    return ATTN_OK;
}

/* ---- Which heads ----------------------------------------------------------------------------- */

/* All of a replay but its memory. */
static void describe(reference_linear_replay *replay, const reference_linear_layer *layer,
                     int32_t first_head, int32_t num_heads)
{
    const attn_linear_dims *dims = &layer->dims;
    int32_t k_dim = dims->head_k_dim, v_dim = dims->head_v_dim;
    *replay = (reference_linear_replay){.layer = layer,
                                        .first_head = first_head,
                                        .num_heads = num_heads,
                                        .stride = linear_stride(layer)};
    if (dims->num_k_heads > 0) {
        int32_t shared = dims->num_v_heads / dims->num_k_heads;
        replay->first_k_head = first_head / shared;
        replay->num_k_heads = (first_head + num_heads - 1) / shared + 1 - replay->first_k_head;
    }
    reference_linear_channels *channels = &replay->channels;
    int32_t keys = replay->first_k_head * k_dim;
    const int32_t first[] = {keys, keys, first_head * v_dim};
    for (int part = 0; part < 3; part++) {
        channels->first[part] = layer->first[part] + first[part];
        channels->count[part] = part < 2 ? replay->num_k_heads * k_dim : num_heads * v_dim;
        channels->total += channels->count[part];
    }
}

int32_t reference_linear_channel(const reference_linear_channels *channels, int32_t c)
{
    int part = 0;
    for (; c >= channels->count[part]; part++)
        c -= channels->count[part];
    return channels->first[part] + c;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Elements of all states of one form. */
static uint64_t state_size(const reference_linear_replay *replay)
{
    return (uint64_t)replay->num_heads * (uint64_t)replay->layer->dims.head_k_dim *
           (uint64_t)replay->stride;
}

static uint64_t inputs_size(const reference_linear_replay *replay)
{
    return (uint64_t)replay->layer->taps * (uint64_t)replay->channels.total;
}

static uint64_t bytes_of(const reference_linear_replay *replay)
{
    return state_size(replay) * (sizeof *replay->truth + sizeof *replay->naive) +
           inputs_size(replay) * sizeof *replay->inputs;
}

uint64_t reference_linear_replay_bytes(const reference_linear_layer *layer, int32_t first_head,
                                       int32_t num_heads)
{
    reference_linear_replay replay;
    describe(&replay, layer, first_head, num_heads);
    return bytes_of(&replay);
}

attn_status reference_linear_replay_init(reference_linear_replay *replay,
                                         const reference_linear_layer *layer, int32_t first_head,
                                         int32_t num_heads, attn_error *error)
{
    describe(replay, layer, first_head, num_heads);
    replay->truth = calloc(bytes_of(replay) + 1, 1);
    if (!replay->truth)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "reference: no memory for the states of %d heads", num_heads);
    replay->inputs = replay->truth + state_size(replay);
    replay->naive = (float *)(replay->inputs + inputs_size(replay));
    return ATTN_OK;
}

attn_status reference_linear_replay_copy(reference_linear_replay *replay,
                                         const reference_linear_replay *from, attn_error *error)
{
    attn_status status =
        reference_linear_replay_init(replay, from->layer, from->first_head, from->num_heads, error);
    if (status != ATTN_OK)
        return status;
    replay->rounded = from->rounded;
    memcpy(replay->truth, from->truth, bytes_of(from));
    return ATTN_OK;
}

void reference_linear_replay_finish(reference_linear_replay *replay)
{
    if (!replay)
        return;
    free(replay->truth);
    *replay = (reference_linear_replay){0};
}

void reference_linear_replay_reset(reference_linear_replay *replay)
{
    replay->rounded = 0;
    memset(replay->truth, 0, bytes_of(replay));
}

/* What some rows are computed in. */
struct work {
    double *inputs;          /* [taps + count, total] */
    double *channels[FORMS]; /* [count, total] after the convolution */
    double *terms;           /* [count, total] of the convolution; NULL = not wanted */
    double *decay;           /* [K] */
    double *out[FORMS];      /* [V] */
    double *out_terms;       /* [V] of the truth, */
    double *unused;          /* [V] and of the naive form, which is not wanted */
    double *step;            /* linear_step_work() */
    const linear_kernels *kernels;
};

static double *take(double **next, int64_t count)
{
    double *taken = *next;
    *next += count;
    return taken;
}

static attn_status lay_out(const reference_linear_replay *replay, int64_t count,
                           reference_scratch *scratch, struct work *work, attn_error *error)
{
    const reference_linear_layer *layer = replay->layer;
    int64_t total = replay->channels.total, v_dim = layer->dims.head_v_dim;
    int convolution = layer->dims.family == ATTN_LINEAR_SHORT_CONV;
    int64_t elements = (layer->taps + (3 + convolution) * count) * total + layer->dims.head_k_dim +
                       4 * v_dim + linear_step_work(layer);
    uint64_t size = (uint64_t)elements * sizeof(double);
    if (size > scratch->size) {
        void *memory = realloc(scratch->memory, size);
        if (!memory)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %lld rows",
                             (long long)count);
        scratch->memory = memory;
        scratch->size = size;
    }
    double *next = scratch->memory;
    work->inputs = take(&next, (layer->taps + count) * total);
    work->channels[TRUTH] = take(&next, count * total);
    work->channels[NAIVE] = take(&next, count * total);
    work->terms = convolution ? take(&next, count * total) : NULL;
    work->decay = take(&next, layer->dims.head_k_dim);
    work->out[TRUTH] = take(&next, v_dim);
    work->out[NAIVE] = take(&next, v_dim);
    work->out_terms = take(&next, v_dim);
    work->unused = take(&next, v_dim);
    work->step = next;
    work->kernels = linear_kernels_here(0);
    return ATTN_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static linear_form form_of(const reference_linear_layer *layer, int n)
{
    return (linear_form){n == NAIVE, layer->operand_dtype};
}

/* The inputs of these rows after those before them, of which the last ones are kept. */
static void gather_inputs(reference_linear_replay *replay, const reference_linear_rows *rows,
                          double *inputs)
{
    const reference_linear_channels *channels = &replay->channels;
    uint64_t kept = inputs_size(replay);
    memcpy(inputs, replay->inputs, kept * sizeof *inputs);
    double *to = inputs + kept;
    for (int64_t t = 0; t < rows->count; t++)
        for (int part = 0; part < 3; part++) {
            memcpy(to, rows->mixed + t * replay->layer->channels + channels->first[part],
                   (size_t)channels->count[part] * sizeof *to);
            to += channels->count[part];
        }
    memcpy(replay->inputs, to - kept, kept * sizeof *to);
}

/* q, k and v of all rows in both forms. */
static void convolve_rows(const reference_linear_replay *replay, int64_t count, struct work *work)
{
    const reference_linear_layer *layer = replay->layer;
    int32_t total = replay->channels.total, k_dim = layer->dims.head_k_dim;
    for (int n = 0; n < FORMS; n++) {
        linear_form form = form_of(layer, n);
        linear_convolve(layer, &form, &replay->channels, work->inputs, count, work->channels[n],
                        n == TRUTH ? work->terms : NULL);
        for (int64_t t = 0; t < count; t++)
            for (int32_t h = 0; h < 2 * replay->num_k_heads; h++)
                linear_normalise(layer, &form, work->channels[n] + t * total + h * k_dim);
    }
}

/* Row t of head `h` of the replay in one form. */
static void compute_form(reference_linear_replay *replay, const reference_linear_rows *rows,
                         int64_t t, int32_t h, int n, int32_t wanted, struct work *work)
{
    const reference_linear_layer *layer = replay->layer;
    const attn_linear_dims *dims = &layer->dims;
    int32_t head = replay->first_head + h, k_dim = dims->head_k_dim, v_dim = dims->head_v_dim;
    int64_t row = t * replay->channels.total, keys = replay->channels.count[0];
    int64_t value = row + 2 * keys + (int64_t)h * v_dim,
            state = (int64_t)h * k_dim * replay->stride;
    double *terms = n == TRUTH ? work->out_terms : work->unused;
    linear_form form = form_of(layer, n);
    if (dims->family == ATTN_LINEAR_SHORT_CONV) {
        memcpy(work->out[n], work->channels[n] + value, (size_t)v_dim * sizeof(double));
        memcpy(terms, work->terms + value, (size_t)v_dim * sizeof(double));
    } else {
        int32_t k_head = head / (dims->num_v_heads / dims->num_k_heads) - replay->first_k_head;
        linear_token token = {.q = work->channels[n] + row + (int64_t)k_head * k_dim,
                              .v = work->channels[n] + value,
                              .decay = work->decay,
                              .skip = layer->skip ? layer->skip + (int64_t)head * v_dim : NULL,
                              .wanted = wanted,
                              .out = work->out[n],
                              .terms = terms};
        token.k = token.q + keys;
        token.beta = linear_gates(layer, &form, rows, t, head, work->decay);
        if (n == TRUTH)
            work->kernels->truth(layer, &token, replay->truth + state, work->step);
        else
            work->kernels->naive(layer, &token, replay->naive + state, work->step);
    }
    if (rows->z && wanted)
        linear_output_gate(layer, &form, rows->z + (t * dims->num_v_heads + head) * v_dim,
                           work->out[n], terms);
}

/* The least naive error of row t of head `h` where states were rounded: see
 * reference_linear_replay_store(). */
static double least_error(const reference_linear_replay *replay, const reference_linear_rows *rows,
                          int64_t t, int32_t h, struct work *work)
{
    const reference_linear_layer *layer = replay->layer;
    const attn_linear_dims *dims = &layer->dims;
    int32_t head = replay->first_head + h, k_dim = dims->head_k_dim, v_dim = dims->head_v_dim;
    int32_t k_head = head / (dims->num_v_heads / dims->num_k_heads) - replay->first_k_head;
    const double *q = work->channels[TRUTH] + t * replay->channels.total + (int64_t)k_head * k_dim;
    double *spread = work->unused, most = 0;
    linear_form form = form_of(layer, TRUTH);
    memset(spread, 0, (size_t)v_dim * sizeof *spread);
    for (int32_t i = 0; i < k_dim; i++)
        for (int32_t j = 0; j < v_dim; j++) {
            int64_t n = ((int64_t)h * k_dim + i) * replay->stride + j;
            double term = q[i] * ((double)replay->naive[n] - replay->truth[n]);
            spread[j] += term * term;
        }
    for (int32_t j = 0; j < v_dim; j++)
        spread[j] = 3 * fabs(layer->sm_scale) * sqrt(spread[j]);
    if (rows->z)
        linear_output_gate(layer, &form, rows->z + (t * dims->num_v_heads + head) * v_dim,
                           work->step, spread);
    for (int32_t j = 0; j < v_dim; j++) {
        double farthest = fabs(work->out[TRUTH][j]) + 2 * spread[j];
        double error = spread[j] + dtype_half_unit(layer->out_dtype, farthest) / 2;
        most = isfinite(error) ? fmax(most, error) : most;
    }
    return most;
}

/* Compare the two forms of a row and keep what the truth says. The naive error is `least` at least.
 */
static void keep_row(const reference_linear_layer *layer, const struct work *work, double least,
                     double *out, reference_row_result *kept)
{
    const double *truth = work->out[TRUTH];
    double naive_error = least;
    *kept = (reference_row_result){0};
    for (int32_t j = 0; j < layer->dims.head_v_dim; j++) {
        double rounded = linear_round(layer->out_dtype, work->out[NAIVE][j]);
        if (isfinite(rounded) && isfinite(truth[j]))
            naive_error = fmax(naive_error, fabs(rounded - truth[j]));
        if (isfinite(work->out_terms[j]))
            kept->terms = fmax(kept->terms, work->out_terms[j]);
        out[j] = truth[j];
    }
    kept->bar = naive_factor * naive_error + floor_factor * kept->terms;
}

static __attribute__((noinline)) attn_status
advance(reference_linear_replay *replay, const reference_linear_rows *rows, const uint8_t *wanted,
        reference_scratch *scratch, double *out, reference_row_result *results, attn_error *error)
{
    struct work work = {0};
    attn_status status = lay_out(replay, rows->count, scratch, &work, error);
    if (status != ATTN_OK)
        return status;
    gather_inputs(replay, rows, work.inputs);
    convolve_rows(replay, rows->count, &work);
    for (int32_t h = 0; h < replay->num_heads; h++)
        for (int64_t t = 0; t < rows->count; t++) {
            int64_t entry = t * replay->num_heads + h;
            int32_t kept = !wanted || wanted[t];
            for (int n = 0; n < FORMS; n++)
                compute_form(replay, rows, t, h, n, kept, &work);
            if (!kept)
                continue;
            int rounded = replay->rounded && replay->num_k_heads > 0;
            keep_row(replay->layer, &work, rounded ? least_error(replay, rows, t, h, &work) : 0,
                     out + entry * replay->layer->dims.head_v_dim, &results[entry]);
        }
    return ATTN_OK;
}

attn_status reference_linear_replay_advance(reference_linear_replay *replay,
                                            const reference_linear_rows *rows,
                                            const uint8_t *wanted, reference_scratch *scratch,
                                            double *out, reference_row_result *results,
                                            attn_error *error)
{
    uint64_t fpu = fpu_pin();
    attn_status status = advance(replay, rows, wanted, scratch, out, results, error);
    fpu_unpin(fpu);
    return status;
}

void reference_linear_replay_store(reference_linear_replay *replay)
{
    const attn_linear_dims *dims = &replay->layer->dims;
    replay->rounded = dims->state_dtype != ATTN_F32;
    if (replay->rounded)
        for (uint64_t n = 0; n < state_size(replay); n++)
            replay->naive[n] = (float)linear_round(dims->state_dtype, (double)replay->naive[n]);
    /* Inputs are of the operands' dtype as they come. */
    if (dims->conv_dtype != replay->layer->operand_dtype)
        for (uint64_t n = 0; n < inputs_size(replay); n++)
            replay->inputs[n] = dtype_round(dims->conv_dtype, replay->inputs[n]);
}
