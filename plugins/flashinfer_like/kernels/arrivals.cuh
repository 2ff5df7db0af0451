/* SPDX-License-Identifier: Apache-2.0
 *
 * arrivals.cuh: who merges an item that blocks share, C and CUDA alike. One block would read all
 * parts alone, so the last blocks to come merge a slice of its rows each:
 *
 *   part     0   1   2   3   4   5   6   7          in the order in which their blocks come
 *   merges   -   -   -   -   rows 0-3, 4-7, 8-11,   rows 12-15, and what others gave up
 *                            when all have come     at once
 *
 * All that they know of each other is the item's counter:
 *
 *   | gave up: 16, a bit for each slice | left: 5 | arrived: 11 |
 *
 * A block waits a while only, and not if it has more work, since nothing says that all blocks of a
 * launch run at once. It gives its slice up by one compare-and-swap, which succeeds only while
 * parts are missing: so the last to come finds it. A block counts itself as having left when it will not
 * read the counter again, and the last block to leave clears it. Who merges a slice does not change its bits.
 */
#ifndef FI_ARRIVALS_CUH
#define FI_ARRIVALS_CUH

#include "plugins/flashinfer_like/kernels/walk.cuh"

enum {
    ARRIVALS_ALL = 7,                  /* FI_PREFILL_ROWS rows */
    ARRIVALS_SLICES = 16,              /* at most */
    ARRIVALS_MOST = 0x7ff,             /* parts of an item that has several */
    ARRIVALS_LEFT = ARRIVALS_MOST + 1, /* one slice's block */
    ARRIVALS_GIVEN_UP = 1 << 16,       /* slice 0 */
    ARRIVALS_BATCH = 16,               /* parts of a row that a warp fetches together */
    ARRIVALS_POLLS = 32                /* looks at the counter, some 300 ns each */
};

/* ---- Slices ---------------------------------------------------------------------------------- */

/* A slice has 2 to this power rows: as many as give each of its warps one batch of parts of a row; all
 * rows if there are fewer than plan_several() parts. If an item of up to half a tile has few parts, the
 * block that arrives first gets no slice: it had the end of another item, and begins the next one. */
PORTABLE int arrivals_shift(int rows, int count, int warps)
{
    const int is_short = count < FI_SEVERAL && rows <= FI_HALF_ROWS;
    int shift = 0, most = int_min(ARRIVALS_SLICES, is_short ? count - 1 : count);
    if (count < plan_several(rows) || count > ARRIVALS_MOST)
        return ARRIVALS_ALL;
    while (2 * count << shift <= warps * ARRIVALS_BATCH || most << shift < rows)
        shift++;
    return shift;
}

PORTABLE int arrivals_slices(int rows, int shift)
{
    return (rows + (1 << shift) - 1) >> shift;
}

/* ---- The counter ----------------------------------------------------------------------------- */

#ifdef __CUDACC__

/* Adds, and orders all that the block's threads did before the barrier before it against whatever
 * they, and others, do after a barrier after they saw the sum. No fence is needed beside it, in
 * PTX's memory model: a write to a part is ordered before the addition by the block's barrier
 * (bar.sync makes what its threads did before it happen before what they do after it); whoever
 * finds this one's sum, or what atomic operations made of it, synchronizes with it, as it acquires
 * what that released, at the scope of the device; and the barrier of the block that found it orders
 * the reads after that. Causality order goes through all three. */
PORTABLE u32 counter_add(int *counter, u32 x)
{
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counter), "r"(x)
                 : "memory");
    return old;
}

/* Adds, and orders nothing. */
PORTABLE u32 counter_note(int *counter, u32 x)
{
    return (u32)atomicAdd(counter, (int)x);
}

PORTABLE u32 counter_swap(int *counter, u32 old, u32 x)
{
    u32 found;
    asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(found)
                 : "l"(counter), "r"(old), "r"(x)
                 : "memory");
    return found;
}

PORTABLE u32 counter_read(const int *counter)
{
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
    return x;
}

PORTABLE int count_bits(u32 x)
{
    return __popc(x);
}

#else

PORTABLE u32 counter_add(int *counter, u32 x)
{
    return (u32)__atomic_fetch_add(PORTABLE_AT(counter), (int)x, __ATOMIC_ACQ_REL);
}

PORTABLE u32 counter_note(int *counter, u32 x)
{
    return (u32)__atomic_fetch_add(PORTABLE_AT(counter), (int)x, __ATOMIC_RELAXED);
}

PORTABLE u32 counter_swap(int *counter, u32 old, u32 x)
{
    int found = (int)old;
    __atomic_compare_exchange_n(PORTABLE_AT(counter), &found, (int)x, 0, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
    return (u32)found;
}

PORTABLE u32 counter_read(const int *counter)
{
    return (u32)__atomic_load_n(PORTABLE_AT(counter), __ATOMIC_ACQUIRE);
}

PORTABLE int count_bits(u32 x)
{
    return __builtin_popcount(x);
}

#endif

/* Have all parts come? If not in so many looks, the slice is given up. */
PORTABLE int arrivals_wait(int *counter, int count, int slice, int polls)
{
    u32 seen = counter_read(counter);
    while ((int)(seen & ARRIVALS_MOST) < count) {
        u32 found = seen;
        if (polls-- > 0) {
            seen = counter_read(counter);
            continue;
        }
        seen = counter_swap(counter, found, found | (u32)ARRIVALS_GIVEN_UP << slice);
        if (seen == found)
            return 0;
    }
    return 1;
}

/* The block has left its part; returns the slices that it has to merge, a bit each. */
PORTABLE u32 arrivals_come(int *counter, int count, int slices, int polls)
{
    u32 old = counter_add(counter, 1);
    int before = slices > 1 ? (int)(old & ARRIVALS_MOST) : (int)old;
    int slice = before - (count - slices);
    if (slice < 0)
        return 0;
    if (before == count - 1)
        return 1u << slice | (slices > 1 ? old >> 16 : 0);
    return arrivals_wait(counter, count, slice, polls) ? 1u << slice : 0;
}

/* It has slices to merge, and will not look at the counter again. Returns of how many slices this is
 * so. It takes as long as a batch of parts, so it is asked for before they are merged. */
PORTABLE u32 arrivals_leave(int *counter, int slices, u32 merged)
{
    u32 mine = (u32)count_bits(merged);
    if ((int)mine == slices)
        return mine;
    return mine + (counter_note(counter, ARRIVALS_LEFT * mine) / ARRIVALS_LEFT & 31);
}

PORTABLE void arrivals_clear(int *counter, int slices, u32 left)
{
    if ((int)left == slices)
        *PORTABLE_AT(counter) = 0;
}

/* Both, once it has merged them. */
PORTABLE void arrivals_end(int *counter, int slices, u32 merged)
{
    arrivals_clear(counter, slices, arrivals_leave(counter, slices, merged));
}

#endif /* FI_ARRIVALS_CUH */
