/* SPDX-License-Identifier: Apache-2.0
 *
 * life.c: the group LIFE: the order of calls, and the state that they leave; check/contract/leak.c
 * counts memory. */
#include "host/check/check.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/check/cases/process_resources.h"
#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"
#include "host/base/clock.h"

/* ---- Describe -------------------------------------------------------------------------------- */

static const struct loader_plugin *record_of(const struct check_run *run)
{
    return run->subject->host->registry.plugins[run->subject->plugin];
}

/* Describe all types once: the same tables as at load. */
static void describe_all(struct check_run *run)
{
    const struct loader_plugin *plugin = record_of(run);
    for (uint32_t i = 0; i < plugin->num_types; i++) {
        const attn_backend_type *type = NULL;
        attn_status status = plugin->table.describe(i, &type, check_error(run));
        CHECK_THAT(run, status == ATTN_OK, "describe(%u): %s: %s", i, host_status_name(status),
                   check_error_text(run));
        CHECK_THAT(run, type == plugin->types[i], "describe(%u) gives another table than at load",
                   i);
    }
}

static void run_describe(struct check_run *run)
{
    struct process_resources before, after;
    double milliseconds = 100;
    process_take(&before);
    for (int n = 0; n < 5 && milliseconds >= 100; n++) { /* load is not the plugin's fault */
        int64_t start = clock_now_ns();
        describe_all(run);
        milliseconds = (double)(clock_now_ns() - start) / 1e6;
    }
    process_take(&after);
    const char *gained = process_gained(&before, &after);
    CHECK_THAT(run, !gained, "after describe the process has %s", gained);
    CHECK_THAT(run, milliseconds < 100, "describe takes %.1f ms: accepted less than 100",
               milliseconds);
    for (int again = 0; again < 4 && run->code == CHECK_PASS; again++)
        describe_all(run);
}

static void run_describe_beyond(struct check_run *run)
{
    static const attn_backend_type nothing;
    const struct loader_plugin *plugin = record_of(run);
    const uint32_t beyond[] = {plugin->num_types, plugin->num_types + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        const attn_backend_type *type = &nothing;
        attn_status status = plugin->table.describe(beyond[i], &type, check_error(run));
        if (!refusal_is(run, status, ATTN_INVALID_ARGUMENT, "describe of no backend"))
            return;
        CHECK_THAT(run, type == &nothing, "describe(%u) fails, and sets its output", beyond[i]);
        status = plugin->table.describe(beyond[i], &type, NULL);
        CHECK_THAT(run, status == ATTN_INVALID_ARGUMENT, "describe(%u) without attn_error: %s",
                   beyond[i], host_status_name(status));
    }
}

/* ---- init and fini --------------------------------------------------------------------------- */

/* No instance exists, so fini and init may run again. The services stay, since the plugin uses them
 * until the host's fini. */
static attn_status restart(struct check_run *run, const attn_plugin *table,
                           struct process_resources *between)
{
    static attn_services *services;
    if (!table->init)
        return ATTN_OK;
    if (!services && !(services = services_create_for_plugin()))
        return ATTN_OUT_OF_HOST_MEMORY;
    table->fini();
    process_take(between);
    return table->init(services, check_error(run));
}

/* A rig and a whole life. False: there is no rig. */
static bool live(struct check_run *run)
{
    char *results[RIG_BATCHES];
    struct rig rig;
    if (!rig_open(&rig, run, run->seed))
        return false;
    if (rig_life(&rig, results))
        rig_free(results);
    rig_close(&rig);
    return true;
}

static void run_pairs(struct check_run *run)
{
    const attn_plugin *table = &run->subject->node->type->plugin->table;
    struct process_resources unused;
    attn_status status = ATTN_OK;
    if (!table->init != !table->fini)
        check_fail(run, "one of init and fini is NULL");
    for (int round = 0; round < 3 && run->code == CHECK_PASS && status == ATTN_OK; round++) {
        status = restart(run, table, &unused);
        if (check_good(run, status, "init after fini"))
            live(run);
    }
}

/* Threads that are there after fini and were not before the last life. A thread that was joined may
 * still be listed for a moment. */
static void run_threads(struct check_run *run)
{
    const attn_plugin *table = &run->subject->node->type->plugin->table;
    struct process_resources before, after;
    process_take(&before);
    after = before;
    attn_status status = restart(run, table, &before);
    if (status == ATTN_OK && live(run))
        status = restart(run, table, &after);
    check_good(run, status, "init after fini");
    if (!table->init)
        process_take(&after);
    for (int wait = 0; wait < 50 && process_gained_threads(&before, &after); wait++) {
        struct timespec ms = {.tv_nsec = 1000000};
        nanosleep(&ms, NULL);
        struct process_resources now;
        process_take(&now);
        if (!process_gained_threads(&before, &now))
            after = now;
    }
    const struct check_subject *subject = run->subject;
    const char *end = table->fini ? "fini" : "destroy";
    if (process_gained_threads(&before, &after))
        check_fail(run, "after %s there is a thread that was not there before", end);
    else if (subject->unloaded && !subject->source && /* packages of Python keep theirs */
             process_keeps_thread(subject->unloaded, subject->loaded, &after))
        check_fail(run, "after %s there is a thread that was started when the file was loaded",
                   end);
}

/* ---- Destroy --------------------------------------------------------------------------------- */

static void run_destroy_null(struct check_run *run)
{
    check_note(run, "metadata_destroy(NULL)");
    run->subject->type->ops->metadata_destroy(NULL);
    check_note(run, "destroy(NULL)");
    run->subject->type->ops->destroy(NULL);
}

/* ---- States ---------------------------------------------------------------------------------- */

/* All forwards before a batch was planned; then with a layer that is none. */
static void check_states(struct rig *rig, struct rig_session *session)
{
    for (int b = 0; b < rig->num_batches; b++) {
        attn_status status = rig_forward(rig, session->metadata, b, 0);
        if (!refusal_is(rig->run, status, ATTN_BAD_STATE, "forward before init_forward_metadata"))
            return;
    }
    char *result = rig_run(rig, session->metadata, 0);
    free(result);
    if (!result)
        return;
    int32_t *layer_id = &rig->question.layers[0].layer_id, kept = *layer_id;
    static const int32_t strange[] = {-1, 4, INT32_MAX};
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
        *layer_id = strange[i];
        attn_status status = rig_forward(rig, session->metadata, 0, 0);
        if (!refusal_is(rig->run, status, ATTN_INVALID_ARGUMENT, "forward of an unknown layer_id"))
            break;
    }
    *layer_id = kept;
    char *again = rig->run->code == CHECK_PASS ? rig_run(rig, session->metadata, 0) : NULL;
    free(again);
}

/* Plan a, plan b, forward b, plan a, forward a: a plan holds until the next one. */
static void check_replan(struct rig *rig, struct rig_session *session, int b)
{
    char *first = rig_run(rig, session->metadata, b), *again = NULL;
    if (first && rig_good(rig, rig_plan(rig, session->metadata, (b + 1) % rig->num_batches),
                          "init_forward_metadata of another batch"))
        again = rig_run(rig, session->metadata, b);
    rig_expect(rig, b, first, again, "when another batch was planned in between");
}

/* The problems, the options and all that they point to are gone after create. */
static void run_arguments(struct check_run *run)
{
    struct rig rig;
    struct rig_session session;
    char *expected[RIG_BATCHES];
    if (!rig_open(&rig, run, run->seed))
        return;
    if (rig_life(&rig, expected)) {
        struct rig_question kept = rig.question;
        if (rig_session_open(&session, &rig)) {
            memset(rig.question.groups, 0xA5, sizeof rig.question.groups);
            memset(rig.question.problems, 0xA5, sizeof rig.question.problems);
            memset(&rig.question.bounds, 0xA5, sizeof rig.question.bounds);
            for (int l = 0; l < RIG_LAYERS; l++)
                rig.question.layers[l].kv_buffer = 0x5A5A5A5A;
            for (int b = 0; b < rig.num_batches && run->code == CHECK_PASS; b++) {
                char *result = rig_run(&rig, session.metadata, b);
                rig_expect(&rig, b, expected[b], result, "when the problems of create are gone");
                expected[b] = NULL;
            }
            memcpy(&rig.question.bounds, &kept.bounds, sizeof kept.bounds);
            rig_session_close(&session, &rig);
        }
        rig_free(expected);
    }
    rig_close(&rig);
}

/* ---- The current context --------------------------------------------------------------------- */

static void expect_entered(struct check_run *run, const char *call)
{
    if (!device_is_entered(run->subject->device))
        check_fail(run, "after %s the primary context is not current", call);
}

static void run_context(struct check_run *run)
{
    struct rig rig;
    struct rig_session session;
    if (!rig_open(&rig, run, run->seed))
        return;
    expect_entered(run, "query");
    if (rig_session_open(&session, &rig)) {
        expect_entered(run, "create, prepare, metadata_size and metadata_create");
        for (int b = 0; b < rig.num_batches; b++) {
            rig_plan(&rig, session.metadata, b);
            expect_entered(run, "init_forward_metadata");
            rig_forward_all(&rig, session.metadata, b);
            expect_entered(run, "forward");
        }
        rig_session_close(&session, &rig);
        expect_entered(run, "metadata_destroy and destroy");
    }
    rig_close(&rig);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_life[] = {
    CHECK_ROW("LIFE-01", describe, NULL, CHECK_ONCE | CHECK_ALONE,
              "describe uses no thread, file or environment, returns the same tables each time, "
              "and takes less than 100 ms"),
    CHECK_ROW("LIFE-01", describe_beyond, NULL, CHECK_ONCE,
              "describe of a backend that does not exist is INVALID_ARGUMENT"),
    CHECK_ROW("LIFE-02", pairs, NULL, 0, "after fini the plugin can be initialised and used again"),
    CHECK_ROW("LIFE-03", destroy_null, NULL, 0,
              "destroy(NULL) and metadata_destroy(NULL) do nothing"),
    CHECK_ROW("LIFE-05", arguments, rig_count_seeds, 0,
              "an instance does not read its problems after create"),
    RIG_ROW("LIFE-06", states, rig_count_seeds, 0,
            "a forward before init_forward_metadata is BAD_STATE; a forward of an unknown layer "
            "is INVALID_ARGUMENT",
            .body = check_states),
    RIG_ROW("LIFE-06", replan, rig_count_seeds, CHECK_NEEDS_COMPUTE,
            "a forward computes the batch that was planned last", .each = check_replan),
    CHECK_ROW("LIFE-08", threads, NULL, 0, "no thread of the plugin is left after fini"),
    CHECK_ROW("LIFE-09", context, NULL, CHECK_NEEDS_CUDA,
              "the primary context is current when a slot returns"),
    {.rule = NULL},
};
