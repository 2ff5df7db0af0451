/* SPDX-License-Identifier: Apache-2.0
 *
 * services.c: the table of services that plugins get.
 */
#include "host/plugin/services.h"

#include "host/base/error.h"
#include "host/plugin/guard.h"
#include "host/reference/reference.h"

#include "attn_backend.h"

#include <stdlib.h>
#include <string.h>

/* Memory that needs no open device. */
static const struct device host_memory = {.type = ATTN_DEVICE_CPU, .ops = &device_cpu};

static int is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* ---- Extensions ------------------------------------------------------------------------------ */

static attn_status judge(const attn_problem *problem, const attn_batch *batch, int32_t layer_id,
                         const attn_forward_args *args, uint32_t reads_new_unquantised, int64_t row,
                         int32_t head, double *bars_off, attn_error *error)
{
    const reference_options options = {.reads_new_unquantised = reads_new_unquantised};
    reference_verdict verdict;
    attn_status status =
        reference_judge_row(problem, batch, layer_id, args, &options, row, head, &verdict, error);
    if (status == ATTN_OK)
        *bars_off = reference_verdict_ratio(&verdict);
    return status;
}

static const void *get_extension(void *ctx, const char *id)
{
    static const attn_judge table = {.struct_size = sizeof table, .judge = judge};
    (void)ctx;
    return id && strcmp(id, ATTN_EXTENSION_JUDGE) == 0 ? &table : NULL;
}

/* ---- For an instance ------------------------------------------------------------------------- */

static void log_message(void *ctx, uint32_t level, const char *message)
{
    const struct services_context *context = ctx;
    host_log_write(context->log, level, "%s: %s", context->name, message ? message : "");
}

/* The device whose memory of this space is meant; its type 0 = none. */
static struct device device_of(const struct services_context *context, uint32_t space)
{
    struct device device = {.type = 0};
    if (context->device)
        return *context->device;
    if (space == ATTN_SPACE_HOST)
        device = host_memory;
    device.allocator = context->allocator;
    return device;
}

static void *allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    struct services_context *context = ctx;
    const struct device device = device_of(context, space);
    if (space >= ATTN_SPACE_COUNT || !device.ops || (alignment != 0 && !is_power_of_two(alignment)))
        return NULL;
    void *memory = device_allocate(&device, space, size, alignment ? alignment : 1);
    if (!memory && device.allocator)
        context->refusal = (struct services_refusal){size ? size : 1, alignment, space};
    return memory;
}

static void release(void *ctx, uint32_t space, void *memory)
{
    const struct device device = device_of(ctx, space);
    if (device.ops)
        device_release(&device, space, memory);
}

static attn_status run_on_pool(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    return threads_for(ctx, num_tasks, task, arg);
}

static attn_status parallel_for(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    const struct services_context *context = ctx;
    return guard_parallel_for(run_on_pool, context->threads, num_tasks, task, arg);
}

void services_init(attn_services *services, struct services_context *context)
{
    *services = (attn_services){
        .struct_size = sizeof *services,
        .num_workers = threads_num_workers(context->threads),
        .ctx = context,
        .log = log_message,
        .allocate = allocate,
        .release = release,
        .parallel_for = parallel_for,
        .get_extension = get_extension,
    };
}

void services_explain(struct services_context *context, attn_error *error)
{
    static const char *const names[] = {"device", "pinned", "host"};
    const struct services_refusal refusal = context->refusal;
    context->refusal.size = 0;
    if (refusal.size > 0)
        host_fail_suffix(
            error, "; attnhost_params.allocate refused %s %llu bytes of %s memory, aligned to %llu",
            context->name, (unsigned long long)refusal.size, names[refusal.space],
            (unsigned long long)(refusal.alignment ? refusal.alignment : 1));
}

/* ---- For a plugin ---------------------------------------------------------------------------- */

static void log_to_newest(void *ctx, uint32_t level, const char *message)
{
    (void)ctx;
    host_log_write_newest(level, message ? message : "");
}

static void *allocate_on_host(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    (void)ctx;
    if (space != ATTN_SPACE_HOST || (alignment != 0 && !is_power_of_two(alignment)))
        return NULL;
    return device_allocate(&host_memory, space, size, alignment ? alignment : 1);
}

static void release_on_host(void *ctx, uint32_t space, void *memory)
{
    (void)ctx;
    if (space == ATTN_SPACE_HOST)
        device_release(&host_memory, space, memory);
}

static attn_status run_here(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    (void)ctx;
    return threads_for_here(num_tasks, task, arg);
}

attn_services *services_create_for_plugin(void)
{
    attn_services *services = malloc(sizeof *services);
    if (services)
        *services = (attn_services){
            .struct_size = sizeof *services,
            .num_workers = 1,
            .log = log_to_newest,
            .allocate = allocate_on_host,
            .release = release_on_host,
            .parallel_for = run_here,
        };
    return services;
}
