/* SPDX-License-Identifier: Apache-2.0
 *
 * private.h: the scheduler's data, for scheduler.c, schedule/plan.c and
 * schedule/flight.c alone.
 *
 * Requests lie in one array by number, each in one of five states. Waiting ones need no queue: as
 * running requests are older than waiting ones, they are those at and beyond `first_waiting` in the
 * state of waiting. `running` is in ascending order for the same reason: a start appends, a
 * retraction takes the last.
 *
 * A running request's pages, by position: the first cached_pages are the prefix cache's and locked
 * through `node`, the rest are its own. State slots of the cache are numbered after those of the
 * rows.
 */
#ifndef HOST_SCHEDULE_PRIVATE_H
#define HOST_SCHEDULE_PRIVATE_H

#include "host/cache/radix_cache.h"
#include "host/schedule/scheduler.h"
#include "host/cache/slots.h"

enum request_state {
    REQUEST_WAITING,
    REQUEST_RUNNING,
    REQUEST_THROUGH, /* all rows launched, nothing held; the last step is not confirmed */
    REQUEST_FINISHED,
    REQUEST_DROPPED
};

/* A snapshot that waits for its page to be published: that of the step, or the one where the cached
 * pages went further than the states. */
struct snapshot {
    int32_t rows; /* after which it was taken */
    int32_t slot; /* of scheduler.states */
};

struct request {
    int64_t arrival_us;
    int32_t input_length;
    int32_t shareable; /* tokens; 0 without a prefix cache */
    int32_t num_rows;  /* prompt and decode */
    int32_t mark;      /* positions that ever had KV, by steps in flight included */
    int32_t confirmed; /* the same by confirmed steps alone: the mark after a device loss */
    enum request_state state;
    /* while it runs */
    int32_t row;
    int32_t target;        /* rows to prefill; beyond, rows are decoded */
    int32_t computed;      /* rows in the cache */
    int32_t num_new;       /* rows of the step that is out, but those of DRAFT_EXTEND */
    int32_t undrafted;     /* of the computed ones the last, which the draft model has not seen */
    int32_t state_turn;    /* which of the row's state slots has the state */
    int32_t table_changed; /* as in scheduler_seq */
    int32_t cached_pages;
    struct radix_node *node;
    struct radix_node *state_node; /* whose state, pinned, its first step reads; NULL = none */
    int32_t parted_at;             /* rows whose pages were cached when it started */
    int32_t num_snapshots;
    struct snapshot snapshots[SCHEDULER_SNAPSHOTS_OF_PROMPT];
};

/* A step in flight: what confirming it will add. A retraction does not touch it, since rows in
 * flight are computed all the same. */
struct flight {
    int64_t prefill, decode, prefix_hit, recomputed; /* rows */
    int64_t verifications, drafted, accepted, draft_extend;
    int32_t num_seqs;
    struct flight_seq {
        int64_t request;
        int32_t mark; /* after this step */
    } * seqs;         /* [max_running_requests] */
};

struct scheduler {
    struct scheduler_params params;
    struct slots slots;
    struct slots states; /* for the prefix cache; zeroed: there are none */
    struct request_table table;
    struct radix_cache *cache;

    struct request *requests;
    int64_t num_requests, max_requests;
    int64_t first_waiting;
    int64_t *running; /* [max_running_requests] numbers */
    int32_t num_running;

    bool step_is_out;
    struct scheduler_step step;
    struct scheduler_seq *seqs;           /* [max_running_requests] */
    int64_t *out_cache_loc;               /* [scheduler_max_tokens()] */
    struct scheduler_snapshot *snapshots; /* [scheduler_snapshots_per_seq() for each of seqs] */
    struct draft_tree *trees;             /* [max_running_requests] with drafts, as the next two */
    int32_t *moves_indptr;                /* [max_running_requests + 1] */
    struct scheduler_move *moves;         /* [drafts for each of seqs] */
    token_key *keys;                      /* scratch for the shareable pages of any request */
    int32_t *pages;                       /* likewise */
    int64_t scratch_pages;

    struct flight *flights; /* ring [params.max_in_flight] */
    struct flight_seq *flight_seqs;
    int64_t oldest_flight;
    int32_t num_flights;

    struct scheduler_counts counts;
};

static inline int32_t min_i32(int32_t x, int32_t y)
{
    return x < y ? x : y;
}

static inline int32_t max_i32(int32_t x, int32_t y)
{
    return x > y ? x : y;
}

static inline int64_t number_of(const struct scheduler *scheduler, const struct request *request)
{
    return request - scheduler->requests;
}

static inline struct request *running_at(const struct scheduler *scheduler, int32_t index)
{
    return &scheduler->requests[scheduler->running[index]];
}

/* Is the request through with its prompt? */
static inline bool is_decoding(const struct request *request)
{
    return request->computed >= request->target;
}

/* The state slot of a running request `turns` turns after the one that has its state. */
static inline int32_t state_slot(const struct scheduler *scheduler, const struct request *request,
                                 int32_t turns)
{
    const struct drafts *drafts = &scheduler->params.drafts;
    int32_t slots = drafts->tokens + 1;
    return 1 + (request->row - 1) * slots + (request->state_turn + turns) % slots;
}

/* Of the first `rows` rows of a request, the pages that hold nothing but complete units of
 * shareable tokens: those that others may see. */
static inline int32_t visible_pages(const struct scheduler *scheduler,
                                    const struct request *request, int32_t rows)
{
    int64_t visible = min_i32(rows, request->shareable);
    visible -= request->shareable > 0 ? visible % scheduler->params.share_unit : 0;
    return (int32_t)(visible / scheduler->slots.page_size);
}

/* The oldest request that waits; NULL if there is none. */
struct request *scheduler_find_waiting(struct scheduler *scheduler);

/* Write the slots of `count` whole pages into the request's row of req_to_token, from its page
 * number `first` on. */
void scheduler_write_pages(struct scheduler *scheduler, const struct request *request,
                           int32_t first, int32_t count, const int32_t *pages);

/* Give back all that a running request holds, rows of the step that is out included. */
void scheduler_release(struct scheduler *scheduler, struct request *request);

/* Take back the request that started last: it waits again, and holds nothing. */
void scheduler_retract_last(struct scheduler *scheduler);

/* Fill in scheduler->step, but for its number, with what shall run now, and allocate its slots. No
 * sequence: nothing runs, and no request has arrived by now_us. */
void scheduler_plan(struct scheduler *scheduler, int64_t now_us);

#endif /* HOST_SCHEDULE_PRIVATE_H */
