/* SPDX-License-Identifier: Apache-2.0
 *
 * merge_states.cuh: partial results of disjoint sets of keys into one, by log-sum-exp, C and CUDA
 * alike.
 *
 * A state is an output vector, normalised, and the natural logarithm of its denominator. One whose
 * LSE is -inf is empty: its output, which may be NaN, is not added. All empty: output 0, LSE
 * -inf. Sums are fp32, in the order of the states; a state's weight is its own function below, so
 * that the processor and a GPU give the same bits. Weights below e^-87 are 0.
 */
#ifndef PLUGINS_CUDA_MERGE_STATES_CUH
#define PLUGINS_CUDA_MERGE_STATES_CUH

#include "plugins/common/cuda/elements.cuh"

#define MERGE_EMPTY bits_f32(0xff800000u) /* -inf: the LSE of nothing */

/* ---- Exponential and logarithm --------------------------------------------------------------- */

/* ln 2 in two parts; the first has 9 bits, so that its product with a small integer is exact. */
#define MERGE_LN2_HIGH 0.693359375f
#define MERGE_LN2_LOW  (-2.12194440054690583e-4f)

/* e^x for x <= 0, within 2 units in the last place; 0 for x <= -87; NaN stays NaN. */
PORTABLE float merge_exp(float x)
{
    const float rounder =
        12582912.0f; /* 1.5 * 2^23: adding it rounds a small number to an integer */
    if (!(x > -87.0f))
        return x <= -87.0f ? 0.0f : x;
    /* x = n * ln 2 + r, and e^r by its Taylor series. */
    float shifted = f32_add(f32_multiply(x, 1.44269504088896341f), rounder);
    float n = f32_subtract(shifted, rounder);
    float r = f32_subtract(x, f32_multiply(n, MERGE_LN2_HIGH));
    r = f32_subtract(r, f32_multiply(n, MERGE_LN2_LOW));
    float sum = 1.0f / 5040;
    sum = f32_add(f32_multiply(sum, r), 1.0f / 720);
    sum = f32_add(f32_multiply(sum, r), 1.0f / 120);
    sum = f32_add(f32_multiply(sum, r), 1.0f / 24);
    sum = f32_add(f32_multiply(sum, r), 1.0f / 6);
    sum = f32_add(f32_multiply(sum, r), 0.5f);
    sum = f32_add(f32_multiply(sum, r), 1.0f);
    sum = f32_add(f32_multiply(sum, r), 1.0f);
    return bits_f32(f32_bits(sum) + ((f32_bits(shifted) - f32_bits(rounder)) << 23));
}

/* ln x for x >= 1, within 2 units in the last place; NaN stays NaN. */
PORTABLE float merge_log(float x)
{
    if (!(x >= 1.0f))
        return x;
    /* x = 2^n * m, m from sqrt(1/2) to sqrt(2), and ln m = 2 artanh s by its series. */
    u32 n = (f32_bits(x) - 0x3f3504f3) >> 23;
    float m = bits_f32(f32_bits(x) - (n << 23));
    float s = f32_divide(f32_subtract(m, 1.0f), f32_add(m, 1.0f)), square = f32_multiply(s, s);
    float sum = 1.0f / 9;
    sum = f32_add(f32_multiply(sum, square), 1.0f / 7);
    sum = f32_add(f32_multiply(sum, square), 1.0f / 5);
    sum = f32_add(f32_multiply(sum, square), 1.0f / 3);
    sum = f32_multiply(f32_multiply(sum, square), s);
    sum = f32_add(sum, f32_multiply((float)n, 0.5f * MERGE_LN2_LOW));
    sum = f32_multiply(f32_add(sum, s), 2.0f);
    return f32_add(sum, f32_multiply((float)n, MERGE_LN2_HIGH));
}

/* ---- States one by one ----------------------------------------------------------------------- */

/* The larger LSE; NaN wins. Start with MERGE_EMPTY. */
PORTABLE float merge_top(float top, float lse)
{
    return lse > top || lse != lse ? lse : top;
}

/* The weight of a state, unnormalised. */
PORTABLE float merge_weight(float lse, float top)
{
    return lse == MERGE_EMPTY ? 0.0f : merge_exp(f32_subtract(lse, top));
}

/* The merged element: the sum over the total of the weights. */
PORTABLE float merge_element(float sum, float top, float total)
{
    return top == MERGE_EMPTY ? 0.0f : f32_divide(sum, total);
}

PORTABLE float merge_lse(float top, float total)
{
    return top == MERGE_EMPTY ? top : f32_add(top, merge_log(total));
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Partial results; strides are in bytes, vectors are dense. */
typedef struct merge_states {
    const void *out; /* state 0, row 0, head 0 */
    const void *lse; /* fp32 */
    i64 out_state, out_row, out_head;
    i64 lse_state, lse_row, lse_head;
    int count; /* of states */
    int dtype; /* ELEMENT_F32, _F16, _BF16 */
} merge_states;

typedef struct merge_result {
    void *out;
    void *lse; /* NULL: not wanted */
    i64 out_row, out_head;
    i64 lse_row, lse_head;
    int dtype;
    int dim;
} merge_result;

/* Elements of a lane that are summed together, so that they share the computation of a weight. */
#define MERGE_TOGETHER 4

PORTABLE float merge_state_lse(const merge_states *states, i64 row, int head, int state)
{
    const char *lse = (const char *)states->lse + row * states->lse_row + head * states->lse_head +
                      state * states->lse_state;
    return bits_f32(*PORTABLE_AT((const any32 *)lse));
}

PORTABLE const char *merge_state_out(const merge_states *states, i64 row, int head, int state)
{
    return (const char *)states->out + row * states->out_row + head * states->out_head +
           state * states->out_state;
}

/* Add a state to the sums of elements d, d + lanes ... */
PORTABLE void merge_add_state(const merge_states *states, i64 row, int head, int state, float top,
                              int d, int lanes, int dim, float sums[MERGE_TOGETHER])
{
    float lse = merge_state_lse(states, row, head, state), weight = merge_weight(lse, top);
    const char *out = merge_state_out(states, row, head, state);
    if (lse == MERGE_EMPTY)
        return;
    for (int i = 0; i < MERGE_TOGETHER; i++)
        if (d + i * lanes < dim)
            sums[i] = f32_add(
                sums[i], f32_multiply(weight, element_load(states->dtype, out, d + i * lanes)));
}

PORTABLE void merge_store(const merge_result *to, i64 row, int head, float top, float total, int d,
                          int lanes, const float sums[MERGE_TOGETHER])
{
    char *out = (char *)to->out + row * to->out_row + head * to->out_head;
    for (int i = 0; i < MERGE_TOGETHER; i++)
        if (d + i * lanes < to->dim)
            element_store(to->dtype, out, d + i * lanes, merge_element(sums[i], top, total));
}

PORTABLE void merge_store_lse(const merge_result *to, i64 row, int head, float lse)
{
    if (to->lse)
        *PORTABLE_AT((any32 *)((char *)to->lse + row * to->lse_row + head * to->lse_head)) =
            f32_bits(lse);
}

/* Merge all states of a row and head, and one more logit without a value, a sink (MERGE_EMPTY:
 * none), by lane `lane` of `lanes`. The output may overwrite a state's output of the same type and
 * strides. The LSE may overwrite a state's only if there is one lane, as others may still have to
 * read it. */
PORTABLE void merge_many(const merge_states *states, float sink, const merge_result *to, i64 row,
                         int head, int lane, int lanes)
{
    float top = sink;
    for (int i = 0; i < states->count; i++)
        top = merge_top(top, merge_state_lse(states, row, head, i));
    float total = merge_weight(sink, top);
    for (int i = 0; i < states->count; i++)
        total = f32_add(total, merge_weight(merge_state_lse(states, row, head, i), top));
    for (int d = lane; d < to->dim; d += lanes * MERGE_TOGETHER) {
        float sums[MERGE_TOGETHER] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int i = 0; i < states->count; i++)
            merge_add_state(states, row, head, i, top, d, lanes, to->dim, sums);
        merge_store(to, row, head, top, total, d, lanes, sums);
    }
    if (lane == 0)
        merge_store_lse(to, row, head, merge_lse(top, total));
}

/* Merge two states with separate strides, state 0 of each. Same bits as merge_many(). */
PORTABLE void merge_two(const merge_states *a, const merge_states *b, const merge_result *to,
                        i64 row, int head, int lane, int lanes)
{
    float lse_a = merge_state_lse(a, row, head, 0), lse_b = merge_state_lse(b, row, head, 0);
    float top = merge_top(merge_top(MERGE_EMPTY, lse_a), lse_b);
    float total = f32_add(merge_weight(lse_a, top), merge_weight(lse_b, top));
    for (int d = lane; d < to->dim; d += lanes * MERGE_TOGETHER) {
        float sums[MERGE_TOGETHER] = {0.0f, 0.0f, 0.0f, 0.0f};
        merge_add_state(a, row, head, 0, top, d, lanes, to->dim, sums);
        merge_add_state(b, row, head, 0, top, d, lanes, to->dim, sums);
        merge_store(to, row, head, top, total, d, lanes, sums);
    }
    if (lane == 0)
        merge_store_lse(to, row, head, merge_lse(top, total));
}

#endif /* PLUGINS_CUDA_MERGE_STATES_CUH */
