/* SPDX-License-Identifier: Apache-2.0
 *
 * pure_cuda.c: the group PURE on CUDA devices, and what LIFE-09 and ERR-04 ask of a plugin: a
 * backend's calls of the driver, their streams, its waits, and its errors when they fail. */
#include <stdlib.h>

#include "host/check/cases/gpu_case.h"
#include "host/device/cuda.h"
#include "host/base/error.h"

/* ---- What is watched ------------------------------------------------------------------------- */

struct watch {
    struct gpu_case g;
    struct spy_cuda spy;
};

static bool watch_open(struct watch *w, struct check_run *run, int32_t point, uint32_t kind)
{
    return gpu_find_spy(run, &w->spy) && gpu_open(&w->g, run, point, kind);
}

static void watch_close(struct watch *w)
{
    device_synchronize(w->g.session->device, w->g.session->stream, NULL);
    gpu_case_close(&w->g);
}

/* step() with each of some contents of the run's point, until one fails. */
static void watch_contents(struct check_run *run, uint64_t count,
                           bool (*step)(struct watch *w, uint64_t number))
{
    struct watch w;
    if (!watch_open(&w, run, run->index, ATTN_METADATA_EAGER))
        return;
    for (uint64_t number = 0; number < count; number++)
        if (!gpu_case_refill(&w.g, number, -1) || !step(&w, number))
            break;
    watch_close(&w);
}

/* The calls since spy.begin(); false: there were more than can be looked at, and it was reported.
 */
static bool stop(struct watch *w, const struct spy_record **records, uint32_t *count)
{
    w->spy.end();
    *count = w->spy.records(records);
    if (*count > SPY_MAX_RECORDS)
        check_skip(w->g.run, "%u calls of the driver: accepted up to %d; %s", *count,
                   SPY_MAX_RECORDS, w->g.what);
    return *count <= SPY_MAX_RECORDS;
}

/* The first call of one of these kinds; NULL = none. */
static const struct spy_record *find_kind(const struct spy_record *records, uint32_t count,
                                          uint32_t kinds)
{
    for (uint32_t i = 0; i < count; i++)
        if (kinds & 1u << records[i].kind)
            return &records[i];
    return NULL;
}

/* ---- PURE-01: no call that is not for a stream ----------------------------------------------- */

static const char *const kind_names[SPY_KINDS] = {
    [SPY_ALLOCATE] = "allocates",
    [SPY_FREE] = "frees memory",
    [SPY_SYNCHRONIZE] = "waits for work",
    [SPY_COPY] = "copies or fills and waits for it",
    [SPY_OBJECT] = "makes or destroys a stream, an event or a graph",
    [SPY_MODULE] = "loads or unloads code",
    [SPY_CONTEXT] = "changes the current context",
    [SPY_CAPTURE] = "begins or ends a capture, or changes its mode",
};

enum {
    NOT_IN_FORWARD = 1 << SPY_ALLOCATE | 1 << SPY_FREE | 1 << SPY_SYNCHRONIZE | 1 << SPY_COPY |
                     1 << SPY_OBJECT | 1 << SPY_MODULE | 1 << SPY_CAPTURE,
    WAITS = 1 << SPY_SYNCHRONIZE | 1 << SPY_COPY,
    NOT_IN_SOURCE = WAITS | 1 << SPY_CAPTURE /* CHECK_SOURCE_UNJUDGED */
};

static bool forward_is_pure(struct watch *w, uint64_t number)
{
    const char *when = number == 0 ? "the first forward" : "a later forward";
    struct gpu_case *g = &w->g;
    const struct spy_record *records, *found;
    uint32_t count;
    attn_status status = gpu_prepare(g, GPU_REAL);
    if (!gpu_good(g, status, "init_forward_metadata"))
        return false;
    w->spy.begin();
    status = gpu_forward(g, GPU_REAL, 0);
    if (!stop(w, &records, &count) || !gpu_good(g, status, "forward"))
        return false;
    found = find_kind(records, count, g->run->subject->source ? NOT_IN_SOURCE : NOT_IN_FORWARD);
    if (found)
        check_fail(g->run, "%s %s: %s; %s", when, kind_names[found->kind], found->call, g->what);
    return !found && gpu_wait(&w->g);
}

CHECK_RUN(enqueues, watch_contents(run, 4, forward_is_pure))

/* ---- PURE-03: streams ------------------------------------------------------------------------ */

enum { MAX_STREAMS = 16, MAX_EVENTS = 64 };

/* Work that is known to precede: how many pieces of each stream. */
struct past {
    uint32_t pieces[MAX_STREAMS];
};

struct stream_state {
    const void *stream;
    bool forked; /* its work comes after what was in the given stream when the forward began */
    uint32_t pieces;
    const char *last_call;
    struct past past;
};

struct event_state {
    const void *event;
    bool forked;
    struct past past;
};

struct ordering {
    struct stream_state streams[MAX_STREAMS]; /* 0 = the given one */
    struct event_state events[MAX_EVENTS];
    int num_streams, num_events;
};

static struct stream_state *stream_of(struct ordering *o, const void *stream)
{
    for (int i = 0; i < o->num_streams; i++)
        if (o->streams[i].stream == stream)
            return &o->streams[i];
    if (o->num_streams == MAX_STREAMS)
        return NULL;
    o->streams[o->num_streams] = (struct stream_state){.stream = stream};
    return &o->streams[o->num_streams++];
}

/* NULL: it was not recorded in this forward. */
static struct event_state *event_of(struct ordering *o, const void *event, bool add)
{
    for (int i = 0; i < o->num_events; i++)
        if (o->events[i].event == event)
            return &o->events[i];
    if (!add || o->num_events == MAX_EVENTS)
        return NULL;
    o->events[o->num_events] = (struct event_state){.event = event};
    return &o->events[o->num_events++];
}

/* The event stands for all that its stream has, and all that this had to wait for. */
static void record_event(struct ordering *o, struct stream_state *s, const void *event)
{
    struct event_state *e = event_of(o, event, true);
    if (!e)
        return;
    e->forked = s->forked;
    e->past = s->past;
    e->past.pieces[s - o->streams] = s->pieces;
}

static void wait_event(struct ordering *o, struct stream_state *s, const void *event)
{
    const struct event_state *e = event_of(o, event, false);
    if (!e)
        return;
    s->forked |= e->forked;
    for (int i = 0; i < MAX_STREAMS; i++)
        if (e->past.pieces[i] > s->past.pieces[i])
            s->past.pieces[i] = e->past.pieces[i];
}

static const char *stream_name(const void *stream)
{
    if (stream == SPY_LEGACY_STREAM)
        return "the default stream";
    return stream == SPY_PER_THREAD_STREAM ? "the thread's default stream" : "another stream";
}

/* Process one call; returns its fault, or NULL. */
static const char *take(struct ordering *o, const struct spy_record *record)
{
    if (record->kind != SPY_ENQUEUE && record->kind != SPY_RECORD && record->kind != SPY_WAIT)
        return NULL;
    struct stream_state *s = stream_of(o, record->stream);
    if (!s)
        return "uses too many streams to be followed";
    if (record->kind == SPY_RECORD)
        record_event(o, s, record->event);
    else if (record->kind == SPY_WAIT)
        wait_event(o, s, record->event);
    if (record->kind != SPY_ENQUEUE)
        return NULL;
    s->pieces++;
    s->last_call = record->call;
    return s->forked ? NULL : "enqueues without an event from the given stream before";
}

static void check_order(struct gpu_case *g, const struct case_session *session,
                        const struct spy_record *records, uint32_t count)
{
    struct ordering *o = calloc(1, sizeof *o);
    CHECK_THAT(g->run, o, "no memory for the order of the work");
    stream_of(o, session->stream)->forked = true;
    const char *wrong = NULL;
    for (uint32_t i = 0; i < count && !wrong; i++) {
        wrong = take(o, &records[i]);
        if (wrong)
            check_fail(g->run, "the forward %s: %s on %s; %s", wrong, records[i].call,
                       stream_name(records[i].stream), g->what);
    }
    for (int i = 1; i < o->num_streams && !wrong; i++)
        if (o->streams[0].past.pieces[i] < o->streams[i].pieces)
            check_fail(g->run,
                       "the given stream does not wait for the forward's work on %s: %s; %s",
                       stream_name(o->streams[i].stream), o->streams[i].last_call, g->what);
    free(o);
}

static bool has_order(struct watch *w, uint64_t number)
{
    const struct spy_record *records;
    uint32_t count;
    (void)number;
    attn_status status = gpu_prepare(&w->g, GPU_REAL);
    w->spy.begin();
    if (status == ATTN_OK)
        status = gpu_forward(&w->g, GPU_REAL, 0);
    if (stop(w, &records, &count) && gpu_good(&w->g, status, "init and forward"))
        check_order(&w->g, w->g.session, records, count);
    return gpu_wait(&w->g) && w->g.run->code == CHECK_PASS;
}

CHECK_RUN(streams, watch_contents(run, 3, has_order))

/* ---- PURE-04, LIFE-09: the context ----------------------------------------------------------- */

/* A slot is called between context_begin() and context_end(). */
static cuda_context context_begin(struct watch *w)
{
    struct cuda *cuda = cuda_of(w->g.c->device);
    cuda_context current = NULL;
    cuda->driver.cuCtxGetCurrent(&current);
    w->spy.begin();
    return current;
}

/* Is the context unchanged, and the depth of the stack of contexts? */
static bool context_end(struct watch *w, cuda_context before, const char *slot)
{
    struct cuda *cuda = cuda_of(w->g.c->device);
    const struct spy_record *records;
    uint32_t count;
    cuda_context after = NULL;
    int32_t depth = 0;
    if (!stop(w, &records, &count))
        return false;
    cuda->driver.cuCtxGetCurrent(&after);
    for (uint32_t i = 0; i < count; i++)
        depth += records[i].result == CUDA_SUCCESS ? records[i].depth : 0;
    if (after != before) {
        check_fail(w->g.run, "after %s another context is current than before; %s", slot,
                   w->g.what);
        cuda->driver.cuCtxSetCurrent(before);
        return false;
    }
    if (depth != 0)
        check_fail(w->g.run, "%s leaves %d more contexts on the thread's stack; %s", slot, depth,
                   w->g.what);
    return depth == 0;
}

static bool keeps_context(struct watch *w, uint64_t number)
{
    struct gpu_case *g = &w->g;
    (void)number;
    attn_status status = gpu_upload(g, GPU_REAL);
    if (!gpu_good(g, status, "copy to the device"))
        return false;
    cuda_context before = context_begin(w);
    status = gpu_plan(g, GPU_REAL);
    if (!context_end(w, before, "init_forward_metadata") ||
        !gpu_good(g, status, "init_forward_metadata"))
        return false;
    before = context_begin(w);
    status = gpu_forward(g, GPU_REAL, 0);
    return context_end(w, before, "forward") && gpu_good(g, status, "forward") && gpu_wait(&w->g);
}

CHECK_RUN(context, watch_contents(run, 3, keeps_context))

/* From create to destroy. What is made is put where the session has its own, so that the slots that
 * make metadata are called as often. */
static void walk(struct watch *w)
{
    const struct case_backend *backend = &w->g.session->backend;
    const attn_backend_ops *ops = backend->type->ops;
    attn_error *error = check_error(w->g.run);
    attn_instance *instance = NULL;
    attn_metadata *metadata = NULL;
    attn_memory_size size = {.struct_size = sizeof size};
    cuda_context before = context_begin(w);
    attn_status status =
        backend->type->create(backend->type, forward_case_problem(w->g.c), 1, backend->options,
                              backend->services, &instance, error);
    if (!context_end(w, before, "create") || !gpu_good(&w->g, status, "create"))
        return;
    before = context_begin(w);
    if (ops->prepare)
        status = ops->prepare(instance, NULL, NULL, error);
    bool good = context_end(w, before, "prepare") && gpu_good(&w->g, status, "prepare");
    before = context_begin(w);
    if (good) {
        ops->index_forms(instance);
        status =
            ops->metadata_size(instance, w->g.session->kind, &w->g.session->bounds, &size, error);
    }
    good = context_end(w, before, "metadata_size") && good;
    before = context_begin(w);
    if (good && status == ATTN_OK)
        status = ops->metadata_create(instance, w->g.session->kind, &w->g.session->bounds,
                                      &w->g.session->memory.memory, &metadata, error);
    good = context_end(w, before, "metadata_create") && good &&
           gpu_good(&w->g, status, "metadata_create");
    before = context_begin(w);
    if (good)
        ops->metadata_destroy(metadata);
    good = context_end(w, before, "metadata_destroy") && good;
    before = context_begin(w);
    ops->destroy(instance);
    context_end(w, before, "destroy");
}

static void run_slots(struct check_run *run)
{
    struct watch w;
    if (!watch_open(&w, run, run->index, ATTN_METADATA_EAGER))
        return;
    if (keeps_context(&w, 0)) {
        device_synchronize(w.g.session->device, w.g.session->stream, NULL);
        w.g.session->backend.type->ops->metadata_destroy(w.g.session->metadata);
        w.g.session->metadata = NULL;
        walk(&w);
    }
    watch_close(&w);
}

/* ---- PURE-07: planning waits for nothing ----------------------------------------------------- */

/* Plan while the stream cannot go on. */
static bool plan_behind_gate(struct watch *w, const struct gpu_gate *gate, uint64_t number)
{
    struct gpu_case *g = &w->g;
    const struct spy_record *records, *found;
    uint32_t count;
    if (!gpu_case_refill(g, number, -1))
        return false;
    attn_status status = gpu_upload(g, GPU_REAL);
    w->spy.begin();
    if (status == ATTN_OK)
        status = gpu_plan(g, GPU_REAL);
    if (atomic_load(&gate->passed))
        check_fail(g->run,
                   "init_forward_metadata returns when the stream's earlier work is done, after "
                   "%d ms; accepted: at once; %s",
                   GPU_GATE_MS, g->what);
    if (!stop(w, &records, &count) || !gpu_good(g, status, "init_forward_metadata"))
        return false;
    found = find_kind(records, count, WAITS);
    if (found)
        check_fail(g->run, "init_forward_metadata %s: %s; %s", kind_names[found->kind], found->call,
                   g->what);
    return g->run->code == CHECK_PASS;
}

/* Twice: staging is at least double-buffered. */
static void run_waits_for_nothing(struct check_run *run)
{
    struct watch w;
    struct gpu_gate gate;
    if (!watch_open(&w, run, run->index, ATTN_METADATA_EAGER))
        return;
    if (gpu_good(&w.g, gpu_run(&w.g, GPU_REAL), "a first run") &&
        gpu_good(&w.g, gpu_gate_close(&w.g, &gate, w.g.session->stream), "cuLaunchHostFunc")) {
        if (plan_behind_gate(&w, &gate, 2))
            plan_behind_gate(&w, &gate, 3);
        gpu_gate_open(&w.g, &gate, w.g.session->stream);
    }
    watch_close(&w);
}

/* ---- PURE-07: staging ------------------------------------------------------------------------ */

enum { IN_FLIGHT = GPU_UPLOADS };

/* Contents that they have; the smallest last, so that who takes it for an earlier one reads too
 * little and not too much. */
static const uint64_t in_flight[IN_FLIGHT] = {0, 2, 1};

/* Results of batches that were prepared while the stream stood still, and of each alone. */
struct flight {
    char *alone[IN_FLIGHT];  /* host memory */
    char *behind[IN_FLIGHT]; /* pinned */
};

static void flight_finish(struct flight *f, const struct device *device)
{
    for (int n = 0; n < IN_FLIGHT; n++) {
        free(f->alone[n]);
        device_release(device, ATTN_SPACE_PINNED, f->behind[n]);
    }
}

static bool flight_init(struct flight *f, struct gpu_case *g)
{
    bool good = true;
    for (int n = 0; n < IN_FLIGHT; n++) {
        f->alone[n] = malloc(g->c->bytes);
        f->behind[n] = device_allocate(g->c->device, ATTN_SPACE_PINNED, g->c->bytes, 64);
        good = good && f->alone[n] && f->behind[n];
    }
    if (!good)
        check_skip(g->run, "no memory for the results of %d batches", IN_FLIGHT);
    return good;
}

/* All of a batch, from the upload to the result. */
static bool enqueue(struct watch *w, char *result, const char *what)
{
    struct gpu_case *g = &w->g;
    struct case_session *session = w->g.session;
    attn_status status = gpu_prepare(g, GPU_REAL);
    if (status == ATTN_OK)
        status = session->graph ? device_graph_launch(session->device, session->graph,
                                                      session->stream, check_error(g->run))
                                : gpu_forward(g, GPU_REAL, 0);
    if (status == ATTN_OK)
        status = device_copy(g->c->device, result, g->c->memory, g->c->bytes, session->stream,
                             check_error(g->run));
    return gpu_good(g, status, what);
}

static void compare(struct watch *w, struct flight *f)
{
    struct gpu_case *g = &w->g;
    for (int n = 0; n < IN_FLIGHT && g->run->code == CHECK_PASS; n++) {
        if (!gpu_case_refill(g, in_flight[n], -1))
            return;
        double most = g->traits & ATTN_TRAIT_DETERMINISTIC ? 0 : 0.02;
        const char *what = case_output_difference(g->c, f->alone[n], f->behind[n], most);
        if (what)
            check_fail(g->run,
                       "batch %d of %d, planned while the stream was blocked: %s differs from that "
                       "of the batch alone; %s",
                       n + 1, IN_FLIGHT, what, g->what);
    }
}

static void fly(struct watch *w, struct flight *f)
{
    struct gpu_case *g = &w->g;
    struct gpu_gate gate;
    bool good = true;
    for (int n = 0; n < IN_FLIGHT && good; n++)
        good = gpu_case_refill(g, in_flight[n], -1) && enqueue(w, f->alone[n], "a batch alone") &&
               gpu_wait(&w->g);
    if (!good || !gpu_good(g, gpu_gate_close(g, &gate, w->g.session->stream), "cuLaunchHostFunc"))
        return;
    for (int n = 0; n < IN_FLIGHT && good; n++)
        good = gpu_case_refill(g, in_flight[n], -1) &&
               enqueue(w, f->behind[n], "a batch after others");
    gpu_gate_open(g, &gate, w->g.session->stream);
    compare(w, f);
}

/* Each point with both kinds of metadata. */
CHECK_COUNT(staging, 2 * gpu_num_points(subject))

static void run_staging(struct check_run *run)
{
    uint32_t kind = run->index % 2 ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER;
    struct watch w;
    struct flight f;
    if (!watch_open(&w, run, run->index / 2, kind))
        return;
    bool good = kind == ATTN_METADATA_EAGER ||
                gpu_good(&w.g, gpu_capture(&w.g, CUDA_CAPTURE_THREAD_LOCAL), "capture");
    if (flight_init(&f, &w.g) && good)
        fly(&w, &f);
    device_synchronize(w.g.session->device, w.g.session->stream, NULL);
    flight_finish(&f, w.g.c->device);
    watch_close(&w);
}

/* ---- ERR-04: a lost device ------------------------------------------------------------------- */

/* The results that every later call returns, too, until the context is destroyed; and one that is
 * no loss. */
static const struct {
    int32_t result;
    bool lost;
    const char *name;
} failures[] = {
    {700, true, "CUDA_ERROR_ILLEGAL_ADDRESS"},          {719, true, "CUDA_ERROR_LAUNCH_FAILED"},
    {214, true, "CUDA_ERROR_ECC_UNCORRECTABLE"},        {1, false, "CUDA_ERROR_INVALID_VALUE"},
    {701, false, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
};

CHECK_COUNT(failures, (int32_t)(sizeof failures / sizeof failures[0]))

/* A forward whose first work the driver refuses. The device is there all the same, so what the
 * backend keeps of its loss ends with the session. */
static void run_lost(struct check_run *run)
{
    struct watch w;
    const char *name = failures[run->index].name;
    if (!watch_open(&w, run, 0, ATTN_METADATA_EAGER))
        return;
    attn_status status = gpu_prepare(&w.g, GPU_REAL);
    if (gpu_good(&w.g, status, "init_forward_metadata")) {
        w.spy.begin();
        w.spy.fail(1u << SPY_ENQUEUE, failures[run->index].result);
        status = gpu_forward(&w.g, GPU_REAL, 0);
        w.spy.end();
        if (status == ATTN_OK)
            check_fail(run, "a forward whose work the driver refuses with %s succeeds; %s", name,
                       w.g.what);
        else if ((status == ATTN_DEVICE_LOST) != failures[run->index].lost)
            check_fail(run, "a forward whose work the driver refuses with %s gives %s %s; %s", name,
                       host_status_name(status), check_error_text(w.g.run), w.g.what);
    }
    watch_close(&w);
}

/* ---- The table ------------------------------------------------------------------------------- */

const struct check check_pure_cuda[] = {
    CHECK_ROW("PURE-01", enqueues, gpu_num_points, CHECK_NEEDS_CUDA,
              "a forward does not allocate, wait, copy synchronously, create streams or events, or "
              "load code"),
    CHECK_ROW(
        "PURE-03", streams, gpu_num_points, CHECK_NEEDS_CUDA,
        "all work of a forward is on the given stream or on streams forked from and joined to it"),
    CHECK_ROW("PURE-04", context, gpu_num_points, CHECK_NEEDS_CUDA,
              "planning and forward leave the current context as it was"),
    CHECK_ROW("PURE-07", waits_for_nothing, gpu_num_points, CHECK_NEEDS_CUDA,
              "init_forward_metadata returns before the stream's earlier work is done"),
    CHECK_ROW(
        "PURE-07", staging, count_staging, CHECK_NEEDS_CUDA | CHECK_NEEDS_COMPUTE,
        "batches planned in sequence while the stream is blocked each have their own results"),
    CHECK_ROW("ERR-04", lost, count_failures, CHECK_NEEDS_CUDA,
              "a forward returns DEVICE_LOST if its work fails on a lost device, and only then"),
    CHECK_ROW("LIFE-09", slots, NULL, CHECK_NEEDS_CUDA,
              "every slot of a backend leaves the primary context current"),
    {0},
};
