/* SPDX-License-Identifier: Apache-2.0
 *
 * scheduler_fixture.h: what the tests of the scheduler run its steps on. All of it is a global that
 * a test may change after set_up(), before create().
 *
 * Each step is run on a cache that holds token keys for KV: rows write their token's key to
 * out_cache_loc, then every sequence must find, through req_to_token, the keys of all its tokens.
 * So a page that is handed out twice, freed too early, shared wrongly or listed wrongly shows. In a
 * pool of windows these are the tokens that its rows see; pages before them must be given back.
 * Of cross attention each sequence must
 * find the keys of its own encoder, which its first step wrote. With has_state every state slot
 * holds a hash of the tokens that went into it, in order, and a sequence must find that of all
 * tokens before its rows. Drafts that are turned down write keys that no token has; what is
 * accepted moves as the step says. What was computed, hit and computed again is counted here once
 * more from the steps alone.
 */
#ifndef TESTS_SCHEDULER_FIXTURE_H
#define TESTS_SCHEDULER_FIXTURE_H

#include "host/base/error.h"
#include "host/schedule/scheduler.h"
#include "tests/tools/test_main.h"

#define MAX_REQUESTS 80
#define MAX_BLOCKS   8
#define MAX_CONTEXT  256
#define MAX_SLOTS    4096
#define MAX_ROWS     17
#define MAX_STEPS    100000
#define MAX_STATES   192
#define MAX_DRAFTED  8

/* What a trace would say. */
struct source {
    int64_t num_requests;
    int64_t block_size;
    struct {
        int64_t input, output, arrival_us;
        int64_t num_whole;
        int64_t hash_ids[MAX_BLOCKS];
    } requests[MAX_REQUESTS];
};

/* The sums over steps. */
struct tally {
    int32_t computed[MAX_REQUESTS]; /* rows in the cache */
    int32_t mark[MAX_REQUESTS];     /* rows that ever were */
    int64_t prefill, decode, prefix_hit, recomputed;
};

/* What the steps have shown so far, in the order in which they ran. */
struct model {
    struct tally rows;
    bool dropped[MAX_REQUESTS];
    token_key kv[SCHEDULER_POOLS][MAX_SLOTS];
    uint64_t state[MAX_STATES];
    int32_t undrafted[MAX_REQUESTS]; /* rows that the draft model has not seen */
    int64_t draft_rows;
    int32_t table[SCHEDULER_POOLS][MAX_ROWS][MAX_CONTEXT]; /* copied where a step says it changed */
    int64_t mixed_steps;
    uint64_t hash; /* of all that was ever scheduled */
};

extern struct source source;
extern struct model model;
extern struct scheduler_params params;
extern struct scheduler *scheduler;
extern host_error failure;

/* The prefix cache may keep a page of windows that was passed, as it had no memory to part it from
 * others. */
extern bool passes_late;

void set_up(void);
void tear_down(void);

/* An assertion for what is looked at a million times, where Check's own are too slow. */
static inline void require(bool holds, const char *what, int64_t request)
{
    if (!holds)
        ck_abort_msg("request %lld: %s", (long long)request, what);
}

/* One more request, whose whole blocks have the ids blocks[0], blocks[1] ... */
void add_to_source(int64_t input, int64_t output, const char *blocks);

/* Several: input+output, or input+output:blocks, of each. */
void add_requests(const char *words);

/* Queue a request of the source; a scheduler with none, with all of them queued. */
attn_status add(int64_t request);
void create_empty(void);
void create(void);
void create_with(const char *requests); /* added first */

/* Prompt and decode rows of a request. */
int64_t rows_of(int64_t request);

/* ---- Random workloads ------------------------------------------------------------------------ */

/* 0 .. below - 1; a function of `draws`, which counts them and which a test may set. */
extern uint64_t draws;
int64_t draw(int64_t below);

extern const int32_t page_sizes[3];
extern const int32_t chunk_sizes[4];

void draw_source(int64_t num_requests, int64_t most_output);

/* Workloads in pools that are too small for them: page size, chunk, mixed, requests at a time, and
 * cached states: no states at all, some, too few. */
#define VARIANTS (3 * 4 * 2 * 2 * 3)
void set_variant(int variant);

/* A pool of windows: none in half of the variants; windows and chunks, alone and together. */
void set_window(int variant);

/* The first position that a query sees there, as the definition of a window and a chunk has it. */
int64_t first_seen(int64_t position);

/* Cross attention: encoders of several lengths, in a pool that has room for some of the requests.
 */
#define CROSS_VARIANTS (3 * 4 * 2 * 2)
void set_cross_variant(int variant);

/* The same with drafts, and without mixed steps: chains and, where there are no states, trees;
 * drafts that are never, sometimes and always right; with a draft model or without. */
#define DRAFTED_VARIANTS (3 * 4 * 2 * 3)
void set_drafted_variant(int variant);

/* There are so few cached states that all may be gone before they are of use. */
static inline bool has_few_states(void)
{
    return params.has_state && params.num_cached_states == 3;
}

/* ---- Running steps --------------------------------------------------------------------------- */

/* Another argument of tally_seq(): the sequence decodes, and so many of its rows stay. */
enum { TALLY_PROMPT = 0, TALLY_DRAFT_EXTEND = -1 };
int32_t committed_of(const struct scheduler_step *step, int32_t seq);

/* Count a sequence, whose rows must be those that its request needs next. */
void tally_seq(struct tally *tally, const struct scheduler_seq *seq, int32_t committed);

/* Run a step on the model. */
void run_step(const struct scheduler_step *step);

/* The next step, which there must be; the same, run. */
const struct scheduler_step *next(void);
const struct scheduler_step *next_run(void);

/* The next step is run and completed. It is this one, in words: its mode and, for each sequence,
 * request:rows in the cache+new rows; NULL stands for any. */
void schedule(const char *words);

/* Complete one step after the other, as long as there is one; with what expect_counts() says. */
void run_all(void);
const struct scheduler_counts *run_out(void);

/* These slots hold nothing of use, nor do the states that these sequences wrote. */
void poison_slots(int pool, const int64_t *slots, int64_t count);
void poison_states(const struct scheduler_seq *seqs, int32_t num_seqs,
                   const struct scheduler_snapshot *snapshots, int32_t num_snapshots);

/* The device is lost: KV, tables and all rows beyond `kept` are gone. */
void lose_model(const struct tally *kept);

/* For params.now_us: *(int64_t *)context. */
int64_t read_clock(void *context);

/* ---- Expectations ---------------------------------------------------------------------------- */

void expect_seq(const struct scheduler_step *step, int32_t index, int64_t request,
                int32_t prefix_len, int32_t num_new);
void expect_done(void);

/* All requests ended and every figure is what the steps showed, and what the lengths demand. */
const struct scheduler_counts *expect_counts(void);

#endif /* TESTS_SCHEDULER_FIXTURE_H */
