/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_shim.c: an absorbed decode of latent attention behind attnhost.h, for cpu_mla.py, whose class
 * Setup is the twin of mla_setup. Tensors belong to the caller. The cache has all keys; the pages
 * of a sequence lie in an order that no prefetcher knows.
 */
#include <attnhost.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    const char *isa; /* the option; NULL = as the backend likes */
} mla_setup;

typedef struct mla_bench {
    mla_setup setup;
    int32_t max_pages; /* of a sequence */
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    attn_layer *layers;
    attn_tensor (*tensors)[ATTN_ROLE_COUNT];
    int32_t *pages, *lens; /* [num_seqs][max_pages], [num_seqs] */
    attn_scale scale;
    attn_kv_batch kv;
    attn_batch batch;
    attn_error error;
    char message[512];
} mla_bench;

mla_bench *mla_bench_create(const mla_setup *setup, attn_status *status);
void mla_bench_destroy(mla_bench *b);
const char *mla_bench_message(const mla_bench *b);
const int32_t *mla_bench_pages(const mla_bench *b);
attn_status mla_bench_bind(mla_bench *b, int32_t layer, uint32_t role, void *data, uint32_t dtype,
                           uint32_t ndim, const int64_t *shape);
attn_status mla_bench_steps(mla_bench *b, int32_t count);

/* Pages 1, 2, ... shuffled (Fisher and Yates, fixed seed). */
static void shuffle_pages(mla_bench *b)
{
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < b->setup.num_seqs * b->max_pages; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int32_t j = (int32_t)((random >> 33) % (uint64_t)(i + 1));
        b->pages[i] = b->pages[j];
        b->pages[j] = i + 1;
    }
}

static void fill_batch(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    shuffle_pages(b);
    for (int32_t n = 0; n < s->num_seqs; n++)
        b->lens[n] = s->num_tokens;
    b->kv = (attn_kv_batch){.struct_size = sizeof b->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = s->page_size,
                            .block_table_stride = b->max_pages,
                            .block_table = {b->pages, b->pages}};
    b->batch = (attn_batch){.struct_size = sizeof b->batch,
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

static attn_status compose(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    const char *const isa[] = {"isa", s->isa};
    attn_device device = {.struct_size = sizeof device};
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
    int scaled = s->kv_dtype != s->dtype && !s->packed;
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
                                  scaled ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_NONE,
                              .num_layers = (uint32_t)s->num_layers,
                              .layers = b->layers,
                              .mla = &dims};
    attn_problem problem = {.struct_size = sizeof problem,
                            .device = &device,
                            .group = &group,
                            .bounds = &bounds,
                            .kv_layout =
                                s->packed ? ATTN_LAYOUT_MLA_LATENT_FP8 : ATTN_LAYOUT_MLA_LATENT,
                            .page_size = s->page_size,
                            .q_dtype = s->dtype,
                            .kv_dtype = s->kv_dtype,
                            .out_dtype = s->dtype,
                            .tp_size = 1};
    for (int32_t i = 0; i < s->num_layers; i++)
        b->layers[i] =
            (attn_layer){.struct_size = sizeof(attn_layer), .layer_id = i, .kv_buffer = i};
    attn_status status = attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, &b->error);
    if (status == ATTN_OK)
        status =
            attnhost_define_backend(b->host, "bench", s->backend, isa, s->isa ? 1 : 0, &b->error);
    if (status == ATTN_OK)
        status = attnhost_compose(b->host, "bench", &problem, 1, &b->backend, &b->error);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(b->backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                          &b->metadata, &b->error);
    return status;
}

static attn_status open_backend(mla_bench *b)
{
    const mla_setup *s = &b->setup;
    size_t seqs = (size_t)s->num_seqs, layers = (size_t)s->num_layers;
    attnhost_params params = {.struct_size = sizeof params,
                              .num_threads = (uint32_t)s->num_threads,
                              .log_level = ATTN_LOG_WARNING};
    b->max_pages = (s->num_tokens + s->page_size - 1) / s->page_size;
    b->layers = calloc(layers, sizeof *b->layers);
    b->tensors = calloc(layers, sizeof *b->tensors);
    b->pages = calloc(seqs * ((size_t)b->max_pages + 1), sizeof *b->pages);
    if (!b->layers || !b->tensors || !b->pages) {
        snprintf(b->message, sizeof b->message, "out of memory");
        return ATTN_OUT_OF_HOST_MEMORY;
    }
    b->lens = b->pages + seqs * (size_t)b->max_pages;
    b->scale = (attn_scale){.struct_size = sizeof b->scale,
                            .granularity = ATTN_SCALE_PER_TENSOR,
                            .count = 1,
                            .host = &b->setup.kv_scale};
    fill_batch(b);
    attn_status status = attnhost_create(&params, &b->host, &b->error);
    if (status == ATTN_OK)
        status = attnhost_load_plugin(b->host, s->plugin, &b->error);
    return status == ATTN_OK ? compose(b) : status;
}

/* NULL only without memory; else *status tells, and mla_bench_message() why. */
mla_bench *mla_bench_create(const mla_setup *setup, attn_status *status)
{
    mla_bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->setup = *setup;
    b->error = (attn_error){
        .struct_size = sizeof b->error, .capacity = sizeof b->message, .message = b->message};
    *status = setup->struct_size == sizeof *setup ? open_backend(b) : ATTN_INVALID_ARGUMENT;
    return b;
}

void mla_bench_destroy(mla_bench *b)
{
    attnhost_metadata_destroy(b->metadata);
    attnhost_backend_destroy(b->backend);
    attnhost_destroy(b->host);
    free(b->layers);
    free(b->tensors);
    free(b->pages);
    free(b);
}

const char *mla_bench_message(const mla_bench *b)
{
    return b->message;
}

/* [num_seqs][pages of a sequence]; page 0 is padding. */
const int32_t *mla_bench_pages(const mla_bench *b)
{
    return b->pages;
}

attn_status mla_bench_bind(mla_bench *b, int32_t layer, uint32_t role, void *data, uint32_t dtype,
                           uint32_t ndim, const int64_t *shape)
{
    return attnhost_tensor_init(&b->tensors[layer][role], data, ATTN_DEVICE_CPU, 0, dtype, ndim,
                                shape, NULL, &b->error);
}

/* `count` times a step: plan the batch, forward every layer. */
attn_status mla_bench_steps(mla_bench *b, int32_t count)
{
    attn_status status = ATTN_OK;
    const attn_scale *scales[ATTN_ROLE_COUNT] = {[ATTN_ROLE_LATENT_CACHE] = &b->scale};
    int scaled = b->setup.kv_dtype != b->setup.dtype && !b->setup.packed;
    for (int32_t step = 0; step < count && status == ATTN_OK; step++) {
        status = attnhost_init_forward_metadata(b->metadata, &b->batch, NULL, &b->error);
        for (int32_t layer = 0; layer < b->setup.num_layers && status == ATTN_OK; layer++) {
            const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
            attn_forward_args args = {.struct_size = sizeof args,
                                      .num_operands = ATTN_ROLE_COUNT,
                                      .operands = operands,
                                      .num_scales = scaled ? ATTN_ROLE_COUNT : 0,
                                      .scales = scales};
            for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
                if (b->tensors[layer][role].struct_size != 0)
                    operands[role] = &b->tensors[layer][role];
            status = attnhost_forward(b->metadata, layer, &args, NULL, &b->error);
        }
    }
    return status;
}
