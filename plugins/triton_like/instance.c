/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, their layers. Kernels come with
 * prepare().
 */
#include "triton_like.h"

#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

static attn_status fill_groups(attn_instance *instance, const attn_problem *problems,
                               attn_error *error)
{
    for (uint32_t i = 0; i < instance->num_groups; i++)
        triton_group_init(&instance->groups[i], attn_at(problems, i));
    return cuda_groups_list_layers(instance->groups, sizeof *instance->groups, instance->num_groups,
                                   problems, error);
}

static attn_status find_device(attn_instance *instance, const attn_problem *problem,
                               attn_error *error)
{
    attn_status status = cuda_facts_find(instance->cuda, problem->device, &instance->device, error);
    for (uint32_t i = 0; i < instance->num_groups && status == ATTN_OK; i++)
        instance->groups[i].num_sms = instance->device.num_sms;
    return status;
}

attn_status triton_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    (void)type;
    triton_options read;
    const cuda_api *cuda = NULL;
    const nvrtc_api *nvrtc = NULL;
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    if (status == ATTN_OK)
        status = triton_options_read(options, &read, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status = attn_util_require_support(&triton_like_type, options, services,
                                           attn_at(problems, i), error);
    if (status == ATTN_OK && (status = cuda_api_get(&cuda, error)) == ATTN_OK)
        status = nvrtc_api_get(&nvrtc, error);
    if (status != ATTN_OK)
        return status;

    uint64_t size =
        sizeof(attn_instance) + num_problems * sizeof(triton_group) +
        (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(attn_util_layer);
    attn_instance *made = attn_util_allocate_instance(services, size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    *made = (attn_instance){.services = services,
                            .cuda = cuda,
                            .nvrtc = nvrtc,
                            .options = read,
                            .num_groups = num_problems,
                            .counter = {.struct_size = sizeof(compile_counter)},
                            .groups = (triton_group *)(made + 1)};
    status = fill_groups(made, problems, error);
    if (status == ATTN_OK)
        status = find_device(made, problems, error);
    if (status != ATTN_OK) {
        triton_destroy(made);
        return status;
    }
    *instance = made;
    return ATTN_OK;
}

void triton_destroy(attn_instance *instance)
{
    if (!instance)
        return;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (int variant = 0; variant < VARIANT_COUNT; variant++)
            triton_build_finish(instance->cuda, &instance->groups[i].builds[variant]);
    instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

attn_status triton_prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error)
{
    static const char *const names[] = {"kernels", "kernels for custom masks"};
    uint32_t total = 0, done = 0;
    char text[160];
    if (instance->prepared)
        return ATTN_OK;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        total += (uint32_t)__builtin_popcount(instance->groups[i].variants);
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (int variant = 0; variant < VARIANT_COUNT; variant++) {
            if (!(instance->groups[i].variants & 1u << variant) ||
                instance->groups[i].builds[variant].is_whole)
                continue;
            if (progress)
                progress(progress_ctx, done++, total, names[variant]);
            attn_status status = triton_build(instance, &instance->groups[i], variant, error);
            if (status != ATTN_OK)
                return status;
        }
    if (progress)
        progress(progress_ctx, total, total, "done");
    snprintf(text, sizeof text, "triton_like: %llu kernel files compiled, %llu from the cache",
             (unsigned long long)instance->counter.compiled,
             (unsigned long long)instance->counter.cached);
    instance->services->log(instance->services->ctx, ATTN_LOG_INFO, text);
    instance->prepared = 1;
    return ATTN_OK;
}

uint32_t triton_index_forms(attn_instance *instance)
{
    return cuda_groups_index_forms(instance->groups, sizeof *instance->groups,
                                   instance->num_groups);
}
