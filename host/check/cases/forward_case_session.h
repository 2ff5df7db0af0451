/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_session.h: the internals of a session, for forward_case_session.c, which makes it,
 * and forward_case_judge.c, which runs cases with it. */
#ifndef HOST_CHECK_CASES_FORWARD_CASE_SESSION_H
#define HOST_CHECK_CASES_FORWARD_CASE_SESSION_H

#include "host/check/cases/forward_case_private.h"
#include "host/check/cases/regions.h"

struct case_session {
    struct case_backend backend;
    const struct device *device;
    attn_stream stream;
    attn_verdict verdict;
    uint32_t host_arrays; /* ATTN_HOST_* that the verdicts on all its layer groups name */
    uint32_t kind;
    attn_bounds bounds;
    bool exact_memory;
    attn_instance *instance;
    bool is_beside; /* the instance is another session's */
    attn_metadata *metadata;
    uint32_t index_forms;
    struct regions memory;
    struct device_graph *graph;          /* GRAPH: once it was captured */
    const struct forward_case *captured; /* the case whose memory the graph works on */
    int32_t num_runs;
};

/* case_session_create() for any problem, whose bounds are those of the metadata unless the setup
 * has others. */
attn_status session_create(const struct case_backend *backend, const attn_problem *problem,
                           const struct device *device, const struct case_setup *setup,
                           struct case_session **session, attn_error *error);

/* Another metadata of the session's instance, for bounds within those of create; the session has to
 * outlive it. */
attn_status session_create_beside(const struct case_session *session, const attn_bounds *bounds,
                                  struct case_session **beside, attn_error *error);

/* The instance's current answer of metadata_size for bounds. */
attn_status session_ask_size(const struct case_session *session, const attn_bounds *bounds,
                             attn_memory_size *size, attn_error *error);

/* The addresses in the ABI's structs for a run of the case. */
void session_place(const struct case_session *session, const struct forward_case *c, bool second,
                   struct case_place *place);

/* Plan the batch that was copied to the device, with these host arrays (ATTN_HOST_*) and those that
 * the verdict names. Its structs and host arrays may be overwritten afterwards. */
attn_status session_plan(const struct case_session *session, struct forward_case *c,
                         const struct case_lengths *lengths, uint32_t host_arrays,
                         attn_error *error);

/* Bring a copy of the arena to the device, and to where it is planned from. */
attn_status session_bring(const struct case_session *session, struct forward_case *c,
                          const char *arena, attn_error *error);

/* Forward a layer of the batch. */
struct case_call {
    bool second;        /* the second layer */
    uint32_t flags;     /* on top */
    uint64_t roles;     /* that are given, as bits; 0 = all */
    case_change change; /* NULL = nothing is changed in the arguments */
    void *ctx;
};
attn_status session_call(const struct case_session *session, const struct forward_case *c,
                         const struct case_lengths *lengths, const struct case_call *call,
                         attn_error *error);

/* All its layers and their steps, with these flags on top. */
attn_status session_call_all(const struct case_session *session, const struct forward_case *c,
                             const struct case_lengths *lengths, uint32_t flags, attn_error *error);

/* Modes in which query says that new tokens are read from the arguments, of this problem. */
uint32_t session_reads_new(struct case_session *session, const attn_problem *problem);

/* The steps of case_session_repeat() one by one, for a batch that the caller has planned and in
 * which the case is one layer: its forwards, between device_enter() and device_leave(), and the
 * verdict on their results. */
void session_forward(struct case_session *session, struct forward_case *c,
                     struct case_verdict *verdict);
void session_judge_left(struct case_session *session, struct forward_case *c,
                        struct case_verdict *verdict);

/* Copy the device's contents to c->actual. */
attn_status session_fetch(const struct case_session *session, struct forward_case *c,
                          attn_error *error);

/* Judge outputs and states of a linear layer that the device has now: those of one part of its
 * batch, which found the arena as it is in `before`, or (both NULL) of the whole batch. Other
 * writes are not checked. */
struct linear_part;
void session_judge_part(struct case_session *session, struct forward_case *c,
                        const struct linear_part *part, char *before, struct case_verdict *verdict);

/* Fill the scratch with something, another thing each run. */
attn_status session_spoil_scratch(struct case_session *session, attn_error *error);

/* After a failed forward, clear the regions that must be zero. */
void session_begin_anew(struct case_session *session);

/* Are the red zones around the metadata's memory whole? INTERNAL with the place. */
attn_status session_check_memory(struct case_session *session, attn_error *error);

#endif /* HOST_CHECK_CASES_FORWARD_CASE_SESSION_H */
