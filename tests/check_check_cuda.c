/* SPDX-License-Identifier: Apache-2.0
 *
 * check_check_cuda.c: the checks that need a CUDA device, on the backend cuda_fixture, which passes
 * them, and on variants of it that are wrong in one thing, which one check finds.
 *
 * A variant stands before the fixture's tables as a composite stands before a child; its state is
 * that of this file, as it serves one instance after the other.
 */
#include "host/cuda_driver.h"
#include "tests/cuda_checks_fixture.h"
#include "tests/fixtures/cuda_fixture_kernels.h"

static struct subject_fixture f;
static struct grid *grid;

/* ---- Cases ----------------------------------------------------------------------------------- */

static const struct check *const tables[] = {check_pure_cuda, check_capt};
enum { NUM_TABLES = sizeof tables / sizeof tables[0], ALL_POINTS = -1, DECODE_POINT = 1 };

/* Wrong variants are tried on decode batches. */
static int32_t point = ALL_POINTS;

static void open_backend(const char *graph_level)
{
    const char *options[] = {"graph_level", graph_level};
    use_spy_on_fake();
    cuda_fixture_define(&fake);
    subject_create_host(&f, 1);
    subject_load(&f, "ATTNHOST_TEST_FIXTURE_DIR", "cuda_fixture");
    GOOD(attnhost_define_backend(f.host, "backend", "cuda_fixture", options, 1, &failure.base));
    subject_resolve(&f, "backend", ATTN_DEVICE_CUDA);
    f.subject.fake_device = true;
    f.subject.grid = &grid;
}

static void close_backend(void)
{
    grid_destroy(grid);
    subject_destroy(&f);
}

static void name_check(const struct check *check, char name[64])
{
    snprintf(name, 64, "%s.%s", check->rule, check->name);
}

static bool is_listed(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

/* Those of `failing` fail, those of `skipped` are skipped in all cases, all others pass; each list
 * ends with NULL. */
static void expect(const char *const *failing, const char *const *skipped)
{
    char name[64];
    for (int t = 0; t < NUM_TABLES; t++)
        for (const struct check *check = tables[t]; check->rule; check++) {
            struct tally tally;
            name_check(check, name);
            run_check(&f.subject, check, point, &tally);
            ck_assert_msg((tally.failed > 0) == is_listed(failing, name), "%s: %d failed: %s", name,
                          tally.failed, tally.text);
            ck_assert_msg((tally.passed + tally.failed == 0) == is_listed(skipped, name),
                          "%s: %d passed, %d skipped: %s", name, tally.passed, tally.skipped,
                          tally.text);
            ck_assert_msg(tally.failed == 0 || tally.text[0], "%s fails without a word", name);
        }
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NONE      ((const char *const[]){NULL})

/* All but the listed ones that look at graphs. */
static const char *const with_graphs[] = {
    "CAPT-01.captures", "CAPT-02.replays", "CAPT-02.replans", "CAPT-03.shapes",
    "CAPT-04.padding",  "CAPT-05.bits",    "WORK-07.others",  NULL};

/* ---- The fixture as it is -------------------------------------------------------------------- */

START_TEST(always)
{
    open_backend("always");
    expect(NONE, LIST("CAPT-01.beyond"));
    close_backend();
    assert_nothing_left();
    assert_clean();
}
END_TEST

START_TEST(never)
{
    open_backend("never");
    expect(NONE, with_graphs);
    close_backend();
    assert_nothing_left();
    assert_clean();
}
END_TEST

/* Here some cases of both sorts are there. */
START_TEST(in_between)
{
    static const char *const levels[] = {"single_token", "uniform"};
    open_backend(levels[_i]);
    expect(NONE, NONE);
    close_backend();
    assert_nothing_left();
    assert_clean();
}
END_TEST

/* ---- What variants are made of --------------------------------------------------------------- */

enum { MAX_METADATA = 16, OWN_BYTES = 4096, STAGED = 8, BUFFERS = 4 };

/* Metadata of a variant, by the fixture's handle. */
struct metadata_state {
    const attn_metadata *metadata;
    uint32_t kind;
    int32_t max_kv_len;
    const int32_t *lens; /* what its graph reads */
};

static struct {
    attn_backend_type type;
    attn_backend_ops ops;
    const attn_backend_ops *real;
    struct cuda_driver driver; /* through the spy, as a plugin has it */
    cuda_stream side;
    cuda_event event, joined;
    cuda_pointer own;    /* OWN_BYTES on the device */
    int32_t *staging;    /* pinned: BUFFERS of STAGED numbers */
    cuda_pointer shared; /* what all metadata share */
    int64_t shared_size;
    uint32_t calls;
    cuda_module module;
    cuda_function kernel;
    struct metadata_state states[MAX_METADATA];
} v;

#define DRIVER(call) ck_assert_uint_eq(v.driver.call, CUDA_SUCCESS)

static struct metadata_state *state_of(const attn_metadata *metadata)
{
    for (int i = 0; i < MAX_METADATA; i++)
        if (v.states[i].metadata == metadata)
            return &v.states[i];
    ck_abort_msg("metadata that was not made");
    return NULL;
}

static attn_status make_metadata(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 const attn_memory *memory, attn_metadata **metadata, attn_error *e)
{
    int i = 0;
    attn_status status = v.real->metadata_create(instance, kind, bounds, memory, metadata, e);
    if (status != ATTN_OK)
        return status;
    while (i < MAX_METADATA && v.states[i].metadata && v.states[i].metadata != *metadata)
        i++;
    ck_assert_int_lt(i, MAX_METADATA);
    v.states[i] = (struct metadata_state){.metadata = *metadata, .kind = kind};
    return ATTN_OK;
}

static void forget_metadata(attn_metadata *metadata)
{
    if (metadata)
        *state_of(metadata) = (struct metadata_state){0};
    v.real->metadata_destroy(metadata);
}

static attn_status note_batch(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                              attn_error *e)
{
    state_of(metadata)->max_kv_len = batch->max_kv_len;
    return v.real->init_forward_metadata(metadata, batch, stream, e);
}

/* Let the subject's table be one of ours, that does what the fixture's does. */
static void open_variant(void)
{
    char path[4096];
    open_backend("always");
    spy_path(path);
    GOOD(cuda_driver_init(&v.driver, path, &failure.base));
    GOOD(device_enter(f.device, &failure.base));
    DRIVER(cuStreamCreate(&v.side, CUDA_STREAM_NON_BLOCKING));
    DRIVER(cuEventCreate(&v.event, CUDA_EVENT_DISABLE_TIMING));
    DRIVER(cuEventCreate(&v.joined, CUDA_EVENT_DISABLE_TIMING));
    DRIVER(cuMemAlloc(&v.own, OWN_BYTES));
    DRIVER(cuMemAlloc(&v.shared, OWN_BYTES));
    DRIVER(cuMemHostAlloc((void **)&v.staging, BUFFERS * STAGED * sizeof *v.staging, 0));
    device_leave(f.device);
    v.real = f.subject.type->ops;
    v.type = *f.subject.type;
    v.ops = *v.real;
    v.type.ops = &v.ops;
    v.ops.metadata_create = make_metadata;
    v.ops.metadata_destroy = forget_metadata;
    v.ops.init_forward_metadata = note_batch;
    f.subject.type = &v.type;
    point = DECODE_POINT;
}

/* The fixture's forward, after something else. */
typedef void (*prelude_fn)(const struct metadata_state *state, cuda_stream stream);
static prelude_fn prelude;

static attn_status forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream, attn_error *e)
{
    if (!(args->flags & ATTN_FORWARD_CAPTURING))
        prelude(state_of(metadata), stream);
    return v.real->forward_extend(metadata, layer_id, args, stream, e);
}

static attn_status forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream, attn_error *e)
{
    if (!(args->flags & ATTN_FORWARD_CAPTURING))
        prelude(state_of(metadata), stream);
    return v.real->forward_decode(metadata, layer_id, args, stream, e);
}

static void begin_forwards_with(prelude_fn function)
{
    prelude = function;
    v.ops.forward_extend = forward_extend;
    v.ops.forward_decode = forward_decode;
}

START_TEST(plain_variant)
{
    open_variant();
    expect(NONE, LIST("CAPT-01.beyond"));
}
END_TEST

/* ---- Forwards that do what they may not ------------------------------------------------------ */

static void allocate(const struct metadata_state *state, cuda_stream stream)
{
    cuda_pointer memory = 0;
    (void)state, (void)stream;
    DRIVER(cuMemAlloc(&memory, 64));
    DRIVER(cuMemFree(memory));
}

static void synchronise(const struct metadata_state *state, cuda_stream stream)
{
    (void)state, (void)stream;
    DRIVER(cuEventSynchronize(v.event)); /* which was never recorded */
}

static void make_event(const struct metadata_state *state, cuda_stream stream)
{
    cuda_event event;
    (void)state, (void)stream;
    DRIVER(cuEventCreate(&event, 0));
    DRIVER(cuEventDestroy(event));
}

static void load_module(const struct metadata_state *state, cuda_stream stream)
{
    cuda_module module;
    (void)state, (void)stream;
    DRIVER(cuModuleLoadDataEx(&module, "", 0, NULL, NULL));
    DRIVER(cuModuleUnload(module));
}

/* To memory that is not pinned: it waits. */
static void read_back(const struct metadata_state *state, cuda_stream stream)
{
    char value[4];
    (void)state;
    DRIVER(cuMemcpyAsync((cuda_pointer)(uintptr_t)value, v.own, sizeof value, stream));
}

START_TEST(impure_forward)
{
    static const prelude_fn preludes[] = {allocate, synchronise, make_event, load_module,
                                          read_back};
    open_variant();
    begin_forwards_with(preludes[_i]);
    expect(LIST("PURE-01.enqueues"), LIST("CAPT-01.beyond"));
}
END_TEST

/* ---- Streams --------------------------------------------------------------------------------- */

static void use_default_stream(const struct metadata_state *state, cuda_stream stream)
{
    (void)state, (void)stream;
    DRIVER(cuMemsetD32Async(v.own, 0, 1, NULL));
}

static void fork_only(const struct metadata_state *state, cuda_stream stream)
{
    (void)state;
    DRIVER(cuEventRecord(v.event, stream));
    DRIVER(cuStreamWaitEvent(v.side, v.event, 0));
    DRIVER(cuMemsetD32Async(v.own, 0, 1, v.side));
}

static void join_only(const struct metadata_state *state, cuda_stream stream)
{
    (void)state;
    DRIVER(cuMemsetD32Async(v.own, 0, 1, v.side));
    DRIVER(cuEventRecord(v.joined, v.side));
    DRIVER(cuStreamWaitEvent(stream, v.joined, 0));
}

/* What follows the event is not waited for. */
static void join_too_early(const struct metadata_state *state, cuda_stream stream)
{
    fork_only(state, stream);
    DRIVER(cuEventRecord(v.joined, v.side));
    DRIVER(cuStreamWaitEvent(stream, v.joined, 0));
    DRIVER(cuMemsetD32Async(v.own, 0, 1, v.side));
}

static void fork_and_join(const struct metadata_state *state, cuda_stream stream)
{
    fork_only(state, stream);
    DRIVER(cuEventRecord(v.joined, v.side));
    DRIVER(cuStreamWaitEvent(stream, v.joined, 0));
}

START_TEST(stray_streams)
{
    static const prelude_fn preludes[] = {use_default_stream, fork_only, join_only, join_too_early};
    open_variant();
    begin_forwards_with(preludes[_i]);
    expect(LIST("PURE-03.streams"), LIST("CAPT-01.beyond"));
}
END_TEST

START_TEST(joined_stream)
{
    open_variant();
    begin_forwards_with(fork_and_join);
    expect(NONE, LIST("CAPT-01.beyond"));
}
END_TEST

/* ---- The context ----------------------------------------------------------------------------- */

static void push_context(const struct metadata_state *state, cuda_stream stream)
{
    cuda_context context;
    (void)state, (void)stream;
    DRIVER(cuCtxGetCurrent(&context));
    DRIVER(cuCtxPushCurrent(context));
    v.calls++;
}

/* So that the stack does not grow for ever. */
static attn_status pop_and_plan(attn_metadata *metadata, const attn_batch *batch,
                                attn_stream stream, attn_error *e)
{
    cuda_context context;
    for (; v.calls > 0; v.calls--)
        DRIVER(cuCtxPopCurrent(&context));
    return v.real->init_forward_metadata(metadata, batch, stream, e);
}

START_TEST(left_context)
{
    open_variant();
    begin_forwards_with(push_context);
    v.ops.init_forward_metadata = pop_and_plan;
    expect(LIST("PURE-04.context", "LIFE-09.slots"), LIST("CAPT-01.beyond"));
}
END_TEST

static attn_status make_and_push(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 const attn_memory *memory, attn_metadata **metadata, attn_error *e)
{
    push_context(NULL, NULL);
    return make_metadata(instance, kind, bounds, memory, metadata, e);
}

static void forget_and_pop(attn_metadata *metadata)
{
    cuda_context context;
    for (; v.calls > 0; v.calls--)
        DRIVER(cuCtxPopCurrent(&context));
    forget_metadata(metadata);
}

START_TEST(left_by_create)
{
    open_variant();
    v.ops.metadata_create = make_and_push;
    v.ops.metadata_destroy = forget_and_pop;
    expect(LIST("LIFE-09.slots"), LIST("CAPT-01.beyond"));
}
END_TEST

/* ---- Planning -------------------------------------------------------------------------------- */

static attn_status wait_and_plan(attn_metadata *metadata, const attn_batch *batch,
                                 attn_stream stream, attn_error *e)
{
    DRIVER(cuStreamSynchronize(stream));
    return v.real->init_forward_metadata(metadata, batch, stream, e);
}

START_TEST(waiting_plan)
{
    open_variant();
    v.ops.init_forward_metadata = wait_and_plan;
    expect(LIST("PURE-07.waits_for_nothing"), LIST("CAPT-01.beyond"));
}
END_TEST

/* It waits without a call of the driver. */
static attn_status poll_and_plan(attn_metadata *metadata, const attn_batch *batch,
                                 attn_stream stream, attn_error *e)
{
    while (v.driver.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        continue;
    return v.real->init_forward_metadata(metadata, batch, stream, e);
}

START_TEST(polling_plan)
{
    open_variant();
    v.ops.init_forward_metadata = poll_and_plan;
    expect(LIST("PURE-07.waits_for_nothing"), LIST("CAPT-01.beyond"));
}
END_TEST

/* The lengths go through pinned memory, `count` batches one after the other. */
static void stage(const attn_batch *batch, cuda_stream stream, uint32_t count)
{
    int32_t *staged = v.staging + STAGED * (v.calls++ % count);
    size_t bytes = (size_t)batch->num_seqs * sizeof *staged;
    const attn_kv_batch *kv = batch->kv_groups;
    ck_assert_int_le(batch->num_seqs, STAGED);
    memcpy(staged, batch->seq_lens.host, bytes);
    DRIVER(cuMemcpyAsync((cuda_pointer)(uintptr_t)batch->seq_lens.device,
                         (cuda_pointer)(uintptr_t)staged, bytes, stream));
    for (uint32_t n = 0; n < batch->num_kv_groups; n++, kv = attn_at(batch->kv_groups, n))
        if (kv->kv_lens.device)
            DRIVER(cuMemcpyAsync((cuda_pointer)(uintptr_t)kv->kv_lens.device,
                                 (cuda_pointer)(uintptr_t)staged, bytes, stream));
}

static attn_status stage_once(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                              attn_error *e)
{
    if (batch->seq_lens.host)
        stage(batch, stream, 1);
    return v.real->init_forward_metadata(metadata, batch, stream, e);
}

static attn_status stage_in_turn(attn_metadata *metadata, const attn_batch *batch,
                                 attn_stream stream, attn_error *e)
{
    if (batch->seq_lens.host)
        stage(batch, stream, BUFFERS);
    return v.real->init_forward_metadata(metadata, batch, stream, e);
}

START_TEST(single_staging)
{
    open_variant();
    v.ops.init_forward_metadata = stage_once;
    expect(LIST("PURE-07.staging"), LIST("CAPT-01.beyond"));
}
END_TEST

START_TEST(enough_staging)
{
    open_variant();
    v.ops.init_forward_metadata = stage_in_turn;
    expect(NONE, LIST("CAPT-01.beyond"));
}
END_TEST

/* ---- Graphs ---------------------------------------------------------------------------------- */

static attn_status refuse_capture(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream, attn_error *e)
{
    if (args->flags & ATTN_FORWARD_CAPTURING)
        return host_fail(e, ATTN_CAPTURE_UNSUPPORTED, "not today");
    return v.real->forward_decode(metadata, layer_id, args, stream, e);
}

START_TEST(refused_capture)
{
    open_variant();
    v.ops.forward_decode = refuse_capture;
    expect(LIST("PURE-07.staging", "CAPT-01.captures", "CAPT-02.replays", "CAPT-02.replans",
                "CAPT-04.padding", "CAPT-05.bits", "WORK-07.others"),
           LIST("CAPT-01.beyond"));
}
END_TEST

static attn_status query_never(const attn_backend_type *type, const attn_options *options,
                               const attn_services *services, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *e)
{
    attn_status status = f.node->type->type->query(type, options, services, problem, verdict, e);
    verdict->graph_level = ATTN_GRAPH_NEVER;
    return status;
}

START_TEST(understated_level)
{
    open_variant();
    v.type.query = query_never;
    expect(LIST("CAPT-01.beyond"), with_graphs);
}
END_TEST

static void fill_by_length(const struct metadata_state *state, cuda_stream stream)
{
    DRIVER(cuMemsetD32Async(v.own, 0, (size_t)state->max_kv_len, stream));
}

START_TEST(shape_of_lengths)
{
    open_variant();
    begin_forwards_with(fill_by_length);
    expect(LIST("CAPT-03.shapes"), LIST("CAPT-01.beyond"));
}
END_TEST

/* Plan with lengths from elsewhere. */
static attn_status plan_with(attn_metadata *metadata, const attn_batch *given, const int32_t *lens,
                             attn_stream stream, attn_error *e)
{
    attn_kv_batch kv[2];
    attn_batch batch = *given;
    ck_assert_uint_le(batch.num_kv_groups, 2);
    for (uint32_t n = 0; n < batch.num_kv_groups; n++) {
        kv[n] = *(const attn_kv_batch *)attn_at(given->kv_groups, n);
        if (kv[n].kv_lens.device)
            kv[n].kv_lens.device = lens;
    }
    batch.seq_lens.device = lens;
    batch.kv_groups = kv;
    return v.real->init_forward_metadata(metadata, &batch, stream, e);
}

/* The graph reads the lengths it was captured with. */
static attn_status bake_lengths(attn_metadata *metadata, const attn_batch *batch,
                                attn_stream stream, attn_error *e)
{
    if (state_of(metadata)->kind != ATTN_METADATA_GRAPH)
        return v.real->init_forward_metadata(metadata, batch, stream, e);
    DRIVER(cuMemsetD32Async(v.own, 1, (size_t)batch->num_seqs, stream)); /* as padding has it */
    return plan_with(metadata, batch, (const int32_t *)(uintptr_t)v.own, stream, e);
}

START_TEST(baked_lengths)
{
    open_variant();
    v.ops.init_forward_metadata = bake_lengths;
    expect(LIST("CAPT-02.replays", "CAPT-02.replans", "CAPT-04.padding", "CAPT-05.bits",
                "WORK-07.others"),
           LIST("CAPT-01.beyond"));
}
END_TEST

/* Lengths lie in memory of the instance; it grows with the largest metadata, and what lay there is
 * nobody's then. */
static attn_status grow_memory(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                               const attn_memory *memory, attn_metadata **metadata, attn_error *e)
{
    if (bounds->max_kv_tokens > v.shared_size) {
        v.shared_size = bounds->max_kv_tokens;
        DRIVER(cuMemsetD32Async(v.shared, 1, OWN_BYTES / 4, v.side));
        DRIVER(cuStreamSynchronize(v.side));
        DRIVER(cuMemAlloc(&v.shared, OWN_BYTES));
    }
    return make_metadata(instance, kind, bounds, memory, metadata, e);
}

static attn_status copy_lengths(attn_metadata *metadata, const attn_batch *batch,
                                attn_stream stream, attn_error *e)
{
    struct metadata_state *state = state_of(metadata);
    if (state->kind != ATTN_METADATA_GRAPH)
        return v.real->init_forward_metadata(metadata, batch, stream, e);
    if (!state->lens)
        state->lens = (const int32_t *)(uintptr_t)v.shared;
    DRIVER(cuMemcpyAsync(v.shared, (cuda_pointer)(uintptr_t)batch->seq_lens.device,
                         (size_t)batch->num_seqs * sizeof(int32_t), stream));
    return plan_with(metadata, batch, state->lens, stream, e);
}

START_TEST(memory_that_moves)
{
    open_variant();
    v.ops.metadata_create = grow_memory;
    v.ops.init_forward_metadata = copy_lengths;
    expect(LIST("WORK-07.others"), LIST("CAPT-01.beyond"));
}
END_TEST

/* ---- Kernels of a variant -------------------------------------------------------------------- */

struct touch_params {
    char *rows;     /* of the output or the LSE */
    uint64_t bytes; /* of a row */
    const int32_t *num_real;
    int32_t num_rows;
};

/* Rows of padding become NaN. */
static void poison_padding(const struct fake_cuda_launch *launch)
{
    const struct touch_params *p = launch->arguments[0];
    const int32_t *real = fake.access((cuda_pointer)(uintptr_t)p->num_real, sizeof *real);
    char *rows = fake.access((cuda_pointer)(uintptr_t)p->rows, p->bytes * (uint64_t)p->num_rows);
    for (int32_t row = real && rows ? *real : p->num_rows; row < p->num_rows; row++)
        memset(rows + p->bytes * (uint64_t)row, 0xFF, p->bytes);
}

/* The last bit of each LSE changes. */
static void nudge(const struct fake_cuda_launch *launch)
{
    const struct touch_params *p = launch->arguments[0];
    char *rows = fake.access((cuda_pointer)(uintptr_t)p->rows, p->bytes * (uint64_t)p->num_rows);
    for (uint64_t at = 0; rows && at < p->bytes * (uint64_t)p->num_rows; at += sizeof(float))
        rows[at] ^= 1;
}

static const int32_t *num_real_tokens;

static attn_status keep_num_real(attn_metadata *metadata, const attn_batch *batch,
                                 attn_stream stream, attn_error *e)
{
    num_real_tokens = batch->num_real_tokens_device;
    state_of(metadata)->max_kv_len = batch->num_tokens;
    return v.real->init_forward_metadata(metadata, batch, stream, e);
}

/* In DECODE, where rows are sequences. */
static attn_status touch_afterwards(attn_metadata *metadata, const attn_forward_args *args,
                                    uint32_t role, attn_stream stream)
{
    const struct metadata_state *state = state_of(metadata);
    const attn_tensor *tensor = attn_operand(args, role);
    struct touch_params params = {
        .rows = (char *)tensor->data + tensor->byte_offset,
        .bytes = (uint64_t)tensor->strides[0] * attn_dtype_size(tensor->dtype),
        .num_real = num_real_tokens,
        .num_rows = state->max_kv_len,
    };
    void *arguments[] = {&params};
    if (state->kind == ATTN_METADATA_GRAPH && tensor->strides[0] == tensor->shape[1])
        DRIVER(cuLaunchKernel(v.kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    return ATTN_OK;
}

static attn_status poison_after(attn_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream, attn_error *e)
{
    attn_status status = v.real->forward_decode(metadata, layer_id, args, stream, e);
    return status == ATTN_OK ? touch_afterwards(metadata, args, ATTN_ROLE_LSE, stream) : status;
}

static void define_touch(fake_cuda_kernel kernel)
{
    static const size_t sizes[] = {sizeof(struct touch_params)};
    open_variant();
    fake.define_kernel("touch", kernel, sizes, 1, NULL);
    GOOD(device_enter(f.device, &failure.base));
    DRIVER(cuModuleLoadDataEx(&v.module, "", 0, NULL, NULL));
    DRIVER(cuModuleGetFunction(&v.kernel, v.module, "touch"));
    device_leave(f.device);
    v.ops.init_forward_metadata = keep_num_real;
    v.ops.forward_decode = poison_after;
}

START_TEST(poisoned_padding)
{
    define_touch(poison_padding);
    expect(LIST("CAPT-04.padding"), LIST("CAPT-01.beyond"));
}
END_TEST

START_TEST(other_bits)
{
    define_touch(nudge);
    expect(LIST("CAPT-05.bits"), LIST("CAPT-01.beyond"));
}
END_TEST

/* ---- A driver without a spy ------------------------------------------------------------------ */

START_TEST(no_spy)
{
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    subject_create_host(&f, 1);
    subject_load(&f, "ATTNHOST_TEST_FIXTURE_DIR", "cuda_fixture");
    subject_resolve(&f, "cuda_fixture", ATTN_DEVICE_CUDA);
    f.subject.grid = &grid;
    expect(NONE, LIST("PURE-01.enqueues", "PURE-03.streams", "PURE-04.context",
                      "PURE-07.waits_for_nothing", "PURE-07.staging", "LIFE-09.slots",
                      "CAPT-01.beyond", "CAPT-03.shapes"));
    close_backend();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("check_cuda");
    TCase *t = tcase_create("fixture");
    tcase_add_test(t, always);
    tcase_add_test(t, never);
    tcase_add_loop_test(t, in_between, 0, 2);
    tcase_add_test(t, plain_variant);
    tcase_add_test(t, no_spy);
    suite_add_tcase(s, t);
    t = tcase_create("wrong");
    tcase_add_loop_test(t, impure_forward, 0, 5);
    tcase_add_loop_test(t, stray_streams, 0, 4);
    tcase_add_test(t, joined_stream);
    tcase_add_test(t, left_context);
    tcase_add_test(t, left_by_create);
    tcase_add_test(t, waiting_plan);
    tcase_add_test(t, polling_plan);
    tcase_add_test(t, single_staging);
    tcase_add_test(t, enough_staging);
    tcase_add_test(t, refused_capture);
    tcase_add_test(t, understated_level);
    tcase_add_test(t, shape_of_lengths);
    tcase_add_test(t, baked_lengths);
    tcase_add_test(t, memory_that_moves);
    tcase_add_test(t, poisoned_padding);
    tcase_add_test(t, other_bits);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return test_main(suite());
}
