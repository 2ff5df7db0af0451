/* SPDX-License-Identifier: Apache-2.0
 *
 * check_common_cuda.c: what CUDA plugins take from plugins/common/cuda: images by device,
 * functions, launches with attributes, descriptors of tensors: on the fake driver, which refuses
 * what the real one refuses.
 */
#include "plugins/common/tests/common_cuda_driver.h"
#include "tests/tools/test_main.h"

#include "plugins/common/cuda/image.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/tensor_map.h"
#include "attn_plugin_util.h"

#include <string.h>

static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};
static const cuda_api *cuda;
static cuda_facts facts;
static const attn_device sm_90 = {.struct_size = sizeof sm_90, .type = ATTN_DEVICE_CUDA, .sm = 90};

#define GOOD(call)         ck_assert_msg((call) == ATTN_OK, "%s", message)
#define REFUSED(call, why) assert_refused((call), ATTN_##why)

static void assert_refused(attn_status got, attn_status expected)
{
    ck_assert_msg(got == expected, "%d (%s), expected %d", got, message, expected);
    ck_assert_int_eq(error.code, expected);
}

static void assert_says(const char *text)
{
    ck_assert_msg(strstr(message, text) != NULL, "'%s' does not say '%s'", message, text);
}

static void begin(void)
{
    driver_begin();
    GOOD(cuda_api_get(&cuda, &error));
    GOOD(cuda_facts_find(cuda, &sm_90, &facts, &error));
}

/* ---- Devices and images ---------------------------------------------------------------------- */

TEST_OF(common_cuda, the_device_is_asked)
{
    begin();
    ck_assert_uint_eq(facts.sm, 90);
    ck_assert_uint_eq(facts.num_sms, 132);
    ck_assert_uint_eq(facts.shared_memory, 232448);
    driver_set_sm(86);
    REFUSED(cuda_facts_find(cuda, &sm_90, &facts, &error), DEPENDENCY_MISSING);
    assert_says("the current device is sm_86, the problem is for sm_90");
    driver_end();
}

TEST_OF(common_cuda, codes_run_where_they_run)
{
    static const struct {
        const char *codes;
        uint32_t sm;
        int runs;
    } cases[] = {
        {"sm_80", 80, 1},
        {"sm_80", 86, 1},
        {"sm_80", 90, 0},
        {"sm_86", 80, 0},
        {"sm_86 sm_80", 80, 1},
        {"sm_90", 90, 1},
        {"sm_90a", 90, 1},
        {"sm_90a", 100, 0},
        {"sm_100a", 103, 0},
        {"sm_100f", 103, 1},
        {"sm_100f", 120, 0},
        {"compute_80", 120, 1},
        {"compute_80", 75, 0},
        {"compute_100a", 100, 1},
        {"compute_100a", 120, 0},
        {"sm_90 sm_80", 89, 1},
        {"", 90, 0},
        {" sm_90", 90, 1},
        {"sm_", 90, 0},
        {"gfx90", 90, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_msg(cuda_codes_run(cases[i].codes, cases[i].sm) == cases[i].runs, "%s on sm_%u",
                      cases[i].codes, cases[i].sm);
    ck_assert(!cuda_codes_run(NULL, 90));
}

static void assert_accepted(const char *codes, uint32_t sm, const char *accepted)
{
    attn_device device = {.struct_size = sizeof device, .type = ATTN_DEVICE_CUDA, .sm = sm};
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict given = {.struct_size = sizeof given, .reasons_capacity = 1, .reasons = &reason};
    attn_verdict verdict;
    attn_util_verdict_begin(&given, &verdict);
    cuda_codes_check(codes, &device, &verdict);
    ck_assert_uint_eq(verdict.supported, accepted == NULL);
    if (accepted)
        ck_assert_str_eq(reason.accepted, accepted);
}

TEST_OF(common_cuda, query_tells_which_devices)
{
    assert_accepted("sm_80 sm_86 sm_89 sm_90", 75, "80..99");
    assert_accepted("sm_80 sm_86 sm_89 sm_90", 99, NULL);
    assert_accepted("sm_90a", 80, "90");
    assert_accepted("sm_90a sm_100a", 80, "90, 100");
    assert_accepted("compute_80", 0, "80..999");
}

TEST_OF(common_cuda, the_first_image_that_runs)
{
    const cuda_image images[] = {
        {"new", "sm_100a", "a"}, {"fast", "sm_90a", "b"}, {"plain", "sm_80 sm_90", "c"}};
    cuda_module module = NULL;
    uint32_t picked = 9;
    begin();
    GOOD(cuda_image_load(cuda, &facts, images, 3, &module, &picked, &error));
    ck_assert_uint_eq(picked, 1);
    cuda->cuModuleUnload(module);
    driver_set_sm(86);
    facts.sm = 86;
    GOOD(cuda_image_load(cuda, &facts, images, 3, &module, &picked, &error));
    ck_assert_uint_eq(picked, 2);
    cuda->cuModuleUnload(module);
    facts.sm = 120;
    REFUSED(cuda_image_load(cuda, &facts, images, 3, &module, NULL, &error), DEPENDENCY_MISSING);
    assert_says("the device is sm_120; kernels of this build are new: sm_100a; fast: sm_90a; "
                "plain: sm_80 sm_90");
    driver_end();
}

/* As CUDA_IMAGE() makes them without nvcc. */
TEST_OF(common_cuda, a_build_without_kernels)
{
    const cuda_image images[] = {{"decode", NULL, NULL}, {"extend", NULL, NULL}};
    cuda_module module = &module;
    begin();
    REFUSED(cuda_image_load(cuda, &facts, images, 2, &module, NULL, &error), DEPENDENCY_MISSING);
    assert_says("kernels decode: not in this build, as configure found no nvcc");
    ck_assert_ptr_eq(module, &module);
    driver_end();
}

TEST_OF(common_cuda, an_image_that_the_driver_refuses)
{
    const cuda_image images[] = {{"decode", "sm_90", "x"}};
    cuda_module module = NULL;
    begin();
    driver_fail("cuModuleLoadData", 209); /* CUDA_ERROR_NO_BINARY_FOR_GPU */
    REFUSED(cuda_image_load(cuda, &facts, images, 1, &module, NULL, &error), DEPENDENCY_MISSING);
    assert_says("decode: cuModuleLoadData failed: CUDA_ERROR_NO_BINARY_FOR_GPU");
    ck_assert_ptr_null(module);
    driver_end();
}

/* ---- Launches -------------------------------------------------------------------------------- */

static cuda_module module;
static cuda_launch plain;
static uint64_t argument = 42;
static void *params[] = {&argument};

static void load(const cuda_wants *wants)
{
    const cuda_image images[] = {{"record", "sm_80", "x"}, {"record", "sm_90", "x"}};
    begin();
    GOOD(cuda_image_load(cuda, &facts, images, 2, &module, NULL, &error));
    plain = (cuda_launch){.name = "record", .grid = {8, 2, 1}, .block = {64}};
    GOOD(cuda_function_find(cuda, &facts, module, "record", wants, &plain.function, &error));
}

static void unload(void)
{
    driver_wait();
    cuda->cuModuleUnload(module);
    driver_end();
}

TEST_OF(common_cuda, a_launch_arrives)
{
    load(&(cuda_wants){.shared = 100000});
    plain.shared = 100000;
    GOOD(cuda_launch_run(cuda, &plain, params, NULL, &error));
    driver_wait();
    ck_assert_int_eq(seen.count, 1);
    ck_assert(seen.grid[0] == 8 && seen.grid[1] == 2 && seen.grid[2] == 1);
    ck_assert(seen.block[0] == 64 && seen.block[1] == 1 && seen.block[2] == 1);
    ck_assert(seen.shared == 100000 && seen.argument == 42 && !seen.programmatic);
    plain.shared = 100001;
    REFUSED(cuda_launch_run(cuda, &plain, params, NULL, &error), INTERNAL);
    assert_says("launch: record failed: CUDA_ERROR_INVALID_VALUE");
    plain.grid[1] = 0;
    GOOD(cuda_launch_run(cuda, &plain, params, NULL, &error));
    driver_wait();
    ck_assert_int_eq(seen.count, 1);
    unload();
}

TEST_OF(common_cuda, attributes_arrive)
{
    load(&(cuda_wants){.shared = 0});
    plain.cluster[0] = 4;
    plain.cluster[1] = 2;
    plain.programmatic = 1;
    GOOD(cuda_launch_run(cuda, &plain, params, NULL, &error));
    driver_wait();
    ck_assert(seen.cluster[0] == 4 && seen.cluster[1] == 2 && seen.cluster[2] == 1);
    ck_assert(seen.programmatic && !seen.cooperative);
    plain = (cuda_launch){
        .function = plain.function, .name = "record", .grid = {132, 1, 1}, .cooperative = 1};
    GOOD(cuda_launch_run(cuda, &plain, params, NULL, &error));
    driver_wait();
    ck_assert(seen.cooperative && !seen.programmatic && seen.cluster[0] == 1);
    plain.block[0] = 1024;
    plain.grid[0] = 2 * 132 + 1;
    REFUSED(cuda_launch_run(cuda, &plain, params, NULL, &error), INTERNAL);
    assert_says("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE");
    unload();
}

TEST_OF(common_cuda, clusters_have_limits)
{
    load(&(cuda_wants){.shared = 0});
    plain.cluster[0] = 3;
    REFUSED(cuda_launch_run(cuda, &plain, params, NULL, &error), INVALID_ARGUMENT);
    assert_says("launch of record: grid[0] is 8: accepted multiples of its cluster's, 3");
    plain.cluster[0] = 8;
    GOOD(cuda_launch_run(cuda, &plain, params, NULL, &error));
    plain.cluster[1] = 2;
    REFUSED(cuda_launch_run(cuda, &plain, params, NULL, &error), INTERNAL);
    assert_says("CUDA_ERROR_INVALID_CLUSTER_SIZE");
    GOOD(cuda_function_find(cuda, &facts, module, "record", &(cuda_wants){.large_clusters = 1},
                            &plain.function, &error));
    GOOD(cuda_launch_run(cuda, &plain, params, NULL, &error));
    driver_set_sm(86);
    REFUSED(cuda_launch_run(cuda, &plain, params, NULL, &error), INTERNAL);
    assert_says("CUDA_ERROR_NOT_SUPPORTED");
    unload();
}

TEST_OF(common_cuda, grids_have_limits)
{
    static const int64_t grids[][3] = {
        {-1, 1, 1}, {INT64_C(1) << 31, 1, 1}, {1, 65536, 1}, {1, 1, 65536}};
    load(&(cuda_wants){.shared = 0});
    for (int i = 0; i < 4; i++) {
        memcpy(plain.grid, grids[i], sizeof plain.grid);
        REFUSED(cuda_launch_run(cuda, &plain, params, NULL, &error), INVALID_ARGUMENT);
    }
    assert_says("grid[2] is 65536: accepted 0..65535");
    unload();
    ck_assert_int_eq(seen.count, 0);
}

TEST_OF(common_cuda, functions_have_limits)
{
    cuda_function function = &function;
    load(&(cuda_wants){.shared = 0});
    REFUSED(cuda_function_find(cuda, &facts, module, "record", &(cuda_wants){.shared = 232449},
                               &function, &error),
            UNSUPPORTED);
    assert_says("kernel record: 232449 bytes of shared memory: accepted up to 232448 on this "
                "device, sm_90");
    REFUSED(cuda_function_find(cuda, &facts, module, "missing", &(cuda_wants){.shared = 0},
                               &function, &error),
            INTERNAL);
    assert_says("kernels: missing failed: CUDA_ERROR_NOT_FOUND");
    ck_assert_ptr_eq(function, &function);
    unload();
}

/* A driver before CUDA 11.8: what is a hint is let be, what is needed is refused. */
TEST_OF(common_cuda, an_old_driver)
{
    cuda_tensor_box box = {.name = "k", .data = &box, .dtype = ATTN_BF16, .rank = 1};
    cuda_tensor_map map;
    load(&(cuda_wants){.shared = 0});
    cuda_api old = *cuda;
    old.cuLaunchKernelEx = NULL;
    old.cuTensorMapEncodeTiled = NULL;
    plain.programmatic = 1;
    GOOD(cuda_launch_run(&old, &plain, params, NULL, &error));
    driver_wait();
    ck_assert_int_eq(seen.count, 1);
    ck_assert(!seen.programmatic);
    plain.cluster[0] = 2;
    REFUSED(cuda_launch_run(&old, &plain, params, NULL, &error), DEPENDENCY_MISSING);
    assert_says("launch of record: this driver has no cuLaunchKernelEx");
    plain.cluster[0] = plain.programmatic = 0;
    plain.cooperative = 1;
    REFUSED(cuda_launch_run(&old, &plain, params, NULL, &error), DEPENDENCY_MISSING);
    box.data = NULL;
    box.data = (void *)(uintptr_t)4096;
    box.shape[0] = box.box[0] = 64;
    REFUSED(cuda_tensor_map_make(&old, &box, &map, &error), DEPENDENCY_MISSING);
    assert_says("tensor k: this driver has no cuTensorMapEncodeTiled");
    unload();
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

/* Pages of a cache [pages, tokens, heads, dim], innermost first. */
static cuda_tensor_box cache_box(void *data)
{
    return (cuda_tensor_box){.name = "k_cache",
                             .data = data,
                             .dtype = ATTN_BF16,
                             .rank = 4,
                             .shape = {80, 2, 16, 100},
                             .strides = {0, 160, 320, 5120},
                             .box = {64, 1, 16, 1},
                             .swizzle = 128,
                             .l2 = 256};
}

static void refused_box(cuda_tensor_box box, const char *text)
{
    cuda_tensor_map map = {{7}};
    REFUSED(cuda_tensor_map_make(cuda, &box, &map, &error), INVALID_ARGUMENT);
    assert_says("tensor k_cache");
    assert_says(text);
    ck_assert_uint_eq(map.opaque[0], 7);
}

#define CHANGED(member, value, text)                                                               \
    do {                                                                                           \
        cuda_tensor_box changed = good;                                                            \
        changed.member = (value);                                                                  \
        refused_box(changed, text);                                                                \
    } while (0)

TEST_OF(common_cuda, boxes_have_limits)
{
    cuda_tensor_map map;
    begin();
    const cuda_tensor_box good = cache_box((void *)(uintptr_t)4096);
    GOOD(cuda_tensor_map_make(cuda, &good, &map, &error));
    CHANGED(data, (void *)(uintptr_t)4104, "accepted multiples of 16");
    CHANGED(data, NULL, "accepted multiples of 16");
    CHANGED(dtype, ATTN_I64, "accepted f32, f16, bf16");
    CHANGED(rank, 0, "0 dimensions: accepted 1..5");
    CHANGED(rank, 6, "6 dimensions: accepted 1..5");
    CHANGED(shape[3], 0, "dimension 3 has 0 elements");
    CHANGED(shape[3], (INT64_C(1) << 32) + 1, "accepted 1..4294967296");
    CHANGED(strides[1], 168, "stride of dimension 1 is 168 bytes: accepted multiples of 16");
    CHANGED(strides[2], -16, "stride of dimension 2 is -16 bytes");
    CHANGED(strides[3], INT64_C(1) << 40, "below 1099511627776");
    CHANGED(box[2], 0, "dimension 2 of a box has 0 elements: accepted 1..256");
    CHANGED(box[2], 257, "accepted 1..256");
    CHANGED(box[0], 60, "a row of a box is 120 bytes: accepted multiples of 16");
    CHANGED(box[0], 72, "a row of a box is 144 bytes: accepted up to its swizzle, 128");
    CHANGED(swizzle, 64, "accepted up to its swizzle, 64");
    CHANGED(swizzle, 48, "swizzle 48");
    CHANGED(l2, 32, "l2 32");
    driver_end();
}

/* What this file's checks let through and what the driver refuses are the same: the fake says so of
 * every one of the above, asked directly. */
TEST_OF(common_cuda, the_driver_refuses_them_too)
{
    begin();
    cuda_tensor_map map;
    const uint64_t shape[] = {80, 2, 16, 100}, none[] = {80, 2, 0, 100};
    const uint64_t strides[] = {160, 320, 5120}, odd[] = {168, 320, 5120};
    const unsigned box[] = {64, 1, 16, 1}, wide[] = {72, 1, 16, 1}, ones[] = {1, 1, 1, 1};
    void *at = (void *)(uintptr_t)4096, *beside = (void *)(uintptr_t)4104;
#define ENCODE(at, shape, strides, box, swizzle)                                                   \
    cuda->cuTensorMapEncodeTiled(&map, CUDA_TENSOR_BFLOAT16, 4, at, shape, strides, box, ones, 0,  \
                                 swizzle, 0, 0)
    ck_assert_int_eq(ENCODE(at, shape, strides, box, CUDA_TENSOR_SWIZZLE_128), CUDA_OK);
    ck_assert_int_ne(ENCODE(beside, shape, strides, box, CUDA_TENSOR_SWIZZLE_128), CUDA_OK);
    ck_assert_int_ne(ENCODE(at, none, strides, box, CUDA_TENSOR_SWIZZLE_128), CUDA_OK);
    ck_assert_int_ne(ENCODE(at, shape, odd, box, CUDA_TENSOR_SWIZZLE_128), CUDA_OK);
    ck_assert_int_ne(ENCODE(at, shape, strides, wide, CUDA_TENSOR_SWIZZLE_128), CUDA_OK);
    ck_assert_int_ne(ENCODE(at, shape, strides, box, CUDA_TENSOR_SWIZZLE_64), CUDA_OK);
    driver_end();
}

/* Through a launch: the kernel reads where the descriptor points, and zero beyond the tensor. */
TEST_OF(common_cuda, a_kernel_reads_by_it)
{
    enum { PAGES = 3, TOKENS = 4, HEADS = 2, DIM = 24, ROWS = 5 };
    uint16_t cache[PAGES][TOKENS][HEADS][DIM], box_rows[ROWS][1][32];
    cuda_tensor_map map;
    load(&(cuda_wants){.shared = 0});
    for (size_t i = 0; i < sizeof cache / sizeof(uint16_t); i++)
        ((uint16_t *)cache)[i] = (uint16_t)(i + 1);
    char *memory = driver_take(cache, sizeof cache);
    void *out = driver_take(NULL, sizeof box_rows);
    cuda_tensor_box box = {.name = "k_cache",
                           .data = memory + sizeof cache[0],
                           .dtype = ATTN_F16,
                           .rank = 3,
                           .shape = {DIM, HEADS, TOKENS},
                           .strides = {0, DIM * 2, HEADS * DIM * 2},
                           .box = {32, 1, ROWS}};
    GOOD(cuda_tensor_map_make(cuda, &box, &map, &error));
    void *arguments[] = {&map, &out};
    plain.name = "gather";
    GOOD(cuda_function_find(cuda, &facts, module, "gather", &(cuda_wants){.shared = 0},
                            &plain.function, &error));
    GOOD(cuda_launch_run(cuda, &plain, arguments, NULL, &error));
    driver_fetch(box_rows, out, sizeof box_rows);
    for (int row = 0; row < ROWS; row++)
        for (int d = 0; d < 32; d++)
            ck_assert_uint_eq(box_rows[row][0][d],
                              row < TOKENS && d < DIM ? cache[1][row][0][d] : 0);
    unload();
}

TESTS("common_cuda");
