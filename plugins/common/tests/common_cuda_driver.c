/* SPDX-License-Identifier: Apache-2.0
 *
 * common_cuda_driver.c: the fake driver, reached through the plugins' declarations.
 */
#include "plugins/common/tests/common_cuda_driver.h"

#include "host/device/cuda_driver.h"
#include "tests/tools/fake_cuda_test.h"

enum { MAX_TAKEN = 16 };

static struct cuda_driver driver;
static cuda_context context;
static cuda_pointer taken[MAX_TAKEN];
static int num_taken;

seen_launch seen;

#define CALL(call) ck_assert_uint_eq(driver.call, CUDA_SUCCESS)

static void record(const struct fake_cuda_launch *launch)
{
    int count = seen.count + 1;
    seen = (seen_launch){.count = count,
                         .shared = launch->shared_bytes,
                         .cooperative = launch->cooperative,
                         .programmatic = launch->programmatic,
                         .argument = *(const uint64_t *)launch->arguments[0]};
    memcpy(seen.grid, launch->grid, sizeof seen.grid);
    memcpy(seen.block, launch->block, sizeof seen.block);
    memcpy(seen.cluster, launch->cluster, sizeof seen.cluster);
}

/* Element i of the box, counted from the innermost dimension; zero beyond the tensor. */
static void gather_element(const struct fake_cuda_tensor_map *map, uint64_t i, char *to)
{
    cuda_pointer at = map->address;
    int inside = 1;
    for (unsigned d = 0; d < map->rank; d++) {
        uint64_t place = i % map->box[d];
        i /= map->box[d];
        inside &= place < map->shape[d];
        at += place * (d == 0 ? map->element_bytes : map->strides[d - 1]);
    }
    memset(to, 0, map->element_bytes);
    const char *from = inside ? fake.access(at, map->element_bytes) : NULL;
    if (from)
        memcpy(to, from, map->element_bytes);
}

static void gather(const struct fake_cuda_launch *launch)
{
    /* The fake keeps arguments one after the other, not each at its own alignment. */
    struct fake_cuda_tensor_map copy;
    const struct fake_cuda_tensor_map *map = memcpy(&copy, launch->arguments[0], sizeof copy);
    cuda_pointer out;
    memcpy(&out, launch->arguments[1], sizeof out);
    uint64_t count = 1;
    ck_assert_str_eq(map->magic, FAKE_CUDA_TENSOR_MAP);
    for (unsigned d = 0; d < map->rank; d++)
        count *= map->box[d];
    char *to = fake.access(out, count * map->element_bytes);
    for (uint64_t i = 0; to && i < count; i++)
        gather_element(map, i, to + i * map->element_bytes);
}

/* By ourselves: the host's functions for it have the names of the plugins'. */
static void open_driver(void)
{
    char path[4096];
    fixture_path("fake_cuda.so", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
#define RESOLVE(name, symbol, parameters) *(void **)&driver.name = dlsym(library, #symbol);
    CUDA_DRIVER_CALLS(RESOLVE)
#undef RESOLVE
    CALL(cuInit(0));
}

void driver_begin(void)
{
    static const size_t record_sizes[] = {sizeof(uint64_t)};
    static const size_t gather_sizes[] = {sizeof(struct fake_cuda_tensor_map),
                                          sizeof(cuda_pointer)};
    use_fake_cuda_in_plugins();
    open_driver();
    fake.define_kernel("record", record, record_sizes, 1, NULL);
    fake.define_kernel("gather", gather, gather_sizes, 2, NULL);
    seen = (seen_launch){.count = 0};
    CALL(cuDevicePrimaryCtxRetain(&context, 0));
    CALL(cuCtxSetCurrent(context));
}

void driver_end(void)
{
    while (num_taken > 0)
        CALL(cuMemFree(taken[--num_taken]));
    CALL(cuDevicePrimaryCtxRelease(0));
    assert_nothing_left();
    assert_clean();
}

void driver_wait(void)
{
    CALL(cuCtxSynchronize());
}

void driver_set_sm(uint32_t sm)
{
    fake.set_attribute(0, CUDA_ATTRIBUTE_CC_MAJOR, (int)(sm / 10));
    fake.set_attribute(0, CUDA_ATTRIBUTE_CC_MINOR, (int)(sm % 10));
}

void driver_fail(const char *call, unsigned result)
{
    fake.inject(call, 1, result);
}

void *driver_take(const void *contents, uint64_t bytes)
{
    cuda_pointer memory = 0;
    ck_assert_int_lt(num_taken, MAX_TAKEN);
    CALL(cuMemAlloc(&memory, bytes));
    if (contents)
        CALL(cuMemcpyAsync(memory, (cuda_pointer)(uintptr_t)contents, bytes, NULL));
    taken[num_taken++] = memory;
    driver_wait();
    return (void *)(uintptr_t)memory;
}

void driver_fetch(void *to, const void *from, uint64_t bytes)
{
    CALL(cuMemcpyAsync((cuda_pointer)(uintptr_t)to, (cuda_pointer)(uintptr_t)from, bytes, NULL));
    driver_wait();
}
