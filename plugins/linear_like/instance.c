/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, the ids of their layers. Kernels
 * are loaded with create: there is nothing to prepare.
 */
#include "linear_like.h"

#include "plugins/common/cuda/image.h"
#include "plugins/common/cuda/launch.h"
#include "attn_plugin_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Kernels --------------------------------------------------------------------------------- */

CUDA_IMAGE_DECLARE(steps_kv_f32)
CUDA_IMAGE_DECLARE(steps_kv_bf16)
CUDA_IMAGE_DECLARE(steps_vk_f32)
CUDA_IMAGE_DECLARE(steps_vk_bf16)
CUDA_IMAGE_DECLARE(rows)
CUDA_IMAGE_DECLARE(chunk_ready)
CUDA_IMAGE_DECLARE(chunk_channels)
CUDA_IMAGE_DECLARE(chunk_states)
CUDA_IMAGE_DECLARE(chunk_fused)
CUDA_IMAGE_DECLARE(chunk_wide)
CUDA_IMAGE_DECLARE(chunk_strips)

/* By MODULE_*; the recurrence's module is 2 * vk + bf16. */
static const cuda_image images[MODULE_COUNT] = {
    CUDA_IMAGE(steps_kv_f32),   CUDA_IMAGE(steps_kv_bf16), CUDA_IMAGE(steps_vk_f32),
    CUDA_IMAGE(steps_vk_bf16),  CUDA_IMAGE(rows),          CUDA_IMAGE(chunk_ready),
    CUDA_IMAGE(chunk_channels), CUDA_IMAGE(chunk_states),  CUDA_IMAGE(chunk_fused),
    CUDA_IMAGE(chunk_wide),     CUDA_IMAGE(chunk_strips)};

/* The kernel `name` of a module, which is loaded on first use. `shared`: bytes of shared memory
 * that launches need beyond the default limit. */
static attn_status load_kernel(attn_instance *made, int module, const char *name, uint32_t shared,
                               cuda_function *function, attn_error *error)
{
    const cuda_wants wants = {.shared = shared};
    return cuda_image_find(made->cuda, &made->facts, &images[module], name, &wants,
                           &made->modules[module], function, error);
}

/* The name of a family in its kernels' names. */
static const char *mode_of(const linear_group *group)
{
    return group->dims.family == LINEAR_FAMILY_GDN   ? "delta"
           : group->dims.family == LINEAR_FAMILY_KDA ? "channels"
                                                     : "plain";
}

/* Do linear_heads_* fit the group's heads? */
static int has_heads(const linear_group *group, int columns, int size)
{
    const linear_dims *d = &group->dims;
    const int most = d->vk || size == 2 ? HEADS_MOST_THREADS / 2 : HEADS_MOST_THREADS;
    return d->k_dim == HEADS_KEYS && d->v_dim % columns == 0 && columns * size % 256 == 0 &&
           HEADS_THREADS(columns, size, HEADS_PARTS) <= most;
}

/* linear_heads_* and linear_slices_* add in other orders than linear_steps_*, and the batch decides
 * which are launched. So a BATCH_INVARIANT group, which has no chunks, has neither. */
static attn_status load_heads(attn_instance *made, int module, linear_group *group,
                              attn_error *error)
{
    const int size = (int)attn_dtype_size(group->state_dtype);
    const int columns = HEADS_COLUMNS(group->dims.vk, group->dims.v_dim, size);
    char name[64];
    if (!group->by_chunks || !has_heads(group, columns, size))
        return ATTN_OK;
    snprintf(name, sizeof name, "linear_heads_%s", mode_of(group));
    attn_status status = load_kernel(made, module, name, (uint32_t)HEADS_SHARED(columns, size),
                                     &group->heads, error);
    snprintf(name, sizeof name, "linear_slices_%s", mode_of(group));
    return status == ATTN_OK ? load_kernel(made, module, name, (uint32_t)SLICE_SHARED(3, size),
                                           &group->slices, error)
                             : status;
}

static attn_status load_steps(attn_instance *made, linear_group *group, attn_error *error)
{
    const linear_dims *d = &group->dims;
    const int module = MODULE_STEPS + 2 * d->vk + (group->state_dtype == ATTN_BF16);
    const char *mode = mode_of(group);
    char name[64];
    snprintf(name, sizeof name, "linear_steps_%s_%d", mode, 8 * group->lane_keys);
    attn_status status = load_kernel(made, module, name, 0, &group->steps, error);
    if (status != ATTN_OK || group->lane_keys != STEPS_DECODE_KEYS)
        return status;
    snprintf(name, sizeof name, "linear_decode_%s_%d", mode, 8 * group->lane_keys);
    status =
        load_kernel(made, module, name,
                    (uint32_t)DECODE_SHARED(STEPS_MAX_WARPS, 3, group->state_dtype == ATTN_BF16),
                    &group->decode, error);
    return status == ATTN_OK ? load_heads(made, module, group, error) : status;
}

static attn_status load_fused(attn_instance *made, linear_group *group, attn_error *error)
{
    attn_status status =
        load_kernel(made, MODULE_FUSED, "linear_fused", FUSED_SHARED, &group->states, error);
    return status == ATTN_OK ? load_kernel(made, MODULE_FUSED, "linear_fused_segments",
                                           FUSED_SHARED, &group->segments, error)
                             : status;
}

static attn_status load_chunks(attn_instance *made, linear_group *group, attn_error *error)
{
    static const char *const ways[] = {
        [CHUNK_PLAIN] = "plain",       [CHUNK_SOLVED] = "delta",
        [CHUNK_INVERSE] = "inverse",   [CHUNK_TILES] = "tiles",
        [CHUNK_CHANNELS] = "channels", [CHUNK_CHANNELS_TILES] = "channels_tiles"};
    const int rule = linear_chunk_rule(&group->dims);
    const uint32_t shared = (uint32_t)CHUNK_STATES_SHARED(rule);
    const int ready = group->dims.family == LINEAR_FAMILY_KDA ? MODULE_CHANNELS : MODULE_READY;
    char name[64];
    attn_status status = load_kernel(made, MODULE_READY, "linear_list", 0, &group->list, error);
    if (status == ATTN_OK && linear_convolves_first(&group->dims))
        status =
            load_kernel(made, MODULE_ROWS,
                        CHUNK_HAS_TILES(rule) ? "linear_convolve_tiles" : "linear_convolve_chunks",
                        0, &group->convolve_chunks, error);
    if (status != ATTN_OK || linear_is_fused(&group->dims))
        return status == ATTN_OK ? load_fused(made, group, error) : status;
    snprintf(name, sizeof name, "linear_ready_%s%s",
             ready == MODULE_CHANNELS && rule == CHUNK_SOLVED ? "channels_" : "", ways[rule]);
    status =
        load_kernel(made, ready, name, linear_ready_shared(&group->dims), &group->ready, error);
    snprintf(name, sizeof name, "linear_states_%s", ways[rule]);
    if (status == ATTN_OK)
        status = load_kernel(made, MODULE_STATES, name, shared, &group->states, error);
    snprintf(name, sizeof name, "linear_segments_%s", ways[rule]);
    if (status == ATTN_OK)
        status = load_kernel(made, MODULE_STATES, name, shared, &group->segments, error);
    snprintf(name, sizeof name, "linear_wide_%s", ways[rule]);
    if (status == ATTN_OK && CHUNK_ONE_DECAY(rule))
        status = load_kernel(made, MODULE_WIDE, name, WIDE_SHARED, &group->wide, error);
    snprintf(name, sizeof name, "linear_strips_%s", ways[rule]);
    if (status == ATTN_OK && CHUNK_BY_CHANNELS(rule))
        status = load_kernel(made, MODULE_STRIPS, name, STRIP_SHARED, &group->strips, error);
    return status;
}

static attn_status load_kernels(attn_instance *made, linear_group *group, attn_error *error)
{
    attn_status status = load_kernel(made, MODULE_ROWS, "linear_finish", 0, &group->finish, error);
    if (status == ATTN_OK && group->by_chunks)
        status = load_chunks(made, group, error);
    if (status != ATTN_OK || group->dims.family != LINEAR_FAMILY_SHORT_CONV)
        return status == ATTN_OK ? load_steps(made, group, error) : status;
    status = load_kernel(made, MODULE_ROWS, "linear_convolve", 0, &group->convolve, error);
    if (status == ATTN_OK && group->q_dtype != ATTN_F32)
        status =
            load_kernel(made, MODULE_ROWS,
                        group->q_dtype == ATTN_F16 ? "linear_convolve_f16" : "linear_convolve_bf16",
                        0, &group->convolve_vectors, error);
    return status;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static void lay_out_channels(linear_dims *d)
{
    int keys = d->k_heads * d->k_dim, values = d->v_heads * d->v_dim;
    int mamba2 = d->family == LINEAR_FAMILY_MAMBA2;
    d->channels = 2 * keys + values;
    d->first[0] = mamba2 ? values + keys : 0;
    d->first[1] = mamba2 ? values : keys;
    d->first[2] = mamba2 ? 0 : 2 * keys;
}

void linear_group_init(linear_group *group, const attn_problem *problem,
                       const attn_layer_group *from, const attn_linear_dims *dims)
{
    int32_t k_heads = dims->num_k_heads;
    *group = (linear_group){.q_dtype = problem->q_dtype,
                            .out_dtype = problem->out_dtype,
                            .state_dtype = dims->state_dtype,
                            .conv_dtype = dims->conv_dtype,
                            .lane_keys = dims->head_k_dim <= 128 ? 16 : 32,
                            .num_layers = from->num_layers};
    group->dims = (linear_dims){
        .family = (int)dims->family,
        .k_heads = k_heads,
        .v_heads = dims->num_v_heads,
        .ratio = k_heads > 0 ? dims->num_v_heads / k_heads : dims->num_v_heads,
        .k_dim = dims->head_k_dim,
        .v_dim = dims->head_v_dim,
        .width = dims->conv_width,
        .silu = !(dims->flags & ATTN_LINEAR_CONV_IDENTITY),
        .l2_norm = (dims->flags & ATTN_LINEAR_QK_L2NORM) != 0,
        .raw = (dims->flags & ATTN_LINEAR_RAW_GATES) != 0,
        .vk = problem->state_layout && strcmp(problem->state_layout, ATTN_LAYOUT_STATE_SSM_VK) == 0,
        .dtype = cuda_element(problem->q_dtype),
        .out_dtype = cuda_element(problem->out_dtype),
        .state_dtype = cuda_element(dims->state_dtype),
        .conv_dtype = cuda_element(dims->conv_dtype),
        .sm_scale = from->sm_scale,
        .dt_min = dims->dt_min,
        .dt_max = dims->dt_max > 0 ? dims->dt_max : INFINITY,
        .lower_bound = dims->lower_bound,
    };
    lay_out_channels(&group->dims);
    group->by_chunks = linear_goes_by_chunks(group, problem);
}

/* The index of a state group in instance->state_groups, which it joins if it is new. */
static uint32_t note_state_group(attn_instance *instance, int32_t state_group)
{
    uint32_t at = 0;
    while (at < instance->num_state_groups && instance->state_groups[at] != state_group)
        at++;
    if (at == instance->num_state_groups)
        instance->state_groups[instance->num_state_groups++] = state_group;
    return at;
}

static attn_status fill_groups(attn_instance *instance, const attn_problem *problems,
                               attn_error *error)
{
    int32_t *next = (int32_t *)(instance->groups + instance->num_groups);
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < instance->num_groups && status == ATTN_OK; i++) {
        attn_layer_group from;
        attn_linear_dims dims;
        const attn_problem *problem = attn_at(problems, i);
        linear_group *group = &instance->groups[i];
        ATTN_UTIL_READ(&from, problem->group);
        ATTN_UTIL_READ(&dims, from.linear);
        linear_group_init(group, problem, &from, &dims);
        group->slots = note_state_group(instance, from.state_group);
        group->layers = next;
        for (uint32_t n = 0; n < from.num_layers; n++)
            *next++ = ((const attn_layer *)attn_at(from.layers, n))->layer_id;
        status = load_kernels(instance, group, error);
    }
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status linear_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    (void)type;
    const cuda_api *cuda = NULL;
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    if (status == ATTN_OK)
        status = attn_util_require_groups(num_problems, MAX_GROUPS, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status = attn_util_require_support(&linear_like_type, options, services,
                                           attn_at(problems, i), error);
    if (status == ATTN_OK)
        status = attn_util_require_layer_ids(problems, num_problems, error);
    if (status == ATTN_OK)
        status = cuda_api_get(&cuda, error);
    if (status != ATTN_OK)
        return status;

    uint64_t size = sizeof(attn_instance) + num_problems * sizeof(linear_group) +
                    (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(int32_t);
    attn_instance *made = attn_util_allocate_instance(services, size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    *made = (attn_instance){.services = services,
                            .cuda = cuda,
                            .num_groups = num_problems,
                            .groups = (linear_group *)(made + 1)};
    status = cuda_facts_find(cuda, problems->device, &made->facts, error);
    if (status == ATTN_OK)
        status = fill_groups(made, problems, error);
    if (status != ATTN_OK) {
        linear_destroy(made);
        return status;
    }
    *instance = made;
    return ATTN_OK;
}

void linear_destroy(attn_instance *instance)
{
    if (!instance)
        return;
    cuda_images_unload(instance->cuda, instance->modules, MODULE_COUNT);
    instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}
