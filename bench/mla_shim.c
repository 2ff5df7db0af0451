/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_shim.c: absorbed latent attention through attnhost.h, decode or a verification of drafts, for
 * cpu_mla.py and gpu_mla.py; the class MlaSetup is the twin of mla_setup. The cache has all keys;
 * the pages of a sequence are shuffled. */
#include "shim.h"

#include <stdlib.h>

typedef struct mla_setup {
    uint32_t struct_size;
    uint32_t dtype; /* of queries and output */
    uint32_t kv_dtype;
    int32_t packed;      /* mla.latent_fp8/1 */
    int32_t device_type; /* ATTN_DEVICE_*, the first of its kind */
    int32_t graph;       /* 1: GRAPH metadata, 0: EAGER */
    int32_t num_seqs;
    int32_t num_tokens; /* keys of each sequence */
    int32_t num_new; /* of them the last, which are its queries; 1: DECODE, more: TARGET_VERIFY */
    int32_t num_heads;
    int32_t lora;
    int32_t rope;
    int32_t page_size;
    int32_t num_layers;
    int32_t num_threads;
    float sm_scale;
    float kv_scale;     /* of an fp8 mla.latent/1 */
    const char *plugin; /* a file */
    const char *backend;
    const char *const *options; /* [num_options] pairs of a key and a value, of the backend */
    uint32_t num_options;
} mla_setup;

typedef struct mla_bench {
    shim shim;
    mla_setup setup;
    int32_t max_pages;                        /* of a sequence */
    int32_t *pages;                           /* [num_seqs][max_pages], the index's first */
    int32_t *lens, *prefix, *last, *requests; /* [num_seqs] */
    int32_t *q_indptr, *kv_indptr;            /* [num_seqs + 1] */
    int32_t *num_real;                        /* sequences, rows */
    int32_t *slots; /* req_to_token: [num_seqs + 1][max_pages * page_size] */
    attn_scale scale;
    attn_kv_batch kv;
    attn_speculation speculation;
} mla_bench;

enum { NUM_ARRAYS = 7 }; /* of the index but the pages, num_seqs + 2 elements each */

shim *shim_create(const mla_setup *setup, attn_status *status);
const int32_t *shim_pages(const shim *s);

static uint32_t mode_of(const mla_setup *s)
{
    return s->num_new > 1 ? ATTN_MODE_TARGET_VERIFY : ATTN_MODE_DECODE;
}

static size_t index_elements(const mla_bench *b)
{
    size_t seqs = (size_t)b->setup.num_seqs;
    return (seqs + (seqs + 1) * (size_t)b->setup.page_size) * (size_t)b->max_pages +
           NUM_ARRAYS * (seqs + 2);
}

static void fill_index(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    int32_t **const parts[NUM_ARRAYS] = {&b->lens,     &b->prefix,    &b->last,    &b->requests,
                                         &b->q_indptr, &b->kv_indptr, &b->num_real};
    b->pages = b->shim.index;
    for (int32_t i = 0; i < NUM_ARRAYS; i++)
        *parts[i] = b->pages + s->num_seqs * b->max_pages + i * (s->num_seqs + 2);
    b->slots = b->pages + s->num_seqs * b->max_pages + NUM_ARRAYS * (s->num_seqs + 2);
    shim_shuffle_pages(b->pages, s->num_seqs * b->max_pages);
    const int64_t row =
        (int64_t)b->max_pages * s->page_size; /* slots of a request; of 0 they are 0 */
    for (int64_t j = 0; j < s->num_seqs * row; j++)
        b->slots[row + j] = b->pages[j / s->page_size] * s->page_size + (int32_t)(j % s->page_size);
    for (int32_t n = 0; n < s->num_seqs; n++) {
        b->lens[n] = s->num_tokens;
        b->prefix[n] = s->num_tokens - s->num_new;
        b->last[n] = (s->num_tokens - 1) % s->page_size + 1;
        b->requests[n] = n + 1;
        b->q_indptr[n + 1] = b->q_indptr[n] + s->num_new;
        b->kv_indptr[n + 1] = b->kv_indptr[n] + b->max_pages;
    }
    b->num_real[0] = s->num_seqs;
    b->num_real[1] = s->num_seqs * s->num_new;
}

static void fill_batch(shim *made)
{
    mla_bench *b = (mla_bench *)made; /* which begins with it */
    const mla_setup *s = &b->setup;
    b->kv = (attn_kv_batch){.struct_size = sizeof b->kv,
                            .index_forms =
                                ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR | ATTN_INDEX_REQ_TO_TOKEN,
                            .page_size = s->page_size,
                            .block_table_stride = b->max_pages,
                            .block_table = shim_both(made, b->pages),
                            .req_to_token_stride = b->max_pages * s->page_size,
                            .req_to_token = shim_both(made, b->slots),
                            .kv_indptr = shim_both(made, b->kv_indptr),
                            .kv_indices = shim_both(made, b->pages),
                            .last_page_len = shim_both(made, b->last)};
    b->speculation = (attn_speculation){
        .struct_size = sizeof b->speculation, .num_draft_tokens = s->num_new, .top_k = 1};
    b->shim.batch = (attn_batch){
        .struct_size = sizeof b->shim.batch,
        .mode = mode_of(s),
        .num_seqs = s->num_seqs,
        .num_tokens = s->num_seqs * s->num_new,
        .num_real_seqs = s->num_seqs,
        .num_real_tokens = s->num_seqs * s->num_new,
        .max_q_len = s->num_new,
        .max_kv_len = s->num_tokens,
        .num_kv_groups = 1,
        .num_real_seqs_device = s->graph ? shim_both(made, b->num_real).device : NULL,
        .num_real_tokens_device = s->graph ? shim_both(made, b->num_real + 1).device : NULL,
        .seq_lens = shim_both(made, b->lens),
        .prefix_lens = shim_both(made, b->prefix),
        .q_indptr = shim_both(made, b->q_indptr),
        .req_pool_indices = shim_both(made, b->requests),
        .kv_groups = &b->kv,
        .speculation = s->num_new > 1 ? &b->speculation : NULL,
    };
}

/* Rows of mla.latent_fp8/1 have their scales in them. */
static int is_scaled(const mla_setup *s)
{
    return s->kv_dtype != s->dtype && !s->packed;
}

static attn_status compose(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    attn_bounds bounds = {.struct_size = sizeof bounds,
                          .modes = ATTN_MODE_BIT(mode_of(s)),
                          .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                          .max_seqs = s->num_seqs,
                          .max_tokens = s->num_seqs * s->num_new,
                          .max_q_len = s->num_new,
                          .max_kv_len = s->num_tokens,
                          .max_kv_tokens = (int64_t)s->num_seqs * b->max_pages * s->page_size};
    attn_mla_dims dims = {
        .struct_size = sizeof dims, .kv_lora_rank = s->lora, .rope_dim = s->rope, .nope_dim = 128};
    attn_layer_group group = {.struct_size = sizeof group,
                              .kind = ATTN_KIND_MLA,
                              .attn_type = ATTN_TYPE_DECODER,
                              .num_q_heads = s->num_heads,
                              .num_kv_heads = s->num_heads,
                              .head_dim = dims.nope_dim + s->rope,
                              .v_head_dim = dims.nope_dim,
                              .window_left = -1,
                              .sm_scale = s->sm_scale,
                              .kv_scale_granularity =
                                  is_scaled(s) ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_NONE,
                              .num_layers = (uint32_t)s->num_layers,
                              .layers = b->shim.layers,
                              .mla = &dims};
    uint32_t level = s->num_new > 1 ? ATTN_GRAPH_UNIFORM : ATTN_GRAPH_SINGLE_TOKEN;
    attn_problem problem = {.struct_size = sizeof problem,
                            .graph_level = s->graph ? level : ATTN_GRAPH_NEVER,
                            .group = &group,
                            .bounds = &bounds,
                            .kv_layout =
                                s->packed ? ATTN_LAYOUT_MLA_LATENT_FP8 : ATTN_LAYOUT_MLA_LATENT,
                            .page_size = s->page_size,
                            .q_dtype = s->dtype,
                            .kv_dtype = s->kv_dtype,
                            .out_dtype = s->dtype,
                            .tp_size = 1};
    return shim_compose(&b->shim, s->backend, s->options, s->num_options, &problem,
                        s->graph ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER);
}

static attn_status open_backend(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    b->max_pages = (s->num_tokens + s->page_size - 1) / s->page_size;
    const shim_params params = {.device_type = s->device_type,
                                .num_layers = s->num_layers,
                                .num_threads = s->num_threads,
                                .index_bytes = index_elements(b) * sizeof *b->pages,
                                .plugin = s->plugin,
                                .describe = fill_batch};
    attn_status status = shim_open(&b->shim, &params);
    if (status != ATTN_OK)
        return status;
    fill_index(b);
    if (s->device_type == ATTN_DEVICE_CPU)
        shim_place_index(&b->shim, b->shim.index);
    b->scale = (attn_scale){.struct_size = sizeof b->scale,
                            .granularity = ATTN_SCALE_PER_TENSOR,
                            .count = 1,
                            .host = &b->setup.kv_scale};
    if (is_scaled(s))
        b->shim.scales[ATTN_ROLE_LATENT_CACHE] = &b->scale;
    return compose(b);
}

/* NULL only without memory; else *status says so, and shim_message() why. */
shim *shim_create(const mla_setup *setup, attn_status *status)
{
    mla_bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *status = shim_init(&b->shim, "mla_setup", setup->struct_size, sizeof *setup);
    if (*status == ATTN_OK) {
        b->setup = *setup;
        *status = open_backend(b);
    }
    return &b->shim;
}

/* [num_seqs][pages of a sequence]; page 0 is padding. */
const int32_t *shim_pages(const shim *s)
{
    return s->index;
}
