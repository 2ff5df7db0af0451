/* SPDX-License-Identifier: Apache-2.0
 *
 * save_rows.cuh: writes new keys and values to a cache of their own type or of fp8, by all blocks
 * of a grid, if both are aligned to 16 bytes.
 *
 *   thread    0  1  2 ...                     each has a piece of 16 bytes of a head's key or
 *   token 0   K0 K0 K0 ... V0 V0 ... K1 ...   value, and copies it for every token of its block,
 *   token 1   K0 K0 K0 ... V0 V0 ... K1 ...   some neighbouring tokens at a time
 *
 * So all lanes copy adjacent pieces, and the place of a piece in its head is computed once. If a
 * token has fewer pieces than a block has threads, several tokens are copied side by side.
 */
#ifndef PLUGINS_CUDA_SAVE_ROWS_CUH
#define PLUGINS_CUDA_SAVE_ROWS_CUH

#include "plugins/common/cuda/call.h"
#include "plugins/common/cuda/portable.h"

enum { SAVE_PIECE = 16 };

typedef struct save_shape {
    int heads, page_size;
    int k_pieces, v_pieces; /* of a head */
} save_shape;

/* The threads that save: which of a block's threads, and which of the grid's blocks. */
typedef struct grid_team {
    int thread, threads;
    int block, blocks;
} grid_team;

/* All threads of the grid, numbered in one line. */
static __device__ __forceinline__ grid_team grid_all(void)
{
    return grid_team{(int)threadIdx.x, (int)blockDim.x, (int)blockIdx.x, (int)gridDim.x};
}

/* Pieces of a head in a cache of their own type. A writer defines the bytes of a piece in the cache
 * and the number of tokens that a thread copies at a time, and writes a piece. for_head() returns
 * the writer of a head's keys, or of its values. */
struct save_bits {
    static constexpr int bytes = SAVE_PIECE, tokens = 4;

    __device__ __forceinline__ save_bits for_head(int, bool) const
    {
        return *this;
    }
    __device__ __forceinline__ void write(char *to, uint4 x) const
    {
        *(uint4 *)to = x;
    }
};

/* The place of a piece in row 0 and in slot 0. */
template <typename W> struct save_piece {
    W writer;
    const char *from;
    char *to;
    i64 from_row, to_page, to_token;
};

template <typename W>
static __device__ __forceinline__ save_piece<W>
save_find_piece(const call_operands &o, const save_shape &s, const W &writer, int i)
{
    const int pieces = s.k_pieces + s.v_pieces, head = i / pieces, at = i % pieces;
    if (at < s.k_pieces)
        return save_piece<W>{writer.for_head(head, false),
                             (const char *)o.k + head * o.k_head + at * SAVE_PIECE,
                             (char *)o.k_cache + head * o.k_cache_head + at * W::bytes,
                             o.k_row,
                             o.k_page,
                             o.k_token};
    const int offset = (at - s.k_pieces) * SAVE_PIECE;
    return save_piece<W>{writer.for_head(head, true),
                         (const char *)o.v + head * o.v_head + offset,
                         (char *)o.v_cache + head * o.v_cache_head +
                             offset / (SAVE_PIECE / W::bytes),
                         o.v_row,
                         o.v_page,
                         o.v_token};
}

/* Save rows [row, end), at most W::tokens, all loads in flight together. */
template <typename W>
static __device__ __forceinline__ void save_tokens(const save_piece<W> &p, const long long *slots,
                                                   int page_size, i64 row, i64 end)
{
    i64 slot[W::tokens];
    uint4 x[W::tokens];
#pragma unroll
    for (int n = 0; n < W::tokens; n++)
        slot[n] = row + n < end ? slots[row + n] : -1;
#pragma unroll
    for (int n = 0; n < W::tokens; n++)
        if (slot[n] >= 0)
            x[n] = *(const uint4 *)(p.from + (row + n) * p.from_row);
#pragma unroll
    for (int n = 0; n < W::tokens; n++) {
        if (slot[n] < 0)
            continue;
        i64 page = slot[n] >> 32 ? slot[n] / page_size : (u32)slot[n] / (u32)page_size;
        p.writer.write(p.to + page * p.to_page + (slot[n] - page * page_size) * p.to_token, x[n]);
    }
}

/* Save rows [first, end) of k and v to their slots; a row whose slot is negative is not written. */
template <typename W = save_bits>
static __device__ __forceinline__ void
save_rows_wide(const call_operands &o, const long long *slots, const save_shape &s,
               const grid_team &t, i64 first, i64 end, const W &writer = W())
{
    const int pieces = s.heads * (s.k_pieces + s.v_pieces);
    const int side =
        pieces < t.threads ? t.threads / pieces : 1; /* groups of tokens side by side */
    const int mine = t.thread / pieces;
    if (side > 1 && mine >= side)
        return;
    const i64 step = (i64)t.blocks * side * W::tokens;
    const i64 begin = first + ((i64)t.block * side + (side > 1 ? mine : 0)) * W::tokens;
    for (int i = t.thread - (side > 1 ? mine * pieces : 0); i < pieces; i += t.threads) {
        const save_piece<W> p = save_find_piece(o, s, writer, i);
        for (i64 row = begin; row < end; row += step)
            save_tokens(p, slots, s.page_size, row, end);
    }
}

#endif /* PLUGINS_CUDA_SAVE_ROWS_CUH */
