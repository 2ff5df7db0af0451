/* SPDX-License-Identifier: Apache-2.0 */
#include "host/generator.h"

#include <endian.h>
#include <math.h>
#include <string.h>

#include "host/error.h"
#include "host/mix.h"

#define GENERATOR_STATE UINT64_C(0x67656e6572617465)

/* Elements that one 64-bit word yields. */
#define GROUP 8

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
    return ATTN_OK;
}

/* ---- Streams --------------------------------------------------------------------------------- */

/* What all streams of a token start from. */
static uint64_t token_state(const struct generator *generator, token_key key)
{
    return mix_absorb(mix_absorb(generator->state, key.a), key.b);
}

static uint64_t stream_state(uint64_t token, int32_t layer, int32_t head, int32_t role)
{
    return mix_absorb(token, (uint64_t)layer << 32 | (uint64_t)head << 8 | (uint64_t)role);
}

/* The bytes of a word, lowest first, as integers of mean 0. */
static void split_word(uint64_t word, int8_t out[GROUP])
{
    word = htole64(word);
    memcpy(out, &word, GROUP);
    for (int i = 0; i < GROUP; i++)
        out[i] = out[i] == INT8_MIN ? 0 : out[i];
}

/* Elements [0, dim) of a stream. */
static void fill_raw(uint64_t state, int32_t dim, int8_t *out)
{
    int32_t num_groups = dim / GROUP;
    for (int32_t group = 0; group < num_groups; group++)
        split_word(mix_stream(state, (uint64_t)group), out + group * GROUP);
    if (dim % GROUP > 0) {
        int8_t rest[GROUP];
        split_word(mix_stream(state, (uint64_t)num_groups), rest);
        memcpy(out + num_groups * GROUP, rest, (size_t)(dim % GROUP));
    }
}

/* The same, each times `factor`. */
static void fill_stream(uint64_t state, int32_t dim, int factor, int16_t *out)
{
    int8_t raw[GENERATOR_MAX_DIM];
    fill_raw(state, dim, raw);
    for (int32_t d = 0; d < dim; d++)
        out[d] = (int16_t)(raw[d] * factor);
}

void generator_raw(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                   int32_t role, int32_t dim, int8_t *out)
{
    fill_raw(stream_state(token_state(generator, key), layer, head, role), dim, out);
}

/* ---- Queries --------------------------------------------------------------------------------- */

/* First position of the stretch of `size` positions that `position` lies in, plus `offset`;
 * `otherwise` if there are no such stretches. */
static int64_t border_of(int64_t position, int64_t size, int64_t offset, int64_t otherwise)
{
    return size > 0 ? position / size * size + offset : otherwise;
}

/* The table in generator.h, before clamping. `last` is the input's last position. */
static int64_t target_of_kind(const struct generator *generator, const generator_layer *layer,
                              unsigned kind, int64_t i, int64_t uniform, int64_t last)
{
    int64_t page = generator->page_size, window = layer->window_left, right = layer->window_right;
    switch (kind) {
    case 0:
        return 0;
    case 1:
        return i;
    case 2:
        return i - 1;
    case 3:
        return window >= 0 ? i - window : uniform;
    case 4:
        return window >= 0 ? i - window - 1 : uniform;
    case 5:
        return border_of(i, layer->attention_chunk, 0, uniform);
    case 6:
        return border_of(i, layer->attention_chunk, -1, uniform);
    case 7:
        return border_of(i, page, 0, uniform);
    case 8:
        return border_of(i, page, -1, uniform);
    case 9:
        return border_of(i, generator->prefill_chunk, 0, uniform);
    case 10:
        return border_of(i, generator->prefill_chunk, -1, uniform);
    case 11:
        return right >= 0 ? i + right + 1 : last;
    case 12:
        return right >= 0 ? i + right : last;
    case 13:
        return border_of(uniform, page, 0, uniform);
    case 14:
        return border_of(uniform, page, page - 1, uniform);
    default:
        return uniform;
    }
}

/* A key beyond the query exists only within the input: what is generated later must not be asked
 * for now. */
static int64_t clamp_target(const generator_layer *layer, int64_t target, int64_t i, int64_t last)
{
    int64_t most = last;
    if (layer->window_right >= 0 && most > i + layer->window_right + 1)
        most = i + layer->window_right + 1;
    if (most < i)
        most = i;
    return target < 0 ? 0 : target > most ? most : target;
}

static int64_t find_needle(const struct generator *generator, const struct workload *workload,
                           int64_t request, int64_t position, int32_t layer, uint64_t hash)
{
    if (!(hash >> 63))
        return -1;
    const generator_layer *geometry = &generator->layers[layer];
    int64_t last = workload->requests[request].input_length - 1;
    int64_t uniform = (int64_t)mix_below((uint32_t)hash, (uint64_t)position + 1);
    int64_t target = target_of_kind(generator, geometry, hash >> 59 & 15, position, uniform, last);
    return clamp_target(geometry, target, position, last);
}

int64_t generator_needle(const struct generator *generator, const struct workload *workload,
                         int64_t request, int64_t position, int32_t layer, int32_t head)
{
    token_key key = workload_token_key(workload, request, position);
    uint64_t state = stream_state(token_state(generator, key), layer, head, GENERATOR_NEEDLE);
    return find_needle(generator, workload, request, position, layer, mix_stream(state, 0));
}

/* generator_query() with the token's state known. */
static void fill_query(const struct generator *generator, const struct workload *workload,
                       int64_t request, int64_t position, uint64_t token, int32_t layer,
                       int32_t head, int16_t *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    uint64_t hash = mix_stream(stream_state(token, layer, head, GENERATOR_NEEDLE), 0);
    int64_t target = find_needle(generator, workload, request, position, layer, hash);
    if (target < 0) {
        fill_stream(stream_state(token, layer, head, GENERATOR_QUERY), geometry->head_dim, 1, out);
        return;
    }
    int32_t kv_head = head / (geometry->num_q_heads / geometry->num_kv_heads);
    token_key key = workload_token_key(workload, request, target);
    uint64_t state =
        stream_state(token_state(generator, key), geometry->kv_layer, kv_head, GENERATOR_KEY);
    fill_stream(state, geometry->head_dim, 2, out);
}

void generator_query(const struct generator *generator, const struct workload *workload,
                     int64_t request, int64_t position, int32_t layer, int32_t head, int16_t *out)
{
    token_key key = workload_token_key(workload, request, position);
    fill_query(generator, workload, request, position, token_state(generator, key), layer, head,
               out);
}

/* ---- Keys, values, sinks --------------------------------------------------------------------- */

static int32_t dim_of_role(const generator_layer *layer, int32_t role)
{
    return role == GENERATOR_VALUE ? layer->v_head_dim : layer->head_dim;
}

void generator_kv(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                  int32_t role, int8_t *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    generator_raw(generator, key, geometry->kv_layer, head, role, dim_of_role(geometry, role), out);
}

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

/* ---- Tensors --------------------------------------------------------------------------------- */

int generator_has_dtype(attn_dtype dtype)
{
    return dtype == ATTN_F64 || dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16;
}

static float element_value(int16_t raw)
{
    return (float)raw * (1.0f / GENERATOR_UNITS);
}

static uint32_t element_f32_bits(int16_t raw)
{
    union {
        float value;
        uint32_t bits;
    } pun = {.value = element_value(raw)};
    return pun.bits;
}

/* Any raw integer has at most 8 significant bits, so bf16 is the upper half of fp32, and fp16,
 * whose exponent bias is 112 less and whose fraction is 13 bits shorter, loses only zeros. Zero is
 * +0. */
static uint16_t element_bf16(int16_t raw)
{
    return (uint16_t)(element_f32_bits(raw) >> 16);
}

static uint16_t element_f16(int16_t raw)
{
    uint32_t bits = element_f32_bits(raw);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = ((bits & 0x7fffffffu) - (112u << 23)) >> 13;
    return (uint16_t)((sign | magnitude) & (raw == 0 ? 0 : 0xffffu));
}

static void convert_f64(const int16_t *raw, int64_t count, double *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)element_value(raw[i]);
}

static void convert_f32(const int16_t *raw, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = element_value(raw[i]);
}

static void convert_f16(const int16_t *raw, int64_t count, uint16_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = element_f16(raw[i]);
}

static void convert_bf16(const int16_t *raw, int64_t count, uint16_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = element_bf16(raw[i]);
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
    default:
        break;
    }
}

static void *row_of(const generator_tensor *tensor, int64_t token, int32_t head)
{
    int64_t element = token * tensor->token_stride + head * tensor->head_stride;
    return (char *)tensor->data + element * attn_dtype_size(tensor->dtype);
}

void generator_fill_kv(const struct generator *generator, const token_key *keys, int64_t count,
                       int32_t layer, int32_t role, const generator_tensor *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    int32_t dim = dim_of_role(geometry, role);
    int16_t raw[GENERATOR_MAX_DIM];
    for (int64_t token = 0; token < count; token++) {
        uint64_t state = token_state(generator, keys[token]);
        for (int32_t head = 0; head < geometry->num_kv_heads; head++) {
            fill_stream(stream_state(state, geometry->kv_layer, head, role), dim, 1, raw);
            generator_convert(raw, dim, out->dtype, row_of(out, token, head));
        }
    }
}

void generator_fill_query(const struct generator *generator, const struct workload *workload,
                          int64_t request, int64_t position, int64_t count, int32_t layer,
                          const generator_tensor *out)
{
    const generator_layer *geometry = &generator->layers[layer];
    int16_t raw[GENERATOR_MAX_DIM];
    for (int64_t token = 0; token < count; token++) {
        token_key key = workload_token_key(workload, request, position + token);
        uint64_t state = token_state(generator, key);
        for (int32_t head = 0; head < geometry->num_q_heads; head++) {
            fill_query(generator, workload, request, position + token, state, layer, head, raw);
            generator_convert(raw, geometry->head_dim, out->dtype, row_of(out, token, head));
        }
    }
}
