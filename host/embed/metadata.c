/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: the handle `attnhost_metadata`: memory, planning, forward.
 *
 * Memory of one metadata, by region (space x use):
 *
 *   given by the caller   used as it is; checked for size and alignment
 *   scratch               shared by all metadata of the backend (embed_scratch, counted). When a
 *                         metadata needs more than the newest has, a larger one takes its place and
 *                         the old one stays until its last user is gone: addresses never change.
 *   the rest              allocated for this metadata alone
 */
#include "host/embed/batch.h"
#include "host/plugin/answer.h"

#include <stdlib.h>
#include <string.h>

struct attnhost_metadata {
    attnhost_backend *backend;
    attn_metadata *plugin; /* the backend's own */
    uint32_t kind;         /* ATTN_METADATA_* */
    attn_bounds bounds;
    attn_memory memory;
    uint32_t owned;                                  /* bit r: region r was allocated here */
    struct embed_scratch *scratch[ATTN_SPACE_COUNT]; /* shared ones in use; NULL = none */
    uint32_t mode; /* of the batch that was planned last; ATTN_MODE_COUNT = none */
    struct embed_slots slots;
};

static uint32_t space_of(uint32_t region)
{
    return region / ATTN_MEMORY_COUNT;
}

static uint32_t use_of(uint32_t region)
{
    return region % ATTN_MEMORY_COUNT;
}

/* "pinned scratch" */
static const char *const space_names[] = {"device", "pinned", "host"};
static const char *const use_names[] = {"scratch", "metadata", "zeroed"};

/* ---- Size ------------------------------------------------------------------------------------ */

static attn_status check_kind(uint32_t kind, attn_error *error)
{
    if (kind == ATTN_METADATA_EAGER || kind == ATTN_METADATA_GRAPH)
        return ATTN_OK;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "metadata of kind %u: accepted: 0 (eager), 1 (graph)", kind);
}

static attn_status check_alignments(const attnhost_backend *backend, attn_memory_size *size,
                                    attn_error *error)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (size->alignment[r] == 0)
            size->alignment[r] = 1;
        if (size->alignment[r] & (size->alignment[r] - 1))
            return host_fail(
                error, ATTN_INTERNAL,
                "%s: defect of the plugin: alignment %llu of %s %s is not a power of two",
                backend->root->name, (unsigned long long)size->alignment[r],
                space_names[space_of(r)], use_names[use_of(r)]);
    }
    return ATTN_OK;
}

attn_status attnhost_metadata_size(attnhost_backend *backend, uint32_t kind,
                                   const attn_bounds *bounds, attn_memory_size *size,
                                   attn_error *error)
{
    attn_memory_size needed = {.struct_size = sizeof needed};
    host_error said;
    int entered;
    host_error_init(&said);
    attn_status status = check_kind(kind, error);
    if (status == ATTN_OK)
        status = EMBED_CHECK_SIZE(bounds, attn_bounds, max_kv_tokens, "bounds", error);
    if (status != ATTN_OK)
        return status;
    status = embed_enter(backend, &entered, &said.base);
    if (status == ATTN_OK) {
        status = backend->child.type->ops->metadata_size(backend->child.instance, kind, bounds,
                                                         &needed, &said.base);
        embed_leave(backend, entered);
    }
    if (status != ATTN_OK)
        return embed_fail(backend, status, &said, error);
    status = check_alignments(backend, &needed, error);
    if (status == ATTN_OK)
        embed_give(size, &needed, sizeof needed);
    return status;
}

/* ---- Scratch --------------------------------------------------------------------------------- */

static void release_scratch(const attnhost_backend *backend, uint32_t space,
                            struct embed_scratch *scratch)
{
    if (!scratch || --scratch->users > 0)
        return;
    device_release(backend->device, space, scratch->base);
    free(scratch);
}

/* Make a larger one the newest. */
static attn_status grow_scratch(attnhost_backend *backend, uint32_t space, uint64_t size,
                                uint64_t alignment, attn_error *error)
{
    struct embed_scratch *made = calloc(1, sizeof *made);
    if (made)
        made->base = device_allocate(backend->device, space, size, alignment);
    if (!made || !made->base) {
        free(made);
        return device_no_memory(backend->device, space, error, "%s: %llu bytes of %s scratch",
                                backend->root->name, (unsigned long long)size, space_names[space]);
    }
    made->size = size;
    made->alignment = alignment;
    made->users = 1;
    release_scratch(backend, space, backend->scratch[space]);
    backend->scratch[space] = made;
    return ATTN_OK;
}

static attn_status share_scratch(attnhost_metadata *metadata, uint32_t region, uint64_t size,
                                 uint64_t alignment, attn_error *error)
{
    attnhost_backend *backend = metadata->backend;
    uint32_t space = space_of(region);
    struct embed_scratch *newest = backend->scratch[space];
    if (!newest || newest->size < size || newest->alignment < alignment) {
        uint64_t more = newest && newest->size > size ? newest->size : size;
        uint64_t finer = newest && newest->alignment > alignment ? newest->alignment : alignment;
        attn_status status = grow_scratch(backend, space, more, finer, error);
        if (status != ATTN_OK)
            return status;
        newest = backend->scratch[space];
    }
    newest->users++;
    metadata->scratch[space] = newest;
    metadata->memory.base[region] = newest->base;
    metadata->memory.size[region] = newest->size;
    return ATTN_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static attn_status take_given(attnhost_metadata *metadata, uint32_t region, void *base,
                              uint64_t given, uint64_t size, uint64_t alignment, attn_error *error)
{
    const char *name = metadata->backend->root->name;
    const char *space = space_names[space_of(region)], *use = use_names[use_of(region)];
    if (given < size) {
        attn_status status = host_fail(
            error, ATTN_BUFFER_TOO_SMALL, "%s: %s %s memory has %llu bytes; accepted: %llu or more",
            name, space, use, (unsigned long long)given, (unsigned long long)size);
        if (error) {
            error->field = ATTN_FIELD_MEMORY;
            if (ATTN_HAS(error, attn_error, needed))
                error->needed = size;
        }
        return status;
    }
    if ((uintptr_t)base % alignment != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: %s %s memory is not aligned; accepted: a multiple of %llu", name,
                         space, use, (unsigned long long)alignment);
    metadata->memory.base[region] = base;
    metadata->memory.size[region] = given;
    return ATTN_OK;
}

static attn_status allocate_own(attnhost_metadata *metadata, uint32_t region, uint64_t size,
                                uint64_t alignment, attn_error *error)
{
    const attnhost_backend *backend = metadata->backend;
    uint32_t space = space_of(region);
    void *base = device_allocate(backend->device, space, size, alignment);
    if (!base)
        return device_no_memory(backend->device, space, error, "%s: %llu bytes of %s %s memory",
                                backend->root->name, (unsigned long long)size, space_names[space],
                                use_names[use_of(region)]);
    metadata->memory.base[region] = base;
    metadata->memory.size[region] = size;
    metadata->owned |= 1u << region;
    return ATTN_OK;
}

static attn_status provide_region(attnhost_metadata *metadata, uint32_t region,
                                  const attn_memory_size *needed, const attn_memory *given,
                                  attn_error *error)
{
    uint64_t size = needed->size[region], alignment = needed->alignment[region];
    if (given && given->base[region])
        return take_given(metadata, region, given->base[region], given->size[region], size,
                          alignment, error);
    if (size == 0)
        return ATTN_OK;
    if (use_of(region) == ATTN_MEMORY_SCRATCH)
        return share_scratch(metadata, region, size, alignment, error);
    return allocate_own(metadata, region, size, alignment, error);
}

/* Counters that kernels leave at zero unless they are aborted. */
static attn_status zero_counters(const attnhost_metadata *metadata, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT && status == ATTN_OK; space++) {
        uint32_t region = ATTN_REGION(space, ATTN_MEMORY_ZEROED);
        if (metadata->memory.base[region])
            status = device_fill(metadata->backend->device, metadata->memory.base[region], 0,
                                 metadata->memory.size[region], stream, error);
    }
    return status;
}

/* Complete on return, independent of the engine's streams: the legacy stream would wait for them,
 * and spoil a capture on one of them. */
static attn_status zero_counters_now(const attnhost_metadata *metadata, attn_error *error)
{
    const struct device *device = metadata->backend->device;
    attn_stream stream = NULL;
    attn_status status = device_stream_create(device, &stream, error);
    if (status != ATTN_OK)
        return status;
    status = zero_counters(metadata, stream, error);
    attn_status waited = device_synchronize(device, stream, status ? NULL : error);
    device_stream_destroy(device, stream);
    return status == ATTN_OK ? waited : status;
}

static attn_status provide_memory(attnhost_metadata *metadata, const attn_memory_size *needed,
                                  const attn_memory *given, attn_error *error)
{
    attn_status status = ATTN_OK;
    metadata->memory.struct_size = sizeof metadata->memory;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT && status == ATTN_OK; r++)
        status = provide_region(metadata, r, needed, given, error);
    return status == ATTN_OK ? zero_counters_now(metadata, error) : status;
}

static void release_memory(attnhost_metadata *metadata)
{
    const attnhost_backend *backend = metadata->backend;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        if (metadata->owned & 1u << r)
            device_release(backend->device, space_of(r), metadata->memory.base[r]);
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT; space++)
        release_scratch(backend, space, metadata->scratch[space]);
}

/* ---- Create ---------------------------------------------------------------------------------- */

static attn_status make(attnhost_metadata *metadata, uint32_t kind, const attn_memory *memory,
                        attn_error *error)
{
    attnhost_backend *backend = metadata->backend;
    attn_memory_size needed = {.struct_size = sizeof needed};
    attn_status status = attnhost_metadata_size(backend, kind, &metadata->bounds, &needed, error);
    if (status == ATTN_OK)
        status = provide_memory(metadata, &needed, memory, error);
    if (status != ATTN_OK)
        return status;
    host_error said;
    int entered;
    host_error_init(&said);
    status = embed_enter(backend, &entered, &said.base);
    if (status == ATTN_OK) {
        status = backend->child.type->ops->metadata_create(backend->child.instance, kind,
                                                           &metadata->bounds, &metadata->memory,
                                                           &metadata->plugin, &said.base);
        embed_leave(backend, entered);
    }
    if (status != ATTN_OK)
        return embed_fail(backend, status, &said, error);
    if (!metadata->plugin)
        return host_fail(error, ATTN_INTERNAL,
                         "%s: defect of the plugin: metadata_create succeeded without metadata",
                         backend->root->name);
    return ATTN_OK;
}

attn_status attnhost_metadata_create(attnhost_backend *backend, uint32_t kind,
                                     const attn_bounds *bounds, const attn_memory *memory,
                                     attnhost_metadata **metadata, attn_error *error)
{
    attn_status status = EMBED_CHECK_SIZE(bounds, attn_bounds, max_kv_tokens, "bounds", error);
    if (status == ATTN_OK && memory)
        status = EMBED_CHECK_SIZE(memory, attn_memory, size, "memory", error);
    if (status != ATTN_OK)
        return status;
    attnhost_metadata *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "metadata: out of memory");
    made->backend = backend;
    made->kind = kind;
    made->mode = ATTN_MODE_COUNT;
    made->bounds.struct_size = sizeof made->bounds;
    embed_give(&made->bounds, bounds, bounds->struct_size);
    backend->num_metadata++;
    status = make(made, kind, memory, error);
    if (status != ATTN_OK)
        attnhost_metadata_destroy(made);
    else
        *metadata = made;
    return status;
}

void attnhost_metadata_destroy(attnhost_metadata *metadata)
{
    if (!metadata)
        return;
    attnhost_backend *backend = metadata->backend;
    int entered;
    embed_enter(backend, &entered, NULL);
    if (metadata->plugin)
        backend->child.type->ops->metadata_destroy(metadata->plugin);
    release_memory(metadata);
    embed_leave(backend, entered);
    backend->num_metadata--;
    embed_slots_free(&metadata->slots);
    free(metadata);
}

/* ---- Batch ----------------------------------------------------------------------------------- */

attn_status attnhost_init_forward_metadata(attnhost_metadata *metadata, const attn_batch *batch,
                                           attn_stream stream, attn_error *error)
{
    const attnhost_backend *backend = metadata->backend;
    metadata->mode = ATTN_MODE_COUNT;
    if (batch->mode == ATTN_MODE_IDLE) {
        metadata->mode = ATTN_MODE_IDLE;
        return ATTN_OK;
    }
    attn_status status = embed_check_batch(backend, metadata->kind, &metadata->bounds,
                                           &metadata->slots, batch, error);
    if (status != ATTN_OK)
        return status;
    host_error said;
    int entered;
    host_error_init(&said);
    status = embed_enter(backend, &entered, &said.base);
    if (status == ATTN_OK) {
        status = backend->child.type->ops->init_forward_metadata(metadata->plugin, batch, stream,
                                                                 &said.base);
        embed_leave(backend, entered);
    }
    if (status != ATTN_OK)
        return embed_fail(backend, status, &said, error);
    metadata->mode = batch->mode;
    return ATTN_OK;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Called once per layer: only a failure prepares the error struct, so that a successful forward
 * does not pay for it. */
static attn_status call_forward(attnhost_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream, host_error *said)
{
    const attn_backend_ops *ops = metadata->backend->child.type->ops;
    int decode = metadata->mode == ATTN_MODE_DECODE;
    if (metadata->mode == ATTN_MODE_COUNT)
        return host_fail(&said->base, ATTN_BAD_STATE,
                         "forward before attnhost_init_forward_metadata; accepted: after it");
    if (decode && ops->forward_decode)
        return ops->forward_decode(metadata->plugin, layer_id, args, stream, &said->base);
    if (!decode && ops->forward_extend)
        return ops->forward_extend(metadata->plugin, layer_id, args, stream, &said->base);
    return host_fail(&said->base, ATTN_UNSUPPORTED, "batch.mode is %u; the backend serves only %s",
                     metadata->mode, decode ? "every mode but DECODE" : "DECODE");
}

attn_status attnhost_forward(attnhost_metadata *metadata, int32_t layer_id,
                             const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    if (metadata->mode == ATTN_MODE_IDLE)
        return ATTN_OK;
    host_error said;
    said.text[0] = '\0';
    said.base = (attn_error){
        .struct_size = sizeof said.base, .capacity = sizeof said.text, .message = said.text};
    int entered;
    attn_status status = embed_check_args(metadata->backend, layer_id, args, &said.base);
    if (status == ATTN_OK)
        status = embed_enter(metadata->backend, &entered, &said.base);
    if (status == ATTN_OK) {
        status = call_forward(metadata, layer_id, args, stream, &said);
        embed_leave(metadata->backend, entered);
    }
    if (status == ATTN_OK)
        return ATTN_OK;
    if (status != ATTN_DEVICE_LOST)
        zero_counters(metadata, stream, NULL);
    return answer_fail(status, &said, error, "%s: layer %d", metadata->backend->root->name,
                       layer_id);
}
