/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h: measures backends on shapes, side by side.
 *
 * The backends of an entry are composed through attnhost.h and warmed up; then rounds follow, in
 * each of which every backend has a block of samples (A B A B ...). A sample is a number of
 * forwards through the copies of the inputs, replayed from a graph if the backend allows it. A
 * disturbance longer than a round affects all backends.
 *
 * Before and after timing, the oracle judges rows of a backend's output (judge.h); a wrong backend
 * is not ranked.
 */
#ifndef HOST_BENCH_BENCH_H
#define HOST_BENCH_BENCH_H

#include <stdbool.h>

#include "attnhost.h"
#include "host/bench/ceilings.h"
#include "host/bench/shape.h"
#include "host/bench/timer.h"
#include "host/embed/provenance.h"
#include "host/base/text.h"

/* bench_run.outcome */
enum {
    BENCH_REFUSED = 0, /* the backend cannot serve the shape: `why` */
    BENCH_RAN = 1,
    BENCH_FAILED = 2,   /* it said that it can, and failed: `why` */
    BENCH_LEFT_OUT = 3, /* the time had passed: `why` */
    BENCH_WRONG = 4     /* a sampled row of its output is wrong, so its times mean nothing: `why` */
};

/* How long a backend with ATTN_TRAIT_FIRST_CALL_SLOW may compile before it is timed. */
#define BENCH_WARM_SECONDS 120.0

/* Which ceiling is the nearer one; NONE: nothing is known of it. */
enum { BENCH_BOUND_NONE = 0, BENCH_BOUND_MEMORY = 1, BENCH_BOUND_COMPUTE = 2 };

/* A backend on a shape. */
struct bench_run {
    char *backend; /* as it was asked for; owned */
    uint32_t outcome;
    strbuf why;                     /* reasons, separated by "; " */
    const char *layout;             /* static layout id; NULL = none was accepted */
    uint32_t reads_new_unquantised; /* ATTN_MODE_BIT set, of the verdict */
    bool graph;                     /* replayed from a graph, else called */
    uint32_t calls;                 /* forwards of a sample */
    bool first_call_slow;           /* the trait of its verdict: calls may compile at first */
    double warm_seconds;            /* in which it was called until it had compiled */
    bool one_call;                  /* so slow that only one call was measured */
    struct bench_samples samples;   /* microseconds of one forward: the mean of a sample */
    uint32_t per_round;             /* samples */
    struct bench_summary us;
    double flops, bytes_rate;           /* a second */
    double fraction;                    /* of the nearer ceiling; 0 = not known, bound NONE */
    uint32_t bound;                     /* BENCH_BOUND_*: which one that is */
    bool impossible;                    /* beyond the ceiling by more than it may be off */
    double ratio, ratio_p10, ratio_p90; /* of times, round by round, to the first that ran */
};

/* A shape with the backends it is measured on. */
struct bench_entry {
    struct bench_shape shape;
    char origin[96]; /* "layers 0-31", or "" for a separate shape */
    struct bench_count count;
    uint32_t copies; /* of the inputs; 0 = nothing ran */
    struct bench_run *runs;
    uint32_t num_runs;
};

/* A whole benchmark: what was requested, and its results. */
struct bench_report {
    struct provenance from; /* its device is set by bench_measure() */
    uint64_t seed;
    int interrupted; /* the remaining entries were left out */
    double seconds;  /* each backend of an entry is measured for about so long */
    double total;    /* ... and all of it takes about so long at most; 0 = however long */
    double sustain;  /* seconds of load before an entry is measured; 0 = the device stays cool */
    double rest;     /* pause after a block of samples, in times its length */
    int32_t max_sms; /* multiprocessors that launches could count on; 0 = all */
    uint32_t required_traits; /* ATTN_TRAIT_* of each problem */
    struct bench_ceilings ceilings;
    struct bench_entry *entries;
    size_t num_entries;
};

/* Append an entry with room for num_runs backends, which bench_set_backend() names. NULL when
 * memory ran out. */
struct bench_entry *bench_add_entry(struct bench_report *report, const struct bench_shape *shape,
                                    uint32_t num_runs);
attn_status bench_set_backend(struct bench_entry *entry, uint32_t run, const char *name,
                              size_t length, attn_error *error);

/* Is the matrix ceiling of the products that the entry's operands allow? Not where a GPU could
 * multiply fp8 codes: the ceiling is of bf16, and fp8 may go beyond it. */
bool bench_compute_is_known(const struct bench_report *report, const struct bench_entry *entry);

/* Microseconds that the entry's fastest possible forward takes, as far as the report's ceilings
 * tell, and which of them says so. Where it takes longer to multiply in bf16 than to move the bytes
 * and fp8 codes could be multiplied, none of them does, and the time is a guess. */
double bench_floor_us(const struct bench_report *report, const struct bench_entry *entry,
                      uint32_t *bound);

/* A zeroed one is fine. */
void bench_report_finish(struct bench_report *report);

/* Called at the beginning of each entry and from time to time, and once at the end with `done` =
 * `total`. */
typedef void (*bench_progress)(void *ctx, size_t done, size_t total, const char *what);

struct bench_params {
    attnhost *host;                             /* with its plugins and backends */
    const struct device *device;                /* open */
    struct threads *threads;                    /* of the host, for the ceilings */
    int eager;                                  /* call a backend even if it can be captured */
    int32_t max_sms;                            /* of bounds, at most; 0 = all */
    uint32_t required_traits;                   /* ATTN_TRAIT_* of each problem */
    bench_progress progress;                    /* NULL = none */
    void (*predict)(void *ctx, double seconds); /* once, as soon as it is known; NULL = none */
    void *progress_ctx;
};

/* Measure the ceilings and all entries of the report, whose seed, seconds and sustain are set. A
 * backend's refusal or failure is recorded in its run. Errors are those that end the bench: an
 * unknown backend (CONFIG_ERROR), a device that is lost, no memory. */
attn_status bench_measure(const struct bench_params *params, struct bench_report *report,
                          attn_error *error);

/* ---- print.c --------------------------------------------------------------------------------- */

/* A few lines on the device and its ceilings, then a line for each backend on each shape. */
void bench_print(const struct bench_report *report, FILE *file);

/* Everything, every sample included, with a final newline; malloc'ed, the caller frees it; NULL
 * when memory ran out. */
char *bench_json(const struct bench_report *report);

#endif /* HOST_BENCH_BENCH_H */
