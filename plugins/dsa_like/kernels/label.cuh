/* SPDX-License-Identifier: Apache-2.0
 *
 * label.cuh: logits of an indexer. 64 labels are the rows of a product and the indexer's heads its
 * columns, so that a label is read once for all heads of a group's queries:
 *
 *   S[64 x 64] = K[64 x 128] Q^T,   logit = scale * sum over columns of weight * max(0, S)
 *
 * Of a group of queries the products of two are under way while a third one's are added up.
 *
 * A block is one warpgroup, which keeps all but one tile of a ring on their way by cp.async, 16 bytes a
 * lane, whatever the size of a page is; several blocks share a multiprocessor, so that one loads or
 * adds up while another multiplies. Codes times codes are products of e4m3, their labels' scales
 * applied to the sum; all else is widened to bf16, which is exact.
 */
#ifndef DSA_LIKE_LABEL_CUH
#define DSA_LIKE_LABEL_CUH

#include "plugins/dsa_like/kernels/rows.cuh"

#include "plugins/common/cuda/warpgroup.cuh"

/* sums[64 x 64] (+)= A[64 x 32] * B[64 x 32]^T of e4m3, both in shared memory. */
DEVICE void product_codes(float (&s)[32], unsigned long long a, unsigned long long b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1;\n}"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),
                   "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),
                   "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]),
                   "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]),
                   "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]),
                   "+f"(s[30]), "+f"(s[31])
                 : "l"(a), "l"(b), "r"(add));
}

/* ---- Shared memory --------------------------------------------------------------------------- */

/* `width`: bytes of an element in shared memory, 1 or 2. Rows of 128 elements are one panel of the
 * 128-byte swizzle, or two. `several`: for groups of more than one query. */
template <int width, bool several> struct label_shared {
    static constexpr int stages = DSA_STAGES(several);
    static constexpr int tile_bytes = DSA_SHARED_TILE(width);
    static constexpr int panel_bytes = DSA_TILE * ROW_BYTES;
    unsigned q, tiles, scales_at;
    float *weights; /* [queries][DSA_HEADS] */
    float *scales;  /* [stages][DSA_TILE] */
    int *lo, *hi;   /* [queries] keys that it sees */
};

template <int width, bool several>
DEVICE label_shared<width, several> label_memory(unsigned char *memory, int queries)
{
    label_shared<width, several> m;
    m.q = shared_address(memory);
    m.tiles = m.q + queries * m.tile_bytes;
    m.weights = (float *)(memory + (queries + m.stages) * m.tile_bytes);
    m.scales = m.weights + queries * DSA_HEADS;
    m.scales_at = shared_address(m.scales);
    m.lo = (int *)(m.scales + m.stages * DSA_TILE);
    m.hi = m.lo + DSA_MOST_QUERIES;
    return m;
}

template <int bytes> DEVICE void label_copy(unsigned to, const void *from, int valid)
{
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                     "r"(valid ? 4 : 0)
                     : "memory");
}

DEVICE void label_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending> DEVICE void label_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* Two codes as two elements of bf16. */
DEVICE unsigned widen_pair(unsigned codes)
{
    unsigned halves;
    float first, second;
    asm("{\n.reg .b16 c, l, h;\ncvt.u16.u32 c, %3;\ncvt.rn.f16x2.e4m3x2 %0, c;\n"
        "mov.b32 {l, h}, %0;\ncvt.f32.f16 %1, l;\ncvt.f32.f16 %2, h;\n}"
        : "=r"(halves), "=f"(first), "=f"(second)
        : "r"(codes));
    return pack_pair<false>(first, second);
}

DEVICE uint4 widen(unsigned low, unsigned high)
{
    return make_uint4(widen_pair(low & 0xffff), widen_pair(low >> 16), widen_pair(high & 0xffff),
                      widen_pair(high >> 16));
}

/* 16 bytes at any address. */
DEVICE uint4 load_bytes(const char *from)
{
    u32 words[4] = {0, 0, 0, 0};
    for (int i = 0; i < 16; i++)
        words[i / 4] |= (u32)(u8)from[i] << i % 4 * 8;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* ---- Labels ---------------------------------------------------------------------------------- */

/* A lane's row of a warp's 16 of a tile; the table's entry is read a tile earlier. */
struct label_row {
    int j, entry, valid;
};

/* Do 16 rows from a multiple of 16 on lie one after another, where copies of 16 bytes may begin? */
DEVICE bool label_in_runs(const dsa_label_call &c)
{
    return c.planned.page_size % 16 == 0 && c.label_codes && !c.planned.batch.req_to_token &&
           c.operands.aligned & CALL_ALIGNED_CACHE;
}

/* In runs a row is valid where one of its 16 is; no logit is made of the others. */
template <int width>
DEVICE label_row label_find(const dsa_label_call &c, const index_sequence &q, int lo, int hi, int j)
{
    label_row row = {j, 0, lo <= j && j < hi};
    if (width == 1 && label_in_runs(c))
        row.valid = lo < j / 16 * 16 + 16 && j / 16 * 16 < hi;
    if (row.valid)
        row.entry = *index_entry(&c.planned.batch, &q, c.planned.page_size, j);
    return row;
}

DEVICE const char *label_shuffle(const char *pointer, int lane)
{
    return (const char *)__shfl_sync(~0u, (unsigned long long)pointer, lane);
}

/* Labels of codes that lie as codes; `aligned`: at multiples of 16 bytes, else of 4. */
DEVICE void load_codes(unsigned tile, const char *mine, int is_valid, int warp, int lane,
                       int aligned)
{
    const int piece = lane % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 4 + lane / 8, valid = __shfl_sync(~0u, is_valid, row);
        const char *from = label_shuffle(mine, row) + piece * 16;
        const unsigned to = tile + swizzled(warp * 16 + row, piece);
        if (aligned)
            label_copy<16>(to, from, valid);
        else
            for (int w = 0; w < 4; w++)
                label_copy<4>(to + 4 * w, from + 4 * w, valid);
    }
}

/* Labels of bf16, or of codes that are widened on the way. */
DEVICE void load_wide(const dsa_label_call &c, unsigned tile, const char *mine, int is_valid,
                      int warp, int lane)
{
    const int piece = lane % 16, aligned = c.operands.aligned & CALL_ALIGNED_CACHE;
    const unsigned panel = tile + piece / 8 * (DSA_TILE * ROW_BYTES);
    for (int i = 0; i < 8; i++) {
        const int row = i * 2 + lane / 16, valid = __shfl_sync(~0u, is_valid, row);
        const char *from = label_shuffle(mine, row) + piece * (c.label_codes ? 8 : 16);
        const unsigned to = panel + swizzled(warp * 16 + row, piece % 8);
        if (c.label_codes)
            shared_store(to, valid ? widen(((const any32 *)from)[0], ((const any32 *)from)[1])
                                   : make_uint4(0, 0, 0, 0));
        else if (aligned)
            label_copy<16>(to, from, valid);
        else
            shared_store(to, valid ? load_bytes(from) : make_uint4(0, 0, 0, 0));
    }
}

/* A warp's 16 rows of codes that lie one after another in a page: 2 KB, and their scales. */
DEVICE void load_run(const dsa_label_call &c, const label_row &row, unsigned tile, unsigned scales,
                     int warp, int lane)
{
    const int page_size = c.planned.page_size, j = row.j / 16 * 16;
    const i64 page = row.entry;
    const char *from = (const char *)c.operands.k_cache + page * c.operands.k_page +
                       j % page_size * DSA_LABEL + lane * 16;
    const unsigned even = tile + swizzled(warp * 16 + lane / 8, lane % 8);
    const unsigned odd = tile + swizzled(warp * 16 + 4 + lane / 8, lane % 8);
    label_copy<16>(even, from, row.valid);
    label_copy<16>(odd, from + 512, row.valid);
    label_copy<16>(even + 8 * ROW_BYTES, from + 1024, row.valid);
    label_copy<16>(odd + 8 * ROW_BYTES, from + 1536, row.valid);
    if (lane < 4)
        label_copy<16>(scales + warp * 64 + lane * 16,
                       (const char *)c.operands.v_cache + page * c.operands.v_page +
                           j % page_size * 4 + lane * 16,
                       row.valid);
}

template <int width, bool several>
DEVICE void label_load(const dsa_label_call &c, const index_sequence &q, const label_row &row,
                       const label_shared<width, several> &m, int stage, int warp, int lane)
{
    const unsigned tile = m.tiles + stage * m.tile_bytes;
    const unsigned scales = m.scales_at + stage * DSA_TILE * 4;
    if (width == 1 && label_in_runs(c)) {
        load_run(c, row, tile, scales, warp, lane);
        return;
    }
    index_place at = {(const char *)c.operands.k_cache, (const char *)c.operands.v_cache};
    if (row.valid)
        at = index_find_key(&c.operands, &c.planned.batch, &q, c.planned.page_size, 0, row.j,
                            row.entry);
    if (width == 1)
        load_codes(tile, at.k, row.valid, warp, lane, c.operands.aligned & CALL_ALIGNED_CACHE);
    else
        load_wide(c, tile, at.k, row.valid, warp, lane);
    if (c.label_codes && lane < 16)
        label_copy<4>(scales + (warp * 16 + lane) * 4, at.v, row.valid);
}

/* ---- Queries --------------------------------------------------------------------------------- */

template <int width, bool several>
DEVICE void load_queries(const dsa_label_call &c, const dsa_group &g, const index_sequence &q,
                         const label_shared<width, several> &m)
{
    const int pieces = DSA_LABEL * width / 16, thread = (int)threadIdx.x;
    const mask_rule rule = dsa_rule(&c.planned);
    const i64 first = q.first_row + g.query;
    for (int i = thread; i < g.count * DSA_HEADS * pieces; i += DSA_LABEL_THREADS) {
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
        shared_store(m.q + n * m.tile_bytes + piece / 8 * m.panel_bytes + swizzled(head, piece % 8),
                     x);
    }
    for (int i = thread; i < g.count * DSA_HEADS; i += DSA_LABEL_THREADS) {
        const int head = i % DSA_HEADS, n = i / DSA_HEADS;
        m.weights[i] =
            head < c.heads
                ? *(const float *)((const char *)c.weights + (first + n) * c.weights_row + head * 4)
                : 0.0f;
    }
    if (thread < g.count) {
        int lo, hi;
        mask_outline(&rule, &c.planned.batch, &q, g.query + thread, g.query + thread, &lo, &hi);
        m.lo[thread] = lo;
        m.hi[thread] = hi;
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

template <int width> DEVICE void label_multiply(float (&s)[32], unsigned tile, unsigned q)
{
    const unsigned long long a = matrix_descriptor(tile, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(q, 16, 8 * ROW_BYTES);
    products_fence();
#pragma unroll
    for (int i = 0; i < 4 * width; i++) {
        const int at = i / 4 * (DSA_TILE * ROW_BYTES) + i % 4 * 32;
        if constexpr (width == 1)
            product_codes(s, descriptor_advance(a, at), descriptor_advance(b, at), i > 0);
        else
            product_shared<64, false, 0>(s, descriptor_advance(a, at), descriptor_advance(b, at),
                                         i > 0);
    }
    products_commit();
}

/* A lane's columns: 8 i + lane % 4 * 2 and the one after it. */
DEVICE void take_weights(float2 (&w)[8], const float *weights, int lane)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = *(const float2 *)(weights + i * 8 + lane % 4 * 2);
}

/* Of a label's row they are s[4 i] and s[4 i + 1], of that 8 rows on s[4 i + 2] and s[4 i + 3]: the
 * sums of both rows over these columns. */
DEVICE void add_columns(const float (&s)[32], const float2 (&w)[8], float (&sums)[2])
{
    sums[0] = sums[1] = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums[r] = fmaf(w[i].x, fmaxf(s[4 * i + 2 * r], 0.0f), sums[r]);
            sums[r] = fmaf(w[i].y, fmaxf(s[4 * i + 2 * r + 1], 0.0f), sums[r]);
        }
    }
}

/* The sums over all columns, in all four lanes. */
DEVICE void add_heads(const float (&s)[32], const float2 (&w)[8], float (&sums)[2])
{
    add_columns(s, w, sums);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sums[r] += __shfl_xor_sync(~0u, sums[r], 1);
        sums[r] += __shfl_xor_sync(~0u, sums[r], 2);
    }
}

/* The same of two queries, a sum in each lane: of the second row in odd lanes, of the second query in
 * the upper two of four. */
DEVICE float add_lanes(const float (&a)[2], const float (&b)[2], int lane)
{
    const bool odd = lane & 1, upper = lane & 2;
    const float first = (odd ? a[1] : a[0]) + __shfl_xor_sync(~0u, odd ? a[0] : a[1], 1);
    const float second = (odd ? b[1] : b[0]) + __shfl_xor_sync(~0u, odd ? b[0] : b[1], 1);
    return (upper ? second : first) + __shfl_xor_sync(~0u, upper ? first : second, 2);
}

DEVICE float *logits_of(const dsa_label_call &c, int first_row, int row)
{
    return c.logits + (c.given ? (i64)first_row + row : row - c.first) * c.logits_row;
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

/* Where a lane writes logits of a pair of queries, and the keys that its query sees. */
struct label_output {
    float *logits; /* of key 0; NULL = there is no such query */
    int lo, hi;
};

template <int width>
DEVICE label_output label_find_output(const dsa_label_call &c, const dsa_group &g, int first_row,
                                      const label_shared<width, true> &m, int n)
{
    if (n >= g.count)
        return {NULL, 0, 0};
    return {logits_of(c, first_row, g.row + n), m.lo[n], m.hi[n]};
}

/* Logits of `pairs` pairs of queries on a tile; products of the first two have begun. */
template <int width, int pairs>
DEVICE void label_pairs(unsigned tile, const label_shared<width, true> &m,
                        const label_output (&out)[2], float scale, int j, int kv_len, int lane,
                        float (&s)[2][32])
{
#pragma unroll
    for (int pair = 0; pair < pairs; pair++) {
        const bool more = pair + 1 < pairs;
        float2 w[8];
        float sums[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            take_weights(w, m.weights + (2 * pair + i) * DSA_HEADS, lane);
            if (more || i == 0)
                products_wait<1>();
            else
                products_wait<0>();
            products_arrived(s[i]);
            add_columns(s[i], w, sums[i]);
            if (more)
                label_multiply<width>(s[i], tile, m.q + (2 * pair + 2 + i) * m.tile_bytes);
        }
        const float logit = add_lanes(sums[0], sums[1], lane) * scale;
        const label_output &to = out[pair];
        if (to.logits && j < kv_len)
            to.logits[j] = to.lo <= j && j < to.hi ? logit : -INFINITY;
    }
}

/* Tiles [t0, t1) of a group; `several`: of more than one query. */
template <int width, bool several>
DEVICE void label_segment(const dsa_label_call &c, const dsa_group &g, int first_row, int t0,
                          int t1, const label_shared<width, several> &m)
{
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    const mask_rule rule = dsa_rule(&c.planned);
    const int in_tile = warp * 16 + lane % 16;
    const int written = warp * 16 + lane / 4 + lane % 4 * 8; /* by lanes 0 and 1 of four */
    index_sequence q;
    int lo, hi;
    index_find_sequence(&c.planned.batch, 0, g.seq, &q);
    mask_outline(&rule, &c.planned.batch, &q, g.query, g.query + g.count - 1, &lo, &hi);
    __syncthreads(); /* queries before are done with */
    label_row next = label_find<width>(c, q, lo, hi, t0 * DSA_TILE + in_tile);
    for (int t = t0; t < t0 + m.stages - 1; t++) {
        if (t < t1)
            label_load(c, q, next, m, t % m.stages, warp, lane);
        label_commit();
        next = label_find<width>(c, q, lo, hi, (t + 1) * DSA_TILE + in_tile);
    }
    load_queries(c, g, q, m); /* while labels are on their way */
    __syncthreads();
    float2 w[8]; /* of the only query */
    label_output out[2];
    const int in_pair = lane / 2 % 2, row = warp * 16 + lane / 4 + lane % 2 * 8;
    if constexpr (several) {
        out[0] = label_find_output<width>(c, g, first_row, m, in_pair);
        out[1] = label_find_output<width>(c, g, first_row, m, 2 + in_pair);
    } else {
        take_weights(w, m.weights, lane);
    }
    for (int t = t0; t < t1; t++) {
        const int stage = t % m.stages, ahead = t + m.stages - 1;
        const unsigned tile = m.tiles + stage * m.tile_bytes;
        label_wait<m.stages - 2>();
        fence_async_shared();
        __syncthreads();
        if constexpr (several) {
            float s[2][32];
            label_multiply<width>(s[0], tile, m.q);
            label_multiply<width>(s[1], tile, m.q + m.tile_bytes);
            if (ahead < t1)
                label_load(c, q, next, m, ahead % m.stages, warp, lane);
            label_commit();
            next = label_find<width>(c, q, lo, hi, (ahead + 1) * DSA_TILE + in_tile);
            const float scale = c.label_codes ? m.scales[stage * DSA_TILE + row] : 1.0f;
            const int j = t * DSA_TILE + row;
            if (g.count > 2)
                label_pairs<width, 2>(tile, m, out, scale, j, q.kv_len, lane, s);
            else
                label_pairs<width, 1>(tile, m, out, scale, j, q.kv_len, lane, s);
            continue;
        }
        for (int n = 0; n < g.count; n++) {
            float s[32], sums[2];
            label_multiply<width>(s, tile, m.q + n * m.tile_bytes);
            if (n == 0) {
                if (ahead < t1)
                    label_load(c, q, next, m, ahead % m.stages, warp, lane);
                label_commit();
                next = label_find<width>(c, q, lo, hi, (ahead + 1) * DSA_TILE + in_tile);
            }
            products_wait<0>();
            products_arrived(s);
            add_heads(s, w, sums);
            const int j = t * DSA_TILE + written;
            if (lane % 4 < 2 && j < q.kv_len) {
                float logit = lane % 4 ? sums[1] : sums[0];
                if (c.label_codes)
                    logit *= m.scales[stage * DSA_TILE + written];
                logits_of(c, first_row, g.row + n)[j] =
                    m.lo[n] <= j && j < m.hi[n] ? logit : -INFINITY;
            }
        }
    }
    label_wait<0>();
}

/* The first of the groups from row `row` of the lists on; at the ends without a look. */
DEVICE int label_group_of_row(const dsa_batch &b, int num_groups, int row)
{
    int low = 0, high = num_groups;
    if (row == 0 || row >= index_num_tokens(&b.batch))
        return row == 0 ? 0 : num_groups;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (b.groups[middle].row < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The last of [low, high) that begins at `at` or before. */
DEVICE int label_group_at(const dsa_batch &b, int low, int high, int at)
{
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (b.groups[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Keys after the last one that a group sees, in rows that an engine gets. */
DEVICE void label_fill(const dsa_label_call &c, const dsa_group &g, int first_row)
{
    index_sequence q;
    index_find_sequence(&c.planned.batch, 0, g.seq, &q);
    for (int n = 0; n < g.count; n++)
        for (int j = g.tiles * DSA_TILE + (int)threadIdx.x; j < q.kv_len; j += DSA_LABEL_THREADS)
            logits_of(c, first_row, g.row + n)[j] = -INFINITY;
}

template <int width, bool several> DEVICE void label_all(const dsa_label_call &c)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const label_shared<width, several> m = label_memory<width, several>(memory, c.planned.queries);
    grid_launch_dependents();
    grid_wait();
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
    for (int g = label_group_at(b, first, last, x0); x0 < x1 && g < last; g++) {
        const dsa_group group = b.groups[g];
        if (group.begin >= x1)
            break;
        const int t0 = int_max(x0 - group.begin, 0), t1 = int_min(x1 - group.begin, group.tiles);
        if (t0 < t1)
            label_segment<width, several>(c, group, header.first_row, t0, t1, m);
    }
    for (int g = first + (int)blockIdx.x; c.given && g < last; g += (int)gridDim.x)
        label_fill(c, b.groups[g], header.first_row);
}

#define LABEL_KERNEL(name, width, several, blocks)                                                 \
    extern "C" __global__ void __launch_bounds__(DSA_LABEL_THREADS, blocks)                        \
        name(const __grid_constant__ dsa_label_call c)                                             \
    {                                                                                              \
        label_all<width, several>(c);                                                              \
    }

LABEL_KERNEL(dsa_label_codes, 1, false, DSA_LABEL_BLOCKS)
LABEL_KERNEL(dsa_label_codes_group, 1, true, DSA_GROUP_BLOCKS)
LABEL_KERNEL(dsa_label_wide, 2, false, 1)
LABEL_KERNEL(dsa_label_wide_group, 2, true, 1)

#endif /* DSA_LIKE_LABEL_CUH */
