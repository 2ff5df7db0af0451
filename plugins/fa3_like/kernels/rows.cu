/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cu: the kernels beside the forward kernel. What they do is told in batch.h, plan.cuh, rows.cuh.
 *
 *   fa3_plan_batch  one block: sequences -> how many tiles, sums of them -> tiles into buckets by their keys
 *   fa3_rows        as many blocks as fit: a warp copies a head's row of k and v; then a block has a row and
 *                   head of a slow sequence, thread i the scores of keys i, i + 256 ... and element i
 */
#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/fa3_like/kernels/rows.cuh"

/* ---- The plan ---------------------------------------------------------------------------------- */

/* Sums of x over the threads before this one; *all = over all of them. */
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
    const fa3_batch &batch = p.batch;
    const int *rows = batch.new_indptr ? batch.new_indptr : batch.q_indptr;
    int first = rows ? rows[0] : 0, end = rows ? rows[batch.num_seqs] : batch.num_seqs;
    for (int s = (int)threadIdx.x; s < batch.num_seqs; s += FA3_PLAN_THREADS)
        p.marks[s] = 0;
    __syncthreads();
    for (int row = first + (int)threadIdx.x; batch.slots && row < end; row += FA3_PLAN_THREADS)
        mark_row(&p, row);
    __syncthreads();
}

/* Each thread has neighbouring sequences. */
static __device__ int plan_sequences(const fa3_plan_call &p, int *room)
{
    int seqs = p.batch.num_seqs, all, slow_all, slow = 0, tiles = 0;
    int width = (seqs + FA3_PLAN_THREADS - 1) / FA3_PLAN_THREADS;
    int first = min(seqs, (int)threadIdx.x * width), end = min(seqs, first + width);
    for (int s = first; s < end; s++) {
        fa3_sequence q = sequence_of(&p.batch, s);
        slow += is_slow(&p, &q, s);
        tiles += tiles_of(&p, s);
    }
    int at = sum_before(tiles, room, &all), slow_at = sum_before(slow, room, &slow_all);
    for (int s = first; s < end; s++) {
        fa3_sequence q = sequence_of(&p.batch, s);
        p.first_tile[s] = at;
        at += tiles_of(&p, s);
        if (is_slow(&p, &q, s))
            p.slow[slow_at++] = s;
    }
    if (threadIdx.x == 0) {
        plan_begin(&p);
        p.first_tile[seqs] = all;
        p.plan->tile_count = all;
        p.plan->slow_count = slow_all;
    }
    __syncthreads();
    return all;
}

/* The last sequence whose first tile is not after tile i. */
static __device__ int sequence_with(const fa3_plan_call &p, int i)
{
    int low = 0, high = p.batch.num_seqs;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (p.first_tile[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(FA3_PLAN_THREADS)
    fa3_plan_batch(const __grid_constant__ fa3_plan_call p)
{
    __shared__ int room[FA3_PLAN_THREADS], buckets[FA3_PLAN_BUCKETS];
    int thread = (int)threadIdx.x, all;
    plan_marks(p);
    int tiles = plan_sequences(p, room);
    for (int b = thread; b < FA3_PLAN_BUCKETS; b += FA3_PLAN_THREADS)
        buckets[b] = 0;
    __syncthreads();
    for (int i = thread; i < tiles; i += FA3_PLAN_THREADS) {
        int s = sequence_with(p, i);
        atomicAdd(&buckets[bucket_of(&p, s, i - p.first_tile[s])], 1);
    }
    __syncthreads();
    int bucket = FA3_PLAN_BUCKETS - 1 - thread; /* those with most keys first */
    int count = bucket >= 0 ? buckets[bucket] : 0, at = sum_before(count, room, &all);
    if (bucket >= 0)
        buckets[bucket] = at;
    __syncthreads();
    for (int i = thread; i < tiles; i += FA3_PLAN_THREADS) {
        int s = sequence_with(p, i), tile = i - p.first_tile[s];
        int place = atomicAdd(&buckets[bucket_of(&p, s, tile)], 1);
        p.tiles[2 * place] = s;
        p.tiles[2 * place + 1] = tile;
    }
}

/* ---- Rows -------------------------------------------------------------------------------------- */

static __device__ void copy_vector(const any16 *from, any16 *to, int dim, int lane)
{
    for (int i = lane; i < dim / 8; i += 32)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

static __device__ void save_rows(const fa3_rows_call &p)
{
    const int *rows = p.batch.new_indptr ? p.batch.new_indptr : p.batch.q_indptr;
    i64 first = rows ? rows[0] : 0, end = rows ? rows[p.plan->num_seqs] : p.plan->num_seqs;
    int heads = p.heads_q / p.heads_per_kv, lane = (int)threadIdx.x % 32;
    i64 warps = (i64)gridDim.x * (FA3_ROWS_THREADS / 32);
    i64 warp = (i64)blockIdx.x * (FA3_ROWS_THREADS / 32) + threadIdx.x / 32;
    for (i64 i = warp; i < (end - first) * heads; i += warps) {
        i64 row = first + i / heads, slot = p.batch.slots[row];
        int head = (int)(i % heads);
        if (slot < 0)
            continue;
        i64 page = slot / p.page_size, at = slot % p.page_size;
        const any16 *k = (const any16 *)p.k + row * p.k_row + head * p.k_head;
        const any16 *v = (const any16 *)p.v + row * p.v_row + head * p.v_head;
        any16 *k_to = (any16 *)p.k_cache + page * p.k_page + at * p.k_token + head * p.k_cache_head;
        any16 *v_to = (any16 *)p.v_cache + page * p.v_page + at * p.v_token + head * p.v_cache_head;
        if (p.vectors) {
            copy_vector(k, k_to, p.dim, lane);
            copy_vector(v, v_to, p.dim_v, lane);
        } else {
            save_kv_vector(p.dtype, p.dtype, k, k_to, p.dim, 1.0f, lane, 32);
            save_kv_vector(p.dtype, p.dtype, v, v_to, p.dim_v, 1.0f, lane, 32);
        }
    }
}

static __device__ void clear_padding(const fa3_rows_call &p)
{
    i64 first = p.plan->end_row, end = (i64)p.plan->first_row + p.plan->num_tokens;
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

/* One row and head. */
static __device__ void attend_row(const fa3_rows_call &p, const fa3_sequence &q, int s, int t, int head,
                                  float *scores, float *room)
{
    const float none = bits_f32(0xff800000);
    int thread = (int)threadIdx.x, kv_head = head / p.heads_per_kv;
    i64 row = (i64)q.first_row + t;
    const any16 *query = row_query(&p, row, head);
    float top = p.sinks ? p.sinks[head] : none, sum = p.sinks ? 1.0f : 0.0f, value = 0.0f;
    for (int begin = 0; begin < q.keys; begin += FA3_ROWS_THREADS) {
        int j = begin + thread;
        float score = none;
        if (j < q.keys && row_sees(&p, q.position + t, j))
            score = row_score(&p, query, row_vector(&p, &q, s, j, kv_head, 0));
        float next = fmaxf(top, over_block(score, room, true));
        float weight = score == none ? 0.0f : expf(score - next);
        float shrink = top == none ? 0.0f : expf(top - next);
        scores[thread] = score == none ? none : weight;
        sum = sum * shrink + over_block(weight, room, false);
        value *= shrink;
        top = next;
        for (int n = 0; thread < p.dim_v && n < FA3_ROWS_THREADS; n++)
            if (scores[n] != none) /* a hidden value may be anything */
                value += scores[n] *
                         element_load(p.dtype, row_vector(&p, &q, s, begin + n, kv_head, 1), thread);
        __syncthreads();
    }
    if (thread < p.dim_v)
        element_store(p.dtype, row_out(&p, row, head), thread, sum > 0.0f ? value / sum : 0.0f);
    if (thread == 0 && p.lse)
        p.lse[row * p.lse_row + head * p.lse_head] = sum > 0.0f ? top + logf(sum) : none;
}

static __device__ void attend_slow(const fa3_rows_call &p, float *scores, float *room)
{
    int count = p.all_slow ? p.plan->num_seqs : p.plan->slow_count;
    for (int n = 0; n < count; n++) {
        int s = p.all_slow ? n : p.slow[n];
        fa3_sequence q = sequence_of(&p.batch, s);
        for (i64 i = blockIdx.x; i < (i64)q.queries * p.heads_q; i += gridDim.x)
            attend_row(p, q, s, (int)(i / p.heads_q), (int)(i % p.heads_q), scores, room);
    }
}

extern "C" __global__ void __launch_bounds__(FA3_ROWS_THREADS)
    fa3_rows(const __grid_constant__ fa3_rows_call p)
{
    __shared__ float scores[FA3_ROWS_THREADS], room[FA3_ROWS_THREADS];
    if (p.save)
        save_rows(p);
    clear_padding(p);
    attend_slow(p, scores, room);
}
