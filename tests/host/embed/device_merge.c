/* SPDX-License-Identifier: Apache-2.0
 *
 * device_merge.c: the kernels of attnhost_merge() on a GPU against the definition; skipped where
 * there is no GPU, or no nvcc was there to compile them.
 */
#include "tests/host/embed/merge_case.h"
#include "tests/tools/gpu_test.h"
#include "tests/tools/test_main.h"
#include "host/base/configured.h"

#include <stdio.h>

#ifdef HAVE_NVCC

TEST_OF(gpu, as_defined_on_a_gpu)
{
    struct merge_scene scene;
    char path[4096];
    const char *folder = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/triton_like.so", folder ? folder : "plugins/.libs");
    merge_scene_open(&scene, path, "triton_like", ATTN_DEVICE_CUDA);
    merge_everything(&scene, 400);
    merge_captured(&scene);
    merge_scene_close(&scene);
}

GROUP(gpu, .timeout = 120);

GPU_TESTS("merge on a GPU");

#else

NO_GPU_TESTS("no nvcc at configure time: the host's kernels are not here");

#endif
