/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, their layers. It has an instance
 * of flashmla_like, for which a row with its choice is a sequence of the chosen latents.
 */
#include "plugins/dsa_like/dsa_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/image.h"
#include "plugins/flashmla_like/type.h"

CUDA_IMAGE_DECLARE(dsa)
static const cuda_image images[] = {CUDA_IMAGE(dsa)};

void dsa_destroy(attn_instance *instance)
{
    if (!instance)
        return;
    if (instance->attend)
        flashmla_like_type.ops->destroy(instance->attend);
    if (instance->module)
        instance->cuda->cuModuleUnload(instance->module);
    instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

int dsa_multiplies_codes(const dsa_layers *group)
{
    return group->sparse.index_dtype == ATTN_FP8_E4M3 && group->sparse.label_dtype == ATTN_FP8_E4M3;
}

/* All query heads of a token read one key. */
static attn_status fill_groups(attn_instance *instance, const attn_problem *problems,
                               attn_error *error)
{
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        const attn_problem *problem = attn_at(problems, i);
        dsa_layers *group = &instance->groups[i];
        cuda_group_init(&group->base, problem);
        group->base.ratio = problem->group->num_q_heads;
        group->base.kv_heads = 1;
        ATTN_UTIL_READ(&group->mla, problem->group->mla);
        ATTN_UTIL_READ(&group->sparse, problem->group->sparse);
    }
    return cuda_groups_list_layers(instance->groups, sizeof *instance->groups, instance->num_groups,
                                   problems, error);
}

/* Percent of the L1 cache that becomes shared memory: 132 KB, for two blocks of dsa_choose or one alone (ROOM_ALONE,
 * forward.c), four of dsa_label_codes or one of a group. Through the rest go labels and logits on their way to
 * registers. All kernels have the same, so that no block finds a multiprocessor as one of another kernel has left it,
 * with less. */
enum { CARVEOUT = 57 };

static attn_status load_kernels(attn_instance *made, attn_error *error)
{
    const uint32_t most = made->facts.shared_memory;
    const struct {
        const char *name;
        uint32_t shared;
        cuda_function *function;
    } wanted[] = {
        {"dsa_plan", 0, &made->plan},
        {"dsa_save", 0, &made->save},
        {"dsa_take", 0, &made->take},
        {"dsa_choose", most, &made->choose},
        {"dsa_label_codes", DSA_LABEL_SHARED(1, 1), &made->label[1][0]},
        {"dsa_label_codes_group", DSA_LABEL_SHARED(1, DSA_MOST_QUERIES(1)), &made->label[1][1]},
        {"dsa_label_wide", DSA_LABEL_SHARED(2, 1), &made->label[0][0]},
        {"dsa_label_wide_group", DSA_LABEL_SHARED(2, DSA_MOST_QUERIES(2)), &made->label[0][1]},
    };
    attn_status status =
        cuda_image_load(made->cuda, &made->facts, images, 1, &made->module, NULL, error);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == ATTN_OK; i++) {
        const cuda_wants wants = {.shared = wanted[i].shared, .carveout = CARVEOUT};
        status = cuda_function_find(made->cuda, &made->facts, made->module, wanted[i].name, &wants,
                                    wanted[i].function, error);
    }
    return status;
}

/* A problem of flashmla_like, in structs of full size. */
typedef struct posed {
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
} posed;

/* Group `index` as latent attention in which each row sees all of its list. */
static void pose(const attn_problem *problem, uint32_t index, posed *to)
{
    ATTN_UTIL_READ(&to->problem, problem);
    ATTN_UTIL_READ(&to->group, problem->group);
    ATTN_UTIL_READ(&to->bounds, problem->bounds);
    to->group.kind = ATTN_KIND_MLA;
    to->group.sparse = NULL;
    to->group.kv_group = (int32_t)index;
    to->group.window_left = to->group.window_right = -1;
    to->group.attention_chunk = 0;
    to->problem.group = &to->group;
    to->problem.bounds = &to->bounds;
    to->problem.required_traits &=
        ~(uint32_t)ATTN_TRAIT_BATCH_INVARIANT; /* create_attend() sees to it */
}

static attn_status create_attend(attn_instance *made, const attn_problem *problems,
                                 const attn_options *options, attn_error *error)
{
    const uint64_t count = made->num_groups;
    const uint64_t size = count * (sizeof(posed) + sizeof(attn_problem));
    posed *poses = made->services->allocate(made->services->ctx, ATTN_SPACE_HOST, size, 64);
    if (!poses)
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %llu problems",
                              (unsigned long long)count);
    attn_problem *list = (attn_problem *)(void *)(poses + count);
    uint32_t needs = 0;
    for (uint32_t i = 0; i < count; i++) {
        const attn_problem *problem = attn_at(problems, i);
        needs |= problem->required_traits;
        pose(problem, i, &poses[i]);
        list[i] = poses[i].problem;
        list[i].struct_size = sizeof list[i];
    }
    attn_status status = flashmla_like_type.create(&flashmla_like_type, list, made->num_groups,
                                                   options, made->services, &made->attend, error);
    made->services->release(made->services->ctx, ATTN_SPACE_HOST, poses);
    if (status == ATTN_OK)
        flashmla_like_let_shrink(made->attend); /* to what a layer's lists have */
    if (status == ATTN_OK && needs & ATTN_TRAIT_BATCH_INVARIANT)
        flashmla_like_keep_whole(made->attend);
    return status;
}

attn_status dsa_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error)
{
    const cuda_api *cuda = NULL;
    attn_status status =
        cuda_create_begin(type, problems, num_problems, options, services, instance, &cuda, error);
    if (status != ATTN_OK)
        return status;
    uint64_t size =
        sizeof(attn_instance) + num_problems * sizeof(dsa_layers) +
        (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(attn_util_layer);
    attn_instance *made = attn_util_allocate_instance(services, size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    *made = (attn_instance){.services = services,
                            .cuda = cuda,
                            .num_groups = num_problems,
                            .groups = (dsa_layers *)(made + 1)};
    status = fill_groups(made, problems, error);
    if (status == ATTN_OK)
        status = cuda_facts_find(cuda, problems->device, &made->facts, error);
    if (status == ATTN_OK)
        status = load_kernels(made, error);
    if (status == ATTN_OK)
        status = create_attend(made, problems, options, error);
    if (status != ATTN_OK)
        dsa_destroy(made);
    else
        *instance = made;
    return status;
}
