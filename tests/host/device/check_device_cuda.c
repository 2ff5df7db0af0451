/* SPDX-License-Identifier: Apache-2.0
 *
 * check_device_cuda.c: a GPU in the host's table of devices, on the fake CUDA driver. */
#include "host/device/cuda_driver.h"
#include "host/device/device.h"
#include "host/base/error.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/tools/test_main.h"

#include <pthread.h>
#include <string.h>

static struct device *device;
static host_error error;

#define GOOD(call)          ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))
#define FAILS(call, status) ck_assert_int_eq(call, status)

static void set_up(void)
{
    use_fake_cuda();
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
}

static void tear_down(void)
{
    device_close(device);
    device = NULL;
    assert_nothing_left();
    assert_clean();
    fake.reset();
}

/* ---- Description ----------------------------------------------------------------------------- */

TEST_OF(good, test_describe)
{
    attn_device info = {0};
    use_fake_cuda();
    host_error_init(&error);
    fake.set_devices(3);
    fake.set_version(12090);
    fake.set_memory(2, (size_t)5 << 30);
    fake.set_attribute(2, CUDA_ATTRIBUTE_CC_MAJOR, 12);
    fake.set_attribute(2, CUDA_ATTRIBUTE_CC_MINOR, 1);
    fake.set_attribute(2, CUDA_ATTRIBUTE_MULTIPROCESSORS, 48);
    GOOD(device_describe(ATTN_DEVICE_CUDA, 2, &info, &error.base));
    ck_assert_uint_eq(info.struct_size, sizeof info);
    ck_assert_int_eq(info.type, ATTN_DEVICE_CUDA);
    ck_assert_int_eq(info.id, 2);
    ck_assert_uint_eq(info.sm, 121);
    ck_assert_uint_eq(info.num_sms, 48);
    ck_assert_uint_eq(info.shared_memory, 232448);
    ck_assert_uint_eq(info.driver_version, 12090);
    ck_assert_uint_eq(info.cpu_isa, 0);
    ck_assert_uint_eq(info.memory_bytes, (uint64_t)5 << 30);
    ck_assert_uint_eq(info.l2_bytes, 50 << 20);
    GOOD(device_describe(ATTN_DEVICE_CUDA, 0, &info, &error.base));
    ck_assert_uint_eq(info.sm, 90);
    ck_assert_uint_eq(fake.num_calls("cuDevicePrimaryCtxRetain"), 0);
    assert_nothing_left();
}

static void assert_not_described(int32_t id, const char *text)
{
    attn_device info = {.id = 4711};
    struct device *opened = NULL;
    host_error_init(&error);
    FAILS(device_describe(ATTN_DEVICE_CUDA, id, &info, &error.base), ATTN_DEPENDENCY_MISSING);
    ck_assert_msg(strstr(host_error_text(&error), text), "%s", host_error_text(&error));
    ck_assert_int_eq(info.id, 4711);
    FAILS(device_open(ATTN_DEVICE_CUDA, id, &opened, NULL), ATTN_DEPENDENCY_MISSING);
    ck_assert_ptr_null(opened);
}

TEST_OF(good, test_no_such_device)
{
    use_fake_cuda();
    fake.set_devices(2);
    assert_not_described(2, "cuda:2: accepted: cuda:0 to cuda:1");
    assert_not_described(-1, "cuda:-1: accepted: cuda:0 to cuda:1");
    fake.set_devices(1);
    assert_not_described(1, "cuda:1: accepted: cuda:0");
    fake.set_devices(0);
    assert_not_described(0, "CUDA_ERROR_NO_DEVICE");
    setenv("ATTNHOST_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    assert_not_described(0, "/nowhere/libcuda.so.1");
    FAILS(device_describe(77, 0, &(attn_device){0}, &error.base), ATTN_DEPENDENCY_MISSING);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *allocate(uint32_t space, uint64_t size, uint64_t alignment)
{
    void *memory = device_allocate(device, space, size, alignment);
    ck_assert_msg(memory != NULL, "space %u, %llu bytes at %llu", space, (unsigned long long)size,
                  (unsigned long long)alignment);
    ck_assert_uint_eq((uintptr_t)memory % alignment, 0);
    return memory;
}

TEST_OF(good, test_alignments)
{
    static const uint64_t alignments[] = {1, 8, 256, 512, 4096, 65536, 2 << 20};
    enum { NUM = sizeof alignments / sizeof *alignments };
    set_up();
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT; space++) {
        void *memory[NUM];
        for (int a = 0; a < NUM; a++)
            memory[a] = allocate(space, 777, alignments[a]);
        for (int a = 0; a < NUM; a++)
            GOOD(device_fill(device, memory[a], 0, 777, NULL, &error.base));
        GOOD(device_synchronize(device, NULL, &error.base));
        for (int a = 0; a < NUM; a++)
            device_release(device, space, memory[(a + 3) % NUM]);
        device_release(device, space, NULL);
    }
    tear_down();
}

TEST_OF(good, test_size_zero)
{
    set_up();
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT; space++) {
        void *one = allocate(space, 0, 1), *two = allocate(space, 0, 1);
        ck_assert_ptr_ne(one, two);
        GOOD(device_fill(device, one, 1, 0, NULL, &error.base));
        GOOD(device_copy(device, one, two, 0, NULL, &error.base));
        device_release(device, space, one);
        device_release(device, space, two);
    }
    tear_down();
}

/* Each space to each other one and back to this stack, at odd sizes. */
TEST_OF(good, test_copies)
{
    enum { SIZE = 1013 };
    attn_stream stream;
    unsigned char given[SIZE], seen[SIZE];
    set_up();
    GOOD(device_stream_create(device, &stream, &error.base));
    for (uint32_t from = 0; from < ATTN_SPACE_COUNT; from++)
        for (uint32_t to = 0; to < ATTN_SPACE_COUNT; to++) {
            char *source = allocate(from, SIZE, 1), *target = allocate(to, SIZE, 1);
            for (int i = 0; i < SIZE; i++)
                given[i] = (unsigned char)(i * 7 + (int)(from * 3 + to));
            GOOD(device_copy(device, source, given, SIZE, stream, &error.base));
            GOOD(device_fill(device, target, 0x5a, SIZE, stream, &error.base));
            GOOD(device_synchronize(device, stream, &error.base));
            GOOD(device_copy(device, target + 3, source + 1, SIZE - 5, stream, &error.base));
            GOOD(device_synchronize(device, stream, &error.base));
            GOOD(device_copy(device, seen, target, SIZE, stream, &error.base));
            ck_assert_mem_eq(seen + 3, given + 1, SIZE - 5);
            ck_assert_int_eq(seen[2], 0x5a);
            ck_assert_int_eq(seen[SIZE - 2], 0x5a);
            device_release(device, from, source);
            device_release(device, to, target);
        }
    device_stream_destroy(device, stream);
    device_stream_destroy(device, NULL);
    tear_down();
}

/* Plain host memory is filled after the stream's earlier work. */
TEST_OF(good, test_fill_of_host_memory)
{
    attn_stream stream;
    char plain[16];
    set_up();
    GOOD(device_stream_create(device, &stream, &error.base));
    char *pinned = allocate(ATTN_SPACE_PINNED, 16, 1);
    memset(pinned, 1, 16);
    memset(plain, 7, 16);
    fake.delay(stream, 20);
    GOOD(device_fill(device, pinned, 9, 16, stream, &error.base));
    GOOD(device_fill(device, plain, 3, 15, stream, &error.base));
    ck_assert_int_eq(pinned[15], 9);
    ck_assert_int_eq(plain[14], 3);
    ck_assert_int_eq(plain[15], 7);
    device_release(device, ATTN_SPACE_PINNED, pinned);
    device_stream_destroy(device, stream);
    tear_down();
}

TEST_OF(good, test_exhausted)
{
    uint64_t available, total;
    use_fake_cuda();
    fake.set_memory(0, 1 << 20);
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
    void *most = allocate(ATTN_SPACE_DEVICE, (1 << 20) - 1000, 1);
    GOOD(device_memory(device, &available, &total, &error.base));
    ck_assert_uint_eq(available, 1000);
    ck_assert_uint_eq(total, 1 << 20);
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, 1001, 1));
    ck_assert_int_eq(device_exhausted(device, ATTN_SPACE_DEVICE), ATTN_OUT_OF_DEVICE_MEMORY);
    ck_assert_int_eq(device_exhausted(device, ATTN_SPACE_PINNED), ATTN_OUT_OF_HOST_MEMORY);
    /* Room as it is, none to round up. */
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, 1000, 4096));
    void *rest = allocate(ATTN_SPACE_DEVICE, 1000, 256);
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT; space++)
        ck_assert_ptr_null(device_allocate(device, space, UINT64_MAX, 1));
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, UINT64_MAX / 2, 4096));
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_PINNED, UINT64_MAX / 2, 4096));
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_COUNT, 1, 1));
    device_release(device, ATTN_SPACE_DEVICE, rest);
    device_release(device, ATTN_SPACE_DEVICE, most);
    tear_down();
}

/* ---- Streams and events ---------------------------------------------------------------------- */

struct two_streams {
    attn_stream one, two;
    struct device_event *event;
    int *memory, *pinned;
};

static void make_two(struct two_streams *made)
{
    GOOD(device_stream_create(device, &made->one, &error.base));
    GOOD(device_stream_create(device, &made->two, &error.base));
    ck_assert_ptr_ne(made->one, made->two);
    GOOD(device_event_create(device, 0, &made->event, &error.base));
    made->memory = allocate(ATTN_SPACE_DEVICE, 64, 1);
    made->pinned = allocate(ATTN_SPACE_PINNED, 64, 1);
}

static void drop_two(struct two_streams *made)
{
    device_release(device, ATTN_SPACE_DEVICE, made->memory);
    device_release(device, ATTN_SPACE_PINNED, made->pinned);
    device_event_destroy(device, made->event);
    device_event_destroy(device, NULL);
    device_stream_destroy(device, made->one);
    device_stream_destroy(device, made->two);
}

/* Without the event the second stream, which is not held, would read too early. */
TEST_OF(good, test_order_of_two_streams)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        struct two_streams s;
        int done = 4711;
        set_up();
        make_two(&s);
        GOOD(device_event_query(device, s.event, &done, &error.base));
        ck_assert_int_eq(done, 1);
        GOOD(device_fill(device, s.memory, 1, 64, s.one, &error.base));
        GOOD(device_synchronize(device, s.one, &error.base));
        fake.hold(s.one, 1);
        GOOD(device_fill(device, s.memory, 2, 64, s.one, &error.base));
        GOOD(device_event_record(device, s.event, s.one, &error.base));
        if (ordered)
            GOOD(device_stream_wait(device, s.two, s.event, &error.base));
        GOOD(device_copy(device, s.pinned, s.memory, 64, s.two, &error.base));
        GOOD(device_event_query(device, s.event, &done, &error.base));
        ck_assert_int_eq(done, 0);
        if (!ordered)
            GOOD(device_synchronize(device, s.two, &error.base));
        fake.hold(s.one, 0);
        GOOD(device_event_synchronize(device, s.event, &error.base));
        GOOD(device_event_query(device, s.event, &done, &error.base));
        ck_assert_int_eq(done, 1);
        GOOD(device_synchronize(device, s.two, &error.base));
        ck_assert_int_eq(s.pinned[15], ordered ? 0x02020202 : 0x01010101);
        drop_two(&s);
        tear_down();
    }
}

/* A wait is for the event as it was recorded last, not for records to come. */
TEST_OF(good, test_recorded_again)
{
    struct two_streams s;
    set_up();
    make_two(&s);
    GOOD(device_event_record(device, s.event, s.one, &error.base));
    GOOD(device_stream_wait(device, s.two, s.event, &error.base));
    GOOD(device_synchronize(device, s.one, &error.base));
    fake.hold(s.one, 1);
    GOOD(device_event_record(device, s.event, s.one, &error.base));
    GOOD(device_fill(device, s.memory, 1, 64, s.two, &error.base));
    GOOD(device_synchronize(device, s.two, &error.base));
    fake.hold(s.one, 0);
    GOOD(device_synchronize(device, s.one, &error.base));
    drop_two(&s);
    tear_down();
}

TEST_OF(good, test_elapsed)
{
    struct device_event *start, *end, *untimed;
    attn_stream stream;
    double us = -1;
    set_up();
    GOOD(device_stream_create(device, &stream, &error.base));
    GOOD(device_event_create(device, 1, &start, &error.base));
    GOOD(device_event_create(device, 1, &end, &error.base));
    GOOD(device_event_create(device, 0, &untimed, &error.base));
    GOOD(device_event_record(device, start, stream, &error.base));
    FAILS(device_event_elapsed(device, start, end, &us, &error.base), ATTN_BAD_STATE);
    fake.delay(stream, 30);
    GOOD(device_event_record(device, end, stream, &error.base));
    GOOD(device_event_record(device, untimed, stream, &error.base));
    FAILS(device_event_elapsed(device, start, end, &us, &error.base), ATTN_BAD_STATE);
    GOOD(device_synchronize(device, stream, &error.base));
    FAILS(device_event_elapsed(device, start, untimed, &us, &error.base), ATTN_BAD_STATE);
    ck_assert(us == -1);
    GOOD(device_event_elapsed(device, start, end, &us, &error.base));
    ck_assert_msg(us >= 29000 && us < 20e6, "%g us", us);
    device_event_destroy(device, start);
    device_event_destroy(device, end);
    device_event_destroy(device, untimed);
    device_stream_destroy(device, stream);
    tear_down();
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* memory = 4 times the pinned input, then its first word set; out = memory. */
static attn_status enqueue(const struct two_streams *s, attn_error *failure)
{
    attn_status status = ATTN_OK;
    for (int i = 0; i < 4 && status == ATTN_OK; i++)
        status = device_copy(device, s->memory + 4 * i, s->pinned, 16, s->one, failure);
    if (status == ATTN_OK)
        status = device_fill(device, s->memory, 0x11, 4, s->one, failure);
    return status == ATTN_OK ? device_copy(device, s->pinned + 4, s->memory, 48, s->one, failure)
                             : status;
}

TEST_OF(good, test_capture_and_replay)
{
    struct two_streams s;
    struct device_graph *graph = NULL;
    struct fake_cuda_counters before, after;
    set_up();
    make_two(&s);
    memset(s.pinned, 0, 64);
    GOOD(device_fill(device, s.memory, 0, 64, s.one, &error.base));
    GOOD(device_synchronize(device, s.one, &error.base));
    fake.get_counters(&before);
    GOOD(device_capture_begin(device, s.one, &error.base));
    GOOD(enqueue(&s, &error.base));
    GOOD(device_capture_end(device, s.one, &graph, &error.base));
    ck_assert_uint_eq(device_graph_num_nodes(device, graph), 6);
    GOOD(device_synchronize(device, s.one, &error.base));
    ck_assert_int_eq(s.pinned[4], 0); /* nothing has run */
    for (int replay = 1; replay < 5; replay++) {
        for (int i = 0; i < 4; i++)
            s.pinned[i] = 100 * replay + i;
        GOOD(device_graph_launch(device, graph, s.two, &error.base));
        GOOD(device_synchronize(device, s.two, &error.base));
        ck_assert_int_eq(s.pinned[4], 0x11111111);
        ck_assert_int_eq(s.pinned[5], 100 * replay + 1);
        ck_assert_int_eq(s.pinned[15], 100 * replay + 3);
    }
    fake.get_counters(&after);
    ck_assert_uint_eq(after.graph_launches, 4);
    ck_assert_uint_eq(after.replayed, 4 * 6);
    ck_assert_uint_eq(after.copies, before.copies);
    ck_assert_uint_eq(after.fills, before.fills);
    device_graph_destroy(device, graph);
    device_graph_destroy(device, NULL);
    drop_two(&s);
    tear_down();
}

/* What a backend must not do in forward is found out, and the stream is usable again. */
TEST_OF(good, test_spoilt_captures)
{
    for (int what = 0; what < 4; what++) {
        struct two_streams s;
        struct device_graph *graph = NULL;
        char plain;
        set_up();
        make_two(&s);
        GOOD(device_capture_begin(device, s.one, &error.base));
        if (what == 0)
            ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, 1, 1));
        else if (what == 1)
            FAILS(device_synchronize(device, s.one, &error.base), ATTN_CAPTURE_UNSUPPORTED);
        else if (what == 2)
            FAILS(device_event_synchronize(device, s.event, &error.base), ATTN_CAPTURE_UNSUPPORTED);
        else
            FAILS(device_fill(device, &plain, 0, 1, s.one, &error.base), ATTN_CAPTURE_UNSUPPORTED);
        FAILS(device_fill(device, s.memory, 0, 1, s.one, &error.base), ATTN_CAPTURE_UNSUPPORTED);
        FAILS(device_capture_end(device, s.one, &graph, &error.base), ATTN_CAPTURE_UNSUPPORTED);
        ck_assert_ptr_null(graph);
        GOOD(device_fill(device, s.memory, 0, 1, s.one, &error.base));
        GOOD(device_synchronize(device, s.one, &error.base));
        drop_two(&s);
        tear_down();
    }
}

TEST_OF(good, test_dropped_captures)
{
    for (int spoilt = 0; spoilt < 2; spoilt++) {
        struct two_streams s;
        set_up();
        make_two(&s);
        GOOD(device_capture_begin(device, s.one, &error.base));
        GOOD(enqueue(&s, &error.base));
        if (spoilt)
            ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_PINNED, 1, 1));
        GOOD(device_capture_end(device, s.one, NULL, &error.base));
        GOOD(device_synchronize(device, s.one, &error.base));
        drop_two(&s);
        tear_down();
    }
}

TEST_OF(good, test_graph_memory)
{
    struct two_streams s;
    struct device_graph *graph;
    uint64_t before, after, total;
    set_up();
    make_two(&s);
    fake.set_graph_memory(12345);
    GOOD(device_memory(device, &before, &total, &error.base));
    GOOD(device_capture_begin(device, s.one, &error.base));
    GOOD(enqueue(&s, &error.base));
    GOOD(device_capture_end(device, s.one, &graph, &error.base));
    GOOD(device_memory(device, &after, &total, &error.base));
    ck_assert_uint_eq(before - after, 12345);
    device_graph_destroy(device, graph);
    fake.set_graph_memory((size_t)2 << 30);
    GOOD(device_capture_begin(device, s.one, &error.base));
    FAILS(device_capture_end(device, s.one, &graph, &error.base), ATTN_OUT_OF_DEVICE_MEMORY);
    drop_two(&s);
    tear_down();
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* raise(memory, by): the word grows by a number and by the grid's and block's sizes. */
static void raise_word(const struct fake_cuda_launch *launch)
{
    int *word = fake.access(*(cuda_pointer *)launch->arguments[0], sizeof *word);
    if (word)
        *word +=
            *(int *)launch->arguments[1] +
            (int)(launch->grid[0] * 100 + launch->grid[1] * 10 + launch->grid[2] +
                  launch->block[0] * 100000 + launch->block[1] * 10000 + launch->block[2] * 1000);
}

static void define_raise(void)
{
    static const size_t sizes[] = {sizeof(cuda_pointer), sizeof(int)};
    fake.define_kernel("raise", raise_word, sizes, 2, NULL);
}

static attn_status launch_raise(struct device_function *function, int *memory, attn_stream stream,
                                attn_error *failure)
{
    static const uint32_t grid[3] = {1, 2, 3}, block[3] = {4, 5, 6};
    int by = 1000000;
    void *arguments[] = {&memory, &by};
    return device_launch(device, function, grid, block, arguments, stream, failure);
}

/* An image need not end in a NUL. The launch is asynchronous, and what it got is a copy. */
TEST_OF(good, test_module)
{
    static const char image[4] = {'.', 'p', 't', 'x'};
    struct device_module *module = NULL, *other = NULL;
    struct device_function *function = NULL;
    struct two_streams s;
    set_up();
    define_raise();
    make_two(&s);
    GOOD(device_module_load(device, image, sizeof image, "kernels", &module, &error.base));
    GOOD(device_module_load(device, "", 0, "no kernels", &other, &error.base));
    GOOD(device_function(device, module, "raise", &function, &error.base));
    GOOD(device_fill(device, s.memory, 0, 64, s.one, &error.base));
    fake.hold(s.one, 1);
    GOOD(launch_raise(function, s.memory, s.one, &error.base));
    GOOD(launch_raise(function, s.memory + 15, s.one, &error.base));
    GOOD(device_copy(device, s.pinned, s.memory, 64, s.one, &error.base));
    fake.hold(s.one, 0);
    GOOD(device_synchronize(device, s.one, &error.base));
    ck_assert_int_eq(s.pinned[0], 1456123);
    ck_assert_int_eq(s.pinned[15], 1456123);
    FAILS(device_function(device, module, "lower", &function, &error.base),
          ATTN_DEPENDENCY_MISSING);
    ck_assert_msg(strstr(host_error_text(&error), "cuda:0: lower: cuModuleGetFunction"), "%s",
                  host_error_text(&error));
    fake.inject("cuModuleLoadDataEx", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
    FAILS(device_module_load(device, image, sizeof image, "kernels", &other, &error.base),
          ATTN_DEPENDENCY_MISSING);
    ck_assert_msg(strstr(host_error_text(&error), "cuda:0: kernels: cuModuleLoadDataEx: CUDA_"),
                  "%s", host_error_text(&error));
    device_module_unload(device, module);
    device_module_unload(device, other);
    device_module_unload(device, NULL);
    drop_two(&s);
    tear_down();
}

/* ---- Contexts -------------------------------------------------------------------------------- */

static cuda_context current(void)
{
    struct cuda_driver driver;
    cuda_context found;
    GOOD(cuda_driver_init(&driver, NULL, &error.base));
    ck_assert_uint_eq(driver.cuCtxGetCurrent(&found), CUDA_SUCCESS);
    cuda_driver_finish(&driver);
    return found;
}

TEST_OF(good, test_context_of_the_caller)
{
    struct device *other;
    struct two_streams s;
    struct device_module *module;
    struct device_function *function;
    use_fake_cuda();
    fake.set_devices(2);
    define_raise();
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CUDA, 1, &other, &error.base));
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
    ck_assert_ptr_null(current());
    GOOD(device_enter(other, &error.base));
    cuda_context outer = current();
    ck_assert_ptr_nonnull(outer);
    make_two(&s); /* on the other one of the two devices */
    GOOD(enqueue(&s, &error.base));
    GOOD(device_module_load(device, "", 0, "kernels", &module, &error.base));
    GOOD(device_function(device, module, "raise", &function, &error.base));
    GOOD(launch_raise(function, s.memory, s.one, &error.base));
    GOOD(device_synchronize(device, s.one, &error.base));
    device_module_unload(device, module);
    ck_assert_ptr_eq(current(), outer);
    GOOD(device_enter(device, &error.base));
    ck_assert_ptr_ne(current(), outer);
    device_leave(device);
    ck_assert_ptr_eq(current(), outer);
    drop_two(&s);
    device_leave(other);
    ck_assert_ptr_null(current());
    device_close(other);
    tear_down();
}

enum { NUM_THREADS = 4, ROUNDS = 40 };

static void *work_in_thread(void *argument)
{
    uint64_t alignment = *(uint64_t *)argument;
    attn_stream stream;
    if (device_stream_create(device, &stream, NULL) != ATTN_OK)
        return NULL;
    int good = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char seen = 0, *memory = device_allocate(device, ATTN_SPACE_DEVICE, 100, alignment);
        good += memory && device_fill(device, memory, round, 100, stream, NULL) == ATTN_OK &&
                device_copy(device, &seen, memory + 99, 1, stream, NULL) == ATTN_OK &&
                seen == round;
        device_release(device, ATTN_SPACE_DEVICE, memory);
    }
    device_stream_destroy(device, stream);
    return good == ROUNDS ? argument : NULL;
}

TEST_OF(good, test_threads)
{
    pthread_t threads[NUM_THREADS];
    uint64_t alignments[NUM_THREADS] = {1, 4096, 8192, 4096};
    set_up();
    for (int t = 0; t < NUM_THREADS; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, work_in_thread, &alignments[t]), 0);
    for (int t = 0; t < NUM_THREADS; t++) {
        void *result;
        pthread_join(threads[t], &result);
        ck_assert_ptr_eq(result, &alignments[t]);
    }
    tear_down();
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* A bit of everything; releases what it made whatever happens. */
static attn_status try_everything(attn_error *failure)
{
    struct two_streams s = {0};
    struct device_graph *graph = NULL;
    struct device_module *module = NULL;
    struct device_function *function = NULL;
    define_raise();
    attn_status status = device_open(ATTN_DEVICE_CUDA, 0, &device, failure);
    if (status != ATTN_OK)
        return status;
    status = device_stream_create(device, &s.one, failure);
    if (status == ATTN_OK)
        status = device_event_create(device, 0, &s.event, failure);
    if (status == ATTN_OK && !(s.memory = device_allocate(device, ATTN_SPACE_DEVICE, 64, 4096)))
        status = device_exhausted(device, ATTN_SPACE_DEVICE);
    if (status == ATTN_OK && !(s.pinned = device_allocate(device, ATTN_SPACE_PINNED, 64, 4096)))
        status = device_exhausted(device, ATTN_SPACE_PINNED);
    if (status == ATTN_OK)
        status = device_module_load(device, "", 0, "kernels", &module, failure);
    if (status == ATTN_OK)
        status = device_function(device, module, "raise", &function, failure);
    if (status == ATTN_OK)
        status = enqueue(&s, failure);
    if (status == ATTN_OK)
        status = launch_raise(function, s.memory, s.one, failure);
    if (status == ATTN_OK)
        status = device_capture_begin(device, s.one, failure);
    if (status == ATTN_OK) {
        status = enqueue(&s, failure);
        attn_status ended =
            device_capture_end(device, s.one, status == ATTN_OK ? &graph : NULL, failure);
        status = status == ATTN_OK ? ended : status;
    }
    if (status == ATTN_OK)
        status = device_graph_launch(device, graph, s.one, failure);
    if (status == ATTN_OK)
        status = device_event_record(device, s.event, s.one, failure);
    if (status == ATTN_OK)
        status = device_event_synchronize(device, s.event, failure);
    device_synchronize(device, s.one, NULL);
    device_graph_destroy(device, graph);
    device_module_unload(device, module);
    device_release(device, ATTN_SPACE_DEVICE, s.memory);
    device_release(device, ATTN_SPACE_PINNED, s.pinned);
    device_event_destroy(device, s.event);
    device_stream_destroy(device, s.one);
    device_close(device);
    device = NULL;
    return status;
}

/* Calls that make or do something, and how the result given is reported where no class can be (an
 * allocation says no more than NULL). */
static const struct {
    const char *call;
    cuda_result result;
    attn_status status;
} failures[] = {
    {"cuInit", CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, ATTN_DEPENDENCY_MISSING},
    {"cuDriverGetVersion", CUDA_ERROR_UNKNOWN, ATTN_INTERNAL},
    {"cuDeviceGetCount", CUDA_ERROR_UNKNOWN, ATTN_INTERNAL},
    {"cuDeviceGet", CUDA_ERROR_INVALID_DEVICE, ATTN_DEPENDENCY_MISSING},
    {"cuDeviceGetAttribute", CUDA_ERROR_INVALID_VALUE, ATTN_INVALID_ARGUMENT},
    {"cuDeviceTotalMem", CUDA_ERROR_UNKNOWN, ATTN_INTERNAL},
    {"cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_DEVICE_MEMORY},
    {"cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_DEVICE_MEMORY},
    {"cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_DEVICE_MEMORY},
    {"cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_DEVICE_MEMORY},
    {"cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_HOST_MEMORY},
    {"cuMemcpyAsync", CUDA_ERROR_NOT_PERMITTED, ATTN_BAD_STATE},
    {"cuMemsetD8Async", CUDA_ERROR_NOT_SUPPORTED, ATTN_UNSUPPORTED},
    {"cuModuleLoadDataEx", CUDA_ERROR_INVALID_PTX, ATTN_DEPENDENCY_MISSING},
    {"cuModuleGetFunction", CUDA_ERROR_NOT_FOUND, ATTN_DEPENDENCY_MISSING},
    {"cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, ATTN_INVALID_ARGUMENT},
    {"cuStreamBeginCapture", CUDA_ERROR_NOT_SUPPORTED, ATTN_UNSUPPORTED},
    {"cuGraphGetNodes", CUDA_ERROR_INVALID_VALUE, ATTN_INVALID_ARGUMENT},
    {"cuGraphInstantiate", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_DEVICE_MEMORY},
    {"cuGraphLaunch", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, ATTN_INVALID_ARGUMENT},
    {"cuEventRecord", CUDA_ERROR_TIMEOUT, ATTN_TIMEOUT},
    {"cuEventSynchronize", CUDA_ERROR_TIMEOUT, ATTN_TIMEOUT},
};

TEST_OF(bad, test_failure_at_every_call)
{
    use_fake_cuda();
    host_error_init(&error);
    GOOD(try_everything(&error.base));
    assert_nothing_left();
    for (size_t f = 0; f < sizeof failures / sizeof *failures; f++) {
        int happened = 1;
        uint64_t nth = 0;
        while (happened) {
            fake.reset();
            fake.inject(failures[f].call, ++nth, failures[f].result);
            attn_status status = try_everything(&error.base);
            happened = fake.injected();
            ck_assert_msg(status == (happened ? failures[f].status : ATTN_OK),
                          "%s, call %llu: status %d", failures[f].call, (unsigned long long)nth,
                          status);
            assert_nothing_left();
            assert_clean();
        }
        ck_assert_msg(nth > 1, "%s is not called", failures[f].call);
    }
    fake.reset();
}

/* The device is lost at each call of all, those that release included. Nothing hangs, nothing
 * stays, and no loss is reported as anything else. */
TEST_OF(bad, test_loss_at_every_call)
{
    use_fake_cuda();
    GOOD(try_everything(&error.base));
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    ck_assert_uint_gt(counters.calls, 60);
    uint64_t num_lost = 0;
    for (uint64_t nth = 1; nth <= counters.calls; nth++) {
        fake.reset();
        fake.inject(NULL, nth, CUDA_ERROR_LAUNCH_FAILED);
        attn_status status = try_everything(NULL);
        ck_assert_msg(status == ATTN_OK || status == ATTN_DEVICE_LOST, "call %llu: status %d",
                      (unsigned long long)nth, status);
        num_lost += status == ATTN_DEVICE_LOST;
        ck_assert(fake.injected());
        if (fake.num_calls("cuDevicePrimaryCtxRelease") == 0)
            assert_nothing_left();
        fake.reset();
        GOOD(try_everything(&error.base));
    }
    ck_assert_uint_gt(num_lost, counters.calls / 2);
    fake.reset();
}

static void assert_all_lost(struct two_streams *s)
{
    attn_stream stream = NULL;
    struct device_event *event = NULL;
    struct device_module *module = NULL;
    uint64_t available, total;
    int done;
    ck_assert(device_is_lost(device));
    FAILS(device_module_load(device, "", 0, "kernels", &module, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_synchronize(device, s->one, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_fill(device, s->memory, 0, 1, s->one, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_copy(device, s->memory, s->pinned, 1, s->one, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_memory(device, &available, &total, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_stream_create(device, &stream, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_event_create(device, 0, &event, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_event_record(device, s->event, s->one, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_event_query(device, s->event, &done, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_stream_wait(device, s->one, s->event, &error.base), ATTN_DEVICE_LOST);
    FAILS(device_capture_begin(device, s->one, &error.base), ATTN_DEVICE_LOST);
    for (uint32_t space = 0; space < 2; space++) {
        ck_assert_ptr_null(device_allocate(device, space, 1, 1));
        ck_assert_int_eq(device_exhausted(device, space), ATTN_DEVICE_LOST);
        FAILS(device_no_memory(device, space, &error.base, "no memory for %d bytes", 1),
              ATTN_DEVICE_LOST);
        ck_assert_ptr_null(strstr(host_error_text(&error), "no memory"));
    }
}

TEST_OF(bad, test_loss_and_reset)
{
    struct two_streams s;
    struct device *other;
    use_fake_cuda();
    fake.set_devices(2);
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
    GOOD(device_open(ATTN_DEVICE_CUDA, 1, &other, &error.base));
    for (int round = 0; round < 3; round++) {
        make_two(&s);
        void *aligned = allocate(ATTN_SPACE_DEVICE, 10, 4096);
        char *plain = allocate(ATTN_SPACE_HOST, 10, 1);
        fake.hold(s.one, 1);
        GOOD(enqueue(&s, &error.base));
        ck_assert(!device_is_lost(device));
        fake.lose(0, round ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_ERROR_ILLEGAL_ADDRESS);
        FAILS(device_synchronize(device, s.one, &error.base), ATTN_DEVICE_LOST);
        ck_assert_msg(strstr(host_error_text(&error), "cuda:0: cuStreamSynchronize: CUDA_ERROR_"),
                      "%s", host_error_text(&error));
        assert_all_lost(&s);
        ck_assert(!device_is_lost(other));
        void *there = device_allocate(other, ATTN_SPACE_DEVICE, 10, 1);
        ck_assert_ptr_nonnull(there);
        device_release(other, ATTN_SPACE_DEVICE, there);
        if (round == 1) /* releasing is allowed, and in vain */
            device_release(device, ATTN_SPACE_DEVICE, aligned);
        GOOD(device_reset(device, &error.base));
        ck_assert(!device_is_lost(device));
        device_release(device, ATTN_SPACE_HOST, plain);
    }
    make_two(&s);
    GOOD(enqueue(&s, &error.base));
    GOOD(device_synchronize(device, s.one, &error.base));
    drop_two(&s);
    device_close(other);
    tear_down();
}

/* Some losses outlast a reset: the device stays lost, and cannot be opened again. */
TEST_OF(bad, test_loss_for_good)
{
    struct device *again = NULL;
    struct two_streams s;
    set_up();
    fake.set_loss_final(1);
    make_two(&s);
    GOOD(device_fill(device, s.memory, 0, 65, s.one, &error.base));
    FAILS(device_synchronize(device, s.one, &error.base), ATTN_DEVICE_LOST);
    for (int attempt = 0; attempt < 2; attempt++) {
        FAILS(device_reset(device, &error.base), ATTN_DEVICE_LOST);
        ck_assert_msg(strstr(host_error_text(&error), "cuDevicePrimaryCtxRetain"), "%s",
                      host_error_text(&error));
        ck_assert(device_is_lost(device));
        ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, 1, 1));
        ck_assert_int_eq(device_exhausted(device, ATTN_SPACE_DEVICE), ATTN_DEVICE_LOST);
    }
    FAILS(device_open(ATTN_DEVICE_CUDA, 0, &again, &error.base), ATTN_DEVICE_LOST);
    ck_assert_ptr_null(again);
    device_close(device);
    assert_nothing_left();
    fake.reset();
}

/* A fault in what was enqueued is reported by whatever comes after it. */
TEST_OF(bad, test_loss_by_a_fault)
{
    struct two_streams s;
    set_up();
    make_two(&s);
    GOOD(device_fill(device, s.memory, 0, 65, s.one, &error.base));
    FAILS(device_synchronize(device, s.one, &error.base), ATTN_DEVICE_LOST);
    ck_assert_str_eq(fake.first_fault(), "fill: 65 bytes at offset 0 of 64 bytes of device memory");
    assert_all_lost(&s);
    device_close(device);
    assert_nothing_left();
    fake.reset();
}

/* ---- Suite ----------------------------------------------------------------------------------- */

TESTS("device_cuda");
