/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h: the results of a run and their report: JSON for programs, a few lines for people.
 */
#ifndef HOST_RUN_REPORT_H
#define HOST_RUN_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "attn_plugin.h"
#include "host/embed/provenance.h"
#include "host/run/report_times.h"

/* Which backend serves which layers in which phase. */
struct report_choice {
    char *layers;  /* "0-3,5" */
    char *phase;   /* "prefill", "decode" */
    char *backend; /* as it was asked for */
};

/* Rows that one backend, or one of its code paths, computed: query rows times layers. */
struct report_path {
    char *name; /* owned: "backend", "backend/path" */
    int64_t rows;
};

/* Two clocks. The wall clock is the process's, including its work between steps: generating
 * operands, comparing rows with the oracle. On the virtual clock only steps take time. */
enum report_clock { REPORT_VIRTUAL, REPORT_WALL, REPORT_CLOCKS };

/* Consecutive steps, and the maximum that the run held at their ends. */
struct report_bin {
    int64_t end_ns[REPORT_CLOCKS]; /* of the last step, since the run began */
    int64_t prefill, decode;       /* rows */
    int64_t kv_tokens;             /* tokens that pages are allocated for, cached ones included */
    int64_t running;               /* requests of a step */
};

/* A run over time, of any length: when all bins are full, two and two become one. */
enum { REPORT_BINS = 256 };

struct report_series {
    int64_t steps_per_bin, steps_in_last;
    size_t count;
    struct report_bin bins[REPORT_BINS];
};

/* Shared prefixes in the hints of DECODE batches (shared_prefix.h). */
struct report_shared {
    int64_t rows;       /* that shared keys with another one */
    int64_t saved_keys; /* that a layer need not read, of these: */
    int64_t keys;       /* of all rows */
};

/* A layer's largest error of a checked row, in that row's bars. */
enum report_phase { REPORT_PREFILL, REPORT_DECODE, REPORT_PHASES };

/* A pool of KV. */
struct report_pool {
    const char *holds;                    /* static: "all", "window", "encoder" */
    int32_t layers;                       /* that lie in it */
    int64_t bytes_per_token;              /* of these layers together */
    int64_t capacity, peak, held, leaked; /* tokens */
};

enum { REPORT_MAX_POOLS = 3 };

struct report {
    struct provenance from;
    int64_t requests, steps;
    struct {
        int64_t prefill;    /* rows computed */
        int64_t decode;     /* rows computed */
        int64_t prefix_hit; /* tokens found in the prefix cache, above what the request ever had */
        int64_t recomputed; /* rows of `prefill` that the request had before */
        int64_t encoded;    /* rows of the encoder next to a decoder */
    } tokens;
    struct {
        bool present;
        int64_t verifications; /* of a request */
        int64_t drafted;       /* rows of drafts in them */
        int64_t accepted;      /* of these those that stayed; all others were wasted */
        int64_t draft_extend;  /* rows of the draft model, those of prompts aside */
        char digest[65];       /* of the rows of generated tokens */
    } drafts;
    bool has_shared; /* a backend takes hints of shared prefixes */
    struct report_shared shared;
    double wall_s;
    uint32_t num_choices;
    struct report_choice *choices;
    uint32_t num_paths;
    struct report_path *paths;
    struct {
        int64_t rows_checked, rows_failed; /* (request, position, layer) */
        bool sampled;                      /* rows that were not checked may be wrong */
        int64_t steps_not_finite;          /* steps with an output that is NaN or infinite */
        int64_t trespasses;                /* forwards that wrote outside their outputs */
        double max_abs_err, max_rel_err;
        char first_failure[256];
        uint32_t num_layers;
        double *of_bar[REPORT_PHASES]; /* [num_layers]; negative = no row was checked */
    } verify;
    struct {
        int64_t capacity, peak; /* tokens of the first pool */
        int64_t leaked;         /* of all */
        int num_pools;
        struct report_pool pools[REPORT_MAX_POOLS];
    } kv;
    struct {
        bool present;                   /* the model has recurrent layers */
        int64_t capacity, peak, leaked; /* states that the prefix cache can keep, kept, lost */
    } states;
    struct report_times prefill, decode; /* of a step, all layers: executor.c says what is in it */
    struct report_times ttft[REPORT_CLOCKS]; /* of a request: until its first output token */
    struct report_times tpot[REPORT_CLOCKS]; /* of a request: for each further one, on average */
    struct report_series series;
    struct { /* a device that works by itself: the host's own time for the same steps, and of that
              */
        struct report_times prefill, decode;               /* the time in init_forward_metadata */
        struct report_times prefill_launch, decode_launch; /* and forwards, or the graph's launch */
    } host;
    struct {
        int64_t count;          /* captured; 0 = every step was run eagerly */
        int64_t metadata_bytes; /* device memory, as computed before */
        int64_t bytes;          /* device memory that was gone after the captures */
    } graphs;
    int64_t device_losses; /* survived */
    int64_t skipped, cut;  /* requests of the trace that were too long: left out, shortened */
    int64_t failed_steps;  /* and requests that were dropped for it */
    int64_t dropped;
    char ended_by[512]; /* the cause of an early end; "" = none */
    bool interrupted;   /* before all requests had ended; pages that they hold do not count as
                         * leaked */
    char digest[65];
    uint64_t seed;
};

/* Zero everything. */
void report_init(struct report *report);

/* Release what it holds. */
void report_finish(struct report *report);

/* Did the steps run on a device that works by itself? Then `host` holds a time for each. */
bool report_has_device(const struct report *report);

/* The host's own time over the steps' time on the device, all steps; 0 without a device. */
double report_host_share(const struct report *report);

/* Append a step, as a bin of its own. */
void report_add_step(struct report_series *series, const struct report_bin *step);

/* Append a choice; the texts are copied. OUT_OF_HOST_MEMORY. */
attn_status report_add_choice(struct report *report, const char *layers, const char *phase,
                              const char *backend, attn_error *error);

/* Find or append the path `name` and add rows to it. OUT_OF_HOST_MEMORY. */
attn_status report_add_rows(struct report *report, const char *name, int64_t rows,
                            attn_error *error);

/* The report as JSON text with a final newline; malloc'ed, the caller frees it; NULL when memory
 * ran out. Counts and the seed are exact. An error that is not finite is written as 1e308.
 * verify.first_failure is there only if there is one. */
char *report_json(const struct report *report);

/* The report as a few lines. */
void report_print(const struct report *report, FILE *file);

#endif /* HOST_RUN_REPORT_H */
