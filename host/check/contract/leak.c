/* SPDX-License-Identifier: Apache-2.0
 *
 * leak.c: leaks of a create that fails at any allocation, and of a thousand that succeed.
 * Allocations from services, the heap and the address space of the process, and the device's memory
 * are counted; the address space shows memory that a backend maps and never touches. */
#include "host/check/check.h"

#include <string.h>

#include "host/check/cases/process_resources.h"
#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"
#include "host/check/cases/service_counter.h"
#include "host/base/clock.h"

/* A pointer that a failed call must leave alone. */
static char sentinel;
#define UNTOUCHED ((void *)&sentinel)

/* ---- What fails ------------------------------------------------------------------------------ */

static bool is_exhausted(attn_status status)
{
    return status == ATTN_OUT_OF_HOST_MEMORY || status == ATTN_OUT_OF_DEVICE_MEMORY;
}

/* A failed call: the right status and message, no output set, nothing left. */
static void judge_failure(struct check_run *run, const struct service_counter *counter,
                          attn_status status, const void *output, const char *what)
{
    if (!refusal_is_told(run, status, what))
        return;
    CHECK_THAT(run, output == UNTOUCHED, "%s: fails, but sets its output", what);
    const char *left = service_counter_left(counter);
    CHECK_THAT(run, !left, "%s: fails, and leaves %s", what, left);
}

/* body() with a rig whose services are counted. */
static void with_counter(struct check_run *run,
                         void (*body)(struct rig *rig, struct service_counter *counter))
{
    struct rig rig;
    struct service_counter counter;
    if (!rig_open(&rig, run, run->seed))
        return;
    service_counter_init(&counter, rig.services);
    rig.services = &counter.table;
    body(&rig, &counter);
    rig_close(&rig);
}

static void refuse_memory(struct rig *rig, struct service_counter *counter)
{
    for (uint64_t n = 1; n < 10000 && rig->run->code == CHECK_PASS; n++) {
        attn_instance *instance = UNTOUCHED;
        service_counter_restart(counter, n);
        check_note(rig->run, "create, allocation %llu is refused", (unsigned long long)n);
        attn_status status = rig_create(rig, &instance);
        if (status == ATTN_OK && !counter->refused) {
            rig_destroy(rig, instance);
            break; /* that was all of them */
        }
        if (status == ATTN_DEPENDENCY_MISSING) {
            check_skip(rig->run, "create: DEPENDENCY_MISSING: %s", check_error_text(rig->run));
        } else if (status == ATTN_OK) { /* it can do without */
            rig_destroy(rig, instance);
        } else {
            judge_failure(rig->run, counter, status, instance, "create when memory is refused");
            if (!is_exhausted(status))
                check_fail(rig->run,
                           "create when memory is refused: %s: accepted OUT_OF_HOST_MEMORY, "
                           "OUT_OF_DEVICE_MEMORY",
                           host_status_name(status));
        }
    }
}

/* Problems that query refuses, the last of two groups. */
static void refuse_one(struct rig *rig, struct service_counter *counter, const char *what)
{
    attn_instance *instance = UNTOUCHED;
    if (rig_accepts(rig->run->subject, &rig->question.problems[1]))
        return; /* a backend for everything */
    service_counter_restart(counter, 0);
    check_note(rig->run, "create with %s", what);
    attn_status status = rig_create(rig, &instance);
    if (refusal_is(rig->run, status, ATTN_UNSUPPORTED, what))
        judge_failure(rig->run, counter, status, instance, what);
}

static void refuse_problems(struct rig *rig, struct service_counter *counter)
{
    static const char *const features[] = {"attn.no_such_feature/1"};
    attn_problem *problem = &rig->question.problems[1], kept = *problem;
    attn_layer_group *group = &rig->question.groups[1], kept_group = *group;
    problem->num_features = 1;
    problem->features = features;
    refuse_one(rig, counter, "an unknown feature");
    *problem = kept;
    rig_spoil_layout(problem);
    refuse_one(rig, counter, "an unknown layout");
    *problem = kept;
    group->kind = 1000;
    refuse_one(rig, counter, "an unknown kind of layer");
    *group = kept_group;
    group->head_dim = group->v_head_dim = 100003;
    refuse_one(rig, counter, "a head_dim of 100003");
    *group = kept_group;
}

/* The host refuses such ids, so a backend may accept them; if it refuses, nothing may be left. */
static void create_with_ids(struct rig *rig, struct service_counter *counter, const char *what)
{
    attn_instance *instance = UNTOUCHED;
    service_counter_restart(counter, 0);
    check_note(rig->run, "create with %s", what);
    attn_status status = rig_create(rig, &instance);
    if (status == ATTN_OK)
        rig_destroy(rig, instance);
    else
        judge_failure(rig->run, counter, status, instance, what);
}

static void refuse_ids(struct rig *rig, struct service_counter *counter)
{
    attn_layer *last = &rig->question.layers[RIG_LAYERS - 1];
    int32_t kept = last->layer_id;
    last->layer_id = rig->question.layers[0].layer_id;
    create_with_ids(rig, counter, "a layer_id that two layers have");
    last->layer_id = -1;
    create_with_ids(rig, counter, "a layer_id of -1");
    last->layer_id = kept;
}

static void fail_metadata(struct rig *rig, struct rig_session *session,
                          struct service_counter *counter)
{
    attn_memory none = {.struct_size = sizeof none};
    attn_metadata *metadata = UNTOUCHED;
    int64_t before[ATTN_SPACE_COUNT];
    uint64_t needed = 0;
    memcpy(before, counter->live, sizeof before);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        needed += session->memory.size.size[r];
    for (uint64_t n = 0; n < 1000 && rig->run->code == CHECK_PASS; n++) {
        counter->num_allocations = 0;
        counter->refuse_at = n;
        counter->refused = false;
        metadata = UNTOUCHED;
        check_note(rig->run, "metadata_create, allocation %llu is refused", (unsigned long long)n);
        attn_status status = rig->ops->metadata_create(
            session->instance, ATTN_METADATA_EAGER, rig->bounds,
            n == 0 ? &none : &session->memory.memory, &metadata, check_error(rig->run));
        if (status == ATTN_OK) {
            rig->ops->metadata_destroy(metadata);
            if (n == 0 && needed > 0)
                check_fail(rig->run, "metadata_create without memory succeeds");
            else if (n > 0 && !counter->refused)
                break;
        } else if (refusal_is_told(rig->run, status, "metadata_create")) {
            CHECK_THAT(rig->run, metadata == UNTOUCHED,
                       "metadata_create fails, but sets its output");
        }
        CHECK_THAT(rig->run, memcmp(before, counter->live, sizeof before) == 0,
                   "metadata_create leaves memory of services->allocate");
    }
}

static void refuse_metadata(struct rig *rig, struct service_counter *counter)
{
    struct rig_session session;
    if (!rig_session_open(&session, rig))
        return;
    rig->ops->metadata_destroy(session.metadata);
    session.metadata = NULL;
    fail_metadata(rig, &session, counter);
    rig_session_close(&session, rig);
    if (rig->run->code == CHECK_PASS && service_counter_left(counter))
        check_fail(rig->run, "after destroy there is %s", service_counter_left(counter));
}

/* ---- A thousand ------------------------------------------------------------------------------ */

enum {
    ROUNDS = 1000,
    WARM_UP = 20,
    /* Where one takes milliseconds, as on a GPU: as many as this time allows. */
    SECONDS = 8,
    FEWEST = 50,                 /* and in four times that, however slow */
    HEAP_SLACK = 8 * ROUNDS,     /* less than the smallest block each round */
    DRIVER_SLACK = 64 * ROUNDS,  /* a CUDA driver keeps some bytes of each module it loaded */
    SPACE_SLACK = 2048 * ROUNDS, /* less than a page each round, more than an arena of the heap */
    DEVICE_SLACK = 2 * 1024 * 1024, /* what a driver hands out at a time */
    /* What leaks does so each time. A device's memory is other processes', too, and the C library counts
     * freed memory that threads keep in caches as used. */
    TRIES = 3
};

struct holdings {
    struct process_memory process;
    uint64_t device_free;
};

/* When all that was enqueued is done. */
static void take_holdings(const struct rig *rig, struct holdings *holdings)
{
    const struct device *device = rig->device;
    uint64_t total;
    device_synchronize(device, rig->stream, NULL);
    holdings->device_free = 0;
    if (device->type != ATTN_DEVICE_CPU)
        device_memory(device, &holdings->device_free, &total, NULL);
    process_memory_take(&holdings->process);
}

static bool device_is_shorter(const struct check_subject *subject, const struct holdings *before,
                              const struct holdings *after)
{
    uint64_t slack = subject->fake_device ? 0 : DEVICE_SLACK;
    return after->device_free + slack < before->device_free;
}

static bool heap_is_larger(const struct check_subject *subject, const struct holdings *before,
                           const struct holdings *after)
{
    bool driver = subject->device->type == ATTN_DEVICE_CUDA && !subject->fake_device;
    uint64_t slack = HEAP_SLACK + (driver ? DRIVER_SLACK : 0);
    return after->process.heap > before->process.heap + slack;
}

static void compare_holdings(struct check_run *run, const struct holdings *before,
                             const struct holdings *after, int rounds, const char *what)
{
    const struct check_subject *subject = run->subject;
    CHECK_THAT(run, !heap_is_larger(subject, before, after), "%d %s leak %llu bytes of the heap",
               rounds, what, (unsigned long long)(after->process.heap - before->process.heap));
    CHECK_THAT(run, after->process.space <= before->process.space + SPACE_SLACK,
               "%d %s leak %llu bytes of address space", rounds, what,
               (unsigned long long)(after->process.space - before->process.space));
    CHECK_THAT(run, !device_is_shorter(subject, before, after),
               "%d %s leak %llu bytes of the device's memory", rounds, what,
               (unsigned long long)(before->device_free - after->device_free));
}

/* One round; false ends them. */
typedef bool (*round_fn)(struct rig *rig, struct rig_session *session);

/* As many rounds as there is time for; false if one of them failed. */
static bool run_in_time(struct rig *rig, struct rig_session *session, round_fn round,
                        const char *what, int *rounds)
{
    int64_t start = clock_now_ns(), time = (int64_t)SECONDS * 1000000000;
    bool good = true;
    for (*rounds = 0; *rounds < ROUNDS && good; (*rounds)++) {
        if (clock_now_ns() - start > (*rounds < FEWEST ? 4 * time : time))
            break;
        good = round(rig, session);
        if (*rounds % 10 == 0)
            check_note(rig->run, "%d %s", *rounds, what);
    }
    return good;
}

static void run_rounds(struct rig *rig, struct rig_session *session, round_fn round,
                       const char *what)
{
    struct holdings before, after;
    int rounds = 0, tries = TRIES;
    bool good = true;
    for (int n = 0; n < WARM_UP && good; n++)
        good = round(rig, session);
    take_holdings(rig, &after);
    do {
        before = after;
        good = good && run_in_time(rig, session, round, what, &rounds);
        take_holdings(rig, &after);
    } while (good && --tries > 0 &&
             (heap_is_larger(rig->run->subject, &before, &after) ||
              device_is_shorter(rig->run->subject, &before, &after)));
    if (good)
        compare_holdings(rig->run, &before, &after, rounds, what);
}

/* An instance and a metadata of it, in given memory. */
static bool make_instance(struct rig *rig, struct rig_session *session)
{
    attn_instance *instance = NULL;
    attn_metadata *metadata = NULL;
    regions_fill(&session->memory, ATTN_MEMORY_ZEROED, 0, NULL);
    if (!rig_good(rig, rig_create(rig, &instance), "create"))
        return false;
    attn_status status = rig_prepare(rig, instance);
    if (status == ATTN_OK)
        status = rig_metadata_create(rig, instance, &session->memory, &metadata);
    if (status == ATTN_OK)
        rig->ops->metadata_destroy(metadata);
    rig_destroy(rig, instance);
    return rig_good(rig, status, "prepare and metadata_create");
}

/* A metadata that is planned with and run once. */
static bool make_metadata(struct rig *rig, struct rig_session *session)
{
    attn_metadata *metadata = NULL;
    regions_fill(&session->memory, ATTN_MEMORY_ZEROED, 0, NULL);
    attn_status status = rig_metadata_create(rig, session->instance, &session->memory, &metadata);
    if (status == ATTN_OK) {
        status = rig_plan(rig, metadata, 0);
        if (status == ATTN_OK)
            status = rig_forward(rig, metadata, 0, 0);
        device_synchronize(rig->device, rig->stream, NULL);
        rig->ops->metadata_destroy(metadata);
    }
    return rig_good(rig, status, "a metadata and a forward with it");
}

/* Rounds with a session whose memory they use. */
static void run_thousand(struct rig *rig, struct service_counter *counter, round_fn round,
                         const char *what)
{
    struct rig_session session;
    if (!rig_session_open(&session, rig))
        return;
    rig->ops->metadata_destroy(session.metadata);
    session.metadata = NULL;
    run_rounds(rig, &session, round, what);
    rig_session_close(&session, rig);
    if (rig->run->code == CHECK_PASS && service_counter_left(counter))
        check_fail(rig->run, "a thousand %s leak %s", what, service_counter_left(counter));
}

static void make_instances(struct rig *rig, struct service_counter *counter)
{
    run_thousand(rig, counter, make_instance, "instances");
}

static void make_metadatas(struct rig *rig, struct service_counter *counter)
{
    run_thousand(rig, counter, make_metadata, "metadata");
}

/* ---- Table ----------------------------------------------------------------------------------- */

CHECK_RUN(create_without_memory, with_counter(run, refuse_memory))
CHECK_RUN(create_unsupported, with_counter(run, refuse_problems))
CHECK_RUN(create_layer_ids, with_counter(run, refuse_ids))
CHECK_RUN(metadata_without_memory, with_counter(run, refuse_metadata))
CHECK_RUN(instances, with_counter(run, make_instances))
CHECK_RUN(metadata, with_counter(run, make_metadatas))

const struct check check_leak[] = {
    CHECK_ROW("LIFE-04", create_without_memory, NULL, 0,
              "create fails without a leak if any of its allocations fails"),
    CHECK_ROW("LIFE-04", create_unsupported, NULL, 0,
              "create of a problem that query refuses fails without a leak"),
    CHECK_ROW("LIFE-04", create_layer_ids, NULL, 0,
              "a create that refuses layer ids does not leak"),
    CHECK_ROW("LIFE-04", metadata_without_memory, NULL, 0, "metadata_create fails without a leak"),
    CHECK_ROW("LIFE-07", instances, NULL, CHECK_ALONE, "a thousand instances leak no memory"),
    CHECK_ROW("LIFE-07", metadata, NULL, CHECK_ALONE, "a thousand metadata leak no memory"),
    {.rule = NULL},
};
