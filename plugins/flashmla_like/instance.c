/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: an instance is one block: the instance, its groups, their layers.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/image.h"
#include "plugins/flashmla_like/type.h"

CUDA_IMAGE_DECLARE(flashmla)
static const cuda_image images[] = {CUDA_IMAGE(flashmla)};

void flashmla_like_keep_whole(attn_instance *instance)
{
    instance->whole = 1;
}

void flashmla_like_let_shrink(attn_instance *instance)
{
    instance->shrinks = 1;
}

void fm_destroy(attn_instance *instance)
{
    if (!instance)
        return;
    if (instance->module)
        instance->cuda->cuModuleUnload(instance->module);
    instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

/* All query heads of a token read the same key, so a group has one KV head. */
static attn_status fill_groups(attn_instance *instance, const attn_problem *problems,
                               attn_error *error)
{
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        const attn_problem *problem = attn_at(problems, i);
        cuda_group *group = &instance->groups[i];
        cuda_group_init(group, problem);
        group->ratio = problem->group->num_q_heads;
        group->kv_heads = 1;
        group->dim = problem->group->mla->kv_lora_rank + problem->group->mla->rope_dim;
        group->v_dim = problem->group->mla->kv_lora_rank;
    }
    return cuda_groups_list_layers(instance->groups, sizeof *instance->groups, instance->num_groups,
                                   problems, error);
}

/* Tiles of a part with BATCH_INVARIANT, fixed for the life of the instance; 0 without. With few
 * sequences, long parts leave multiprocessors idle; with many, the ends of short parts cost time.
 */
static int find_fixed(const attn_instance *instance, const attn_problem *problems)
{
    int64_t blocks = 0;
    int needed = 0;
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        const attn_problem *problem = attn_at(problems, i);
        attn_bounds bounds = {.max_seqs = 0};
        if (problem->bounds)
            ATTN_UTIL_READ(&bounds, problem->bounds);
        const int64_t own =
            bounds.max_seqs * (instance->groups[i].ratio > MLA_ROWS ? INT64_C(2) : 1);
        blocks = own > blocks ? own : blocks;
        needed |= (problem->required_traits & ATTN_TRAIT_BATCH_INVARIANT) != 0;
    }
    if (!needed)
        return 0;
    if (2 * blocks >= instance->facts.num_sms)
        return MLA_FIXED_LONG;
    /* Without bounds, there may be many sequences. */
    return blocks && 16 * blocks < instance->facts.num_sms ? MLA_FIXED_SHORT : MLA_FIXED_MIDDLE;
}

static attn_status find(attn_instance *made, const char *name, uint32_t shared,
                        cuda_function *function, attn_error *error)
{
    const cuda_wants wants = {.shared = shared};
    return cuda_function_find(made->cuda, &made->facts, made->module, name, &wants, function,
                              error);
}

int fm_latents(const cuda_group *group)
{
    return group->packed                  ? FM_LATENT_PACKED
           : cuda_is_fp8(group->q_dtype)  ? FM_LATENT_CODED
           : cuda_is_fp8(group->kv_dtype) ? FM_LATENT_CODES
                                          : FM_LATENT_BF16;
}

int fm_tile(int latents, int rows)
{
    const int short_tiles = latents == FM_LATENT_BF16 || latents == FM_LATENT_CODES;
    return rows == MLA_ROWS && short_tiles ? MLA_ROWS_TILE : MLA_TILE;
}

uint32_t fm_shared(int latents, int kernel)
{
    static const uint32_t of_64[FM_LATENTS] = {[FM_LATENT_BF16] = MLA_ROWS_SHARED,
                                               [FM_LATENT_CODES] = MLA_ROWS_SHARED,
                                               [FM_LATENT_PACKED] = MLA_TOKENS_SHARED(MLA_ROWS),
                                               [FM_LATENT_CODED] = MLA_CODED_SHARED};
    const int rows = 8 << kernel;
    if (rows == MLA_ROWS)
        return of_64[latents];
    if (latents == FM_LATENT_PACKED && rows > 8)
        return (uint32_t)MLA_TOKENS_SHARED(rows);
    return (uint32_t)(latents == FM_LATENT_PACKED ? MLA_PACKED_SHARED(rows)
                      : latents == FM_LATENT_CODES || latents == FM_LATENT_CODED
                          ? MLA_CODES_SHARED(rows)
                          : MLA_SHARED(rows));
}

static attn_status load_kernels(attn_instance *made, attn_error *error)
{
    static const char *const names[FM_LATENTS][FM_KERNELS] = {
        [FM_LATENT_BF16] = {"mla_attend_8", "mla_attend_16", "mla_attend_32", "mla_attend_64"},
        [FM_LATENT_CODES] = {"mla_attend_codes_8", "mla_attend_codes_16", "mla_attend_codes_32",
                             "mla_attend_codes_64"},
        [FM_LATENT_PACKED] = {"mla_attend_packed_8", "mla_attend_packed_16", "mla_attend_packed_32",
                              "mla_attend_packed_64"},
        [FM_LATENT_CODED] = {"mla_attend_coded_8", "mla_attend_coded_16", NULL,
                             "mla_attend_coded_64"}};
    attn_status status =
        cuda_image_load(made->cuda, &made->facts, images, 1, &made->module, NULL, error);
    if (status == ATTN_OK)
        status = find(made, "mla_plan", 0, &made->plan, error);
    if (status == ATTN_OK)
        status = find(made, "mla_merge", 0, &made->merge, error);
    for (int latents = 0; latents < FM_LATENTS; latents++)
        for (int i = 0; i < FM_KERNELS && status == ATTN_OK; i++)
            if (names[latents][i])
                status = find(made, names[latents][i], fm_shared(latents, i),
                              &made->attend[latents][i], error);
    return status;
}

attn_status fm_create(const attn_backend_type *type, const attn_problem *problems,
                      uint32_t num_problems, const attn_options *options,
                      const attn_services *services, attn_instance **instance, attn_error *error)
{
    const cuda_api *cuda = NULL;
    attn_status status =
        cuda_create_begin(type, problems, num_problems, options, services, instance, &cuda, error);
    if (status != ATTN_OK)
        return status;
    uint64_t size =
        sizeof(attn_instance) + num_problems * sizeof(cuda_group) +
        (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(attn_util_layer);
    attn_instance *made = attn_util_allocate_instance(services, size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    *made = (attn_instance){.services = services,
                            .cuda = cuda,
                            .num_groups = num_problems,
                            .groups = (cuda_group *)(made + 1)};
    status = fill_groups(made, problems, error);
    if (status == ATTN_OK)
        status = cuda_facts_find(cuda, problems->device, &made->facts, error);
    if (status == ATTN_OK)
        status = load_kernels(made, error);
    made->fixed = find_fixed(made, problems);
    if (status != ATTN_OK)
        fm_destroy(made);
    else
        *instance = made;
    return status;
}
