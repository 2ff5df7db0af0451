/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_shim.c: an absorbed decode of latent attention behind attnhost.h, for cpu_mla.py; the class
 * MlaSetup is the twin of mla_setup. The cache has all keys; the pages of a sequence are shuffled.
 */
#include "shim.h"

#include <stdlib.h>

typedef struct mla_setup {
    uint32_t struct_size;
    uint32_t dtype; /* of queries and output */
    uint32_t kv_dtype;
    int32_t packed; /* mla.latent_fp8/1 */
    int32_t num_seqs;
    int32_t num_tokens; /* keys of each sequence */
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
    int32_t max_pages;     /* of a sequence */
    int32_t *pages, *lens; /* [num_seqs][max_pages], [num_seqs] */
    attn_scale scale;
    attn_kv_batch kv;
} mla_bench;

shim *shim_create(const mla_setup *setup, attn_status *status);
const int32_t *shim_pages(const shim *s);

static void fill_batch(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    b->pages = b->shim.index;
    b->lens = b->pages + s->num_seqs * b->max_pages;
    shim_shuffle_pages(b->pages, s->num_seqs * b->max_pages);
    for (int32_t n = 0; n < s->num_seqs; n++)
        b->lens[n] = s->num_tokens;
    b->kv = (attn_kv_batch){.struct_size = sizeof b->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = s->page_size,
                            .block_table_stride = b->max_pages,
                            .block_table = {b->pages, b->pages}};
    b->shim.batch = (attn_batch){.struct_size = sizeof b->shim.batch,
                                 .mode = ATTN_MODE_DECODE,
                                 .num_seqs = s->num_seqs,
                                 .num_tokens = s->num_seqs,
                                 .num_real_seqs = s->num_seqs,
                                 .num_real_tokens = s->num_seqs,
                                 .max_q_len = 1,
                                 .max_kv_len = s->num_tokens,
                                 .num_kv_groups = 1,
                                 .seq_lens = {b->lens, b->lens},
                                 .kv_groups = &b->kv};
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
                          .modes = ATTN_MODE_BIT(ATTN_MODE_DECODE),
                          .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                          .max_seqs = s->num_seqs,
                          .max_tokens = s->num_seqs,
                          .max_q_len = 1,
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
    attn_problem problem = {.struct_size = sizeof problem,
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
                        ATTN_METADATA_EAGER);
}

static attn_status open_backend(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    b->max_pages = (s->num_tokens + s->page_size - 1) / s->page_size;
    const shim_params params = {.device_type = ATTN_DEVICE_CPU,
                                .num_layers = s->num_layers,
                                .num_threads = s->num_threads,
                                .index_bytes = (size_t)s->num_seqs * ((size_t)b->max_pages + 1) *
                                               sizeof *b->pages,
                                .plugin = s->plugin};
    attn_status status = shim_open(&b->shim, &params);
    if (status != ATTN_OK)
        return status;
    fill_batch(b);
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
