/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cu: the kernels of batch.h that prepare the forward kernel's work.
 *
 *   fa3_plan_batch  one block: counts each sequence's tiles, sums them, and sorts tiles into
 *                   buckets by their keys
 *   fa3_rows        as many blocks as fit: copies rows of k and v to their slots; then one
 *                   block per row and head of a slow sequence: thread i has the scores of
 *                   keys i, i + 256 ... and output element i
 */
#include "plugins/common/cuda/ptx.cuh"
#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/common/cuda/save_rows.cuh"
#include "plugins/fa3_like/kernels/rows.cuh"
#include "plugins/fa3_like/kernels/shapes.h" /* for its static_asserts */

/* ---- The plan -------------------------------------------------------------------------------- */

/* Sum of x over the threads before this one; *all = over all of them. */
static __device__ int sum_before(int x, int *room, int *all)
{
    int thread = (int)threadIdx.x;
    room[thread] = x;
    __syncthreads();
    for (int step = 1; step < FA3_PLAN_THREADS; step *= 2) {
        int more = thread >= step ? room[thread - step] : 0;
        __syncthreads();
        room[thread] += more;
        __syncthreads();
    }
    *all = room[FA3_PLAN_THREADS - 1];
    int before = room[thread] - x;
    __syncthreads();
    return before;
}

static __device__ void plan_marks(const fa3_plan_call &p)
{
    const int *rows = plan_new_rows(&p.batch);
    int seqs = p.batch.num_seqs, first = rows ? rows[0] : 0, end = rows ? rows[seqs] : seqs;
    for (int s = (int)threadIdx.x; s < seqs; s += FA3_PLAN_THREADS)
        p.marks[s] = 0;
    __syncthreads();
    if (p.batch.out_cache_loc && !p.only_new)
        for (int row = first + (int)threadIdx.x; row < end; row += FA3_PLAN_THREADS)
            plan_mark_row(&p, row);
    __syncthreads();
}

/* This thread's sequences [*first, *end), which are adjacent. */
static __device__ void plan_share(const fa3_plan_call &p, int *first, int *end)
{
    int seqs = p.batch.num_seqs, width = (seqs + FA3_PLAN_THREADS - 1) / FA3_PLAN_THREADS;
    *first = min(seqs, (int)threadIdx.x * width);
    *end = min(seqs, *first + width);
}

/* Returns the number of tiles. */
static __device__ int plan_sequences(const fa3_plan_call &p, int *room)
{
    int first, end, all, slow_all, slow = 0, tiles = 0;
    plan_share(p, &first, &end);
    for (int s = first; s < end; s++) {
        slow += plan_is_slow(&p, s);
        tiles += plan_count_tiles(&p, s);
    }
    int at = sum_before(tiles, room, &all), slow_at = sum_before(slow, room, &slow_all);
    for (int s = first; s < end; s++) {
        p.first_tile[s] = at;
        at += plan_count_tiles(&p, s);
        if (plan_is_slow(&p, s))
            p.slow[slow_at++] = s;
    }
    if (threadIdx.x == 0) {
        p.first_tile[p.batch.num_seqs] = all;
        plan_store(&p, all, slow_all);
    }
    __syncthreads();
    return all;
}

/* The new rows that tiles do not save. */
static __device__ void plan_rest(const fa3_plan_call &p)
{
    __shared__ int rest[2];
    int from, to, first = 0x7fffffff, end = 0;
    if (threadIdx.x == 0) {
        rest[0] = first;
        rest[1] = end;
    }
    __syncthreads();
    plan_share(p, &from, &to);
    for (int s = from; s < to; s++)
        plan_add_rest(&p, s, &first, &end);
    atomicMin(&rest[0], first);
    atomicMax(&rest[1], end);
    __syncthreads();
    if (threadIdx.x < 2)
        p.plan->rest[threadIdx.x] = rest[threadIdx.x];
}

/* Computes the first unit of each sequence's data that an earlier kernel makes. */
static __device__ void plan_ahead(const fa3_plan_call &p, int *room)
{
    int first, end, all, units = 0;
    plan_share(p, &first, &end);
    for (int s = first; s < end; s++)
        units += plan_count_ahead(&p, s);
    int at = sum_before(units, room, &all);
    for (int s = first; s < end; s++) {
        p.ahead_first[s] = at;
        at += plan_count_ahead(&p, s);
    }
    if (threadIdx.x == 0)
        p.ahead_first[p.batch.num_seqs] = all;
}

extern "C" __global__ void __launch_bounds__(FA3_PLAN_THREADS)
    fa3_plan_batch(const __grid_constant__ fa3_plan_call p)
{
    __shared__ int room[FA3_PLAN_THREADS], buckets[FA3_PLAN_BUCKETS];
    int thread = (int)threadIdx.x, all;
    for (int s = thread; p.given.keys && s < p.batch.num_seqs; s += FA3_PLAN_THREADS)
        plan_find_given(&p, s);
    __syncthreads();
    plan_marks(p);
    int tiles = plan_sequences(p, room);
    plan_rest(p);
    if (p.ahead_first)
        plan_ahead(p, room);
    for (int b = thread; b < FA3_PLAN_BUCKETS; b += FA3_PLAN_THREADS)
        buckets[b] = 0;
    __syncthreads();
    for (int i = thread; i < tiles; i += FA3_PLAN_THREADS) {
        int s = work_find_row(p.first_tile, p.batch.num_seqs, i);
        atomicAdd(&buckets[plan_find_bucket(&p, s, i - p.first_tile[s])], 1);
    }
    __syncthreads();
    int bucket = FA3_PLAN_BUCKETS - 1 - thread; /* in descending order of keys */
    int count = bucket >= 0 ? buckets[bucket] : 0, at = sum_before(count, room, &all);
    if (bucket >= 0)
        buckets[bucket] = at;
    __syncthreads();
    for (int i = thread; i < tiles; i += FA3_PLAN_THREADS) {
        int s = work_find_row(p.first_tile, p.batch.num_seqs, i), tile = i - p.first_tile[s];
        int place = atomicAdd(&buckets[plan_find_bucket(&p, s, tile)], 1);
        plan_store_tile(&p, place, s, tile);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static __device__ void save_codes(const fa3_rows_call &p, int head, int sequence, const char *k,
                                  const char *v, char *k_to, char *v_to)
{
    const row_scales s = row_find_scales(&p, sequence, head);
    int lane = (int)threadIdx.x % 32;
    row_save_code(&p, k, k_to, p.dim, s.k, s.k_cache, lane, 32);
    row_save_code(&p, v, v_to, p.dim_v, s.v, s.v_cache, lane, 32);
}

static __device__ void save_rows(const fa3_rows_call &p)
{
    const call_operands &o = p.operands;
    const int *rows = plan_new_rows(&p.batch);
    int seqs = index_num_seqs(&p.batch), heads = p.heads_q / p.heads_per_kv;
    i64 first = rows ? rows[0] : 0, end = rows ? rows[seqs] : seqs;
    if (p.saves_rest) {
        first = p.plan->rest[0];
        end = p.plan->rest[1];
    }
    if (!p.has_codes && o.aligned & CALL_ALIGNED_NEW && o.aligned & CALL_ALIGNED_CACHE) {
        const save_shape shape = {heads, p.page_size, p.dim / 8, p.dim_v / 8};
        save_rows_wide(o, p.batch.out_cache_loc, shape, grid_all(), first, end);
        return;
    }
    int lane = (int)threadIdx.x % 32;
    i64 warps = (i64)gridDim.x * (FA3_ROWS_THREADS / 32);
    i64 warp = (i64)blockIdx.x * (FA3_ROWS_THREADS / 32) + threadIdx.x / 32;
    for (i64 i = warp; i < (end - first) * heads; i += warps) {
        i64 row = first + i / heads, slot = p.batch.out_cache_loc[row];
        int head = (int)(i % heads);
        if (slot < 0)
            continue;
        i64 page = slot / p.page_size, at = slot % p.page_size;
        const char *k = (const char *)o.k + row * o.k_row + head * o.k_head;
        const char *v = (const char *)o.v + row * o.v_row + head * o.v_head;
        char *k_to = (char *)o.k_cache + page * o.k_page + at * o.k_token + head * o.k_cache_head;
        char *v_to = (char *)o.v_cache + page * o.v_page + at * o.v_token + head * o.v_cache_head;
        if (p.has_codes) {
            save_codes(p, head, work_find_row(rows, seqs, (int)row), k, v, k_to, v_to);
            continue;
        }
        save_kv_vector(p.dtype, p.dtype, k, k_to, p.dim, 1.0f, lane, 32);
        save_kv_vector(p.dtype, p.dtype, v, v_to, p.dim_v, 1.0f, lane, 32);
    }
}

/* Writes the cache's scales for the forward kernel. */
static __device__ void store_scales(const fa3_rows_call &p)
{
    int heads = p.heads_q / p.heads_per_kv;
    if (blockIdx.x > 0 || !p.cache_scales)
        return;
    for (int head = (int)threadIdx.x; head < heads; head += FA3_ROWS_THREADS) {
        p.cache_scales[head] = cache_k_scale(&p.operands, p.scale_stride, head);
        p.cache_scales[heads + head] = cache_v_scale(&p.operands, p.scale_stride, head);
    }
}

static __device__ void clear_padding(const fa3_rows_call &p)
{
    i64 first, end;
    rows_find_padding(&p, &first, &end);
    for (i64 i = blockIdx.x; i < (end - first) * p.heads_q; i += gridDim.x)
        row_clear(&p, first + i / p.heads_q, (int)(i % p.heads_q), (int)threadIdx.x,
                  FA3_ROWS_THREADS);
}

/* The largest of all threads' x, or their sum. */
static __device__ float over_block(float x, float *room, bool largest)
{
    int thread = (int)threadIdx.x;
    room[thread] = x;
    __syncthreads();
    for (int half = FA3_ROWS_THREADS / 2; half > 0; half /= 2) {
        if (thread < half)
            room[thread] = largest ? fmaxf(room[thread], room[thread + half])
                                   : room[thread] + room[thread + half];
        __syncthreads();
    }
    float result = room[0];
    __syncthreads();
    return result;
}

/* Computes query t of a head. */
static __device__ void attend_row(const fa3_rows_call &p, const index_sequence &q, int sequence,
                                  int t, int head, float *weights, float *room)
{
    const float none = bits_f32(0xff800000);
    const float *sinks = p.operands.sinks;
    int thread = (int)threadIdx.x, kv_head = head / p.heads_per_kv, low, high;
    i64 row = (i64)q.first_row + t;
    const row_scales scales = row_find_scales(&p, sequence, kv_head);
    float top = sinks ? sinks[head] : none, sum = sinks ? 1.0f : 0.0f, value = 0.0f;
    bool is_lost = true; /* no key so far has a weight: skip values, which may be NaN (MEAN-14) */
    row_find_keys(&p, &q, t, &low, &high);
    for (int begin = low; begin < high; begin += FA3_ROWS_THREADS) {
        int j = begin + thread, count = min(FA3_ROWS_THREADS, high - begin);
        float score = none;
        if (j < high)
            score = row_score(&p, &scales, row_query(&p, row, head),
                              row_find_key(&p, &q, kv_head, j).k, j >= q.first_new);
        float most = over_block(score, room, true), next = fmaxf(top, most);
        float shrink = top == none ? 0.0f : expf(top - next), base = next == none ? 0.0f : next;
        weights[thread] = j < high ? expf(score - base) : 0.0f;
        float weight = over_block(weights[thread], room, false);
        is_lost = is_lost && most == none && weight == 0.0f; /* weight is NaN for NaN scores */
        sum = sum * shrink + weight;
        value *= shrink;
        top = next;
        for (int n = 0; thread < p.dim_v && n < count; n++)
            value += weights[n] * row_element(&p, begin + n >= q.first_new,
                                              row_find_key(&p, &q, kv_head, begin + n).v, thread,
                                              scales.v, scales.v_cache);
        __syncthreads();
    }
    if (thread < p.dim_v)
        element_store(p.out_dtype, row_out(&p, row, head), thread, is_lost ? 0.0f : value / sum);
    if (thread == 0)
        row_store_lse(&p, row, head, sum == 0.0f ? none : top + logf(sum));
}

static __device__ void attend_slow(const fa3_rows_call &p, float *weights, float *room)
{
    int count = p.all_slow ? index_num_seqs(&p.batch) : p.plan->slow_count;
    for (int n = 0; n < count; n++) {
        index_sequence q;
        int s = p.all_slow ? n : p.slow[n];
        index_find_sequence(&p.batch, p.operands.k != 0, s, &q);
        for (i64 i = blockIdx.x; i < (i64)q.q_len * p.heads_q; i += gridDim.x)
            attend_row(p, q, s, (int)(i / p.heads_q), (int)(i % p.heads_q), weights, room);
    }
}

extern "C" __global__ void __launch_bounds__(FA3_ROWS_THREADS, 4)
    fa3_rows(const __grid_constant__ fa3_rows_call p)
{
    __shared__ float weights[FA3_ROWS_THREADS], room[FA3_ROWS_THREADS];
    pdl_wait();
    pdl_launch_dependents();
    if (p.operands.save)
        save_rows(p);
    store_scales(p);
    clear_padding(p);
    attend_slow(p, weights, room);
}
