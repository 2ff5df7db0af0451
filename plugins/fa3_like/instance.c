/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, their layers, its modules.
 * Kernels are loaded with create: there is nothing to prepare.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/image.h"
#include "plugins/common/cuda/launch.h"
#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

/* ---- Kernels --------------------------------------------------------------------------------- */

#define TILE(...) FA3_TILE(__VA_ARGS__),
const fa3_tile fa3_tiles[] = {FA3_SHAPES(TILE)};
#undef TILE
const uint32_t fa3_num_tiles = sizeof fa3_tiles / sizeof fa3_tiles[0];

/* [tile][type], in the order of the table. */
#define DECLARE(name, ...)                                                                         \
    CUDA_IMAGE_DECLARE(forward_##name##_bf16)                                                      \
    CUDA_IMAGE_DECLARE(forward_##name##_f16)
FA3_SHAPES(DECLARE)
#undef DECLARE
CUDA_IMAGE_DECLARE(rows)

#define IMAGES(name, ...) {CUDA_IMAGE(forward_##name##_bf16), CUDA_IMAGE(forward_##name##_f16)},
static const cuda_image forward_images[][TYPE_COUNT] = {FA3_SHAPES(IMAGES)};
#undef IMAGES
static const cuda_image rows_image = CUDA_IMAGE(rows);

const fa3_tile *fa3_find_tile(int32_t dim, int32_t dim_v)
{
    for (uint32_t i = 0; i < fa3_num_tiles; i++)
        if (fa3_tiles[i].dim == dim && fa3_tiles[i].dim_v == dim_v)
            return &fa3_tiles[i];
    return NULL;
}

static attn_status load_rows(attn_instance *made, attn_error *error)
{
    static const cuda_wants wants = {0};
    attn_status status =
        cuda_image_load(made->cuda, &made->facts, &rows_image, 1, &made->rows_module, NULL, error);
    if (status == ATTN_OK)
        status = cuda_function_find(made->cuda, &made->facts, made->rows_module, "fa3_plan_batch",
                                    &wants, &made->plan, error);
    if (status == ATTN_OK)
        status = cuda_function_find(made->cuda, &made->facts, made->rows_module, "fa3_rows", &wants,
                                    &made->rows, error);
    return status;
}

/* Groups of the same dimensions and type share a module. */
static attn_status load_forward(attn_instance *made, fa3_group *group, attn_error *error)
{
    int type = group->base.q_dtype == ATTN_F16 ? TYPE_F16 : TYPE_BF16;
    long tile = group->tile - fa3_tiles;
    cuda_module *module = &made->modules[tile * TYPE_COUNT + type];
    const cuda_image *image = &forward_images[tile][type];
    const cuda_wants wants = {.shared = group->tile->shared};
    char name[64];
    attn_status status = ATTN_OK;
    snprintf(name, sizeof name, "%s_%s", group->tile->kernel, type == TYPE_F16 ? "f16" : "bf16");
    if (!*module)
        status = cuda_image_load(made->cuda, &made->facts, image, 1, module, NULL, error);
    if (status == ATTN_OK)
        status = cuda_function_find(made->cuda, &made->facts, *module, name, &wants,
                                    &group->forward, error);
    return status;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

void fa3_group_init(fa3_group *group, const attn_problem *problem)
{
    *group =
        (fa3_group){.tile = fa3_find_tile(problem->group->head_dim, problem->group->v_head_dim)};
    cuda_group_init(&group->base, problem);
}

static attn_status fill_groups(attn_instance *made, const attn_problem *problems,
                               attn_util_layer *layers, attn_error *error)
{
    attn_util_layer *next = layers;
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < made->num_groups && status == ATTN_OK; i++) {
        const attn_problem *problem = attn_at(problems, i);
        fa3_group *group = &made->groups[i];
        fa3_group_init(group, problem);
        group->base.layers = next;
        status = attn_util_list_layers(problem->group, layers, &next, error);
        if (status == ATTN_OK)
            status = load_forward(made, group, error);
    }
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status fill(attn_instance *made, const attn_problem *problems, attn_util_layer *layers,
                        attn_error *error)
{
    attn_status status = cuda_facts_find(made->cuda, problems->device, &made->facts, error);
    if (made->facts.num_sms == 0)
        made->facts.num_sms = DEFAULT_SMS;
    if (status == ATTN_OK)
        status = load_rows(made, error);
    return status == ATTN_OK ? fill_groups(made, problems, layers, error) : status;
}

attn_status fa3_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error)
{
    (void)type;
    const cuda_api *cuda = NULL;
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status = attn_util_require_support(&fa3_like_type, options, services, attn_at(problems, i),
                                           error);
    if (status == ATTN_OK)
        status = cuda_api_get(&cuda, error);
    if (status != ATTN_OK)
        return status;

    uint64_t num_modules = (uint64_t)fa3_num_tiles * TYPE_COUNT;
    uint32_t num_layers = attn_util_count_layers(problems, num_problems);
    uint64_t size = sizeof(attn_instance) + num_modules * sizeof(cuda_module) +
                    num_problems * sizeof(fa3_group) + num_layers * sizeof(attn_util_layer);
    attn_instance *made = attn_util_allocate_instance(services, size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    memset(made, 0, size);
    made->services = services;
    made->cuda = cuda;
    made->num_groups = num_problems;
    made->modules = (cuda_module *)(made + 1);
    made->groups = (fa3_group *)(made->modules + num_modules);
    status = fill(made, problems, (attn_util_layer *)(made->groups + num_problems), error);
    if (status != ATTN_OK) {
        fa3_destroy(made);
        return status;
    }
    *instance = made;
    return ATTN_OK;
}

void fa3_destroy(attn_instance *instance)
{
    if (!instance)
        return;
    for (uint32_t i = 0; i < fa3_num_tiles * TYPE_COUNT; i++)
        if (instance->modules[i])
            instance->cuda->cuModuleUnload(instance->modules[i]);
    if (instance->rows_module)
        instance->cuda->cuModuleUnload(instance->rows_module);
    instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

uint32_t fa3_index_forms(attn_instance *instance)
{
    (void)instance;
    return ATTN_INDEX_BLOCK_TABLE;
}
