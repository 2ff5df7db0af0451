/* SPDX-License-Identifier: Apache-2.0
 *
 * service_counter.c: the counting table of services.
 */
#include "host/check/cases/service_counter.h"

#include <string.h>

static void log_message(void *ctx, uint32_t level, const char *message)
{
    struct service_counter *counter = ctx;
    counter->inner->log(counter->inner->ctx, level, message);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    struct service_counter *counter = ctx;
    if (space >= ATTN_SPACE_COUNT) {
        counter->strange = true;
        return NULL;
    }
    if (++counter->num_allocations == counter->refuse_at) {
        counter->refused = true;
        counter->refused_space = space;
        return NULL;
    }
    void *memory = counter->inner->allocate(counter->inner->ctx, space, size, alignment);
    if (memory)
        counter->live[space]++;
    return memory;
}

static void release(void *ctx, uint32_t space, void *memory)
{
    struct service_counter *counter = ctx;
    if (space >= ATTN_SPACE_COUNT) {
        counter->strange = true;
        return;
    }
    if (memory)
        counter->live[space]--;
    counter->inner->release(counter->inner->ctx, space, memory);
}

/* ---- The rest -------------------------------------------------------------------------------- */

static attn_status parallel_for(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    struct service_counter *counter = ctx;
    return counter->inner->parallel_for(counter->inner->ctx, num_tasks, task, arg);
}

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    struct service_counter *counter = ctx;
    return counter->inner->child_query(counter->inner->ctx, name, problem, verdict, error);
}

static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error)
{
    struct service_counter *counter = ctx;
    return counter->inner->child_create(counter->inner->ctx, name, problems, num_problems, child,
                                        error);
}

static uint64_t trace_begin(void *ctx, const char *name)
{
    struct service_counter *counter = ctx;
    if (!name)
        counter->strange = true;
    return (uint64_t)++counter->spans;
}

static void trace_end(void *ctx, uint64_t span)
{
    struct service_counter *counter = ctx;
    if (span == 0)
        counter->strange = true;
    counter->spans--;
}

static attn_status poll_error(void *ctx, attn_error *error)
{
    struct service_counter *counter = ctx;
    return counter->inner->poll_error ? counter->inner->poll_error(counter->inner->ctx, error)
                                      : ATTN_OK;
}

static const void *get_extension(void *ctx, const char *id)
{
    struct service_counter *counter = ctx;
    if (!id)
        counter->strange = true;
    return id && counter->inner->get_extension
               ? counter->inner->get_extension(counter->inner->ctx, id)
               : NULL;
}

/* ---- Life ------------------------------------------------------------------------------------ */

void service_counter_init(struct service_counter *counter, const attn_services *inner)
{
    *counter = (struct service_counter){
        .table = {.struct_size = sizeof counter->table,
                  .num_workers = inner->num_workers,
                  .ctx = counter,
                  .log = log_message,
                  .trace_begin = trace_begin,
                  .trace_end = trace_end,
                  .allocate = allocate,
                  .release = release,
                  .parallel_for = parallel_for,
                  .child_query = inner->child_query ? child_query : NULL,
                  .child_create = inner->child_create ? child_create : NULL,
                  .poll_error = poll_error,
                  .get_extension = get_extension},
        .inner = inner,
    };
}

void service_counter_hide(struct service_counter *counter, enum service_counter_slot slot)
{
    if (slot == SERVICE_TRACE) {
        counter->table.trace_begin = NULL;
        counter->table.trace_end = NULL;
    } else if (slot == SERVICE_POLL_ERROR) {
        counter->table.poll_error = NULL;
    } else {
        counter->table.get_extension = NULL;
    }
}

void service_counter_restart(struct service_counter *counter, uint64_t refuse_at)
{
    memset(counter->live, 0, sizeof counter->live);
    counter->spans = 0;
    counter->num_allocations = 0;
    counter->refuse_at = refuse_at;
    counter->refused = counter->strange = false;
}

const char *service_counter_left(const struct service_counter *counter)
{
    static const char *const taken[ATTN_SPACE_COUNT] = {"device memory from services->allocate",
                                                        "pinned memory from services->allocate",
                                                        "host memory from services->allocate"};
    for (int s = 0; s < ATTN_SPACE_COUNT; s++)
        if (counter->live[s] != 0)
            return taken[s];
    return counter->spans ? "a span of the trace" : NULL;
}
