/* SPDX-License-Identifier: Apache-2.0
 *
 * reference_fixture.h: a batch of the ABI made from plain arrays, for tests of the oracle.
 *
 * Each sequence brings its queries, keys and values as doubles, [tokens, heads, dim]. They are put
 * into shuffled pages (keys before the last num_new) and into k and v (the last num_new). All three
 * index forms are filled in; unused page entries are NaN, unused indices huge.
 */
#ifndef REFERENCE_FIXTURE_H
#define REFERENCE_FIXTURE_H

#include "attn_plugin.h"
#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/reference/reference.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIXTURE_SEQS = 8, FIXTURE_KEYS = 200, FIXTURE_ROWS = 600, FIXTURE_PAGES = 600 };

typedef struct fixture_sequence {
    int32_t num_queries;
    int32_t kv_len;
    int32_t num_new; /* of the keys */
    int32_t prefix_len;
    const double *q; /* borrowed until fixture_build() */
    const double *k;
    const double *v;
} fixture_sequence;

typedef struct fixture {
    /* Set before fixture_build(). */
    attn_layer layer;
    attn_layer_group group;
    attn_problem problem;
    attn_batch batch;
    attn_kv_batch kv;
    attn_forward_args args;
    attn_scale scales[ATTN_ROLE_COUNT];
    float sinks[32], slopes[32];
    fixture_sequence sequences[FIXTURE_SEQS];
    int32_t row_offset; /* q_indptr[0] */
    int32_t with_new_indptr;
    /* Made by it. */
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    const attn_scale *scale_pointers[ATTN_ROLE_COUNT];
    int32_t seq_lens[FIXTURE_SEQS], prefix_lens[FIXTURE_SEQS], requests[FIXTURE_SEQS];
    int32_t kv_lens[FIXTURE_SEQS];
    int32_t q_indptr[FIXTURE_SEQS + 1], new_indptr[FIXTURE_SEQS + 1];
    int32_t req_to_token[FIXTURE_SEQS + 1][FIXTURE_KEYS];
    int32_t block_table[FIXTURE_SEQS][FIXTURE_KEYS];
    int32_t kv_indptr[FIXTURE_SEQS + 1], kv_indices[FIXTURE_SEQS * FIXTURE_KEYS];
    int32_t last_page_len[FIXTURE_SEQS];
    int64_t out_cache_loc[FIXTURE_ROWS];
    int32_t next_page;
    host_error error;
} fixture;

/* A small fixed-seed generator of integers in [-range, range]. */
static inline double fixture_random(uint64_t *state, int range)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)((int)(*state >> 33) % (2 * range + 1) - range);
}

/* Softmax, causal, fp32 throughout, NHD, pages of 4, EXTEND with SAVE_KV. */
static inline void fixture_init(fixture *f, int32_t heads, int32_t kv_heads, int32_t dim,
                                int32_t v_dim)
{
    memset(f, 0, sizeof *f);
    f->layer = (attn_layer){.struct_size = sizeof f->layer, .layer_id = 3};
    f->group = (attn_layer_group){.struct_size = sizeof f->group,
                                  .kind = ATTN_KIND_SOFTMAX,
                                  .num_q_heads = heads,
                                  .num_kv_heads = kv_heads,
                                  .head_dim = dim,
                                  .v_head_dim = v_dim,
                                  .window_left = -1,
                                  .sm_scale = 0.25f,
                                  .num_layers = 1,
                                  .layers = &f->layer};
    f->problem = (attn_problem){.struct_size = sizeof f->problem,
                                .group = &f->group,
                                .kv_layout = ATTN_LAYOUT_KV_NHD,
                                .q_dtype = ATTN_F32,
                                .kv_dtype = ATTN_F32,
                                .out_dtype = ATTN_F32,
                                .page_size = 4,
                                .tp_size = 1};
    f->batch = (attn_batch){.struct_size = sizeof f->batch, .mode = ATTN_MODE_EXTEND};
    f->kv = (attn_kv_batch){.struct_size = sizeof f->kv, .index_forms = 7};
    f->args.flags = ATTN_FORWARD_SAVE_KV;
    host_error_init(&f->error);
}

static inline fixture_sequence *fixture_add(fixture *f, int32_t num_queries, int32_t kv_len,
                                            const double *q, const double *k, const double *v)
{
    ck_assert_int_lt(f->batch.num_seqs, FIXTURE_SEQS);
    ck_assert_int_le(kv_len, FIXTURE_KEYS);
    fixture_sequence *sequence = &f->sequences[f->batch.num_seqs++];
    *sequence = (fixture_sequence){num_queries, kv_len, num_queries, kv_len - num_queries, q, k, v};
    return sequence;
}

/* A contiguous tensor of zeros; its memory is released by fixture_finish(). */
static inline attn_tensor *fixture_tensor(fixture *f, uint32_t role, attn_dtype dtype,
                                          uint32_t ndim, const int64_t *shape)
{
    attn_tensor *tensor = &f->tensors[role];
    int64_t count = 1;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor,
                            .device_type = ATTN_DEVICE_CPU,
                            .dtype = dtype,
                            .ndim = ndim,
                            .alignment = 1};
    for (uint32_t d = ndim; d-- > 0;) {
        tensor->shape[d] = shape[d];
        tensor->strides[d] = count;
        count *= shape[d];
    }
    tensor->data = calloc((size_t)count + 1, attn_dtype_size(dtype));
    f->operands[role] = tensor;
    return tensor;
}

static inline char *fixture_at(const attn_tensor *tensor, int64_t i0, int64_t i1, int64_t i2)
{
    int64_t offset = i0 * tensor->strides[0] + i1 * tensor->strides[1];
    if (tensor->ndim == 4)
        offset += i2 * tensor->strides[2];
    return (char *)tensor->data + tensor->byte_offset + offset * attn_dtype_size(tensor->dtype);
}

/* The vector of a slot and head in a cache. */
static inline char *fixture_slot(const fixture *f, const attn_tensor *cache, int64_t slot,
                                 int64_t head)
{
    int64_t page = slot / f->problem.page_size, offset = slot % f->problem.page_size;
    if (strcmp(f->problem.kv_layout, ATTN_LAYOUT_KV_HND) == 0)
        return fixture_at(cache, page, head, offset);
    return fixture_at(cache, page, offset, head);
}

static inline float fixture_scale(const fixture *f, uint32_t role, int64_t head)
{
    const attn_scale *scale = &f->scales[role];
    return scale->count == 0 ? 1 : scale->host[scale->count > 1 ? head : 0];
}

static inline void fixture_put(const fixture *f, uint32_t role, int64_t slot, const double *from)
{
    const attn_tensor *cache = &f->tensors[role];
    for (int64_t h = 0; h < f->group.num_kv_heads; h++)
        for (int64_t d = 0; d < cache->shape[3]; d++)
            dtype_quantise(cache->dtype, fixture_slot(f, cache, slot, h), d,
                           (float)from[h * cache->shape[3] + d], fixture_scale(f, role, h));
}

static inline void fixture_make_tensors(fixture *f, int32_t rows, int32_t new_rows)
{
    int64_t heads = f->group.num_q_heads, kv_heads = f->group.num_kv_heads;
    int64_t dim = f->group.head_dim, v_dim = f->group.v_head_dim, page = f->problem.page_size;
    int hnd = strcmp(f->problem.kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int64_t first = hnd ? kv_heads : page, second = hnd ? page : kv_heads;
    fixture_tensor(f, ATTN_ROLE_Q, f->problem.q_dtype, 3, (int64_t[]){rows, heads, dim});
    if (new_rows > 0) {
        fixture_tensor(f, ATTN_ROLE_K, f->problem.q_dtype, 3, (int64_t[]){new_rows, kv_heads, dim});
        fixture_tensor(f, ATTN_ROLE_V, f->problem.q_dtype, 3,
                       (int64_t[]){new_rows, kv_heads, v_dim});
    }
    fixture_tensor(f, ATTN_ROLE_OUT, f->problem.out_dtype, 3, (int64_t[]){rows, heads, v_dim});
    fixture_tensor(f, ATTN_ROLE_LSE, ATTN_F32, 2, (int64_t[]){rows, heads});
    fixture_tensor(f, ATTN_ROLE_K_CACHE, f->problem.kv_dtype, 4,
                   (int64_t[]){FIXTURE_PAGES, first, second, dim});
    fixture_tensor(f, ATTN_ROLE_V_CACHE, f->problem.kv_dtype, 4,
                   (int64_t[]){FIXTURE_PAGES, first, second, v_dim});
    for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++) {
        attn_tensor *cache = &f->tensors[role];
        for (int64_t n = page * cache->strides[hnd ? 2 : 1]; n < FIXTURE_PAGES * cache->strides[0];
             n++)
            dtype_store(cache->dtype, cache->data, n, (double)NAN);
    }
    attn_tensor *sinks = fixture_tensor(f, ATTN_ROLE_SINKS, ATTN_F32, 1, &heads);
    memcpy(sinks->data, f->sinks, (size_t)heads * sizeof(float));
    attn_tensor *slopes = fixture_tensor(f, ATTN_ROLE_ALIBI_SLOPES, ATTN_F32, 1, &heads);
    memcpy(slopes->data, f->slopes, (size_t)heads * sizeof(float));
}

/* Pages of sequence s, in an order that is neither sorted nor contiguous; page 0 is not used. */
static inline void fixture_map(fixture *f, int32_t s)
{
    int32_t page_size = f->problem.page_size, kv_len = f->sequences[s].kv_len;
    int32_t pages = (kv_len + page_size - 1) / page_size;
    f->requests[s] = FIXTURE_SEQS - s;
    for (int32_t p = 0; p < pages; p++) {
        int32_t page = 1 + (f->next_page++ * 7) % (FIXTURE_PAGES - 1);
        f->block_table[s][p] = page;
        f->kv_indices[f->kv_indptr[s] + p] = page;
        for (int32_t o = 0; o < page_size && p * page_size + o < kv_len; o++)
            f->req_to_token[f->requests[s]][p * page_size + o] = page * page_size + o;
    }
    f->kv_indptr[s + 1] = f->kv_indptr[s] + pages;
    f->last_page_len[s] = pages ? kv_len - (pages - 1) * page_size : 0;
}

static inline void fixture_copy(fixture *f, uint32_t role, int64_t row, const double *from)
{
    attn_tensor *tensor = &f->tensors[role];
    dtype_from_double(tensor->dtype, from, tensor->strides[0], fixture_at(tensor, row, 0, 0));
}

static inline void fixture_fill(fixture *f, int32_t s)
{
    fixture_sequence *sequence = &f->sequences[s];
    int64_t k_size = (int64_t)f->group.num_kv_heads * f->group.head_dim;
    int64_t v_size = (int64_t)f->group.num_kv_heads * f->group.v_head_dim;
    int64_t q_size = (int64_t)f->group.num_q_heads * f->group.head_dim;
    int32_t first_new = sequence->kv_len - sequence->num_new;
    for (int32_t t = 0; t < sequence->num_queries; t++)
        fixture_copy(f, ATTN_ROLE_Q, f->q_indptr[s] + t, sequence->q + t * q_size);
    for (int32_t j = 0; j < sequence->kv_len; j++) {
        int64_t slot = f->req_to_token[f->requests[s]][j], row = f->new_indptr[s] + j - first_new;
        if (j >= first_new) {
            fixture_copy(f, ATTN_ROLE_K, row, sequence->k + j * k_size);
            fixture_copy(f, ATTN_ROLE_V, row, sequence->v + j * v_size);
            f->out_cache_loc[row] = slot;
        } else {
            fixture_put(f, ATTN_ROLE_K_CACHE, slot, sequence->k + j * k_size);
            fixture_put(f, ATTN_ROLE_V_CACHE, slot, sequence->v + j * v_size);
        }
    }
}

static inline void fixture_set_arrays(fixture *f)
{
    attn_batch *batch = &f->batch;
    batch->seq_lens.device = f->seq_lens;
    batch->prefix_lens.host = f->prefix_lens; /* one of the two places is enough */
    if (batch->mode != ATTN_MODE_DECODE)
        batch->q_indptr.device = f->q_indptr;
    batch->req_pool_indices.device = f->requests;
    batch->kv_groups = &f->kv;
    batch->num_kv_groups = 1;
    f->kv.page_size = f->problem.page_size;
    f->kv.req_to_token_stride = f->kv.block_table_stride = FIXTURE_KEYS;
    f->kv.kv_lens.device = f->kv_lens;
    f->kv.out_cache_loc.device = f->out_cache_loc;
    if (f->with_new_indptr)
        f->kv.kv_new_indptr.device = f->new_indptr;
    f->kv.req_to_token.device = f->req_to_token[0];
    f->kv.block_table.device = f->block_table[0];
    f->kv.kv_indptr.device = f->kv_indptr;
    f->kv.kv_indices.device = f->kv_indices;
    f->kv.last_page_len.device = f->last_page_len;
}

static inline void fixture_build(fixture *f)
{
    int32_t seqs = f->batch.num_seqs;
    memset(f->req_to_token[1], 0x7f, sizeof f->req_to_token - sizeof f->req_to_token[0]);
    memset(f->block_table, 0x7f, sizeof f->block_table);
    memset(f->kv_indices, 0x7f, sizeof f->kv_indices);
    f->q_indptr[0] = f->row_offset;
    f->new_indptr[0] = f->with_new_indptr ? 0 : f->row_offset;
    for (int32_t s = 0; s < seqs; s++) {
        fixture_sequence *sequence = &f->sequences[s];
        f->q_indptr[s + 1] = f->q_indptr[s] + sequence->num_queries;
        f->new_indptr[s + 1] = f->new_indptr[s] + sequence->num_new;
        f->prefix_lens[s] = sequence->prefix_len;
        f->seq_lens[s] = sequence->prefix_len + sequence->num_queries;
        f->kv_lens[s] = sequence->kv_len;
        fixture_map(f, s);
    }
    int32_t rows = f->q_indptr[seqs], new_rows = f->new_indptr[seqs];
    ck_assert_int_le(new_rows, FIXTURE_ROWS);
    fixture_make_tensors(f, rows, new_rows > f->new_indptr[0] ? new_rows : 0);
    for (int32_t s = 0; s < seqs; s++)
        fixture_fill(f, s);
    fixture_set_arrays(f);
    f->batch.num_tokens = f->batch.num_real_tokens = rows - f->row_offset;
    f->batch.num_real_seqs = seqs;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        f->scale_pointers[role] = f->scales[role].count ? &f->scales[role] : NULL;
    f->args.struct_size = sizeof f->args;
    f->args.num_operands = f->args.num_scales = ATTN_ROLE_COUNT;
    f->args.operands = f->operands;
    f->args.scales = f->scale_pointers;
}

static inline void fixture_finish(fixture *f)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        free(f->tensors[role].data);
}

/* reference_forward() that must succeed. */
static inline reference_result fixture_forward(fixture *f, const reference_options *options)
{
    reference_result result;
    attn_status status = reference_forward(&f->problem, &f->batch, f->layer.layer_id, &f->args,
                                           options, &result, &f->error.base);
    ck_assert_msg(status == ATTN_OK, "%s: %s", host_status_name(status),
                  host_error_text(&f->error));
    return result;
}

/* reference_forward() that must fail, with `word` in its message. */
static inline void fixture_refuse(fixture *f, attn_status expected, const char *word)
{
    reference_result result;
    memset(&result, 0x5a, sizeof result);
    reference_result untouched = result;
    attn_status status = reference_forward(&f->problem, &f->batch, f->layer.layer_id, &f->args,
                                           NULL, &result, &f->error.base);
    ck_assert_int_eq(status, expected);
    ck_assert_msg(strstr(host_error_text(&f->error), word) != NULL, "\"%s\" does not name %s",
                  host_error_text(&f->error), word);
    ck_assert_mem_eq(&result, &untouched, sizeof result);
}

/* A result that ends with its block. */
#define RESULT(name) reference_result name __attribute__((cleanup(reference_result_finish)))

#endif /* REFERENCE_FIXTURE_H */
