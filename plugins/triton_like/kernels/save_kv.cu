/* SPDX-License-Identifier: Apache-2.0
 *
 * save_kv.cu: new keys and values into the cache, at the slots of out_cache_loc.
 *
 * Block (x, y) writes the rows first + x, first + x + gridDim.x ... of KV head y. Rows are those of
 * the sequences of the batch. save_kv.cuh says what is written.
 */
#include "common.cuh"
#include "plugins/common/kernels/save_kv.cuh"

static_assert(DTYPE_F32 == ELEMENT_F32 && DTYPE_F16 == ELEMENT_F16 && DTYPE_BF16 == ELEMENT_BF16 &&
                  DTYPE_E4M3 == ELEMENT_E4M3 && DTYPE_E5M2 == ELEMENT_E5M2,
              "the plugin's data types are numbered as the shared kernels'");

extern "C" __global__ void attn_save_kv(const __grid_constant__ kernel_params p)
{
    i64 first = 0, end = num_seqs(p);
    const int *indptr = p.new_indptr ? p.new_indptr : p.q_indptr;
    if (indptr) {
        first = indptr[0];
        end = indptr[end];
    }
    save_kv_call call;
    call.k = {p.k,
              p.k_cache,
              p.k_row,
              p.k_head,
              p.k_page,
              p.k_token,
              p.k_cache_head,
              p.k_scale_device ? p.k_scale_device : p.k_scales,
              SCALE_PER_HEAD,
              HEAD_DIM};
    call.v = {p.v,
              p.v_cache,
              p.v_row,
              p.v_head,
              p.v_page,
              p.v_token,
              p.v_cache_head,
              p.v_scale_device ? p.v_scale_device : p.v_scales,
              SCALE_PER_HEAD,
              V_DIM};
    call.slots = p.out_cache_loc;
    call.page_size = PAGE_SIZE;
    call.from_dtype = Q_DTYPE;
    call.to_dtype = KV_DTYPE;
    save_kv_rows(&call, first + blockIdx.x, end, gridDim.x, (int)blockIdx.y, (int)threadIdx.x,
                 (int)blockDim.x);
}
