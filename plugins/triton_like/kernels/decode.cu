/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.cu: few queries of a sequence against many keys, in two stages.
 *
 * attn_decode: a piece of work is a row tile against a split of its keys. A row tile is 16 rows of
 * a KV head, row r being query r / GQA of query head r % GQA, so that grouped heads share each K
 * and V that is read. There are as many blocks as the device can run at once. Block x takes the
 * pieces x, x + gridDim.x ... of the batch, so the grid does not depend on lengths.
 *
 * Each of TEAMS teams of TEAM warps (common.cuh, Teams) processes every TEAMS-th group of 16 keys of
 * the split, with STAGES groups in flight in shared memory of its own. Then the teams' results are
 * merged. If the keys were not split, that is the output. Otherwise it is a partial result: output,
 * normalised, and the natural logarithm of its denominator.
 *
 * attn_reduce: block (x, y) merges the partial results of row x and query head y, and adds the
 * sink.
 *
 * An fp8 cache stays fp8 in shared memory. Codes are converted to f16, exactly, as operands of the
 * products. Their scales are factors of the scores and of the sums. New tokens, which are not
 * quantised, come last.
 */
#include "common.cuh"

#define THREADS (WARPS * 32)
#define TEAMS   (WARPS / TEAM)
#define ROWS    16 /* of a tile */
#define GROUP   16 /* keys */

/* Dynamic shared memory: the queries; the stages of each team, each with room for a group of new
 * tokens, too; the scores that a team's warps add. In the end the results of the teams replace all
 * of these. */
#define PLAIN_BYTES  (GROUP * (K_STRIDE + V_STRIDE))
#define STAGE_BYTES  (KV_IS_FP8 ? GROUP * (K_CODES + V_CODES) : PLAIN_BYTES)
#define TEAM_BYTES   MAX((STAGE_BYTES) * (STAGES), PLAIN_BYTES)
#define SCORE_BYTES  (TEAM == 1 ? 0 : WARPS * GROUP * 64)
#define Q_BYTES      (ROWS * K_STRIDE)
#define MERGE_STRIDE (V_PAD + 4) /* floats */
#define MERGE_BYTES  (TEAMS * ROWS * (MERGE_STRIDE + 2) * 4)
static_assert(MAX(Q_BYTES + TEAMS * TEAM_BYTES + SCORE_BYTES, MERGE_BYTES) == DECODE_SHARED,
              "the plugin and the kernel disagree");

/* In f16, which has few small numbers, probabilities are multiplied by 2^LIFT. */
#define LIFT   (KV_IS_FP8 || Q_DTYPE == DTYPE_F16 ? 15 : 0)
#define UNLIFT (1.0f / (1 << LIFT))

#if PARTIAL_DTYPE == DTYPE_F32
typedef float partial;
#else
typedef u16 partial;
#endif

__device__ __forceinline__ float load_partial(partial x)
{
    return PARTIAL_DTYPE == DTYPE_F32 ? (float)x : load16<PARTIAL_DTYPE>((u16)x);
}

__device__ __forceinline__ partial store_partial(float x)
{
    return PARTIAL_DTYPE == DTYPE_F32 ? (partial)x : store16<PARTIAL_DTYPE>(x);
}

/* ---- Work ------------------------------------------------------------------------------------ */

/* A piece of work: a row tile against a split of its keys. */
struct work {
    index_sequence q;
    int s, head;
    int row0, rows;             /* first row of the tile; rows of the sequence */
    int split, splits;          /* index and number of splits */
    int begin, cached_end, end; /* keys; new tokens begin at cached_end */
    int cached, groups;         /* groups of cached keys; of all keys */
    int all_lo, all_hi;         /* keys that every row sees */
};

/* Queries of a row tile. */
__device__ __forceinline__ void tile_queries(const index_sequence &q, int row0, int &t0, int &t1)
{
    t0 = row0 / GQA;
    t1 = (min(row0 + ROWS, q.q_len * GQA) - 1) / GQA;
}

/* Find the keys [lo, hi) of a row tile, and the `count` of splits that divide them. Returns how many
 * of these have keys. */
__device__ __forceinline__ int tile_splits(const kernel_params &p, const index_sequence &q,
                                           int row0, int &lo, int &hi, int &count)
{
    int t0, t1;
    tile_queries(q, row0, t0, t1);
    find_outline(p, q, t0, t1, lo, hi);
    count = splits_count(hi - lo, p.split_tile, p.num_splits);
    return splits_used(hi - lo, count);
}

/* The number of pieces of work of a sequence. */
__device__ __forceinline__ int count_work(const kernel_params &p, int s)
{
    index_sequence q;
    int lo, hi, count, sum = 0;
    find_sequence(p, s, q);
    for (int row0 = 0; row0 < q.q_len * GQA; row0 += ROWS)
        sum += tile_splits(p, q, row0, lo, hi, count);
    return sum * KV_HEADS;
}

__device__ __forceinline__ bool find_work(const kernel_params &p, work_search &at, int wanted,
                                          work &w)
{
    int piece, lo, hi, count, t0, t1, ignored;
    auto count_one = [&](int s) { return count_work(p, s); };
    if (!work_find_piece(&at, index_num_seqs(&p.batch), wanted, count_one, &w.s, &piece))
        return false;
    find_sequence(p, w.s, w.q);
    w.head = piece % KV_HEADS;
    w.rows = w.q.q_len * GQA;
    w.split = piece / KV_HEADS;
    w.row0 = 0;
    while (w.split >= (w.splits = tile_splits(p, w.q, w.row0, lo, hi, count))) {
        w.split -= w.splits;
        w.row0 += ROWS;
    }
    splits_range(hi - lo, count, w.split, &w.begin, &w.end);
    w.begin += lo;
    w.end += lo;
    w.cached_end = max(w.begin, min(w.end, w.q.first_new));
    w.cached = (w.cached_end - w.begin + GROUP - 1) / GROUP;
    w.groups = w.cached + (w.end - w.cached_end + GROUP - 1) / GROUP;
    tile_queries(w.q, w.row0, t0, t1);
    position_range(p, w.q.prefix_len + t1, w.all_lo, ignored);
    position_range(p, w.q.prefix_len + t0, ignored, w.all_hi);
    return true;
}

__device__ __forceinline__ int group_begin(const work &w, int n)
{
    return n < w.cached ? w.begin + n * GROUP : w.cached_end + (n - w.cached) * GROUP;
}

__device__ __forceinline__ int group_end(const work &w, int n)
{
    return n < w.cached ? w.cached_end : w.end;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Start to copy 16 keys and values, whose places lanes 0 to 15 have, by a team. */
template <int size>
__device__ __forceinline__ void load_group(const index_place &mine, char *k, bool vectors)
{
    constexpr int k_stride = size == 1 ? K_CODES : K_STRIDE;
    constexpr int v_stride = size == 1 ? V_CODES : V_STRIDE;
    int lane = (int)threadIdx.x & 31;
    char *v = k + GROUP * k_stride;
    clear_pad<size>(k, k_stride, GROUP, team_lane(), 32 * TEAM);
    if (HEAD_DIM * size % 16 == 0 && V_DIM * size % 16 == 0 && vectors) {
#pragma unroll
        for (int i = 0; i < GROUP; i += 4 * TEAM) {
            int r = i + team_lane() / 8;
            const char *k_from = (const char *)__shfl_sync(~0u, (u64)mine.k, r);
            const char *v_from = (const char *)__shfl_sync(~0u, (u64)mine.v, r);
            copy_row<HEAD_DIM, size>(k + r * k_stride, k_from, lane % 8);
            copy_row<V_DIM, size>(v + r * v_stride, v_from, lane % 8);
        }
        return;
    }
#pragma unroll 1
    for (int r = 0; r < GROUP; r++) {
        const char *k_from = (const char *)__shfl_sync(~0u, (u64)mine.k, r);
        const char *v_from = (const char *)__shfl_sync(~0u, (u64)mine.v, r);
        copy_row_slow<HEAD_DIM, size>(k + r * k_stride, k_from, team_lane(), 32 * TEAM);
        copy_row_slow<V_DIM, size>(v + r * v_stride, v_from, team_lane(), 32 * TEAM);
    }
}

/* The groups that a team has in flight; equal in both of its warps. */
struct feed {
    int ahead; /* the next group to copy */
    int entry; /* index entry of this lane's key of that group */
};

/* Key (lane & 15) of group n. Places after the last key repeat it, and are hidden later. */
__device__ __forceinline__ int lane_key(const work &w, int n)
{
    return min(group_begin(w, n) + ((int)threadIdx.x & 15), group_end(w, n) - 1);
}

__device__ __forceinline__ feed begin_feed(const kernel_params &p, const work &w, int n)
{
    const int *entry = n < w.groups ? find_entry(p, w.q, lane_key(w, n)) : 0;
    feed f = {n, entry ? *entry : 0};
    return f;
}

/* Start to copy the next group below `limit`, if there is one, and look up the one after it. */
template <int size>
__device__ __forceinline__ void start_group(const kernel_params &p, const work &w, feed &f,
                                            char *to, int limit)
{
    feed now = f;
    f = begin_feed(p, w, now.ahead + TEAMS);
    if (now.ahead < limit) {
        index_place at = find_key(p, w.q, w.head, lane_key(w, now.ahead), now.entry);
        load_group<size>(at, to,
                         p.operands.aligned &
                             (now.ahead < w.cached ? CALL_ALIGNED_CACHE : CALL_ALIGNED_NEW));
    }
    copy_commit();
}

/* ---- Queries --------------------------------------------------------------------------------- */

/* A warp's queries as operand `a` of the products with keys: rows lane / 4 and lane / 4 + 8. */
__device__ __forceinline__ void take_queries(const char *q_rows, u32 (&a)[HEAD_SLICE / 16][4])
{
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int d = 0; d < HEAD_SLICE / 16; d++)
        load_matrices(a[d], shared_address(q_rows) + (lane & 15) * K_STRIDE + (lane >> 4) * 16 +
                                slice_of() * HEAD_SLICE * 2 + d * 32);
}

/* Two bf16 values times a power of two as f16 values. */
__device__ __forceinline__ u32 bf16_to_f16(u32 word, float power)
{
    return pack16<DTYPE_F16>(bf16_to_f32((u16)word) * power,
                             bf16_to_f32((u16)(word >> 16)) * power);
}

/* The same for products with codes, in the order of the codes: lane c of a quad has elements 4c to
 * 4c + 3 of each 16. A bf16 row becomes f16 by the power of two that brings its largest element to
 * 2^15 or above. Elements down to 2^-32 of that stay exact, which covers the range of e5m2's
 * values. factor[h] undoes the power. */
__device__ __forceinline__ void
take_queries_for_codes(const char *q_rows, u32 (&a)[HEAD_SLICE / 16][4], float (&factor)[2])
{
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const char *row =
            q_rows + (h * 8 + lane / 4) * K_STRIDE + (lane & 3) * 8 + slice_of() * HEAD_SLICE * 2;
        u32 largest = 16 << 7; /* bits without sign: at least this, so that powers are normal */
#pragma unroll
        for (int d = 0; d < HEAD_SLICE / 16; d++) {
            uint2 words = *(const uint2 *)(row + d * 32);
            a[d][h] = words.x;
            a[d][h + 2] = words.y;
            largest = max(largest, max(words.x & 0x7fff, words.x >> 16 & 0x7fff));
            largest = max(largest, max(words.y & 0x7fff, words.y >> 16 & 0x7fff));
        }
        if (Q_DTYPE == DTYPE_F16)
            continue;
        largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
        int exponent = (int)(largest >> 7);
        float power = __int_as_float((269 - exponent) << 23);
        factor[h] *= __int_as_float((exponent - 15) << 23);
#pragma unroll
        for (int d = 0; d < HEAD_SLICE / 16; d++) {
            a[d][h] = bf16_to_f16(a[d][h], power);
            a[d][h + 2] = bf16_to_f16(a[d][h + 2], power);
        }
    }
}

/* ---- A group --------------------------------------------------------------------------------- */

/* Running maximum and sum of rows lane / 4 and lane / 4 + 8 of a warp. */
struct sums {
    float most[2]; /* in units of log 2 */
    float sum[2];  /* this lane's part */
    float out[V_SLICE / 8][4];
};

/* The column of value `e` of this lane in an output tile of 8 columns. With an fp8 cache two tiles
 * share 16 columns, and one has the even ones: this separates the two codes of a 16-bit word. */
__device__ __forceinline__ int out_column(int tile, int e)
{
    int c = (int)threadIdx.x & 3, first = slice_of() * V_SLICE;
    return first + (KV_IS_FP8 ? tile / 2 * 16 + c * 4 + e * 2 + tile % 2 : tile * 8 + c * 2 + e);
}

/* Load blocks of 16 x 16 codes as matrices of 16-bit words: codes[b][j] has keys 8j to 8j + 7. */
template <int blocks, bool transposed>
__device__ __forceinline__ void load_codes(u32 (&codes)[blocks][2], const char *rows, int stride)
{
    int lane = (int)threadIdx.x & 31;
    u32 at = shared_address(rows) + (lane & 15) * stride + (lane >> 4) * 16;
#pragma unroll
    for (int b = 0; b + 1 < blocks; b += 2) {
        u32 r[4];
        if (transposed)
            load_matrices_transposed(r, at + b * 16);
        else
            load_matrices(r, at + b * 16);
        codes[b][0] = r[0];
        codes[b][1] = r[1];
        codes[b + 1][0] = r[2];
        codes[b + 1][1] = r[3];
    }
    if (blocks % 2 && transposed)
        load_matrices_transposed(codes[blocks - 1], at + (blocks - 1) * 16);
    else if (blocks % 2)
        load_matrices(codes[blocks - 1], at + (blocks - 1) * 16);
}

/* score[j]: products of the rows with keys 8j to 8j + 7, over the warp's columns. */
template <bool coded>
__device__ __forceinline__ void score_keys(const u32 (&a)[HEAD_SLICE / 16][4], const char *k,
                                           float (&score)[2][4])
{
    int lane = (int)threadIdx.x & 31;
    if (coded) {
        u32 codes[HEAD_SLICE / 16][2];
        load_codes<HEAD_SLICE / 16, false>(codes, k + slice_of() * HEAD_SLICE, K_CODES);
#pragma unroll
        for (int d = 0; d < HEAD_SLICE / 16; d++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                multiply<DTYPE_F16>(score[j], a[d], codes_to_f16<0>(codes[d][j]),
                                    codes_to_f16<1>(codes[d][j]));
        return;
    }
    u32 at = shared_address(k) + ((lane & 7) + (lane >> 4) * 8) * K_STRIDE + (lane >> 3 & 1) * 16 +
             slice_of() * HEAD_SLICE * 2;
#pragma unroll
    for (int d = 0; d < HEAD_SLICE / 16; d++) {
        u32 b[4];
        load_matrices(b, at + d * 32);
        multiply<Q_DTYPE>(score[0], a[d], b[0], b[1]);
        multiply<Q_DTYPE>(score[1], a[d], b[2], b[3]);
    }
}

/* Scores become probabilities relative to the largest score so far, and earlier sums are rescaled
 * to it. */
__device__ __forceinline__ void weigh_keys(float (&score)[2][4], sums &state)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float here = fmaxf(fmaxf(score[0][h * 2], score[0][h * 2 + 1]),
                           fmaxf(score[1][h * 2], score[1][h * 2 + 1]));
        float top = fmaxf(state.most[h], softmax_quad_max(here));
        float base = top == NEGATIVE_INFINITY ? 0.0f : top;
        float shrink = softmax_exp2(state.most[h] - base);
        bool grown = top != state.most[h];
        state.most[h] = top;
        state.sum[h] *= shrink;
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = h * 2; e < h * 2 + 2; e++) {
                score[j][e] = softmax_exp2(score[j][e] - (base - LIFT));
                state.sum[h] += score[j][e];
            }
        if (__any_sync(~0u, grown)) { /* else shrink is 1, or there are no sums yet */
#pragma unroll
            for (int d = 0; d < V_SLICE / 8; d++) {
                state.out[d][h * 2] *= shrink;
                state.out[d][h * 2 + 1] *= shrink;
            }
        }
    }
}

/* Values of 16 keys and 16 columns as operand `b` of output tiles 2d and 2d + 1. */
__device__ __forceinline__ void take_values(const char *v, int d, u32 (&b)[2][2])
{
    int lane = (int)threadIdx.x & 31;
    if (!KV_IS_FP8) {
        u32 r[4];
        load_matrices_transposed(r, shared_address(v) + (lane & 15) * V_STRIDE + (lane >> 4) * 16 +
                                        d * 32);
        b[0][0] = r[0];
        b[0][1] = r[1];
        b[1][0] = r[2];
        b[1][1] = r[3];
    } else { /* new tokens beside an fp8 cache: separate even and odd columns */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const char *at = v + (j * 8 + (lane & 3) * 2) * V_STRIDE + d * 32 + lane / 4 * 4;
            u32 first = *(const u32 *)at, second = *(const u32 *)(at + V_STRIDE);
            b[0][j] = __byte_perm(first, second, 0x5410);
            b[1][j] = __byte_perm(first, second, 0x7632);
        }
    }
}

/* The same for codes that load_codes() has loaded. */
__device__ __forceinline__ void widen_values(const u32 (&codes)[2], u32 (&b)[2][2])
{
    u32 even = __byte_perm(codes[0], codes[1], 0x6420);
    u32 odd = __byte_perm(codes[0], codes[1], 0x7531);
    b[0][0] = codes_to_f16<0>(even);
    b[0][1] = codes_to_f16<1>(even);
    b[1][0] = codes_to_f16<0>(odd);
    b[1][1] = codes_to_f16<1>(odd);
}

/* out += probabilities x values, with probabilities in one or two parts of 16 bits. `seen`: see
 * seen_by_any(). */
template <bool coded>
__device__ __forceinline__ void add_values(const float (&score)[2][4], const char *v, u32 seen,
                                           sums &state)
{
    constexpr int dtype = coded ? DTYPE_F16 : Q_DTYPE;
    u32 probability[4], rest[4], codes[V_SLICE / 16][2];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float low = score[e / 2][e % 2 * 2], high = score[e / 2][e % 2 * 2 + 1];
        probability[e] = pack16<dtype>(low, high);
        if (SPLIT_PROBABILITIES)
            rest[e] = remainder16<dtype>(probability[e], low, high);
    }
    if (coded)
        load_codes<V_SLICE / 16, true>(codes, v, V_CODES);
#pragma unroll
    for (int d = 0; d < V_SLICE / 16; d++) {
        u32 b[2][2];
        if (coded)
            widen_values(codes[d], b);
        else
            take_values(v, d, b);
#pragma unroll
        for (int j = 0; CUSTOM_MASK && j < 2; j++) {
            u32 halves = seen_halves(seen, j);
            b[0][j] &= halves;
            b[1][j] &= halves;
        }
        multiply<dtype>(state.out[d * 2], probability, b[0][0], b[0][1]);
        multiply<dtype>(state.out[d * 2 + 1], probability, b[1][0], b[1][1]);
        if (SPLIT_PROBABILITIES) {
            multiply<dtype>(state.out[d * 2], rest, finite16<dtype>(b[0][0]),
                            finite16<dtype>(b[0][1]));
            multiply<dtype>(state.out[d * 2 + 1], rest, finite16<dtype>(b[1][0]),
                            finite16<dtype>(b[1][1]));
        }
    }
}

/* A warp's state for a piece of work, except for the sums. */
struct rows {
    row_view views[2];
    float factor[2]; /* turns products into scores */
    u32 a[HEAD_SLICE / 16][4];
};

/* Process group n, whose keys are at `k`, followed by its values. */
template <bool coded>
__device__ __forceinline__ void attend_group(const kernel_params &p, const work &w, const rows &r,
                                             int n, char *k, float4 *room, sums &state)
{
    float score[2][4] = {};
    int lane = (int)threadIdx.x & 31, from = group_begin(w, n), to = group_end(w, n);
    bool check = CUSTOM_MASK || from < w.all_lo || from + GROUP > min(w.all_hi, to);
    constexpr int v_stride = coded ? V_CODES : V_STRIDE;
    char *v = k + GROUP * (coded ? K_CODES : K_STRIDE);
    u32 seen = 0;
    score_keys<coded>(r.a, k, score);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[j][e] *= r.factor[e / 2];
    share_scores<2>(score, room);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = from + j * 8 + (lane & 3) * 2 + e % 2;
            bool sees = !check || sees_key(p, w.q, r.views[e / 2], key, to);
            score[j][e] = finish_score(p, w.q, r.views[e / 2], key, sees, score[j][e]);
            seen |= sees ? 1u << (j * 2 + e % 2) : 0;
        }
    weigh_keys(score, state);
    if (CUSTOM_MASK)
        seen = seen_by_any(seen);
    if (to - from < GROUP) {
        clear_rows(v + (to - from) * v_stride, (GROUP - to + from) * v_stride, team_lane(),
                   32 * TEAM);
        team_sync();
    }
    add_values<coded>(score, v + slice_of() * V_SLICE * (coded ? 1 : 2), seen, state);
}

/* ---- A piece of work ------------------------------------------------------------------------- */

__device__ __forceinline__ void begin_rows(const kernel_params &p, const work &w, rows &r,
                                           sums &state)
{
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = w.row0 + h * 8 + lane / 4;
        find_view(p, w.q, w.s, row < w.rows ? row / GQA : -1, w.head * GQA + row % GQA, r.views[h]);
        r.factor[h] = SCORE_FACTOR;
        state.most[h] = NEGATIVE_INFINITY;
        state.sum[h] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < V_SLICE / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            state.out[d][e] = 0.0f;
}

/* Process the team's new tokens after an fp8 cache. There are few, so it waits for each group. The
 * sums so far lack the scale of the values. */
__device__ __forceinline__ void attend_new(const kernel_params &p, const work &w, rows &r, int n,
                                           const char *q_rows, char *to, float4 *room, sums &state)
{
    float scale = v_scale_of(p, w.head);
#pragma unroll
    for (int d = 0; d < V_SLICE / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            state.out[d][e] *= scale;
    if (n >= w.groups)
        return;
    r.factor[0] = r.factor[1] = SCORE_FACTOR;
    take_queries(q_rows, r.a);
    feed f = begin_feed(p, w, n);
#pragma unroll 1
    for (; n < w.groups; n += TEAMS) {
        copy_wait<0>();
        team_sync();
        start_group<2>(p, w, f, to, w.groups);
        copy_wait<0>();
        team_sync();
        attend_group<false>(p, w, r, n, to, room, state);
    }
}

/* Process the team's share of the piece's keys. */
__device__ __forceinline__ void attend(const kernel_params &p, const work &w, char *shared,
                                       sums &state)
{
    int team = team_of(), stage = 0, n = team;
    int limit = KV_IS_FP8 ? w.cached : w.groups;
    char *stages = shared + Q_BYTES + team * TEAM_BYTES;
    float4 *room = (float4 *)(shared + Q_BYTES + TEAMS * TEAM_BYTES);
    rows r;
    feed f = begin_feed(p, w, team);
    load_queries<ROWS, THREADS>(p, w.q, w.row0, w.rows, w.head, shared);
    copy_commit();
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++)
        start_group<KV_BYTES>(p, w, f, stages + i * STAGE_BYTES, limit);
    begin_rows(p, w, r, state);
    copy_wait<STAGES - 1>(); /* the queries have arrived */
    __syncthreads();
    if (KV_IS_FP8) {
        r.factor[0] = r.factor[1] = SCORE_FACTOR * k_scale_of(p, w.head);
        take_queries_for_codes(shared, r.a, r.factor);
    } else {
        take_queries(shared, r.a);
    }
#pragma unroll 1
    for (; n < limit; n += TEAMS) {
        copy_wait<STAGES - 2>();
        team_sync();
        start_group<KV_BYTES>(p, w, f, stages + (stage ? stage - 1 : STAGES - 1) * STAGE_BYTES,
                              limit);
        attend_group<KV_IS_FP8>(p, w, r, n, stages + stage * STAGE_BYTES, room, state);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    if (KV_IS_FP8)
        attend_new(p, w, r, n, shared, stages, room, state);
    copy_wait<0>();
}

/* ---- Results --------------------------------------------------------------------------------- */

/* Leave a team's results for the others: outputs, then the maximum and the sum of each row. Values
 * without weights may be NaN (MEAN-14). */
__device__ __forceinline__ void leave_results(const sums &state, float *merged)
{
    int lane = (int)threadIdx.x % 32;
    float *tops = merged + TEAMS * ROWS * MERGE_STRIDE, *totals = tops + TEAMS * ROWS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = team_of() * ROWS + h * 8 + lane / 4;
        float total = softmax_quad_sum(state.sum[h]);
        if ((lane & 3) == 0 && slice_of() == 0) {
            tops[r] = state.most[h];
            totals[r] = total;
        }
#pragma unroll
        for (int d = 0; d < V_SLICE / 8; d++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                merged[r * MERGE_STRIDE + out_column(d, e)] =
                    total == 0.0f ? 0.0f : state.out[d][h * 2 + e];
    }
}

/* The place of a row's partial results. */
__device__ __forceinline__ i64 partial_at(const kernel_params &p, int row, int head)
{
    return (i64)row * Q_HEADS + head;
}

/* Finish row r of the tile, by all warps: its output, or a partial result. */
__device__ __forceinline__ void finish_row(const kernel_params &p, const work &w, int r,
                                           const float *merged)
{
    const float *tops = merged + TEAMS * ROWS * MERGE_STRIDE, *totals = tops + TEAMS * ROWS;
    int lane = (int)threadIdx.x % 32, t = (w.row0 + r) / GQA;
    int head = w.head * GQA + (w.row0 + r) % GQA, row = w.q.first_row + t;
    int first = p.batch.q_indptr ? p.batch.q_indptr[first_split_seq(p)] : 0;
    i64 at = partial_at(p, row - first, head), split_at = at * p.num_splits + w.split;
    float top = w.splits == 1 && HAS_SINKS && p.operands.sinks ? p.operands.sinks[head] * LOG2E
                                                               : NEGATIVE_INFINITY;
    float sink = top, share[TEAMS];
#pragma unroll
    for (int i = 0; i < TEAMS; i++)
        top = fmaxf(top, tops[i * ROWS + r]);
    float base = top == NEGATIVE_INFINITY ? 0.0f : top, total = softmax_exp2(sink - base + LIFT);
#pragma unroll
    for (int i = 0; i < TEAMS; i++) {
        share[i] = softmax_exp2(tops[i * ROWS + r] - base);
        total += share[i] * totals[i * ROWS + r];
    }
    float factor = total == 0.0f ? 0.0f : 1.0f / total;
    float lse = total == 0.0f ? NEGATIVE_INFINITY : (base + __log2f(total * UNLIFT)) * LN2;
    if (lane == 0 && w.split == 0)
        p.partial_used[at] = w.splits;
    if (lane == 0 && w.splits > 1)
        p.partial_lse[split_at] = lse;
    else if (lane == 0)
        store_lse(p, row, head, lse);
#pragma unroll
    for (int d = lane; d < V_DIM; d += 32) {
        float value = 0.0f;
#pragma unroll
        for (int i = 0; i < TEAMS; i++)
            value += share[i] * merged[(i * ROWS + r) * MERGE_STRIDE + d];
        if (w.splits > 1)
            ((partial *)p.partial)[split_at * V_DIM + d] = store_partial(value * factor);
        else
            store_out(p, out_row(p, row, head), d, value * factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, DECODE_BLOCKS)
    attn_decode(const __grid_constant__ kernel_params p)
{
    extern __shared__ __align__(128) char shared[];
    work_search at = {first_split_seq(p), 0};
    work w;
    for (int wanted = (int)blockIdx.x; find_work(p, at, wanted, w); wanted += (int)gridDim.x) {
        sums state;
        attend(p, w, shared, state);
        __syncthreads();
        leave_results(state, (float *)shared);
        __syncthreads();
        for (int r = (int)threadIdx.x / 32; r < min(ROWS, w.rows - w.row0); r += WARPS)
            finish_row(p, w, r, (const float *)shared);
        __syncthreads();
    }
}

/* ---- The second stage ------------------------------------------------------------------------ */

/* Each warp computes the weights of all splits, a lane those of every 32nd; then each thread merges
 * a column. */
__device__ __forceinline__ void merge_splits(const kernel_params &p, int row, int head, i64 at,
                                             int used)
{
    int lane = (int)threadIdx.x & 31, d = (int)threadIdx.x;
    float weight[MAX_SPLITS / 32], value = 0.0f;
    float sink = HAS_SINKS && p.operands.sinks ? p.operands.sinks[head] : NEGATIVE_INFINITY,
          top = sink;
#pragma unroll
    for (int k = 0; k < MAX_SPLITS / 32; k++) {
        int split = k * 32 + lane;
        weight[k] = split < used ? p.partial_lse[at * p.num_splits + split] : NEGATIVE_INFINITY;
        top = fmaxf(top, weight[k]);
    }
    top = softmax_warp_max(top);
    float base = top == NEGATIVE_INFINITY ? 0.0f : top, total = 0.0f;
#pragma unroll
    for (int k = 0; k < MAX_SPLITS / 32; k++) {
        weight[k] = softmax_exp2((weight[k] - base) * LOG2E);
        total += weight[k];
    }
    total = softmax_warp_sum(total) + softmax_exp2((sink - base) * LOG2E);
    float factor = total == 0.0f ? 0.0f : 1.0f / total;
    if (d == 0)
        store_lse(p, row, head, total == 0.0f ? NEGATIVE_INFINITY : base + __logf(total));
    const partial *from = (const partial *)p.partial + at * p.num_splits * V_DIM + d;
#pragma unroll
    for (int k = 0; k < MAX_SPLITS / 32; k++)
        for (int i = 0; i < min(32, used - k * 32); i++) {
            float share = __shfl_sync(~0u, weight[k], i);
            if (d < V_DIM)
                value += share * load_partial(from[(i64)(k * 32 + i) * V_DIM]);
        }
    if (d < V_DIM)
        store_out(p, out_row(p, row, head), d, value * factor);
}

extern "C" __global__ void attn_reduce(const __grid_constant__ kernel_params p)
{
    int row = (int)blockIdx.x, head = (int)blockIdx.y, first = 0, rows = index_num_seqs(&p.batch);
    int end = index_num_tokens(&p.batch);
    if (p.batch.q_indptr) {
        first = p.batch.q_indptr[first_split_seq(p)];
        end += p.batch.q_indptr[0];
        rows = p.batch.q_indptr[rows] - first;
    }
    if (row >= rows) { /* padding needs a finite output */
        if (first + row < end)
            clear_row(p, first + row, head);
        return;
    }
    i64 at = partial_at(p, row, head);
    int used = p.partial_used[at];
    if (used > 1)
        merge_splits(p, first + row, head, at, used);
}
