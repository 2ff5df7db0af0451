/* SPDX-License-Identifier: Apache-2.0 */
#include "host/plugin/services.h"

#include <stdlib.h>

/* Memory that needs no open device. */
static const struct device host_memory = {.type = ATTN_DEVICE_CPU, .ops = &device_cpu};

static int is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* ---- For an instance ------------------------------------------------------------------------- */

static void log_message(void *ctx, uint32_t level, const char *message)
{
    const struct services_context *context = ctx;
    host_log_write(context->log, level, "%s: %s", context->name, message ? message : "");
}

static const struct device *device_of(const struct services_context *context, uint32_t space)
{
    if (context->device)
        return context->device;
    return space == ATTN_SPACE_HOST ? &host_memory : NULL;
}

static void *allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    const struct device *device = device_of(ctx, space);
    if (!device || (alignment != 0 && !is_power_of_two(alignment)))
        return NULL;
    return device_allocate(device, space, size, alignment ? alignment : 1);
}

static void release(void *ctx, uint32_t space, void *memory)
{
    const struct device *device = device_of(ctx, space);
    if (device)
        device_release(device, space, memory);
}

static attn_status parallel_for(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    const struct services_context *context = ctx;
    return threads_for(context->threads, num_tasks, task, arg);
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
    };
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
