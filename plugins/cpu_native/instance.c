/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, their layers.
 */
#include "cpu_native.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"
#include "plugins/cpu_native/sparse/sparse.h"

#include <string.h>

/* ---- Kernels --------------------------------------------------------------------------------- */

const cpu_isa_build cpu_builds[] = {
#ifdef CPU_NATIVE_AVX512
    {CPU_ISA_AVX512, &cpu_kernels_avx512},
#endif
#ifdef CPU_NATIVE_AVX2
    {CPU_ISA_AVX2, &cpu_kernels_avx2},
#endif
    {CPU_ISA_GENERIC, &cpu_kernels_generic},
};
const size_t cpu_num_builds = sizeof cpu_builds / sizeof cpu_builds[0];

/* ---- Groups ---------------------------------------------------------------------------------- */

/* NULL: the dtype is not quantised. */
static const fp8_format *fp8_format_of(attn_dtype dtype)
{
    return dtype == ATTN_FP8_E4M3 ? &fp8_e4m3 : dtype == ATTN_FP8_E5M2 ? &fp8_e5m2 : NULL;
}

static void list_codes(const fp8_format *format, float *values)
{
    for (int code = 0; format && code < 256; code++)
        values[code] = fp8_to_f32((uint8_t)code, format);
}

static void group_init(cpu_group *group, const attn_problem *problem)
{
    const attn_layer_group *from = problem->group;
    *group = (cpu_group){
        .attn_type = from->attn_type,
        .kv_group = from->kv_group,
        .kv_heads = from->num_kv_heads,
        .ratio = from->num_q_heads / from->num_kv_heads,
        .dim = from->head_dim,
        .v_dim = from->v_head_dim,
        .window_left = from->window_left,
        .window_right = from->window_right,
        .chunk = from->attention_chunk,
        .page_size = problem->page_size,
        .hnd = problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_KV_HND) == 0,
        .has_sinks = (from->flags & ATTN_GROUP_HAS_SINKS) != 0,
        .rule = {.scale = from->sm_scale,
                 .cap = from->logit_cap,
                 .has_alibi = (from->flags & ATTN_GROUP_HAS_ALIBI) != 0},
        .scale_granularity = from->kv_scale_granularity,
        .input_granularity = from->input_scale_granularity,
        .q_dtype = problem->q_dtype,
        .new_dtype = attn_new_kv_dtype(problem),
        .kv_dtype = problem->kv_dtype,
        .out_dtype = problem->out_dtype,
        .num_layers = from->num_layers,
    };
    if (from->attn_type != ATTN_TYPE_ENCODER_ONLY)
        group->fp8 = fp8_format_of(problem->kv_dtype);
    group->fp8_out = fp8_format_of(problem->out_dtype);
    list_codes(fp8_format_of(problem->kv_dtype), group->decode);
    list_codes(fp8_format_of(problem->q_dtype), group->decode_q);
    list_codes(fp8_format_of(group->new_dtype), group->decode_new);
}

uint32_t cpu_groups_init(cpu_group *groups, const attn_problem *problem)
{
    group_init(&groups[0], problem);
    groups[0].modes = (1u << ATTN_MODE_COUNT) - 1;
    if (problem->group->kind == ATTN_KIND_SPARSE)
        sparse_group_init(&groups[0], problem);
    return problem->group->kind == ATTN_KIND_SOFTMAX ? 1 : mla_groups_init(groups, problem);
}

static attn_status fill_groups(attn_instance *instance, const attn_problem *problems,
                               uint32_t num_problems, attn_error *error)
{
    cpu_layer *layers = (cpu_layer *)(instance->groups + MAX_FORMS * (uint64_t)num_problems),
              *next = layers;
    for (uint32_t i = 0; i < num_problems; i++) {
        const attn_problem *problem = attn_at(problems, i);
        cpu_group *groups = instance->groups + instance->num_groups;
        uint32_t forms = cpu_groups_init(groups, problem);
        instance->num_groups += forms;
        groups[0].layers = groups[forms - 1].layers = next;
        mla_choose_products(instance, &groups[0]);
        attn_status status = attn_util_list_layers(problem->group, layers, &next, error);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status cpu_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error)
{
    (void)type;
    cpu_options read;
    const void *kernels = NULL;
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    if (status == ATTN_OK)
        status = attn_util_require_groups(num_problems, MAX_PROBLEMS, error);
    if (status == ATTN_OK)
        status = cpu_options_read(options, &read, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status = attn_util_require_support(&cpu_native_type, options, services,
                                           attn_at(problems, i), error);
    if (status == ATTN_OK)
        status = cpu_isa_choose(cpu_builds, cpu_num_builds, read.isa, &kernels, error);
    if (status != ATTN_OK)
        return status;

    uint64_t size = sizeof(attn_instance) + MAX_FORMS * (uint64_t)num_problems * sizeof(cpu_group) +
                    (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(cpu_layer);
    attn_instance *made = attn_util_allocate_instance(services, size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    *made = (attn_instance){.services = services,
                            .kernels = kernels,
                            .options = read,
                            .groups = (cpu_group *)(made + 1)};
    status = fill_groups(made, problems, num_problems, error);
    if (status != ATTN_OK) {
        cpu_destroy(made);
        return status;
    }
    *instance = made;
    return ATTN_OK;
}

void cpu_destroy(attn_instance *instance)
{
    if (instance)
        instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

uint32_t cpu_index_forms(attn_instance *instance)
{
    return instance->options.index_forms;
}
