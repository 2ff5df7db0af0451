/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_step.h: internal to host/reference: the arithmetic of linear layers, in both forms.
 */
#ifndef HOST_REFERENCE_LINEAR_STEP_H
#define HOST_REFERENCE_LINEAR_STEP_H

#include "host/base/dtype.h"
#include "host/reference/linear_replay.h"

#include <math.h>
#include <string.h>

/* How many elements of a state's row are worked on at a time. */
enum { LINEAR_LANES = 8 };

/* The truth rounds nothing; the naive form rounds every operation to fp32, operands to theirs. */
typedef struct linear_form {
    int32_t naive;
    attn_dtype operand;
} linear_form;

/* An fp32 number rounded to a dtype: dtype_round(), whose general way is slow for every element of
 * a state. Of fp32's bits bf16 has the upper half: the nearest, ties to even, by an addition. */
static inline double linear_round(attn_dtype dtype, double x)
{
    float narrow = (float)x;
    uint32_t bits;
    if (dtype == ATTN_F32)
        return x;
    if (dtype != ATTN_BF16 || !isfinite(x))
        return dtype_round(dtype, x);
    memcpy(&bits, &narrow, sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&narrow, &bits, sizeof narrow);
    return (double)narrow;
}

/* The channels of `count` rows after the convolution: to[count][channels.total]. inputs[taps +
 * count][channels.total] holds those before the first row, too. terms (may be NULL) gets the sums
 * of absolute terms. */
void linear_convolve(const reference_linear_layer *layer, const linear_form *form,
                     const reference_linear_channels *channels, const double *inputs, int64_t count,
                     double *to, double *terms);

/* q or k of one head, in place, if the layer normalises them. */
void linear_normalise(const reference_linear_layer *layer, const linear_form *form, double *x);

/* The decay of the state of `head` in row t, for each channel of k, and beta, which is returned. */
double linear_gates(const reference_linear_layer *layer, const linear_form *form,
                    const reference_linear_rows *rows, int64_t t, int32_t head, double *decay);

/* One token of one v head. */
typedef struct linear_token {
    const double *q, *k; /* [K] */
    const double *v;     /* [V] */
    const double *decay; /* [K] */
    const double *skip;  /* [V]; NULL = none */
    double beta;
    int32_t wanted; /* out and terms are */
    double *out;    /* [V] */
    double *terms;  /* [V] sums of absolute terms; of the truth alone */
} linear_token;

/* Elements of a row of a state, padded to LINEAR_LANES. */
static inline int32_t linear_stride(const reference_linear_layer *layer)
{
    return (layer->dims.head_v_dim + LINEAR_LANES - 1) / LINEAR_LANES * LINEAR_LANES;
}

/* Doubles that a step works in. */
int64_t linear_step_work(const reference_linear_layer *layer);

/* One step of the recurrence, in fp64, and with every operation rounded to fp32. */
typedef struct linear_kernels {
    const char *name;
    void (*truth)(const reference_linear_layer *layer, const linear_token *token, double *state,
                  void *work);
    void (*naive)(const reference_linear_layer *layer, const linear_token *token, float *state,
                  void *work);
} linear_kernels;

/* Those for the processor's widest vectors (0) and narrower ones; NULL = there are no more. All give
 * the same bits. */
const linear_kernels *linear_kernels_here(int32_t index);

/* out and terms times silu(z): [V]. */
void linear_output_gate(const reference_linear_layer *layer, const linear_form *form,
                        const double *z, double *out, double *terms);

#endif /* HOST_REFERENCE_LINEAR_STEP_H */
