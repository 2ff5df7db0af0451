/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, the ids of their layers.
 */
#include "cpu_linear.h"

#include "attn_plugin_util.h"

#include <math.h>
#include <string.h>

/* ---- Kernels --------------------------------------------------------------------------------- */

const cpu_isa_build linear_builds[] = {
#ifdef CPU_LINEAR_AVX512
    {CPU_ISA_AVX512, &linear_kernels_avx512},
#endif
#ifdef CPU_LINEAR_AVX2
    {CPU_ISA_AVX2, &linear_kernels_avx2},
#endif
    {CPU_ISA_GENERIC, &linear_kernels_generic},
};
const size_t linear_num_builds = sizeof linear_builds / sizeof linear_builds[0];

/* ---- Groups ---------------------------------------------------------------------------------- */

static void lay_out_channels(linear_group *group)
{
    int32_t keys = group->k_heads * group->k_dim, values = group->v_heads * group->v_dim;
    int mamba2 = group->family == ATTN_LINEAR_MAMBA2;
    group->channels = 2 * keys + values;
    group->first[0] = mamba2 ? values + keys : 0;
    group->first[1] = mamba2 ? values : keys;
    group->first[2] = mamba2 ? 0 : 2 * keys;
}

void linear_group_init(linear_group *group, const attn_problem *problem,
                       const attn_layer_group *from, const attn_linear_dims *dims)
{
    int32_t k_heads = dims->num_k_heads;
    *group = (linear_group){
        .family = dims->family,
        .k_heads = k_heads,
        .v_heads = dims->num_v_heads,
        .ratio = k_heads > 0 ? dims->num_v_heads / k_heads : dims->num_v_heads,
        .k_dim = dims->head_k_dim,
        .v_dim = dims->head_v_dim,
        .width = dims->conv_width,
        .silu = !(dims->flags & ATTN_LINEAR_CONV_IDENTITY),
        .l2_norm = (dims->flags & ATTN_LINEAR_QK_L2NORM) != 0,
        .raw = (dims->flags & ATTN_LINEAR_RAW_GATES) != 0,
        .delta = dims->family == ATTN_LINEAR_GDN || dims->family == ATTN_LINEAR_KDA,
        .vector = dims->family == ATTN_LINEAR_KDA,
        .vk = problem->state_layout && strcmp(problem->state_layout, ATTN_LAYOUT_STATE_SSM_VK) == 0,
        .by_steps = (problem->required_traits & LINEAR_INVARIANT) != 0,
        .sm_scale = from->sm_scale,
        .dt_min = dims->dt_min,
        .dt_max = dims->dt_max > 0 ? dims->dt_max : INFINITY,
        .lower_bound = dims->lower_bound,
        .q_dtype = problem->q_dtype,
        .out_dtype = problem->out_dtype,
        .state_dtype = dims->state_dtype,
        .conv_dtype = dims->conv_dtype,
        .num_layers = from->num_layers,
    };
    group->num_blocks = (group->ratio + HEAD_BLOCK - 1) / HEAD_BLOCK * (k_heads > 0 ? k_heads : 1);
    lay_out_channels(group);
}

/* The place of a state group among those of the instance. */
static uint32_t note_state_group(attn_instance *instance, int32_t state_group)
{
    uint32_t at = 0;
    while (at < instance->num_state_groups && instance->state_groups[at] != state_group)
        at++;
    if (at == instance->num_state_groups)
        instance->state_groups[instance->num_state_groups++] = state_group;
    return at;
}

static void fill_groups(attn_instance *instance, const attn_problem *problems)
{
    int32_t *next = (int32_t *)(instance->groups + instance->num_groups);
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        attn_layer_group from;
        attn_linear_dims dims;
        const attn_problem *problem = attn_at(problems, i);
        ATTN_UTIL_READ(&from, problem->group);
        ATTN_UTIL_READ(&dims, from.linear);
        linear_group_init(&instance->groups[i], problem, &from, &dims);
        instance->groups[i].slots = note_state_group(instance, from.state_group);
        instance->groups[i].layers = next;
        for (uint32_t n = 0; n < from.num_layers; n++)
            *next++ = ((const attn_layer *)attn_at(from.layers, n))->layer_id;
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status linear_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    (void)type;
    linear_options read;
    const void *kernels = NULL;
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    if (status == ATTN_OK)
        status = attn_util_require_groups(num_problems, MAX_GROUPS, error);
    if (status == ATTN_OK)
        status = linear_options_read(options, &read, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status = attn_util_require_support(&cpu_linear_type, options, services,
                                           attn_at(problems, i), error);
    if (status == ATTN_OK)
        status = attn_util_require_layer_ids(problems, num_problems, error);
    if (status == ATTN_OK)
        status = cpu_isa_choose(linear_builds, linear_num_builds, read.isa, &kernels, error);
    if (status != ATTN_OK)
        return status;

    uint64_t size = sizeof(attn_instance) + num_problems * sizeof(linear_group) +
                    (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(int32_t);
    attn_instance *made = attn_util_allocate_instance(services, size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    *made = (attn_instance){.services = services,
                            .kernels = kernels,
                            .options = read,
                            .num_groups = num_problems,
                            .groups = (linear_group *)(made + 1)};
    fill_groups(made, problems);
    *instance = made;
    return ATTN_OK;
}

void linear_destroy(attn_instance *instance)
{
    if (instance)
        instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}
