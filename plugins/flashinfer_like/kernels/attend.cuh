/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.cuh: attention of tiles of 16 rows, for decode and short queries; bound by memory. A block
 * has one list of units (plan.h) of 64 keys:
 *
 *   producers   K V | K V | K V | K V | K V | K V | ...      `stages` units ahead, across items
 *   consumers       Q . [S PV][S PV][S PV] out Q . [S PV] ... [S PV]: scores, softmax, values
 *
 *   producers   a team of four warps, or two that alternate: look up pages and start copies, but
 *               never read the copied data
 *   consumers   a team of four warps, or two that alternate: warp w has keys 16 w to 16 w + 15 of a
 *               unit, waits for them and releases them independently of the other warps
 *
 * At the end of an item the sums of its warps are added: into the output or, if other blocks have
 * parts of the item, into a part in device memory (attend_epilogue.cuh, attend_merge.cuh).
 *
 * If blocks have many items, two teams of consumers alternate on items (FI_ATTEND_MANY):
 *
 *   team 0   Q 0 [S PV] ... [S PV] out 0  Q 2 .    [S PV] ... [S PV] out 2  Q 4 .    [S PV] ...
 *   team 1   Q 1 .                [S PV] ... [S PV] out 1  Q 3 .    [S PV] ... [S PV] out 3  Q 5 .
 *
 * Over fp8 one team is too slow, so two alternate on units. With many items there are two blocks of
 * one team each instead (FI_ATTEND_CODES_MANY). The kernels' numbers of teams and stages are in
 * shapes.h.
 *
 * Times of a unit of D 128, bf16, in cycles of a multiprocessor: 32 KiB arrive in some 1860, at 4.6
 * TB/s. A warp's products take 1120, most of it latency. A warp that looks up one page at a time
 * and starts its four TMA boxes takes 1500: so boxes are started in runs. Copies row by row, for
 * small pages and for keys that are not in the cache, take 1900. Code outside of loops takes a warp
 * five cycles per instruction: ending an item and starting the next takes 8000.
 */
#ifndef FI_ATTEND_CUH
#define FI_ATTEND_CUH

#include "plugins/flashinfer_like/kernels/attend_epilogue.cuh"
#include "plugins/flashinfer_like/kernels/attend_producer.cuh"
#include "plugins/flashinfer_like/kernels/attend_softmax.cuh"

/* ---- Consumers ----------------------------------------------------------------------------- */

/* Scaled scores of a warp's 16 keys of a unit. */
template <typename S>
static __device__ __forceinline__ void group_scores(const fi_call &c, const item<S> &it,
                                                    const char *shared, const char *stage,
                                                    int before, float (&score)[2][4])
{
    const char *k = stage + warp_part() * S::k_bytes;
    if constexpr (!S::quantised)
        gemm_qk<S>(it, shared, k, before, score);
    else if (!S::may_not_fit || it.fits)
        gemm_qk_fp8<S, true>(it, shared, k, score);
    else
        gemm_qk_fp8<S, false>(it, shared, k, score);
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] *= S::quantised ? it.factor[S::quantised ? n % 4 / 2 : 0] : c.scale;
}

/* Adds the probabilities of these keys times their values. */
template <typename S>
static __device__ __forceinline__ void group_values(const float (&score)[2][4], u32 seen,
                                                    const char *stage, int before, item<S> &it)
{
    const char *v = stage + WARPS * S::k_bytes + warp_part() * S::v_bytes;
    if constexpr (!S::quantised)
        gemm_pv<S>(round_probabilities<S::is_f16>(score, seen), v, before, it);
    else if (S::is_f16 || fit_half(score))
        gemm_pv_fp8<S, true>(round_probabilities<true>(score, seen), v, it);
    else
        gemm_pv_fp8<S, false>(round_probabilities<false>(score, seen), v, it);
}

/* Processes a warp's 16 keys of a unit, from scores to sums of values. */
template <typename S>
static __device__ __forceinline__ void consume_group(const fi_call &c, const cursor &at,
                                                     item<S> &it, const char *shared,
                                                     const char *stage)
{
    float group[1][2][4] = {};
    float(&score)[2][4] = group[0];
    int from = cursor_key(at), before = pieces_before<S>(at.head);
    u32 seen = 15;
    group_scores<S>(c, it, shared, stage, before, score);
    if (c.cap != 0 && !c.operands.slopes)
        scores_cap(c.cap, score);
    if (is_sloped(c))
        scores_slope<S>(c, at, it, score);
    const bool is_border = from < it.all_lo || from + GROUP_KEYS > it.all_hi;
    if (is_border)
        seen = warp_or(is_range(c) ? scores_cut<S>(c, at, it, score)
                                   : scores_mask<S>(c, at, it, score));
    softmax_update<S>(group, it);
    if (S::has_inner && !is_border)
        group_values<S>(score, 15, stage, before, it);
    else
        group_values<S>(score, seen, stage, before, it);
}

/* Processes a unit that has arrived, and releases its stage. */
template <typename S>
static __device__ __forceinline__ void consume_unit(const fi_call &c, const cursor &at, item<S> &it,
                                                    const ring &r, char *shared)
{
    if (cursor_key(at) < at.tile.hi)
        consume_group<S>(c, at, it, shared, shared + r.stage * S::stage_bytes);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(empty_barrier<S>(shared, r.stage));
}

/* Does the block have this unit and the next one of the item, and do all rows see all of their
 * keys, with logits that are products only? */
template <typename S>
static __device__ __forceinline__ bool is_pair(const fi_call &c, const cursor &at,
                                               const item<S> &it)
{
    int from = cursor_key(at) - warp_part() * GROUP_KEYS;
    return at.left > 1 && c.cap == 0 && !is_sloped(c) && from >= it.all_lo &&
           from + 2 * FI_KEYS <= it.all_hi;
}

/* Processes two units at once, so that a warp waits half as long for its own instructions. */
template <typename S>
static __device__ __forceinline__ void consume_pair(const fi_call &c, const cursor &at, item<S> &it,
                                                    ring &r, char *shared)
{
    int before = pieces_before<S>(at.head);
    float score[2][2][4] = {};
    const char *stage[2];
    const ring first = r;
#pragma unroll
    for (int g = 0; g < 2; g++) {
        barrier_wait(full_barrier<S>(shared, r.stage), r.parity);
        stage[g] = shared + r.stage * S::stage_bytes;
        group_scores<S>(c, it, shared, stage[g], before, score[g]);
        if (g == 0)
            ring_next<S>(r);
    }
    softmax_update<S>(score, it);
#pragma unroll
    for (int g = 0; g < 2; g++)
        group_values<S>(score[g], 15, stage[g], before, it);
    __syncwarp();
    if ((threadIdx.x & 31) < 2)
        barrier_arrive(empty_barrier<S>(shared, (threadIdx.x & 31) == 0 ? first.stage : r.stage));
}

/* Skips the other team's item. */
template <typename S>
static __device__ __forceinline__ void pass_item(const fi_call &c, cursor &at, ring &r)
{
    int stage = r.stage + walk_past(&c, block_here(), &at, FI_KEYS);
    r.parity ^= stage / S::stages & 1;
    r.stage = stage % S::stages;
}

/* The loop of a math warp. */
template <typename S, bool splits>
static __device__ __forceinline__ void consume(const fi_call &c, const fi_start &start, cursor at,
                                               item<S> &it, char *shared)
{
    ring r = {0, 0};
    int team = my_team(), turn = 0;
    bool is_first = true;
    if (S::by_item && team == 1) {
        pass_item<S>(c, at, r);
        if (at.left == 0)
            return;
        is_first = false;
        item_find<S>(c, at, it);
    }
    PROFILE_BEGIN;
    item_begin<S>(c, at, it, shared);
    if (S::by_item && team == 1)
        turn_take(team);
#pragma unroll 1
    for (;;) {
        PROFILE_UNIT;
        PROFILE(0);
        if (S::in_pairs && !splits && is_pair(c, at, it)) {
            consume_pair(c, at, it, r, shared);
            walk_next(&c, block_here(), &at, FI_KEYS);
        } else if (S::by_item || S::teams == 1 || turn == team) {
            barrier_wait(full_barrier<S>(shared, r.stage), r.parity);
            PROFILE(1);
            consume_unit<S>(c, at, it, r, shared);
        }
        turn = turn + 1 == S::teams ? 0 : turn + 1;
        ring_next<S>(r);
        PROFILE(2);
        if (!walk_ends_part(splits ? c.split : 0, &at)) {
            walk_next(&c, block_here(), &at, FI_KEYS);
            continue;
        }
        const bool is_over = at.unit == at.units - 1;
        if (S::by_item && is_over && at.left > 1)
            turn_give(1 - team);
        item_end<S, splits>(c, at, start, is_first, it, shared);
        PROFILE(3);
        walk_next(&c, block_here(), &at, FI_KEYS);
        if (S::by_item && is_over && at.left > 0)
            pass_item<S>(c, at, r);
        if (at.left == 0)
            break;
        is_first &= !is_over;
        turn = splits ? 0 : turn; /* the team of a split's unit must not depend on the batch */
        item_find<S>(c, at, it);
        item_begin<S>(c, at, it, shared);
        if (S::by_item && is_over)
            turn_take(team);
    }
    PROFILE_END("consumers");
}

/* ---- The kernel ---------------------------------------------------------------------------- */

template <typename S, bool splits>
static __device__ __forceinline__ void attend(const fi_call &c, char *shared)
{
    const fi_start start = c.starts[blockIdx.y];
    const cursor at = walk_begin(&c, block_here(), &start, FI_KEYS);
    if (threadIdx.x < S::stages) {
        barrier_init(full_barrier<S>(shared, (int)threadIdx.x), WARPS);
        barrier_init(empty_barrier<S>(shared, (int)threadIdx.x), WARPS);
    }
    __syncthreads();
    if (threadIdx.x >= S::warps * 32) {
        const grid_team team = grid_part(S::warps * 32, S::producers * WARPS * 32);
        setmaxnreg_dec<S::producer_registers>();
        if (at.left > 0)
            produce<S>(c, at, shared);
        pdl_wait();
        pdl_launch_dependents();
        if (S::teams == 1 && !S::quantised && !splits && c.saves)
            save_new_rows(c, S::dim, S::v_dim, team);
        clear_padding(c, S::v_dim, team);
    } else {
        item<S> it;
        setmaxnreg_inc<S::consumer_registers>();
        if (at.left > 0)
            item_find<S>(c, at, it);
        pdl_wait();
        pdl_launch_dependents();
        if (at.left > 0)
            consume<S, splits>(c, start, at, it, shared);
    }
    PROFILE_LAUNCH;
}

#define FI_KERNEL(name, splits, dim, v_dim, stages, teams, producers, blocks, is_f16, codes)       \
    extern "C" __global__ void __launch_bounds__((teams + producers) * WARPS * 32, blocks)         \
        name(const __grid_constant__ fi_call c)                                                    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        using shape = attend_shape<dim, v_dim, stages, teams, producers, blocks, is_f16, codes>;   \
        attend<shape, splits>(c, shared);                                                          \
    }

/* Kernels with splits give a row the same bits whatever its batch. They are separate, as this code
 * would slow the other kernels by 5 %. */
#define FI_KERNELS(name, ...)                                                                      \
    FI_KERNEL(name, false, __VA_ARGS__)                                                            \
    FI_KERNEL(name##_splits, true, __VA_ARGS__)

/* Kernels of a line of shapes.h, for a type of queries and of fp8. */
#if HAS_HOPPER
#define FI_ATTEND(line, type)                                                                      \
    FI_KERNELS(fi_attend_##line##_##type, FI_LINE(line, dim), FI_LINE(line, v_dim),                \
               FI_LINE(line, stages), 1, FI_ATTEND_PRODUCERS(FI_LINE(line, dim)),                  \
               FI_ATTEND_ROOM(FI_LINE(line, dim)), FI_IS_F16_##type, 0)
#define FI_ATTEND_MANY(line, type)                                                                 \
    static_assert(FI_LINE(line, dim) <= FI_MANY_DIM, "the host has it");                           \
    FI_KERNEL(fi_attend_many_##line##_##type, false, FI_LINE(line, dim), FI_LINE(line, v_dim),     \
              FI_MANY_STAGES(FI_LINE(line, dim), FI_LINE(line, stages)), 2, 1, 1,                  \
              FI_IS_F16_##type, 0)
#define FI_ATTEND_CODES(line, type, codes)                                                         \
    FI_KERNELS(fi_attend_##line##_##type##_##codes, FI_LINE(line, dim), FI_LINE(line, v_dim),      \
               FI_LINE(line, codes_stages), FI_CODES_TEAMS(FI_LINE(line, v_dim)), 1, 1,            \
               FI_IS_F16_##type, FI_CODES_##codes)
#define FI_ATTEND_CODES_MANY(line, type, codes)                                                    \
    static_assert(FI_LINE(line, dim) <= FI_MANY_DIM, "the host has it");                           \
    FI_KERNEL(fi_attend_many_##line##_##type##_##codes, false, FI_LINE(line, dim),                 \
              FI_LINE(line, v_dim), FI_CODES_MANY_STAGES, 1, 1, 2, FI_IS_F16_##type,               \
              FI_CODES_##codes)
#else
#define FI_ATTEND(line, type)                                                                      \
    FI_KERNELS(fi_attend_##line##_##type, FI_LINE(line, dim), FI_LINE(line, v_dim),                \
               FI_SM80_ATTEND_STAGES(FI_LINE(line, dim)), 1, 1, 1, FI_IS_F16_##type, 0)
#define FI_ATTEND_CODES(line, type, codes)                                                         \
    FI_KERNELS(fi_attend_##line##_##type##_##codes, FI_LINE(line, dim), FI_LINE(line, v_dim),      \
               FI_SM80_ATTEND_CODES_STAGES(FI_LINE(line, dim)), 1, 1, 1, FI_IS_F16_##type,         \
               FI_CODES_##codes)
#define FI_ATTEND_MANY(...)
#define FI_ATTEND_CODES_MANY(...)
#endif

#endif /* FI_ATTEND_CUH */
