/* SPDX-License-Identifier: Apache-2.0
 *
 * rig_run.c: calls and their results.
 */
#include "host/check/cases/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Instance and memory --------------------------------------------------------------------- */

void rig_destroy(struct rig *rig, attn_instance *instance)
{
    rig->ops->destroy(instance);
}

attn_status rig_metadata_size(struct rig *rig, attn_instance *instance, attn_memory_size *size)
{
    *size = (attn_memory_size){.struct_size = sizeof *size};
    return rig->ops->metadata_size(instance, ATTN_METADATA_EAGER, rig->bounds, size,
                                   rig_error(rig));
}

attn_status rig_memory_init(struct regions *memory, struct rig *rig, const attn_memory_size *size,
                            uint64_t extra)
{
    attn_status status =
        regions_init(memory, rig->device, rig->stream, size, extra, 1, check_error(rig->run));
    if (status != ATTN_OK)
        regions_finish(memory);
    return status;
}

/* ---- Metadata -------------------------------------------------------------------------------- */

attn_status rig_metadata_create(struct rig *rig, attn_instance *instance,
                                const struct regions *memory, attn_metadata **metadata)
{
    return rig->ops->metadata_create(instance, ATTN_METADATA_EAGER, rig->bounds, &memory->memory,
                                     metadata, rig_error(rig));
}

attn_status rig_plan(struct rig *rig, attn_metadata *metadata, int batch)
{
    return rig->ops->init_forward_metadata(metadata, rig->given_batches[batch], rig->stream,
                                           rig_error(rig));
}

attn_status rig_forward(struct rig *rig, attn_metadata *metadata, int batch, int layer)
{
    bool decodes = rig->batches[batch].cases[0]->spec.mode == ATTN_MODE_DECODE;
    return (decodes ? rig->ops->forward_decode : rig->ops->forward_extend)(
        metadata, rig->question.layers[layer].layer_id, rig->given_args[batch][layer], rig->stream,
        rig_error(rig));
}

attn_status rig_forward_all(struct rig *rig, attn_metadata *metadata, int batch)
{
    attn_status status = ATTN_OK;
    for (int l = 0; l < RIG_LAYERS && status == ATTN_OK; l++)
        status = rig_forward(rig, metadata, batch, l);
    return status;
}

/* ---- Session --------------------------------------------------------------------------------- */

/* DEPENDENCY_MISSING: what it takes is not on this machine. */
static bool skip_missing(struct rig *rig, attn_status status, const char *what)
{
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(rig->run, "%s: DEPENDENCY_MISSING: %s", what, check_error_text(rig->run));
    return rig_good(rig, status, what);
}

bool rig_create_for(struct rig *rig, attn_instance **instance)
{
    *instance = NULL;
    return skip_missing(rig, rig_create(rig, instance), "create of a problem that query accepts");
}

attn_status rig_prepare(struct rig *rig, attn_instance *instance)
{
    return rig->ops->prepare ? rig->ops->prepare(instance, NULL, NULL, rig_error(rig)) : ATTN_OK;
}

/* `is_prepared` false: without it there may be no metadata. */
static bool open_metadata(struct rig_session *session, struct rig *rig, bool is_prepared)
{
    attn_memory_size size;
    if (!rig_good(rig, rig_metadata_size(rig, session->instance, &size), "metadata_size"))
        return false;
    attn_status status = rig_memory_init(&session->memory, rig, &size, 0);
    if (status != ATTN_OK) {
        check_fail(rig->run, "no memory of the size that metadata_size returns");
        return false;
    }
    status = rig_metadata_create(rig, session->instance, &session->memory, &session->metadata);
    if (status == ATTN_BAD_STATE && !is_prepared)
        check_skip(rig->run, "prepare: DEPENDENCY_MISSING, and without it there is no metadata: %s",
                   check_error_text(rig->run));
    if (rig_good(rig, status, "metadata_create with exactly the required memory"))
        return true;
    regions_finish(&session->memory);
    return false;
}

bool rig_metadata_open(struct rig_session *more, struct rig *rig, attn_instance *instance)
{
    *more = (struct rig_session){.instance = instance};
    return open_metadata(more, rig, true);
}

void rig_metadata_close(struct rig_session *more, struct rig *rig)
{
    device_synchronize(rig->device, rig->stream, NULL);
    rig->ops->metadata_destroy(more->metadata);
    regions_finish(&more->memory);
}

static bool open_session(struct rig_session *session, struct rig *rig, bool needs_kernels)
{
    *session = (struct rig_session){.instance = NULL};
    if (!rig_create_for(rig, &session->instance))
        return false;
    attn_status status = rig_prepare(rig, session->instance);
    bool is_prepared = status != ATTN_DEPENDENCY_MISSING;
    if ((is_prepared || needs_kernels) && !skip_missing(rig, status, "prepare")) {
        rig_destroy(rig, session->instance);
        return false;
    }
    if (open_metadata(session, rig, is_prepared))
        return true;
    rig_destroy(rig, session->instance);
    return false;
}

bool rig_session_open(struct rig_session *session, struct rig *rig)
{
    return open_session(session, rig, true);
}

bool rig_session_open_without(struct rig_session *session, struct rig *rig)
{
    return open_session(session, rig, false);
}

void rig_session_close(struct rig_session *session, struct rig *rig)
{
    rig_metadata_close(session, rig);
    rig_destroy(rig, session->instance);
}

void rig_run_check(struct check_run *run, const struct rig_check *check)
{
    struct rig rig;
    struct rig_session session;
    if (!rig_open(&rig, run, run->seed))
        return;
    if (open_session(&session, &rig, !check->plans_alone)) {
        if (check->body)
            check->body(&rig, &session);
        for (int b = 0; check->each && b < rig.num_batches && run->code == CHECK_PASS; b++)
            check->each(&rig, &session, b);
        rig_session_close(&session, &rig);
    }
    rig_close(&rig);
}

void rig_run_row(struct check_run *run)
{
    rig_run_check(run, run->check->rig);
}

/* ---- Results --------------------------------------------------------------------------------- */

attn_status rig_reset(struct rig *rig, int batch)
{
    attn_status status = ATTN_OK;
    for (int l = 0; l < RIG_LAYERS && status == ATTN_OK; l++) {
        struct forward_case *c = rig->batches[batch].cases[l];
        status = device_copy(rig->device, c->memory, c->image, c->bytes, rig->stream,
                             check_error(rig->run));
    }
    return status == ATTN_OK ? device_synchronize(rig->device, rig->stream, check_error(rig->run))
                             : status;
}

/* Where a result has what a layer's case has on the device. The end of all: of layer RIG_LAYERS. */
static uint64_t offset_of(const struct rig *rig, int batch, int layer)
{
    uint64_t offset = 0;
    for (int l = 0; l < layer; l++)
        offset += rig->batches[batch].cases[l]->bytes;
    return offset;
}

char *rig_result(struct rig *rig, int batch)
{
    char *result = malloc(offset_of(rig, batch, RIG_LAYERS));
    attn_status status = result ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
    for (int l = 0; l < RIG_LAYERS && status == ATTN_OK; l++) {
        const struct forward_case *c = rig->batches[batch].cases[l];
        status = device_copy(rig->device, result + offset_of(rig, batch, l), c->memory, c->bytes,
                             rig->stream, check_error(rig->run));
    }
    if (status == ATTN_OK)
        status = device_synchronize(rig->device, rig->stream, check_error(rig->run));
    if (status == ATTN_OK)
        return result;
    free(result);
    return NULL;
}

char *rig_run(struct rig *rig, attn_metadata *metadata, int batch)
{
    char what[64];
    const char *call = "init_forward_metadata";
    attn_status status = rig_reset(rig, batch);
    if (status == ATTN_OK)
        status = rig_plan(rig, metadata, batch);
    if (status == ATTN_OK) {
        call = "forward";
        status = rig_forward_all(rig, metadata, batch);
    }
    snprintf(what, sizeof what, "%s, %s batch", call, rig_batch_name(rig, batch));
    if (!rig_good(rig, status, what))
        return NULL;
    char *result = rig_result(rig, batch);
    if (!result)
        check_fail(rig->run, "%s: the results cannot be fetched: %s", what,
                   check_error_text(rig->run));
    return result;
}

void rig_free(char *results[RIG_BATCHES])
{
    for (int b = 0; b < RIG_BATCHES; b++) {
        free(results[b]);
        results[b] = NULL;
    }
}

bool rig_life(struct rig *rig, char *results[RIG_BATCHES])
{
    struct rig_session session;
    bool good = true;
    memset(results, 0, RIG_BATCHES * sizeof *results);
    if (!rig_session_open(&session, rig))
        return false;
    for (int b = 0; b < rig->num_batches && good; b++) {
        results[b] = rig_run(rig, session.metadata, b);
        good = results[b] != NULL;
    }
    rig_session_close(&session, rig);
    if (!good)
        rig_free(results);
    return good;
}

const char *rig_difference(const struct rig *rig, int batch, char *a, char *b)
{
    const bool exact = rig->verdict.traits & ATTN_TRAIT_DETERMINISTIC;
    const char *what = NULL;
    for (int l = 0; l < RIG_LAYERS && !what; l++) {
        uint64_t at = offset_of(rig, batch, l);
        what = case_difference(rig->batches[batch].cases[l], a + at, b + at, exact ? 0 : 0.01);
    }
    return what;
}

void rig_expect(const struct rig *rig, int batch, char *expected, char *result, const char *when)
{
    const char *what = expected && result ? rig_difference(rig, batch, expected, result) : NULL;
    if (what)
        check_fail(rig->run, "%s, %s of the %s batch differs", when, what,
                   rig_batch_name(rig, batch));
    free(expected);
    free(result);
}

const char *rig_trespass(const struct rig *rig, int batch, char *result)
{
    const char *what = NULL;
    for (int l = 0; l < RIG_LAYERS && !what; l++)
        what = case_trespass(rig->batches[batch].cases[l], result + offset_of(rig, batch, l));
    return what;
}
