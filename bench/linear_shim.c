/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_shim.c: see linear_shim.h.
 */
#include "linear_shim.h"

#include <stdlib.h>

enum { NUM_ARRAYS = 7 }; /* of the index, num_seqs + 2 elements each */

typedef struct linear_bench {
    shim shim;
    linear_setup setup;
    int32_t *slots, *written, *initial, *lens, *prefix; /* [num_seqs] */
    int32_t *indptr;                                    /* [num_seqs + 1] */
    int32_t *num_real;                                  /* sequences, rows */
    attn_state_batch state;
} linear_bench;

static void fill_index(linear_bench *b)
{
    const linear_setup *s = &b->setup;
    int32_t **const parts[NUM_ARRAYS] = {&b->slots,  &b->written, &b->initial, &b->lens,
                                         &b->prefix, &b->indptr,  &b->num_real};
    for (size_t i = 0; i < NUM_ARRAYS; i++)
        *parts[i] = (int32_t *)b->shim.index + i * ((size_t)s->num_seqs + 2);
    for (int32_t n = 0; n < s->num_seqs; n++) {
        b->slots[n] = n + 1;
        b->written[n] = n + 1 + (s->apart ? s->num_seqs : 0);
        b->initial[n] = s->decode;
        b->prefix[n] = s->decode ? 100 : 0;
        b->lens[n] = b->prefix[n] + s->num_tokens;
        b->indptr[n + 1] = b->indptr[n] + s->num_tokens;
    }
    b->num_real[0] = s->num_seqs;
    b->num_real[1] = s->num_seqs * s->num_tokens;
}

static void fill_batch(shim *made)
{
    linear_bench *b = (linear_bench *)made; /* which begins with it */
    const linear_setup *s = &b->setup;
    b->state = (attn_state_batch){.struct_size = sizeof b->state,
                                  .slot = shim_both(made, b->slots),
                                  .dst_slot = shim_both(made, b->written),
                                  .has_initial = shim_both(made, b->initial)};
    b->shim.batch = (attn_batch){
        .struct_size = sizeof b->shim.batch,
        .mode = s->decode ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND,
        .num_seqs = s->num_seqs,
        .num_tokens = s->num_seqs * s->num_tokens,
        .num_real_seqs = s->num_seqs,
        .num_real_tokens = s->num_seqs * s->num_tokens,
        .max_q_len = s->num_tokens,
        .max_kv_len = b->lens[0],
        .num_real_seqs_device = s->graph ? shim_both(made, b->num_real).device : NULL,
        .num_real_tokens_device = s->graph ? shim_both(made, b->num_real + 1).device : NULL,
        .seq_lens = shim_both(made, b->lens),
        .prefix_lens = shim_both(made, b->prefix),
        .q_indptr = shim_both(made, b->indptr),
        .num_state_groups = 1,
        .state_groups = &b->state,
    };
}

static attn_status compose(linear_bench *b)
{
    const linear_setup *s = &b->setup;
    attn_bounds bounds = {
        .struct_size = sizeof bounds,
        .modes = ATTN_MODE_BIT(s->decode ? (uint32_t)ATTN_MODE_DECODE : (uint32_t)ATTN_MODE_EXTEND),
        .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
        .max_seqs = s->num_seqs,
        .max_tokens = s->num_seqs * s->num_tokens,
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
    uint32_t level = s->decode ? ATTN_GRAPH_SINGLE_TOKEN : ATTN_GRAPH_UNIFORM;
    attn_problem problem = {.struct_size = sizeof problem,
                            .graph_level = s->graph ? level : ATTN_GRAPH_NEVER,
                            .group = &group,
                            .bounds = &bounds,
                            .state_layout =
                                s->vk ? ATTN_LAYOUT_STATE_SSM_VK : ATTN_LAYOUT_STATE_SSM_KV,
                            .q_dtype = s->dtype,
                            .kv_dtype = s->dtype,
                            .out_dtype = s->dtype,
                            .tp_size = 1};
    return shim_compose(&b->shim, s->backend, s->options, s->num_options, &problem,
                        s->graph ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER);
}

static attn_status open_backend(linear_bench *b)
{
    const linear_setup *s = &b->setup;
    const shim_params params = {.device_type = s->device_type,
                                .num_layers = s->num_layers,
                                .num_threads = s->num_threads,
                                .index_bytes =
                                    NUM_ARRAYS * ((size_t)s->num_seqs + 2) * sizeof *b->slots,
                                .plugin = s->plugin,
                                .describe = fill_batch};
    attn_status status = shim_open(&b->shim, &params);
    if (status != ATTN_OK)
        return status;
    fill_index(b);
    if (s->device_type == ATTN_DEVICE_CPU)
        shim_place_index(&b->shim, b->shim.index);
    return compose(b);
}

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
