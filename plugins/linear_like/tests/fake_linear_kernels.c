/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_linear_kernels.c: the fake CUDA driver with linear_like's kernels in it, as host functions,
 * so that all of the plugin but its device code is judged without a GPU: operands, strides, slots,
 * launches and their order. Rows, gates and the convolution are the plugin's own source
 * (kernels/rows.cuh), which is C as well; the recurrence is that of attn_linear_dims.
 *
 * A block is taken for what its number says, as on the device: too few blocks leave work undone.
 */
#include "tests/fixtures/fake_cuda_look_up.h"

#include <stdlib.h>

#include "plugins/linear_like/kernels/heads.h"
#include "plugins/linear_like/kernels/rows.cuh"
#include "plugins/linear_like/kernels/shapes.h"

enum { MAX_DIM = LINEAR_MAX_DIM };

/* Single rows are rounded differently, as by linear_decode_*; by so much that outputs show it. */
static _Thread_local float single = 1;

static float convolved(const linear_call *call, const linear_sequence *sequence, int t, int c)
{
    const linear_dims *d = &call->dims;
    float taps[LINEAR_MAX_WIDTH], sum;
    if (d->width == 0)
        return linear_input(call, sequence, t, c);
    linear_load_taps(call, c, taps);
    sum = call->operands.bias ? element_load(d->dtype, call->operands.bias, c) : 0;
    for (int w = LINEAR_MAX_WIDTH - d->width; w < LINEAR_MAX_WIDTH; w++)
        sum += taps[w] * linear_input(call, sequence, t - (LINEAR_MAX_WIDTH - 1 - w), c);
    return (d->silu ? linear_silu(sum) : sum) * single;
}

static void write_value(const linear_call *call, int row, int head, int j, float x)
{
    const linear_operands *o = &call->operands;
    if (o->z)
        x *= linear_silu(
            element_load(call->dims.dtype, o->z + row * o->z_row + head * o->z_head, j));
    element_store(call->dims.out_dtype, o->out + row * o->out_row + head * o->out_head, j, x);
}

/* ---- The recurrence -------------------------------------------------------------------------- */

/* One value of a head: the state's elements that it has, and where it is. */
struct column {
    const linear_call *call;
    linear_sequence sequence;
    int head;
    int value;
    float state[MAX_DIM]; /* as the kernels keep it: where a sequence is cut changes no bit of it */
};

static char *state_row(const struct column *at, int slot, int k, int *element)
{
    const linear_operands *o = &at->call->operands;
    int vk = at->call->dims.vk;
    *element = vk ? k : at->value;
    return o->state + slot * o->state_slot + at->head * o->state_head +
           (vk ? at->value : k) * o->state_row;
}

static void load_state(struct column *at)
{
    int element;
    for (int k = 0; k < at->call->dims.k_dim; k++) {
        char *row = state_row(at, at->sequence.slot, k, &element);
        at->state[k] =
            at->sequence.slot ? element_load(at->call->dims.state_dtype, row, element) : 0;
    }
}

static void store_state(const struct column *at, int slot)
{
    int element;
    for (int k = 0; slot && k < at->call->dims.k_dim; k++) {
        char *row = state_row(at, slot, k, &element);
        element_store(at->call->dims.state_dtype, row, element, at->state[k]);
    }
}

/* q or k of row `t`. */
static void load_key(const struct column *at, int part, int t, double *to)
{
    const linear_dims *d = &at->call->dims;
    double sum = 0, times = part == 0 ? (double)d->sm_scale : 1;
    for (int i = 0; i < d->k_dim; i++) {
        to[i] = (double)convolved(at->call, &at->sequence, t,
                                  d->first[part] + at->head / d->ratio * d->k_dim + i);
        sum += to[i] * to[i];
    }
    for (int i = 0; i < d->k_dim; i++)
        to[i] *= d->l2_norm ? times / sqrt(sum + 1e-6) : times;
}

static void step(struct column *at, int t, const double *q, const double *k, const float *decays,
                 float beta)
{
    const linear_call *call = at->call;
    const linear_dims *d = &call->dims;
    const int row = at->sequence.first_row + t;
    const int delta = d->family == LINEAR_FAMILY_GDN || d->family == LINEAR_FAMILY_KDA;
    double held = 0, out = 0;
    for (int i = 0; i < d->k_dim; i++) {
        at->state[i] *= decays[i];
        held += (double)at->state[i] * k[i];
    }
    float v = convolved(call, &at->sequence, t, d->first[2] + at->head * d->v_dim + at->value);
    double update = (double)beta * ((double)v - (delta ? held : 0));
    for (int i = 0; i < d->k_dim; i++) {
        at->state[i] = (float)((double)at->state[i] + k[i] * update);
        out += (double)at->state[i] * q[i];
    }
    out += (double)linear_skip(call, at->head, at->value) * (double)v;
    write_value(call, row, at->head, at->value, (float)out);
    store_state(at, linear_snapshot(&call->batch, row));
}

/* q and k of all rows of a sequence, of one head of keys: blocks of a launch that follow each other want
 * the same. `rows` NULL = none are kept. */
struct keys {
    int s, head;
    double (*rows)[2][MAX_DIM];
};

static void keep_keys(struct keys *keys, const struct column *at, int s)
{
    int head = at->head / at->call->dims.ratio;
    if (keys->rows && keys->s == s && keys->head == head)
        return;
    free(keys->rows);
    *keys = (struct keys){s, head, malloc((size_t)at->sequence.num_rows * sizeof *keys->rows)};
    for (int t = 0; keys->rows && t < at->sequence.num_rows; t++)
        for (int part = 0; part < 2; part++)
            load_key(at, part, t, keys->rows[t][part]);
}

/* Row `t` of all values of a block. */
static void step_all(struct column *columns, int count, int t, const struct keys *keys)
{
    const linear_call *call = columns->call;
    const linear_dims *d = &call->dims;
    const int row = columns->sequence.first_row + t, head = columns->head;
    double own[2][MAX_DIM], (*qk)[MAX_DIM] = keys->rows ? keys->rows[t] : own;
    float decays[MAX_DIM], beta = linear_beta(call, row, head);
    for (int part = 0; part < 2 && !keys->rows; part++)
        load_key(columns, part, t, own[part]);
    for (int i = 0; i < d->k_dim; i++)
        decays[i] = d->family == LINEAR_FAMILY_KDA || i == 0
                        ? linear_decay(call, row, head, i, &beta)
                        : decays[0];
    for (int i = 0; i < count; i++)
        step(&columns[i], t, qk[0], qk[1], decays, beta);
}

/* All of a sequence, values [first, first + count) of a head. */
static void steps_columns(const linear_call *call, int s, int head, int first, int count,
                          struct keys *keys)
{
    struct column all[HEADS_MOST_THREADS];
    const linear_sequence sequence = linear_find_sequence(&call->batch, s);
    for (int i = 0; i < count; i++) {
        all[i].call = call;
        all[i].sequence = sequence;
        all[i].head = head;
        all[i].value = first + i;
        load_state(&all[i]);
    }
    keep_keys(keys, all, s);
    for (int t = 0; t < sequence.num_rows; t++)
        step_all(all, count, t, keys);
    for (int i = 0; i < count; i++)
        store_state(&all[i], sequence.dst);
}

static void steps_block(const linear_call *call, int64_t block, int columns, struct keys *keys)
{
    const linear_dims *d = &call->dims;
    int64_t slices = (d->v_dim + columns - 1) / columns, s = block / slices / d->v_heads;
    int first = (int)(block % slices) * columns, count = d->v_dim - first;
    if (s < linear_num_real(&call->batch) && !linear_is_chunked(call, (int)s))
        steps_columns(call, (int)s, (int)(block / slices % d->v_heads), first,
                      count < columns ? count : columns, keys);
}

static void steps(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    int values = STEPS_VALUES(call->dims.k_dim > 128 ? 32 : 16);
    int columns = STEPS_COLUMNS((int)launch->block[0] / 32, values);
    struct keys keys = {0};
    for (int64_t block = 0; block < launch->grid[0]; block++)
        steps_block(call, block, columns, &keys);
    free(keys.rows);
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

static void add_chunk(const linear_call *call, int s, int first, int end, int snapshot, int *count)
{
    for (; first < end; first += CHUNK_ROWS) {
        int rows = end - first < CHUNK_ROWS ? end - first : CHUNK_ROWS;
        *PORTABLE_AT(call->chunks.list + (*count)++) =
            (linear_chunk){s, first, rows, first + rows == end ? snapshot : 0};
    }
}

/* Chunks of a sequence end with a row that has a snapshot, or with 64 rows. */
static void list_sequence(const linear_call *call, int s, int *count)
{
    const linear_sequence sequence = linear_find_sequence(&call->batch, s);
    int before = *count, from = 0;
    for (int t = 0; t < sequence.num_rows && sequence.num_rows >= CHUNK_LEAST; t++) {
        int slot = linear_snapshot(&call->batch, sequence.first_row + t);
        if (slot || t + 1 == sequence.num_rows) {
            add_chunk(call, s, from, t + 1, slot, count);
            from = t + 1;
        }
        if (*count - before > 2 * ((sequence.num_rows + CHUNK_ROWS - 1) / CHUNK_ROWS)) {
            *count = before;
            break;
        }
    }
    *PORTABLE_AT(call->chunks.sequences + 2 * s) = before;
    *PORTABLE_AT(call->chunks.sequences + 2 * s + 1) = *count - before;
}

/* A window's segments: of each sequence what it has there; the stand-in below cuts none. */
static void list_segments(const linear_call *call, int first)
{
    const linear_chunks *chunks = &call->chunks;
    linear_segment *to = chunks->segments + first / chunks->window * (int64_t)chunks->most_segments;
    int at = 0;
    for (int s = 0; s < linear_num_real(&call->batch); s++) {
        int from = linear_load_int(chunks->sequences, 2 * s);
        int end = from + linear_load_int(chunks->sequences, 2 * s + 1);
        from = from > first ? from : first;
        end = end < first + chunks->window ? end : first + chunks->window;
        if (from < end && linear_load_int(chunks->count, 0))
            *PORTABLE_AT(to + at++) = (linear_segment){s, from, end, 0, 1};
    }
    for (; at < chunks->most_segments; at++)
        *PORTABLE_AT(to + at) = (linear_segment){0, 0, 0, 0, 0};
}

static void list(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    const linear_chunks *chunks = &call->chunks;
    int count = 0, longest = 0;
    for (int s = 0; s < linear_num_real(&call->batch); s++) {
        const int before = count;
        list_sequence(call, s, &count);
        longest = count - before > longest ? count - before : longest;
    }
    const int strips =
        linear_has_strips(call, count, longest) ? count : linear_count_beside(call, count, longest);
    *PORTABLE_AT(chunks->count) = count - strips;
    *PORTABLE_AT(chunks->count + 1) = strips;
    for (int s = 0; strips < count && s < linear_num_real(&call->batch); s++)
        if (linear_is_chunked(call, s)) /* beside strips: the only one */
            *PORTABLE_AT(chunks->sequences + 2 * s + 1) -= strips;
    for (int first = 0; first < chunks->most; first += chunks->window)
        list_segments(call, first);
}

/* The call as it was before the convolution: what the stand-ins after it compute from. */
static _Thread_local linear_call before;

/* Bytes of a chunk after the convolution, but for its numbers. */
static int64_t row_bytes(const linear_dims *d)
{
    const int delta = d->family == LINEAR_FAMILY_GDN || d->family == LINEAR_FAMILY_KDA;
    const int channels = delta ? d->v_heads * d->v_dim : d->channels;
    return (int64_t)CHUNK_ROWS * channels * 2;
}

static void convolve_first(const struct fake_cuda_launch *launch, int threads)
{
    const linear_call *call = launch->arguments[0];
    const int first = *(const int *)launch->arguments[1], rows = *(const int *)launch->arguments[2];
    const int per_chunk = (threads + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS * (CHUNK_ROWS / rows);
    const int64_t bytes = row_bytes(&call->dims);
    before = *call;
    const int count =
        linear_load_int(call->chunks.count, 0) + linear_load_int(call->chunks.count, 1);
    for (int64_t i = 0; i < launch->grid[0] / per_chunk; i++)
        if (first + i < count)
            *PORTABLE_AT(call->chunks.rows + (i + 1) * bytes - 1) = (char)(first + i + 1);
}

static void convolve_chunks(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    convolve_first(launch, CONVOLVE_ROW_THREADS(call->dims));
}

/* Numbers of the rows follow those of the window. */
static void convolve_tiles(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    const int64_t numbers = CHUNK_ROW_NUMBERS(call->dims) * (int64_t)sizeof(float);
    convolve_first(launch, CONVOLVE_TILE_THREADS(call->dims));
    *PORTABLE_AT(call->chunks.rows + call->chunks.window * (row_bytes(&call->dims) + numbers) - 1) =
        1;
}

/* Its results have no reader but the stand-in below, which needs none: that a chunk's last byte
 * is there is all that is looked at. */
static void ready_by(const struct fake_cuda_launch *launch, int rule)
{
    const linear_call *call = launch->arguments[0];
    const linear_dims *d = &call->dims;
    const int heads = d->family == LINEAR_FAMILY_KDA ? d->v_heads : d->k_heads;
    const int64_t values = (int64_t)d->v_heads * CHUNK_VALUES_BYTES(d->v_dim / CHUNK_PANEL, rule);
    const int parts =
        heads == d->v_heads ? 1 : (d->ratio + call->chunks.together - 1) / call->chunks.together;
    const int64_t keys = CHUNK_RULE_KEYS_BYTES(rule);
    const int64_t number = CHUNK_BY_CHANNELS(rule) ? call->chunks.window /* by blocks in turn */
                           : CHUNK_ONE_DECAY(rule) ? (int64_t)launch->grid[2]
                                                   : (int64_t)launch->grid[0] / (heads * parts);
    int first = *(const int *)launch->arguments[1];
    for (int64_t i = 0; i < number; i++)
        if (first + i < linear_load_int(call->chunks.count, 0)) {
            *PORTABLE_AT(call->chunks.keys + (i + 1) * heads * keys - 1) = 1;
            *PORTABLE_AT(call->chunks.values + (i + 1) * values - 1) = (char)(first + i + 1);
        }
}

static void ready_plain(const struct fake_cuda_launch *launch)
{
    ready_by(launch, CHUNK_PLAIN);
}

static void ready_solved(const struct fake_cuda_launch *launch)
{
    ready_by(launch, CHUNK_SOLVED);
}

static void ready_inverse(const struct fake_cuda_launch *launch)
{
    ready_by(launch, CHUNK_INVERSE);
}

static void ready_channels(const struct fake_cuda_launch *launch)
{
    ready_by(launch, CHUNK_CHANNELS);
}

/* Nor have results of segments a reader here: that the last byte of each is there is all. */
static void segments(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    const linear_dims *d = &call->dims;
    const int panels = d->v_dim / CHUNK_PANEL;
    const int delta = d->family == LINEAR_FAMILY_GDN || d->family == LINEAR_FAMILY_KDA;
    const int64_t results = launch->grid[0] / CHUNK_SEGMENT_PARTS(panels, delta);
    for (int64_t i = 0; i < results; i++)
        *PORTABLE_AT(call->chunks.results + (i + 1) * CHUNK_RESULT_BYTES(panels) - 1) = 1;
}

/* A sequence, in the launch that has the last of its chunks, if that has been made ready: `values` bytes
 * of each, 0 = none. A block has `columns` values. */
static void states_sequence(const linear_call *call, int s, int first, int64_t values, int columns,
                            int64_t blocks)
{
    const linear_dims *d = &call->dims;
    int begin = linear_load_int(call->chunks.sequences, 2 * s);
    int end = begin + linear_load_int(call->chunks.sequences, 2 * s + 1);
    if (end == begin || end <= first || end > first + call->chunks.window ||
        !linear_load_int(call->chunks.count, 0))
        return;
    const int64_t rows = call->chunks.rows ? row_bytes(d) : 0;
    if (values && *PORTABLE_AT(call->chunks.values + (end - first) * values - 1) != (char)end)
        return;
    if (rows && *PORTABLE_AT(call->chunks.rows + (end - first) * rows - 1) != (char)end)
        return;
    struct keys keys = {0};
    for (int head = 0; head < d->v_heads && blocks > 0; head++)
        for (int value = 0; value < d->v_dim; value += columns, blocks--)
            if (blocks > 0)
                steps_columns(rows ? &before : call, s, head, value,
                              d->v_dim - value < columns ? d->v_dim - value : columns, &keys);
    free(keys.rows);
}

/* `rule`: -1: no rule with tiles. Parts in turn, as of whole heads: the blocks that there are have all of them. */
static void states_from(const struct fake_cuda_launch *launch, int first, int64_t values,
                        int columns, int rule)
{
    const linear_call *call = launch->arguments[0];
    const linear_dims *d = &call->dims;
    int slices = (d->v_dim + columns - 1) / columns;
    const int in_turn =
        (columns == CHUNK_MAX_KEYS || CHUNK_IN_TURN(rule)) && call->chunks.room == 0;
    int64_t blocks = in_turn ? INT64_MAX : launch->grid[0];
    for (int s = 0; s < linear_num_real(&call->batch); s++)
        states_sequence(call, s, first, values, columns, blocks - (int64_t)s * d->v_heads * slices);
}

static void states_by(const struct fake_cuda_launch *launch, int first, int columns, int rule)
{
    const linear_call *call = launch->arguments[0];
    const linear_dims *d = &call->dims;
    states_from(launch, *(const int *)launch->arguments[first],
                (int64_t)d->v_heads * CHUNK_VALUES_BYTES(d->v_dim / CHUNK_PANEL, rule), columns,
                rule);
}

static void states_plain(const struct fake_cuda_launch *launch)
{
    states_by(launch, 1, CHUNK_PANEL * CHUNK_STATE_WARPS, CHUNK_PLAIN);
}

static void states_solved(const struct fake_cuda_launch *launch)
{
    states_by(launch, 1, CHUNK_PANEL * CHUNK_STATE_WARPS, CHUNK_SOLVED);
}

static void states_inverse(const struct fake_cuda_launch *launch)
{
    states_by(launch, 1, CHUNK_PANEL * CHUNK_STATE_WARPS, CHUNK_INVERSE);
}

/* A block has all values of a head. */
static void wide(const struct fake_cuda_launch *launch)
{
    states_by(launch, 2, CHUNK_MAX_KEYS, CHUNK_INVERSE);
}

static void states_channels(const struct fake_cuda_launch *launch)
{
    states_by(launch, 1, CHUNK_PANEL * CHUNK_STATE_WARPS, CHUNK_CHANNELS);
}

/* Has the convolution left the rows of sequence `s`, if there is one? */
static int has_rows(const linear_call *call, int s)
{
    const int64_t end = linear_load_int(call->chunks.sequences, 2 * s) +
                        (int64_t)linear_load_int(call->chunks.sequences, 2 * s + 1);
    return !call->chunks.rows ||
           *PORTABLE_AT(call->chunks.rows + end * row_bytes(&call->dims) - 1) == (char)end;
}

/* Sequences that go by strips, by blocks in turn. One that does so in part is left to the states. */
static void strips(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    struct keys keys = {0};
    for (int s = 0; s < linear_num_real(&call->batch); s++)
        for (int head = 0; head < call->dims.v_heads; head++)
            if (linear_is_chunked(call, s) && !linear_load_int(call->chunks.count, 0) &&
                has_rows(call, s))
                steps_columns(call->chunks.rows ? &before : call, s, head, 0, call->dims.v_dim,
                              &keys);
    free(keys.rows);
}

static void fused(const struct fake_cuda_launch *launch)
{
    states_from(launch, *(const int *)launch->arguments[2], 0, CHUNK_PANEL * CHUNK_STATE_WARPS, -1);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void convolve_rows(const struct fake_cuda_launch *launch, int number)
{
    const linear_call *call = launch->arguments[0];
    const linear_dims *d = &call->dims;
    int per_row = (d->channels / number + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS, first, pad, end;
    linear_find_rows(&call->batch, &first, &pad, &end);
    int64_t rows = launch->grid[0] / per_row * *(const int *)launch->arguments[1];
    for (int s = 0; s < linear_num_real(&call->batch); s++) {
        linear_sequence sequence = linear_find_sequence(&call->batch, s);
        for (int t = 0; t < sequence.num_rows && sequence.first_row + t - first < rows; t++)
            for (int c = 0; c < d->channels; c++)
                write_value(call, sequence.first_row + t, c / d->v_dim, c % d->v_dim,
                            convolved(call, &sequence, t, c));
    }
}

static void convolve(const struct fake_cuda_launch *launch)
{
    convolve_rows(launch, 1);
}

static void convolve_vectors(const struct fake_cuda_launch *launch)
{
    convolve_rows(launch, CONVOLVE_NUMBER);
}

static void keep_inputs(const linear_call *call, const linear_sequence *sequence, int end, int slot,
                        int c)
{
    const linear_operands *o = &call->operands;
    float kept[LINEAR_MAX_WIDTH];
    int taps = call->dims.width - 1;
    for (int n = 0; slot && n < taps; n++)
        kept[n] = linear_input(call, sequence, end - taps + n, c);
    for (int n = 0; slot && n < taps; n++)
        element_store(call->dims.conv_dtype, o->conv + slot * o->conv_slot + c * o->conv_channel, n,
                      kept[n]);
}

static void finish_block(const linear_call *call, int s, int from)
{
    if (s >= linear_num_real(&call->batch))
        return;
    linear_sequence sequence = linear_find_sequence(&call->batch, s);
    for (int c = from; c < from + FINISH_THREADS && c < call->dims.channels; c++) {
        for (int t = 0; t < sequence.num_rows; t++)
            keep_inputs(call, &sequence, t + 1,
                        linear_snapshot(&call->batch, sequence.first_row + t), c);
        keep_inputs(call, &sequence, sequence.num_rows, sequence.dst, c);
    }
}

static void clear_row(const linear_call *call, int row)
{
    const linear_operands *o = &call->operands;
    const linear_dims *d = &call->dims;
    for (int h = 0; h < d->v_heads; h++)
        for (int j = 0; j < d->v_dim; j++)
            element_store(d->out_dtype, o->out + row * o->out_row + h * o->out_head, j, 0);
}

static void clear_padding(const linear_call *call)
{
    int first, pad, end;
    linear_find_rows(&call->batch, &first, &pad, &end);
    for (int row = pad; row < end; row++)
        clear_row(call, row);
}

static void finish(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    const int pad_blocks = *(const int *)launch->arguments[1];
    int blocks = (int)launch->grid[0] - pad_blocks;
    int per_seq =
        call->dims.width > 1 ? (call->dims.channels + FINISH_THREADS - 1) / FINISH_THREADS : 0;
    for (int block = 0; block < blocks; block++)
        finish_block(call, block / per_seq, block % per_seq * FINISH_THREADS);
    if (pad_blocks > 0)
        clear_padding(call);
}

/* ---- Single rows ----------------------------------------------------------------------------- */

/* Channels that a block has read of a sequence's convolution: those of its values are its own; those of
 * q and k are kept by the last block that counts itself. */
static void keep_channels(const linear_call *call, int s, int from, int count)
{
    const linear_sequence sequence = linear_find_sequence(&call->batch, s);
    for (int c = from; c < from + count; c++) {
        if (sequence.num_rows > 0)
            keep_inputs(call, &sequence, 1, linear_snapshot(&call->batch, sequence.first_row), c);
        keep_inputs(call, &sequence, sequence.num_rows, sequence.dst, c);
    }
}

static void count_readers(const linear_call *call, unsigned *readers, int s, int head,
                          unsigned blocks)
{
    const linear_dims *d = &call->dims;
    const int key = head / d->ratio;
    for (int part = 0; part < 2; part++) {
        unsigned *count = PORTABLE_AT(readers + ((int64_t)s * d->k_heads + key) * 2 + part);
        *count = *count + 1 < blocks * (unsigned)d->ratio ? *count + 1 : 0;
        if (*count == 0)
            keep_channels(call, s, d->first[part] + key * d->k_dim, d->k_dim);
    }
}

static void decode_by(const struct fake_cuda_launch *launch, int columns)
{
    const linear_call *call = launch->arguments[0];
    const linear_dims *d = &call->dims;
    unsigned *readers = ((const linear_decode_call *)launch->arguments[0])->readers;
    const int from = *(const int *)launch->arguments[1], count = *(const int *)launch->arguments[2];
    struct keys keys = {0};
    single = call->operands.aligned & LINEAR_ALIGNED_FOURS ? 1 + 0x1p-16f : 1 + 0x1p-22f;
    for (int z = 0; z < count && from + z < linear_num_real(&call->batch); z++)
        for (int head = 0; head < (int)launch->grid[1]; head++)
            for (int first = 0; first < (int)launch->grid[0] * columns; first += columns) {
                const int most = d->v_dim - first < columns ? d->v_dim - first : columns;
                steps_columns(call, from + z, head, first, most, &keys);
                if (!readers)
                    continue;
                keep_channels(call, from + z, d->first[2] + head * d->v_dim + first, most);
                count_readers(call, readers, from + z, head, launch->grid[0]);
            }
    single = 1;
    free(keys.rows);
    if ((int)launch->grid[2] > count)
        clear_padding(call);
}

static void decode(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    decode_by(launch, STEPS_COLUMNS((int)launch->block[0] / 32,
                                    DECODE_VALUES(call->dims.state_dtype == ELEMENT_BF16)));
}

static void heads(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    const int size = element_size(call->dims.state_dtype);
    decode_by(launch, (int)launch->block[0] * 16 * HEADS_PARTS / (HEADS_KEYS * size));
}

static void slices(const struct fake_cuda_launch *launch)
{
    const linear_call *call = launch->arguments[0];
    decode_by(launch, SLICE_COLUMNS(element_size(call->dims.state_dtype)));
}

/* When the library is loaded; a test that resets the driver calls it again. */
__attribute__((constructor, visibility("default"))) void fake_linear_define(void);
void fake_linear_define(void)
{
    static const char *const names[] = {"linear_steps_plain_128",    "linear_steps_delta_128",
                                        "linear_steps_channels_128", "linear_steps_plain_256",
                                        "linear_steps_delta_256",    "linear_steps_channels_256"};
    static const char *const decodes[] = {"linear_decode_plain_128", "linear_decode_delta_128",
                                          "linear_decode_channels_128"};
    static const char *const by_heads[] = {"linear_heads_plain", "linear_heads_delta",
                                           "linear_heads_channels"};
    static const char *const by_slices[] = {"linear_slices_plain", "linear_slices_delta",
                                            "linear_slices_channels"};
    static const struct {
        const char *name;
        void (*run)(const struct fake_cuda_launch *launch);
    } chunked[] = {{"linear_ready_plain", ready_plain},
                   {"linear_ready_delta", ready_solved},
                   {"linear_ready_inverse", ready_inverse},
                   {"linear_ready_tiles", ready_inverse},
                   {"linear_ready_channels", ready_channels},
                   {"linear_ready_channels_tiles", ready_channels},
                   {"linear_ready_channels_delta", ready_solved},
                   {"linear_states_plain", states_plain},
                   {"linear_states_delta", states_solved},
                   {"linear_states_inverse", states_inverse},
                   {"linear_states_tiles", states_inverse},
                   {"linear_states_channels", states_channels},
                   {"linear_strips_channels", strips},
                   {"linear_strips_channels_tiles", strips},
                   {"linear_states_channels_tiles", states_channels},
                   {"linear_segments_plain", segments},
                   {"linear_segments_delta", segments},
                   {"linear_segments_inverse", segments},
                   {"linear_segments_tiles", segments},
                   {"linear_segments_channels", segments},
                   {"linear_segments_channels_tiles", segments}};
    static const size_t sizes[] = {sizeof(linear_call), sizeof(int), sizeof(int)};
    static const size_t decode_sizes[] = {sizeof(linear_decode_call), sizeof(int), sizeof(int)};
    static const size_t heads_sizes[] = {sizeof(linear_heads_call), sizeof(int), sizeof(int)};
    static const size_t wide_sizes[] = {sizeof(linear_call), sizeof(linear_wide_maps), sizeof(int)};
    static const size_t fused_sizes[] = {sizeof(linear_call), sizeof(linear_maps), sizeof(int)};
    if (fake_cuda_load("fake_cuda.so", &fake) != 0)
        return;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fake.define_kernel(names[i], steps, sizes, 1, NULL);
    for (size_t i = 0; i < sizeof decodes / sizeof decodes[0]; i++)
        fake.define_kernel(decodes[i], decode, decode_sizes, 3, NULL);
    for (size_t i = 0; i < sizeof by_heads / sizeof by_heads[0]; i++)
        fake.define_kernel(by_heads[i], heads, heads_sizes, 3, NULL);
    for (size_t i = 0; i < sizeof by_slices / sizeof by_slices[0]; i++)
        fake.define_kernel(by_slices[i], slices, heads_sizes, 3, NULL);
    fake.define_kernel("linear_list", list, sizes, 1, NULL);
    for (size_t i = 0; i < sizeof chunked / sizeof chunked[0]; i++)
        fake.define_kernel(chunked[i].name, chunked[i].run, sizes, 2, NULL);
    fake.define_kernel("linear_wide_inverse", wide, wide_sizes, 3, NULL);
    fake.define_kernel("linear_wide_tiles", wide, wide_sizes, 3, NULL);
    fake.define_kernel("linear_fused", fused, fused_sizes, 3, NULL);
    fake.define_kernel("linear_fused_segments", segments, fused_sizes, 3, NULL);
    fake.define_kernel("linear_convolve_chunks", convolve_chunks, sizes, 3, NULL);
    fake.define_kernel("linear_convolve_tiles", convolve_tiles, sizes, 3, NULL);
    fake.define_kernel("linear_convolve", convolve, sizes, 2, NULL);
    fake.define_kernel("linear_convolve_bf16", convolve_vectors, sizes, 2, NULL);
    fake.define_kernel("linear_convolve_f16", convolve_vectors, sizes, 2, NULL);
    fake.define_kernel("linear_finish", finish, sizes, 2, NULL);
}
