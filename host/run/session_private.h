/* SPDX-License-Identifier: Apache-2.0
 *
 * session_private.h: shared by session.c (the stages of a run) and serve.c (its steps).
 */
#ifndef HOST_RUN_SESSION_PRIVATE_H
#define HOST_RUN_SESSION_PRIVATE_H

#include "host/base/error.h"
#include "host/run/row_check.h"
#include "host/schedule/scheduler.h"
#include "host/run/session.h"

/* All parts of a run, in order of creation. */
struct session {
    const struct session_params *params;
    const struct config *config;
    struct report *report;
    struct session_result *result;
    attnhost *host;
    struct model *model;
    attn_device described;
    struct trace trace;
    struct workload workload;
    struct selection *selection;
    struct device *device;
    int64_t num_pages;              /* page 0 included */
    struct scheduler_window window; /* zeros: there is no pool of layers with windows or chunks */
    int64_t num_encoder_pages;      /* likewise; 0 = there is no cross attention */
    bool has_state;                 /* recurrent layers */
    int64_t num_cached_states;
    struct kv_pool *pool;
    generator_layer *layers; /* [model.num_layers] */
    struct generator generator;
    struct scheduler *scheduler;
    float *scale_values;             /* k scales, then v scales of the KV cache */
    struct verify_scales *scales;    /* [model.num_groups] */
    uint32_t *reads_new_unquantised; /* [model.num_groups] */
    attn_bounds bounds;              /* of the largest step */
    struct row_check *check;
    struct executor *executor;
    int losses; /* of the device, since a step was confirmed */
    int64_t start_ns;
    int64_t failed_steps;
    host_error failure; /* of the first step that failed */
};

/* Has the run finished, so that any page still held is leaked? */
static inline bool session_is_whole(const struct session *s)
{
    return !s->report->interrupted && !s->report->ended_by[0];
}

/* Losses in a row, without a step confirmed in between, after which a run gives up. */
enum { SESSION_MAX_LOSSES = 3 };

/* Allocate the KV pool, compose the backends, make what runs steps; once more if the device is lost
 * meanwhile. */
attn_status session_make_device_side(struct session *s, attn_error *error);

/* After a loss: nothing on the device outlives it, so nothing there is kept. DEVICE_LOST if that
 * was one loss too many, or the driver gives no new context; *error is written in the latter case.
 */
attn_status session_reset_device(struct session *s, attn_error *error);

/* ---- Pools (session_pools.c) ----------------------------------------------------------------- */

/* Tokens of the image before each prompt; 0: the model has no vision tower. */
int32_t session_encoder_len(const struct session *s);

/* The larger of that and the keys of an encoder that cross attention has for each request. */
int32_t session_encoded_len(const struct session *s);

/* Positions beyond a request's last row that drafts are verified at. */
int32_t session_beyond(const struct session *s);

/* scheduler_rows_at_most() of one request. */
int64_t session_request_rows(const struct session *s, const workload_request *request);

/* Slot 0, those of the requests that run, those of the prefix cache. */
int64_t session_num_state_slots(const struct session *s);

/* Compute the pools' sizes; allocate their memory; report their use. */
attn_status session_size_pool(struct session *s, attn_error *error);
attn_status session_allocate_pool(struct session *s, attn_error *error);
attn_status session_report_pools(struct session *s, attn_error *error);

/* serve.c: run every request to its end. */
attn_status session_serve(struct session *s, attn_error *error);

#endif /* HOST_RUN_SESSION_PRIVATE_H */
