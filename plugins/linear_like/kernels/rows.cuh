/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cuh: shared by all kernels of linear_like: sequences and their rows, channels after the
 * convolution, gates. C and CUDA alike.
 */
#ifndef LINEAR_LIKE_ROWS_CUH
#define LINEAR_LIKE_ROWS_CUH

#include "plugins/common/cuda/call.h"
#include "plugins/common/cuda/elements.cuh"
#include "plugins/linear_like/kernels/params.h"
#include "plugins/linear_like/kernels/shapes.h"

#ifndef __CUDACC__
#include <math.h>
#endif

/* ---- Sequences ------------------------------------------------------------------------------- */

/* A sequence of the batch. Rows are absolute. */
typedef struct linear_sequence {
    int first_row;
    int num_rows;
    int slot; /* to read; 0 = start from zero */
    int dst;  /* to write; 0 = dropped */
} linear_sequence;

PORTABLE int linear_load_int(const int *array, int index)
{
    return *PORTABLE_AT(array + index);
}

/* The number of sequences without padding. */
PORTABLE int linear_num_real(const linear_batch *b)
{
    return b->num_real ? linear_load_int(b->num_real, 0) : b->num_real_seqs;
}

/* The batch's rows are [*first, *end); those from *pad on belong to no sequence. */
PORTABLE void linear_find_rows(const linear_batch *b, int *first, int *pad, int *end)
{
    int tokens = b->counts ? linear_load_int(b->counts, CALL_COUNT_TOKENS) : b->num_tokens;
    int real = linear_num_real(b);
    *first = b->q_indptr ? linear_load_int(b->q_indptr, 0) : 0;
    *pad = b->q_indptr ? linear_load_int(b->q_indptr, real) : real;
    *end = *first + tokens;
}

/* Sequence `s` < linear_num_real(). */
PORTABLE linear_sequence linear_find_sequence(const linear_batch *b, int s)
{
    linear_sequence found;
    int slot = linear_load_int(b->slot, s);
    found.first_row = b->q_indptr ? linear_load_int(b->q_indptr, s) : s;
    found.num_rows = b->q_indptr ? linear_load_int(b->q_indptr, s + 1) - found.first_row : 1;
    found.slot = !b->has_initial || linear_load_int(b->has_initial, s) ? slot : 0;
    found.dst = b->dst_slot ? linear_load_int(b->dst_slot, s) : slot;
    return found;
}

#ifdef __CUDACC__
/* Clears rows of padding, whose output must be finite. One of `blocks` blocks. */
PORTABLE void linear_clear_padding(const linear_call *call, int block, int blocks)
{
    const linear_operands *o = &call->operands;
    const int per_row = call->dims.v_heads * call->dims.v_dim;
    int first, pad, end;
    linear_find_rows(&call->batch, &first, &pad, &end);
    for (int row = pad + block; row < end; row += blocks)
        for (int i = threadIdx.x; i < per_row; i += blockDim.x)
            element_store(call->dims.out_dtype,
                          o->out + row * o->out_row + i / call->dims.v_dim * o->out_head,
                          i % call->dims.v_dim, 0);
}
#endif

/* Is sequence `s` processed in chunks? */
PORTABLE int linear_is_chunked(const linear_call *call, int s)
{
    return call->chunks.sequences && linear_load_int(call->chunks.sequences, 2 * s + 1) > 0;
}

/* Do all sequences go by strips? They have `chunks` chunks, the longest sequence has `longest`.
 * They do if the chunks of all heads keep three quarters of the blocks busy for the rounds of the
 * longest one, and the tiles of the convolution fit one launch. */
PORTABLE int linear_has_strips(const linear_call *call, int chunks, int longest)
{
    const i64 round = (i64)call->chunks.strips * longest, all = (i64)chunks * call->dims.v_heads;
    if (call->chunks.rows && chunks > call->chunks.window)
        return 0;
    return round > 0 && 4 * all >= 3 * ((all + round - 1) / round) * round;
}

/* The number of chunks that go by strips while the sequence's other chunks are prepared. */
PORTABLE int linear_count_beside(const linear_call *call, int chunks, int longest)
{
    const int blocks = call->chunks.strips;
    return blocks == 0 || call->chunks.rows || chunks > longest
               ? 0
               : STRIPS_BESIDE(chunks, call->dims.v_heads, blocks);
}

/* The slot that gets the state after row `row`; 0 = none. */
PORTABLE int linear_snapshot(const linear_batch *b, int row)
{
    int slot = b->snapshots ? linear_load_int(b->snapshots, row) : 0;
    return slot > 0 ? slot : 0;
}

/* ---- Functions ------------------------------------------------------------------------------- */

/* Exponentials and logarithms are accurate to a few units in the last place, never from a fast-math
 * build: errors of decays accumulate over a long prompt. */
PORTABLE float linear_sigmoid(float x)
{
    float small = expf(-fabsf(x));
    return (x >= 0 ? 1.0f : small) / (1.0f + small);
}

PORTABLE float linear_softplus(float x)
{
    return (x > 0 ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}

PORTABLE float linear_silu(float x)
{
    return x * linear_sigmoid(x);
}

#ifdef __CUDACC__
/* For numbers that are rounded to 16 bits before or after: error 2^-21. */
PORTABLE float linear_fast_silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}
#endif

/* ---- Convolution ----------------------------------------------------------------------------- */

/* The input of channel `c` in row `t` of a sequence, t >= 1 - width. Rows before the first are in
 * the state. */
PORTABLE float linear_input(const linear_call *call, const linear_sequence *sequence, int t, int c)
{
    const linear_operands *o = &call->operands;
    const linear_dims *d = &call->dims;
    if (t >= 0)
        return element_load(d->dtype, o->mixed + (i64)(sequence->first_row + t) * o->mixed_row, c);
    if (sequence->slot == 0)
        return 0;
    return element_load(d->conv_dtype,
                        o->conv + sequence->slot * o->conv_slot + c * o->conv_channel,
                        t + d->width - 1);
}

/* The weights of a channel. The last tap is at the end; missing taps are 0. */
PORTABLE void linear_load_taps(const linear_call *call, int c, float *taps)
{
    const linear_dims *d = &call->dims;
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int w = 0; w < LINEAR_MAX_WIDTH; w++) {
        int tap = w - (LINEAR_MAX_WIDTH - d->width);
        taps[w] = tap < 0
                      ? 0
                      : element_load(d->dtype,
                                     call->operands.weight + c * call->operands.weight_row, tap);
    }
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* The inputs of a gate, all loaded before the first use, to wait for memory once. */
typedef struct linear_gate {
    u32 a, b; /* as in memory */
    float a_log, bias;
} linear_gate;

/* Element `index` of an array as in memory; linear_from_bits() converts it. */
PORTABLE u32 linear_load_bits(int dtype, const void *array, i64 index)
{
    if (dtype == ELEMENT_F32)
        return *PORTABLE_AT((const any32 *)array + index);
    return *PORTABLE_AT((const any16 *)array + index);
}

PORTABLE float linear_from_bits(int dtype, u32 bits)
{
    return dtype == ELEMENT_F32    ? bits_f32(bits)
           : dtype == ELEMENT_BF16 ? element_from_bf16((u16)bits)
                                   : element_from_f16((u16)bits);
}

/* The inputs for a row and channel `i` of a head (KDA; 0 for the others). */
PORTABLE linear_gate linear_load_gate(const linear_call *call, int row, int head, int i)
{
    const linear_operands *o = &call->operands;
    const linear_dims *d = &call->dims;
    const int dtype = d->raw ? d->dtype : ELEMENT_F32;
    linear_gate gate = {0, 0, 0, 0};
    if (o->b)
        gate.b = linear_load_bits(dtype, o->b + row * o->b_row, head);
    if (d->family != LINEAR_FAMILY_LIGHTNING)
        gate.a = linear_load_bits(dtype, o->a + row * o->a_row + head * o->a_head, i);
    if (d->family == LINEAR_FAMILY_LIGHTNING || d->raw)
        gate.a_log = bits_f32(*PORTABLE_AT((const any32 *)(o->a_log + head)));
    if (d->family != LINEAR_FAMILY_LIGHTNING && d->raw)
        gate.bias =
            bits_f32(*PORTABLE_AT((const any32 *)(o->dt_bias + head * o->dt_bias_stride + i)));
    return gate;
}

/* The logarithm of a row's decay, and Mamba2's dt. */
PORTABLE float linear_gate_log(const linear_dims *d, const linear_gate *gate, float *dt)
{
    if (d->family == LINEAR_FAMILY_LIGHTNING)
        return gate->a_log;
    float a = linear_from_bits(d->raw ? d->dtype : ELEMENT_F32, gate->a);
    if (!d->raw)
        return a;
    float rate = expf(gate->a_log);
    a += gate->bias;
    if (d->family == LINEAR_FAMILY_KDA && d->lower_bound != 0)
        return d->lower_bound * linear_sigmoid(rate * a);
    float soft = linear_softplus(a);
    if (d->family == LINEAR_FAMILY_MAMBA2) {
        soft = soft < d->dt_min ? d->dt_min : soft;
        soft = soft > d->dt_max ? d->dt_max : soft;
        *dt = soft;
    }
    return -(rate * soft);
}

/* beta of a row; for Mamba2 with raw gates it is dt instead. */
PORTABLE float linear_gate_beta(const linear_call *call, const linear_gate *gate)
{
    const linear_dims *d = &call->dims;
    if (!call->operands.b)
        return 1;
    float b = linear_from_bits(d->raw ? d->dtype : ELEMENT_F32, gate->b);
    return d->raw ? linear_sigmoid(b) : b;
}

PORTABLE float linear_decay(const linear_call *call, int row, int head, int i, float *dt)
{
    linear_gate gate = linear_load_gate(call, row, head, i);
    return expf(linear_gate_log(&call->dims, &gate, dt));
}

PORTABLE float linear_beta(const linear_call *call, int row, int head)
{
    linear_gate gate = linear_load_gate(call, row, head, 0);
    return linear_gate_beta(call, &gate);
}

/* D of an element of a head; 0 = none. */
PORTABLE float linear_skip(const linear_call *call, int head, int j)
{
    const linear_operands *o = &call->operands;
    i64 at = head * o->skip_stride + (i64)j * o->skip_step;
    return o->skip ? bits_f32(*PORTABLE_AT((const any32 *)(o->skip + at))) : 0;
}

#endif /* LINEAR_LIKE_ROWS_CUH */
