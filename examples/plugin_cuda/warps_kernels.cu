/* SPDX-License-Identifier: Apache-2.0
 *
 * warps_kernels.cu: attention, a query row of a head at a time.
 *
 *   out = sum over the keys j seen of 2^(logit_j - top) v_j / sum of 2^(logit_j - top)
 *
 * A block of WARPS_PARTS warps does one row of one query head. The keys that it sees are shared out
 * to the warps in equal runs; the lanes of a warp hold dimensions lane, lane + 32 ... of the query
 * and of the sums, read a key together, add up the product, and go on to the next (online softmax).
 * Then the parts, in shared memory, are merged by log-sum-exp, the sink with them. All sums are
 * fp32, probabilities are never rounded. Any head dimension will do, and any architecture; it is
 * as slow as that sounds.
 *
 * What it takes from plugins/common/cuda: which sequence a row belongs to (work.cuh), which keys it
 * sees (mask.cuh), where they lie (index.cuh), softmax.cuh, merge_states.cuh, save_kv.cuh. It is C
 * as well: tests run it on a fake driver, where a warp is one lane.
 */
#include "warps.h"

#include "plugins/common/cuda/mask.cuh"
#include "plugins/common/cuda/merge_states.cuh"
#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/common/cuda/softmax.cuh"
#include "plugins/common/cuda/work.cuh"

#define PER_LANE (WARPS_MAX_DIM / SOFTMAX_LANES) /* dimensions that a lane may have to hold */

/* ---- A row ----------------------------------------------------------------------------------- */

typedef struct warps_row {
    index_sequence q;
    int row, head, kv_head;
    int lo, hi; /* keys seen; none in padding */
} warps_row;

/* Row x of the grid, or 0 if the batch has fewer. Rows of no sequence are padding: they see
 * nothing. */
PORTABLE int find_row(const warps_call *c, int x, int head, warps_row *r)
{
    const call_batch *b = &c->batch;
    mask_rule rule = {c->window_left, b->window_right, c->chunk, 0, 0};
    r->row = x + (b->q_indptr ? index_int(b->q_indptr, 0) : 0);
    r->head = head;
    r->kv_head = head / c->ratio;
    r->lo = r->hi = 0;
    if (x >= index_num_tokens(b))
        return 0;
    int s = work_find_row(b->q_indptr, index_num_seqs(b), r->row);
    if (s < 0)
        return 1;
    index_find_sequence(b, c->operands.k != 0, s, &r->q);
    int t = r->row - r->q.first_row;
    mask_outline(&rule, b, &r->q, t, t, &r->lo, &r->hi);
    return 1;
}

/* ---- A part of its keys ---------------------------------------------------------------------- */

/* What a lane of a part's warp holds. */
typedef struct warps_lane {
    float q[PER_LANE];
    float sums[PER_LANE];
    softmax_row row;
} warps_lane;

PORTABLE void begin_lane(const warps_call *c, const warps_row *r, int lane, warps_lane *w)
{
    const char *q =
        (const char *)c->operands.q + r->row * c->operands.q_row + r->head * c->operands.q_head;
    w->row = softmax_begin();
    for (int i = 0; i < PER_LANE; i++) {
        int d = i * SOFTMAX_LANES + lane;
        w->q[i] = d < c->dim ? element_load(c->dtype, q, d) : 0.0f;
        w->sums[i] = 0.0f;
    }
}

/* One more key, by all lanes of the warp. */
PORTABLE void take_key(const warps_call *c, const warps_row *r, int j, int lane, warps_lane *w)
{
    const int *entry = index_entry(&c->batch, &r->q, c->page_size, j);
    index_place at = index_find_key(&c->operands, &c->batch, &r->q, c->page_size, r->kv_head, j,
                                    entry ? *PORTABLE_AT(entry) : 0);
    float product = 0.0f, shrink;
    for (int i = 0; i < PER_LANE && i * SOFTMAX_LANES < c->dim; i++)
        if (i * SOFTMAX_LANES + lane < c->dim)
            product += w->q[i] * element_load(c->dtype, at.k, i * SOFTMAX_LANES + lane);
    product = softmax_warp_sum(product) * softmax_factor(c->sm_scale, c->logit_cap != 0);
    float logit = softmax_logit(product, c->logit_cap, 0, 0.0f, 0.0f);
    float weight = softmax_take(&w->row, logit, &shrink);
    for (int i = 0; i < PER_LANE && i * SOFTMAX_LANES < c->v_dim; i++)
        if (i * SOFTMAX_LANES + lane < c->v_dim)
            w->sums[i] = w->sums[i] * shrink +
                         weight * element_load(c->dtype, at.v, i * SOFTMAX_LANES + lane);
}

/* Part `part` of the row's keys into its place in `shared`: [parts, v_dim] outputs, [parts] LSE. */
PORTABLE void attend_part(const warps_call *c, const warps_row *r, int part, int lane,
                          float *shared)
{
    warps_lane w;
    int each = (r->hi - r->lo + WARPS_PARTS - 1) / WARPS_PARTS;
    int begin = r->lo + part * each, end = int_min(begin + each, r->hi);
    begin_lane(c, r, lane, &w);
    for (int j = begin; j < end; j++)
        take_key(c, r, j, lane, &w);
    float factor = softmax_end(&w.row);
    for (int i = 0; i < PER_LANE && i * SOFTMAX_LANES < c->v_dim; i++)
        if (i * SOFTMAX_LANES + lane < c->v_dim)
            shared[part * c->v_dim + i * SOFTMAX_LANES + lane] = w.sums[i] * factor;
    if (lane == 0)
        shared[WARPS_PARTS * c->v_dim + part] = softmax_lse(&w.row);
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* The parts and the sink into the output, by thread `thread` of `threads`. */
PORTABLE void merge_parts(const warps_call *c, const warps_row *r, const float *shared, int thread,
                          int threads)
{
    const call_operands *o = &c->operands;
    float sink = o->sinks ? *PORTABLE_AT(o->sinks + r->head) : MERGE_EMPTY;
    merge_states states = {shared,
                           shared + WARPS_PARTS * c->v_dim,
                           c->v_dim * 4, /* of a state; one row, one head */
                           0,
                           0,
                           4,
                           0,
                           0,
                           WARPS_PARTS,
                           ELEMENT_F32};
    merge_result result = {o->out,     o->lse,      o->out_row,   o->out_head,
                           o->lse_row, o->lse_head, c->out_dtype, c->v_dim};
    merge_many(&states, sink, &result, r->row, r->head, thread, threads);
}

/* New rows of the batch: a sequence's rows of k, or its queries'. */
PORTABLE void save_rows(const warps_call *c, int x, int grid, int head, int thread, int threads)
{
    const call_operands *o = &c->operands;
    const int *indptr = c->batch.new_indptr ? c->batch.new_indptr : c->batch.q_indptr;
    i64 first = indptr ? index_int(indptr, 0) : 0, end = index_num_seqs(&c->batch);
    if (indptr)
        end = index_int(indptr, end);
    save_kv_call call = {{o->k, o->k_cache, o->k_row, o->k_head, o->k_page, o->k_token,
                          o->k_cache_head, 0, 0, c->dim},
                         {o->v, o->v_cache, o->v_row, o->v_head, o->v_page, o->v_token,
                          o->v_cache_head, 0, 0, c->v_dim},
                         c->batch.out_cache_loc,
                         c->page_size,
                         c->dtype,
                         c->dtype};
    save_kv_rows(&call, first + x, end, grid, head, thread, threads);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

#ifdef __CUDACC__

extern "C" __global__ void __launch_bounds__(WARPS_PARTS * 32)
    warps_attend(const __grid_constant__ warps_call c)
{
    extern __shared__ float shared[];
    int thread = (int)threadIdx.x;
    warps_row r;
    if (!find_row(&c, (int)blockIdx.x, (int)blockIdx.y, &r))
        return;
    attend_part(&c, &r, thread / 32, thread % 32, shared);
    __syncthreads();
    merge_parts(&c, &r, shared, thread, WARPS_PARTS * 32);
}

extern "C" __global__ void __launch_bounds__(WARPS_SAVE_THREADS)
    warps_save(const __grid_constant__ warps_call c)
{
    save_rows(&c, (int)blockIdx.x, (int)gridDim.x, (int)blockIdx.y, (int)threadIdx.x,
              WARPS_SAVE_THREADS);
}

#endif
