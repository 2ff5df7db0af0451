/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_new.cuh: new keys and values that are in no page yet, a row at a time by a warp:
 *
 *   16 bits   k, v --registers-------------> slot in the cache
 *   fp8       k, v --registers--> codes -+-> group in shared memory
 *                                        +-> slot in the cache, if it has one
 *
 * With 16 bits, new keys are copied into shared memory like other keys, so only a sequence's one
 * new key in DECODE is handled here (save_new() of attend_feed.cuh). fp8 keys are multiplied as
 * they are stored.
 */
#ifndef FI_ATTEND_NEW_CUH
#define FI_ATTEND_NEW_CUH

#include "plugins/flashinfer_like/kernels/attend_stages.cuh"
#include "plugins/flashinfer_like/kernels/new_rows.cuh"

/* ---- Rows ---------------------------------------------------------------------------------- */

/* A new key or value of a warp: a lane has pairs of elements, 64 elements apart. */
#define EACH_PAIR(n, d, dim)                                                                       \
    _Pragma("unroll") for (int n = 0, d = ((int)threadIdx.x & 31) * 2; n < ((dim) + 63) / 64;      \
                           n++, d += 64) if (d < (dim))

template <int dim>
static __device__ __forceinline__ void load_row(const char *from, bool aligned,
                                                u32 (&x)[(dim + 63) / 64])
{
    EACH_PAIR(n, d, dim)
    x[n] = load_pair(from + d * 2, aligned);
}

template <int dim>
static __device__ __forceinline__ void store_row(char *to, bool aligned,
                                                 const u32 (&x)[(dim + 63) / 64])
{
    EACH_PAIR(n, d, dim)
    {
        u16 *two = (u16 *)to + d;
        if (aligned)
            *(u32 *)two = x[n];
        else
            two[0] = (u16)x[n], two[1] = (u16)(x[n] >> 16);
    }
}

/* ---- Codes --------------------------------------------------------------------------------- */

/* Writes a new key or value as fp8 to the group, and to its slot if it has one. */
template <typename S, int dim>
static __device__ __forceinline__ void quantise_row(const u32 (&x)[(dim + 63) / 64], float scale,
                                                    int row, char *group, char *slot, bool aligned)
{
    EACH_PAIR(n, d, dim)
    {
        u16 codes = quantise_pair(S::codes, S::is_f16, x[n], scale);
        *(u16 *)(group + piece_at<PANEL_BYTES>(row, d / 16) + d % 16) = codes;
        if (slot && aligned)
            *(u16 *)(slot + d) = codes;
        else if (slot)
            slot[d] = (char)codes, slot[d + 1] = (char)(codes >> 8);
    }
}

/* Rounds the new keys of a group (rows with a bit in `fresh`) to fp8, and writes each to its slot,
 * if it has one. `k`, `v`, `slot`: this lane's row, passed by value so that no variable of the
 * caller needs an address. */
template <typename S>
static __device__ __noinline__ void quantise_new(const fi_call &c, int head, u64 k, u64 v,
                                                 u32 fresh, i64 slot, char *keys, char *values)
{
    float k_scale = k_scale_of(c, head), v_scale = v_scale_of(c, head);
    bool aligned = c.operands.aligned & CALL_ALIGNED_NEW;
    bool aligned_to = c.operands.aligned & CALL_ALIGNED_CACHE;
#pragma unroll 1
    for (; fresh; fresh &= fresh - 1) {
        int row = __ffs((int)fresh) - 1;
        u32 k_row[(S::dim + 63) / 64], v_row[(S::v_dim + 63) / 64];
        load_row<S::dim>((const char *)__shfl_sync(~0u, k, row), aligned, k_row);
        load_row<S::v_dim>((const char *)__shfl_sync(~0u, v, row), aligned, v_row);
        char *k_to = 0, *v_to = 0;
        const i64 to = __shfl_sync(~0u, slot, row);
        if (to >= 0)
            find_slot(c, to, head, &k_to, &v_to);
        quantise_row<S, S::dim>(k_row, k_scale, row, keys, k_to, aligned_to);
        quantise_row<S, S::v_dim>(v_row, v_scale, row, values, v_to, aligned_to);
    }
}

#endif /* FI_ATTEND_NEW_CUH */
