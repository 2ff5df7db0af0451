/* SPDX-License-Identifier: Apache-2.0
 *
 * work.cuh: the sequence of a piece of work, in C and CUDA. There is no list of pieces: each block
 * finds its own from the batch's lengths on the device, so that a graph's launch fits any batch
 * within its bounds.
 */
#ifndef PLUGINS_CUDA_WORK_CUH
#define PLUGINS_CUDA_WORK_CUH

#include "plugins/common/cuda/index.cuh"

/* ---- One row, one piece ---------------------------------------------------------------------- */

/* The sequence of query row `row`: the s < num_seqs with indptr[s] <= row < indptr[s + 1], by
 * binary search. A sequence without rows is never returned. -1 if the row belongs to no sequence:
 * padding. If indptr is NULL, row s is sequence s. */
PORTABLE int work_find_row(const int *indptr, int num_seqs, int row)
{
    if (!indptr)
        return row < num_seqs ? row : -1;
    if (num_seqs == 0 || row < index_int(indptr, 0) || row >= index_int(indptr, num_seqs))
        return -1;
    int low = 0, high = num_seqs; /* indptr[low] <= row < indptr[high] */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (index_int(indptr, middle) <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- Any number of pieces a sequence --------------------------------------------------------- */

/* A search that continues where the last one ended: the sequences before `base` have `before`
 * pieces of work. Pieces have to be requested in ascending order. */
typedef struct work_search {
    int base;
    int before;
} work_search;

#ifdef __CUDACC__

/* Find piece `wanted` of the work of sequences [at->base, end), which have count(s) pieces each:
 * the sequence *s, and the piece's number in it. Returns 0 if there are fewer pieces. All lanes of
 * a warp search together: each counts for one sequence of 32, and a prefix sum finds the piece's
 * sequence. */
template <typename Count>
PORTABLE int work_find_piece(work_search *at, int end, int wanted, Count count, int *s, int *piece)
{
    int lane = (int)threadIdx.x & 31;
    for (; at->base < end; at->base += 32) {
        int mine = at->base + lane < end ? count(at->base + lane) : 0, sum = mine;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? other : 0;
        }
        u32 enough = __ballot_sync(~0u, wanted < at->before + sum);
        if (enough) {
            int owner = __ffs((int)enough) - 1;
            *s = at->base + owner;
            *piece = wanted - at->before - __shfl_sync(~0u, sum - mine, owner);
            return 1;
        }
        at->before += __shfl_sync(~0u, sum, 31);
    }
    return 0;
}

#else

/* The same sequentially; `arg` is passed on to count(). */
PORTABLE int work_find_piece(work_search *at, int end, int wanted,
                             int (*count)(const void *arg, int s), const void *arg, int *s,
                             int *piece)
{
    for (; at->base < end; at->base++) {
        int mine = count(arg, at->base);
        if (wanted < at->before + mine) {
            *s = at->base;
            *piece = wanted - at->before;
            return 1;
        }
        at->before += mine;
    }
    return 0;
}

#endif

#endif /* PLUGINS_CUDA_WORK_CUH */
