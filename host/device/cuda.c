/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.c: an NVIDIA GPU as a device, through the driver API and the device's primary
 * context. Its streams, events and graphs are in device/cuda_stream.c, its kernels in
 * device/cuda_module.c.
 *
 * Each call makes the context current for its own duration, so that it works in any thread and
 * restores that thread's context. Every result passes through cuda_note(), which records a lost
 * device: driver calls keep returning that error, but an allocation can only return NULL.
 */
#include "host/device/cuda.h"

#include "host/base/error.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Memory whose address was rounded up: what the driver gave is not what the caller has. */
struct rounded {
    struct rounded *next;
    void *given; /* by the driver */
    void *memory;
};

/* ---- Results --------------------------------------------------------------------------------- */

cuda_result cuda_note(struct cuda *cuda, cuda_result result)
{
    if (cuda_status(result) == ATTN_DEVICE_LOST)
        atomic_store(&cuda->lost, 1);
    return result;
}

attn_status cuda_check(struct cuda *cuda, cuda_result result, const char *call, attn_error *error)
{
    return cuda_fail(&cuda->driver, cuda_note(cuda, result), call, error, "cuda:%d", cuda->id);
}

cuda_result cuda_push(struct cuda *cuda)
{
    return cuda_note(cuda, cuda->driver.cuCtxPushCurrent(cuda->context));
}

void cuda_pop(struct cuda *cuda)
{
    cuda_context popped;
    cuda_note(cuda, cuda->driver.cuCtxPopCurrent(&popped));
}

static cuda_pointer pointer_of(const void *memory)
{
    return (cuda_pointer)(uintptr_t)memory;
}

/* ---- Description ----------------------------------------------------------------------------- */

struct attribute {
    unsigned int id;
    uint32_t *value;
};

static attn_status read_attributes(const struct cuda_driver *driver, cuda_device device,
                                   attn_device *info, attn_error *error)
{
    uint32_t major, minor, l2;
    const struct attribute attributes[] = {
        {CUDA_ATTRIBUTE_CC_MAJOR, &major},
        {CUDA_ATTRIBUTE_CC_MINOR, &minor},
        {CUDA_ATTRIBUTE_MULTIPROCESSORS, &info->num_sms},
        {CUDA_ATTRIBUTE_SHARED_OPTIN, &info->shared_memory},
        {CUDA_ATTRIBUTE_L2_BYTES, &l2},
    };
    for (size_t a = 0; a < sizeof attributes / sizeof *attributes; a++) {
        int value = 0;
        cuda_result result = driver->cuDeviceGetAttribute(&value, attributes[a].id, device);
        if (result != CUDA_SUCCESS)
            return cuda_fail(driver, result, "cuDeviceGetAttribute", error, "cuda:%d: attribute %u",
                             info->id, attributes[a].id);
        *attributes[a].value = value > 0 ? (uint32_t)value : 0;
    }
    size_t bytes = 0;
    cuda_result result = driver->cuDeviceTotalMem(&bytes, device);
    info->sm = 10 * major + minor;
    info->l2_bytes = l2;
    info->memory_bytes = bytes;
    info->driver_version = (uint32_t)driver->version;
    return cuda_fail(driver, result, "cuDeviceTotalMem", error, "cuda:%d", info->id);
}

static attn_status find_device(const struct cuda_driver *driver, int32_t id, cuda_device *device,
                               attn_error *error)
{
    int count = 0;
    cuda_result result = driver->cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        return cuda_fail(driver, result, "cuDeviceGetCount", error, "cuda:%d", id);
    if (count == 0)
        return host_fail(error, ATTN_DEPENDENCY_MISSING, "cuda:%d: there is no CUDA device here",
                         id);
    if (count == 1 && id != 0)
        return host_fail(error, ATTN_DEPENDENCY_MISSING, "cuda:%d: accepted: cuda:0", id);
    if (id < 0 || id >= count)
        return host_fail(error, ATTN_DEPENDENCY_MISSING, "cuda:%d: accepted: cuda:0 to cuda:%d", id,
                         count - 1);
    return cuda_fail(driver, driver->cuDeviceGet(device, id), "cuDeviceGet", error, "cuda:%d", id);
}

static attn_status cuda_describe(attn_device *info, attn_error *error)
{
    struct cuda_driver driver;
    cuda_device device;
    attn_status status = cuda_driver_init(&driver, NULL, error);
    if (status != ATTN_OK)
        return status;
    status = find_device(&driver, info->id, &device, error);
    if (status == ATTN_OK)
        status = read_attributes(&driver, device, info, error);
    cuda_driver_finish(&driver);
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status retain(struct cuda *cuda, attn_error *error)
{
    return cuda_check(cuda, cuda->driver.cuDevicePrimaryCtxRetain(&cuda->context, cuda->device),
                      "cuDevicePrimaryCtxRetain", error);
}

/* The module's version, as Linux reports it. */
static void read_driver(char *text, size_t size)
{
    int descriptor = open("/sys/module/nvidia/version", O_RDONLY | O_CLOEXEC);
    ssize_t length = descriptor < 0 ? 0 : read(descriptor, text, size - 1);
    text[length > 0 ? length : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (descriptor >= 0)
        close(descriptor);
}

static void cuda_identify(const attn_device *info, struct device_names *names)
{
    struct cuda_driver driver;
    cuda_device device;
    if (cuda_driver_init(&driver, NULL, NULL) != ATTN_OK)
        return;
    if (driver.cuDeviceGet(&device, info->id) != CUDA_SUCCESS ||
        driver.cuDeviceGetName(names->name, (int)sizeof names->name, device) != CUDA_SUCCESS)
        names->name[0] = '\0';
    cuda_driver_finish(&driver);
    read_driver(names->driver, sizeof names->driver);
}

static attn_status cuda_open(struct device *device, attn_error *error)
{
    struct cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "cuda:%d: out of memory", device->id);
    cuda->id = device->id;
    attn_status status = cuda_driver_init(&cuda->driver, NULL, error);
    if (status == ATTN_OK)
        status = find_device(&cuda->driver, device->id, &cuda->device, error);
    if (status == ATTN_OK)
        status = retain(cuda, error);
    if (status != ATTN_OK) {
        cuda_driver_finish(&cuda->driver);
        free(cuda);
        return status;
    }
    pthread_mutex_init(&cuda->lock, NULL);
    device->state = cuda;
    return ATTN_OK;
}

static void forget_rounded(struct cuda *cuda)
{
    while (cuda->rounded) {
        struct rounded *next = cuda->rounded->next;
        free(cuda->rounded);
        cuda->rounded = next;
    }
}

static void cuda_close(struct device *device)
{
    struct cuda *cuda = cuda_of(device);
    cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    forget_rounded(cuda);
    pthread_mutex_destroy(&cuda->lock);
    cuda_driver_finish(&cuda->driver);
    free(cuda);
}

static int cuda_is_entered(const struct device *device)
{
    struct cuda *cuda = cuda_of(device);
    cuda_context current;
    return cuda->driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == cuda->context;
}

static attn_status cuda_enter(const struct device *device, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    return cuda_check(cuda, cuda_push(cuda), "cuCtxPushCurrent", error);
}

static void cuda_leave(const struct device *device)
{
    cuda_pop(cuda_of(device));
}

static int cuda_is_lost(const struct device *device)
{
    return atomic_load(&cuda_of(device)->lost);
}

/* A reset destroys the contents of the context, but releases no reference to it: the reference of
 * this device stays, and is renewed so that the context is usable at once. The reset itself may
 * report the loss again; a call in the context shows whether it helped. */
static attn_status cuda_reset(const struct device *device, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result = cuda->driver.cuDevicePrimaryCtxReset(cuda->device);
    if (result != CUDA_SUCCESS && cuda_status(result) != ATTN_DEVICE_LOST)
        return cuda_check(cuda, result, "cuDevicePrimaryCtxReset", error);
    attn_status status = retain(cuda, error);
    if (status != ATTN_OK)
        return status;
    cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    forget_rounded(cuda);
    IN_CONTEXT(cuda, result, cuCtxSynchronize());
    if (result == CUDA_SUCCESS)
        atomic_store(&cuda->lost, 0);
    return cuda_check(cuda, result, "cuCtxSynchronize", error);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void *allocate_plain(struct cuda *cuda, uint32_t space, uint64_t size)
{
    cuda_pointer address = 0;
    void *memory = NULL;
    cuda_result result;
    if (space == ATTN_SPACE_PINNED)
        IN_CONTEXT(cuda, result, cuMemHostAlloc(&memory, size, CUDA_HOST_ALLOC_PORTABLE));
    else
        IN_CONTEXT(cuda, result, cuMemAlloc(&address, size));
    if (result != CUDA_SUCCESS)
        return NULL;
    return space == ATTN_SPACE_PINNED ? memory : (void *)(uintptr_t)address;
}

static void release_plain(struct cuda *cuda, uint32_t space, void *memory)
{
    cuda_result result;
    if (space == ATTN_SPACE_PINNED)
        IN_CONTEXT(cuda, result, cuMemFreeHost(memory));
    else
        IN_CONTEXT(cuda, result, cuMemFree(pointer_of(memory)));
}

/* With room to round up. The driver's own alignment (256 bytes or more) is enough for nearly all
 * callers. */
static void *allocate_rounded(struct cuda *cuda, uint32_t space, uint64_t size, uint64_t alignment)
{
    struct rounded *made = malloc(sizeof *made);
    if (!made)
        return NULL;
    made->given = allocate_plain(cuda, space, size + alignment - 1);
    if (!made->given) {
        free(made);
        return NULL;
    }
    uintptr_t address = (uintptr_t)made->given + (uintptr_t)alignment - 1;
    made->memory = (void *)(address & ~((uintptr_t)alignment - 1));
    pthread_mutex_lock(&cuda->lock);
    made->next = cuda->rounded;
    cuda->rounded = made;
    pthread_mutex_unlock(&cuda->lock);
    return made->memory;
}

/* What the driver gave for `memory`. */
static void *take_given(struct cuda *cuda, void *memory)
{
    pthread_mutex_lock(&cuda->lock);
    struct rounded **link = &cuda->rounded, *found;
    while (*link && (*link)->memory != memory)
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&cuda->lock);
    void *given = found ? found->given : memory;
    free(found);
    return given;
}

static void *cuda_allocate(const struct device *device, uint32_t space, uint64_t size,
                           uint64_t alignment)
{
    struct cuda *cuda = cuda_of(device);
    if (space == ATTN_SPACE_HOST || space >= ATTN_SPACE_COUNT)
        return device_cpu.allocate(device, space, size, alignment);
    if (size == 0)
        size = 1;
    if (size > SIZE_MAX / 2 || alignment > SIZE_MAX / 4)
        return NULL;
    void *memory = allocate_plain(cuda, space, size);
    if (!memory || ((uintptr_t)memory & (alignment - 1)) == 0 || alignment == 0)
        return memory;
    release_plain(cuda, space, memory);
    return allocate_rounded(cuda, space, size, alignment);
}

static void cuda_release(const struct device *device, uint32_t space, void *memory)
{
    struct cuda *cuda = cuda_of(device);
    if (space == ATTN_SPACE_HOST)
        device_cpu.release(device, space, memory);
    else
        release_plain(cuda, space, take_given(cuda, memory));
}

static attn_status cuda_memory(const struct device *device, uint64_t *free_bytes,
                               uint64_t *total_bytes, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    size_t available = 0, total = 0;
    cuda_result result;
    IN_CONTEXT(cuda, result, cuMemGetInfo(&available, &total));
    attn_status status = cuda_check(cuda, result, "cuMemGetInfo", error);
    if (status == ATTN_OK) {
        *free_bytes = available;
        *total_bytes = total;
    }
    return status;
}

/* Is it memory that the driver does not know, as that of malloc()? cuPointerGetAttributes() returns
 * 0 for such memory; cuPointerGetAttribute() returns an error, which tools that watch the driver
 * would report. */
static int is_pageable(struct cuda *cuda, void *memory)
{
    unsigned int type = 0, attribute = CUDA_POINTER_MEMORY_TYPE;
    void *value = &type;
    cuda_result result;
    IN_CONTEXT(cuda, result, cuPointerGetAttributes(1, &attribute, &value, pointer_of(memory)));
    return result == CUDA_SUCCESS && type == 0;
}

static attn_status cuda_synchronize(const struct device *device, attn_stream stream,
                                    attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuStreamSynchronize(stream));
    return cuda_check(cuda, result, "cuStreamSynchronize", error);
}

static attn_status cuda_fill(const struct device *device, void *memory, int byte, uint64_t size,
                             attn_stream stream, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    if (is_pageable(cuda, memory)) {
        attn_status status = cuda_synchronize(device, stream, error);
        if (status == ATTN_OK)
            memset(memory, byte, size);
        return status;
    }
    IN_CONTEXT(cuda, result,
               cuMemsetD8Async(pointer_of(memory), (unsigned char)byte, size, stream));
    return cuda_check(cuda, result, "cuMemsetD8Async", error);
}

static attn_status cuda_copy(const struct device *device, void *to, const void *from, uint64_t size,
                             attn_stream stream, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuMemcpyAsync(pointer_of(to), pointer_of(from), size, stream));
    return cuda_check(cuda, result, "cuMemcpyAsync", error);
}

const struct device_ops device_cuda = {
    .type = ATTN_DEVICE_CUDA,
    .describe = cuda_describe,
    .identify = cuda_identify,
    .open = cuda_open,
    .close = cuda_close,
    .is_entered = cuda_is_entered,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .is_lost = cuda_is_lost,
    .reset = cuda_reset,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .memory = cuda_memory,
    .fill = cuda_fill,
    .copy = cuda_copy,
    .synchronize = cuda_synchronize,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .event_synchronize = cuda_event_synchronize,
    .event_elapsed = cuda_event_elapsed,
    .stream_wait = cuda_stream_wait,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_num_nodes = cuda_graph_num_nodes,
    .graph_destroy = cuda_graph_destroy,
    .module_load = cuda_module_load,
    .module_unload = cuda_module_unload,
    .function = cuda_function_of,
    .launch = cuda_launch,
};
