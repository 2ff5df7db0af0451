/* SPDX-License-Identifier: Apache-2.0
 *
 * check_generator.c: the generator against values computed from its definition in Python, and what
 * users of it rely on: exact conversions, shared prefixes, needles at every border.
 */
#include "host/workload/generator.h"

#include <math.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "tests/tools/test_main.h"

enum { SLIDING, GLOBAL, SHARED, ENCODER, LATENT, CROSS, NUM_LAYERS };

static const generator_layer layers[NUM_LAYERS] = {
    [SLIDING] = {.kv_layer = SLIDING,
                 .num_q_heads = 4,
                 .num_kv_heads = 2,
                 .head_dim = 19,
                 .v_head_dim = 11,
                 .window_left = 100,
                 .attention_chunk = 64},
    [GLOBAL] = {.kv_layer = GLOBAL,
                .num_q_heads = 4,
                .num_kv_heads = 1,
                .head_dim = 64,
                .v_head_dim = 128,
                .window_left = -1,
                .window_right = -1},
    [SHARED] = {.kv_layer = SLIDING,
                .num_q_heads = 6,
                .num_kv_heads = 2,
                .head_dim = 19,
                .v_head_dim = 11,
                .window_left = -1},
    [ENCODER] = {.kv_layer = ENCODER,
                 .num_q_heads = 1,
                 .num_kv_heads = 1,
                 .head_dim = 1,
                 .v_head_dim = 1,
                 .window_left = 5,
                 .window_right = 3},
    [LATENT] = {.kv_layer = LATENT,
                .num_q_heads = 4,
                .num_kv_heads = 1,
                .head_dim = 53,
                .v_head_dim = 43,
                .window_left = -1,
                .latent = 1},
    [CROSS] = {.kv_layer = CROSS,
               .num_q_heads = 1,
               .num_kv_heads = 1,
               .head_dim = 1,
               .v_head_dim = 1,
               .window_left = -1,
               .window_right = -1,
               .num_keys = 90},
};

static const int64_t hash_ids[3][3] = {{7, 8, 9}, {7, 8, 5}, {1, 2, 3}};
static trace_request requests[3];
static struct workload workload;
static struct generator generator;

static void set_seed(uint64_t seed)
{
    ck_assert_int_eq(generator_init(&generator, seed, layers, NUM_LAYERS, 16, 256, NULL), ATTN_OK);
}

/* Requests 0 and 1 share their first 1024 tokens; request 2 has hash ids no other has. */
static void set_up(void)
{
    for (int i = 0; i < 3; i++)
        requests[i] = (trace_request){
            .input_length = 1500, .output_length = 400, .num_hash_ids = 3, .hash_ids = hash_ids[i]};
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 3, .requests = requests};
    ck_assert_int_eq(workload_init(&workload, &trace,
                                   &(workload_params){.length_scale = 1, .max_context_len = 2000},
                                   NULL),
                     ATTN_OK);
    set_seed(99);
}

static void tear_down(void)
{
    workload_finish(&workload);
}

/* ---- Raw integers ---------------------------------------------------------------------------- */

TEST_OF(raw, known_streams)
{
    static const int8_t keys[] = {-44, -64, 80,   -61, -18,  0,   -10, 70, -106, -109,
                                  -1,  -22, -103, 15,  -113, 118, -21, 45, -103};
    static const int8_t values[] = {21, -116, -34, 80, 115, 1, 57, -127, -69};
    int8_t raw[32];
    set_seed(12345);
    for (int32_t dim = 0; dim <= 19; dim++) {
        memset(raw, 99, sizeof raw);
        generator_raw(&generator, token_key_of_block(77, 5), 3, 2, GENERATOR_KEY, dim, raw);
        ck_assert_mem_eq(raw, keys, (size_t)dim);
        ck_assert_int_eq(raw[dim], 99);
    }
    set_seed(UINT64_MAX);
    generator_raw(&generator, token_key_of_request(9, 100), 0, 0, GENERATOR_VALUE, 9, raw);
    ck_assert_mem_eq(raw, values, 9);
}

TEST_OF(raw, every_word_matters)
{
    int8_t raw[9][16];
    generator_raw(&generator, (token_key){2, 3}, 1, 1, 1, 16, raw[0]);
    generator_raw(&generator, (token_key){3, 3}, 1, 1, 1, 16, raw[1]);
    generator_raw(&generator, (token_key){2, 4}, 1, 1, 1, 16, raw[2]);
    generator_raw(&generator, (token_key){3, 2}, 1, 1, 1, 16, raw[3]);
    generator_raw(&generator, (token_key){2, 3}, 2, 1, 1, 16, raw[4]);
    generator_raw(&generator, (token_key){2, 3}, 1, 2, 1, 16, raw[5]);
    generator_raw(&generator, (token_key){2, 3}, 1, 1, 2, 16, raw[6]);
    generator_raw(&generator, (token_key){2, 3}, 1, 0, 255, 16, raw[7]);
    set_seed(100);
    generator_raw(&generator, (token_key){2, 3}, 1, 1, 1, 16, raw[8]);
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < i; j++)
            ck_assert_mem_ne(raw[i], raw[j], 16);
}

/* 2^20 elements: every integer from -127 to 127 is about equally frequent, 0 twice, -128 never. */
TEST_OF(raw, distribution)
{
    static int counts[256];
    int8_t raw[1024];
    for (int token = 0; token < 1024; token++) {
        generator_raw(&generator, (token_key){0, (uint64_t)token}, 0, 0, 1, 1024, raw);
        for (int d = 0; d < 1024; d++)
            counts[raw[d] + 128]++;
    }
    ck_assert_int_eq(counts[0], 0);
    for (int i = 1; i < 256; i++) {
        int expected = i == 128 ? 8192 : 4096;
        ck_assert_int_gt(counts[i], expected - 500);
        ck_assert_int_lt(counts[i], expected + 500);
    }
}

TEST_OF(raw, shared_prefix_has_equal_kv)
{
    int8_t first[19], second[19];
    for (int64_t position = 1000; position < 1050; position++) {
        generator_kv(&generator, workload_token_key(&workload, 0, position), SLIDING, 1,
                     GENERATOR_KEY, first);
        generator_kv(&generator, workload_token_key(&workload, 1, position), SLIDING, 1,
                     GENERATOR_KEY, second);
        ck_assert_int_eq(memcmp(first, second, sizeof first) == 0, position < 1024);
    }
}

TEST_OF(raw, layers_that_share_a_buffer_have_equal_kv)
{
    int8_t owner[19], reader[19];
    token_key key = workload_token_key(&workload, 2, 77);
    generator_kv(&generator, key, SLIDING, 1, GENERATOR_KEY, owner);
    generator_kv(&generator, key, SHARED, 1, GENERATOR_KEY, reader);
    ck_assert_mem_eq(owner, reader, sizeof owner);
}

/* The numbers of keys and values are their raw integers', and nothing is written behind them. */
TEST_OF(raw, numbers_of_keys_and_values)
{
    for (int32_t layer = 0; layer < NUM_LAYERS; layer++)
        for (int64_t position = 0; position < 40; position++)
            for (int32_t role = GENERATOR_KEY; role <= GENERATOR_VALUE; role++) {
                token_key key = workload_token_key(&workload, 1, 1000 + position);
                int32_t head = layers[layer].num_kv_heads - 1;
                int32_t dim =
                    role == GENERATOR_KEY ? layers[layer].head_dim : layers[layer].v_head_dim;
                int8_t raw[129] = {0};
                double numbers[129];
                numbers[dim] = 3;
                generator_kv(&generator, key, layer, head, role, raw);
                generator_kv_numbers(&generator, key, layer, head, role, numbers);
                for (int32_t d = 0; d < dim; d++)
                    ck_assert(numbers[d] == raw[d] / 64.0);
                ck_assert(numbers[dim] == 3);
            }
}

TEST_OF(raw, sinks)
{
    float last = -100;
    for (int head = 0; head < 8; head++) {
        float sink = generator_sink(&generator, GLOBAL, head);
        ck_assert(fabsf(sink) < 8 && sink * 16 == floorf(sink * 16));
        ck_assert(sink != last && sink != generator_sink(&generator, SLIDING, head));
        last = sink;
    }
}

/* ---- Needles --------------------------------------------------------------------------------- */

/* One request without hash ids; the lists were computed from the definition in generator.h. */
TEST_OF(needles, known_needles)
{
    static const int64_t sliding[] = {-1,  0,   63, -1,   0,  -1,   -1, -1,   195,  -1,  319,  -1,
                                      -1,  479, -1, -1,   -1, -1,   -1, -1,   739,  767, 815,  320,
                                      888, 0,   -1, 944,  -1, 1023, -1, 1146, -1,   -1,  1024, -1,
                                      -1,  -1,  -1, 1343, -1, -1,   -1, 448,  1628, -1,  -1,   0};
    static const int64_t global[] = {0,    -1,  -1,   80,   -1,  -1,   -1, -1,  0,   -1, 256, 1499,
                                     335,  202, 370,  -1,   193, -1,   0,  -1,  528, 31, 681, -1,
                                     743,  -1,  -1,   1499, -1,  -1,   -1, 755, 570, -1, -1,  1024,
                                     1115, -1,  1499, 1499, -1,  1270, -1, -1,  -1,  79, 588, 691};
    trace_request request = {.input_length = 1500, .output_length = 400};
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 1, .requests = &request};
    struct workload plain;
    ck_assert_int_eq(workload_init(&plain, &trace,
                                   &(workload_params){.length_scale = 1, .max_context_len = 2000},
                                   NULL),
                     ATTN_OK);
    for (int n = 0; n < 48; n++) {
        ck_assert_int_eq(generator_needle(&generator, &plain, 0, n * 37 % 1900, SLIDING, n % 4),
                         sliding[n]);
        ck_assert_int_eq(generator_needle(&generator, &plain, 0, n * 31 % 1500, GLOBAL, n % 4),
                         global[n]);
    }
    workload_finish(&plain);
}

/* How often each position is a target of the query at `position`, over heads of many seeds. */
static void count_targets(int64_t position, int32_t layer, int *noise, int targets[2000])
{
    memset(targets, 0, 2000 * sizeof *targets);
    *noise = 0;
    for (uint64_t seed = 0; seed < 4000; seed++) {
        set_seed(seed);
        int64_t target = generator_needle(&generator, &workload, 2, position, layer, 0);
        ck_assert_int_ge(target, -1);
        ck_assert_int_lt(target, 2000);
        if (target < 0)
            ++*noise;
        else
            targets[target]++;
    }
}

TEST_OF(needles, needles_at_every_border)
{
    static const int64_t borders[] = {0,   813, 812, 713, 712, /* i, i-1, window */
                                      768, 767, 800, 799,      /* chunks of 64 and 256, page */
                                      814};                    /* just not to be seen */
    int targets[2000], noise, elsewhere = 0;
    count_targets(813, SLIDING, &noise, targets);
    ck_assert_int_gt(noise, 1800);
    ck_assert_int_lt(noise, 2200);
    for (size_t i = 0; i < sizeof borders / sizeof *borders; i++)
        ck_assert_int_gt(targets[borders[i]], 60);
    for (int64_t j = 815; j < 2000; j++)
        ck_assert_int_eq(targets[j], 0);
    for (int64_t j = 1; j < 700; j++)
        elsewhere += targets[j] > 0;
    ck_assert_int_gt(elsewhere, 150);
}

TEST_OF(needles, needles_stay_in_range)
{
    int targets[2000], noise;
    count_targets(0, SLIDING, &noise, targets);
    ck_assert_int_gt(targets[0], 1500);
    ck_assert_int_gt(targets[1], 60);
    ck_assert_int_eq(noise + targets[0] + targets[1], 4000);
    count_targets(1499, SLIDING, &noise, targets); /* the input's last: nothing beyond it */
    ck_assert_int_gt(targets[1499], 60);
    ck_assert_int_eq(targets[1500], 0);
    count_targets(1700, SLIDING, &noise, targets); /* generated */
    ck_assert_int_gt(targets[1700], 60);
    for (int64_t j = 1701; j < 2000; j++)
        ck_assert_int_eq(targets[j], 0);
    count_targets(40, ENCODER, &noise, targets); /* sees 35 .. 43 */
    static const int64_t borders[] = {34, 35, 43, 44};
    for (int i = 0; i < 4; i++)
        ck_assert_int_gt(targets[borders[i]], 60);
    ck_assert_int_eq(targets[45], 0);
}

/* Queries of cross attention, wherever they are, find any key of the encoder and none beyond. */
TEST_OF(needles, needles_of_cross_attention_are_an_encoders_keys)
{
    static const int64_t positions[] = {0, 40, 89, 90, 1499, 1700};
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
        int targets[2000], noise, found = 0;
        count_targets(positions[p], CROSS, &noise, targets);
        for (int64_t j = 0; j < 90; j++)
            found += targets[j];
        ck_assert_int_eq(noise + found, 4000);
        ck_assert_int_gt(targets[0], 60);
        ck_assert_int_gt(targets[89], 60); /* the last */
        ck_assert_int_gt(targets[80], 10); /* its page begins */
        if (positions[p] == 40)
            ck_assert_int_gt(targets[40] + targets[39], 120);
        for (int64_t j = 1; j < 90; j++)
            ck_assert_int_gt(targets[j] + targets[j - 1], 0);
    }
}

/* A needle is twice the key of the KV head that serves the query head, in the owner's layer. */
TEST_OF(needles, queries_are_needles_or_noise)
{
    int needles = 0;
    for (int64_t position = 0; position < 1899; position += 13)
        for (int head = 0; head < 6; head++) {
            int64_t target = generator_needle(&generator, &workload, 1, position, SHARED, head);
            int8_t expected[19];
            int16_t query[19];
            if (target >= 0)
                generator_raw(&generator, workload_token_key(&workload, 1, target), SLIDING,
                              head / 3, GENERATOR_KEY, 19, expected);
            else
                generator_raw(&generator, workload_token_key(&workload, 1, position), SHARED, head,
                              GENERATOR_QUERY, 19, expected);
            generator_query(&generator, &workload, 1, position, SHARED, head, query);
            for (int d = 0; d < 19; d++)
                ck_assert_int_eq(query[d], expected[d] * (target >= 0 ? 2 : 1));
            needles += target >= 0;
        }
    ck_assert_int_gt(needles, 350);
    ck_assert_int_lt(needles, 526);
}

/* Latents: a value is the beginning of its key, a needle is a key as it is, noise is half as large
 * as it would be. */
TEST_OF(needles, latent_queries_are_half_as_large)
{
    int needles = 0;
    for (int64_t position = 0; position < 1899; position += 7)
        for (int head = 0; head < 4; head++) {
            int64_t target = generator_needle(&generator, &workload, 1, position, LATENT, head);
            token_key key = workload_token_key(&workload, 1, target >= 0 ? target : position);
            int8_t expected[53], value[43];
            int16_t query[53];
            if (target >= 0) {
                generator_kv(&generator, key, LATENT, 0, GENERATOR_KEY, expected);
                generator_kv(&generator, key, LATENT, 0, GENERATOR_VALUE, value);
                ck_assert_mem_eq(value, expected, 43);
            } else {
                generator_raw(&generator, key, LATENT, head, GENERATOR_QUERY, 53, expected);
            }
            generator_query(&generator, &workload, 1, position, LATENT, head, query);
            for (int d = 0; d < 53; d++)
                ck_assert_int_eq(query[d], target >= 0 ? expected[d] : expected[d] / 2);
            needles += target >= 0;
        }
    ck_assert_int_gt(needles, 450);
    ck_assert_int_lt(needles, 640);
}

/* Spread of the scores of noise, in DeepSeek V3's dimensions: of the size that softmax layers have,
 * sm_scale being 1 / sqrt(192) or, with YaRN's correction, 1.87 times that. With the logarithm of
 * some thousand keys below its square half, no key has all the weight. */
TEST_OF(needles, latent_scores_spread_as_others_do)
{
    static const generator_layer deep = {.num_q_heads = 1,
                                         .num_kv_heads = 1,
                                         .head_dim = 576,
                                         .v_head_dim = 512,
                                         .window_left = -1,
                                         .latent = 1};
    double sum = 0;
    int count = 0;
    ck_assert_int_eq(generator_init(&generator, 3, &deep, 1, 16, 256, NULL), ATTN_OK);
    for (int64_t position = 0; position < 1400; position++) {
        int8_t key[576];
        int16_t query[576];
        double dot = 0;
        if (generator_needle(&generator, &workload, 0, position, 0, 0) >= 0)
            continue;
        generator_query(&generator, &workload, 0, position, 0, 0, query);
        generator_kv(&generator, workload_token_key(&workload, 0, position + 3), 0, 0,
                     GENERATOR_KEY, key);
        for (int d = 0; d < 576; d++)
            dot += query[d] / 64.0 * key[d] / 64.0;
        sum += dot * dot / 192;
        count++;
    }
    double spread = sqrt(sum / count);
    ck_assert_double_gt(spread, 1.0);
    ck_assert_double_lt(spread, 1.3);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* The value of fp16 or bf16 bits, from the formats' definitions. */
static double decode(uint16_t bits, int exponent_bits)
{
    int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    int fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude = exponent ? ldexp(fraction + (1 << fraction_bits), exponent - bias)
                                : ldexp(fraction, 1 - bias);
    magnitude = ldexp(magnitude, -fraction_bits);
    return bits >> 15 ? -magnitude : magnitude;
}

TEST_OF(tensors, conversions_are_exact)
{
    for (int16_t raw = -254; raw <= 254; raw++) {
        double f64, value = raw / 64.0;
        float f32;
        uint16_t f16, bf16;
        uint8_t e4m3;
        generator_convert(&raw, 1, ATTN_F64, &f64);
        generator_convert(&raw, 1, ATTN_F32, &f32);
        generator_convert(&raw, 1, ATTN_F16, &f16);
        generator_convert(&raw, 1, ATTN_BF16, &bf16);
        generator_convert(&raw, 1, ATTN_FP8_E4M3, &e4m3);
        ck_assert(f64 == value);
        ck_assert((double)f32 == value);
        ck_assert(decode(f16, 5) == value);
        ck_assert(decode(bf16, 8) == value);
        ck_assert_uint_eq(e4m3, dtype_e4m3_bits(value)); /* rounded, ties to even */
        if (raw == 0)
            ck_assert(!signbit(f64) && !signbit(f32) && f16 == 0 && bf16 == 0);
    }
}

TEST_OF(tensors, fill_with_strides)
{
    enum { TOKENS = 7, HEADS = 2, DIM = 11, HEAD_STRIDE = 13, TOKEN_STRIDE = 29 };
    float out[TOKENS * TOKEN_STRIDE];
    token_key keys[TOKENS];
    for (int i = 0; i < TOKENS * TOKEN_STRIDE; i++)
        out[i] = 1000;
    workload_token_keys(&workload, 0, 1020, TOKENS, keys);
    generator_tensor tensor = {out, ATTN_F32, TOKEN_STRIDE, HEAD_STRIDE, 0, DIM};
    generator_fill(&generator, &workload, 0, 1020, TOKENS, SLIDING, GENERATOR_VALUE, &tensor);
    for (int token = 0; token < TOKENS; token++)
        for (int head = 0; head < HEADS; head++) {
            float *row = out + token * TOKEN_STRIDE + head * HEAD_STRIDE;
            int8_t raw[DIM];
            generator_kv(&generator, keys[token], SLIDING, head, GENERATOR_VALUE, raw);
            for (int d = 0; d < DIM; d++) {
                ck_assert(row[d] == (float)raw[d] / 64);
                row[d] = 1000;
            }
        }
    for (int i = 0; i < TOKENS * TOKEN_STRIDE; i++)
        ck_assert(out[i] == 1000);
}

/* Any part of a head's vector is that part of it. */
TEST_OF(tensors, fill_in_parts)
{
    enum { HEADS = 4, DIM = 53 };
    static const int32_t roles[] = {GENERATOR_QUERY, GENERATOR_KEY};
    for (int r = 0; r < 2; r++)
        for (int32_t first = 0; first < DIM; first++)
            for (int32_t dim = 1; first + dim <= DIM; dim++) {
                float whole[HEADS * DIM], part[HEADS * DIM];
                int32_t heads = r == 0 ? HEADS : 1;
                generator_tensor to = {whole, ATTN_F32, 0, DIM, 0, DIM};
                generator_tensor piece = {part, ATTN_F32, 0, dim, first, dim};
                generator_fill(&generator, &workload, 0, 77, 1, LATENT, roles[r], &to);
                generator_fill(&generator, &workload, 0, 77, 1, LATENT, roles[r], &piece);
                for (int32_t h = 0; h < heads; h++)
                    ck_assert_mem_eq(part + h * dim, whole + h * DIM + first,
                                     (size_t)dim * sizeof *part);
            }
}

/* A row does not depend on the call that makes it. */
TEST_OF(tensors, fill_in_any_batch)
{
    enum { TOKENS = 60, HEADS = 4, DIM = 64, ROW = HEADS * DIM };
    static uint16_t whole[TOKENS * ROW], part[TOKENS * ROW];
    generator_tensor tensor = {whole, ATTN_F16, ROW, DIM, 0, DIM};
    generator_fill(&generator, &workload, 0, 1470, TOKENS, GLOBAL, GENERATOR_QUERY, &tensor);
    for (int64_t done = 0, count; done < TOKENS; done += count) {
        count = done % 7 + 1 < TOKENS - done ? done % 7 + 1 : TOKENS - done;
        tensor.data = part + done * ROW;
        generator_fill(&generator, &workload, 0, 1470 + done, count, GLOBAL, GENERATOR_QUERY,
                       &tensor);
    }
    ck_assert_mem_eq(whole, part, sizeof whole);
    int16_t raw[DIM];
    generator_query(&generator, &workload, 0, 1475, GLOBAL, 3, raw);
    for (int d = 0; d < DIM; d++)
        ck_assert(decode(whole[5 * ROW + 3 * DIM + d], 5) == raw[d] / 64.0);
}

/* ---- Limits ---------------------------------------------------------------------------------- */

TEST_OF(limits, bad_arguments)
{
    static const struct {
        generator_layer layer;
        int32_t page_size, prefill_chunk;
        const char *message;
    } bad[] = {
        {{0}, 0, 0, "page_size: got 0"},
        {{0}, 1, -1, "prefill_chunk: got -1"},
        {{.kv_layer = 1}, 1, 0, "layer 0: kv_layer: got 1, accepted: 0 to 0"},
        {{.num_q_heads = -1}, 1, 0, "num_q_heads: got -1"},
        {{.num_q_heads = 4}, 1, 0, "num_kv_heads: got 0, accepted: 1"},
        {{.num_q_heads = 4, .num_kv_heads = 3}, 1, 0, "a divisor of num_q_heads = 4"},
        {{.head_dim = 4097}, 1, 0, "head_dim: got 4097, accepted: 0 to 4096"},
        {{.v_head_dim = -1}, 1, 0, "v_head_dim: got -1"},
        {{.window_left = -2}, 1, 0, "window_left: got -2"},
        {{.window_right = -2}, 1, 0, "window_right: got -2"},
        {{.attention_chunk = -1}, 1, 0, "attention_chunk: got -1"},
        {{.latent = 2}, 1, 0, "latent: got 2, accepted: 0 to 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        HOST_ERROR(failure);
        struct generator unused;
        ck_assert_int_eq(generator_init(&unused, 0, &bad[i].layer, 1, bad[i].page_size,
                                        bad[i].prefill_chunk, &failure.base),
                         ATTN_INVALID_ARGUMENT);
        ck_assert_msg(strstr(host_error_text(&failure), bad[i].message) != NULL, "%s",
                      host_error_text(&failure));
    }
}

GROUP(raw, .set_up = set_up, .tear_down = tear_down);
GROUP(needles, .set_up = set_up, .tear_down = tear_down);
GROUP(tensors, .set_up = set_up, .tear_down = tear_down);
TESTS("generator");
