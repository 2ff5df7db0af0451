/* SPDX-License-Identifier: Apache-2.0
 *
 * check_generator_linear.c: operands of linear layers against their definition, and what users of
 * them rely on: exact elements, equal rows for equal tokens, ranges that keep a state alive.
 */
#include "host/workload/generator_linear.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "host/base/dtype.h"
#include "tests/tools/test_main.h"

enum { NUM_LAYERS = 4, MAX_WIDTH = 1536 };

static const uint32_t row_roles[] = {ATTN_ROLE_MIXED_QKV, ATTN_ROLE_GATE_A, ATTN_ROLE_GATE_B,
                                     ATTN_ROLE_GATE_Z};
static const uint32_t constant_roles[] = {ATTN_ROLE_A_LOG, ATTN_ROLE_DT_BIAS, ATTN_ROLE_D_SKIP,
                                          ATTN_ROLE_CONV_WEIGHT, ATTN_ROLE_CONV_BIAS};
enum {
    ROW_ROLES = sizeof row_roles / sizeof *row_roles,
    CONSTANT_ROLES = sizeof constant_roles / sizeof *constant_roles
};

static generator_layer layers[NUM_LAYERS];
static struct generator generator;
static attn_linear_dims dims;
static attn_layer_group group;

static void set_seed(uint64_t seed)
{
    ck_assert_int_eq(generator_init(&generator, seed, layers, NUM_LAYERS, 16, 256, NULL), ATTN_OK);
}

static void set_family(uint32_t family, uint32_t flags)
{
    int short_conv = family == ATTN_LINEAR_SHORT_CONV;
    dims = (attn_linear_dims){.struct_size = sizeof dims,
                              .family = family,
                              .flags = flags,
                              .num_k_heads = short_conv ? 0 : 3,
                              .num_v_heads = 6,
                              .head_k_dim = short_conv ? 0 : 37,
                              .head_v_dim = 21,
                              .num_groups = family == ATTN_LINEAR_MAMBA2 ? 3 : 0,
                              .conv_width = 4};
    group = (attn_layer_group){
        .struct_size = sizeof group, .kind = ATTN_KIND_LINEAR, .linear = &dims, .num_layers = 1};
    set_seed(7);
}

/* Every family, gates raw and computed, q and k normalised and not. */
enum { CASES = ATTN_LINEAR_COUNT * 4 };

static void set_case(int number)
{
    set_family((uint32_t)number / 4,
               (number & 1 ? ATTN_LINEAR_RAW_GATES : 0) | (number & 2 ? ATTN_LINEAR_QK_L2NORM : 0));
}

static int64_t row(int32_t layer, token_key key, uint32_t role, double *out)
{
    int64_t count = generator_linear_elements(&group, role);
    ck_assert_int_le(count, MAX_WIDTH);
    generator_linear_row(&generator, &group, layer, key, role, ATTN_F64, out);
    return count;
}

static bool same(const double *x, const double *y, int64_t count)
{
    return memcmp(x, y, (size_t)count * sizeof *x) == 0;
}

static const token_key some_token = {11, 5};

/* ---- The definition -------------------------------------------------------------------------- */

/* The values of the raw integers of the row's stream, by the table in generator_linear.h. */
static double expected(uint32_t role, int64_t element, int n, double rate)
{
    bool raw = dims.flags & ATTN_LINEAR_RAW_GATES;
    bool delta = dims.family == ATTN_LINEAR_GDN || dims.family == ATTN_LINEAR_KDA;
    bool is_key = element < 2 * dims.num_k_heads * dims.head_k_dim;
    bool small = delta && is_key && !(dims.flags & ATTN_LINEAR_QK_L2NORM);
    switch (role) {
    case ATTN_ROLE_MIXED_QKV: /* 2 sqrt(37) is just above 12 */
        return n / 64.0 / (small ? 16 : 1);
    case ATTN_ROLE_GATE_A:
        return raw ? n / 128.0 : -(128 + n) / 128.0 * exp2(nearbyint(log2(rate)));
    case ATTN_ROLE_GATE_B:
        return raw                                 ? n / 32.0
               : dims.family == ATTN_LINEAR_MAMBA2 ? (128 + n) / 2048.0
                                                   : (128 + n) / 256.0;
    default:
        return n / 64.0;
    }
}

LOOP_OF(generator_linear, rows_as_defined, 0, CASES)
{
    int different = 0;
    set_case(_i);
    for (int r = 0; r < ROW_ROLES; r++) {
        int8_t raw[MAX_WIDTH];
        double out[MAX_WIDTH];
        int64_t count = row(2, some_token, row_roles[r], out);
        generator_raw(&generator, some_token, 2, 0, GENERATOR_OPERAND + (int32_t)row_roles[r],
                      (int32_t)count, raw);
        for (int64_t n = 0; n < count; n++) {
            double rate = generator_linear_rate(&generator, &group, 2,
                                                (int32_t)(n / (count / 6 + !count)) % 6);
            different += out[n] != expected(row_roles[r], n, raw[n], rate);
        }
    }
    ck_assert_int_eq(different, 0);
}

/* Which operands there are, how wide, and which a run gives. */
TEST_OF(generator_linear, shapes)
{
    static const struct {
        uint32_t family, flags, role;
        uint32_t ndim;
        int64_t shape[2];
        int given;
    } rows[] = {
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_MIXED_QKV, 1, {348}, 1},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_GATE_A, 1, {6}, 1},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_GATE_B, 1, {6}, 1},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_GATE_Z, 2, {6, 21}, 0},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_A_LOG, 1, {6}, 1},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_DT_BIAS, 1, {6}, 1},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_D_SKIP, 0, {0}, 0},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_CONV_WEIGHT, 2, {348, 4}, 1},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_CONV_BIAS, 1, {348}, 0},
        {ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_Q, 0, {0}, 0},
        {ATTN_LINEAR_GDN, 0, ATTN_ROLE_GATE_A, 1, {6}, 1},
        {ATTN_LINEAR_GDN, 0, ATTN_ROLE_A_LOG, 0, {0}, 0},
        {ATTN_LINEAR_GDN, 0, ATTN_ROLE_DT_BIAS, 0, {0}, 0},
        {ATTN_LINEAR_KDA, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_GATE_A, 2, {6, 37}, 1},
        {ATTN_LINEAR_KDA, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_DT_BIAS, 2, {6, 37}, 1},
        {ATTN_LINEAR_KDA, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_A_LOG, 1, {6}, 1},
        {ATTN_LINEAR_MAMBA2, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_GATE_B, 0, {0}, 0},
        {ATTN_LINEAR_MAMBA2, 0, ATTN_ROLE_GATE_B, 1, {6}, 1},
        {ATTN_LINEAR_MAMBA2, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_D_SKIP, 1, {6}, 1},
        {ATTN_LINEAR_MAMBA2, ATTN_LINEAR_RAW_GATES, ATTN_ROLE_CONV_BIAS, 1, {348}, 0},
        {ATTN_LINEAR_LIGHTNING, 0, ATTN_ROLE_GATE_A, 0, {0}, 0},
        {ATTN_LINEAR_LIGHTNING, 0, ATTN_ROLE_GATE_B, 0, {0}, 0},
        {ATTN_LINEAR_LIGHTNING, 0, ATTN_ROLE_A_LOG, 1, {6}, 1},
        {ATTN_LINEAR_SHORT_CONV, 0, ATTN_ROLE_MIXED_QKV, 1, {126}, 1},
        {ATTN_LINEAR_SHORT_CONV, 0, ATTN_ROLE_A_LOG, 0, {0}, 0},
        {ATTN_LINEAR_SHORT_CONV, 0, ATTN_ROLE_CONV_WEIGHT, 2, {126, 4}, 1},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        int64_t shape[2] = {0, 0};
        set_family(rows[n].family, rows[n].flags);
        ck_assert_msg(generator_linear_shape(&group, rows[n].role, shape) == rows[n].ndim,
                      "row %zu", n);
        for (uint32_t d = 0; d < rows[n].ndim; d++)
            ck_assert_int_eq(shape[d], rows[n].shape[d]);
        ck_assert_int_eq(generator_linear_given(&group, false) >> rows[n].role & 1, rows[n].given);
        uint32_t bias = rows[n].role == ATTN_ROLE_CONV_BIAS;
        ck_assert_int_eq(generator_linear_given(&group, true) >> rows[n].role & 1,
                         rows[n].given | (int)bias);
    }
    dims.conv_width = 0;
    ck_assert_int_eq(generator_linear_elements(&group, ATTN_ROLE_CONV_WEIGHT), 0);
    ck_assert_int_eq(generator_linear_given(&group, true) >> ATTN_ROLE_CONV_BIAS & 1, 0);
    set_family(ATTN_LINEAR_GDN, ATTN_LINEAR_RAW_GATES);
    ck_assert_int_eq(generator_linear_dtype(&group, ATTN_ROLE_GATE_A, ATTN_BF16), ATTN_BF16);
    ck_assert_int_eq(generator_linear_dtype(&group, ATTN_ROLE_A_LOG, ATTN_BF16), ATTN_F32);
    ck_assert_int_eq(generator_linear_dtype(&group, ATTN_ROLE_CONV_WEIGHT, ATTN_F16), ATTN_F16);
    set_family(ATTN_LINEAR_GDN, 0);
    ck_assert_int_eq(generator_linear_dtype(&group, ATTN_ROLE_GATE_A, ATTN_BF16), ATTN_F32);
    ck_assert_int_eq(generator_linear_dtype(&group, ATTN_ROLE_GATE_B, ATTN_BF16), ATTN_F32);
}

/* ---- Exactness ------------------------------------------------------------------------------- */

/* Every narrower dtype holds the same numbers, and zero is +0. */
LOOP_OF(generator_linear, exact_in_every_dtype, 0, CASES)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
    int negative_zeros = 0;
    set_case(_i);
    for (int r = 0; r < ROW_ROLES; r++)
        for (int d = 0; d < 3; d++) {
            double out[MAX_WIDTH], same_out[MAX_WIDTH];
            uint8_t bytes[MAX_WIDTH * 4];
            bool computed =
                row_roles[r] == ATTN_ROLE_GATE_A && !(dims.flags & ATTN_LINEAR_RAW_GATES);
            int64_t count = row(1, some_token, row_roles[r], out);
            if (computed && dtypes[d] == ATTN_F16)
                continue; /* the ABI wants it in fp32, and it is too small for fp16 */
            generator_linear_row(&generator, &group, 1, some_token, row_roles[r], dtypes[d], bytes);
            dtype_to_double(dtypes[d], bytes, count, same_out);
            ck_assert_mem_eq(same_out, out, (size_t)count * sizeof *out);
            for (int64_t n = 0; n < count; n++)
                negative_zeros += out[n] == 0 && signbit(out[n]);
        }
    ck_assert_int_eq(negative_zeros, 0);
    for (int r = 0; r < CONSTANT_ROLES; r++) {
        float out[MAX_WIDTH];
        int64_t count = generator_linear_elements(&group, constant_roles[r]);
        generator_linear_constant(&generator, &group, 1, constant_roles[r], out);
        for (int d = 0; d < 3; d++)
            for (int64_t n = 0; n < count; n++)
                ck_assert_double_eq(
                    dtype_round(generator_linear_dtype(&group, constant_roles[r], dtypes[d]),
                                (double)out[n]),
                    (double)out[n]);
    }
}

/* Any part of a row is the same as that part of the whole, and nothing next to it is written. */
LOOP_OF(generator_linear, parts_of_rows, 0, CASES)
{
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_BF16};
    set_case(_i);
    for (int r = 0; r < ROW_ROLES; r++)
        for (int d = 0; d < 3; d++) {
            uint8_t whole[MAX_WIDTH * 8], part[MAX_WIDTH * 8];
            size_t size = attn_dtype_size(dtypes[d]);
            int64_t count = generator_linear_elements(&group, row_roles[r]);
            generator_linear_row(&generator, &group, 3, some_token, row_roles[r], dtypes[d], whole);
            for (int64_t first = 0; first < count; first += 1 + first / 2)
                for (int64_t some = 1; first + some <= count; some += 1 + some / 3) {
                    memset(part, 0xa5, sizeof part);
                    generator_linear_part(&generator, &group, 3, some_token, row_roles[r],
                                          dtypes[d], first, some, part);
                    ck_assert_mem_eq(part, whole + (size_t)first * size, (size_t)some * size);
                    ck_assert_int_eq(part[(size_t)some * size], 0xa5);
                }
        }
}

/* ---- What differs and what does not ---------------------------------------------------------- */

LOOP_OF(generator_linear, functions_of_their_arguments, 0, CASES)
{
    set_case(_i);
    for (int r = 0; r < ROW_ROLES; r++) {
        double one[MAX_WIDTH], other[MAX_WIDTH];
        int64_t count = row(1, some_token, row_roles[r], one);
        if (count == 0)
            continue;
        row(1, (token_key){11, 5}, row_roles[r], other);
        ck_assert(same(one, other, count));
        row(1, (token_key){11, 6}, row_roles[r], other);
        ck_assert(!same(one, other, count));
        row(1, (token_key){13, 5}, row_roles[r], other);
        ck_assert(!same(one, other, count));
        row(2, some_token, row_roles[r], other);
        ck_assert(!same(one, other, count));
        set_seed(8);
        row(1, some_token, row_roles[r], other);
        ck_assert(!same(one, other, count));
        set_seed(7);
        /* Heads differ from one another. */
        for (int64_t h = 1; count > 6 && h < 6; h++)
            ck_assert(!same(one, one + h * (count / 6), count / 6));
    }
}

LOOP_OF(generator_linear, constants_differ_by_layer_and_seed, 0, CASES)
{
    set_case(_i);
    for (int r = 0; r < CONSTANT_ROLES; r++) {
        float one[MAX_WIDTH], other[MAX_WIDTH];
        uint32_t role = constant_roles[r];
        int64_t count = generator_linear_elements(&group, role);
        if (count == 0)
            continue;
        generator_linear_constant(&generator, &group, 1, role, one);
        generator_linear_constant(&generator, &group, 1, role, other);
        ck_assert_mem_eq(one, other, (size_t)count * sizeof *one);
        bool differs_by_layer = false, differs_by_seed = false;
        for (uint64_t n = 0; n < 4; n++) {
            set_seed(7);
            generator_linear_constant(&generator, &group, (int32_t)n, role, other);
            differs_by_layer |= memcmp(one, other, (size_t)count * sizeof *one) != 0;
            set_seed(100 + n);
            generator_linear_constant(&generator, &group, 1, role, other);
            differs_by_seed |= memcmp(one, other, (size_t)count * sizeof *one) != 0;
        }
        set_seed(7);
        ck_assert(differs_by_layer);
        /* Slopes are those of the model. */
        ck_assert_int_eq(differs_by_seed,
                         dims.family != ATTN_LINEAR_LIGHTNING || role != ATTN_ROLE_A_LOG);
    }
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

/* The rates of a layer's heads are those from 1e-4 to 0.69, in some order. */
LOOP_OF(generator_linear, rates_are_spread, 0, CASES)
{
    set_case(_i);
    if (dims.family == ATTN_LINEAR_LIGHTNING)
        return; /* lightning_rates_are_the_models */
    for (int32_t layer = 0; layer < NUM_LAYERS; layer++) {
        double least = INFINITY, most = 0;
        for (int32_t h = 0; h < 6; h++) {
            double rate = generator_linear_rate(&generator, &group, layer, h);
            least = fmin(least, rate);
            most = fmax(most, rate);
            for (int32_t other = 0; other < h; other++)
                ck_assert_double_gt(
                    fabs(log(rate / generator_linear_rate(&generator, &group, layer, other))), 1);
        }
        ck_assert_double_eq_tol(least, 1e-4, 1e-9);
        ck_assert_double_eq_tol(most, 0.69, 1e-9);
    }
}

/* A_log of lightning attention, as build_slope_tensor() and the layer's factor of MiniMax-Text-01's
 * code yield it, computed by them: 64 heads in 80 layers, and 6 heads, no power of two, in 3. */
TEST_OF(generator_linear, lightning_rates_are_the_models)
{
    static const struct {
        int32_t num_layers, layer, heads, head;
        double slope;
    } known[] = {{80, 0, 64, 0, 0.9170132132451033},
                 {80, 0, 64, 63, 0.003906289062499995},
                 {80, 42, 64, 31, 0.029272776898734164},
                 {80, 78, 64, 5, 0.007532573345718791},
                 {3, 1, 6, 0, 0.1250025},
                 {3, 1, 6, 3, 0.0019531640625},
                 {3, 1, 6, 4, 0.250005},
                 {3, 1, 6, 5, 0.06250125},
                 {1, 0, 1, 0, 0x1p-8 * 1.00001}};
    static generator_layer many[80];
    float a_log[64];
    set_family(ATTN_LINEAR_LIGHTNING, 0);
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        dims.num_k_heads = dims.num_v_heads = known[n].heads;
        ck_assert_int_eq(generator_init(&generator, 7, many, known[n].num_layers, 16, 256, NULL),
                         ATTN_OK);
        generator_linear_constant(&generator, &group, known[n].layer, ATTN_ROLE_A_LOG, a_log);
        ck_assert_float_eq(a_log[known[n].head], (float)-known[n].slope);
    }
}

/* The mean of what the recurrence makes of raw and computed gates is about the rate, and single
 * tokens are not far from it. */
static double log_decay(double a, double a_log, double dt_bias)
{
    double dt = log1p(exp(a + dt_bias));
    if (dims.family == ATTN_LINEAR_LIGHTNING)
        return a_log;
    if (!(dims.flags & ATTN_LINEAR_RAW_GATES))
        return a;
    if (dims.lower_bound != 0)
        return (double)dims.lower_bound / (1 + exp(-exp(a_log) * (a + dt_bias)));
    if (dims.family == ATTN_LINEAR_MAMBA2) {
        dt = fmax(dt, (double)dims.dt_min);
        dt = dims.dt_max > 0 ? fmin(dt, (double)dims.dt_max) : dt;
    }
    return -exp(a_log) * dt;
}

static void decays_are_about_the_rate(void)
{
    enum { TOKENS = 100, HEADS = 6 };
    float a_log[MAX_WIDTH] = {0}, dt_bias[MAX_WIDTH] = {0};
    double sum[HEADS] = {0}, a[MAX_WIDTH] = {0};
    int far = 0;
    generator_linear_constant(&generator, &group, 2, ATTN_ROLE_A_LOG, a_log);
    generator_linear_constant(&generator, &group, 2, ATTN_ROLE_DT_BIAS, dt_bias);
    int64_t width = dims.family == ATTN_LINEAR_KDA ? dims.head_k_dim : 1;
    for (uint64_t t = 0; t < TOKENS; t++) {
        row(2, (token_key){2, t}, ATTN_ROLE_GATE_A, a);
        for (int64_t n = 0; n < HEADS * width; n++) {
            int32_t h = (int32_t)(n / width);
            double g = log_decay(a[n], (double)a_log[h], (double)dt_bias[n]);
            far += !(g < 0 && g > -8 * generator_linear_rate(&generator, &group, 2, h));
            sum[h] += g / TOKENS / (double)width;
        }
    }
    ck_assert_int_eq(far, 0);
    for (int32_t h = 0; h < HEADS; h++) {
        double rate = generator_linear_rate(&generator, &group, 2, h);
        ck_assert_double_lt(-sum[h], 3 * rate);
        ck_assert_double_gt(-sum[h], rate / 3);
    }
}

LOOP_OF(generator_linear, decays, 0, CASES)
{
    set_case(_i);
    if (dims.family == ATTN_LINEAR_SHORT_CONV)
        return; /* there is no state to forget */
    decays_are_about_the_rate();
    dims.dt_min = 0.25f; /* Mamba2's clamp alone, where it has one */
    decays_are_about_the_rate();
    dims.dt_max = 0.3f;
    decays_are_about_the_rate();
    dims.lower_bound = dims.family == ATTN_LINEAR_KDA ? -5 : 0;
    decays_are_about_the_rate();
}

/* beta in (0, 1), keys that are not normalised not longer than 1, taps of order 1/2. */
LOOP_OF(generator_linear, sizes, 0, CASES)
{
    set_case(_i);
    bool raw = dims.flags & ATTN_LINEAR_RAW_GATES;
    bool delta = dims.family == ATTN_LINEAR_GDN || dims.family == ATTN_LINEAR_KDA;
    for (uint64_t t = 0; t < 200; t++) {
        double b[MAX_WIDTH], mixed[MAX_WIDTH];
        int64_t count = row(0, (token_key){4, t}, ATTN_ROLE_GATE_B, b);
        for (int64_t n = 0; n < count; n++) {
            ck_assert_double_gt(raw ? 1 : b[n], 0);
            ck_assert_double_lt(raw ? fabs(b[n]) / 4 : b[n], 1);
        }
        row(0, (token_key){4, t}, ATTN_ROLE_MIXED_QKV, mixed);
        for (int h = 0; delta && !(dims.flags & ATTN_LINEAR_QK_L2NORM) && h < 6; h++) {
            double length = 0;
            for (int i = 0; i < 37; i++)
                length += mixed[h * 37 + i] * mixed[h * 37 + i];
            ck_assert_double_lt(length, 1);
            ck_assert_double_gt(length, 0.01);
        }
    }
    float weight[MAX_WIDTH];
    double sum = 0;
    int64_t count = generator_linear_elements(&group, ATTN_ROLE_CONV_WEIGHT);
    generator_linear_constant(&generator, &group, 0, ATTN_ROLE_CONV_WEIGHT, weight);
    for (int64_t n = 0; n < count; n++)
        sum += fabs((double)weight[n]);
    ck_assert_double_gt(sum / (double)count, 0.4);
    ck_assert_double_lt(sum / (double)count, 0.6);
}

/* The widest heads there are stay within fp16's normal numbers. */
TEST_OF(generator_linear, wide_keys_in_half_precision)
{
    static double out[3 * 65536];
    static uint16_t bits[3 * 65536];
    set_family(ATTN_LINEAR_GDN, 0);
    dims.num_k_heads = dims.num_v_heads = 1;
    dims.head_k_dim = dims.head_v_dim = 65536;
    generator_linear_row(&generator, &group, 0, some_token, ATTN_ROLE_MIXED_QKV, ATTN_F64, out);
    generator_linear_row(&generator, &group, 0, some_token, ATTN_ROLE_MIXED_QKV, ATTN_F16, bits);
    for (int n = 0; n < 3 * 65536; n++)
        ck_assert_double_eq(dtype_fp16_value(bits[n]), out[n]);
}

TESTS("generator_linear");
