/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_capture.c: the group CAPT, and WORK-07: what can be captured, and what a graph gives when
 * it is replayed with other contents.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/cases/gpu_case.h"
#include "host/device/cuda.h"

/* ---- CAPT-01: what can be captured ----------------------------------------------------------- */

/* A captured graph runs, and the stream after it. */
static bool launch(struct gpu_case *g, struct case_session *session)
{
    attn_status status = gpu_upload(g, session, GPU_REAL);
    if (status == ATTN_OK)
        status = gpu_plan(g, session, GPU_REAL);
    if (!gpu_good(g, status, "init_forward_metadata for a replay"))
        return false;
    status = device_graph_launch(session->device, session->graph, session->stream, &g->error.base);
    if (status == ATTN_OK)
        status = device_synchronize(session->device, session->stream, &g->error.base);
    return gpu_good(g, status, "launch of the graph");
}

/* Each point in both modes. */
CHECK_COUNT(captures, 2 * gpu_num_points(subject))

static void run_captures(struct check_run *run)
{
    bool global = run->index % 2;
    struct gpu_case g;
    if (!gpu_case_open_captured(&g, run, run->index / 2))
        return;
    struct case_session *session = gpu_session(&g, ATTN_METADATA_GRAPH);
    if (session) {
        attn_status status =
            gpu_capture(&g, session, global ? CUDA_CAPTURE_GLOBAL : CUDA_CAPTURE_THREAD_LOCAL);
        if (gpu_good(&g, status, global ? "capture, global mode" : "capture, thread-local mode"))
            launch(&g, session);
    }
    case_session_destroy(session);
    gpu_case_close(&g);
}

/* `status` is that of a call which has to refuse the capture. */
static void expect_refusal(struct gpu_case *g, attn_status status, const char *what)
{
    if (status == ATTN_OK)
        check_fail(g->run,
                   "%s: OK: accepted CAPTURE_UNSUPPORTED, as query reports graph level %u, and "
                   "this needs %u; %s",
                   what, g->level, g->needed, g->what);
    else if (status != ATTN_CAPTURE_UNSUPPORTED)
        check_fail(g->run, "%s: %s: %s: accepted CAPTURE_UNSUPPORTED; %s", what,
                   host_status_name(status), host_error_text(&g->error), g->what);
}

/* Some call on the way to a graph refuses: metadata_size, or metadata_create, or planning where the
 * bounds do not say, or the forward. */
static void refuse_metadata(struct gpu_case *g)
{
    struct case_backend backend = numerics_backend(g->run->subject, g->options);
    struct case_setup setup = {.kind = ATTN_METADATA_GRAPH};
    struct case_session *session = NULL;
    host_error_init(&g->error);
    attn_status status = case_session_create(&backend, g->c, &setup, &session, &g->error.base);
    if (status == ATTN_OK) {
        status = gpu_run(g, session, GPU_REAL);
        if (status == ATTN_OK)
            status = gpu_capture(g, session, CUDA_CAPTURE_THREAD_LOCAL);
    }
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(g->run, "%s", host_error_text(&g->error));
    expect_refusal(g, status, "GRAPH metadata and a capture");
    case_session_destroy(session);
}

/* With metadata for eager runs, which is always there. */
static void refuse_capture(struct gpu_case *g, struct case_session *session)
{
    attn_status status = gpu_run(g, session, GPU_REAL);
    if (status == ATTN_OK)
        status = device_capture_begin(session->device, session->stream, &g->error.base);
    if (!gpu_good(g, status, "before a capture"))
        return;
    status = gpu_forward(g, session, GPU_REAL, ATTN_FORWARD_CAPTURING);
    device_capture_end(session->device, session->stream, NULL, NULL);
    expect_refusal(g, status, "a forward in a capture");
}

static void check_beyond(struct gpu_case *g)
{
    refuse_metadata(g);
    struct case_session *session =
        g->run->code == CHECK_PASS ? gpu_session(g, ATTN_METADATA_EAGER) : NULL;
    if (session) {
        refuse_capture(g, session);
        gpu_good(g, gpu_run(g, session, GPU_REAL), "the stream after a refused capture");
    }
    case_session_destroy(session);
}

static void run_beyond(struct check_run *run)
{
    bool found = false;
    struct gpu_case g;
    for (int32_t point = 0; point < gpu_num_points(run->subject) && run->code == CHECK_PASS;
         point++) {
        if (!gpu_case_open(&g, run, point))
            return;
        if (g.level < g.needed) {
            found = true;
            check_beyond(&g);
        }
        gpu_case_close(&g);
    }
    if (!found)
        check_skip(run, "query reports that all batches can be captured");
}

/* ---- Replays --------------------------------------------------------------------------------- */

enum { REPLAYS = 100, FEW_REPLAYS = 12 };

/* A session whose graph was captured, and one that runs the same eagerly. */
struct pair {
    struct gpu_case g;
    struct case_session *graph, *eager;
};

static void pair_close(struct pair *p)
{
    case_session_destroy(p->graph);
    case_session_destroy(p->eager);
    gpu_case_close(&p->g);
}

static bool pair_open(struct pair *p, struct check_run *run)
{
    *p = (struct pair){.graph = NULL};
    if (!gpu_case_open_captured(&p->g, run, run->index))
        return false;
    p->graph = gpu_session(&p->g, ATTN_METADATA_GRAPH);
    p->eager = p->graph ? gpu_session(&p->g, ATTN_METADATA_EAGER) : NULL;
    if (p->eager)
        return true;
    pair_close(p);
    return false;
}

/* Replay contents number `number`, and let the oracle judge. Without padding, whose group is
 * CAPT-04. */
static bool replay(struct gpu_case *g, struct case_session *session, uint64_t number)
{
    return gpu_case_refill(g, number, g->spec.num_sequences) &&
           numerics_judge(g->run, session, g->c, &g->c->spec);
}

static void run_replays(struct check_run *run)
{
    struct gpu_case g;
    if (!gpu_case_open_captured(&g, run, run->index))
        return;
    struct case_session *session = gpu_session(&g, ATTN_METADATA_GRAPH);
    for (uint64_t number = 0; session && number < REPLAYS; number++)
        if (!replay(&g, session, number))
            break;
    case_session_destroy(session);
    gpu_case_close(&g);
}

/* Contents that were planned and never run do not matter to the next ones. */
static bool plan_in_vain(struct gpu_case *g, struct case_session *session, uint64_t number)
{
    if (!gpu_case_refill(g, number, g->spec.num_sequences))
        return false;
    attn_status status = gpu_upload(g, session, GPU_REAL);
    if (status == ATTN_OK)
        status = gpu_plan(g, session, GPU_REAL);
    if (status == ATTN_OK)
        status = device_synchronize(session->device, session->stream, &g->error.base);
    return gpu_good(g, status, "init_forward_metadata");
}

static void run_replans(struct check_run *run)
{
    struct gpu_case g;
    if (!gpu_case_open_captured(&g, run, run->index))
        return;
    struct case_session *session = gpu_session(&g, ATTN_METADATA_GRAPH);
    bool good = session != NULL && replay(&g, session, 0);
    for (uint64_t number = 1; good && number < FEW_REPLAYS; number++)
        good = plan_in_vain(&g, session, 2 * number) && plan_in_vain(&g, session, 1) &&
               replay(&g, session, 2 * number + 1);
    case_session_destroy(session);
    gpu_case_close(&g);
}

/* ---- CAPT-03: launch shapes ------------------------------------------------------------------ */

/* What a forward enqueues, in order. */
struct shapes {
    struct spy_record *records;
    uint32_t count;
};

/* Is a record part of the shape? */
static bool is_work(const struct spy_record *record)
{
    return record->kind == SPY_ENQUEUE || record->kind == SPY_COPY;
}

static bool keep(struct shapes *shapes, const struct spy_record *records, uint32_t count)
{
    shapes->records = calloc(count + 1u, sizeof *shapes->records);
    shapes->count = 0;
    for (uint32_t i = 0; shapes->records && i < count; i++)
        if (is_work(&records[i]))
            shapes->records[shapes->count++] = records[i];
    return shapes->records != NULL;
}

static void describe(const struct spy_record *record, char *text, size_t size)
{
    if (record->function)
        snprintf(text, size, "%s of grid %u x %u x %u, block %u x %u x %u, %u bytes shared",
                 record->call, record->grid[0], record->grid[1], record->grid[2], record->block[0],
                 record->block[1], record->block[2], record->shared_bytes);
    else
        snprintf(text, size, "%s of %llu bytes", record->call, (unsigned long long)record->bytes);
}

static bool same_shape(const struct spy_record *a, const struct spy_record *b)
{
    return strcmp(a->call, b->call) == 0 && a->function == b->function &&
           memcmp(a->grid, b->grid, sizeof a->grid) == 0 &&
           memcmp(a->block, b->block, sizeof a->block) == 0 && a->shared_bytes == b->shared_bytes &&
           a->bytes == b->bytes;
}

static bool compare_shapes(struct gpu_case *g, const struct shapes *first,
                           const struct shapes *other)
{
    char was[160], is[160];
    for (uint32_t i = 0; i < first->count && i < other->count; i++) {
        if (same_shape(&first->records[i], &other->records[i]))
            continue;
        describe(&first->records[i], was, sizeof was);
        describe(&other->records[i], is, sizeof is);
        check_fail(g->run, "work %u of a forward: %s; with the largest lengths it was %s; %s", i,
                   is, was, g->what);
        return false;
    }
    if (first->count != other->count)
        check_fail(g->run,
                   "a forward enqueues %u pieces of work, and %u with the largest lengths; %s",
                   other->count, first->count, g->what);
    return first->count == other->count;
}

/* What a forward with GRAPH metadata enqueues for contents `number`. */
static bool look(struct gpu_case *g, struct case_session *session, const struct spy_cuda *spy,
                 uint64_t number, struct shapes *shapes)
{
    const struct spy_record *records;
    if (!gpu_case_refill(g, number, -1))
        return false;
    attn_status status = gpu_upload(g, session, GPU_REAL);
    if (status == ATTN_OK)
        status = gpu_plan(g, session, GPU_REAL);
    if (!gpu_good(g, status, "init_forward_metadata"))
        return false;
    spy->begin();
    status = gpu_forward(g, session, GPU_REAL, 0);
    spy->end();
    uint32_t count = spy->records(&records);
    if (count > SPY_MAX_RECORDS)
        check_skip(g->run, "%u calls of the driver: accepted up to %d", count, SPY_MAX_RECORDS);
    if (!gpu_good(g, status, "forward with GRAPH metadata") || count > SPY_MAX_RECORDS)
        return false;
    status = device_synchronize(session->device, session->stream, &g->error.base);
    return gpu_good(g, status, "the stream's work") && keep(shapes, records, count);
}

static void run_shapes(struct check_run *run)
{
    struct gpu_case g;
    struct spy_cuda spy;
    struct shapes first = {0}, other = {0};
    if (!gpu_find_spy(run, &spy) || !gpu_case_open_captured(&g, run, run->index))
        return;
    struct case_session *session = gpu_session(&g, ATTN_METADATA_GRAPH);
    bool good = session && look(&g, session, &spy, 0, &first);
    for (uint64_t number = 1; good && number < FEW_REPLAYS; number++) {
        good = look(&g, session, &spy, number, &other) && compare_shapes(&g, &first, &other);
        free(other.records);
        other.records = NULL;
    }
    free(first.records);
    case_session_destroy(session);
    gpu_case_close(&g);
}

/* ---- WORK-08: few multiprocessors ---------------------------------------------------------- */

enum { BUDGET = 1, BLOCKS_OF_SM = 32 };

/* A launch of more blocks than the multiprocessors of the budget hold; NULL = none. */
static const struct spy_record *find_large(const struct spy_record *records, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *grid = records[i].grid;
        if (is_work(&records[i]) && records[i].function &&
            (uint64_t)grid[0] * grid[1] * grid[2] > BUDGET * BLOCKS_OF_SM)
            return &records[i];
    }
    return NULL;
}

/* Plan and forward, spied on. */
static void look_at_budget(struct gpu_case *g, struct case_session *session,
                           const struct spy_cuda *spy)
{
    const struct spy_record *records;
    char text[160];
    attn_status status = gpu_upload(g, session, GPU_REAL);
    spy->begin();
    if (status == ATTN_OK)
        status = gpu_plan(g, session, GPU_REAL);
    if (status == ATTN_OK)
        status = gpu_forward(g, session, GPU_REAL, 0);
    spy->end();
    uint32_t count = spy->records(&records);
    if (!gpu_good(g, status, "a forward with max_sms 1"))
        return;
    const struct spy_record *large =
        find_large(records, count < SPY_MAX_RECORDS ? count : SPY_MAX_RECORDS);
    if (large)
        describe(large, text, sizeof text);
    if (large)
        check_fail(g->run, "with max_sms %d: %s; accepted: up to %d blocks; %s", BUDGET, text,
                   BUDGET * BLOCKS_OF_SM, g->what);
    gpu_good(g, device_synchronize(session->device, session->stream, &g->error.base),
             "the stream's work");
}

static void run_budget(struct check_run *run)
{
    struct gpu_case g;
    struct spy_cuda spy;
    struct case_session *session = NULL;
    if (!gpu_find_spy(run, &spy) || !gpu_case_open(&g, run, run->index))
        return;
    if (!(g.notes & ATTN_NOTE_SM_BUDGET)) {
        check_skip(run, "query does not report sm_budget; %s", g.what);
    } else {
        attn_bounds bounds = *forward_case_problem(g.c)->bounds;
        struct case_backend backend = numerics_backend(run->subject, g.options);
        struct case_setup setup = {.kind = ATTN_METADATA_EAGER, .bounds = &bounds};
        bounds.max_sms = BUDGET;
        attn_status status = case_session_create(&backend, g.c, &setup, &session, &g.error.base);
        if (status == ATTN_DEPENDENCY_MISSING)
            check_skip(run, "%s", host_error_text(&g.error));
        else if (gpu_good(&g, status, "metadata with max_sms 1"))
            look_at_budget(&g, session, &spy);
        if (run->code == CHECK_PASS && gpu_case_refill(&g, 0, g.spec.num_sequences))
            numerics_judge(run, session, g.c, &g.c->spec);
    }
    case_session_destroy(session);
    gpu_case_close(&g);
}

/* ---- CAPT-04: padding ------------------------------------------------------------------------ */

/* The judge sees to it that rows of padding are finite, that all else is what it would be without
 * them, and that nothing else is written. */
static void run_padding(struct check_run *run)
{
    struct gpu_case g;
    if (!gpu_case_open_captured(&g, run, run->index))
        return;
    if (g.spec.padded == 0)
        check_skip(run, "batches of equally many queries have no padding here; %s", g.what);
    struct case_session *session =
        run->code == CHECK_PASS ? gpu_session(&g, ATTN_METADATA_GRAPH) : NULL;
    for (int32_t n = 0; session && n < 3 * (g.spec.padded + 1); n++)
        if (!gpu_case_refill(&g, (uint64_t)n + 2, n % (g.spec.padded + 1)) ||
            !numerics_judge(run, session, g.c, &g.c->spec))
            break;
    case_session_destroy(session);
    gpu_case_close(&g);
}

/* ---- CAPT-05: to the bit --------------------------------------------------------------------- */

static bool same_bits(struct pair *p, char *eager)
{
    struct gpu_case *g = &p->g;
    struct forward_case *c = g->c;
    if (!numerics_judge(g->run, p->eager, c, &c->spec))
        return false;
    memcpy(eager, c->actual, c->bytes);
    if (!numerics_judge(g->run, p->graph, c, &c->spec))
        return false;
    const char *what = gpu_difference(g, eager, c->actual, true);
    if (what)
        check_fail(g->run,
                   "%s of a replay has other bits than that of an eager run, and the backend says "
                   "that it is deterministic; %s",
                   what, g->what);
    return !what;
}

static void run_bits(struct check_run *run)
{
    struct pair p;
    if (!pair_open(&p, run))
        return;
    char *eager = malloc(p.g.c->bytes);
    bool good = eager && p.g.notes & ATTN_NOTE_DETERMINISTIC;
    if (!good)
        check_skip(
            run, eager ? "query does not report determinism; %s" : "no memory for an eager run; %s",
            p.g.what);
    for (uint64_t number = 0; good && number < FEW_REPLAYS; number++)
        good = gpu_case_refill(&p.g, number, p.g.spec.num_sequences) && same_bits(&p, eager);
    free(eager);
    pair_close(&p);
}

/* ---- WORK-07: addresses that a graph knows --------------------------------------------------- */

/* Twice as large, where query allows that. */
static attn_bounds larger_bounds(const struct gpu_case *g, const struct case_session *session)
{
    const struct check_subject *subject = g->run->subject;
    attn_bounds bounds = session->bounds;
    attn_problem problem = *forward_case_problem(g->c);
    attn_verdict verdict = {.struct_size = sizeof verdict};
    bounds.max_seqs *= 2;
    bounds.max_tokens *= 2;
    bounds.max_kv_len *= 2;
    bounds.max_kv_tokens *= 4;
    problem.bounds = &bounds;
    attn_status status = subject->type->query(subject->type, g->options, subject->services,
                                              &problem, &verdict, NULL);
    return status == ATTN_OK && verdict.supported ? bounds : session->bounds;
}

/* Whatever else the instance and others like it do, the graph gives what it gave. */
static void disturb(struct pair *p)
{
    struct gpu_case *g = &p->g;
    struct case_session *other = NULL;
    if (!replay(g, p->graph, 0) || !numerics_judge(g->run, p->eager, g->c, &g->c->spec) ||
        !replay(g, p->graph, 2))
        return;
    case_session_destroy(p->eager);
    p->eager = NULL;
    if (!replay(g, p->graph, 3))
        return;
    attn_bounds bounds = larger_bounds(g, p->graph);
    attn_status status = session_create_beside(p->graph, &bounds, &other, &g->error.base);
    bool good = gpu_good(g, status, "more metadata of the instance, with larger bounds") &&
                gpu_good(g, gpu_run(g, other, GPU_REAL), "a run with more metadata") &&
                replay(g, p->graph, 4);
    case_session_destroy(other);
    if (good)
        replay(g, p->graph, 5);
}

static void run_others(struct check_run *run)
{
    struct pair p;
    if (!pair_open(&p, run))
        return;
    disturb(&p);
    pair_close(&p);
}

/* ---- The table ------------------------------------------------------------------------------- */

enum { COMPUTES = CHECK_NEEDS_CUDA | CHECK_NEEDS_COMPUTE };

const struct check check_capt[] = {
    CHECK_ROW("CAPT-01", captures, count_captures, CHECK_NEEDS_CUDA,
              "every mode of the graph level can be captured, in thread-local and in global mode"),
    CHECK_ROW(
        "CAPT-01", beyond, NULL, CHECK_NEEDS_CUDA,
        "beyond the graph level a capture is CAPTURE_UNSUPPORTED and the stream usable afterwards"),
    CHECK_ROW("CAPT-02", replays, gpu_num_points, COMPUTES,
              "a hundred replays, each with other lengths, slots and inputs, are right"),
    CHECK_ROW("CAPT-02", replans, gpu_num_points, COMPUTES,
              "a graph replay computes the batch that was planned last"),
    CHECK_ROW("CAPT-03", shapes, gpu_num_points, CHECK_NEEDS_CUDA,
              "a forward with GRAPH metadata enqueues the same work whatever the lengths"),
    CHECK_ROW("WORK-08", budget, gpu_num_points, COMPUTES,
              "launches keep to the multiprocessors of max_sms, and their results are right"),
    CHECK_ROW("CAPT-04", padding, gpu_num_points, COMPUTES,
              "rows of padding are finite and change nothing else"),
    CHECK_ROW("CAPT-05", bits, gpu_num_points, COMPUTES,
              "a replay of a deterministic backend equals the eager run bit for bit"),
    CHECK_ROW(
        "WORK-07", others, gpu_num_points, COMPUTES,
        "a graph is right after more metadata of its instance, and other instances, came and went"),
    {0},
};
