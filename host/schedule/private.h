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
 * through `node`, the rest are its own. In the pool of windows it has those from page `passed` on
 * (window.c): those below cached_pages are the prefix cache's, which it holds. State slots of the
 * cache are numbered after those of the rows.
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
    bool encoded;       /* its image is */
    int32_t target;     /* rows to prefill; beyond, rows are decoded */
    int32_t computed;   /* rows in the cache */
    int32_t num_new;    /* rows of the step that is out, but those of DRAFT_EXTEND */
    int32_t undrafted;  /* of the computed ones the last, which the draft model has not seen */
    int32_t state_turn; /* which of the row's state slots has the state */
    int32_t table_changed[SCHEDULER_POOLS]; /* as in scheduler_seq */
    int32_t cached_pages;
    int32_t shared_pages; /* once it decodes: the first ones that are its neighbour's, too */
    int32_t passed;       /* pages from the front that the pool of windows has no more */
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
    int64_t verifications, drafted, accepted, draft_extend, encoded;
    int32_t num_seqs;
    struct flight_seq {
        int64_t request;
        int32_t mark; /* after this step */
    } * seqs;         /* [max_running_requests] */
};

struct pool {
    struct slots slots;
    struct request_table table;   /* all have the same rows */
    int64_t *out_cache_loc;       /* [scheduler_max_tokens()] */
    struct scheduler_move *moves; /* [drafts for each of seqs] */
    int64_t held;                 /* tokens; the most so far */
};

struct scheduler {
    struct scheduler_params params;
    struct pool pools[SCHEDULER_POOLS];
    int num_pools;       /* in which rows take slots: the first ones */
    struct slots states; /* for the prefix cache; zeroed: there are none */
    struct radix_cache *cache;

    struct request *requests;
    int64_t num_requests, max_requests;
    int64_t first_waiting;
    int64_t first_unfinished; /* those before it are finished or dropped */
    int64_t *running;         /* [max_running_requests] numbers */
    int32_t num_running;
    int64_t *decoding; /* [max_running_requests] of these the ones whose prompt is through */
    int32_t num_decoding;

    bool step_is_out;
    struct scheduler_step step;
    struct scheduler_seq *seqs;           /* [max_running_requests] */
    struct scheduler_snapshot *snapshots; /* [scheduler_snapshots_per_seq() for each of seqs] */
    struct draft_tree *trees;             /* [max_running_requests] with drafts, as the next */
    int32_t *moves_indptr;                /* [max_running_requests + 1] */
    token_key *keys;                      /* scratch for the shareable pages of any request */
    int32_t *pages[SCHEDULER_POOLS];      /* likewise */
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

/* The request's row of a pool's table. */
static inline int32_t *row_in(const struct scheduler *scheduler, int pool,
                              const struct request *request)
{
    return request_table_row(&scheduler->pools[pool].table, request->row);
}

/* The page of a pool that has the request's positions from page number `page` on. */
static inline int32_t page_at(const struct scheduler *scheduler, int pool,
                              const struct request *request, int32_t page)
{
    int32_t page_size = scheduler->params.page_size;
    return row_in(scheduler, pool, request)[(size_t)page * (size_t)page_size] / page_size;
}

/* Pages that `rows` rows take, in either pool. */
static inline int32_t pages_of(const struct scheduler *scheduler, int32_t rows)
{
    return slots_pages(&scheduler->pools[SCHEDULER_ALL].slots, rows);
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

/* Of the first `rows` rows of a request, the pages that hold nothing but shareable tokens in
 * complete units, or in the last one, which may be shorter: those that others may see. */
static inline int32_t visible_pages(const struct scheduler *scheduler,
                                    const struct request *request, int32_t rows)
{
    int64_t visible = min_i32(rows, request->shareable);
    if (visible < request->shareable)
        visible -= visible % scheduler->params.share_unit;
    return (int32_t)(visible / scheduler->params.page_size);
}

/* The oldest request that waits; NULL if there is none. */
struct request *scheduler_find_waiting(struct scheduler *scheduler);

/* Write the slots of `count` whole pages into the request's row of a pool's table, from its page
 * number `first` on. */
void scheduler_write_pages(struct scheduler *scheduler, int pool, const struct request *request,
                           int32_t first, int32_t count, const int32_t *pages);

/* Give back all that a running request holds, rows of the step that is out included. */
void scheduler_release(struct scheduler *scheduler, struct request *request);

/* Take back the request that started last: it waits again, and holds nothing. */
void scheduler_retract_last(struct scheduler *scheduler);

/* Pages of a pool that are free or can be evicted from the prefix cache. */
int64_t scheduler_available(const struct scheduler *scheduler, int pool);

/* ---- The pool of windows (window.c); nothing without one ------------------------------------- */

/* Shorten a cached prefix to the part after which the request can start. */
void scheduler_window_cut_prefix(struct scheduler *scheduler, struct request *request);

/* Hold the window before the end of the cached prefix, and list its pages at
 * scheduler->pages[SCHEDULER_WINDOW]; without memory for that the request starts at 0. */
void scheduler_window_hold(struct scheduler *scheduler, struct request *request);

/* Release the request's hold on the prefix cache. */
void scheduler_window_let_go(struct scheduler *scheduler, struct request *request);

/* Free pages that no later row can see. */
void scheduler_window_pass(struct scheduler *scheduler, struct request *request);

/* Pages that a request that is about to start takes until its prompt is through, at most. */
int64_t scheduler_window_need(const struct scheduler *scheduler, const struct request *request);

/* ---- The pool of an encoder's keys (encoder.c); nothing without one -------------------------- */

/* Rows of an encoder in one step, at most, or keys of one; 0 = there is none. */
int32_t scheduler_encoder_rows(const struct scheduler *scheduler);

/* Requests whose keys one step can have. */
int32_t scheduler_encoder_starts(const struct scheduler *scheduler);

/* Is there room for one more request's? */
bool scheduler_encoder_has_room(const struct scheduler *scheduler);

/* Take, and give back, the pages and the row of a request that starts, or stops running. */
void scheduler_encoder_take(struct scheduler *scheduler, const struct request *request);
void scheduler_encoder_give_back(struct scheduler *scheduler, const struct request *request);

/* What a sequence of the step that is being made has of it. */
void scheduler_encoder_emit(struct scheduler *scheduler, struct scheduler_seq *seq);

/* ---- The order of decodes (neighbours.c) ----------------------------------------------------- */

/* The request's prompt is through. */
void scheduler_join_decodes(struct scheduler *scheduler, struct request *request);

/* It ends, or is taken back; nothing if it does not decode. */
void scheduler_leave_decodes(struct scheduler *scheduler, const struct request *request);

/* ---- Planning -------------------------------------------------------------------------------- */

/* Fill in scheduler->step, but for its number, with what shall run now, and allocate its slots. No
 * sequence: nothing runs, and no request has arrived by now_us. */
void scheduler_plan(struct scheduler *scheduler, int64_t now_us);

#endif /* HOST_SCHEDULE_PRIVATE_H */
