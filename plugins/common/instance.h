/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.h: what our plugins do alike while they make an instance, which is one block: the
 * instance, its groups, their layers.
 */
#ifndef PLUGINS_INSTANCE_H
#define PLUGINS_INSTANCE_H

#include "attn_backend.h"

/* INVALID_ARGUMENT for arguments of create that are missing. */
attn_status instance_require_arguments(const attn_problem *problems, uint32_t num_problems,
                                       const attn_services *services,
                                       attn_instance *const *instance, attn_error *error);

/* UNSUPPORTED for more than `most` layer groups. */
attn_status instance_require_groups(uint32_t num_problems, uint32_t most, attn_error *error);

/* `size` bytes of host memory; NULL, with OUT_OF_HOST_MEMORY in *error. */
attn_instance *instance_allocate(const attn_services *services, uint64_t size, attn_error *error);

/* A layer with a cache. */
typedef struct instance_layer {
    int32_t layer_id;
    int32_t kv_read_only;
} instance_layer;

/* Write the layers of `group` to *next, which moves past them; `first` is the instance's first
 * one. INVALID_ARGUMENT for an id that is given twice, or below 0. */
attn_status instance_list_layers(const attn_layer_group *group, const instance_layer *first,
                                 instance_layer **next, attn_error *error);

#endif /* PLUGINS_INSTANCE_H */
