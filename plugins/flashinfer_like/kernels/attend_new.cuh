/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_new.cuh: new keys and values, which are in no page yet, a row at a time by a warp:
 *
 *   16 bits   k, v --registers-------------> slot in the cache
 *   fp8       k, v --registers--> codes -+-> group in shared memory
 *                                        +-> slot in the cache, if it has one
 *
 * Of 16 bits they come into shared memory as other keys do, so only a sequence's one new key, in
 * DECODE, goes this way (save_new() of attend_feed.cuh). Codes are multiplied as they are stored.
 */
#ifndef FI_ATTEND_NEW_CUH
#define FI_ATTEND_NEW_CUH

#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/flashinfer_like/kernels/attend_stages.cuh"

/* ---- Rows ---------------------------------------------------------------------------------- */

/* A new key or value by a warp: a lane's pairs of elements, whose numbers differ by 64. */
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

/* Where a slot lies in the caches. */
static __device__ __forceinline__ void find_slot(const fi_call &c, i64 slot, int head, char **k,
                                                 char **v)
{
    const call_operands &o = c.operands;
    i64 page = c.page_shift >= 0 ? slot >> c.page_shift : slot / c.page_size;
    i64 at = slot - page * c.page_size;
    *k = (char *)o.k_cache + page * o.k_page + at * o.k_token + head * o.k_cache_head;
    *v = (char *)o.v_cache + page * o.v_page + at * o.v_token + head * o.v_cache_head;
}

/* ---- Codes --------------------------------------------------------------------------------- */

/* save_kv_quantise() of two elements, by the instruction that there is for it: which rounds and
 * saturates alike, but drops the sign of NaN. */
template <int kind, bool half>
static __device__ __forceinline__ u16 quantise_pair(u32 pair, float scale)
{
    float2 x =
        half ? unpack_half(pair) : make_float2(bits_f32(pair << 16), bits_f32(pair & 0xffff0000u));
#if HAS_HOPPER
    u16 codes;
    float low = __fdiv_rn(x.x, scale), high = __fdiv_rn(x.y, scale);
    if (kind == ELEMENT_E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(low), "f"(high));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(codes) : "f"(low), "f"(high));
    return (u16)(codes | (pair >> 8 & 0x80u) | (pair >> 16 & 0x8000u));
#else
    return (u16)(save_kv_quantise(kind, x.x, scale) | save_kv_quantise(kind, x.y, scale) << 8);
#endif
}

/* A new key or value as codes: into the group, and to its slot if it has one. */
template <typename S, int dim>
static __device__ __forceinline__ void quantise_row(const u32 (&x)[(dim + 63) / 64], float scale,
                                                    int row, char *group, char *slot, bool aligned)
{
    EACH_PAIR(n, d, dim)
    {
        u16 codes = quantise_pair<S::codes, S::half>(x[n], scale);
        *(u16 *)(group + piece_at<PANEL_BYTES>(row, d / 16) + d % 16) = codes;
        if (slot && aligned)
            *(u16 *)(slot + d) = codes;
        else if (slot)
            slot[d] = (char)codes, slot[d + 1] = (char)(codes >> 8);
    }
}

/* New keys of a group, rows that `fresh` has a bit for, as they are stored; row `last` goes to
 * `slot` too, if that is one. `k`, `v`: this lane's row. By value, so that nothing of the caller's
 * has an address. */
template <typename S>
static __device__ __noinline__ void quantise_new(const fi_call &c, int head, u64 k, u64 v,
                                                 u32 fresh, int last, i64 slot, char *keys,
                                                 char *values)
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
        if (row == last && slot >= 0)
            find_slot(c, slot, head, &k_to, &v_to);
        quantise_row<S, S::dim>(k_row, k_scale, row, keys, k_to, aligned_to);
        quantise_row<S, S::v_dim>(v_row, v_scale, row, values, v_to, aligned_to);
    }
}

#endif /* FI_ATTEND_NEW_CUH */
