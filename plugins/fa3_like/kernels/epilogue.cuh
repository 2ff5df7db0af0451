/* SPDX-License-Identifier: Apache-2.0
 *
 * epilogue.cuh: a finished tile leaves. A warpgroup for itself:
 *
 *   registers -> 16 bits -> its rows of shared memory -> one bulk store for each 64 columns,
 *                                                        or row by row where the tile is not full
 *   registers -> memory, of an output in fp32, which has no room in shared memory
 *
 * The store reads shared memory while the next tile is under way; who wants to write there waits
 * for it. The LSE goes last: the fence before the bulk store would wait for it.
 */
#ifndef FA3_LIKE_EPILOGUE_CUH
#define FA3_LIKE_EPILOGUE_CUH

#include "plugins/common/cuda/warpgroup_softmax.cuh"
#include "plugins/fa3_like/kernels/pipeline.cuh"

DEVICE void group_sync(int group)
{
    named_sync(BARRIER_GROUP + group, GROUP_THREADS);
}

/* The row's whole sum, a sink's share in it, and its logarithm; `factor` is what the output is
 * multiplied by, 0 for a row without keys; `is_lost`: no key of the row has a weight. */
DEVICE void softmax_finish(struct softmax *x, const float *sink, float (&factor)[2],
                           float (&lse)[2], bool (&is_lost)[2])
{
    const float ln2 = 0.693147180559945309f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = quad_sum(x->sum[r]), top = -x->shift[r];
        float share = 1.0f;
        is_lost[r] = sum == 0.0f;
        if (sink) {
            const float logit = *sink * 1.44269504088896341f;
            const float next = fmaxf(top, logit);
            share = top == NEGATIVE_INFINITY ? 0.0f : exp2_fast(top - next);
            sum = sum * share + (logit == NEGATIVE_INFINITY ? 0.0f : exp2_fast(logit - next));
            top = next;
        }
        factor[r] = sum == 0.0f ? 0.0f : share / sum; /* a NaN stays one */
        lse[r] = sum == 0.0f ? NEGATIVE_INFINITY : (top + __log2f(sum)) * ln2;
    }
}

/* Of values that were turned (turn.cuh): of 16 columns a thread has the four from 4 (lane % 4) on,
 * even ones before odd ones. */
template <typename T>
DEVICE void output_stage_turned(const float (&o)[T::dim_v / 2], const float (&factor)[2],
                                unsigned to)
{
    const int thread = thread_here(), lane = thread % 32, row = thread / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int c = 0; c < T::dim_v / 16; c++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float *x = o + 8 * c + 2 * r;
            const unsigned piece = swizzled(row + 8 * r, c % 4 * 2 + lane % 4 / 2);
            shared_store_pair(to + c / 4 * GROUP_ROWS * ROW_BYTES + piece + lane % 2 * 8,
                              pack_pair<T::is_f16>(x[0] * factor[r], x[4] * factor[r]),
                              pack_pair<T::is_f16>(x[1] * factor[r], x[5] * factor[r]));
        }
}

template <typename T>
DEVICE void output_stage(const float (&o)[T::dim_v / 2], const float (&factor)[2], unsigned to)
{
    const int thread = thread_here(), lane = thread % 32, warp = thread / 32 % 4;
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < T::dim_v / 16; c++) {
        const float *x = o + 8 * c;
        const unsigned panel = to + c / 4 * GROUP_ROWS * ROW_BYTES;
        store_matrices(panel + swizzled(row, c % 4 * 2 + lane / 16),
                       pack_pair<T::is_f16>(x[0] * factor[0], x[1] * factor[0]),
                       pack_pair<T::is_f16>(x[2] * factor[1], x[3] * factor[1]),
                       pack_pair<T::is_f16>(x[4] * factor[0], x[5] * factor[0]),
                       pack_pair<T::is_f16>(x[6] * factor[1], x[7] * factor[1]));
    }
}

/* Bytes of an element of the output. */
DEVICE int output_bytes(const struct fa3_forward_params &p)
{
    return p.out_f32 ? 4 : 2;
}

/* Row `first` of the sequence among those of the output. Rows of parts begin with the batch. */
DEVICE int output_row(const struct fa3_forward_params &p, const struct work &w, int first)
{
    const int begin = p.splits > 1 && p.q_starts ? *(const int *)p.q_starts : 0;
    return w.q_start + first - begin;
}

/* Row `first` of the sequence in memory. */
DEVICE char *output_of(const struct fa3_forward_params &p, const struct work &w, int first)
{
    const long long at = output_row(p, w, first) * p.out_token + w.head * p.out_head +
                         w.split * p.out_split + (p.q_starts ? 0 : w.sequence * p.out_batch);
    return (char *)p.out + at * output_bytes(p);
}

/* Rows [0, rows) of a tile that is not full, 16 bytes at a time. */
template <typename T>
DEVICE void output_rows(const struct fa3_forward_params &p, const struct work &w, int first,
                        int rows, unsigned from)
{
    const int pieces = T::dim_v / 8;
    char *out = output_of(p, w, first);
    for (int i = thread_here() % GROUP_THREADS; i < rows * pieces; i += GROUP_THREADS) {
        const int row = i / pieces, piece = i % pieces;
        const unsigned at = from + piece / 8 * GROUP_ROWS * ROW_BYTES + swizzled(row, piece % 8);
        *(uint4 *)(out + row * p.out_token * 2 + piece * 16) = shared_load(at);
    }
}

/* Rows [0, rows) in fp32: four threads write 32 bytes of a row. */
template <typename T>
DEVICE void output_wide(const struct fa3_forward_params &p, const struct work &w, int first,
                        int rows, const float (&o)[T::dim_v / 2], const float (&factor)[2])
{
    const int thread = thread_here(), lane = thread % 32;
    const int row = thread / 32 % 4 * 16 + lane / 4;
    float *out = (float *)output_of(p, w, first + row) + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++, out += 8 * p.out_token)
        if (row + 8 * r < rows)
#pragma unroll
            for (int i = 2 * r; i < T::dim_v / 2; i += 4)
                *(float2 *)(out + (i - 2 * r) * 2) =
                    make_float2(o[i] * factor[r], o[i + 1] * factor[r]);
}

/* Rows [0, rows) as 16 bits, past shared memory: four threads write 32 bytes of a row, once two have
 * exchanged a word, so that each has 8. */
template <typename T>
DEVICE void output_direct(const struct fa3_forward_params &p, const struct work &w, int first,
                          int rows, const float (&o)[T::dim_v / 2], const float (&factor)[2])
{
    const int thread = thread_here(), lane = thread % 32, odd = lane % 2;
    const int row = thread / 32 % 4 * 16 + lane / 4;
    char *out = output_of(p, w, first + row) + odd * 16 + lane % 4 / 2 * 8;
#pragma unroll
    for (int r = 0; r < 2; r++, out += 16 * p.out_token)
#pragma unroll
        for (int i = 2 * r; i < T::dim_v / 2; i += 8) {
            const unsigned low = pack_pair<T::is_f16>(o[i] * factor[r], o[i + 1] * factor[r]);
            const unsigned high = pack_pair<T::is_f16>(o[i + 4] * factor[r], o[i + 5] * factor[r]);
            const unsigned other = __shfl_xor_sync(0xffffffff, odd ? low : high, 1);
            if (row + 8 * r < rows)
                *(uint2 *)(out + i * 4 - r * 8) =
                    odd ? make_uint2(other, high) : make_uint2(low, other);
        }
}

/* A tile without keys: zeros, past shared memory, which may hold the next tile's queries. */
template <typename T>
DEVICE void output_clear(const struct fa3_forward_params &p, const struct work &w, int first,
                         int rows)
{
    const int size = output_bytes(p), pieces = T::dim_v * size / 16;
    char *out = output_of(p, w, first);
    for (int i = thread_here() % GROUP_THREADS; i < rows * pieces; i += GROUP_THREADS)
        *(uint4 *)(out + i / pieces * p.out_token * size + i % pieces * 16) =
            make_uint4(0, 0, 0, 0);
}

template <typename T>
DEVICE void output_lse(const struct fa3_forward_params &p, const struct work &w, int first,
                       int rows, const float (&lse)[2])
{
    const int thread = thread_here(), lane = thread % 32;
    const int row = thread / 32 % 4 * 16 + lane / 4;
    if (!p.lse || lane % 4 != 0)
        return;
    float *out = (float *)p.lse + output_row(p, w, first + row) * p.lse_token +
                 w.head * p.lse_head + w.split * p.lse_split +
                 (p.q_starts ? 0 : w.sequence * p.lse_batch);
    if (row < rows)
        out[0] = lse[0];
    if (row + 8 < rows)
        out[8 * p.lse_token] = lse[1];
}

/* A warpgroup's rows at `to`, where nothing reads any more. */
template <typename T>
DEVICE void epilogue(const struct fa3_forward_params &p, const struct work &w, int group,
                     const float (&o)[T::dim_v / 2], const float (&factor)[2],
                     const float (&lse)[2], unsigned to)
{
    const int first = w.tile * T::queries + group * GROUP_ROWS;
    const int rows = min(w.queries - first, GROUP_ROWS);
    if (w.k_end == w.k_start) {
        output_clear<T>(p, w, first, rows);
        output_lse<T>(p, w, first, rows, lse);
        return;
    }
    if constexpr (T::codes) {
        output_stage_turned<T>(o, factor, to);
    } else if (p.out_f32) {
        output_wide<T>(p, w, first, rows, o, factor);
        output_lse<T>(p, w, first, rows, lse);
        return;
    } else if constexpr (T::direct) {
        output_direct<T>(p, w, first, rows, o, factor);
        output_lse<T>(p, w, first, rows, lse);
        return;
    } else {
        output_stage<T>(o, factor, to);
    }
    fence_async_shared();
    group_sync(group);
    if (rows < GROUP_ROWS) {
        output_rows<T>(p, w, first, rows, to);
        group_sync(group);
    } else if (thread_here() % GROUP_THREADS == 0) {
        for (int panel = 0; panel < T::panels_v; panel++)
            tensor_store(&p.o, to + panel * GROUP_ROWS * ROW_BYTES, panel * PANEL,
                         w.q_start + first, w.head, p.q_starts ? 0 : w.sequence);
        store_commit();
    }
    output_lse<T>(p, w, first, rows, lse);
}

#endif
