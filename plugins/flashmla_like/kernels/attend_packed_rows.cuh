/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_packed_rows.cuh: 16, 32 or 64 query rows over tiles of 64 latents of mla.latent_fp8/1.
 * Nothing is widened in shared memory: tokens are the rows of the scores' products, dimensions
 * those of the values'. Both are widened to fp16 in registers, from the cache's row format
 * (attend_packed.cuh).
 *
 *   S^T[64 x N]   = K Q^T          warpgroup 1, one tile at a time
 *   O^T[512 x N] += V^T P^T        warpgroups 2 and 3, two parts of 128 dimensions each
 *
 * Scores are passed in fp32 to warpgroups 2 and 3, each of which computes the probabilities of half
 * of the queries.
 *
 * No scale is rounded into a key. If all scales of a tile are powers of two, an fp8 value times its
 * scale is exact in fp16, and a tile's scores are one chain of products. Otherwise each part of 128
 * values is summed separately, and multiplied by its scale in fp32. The values' operand is fp8
 * times scale, rounded to fp16 (error at most 2^-10), with probabilities in fp16. If a scale is too
 * large or too small for that, both are bf16 from that tile to the end of the unit.
 *
 * The reference of each query's exponentials is in shared memory. It changes only if a maximum
 * exceeds it by 2^8. So in most tiles the warps agree through one barrier that nothing changes, and
 * exchange nothing else.
 */
#ifndef FLASHMLA_LIKE_ATTEND_PACKED_ROWS_CUH
#define FLASHMLA_LIKE_ATTEND_PACKED_ROWS_CUH

#include "plugins/flashmla_like/kernels/attend_coded.cuh"
#include "plugins/flashmla_like/kernels/attend_packed.cuh"

#define TOKENS_UP    256.0f /* factor of scales in fp16, which must be between 2^-15 and 1/2 */
#define TOKENS_LEAST 0x38000000u
#define TOKENS_END   0x3f000000u
#define TOKENS_UNSET -3.0e38f       /* the reference before a key is seen */
#define TOKENS_TABLE (MLA_TILE * 2) /* bytes of a part's scales in fp16 */

/* Probabilities are scaled by 2^ROWS_P_LOG2 or, from a unit's first bf16 tile on, by
 * 2^TOKENS_WIDE_LOG2, as bf16 values may be large. TOKENS_TURN: the factor of earlier sums at that
 * tile. */
#define TOKENS_WIDE_LOG2 -8.0f
#define TOKENS_TURN      (1.0f / 32768)

/* Flags in a tile's word. */
#define TOKENS_F16    1u /* probabilities are fp16, else bf16 */
#define TOKENS_TURNED 2u /* this is the unit's first bf16 tile */
#define TOKENS_RAISED 4u /* earlier sums must be multiplied by factors */

/* ---- Shared memory --------------------------------------------------------------------------- */

/* `scores`: of one tile, in the layout of warpgroup 1's threads. `raw`: the scales of two tiles in
 * fp16; `odd`: their words. */
template <int N> DEVICE mla_shared<N> tokens_find(unsigned char *memory)
{
    mla_shared<N> m;
    m.q = shared_address(memory);
    m.p = m.q + MLA_SHARED_Q(N);
    m.tiles = m.p + MLA_SHARED_P(N);
    m.scores = m.tiles + MLA_PACKED_STAGES(N) * MLA_PACKED_TILE;
    m.exchange = (float *)(memory + (m.scores - m.q) + MLA_TILE * N * 4);
    m.factor = m.exchange + 5 * MLA_ROWS;
    m.q_scale = m.factor + 2 * N;
    m.lo = (int *)(m.q_scale + N);
    m.hi = m.lo + N;
    m.raw = shared_address(m.hi + N);
    m.full = m.raw + 2 * PACKED_PARTS * TOKENS_TABLE;
    m.empty = m.full + 8 * MLA_PACKED_STAGES(N);
    m.p_full = m.empty + 8 * MLA_PACKED_STAGES(N);
    m.p_empty = m.p_full + 8;
    m.odd = m.p_empty + 8;
    m.scored = m.raw_full = m.raw_empty = 0;
    return m;
}

/* The reference of each query's exponentials. */
template <int N> DEVICE float *tokens_base(const mla_shared<N> &m)
{
    return m.exchange + 4 * MLA_ROWS;
}

template <int N> DEVICE unsigned tokens_table(const mla_shared<N> &m, int slot)
{
    return m.raw + slot * (PACKED_PARTS * TOKENS_TABLE);
}

/* "barrier{.cta}.red.or": is `x` true in any of these threads? */
template <int id, int threads> DEVICE bool tokens_any(bool x)
{
    unsigned any;
    asm volatile("{\n.reg .pred p, q;\n"
                 "setp.ne.u32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred q, %2, %3, p;\n"
                 "selp.u32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"((unsigned)x), "n"(id), "n"(threads)
                 : "memory");
    return any != 0;
}

/* ---- Warpgroup 0: tiles ---------------------------------------------------------------------- */

template <int N> DEVICE void tokens_feed(const mla_call &c, const mla_shared<N> &m)
{
    packed_feed<N>(c, m);
    if (c.operands.save) /* last, so that the first tile does not wait for it */
        packed_save(c, (int)threadIdx.x / 32, GROUP_THREADS / 32, (int)threadIdx.x % 32);
}

/* ---- Warpgroup 1: queries -------------------------------------------------------------------- */

/* Threads per row of queries, and panels of a row per thread. */
#define TOKENS_QUERY(N)  (GROUP_THREADS / (N))
#define TOKENS_PANELS(N) ((N)*8 / GROUP_THREADS)

/* The address of the first 16 bytes of a thread's first panel of row `n`; piece k of a panel is at
 * this address ^ k * 16. */
template <int N> DEVICE unsigned tokens_query_at(const mla_shared<N> &m, int n, int first)
{
    return m.q + first * (N * ROW_BYTES) + n * ROW_BYTES + n % 8 * 16;
}

/* The largest element of a thread's panels of a row's q_nope, as its bits. */
template <int N> DEVICE unsigned tokens_query_top(unsigned at)
{
    unsigned top = 0;
#pragma unroll 1
    for (int panel = 0; panel < TOKENS_PANELS(N); panel++, at += N * ROW_BYTES)
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint4 x = shared_load(at ^ k * 16);
            top = pair_top(pair_top(pair_top(pair_top(top, x.x), x.y), x.z), x.w);
        }
    return max(top & 0xffffu, top >> 16);
}

/* Converts these panels to fp16, times `up`, in the order in which lanes load fp8: of 16 elements,
 * lane t of four loads 4 t to 4 t + 3, which are pairs t and 4 + t of a product. */
template <int N> DEVICE void tokens_convert_query(unsigned at, float up)
{
#pragma unroll 1
    for (int panel = 0; panel < TOKENS_PANELS(N); panel++, at += N * ROW_BYTES)
#pragma unroll
        for (int k = 0; k < 8; k += 2) {
            const uint4 x = shared_load(at ^ k * 16), y = shared_load(at ^ (k + 1) * 16);
            shared_store(at ^ k * 16,
                         make_uint4(bf16_pair_to_f16(x.x, up), bf16_pair_to_f16(x.z, up),
                                    bf16_pair_to_f16(y.x, up), bf16_pair_to_f16(y.z, up)));
            shared_store(at ^ (k + 1) * 16,
                         make_uint4(bf16_pair_to_f16(x.y, up), bf16_pair_to_f16(x.w, up),
                                    bf16_pair_to_f16(y.y, up), bf16_pair_to_f16(y.w, up)));
        }
}

/* bf16 times a power of two. */
DEVICE unsigned tokens_scale_pair(unsigned pair, float by)
{
    return pack_pair<false>(bits_f32(pair << 16) * by, bits_f32(pair & 0xffff0000u) * by);
}

/* Scales a thread's pieces of a row's q_pe, from `k` on. */
template <int N> DEVICE void tokens_scale_query(unsigned at, int k, float by)
{
#pragma unroll
    for (int i = 0; i < TOKENS_PANELS(N); i++) {
        const uint4 x = shared_load(at ^ (k + i) * 16);
        shared_store(at ^ (k + i) * 16,
                     make_uint4(tokens_scale_pair(x.x, by), tokens_scale_pair(x.y, by),
                                tokens_scale_pair(x.z, by), tokens_scale_pair(x.w, by)));
    }
}

/* Converts the queries that load_queries() left in bf16: q_nope to fp16 times 2^x, q_pe to bf16
 * times 2^x TOKENS_UP. So all products with a tile are one sum, and q_scale turns it into a score.
 * `size`: the magnitude of the scale of scores. x is at most 104, so that sums of scores below 2^16
 * fit in fp32, and queries down to 2^-100 keep their bits. */
template <int N>
DEVICE void tokens_convert_queries(const mla_shared<N> &m, float size, unsigned phase, int thread)
{
    const int n = thread % N, first = thread / N * TOKENS_PANELS(N);
    const unsigned at = tokens_query_at(m, n, first), tops = m.scores + thread * 4;
    unsigned top = 0;
    shared_store_word(tops, tokens_query_top<N>(at));
    named_sync(1, GROUP_THREADS);
#pragma unroll
    for (int i = 0; i < TOKENS_QUERY(N); i++)
        top = max(top, shared_load_word(m.scores + (n + i * N) * 4));
    const int x = int_min(query_exponent((int)min(top, 0x7f7fu)), 104);
    const float up = bits_f32((u32)(127 + x) << 23);
    tokens_convert_query<N>(at, up);
    tokens_scale_query<N>(tokens_query_at(m, n, MLA_LORA / PANEL), first, up * TOKENS_UP);
    barrier_wait(m.p_empty, phase); /* the previous unit has ended */
    if (thread < N) {
        m.q_scale[n] = fmaxf(size * bits_f32((u32)(127 - x) << 23) * (1 / TOKENS_UP), F32_LEAST);
        tokens_base(m)[n] = TOKENS_UNSET;
    }
    fence_async_shared();
    named_sync(1, GROUP_THREADS);
}

/* The keys [*lo, *hi) that every row of the block sees. A block without rows counts as one row that
 * sees none. */
template <int N>
DEVICE void tokens_all_see(const mla_call &c, const mla_walk &w, const index_sequence &q,
                           const mla_shared<N> &m, int *lo, int *hi)
{
    *lo = m.lo[int_min(N, int_max(q.q_len * c.heads - first_row<N>(c, w), 1)) - 1];
    *hi = m.hi[0];
}

/* ---- Warpgroup 1: scores --------------------------------------------------------------------- */

DEVICE unsigned tokens_times(unsigned pair, unsigned by)
{
    asm volatile("mul.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(by));
    return pair;
}

/* "ldmatrix": each lane's words of two blocks of 16 bytes of a warp's rows, first rows 0 to 7 of
 * the first block. `at`: of row lane % 16, block lane / 16. Rows are in different banks. */
DEVICE void tokens_load_blocks(unsigned (&x)[4], unsigned at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

/* A lane's fp8 values of two tokens for four products. */
struct tokens_chunk {
    unsigned x[2][4];
};

DEVICE void tokens_load(tokens_chunk &k, unsigned at)
{
    tokens_load_blocks(k.x[0], at);
    tokens_load_blocks(k.x[1], at + 32);
}

/* Widens them to the products' first operands; `first`, `second`: the factors of the two tokens'
 * values. */
template <bool times>
DEVICE void tokens_widen(const tokens_chunk &k, unsigned (&a)[4][4], unsigned first,
                         unsigned second)
{
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const unsigned x = k.x[n / 2][n % 2 * 2 + r];
            const unsigned low = widen_low(x), high = widen_high(x);
            a[n][r] = times ? tokens_times(low, r ? second : first) : low;
            a[n][r + 2] = times ? tokens_times(high, r ? second : first) : high;
        }
}

/* descriptor_advance() for offsets that never carry into the upper word. */
DEVICE unsigned long long tokens_advance(unsigned long long descriptor, unsigned bytes)
{
    unsigned low, high;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(descriptor));
    low += bytes >> 4;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(high));
    return descriptor;
}

template <int N>
DEVICE void tokens_multiply(float (&s)[N / 2], const unsigned (&a)[4][4], unsigned long long b,
                            bool add)
{
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 4; n++)
        wgmma_rs<N, true, 0>(s, a[n], tokens_advance(b, n * 32), add || n > 0);
    wgmma_commit();
}

/* The products of the position-encoded part, which start a tile's sums. `b`: descriptor of the
 * queries; `at`: see tokens_load_blocks(). */
template <int N>
DEVICE void tokens_multiply_rope(float (&s)[N / 2], unsigned (&a)[4][4], unsigned long long b,
                                 unsigned at)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        tokens_load_blocks(a[i], at + MLA_PACKED_ROPE_AT + i * 32);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_rs<N, false, 0>(
            s, a[i], tokens_advance(b, MLA_LORA / PANEL * (N * ROW_BYTES) + i * 32), i > 0);
    wgmma_commit();
}

/* The scale of a part of the token whose row starts at `row`. */
DEVICE float tokens_scale(unsigned row, int part)
{
    return bits_f32(shared_load_word(row + MLA_LORA + part * 4));
}

/* Scores if all scales are powers of two: one chain of products. `k` has the first values, and
 * products of q_pe are in flight with a[0]. `by`: the scales of the lane's tokens. The tile is
 * released when all values are loaded. */
template <int N>
DEVICE void tokens_scores_plain(float (&s)[N / 2], unsigned (&a)[2][4][4], tokens_chunk &k,
                                const unsigned (&by)[PACKED_PARTS], unsigned long long b,
                                unsigned at, unsigned empty)
{
    constexpr int chunks = MLA_LORA / PANEL;
#pragma unroll
    for (int i = 0; i < chunks; i++) {
        if (i > 0)
            wgmma_wait<1>();
        tokens_widen<true>(k, a[(i + 1) % 2], __byte_perm(by[i / 2], 0, 0x1010),
                           __byte_perm(by[i / 2], 0, 0x3232));
        if (i + 1 < chunks)
            tokens_load(k, at + (i + 1) * PANEL);
        else
            release(empty);
        tokens_multiply<N>(s, a[(i + 1) % 2], tokens_advance(b, i * (N * ROW_BYTES)), true);
    }
    wgmma_wait<0>();
    wgmma_arrived(s);
}

/* The same for any scales: one part after another. */
template <int N>
DEVICE void tokens_scores_any(float (&s)[N / 2], unsigned (&a)[4][4], tokens_chunk &k,
                              unsigned long long b, unsigned row, unsigned at, unsigned empty)
{
    wgmma_wait<0>();
    wgmma_arrived(s);
#pragma unroll 1
    for (int part = 0; part < PACKED_PARTS; part++) {
        float sums[N / 2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            tokens_widen<false>(k, a, 0, 0);
            at += PANEL;
            if (half == 0 || part + 1 < PACKED_PARTS)
                tokens_load(k, at);
            tokens_multiply<N>(sums, a, b, half > 0);
            b = tokens_advance(b, N * ROW_BYTES);
            wgmma_wait<0>();
        }
        wgmma_arrived(sums);
        const float first = tokens_scale(row, part) * TOKENS_UP;
        const float second = tokens_scale(row + 8 * MLA_PACKED_BYTES, part) * TOKENS_UP;
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            s[i] = fmaf(sums[i], i % 4 < 2 ? first : second, s[i]);
    }
    release(empty);
}

/* A tile's scales: `pair` has those of the lane's two tokens, of part lane % 4, in fp16; f16: may
 * the tile's values be fp16? */
struct tokens_scales {
    unsigned pair;
    bool f16;
};

DEVICE bool tokens_fits(unsigned scale)
{
    return scale == 0 || scale - TOKENS_LEAST < TOKENS_END - TOKENS_LEAST;
}

/* Two scales in fp16, times TOKENS_UP. */
DEVICE unsigned tokens_pair(unsigned first, unsigned second)
{
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;"
        : "=r"(pair)
        : "f"(bits_f32(second) * TOKENS_UP), "f"(bits_f32(first) * TOKENS_UP));
    return pair;
}

/* A tile's sums: scores before q_scale. The warps vote on the scales while the first products are
 * in flight. */
template <int N>
DEVICE tokens_scales tokens_scores(float (&s)[N / 2], const mla_shared<N> &m, unsigned tile,
                                   unsigned empty, int warp, int lane)
{
    const unsigned row = tile + (warp * 16 + lane / 4) * MLA_PACKED_BYTES;
    const unsigned at = tile + (warp * 16 + lane % 16) * MLA_PACKED_BYTES + lane / 16 * 16;
    const unsigned long long b = matrix_descriptor(unknown(m.q), 16, 8 * ROW_BYTES);
    unsigned a[2][4][4];
    tokens_chunk k;
    tokens_scales scales;
    tokens_multiply_rope<N>(s, a[0], b, at);
    const unsigned first = shared_load_word(row + lane % 4 * 4 + MLA_LORA);
    const unsigned second = shared_load_word(row + lane % 4 * 4 + MLA_LORA + 8 * MLA_PACKED_BYTES);
    const uint4 x = shared_load(row + MLA_LORA);
    const uint4 y = shared_load(row + MLA_LORA + 8 * MLA_PACKED_BYTES);
    tokens_load(k, at);
    const bool fits = tokens_fits(first) && tokens_fits(second);
    const bool plain = !tokens_any<2, GROUP_THREADS>(!fits || ((first | second) & 0x7fffffu));
    scales.pair = tokens_pair(first, second);
    scales.f16 = true;
    if (plain) {
        const unsigned by[PACKED_PARTS] = {tokens_pair(x.x, y.x), tokens_pair(x.y, y.y),
                                           tokens_pair(x.z, y.z), tokens_pair(x.w, y.w)};
        tokens_scores_plain<N>(s, a, k, by, b, at, empty);
    } else {
        scales.f16 = !tokens_any<2, GROUP_THREADS>(!fits);
        tokens_scores_any<N>(s, a[1], k, b, row, at, empty);
    }
    return scales;
}

/* A lane's two numbers for the i-th eight columns. */
DEVICE float2 tokens_two(const float *numbers, int i, int lane)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(shared_address(numbers) + (i * 8 + lane % 4 * 2) * 4)
                 : "memory");
    return x;
}

/* The threads that subtract references from scores. With 64 rows warpgroup 1 does so, with all 64
 * columns per thread, as warpgroups 2 and 3 lack registers. With fewer rows warpgroups 2 and 3 do
 * so, with half of the columns each, and warpgroup 1 continues. */
template <int N> struct tokens_relater {
    static constexpr bool scores = N == MLA_ROWS;
    static constexpr int columns = scores ? N : N / 2, threads = scores ? 128 : 256;
    static constexpr int sums = columns / 2;                              /* of a thread */
    static constexpr int barrier = scores ? 1 : 4, vote = scores ? 2 : 3; /* named barriers */
    int first, warp, lane; /* first column; warp in its warpgroup */
};

/* Raises references to maxima that exceed them; `factor`: the factor of earlier sums. */
template <int N>
DEVICE void tokens_raise(const float (&s)[tokens_relater<N>::sums], const mla_shared<N> &m,
                         float *factor, float up, float turn, const tokens_relater<N> &me)
{
    const int n = me.first + me.warp * 32 + me.lane, end = me.first + me.columns;
#pragma unroll
    for (int i = 0; i < me.columns / 8; i++) {
        const float x = eight_max(fmaxf(s[4 * i], s[4 * i + 2]));
        const float y = eight_max(fmaxf(s[4 * i + 1], s[4 * i + 3]));
        if (me.lane < 4)
            *(float2 *)(m.exchange + me.warp * N + me.first + i * 8 + me.lane * 2) =
                make_float2(x, y);
    }
    named_sync(me.barrier, me.threads);
    if (n < end) {
        const float before = tokens_base(m)[n];
        float most = m.exchange[n];
#pragma unroll
        for (int other = 1; other < 4; other++)
            most = fmaxf(most, m.exchange[other * N + n]);
        const bool over = fmaf(most, m.q_scale[n], up - before) > ROWS_SLACK + up; /* as below */
        const float after = over ? most * m.q_scale[n] : before;
        tokens_base(m)[n] = after;
        factor[n] = turn * (after == before ? 1.0f : softmax_exp2(before - after));
    }
    named_sync(me.barrier, me.threads);
}

/* x: logarithms of probabilities times 2^`up`. Returns the largest. */
template <int N>
DEVICE float tokens_relate(float (&x)[tokens_relater<N>::sums],
                           const float (&s)[tokens_relater<N>::sums], const mla_shared<N> &m,
                           float up, const tokens_relater<N> &me)
{
    float most = SOFTMAX_EMPTY;
#pragma unroll
    for (int i = 0; i < me.columns / 8; i++) {
        const float2 by = tokens_two(m.q_scale + me.first, i, me.lane);
        const float2 base = tokens_two(tokens_base(m) + me.first, i, me.lane);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[4 * i + k] = fmaf(s[4 * i + k], k % 2 ? by.y : by.x, up - (k % 2 ? base.y : base.x));
            most = fmaxf(most, x[4 * i + k]);
        }
    }
    return most;
}

/* The same; raises references if necessary, after free() returns. Returns the word with
 * TOKENS_RAISED if it did. */
template <int N, class waiter>
DEVICE unsigned tokens_refer(float (&x)[tokens_relater<N>::sums],
                             const float (&s)[tokens_relater<N>::sums], const mla_shared<N> &m,
                             float *factor, unsigned word, const tokens_relater<N> &me,
                             const waiter &free)
{
    const float up = word & TOKENS_F16 ? ROWS_P_LOG2 : TOKENS_WIDE_LOG2;
    const float most = tokens_relate<N>(x, s, m, up, me);
    if (!tokens_any<me.vote, me.threads>(most > ROWS_SLACK + up || (word & TOKENS_TURNED)))
        return word;
    free();
    tokens_raise<N>(s, m, factor, up, word & TOKENS_TURNED ? TOKENS_TURN : 1.0f, me);
    tokens_relate<N>(x, s, m, up, me);
    return word | TOKENS_RAISED;
}

/* Passes a tile's scores and scales to warpgroups 2 and 3. */
template <int N>
DEVICE void tokens_give(const float (&s)[N / 2], const tokens_scales &scales, unsigned word,
                        const mla_shared<N> &m, int slot, int warp, int lane)
{
    const unsigned table =
        tokens_table(m, slot) + lane % 4 * TOKENS_TABLE + (warp * 16 + lane / 4) * 2;
    const unsigned to = m.scores + (warp * 32 + lane) * 16;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        shared_store(to + i * (GROUP_THREADS * 16),
                     make_uint4(f32_bits(s[4 * i]), f32_bits(s[4 * i + 1]), f32_bits(s[4 * i + 2]),
                                f32_bits(s[4 * i + 3])));
    asm volatile("{\n.reg .b16 low, high;\n"
                 "mov.b32 {low, high}, %1;\n"
                 "st.shared.b16 [%0], low;\n"
                 "st.shared.b16 [%0 + 16], high;\n}" ::"r"(table),
                 "r"(scales.pair)
                 : "memory");
    if (warp == 0 && lane == 0)
        shared_store_word(m.odd + slot * 4, word);
}

template <int N> DEVICE void tokens_score(const mla_call &c, const mla_shared<N> &m)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const float scale = c.sm_scale * SOFTMAX_LOG2E, size = scale != 0 ? fabsf(scale) : 1.0f;
    const float sign = scale > 0 ? 1.0f : scale < 0 ? -1.0f : scale;
    ring<MLA_PACKED_STAGES(N)> at;
    unsigned phase = 1;
    int slot = 0;
    mla_walk w = walk_before(c);
    while (walk_next(c, w)) {
        index_sequence q;
        int lo, least_hi;
        bool wide = false; /* values and probabilities are bf16 from here on */
        walk_sequence(c, w, &q);
        load_queries<N>(c, w, q, m, thread);
        tokens_convert_queries(m, size, phase, thread);
        tokens_all_see(c, w, q, m, &lo, &least_hi);
        int j = (w.u.first_tile + w.t0) * MLA_TILE;
#pragma unroll 1
        for (int t = w.t1 - w.t0; t > 0; t--) {
            float s[N / 2];
            barrier_wait(m.full + 8 * at.slot, at.phase);
            const tokens_scales scales = tokens_scores(s, m, m.tiles + at.slot * MLA_PACKED_TILE,
                                                       m.empty + 8 * at.slot, warp, lane);
            at.advance();
            if (sign != 1.0f)
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    s[i] *= sign;
            if (j < lo || j + MLA_TILE > least_hi)
                hide<N>(s, m, j + warp * 16 + lane / 4, lane);
            unsigned word = wide || scales.f16 ? 0 : TOKENS_TURNED;
            wide = wide || !scales.f16;
            word |= wide ? 0 : TOKENS_F16;
            if constexpr (tokens_relater<N>::scores) {
                float x[N / 2];
                word = tokens_refer<N>(x, s, m, m.factor + slot * N, word,
                                       tokens_relater<N>{0, warp, lane},
                                       [&]() { barrier_wait(m.p_empty, phase); });
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    s[i] = x[i];
            }
            barrier_wait(m.p_empty, phase);
            phase ^= 1;
            tokens_give(s, scales, word, m, slot, warp, lane);
            slot ^= 1;
            barrier_arrive(m.p_full);
            j += MLA_TILE;
        }
        barrier_wait(m.p_empty, phase);
        phase ^= 1;
        named_sync(1, GROUP_THREADS); /* no warp needs the queries any more */
    }
}

/* ---- Warpgroups 2 and 3: probabilities ------------------------------------------------------- */

/* Queries of each of warpgroups 2 and 3, for all of a tile's tokens. */
#define TOKENS_HALF(N) ((N) / 2)

/* A thread's warpgroup (of 2 and 3), warp and lane. Computed where it is used, as the sums need the
 * registers. */
struct tokens_place {
    int group, warp, lane;
};

DEVICE tokens_place tokens_here(void)
{
    const int thread = thread_here() - 2 * GROUP_THREADS;
    return tokens_place{thread / GROUP_THREADS, thread / 32 % 4, thread % 32};
}

DEVICE void tokens_sync(void)
{
    named_sync(4, 2 * GROUP_THREADS);
}

/* Reads a thread's scores from warpgroup 1. */
template <int N>
DEVICE void tokens_take(float (&s)[N / 4], const mla_shared<N> &m, const tokens_place &me)
{
    const unsigned from =
        m.scores + (me.group * (N / 16) * GROUP_THREADS + me.warp * 32 + me.lane) * 16;
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        const uint4 x = shared_load(from + i * (GROUP_THREADS * 16));
        s[4 * i] = bits_f32(x.x);
        s[4 * i + 1] = bits_f32(x.y);
        s[4 * i + 2] = bits_f32(x.z);
        s[4 * i + 3] = bits_f32(x.w);
    }
}

/* The column, in its warpgroup's half, whose sum a lane has. */
template <int N> DEVICE int tokens_column(int lane)
{
    const int i = N == 64   ? (lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2)
                  : N == 32 ? (lane / 16 * 2 + lane / 8 % 2)
                            : lane / 16;
    return i / 2 * 8 + lane % 4 * 2 + i % 2;
}

/* The sum over a warp of its lane's column: lanes exchange halves until each has one column. */
template <int N> DEVICE float tokens_sum(const float (&x)[N / 8], int lane)
{
    float y[N / 8];
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        y[i] = x[i];
#pragma unroll
    for (int bit = 16, left = N / 8; bit >= 4; bit /= 2) {
        if (left == 1) {
            y[0] += __shfl_xor_sync(~0u, y[0], bit);
            continue;
        }
        left /= 2;
#pragma unroll
        for (int i = 0; i < left; i++) {
            const float give = lane & bit ? y[i] : y[left + i];
            const float keep = lane & bit ? y[left + i] : y[i];
            y[i] = keep + __shfl_xor_sync(~0u, give, bit);
        }
    }
    return y[0];
}

/* Turns a tile's scores into probabilities in m.p. `sum`, of the lane's column, is multiplied by
 * its `factor` if references were raised. Returns the word with TOKENS_RAISED in that case. */
template <int N>
DEVICE unsigned tokens_softmax(const mla_shared<N> &m, float &sum, unsigned word, float *factor,
                               const tokens_place &me)
{
    const int half = me.group * TOKENS_HALF(N);
    float s[N / 4], x[N / 8];
    tokens_take<N>(s, m, me);
    barrier_arrive(m.p_empty);
    if constexpr (!tokens_relater<N>::scores) {
        float y[N / 4];
        word = tokens_refer<N>(y, s, m, factor, word, tokens_relater<N>{half, me.warp, me.lane},
                               []() {});
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            s[i] = y[i];
    }
    if (word & TOKENS_RAISED)
        sum *= factor[half + tokens_column<N>(me.lane)];
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        s[i] = softmax_exp2(s[i]);
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        x[i] = s[i / 2 * 4 + i % 2] + s[i / 2 * 4 + i % 2 + 2];
    sum += tokens_sum<N>(x, me.lane);
    if (tokens_relater<N>::scores) /* otherwise tokens_refer() has synchronised after all reads of
                                    * m.p */
        named_sync(3, 2 * GROUP_THREADS);
    if (word & TOKENS_F16)
        store_turned<N / 2, true>(m.p + half * ROW_BYTES, s, me.warp, me.lane);
    else
        store_turned<N / 2, false>(m.p + half * ROW_BYTES, s, me.warp, me.lane);
    fence_async_shared();
    tokens_sync();
    return word;
}

/* Finishes column `n`: writes its LSE, and returns the final factor of its sums. */
template <int N>
DEVICE float tokens_finish_column(const mla_call &c, const mla_walk &w, const index_sequence &q,
                                  const mla_shared<N> &m, bool wide, int n)
{
    const int row = first_row<N>(c, w) + n, valid = row < q.q_len * c.heads;
    const int at = valid ? row : 0;
    float sum = 0, shrink = 1;
#pragma unroll
    for (int warp = 0; warp < 4; warp++)
        sum += m.exchange[warp * N + n];
    softmax_row mine = {tokens_base(m)[n],
                        sum * (wide ? 1 / (TOKENS_TURN * ROWS_P_SCALE) : 1 / ROWS_P_SCALE)};
    if (walk_whole(w) && c.operands.sinks)
        softmax_take(&mine, c.operands.sinks[row_find(c, q, at).head] * SOFTMAX_LOG2E, &shrink);
    if (!walk_whole(w))
        c.part_lse[part_place(c, w) * N + n] = softmax_lse(&mine);
    else if (c.operands.lse && valid)
        *row_lse(c, q, at) = softmax_lse(&mine);
    return softmax_end(&mine) * shrink * (wide ? 1.0f : 1 / (ROWS_P_SCALE * TOKENS_UP));
}

/* Sets m.factor to the final factors of a unit's sums. `sum`: of the lane's column. */
template <int N>
DEVICE void tokens_finish(const mla_call &c, const mla_walk &w, const index_sequence &q,
                          const mla_shared<N> &m, float sum, bool wide, const tokens_place &me)
{
    const int thread = (me.group * 4 + me.warp) * 32 + me.lane;
    tokens_sync(); /* all threads have read the exchange */
    if (me.lane % (256 / N) < 4)
        m.exchange[me.warp * N + me.group * TOKENS_HALF(N) + tokens_column<N>(me.lane)] = sum;
    tokens_sync();
    if (thread < N)
        m.factor[thread] = tokens_finish_column(c, w, q, m, wide, thread);
    tokens_sync();
}

/* ---- Warpgroups 2 and 3: values -------------------------------------------------------------- */

/* Widens the operands of two products of 16 tokens; their rows are two of a lane's dimensions each.
 * fp8 values are multiplied by the scales of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. */
DEVICE void tokens_widen_values(const packed_values &v, uint2 by, unsigned (&a)[2][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned times = i ? by.y : by.x;
        const unsigned first = __byte_perm(v.x[2 * i], v.x[2 * i + 1], 0x5140);
        const unsigned second = __byte_perm(v.x[2 * i], v.x[2 * i + 1], 0x7362);
        a[0][2 * i] = tokens_times(widen_low(first), times);
        a[0][2 * i + 1] = tokens_times(widen_high(first), times);
        a[1][2 * i] = tokens_times(widen_low(second), times);
        a[1][2 * i + 1] = tokens_times(widen_high(second), times);
    }
}

/* `at`: of a lane's first two tokens of a part. */
DEVICE uint2 tokens_load_scales(unsigned at)
{
    return make_uint2(shared_load_word(at), shared_load_word(at + 16));
}

/* Adds a tile's values in fp16; parts alternate. Two products are in flight while the next two are
 * converted. */
template <int N>
DEVICE void tokens_add_half(mla_sums<N> &o, unsigned p, unsigned tile, unsigned table,
                            unsigned empty, int add)
{
    constexpr int steps = 2 * MLA_TILE / 16;
    const unsigned long long b = matrix_descriptor(p, 16, 8 * ROW_BYTES);
    unsigned a[2][2][4];
    uint2 by = tokens_load_scales(table);
    packed_values v = packed_load_values(tile, 0);
#pragma unroll
    for (int i = 0; i < steps; i++) {
        const int next = i + 1;
        if (i >= 2)
            wgmma_wait<1>();
        tokens_widen_values(v, by, a[i % 2]);
        if (next < steps) {
            v = packed_load_values(tile + next % 2 * PACKED_SCALED, next / 2 * 16);
            by = tokens_load_scales(table + next % 2 * TOKENS_TABLE + next / 2 * 32);
        } else {
            release(empty);
        }
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 2; n++)
            wgmma_rs<N, true, 0>(o[i % 2 * 2 + n], a[i % 2][n], tokens_advance(b, i / 2 * 32),
                                 i > 1 ? 1 : add);
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < 4; n++)
        wgmma_arrived(o[n]);
}

/* Two fp8 values of a pair of tokens, times their scales, in bf16. */
DEVICE unsigned tokens_wide_pair(unsigned pair, float first, float second)
{
    float x, y;
    asm("{\n.reg .f16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n}"
        : "=f"(x), "=f"(y)
        : "r"(pair));
    return pack_pair<false>(x * first, y * second);
}

/* The same in bf16. `row`: of a lane's first token, at its scale of the first part. */
template <int N>
DEVICE void tokens_add_wide(mla_sums<N> &o, unsigned p, unsigned tile, unsigned row, unsigned empty,
                            int add)
{
    const unsigned long long b = matrix_descriptor(p, 16, 8 * ROW_BYTES);
#pragma unroll 1
    for (int i = 0; i < MLA_TILE / 16; i++)
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const packed_values v = packed_load_values(tile + part * PACKED_SCALED, i * 16);
            unsigned a[2][4];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const unsigned at = row + part * 4 + (i * 16 + k * 8) * MLA_PACKED_BYTES;
                const float first = bits_f32(shared_load_word(at)) * TOKENS_UP;
                const float second = bits_f32(shared_load_word(at + MLA_PACKED_BYTES)) * TOKENS_UP;
                const unsigned low = __byte_perm(v.x[2 * k], v.x[2 * k + 1], 0x5140);
                const unsigned high = __byte_perm(v.x[2 * k], v.x[2 * k + 1], 0x7362);
                a[0][2 * k] = tokens_wide_pair(widen_low(low), first, second);
                a[0][2 * k + 1] = tokens_wide_pair(widen_high(low), first, second);
                a[1][2 * k] = tokens_wide_pair(widen_low(high), first, second);
                a[1][2 * k + 1] = tokens_wide_pair(widen_high(high), first, second);
            }
            wgmma_fence();
#pragma unroll
            for (int n = 0; n < 2; n++)
                wgmma_rs<N, false, 0>(o[part * 2 + n], a[n], tokens_advance(b, i * 32),
                                      i > 0 ? 1 : add);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_arrived(o[part * 2]);
            wgmma_arrived(o[part * 2 + 1]);
        }
    release(empty);
}

/* With 64 columns there are not enough registers for all factors. */
template <int N> DEVICE void tokens_multiply_sums(mla_sums<N> &o, const mla_shared<N> &m, int lane)
{
    if constexpr (N == MLA_ROWS)
        coded_multiply(o, m, lane);
    else
        multiply<N>(o, m, lane);
}

/* Computes a tile's probabilities, and adds their products with its values. */
template <int N>
DEVICE void tokens_add_tile(mla_sums<N> &o, float &sum, unsigned &word, const mla_shared<N> &m,
                            const ring<MLA_PACKED_STAGES(N)> &at, int slot, int add)
{
    const unsigned tile = m.tiles + at.slot * MLA_PACKED_TILE, empty = m.empty + 8 * at.slot;
    barrier_wait(m.full + 8 * at.slot, at.phase);
    barrier_wait(m.p_full, (unsigned)slot);
    word = shared_load_word(m.odd + slot * 4);
    word = tokens_softmax<N>(m, sum, word, m.factor + slot * N, tokens_here());
    if (add && (word & TOKENS_RAISED)) {
        mla_shared<N> from = m;
        from.factor += slot * N;
        tokens_multiply_sums<N>(o, from, thread_here() % 32);
    }
    const tokens_place me = tokens_here();
    const unsigned row = tile + me.lane % 4 * 2 * MLA_PACKED_BYTES;
    const unsigned codes = row + me.group * 2 * PACKED_SCALED + me.warp * 32 + me.lane / 4 * 4;
    if (word & TOKENS_F16)
        tokens_add_half<N>(o, m.p, codes,
                           tokens_table(m, slot) + me.group * 2 * TOKENS_TABLE + me.lane % 4 * 4,
                           empty, add);
    else
        tokens_add_wide<N>(o, m.p, codes, row + MLA_LORA + me.group * 8, empty, add);
}

template <int N> DEVICE void tokens_add_up(const mla_call &c, const mla_shared<N> &m)
{
    ring<MLA_PACKED_STAGES(N)> at;
    int slot = 0;
    mla_sums<N> o;
    clear_padding(c, (int)threadIdx.x - 2 * GROUP_THREADS, 2 * GROUP_THREADS);
    mla_walk w = walk_before(c);
    while (walk_next(c, w)) {
        index_sequence q;
        float sum = 0;
        unsigned word = 0;
#pragma unroll 1
        for (int more = w.t1 - w.t0, add = 0; more > 0; more--, add = 1) {
            tokens_add_tile<N>(o, sum, word, m, at, slot, add);
            slot ^= 1;
            at.advance();
        }
        const tokens_place me = tokens_here();
        const int d0 = me.group * 2 * PACKED_SCALED + me.warp * 32 + me.lane / 4 * 4;
        walk_again(c, w);
        walk_sequence(c, w, &q);
        tokens_finish<N>(c, w, q, m, sum, !(word & TOKENS_F16), me);
        tokens_multiply_sums<N>(o, m, me.lane);
        barrier_arrive(m.p_empty);
        if (walk_whole(w))
            codes_out<N, PACKED_SCALED>(c, w, q, o, d0, me.lane);
        else
            codes_part<N, PACKED_SCALED>(c, w, q, o, d0, me.lane);
    }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

template <int N> struct tokens_roles {
    static constexpr int rows = N, stages = MLA_PACKED_STAGES(N);
    static constexpr int feeding = N < MLA_ROWS ? 72 : 48, scoring = N < MLA_ROWS ? 136 : 112;
    static constexpr int adding = N < MLA_ROWS ? 152 : 176;
    static constexpr int scorers = 1, buffers = 1, turns = 0;
    static constexpr int fillers = GROUP_THREADS + 4, raws = 0;

    MLA_ROLES(tokens_find<N>(memory), tokens_feed<N>(c, m), tokens_score<N>(c, m),
              tokens_add_up<N>(c, m))
};

#define MLA_ATTEND_TOKENS(N) MLA_KERNEL(mla_attend_packed_##N, MLA_THREADS, tokens_roles<N>)

#endif /* FLASHMLA_LIKE_ATTEND_PACKED_ROWS_CUH */
