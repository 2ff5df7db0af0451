/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.c: the processor as a device. All spaces are host memory; a stream is NULL, every call
 * is done when it returns, and there are no graphs and no modules of kernels.
 */
#include "host/device/device.h"

#include "host/base/clock.h"
#include "host/base/error.h"
#include "host/base/limits.h"
#include "host/base/text.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* The state components that the operating system saves (Intel SDM volume 1, 13.3). */
enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_AMX = 0x60000 };

static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int saves(uint64_t state, uint64_t components)
{
    return (state & components) == components;
}

static int has_bits(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

/* Bits of Intel SDM volume 2, CPUID, and of cpuid.h. */
static uint32_t cpu_isa(void)
{
    const uint32_t osxsave = 1u << 27, fma = 1u << 12, f16c = 1u << 29;
    const uint32_t avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    uint32_t a, b, c, d, leaf1_c, isa = 0;
    if (!__get_cpuid(1, &a, &b, &leaf1_c, &d) || !has_bits(leaf1_c, osxsave))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    uint64_t state = saved_state();
    uint32_t max_subleaf = a, leaf7_b = b, leaf7_d = d;
    if (saves(state, STATE_AVX) && has_bits(leaf1_c, fma | f16c) && has_bits(leaf7_b, avx2))
        isa |= ATTN_CPU_AVX2;
    if (isa && saves(state, STATE_AVX512) && has_bits(leaf7_b, avx512))
        isa |= ATTN_CPU_AVX512;
    if (saves(state, STATE_AMX) && has_bits(leaf7_d, 1u << 22 | 1u << 24))
        isa |= ATTN_CPU_AMX_BF16;
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && isa & ATTN_CPU_AVX512 &&
        has_bits(a, 1u << 5))
        isa |= ATTN_CPU_AVX512BF16;
    return isa;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static uint32_t cpu_isa(void)
{
    const unsigned long hwcap_sve = 1ul << 22;
    return ATTN_CPU_NEON | (getauxval(AT_HWCAP) & hwcap_sve ? (uint32_t)ATTN_CPU_SVE : 0u);
}
#else
static uint32_t cpu_isa(void)
{
    return 0;
}
#endif

static uint64_t positive(long value)
{
    return value > 0 ? (uint64_t)value : 0;
}

/* "32768K" in the largest index that Linux lists. sysconf(), which asks the processor, is the
 * fallback: on some virtual machines it counts the caches of other machines, too. */
static uint64_t last_level_cache(void)
{
    char path[64], text[32];
    uint64_t bytes = 0;
    for (int index = 0; index < 8; index++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        int descriptor = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
        if (descriptor < 0)
            break;
        close(descriptor);
        text[size > 0 ? size : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        uint64_t listed = 0;
        if (text_parse_size(text, &listed) && listed > bytes)
            bytes = listed;
    }
#ifdef _SC_LEVEL3_CACHE_SIZE
    if (bytes == 0)
        bytes = positive(sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
    return bytes;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status cpu_describe(attn_device *info, attn_error *error)
{
    if (info->id != 0)
        return host_fail(error, ATTN_DEPENDENCY_MISSING, "device: cpu:%d: accepted: cpu:0",
                         info->id);
    info->cpu_isa = cpu_isa();
    info->memory_bytes = positive(sysconf(_SC_PHYS_PAGES)) * positive(sysconf(_SC_PAGESIZE));
    info->l2_bytes = last_level_cache();
    return ATTN_OK;
}

/* The first "model name", as Linux reports it. No memory is taken, so that the name does not depend
 * on there being some. */
static void cpu_identify(const attn_device *info, struct device_names *names)
{
    static const char key[] = "\nmodel name";
    char text[4096];
    int descriptor = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    ssize_t size = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    (void)info;
    if (descriptor >= 0)
        close(descriptor);
    text[size > 0 ? size : 0] = '\0';
    const char *line = strstr(text, key), *colon = line ? strchr(line, ':') : NULL;
    if (!colon)
        return;
    const char *name = colon + 1 + strspn(colon + 1, " \t");
    snprintf(names->name, sizeof names->name, "%.*s", (int)strcspn(name, "\n"), name);
}

static attn_status cpu_open(struct device *device, attn_error *error)
{
    (void)device, (void)error;
    return ATTN_OK;
}

static void cpu_close(struct device *device)
{
    (void)device;
}

static int cpu_is_entered(const struct device *device)
{
    (void)device;
    return 1;
}

static attn_status cpu_enter(const struct device *device, attn_error *error)
{
    (void)device, (void)error;
    return ATTN_OK;
}

static void cpu_leave(const struct device *device)
{
    (void)device;
}

static int cpu_is_lost(const struct device *device)
{
    (void)device;
    return 0;
}

static attn_status cpu_reset(const struct device *device, attn_error *error)
{
    (void)device;
    return host_fail(error, ATTN_UNSUPPORTED, "device: the processor cannot be reset");
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *cpu_allocate(const struct device *device, uint32_t space, uint64_t size,
                          uint64_t alignment)
{
    (void)device;
    void *memory;
    if (space >= ATTN_SPACE_COUNT || size > SIZE_MAX / 2)
        return NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (posix_memalign(&memory, alignment, size ? size : 1) != 0)
        return NULL;
    return memory;
}

static void cpu_release(const struct device *device, uint32_t space, void *memory)
{
    (void)device, (void)space;
    free(memory);
}

/* Bytes that a limit of the process (ulimit -v, -d) leaves beyond `used` pages. */
static uint64_t left_by_limit(int limit, uint64_t used)
{
    struct rlimit limits;
    if (getrlimit(limit, &limits) != 0 || limits.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    used *= positive(sysconf(_SC_PAGESIZE));
    return limits.rlim_cur > used ? limits.rlim_cur - used : 0;
}

/* Memory that the limits of the process leave. */
static uint64_t left_by_limits(void)
{
    unsigned long long size = 0, data = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%llu %*u %*u %*u %*u %llu", &size, &data) != 2)
        size = data = 0;
    if (file)
        fclose(file);
    uint64_t space = left_by_limit(RLIMIT_AS, size), heap = left_by_limit(RLIMIT_DATA, data);
    return space < heap ? space : heap;
}

static attn_status cpu_memory(const struct device *device, uint64_t *free_bytes,
                              uint64_t *total_bytes, attn_error *error)
{
    (void)error;
    const uint64_t left[] = {limits_machine_memory("/proc/meminfo"),
                             limits_memory("/proc/self/cgroup", "/sys/fs/cgroup"), left_by_limits(),
                             device->info.memory_bytes};
    *free_bytes = UINT64_MAX;
    for (size_t n = 0; n < sizeof left / sizeof *left; n++)
        *free_bytes = left[n] < *free_bytes ? left[n] : *free_bytes;
    *total_bytes = device->info.memory_bytes;
    return ATTN_OK;
}

static attn_status cpu_fill(const struct device *device, void *memory, int byte, uint64_t size,
                            attn_stream stream, attn_error *error)
{
    (void)device, (void)stream, (void)error;
    memset(memory, byte, size);
    return ATTN_OK;
}

static attn_status cpu_copy(const struct device *device, void *to, const void *from, uint64_t size,
                            attn_stream stream, attn_error *error)
{
    (void)device, (void)stream, (void)error;
    memcpy(to, from, size);
    return ATTN_OK;
}

/* ---- Streams and events ---------------------------------------------------------------------- */

struct device_event {
    int timed;
    int64_t passed_ns; /* by the monotonic clock; 0 = never recorded */
};

static attn_status cpu_synchronize(const struct device *device, attn_stream stream,
                                   attn_error *error)
{
    (void)device, (void)stream, (void)error;
    return ATTN_OK;
}

static attn_status cpu_stream_create(const struct device *device, attn_stream *stream,
                                     attn_error *error)
{
    (void)device, (void)error;
    *stream = NULL;
    return ATTN_OK;
}

static void cpu_stream_destroy(const struct device *device, attn_stream stream)
{
    (void)device, (void)stream;
}

static attn_status cpu_event_create(const struct device *device, int timed,
                                    struct device_event **event, attn_error *error)
{
    (void)device;
    struct device_event *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "cpu: no memory for an event");
    made->timed = timed;
    *event = made;
    return ATTN_OK;
}

static void cpu_event_destroy(const struct device *device, struct device_event *event)
{
    (void)device;
    free(event);
}

static attn_status cpu_event_record(const struct device *device, struct device_event *event,
                                    attn_stream stream, attn_error *error)
{
    (void)device, (void)stream, (void)error;
    event->passed_ns = clock_now_ns();
    return ATTN_OK;
}

static attn_status cpu_event_query(const struct device *device, struct device_event *event,
                                   int *done, attn_error *error)
{
    (void)device, (void)event, (void)error;
    *done = 1;
    return ATTN_OK;
}

static attn_status cpu_event_synchronize(const struct device *device, struct device_event *event,
                                         attn_error *error)
{
    (void)device, (void)event, (void)error;
    return ATTN_OK;
}

static attn_status cpu_event_elapsed(const struct device *device, struct device_event *start,
                                     struct device_event *end, double *microseconds,
                                     attn_error *error)
{
    (void)device;
    if (!start->timed || !end->timed)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "cpu: the event is not timed");
    if (start->passed_ns == 0 || end->passed_ns == 0)
        return host_fail(error, ATTN_BAD_STATE, "cpu: the event was never recorded");
    *microseconds = (double)(end->passed_ns - start->passed_ns) / 1e3;
    return ATTN_OK;
}

static attn_status cpu_stream_wait(const struct device *device, attn_stream stream,
                                   struct device_event *event, attn_error *error)
{
    (void)device, (void)stream, (void)event, (void)error;
    return ATTN_OK;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

static attn_status fail_graph(attn_error *error)
{
    return host_fail(error, ATTN_CAPTURE_UNSUPPORTED, "cpu: there are no graphs; accepted: cuda");
}

static attn_status cpu_capture_begin(const struct device *device, attn_stream stream,
                                     attn_error *error)
{
    (void)device, (void)stream;
    return fail_graph(error);
}

static attn_status cpu_capture_end(const struct device *device, attn_stream stream,
                                   struct device_graph **graph, attn_error *error)
{
    (void)device, (void)stream, (void)graph;
    return fail_graph(error);
}

static attn_status cpu_graph_launch(const struct device *device, const struct device_graph *graph,
                                    attn_stream stream, attn_error *error)
{
    (void)device, (void)graph, (void)stream;
    return fail_graph(error);
}

static uint64_t cpu_graph_num_nodes(const struct device_graph *graph)
{
    (void)graph;
    return 0;
}

static void cpu_graph_destroy(const struct device *device, struct device_graph *graph)
{
    (void)device, (void)graph;
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static attn_status fail_module(attn_error *error)
{
    return host_fail(error, ATTN_UNSUPPORTED,
                     "cpu: there are no modules of kernels; accepted: cuda");
}

static attn_status cpu_module_load(const struct device *device, const void *image, uint64_t size,
                                   const char *what, struct device_module **module,
                                   attn_error *error)
{
    (void)device, (void)image, (void)size, (void)what, (void)module;
    return fail_module(error);
}

static void cpu_module_unload(const struct device *device, struct device_module *module)
{
    (void)device, (void)module;
}

static attn_status cpu_function(const struct device *device, struct device_module *module,
                                const char *name, struct device_function **function,
                                attn_error *error)
{
    (void)device, (void)module, (void)name, (void)function;
    return fail_module(error);
}

static attn_status cpu_launch(const struct device *device, struct device_function *function,
                              const uint32_t grid[3], const uint32_t block[3], void **arguments,
                              attn_stream stream, attn_error *error)
{
    (void)device, (void)function, (void)grid, (void)block, (void)arguments, (void)stream;
    return fail_module(error);
}

const struct device_ops device_cpu = {
    .type = ATTN_DEVICE_CPU,
    .describe = cpu_describe,
    .identify = cpu_identify,
    .open = cpu_open,
    .close = cpu_close,
    .is_entered = cpu_is_entered,
    .enter = cpu_enter,
    .leave = cpu_leave,
    .is_lost = cpu_is_lost,
    .reset = cpu_reset,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .memory = cpu_memory,
    .fill = cpu_fill,
    .copy = cpu_copy,
    .synchronize = cpu_synchronize,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_query = cpu_event_query,
    .event_synchronize = cpu_event_synchronize,
    .event_elapsed = cpu_event_elapsed,
    .stream_wait = cpu_stream_wait,
    .capture_begin = cpu_capture_begin,
    .capture_end = cpu_capture_end,
    .graph_launch = cpu_graph_launch,
    .graph_num_nodes = cpu_graph_num_nodes,
    .graph_destroy = cpu_graph_destroy,
    .module_load = cpu_module_load,
    .module_unload = cpu_module_unload,
    .function = cpu_function,
    .launch = cpu_launch,
};
