/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.cuh: the kernel that chooses keys, one cluster of blocks per row.
 */
#ifndef DSA_LIKE_CHOOSE_CUH
#define DSA_LIKE_CHOOSE_CUH

#include "plugins/dsa_like/kernels/sieve.cuh"

extern "C" __global__ void __launch_bounds__(DSA_CHOOSE_THREADS, DSA_CHOOSE_BLOCKS)
    dsa_choose(const __grid_constant__ dsa_choose_call c)
{
    extern __shared__ __align__(16) unsigned char choose_bytes[];
    choose_memory *m = (choose_memory *)choose_bytes;
    choose_part part;
    part.rank = (int)__clusterRelativeBlockRank();
    part.blocks = (int)__clusterSizeInBlocks();
    pdl_launch_dependents();
    pdl_wait();
    const dsa_batch *b = &c.planned;
    const int i = c.first + (int)blockIdx.x / part.blocks;
    if (i >= c.end || i >= index_num_tokens(&b->batch))
        return;
    const dsa_row row = b->rows[i];
    const i64 absolute = dsa_first_row(b) + i;
    const int most = b->most[i], lo = row.lo, keys = most > 0 ? row.hi - lo : 0;
    int wanted = 0;
    const int each = DSA_CHOOSE_PART(keys, part.blocks);
    part.logits = c.logits + (c.given ? absolute : i - c.first) * c.logits_row + lo;
    part.numbers = each <= c.cached ? m->numbers : 0;
    part.keys = 0;
    part.begin = int_min(part.rank * each, keys);
    part.end = int_min(part.begin + each, keys);
    index_sequence q = {0};
    if (keys > 0)
        index_find_sequence(&b->batch, 0, row.seq, &q);
    choose_list list = {q.table,
                        b->batch.req_to_token != 0,
                        (u32)b->page_size,
                        lo,
                        0,
                        c.lists + (i64)i * c.list_row,
                        c.indices ? c.indices + absolute * c.indices_row : 0};
    int steps = CHOOSE_MISLED;
    if (choose_may_sieve(keys, most))
        steps = choose_by_sieve(m, &part, &list, keys, most);
    if (steps == CHOOSE_DONE)
        wanted = most;
    else if (keys > 0)
        wanted = choose_among(m, part, list, most);
    if (part.rank > 0)
        return;
    for (int n = wanted + (int)threadIdx.x; list.indices && n < c.top_k; n += DSA_CHOOSE_THREADS)
        list.indices[n] = -1;
    if (threadIdx.x == 0) {
        b->lens[i] = wanted;
        if (c.counts)
            c.counts[absolute * c.counts_row] = wanted;
    }
}

#endif /* DSA_LIKE_CHOOSE_CUH */
