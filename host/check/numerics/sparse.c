/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.c: sparse layers over latents against the oracle: choices of the layer's own indexer, in
 * one call and in one for each of its three steps; choices that are given; labels that are saved;
 * choices of 2048 keys among thousands, many of which have the same logit.
 *
 * A case is one batch of a layer in pages of shuffled order. It lies in one block of the device's
 * memory, whose image on the host is what the oracle reads. What no query sees is NaN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/check/cases/draw.h"
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numerics.h"
#include "host/check/cases/rig.h"
#include "host/reference/sparse.h"

enum { SEQS = 3, MOST_QUERIES = 16, SHORT = 150, LONG = 9050, ALIGNMENT = 256 };

/* ---- Which cases ----------------------------------------------------------------------------- */

/* Axes of a case, by its index: what changes fastest comes first. */
static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_TARGET_VERIFY};
static const attn_dtype label_dtypes[] = {ATTN_FP8_E4M3, ATTN_BF16, ATTN_F32};
static const struct sizes {
    attn_dtype dtype, index_dtype;
    int32_t heads, lora, rope, nope, index_heads, label, page_size, top_k;
    bool packed; /* mla.latent_fp8/1 */
} all_sizes[] = {
    /* of what --quick takes, the first of each third, kernels for models take two */
    {ATTN_BF16, ATTN_FP8_E4M3, 16, 512, 64, 128, 64, 128, 64, 64, true},
    {ATTN_BF16, ATTN_FP8_E4M3, 16, 512, 64, 128, 64, 128, 64, 64, false},
    {ATTN_F32, ATTN_F32, 3, 40, 8, 12, 5, 20, 4, 7, false},
    {ATTN_BF16, ATTN_BF16, 4, 64, 16, 24, 4, 32, 16, 24, false},
};
enum { MODES = 3, LABELS = 3, SIZES = 4, CASES = MODES * LABELS * SIZES };

/* Long rows: DECODE and TARGET_VERIFY, logits that differ and logits of which many are equal. */
static const struct sizes long_sizes[] = {
    {ATTN_BF16, ATTN_FP8_E4M3, 16, 512, 64, 128, 64, 128, 64, 2048, true},
    {ATTN_BF16, ATTN_FP8_E4M3, 16, 512, 64, 128, 64, 128, 64, 2048, false},
    {ATTN_BF16, ATTN_BF16, 4, 64, 16, 24, 4, 32, 16, 1000, false},
};
enum { LONG_MODES = 2, TIES = 2, LONG_SIZES = 3, LONG_CASES = LONG_MODES * TIES * LONG_SIZES };

/* ---- A case ---------------------------------------------------------------------------------- */

struct arrays {
    int64_t out_cache_loc[SEQS * MOST_QUERIES];
    int32_t req_to_token[(SEQS + 1) * LONG], block_table[SEQS * LONG];
    int32_t kv_indptr[SEQS + 1], kv_indices[SEQS * LONG], last_page_len[SEQS];
    int32_t seq_lens[SEQS], prefix_lens[SEQS], q_indptr[SEQS + 1], requests[SEQS];
};

struct sparse_case {
    struct check_run *run;
    const struct device *device;
    const struct sizes *sizes;
    int32_t longest; /* of the sequences: SHORT or LONG */
    int32_t pages;   /* of the caches, a power of two */
    bool has_ties;   /* keys have one of few labels */
    struct case_session *session;
    struct draw draw;
    attn_mla_dims mla;
    attn_sparse_dims sparse;
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
    attn_batch batch;
    attn_kv_batch kv;
    attn_sparse_batch most;
    struct arrays arrays;
    int32_t rows;
    /* Operands, and where they lie in the block. */
    attn_tensor tensors[ATTN_ROLE_COUNT];
    uint64_t offsets[ATTN_ROLE_COUNT], bytes;
    char *image;  /* of the block, on the host */
    char *before; /* what it was before any call */
    char *block;  /* the device's; its arrays come last */
    host_error error;
};

static void pose(struct sparse_case *c, const struct sizes *sizes, uint32_t mode,
                 attn_dtype label_dtype)
{
    c->sizes = sizes;
    c->longest = sizes->top_k > SHORT ? LONG : SHORT;
    c->pages = 128;
    while ((c->pages - SEQS - 4) * sizes->page_size <
           (c->longest == LONG ? LONG + 2300 : SEQS * SHORT))
        c->pages *= 2;
    c->mla = (attn_mla_dims){sizeof c->mla, sizes->lora, sizes->rope, sizes->nope};
    c->sparse = (attn_sparse_dims){.struct_size = sizeof c->sparse,
                                   .index_kind = ATTN_SPARSE_TOKEN,
                                   .top_k = sizes->top_k,
                                   .block_size = 1,
                                   .label_dim = sizes->label,
                                   .label_dtype = label_dtype,
                                   .index_heads = sizes->index_heads,
                                   .index_dtype = sizes->index_dtype};
    c->layer = (attn_layer){.struct_size = sizeof c->layer, .layer_id = 5};
    c->group = (attn_layer_group){.struct_size = sizeof c->group,
                                  .kind = ATTN_KIND_SPARSE,
                                  .state_group = -1,
                                  .num_q_heads = sizes->heads,
                                  .num_kv_heads = sizes->heads,
                                  .head_dim = sizes->nope + sizes->rope,
                                  .v_head_dim = sizes->nope,
                                  .window_left = -1,
                                  .sm_scale = 1 / sqrtf((float)(sizes->nope + sizes->rope)),
                                  .num_layers = 1,
                                  .layers = &c->layer,
                                  .mla = &c->mla,
                                  .sparse = &c->sparse};
    c->bounds = (attn_bounds){.struct_size = sizeof c->bounds,
                              .modes = ATTN_MODE_BIT(mode),
                              .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                              .max_seqs = SEQS,
                              .max_tokens = SEQS * MOST_QUERIES,
                              .max_q_len = MOST_QUERIES,
                              .max_kv_len = c->longest,
                              .max_kv_tokens = c->longest == LONG ? 2 * LONG : SEQS * 192};
    c->problem = (attn_problem){.struct_size = sizeof c->problem,
                                .device = &c->device->info,
                                .group = &c->group,
                                .bounds = &c->bounds,
                                .kv_layout = sizes->packed ? ATTN_LAYOUT_MLA_LATENT_FP8
                                                           : ATTN_LAYOUT_MLA_LATENT,
                                .q_dtype = sizes->dtype,
                                .kv_dtype = sizes->packed ? ATTN_FP8_E4M3 : sizes->dtype,
                                .out_dtype = sizes->dtype,
                                .page_size = sizes->page_size,
                                .tp_size = 1};
    c->batch = (attn_batch){.struct_size = sizeof c->batch, .mode = mode};
}

static bool is_accepted(const struct sparse_case *c)
{
    return rig_accepts(c->run->subject, &c->problem);
}

/* What a row of the table has as its cases. */
typedef void poser(struct sparse_case *c, int32_t index);

static void pose_short(struct sparse_case *c, int32_t index)
{
    pose(c, &all_sizes[index / MODES / LABELS % SIZES], modes[index % MODES],
         label_dtypes[index / MODES % LABELS]);
}

static void pose_long(struct sparse_case *c, int32_t index)
{
    const struct sizes *sizes = &long_sizes[index / LONG_MODES / TIES % LONG_SIZES];
    pose(c, sizes, modes[1 + index % LONG_MODES], sizes->index_dtype);
    c->has_ties = index / LONG_MODES % TIES;
}

/* All cases, if some one is accepted. */
static int32_t count_posed(const struct check_subject *subject, poser *pose_case, int32_t cases)
{
    struct check_run run = {.subject = subject};
    struct sparse_case *c = calloc(1, sizeof *c);
    int32_t accepted = 0;
    for (int32_t i = 0; c && i < cases && !accepted; i++) {
        c->run = &run;
        c->device = subject->device;
        pose_case(c, i);
        accepted = is_accepted(c);
    }
    free(c);
    return accepted ? cases : 1;
}

static int32_t count_sparse(const struct check_subject *subject)
{
    return count_posed(subject, pose_short, CASES);
}

static int32_t count_long(const struct check_subject *subject)
{
    return count_posed(subject, pose_long, LONG_CASES);
}

/* ---- Operands -------------------------------------------------------------------------------- */

static void add(struct sparse_case *c, uint32_t role, attn_dtype dtype, uint32_t ndim,
                const int64_t *shape)
{
    attn_tensor *tensor = &c->tensors[role];
    int64_t count = 1;
    *tensor = (attn_tensor){
        .struct_size = sizeof *tensor, .dtype = dtype, .ndim = ndim, .alignment = ALIGNMENT};
    for (uint32_t d = ndim; d-- > 0;) {
        tensor->shape[d] = shape[d];
        tensor->strides[d] = count;
        count *= shape[d];
    }
    c->offsets[role] = c->bytes;
    c->bytes += ((uint64_t)count * attn_dtype_size(dtype) + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
}

static void add_operands(struct sparse_case *c)
{
    const struct sizes *z = c->sizes;
    const int64_t rows = c->rows, heads = z->heads, page = z->page_size;
    const bool has_codes = c->sparse.label_dtype == ATTN_FP8_E4M3;
    const int64_t codes[] = {c->pages, page * (z->label + (int64_t)sizeof(float))};
    const int64_t plain[] = {c->pages, page, z->label};
    add(c, ATTN_ROLE_Q_NOPE, z->dtype, 3, (int64_t[]){rows, heads, z->lora});
    add(c, ATTN_ROLE_Q_PE, z->dtype, 3, (int64_t[]){rows, heads, z->rope});
    add(c, ATTN_ROLE_C_KV, z->dtype, 2, (int64_t[]){rows, z->lora});
    add(c, ATTN_ROLE_K_PE, z->dtype, 2, (int64_t[]){rows, z->rope});
    add(c, ATTN_ROLE_INDEX_Q, z->index_dtype, 3, (int64_t[]){rows, z->index_heads, z->label});
    add(c, ATTN_ROLE_INDEX_WEIGHTS, ATTN_F32, 2, (int64_t[]){rows, z->index_heads});
    add(c, ATTN_ROLE_INDEX_K, z->dtype, 2, (int64_t[]){rows, z->label});
    add(c, ATTN_ROLE_OUT, z->dtype, 3, (int64_t[]){rows, heads, z->lora});
    add(c, ATTN_ROLE_INDEX_LOGITS, ATTN_F32, 2, (int64_t[]){rows, c->longest});
    add(c, ATTN_ROLE_SPARSE_INDICES, ATTN_I32, 2, (int64_t[]){rows, z->top_k});
    add(c, ATTN_ROLE_SPARSE_COUNT, ATTN_I32, 1, (int64_t[]){rows});
    add(c, ATTN_ROLE_LATENT_CACHE, z->packed ? ATTN_U8 : z->dtype, 3,
        (int64_t[]){c->pages, page,
                    z->packed ? reference_mla_packed_bytes(&c->mla) : z->lora + z->rope});
    add(c, ATTN_ROLE_LABEL_CACHE, has_codes ? ATTN_U8 : c->sparse.label_dtype, has_codes ? 2 : 3,
        has_codes ? codes : plain);
}

static double number(struct sparse_case *c)
{
    return (draw_below(&c->draw, 255) - 127) / 64.0;
}

static char *in_image(const struct sparse_case *c, uint32_t role)
{
    return c->image + c->offsets[role];
}

static void fill(struct sparse_case *c, uint32_t role)
{
    const attn_tensor *tensor = &c->tensors[role];
    for (int64_t n = 0; n < tensor->shape[0] * tensor->strides[0]; n++)
        dtype_store(tensor->dtype, in_image(c, role), n, number(c));
}

/* A packed latent, with scales that are no powers of two. */
static void put_packed(struct sparse_case *c, int64_t slot)
{
    const int32_t lora = c->sizes->lora, rope = c->sizes->rope, scales = lora / 128;
    char *row = in_image(c, ATTN_ROLE_LATENT_CACHE) + slot * reference_mla_packed_bytes(&c->mla);
    for (int32_t d = 0; d < lora; d++)
        dtype_store(ATTN_FP8_E4M3, row, d, number(c));
    for (int32_t n = 0; n < scales; n++)
        dtype_store(ATTN_F32, row + lora, n, (1 + draw_below(&c->draw, 99)) / 70.0);
    for (int32_t d = 0; d < rope; d++)
        dtype_store(ATTN_BF16, row + lora + scales * (int32_t)sizeof(float), d, number(c));
}

/* Sizes differ, so that scales are what tells labels apart. */
static void draw_label(struct sparse_case *c, int32_t kind, double *label)
{
    const double size = 1 << kind % 5;
    for (int32_t d = 0; d < c->sizes->label; d++)
        label[d] = (c->has_ties ? (d * 37 + kind * 101) % 255 / 64.0 - 2 : number(c)) / size;
}

/* A key of the prefix. */
static void put_cached(struct sparse_case *c, int64_t slot)
{
    const attn_tensor *latents = &c->tensors[ATTN_ROLE_LATENT_CACHE];
    const attn_tensor *labels = &c->tensors[ATTN_ROLE_LABEL_CACHE];
    const int64_t page = c->sizes->page_size;
    const int32_t kind = draw_below(&c->draw, c->has_ties ? 40 : 5);
    double label[128];
    if (c->sizes->packed)
        put_packed(c, slot);
    for (int64_t d = 0; d < latents->shape[2] && !c->sizes->packed; d++)
        dtype_store(latents->dtype, in_image(c, ATTN_ROLE_LATENT_CACHE),
                    slot * latents->shape[2] + d, number(c));
    draw_label(c, kind, label);
    reference_label_store(&c->sparse, page, label,
                          in_image(c, ATTN_ROLE_LABEL_CACHE) +
                              slot / page * labels->strides[0] *
                                  (int64_t)attn_dtype_size(labels->dtype),
                          slot % page);
}

/* ---- Batch ----------------------------------------------------------------------------------- */

/* Keys of a sequence in the cache: long ones, ones about top_k, and few; or none, and few. */
static int32_t draw_prefix(struct sparse_case *c, int32_t s)
{
    if (c->longest == LONG && s == 0)
        return 8200 + draw_below(&c->draw, 800);
    if (c->longest == LONG && s == 1)
        return 2000 + draw_below(&c->draw, 100);
    return s == 0 && c->batch.mode != ATTN_MODE_DECODE ? 0 : 40 + draw_below(&c->draw, 90);
}

/* Lengths below top_k and above, prefixes or none. */
static void draw_sequences(struct sparse_case *c)
{
    struct arrays *a = &c->arrays;
    const bool decodes = c->batch.mode == ATTN_MODE_DECODE;
    const int32_t page = c->sizes->page_size;
    int32_t next_page = 1 + draw_below(&c->draw, 3);
    for (int32_t s = 0; s < SEQS; s++) {
        int32_t queries = decodes ? 1
                          : c->batch.mode == ATTN_MODE_TARGET_VERIFY
                              ? 4
                              : 1 + draw_below(&c->draw, MOST_QUERIES);
        int32_t prefix = draw_prefix(c, s);
        int32_t kv_len = prefix + queries, pages = (kv_len + page - 1) / page;
        a->prefix_lens[s] = prefix;
        a->seq_lens[s] = kv_len;
        a->q_indptr[s + 1] = a->q_indptr[s] + queries;
        a->requests[s] = SEQS - s;
        a->kv_indptr[s + 1] = a->kv_indptr[s] + pages;
        a->last_page_len[s] = kv_len - (pages - 1) * page;
        for (int32_t p = 0; p < pages; p++) {
            /* Odd steps through a power of two: each page once. */
            int32_t number = next_page++ * 13 % c->pages;
            number = number == 0 ? next_page++ * 13 % c->pages : number;
            a->block_table[s * c->longest + p] = a->kv_indices[a->kv_indptr[s] + p] = number;
            for (int32_t j = p * page; j < (p + 1) * page && j < kv_len; j++)
                a->req_to_token[a->requests[s] * c->longest + j] = number * page + j % page;
        }
        for (int32_t t = 0; t < queries; t++)
            a->out_cache_loc[a->q_indptr[s] + t] =
                a->req_to_token[a->requests[s] * c->longest + prefix + t];
    }
    c->rows = a->q_indptr[SEQS];
}

#define BOTH(member)                                                                               \
    {                                                                                              \
        c->arrays.member, on_device->member                                                        \
    }

/* The batch as the oracle reads it, or a backend. */
static void describe(struct sparse_case *c, const struct arrays *on_device)
{
    const bool decodes = c->batch.mode == ATTN_MODE_DECODE;
    c->most = (attn_sparse_batch){.struct_size = sizeof c->most, .max_count = c->sizes->top_k};
    c->kv = (attn_kv_batch){.struct_size = sizeof c->kv,
                            .index_forms = ATTN_INDEX_ALL,
                            .page_size = c->sizes->page_size,
                            .req_to_token_stride = c->longest,
                            .block_table_stride = c->longest,
                            .out_cache_loc = BOTH(out_cache_loc),
                            .req_to_token = BOTH(req_to_token),
                            .block_table = BOTH(block_table),
                            .kv_indptr = BOTH(kv_indptr),
                            .kv_indices = BOTH(kv_indices),
                            .last_page_len = BOTH(last_page_len)};
    c->batch = (attn_batch){.struct_size = sizeof c->batch,
                            .mode = c->batch.mode,
                            .num_seqs = SEQS,
                            .num_tokens = c->rows,
                            .num_real_seqs = SEQS,
                            .num_real_tokens = c->rows,
                            .max_q_len = MOST_QUERIES,
                            .max_kv_len = c->longest,
                            .num_kv_groups = 1,
                            .seq_lens = BOTH(seq_lens),
                            .req_pool_indices = BOTH(requests),
                            .kv_groups = &c->kv,
                            .sparse = &c->most};
    if (decodes)
        return;
    c->batch.prefix_lens = (attn_i32_array)BOTH(prefix_lens);
    c->batch.q_indptr = (attn_i32_array)BOTH(q_indptr);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void close_case(struct sparse_case *c)
{
    case_session_destroy(c->session);
    device_release(c->device, ATTN_SPACE_DEVICE, c->block);
    free(c->image);
    free(c->before);
    free(c);
}

static void make_image(struct sparse_case *c)
{
    static const uint32_t inputs[] = {ATTN_ROLE_Q_NOPE, ATTN_ROLE_Q_PE,    ATTN_ROLE_C_KV,
                                      ATTN_ROLE_K_PE,   ATTN_ROLE_INDEX_Q, ATTN_ROLE_INDEX_WEIGHTS,
                                      ATTN_ROLE_INDEX_K};
    memset(c->image, 0xFF, c->bytes);
    for (size_t n = 0; n < sizeof inputs / sizeof inputs[0]; n++)
        fill(c, inputs[n]);
    for (int32_t s = 0; s < SEQS; s++)
        for (int32_t j = 0; j < c->arrays.prefix_lens[s]; j++)
            put_cached(c, c->arrays.req_to_token[c->arrays.requests[s] * c->longest + j]);
    memcpy(c->before, c->image, c->bytes);
}

/* NULL: the case has been skipped or has failed. */
static struct sparse_case *open_case(struct check_run *run, poser *pose_case)
{
    struct sparse_case *c = calloc(1, sizeof *c);
    if (!c) {
        check_fail(run, "no memory for a case");
        return NULL;
    }
    c->run = run;
    c->draw.seed = run->seed;
    host_error_init(&c->error);
    c->device = run->subject->device;
    pose_case(c, run->index);
    if (!is_accepted(c)) {
        check_skip(run, "query refuses sparse layers over %s, or %s labels of %d elements",
                   c->problem.kv_layout, dtype_name(c->sparse.label_dtype), c->sparse.label_dim);
        free(c);
        return NULL;
    }
    draw_sequences(c);
    add_operands(c);
    c->image = malloc(c->bytes);
    c->before = malloc(c->bytes);
    c->block =
        device_allocate(c->device, ATTN_SPACE_DEVICE, c->bytes + sizeof c->arrays, ALIGNMENT);
    const struct case_backend backend = numerics_backend(run->subject, NULL);
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    attn_status status =
        c->image && c->before && c->block
            ? session_create(&backend, &c->problem, c->device, &setup, &c->session, &c->error.base)
            : host_fail(&c->error.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for operands");
    if (status == ATTN_OK) {
        make_image(c);
        return c;
    }
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(run, "%s", host_error_text(&c->error));
    else
        check_fail(run, "%s: %s", host_status_name(status), host_error_text(&c->error));
    close_case(c);
    return NULL;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* A set of roles. */
#define R(name)   (UINT32_C(1) << ATTN_ROLE_##name)
#define QUERIES   (R(Q_NOPE) | R(Q_PE))
#define LATENTS   (R(C_KV) | R(K_PE) | R(LATENT_CACHE))
#define INDEXER   (R(INDEX_Q) | R(INDEX_WEIGHTS) | R(INDEX_K) | R(LABEL_CACHE))
#define CHOICE    (R(SPARSE_INDICES) | R(SPARSE_COUNT))
#define ALL_OF_IT (QUERIES | LATENTS | INDEXER | CHOICE | R(INDEX_LOGITS) | R(OUT))

/* Tensors of these roles at `memory`. */
static attn_forward_args view(struct sparse_case *c, uint32_t roles, char *memory, bool on_device,
                              const attn_tensor **operands)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        attn_tensor *tensor = &c->tensors[role];
        operands[role] = roles >> role & 1 ? tensor : NULL;
        tensor->data = memory + c->offsets[role];
        tensor->device_type = on_device ? c->device->type : ATTN_DEVICE_CPU;
        tensor->device_id = on_device ? c->device->id : 0;
    }
    return (attn_forward_args){.struct_size = sizeof(attn_forward_args),
                               .flags = ATTN_FORWARD_SAVE_KV,
                               .num_operands = ATTN_ROLE_COUNT,
                               .operands = operands};
}

/* Calls with each of these sets of roles, from the image to the image. */
static attn_status call_all(struct sparse_case *c, const uint32_t *sets, int count)
{
    const attn_backend_ops *ops = c->run->subject->type->ops;
    const bool decodes = c->batch.mode == ATTN_MODE_DECODE;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_error *error = &c->error.base;
    char *arrays = c->block + c->bytes;
    attn_status status =
        device_copy(c->device, c->block, c->image, c->bytes, c->session->stream, error);
    if (status == ATTN_OK)
        status =
            device_copy(c->device, arrays, &c->arrays, sizeof c->arrays, c->session->stream, error);
    describe(c, (const struct arrays *)(const void *)arrays);
    if (status == ATTN_OK)
        status =
            ops->init_forward_metadata(c->session->metadata, &c->batch, c->session->stream, error);
    for (int n = 0; n < count && status == ATTN_OK; n++) {
        attn_forward_args args = view(c, sets[n], c->block, true, operands);
        status = (decodes ? ops->forward_decode : ops->forward_extend)(
            c->session->metadata, c->layer.layer_id, &args, c->session->stream, error);
    }
    if (status == ATTN_OK)
        status = device_copy(c->device, c->image, c->block, c->bytes, c->session->stream, error);
    if (status == ATTN_OK)
        status = device_synchronize(c->device, c->session->stream, error);
    if (status != ATTN_OK)
        check_fail(c->run, "%s: %s", host_status_name(status), host_error_text(&c->error));
    return status;
}

/* ---- Judging --------------------------------------------------------------------------------- */

/* What is in the image of the choice and the output. */
static void judge(struct sparse_case *c, uint32_t chosen_by, uint32_t attended_by)
{
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    reference_choice_report choice = {0};
    reference_report report = {0};
    reference_result result = {0};
    attn_error *error = &c->error.base;
    describe(c, &c->arrays);
    attn_forward_args args = view(c, chosen_by, c->image, false, operands);
    attn_status status = chosen_by
                             ? reference_check_choice(&c->problem, &c->batch, c->layer.layer_id,
                                                      &args, &choice, error)
                             : ATTN_OK;
    CHECK_THAT(c->run, status == ATTN_OK, "the oracle: %s", host_error_text(&c->error));
    CHECK_THAT(c->run, !choice.message[0], "%s", choice.message);
    if (!attended_by)
        return;
    args = view(c, attended_by, c->image, false, operands);
    status =
        reference_forward(&c->problem, &c->batch, c->layer.layer_id, &args, NULL, &result, error);
    CHECK_THAT(c->run, status == ATTN_OK, "the oracle: %s", host_error_text(&c->error));
    status = reference_compare(&result, &c->tensors[ATTN_ROLE_OUT], NULL, &report, error);
    reference_result_finish(&result);
    CHECK_THAT(c->run, status == ATTN_OK, "the oracle: %s", host_error_text(&c->error));
    if (!reference_report_passed(&report))
        check_fail(c->run, "%s", report.message);
}

static void run_chosen(struct check_run *run, poser *pose_case)
{
    static const uint32_t at_once[] = {ALL_OF_IT};
    struct sparse_case *c = open_case(run, pose_case);
    if (!c)
        return;
    if (call_all(c, at_once, 1) == ATTN_OK)
        judge(c, ALL_OF_IT, QUERIES | LATENTS | CHOICE | R(OUT));
    close_case(c);
}

CHECK_RUN(sparse_chosen, run_chosen(run, pose_short))
CHECK_RUN(sparse_long, run_chosen(run, pose_long))

/* Logits by the truth, the choice by the logits that were written, the output by that choice. */
static void run_sparse_steps(struct check_run *run)
{
    static const uint32_t steps[] = {INDEXER | R(INDEX_LOGITS), R(INDEX_LOGITS) | CHOICE,
                                     QUERIES | LATENTS | CHOICE | R(OUT)};
    struct sparse_case *c = open_case(run, pose_short);
    if (!c)
        return;
    if (call_all(c, steps, 3) == ATTN_OK) {
        judge(c, INDEXER | R(INDEX_LOGITS), 0);
        if (run->code == CHECK_PASS)
            judge(c, steps[1], steps[2]);
    }
    close_case(c);
}

/* Any keys of the cache, after them one that the count leaves out; of some rows none. */
static void draw_choices(struct sparse_case *c)
{
    int32_t *indices = (int32_t *)(void *)in_image(c, ATTN_ROLE_SPARSE_INDICES);
    int32_t *counts = (int32_t *)(void *)in_image(c, ATTN_ROLE_SPARSE_COUNT);
    for (int32_t s = 0; s < SEQS; s++)
        for (int32_t row = c->arrays.q_indptr[s]; row < c->arrays.q_indptr[s + 1]; row++) {
            int32_t seen = c->arrays.prefix_lens[s] + row - c->arrays.q_indptr[s] + 1;
            int32_t most = seen < c->sizes->top_k ? seen : c->sizes->top_k;
            int32_t first = draw_below(&c->draw, seen), count = most > 1 ? most - 1 : most;
            for (int32_t n = 0; n < c->sizes->top_k; n++)
                indices[row * c->sizes->top_k + n] =
                    n < most
                        ? c->arrays
                              .req_to_token[c->arrays.requests[s] * c->longest + (first + n) % seen]
                        : -1;
            counts[row] = count;
        }
}

static void run_sparse_given(struct check_run *run)
{
    static const uint32_t given[] = {QUERIES | LATENTS | CHOICE | R(OUT)};
    struct sparse_case *c = open_case(run, pose_short);
    if (!c)
        return;
    draw_choices(c);
    if (call_all(c, given, 1) == ATTN_OK)
        judge(c, 0, given[0]);
    close_case(c);
}

/* The caches, to the bit. */
static void run_sparse_labels(struct check_run *run)
{
    static const uint32_t at_once[] = {ALL_OF_IT};
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    struct sparse_case *c = open_case(run, pose_short);
    if (!c)
        return;
    if (call_all(c, at_once, 1) == ATTN_OK) {
        attn_tensor labels, latents;
        describe(c, &c->arrays);
        attn_forward_args args = view(c, ALL_OF_IT & ~CHOICE, c->image, false, operands);
        labels = c->tensors[ATTN_ROLE_LABEL_CACHE];
        latents = c->tensors[ATTN_ROLE_LATENT_CACHE];
        labels.data = c->before + c->offsets[ATTN_ROLE_LABEL_CACHE];
        latents.data = c->before + c->offsets[ATTN_ROLE_LATENT_CACHE];
        attn_status status = reference_expected_labels(&c->problem, &c->batch, c->layer.layer_id,
                                                       &args, &labels, &c->error.base);
        if (status == ATTN_OK)
            status = reference_expected_kv(&c->problem, &c->batch, c->layer.layer_id, &args,
                                           &latents, NULL, &c->error.base);
        if (status != ATTN_OK)
            check_fail(run, "the oracle: %s", host_error_text(&c->error));
        else if (reference_compare_kv(&c->problem, &c->tensors[ATTN_ROLE_LABEL_CACHE], &labels,
                                      NULL) > 0)
            check_fail(run, "the label cache is not what it was with the new labels in it");
        else if (reference_compare_kv(&c->problem, &c->tensors[ATTN_ROLE_LATENT_CACHE], &latents,
                                      NULL) > 0)
            check_fail(run, "the latent cache is not what it was with the new latents in it");
    }
    close_case(c);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_sparse[] = {
    CHECK_ROW("MEAN-21", sparse_given, count_sparse, CHECK_NEEDS_COMPUTE,
              "a row attends to the latents in its list of indices, as many as its count"),
    CHECK_ROW("MEAN-24", sparse_chosen, count_sparse, CHECK_NEEDS_COMPUTE,
              "a layer with an indexer chooses, of the keys that a row sees, those with the "
              "largest logits, and attends to them"),
    CHECK_ROW("MEAN-24", sparse_long, count_long, CHECK_NEEDS_COMPUTE,
              "the 2048 keys with the largest logits are chosen from thousands, even if many "
              "logits are equal"),
    CHECK_ROW("MEAN-24", sparse_steps, count_sparse, CHECK_NEEDS_COMPUTE,
              "logits, choice and attention may run in separate calls"),
    CHECK_ROW("KV-17", sparse_labels, count_sparse, CHECK_NEEDS_COMPUTE,
              "only new labels and latents are written to the caches"),
    {.rule = NULL},
};
