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
#include "host/embed/embed.h"

#include "host/plugin/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attnhost_metadata {
    attnhost_backend *backend;
    attn_metadata *plugin; /* the backend's own */
    attn_bounds bounds;
    attn_memory memory;
    uint32_t owned;                                  /* bit r: region r was allocated here */
    struct embed_scratch *scratch[ATTN_SPACE_COUNT]; /* shared ones in use; NULL = none */
    uint32_t mode; /* of the batch that was planned last; ATTN_MODE_COUNT = none */
};

static uint32_t space_of(uint32_t region)
{
    return region / ATTN_USE_COUNT;
}

static uint32_t use_of(uint32_t region)
{
    return region % ATTN_USE_COUNT;
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
    attn_memory_size told = {.struct_size = sizeof told};
    host_error said;
    int entered;
    host_error_init(&said);
    attn_status status = check_kind(kind, error);
    if (status != ATTN_OK)
        return status;
    status = embed_enter(backend, &entered, &said.base);
    if (status == ATTN_OK) {
        status = backend->child.type->ops->metadata_size(backend->child.instance, kind, bounds,
                                                         &told, &said.base);
        embed_leave(backend, entered);
    }
    if (status != ATTN_OK)
        return answer_fail(status, &said, error, "%s", backend->root->name);
    status = check_alignments(backend, &told, error);
    if (status == ATTN_OK)
        embed_give(size, &told, sizeof told);
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
    if (use_of(region) == ATTN_USE_SCRATCH)
        return share_scratch(metadata, region, size, alignment, error);
    return allocate_own(metadata, region, size, alignment, error);
}

/* Counters that kernels leave at zero, unless they did not get to their end. */
static attn_status zero_counters(const attnhost_metadata *metadata, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT && status == ATTN_OK; space++) {
        uint32_t region = ATTN_REGION(space, ATTN_USE_ZEROED);
        if (metadata->memory.base[region])
            status = device_fill(metadata->backend->device, metadata->memory.base[region], 0,
                                 metadata->memory.size[region], stream, error);
    }
    return status;
}

/* Done when it returns, whatever the engine has going on: the legacy stream would wait for the
 * engine's streams, and spoil a capture on one of them. */
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
        return answer_fail(status, &said, error, "%s", backend->root->name);
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
    attnhost_metadata *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "metadata: out of memory");
    made->backend = backend;
    made->mode = ATTN_MODE_COUNT;
    made->bounds.struct_size = sizeof made->bounds;
    embed_give(&made->bounds, bounds, bounds->struct_size);
    backend->num_metadata++;
    attn_status status = make(made, kind, memory, error);
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
    free(metadata);
}

/* ---- Batch ----------------------------------------------------------------------------------- */

static attn_status fail_batch(attn_error *error, const char *field, int64_t got,
                              const char *accepted, int64_t limit)
{
    attn_status status =
        host_fail(error, ATTN_INVALID_ARGUMENT, "batch.%s is %lld; accepted: %s%lld", field,
                  (long long)got, accepted, (long long)limit);
    if (error)
        error->field = ATTN_FIELD_BATCH;
    return status;
}

static attn_status fail_absent(attn_error *error, const char *what)
{
    attn_status status = host_fail(error, ATTN_INVALID_ARGUMENT, "batch.%s is absent", what);
    if (error)
        error->field = ATTN_FIELD_BATCH;
    return status;
}

static attn_status check_mode(const attn_bounds *bounds, const attn_batch *batch, attn_error *error)
{
    if (batch->mode >= ATTN_MODE_COUNT)
        return fail_batch(error, "mode", batch->mode, "0..", ATTN_MODE_COUNT - 1);
    if (!(bounds->modes & ATTN_MODE_BIT(batch->mode)))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.mode is %u; accepted: the modes of the bounds (0x%x)", batch->mode,
                         bounds->modes);
    return ATTN_OK;
}

static attn_status check_counts(const attn_bounds *bounds, const attn_batch *batch,
                                attn_error *error)
{
    if (batch->num_seqs < 0 || batch->num_seqs > bounds->max_seqs)
        return fail_batch(error, "num_seqs", batch->num_seqs, "0..", bounds->max_seqs);
    if (batch->num_tokens < 0 || batch->num_tokens > bounds->max_tokens)
        return fail_batch(error, "num_tokens", batch->num_tokens, "0..", bounds->max_tokens);
    if (batch->num_real_seqs < 0 || batch->num_real_seqs > batch->num_seqs)
        return fail_batch(error, "num_real_seqs", batch->num_real_seqs, "0..", batch->num_seqs);
    if (batch->num_real_tokens < 0 || batch->num_real_tokens > batch->num_tokens)
        return fail_batch(error, "num_real_tokens", batch->num_real_tokens, "0..",
                          batch->num_tokens);
    if (batch->num_decode_seqs < 0 || batch->num_decode_seqs > batch->num_seqs)
        return fail_batch(error, "num_decode_seqs", batch->num_decode_seqs, "0..", batch->num_seqs);
    if (batch->mode == ATTN_MODE_DECODE && batch->num_tokens != batch->num_seqs)
        return fail_batch(error, "num_tokens", batch->num_tokens, "num_seqs in DECODE, which is ",
                          batch->num_seqs);
    if (batch->max_kv_len > bounds->max_kv_len)
        return fail_batch(error, "max_kv_len", batch->max_kv_len, "0..", bounds->max_kv_len);
    if (batch->max_q_len > bounds->max_q_len)
        return fail_batch(error, "max_q_len", batch->max_q_len, "0..", bounds->max_q_len);
    return ATTN_OK;
}

/* Without sequences arrays may be absent. */
static attn_status check_arrays(const attnhost_backend *backend, const attn_batch *batch,
                                attn_error *error)
{
    int decode = batch->mode == ATTN_MODE_DECODE, lens = backend->needs_host_lens != 0;
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (!batch->seq_lens.device)
        return fail_absent(error, "seq_lens.device");
    if (!decode && !batch->q_indptr.device)
        return fail_absent(error, "q_indptr.device");
    if (!decode && !batch->prefix_lens.device)
        return fail_absent(error, "prefix_lens.device");
    if (lens && !batch->seq_lens.host)
        return fail_absent(error, "seq_lens.host, which this backend needs,");
    if (lens && !decode && !batch->q_indptr.host)
        return fail_absent(error, "q_indptr.host, which this backend needs,");
    if (lens && !decode && !batch->prefix_lens.host)
        return fail_absent(error, "prefix_lens.host, which this backend needs,");
    return ATTN_OK;
}

/* An array of bounds [count + 1] does not fall and covers no more than `limit`; looked at only
 * where the host can read it. */
static attn_status check_indptr(const char *name, const attn_i32_array *array, int64_t count,
                                int64_t limit, attn_error *error)
{
    const int32_t *indptr = array->host;
    char field[64];
    if (!indptr)
        return ATTN_OK;
    for (int64_t i = 0; i <= count; i++)
        if (indptr[i] < 0 || (i > 0 && indptr[i] < indptr[i - 1])) {
            snprintf(field, sizeof field, "%s[%lld]", name, (long long)i);
            return fail_batch(error, field, indptr[i], "at least ", i > 0 ? indptr[i - 1] : 0);
        }
    int64_t sum = (int64_t)indptr[count] - indptr[0];
    snprintf(field, sizeof field, "%s[%lld] - %s[0]", name, (long long)count, name);
    return sum <= limit ? ATTN_OK : fail_batch(error, field, sum, "0..", limit);
}

static attn_status check_mask_indptr(const attn_batch *batch, attn_error *error)
{
    const int64_t *indptr = batch->mask ? batch->mask->indptr.host : NULL;
    char field[64];
    for (int32_t s = 0; indptr && s <= batch->num_seqs; s++)
        if (indptr[s] < 0 || (s > 0 && indptr[s] < indptr[s - 1])) {
            snprintf(field, sizeof field, "mask.indptr[%d]", s);
            return fail_batch(error, field, indptr[s], "at least ", s > 0 ? indptr[s - 1] : 0);
        }
    return ATTN_OK;
}

static attn_status check_all_indptr(const attn_batch *batch, attn_error *error)
{
    const attn_shared_prefix *shared = batch->shared_prefix;
    attn_status status = ATTN_OK;
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (batch->mode != ATTN_MODE_DECODE)
        status =
            check_indptr("q_indptr", &batch->q_indptr, batch->num_seqs, batch->num_tokens, error);
    if (status == ATTN_OK)
        status = check_mask_indptr(batch, error);
    if (status == ATTN_OK && shared)
        status = check_indptr("shared_prefix.seq_indptr", &shared->seq_indptr, shared->num_groups,
                              batch->num_seqs, error);
    return status;
}

/* Each form that the backend reads must be there, with its arrays. */
static attn_status check_index_forms(uint32_t wanted, uint32_t group, const attn_batch *batch,
                                     const attn_kv_batch *kv, attn_error *error)
{
    const struct {
        uint32_t form;
        const char *name;
        int present;
    } forms[] = {
        {ATTN_INDEX_REQ_TO_TOKEN, "req_to_token (with batch.req_pool_indices)",
         kv->req_to_token.device && batch->req_pool_indices.device},
        {ATTN_INDEX_BLOCK_TABLE, "block_table", kv->block_table.device != NULL},
        {ATTN_INDEX_CSR, "kv_indptr, kv_indices and last_page_len",
         kv->kv_indptr.device && kv->kv_indices.device && kv->last_page_len.device},
    };
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        int given = kv->index_forms & forms[f].form && forms[f].present;
        if (wanted & forms[f].form && !given)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "batch.kv_groups[%u].%s is absent, and the backend reads it", group,
                             forms[f].name);
    }
    return ATTN_OK;
}

static attn_status check_kv_group(const attnhost_backend *backend, int32_t group,
                                  const attn_batch *batch, attn_error *error)
{
    if (group < 0 || (uint32_t)group >= batch->num_kv_groups || !batch->kv_groups)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.kv_groups has %u elements; accepted: one for each KV group, and a "
                         "layer uses group %d",
                         batch->num_kv_groups, group);
    const attn_kv_batch *kv = attn_at(batch->kv_groups, (uint32_t)group);
    if (kv->page_size < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.kv_groups[%d].page_size is %d; accepted: 1 or more", group,
                         kv->page_size);
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (backend->needs_host_lens && kv->kv_lens.device && !kv->kv_lens.host)
        return fail_absent(error, "kv_groups[].kv_lens.host, which this backend needs,");
    attn_status status = check_indptr("kv_groups[].kv_new_indptr", &kv->kv_new_indptr,
                                      batch->num_seqs, INT32_MAX, error);
    if (status == ATTN_OK)
        status = check_indptr("kv_groups[].kv_indptr", &kv->kv_indptr, batch->num_seqs, INT32_MAX,
                              error);
    return status == ATTN_OK
               ? check_index_forms(backend->index_forms, (uint32_t)group, batch, kv, error)
               : status;
}

static attn_status check_batch(const attnhost_metadata *metadata, const attn_batch *batch,
                               attn_error *error)
{
    const attnhost_backend *backend = metadata->backend;
    attn_status status = check_mode(&metadata->bounds, batch, error);
    if (status == ATTN_OK)
        status = check_counts(&metadata->bounds, batch, error);
    if (status == ATTN_OK)
        status = check_arrays(backend, batch, error);
    if (status == ATTN_OK)
        status = check_all_indptr(batch, error);
    for (uint32_t g = 0; g < backend->num_kv_groups && status == ATTN_OK; g++)
        status = check_kv_group(backend, backend->kv_groups[g], batch, error);
    return status;
}

attn_status attnhost_init_forward_metadata(attnhost_metadata *metadata, const attn_batch *batch,
                                           attn_stream stream, attn_error *error)
{
    const attnhost_backend *backend = metadata->backend;
    metadata->mode = ATTN_MODE_COUNT;
    if (batch->mode == ATTN_MODE_IDLE) {
        metadata->mode = ATTN_MODE_IDLE;
        return ATTN_OK;
    }
    attn_status status = check_batch(metadata, batch, error);
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
        return answer_fail(status, &said, error, "%s", backend->root->name);
    metadata->mode = batch->mode;
    return ATTN_OK;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Once a layer: the error struct is prepared here alone, not in the way of a forward that works. */
static attn_status call_forward(attnhost_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream, host_error *said)
{
    const attn_backend_ops *ops = metadata->backend->child.type->ops;
    int decode = metadata->mode == ATTN_MODE_DECODE;
    if (metadata->mode == ATTN_MODE_COUNT)
        return host_fail(&said->base, ATTN_BAD_STATE,
                         "forward before attnhost_init_forward_metadata; accepted: a batch first");
    if (decode && ops->forward_decode)
        return ops->forward_decode(metadata->plugin, layer_id, args, stream, &said->base);
    if (!decode && ops->forward_extend)
        return ops->forward_extend(metadata->plugin, layer_id, args, stream, &said->base);
    return host_fail(&said->base, ATTN_UNSUPPORTED,
                     "batch.mode is %u, and the backend serves only %s", metadata->mode,
                     decode ? "every mode but DECODE" : "DECODE");
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
    attn_status status = embed_enter(metadata->backend, &entered, &said.base);
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
