/* SPDX-License-Identifier: Apache-2.0
 *
 * label.cuh: the logits of an indexer. 64 labels are the rows of a product and the indexer's heads
 * its columns, so that a label is read once for all heads of a group's queries:
 *
 *   S[64 x 64] = K[64 x 128] Q^T,   logit = scale * sum over columns of weight * max(0, S)
 *
 * Each lane loads its part of the labels from global memory directly into the registers of the
 * product's operand, one or two tiles ahead. Labels do not pass through shared memory, and warps do
 * not wait for each other; the warpgroups of a block share only queries. The order of the sum over
 * 128 elements is free, if both operands use the same order: a lane takes whole 16-byte pieces of a
 * label, and queries are stored in shared memory in the resulting order.
 *
 * In a group of queries, one query's product overlaps with the sums of another. fp8 queries times
 * fp8 labels are e4m3 products, and the labels' scales are applied to the sum. Other types are
 * widened to bf16, which is exact.
 */
#ifndef DSA_LIKE_LABEL_CUH
#define DSA_LIKE_LABEL_CUH

#include "plugins/dsa_like/kernels/labels.cuh"

/* ---- Shared memory --------------------------------------------------------------------------- */

/* `width`: bytes of an element, 1 or 2. A row of 128 elements has one or two panels of the 128-byte
 * swizzle. */
template <int width> struct label_shared {
    static constexpr int query_bytes = DSA_SHARED_QUERY(width);
    static constexpr int panel_bytes = DSA_HEADS * ROW_BYTES;
    unsigned q;
    float *weights; /* [queries][DSA_WEIGHTS]: of the columns of lane % 4 = 0, then of 1, 2, 3 */
    int2 *seen;     /* [queries] keys that the query sees: [x, y) */
};

template <int width> DEVICE label_shared<width> label_memory(unsigned char *memory, int queries)
{
    label_shared<width> m;
    m.q = shared_address(memory);
    m.weights = (float *)(memory + queries * m.query_bytes);
    m.seen = (int2 *)(m.weights + queries * DSA_WEIGHTS);
    return m;
}

/* ---- Queries --------------------------------------------------------------------------------- */

/* Stores piece `piece` of a head in the order in which lanes take labels: word e becomes word piece
 * % 4 of piece 4 (piece / 4) + e. */
DEVICE void label_store_piece(unsigned q, int head, int piece, uint4 x)
{
    const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int to = piece / 4 * 4 + e;
        const unsigned at =
            q + to / 8 * (DSA_HEADS * ROW_BYTES) + swizzled(head, to % 8) + piece % 4 * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(words[e]) : "memory");
    }
}

/* The index of a head's weight among a query's weights. */
DEVICE int label_weight_at(int head)
{
    return head % 8 / 2 * (DSA_WEIGHTS / 4) + head / 8 * 2 + head % 2;
}

template <int width, int threads>
DEVICE void load_queries(const dsa_label_call &c, const dsa_group &g, const index_sequence &q,
                         const label_shared<width> &m)
{
    const int pieces = DSA_LABEL * width / 16, thread = (int)threadIdx.x;
    const i64 first = q.first_row + g.query;
    for (int i = thread; i < g.count * DSA_HEADS * pieces; i += threads) {
        const int piece = i % pieces, head = i / pieces % DSA_HEADS, n = i / pieces / DSA_HEADS;
        const char *from = (const char *)c.operands.q + (first + n) * c.operands.q_row +
                           head * c.operands.q_head + piece * (width == 2 && c.q_codes ? 8 : 16);
        uint4 x = make_uint4(0, 0, 0, 0);
        if (head < c.heads && width == 2 && c.q_codes) {
            u32 words[2] = {0, 0};
            for (int b = 0; b < 8; b++)
                words[b / 4] |= (u32)(u8)from[b] << b % 4 * 8;
            x = widen(words[0], words[1]);
        } else if (head < c.heads) {
            x = c.operands.aligned & CALL_ALIGNED_Q ? *(const uint4 *)from : load_bytes(from);
        }
        label_store_piece(m.q + n * m.query_bytes, head, piece, x);
    }
    for (int i = thread; i < g.count * DSA_HEADS; i += threads) {
        const int head = i % DSA_HEADS, n = i / DSA_HEADS;
        m.weights[n * DSA_WEIGHTS + label_weight_at(head)] =
            head < c.heads
                ? *(const float *)((const char *)c.weights + (first + n) * c.weights_row + head * 4)
                : 0.0f;
    }
    if (thread < g.count) {
        const dsa_row row = c.planned.rows[g.row + thread];
        m.seen[thread] = make_int2(row.lo, row.hi);
    }
}

/* A thread's part of a single fp8 query: pieces thread, thread + 128 ... of its heads, and a
 * weight. */
struct label_query {
    uint4 pieces[DSA_HEADS * DSA_LABEL / 16 / DSA_LABEL_THREADS(1, 0)];
    float weight;
};

/* Loads row `row` of operands, if its pieces are aligned; does not wait for the loads. */
DEVICE void label_load_query(const dsa_label_call &c, i64 row, label_query &to)
{
    const int pieces = DSA_LABEL / 16, thread = thread_here();
    const char *q = (const char *)c.operands.q + row * c.operands.q_row;
    const char *weights = (const char *)c.weights + row * c.weights_row;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int i = thread + n * DSA_LABEL_THREADS(1, 0), head = i / pieces;
        to.pieces[n] = make_uint4(0, 0, 0, 0);
        if (head < c.heads)
            to.pieces[n] = *(const uint4 *)(q + head * c.operands.q_head + i % pieces * 16);
    }
    to.weight = thread < c.heads ? *(const float *)(weights + thread * 4) : 0.0f;
}

DEVICE void label_store_query(const dsa_group &g, const label_query &from, const label_shared<1> &m)
{
    const int pieces = DSA_LABEL / 16, thread = thread_here();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int i = thread + k * DSA_LABEL_THREADS(1, 0);
        label_store_piece(m.q, i / pieces, i % pieces, from.pieces[k]);
    }
    if (thread < DSA_HEADS)
        m.weights[label_weight_at(thread)] = from.weight;
    if (thread == 0)
        m.seen[0] = make_int2(g.lo, g.hi);
}

/* ---- Products -------------------------------------------------------------------------------- */

template <int width>
DEVICE void label_multiply(float (&s)[32], const u32 (&a)[4 * width][4], unsigned q)
{
    const unsigned long long b = matrix_descriptor(q, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * width; i++) {
        const int at = i / 4 * (DSA_HEADS * ROW_BYTES) + i % 4 * 32;
        if constexpr (width == 1)
            wgmma_rs_e4m3(s, a[i], descriptor_advance(b, at), i > 0);
        else
            wgmma_rs<64, false, 0>(s, a[i], descriptor_advance(b, at), i > 0);
    }
    wgmma_commit();
}

/* The weights of a lane's columns: 8 i + lane % 4 * 2 and the next one. */
DEVICE void take_weights(float4 (&w)[4], const float *weights, int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = *(const float4 *)(weights + lane % 4 * (DSA_WEIGHTS / 4) + 4 * i);
}

/* Elements of S of fp8 products are below 2^25. So a multiplication by 2^-25 that saturates to [0,
 * 1] rectifies them; it has twice the throughput of a maximum. */
#define LABEL_MOST 33554432.0f

template <int width> DEVICE float label_rectify(float s)
{
    return width == 1 ? __saturatef(s * (1.0f / LABEL_MOST)) : fmaxf(s, 0.0f);
}

/* The logit of a sum of rectified elements. */
template <int width> DEVICE float label_logit(float sum, float scale)
{
    return (width == 1 ? sum * LABEL_MOST : sum) * scale;
}

/* Sums over this lane's columns, for two rows: s[4 i] and s[4 i + 1] are of one row, s[4 i + 2] and
 * s[4 i + 3] of the row 8 further. */
template <int width>
DEVICE void add_columns(const float (&s)[32], const float4 (&w)[4], float (&sums)[2])
{
    sums[0] = sums[1] = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums[r] = fmaf(w[i].x, label_rectify<width>(s[8 * i + 2 * r]), sums[r]);
            sums[r] = fmaf(w[i].y, label_rectify<width>(s[8 * i + 2 * r + 1]), sums[r]);
            sums[r] = fmaf(w[i].z, label_rectify<width>(s[8 * i + 4 + 2 * r]), sums[r]);
            sums[r] = fmaf(w[i].w, label_rectify<width>(s[8 * i + 4 + 2 * r + 1]), sums[r]);
        }
    }
}

/* Sums over two of four lanes: of the first row in even lanes, of the second in odd ones. */
DEVICE float add_pair(const float (&a)[2], int lane)
{
    const bool odd = lane & 1;
    return (odd ? a[1] : a[0]) + __shfl_xor_sync(~0u, odd ? a[0] : a[1], 1);
}

/* Sums over all columns: of the first row in even lanes, of the second in odd ones. */
DEVICE float add_rows(const float (&a)[2], int lane)
{
    const float sum = add_pair(a, lane);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

/* Sums of two tiles over all four lanes: the second tile's in the upper two. */
DEVICE float add_pairs(float first, float second, int lane)
{
    const bool upper = lane & 2;
    return (upper ? second : first) + __shfl_xor_sync(~0u, upper ? first : second, 2);
}

DEVICE float *logits_of(const dsa_label_call &c, int first_row, int row)
{
    return c.logits + (c.given ? (i64)first_row + row : row - c.first) * c.logits_row;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* The destination of a lane's logits. */
struct label_output {
    float *logits; /* of the group's first query */
    i64 row;       /* elements */
    int keys;      /* of the sequence */
};

DEVICE void label_write(float *logits, int keys, int2 seen, int j, float logit)
{
    if (j < keys)
        logits[j] = seen.x <= j && j < seen.y ? logit : -INFINITY;
}

/* The logits of a single query. */
template <int width>
DEVICE void label_one(const u32 (&a)[4 * width][4], const label_shared<width> &m,
                      const float4 (&w)[4], const label_output &out, int2 seen, float scale, int j,
                      int lane)
{
    float s[32], sums[2];
    label_multiply<width>(s, a, m.q);
    wgmma_wait<0>();
    wgmma_arrived(s);
    label_keep(a);
    add_columns<width>(s, w, sums);
    const float logit = label_logit<width>(add_rows(sums, lane), scale);
    if (lane % 4 < 2)
        label_write(out.logits, out.keys, seen, j, logit);
}

/* The logits of `count` queries on two tiles. The loop must be unrolled: across iterations the
 * assembler waits for each product before the next starts. Lanes exchange a query's sums while
 * those of its second tile and of the next query are computed. */
template <int width, int count>
DEVICE void label_queries(const u32 (&a)[2][4 * width][4], const label_shared<width> &m,
                          const label_output &out, float scale, int j, int lane)
{
    float s[2][32], sums[2], pairs[2] = {0, 0};
    float *logits = out.logits;
#pragma unroll
    for (int i = 0; i < 2; i++)
        label_multiply<width>(s[i], a[i], m.q);
#pragma unroll
    for (int n = 0; n <= count; n++) {
        float4 w[4];
        if (n < count)
            take_weights(w, m.weights + n * DSA_WEIGHTS, lane);
        const int2 seen = m.seen[n > 0 ? n - 1 : 0];
        const float before = add_pairs(pairs[0], pairs[1], lane);
#pragma unroll
        for (int i = 0; i < 2 && n < count; i++) {
            if (n + 1 < count || i == 0)
                wgmma_wait<1>();
            else
                wgmma_wait<0>();
            wgmma_arrived(s[i]);
            add_columns<width>(s[i], w, sums);
            if (n + 1 < count)
                label_multiply<width>(s[i], a[i], m.q + (n + 1) * m.query_bytes);
            pairs[i] = add_pair(sums, lane);
        }
        if (n > 0) {
            label_write(logits, out.keys, seen, j, label_logit<width>(before, scale));
            logits += out.row;
        }
    }
    label_keep(a[0]);
    label_keep(a[1]);
}

/* For 1 to `most` queries; also for groups of one among longer groups. */
template <int width, int most>
DEVICE void label_several(const u32 (&a)[2][4 * width][4], const label_shared<width> &m,
                          const label_output &out, int count, float scale, int j, int lane)
{
    if constexpr (most > 1)
        if (count < most) {
            label_several<width, most - 1>(a, m, out, count, scale, j, lane);
            return;
        }
    label_queries<width, most>(a, m, out, scale, j, lane);
}

/* Tiles [t0, t1) of a single query. */
template <int width, bool runs>
DEVICE void label_tiles(const dsa_label_call &c, label_walk<runs, DSA_AHEAD(false, runs)> &walk,
                        label_part<width> (&parts)[DSA_AHEAD(false, runs)],
                        const label_shared<width> &m, const label_output &out, int t0, int t1)
{
    constexpr int ahead = DSA_AHEAD(false, runs);
    const int lane = (int)threadIdx.x % 32, second = lane % 2;
    const int2 seen = m.seen[0];
    float4 w[4];
    take_weights(w, m.weights, lane);
    int j = t0 * DSA_TILE + (int)threadIdx.x / 32 * 16 + lane / 4 + second * 8;
    for (int t = t0; t < t1;) {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            u32 a[4 * width][4];
            label_take(parts[i], a);
            const float scale = parts[i].scale;
            if (t + ahead < t1)
                label_load<width>(c, walk, i, second, parts[i]);
            label_one<width>(a, m, w, out, seen, scale, j, lane);
            j += DSA_TILE;
            if (++t == t1)
                break;
        }
    }
}

/* The same for a group of `count` queries, two tiles at a time. The last one may not exist; then
 * its logits are not written. */
template <int width, bool runs>
DEVICE void label_tile_pairs(const dsa_label_call &c, label_walk<runs, 2> &walk,
                             label_part<width> (&parts)[2], const label_shared<width> &m,
                             const label_output &out, int count, int t0, int t1)
{
    const int lane = (int)threadIdx.x % 32, second = lane % 2, upper = lane / 2 % 2;
    label_output to = out;
    to.keys = int_min(out.keys, t1 * DSA_TILE);
    int j = (t0 + upper) * DSA_TILE + (int)threadIdx.x / 32 % 4 * 16 + lane / 4 + second * 8;
    for (int t = t0; t < t1; t += 2) {
        u32 a[2][4 * width][4];
        label_take(parts[0], a[0]);
        label_take(parts[1], a[1]);
        const float scale = upper ? parts[1].scale : parts[0].scale;
        if (t + 2 < t1)
            label_load<width>(c, walk, 0, second, parts[0]);
        if (t + 3 < t1)
            label_load<width>(c, walk, 1, second, parts[1]);
        label_several<width, DSA_MOST_QUERIES(width)>(a, m, to, count, scale, j, lane);
        j += 2 * DSA_TILE;
    }
}

/* A warpgroup's equal share of tiles [t0, t1), in pairs. */
template <int warpgroups> DEVICE void label_share(int &t0, int &t1)
{
    const int group = uniform((int)threadIdx.x / 128);
    const int each = (t1 - t0 + 2 * warpgroups - 1) / (2 * warpgroups) * 2;
    t0 = int_min(t0 + group * each, t1);
    t1 = int_min(t0 + each, t1);
}

/* Tiles [t0, t1) of a group; `several`: it may have more than one query. */
template <int width, bool several, bool runs>
DEVICE void label_segment(const dsa_label_call &c, const dsa_group &g, int first_row, int t0,
                          int t1, const label_shared<width> &m)
{
    constexpr int ahead = DSA_AHEAD(several, runs);
    constexpr int threads = DSA_LABEL_THREADS(width, several);
    const int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
    index_sequence q;
    label_query query;
    if constexpr (several)
        label_share<DSA_LABEL_WARPGROUPS(width, several)>(t0, t1);
    index_find_sequence(&c.planned.batch, 0, g.seq, &q);
    label_walk<runs, ahead> walk;
    label_begin(c, q, g.lo, g.hi, t0 * DSA_TILE + warp * 16 + lane / 4, walk);
    if constexpr (runs && !several)
        label_load_query(c, (i64)first_row + g.row, query);
    label_part<width> parts[ahead] = {};
#pragma unroll
    for (int i = 0; i < ahead; i++)
        if (t0 + i < t1)
            label_load<width>(c, walk, i, lane % 2, parts[i]);
    __syncthreads(); /* the previous queries are no longer needed */
    if constexpr (runs && !several)
        label_store_query(g, query, m);
    else
        load_queries<width, threads>(c, g, q, m);
    fence_async_shared();
    __syncthreads();
    const label_output out = {logits_of(c, first_row, g.row), c.logits_row, q.kv_len};
    if constexpr (several)
        label_tile_pairs<width, runs>(c, walk, parts, m, out, g.count, t0, t1);
    else
        label_tiles<width, runs>(c, walk, parts, m, out, t0, t1);
}

/* The number of groups [low, high) that start before row `row` of the lists or, with `on_line`, at
 * position `at` of the line or before. A whole warp tests 32 groups at a time. */
DEVICE int label_count_groups(const dsa_batch &b, int low, int high, int at, bool on_line)
{
    const int begin = low, lane = (int)threadIdx.x % 32;
    while (low < high) {
        const int step = (high - low + 31) / 32, i = low + lane * step;
        const bool before = i < high && (on_line ? b.groups[i].begin <= at : b.groups[i].row < at);
        const int count = __popc(__ballot_sync(~0u, before));
        high = int_min(low + count * step, high);
        low += count > 0 ? (count - 1) * step + 1 : 0;
    }
    return low - begin;
}

/* The first group from row `row` of the lists on; at both ends without a search. */
DEVICE int label_group_of_row(const dsa_batch &b, int num_groups, int row)
{
    if (row == 0 || row >= index_num_tokens(&b.batch))
        return row == 0 ? 0 : num_groups;
    return label_count_groups(b, 0, num_groups, row, false);
}

/* The last of groups [low, high) that starts at `at` or before. */
DEVICE int label_group_at(const dsa_batch &b, int low, int high, int at)
{
    return low + int_max(label_count_groups(b, low, high, at, true) - 1, 0);
}

/* Fills logits of keys after the last one that a group sees, in rows that an engine reads. */
DEVICE void label_fill(const dsa_label_call &c, const dsa_group &g, int first_row)
{
    index_sequence q;
    index_find_sequence(&c.planned.batch, 0, g.seq, &q);
    for (int n = 0; n < g.count; n++)
        for (int j = g.tiles * DSA_TILE + (int)threadIdx.x; j < q.kv_len; j += (int)blockDim.x)
            logits_of(c, first_row, g.row + n)[j] = -INFINITY;
}

/* Are 16 rows from a multiple of 16 on contiguous, with queries and rows aligned for 16-byte
 * loads? */
DEVICE bool label_in_runs(const dsa_label_call &c)
{
    return c.planned.page_size % 16 == 0 && !c.planned.batch.req_to_token &&
           c.operands.aligned & CALL_ALIGNED_CACHE && c.operands.aligned & CALL_ALIGNED_Q;
}

template <int width, bool several, bool runs>
DEVICE void label_range(const dsa_label_call &c, const label_shared<width> &m, int first_row,
                        int first, int last, int x0, int x1)
{
    const dsa_batch &b = c.planned;
    for (int g = label_group_at(b, first, last, x0); x0 < x1 && g < last; g++) {
        const dsa_group group = b.groups[g];
        if (group.begin >= x1)
            break;
        const int t0 = int_max(x0 - group.begin, 0), t1 = int_min(x1 - group.begin, group.tiles);
        if (t0 < t1)
            label_segment<width, several, runs>(c, group, first_row, t0, t1, m);
    }
}

template <int width, bool several> DEVICE void label_all(const dsa_label_call &c)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const label_shared<width> m = label_memory<width>(memory, c.planned.queries);
    pdl_launch_dependents();
    pdl_wait(); /* also for the plan: an earlier kernel in the stream may still run */
    const dsa_batch &b = c.planned;
    const dsa_header header = *b.header;
    const int first = label_group_of_row(b, header.num_groups, c.first);
    const int last = label_group_of_row(b, header.num_groups, c.end);
    if (first >= last)
        return;
    const int begin = b.groups[first].begin;
    const int end = last < header.num_groups ? b.groups[last].begin : header.num_tiles;
    const int range = (end - begin + (int)gridDim.x - 1) / (int)gridDim.x;
    const int x0 = begin + (int)blockIdx.x * range, x1 = int_min(x0 + range, end);
    if (width == 1 && label_in_runs(c))
        label_range<width, several, width == 1>(c, m, header.first_row, first, last, x0, x1);
    else
        label_range<width, several, false>(c, m, header.first_row, first, last, x0, x1);
    for (int g = first + (int)blockIdx.x; c.given && g < last; g += (int)gridDim.x)
        label_fill(c, b.groups[g], header.first_row);
}

#define LABEL_KERNEL(name, width, several)                                                         \
    extern "C" __global__ void __launch_bounds__(DSA_LABEL_THREADS(width, several),                \
                                                 DSA_LABEL_BLOCKS(width, several))                 \
        name(const __grid_constant__ dsa_label_call c)                                             \
    {                                                                                              \
        label_all<width, several>(c);                                                              \
    }

LABEL_KERNEL(dsa_label_codes, 1, false)
LABEL_KERNEL(dsa_label_codes_group, 1, true)
LABEL_KERNEL(dsa_label_wide, 2, false)
LABEL_KERNEL(dsa_label_wide_group, 2, true)

#endif /* DSA_LIKE_LABEL_CUH */
