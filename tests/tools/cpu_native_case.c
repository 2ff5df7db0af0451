/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_native_case.c: random forwards for cpu_native's tests, and their truth.
 */
#include "tests/tools/cpu_native_case.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/reference/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RED = 0xA5, HUGE_INDEX = 0x7ffffff0, STRIDE_SLACK = 8 };

/* ---- Draws ----------------------------------------------------------------------------------- */

int32_t case_draw(attn_case *c, int32_t count)
{
    return (int32_t)mix_below((uint32_t)(mix_stream(c->seed, c->draws++) >> 32), (uint64_t)count);
}

static float draw_real(attn_case *c)
{
    return (float)case_draw(c, 20001) / 10000.0f - 1;
}

#define PICK(c, ...)                                                                               \
    ((const int32_t[]){                                                                            \
        __VA_ARGS__})[case_draw(c, (int32_t)(sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t)))]

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        abort();
    return memory;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* A tensor whose outermost-but-one stride has slack, so that a stride that is ignored shows. */
static void make_tensor(case_tensor *t, attn_dtype dtype, uint32_t ndim, const int64_t *shape,
                        int64_t slack)
{
    attn_tensor *tensor = &t->tensor;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor,
                            .device_type = ATTN_DEVICE_CPU,
                            .dtype = dtype,
                            .ndim = ndim,
                            .alignment = attn_dtype_size(dtype)};
    int64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        tensor->shape[d] = shape[d];
        tensor->strides[d] = stride;
        stride = stride * shape[d] + (d == ndim - 1 ? slack : 0);
    }
    tensor->byte_offset = 64;
    t->bytes = (uint64_t)stride * attn_dtype_size(dtype) + 128;
    t->memory = zeroed(1, t->bytes);
    tensor->data = t->memory;
}

static char *vector_at(const case_tensor *t, int64_t i, int64_t j, int64_t k)
{
    const int64_t *s = t->tensor.strides;
    return t->memory + t->tensor.byte_offset +
           (i * s[0] + j * s[1] + k * s[2]) * (int64_t)attn_dtype_size(t->tensor.dtype);
}

static char *cache_vector(const attn_case *c, const case_tensor *cache, int64_t slot, int32_t head)
{
    int hnd = strcmp(c->problem.kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int64_t page = slot / c->problem.page_size, offset = slot % c->problem.page_size;
    return vector_at(cache, page, hnd ? head : offset, hnd ? offset : head);
}

static void fill(case_tensor *t, double value)
{
    int64_t count = (int64_t)(t->bytes - 128) / attn_dtype_size(t->tensor.dtype);
    for (int64_t i = 0; i < count; i++)
        dtype_store(t->tensor.dtype, t->memory + 64, i, value);
}

/* ---- The layer group ------------------------------------------------------------------------- */

static attn_dtype draw_kv_dtype(attn_case *c, attn_dtype q_dtype)
{
    int kind = case_draw(c, 4);
    if (c->group.attn_type == ATTN_TYPE_ENCODER_ONLY || kind < 2)
        return q_dtype;
    return kind == 2 ? ATTN_FP8_E4M3 : ATTN_FP8_E5M2;
}

static void make_windows(attn_case *c, int32_t mask_kind)
{
    attn_layer_group *group = &c->group;
    group->window_left = group->window_right = -1;
    if (group->attn_type == ATTN_TYPE_CROSS)
        return;
    if (group->attn_type == ATTN_TYPE_DECODER || case_draw(c, 3) == 0)
        group->window_right = PICK(c, 0, 0, 0, 3);
    if (case_draw(c, 2))
        group->window_left = PICK(c, 0, 1, 15, 16, 63, 64, 100);
    if (case_draw(c, 4) == 0)
        group->attention_chunk = PICK(c, 1, 7, 16, 64, 65);
    if (mask_kind == ATTN_MASK_NONE && case_draw(c, 2))
        group->window_left = -1, group->attention_chunk = 0;
    if (case_draw(c, 3) == 0)
        group->flags |= ATTN_GROUP_HAS_ALIBI;
}

static void make_group(attn_case *c, const case_wishes *wishes, int32_t dim, int32_t ratio,
                       int32_t mask_kind)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    attn_layer_group *group = &c->group;
    c->layer = (attn_layer){.struct_size = sizeof c->layer, .layer_id = case_draw(c, 100)};
    *group = (attn_layer_group){.struct_size = sizeof *group, .num_layers = 1, .layers = &c->layer};
    group->attn_type =
        wishes->attn_type >= 0 ? (uint32_t)wishes->attn_type : (uint32_t)PICK(c, 0, 0, 0, 1, 2);
    group->num_kv_heads = PICK(c, 1, 1, 2, 3);
    group->num_q_heads = group->num_kv_heads * PICK(c, 1, 1, 2, 4, 7, 13);
    group->head_dim = PICK(c, 1, 3, 8, 17, 64, 64, 80, 128);
    group->v_head_dim = case_draw(c, 3) ? group->head_dim : PICK(c, 1, 5, 16, 33, 64, 96);
    if (case_draw(c, 40) == 0)
        group->head_dim = 512, group->v_head_dim = 512;
    if (dim > 0)
        group->v_head_dim = group->v_head_dim == group->head_dim ? dim : group->v_head_dim,
        group->head_dim = dim;
    if (ratio > 0)
        group->num_q_heads = group->num_kv_heads * ratio;
    group->sm_scale = case_draw(c, 4) ? 1 / sqrtf((float)group->head_dim) : 0.7f;
    if (case_draw(c, 4) == 0)
        group->logit_cap = c->growing ? 200.0f : 5.0f;
    if (case_draw(c, 3) == 0)
        group->flags |= ATTN_GROUP_HAS_SINKS;
    make_windows(c, mask_kind);

    attn_problem *problem = &c->problem;
    problem->q_dtype = dtypes[case_draw(c, 3)];
    problem->out_dtype = case_draw(c, 5) ? problem->q_dtype : dtypes[case_draw(c, 3)];
    problem->kv_dtype = draw_kv_dtype(c, problem->q_dtype);
    if (problem->kv_dtype != problem->q_dtype)
        group->kv_scale_granularity = case_draw(c, 2) ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_PER_HEAD;
    if (group->attn_type == ATTN_TYPE_ENCODER_ONLY)
        return;
    problem->kv_layout = case_draw(c, 2) ? ATTN_LAYOUT_KV_NHD : ATTN_LAYOUT_KV_HND;
    problem->page_size = PICK(c, 1, 1, 3, 16, 16, 64);
}

static void make_problem(attn_case *c)
{
    c->device = (attn_device){.struct_size = sizeof c->device,
                              .type = ATTN_DEVICE_CPU,
                              .cpu_isa = ATTN_CPU_AVX2 | ATTN_CPU_AVX512};
    attn_problem *problem = &c->problem;
    problem->struct_size = sizeof *problem;
    problem->device = &c->device;
    problem->group = &c->group;
    problem->bounds = &c->bounds;
    problem->tp_size = 1;
}

/* ---- Lengths --------------------------------------------------------------------------------- */

static int32_t draw_len(attn_case *c, int32_t max_len)
{
    int32_t page = c->problem.page_size > 0 ? c->problem.page_size : 16;
    switch (case_draw(c, 5)) {
    case 0:
        return case_draw(c, 4);
    case 1: /* about a border of pages, or of tiles */
        return page * case_draw(c, 6) + case_draw(c, 3);
    case 2:
        return 64 * case_draw(c, max_len / 64 + 1) + case_draw(c, 3);
    default:
        return case_draw(c, max_len);
    }
}

static void make_lengths(attn_case *c, int32_t max_len)
{
    attn_batch *batch = &c->batch;
    int decode = batch->mode == ATTN_MODE_DECODE;
    batch->num_real_seqs = 1 + case_draw(c, CASE_MAX_SEQS - 2);
    batch->num_seqs = batch->num_real_seqs + (case_draw(c, 4) == 0 ? case_draw(c, 3) : 0);
    if (batch->mode == ATTN_MODE_MIXED)
        batch->num_decode_seqs = case_draw(c, batch->num_real_seqs + 1);
    if (batch->mode == ATTN_MODE_MIXED)
        batch->num_seqs = batch->num_real_seqs;
    if (batch->mode == ATTN_MODE_MIXED)
        batch->first_decode_seq = batch->num_seqs - batch->num_decode_seqs;
    batch->decode_q_len = batch->mode == ATTN_MODE_MIXED;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int single = decode || s >= batch->num_seqs - batch->num_decode_seqs;
        int real = s < batch->num_real_seqs;
        c->q_len[s] = single || !real ? 1 : draw_len(c, max_len / 2);
        c->prefix[s] =
            real && c->group.attn_type != ATTN_TYPE_ENCODER_ONLY ? draw_len(c, max_len) : 0;
        c->num_new[s] = c->q_len[s];
        c->kv_len[s] = real ? c->prefix[s] + c->q_len[s] : case_draw(c, 2);
        if (c->group.attn_type == ATTN_TYPE_CROSS && real) {
            c->num_new[s] = c->from_cache || case_draw(c, 2) ? 0 : draw_len(c, max_len);
            c->kv_len[s] = c->num_new[s] + (case_draw(c, 2) ? draw_len(c, max_len) : 0);
        } else if (c->from_cache && c->mask.kind == ATTN_MASK_NONE && real)
            c->kv_len[s] = case_draw(c, c->kv_len[s] + 1); /* a partial over some of the keys */
        else if (c->group.attn_type == ATTN_TYPE_ENCODER_ONLY)
            c->kv_len[s] = c->q_len[s];
    }
}

/* Prefix sums from `first` on. */
static int32_t *make_indptr(const int32_t *lens, int32_t count, int32_t first)
{
    int32_t *indptr = zeroed((size_t)count + 1, sizeof *indptr);
    indptr[0] = first;
    for (int32_t s = 0; s < count; s++)
        indptr[s + 1] = indptr[s] + lens[s];
    return indptr;
}

static attn_i32_array both(const int32_t *array)
{
    return (attn_i32_array){array, array};
}

static void make_rows(attn_case *c)
{
    attn_batch *batch = &c->batch;
    int32_t num_seqs = batch->num_seqs, decode = batch->mode == ATTN_MODE_DECODE;
    int32_t first = decode ? 0 : PICK(c, 0, 0, 5);
    c->seq_lens = zeroed((size_t)num_seqs, sizeof(int32_t));
    c->prefix_lens = zeroed((size_t)num_seqs, sizeof(int32_t));
    c->kv_lens = zeroed((size_t)num_seqs, sizeof(int32_t));
    for (int32_t s = 0; s < num_seqs; s++) {
        int real = s < batch->num_real_seqs;
        c->seq_lens[s] = real ? c->prefix[s] + c->q_len[s] : c->kv_len[s];
        c->prefix_lens[s] = decode ? -HUGE_INDEX : c->prefix[s];
        c->kv_lens[s] = c->kv_len[s];
        batch->num_tokens += c->q_len[s];
        if (real)
            batch->num_real_tokens += c->q_len[s];
        batch->max_q_len = batch->max_q_len > c->q_len[s] ? batch->max_q_len : c->q_len[s];
        batch->max_kv_len = batch->max_kv_len > c->kv_len[s] ? batch->max_kv_len : c->kv_len[s];
    }
    c->q_indptr = make_indptr(c->q_len, num_seqs, first);
    batch->seq_lens = both(c->seq_lens);
    batch->prefix_lens = both(c->prefix_lens);
    if (!decode)
        batch->q_indptr = both(c->q_indptr);
    c->kv.kv_lens = both(c->kv_lens);
    if (c->group.attn_type == ATTN_TYPE_CROSS) {
        c->new_indptr = make_indptr(c->num_new, num_seqs, 2);
        c->kv.kv_new_indptr = both(c->new_indptr);
    }
}

/* Row of the first new key of a sequence. */
static int32_t first_new_row(const attn_case *c, int32_t s)
{
    return c->new_indptr ? c->new_indptr[s] : c->q_indptr[s];
}

/* ---- Masks ----------------------------------------------------------------------------------- */

static void make_mask(attn_case *c)
{
    int32_t num_seqs = c->batch.num_seqs;
    int full = c->mask.kind == ATTN_MASK_FULL;
    c->mask.struct_size = sizeof c->mask;
    c->batch.mask = &c->mask;
    if (!full && c->mask.kind != ATTN_MASK_QLEN)
        return;
    c->mask_indptr = zeroed((size_t)num_seqs + 1, sizeof(int64_t));
    c->mask_indptr[0] = 3;
    for (int32_t s = 0; s < num_seqs; s++) {
        int64_t bits = (int64_t)c->q_len[s] * (full ? c->kv_len[s] : c->q_len[s]);
        c->mask_indptr[s + 1] = c->mask_indptr[s] + (bits + 7) / 8;
    }
    c->mask_bits = zeroed((size_t)c->mask_indptr[num_seqs], 1);
    for (int64_t i = 0; i < c->mask_indptr[num_seqs]; i++)
        c->mask_bits[i] = (uint8_t)(case_draw(c, 256) & case_draw(c, 256));
    c->mask.bits = c->mask_bits;
    c->mask.indptr = (attn_i64_array){c->mask_indptr, c->mask_indptr};
    if (c->group.attn_type == ATTN_TYPE_CROSS || case_draw(c, 2))
        return;
    c->positions = zeroed((size_t)c->q_indptr[num_seqs], sizeof(int32_t));
    for (int32_t s = 0; s < num_seqs; s++) /* depths of a tree */
        for (int32_t t = 0; t < c->q_len[s]; t++)
            c->positions[c->q_indptr[s] + t] = c->prefix[s] + case_draw(c, t / 2 + 1);
    c->batch.positions = both(c->positions);
}

static void make_items(attn_case *c)
{
    int32_t num_seqs = c->batch.num_seqs, stride = c->batch.max_kv_len + c->batch.max_q_len + 2;
    c->item_prefix = zeroed((size_t)num_seqs, sizeof(int32_t));
    c->token_pos = zeroed((size_t)num_seqs * (size_t)stride, sizeof(uint16_t));
    for (int32_t s = 0; s < num_seqs; s++) {
        int32_t left = 0;
        c->item_prefix[s] = case_draw(c, c->seq_lens[s] + 1);
        for (int32_t i = 0, p = 0; i < stride; i++, p = p < left ? p + 1 : 0) {
            if (p == 0)
                left = case_draw(c, 20);
            c->token_pos[s * stride + i] = (uint16_t)p;
        }
    }
    c->items = (attn_multi_item){.struct_size = sizeof c->items,
                                 .token_pos_stride = stride,
                                 .prefix_lens = both(c->item_prefix),
                                 .token_pos = c->token_pos};
    c->batch.multi_item = &c->items;
}

/* ---- Slots ----------------------------------------------------------------------------------- */

static int64_t slot_of(const attn_case *c, int32_t s, int32_t j)
{
    int32_t page_size = c->problem.page_size;
    return (int64_t)c->pages[s * c->pages_of_seq + j / page_size] * page_size + j % page_size;
}

/* Pages in random order; page 0 is padding, and some pages belong to no sequence. */
static void make_pages(attn_case *c)
{
    int32_t num_seqs = c->batch.num_seqs, page_size = c->problem.page_size;
    c->pages_of_seq = (c->batch.max_kv_len + page_size - 1) / page_size + 1;
    int32_t used = num_seqs * c->pages_of_seq;
    c->num_pages = used + 3;
    c->pages = zeroed((size_t)c->num_pages, sizeof(int32_t));
    for (int32_t i = 0; i < c->num_pages - 1; i++)
        c->pages[i] = i + 1;
    for (int32_t i = c->num_pages - 2; i > 0; i--) {
        int32_t other = case_draw(c, i + 1), page = c->pages[i];
        c->pages[i] = c->pages[other];
        c->pages[other] = page;
    }
    for (int32_t s = c->batch.num_real_seqs; s < num_seqs; s++)
        for (int32_t i = 0; i < c->pages_of_seq; i++)
            c->pages[s * c->pages_of_seq + i] = 0;
}

static void make_req_to_token(attn_case *c)
{
    int32_t num_seqs = c->batch.num_seqs, stride = c->batch.max_kv_len + 5;
    c->req_to_token = zeroed((size_t)(num_seqs + 3) * (size_t)stride, sizeof(int32_t));
    c->requests = zeroed((size_t)num_seqs, sizeof(int32_t));
    for (int32_t i = stride; i < (num_seqs + 3) * stride; i++)
        c->req_to_token[i] = HUGE_INDEX;
    for (int32_t s = 0; s < num_seqs; s++) {
        c->requests[s] = s < c->batch.num_real_seqs ? num_seqs - s + 1 : 0;
        for (int32_t j = 0; j < c->kv_len[s]; j++)
            c->req_to_token[c->requests[s] * stride + j] = (int32_t)slot_of(c, s, j);
    }
    c->batch.req_pool_indices = both(c->requests);
    c->kv.req_to_token = both(c->req_to_token);
    c->kv.req_to_token_stride = stride;
}

static void make_block_table(attn_case *c)
{
    int32_t num_seqs = c->batch.num_seqs, stride = c->pages_of_seq + 2;
    c->block_table = zeroed((size_t)(num_seqs * stride), sizeof(int32_t));
    for (int32_t i = 0; i < num_seqs * stride; i++)
        c->block_table[i] = HUGE_INDEX;
    for (int32_t s = 0; s < num_seqs; s++)
        for (int32_t i = 0; i * c->problem.page_size < c->kv_len[s]; i++)
            c->block_table[s * stride + i] = c->pages[s * c->pages_of_seq + i];
    c->kv.block_table = both(c->block_table);
    c->kv.block_table_stride = stride;
}

static void make_csr(attn_case *c)
{
    int32_t num_seqs = c->batch.num_seqs, page_size = c->problem.page_size;
    int32_t counts[CASE_MAX_SEQS + 2];
    for (int32_t s = 0; s < num_seqs; s++)
        counts[s] = (c->kv_len[s] + page_size - 1) / page_size;
    c->kv_indptr = make_indptr(counts, num_seqs, 4);
    c->kv_indices = zeroed((size_t)c->kv_indptr[num_seqs] + 1, sizeof(int32_t));
    c->last_page_len = zeroed((size_t)num_seqs, sizeof(int32_t));
    c->kv_indices[c->kv_indptr[num_seqs]] = HUGE_INDEX;
    for (int32_t s = 0; s < num_seqs; s++) {
        c->last_page_len[s] = c->kv_len[s] == 0 ? 0 : c->kv_len[s] - (counts[s] - 1) * page_size;
        for (int32_t i = 0; i < counts[s]; i++)
            c->kv_indices[c->kv_indptr[s] + i] = c->pages[s * c->pages_of_seq + i];
    }
    c->kv.kv_indptr = both(c->kv_indptr);
    c->kv.kv_indices = both(c->kv_indices);
    c->kv.last_page_len = both(c->last_page_len);
}

static void make_slots(attn_case *c, int32_t form)
{
    int32_t num_seqs = c->batch.num_seqs, rows = first_new_row(c, num_seqs);
    make_pages(c);
    c->kv.struct_size = sizeof c->kv;
    c->kv.page_size = c->problem.page_size;
    c->kv.index_forms = (uint32_t)form;
    if (form & ATTN_INDEX_REQ_TO_TOKEN)
        make_req_to_token(c);
    if (form & ATTN_INDEX_BLOCK_TABLE)
        make_block_table(c);
    if (form & ATTN_INDEX_CSR)
        make_csr(c);
    c->out_cache_loc = zeroed((size_t)rows, sizeof(int64_t));
    for (int32_t s = 0; s < num_seqs; s++)
        for (int32_t n = 0; n < c->num_new[s]; n++) {
            int32_t j = c->kv_len[s] - c->num_new[s] + n;
            int real = s < c->batch.num_real_seqs && j >= 0;
            int64_t slot = real ? slot_of(c, s, j) : case_draw(c, 2) - 1;
            c->out_cache_loc[first_new_row(c, s) + n] = real && case_draw(c, 50) == 0 ? -1 : slot;
        }
    c->kv.out_cache_loc = (attn_i64_array){c->out_cache_loc, c->out_cache_loc};
    c->batch.num_kv_groups = 1;
    c->batch.kv_groups = &c->kv;
}

/* ---- Operands -------------------------------------------------------------------------------- */

static void draw_rows(attn_case *c, case_tensor *t, double scale)
{
    const int64_t *shape = t->tensor.shape;
    for (int64_t row = 0; row < shape[0]; row++)
        for (int64_t head = 0; head < shape[1]; head++)
            for (int64_t d = 0; d < shape[2]; d++)
                dtype_store(t->tensor.dtype, vector_at(t, row, head, 0), d,
                            (double)draw_real(c) * scale);
}

static void make_scales(attn_case *c)
{
    uint32_t count =
        c->group.kv_scale_granularity == ATTN_SCALE_PER_HEAD ? (uint32_t)c->group.num_kv_heads : 1;
    for (uint32_t i = 0; i < 64; i++) {
        c->k_scales[i] = 0.03f + 0.01f * (float)case_draw(c, 10);
        c->v_scales[i] = 0.02f + 0.01f * (float)case_draw(c, 10);
        c->sinks[i] = i % 5 == 4 ? -INFINITY : 8 * draw_real(c);
        c->slopes[i] = 0.3f * (1.01f + draw_real(c));
    }
    c->k_scale = (attn_scale){.struct_size = sizeof c->k_scale,
                              .granularity = c->group.kv_scale_granularity,
                              .count = count,
                              .host = c->k_scales};
    c->v_scale = c->k_scale;
    c->v_scale.host = c->v_scales;
    if (c->group.kv_scale_granularity != ATTN_SCALE_NONE) {
        c->scales[ATTN_ROLE_K_CACHE] = &c->k_scale;
        c->scales[ATTN_ROLE_V_CACHE] = &c->v_scale;
    }
}

static attn_tensor per_head(const attn_case *c, float *values)
{
    return (attn_tensor){.struct_size = sizeof(attn_tensor),
                         .data = values,
                         .device_type = ATTN_DEVICE_CPU,
                         .dtype = ATTN_F32,
                         .ndim = 1,
                         .alignment = 4,
                         .shape = {c->group.num_q_heads},
                         .strides = {1}};
}

/* Write key or value j of a sequence and a head where it is to be read from. */
static void put_key(attn_case *c, int32_t s, int32_t j, int32_t head, const float *key,
                    const float *value)
{
    int32_t n = j - (c->kv_len[s] - c->num_new[s]);
    int per = c->group.kv_scale_granularity == ATTN_SCALE_PER_HEAD ? head : 0;
    if (n >= 0 && !c->from_cache) {
        int64_t row = first_new_row(c, s) + n;
        for (int32_t d = 0; key && d < c->group.head_dim; d++)
            dtype_store(c->problem.q_dtype, vector_at(&c->k, row, head, 0), d, (double)key[d]);
        for (int32_t d = 0; value && d < c->group.v_head_dim; d++)
            dtype_store(c->problem.q_dtype, vector_at(&c->v, row, head, 0), d, (double)value[d]);
        return;
    }
    int64_t slot = slot_of(c, s, j);
    for (int32_t d = 0; key && d < c->group.head_dim; d++)
        dtype_quantise(c->problem.kv_dtype, cache_vector(c, &c->k_cache, slot, head), d, key[d],
                       c->k_scales[per]);
    for (int32_t d = 0; value && d < c->group.v_head_dim; d++)
        dtype_quantise(c->problem.kv_dtype, cache_vector(c, &c->v_cache, slot, head), d, value[d],
                       c->v_scales[per]);
}

/* Random keys and values. Growing scores: all keys point one way, and get longer. */
static void make_keys(attn_case *c)
{
    float key[512], value[512];
    float unit = 1 / (c->group.sm_scale * (float)c->group.head_dim);
    for (int32_t s = 0; s < c->batch.num_seqs; s++)
        for (int32_t j = 0; j < c->kv_len[s]; j++)
            for (int32_t head = 0; head < c->group.num_kv_heads; head++) {
                float length = 130.0f * (float)j / (float)c->kv_len[s] * unit;
                for (int32_t d = 0; d < c->group.head_dim; d++)
                    key[d] = c->growing ? length + 0.01f * draw_real(c) : 1.5f * draw_real(c);
                for (int32_t d = 0; d < c->group.v_head_dim; d++)
                    value[d] = draw_real(c);
                put_key(c, s, j, head, key, value);
            }
}

/* Where an error by one would be. */
static int32_t draw_border(attn_case *c, int32_t s, int32_t i)
{
    int32_t w = c->group.window_left, r = c->group.window_right, chunk = c->group.attention_chunk;
    int32_t page = c->problem.page_size > 0 ? c->problem.page_size : 16;
    int32_t inside = PICK(c, 0, i, i - w, i + r, c->prefix[s], c->kv_len[s] - 1, i / page * page,
                          64, 512, chunk > 0 ? i / chunk * chunk : 0);
    return inside + PICK(c, 0, 0, -1, 1);
}

/* Align a key at a border, or just outside it, with a query; its value stands out. */
static void plant_needle(attn_case *c, int32_t s)
{
    int32_t t = case_draw(c, c->q_len[s]), head = case_draw(c, c->group.num_q_heads);
    int32_t j = draw_border(c, s, c->prefix[s] + t), dim = c->group.head_dim;
    if (j < 0 || j >= c->kv_len[s])
        return;
    float key[512], value[512], norm = 1e-3f;
    const char *query = vector_at(&c->q, c->q_indptr[s] + t, head, 0);
    for (int32_t d = 0; d < dim; d++) {
        key[d] = (float)dtype_load(c->problem.q_dtype, query, d);
        norm += key[d] * key[d];
    }
    float length = 9 / (norm * c->group.sm_scale);
    for (int32_t d = 0; d < dim; d++)
        key[d] *= length;
    for (int32_t d = 0; d < c->group.v_head_dim; d++)
        value[d] = 1.5f + 0.4f * draw_real(c);
    put_key(c, s, j, head * c->group.num_kv_heads / c->group.num_q_heads, key, value);
}

static void make_operands(attn_case *c)
{
    const attn_layer_group *group = &c->group;
    int32_t num_seqs = c->batch.num_seqs;
    int64_t rows = c->q_indptr[num_seqs] + 2, new_rows = first_new_row(c, num_seqs) + 1;
    int64_t slack = STRIDE_SLACK;
    make_tensor(&c->q, c->problem.q_dtype, 3,
                (int64_t[]){rows, group->num_q_heads, group->head_dim}, slack);
    make_tensor(&c->out, c->problem.out_dtype, 3,
                (int64_t[]){rows, group->num_q_heads, group->v_head_dim}, slack);
    make_tensor(&c->lse, ATTN_F32, 2, (int64_t[]){rows, group->num_q_heads}, slack);
    make_tensor(&c->k, c->problem.q_dtype, 3,
                (int64_t[]){new_rows, group->num_kv_heads, group->head_dim}, slack);
    make_tensor(&c->v, c->problem.q_dtype, 3,
                (int64_t[]){new_rows, group->num_kv_heads, group->v_head_dim}, slack);
    draw_rows(c, &c->q, 1);
    for (int64_t row = 0; c->growing && row < rows; row++)
        for (int32_t head = 0; head < group->num_q_heads; head++)
            for (int32_t d = 0; d < group->head_dim; d++)
                dtype_store(c->problem.q_dtype, vector_at(&c->q, row, head, 0), d, 1);
    make_scales(c);
    if (c->problem.kv_layout) {
        int hnd = strcmp(c->problem.kv_layout, ATTN_LAYOUT_KV_HND) == 0;
        int64_t page = c->problem.page_size, heads = group->num_kv_heads;
        int64_t shape[] = {c->num_pages, hnd ? heads : page, hnd ? page : heads, group->head_dim};
        make_tensor(&c->k_cache, c->problem.kv_dtype, 4, shape, slack);
        shape[3] = group->v_head_dim;
        make_tensor(&c->v_cache, c->problem.kv_dtype, 4, shape, slack);
        fill(&c->k_cache, NAN);
        fill(&c->v_cache, NAN);
        for (int64_t i = 0; i < page * heads; i++) {
            memset(cache_vector(c, &c->k_cache, i % page, (int32_t)(i / page)), 0,
                   (size_t)(group->head_dim * (int64_t)attn_dtype_size(c->problem.kv_dtype)));
            memset(cache_vector(c, &c->v_cache, i % page, (int32_t)(i / page)), 0,
                   (size_t)(group->v_head_dim * (int64_t)attn_dtype_size(c->problem.kv_dtype)));
        }
    }
    make_keys(c);
    for (int32_t s = 0; s < c->batch.num_real_seqs && !c->growing; s++)
        for (int n = 0; n < 8 && c->q_len[s] > 0; n++)
            plant_needle(c, s);
}

/* Keys that the window hides from all queries become NaN, as freed pages are. */
static void poison_hidden(attn_case *c)
{
    float nan[512];
    for (int i = 0; i < 512; i++)
        nan[i] = NAN;
    if (c->group.window_left < 0 || c->batch.positions.device || !c->problem.kv_layout)
        return;
    for (int32_t s = 0; s < c->batch.num_real_seqs; s++)
        for (int32_t j = 0; j < c->prefix[s] - c->group.window_left && j < c->kv_len[s]; j++)
            for (int32_t head = 0; head < c->group.num_kv_heads; head++)
                put_key(c, s, j, head, nan, nan);
}

static void make_args(attn_case *c)
{
    c->operands[ATTN_ROLE_Q] = &c->q.tensor;
    c->operands[ATTN_ROLE_OUT] = &c->out.tensor;
    if (case_draw(c, 4))
        c->operands[ATTN_ROLE_LSE] = &c->lse.tensor;
    if (!c->from_cache) {
        c->operands[ATTN_ROLE_K] = &c->k.tensor;
        c->operands[ATTN_ROLE_V] = &c->v.tensor;
    }
    if (c->problem.kv_layout) {
        c->operands[ATTN_ROLE_K_CACHE] = &c->k_cache.tensor;
        c->operands[ATTN_ROLE_V_CACHE] = &c->v_cache.tensor;
    }
    c->sinks_tensor = per_head(c, c->sinks);
    c->slopes_tensor = per_head(c, c->slopes);
    if (c->group.flags & ATTN_GROUP_HAS_SINKS)
        c->operands[ATTN_ROLE_SINKS] = &c->sinks_tensor;
    if (c->group.flags & ATTN_GROUP_HAS_ALIBI)
        c->operands[ATTN_ROLE_ALIBI_SLOPES] = &c->slopes_tensor;
    c->args = (attn_forward_args){.struct_size = sizeof c->args,
                                  .num_operands = ATTN_ROLE_COUNT,
                                  .num_scales = ATTN_ROLE_COUNT,
                                  .operands = c->operands,
                                  .scales = c->scales};
    if (!c->from_cache && case_draw(c, 3))
        c->args.flags |= ATTN_FORWARD_SAVE_KV;
    if (case_draw(c, 4) == 0)
        c->args.flags |= ATTN_FORWARD_OMIT_SINK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static void make_bounds(attn_case *c)
{
    c->bounds = (attn_bounds){
        .struct_size = sizeof c->bounds,
        .modes = ATTN_MODE_BIT(c->batch.mode),
        .mask_kinds = ATTN_MASK_BIT(c->mask.kind),
        .uses = ATTN_USES_POSITIONS | ATTN_USES_MULTI_ITEM | ATTN_USES_UNSAVED_KV | ATTN_USES_LSE |
                ATTN_USES_OMIT_SINK,
        .max_seqs = c->batch.num_seqs,
        .max_tokens = c->batch.num_tokens > 0 ? c->batch.num_tokens : 1,
        .max_q_len = c->batch.max_q_len > 0 ? c->batch.max_q_len : 1,
        .max_kv_len = c->batch.max_kv_len > 0 ? c->batch.max_kv_len : 1,
    };
}

attn_case *case_create(uint64_t seed, const case_wishes *wishes)
{
    return case_create_shaped(seed, wishes, 0, 0);
}

attn_case *case_create_shaped(uint64_t seed, const case_wishes *wishes, int32_t dim, int32_t ratio)
{
    attn_case *c = zeroed(1, sizeof *c);
    c->seed = mix_word(seed + 1);
    int32_t mask_kind = wishes->mask_kind >= 0 ? wishes->mask_kind : PICK(c, 0, 0, 0, 1, 2, 3);
    int32_t form = wishes->index_form > 0 ? wishes->index_form : PICK(c, 1, 2, 4);
    c->growing = wishes->growing >= 0 ? wishes->growing : case_draw(c, 6) == 0;
    make_problem(c);
    make_group(c, wishes, dim, ratio, mask_kind);
    int cached = c->group.attn_type != ATTN_TYPE_ENCODER_ONLY;
    if (c->group.attn_type == ATTN_TYPE_CROSS && mask_kind == ATTN_MASK_QLEN)
        mask_kind = ATTN_MASK_FULL;
    c->mask.kind = (uint32_t)mask_kind;
    c->from_cache = cached && case_draw(c, 5) == 0;
    c->batch.struct_size = sizeof c->batch;
    c->batch.mode =
        wishes->mode >= 0 ? (uint32_t)wishes->mode : (uint32_t)PICK(c, 0, 0, 1, 2, 4, 5);
    make_lengths(c, wishes->max_len > 0 ? wishes->max_len : 200);
    make_rows(c);
    make_mask(c);
    if (mask_kind == ATTN_MASK_LAYER && c->group.attn_type != ATTN_TYPE_CROSS &&
        case_draw(c, 8) == 0)
        make_items(c);
    if (cached)
        make_slots(c, form);
    make_operands(c);
    poison_hidden(c);
    make_args(c);
    make_bounds(c);
    case_poison(c);
    return c;
}

void case_destroy(attn_case *c)
{
    void *all[] = {c->seq_lens,       c->prefix_lens,
                   c->q_indptr,       c->positions,
                   c->requests,       c->kv_lens,
                   c->new_indptr,     c->req_to_token,
                   c->block_table,    c->kv_indptr,
                   c->kv_indices,     c->last_page_len,
                   c->out_cache_loc,  c->mask_indptr,
                   c->mask_bits,      c->item_prefix,
                   c->token_pos,      c->pages,
                   c->q.memory,       c->k.memory,
                   c->v.memory,       c->k_cache.memory,
                   c->v_cache.memory, c->out.memory,
                   c->lse.memory,     c};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static int is_row(const attn_case *c, int64_t row)
{
    return row >= c->q_indptr[0] && row < c->q_indptr[c->batch.num_seqs];
}

void case_poison(attn_case *c)
{
    memset(c->out.memory, RED, c->out.bytes);
    memset(c->lse.memory, RED, c->lse.bytes);
}

static int64_t red_zone(const attn_case *c, const case_tensor *t, int64_t dim)
{
    uint8_t *allowed = zeroed(1, t->bytes);
    int64_t size = dim * (int64_t)attn_dtype_size(t->tensor.dtype), written = 0;
    for (int64_t row = 0; row < t->tensor.shape[0]; row++)
        for (int64_t head = 0; is_row(c, row) && head < t->tensor.shape[1]; head++)
            memset(allowed + (vector_at(t, row, head, 0) - t->memory), 1, (size_t)size);
    for (uint64_t i = 0; i < t->bytes; i++)
        written += !allowed[i] && (uint8_t)t->memory[i] != RED;
    free(allowed);
    return written;
}

int64_t case_red_zone(const attn_case *c)
{
    return red_zone(c, &c->out, c->group.v_head_dim) + red_zone(c, &c->lse, 1);
}

static int64_t wrong_keys(const attn_case *c, const case_tensor *cache, attn_tensor *image,
                          int64_t *place)
{
    int64_t size = cache->tensor.shape[3] * (int64_t)attn_dtype_size(cache->tensor.dtype),
            found[4] = {0};
    for (int32_t head = 0;
         c->batch.num_real_seqs < c->batch.num_seqs && head < c->group.num_kv_heads; head++) {
        const char *from = cache_vector(c, cache, 0, head);
        memcpy((char *)image->data + (from - cache->memory), from, (size_t)size);
    }
    int64_t wrong = reference_compare_kv(&c->problem, &cache->tensor, image, found);
    if (wrong)
        place[0] = found[0], place[1] = found[1];
    return wrong;
}

int64_t case_wrong_keys(const attn_case *c, char *k_image, char *v_image, int64_t place[2])
{
    host_error error;
    attn_tensor k = c->k_cache.tensor, v = c->v_cache.tensor;
    k.data = k_image;
    v.data = v_image;
    host_error_init(&error);
    if (reference_expected_kv(&c->problem, &c->batch, c->layer.layer_id, &c->args, &k, &v,
                              &error.base) != ATTN_OK) {
        fprintf(stderr, "%s\n", host_error_text(&error));
        abort();
    }
    return wrong_keys(c, &c->k_cache, &k, place) + wrong_keys(c, &c->v_cache, &v, place);
}

void case_describe(const attn_case *c, char *text, size_t size)
{
    const attn_layer_group *g = &c->group;
    snprintf(
        text, size,
        "type %u mode %u mask %u q %s kv %s out %s heads %d/%d dim %d/%d page %d %s forms %u "
        "window %d,%d chunk %d cap %g flags %u positions %d items %d k,v %s args %u growing %d",
        g->attn_type, c->batch.mode, c->mask.kind, dtype_name(c->problem.q_dtype),
        dtype_name(c->problem.kv_dtype), dtype_name(c->problem.out_dtype), g->num_q_heads,
        g->num_kv_heads, g->head_dim, g->v_head_dim, c->problem.page_size,
        c->problem.kv_layout ? c->problem.kv_layout : "-", c->kv.index_forms, g->window_left,
        g->window_right, g->attention_chunk, (double)g->logit_cap, g->flags, c->positions != NULL,
        c->batch.multi_item != NULL, c->from_cache ? "cached" : "given", c->args.flags, c->growing);
}
