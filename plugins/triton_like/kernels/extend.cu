/* SPDX-License-Identifier: Apache-2.0
 *
 * extend.cu: many queries of a sequence against the prefix in the cache and the new tokens.
 *
 * Block (x, y) does a tile of rows of one sequence for KV head y; row r is query r / GQA of query
 * head r % GQA of that KV head, so that grouped heads share each K and V that is read. The grid is
 * an upper bound made of num_tokens and num_seqs; a block finds its sequence from q_indptr, and the
 * blocks left over clear rows of no sequence.
 *
 * Four warps, 16 * ROW_TILES rows each. Keys come in tiles of KEY_TILE through two stages of shared
 * memory: while a tile is worked on the next is on its way, and the places of the one after it are
 * looked up. An fp8 cache is widened tile by tile; new tokens follow in tiles of their own, as they
 * were given.
 */
#include "common.cuh"

#define EXTEND_WARPS 4
#define THREADS    (EXTEND_WARPS * 32)
#define BLOCK_ROWS (EXTEND_WARPS * 16 * ROW_TILES)
#define STAGE_BYTES (KEY_TILE * (K_STRIDE + V_STRIDE))

/* Dynamic shared memory: queries, two stages, one widened tile for fp8, the places of two tiles. */
#define Q_BYTES     (BLOCK_ROWS * K_STRIDE)
#define WIDE_BYTES  (KV_IS_FP8 ? STAGE_BYTES : 0)
#define PLACE_BYTES (2 * KEY_TILE * 16)
static_assert(Q_BYTES + 2 * STAGE_BYTES + WIDE_BYTES + PLACE_BYTES == EXTEND_SHARED,
              "the plugin and the kernel disagree");

/* What a row sees is kept where every score asks for it, else found again at the few tiles that are
 * not seen whole: registers are short. Scores are scaled within the exponential where nothing else
 * is done to them. */
#define KEEP_VIEWS   (CUSTOM_MASK || HAS_ALIBI)
#define SCALE_LATER  (!CUSTOM_MASK && !HAS_ALIBI && !HAS_CAP && SM_SCALE > 0)

/* The tile of block x; `tile` < 0: none, and `spare` counts the blocks left over. */
__device__ __forceinline__ void find_tile(const kernel_params &p, int &s, int &tile, int &spare)
{
    int lane = (int)threadIdx.x & 31, block = (int)blockIdx.x, before = 0, seqs = num_seqs(p);
    tile = -1;
    for (int base = 0; base < seqs; base += 32) {
        int at = base + lane, count = 0;
        if (at < seqs)
            count = ((p.q_indptr[at + 1] - p.q_indptr[at]) * GQA + BLOCK_ROWS - 1) / BLOCK_ROWS;
        int sum = count;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? other : 0;
        }
        u32 mine = __ballot_sync(~0u, block < before + sum);
        if (mine) {
            int owner = __ffs((int)mine) - 1;
            int first = before + __shfl_sync(~0u, sum - count, owner);
            s = base + owner;
            /* The last rows of a causal sequence see most: they go first. */
            tile = __shfl_sync(~0u, count, owner) - 1 - (block - first);
            return;
        }
        before += __shfl_sync(~0u, sum, 31);
    }
    spare = block - before;
}

/* Rows behind the last sequence are padding, whose output has to be finite. */
__device__ void clear_padding(const kernel_params &p, int spare)
{
    int first = p.q_indptr[num_seqs(p)], end = p.q_indptr[0] + num_tokens(p);
    int spares = (int)gridDim.x - ((int)blockIdx.x - spare);
    for (int row = first + spare; row < end; row += spares)
        for (int h = 0; h < GQA; h++)
            clear_row(p, row, (int)blockIdx.y * GQA + h);
}

/* Start the copy of a tile of keys and values of `size` bytes an element. */
template <int size>
__device__ __forceinline__ void load_tile(const kernel_params &p, const key_place *places, char *k,
                                          char *v, bool vectors)
{
    constexpr int k_pieces = HEAD_DIM * size / 16, v_pieces = V_DIM * size / 16;
    if (k_pieces * 16 == HEAD_DIM * size && v_pieces * 16 == V_DIM * size && vectors) {
        for (int c = (int)threadIdx.x; c < KEY_TILE * k_pieces; c += THREADS) {
            int row = c / (k_pieces ? k_pieces : 1), piece = c % (k_pieces ? k_pieces : 1);
            const char *from = places[row].k;
            copy16(shared_address(k) + row * K_STRIDE + piece * 16, from ? from + piece * 16 : 0,
                   p.q);
        }
        for (int c = (int)threadIdx.x; c < KEY_TILE * v_pieces; c += THREADS) {
            int row = c / (v_pieces ? v_pieces : 1), piece = c % (v_pieces ? v_pieces : 1);
            const char *from = places[row].v;
            copy16(shared_address(v) + row * V_STRIDE + piece * 16, from ? from + piece * 16 : 0,
                   p.q);
        }
        return;
    }
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int row = warp; row < KEY_TILE; row += EXTEND_WARPS) {
        copy_row_slow<HEAD_DIM, size>(k + row * K_STRIDE, places[row].k, lane, 32);
        copy_row_slow<V_DIM, size>(v + row * V_STRIDE, places[row].v, lane, 32);
    }
}

/* Queries into shared memory, zeros where there is no row. */
__device__ __forceinline__ void load_queries(const kernel_params &p, const sequence &q, int row0,
                                             int head, char *to)
{
    constexpr int pieces = HEAD_DIM / 8;
    int rows = q.q_len * GQA;
    bool vectors = pieces * 8 == HEAD_DIM && p.aligned & ALIGNED_Q;
    for (int r = (int)threadIdx.x / 8; r < BLOCK_ROWS; r += THREADS / 8) {
        int row = row0 + r, lane = (int)threadIdx.x % 8;
        const char *from = (const char *)p.q + (i64)(q.first_row + row / GQA) * p.q_row +
                           (i64)(head * GQA + row % GQA) * p.q_head;
        if (row >= rows)
            from = 0;
        if (vectors) {
            for (int piece = lane; piece < pieces; piece += 8)
                copy16(shared_address(to) + r * K_STRIDE + piece * 16,
                       from ? from + piece * 16 : 0, p.q);
        } else {
            copy_row_slow<HEAD_DIM, 2>(to + r * K_STRIDE, from, lane, 8);
        }
    }
}

/* Zero the columns between HEAD_DIM and HEAD_PAD, which no copy writes to. */
__device__ __forceinline__ void clear_pad(char *rows, int count)
{
    constexpr int pad = HEAD_PAD - HEAD_DIM;
    for (int i = (int)threadIdx.x; i < count * pad; i += THREADS)
        *(u16 *)(rows + i / (pad ? pad : 1) * K_STRIDE + (HEAD_DIM + i % (pad ? pad : 1)) * 2) = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attn_extend(const __grid_constant__ kernel_params p)
{
    extern __shared__ __align__(128) char shared[];
    char *q_rows = shared;
    char *stages = q_rows + Q_BYTES;
    char *wide = stages + 2 * STAGE_BYTES;
    key_place *places = (key_place *)(wide + WIDE_BYTES);
    int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    int head = (int)blockIdx.y;

    int s = 0, tile, spare = 0;
    find_tile(p, s, tile, spare);
    if (tile < 0) {
        clear_padding(p, spare);
        return;
    }
    sequence q;
    find_sequence(p, s, q);
    int row0 = tile * BLOCK_ROWS, rows = q.q_len * GQA;
    int t0 = row0 / GQA, t1 = (min(row0 + BLOCK_ROWS, rows) - 1) / GQA;
    int lo, hi;
    find_outline(p, q, t0, t1, lo, hi);

    /* Tiles of the cache, then tiles of new tokens; what is not fp8 needs no such border. */
    int cached_end = KV_IS_FP8 ? min(hi, q.first_new) : lo;
    int new_begin = max(lo, cached_end);
    int cached = cached_end > lo ? (cached_end - lo + KEY_TILE - 1) / KEY_TILE : 0;
    int tiles = cached + (hi - new_begin + KEY_TILE - 1) / KEY_TILE;

    /* Keys that every row sees. */
    int ignored, all_lo, all_hi;
    position_range(p, q.prefix_len + t1, all_lo, ignored);
    position_range(p, q.prefix_len + t0, ignored, all_hi);

    load_queries(p, q, row0, head, q_rows);
    if (HEAD_PAD > HEAD_DIM) {
        clear_pad(q_rows, BLOCK_ROWS);
        clear_pad(stages, KEY_TILE);
        clear_pad(stages + STAGE_BYTES, KEY_TILE);
        if (KV_IS_FP8)
            clear_pad(wide, KEY_TILE);
    }

    auto tile_begin = [&](int n) {
        return n < cached ? lo + n * KEY_TILE : new_begin + (n - cached) * KEY_TILE;
    };
    auto tile_end = [&](int n) { return n < cached ? cached_end : hi; };
    auto load = [&](int n) {
        char *k = stages + (n & 1) * STAGE_BYTES;
        const key_place *at = places + (n & 1) * KEY_TILE;
        if (n < cached)
            load_tile<KV_BYTES>(p, at, k, k + KEY_TILE * K_STRIDE, p.aligned & ALIGNED_CACHE);
        else if (KV_IS_FP8)
            load_tile<2>(p, at, k, k + KEY_TILE * K_STRIDE, p.aligned & ALIGNED_NEW);
        else
            load_tile<2>(p, at, k, k + KEY_TILE * K_STRIDE,
                         (p.aligned & (ALIGNED_CACHE | ALIGNED_NEW)) ==
                             (ALIGNED_CACHE | ALIGNED_NEW));
    };

#if KEEP_VIEWS
    row_view views[ROW_TILES][2];
#endif
    float most[ROW_TILES][2], sum[ROW_TILES][2];
    float out[ROW_TILES][V_PAD / 8][4];
    for (int m = 0; m < ROW_TILES; m++) {
        for (int h = 0; h < 2; h++) {
#if KEEP_VIEWS
            int row = row0 + (warp * ROW_TILES + m) * 16 + h * 8 + lane / 4;
            find_view(p, q, s, row < rows ? row / GQA : -1, head * GQA + row % GQA, views[m][h]);
#endif
            most[m][h] = NEGATIVE_INFINITY;
            sum[m][h] = 0.0f;
        }
        for (int d = 0; d < V_PAD / 8; d++)
            for (int e = 0; e < 4; e++)
                out[m][d][e] = 0.0f;
    }
    float k_factor = SCORE_FACTOR, v_factor = 1.0f;
    if (KV_IS_FP8 && cached > 0) {
        k_factor *= k_scale_of(p, head);
        v_factor = v_scale_of(p, head);
    }

    for (int i = thread; i < 2 * KEY_TILE; i += THREADS)
        places[i] = find_key(p, q, head, tile_begin(i / KEY_TILE) + i % KEY_TILE,
                             i / KEY_TILE < tiles ? tile_end(i / KEY_TILE) : 0);
    __syncthreads();
    if (tiles > 0)
        load(0);
    copy_commit();

    u32 q_at = shared_address(q_rows) + (warp * ROW_TILES * 16 + (lane & 15)) * K_STRIDE +
               (lane >> 4) * 16;
    u32 k_lane = ((lane & 7) + (lane >> 4) * 8) * K_STRIDE + (lane >> 3 & 1) * 16;
    u32 v_lane = ((lane & 7) + (lane >> 3 & 1) * 8) * V_STRIDE + (lane >> 4) * 16;

    for (int n = 0; n < tiles; n++) {
        char *k_tile = stages + (n & 1) * STAGE_BYTES, *v_tile = k_tile + KEY_TILE * K_STRIDE;
        copy_wait<0>();
        __syncthreads();
        if (n + 1 < tiles)
            load(n + 1);
        copy_commit();
        key_place next = {0, 0};
        if (n + 2 < tiles && thread < KEY_TILE)
            next = find_key(p, q, head, tile_begin(n + 2) + thread, tile_end(n + 2));
        if (KV_IS_FP8 && n < cached) {
            char *k_wide = wide, *v_wide = wide + KEY_TILE * K_STRIDE;
            widen_rows<HEAD_DIM, KEY_TILE, K_STRIDE, THREADS>(k_wide, k_tile, thread);
            widen_rows<V_DIM, KEY_TILE, V_STRIDE, THREADS>(v_wide, v_tile, thread);
            k_tile = k_wide;
            v_tile = v_wide;
            __syncthreads();
        }
        if (KV_IS_FP8 && n == cached && cached > 0) { /* so far values lack their scale */
            for (int m = 0; m < ROW_TILES; m++)
                for (int d = 0; d < V_PAD / 8; d++)
                    for (int e = 0; e < 4; e++)
                        out[m][d][e] *= v_factor;
            v_factor = 1.0f;
            k_factor = SCORE_FACTOR;
        }

        float score[ROW_TILES][KEY_TILE / 8][4];
        for (int m = 0; m < ROW_TILES; m++)
            for (int j = 0; j < KEY_TILE / 8; j++)
                for (int e = 0; e < 4; e++)
                    score[m][j][e] = 0.0f;
        u32 k_at = shared_address(k_tile) + k_lane;
#pragma unroll
        for (int d = 0; d < HEAD_PAD / 16; d++) {
            u32 a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
                load_matrices(a[m], q_at + m * 16 * K_STRIDE + d * 32);
#pragma unroll
            for (int j = 0; j < KEY_TILE / 16; j++) {
                u32 b[4];
                load_matrices(b, k_at + j * 16 * K_STRIDE + d * 32);
#pragma unroll
                for (int m = 0; m < ROW_TILES; m++) {
                    multiply(score[m][j * 2], a[m], b[0], b[1]);
                    multiply(score[m][j * 2 + 1], a[m], b[2], b[3]);
                }
            }
        }

        int begin = tile_begin(n), end = tile_end(n);
        bool check = CUSTOM_MASK || begin < all_lo || begin + KEY_TILE > min(all_hi, end);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
            if (!SCALE_LATER) {
#pragma unroll
                for (int j = 0; j < KEY_TILE / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        score[m][j][e] *= k_factor;
            }
            if (KEEP_VIEWS || HAS_CAP || check) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
#if KEEP_VIEWS
                    const row_view &view = views[m][h];
#else
                    row_view view;
                    int row = row0 + (warp * ROW_TILES + m) * 16 + h * 8 + lane / 4;
                    find_view(p, q, s, row < rows ? row / GQA : -1, 0, view);
#endif
#pragma unroll
                    for (int j = 0; j < KEY_TILE / 8; j++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            score[m][j][h * 2 + e] =
                                finish_score(p, q, view, begin + j * 8 + (lane & 3) * 2 + e, end,
                                             score[m][j][h * 2 + e], check);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float here = NEGATIVE_INFINITY;
#pragma unroll
                for (int j = 0; j < KEY_TILE / 8; j++)
                    here = fmaxf(here, fmaxf(score[m][j][h * 2], score[m][j][h * 2 + 1]));
                float scale = SCALE_LATER ? k_factor : 1.0f;
                float top = fmaxf(most[m][h], quad_max(here) * scale);
                float base = top == NEGATIVE_INFINITY ? 0.0f : top;
                float shrink = exp2_fast(most[m][h] - base), total = 0.0f;
                bool grown = top != most[m][h];
                most[m][h] = top;
#pragma unroll
                for (int j = 0; j < KEY_TILE / 8; j++)
#pragma unroll
                    for (int e = h * 2; e < h * 2 + 2; e++) {
                        score[m][j][e] = exp2_fast(score[m][j][e] * scale - base);
                        total += score[m][j][e];
                    }
                sum[m][h] = sum[m][h] * shrink + total;
                if (__any_sync(~0u, grown)) { /* else shrink is 1, or there is nothing yet */
#pragma unroll
                    for (int d = 0; d < V_PAD / 8; d++) {
                        out[m][d][h * 2] *= shrink;
                        out[m][d][h * 2 + 1] *= shrink;
                    }
                }
            }
        }

        u32 v_at = shared_address(v_tile) + v_lane;
#pragma unroll
        for (int j = 0; j < KEY_TILE / 16; j++) {
            u32 a[ROW_TILES][4], rest[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float low = score[m][j * 2 + e / 2][e % 2 * 2];
                    float high = score[m][j * 2 + e / 2][e % 2 * 2 + 1];
                    a[m][e] = pack16<Q_DTYPE>(low, high);
                    if (SPLIT_PROBABILITIES)
                        rest[m][e] = remainder16(a[m][e], low, high);
                }
#pragma unroll
            for (int d = 0; d < V_PAD / 16; d++) {
                u32 b[4];
                load_matrices_transposed(b, v_at + j * 16 * V_STRIDE + d * 32);
#pragma unroll
                for (int m = 0; m < ROW_TILES; m++) {
                    multiply(out[m][d * 2], a[m], b[0], b[1]);
                    multiply(out[m][d * 2 + 1], a[m], b[2], b[3]);
                    if (SPLIT_PROBABILITIES) {
                        multiply(out[m][d * 2], rest[m], b[0], b[1]);
                        multiply(out[m][d * 2 + 1], rest[m], b[2], b[3]);
                    }
                }
            }
        }
        if (n + 2 < tiles && thread < KEY_TILE)
            places[(n & 1) * KEY_TILE + thread] = next;
    }
    copy_wait<0>();

#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row0 + (warp * ROW_TILES + m) * 16 + h * 8 + lane / 4;
            float total = quad_sum(sum[m][h]), top = most[m][h];
            if (row >= rows)
                continue;
            int q_head = head * GQA + row % GQA, at = q.first_row + row / GQA;
            float factor = v_factor;
            if (HAS_SINKS && p.sinks && p.sinks[q_head] != NEGATIVE_INFINITY) {
                float sink = p.sinks[q_head] * LOG2E, with = fmaxf(top, sink);
                float shrink = exp2_fast(top - with);
                total = total * shrink + exp2_fast(sink - with);
                factor *= shrink;
                top = with;
            }
            bool empty = top == NEGATIVE_INFINITY;
            factor = empty ? 0.0f : factor / total;
            if ((lane & 3) == 0)
                store_lse(p, at, q_head,
                          empty ? NEGATIVE_INFINITY : (top + __log2f(total)) * LN2);
            char *to = out_row(p, at, q_head);
#pragma unroll
            for (int d = 0; d < V_PAD / 8; d++) {
                int column = d * 8 + (lane & 3) * 2;
                float low = out[m][d][h * 2] * factor, high = out[m][d][h * 2 + 1] * factor;
                if (column + 1 < V_DIM && p.aligned & ALIGNED_OUT) {
#if OUT_DTYPE == DTYPE_F32
                    *(float2 *)(to + column * 4) = make_float2(low, high);
#else
                    *(u32 *)(to + column * 2) = pack16<OUT_DTYPE>(low, high);
#endif
                } else {
                    if (column < V_DIM)
                        store_out(p, to, column, low);
                    if (column + 1 < V_DIM)
                        store_out(p, to, column + 1, high);
                }
            }
        }
}
