/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: the library's instance, followed by the plugin's own groups and modules. create loads
 * the kernels, so there is nothing to prepare.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* ---- Kernels --------------------------------------------------------------------------------- */

#define TILE(...) FA3_TILE(__VA_ARGS__),
const fa3_tile fa3_tiles[] = {FA3_SHAPES(TILE)};
#undef TILE
const uint32_t fa3_num_tiles = sizeof fa3_tiles / sizeof fa3_tiles[0];

#define TILE(...) FA3_TILE(__VA_ARGS__)
const fa3_tile fa3_codes_tile = FA3_CODES_SHAPES(TILE);
#undef TILE

/* [tile][type], in the order of the table. */
#define DECLARE(name, ...)                                                                         \
    CUDA_IMAGE_DECLARE(forward_##name##_bf16)                                                      \
    CUDA_IMAGE_DECLARE(forward_##name##_f16)
FA3_SHAPES(DECLARE)
FA3_CODES_SHAPES(DECLARE)
#undef DECLARE
CUDA_IMAGE_DECLARE(rows)
CUDA_IMAGE_DECLARE(codes)
CUDA_IMAGE_DECLARE(gather)
CUDA_IMAGE_DECLARE(join)

#define IMAGES(name, ...) {CUDA_IMAGE(forward_##name##_bf16), CUDA_IMAGE(forward_##name##_f16)},
static const cuda_image forward_images[][TYPE_COUNT] = {FA3_SHAPES(IMAGES)};
static const cuda_image codes_forward_images[][TYPE_COUNT] = {FA3_CODES_SHAPES(IMAGES)};
#undef IMAGES
static const cuda_image rows_image = CUDA_IMAGE(rows);
static const cuda_image codes_image = CUDA_IMAGE(codes);
static const cuda_image gather_image = CUDA_IMAGE(gather);
static const cuda_image join_image = CUDA_IMAGE(join);

const fa3_tile *fa3_find_tile(int32_t dim, int32_t dim_v, int is_low)
{
    for (uint32_t i = 0; i < fa3_num_tiles; i++)
        if (fa3_tiles[i].dim == dim && fa3_tiles[i].dim_v == dim_v && !is_low--)
            return &fa3_tiles[i];
    return NULL;
}

/* The kernels beside attention that a group needs. */
static attn_status load_others(const attn_instance *made, const fa3_group *group, attn_error *error)
{
    static const cuda_wants wants = {0};
    fa3_instance *own = made->own;
    const struct {
        int is_wanted;
        const cuda_image *image;
        const char *name;
        cuda_module *module;
        cuda_function *to;
    } kernels[] = {
        {group->has_codes, &codes_image, "fa3_store_scales", &own->codes_module,
         &own->store_scales},
        {group->has_codes, &codes_image, "fa3_widen", &own->codes_module, &own->widen},
        {group->has_codes, &codes_image, "fa3_turn_values", &own->codes_module, &own->turn},
        {group->tile != NULL, &rows_image, "fa3_plan_batch", &own->rows_module, &own->plan},
        {group->tile != NULL, &rows_image, "fa3_rows", &own->rows_module, &own->rows},
        {group->gathers, &gather_image, "fa3_gather", &own->gather_module, &own->gather},
        {group->low != NULL, &join_image, "fa3_join", &own->join_module, &own->join}};
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && status == ATTN_OK; i++)
        if (kernels[i].is_wanted)
            status = cuda_image_find(made->cuda, &made->facts, kernels[i].image, kernels[i].name,
                                     &wants, kernels[i].module, kernels[i].to, error);
    return status;
}

/* Groups of the same dimensions and type share a module. */
static attn_status load_forward(const attn_instance *made, uint32_t index, const fa3_tile *of,
                                cuda_function *to, attn_error *error)
{
    fa3_instance *own = made->own;
    const fa3_group *group = &own->groups[index];
    const cuda_group *base = &made->groups[index].base;
    attn_dtype dtype = group->has_codes ? base->out_dtype : base->q_dtype;
    int type = dtype == ATTN_F16 ? TYPE_F16 : TYPE_BF16;
    long tile = group->has_codes ? 0 : of - fa3_tiles;
    cuda_module *module =
        group->has_codes ? &own->codes_modules[type] : &own->modules[tile * TYPE_COUNT + type];
    const cuda_image *image =
        group->has_codes ? &codes_forward_images[tile][type] : &forward_images[tile][type];
    const cuda_wants wants = {.shared = of->shared};
    char name[64];
    snprintf(name, sizeof name, "%s_%s", of->kernel, type == TYPE_F16 ? "f16" : "bf16");
    return cuda_image_find(made->cuda, &made->facts, image, name, &wants, module, to, error);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

int fa3_read_tiles(const attn_options *options)
{
    fi_options library = fi_read_options(options);
    return library.is_invariant ? TILES_NEVER : (int)fi_read_option(options, "tiles", TILES_AUTO);
}

fa3_group fa3_group_of(const attn_problem *problem, int option)
{
    const attn_layer_group *group = problem->group;
    fa3_group made = {.has_codes = fa3_has_codes(problem),
                      .new_dtype = attn_new_kv_dtype(problem),
                      .granularity = group->input_scale_granularity,
                      .is_expanded = fa3_is_expanded(problem)};
    if (made.is_expanded) {
        made.expanded = problem->mla_expanded;
        made.latents = fa3_latents_of(problem);
    }
    if (option == TILES_NEVER || (!made.is_expanded && !fa3_may_tile(problem)))
        return made;
    if (!made.has_codes)
        made.tile = fa3_find_tile(group->head_dim, group->v_head_dim, 0);
    else if (group->head_dim == fa3_codes_tile.dim && group->v_head_dim == fa3_codes_tile.dim_v)
        made.tile = &fa3_codes_tile;
    cuda_group base;
    cuda_group_init(&base, problem);
    if (!made.has_codes && base.chunk == 0)
        made.low = fa3_find_tile(group->head_dim, group->v_head_dim, 1);
    made.gathers = made.tile && !made.is_expanded && fa3_gathers(&base);
    return made;
}

static attn_status fill_groups(const attn_instance *made, const attn_problem *problems,
                               attn_error *error)
{
    fa3_instance *own = made->own;
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < made->num_groups && status == ATTN_OK; i++) {
        fa3_group *group = &own->groups[i];
        *group = fa3_group_of(attn_at(problems, i), own->option);
        status = load_others(made, group, error);
        if (group->tile && status == ATTN_OK)
            status = load_forward(made, i, group->tile, &group->forward, error);
        if (group->low && status == ATTN_OK)
            status = load_forward(made, i, group->low, &group->low_forward, error);
    }
    return status;
}

/* The problems that the library makes an instance of; the caller frees them. */
typedef struct plain_problems {
    attn_problem *problems;
    attn_layer_group *groups;
} plain_problems;

static attn_status make_plain(const attn_problem *problems, uint32_t num_problems,
                              const attn_services *services, plain_problems *plain,
                              attn_error *error)
{
    uint64_t size = num_problems * (sizeof(attn_problem) + sizeof(attn_layer_group));
    plain->problems = services->allocate(services->ctx, ATTN_SPACE_HOST, size, ALIGNMENT);
    if (!plain->problems)
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no host memory for %u problems",
                              num_problems);
    plain->groups = (attn_layer_group *)(plain->problems + num_problems);
    for (uint32_t i = 0; i < num_problems; i++) {
        memset(&plain->problems[i], 0, sizeof plain->problems[i]);
        fa3_plain_problem(attn_at(problems, i), &plain->problems[i], &plain->groups[i]);
    }
    return ATTN_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status fa3_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error)
{
    uint64_t num_modules = (uint64_t)fa3_num_tiles * TYPE_COUNT;
    uint64_t size =
        sizeof(fa3_instance) + num_modules * sizeof(cuda_module) + num_problems * sizeof(fa3_group);
    attn_instance *made = NULL;
    plain_problems plain;
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status = attn_util_require_support(type, options, services, attn_at(problems, i), error);
    if (status == ATTN_OK)
        status = make_plain(problems, num_problems, services, &plain, error);
    if (status != ATTN_OK)
        return status;
    status =
        fi_create_with(type, plain.problems, num_problems, options, services, size, &made, error);
    services->release(services->ctx, ATTN_SPACE_HOST, plain.problems);
    if (status != ATTN_OK)
        return status;
    fa3_instance *own = made->own;
    own->modules = (cuda_module *)(own + 1);
    own->groups = (fa3_group *)(own->modules + num_modules);
    own->option = fa3_read_tiles(options);
    status = fill_groups(made, problems, error);
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
    const fa3_instance *own = instance->own;
    const cuda_module others[] = {own->codes_module, own->gather_module, own->join_module,
                                  own->rows_module};
    cuda_images_unload(instance->cuda, own->modules, fa3_num_tiles * TYPE_COUNT);
    cuda_images_unload(instance->cuda, own->codes_modules, TYPE_COUNT);
    cuda_images_unload(instance->cuda, others, sizeof others / sizeof others[0]);
    fi_destroy(instance);
}
