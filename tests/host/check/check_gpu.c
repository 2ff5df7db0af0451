/* SPDX-License-Identifier: Apache-2.0
 *
 * check_gpu.c: the host's CUDA device on a real GPU; skipped where there is none. It asks of the
 * real driver what check_device_cuda.c takes for granted of the fake one.
 */
#include "host/device/cuda_driver.h"
#include "host/device/device.h"
#include "host/base/error.h"
#include "tests/tools/gpu_test.h"
#include "tests/tools/test_main.h"

#include <stdio.h>
#include <string.h>

static struct device *device;
static struct cuda_driver driver;
static host_error error;

#define GOOD(call)          ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))
#define CALL(call)          ck_assert_uint_eq(driver.call, CUDA_SUCCESS)
#define FAILS(call, status) ck_assert_int_eq(call, status)

static void set_up(void)
{
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
    GOOD(cuda_driver_init(&driver, NULL, &error.base));
}

static void tear_down(void)
{
    cuda_driver_finish(&driver);
    device_close(device);
}

/* store(address, value) */
static const char image[] = ".version 7.0\n"
                            ".target sm_75\n"
                            ".address_size 64\n"
                            ".visible .entry store(.param .u64 address, .param .u32 value)\n"
                            "{\n"
                            "    .reg .b64 %a<2>;\n"
                            "    .reg .b32 %v<2>;\n"
                            "    ld.param.u64 %a1, [address];\n"
                            "    ld.param.u32 %v1, [value];\n"
                            "    st.global.u32 [%a1], %v1;\n"
                            "    ret;\n"
                            "}\n";

static cuda_function load_store(void)
{
    cuda_module module;
    cuda_function function;
    CALL(cuModuleLoadDataEx(&module, image, 0, NULL, NULL));
    CALL(cuModuleGetFunction(&function, module, "store"));
    return function;
}

static void store(cuda_function function, const void *address, unsigned int value,
                  attn_stream stream)
{
    void *parameters[] = {&address, &value};
    CALL(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* ---- Tests ----------------------------------------------------------------------------------- */

TEST_OF(device, test_description)
{
    uint64_t available, total;
    set_up();
    ck_assert_uint_ge(device->info.sm, 75);
    ck_assert_uint_gt(device->info.num_sms, 0);
    ck_assert_uint_ge(device->info.shared_memory, 48 << 10);
    ck_assert_uint_ge(device->info.driver_version, 11080);
    ck_assert_uint_gt(device->info.l2_bytes, 0);
    GOOD(device_memory(device, &available, &total, &error.base));
    ck_assert_uint_le(available, total);
    ck_assert_uint_le(total, device->info.memory_bytes);
    tear_down();
}

TEST_OF(device, test_memory)
{
    enum { SIZE = 1013 };
    attn_stream stream;
    unsigned char given[SIZE], seen[SIZE];
    set_up();
    GOOD(device_stream_create(device, &stream, &error.base));
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT; space++)
        for (uint64_t alignment = 1; alignment <= 4 << 20; alignment *= 64) {
            char *memory = device_allocate(device, space, SIZE, alignment);
            ck_assert_ptr_nonnull(memory);
            ck_assert_uint_eq((uintptr_t)memory % alignment, 0);
            for (int i = 0; i < SIZE; i++)
                given[i] = (unsigned char)(i * 7 + (int)space);
            memset(seen, 0, SIZE);
            GOOD(device_copy(device, memory, given, SIZE, stream, &error.base));
            GOOD(device_fill(device, memory + 5, 0x5a, 3, stream, &error.base));
            GOOD(device_copy(device, seen, memory, SIZE, stream, &error.base));
            GOOD(device_synchronize(device, stream, &error.base));
            memset(given + 5, 0x5a, 3);
            ck_assert_mem_eq(seen, given, SIZE);
            device_release(device, space, memory);
        }
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, (uint64_t)1 << 46, 1));
    FAILS(device_exhausted(device, ATTN_SPACE_DEVICE), ATTN_OUT_OF_DEVICE_MEMORY);
    device_stream_destroy(device, stream);
    tear_down();
}

TEST_OF(device, test_replay)
{
    attn_stream one, two;
    struct device_event *start, *end;
    struct device_graph *graph;
    double us;
    int done;
    set_up();
    GOOD(device_enter(device, &error.base));
    GOOD(device_stream_create(device, &one, &error.base));
    GOOD(device_stream_create(device, &two, &error.base));
    GOOD(device_event_create(device, 1, &start, &error.base));
    GOOD(device_event_create(device, 1, &end, &error.base));
    FAILS(device_event_elapsed(device, start, end, &us, &error.base), ATTN_BAD_STATE);
    cuda_function function = load_store();
    unsigned int *memory = device_allocate(device, ATTN_SPACE_DEVICE, 16, 1);
    unsigned int *pinned = device_allocate(device, ATTN_SPACE_PINNED, 32, 1);
    GOOD(device_capture_begin(device, one, &error.base));
    GOOD(device_copy(device, memory, pinned, 16, one, &error.base));
    store(function, memory + 1, 4711, one);
    GOOD(device_copy(device, pinned + 4, memory, 16, one, &error.base));
    GOOD(device_capture_end(device, one, &graph, &error.base));
    ck_assert_uint_eq(device_graph_num_nodes(device, graph), 3);
    for (unsigned int replay = 1; replay < 5; replay++) {
        for (unsigned int i = 0; i < 4; i++)
            pinned[i] = 100 * replay + i;
        GOOD(device_event_record(device, start, one, &error.base));
        GOOD(device_stream_wait(device, two, start, &error.base));
        GOOD(device_graph_launch(device, graph, two, &error.base));
        GOOD(device_event_record(device, end, two, &error.base));
        GOOD(device_event_synchronize(device, end, &error.base));
        GOOD(device_event_query(device, end, &done, &error.base));
        GOOD(device_event_elapsed(device, start, end, &us, &error.base));
        ck_assert(done && us > 0);
        ck_assert_uint_eq(pinned[4], 100 * replay);
        ck_assert_uint_eq(pinned[5], 4711);
        ck_assert_uint_eq(pinned[7], 100 * replay + 3);
    }
    device_graph_destroy(device, graph);
    device_release(device, ATTN_SPACE_DEVICE, memory);
    device_release(device, ATTN_SPACE_PINNED, pinned);
    device_event_destroy(device, start);
    device_event_destroy(device, end);
    device_stream_destroy(device, one);
    device_stream_destroy(device, two);
    device_leave(device);
    tear_down();
}

TEST_OF(device, test_spoilt_capture)
{
    attn_stream stream;
    struct device_graph *graph = NULL;
    set_up();
    GOOD(device_stream_create(device, &stream, &error.base));
    for (int drop = 0; drop < 2; drop++) {
        GOOD(device_capture_begin(device, stream, &error.base));
        FAILS(device_synchronize(device, stream, &error.base), ATTN_CAPTURE_UNSUPPORTED);
        FAILS(device_capture_end(device, stream, drop ? NULL : &graph, &error.base),
              drop ? ATTN_OK : ATTN_CAPTURE_UNSUPPORTED);
        GOOD(device_synchronize(device, stream, &error.base));
    }
    GOOD(device_capture_begin(device, stream, &error.base));
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, 1, 1));
    FAILS(device_capture_end(device, stream, &graph, &error.base), ATTN_CAPTURE_UNSUPPORTED);
    ck_assert_ptr_null(graph);
    device_stream_destroy(device, stream);
    tear_down();
}

/* Modules through the table of devices, and images that the driver cannot use. */
TEST_OF(device, test_module)
{
    static const char *const unusable[] = {"this is no PTX", ".version 99.9\n.target sm_75\n"};
    const uint32_t one[3] = {1, 1, 1};
    struct device_module *module = NULL;
    struct device_function *function = NULL;
    unsigned int seen[2] = {0, 0}, value = 4711;
    attn_stream stream;
    set_up();
    for (size_t i = 0; i < sizeof unusable / sizeof *unusable; i++) {
        host_error_init(&error);
        FAILS(device_module_load(device, unusable[i], strlen(unusable[i]), "nothing", &module,
                                 &error.base),
              ATTN_DEPENDENCY_MISSING);
        ck_assert_ptr_nonnull(strstr(host_error_text(&error), "cuda:0: nothing: "));
        ck_assert(!module && !device_is_lost(device));
    }
    GOOD(device_stream_create(device, &stream, &error.base));
    GOOD(device_module_load(device, image, sizeof image - 1, "store", &module, &error.base));
    FAILS(device_function(device, module, "stroe", &function, &error.base),
          ATTN_DEPENDENCY_MISSING);
    GOOD(device_function(device, module, "store", &function, &error.base));
    unsigned int *memory = device_allocate(device, ATTN_SPACE_DEVICE, sizeof seen, 1);
    unsigned int *second = memory + 1;
    void *arguments[] = {&second, &value};
    GOOD(device_fill(device, memory, 0, sizeof seen, stream, &error.base));
    GOOD(device_launch(device, function, one, one, arguments, stream, &error.base));
    GOOD(device_copy(device, seen, memory, sizeof seen, stream, &error.base));
    GOOD(device_synchronize(device, stream, &error.base));
    ck_assert(seen[0] == 0 && seen[1] == 4711);
    device_release(device, ATTN_SPACE_DEVICE, memory);
    device_module_unload(device, module);
    device_module_unload(device, NULL);
    device_stream_destroy(device, stream);
    tear_down();
}

static void assert_works(void)
{
    attn_stream stream;
    unsigned int seen = 0;
    ck_assert(!device_is_lost(device));
    GOOD(device_enter(device, &error.base));
    GOOD(device_stream_create(device, &stream, &error.base));
    void *memory = device_allocate(device, ATTN_SPACE_DEVICE, 4, 1);
    store(load_store(), memory, 4711, stream);
    GOOD(device_copy(device, &seen, memory, 4, stream, &error.base));
    GOOD(device_synchronize(device, stream, &error.base));
    ck_assert_uint_eq(seen, 4711);
    device_release(device, ATTN_SPACE_DEVICE, memory);
    device_stream_destroy(device, stream);
    device_leave(device);
}

static void assert_lost_for_good(attn_status status)
{
    struct device *again = NULL;
    ck_assert_int_eq(status, ATTN_DEVICE_LOST);
    ck_assert(device_is_lost(device));
    FAILS(device_open(ATTN_DEVICE_CUDA, 0, &again, &error.base), ATTN_DEVICE_LOST);
}

/* A store to nowhere loses the device. After its reset it works again, or it is lost to this
 * process for good; nothing in between. */
TEST_OF(device, test_loss_and_reset)
{
    attn_stream stream;
    set_up();
    GOOD(device_enter(device, &error.base));
    GOOD(device_stream_create(device, &stream, &error.base));
    cuda_function function = load_store();
    store(function, (const void *)64, 1, stream);
    FAILS(device_synchronize(device, stream, &error.base), ATTN_DEVICE_LOST);
    ck_assert(device_is_lost(device));
    ck_assert_ptr_null(device_allocate(device, ATTN_SPACE_DEVICE, 1, 1));
    FAILS(device_exhausted(device, ATTN_SPACE_DEVICE), ATTN_DEVICE_LOST);
    device_leave(device);
    attn_status status = device_reset(device, &error.base);
    if (status == ATTN_OK)
        assert_works();
    else
        assert_lost_for_good(status);
    tear_down();
}

/* ---- Suite ----------------------------------------------------------------------------------- */

GPU_TESTS("gpu");
