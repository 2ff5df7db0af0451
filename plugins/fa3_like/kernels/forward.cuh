/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.cuh: attention, forward: O = softmax(scale * Q K^T) V and the logarithm of the sums.
 *
 *   producer warp 0   Q K K K K K K ...              to shared memory, as stages come free
 *   producer warp 1     V V V V V V ...
 *   consumer 0        S . [S P V][S P V] ... V out   64 query rows each; [..]: the scores of the next
 *   consumer 1        S . [S P V][S P V] ... V out   tile are under way while this one's
 *                                                    probabilities are multiplied with the values
 */
#ifndef FA3_LIKE_FORWARD_CUH
#define FA3_LIKE_FORWARD_CUH

#include "plugins/fa3_like/kernels/epilogue.cuh"
#include "plugins/fa3_like/kernels/products.cuh"
#include "plugins/fa3_like/kernels/schedule.cuh"
#include "plugins/fa3_like/kernels/softmax.cuh"

/* ---- Producer ---------------------------------------------------------------------------------- */

/* Lane 0 of warp 0 fetches work and tells it to all others. */
DEVICE void work_publish(struct control *control, ring<WORK_SLOTS> *at, const struct work &w)
{
    barrier_wait(shared_address(&control->work_empty[at->slot]), at->phase ^ 1);
    if (threadIdx.x % 32 == 0) {
        control->work[at->slot] = w;
        barrier_arrive(shared_address(&control->work_full[at->slot]));
    }
    at->advance();
    __syncwarp();
}

DEVICE struct work work_take(struct control *control, ring<WORK_SLOTS> *at)
{
    barrier_wait(shared_address(&control->work_full[at->slot]), at->phase);
    struct work w = control->work[at->slot];
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(shared_address(&control->work_empty[at->slot]));
    at->advance();
    return w;
}

template <typename T>
DEVICE void produce_keys(const struct fa3_forward_params &p, struct control *control, unsigned base)
{
    ring<WORK_SLOTS> works;
    ring<T::stages> stage;
    unsigned q_phase = 1;
    struct work w = work_of<T>(p, blockIdx.x);
    work_publish(control, &works, w);
    while (w.queries > 0) {
        int next = 0;
        if (threadIdx.x % 32 == 0)
            next = atomicAdd((unsigned *)p.counter, 1) + gridDim.x;
#pragma unroll 1
        for (int n = w.k_end - 1; n >= w.k_start; n--) {
            barrier_wait(shared_address(&control->k_empty[stage.slot]), stage.phase ^ 1);
            load_tile<T, T::panels>(p, p.k, w, n, base + T::k_at + stage.slot * T::k_bytes,
                                    shared_address(&control->k_full[stage.slot]));
            stage.advance();
            if (n == w.k_end - 1) {
                barrier_wait(shared_address(&control->q_empty), q_phase);
                q_phase ^= 1;
                load_queries<T>(p, w, base + T::q_at, shared_address(&control->q_full));
            }
        }
        w = work_of<T>(p, __shfl_sync(0xffffffff, next, 0));
        work_publish(control, &works, w);
    }
    grid_launch_dependents();
    if (threadIdx.x % 32 == 0)
        schedule_finish(p);
}

template <typename T>
DEVICE void produce_values(const struct fa3_forward_params &p, struct control *control,
                           unsigned base)
{
    ring<WORK_SLOTS> works;
    ring<T::stages> stage;
    for (;;) {
        const struct work w = work_take(control, &works);
        if (w.queries == 0)
            return;
#pragma unroll 1
        for (int n = w.k_end - 1; n >= w.k_start; n--) {
            barrier_wait(shared_address(&control->v_empty[stage.slot]), stage.phase ^ 1);
            load_tile<T, T::panels_v>(p, p.v, w, n, base + T::v_at + stage.slot * T::v_bytes,
                                      shared_address(&control->v_full[stage.slot]));
            stage.advance();
        }
    }
}

/* ---- Consumers --------------------------------------------------------------------------------- */

/* A warp is done with what `barrier` guards. */
DEVICE void release(unsigned barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

/* Clears the values of tile `n` after the sequence's last key: their probabilities are 0, but 0 times
 * what lies there need not be. */
template <typename T> DEVICE void values_clear(const struct work &w, int n, unsigned v)
{
    const int first = w.keys - n * T::keys;
    if (first >= T::keys)
        return;
    const int thread = threadIdx.x - GROUP_THREADS;
    const int pieces = (T::keys - first) * 8 * T::panels_v;
    for (int i = thread; i < pieces; i += T::groups * GROUP_THREADS) {
        const int panel = i / 8 % T::panels_v, row = first + i / 8 / T::panels_v;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                         v + (panel * T::keys + row) * ROW_BYTES + i % 8 * 16),
                     "r"(0)
                     : "memory");
    }
    fence_async_shared();
    named_sync(4, T::groups * GROUP_THREADS);
}

/* Cap and mask; rows begin at position `first`. */
template <typename T>
DEVICE void scores_finish(const struct fa3_forward_params &p, const struct work &w, int first,
                          int n, float (&s)[T::keys / 2])
{
    if (p.score_cap != 0.0f)
        scores_cap(s, p.score_cap);
    const int begin = n * T::keys, end = begin + T::keys;
    if (end <= w.keys && end <= first + p.window_right + 1 &&
        begin >= first + GROUP_ROWS - 1 - p.window_left)
        return;
    const int row = first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    scores_mask(s, row - p.window_left - begin, row + p.window_right + 1 - begin, w.keys - begin);
}

template <typename T> struct consumer {
    ring<WORK_SLOTS> works;
    ring<T::stages> k, v;
    unsigned q_phase = 0;
};

/* Waits for the next tile of keys, if there is one. Between a tile's exponentials and the wait for the
 * products that run beside them: where no branch stands between, the assembler moves that wait up,
 * before the exponentials, and nothing overlaps any more. */
template <typename T>
DEVICE void keys_wait(struct control *control, consumer<T> *c, bool more)
{
    if (more)
        barrier_wait(shared_address(&control->k_full[c->k.slot]), c->k.phase);
}

/* A tile of queries against its keys: o and x hold the sums. At least one tile of keys. */
template <typename T>
DEVICE void attend(const struct fa3_forward_params &p, struct control *control, unsigned base,
                   int group, const struct work &w, consumer<T> *c, float (&o)[T::dim_v / 2],
                   struct softmax *x)
{
    float s[T::keys / 2], factor[2];
    unsigned pr[T::keys / 4];
    const unsigned q = base + T::q_at + group * T::panels * GROUP_ROWS * ROW_BYTES;
    const int first = w.keys - w.queries + w.tile * T::queries + group * GROUP_ROWS;
    const float scale = p.score_log2;

    barrier_wait(shared_address(&control->q_full), c->q_phase);
    c->q_phase ^= 1;
    int n = w.k_end - 1;
    barrier_wait(shared_address(&control->k_full[c->k.slot]), c->k.phase);
    products_fence();
    product_scores<T>(s, q, base + T::k_at + c->k.slot * T::k_bytes);
    products_commit();
    products_wait<0>();
    products_arrived(s);
    release(shared_address(&control->k_empty[c->k.slot]));
    c->k.advance();
    scores_finish<T>(p, w, first, n, s);
    softmax_reference(x, s, scale, factor);
    softmax_exp(x, s, scale);
    softmax_pack<T::half>(pr, s);

    if (n * T::keys + T::keys > w.keys) {
        barrier_wait(shared_address(&control->v_full[c->v.slot]), c->v.phase);
        values_clear<T>(w, n, base + T::v_at + c->v.slot * T::v_bytes);
    }
    int add = 0;
    keys_wait<T>(control, c, n > w.k_start);
    for (; n > w.k_start; n--) {
        const unsigned k_now = base + T::k_at + c->k.slot * T::k_bytes;
        const unsigned v_now = base + T::v_at + c->v.slot * T::v_bytes;
        if constexpr (T::order == ORDER_VALUES_FIRST) {
            barrier_wait(shared_address(&control->v_full[c->v.slot]), c->v.phase);
            turn_wait<T>(group);
            products_fence();
            product_values<T>(o, pr, v_now, add);
            products_commit();
            product_scores<T>(s, q, k_now);
            products_commit();
            turn_pass<T>(group);
            products_wait<1>();
            products_arrived(o);
            release(shared_address(&control->v_empty[c->v.slot]));
            products_wait<0>();
            products_arrived(s);
            release(shared_address(&control->k_empty[c->k.slot]));
            c->k.advance();
            scores_finish<T>(p, w, first, n - 1, s);
            const bool grown = softmax_reference(x, s, scale, factor);
            if (grown) {
#pragma unroll
                for (int i = 0; i < T::dim_v / 2; i++)
                    o[i] *= factor[i / 2 % 2];
            }
            softmax_exp(x, s, scale);
            keys_wait<T>(control, c, n - 1 > w.k_start);
        } else if constexpr (T::order == ORDER_SERIAL) {
            barrier_wait(shared_address(&control->v_full[c->v.slot]), c->v.phase);
            products_fence();
            product_values<T>(o, pr, v_now, add);
            products_commit();
            products_wait<0>();
            products_arrived(o);
            release(shared_address(&control->v_empty[c->v.slot]));
            products_fence();
            product_scores<T>(s, q, k_now);
            products_commit();
            products_wait<0>();
            products_arrived(s);
            release(shared_address(&control->k_empty[c->k.slot]));
            c->k.advance();
            scores_finish<T>(p, w, first, n - 1, s);
            const bool grown = softmax_reference(x, s, scale, factor);
            if (grown) {
#pragma unroll
                for (int i = 0; i < T::dim_v / 2; i++)
                    o[i] *= factor[i / 2 % 2];
            }
            softmax_exp(x, s, scale);
            keys_wait<T>(control, c, n - 1 > w.k_start);
        } else {
            turn_wait<T>(group);
            products_fence();
            product_scores<T>(s, q, k_now);
            products_commit();
            barrier_wait(shared_address(&control->v_full[c->v.slot]), c->v.phase);
            product_values<T>(o, pr, v_now, add);
            products_commit();
            turn_pass<T>(group);
            products_wait<1>();
            products_arrived(s);
            release(shared_address(&control->k_empty[c->k.slot]));
            c->k.advance();
            scores_finish<T>(p, w, first, n - 1, s);
            const bool grown = softmax_reference(x, s, scale, factor);
            softmax_exp(x, s, scale);
            keys_wait<T>(control, c, n - 1 > w.k_start);
            products_wait<0>();
            products_arrived(o);
            release(shared_address(&control->v_empty[c->v.slot]));
            if (grown) {
#pragma unroll
                for (int i = 0; i < T::dim_v / 2; i++)
                    o[i] *= factor[i / 2 % 2];
            }
        }
        softmax_pack<T::half>(pr, s);
        c->v.advance();
        add = 1;
    }
    if constexpr (!T::o_over_q)
        release(shared_address(&control->q_empty));
    barrier_wait(shared_address(&control->v_full[c->v.slot]), c->v.phase);
    products_fence();
    product_values<T>(o, pr, base + T::v_at + c->v.slot * T::v_bytes, add);
    products_commit();
    products_wait<0>();
    products_arrived(o);
    release(shared_address(&control->v_empty[c->v.slot]));
    c->v.advance();
}

template <typename T>
DEVICE void consume(const struct fa3_forward_params &p, struct control *control, unsigned base,
                    int group)
{
    consumer<T> c;
    const unsigned out = base + T::o_at + group * T::panels_v * GROUP_ROWS * ROW_BYTES;
    if (group == T::groups - 1)
        turn_pass<T>(group);
    for (;;) {
        const struct work w = work_take(control, &c.works);
        if (w.queries == 0)
            break;
        float o[T::dim_v / 2], factor[2], lse[2];
        struct softmax x;
        softmax_begin(&x);
        if (w.k_end > w.k_start)
            attend<T>(p, control, base, group, w, &c, o, &x);
        const float *sinks = (const float *)p.sinks;
        softmax_finish(&x, p.score_log2, sinks ? sinks + w.head : 0, factor, lse);
        epilogue<T>(p, w, group, o, factor, lse, out);
        if constexpr (T::o_over_q) {
            if (w.k_end > w.k_start) {
                if (threadIdx.x % GROUP_THREADS == 0)
                    store_wait_read();
                named_sync(BARRIER_GROUP + group, GROUP_THREADS);
                release(shared_address(&control->q_empty));
            }
        }
    }
    if (group == 0)
        turn_wait<T>(group);
    if (threadIdx.x % GROUP_THREADS == 0)
        store_wait_read();
}

/* ---- Kernel ------------------------------------------------------------------------------------ */

template <typename T> DEVICE void forward(const struct fa3_forward_params &p)
{
    extern __shared__ unsigned char shared[];
    const unsigned raw = shared_address(shared);
    const unsigned base = (raw + 1023) / 1024 * 1024;
    struct control *control = (struct control *)(shared + (base - raw) + T::control_at);
    static_assert(sizeof(struct control) <= T::control_bytes, "room for barriers and work");
    const int group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x / 32;

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
            produce_keys<T>(p, control, base);
        else if (warp == 1)
            produce_values<T>(p, control, base);
    } else {
        registers_take<T::consumer_registers>();
        consume<T>(p, control, base, group - 1);
    }
}

/* A kernel and its shape, under one name. */
#define FA3_FORWARD(name, ...)                                                                      \
    typedef tile_shape<__VA_ARGS__> name##_tile;                                                    \
    extern "C" __constant__ const struct fa3_shape name##_shape = {                                 \
        name##_tile::queries, name##_tile::keys,         name##_tile::dim,                          \
        name##_tile::dim_v,   name##_tile::threads,      name##_tile::shared_bytes,                 \
        name##_tile::half,    0};                                                                   \
    extern "C" __global__ void __launch_bounds__(name##_tile::threads, 1)                           \
        name(const __grid_constant__ struct fa3_forward_params p)                                   \
    {                                                                                               \
        forward<name##_tile>(p);                                                                    \
    }

#endif
