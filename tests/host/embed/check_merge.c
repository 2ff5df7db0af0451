/* SPDX-License-Identifier: Apache-2.0
 *
 * check_merge.c: attnhost_merge() on the processor, and its kernels on the fake CUDA driver,
 * against the definition in fp64; device_merge.c has them on a GPU.
 */
#include "tests/host/embed/merge_case.h"

#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/fixtures/host_kernels.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/tools/test_main.h"

static struct merge_scene scene;

static void set_up_cpu(void)
{
    char path[4096];
    const char *folder = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/cpu_native.so", folder ? folder : "plugins/.libs");
    merge_scene_open(&scene, path, "cpu_native", ATTN_DEVICE_CPU);
}

static void set_up_cuda(void)
{
    char path[4096];
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    host_kernels_define(&fake);
    fixture_path("cuda_fixture.so", path);
    merge_scene_open(&scene, path, "cuda_fixture", ATTN_DEVICE_CUDA);
}

static void tear_down(void)
{
    merge_scene_close(&scene);
}

static void tear_down_cuda(void)
{
    tear_down();
    assert_nothing_left();
    assert_clean();
    fake.reset();
}

TEST_OF(cpu, as_defined)
{
    merge_everything(&scene, 60);
}

/* The engine's graph replays it, with other contents. */
TEST_OF(cuda, captured)
{
    merge_captured(&scene);
}

TEST_OF(cpu, refused)
{
    struct merge_case c;
    merge_case_make(&scene, &c, 1);
    const struct {
        uint32_t parts;
        const char *says;
    } counts[] = {{0, "merge: 0 parts; accepted: 1..16"}, {17, "merge: 17 parts; accepted: 1..16"}};
    for (int i = 0; i < 2; i++) {
        c.num_parts = counts[i].parts;
        merge_case_refused(&scene, &c, counts[i].says);
    }
    c.num_parts = 2;
    c.lses[1].shape[1]++;
    merge_case_refused(&scene, &c, "merge: lses[1] does not have the shape [tokens, heads]");
    c.lses[1].shape[1]--;
    c.lses[0].dtype = ATTN_BF16;
    merge_case_refused(&scene, &c, "merge: lses[0] is not fp32");
    c.lses[0].dtype = ATTN_F32;
    c.outs[1].dtype = ATTN_FP8_E4M3;
    merge_case_refused(&scene, &c, "merge: outs[1] is neither fp32 nor fp16 nor bf16");
    c.outs[1].dtype = ATTN_F32;
    c.out.device_id = 1;
    merge_case_refused(&scene, &c, "merge: out is not ");
    c.out.device_id = 0;
    c.lse.struct_size = 0;
    merge_case_refused(&scene, &c, "merge: lse has no struct_size");
    merge_case_finish(&scene, &c);
}

/* A driver that does not take the kernels: the error says so, and the next call tries again. */
TEST_OF(cuda, kernels_are_refused)
{
    struct merge_case c;
    merge_case_make(&scene, &c, 2);
    fake.inject("cuModuleLoadDataEx", 1, CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_int_eq(merge_case_call(&scene, &c), ATTN_OUT_OF_DEVICE_MEMORY);
    ck_assert_int_eq(merge_case_call(&scene, &c), ATTN_OK);
    merge_case_finish(&scene, &c);
}

ENTER_TEST(cuda, as_defined, 0, 1);
ENTER_TEST(cuda, refused, 0, 1);
GROUP(cpu, .set_up = set_up_cpu, .tear_down = tear_down);
GROUP(cuda, .set_up = set_up_cuda, .tear_down = tear_down_cuda);
TESTS("merge");
