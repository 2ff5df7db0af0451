/* SPDX-License-Identifier: Apache-2.0
 *
 * check_bench_plan: on which device `attnhost bench` measures, on the fake CUDA driver: cpu_native
 * serves on the processor alone, triton_like on CUDA alone, the fixture backends on both.
 */
#include <string.h>

#include "host/cmd/bench_plan.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/tools/test_main.h"

#define MODEL "[model]\nnum_layers = 2\nnum_q_heads = 4\nhead_dim = 64\n"

static attnhost *host;
static attn_device device;
static host_error error;

static void load(const char *variable, const char *file)
{
    char path[1024];
    const char *folder = getenv(variable);
    ck_assert_ptr_nonnull(folder);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    ck_assert_msg(attnhost_load_plugin(host, path, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
}

static void set_up(void)
{
    use_fake_cuda_in_plugins();
    host_error_init(&error);
    ck_assert_int_eq(attnhost_create(NULL, &host, &error.base), ATTN_OK);
    load("ATTNHOST_TEST_PLUGIN_DIR", "cpu_native.so");
    load("ATTNHOST_TEST_PLUGIN_DIR", "triton_like.so");
    load("ATTNHOST_TEST_FIXTURE_DIR", "fixture_good.so");
    fake.reset();
}

static void tear_down(void)
{
    attnhost_destroy(host);
    assert_nothing_left();
}

/* Plan `shape` (NULL = those of `ini`'s model) on the backends. */
static attn_status plan(const char *backends, const char *shape, const char *ini)
{
    struct bench_values values = {.backends = {&backends, 1}, .shapes = {&shape, shape != NULL}};
    struct arguments arguments = {.target = shape ? NULL : "t.ini", .values = &values};
    struct bench_report report = {0};
    struct config *config = NULL;
    attn_status status =
        config_load_text(ini, strlen(ini), "t.ini", NULL, NULL, 0, &config, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    status = bench_plan(&arguments, config, host, &device, &report, &error.base);
    bench_report_finish(&report);
    config_destroy(config);
    return status;
}

static const struct {
    const char *backends, *shape, *ini;
    int32_t type;
} rows[] = {
    {"cpu_native", "mode=decode", "", ATTN_DEVICE_CPU},
    {"cpu_native,fixture_one", "mode=decode", "", ATTN_DEVICE_CPU},
    {"fixture_one,cpu_native", "mode=extend", "", ATTN_DEVICE_CPU},
    {"triton_like", "mode=decode", "", ATTN_DEVICE_CUDA},
    {"fixture_one,triton_like", "mode=decode", "", ATTN_DEVICE_CUDA},
    {"triton_like,fixture_one", "mode=decode", "", ATTN_DEVICE_CUDA},
    {"fixture_two,triton_like", "mode=decode", "", ATTN_DEVICE_CUDA}, /* decodes alone */
    {"triton_like,fixture_one", NULL, MODEL, ATTN_DEVICE_CUDA},
    {"fixture_two,cpu_native", NULL, MODEL, ATTN_DEVICE_CPU},
    /* Who serves nowhere has no say: fp32 is none of triton_like's types. */
    {"triton_like,cpu_native", "dtype=f32", "", ATTN_DEVICE_CPU},
    {"triton_like,cpu_native", NULL, MODEL "dtype = f32\n", ATTN_DEVICE_CPU},
    {"nobody,triton_like", "mode=decode", "", ATTN_DEVICE_CUDA},
    {"nobody", "mode=decode", "", ATTN_DEVICE_CPU},
    /* Some shape is enough. */
    {"fixture_one,triton_like", "head_dim=7:64", "", ATTN_DEVICE_CUDA},
    /* The user's word. */
    {"triton_like,cpu_native", "mode=decode", "[platform]\ndevice = cpu\n", ATTN_DEVICE_CPU},
    {"cpu_native,triton_like", "mode=decode", "[platform]\ndevice = cuda:0\n", ATTN_DEVICE_CUDA},
};
enum { NUM_ROWS = sizeof rows / sizeof *rows };

LOOP_OF(device, one_device_for_all, 0, NUM_ROWS)
{
    attn_status status = plan(rows[_i].backends, rows[_i].shape, rows[_i].ini);
    ck_assert_msg(status == ATTN_OK, "%s: %s", rows[_i].backends, host_error_text(&error));
    ck_assert_msg(device.type == rows[_i].type, "%s", rows[_i].backends);
    if (!strstr(rows[_i].backends, "triton_like") && !strstr(rows[_i].backends, "nobody"))
        ck_assert_uint_eq(fake.num_calls("cuInit"), 0);
}

TEST_OF(device, two_devices_are_refused)
{
    static const char *const backends[] = {"cpu_native,triton_like", "triton_like,cpu_native",
                                           "fixture_one,triton_like,cpu_native"};
    for (int i = 0; i < 3; i++) {
        const char *shape = i == 1 ? NULL : i ? "head_dim=7:64" : "mode=extend";
        ck_assert_int_eq(plan(backends[i], shape, MODEL), ATTN_CONFIG_ERROR);
        ck_assert_ptr_nonnull(strstr(host_error_text(&error), "cpu_native runs on cpu"));
        ck_assert_ptr_nonnull(strstr(host_error_text(&error), "triton_like on cuda:0"));
        ck_assert_ptr_nonnull(strstr(host_error_text(&error), "accepted: "));
    }
}

/* Without a driver no backend serves on CUDA. */
TEST_OF(device, no_driver)
{
    setenv("ATTNHOST_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    ck_assert_int_eq(plan("triton_like,cpu_native", "mode=decode", ""), ATTN_OK);
    ck_assert_int_eq(device.type, ATTN_DEVICE_CPU);
    ck_assert_int_ne(plan("triton_like", "mode=decode", "[platform]\ndevice = cuda:0\n"), ATTN_OK);
}

GROUP(device, .set_up = set_up, .tear_down = tear_down);
TESTS("bench_plan");
