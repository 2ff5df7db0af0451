/* SPDX-License-Identifier: Apache-2.0
 *
 * item.cuh: shared by all attention kernels: addresses of keys, rows of an item, stores of results.
 */
#ifndef FI_ITEM_CUH
#define FI_ITEM_CUH

#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/cuda/save_rows.cuh"
#include "plugins/common/cuda/softmax.cuh"
#include "plugins/flashinfer_like/kernels/mma.cuh"
#include "plugins/flashinfer_like/kernels/walk.cuh"

/* Kernels for few rows have a grid of lanes by columns, which saves a division of 30 instructions.
 * Kernels for many rows have a linear grid, which saves registers. */
static __device__ __forceinline__ walk_block block_here(void)
{
    walk_block block = {(int)blockIdx.x, (int)blockIdx.y};
    return block;
}

static __device__ __forceinline__ walk_block block_in_line(const fi_call &c)
{
    walk_block block = {(int)blockIdx.x % c.lanes, (int)blockIdx.x / c.lanes};
    return block;
}

/* ---- Keys ---------------------------------------------------------------------------------- */

/* index_entry() and index_find_key(), without a division if the page size is a power of two. */
static __device__ __forceinline__ const int *find_entry(const fi_call &c, const index_sequence &q,
                                                        int j)
{
    if (c.page_shift < 0 || c.batch.req_to_token)
        return index_entry(&c.batch, &q, c.page_size, j);
    return j < q.first_new ? q.table + (j >> c.page_shift) : 0;
}

static __device__ __forceinline__ index_place find_key(const fi_call &c, const index_sequence &q,
                                                       int head, int j, int entry)
{
    const call_operands &o = c.operands;
    if (c.page_shift < 0 || j >= q.first_new)
        return index_find_key(&o, &c.batch, &q, c.page_size, head, j, entry);
    int page = c.batch.req_to_token ? entry >> c.page_shift : entry;
    int at = (c.batch.req_to_token ? entry : j) & ((1 << c.page_shift) - 1);
    index_place place = {
        (const char *)o.k_cache + page * o.k_page + at * o.k_token + head * o.k_cache_head,
        (const char *)o.v_cache + page * o.v_page + at * o.v_token + head * o.v_cache_head};
    return place;
}

/* Scales of an fp8 cache. */
static __device__ __forceinline__ float k_scale_of(const fi_call &c, int head)
{
    int at = head * c.scale_stride;
    return c.operands.k_scale_device ? c.operands.k_scale_device[at] : c.operands.k_scales[at];
}

static __device__ __forceinline__ float v_scale_of(const fi_call &c, int head)
{
    int at = head * c.scale_stride;
    return c.operands.v_scale_device ? c.operands.v_scale_device[at] : c.operands.v_scales[at];
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static __device__ __forceinline__ mask_rule rule_of(const fi_call &c)
{
    mask_rule rule = {c.window_left, c.batch.window_right, c.chunk, c.custom, 1};
    return rule;
}

/* Is a logit just the product plus slope times distance? Then a key's position is its column, and
 * no row sees a later key. */
static __device__ __forceinline__ bool is_sloped(const fi_call &c)
{
    return c.operands.slopes && c.cap == 0 && !c.custom && c.batch.window_right == 0 &&
           !c.batch.item_prefix_lens;
}

/* The decrease of a row's logit per key of distance, in units of log 2. */
static __device__ __forceinline__ float slope_of(const fi_call &c, int head, int row, int query)
{
    return c.operands.slopes[head * c.ratio + row - query * c.ratio] * SOFTMAX_LOG2E;
}

/* The end of the keys that all rows of a tile see, before window and chunk: the causal limit of the
 * tile's first row, whose query is `first`; in a batch of items at most the end of the prefix. */
static __device__ __forceinline__ int end_of_all(const fi_call &c, const index_sequence &q, int seq,
                                                 int first)
{
    if (!c.batch.item_prefix_lens)
        return 0x7fffffff;
    return min(q.prefix_len + first + 1, c.batch.item_prefix_lens[seq]);
}

/* Rows of a tile of at most `most`. */
static __device__ __forceinline__ int item_rows(const fi_call &c, const index_sequence &q,
                                                const fi_tile &tile, int most)
{
    return min(most, q.q_len * c.ratio - tile.row0);
}

/* Row r of the tile as a row of q and out, and its query head in the group of a KV head. */
static __device__ __forceinline__ void find_row(const fi_call &c, const index_sequence &q,
                                                const cursor &at, int kv_head, int r, i64 *row,
                                                int *head)
{
    int n = at.tile.row0 + r;
    *row = (i64)q.first_row + n / c.ratio;
    *head = kv_head * c.ratio + n % c.ratio;
}

/* row / ratio for short sequences, without a division of 30 instructions. */
static __device__ __forceinline__ int short_query(const fi_call &c, int row)
{
    return c.ratio_inverse ? (int)__umulhi((u32)row, c.ratio_inverse) : row;
}

static __device__ __forceinline__ void find_short_row(const fi_call &c, const index_sequence &q,
                                                      const cursor &at, int r, i64 *row, int *head)
{
    int n = at.tile.row0 + r, query = short_query(c, n);
    *row = (i64)q.first_row + query;
    *head = at.head * c.ratio + n - query * c.ratio;
}

static __device__ __forceinline__ u32 load_pair(const char *from, bool aligned)
{
    const u16 *two = (const u16 *)from;
    return aligned ? *(const u32 *)from : two[0] | (u32)two[1] << 16;
}

/* ---- Results ------------------------------------------------------------------------------- */

/* Parts of the block's first item, or of the item that it does not end. */
static __device__ __forceinline__ parts find_splits(const fi_call &c, const cursor &at,
                                                    const fi_start &start, bool is_first)
{
    return walk_splits(&c, block_here(), &at, &start, is_first);
}

static __device__ __forceinline__ parts find_shared(const fi_call &c, walk_block block,
                                                    const fi_start &start, bool is_first)
{
    return walk_shared(&c, block, &start, is_first);
}

/* For outputs of f32, and for unaligned rows. */
static __device__ __noinline__ void store_one(int dtype, char *row, int d, float x)
{
    element_store(dtype, row, d, x);
}

static __device__ __forceinline__ void store_four(const fi_call &c, char *row, int d, float4 x)
{
    if (c.out_dtype != ELEMENT_F32 && c.operands.aligned & CALL_ALIGNED_OUT) {
        bool is_f16 = c.out_dtype == ELEMENT_F16;
        ((u32 *)row)[d / 2] = is_f16 ? pack_pair<true>(x.x, x.y) : pack_pair<false>(x.x, x.y);
        ((u32 *)row)[d / 2 + 1] = is_f16 ? pack_pair<true>(x.z, x.w) : pack_pair<false>(x.z, x.w);
        return;
    }
    store_one(c.out_dtype, row, d, x.x);
    store_one(c.out_dtype, row, d + 1, x.y);
    store_one(c.out_dtype, row, d + 2, x.z);
    store_one(c.out_dtype, row, d + 3, x.w);
}

static __device__ __forceinline__ char *out_row(const fi_call &c, i64 row, int head)
{
    return (char *)c.operands.out + row * c.operands.out_row + head * c.operands.out_head;
}

static __device__ __forceinline__ void store_lse(const fi_call &c, i64 row, int head, float lse)
{
    const call_operands &o = c.operands;
    if (o.lse)
        *(float *)((char *)o.lse + row * o.lse_row + head * o.lse_head) = lse;
}

/* The logit of a head's sink, in units of log 2; SOFTMAX_EMPTY without sinks. */
static __device__ __forceinline__ float sink_of(const fi_call &c, int head)
{
    return c.operands.sinks ? c.operands.sinks[head] * SOFTMAX_LOG2E : SOFTMAX_EMPTY;
}

/* The slot of a row's sums from the runs of a level. */
static __device__ __forceinline__ i64 prior_slot(const fi_call &c, int level, i64 row, int head)
{
    return ((i64)level * c.prior_rows + row) * (c.kv_heads * c.ratio) + head;
}

/* All blocks of the grid, each with `threads` threads from `first` on. */
static __device__ __forceinline__ grid_team grid_part(int first, int threads)
{
    return grid_team{(int)threadIdx.x - first, threads, (int)(blockIdx.y * gridDim.x + blockIdx.x),
                     (int)(gridDim.x * gridDim.y)};
}

/* Copies this block's part of the new keys and values to their slots: in attend the copying warps,
 * after their last key; in prefill the math warps, before their first. */
static __device__ __forceinline__ void save_new_rows(const fi_call &c, int dim, int v_dim,
                                                     const grid_team &team)
{
    const save_shape shape = {c.kv_heads, c.page_size, dim / 8, v_dim / 8};
    const int *rows = c.batch.q_indptr;
    const int seqs = index_num_seqs(&c.batch);
    save_rows_wide(c.operands, c.batch.out_cache_loc, shape, team, rows ? rows[0] : 0,
                   rows ? rows[seqs] : seqs);
}

/* Clears this block's part of the rows of no sequence: their output must be finite. */
static __device__ void clear_padding(const fi_call &c, int v_dim, const grid_team &team)
{
    const int *rows = c.batch.q_indptr;
    int seqs = index_num_seqs(&c.batch), heads = c.kv_heads * c.ratio;
    i64 first = rows ? rows[seqs] : seqs;
    i64 end = (rows ? rows[0] : 0) + (i64)index_num_tokens(&c.batch);
    for (i64 i = team.block; i < (end - first) * heads; i += team.blocks) {
        i64 row = first + i / heads;
        int head = (int)(i % heads);
        for (int d = team.thread; d < v_dim; d += team.threads)
            element_store(c.out_dtype, out_row(c, row, head), d, 0.0f);
        if (team.thread == 0)
            store_lse(c, row, head, SOFTMAX_EMPTY);
    }
}

#endif /* FI_ITEM_CUH */
