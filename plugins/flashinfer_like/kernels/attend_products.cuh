/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_products.cuh: the two products of a warp of attend.cuh, 16 rows by 16 keys:
 *
 *   scores   S[16 x 16]     = Q[16 x dim] * K[16 x dim]^T      Q: attend_item.cuh
 *   values   O[16 x v_dim] += P[16 x 16] * V[16 x v_dim]       P: attend_softmax.cuh
 *
 * Over fp8, keys are converted exactly to f16 between shared memory and the product, or to bf16 if
 * f16 cannot hold the queries. Values are converted to the type of the rounded probabilities: f16
 * if it can hold them, else the queries' type. The scales of keys are part of the scores' factor;
 * those of values are applied at the item's end.
 */
#ifndef FI_ATTEND_PRODUCTS_CUH
#define FI_ATTEND_PRODUCTS_CUH

#include "plugins/flashinfer_like/kernels/attend_item.cuh"

/* ---- Scores -------------------------------------------------------------------------------- */

/* score[j]: products of the rows with keys 8j to 8j + 7. `before`: free pieces of a panel before a
 * row. */
template <typename S>
static __device__ __forceinline__ void gemm_qk(const item<S> &it, const char *shared, const char *k,
                                               int before, float (&score)[2][4])
{
    int lane = (int)threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
    u32 keys = shared_address(k) + piece_at<PANEL_BYTES>(row, before + (lane >> 3 & 1));
    u32 queries = shared_address(shared) + S::q_at + (lane & 15) * S::q_stride + (lane >> 4) * 16;
    float odd[2][4] = {}; /* two sums each, which halves the chain of dependent products */
#pragma unroll
    for (int d = 0; d < S::dim / 16; d++) {
        u32 a[4], b[4];
        if (S::q_in_shared)
            load_matrices(a, queries + d * 32);
        for (int n = 0; n < 4 && !S::q_in_shared; n++)
            a[n] = it.a[S::q_in_shared ? 0 : d][n];
        load_matrices(b, (keys ^ (d & 3) << 5) + panel_of<S>(d, before));
        multiply<S::is_f16>(d % 2 ? odd[0] : score[0], a, b[0], b[1]);
        multiply<S::is_f16>(d % 2 ? odd[1] : score[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] += odd[n / 4][n % 4];
}

/* Converts two fp8 values from f16 to bf16, which represents them all, too. */
static __device__ __forceinline__ u32 half_to_bf16(u32 pair)
{
    float2 x = unpack_half(pair);
    return pack_pair<false>(x.x, x.y);
}

/* Converts four fp8 values to f16, or to bf16. */
template <typename S, bool is_f16>
static __device__ __forceinline__ void widen_for(u32 codes, u32 &low, u32 &high)
{
    widen_codes<S::codes>(codes, low, high);
    if (!is_f16) {
        low = half_to_bf16(low);
        high = half_to_bf16(high);
    }
}

/* The same over fp8: a matrix has 16 dimensions of 8 keys. */
template <typename S, bool is_f16>
static __device__ __forceinline__ void gemm_qk_fp8(const item<S> &it, const char *shared,
                                                   const char *k, float (&score)[2][4])
{
    int lane = (int)threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
    u32 keys = shared_address(k) + piece_at<PANEL_BYTES>(row, lane >> 3 & 1);
    u32 queries = shared_address(shared) + S::q_at + (lane & 15) * S::q_stride + (lane >> 4) * 16;
    float odd[2][4] = {};
#pragma unroll
    for (int d = 0; d < S::dim / 32; d++) {
        u32 codes[4];
        load_matrices(codes, (keys ^ (d & 3) << 5) + d / 4 * PANEL_BYTES);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            u32 a[4], low, high;
            if (S::q_in_shared)
                load_matrices(a, queries + d * 64 + n * 32);
            for (int e = 0; e < 4 && !S::q_in_shared; e++)
                a[e] = it.a[S::q_in_shared ? 0 : d * 2 + n][e];
            widen_for<S, is_f16>(codes[n], low, high);
            multiply<is_f16>(n ? odd[0] : score[0], a, low, high);
            widen_for<S, is_f16>(codes[2 + n], low, high);
            multiply<is_f16>(n ? odd[1] : score[1], a, low, high);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] += odd[n / 4][n % 4];
}

/* ---- Values -------------------------------------------------------------------------------- */

/* Probabilities as operand `a`; `kept` has all bits set for keys that some row sees, two keys in
 * each word. The values of other keys are cleared, as they may be NaN, and 0 times NaN is NaN. */
struct probabilities {
    u32 p[4], kept[2];
};

/* out += probabilities x values. */
template <typename S>
static __device__ __forceinline__ void gemm_pv(const probabilities &w, const char *v, int before,
                                               item<S> &it)
{
    int lane = (int)threadIdx.x & 31;
    u32 values = shared_address(v) + piece_at<PANEL_BYTES>(lane & 15, before + (lane >> 4));
#pragma unroll
    for (int d = 0; d < S::v_dim / 16; d++) {
        u32 b[4];
        load_matrices_transposed(b, (values ^ (d & 3) << 5) + panel_of<S>(d, before));
        multiply<S::is_f16>(it.out[d * 2], w.p, b[0] & w.kept[0], b[1] & w.kept[1]);
        multiply<S::is_f16>(it.out[d * 2 + 1], w.p, b[2] & w.kept[0], b[3] & w.kept[1]);
    }
}

/* The same over fp8: a lane of a transposed matrix has two dimensions of two keys, so of 16
 * dimensions out[2 n] has the even ones and out[2 n + 1] the odd ones. */
template <typename S, bool is_f16>
static __device__ __forceinline__ void gemm_pv_fp8(const probabilities &w, const char *v,
                                                   item<S> &it)
{
    int lane = (int)threadIdx.x & 31;
    u32 values = shared_address(v) + piece_at<PANEL_BYTES>(lane & 15, lane >> 4);
#pragma unroll
    for (int d = 0; d < S::v_dim / 32; d++) {
        u32 codes[4];
        load_matrices_transposed(codes, (values ^ (d & 3) << 5) + d / 4 * PANEL_BYTES);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            u32 even[2], odd[2];
#pragma unroll
            for (int j = 0; j < 2; j++)
                widen_for<S, is_f16>(__byte_perm(codes[n * 2 + j] & w.kept[j], 0, 0x3120), even[j],
                                     odd[j]);
            multiply<is_f16>(it.out[d * 4 + n * 2], w.p, even[0], even[1]);
            multiply<is_f16>(it.out[d * 4 + n * 2 + 1], w.p, odd[0], odd[1]);
        }
    }
}

#endif /* FI_ATTEND_PRODUCTS_CUH */
