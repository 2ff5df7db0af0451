/* SPDX-License-Identifier: Apache-2.0
 *
 * step_kernels.cu: the kernels of step_kernels.h. They are C that a test compiles for the processor
 * as well (portable.h): no shared memory, no barriers, and the only atomic is a minimum.
 */
#include "host/run/kernels/launch.h"
#include "host/base/portable.h"
#include "host/workload/vectors.h"

/* This thread among those of its piece of the work, and how many there are. */
PORTABLE uint64_t first_of_piece(void)
{
    return (uint64_t)blockIdx.y * blockDim.x + threadIdx.x;
}

PORTABLE uint64_t stride_of_piece(void)
{
    return (uint64_t)gridDim.y * blockDim.x;
}

/* May all memory at these addresses, or this number of bytes apart, be moved 16 bytes at a time? */
PORTABLE int is_aligned(uint64_t addresses_and_sizes)
{
    return addresses_and_sizes % sizeof(uint4) == 0;
}

PORTABLE uint64_t address(const void *memory)
{
    return (uint64_t)(uintptr_t)memory;
}

/* ---- Vectors --------------------------------------------------------------------------------- */

/* One word of a row: up to eight elements of a head. */
struct word_place {
    char *to;
    int32_t stream, layer, head;
    int32_t word;  /* of the head's vector */
    int32_t count; /* elements */
    attn_dtype dtype;
};

PORTABLE uint64_t words_of(const struct generate_vector *vector)
{
    return (uint64_t)(vector->dim + VECTORS_GROUP - 1) / VECTORS_GROUP;
}

/* Word `index` of the row in an operand that begins with word 0. */
PORTABLE struct word_place place_in(const struct generate_vector *vector, uint64_t row,
                                    uint64_t index)
{
    uint64_t words = words_of(vector);
    struct word_place place;
    place.stream = vector->stream;
    place.layer = vector->layer;
    place.dtype = vector->dtype;
    place.head = (int32_t)(index / words);
    place.word = (int32_t)(index - (uint64_t)place.head * words);
    int32_t d = place.word * VECTORS_GROUP;
    place.count = vector->dim - d < VECTORS_GROUP ? vector->dim - d : VECTORS_GROUP;
    uint64_t element =
        (row * (uint64_t)vector->heads + (uint64_t)place.head) * (uint64_t)vector->dim +
        (uint64_t)d;
    place.to = (char *)vector->data + element * vectors_size(vector->dtype);
    place.word += vector->first_word;
    return place;
}

PORTABLE struct word_place find_place(const struct generate_vectors *to, uint64_t row,
                                      uint64_t index)
{
    int32_t i = 0;
    for (; i + 1 < to->count; i++) {
        uint64_t words = words_of(&to->list[i]) * (uint64_t)to->list[i].heads;
        if (index < words)
            break;
        index -= words;
    }
    return place_in(&to->list[i], row, index);
}

/* The stream of a head; that of padding is never asked for. */
PORTABLE struct vectors_scaled find_stream(const struct generate_launch *work, int32_t request,
                                           int64_t position, const struct word_place *place)
{
    struct request_tokens own = *DEVICE_AT(&work->requests[request % work->num_requests]);
    struct request_tokens tokens = request_tokens_as(own, request);
    uint64_t token = vectors_token(&work->generator, token_key_at(&tokens, position));
    if (place->stream == GENERATOR_QUERY)
        return vectors_query(&work->generator, &work->geometry, &tokens, position, token,
                             work->layer, place->head);
    struct vectors_scaled other = {0, 1, 0};
    other.stream = vectors_stream(token, place->layer, place->head, place->stream);
    return other;
}

/* The bits of a word's elements, in the low bits of each. */
PORTABLE uint4 pack_words(const uint32_t *bits)
{
    uint4 packed;
    packed.x = bits[0];
    packed.y = bits[1];
    packed.z = bits[2];
    packed.w = bits[3];
    return packed;
}

PORTABLE uint4 pack_halves(const uint32_t *bits)
{
    uint32_t pairs[4];
    for (int32_t i = 0; i < 4; i++)
        pairs[i] = bits[2 * i] | bits[2 * i + 1] << 16;
    return pack_words(pairs);
}

/* The first `count` elements of a word that are bytes. */
PORTABLE void store_bytes(char *memory, int32_t count, const uint32_t *bits)
{
    uint64_t word = 0;
    for (int32_t i = 0; i < VECTORS_GROUP; i++)
        word |= (uint64_t)bits[i] << 8 * i;
    if (count == VECTORS_GROUP && address(memory) % sizeof word == 0) {
        *DEVICE_AT((uint64_t *)memory) = word;
        return;
    }
    for (int32_t i = 0; i < count; i++)
        *DEVICE_AT((uint8_t *)memory + i) = (uint8_t)(word >> 8 * i);
}

/* The first `count` elements of a word. */
PORTABLE void store_word(char *memory, int32_t count, const uint32_t *bits, attn_dtype dtype)
{
    if (dtype == ATTN_FP8_E4M3) {
        store_bytes(memory, count, bits);
        return;
    }
    if (count == VECTORS_GROUP && is_aligned(address(memory))) {
        uint4 *to = (uint4 *)memory;
        *DEVICE_AT(to) = dtype == ATTN_F32 ? pack_words(bits) : pack_halves(bits);
        if (dtype == ATTN_F32)
            *DEVICE_AT(to + 1) = pack_words(bits + 4);
        return;
    }
    for (int32_t i = 0; i < VECTORS_GROUP; i++) { /* so many that `bits` stay in registers */
        if (i < count && dtype == ATTN_F32)
            *DEVICE_AT((uint32_t *)memory + i) = bits[i];
        else if (i < count)
            *DEVICE_AT((uint16_t *)memory + i) = (uint16_t)bits[i];
    }
}

/* A thread makes a word: those of the first operand's heads come first, then the next one's. */
KERNEL step_generate(struct generate_launch work)
{
    uint64_t row = blockIdx.x;
    int32_t request = *DEVICE_AT(&work.rows.request[row]);
    int32_t position = request < 0 ? 0 : *DEVICE_AT(&work.rows.position[row]);
    for (uint64_t i = first_of_piece(); i < work.num_words; i += stride_of_piece()) {
        struct word_place place = find_place(&work.vectors, row, i);
        struct vectors_scaled stream = {0, 1, 0};
        uint64_t word = 0;
        uint32_t bits[VECTORS_GROUP];
        if (request >= 0) {
            stream = find_stream(&work, request, position, &place);
            word = vectors_word(stream.stream, (uint64_t)place.word);
        }
        for (int32_t e = 0; e < VECTORS_GROUP; e++)
            bits[e] = vectors_narrow(vectors_f32(vectors_scale(&stream, vectors_element(word, e))),
                                     place.dtype);
        store_word(place.to, place.count, bits, place.dtype);
    }
}

/* ---- Rows of linear layers ------------------------------------------------------------------- */

PORTABLE int32_t linear_words(const struct generate_linear_operand *operand)
{
    return (operand->elements + VECTORS_GROUP - 1) / VECTORS_GROUP;
}

/* The elements of word `index` of an operand's row of this token. */
PORTABLE void linear_word(const struct generate_linear_launch *work,
                          const struct generate_linear_operand *operand, uint64_t token,
                          int32_t index, int32_t count, uint32_t *bits)
{
    const struct vectors_factors *factors = &operand->factors;
    const int8_t *exponents = work->exponents + operand->exponents_at;
    uint64_t stream =
        vectors_stream(token, work->layer, 0, GENERATOR_OPERAND + (int32_t)operand->role);
    uint64_t word = vectors_word(stream, (uint64_t)index);
    int32_t first = index * VECTORS_GROUP;
    int32_t begin = vectors_factor_index(factors, first);
    int32_t end = vectors_factor_index(factors, first + count - 1);
    for (int32_t e = 0; e < VECTORS_GROUP; e++) {
        int32_t factor = begin; /* most words have but one */
        if (begin != end && e < count)
            factor = vectors_factor_index(factors, first + e);
        float value = vectors_times_power(factors, exponents[factor], vectors_element(word, e));
        bits[e] = vectors_narrow(vectors_bits(value), operand->dtype);
    }
}

/* As above: a thread makes a word. */
KERNEL step_generate_linear(struct generate_linear_launch work)
{
    uint64_t row = blockIdx.x, token = 0;
    int32_t request = *DEVICE_AT(&work.rows.request[row]);
    if (request >= 0) {
        struct request_tokens own = *DEVICE_AT(&work.requests[request % work.num_requests]);
        struct request_tokens tokens = request_tokens_as(own, request);
        int64_t position = *DEVICE_AT(&work.rows.position[row]);
        token = vectors_token(&work.generator, token_key_at(&tokens, position));
    }
    for (uint64_t i = first_of_piece(); i < work.num_words; i += stride_of_piece()) {
        const struct generate_linear_operand *operand = work.operands;
        int32_t index = (int32_t)i, words = linear_words(operand);
        for (; index >= words; words = linear_words(++operand))
            index -= words;
        int32_t left = operand->elements - index * VECTORS_GROUP;
        int32_t count = left < VECTORS_GROUP ? left : VECTORS_GROUP;
        uint64_t element = row * (uint64_t)operand->elements + (uint64_t)index * VECTORS_GROUP;
        uint32_t bits[VECTORS_GROUP] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (request >= 0)
            linear_word(&work, operand, token, index, count, bits);
        store_word((char *)operand->data + element * vectors_size(operand->dtype), count, bits,
                   operand->dtype);
    }
}

/* ---- Indices --------------------------------------------------------------------------------- */

KERNEL step_update_table(struct update_table_launch work)
{
    struct step_update update = *DEVICE_AT(&work.updates[blockIdx.x]);
    int32_t *row = work.req_to_token + update.row * work.stride + update.first;
    const int32_t *slots = work.slots + update.source;
    for (uint64_t i = first_of_piece(); (int64_t)i < update.count; i += stride_of_piece())
        *DEVICE_AT(row + i) = *DEVICE_AT(slots + i);
}

KERNEL step_index_pages(struct index_pages_launch work)
{
    const struct step_index *index = &work.index;
    uint64_t s = blockIdx.x;
    int64_t page_size = index->page_size;
    int64_t pages = (*DEVICE_AT(&index->kv_lens[s]) + page_size - 1) / page_size;
    const int32_t *slots =
        index->req_to_token + *DEVICE_AT(&index->req_pool_indices[s]) * index->req_to_token_stride;
    int32_t *table = index->block_table;
    int32_t *indices = index->kv_indices;
    if (table)
        table += s * (uint64_t)index->block_table_stride;
    if (indices)
        indices += *DEVICE_AT(&index->kv_indptr[s]);
    for (uint64_t p = first_of_piece(); (int64_t)p < pages; p += stride_of_piece()) {
        int32_t page = *DEVICE_AT(slots + p * (uint64_t)page_size) / index->page_size;
        if (table)
            *DEVICE_AT(table + p) = page;
        if (indices)
            *DEVICE_AT(indices + p) = page;
    }
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* Bits that are all set in an infinity or a NaN, in an element (f32) or in each of two. */
PORTABLE uint32_t exponent_bits(attn_dtype dtype)
{
    return dtype == ATTN_F32 ? 0x7f800000u : (dtype == ATTN_F16 ? 0x7c007c00u : 0x7f807f80u);
}

/* Is an element of these 32 bits not finite? */
PORTABLE int is_bad(uint32_t bits, uint32_t exponent, attn_dtype dtype)
{
    uint32_t set = bits & exponent;
    if (dtype == ATTN_F32)
        return set == exponent;
    return set >> 16 == exponent >> 16 || (set & 0xffffu) == (exponent & 0xffffu);
}

/* 16 bytes: zero them, or tell whether one of their elements is not finite. */
PORTABLE int watch_16(uint4 *at, int is_padding, attn_dtype dtype)
{
    uint32_t exponent = exponent_bits(dtype);
    uint4 value = {0, 0, 0, 0};
    if (is_padding)
        *DEVICE_AT(at) = value;
    else
        value = *DEVICE_AT(at);
    return is_bad(value.x, exponent, dtype) || is_bad(value.y, exponent, dtype) ||
           is_bad(value.z, exponent, dtype) || is_bad(value.w, exponent, dtype);
}

/* The same with element `i`. */
PORTABLE int watch_one(char *row, uint64_t i, int is_padding, attn_dtype dtype)
{
    uint32_t value = 0;
    if (dtype == ATTN_F32) {
        uint32_t *at = (uint32_t *)row + i;
        if (is_padding)
            *DEVICE_AT(at) = 0;
        else
            value = *DEVICE_AT(at);
    } else {
        uint16_t *at = (uint16_t *)row + i;
        if (is_padding)
            *DEVICE_AT(at) = 0;
        else
            value = *DEVICE_AT(at);
    }
    return is_bad(value, exponent_bits(dtype), dtype);
}

KERNEL step_watch(struct watch_launch work)
{
    uint64_t row = blockIdx.x;
    attn_dtype dtype = work.output.dtype;
    uint64_t elements = (uint64_t)work.output.row_elements;
    uint64_t bytes = elements * (dtype == ATTN_F32 ? 4 : 2);
    char *data = (char *)work.output.data + row * bytes;
    int is_padding = *DEVICE_AT(&work.rows.request[row]) < 0, bad = 0;
    if (is_aligned(address(data) | bytes)) {
        for (uint64_t i = first_of_piece(); i < bytes / sizeof(uint4); i += stride_of_piece())
            bad |= watch_16((uint4 *)data + i, is_padding, dtype);
    } else {
        for (uint64_t i = first_of_piece(); i < elements; i += stride_of_piece())
            bad |= watch_one(data, i, is_padding, dtype);
    }
    if (bad)
        atomicMin(DEVICE_AT((unsigned long long *)work.first),
                  (unsigned long long)(uint32_t)work.layer << 32 | row);
}

/* One row, by the threads of a piece. */
PORTABLE void copy_row(char *to, const char *from, uint64_t bytes)
{
    if (is_aligned(address(to) | address(from) | bytes)) {
        for (uint64_t i = first_of_piece(); i < bytes / sizeof(uint4); i += stride_of_piece())
            *DEVICE_AT((uint4 *)to + i) = *DEVICE_AT((const uint4 *)from + i);
    } else {
        for (uint64_t i = first_of_piece(); i < bytes; i += stride_of_piece())
            *DEVICE_AT(to + i) = *DEVICE_AT(from + i);
    }
}

/* Piece `piece` of what a cache has in a slot. */
PORTABLE char *piece_of(const struct step_cache *cache, int32_t slot, int32_t piece)
{
    int64_t page = slot / cache->page_size;
    int64_t offset = slot - page * cache->page_size;
    return (char *)cache->data + page * cache->page_bytes + offset * cache->slot_bytes +
           piece * cache->piece_stride;
}

/* A sequence's moves are made one after the other: each thread moves the same bytes in all. */
KERNEL step_move(struct move_launch work)
{
    const struct step_cache *cache = &work.cache;
    int32_t first = *DEVICE_AT(&work.moves.indptr[blockIdx.x]);
    int32_t end = *DEVICE_AT(&work.moves.indptr[blockIdx.x + 1]);
    for (int32_t m = first; m < end; m++) {
        struct step_move move = *DEVICE_AT(&work.moves.list[m]);
        for (int32_t p = 0; p < cache->num_pieces; p++)
            copy_row(piece_of(cache, move.to, p), piece_of(cache, move.from, p),
                     (uint64_t)cache->piece_bytes);
    }
}

KERNEL step_gather(struct gather_launch work)
{
    const struct step_sample *sample = &work.sample;
    int64_t first = *DEVICE_AT(&sample->indptr[work.layer]);
    int64_t end = *DEVICE_AT(&sample->indptr[work.layer + 1]);
    char *to = (char *)sample->to + *DEVICE_AT(&sample->offset[work.layer]);
    for (int64_t i = first + blockIdx.x; i < end; i += gridDim.x) {
        uint64_t row = (uint64_t)*DEVICE_AT(&sample->rows[i]);
        copy_row(to + (uint64_t)(i - first) * work.row_bytes,
                 (const char *)work.rows + row * work.row_bytes, work.row_bytes);
    }
}

/* The sequence that a row is of. */
PORTABLE int32_t sequence_of(const struct step_keys *keys, int32_t row)
{
    int32_t s = 0;
    while (s + 1 < keys->num_seqs && *DEVICE_AT(&keys->q_indptr[s + 1]) <= row)
        s++;
    return s;
}

/* The key that lies in a slot. */
PORTABLE int32_t key_in(const struct step_keys *keys, const int32_t *slots, int32_t kv_len,
                        int32_t slot)
{
    for (int32_t first = 0; slot >= 0 && first < kv_len; first += keys->page_size)
        if (*DEVICE_AT(&slots[first]) / keys->page_size == slot / keys->page_size)
            return first + slot % keys->page_size;
    return slot == -1 ? keys->none : -1;
}

KERNEL step_keys(struct keys_launch work)
{
    const struct step_sample *sample = &work.sample;
    const struct step_keys *keys = &work.keys;
    int64_t first = *DEVICE_AT(&sample->indptr[work.layer]);
    int64_t end = *DEVICE_AT(&sample->indptr[work.layer + 1]);
    char *base = (char *)sample->to + *DEVICE_AT(&sample->offset[work.layer]) +
                 (uint64_t)(end - first) * work.skip;
    for (int64_t i = first + blockIdx.x; i < end; i += gridDim.x) {
        int32_t row = *DEVICE_AT(&sample->rows[i]), s = sequence_of(keys, row);
        const int32_t *from = keys->chosen + (int64_t)row * keys->count;
        const int32_t *slots =
            keys->req_to_token + *DEVICE_AT(&keys->req_pool_indices[s]) * keys->req_to_token_stride;
        int32_t *to = (int32_t *)base + (i - first) * keys->count;
        for (uint64_t n = first_of_piece(); (int64_t)n < keys->count; n += stride_of_piece())
            *DEVICE_AT(to + n) =
                key_in(keys, slots, *DEVICE_AT(&keys->kv_lens[s]), *DEVICE_AT(from + n));
    }
}
