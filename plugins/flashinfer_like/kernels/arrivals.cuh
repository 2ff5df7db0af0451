/* SPDX-License-Identifier: Apache-2.0
 *
 * arrivals.cuh: which blocks merge an item that blocks share, C and CUDA alike. One block would
 * have to read all parts alone, so the last blocks to arrive each merge a slice of the item's rows:
 *
 *   part     0   1   2   3   4   5   6   7          in order of arrival
 *   merges   -   -   -   -   rows 0-3, 4-7, 8-11,   rows 12-15, and slices that were
 *                            when all parts exist   given up, at once
 *
 * They share only the item's counter:
 *
 *   | given up: 16, a bit for each slice | left: 5 | arrived: 11 |
 *
 * A block polls for a limited time only, and not at all if it has more work, since nothing
 * guarantees that all blocks of a launch run concurrently. It gives its slice up by one
 * compare-and-swap, which succeeds only while parts are missing, so the last block to arrive sees
 * it. A block counts as left once it will not read the counter again; the last block to leave
 * clears the counter. A slice's bits do not depend on the block that merges it.
 */
#ifndef FI_ARRIVALS_CUH
#define FI_ARRIVALS_CUH

#include "plugins/flashinfer_like/kernels/walk.cuh"

enum {
    ARRIVALS_ALL = 7,                  /* FI_PREFILL_ROWS rows */
    ARRIVALS_SLICES = 16,              /* at most */
    ARRIVALS_MOST = 0x7ff,             /* parts of an item that several blocks merge */
    ARRIVALS_LEFT = ARRIVALS_MOST + 1, /* one slice */
    ARRIVALS_GIVEN_UP = 1 << 16,       /* slice 0 */
    ARRIVALS_BATCH = 16,               /* parts of a row that a warp loads together */
    ARRIVALS_POLLS = 32                /* reads of the counter, some 300 ns each */
};

/* ---- Slices ---------------------------------------------------------------------------------- */

/* The rows of a slice as a power of two: each warp should have one batch of parts of a row. With
 * fewer than plan_several() parts, one slice has all rows. With few parts of up to half a tile the
 * first block to arrive has no slice: it had the end of another item, and continues with its next. */
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

/* Adds with release and acquire semantics at device scope. No other fence is needed in PTX's memory
 * model. A block's writes to its part happen before the addition, through the block's barrier
 * (bar.sync). An addition that reads this sum, or a value derived from it by atomic operations,
 * synchronizes with it. The reading block's barrier orders its later reads after that. Causality
 * order is transitive across these three steps. */
PORTABLE u32 counter_add(int *counter, u32 x)
{
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counter), "r"(x)
                 : "memory");
    return old;
}

/* Adds without ordering. */
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

/* Waits until all parts have arrived; after `polls` reads it gives the slice up and returns 0. */
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

/* Called when the block has written its part; returns the slices that it must merge, a bit each. */
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

/* Counts this block's slices as left, and returns the slices counted so far. It takes as long as a
 * batch of parts, so it is called before the slices are merged. */
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

/* Both, after the merge. */
PORTABLE void arrivals_end(int *counter, int slices, u32 merged)
{
    arrivals_clear(counter, slices, arrivals_leave(counter, slices, merged));
}

#endif /* FI_ARRIVALS_CUH */
