/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_fixture.h: a batch of latent attention made from plain arrays, on top of reference_fixture.h,
 * whose index forms and pages it uses. Unused rows of the latent cache are NaN.
 */
#ifndef MLA_FIXTURE_H
#define MLA_FIXTURE_H

#include "tests/host/reference/reference_fixture.h"

/* What a sequence brings, as doubles; NULL = not wanted. */
typedef struct mla_sequence {
    const double *q_nope; /* absorbed: [queries, heads, kv_lora_rank] */
    const double *q_pe;   /* [queries, heads, rope_dim] */
    const double *c_kv;   /* [kv_len, kv_lora_rank] */
    const double *k_pe;   /* [kv_len, rope_dim] */
    const double *q;      /* expanded: [queries, heads, head_dim] */
    const double *k;      /* [kv_len, heads, head_dim] */
    const double *v;      /* [kv_len, heads, v_head_dim] */
} mla_sequence;

/* Causal, fp32 throughout, mla.latent/1, EXTEND with SAVE_KV; `dims` are borrowed. */
static inline void mla_init(fixture *f, int32_t heads, const attn_mla_dims *dims, int32_t v_dim)
{
    fixture_init(f, heads, heads, dims->nope_dim + dims->rope_dim, v_dim);
    f->group.kind = ATTN_KIND_MLA;
    f->group.mla = dims;
    f->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT;
}

/* fixture_add() without arrays. */
static inline fixture_sequence *mla_add(fixture *f, int32_t num_queries, int32_t kv_len)
{
    static const double zeros[FIXTURE_KEYS];
    return fixture_add(f, num_queries, kv_len, zeros, zeros, zeros);
}

static inline int mla_is_packed(const fixture *f)
{
    return strcmp(f->problem.kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0;
}

static inline void mla_retensor(fixture *f, uint32_t role, attn_dtype dtype, uint32_t ndim,
                                const int64_t *shape)
{
    free(f->tensors[role].data);
    fixture_tensor(f, role, dtype, ndim, shape);
}

/* The row of a slot in the latent cache. */
static inline char *mla_slot(const fixture *f, const attn_tensor *cache, int64_t slot)
{
    return fixture_at(cache, slot / f->problem.page_size, slot % f->problem.page_size, 0);
}

static inline void mla_make_tensors(fixture *f, int absorbed)
{
    const attn_mla_dims *mla = f->group.mla;
    int64_t rows = f->tensors[ATTN_ROLE_Q].shape[0], heads = f->group.num_q_heads;
    int64_t new_rows = f->new_indptr[f->batch.num_seqs], pages = FIXTURE_PAGES;
    if (pages > 2 + 7 * (int64_t)f->next_page)
        pages = 2 + 7 * (int64_t)f->next_page;
    int64_t lora = mla->kv_lora_rank, rope = mla->rope_dim;
    int64_t out_dim = absorbed ? lora : f->group.v_head_dim, page = f->problem.page_size;
    int64_t width = mla_is_packed(f) ? lora + lora / 32 + 2 * rope : lora + rope;
    attn_dtype dtype = f->problem.q_dtype;
    mla_retensor(f, ATTN_ROLE_Q, dtype, 3, (int64_t[]){rows, heads, f->group.head_dim});
    mla_retensor(f, ATTN_ROLE_K, dtype, 3, (int64_t[]){new_rows, heads, f->group.head_dim});
    mla_retensor(f, ATTN_ROLE_V, dtype, 3, (int64_t[]){new_rows, heads, f->group.v_head_dim});
    mla_retensor(f, ATTN_ROLE_OUT, f->problem.out_dtype, 3, (int64_t[]){rows, heads, out_dim});
    fixture_tensor(f, ATTN_ROLE_Q_NOPE, dtype, 3, (int64_t[]){rows, heads, lora});
    fixture_tensor(f, ATTN_ROLE_Q_PE, dtype, 3, (int64_t[]){rows, heads, rope});
    fixture_tensor(f, ATTN_ROLE_C_KV, dtype, 2, (int64_t[]){new_rows, lora});
    fixture_tensor(f, ATTN_ROLE_K_PE, dtype, 2, (int64_t[]){new_rows, rope});
    attn_tensor *cache =
        fixture_tensor(f, ATTN_ROLE_LATENT_CACHE, mla_is_packed(f) ? ATTN_U8 : f->problem.kv_dtype,
                       3, (int64_t[]){pages, page, width});
    memset(cache->data, 0xff, (size_t)(pages * cache->strides[0]) * attn_dtype_size(cache->dtype));
    f->operands[ATTN_ROLE_K_CACHE] = f->operands[ATTN_ROLE_V_CACHE] = NULL;
    if (absorbed)
        f->operands[ATTN_ROLE_Q] = f->operands[ATTN_ROLE_K] = f->operands[ATTN_ROLE_V] = NULL;
    else
        f->operands[ATTN_ROLE_Q_NOPE] = f->operands[ATTN_ROLE_Q_PE] = NULL;
    if (new_rows == 0)
        f->operands[ATTN_ROLE_C_KV] = f->operands[ATTN_ROLE_K_PE] = NULL;
}

static inline void mla_copy(fixture *f, uint32_t role, int64_t row, int64_t width,
                            const double *from, int64_t source)
{
    if (from && f->operands[role])
        fixture_copy(f, role, row, from + source * width);
}

/* A row as the cache holds it in mla.latent/1. */
static inline void mla_put(fixture *f, int64_t slot, const double *c_kv, const double *k_pe)
{
    const attn_mla_dims *mla = f->group.mla;
    const attn_tensor *cache = &f->tensors[ATTN_ROLE_LATENT_CACHE];
    float scale = fixture_scale(f, ATTN_ROLE_LATENT_CACHE, 0);
    for (int32_t d = 0; d < mla->kv_lora_rank + mla->rope_dim; d++)
        dtype_quantise(cache->dtype, mla_slot(f, cache, slot), d,
                       (float)(d < mla->kv_lora_rank ? c_kv[d] : k_pe[d - mla->kv_lora_rank]),
                       scale);
}

static inline void mla_fill(fixture *f, int32_t s, const mla_sequence *from)
{
    const fixture_sequence *sequence = &f->sequences[s];
    const attn_mla_dims *mla = f->group.mla;
    int64_t heads = f->group.num_q_heads, first_new = sequence->kv_len - sequence->num_new;
    for (int64_t t = 0; t < sequence->num_queries; t++) {
        int64_t row = f->q_indptr[s] + t;
        mla_copy(f, ATTN_ROLE_Q, row, heads * f->group.head_dim, from->q, t);
        mla_copy(f, ATTN_ROLE_Q_NOPE, row, heads * mla->kv_lora_rank, from->q_nope, t);
        mla_copy(f, ATTN_ROLE_Q_PE, row, heads * mla->rope_dim, from->q_pe, t);
    }
    for (int64_t j = 0; j < sequence->kv_len; j++) {
        int64_t row = f->new_indptr[s] + j - first_new;
        int64_t slot = f->req_to_token[f->requests[s]][j];
        if (j < first_new && from->c_kv && !mla_is_packed(f))
            mla_put(f, slot, from->c_kv + j * mla->kv_lora_rank, from->k_pe + j * mla->rope_dim);
        if (j < first_new)
            continue;
        f->out_cache_loc[row] = slot;
        mla_copy(f, ATTN_ROLE_C_KV, row, mla->kv_lora_rank, from->c_kv, j);
        mla_copy(f, ATTN_ROLE_K_PE, row, mla->rope_dim, from->k_pe, j);
        mla_copy(f, ATTN_ROLE_K, row, heads * f->group.head_dim, from->k, j);
        mla_copy(f, ATTN_ROLE_V, row, heads * f->group.v_head_dim, from->v, j);
    }
}

/* fixture_build() in the form of the batch's mode. */
static inline void mla_build(fixture *f, const mla_sequence *sequences)
{
    attn_layer_group group = f->group;
    const char *layout = f->problem.kv_layout;
    attn_dtype kv_dtype = f->problem.kv_dtype;
    int absorbed = !(f->problem.mla_expanded & ATTN_MODE_BIT(f->batch.mode));
    /* What it makes for keys and values is of no use here, so let it be small. */
    f->group.num_q_heads = f->group.num_kv_heads = f->group.head_dim = f->group.v_head_dim = 1;
    f->problem.kv_layout = ATTN_LAYOUT_KV_NHD;
    f->problem.kv_dtype = ATTN_F32;
    fixture_build(f);
    f->group = group;
    f->problem.kv_layout = layout;
    f->problem.kv_dtype = kv_dtype;
    mla_retensor(f, ATTN_ROLE_LSE, ATTN_F32, 2,
                 (int64_t[]){f->tensors[ATTN_ROLE_Q].shape[0], group.num_q_heads});
    mla_retensor(f, ATTN_ROLE_SINKS, ATTN_F32, 1, (int64_t[]){group.num_q_heads});
    memcpy(f->tensors[ATTN_ROLE_SINKS].data, f->sinks, (size_t)group.num_q_heads * sizeof(float));
    mla_make_tensors(f, absorbed);
    for (int32_t s = 0; s < f->batch.num_seqs; s++)
        mla_fill(f, s, &sequences[s]);
}

#endif /* MLA_FIXTURE_H */
