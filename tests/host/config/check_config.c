/* SPDX-License-Identifier: Apache-2.0
 *
 * check_config.c: host/config*.c: the ini reader, the table of keys, --set, messages, printing.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/config/config.h"
#include "host/config/keys.h"
#include "host/base/error.h"
#include "tests/tools/test_main.h"

#define NUM(array) (sizeof(array) / sizeof *(array))
#define SHA        "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789ffeeDD"

static host_error error;

static attn_status load(const char *text, const char *const *sets, size_t num_sets,
                        struct config **config)
{
    host_error_init(&error);
    *config = NULL;
    return config_load_text(text, strlen(text), "t.ini", "/base", sets, num_sets, config,
                            &error.base);
}

static struct config *load_good(const char *text)
{
    struct config *config;
    attn_status status = load(text, NULL, 0, &config);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    ck_assert_ptr_nonnull(config);
    return config;
}

/* The message must contain each of the parts, NULL-terminated. */
static void assert_refused(const char *text, const char *const *sets, size_t num_sets,
                           const char *const *parts)
{
    struct config *config;
    attn_status status = load(text, sets, num_sets, &config);
    ck_assert_msg(status == ATTN_CONFIG_ERROR, "accepted: %s", text);
    ck_assert_ptr_null(config);
    ck_assert_int_eq(error.base.code, ATTN_CONFIG_ERROR);
    for (; *parts; parts++)
        ck_assert_msg(strstr(host_error_text(&error), *parts), "'%s' lacks '%s'",
                      host_error_text(&error), *parts);
}

#define ASSERT_REFUSED(text, ...)                                                                  \
    assert_refused(text, NULL, 0, (const char *const[]){__VA_ARGS__, NULL})
#define ASSERT_SET_REFUSED(set, ...)                                                               \
    assert_refused("", (const char *const[]){set}, 1, (const char *const[]){__VA_ARGS__, NULL})

static const char good_ini[] = "# a comment; with [things] = in it\n"
                               "[plugins]\n"
                               "path = plugins\n"
                               "path = /opt/more plugins ; with a comment\n"
                               "pin.7 = my plugin.so " SHA "\n"
                               "pin.2 = /abs/b.so\t" SHA "\n"
                               "critical = cpu_native\n"
                               "\n"
                               "[platform]\n"
                               "device = cuda:3\n"
                               "simulate = sm100\n"
                               "[model]\n"
                               "num_layers = 26\n"
                               "num_q_heads : 8\n"
                               "num_kv_heads=4\n"
                               "head_dim = 72\n"
                               "layer_types = sliding*5 full, chunked\n"
                               "sliding_window = 512\n"
                               "logit_cap = 50.5\n"
                               "sinks = yes\n"
                               "dtype = f16\n"
                               "attn_type = encoder_only\n"
                               "[attention]\n"
                               "attention_backend = fast\n"
                               "prefill_attention_backend =\n"
                               "mla_prefill = absorbed\n"
                               "route.10 = layers=0-3 phase=decode -> b\n"
                               "route.9 = batch=1-8 -> a\n"
                               "[backend.fast]\n"
                               "type = cpu_native\n"
                               "block = 16\n"
                               "child = a\n"
                               "child = b\n"
                               "[backend.empty]\n"
                               "[kv_cache]\n"
                               "page_size = 16\n"
                               "dtype = fp8_e4m3\n"
                               "k_scale = 0.5 1 2.25 4\n"
                               "v_scale = 1e-2\n"
                               "layout = hnd\n"
                               "max_total_tokens = 5000000000\n"
                               "prefix_cache = off\n"
                               "[cuda_graph]\n"
                               "enable = 0\n"
                               "bs = 1 2 4 8-64/8\n"
                               "[workload]\n"
                               "trace = ../traces/a.jsonl\n"
                               "format = mooncake\n"
                               "length_scale = .1\n"
                               "chunked_prefill_size = -1\n"
                               "clock = wall\n"
                               "mixed = true\n"
                               "seed = 18446744073709551615\n"
                               "[verify]\n"
                               "rate = 1\n";

/* ---- Values ---------------------------------------------------------------------------------- */

TEST_OF(values, defaults)
{
    struct config *config;
    host_error_init(&error);
    ck_assert_int_eq(config_load(NULL, NULL, 0, &config, &error.base), ATTN_OK);
    ck_assert_uint_eq(config->plugins.path.count, 0);
    ck_assert_int_eq(config->platform.device.type, CONFIG_DEVICE_AUTO);
    ck_assert_int_eq(config->model.num_layers, 0);
    ck_assert_uint_eq(config->model.dtype, ATTN_BF16);
    ck_assert_str_eq(config->attention.attention_backend, "auto");
    ck_assert_ptr_null(config->attention.rules);
    ck_assert_int_eq(config->kv_cache.page_size, 1);
    ck_assert_uint_eq(config->kv_cache.dtype, ATTN_DTYPE_NONE);
    ck_assert_uint_eq(config->kv_cache.k_scale.count, 0);
    ck_assert(config->kv_cache.prefix_cache);
    ck_assert(config->workload.length_scale == 1.0);
    ck_assert_int_eq(config->cuda_graph.bs.items[10], 64);
    for (size_t i = 0; i < config_num_keys; i++) {
        char key[128];
        snprintf(key, sizeof key, "%s.%s", config_keys[i].section, config_keys[i].name);
        ck_assert(!config_is_set(config, key));
        ck_assert_str_eq(config_place(config, key), "default");
    }
    config_destroy(config);
    config_destroy(NULL);
}

TEST_OF(values, plain_values_arrive)
{
    struct config *config = load_good(good_ini);
    ck_assert_int_eq(config->platform.device.type, ATTN_DEVICE_CUDA);
    ck_assert_int_eq(config->platform.device.index, 3);
    ck_assert_str_eq(config->platform.simulate, "sm100");
    ck_assert_int_eq(config->model.num_layers, 26);
    ck_assert_int_eq(config->model.num_q_heads, 8);
    ck_assert_int_eq(config->model.num_kv_heads, 4);
    ck_assert_int_eq(config->model.head_dim, 72);
    ck_assert_int_eq(config->model.sliding_window, 512);
    ck_assert(config->model.logit_cap == 50.5);
    ck_assert(config->model.sinks && !config->model.alibi);
    ck_assert_uint_eq(config->model.dtype, ATTN_F16);
    ck_assert_int_eq(config->model.attn_type, ATTN_TYPE_ENCODER_ONLY);
    ck_assert_str_eq(config->attention.attention_backend, "fast");
    ck_assert_ptr_null(config->attention.prefill_attention_backend);
    ck_assert_int_eq(config->kv_cache.page_size, 16);
    ck_assert_uint_eq(config->kv_cache.dtype, ATTN_FP8_E4M3);
    ck_assert_int_eq(config->kv_cache.layout, CONFIG_LAYOUT_HND);
    ck_assert_int_eq(config->kv_cache.max_total_tokens, 5000000000);
    ck_assert(!config->kv_cache.prefix_cache && !config->cuda_graph.enable);
    ck_assert_int_eq(config->workload.format, CONFIG_FORMAT_MOONCAKE);
    ck_assert(config->workload.length_scale == 0.1);
    ck_assert_int_eq(config->workload.chunked_prefill_size, -1);
    ck_assert_int_eq(config->workload.clock, CONFIG_CLOCK_WALL);
    ck_assert(config->workload.mixed);
    ck_assert_uint_eq(config->workload.seed, UINT64_MAX);
    ck_assert(config->verify.rate == 1.0);
    config_destroy(config);
}

TEST_OF(values, lists_and_paths_arrive)
{
    struct config *config = load_good(good_ini);
    ck_assert_uint_eq(config->plugins.path.count, 2);
    ck_assert_str_eq(config->plugins.path.items[0], "/base/plugins");
    ck_assert_str_eq(config->plugins.path.items[1], "/opt/more plugins");
    ck_assert_str_eq(config->plugins.critical.items[0], "cpu_native");
    ck_assert_str_eq(config->workload.trace, "/base/../traces/a.jsonl");

    ck_assert_uint_eq(config->plugins.pins.count, 2);
    const struct config_pin *pin = config->plugins.pins.items;
    ck_assert_int_eq(pin[0].number, 2);
    ck_assert_str_eq(pin[0].file, "/abs/b.so");
    ck_assert_str_eq(pin[0].place, "t.ini:6");
    ck_assert_str_eq(pin[1].file, "/base/my plugin.so");
    ck_assert_uint_eq(pin[1].sha256[0], 0x01);
    ck_assert_uint_eq(pin[1].sha256[15], 0xef);
    ck_assert_uint_eq(pin[1].sha256[31], 0xdd);

    static const int64_t types[] = {
        CONFIG_LAYER_SLIDING, CONFIG_LAYER_SLIDING, CONFIG_LAYER_SLIDING, CONFIG_LAYER_SLIDING,
        CONFIG_LAYER_SLIDING, CONFIG_LAYER_FULL,    CONFIG_LAYER_CHUNKED};
    ck_assert_uint_eq(config->model.layer_types.count, NUM(types));
    ck_assert_mem_eq(config->model.layer_types.items, types, sizeof types);
    ck_assert_int_eq(config->attention.mla_prefill, CONFIG_MLA_ABSORBED);
    static const double scales[] = {0.5, 1, 2.25, 4};
    ck_assert_uint_eq(config->kv_cache.k_scale.count, 4);
    ck_assert_mem_eq(config->kv_cache.k_scale.items, scales, sizeof scales);
    ck_assert_uint_eq(config->kv_cache.v_scale.count, 1);
    static const int64_t bs[] = {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64};
    ck_assert_uint_eq(config->cuda_graph.bs.count, NUM(bs));
    ck_assert_mem_eq(config->cuda_graph.bs.items, bs, sizeof bs);
    ck_assert_uint_eq(config->attention.routes.count, 2);
    ck_assert_int_eq(config->attention.routes.items[0].number, 9);
    ck_assert_str_eq(config->attention.routes.items[0].text, "batch=1-8 -> a");
    ck_assert_str_eq(config->attention.routes.items[1].place, "t.ini:27");
    config_destroy(config);
}

TEST_OF(values, backend_sections_are_kept_raw)
{
    struct config *config = load_good(good_ini);
    ck_assert_uint_eq(config->backends.count, 2);
    const struct config_backend *fast = config_backend(config, "fast");
    ck_assert_str_eq(fast->type, "cpu_native");
    ck_assert_uint_eq(fast->num_options, 3);
    ck_assert_str_eq(fast->options[0].key, "block");
    ck_assert_str_eq(fast->options[0].value, "16");
    ck_assert_int_eq(fast->options[0].line, 31);
    ck_assert_str_eq(fast->options[0].place, "t.ini:31");
    ck_assert_str_eq(fast->options[0].base, "/base");
    ck_assert_str_eq(fast->options[2].value, "b");
    const struct config_backend *empty = config_backend(config, "empty");
    ck_assert_str_eq(empty->type, "empty");
    ck_assert_str_eq(empty->place, "t.ini:34");
    ck_assert_uint_eq(empty->num_options, 0);
    ck_assert_ptr_null(config_backend(config, "slow"));
    config_destroy(config);
}

TEST_OF(values, places)
{
    struct config *config = load_good(good_ini);
    ck_assert(config_is_set(config, "kv_cache.page_size"));
    ck_assert_str_eq(config_place(config, "kv_cache.page_size"), "t.ini:36");
    ck_assert_str_eq(config_place(config, "attention.route.9"), "t.ini:28");
    ck_assert_str_eq(config_place(config, "plugins.path"), "t.ini:3");
    ck_assert_str_eq(config_place(config, "backend.fast.child"), "t.ini:32");
    ck_assert_str_eq(config_place(config, "backend.fast.type"), "t.ini:30");
    ck_assert(!config_is_set(config, "backend.fast.other"));
    ck_assert(!config_is_set(config, "backend.fas.child"));
    ck_assert(!config_is_set(config, "backend.empty.type"));
    ck_assert(!config_is_set(config, "attention.prefill_attention_backend"));
    ck_assert(!config_is_set(config, "no.key"));
    host_error_init(&error);
    ck_assert_int_eq(config_fail(config, "model.head_dim", &error.base, "%d is odd", 72),
                     ATTN_CONFIG_ERROR);
    ck_assert_str_eq(host_error_text(&error), "t.ini:16: model.head_dim: 72 is odd");
    config_fail(config, "model.sm_scale", &error.base, "is missing");
    ck_assert_str_eq(host_error_text(&error), "t.ini: model.sm_scale: is missing");
    config_destroy(config);
}

TEST_OF(values, devices)
{
    static const struct {
        const char *text;
        int32_t type, index;
    } cases[] = {{"auto", CONFIG_DEVICE_AUTO, 0},
                 {"cpu", ATTN_DEVICE_CPU, 0},
                 {"cuda", ATTN_DEVICE_CUDA, 0},
                 {"cuda:0", ATTN_DEVICE_CUDA, 0},
                 {"cuda:17", ATTN_DEVICE_CUDA, 17}};
    for (size_t i = 0; i < NUM(cases); i++) {
        char text[64];
        snprintf(text, sizeof text, "[platform]\ndevice = %s\n", cases[i].text);
        struct config *config = load_good(text);
        ck_assert_int_eq(config->platform.device.type, cases[i].type);
        ck_assert_int_eq(config->platform.device.index, cases[i].index);
        config_destroy(config);
    }
}

TEST_OF(values, data_types)
{
    static const struct {
        const char *text;
        attn_dtype dtype;
    } cases[] = {{"auto", ATTN_DTYPE_NONE},   {"f32", ATTN_F32},
                 {"fp16", ATTN_F16},          {"bfloat16", ATTN_BF16},
                 {"fp8_e4m3", ATTN_FP8_E4M3}, {"fp8_e5m2", ATTN_FP8_E5M2}};
    for (size_t i = 0; i < NUM(cases); i++) {
        char text[64];
        snprintf(text, sizeof text, "[kv_cache]\ndtype = %s\n", cases[i].text);
        struct config *config = load_good(text);
        ck_assert_uint_eq(config->kv_cache.dtype, cases[i].dtype);
        config_destroy(config);
    }
}

TEST_OF(values, every_row_is_sound)
{
    for (size_t i = 0; i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        int64_t number;
        char name[64];
        ck_assert(strlen(key->help) > 10);
        strbuf accepted;
        strbuf_init(&accepted);
        key->kind->accepted(key, &accepted);
        ck_assert(accepted.length > 0);
        strbuf_finish(&accepted);
        snprintf(name, sizeof name, "%s", key->name);
        if (key->flags & CONFIG_NUMBERED)
            strcpy(strchr(name, '<'), "123");
        if (key->flags & CONFIG_BY_LAYER_TYPE)
            snprintf(name, sizeof name, "chunked%s", strchr(key->name, '.'));
        ck_assert_ptr_eq(config_key_find(key->section, name, &number), key);
        ck_assert_int_eq(number, key->flags & CONFIG_NUMBERED        ? 123
                                 : key->flags & CONFIG_BY_LAYER_TYPE ? CONFIG_LAYER_CHUNKED
                                                                     : 0);
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */

TEST_OF(refused, unknown_names_are_corrected)
{
    ASSERT_REFUSED("[kv_cache]\npagesize = 1\n",
                   "t.ini:2: unknown key 'pagesize' in [kv_cache], did you mean 'page_size'?",
                   "accepted: page_size, dtype");
    ASSERT_REFUSED("[kv_cache]\nbanana = 1\n", "'banana' in [kv_cache]; accepted: page_size");
    ASSERT_REFUSED("[verify]\nseed = 1\n",
                   "'seed' in [verify] (it belongs to [workload] or [speculative])");
    ASSERT_REFUSED("[model]\npage_size = 1\n", "'page_size' in [model] (it belongs to [kv_cache])");
    ASSERT_REFUSED("\n[kv_cahce]\n",
                   "t.ini:2: unknown section [kv_cahce], did you mean [kv_cache]?",
                   "accepted: plugins, platform, model, attention, kv_cache");
    ASSERT_REFUSED("[bakend.x]\na = 1\n", "[bakend.x], did you mean [backend.NAME]?");
    ASSERT_REFUSED("[]\n", "unknown section []");
    ASSERT_REFUSED("[ model ]\n", "did you mean [model]?");
    ASSERT_REFUSED("[backend]\n", "does not name a backend");
    ASSERT_REFUSED("[backend.a.b]\n", "does not name a backend");
    ASSERT_REFUSED("[backend.a b]\n", "does not name a backend");
    ASSERT_REFUSED("page_size = 1\n", "t.ini:1: 'page_size' comes before the first section");
    ASSERT_REFUSED("[attention]\nroute.01 = a -> b\n", "unknown key 'route.01'");
    ASSERT_REFUSED("[attention]\nroute.-1 = a -> b\n", "unknown key");
    ASSERT_REFUSED("[attention]\nroute.10000 = a -> b\n", "unknown key");
    ASSERT_REFUSED("[attention]\nroute. = a -> b\n", "unknown key");
    ASSERT_REFUSED("[backend.x]\na/b = 1\n", "t.ini:2: 'a/b' in [backend.x] is not a key");
}

static const struct {
    const char *section, *line, *part;
} bad_values[] = {
    {"kv_cache", "page_size = 0", "'0' is out of range; accepted: an integer from 1 to 65536"},
    {"kv_cache", "page_size = 65537", "out of range"},
    {"kv_cache", "page_size = 16k", "'16k' is not an integer"},
    {"kv_cache", "page_size = 1 # x", "is not an integer"},
    {"kv_cache", "page_size =", "is empty"},
    {"kv_cache", "page_size = ; 16", "is empty"},
    {"kv_cache", "dtype = fp8", "accepted: auto, f32, f16, bf16, fp8_e4m3, fp8_e5m2"},
    {"kv_cache", "dtype = none", "is not one of the choices"},
    {"kv_cache", "dtype = int32", "is not one of the choices"},
    {"kv_cache", "layout = NHD", "is not one of the choices"},
    {"kv_cache", "k_scale = 0", "number out of range; accepted: a number, or one per KV head"},
    {"kv_cache", "k_scale = 1 nan", "is not a list of finite numbers"},
    {"kv_cache", "k_scale = 1,,2", "is not a list"},
    {"kv_cache", "mem_fraction = 0", "above 0 and up to 1"},
    {"kv_cache", "mem_fraction = 1.01", "out of range"},
    {"kv_cache", "prefix_cache = maybe", "accepted: yes or no"},
    {"kv_cache", "max_total_tokens = 99999999999999999999", "is not an integer"},
    {"model", "head_dim = 0", "model.head_dim = '0' is out of range"},
    {"model", "sm_scale = nan", "is not a finite number"},
    {"model", "sm_scale = -1", "out of range"},
    {"model", "sm_scale = 1e-300", "out of range; accepted: a number from 1.2e-38 to 1000000"},
    {"model", "sliding.sm_scale = 0", "out of range; accepted: a number from 1.2e-38 to 1000000"},
    {"model", "logit_cap = inf", "is not a finite number"},
    {"model", "logit_cap = 1e-300",
     "out of range; accepted: 0, or a number from 1.2e-38 to 1000000"},
    {"model", "sliding.logit_cap = 1e-39", "out of range; accepted: 0, or a number from 1.2e-38"},
    {"model", "layer_types = full sliding*0", "repetition"},
    {"model", "layer_types = full*4097", "repetition"},
    {"model", "layer_types = full*4096 full", "repetition"},
    {"model", "layer_types = full*99999999999999999999999999", "repetition"},
    {"model", "layer_types = full*", "NAME*COUNT"},
    {"model", "layer_types = *3", "not one of the choices"},
    {"model", "layer_types = dense", "accepted: words such as sliding*5 full, each one of full"},
    {"model", "dtype = fp8_e4m3", "accepted: f32, f16, bf16"},
    {"model", "dtype = auto", "accepted: f32, f16, bf16"},
    {"platform", "device = cuda:", "accepted: auto, cpu, cuda (the first one) or cuda:N"},
    {"platform", "device = cuda:-1", "is not a device"},
    {"platform", "device = cuda:1024", "out of range"},
    {"platform", "device = gpu", "is not a device"},
    {"platform", "simulate = sm 90", "is not a name"},
    {"attention", "speculative_eagle_topk = -1", "out of range"},
    {"attention", "attention_backend = a b", "is not a name"},
    {"attention", "route.1 = phase=decode", "CONDITIONS -> NAME"},
    {"plugins", "pin.1 = a.so", "FILE SHA256"},
    {"plugins", "pin.1 = " SHA, "FILE SHA256"},
    {"plugins", "pin.1 = a.so " SHA "0", "FILE SHA256"},
    {"plugins", "pin.1 = a.so 0123", "FILE SHA256"},
    {"plugins", "pin.1 = a.so g" SHA, "FILE SHA256"},
    {"cuda_graph", "bs = 1 2 2", "is not ascending; accepted: ascending"},
    {"cuda_graph", "bs = 0", "out of range"},
    {"cuda_graph", "bs = 1-65536", "has too many numbers"},
    {"workload", "length_scale = 0", "above 0"},
    {"workload", "seed = -1", "64-bit unsigned"},
    {"workload", "format = json", "accepted: auto, mooncake, bailian, azure, burstgpt"},
    {"verify", "rate = 1.5", "verify.rate = '1.5' is out of range; accepted: a number from 0 to 1"},
    {"verify", "rate = 50%", "is not a finite number"},
};

LOOP_OF(refused, bad_values_are_named_with_place_and_choices, 0, (int)NUM(bad_values))
{
    char text[512];
    snprintf(text, sizeof text, "# first\n\n[%s]\n%s\n", bad_values[_i].section,
             bad_values[_i].line);
    ASSERT_REFUSED(text, "t.ini:4: ", bad_values[_i].section, bad_values[_i].part, "; accepted: ");
}

TEST_OF(refused, twice_is_refused_with_both_lines)
{
    ASSERT_REFUSED("[kv_cache]\npage_size = 1\n[model]\n[kv_cache]\npage_size = 1\n",
                   "t.ini:5: kv_cache.page_size is given twice, first at t.ini:2");
    ASSERT_REFUSED("[attention]\nroute.1 = a -> b\nroute.1 = c -> d\n",
                   "t.ini:3: attention.route.1 is given twice, first at t.ini:2");
    ASSERT_REFUSED("[backend.a]\ntype = x\ntype = x\n",
                   "t.ini:3: backend.a.type is given twice, first at t.ini:2");
    ASSERT_REFUSED("[kv_cache]\nmax_total_tokens = 64\nmem_fraction = 0.5\n",
                   "t.ini:3: ", "max_total_tokens is given too, at t.ini:2");
}

/* ---- Lines ----------------------------------------------------------------------------------- */

TEST_OF(lines, long_lines_are_refused_not_cut)
{
    static const size_t lengths[] = {150, 194, 195, 196, 300, 65531, 65532, 65533, 70000};
    enum { MOST = 65536 };
    static char text[150000], value[70001];
    struct config *config;
    for (size_t l = 0; l < NUM(lengths); l++) {
        size_t length = lengths[l];
        memset(value, '7', length);
        value[length] = '\0';
        snprintf(text, sizeof text, "[backend.x]\nk = %s\n[kv_cache]\npage_size = 3\n", value);
        if (strlen("k = ") + length <= MOST) {
            config = load_good(text);
            ck_assert_str_eq(config->backends.items[0].options[0].value, value);
            ck_assert_int_eq(config->kv_cache.page_size, 3);
            ck_assert_str_eq(config_place(config, "kv_cache.page_size"), "t.ini:4");
            config_destroy(config);
        } else {
            ASSERT_REFUSED(text, "t.ini:2: the line has ", "accepted: up to 65536");
        }
    }
    /* A rest that inih would take for a line must not get through either. */
    memset(value, ' ', 250);
    snprintf(value + 200, sizeof value - 200, "page_size = 8");
    snprintf(text, sizeof text, "[kv_cache]\ndtype = f32%s\n", value);
    ASSERT_REFUSED(text, "t.ini:2: kv_cache.dtype = 'f32 ");
    memset(value, 'k', 150);
    snprintf(value + 150, sizeof value - 150, " = 8");
    snprintf(text, sizeof text, "[backend.x]\n%s\n", value);
    ASSERT_REFUSED(text, "t.ini:2: the key has 151 bytes");
    /* Comments may be as long as they like. */
    memset(value, 'c', 299);
    value[299] = '\0';
    snprintf(text, sizeof text, "; %s\n  #%s\n[kv_cache]\npage_size = 3\n", value, value);
    config = load_good(text);
    ck_assert_str_eq(config_place(config, "kv_cache.page_size"), "t.ini:4");
    config_destroy(config);
}

TEST_OF(lines, long_sections_are_refused_not_cut)
{
    char text[256], name[100];
    for (size_t length = 30; length < 80; length++) {
        memset(name, 'n', length);
        name[length] = '\0';
        snprintf(text, sizeof text, "[backend.%s]\nk = v\n", name);
        if (length <= 41) {
            struct config *config = load_good(text);
            ck_assert_str_eq(config->backends.items[0].name, name);
            ck_assert_uint_eq(config->backends.count, 1);
            config_destroy(config);
        } else {
            ASSERT_REFUSED(text, "t.ini:1: the section's name has ", "accepted: up to 49");
        }
    }
}

/* What is searched from the start is bounded: a mebibyte of sections would take minutes. */
TEST_OF(lines, too_many_sections_and_values_are_refused)
{
    strbuf text;
    struct config *config;
    strbuf_init(&text);
    for (int i = 0; i < CONFIG_MAX_BACKENDS; i++)
        strbuf_appendf(&text, "[backend.b%d]\nx = %d\n", i, i);
    config = load_good(strbuf_text(&text));
    ck_assert_uint_eq(config->backends.count, CONFIG_MAX_BACKENDS);
    config_destroy(config);
    strbuf_append(&text, "[backend.b0]\n[backend.more]\n"); /* the first is no new one */
    ASSERT_REFUSED(strbuf_text(&text), "t.ini:514: ", "backend.more", "up to 256 backends");
    strbuf_finish(&text);
    strbuf_append(&text, "[plugins]\n");
    for (int i = 0; i < CONFIG_MAX_VALUES; i++)
        strbuf_append(&text, "path = a\n");
    config = load_good(strbuf_text(&text));
    ck_assert_uint_eq(config->plugins.path.count, CONFIG_MAX_VALUES);
    config_destroy(config);
    strbuf_append(&text, "critical = a\n");
    ASSERT_REFUSED(strbuf_text(&text), "t.ini:16386: plugins.critical", "up to 16384 values");
    strbuf_finish(&text);
}

TEST_OF(lines, malformed_lines_are_refused)
{
    ASSERT_REFUSED("[model]\nnum_layers\n", "t.ini:2: 'num_layers' is not understood");
    ASSERT_REFUSED("[model\nnum_layers = 2\n", "t.ini:1: '[model' is not understood");
    ASSERT_REFUSED("[model ; ]\n", "t.ini:1: ");
    ASSERT_REFUSED("[model]\n= 3\n", "t.ini:2: '= 3' is not understood");
    ASSERT_REFUSED("[model]\nnum_layers ; = 3\n", "t.ini:2: ");
    ASSERT_REFUSED("[model] num_layers = 3\n", "t.ini:1: there is text after [model]");
    /* the first wrong line, whichever part finds it */
    ASSERT_REFUSED("[model]\nwhat\nnum_layers = 0\n", "t.ini:2: 'what'");
    ASSERT_REFUSED("[model]\nnum_layers = 0\nwhat\n", "t.ini:2: model.num_layers");
    ASSERT_REFUSED("[model]\nwhat", "t.ini:2: 'what'");
}

TEST_OF(lines, indentation_means_nothing)
{
    /* inih alone would take the second and third line for more of num_layers. */
    struct config *config =
        load_good("[model]\n  num_layers = 4\n  num_q_heads = 8\n\thead_dim=64");
    ck_assert_int_eq(config->model.num_layers, 4);
    ck_assert_int_eq(config->model.num_q_heads, 8);
    ck_assert_int_eq(config->model.head_dim, 64);
    config_destroy(config);
    ASSERT_REFUSED("[cuda_graph]\nbs = 1 2\n  4 8\n", "t.ini:3: '4 8' is not understood");
}

TEST_OF(lines, byte_order_mark_and_line_ends)
{
    struct config *config =
        load_good("\xEF\xBB\xBF[model]\r\nnum_layers = 4 ; four\r\n\r\n[verify] # x\r\nrate=0\r");
    ck_assert_int_eq(config->model.num_layers, 4);
    ck_assert(config->verify.rate == 0);
    ck_assert_str_eq(config_place(config, "verify.rate"), "t.ini:5");
    config_destroy(config);
    ASSERT_REFUSED("[model]\n\xEF\xBB\xBFnum_layers = 4\n", "t.ini:2: unknown key");
    ASSERT_REFUSED("[model]\nnum_layers = 4\rnum_q_heads = 2\n", "t.ini:2: ", "(0x0d)");
    ASSERT_REFUSED("[plugins]\npath = a\x1b[31m\n", "t.ini:2: ", "(0x1b)");
}

TEST_OF(lines, nul_bytes_are_refused)
{
    static const char text[] = "[model]\nnum_layers = 1\0"
                               "6\n";
    struct config *config = NULL;
    host_error_init(&error);
    ck_assert_int_eq(
        config_load_text(text, sizeof text - 1, "t.ini", NULL, NULL, 0, &config, &error.base),
        ATTN_CONFIG_ERROR);
    ck_assert_ptr_null(config);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "t.ini:2: "));
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "(0x00)"));
}

/* ---- --set ----------------------------------------------------------------------------------- */

TEST_OF(sets, sets_win)
{
    static const char *const sets[] = {
        "kv_cache.page_size=32", "kv_cache.page_size= 64 ",  "plugins.path=x",
        "plugins.path=/y",       "attention.route.9=z -> c", "kv_cache.v_scale=",
        "backend.fast.child=c",  "backend.fast.child=d",     "backend.fast.type=other",
        "backend.new.k=a=b ; c", "workload.trace=./t.csv"};
    struct config *config;
    ck_assert_msg(load(good_ini, sets, NUM(sets), &config) == ATTN_OK, "%s",
                  host_error_text(&error));
    char *directory = getcwd(NULL, 0), path[4200];
    ck_assert_int_eq(config->kv_cache.page_size, 64);
    ck_assert_str_eq(config_place(config, "kv_cache.page_size"), "--set");
    ck_assert_uint_eq(config->plugins.path.count, 2);
    snprintf(path, sizeof path, "%s/x", directory);
    ck_assert_str_eq(config->plugins.path.items[0], path);
    ck_assert_str_eq(config->plugins.path.items[1], "/y");
    snprintf(path, sizeof path, "%s/t.csv", directory);
    ck_assert_str_eq(config->workload.trace, path);
    free(directory);
    ck_assert_uint_eq(config->attention.routes.count, 2);
    ck_assert_str_eq(config->attention.routes.items[0].text, "z -> c");
    ck_assert_uint_eq(config->kv_cache.v_scale.count, 0);
    ck_assert(!config_is_set(config, "kv_cache.v_scale"));
    const struct config_backend *fast = config_backend(config, "fast");
    ck_assert_str_eq(fast->type, "other");
    ck_assert_uint_eq(fast->num_options, 3);
    ck_assert_str_eq(fast->options[1].value, "c");
    ck_assert_str_eq(fast->options[2].value, "d");
    ck_assert_int_eq(fast->options[2].line, 0);
    ck_assert_str_eq(config_backend(config, "new")->options[0].value, "a=b ; c");
    config_destroy(config);
}

TEST_OF(sets, bad_sets_are_refused)
{
    ASSERT_SET_REFUSED("kv_cache.page_size=0", "--set: kv_cache.page_size = '0' is out of range");
    ASSERT_SET_REFUSED("kv_cache.pagesize=1", "--set: ", "did you mean 'page_size'?");
    ASSERT_SET_REFUSED("kvcache.page_size=1", "--set: ", "did you mean [kv_cache]?");
    ASSERT_SET_REFUSED("page_size=1", "accepted: section.key=value");
    ASSERT_SET_REFUSED("kv_cache.page_size", "accepted: section.key=value");
    ASSERT_SET_REFUSED("", "accepted: section.key=value");
    ASSERT_SET_REFUSED("=", "accepted: section.key=value");
    ASSERT_SET_REFUSED(".=", "accepted: section.key=value");
    ASSERT_SET_REFUSED(".a=1", "accepted: section.key=value");
    ASSERT_SET_REFUSED("backend.x=1", "accepted: section.key=value");
    ASSERT_SET_REFUSED("backend.x.=1", "accepted: section.key=value");
    ASSERT_SET_REFUSED("backend..k=1", "does not name a backend");
    ASSERT_SET_REFUSED("backend.x.k=a\nb", "control character (0x0a)");
    ASSERT_SET_REFUSED("backend.x.type=", "backend.x.type = '' is not a name");
}

/* ---- Files ----------------------------------------------------------------------------------- */

TEST_OF(files, files)
{
    char directory[] = "/tmp/check_config_XXXXXX", path[128];
    struct config *config = NULL;
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/a.ini", directory);
    host_error_init(&error);
    ck_assert_int_eq(config_load(path, NULL, 0, &config, &error.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), path));
    ck_assert_int_eq(config_load(directory, NULL, 0, &config, &error.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), directory));
    ck_assert_ptr_null(config);

    FILE *file = fopen(path, "w");
    fputs("[workload]\ntrace = ./sub/t.csv", file);
    fclose(file);
    ck_assert_int_eq(config_load(path, NULL, 0, &config, &error.base), ATTN_OK);
    char trace[160];
    snprintf(trace, sizeof trace, "%s/sub/t.csv", directory);
    ck_assert_str_eq(config->workload.trace, trace);
    config_destroy(config);

    ck_assert_int_eq(chdir(directory), 0);
    ck_assert_int_eq(config_load("a.ini", NULL, 0, &config, &error.base), ATTN_OK);
    ck_assert_str_eq(config->workload.trace, trace);
    ck_assert_str_eq(config_place(config, "workload.trace"), "a.ini:2");
    config_destroy(config);

    file = fopen(path, "w");
    for (int i = 0; i < 1 << 17; i++)
        fputs("# 56789\n\n", file);
    fclose(file);
    config = NULL;
    ck_assert_int_eq(config_load(path, NULL, 0, &config, &error.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_null(config);
    unlink(path);
    rmdir(directory);
}

TEST_OF(files, paths_are_joined)
{
    static const char *const cases[][3] = {
        {"/a", "b", "/a/b"},       {"/a", "/b", "/b"},    {"/", "b", "/b"},
        {"/a", "./b", "/a/b"},     {"/a", ".", "/a"},     {"/a", ".//./b/c", "/a/b/c"},
        {"/a", "../b", "/a/../b"}, {"/a", ".b", "/a/.b"}, {"/a", "./", "/a"}};
    for (size_t i = 0; i < NUM(cases); i++) {
        char *path = config_path(cases[i][0], cases[i][1]);
        ck_assert_str_eq(path, cases[i][2]);
        free(path);
    }
}

/* ---- Printing -------------------------------------------------------------------------------- */

static char *print(const struct config *config)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    config_print(config, file);
    fclose(file);
    return text;
}

/* The lines that are not comments, in a buffer that the caller frees. */
static char *print_values(const struct config *config)
{
    char *text = print(config), *to = text;
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n') + 1;
        if (*line != '#') {
            memmove(to, line, (size_t)(next - line));
            to += next - line;
        }
    }
    *to = '\0';
    return text;
}

TEST_OF(printing, printed_config_reads_back_as_itself)
{
    static const char *const sets[] = {"kv_cache.k_scale=0.25", "attention.rules="};
    struct config *config, *again, *bare = load_good("");
    ck_assert_int_eq(load(good_ini, sets, NUM(sets), &config), ATTN_OK);
    char *text = print(config), *values = print_values(config);
    host_error_init(&error);
    ck_assert_msg(config_load_text(text, strlen(text), "p.ini", "/elsewhere", NULL, 0, &again,
                                   &error.base) == ATTN_OK,
                  "%s", host_error_text(&error));
    char *values_again = print_values(again), *values_bare = print_values(bare);
    ck_assert_str_eq(values, values_again);
    ck_assert_str_ne(values, values_bare);
    ck_assert_ptr_nonnull(strstr(values, "\npath = /base/plugins\n"));
    ck_assert_ptr_nonnull(strstr(values, "\n; mem_fraction = 0.8\n"));
    ck_assert_ptr_nonnull(strstr(values, "\npin.7 = /base/my plugin.so " SHA "\n"));
    ck_assert_ptr_nonnull(strstr(values, "\n[backend.empty]\n; type = empty\n"));
    ck_assert_ptr_nonnull(strstr(text, "# Set at t.ini:36.\npage_size = 16\n"));
    ck_assert_ptr_nonnull(strstr(text, "# Set at --set.\nk_scale = 0.25\n"));
    /* the flat members hold the same bits */
    ck_assert_mem_eq(&config->cuda_graph.enable, &again->cuda_graph.enable, sizeof(bool));
    ck_assert_mem_eq(&config->verify, &again->verify, sizeof config->verify);
    ck_assert_uint_eq(again->workload.seed, UINT64_MAX);
    free(text);
    free(values);
    free(values_again);
    free(values_bare);
    config_destroy(config);
    config_destroy(again);
    config_destroy(bare);
}

TEST_OF(printing, every_key_is_printed)
{
    struct config *config = load_good("");
    char *text = print(config);
    const char *at = text;
    for (size_t i = 0; i < config_num_keys; i++) {
        char line[64];
        snprintf(line, sizeof line, "\n; %s =", config_keys[i].name);
        ck_assert_ptr_nonnull(at = strstr(at, line));
        ck_assert_ptr_nonnull(strstr(text, config_keys[i].help));
    }
    free(text);
    config_destroy(config);
}

TEST_OF(printing, what_an_ini_cannot_hold_is_printed_as_a_comment)
{
    static char longest[70000];
    memset(longest, '/', sizeof longest);
    memcpy(longest, "workload.trace=", 15);
    longest[sizeof longest - 1] = '\0';
    const char *const sets[] = {longest};
    struct config *config, *again;
    ck_assert_int_eq(load("", sets, NUM(sets), &config), ATTN_OK);
    char *text = print(config);
    ck_assert_ptr_nonnull(strstr(text, "\n; trace = //"));
    ck_assert_int_eq(load(text, NULL, 0, &again), ATTN_OK);
    ck_assert_ptr_null(again->workload.trace);
    free(text);
    config_destroy(config);
    config_destroy(again);
}

/* --print-config is read back as it was, whatever the values hold. */
TEST_OF(printing, quoted_values_are_read_back)
{
    static const char *const values[] = {";v",   "a ;b", "\"",    "\\", "\"a\" ;\\\"",
                                         "\\\\", "a\"b", "x=y:z", "#"};
    const char *sets[NUM(values)];
    char text[NUM(values)][64];
    struct config *config, *again;
    for (size_t v = 0; v < NUM(values); v++) {
        snprintf(text[v], sizeof text[v], "backend.x.k%zu=%s", v, values[v]);
        sets[v] = text[v];
    }
    ck_assert_int_eq(load("", sets, NUM(sets), &config), ATTN_OK);
    char *printed = print(config);
    ck_assert_ptr_nonnull(strstr(printed, "\nk1 = \"a ;b\"\n"));
    ck_assert_int_eq(load(printed, NULL, 0, &again), ATTN_OK);
    ck_assert_uint_eq(again->backends.items[0].num_options, NUM(values));
    for (size_t v = 0; v < NUM(values); v++) {
        ck_assert_str_eq(config->backends.items[0].options[v].value, values[v]);
        ck_assert_str_eq(again->backends.items[0].options[v].value, values[v]);
    }
    free(printed);
    config_destroy(config);
    config_destroy(again);
}

TEST_OF(printing, quotes_have_to_be_closed)
{
    struct config *config = load_good("[backend.x]\na = \"v ;w\"  ; comment\n");
    ck_assert_str_eq(config->backends.items[0].options[0].value, "v ;w");
    config_destroy(config);
    ASSERT_REFUSED("[backend.x]\na = \"v\n", "t.ini:2: the value has no closing quote");
    ASSERT_REFUSED("[backend.x]\na = \"v\\\"\n", "t.ini:2: the value has no closing quote");
    ASSERT_REFUSED("[backend.x]\na = \"\n", "t.ini:2: the value has no closing quote");
    ASSERT_REFUSED("[backend.x]\na = \"v\" w\n", "t.ini:2: there is text after the closing quote");
}

/* ---- Garbage --------------------------------------------------------------------------------- */

static uint64_t random_state = 20240607;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

/* Whatever the bytes, the answer is a config that prints and reads back, or a message. */
static void assert_survives(const char *text, size_t length)
{
    struct config *config = NULL, *again = NULL;
    host_error_init(&error);
    attn_status status =
        config_load_text(text, length, "f.ini", "/b", NULL, 0, &config, &error.base);
    if (status != ATTN_OK) {
        ck_assert_int_eq(status, ATTN_CONFIG_ERROR);
        ck_assert_ptr_null(config);
        ck_assert_int_eq(strncmp(host_error_text(&error), "f.ini:", 6), 0);
        return;
    }
    char *printed = print(config), *values = print_values(config);
    ck_assert_msg(load(printed, NULL, 0, &again) == ATTN_OK, "%s", host_error_text(&error));
    char *values_again = print_values(again);
    ck_assert_str_eq(values, values_again);
    free(printed);
    free(values);
    free(values_again);
    config_destroy(config);
    config_destroy(again);
}

TEST_OF(garbage, mutations_of_a_good_ini)
{
    static const char bytes[] = "[]=:;# \t\r\n\0.,*-/0179eaz\xEF\xBB\xBF\x1b";
    char text[sizeof good_ini + 600];
    for (int round = 0; round < random_cases(4000); round++) {
        size_t length = sizeof good_ini - 1;
        memcpy(text, good_ini, length);
        for (uint32_t n = 1 + random_below(4); n > 0; n--) {
            size_t at = random_below((uint32_t)length), span = random_below(20);
            if (span > length - at)
                span = length - at;
            switch (random_below(4)) {
            case 0: /* another byte */
                text[at] = bytes[random_below(sizeof bytes)];
                break;
            case 1: /* a hole */
                memmove(text + at, text + at + span, length - at - span);
                length -= span;
                break;
            case 2: /* one byte many times over */
                span *= 7;
                if (length + span <= sizeof text) {
                    memmove(text + at + span, text + at, length - at);
                    memset(text + at, bytes[random_below(sizeof bytes)], span);
                    length += span;
                }
                break;
            default: /* cut off */
                if (random_below(8) == 0)
                    length = at + 1;
            }
        }
        /* a separate block, so that a byte read too far is seen */
        char *exact = malloc(length);
        memcpy(exact, text, length);
        assert_survives(exact, length);
        free(exact);
    }
}

TEST_OF(garbage, random_bytes_and_random_tokens)
{
    static const char *const tokens[] = {"[model]",
                                         "\n",
                                         "[backend.",
                                         "]",
                                         "[kv_cache]\n",
                                         "page_size",
                                         " = ",
                                         "=",
                                         "\n  ",
                                         ";",
                                         " ;",
                                         "k",
                                         "1",
                                         "-",
                                         "path",
                                         "[plugins]\n",
                                         "route.1",
                                         "->",
                                         "[attention]\n",
                                         "*",
                                         "layer_types",
                                         "full",
                                         "\r\n",
                                         "0.5",
                                         "type",
                                         ":",
                                         "bs",
                                         "8-64/8",
                                         "[cuda_graph]\n",
                                         ",",
                                         "#",
                                         "k_scale"};
    char text[512];
    for (int round = 0; round < random_cases(4000); round++) {
        size_t length = 0;
        if (round % 4 == 0) {
            length = random_below(sizeof text);
            for (size_t i = 0; i < length; i++)
                text[i] = (char)random_below(256);
        } else {
            for (uint32_t n = random_below(40); n > 0; n--) {
                const char *token = tokens[random_below(NUM(tokens))];
                size_t size = strlen(token);
                memcpy(text + length, token, size);
                length += size;
            }
        }
        char *exact = malloc(length + 1);
        memcpy(exact, text, length);
        exact[length] = '\0';
        assert_survives(exact, length);
        struct config *config = NULL; /* and the same bytes as a --set */
        const char *const set = exact;
        if (load("", &set, 1, &config) == ATTN_OK)
            config_destroy(config);
        else
            ck_assert(*host_error_text(&error));
        free(exact);
    }
}

GROUP(garbage, .timeout = 120); /* valgrind */
TESTS("config");
