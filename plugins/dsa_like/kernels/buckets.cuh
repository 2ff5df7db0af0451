/* SPDX-License-Identifier: Apache-2.0
 *
 * buckets.cuh: the largest logits of a row, found by a cluster of blocks that each have a part of
 * it.
 *
 * A histogram over equal steps between the smallest and the largest logit determines the border
 * bucket, which contains the smallest chosen logit. Keys in higher buckets are chosen. The border
 * bucket usually has few keys: the first block ranks them. If they are too many, the bucket is
 * divided again, by 11 bits at a time of the logits' order-preserving integers ("numbers"), until
 * they are few or all equal.
 *
 * In long rows a sieve removes most keys first (sieve.cuh).
 *
 * Among equal logits the first keys are chosen. The list has the keys of higher buckets in their
 * order, then those of the border bucket by rank; after a sieve, usually all keys in their order.
 * It depends on the logits alone, not on the size of the cluster.
 */
#ifndef DSA_LIKE_BUCKETS_CUH
#define DSA_LIKE_BUCKETS_CUH

#include "plugins/dsa_like/kernels/rows.cuh"

#define CHOOSE_WARPS (DSA_CHOOSE_THREADS / 32)
#define CHOOSE_BINS  (DSA_BUCKETS / DSA_CHOOSE_THREADS) /* per thread */

/* ---- Logits as numbers ----------------------------------------------------------------------- */

/* The number of a logit; 0 is reserved for -inf (no key). */
DEVICE u32 order_of(float logit)
{
    const u32 bits = __float_as_uint(logit + 0.0f); /* no negative zero */
    const u32 number = bits >> 31 ? ~bits : bits | 0x80000000u;
    return logit == -INFINITY ? 0 : number ? number : 1;
}

DEVICE float logit_of(u32 number)
{
    return __uint_as_float(number >> 31 ? number & 0x7fffffffu : ~number);
}

/* ---- A row among its blocks ------------------------------------------------------------------ */

struct choose_extent {
    int seen;
    u32 least, most; /* numbers */
};

struct choose_found {
    int bucket, above, count;
};

/* Shared memory: DSA_CHOOSE_SHARED. */
struct choose_memory {
    int buckets[DSA_BUCKETS];
    uint2 candidates[DSA_CANDIDATES]; /* number and key; in the first block */
    int totals[DSA_BUCKETS];          /* a slice of the sums over all blocks */
    int sums[CHOOSE_WARPS];
    int slices[DSA_MOST_BLOCKS];  /* keys in each block's slice of buckets */
    int2 counts[DSA_MOST_BLOCKS]; /* keys of each block above the border, and on it */
    int larger[CHOOSE_WARPS], equal[CHOOSE_WARPS];
    choose_found found;
    choose_extent extent;         /* of this block's keys */
    int num_candidates;           /* in the first block */
    int2 passed[DSA_MOST_BLOCKS]; /* of each block: the number of keys that pass, and their largest
                            * number */
    u32 largest;                  /* largest number among this block's keys that pass */
    u32 numbers[1];
};
static_assert(sizeof(choose_memory) <= DSA_CHOOSE_SHARED(1), "more than dsa.h counts on");

/* This block's keys [begin, end) of a row. */
struct choose_part {
    const float *logits;
    const u32 *numbers; /* in shared memory; NULL = they do not fit */
    const int *keys; /* in shared memory: key j of the part is key keys[j] of the row; NULL = j */
    int begin, end;
    int rank, blocks;
};

DEVICE void cluster_sync(void)
{
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
}

template <class T> DEVICE T *of_block(T *mine, int rank)
{
    return (T *)__cluster_map_shared_rank(mine, rank);
}

/* Synchronises all blocks of the part. */
DEVICE void choose_sync(const choose_part &part)
{
    if (part.blocks > 1)
        cluster_sync();
    else
        __syncthreads();
}

DEVICE int key_at(const int *keys, int j)
{
    return keys ? keys[j] : j;
}

DEVICE u32 number_at(const choose_part &part, int j)
{
    return part.numbers ? part.numbers[j - part.begin] : order_of(part.logits[j]);
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* Loads numbers into shared memory; *extent covers all visible keys. */
DEVICE void choose_load(const choose_part &part, u32 *numbers, choose_extent *extent)
{
    const int batch = 8; /* loads on their way */
    choose_extent mine = {0, ~0u, 0};
    for (int j0 = part.begin + (int)threadIdx.x; j0 < part.end; j0 += batch * DSA_CHOOSE_THREADS) {
        float logits[batch];
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int j = j0 + i * DSA_CHOOSE_THREADS;
            logits[i] = j < part.end ? part.logits[key_at(part.keys, j)] : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int j = j0 + i * DSA_CHOOSE_THREADS;
            const u32 number = order_of(logits[i]);
            if (part.numbers && j < part.end)
                numbers[j - part.begin] = number;
            if (number) {
                mine.seen++;
                mine.least = min(mine.least, number);
                mine.most = max(mine.most, number);
            }
        }
    }
    mine.seen = __reduce_add_sync(~0u, mine.seen);
    mine.least = __reduce_min_sync(~0u, mine.least);
    mine.most = __reduce_max_sync(~0u, mine.most);
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&extent->seen, mine.seen);
        atomicMin(&extent->least, mine.least);
        atomicMax(&extent->most, mine.most);
    }
}

/* The extent over all blocks, computed by each warp. */
DEVICE choose_extent choose_gather(const choose_part &part, choose_extent *mine)
{
    const int lane = (int)threadIdx.x % 32;
    choose_extent one = {0, ~0u, 0};
    if (lane < part.blocks)
        one = *of_block(mine, lane);
    one.seen = __reduce_add_sync(~0u, one.seen);
    one.least = __reduce_min_sync(~0u, one.least);
    one.most = __reduce_max_sync(~0u, one.most);
    return one;
}

/* ---- Border ---------------------------------------------------------------------------------- */

/* The border: the smallest chosen number is in this bucket of equal steps from `least` on, and has
 * these bits. */
struct choose_border {
    float least, scale; /* 0 = all are in bucket 0 */
    int bucket;
    u32 prefix, known;
    int all; /* 1 = every key is chosen */
};

/* Monotonic in the logit. */
DEVICE int choose_bin(const choose_border &border, float logit)
{
    return int_min((int)((logit - border.least) * border.scale), DSA_BUCKETS - 1);
}

DEVICE int choose_step(const choose_border &border, u32 number)
{
    return border.scale == 0 ? 0 : choose_bin(border, logit_of(number));
}

/* Steps need finite numbers. */
DEVICE choose_border choose_begin(const choose_extent &extent)
{
    choose_border border = {logit_of(extent.least), 0, 0, 0, 0, 0};
    const float scale = (DSA_BUCKETS - 1) / (logit_of(extent.most) - border.least);
    if (scale > 0 && scale < INFINITY && isfinite(border.least))
        border.scale = scale;
    return border;
}

enum { CHOOSE_BELOW, CHOOSE_BORDER, CHOOSE_ABOVE };

DEVICE int choose_side(const choose_border &border, u32 number)
{
    if (number == 0 || border.all)
        return number ? CHOOSE_ABOVE : CHOOSE_BELOW;
    const int step = choose_step(border, number);
    const u32 bits = number & border.known;
    if (step != border.bucket)
        return step > border.bucket ? CHOOSE_ABOVE : CHOOSE_BELOW;
    return bits == border.prefix  ? CHOOSE_BORDER
           : bits > border.prefix ? CHOOSE_ABOVE
                                  : CHOOSE_BELOW;
}

/* ---- Buckets --------------------------------------------------------------------------------- */

/* Levels of buckets: steps, then bits. */
#define CHOOSE_LEVELS 4

DEVICE int choose_shift(int level)
{
    return level == 1 ? 21 : level == 2 ? 10 : 0;
}

DEVICE u32 choose_mask(int level)
{
    return level < 3 ? 0x7ff : 0x3ff;
}

DEVICE void choose_fill(const choose_part &part, const choose_border &border, int level,
                        int *buckets)
{
    for (int j = part.begin + (int)threadIdx.x; j < part.end; j += DSA_CHOOSE_THREADS) {
        const u32 number = number_at(part, j);
        if (level == 0 && number)
            atomicAdd(&buckets[choose_step(border, number)], 1);
        else if (level > 0 && choose_side(border, number) == CHOOSE_BORDER)
            atomicAdd(&buckets[number >> choose_shift(level) & choose_mask(level)], 1);
    }
}

/* The sum over the threads before this one. */
DEVICE int choose_scan(int mine, int *sums)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int sum = mine;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    sum += (int)__reduce_add_sync(~0u, lane < warp ? sums[lane] : 0);
    return sum - mine;
}

/* Adds up this block's slice of all blocks' buckets, and sends the number of keys in it to all
 * blocks. */
DEVICE void choose_add(choose_memory *m, const choose_part &part)
{
    const int width = DSA_BUCKETS / part.blocks, thread = (int)threadIdx.x;
    int mine = 0;
    if (thread < part.blocks)
        m->slices[thread] = 0;
    choose_sync(part);
    for (int i = thread; i < width; i += DSA_CHOOSE_THREADS) {
        int sum = 0;
        for (int rank = 0; rank < part.blocks; rank++)
            sum += of_block(m->buckets, rank)[part.rank * width + i];
        m->totals[i] = sum;
        mine += sum;
    }
    mine = __reduce_add_sync(~0u, mine);
    if (thread % 32 < part.blocks && mine)
        atomicAdd(of_block(&m->slices[part.rank], thread % 32), mine);
    choose_sync(part);
}

/* Finds the bucket of the smallest of the largest `wanted` keys: all blocks read the slice that has
 * it. */
DEVICE void choose_bucket(choose_memory *m, const choose_part &part, int wanted)
{
    const int width = DSA_BUCKETS / part.blocks;
    int slice = part.blocks - 1, above = 0, counts[CHOOSE_BINS], count = 0;
    while (slice > 0 && above + m->slices[slice] < wanted)
        above += m->slices[slice--];
    const int *totals = of_block(m->totals, slice);
    const int first = CHOOSE_BINS * (int)threadIdx.x; /* from the top */
#pragma unroll
    for (int i = 0; i < CHOOSE_BINS; i++) {
        counts[i] = first + i < width ? totals[width - 1 - first - i] : 0;
        count += counts[i];
    }
    above += choose_scan(count, m->sums);
#pragma unroll
    for (int i = 0; i < CHOOSE_BINS; i++) {
        if (above < wanted && wanted <= above + counts[i])
            m->found = choose_found{slice * width + width - 1 - first - i, above, counts[i]};
        above += counts[i];
    }
    __syncthreads();
}

/* Finds the border of the largest `wanted` keys; the result counts the keys above it over all
 * levels. */
DEVICE choose_found choose_divide(choose_memory *m, const choose_part &part, int wanted,
                                  choose_border *border)
{
    choose_found all = {0, 0, 0};
    for (int level = 0; level < CHOOSE_LEVELS; level++) {
        if (level > 0) {
            choose_sync(part); /* all blocks have read the previous buckets */
            for (int i = (int)threadIdx.x; i < DSA_BUCKETS; i += DSA_CHOOSE_THREADS)
                m->buckets[i] = 0;
            __syncthreads();
        }
        choose_fill(part, *border, level, m->buckets);
        choose_add(m, part);
        choose_bucket(m, part, wanted - all.above);
        const choose_found found = m->found;
        all.above += found.above;
        all.count = found.count;
        if (level == 0) {
            border->bucket = found.bucket;
        } else {
            border->prefix |= (u32)found.bucket << choose_shift(level);
            border->known |= choose_mask(level) << choose_shift(level);
        }
        if (all.count <= DSA_CANDIDATES)
            break;
    }
    return all;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

struct choose_list {
    const int *table; /* of the sequence: slots, or pages of `page_size` keys */
    int slots;        /* 1 = slots */
    u32 page_size;
    int first;       /* the sequence's key that is key 0 of the row */
    const int *keys; /* choose_part */
    int *list, *indices;
};

/* A key's table entry, and the offset of its slot in it. */
struct choose_place {
    u32 index, offset;
};

/* The place of key j of the row. */
DEVICE choose_place choose_find_place(const choose_list &to, int j)
{
    const u32 key = (u32)(to.first + j), page = to.slots ? key : key / to.page_size;
    return {page, to.slots ? 0 : key - page * to.page_size};
}

DEVICE int choose_slot(const choose_list &to, int entry, u32 offset)
{
    return to.slots ? entry : (int)((u32)entry * to.page_size + offset);
}

DEVICE void choose_put(const choose_list &to, int at, int slot)
{
    to.list[at] = slot;
    if (to.indices)
        to.indices[at] = slot;
}

DEVICE void choose_put_key(const choose_list &to, int at, int j)
{
    const choose_place place = choose_find_place(to, key_at(to.keys, j));
    choose_put(to, at, choose_slot(to, to.table[place.index], place.offset));
}

/* The destinations of keys. Keys above the border: places from 0 on. Keys on the border: the first
 * block's candidates or, if all are equal, places from `above` on for the first `ties`. */
struct choose_places {
    int above, ties;
    int ranks; /* 1 = candidates */
};

/* A warp's keys [begin, end). */
struct choose_range {
    int begin, end;
};

DEVICE choose_range choose_split(const choose_part &part)
{
    const int warp = (int)threadIdx.x / 32;
    const int each = ((part.end - part.begin + CHOOSE_WARPS - 1) / CHOOSE_WARPS + 31) / 32 * 32;
    choose_range range = {int_min(part.begin + warp * each, part.end), 0};
    range.end = int_min(range.begin + each, part.end);
    return range;
}

/* Counts a warp's keys above the border, and on it. Candidates are appended in `first`. Keys above
 * overwrite the warp's first numbers in `keys`, if it is given. */
DEVICE int2 choose_count(const choose_part &part, const choose_border &border,
                         const choose_range &range, int ranks, choose_memory *first, u32 *keys)
{
    const int lane = (int)threadIdx.x % 32;
    const u32 before = (1u << lane) - 1;
    int2 counts = {0, 0};
    for (int j = range.begin + lane; j - lane < range.end; j += 32) {
        const u32 number = j < range.end ? number_at(part, j) : 0;
        const int side = choose_side(border, number);
        const u32 mores = __ballot_sync(~0u, side == CHOOSE_ABOVE);
        __syncwarp(); /* all lanes have read their number */
        if (keys && side == CHOOSE_ABOVE)
            keys[range.begin - part.begin + counts.x + __popc(mores & before)] = (u32)j;
        if (side == CHOOSE_BORDER && ranks) {
            const int at = atomicAdd(&first->num_candidates, 1);
            first->candidates[at] = make_uint2(number, (u32)j);
        }
        counts.x += __popc(mores);
        counts.y += __popc(__ballot_sync(~0u, side == CHOOSE_BORDER));
    }
    return counts;
}

/* The counts of earlier warps and blocks. */
DEVICE int2 choose_before(choose_memory *m, const choose_part &part, int2 counts)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (lane == 0) {
        m->larger[warp] = counts.x;
        m->equal[warp] = counts.y;
    }
    __syncthreads();
    const int2 mine = {lane < CHOOSE_WARPS ? m->larger[lane] : 0,
                       lane < CHOOSE_WARPS ? m->equal[lane] : 0};
    const int2 all = {__reduce_add_sync(~0u, mine.x), __reduce_add_sync(~0u, mine.y)};
    int2 before = {lane < warp ? mine.x : 0, lane < warp ? mine.y : 0};
    if (warp == 0 && lane < part.blocks)
        *of_block(&m->counts[part.rank], lane) = all;
    choose_sync(part);
    if (lane < part.rank) {
        before.x += m->counts[lane].x;
        before.y += m->counts[lane].y;
    }
    before.x = __reduce_add_sync(~0u, before.x);
    before.y = __reduce_add_sync(~0u, before.y);
    return before;
}

/* Lists the keys above, which are in the places of the warp's first numbers. */
DEVICE void choose_emit_keys(const choose_list &list, const u32 *keys, int count, int at)
{
    for (int i = (int)threadIdx.x % 32; i < count; i += 32) {
        choose_put_key(list, at + i, (int)keys[i]);
    }
}

/* The same if numbers are not in shared memory, or border keys are equal. */
DEVICE void choose_emit(const choose_part &part, const choose_list &list,
                        const choose_border &border, const choose_range &range,
                        const choose_places &to, int2 at)
{
    const int lane = (int)threadIdx.x % 32;
    const u32 before = (1u << lane) - 1;
    for (int j = range.begin + lane; j - lane < range.end; j += 32) {
        const int side = choose_side(border, j < range.end ? number_at(part, j) : 0);
        const u32 mores = __ballot_sync(~0u, side == CHOOSE_ABOVE);
        const u32 sames = __ballot_sync(~0u, side == CHOOSE_BORDER);
        const int rank = at.y + __popc(sames & before);
        if (side == CHOOSE_ABOVE)
            choose_put_key(list, at.x + __popc(mores & before), j);
        else if (side == CHOOSE_BORDER && !to.ranks && rank < to.ties)
            choose_put_key(list, to.above + rank, j);
        at.x += __popc(mores);
        at.y += __popc(sames);
    }
}

/* Lists all keys except candidates. */
DEVICE void choose_write(choose_memory *m, const choose_part &part, const choose_list &list,
                         const choose_border &border, const choose_places &to)
{
    const choose_range range = choose_split(part);
    u32 *keys = part.numbers && to.ranks ? m->numbers : 0;
    const int2 counts = choose_count(part, border, range, to.ranks, of_block(m, 0), keys);
    const int2 before = choose_before(m, part, counts);
    if (keys)
        choose_emit_keys(list, keys + (range.begin - part.begin), counts.x, before.x);
    else
        choose_emit(part, list, border, range, to, before);
}

/* `rank` plus the number of candidates before `mine`: larger ones, and equal ones with smaller
 * keys. */
DEVICE int choose_rank_of(const choose_memory *m, uint2 mine, int count, int rank)
{
    for (int n = 0; n < count; n++) {
        const uint2 other = m->candidates[n];
        rank += other.x > mine.x || (other.x == mine.x && other.y < mine.y);
    }
    return rank;
}

/* Lists the largest `wanted` candidates from `at` on; among equal ones those with the smallest
 * keys. */
DEVICE void choose_rank(const choose_memory *m, const choose_list &list, int count, int at,
                        int wanted)
{
    for (int i = (int)threadIdx.x; i < count; i += DSA_CHOOSE_THREADS) {
        const uint2 mine = m->candidates[i];
        const int rank = choose_rank_of(m, mine, count, 0);
        if (rank < wanted)
            choose_put_key(list, at + rank, (int)mine.y);
    }
}

/* ---- A row ------------------------------------------------------------------------------------- */

DEVICE void choose_clear(choose_memory *m)
{
    if (threadIdx.x == 0) {
        m->extent = choose_extent{0, ~0u, 0};
        m->found = choose_found{0, 0, 0};
        m->num_candidates = 0;
        m->largest = 0;
    }
    for (int i = (int)threadIdx.x; i < DSA_BUCKETS; i += DSA_CHOOSE_THREADS)
        m->buckets[i] = 0;
    __syncthreads();
}

/* Chooses the best `most` keys of a part, by all of its blocks; returns their number. The part must
 * have a visible key. */
DEVICE int choose_among(choose_memory *m, const choose_part &part, const choose_list &list,
                        int most)
{
    choose_clear(m);
    choose_load(part, m->numbers, &m->extent);
    choose_sync(part);
    const choose_extent extent = choose_gather(part, &m->extent);
    const int wanted = int_min(extent.seen, most);
    choose_border border = choose_begin(extent);
    choose_found found = {0, wanted, 0};
    border.all = wanted == extent.seen;
    if (!border.all)
        found = choose_divide(m, part, wanted, &border);
    const int ties = wanted - found.above;
    const choose_places to = {found.above, ties, found.count <= DSA_CANDIDATES};
    choose_write(m, part, list, border, to);
    if (to.ranks && part.rank == 0) /* complete since the blocks exchanged counts */
        choose_rank(m, list, found.count, found.above, ties);
    return wanted;
}

#endif /* DSA_LIKE_BUCKETS_CUH */
