/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cuh: the plan of a batch, saves of new latents and labels, and an engine's lists.
 */
#ifndef DSA_LIKE_ROWS_CUH
#define DSA_LIKE_ROWS_CUH

#include "plugins/dsa_like/kernels/dsa.h"

#include "plugins/common/cuda/mask.cuh"
#include "plugins/common/cuda/save_packed.cuh"
#include "plugins/common/cuda/work.cuh"

PORTABLE mask_rule dsa_rule(const dsa_batch *b)
{
    mask_rule rule = {b->window_left, b->batch.window_right, b->chunk, 0, 0};
    return rule;
}

PORTABLE int dsa_first_row(const dsa_batch *b)
{
    return b->batch.q_indptr ? index_int(b->batch.q_indptr, 0) : 0;
}

/* The sequence of row i of the lists, and its query; -1 = padding. */
PORTABLE int dsa_find_row(const dsa_batch *b, int i, index_sequence *q, int *query)
{
    const int row = dsa_first_row(b) + i;
    const int s = work_find_row(b->batch.q_indptr, index_num_seqs(&b->batch), row);
    if (s < 0)
        return -1;
    index_find_sequence(&b->batch, 0, s, q);
    *query = row - q->first_row;
    return s;
}

/* ---- Plan ------------------------------------------------------------------------------------ */

/* The number of queries of the group that starts at row i; 0 = none. */
PORTABLE int dsa_group_count(const dsa_batch *b, const index_sequence *q, int i, int query)
{
    if (query % b->queries != 0 && i % b->wave != 0)
        return 0;
    const int rest = int_min(q->q_len - query, b->wave - i % b->wave);
    return int_min(b->queries - query % b->queries, rest);
}

/* Plans row i: the number of keys that it may choose. Returns the size of the group that starts
 * there. */
PORTABLE int dsa_plan_row(const dsa_batch *b, int i, dsa_group *group)
{
    const mask_rule rule = dsa_rule(b);
    index_sequence q;
    int query = 0, lo = 0, hi = 0, count = 0;
    const int s = dsa_find_row(b, i, &q, &query);
    if (s >= 0 && s < b->num_real_seqs) {
        mask_outline(&rule, &b->batch, &q, query, query, &lo, &hi);
        count = dsa_group_count(b, &q, i, query);
    }
    const dsa_row row = {s, query, lo, hi};
    *PORTABLE_AT(b->rows + i) = row;
    *PORTABLE_AT(b->most + i) = *PORTABLE_AT(b->lens + i) = int_min(hi - lo, b->max_count);
    *PORTABLE_AT(b->indptr + i) = dsa_first_row(b) + i;
    *PORTABLE_AT(b->requests + i) = i;
    if (count > 0) {
        mask_outline(&rule, &b->batch, &q, query, query + count - 1, &lo, &hi);
        group->seq = s;
        group->query = query;
        group->count = count;
        group->row = i;
        group->tiles = (hi + DSA_TILE - 1) / DSA_TILE;
        group->lo = lo;
        group->hi = hi;
    }
    return count;
}

#ifdef __CUDACC__

/* The sum over the block's earlier threads; *total = over all threads. */
static __device__ int dsa_scan(int mine, int *total, int *sums)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    const int warps = (int)blockDim.x / 32;
    int sum = mine, before = 0, all = 0;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warps; w++) {
        before += w < warp ? sums[w] : 0;
        all += sums[w];
    }
    *total = all;
    return before + sum - mine;
}

extern "C" __global__ void __launch_bounds__(DSA_PLAN_THREADS)
    dsa_plan(const __grid_constant__ dsa_batch b)
{
    __shared__ int sums[DSA_PLAN_THREADS / 32];
    const int rows = index_num_tokens(&b.batch);
    int groups = 0, tiles = 0;
    for (int base = 0; base < rows; base += DSA_PLAN_THREADS) {
        const int i = base + (int)threadIdx.x;
        int num_groups, num_tiles;
        dsa_group group = {0, 0, 0, 0, 0, 0, 0, 0};
        const int begins = i < rows && dsa_plan_row(&b, i, &group) > 0;
        const int at = groups + dsa_scan(begins, &num_groups, sums);
        group.begin = tiles + dsa_scan(group.tiles, &num_tiles, sums);
        if (begins)
            b.groups[at] = group;
        groups += num_groups;
        tiles += num_tiles;
    }
    if (threadIdx.x == 0) {
        b.indptr[rows] = dsa_first_row(&b) + rows;
        *b.header = dsa_header{groups, tiles, dsa_first_row(&b), b.given_count};
    }
}

/* ---- New latents and labels ------------------------------------------------------------------ */

/* Saves a label, by a warp, four elements per lane. */
static __device__ void save_label(const dsa_save_call &c, i64 row, i64 slot, int lane)
{
    const i64 page = slot / c.page_size, offset = slot % c.page_size;
    const any16 *from = (const any16 *)((const char *)c.label + row * c.label_row) + lane * 4;
    char *to = c.label_cache + page * c.label_page + offset * c.label_token;
    if (!c.label_codes) {
        for (int e = 0; e < 4; e++)
            ((any16 *)to)[lane * 4 + e] = from[e];
        return;
    }
    float x[4], largest = 1e-4f;
    for (int e = 0; e < 4; e++) {
        x[e] = element_from_bf16(from[e]);
        const float size = fabsf(x[e]);
        largest = size > largest && size < INFINITY ? size : largest;
    }
    for (int step = 16; step; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const float scale = f32_divide(largest, 448.0f);
    u32 codes = 0;
    for (int e = 0; e < 4; e++)
        codes |= (u32)save_kv_quantise(ELEMENT_E4M3, x[e], scale) << 8 * e;
    ((any32 *)to)[lane] = codes;
    if (lane == 0)
        ((any32 *)(c.label_cache + page * c.label_page + (i64)c.page_size * DSA_LABEL))[offset] =
            f32_bits(scale);
}

/* The part of block `block` of `blocks`. */
static __device__ void save_rows(const dsa_save_call &c, int block, int blocks)
{
    const call_operands *o = &c.latents;
    const int *indptr = c.batch.new_indptr ? c.batch.new_indptr : c.batch.q_indptr;
    i64 first = indptr ? index_int(indptr, 0) : 0, end = index_num_seqs(&c.batch);
    if (indptr)
        end = index_int(indptr, end);
    const save_kv_call latents = {
        {o->k, o->k_cache, o->k_row, 0, o->k_page, o->k_token, 0, 0, 0, c.lora},
        {o->v, o->v_cache, o->v_row, 0, o->v_page, o->v_token, 0, 0, 0, c.rope},
        c.batch.out_cache_loc,
        c.page_size,
        ELEMENT_BF16,
        ELEMENT_BF16};
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int warps = blocks * ((int)blockDim.x / 32);
    if (o->k && c.packed)
        save_packed_rows(&latents, first + block + warp * blocks, end, warps, lane, 32);
    else if (o->k)
        save_kv_rows(&latents, first + block, end, blocks, 0, (int)threadIdx.x, (int)blockDim.x);
    for (i64 row = first + block + warp * blocks; c.label && row < end; row += warps) {
        const i64 slot = c.batch.out_cache_loc[row];
        if (slot >= 0)
            save_label(c, row, slot, lane);
    }
}

extern "C" __global__ void __launch_bounds__(DSA_SAVE_THREADS)
    dsa_save(const __grid_constant__ dsa_save_call c)
{
    pdl_launch_dependents();
    pdl_wait();
    save_rows(c, (int)blockIdx.x, (int)gridDim.x);
}

/* ---- Lists that are given -------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(DSA_TAKE_THREADS)
    dsa_take(const __grid_constant__ dsa_take_call c)
{
    __shared__ int sums[DSA_TAKE_THREADS / 32];
    pdl_launch_dependents();
    pdl_wait();
    if ((int)blockIdx.x < c.savers) {
        save_rows(c.save, (int)blockIdx.x, c.savers);
        return;
    }
    const dsa_batch *b = &c.planned;
    const int i = (int)blockIdx.x - c.savers;
    if (i >= index_num_tokens(&b->batch))
        return;
    const i64 row = dsa_first_row(b) + i;
    const int most = b->most[i], given = b->header->given_count;
    const int *from = c.indices + row * c.indices_row;
    int *to = c.lists + (i64)i * c.list_row;
    int count = c.counts && most ? c.counts[row * c.counts_row] : given, taken = 0;
    count = most ? int_min(int_max(count, 0), given) : 0;
    for (int base = 0; base < count; base += DSA_TAKE_THREADS * DSA_TAKE_SLOTS) {
        const int n = base + (int)threadIdx.x * DSA_TAKE_SLOTS;
        int slots[DSA_TAKE_SLOTS], mine = 0, all;
#pragma unroll
        for (int k = 0; k < DSA_TAKE_SLOTS; k++)
            slots[k] = n + k < count ? from[n + k] : -1;
#pragma unroll
        for (int k = 0; k < DSA_TAKE_SLOTS; k++)
            mine += slots[k] != -1;
        int at = taken + dsa_scan(mine, &all, sums);
#pragma unroll
        for (int k = 0; k < DSA_TAKE_SLOTS; k++) {
            if (slots[k] != -1 && at < most)
                to[at] = slots[k];
            at += slots[k] != -1;
        }
        taken += all;
    }
    if (threadIdx.x == 0)
        b->lens[i] = int_min(taken, most);
}

#endif

#endif /* DSA_LIKE_ROWS_CUH */
