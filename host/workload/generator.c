/* SPDX-License-Identifier: Apache-2.0
 *
 * generator.c: random operands of softmax and latent layers.
 */
#include "host/workload/generator.h"

#include <endian.h>
#include <math.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/sanitizers.h"
#include "host/workload/vectors.h"

#define GENERATOR_STATE UINT64_C(0x67656e6572617465)

static attn_status check_layer(const generator_layer *layer, int32_t index, int32_t num_layers,
                               attn_error *error)
{
    const struct {
        const char *field;
        int32_t got, least, most;
    } rows[] = {
        {"kv_layer", layer->kv_layer, 0, num_layers - 1},
        {"num_q_heads", layer->num_q_heads, 0, 1 << 23},
        {"num_kv_heads", layer->num_kv_heads, layer->num_q_heads > 0, 1 << 23},
        {"head_dim", layer->head_dim, 0, GENERATOR_MAX_DIM},
        {"v_head_dim", layer->v_head_dim, 0, GENERATOR_MAX_DIM},
        {"window_left", layer->window_left, -1, INT32_MAX},
        {"window_right", layer->window_right, -1, INT32_MAX},
        {"attention_chunk", layer->attention_chunk, 0, INT32_MAX},
        {"latent", layer->latent, 0, 1},
        {"num_keys", layer->num_keys, 0, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].got < rows[i].least || rows[i].got > rows[i].most)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "generator: layer %d: %s: got %d, accepted: %d to %d", index,
                             rows[i].field, rows[i].got, rows[i].least, rows[i].most);
    if (layer->num_kv_heads > 0 && layer->num_q_heads % layer->num_kv_heads != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "generator: layer %d: num_kv_heads: got %d, accepted: a divisor of "
                         "num_q_heads = %d",
                         index, layer->num_kv_heads, layer->num_q_heads);
    return ATTN_OK;
}

attn_status generator_init(struct generator *generator, uint64_t seed,
                           const generator_layer *layers, int32_t num_layers, int32_t page_size,
                           int32_t prefill_chunk, attn_error *error)
{
    if (page_size < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "generator: page_size: got %d, accepted: 1 or more", page_size);
    if (prefill_chunk < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "generator: prefill_chunk: got %d, accepted: 0 (off) or more",
                         prefill_chunk);
    for (int32_t i = 0; i < num_layers; i++) {
        attn_status status = check_layer(&layers[i], i, num_layers, error);
        if (status != ATTN_OK)
            return status;
    }
    generator->state = mix_absorb(GENERATOR_STATE, seed);
    generator->layers = layers;
    generator->num_layers = num_layers;
    generator->page_size = page_size;
    generator->prefill_chunk = prefill_chunk;
    generator->tp_size = 1;
    generator->tp_rank = 0;
    return ATTN_OK;
}

/* ---- Streams --------------------------------------------------------------------------------- */

/* The elements of a group in memory's order. */
static uint64_t group_in_memory(uint64_t stream, int32_t group)
{
    return htole64(vectors_word(stream, (uint64_t)group));
}

/* Elements [first, first + dim) of a stream. */
static void fill_raw(uint64_t stream, int32_t first, int32_t dim, int8_t *out)
{
    for (int32_t d = 0, count; d < dim; d += count) {
        int32_t offset = (first + d) % VECTORS_GROUP;
        uint64_t word = group_in_memory(stream, (first + d) / VECTORS_GROUP);
        count = VECTORS_GROUP - offset < dim - d ? VECTORS_GROUP - offset : dim - d;
        if (count == VECTORS_GROUP)
            memcpy(out + d, &word, VECTORS_GROUP);
        else
            memcpy(out + d, (const char *)&word + offset, (size_t)count);
    }
}

/* The same, scaled. */
static void fill_scaled(const struct vectors_scaled *scaled, int32_t first, int32_t dim,
                        int16_t *out)
{
    int8_t raw[GENERATOR_MAX_DIM];
    fill_raw(scaled->stream, first, dim, raw);
    for (int32_t d = 0; d < dim; d++)
        out[d] = (int16_t)vectors_scale(scaled, raw[d]);
}

void generator_raw(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                   int32_t role, int32_t dim, int8_t *out)
{
    fill_raw(vectors_stream(vectors_token(generator, key), layer, head, role), 0, dim, out);
}

/* ---- Queries --------------------------------------------------------------------------------- */

int64_t generator_needle(const struct generator *generator, const struct workload *workload,
                         int64_t request, int64_t position, int32_t layer, int32_t head)
{
    struct request_tokens tokens = workload_tokens(workload, request);
    uint64_t token = vectors_token(generator, token_key_at(&tokens, position));
    uint64_t hash = mix_stream(vectors_stream(token, layer, head, GENERATOR_NEEDLE), 0);
    return vectors_needle(generator, &generator->layers[layer], &tokens, position, hash);
}

void generator_query(const struct generator *generator, const struct workload *workload,
                     int64_t request, int64_t position, int32_t layer, int32_t head, int16_t *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    struct request_tokens tokens = workload_tokens(workload, request);
    uint64_t token = vectors_token(generator, token_key_at(&tokens, position));
    struct vectors_scaled query =
        vectors_query(generator, geometry, &tokens, position, token, layer, head);
    fill_scaled(&query, 0, geometry->head_dim, out);
}

/* ---- Keys and values --------------------------------------------------------------------- */

/* The role whose stream a layer's keys or values are made of. */
static int32_t stream_of(const generator_layer *layer, int32_t role)
{
    return layer->latent ? GENERATOR_KEY : role;
}

void generator_kv(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                  int32_t role, int8_t *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    int32_t dim = role == GENERATOR_VALUE ? geometry->v_head_dim : geometry->head_dim;
    generator_raw(generator, key, geometry->kv_layer, head, stream_of(geometry, role), dim, out);
}

/* ---- Keys and values as numbers -------------------------------------------------------------- */

/* Compiled for the processor's wider vectors, too: the oracle makes a token's keys and values anew
 * for each row that it judges. */
#if defined __x86_64__ && defined __gnu_linux__ && !defined __clang__ && !HAS_SANITIZER
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* Elements that are made at a time: those of eight words. */
enum { NUMBERS = 8 * VECTORS_GROUP };

typedef uint64_t eight_words __attribute__((vector_size(64), aligned(8), may_alias));

/* Words [group, group + 8) of a stream, as vectors_word() has them. */
static inline void fill_words(uint64_t stream, uint64_t group, uint64_t words[8])
{
    const eight_words low_bits = (eight_words){0} + UINT64_C(0x7f7f7f7f7f7f7f7f);
    const eight_words steps = (eight_words){1, 2, 3, 4, 5, 6, 7, 8} * MIX_INCREMENT;
    eight_words x = steps + (stream + group * MIX_INCREMENT);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    *(eight_words *)words = x & (((x & low_bits) + low_bits) | low_bits);
    for (int w = 0; w < 8; w++)
        words[w] = htole64(words[w]);
}

static inline void convert_numbers(const int8_t bytes[restrict NUMBERS],
                                   double out[restrict NUMBERS])
{
    for (int d = 0; d < NUMBERS; d++)
        out[d] = (double)bytes[d] * (1.0 / GENERATOR_UNITS);
}

static WIDE void fill_numbers(uint64_t stream, int32_t dim, double *out)
{
    uint64_t words[8];
    double last[NUMBERS];
    for (int32_t d = 0; d < dim; d += NUMBERS) {
        int32_t count = dim - d < NUMBERS ? dim - d : NUMBERS;
        fill_words(stream, (uint64_t)d / VECTORS_GROUP, words);
        convert_numbers((const int8_t *)words, count == NUMBERS ? out + d : last);
        if (count < NUMBERS)
            memcpy(out + d, last, (size_t)count * sizeof *out);
    }
}

void generator_kv_numbers(const struct generator *generator, token_key key, int32_t layer,
                          int32_t head, int32_t role, double *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    int32_t dim = role == GENERATOR_VALUE ? geometry->v_head_dim : geometry->head_dim;
    fill_numbers(vectors_stream(vectors_token(generator, key), geometry->kv_layer, head,
                                stream_of(geometry, role)),
                 dim, out);
}

/* ---- Sinks, slopes --------------------------------------------------------------------------- */

float generator_sink(const struct generator *generator, int32_t layer, int32_t head)
{
    int8_t raw;
    generator_raw(generator, (token_key){0, 0}, layer, head, GENERATOR_SINK, 1, &raw);
    return (float)raw / 16;
}

float generator_alibi_slope(int32_t head, int32_t num_q_heads)
{
    return (float)exp2(-8.0 * (head + 1) / num_q_heads);
}

float generator_rank_slope(const struct generator *generator, int32_t head, int32_t num_q_heads)
{
    return generator_alibi_slope(generator->tp_rank * num_q_heads + head,
                                 generator->tp_size * num_q_heads);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static void convert_f64(const int16_t *raw, int64_t count, double *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)vectors_value(raw[i]);
}

static void convert_f32(const int16_t *raw, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = vectors_value(raw[i]);
}

static void convert_f16(const int16_t *raw, int64_t count, uint16_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = vectors_f16(raw[i]);
}

static void convert_bf16(const int16_t *raw, int64_t count, uint16_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = vectors_bf16(raw[i]);
}

/* The one type that rounds: half of the raw integers have more than its 4 significant bits. */
static void convert_e4m3(const int16_t *raw, int64_t count, uint8_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = (uint8_t)vectors_e4m3(vectors_f32(raw[i]));
}

void generator_convert(const int16_t *raw, int64_t count, attn_dtype dtype, void *out)
{
    switch (dtype) {
    case ATTN_F64:
        convert_f64(raw, count, out);
        break;
    case ATTN_F32:
        convert_f32(raw, count, out);
        break;
    case ATTN_F16:
        convert_f16(raw, count, out);
        break;
    case ATTN_BF16:
        convert_bf16(raw, count, out);
        break;
    case ATTN_FP8_E4M3:
        convert_e4m3(raw, count, out);
        break;
    default:
        break;
    }
}

static void *row_of(const generator_tensor *tensor, int64_t token, int32_t head)
{
    int64_t element = token * tensor->token_stride + head * tensor->head_stride;
    return (char *)tensor->data + element * attn_dtype_size(tensor->dtype);
}

/* The source of a head's vector, for any role; `token` is the state of the token at `position`. */
static struct vectors_scaled vector_of(const struct generator *generator,
                                       const struct request_tokens *tokens, int64_t position,
                                       uint64_t token, int32_t layer, int32_t head, int32_t role)
{
    const generator_layer *geometry = &generator->layers[layer];
    if (role == GENERATOR_QUERY)
        return vectors_query(generator, geometry, tokens, position, token, layer, head);
    return (struct vectors_scaled){
        .stream = vectors_stream(token, geometry->kv_layer, head, stream_of(geometry, role)),
        .factor = 1,
    };
}

void generator_fill(const struct generator *generator, const struct workload *workload,
                    int64_t request, int64_t position, int64_t count, int32_t layer, int32_t role,
                    const generator_tensor *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    int32_t heads = role == GENERATOR_QUERY ? geometry->num_q_heads : geometry->num_kv_heads;
    struct request_tokens tokens = workload_tokens(workload, request);
    int16_t raw[GENERATOR_MAX_DIM];
    for (int64_t t = 0; t < count; t++) {
        uint64_t token = vectors_token(generator, token_key_at(&tokens, position + t));
        for (int32_t head = 0; head < heads; head++) {
            struct vectors_scaled vector =
                vector_of(generator, &tokens, position + t, token, layer, head, role);
            fill_scaled(&vector, out->first, out->dim, raw);
            generator_convert(raw, out->dim, out->dtype, row_of(out, t, head));
        }
    }
}
