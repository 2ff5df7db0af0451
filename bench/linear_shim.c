/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_shim.c: a backend of linear layers behind attnhost.h, for cpu_linear.py; the class
 * LinearSetup is the twin of linear_setup. Sequence s has state slot s + 1, which is updated in
 * place.
 */
#include "shim.h"

#include <stdlib.h>

typedef struct linear_setup {
    uint32_t struct_size;
    uint32_t family; /* ATTN_LINEAR_* */
    uint32_t flags;  /* ATTN_LINEAR_* flags */
    uint32_t dtype;
    uint32_t state_dtype;
    int32_t decode; /* 1: a token for each sequence, of an existing state */
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

enum { NUM_ARRAYS = 5 }; /* of the index, num_seqs + 1 elements each */

typedef struct linear_bench {
    shim shim;
    linear_setup setup;
    int32_t *slots, *initial, *lens, *prefix; /* [num_seqs] */
    int32_t *indptr;                          /* [num_seqs + 1] */
    attn_state_batch state;
} linear_bench;

shim *shim_create(const linear_setup *setup, attn_status *status);

static void fill_batch(linear_bench *b)
{
    const linear_setup *s = &b->setup;
#define BOTH(array) {b->array, b->array}
    int32_t **const parts[] = {&b->slots, &b->initial, &b->lens, &b->prefix, &b->indptr};
    for (size_t i = 0; i < NUM_ARRAYS; i++)
        *parts[i] = (int32_t *)b->shim.index + i * ((size_t)s->num_seqs + 1);
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
    b->shim.batch = (attn_batch){.struct_size = sizeof b->shim.batch,
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
                                 .num_state_groups = 1,
                                 .state_groups = &b->state};
#undef BOTH
}

static attn_status compose(linear_bench *b)
{
    const linear_setup *s = &b->setup;
    attn_bounds bounds = {.struct_size = sizeof bounds,
                          .modes = ATTN_MODE_BIT(b->shim.batch.mode),
                          .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                          .max_seqs = s->num_seqs,
                          .max_tokens = b->shim.batch.num_tokens,
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
                              .layers = b->shim.layers,
                              .linear = &dims};
    attn_problem problem = {.struct_size = sizeof problem,
                            .group = &group,
                            .bounds = &bounds,
                            .state_layout =
                                s->vk ? ATTN_LAYOUT_STATE_SSM_VK : ATTN_LAYOUT_STATE_SSM_KV,
                            .q_dtype = s->dtype,
                            .kv_dtype = s->dtype,
                            .out_dtype = s->dtype,
                            .tp_size = 1};
    return shim_compose(&b->shim, s->backend, NULL, 0, &problem, ATTN_METADATA_EAGER);
}

static attn_status open_backend(linear_bench *b)
{
    const linear_setup *s = &b->setup;
    const shim_params params = {.device_type = ATTN_DEVICE_CPU,
                                .num_layers = s->num_layers,
                                .num_threads = s->num_threads,
                                .index_bytes =
                                    NUM_ARRAYS * ((size_t)s->num_seqs + 1) * sizeof *b->slots,
                                .plugin = s->plugin};
    attn_status status = shim_open(&b->shim, &params);
    if (status != ATTN_OK)
        return status;
    fill_batch(b);
    return compose(b);
}

/* NULL only without memory; else *status says so, and shim_message() why. */
shim *shim_create(const linear_setup *setup, attn_status *status)
{
    linear_bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *status = shim_init(&b->shim, "linear_setup", setup->struct_size, sizeof *setup);
    if (*status == ATTN_OK) {
        b->setup = *setup;
        *status = open_backend(b);
    }
    return &b->shim;
}
