/* SPDX-License-Identifier: Apache-2.0
 *
 * generator_linear.c: random operands of recurrent layers.
 */
#include "host/workload/generator_linear.h"

#include <endian.h>
#include <math.h>
#include <string.h>

#include "host/base/operand_roles.h"
#include "host/workload/vectors.h"

/* ---- Shapes ---------------------------------------------------------------------------------- */

static int32_t channels_of(const attn_linear_dims *dims)
{
    return 2 * dims->num_k_heads * dims->head_k_dim + dims->num_v_heads * dims->head_v_dim;
}

static int has_gates(const attn_linear_dims *dims)
{
    return dims->family != ATTN_LINEAR_SHORT_CONV && dims->family != ATTN_LINEAR_LIGHTNING;
}

static int is_raw(const attn_linear_dims *dims)
{
    return (dims->flags & ATTN_LINEAR_RAW_GATES) != 0;
}

/* Do layers of this family have the operand at all? */
static int exists(const attn_linear_dims *dims, uint32_t role)
{
    int mamba2 = dims->family == ATTN_LINEAR_MAMBA2, raw = is_raw(dims);
    switch (role) {
    case ATTN_ROLE_MIXED_QKV:
    case ATTN_ROLE_GATE_Z:
        return 1;
    case ATTN_ROLE_GATE_A:
        return has_gates(dims);
    case ATTN_ROLE_GATE_B:
        return has_gates(dims) && !(mamba2 && raw);
    case ATTN_ROLE_A_LOG:
        return dims->family == ATTN_LINEAR_LIGHTNING || (has_gates(dims) && raw);
    case ATTN_ROLE_DT_BIAS:
        return has_gates(dims) && raw;
    case ATTN_ROLE_D_SKIP:
        return mamba2;
    case ATTN_ROLE_CONV_WEIGHT:
    case ATTN_ROLE_CONV_BIAS:
        return dims->conv_width > 0;
    default:
        return 0;
    }
}

uint32_t generator_linear_given(const attn_layer_group *group, bool conv_bias)
{
    uint32_t given = 0;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (exists(group->linear, role) && role != ATTN_ROLE_GATE_Z &&
            (role != ATTN_ROLE_CONV_BIAS || conv_bias))
            given |= 1u << role;
    return given;
}

uint32_t generator_linear_shape(const attn_layer_group *group, uint32_t role, int64_t *shape)
{
    const attn_linear_dims *dims = group->linear;
    int kda = dims->family == ATTN_LINEAR_KDA;
    if (!exists(dims, role))
        return 0;
    switch (role) {
    case ATTN_ROLE_MIXED_QKV:
    case ATTN_ROLE_CONV_BIAS:
        shape[0] = channels_of(dims);
        return 1;
    case ATTN_ROLE_CONV_WEIGHT:
        shape[0] = channels_of(dims);
        shape[1] = dims->conv_width;
        return 2;
    case ATTN_ROLE_GATE_A:
    case ATTN_ROLE_DT_BIAS:
        shape[0] = dims->num_v_heads;
        shape[1] = dims->head_k_dim;
        return kda ? 2 : 1;
    case ATTN_ROLE_GATE_Z:
        shape[0] = dims->num_v_heads;
        shape[1] = dims->head_v_dim;
        return 2;
    default:
        shape[0] = dims->num_v_heads;
        return 1;
    }
}

int64_t generator_linear_elements(const attn_layer_group *group, uint32_t role)
{
    int64_t shape[2];
    uint32_t ndim = generator_linear_shape(group, role, shape);
    return ndim == 0 ? 0 : ndim == 1 ? shape[0] : shape[0] * shape[1];
}

attn_dtype generator_linear_dtype(const attn_layer_group *group, uint32_t role, attn_dtype dtype)
{
    const attn_problem problem = {.group = group, .q_dtype = dtype, .out_dtype = dtype};
    return role_dtype(&problem, role, NULL);
}

/* ---- Streams --------------------------------------------------------------------------------- */

static uint64_t stream_of(const struct generator *generator, token_key key, int32_t layer,
                          uint32_t role)
{
    return vectors_stream(vectors_token(generator, key), layer, 0,
                          GENERATOR_OPERAND + (int32_t)role);
}

/* Elements are made in blocks, at places that are multiples of VECTORS_GROUP. */
enum { BLOCK = 64 * VECTORS_GROUP };

/* Integers of the stream from group `group` on, `groups` of them. */
static void fill_raw(uint64_t stream, int64_t group, int64_t groups, int8_t *raw)
{
    for (int64_t g = 0; g < groups; g++) {
        uint64_t word = htole64(vectors_word(stream, (uint64_t)(group + g)));
        memcpy(raw + g * VECTORS_GROUP, &word, sizeof word);
    }
}

static void scale_raw(const int8_t *raw, int64_t groups, const struct vectors_factors *factors,
                      int32_t exponent, float *out)
{
    for (int64_t i = 0; i < groups * VECTORS_GROUP; i++)
        out[i] = vectors_times_power(factors, exponent, raw[i]);
}

static void halve(const float *from, int64_t groups, attn_dtype dtype, uint16_t *out)
{
    for (int64_t g = 0; g < groups; g++) {
        uint32_t bits[VECTORS_GROUP];
        memcpy(bits, from + g * VECTORS_GROUP, sizeof bits);
        for (int lane = 0; lane < VECTORS_GROUP; lane++)
            out[g * VECTORS_GROUP + lane] = (uint16_t)vectors_narrow(bits[lane], dtype);
    }
}

static void widen(const float *from, int64_t groups, double *out)
{
    for (int64_t g = 0; g < groups; g++)
        for (int lane = 0; lane < VECTORS_GROUP; lane++)
            out[g * VECTORS_GROUP + lane] = (double)from[g * VECTORS_GROUP + lane];
}

/* A block of values without its first `skipped`, as elements [at, at + count) of `out`. */
static void store(const float *values, int64_t groups, int64_t skipped, int64_t count,
                  attn_dtype dtype, void *out, int64_t at)
{
    double wide[BLOCK];
    uint16_t halves[BLOCK];
    size_t number = (size_t)count;
    if (dtype == ATTN_F32) {
        memcpy((float *)out + at, values + skipped, number * sizeof *values);
    } else if (dtype == ATTN_F64) {
        widen(values, groups, wide);
        memcpy((double *)out + at, wide + skipped, number * sizeof *wide);
    } else {
        halve(values, groups, dtype, halves);
        memcpy((uint16_t *)out + at, halves + skipped, number * sizeof *halves);
    }
}

/* Elements [first, first + count) of the stream, times a factor, to out[at ...]. */
static void fill(uint64_t stream, int64_t first, int64_t count,
                 const struct vectors_factors *factors, int32_t exponent, attn_dtype dtype,
                 void *out, int64_t at)
{
    int8_t raw[BLOCK];
    float values[BLOCK];
    for (int64_t end = first + count; first < end;) {
        int64_t group = first / VECTORS_GROUP, skipped = first % VECTORS_GROUP;
        int64_t taken = BLOCK - skipped < end - first ? BLOCK - skipped : end - first;
        int64_t groups = (skipped + taken + VECTORS_GROUP - 1) / VECTORS_GROUP;
        fill_raw(stream, group, groups, raw);
        scale_raw(raw, groups, factors, exponent, values);
        store(values, groups, skipped, taken, dtype, out, at);
        first += taken;
        at += taken;
    }
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

/* The exponent that makes q and k short enough if they are not normalised. Up to 8, elements are
 * normal in fp16. */
static int key_exponent(const attn_linear_dims *dims)
{
    int delta = dims->family == ATTN_LINEAR_GDN || dims->family == ATTN_LINEAR_KDA;
    if (!delta || dims->flags & ATTN_LINEAR_QK_L2NORM)
        return 0;
    return (int)fmin(ceil(log2(2 * sqrt((double)dims->head_k_dim))), 8);
}

/* The slopes that MiniMax's lightning attention has as constants, arXiv 2501.08313: those of ALiBi,
 * arXiv 2108.12409, in its form for any number of heads, which fall to almost none in the last
 * layer. */
static double lightning_rate(const struct generator *generator, int32_t layer, int32_t head,
                             int32_t heads)
{
    int32_t power = 1, last = generator->num_layers - 1;
    while (power <= heads / 2)
        power *= 2;
    double exponent = head < power ? 8.0 * (head + 1) / power
                                   : 8.0 * (2 * (head - power) + 1) / (2 * (double)power);
    return exp2(-exponent) * (1 - (last > 0 ? (double)layer / last : 0) + 1e-5);
}

double generator_linear_rate(const struct generator *generator, const attn_layer_group *group,
                             int32_t layer, int32_t head)
{
    const double slowest = 1e-4, fastest = 0.69;
    const token_key no_token = {0, 0};
    int32_t heads = group->linear->num_v_heads;
    if (group->linear->family == ATTN_LINEAR_LIGHTNING)
        return lightning_rate(generator, layer, head, heads);
    /* Layers begin at different heads, so that no head is the slow one in all of them. */
    uint64_t word = mix_stream(stream_of(generator, no_token, layer, ATTN_ROLE_A_LOG), UINT32_MAX);
    uint64_t first = mix_below((uint32_t)(word >> 32), (uint64_t)heads);
    double place = heads > 1 ? (double)((first + (uint64_t)head) % (uint64_t)heads) / (heads - 1)
                             : (double)(word & 255) / 255;
    return slowest * pow(fastest / slowest, place);
}

/* ---- Factors --------------------------------------------------------------------------------- */

/* Are these log decays, which have a factor for each head? */
static int is_decay(const attn_linear_dims *dims, uint32_t role)
{
    return role == ATTN_ROLE_GATE_A && !is_raw(dims);
}

void generator_linear_factors(const attn_layer_group *group, uint32_t role,
                              struct vectors_factors *factors)
{
    const attn_linear_dims *dims = group->linear;
    int32_t elements = (int32_t)generator_linear_elements(group, role);
    int channels = role == ATTN_ROLE_MIXED_QKV || role == ATTN_ROLE_CONV_BIAS;
    *factors = (struct vectors_factors){.sign = 1, .width = elements > 0 ? elements : 1};
    if (is_decay(dims, role)) {
        factors->offset = 128;
        factors->sign = -1;
        factors->width = dims->family == ATTN_LINEAR_KDA ? dims->head_k_dim : 1;
    } else if (role == ATTN_ROLE_GATE_B && !is_raw(dims)) {
        factors->offset = 128;
    } else if (channels) { /* those of q and k are shorter than those of v */
        factors->first = 2 * dims->num_k_heads * dims->head_k_dim;
    }
    factors->count = elements > 0 ? vectors_factor_index(factors, elements - 1) + 1 : 0;
}

static int32_t plain_exponent(const attn_linear_dims *dims, uint32_t role)
{
    switch (role) {
    case ATTN_ROLE_GATE_A:
    case ATTN_ROLE_CONV_WEIGHT:
        return -7;
    case ATTN_ROLE_GATE_B:
        return is_raw(dims) ? -5 : dims->family == ATTN_LINEAR_MAMBA2 ? -11 : -8;
    case ATTN_ROLE_CONV_BIAS:
        return -8;
    default:
        return -6;
    }
}

int32_t generator_linear_exponent(const struct generator *generator, const attn_layer_group *group,
                                  int32_t layer, uint32_t role, int32_t index)
{
    const attn_linear_dims *dims = group->linear;
    int channels = role == ATTN_ROLE_MIXED_QKV || role == ATTN_ROLE_CONV_BIAS;
    if (is_decay(dims, role))
        return (int32_t)lround(log2(generator_linear_rate(generator, group, layer, index))) - 7;
    int keys = channels && index == 0 && dims->num_k_heads > 0 && dims->head_k_dim > 0;
    return plain_exponent(dims, role) - (keys ? key_exponent(dims) : 0);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Elements [first, first + count) of a stream with all its factors. */
static void fill_part(const struct generator *generator, const attn_layer_group *group,
                      int32_t layer, uint64_t stream, uint32_t role, attn_dtype dtype,
                      int64_t first, int64_t count, void *out)
{
    struct vectors_factors factors;
    generator_linear_factors(group, role, &factors);
    for (int64_t end = first + count, at = 0; first < end;) {
        int32_t index = vectors_factor_index(&factors, (int32_t)first);
        int64_t next = factors.first + (int64_t)factors.width * (index + (factors.first == 0));
        next = next < end ? next : end;
        fill(stream, first, next - first, &factors,
             generator_linear_exponent(generator, group, layer, role, index), dtype, out, at);
        at += next - first;
        first = next;
    }
}

void generator_linear_part(const struct generator *generator, const attn_layer_group *group,
                           int32_t layer, token_key key, uint32_t role, attn_dtype dtype,
                           int64_t first, int64_t count, void *out)
{
    fill_part(generator, group, layer, stream_of(generator, key, layer, role), role, dtype, first,
              count, out);
}

void generator_linear_row(const struct generator *generator, const attn_layer_group *group,
                          int32_t layer, token_key key, uint32_t role, attn_dtype dtype, void *out)
{
    generator_linear_part(generator, group, layer, key, role, dtype, 0,
                          generator_linear_elements(group, role), out);
}

/* ---- Constants ------------------------------------------------------------------------------- */

static double softplus(double x)
{
    return log1p(exp(x));
}

/* A multiple of 2^-10: exact in fp32, and near enough. */
static float rounded(double x)
{
    return (float)(round(x * 1024) / 1024);
}

static double clamped_dt(const attn_linear_dims *dims, double bias)
{
    double dt = softplus(bias);
    if (dims->family != ATTN_LINEAR_MAMBA2)
        return dt;
    dt = fmax(dt, (double)dims->dt_min);
    return dims->dt_max > 0 ? fmin(dt, (double)dims->dt_max) : dt;
}

/* KDA's bounded form: lower_bound * sigmoid(e^A_log (a + dt_bias)). */
static int is_bounded(const attn_linear_dims *dims)
{
    return dims->family == ATTN_LINEAR_KDA && dims->lower_bound != 0;
}

/* -3 + n / 128. In the bounded form, whose bias alone makes the rate, n / 1024 in addition. */
static const double bounded_a_log = 0.25;

static float bias_of(const attn_linear_dims *dims, double rate, int32_t n)
{
    if (!is_bounded(dims))
        return -3 + (float)n / 128;
    double share = fmin(rate / fabs((double)dims->lower_bound), 0.99);
    return rounded(log(share / (1 - share)) / exp(bounded_a_log)) + (float)n / 1024;
}

static float a_log_of(const attn_linear_dims *dims, double rate)
{
    if (dims->family == ATTN_LINEAR_LIGHTNING)
        return (float)-rate;
    return rounded(is_bounded(dims) ? bounded_a_log : log(rate / clamped_dt(dims, -3)));
}

static void fill_gate_constant(const struct generator *generator, const attn_layer_group *group,
                               int32_t layer, uint32_t role, uint64_t stream, float *out)
{
    int64_t count = generator_linear_elements(group, role);
    int64_t width = count / group->linear->num_v_heads;
    const struct vectors_factors integers = {.sign = 1};
    fill(stream, 0, count, &integers, 0, ATTN_F32, out, 0);
    for (int64_t n = 0; n < count; n++) {
        double rate = generator_linear_rate(generator, group, layer, (int32_t)(n / width));
        out[n] = role == ATTN_ROLE_A_LOG ? a_log_of(group->linear, rate)
                                         : bias_of(group->linear, rate, (int32_t)out[n]);
    }
}

void generator_linear_constant(const struct generator *generator, const attn_layer_group *group,
                               int32_t layer, uint32_t role, float *out)
{
    const token_key no_token = {0, 0};
    uint64_t stream = stream_of(generator, no_token, layer, role);
    int64_t count = generator_linear_elements(group, role);
    if (role == ATTN_ROLE_A_LOG || role == ATTN_ROLE_DT_BIAS)
        fill_gate_constant(generator, group, layer, role, stream, out);
    else
        fill_part(generator, group, layer, stream, role, ATTN_F32, 0, count, out);
}
