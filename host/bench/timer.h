/* SPDX-License-Identifier: Apache-2.0
 *
 * timer.h: times work on a device by events in its stream; on the CPU these read the monotonic
 * clock.
 *
 * A block is a few samples of one kind of work, enqueued together: the first ones, the lead-in, are
 * not timed and keep the device busy while the samples after them are being enqueued, so that no
 * sample holds a gap in which the device waited for the host.
 */
#ifndef HOST_BENCH_TIMER_H
#define HOST_BENCH_TIMER_H

#include "host/device/device.h"

enum { BENCH_BLOCK = 3 }; /* samples of a block at most */

/* Something that can be enqueued again and again. On the CPU it is done when the call returns. */
struct bench_work {
    attn_status (*enqueue)(void *ctx, attn_stream stream, attn_error *error);
    void *ctx;
};

struct bench_timer {
    const struct device *device; /* borrowed */
    attn_stream stream;
    struct device_event *events[BENCH_BLOCK + 1];
    uint32_t lead_in; /* times the work stands before the samples of a block */
    uint32_t samples; /* of a block */
    double rest;      /* pause after a block, in times its length: lets a GPU stay cool */
};

/* For a device that is kept up by a load (`kept_up`, no rests) or stays cool. */
attn_status bench_timer_init(struct bench_timer *timer, const struct device *device, int kept_up,
                             attn_error *error);

/* A zeroed one is fine; its stream is idle. */
void bench_timer_finish(struct bench_timer *timer);

/* One block: microseconds of each sample into us[0 .. timer->samples). Waits for the work. */
attn_status bench_timer_block(const struct bench_timer *timer, const struct bench_work *work,
                              double *us, attn_error *error);

/* Microseconds of one unit of work, by the host's clock and roughly. */
attn_status bench_timer_once(const struct bench_timer *timer, const struct bench_work *work,
                             double *us, attn_error *error);

/* The same: the second of two, as the first
 * may compile; or the first, if that took more than `slow_us` and more than compiling may. */
attn_status bench_timer_estimate(const struct bench_timer *timer, const struct bench_work *work,
                                 double slow_us, double *us, attn_error *error);

/* Keep the device busy with works[0 .. count) in turn for this many seconds. */
attn_status bench_timer_sustain(const struct bench_timer *timer, const struct bench_work *works,
                                uint32_t count, double seconds, attn_error *error);

/* A working set of which the last-level cache keeps little from one pass to the next. */
uint64_t bench_beyond_cache(const struct device *device);

/* ---- Samples --------------------------------------------------------------------------------- */

struct bench_samples {
    double *us;
    size_t count, capacity;
};

/* OUT_OF_HOST_MEMORY. */
attn_status bench_samples_add(struct bench_samples *samples, const double *us, size_t count,
                              attn_error *error);

void bench_samples_finish(struct bench_samples *samples);

/* The p-quantile (0 to 1) of values[0 .. count), count >= 1, by nearest rank; the values are
 * sorted in place. */
double bench_quantile(double *values, size_t count, double p);

struct bench_summary {
    double median, p10, p90, best;
};

/* Of at least one sample. OUT_OF_HOST_MEMORY; the samples stay in their order. */
attn_status bench_samples_summary(const struct bench_samples *samples,
                                  struct bench_summary *summary, attn_error *error);

#endif /* HOST_BENCH_TIMER_H */
