/* SPDX-License-Identifier: Apache-2.0
 *
 * check_context.c: what an engine on CUDA may rely on, on the fake driver: plugins find the primary
 * context of their device current whatever the engine has current, which is left as it was; and
 * what the library fills is filled when the call returns, next to the engine's streams and
 * captures.
 */
#include "tests/host/embed/attnhost_fixture.h"

#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/context_probe.h"

static struct cuda_driver driver;
static cuda_context contexts[2]; /* the primary ones of the two devices */
static const struct context_probe *probe;
static struct context_probe before;

#define GOOD(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))
#define CALL(call) ck_assert_uint_eq(driver.call, CUDA_SUCCESS)

static void set_up(void)
{
    use_fake_cuda();
    fake.set_devices(2);
    setup();
    GOOD(load("context_probe"));
    GOOD(cuda_driver_init(&driver, NULL, &error.base));
    for (int d = 0; d < 2; d++)
        CALL(cuDevicePrimaryCtxRetain(&contexts[d], d));
    make_problems();
    GOOD(attnhost_device_init(&device, ATTN_DEVICE_CUDA, 0, &error.base));
    probe =
        registry_find_plugin(&host->registry, "context_probe")->table.get_extension(CONTEXT_PROBE);
}

static void tear_down(void)
{
    teardown();
    for (int d = 0; d < 2; d++)
        CALL(cuDevicePrimaryCtxRelease(d));
    cuda_driver_finish(&driver);
    assert_nothing_left();
    assert_clean();
}

/* ---- Contexts -------------------------------------------------------------------------------- */

static cuda_context current(void)
{
    cuda_context context;
    CALL(cuCtxGetCurrent(&context));
    return context;
}

/* Since the last time `call` was made, once or more, in the primary context; and `engines` is
 * current still. */
static void assert_called(int call, cuda_context engines)
{
    ck_assert_uint_gt(probe->count[call], before.count[call]);
    ck_assert_ptr_eq(probe->context[call], contexts[0]);
    ck_assert_ptr_eq(current(), engines);
    before = *probe;
}

static const int32_t lens[2] = {3, 4}, prefixes[2] = {2, 0}, indptr[3] = {0, 1, 5};
static const int32_t table[2 * 7];
static const attn_forward_args args = {.struct_size = sizeof args};

static attn_status plan(attnhost_metadata *metadata, uint32_t mode, int32_t max_q_len)
{
    attn_kv_batch kv[2];
    for (int g = 0; g < 2; g++)
        kv[g] = (attn_kv_batch){.struct_size = sizeof kv[g],
                                .index_forms = ATTN_INDEX_BLOCK_TABLE,
                                .page_size = 16,
                                .block_table_stride = 7,
                                .block_table = {NULL, table}};
    int32_t tokens = mode == ATTN_MODE_DECODE ? 2 : 5;
    attn_batch batch = {.struct_size = sizeof batch,
                        .mode = mode,
                        .num_seqs = 2,
                        .num_tokens = tokens,
                        .num_real_seqs = 2,
                        .num_real_tokens = tokens,
                        .max_q_len = max_q_len,
                        .max_kv_len = 4,
                        .num_kv_groups = 2,
                        .seq_lens = {NULL, lens},
                        .prefix_lens = {NULL, prefixes},
                        .q_indptr = {NULL, indptr},
                        .kv_groups = kv};
    return attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base);
}

/* A backend's whole life; failures on the way leave the engine's context alone, too. */
static void live(cuda_context engines)
{
    attnhost_backend *backend = NULL;
    attnhost_metadata *metadata = NULL;
    attn_memory_size size = {.struct_size = sizeof size};
    before = *probe;
    GOOD(attnhost_compose(host, "context_probe", problems, 2, &backend, &error.base));
    ck_assert_uint_eq(probe->count[PROBE_index_forms], before.count[PROBE_index_forms] + 1);
    ck_assert_ptr_eq(probe->context[PROBE_index_forms], contexts[0]);
    assert_called(PROBE_create, engines);
    GOOD(attnhost_backend_prepare(backend, NULL, NULL, &error.base));
    assert_called(PROBE_prepare, engines);
    GOOD(attnhost_metadata_size(backend, ATTN_METADATA_GRAPH, &bounds, &size, &error.base));
    assert_called(PROBE_metadata_size, engines);
    GOOD(attnhost_metadata_create(backend, ATTN_METADATA_GRAPH, &bounds, NULL, &metadata,
                                  &error.base));
    assert_called(PROBE_metadata_create, engines);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_EXTEND, 0), ATTN_INVALID_ARGUMENT);
    assert_called(PROBE_init_forward_metadata, engines);
    GOOD(plan(metadata, ATTN_MODE_EXTEND, 4));
    assert_called(PROBE_init_forward_metadata, engines);
    GOOD(attnhost_forward(metadata, 0, &args, NULL, &error.base));
    assert_called(PROBE_forward_extend, engines);
    GOOD(plan(metadata, ATTN_MODE_DECODE, 1));
    GOOD(attnhost_forward(metadata, 1, &args, NULL, &error.base));
    assert_called(PROBE_forward_decode, engines);
    ck_assert_int_eq(attnhost_forward(metadata, CONTEXT_PROBE_FAILS, &args, NULL, NULL),
                     ATTN_INTERNAL);
    assert_called(PROBE_forward_decode, engines);
    attnhost_metadata_destroy(metadata);
    assert_called(PROBE_metadata_destroy, engines);
    attnhost_backend_destroy(backend);
    assert_called(PROBE_destroy, engines);
}

TEST_OF(context, any_context_may_be_current)
{
    cuda_context popped;
    set_up();
    live(NULL);
    CALL(cuCtxPushCurrent(contexts[1]));
    live(contexts[1]);
    CALL(cuCtxPushCurrent(contexts[0]));
    live(contexts[0]);
    CALL(cuCtxPopCurrent(&popped));
    CALL(cuCtxPopCurrent(&popped));
    ck_assert_ptr_eq(popped, contexts[1]);
    tear_down();
}

static attnhost_metadata *make_metadata(attnhost_backend **backend, const attn_memory *memory)
{
    attnhost_metadata *metadata = NULL;
    GOOD(attnhost_compose(host, "context_probe", problems, 2, backend, &error.base));
    GOOD(attnhost_metadata_create(*backend, ATTN_METADATA_EAGER, &bounds, memory, &metadata,
                                  &error.base));
    return metadata;
}

/* Where it is current already, a forward costs a look at that and no other call. */
TEST_OF(context, a_forward_is_cheap)
{
    struct fake_cuda_counters counters;
    cuda_context popped;
    attnhost_backend *backend;
    set_up();
    CALL(cuCtxPushCurrent(contexts[0]));
    attnhost_metadata *metadata = make_metadata(&backend, NULL);
    GOOD(plan(metadata, ATTN_MODE_DECODE, 1));
    fake.get_counters(&counters);
    uint64_t calls = counters.calls;
    GOOD(attnhost_forward(metadata, 0, &args, NULL, &error.base));
    fake.get_counters(&counters);
    ck_assert_uint_eq(counters.calls, calls + 2); /* one of them is the probe's */
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
    CALL(cuCtxPopCurrent(&popped));
    tear_down();
}

/* A plugin is not called without its context, and what was made is destroyed all the same. */
TEST_OF(context, a_context_that_cannot_be_entered)
{
    attnhost_backend *backend;
    set_up();
    attnhost_metadata *metadata = make_metadata(&backend, NULL);
    GOOD(plan(metadata, ATTN_MODE_DECODE, 1));
    fake.inject("cuCtxPushCurrent", 1, CUDA_ERROR_INVALID_CONTEXT);
    ck_assert_int_eq(attnhost_forward(metadata, 0, &args, NULL, &error.base), ATTN_BAD_STATE);
    assert_says("context_probe: layer 0: cuda:0: cuCtxPushCurrent");
    ck_assert_uint_eq(probe->count[PROBE_forward_decode], 0);
    fake.inject("cuCtxPushCurrent", 1, CUDA_ERROR_INVALID_CONTEXT);
    attnhost_metadata_destroy(metadata);
    ck_assert_uint_eq(probe->count[PROBE_metadata_destroy], 1);
    fake.inject("cuCtxPushCurrent", 1, CUDA_ERROR_INVALID_CONTEXT);
    attnhost_backend_destroy(backend);
    ck_assert_uint_eq(probe->count[PROBE_destroy], 1);
    tear_down();
}

/* ---- Zeroed regions -------------------------------------------------------------------------- */

enum {
    BYTES = 1000, /* of the probe's ZEROED regions */
    BLOCKING = 0  /* flags of a stream in order with the legacy one: CU_STREAM_DEFAULT */
};

#define ON_DEVICE ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_ZEROED)
#define ON_HOST   ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_ZEROED)

static void assert_zero(const void *memory)
{
    const unsigned char *bytes = memory;
    for (int i = 0; i < BYTES; i++)
        ck_assert_int_eq(bytes[i], 0);
}

/* Both regions are zero now; what is on the device is fetched in a stream of no one else's. */
static void assert_zeroed(const struct device *opened)
{
    unsigned char seen[BYTES];
    attn_stream stream;
    memset(seen, 1, sizeof seen);
    GOOD(device_stream_create(opened, &stream, &error.base));
    GOOD(device_copy(opened, seen, probe->memory.base[ON_DEVICE], BYTES, stream, &error.base));
    GOOD(device_synchronize(opened, stream, &error.base));
    device_stream_destroy(opened, stream);
    assert_zero(seen);
    assert_zero(probe->memory.base[ON_HOST]);
}

/* Metadata in memory of the library's and of the caller's, the latter full of rubbish. */
static void assert_made_zeroed(const struct device *opened, char *given)
{
    char on_host[BYTES];
    attnhost_backend *backend;
    attn_memory memory = {.struct_size = sizeof memory};
    attnhost_metadata *metadata = make_metadata(&backend, NULL);
    assert_zeroed(opened);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
    memset(on_host, 1, sizeof on_host);
    memory.base[ON_DEVICE] = given;
    memory.base[ON_HOST] = on_host;
    memory.size[ON_DEVICE] = memory.size[ON_HOST] = BYTES;
    metadata = make_metadata(&backend, &memory);
    ck_assert_ptr_eq(probe->memory.base[ON_DEVICE], given);
    assert_zeroed(opened);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

/* A stream that the legacy one waits for stands still: what waits for the legacy stream never
 * returns. */
TEST_OF(context, zeroed_beside_a_stream_that_stands_still)
{
    struct device *opened;
    cuda_context popped;
    cuda_stream blocking;
    set_up();
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &opened, &error.base));
    char *given = device_allocate(opened, ATTN_SPACE_DEVICE, BYTES, 256);
    char *engines = device_allocate(opened, ATTN_SPACE_DEVICE, BYTES, 256);
    CALL(cuCtxPushCurrent(contexts[0]));
    CALL(cuStreamCreate(&blocking, BLOCKING));
    fake.hold(blocking, 1);
    CALL(cuMemsetD8Async((cuda_pointer)(uintptr_t)engines, 7, BYTES, blocking));
    assert_made_zeroed(opened, given);
    fake.hold(blocking, 0);
    CALL(cuStreamSynchronize(blocking));
    CALL(cuStreamDestroy(blocking));
    CALL(cuCtxPopCurrent(&popped));
    device_release(opened, ATTN_SPACE_DEVICE, engines);
    device_release(opened, ATTN_SPACE_DEVICE, given);
    device_close(opened);
    tear_down();
}

/* An engine captures on such a stream: work in the legacy one would spoil that. */
TEST_OF(context, zeroed_beside_a_capture)
{
    struct device *opened;
    cuda_context popped;
    cuda_stream blocking;
    cuda_graph graph;
    set_up();
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &opened, &error.base));
    char *given = device_allocate(opened, ATTN_SPACE_DEVICE, BYTES, 256);
    CALL(cuCtxPushCurrent(contexts[0]));
    CALL(cuStreamCreate(&blocking, BLOCKING));
    CALL(cuStreamBeginCapture(blocking, CUDA_CAPTURE_RELAXED));
    assert_made_zeroed(opened, given);
    CALL(cuStreamEndCapture(blocking, &graph));
    CALL(cuGraphDestroy(graph));
    CALL(cuStreamDestroy(blocking));
    CALL(cuCtxPopCurrent(&popped));
    device_release(opened, ATTN_SPACE_DEVICE, given);
    device_close(opened);
    tear_down();
}

TESTS("context");
