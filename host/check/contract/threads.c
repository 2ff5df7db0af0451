/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.c: the group THRD: several threads at once.
 */
#include "host/check/check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "host/check/cases/caps_visit.h"
#include "host/check/cases/rig.h"

enum { NUM_THREADS = 8, ROUNDS = 50 };

/* ---- Questions ------------------------------------------------------------------------------- */

/* The concurrent questions: accepted problems, and the same with defects. */
enum { NUM_QUESTIONS = 4 };

struct question {
    struct rig_question asked;
    const char *features[1];
};

static void spoil(struct question *question, int which)
{
    attn_problem *problem = &question->asked.problems[0];
    question->features[0] = "attn.no_such_feature/1";
    if (which & 1) {
        problem->num_features = 1;
        problem->features = question->features;
        question->asked.bounds.modes |= 1u << 31;
    }
    if (which & 2) {
        question->asked.groups[0].head_dim = 100003;
        rig_spoil_layout(problem);
    }
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* body(work, n) in so many threads, none of which goes before all are there. */
struct team {
    void (*body)(void *work, int n);
    void *work;
    atomic_bool begin;
    struct member {
        pthread_t thread;
        struct team *team;
        int number;
    } members[NUM_THREADS];
};

static void *take_part(void *arg)
{
    const struct member *member = arg;
    while (!atomic_load(&member->team->begin))
        sched_yield();
    member->team->body(member->team->work, member->number);
    return NULL;
}

static void run_at_once(struct check_run *run, int count, void (*body)(void *work, int n),
                        void *work)
{
    struct team team = {.body = body, .work = work};
    int started = 0;
    for (; started < count; started++) {
        struct member *member = &team.members[started];
        *member = (struct member){.team = &team, .number = started};
        if (pthread_create(&member->thread, NULL, take_part, member) != 0)
            break;
    }
    atomic_store(&team.begin, true);
    for (int t = 0; t < started; t++)
        pthread_join(team.members[t].thread, NULL);
    if (started < count)
        check_fail(run, "the system started only %d of %d threads", started, count);
}

/* What all of them ask. */
struct crowd {
    const struct check_subject *subject;
    struct question questions[NUM_QUESTIONS];
    struct caps_answer answers[NUM_QUESTIONS]; /* of one thread alone */
    atomic_int wrong; /* question whose answer differed, from 1; 0 = none */
};

static void ask_often(void *work, int n)
{
    struct crowd *crowd = work;
    struct caps_answer *answer = malloc(sizeof *answer);
    for (int round = 0; answer && round < ROUNDS; round++) {
        int which = (round + n) % NUM_QUESTIONS;
        caps_ask(crowd->subject, &crowd->questions[which].asked.problems[0], answer);
        if (!caps_same_answer(answer, &crowd->answers[which]))
            atomic_store(&crowd->wrong, which + 1);
    }
    free(answer);
}

static void describe_often(void *work, int n)
{
    struct crowd *crowd = work;
    const struct loader_plugin *plugin =
        crowd->subject->host->registry.plugins[crowd->subject->plugin];
    (void)n;
    for (int round = 0; round < ROUNDS; round++)
        for (uint32_t i = 0; i < plugin->num_types; i++) {
            const attn_backend_type *type = NULL;
            if (plugin->table.describe(i, &type, NULL) != ATTN_OK || type != plugin->types[i])
                atomic_store(&crowd->wrong, (int)i + 1);
        }
}

static void run_query(struct check_run *run)
{
    char why[512];
    struct crowd *crowd = calloc(1, sizeof *crowd);
    CHECK_THAT(run, crowd, "no memory for %d threads", NUM_THREADS);
    crowd->subject = run->subject;
    bool found = true;
    for (int q = 0; q < NUM_QUESTIONS && found; q++) {
        struct question *question = &crowd->questions[q];
        found = rig_find(&question->asked, run->subject, why, sizeof why);
        spoil(question, q);
        caps_ask(run->subject, &question->asked.problems[0], &crowd->answers[q]);
    }
    if (found)
        run_at_once(run, NUM_THREADS, ask_often, crowd);
    else
        check_skip(run, "query accepts no plain softmax problem on this device: %s", why);
    if (atomic_load(&crowd->wrong))
        check_fail(run,
                   "of %d threads that call query at once, one gets another answer than alone "
                   "(question %d)",
                   NUM_THREADS, atomic_load(&crowd->wrong) - 1);
    free(crowd);
}

static void run_describe(struct check_run *run)
{
    struct crowd *crowd = calloc(1, sizeof *crowd);
    CHECK_THAT(run, crowd, "no memory for %d threads", NUM_THREADS);
    crowd->subject = run->subject;
    run_at_once(run, NUM_THREADS, describe_often, crowd);
    if (atomic_load(&crowd->wrong))
        check_fail(run, "of %d threads that call describe(%d) at once, one gets another table",
                   NUM_THREADS, atomic_load(&crowd->wrong) - 1);
    free(crowd);
}

/* ---- Two instances --------------------------------------------------------------------------- */

/* A thread with its own instance; the main thread combines the findings. */
struct lane {
    struct check_run run;
    struct rig rig;
    struct rig_session session;
    char *expected[RIG_BATCHES];
};

static void run_lane(void *lanes, int n)
{
    struct lane *lane = (struct lane *)lanes + n;
    if (device_enter(lane->rig.device, check_error(&lane->run)) != ATTN_OK) {
        check_fail(&lane->run, "the device cannot be entered: %s", check_error_text(&lane->run));
        return;
    }
    for (int round = 0; round < 20 && lane->run.code == CHECK_PASS; round++) {
        int batch = round % lane->rig.num_batches;
        char *result = rig_run(&lane->rig, lane->session.metadata, batch);
        const char *what =
            result ? rig_difference(&lane->rig, batch, lane->expected[batch], result) : NULL;
        if (what)
            check_fail(&lane->run,
                       "two instances in two threads: %s of the %s batch differs from that of a "
                       "single instance",
                       what, rig_batch_name(&lane->rig, batch));
        free(result);
    }
    device_leave(lane->rig.device);
}

static bool open_lane(struct lane *lane, struct check_run *run, uint64_t seed)
{
    lane->run = *run;
    lane->run.trail = NULL;
    if (!rig_open(&lane->rig, run, seed))
        return false;
    if (!rig_life(&lane->rig, lane->expected)) {
        rig_close(&lane->rig);
        return false;
    }
    if (rig_session_open(&lane->session, &lane->rig))
        return true;
    rig_free(lane->expected);
    rig_close(&lane->rig);
    return false;
}

static void close_lane(struct lane *lane, struct check_run *run)
{
    if (lane->run.code != CHECK_PASS)
        check_fail(run, "%s", lane->run.text);
    rig_session_close(&lane->session, &lane->rig);
    rig_free(lane->expected);
    rig_close(&lane->rig);
}

static void run_instances(struct check_run *run)
{
    struct lane *lanes = calloc(2, sizeof *lanes);
    CHECK_THAT(run, lanes, "no memory for two threads");
    if (open_lane(&lanes[0], run, run->seed)) {
        if (open_lane(&lanes[1], run, run->seed + 1)) {
            run_at_once(run, 2, run_lane, lanes);
            close_lane(&lanes[1], run);
        }
        close_lane(&lanes[0], run);
    }
    free(lanes);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_thrd[] = {
    CHECK_ROW("THRD-01", describe, NULL, CHECK_ONCE,
              "describe gives eight concurrent threads the same answer as one"),
    CHECK_ROW("THRD-01", query, NULL, 0,
              "query gives eight concurrent threads the same answer as one"),
    CHECK_ROW("THRD-02", instances, rig_count_seeds, 0,
              "two instances on two concurrent threads each give the same results as alone"),
    {.rule = NULL},
};
