/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_session.c: an instance and metadata, made through a backend's raw tables as the host
 * makes them, in memory between red zones.
 */
#include "host/check/cases/forward_case_session.h"

#include "host/base/error.h"
#include "host/select/select.h"

#include <stdio.h>
#include <stdlib.h>

enum { LOOSE_ALIGNMENT = 256, LOOSE_BYTES = 4096 };

/* ---- Calls ----------------------------------------------------------------------------------- */

attn_status case_query(const struct case_backend *backend, const attn_problem *problem,
                       attn_verdict *verdict, char *reason, size_t size)
{
    HOST_ERROR(error);
    attn_reason first = {.struct_size = sizeof first};
    *verdict = (attn_verdict){.struct_size = sizeof *verdict,
                              .reasons_capacity = reason ? 1 : 0,
                              .reasons = reason ? &first : NULL};
    attn_status status = backend->type->query(backend->type, backend->options, backend->services,
                                              problem, verdict, &error.base);
    if (status != ATTN_OK && reason)
        snprintf(reason, size, "%s: %s", host_status_name(status), host_error_text(&error));
    else if (!verdict->supported && reason)
        select_reason_text(&first, reason, size);
    verdict->reasons = NULL;
    return status;
}

static attn_status ask(struct case_session *session, const attn_problem *problem,
                       attn_verdict *verdict, attn_error *error)
{
    char text[512];
    attn_status status = case_query(&session->backend, problem, verdict, text, sizeof text);
    session->host_arrays |= verdict->supported ? verdict->host_arrays : 0;
    if (status != ATTN_OK)
        return host_fail(error, status, "query: %s", text);
    return verdict->supported ? ATTN_OK
                              : host_fail(error, ATTN_UNSUPPORTED, "query refuses: %s", text);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Scratch holds nothing from one forward to the next, so it may hold anything. */
attn_status session_spoil_scratch(struct case_session *session, attn_error *error)
{
    static const int bytes[] = {CASE_POISON, 0x5A, 0x00};
    return regions_fill(&session->memory, ATTN_MEMORY_SCRATCH, bytes[session->num_runs % 3], error);
}

void session_begin_anew(struct case_session *session)
{
    regions_fill(&session->memory, ATTN_MEMORY_ZEROED, 0, NULL);
    device_synchronize(session->device, session->stream, NULL);
}

attn_status session_check_memory(struct case_session *session, attn_error *error)
{
    return regions_check(&session->memory, error);
}

/* ---- Making ---------------------------------------------------------------------------------- */

static attn_status make_instance(struct case_session *session, const attn_problem *problem,
                                 const struct case_setup *setup, attn_error *error)
{
    const struct case_backend *backend = &session->backend;
    const attn_problem *problems = setup->problems ? setup->problems : problem;
    const uint32_t count = setup->problems ? setup->num_problems : 1;
    attn_status status = ATTN_OK;
    for (uint32_t p = 0; p < count && count > 1 && status == ATTN_OK; p++) {
        attn_verdict other;
        status = ask(session, &problems[p], &other, error);
    }
    if (status != ATTN_OK)
        return status;
    status = backend->type->create(backend->type, problems, count, backend->options,
                                   backend->services, &session->instance, error);
    if (status != ATTN_OK)
        return host_fail_prefix(error, "create");
    const attn_backend_ops *ops = backend->type->ops;
    if (ops->prepare && ops->prepare(session->instance, NULL, NULL, error) != ATTN_OK)
        return host_fail_prefix(error, "prepare");
    session->index_forms = ops->index_forms(session->instance);
    return ATTN_OK;
}

static attn_status ask_size(const struct case_session *session, const attn_bounds *bounds,
                            attn_memory_size *size, attn_error *error)
{
    const attn_backend_ops *ops = session->backend.type->ops;
    *size = (attn_memory_size){.struct_size = sizeof *size};
    attn_status status = ops->metadata_size(session->instance, session->kind, bounds, size, error);
    return status == ATTN_OK ? ATTN_OK : host_fail_prefix(error, "metadata_size");
}

static attn_status make_metadata(struct case_session *session, attn_error *error)
{
    const attn_backend_ops *ops = session->backend.type->ops;
    const bool exact = session->exact_memory;
    attn_memory_size size;
    attn_status status = ask_size(session, &session->bounds, &size, error);
    if (status == ATTN_OK)
        status = regions_init(&session->memory, session->device, session->stream, &size,
                              exact ? 0 : LOOSE_BYTES, exact ? 1 : LOOSE_ALIGNMENT, error);
    if (status != ATTN_OK)
        return status;
    status = ops->metadata_create(session->instance, session->kind, &session->bounds,
                                  &session->memory.memory, &session->metadata, error);
    return status == ATTN_OK ? ATTN_OK : host_fail_prefix(error, "metadata_create");
}

static attn_status make_all(struct case_session *session, const attn_problem *problem,
                            const struct case_setup *setup, attn_error *error)
{
    attn_status status = ask(session, problem, &session->verdict, error);
    if (status == ATTN_OK)
        status = device_stream_create(session->device, &session->stream, error);
    if (status == ATTN_OK)
        status = device_enter(session->device, error);
    if (status != ATTN_OK)
        return status;
    status = make_instance(session, problem, setup, error);
    if (status == ATTN_OK)
        status = make_metadata(session, error);
    device_leave(session->device);
    return status;
}

attn_status case_session_create(const struct case_backend *backend, const struct forward_case *c,
                                const struct case_setup *setup, struct case_session **session,
                                attn_error *error)
{
    return session_create(backend, &c->posed.problem, c->device, setup, session, error);
}

attn_status session_create(const struct case_backend *backend, const attn_problem *problem,
                           const struct device *device, const struct case_setup *setup,
                           struct case_session **session, attn_error *error)
{
    struct case_session *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a session");
    made->backend = *backend;
    made->device = device;
    made->kind = setup->kind;
    made->exact_memory = setup->exact_memory;
    made->bounds = setup->bounds ? *setup->bounds : *problem->bounds;
    attn_status status = make_all(made, problem, setup, error);
    if (status != ATTN_OK)
        case_session_destroy(made);
    else
        *session = made;
    return status;
}

attn_status session_create_beside(const struct case_session *session, const attn_bounds *bounds,
                                  struct case_session **beside, attn_error *error)
{
    struct case_session *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a session");
    *made = (struct case_session){.backend = session->backend,
                                  .device = session->device,
                                  .verdict = session->verdict,
                                  .host_arrays = session->host_arrays,
                                  .kind = session->kind,
                                  .bounds = *bounds,
                                  .exact_memory = session->exact_memory,
                                  .instance = session->instance,
                                  .is_beside = true,
                                  .index_forms = session->index_forms};
    attn_status status = device_stream_create(made->device, &made->stream, error);
    if (status == ATTN_OK)
        status = device_enter(made->device, error);
    if (status == ATTN_OK) {
        status = make_metadata(made, error);
        device_leave(made->device);
    }
    if (status != ATTN_OK)
        case_session_destroy(made);
    else
        *beside = made;
    return status;
}

attn_status session_ask_size(const struct case_session *session, const attn_bounds *bounds,
                             attn_memory_size *size, attn_error *error)
{
    attn_status status = device_enter(session->device, error);
    if (status != ATTN_OK)
        return status;
    status = ask_size(session, bounds, size, error);
    device_leave(session->device);
    return status;
}

uint32_t session_reads_new(struct case_session *session, const attn_problem *problem)
{
    attn_verdict verdict;
    return ask(session, problem, &verdict, NULL) == ATTN_OK ? verdict.reads_new_kv_unquantised : 0;
}

const attn_verdict *case_session_verdict(const struct case_session *session)
{
    return &session->verdict;
}

void case_session_destroy(struct case_session *session)
{
    if (!session)
        return;
    const attn_backend_ops *ops = session->backend.type->ops;
    device_graph_destroy(session->device, session->graph);
    if (device_enter(session->device, NULL) == ATTN_OK) {
        ops->metadata_destroy(session->metadata);
        if (!session->is_beside)
            ops->destroy(session->instance);
        device_leave(session->device);
    }
    regions_finish(&session->memory);
    device_stream_destroy(session->device, session->stream);
    free(session);
}
