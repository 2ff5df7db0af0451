/* SPDX-License-Identifier: Apache-2.0
 *
 * tally.c: the counting table of services.
 */
#include "host/check/cases/tally.h"

#include <string.h>

static void log_message(void *ctx, uint32_t level, const char *message)
{
    struct tally *tally = ctx;
    tally->inner->log(tally->inner->ctx, level, message);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    struct tally *tally = ctx;
    if (space >= ATTN_SPACE_COUNT) {
        tally->strange = true;
        return NULL;
    }
    if (++tally->num_allocations == tally->refuse_at) {
        tally->refused = true;
        tally->refused_space = space;
        return NULL;
    }
    void *memory = tally->inner->allocate(tally->inner->ctx, space, size, alignment);
    if (memory)
        tally->live[space]++;
    return memory;
}

static void release(void *ctx, uint32_t space, void *memory)
{
    struct tally *tally = ctx;
    if (space >= ATTN_SPACE_COUNT) {
        tally->strange = true;
        return;
    }
    if (memory)
        tally->live[space]--;
    tally->inner->release(tally->inner->ctx, space, memory);
}

/* ---- The rest -------------------------------------------------------------------------------- */

static attn_status parallel_for(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    struct tally *tally = ctx;
    return tally->inner->parallel_for(tally->inner->ctx, num_tasks, task, arg);
}

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    struct tally *tally = ctx;
    return tally->inner->child_query(tally->inner->ctx, name, problem, verdict, error);
}

static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error)
{
    struct tally *tally = ctx;
    return tally->inner->child_create(tally->inner->ctx, name, problems, num_problems, child,
                                      error);
}

static uint64_t trace_begin(void *ctx, const char *name)
{
    struct tally *tally = ctx;
    if (!name)
        tally->strange = true;
    return (uint64_t)++tally->spans;
}

static void trace_end(void *ctx, uint64_t span)
{
    struct tally *tally = ctx;
    if (span == 0)
        tally->strange = true;
    tally->spans--;
}

static attn_status poll_error(void *ctx, attn_error *error)
{
    struct tally *tally = ctx;
    return tally->inner->poll_error ? tally->inner->poll_error(tally->inner->ctx, error) : ATTN_OK;
}

static const void *get_extension(void *ctx, const char *id)
{
    struct tally *tally = ctx;
    if (!id)
        tally->strange = true;
    return id && tally->inner->get_extension ? tally->inner->get_extension(tally->inner->ctx, id)
                                             : NULL;
}

/* ---- Life ------------------------------------------------------------------------------------ */

void tally_init(struct tally *tally, const attn_services *inner)
{
    *tally = (struct tally){
        .table = {.struct_size = sizeof tally->table,
                  .num_workers = inner->num_workers,
                  .ctx = tally,
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

void tally_hide(struct tally *tally, enum tally_slot slot)
{
    if (slot == TALLY_TRACE) {
        tally->table.trace_begin = NULL;
        tally->table.trace_end = NULL;
    } else if (slot == TALLY_POLL_ERROR) {
        tally->table.poll_error = NULL;
    } else {
        tally->table.get_extension = NULL;
    }
}

void tally_restart(struct tally *tally, uint64_t refuse_at)
{
    memset(tally->live, 0, sizeof tally->live);
    tally->spans = 0;
    tally->num_allocations = 0;
    tally->refuse_at = refuse_at;
    tally->refused = tally->strange = false;
}

const char *tally_left(const struct tally *tally)
{
    static const char *const taken[ATTN_SPACE_COUNT] = {"device memory from services->allocate",
                                                        "pinned memory from services->allocate",
                                                        "host memory from services->allocate"};
    for (int s = 0; s < ATTN_SPACE_COUNT; s++)
        if (tally->live[s] != 0)
            return taken[s];
    return tally->spans ? "a span of the trace" : NULL;
}
