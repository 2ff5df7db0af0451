/* SPDX-License-Identifier: Apache-2.0
 *
 * shim_test.h: a device of the fake CUDA driver, as the tests of the benchmarks' shims use it.
 */
#ifndef SHIM_TEST_H
#define SHIM_TEST_H

#include "host/base/error.h"
#include "host/device/device.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/tools/test_main.h"

static struct device *device;
static attn_stream stream;
static host_error error;

#define GOOD(call)                                                                                 \
    ck_assert_msg((call) == ATTN_OK, "%s %s", host_error_text(&error), fake.first_fault())

static inline void open_device(void)
{
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
    GOOD(device_stream_create(device, &stream, &error.base));
}

static inline void tear_down(void)
{
    device_stream_destroy(device, stream);
    device_close(device);
    assert_nothing_left();
    assert_clean();
    fake.reset();
}

static inline void *upload(const void *from, size_t bytes)
{
    void *to = device_allocate(device, ATTN_SPACE_DEVICE, bytes, 256);
    ck_assert_ptr_nonnull(to);
    GOOD(device_copy(device, to, from, bytes, stream, &error.base));
    return to;
}

static inline void download(void *to, const void *from, size_t bytes)
{
    GOOD(device_copy(device, to, from, bytes, stream, &error.base));
    GOOD(device_synchronize(device, stream, &error.base));
}

#endif /* SHIM_TEST_H */
