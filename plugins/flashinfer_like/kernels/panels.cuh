/* SPDX-License-Identifier: Apache-2.0
 *
 * panels.cuh: the layout of keys and values in shared memory, and the copies of rows that TMA does
 * not bring as boxes, for few rows and for many.
 *
 * A warp copies groups of 16 keys of a head, and their values, as panels: 128 bytes of each row,
 * then the next 128. Pieces of 16 bytes have the order of TMA's 128-byte swizzle, so the 8 rows of
 * a matrix are in different banks:
 *
 *           place 0  1  2  3  4  5  6  7
 *   row 0         0  1  2  3  4  5  6  7    piece p of row r in place p ^ r % 8
 *   row 1         1  0  3  2  5  4  7  6
 *   row 2         2  3  0  1  6  7  4  5
 *   ...
 *
 * Groups that are adjacent, in a page of the cache or among the new keys, arrive as TMA boxes, one
 * for each panel. Others are copied row by row, in pieces; unaligned rows element by element.
 */
#ifndef FI_PANELS_CUH
#define FI_PANELS_CUH

#include "plugins/flashinfer_like/kernels/item.cuh"

#define WARPS       4  /* that copy a unit; in attend.cuh also those that multiply it */
#define GROUP_KEYS  16 /* of a unit, for one warp */
#define PANEL_BYTES (GROUP_KEYS * 128)

/* This warp's 16 keys of a unit. */
static __device__ __forceinline__ int warp_part(void)
{
    return (int)(threadIdx.x / 32) % WARPS;
}

/* ---- Where things lie ---------------------------------------------------------------------- */

/* The offset of piece p (16 bytes) of row r. */
template <int panel_bytes> static __device__ __forceinline__ int piece_at(int r, int p)
{
    return (p >> 3) * panel_bytes + r * 128 + ((p ^ r) & 7) * 16;
}

/* A group's coordinate in its page: all of its keys are in one page. */
static __device__ __forceinline__ int box_offset(const fi_call &c, int key)
{
    return c.page_shift >= 0 ? key & ((1 << c.page_shift) - 1) : key % c.page_size;
}

/* Are all rows of the group of keys from `first` on aligned to 16 bytes? */
static __device__ __forceinline__ bool has_aligned(const fi_call &c, const index_sequence &q,
                                                   int first)
{
    int needed = (q.first_new > first ? CALL_ALIGNED_CACHE : 0) |
                 (q.first_new < first + GROUP_KEYS ? CALL_ALIGNED_NEW : 0);
    return !(needed & ~c.operands.aligned);
}

/* ---- Row by row ---------------------------------------------------------------------------- */

/* A lane's row of eight: it has pieces n, n + 4 ... of this row. Of eight lanes, four have adjacent
 * pieces of one row, and four the same pieces of a row whose number differs in bits 0 and 2, so
 * their writes to swizzled rows have no bank conflicts. */
static __device__ __forceinline__ int piece_row(void)
{
    int lane = (int)threadIdx.x & 31;
    return lane / 8 * 2 ^ (lane & 4 ? 5 : 0);
}

/* Copies a group's rows; lanes from `first` on hold their addresses. Rows with a bit in `omitted`
 * are skipped. `before`: pieces to leave free before a row, none or half a panel. A copying warp
 * takes about five cycles per instruction: so a lane reads two addresses, and the distances between
 * its pieces are constants. Rows of multiples of `whole_bytes` are copied by adjacent lanes, since
 * memory is slower with eighths of rows; prefill's warps lack registers for 16 addresses of
 * 256-byte rows. */
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

/* The same for unaligned rows. */
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
