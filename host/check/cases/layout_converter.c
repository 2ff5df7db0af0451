/* SPDX-License-Identifier: Apache-2.0
 *
 * layout_converter.c: a wrapper that converts caches between layouts.
 */
#include "host/check/cases/layout_converter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/check/cases/operand_text.h"
#include "host/plugin/layouts.h"

enum { CACHES = 2 };
static const uint64_t most_bytes = (uint64_t)1 << 30; /* of a cache that is converted */

static struct layout_converter *current;

static struct {
    watch_begin_fn begin;
    watch_end_fn end;
    struct watch_report *report;
} watched;

/* ---- What a plugin says ---------------------------------------------------------------------- */

const attn_layouts *layout_converter_layouts(const struct loader_plugin *plugin)
{
    const attn_plugin *table = &plugin->table;
    return table->get_extension ? table->get_extension(ATTN_EXTENSION_LAYOUTS) : NULL;
}

const char *layout_converter_layout(const attn_backend_type *type, uint32_t index)
{
    for (uint32_t l = 0; l < type->num_layouts; l++)
        if (layouts_is_private(type->layouts[l]) && index-- == 0)
            return type->layouts[l];
    return NULL;
}

bool layout_converter_is_public(const attn_backend_type *type)
{
    for (uint32_t l = 0; l < type->num_layouts; l++)
        if (strncmp(type->layouts[l], "kv.", 3) == 0)
            return true;
    return false;
}

/* ---- Questions ------------------------------------------------------------------------------- */

static const struct layout_converter *layout_converter_of(const attn_backend_type *type)
{
    return (const struct layout_converter *)(const void *)type;
}

/* The problem in the backend's own layout. */
static attn_problem inside(const struct layout_converter *converter, const attn_problem *problem)
{
    attn_problem own = {.struct_size = 0};
    size_t size = problem->struct_size < sizeof own ? problem->struct_size : sizeof own;
    memcpy(&own, problem, size);
    own.struct_size = (uint32_t)size;
    if (ATTN_HAS(&own, attn_problem, kv_layout) && own.kv_layout &&
        strcmp(own.kv_layout, ATTN_LAYOUT_KV_NHD) == 0)
        own.kv_layout = converter->layout;
    return own;
}

/* Its layout's name stands for kv.nhd/1. */
static void rename_layout(const struct layout_converter *converter, char *text, size_t size)
{
    char copy[2048];
    char *at = strstr(text, converter->layout);
    if (!at || snprintf(copy, sizeof copy, "%s", at + strlen(converter->layout)) < 0)
        return;
    snprintf(at, size - (size_t)(at - text), "%s%s", ATTN_LAYOUT_KV_NHD, copy);
}

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    const struct layout_converter *converter = layout_converter_of(type);
    const attn_backend_type *inner = converter->front.inner;
    attn_problem own = inside(converter, problem);
    attn_status status = inner->query(inner, options, services, &own, verdict, error);
    uint32_t count = verdict->num_reasons < verdict->reasons_capacity ? verdict->num_reasons
                                                                      : verdict->reasons_capacity;
    for (uint32_t r = 0; status == ATTN_OK && !verdict->supported && r < count; r++) {
        attn_reason *reason = (attn_reason *)(uintptr_t)attn_at(verdict->reasons, r);
        if (reason->field != ATTN_FIELD_KV_LAYOUT)
            continue;
        rename_layout(converter, reason->got, sizeof reason->got);
        rename_layout(converter, reason->accepted, sizeof reason->accepted);
    }
    return status;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    const struct layout_converter *converter = layout_converter_of(type);
    const attn_backend_type *inner = converter->front.inner;
    attn_problem *own = calloc(num_problems + 1u, sizeof *own);
    if (!own)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for problems");
    for (uint32_t p = 0; p < num_problems; p++) {
        own[p] = inside(converter, attn_at(problems, p));
        own[p].struct_size = sizeof *own; /* the stride */
    }
    attn_status status =
        inner->create(inner, own, num_problems, options, services, instance, error);
    free(own);
    return status;
}

/* ---- Caches ---------------------------------------------------------------------------------- */

/* A cache of a call, as the backend sees it. On a device that is no CPU, conversions work on copies
 * in host memory. */
struct cache {
    const attn_tensor *given;
    uint32_t role;
    attn_tensor own, nhd_image, own_image;
    void *memory;
    uint64_t span, own_span;
};

static void *first_byte(const attn_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

static void point_to(attn_tensor *tensor, void *memory)
{
    tensor->data = memory;
    tensor->byte_offset = 0;
}

static void release(const struct layout_converter *t, struct cache *cache)
{
    if (!cache->given)
        return;
    free(cache->nhd_image.data);
    free(cache->own_image.data);
    device_release(t->device, ATTN_SPACE_DEVICE, cache->memory);
}

static attn_status make_room(const struct layout_converter *t, struct cache *cache,
                             attn_error *error)
{
    cache->span = operand_span(cache->given);
    cache->own_span = operand_span(&cache->own);
    uint64_t more = cache->span > cache->own_span ? cache->span : cache->own_span;
    cache->nhd_image = *cache->given;
    cache->own_image = cache->own;
    point_to(&cache->nhd_image, NULL);
    point_to(&cache->own_image, NULL);
    if (more <= most_bytes) {
        point_to(&cache->nhd_image, malloc(cache->span + 1));
        point_to(&cache->own_image, malloc(cache->own_span + 1));
        cache->memory = device_allocate(t->device, ATTN_SPACE_DEVICE, cache->own_span + 1, 256);
    }
    point_to(&cache->own, cache->memory);
    cache->own.alignment = 256;
    if (!cache->nhd_image.data || !cache->own_image.data || !cache->memory)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "no memory to convert a cache of %llu bytes to %s",
                         (unsigned long long)more, t->layout);
    memset(cache->own_image.data, 0, cache->own_span);
    return ATTN_OK;
}

/* Malformed caches are passed on, for the backend to refuse. */
static bool is_cache(const attn_tensor *tensor)
{
    return tensor && ATTN_HAS(tensor, attn_tensor, strides) && tensor->ndim == 4 && tensor->data &&
           attn_dtype_size(tensor->dtype) > 0;
}

static attn_status bring(const struct layout_converter *t, struct cache *cache, attn_stream stream,
                         attn_error *error)
{
    cache->own = *cache->given;
    attn_status status =
        t->layouts->shape(t->layout, cache->role, cache->given, &cache->own, error);
    if (status == ATTN_OK)
        status = make_room(t, cache, error);
    if (status == ATTN_OK)
        status = device_copy_wait(t->device, cache->nhd_image.data, first_byte(cache->given),
                                  cache->span, stream, error);
    if (status == ATTN_OK)
        status = t->layouts->from_nhd(t->layout, cache->role, &cache->nhd_image, &cache->own_image,
                                      error);
    return status == ATTN_OK ? device_copy_wait(t->device, cache->memory, cache->own_image.data,
                                                cache->own_span, stream, error)
                             : status;
}

static attn_status bring_back(const struct layout_converter *t, struct cache *cache,
                              attn_stream stream, attn_error *error)
{
    attn_status status = device_copy_wait(t->device, cache->own_image.data, cache->memory,
                                          cache->own_span, stream, error);
    if (status == ATTN_OK)
        status =
            t->layouts->to_nhd(t->layout, cache->role, &cache->own_image, &cache->nhd_image, error);
    if (status != ATTN_OK || cache->given->flags & ATTN_TENSOR_READ_ONLY)
        return status;
    return device_copy_wait(t->device, first_byte(cache->given), cache->nhd_image.data, cache->span,
                            stream, error);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static attn_status call(const struct layout_converter *t, bool decode, attn_metadata *metadata,
                        int32_t layer_id, const attn_forward_args *args, attn_stream stream,
                        attn_error *error)
{
    const attn_backend_ops *ops = t->front.inner->ops;
    if (watched.begin)
        watched.begin();
    attn_status status = front_forward(ops, decode, metadata, layer_id, args, stream, error);
    if (watched.begin)
        watched.end(watched.report);
    return status;
}

static attn_status forward(bool decode, attn_metadata *metadata, int32_t layer_id,
                           const attn_forward_args *given, attn_stream stream, attn_error *error)
{
    const struct layout_converter *t = current;
    struct cache caches[CACHES] = {{.role = ATTN_ROLE_K_CACHE}, {.role = ATTN_ROLE_V_CACHE}};
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args = {.struct_size = 0};
    size_t size = given->struct_size < sizeof args ? given->struct_size : sizeof args;
    attn_status status = ATTN_OK;
    memcpy(&args, given, size);
    args.struct_size = (uint32_t)size;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        operands[role] = attn_operand(given, role);
    for (int c = 0; c < CACHES && status == ATTN_OK; c++) {
        if (!is_cache(operands[caches[c].role]))
            continue;
        caches[c].given = operands[caches[c].role];
        operands[caches[c].role] = &caches[c].own;
        status = bring(t, &caches[c], stream, error);
    }
    args.operands = operands;
    args.num_operands = ATTN_ROLE_COUNT;
    if (status == ATTN_OK)
        status = call(t, decode, metadata, layer_id, &args, stream, error);
    for (int c = 0; c < CACHES; c++) {
        if (status == ATTN_OK && caches[c].given)
            status = bring_back(t, &caches[c], stream, error);
        release(t, &caches[c]);
    }
    return status;
}

FRONT_FORWARDS

/* ---- The backend ----------------------------------------------------------------------------- */

void layout_converter_init(struct layout_converter *converter, const attn_backend_type *inner,
                           const struct device *device, const attn_layouts *layouts,
                           const char *layout)
{
    *converter = (struct layout_converter){.device = device, .layouts = layouts, .layout = layout};
    front_init(&converter->front, inner);
    converter->front.type.query = query;
    converter->front.type.create = create;
    FRONT_SET_FORWARDS(converter->front.ops, inner->ops);
}

struct layout_converter *layout_converter_use(struct layout_converter *converter)
{
    struct layout_converter *before = current;
    current = converter;
    return before;
}

void layout_converter_watch(watch_begin_fn begin, watch_end_fn end, struct watch_report *report)
{
    watched.begin = begin;
    watched.end = end;
    watched.report = report;
}
