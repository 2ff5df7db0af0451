/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.cuh: attention, forward: O = softmax(scale * Q K^T) V and the logarithm of the sums.
 *
 *   tensor cores   0:S | 1:S | 2:S | 0:S PV | 1:S PV | 2:S PV | 0:S PV | ...
 *   consumer 0           softmax ........     softmax ......... out
 *   consumer 1                 softmax ..          softmax .......... out
 *   consumer 2                       softmax ..         softmax ........... out
 *
 * Two to four consumers, 64 query rows each. A consumer does one thing after the other: the next
 * tile's scores and this tile's products with values, then the softmax of what came. They take
 * turns at the tensor cores, and hand the turn over when all is issued, so the cores do not wait
 * for any one of them. What one consumer cannot hide (latencies, the begin and the end of a tile)
 * the others do. Without turns they would come into the same phase now and then: 1 to 2 % slower.
 */
#ifndef FA3_LIKE_FORWARD_CUH
#define FA3_LIKE_FORWARD_CUH

#include "plugins/fa3_like/kernels/epilogue.cuh"
#include "plugins/fa3_like/kernels/schedule.cuh"

/* ---- Producer -------------------------------------------------------------------------------- */

/* Warp 0 finds work; its lane 0 tells all others. */
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
DEVICE void produce_work(const struct fa3_forward_params &p, struct control *control, unsigned base,
                         struct work w)
{
    work_ring works;
    ring<T::stages> stage;
    ring<T::slots> slot;
    const struct tile_step step = tile_step_of<T>(p);
    work_publish(control, &works, w);
    while (w.queries > 0) {
        int next = 0;
        if (threadIdx.x % 32 == 0)
            next = atomicAdd((unsigned *)p.counter, 1) + gridDim.x;
        if (w.k_end > w.k_start) {
            barrier_wait(shared_address(control->q_empty + slot.slot), slot.phase ^ 1);
            load_queries<T>(p, w, base + T::q_at + slot.slot * T::q_bytes,
                            shared_address(control->q_full + slot.slot));
            slot.advance();
        }
        if (w.is_new)
            load_new<T, T::panels, 0>(p, p.k_new, w, base + T::k_at, control, &stage);
        else
            load_tiles<T, T::panels, 0>(p, p.k, step, w, base + T::k_at, control, &stage);
        w = work_of<T>(p, __shfl_sync(0xffffffff, next, 0));
        work_publish(control, &works, w);
    }
    pdl_wait(); /* who waits for this kernel waits for the one before, too */
    pdl_launch_dependents();
    if (threadIdx.x % 32 == 0)
        schedule_finish(p);
}

/* The other warps: their share of the keys or of the values. */
template <typename T, int dim, int lag>
DEVICE void produce(const struct fa3_forward_params &p, const struct fa3_tensor_map &map,
                    struct control *control, unsigned to)
{
    constexpr int panels = (dim + PANEL - 1) / PANEL;
    work_ring works;
    ring<T::stages> stage;
    const struct tile_step step = tile_step_of<T>(p);
    for (;;) {
        const struct work w = work_take(control, works);
        work_done(control, &works);
        if (w.queries == 0)
            return;
        if (!w.is_new)
            load_tiles<T, panels, lag>(p, map, step, w, to, control, &stage);
        else if (threadIdx.x < 64)
            load_new<T, panels, lag>(p, p.v_new, w, to, control, &stage);
        else
            save_new<T, dim, lag>(p, w, lag ? p.v_save : p.k_save, lag ? p.v_pages : p.k_pages, to,
                                  control, &stage);
    }
}

/* ---- Consumers ------------------------------------------------------------------------------- */

template <typename T> struct consumer {
    work_ring works;
    ring<T::stages> stage;
    ring<T::slots> slot;
    int stored = -1; /* the slot from which an output is on its way */
};

template <typename T> DEVICE void stage_wait(struct control *control, const ring<T::stages> &stage)
{
    barrier_wait(shared_address(control->full + stage.slot), stage.phase);
}

template <typename T> DEVICE bool stage_test(struct control *control, const ring<T::stages> &stage)
{
    return barrier_test(shared_address(control->full + stage.slot), stage.phase);
}

template <typename T> DEVICE void stage_done(struct control *control, ring<T::stages> *stage)
{
    release(shared_address(control->empty + stage->slot));
    stage->advance();
}

/* Turns at the tensor cores. Every warpgroup takes one turn per stage of a piece of work, even with
 * nothing to multiply. */
DEVICE void turn_take(int group)
{
    named_sync(BARRIER_TURN + group, 2 * GROUP_THREADS);
}

template <typename T> DEVICE void turn_give(int group)
{
    const int next = T::groups == 2 ? group ^ 1 : group + 1 == T::groups ? 0 : group + 1;
    named_arrive(BARRIER_TURN + next, 2 * GROUP_THREADS);
}

/* Clears values [first, end) of a stage, which no query of the tile sees: the probabilities there
 * are 0, but 0 times what lies there need not be. All consumers take part. */
template <typename T>
DEVICE void values_clear(struct control *control, const ring<T::stages> &stage, unsigned base,
                         int first, int end)
{
    if (first >= end)
        return;
    const unsigned v = base + T::v_at + stage.slot * T::v_bytes;
    const int pieces = (end - first) * 8 * T::panels_v;
    stage_wait<T>(control, stage);
    for (int i = thread_here() - GROUP_THREADS; i < pieces; i += T::groups * GROUP_THREADS) {
        const int panel = i / 8 % T::panels_v, row = first + i / 8 / T::panels_v;
        shared_store(v + (panel * T::keys + row) * ROW_BYTES + i % 8 * 16, make_uint4(0, 0, 0, 0));
    }
    fence_async_shared();
    named_sync(BARRIER_CLEAR, T::groups * GROUP_THREADS);
}

/* A warpgroup's share of a tile of queries. */
template <typename T> struct rows {
    unsigned q;               /* its queries in shared memory, its output after that */
    int clear_from, clear_to; /* tiles of keys that all of its rows see whole */
    int chunk, next_chunk;    /* where its first row's chunk begins, and the one after it */
    int add;                  /* 0: o holds nothing yet */
    float scale, cap;         /* of scores: score_log2 and score_cap, with the keys' factor */
    struct softmax x;
    float o[T::dim_v / 2];
    float factor[2], lse[2]; /* at the end: what o is multiplied by */
    bool is_lost[2];         /* no key of the row has a weight */
};

/* The factor of a tile's keys, or of its values. */
DEVICE float kv_scale(const struct fa3_forward_params &p, const struct work &w, int of_values)
{
    const int heads = p.heads_q / p.heads_per_kv;
    return ((const float *)p.kv_scales)[of_values * heads + w.head / p.heads_per_kv];
}

/* The position of a warpgroup's first row. */
template <typename T> DEVICE int first_position(const struct work &w, int group)
{
    return w.position + w.tile * T::queries + group * GROUP_ROWS;
}

/* first_key() of one of the rows, which are in two chunks at most. */
template <typename T>
DEVICE int row_first_key(const struct fa3_forward_params &p, const rows<T> &r, int position)
{
    const int first = position - p.window_left;
    if constexpr (!T::chunks)
        return first;
    return max(first, position < r.next_chunk ? r.chunk : r.next_chunk);
}

template <typename T>
DEVICE void rows_begin(const struct fa3_forward_params &p, const struct work &w, int group,
                       rows<T> *r)
{
    const int first = first_position<T>(w, group), last = first + GROUP_ROWS - 1;
    const int chunk = T::chunks ? p.chunk : 0;
    r->chunk = uniform(chunk_begin(chunk, first));
    r->next_chunk = uniform(r->chunk + (chunk ? chunk : 2 * FA3_UNBOUNDED));
    r->clear_from = uniform((max(0, row_first_key<T>(p, *r, last)) + T::keys - 1) / T::keys);
    r->clear_to = uniform(max(0, min(w.keys, first + p.window_right + 1)) / T::keys);
    r->add = 0;
    r->scale = p.score_log2;
    r->cap = p.score_cap;
    if (__builtin_expect(p.kv_scales != 0, 0))
        (p.score_cap != 0.0f ? r->cap : r->scale) *= kv_scale(p, w, 0);
    softmax_begin(&r->x);
}

template <typename T>
DEVICE void rows_finish(const struct fa3_forward_params &p, const struct work &w, rows<T> *r)
{
    const float *sinks = (const float *)p.sinks;
    softmax_finish(&r->x, sinks ? sinks + w.head : 0, r->factor, r->lse, r->is_lost);
    if (__builtin_expect(p.kv_scales != 0, 0)) {
        const float scale = kv_scale(p, w, 1);
        r->factor[0] *= scale;
        r->factor[1] *= scale;
    }
}

/* Cap (0: none) and mask of the scores of tile n, or of its keys from `from` on. */
template <typename T, int count>
DEVICE void scores_finish(const struct fa3_forward_params &p, const struct work &w,
                          const rows<T> &r, float cap, int group, int n, float (&s)[count],
                          int from = 0)
{
    if (cap != 0.0f)
        scores_cap(s, cap);
    if (n >= r.clear_from && n < r.clear_to)
        return;
    const int begin = n * T::keys + from;
    const int thread = thread_here();
    const int row = first_position<T>(w, group) + thread / 32 % 4 * 16 + thread % 32 / 4;
    const int high = row - begin + p.window_right + 1, end = w.keys - begin;
    scores_mask(s, row_first_key<T>(p, r, row) - begin, min(high, end),
                row_first_key<T>(p, r, row + 8) - begin, min(high + 8, end));
}

/* Lets `count` stages go as they come, and the turns that belong to them. */
template <typename T>
DEVICE void skip_stages(struct control *control, int group, consumer<T> *c, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        stage_wait<T>(control, c->stage);
        stage_done<T>(control, &c->stage);
        turn_take(group);
        turn_give<T>(group);
    }
}

/* The last tile of keys that a warpgroup's rows see, of those of the tile of queries; there is at
 * least one to do. */
template <typename T>
DEVICE int last_seen(const struct fa3_forward_params &p, const struct work &w, int group)
{
    const int last = first_position<T>(w, group) + GROUP_ROWS - 1;
    return uniform(
        min(w.k_end - 1, max(w.k_start, min(w.keys - 1, last + p.window_right) / T::keys)));
}

/* Skips tiles of keys that none of this warpgroup's rows sees, at the end of a causal tile of
 * queries. Answers the first tile to do. */
template <typename T>
DEVICE int skip_hidden(const struct fa3_forward_params &p, struct control *control,
                       const struct work &w, int group, consumer<T> *c)
{
    const int seen = last_seen<T>(p, w, group);
    skip_stages<T>(control, group, c, uniform(w.k_end - 1) - seen);
    return seen;
}

/* The output of the work before is out of its slot: others' queries may come there. */
template <typename T> DEVICE void slot_done(struct control *control, consumer<T> *c)
{
    if (c->stored >= 0 && thread_here() % GROUP_THREADS == 0) {
        store_wait_read();
        barrier_arrive(shared_address(control->q_empty + c->stored));
    }
    c->stored = -1;
}

/* The only slot's queries are not needed any more; their output goes past shared memory. */
template <typename T> DEVICE void only_slot_done(struct control *control)
{
    if (T::direct && thread_here() % GROUP_THREADS == 0)
        barrier_arrive(shared_address(control->q_empty));
}

/* The probabilities of the first tile. */
template <typename T>
DEVICE void first_tile(const struct fa3_forward_params &p, struct control *control, unsigned base,
                       int group, const struct work &w, int n, consumer<T> *c, rows<T> *r,
                       unsigned (&probabilities)[T::keys / 4])
{
    float s[T::keys / 2], factor[2];
    turn_take(group);
    wgmma_fence();
    gemm_qk<T>(s, r->q, base + T::k_at + c->stage.slot * T::k_bytes);
    wgmma_commit();
    turn_give<T>(group);
    rows_begin<T>(p, w, group, r);
    slot_done<T>(control, c);
    wgmma_wait<0>();
    wgmma_arrived(s);
    stage_done<T>(control, &c->stage);
    scores_finish<T>(p, w, *r, r->cap, group, n, s);
    softmax_again<T::is_f16>(&r->x, s, r->scale, r->x.sum, factor, probabilities);
}

/* From the probabilities of tile n to those of tile n - 1. `ready`: the stage is known to be full,
 * and then the next one. */
template <typename T>
DEVICE void next_tile(const struct fa3_forward_params &p, struct control *control, unsigned base,
                      int group, const struct work &w, int n, int k_start, consumer<T> *c,
                      rows<T> *r, unsigned (&probabilities)[T::keys / 4], bool *ready)
{
    float s[T::keys / 2], factor[2], sum[2] = {0.0f, 0.0f};
    const unsigned k = base + T::k_at + c->stage.slot * T::k_bytes;
    const unsigned v = base + T::v_at + c->stage.slot * T::v_bytes;
    if (!*ready)
        stage_wait<T>(control, c->stage);
    turn_take(group);
    wgmma_fence();
    gemm_qk<T>(s, r->q, k);
    gemm_pv<T>(r->o, probabilities, v, r->add);
    wgmma_commit();
    turn_give<T>(group);
    wgmma_wait<0>();
    wgmma_arrived(s);
    wgmma_arrived(r->o);
    r->add = 1;
    stage_done<T>(control, &c->stage);
    *ready = stage_test<T>(control, c->stage);
    scores_finish<T>(p, w, *r, r->cap, group, n - 1, s);
    softmax_tile<T::is_f16>(r->x, s, r->scale, sum, probabilities);
    if (__builtin_expect(softmax_grown(sum), 0)) {
        softmax_again<T::is_f16>(&r->x, s, r->scale, sum, factor, probabilities);
#pragma unroll
        for (int i = 0; i < T::dim_v / 2; i++)
            r->o[i] *= factor[i / 2 % 2];
    }
    r->x.sum[0] += sum[0];
    r->x.sum[1] += sum[1];
}

/* The products with the values of the last tile. Beside them all is done that does not need them.
 */
template <typename T>
DEVICE void last_values(const struct fa3_forward_params &p, struct control *control, unsigned base,
                        int group, const struct work &w, consumer<T> *c, rows<T> *r,
                        const unsigned (&probabilities)[T::keys / 4], bool ready)
{
    if (!ready)
        stage_wait<T>(control, c->stage);
    turn_take(group);
    wgmma_fence();
    gemm_pv<T>(r->o, probabilities, base + T::v_at + c->stage.slot * T::v_bytes, r->add);
    wgmma_commit();
    turn_give<T>(group);
    rows_finish<T>(p, w, r);
    group_sync(group); /* no warp reads queries any more: the output may go there */
    only_slot_done<T>(control);
    wgmma_wait<0>();
    wgmma_arrived(r->o);
    stage_done<T>(control, &c->stage);
}

/* Clears what lies after the sequence's last key. */
template <typename T>
DEVICE void clear_after(struct control *control, const consumer<T> &c, unsigned base,
                        const struct work &w)
{
    ring<T::stages> second = c.stage;
    second.advance();
    values_clear<T>(control, second, base, w.keys - (w.k_end - 1) * T::keys, T::keys);
}

/* Clears what lies before all that the tile's first query sees. */
template <typename T>
DEVICE void clear_before(const struct fa3_forward_params &p, struct control *control,
                         const consumer<T> &c, unsigned base, const struct work &w)
{
    values_clear<T>(control, c.stage, base, 0, w.first_key - w.k_start * T::keys);
}

/* A tile of queries against its keys, of which there is at least one tile. */
template <typename T>
DEVICE void attend(const struct fa3_forward_params &p, struct control *control, unsigned base,
                   int group, const struct work &w, consumer<T> *c, rows<T> *r)
{
    unsigned probabilities[T::keys / 4];
    const int k_start = uniform(w.k_start);
    clear_after<T>(control, *c, base, w);
    int n = skip_hidden<T>(p, control, w, group, c);

    barrier_wait(shared_address(control->q_full + c->slot.slot), c->slot.phase);
    stage_wait<T>(control, c->stage);
    first_tile<T>(p, control, base, group, w, n, c, r, probabilities);
    bool ready = stage_test<T>(control, c->stage);
#pragma unroll 1
    for (; n > k_start; n--)
        next_tile<T>(p, control, base, group, w, n, k_start, c, r, probabilities, &ready);
    clear_before<T>(p, control, *c, base, w);
    last_values<T>(p, control, base, group, w, c, r, probabilities, ready);
}

/* A warpgroup after the last query of the sequence. */
template <typename T>
DEVICE void attend_nothing(const struct fa3_forward_params &p, struct control *control,
                           unsigned base, int group, const struct work &w, consumer<T> *c)
{
    clear_after<T>(control, *c, base, w);
    slot_done<T>(control, c);
    skip_stages<T>(control, group, c, uniform(w.k_end - w.k_start));
    clear_before<T>(p, control, *c, base, w);
    skip_stages<T>(control, group, c, 1);
    only_slot_done<T>(control);
}

template <typename T>
DEVICE void consume(const struct fa3_forward_params &p, struct control *control, unsigned base,
                    int group)
{
    consumer<T> c;
    if (group == T::groups - 1)
        turn_give<T>(group);
    for (;;) {
        const struct work &w = work_take(control, c.works);
        if (w.queries == 0)
            break;
        const bool any = w.k_end > w.k_start;
        const bool mine = w.tile * T::queries + group * GROUP_ROWS < w.queries;
        rows<T> r;
        r.q =
            base + T::q_at + c.slot.slot * T::q_bytes + group * T::panels * GROUP_ROWS * ROW_BYTES;
        if (!any) {
            softmax_begin(&r.x);
            rows_finish<T>(p, w, &r);
        } else if (mine) {
            attend<T>(p, control, base, group, w, &c, &r);
        } else {
            attend_nothing<T>(p, control, base, group, w, &c);
        }
        if (mine) {
            clear_lost(r.o, r.is_lost);
            epilogue<T>(p, w, uniform(thread_here() / GROUP_THREADS - 1), r.o, r.factor, r.lse,
                        r.q);
        }
        if (any) {
            c.stored = T::direct ? -1 : c.slot.slot;
            c.slot.advance();
        }
        if constexpr (T::slots == 1 && !T::direct)
            slot_done<T>(control, &c);
        work_done(control, &c.works);
    }
    if (threadIdx.x % GROUP_THREADS == 0)
        store_wait_read();
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

template <typename T> DEVICE void forward(const struct fa3_forward_params &p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared);
    struct control *control = (struct control *)(shared + T::control_at);
    static_assert(sizeof(struct control) <= T::control_bytes, "room for barriers and work");
    const int group = uniform(threadIdx.x / GROUP_THREADS), warp = uniform(threadIdx.x / 32);

    struct work w;
    if (warp == 0)
        w = work_of<T>(p, blockIdx.x); /* which was planned before the kernel before */
    if (threadIdx.x == 32) {
        control_init<T>(control);
        tensor_map_prefetch(&p.q);
        tensor_map_prefetch(p.has_new ? &p.k_new : &p.k);
        tensor_map_prefetch(p.has_new ? &p.v_new : &p.v);
        tensor_map_prefetch(&p.o);
    }
    __syncthreads();
    if (!p.is_early)
        pdl_wait();

    if (group == 0) {
        setmaxnreg_dec<T::producer_registers>();
        if (warp == 0)
            produce_work<T>(p, control, base, w);
        else if (warp == 2)
            produce<T, T::dim, 0>(p, p.k, control, base + T::k_at);
        else
            produce<T, T::dim_v, 1>(p, p.v, control, base + T::v_at);
    } else {
        setmaxnreg_inc<T::consumer_registers>();
        consume<T>(p, control, base, group - 1);
    }
}

/* What a kernel's caller has to know, beside it. */
#define FA3_SHAPE(name)                                                                            \
    extern "C" __constant__ const struct fa3_shape name##_shape = {name##_tile::queries,           \
                                                                   name##_tile::keys,              \
                                                                   name##_tile::dim,               \
                                                                   name##_tile::dim_v,             \
                                                                   name##_tile::threads,           \
                                                                   name##_tile::shared_bytes,      \
                                                                   name##_tile::is_f16,            \
                                                                   name##_tile::chunks};

/* A kernel and its shape, under one name. */
#define FA3_FORWARD(name, ...)                                                                     \
    typedef tile_shape<__VA_ARGS__> name##_tile;                                                   \
    FA3_SHAPE(name)                                                                                \
    extern "C" __global__ void __launch_bounds__(name##_tile::threads, 1)                          \
        name(const __grid_constant__ struct fa3_forward_params p)                                  \
    {                                                                                              \
        forward<name##_tile>(p);                                                                   \
    }

#endif
