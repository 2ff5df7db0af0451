/* SPDX-License-Identifier: Apache-2.0
 *
 * vectors.h: the arithmetic of generator.h, one word or one element at a time: the one source of
 * the vectors that generator.c makes on the processor and step_kernels.cu on a GPU.
 *
 * Data about a layer is a separate argument, as the generator's own table of layers is host memory.
 */
#ifndef HOST_WORKLOAD_VECTORS_H
#define HOST_WORKLOAD_VECTORS_H

#include "host/workload/generator.h"
#include "host/base/mix.h"

/* Elements that one 64-bit word yields. */
#define VECTORS_GROUP 8

/* ---- Streams --------------------------------------------------------------------------------- */

/* The state from which all streams of a token start. */
PORTABLE uint64_t vectors_token(const struct generator *generator, token_key key)
{
    return mix_absorb(mix_absorb(generator->state, key.a), key.b);
}

PORTABLE uint64_t vectors_stream(uint64_t token, int32_t layer, int32_t head, int32_t role)
{
    return mix_absorb(token, (uint64_t)layer << 32 | (uint64_t)head << 8 | (uint64_t)role);
}

/* Elements [group * 8, group * 8 + 8) of a stream: the word's bytes, lowest first, as int8. A byte
 * of 128 is made 0: its low bits alone do not carry into its highest one. */
PORTABLE uint64_t vectors_word(uint64_t stream, uint64_t group)
{
    const uint64_t low_bits = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t word = mix_stream(stream, group);
    return word & (((word & low_bits) + low_bits) | low_bits);
}

PORTABLE int32_t vectors_element(uint64_t word, int32_t index)
{
    return (int8_t)(word >> 8 * index);
}

/* ---- Queries --------------------------------------------------------------------------------- */

/* First position of the stretch of `size` positions that `position` lies in, plus `offset`;
 * `otherwise` if there are no such stretches. */
PORTABLE int64_t vectors_border(int64_t position, int64_t size, int64_t offset, int64_t otherwise)
{
    return size > 0 ? position / size * size + offset : otherwise;
}

/* The table in generator.h, before clamping. `last` is the input's last position. */
PORTABLE int64_t vectors_target(const struct generator *generator, const generator_layer *layer,
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
        return vectors_border(i, layer->attention_chunk, 0, uniform);
    case 6:
        return vectors_border(i, layer->attention_chunk, -1, uniform);
    case 7:
        return vectors_border(i, page, 0, uniform);
    case 8:
        return vectors_border(i, page, -1, uniform);
    case 9:
        return vectors_border(i, generator->prefill_chunk, 0, uniform);
    case 10:
        return vectors_border(i, generator->prefill_chunk, -1, uniform);
    case 11:
        return right >= 0 ? i + right + 1 : last;
    case 12:
        return right >= 0 ? i + right : last;
    case 13:
        return vectors_border(uniform, page, 0, uniform);
    case 14:
        return vectors_border(uniform, page, page - 1, uniform);
    default:
        return uniform;
    }
}

/* A key beyond the query exists only within the input: what is generated later must not be asked
 * for now. */
PORTABLE int64_t vectors_clamp(const generator_layer *layer, int64_t target, int64_t i,
                               int64_t last)
{
    int64_t most = last;
    if (layer->window_right >= 0 && most > i + layer->window_right + 1)
        most = i + layer->window_right + 1;
    if (most < i)
        most = i;
    return target < 0 ? 0 : target > most ? most : target;
}

/* generator_needle() of the query at `position` with this hash. */
PORTABLE int64_t vectors_needle(const struct generator *generator, const generator_layer *layer,
                                const struct request_tokens *tokens, int64_t position,
                                uint64_t hash)
{
    if (!(hash >> 63))
        return -1;
    int64_t last = tokens->input_length - 1, farthest = position;
    if (layer->num_keys > 0) {
        last = farthest = layer->num_keys - 1;
        position = position < last ? position : last;
    }
    int64_t uniform = (int64_t)mix_below((uint32_t)hash, (uint64_t)farthest + 1);
    int64_t target = vectors_target(generator, layer, hash >> 59 & 15, position, uniform, last);
    return vectors_clamp(layer, target, position, last);
}

/* A stream, each element times `factor`, and halved towards zero if that is said. */
struct vectors_scaled {
    uint64_t stream;
    int32_t factor;
    int32_t halved;
};

PORTABLE int32_t vectors_scale(const struct vectors_scaled *scaled, int32_t element)
{
    int32_t product = element * scaled->factor;
    return scaled->halved ? product / 2 : product;
}

/* The query of a head; `token` is the state of the token at `position`, `index` the layer's. */
PORTABLE struct vectors_scaled vectors_query(const struct generator *generator,
                                             const generator_layer *layer,
                                             const struct request_tokens *tokens, int64_t position,
                                             uint64_t token, int32_t index, int32_t head)
{
    uint64_t hash = mix_stream(vectors_stream(token, index, head, GENERATOR_NEEDLE), 0);
    int64_t target = vectors_needle(generator, layer, tokens, position, hash);
    struct vectors_scaled query = {0, 1, layer->latent};
    if (target < 0) {
        query.stream = vectors_stream(token, index, head, GENERATOR_QUERY);
    } else {
        int32_t kv_head = head / (layer->num_q_heads / layer->num_kv_heads);
        uint64_t key = vectors_token(generator, token_key_at(tokens, target));
        query.stream = vectors_stream(key, layer->kv_layer, kv_head, GENERATOR_KEY);
        query.factor = 2;
    }
    return query;
}

/* ---- Conversions ----------------------------------------------------------------------------- */

PORTABLE float vectors_value(int32_t raw)
{
    return (float)raw * (1.0f / GENERATOR_UNITS);
}

PORTABLE uint32_t vectors_bits(float value)
{
    union {
        float value;
        uint32_t bits;
    } pun;
    pun.value = value;
    return pun.bits;
}

/* An fp32 number that is zero or normal in e4m3, whose exponent bias is 120 less and whose fraction
 * is 20 bits shorter: rounded to the nearest, ties to even. */
PORTABLE uint32_t vectors_e4m3(uint32_t bits)
{
    uint32_t magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    uint32_t code = magnitude - (120u << 23);
    return sign | (magnitude == 0 ? 0 : (code + 0x7ffffu + (code >> 20 & 1u)) >> 20);
}

/* The low bits of an element of ATTN_F32, F16, BF16 or FP8_E4M3, from the bits of an fp32 number of
 * at most 8 significant bits, zero or normal in the type: bf16 is the upper half of fp32, and fp16,
 * whose exponent bias is 112 less and whose fraction is 13 bits shorter, loses only zeros. */
PORTABLE uint32_t vectors_narrow(uint32_t bits, attn_dtype dtype)
{
    if (dtype == ATTN_FP8_E4M3)
        return vectors_e4m3(bits);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half = magnitude == 0 ? 0 : (magnitude - (112u << 23)) >> 13;
    if (dtype == ATTN_F32)
        return bits;
    return dtype == ATTN_F16 ? (bits >> 16 & 0x8000u) | half : bits >> 16;
}

/* Any raw integer has at most 8 significant bits. Zero is +0. */
PORTABLE uint32_t vectors_f32(int32_t raw)
{
    return vectors_bits(vectors_value(raw));
}

PORTABLE uint16_t vectors_bf16(int32_t raw)
{
    return (uint16_t)vectors_narrow(vectors_f32(raw), ATTN_BF16);
}

PORTABLE uint16_t vectors_f16(int32_t raw)
{
    return (uint16_t)vectors_narrow(vectors_f32(raw), ATTN_F16);
}

/* Bytes of an element of these types. */
PORTABLE uint64_t vectors_size(attn_dtype dtype)
{
    return dtype == ATTN_F32 ? 4 : dtype == ATTN_FP8_E4M3 ? 1 : 2;
}

/* ---- Linear layers --------------------------------------------------------------------------- */

/* The factors of the integers in a row of a linear layer (generator_linear.h): element d is (offset
 * + n) * sign * 2^e, where e is that of the factor of number vectors_factor_index(). The first
 * `first` elements have one factor, then each `width` elements have the next one. */
struct vectors_factors {
    int32_t offset, sign;
    int32_t first, width, count;
};

PORTABLE int32_t vectors_factor_index(const struct vectors_factors *factors, int32_t d)
{
    if (d < factors->first)
        return 0;
    return (factors->first > 0) + (d - factors->first) / factors->width;
}

/* (offset + n) * sign * 2^exponent, -126 <= exponent < 128. */
PORTABLE float vectors_times_power(const struct vectors_factors *factors, int32_t exponent,
                                   int32_t n)
{
    union {
        uint32_t bits;
        float value;
    } power;
    power.bits = (uint32_t)(exponent + 127) << 23;
    return (float)((factors->offset + n) * factors->sign) * power.value;
}

#endif /* HOST_WORKLOAD_VECTORS_H */
