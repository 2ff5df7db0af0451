/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.cu: few queries of a sequence against many keys, in two stages.
 *
 * attn_decode: block (x, y, z) takes split x of sequence z for KV head y % KV_HEADS and 16 rows,
 * those of row tile y / KV_HEADS; row r is query r / GQA of query head r % GQA, so that grouped
 * heads share each K and V that is read. Each of WARPS warps goes over every WARPS-th
 * group of 16 keys of the split on its own, with STAGES groups on their way in shared memory of its
 * own; at the end their results are merged. What is left is a partial result: output, normalised, and the
 * natural logarithm of its denominator.
 *
 * attn_reduce: block (x, y) merges the partial results of row x and query head y, and adds the sink.
 */
#include "common.cuh"

#define THREADS     (WARPS * 32)
#define GROUP       16
#define STAGE_BYTES (GROUP * (K_STRIDE + V_STRIDE))
#define WIDE_BYTES  (KV_IS_FP8 ? STAGE_BYTES : 0)
#define WARP_BYTES  (STAGES * STAGE_BYTES + WIDE_BYTES)
#define Q_BYTES     (16 * K_STRIDE)
/* The results of the warps take the place of the stages. */
#define MERGE_STRIDE (V_PAD + 4)
static_assert(Q_BYTES + WARPS * WARP_BYTES == DECODE_SHARED,
              "the plugin and the kernel disagree");
static_assert(WARPS * 16 * (MERGE_STRIDE + 2) * 4 <= Q_BYTES + WARPS * WARP_BYTES,
              "merging needs more room");

#if PARTIAL_DTYPE == DTYPE_F32
typedef float partial;
__device__ __forceinline__ float load_partial(partial x) { return x; }
__device__ __forceinline__ partial store_partial(float x) { return x; }
#else
typedef u16 partial;
__device__ __forceinline__ float load_partial(partial x) { return load16<PARTIAL_DTYPE>(x); }
__device__ __forceinline__ partial store_partial(float x) { return store16<PARTIAL_DTYPE>(x); }
#endif

/* Start the copy of 16 keys and values, whose places are those of lanes 0 to 15. */
template <int size>
__device__ __forceinline__ void load_group(const kernel_params &p, const key_place &mine, char *k,
                                           char *v, bool vectors)
{
    constexpr int k_pieces = HEAD_DIM * size / 16, v_pieces = V_DIM * size / 16;
    int lane = (int)threadIdx.x & 31;
    if (k_pieces * 16 == HEAD_DIM * size && v_pieces * 16 == V_DIM * size && vectors) {
        constexpr int k_div = k_pieces ? k_pieces : 1, v_div = v_pieces ? v_pieces : 1;
#pragma unroll
        for (int c0 = 0; c0 < GROUP * k_pieces; c0 += 32) {
            int c = c0 + lane, row = c / k_div, piece = c % k_div;
            const char *from = (const char *)__shfl_sync(~0u, (u64)mine.k, row);
            if (c < GROUP * k_pieces)
                copy16(shared_address(k) + row * K_STRIDE + piece * 16,
                       from ? from + piece * 16 : 0, p.q);
        }
#pragma unroll
        for (int c0 = 0; c0 < GROUP * v_pieces; c0 += 32) {
            int c = c0 + lane, row = c / v_div, piece = c % v_div;
            const char *from = (const char *)__shfl_sync(~0u, (u64)mine.v, row);
            if (c < GROUP * v_pieces)
                copy16(shared_address(v) + row * V_STRIDE + piece * 16,
                       from ? from + piece * 16 : 0, p.q);
        }
        return;
    }
    for (int row = 0; row < GROUP; row++) {
        const char *k_from = (const char *)__shfl_sync(~0u, (u64)mine.k, row);
        const char *v_from = (const char *)__shfl_sync(~0u, (u64)mine.v, row);
        copy_row_slow<HEAD_DIM, size>(k + row * K_STRIDE, k_from, lane, 32);
        copy_row_slow<V_DIM, size>(v + row * V_STRIDE, v_from, lane, 32);
    }
}

__device__ __forceinline__ void clear_pad(char *rows, int count, int thread, int threads)
{
    constexpr int pad = HEAD_PAD - HEAD_DIM;
    for (int i = thread; i < count * pad; i += threads)
        *(u16 *)(rows + i / (pad ? pad : 1) * K_STRIDE + (HEAD_DIM + i % (pad ? pad : 1)) * 2) = 0;
}

/* Where a row's partial result lies; rows count from the batch's first. */
__device__ __forceinline__ i64 partial_at(const kernel_params &p, int row, int head, int split)
{
    return ((i64)row * Q_HEADS + head) * p.num_splits + split;
}

/* A split that has nothing to do says so. */
__device__ void leave_empty(const kernel_params &p, const sequence &q, int first, int row0,
                            int head)
{
    int r = row0 + (int)threadIdx.x;
    if (threadIdx.x < 16 && r < q.q_len * GQA)
        p.partial_lse[partial_at(p, q.first_row - first + r / GQA, head * GQA + r % GQA,
                                 (int)blockIdx.x)] = NEGATIVE_INFINITY;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attn_decode(const __grid_constant__ kernel_params p)
{
    extern __shared__ __align__(128) char shared[];
    int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    int s = (int)blockIdx.z, head = (int)blockIdx.y % KV_HEADS;
    int row0 = (int)blockIdx.y / KV_HEADS * 16;
    char *q_rows = shared;
    char *stages = shared + Q_BYTES + warp * WARP_BYTES;
    char *wide = stages + STAGES * STAGE_BYTES;

    if (s >= num_seqs(p))
        return;
    sequence q;
    find_sequence(p, s, q);
    int rows = q.q_len * GQA, first = p.q_indptr ? p.q_indptr[0] : 0;
    if (row0 >= rows)
        return;
    int t0 = row0 / GQA, t1 = (min(row0 + 16, rows) - 1) / GQA, lo, hi, begin, end;
    find_outline(p, q, t0, t1, lo, hi);
    int splits = splits_count(hi - lo, p.split_tile, p.num_splits);
    begin = end = 0;
    if ((int)blockIdx.x < splits)
        splits_range(hi - lo, splits, (int)blockIdx.x, &begin, &end);
    if (begin >= end) {
        leave_empty(p, q, first, row0, head);
        return;
    }
    begin += lo;
    end += lo;

    /* Groups of the cache, then groups of new tokens; what is not fp8 needs no such border. */
    int cached_end = KV_IS_FP8 ? max(begin, min(end, q.first_new)) : begin;
    int cached = (cached_end - begin + GROUP - 1) / GROUP;
    int groups = cached + (end - cached_end + GROUP - 1) / GROUP;
    auto group_begin = [&](int n) {
        return n < cached ? begin + n * GROUP : cached_end + (n - cached) * GROUP;
    };
    auto group_end = [&](int n) { return n < cached ? cached_end : end; };
    auto place = [&](int n) { /* of this lane's key */
        key_place at = {0, 0};
        return n < groups && lane < GROUP ? find_key(p, q, head, group_begin(n) + lane, group_end(n))
                                          : at;
    };
    auto load = [&](int n, int stage, const key_place &at) {
        char *k = stages + stage * STAGE_BYTES, *v = k + GROUP * K_STRIDE;
        if (n < cached)
            load_group<KV_BYTES>(p, at, k, v, p.aligned & ALIGNED_CACHE);
        else if (KV_IS_FP8)
            load_group<2>(p, at, k, v, p.aligned & ALIGNED_NEW);
        else
            load_group<2>(p, at, k, v,
                          (p.aligned & (ALIGNED_CACHE | ALIGNED_NEW)) ==
                              (ALIGNED_CACHE | ALIGNED_NEW));
    };

    /* This warp's groups: warp, warp + WARPS, ... */
    key_place next = place(warp);
    if (HEAD_PAD > HEAD_DIM) {
        for (int stage = 0; stage < STAGES; stage++)
            clear_pad(stages + stage * STAGE_BYTES, GROUP, lane, 32);
        if (KV_IS_FP8)
            clear_pad(wide, GROUP, lane, 32);
        clear_pad(q_rows, 16, thread, THREADS);
    }
    for (int r = thread / 8; r < 16; r += THREADS / 8) {
        int row = row0 + r;
        const char *from = (const char *)p.q + (i64)(q.first_row + row / GQA) * p.q_row +
                           (i64)(head * GQA + row % GQA) * p.q_head;
        from = row < rows ? from : 0;
        if (HEAD_DIM % 8 == 0 && p.aligned & ALIGNED_Q) {
            for (int piece = thread % 8; piece < HEAD_DIM / 8; piece += 8)
                copy16(shared_address(q_rows) + r * K_STRIDE + piece * 16,
                       from ? from + piece * 16 : 0, p.q);
        } else {
            copy_row_slow<HEAD_DIM, 2>(q_rows + r * K_STRIDE, from, thread % 8, 8);
        }
    }
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        int n = warp + i * WARPS;
        key_place now = next;
        next = place(n + WARPS);
        if (n < groups)
            load(n, i, now);
        copy_commit();
    }

    copy_wait<STAGES - 2>(); /* the queries came with the first group */
    __syncthreads();
    u32 a[HEAD_PAD / 16][4];
#pragma unroll
    for (int d = 0; d < HEAD_PAD / 16; d++)
        load_matrices(a[d], shared_address(q_rows) + (lane & 15) * K_STRIDE + (lane >> 4) * 16 +
                                d * 32);

    row_view views[2];
    float most[2], sum[2], out[V_PAD / 8][4];
    for (int h = 0; h < 2; h++) {
        int row = row0 + h * 8 + lane / 4;
        find_view(p, q, s, row < rows ? row / GQA : -1, head * GQA + row % GQA, views[h]);
        most[h] = NEGATIVE_INFINITY;
        sum[h] = 0.0f;
    }
    for (int d = 0; d < V_PAD / 8; d++)
        for (int e = 0; e < 4; e++)
            out[d][e] = 0.0f;
    int ignored, all_lo, all_hi;
    position_range(p, q.prefix_len + t1, all_lo, ignored);
    position_range(p, q.prefix_len + t0, ignored, all_hi);

    float k_factor = SCORE_FACTOR, v_factor = 1.0f;
    if (KV_IS_FP8 && warp < cached) {
        k_factor *= k_scale_of(p, head);
        v_factor = v_scale_of(p, head);
    }
    u32 k_lane = ((lane & 7) + (lane >> 4) * 8) * K_STRIDE + (lane >> 3 & 1) * 16;
    u32 v_lane = ((lane & 7) + (lane >> 3 & 1) * 8) * V_STRIDE + (lane >> 4) * 16;

    int stage = 0;
    for (int n = warp; n < groups; n += WARPS) {
        copy_wait<STAGES - 2>();
        __syncwarp();
        {
            int ahead = n + (STAGES - 1) * WARPS;
            key_place now = next;
            next = place(ahead + WARPS);
            if (ahead < groups)
                load(ahead, stage == 0 ? STAGES - 1 : stage - 1, now);
            copy_commit();
        }
        char *k_group = stages + stage * STAGE_BYTES, *v_group = k_group + GROUP * K_STRIDE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (KV_IS_FP8 && n < cached) {
            char *v_wide = wide + GROUP * K_STRIDE;
            widen_rows<HEAD_DIM, GROUP, K_STRIDE, 32>(wide, k_group, lane);
            widen_rows<V_DIM, GROUP, V_STRIDE, 32>(v_wide, v_group, lane);
            k_group = wide;
            v_group = v_wide;
            __syncwarp();
        }
        if (KV_IS_FP8 && n >= cached && v_factor != 1.0f) { /* so far values lack their scale */
            for (int d = 0; d < V_PAD / 8; d++)
                for (int e = 0; e < 4; e++)
                    out[d][e] *= v_factor;
            v_factor = 1.0f;
        }
        if (KV_IS_FP8 && n >= cached)
            k_factor = SCORE_FACTOR;

        float score[2][4] = {};
        u32 k_at = shared_address(k_group) + k_lane;
#pragma unroll
        for (int d = 0; d < HEAD_PAD / 16; d++) {
            u32 b[4];
            load_matrices(b, k_at + d * 32);
            multiply(score[0], a[d], b[0], b[1]);
            multiply(score[1], a[d], b[2], b[3]);
        }
        int from = group_begin(n), to = group_end(n);
        bool check = CUSTOM_MASK || from < all_lo || from + GROUP > min(all_hi, to);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                score[j][e] = finish_score(p, q, views[e / 2], from + j * 8 + (lane & 3) * 2 + e % 2,
                                           to, score[j][e] * k_factor, check);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float here = fmaxf(fmaxf(score[0][h * 2], score[0][h * 2 + 1]),
                               fmaxf(score[1][h * 2], score[1][h * 2 + 1]));
            float top = fmaxf(most[h], quad_max(here));
            float base = top == NEGATIVE_INFINITY ? 0.0f : top;
            float shrink = exp2_fast(most[h] - base);
            most[h] = top;
            sum[h] *= shrink;
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int e = h * 2; e < h * 2 + 2; e++) {
                    score[j][e] = exp2_fast(score[j][e] - base);
                    sum[h] += score[j][e];
                }
#pragma unroll
            for (int d = 0; d < V_PAD / 8; d++) {
                out[d][h * 2] *= shrink;
                out[d][h * 2 + 1] *= shrink;
            }
        }
        u32 probability[4], rest[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float low = score[e / 2][e % 2 * 2], high = score[e / 2][e % 2 * 2 + 1];
            probability[e] = pack16<Q_DTYPE>(low, high);
            rest[e] = remainder16(probability[e], low, high);
        }
        u32 v_at = shared_address(v_group) + v_lane;
#pragma unroll
        for (int d = 0; d < V_PAD / 16; d++) {
            u32 b[4];
            load_matrices_transposed(b, v_at + d * 32);
            multiply(out[d * 2], probability, b[0], b[1]);
            multiply(out[d * 2 + 1], probability, b[2], b[3]);
            multiply(out[d * 2], rest, b[0], b[1]);
            multiply(out[d * 2 + 1], rest, b[2], b[3]);
        }
        __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();

    /* Merge the warps: outputs, then for each warp and row the maximum and the sum. */
    float *merged = (float *)shared;
    float *tops = merged + WARPS * 16 * MERGE_STRIDE, *sums = tops + WARPS * 16;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = warp * 16 + h * 8 + lane / 4;
        float total = quad_sum(sum[h]);
        if ((lane & 3) == 0) {
            tops[r] = most[h];
            sums[r] = total;
        }
#pragma unroll
        for (int d = 0; d < V_PAD / 8; d++)
            *(float2 *)(merged + r * MERGE_STRIDE + d * 8 + (lane & 3) * 2) =
                make_float2(out[d][h * 2] * v_factor, out[d][h * 2 + 1] * v_factor);
    }
    __syncthreads();
    for (int r = warp; r < 16; r += WARPS) {
        int row = row0 + r;
        if (row >= rows)
            break;
        float top = NEGATIVE_INFINITY, total = 0.0f, share[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, tops[w * 16 + r]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            share[w] = top == NEGATIVE_INFINITY ? 0.0f : exp2_fast(tops[w * 16 + r] - top);
            total += share[w] * sums[w * 16 + r];
        }
        i64 at = partial_at(p, q.first_row - first + row / GQA, head * GQA + row % GQA,
                            (int)blockIdx.x);
        float factor = top == NEGATIVE_INFINITY ? 0.0f : 1.0f / total;
        if (lane == 0)
            p.partial_lse[at] =
                top == NEGATIVE_INFINITY ? NEGATIVE_INFINITY : (top + __log2f(total)) * LN2;
        partial *to = (partial *)p.partial + at * V_DIM;
        for (int d = lane; d < V_DIM; d += 32) {
            float value = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                value += share[w] * merged[(w * 16 + r) * MERGE_STRIDE + d];
            to[d] = store_partial(value * factor);
        }
    }
}

extern "C" __global__ void attn_reduce(const __grid_constant__ kernel_params p)
{
    int row = (int)blockIdx.x, head = (int)blockIdx.y, first = 0, rows = num_seqs(p);
    if (p.q_indptr) {
        first = p.q_indptr[0];
        rows = p.q_indptr[rows] - first;
    }
    if (row >= rows) {
        if (row < num_tokens(p))
            clear_row(p, first + row, head);
        return;
    }
    i64 at = partial_at(p, row, head, 0);
    float sink = NEGATIVE_INFINITY;
    if (HAS_SINKS && p.sinks)
        sink = p.sinks[head];
    float top = sink;
    for (int split = 0; split < p.num_splits; split++) {
        float lse = p.partial_lse[at + split];
        top = lse > top || lse != lse ? lse : top;
    }
    bool empty = top == NEGATIVE_INFINITY;
    float total = sink == NEGATIVE_INFINITY ? 0.0f : exp2_fast((sink - top) * LOG2E);
    for (int split = 0; split < p.num_splits; split++) {
        float lse = p.partial_lse[at + split];
        total += lse == NEGATIVE_INFINITY ? 0.0f : exp2_fast((lse - top) * LOG2E);
    }
    if (threadIdx.x == 0)
        store_lse(p, first + row, head, empty ? NEGATIVE_INFINITY : top + __logf(total));
    for (int d = (int)threadIdx.x; d < V_DIM; d += (int)blockDim.x) {
        float value = 0.0f;
        for (int split = 0; split < p.num_splits; split++) {
            float lse = p.partial_lse[at + split];
            if (lse == NEGATIVE_INFINITY)
                continue;
            value += exp2_fast((lse - top) * LOG2E) *
                     load_partial(((const partial *)p.partial)[(at + split) * V_DIM + d]);
        }
        store_out(p, out_row(p, first + row, head), d, empty ? 0.0f : value / total);
    }
}
