/* SPDX-License-Identifier: Apache-2.0
 *
 * sieve.cuh: a filter for long rows, so that most keys are read only once. A sample estimates the
 * logit above which 1.5 times as many keys lie as are needed; each block samples for itself, with
 * the same result. Keys from this logit on are set in a bit mask in the first block, which chooses
 * among them. If the estimate was wrong (fewer keys pass than needed, or more than fit), the whole
 * row is searched instead. This decision depends on the logits alone.
 */
#ifndef DSA_LIKE_SIEVE_CUH
#define DSA_LIKE_SIEVE_CUH

#include "plugins/dsa_like/kernels/buckets.cuh"

struct choose_sieve {
    int step;  /* of the sample */
    int count; /* of the sample */
    int rank;  /* rank in the sample, from the largest, of the least logit that passes */
};

/* Typically some 128 sampled keys are among the chosen ones. 1.5 times as many are six standard
 * deviations more. */
DEVICE choose_sieve choose_sample(int keys, int wanted)
{
    choose_sieve sieve;
    sieve.step = int_max(wanted / 128, (keys + 2 * DSA_PASSED - 1) / (2 * DSA_PASSED));
    sieve.count = keys / sieve.step;
    sieve.rank = wanted / sieve.step * 3 / 2;
    return sieve;
}

DEVICE bool choose_may_sieve(int keys, int most)
{
    return most >= DSA_SIEVE_LEAST / 4 && most <= DSA_PASSED / 2 && keys >= 4 * most &&
           keys <= DSA_SIEVE_KEYS;
}

/* Finds the bucket with the smallest of the largest `wanted` keys; none if there are fewer keys. */
DEVICE void choose_find(choose_memory *m, int wanted)
{
    const int first = DSA_BUCKETS - CHOOSE_BINS * ((int)threadIdx.x + 1);
    int counts[CHOOSE_BINS], count = 0;
#pragma unroll
    for (int i = 0; i < CHOOSE_BINS; i++) {
        counts[i] = m->buckets[first + i];
        count += counts[i];
    }
    int above = choose_scan(count, m->sums); /* of earlier threads, whose buckets are higher */
#pragma unroll
    for (int i = CHOOSE_BINS - 1; i >= 0; i--) {
        if (above < wanted && wanted <= above + counts[i])
            m->found = choose_found{first + i, above, counts[i]};
        above += counts[i];
    }
    __syncthreads();
}

/* The least logit that passes; INFINITY if logits have no finite steps. */
DEVICE float choose_least(choose_memory *m, const float *logits, const choose_sieve &sieve)
{
    const int thread = (int)threadIdx.x, batch = 4; /* loads in flight */
    float *sample = (float *)m->numbers;
    float least = INFINITY, most = -INFINITY;
    for (int n0 = thread; n0 < sieve.count; n0 += batch * DSA_CHOOSE_THREADS) {
        float x[batch];
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const u32 n = (u32)(n0 + i * DSA_CHOOSE_THREADS), any = n * 0x9e3779b1u;
            x[i] = (int)n < sieve.count
                       ? logits[n * (u32)sieve.step + __umulhi(any, (u32)sieve.step)]
                       : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
            const int n = n0 + i * DSA_CHOOSE_THREADS;
            if (n < sieve.count)
                sample[n] = x[i];
            if (isfinite(x[i])) {
                least = fminf(least, x[i]);
                most = fmaxf(most, x[i]);
            }
        }
    }
    const u32 low = __reduce_min_sync(~0u, least < INFINITY ? order_of(least) : ~0u);
    const u32 high = __reduce_max_sync(~0u, order_of(most));
    if (thread % 32 == 0) {
        atomicMin(&m->extent.least, low);
        atomicMax(&m->extent.most, high);
    }
    __syncthreads();
    const choose_border border = choose_begin(m->extent);
    if (border.scale == 0)
        return INFINITY;
    for (int n = thread; n < sieve.count; n += DSA_CHOOSE_THREADS)
        if (isfinite(sample[n]))
            atomicAdd(&m->buckets[choose_bin(border, sample[n])], 1);
    __syncthreads();
    choose_find(m, sieve.rank);
    return border.least + (float)m->found.bucket / border.scale;
}

/* Writes this block's whole words of the first block's mask of passing keys. */
DEVICE void choose_pass(choose_memory *m, const choose_part &part, float least, u32 *mask)
{
    const int words = 16; /* of a warp at a time */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int count = 0;
    float most = -INFINITY;
    for (int j0 = part.begin + warp * words * 32; j0 < part.end; j0 += CHOOSE_WARPS * words * 32) {
        float x[words];
        u32 mine = 0;
#pragma unroll
        for (int i = 0; i < words; i++) {
            const int j = j0 + i * 32 + lane;
            x[i] = j < part.end ? part.logits[j] : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < words; i++) {
            const u32 word = __ballot_sync(~0u, x[i] >= least);
            mine = lane == i ? word : mine;
            most = fmaxf(x[i], most);
        }
        if (lane < words && j0 + lane * 32 < part.end)
            mask[j0 / 32 + lane] = mine;
        count += __popc(mine);
    }
    count = __reduce_add_sync(~0u, count);
    const u32 largest = __reduce_max_sync(~0u, order_of(most));
    if (lane == 0 && count) {
        atomicAdd(&m->num_candidates, count);
        atomicMax(&m->largest, largest);
    }
}

/* Lists the keys of a mask of `words` words, in their order. */
DEVICE void choose_unpack(choose_memory *m, const u32 *mask, int words, int *keys)
{
    const int each = (words + DSA_CHOOSE_THREADS - 1) / DSA_CHOOSE_THREADS;
    const int first = int_min(each * (int)threadIdx.x, words), end = int_min(first + each, words);
    int count = 0;
    for (int w = first; w < end; w++)
        count += __popc(mask[w]);
    int at = choose_scan(count, m->sums);
    for (int w = first; w < end; w++)
        for (u32 rest = mask[w]; rest; rest &= rest - 1)
            keys[at++] = w * 32 + __ffs((int)rest) - 1;
    __syncthreads();
}

/* Chooses the best `wanted` of the `count` keys that passed; each thread has some in registers.
 * Returns false if too many are in the border bucket. The list is in the keys' order. */
DEVICE bool choose_few(choose_memory *m, const choose_part &part, const choose_list &list,
                       float least, u32 largest, int count, int wanted)
{
    const int each = DSA_PASSED / DSA_CHOOSE_THREADS, first = each * (int)threadIdx.x;
    int keys[each];
    const choose_border border = choose_begin(choose_extent{count, order_of(least), largest});
    choose_place places[each];
    int entries[each];
    float x[each];
    u32 chosen = 0;
    if (border.scale == 0)
        return false;
#pragma unroll
    for (int e = 0; e < each; e++) /* 0 after the last key */
        keys[e] = first + e < count ? part.keys[first + e] : 0;
#pragma unroll
    for (int e = 0; e < each; e++)
        x[e] = part.logits[keys[e]];
#pragma unroll
    for (int e = 0; e < each; e++)
        if (first + e < count)
            atomicAdd(&m->buckets[choose_bin(border, x[e])], 1);
#pragma unroll
    for (int e = 0; e < each; e++) { /* of all passing keys, long before they are needed */
        places[e] = choose_find_place(list, keys[e]);
        entries[e] = list.table[places[e].index];
    }
    __syncthreads();
    choose_find(m, wanted);
    const choose_found found = m->found;
    if (found.count > DSA_CANDIDATES) {
        __syncthreads(); /* all threads have read m->found */
        return false;
    }
#pragma unroll
    for (int e = 0; e < each; e++) {
        const int bin = first + e < count ? choose_bin(border, x[e]) : -1;
        chosen |= (u32)(bin > found.bucket) << e;
        if (bin == found.bucket) {
            const int at = atomicAdd(&m->num_candidates, 1);
            m->candidates[at] = make_uint2(order_of(x[e]), (u32)(first + e));
        }
    }
    __syncthreads();
    for (int i = 0; i < found.count; i++) {
        const uint2 mine = m->candidates[i];
        if (mine.y / each != threadIdx.x)
            continue;
        const int rank = choose_rank_of(m, mine, found.count, found.above);
        chosen |= (u32)(rank < wanted) << mine.y % each;
    }
    int at = choose_scan(__popc(chosen), m->sums);
#pragma unroll
    for (int e = 0; e < each; e++)
        if (chosen >> e & 1)
            choose_put(list, at++, choose_slot(list, entries[e], places[e].offset));
    return true;
}

enum { CHOOSE_MISLED, CHOOSE_PASSED, CHOOSE_DONE };

/* Chooses from a long row of `keys` keys, or narrows the part to the keys that pass, in the first
 * block. */
DEVICE int choose_by_sieve(choose_memory *m, choose_part *part, choose_list *list, int keys,
                           int most)
{
    u32 *mask = m->numbers + 2 * DSA_PASSED;
    int *few = (int *)m->numbers + DSA_PASSED;
    choose_clear(m);
    const float least = choose_least(m, part->logits, choose_sample(keys, most));
    for (int i = 0; i < CHOOSE_BINS; i++)
        m->buckets[i * DSA_CHOOSE_THREADS + threadIdx.x] = 0; /* for the keys that pass */
    choose_sync(*part);                                       /* all blocks have started */
    choose_pass(m, *part, least, of_block(mask, 0));
    __syncthreads();
    if ((int)threadIdx.x < part->blocks)
        of_block(m, (int)threadIdx.x)->passed[part->rank] =
            make_int2(m->num_candidates, (int)m->largest);
    choose_sync(*part);
    int passed = 0;
    u32 largest = 0;
    for (int rank = 0; rank < part->blocks; rank++) {
        passed += m->passed[rank].x;
        largest = max(largest, (u32)m->passed[rank].y);
    }
    if (passed < most || passed > DSA_PASSED)
        return CHOOSE_MISLED;
    if (part->rank > 0)
        return CHOOSE_DONE;
    if (threadIdx.x == 0)
        m->num_candidates = 0;
    choose_unpack(m, mask, (keys + 31) / 32, few);
    part->numbers = m->numbers;
    part->keys = list->keys = few;
    part->begin = 0;
    part->end = passed;
    part->blocks = 1;
    return choose_few(m, *part, *list, least, largest, passed, most) ? CHOOSE_DONE : CHOOSE_PASSED;
}

#endif /* DSA_LIKE_SIEVE_CUH */
