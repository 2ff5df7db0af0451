/* SPDX-License-Identifier: Apache-2.0
 *
 * check_spy_cuda.c: the spy on the CUDA driver: everyone who opens the driver gets it, it has what
 * the driver has, passes calls on, and notes the right ones. */
#include "tests/host/check/cuda_checks_fixture.h"

#include <sys/wait.h>

static struct spy_cuda spy;

/* What a plugin gets. */
static void *open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    return library;
}

#define CALL(library, name, to)                                                                    \
    do {                                                                                           \
        void *symbol = dlsym(library, name);                                                       \
        ck_assert_msg(symbol != NULL, "%s", name);                                                 \
        memcpy(&(to), &symbol, sizeof symbol);                                                     \
    } while (0)

static const struct spy_record *records;

static uint32_t stop(void)
{
    spy.end();
    return spy.records(&records);
}

/* ---- On the fake ----------------------------------------------------------------------------- */

static struct cuda_driver driver; /* through the spy */
static cuda_context context;

static void set_up(void)
{
    char path[4096], why[160];
    use_spy_on_fake();
    ck_assert_msg(spy_find(&spy, why, sizeof why), "%s", why);
    spy_path(path);
    GOOD(cuda_driver_init(&driver, path, &failure.base));
    ck_assert_uint_eq(driver.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static void tear_down(void)
{
    driver.cuDevicePrimaryCtxRelease(0);
    assert_nothing_left();
}

TEST_OF(calls, is_the_driver)
{
    unsigned int (*allocate)(cuda_pointer *, size_t), (*release)(cuda_pointer);
    cuda_pointer memory = 0;
    void *library = open_driver();
    ck_assert_ptr_nonnull(dlsym(library, "spy_cuda_begin"));
    CALL(library, "cuMemAlloc_v2", allocate);
    CALL(library, "cuMemFree_v2", release);
    uint64_t before = fake.num_calls("cuMemAlloc");
    ck_assert_uint_eq(allocate(&memory, 100), CUDA_SUCCESS);
    ck_assert_uint_ne(memory, 0);
    ck_assert_uint_eq(fake.num_calls("cuMemAlloc"), before + 1);
    ck_assert_uint_eq(release(memory), CUDA_SUCCESS);
}

/* The fake lacks most of the driver's calls: so does the spy. Those that are not noted are the
 * driver's own. */
TEST_OF(calls, has_what_the_driver_has)
{
    char path[4096];
    void *library = open_driver();
    fixture_path("fake_cuda.so", path);
    void *real = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_ptr_null(dlsym(library, "cuMemAllocAsync"));
    ck_assert_ptr_null(dlsym(library, "cuTensorMapEncodeIm2col"));
    ck_assert_ptr_null(dlsym(library, "cuGetProcAddress_v2"));
    ck_assert_ptr_eq(dlsym(library, "cuDeviceGetCount"), dlsym(real, "cuDeviceGetCount"));
    ck_assert_ptr_ne(dlsym(library, "cuMemAlloc_v2"), dlsym(real, "cuMemAlloc_v2"));
#define SAME(name, symbol, parameters)                                                             \
    ck_assert_msg(!dlsym(library, #symbol) == !dlsym(real, #symbol), #symbol);
    CUDA_DRIVER_CALLS(SAME)
    FAKE_CUDA_OTHER_CALLS(SAME)
#undef SAME
}

TEST_OF(calls, notes_while_it_watches)
{
    cuda_stream stream;
    cuda_event event;
    ck_assert_uint_eq(driver.cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    spy.begin();
    ck_assert_uint_eq(driver.cuEventCreate(&event, 0), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuEventRecord(event, stream), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuStreamWaitEvent(NULL, event, 0), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuStreamSynchronize(stream), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuEventSynchronize(NULL), CUDA_ERROR_INVALID_HANDLE);
    ck_assert_uint_eq(stop(), 5);
    ck_assert_uint_eq(driver.cuEventDestroy(event), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuStreamDestroy(stream), CUDA_SUCCESS);
    ck_assert_uint_eq(spy.records(&records), 5);
    ck_assert_uint_eq(records[0].kind, SPY_OBJECT);
    ck_assert_str_eq(records[0].call, "cuEventCreate");
    ck_assert_uint_eq(records[1].kind, SPY_RECORD);
    ck_assert_ptr_eq(records[1].stream, stream);
    ck_assert_ptr_eq(records[1].event, event);
    ck_assert_uint_eq(records[2].kind, SPY_WAIT);
    ck_assert_ptr_eq(records[2].stream, SPY_LEGACY_STREAM);
    ck_assert_uint_eq(records[3].kind, SPY_SYNCHRONIZE);
    ck_assert_int_eq(records[3].result, CUDA_SUCCESS);
    ck_assert_int_eq(records[4].result, CUDA_ERROR_INVALID_HANDLE);
}

/* Where a copy to the host goes to decides whether it waits. */
TEST_OF(calls, copies)
{
    cuda_pointer memory;
    void *pinned;
    char pageable[16];
    ck_assert_uint_eq(driver.cuMemAlloc(&memory, sizeof pageable), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuMemHostAlloc(&pinned, sizeof pageable, 0), CUDA_SUCCESS);
    spy.begin();
    cuda_pointer to[] = {(cuda_pointer)(uintptr_t)pageable, (cuda_pointer)(uintptr_t)pinned};
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(driver.cuMemcpyAsync(to[i], memory, sizeof pageable, NULL), CUDA_SUCCESS);
    ck_assert_uint_eq(
        driver.cuMemcpyAsync(memory, (cuda_pointer)(uintptr_t)pageable, sizeof pageable, NULL),
        CUDA_SUCCESS);
    ck_assert_uint_eq(stop(), 3);
    ck_assert_uint_eq(records[0].kind, SPY_COPY);
    ck_assert_uint_eq(records[1].kind, SPY_ENQUEUE);
    ck_assert_uint_eq(records[2].kind, SPY_ENQUEUE);
    ck_assert_uint_eq(records[2].bytes, sizeof pageable);
    ck_assert_uint_eq(driver.cuCtxSynchronize(), CUDA_SUCCESS);
    driver.cuMemFree(memory);
    driver.cuMemFreeHost(pinned);
}

static void nothing(const struct fake_cuda_launch *launch)
{
    (void)launch;
}

TEST_OF(calls, launches)
{
    cuda_module module;
    cuda_function function;
    cuda_stream stream;
    fake.define_kernel("nothing", nothing, NULL, 0, NULL);
    ck_assert_uint_eq(driver.cuModuleLoadDataEx(&module, "", 0, NULL, NULL), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuModuleGetFunction(&function, module, "nothing"), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    cuda_launch_config config = {.grid_x = 7,
                                 .grid_y = 8,
                                 .grid_z = 9,
                                 .block_x = 32,
                                 .block_y = 2,
                                 .block_z = 1,
                                 .stream = stream};
    spy.begin();
    ck_assert_uint_eq(driver.cuLaunchKernel(function, 1, 2, 3, 4, 5, 6, 64, stream, NULL, NULL),
                      CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuLaunchKernelEx(&config, function, NULL, NULL), CUDA_SUCCESS);
    ck_assert_uint_eq(stop(), 2);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(records[i].kind, SPY_ENQUEUE);
        ck_assert_ptr_eq(records[i].stream, stream);
        ck_assert_ptr_eq(records[i].function, function);
    }
    ck_assert_uint_eq(records[0].grid[2], 3);
    ck_assert_uint_eq(records[0].block[0], 4);
    ck_assert_uint_eq(records[0].shared_bytes, 64);
    ck_assert_uint_eq(records[1].grid[1], 8);
    ck_assert_uint_eq(records[1].block[1], 2);
    ck_assert_uint_eq(driver.cuStreamDestroy(stream), CUDA_SUCCESS);
    ck_assert_uint_eq(driver.cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_OF(calls, polling)
{
    cuda_stream streams[2];
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(driver.cuStreamCreate(&streams[i], CUDA_STREAM_NON_BLOCKING),
                          CUDA_SUCCESS);
    spy.begin();
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(driver.cuStreamQuery(streams[i / 50]), CUDA_SUCCESS);
    ck_assert_uint_eq(stop(), 2);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(records[i].kind, SPY_ASK);
        ck_assert_ptr_eq(records[i].stream, streams[i]);
        ck_assert_uint_eq(driver.cuStreamDestroy(streams[i]), CUDA_SUCCESS);
    }
}

/* More than there is room for: they are counted, and the first ones are there. */
TEST_OF(calls, overflows)
{
    spy.begin();
    for (int i = 0; i < SPY_MAX_RECORDS + 10; i++)
        ck_assert_uint_eq(driver.cuCtxSynchronize(), CUDA_SUCCESS);
    ck_assert_uint_eq(stop(), SPY_MAX_RECORDS + 10);
    ck_assert_str_eq(records[SPY_MAX_RECORDS - 1].call, "cuCtxSynchronize");
    spy.begin();
    ck_assert_uint_eq(stop(), 0);
}

/* ---- Installing ------------------------------------------------------------------------------ */

TEST_OF(installing, too_late)
{
    char path[4096], why[160];
    use_fake_cuda_in_plugins();
    host_error_init(&failure);
    spy_path(path);
    ck_assert_int_eq(spy_install(path, &failure.base), ATTN_BAD_STATE);
    ck_assert(!spy_find(&spy, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "before the spy"));
}

TEST_OF(installing, twice)
{
    char path[4096];
    use_spy_on_fake();
    spy_path(path);
    GOOD(spy_install(path, &failure.base));
}

TEST_OF(installing, not_there)
{
    char path[4096], why[160];
    use_fake_cuda();
    host_error_init(&failure);
    ck_assert_int_eq(spy_install("/nowhere/libcuda.so.1", &failure.base), ATTN_DEPENDENCY_MISSING);
    ck_assert(!spy_find(&spy, why, sizeof why));
    ck_assert_ptr_nonnull(strstr(why, "not installed"));
    fixture_path("fake_cuda.so", path);
    ck_assert_int_eq(spy_install(path, &failure.base), ATTN_DEPENDENCY_MISSING);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "not a spy"));
}

TEST_OF(installing, no_driver)
{
    char path[4096];
    spy_path(path);
    host_error_init(&failure);
    setenv("ATTNHOST_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    ck_assert_int_eq(spy_install(path, &failure.base), ATTN_DEPENDENCY_MISSING);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "/nowhere/libcuda.so.1"));
}

/* A new process gets the spy's file by this name, and finds the driver on its library path. */
static const char new_process[] = "ATTNHOST_TEST_SPY";

/* There: 0 = the spy is the driver, and passes calls on to the fake. Not a test of Check's. */
static int install_by_library_path(const char *file)
{
    if (spy_install(file, NULL) != ATTN_OK)
        return 1;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || !dlsym(library, "spy_cuda_begin") || !dlsym(library, "cuMemAlloc_v2"))
        return 2;
    return dlopen("fake_cuda.so", RTLD_NOW | RTLD_NOLOAD) ? 0 : 3;
}

TEST_OF(installing, as_the_loader_finds_it)
{
    char *const arguments[] = {(char *)(uintptr_t) "check_spy_cuda", NULL};
    char folder[4096], path[4096];
    int status = -1;
    fixture_path("", folder);
    spy_path(path);
    setenv(new_process, path, 1);
    setenv("LD_LIBRARY_PATH", folder, 1);
    unsetenv("ATTNHOST_LIBCUDA");
    pid_t child = fork();
    if (child == 0) {
        execv("/proc/self/exe", arguments);
        _exit(9);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

/* ---- Versions of calls ----------------------------------------------------------------------- */

typedef unsigned int (*get_v1)(const char *, void **, int, uint64_t);
typedef unsigned int (*get_v2)(const char *, void **, int, uint64_t, void *);

/* What the driver's call of this name and version returns, called through what the spy hands out;
 * `noted` says whether the spy saw it. */
static unsigned int call_version(get_v1 get, const char *name, int version, uint64_t flags,
                                 bool *noted)
{
    unsigned int (*function)(uint64_t, void *) = NULL;
    void *address = NULL;
    ck_assert_uint_eq(get(name, &address, version, flags), 0);
    memcpy(&function, &address, sizeof address);
    spy.begin();
    unsigned int result = function(1, NULL);
    *noted = stop() == 1;
    return result;
}

TEST_OF(installing, versions)
{
    static const struct {
        const char *name;
        int version;
        uint64_t flags;
        unsigned int result;
        bool noted;
    } calls[] = {
        {"cuMemFree", 12000, 0, 11, true},
        {"cuMemFree", 2000, 0, 10, false},
        {"cuMemFree", 12000, 2, 11, true},
        {"cuEventRecord", 12000, 0, 21, true},
        {"cuEventRecord", 12000, 1, 21, true},
        {"cuEventRecord", 12000, 2, 22, true},
        {"cuCtxSynchronize", 12080, 0, 31, true},
        {"cuCtxSynchronize", 13000, 0, 32, true},
        {"cuTensorMapEncodeTiled", 12000, 0, 41, false},
    };
    char path[4096], why[160];
    get_v1 get = NULL;
    bool noted;
    fixture_path("versioned_cuda.so", path);
    setenv("ATTNHOST_LIBCUDA", path, 1);
    spy_path(path);
    host_error_init(&failure);
    GOOD(spy_install(path, &failure.base));
    ck_assert(spy_find(&spy, why, sizeof why));
    void *library = open_driver(), *again = NULL, *none = NULL;
    CALL(library, "cuGetProcAddress", get);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        ck_assert_uint_eq(
            call_version(get, calls[i].name, calls[i].version, calls[i].flags, &noted),
            calls[i].result);
        ck_assert_msg(noted == calls[i].noted, "%s %d", calls[i].name, calls[i].version);
    }
    ck_assert_uint_eq(get("cuGetProcAddress", &again, 12000, 0), 0);
    ck_assert_ptr_eq(again, dlsym(library, "cuGetProcAddress_v2"));
    ck_assert_uint_eq(get("cuNoSuchCall", &none, 12000, 0), 500);
}

GROUP(calls, .set_up = set_up, .tear_down = tear_down);

int main(void)
{
    const char *spy_file = getenv(new_process);
    return spy_file ? install_by_library_path(spy_file) : test_main("spy_cuda");
}
