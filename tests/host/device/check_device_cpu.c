/* SPDX-License-Identifier: Apache-2.0
 *
 * check_device_cpu.c: the processor in the host's table of devices: streams and events that are
 * done at once, and what it does not have. */
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host/device/device.h"
#include "host/base/error.h"
#include "tests/tools/test_main.h"

static struct device *device;
static host_error error;

#define GOOD(call)          ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))
#define FAILS(call, status) ck_assert_int_eq(call, status)

static void set_up(void)
{
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CPU, 0, &device, &error.base));
    GOOD(device_enter(device, &error.base));
}

static void tear_down(void)
{
    device_leave(device);
    device_close(device);
}

TEST_OF(core, events_are_done_at_once)
{
    struct device_event *start, *end;
    attn_stream stream = &stream;
    int done = 0;
    double us = -1;
    GOOD(device_stream_create(device, &stream, &error.base));
    ck_assert_ptr_null(stream);
    GOOD(device_event_create(device, 1, &start, &error.base));
    GOOD(device_event_create(device, 1, &end, &error.base));
    FAILS(device_event_elapsed(device, start, end, &us, &error.base), ATTN_BAD_STATE);
    GOOD(device_event_record(device, start, stream, &error.base));
    GOOD(device_stream_wait(device, stream, start, &error.base));
    GOOD(device_event_record(device, end, stream, &error.base));
    GOOD(device_event_query(device, end, &done, &error.base));
    GOOD(device_event_synchronize(device, end, &error.base));
    GOOD(device_event_elapsed(device, start, end, &us, &error.base));
    ck_assert(done == 1 && us >= 0);
    device_event_destroy(device, start);
    device_event_destroy(device, end);
    device_stream_destroy(device, stream);
}

TEST_OF(core, memory_is_told)
{
    uint64_t available, total;
    GOOD(device_memory(device, &available, &total, &error.base));
    ck_assert(available > 0 && available <= total && total == device->info.memory_bytes);
}

/* Bytes that the process has: of its address space (member 0 of statm), of data (5). */
static uint64_t process_bytes(int member)
{
    unsigned long long pages[6];
    FILE *file = fopen("/proc/self/statm", "re");
    ck_assert_ptr_nonnull(file);
    for (int n = 0; n < 6; n++)
        ck_assert_int_eq(fscanf(file, "%llu", &pages[n]), 1);
    fclose(file);
    return pages[member] * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* What is free is no more than the process may have (ulimit -v, -d): all of it can be allocated, but for what the
 * allocator needs. A limit is 512 MiB more than the process has: under a sanitizer, that is terabytes. */
TEST_OF(core, memory_that_the_process_may_have)
{
    static const struct {
        int limit, member;
    } kinds[] = {{RLIMIT_AS, 0}, {RLIMIT_DATA, 5}};
    const uint64_t more = 512 << 20, slack = 64 << 20;
    for (int n = 0; n < 2; n++) {
        struct rlimit before, lower;
        uint64_t available, total;
        ck_assert_int_eq(getrlimit(kinds[n].limit, &before), 0);
        lower = (struct rlimit){process_bytes(kinds[n].member) + more, before.rlim_max};
        ck_assert_int_eq(setrlimit(kinds[n].limit, &lower), 0);
        GOOD(device_memory(device, &available, &total, &error.base));
        ck_assert_uint_le(available, more);
        ck_assert_uint_gt(available, more - slack);
        void *memory = device_allocate(device, ATTN_SPACE_DEVICE, available - slack, 64);
        ck_assert_ptr_nonnull(memory);
        device_release(device, ATTN_SPACE_DEVICE, memory);
        ck_assert_int_eq(setrlimit(kinds[n].limit, &before), 0);
    }
}

/* Graphs, modules of kernels, a reset. What was asked for is not touched. */
TEST_OF(core, what_it_does_not_have)
{
    static const uint32_t one[3] = {1, 1, 1};
    struct device_graph *graph = NULL;
    struct device_module *module = NULL;
    struct device_function *function = NULL;
    int argument = 1;
    void *arguments[] = {&argument};
    FAILS(device_capture_begin(device, NULL, &error.base), ATTN_CAPTURE_UNSUPPORTED);
    FAILS(device_capture_end(device, NULL, &graph, &error.base), ATTN_CAPTURE_UNSUPPORTED);
    FAILS(device_reset(device, &error.base), ATTN_UNSUPPORTED);
    FAILS(device_module_load(device, "", 0, "kernels", &module, &error.base), ATTN_UNSUPPORTED);
    FAILS(device_function(device, NULL, "raise", &function, &error.base), ATTN_UNSUPPORTED);
    FAILS(device_launch(device, NULL, one, one, arguments, NULL, &error.base), ATTN_UNSUPPORTED);
    ck_assert_str_eq(host_error_text(&error),
                     "cpu: there are no modules of kernels; accepted: cuda");
    device_module_unload(device, NULL);
    ck_assert(!device_is_lost(device) && !graph && !module && !function && argument == 1);
}

TEST_OF(core, there_is_one)
{
    struct device *second = NULL;
    FAILS(device_open(ATTN_DEVICE_CPU, 1, &second, &error.base), ATTN_DEPENDENCY_MISSING);
}

GROUP(core, .set_up = set_up, .tear_down = tear_down);
TESTS("device_cpu");
