/* SPDX-License-Identifier: Apache-2.0
 *
 * save_kv.cu: new keys and values into the cache, at the slots of out_cache_loc.
 *
 * Block (x, y) writes the rows first + x, first + x + gridDim.x ... of KV head y. Rows are those of
 * the sequences of the batch; a slot of -1 is not written. An fp8 cache gets x / scale by an IEEE
 * division, rounded once to nearest even, saturated.
 */
#include "common.cuh"

__device__ __forceinline__ void store_kv(char *to, const char *from, int d, float scale)
{
    u16 bits = ((const u16 *)from)[d];
    if (KV_IS_FP8)
        ((u8 *)to)[d] = f32_to_fp8(__fdiv_rn(load16<Q_DTYPE>(bits), scale));
    else
        ((u16 *)to)[d] = bits;
}

extern "C" __global__ void attn_save_kv(const __grid_constant__ kernel_params p)
{
    int head = (int)blockIdx.y, first = 0, end = num_seqs(p);
    const int *indptr = p.new_indptr ? p.new_indptr : p.q_indptr;
    if (indptr) {
        first = indptr[0];
        end = indptr[end];
    }
    float k_scale = KV_IS_FP8 ? k_scale_of(p, head) : 1.0f;
    float v_scale = KV_IS_FP8 ? v_scale_of(p, head) : 1.0f;
    for (int row = first + (int)blockIdx.x; row < end; row += (int)gridDim.x) {
        i64 slot = p.out_cache_loc[row];
        if (slot < 0)
            continue;
        i64 page = slot / PAGE_SIZE, offset = slot % PAGE_SIZE;
        const char *k = (const char *)p.k + row * p.k_row + head * p.k_head;
        const char *v = (const char *)p.v + row * p.v_row + head * p.v_head;
        char *k_to = (char *)p.k_cache + page * p.k_page + offset * p.k_token + head * p.k_cache_head;
        char *v_to = (char *)p.v_cache + page * p.v_page + offset * p.v_token + head * p.v_cache_head;
        for (int d = (int)threadIdx.x; d < HEAD_DIM; d += (int)blockDim.x)
            store_kv(k_to, k, d, k_scale);
        for (int d = (int)threadIdx.x; d < V_DIM; d += (int)blockDim.x)
            store_kv(v_to, v, d, v_scale);
    }
}
