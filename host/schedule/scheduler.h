/* SPDX-License-Identifier: Apache-2.0
 *
 * scheduler.h: continuous batching; which rows of which requests make up the next step.
 *
 *   scheduler_add()*  ->  scheduler_next()  ->  the caller runs the step  ->  scheduler_complete()
 *                              ^                                                     |
 *                              +-----------------------------------------------------+
 *
 * or, with steps in flight,
 *
 *   scheduler_add()*  ->  scheduler_next()  ->  the caller launches it  ->  scheduler_advance()
 *                              ^                                                    |
 *                              +------ scheduler_confirm() for each that ended -----+
 *
 * Rows. A request of input length L and output length n computes the KV of L prompt rows and, as
 * its first output token comes from prefill, of n - 1 decode rows (none for n = 0). A row is one
 * token at one position.
 *
 * Policy. Requests start in the order in which they were added. As in SGLang, prefill goes before
 * decode: while there is a prompt to compute, or one that can start, steps are EXTEND, else DECODE
 * of everything that runs. A step has at most chunked_prefill_size prompt rows; a prompt that is
 * cut there goes on first in the next step, so at most one is in pieces. With `mixed`, decode rows
 * join every step that has prompt rows (they do not count towards the chunk size), and those are
 * MIXED. With `whole_prompts`, as encoders need it, prompts are not cut.
 *
 * Memory. A request starts when the pages of its prompt are free or can be evicted from the prefix
 * cache, with a reserve of 20 decode rows (or what is left, if less) for itself and everything that
 * runs, so that it is not soon thrown out again. When a decode row finds no page, the request that
 * started last is retracted: its pages are freed, and it waits in front of those that have not
 * started. So the requests that run are always older than those that wait, the oldest is never
 * retracted, and as each fits the pool alone (scheduler_add() sees to that), each one ends.
 *
 * A retracted request prefills again exactly the rows it had, then goes on.
 *
 * Prefix cache. Of a request's tokens the first shareable_length may be equal to another's; they
 * become visible to later requests in units of share_unit tokens when the prefill step that
 * completes the unit, or has the last shareable token, was launched, cut to whole pages. A request starts after the longest prefix
 * that is cached, but computes at least its last prompt row itself. Whatever two requests computed
 * twice, because none saw the other's, is kept once. With await_prefix a request does not start in a
 * step that computes SCHEDULER_AWAITED tokens or more which it would find cached in the next one.
 *
 * Nothing depends on the outputs of a step, and the order of everything is deterministic unless a
 * clock is given. One step at a time is out: scheduler_next() must not be called before the step
 * before it was advanced, completed, dropped or lost.
 *
 * Steps in flight. As no plan depends on outputs, the next step can be planned while launched ones
 * still run, if the device runs them in the order in which they were launched: pages that a
 * launched step gives up are handed out at once, for a step that writes them comes later, and
 * shared prefixes are visible at once, for a step that reads them comes later too. So the sequence
 * of steps does not depend on how many are in flight. What does wait for the end of a step is what
 * is said of it: counts, and what a request has computed for good, follow confirmed steps alone.
 *
 * Encoders. With encoder_len a request begins with as many rows of an encoder, a vision tower,
 * which sees them all and caches nothing. They run in steps of their own, MODE_ENCODE, before the
 * step that has the first rows of its prompt, in as many as it takes; after a retraction once more.
 *
 * Cross attention. With cross_len every request has as many keys of an encoder, in a pool of their
 * own: their pages are taken when it starts, and given back when it ends or is retracted. They are
 * written in its first step, of which one has as many requests as there is room for their keys in a
 * step of encoders. What a prefix's KV is depends on what its request's encoder read, so there is
 * no prefix cache.
 *
 * Drafts (drafts.h). With drafts there are no DECODE steps: a step of everything that decodes is
 * TARGET_VERIFY, in which each request has the same number of rows, the root and its drafts. What
 * is accepted is drawn, so it is known when the step is planned: at its end the rows that stay are
 * moved together (`moves`), and the pages beyond them are given back when the step is advanced. The
 * draft model runs over the rows that stayed in the step after, DRAFT_EXTEND, which goes before
 * everything else; a request that has ended, or was retracted meanwhile, is not in it. So rows that
 * are decode rows in the counts are those that stayed. A recurrent state cannot take a row back:
 * with has_state, each request has a state slot for every row of a verification, and goes on from
 * the one after the last row that stayed.
 *
 * Pools. Layers share one slot space, unless there is a pool for those with a sliding window: then
 * each has slots, pages and a table of its own. A new row takes a slot in either. In the pool of
 * windows pages are given back as soon as no row to come can see them, and their entries of the
 * table are 0. A cached prefix is of use there only as far as the window before its end is cached,
 * too: window pages of the prefix cache go first where that pool runs out.
 *
 * States. With has_state every request has one recurrent state (of all layers alike), in the state
 * slot that its row of the table names, 1 .. max_running_requests without drafts. A cached page is
 * of use to such a request only if the state after it was kept, too. So the last row of each
 * prefill step after which pages become visible leaves a copy of the state, a snapshot, in one of
 * num_cached_states further slots, and a request starts at the deepest snapshot of its cached
 * prefix: its first step reads that one and writes its own, which leaves the shared one whole.
 * Where the cached pages reach further than the states do, two requests have parted in the midst of
 * what one step computed; then another snapshot is taken at that very page, and the next such
 * request starts there.
 */
#ifndef HOST_SCHEDULE_SCHEDULER_H
#define HOST_SCHEDULE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "attn_problem.h"
#include "host/cache/request_table.h"
#include "host/schedule/drafts.h"
#include "host/workload/token_key.h"

struct scheduler;

/* Pools of KV: of every position, and of those that a window still sees; and that of an encoder's
 * keys, in which rows take no slots. */
enum {
    SCHEDULER_ALL,
    SCHEDULER_WINDOW,
    SCHEDULER_ROW_POOLS,
    SCHEDULER_ENCODER = SCHEDULER_ROW_POOLS,
    SCHEDULER_POOLS
};

/* The keys that layers with a pool of their own see: query i those from i - left on (left < 0: no
 * limit), and those of its chunk (0: no limit); if both are set, those that either allows. */
struct scheduler_window {
    int64_t num_pages; /* page 0 included; 0 = there is no such pool */
    int32_t left, chunk;
};

/* The shortest prefix that is worth a step: SGLang defers requests for as much
 * (IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD). */
enum { SCHEDULER_AWAITED = 32 };

/* The mode of steps in which encoders run next to a decoder. */
enum { SCHEDULER_MODE_ENCODE = ATTN_MODE_COUNT };

struct scheduler_params {
    int32_t page_size; /* tokens */
    int64_t num_pages; /* page 0, the padding, included */
    struct scheduler_window window;
    int32_t max_running_requests; /* rows of req_to_token, less row 0 */
    int32_t max_context_len;      /* elements of a row */
    int32_t chunked_prefill_size; /* prompt rows of a step; <= 0: no limit */
    bool mixed;                   /* prompt and decode rows in one step */
    bool await_prefix;            /* requests wait for a prefix that the step computes */
    bool whole_prompts; /* a prompt is never cut: the next one waits if the step has no room for */
                        /* it; one that is longer than a step by itself is refused */
    int32_t max_in_flight;     /* steps launched and not confirmed; 0 = 1 */
    bool prefix_cache;         /* false: nothing is shared, `keys` is not called */
    bool has_state;            /* recurrent layers */
    struct drafts drafts;      /* zeros: there are none; not with `mixed` */
    bool draft_model;          /* it has layers of its own, which DRAFT_EXTEND steps run */
    int64_t num_cached_states; /* with has_state: slots after those of the rows; 0 = nothing is */
                               /* shared */
    int32_t encoder_len; /* tokens of an image that is before each prompt; 0 = there is none */
    int32_t cross_len;   /* keys of an encoder that each request has; 0 = no cross attention */
    int64_t num_encoder_pages; /* of their pool, page 0 included; 0 without */
    int64_t share_unit;        /* tokens, >= 1: a trace's block */

    /* The identities of `count` tokens of `request` from `position` on; called for positions below
     * shareable_length only. */
    void (*keys)(void *keys_context, int64_t request, int64_t position, int64_t count,
                 token_key *keys);
    void *keys_context;

    /* The time on the scale of arrival_us. NULL = virtual clock: all requests have arrived. */
    int64_t (*now_us)(void *clock_context);
    void *clock_context;
};

struct scheduler_request {
    int64_t input_length;     /* tokens, >= 1 */
    int64_t output_length;    /* tokens, >= 0 */
    int64_t shareable_length; /* tokens, 0 .. input_length */
    int64_t arrival_us;       /* not started before; in order of addition, none overtakes */
};

/* One sequence of a step: rows at positions [prefix_len, prefix_len + num_new); in a verification
 * row r is at the position that its depth says, and has the slot of position prefix_len + r. */
struct scheduler_seq {
    int64_t request;
    int32_t row;        /* of req_to_token */
    int32_t prefix_len; /* tokens before the first query, all in the cache */
    int32_t num_new;    /* >= 1 */
    /* In each pool the first position whose entry in the row is not as the request's step before
     * had it; <= prefix_len, 0 in its first step. */
    int32_t table_changed[SCHEDULER_POOLS];
    int32_t shared_len;  /* of a sequence that decodes the first tokens, whole pages, whose KV it */
                         /* shares with the one before it, in the pool of all positions */
    int32_t encoder_len; /* keys of an encoder; 0 = it has none */
    int32_t encoder_new; /* of these the ones that are written in this step: all, or none */
    int32_t state_slot;  /* state to start from; 0 = zero, or there is none */
    int32_t state_dst;   /* where the state goes; 0 = there is none */
};

/* Further rows whose state is wanted: a state slot gets the state after a row of the step. At most
 * so many of a sequence: two of a prompt, all rows but the last of a verification. */
enum { SCHEDULER_SNAPSHOTS_OF_PROMPT = 2 };
static inline int32_t scheduler_snapshots_per_seq(const struct drafts *drafts)
{
    int32_t drafted = drafts_rows(drafts) - 1;
    return drafted > SCHEDULER_SNAPSHOTS_OF_PROMPT ? drafted : SCHEDULER_SNAPSHOTS_OF_PROMPT;
}

struct scheduler_snapshot {
    int32_t row; /* of the step */
    int32_t slot;
};

/* After the step what lies in slot `from` moves to slot `to`, in every cache. */
struct scheduler_move {
    int32_t from, to;
};

/* A pool's part of a step. */
struct scheduler_step_pool {
    const int64_t *out_cache_loc;       /* [num_tokens] slots of the rows, sequence by sequence; */
                                        /* of an encoder's new keys, likewise */
    const struct scheduler_move *moves; /* of a verification: moves_indptr's */
};

/* What to run. Extend sequences first, in order of start; decode sequences last: those that share
 * a prefix side by side, and otherwise in order of start. */
struct scheduler_step {
    int64_t number;                   /* of this step, from 0; one that failed counts */
    uint32_t mode;                    /* ATTN_MODE_EXTEND, _DECODE or _MIXED; with drafts */
                                      /* _EXTEND, _TARGET_VERIFY or _DRAFT_EXTEND */
    int32_t num_seqs;                 /* >= 1 */
    int32_t num_decode_seqs;          /* all in DECODE, the last ones in MIXED, 0 in EXTEND */
    int32_t num_tokens;               /* sum of num_new */
    int32_t max_q_len;                /* largest num_new */
    int32_t max_kv_len;               /* largest prefix_len + num_new */
    const struct scheduler_seq *seqs; /* [num_seqs] */
    int32_t num_encoder_new;          /* sum of encoder_new */
    struct scheduler_step_pool pools[SCHEDULER_POOLS]; /* zeros where there is no such pool */
    int32_t num_snapshots;
    const struct scheduler_snapshot *snapshots; /* [num_snapshots] ascending by row */
    const struct draft_tree *trees;             /* [num_seqs] TARGET_VERIFY; else NULL */
    const int32_t *moves_indptr; /* [num_seqs + 1] likewise, into each pool's moves, */
                                 /* to be made in this order in a sequence */
};

enum scheduler_state {
    SCHEDULER_STEP,  /* here is a step */
    SCHEDULER_WAIT,  /* no request has arrived, and nothing is in flight; come back at *wake_us */
    SCHEDULER_DRAIN, /* no step now, but some are in flight: confirm the oldest, then ask again */
    SCHEDULER_DONE   /* every request has ended, and nothing is in flight */
};

/* Tokens that the pages of a pool hold. */
struct scheduler_pool_counts {
    int64_t capacity;
    int64_t used; /* that pages are allocated for now, cached ones included */
    int64_t peak; /* most that were */
    int64_t held; /* most that were at a step, without what the prefix cache alone keeps */
};

/* Every request keeps a mark: its positions that ever had KV, computed or found. Rows computed
 * below the mark are recomputed rows, cached positions above it are hits. So once all have
 * finished, prefill + prefix_hit - recomputed = sum of input lengths, and decode = sum of max(0,
 * output length - 1). Rows, steps and the end of a request count when the step is confirmed: one
 * that failed, or was lost with the device, counts nothing, and what it did to marks is undone. */
struct scheduler_counts {
    int64_t requests; /* added */
    int64_t finished;
    int64_t dropped;
    int64_t retractions;   /* counted at once: a plan or a loss made them */
    int64_t steps;         /* confirmed */
    int64_t prefill;       /* rows computed in prefill, the recomputed ones included */
    int64_t decode;        /* rows; of verifications those that stayed */
    int64_t verifications; /* of a request */
    int64_t drafted;       /* rows of verifications, roots aside */
    int64_t accepted;      /* of these those that stayed */
    int64_t draft_extend;  /* rows of DRAFT_EXTEND */
    int64_t encoded;       /* rows of encoders */
    int64_t prefix_hit;    /* rows */
    int64_t recomputed;    /* rows */
    struct scheduler_pool_counts pools[SCHEDULER_POOLS];
    int64_t state_capacity; /* states that can be cached */
    int64_t state_peak;     /* most that were */
};

/* The params are copied; what they point to must live on. INVALID_ARGUMENT: something is out of
 * range. OUT_OF_HOST_MEMORY. */
attn_status scheduler_create(const struct scheduler_params *params, struct scheduler **scheduler,
                             attn_error *error);

/* NULL is accepted, at any time. */
void scheduler_destroy(struct scheduler *scheduler);

/* Is a prompt that is not cut short enough for a step of `chunk` tokens (0 and less = no limit)?
 * CONFIG_ERROR names `request`. */
attn_status scheduler_check_whole(int64_t request, int64_t input_length, int64_t chunk,
                                  attn_error *error);

/* KV rows of a request at most: its prompt, and all outputs but the last; beyond them the drafts of
 * its last verification. */
int64_t scheduler_rows_at_most(const struct drafts *drafts, int64_t input_length,
                               int64_t output_length);

/* Can request `number` run by itself in pools of these sizes, with these drafts? Of its lengths
 * both are in range, and no other member is read. CONFIG_ERROR: it could never end; the message has
 * the numbers. */
attn_status scheduler_check_pools(const struct scheduler_params *params, int64_t number,
                                  const struct scheduler_request *request, attn_error *error);

/* Queue a request; its number is the count of those added before. Not while a step is out.
 * INVALID_ARGUMENT: a length is out of range. CONFIG_ERROR: it has more rows than max_context_len,
 * or than the pool has slots, so that it could never end; the message has the numbers.
 * OUT_OF_HOST_MEMORY. On failure it is not queued. */
attn_status scheduler_add(struct scheduler *scheduler, const struct scheduler_request *request,
                          attn_error *error);

/* Plan the next step: slots are allocated, written to req_to_token and listed in *step, which stays
 * valid, as does req_to_token, until the step is advanced, completed, dropped or lost: a device
 * that reads either later reads a copy. Sets *step only with SCHEDULER_STEP, *wake_us only with
 * SCHEDULER_WAIT. SCHEDULER_DRAIN goes before SCHEDULER_WAIT, so a caller that waits for arrivals
 * keeps no ended step unconfirmed. Cannot fail. */
enum scheduler_state scheduler_next(struct scheduler *scheduler, const struct scheduler_step **step,
                                    int64_t *wake_us);

/* The step that is out was launched, and is in flight now: its requests advance, what they can
 * share becomes visible, those that are through give back their memory. */
void scheduler_advance(struct scheduler *scheduler);

/* The oldest step in flight has ended well: it is counted, and requests that it completed have
 * finished. A step may be out. */
void scheduler_confirm(struct scheduler *scheduler);

/* The step that is out ran: scheduler_advance() and scheduler_confirm(). No other is in flight. */
void scheduler_complete(struct scheduler *scheduler);

/* The step that is out failed, and the device is fine: its requests are dropped. It was not
 * launched; or as far as it was, it runs between the steps before and after it. Steps in flight go
 * on, and rows that these requests have in them still count. */
void scheduler_drop(struct scheduler *scheduler);

/* The steps in flight failed, and with them the step that is out, if one is. None of them runs any
 * more, and the device is fine: all requests that have rows in them are dropped, those that they
 * completed or that were retracted since included. What they wrote is gone from the prefix cache,
 * and, for simplicity, whatever else no running request holds. */
void scheduler_drop_flight(struct scheduler *scheduler);

/* The device and all KV are lost, with the steps in flight and the one that is out: every request
 * that runs is retracted, those that an unconfirmed step completed wait again, and the prefix cache
 * is emptied. No request is lost; each goes on from what was confirmed. */
void scheduler_device_lost(struct scheduler *scheduler);

/* Steps launched and neither confirmed nor lost; the one that is out is not among them. */
int32_t scheduler_in_flight(const struct scheduler *scheduler);

/* The lowest request that can still have rows: those below it are finished or dropped, and in no
 * step in flight. */
int64_t scheduler_first_unfinished(struct scheduler *scheduler);

/* A page of a pool, or a state slot that the cache had, which was given back and not handed out again, and was not named
 * before; 0 = there is none. In steps that are launched from now on nothing reads what it holds. */
int32_t scheduler_next_freed(struct scheduler *scheduler, int pool);
int32_t scheduler_next_freed_state(struct scheduler *scheduler);

/* A pool's req_to_token; owned by the scheduler, as large as the params say. */
const struct request_table *scheduler_request_table(const struct scheduler *scheduler, int pool);

/* In how many pools rows take slots: the first ones. */
int scheduler_num_pools(const struct scheduler *scheduler);

/* Is there such a pool? */
bool scheduler_has_pool(const struct scheduler *scheduler, int pool);

/* Pages that one request, with so many positions at a time in a step, takes at most of the pool of
 * windows. */
int64_t scheduler_window_pages(const struct scheduler_params *params, int64_t positions);

/* State slots of the rows of the table: those of cached states come after them. */
int64_t scheduler_row_states(const struct scheduler_params *params);

/* The most rows that a step can have. */
int64_t scheduler_max_tokens(const struct scheduler *scheduler);

void scheduler_count(const struct scheduler *scheduler, struct scheduler_counts *counts);

/* Empty the prefix cache; returns capacity - free of a pool, in tokens: 0 once every request has
 * ended, or pages have leaked. */
int64_t scheduler_leaked(struct scheduler *scheduler, int pool);

/* The same of slots for cached states. */
int64_t scheduler_leaked_states(struct scheduler *scheduler);

#endif /* HOST_SCHEDULE_SCHEDULER_H */
