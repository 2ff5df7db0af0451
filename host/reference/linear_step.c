/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_step.c: the convolution and the gates.
 */
#include "host/reference/linear_step.h"

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
    return form->naive ? linear_round(form->operand, x) : x;
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

/* One channel of one row; `x` is its oldest input, others follow in steps of `step`. */
static double convolve(const reference_linear_layer *layer, const linear_form *form,
                       int32_t channel, const double *x, int32_t step, double *terms)
{
    int32_t width = layer->dims.conv_width;
    const double *weight = layer->weight + (int64_t)channel * width;
    double sum = layer->bias ? layer->bias[channel] : 0;
    *terms = fabs(sum);
    for (int32_t w = 0; w < width; w++) {
        double term = op(form, weight[w] * x[(int64_t)w * step]);
        *terms += fabs(term);
        sum = op(form, sum + term);
    }
    return layer->dims.flags & ATTN_LINEAR_CONV_IDENTITY ? sum : silu(form, sum);
}

void linear_convolve(const reference_linear_layer *layer, const linear_form *form,
                     const reference_linear_channels *channels, const double *inputs, int64_t count,
                     double *to, double *terms)
{
    int32_t total = channels->total;
    for (int64_t t = 0; t < count; t++)
        for (int32_t c = 0; c < total; c++) {
            int64_t at = t * total + c;
            double sum = inputs[at], absolute = fabs(sum);
            if (layer->dims.conv_width > 0)
                sum = convolve(layer, form, reference_linear_channel(channels, c), inputs + at,
                               total, &absolute);
            to[at] = operand(form, sum);
            if (terms)
                terms[at] = absolute;
        }
}

void linear_normalise(const reference_linear_layer *layer, const linear_form *form, double *x)
{
    double sum = 0;
    if (!(layer->dims.flags & ATTN_LINEAR_QK_L2NORM))
        return;
    for (int32_t i = 0; i < layer->dims.head_k_dim; i++)
        sum = op(form, sum + op(form, x[i] * x[i]));
    double factor = op(form, 1 / op(form, sqrt(op(form, sum + norm_epsilon))));
    for (int32_t i = 0; i < layer->dims.head_k_dim; i++)
        x[i] = operand(form, op(form, x[i] * factor));
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* e^g of raw gates, `rate` being e^A_log; Mamba2's beta is dt. */
static double raw_decay(const attn_linear_dims *dims, const linear_form *form, double rate,
                        double a, double dt_bias, double *beta)
{
    double x = op(form, a + dt_bias);
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

double linear_gates(const reference_linear_layer *layer, const linear_form *form,
                    const reference_linear_rows *rows, int64_t t, int32_t head, double *decay)
{
    const attn_linear_dims *dims = &layer->dims;
    int64_t at = t * dims->num_v_heads + head;
    int32_t k_dim = dims->head_k_dim;
    int32_t different = dims->family == ATTN_LINEAR_KDA ? k_dim : 1;
    int raw = (dims->flags & ATTN_LINEAR_RAW_GATES) != 0;
    double rate = layer->a_log ? op(form, exp(layer->a_log[head])) : 0;
    double beta = rows->b ? rows->b[at] : 1;
    if (rows->b && raw)
        beta = sigmoid(form, beta);
    for (int32_t i = 0; i < different; i++) {
        if (dims->family == ATTN_LINEAR_LIGHTNING)
            decay[i] = rate;
        else if (!raw)
            decay[i] = op(form, exp(rows->a[at * different + i]));
        else
            decay[i] = raw_decay(dims, form, rate, rows->a[at * different + i],
                                 layer->dt_bias[(int64_t)head * different + i], &beta);
    }
    for (int32_t i = different; i < k_dim; i++)
        decay[i] = decay[0];
    return beta;
}

/* ---- One step -------------------------------------------------------------------------------- */

int64_t linear_step_work(const reference_linear_layer *layer)
{
    return 2 * (int64_t)layer->dims.head_k_dim + 3 * (int64_t)linear_stride(layer);
}

void linear_output_gate(const reference_linear_layer *layer, const linear_form *form,
                        const double *z, double *out, double *terms)
{
    for (int32_t j = 0; j < layer->dims.head_v_dim; j++) {
        double gate = silu(form, z[j]);
        out[j] = op(form, out[j] * gate);
        terms[j] *= fabs(gate);
    }
}
