/* SPDX-License-Identifier: Apache-2.0
 *
 * panels.cuh: how keys and values lie in shared memory, and how rows that no box brings come there:
 * for few rows and for many.
 *
 * A warp has groups of 16 keys of a head, and their values, in panels: 128 bytes of each row, then
 * the next 128. Pieces of 16 bytes are in the order of the copy engine's 128-byte swizzle, so the 8
 * rows of a matrix are in different banks:
 *
 *           place 0  1  2  3  4  5  6  7
 *   row 0         0  1  2  3  4  5  6  7    piece p of row r in place p ^ r % 8
 *   row 1         1  0  3  2  5  4  7  6
 *   row 2         2  3  0  1  6  7  4  5
 *   ...
 *
 * Groups that lie side by side, in a page of the cache or among the new keys, come in boxes of the
 * copy engine, a panel each. Others come row by row, in pieces; rows that do not begin at multiples
 * of 16 bytes element by element.
 */
#ifndef FI_PANELS_CUH
#define FI_PANELS_CUH

#include "plugins/flashinfer_like/kernels/item.cuh"

#define WARPS       4  /* that copy a unit, and that multiply it in attend.cuh */
#define GROUP_KEYS  16 /* of a unit, that a warp has */
#define PANEL_BYTES (GROUP_KEYS * 128)

/* Of a unit, what this warp copies, or multiplies: 16 keys. */
static __device__ __forceinline__ int warp_part(void)
{
    return (int)(threadIdx.x / 32) % WARPS;
}

/* ---- Where things lie ---------------------------------------------------------------------- */

/* Where piece p, of 16 bytes, of row r lies. */
template <int panel_bytes> static __device__ __forceinline__ int piece_at(int r, int p)
{
    return (p >> 3) * panel_bytes + r * 128 + ((p ^ r) & 7) * 16;
}

/* A group's box coordinates: all of its keys lie in one page. */
static __device__ __forceinline__ int box_offset(const fi_call &c, int key)
{
    return c.page_shift >= 0 ? key & ((1 << c.page_shift) - 1) : key % c.page_size;
}

/* Do all rows of the group that begins with this key begin at multiples of 16 bytes? */
static __device__ __forceinline__ bool has_aligned(const fi_call &c, const index_sequence &q,
                                                   int first)
{
    int needed = (q.first_new > first ? CALL_ALIGNED_CACHE : 0) |
                 (q.first_new < first + GROUP_KEYS ? CALL_ALIGNED_NEW : 0);
    return !(needed & ~c.operands.aligned);
}

/* ---- Row by row ---------------------------------------------------------------------------- */

/* Eight rows of which each lane has a piece, and all its pieces 4, 8, ... further on. Of eight lanes, four
 * have neighbouring pieces of a row and four the same of another, whose number differs in bits 0 and 2:
 * then what they write of swizzled rows shares no banks. */
static __device__ __forceinline__ int piece_row(void)
{
    int lane = (int)threadIdx.x & 31;
    return lane / 8 * 2 ^ (lane & 4 ? 5 : 0);
}

/* Rows of a group, whose places are those of 16 lanes from the first on; but for those that
 * `omitted` has a bit for. `before`: pieces that are left out before a row, none or half a panel. A warp
 * that copies takes some five cycles an instruction: a lane finds two rows, and distances between its
 * pieces are constants. Rows of multiples of `whole_bytes` are copied whole: memory likes no eighths of
 * rows, but prefill's warps have no registers for 16 pointers to rows of 256 bytes. */
template <int row_bytes, int panel_bytes, int whole_bytes = 512>
static __device__ __forceinline__ void copy_rows(u64 mine, int first, u32 to, u32 omitted = 0,
                                                 int before = 0)
{
    constexpr int pieces = row_bytes / 16; /* of a row */
    const int lane = (int)threadIdx.x & 31, row = piece_row(), piece = lane & 3;
    if constexpr (row_bytes % whole_bytes == 0) {
#pragma unroll
        for (int i = 0; i < GROUP_KEYS * pieces; i += 32) {
            int r = (i + lane) / pieces, p = (i + lane) % pieces;
            const char *from = (const char *)__shfl_sync(~0u, mine, first + r);
            if (!(omitted >> r & 1))
                copy16(to + piece_at<panel_bytes>(r, p), from + p * 16);
        }
        return;
    }
    const u32 whole = to + piece_at<panel_bytes>(row, piece), half = whole ^ 4 * 16;
    const u32 even = before ? half : whole, odd = before ? whole + panel_bytes : half;
#pragma unroll
    for (int above = 0; above < GROUP_KEYS; above += 8) {
        const char *from = (const char *)__shfl_sync(~0u, mine, first + above + row) + piece * 16;
#pragma unroll
        for (int n = 0; n < pieces; n += 4)
            if ((pieces % 4 == 0 || n + piece < pieces) && !(omitted >> (above + row) & 1))
                copy16((n & 4 ? odd : even) + n / 8 * panel_bytes + above * 128, from + n * 16);
    }
}

/* The same where rows do not begin at multiples of 16 bytes. */
template <int dim, int panel_bytes>
static __device__ __forceinline__ void copy_rows_slow(u64 mine, int first, char *to, int before = 0)
{
#pragma unroll 1
    for (int row = 0; row < GROUP_KEYS; row++) {
        const u16 *from = (const u16 *)__shfl_sync(~0u, mine, first + row);
#pragma unroll 1
        for (int d = (int)threadIdx.x & 31; d < dim; d += 32)
            *(u16 *)(to + piece_at<panel_bytes>(row, before + d / 8) + d % 8 * 2) = from[d];
    }
}

#endif /* FI_PANELS_CUH */
