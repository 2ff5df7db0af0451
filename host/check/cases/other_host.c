/* SPDX-License-Identifier: Apache-2.0
 *
 * other_host.c: creating a second host with its own thread pool.
 */
#include "host/check/cases/other_host.h"

#include "host/check/cases/draw.h"

bool other_host_init(struct other_host *other, struct check_run *run, uint32_t num_threads)
{
    const struct check_subject *subject = run->subject;
    attn_error *error = check_error(run);
    *other = (struct other_host){0};
    attn_status status = threads_create(num_threads, &other->threads, error);
    if (status == ATTN_OK) {
        other->composer = subject->host->composer;
        other->composer.threads = other->threads;
        status = compose_resolve(&other->composer, subject->backend, subject->device, &other->node,
                                 error);
    }
    return check_good(run, status, "a pool of %u threads", num_threads);
}

void other_host_finish(struct other_host *other)
{
    compose_destroy(other->node);
    threads_destroy(other->threads);
}

void other_host_use(struct check_run *run, uint32_t num_threads,
                    void (*use)(struct check_run *run, void *ctx), void *ctx)
{
    const struct check_subject *given = run->subject;
    struct check_subject subject = *given;
    struct other_host other;
    if (given->device->type != ATTN_DEVICE_CPU) {
        use(run, ctx);
        return;
    }
    if (other_host_init(&other, run, num_threads)) {
        subject.services = &other.node->services;
        run->subject = &subject;
        use(run, ctx);
        run->subject = given;
    }
    other_host_finish(&other);
}

uint32_t other_host_draw_threads(const struct check_run *run)
{
    static const uint32_t threads[] = {1, 2, 2, 3, 5, 8};
    struct draw draw = {.seed = mix_absorb(run->seed, 6)};
    return threads[draw_below(&draw, 6)];
}

struct spec_run {
    const struct case_spec *spec;
    const attn_options *options;
};

static void run_spec(struct check_run *run, void *ctx)
{
    const struct spec_run *of = ctx;
    numerics_run(run, of->spec, of->options);
}

void other_host_run_spec(struct check_run *run, uint32_t num_threads, const struct case_spec *spec,
                         const attn_options *options)
{
    struct spec_run of = {spec, options};
    other_host_use(run, num_threads, run_spec, &of);
}
