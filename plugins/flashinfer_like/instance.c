/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, their layers, its modules.
 * Kernels are loaded with create: there is nothing to prepare.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

/* ---- Kernels --------------------------------------------------------------------------------- */

#define SHAPE(...)      FI_SHAPE(__VA_ARGS__),
#define SHAPE_16(...)   FI_SHAPE_16(__VA_ARGS__),
#define SHAPE_WIDE(...) FI_SHAPE_WIDE(__VA_ARGS__),
const fi_shape fi_shapes[] = {FI_SHAPES(SHAPE, SHAPE_16) FI_WIDE_SHAPES(SHAPE_WIDE)};
#undef SHAPE
#undef SHAPE_16
#undef SHAPE_WIDE
const uint32_t fi_num_shapes = sizeof fi_shapes / sizeof fi_shapes[0];

#define SHAPE(...)    FI_SHAPE_SM80(__VA_ARGS__),
#define SHAPE_16(...) FI_SHAPE_SM80_16(__VA_ARGS__),
static const fi_shape earlier_shapes[] = {FI_SHAPES(SHAPE, SHAPE_16)};
enum { NUM_EARLIER = sizeof earlier_shapes / sizeof earlier_shapes[0] };
#undef SHAPE
#undef SHAPE_16

/* [shape][kernel][type], in the order of the table. */
#define DECLARE_WIDE(name, ...)                                                                    \
    CUDA_IMAGE_DECLARE(prefill_##name##_bf16)                                                      \
    CUDA_IMAGE_DECLARE(prefill_##name##_f16)
#define DECLARE_16(name, ...)                                                                      \
    CUDA_IMAGE_DECLARE(attend_##name##_bf16)                                                       \
    CUDA_IMAGE_DECLARE(attend_##name##_f16)                                                        \
    DECLARE_WIDE(name)
#define DECLARE(name, ...)                                                                         \
    DECLARE_16(name)                                                                               \
    CUDA_IMAGE_DECLARE(attend_##name##_bf16_e4m3)                                                  \
    CUDA_IMAGE_DECLARE(attend_##name##_f16_e4m3)                                                   \
    CUDA_IMAGE_DECLARE(prefill_##name##_bf16_e4m3)                                                 \
    CUDA_IMAGE_DECLARE(prefill_##name##_f16_e4m3)                                                  \
    CUDA_IMAGE_DECLARE(attend_##name##_bf16_e5m2)                                                  \
    CUDA_IMAGE_DECLARE(attend_##name##_f16_e5m2)                                                   \
    CUDA_IMAGE_DECLARE(prefill_##name##_bf16_e5m2)                                                 \
    CUDA_IMAGE_DECLARE(prefill_##name##_f16_e5m2)
FI_SHAPES(DECLARE, DECLARE_16)
FI_WIDE_SHAPES(DECLARE_WIDE)
#undef DECLARE
#undef DECLARE_16
#undef DECLARE_WIDE
CUDA_IMAGE_DECLARE(plan)

enum {
    IMAGE_ATTEND,
    IMAGE_PREFILL,
    IMAGE_CODES, /* of e4m3 */
    IMAGE_PREFILL_CODES,
    IMAGE_CODES_E5M2,
    IMAGE_PREFILL_CODES_E5M2,
    IMAGE_COUNT
};

#define IMAGES_16(name)                                                                            \
    {CUDA_IMAGE(attend_##name##_bf16), CUDA_IMAGE(attend_##name##_f16)},                           \
    {                                                                                              \
        CUDA_IMAGE(prefill_##name##_bf16), CUDA_IMAGE(prefill_##name##_f16)                        \
    }
#define ONLY_IMAGES_16(name, ...) {IMAGES_16(name)},
#define IMAGES(name, ...)                                                                          \
    {IMAGES_16(name),                                                                              \
     {CUDA_IMAGE(attend_##name##_bf16_e4m3), CUDA_IMAGE(attend_##name##_f16_e4m3)},                \
     {CUDA_IMAGE(prefill_##name##_bf16_e4m3), CUDA_IMAGE(prefill_##name##_f16_e4m3)},              \
     {CUDA_IMAGE(attend_##name##_bf16_e5m2), CUDA_IMAGE(attend_##name##_f16_e5m2)},                \
     {CUDA_IMAGE(prefill_##name##_bf16_e5m2), CUDA_IMAGE(prefill_##name##_f16_e5m2)}},
#define IMAGES_WIDE(name, ...)                                                                     \
    {[IMAGE_PREFILL] = {CUDA_IMAGE(prefill_##name##_bf16), CUDA_IMAGE(prefill_##name##_f16)}},
static const cuda_image images[][IMAGE_COUNT][TYPE_COUNT] = {FI_SHAPES(IMAGES, ONLY_IMAGES_16)
                                                                 FI_WIDE_SHAPES(IMAGES_WIDE)};
static const int images_of[KERNEL_COUNT] = {[KERNEL_ATTEND] = IMAGE_ATTEND,
                                            [KERNEL_ATTEND_MANY] = IMAGE_ATTEND,
                                            [KERNEL_PREFILL] = IMAGE_PREFILL,
                                            [KERNEL_PREFILL_HALF] = IMAGE_PREFILL,
                                            [KERNEL_CODES] = IMAGE_CODES,
                                            [KERNEL_CODES_MANY] = IMAGE_CODES,
                                            [KERNEL_PREFILL_CODES] = IMAGE_PREFILL_CODES,
                                            [KERNEL_PREFILL_HALF_CODES] = IMAGE_PREFILL_CODES};
#undef IMAGES
#undef ONLY_IMAGES_16
#undef IMAGES_16
#undef IMAGES_WIDE

static int image_of(int kernel, attn_dtype kv_dtype)
{
    int more = kv_dtype == ATTN_FP8_E5M2 ? IMAGE_CODES_E5M2 - IMAGE_CODES : 0;
    return images_of[kernel] + more;
}

static const cuda_image plan_image = CUDA_IMAGE(plan);

static const fi_shape *find_shape(const fi_shape *shapes, uint32_t count, int32_t dim,
                                  int32_t dim_v)
{
    for (uint32_t i = 0; i < count; i++)
        if (shapes[i].dim == dim && shapes[i].dim_v == dim_v)
            return &shapes[i];
    return NULL;
}

const fi_shape *fi_find_shape(int32_t dim, int32_t dim_v)
{
    return find_shape(fi_shapes, fi_num_shapes, dim, dim_v);
}

int fi_has_hopper(const attn_device *device)
{
    return cuda_codes_run("sm_90a", device->sm) && strstr(FI_CODES, "sm_90a");
}

const fi_shape *fi_find_shape_for(const attn_device *device, int32_t dim, int32_t dim_v)
{
    return fi_has_hopper(device) ? fi_find_shape(dim, dim_v)
                                 : find_shape(earlier_shapes, NUM_EARLIER, dim, dim_v);
}

static attn_status load_plan(attn_instance *made, attn_error *error)
{
    static const cuda_wants wants = {0};
    attn_status status = cuda_image_find(made->cuda, &made->facts, &plan_image, "fi_plan_batch",
                                         &wants, &made->plan_module, &made->plan, error);
    if (status == ATTN_OK)
        status = cuda_image_find(made->cuda, &made->facts, &plan_image, "fi_save", &wants,
                                 &made->plan_module, &made->save, error);
    return status;
}

/* Is it one for groups with slopes? */
static int is_sloped(const fi_group *group, int kernel)
{
    return kernel == KERNEL_PREFILL && group->shape->has_hopper &&
           group->shape->dim <= FI_SLOPES_DIM && group->base.flags & ATTN_GROUP_HAS_ALIBI;
}

uint32_t fi_shared_bytes(const fi_group *group, int kernel)
{
    const fi_kernel *wanted = &group->shape->kernels[kernel];
    return wanted->shared + (is_sloped(group, kernel) ? FI_SLOPES_BYTES(wanted->keys) : 0);
}

/* Groups of the same dimensions and type share a module. */
static attn_status load_kernel(attn_instance *made, fi_group *group, int kernel, attn_error *error)
{
    int type = group->base.q_dtype == ATTN_F16 ? TYPE_F16 : TYPE_BF16;
    long shape = group->shape - (group->shape->has_hopper ? fi_shapes : earlier_shapes);
    int image = image_of(kernel, group->base.kv_dtype);
    const char *codes = group->base.kv_dtype == ATTN_FP8_E5M2 ? "_e5m2" : "_e4m3";
    cuda_module *module = &made->modules[(shape * IMAGE_COUNT + image) * TYPE_COUNT + type];
    const fi_kernel *wanted = &group->shape->kernels[kernel];
    const cuda_wants wants = {.shared = fi_shared_bytes(group, kernel)};
    char name[64];
    const char *form = "";
    if (is_sloped(group, kernel))
        form = "_slopes";
    else if (group->is_invariant && !fi_is_prefill(kernel))
        form = "_splits";
    snprintf(name, sizeof name, "%s_%s%s%s", wanted->name, type == TYPE_F16 ? "f16" : "bf16",
             kernel >= KERNEL_CODES ? codes : "", form);
    return cuda_image_find(made->cuda, &made->facts, &images[shape][image][type], name, &wants,
                           module, &group->functions[kernel], error);
}

static attn_status load_kernels(attn_instance *made, fi_group *group, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int i = 0; i < KERNEL_COUNT && status == ATTN_OK; i++)
        if (fi_has_kernel(group, i))
            status = load_kernel(made, group, i, error);
    return status;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

void fi_group_init(fi_group *group, const attn_problem *problem, uint32_t num_sms,
                   const fi_options *options)
{
    *group = (fi_group){.shape = fi_find_shape_for(problem->device, problem->group->head_dim,
                                                   problem->group->v_head_dim)};
    cuda_group_init(&group->base, problem);
    group->num_sms = num_sms ? num_sms : DEFAULT_SMS;
    group->options = *options;
    group->is_invariant = fi_is_invariant(problem, options);
}

int fi_has_kernel(const fi_group *group, int kernel)
{
    int is_many = kernel == KERNEL_ATTEND_MANY || kernel == KERNEL_CODES_MANY;
    int is_half = kernel == KERNEL_PREFILL_HALF || kernel == KERNEL_PREFILL_HALF_CODES;
    int is_other = is_many || is_half;
    return group->shape->kernels[kernel].threads > 0 && !(is_other && group->is_invariant) &&
           cuda_is_fp8(group->base.kv_dtype) == (kernel >= KERNEL_CODES);
}

/* As many blocks as the device runs at once and as there is workspace for, or fewer, so that all
 * lanes have as many. Heads of the same keys are read at the same time where there are blocks for
 * them. */
static fi_grid find_grid(const fi_group *group, const attn_bounds *bounds, uint32_t blocks)
{
    int64_t most = group->options.workspace / fi_block_bytes(group, bounds);
    uint32_t heads = (uint32_t)group->base.kv_heads;
    if (most < blocks)
        blocks = most > 1 ? (uint32_t)most : 1;
    fi_grid grid = {.lanes = heads < blocks ? heads : blocks};
    while (heads % grid.lanes)
        grid.lanes--;
    grid.columns = blocks / grid.lanes;
    return grid;
}

/* Of a tile of few rows, of one sequence, a multiprocessor has one block, even if there is room for
 * two: keys come as fast, an item has half as many parts, and the next launch finds room. */
static int is_alone(const fi_group *group, int kernel, const attn_bounds *bounds)
{
    const int64_t keys = bounds->max_kv_len, heads = group->base.kv_heads;
    return kernel == KERNEL_ATTEND && bounds->max_seqs == 1 && heads >= ALONE_HEADS &&
           (keys > ALONE_KEYS || keys * heads >= ALONE_KEYS * ALONE_MANY) &&
           (int64_t)bounds->max_q_len * group->base.ratio <= FI_ROWS;
}

fi_grid fi_find_grid(const fi_group *group, int kernel, const attn_bounds *bounds)
{
    const int is_one = is_alone(group, kernel, bounds);
    const int32_t each = is_one ? 1 : group->shape->kernels[kernel].blocks;
    return find_grid(group, bounds, group->num_sms * (uint32_t)each);
}

/* Where the batch may not have all multiprocessors it has a block for each of its own: they could be
 * on as many as there are blocks. */
fi_grid fi_bounded_grid(const fi_group *group, int kernel, const attn_bounds *bounds)
{
    const uint32_t sms = cuda_num_sms(bounds, group->num_sms);
    return sms < group->num_sms ? find_grid(group, bounds, sms)
                                : fi_find_grid(group, kernel, bounds);
}

int fi_is_wide(const fi_shape *shape)
{
    return shape->kernels[KERNEL_ATTEND].threads == 0;
}

/* A warp has a part of the keys, or, of wide heads, of the columns. */
int fi_warp_keys(const fi_group *group, int kernel)
{
    int keys = group->shape->kernels[kernel].keys;
    return fi_is_wide(group->shape) ? keys : keys / WARPS_OF_A_UNIT;
}

int fi_box_keys(const fi_group *group, int kernel)
{
    int keys = fi_warp_keys(group, kernel), page = group->base.page_size;
    while (keys >= FI_GROUP && page % keys)
        keys /= 2;
    return keys >= FI_GROUP ? keys : 1;
}

static attn_status fill_groups(attn_instance *made, const attn_problem *problems, attn_error *error)
{
    for (uint32_t i = 0; i < made->num_groups; i++)
        fi_group_init(&made->groups[i], attn_at(problems, i), made->facts.num_sms, &made->options);
    attn_status status = cuda_groups_list_layers(made->groups, sizeof *made->groups,
                                                 made->num_groups, problems, error);
    for (uint32_t i = 0; i < made->num_groups && status == ATTN_OK; i++)
        status = load_kernels(made, &made->groups[i], error);
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status fill(attn_instance *made, const attn_problem *problems, attn_error *error)
{
    attn_status status = cuda_facts_find(made->cuda, problems->device, &made->facts, error);
    if (made->facts.num_sms == 0)
        made->facts.num_sms = DEFAULT_SMS;
    if (status == ATTN_OK)
        status = load_plan(made, error);
    return status == ATTN_OK ? fill_groups(made, problems, error) : status;
}

attn_status fi_create_with(const attn_backend_type *type, const attn_problem *problems,
                           uint32_t num_problems, const attn_options *options,
                           const attn_services *services, uint64_t own_size,
                           attn_instance **instance, attn_error *error)
{
    const cuda_api *cuda = NULL;
    attn_status status =
        cuda_create_begin(type, problems, num_problems, options, services, instance, &cuda, error);
    if (status != ATTN_OK)
        return status;

    uint64_t num_modules = (uint64_t)fi_num_shapes * IMAGE_COUNT * TYPE_COUNT;
    uint32_t num_layers = attn_util_count_layers(problems, num_problems);
    uint64_t size = sizeof(attn_instance) + num_modules * sizeof(cuda_module) +
                    num_problems * sizeof(fi_group) + num_layers * sizeof(attn_util_layer);
    attn_instance *made = attn_util_allocate_instance(services, size + own_size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    memset(made, 0, size + own_size);
    made->services = services;
    made->cuda = cuda;
    made->options = fi_read_options(options);
    made->num_groups = num_problems;
    made->modules = (cuda_module *)(made + 1);
    made->groups = (fi_group *)(made->modules + num_modules);
    made->own = (char *)made + size;
    status = fill(made, problems, error);
    if (status != ATTN_OK) {
        fi_destroy(made);
        return status;
    }
    *instance = made;
    return ATTN_OK;
}

attn_status fi_create(const attn_backend_type *type, const attn_problem *problems,
                      uint32_t num_problems, const attn_options *options,
                      const attn_services *services, attn_instance **instance, attn_error *error)
{
    return fi_create_with(type, problems, num_problems, options, services, 0, instance, error);
}

void fi_destroy(attn_instance *instance)
{
    if (!instance)
        return;
    cuda_images_unload(instance->cuda, instance->modules, fi_num_shapes * IMAGE_COUNT * TYPE_COUNT);
    cuda_images_unload(instance->cuda, &instance->plan_module, 1);
    instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

uint32_t fi_index_forms(attn_instance *instance)
{
    return cuda_groups_index_forms(instance->groups, sizeof *instance->groups,
                                   instance->num_groups);
}

attn_status fi_find_layer(const attn_instance *instance, int32_t layer_id, uint32_t *index,
                          const attn_util_layer **layer, attn_error *error)
{
    return cuda_find_layer(instance->groups, sizeof *instance->groups, instance->num_groups,
                           layer_id, index, layer, error);
}
