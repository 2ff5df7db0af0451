/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_capture.c: the group CAPT, and WORK-07: captures, and replays of a graph with other
 * contents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/cases/gpu_case.h"
#include "host/device/cuda.h"

/* ---- CAPT-01: what can be captured ----------------------------------------------------------- */

/* A captured graph runs, and the stream after it. */
static bool launch(struct gpu_case *g)
{
    struct case_session *session = g->session;
    attn_status status = gpu_prepare(g, GPU_REAL);
    if (!gpu_good(g, status, "init_forward_metadata for a replay"))
        return false;
    status =
        device_graph_launch(session->device, session->graph, session->stream, check_error(g->run));
    if (status == ATTN_OK)
        status = device_synchronize(session->device, session->stream, check_error(g->run));
    return gpu_good(g, status, "launch of the graph");
}

/* Each point in both modes. */
CHECK_COUNT(captures, 2 * gpu_num_points(subject))

static void run_captures(struct check_run *run)
{
    bool global = run->index % 2;
    struct gpu_case g;
    if (!gpu_open(&g, run, run->index / 2, ATTN_METADATA_GRAPH))
        return;
    attn_status status = gpu_capture(&g, global ? CUDA_CAPTURE_GLOBAL : CUDA_CAPTURE_THREAD_LOCAL);
    if (gpu_good(&g, status, global ? "capture, global mode" : "capture, thread-local mode"))
        launch(&g);
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
                   host_status_name(status), check_error_text(g->run), g->what);
}

/* Some call on the way to a graph refuses: metadata_size, or metadata_create, or planning where the
 * bounds do not say, or the forward. */
static void refuse_metadata(struct gpu_case *g)
{
    struct case_backend backend = numerics_backend(g->run->subject, g->at.options);
    struct case_setup setup = {.kind = ATTN_METADATA_GRAPH};
    attn_status status =
        case_session_create(&backend, g->c, &setup, &g->session, check_error(g->run));
    if (status == ATTN_OK) {
        status = gpu_run(g, GPU_REAL);
        if (status == ATTN_OK)
            status = gpu_capture(g, CUDA_CAPTURE_THREAD_LOCAL);
    }
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(g->run, "%s", check_error_text(g->run));
    expect_refusal(g, status, "GRAPH metadata and a capture");
    case_session_destroy(g->session);
    g->session = NULL;
}

/* With metadata for eager runs, which is always there. */
static void refuse_capture(struct gpu_case *g)
{
    struct case_session *session = g->session;
    attn_status status = gpu_run(g, GPU_REAL);
    if (status == ATTN_OK)
        status = device_capture_begin(session->device, session->stream, check_error(g->run));
    if (!gpu_good(g, status, "before a capture"))
        return;
    status = gpu_forward(g, GPU_REAL, ATTN_FORWARD_CAPTURING);
    device_capture_end(session->device, session->stream, NULL, NULL);
    expect_refusal(g, status, "a forward in a capture");
}

static void check_beyond(struct gpu_case *g)
{
    refuse_metadata(g);
    g->session = g->run->code == CHECK_PASS ? gpu_session(g, ATTN_METADATA_EAGER) : NULL;
    if (g->session) {
        refuse_capture(g);
        gpu_good(g, gpu_run(g, GPU_REAL), "the stream after a refused capture");
    }
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

/* body() with a session whose graph was captured. */
static void with_graph(struct check_run *run, void (*body)(struct gpu_case *g))
{
    struct gpu_case g;
    if (!gpu_open(&g, run, run->index, ATTN_METADATA_GRAPH))
        return;
    body(&g);
    gpu_case_close(&g);
}

/* And with one that runs the same eagerly. */
static void with_pair(struct check_run *run,
                      void (*body)(struct gpu_case *g, struct case_session **eager))
{
    struct gpu_case g;
    if (!gpu_open(&g, run, run->index, ATTN_METADATA_GRAPH))
        return;
    struct case_session *eager = gpu_session(&g, ATTN_METADATA_EAGER);
    if (eager)
        body(&g, &eager);
    case_session_destroy(eager);
    gpu_case_close(&g);
}

/* Replay contents number `number`, and let the oracle judge. Without padding, whose group is
 * CAPT-04. */
static bool replay(struct gpu_case *g, uint64_t number)
{
    return gpu_case_refill(g, number, g->at.spec.num_sequences) &&
           numerics_judge(g->run, g->session, g->c);
}

static void replay_all(struct gpu_case *g)
{
    for (uint64_t number = 0; number < REPLAYS; number++)
        if (!replay(g, number))
            break;
}

CHECK_RUN(replays, with_graph(run, replay_all))

/* Contents that were planned but never run do not affect the next ones. */
static bool plan_in_vain(struct gpu_case *g, uint64_t number)
{
    if (!gpu_case_refill(g, number, g->at.spec.num_sequences))
        return false;
    attn_status status = gpu_prepare(g, GPU_REAL);
    if (status == ATTN_OK)
        status = device_synchronize(g->session->device, g->session->stream, check_error(g->run));
    return gpu_good(g, status, "init_forward_metadata");
}

static void replan_all(struct gpu_case *g)
{
    bool good = replay(g, 0);
    for (uint64_t number = 1; good && number < FEW_REPLAYS; number++)
        good = plan_in_vain(g, 2 * number) && plan_in_vain(g, 1) && replay(g, 2 * number + 1);
}

CHECK_RUN(replans, with_graph(run, replan_all))

/* ---- CAPT-03: launch shapes ------------------------------------------------------------------ */

/* The work of a forward, in order. */
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

/* The work of a forward with GRAPH metadata for contents `number`. */
static bool look(struct gpu_case *g, const struct spy_cuda *spy, uint64_t number,
                 struct shapes *shapes)
{
    const struct spy_record *records;
    if (!gpu_case_refill(g, number, -1) ||
        !gpu_good(g, gpu_prepare(g, GPU_REAL), "init_forward_metadata"))
        return false;
    spy->begin();
    attn_status status = gpu_forward(g, GPU_REAL, 0);
    spy->end();
    uint32_t count = spy->records(&records);
    if (count > SPY_MAX_RECORDS)
        check_skip(g->run, "%u calls of the driver: accepted up to %d", count, SPY_MAX_RECORDS);
    if (!gpu_good(g, status, "forward with GRAPH metadata") || count > SPY_MAX_RECORDS)
        return false;
    return gpu_wait(g) && keep(shapes, records, count);
}

static void look_at_shapes(struct gpu_case *g)
{
    struct spy_cuda spy;
    struct shapes first = {0}, other = {0};
    bool good = gpu_find_spy(g->run, &spy) && look(g, &spy, 0, &first);
    for (uint64_t number = 1; good && number < FEW_REPLAYS; number++) {
        good = look(g, &spy, number, &other) && compare_shapes(g, &first, &other);
        free(other.records);
        other.records = NULL;
    }
    free(first.records);
}

CHECK_RUN(shapes, with_graph(run, look_at_shapes))

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
static void look_at_budget(struct gpu_case *g, const struct spy_cuda *spy)
{
    const struct spy_record *records;
    char text[160];
    attn_status status = gpu_upload(g, GPU_REAL);
    spy->begin();
    if (status == ATTN_OK)
        status = gpu_plan(g, GPU_REAL);
    if (status == ATTN_OK)
        status = gpu_forward(g, GPU_REAL, 0);
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
    gpu_wait(g);
}

static void run_budget(struct check_run *run)
{
    struct gpu_case g;
    struct spy_cuda spy;
    if (!gpu_find_spy(run, &spy) || !gpu_case_open(&g, run, run->index))
        return;
    if (!(g.traits & ATTN_TRAIT_SM_BUDGET)) {
        check_skip(run, "query does not report sm_budget; %s", g.what);
    } else {
        attn_bounds bounds = *forward_case_problem(g.c)->bounds;
        struct case_backend backend = numerics_backend(run->subject, g.at.options);
        struct case_setup setup = {.kind = ATTN_METADATA_EAGER, .bounds = &bounds};
        bounds.max_sms = BUDGET;
        attn_status status =
            case_session_create(&backend, g.c, &setup, &g.session, check_error(g.run));
        if (status == ATTN_DEPENDENCY_MISSING)
            check_skip(run, "%s", check_error_text(g.run));
        else if (gpu_good(&g, status, "metadata with max_sms 1"))
            look_at_budget(&g, &spy);
        if (run->code == CHECK_PASS && gpu_case_refill(&g, 0, g.at.spec.num_sequences))
            numerics_judge(run, g.session, g.c);
    }
    gpu_case_close(&g);
}

/* ---- CAPT-04: padding ------------------------------------------------------------------------ */

/* The judge checks that rows of padding are finite, that all other results are as without them, and
 * that nothing else is written. */
static void replay_padded(struct gpu_case *g)
{
    if (g->at.spec.padded == 0) {
        check_skip(g->run,
                   "this batch has no padding, as each sequence has the same number of queries; %s",
                   g->what);
        return;
    }
    for (int32_t n = 0; n < 3 * (g->at.spec.padded + 1); n++)
        if (!gpu_case_refill(g, (uint64_t)n + 2, n % (g->at.spec.padded + 1)) ||
            !numerics_judge(g->run, g->session, g->c))
            break;
}

CHECK_RUN(padding, with_graph(run, replay_padded))

/* ---- CAPT-05: to the bit --------------------------------------------------------------------- */

static bool same_bits(struct gpu_case *g, struct case_session *eager, char *kept)
{
    struct forward_case *c = g->c;
    if (!numerics_judge(g->run, eager, c))
        return false;
    memcpy(kept, c->actual, c->bytes);
    if (!numerics_judge(g->run, g->session, c))
        return false;
    const char *what = case_output_difference(c, kept, c->actual, 0);
    if (what)
        check_fail(g->run,
                   "%s of a replay has other bits than that of an eager run, and the backend says "
                   "that it is deterministic; %s",
                   what, g->what);
    return !what;
}

static void compare_bits(struct gpu_case *g, struct case_session **eager)
{
    char *kept = malloc(g->c->bytes);
    bool good = kept && g->traits & ATTN_TRAIT_DETERMINISTIC;
    if (!good)
        check_skip(g->run,
                   kept ? "query does not report determinism; %s"
                        : "no memory for an eager run; %s",
                   g->what);
    for (uint64_t number = 0; good && number < FEW_REPLAYS; number++)
        good = gpu_case_refill(g, number, g->at.spec.num_sequences) && same_bits(g, *eager, kept);
    free(kept);
}

CHECK_RUN(bits, with_pair(run, compare_bits))

/* ---- WORK-07: addresses that a graph knows --------------------------------------------------- */

/* Twice as large, where query allows that. */
static attn_bounds larger_bounds(const struct gpu_case *g)
{
    const struct case_session *session = g->session;
    attn_bounds bounds = session->bounds;
    attn_problem problem = *forward_case_problem(g->c);
    attn_verdict verdict;
    bounds.max_seqs *= 2;
    bounds.max_tokens *= 2;
    bounds.max_kv_len *= 2;
    bounds.max_kv_tokens *= 4;
    problem.bounds = &bounds;
    return numerics_query(g->run->subject, g->at.options, &problem, &verdict) ? bounds
                                                                              : session->bounds;
}

/* The graph's results do not depend on other work of its instance or of other instances. */
static void disturb(struct gpu_case *g, struct case_session **eager)
{
    struct case_session *other = NULL;
    if (!replay(g, 0) || !numerics_judge(g->run, *eager, g->c) || !replay(g, 2))
        return;
    case_session_destroy(*eager);
    *eager = NULL;
    if (!replay(g, 3))
        return;
    struct case_session *own = g->session;
    attn_bounds bounds = larger_bounds(g);
    attn_status status = session_create_beside(own, &bounds, &other, check_error(g->run));
    bool good = gpu_good(g, status, "more metadata of the instance, with larger bounds");
    if (good) {
        g->session = other;
        good = gpu_good(g, gpu_run(g, GPU_REAL), "a run with more metadata");
        g->session = own;
    }
    good = good && replay(g, 4);
    case_session_destroy(other);
    if (good)
        replay(g, 5);
}

CHECK_RUN(others, with_pair(run, disturb))

/* ---- The table ------------------------------------------------------------------------------- */

enum { COMPUTES = CHECK_NEEDS_CUDA | CHECK_NEEDS_COMPUTE };

const struct check check_capt[] = {
    CHECK_ROW("CAPT-01", captures, count_captures, CHECK_NEEDS_CUDA,
              "every mode of the graph level can be captured, in thread-local and in global mode"),
    CHECK_ROW(
        "CAPT-01", beyond, NULL, CHECK_NEEDS_CUDA,
        "a capture above the graph level is CAPTURE_UNSUPPORTED, and the stream stays usable"),
    CHECK_ROW("CAPT-02", replays, gpu_num_points, COMPUTES,
              "a hundred replays, each with new lengths, slots and inputs, give right results"),
    CHECK_ROW("CAPT-02", replans, gpu_num_points, COMPUTES,
              "a graph replay computes the batch that was planned last"),
    CHECK_ROW("CAPT-03", shapes, gpu_num_points, CHECK_NEEDS_CUDA,
              "a forward with GRAPH metadata enqueues the same work whatever the lengths"),
    CHECK_ROW("WORK-08", budget, gpu_num_points, COMPUTES,
              "launches use at most max_sms multiprocessors, and their results are right"),
    CHECK_ROW("CAPT-04", padding, gpu_num_points, COMPUTES,
              "rows of padding are finite and change nothing else"),
    CHECK_ROW("CAPT-05", bits, gpu_num_points, COMPUTES,
              "a replay of a deterministic backend equals the eager run bit for bit"),
    CHECK_ROW(
        "WORK-07", others, gpu_num_points, COMPUTES,
        "a graph stays right after other metadata and other instances are created and destroyed"),
    {0},
};
