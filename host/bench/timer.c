/* SPDX-License-Identifier: Apache-2.0
 *
 * timer.c: timed blocks of work between two device events.
 */
#include "host/bench/timer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/base/clock.h"
#include "host/base/error.h"

enum { REST = 4 };                /* a cool device works a fifth of the time */
enum { FIRST_CALL_US = 3000000 }; /* time that a first call may take to compile */

enum {
    CACHES = 4,
    MAX_BEYOND = 256 << 20,  /* bytes; machines exist whose caches are larger than that */
    UNKNOWN_CACHE = 64 << 20 /* bytes, where a device does not say */
};

uint64_t bench_beyond_cache(const struct device *device)
{
    uint64_t cache = device->info.l2_bytes ? device->info.l2_bytes : UNKNOWN_CACHE;
    uint64_t beyond = (CACHES - 1) * cache;
    return cache + (beyond < MAX_BEYOND ? beyond : MAX_BEYOND);
}

attn_status bench_timer_init(struct bench_timer *timer, const struct device *device, int kept_up,
                             attn_error *error)
{
    int cpu = device->type == ATTN_DEVICE_CPU;
    *timer = (struct bench_timer){
        .device = device,
        .lead_in = cpu ? 0 : 1,
        .samples = cpu ? 1 : BENCH_BLOCK,
        .rest = cpu || kept_up ? 0 : REST,
    };
    attn_status status = device_stream_create(device, &timer->stream, error);
    for (int e = 0; e <= BENCH_BLOCK && status == ATTN_OK; e++)
        status = device_event_create(device, 1, &timer->events[e], error);
    if (status != ATTN_OK)
        bench_timer_finish(timer);
    return status;
}

void bench_timer_finish(struct bench_timer *timer)
{
    for (int e = 0; e <= BENCH_BLOCK; e++)
        if (timer->device)
            device_event_destroy(timer->device, timer->events[e]);
    if (timer->device)
        device_stream_destroy(timer->device, timer->stream);
    memset(timer, 0, sizeof *timer);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static attn_status enqueue_block(const struct bench_timer *timer, const struct bench_work *work,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < timer->lead_in && status == ATTN_OK; i++)
        status = work->enqueue(work->ctx, timer->stream, error);
    if (status == ATTN_OK)
        status = device_event_record(timer->device, timer->events[0], timer->stream, error);
    for (uint32_t i = 0; i < timer->samples && status == ATTN_OK; i++) {
        status = work->enqueue(work->ctx, timer->stream, error);
        if (status == ATTN_OK)
            status = device_event_record(timer->device, timer->events[i + 1], timer->stream, error);
    }
    return status;
}

static void pause_ns(double ns)
{
    struct timespec pause = {.tv_sec = (time_t)(ns / 1e9)};
    pause.tv_nsec = (long)(ns - (double)pause.tv_sec * 1e9);
    if (ns > 0)
        nanosleep(&pause, NULL);
}

attn_status bench_timer_block(const struct bench_timer *timer, const struct bench_work *work,
                              double *us, attn_error *error)
{
    int64_t begin_ns = clock_now_ns();
    attn_status status = enqueue_block(timer, work, error);
    attn_status waited =
        device_synchronize(timer->device, timer->stream, status == ATTN_OK ? error : NULL);
    status = status == ATTN_OK ? waited : status;
    for (uint32_t i = 0; i < timer->samples && status == ATTN_OK; i++)
        status = device_event_elapsed(timer->device, timer->events[i], timer->events[i + 1], &us[i],
                                      error);
    pause_ns(timer->rest * (double)(clock_now_ns() - begin_ns));
    return status;
}

attn_status bench_timer_once(const struct bench_timer *timer, const struct bench_work *work,
                             double *us, attn_error *error)
{
    int64_t begin_ns = clock_now_ns();
    attn_status status = work->enqueue(work->ctx, timer->stream, error);
    attn_status waited =
        device_synchronize(timer->device, timer->stream, status == ATTN_OK ? error : NULL);
    *us = (double)(clock_now_ns() - begin_ns) / 1e3;
    return status == ATTN_OK ? waited : status;
}

attn_status bench_timer_estimate(const struct bench_timer *timer, const struct bench_work *work,
                                 double slow_us, double *us, attn_error *error)
{
    const double enough_us = slow_us > FIRST_CALL_US ? slow_us : FIRST_CALL_US;
    attn_status status = ATTN_OK;
    *us = 0;
    for (int i = 0; i < 2 && status == ATTN_OK && *us <= enough_us; i++)
        status = bench_timer_once(timer, work, us, error);
    return status;
}

attn_status bench_timer_sustain(const struct bench_timer *timer, const struct bench_work *works,
                                uint32_t count, double seconds, attn_error *error)
{
    struct bench_timer busy = *timer;
    double us[BENCH_BLOCK];
    attn_status status = ATTN_OK;
    int64_t end_ns = clock_now_ns() + (int64_t)(seconds * 1e9);
    busy.rest = 0;
    for (uint32_t w = 0; count > 0 && status == ATTN_OK && clock_now_ns() < end_ns; w++)
        status = bench_timer_block(&busy, &works[w % count], us, error);
    return status;
}

/* ---- Samples --------------------------------------------------------------------------------- */

attn_status bench_samples_add(struct bench_samples *samples, const double *us, size_t count,
                              attn_error *error)
{
    if (samples->count + count > samples->capacity) {
        size_t capacity = 2 * samples->capacity + count;
        double *grown = realloc(samples->us, capacity * sizeof *grown);
        if (!grown)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %zu samples", capacity);
        samples->us = grown;
        samples->capacity = capacity;
    }
    memcpy(samples->us + samples->count, us, count * sizeof *us);
    samples->count += count;
    return ATTN_OK;
}

void bench_samples_finish(struct bench_samples *samples)
{
    free(samples->us);
    memset(samples, 0, sizeof *samples);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double ranked(const double *sorted, size_t count, double p)
{
    size_t rank = (size_t)ceil(p * (double)count);
    return sorted[rank > 0 ? rank - 1 : 0];
}

double bench_quantile(double *values, size_t count, double p)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return ranked(values, count, p);
}

attn_status bench_samples_summary(const struct bench_samples *samples,
                                  struct bench_summary *summary, attn_error *error)
{
    double *sorted = malloc(samples->count * sizeof *sorted);
    if (!sorted)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %zu samples",
                         samples->count);
    memcpy(sorted, samples->us, samples->count * sizeof *sorted);
    summary->median = bench_quantile(sorted, samples->count, 0.5);
    summary->p10 = ranked(sorted, samples->count, 0.1);
    summary->p90 = ranked(sorted, samples->count, 0.9);
    summary->best = sorted[0];
    free(sorted);
    return ATTN_OK;
}
