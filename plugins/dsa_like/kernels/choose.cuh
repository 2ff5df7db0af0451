/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.cuh: the largest logits of a row, by a block.
 *
 * Logits become numbers of the same order, which are looked at 11 bits at a time from the top: a
 * histogram of those that have all bits so far says which 11 come next. That leaves the number of the
 * least one chosen. Of equal ones the keys that come first are taken. Larger ones come first in the
 * list, equal ones after them, both in the order of keys: the list is the same whenever the logits are.
 */
#ifndef DSA_LIKE_CHOOSE_CUH
#define DSA_LIKE_CHOOSE_CUH

#include "plugins/dsa_like/kernels/rows.cuh"

#define CHOOSE_WARPS (DSA_CHOOSE_THREADS / 32)

/* Never 0, which is no key. */
DEVICE u32 order_of(float logit)
{
    const u32 bits = __float_as_uint(logit + 0.0f); /* no negative zero */
    const u32 number = bits >> 31 ? ~bits : bits | 0x80000000u;
    return logit == -INFINITY ? 0 : number ? number : 1;
}

/* A row: its numbers in shared memory, or logits in memory. */
struct choose_row {
    const float *logits;
    const u32 *numbers; /* NULL = there is no room */
    int lo, hi;
};

DEVICE u32 number_at(const choose_row &row, int j)
{
    return row.numbers ? row.numbers[j - row.lo] : order_of(row.logits[j]);
}

/* Fill the cache; how many keys are seen. */
DEVICE int choose_load(const choose_row &row, u32 *numbers, int *sums)
{
    int seen = 0, all;
    for (int j = row.lo + (int)threadIdx.x; j < row.hi; j += DSA_CHOOSE_THREADS) {
        const u32 number = order_of(row.logits[j]);
        if (row.numbers)
            numbers[j - row.lo] = number;
        seen += number != 0;
    }
    dsa_scan(seen, &all, sums);
    return all;
}

/* The bucket of the largest `wanted` that has the least of them; *above gets how many are larger. */
DEVICE int choose_bucket(const int *buckets, int wanted, int *above, int *sums, int *found)
{
    const int top = DSA_BUCKETS - 1 - 2 * (int)threadIdx.x;
    const int high = buckets[top], low = buckets[top - 1];
    int all;
    const int before = dsa_scan(high + low, &all, sums);
    if (before < wanted && wanted <= before + high) {
        found[0] = top;
        found[1] = before;
    } else if (before + high < wanted && wanted <= before + high + low) {
        found[0] = top - 1;
        found[1] = before + high;
    }
    __syncthreads();
    *above = found[1];
    return found[0];
}

/* The least of the largest `wanted` numbers; *above gets how many are larger. */
DEVICE u32 choose_threshold(const choose_row &row, int wanted, int *above, int *buckets, int *sums,
                            int *found)
{
    u32 prefix = 0, known = 0;
    *above = 0;
    for (int digit = 0; digit < 3; digit++) {
        const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
        const u32 mask = digit < 2 ? 0x7ff : 0x3ff;
        int larger;
        for (int i = (int)threadIdx.x; i < DSA_BUCKETS; i += DSA_CHOOSE_THREADS)
            buckets[i] = 0;
        __syncthreads();
        for (int j = row.lo + (int)threadIdx.x; j < row.hi; j += DSA_CHOOSE_THREADS) {
            const u32 number = number_at(row, j);
            if (!((number ^ prefix) & known))
                atomicAdd(&buckets[number >> shift & mask], 1);
        }
        __syncthreads();
        const int bucket = choose_bucket(buckets, wanted - *above, &larger, sums, found);
        *above += larger;
        prefix |= (u32)bucket << shift;
        known |= mask << shift;
        __syncthreads();
    }
    return prefix;
}

/* How many of a warp's keys [j0, j1) are larger than the threshold, and how many are equal. */
DEVICE void choose_count(const choose_row &row, u32 threshold, int j0, int j1, int *larger,
                         int *equal)
{
    const int lane = (int)threadIdx.x % 32;
    int more = 0, same = 0;
    for (int j = j0 + lane; j < j1; j += 32) {
        const u32 number = number_at(row, j);
        more += number > threshold;
        same += number == threshold;
    }
    *larger = __reduce_add_sync(~0u, more);
    *equal = __reduce_add_sync(~0u, same);
}

struct choose_list {
    const dsa_choose_call *c;
    const index_sequence *q;
    int *list, *indices;
};

DEVICE void choose_put(const choose_list &to, int at, int j)
{
    const dsa_batch *b = &to.c->planned;
    const int entry = *index_entry(&b->batch, to.q, b->page_size, j);
    const int slot =
        b->batch.req_to_token ? entry : entry * b->page_size + (int)((u32)j % (u32)b->page_size);
    to.list[at] = slot;
    if (to.indices)
        to.indices[at] = slot;
}

/* Larger ones to places from 0 on, the first `ties` equal ones to places after them. */
DEVICE void choose_emit(const choose_row &row, const choose_list &to, u32 threshold, int above,
                        int ties, int *larger, int *equal)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int each = ((row.hi - row.lo + CHOOSE_WARPS - 1) / CHOOSE_WARPS + 31) / 32 * 32;
    const int j0 = int_min(row.lo + warp * each, row.hi), j1 = int_min(j0 + each, row.hi);
    const u32 before = (1u << lane) - 1;
    int more, same;
    choose_count(row, threshold, j0, j1, &more, &same);
    if (lane == 0) {
        larger[warp] = more;
        equal[warp] = same;
    }
    __syncthreads();
    more = __reduce_add_sync(~0u, lane < warp ? larger[lane] : 0);
    same = __reduce_add_sync(~0u, lane < warp ? equal[lane] : 0);
    for (int j = j0; j < j1; j += 32) {
        const u32 number = j + lane < j1 ? number_at(row, j + lane) : 0;
        const int is_more = number > threshold, is_same = number != 0 && number == threshold;
        const u32 mores = __ballot_sync(~0u, is_more), sames = __ballot_sync(~0u, is_same);
        const int rank = same + __popc(sames & before);
        if (is_more)
            choose_put(to, more + __popc(mores & before), j + lane);
        else if (is_same && rank < ties)
            choose_put(to, above + rank, j + lane);
        more += __popc(mores);
        same += __popc(sames);
    }
}

extern "C" __global__ void __launch_bounds__(DSA_CHOOSE_THREADS)
    dsa_choose(const __grid_constant__ dsa_choose_call c)
{
    extern __shared__ __align__(16) int choose_memory[];
    int *buckets = choose_memory, *sums = buckets + DSA_BUCKETS, *larger = sums + 32;
    int *equal = larger + 32, *found = equal + 32;
    u32 *numbers = (u32 *)(found + 32);
    grid_launch_dependents();
    grid_wait();
    const dsa_batch *b = &c.planned;
    const int i = c.first + (int)blockIdx.x;
    if (i >= c.end || i >= index_num_tokens(&b->batch))
        return;
    const mask_rule rule = dsa_rule(b);
    const i64 absolute = dsa_first_row(b) + i;
    index_sequence q;
    choose_row row = {c.logits + (c.given ? absolute : i - c.first) * c.logits_row, numbers, 0, 0};
    int query = 0, wanted = 0;
    if (b->most[i] > 0 && dsa_find_row(b, i, &q, &query) >= 0)
        mask_outline(&rule, &b->batch, &q, query, query, &row.lo, &row.hi);
    if (row.hi - row.lo > c.cached)
        row.numbers = 0;
    const choose_list to = {&c, &q, c.lists + (i64)i * c.list_row,
                            c.indices ? c.indices + absolute * c.indices_row : 0};
    if (row.lo < row.hi) {
        const int seen = choose_load(row, numbers, sums);
        int above = seen;
        u32 threshold = 0;
        wanted = int_min(seen, b->most[i]);
        if (wanted < seen)
            threshold = choose_threshold(row, wanted, &above, buckets, sums, found);
        choose_emit(row, to, threshold, above, wanted - int_min(above, wanted), larger, equal);
    }
    for (int n = wanted + (int)threadIdx.x; to.indices && n < c.top_k; n += DSA_CHOOSE_THREADS)
        to.indices[n] = -1;
    if (threadIdx.x == 0) {
        b->lens[i] = wanted;
        if (c.counts)
            c.counts[absolute * c.counts_row] = wanted;
    }
}

#endif /* DSA_LIKE_CHOOSE_CUH */
