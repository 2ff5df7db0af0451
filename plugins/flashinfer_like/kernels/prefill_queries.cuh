/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_queries.cuh: how an item's queries come into shared memory, while the one before is
 * worked on where there is room for two:
 *
 *   q[rows of the head's group] --pieces of 16 bytes, or elements--> warpgroup 0: 64 rows in panels
 *                                                                    warpgroup 1: 64 rows in panels
 *
 * Each of the four warps that copy has a quarter of the rows; the barrier hears of all of them, and
 * of what the item is.
 */
#ifndef FI_PREFILL_QUERIES_CUH
#define FI_PREFILL_QUERIES_CUH

#include "plugins/flashinfer_like/kernels/prefill_stages.cuh"

/* Rows of an item without a division for each: (row0 % ratio + r) / ratio is small. */
struct row_finder {
    i64 row; /* of q and out: that of row 0 */
    int head, past, ratio;
    float inverse;
};

DEVICE row_finder find_rows(const fi_call &c, const struct work &w)
{
    int row0 = w.at.tile.row0, before = row0 / c.ratio;
    row_finder f = {w.q.first_row + before, w.at.head * c.ratio, row0 - before * c.ratio, c.ratio,
                    __fdividef(1.0f, (float)c.ratio)};
    return f;
}

DEVICE void find_row(const row_finder &f, int r, i64 *row, int *head)
{
    int n = f.past + r, before = (int)(((float)n + 0.5f) * f.inverse);
    *row = f.row + before;
    *head = f.head + n - before * f.ratio;
}

/* A warp's part of an item's queries: a quarter of those of its one or two warpgroups. Rows that are
 * not there are copies of the last. */
template <typename S> DEVICE void copy_queries(const fi_call &c, const struct work &w, char *to)
{
    constexpr int pieces = S::dim / 8;
    int lane = (int)threadIdx.x & 31, last = item_rows(c, w.q, w.at.tile, S::rows) - 1;
    const int rows = (last < GROUP_ROWS ? GROUP_ROWS : S::rows) / WARPS;
    const row_finder finder = find_rows(c, w);
    bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
#pragma unroll 4
    for (int i = lane; i < rows * pieces; i += 32) {
        int r = warp_part() * rows + i / pieces, piece = i % pieces, head;
        i64 row;
        find_row(finder, min(r, last), &row, &head);
        const char *from = (const char *)c.operands.q + row * c.operands.q_row +
                           head * c.operands.q_head + piece * 16;
        char *there = to + r / GROUP_ROWS * (S::panels * GROUP_ROWS * ROW_BYTES) +
                      piece_at<GROUP_ROWS * ROW_BYTES>(r % GROUP_ROWS, piece);
        if (aligned)
            copy16(shared_address(there), from);
        else
            for (int n = 0; n < 8; n++)
                ((u16 *)there)[n] = ((const u16 *)from)[n];
    }
}

/* Tell the item to those who multiply, and start the copy of its queries. */
template <typename S>
DEVICE void start_item(const fi_call &c, const struct work &w, char *shared,
                       struct control *control, int slot)
{
    u32 full = shared_address(&control->q_full[slot]);
    if (threadIdx.x == (S::feeders > 1 ? GROUP_THREADS + S::consumers : 0))
        control->work[slot] = w;
    if (w.units > 0)
        copy_queries<S>(c, w, shared + slot * S::q_bytes);
    barrier_expect_copies(full);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(full);
}

#endif /* FI_PREFILL_QUERIES_CUH */
