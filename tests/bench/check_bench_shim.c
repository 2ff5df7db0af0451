/* SPDX-License-Identifier: Apache-2.0
 *
 * check_bench_shim.c: bench/attention_shim.c on a GPU, by the fake CUDA driver and the backend
 * cuda_fixture: its batch as the device sees it, eagerly and captured. On the CPU, through ctypes,
 * it is tested by tests/independent/bench_shim.py.
 */
#include "bench/attention_shim.h"
#include "tests/bench/shim_test.h"
#include "tests/fixtures/cuda_fixture_kernels.h"

#include <math.h>
#include <string.h>

enum { SEQS = 3, TOKENS = 11, Q_HEADS = 4, KV_HEADS = 2, DIM = 8, LAYERS = 2 };
enum { ROW = KV_HEADS * DIM, KV = SEQS * TOKENS * ROW };

static int page_size;

static void set_up(void)
{
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    open_device();
}

static void fill_random(float *values, int count)
{
    for (int i = 0; i < count; i++)
        values[i] = (float)(rand() % 2001 - 1000) / 500;
}

/* ---- A layer --------------------------------------------------------------------------------- */

/* Keys and values of a layer, [2][SEQS][TOKENS][ROW], and where they lie on the device. */
typedef struct layer {
    float kv[2][KV];
    float q[SEQS * TOKENS * Q_HEADS * DIM];
    bench_tensors device;
} layer;

/* The pages as they were before the block on the host was wiped. */
static int32_t pages[SEQS * TOKENS], stride;

static int slot_of(int seq, int token)
{
    return pages[seq * stride + token / page_size] * page_size + token % page_size;
}

/* Arrays on the host are for planning alone; kernels that read them get nonsense. */
static void wipe_index(const bench *b)
{
    int64_t bytes;
    const void *index = bench_index(b, &bytes);
    memset((void *)(uintptr_t)index, 0x7F, (size_t)bytes);
}

/* A cache that is NaN but for page 0 and the first `cached` tokens of each sequence. */
static void *upload_cache(const bench *b, const float *kv, int cached)
{
    size_t count = (size_t)bench_num_pages(b) * (size_t)page_size * ROW;
    float *cache = malloc(count * sizeof *cache);
    for (size_t i = 0; i < count; i++)
        cache[i] = i < (size_t)page_size * ROW ? 0 : NAN;
    for (int s = 0; s < SEQS; s++)
        for (int t = 0; t < cached; t++)
            memcpy(cache + slot_of(s, t) * ROW, kv + (s * TOKENS + t) * ROW, ROW * sizeof *cache);
    void *uploaded = upload(cache, count * sizeof *cache);
    free(cache);
    return uploaded;
}

/* The last `queries` tokens of each sequence. */
static void *upload_new(const float *kv, int queries)
{
    float rows[KV];
    for (int s = 0; s < SEQS; s++)
        memcpy(rows + s * queries * ROW, kv + (s * TOKENS + TOKENS - queries) * ROW,
               (size_t)queries * ROW * sizeof *rows);
    return upload(rows, (size_t)SEQS * (size_t)queries * ROW * sizeof *rows);
}

static void layer_init(layer *l, const bench *b, const bench_setup *setup)
{
    int queries = setup->num_new;
    size_t q_bytes = (size_t)SEQS * (size_t)queries * Q_HEADS * DIM * sizeof(float);
    int cached = setup->save_kv ? TOKENS - queries : TOKENS;
    memset(&l->device, 0, sizeof l->device);
    fill_random(l->kv[0], 2 * KV);
    fill_random(l->q, (int)(q_bytes / sizeof(float)));
    l->device.q = upload(l->q, q_bytes);
    l->device.out = device_allocate(device, ATTN_SPACE_DEVICE, q_bytes, 256);
    GOOD(device_fill(device, l->device.out, 0xFF, q_bytes, stream, &error.base)); /* NaN */
    if (setup->save_kv || setup->num_new == TOKENS) {
        l->device.k = upload_new(l->kv[0], queries);
        l->device.v = upload_new(l->kv[1], queries);
    }
    l->device.k_cache = upload_cache(b, l->kv[0], cached);
    l->device.v_cache = upload_cache(b, l->kv[1], cached);
}

static void layer_finish(layer *l)
{
    void *const memory[] = {l->device.q,   l->device.k,       l->device.v,
                            l->device.out, l->device.k_cache, l->device.v_cache};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        device_release(device, ATTN_SPACE_DEVICE, memory[i]);
}

/* One row and head of attention over the first `seen` keys of a sequence. */
static void attend(const layer *l, int seq, const float *q, int head, int seen, double *out)
{
    double weights[TOKENS], most = -INFINITY, sum = 0;
    const float *k = l->kv[0] + seq * TOKENS * ROW + head / (Q_HEADS / KV_HEADS) * DIM;
    const float *v = l->kv[1] + (k - l->kv[0]);
    for (int j = 0; j < seen; j++) {
        weights[j] = 0;
        for (int d = 0; d < DIM; d++)
            weights[j] += (double)q[d] * (double)k[j * ROW + d] / sqrt(DIM);
        most = fmax(most, weights[j]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (int j = 0; j < seen; j++) {
        double weight = exp(weights[j] - most);
        sum += weight;
        for (int d = 0; d < DIM; d++)
            out[d] += weight * (double)v[j * ROW + d];
    }
    for (int d = 0; d < DIM; d++)
        out[d] /= sum;
}

static void check_out(const layer *l, int queries)
{
    static float got[SEQS * TOKENS * Q_HEADS * DIM];
    download(got, l->device.out, (size_t)SEQS * (size_t)queries * Q_HEADS * DIM * sizeof *got);
    for (int row = 0; row < SEQS * queries; row++)
        for (int h = 0; h < Q_HEADS; h++) {
            int at = (row * Q_HEADS + h) * DIM;
            double right[DIM];
            attend(l, row / queries, l->q + at, h, TOKENS - queries + row % queries + 1, right);
            for (int d = 0; d < DIM; d++)
                ck_assert_msg(fabs(right[d] - (double)got[at + d]) < 1e-5, "row %d head %d: %g, %g",
                              row, h, right[d], (double)got[at + d]);
        }
}

/* Every key has come to its slot. */
static void check_cache(const layer *l, const bench *b)
{
    size_t count = (size_t)bench_num_pages(b) * (size_t)page_size * ROW;
    float *cache = malloc(count * sizeof *cache);
    for (int which = 0; which < 2; which++) {
        download(cache, which ? l->device.v_cache : l->device.k_cache, count * sizeof *cache);
        for (int s = 0; s < SEQS; s++)
            for (int t = 0; t < TOKENS; t++)
                ck_assert_mem_eq(cache + slot_of(s, t) * ROW, l->kv[which] + (s * TOKENS + t) * ROW,
                                 ROW * sizeof *cache);
    }
    free(cache);
}

/* ---- A bench --------------------------------------------------------------------------------- */

static bench *open_bench(bench_setup *setup, const char *index_form)
{
    char path[4096];
    const char *options[] = {"index_form", index_form};
    attn_status status;
    fixture_path("cuda_fixture.so", path);
    setup->struct_size = sizeof *setup;
    setup->device_type = ATTN_DEVICE_CUDA;
    setup->num_seqs = SEQS;
    setup->num_tokens = TOKENS;
    setup->num_q_heads = Q_HEADS;
    setup->num_kv_heads = KV_HEADS;
    setup->head_dim = DIM;
    setup->num_layers = LAYERS;
    setup->page_size = page_size;
    setup->num_threads = 1;
    setup->dtype = setup->kv_dtype = ATTN_F32;
    setup->sm_scale = 1 / sqrtf(DIM);
    setup->num_options = 1;
    setup->plugin = path;
    setup->backend = "cuda_fixture";
    setup->options = options;
    bench *b = bench_create(setup, &status);
    ck_assert_ptr_nonnull(b);
    ck_assert_msg(status == ATTN_OK, "%s", bench_message(b));
    const int32_t *made = bench_pages(b, &stride);
    memcpy(pages, made, (size_t)SEQS * (size_t)stride * sizeof *pages);
    return b;
}

static int launch(void *graph, void *on)
{
    return device_graph_launch(device, graph, on, &error.base);
}

static int launch_fails(void *graph, void *on)
{
    (void)graph;
    (void)on;
    return 700;
}

#define RIGHT(b, call) ck_assert_msg((call) == ATTN_OK, "%s", bench_message(b))

static void run_eagerly(bench *b)
{
    RIGHT(b, bench_plan(b, stream));
    wipe_index(b);
    for (int i = 0; i < LAYERS; i++)
        RIGHT(b, bench_forward(b, i, stream, 0));
}

static void run_captured(bench *b)
{
    struct device_graph *graph = NULL;
    double seconds[2] = {-1, -1};
    RIGHT(b, bench_plan(b, stream));
    GOOD(device_capture_begin(device, stream, &error.base));
    for (int i = 0; i < LAYERS; i++)
        RIGHT(b, bench_forward(b, i, stream, 1));
    GOOD(device_capture_end(device, stream, &graph, &error.base));
    ck_assert_int_eq(bench_step_times(b, launch_fails, graph, stream, seconds), ATTN_INTERNAL);
    ck_assert_str_eq(bench_message(b), "cuGraphLaunch: 700");
    fake.hold(stream, 1);
    RIGHT(b, bench_step_times(b, launch, graph, stream, seconds));
    ck_assert(seconds[0] >= 0 && seconds[1] >= 0);
    wipe_index(b);
    fake.hold(stream, 0);
    GOOD(device_synchronize(device, stream, &error.base));
    device_graph_destroy(device, graph);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static const char *const index_forms[] = {"req_to_token", "block_table", "csr"};

LOOP_OF(fake_device, shapes, 0, 16 * 3 * 2)
{
    static layer layers[LAYERS];
    static const struct {
        int32_t mode, num_new;
    } batches[] = {{ATTN_MODE_DECODE, 1},
                   {ATTN_MODE_EXTEND, TOKENS},
                   {ATTN_MODE_EXTEND, 4},
                   {ATTN_MODE_TARGET_VERIFY, 3}};
    page_size = _i < 48 ? 4 : TOKENS; /* the last page partly or wholly used */
    bench_setup setup = {.mode = batches[_i % 4].mode,
                         .num_new = batches[_i % 4].num_new,
                         .graph = _i >> 2 & 1,
                         .save_kv = _i >> 3 & 1};
    bench *b = open_bench(&setup, index_forms[_i / 16 % 3]);
    int64_t bytes = 0;
    const void *index = bench_index(b, &bytes);
    void *placed = upload(index, (size_t)bytes);
    ck_assert_int_eq(bench_plan(b, stream), ATTN_BAD_STATE);
    bench_place_index(b, placed);
    for (int i = 0; i < LAYERS; i++) {
        layer_init(&layers[i], b, &setup);
        RIGHT(b, bench_bind(b, i, &layers[i].device));
    }
    if (setup.graph)
        run_captured(b);
    else
        run_eagerly(b);
    for (int i = 0; i < LAYERS; i++) {
        check_out(&layers[i], setup.num_new);
        check_cache(&layers[i], b);
        layer_finish(&layers[i]);
    }
    bench_destroy(b);
    device_release(device, ATTN_SPACE_DEVICE, placed);
}

TEST_OF(fake_device, another_size_is_refused)
{
    bench_setup setup = {.struct_size = sizeof setup - 8};
    attn_status status;
    bench *b = bench_create(&setup, &status);
    ck_assert_ptr_nonnull(b);
    ck_assert_int_eq(status, ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(bench_message(b), "bench_setup of"));
    bench_destroy(b);
}

GROUP(fake_device, .set_up = set_up, .tear_down = tear_down);
TESTS("bench_shim");
