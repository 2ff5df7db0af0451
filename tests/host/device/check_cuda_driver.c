/* SPDX-License-Identifier: Apache-2.0
 *
 * check_cuda_driver.c: opening the CUDA driver, classing its results, and the fake driver itself
 * where the host does not use what it can do.
 */
#include "host/device/cuda_driver.h"
#include "host/base/error.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/tools/test_main.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct cuda_driver driver;
static cuda_context context;
static host_error error;

#define CALL(call)         ck_assert_uint_eq(driver.call, CUDA_SUCCESS)
#define GIVES(call, value) ck_assert_uint_eq(driver.call, value)

static void set_up(void)
{
    char path[4096];
    use_fake_cuda();
    fixture_path("fake_cuda.so", path);
    host_error_init(&error);
    ck_assert_msg(cuda_driver_init(&driver, path, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
    CALL(cuDevicePrimaryCtxRetain(&context, 0));
    CALL(cuCtxSetCurrent(context));
}

static void tear_down(void)
{
    fake.reset();
    cuda_driver_finish(&driver);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void assert_refused(const char *path, attn_status status, const char *text)
{
    struct cuda_driver refused;
    host_error_init(&error);
    ck_assert_int_eq(cuda_driver_init(&refused, path, &error.base), status);
    ck_assert_int_eq(error.base.code, status);
    ck_assert_msg(strstr(host_error_text(&error), text), "%s", host_error_text(&error));
    ck_assert_ptr_null(refused.library);
    cuda_driver_finish(&refused);
}

TEST_OF(opening, test_opens)
{
    char path[4096];
    set_up();
    ck_assert_int_eq(driver.version, 13000);
#define PRESENT(name, symbol, parameters) ck_assert_msg(driver.name != NULL, #symbol);
    CUDA_DRIVER_CALLS(PRESENT)
#undef PRESENT
    struct cuda_driver again;
    fixture_path("fake_cuda.so", path);
    fake.set_version(12040);
    ck_assert_int_eq(cuda_driver_init(&again, NULL, &error.base), ATTN_OK);
    ck_assert_int_eq(again.version, 12040);
    ck_assert(again.cuInit == driver.cuInit);
    cuda_driver_finish(&again);
    cuda_driver_finish(&again);
    CALL(cuCtxSynchronize());
    tear_down();
}

TEST_OF(opening, test_driver_absent)
{
    assert_refused("/nowhere/libcuda.so.1", ATTN_DEPENDENCY_MISSING, "/nowhere/libcuda.so.1");
    setenv("ATTNHOST_LIBCUDA", "/nowhere/else/libcuda.so.1", 1);
    assert_refused(NULL, ATTN_DEPENDENCY_MISSING, "/nowhere/else/libcuda.so.1");
    struct cuda_driver refused;
    ck_assert_int_eq(cuda_driver_init(&refused, NULL, NULL), ATTN_DEPENDENCY_MISSING);
}

TEST_OF(opening, test_relative_path)
{
    assert_refused("libcuda.so.1", ATTN_CONFIG_ERROR, "'libcuda.so.1' is relative");
    setenv("ATTNHOST_LIBCUDA", "./libcuda.so.1", 1);
    assert_refused(NULL, ATTN_CONFIG_ERROR, "ATTNHOST_LIBCUDA: './libcuda.so.1' is relative");
}

TEST_OF(opening, test_not_a_driver)
{
    char path[4096];
    assert_refused("/etc/passwd", ATTN_DEPENDENCY_MISSING, "/etc/passwd");
    fixture_path("fixture_good.so", path);
    assert_refused(path, ATTN_DEPENDENCY_MISSING, "not a CUDA driver: it has no cuInit");
}

TEST_OF(opening, test_older_driver)
{
    char path[4096];
    fixture_path("fake_cuda_old.so", path);
    assert_refused(path, ATTN_DEPENDENCY_MISSING,
                   "the driver of CUDA 11.4 has no cuGetErrorName; accepted: one of CUDA 11.8");
}

TEST_OF(opening, test_no_device)
{
    char path[4096];
    use_fake_cuda();
    fixture_path("fake_cuda.so", path);
    fake.set_devices(0);
    assert_refused(path, ATTN_DEPENDENCY_MISSING, "cuInit: CUDA_ERROR_NO_DEVICE (100): ");
    fake.set_devices(1);
    fake.inject("cuDriverGetVersion", 1, CUDA_ERROR_UNKNOWN);
    assert_refused(path, ATTN_INTERNAL, "cuDriverGetVersion: CUDA_ERROR_UNKNOWN (999): ");
    fake.inject("cuInit", 1, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    assert_refused(path, ATTN_DEPENDENCY_MISSING, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
}

/* ---- Results --------------------------------------------------------------------------------- */

static const struct {
    cuda_result result;
    attn_status status;
} classes[] = {
    {0, ATTN_OK},
    {1, ATTN_INVALID_ARGUMENT},
    {2, ATTN_OUT_OF_DEVICE_MEMORY},
    {34, ATTN_DEPENDENCY_MISSING},
    {46, ATTN_DEVICE_LOST},
    {100, ATTN_DEPENDENCY_MISSING},
    {201, ATTN_BAD_STATE},
    {209, ATTN_DEPENDENCY_MISSING},
    {214, ATTN_DEVICE_LOST},
    {220, ATTN_DEVICE_LOST},
    {226, ATTN_DEVICE_LOST},
    {700, ATTN_DEVICE_LOST},
    {701, ATTN_INVALID_ARGUMENT},
    {702, ATTN_DEVICE_LOST},
    {709, ATTN_DEVICE_LOST},
    {710, ATTN_DEVICE_LOST},
    {714, ATTN_DEVICE_LOST},
    {715, ATTN_DEVICE_LOST},
    {716, ATTN_DEVICE_LOST},
    {717, ATTN_DEVICE_LOST},
    {718, ATTN_DEVICE_LOST},
    {719, ATTN_DEVICE_LOST},
    {801, ATTN_UNSUPPORTED},
    {900, ATTN_CAPTURE_UNSUPPORTED},
    {908, ATTN_CAPTURE_UNSUPPORTED},
    {909, ATTN_TIMEOUT},
    {999, ATTN_INTERNAL},
    {424242, ATTN_INTERNAL},
};

TEST_OF(opening, test_classes)
{
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
        ck_assert_msg(cuda_status(classes[c].result) == classes[c].status, "result %u",
                      classes[c].result);
}

TEST_OF(opening, test_message)
{
    set_up();
    ck_assert_int_eq(cuda_fail(&driver, CUDA_SUCCESS, "cuX", &error.base, "%d", 1), ATTN_OK);
    ck_assert_str_eq(host_error_text(&error), "");
    ck_assert_int_eq(cuda_fail(&driver, 719, "cuX", &error.base, "copying %d bytes", 17),
                     ATTN_DEVICE_LOST);
    ck_assert_str_eq(host_error_text(&error), "copying 17 bytes: cuX: CUDA_ERROR_LAUNCH_FAILED "
                                              "(719): an error of the fake driver");
    ck_assert_int_eq(cuda_fail(&driver, 4711, "cuX", &error.base, "cuda:%d", 0), ATTN_INTERNAL);
    ck_assert_str_eq(host_error_text(&error), "cuda:0: cuX: unknown result (4711): no text");
    ck_assert_int_eq(cuda_fail(&driver, 2, "cuX", NULL, "cuda:%d", 0), ATTN_OUT_OF_DEVICE_MEMORY);
    tear_down();
}

/* ---- Kernels --------------------------------------------------------------------------------- */

struct pair {
    char first;
    double second;
};

/* add(memory, count, pair): each of `count` ints grows by both numbers and by the grid's size. */
static void add(const struct fake_cuda_launch *launch)
{
    cuda_pointer memory = *(cuda_pointer *)launch->arguments[0];
    int count = *(int *)launch->arguments[1];
    const struct pair *pair = launch->arguments[2];
    int *values = fake.access(memory, (size_t)count * sizeof *values);
    for (int i = 0; values && i < count; i++)
        values[i] += pair->first + (int)pair->second + (int)launch->grid[0];
    if (launch->user)
        atomic_fetch_add((atomic_int *)launch->user, 1);
}

static const size_t add_sizes[] = {sizeof(cuda_pointer), sizeof(int), sizeof(struct pair)};
static atomic_int num_added;

static cuda_function load_add(cuda_module *module)
{
    cuda_function function;
    atomic_store(&num_added, 0);
    fake.define_kernel("add", add, add_sizes, 3, &num_added);
    CALL(cuModuleLoadDataEx(module, "image", 0, NULL, NULL));
    CALL(cuModuleGetFunction(&function, *module, "add"));
    return function;
}

static void copy_out(cuda_pointer memory, int *values, size_t count, cuda_stream stream)
{
    CALL(cuMemcpyAsync((cuda_pointer)(uintptr_t)values, memory, count * sizeof *values, stream));
    CALL(cuStreamSynchronize(stream));
}

TEST_OF(fake, test_kernel)
{
    set_up();
    cuda_module module;
    cuda_function function = load_add(&module);
    cuda_stream stream;
    cuda_pointer memory;
    struct pair pair = {3, 40.0};
    int count = 5, values[5];
    void *parameters[] = {&memory, &count, &pair};
    CALL(cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING));
    CALL(cuMemAlloc(&memory, sizeof values));
    CALL(cuMemsetD32Async(memory, 1000, 5, stream));
    fake.hold(stream, 1);
    CALL(cuLaunchKernel(function, 7, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    pair.first = 100; /* the arguments were taken at the launch */
    cuda_launch_config config = {.grid_x = 1,
                                 .grid_y = 1,
                                 .grid_z = 1,
                                 .block_x = 1,
                                 .block_y = 1,
                                 .block_z = 1,
                                 .stream = stream};
    count = 2;
    CALL(cuLaunchKernelEx(&config, function, parameters, NULL));
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    fake.hold(stream, 0);
    copy_out(memory, values, 5, stream);
    ck_assert_int_eq(values[0], 1000 + 3 + 40 + 7 + 100 + 40 + 1);
    ck_assert_int_eq(values[1], values[0]);
    ck_assert_int_eq(values[4], 1050);
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    ck_assert_uint_eq(counters.launches, 2);
    ck_assert_uint_eq(fake.num_calls("cuLaunchKernel"), 1);
    CALL(cuMemFree(memory));
    CALL(cuModuleUnload(module));
    GIVES(cuLaunchKernelEx(&config, function, parameters, NULL), CUDA_ERROR_INVALID_HANDLE);
    CALL(cuStreamDestroy(stream));
    CALL(cuDevicePrimaryCtxRelease(0));
    assert_nothing_left();
    assert_clean();
    tear_down();
}

TEST_OF(fake, test_launch_limits)
{
    set_up();
    cuda_module module;
    cuda_function function = load_add(&module), missing;
    cuda_pointer memory = 0;
    int count = 0;
    struct pair pair = {0, 0};
    void *parameters[] = {&memory, &count, &pair};
    GIVES(cuModuleGetFunction(&missing, module, "subtract"), CUDA_ERROR_NOT_FOUND);
    GIVES(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL),
          CUDA_ERROR_INVALID_VALUE);
    GIVES(cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, NULL, parameters, NULL),
          CUDA_ERROR_INVALID_VALUE);
    GIVES(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 49153, NULL, parameters, NULL),
          CUDA_ERROR_INVALID_VALUE);
    GIVES(cuFuncSetAttribute(function, CUDA_FUNCTION_MAX_DYNAMIC_SHARED, 232449),
          CUDA_ERROR_INVALID_VALUE);
    CALL(cuFuncSetAttribute(function, CUDA_FUNCTION_MAX_DYNAMIC_SHARED, 49153));
    ck_assert_int_eq(atomic_load(&num_added), 0);
    CALL(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 49153, NULL, parameters, NULL));
    CALL(cuCtxSynchronize());
    ck_assert_int_eq(atomic_load(&num_added), 1);
    tear_down();
}

/* A kernel beyond the end of its memory: the launch succeeds, what comes after does not. */
TEST_OF(fake, test_kernel_out_of_bounds)
{
    set_up();
    cuda_module module;
    cuda_function function = load_add(&module);
    cuda_pointer memory;
    int count = 6;
    struct pair pair = {1, 1};
    void *parameters[] = {&memory, &count, &pair};
    CALL(cuMemAlloc(&memory, 5 * sizeof(int)));
    CALL(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    GIVES(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    GIVES(cuMemFree(memory), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_str_eq(fake.first_fault(), "kernel: 24 bytes at offset 0 of 20 bytes of device "
                                         "memory");
    tear_down();
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* The host's memory is not the device's, unless it is pinned. */
TEST_OF(fake, test_kernel_on_host_memory)
{
    for (int is_pinned = 0; is_pinned < 2; is_pinned++) {
        cuda_module module;
        int plain = 7, count = 1, *pinned;
        struct pair pair = {1, 1};
        set_up();
        cuda_function function = load_add(&module);
        CALL(cuMemHostAlloc((void **)&pinned, sizeof *pinned, 0));
        *pinned = 7;
        cuda_pointer memory = (cuda_pointer)(uintptr_t)(is_pinned ? pinned : &plain);
        void *parameters[] = {&memory, &count, &pair};
        CALL(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
        GIVES(cuStreamSynchronize(NULL), is_pinned ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
        ck_assert(plain == 7 && *pinned == (is_pinned ? 10 : 7));
        ck_assert_int_eq(strncmp(fake.first_fault(), "kernel: 4 bytes at 0x", 21) == 0, !is_pinned);
        tear_down();
    }
}

/* In a separate process: the fault ends it. */
TEST_OF(fake, test_device_memory_is_not_the_hosts)
{
    cuda_pointer memory;
    int status;
    set_up();
    CALL(cuMemAlloc(&memory, 64));
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* not a sanitizer's */
        *(volatile char *)(uintptr_t)memory = 1;
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    tear_down();
}

TEST_OF(fake, test_use_after_free)
{
    set_up();
    cuda_pointer memory, other;
    char byte;
    CALL(cuMemAlloc(&memory, 64));
    CALL(cuMemFree(memory));
    GIVES(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
    CALL(cuMemAlloc(&other, 64));
    ck_assert_uint_ne(other, memory);
    GIVES(cuMemcpyAsync((cuda_pointer)(uintptr_t)&byte, memory, 1, NULL),
          CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_msg(strstr(fake.first_fault(), "that was freed"), "%s", fake.first_fault());
    tear_down();
}

/* Work that is still queued when its memory is freed. */
TEST_OF(fake, test_free_too_early)
{
    set_up();
    cuda_stream stream;
    cuda_pointer memory;
    CALL(cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING));
    CALL(cuMemAlloc(&memory, 64));
    fake.hold(stream, 1);
    CALL(cuMemsetD8Async(memory, 1, 64, stream));
    CALL(cuMemFree(memory));
    fake.hold(stream, 0);
    GIVES(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    tear_down();
}

/* Further calls that plugins use. */
static struct {
#define MEMBER(name, symbol, parameters) cuda_result(*name) parameters;
    FAKE_CUDA_OTHER_CALLS(MEMBER)
#undef MEMBER
} other;

static void resolve_other(void)
{
    void *address;
#define RESOLVE(name, symbol, parameters)                                                          \
    address = dlsym(driver.library, #symbol);                                                      \
    ck_assert_msg(address != NULL, #symbol);                                                       \
    memcpy(&other.name, &address, sizeof address);
    FAKE_CUDA_OTHER_CALLS(RESOLVE)
#undef RESOLVE
}

TEST_OF(fake, test_synchronous_calls)
{
    set_up();
    resolve_other();
    cuda_device which = 4711;
    cuda_pointer memory;
    cuda_module module;
    char given[32] = "0123456789", seen[32] = "";
    ck_assert_uint_eq(other.cuCtxGetDevice(&which), CUDA_SUCCESS);
    ck_assert_int_eq(which, 0);
    CALL(cuMemAlloc(&memory, 16));
    ck_assert_uint_eq(other.cuMemcpyHtoD(memory, given, 16), CUDA_SUCCESS);
    ck_assert_uint_eq(other.cuMemsetD8(memory + 2, 'x', 3), CUDA_SUCCESS);
    ck_assert_uint_eq(other.cuMemcpyDtoH(seen, memory, 16), CUDA_SUCCESS);
    ck_assert_str_eq(seen, "01xxx56789");
    ck_assert_uint_eq(other.cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CALL(cuModuleUnload(module));
    ck_assert_uint_eq(fake.num_calls("cuMemcpyHtoD"), 1);
    ck_assert_uint_eq(other.cuMemcpyHtoD(memory, given, 17), CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert_uint_eq(other.cuMemcpyDtoH(seen, memory, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    tear_down();
}

TEST_OF(fake, test_overruns)
{
    static const int64_t offsets[] = {-1, 64};
    for (int i = 0; i < 2; i++) {
        struct fake_cuda_counters counters;
        cuda_pointer memory;
        void *pinned;
        set_up();
        CALL(cuMemHostAlloc(&pinned, 64, CUDA_HOST_ALLOC_PORTABLE));
        ((volatile char *)pinned)[offsets[i]] = 0;
        CALL(cuMemFreeHost(pinned));
        fake.get_counters(&counters);
        ck_assert_uint_eq(counters.overruns, 1);
        ck_assert_str_eq(fake.first_fault(), "64 bytes of pinned memory were overrun");
        CALL(cuMemAlloc(&memory, 64));
        CALL(cuMemsetD8Async((cuda_pointer)((int64_t)memory + offsets[i]), 0, 1, NULL));
        GIVES(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
        tear_down();
    }
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* Host functions append a letter each. */
static char log_text[64];
static atomic_int log_length;

static void append_letter(void *letter)
{
    log_text[atomic_fetch_add(&log_length, 1)] = *(const char *)letter;
}

static void say(cuda_stream stream, const char *letter)
{
    CALL(cuLaunchHostFunc(stream, append_letter, (void *)(uintptr_t)letter));
}

static void assert_said(const char *text)
{
    CALL(cuCtxSynchronize());
    log_text[atomic_load(&log_length)] = '\0';
    ck_assert_str_eq(log_text, text);
    atomic_store(&log_length, 0);
}

/* The legacy stream waits for the blocking ones and they for it; the others do not care. */
TEST_OF(fake, test_legacy_stream)
{
    set_up();
    cuda_stream blocking, free_stream;
    CALL(cuStreamCreate(&blocking, 0));
    CALL(cuStreamCreate(&free_stream, CUDA_STREAM_NON_BLOCKING));
    fake.hold(blocking, 1);
    say(blocking, "a");
    say(NULL, "b");
    say(blocking, "c");
    say(free_stream, "x");
    CALL(cuStreamSynchronize(free_stream));
    ck_assert_int_eq(atomic_load(&log_length), 1);
    fake.hold(blocking, 0);
    assert_said("xabc");
    tear_down();
}

/* A capture over two streams, joined by events, runs in an order that respects them. */
TEST_OF(fake, test_capture_two_streams)
{
    set_up();
    cuda_stream one, two;
    cuda_event forked, joined;
    cuda_graph graph;
    cuda_exec exec;
    size_t count;
    CALL(cuStreamCreate(&one, CUDA_STREAM_NON_BLOCKING));
    CALL(cuStreamCreate(&two, CUDA_STREAM_NON_BLOCKING));
    CALL(cuEventCreate(&forked, CUDA_EVENT_DISABLE_TIMING));
    CALL(cuEventCreate(&joined, CUDA_EVENT_DISABLE_TIMING));
    for (int join = 0; join < 2; join++) {
        CALL(cuStreamBeginCapture(one, CUDA_CAPTURE_GLOBAL));
        say(one, "a");
        CALL(cuEventRecord(forked, one));
        CALL(cuStreamWaitEvent(two, forked, 0));
        say(two, "b");
        CALL(cuEventRecord(joined, two));
        if (join)
            CALL(cuStreamWaitEvent(one, joined, 0));
        say(one, "c");
        GIVES(cuStreamEndCapture(one, &graph),
              join ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    }
    CALL(cuGraphGetNodes(graph, NULL, &count));
    ck_assert_uint_eq(count, 3);
    CALL(cuGraphInstantiate(&exec, graph, 0));
    CALL(cuGraphDestroy(graph));
    ck_assert_int_eq(atomic_load(&log_length), 0);
    CALL(cuGraphLaunch(exec, one));
    CALL(cuGraphLaunch(exec, two));
    CALL(cuGraphExecDestroy(exec));
    assert_said("abcabc");
    tear_down();
}

static void *allocate_elsewhere(void *result)
{
    cuda_pointer memory;
    CALL(cuCtxSetCurrent(context));
    *(cuda_result *)result = driver.cuMemAlloc(&memory, 1);
    return NULL;
}

/* An allocation in another thread spoils a global capture, none of its thread's own. */
TEST_OF(fake, test_capture_modes)
{
    for (unsigned int mode = 0; mode < 3; mode++) {
        cuda_stream stream;
        cuda_graph graph;
        cuda_result elsewhere = 4711;
        pthread_t thread;
        unsigned int status;
        int spoils = mode == CUDA_CAPTURE_GLOBAL;
        set_up();
        CALL(cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING));
        CALL(cuStreamBeginCapture(stream, mode));
        ck_assert_int_eq(pthread_create(&thread, NULL, allocate_elsewhere, &elsewhere), 0);
        pthread_join(thread, NULL);
        ck_assert_uint_eq(elsewhere, spoils ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : 0);
        CALL(cuStreamIsCapturing(stream, &status));
        ck_assert_uint_eq(status,
                          spoils ? CUDA_CAPTURE_STATUS_INVALIDATED : CUDA_CAPTURE_STATUS_ACTIVE);
        GIVES(cuStreamEndCapture(stream, &graph),
              spoils ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
        CALL(cuStreamIsCapturing(stream, &status));
        ck_assert_uint_eq(status, CUDA_CAPTURE_STATUS_NONE);
        tear_down();
    }
}

TEST_OF(fake, test_capture_isolation)
{
    set_up();
    cuda_stream one, two;
    cuda_event event;
    cuda_graph graph;
    CALL(cuStreamCreate(&one, CUDA_STREAM_NON_BLOCKING));
    CALL(cuStreamCreate(&two, 0));
    CALL(cuEventCreate(&event, 0));
    GIVES(cuStreamBeginCapture(NULL, CUDA_CAPTURE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CALL(cuEventRecord(event, two));
    CALL(cuStreamBeginCapture(one, CUDA_CAPTURE_RELAXED));
    GIVES(cuStreamWaitEvent(one, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    GIVES(cuStreamEndCapture(one, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CALL(cuStreamBeginCapture(two, CUDA_CAPTURE_RELAXED));
    GIVES(cuMemcpyAsync((cuda_pointer)(uintptr_t)&one, (cuda_pointer)(uintptr_t)&two, 1, NULL),
          CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    GIVES(cuStreamEndCapture(two, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CALL(cuStreamBeginCapture(one, CUDA_CAPTURE_RELAXED));
    CALL(cuEventRecord(event, one));
    GIVES(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    CALL(cuStreamEndCapture(one, &graph));
    tear_down();
}

/* ---- Suite ----------------------------------------------------------------------------------- */

TESTS("cuda_driver");
