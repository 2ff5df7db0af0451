/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.cu: the kernels other than attention.
 *
 *   fi_plan_batch  one block: use of shared prefixes -> tiles of sequences
 *                  -> units before each tile -> starts of columns; thread t has neighbouring
 *                  sequences, and neighbouring tiles
 *   fi_save        new keys and values into the cache, if the attention kernel does not save them
 */
#include "plugins/flashinfer_like/kernels/new_rows.cuh"
#include "plugins/flashinfer_like/kernels/plan.cuh"

/* ---- The plan -------------------------------------------------------------------------------- */

/* Sum of x over the threads before this one; *all = over all of them. */
static __device__ i64 sum_before(i64 x, i64 *room, i64 *all)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    i64 sum = x;
    for (int step = 1; step < 32; step *= 2) {
        i64 other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    i64 before = 0, total = 0;
    for (int w = 0; w < FI_PLAN_THREADS / 32; w++) {
        before += w < warp ? room[w] : 0;
        total += room[w];
    }
    __syncthreads();
    *all = total;
    return before + sum - x;
}

/* This thread's part of `count` elements. */
static __device__ void share(int count, int *first, int *end)
{
    int width = (count + FI_PLAN_THREADS - 1) / FI_PLAN_THREADS;
    *first = min(count, (int)threadIdx.x * width);
    *end = min(count, *first + width);
}

/* Levels of shared prefixes to use. */
static __device__ int plan_levels(const fi_plan_call &p, i64 *room)
{
    i64 saved = 0, all;
    if (p.prefixes.levels == 0)
        return 0;
    for (int l = 0; l < p.prefixes.levels; l++)
        for (int r = (int)threadIdx.x; r < p.prefixes.level[l].count; r += FI_PLAN_THREADS)
            saved += plan_count_saved(&p.prefixes, l, r);
    sum_before(saved, room, &all);
    return plan_choose_levels(&p, all);
}

static __device__ int plan_sequences(const fi_plan_call &p, int levels, i64 *room)
{
    int seqs = index_num_seqs(&p.batch), first, end, tiles = 0;
    i64 all;
    share(seqs, &first, &end);
    for (int s = first; s < end; s++)
        tiles += plan_count_tiles(&p, levels, s);
    int at = (int)sum_before(tiles, room, &all);
    for (int s = first; s < end; s++) {
        p.first_tile[s] = at;
        at += plan_count_tiles(&p, levels, s);
    }
    if (threadIdx.x == 0)
        p.first_tile[seqs] = (int)all;
    __syncthreads();
    return (int)all;
}

static __device__ i64 plan_tiles(const fi_plan_call &p, int levels, int tiles, i64 *room)
{
    int first, end;
    i64 units = 0, all;
    share(tiles, &first, &end);
    for (int i = first; i < end; i++) {
        fi_tile tile = plan_make_tile(&p, levels, plan_deal(&p, tiles, i));
        p.tiles[i] = tile;
        units += plan_tile_units(&tile, p.unit);
    }
    i64 at = sum_before(units, room, &all);
    for (int i = first; i < end; i++) {
        p.before[i] = at;
        at += plan_tile_units(&p.tiles[i], p.unit);
    }
    if (threadIdx.x == 0)
        p.before[tiles] = all;
    __syncthreads();
    return all;
}

/* fi_plan_fill() in parallel: a warp counts columns for each number of units; the last warp finds
 * the longest item. */
static __device__ void plan_fill_up(const fi_plan_call &p, fi_plan *plan, i64 *room)
{
    __shared__ int counts[FI_MOST_EVEN + 1];
    __shared__ int longest;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    i64 all, units = 0, each = plan_begin_filling(&p, plan);
    if (each == 0)
        return;
    if (warp <= p.even) {
        int here = (int)plan_count_filled(&p, plan->tiles, each + warp, lane, 32);
        here = (int)__reduce_add_sync(~0u, (u32)here);
        if (lane == 0)
            counts[warp] = here;
    } else if (warp == FI_PLAN_THREADS / 32 - 1) {
        int here = (int)plan_find_longest(&p, plan->tiles, lane, 32);
        here = (int)__reduce_max_sync(~0u, (u32)here);
        if (lane == 0)
            longest = here;
    }
    __syncthreads();
    each = plan_choose_filling(&p, plan, each, longest, counts);
    if (each == 0)
        return;
    int first, end;
    share(plan->tiles, &first, &end);
    for (int i = first; i < end; i++)
        units += plan_fill(&p, i, each);
    i64 at = sum_before(units, room, &all);
    for (int i = first; i < end; i++) {
        p.before[i] = at;
        at += plan_fill(&p, i, each);
    }
    if (threadIdx.x == 0)
        p.before[plan->tiles] = all;
    __syncthreads();
    plan_end_filling(&p, plan, each, all);
}

extern "C" __global__ void __launch_bounds__(FI_PLAN_THREADS)
    fi_plan_batch(const __grid_constant__ fi_plan_call p)
{
    __shared__ i64 room[FI_PLAN_THREADS / 32];
    int levels = plan_levels(p, room);
    int tiles = plan_sequences(p, levels, room);
    fi_plan plan = plan_make(&p, tiles, plan_tiles(p, levels, tiles, room));
    plan_fill_up(p, &plan, room);
    if (threadIdx.x == 0)
        *p.plan = plan;
    for (int c = (int)threadIdx.x; c < p.columns; c += FI_PLAN_THREADS)
        p.starts[c] = plan_make_start(&p, &plan, c);
}

/* ---- New keys and values ------------------------------------------------------------------- */

/* Stores pieces of a head as eight fp8 values, one token at a time, as rounding takes longer than
 * loading. */
struct save_codes {
    static constexpr int bytes = SAVE_PIECE / 2, tokens = 1;
    const fi_call &c;
    float scale;

    __device__ __forceinline__ save_codes for_head(int head, bool is_value) const
    {
        return save_codes{c, is_value ? v_scale_of(c, head) : k_scale_of(c, head)};
    }
    __device__ __forceinline__ void write(char *to, uint4 x) const
    {
        *(uint2 *)to = quantise_piece(c.kv_dtype, c.dtype == ELEMENT_F16, x, scale);
    }
};

extern "C" __global__ void __launch_bounds__(FI_SAVE_THREADS)
    fi_save(const __grid_constant__ fi_call c, int dim, int v_dim)
{
    pdl_wait();
    pdl_launch_dependents();
    const call_operands &o = c.operands;
    const int *rows = c.batch.new_indptr ? c.batch.new_indptr : c.batch.q_indptr;
    i64 first = rows ? rows[0] : 0, end = index_num_seqs(&c.batch);
    if (rows)
        end = rows[end];
    bool codes = element_is_fp8(c.kv_dtype);
    if (o.aligned & CALL_ALIGNED_NEW && o.aligned & CALL_ALIGNED_CACHE) {
        const save_shape shape = {c.kv_heads, c.page_size, dim / 8, v_dim / 8};
        if (codes)
            save_rows_wide(o, c.batch.out_cache_loc, shape, grid_all(), first, end, save_codes{c});
        else
            save_rows_wide(o, c.batch.out_cache_loc, shape, grid_all(), first, end);
        return;
    }
    int warp = (int)(blockIdx.x * FI_SAVE_THREADS + threadIdx.x) / 32;
    int warps = (int)(gridDim.x * FI_SAVE_THREADS) / 32, lane = (int)threadIdx.x % 32;
    for (i64 i = warp; i < (end - first) * c.kv_heads; i += warps) {
        i64 row = first + i / c.kv_heads, slot = c.batch.out_cache_loc[row];
        int head = (int)(i % c.kv_heads);
        if (slot < 0)
            continue;
        i64 page = slot / c.page_size, at = slot % c.page_size;
        const char *k = (const char *)o.k + row * o.k_row + head * o.k_head;
        const char *v = (const char *)o.v + row * o.v_row + head * o.v_head;
        char *k_to = (char *)o.k_cache + page * o.k_page + at * o.k_token + head * o.k_cache_head;
        char *v_to = (char *)o.v_cache + page * o.v_page + at * o.v_token + head * o.v_cache_head;
        float k_scale = codes ? k_scale_of(c, head) : 1.0f;
        float v_scale = codes ? v_scale_of(c, head) : 1.0f;
        save_kv_vector(c.dtype, c.kv_dtype, k, k_to, dim, k_scale, lane, 32);
        save_kv_vector(c.dtype, c.kv_dtype, v, v_to, v_dim, v_scale, lane, 32);
    }
}
