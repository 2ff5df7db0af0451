/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cuda_fixture.c: the backend cuda_fixture on the fake CUDA driver, through the lower layer of
 * attnhost.h: decodes from graphs against the oracle, what a capture bakes in, failures and refusals.
 * Its results in all are judged by `attnhost check` (tests/conformance/cuda_fixture.sh).
 */
#include "attnhost.h"
#include "host/device/device.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/reference/reference.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/cuda_fixture.h"
#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/tools/test_main.h"

#include <math.h>
#include <string.h>

static attnhost *host;
static struct device *device;
static attn_stream stream;
static host_error error;

#define GOOD(call)                                                                                 \
    ck_assert_msg((call) == ATTN_OK, "%s %s", host_error_text(&error), fake.first_fault())
#define FAILS(call, status) ck_assert_int_eq(call, status)

/* Backends of all settings, by name. */
static const char *const backends[][7] = {
    {"slots", "index_form", "req_to_token", "fill_value", "1"},
    {"pages", "index_form", "block_table", "fill_value", "0"},
    {"list", "index_form", "csr", "fill_value", "0"},
    {"never", "graph_level", "never"},
    {"single", "graph_level", "single_token"},
    {"uniform", "graph_level", "uniform"},
    {"counting", "counts_keys", "yes"},
};
enum { NUM_BACKENDS = sizeof backends / sizeof backends[0], NUM_FORMS = 3 };

static void open_host(void)
{
    char path[4096];
    attnhost_params params = {.struct_size = sizeof params, .num_threads = 1};
    fixture_path("cuda_fixture.so", path);
    host_error_init(&error);
    GOOD(attnhost_create(&params, &host, &error.base));
    GOOD(attnhost_load_plugin(host, path, &error.base));
    for (int b = 0; b < NUM_BACKENDS; b++)
        GOOD(attnhost_define_backend(host, backends[b][0], "cuda_fixture", &backends[b][1],
                                     backends[b][3] ? 2 : 1, &error.base));
}

static void set_up(void)
{
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    open_host();
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
    GOOD(device_enter(device, &error.base));
    GOOD(device_stream_create(device, &stream, &error.base));
}

static void tear_down(void)
{
    device_stream_destroy(device, stream);
    device_leave(device);
    device_close(device);
    attnhost_destroy(host);
    assert_nothing_left();
    assert_clean();
    fake.reset();
}

/* ---- The host's calls ------------------------------------------------------------------------- */

static void refresh(void *to, const void *from, size_t bytes)
{
    GOOD(device_copy(device, to, from, bytes, stream, &error.base));
}

static void download(void *to, const void *from, size_t bytes)
{
    GOOD(device_copy(device, to, from, bytes, stream, &error.base));
    GOOD(device_synchronize(device, stream, &error.base));
}

static attnhost_backend *compose(const char *name, const attn_problem *problem)
{
    attnhost_backend *backend = NULL;
    GOOD(attnhost_compose(host, name, problem, 1, &backend, &error.base));
    return backend;
}

static attnhost_metadata *make_metadata(attnhost_backend *backend, uint32_t kind,
                                        const attn_bounds *bounds)
{
    attnhost_metadata *metadata = NULL;
    GOOD(attnhost_metadata_create(backend, kind, bounds, NULL, &metadata, &error.base));
    return metadata;
}

static struct device_graph *capture(attnhost_metadata *metadata, const attn_batch *batch,
                                    int32_t layer, attn_forward_args args)
{
    struct device_graph *graph = NULL;
    GOOD(attnhost_init_forward_metadata(metadata, batch, stream, &error.base));
    GOOD(device_capture_begin(device, stream, &error.base));
    args.flags |= ATTN_FORWARD_CAPTURING;
    GOOD(attnhost_forward(metadata, layer, &args, stream, &error.base));
    GOOD(device_capture_end(device, stream, &graph, &error.base));
    return graph;
}

/* Planning, and a failed forward, have put work into the stream, which has to be idle. */
static void destroy_metadata(attnhost_metadata *metadata)
{
    device_synchronize(device, stream, NULL);
    attnhost_metadata_destroy(metadata);
}

static int is_supported(const char *name, const attn_problem *problem)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    GOOD(attnhost_query(host, name, problem, &verdict, &error.base));
    return verdict.supported != 0;
}

/* ---- Decode from graphs of several sizes ----------------------------------------------------- */

enum {
    SEQS = 5,
    MAX_GRAPH_SEQS = 8, /* sequences of the largest graph */
    STEPS = 9,
    PAGE = 4,
    PAGES_OF_SEQ = 9,
    KEYS = PAGE * PAGES_OF_SEQ,
    NUM_PAGES = 1 + SEQS * PAGES_OF_SEQ,
    Q_HEADS = 6,
    KV_HEADS = 2,
    DIM = 20,
    V_DIM = 12,
    UNUSED = 0x7ffffff0
};

/* An engine's arrays for decode, as a host and a device have them. */
struct arrays {
    int64_t out_cache_loc[MAX_GRAPH_SEQS];
    int32_t seq_lens[MAX_GRAPH_SEQS], requests[MAX_GRAPH_SEQS];
    int32_t req_to_token[SEQS + 1][KEYS], block_table[MAX_GRAPH_SEQS][PAGES_OF_SEQ];
    int32_t kv_indptr[MAX_GRAPH_SEQS + 1], kv_indices[MAX_GRAPH_SEQS * PAGES_OF_SEQ],
        last_page_len[MAX_GRAPH_SEQS];
    _Alignas(16) float q[MAX_GRAPH_SEQS][Q_HEADS][DIM], k[MAX_GRAPH_SEQS][KV_HEADS][DIM],
        v[MAX_GRAPH_SEQS][KV_HEADS][V_DIM];
    _Alignas(16) float k_cache[NUM_PAGES * PAGE][KV_HEADS][DIM],
        v_cache[NUM_PAGES * PAGE][KV_HEADS][V_DIM];
    _Alignas(16) float out[MAX_GRAPH_SEQS][Q_HEADS][V_DIM], lse[MAX_GRAPH_SEQS][Q_HEADS];
};

struct engine {
    struct arrays *arrays;    /* here */
    struct arrays *on_device; /* the same there, at one address for the engine's life */
    int32_t lens[SEQS];       /* keys of each sequence */
    int32_t fill;
    uint32_t form;
    int hnd;
    uint64_t draws;
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
    attnhost_backend *backend;
    attnhost_metadata *eager;
};

static float draw(struct engine *e)
{
    return (float)((int)(mix_stream(4711, e->draws++) % 2001) - 1000) / 500;
}

static void draw_all(struct engine *e, float *values, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *values; i++)
        values[i] = draw(e);
}

/* Pages of a sequence lie neither in order nor together. */
static int32_t page_of(int32_t seq, int32_t page)
{
    return 1 + (page * SEQS + seq) * 7 % (NUM_PAGES - 1);
}

static void init_problem(struct engine *e)
{
    e->layer = (attn_layer){.struct_size = sizeof e->layer, .layer_id = 3};
    e->group = (attn_layer_group){.struct_size = sizeof e->group,
                                  .num_q_heads = Q_HEADS,
                                  .num_kv_heads = KV_HEADS,
                                  .head_dim = DIM,
                                  .v_head_dim = V_DIM,
                                  .window_left = e->hnd ? 17 : -1,
                                  .sm_scale = 0.2f,
                                  .num_layers = 1,
                                  .layers = &e->layer};
    e->bounds = (attn_bounds){.struct_size = sizeof e->bounds,
                              .modes = ATTN_MODE_BIT(ATTN_MODE_DECODE),
                              .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                              .uses = ATTN_USES_LSE,
                              .max_seqs = MAX_GRAPH_SEQS,
                              .max_tokens = MAX_GRAPH_SEQS,
                              .max_q_len = 1,
                              .max_kv_len = KEYS,
                              .max_kv_tokens = SEQS * KEYS};
    e->problem = (attn_problem){.struct_size = sizeof e->problem,
                                .graph_level = ATTN_GRAPH_SINGLE_TOKEN,
                                .device = &device->info,
                                .group = &e->group,
                                .bounds = &e->bounds,
                                .kv_layout = e->hnd ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD,
                                .q_dtype = ATTN_F32,
                                .kv_dtype = ATTN_F32,
                                .out_dtype = ATTN_F32,
                                .page_size = PAGE,
                                .tp_size = 1};
}

static void engine_init(struct engine *e, int form, int hnd)
{
    *e = (struct engine){.hnd = hnd, .form = 1u << form};
    e->arrays = calloc(1, sizeof *e->arrays);
    e->on_device = device_allocate(device, ATTN_SPACE_DEVICE, sizeof *e->arrays, 256);
    ck_assert(e->arrays && e->on_device);
    for (int32_t s = 0; s < SEQS; s++) {
        e->lens[s] = (const int32_t[]){0, 6, 15, 16, 23}[s];
        for (int32_t j = 0; j < KEYS; j++)
            e->arrays->req_to_token[s + 1][j] = page_of(s, j / PAGE) * PAGE + j % PAGE;
    }
    draw_all(e, &e->arrays->k_cache[0][0][0], sizeof e->arrays->k_cache);
    draw_all(e, &e->arrays->v_cache[0][0][0], sizeof e->arrays->v_cache);
    init_problem(e);
    attn_verdict verdict = {.struct_size = sizeof verdict};
    GOOD(attnhost_query(host, backends[form][0], &e->problem, &verdict, &error.base));
    ck_assert_uint_eq(verdict.supported, 1);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_ALWAYS);
    ck_assert_int_eq(verdict.graph_seq_len_fill, form == 0);
    e->fill = verdict.graph_seq_len_fill;
    e->backend = compose(backends[form][0], &e->problem);
    ck_assert_uint_eq(attnhost_backend_index_forms(e->backend), e->form);
    ck_assert_uint_eq(attnhost_backend_host_arrays(e->backend), 0);
    e->eager = make_metadata(e->backend, ATTN_METADATA_EAGER, &e->bounds);
}

static void engine_finish(struct engine *e)
{
    destroy_metadata(e->eager);
    attnhost_backend_destroy(e->backend);
    device_release(device, ATTN_SPACE_DEVICE, e->on_device);
    free(e->arrays);
}

/* Row r of the step is sequence (first + r) % SEQS while r < real, then padding. */
static void fill_row(struct engine *e, int32_t r, int32_t first, int32_t real)
{
    struct arrays *a = e->arrays;
    int32_t seq = (first + r) % SEQS, is_real = r < real;
    int32_t len = is_real ? e->lens[seq] : e->fill, pages = (len + PAGE - 1) / PAGE;
    a->seq_lens[r] = len;
    a->requests[r] = is_real ? seq + 1 : 0;
    a->out_cache_loc[r] = is_real ? a->req_to_token[seq + 1][len - 1] : -(r % 2);
    for (int32_t p = 0; p < PAGES_OF_SEQ; p++)
        a->block_table[r][p] = p >= pages ? UNUSED : is_real ? page_of(seq, p) : 0;
    for (int32_t p = 0; p < pages; p++)
        a->kv_indices[a->kv_indptr[r] + p] = a->block_table[r][p];
    a->kv_indptr[r + 1] = a->kv_indptr[r] + pages;
    a->last_page_len[r] = len - (pages > 0 ? (pages - 1) * PAGE : 0);
}

/* The next step: `real` sequences have one key more, up to `rows` there is padding. */
static void fill_step(struct engine *e, int32_t first, int32_t real, int32_t rows)
{
    struct arrays *a = e->arrays;
    memset(a->q, 0, sizeof a->q);
    memset(a->k, 0, sizeof a->k);
    memset(a->v, 0, sizeof a->v);
    memset(a->out, 0xA5, sizeof a->out);
    memset(a->lse, 0xA5, sizeof a->lse);
    draw_all(e, &a->q[0][0][0], (size_t)real * sizeof a->q[0]);
    draw_all(e, &a->k[0][0][0], (size_t)real * sizeof a->k[0]);
    draw_all(e, &a->v[0][0][0], (size_t)real * sizeof a->v[0]);
    for (int i = 0; i < MAX_GRAPH_SEQS * PAGES_OF_SEQ; i++)
        a->kv_indices[i] = UNUSED;
    for (int32_t r = 0; r < rows; r++)
        fill_row(e, r, first, real);
    refresh(e->on_device, a, sizeof *a);
}

/* A batch over one of the two copies of the arrays. */
struct step {
    attn_batch batch;
    attn_kv_batch kv;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args;
};

static void set_tensor(struct step *step, uint32_t role, int32_t type, void *data, uint32_t ndim,
                       const int64_t *shape)
{
    GOOD(attnhost_tensor_init(&step->tensors[role], data, type, 0, ATTN_F32, ndim, shape, NULL,
                              &error.base));
    step->operands[role] = &step->tensors[role];
}

static void set_tensors(const struct engine *e, struct step *step, struct arrays *a, int32_t type)
{
    int64_t first = e->hnd ? KV_HEADS : PAGE, second = e->hnd ? PAGE : KV_HEADS;
    set_tensor(step, ATTN_ROLE_Q, type, a->q, 3, (int64_t[]){MAX_GRAPH_SEQS, Q_HEADS, DIM});
    set_tensor(step, ATTN_ROLE_K, type, a->k, 3, (int64_t[]){MAX_GRAPH_SEQS, KV_HEADS, DIM});
    set_tensor(step, ATTN_ROLE_V, type, a->v, 3, (int64_t[]){MAX_GRAPH_SEQS, KV_HEADS, V_DIM});
    set_tensor(step, ATTN_ROLE_OUT, type, a->out, 3, (int64_t[]){MAX_GRAPH_SEQS, Q_HEADS, V_DIM});
    set_tensor(step, ATTN_ROLE_LSE, type, a->lse, 2, (int64_t[]){MAX_GRAPH_SEQS, Q_HEADS});
    set_tensor(step, ATTN_ROLE_K_CACHE, type, a->k_cache, 4,
               (int64_t[]){NUM_PAGES, first, second, DIM});
    set_tensor(step, ATTN_ROLE_V_CACHE, type, a->v_cache, 4,
               (int64_t[]){NUM_PAGES, first, second, V_DIM});
    step->args = (attn_forward_args){.struct_size = sizeof step->args,
                                     .flags = ATTN_FORWARD_SAVE_KV,
                                     .num_operands = ATTN_ROLE_COUNT,
                                     .operands = step->operands};
}

static attn_i32_array there(const int32_t *array)
{
    return (attn_i32_array){.device = array};
}

static void make_step(const struct engine *e, struct step *step, int32_t type, int32_t real,
                      int32_t rows)
{
    struct arrays *a = type == ATTN_DEVICE_CUDA ? e->on_device : e->arrays;
    *step = (struct step){.batch = {.struct_size = sizeof step->batch,
                                    .mode = ATTN_MODE_DECODE,
                                    .num_seqs = rows,
                                    .num_tokens = rows,
                                    .num_real_seqs = real,
                                    .num_real_tokens = real,
                                    .max_q_len = 1,
                                    .max_kv_len = KEYS,
                                    .num_kv_groups = 1,
                                    .seq_lens = there(a->seq_lens),
                                    .req_pool_indices = there(a->requests),
                                    .kv_groups = &step->kv},
                          .kv = {.struct_size = sizeof step->kv,
                                 .index_forms = e->form,
                                 .page_size = PAGE,
                                 .req_to_token_stride = KEYS,
                                 .block_table_stride = PAGES_OF_SEQ,
                                 .out_cache_loc = {.device = a->out_cache_loc},
                                 .req_to_token = there(a->req_to_token[0]),
                                 .block_table = there(a->block_table[0]),
                                 .kv_indptr = there(a->kv_indptr),
                                 .kv_indices = there(a->kv_indices),
                                 .last_page_len = there(a->last_page_len)}};
    set_tensors(e, step, a, type);
}

/* The oracle on this step, with the cache as it was before; then the cache as it is now. */
static void judge_step(struct engine *e, int32_t real, int32_t rows)
{
    struct arrays *a = e->arrays, *now = malloc(sizeof *now);
    struct step step;
    reference_result result = {0};
    reference_report report = {0};
    make_step(e, &step, ATTN_DEVICE_CPU, real, rows);
    GOOD(reference_forward(&e->problem, &step.batch, 3, &step.args, NULL, &result, &error.base));
    download(now, e->on_device, sizeof *now);
    memcpy(a->out, now->out, sizeof a->out);
    memcpy(a->lse, now->lse, sizeof a->lse);
    memcpy(a->k_cache, now->k_cache, sizeof a->k_cache);
    memcpy(a->v_cache, now->v_cache, sizeof a->v_cache);
    attn_tensor out = step.tensors[ATTN_ROLE_OUT], lse = step.tensors[ATTN_ROLE_LSE];
    out.shape[0] = lse.shape[0] = result.num_rows;
    GOOD(reference_compare(&result, &out, &lse, &report, &error.base));
    ck_assert_msg(reference_report_passed(&report), "%d of %d: %s", real, rows, report.message);
    ck_assert_int_eq(report.rows_checked, real * Q_HEADS);
    for (size_t b = 0; b < sizeof a->out - (size_t)rows * sizeof a->out[0]; b++)
        ck_assert_uint_eq(((unsigned char *)a->out[rows])[b], 0xA5);
    reference_result_finish(&result);
    free(now);
}

/* The outputs of the same step without padding and without a graph. */
static void judge_bits(struct engine *e, int32_t real)
{
    struct arrays *now = malloc(sizeof *now);
    struct step step;
    make_step(e, &step, ATTN_DEVICE_CUDA, real, real);
    GOOD(device_fill(device, e->on_device->out, 0xA5, sizeof now->out, stream, &error.base));
    GOOD(attnhost_init_forward_metadata(e->eager, &step.batch, stream, &error.base));
    GOOD(attnhost_forward(e->eager, 3, &step.args, stream, &error.base));
    download(now, e->on_device, sizeof *now);
    ck_assert_mem_eq(now->out, e->arrays->out, (size_t)real * sizeof now->out[0]);
    ck_assert_mem_eq(now->lse, e->arrays->lse, (size_t)real * sizeof now->lse[0]);
    free(now);
}

/* Steps of one to five sequences, each from the smallest graph that holds it; lengths grow from
 * step to step and cross borders of pages and of the window. */
LOOP_OF(fake_device, test_decode_from_graphs, 0, 2 * NUM_FORMS)
{
    static const int32_t sizes[] = {8, 4, 2, 1};
    struct engine e;
    attnhost_metadata *metadata[4];
    struct device_graph *graphs[4];
    set_up();
    engine_init(&e, _i % NUM_FORMS, _i / NUM_FORMS);
    for (int g = 0; g < 4; g++) {
        struct step step;
        attn_bounds bounds = e.bounds;
        bounds.max_seqs = bounds.max_tokens = sizes[g];
        metadata[g] = make_metadata(e.backend, ATTN_METADATA_GRAPH, &bounds);
        fill_step(&e, 0, 0, sizes[g]);
        make_step(&e, &step, ATTN_DEVICE_CUDA, 0, sizes[g]);
        graphs[g] = capture(metadata[g], &step.batch, 3, step.args);
        ck_assert_uint_eq(device_graph_num_nodes(device, graphs[g]), 2);
    }
    for (int32_t n = 0; n < STEPS; n++) {
        struct step step;
        int32_t real = 1 + n * 3 % SEQS, g = 3;
        while (sizes[g] < real)
            g--;
        for (int32_t r = 0; r < real; r++)
            e.lens[(n + r) % SEQS]++;
        fill_step(&e, n, real, sizes[g]);
        make_step(&e, &step, ATTN_DEVICE_CUDA, real, sizes[g]);
        GOOD(attnhost_init_forward_metadata(metadata[g], &step.batch, stream, &error.base));
        GOOD(device_graph_launch(device, graphs[g], stream, &error.base));
        judge_step(&e, real, sizes[g]);
        judge_bits(&e, real);
    }
    for (int g = 0; g < 4; g++) {
        device_graph_destroy(device, graphs[g]);
        destroy_metadata(metadata[g]);
    }
    engine_finish(&e);
    tear_down();
}

/* ---- What a capture bakes in ----------------------------------------------------------------- */

static unsigned int grid_of_attend[2];

static void note_grid(const struct fake_cuda_launch *launch)
{
    memcpy(grid_of_attend, launch->grid, sizeof grid_of_attend);
    cuda_fixture_attend(launch);
}

/* A graph that was captured with three of eight sequences serves eight. */
LOOP_OF(fake_device, test_launch_shapes_follow_from_bounds, 0, NUM_FORMS)
{
    static const size_t sizes[] = {sizeof(cuda_fixture_params)};
    struct engine e;
    struct step step;
    set_up();
    fake.define_kernel(CUDA_FIXTURE_ATTEND, note_grid, sizes, 1, &fake);
    engine_init(&e, _i, 0);
    attnhost_metadata *metadata = make_metadata(e.backend, ATTN_METADATA_GRAPH, &e.bounds);
    for (int32_t s = 0; s < SEQS; s++)
        e.lens[s]++;
    fill_step(&e, 0, 3, 3);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 3, 3);
    struct device_graph *graph = capture(metadata, &step.batch, 3, step.args);
    fill_step(&e, 2, SEQS, MAX_GRAPH_SEQS);
    make_step(&e, &step, ATTN_DEVICE_CUDA, SEQS, MAX_GRAPH_SEQS);
    GOOD(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base));
    GOOD(device_graph_launch(device, graph, stream, &error.base));
    judge_step(&e, SEQS, MAX_GRAPH_SEQS);
    ck_assert_uint_eq(grid_of_attend[0], MAX_GRAPH_SEQS);
    ck_assert_uint_eq(grid_of_attend[1], Q_HEADS);
    judge_bits(&e, SEQS);
    ck_assert_uint_eq(grid_of_attend[0], SEQS);
    device_graph_destroy(device, graph);
    destroy_metadata(metadata);
    engine_finish(&e);
    tear_down();
}

/* A host that passes other arrays than those of the capture is refused. */
TEST_OF(fake_device, test_moved_arrays_are_refused)
{
    struct engine e;
    struct step step;
    set_up();
    engine_init(&e, 0, 0);
    attnhost_metadata *metadata = make_metadata(e.backend, ATTN_METADATA_GRAPH, &e.bounds);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 0, MAX_GRAPH_SEQS);
    GOOD(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base));
    step.batch.seq_lens.device++;
    FAILS(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base),
          ATTN_INVALID_ARGUMENT);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 0, MAX_GRAPH_SEQS);
    step.kv.req_to_token.device += KEYS;
    FAILS(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base),
          ATTN_INVALID_ARGUMENT);
    step.kv.req_to_token.device -= KEYS;
    GOOD(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base));
    const attn_shared_prefix few = {.struct_size = sizeof few, .num_groups = 1};
    step.batch.shared_prefix = &few;
    step.batch.num_prefix_levels = 1;
    FAILS(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base),
          ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(
        strstr(host_error_text(&error), "1 prefix levels, level 0 of 1 runs; accepted in a"));
    destroy_metadata(metadata);
    engine_finish(&e);
    tear_down();
}

TEST_OF(fake_device, test_graph_levels)
{
    struct engine e;
    struct step step;
    attnhost_metadata *metadata = NULL;
    set_up();
    engine_init(&e, 0, 0);
    ck_assert_int_eq(is_supported("never", &e.problem), 0);
    ck_assert_int_eq(is_supported("single", &e.problem), 1);
    e.problem.graph_level = ATTN_GRAPH_NEVER;
    attnhost_backend *never = compose("never", &e.problem), *single = compose("single", &e.problem),
                     *uniform = compose("uniform", &e.problem);
    FAILS(attnhost_metadata_create(never, ATTN_METADATA_GRAPH, &e.bounds, NULL, &metadata,
                                   &error.base),
          ATTN_CAPTURE_UNSUPPORTED);
    e.bounds.max_q_len = 2;
    e.bounds.modes |= ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY);
    FAILS(attnhost_metadata_create(single, ATTN_METADATA_GRAPH, &e.bounds, NULL, &metadata,
                                   &error.base),
          ATTN_CAPTURE_UNSUPPORTED);
    metadata = make_metadata(uniform, ATTN_METADATA_GRAPH, &e.bounds);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 3, 3);
    step.batch.mode = ATTN_MODE_TARGET_VERIFY;
    step.batch.prefix_lens = step.batch.q_indptr = step.batch.seq_lens;
    step.batch.max_q_len = 2;
    step.batch.num_tokens = 5;
    FAILS(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base),
          ATTN_CAPTURE_UNSUPPORTED);
    step.batch.num_tokens = 6;
    GOOD(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base));
    destroy_metadata(metadata);
    attnhost_backend_destroy(uniform);
    attnhost_backend_destroy(single);
    attnhost_backend_destroy(never);
    engine_finish(&e);
    tear_down();
}

/* A capture with eager metadata would bake in its launch shapes. */
TEST_OF(fake_device, test_eager_metadata_is_not_captured)
{
    struct engine e;
    struct step step;
    set_up();
    engine_init(&e, 0, 0);
    fill_step(&e, 0, 0, 2);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 0, 2);
    GOOD(attnhost_init_forward_metadata(e.eager, &step.batch, stream, &error.base));
    step.args.flags |= ATTN_FORWARD_CAPTURING;
    FAILS(attnhost_forward(e.eager, 3, &step.args, stream, &error.base), ATTN_CAPTURE_UNSUPPORTED);
    engine_finish(&e);
    tear_down();
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* An index that must not be read, in each form. */
LOOP_OF(fake_device, test_bad_index_loses_the_device, 0, NUM_FORMS)
{
    struct engine e;
    struct step step;
    set_up();
    engine_init(&e, _i, 0);
    e.lens[3]++;
    fill_step(&e, 3, 1, 1);
    e.arrays->req_to_token[4][1] = e.arrays->block_table[0][0] = e.arrays->kv_indices[0] = UNUSED;
    refresh(e.on_device, e.arrays, sizeof *e.arrays);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 1, 1);
    GOOD(attnhost_init_forward_metadata(e.eager, &step.batch, stream, &error.base));
    GOOD(attnhost_forward(e.eager, 3, &step.args, stream, &error.base));
    FAILS(device_synchronize(device, stream, &error.base), ATTN_DEVICE_LOST);
    FAILS(attnhost_forward(e.eager, 3, &step.args, stream, &error.base), ATTN_DEVICE_LOST);
    engine_finish(&e);
    device_stream_destroy(device, stream);
    device_leave(device);
    device_close(device);
    attnhost_destroy(host);
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    ck_assert_uint_eq(counters.faults, 1);
    assert_nothing_left();
}

/* Counters that a failed forward left behind would stop the next one. */
TEST_OF(fake_device, test_a_failed_forward_leaves_nothing)
{
    struct engine e;
    struct step step;
    set_up();
    engine_init(&e, 1, 1);
    for (int32_t s = 0; s < SEQS; s++)
        e.lens[s]++;
    fill_step(&e, 1, 4, 4);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 4, 4);
    GOOD(attnhost_init_forward_metadata(e.eager, &step.batch, stream, &error.base));
    fake.inject("cuLaunchKernel", 2, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    ck_assert_int_ne(attnhost_forward(e.eager, 3, &step.args, stream, &error.base), ATTN_OK);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), CUDA_FIXTURE_ATTEND));
    step.operands[ATTN_ROLE_V_CACHE] = NULL;
    FAILS(attnhost_forward(e.eager, 3, &step.args, stream, &error.base), ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "v_cache"));
    step.operands[ATTN_ROLE_V_CACHE] = &step.tensors[ATTN_ROLE_V_CACHE];
    GOOD(attnhost_init_forward_metadata(e.eager, &step.batch, stream, &error.base));
    GOOD(attnhost_forward(e.eager, 3, &step.args, stream, &error.base));
    judge_step(&e, 4, 4);
    engine_finish(&e);
    tear_down();
}

/* From compose to destroy; the first status that is not ATTN_OK. */
static attn_status live_and_die(const attn_problem *problem, const struct step *step)
{
    attnhost_backend *backend = NULL;
    attnhost_metadata *metadata = NULL;
    struct device_graph *graph = NULL;
    attn_status status = attnhost_compose(host, "pages", problem, 1, &backend, &error.base);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(backend, ATTN_METADATA_GRAPH, problem->bounds, NULL,
                                          &metadata, &error.base);
    if (status == ATTN_OK)
        status = attnhost_init_forward_metadata(metadata, &step->batch, stream, &error.base);
    if (status == ATTN_OK)
        status = device_capture_begin(device, stream, &error.base);
    if (status == ATTN_OK) {
        status = attnhost_forward(metadata, 3, &step->args, stream, &error.base);
        attn_status ended = device_capture_end(device, stream, status == ATTN_OK ? &graph : NULL,
                                               status == ATTN_OK ? &error.base : NULL);
        status = status == ATTN_OK ? ended : status;
    }
    if (status == ATTN_OK)
        status = device_graph_launch(device, graph, stream, &error.base);
    if (status == ATTN_OK)
        status = device_synchronize(device, stream, &error.base);
    if (device_synchronize(device, stream, NULL) != ATTN_OK) /* it may be the call that fails */
        device_synchronize(device, stream, NULL);
    device_graph_destroy(device, graph);
    destroy_metadata(metadata);
    attnhost_backend_destroy(backend);
    return status;
}

/* What can be refused in such a life. To wait, to end a capture and to release cannot. */
static const char *const calls[] = {
    "cuInit",           "cuDeviceGet",          "cuDevicePrimaryCtxRetain", "cuMemAlloc",
    "cuModuleLoadData", "cuModuleGetFunction",  "cuMemsetD8Async",          "cuMemsetD32Async",
    "cuLaunchKernel",   "cuStreamBeginCapture", "cuGraphInstantiate",       "cuGraphLaunch",
};

/* One call after the other fails, the first of its name, the second ... Nothing is left behind, and
 * the next attempt is good. Returns how many failed. */
static int fail_all(const char *call, const struct engine *e, const struct step *step)
{
    struct fake_cuda_live before, after;
    int failures = 0;
    fake.get_live(&before);
    for (uint64_t n = 1;; n++) {
        host_error_init(&error);
        fake.inject(call, n, CUDA_ERROR_OUT_OF_MEMORY);
        attn_status status = live_and_die(&e->problem, step);
        int injected = fake.injected();
        fake.inject(NULL, 0, CUDA_SUCCESS);
        fake.get_live(&after);
        ck_assert_msg(memcmp(&before, &after, sizeof before) == 0, "%s %d", call, (int)n);
        if (!injected)
            return failures;
        ck_assert_msg(status != ATTN_OK && *host_error_text(&error), "%s %d", call, (int)n);
        failures++;
        GOOD(live_and_die(&e->problem, step));
    }
}

TEST_OF(fake_device, test_every_call_fails_once)
{
    struct engine e;
    struct step step;
    set_up();
    engine_init(&e, 1, 0);
    fill_step(&e, 0, 0, MAX_GRAPH_SEQS);
    make_step(&e, &step, ATTN_DEVICE_CUDA, 0, MAX_GRAPH_SEQS);
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++)
        ck_assert_msg(fail_all(calls[c], &e, &step) > 0, "%s", calls[c]);
    engine_finish(&e);
    tear_down();
}

/* ---- Query ----------------------------------------------------------------------------------- */

/* The first field that is refused; 0 = none. */
static uint32_t refused_field(const attn_problem *problem)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    GOOD(attnhost_query(host, "cuda_fixture", problem, &verdict, &error.base));
    ck_assert_int_eq(verdict.supported, verdict.num_reasons == 0);
    ck_assert_uint_le(verdict.num_reasons, 1);
    return verdict.num_reasons ? reason.field : 0;
}

/* A backend that plans with lengths on the host says so, and is given none without them. */
TEST_OF(fake_device, test_host_arrays)
{
    struct engine e;
    struct step step;
    set_up();
    engine_init(&e, 0, 0);
    attn_bounds few = e.bounds;
    few.max_kv_tokens = 6 * PAGE;
    e.problem.bounds = &few;
    attnhost_backend *backend = compose("counting", &e.problem);
    attnhost_metadata *metadata = make_metadata(backend, ATTN_METADATA_EAGER, &few);
    ck_assert_uint_eq(attnhost_backend_host_arrays(backend),
                      ATTN_HOST_SEQ_LENS | ATTN_HOST_KV_LENS);
    fill_step(&e, 1, 2, 2); /* of 6 and 15 keys */
    make_step(&e, &step, ATTN_DEVICE_CUDA, 2, 2);
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_str_eq(host_error_text(&error), "batch.seq_lens.host is absent; accepted: given, for "
                                              "this backend plans with it");
    ck_assert_uint_eq(error.base.field, ATTN_FIELD_BATCH);
    step.batch.seq_lens.host = e.arrays->seq_lens;
    step.kv.kv_lens.device = step.batch.seq_lens.device;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "kv_groups[].kv_lens.host is absent"));
    step.kv.kv_lens.host = e.arrays->seq_lens;
    GOOD(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base));
    e.arrays->seq_lens[1] = KEYS;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &step.batch, stream, &error.base),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(error.base.field, ATTN_FIELD_MAX_KV_TOKENS);
    destroy_metadata(metadata);
    attnhost_backend_destroy(backend);
    engine_finish(&e);
    tear_down();
}

TEST_OF(fake_device, test_query_refuses)
{
    struct engine e = {.hnd = 1};
    attn_device cpu = {.struct_size = sizeof cpu, .type = ATTN_DEVICE_CPU};
    set_up();
    init_problem(&e);
    ck_assert_uint_eq(refused_field(&e.problem), 0);
    attn_layer_group group = e.group;
    attn_bounds bounds = e.bounds;
    attn_problem problem = e.problem;
    problem.group = &group;
    problem.bounds = &bounds;
#define REFUSED(change, undo, name)                                                                \
    change;                                                                                        \
    ck_assert_uint_eq(refused_field(&problem), ATTN_FIELD_##name);                                 \
    undo
    REFUSED(group.flags = ATTN_GROUP_HAS_ALIBI, group.flags = 0, ALIBI);
    REFUSED(group.attn_type = ATTN_TYPE_CROSS, group.attn_type = 0, ATTN_TYPE);
    REFUSED(group.kind = ATTN_KIND_MLA, group.kind = 0, KIND);
    REFUSED(group.head_dim = 513, group.head_dim = 512, HEAD_DIM);
    REFUSED(problem.kv_dtype = ATTN_F16, problem.kv_dtype = ATTN_F32, KV_DTYPE);
    REFUSED(problem.kv_layout = ATTN_LAYOUT_MLA_LATENT, problem.kv_layout = ATTN_LAYOUT_KV_NHD,
            KV_LAYOUT);
    REFUSED(problem.device = &cpu, problem.device = &device->info, DEVICE_TYPE);
    REFUSED(problem.graph_level = ATTN_GRAPH_COUNT, problem.graph_level = 0, GRAPH_LEVEL);
    REFUSED(bounds.mask_kinds = ATTN_MASK_BIT(ATTN_MASK_FULL), bounds.mask_kinds = 3, MASK_KINDS);
    REFUSED(bounds.uses = ATTN_USES_MULTI_ITEM, bounds.uses = 0, USES);
    REFUSED(bounds.max_seqs = -1, bounds.max_seqs = 1, MAX_SEQS);
#undef REFUSED
    ck_assert_uint_eq(refused_field(&problem), 0);
    group.num_q_heads = 3;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    FAILS(attnhost_query(host, "cuda_fixture", &problem, &verdict, &error.base),
          ATTN_INVALID_ARGUMENT);
    tear_down();
}

TESTS("cuda_fixture");
