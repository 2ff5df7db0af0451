/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/instance.h"
#include "plugins/common/plugin_error.h"

attn_status instance_require_arguments(const attn_problem *problems, uint32_t num_problems,
                                       const attn_services *services,
                                       attn_instance *const *instance, attn_error *error)
{
    if (!problems || num_problems == 0 || !services || !instance)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT,
                           "problems, services or instance is missing");
    return ATTN_OK;
}

attn_status instance_require_groups(uint32_t num_problems, uint32_t most, attn_error *error)
{
    if (num_problems > most)
        return plugin_fail(error, ATTN_UNSUPPORTED, "%u layer groups: accepted 1..%u", num_problems,
                           most);
    return ATTN_OK;
}

attn_instance *instance_allocate(const attn_services *services, uint64_t size, attn_error *error)
{
    attn_instance *made = services->allocate(services->ctx, ATTN_SPACE_HOST, size, 64);
    if (!made)
        plugin_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for an instance of %llu bytes",
                    (unsigned long long)size);
    return made;
}

attn_status instance_list_layers(const attn_layer_group *group, const instance_layer *first,
                                 instance_layer **next, attn_error *error)
{
    for (uint32_t n = 0; n < group->num_layers; n++, ++*next) {
        const attn_layer *layer = attn_at(group->layers, n);
        **next = (instance_layer){.layer_id = layer->layer_id,
                                  .kv_read_only = (layer->flags & ATTN_LAYER_KV_READ_ONLY) != 0};
        for (const instance_layer *other = first; other < *next; other++)
            if (layer->layer_id < 0 || other->layer_id == layer->layer_id)
                return plugin_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                         "layer_id %d twice, or below 0", layer->layer_id);
    }
    return ATTN_OK;
}
