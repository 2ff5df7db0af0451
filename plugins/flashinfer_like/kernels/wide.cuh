/* SPDX-License-Identifier: Apache-2.0
 *
 * wide.cuh: tiles of 64 rows for wide heads, whose sums need the registers of two warpgroups,
 * against 32 keys at a time, for any number of rows. Copies, masks and merges are as in
 * prefill.cuh; the products are divided among three warpgroups:
 *
 *   copy     Q | K V | K V | K V | ...              Q: the next item's, after this one's scores
 *   scores   S . [S P][S P][S P] ... P              [S P]: the scores of a unit overlap with the
 *                                                   exponentials of the previous unit
 *   values           PV   PV   PV  ... PV out       by two warpgroups, half of the columns each
 *
 * Probabilities pass through two buffers in shared memory. The next item's first scores overlap
 * with the sums and stores of this item's values.
 */
#ifndef FI_WIDE_CUH
#define FI_WIDE_CUH

#define BITS_BY_CALL __forceinline__

#include "plugins/flashinfer_like/kernels/prefill_scores.cuh"
#include "plugins/flashinfer_like/kernels/wide_epilogue.cuh"
#include "plugins/flashinfer_like/kernels/wide_feed.cuh"

#if HAS_HOPPER

/* ---- Scores -------------------------------------------------------------------------------- */

/* The scoring warpgroup's positions in the stages. */
template <typename S> struct wide_place {
    ring<S::k_stages> k;
    ring<S::stages> v;
    ring<2> p;
};

/* The second half of the queries, in registers. It arrives as a unit of keys. Each unit reads the
 * first half from shared memory. */
template <typename S> struct held_queries {
    u32 x[4 * S::held][4];
};

template <typename S>
DEVICE void hold_queries(struct control *control, ring<S::k_stages> &at, u32 base,
                         held_queries<S> &held)
{
    const int thread = consumer_thread(), lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    const u32 from = base + S::k_at + at.slot * S::k_bytes;
    barrier_wait(shared_address(&control->k_full[at.slot]), at.phase);
#pragma unroll
    for (int i = 0; i < 4 * S::held; i++)
        load_matrices(held.x[i],
                      from + i / 4 * GROUP_ROWS * ROW_BYTES + swizzled(row, i % 4 * 2 + lane / 16));
    release(shared_address(&control->k_empty[at.slot]));
    at.advance();
}

template <bool is_f16>
DEVICE void wgmma_rs_32(float (&s)[16], const u32 (&a)[4], unsigned long long b)
{
#define WGMMA_32(type)                                                                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                       \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "       \
                 "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"                                          \
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),         \
                   "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),       \
                   "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15])                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    if constexpr (is_f16)
        WGMMA_32("f16");
    else
        WGMMA_32("bf16");
#undef WGMMA_32
}

/* s[64 x 32] = (add ? s : 0) + a[64 x 16] * b[32 x 16]^T; wgmma_rs_32() is the same with a in
 * registers. */
template <bool is_f16>
DEVICE void wgmma_ss_32(float (&s)[16], unsigned long long a, unsigned long long b, int add)
{
#define WGMMA_32(type)                                                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                       \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "       \
                 "%16, %17, p, 1, 1, 0, 0;\n}"                                                     \
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),         \
                   "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),       \
                   "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15])                              \
                 : "l"(a), "l"(b), "r"(add))
    if constexpr (is_f16)
        WGMMA_32("f16");
    else
        WGMMA_32("bf16");
#undef WGMMA_32
}

/* Issues the scores of the unit in `slot`. */
template <typename S>
DEVICE void scores_begin(const rows<S> &r, int slot, const held_queries<S> &held, u32 base,
                         float (&s)[S::keys / 2])
{
    constexpr int shared = S::dim / 16 - 4 * S::held; /* products with queries in shared memory */
    const unsigned long long a = matrix_descriptor(r.q, 16, 8 * ROW_BYTES);
    const unsigned long long b =
        matrix_descriptor(base + S::k_at + slot * S::k_bytes, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::dim / 16; i++) {
        const unsigned long long keys = descriptor_advance(b, i / 4 * S::panel_bytes + i % 4 * 32);
        if (i < shared)
            wgmma_ss_32<S::is_f16>(
                s, descriptor_advance(a, i / 4 * GROUP_ROWS * ROW_BYTES + i % 4 * 32), keys, i > 0);
        else
            wgmma_rs_32<S::is_f16>(s, held.x[i - shared], keys);
    }
    wgmma_commit();
}

template <typename S>
DEVICE void scores_end(struct control *control, ring<S::k_stages> &k, float (&s)[S::keys / 2])
{
    wgmma_wait<0>();
    wgmma_arrived(s);
    release(shared_address(&control->k_empty[k.slot]));
    k.advance();
}

/* Copies row by row are ordinary stores, visible to wgmma only after a fence. */
template <int stages>
DEVICE void wide_wait(const struct work &w, const unsigned long long *full, const ring<stages> &at)
{
    barrier_wait(shared_address(&full[at.slot]), at.phase);
    if (__builtin_expect(w.has_rows, 0))
        fence_async_shared();
}

/* Passes on a unit's probabilities and the factors of its rows' sums; with the item's `last` unit,
 * also the totals of its rows. A warp without rows stores nothing. */
template <typename S>
DEVICE void give_unit(struct wide_control *control, ring<2> &at, u32 base, rows<S> &r,
                      const float (&s)[S::keys / 2], bool is_there, bool last)
{
    const int thread = consumer_thread(), lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    struct wide_rows *to = &control->rows[at.slot];
    float factor[2] = {1.0f, 1.0f}, sum[2] = {0.0f, 0.0f};
    u32 p[S::keys / 4];
    if (is_there) {
        softmax_tile<S::is_f16>(r.x, s, r.scale, sum, p);
        if (__builtin_expect(softmax_grown(sum), 0))
            softmax_again<S::is_f16>(&r.x, s, r.scale, sum, factor, p);
        r.x.sum[0] += sum[0];
        r.x.sum[1] += sum[1];
    }
    barrier_wait(shared_address(&control->p_empty[at.slot]), at.phase ^ 1);
    if (is_there) {
#pragma unroll
        for (int i = 0; i < S::keys / 8; i += 2)
            store_matrices(base + S::p_at + swizzled(row, at.slot * 4 + i + lane / 16), p[2 * i],
                           p[2 * i + 1], p[2 * i + 2], p[2 * i + 3]);
        for (int h = 0; h < 2; h++) {
            const float all = last ? quad_sum(r.x.sum[h]) : 0.0f;
            if (lane % 4 != 0)
                continue;
            to->factor[first_row() + 8 * h] = factor[h];
            to->top[first_row() + 8 * h] = -r.x.shift[h];
            to->sum[first_row() + 8 * h] = all;
        }
        fence_async_shared();
    }
    release(shared_address(&control->p_full[at.slot]));
    at.advance();
}

/* Turns a unit's scores into logits. If not all rows see the whole unit, its values may have to be
 * cleared. So this first waits until the values of two units before have been added; otherwise the
 * previous round's phase could end the wait for these values. */
template <typename S>
DEVICE void finish_unit(const fi_call &c, const struct work &w, struct wide_control *control,
                        const wide_place<S> &at, u32 base, const rows<S> &r, int from,
                        float (&s)[S::keys / 2])
{
    static_assert(S::stages == 2, "a buffer of probabilities is free when the stage is");
    if (from < r.all_lo || from + S::keys > r.all_hi)
        barrier_wait(shared_address(&control->p_empty[at.p.slot]), at.p.phase ^ 1);
    scores_finish<S>(c, w, control, r, at.v, from, base, s);
}

/* Processes an item's units, at least one: the next unit's scores overlap with the exponentials of
 * the current one. */
template <typename S>
DEVICE void score_item(const fi_call &c, const struct work &w, struct wide_control *control,
                       u32 base, rows<S> &r, wide_place<S> &at)
{
    const bool is_there =
        uniform(consumer_thread() / 32) * 16 < item_rows(c, w.q, w.at.tile, S::rows);
    const u32 q_empty = shared_address(&control->q_empty[0]);
    int from = uniform(plan_unit_key(&w.at.tile, S::keys, w.at.unit));
    held_queries<S> held;
    float s[S::keys / 2];
    hold_queries<S>(control, at.k, base, held);
    wide_wait(w, control->k_full, at.k);
    scores_begin<S>(r, at.k.slot, held, base, s);
    scores_end<S>(control, at.k, s);
#pragma unroll 1
    for (int left = uniform(w.units) - 1; left > 0; left--) {
        float next[S::keys / 2];
        finish_unit<S>(c, w, control, at, base, r, from, s);
        wide_wait(w, control->k_full, at.k);
        scores_begin<S>(r, at.k.slot, held, base, next);
        give_unit<S>(control, at.p, base, r, s, is_there, false);
        scores_end<S>(control, at.k, next);
        at.v.advance();
        from += S::keys;
        from += from == w.gap_key ? w.at.tile.skip : 0;
#pragma unroll
        for (int i = 0; i < S::keys / 2; i++)
            s[i] = next[i];
    }
    release(q_empty);
    finish_unit<S>(c, w, control, at, base, r, from, s);
    give_unit<S>(control, at.p, base, r, s, is_there, true);
    at.v.advance();
}

template <typename S> DEVICE void score(const fi_call &c, struct wide_control *control, u32 base)
{
    wide_place<S> at;
    ring<1> item;
#pragma unroll 1
    for (;;) {
        barrier_wait(shared_address(&control->q_full[0]), item.phase);
        const struct work &w = control->work[item.phase];
        if (w.units == 0)
            break;
        rows<S> r;
        fence_async_shared(); /* the queries */
        rows_begin<S>(c, w, base, r);
        score_item<S>(c, w, control, base, r, at);
        item.advance();
    }
}

/* ---- Values -------------------------------------------------------------------------------- */

template <typename S> DEVICE void wide_values(wide_sums<S> &x, u32 p, u32 v, int add)
{
    const unsigned long long a = matrix_descriptor(p, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < S::columns / 128; n++) {
        const unsigned long long b =
            matrix_descriptor(v + n * 2 * S::panel_bytes, S::panel_bytes, 8 * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < S::keys / 16; i++)
            wgmma_ss<128, S::is_f16, 1>(*(float(*)[64])(x.o + n * 64),
                                        descriptor_advance(a, i * 32),
                                        descriptor_advance(b, i * 16 * ROW_BYTES), i > 0 ? 1 : add);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(x.o);
}

/* Rescales the sums of rows whose reference has changed. */
template <typename S> DEVICE void wide_rescale(const struct wide_rows &of, wide_sums<S> &x)
{
    const float factor[2] = {of.factor[adder_row()], of.factor[adder_row() + 8]};
    if (__all_sync(~0u, factor[0] == 1.0f && factor[1] == 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < S::columns / 2; i++)
        x.o[i] *= factor[i / 2 % 2];
}

template <typename S>
DEVICE void add_values(const fi_call &c, struct wide_control *control, u32 base)
{
    ring<S::stages> v;
    ring<2> p;
    ring<1> item;
    const u32 values = base + S::v_at + uniform(adder_column<S>()) / PANEL * S::panel_bytes;
#pragma unroll 1
    for (;;) {
        barrier_wait(shared_address(&control->q_full[0]), item.phase);
        const struct work &w = control->work[item.phase];
        if (w.units == 0)
            break;
        release(shared_address(&control->q_empty[0])); /* the previous item has ended */
        wide_sums<S> x;
        int add = 0;
#pragma unroll 1
        for (int left = uniform(w.units); left > 0; left--) {
            const struct wide_rows &of = control->rows[p.slot];
            wide_wait(w, control->v_full, v);
            barrier_wait(shared_address(&control->p_full[p.slot]), p.phase);
            if (add)
                wide_rescale<S>(of, x);
            wide_values<S>(x, base + S::p_at + p.slot * 64, values + v.slot * S::v_bytes, add);
            for (int h = 0; h < 2; h++) {
                x.t.top[h] = of.top[adder_row() + 8 * h];
                x.t.sum[h] = of.sum[adder_row() + 8 * h];
            }
            release(shared_address(&control->v_empty[v.slot]));
            release(shared_address(&control->p_empty[p.slot]));
            add = 1;
            v.advance();
            p.advance();
        }
        wide_end<S>(c, w, control, x);
        item.advance();
    }
}

/* ---- The kernel ---------------------------------------------------------------------------- */

template <typename S> DEVICE void wide(const fi_call &c, char *shared)
{
    struct wide_control *control = (struct wide_control *)(shared + S::control_at);
    static_assert(sizeof(struct wide_control) <= S::control_bytes, "room for barriers and work");
    const fi_start start = c.starts[(int)blockIdx.x / c.lanes];
    const cursor at = walk_begin(&c, block_in_line(c), &start, S::keys);
    const int group = uniform((int)threadIdx.x / GROUP_THREADS);
    if (threadIdx.x == 0)
        wide_init<S>(control);
    __syncthreads();
    if (group == 0) {
        setmaxnreg_dec<S::producer_registers>();
        if (at.left > 0)
            wide_produce<S>(c, at, shared, control);
        pdl_wait();
        pdl_launch_dependents();
    } else if (group == 1) {
        setmaxnreg_inc<S::scorer_registers>();
        pdl_wait();
        pdl_launch_dependents();
        if (at.left > 0)
            score<S>(c, control, shared_address(shared));
    } else {
        const grid_team team = grid_part(2 * GROUP_THREADS, S::adders);
        setmaxnreg_inc<S::adder_registers>();
        pdl_wait();
        pdl_launch_dependents();
        clear_padding(c, S::dim_v, team);
        if (c.saves)
            save_new_rows(c, S::dim, S::dim_v, team);
        if (at.left > 0)
            add_values<S>(c, control, shared_address(shared));
    }
}

#define LINE(name, dim, v_dim, keys, k_stages, stages, shared)                                     \
    static constexpr int fi_line_##name[] = {dim, v_dim, keys, k_stages, stages};
FI_WIDE_SHAPES(LINE)
#undef LINE

#define FI_PREFILL_WIDE(line, type)                                                                \
    extern "C" __global__ void __launch_bounds__(4 * GROUP_THREADS, 1)                             \
        fi_prefill_##line##_##type(const __grid_constant__ fi_call c)                              \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        using shape = wide_shape<fi_line_##line[0], fi_line_##line[1], fi_line_##line[2],          \
                                 fi_line_##line[3], fi_line_##line[4], FI_IS_F16_##type>;          \
        wide<shape>(c, shared);                                                                    \
    }

#else
#define FI_PREFILL_WIDE(...)
#endif

#endif /* FI_WIDE_CUH */
