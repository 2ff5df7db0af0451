/* SPDX-License-Identifier: Apache-2.0
 *
 * extend.cu: many queries of a sequence against the prefix in the cache and the new tokens.
 *
 * Block (x, y) computes a tile of rows of one sequence for KV head y. Row r is query r / GQA of
 * query head r % GQA of that KV head, so that grouped heads share each K and V that is read. The
 * grid is an upper bound from num_tokens and num_seqs. A block finds its sequence from q_indptr;
 * blocks left over clear rows of no sequence.
 *
 * Four warps have 16 * ROW_TILES rows each. If rows have more than 256 columns, there are as many
 * teams of two warps as shared memory allows (common.cuh, Teams). Keys come in tiles of KEY_TILE
 * through two stages of shared memory: while a tile is computed, the next is in flight, and the
 * places of the one after it are looked up. An fp8 cache is widened tile by tile. New tokens follow
 * in a run of their own, not quantised.
 */
#include "common.cuh"

#define THREADS    (EXTEND_WARPS * 32)
#define BLOCK_ROWS (EXTEND_WARPS / TEAM * 16 * ROW_TILES)

/* Dynamic shared memory: queries; two stages (with an fp8 cache two stages of codes and a widened
 * tile); the places of two tiles, and the index entries of a third; the scores that a team's warps
 * add. */
#define Q_BYTES     (BLOCK_ROWS * K_STRIDE)
#define STAGE_BYTES (KEY_TILE * (K_STRIDE + V_STRIDE))
#define CODE_BYTES  (KEY_TILE * (K_CODES + V_CODES))
#define TILES_BYTES MAX(2 * STAGE_BYTES, KV_IS_FP8 ? 2 * CODE_BYTES + STAGE_BYTES : 0)
#define PLACE_BYTES (2 * KEY_TILE * 16 + KEY_TILE * 4)
#define SCORE_BYTES (TEAM == 1 ? 0 : EXTEND_WARPS * ROW_TILES * KEY_TILE * 64)
static_assert(Q_BYTES + TILES_BYTES + PLACE_BYTES + SCORE_BYTES == EXTEND_SHARED,
              "the plugin and the kernel disagree");

/* Row views are kept if every score needs them. Otherwise they are computed again for the few tiles
 * that are partly visible, as registers are scarce. If scores need no other change, the exponential
 * applies the scale. */
#define KEEP_VIEWS  (CUSTOM_MASK || HAS_ALIBI)
#define SCALE_LATER (!CUSTOM_MASK && !HAS_ALIBI && !HAS_CAP && SM_SCALE > 0)

/* In f16, which has few small numbers, probabilities are multiplied by 2^LIFT. */
#define LIFT   (Q_DTYPE == DTYPE_F16 ? 15 : 0)
#define UNLIFT (1.0f / (1 << LIFT))

/* ---- Work ------------------------------------------------------------------------------------ */

/* Find the tile of block x. `tile` < 0: none, and `spare` counts the blocks left over. */
__device__ __forceinline__ void find_tile(const kernel_params &p, int &s, int &tile, int &spare)
{
    work_search at = {0, 0};
    int piece, block = (int)blockIdx.x;
    auto count = [&](int i) {
        return ((p.batch.q_indptr[i + 1] - p.batch.q_indptr[i]) * GQA + BLOCK_ROWS - 1) /
               BLOCK_ROWS;
    };
    tile = -1;
    if (!work_find_piece(&at, first_split_seq(p), block, count, &s, &piece))
        spare = block - at.before;
    else /* the last rows of a causal sequence see most keys: they go first */
        tile = count(s) - 1 - piece;
}

/* Clear rows after the last sequence: padding needs a finite output. */
__device__ void clear_padding(const kernel_params &p, int spare)
{
    int first = p.batch.q_indptr[index_num_seqs(&p.batch)],
        end = p.batch.q_indptr[0] + index_num_tokens(&p.batch);
    int spares = (int)gridDim.x - ((int)blockIdx.x - spare);
    for (int row = first + spare; row < end; row += spares)
        for (int h = 0; h < GQA; h++)
            clear_row(p, row, (int)blockIdx.y * GQA + h);
}

struct work {
    index_sequence q;
    int s, head;
    int row0, rows;     /* first row of the tile; rows of the sequence */
    int lo, hi;         /* keys that some row sees */
    int all_lo, all_hi; /* keys that every row sees */
};

__device__ __forceinline__ void begin_work(const kernel_params &p, int s, int tile, work &w)
{
    int ignored;
    w.s = s;
    w.head = (int)blockIdx.y;
    find_sequence(p, s, w.q);
    w.row0 = tile * BLOCK_ROWS;
    w.rows = w.q.q_len * GQA;
    int t0 = w.row0 / GQA, t1 = (min(w.row0 + BLOCK_ROWS, w.rows) - 1) / GQA;
    find_outline(p, w.q, t0, t1, w.lo, w.hi);
    position_range(p, w.q.prefix_len + t1, w.all_lo, ignored);
    position_range(p, w.q.prefix_len + t0, ignored, w.all_hi);
}

/* Row h * 8 + lane / 4 of the team's row tile m. */
__device__ __forceinline__ int row_of(const work &w, int m, int h)
{
    int lane = (int)threadIdx.x % 32;
    return w.row0 + (team_of() * ROW_TILES + m) * 16 + h * 8 + lane / 4;
}

__device__ __forceinline__ void view_row(const kernel_params &p, const work &w, int row,
                                         row_view &view)
{
    find_view(p, w.q, w.s, row < w.rows ? row / GQA : -1, w.head * GQA + row % GQA, view);
}

/* ---- Tiles of keys --------------------------------------------------------------------------- */

/* Keys [begin, end) in tiles, either all cached or all new. */
struct run {
    int begin, end, tiles; /* never empty */
};

__device__ __forceinline__ run make_run(int begin, int end)
{
    run r = {begin, end, (end - begin + KEY_TILE - 1) / KEY_TILE};
    return r;
}

/* Key i of tile n. Places after the last key repeat it, and are hidden later. */
__device__ __forceinline__ int tile_key(const run &r, int n, int i)
{
    return min(r.begin + n * KEY_TILE + i, r.end - 1);
}

/* Start to look up tile n: each thread loads the index entries of the keys that it needs. */
__device__ __forceinline__ void start_lookup(const kernel_params &p, const work &w, const run &r,
                                             int n, int *entries)
{
    int thread = (int)threadIdx.x;
    if (n >= r.tiles || thread >= KEY_TILE)
        return;
    const int *entry = find_entry(p, w.q, tile_key(r, n, thread));
    if (entry)
        copy4(shared_address(entries + thread), entry);
}

/* The entries have arrived: compute the places of the keys. */
__device__ __forceinline__ void finish_lookup(const kernel_params &p, const work &w, const run &r,
                                              int n, const int *entries, index_place *places)
{
    int thread = (int)threadIdx.x;
    if (n < r.tiles && thread < KEY_TILE)
        places[(n & 1) * KEY_TILE + thread] =
            find_key(p, w.q, w.head, tile_key(r, n, thread), entries[thread]);
}

/* Start to copy a tile of keys and values of `size` bytes per element. */
template <int size>
__device__ __forceinline__ void load_tile(const index_place *places, char *k, bool vectors)
{
    constexpr int k_stride = size == 1 ? K_CODES : K_STRIDE;
    constexpr int v_stride = size == 1 ? V_CODES : V_STRIDE;
    int thread = (int)threadIdx.x;
    char *v = k + KEY_TILE * k_stride;
    clear_pad<size>(k, k_stride, KEY_TILE, thread, THREADS);
    if (HEAD_DIM * size % 16 == 0 && V_DIM * size % 16 == 0 && vectors) {
#pragma unroll
        for (int i = 0; i < KEY_TILE; i += THREADS / 8) {
            index_place at = places[i + thread / 8];
            copy_row<HEAD_DIM, size>(k + (i + thread / 8) * k_stride, at.k, thread % 8);
            copy_row<V_DIM, size>(v + (i + thread / 8) * v_stride, at.v, thread % 8);
        }
        return;
    }
#pragma unroll 1
    for (int i = thread / 32; i < KEY_TILE; i += EXTEND_WARPS) {
        copy_row_slow<HEAD_DIM, size>(k + i * k_stride, places[i].k, thread % 32, 32);
        copy_row_slow<V_DIM, size>(v + i * v_stride, places[i].v, thread % 32, 32);
    }
}

/* Convert rows of fp8 codes to rows of Q_DTYPE. All loads come before the first store, or each step
 * would wait for the one before. */
template <int dim, int from_stride, int to_stride>
__device__ __forceinline__ void widen_rows(char *to, const char *from)
{
    constexpr int pieces = (dim + 15) / 16, count = (KEY_TILE * pieces + THREADS - 1) / THREADS;
    int thread = (int)threadIdx.x;
    uint4 codes[count];
#pragma unroll
    for (int n = 0; n < count; n++) {
        int i = n * THREADS + thread;
        if (i < KEY_TILE * pieces)
            codes[n] = *(const uint4 *)(from + i / pieces * from_stride + i % pieces * 16);
    }
#pragma unroll
    for (int n = 0; n < count; n++) {
        int i = n * THREADS + thread;
        if (i >= KEY_TILE * pieces)
            continue;
        uint4 *at = (uint4 *)(to + i / pieces * to_stride + i % pieces * 32);
        uint4 c = codes[n];
        at[0] = make_uint4(codes_to_query<0>(c.x), codes_to_query<1>(c.x), codes_to_query<0>(c.y),
                           codes_to_query<1>(c.y));
        at[1] = make_uint4(codes_to_query<0>(c.z), codes_to_query<1>(c.z), codes_to_query<0>(c.w),
                           codes_to_query<1>(c.w));
    }
}

/* ---- A tile ---------------------------------------------------------------------------------- */

/* Running maximum and sum of a warp's rows. */
struct sums {
    float most[ROW_TILES][2]; /* in units of log 2 */
    float sum[ROW_TILES][2];  /* this lane's part */
    float out[ROW_TILES][V_SLICE / 8][4];
#if KEEP_VIEWS
    row_view views[ROW_TILES][2];
#endif
};

typedef float scores[ROW_TILES][KEY_TILE / 8][4];

__device__ __forceinline__ void begin_sums(const kernel_params &p, const work &w, sums &state)
{
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#if KEEP_VIEWS
            view_row(p, w, row_of(w, m, h), state.views[m][h]);
#endif
            state.most[m][h] = NEGATIVE_INFINITY;
            state.sum[m][h] = 0.0f;
        }
#pragma unroll
        for (int d = 0; d < V_SLICE / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                state.out[m][d][e] = 0.0f;
    }
}

/* score[m][j]: products of row tile m with keys 8j to 8j + 7, over the warp's columns. */
__device__ __forceinline__ void score_keys(const char *q_rows, const char *k, scores &score)
{
    int lane = (int)threadIdx.x % 32, column = slice_of() * HEAD_SLICE * 2;
    u32 q_at = shared_address(q_rows) + (team_of() * ROW_TILES * 16 + (lane & 15)) * K_STRIDE +
               (lane >> 4) * 16 + column;
    u32 k_at = shared_address(k) + ((lane & 7) + (lane >> 4) * 8) * K_STRIDE +
               (lane >> 3 & 1) * 16 + column;
#pragma unroll
    for (int d = 0; d < HEAD_SLICE / 16; d++) {
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
                multiply<Q_DTYPE>(score[m][j * 2], a[m], b[0], b[1]);
                multiply<Q_DTYPE>(score[m][j * 2 + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Products of keys [begin, end) become logits, -inf where a key is hidden. Returns bits of the keys
 * that this lane's rows see, as for seen_by_any(). */
__device__ __forceinline__ u32 finish_scores(const kernel_params &p, const work &w,
                                             const sums &state, int begin, int end, bool check,
                                             scores &score)
{
    u32 any = 0;
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
#if KEEP_VIEWS
            const row_view &view = state.views[m][h];
#else
            row_view view;
            view_row(p, w, row_of(w, m, h), view);
#endif
#pragma unroll
            for (int j = 0; j < KEY_TILE / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int key = begin + j * 8 + (lane & 3) * 2 + e;
                    float &s = score[m][j][h * 2 + e];
                    bool sees = !check || sees_key(p, w.q, view, key, end);
                    s = finish_score(p, w.q, view, key, sees, s);
                    any |= sees ? 1u << (j * 2 + e) : 0;
                }
        }
    return any;
}

/* Logits, yet to be scaled by `scale`, become probabilities relative to the largest one so far, and
 * earlier sums are rescaled to it. */
__device__ __forceinline__ void weigh_keys(float scale, scores &score, sums &state)
{
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float here = NEGATIVE_INFINITY, total = 0.0f;
#pragma unroll
            for (int j = 0; j < KEY_TILE / 8; j++)
                here = fmaxf(here, fmaxf(score[m][j][h * 2], score[m][j][h * 2 + 1]));
            float top = fmaxf(state.most[m][h], softmax_quad_max(here) * scale);
            float base = top == NEGATIVE_INFINITY ? 0.0f : top;
            float shrink = softmax_exp2(state.most[m][h] - base);
            bool grown = top != state.most[m][h];
            state.most[m][h] = top;
#pragma unroll
            for (int j = 0; j < KEY_TILE / 8; j++)
#pragma unroll
                for (int e = h * 2; e < h * 2 + 2; e++) {
                    score[m][j][e] = softmax_exp2(score[m][j][e] * scale - (base - LIFT));
                    total += score[m][j][e];
                }
            state.sum[m][h] = state.sum[m][h] * shrink + total;
            if (__any_sync(~0u, grown)) { /* else shrink is 1, or there are no sums yet */
#pragma unroll
                for (int d = 0; d < V_SLICE / 8; d++) {
                    state.out[m][d][h * 2] *= shrink;
                    state.out[m][d][h * 2 + 1] *= shrink;
                }
            }
        }
}

/* out += probabilities x values, with probabilities in one or two parts of 16 bits. */
__device__ __forceinline__ void add_values(const scores &score, const char *v, u32 seen,
                                           sums &state)
{
    int lane = (int)threadIdx.x & 31;
    u32 v_at =
        shared_address(v) + (lane & 15) * V_STRIDE + (lane >> 4) * 16 + slice_of() * V_SLICE * 2;
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
                    rest[m][e] = remainder16<Q_DTYPE>(a[m][e], low, high);
            }
#pragma unroll
        for (int d = 0; d < V_SLICE / 16; d++) {
            u32 b[4];
            load_matrices_transposed(b, v_at + j * 16 * V_STRIDE + d * 32);
            if (CUSTOM_MASK) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    b[i] &= seen_halves(seen, j * 2 + i % 2);
            }
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                multiply<Q_DTYPE>(state.out[m][d * 2], a[m], b[0], b[1]);
                multiply<Q_DTYPE>(state.out[m][d * 2 + 1], a[m], b[2], b[3]);
                if (SPLIT_PROBABILITIES) {
                    multiply<Q_DTYPE>(state.out[m][d * 2], rest[m], finite16<Q_DTYPE>(b[0]),
                                      finite16<Q_DTYPE>(b[1]));
                    multiply<Q_DTYPE>(state.out[m][d * 2 + 1], rest[m], finite16<Q_DTYPE>(b[2]),
                                      finite16<Q_DTYPE>(b[3]));
                }
            }
        }
    }
}

/* Process keys [begin, end) of a tile, whose keys are at `k`, followed by its values. */
__device__ __forceinline__ void attend_tile(const kernel_params &p, const work &w, char *q_rows,
                                            char *k, int begin, int end, float factor, sums &state)
{
    scores score = {};
    char *v = k + KEY_TILE * K_STRIDE;
    u32 seen = 0;
    score_keys(q_rows, k, score);
    share_scores<ROW_TILES * KEY_TILE / 8>(score[0],
                                           (float4 *)(q_rows + EXTEND_SHARED - SCORE_BYTES));
    bool check = CUSTOM_MASK || begin < w.all_lo || begin + KEY_TILE > min(w.all_hi, end);
    if (!SCALE_LATER) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int j = 0; j < KEY_TILE / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    score[m][j][e] *= factor;
    }
    if (KEEP_VIEWS || HAS_CAP || check)
        seen = finish_scores(p, w, state, begin, end, check, score);
    weigh_keys(SCALE_LATER ? factor : 1.0f, score, state);
    if (CUSTOM_MASK)
        seen = seen_by_any(seen);
    if (end - begin < KEY_TILE) {
        clear_rows(v + (end - begin) * V_STRIDE, (KEY_TILE - end + begin) * V_STRIDE,
                   (int)threadIdx.x, THREADS);
        __syncthreads();
    }
    add_values(score, v, seen, state);
}

/* ---- A run of tiles -------------------------------------------------------------------------- */

/* While tile n is computed, n + 1 is in flight and n + 2 is looked up. `factor` turns products into
 * logits. */
template <int size>
__device__ __forceinline__ void attend_run(const kernel_params &p, const work &w, const run &r,
                                           bool vectors, float factor, char *shared, sums &state)
{
    constexpr int stage_bytes = size == 1 ? CODE_BYTES : STAGE_BYTES;
    char *stages = shared + Q_BYTES, *wide = stages + 2 * CODE_BYTES;
    index_place *places = (index_place *)(stages + TILES_BYTES);
    int *entries = (int *)(places + 2 * KEY_TILE);
    start_lookup(p, w, r, 0, entries);
    copy_commit();
    copy_wait<0>();
    finish_lookup(p, w, r, 0, entries, places);
    __syncthreads(); /* the stages may still be in use by the previous run */
    load_tile<size>(places, stages, vectors);
    start_lookup(p, w, r, 1, entries);
    copy_commit();
#pragma unroll 1
    for (int n = 0; n < r.tiles; n++) {
        char *k = stages + (n & 1) * stage_bytes;
        copy_wait<0>();
        finish_lookup(p, w, r, n + 1, entries, places);
        __syncthreads();
        if (n + 1 < r.tiles)
            load_tile<size>(places + (~n & 1) * KEY_TILE, stages + (~n & 1) * stage_bytes, vectors);
        start_lookup(p, w, r, n + 2, entries);
        copy_commit();
        if (size == 1) {
            widen_rows<HEAD_DIM, K_CODES, K_STRIDE>(wide, k);
            widen_rows<V_DIM, V_CODES, V_STRIDE>(wide + KEY_TILE * K_STRIDE,
                                                 k + KEY_TILE * K_CODES);
            k = wide;
            __syncthreads();
        }
        attend_tile(p, w, shared, k, r.begin + n * KEY_TILE, r.end, factor, state);
    }
    copy_wait<0>();
}

/* Process all cached keys, then the new tokens. Without fp8 both form one run. */
__device__ __forceinline__ void attend(const kernel_params &p, const work &w, char *shared,
                                       sums &state)
{
    int border = KV_IS_FP8 ? max(w.lo, min(w.hi, w.q.first_new)) : w.lo;
    int vectors = KV_IS_FP8 ? CALL_ALIGNED_NEW : CALL_ALIGNED_CACHE | CALL_ALIGNED_NEW;
    if (KV_IS_FP8 && border > w.lo) {
        float scale = v_scale_of(p, w.head);
        attend_run<1>(p, w, make_run(w.lo, border), p.operands.aligned & CALL_ALIGNED_CACHE,
                      SCORE_FACTOR * k_scale_of(p, w.head), shared, state);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int d = 0; d < V_SLICE / 8; d++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    state.out[m][d][e] *= scale;
    }
    if (border < w.hi)
        attend_run<2>(p, w, make_run(border, w.hi), (p.operands.aligned & vectors) == vectors,
                      SCORE_FACTOR, shared, state);
}

/* ---- Results --------------------------------------------------------------------------------- */

/* This lane's two columns of output tile d. */
__device__ __forceinline__ void store_columns(const kernel_params &p, char *to, int d, float low,
                                              float high)
{
    int column = slice_of() * V_SLICE + d * 8 + ((int)threadIdx.x & 3) * 2;
    if (column + 1 < V_DIM && p.operands.aligned & CALL_ALIGNED_OUT) {
#if OUT_DTYPE == DTYPE_F32
        *(float2 *)(to + column * 4) = make_float2(low, high);
#else
        *(u32 *)(to + column * 2) = pack16<OUT_DTYPE>(low, high);
#endif
        return;
    }
    if (column < V_DIM)
        store_out(p, to, column, low);
    if (column + 1 < V_DIM)
        store_out(p, to, column + 1, high);
}

__device__ __forceinline__ void finish_row(const kernel_params &p, const work &w, int m, int h,
                                           const sums &state)
{
    int row = row_of(w, m, h), lane = (int)threadIdx.x & 31;
    float total = softmax_quad_sum(state.sum[m][h]), top = state.most[m][h], factor = 1.0f;
    const bool is_lost = total == 0.0f; /* without weights values may be NaN (MEAN-14) */
    if (row >= w.rows)
        return;
    int head = w.head * GQA + row % GQA, at = w.q.first_row + row / GQA;
    if (HAS_SINKS && p.operands.sinks && p.operands.sinks[head] != NEGATIVE_INFINITY) {
        float sink = p.operands.sinks[head] * LOG2E, with = fmaxf(top, sink);
        factor = softmax_exp2(top - with);
        total = total * factor + softmax_exp2(sink - with + LIFT);
        top = with;
    }
    bool empty = total == 0.0f;
    factor = empty ? 0.0f : factor / total;
    if ((lane & 3) == 0 && slice_of() == 0)
        store_lse(p, at, head, empty ? NEGATIVE_INFINITY : (top + __log2f(total * UNLIFT)) * LN2);
    char *to = out_row(p, at, head);
#pragma unroll
    for (int d = 0; d < V_SLICE / 8; d++)
        store_columns(p, to, d, is_lost ? 0.0f : state.out[m][d][h * 2] * factor,
                      is_lost ? 0.0f : state.out[m][d][h * 2 + 1] * factor);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attn_extend(const __grid_constant__ kernel_params p)
{
    extern __shared__ __align__(128) char shared[];
    int s = 0, tile, spare = 0;
    work w;
    sums state;
    find_tile(p, s, tile, spare);
    if (tile < 0) {
        clear_padding(p, spare);
        return;
    }
    begin_work(p, s, tile, w);
    load_queries<BLOCK_ROWS, THREADS>(p, w.q, w.row0, w.rows, w.head, shared);
    copy_commit();
    begin_sums(p, w, state);
    attend(p, w, shared, state);
    copy_wait<0>(); /* wait for the queries if there was no key */
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            finish_row(p, w, m, h, state);
}
