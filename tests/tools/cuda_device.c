/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_device.c: a GPU with red zones around its memory.
 */
#include "tests/tools/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void test_bail_out(const char *what, const char *why)
{
    printf("Bail out! %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

void cuda_must(const cuda_device *cuda, int result, const char *what)
{
    const char *name = NULL;
    if (result == CUDA_OK)
        return;
    if (cuda->api->cuGetErrorName(result, &name) != CUDA_OK || !name)
        name = "unknown error";
    test_bail_out(what, name);
}

int cuda_device_open(cuda_device *cuda)
{
    attn_error error = {
        .struct_size = sizeof error, .capacity = sizeof cuda->why, .message = cuda->why};
    cuda_context context;
    int ordinal, major, minor, sms, shared;
    memset(cuda, 0, sizeof *cuda);
    if (cuda_api_get(&cuda->api, &error) != ATTN_OK)
        return 0;
    if (cuda->api->cuDeviceGet(&ordinal, 0) != CUDA_OK) {
        snprintf(cuda->why, sizeof cuda->why, "no CUDA device");
        return 0;
    }
    cuda_must(cuda, cuda->api->cuDevicePrimaryCtxRetain(&context, ordinal), "retain");
    cuda_must(cuda, cuda->api->cuCtxSetCurrent(context), "cuCtxSetCurrent");
    cuda_must(cuda, cuda->api->cuDeviceGetAttribute(&major, CUDA_DEVICE_MAJOR, ordinal), "major");
    cuda_must(cuda, cuda->api->cuDeviceGetAttribute(&minor, CUDA_DEVICE_MINOR, ordinal), "minor");
    cuda_must(cuda, cuda->api->cuDeviceGetAttribute(&sms, CUDA_DEVICE_MULTIPROCESSORS, ordinal),
              "multiprocessors");
    cuda_must(cuda,
              cuda->api->cuDeviceGetAttribute(&shared, CUDA_DEVICE_SHARED_MEMORY_OPTIN, ordinal),
              "shared memory");
    cuda->device = (attn_device){.struct_size = sizeof cuda->device,
                                 .type = ATTN_DEVICE_CUDA,
                                 .sm = (uint32_t)(major * 10 + minor),
                                 .num_sms = (uint32_t)sms,
                                 .shared_memory = (uint32_t)shared};
    printf("# sm_%u, %d multiprocessors\n", cuda->device.sm, sms);
    return 1;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

int cuda_try_take(const cuda_device *cuda, size_t bytes, red_buffer *buffer)
{
    cuda_address base;
    if (cuda->api->cuMemAlloc_v2(&base, bytes + 2 * (size_t)RED_ZONE) != CUDA_OK)
        return 0;
    *buffer = (red_buffer){.at = base + RED_ZONE, .bytes = bytes};
    cuda_must(cuda, cuda->api->cuMemsetD8_v2(base, RED, RED_ZONE), "cuMemsetD8");
    cuda_must(cuda, cuda->api->cuMemsetD8_v2(base + RED_ZONE + bytes, RED, RED_ZONE), "cuMemsetD8");
    cuda_poison(cuda, buffer);
    return 1;
}

red_buffer cuda_take(const cuda_device *cuda, size_t bytes)
{
    red_buffer buffer;
    if (!cuda_try_take(cuda, bytes, &buffer))
        test_bail_out("cuMemAlloc", "no memory");
    return buffer;
}

void cuda_give(const cuda_device *cuda, red_buffer *buffer)
{
    if (buffer->at)
        cuda_must(cuda, cuda->api->cuMemFree_v2(buffer->at - RED_ZONE), "cuMemFree");
    *buffer = (red_buffer){0};
}

static size_t count_hits(const cuda_device *cuda, cuda_address from)
{
    static unsigned char zone[RED_ZONE];
    size_t hits = 0;
    cuda_must(cuda, cuda->api->cuMemcpyDtoH_v2(zone, from, RED_ZONE), "cuMemcpyDtoH");
    for (size_t i = 0; i < RED_ZONE; i++)
        hits += zone[i] != RED;
    return hits;
}

size_t cuda_red_zones_hit(const cuda_device *cuda, const red_buffer *buffer)
{
    return count_hits(cuda, buffer->at - RED_ZONE) + count_hits(cuda, buffer->at + buffer->bytes);
}

void cuda_poison(const cuda_device *cuda, const red_buffer *buffer)
{
    if (buffer->bytes)
        cuda_must(cuda, cuda->api->cuMemsetD8_v2(buffer->at, POISON, buffer->bytes), "cuMemsetD8");
}

void cuda_upload(const cuda_device *cuda, const red_buffer *to, size_t at, const void *from,
                 size_t bytes)
{
    if (at + bytes > to->bytes)
        test_bail_out("upload", "beyond the buffer");
    if (bytes)
        cuda_must(cuda, cuda->api->cuMemcpyHtoD_v2(to->at + at, from, bytes), "cuMemcpyHtoD");
}

void cuda_download(const cuda_device *cuda, const red_buffer *from, size_t at, void *to,
                   size_t bytes)
{
    if (at + bytes > from->bytes)
        test_bail_out("download", "beyond the buffer");
    if (bytes)
        cuda_must(cuda, cuda->api->cuMemcpyDtoH_v2(to, from->at + at, bytes), "cuMemcpyDtoH");
}
