/* SPDX-License-Identifier: Apache-2.0
 *
 * plain_problem.h: a problem that every backend serves, of one softmax layer; a test changes what it is about.
 */
#ifndef PLAIN_PROBLEM_H
#define PLAIN_PROBLEM_H

#include "attn_problem.h"

/* Initialised in place and never copied. */
struct plain_problem {
    attn_device device;
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
};

/* The layer `id`, which is also its KV group, within bounds for prompts and decodes. The device is a CPU. */
static inline void plain_problem_init(struct plain_problem *p, int32_t id, attn_dtype dtype)
{
    p->device = (attn_device){.struct_size = sizeof p->device, .type = ATTN_DEVICE_CPU};
    p->layer = (attn_layer){.struct_size = sizeof p->layer, .layer_id = id, .kv_buffer = id};
    p->group = (attn_layer_group){.struct_size = sizeof p->group,
                                  .kv_group = id,
                                  .num_q_heads = 4,
                                  .num_kv_heads = 2,
                                  .head_dim = 64,
                                  .v_head_dim = 64,
                                  .window_left = -1,
                                  .sm_scale = 0.125f,
                                  .num_layers = 1,
                                  .layers = &p->layer};
    p->bounds =
        (attn_bounds){.struct_size = sizeof p->bounds,
                      .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE),
                      .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                      .max_seqs = 4,
                      .max_tokens = 16,
                      .max_q_len = 16,
                      .max_kv_len = 64,
                      .max_kv_tokens = 256};
    p->problem = (attn_problem){.struct_size = sizeof p->problem,
                                .device = &p->device,
                                .group = &p->group,
                                .bounds = &p->bounds,
                                .kv_layout = ATTN_LAYOUT_KV_NHD,
                                .q_dtype = dtype,
                                .kv_dtype = dtype,
                                .out_dtype = dtype,
                                .page_size = 16,
                                .tp_size = 1};
}

/* Of decodes alone. */
static inline void plain_problem_decodes(struct plain_problem *p)
{
    p->bounds.modes = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    p->bounds.max_tokens = p->bounds.max_seqs;
    p->bounds.max_q_len = 1;
}

#endif /* PLAIN_PROBLEM_H */
