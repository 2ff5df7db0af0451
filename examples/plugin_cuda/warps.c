/* SPDX-License-Identifier: Apache-2.0
 *
 * warps.c: example_warps, a CUDA backend with kernels compiled ahead of time, to be copied.
 *
 * The kernels are warps_kernels.cu: slow and short. This file is all of the host's side, and shows
 * in what order a backend takes what plugins/common/cuda has (its README says the same in words):
 *
 *   query     which devices run the kernels, which layers and data types they take
 *   create    the driver, the device, the first image that it runs, its functions
 *   metadata  a batch within bounds; in a graph, its counts in device memory
 *   forward   operands to the kernels' argument, and launches
 */
#include "warps.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/image.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/operands.h"
#include "plugins/common/plugin_entry.h"

#include <string.h>

/* What the kernels are compiled for, as the build says it. */
#ifndef WARPS_CODES
#error "WARPS_CODES: the architectures, as in -DWARPS_CODES='\"sm_80 sm_90\"'"
#endif

CUDA_IMAGE_DECLARE(warps_kernels)
static const cuda_image images[] = {CUDA_IMAGE(warps_kernels)};

enum {
    INDEX_FORMS = ATTN_INDEX_BLOCK_TABLE,
    MASKS = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
    USES = ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_LSE | ATTN_USES_OMIT_SINK,
    TRAITS = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT,
    ALIGNMENT = 64,
    COUNTS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

/* ---- Query ----------------------------------------------------------------------------------- */

static const attn_util_limits limits = {
    .layer_flags = ATTN_LAYER_KV_READ_ONLY,
    .modes = ATTN_UTIL_ALL_MODES,
    .mask_kinds = MASKS,
    .uses = USES,
    .graph_level = ATTN_GRAPH_ALWAYS,
    .traits = TRAITS,
};

static const cuda_dtypes dtypes = {.f32_out = 1};

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

static void check_group(const attn_layer_group *group, attn_verdict *verdict)
{
    if (group->kind != ATTN_KIND_SOFTMAX)
        REFUSE(LAYER_KIND, KIND, "softmax", "%s", attn_util_kind_name(group->kind));
    if (group->attn_type != ATTN_TYPE_DECODER)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder", "%s", attn_util_attn_type_name(group->attn_type));
    if (group->head_dim < 1 || group->head_dim > WARPS_MAX_DIM)
        REFUSE(HEAD_DIM, HEAD_DIM, "1..512", "%d", group->head_dim);
    if (group->v_head_dim < 1 || group->v_head_dim > WARPS_MAX_DIM)
        REFUSE(HEAD_DIM, V_HEAD_DIM, "1..512", "%d", group->v_head_dim);
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "0", "1");
    if (group->flags & ~(uint32_t)(ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI))
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", group->flags);
}

static attn_status check_sense(const attn_problem *problem, const attn_layer_group *group,
                               attn_error *error)
{
    attn_status status = attn_util_require_layers(group, error);
    if (status != ATTN_OK || group->kind != ATTN_KIND_SOFTMAX)
        return status;
    status = attn_util_require_softmax(group, error);
    if (status == ATTN_OK && problem->page_size < 1)
        status = attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                      "page_size %d: accepted 1 and more", problem->page_size);
    return status;
}

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *given,
                         attn_verdict *answer, attn_error *error)
{
    (void)type, (void)options, (void)services;
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
    attn_verdict verdict;
    attn_status status = attn_util_read_problem(given, &problem, &group, &bounds, &device, error);
    if (status == ATTN_OK)
        status = check_sense(&problem, &group, error);
    if (status == ATTN_OK && !answer)
        status = attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    if (status != ATTN_OK)
        return status;
    attn_util_verdict_begin(answer, &verdict);
    cuda_codes_check(WARPS_CODES, &device, &verdict);
    check_group(&group, &verdict);
    attn_util_check_layers(&limits, &group, &verdict);
    cuda_check_dtypes(&dtypes, &problem, &group, &verdict);
    cuda_check_scales(&dtypes, &problem, &group, &verdict);
    attn_util_check_kv_layout(&problem, &verdict);
    attn_util_check_bounds(&limits, &bounds, &verdict);
    attn_util_check_needs(&limits, &problem, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.traits = TRAITS;
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 16;
    }
    attn_util_verdict_end(&verdict, answer);
    return ATTN_OK;
}

/* ---- Instance -------------------------------------------------------------------------------- */

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    cuda_facts device;
    cuda_module module;
    cuda_function attend, save;
    uint32_t num_groups;
    cuda_group *groups; /* the groups and their layers lie after the instance */
};

static const attn_backend_type warps_type;

static void destroy(attn_instance *instance)
{
    if (!instance)
        return;
    if (instance->module)
        instance->cuda->cuModuleUnload(instance->module);
    instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

static attn_status fill_groups(attn_instance *instance, const attn_problem *problems,
                               attn_error *error)
{
    attn_util_layer *layers = (attn_util_layer *)(instance->groups + instance->num_groups);
    attn_util_layer *next = layers;
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        const attn_problem *problem = attn_at(problems, i);
        cuda_group_init(&instance->groups[i], problem);
        instance->groups[i].layers = next;
        attn_status status = attn_util_list_layers(problem->group, layers, &next, error);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

/* Modules are the context's that is current here; an instance has its own. */
static attn_status load_kernels(attn_instance *instance, attn_error *error)
{
    const cuda_api *cuda = instance->cuda;
    const cuda_wants wants = {.shared = WARPS_SHARED(WARPS_MAX_DIM)}, none = {.shared = 0};
    attn_status status =
        cuda_image_load(cuda, &instance->device, images, sizeof images / sizeof images[0],
                        &instance->module, NULL, error);
    if (status == ATTN_OK)
        status = cuda_function_find(cuda, &instance->device, instance->module, "warps_attend",
                                    &wants, &instance->attend, error);
    if (status == ATTN_OK)
        status = cuda_function_find(cuda, &instance->device, instance->module, "warps_save", &none,
                                    &instance->save, error);
    return status;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    (void)type;
    const cuda_api *cuda = NULL;
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status =
            attn_util_require_support(&warps_type, options, services, attn_at(problems, i), error);
    if (status == ATTN_OK)
        status = cuda_api_get(&cuda, error);
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
        status = cuda_facts_find(cuda, problems->device, &made->device, error);
    if (status == ATTN_OK)
        status = load_kernels(made, error);
    if (status != ATTN_OK)
        destroy(made);
    else
        *instance = made;
    return status;
}

static uint32_t index_forms(attn_instance *instance)
{
    (void)instance;
    return INDEX_FORMS;
}

/* ---- Metadata -------------------------------------------------------------------------------- */

struct attn_metadata {
    attn_instance *instance;
    cuda_plan plan;
};

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, uint64_t sizes[ATTN_REGION_COUNT],
                           attn_error *error)
{
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = attn_util_require_known_bounds(&limits, bounds, error);
    memset(sizes, 0, ATTN_REGION_COUNT * sizeof *sizes);
    sizes[COUNTS] = kind == ATTN_METADATA_GRAPH ? CUDA_COUNTS_BYTES : 0;
    sizes[HOST] = sizeof(attn_metadata) + instance->num_groups * sizeof(attn_kv_batch);
    return status;
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                 attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status != ATTN_OK)
        return status;
    attn_util_clear_size(size);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        size->size[region] = sizes[region];
        size->alignment[region] = sizes[region] ? ALIGNMENT : 0;
    }
    return ATTN_OK;
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    attn_bounds bounds;
    uint64_t sizes[ATTN_REGION_COUNT];
    attn_status status = measure(instance, kind, given, &bounds, sizes, error);
    if (status == ATTN_OK && sizes[COUNTS])
        status = attn_util_check_region(memory, COUNTS, "device metadata", sizes[COUNTS], ALIGNMENT,
                                        error);
    if (status == ATTN_OK)
        status =
            attn_util_check_region(memory, HOST, "host metadata", sizes[HOST], ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    *made = (attn_metadata){.instance = instance};
    cuda_plan_init(&made->plan, kind, &bounds, INDEX_FORMS,
                   sizes[COUNTS] ? (cuda_address)(uintptr_t)memory->base[COUNTS] : 0,
                   (attn_kv_batch *)(made + 1));
    *metadata = made;
    return ATTN_OK;
}

/* All of it lies in the caller's memory. */
static void metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}

static attn_status init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error)
{
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    return cuda_plan_take(&metadata->plan, instance->cuda, instance->groups, sizeof(cuda_group),
                          instance->num_groups, batch, stream, error);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* The layer's group and itself; NULL = not of this instance. */
static const cuda_group *find_layer(const attn_instance *instance, int32_t layer_id,
                                    const attn_util_layer **layer)
{
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (uint32_t n = 0; n < instance->groups[i].num_layers; n++)
            if (instance->groups[i].layers[n].layer_id == layer_id) {
                *layer = &instance->groups[i].layers[n];
                return &instance->groups[i];
            }
    return NULL;
}

static void describe_group(const cuda_group *group, warps_call *call)
{
    call->dtype = cuda_element(group->q_dtype);
    call->out_dtype = cuda_element(group->out_dtype);
    call->kv_heads = group->kv_heads;
    call->ratio = group->ratio;
    call->dim = group->dim;
    call->v_dim = group->v_dim;
    call->page_size = group->page_size;
    call->window_left = group->window_left;
    call->chunk = group->chunk;
    call->sm_scale = group->sm_scale;
    call->logit_cap = group->logit_cap;
}

static attn_status launch_all(const attn_metadata *metadata, warps_call *call, attn_stream stream,
                              attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    int64_t rows = cuda_plan_extent(&metadata->plan).tokens;
    void *params[] = {call};
    const cuda_launch save = {.function = instance->save,
                              .name = "warps_save",
                              .grid = {rows, call->kv_heads, 1},
                              .block = {WARPS_SAVE_THREADS}};
    const cuda_launch attend = {.function = instance->attend,
                                .name = "warps_attend",
                                .grid = {rows, (int64_t)call->kv_heads * call->ratio, 1},
                                .block = {WARPS_PARTS * 32},
                                .shared = WARPS_SHARED((uint32_t)call->v_dim)};
    attn_status status = ATTN_OK;
    if (call->operands.save)
        status = cuda_launch_run(instance->cuda, &save, params, stream, error);
    return status == ATTN_OK ? cuda_launch_run(instance->cuda, &attend, params, stream, error)
                             : status;
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *given, attn_stream stream, attn_error *error)
{
    warps_call call;
    attn_forward_args args;
    const attn_util_layer *layer = NULL;
    if (!metadata || !given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    const cuda_plan *plan = &metadata->plan;
    attn_status status = cuda_plan_check_forward(plan, decode, error);
    if (status != ATTN_OK || !cuda_plan_has_rows(plan))
        return status;
    const cuda_group *group = find_layer(metadata->instance, layer_id, &layer);
    if (!group)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                    "layer_id %d is not of this instance", layer_id);
    const attn_kv_batch *kv = &plan->kv[group - metadata->instance->groups];
    ATTN_UTIL_READ(&args, given);
    status = cuda_operands_take(group, layer, plan, kv, &args, &call.operands, error);
    if (status != ATTN_OK)
        return status;
    cuda_plan_fill(plan, group, kv, &call.batch);
    describe_group(group, &call);
    return launch_all(metadata, &call, stream, error);
}

static attn_status forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, 0, layer_id, args, stream, error);
}

static attn_status forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, 1, layer_id, args, stream, error);
}

/* ---- Tables and the entry -------------------------------------------------------------------- */

static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND};

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = destroy,
    .index_forms = index_forms,
    .metadata_size = metadata_size,
    .metadata_create = metadata_create,
    .init_forward_metadata = init_forward_metadata,
    .metadata_destroy = metadata_destroy,
    .forward_extend = forward_extend,
    .forward_decode = forward_decode,
    .get_extension = attn_util_no_extension,
};

static const attn_backend_type warps_type = {
    .struct_size = sizeof warps_type,
    .name = "example_warps",
    .doc = "paged attention on CUDA a row at a time, as plain as it gets; an example to copy",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .ops = &ops,
    .query = query,
    .create = create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&warps_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "example_cuda",
        .version = "1.0",
        .vendor = "you",
        .doc = "a CUDA plugin whose kernels were compiled ahead of time",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
