/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill.cuh: tiles of 128 rows against 64 or 128 keys at a time, bound by products, which are
 * wgmma's. One warpgroup copies, two multiply, 64 rows each; of 64 rows one multiplies, against
 * 64 or 128 keys at a time, and what it waits for are keys (FI_PREFILL_HALF); over fp8 two copy
 * (FI_PREFILL_HALF_CODES):
 *
 *   producers   Q | K V | K V | K V | ...          units of keys into stages, as they come free
 *   rows 0      S . [S PV][S PV][S PV] ... PV out  [S PV]: the scores of a unit, then the values of
 *   rows 64         S . [S PV][S PV] ... PV out    the one before among its exponentials
 *
 * Nothing orders the two: while one waits for scores, the other has exponentials to do. A warp that
 * copies has 16 keys of each 64, which it looks up a unit before; it goes on to the next item while
 * this one is worked on, and tells those who multiply what the item is. New keys are read from k
 * and v, the others from the cache: a batch without a prefix reads no page, one with a prefix goes
 * from the one to the other within a tile, without partial results to be merged.
 */
#ifndef FI_PREFILL_CUH
#define FI_PREFILL_CUH

#include "plugins/flashinfer_like/kernels/prefill_epilogue.cuh"
#include "plugins/flashinfer_like/kernels/prefill_feed.cuh"
#include "plugins/flashinfer_like/kernels/prefill_scores.cuh"
#include "plugins/flashinfer_like/kernels/warp_products.cuh"

/* ---- Units --------------------------------------------------------------------------------- */

/* Copies row by row are ordinary stores, which products see only after a fence. */
template <typename S>
DEVICE void keys_wait(const struct work &w, struct control *control, const place<S> &at)
{
    barrier_wait(shared_address(&control->k_full[at.k.slot]), at.k.phase);
    if (__builtin_expect(w.has_rows, 0))
        fence_async_shared();
}

template <typename S>
DEVICE void values_wait(const struct work &w, struct control *control, const place<S> &at)
{
    barrier_wait(shared_address(&control->v_full[at.v.slot]), at.v.phase);
    if (__builtin_expect(w.has_rows, 0))
        fence_async_shared();
}

/* The products of the unit that comes next, from key `from` on, are issued. */
template <typename S>
DEVICE void scores_issue(const rows<S> &r, const place<S> &at, int from, u32 base,
                         float (&s)[S::keys / 2])
{
    u32 parts[4] = {0, 0, 0, 0};
    if constexpr (S::sloped) {
        const u32 of_far = is_far<S>(r, from) ? ~0u : 0;
        parts[0] = r.slopes.parts[0] & of_far;
        parts[1] = r.slopes.parts[1] & of_far;
    }
    wgmma_fence();
    gemm_qk<S>(s, r.q, base + S::k_at + at.k.slot * S::k_bytes);
    if constexpr (S::sloped)
        gemm_ramp<S>(s, parts, base);
    wgmma_commit();
}

/* They are there. */
template <typename S>
DEVICE void scores_take(struct control *control, place<S> &at, float (&s)[S::keys / 2])
{
    wgmma_wait<0>();
    wgmma_arrived(s);
    release(shared_address(&control->k_empty[at.k.slot]));
    at.k.advance();
}

#if HAS_HOPPER

/* A unit with a new reference. */
template <typename S>
DEVICE void unit_again(rows<S> &r, int from, const float (&s)[S::keys / 2], float (&sum)[2],
                       float (&factor)[2], u32 (&p)[S::keys / 4])
{
    if constexpr (S::sloped)
        slopes_again<S>(r, from, s, sum, factor, p);
    else
        softmax_again<S::is_f16>(&r.x, s, r.scale, sum, factor, p);
}

/* From the probabilities `p` of a unit to those of the next one, at `from`. The
 * values' products are issued among the exponentials, and the waits for what comes next stand
 * before the wait for them: fa3_like's step(), which tells why. Where scores come a unit ahead, and
 * there are `more`, the next ones, at `next`, are issued before that wait too, so that products never
 * stop. `is_whole`: all rows see the unit. */
template <typename S, bool issues, bool is_whole>
DEVICE void step(const fi_call &c, const struct work &w, struct control *control, u32 base,
                 rows<S> &r, place<S> &at, int from, int next, bool more, float (&s)[S::keys / 2],
                 u32 (&p)[S::keys / 4])
{
    constexpr int half = S::keys / 4 / 4 * 4;
    float factor[2], sum[2] = {0.0f, 0.0f};
    float early[half], late[S::keys / 2 - half];
    u32 packed[S::keys / 4];
    const u32 v = base + S::v_at + at.v.slot * S::v_bytes;
    const u32 v_empty = shared_address(&control->v_empty[at.v.slot]);

    if constexpr (!S::ahead)
        scores_issue<S>(r, at, from, base, s);
    scores_take<S>(control, at, s);
    at.v.advance();
    if constexpr (!is_whole)
        scores_finish<S>(c, w, control, r, at.v, from, base, s);

    struct softmax x = r.x;
    if constexpr (S::sloped)
        x = slopes_softmax<S>(r, from);
    wgmma_fence();
    gemm_pv<S>(r.o, p, v, r.add);
    wgmma_commit();
    softmax_exp<0>(x, s, r.scale, early);
    softmax_exp<half>(x, s, r.scale, late);
    softmax_join<S::is_f16, 0>(early, sum, packed);
    softmax_join<S::is_f16, half>(late, sum, packed);
    if (more)
        keys_wait<S>(w, control, at);
    values_wait<S>(w, control, at);
    const bool again = softmax_grown(sum);
    if (__builtin_expect(again, 0))
        unit_again<S>(r, from, s, sum, factor, packed);
    r.x.sum[0] += sum[0];
    r.x.sum[1] += sum[1];

    if (issues && more) {
        scores_issue<S>(r, at, next, base, s);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    wgmma_arrived(r.o);
    release(v_empty);
    if (again) {
#pragma unroll
        for (int i = 0; i < S::dim_v / 2; i++)
            r.o[i] *= factor[i / 2 % 2];
    }
    r.add = 1;
#pragma unroll
    for (int i = 0; i < S::keys / 4; i++)
        asm volatile("mov.b32 %0, %1;" : "=r"(p[i]) : "r"(packed[i]));
}

/* Do all rows see all keys of the unit at `from`, and are its logits products alone? */
template <typename S> DEVICE bool is_whole_unit(const fi_call &c, const rows<S> &r, int from)
{
    return S::has_whole && c.cap == 0 && from >= r.all_lo && from + S::keys <= r.all_hi;
}

/* Units after the first, the next one at `from`, where scores come a unit ahead. Units that all rows see
 * may have a loop of their own: a jump over the masks costs a wait for instructions. */
template <typename S, typename F>
DEVICE void attend_ahead(const fi_call &c, const struct work &w, struct control *control, u32 base,
                         rows<S> &r, place<S> &at, int from, int left, F key_after,
                         u32 (&p)[S::keys / 4])
{
    float s[S::keys / 2];
    scores_issue<S>(r, at, from, base, s);
    if constexpr (S::has_whole) {
#pragma unroll 1
        while (left > 0) {
#pragma unroll 1
            for (; left > 1 && is_whole_unit<S>(c, r, from); left--) {
                const int next = key_after(from);
                step<S, true, true>(c, w, control, base, r, at, from, next, true, s, p);
                from = next;
            }
            const int next = key_after(from);
            step<S, true, false>(c, w, control, base, r, at, from, next, left > 1, s, p);
            from = next;
            left--;
        }
    } else {
#pragma unroll 1
        for (; left > 1; left--) {
            const int next = key_after(from);
            step<S, true, false>(c, w, control, base, r, at, from, next, true, s, p);
            from = next;
        }
        step<S, false, false>(c, w, control, base, r, at, from, from, false, s, p);
    }
}

/* Units after the one at `from`, where a unit's scores are its own step's. */
template <typename S, typename F>
DEVICE void attend_in_turn(const fi_call &c, const struct work &w, struct control *control,
                           u32 base, rows<S> &r, place<S> &at, int from, int left, F key_after,
                           u32 (&p)[S::keys / 4])
{
    if constexpr (!S::has_whole) {
#pragma unroll 1
        for (; left > 0; left--) {
            float s[S::keys / 2];
            from = key_after(from);
            step<S, false, false>(c, w, control, base, r, at, from, from, left > 1, s, p);
        }
        return;
    }
    from = key_after(from);
#pragma unroll 1
    while (left > 0) {
        float s[S::keys / 2];
#pragma unroll 1
        for (; left > 0 && is_whole_unit<S>(c, r, from); left--) {
            step<S, false, true>(c, w, control, base, r, at, from, from, left > 1, s, p);
            from = key_after(from);
        }
        if (left == 0)
            break;
        step<S, false, false>(c, w, control, base, r, at, from, from, left > 1, s, p);
        from = key_after(from);
        left--;
    }
}

/* An item's units, of which there is one at least. */
template <typename S>
DEVICE void attend(const fi_call &c, const struct work &w, struct control *control, u32 base,
                   rows<S> &r, place<S> &at)
{
    u32 p[S::keys / 4];
    int left = uniform(w.units) - 1;
    int from = uniform(plan_unit_key(&w.at.tile, S::keys, unit_at<S>(w, 0)));
    int gap_key = 0, skip = 0; /* in registers */
    if constexpr (S::backwards || S::ahead) {
        gap_key = uniform(w.gap_key);
        skip = uniform(w.at.tile.skip);
    }
    auto key_after = [&](int key) {
        key += S::step;
        if constexpr (S::backwards)
            return key - (key == gap_key ? skip : 0);
        else if constexpr (S::ahead)
            return key + (key == gap_key ? skip : 0);
        else
            return key + (key == w.gap_key ? w.at.tile.skip : 0);
    };
    {
        float s[S::keys / 2], factor[2], sum[2];
        keys_wait<S>(w, control, at);
        scores_issue<S>(r, at, from, base, s);
        scores_take<S>(control, at, s);
        scores_finish<S>(c, w, control, r, at.v, from, base, s);
        unit_again<S>(r, from, s, sum, factor, p);
        r.x.sum[0] = sum[0];
        r.x.sum[1] = sum[1];
    }
    values_wait<S>(w, control, at);
    if (left > 0)
        keys_wait<S>(w, control, at);
    if constexpr (!S::ahead)
        attend_in_turn<S>(c, w, control, base, r, at, from, left, key_after, p);
    else if (left > 0)
        attend_ahead<S>(c, w, control, base, r, at, key_after(from), left, key_after, p);
    wgmma_fence();
    gemm_pv<S>(r.o, p, base + S::v_at + at.v.slot * S::v_bytes, r.add);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(r.o);
    release(shared_address(&control->v_empty[at.v.slot]));
    at.v.advance();
}

#else

/* An item's units, one after the other: a warp's products are in order with the rest of its work,
 * and other warps' fill what it leaves. */
template <typename S>
DEVICE void attend(const fi_call &c, const struct work &w, struct control *control, u32 base,
                   rows<S> &r, place<S> &at)
{
    int left = uniform(w.units), from = uniform(plan_unit_key(&w.at.tile, S::keys, w.at.unit));
#pragma unroll 1
    for (;;) {
        float s[S::keys / 2], factor[2] = {1.0f, 1.0f}, sum[2] = {0.0f, 0.0f};
        u32 p[S::keys / 4];
        keys_wait<S>(w, control, at);
        scores_issue<S>(r, at, from, base, s);
        scores_take<S>(control, at, s);
        scores_finish<S>(c, w, control, r, at.v, from, base, s);
        softmax_tile<S::is_f16>(r.x, s, r.scale, sum, p);
        if (__builtin_expect(softmax_grown(sum), 0)) {
            softmax_again<S::is_f16>(&r.x, s, r.scale, sum, factor, p);
#pragma unroll
            for (int i = 0; i < S::dim_v / 2; i++)
                r.o[i] = r.add ? r.o[i] * factor[i / 2 % 2] : 0.0f;
        }
        r.x.sum[0] += sum[0];
        r.x.sum[1] += sum[1];
        values_wait<S>(w, control, at);
        gemm_pv<S>(r.o, p, base + S::v_at + at.v.slot * S::v_bytes, 1);
        release(shared_address(&control->v_empty[at.v.slot]));
        at.v.advance();
        r.add = 1;
        if (--left == 0)
            break;
        from += S::keys;
        from += from == w.gap_key ? w.at.tile.skip : 0;
    }
}

#endif

/* ---- The kernel ---------------------------------------------------------------------------- */

template <typename S> DEVICE void consume(const fi_call &c, struct control *control, char *shared)
{
    const u32 base = shared_address(shared);
    place<S> at;
    if constexpr (S::sloped)
        ramp_fill<S>(base + S::ramp_at);
    ring<S::q_slots> slot;
#pragma unroll 1
    for (;;) {
        barrier_wait(shared_address(&control->q_full[slot.slot]), slot.phase);
        const struct work &w = control->work[slot.slot];
        if (w.units == 0)
            break;
        rows<S> r;
        fence_async_shared(); /* the queries */
        rows_begin<S>(c, w, base + slot.slot * S::q_bytes, r);
        if constexpr (S::sloped)
            slopes_begin<S>(c, w, r);
        attend<S>(c, w, control, base, r, at);
        rows_end<S>(c, w, control, r, shared + slot.slot * S::q_bytes);
        release(shared_address(&control->q_empty[slot.slot]));
        slot.advance();
    }
}

template <typename S> DEVICE void prefill(const fi_call &c, char *shared)
{
    struct control *control = (struct control *)(shared + S::control_at);
    static_assert(sizeof(struct control) <= S::control_bytes, "room for barriers and work");
    static_assert(S::feeders == 1 || sizeof(struct two_feeds) <= S::control_bytes, "the same");
    const fi_start start = c.starts[(int)blockIdx.x / c.lanes];
    const cursor at = walk_begin(&c, block_in_line(c), &start, S::keys);
    if (threadIdx.x == 0)
        control_init<S>(control);
    __syncthreads();
    const int group = uniform((int)threadIdx.x / GROUP_THREADS);
    if (group == 0 || (S::feeders > 1 && group > S::groups)) {
        setmaxnreg_dec<S::producer_registers>();
        if (at.left > 0)
            produce<S>(c, at, shared, control, group != 0);
        pdl_wait();
        pdl_launch_dependents();
    } else {
        const grid_team team = grid_part(GROUP_THREADS, S::consumers);
        setmaxnreg_inc<S::consumer_registers>();
        pdl_wait();
        pdl_launch_dependents();
        clear_padding(c, S::dim_v, team);
        if (!S::codes && c.saves)
            save_new_rows(c, S::dim, S::dim_v, team);
        if (at.left > 0)
            consume<S>(c, control, shared);
    }
}

/* Kernels: of a line of shapes.h for a type of queries, and of codes. */
#if HAS_HOPPER
#define FI_PREFILL(line, type)                                                                     \
    FI_PREFILL_KERNEL(fi_prefill_##line##_##type, FI_LINE(line, dim), FI_LINE(line, v_dim),        \
                      FI_LINE(line, keys), FI_LINE(line, prefill_stages), FI_LINE(line, q_slots),  \
                      0, FI_IS_F16_##type, 0)
#define FI_PREFILL_SLOPES(line, type)                                                              \
    FI_TILES_KERNEL(fi_prefill_##line##_##type##_slopes, FI_PREFILL_ROWS, FI_LINE(line, dim),      \
                    FI_LINE(line, v_dim), FI_LINE(line, keys), FI_LINE(line, prefill_stages),      \
                    FI_LINE(line, q_slots), 0, FI_IS_F16_##type, 0, true)
#define FI_PREFILL_HALF(line, type)                                                                \
    FI_TILES_KERNEL(fi_prefill_half_##line##_##type, FI_HALF_ROWS, FI_LINE(line, dim),             \
                    FI_LINE(line, v_dim), FI_HALF_KEYS(FI_LINE(line, dim)),                        \
                    FI_HALF_STAGES(FI_LINE(line, dim)), FI_HALF_SLOTS, 0, FI_IS_F16_##type, 0,     \
                    false)
#define FI_PREFILL_HALF_CODES(line, type, codes)                                                   \
    FI_TILES_KERNEL(fi_prefill_half_##line##_##type##_##codes, FI_HALF_ROWS, FI_LINE(line, dim),   \
                    FI_LINE(line, v_dim), FI_HALF_CODES_KEYS, FI_HALF_CODES_STAGES, FI_HALF_SLOTS, \
                    FI_HALF_CODES_SLOTS, FI_IS_F16_##type, FI_CODES_##codes, false)
#define FI_PREFILL_CODES(line, type, codes)                                                        \
    FI_PREFILL_KERNEL(fi_prefill_##line##_##type##_##codes, FI_LINE(line, dim),                    \
                      FI_LINE(line, v_dim), FI_LINE(line, codes_keys),                             \
                      FI_LINE(line, prefill_stages), FI_LINE(line, codes_q_slots),                 \
                      FI_LINE(line, code_slots), FI_IS_F16_##type, FI_CODES_##codes)
#else
#define FI_PREFILL(line, type)                                                                     \
    FI_PREFILL_KERNEL(fi_prefill_##line##_##type, FI_LINE(line, dim), FI_LINE(line, v_dim),        \
                      FI_KEYS, FI_SM80_STAGES(FI_LINE(line, dim)), 1, 0, FI_IS_F16_##type, 0)
#define FI_PREFILL_SLOPES(...)
#define FI_PREFILL_HALF(...)
#define FI_PREFILL_HALF_CODES(...)
#define FI_PREFILL_CODES(line, type, codes)                                                        \
    FI_PREFILL_KERNEL(fi_prefill_##line##_##type##_##codes, FI_LINE(line, dim),                    \
                      FI_LINE(line, v_dim), FI_KEYS, FI_SM80_CODES_STAGES(FI_LINE(line, dim)), 1,  \
                      FI_SM80_CODE_SLOTS(FI_LINE(line, dim)), FI_IS_F16_##type, FI_CODES_##codes)
#endif
#define FI_PREFILL_KERNEL(name, dim, v_dim, keys, stages, q_slots, code_slots, is_f16, codes)      \
    FI_TILES_KERNEL(name, FI_PREFILL_ROWS, dim, v_dim, keys, stages, q_slots, code_slots, is_f16,  \
                    codes, false)
#define FI_TILES_KERNEL(name, rows, dim, v_dim, keys, stages, q_slots, code_slots, is_f16, codes,  \
                        sloped)                                                                    \
    using name##_shape =                                                                           \
        prefill_shape<dim, v_dim, keys, stages, q_slots, code_slots, is_f16, codes, rows, sloped>; \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, 1)                         \
        name(const __grid_constant__ fi_call c)                                                    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        prefill<name##_shape>(c, shared);                                                          \
    }

#endif /* FI_PREFILL_CUH */
