/* SPDX-License-Identifier: Apache-2.0
 *
 * check_select_device: platform.device = auto, on the fake driver and without one.
 */
#include "tests/host/select/scene.h"
#include "tests/tools/fake_cuda_test.h"

static attnhost *host;
static struct config *config;
static struct model *model;
static struct selection *selection;
static attn_device device;
static host_error error;

#define MODEL "[model]\nnum_layers = 1\nnum_q_heads = 4\nhead_dim = 64\n"

static attn_status choose(const char *ini)
{
    host_error_init(&error);
    selection = NULL;
    ck_assert_int_eq(attnhost_create(NULL, &host, NULL), ATTN_OK);
    load_plugin(host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "cpu_native.so");
    load_plugin(host, "ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "triton_like.so");
    attn_status status =
        config_load_text(ini, strlen(ini), "t.ini", NULL, NULL, 0, &config, &error.base);
    if (!status)
        status = model_create(config, &model, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return select_create_here(host, config, model, &device, &selection, &error.base);
}

static void end(void)
{
    select_destroy(selection);
    model_destroy(model);
    config_destroy(config);
    attnhost_destroy(host);
}

/* `ini` is served by `backend` on a device of `type`; the note has `word`, or there is none. */
static void assert_choice(const char *ini, const char *backend, int32_t type, const char *word)
{
    attn_status status = choose(ini);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    ck_assert_str_eq(select_backend(selection, 0, SELECT_PREFILL), backend);
    ck_assert_int_eq(device.type, type);
    ck_assert_int_eq(selection->device.type, type);
    const char *note = selection->device_note;
    ck_assert_msg(word ? note && strstr(note, word) : !note, "%s", note ? note : "no note");
    end();
}

static uint64_t num_calls(void)
{
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    return counters.calls;
}

TEST_OF(device, a_device_that_serves_is_taken)
{
    use_fake_cuda();
    assert_choice(MODEL, "triton_like", ATTN_DEVICE_CUDA, NULL);
    assert_choice(MODEL "[platform]\ndevice = cpu\n", "cpu_native", ATTN_DEVICE_CPU, NULL);
    assert_choice(MODEL "[platform]\nsimulate = cpu_amx\n", "cpu_native", ATTN_DEVICE_CPU, NULL);
    assert_nothing_left();
}

TEST_OF(device, devices_have_their_products_names)
{
    static const struct {
        const char *name;
        uint32_t sm;
    } named[] = {{"sm75", 75}, {"sm87", 87},  {"sm110", 110}, {"sm121", 121}, {"h100", 90},
                 {"H100", 90}, {"h200", 90},  {"H200", 90},   {"gb10", 121},  {"a100", 80},
                 {"l40s", 89}, {"thor", 110}, {"orin", 87},   {"gfx950", 0},  {"mi350x", 0}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        attn_device simulated = {.sm = 1};
        ck_assert_int_eq(platform_simulate(named[i].name, &simulated), 0);
        ck_assert_uint_eq(simulated.sm, named[i].sm);
    }
    ck_assert_int_eq(platform_simulate("h10", &device), -1);
}

/* triton_like has no fp32: the processor serves, and it is said why. */
TEST_OF(device, a_device_that_does_not_serve_is_passed_over)
{
    use_fake_cuda();
    assert_choice(MODEL "dtype = f32\n", "cpu_native", ATTN_DEVICE_CPU, "q_dtype f32: accepted");
}

TEST_OF(device, a_named_backend_tells_the_device)
{
    use_fake_cuda();
    assert_choice(MODEL "[attention]\nattention_backend = cpu_native\n", "cpu_native",
                  ATTN_DEVICE_CPU, NULL);
    ck_assert_uint_eq(num_calls(), 0); /* no driver is woken for it */
    assert_choice(MODEL "[attention]\nattention_backend = triton_like\n", "triton_like",
                  ATTN_DEVICE_CUDA, "cpu: no backend serves");
}

TEST_OF(device, without_a_device_it_is_the_processor)
{
    setenv("ATTNHOST_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    assert_choice(MODEL, "cpu_native", ATTN_DEVICE_CPU, "/nowhere/libcuda.so.1");
    assert_choice(MODEL "[attention]\nattention_backend = cpu_native\n", "cpu_native",
                  ATTN_DEVICE_CPU, NULL);
    use_fake_cuda();
    fake.set_devices(0);
    assert_choice(MODEL, "cpu_native", ATTN_DEVICE_CPU, "NO_DEVICE");
    use_fake_cuda();
    fake.inject("cuDeviceGetAttribute", 1, CUDA_ERROR_UNKNOWN);
    assert_choice(MODEL, "cpu_native", ATTN_DEVICE_CPU, "cuDeviceGetAttribute");
}

/* Where neither serves, the reasons of both are given; a wrong configuration is one on any device.
 */
TEST_OF(device, what_is_told_where_neither_serves)
{
    use_fake_cuda();
    ck_assert_int_eq(choose(MODEL "[attention]\nattention_backend = fa3\n"), ATTN_UNSUPPORTED);
    ck_assert_int_eq(device.type, ATTN_DEVICE_CPU);
    ck_assert_ptr_nonnull(selection);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "fa3 stands for fa3_like"));
    end();
    ck_assert_int_eq(choose(MODEL "dtype = f32\n[attention]\nattention_backend = triton_like\n"),
                     ATTN_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "device.type cpu: accepted cuda"));
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "; on cuda:0: no backend serves"));
    end();
    ck_assert_int_eq(choose(MODEL "[attention]\nattention_backend = nonsense\n"),
                     ATTN_CONFIG_ERROR);
    ck_assert_ptr_null(selection);
    end();
    ck_assert_int_eq(choose(MODEL "[platform]\ndevice = cuda:7\n"), ATTN_DEPENDENCY_MISSING);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "t.ini:6: platform.device"));
    end();
}

TESTS("select_device");
