/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_shim.c: a backend of linear layers behind attnhost.h, for cpu_linear.py, whose class Setup
 * is the twin of linear_setup. Tensors belong to the caller. Sequence s has state slot s + 1, which
 * is updated in place.
 */
#include <attnhost.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct linear_setup {
    uint32_t struct_size;
    uint32_t family; /* ATTN_LINEAR_* */
    uint32_t flags;  /* ATTN_LINEAR_* flags */
    uint32_t dtype;
    uint32_t state_dtype;
    int32_t decode; /* 1: a token for each sequence, of a state that is there */
    int32_t num_seqs;
    int32_t num_tokens; /* new ones of each sequence */
    int32_t k_heads;
    int32_t v_heads;
    int32_t k_dim;
    int32_t v_dim;
    int32_t conv_width;
    int32_t vk; /* state.ssm.vk/1 */
    int32_t num_layers;
    int32_t num_threads;
    float sm_scale;
    const char *plugin; /* a file */
    const char *backend;
} linear_setup;

typedef struct linear_bench {
    linear_setup setup;
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    attn_layer *layers;
    attn_tensor (*tensors)[ATTN_ROLE_COUNT];
    int32_t *slots, *initial, *lens, *indptr, *prefix;
    attn_state_batch state;
    attn_batch batch;
    attn_error error;
    char message[512];
} linear_bench;

linear_bench *linear_bench_create(const linear_setup *setup, attn_status *status);
void linear_bench_destroy(linear_bench *b);
const char *linear_bench_message(const linear_bench *b);
attn_status linear_bench_bind(linear_bench *b, int32_t layer, uint32_t role, void *data,
                              uint32_t dtype, uint32_t ndim, const int64_t *shape);
attn_status linear_bench_steps(linear_bench *b, int32_t count);

static void fill_batch(linear_bench *b)
{
    const linear_setup *s = &b->setup;
#define BOTH(array)                                                                                \
    {                                                                                              \
        b->array, b->array                                                                         \
    }
    for (int32_t n = 0; n < s->num_seqs; n++) {
        b->slots[n] = n + 1;
        b->initial[n] = s->decode;
        b->prefix[n] = s->decode ? 100 : 0;
        b->lens[n] = b->prefix[n] + s->num_tokens;
        b->indptr[n + 1] = b->indptr[n] + s->num_tokens;
    }
    b->state = (attn_state_batch){.struct_size = sizeof b->state,
                                  .slot = BOTH(slots),
                                  .dst_slot = BOTH(slots),
                                  .has_initial = BOTH(initial)};
    b->batch = (attn_batch){.struct_size = sizeof b->batch,
                            .mode = s->decode ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND,
                            .num_seqs = s->num_seqs,
                            .num_tokens = s->num_seqs * s->num_tokens,
                            .num_real_seqs = s->num_seqs,
                            .num_real_tokens = s->num_seqs * s->num_tokens,
                            .max_q_len = s->num_tokens,
                            .max_kv_len = b->lens[0],
                            .seq_lens = BOTH(lens),
                            .prefix_lens = BOTH(prefix),
                            .q_indptr = BOTH(indptr),
                            .state = &b->state};
#undef BOTH
}

static attn_status compose(linear_bench *b)
{
    const linear_setup *s = &b->setup;
    attn_device device = {.struct_size = sizeof device};
    attn_bounds bounds = {.struct_size = sizeof bounds,
                          .modes = ATTN_MODE_BIT(b->batch.mode),
                          .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                          .max_seqs = s->num_seqs,
                          .max_tokens = b->batch.num_tokens,
                          .max_q_len = s->num_tokens,
                          .max_kv_len = b->lens[0],
                          .max_kv_tokens = (int64_t)b->lens[0] * s->num_seqs};
    attn_linear_dims dims = {.struct_size = sizeof dims,
                             .family = s->family,
                             .flags = s->flags,
                             .num_k_heads = s->k_heads,
                             .num_v_heads = s->v_heads,
                             .head_k_dim = s->k_dim,
                             .head_v_dim = s->v_dim,
                             .num_groups = s->family == ATTN_LINEAR_MAMBA2 ? s->k_heads : 0,
                             .conv_width = s->conv_width,
                             .state_dtype = s->state_dtype,
                             .conv_dtype = s->dtype};
    attn_layer_group group = {.struct_size = sizeof group,
                              .kind = ATTN_KIND_LINEAR,
                              .attn_type = ATTN_TYPE_DECODER,
                              .num_q_heads = s->v_heads,
                              .num_kv_heads = s->k_heads,
                              .head_dim = s->k_dim,
                              .v_head_dim = s->v_dim,
                              .window_left = -1,
                              .sm_scale = s->sm_scale,
                              .num_layers = (uint32_t)s->num_layers,
                              .layers = b->layers,
                              .linear = &dims};
    attn_problem problem = {.struct_size = sizeof problem,
                            .device = &device,
                            .group = &group,
                            .bounds = &bounds,
                            .state_layout =
                                s->vk ? ATTN_LAYOUT_STATE_SSM_VK : ATTN_LAYOUT_STATE_SSM_KV,
                            .q_dtype = s->dtype,
                            .kv_dtype = s->dtype,
                            .out_dtype = s->dtype,
                            .tp_size = 1};
    for (int32_t i = 0; i < s->num_layers; i++)
        b->layers[i] =
            (attn_layer){.struct_size = sizeof(attn_layer), .layer_id = i, .kv_buffer = i};
    attn_status status = attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, &b->error);
    if (status == ATTN_OK)
        status = attnhost_compose(b->host, s->backend, &problem, 1, &b->backend, &b->error);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(b->backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                          &b->metadata, &b->error);
    return status;
}

static attn_status open_backend(linear_bench *b)
{
    size_t seqs = (size_t)b->setup.num_seqs, layers = (size_t)b->setup.num_layers;
    attnhost_params params = {.struct_size = sizeof params,
                              .num_threads = (uint32_t)b->setup.num_threads,
                              .log_level = ATTN_LOG_WARNING};
    b->layers = calloc(layers, sizeof *b->layers);
    b->tensors = calloc(layers, sizeof *b->tensors);
    b->slots = calloc(5 * (seqs + 1), sizeof *b->slots);
    if (!b->layers || !b->tensors || !b->slots) {
        snprintf(b->message, sizeof b->message, "out of memory");
        return ATTN_OUT_OF_HOST_MEMORY;
    }
    b->initial = b->slots + seqs + 1;
    b->lens = b->initial + seqs + 1;
    b->prefix = b->lens + seqs + 1;
    b->indptr = b->prefix + seqs + 1;
    fill_batch(b);
    attn_status status = attnhost_create(&params, &b->host, &b->error);
    if (status == ATTN_OK)
        status = attnhost_load_plugin(b->host, b->setup.plugin, &b->error);
    return status == ATTN_OK ? compose(b) : status;
}

/* NULL only without memory; else *status tells, and linear_bench_message() why. */
linear_bench *linear_bench_create(const linear_setup *setup, attn_status *status)
{
    linear_bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->setup = *setup;
    b->error = (attn_error){
        .struct_size = sizeof b->error, .capacity = sizeof b->message, .message = b->message};
    *status = setup->struct_size == sizeof *setup ? open_backend(b) : ATTN_INVALID_ARGUMENT;
    return b;
}

void linear_bench_destroy(linear_bench *b)
{
    attnhost_metadata_destroy(b->metadata);
    attnhost_backend_destroy(b->backend);
    attnhost_destroy(b->host);
    free(b->layers);
    free(b->tensors);
    free(b->slots);
    free(b);
}

const char *linear_bench_message(const linear_bench *b)
{
    return b->message;
}

attn_status linear_bench_bind(linear_bench *b, int32_t layer, uint32_t role, void *data,
                              uint32_t dtype, uint32_t ndim, const int64_t *shape)
{
    return attnhost_tensor_init(&b->tensors[layer][role], data, ATTN_DEVICE_CPU, 0, dtype, ndim,
                                shape, NULL, &b->error);
}

/* `count` times a step: plan the batch, forward every layer. */
attn_status linear_bench_steps(linear_bench *b, int32_t count)
{
    attn_status status = ATTN_OK;
    for (int32_t step = 0; step < count && status == ATTN_OK; step++) {
        status = attnhost_init_forward_metadata(b->metadata, &b->batch, NULL, &b->error);
        for (int32_t layer = 0; layer < b->setup.num_layers && status == ATTN_OK; layer++) {
            const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
            attn_forward_args args = {
                .struct_size = sizeof args, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
            for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
                if (b->tensors[layer][role].struct_size != 0)
                    operands[role] = &b->tensors[layer][role];
            status = attnhost_forward(b->metadata, layer, &args, NULL, &b->error);
        }
    }
    return status;
}
