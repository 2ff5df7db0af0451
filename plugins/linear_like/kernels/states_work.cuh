/* SPDX-License-Identifier: Apache-2.0
 *
 * states_work.cuh: a block's part of a launch of linear_states_* or linear_segments_*, and loads
 * and stores of states: the pool, the next launch, results of segments.
 */
#ifndef LINEAR_LIKE_STATES_WORK_CUH
#define LINEAR_LIKE_STATES_WORK_CUH

#include "plugins/linear_like/kernels/chunk_products.cuh"

/* A block's part of a launch: chunks [from, to) of the list, of the sequence's chunks [begin, end);
 * segment `number` of `count`. */
struct states_work {
    linear_sequence sequence;
    int first, begin, end, from, to;
    int index, number, count;
    int head, panel; /* the block's first */
    int lead;        /* stages of the state's ring before those of chunks */
    int passed;      /* chunks of the block's earlier parts */
};

/* Finds the block's part of segment `index` of the window from chunk `first` on; false: there is
 * none. */
DEVICE bool find_work(const linear_call &call, int first, int index, states_work &work)
{
    const linear_chunks &chunks = call.chunks;
    const linear_segment segment =
        chunks.segments[(i64)(first / chunks.window) * chunks.most_segments + index];
    if (segment.from >= segment.to)
        return false;
    work.first = first;
    work.begin = chunks.sequences[2 * segment.sequence];
    work.end = work.begin + chunks.sequences[2 * segment.sequence + 1];
    work.from = segment.from, work.to = segment.to;
    work.index = index, work.number = segment.number, work.count = segment.count;
    work.lead = work.passed = 0;
    work.sequence = linear_find_sequence(&call.batch, segment.sequence);
    return true;
}

/* The chunk's first row in operands.mixed; `index`: of the chunk in the window. */
DEVICE int find_row(const linear_call &call, const linear_sequence &sequence,
                    const linear_chunk &chunk, int index)
{
    return call.chunks.rows ? index * CHUNK_ROWS : sequence.first_row + chunk.first;
}

/* ---- Results of segments ------------------------------------------------------------------------ */

/* The result of a segment for the block's head; `index`: of the window's segments. */
DEVICE char *find_result(const linear_call &call, int index, int head)
{
    const i64 size = CHUNK_RESULT_BYTES(call.dims.v_dim / CHUNK_PANEL);
    return call.chunks.results + ((i64)index * call.dims.v_heads + head) * size;
}

/* A lane's part of a warp's panel. */
DEVICE float *result_state(const linear_call &call, const states_work &work, int index, int panel,
                           int lane)
{
    return (float *)find_result(call, index, work.head) + panel * CHUNK_CARRY + lane * 4;
}

DEVICE char *result_matrix(const linear_call &call, const states_work &work, int index)
{
    return find_result(call, index, work.head) + CHUNK_RESULT_STATE(call.dims.v_dim / CHUNK_PANEL);
}

/* ---- States in a pool ------------------------------------------------------------------------ */

typedef float state_tile[64]; /* by eights of k: value r at k 2 q and 2 q + 1, then value r + 8 at
                               * the same k */

struct state_place {
    int head, value, key; /* of the first element; the second pair has value + 8 */
};

/* Loads or stores elements from `pool` on; the lane has `keys` of k. All loads are in flight
 * together. */
template <bool STORE, bool BF16>
DEVICE void pass_elements(char *pool, i64 key, i64 value, int keys, state_tile &s)
{
#pragma unroll
    for (int n = 0; n < 64; n++) {
        const int k = n / 4 * 8 + n % 2;
        char *at = pool + k * key + (n % 4 / 2 * 8) * value;
        if (k >= keys)
            continue;
        if constexpr (STORE && BF16)
            *(u16 *)at = element_to_bf16(s[n]);
        else if constexpr (STORE)
            *(float *)at = s[n];
        else if constexpr (BF16)
            s[n] = element_from_bf16(*(const u16 *)at);
        else
            s[n] = *(const float *)at;
    }
}

template <bool STORE>
DEVICE void pass_state(const linear_call &call, int slot, const state_place &at, state_tile &s)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const bool bf16 = d.state_dtype == ELEMENT_BF16;
    const i64 size = bf16 ? 2 : 4;
    const i64 key = d.vk ? size : o.state_row, value = d.vk ? o.state_row : size;
    char *pool =
        o.state + slot * o.state_slot + at.head * o.state_head + at.key * key + at.value * value;
    if (bf16)
        pass_elements<STORE, true>(pool, key, value, d.k_dim - at.key, s);
    else
        pass_elements<STORE, false>(pool, key, value, d.k_dim - at.key, s);
}

/* ---- A sequence ------------------------------------------------------------------------------ */

DEVICE void carry_state(float *carry, bool store, state_tile &s)
{
#pragma unroll
    for (int n = 0; n < 16; n++) {
        float4 *at = (float4 *)carry + n * 32;
        if (store) {
            *at = make_float4(s[4 * n], s[4 * n + 1], s[4 * n + 2], s[4 * n + 3]);
        } else {
            float4 x = *at;
            s[4 * n] = x.x, s[4 * n + 1] = x.y, s[4 * n + 2] = x.z, s[4 * n + 3] = x.w;
        }
    }
}

/* Loads the state before the first chunk of a sequence, or of a launch. */
DEVICE void load_first_state(const linear_call &call, const states_work &work, int panel, int lane,
                             state_tile &s)
{
    const linear_chunks &chunks = call.chunks;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    const i64 half = (i64)call.dims.v_heads * panels * CHUNK_CARRY;
    const int odd = work.first / chunks.window % 2;
    float *carry = chunks.carry + ((i64)work.head * panels + panel) * CHUNK_CARRY + lane * 4;
    if (work.from > work.begin)
        carry_state(carry + (1 - odd) * half, false, s);
    else if (work.sequence.slot)
        pass_state<false>(call, work.sequence.slot, at, s);
}

/* Stores the state after a sequence's chunks of a launch, to its slot or for the next launch. */
DEVICE void store_last_state(const linear_call &call, const states_work &work, int panel, int lane,
                             state_tile &s)
{
    const linear_chunks &chunks = call.chunks;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    const i64 half = (i64)call.dims.v_heads * panels * CHUNK_CARRY;
    const int odd = work.first / chunks.window % 2;
    float *carry = chunks.carry + ((i64)work.head * panels + panel) * CHUNK_CARRY + lane * 4;
    if (work.number + 1 < work.count)
        return;
    if (work.to < work.end)
        carry_state(carry + odd * half, true, s);
    else if (work.sequence.dst)
        pass_state<true>(call, work.sequence.dst, at, s);
}

#endif /* LINEAR_LIKE_STATES_WORK_CUH */
