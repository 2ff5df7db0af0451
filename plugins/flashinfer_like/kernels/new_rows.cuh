/* SPDX-License-Identifier: Apache-2.0
 *
 * new_rows.cuh: a new key or value as fp8, and its slot; for kernels of few rows, of many rows, and
 * fi_save.
 */
#ifndef FI_NEW_ROWS_CUH
#define FI_NEW_ROWS_CUH

#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/flashinfer_like/kernels/item.cuh"

/* The addresses of a slot in the caches. */
static __device__ __forceinline__ void find_slot(const fi_call &c, i64 slot, int head, char **k,
                                                 char **v)
{
    const call_operands &o = c.operands;
    i64 page = c.page_shift >= 0 ? slot >> c.page_shift : slot / c.page_size;
    i64 at = slot - page * c.page_size;
    *k = (char *)o.k_cache + page * o.k_page + at * o.k_token + head * o.k_cache_head;
    *v = (char *)o.v_cache + page * o.v_page + at * o.v_token + head * o.v_cache_head;
}

/* save_kv_quantise() of two elements by one instruction, which rounds and saturates alike but drops
 * the sign of NaN. */
static __device__ __forceinline__ u16 quantise_pair(int kind, bool is_f16, u32 pair, float scale)
{
    float2 x = is_f16 ? unpack_half(pair)
                      : make_float2(bits_f32(pair << 16), bits_f32(pair & 0xffff0000u));
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

/* The same for eight elements. */
static __device__ __forceinline__ uint2 quantise_piece(int kind, bool is_f16, uint4 x, float scale)
{
    return make_uint2(quantise_pair(kind, is_f16, x.x, scale) |
                          (u32)quantise_pair(kind, is_f16, x.y, scale) << 16,
                      quantise_pair(kind, is_f16, x.z, scale) |
                          (u32)quantise_pair(kind, is_f16, x.w, scale) << 16);
}

#endif /* FI_NEW_ROWS_CUH */
