/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_step.c: the convolution, the gates, and one step of the recurrence.
 */
#include "host/reference/linear_call.h"

#include "host/dtype.h"

#include <math.h>

static const double norm_epsilon = 1e-6;

/* ---- Rounding -------------------------------------------------------------------------------- */

/* The outcome of an operation. An fp64 operation on fp32 numbers, rounded to fp32, is the fp32
 * operation. */
static double op(const linear_form *form, double x)
{
    return form->naive ? (double)(float)x : x;
}

static double operand(const linear_form *form, double x)
{
    return form->naive ? dtype_round(form->operand, x) : x;
}

static double sigmoid(const linear_form *form, double x)
{
    return op(form, 1 / op(form, 1 + op(form, exp(-x))));
}

static double silu(const linear_form *form, double x)
{
    return op(form, x * sigmoid(form, x));
}

static double softplus(const linear_form *form, double x)
{
    return op(form, x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));
}

/* ---- Convolution ----------------------------------------------------------------------------- */

/* Input `t` of a channel, which lies in the state if t < 0. */
static double input(const linear_call *call, const linear_sequence *sequence, int32_t channel,
                    int64_t t)
{
    if (t >= 0)
        return linear_load(call->mixed, sequence->first_row + t, channel, 0);
    return sequence->slot
               ? linear_load(call->conv_state, sequence->slot, channel, t + linear_taps(call))
               : 0;
}

static double convolve(const linear_call *call, const linear_form *form,
                       const linear_sequence *sequence, int32_t channel, int64_t t, double *terms)
{
    int32_t width = call->dims->conv_width;
    double sum = call->bias ? linear_load(call->bias, channel, 0, 0) : 0;
    *terms = fabs(sum);
    for (int32_t w = 0; w < width; w++) {
        double x = input(call, sequence, channel, t - width + 1 + w);
        double term = op(form, linear_load(call->weight, channel, w, 0) * x);
        *terms += fabs(term);
        sum = op(form, sum + term);
    }
    return call->dims->flags & ATTN_LINEAR_CONV_IDENTITY ? sum : silu(form, sum);
}

void linear_convolve(const linear_call *call, const linear_form *form,
                     const linear_sequence *sequence, double *to, double *terms)
{
    for (int64_t t = 0; t < sequence->num_rows; t++)
        for (int32_t c = 0; c < call->channels; c++) {
            int64_t at = t * call->channels + c;
            double sum = input(call, sequence, c, t), absolute = fabs(sum);
            if (call->dims->conv_width > 0)
                sum = convolve(call, form, sequence, c, t, &absolute);
            to[at] = operand(form, sum);
            if (terms)
                terms[at] = absolute;
        }
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* What the token's state is multiplied by, in channel `i` of k, and beta. */
static double decay(const linear_call *call, const linear_form *form, const linear_token *token,
                    int32_t i, double *beta)
{
    const attn_linear_dims *dims = call->dims;
    int32_t h = token->head;
    *beta = 1;
    if (dims->family == ATTN_LINEAR_LIGHTNING)
        return op(form, exp(linear_load(call->a_log, h, 0, 0)));
    double a = linear_load(call->a, token->row, h, i);
    if (call->b)
        *beta = linear_load(call->b, token->row, h, 0);
    if (!call->raw)
        return op(form, exp(a));
    int64_t entry = dims->family == ATTN_LINEAR_KDA && call->dt_bias->ndim == 1
                        ? (int64_t)h * call->k_dim + i
                        : h;
    double x = op(form, a + linear_load(call->dt_bias, entry, i, 0));
    double rate = op(form, exp(linear_load(call->a_log, h, 0, 0)));
    if (call->b)
        *beta = sigmoid(form, *beta);
    if (dims->family == ATTN_LINEAR_KDA && dims->lower_bound != 0)
        return op(form,
                  exp(op(form, (double)dims->lower_bound * sigmoid(form, op(form, rate * x)))));
    double dt = softplus(form, x);
    if (dims->family == ATTN_LINEAR_MAMBA2) {
        dt = fmax(dt, (double)dims->dt_min);
        dt = dims->dt_max > 0 ? fmin(dt, (double)dims->dt_max) : dt;
        *beta = dt;
    }
    return op(form, exp(op(form, -rate * dt)));
}

/* ---- One step -------------------------------------------------------------------------------- */

static void normalise(const linear_call *call, const linear_form *form, const double *from,
                      double *to)
{
    double sum = 0;
    for (int32_t i = 0; i < call->k_dim; i++)
        sum = op(form, sum + op(form, from[i] * from[i]));
    double factor = op(form, 1 / op(form, sqrt(op(form, sum + norm_epsilon))));
    for (int32_t i = 0; i < call->k_dim; i++)
        to[i] = call->dims->flags & ATTN_LINEAR_QK_L2NORM
                    ? operand(form, op(form, from[i] * factor))
                    : from[i];
}

/* u: what k brings to the state. */
static void update(const linear_call *call, const linear_form *form, const linear_token *token,
                   const double *k, const double *v, double beta, double *u)
{
    uint32_t family = call->dims->family;
    for (int32_t j = 0; j < call->v_dim; j++) {
        double held = 0;
        for (int32_t i = 0; i < call->k_dim; i++)
            held = op(form, held + op(form, token->state[i * call->v_dim + j] * k[i]));
        if (family != ATTN_LINEAR_GDN && family != ATTN_LINEAR_KDA)
            held = 0;
        u[j] = op(form, beta * op(form, v[j] - held));
    }
    for (int32_t i = 0; i < call->k_dim; i++)
        for (int32_t j = 0; j < call->v_dim; j++) {
            double *state = &token->state[i * call->v_dim + j];
            *state = op(form, *state + op(form, k[i] * u[j]));
        }
}

static void read_out(const linear_call *call, const linear_form *form, const linear_token *token,
                     const double *q, const double *v)
{
    double scale = (double)call->group->sm_scale;
    for (int32_t j = 0; j < call->v_dim; j++) {
        double sum = 0, terms = 0;
        for (int32_t i = 0; i < call->k_dim; i++) {
            double term = op(form, token->state[i * call->v_dim + j] * q[i]);
            sum = op(form, sum + term);
            terms += fabs(term);
        }
        double skip = call->skip ? linear_load(call->skip, token->head, j, 0) : 0;
        double passed = op(form, skip * v[j]);
        token->out[j] = op(form, op(form, sum * scale) + passed);
        token->terms[j] = terms * fabs(scale) + fabs(passed);
    }
}

void linear_step(const linear_call *call, const linear_form *form, const linear_token *token)
{
    int32_t k_head = token->head / (call->v_heads / call->k_heads);
    double *q = token->work, *k = q + call->k_dim, *u = k + call->k_dim, beta = 1;
    const double *v = token->channels + call->first[2] + (int64_t)token->head * call->v_dim;
    normalise(call, form, token->channels + call->first[0] + (int64_t)k_head * call->k_dim, q);
    normalise(call, form, token->channels + call->first[1] + (int64_t)k_head * call->k_dim, k);
    for (int32_t i = 0; i < call->k_dim; i++) {
        double factor = decay(call, form, token, i, &beta);
        for (int32_t j = 0; j < call->v_dim; j++)
            token->state[i * call->v_dim + j] =
                op(form, token->state[i * call->v_dim + j] * factor);
    }
    update(call, form, token, k, v, beta, u);
    read_out(call, form, token, q, v);
}

void linear_output_gate(const linear_call *call, const linear_form *form, const linear_token *token)
{
    for (int32_t j = 0; call->z && j < call->v_dim; j++) {
        double gate = silu(form, linear_load(call->z, token->row, token->head, j));
        token->out[j] = op(form, token->out[j] * gate);
        token->terms[j] *= fabs(gate);
    }
}
