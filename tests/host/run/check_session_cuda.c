/* SPDX-License-Identifier: Apache-2.0
 *
 * check_session_cuda.c: whole runs on a GPU, without one: the fake CUDA driver, the host's own
 * kernels as host functions, and the backend cuda_fixture, whose rows have the same bits in every
 * batch. So a run must come to one digest whatever the scheduling, eagerly and from graphs, however
 * slow the device is, and after the device was lost.
 */
#include <math.h>
#include <time.h>

#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/cuda_fixture.h"
#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/fixtures/host_kernels.h"
#include "tests/host/run/session_run.h"

enum { LAYERS = 2, SETTINGS = 5 };

/* ---- A run ----------------------------------------------------------------------------------- */

/* Requests that share beginnings and decode for a while. */
static const char *const requests[] = {
    "\"input_length\": 1452, \"output_length\": 760, \"hash_ids\": [0, 7, 8]",
    "\"input_length\": 2376, \"output_length\": 340, \"hash_ids\": [0, 7, 9, 10, 11]",
    "\"input_length\": 785, \"output_length\": 1190, \"hash_ids\": [0, 12]",
    "\"input_length\": 3172, \"output_length\": 505, \"hash_ids\": [0, 7, 9, 13, 14, 15, 16]",
    "\"input_length\": 640, \"output_length\": 0, \"hash_ids\": [17, 18]",
    "\"input_length\": 1300, \"output_length\": 810, \"hash_ids\": [0, 12, 19]",
};

static char trace_path[64];

static void write_trace(void)
{
    snprintf(trace_path, sizeof trace_path, "check_session_cuda_XXXXXX");
    int descriptor = mkstemp(trace_path);
    ck_assert_int_ge(descriptor, 0);
    FILE *file = fdopen(descriptor, "w");
    for (size_t r = 0; r < sizeof requests / sizeof requests[0]; r++)
        fprintf(file, "{\"timestamp\": %d, %s}\n", (int)r * 100, requests[r]);
    fclose(file);
}

/* A small model and a small trace, on this device by this backend. */
static void begin(struct run *run, const char *device, const char *backend)
{
    char fixture[4096];
    memset(run, 0, sizeof *run);
    report_init(&run->report);
    host_error_init(&run->error);
    fixture_path("cuda_fixture.so", fixture);
    set(run, "plugins.path=%s", fixture);
    set(run, "plugins.path=%s", environment("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs"));
    set(run, "platform.device=%s", device);
    set(run, "attention.attention_backend=%s", backend);
    set(run, "attention.mm_attention_backend=%s", backend);
    set(run, "backend.fixture.type=cuda_fixture");
    set(run, "backend.fixture.takes_encoders=yes");
    set(run, "backend.fixture.takes_trees=yes");
    set(run, "cuda_graph.bs=1 2 4");
    set(run, "workload.trace=%s", trace_path);
    set(run, "workload.length_scale=0.01");
    set(run, "workload.chunked_prefill_size=16");
    set(run, "workload.max_running_requests=4");
    set(run, "kv_cache.page_size=4");
    set(run, "model.num_layers=%d", LAYERS);
    set(run, "model.num_q_heads=4");
    set(run, "model.num_kv_heads=2");
    set(run, "model.head_dim=8");
    set(run, "model.dtype=f32");
    set(run, "model.max_context_len=256");
    set(run, "workload.num_threads=1");
    set(run, "verify.rate=1");
}

/* A fake driver with all kernels; again before each run, so that its counters are that run's. */
static void prepare_device(void)
{
    fake.reset();
    host_kernels_define(&fake);
    cuda_fixture_define(&fake);
}

static void set_up(void)
{
    use_fake_cuda_in_plugins();
    prepare_device();
    write_trace();
}

/* After a run. */
static void check_device(void)
{
    assert_nothing_left();
    assert_clean();
}

static void tear_down(void)
{
    check_device();
    fake.reset();
    unlink(trace_path);
}

/* Run with up to SETTINGS settings more. */
static void go_with(struct run *run, const char *device, const char *backend,
                    const char *const settings[SETTINGS])
{
    begin(run, device, backend);
    set_list(run, settings, SETTINGS);
    go(run);
}

/* A good run by the fixture on a device with new counters, which it leaves empty. */
static void go_good(struct run *run, const char *const settings[SETTINGS])
{
    prepare_device();
    go_with(run, "cuda:0", "fixture", settings);
    check_good(run, fake.first_fault());
    check_device();
}

/* The same of a run to compare others with: the next one has a new device. */
static void go_plain(struct run *run, const char *const settings[SETTINGS])
{
    set_up();
    go_good(run, settings);
    prepare_device();
}

/* A good run that came to the other's results. */
static void check_same(const struct run *run, const struct run *other)
{
    check_good(run, fake.first_fault());
    check_equal_counts(&run->report, &other->report);
    ck_assert_str_eq(run->report.digest, other->report.digest);
}

static void end_both(struct run *a, struct run *b)
{
    finish(a);
    finish(b);
    tear_down();
}

/* The identity that holds whatever was computed twice. */
static int64_t input_tokens(const struct report *r)
{
    return r->tokens.prefill + r->tokens.prefix_hit - r->tokens.recomputed;
}

/* ---- Looking at launches --------------------------------------------------------------------- */

/* Graphs of a run: of three sizes, each with hints of shared prefixes and without. */
enum { CAPTURES = 6 };

/* What the attend kernel notes; it runs in a stream's thread. */
static struct spy {
    int64_t graph_rows;     /* launches with metadata for graphs */
    int64_t eager_decodes;  /* DECODE batches with other metadata */
    int64_t extends;        /* all other modes */
    unsigned int grids[64]; /* rows of the first launches with metadata for graphs */
    int decodes_first;      /* of these, launched before any other mode */
    void (*then)(const struct fake_cuda_launch *launch); /* NULL = nothing */
} spy;

static void note_attend(const struct fake_cuda_launch *launch)
{
    const cuda_fixture_params *p = launch->arguments[0];
    if (p->counts) {
        if (spy.graph_rows < 64)
            spy.grids[spy.graph_rows] = launch->grid[0];
        spy.graph_rows++;
        spy.decodes_first += spy.extends == 0;
    } else if (p->batch.mode == ATTN_MODE_DECODE) {
        spy.eager_decodes++;
    } else {
        spy.extends++;
    }
    cuda_fixture_attend(launch);
    if (spy.then)
        spy.then(launch);
}

static void watch_launches(void (*then)(const struct fake_cuda_launch *launch))
{
    static const size_t sizes[] = {sizeof(cuda_fixture_params)};
    memset(&spy, 0, sizeof spy);
    spy.then = then;
    fake.define_kernel(CUDA_FIXTURE_ATTEND, note_attend, sizes, 1, &fake);
}

/* ---- Equal results --------------------------------------------------------------------------- */

#define CROSS "model.num_layers=3", "model.layer_types=full cross encoder"
#define WINDOWS                                                                                    \
    "model.layer_types=sliding full", "model.sliding_window=9", "kv_cache.hybrid_swa_memory=yes"
#define CHUNKS                                                                                     \
    "model.layer_types=chunked full", "model.attention_chunk=16", "kv_cache.hybrid_swa_memory=yes"
#define TREES     "speculative.draft_tokens=6", "speculative.topk=2"
#define VISION    "model.num_layers=3", "model.layer_types=full full encoder"
#define EMBEDDING "model.attn_type=encoder_only", "workload.chunked_prefill_size=32"

/* Settings that change how the trace is run, and those that change what is computed. */
static const char *const variants[][SETTINGS] = {
    {NULL},
    {"workload.mixed=yes"},
    {"workload.chunked_prefill_size=0"},
    {"workload.chunked_prefill_size=7", "workload.mixed=yes", "cuda_graph.bs=3"},
    {"kv_cache.page_size=1"},
    {"kv_cache.page_size=16", "kv_cache.layout=hnd", "backend.fixture.index_form=block_table"},
    {"backend.fixture.index_form=block_table", "backend.fixture.fill_value=0"},
    {"backend.fixture.index_form=csr", "cuda_graph.bs=1-4"},
    {"backend.fixture.graph_level=single_token", "cuda_graph.bs=64"},
    {"kv_cache.prefix_cache=no", "cuda_graph.bs=2"},
    {"kv_cache.max_total_tokens=60", "workload.max_running_requests=8"},
    {"workload.max_running_requests=1"},
    {"model.layer_types=sliding full", "model.sliding_window=9"},
    {"model.layer_types=chunked full", "model.attention_chunk=16"},
    {"model.sinks=yes", "model.logit_cap=20", "model.v_head_dim=12"},
    {"model.dtype=bf16"},
    {"model.dtype=f16", "verify.rate=0.3"},
    {"verify.rate=0.05", "workload.seed=7"},
    {"speculative.draft_tokens=3", "speculative.acceptance=0.5"},
    {"speculative.draft_tokens=4", "cuda_graph.bs=3", "model.layer_types=sliding full",
     "model.sliding_window=9"},
    {"speculative.draft_tokens=2", "backend.fixture.index_form=csr", "cuda_graph.bs=1-4",
     "backend.fixture.fill_value=0"},
    {WINDOWS},
    {WINDOWS, "speculative.draft_tokens=3"},
    {CHUNKS},
    {CHUNKS, "backend.fixture.index_form=csr"},
    {CROSS},
    {CROSS, "workload.mixed=yes", "workload.chunked_prefill_size=7"},
    {CROSS, "kv_cache.max_total_tokens=60", "cuda_graph.bs=3"},
    {CROSS, "backend.fixture.index_form=csr", "backend.fixture.fill_value=0"},
    {CROSS, "backend.fixture.index_form=block_table", "kv_cache.layout=hnd"},
    {TREES},
    {TREES, "speculative.acceptance=0.9", "cuda_graph.bs=3", "backend.fixture.index_form=csr"},
    {TREES, "backend.fixture.fill_value=0", "cuda_graph.bs=1-4", "model.dtype=bf16"},
    {TREES, "kv_cache.max_total_tokens=90", "backend.fixture.index_form=block_table"},
    {TREES, WINDOWS},
    {TREES, CHUNKS},
    {"speculative.draft_tokens=9", "speculative.topk=4", "model.layer_types=chunked full",
     "model.attention_chunk=16"},
    {VISION},
    {VISION, "workload.mixed=yes", "workload.chunked_prefill_size=7"},
    {VISION, "kv_cache.max_total_tokens=60", "cuda_graph.bs=3"},
    {VISION, "backend.fixture.index_form=csr", "backend.fixture.fill_value=0"},
    {"model.num_layers=4", "model.layer_types=sliding full encoder encoder",
     "model.sliding_window=9", "kv_cache.hybrid_swa_memory=yes", "model.dtype=bf16"},
    {EMBEDDING},
    {EMBEDDING, "model.dtype=bf16", "workload.max_running_requests=2"},
    {"model.attn_type=encoder_only", "workload.chunked_prefill_size=0",
     "backend.fixture.index_form=csr"},
};

/* An encoder alone decodes nothing that could be a graph. */
static bool has_graphs(const char *const settings[SETTINGS])
{
    for (int s = 0; s < SETTINGS && settings[s]; s++)
        if (strcmp(settings[s], "model.attn_type=encoder_only") == 0)
            return false;
    return true;
}

/* On the processor by cpu_native, on the device eagerly, and from graphs: the same tokens, and on
 * the device the same bits. */
LOOP_OF(runs, results_are_equal, 0, COUNT(variants))
{
    static const char *const names[] = {"cpu", "eager", "graphs"};
    struct run runs[3];
    set_up();
    for (int i = 0; i < 3; i++) {
        begin(&runs[i], i ? "cuda:0" : "cpu", i ? "fixture" : "cpu_native");
        set_list(&runs[i], variants[_i], SETTINGS);
        set(&runs[i], "cuda_graph.enable=%s", i == 1 ? "no" : "yes");
        prepare_device();
        go(&runs[i]);
        struct fake_cuda_counters counters;
        fake.get_counters(&counters);
        if (runs[i].report.verify.rows_checked == 0)
            ck_abort_msg("%s: %s", names[i], host_error_text(&runs[i].error));
        check_good(&runs[i], fake.first_fault());
        check_equal_counts(&runs[i].report, &runs[0].report);
        bool graphs = i == 2 && has_graphs(variants[_i]);
        ck_assert_int_eq(counters.graph_launches > 0, graphs);
        ck_assert_int_eq(runs[i].report.graphs.count > 0, graphs);
        check_device();
    }
    ck_assert_str_eq(runs[1].report.digest, runs[2].report.digest);
    finish_all(runs, 3);
    tear_down();
}

/* How requests are batched and where their keys lie is not in the digest. */
TEST_OF(runs, digest_does_not_depend_on_the_schedule)
{
    static const char *const schedules[][SETTINGS] = {
        {NULL},
        {"workload.mixed=yes", "cuda_graph.bs=3"},
        {"kv_cache.layout=hnd", "backend.fixture.index_form=csr"},
        {"cuda_graph.enable=no", "backend.fixture.index_form=block_table"},
        {"backend.fixture.fill_value=0", "cuda_graph.bs=1-4"},
    };
    struct run runs[5];
    set_up();
    for (int i = 0; i < 5; i++) {
        go_good(&runs[i], schedules[i]);
        ck_assert_str_eq(runs[i].report.digest, runs[0].report.digest);
    }
    finish_all(runs, 5);
    tear_down();
}

/* Rows that are checked with verify.rate 1: those of the prompts and those that decode computed in
 * each layer, rejected drafts among them, and those of the draft model's one. */
static int64_t count_drafted_rows(const struct report *r)
{
    int64_t prompts = r->tokens.prefill - r->tokens.recomputed;
    int64_t wasted = r->drafts.drafted - r->drafts.accepted;
    return LAYERS * (prompts + r->tokens.decode + wasted) + prompts + r->drafts.draft_extend;
}

/* Drafts, in chains and in trees, from graphs and without, are in no row: this backend adds up what
 * a row sees in one order. Nor is whose graph a verification is. */
TEST_OF(runs, digest_does_not_depend_on_drafts)
{
    static const char *const ways[][SETTINGS] = {
        {"kv_cache.prefix_cache=no"},
        {"kv_cache.prefix_cache=no", "speculative.draft_tokens=4"},
        {"kv_cache.prefix_cache=no", TREES},
        {"kv_cache.prefix_cache=no", TREES, "cuda_graph.enable=no"},
        {"kv_cache.prefix_cache=no", TREES, "speculative.acceptance=0", "cuda_graph.bs=3"},
    };
    struct run runs[5];
    set_up();
    for (int i = 0; i < 5; i++) {
        go_good(&runs[i], ways[i]);
        ck_assert_str_eq(runs[i].report.digest, runs[0].report.digest);
        ck_assert_int_eq(runs[i].report.drafts.present, i > 0);
        ck_assert_int_eq(runs[i].report.drafts.verifications > 0, i > 0);
        ck_assert_int_eq(runs[i].report.drafts.accepted > 0, i > 0 && i < 4);
        if (i > 0)
            ck_assert_int_eq(runs[i].report.verify.rows_checked,
                             count_drafted_rows(&runs[i].report));
    }
    finish_all(runs, 5);
    tear_down();
}

/* A row sees all rows of its verification: the mask is filled for as long as the kernel runs. */
static void attend_blindly(const struct fake_cuda_launch *launch)
{
    const cuda_fixture_params *p = launch->arguments[0];
    const int64_t *indptr;
    uint8_t *bits = NULL, kept[4096];
    int64_t bytes = 0;
    if (p->mask.kind == ATTN_MASK_QLEN) {
        int32_t seqs = p->batch.num_seqs;
        indptr = fake.access((cuda_pointer)(uintptr_t)p->mask.indptr.device,
                             ((size_t)seqs + 1) * sizeof *indptr);
        bytes = indptr[seqs];
        ck_assert_int_le(bytes, (int64_t)sizeof kept);
        bits = fake.access((cuda_pointer)(uintptr_t)p->mask.bits, (size_t)bytes);
        memcpy(kept, bits, (size_t)bytes);
        memset(bits, 0xFF, (size_t)bytes);
    }
    cuda_fixture_attend(launch);
    if (bits)
        memcpy(bits, kept, (size_t)bytes);
}

/* Where every draft is turned down nothing that stays shows what they see: their own rows come back
 * and are judged, of eager steps, of graphs, and of steps in flight. */
LOOP_OF(runs, rejected_drafts_are_judged, 0, 3)
{
    static const char *const ways[][SETTINGS] = {
        {TREES, "speculative.acceptance=0", "cuda_graph.enable=no"},
        {TREES, "speculative.acceptance=0", "cuda_graph.bs=1-4"},
        {TREES, "speculative.acceptance=0", "cuda_graph.bs=3"},
    };
    static const size_t sizes[] = {sizeof(cuda_fixture_params)};
    struct run right, wrong;
    set_up();
    go_good(&right, ways[_i]);
    ck_assert_int_eq(right.report.graphs.count > 0, _i > 0);
    ck_assert_int_eq(right.report.drafts.accepted, 0);
    ck_assert_int_eq(right.report.verify.rows_checked, count_drafted_rows(&right.report));
    prepare_device();
    fake.define_kernel(CUDA_FIXTURE_ATTEND, attend_blindly, sizes, 1, &fake);
    go_with(&wrong, "cuda:0", "fixture", ways[_i]);
    ck_assert_int_eq(wrong.code, EXIT_CHECK_FAILED);
    check_equal_counts(&wrong.report, &right.report);
    ck_assert_int_gt(wrong.report.verify.rows_failed, wrong.report.drafts.drafted / 2);
    end_both(&right, &wrong);
}

/* Two instances over one KV cache, of which one reads pages and one slots, give what one gives;
 * only the one for decode is captured. */
LOOP_OF(runs, two_backends_share_the_cache, 0, 2)
{
    static const char *const pairs[][SETTINGS] = {
        {"attention.prefill_attention_backend=fixture", "attention.decode_attention_backend=other"},
        {"attention.prefill_attention_backend=other", "attention.decode_attention_backend=fixture",
         "workload.mixed=yes"},
    };
    struct run plain, pair;
    go_plain(&plain, (const char *const[SETTINGS]){pairs[_i][2]});
    begin(&pair, "cuda:0", "fixture");
    set_list(&pair, pairs[_i], SETTINGS);
    set(&pair, "backend.other.type=cuda_fixture");
    set(&pair, "backend.other.index_form=csr");
    go(&pair);
    check_same(&pair, &plain);
    ck_assert_uint_eq(pair.report.num_paths, 2);
    ck_assert_int_gt(pair.report.graphs.count, 0);
    end_both(&plain, &pair);
}

/* ---- Shared prefixes ------------------------------------------------------------------------- */

/* Hints of shared prefixes in the launches of a run; written in a stream's thread. */
static struct {
    uint32_t frozen_levels;   /* of a graph */
    int64_t rows, saved_keys; /* of all layers */
    int faults;               /* against KV-15 */
} prefixes;

/* Ints in the device's memory. */
static const int32_t *ints(const int32_t *address, int64_t count)
{
    return fake.access((cuda_pointer)(uintptr_t)address, (size_t)count * sizeof *address);
}

/* The slots of the first `len` keys of a sequence. */
static const int32_t *slots_of(const cuda_fixture_params *p, int32_t s, int32_t len)
{
    int64_t row = ints(p->batch.req_pool_indices.device, s + 1)[s];
    return ints(p->kv.req_to_token.device + row * p->kv.req_to_token_stride, len);
}

/* A run of a level within one of the level before, which has its first `base` keys in common, and
 * ends at `most`: its keys lie in the same slots. */
static void note_run(const cuda_fixture_params *p, int32_t first, int32_t end, int32_t len,
                     int32_t most, int32_t base)
{
    const int32_t *lens = ints(p->batch.seq_lens.device, end);
    prefixes.faults += end > most || len < base || len % p->page_size != 0;
    for (int32_t s = first + 1; s < end && len > 0; s++)
        prefixes.faults += lens[s] <= len || memcmp(slots_of(p, s, len), slots_of(p, first, len),
                                                    (size_t)len * sizeof(int32_t)) != 0;
    prefixes.saved_keys += (int64_t)(end - first - 1) * (len - base);
}

static void note_level(const cuda_fixture_params *p, uint32_t l)
{
    const attn_shared_prefix *outer = l > 0 ? &p->levels[l - 1] : NULL;
    uint32_t count = p->levels[l].num_groups;
    const int32_t *seqs = ints(p->levels[l].seq_indptr.device, count + 1);
    const int32_t *lens = ints(p->levels[l].prefix_len.device, count);
    const int32_t *ends = outer ? ints(outer->seq_indptr.device + 1, outer->num_groups) : NULL;
    const int32_t *bases = outer ? ints(outer->prefix_len.device, outer->num_groups) : NULL;
    prefixes.faults += p->counts && count != (uint32_t)p->batch.num_seqs;
    for (uint32_t r = 0, within = 0; r < count; r++) {
        if (seqs[r] == seqs[r + 1])
            continue;
        while (outer && ends[within] <= seqs[r])
            within++;
        note_run(p, seqs[r], seqs[r + 1], lens[r], outer ? ends[within] : p->batch.num_seqs,
                 outer ? bases[within] : 0);
        prefixes.rows += l == 0 && lens[r] > 0 ? seqs[r + 1] - seqs[r] : 0;
    }
}

/* A graph has as many levels and runs as its bounds, or none; eager batches those that there are.
 */
static void note_prefixes(const struct fake_cuda_launch *launch)
{
    const cuda_fixture_params *p = launch->arguments[0];
    uint32_t num_levels = p->batch.num_prefix_levels;
    if (num_levels > (p->batch.mode == ATTN_MODE_DECODE ? CUDA_FIXTURE_MAX_LEVELS : 0u) ||
        (p->counts && num_levels != 0 && num_levels != prefixes.frozen_levels)) {
        prefixes.faults++;
        return;
    }
    for (uint32_t l = 0; l < num_levels; l++)
        note_level(p, l);
}

/* The report counts the hints that launches got, eagerly and from graphs; graphs get hints where
 * that is worth it; and results are those of a backend that accepts no hints. */
TEST_OF(runs, shared_prefixes_are_told)
{
    static const char *const ways[] = {
        "cuda_graph.enable=yes",
        "cuda_graph.enable=no",
        "backend.fixture.takes_prefixes=no",
    };
    struct run runs[3];
    set_up();
    for (int i = 0; i < 3; i++) {
        prepare_device();
        watch_launches(note_prefixes);
        memset(&prefixes, 0, sizeof prefixes);
        prefixes.frozen_levels = i < 2 ? SHARED_PREFIX_LEVELS : 0;
        begin(&runs[i], "cuda:0", "fixture");
        set(&runs[i], "workload.length_scale=0.15");
        set(&runs[i], "model.max_context_len=1024");
        set(&runs[i], "workload.chunked_prefill_size=128");
        set(&runs[i], "verify.rate=0.1");
        set(&runs[i], "%s", ways[i]);
        go(&runs[i]);
        const struct report *r = &runs[i].report;
        check_good(&runs[i], fake.first_fault());
        check_device();
        ck_assert_int_eq(prefixes.faults, 0);
        ck_assert_int_eq(r->has_shared, i < 2);
        ck_assert_int_eq(prefixes.rows, r->shared.rows * LAYERS);
        ck_assert_int_eq(prefixes.saved_keys, r->shared.saved_keys * LAYERS);
        ck_assert_int_eq(r->shared.keys > 0, i < 2);
        if (i == 1) {
            ck_assert_int_ge(r->shared.rows, runs[0].report.shared.rows);
            ck_assert_int_ge(r->shared.saved_keys, runs[0].report.shared.saved_keys);
            ck_assert_int_eq(r->shared.keys, runs[0].report.shared.keys);
        }
        ck_assert_str_eq(r->digest, runs[0].report.digest);
    }
    ck_assert_int_gt(runs[0].report.shared.saved_keys, 0);
    finish_all(runs, 3);
    tear_down();
}

/* ---- Paths ----------------------------------------------------------------------------------- */

/* Rows by path are the tokens of each kind times layers, whether steps are captured or not, below a
 * composite or not; those of batches that a backend tells nonsense of are no path's. */
TEST_OF(runs, rows_are_counted_by_path)
{
    static const char *const ways[][SETTINGS] = {
        {"backend.fixture.paths=all"},
        {"backend.fixture.paths=all", "cuda_graph.enable=no"},
        {"backend.fixture.paths=wrong"},
        {"backend.fixture.paths=none"},
    };
    for (int w = 0; w < 4; w++) {
        struct run run;
        set_up();
        go_with(&run, "cuda:0", "fixture", ways[w]);
        check_good(&run, fake.first_fault());
        const struct report *r = &run.report;
        int64_t prefill = LAYERS * r->tokens.prefill, decode = LAYERS * r->tokens.decode;
        ck_assert_int_eq(r->graphs.count > 0, w != 1);
        ck_assert_int_gt(decode, 0);
        ck_assert_int_eq(rows_of(&run.report, "fixture/others"), w < 2 ? prefill : -1);
        ck_assert_int_eq(rows_of(&run.report, "fixture/decode"), w < 3 ? decode : -1);
        ck_assert_int_eq(rows_of(&run.report, "fixture"), w < 2    ? -1
                                                          : w == 2 ? prefill
                                                                   : prefill + decode);
        finish(&run);
        tear_down();
    }
}

/* Of a composite's children each has its own. */
TEST_OF(runs, children_tell_of_their_paths)
{
    struct run run;
    set_up();
    begin(&run, "cuda:0", "fixture");
    set(&run, "attention.decode_attention_backend=other");
    set(&run, "backend.other.type=cuda_fixture");
    set(&run, "backend.other.paths=all");
    go(&run);
    check_good(&run, fake.first_fault());
    const struct report *r = &run.report;
    ck_assert_int_eq(rows_of(&run.report, "fixture"), LAYERS * r->tokens.prefill);
    ck_assert_int_eq(rows_of(&run.report, "other/decode"), LAYERS * r->tokens.decode);
    ck_assert_uint_eq(r->num_paths, 2);
    finish(&run);
    tear_down();
}

/* ---- Routes ---------------------------------------------------------------------------------- */

/* A table by batch size, layer and length. A graph is its bounds': each captured size has the
 * backends of its size, and the row for short sequences, which is below what a graph may meet, is
 * met by eager steps alone. */
LOOP_OF(runs, routes_are_captured_by_their_bounds, 0, 2)
{
    struct run plain, routed;
    go_plain(&plain, (const char *const[SETTINGS]){NULL});
    begin(&routed, "cuda:0", "fixture");
    set(&routed, "cuda_graph.enable=%s", _i ? "no" : "yes");
    set(&routed, "attention.route.1=phase=decode batch=1 -> one");
    set(&routed, "attention.route.2=phase=decode batch=2 layers=1 -> two");
    set(&routed, "attention.route.3=phase=decode kv=0-30 -> short");
    set(&routed, "backend.one.type=cuda_fixture");
    set(&routed, "backend.two.type=cuda_fixture");
    set(&routed, "backend.two.index_form=csr");
    set(&routed, "backend.short.type=cuda_fixture");
    go(&routed);
    check_same(&routed, &plain);
    ck_assert_int_eq(routed.report.graphs.count, _i ? 0 : CAPTURES);
    ck_assert_int_gt(rows_of(&routed.report, "one"), 0);
    ck_assert_int_gt(rows_of(&routed.report, "two"), 0);
    ck_assert_int_eq(rows_of(&routed.report, "short") > 0, _i);
    const char *vain = strstr(routed.notes, "graphs: the row 'phase=decode kv=0-30' (");
    ck_assert_msg((vain == NULL) == (_i == 1), "%s", routed.notes);
    ck_assert_ptr_null(vain ? strstr(vain + 1, "graphs: the row") : NULL);
    end_both(&plain, &routed);
}

/* By phase, as speculative_attention_mode says, or by routes: another backend than that of prompts
 * has all rows of verifications, from graphs or eagerly, and those of the draft model, or a third
 * has. */
LOOP_OF(runs, drafts_come_to_the_backend_that_is_named, 0, 6)
{
    static const char *const ways[][SETTINGS] = {
        {TREES, "attention.decode_attention_backend=one",
         "attention.speculative_attention_mode=decode"},
        {TREES, "attention.decode_attention_backend=one"},
        {TREES, "attention.route.1=phase=verify -> one", "attention.route.2=phase=draft -> two"},
    };
    struct run plain, named;
    int way = _i / 2;
    go_plain(&plain, (const char *const[SETTINGS]){TREES});
    begin(&named, "cuda:0", "fixture");
    set_list(&named, ways[way], SETTINGS);
    set(&named, "cuda_graph.enable=%s", _i % 2 ? "no" : "yes");
    set(&named, "backend.one.type=cuda_fixture");
    set(&named, "backend.one.takes_trees=yes");
    set(&named, "backend.one.index_form=csr");
    set(&named, "backend.two.type=cuda_fixture");
    set(&named, "backend.two.takes_trees=yes");
    go(&named);
    const struct report *r = &named.report;
    check_same(&named, &plain);
    ck_assert_int_eq(r->graphs.count > 0, _i % 2 == 0);
    int64_t verified = LAYERS * 6 * r->drafts.verifications, extended = r->drafts.draft_extend;
    ck_assert_int_gt(extended, 0);
    ck_assert_int_eq(rows_of(&named.report, "one"), way == 0   ? verified + extended
                                                    : way == 1 ? 0
                                                               : verified);
    ck_assert_int_eq(rows_of(&named.report, "two"), way == 2 ? extended : -1);
    end_both(&plain, &named);
}

/* Measured on the device, with copies, streams and memory of the plugin's own, of which nothing is
 * left; whichever is chosen, the digest is the same. */
LOOP_OF(runs, autotune_measures_on_the_device, 0, 2)
{
    struct run plain, tuned;
    go_plain(&plain, (const char *const[SETTINGS]){NULL});
    begin(&tuned, "cuda:0", "best");
    set(&tuned, "cuda_graph.enable=%s", _i ? "no" : "yes");
    set(&tuned, "backend.best.type=autotune");
    set(&tuned, "backend.best.candidate=fixture");
    set(&tuned, "backend.best.candidate=other");
    set(&tuned, "backend.best.rounds=3");
    set(&tuned, "backend.other.type=cuda_fixture");
    set(&tuned, "backend.other.index_form=csr");
    go(&tuned);
    check_same(&tuned, &plain);
    ck_assert_int_eq(tuned.report.graphs.count, _i ? 0 : CAPTURES);
    ck_assert_msg(strstr(tuned.notes, "decode, 2-4 sequences, 1-512 keys: ") != NULL, "%s",
                  tuned.notes);
    ck_assert_ptr_nonnull(strstr(tuned.notes, "(measured, "));
    ck_assert_ptr_null(strstr(tuned.notes, "(not measured"));
    end_both(&plain, &tuned);
}

/* What is asked for, the exit code, and a part of the message. */
static const struct {
    const char *setting;
    int code;
    const char *message;
} refusals[] = {
    {"platform.device=cuda:3", EXIT_NO_BACKEND, "cuda:3"},
    {"attention.attention_backend=cpu_native", EXIT_NO_BACKEND, "cpu_native"},
    {"model.alibi=yes", EXIT_NO_BACKEND, "has_alibi"},
    {"kv_cache.max_total_tokens=1000000000", EXIT_RUN_TIME, "KV"},
    {"backend.fixture.graph_level=sometimes", EXIT_USAGE, "sometimes"},
};

LOOP_OF(runs, refused_with_a_reason, 0, COUNT(refusals))
{
    struct run run;
    set_up();
    begin(&run, "cuda:0", "fixture");
    set(&run, "%s", refusals[_i].setting);
    go_refused(&run, refusals[_i].code, refusals[_i].message);
    finish(&run);
    tear_down();
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

static uint64_t bytes_at_capture;

static void note_memory(const struct fake_cuda_launch *launch)
{
    struct fake_cuda_live live;
    (void)launch;
    fake.get_live(&live);
    if (bytes_at_capture == 0)
        bytes_at_capture = live.bytes;
}

/* The first launch warms up the only graph, beside its metadata. With one byte less the metadata still fits the
 * device, but not beside the pool. */
TEST_OF(runs, graphs_need_free_memory)
{
    static const char *const settings[SETTINGS] = {"cuda_graph.bs=4", "speculative.draft_tokens=3"};
    struct run roomy, narrow;
    set_up();
    watch_launches(note_memory);
    go_with(&roomy, "cuda:0", "fixture", settings);
    check_good(&roomy, fake.first_fault());
    ck_assert_int_eq(roomy.report.graphs.count, 1);
    prepare_device();
    fake.set_memory(0, bytes_at_capture - 1);
    go_with(&narrow, "cuda:0", "fixture", settings);
    const char *message = host_error_text(&narrow.error);
    ck_assert_int_eq(narrow.code, EXIT_RUN_TIME);
    ck_assert_msg(strstr(message, "cuda_graph.bs: 1 graphs need ") != NULL, "%s", message);
    end_both(&roomy, &narrow);
}

/* Decode steps are whole graphs; all of these were captured before the first step, the largest
 * first, each after a warm-up through all layers. */
TEST_OF(runs, decode_is_replayed)
{
    static const unsigned int sizes[CAPTURES] = {4, 4, 2, 2, 1, 1};
    RUN(run);
    struct fake_cuda_counters counters;
    set_up();
    watch_launches(NULL);
    go_with(&run, "cuda:0", "fixture", (const char *const[SETTINGS]){NULL});
    check_good(&run, fake.first_fault());
    fake.get_counters(&counters);
    int64_t decodes = (int64_t)run.report.decode.count;
    ck_assert_int_gt(decodes, 3);
    ck_assert_uint_eq(counters.graph_launches, (uint64_t)decodes);
    ck_assert_uint_eq(fake.num_calls("cuGraphInstantiate"), CAPTURES);
    ck_assert_int_eq(run.report.graphs.count, CAPTURES);
    ck_assert_msg(strstr(run.notes, "graphs: 6 decode batches of 1 to 4 sequences, with shared "
                                    "prefixes and without, ") != NULL,
                  "%s", run.notes);
    ck_assert_int_eq(spy.eager_decodes, 0);
    ck_assert_int_eq(spy.extends, LAYERS * (int64_t)run.report.prefill.count);
    ck_assert_int_eq(spy.graph_rows, LAYERS * (decodes + CAPTURES));
    ck_assert_int_ge(spy.decodes_first, CAPTURES * LAYERS);
    for (int n = 0; n < CAPTURES * LAYERS; n++)
        ck_assert_uint_eq(spy.grids[n], sizes[n / LAYERS]);
    tear_down();
}

/* Graphs have no more rows than the pool has slots: what cuda_graph.bs names beyond that is never filled. */
LOOP_OF(runs, sizes_fit_the_pool, 0, 2)
{
    static const char *const settings[][SETTINGS] = {
        {"kv_cache.max_total_tokens=60", "cuda_graph.bs=1 64", "workload.max_running_requests=64"},
        {"kv_cache.max_total_tokens=60", "speculative.draft_tokens=16"},
    };
    static const char *const sizes[] = {"decode batches of 1 to 60 sequences",
                                        "verification batches of 1 to 3 sequences"};
    RUN(run);
    set_up();
    go_with(&run, "cuda:0", "fixture", settings[_i]);
    check_good(&run, fake.first_fault());
    ck_assert_msg(strstr(run.notes, sizes[_i]) != NULL, "%s", run.notes);
    tear_down();
}

/* Steps too large for any graph, and backends that cannot be captured, are run eagerly. */
LOOP_OF(runs, other_decodes_are_eager, 0, 3)
{
    static const char *const settings[][SETTINGS] = {
        {"cuda_graph.enable=no"},
        {"backend.fixture.graph_level=never"},
        {"cuda_graph.bs=1 2"},
    };
    RUN(run);
    struct fake_cuda_counters counters;
    set_up();
    watch_launches(NULL);
    go_with(&run, "cuda:0", "fixture", settings[_i]);
    check_good(&run, fake.first_fault());
    fake.get_counters(&counters);
    ck_assert_int_eq(strstr(run.notes, "graphs: none, as fixture") != NULL, _i == 1);
    ck_assert_int_gt(spy.eager_decodes, 0);
    ck_assert_int_eq(counters.graph_launches > 0, _i == 2);
    ck_assert_int_eq((int64_t)counters.graph_launches + spy.eager_decodes / LAYERS,
                     (int64_t)run.report.decode.count);
    tear_down();
}

/* Graphs that do not fit into the device's memory. */
TEST_OF(runs, no_memory_for_graphs)
{
    RUN(run);
    set_up();
    fake.set_graph_memory((size_t)1 << 40);
    go_with(&run, "cuda:0", "fixture",
            (const char *const[SETTINGS]){"kv_cache.max_total_tokens=400"});
    ck_assert_int_eq(run.code, EXIT_RUN_TIME);
    ck_assert_ptr_nonnull(strstr(host_error_text(&run.error), "graph"));
    ck_assert_int_eq(run.report.steps, 0);
    tear_down();
}

/* ---- Checks that can fail -------------------------------------------------------------------- */

static void spoil_output(const struct fake_cuda_launch *launch, float by)
{
    const cuda_fixture_params *p = launch->arguments[0];
    float *out = fake.access((cuda_pointer)(uintptr_t)p->tensors[ATTN_ROLE_OUT].data, sizeof *out);
    *out += by;
}

static void add_to_one_output(const struct fake_cuda_launch *launch)
{
    if (spy.extends == 3)
        spoil_output(launch, 0.25f);
}

static void spoil_a_replay(const struct fake_cuda_launch *launch)
{
    const cuda_fixture_params *p = launch->arguments[0];
    if (p->counts && spy.graph_rows == LAYERS * CAPTURES + 4)
        spoil_output(launch, INFINITY);
}

TEST_OF(runs, a_wrong_row_fails)
{
    RUN(run);
    set_up();
    watch_launches(add_to_one_output);
    go_with(&run, "cuda:0", "fixture", (const char *const[SETTINGS]){NULL});
    ck_assert_int_eq(run.code, EXIT_CHECK_FAILED);
    ck_assert_int_gt(run.report.verify.rows_failed, 0);
    ck_assert_int_eq(run.report.verify.steps_not_finite, 0);
    tear_down();
}

/* The first float behind the output's last row, of an eager step or of a replay. */
static void write_past(const struct fake_cuda_launch *launch)
{
    const cuda_fixture_params *p = launch->arguments[0];
    const attn_tensor *out = &p->tensors[ATTN_ROLE_OUT];
    uint64_t end = (uint64_t)(out->shape[0] * out->strides[0]) * attn_dtype_size(out->dtype);
    float *past = fake.access((cuda_pointer)(uintptr_t)out->data + end, sizeof *past);
    *past += 1;
}

static void write_past_a_step(const struct fake_cuda_launch *launch)
{
    if (spy.extends == 3)
        write_past(launch);
}

static void write_past_a_replay(const struct fake_cuda_launch *launch)
{
    const cuda_fixture_params *p = launch->arguments[0];
    if (p->counts && spy.graph_rows == LAYERS * CAPTURES + 4)
        write_past(launch);
}

LOOP_OF(runs, a_write_past_the_output_fails, 0, 2)
{
    RUN(run);
    set_up();
    watch_launches(_i ? write_past_a_replay : write_past_a_step);
    go_with(&run, "cuda:0", "fixture", (const char *const[SETTINGS]){NULL});
    ck_assert_int_eq(run.code, EXIT_CHECK_FAILED);
    ck_assert_int_eq(run.report.verify.rows_failed, 0);
    ck_assert_int_eq(run.report.verify.trespasses, 1);
    ck_assert_ptr_nonnull(
        strstr(run.report.verify.first_failure, "fixture wrote after the last row of operand out"));
    tear_down();
}

/* An infinite output is seen without the oracle. */
TEST_OF(runs, an_infinite_output_fails)
{
    RUN(run);
    set_up();
    watch_launches(spoil_a_replay);
    go_with(&run, "cuda:0", "fixture", (const char *const[SETTINGS]){"verify.rate=0"});
    ck_assert_msg(run.code == EXIT_CHECK_FAILED, "%s", host_error_text(&run.error));
    ck_assert_int_eq(run.report.verify.steps_not_finite, 1);
    tear_down();
}

/* ---- A slow device --------------------------------------------------------------------------- */

static void nap(long microseconds)
{
    struct timespec time = {.tv_nsec = microseconds * 1000};
    nanosleep(&time, NULL);
}

/* Until the host has made no call for a while: it has gone ahead as far as it can. */
static void wait_for_the_host(void)
{
    struct fake_cuda_counters now;
    uint64_t before, quiet = 0;
    fake.get_counters(&now);
    do {
        before = now.calls;
        nap(1000);
        fake.get_counters(&now);
        quiet = now.calls == before ? quiet + 1 : 0;
    } while (quiet < 3);
}

/* Decode steps that were launched and have not begun, at most. */
static int64_t most_ahead;

static void hold_each_layer(const struct fake_cuda_launch *launch)
{
    struct fake_cuda_counters counters;
    (void)launch;
    wait_for_the_host();
    fake.get_counters(&counters);
    int64_t begun = (spy.graph_rows + LAYERS - 1) / LAYERS - CAPTURES; /* below 0: warm-ups */
    int64_t ahead = (int64_t)counters.graph_launches - (begun > 0 ? begun : 0);
    most_ahead = ahead > most_ahead ? ahead : most_ahead;
}

/* The device does nothing before the host has gone ahead as far as it can, in each layer of each
 * step: what a step reads must still be there when it gets to it. */
LOOP_OF(runs, a_slow_device_gives_the_same, 0, 6)
{
    static const char *const settings[][SETTINGS] = {
        {NULL},
        {"workload.mixed=yes", "backend.fixture.index_form=csr"},
        {"cuda_graph.enable=no", "kv_cache.max_total_tokens=60", "kv_cache.layout=hnd"},
        {TREES, WINDOWS},
        {VISION},
        {EMBEDDING, "workload.max_running_requests=2"},
    };
    struct run fast, slow;
    set_up();
    go_with(&fast, "cuda:0", "fixture", settings[_i]);
    check_good(&fast, fake.first_fault());
    prepare_device();
    most_ahead = 0;
    watch_launches(hold_each_layer);
    go_with(&slow, "cuda:0", "fixture", settings[_i]);
    check_same(&slow, &fast);
    if (_i < 2)
        ck_assert_int_eq(most_ahead, EXECUTOR_MAX_IN_FLIGHT - 1);
    end_both(&fast, &slow);
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* What can be refused. To wait, to end a capture and to release cannot. */
static const char *const calls[] = {
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem",
    "cuDevicePrimaryCtxRetain",
    "cuMemGetInfo",
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuStreamCreate",
    "cuEventCreate",
    "cuEventRecord",
    "cuStreamBeginCapture",
    "cuGraphInstantiate",
    "cuGraphLaunch",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuLaunchKernel",
};

/* A run that is as short as it can be with all phases in it. */
static void begin_short(struct run *run)
{
    begin(run, "cuda:0", "fixture");
    set(run, "workload.max_requests=3");
    set(run, "workload.max_running_requests=2");
    set(run, "workload.length_scale=0.006");
    set(run, "model.num_q_heads=2");
    set(run, "model.num_kv_heads=1");
    set(run, "backend.fixture.index_form=block_table");
    set(run, "kv_cache.max_total_tokens=64");
}

/* Each call of this name in turn finds no memory: an error with a message or a good run, and
 * nothing is left. */
LOOP_OF(failures, every_call_fails_once, 0, COUNT(calls))
{
    int injected = 1, failed = 0;
    set_up();
    for (uint64_t n = 1; injected; n++) {
        struct run run;
        prepare_device();
        fake.inject(calls[_i], n, CUDA_ERROR_OUT_OF_MEMORY);
        begin_short(&run);
        go(&run);
        injected = fake.injected();
        failed += run.code != EXIT_GOOD;
        if (run.code == EXIT_GOOD)
            check_good(&run, fake.first_fault());
        ck_assert_msg(run.code == EXIT_GOOD || *host_error_text(&run.error), "%s %d: exit %d",
                      calls[_i], (int)n, run.code);
        if (run.code != EXIT_GOOD && strcmp(calls[_i], "cuStreamBeginCapture") == 0)
            ck_assert_ptr_nonnull(strstr(host_error_text(&run.error), "cuda_graph.bs: graph of "));
        ck_assert_int_eq(run.report.kv.leaked, 0);
        finish(&run);
        check_device();
    }
    ck_assert_int_gt(failed, 0);
    tear_down();
}

/* ---- A lost device --------------------------------------------------------------------------- */

/* Calls up to the first forward, and in all. */
static uint64_t calls_of_set_up, calls_of_run;

static void count_calls(void *ctx, const struct batch_step *step, int32_t layer,
                        const attn_tensor *const *operands)
{
    (void)ctx, (void)step, (void)layer, (void)operands;
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    if (calls_of_set_up == 0)
        calls_of_set_up = counters.calls;
}

/* Every second test has no prefix cache: then the same rows are computed, whatever is lost. */
static void begin_to_lose(struct run *run, int i)
{
    begin_short(run);
    set(run, "kv_cache.prefix_cache=%s", i % 2 ? "yes" : "no");
}

/* The run without a failure. */
static void go_undisturbed(struct run *run, int i)
{
    struct fake_cuda_counters counters;
    begin_to_lose(run, i);
    run->probe = count_calls;
    go(run);
    check_good(run, fake.first_fault());
    ck_assert_int_eq(run->report.device_losses, 0);
    fake.get_counters(&counters);
    calls_of_run = counters.calls;
    ck_assert_uint_gt(calls_of_set_up, 0);
    ck_assert_uint_gt(calls_of_run, calls_of_set_up);
}

/* All requests came to their end, and no row of theirs is missing or wrong. What was in the prefix
 * cache may have to be computed for the first time. */
static void check_recovered(const struct run *run, const struct run *undisturbed, int i)
{
    check_good(run, fake.first_fault());
    ck_assert_int_eq(run->report.requests, undisturbed->report.requests);
    ck_assert_int_eq(run->report.tokens.decode, undisturbed->report.tokens.decode);
    ck_assert_int_eq(input_tokens(&run->report), input_tokens(&undisturbed->report));
    ck_assert_int_ge(run->report.verify.rows_checked, undisturbed->report.verify.rows_checked);
    if (i % 2 == 0)
        ck_assert_str_eq(run->report.digest, undisturbed->report.digest);
}

/* Nothing is left. Where the last call of all is the one that fails, its context is: the driver did
 * not take it back. */
static void check_device_after(const struct run *run)
{
    struct fake_cuda_live live;
    fake.get_live(&live);
    if (live.contexts == 0 || run->code != EXIT_GOOD || run->report.device_losses > 0)
        assert_nothing_left();
    ck_assert_uint_le(live.contexts, 1);
    assert_clean();
}

/* A sweep over all calls is spread over this many tests. Each takes every third of its calls, or
 * with ATTNHOST_TEST_EVERY_CALL in the environment all. */
enum { SWEEPS = 8 };

static uint64_t stride(void)
{
    return getenv("ATTNHOST_TEST_EVERY_CALL") ? SWEEPS : SWEEPS * 3;
}

/* An error that has a message, or a good run. */
static void check_told(const struct run *run, const struct run *undisturbed, int i, uint64_t n)
{
    if (run->code == EXIT_GOOD) {
        check_recovered(run, undisturbed, i);
        return;
    }
    ck_assert_msg(run->code == EXIT_RUN_TIME, "call %d: exit %d: %s", (int)n, run->code,
                  host_error_text(&run->error));
    ck_assert_msg(*host_error_text(&run->error), "call %d: no message", (int)n);
}

/* Runs of which one call fails each: what is left, or was lost, is judged; does the run count? */
struct sweep {
    cuda_result error;
    bool is_final; /* the driver gives this process no new context */
    bool from_a_forward,
        to_a_forward; /* calls from the first forward on, or before it; neither: all */
    bool (*judge)(const struct run *run, const struct run *undisturbed, int i, uint64_t n);
};

static void sweep(int i, const struct sweep *how)
{
    struct run undisturbed;
    int counted = 0;
    set_up();
    go_undisturbed(&undisturbed, i);
    check_device();
    uint64_t first = how->from_a_forward ? calls_of_set_up : 1;
    uint64_t end = how->to_a_forward ? calls_of_set_up : calls_of_run + 1;
    for (uint64_t n = first + (uint64_t)i; n < end; n += stride()) {
        struct run run;
        prepare_device();
        if (how->is_final)
            fake.set_loss_final(1);
        fake.inject(NULL, n, how->error);
        begin_to_lose(&run, i);
        go(&run);
        counted += how->judge(&run, &undisturbed, i, n);
        if (how->error == CUDA_ERROR_ILLEGAL_ADDRESS)
            check_device_after(&run);
        finish(&run);
    }
    ck_assert_int_gt(counted, 10);
    finish(&undisturbed);
    fake.reset();
    tear_down();
}

static bool is_refused(const struct run *run, const struct run *undisturbed, int i, uint64_t n)
{
    check_told(run, undisturbed, i, n);
    ck_assert_int_eq(run->report.device_losses, 0);
    ck_assert_msg(*fake.first_fault() == '\0', "call %d: %s", (int)n, fake.first_fault());
    return true;
}

static bool survives(const struct run *run, const struct run *undisturbed, int i, uint64_t n)
{
    ck_assert_msg(run->code == EXIT_GOOD, "call %d of %d: exit %d: %s", (int)n, (int)calls_of_run,
                  run->code, host_error_text(&run->error));
    check_recovered(run, undisturbed, i);
    ck_assert_int_le(run->report.device_losses, 1);
    return run->report.device_losses > 0;
}

/* Before the device was open, to which the first question for its memory belongs, there is nothing to make again. */
static bool survives_once_open(const struct run *run, const struct run *undisturbed, int i,
                               uint64_t n)
{
    check_told(run, undisturbed, i, n);
    ck_assert_msg(run->code == EXIT_GOOD || fake.num_calls("cuMemGetInfo") == 0,
                  "call %d of %d: exit %d: %s", (int)n, (int)calls_of_set_up, run->code,
                  host_error_text(&run->error));
    return run->report.device_losses > 0;
}

static bool tells(const struct run *run, const struct run *undisturbed, int i, uint64_t n)
{
    check_told(run, undisturbed, i, n);
    return run->code == EXIT_RUN_TIME;
}

/* Whatever call it is that is refused. What it was to release goes with the context. */
LOOP_OF(failures, any_call_fails_once, 0, SWEEPS)
{
    sweep(_i, &(struct sweep){.error = CUDA_ERROR_OUT_OF_MEMORY, .judge = is_refused});
}

/* The device is lost at a call, from the first forward on: everything is prefilled again. */
LOOP_OF(failures, a_loss_is_survived, 0, SWEEPS)
{
    sweep(_i, &(struct sweep){
                  .error = CUDA_ERROR_ILLEGAL_ADDRESS, .from_a_forward = true, .judge = survives});
}

/* The same while pool, backends and graphs are made. */
LOOP_OF(failures, a_loss_at_the_start_is_survived, 0, SWEEPS)
{
    sweep(_i, &(struct sweep){.error = CUDA_ERROR_ILLEGAL_ADDRESS,
                              .to_a_forward = true,
                              .judge = survives_once_open});
}

/* Where the driver gives this process no new context, the run ends with an error. */
LOOP_OF(failures, a_final_loss_is_told, 0, SWEEPS)
{
    sweep(_i,
          &(struct sweep){.error = CUDA_ERROR_ILLEGAL_ADDRESS, .is_final = true, .judge = tells});
}

/* Losses while a kernel runs and the host waits: launches of a backend up to the first one, and how
 * many there are; the next ones come right after everything was made again. */
static int losses_left, launches_to_loss;

static void lose_now_and_then(const struct fake_cuda_launch *launch)
{
    (void)launch;
    if (losses_left > 0 && --launches_to_loss <= 0) {
        losses_left--;
        launches_to_loss = 1 + LAYERS * 2;
        wait_for_the_host();
        fake.lose(0, CUDA_ERROR_LAUNCH_FAILED);
    }
}

/* Up to three times in a row, then it is reported. */
LOOP_OF(failures, losses_in_a_row, 0, 4)
{
    struct run undisturbed, run;
    set_up();
    go_undisturbed(&undisturbed, _i);
    prepare_device();
    watch_launches(lose_now_and_then);
    losses_left = 1 + _i;
    launches_to_loss = 16;
    begin_to_lose(&run, _i);
    go(&run);
    if (_i < 3) {
        check_recovered(&run, &undisturbed, _i);
        ck_assert_int_eq(run.report.device_losses, 1 + _i);
        ck_assert_int_gt(run.report.tokens.recomputed, 0);
    } else {
        ck_assert_int_eq(run.code, EXIT_RUN_TIME);
        ck_assert_ptr_nonnull(strstr(host_error_text(&run.error), "CUDA_ERROR_LAUNCH_FAILED"));
    }
    end_both(&undisturbed, &run);
}

/* Whatever kind of work it is that is lost; an image, or an encoder's keys, are made once more. */
static const char *const kinds_lost[][SETTINGS] = {{TREES},  {TREES, WINDOWS}, {WINDOWS},
                                                   {VISION}, {CROSS},          {EMBEDDING}};

LOOP_OF(failures, a_loss_in_each_kind_of_work, 0, COUNT(kinds_lost))
{
    struct run runs[2];
    set_up();
    for (int i = 0; i < 2; i++) {
        prepare_device();
        watch_launches(i ? lose_now_and_then : NULL);
        losses_left = 2;
        launches_to_loss = has_graphs(kinds_lost[_i]) ? 16 : 4;
        begin(&runs[i], "cuda:0", "fixture");
        set(&runs[i], "kv_cache.prefix_cache=no");
        set_list(&runs[i], kinds_lost[_i], SETTINGS);
        go(&runs[i]);
        check_recovered(&runs[i], &runs[0], 0);
        ck_assert_int_eq(runs[i].report.device_losses, i ? 2 : 0);
    }
    ck_assert_int_eq(runs[1].report.drafts.accepted, runs[0].report.drafts.accepted);
    ck_assert_int_ge(runs[1].report.tokens.encoded, runs[0].report.tokens.encoded);
    end_both(&runs[0], &runs[1]);
}

GROUP(failures, .timeout = 120);
TESTS("session_cuda");
