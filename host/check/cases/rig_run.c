/* SPDX-License-Identifier: Apache-2.0
 *
 * rig_run.c: calls and their results.
 */
#include "host/check/cases/rig_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"

/* ---- Instance and memory --------------------------------------------------------------------- */

void rig_destroy(struct rig *rig, attn_instance *instance)
{
    rig->ops->destroy(instance);
}

attn_status rig_metadata_size(struct rig *rig, attn_instance *instance, attn_memory_size *size)
{
    *size = (attn_memory_size){.struct_size = sizeof *size};
    host_error_init(&rig->error);
    return rig->ops->metadata_size(instance, ATTN_METADATA_EAGER, rig->bounds, size,
                                   rig->given_error);
}

attn_status rig_memory_init(struct regions *memory, struct rig *rig, const attn_memory_size *size,
                            uint64_t extra)
{
    attn_status status =
        regions_init(memory, rig->device, rig->stream, size, extra, 1, &rig->error.base);
    if (status != ATTN_OK)
        regions_finish(memory);
    return status;
}

/* ---- Metadata -------------------------------------------------------------------------------- */

attn_status rig_metadata_create(struct rig *rig, attn_instance *instance,
                                const struct regions *memory, attn_metadata **metadata)
{
    host_error_init(&rig->error);
    return rig->ops->metadata_create(instance, ATTN_METADATA_EAGER, rig->bounds, &memory->memory,
                                     metadata, rig->given_error);
}

attn_status rig_plan(struct rig *rig, attn_metadata *metadata, int batch)
{
    host_error_init(&rig->error);
    return rig->ops->init_forward_metadata(metadata, rig->given_batches[batch], rig->stream,
                                           rig->given_error);
}

attn_status rig_forward(struct rig *rig, attn_metadata *metadata, int batch, int layer)
{
    int decodes = rig->batches[batch].batch.mode == ATTN_MODE_DECODE;
    host_error_init(&rig->error);
    attn_status status =
        device_copy(rig->device, rig->choice, rig->batches[batch].device->kv[layer == 2].chosen,
                    RIG_CHOICE_BYTES, rig->stream, &rig->error.base);
    if (status != ATTN_OK)
        return status;
    return (decodes ? rig->ops->forward_decode : rig->ops->forward_extend)(
        metadata, rig->question.layers[layer].layer_id, rig->given_args[layer], rig->stream,
        rig->given_error);
}

/* ---- Session --------------------------------------------------------------------------------- */

bool rig_good(struct rig *rig, struct check_run *run, attn_status status, const char *what)
{
    if (status != ATTN_OK)
        check_fail(run, "%s: %s: %s", what, host_status_name(status), host_error_text(&rig->error));
    return status == ATTN_OK;
}

/* DEPENDENCY_MISSING: what it takes is not on this machine. */
static bool skip_missing(struct rig *rig, struct check_run *run, attn_status status,
                         const char *what)
{
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(run, "%s: DEPENDENCY_MISSING: %s", what, host_error_text(&rig->error));
    return rig_good(rig, run, status, what);
}

bool rig_create_for(struct rig *rig, struct check_run *run, attn_instance **instance)
{
    *instance = NULL;
    return skip_missing(rig, run, rig_create(rig, instance), "create for what query accepts");
}

attn_status rig_prepare(struct rig *rig, attn_instance *instance)
{
    host_error_init(&rig->error);
    return rig->ops->prepare ? rig->ops->prepare(instance, NULL, NULL, rig->given_error) : ATTN_OK;
}

/* `is_prepared` false: without it there may be no metadata. */
static bool open_metadata(struct rig_session *session, struct rig *rig, struct check_run *run,
                          bool is_prepared)
{
    attn_memory_size size;
    if (!rig_good(rig, run, rig_metadata_size(rig, session->instance, &size), "metadata_size"))
        return false;
    attn_status status = rig_memory_init(&session->memory, rig, &size, 0);
    if (status != ATTN_OK) {
        check_fail(run, "no memory for what metadata_size asks for");
        return false;
    }
    status = rig_metadata_create(rig, session->instance, &session->memory, &session->metadata);
    if (status == ATTN_BAD_STATE && !is_prepared)
        check_skip(run, "prepare: DEPENDENCY_MISSING, and without it there is no metadata: %s",
                   host_error_text(&rig->error));
    if (rig_good(rig, run, status, "metadata_create with exactly the memory asked for"))
        return true;
    regions_finish(&session->memory);
    return false;
}

bool rig_metadata_open(struct rig_session *more, struct rig *rig, struct check_run *run,
                       attn_instance *instance)
{
    *more = (struct rig_session){.instance = instance};
    return open_metadata(more, rig, run, true);
}

void rig_metadata_close(struct rig_session *more, struct rig *rig)
{
    device_synchronize(rig->device, rig->stream, NULL);
    rig->ops->metadata_destroy(more->metadata);
    regions_finish(&more->memory);
}

static bool open_session(struct rig_session *session, struct rig *rig, struct check_run *run,
                         bool needs_kernels)
{
    *session = (struct rig_session){.instance = NULL};
    if (!rig_create_for(rig, run, &session->instance))
        return false;
    attn_status status = rig_prepare(rig, session->instance);
    bool is_prepared = status != ATTN_DEPENDENCY_MISSING;
    if ((is_prepared || needs_kernels) && !skip_missing(rig, run, status, "prepare")) {
        rig_destroy(rig, session->instance);
        return false;
    }
    if (open_metadata(session, rig, run, is_prepared))
        return true;
    rig_destroy(rig, session->instance);
    return false;
}

bool rig_session_open(struct rig_session *session, struct rig *rig, struct check_run *run)
{
    return open_session(session, rig, run, true);
}

bool rig_session_open_without(struct rig_session *session, struct rig *rig, struct check_run *run)
{
    return open_session(session, rig, run, false);
}

void rig_session_close(struct rig_session *session, struct rig *rig)
{
    rig_metadata_close(session, rig);
    rig_destroy(rig, session->instance);
}

static void with_session(struct check_run *run, rig_body body, bool needs_kernels)
{
    struct rig rig;
    struct rig_session session;
    if (!rig_open(&rig, run, run->seed))
        return;
    if (open_session(&session, &rig, run, needs_kernels)) {
        body(run, &rig, &session);
        rig_session_close(&session, &rig);
    }
    rig_close(&rig);
}

void rig_with_session(struct check_run *run, rig_body body)
{
    with_session(run, body, true);
}

void rig_without_forward(struct check_run *run, rig_body body)
{
    with_session(run, body, false);
}

/* ---- Results --------------------------------------------------------------------------------- */

attn_status rig_reset(struct rig *rig)
{
    attn_status status = device_copy(rig->device, rig->arena, rig->image, rig->arena_bytes,
                                     rig->stream, &rig->error.base);
    return status == ATTN_OK ? device_synchronize(rig->device, rig->stream, &rig->error.base)
                             : status;
}

char *rig_result(struct rig *rig)
{
    char *result = malloc(rig->arena_bytes);
    attn_status status = result ? device_copy(rig->device, result, rig->arena, rig->arena_bytes,
                                              rig->stream, &rig->error.base)
                                : ATTN_OUT_OF_HOST_MEMORY;
    if (status == ATTN_OK)
        status = device_synchronize(rig->device, rig->stream, &rig->error.base);
    if (status == ATTN_OK)
        return result;
    free(result);
    return NULL;
}

char *rig_run(struct rig *rig, struct check_run *run, attn_metadata *metadata, int batch)
{
    char what[64];
    attn_status status = rig_reset(rig);
    if (status == ATTN_OK)
        status = rig_plan(rig, metadata, batch);
    snprintf(what, sizeof what, "init_forward_metadata, %s batch", rig_batch_name(rig, batch));
    for (int l = 0; l < RIG_LAYERS && status == ATTN_OK; l++) {
        status = rig_forward(rig, metadata, batch, l);
        snprintf(what, sizeof what, "forward, %s batch", rig_batch_name(rig, batch));
    }
    if (!rig_good(rig, run, status, what))
        return NULL;
    char *result = rig_result(rig);
    if (!result)
        check_fail(run, "%s: the results cannot be fetched: %s", what,
                   host_error_text(&rig->error));
    return result;
}

void rig_free(char *results[RIG_BATCHES])
{
    for (int b = 0; b < RIG_BATCHES; b++) {
        free(results[b]);
        results[b] = NULL;
    }
}

bool rig_life(struct rig *rig, struct check_run *run, char *results[RIG_BATCHES])
{
    struct rig_session session;
    bool good = true;
    memset(results, 0, RIG_BATCHES * sizeof *results);
    if (!rig_session_open(&session, rig, run))
        return false;
    for (int b = 0; b < rig->num_batches && good; b++) {
        results[b] = rig_run(rig, run, session.metadata, b);
        good = results[b] != NULL;
    }
    rig_session_close(&session, rig);
    if (!good)
        rig_free(results);
    return good;
}

/* The largest output, and the largest difference between outputs. */
static void measure(const struct rig *rig, const char *a, const char *b, double *largest,
                    double *difference)
{
    *largest = *difference = 0;
    for (int l = 0; l < RIG_LAYERS; l++) {
        uint64_t offset = rig->layers[l].offsets[RIG_OUT];
        attn_dtype dtype = rig->layers[l].tensors[RIG_OUT].dtype;
        int64_t count = (int64_t)rig->layers[l].bytes[RIG_OUT] / attn_dtype_size(dtype);
        for (int64_t i = 0; i < count; i++) {
            double x = dtype_load(dtype, a + offset, i), y = dtype_load(dtype, b + offset, i);
            if (isnan(x) != isnan(y))
                *difference = INFINITY;
            else if (!isnan(x)) {
                *largest = fmax(*largest, fabs(x));
                *difference = fmax(*difference, fabs(x - y));
            }
        }
    }
}

const char *rig_difference(const struct rig *rig, const char *a, const char *b)
{
    const struct rig_part_info *parts = rig_parts(&rig->question);
    double largest, difference;
    int exact = (rig->verdict.notes & ATTN_NOTE_DETERMINISTIC) != 0;
    measure(rig, a, b, &largest, &difference);
    if (difference > largest / 100)
        return "the output";
    for (int l = 0; l < RIG_LAYERS; l++)
        for (int p = 0; p < RIG_PARTS; p++)
            if ((p != RIG_OUT || exact) &&
                memcmp(a + rig->layers[l].offsets[p], b + rig->layers[l].offsets[p],
                       rig->layers[l].bytes[p]) != 0)
                return parts[p].name;
    return NULL;
}

void rig_expect(const struct rig *rig, struct check_run *run, int batch, char *expected,
                char *result, const char *when)
{
    const char *what = expected && result ? rig_difference(rig, expected, result) : NULL;
    if (what)
        check_fail(run, "%s, %s of the %s batch differs", when, what, rig_batch_name(rig, batch));
    free(expected);
    free(result);
}

/* ---- Trespass -------------------------------------------------------------------------------- */

/* Let `expected` have bytes [first, first + size) of a part. */
static void permit_bytes(const struct rig_layer *layer, int part, uint64_t first, uint64_t size,
                         const char *result, char *expected)
{
    uint64_t at = layer->offsets[part] + first;
    memcpy(expected + at, result + at, size);
}

/* The slots of new tokens. */
static void permit_pages(const struct rig *rig, int batch, int l, int part, const char *result,
                         char *expected)
{
    const struct rig_batch *b = &rig->batches[batch];
    const struct rig_layer *layer = &rig->layers[l];
    const attn_tensor *view = &layer->tensors[part];
    uint64_t size = attn_dtype_size(view->dtype);
    int64_t page_size = b->kv[0].page_size;
    int hnd = strcmp(rig->question.problems[0].kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int64_t of_slot = view->strides[hnd ? 2 : 1], of_head = hnd ? view->strides[1] : of_slot;
    int64_t pieces = hnd ? view->shape[1] : 1; /* of a slot, which else is in one piece */
    uint64_t piece = size * (uint64_t)(hnd ? view->shape[3] : of_slot);
    for (int32_t t = 0; t < b->batch.num_tokens; t++)
        for (int64_t h = 0; h < pieces; h++) {
            int64_t slot = b->host->kv[l == 2].out_cache_loc[t];
            int64_t first =
                slot / page_size * view->strides[0] + slot % page_size * of_slot + h * of_head;
            permit_bytes(layer, part, size * (uint64_t)first, piece, result, expected);
        }
}

/* The slots that the states of a batch go to, and slot 0. */
static void permit_states(const struct rig *rig, int batch, int l, int part, const char *result,
                          char *expected)
{
    const struct rig_batch *b = &rig->batches[batch];
    const attn_tensor *state = &rig->layers[l].tensors[part];
    uint64_t bytes = (uint64_t)state->strides[0] * attn_dtype_size(state->dtype);
    for (int32_t s = -1; s < b->batch.num_seqs; s++) {
        uint64_t slot = s < 0 ? 0 : (uint64_t)b->host->state[l == 2].dst_slot[s];
        permit_bytes(&rig->layers[l], part, slot * bytes, bytes, result, expected);
    }
}

/* Let `expected` have what a result may have. */
static void permit(const struct rig *rig, int batch, int l, int part, const char *result,
                   char *expected)
{
    const attn_tensor *view = &rig->layers[l].tensors[part];
    uint64_t row = (uint64_t)view->strides[0] * attn_dtype_size(view->dtype);
    uint64_t rows = (uint64_t)rig->batches[batch].batch.num_tokens;
    switch (rig_parts(&rig->question)[part].use) {
    case RIG_WRITTEN:
        permit_bytes(&rig->layers[l], part, 0, rows * row, result, expected);
        break;
    case RIG_PAGES:
        permit_pages(rig, batch, l, part, result, expected);
        break;
    case RIG_STATES:
        permit_states(rig, batch, l, part, result, expected);
        break;
    case RIG_GIVEN:
        break;
    }
}

const char *rig_trespass(const struct rig *rig, int batch, const char *result)
{
    const struct rig_part_info *parts = rig_parts(&rig->question);
    const char *found = NULL;
    char *expected = malloc(rig->arena_bytes);
    if (!expected)
        return "no memory to compare";
    memcpy(expected, rig->image, rig->arena_bytes);
    for (int l = 0; l < RIG_LAYERS; l++)
        for (int p = 0; p < RIG_PARTS; p++)
            permit(rig, batch, l, p, result, expected);
    for (int l = 0; l < RIG_LAYERS && !found; l++)
        for (int p = 0; p < RIG_PARTS && !found; p++)
            if (memcmp(expected + rig->layers[l].offsets[p], result + rig->layers[l].offsets[p],
                       rig->layers[l].bytes[p]) != 0)
                found = parts[p].damage;
    if (!found && memcmp(expected, result, rig->arena_bytes) != 0)
        found = "memory around the operands was written";
    free(expected);
    return found;
}
