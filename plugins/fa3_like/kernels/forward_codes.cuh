/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_codes.cuh: forward.cuh for queries, keys and values of e4m3, of head dimension 128.
 *
 *   producer 0    K Q K K K K ...
 *   producer 1        V V V V ...                values that have been turned (turn.cuh)
 *   consumer 0    S exponentials PV S exponentials PV ...            O
 *   consumer 1       S exponentials PV S exponentials PV ...         O
 *   consumer 2          S exponentials PV S exponentials PV ...      O
 *
 * Three consumers, 64 query rows each, and no order among them: one thing after the other, each
 * fills what the others leave. A tile's scores and its products with values have the same
 * registers, one after the other. So there is no room for scores kept until their probabilities are
 * known to be good: where they are not, the warp computes its own ones again.
 *
 * Tensor cores keep some 13 bits of a sum of products of codes, so sums of values are of two
 * levels: those of a tile, 128 keys, are added in registers.
 *
 * Probabilities are rounded to e4m3, at most 448: a reference is such that the largest of its tile
 * is 2^TOP, and a thread's sum of a tile that is beyond 448 asks for a new one. So the first tile
 * of keys comes first: all rows see the whole of it, mostly, and few find a much larger score
 * after. The last one, of which a causal row sees some keys or one, gave a reference that did not
 * last.
 */
#ifndef FA3_LIKE_FORWARD_CODES_CUH
#define FA3_LIKE_FORWARD_CODES_CUH

#include "plugins/fa3_like/kernels/forward.cuh"
#include "plugins/fa3_like/kernels/shapes.h"
#include "plugins/fa3_like/kernels/turn.cuh"

#define CODES_TOP   2
#define CODES_LIMIT 448.0f

#define CODES_AT_ONCE 32 /* exponentials before their sums */

/* As tile_shape. Registers: o 64 + s or part 64 + codes 16 of 160. */
template <bool is_f16_> struct codes_shape {
    static constexpr int dim = 128;
    static constexpr int dim_v = 128;
    static constexpr int keys = TURN_KEYS;
    static constexpr int groups = 3;
    static constexpr int stages = 4; /* of keys, and of values */
    static constexpr int slots = 2;
    static constexpr bool is_f16 = is_f16_; /* of the output */
    static constexpr bool codes = true;

    static constexpr int queries = groups * GROUP_ROWS;
    static constexpr int threads = (groups + 1) * GROUP_THREADS;
    static constexpr int panels = 1;   /* of codes: 128 a row */
    static constexpr int panels_v = 2; /* of the output */

    static constexpr int q_bytes = queries * ROW_BYTES;
    static constexpr int k_bytes = keys * ROW_BYTES;
    static constexpr int v_bytes = TURN_BYTES;
    static constexpr int o_bytes = panels_v * queries * ROW_BYTES;

    static constexpr int q_at = 0;
    static constexpr int k_at = q_at + slots * q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    static constexpr int o_at = v_at + stages * v_bytes;
    static constexpr int control_at = o_at + o_bytes;
    static constexpr int control_bytes = 320;
    static constexpr int shared_bytes = control_at + control_bytes;

    static constexpr int producer_registers = 32;
    static constexpr int consumer_registers = 160;
    static constexpr bool chunks = false; /* its consumers have no registers for them */

    static_assert(shared_bytes <= 232448, "a block has at most 227 KiB of shared memory");
};

#define FA3_TILE(name, dim_, dim_v_, keys_, groups_, stages_, slots_, shared)                      \
    static_assert(                                                                                 \
        codes_shape<false>::shared_bytes == shared && codes_shape<false>::dim == dim_ &&           \
            codes_shape<false>::keys == keys_ && codes_shape<false>::groups == groups_ &&          \
            codes_shape<false>::stages == stages_ && codes_shape<false>::slots == slots_,          \
        #name ": the table's numbers");
FA3_CODES_SHAPES(FA3_TILE)
#undef FA3_TILE

/* Keys and values have rings of their own: stages [0, T::stages) of the block's barriers are keys,
 * those after them values. */
DEVICE unsigned key_barrier(unsigned long long *barriers, int slot)
{
    return shared_address(barriers + slot);
}

template <typename T> DEVICE unsigned value_barrier(unsigned long long *barriers, int slot)
{
    return shared_address(barriers + T::stages + slot);
}

template <typename T> DEVICE void codes_control_init(struct control *control)
{
    const int warps = T::groups * 4;
    static_assert(2 * T::stages <= MOST_STAGES, "barriers for all");
    ring_init(control->q_full, control->q_empty, T::slots, 1, warps);
    ring_init(control->full, control->empty, 2 * T::stages, 1, warps);
    ring_init(control->work_full, control->work_empty, WORK_SLOTS, 1, warps + 1);
    fence_barrier_init();
}

/* ---- Producer -------------------------------------------------------------------------------- */

/* One warp: tiles of rows of 128 codes. `first` is called after the first of them. */
template <typename T, typename F>
DEVICE void load_codes(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                       const struct tile_step &step, const struct work &w, unsigned to,
                       unsigned full, unsigned empty, ring<T::stages> *stage, F first)
{
    const int head = w.head / p.heads_per_kv;
    if (w.k_end == w.k_start)
        return;
    const int last = last_boxes<T>(p, w);
    struct piece it = piece_of<T, 1>(p, w, w.k_start, threadIdx.x % 32);
    to += it.box * p.box_rows * ROW_BYTES;
#pragma unroll 1
    for (int n = w.k_start; n < w.k_end; n++) {
        const int boxes = n == w.k_end - 1 ? last : step.boxes;
        int outer = it.outer;
        if (it.box < boxes && p.block_table)
            outer = *it.page;
        barrier_wait(empty + 8 * stage->slot, stage->phase ^ 1);
        if (threadIdx.x % 32 == 0)
            barrier_arrive_expect(full + 8 * stage->slot, boxes * p.box_rows * ROW_BYTES);
        __syncwarp();
        if (it.box < boxes)
            tensor_load(to + stage->slot * T::k_bytes, &map, full + 8 * stage->slot, 0, it.key,
                        head, outer);
        __syncwarp();
        stage->advance();
        piece_advance(p, step, &it);
        if (n == w.k_start)
            first();
    }
}

/* Warp 0: work, queries, keys. */
template <typename T>
DEVICE void codes_produce_work(const struct fa3_codes_params &c, struct control *control,
                               unsigned base)
{
    const struct fa3_forward_params &p = c.forward;
    work_ring works;
    ring<T::stages> stage;
    ring<T::slots> slot;
    const struct tile_step step = tile_step_of<T>(p);
    struct work w = work_of<T>(p, blockIdx.x);
    work_publish(control, &works, w);
    while (w.queries > 0) {
        int next = 0;
        if (threadIdx.x % 32 == 0)
            next = atomicAdd((unsigned *)p.counter, 1) + gridDim.x;
        load_codes<T>(p, p.k, step, w, base + T::k_at, key_barrier(control->full, 0),
                      key_barrier(control->empty, 0), &stage, [&] {
                          barrier_wait(shared_address(control->q_empty + slot.slot),
                                       slot.phase ^ 1);
                          load_queries<T>(p, w, base + T::q_at + slot.slot * T::q_bytes,
                                          shared_address(control->q_full + slot.slot));
                          slot.advance();
                      });
        w = work_of<T>(p, __shfl_sync(0xffffffff, next, 0));
        work_publish(control, &works, w);
    }
    pdl_launch_dependents();
    if (threadIdx.x % 32 == 0)
        schedule_finish(p);
}

/* Values that fa3_turn_values has turned: a tile is 16 KiB in one piece. */
template <typename T>
DEVICE void load_turned(const struct fa3_codes_params &c, const struct work &w, unsigned to,
                        unsigned full, unsigned empty, ring<T::stages> *stage)
{
    const int first =
        c.turned_first ? ((const int *)c.turned_first)[w.sequence] : w.sequence * c.turned_tiles;
    const int heads = c.forward.heads_q / c.forward.heads_per_kv;
    const char *from =
        (const char *)c.turned +
        ((int64_t)first * heads + w.head / c.forward.heads_per_kv) * (int64_t)TURN_BYTES;
#pragma unroll 1
    for (int n = w.k_start; n < w.k_end; n++) {
        barrier_wait(empty + 8 * stage->slot, stage->phase ^ 1);
        if (threadIdx.x % 32 == 0) {
            barrier_arrive_expect(full + 8 * stage->slot, TURN_BYTES);
            bulk_load(to + stage->slot * T::v_bytes, from + (int64_t)n * heads * TURN_BYTES,
                      TURN_BYTES, full + 8 * stage->slot);
        }
        __syncwarp();
        stage->advance();
    }
}

/* Warp 1: values. */
template <typename T>
DEVICE void codes_produce_values(const struct fa3_codes_params &c, struct control *control,
                                 unsigned base)
{
    work_ring works;
    ring<T::stages> stage;
    for (;;) {
        const struct work w = work_take(control, works);
        work_done(control, &works);
        if (w.queries == 0)
            return;
        load_turned<T>(c, w, base + T::v_at, value_barrier<T>(control->full, 0),
                       value_barrier<T>(control->empty, 0), &stage);
    }
}

/* ---- Softmax --------------------------------------------------------------------------------- */

/* Four codes of a lane: two neighbours of each of two groups of eight keys, of row r + 8 `row`. */
DEVICE unsigned codes_of(const float *e, int word)
{
    const float *x = e + word / 2 * 8 + word % 2 * 2;
    return pack_codes(x[0], x[1], x[4], x[5]);
}

/* Exponentials of scores [from, count), a few at a time, so that few registers are alive; their
 * sums, which are added to `sum`; and codes in the order in which the second product reads them. */
template <int from = 0, int count>
DEVICE void codes_tile(const float (&shift)[2], const float (&s)[count], float scale,
                       float (&sum)[2], unsigned *p)
{
    float e[CODES_AT_ONCE];
#pragma unroll
    for (int i = 0; i < CODES_AT_ONCE; i++)
        e[i] = exp2_fast(fmaf(s[from + i], scale, shift[i / 2 % 2]));
    wgmma_arrived(e);
    float part[4] = {sum[0] + e[0], e[1], sum[1] + e[2], e[3]};
#pragma unroll
    for (int i = 4; i < CODES_AT_ONCE; i++)
        part[i % 4] += e[i];
#pragma unroll
    for (int i = 0; i < CODES_AT_ONCE / 4; i++)
        p[from / 4 + i] = codes_of(e + i / 4 * 16, i % 4);
    sum[0] = part[0] + part[1];
    sum[1] = part[2] + part[3];
    if constexpr (from + CODES_AT_ONCE < count)
        codes_tile<from + CODES_AT_ONCE>(shift, s, scale, sum, p);
}

/* Whether some row of the warp had a large probability, or no reference: its sum is inf then, or
 * NaN where it sees part of the tile, and fmaxf would let go of that. */
DEVICE bool codes_grown(const float (&sum)[2])
{
    return __any_sync(0xffffffff, !(sum[0] <= CODES_LIMIT && sum[1] <= CODES_LIMIT));
}

/* The largest scores of both rows of a thread, and what `top` has. */
template <int count> DEVICE void codes_top(const float (&s)[count], float (&top)[2])
{
    float tops[4] = {top[0], top[0], top[1], top[1]};
#pragma unroll
    for (int i = 0; i < count; i++)
        tops[i % 4] = fmaxf(tops[i % 4], s[i]);
    top[0] = fmaxf(tops[0], tops[1]);
    top[1] = fmaxf(tops[2], tops[3]);
}

/* A new reference for rows whose scores are at most `top`; see softmax_again. `shift`: for the
 * scores of this tile. */
DEVICE void codes_refer(struct softmax *x, const float (&top)[2], float scale, float (&factor)[2],
                        float (&shift)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float next = fminf(x->shift[r], CODES_TOP - quad_max(top[r]) * scale);
        const bool none = next == POSITIVE_INFINITY; /* and inf - inf is no number */
        factor[r] = none ? 1.0f : exp2_fast(next - x->shift[r]);
        shift[r] = none ? 0.0f : next;
        x->shift[r] = next;
        x->sum[r] *= factor[r];
    }
}

/* ---- Consumers ------------------------------------------------------------------------------- */

template <typename T> struct codes_consumer {
    work_ring works;
    ring<T::stages> k, v;
    ring<T::slots> slot;
    bool keys, values; /* those of the next tile are known to be there */
};

/* Waits for the next tile of keys, of values. */
template <typename T> DEVICE void keys_wait(struct control *control, const codes_consumer<T> &c)
{
    barrier_wait(key_barrier(control->full, c.k.slot), c.k.phase);
}

template <typename T> DEVICE void values_wait(struct control *control, const codes_consumer<T> &c)
{
    barrier_wait(value_barrier<T>(control->full, c.v.slot), c.v.phase);
}

DEVICE float scale_of(const struct fa3_scale &s, int sequence, int head)
{
    if (!s.at)
        return 1.0f;
    return ((const float *)s.at)[(int64_t)sequence * s.sequence + (int64_t)head * s.head];
}

template <typename T> DEVICE void codes_scores(float (&s)[64], const rows<T> &r, unsigned k)
{
    const unsigned long long a = matrix_descriptor(r.q, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(k, 16, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_ss_e4m3(s, descriptor_advance(a, i * 32), descriptor_advance(b, i * 32), i > 0);
}

template <typename T>
DEVICE void codes_values(float (&part)[64], const unsigned (&p)[16], unsigned v)
{
    const unsigned long long b = matrix_descriptor(v, 16, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_rs_e4m3(part, p + 4 * i, descriptor_advance(b, i * 32), i > 0);
}

DEVICE unsigned word_of(unsigned tile, int row, int byte)
{
    return shared_load_word(tile + swizzled(row, byte / 16) + byte % 16);
}

/* 32 columns of this warp's queries, as a product takes them from registers. */
DEVICE void query_codes(unsigned q, int step, unsigned *a)
{
    const int thread = thread_here(), lane = thread % 32, byte = step * 32 + lane % 4 * 4;
    const int row = thread / 32 % 4 * 16 + lane / 4;
    a[0] = word_of(q, row, byte);
    a[1] = word_of(q, row + 8, byte);
    a[2] = word_of(q, row, byte + 16);
    a[3] = word_of(q, row + 8, byte + 16);
}

/* The scores of this warp's rows once more, of half a tile's keys, by the warp alone: others need
 * not take part. */
DEVICE void codes_scores_warp(float (&s)[32], unsigned q, unsigned k)
{
    const int lane = thread_here() % 32;
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        unsigned a[4];
        query_codes(q, i, a);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int byte = i * 32 + lane % 4 * 4;
            float sums[4] = {s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]};
            mma_e4m3(sums, a, word_of(k, 8 * j + lane / 4, byte),
                     word_of(k, 8 * j + lane / 4, byte + 16));
            s[4 * j] = sums[0], s[4 * j + 1] = sums[1];
            s[4 * j + 2] = sums[2], s[4 * j + 3] = sums[3];
        }
    }
}

/* forward.cuh's values_clear, of turned values. */
template <typename T>
DEVICE void codes_values_clear(struct control *control, const codes_consumer<T> &c, unsigned base,
                               int first, int end)
{
    if (first >= end)
        return;
    const unsigned v = base + T::v_at + c.v.slot * T::v_bytes;
    values_wait<T>(control, c);
#pragma unroll 1
    for (int i = thread_here() - GROUP_THREADS; i < T::dim_v * 8; i += T::groups * GROUP_THREADS) {
        const unsigned at = v + swizzled(i / 8, i % 8);
        shared_store(at, turned_clear(shared_load(at), first - i % 8 * 16, end - i % 8 * 16));
    }
    fence_async_shared();
    named_sync(BARRIER_CLEAR, T::groups * GROUP_THREADS);
}

/* Tile n with a new reference. The scores are gone by then, and there are registers for half of
 * them only: each half is computed for the reference, and again for the codes. */
template <typename T>
DEVICE void codes_again(const struct fa3_forward_params &p, const struct work &w, int group,
                        rows<T> *r, int n, unsigned k, float (&sum)[2], unsigned (&codes)[16])
{
    float s[32], shift[2], factor[2], top[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        codes_scores_warp(s, r->q, k + half * (T::keys / 2) * ROW_BYTES);
        scores_finish<T>(p, w, *r, r->cap, group, n, s, half * T::keys / 2);
        codes_top(s, top);
    }
    codes_refer(&r->x, top, r->scale, factor, shift);
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        codes_scores_warp(s, r->q, k + half * (T::keys / 2) * ROW_BYTES);
        scores_finish<T>(p, w, *r, r->cap, group, n, s, half * T::keys / 2);
        codes_tile(shift, s, r->scale, sum, codes + 8 * half);
    }
#pragma unroll
    for (int i = 0; i < 64; i++)
        r->o[i] *= factor[i / 2 % 2];
}

/* The next tile of keys or of values is done with. */
template <typename T> DEVICE void keys_done(struct control *control, codes_consumer<T> *c)
{
    release(key_barrier(control->empty, c->k.slot));
    c->k.advance();
    c->keys = barrier_test(key_barrier(control->full, c->k.slot), c->k.phase);
}

template <typename T> DEVICE void values_done(struct control *control, codes_consumer<T> *c)
{
    release(value_barrier<T>(control->empty, c->v.slot));
    c->v.advance();
}

template <typename T> DEVICE void queries_done(struct control *control, codes_consumer<T> *c)
{
    release(shared_address(control->q_empty + c->slot.slot));
    c->slot.advance();
}

/* Codes of tile n; `first`: the rows have no reference yet. */
template <typename T, bool first>
DEVICE void codes_scores_step(const struct fa3_forward_params &p, struct control *control,
                              unsigned base, int group, const struct work &w, codes_consumer<T> *c,
                              rows<T> *r, int n, unsigned (&codes)[16])
{
    float s[64], sum[2] = {0.0f, 0.0f};
    const unsigned k = base + T::k_at + c->k.slot * T::k_bytes;
    if (first || !c->keys)
        keys_wait<T>(control, *c);
    wgmma_fence();
    codes_scores<T>(s, *r, k);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
    scores_finish<T>(p, w, *r, r->cap, group, n, s);
    if (first) {
        float shift[2], factor[2], top[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
        codes_top(s, top);
        codes_refer(&r->x, top, r->scale, factor, shift);
        codes_tile(shift, s, r->scale, sum, codes);
    } else {
        codes_tile(r->x.shift, s, r->scale, sum, codes);
        if (__builtin_expect(codes_grown(sum), 0))
            codes_again<T>(p, w, group, r, n, k, sum, codes);
    }
    c->values = barrier_test(value_barrier<T>(control->full, c->v.slot), c->v.phase);
    keys_done<T>(control, c);
    r->x.sum[0] += sum[0];
    r->x.sum[1] += sum[1];
}

/* Products of a tile's codes with its values, added to the rows' sums. */
template <typename T>
DEVICE void codes_values_step(struct control *control, unsigned base, int group,
                              codes_consumer<T> *c, rows<T> *r, int n, const unsigned (&codes)[16])
{
    float part[64];
    if (!c->values)
        values_wait<T>(control, *c);
    wgmma_fence();
    codes_values<T>(part, codes, base + T::v_at + c->v.slot * T::v_bytes);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(part);
    values_done<T>(control, c);
#pragma unroll
    for (int i = 0; i < 64; i++)
        r->o[i] += part[i];
}

/* Lets `count` tiles go as they come. */
template <typename T>
DEVICE void codes_skip(struct control *control, codes_consumer<T> *c, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        keys_wait<T>(control, *c);
        keys_done<T>(control, c);
        values_wait<T>(control, *c);
        values_done<T>(control, c);
    }
}

/* Clears what lies before all that the tile's first query sees, in the first tile of values. */
template <typename T>
DEVICE void codes_clear_before(const struct fa3_forward_params &p, struct control *control,
                               const codes_consumer<T> &c, unsigned base, const struct work &w)
{
    codes_values_clear<T>(control, c, base, 0, w.first_key - w.k_start * T::keys);
}

/* A tile of queries against its keys, of which there is at least one tile. */
template <typename T>
DEVICE void codes_attend(const struct fa3_forward_params &p, struct control *control, unsigned base,
                         int group, const struct work &w, codes_consumer<T> *c, rows<T> *r)
{
    unsigned codes[16];
    int n = uniform(w.k_start);
    const int last = last_seen<T>(p, w, group);

    barrier_wait(shared_address(control->q_full + c->slot.slot), c->slot.phase);
    codes_scores_step<T, true>(p, control, base, group, w, c, r, n, codes);
    codes_clear_before<T>(p, control, *c, base, w);
#pragma unroll 1
    for (; n < last; n++) {
        codes_values_step<T>(control, base, group, c, r, n, codes);
        codes_scores_step<T, false>(p, control, base, group, w, c, r, n + 1, codes);
    }
    queries_done<T>(control, c);
    codes_values_step<T>(control, base, group, c, r, n, codes);
    codes_skip<T>(control, c, uniform(w.k_end - 1) - last);
}

/* A warpgroup after the last query of the sequence. */
template <typename T>
DEVICE void codes_attend_nothing(const struct fa3_forward_params &p, struct control *control,
                                 unsigned base, const struct work &w, codes_consumer<T> *c)
{
    barrier_wait(shared_address(control->q_full + c->slot.slot), c->slot.phase);
    queries_done<T>(control, c);
    codes_clear_before<T>(p, control, *c, base, w);
    codes_skip<T>(control, c, uniform(w.k_end - w.k_start));
}

template <typename T>
DEVICE void codes_rows_begin(const struct fa3_codes_params &c, const struct work &w, unsigned q,
                             int group, rows<T> *r)
{
    const struct fa3_forward_params &p = c.forward;
    const int head = w.head / p.heads_per_kv;
    const float scale =
        scale_of(c.q_scale, w.sequence, head) * scale_of(c.k_scale, w.sequence, head);
    rows_begin<T>(p, w, group, r);
    r->q = q + group * T::panels * GROUP_ROWS * ROW_BYTES;
    r->cap = p.score_cap * scale;
    r->scale = p.score_cap != 0.0f ? p.score_log2 : p.score_log2 * scale;
#pragma unroll
    for (int i = 0; i < T::dim_v / 2; i++)
        r->o[i] = 0.0f;
}

template <typename T>
DEVICE void codes_consume(const struct fa3_codes_params &params, struct control *control,
                          unsigned base, int group)
{
    const struct fa3_forward_params &p = params.forward;
    codes_consumer<T> c;
    for (;;) {
        const struct work &w = work_take(control, c.works);
        if (w.queries == 0)
            break;
        const bool any = w.k_end > w.k_start;
        if (w.tile * T::queries + group * GROUP_ROWS >= w.queries) {
            if (any)
                codes_attend_nothing<T>(p, control, base, w, &c);
            work_done(control, &c.works);
            continue;
        }
        rows<T> r;
        codes_rows_begin<T>(params, w, base + T::q_at + c.slot.slot * T::q_bytes, group, &r);
        if (any)
            codes_attend<T>(p, control, base, group, w, &c, &r);
        rows_finish<T>(p, w, &r);
        const float v_scale = scale_of(params.v_scale, w.sequence, w.head / p.heads_per_kv);
        r.factor[0] *= v_scale;
        r.factor[1] *= v_scale;
        const int here = uniform(thread_here() / GROUP_THREADS - 1);
        if (thread_here() % GROUP_THREADS == 0)
            store_wait_read();
        group_sync(here);
        clear_lost(r.o, r.is_lost);
        epilogue<T>(p, w, here, r.o, r.factor, r.lse,
                    base + T::o_at + here * T::panels_v * GROUP_ROWS * ROW_BYTES);
        work_done(control, &c.works);
    }
    if (threadIdx.x % GROUP_THREADS == 0)
        store_wait_read();
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

template <typename T> DEVICE void forward_codes(const struct fa3_codes_params &params)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared);
    struct control *control = (struct control *)(shared + T::control_at);
    static_assert(sizeof(struct control) <= T::control_bytes, "room for barriers and work");
    const int group = uniform(threadIdx.x / GROUP_THREADS), warp = uniform(threadIdx.x / 32);

    if (threadIdx.x == 0) {
        codes_control_init<T>(control);
        tensor_map_prefetch(&params.forward.q);
        tensor_map_prefetch(&params.forward.k);
        tensor_map_prefetch(&params.forward.o);
    }
    __syncthreads();
    pdl_wait();

    if (group == 0) {
        setmaxnreg_dec<T::producer_registers>();
        if (warp == 0)
            codes_produce_work<T>(params, control, base);
        else if (warp == 1)
            codes_produce_values<T>(params, control, base);
    } else {
        setmaxnreg_inc<T::consumer_registers>();
        codes_consume<T>(params, control, base, group - 1);
    }
}

#define FA3_FORWARD_CODES(name, is_half)                                                           \
    typedef codes_shape<is_half> name##_tile;                                                      \
    FA3_SHAPE(name)                                                                                \
    extern "C" __global__ void __launch_bounds__(name##_tile::threads, 1)                          \
        name(const __grid_constant__ struct fa3_codes_params p)                                    \
    {                                                                                              \
        forward_codes<name##_tile>(p);                                                             \
    }

#endif
