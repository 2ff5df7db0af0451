/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_case.h: a case (forward_case.h) on a CUDA device, step by step, for checks of a backend's
 * driver calls and of graphs.
 *
 *   point    a mode, a type of the cache and a mask that the backend accepts
 *   case     of that point, of the largest lengths; refilled with others at the same addresses
 *   steps    upload, plan, forward, capture, download, each of them asynchronous
 *   gate     work that keeps a stream from going on */
#ifndef HOST_CHECK_CASES_GPU_CASE_H
#define HOST_CHECK_CASES_GPU_CASE_H

#include <stdatomic.h>

#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numerics.h"
#include "host/check/spy/spy.h"

/* ---- Cases ----------------------------------------------------------------------------------- */

enum { GPU_CASE_TEXT = 600, GPU_UPLOADS = 3 };

/* Initialised in place and never copied. */
struct gpu_case {
    struct check_run *run;
    struct numerics_point at; /* its spec is of the largest lengths */
    uint64_t seed;            /* of the properties fixed by the capture: which arrays exist, and how
                             * tensors lie */
    uint32_t level, needed;   /* ATTN_GRAPH_*: what query answers, what the point's batches need */
    uint32_t traits;
    struct forward_case *c;
    struct case_session *session; /* in which the steps are done; it is closed with the case */
    char *pinned[GPU_UPLOADS];    /* copies of the arena, to upload from without waiting */
    uint32_t num_uploads;
    char what[GPU_CASE_TEXT];
};

/* The points that a subject has. */
int32_t gpu_num_points(const struct check_subject *subject);

/* The case of a point. false: the run was skipped or has failed; there is nothing to close. */
bool gpu_case_open(struct gpu_case *g, struct check_run *run, int32_t point);
void gpu_case_close(struct gpu_case *g);

/* The same with a session; with GRAPH metadata batches that cannot be captured are skipped. */
bool gpu_open(struct gpu_case *g, struct check_run *run, int32_t point, uint32_t kind);

/* Other lengths and contents within those that it was made with, where they are: a function of
 * `number` alone. 0 are the largest lengths, 1 the smallest. `real` sequences, the others padding;
 * -1 = as many as are drawn. false: it was reported. */
bool gpu_case_refill(struct gpu_case *g, uint64_t number, int32_t real);

/* NULL: it was reported. */
struct case_session *gpu_session(struct gpu_case *g, uint32_t kind);

/* ---- Steps ----------------------------------------------------------------------------------- */

/* The contents of the case, or padding only, with which a capture is prepared. */
enum gpu_contents { GPU_REAL, GPU_PADDING };

/* The arena to the device; GPU_UPLOADS of them may be on their way. */
attn_status gpu_upload(struct gpu_case *g, enum gpu_contents contents);

/* init_forward_metadata for what was uploaded last. Afterwards the host arrays hold other things.
 */
attn_status gpu_plan(struct gpu_case *g, enum gpu_contents contents);

/* Both. */
attn_status gpu_prepare(struct gpu_case *g, enum gpu_contents contents);

/* A forward for each layer. */
attn_status gpu_forward(struct gpu_case *g, enum gpu_contents contents, uint32_t flags);

/* All of it, and wait. */
attn_status gpu_run(struct gpu_case *g, enum gpu_contents contents);

/* The stream's work is done. False: it was reported. */
bool gpu_wait(struct gpu_case *g);

/* Prepared with padding and warmed up, then captured in a mode of the driver's, CUDA_CAPTURE_GLOBAL
 * or CUDA_CAPTURE_THREAD_LOCAL; session->graph is what comes of it. Afterwards the stream is no
 * longer capturing, even after an error. */
attn_status gpu_capture(struct gpu_case *g, unsigned int mode);

/* ATTN_OK, or the case fails: "what: STATUS: message". */
bool gpu_good(struct gpu_case *g, attn_status status, const char *what);

/* ---- Gates ----------------------------------------------------------------------------------- */

enum { GPU_GATE_MS = 2000 };

/* Work in a stream that is not done until the gate opens, or GPU_GATE_MS have passed. */
struct gpu_gate {
    atomic_int open, passed;
    int64_t until_ns;
};

attn_status gpu_gate_close(struct gpu_case *g, struct gpu_gate *gate, attn_stream stream);

/* Open it, and wait for the stream. */
void gpu_gate_open(struct gpu_case *g, struct gpu_gate *gate, attn_stream stream);

/* ---- The spy --------------------------------------------------------------------------------- */

/* false: the run was skipped with the reason. */
bool gpu_find_spy(struct check_run *run, struct spy_cuda *spy);

#endif /* HOST_CHECK_CASES_GPU_CASE_H */
