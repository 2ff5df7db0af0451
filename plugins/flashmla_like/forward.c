/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: two launches a layer: tiles, then the parts of units that were divided.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"

static uint32_t threads_of(int latents, int rows)
{
    if (latents == FM_LATENT_PACKED)
        return rows == 8 ? MLA_PACKED_THREADS : MLA_THREADS;
    return (latents == FM_LATENT_CODES || latents == FM_LATENT_CODED) && rows != MLA_ROWS
               ? MLA_CODES_THREADS
               : MLA_THREADS;
}

static attn_status launch_all(const attn_metadata *metadata, uint32_t index, mla_call *call,
                              attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const fm_shape found = fm_find_shape(metadata, index), *shape = &found;
    const int latents = fm_latents(&instance->groups[index]);
    const int64_t blocks = ((int64_t)shape->ranges + shape->fixed) * shape->pair;
    const uint32_t threads = threads_of(latents, shape->rows);
    void *params[] = {call};
    const cuda_launch attend = {.function = instance->attend[latents][shape->kernel],
                                .name = "mla_attend",
                                .grid = {blocks, 1, 1},
                                .block = {threads},
                                .shared = fm_shared(latents, shape->kernel),
                                .programmatic = 1};
    const cuda_launch merge = {.function = instance->merge,
                               .name = "mla_merge",
                               .grid = {4 * (int64_t)instance->facts.num_sms, 1, 1},
                               .block = {MLA_MERGE_WARPS * 32},
                               .programmatic = 1};
    attn_status status = cuda_launch_run(instance->cuda, &attend, params, stream, error);
    return status == ATTN_OK ? cuda_launch_run(instance->cuda, &merge, params, stream, error)
                             : status;
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *given, attn_stream stream, attn_error *error)
{
    mla_call call = {.operands = {.k = NULL}};
    attn_forward_args args;
    uint32_t index = 0;
    const attn_util_layer *layer = NULL;
    if (!metadata || !given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    attn_status status = cuda_plan_check_forward(&metadata->plan, decode, error);
    if (status != ATTN_OK || !cuda_plan_has_rows(&metadata->plan))
        return status;
    status = cuda_find_layer(metadata->instance->groups, sizeof *metadata->instance->groups,
                             metadata->instance->num_groups, layer_id, &index, &layer, error);
    if (status != ATTN_OK)
        return status;
    ATTN_UTIL_READ(&args, given);
    status = fm_take_operands(metadata, index, layer, &args, &call, error);
    if (status != ATTN_OK)
        return status;
    fm_describe(metadata, index, &call);
    status = fm_make_boxes(metadata->instance, index, attn_operand(&args, ATTN_ROLE_LATENT_CACHE),
                           &call, error);
    return status == ATTN_OK ? launch_all(metadata, index, &call, stream, error) : status;
}

attn_status fm_forward_extend(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 0, layer_id, args, stream, error);
}

attn_status fm_forward_decode(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    return forward(metadata, 1, layer_id, args, stream, error);
}
