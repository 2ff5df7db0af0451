/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_case.c: the steps of a case on a CUDA device.
 */
#include "host/check/cases/gpu_case.h"
#include "host/check/cases/draw.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/base/clock.h"
#include "host/device/cuda.h"
#include "host/base/dtype.h"

/* ---- Points ---------------------------------------------------------------------------------- */

static const struct grid_choice choices[GRID_MAX_CHOICES + 1] = {
    {AXIS_MODE,
     BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED) | BIT(MODE_VERIFY) | BIT(MODE_DRAFT)},
    PLAIN_AND_QUANTISED,
    {AXIS_MASK, BIT(MASK_LAYER) | BIT(MASK_FULL)},
};

int32_t gpu_num_points(const struct check_subject *subject)
{
    return numerics_count(subject, choices);
}

/* Verified drafts come in batches of equally many queries for each sequence. */
static bool is_uniform(uint32_t mode)
{
    return mode == ATTN_MODE_TARGET_VERIFY || mode == ATTN_MODE_DECODE;
}

static uint32_t level_needed(uint32_t mode)
{
    if (mode == ATTN_MODE_DECODE)
        return ATTN_GRAPH_SINGLE_TOKEN;
    return is_uniform(mode) ? ATTN_GRAPH_UNIFORM : ATTN_GRAPH_ALWAYS;
}

/* Lengths that leave room below them. A padded sequence has one query, so a batch with equally many
 * queries for each sequence has none. */
static void set_largest(struct case_spec *spec)
{
    static const int32_t largest[][2] = {{75, 9}, {33, 7}, {60, 5}, {130, 8}};
    enum { COUNT = sizeof largest / sizeof largest[0], DRAFTED = 4 };
    if (spec->attn_type == ATTN_TYPE_DECODER) {
        spec->num_sequences = COUNT;
        for (int32_t s = 0; s < COUNT; s++) {
            spec->sequences[s] =
                (struct case_sequence){.prefix_len = largest[s][0], .num_new = largest[s][1]};
            if (spec->mode == ATTN_MODE_TARGET_VERIFY)
                spec->sequences[s].num_new = DRAFTED;
            if (spec->mode == ATTN_MODE_MIXED && s >= COUNT / 2)
                spec->sequences[s].num_new = 1;
        }
    }
    spec->padded = spec->mode == ATTN_MODE_TARGET_VERIFY ? 0 : spec->num_sequences;
}

/* ---- Refilling ------------------------------------------------------------------------------- */

/* Up to `most`, and not below `least`: the largest, the smallest, or drawn. */
static int32_t draw(uint64_t stream, int32_t thing, uint64_t number, int32_t least, int32_t most)
{
    if (number == 0 || most <= least)
        return most;
    return number == 1 ? least : least + draw_at(stream, (uint64_t)thing, most - least + 1);
}

static void draw_lengths(const struct gpu_case *g, uint64_t number, int32_t real,
                         struct case_spec *spec)
{
    uint64_t stream = mix_absorb(g->seed, ~number);
    *spec = g->at.spec;
    if (spec->padded > 0)
        spec->num_sequences = real >= 0 ? real : draw(stream, 0, number, 1, spec->num_sequences);
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        sequence->tokens_of = s; /* its own */
        bool fixed = is_uniform(spec->mode) || sequence->num_new == 1;
        sequence->prefix_len = draw(stream, 4 * s + 1, number, 0, sequence->prefix_len);
        if (!fixed)
            sequence->num_new = draw(stream, 4 * s + 2, number, number == 1, sequence->num_new);
        sequence->num_new_keys = draw(stream, 4 * s + 3, number, 0, sequence->num_new_keys);
    }
}

/* Which arrays there are and how tensors lie is drawn from c->seed, and must stay; so are constants. All else is drawn
 * from `seed`. */
static attn_status fill(struct gpu_case *g, uint64_t seed)
{
    struct forward_case *c = g->c;
    free(c->pages);
    free(c->needles);
    case_tokens_destroy(c->tokens);
    c->pages = NULL;
    c->needles = NULL;
    c->tokens = NULL;
    c->num_needles = 0;
    memset(c->image, CASE_RED, c->bytes);
    c->seed = c->batch_seed = seed;
    attn_status status = case_fill(c, g->seed, check_error(g->run));
    c->seed = c->batch_seed = g->seed;
    return status;
}

bool gpu_case_refill(struct gpu_case *g, uint64_t number, int32_t real)
{
    struct forward_case *c = g->c;
    draw_lengths(g, number, real, &c->spec);
    case_lengths_init(&c->lengths, &c->spec, g->seed);
    case_spec_describe(&c->spec, g->what, sizeof g->what);
    check_note(g->run, "contents %llu: %s", (unsigned long long)number, g->what);
    return gpu_good(g, fill(g, mix_absorb(g->seed, number)), "contents of the case");
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* The verdict for the largest lengths. */
static bool ask(struct gpu_case *g)
{
    attn_verdict verdict;
    const bool accepts =
        numerics_query(g->run->subject, g->at.options, forward_case_problem(g->c), &verdict);
    if (!accepts)
        check_skip(g->run, "query does not accept this case; %s", g->what);
    g->level = verdict.graph_level;
    g->needed = level_needed(g->at.spec.mode);
    g->traits = verdict.traits;
    return accepts;
}

static bool make(struct gpu_case *g, int32_t point)
{
    const int32_t index = g->run->index;
    g->run->index = point;
    const bool found = numerics_open(&g->at, g->run, choices);
    g->run->index = index;
    if (!found)
        return false;
    set_largest(&g->at.spec);
    case_spec_describe(&g->at.spec, g->what, sizeof g->what);
    g->c = numerics_case(g->run, &g->at.spec, NULL);
    if (!g->c || !ask(g))
        return false;
    g->seed = g->c->seed;
    for (int n = 0; n < GPU_UPLOADS; n++) {
        g->pinned[n] = device_allocate(g->c->device, ATTN_SPACE_PINNED, g->c->bytes, 64);
        if (!g->pinned[n]) {
            check_skip(g->run, "no pinned memory for a case of %llu bytes",
                       (unsigned long long)g->c->bytes);
            return false;
        }
    }
    return true;
}

bool gpu_case_open(struct gpu_case *g, struct check_run *run, int32_t point)
{
    *g = (struct gpu_case){.run = run};
    if (make(g, point))
        return true;
    gpu_case_close(g);
    return false;
}

/* Can the point's batches be captured? */
static bool is_capturable(struct gpu_case *g)
{
    static const char *const names[] = {"NEVER", "SINGLE_TOKEN", "UNIFORM", "ALWAYS"};
    if (g->level < g->needed)
        check_skip(g->run, "query reports graph level %s, and this needs %s; %s",
                   g->level < ATTN_GRAPH_COUNT ? names[g->level] : "?", names[g->needed], g->what);
    return g->level >= g->needed;
}

bool gpu_open(struct gpu_case *g, struct check_run *run, int32_t point, uint32_t kind)
{
    if (!gpu_case_open(g, run, point))
        return false;
    if (kind == ATTN_METADATA_EAGER || is_capturable(g))
        g->session = gpu_session(g, kind);
    if (!g->session)
        gpu_case_close(g);
    return g->session != NULL;
}

void gpu_case_close(struct gpu_case *g)
{
    case_session_destroy(g->session);
    for (int n = 0; n < GPU_UPLOADS && g->c; n++)
        device_release(g->c->device, ATTN_SPACE_PINNED, g->pinned[n]);
    forward_case_destroy(g->c);
}

struct case_session *gpu_session(struct gpu_case *g, uint32_t kind)
{
    struct case_setup setup = {.kind = kind, .exact_memory = true};
    return numerics_session(g->run, g->run->subject, g->c, g->at.options, &setup);
}

bool gpu_good(struct gpu_case *g, attn_status status, const char *what)
{
    if (status == ATTN_OK)
        return true;
    check_fail(g->run, "%s: %s: %s; %s", what, host_status_name(status), check_error_text(g->run),
               g->what);
    return false;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void lengths_of(const struct gpu_case *g, enum gpu_contents contents,
                       struct case_lengths *lengths)
{
    *lengths = g->c->lengths;
    if (contents == GPU_PADDING)
        case_lengths_pad(lengths, &g->c->spec, g->seed);
}

attn_status gpu_upload(struct gpu_case *g, enum gpu_contents contents)
{
    struct forward_case *c = g->c;
    char *pinned = g->pinned[g->num_uploads++ % GPU_UPLOADS];
    struct case_lengths lengths;
    lengths_of(g, contents, &lengths);
    memcpy(pinned, c->image, c->bytes);
    if (contents == GPU_PADDING)
        case_write_padding(c, &lengths, pinned);
    return session_bring(g->session, c, pinned, check_error(g->run));
}

/* Host arrays are copied while it is planned, if a backend copies any. */
attn_status gpu_plan(struct gpu_case *g, enum gpu_contents contents)
{
    struct case_lengths lengths;
    lengths_of(g, contents, &lengths);
    return session_plan(g->session, g->c, &lengths, ATTN_HOST_ALL, check_error(g->run));
}

attn_status gpu_prepare(struct gpu_case *g, enum gpu_contents contents)
{
    attn_status status = gpu_upload(g, contents);
    return status == ATTN_OK ? gpu_plan(g, contents) : status;
}

attn_status gpu_forward(struct gpu_case *g, enum gpu_contents contents, uint32_t flags)
{
    struct case_lengths lengths;
    lengths_of(g, contents, &lengths);
    return session_call_all(g->session, g->c, &lengths, flags, check_error(g->run));
}

attn_status gpu_run(struct gpu_case *g, enum gpu_contents contents)
{
    struct case_session *session = g->session;
    attn_status status = gpu_prepare(g, contents);
    if (status == ATTN_OK)
        status = gpu_forward(g, contents, 0);
    return status == ATTN_OK
               ? device_synchronize(session->device, session->stream, check_error(g->run))
               : status;
}

bool gpu_wait(struct gpu_case *g)
{
    const struct case_session *session = g->session;
    return gpu_good(g, device_synchronize(session->device, session->stream, check_error(g->run)),
                    "the stream's work");
}

attn_status gpu_capture(struct gpu_case *g, unsigned int mode)
{
    struct case_session *session = g->session;
    struct cuda *cuda = cuda_of(session->device);
    attn_error *error = check_error(g->run);
    attn_status status = gpu_run(g, GPU_PADDING);
    if (status != ATTN_OK)
        return status;
    cuda_result result = cuda->driver.cuStreamBeginCapture(session->stream, mode);
    status = cuda_check(cuda, result, "cuStreamBeginCapture", error);
    if (status != ATTN_OK)
        return status;
    status = gpu_forward(g, GPU_PADDING, ATTN_FORWARD_CAPTURING);
    if (status != ATTN_OK) {
        device_capture_end(session->device, session->stream, NULL, NULL);
        return status;
    }
    status = device_capture_end(session->device, session->stream, &session->graph, error);
    if (status == ATTN_OK)
        session->captured = g->c;
    return status;
}

/* ---- Gates ----------------------------------------------------------------------------------- */

static void wait_at_gate(void *argument)
{
    struct gpu_gate *gate = argument;
    const struct timespec moment = {.tv_nsec = 200000};
    while (!atomic_load(&gate->open) && clock_now_ns() < gate->until_ns)
        nanosleep(&moment, NULL);
    atomic_store(&gate->passed, 1);
}

attn_status gpu_gate_close(struct gpu_case *g, struct gpu_gate *gate, attn_stream stream)
{
    struct cuda *cuda = cuda_of(g->c->device);
    atomic_init(&gate->open, 0);
    atomic_init(&gate->passed, 0);
    gate->until_ns = clock_now_ns() + GPU_GATE_MS * (int64_t)1000000;
    cuda_result result = cuda->driver.cuLaunchHostFunc(stream, wait_at_gate, gate);
    return cuda_check(cuda, result, "cuLaunchHostFunc", check_error(g->run));
}

void gpu_gate_open(struct gpu_case *g, struct gpu_gate *gate, attn_stream stream)
{
    atomic_store(&gate->open, 1);
    gpu_good(g, device_synchronize(g->c->device, stream, check_error(g->run)), "the stream's work");
}

/* ---- The spy --------------------------------------------------------------------------------- */

bool gpu_find_spy(struct check_run *run, struct spy_cuda *spy)
{
    char why[160];
    bool found = spy_find(spy, why, sizeof why);
    if (!found)
        check_skip(run, "%s", why);
    return found;
}
