/* SPDX-License-Identifier: Apache-2.0
 *
 * save_kv.cu: writes new keys and values to the cache, at the slots of out_cache_loc.
 *
 * Block (x, y) writes the rows first + x, first + x + gridDim.x ... of KV head y. Rows are those of
 * the sequences of the batch. save_kv.cuh defines what is written.
 */
#include "common.cuh"
#include "plugins/common/cuda/save_kv.cuh"

extern "C" __global__ void attn_save_kv(const __grid_constant__ kernel_params p)
{
    i64 first = 0, end = index_num_seqs(&p.batch);
    const int *indptr = p.batch.new_indptr ? p.batch.new_indptr : p.batch.q_indptr;
    if (indptr) {
        first = indptr[0];
        end = indptr[end];
    }
    save_kv_call call;
    call.k = {p.operands.k,
              p.operands.k_cache,
              p.operands.k_row,
              p.operands.k_head,
              p.operands.k_page,
              p.operands.k_token,
              p.operands.k_cache_head,
              p.operands.k_scale_device ? p.operands.k_scale_device : p.operands.k_scales,
              SCALE_PER_HEAD,
              HEAD_DIM};
    call.v = {p.operands.v,
              p.operands.v_cache,
              p.operands.v_row,
              p.operands.v_head,
              p.operands.v_page,
              p.operands.v_token,
              p.operands.v_cache_head,
              p.operands.v_scale_device ? p.operands.v_scale_device : p.operands.v_scales,
              SCALE_PER_HEAD,
              V_DIM};
    call.slots = p.batch.out_cache_loc;
    call.page_size = PAGE_SIZE;
    call.from_dtype = Q_DTYPE;
    call.to_dtype = KV_DTYPE;
    save_kv_rows(&call, first + blockIdx.x, end, gridDim.x, (int)blockIdx.y, (int)threadIdx.x,
                 (int)blockDim.x);
}
