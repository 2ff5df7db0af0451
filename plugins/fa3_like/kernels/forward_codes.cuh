/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_codes.cuh: forward.cuh for queries, keys and values of e4m3, of head dimension 128.
 *
 *   producer 0    K Q K K K K ...
 *   producer 1        V V V V ...              values that have been turned (turn.cuh)
 *   consumer 0    S . [PV S] exponentials [PV S] exponentials ...      O
 *   consumer 1         S . exponentials [PV S] exponentials [PV S] ... O
 *
 * The consumers take turns (turn_take, turn_give) at exponentials: the units for these are the
 * scarcest thing there is (64 x 128 take 512 cycles, as both products do), and in a turn they are
 * all of one warpgroup's. Sums and codes are made in the turn, too, as the assembler mixes them in:
 * kept out of it, a tile took 15 % longer.
 *
 * Tensor cores keep some 13 bits of a sum of products of codes, so sums of values are of two
 * levels: those of a tile, 128 keys, are added in registers.
 *
 * Probabilities are rounded to e4m3, at most 448: a reference is such that the largest of its tile
 * is 2^TOP, and a thread's sum of a tile that is beyond 448 asks for a new one. The scores are gone
 * by then; the warp computes its own ones again.
 */
#ifndef FA3_LIKE_FORWARD_CODES_CUH
#define FA3_LIKE_FORWARD_CODES_CUH

#include "plugins/fa3_like/kernels/forward.cuh"
#include "plugins/fa3_like/kernels/shapes.h"
#include "plugins/fa3_like/kernels/turn.cuh"

#define CODES_TOP   2
#define CODES_LIMIT 448.0f

/* As tile_shape. Registers: o 64 + s 64 + part 64 + codes 16 of 240. */
template <bool half_> struct codes_shape {
    static constexpr int dim = 128;
    static constexpr int dim_v = 128;
    static constexpr int keys = TURN_KEYS;
    static constexpr int groups = 2;
    static constexpr int stages = 4; /* of keys, and of values */
    static constexpr int slots = 1;
    static constexpr bool half = half_; /* of the output */
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
    static constexpr int k_at = q_at + q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    static constexpr int o_at = v_at + stages * v_bytes;
    static constexpr int control_at = o_at + o_bytes;
    static constexpr int control_bytes = 256;
    static constexpr int shared_bytes = control_at + control_bytes;

    static constexpr int producer_registers = 24;
    static constexpr int consumer_registers = 240;

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
    ring_init(control->q_full, control->q_empty, 1, 1, warps);
    ring_init(control->full, control->empty, 2 * T::stages, 1, warps);
    ring_init(control->work_full, control->work_empty, WORK_SLOTS, 1, warps + 1);
    fence_barrier_init();
}

/* ---- Producer ----------------------------------------------------------------------------------
 */

/* One warp: tiles of rows of 128 codes. */
template <typename T, typename F>
DEVICE void load_codes(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                       const struct work &w, unsigned to, unsigned full, unsigned empty,
                       ring<T::stages> *stage, F first)
{
#pragma unroll 1
    for (int n = w.k_end - 1; n >= w.k_start; n--) {
        const int boxes = boxes_needed<T>(p, w, n), box = threadIdx.x % 32;
        int key = n * T::keys + box * p.box_rows, outer;
        find_key(p, w, box < boxes, &key, &outer);
        barrier_wait(empty + 8 * stage->slot, stage->phase ^ 1);
        if (threadIdx.x % 32 == 0)
            barrier_arrive_expect(full + 8 * stage->slot, boxes * p.box_rows * ROW_BYTES);
        __syncwarp();
        if (box < boxes)
            tensor_load(to + stage->slot * T::k_bytes + box * p.box_rows * ROW_BYTES, &map,
                        full + 8 * stage->slot, 0, key, w.head / p.heads_per_kv, outer);
        __syncwarp();
        stage->advance();
        if (n == w.k_end - 1)
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
    unsigned q_phase = 1;
    struct work w = work_of<T>(p, blockIdx.x);
    work_publish(control, &works, w);
    while (w.queries > 0) {
        int next = 0;
        if (threadIdx.x % 32 == 0)
            next = atomicAdd((unsigned *)p.counter, 1) + gridDim.x;
        load_codes<T>(p, p.k, w, base + T::k_at, key_barrier(control->full, 0),
                      key_barrier(control->empty, 0), &stage, [&] {
                          barrier_wait(shared_address(control->q_empty), q_phase);
                          q_phase ^= 1;
                          load_queries<T>(p, w, base + T::q_at, shared_address(control->q_full));
                      });
        w = work_of<T>(p, __shfl_sync(0xffffffff, next, 0));
        work_publish(control, &works, w);
    }
    grid_launch_dependents();
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
    for (int n = w.k_end - 1; n >= w.k_start; n--) {
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

/* ---- Softmax -----------------------------------------------------------------------------------
 */

/* Four codes of a lane: two neighbours of each of two groups of eight keys, of row r + 8 `row`. */
DEVICE unsigned codes_of(const float *e, int word)
{
    const float *x = e + word / 2 * 8 + word % 2 * 2;
    return pack_codes(x[0], x[1], x[4], x[5]);
}

/* Sums, and codes in the order in which the second product reads them. */
DEVICE void codes_join(const float (&e)[64], float (&sum)[2], unsigned (&p)[16])
{
    float part[8];
#pragma unroll
    for (int i = 0; i < 64; i++)
        part[i % 8] = i < 8 ? e[i] : part[i % 8] + e[i];
#pragma unroll
    for (int i = 0; i < 16; i++)
        p[i] = codes_of(e + i / 4 * 16, i % 4);
    sum[0] = (part[0] + part[1]) + (part[4] + part[5]);
    sum[1] = (part[2] + part[3]) + (part[6] + part[7]);
}

/* Whether some row of the warp had a large probability, or no reference: its sum is inf then, or
 * NaN where it sees part of the tile, and fmaxf would let go of that. */
DEVICE bool codes_grown(const float (&sum)[2])
{
    return __any_sync(0xffffffff, !(sum[0] <= CODES_LIMIT && sum[1] <= CODES_LIMIT));
}

/* A tile with a new reference; see softmax_again. */
DEVICE void codes_again(struct softmax *x, float (&s)[64], float scale, float (&sum)[2],
                        float (&factor)[2], unsigned (&p)[16])
{
    float tops[8];
#pragma unroll
    for (int i = 0; i < 64; i++)
        tops[i % 8] = i < 8 ? s[i] : fmaxf(tops[i % 8], s[i]);
    const float top[2] = {fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[4], tops[5])),
                          fmaxf(fmaxf(tops[2], tops[3]), fmaxf(tops[6], tops[7]))};
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float next = fminf(x->shift[r], CODES_TOP - quad_max(top[r]) * scale);
        const bool none = next == POSITIVE_INFINITY; /* and inf - inf is no number */
        factor[r] = none ? 1.0f : exp2_fast(next - x->shift[r]);
        shift[r] = none ? 0.0f : next;
        x->shift[r] = next;
        x->sum[r] *= factor[r];
    }
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] = exp2_fast(fmaf(s[i], scale, shift[i / 2 % 2]));
    codes_join(s, sum, p);
}

/* ---- Consumers ---------------------------------------------------------------------------------
 */

template <typename T> struct codes_consumer {
    work_ring works;
    ring<T::stages> k, v;
    unsigned q_phase = 0;
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

/* A tile of queries and its scales. */
template <typename T> struct codes_rows : rows<T> {
    float scale; /* of scores, in powers of 2 */
    float cap;   /* 0: none */
};

DEVICE float scale_of(const struct fa3_scale &s, int sequence, int head)
{
    if (!s.at)
        return 1.0f;
    return ((const float *)s.at)[(int64_t)sequence * s.sequence + (int64_t)head * s.head];
}

template <typename T> DEVICE void codes_scores(float (&s)[64], const codes_rows<T> &r, unsigned k)
{
    const unsigned long long a = matrix_descriptor(r.q, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(k, 16, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++)
        product_codes_shared(s, descriptor_advance(a, i * 32), descriptor_advance(b, i * 32),
                             i > 0);
}

template <typename T>
DEVICE void codes_values(float (&o)[64], const unsigned (&p)[16], unsigned v, int add)
{
    const unsigned long long b = matrix_descriptor(v, 16, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++)
        product_codes_register(o, p + 4 * i, descriptor_advance(b, i * 32), i > 0 ? 1 : add);
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

/* The scores of this warp's rows once more, by the warp alone: others need not take part. */
DEVICE void codes_scores_warp(float (&s)[64], unsigned q, unsigned k)
{
    const int lane = thread_here() % 32;
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        unsigned a[4];
        query_codes(q, i, a);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int byte = i * 32 + lane % 4 * 4;
            float sums[4] = {s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]};
            product_codes_warp(sums, a, word_of(k, 8 * j + lane / 4, byte),
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

/* Of tile n - 1, in this warpgroup's turn. */
template <typename T>
DEVICE void codes_exponentials(int group, const codes_rows<T> &r, float (&s)[64], float (&sum)[2],
                               unsigned (&codes)[16])
{
    turn_take(group);
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] = exp2_fast(fmaf(s[i], r.scale, r.x.shift[i / 2 % 2]));
    products_arrived(s);
    turn_give<T>(group);
    codes_join(s, sum, codes);
}

/* From the probabilities of tile n to those of tile n - 1. Both products are issued at once, values
 * first: their sum is taken over while the scores are computed, and no product is under way while
 * the other warpgroup's are and this one exponentiates. */
template <typename T>
DEVICE void codes_step(const struct fa3_forward_params &p, struct control *control, unsigned base,
                       int group, const struct work &w, codes_consumer<T> *c, codes_rows<T> *r,
                       int n, int k_start, unsigned (&codes)[16])
{
    float s[64], part[64], factor[2], sum[2];
    const unsigned k = base + T::k_at + c->k.slot * T::k_bytes;
    const unsigned v = base + T::v_at + c->v.slot * T::v_bytes;
    const unsigned k_empty = key_barrier(control->empty, c->k.slot);
    const unsigned v_empty = value_barrier<T>(control->empty, c->v.slot);

    MARK(0, k_start - n);
    values_wait<T>(control, *c);
    keys_wait<T>(control, *c);
    MARK(1, k_start - n);
    products_fence();
    codes_values<T>(part, codes, v, 0);
    products_commit();
    codes_scores<T>(s, *r, k);
    products_commit();
    MARK(2, k_start - n);
    products_wait<1>();
    products_arrived(part);
    MARK(3, k_start - n);
#pragma unroll
    for (int i = 0; i < 64; i++)
        r->o[i] += part[i];
    release(v_empty);
    c->k.advance();
    c->v.advance();
    products_wait<0>();
    products_arrived(s);
    MARK(4, k_start - n);
    scores_finish<T>(p, w, *r, r->cap, group, n - 1, s);

    MARK(5, k_start - n);
    codes_exponentials<T>(group, *r, s, sum, codes);
    MARK(6, k_start - n);
    if (__builtin_expect(codes_grown(sum), 0)) {
        codes_scores_warp(s, r->q, k);
        scores_finish<T>(p, w, *r, r->cap, group, n - 1, s);
        codes_again(&r->x, s, r->scale, sum, factor, codes);
#pragma unroll
        for (int i = 0; i < 64; i++)
            r->o[i] *= factor[i / 2 % 2];
    }
    release(k_empty);
    r->x.sum[0] += sum[0];
    r->x.sum[1] += sum[1];
}

/* A tile of queries against its keys, of which there is at least one tile. */
template <typename T>
DEVICE void codes_attend(const struct fa3_forward_params &p, struct control *control, unsigned base,
                         int group, const struct work &w, codes_consumer<T> *c, codes_rows<T> *r)
{
    unsigned codes[16];
    int n = uniform(w.k_end - 1);
    const int k_start = uniform(w.k_start);

    barrier_wait(shared_address(control->q_full), c->q_phase);
    c->q_phase ^= 1;
    {
        float s[64], factor[2], sum[2];
        keys_wait<T>(control, *c);
        products_fence();
        codes_scores<T>(s, *r, base + T::k_at + c->k.slot * T::k_bytes);
        products_commit();
        products_wait<0>();
        products_arrived(s);
        release(key_barrier(control->empty, c->k.slot));
        c->k.advance();
        scores_finish<T>(p, w, *r, r->cap, group, n, s);
        codes_again(&r->x, s, r->scale, sum, factor, codes);
        r->x.sum[0] = sum[0];
        r->x.sum[1] = sum[1];
    }
#pragma unroll 1
    for (; n > k_start; n--)
        codes_step<T>(p, control, base, group, w, c, r, n, k_start, codes);
    release(shared_address(control->q_empty));
    /* What lies before the window of the tile's first query. */
    codes_values_clear<T>(control, *c, base, 0,
                          first_position<T>(w, 0) - p.window_left - k_start * T::keys);
    values_wait<T>(control, *c);
    float part[64];
    products_fence();
    codes_values<T>(part, codes, base + T::v_at + c->v.slot * T::v_bytes, 0);
    products_commit();
    products_wait<0>();
    products_arrived(part);
#pragma unroll
    for (int i = 0; i < 64; i++)
        r->o[i] += part[i];
    release(value_barrier<T>(control->empty, c->v.slot));
    c->v.advance();
}

template <typename T>
DEVICE void codes_rows_begin(const struct fa3_codes_params &c, const struct work &w, unsigned base,
                             int group, codes_rows<T> *r)
{
    const struct fa3_forward_params &p = c.forward;
    const int head = w.head / p.heads_per_kv;
    const float scale =
        scale_of(c.q_scale, w.sequence, head) * scale_of(c.k_scale, w.sequence, head);
    rows_begin<T>(p, w, group, r);
    r->q = base + T::q_at + group * T::panels * GROUP_ROWS * ROW_BYTES;
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
    if (group == 1)
        turn_give<T>(group);
    for (;;) {
        const struct work &w = work_take(control, c.works);
        if (w.queries == 0)
            break;
        codes_rows<T> r;
        codes_rows_begin<T>(params, w, base, group, &r);
        if (w.k_end > w.k_start)
            codes_attend<T>(p, control, base, group, w, &c, &r);
        rows_finish<T>(p, w, &r);
        const float v_scale = scale_of(params.v_scale, w.sequence, w.head / p.heads_per_kv);
        r.factor[0] *= v_scale;
        r.factor[1] *= v_scale;
        const int here = uniform(thread_here() / GROUP_THREADS - 1);
        if (thread_here() % GROUP_THREADS == 0)
            store_wait_read();
        group_sync(here);
        epilogue<T>(p, w, here, r.o, r.factor, r.lse,
                    base + T::o_at + here * T::panels_v * GROUP_ROWS * ROW_BYTES);
        work_done(control, &c.works);
    }
    if (threadIdx.x % GROUP_THREADS == 0)
        store_wait_read();
}

/* ---- Kernel ------------------------------------------------------------------------------------
 */

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
    grid_wait();

    if (group == 0) {
        registers_release<T::producer_registers>();
        if (warp == 0)
            codes_produce_work<T>(params, control, base);
        else if (warp == 1)
            codes_produce_values<T>(params, control, base);
    } else {
        registers_take<T::consumer_registers>();
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
