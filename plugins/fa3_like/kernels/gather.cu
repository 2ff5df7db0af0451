/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.cu: fa3_gather, before tiles over a cache that they cannot read (gather.cuh). Eight lanes
 * have a key of a head and its value, 16 elements each at a time:
 *
 *   new rows       k, v ---> codes ---> cache
 *                              '------> gathered rows
 *   other rows     cache ------------> gathered rows
 */
#include "plugins/common/cuda/ptx.cuh"
#include "plugins/fa3_like/kernels/gather.cuh"
#include "plugins/flashinfer_like/kernels/mma.cuh"

enum { GATHER_LANES = 8, GATHER_PIECE = 16 };

/* Sixteen 16-bit elements, or eight of them in halves, two per word. */
struct piece {
    u32 x[GATHER_PIECE / 2];
};

static __device__ __forceinline__ piece load_elements(const char *from, bool is_aligned)
{
    piece r;
    if (is_aligned) {
        *(uint4 *)r.x = *(const uint4 *)from;
        *(uint4 *)(r.x + 4) = *(const uint4 *)(from + 16);
        return r;
    }
#pragma unroll
    for (int i = 0; i < GATHER_PIECE / 2; i++)
        r.x[i] = ((const u16 *)from)[2 * i] | (u32)((const u16 *)from)[2 * i + 1] << 16;
    return r;
}

static __device__ __forceinline__ void store_elements(const piece &r, u16 *to)
{
    *(uint4 *)to = *(const uint4 *)r.x;
    *(uint4 *)(to + 8) = *(const uint4 *)(r.x + 4);
}

static __device__ __forceinline__ float element_of(const piece &r, int dtype, int i)
{
    const u16 bits = (u16)(r.x[i / 2] >> i % 2 * 16);
    return dtype == ELEMENT_F16 ? element_from_f16(bits) : element_from_bf16(bits);
}

/* Converts fp8 exactly to either 16-bit type. */
template <int kind> static __device__ __forceinline__ piece widen_all(uint4 codes, int dtype)
{
    const u32 from[4] = {codes.x, codes.y, codes.z, codes.w};
    piece r;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 low, high;
        widen_codes<kind>(from[i], low, high);
        if (dtype != ELEMENT_F16) {
            const float2 a = unpack_half(low), b = unpack_half(high);
            low = pack_pair<false>(a.x, a.y);
            high = pack_pair<false>(b.x, b.y);
        }
        r.x[2 * i] = low;
        r.x[2 * i + 1] = high;
    }
    return r;
}

static __device__ __forceinline__ piece widen(const fa3_gather_call &p, uint4 codes)
{
    return p.kv_dtype == ELEMENT_E5M2 ? widen_all<ELEMENT_E5M2>(codes, p.dtype)
                                      : widen_all<ELEMENT_E4M3>(codes, p.dtype);
}

/* Converts four of them to fp8. */
static __device__ __forceinline__ u32 quantise(const fa3_gather_call &p, const piece &r, int i,
                                               float scale)
{
    float x[4];
    u32 codes = 0;
    if (p.kv_dtype == ELEMENT_E5M2) {
#pragma unroll
        for (int n = 0; n < 4; n++)
            codes |= (u32)save_kv_quantise(ELEMENT_E5M2, element_of(r, p.new_dtype, i + n), scale)
                     << 8 * n;
        return codes;
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
        x[n] = f32_divide(element_of(r, p.new_dtype, i + n), scale);
    return pack_codes(x[0], x[1], x[2], x[3]);
}

/* Copies elements [d, d + 16) of a new key or value. */
static __device__ __forceinline__ void gather_new(const fa3_gather_call &p, const char *from, int d,
                                                  float scale, u16 *to, char *cache)
{
    const piece given = load_elements(from + d * 2, p.operands.aligned & CALL_ALIGNED_NEW);
    if (!element_is_fp8(p.kv_dtype)) {
        if (cache)
            store_elements(given, (u16 *)cache + d);
        if (to)
            store_elements(given, to + d);
        return;
    }
    const uint4 codes = make_uint4(quantise(p, given, 0, scale), quantise(p, given, 4, scale),
                                   quantise(p, given, 8, scale), quantise(p, given, 12, scale));
    if (cache)
        *(uint4 *)(cache + d) = codes;
    if (to)
        store_elements(widen(p, codes), to + d);
}

/* The same from the cache. */
static __device__ __forceinline__ void gather_cached(const fa3_gather_call &p, const char *from,
                                                     int d, u16 *to)
{
    store_elements(element_is_fp8(p.kv_dtype) ? widen(p, *(const uint4 *)(from + d))
                                              : load_elements(from + d * 2, true),
                   to + d);
}

/* Iterates over this thread's rows and heads. */
struct share {
    int row, head, rows_on, heads_on;
};

static __device__ __forceinline__ struct share share_begin(int heads)
{
    const int mine = (int)(blockIdx.x * FA3_GATHER_THREADS + threadIdx.x) / GATHER_LANES;
    const int all = (int)gridDim.x * (FA3_GATHER_THREADS / GATHER_LANES);
    return {mine / heads, mine % heads, all / heads, all % heads};
}

static __device__ __forceinline__ void share_next(struct share &s, int heads)
{
    s.row += s.rows_on;
    s.head += s.heads_on;
    if (s.head >= heads) {
        s.head -= heads;
        s.row++;
    }
}

extern "C" __global__ void __launch_bounds__(FA3_GATHER_THREADS)
    fa3_gather(const __grid_constant__ fa3_gather_call p)
{
    const int begin = (int)threadIdx.x % GATHER_LANES * GATHER_PIECE;
    const int step = GATHER_LANES * GATHER_PIECE;
    pdl_wait();
    pdl_launch_dependents();
    const int rows = min(p.first[index_num_seqs(&p.batch)], p.most_rows);
    for (share s = share_begin(p.heads); s.row < rows; share_next(s, p.heads)) {
        const gather_row r = gather_find_cached(&p, s.row, s.head);
        if (r.row < 0)
            continue;
        const i64 at = r.row * p.heads + s.head;
        for (int d = begin; d < p.dim; d += step)
            gather_cached(p, r.k, d, p.k + at * p.dim);
        for (int d = begin; d < p.dim_v; d += step)
            gather_cached(p, r.v, d, p.v + at * p.dim_v);
    }
    i64 first, end;
    gather_find_new_rows(&p, &first, &end);
    for (share s = share_begin(p.heads); s.row < end - first; share_next(s, p.heads)) {
        const gather_row r = gather_find_new(&p, first + s.row, s.head);
        const bool has_codes = element_is_fp8(p.kv_dtype);
        const float k_scale = has_codes ? cache_k_scale(&p.operands, p.scale_stride, s.head) : 1;
        const float v_scale = has_codes ? cache_v_scale(&p.operands, p.scale_stride, s.head) : 1;
        const i64 at = r.row * p.heads + s.head;
        for (int d = begin; d < p.dim; d += step)
            gather_new(p, r.k, d, k_scale, r.row < 0 ? 0 : p.k + at * p.dim, r.k_cache);
        for (int d = begin; d < p.dim_v; d += step)
            gather_new(p, r.v, d, v_scale, r.row < 0 ? 0 : p.v + at * p.dim_v, r.v_cache);
    }
}
