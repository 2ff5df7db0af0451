/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's allocator and threads in attnhost_params: that all memory of real backends and their
 * metadata comes from the one, all of their work is done by the other, and that an allocator that
 * gives nothing is named. */
#include "host/base/error.h"
#include "host/device/device.h"
#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/tools/plain_problem.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/tools/test_main.h"

#include "attnhost.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 3 };

/* An engine's memory and threads, which count what they are asked for. */
struct engine {
    int allocated, released, jobs, bad;
    int fails_at;  /* this allocation, from 1, gives nothing */
    int misplaces; /* every allocation is one byte off */
    uint64_t bytes;
    int64_t tasks;
};

static struct engine engine;
static attnhost *host;
static host_error error;

static void *take(void *ctx, int32_t device_type, int32_t device_id, uint32_t space, uint64_t size,
                  uint64_t alignment)
{
    struct engine *e = ctx;
    void *memory = NULL;
    e->bad += device_type != ATTN_DEVICE_CPU || device_id != 0 || space >= ATTN_SPACE_COUNT ||
              size == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0;
    if (++e->allocated == e->fails_at)
        return NULL;
    if (posix_memalign(&memory, alignment < 64 ? 64 : alignment, size + 64) != 0)
        return NULL;
    e->bytes += size;
    return (char *)memory + (e->misplaces ? 1 : 0);
}

static void give_back(void *ctx, int32_t device_type, int32_t device_id, uint32_t space,
                      void *memory)
{
    struct engine *e = ctx;
    e->bad += device_type != ATTN_DEVICE_CPU || device_id != 0 || space >= ATTN_SPACE_COUNT ||
              memory == NULL;
    e->released++;
    free((char *)memory - (e->misplaces ? 1 : 0));
}

/* The same on a GPU: an engine's pool is made of the driver's memory. */
static struct device *gpu;

static void *take_on_gpu(void *ctx, int32_t device_type, int32_t device_id, uint32_t space,
                         uint64_t size, uint64_t alignment)
{
    struct engine *e = ctx;
    e->bad += device_type != ATTN_DEVICE_CUDA || device_id != 0 || size == 0;
    if (++e->allocated == e->fails_at)
        return NULL;
    e->bytes += size;
    return device_allocate(gpu, space, size, alignment);
}

static void give_back_on_gpu(void *ctx, int32_t device_type, int32_t device_id, uint32_t space,
                             void *memory)
{
    struct engine *e = ctx;
    e->bad += device_type != ATTN_DEVICE_CUDA || device_id != 0 || memory == NULL;
    e->released++;
    device_release(gpu, space, memory);
}

/* A job of the engine's: a thread for each worker, which takes every WORKERS-th task. */
struct job {
    int64_t num_tasks;
    attn_task task;
    void *arg;
    uint32_t worker;
    attn_status status;
};

static void *work(void *arg)
{
    struct job *job = arg;
    for (int64_t i = job->worker; i < job->num_tasks && job->status == ATTN_OK; i += WORKERS)
        job->status = job->task(job->arg, i, job->worker);
    return NULL;
}

static attn_status run(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    struct engine *e = ctx;
    pthread_t threads[WORKERS];
    struct job jobs[WORKERS];
    attn_status status = ATTN_OK;
    e->jobs++;
    e->tasks += num_tasks;
    e->bad += num_tasks <= 0;
    for (uint32_t w = 0; w < WORKERS; w++) {
        jobs[w] = (struct job){num_tasks, task, arg, w, ATTN_OK};
        ck_assert_int_eq(pthread_create(&threads[w], NULL, work, &jobs[w]), 0);
    }
    for (uint32_t w = 0; w < WORKERS; w++) {
        pthread_join(threads[w], NULL);
        status = status ? status : jobs[w].status;
    }
    return status;
}

static attnhost_params params_of_engine(void)
{
    return (attnhost_params){.struct_size = sizeof(attnhost_params),
                             .num_threads = WORKERS,
                             .log_level = ATTN_LOG_ERROR,
                             .allocate = take,
                             .release = give_back,
                             .memory_ctx = &engine,
                             .parallel_for = run,
                             .parallel_ctx = &engine};
}

static void setup(void)
{
    char path[1024];
    const char *from = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    attnhost_params params = params_of_engine();
    memset(&engine, 0, sizeof engine);
    host_error_init(&error);
    ck_assert_int_eq(attnhost_create(&params, &host, &error.base), ATTN_OK);
    snprintf(path, sizeof path, "%s", from ? from : "plugins/.libs");
    ck_assert_int_eq(attnhost_load_directory(host, path, &error.base), ATTN_OK);
}

static void set_up_gpu(void)
{
    char path[4096];
    attnhost_params params = params_of_engine();
    params.allocate = take_on_gpu;
    params.release = give_back_on_gpu;
    memset(&engine, 0, sizeof engine);
    host_error_init(&error);
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    fixture_path("cuda_fixture.so", path);
    ck_assert_int_eq(device_open(ATTN_DEVICE_CUDA, 0, &gpu, &error.base), ATTN_OK);
    ck_assert_int_eq(attnhost_create(&params, &host, &error.base), ATTN_OK);
    ck_assert_int_eq(attnhost_load_plugin(host, path, &error.base), ATTN_OK);
}

static void tear_down_gpu(void)
{
    attnhost_destroy(host);
    device_close(gpu);
    ck_assert_int_eq(engine.bad, 0);
    assert_nothing_left();
    assert_clean();
    fake.reset();
}

static void teardown(void)
{
    attnhost_destroy(host);
    ck_assert_int_eq(engine.bad, 0);
    ck_assert_int_eq(engine.allocated - (engine.fails_at > 0), engine.released);
}

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(host_error_text(&error), part) != NULL, "'%s' is not in '%s'", part,
                  host_error_text(&error));
}

/* ---- A small model --------------------------------------------------------------------------- */

enum { SEQS = 4, HEADS = 8, DIM = 64, PAGE = 16, PAGES = SEQS };

static attn_bounds bounds; /* of the backend that was made last */

static attn_status compose_on(int32_t type, const char *name, attnhost_backend **backend)
{
    struct plain_problem plain;
    plain_problem_init(&plain, 0, ATTN_F32);
    plain_problem_decodes(&plain);
    ck_assert_int_eq(attnhost_device_init(&plain.device, type, 0, NULL), ATTN_OK);
    plain.group.num_q_heads = plain.group.num_kv_heads = HEADS;
    plain.bounds.max_kv_len = PAGE;
    plain.bounds.max_kv_tokens = SEQS * PAGE;
    bounds = plain.bounds;
    return attnhost_compose(host, name, &plain.problem, 1, backend, &error.base);
}

static attn_status compose(const char *name, attnhost_backend **backend)
{
    return compose_on(ATTN_DEVICE_CPU, name, backend);
}

static attn_status plan(attnhost_metadata *metadata)
{
    static const int32_t lens[SEQS] = {1, 5, 9, 16}, table[SEQS] = {0, 1, 2, 3};
    static const int64_t slots[SEQS] = {0, PAGE + 4, 2 * PAGE + 8, 3 * PAGE + 15};
    static attn_kv_batch kv;
    kv = (attn_kv_batch){.struct_size = sizeof kv,
                         .index_forms = ATTN_INDEX_BLOCK_TABLE,
                         .page_size = PAGE,
                         .block_table = {table, table},
                         .block_table_stride = 1,
                         .out_cache_loc = {slots, slots}};
    const attn_batch batch = {.struct_size = sizeof batch,
                              .mode = ATTN_MODE_DECODE,
                              .num_seqs = SEQS,
                              .num_tokens = SEQS,
                              .num_real_seqs = SEQS,
                              .num_real_tokens = SEQS,
                              .max_q_len = 1,
                              .max_kv_len = PAGE,
                              .num_kv_groups = 1,
                              .seq_lens = {lens, lens},
                              .kv_groups = &kv};
    return attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base);
}

static attn_tensor view(float *data, uint32_t ndim, const int64_t *shape)
{
    attn_tensor made;
    ck_assert_int_eq(attnhost_tensor_init(&made, data, ATTN_DEVICE_CPU, 0, ATTN_F32, ndim, shape,
                                          NULL, &error.base),
                     ATTN_OK);
    return made;
}

/* One layer over values that are all 1: so is the output. */
static void forward(attnhost_metadata *metadata)
{
    static float rows[SEQS * HEADS * DIM], out[SEQS * HEADS * DIM];
    static float keys[PAGES * PAGE * HEADS * DIM], values[PAGES * PAGE * HEADS * DIM];
    const int64_t row[] = {SEQS, HEADS, DIM}, cache[] = {PAGES, PAGE, HEADS, DIM};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = 1, out[i] = 7;
    attn_tensor q = view(rows, 3, row), o = view(out, 3, row);
    attn_tensor k_cache = view(keys, 4, cache), v_cache = view(values, 4, cache);
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {
        [ATTN_ROLE_Q] = &q,
        [ATTN_ROLE_K] = &q,
        [ATTN_ROLE_V] = &q,
        [ATTN_ROLE_OUT] = &o,
        [ATTN_ROLE_K_CACHE] = &k_cache,
        [ATTN_ROLE_V_CACHE] = &v_cache,
    };
    const attn_forward_args args = {.struct_size = sizeof args,
                                    .flags = ATTN_FORWARD_SAVE_KV,
                                    .num_operands = ATTN_ROLE_COUNT,
                                    .operands = operands};
    attn_status status = attnhost_forward(metadata, 0, &args, NULL, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        ck_assert_msg(out[i] > 0.999f && out[i] < 1.001f, "out[%zu] = %g", i, (double)out[i]);
}

static attn_status make_metadata(attnhost_backend *backend, attnhost_metadata **metadata)
{
    return attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, NULL, metadata,
                                    &error.base);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

TEST_OF(params, a_backend_uses_them_alone)
{
    attnhost_backend *backend = NULL;
    attnhost_metadata *metadata = NULL;
    ck_assert_int_eq(compose("cpu_native", &backend), ATTN_OK);
    ck_assert_int_eq(make_metadata(backend, &metadata), ATTN_OK);
    attn_memory_size size = {.struct_size = sizeof size};
    uint64_t wanted = 0;
    ck_assert_int_eq(
        attnhost_metadata_size(backend, ATTN_METADATA_EAGER, &bounds, &size, &error.base), ATTN_OK);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        wanted += size.size[r];
    ck_assert_uint_gt(wanted, 0);
    ck_assert_uint_ge(engine.bytes, wanted);
    int allocated = engine.allocated, jobs = engine.jobs;
    ck_assert_int_eq(plan(metadata), ATTN_OK);
    forward(metadata);
    ck_assert_int_gt(engine.jobs, jobs);
    ck_assert_int_gt(engine.tasks, 1);
    ck_assert_int_eq(engine.allocated, allocated); /* nothing in a forward */
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
    ck_assert_int_eq(engine.released, engine.allocated);
}

/* Each allocation in turn fails: the error says whose it was, and nothing is kept. */
LOOP_OF(params, a_failing_allocator_is_named, 0, 2)
{
    const char *const names[] = {"cpu_native", "both"};
    const char *const pairs[] = {"prefill", "cpu_native", "decode", "cpu_native"};
    ck_assert_int_eq(attnhost_define_backend(host, "both", "hybrid_phase", pairs, 2, &error.base),
                     ATTN_OK);
    int failures = 0;
    for (int at = 1, done = 0; !done; at++) {
        attnhost_backend *backend = NULL;
        attnhost_metadata *metadata = NULL;
        memset(&engine, 0, sizeof engine);
        host_error_init(&error);
        engine.fails_at = at;
        attn_status status = compose(names[_i], &backend);
        if (status == ATTN_OK)
            status = make_metadata(backend, &metadata);
        done = engine.allocated < at;
        if (!done) {
            failures++;
            ck_assert(status == ATTN_OUT_OF_HOST_MEMORY ||
                      (_i == 1 && status == ATTN_CHILD_FAILED));
            assert_says("attnhost_params.allocate ");
            ck_assert_ptr_null(metadata);
        }
        attnhost_metadata_destroy(metadata);
        attnhost_backend_destroy(backend);
        ck_assert_int_eq(engine.allocated - !done, engine.released);
    }
    ck_assert_int_ge(failures, 1);
    memset(&engine, 0, sizeof engine);
}

/* What is not aligned goes back, and counts as nothing. */
TEST_OF(params, misplaced_memory_is_refused)
{
    attnhost_backend *backend = NULL;
    attnhost_metadata *metadata = NULL;
    engine.misplaces = 1;
    attn_status status = compose("cpu_native", &backend);
    if (status == ATTN_OK)
        status = make_metadata(backend, &metadata);
    ck_assert_int_eq(status, ATTN_OUT_OF_HOST_MEMORY);
    assert_says("attnhost_params.allocate ");
    attnhost_backend_destroy(backend);
}

/* Memory of a GPU, pinned and host memory of its backends: all of it, and each refusal is named. */
TEST_OF(gpu, memory_of_a_gpu)
{
    for (int at = 0, done = 0; !done; at++) {
        attnhost_backend *backend = NULL;
        attnhost_metadata *metadata = NULL;
        struct fake_cuda_live live;
        memset(&engine, 0, sizeof engine);
        host_error_init(&error);
        engine.fails_at = at;
        attn_status status = compose_on(ATTN_DEVICE_CUDA, "cuda_fixture", &backend);
        if (status == ATTN_OK)
            status = make_metadata(backend, &metadata);
        fake.get_live(&live);
        ck_assert_int_le((int)(live.allocations + live.pinned), engine.allocated);
        if (at == 0) {
            ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
            ck_assert_int_gt((int)live.allocations, 0);
        }
        done = at > 0 && engine.allocated < at;
        if (at > 0 && !done) {
            ck_assert(status == ATTN_OUT_OF_DEVICE_MEMORY || status == ATTN_OUT_OF_HOST_MEMORY);
            assert_says("attnhost_params.allocate ");
        }
        attnhost_metadata_destroy(metadata);
        attnhost_backend_destroy(backend);
        ck_assert_int_eq(engine.allocated - (at > 0 && !done), engine.released);
    }
}

/* What a plugin has against bounds is said. */
TEST_OF(gpu, refused_bounds_are_named)
{
    attnhost_backend *backend = NULL;
    attn_memory_size size = {.struct_size = sizeof size};
    ck_assert_int_eq(compose_on(ATTN_DEVICE_CUDA, "cuda_fixture", &backend), ATTN_OK);
    bounds.max_seqs = 0;
    ck_assert_int_eq(
        attnhost_metadata_size(backend, ATTN_METADATA_EAGER, &bounds, &size, &error.base),
        ATTN_INVALID_ARGUMENT);
    assert_says("bounds max_seqs 0, max_tokens 4: accepted 1 and more");
    attnhost_backend_destroy(backend);
}

/* Calls that backends and metadata are made by, and that the driver may refuse. */
static const char *const calls[] = {
    "cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction",
    "cuStreamCreate",           "cuMemsetD8Async",
};

/* The first call of this name, the second ... : that is an error, and nothing is left. */
LOOP_OF(gpu, a_refused_call_is_an_error, 0, COUNT(calls))
{
    int refused = 0;
    for (int was_refused = 1; was_refused; refused += was_refused) {
        attnhost_backend *backend = NULL;
        attnhost_metadata *metadata = NULL;
        host_error_init(&error);
        fake.inject(calls[_i], (uint64_t)refused + 1, CUDA_ERROR_OUT_OF_MEMORY);
        attn_status status = compose_on(ATTN_DEVICE_CUDA, "cuda_fixture", &backend);
        if (status == ATTN_OK)
            status = make_metadata(backend, &metadata);
        was_refused = fake.injected();
        fake.inject(NULL, 0, CUDA_SUCCESS);
        ck_assert_msg((status != ATTN_OK) == was_refused, "%s", calls[_i]);
        ck_assert_msg((*host_error_text(&error) != '\0') == was_refused, "%s", calls[_i]);
        attnhost_metadata_destroy(metadata);
        attnhost_backend_destroy(backend);
        ck_assert_int_eq(engine.allocated, engine.released);
    }
    ck_assert_int_gt(refused, 0);
}

TEST_OF(params, wrong_params)
{
    attnhost *none = NULL;
    attnhost_params params = params_of_engine();
    params.release = NULL;
    ck_assert_int_eq(attnhost_create(&params, &none, &error.base), ATTN_INVALID_ARGUMENT);
    assert_says("release is NULL; accepted: allocate and release, or neither");
    params = params_of_engine();
    params.num_threads = 0;
    ck_assert_int_eq(attnhost_create(&params, &none, &error.base), ATTN_INVALID_ARGUMENT);
    assert_says("parallel_for with num_threads 0: accepted: 1..4096");
    ck_assert_ptr_null(none);
}

GROUP(params, .set_up = setup, .tear_down = teardown);
GROUP(gpu, .set_up = set_up_gpu, .tear_down = tear_down_gpu);
TESTS("engine_services");
