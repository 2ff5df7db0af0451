/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.cuh: attention, forward: O = softmax(scale * Q K^T) V and the logarithm of the sums.
 *
 *   producers 0, 2   K Q K K K K K ...              to shared memory, as stages come free
 *   producers 1, 3   V   V V V V V ...
 *   consumer 0       S . [S PV][S PV] ... PV out    64 query rows each. [S PV]: the next tile's
 *   consumer 1           S . [S PV][S PV] ... PV    scores, then this tile's products with values
 *                                                   among the exponentials of the next
 *
 * Nothing orders the consumers: while one waits for scores, the others have exponentials to do.
 */
#ifndef FA3_LIKE_FORWARD_CUH
#define FA3_LIKE_FORWARD_CUH

#include "plugins/fa3_like/kernels/epilogue.cuh"
#include "plugins/fa3_like/kernels/schedule.cuh"

/* With FA3_TRACE: when block 0 came to places of its loop; kernel_race.py trace prints them. */
#ifdef FA3_TRACE
#define TRACE_ROUNDS 48
#define TRACE_PLACES 8
extern "C" __device__ unsigned fa3_trace[3][TRACE_ROUNDS][TRACE_PLACES];
#define MARK(place, round)                                                                         \
    asm volatile(                                                                                  \
        "{\n.reg .pred p;\n.reg .u32 t;\nsetp.ne.u32 p, %2, 0;\nmov.u32 t, %%clock;\n"             \
        "@p st.global.u32 [%0 + %1], t;\n}" ::"l"(                                                 \
            &fa3_trace[group][(unsigned)((round) + 1024 * TRACE_ROUNDS) % TRACE_ROUNDS][0]),       \
        "n"(4 * (place)), "r"((int)(blockIdx.x == 0 && threadIdx.x % GROUP_THREADS == 0))          \
        : "memory")
#else
#define MARK(place, round)
#endif

/* ---- Producer ----------------------------------------------------------------------------------
 */

/* Lane 0 of warp 0 fetches work and tells it to all others. */
DEVICE void work_publish(struct control *control, work_ring *at, const struct work &w)
{
    barrier_wait(shared_address(&control->work_empty[at->slot()]), at->phase() ^ 1);
    if (threadIdx.x % 32 == 0) {
        control->work[at->slot()] = w;
        barrier_arrive(shared_address(&control->work_full[at->slot()]));
    }
    at->advance();
    __syncwarp();
}

/* The next piece of work; it stays where it is until work_done. */
DEVICE const struct work &work_take(struct control *control, const work_ring &at)
{
    barrier_wait(shared_address(&control->work_full[at.slot()]), at.phase());
    return control->work[at.slot()];
}

DEVICE void work_done(struct control *control, work_ring *at)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(shared_address(&control->work_empty[at->slot()]));
    at->advance();
}

/* Warp 0: the work of this block, and its queries and keys. */
template <typename T>
DEVICE void produce_work(const struct fa3_forward_params &p, struct control *control, unsigned base)
{
    work_ring works;
    ring<T::stages> stage;
    unsigned q_phase = 1;
    struct work w = work_of<T>(p, blockIdx.x);
    work_publish(control, &works, w);
    while (w.queries > 0) {
        int next = 0;
        if (threadIdx.x % 32 == 0)
            next = atomicAdd((unsigned *)p.counter, 1) + gridDim.x;
        load_tiles<T, T::panels>(p, p.k, w, base + T::k_at, shared_address(control->k_full),
                                 shared_address(control->k_empty), &stage, [&] {
                                     barrier_wait(shared_address(&control->q_empty), q_phase);
                                     q_phase ^= 1;
                                     load_queries<T>(p, w, base + T::q_at,
                                                     shared_address(&control->q_full));
                                 });
        w = work_of<T>(p, __shfl_sync(0xffffffff, next, 0));
        work_publish(control, &works, w);
    }
    grid_launch_dependents();
    if (threadIdx.x % 32 == 0)
        schedule_finish(p);
}

/* The other warps: their share of the keys or of the values. */
template <typename T, int panels>
DEVICE void produce(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                    struct control *control, unsigned to, unsigned full, unsigned empty)
{
    work_ring works;
    ring<T::stages> stage;
    for (;;) {
        const struct work w = work_take(control, works);
        work_done(control, &works);
        if (w.queries == 0)
            return;
        load_tiles<T, panels>(p, map, w, to, full, empty, &stage, [] {});
    }
}

/* ---- Consumers ---------------------------------------------------------------------------------
 */

template <typename T> struct consumer {
    work_ring works;
    ring<T::stages> k, v;
    unsigned q_phase = 0;
};

/* Waits for the next tile of keys, if there is one, and of values. They stand between a tile's
 * exponentials and the wait for the second product: where no branch stands there, the assembler
 * moves that wait up, before the exponentials, and nothing overlaps any more. */
template <typename T>
DEVICE void keys_wait(struct control *control, const consumer<T> &c, bool more)
{
    if (more)
        barrier_wait(shared_address(&control->k_full[c.k.slot]), c.k.phase);
}

template <typename T> DEVICE void values_wait(struct control *control, const consumer<T> &c)
{
    barrier_wait(shared_address(&control->v_full[c.v.slot]), c.v.phase);
}

/* Clears values [first, end) of the tile at hand, which no query of the tile sees: the
 * probabilities there are 0, but 0 times what lies there need not be. All consumers take part. */
template <typename T>
DEVICE void values_clear(struct control *control, const consumer<T> &c, unsigned base, int first,
                         int end)
{
    if (first >= end)
        return;
    const unsigned v = base + T::v_at + c.v.slot * T::v_bytes;
    const int pieces = (end - first) * 8 * T::panels_v;
    values_wait<T>(control, c);
    for (int i = thread_here() - GROUP_THREADS; i < pieces; i += T::groups * GROUP_THREADS) {
        const int panel = i / 8 % T::panels_v, row = first + i / 8 / T::panels_v;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                         v + (panel * T::keys + row) * ROW_BYTES + i % 8 * 16),
                     "r"(0)
                     : "memory");
    }
    fence_async_shared();
    named_sync(4, T::groups * GROUP_THREADS);
}

/* A warpgroup's share of a tile of queries. */
template <typename T> struct rows {
    unsigned q;               /* its queries in shared memory */
    int clear_from, clear_to; /* tiles of keys that all of its rows see whole */
    int add;                  /* 0: o holds nothing yet */
    struct softmax x;
    float o[T::dim_v / 2];
};

/* The position of a warpgroup's first row. */
template <typename T> DEVICE int first_position(const struct work &w, int group)
{
    return w.keys - w.queries + w.tile * T::queries + group * GROUP_ROWS;
}

template <typename T>
DEVICE void rows_begin(const struct fa3_forward_params &p, const struct work &w, unsigned base,
                       int group, rows<T> *r)
{
    r->q = base + T::q_at + group * T::panels * GROUP_ROWS * ROW_BYTES;
    const int first = first_position<T>(w, group), last = first + GROUP_ROWS - 1;
    r->clear_from = uniform((max(0, last - p.window_left) + T::keys - 1) / T::keys);
    r->clear_to = uniform(max(0, min(w.keys, first + p.window_right + 1)) / T::keys);
    r->add = 0;
    softmax_begin(&r->x);
}

/* Cap and mask. */
template <typename T>
DEVICE void scores_finish(const struct fa3_forward_params &p, const struct work &w,
                          const rows<T> &r, int group, int n, float (&s)[T::keys / 2])
{
    if (p.score_cap != 0.0f)
        scores_cap(s, p.score_cap);
    if (n >= r.clear_from && n < r.clear_to)
        return;
    const int begin = n * T::keys;
    const int thread = thread_here();
    const int row = first_position<T>(w, group) + thread / 32 % 4 * 16 + thread % 32 / 4 - begin;
    const int low = row - p.window_left, high = row + p.window_right + 1, end = w.keys - begin;
    scores_mask(s, low, min(high, end), low + 8, min(high + 8, end));
}

/* From the probabilities of tile n in `now` to those of tile n - 1 in `next`:
 *
 *   tensor cores   S(n - 1) | O += P(n) V(n) ........... |
 *   this group              | probabilities of S(n - 1)  | O scaled, where it must be
 *
 * A warp that issues products waits where the tensor cores are busy, after two or three of them. So
 * the second product is not issued before the exponentials, but among them: the assembler spreads
 * its products evenly, some ten exponentials from one to the next, as long as no branch stands
 * between. */
template <typename T>
DEVICE void step(const struct fa3_forward_params &p, struct control *control, unsigned base,
                 int group, const struct work &w, consumer<T> *c, rows<T> *r, int n, int k_start,
                 const unsigned (&now)[T::keys / 4], unsigned (&next)[T::keys / 4])
{
    float s[T::keys / 2], factor[2];
    const unsigned k = base + T::k_at + c->k.slot * T::k_bytes;
    const unsigned v = base + T::v_at + c->v.slot * T::v_bytes;
    const unsigned v_empty = shared_address(&control->v_empty[c->v.slot]);

    constexpr int half = T::keys / 4 / 4 * 4;
    unsigned packed[T::keys / 4];
    float early[half], late[T::keys / 2 - half], sum[2] = {0.0f, 0.0f};

    MARK(0, k_start - n);
    products_fence();
    product_scores<T>(s, r->q, k);
    products_commit();
    MARK(1, k_start - n);
    products_wait<0>();
    products_arrived(s);
    MARK(2, k_start - n);
    release(shared_address(&control->k_empty[c->k.slot]));
    c->k.advance();
    c->v.advance();
    scores_finish<T>(p, w, *r, group, n - 1, s);

    products_fence();
    product_values<T>(r->o, now, v, r->add);
    products_commit();
    softmax_exp<0>(r->x, s, p.score_log2, early);
    softmax_exp<half>(r->x, s, p.score_log2, late);
    softmax_join<T::half, 0>(early, sum, packed);
    softmax_join<T::half, half>(late, sum, packed);
    keys_wait<T>(control, *c, n - 1 > k_start);
    values_wait<T>(control, *c);
    const bool again = softmax_grown(sum);
    if (__builtin_expect(again, 0))
        softmax_again<T::half>(&r->x, s, p.score_log2, sum, factor, packed);
    r->x.sum[0] += sum[0];
    r->x.sum[1] += sum[1];
    MARK(3, k_start - n);

    products_wait<0>();
    products_arrived(r->o);
    MARK(4, k_start - n);
    release(v_empty);
    if (again) {
#pragma unroll
        for (int i = 0; i < T::dim_v / 2; i++)
            r->o[i] *= factor[i / 2 % 2];
    }
    r->add = 1;
#pragma unroll
    for (int i = 0; i < T::keys / 4; i++)
        asm volatile("mov.b32 %0, %1;" : "=r"(next[i]) : "r"(packed[i]));
}

/* Tiles of keys that none of this warpgroup's rows sees, at the end of a causal tile of queries:
 * they are let go as they come. Answers the first tile to do; at least one is left. */
template <typename T>
DEVICE int skip_hidden(const struct fa3_forward_params &p, struct control *control,
                       const struct work &w, int group, consumer<T> *c)
{
    const int last = first_position<T>(w, group) + GROUP_ROWS - 1;
    const int seen = max(w.k_start, min(w.keys - 1, last + p.window_right) / T::keys);
    int n = uniform(w.k_end - 1);
    for (; n > uniform(seen); n--) {
        keys_wait<T>(control, *c, true);
        release(shared_address(&control->k_empty[c->k.slot]));
        c->k.advance();
        values_wait<T>(control, *c);
        release(shared_address(&control->v_empty[c->v.slot]));
        c->v.advance();
    }
    return n;
}

/* A tile of queries against its keys, of which there is at least one tile. */
template <typename T>
DEVICE void attend(const struct fa3_forward_params &p, struct control *control, unsigned base,
                   int group, const struct work &w, consumer<T> *c, rows<T> *r)
{
    unsigned even[T::keys / 4], odd[T::keys / 4];
    /* What lies after the sequence's last key. */
    values_clear<T>(control, *c, base, w.keys - (w.k_end - 1) * T::keys, T::keys);
    int n = skip_hidden<T>(p, control, w, group, c);
    const int k_start = uniform(w.k_start);

    barrier_wait(shared_address(&control->q_full), c->q_phase);
    c->q_phase ^= 1;
    {
        float s[T::keys / 2], factor[2], sum[2];
        keys_wait<T>(control, *c, true);
        products_fence();
        product_scores<T>(s, r->q, base + T::k_at + c->k.slot * T::k_bytes);
        products_commit();
        products_wait<0>();
        products_arrived(s);
        release(shared_address(&control->k_empty[c->k.slot]));
        c->k.advance();
        scores_finish<T>(p, w, *r, group, n, s);
        softmax_again<T::half>(&r->x, s, p.score_log2, sum, factor, even);
        r->x.sum[0] = sum[0];
        r->x.sum[1] = sum[1];
    }
    values_wait<T>(control, *c);
    keys_wait<T>(control, *c, n > k_start);
    if ((n - k_start) % 2) {
        step<T>(p, control, base, group, w, c, r, n--, k_start, even, odd);
#pragma unroll
        for (int i = 0; i < T::keys / 4; i++)
            even[i] = odd[i];
    }
    while (n > k_start) {
        step<T>(p, control, base, group, w, c, r, n--, k_start, even, odd);
        step<T>(p, control, base, group, w, c, r, n--, k_start, odd, even);
    }
    if constexpr (!T::o_over_q)
        release(shared_address(&control->q_empty));
    /* What lies before the window of the tile's first query. */
    values_clear<T>(control, *c, base, 0,
                    first_position<T>(w, 0) - p.window_left - k_start * T::keys);
    products_fence();
    product_values<T>(r->o, even, base + T::v_at + c->v.slot * T::v_bytes, r->add);
    products_commit();
    products_wait<0>();
    products_arrived(r->o);
    release(shared_address(&control->v_empty[c->v.slot]));
    c->v.advance();
}

template <typename T>
DEVICE void consume(const struct fa3_forward_params &p, struct control *control, unsigned base,
                    int group)
{
    consumer<T> c;
    for (;;) {
        const struct work &w = work_take(control, c.works);
        if (w.queries == 0)
            break;
        rows<T> r;
        float factor[2], lse[2];
        rows_begin<T>(p, w, base, group, &r);
        if (w.k_end > w.k_start)
            attend<T>(p, control, base, group, w, &c, &r);
        const float *sinks = (const float *)p.sinks;
        softmax_finish(&r.x, sinks ? sinks + w.head : 0, factor, lse);
        epilogue<T>(p, w, uniform(thread_here() / GROUP_THREADS - 1), r.o, factor, lse, base);
        if constexpr (T::o_over_q) {
            if (w.k_end > w.k_start) {
                const int thread = thread_here();
                if (thread % GROUP_THREADS == 0)
                    store_wait_read();
                named_sync(BARRIER_GROUP + uniform(thread / GROUP_THREADS - 1), GROUP_THREADS);
                release(shared_address(&control->q_empty));
            }
        }
        work_done(control, &c.works);
    }
    if (threadIdx.x % GROUP_THREADS == 0)
        store_wait_read();
}

/* ---- Kernel ------------------------------------------------------------------------------------
 */

template <typename T> DEVICE void forward(const struct fa3_forward_params &p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared);
    struct control *control = (struct control *)(shared + T::control_at);
    static_assert(sizeof(struct control) <= T::control_bytes, "room for barriers and work");
    const int group = uniform(threadIdx.x / GROUP_THREADS), warp = uniform(threadIdx.x / 32);

    if (threadIdx.x == 0) {
        control_init<T>(control);
        tensor_map_prefetch(&p.q);
        tensor_map_prefetch(&p.k);
        tensor_map_prefetch(&p.v);
        tensor_map_prefetch(&p.o);
    }
    __syncthreads();
    grid_wait();

    if (group == 0) {
        registers_release<T::producer_registers>();
        if (warp == 0)
            produce_work<T>(p, control, base);
        else if (warp == 2)
            produce<T, T::panels>(p, p.k, control, base + T::k_at, shared_address(control->k_full),
                                  shared_address(control->k_empty));
        else
            produce<T, T::panels_v>(p, p.v, control, base + T::v_at,
                                    shared_address(control->v_full),
                                    shared_address(control->v_empty));
    } else {
        registers_take<T::consumer_registers>();
        consume<T>(p, control, base, group - 1);
    }
}

/* A kernel and its shape, under one name. */
#define FA3_FORWARD(name, ...)                                                                     \
    typedef tile_shape<__VA_ARGS__> name##_tile;                                                   \
    extern "C" __constant__ const struct fa3_shape name##_shape = {                                \
        name##_tile::queries, name##_tile::keys,         name##_tile::dim,  name##_tile::dim_v,    \
        name##_tile::threads, name##_tile::shared_bytes, name##_tile::half, 0};                    \
    extern "C" __global__ void __launch_bounds__(name##_tile::threads, 1)                          \
        name(const __grid_constant__ struct fa3_forward_params p)                                  \
    {                                                                                              \
        forward<name##_tile>(p);                                                                   \
    }

#endif
