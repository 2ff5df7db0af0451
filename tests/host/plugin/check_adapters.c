/* SPDX-License-Identifier: Apache-2.0
 *
 * check_adapters: a host of ABI 2 that has yet to be: today's, with majors of its own. A plugin of
 * 2.0 is loaded as it is, one of 1.0 through an adapter, and both compute the same; one of 0.x is
 * refused. The plugins are examples/plugin/example_rows.c with the headers of tests/abi/pretended.
 */
#include "attnhost.h"
#include "host/base/error.h"
#include "host/plugin/adapters.h"
#include "tests/host/plugin/pretended_v1.h"
#include "tests/tools/test_main.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the place of those of host/plugin/adapters.c. */
const struct adapter adapters[] = {
    {.major = 2, .minor = 0},
    {.major = 1, .minor = 0, .adapt = pretended_v1_adapt, .release = pretended_v1_release},
};
const size_t num_adapters = sizeof adapters / sizeof *adapters;

static host_error error;
static attnhost *host;

static void setup(void)
{
    host_error_init(&error);
    ck_assert_int_eq(attnhost_create(NULL, &host, NULL), ATTN_OK);
}

static void teardown(void)
{
    attnhost_destroy(host);
}

static const char *fixture(const char *name)
{
    static char path[4200];
    char folder[4096];
    const char *built = getenv("ATTNHOST_TEST_FIXTURE_DIR");
    ck_assert_msg(built && realpath(built, folder), "ATTNHOST_TEST_FIXTURE_DIR is not set");
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    return path;
}

static const char *const plugins[] = {"pretended_v2", "pretended_v1"};

/* Its own type where it speaks today's ABI, the adapter's where it speaks the one before. */
LOOP_OF(pretended, both_majors_are_loaded, 0, 2)
{
    attnhost_plugin_info info = {.struct_size = sizeof info};
    attnhost_type_info type = {.struct_size = sizeof type};
    attn_status status = attnhost_load_plugin(host, fixture(plugins[_i]), &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    ck_assert_int_eq(attnhost_plugin(host, 0, &info, NULL), ATTN_OK);
    ck_assert_uint_eq(info.abi_major, _i == 0 ? 2 : 1);
    ck_assert_int_eq(attnhost_type(host, 0, &type, NULL), ATTN_OK);
    ck_assert_str_eq(type.type->name, "example_rows");
    ck_assert_str_eq(type.type->layouts[0], ATTN_LAYOUT_KV_NHD);
}

/* Serve a trace with prefixes, chunks and decodes; each row is judged by the oracle. */
static char *run_digest(const char *plugin)
{
    char path[4300], trace[4300];
    const char *source = getenv("ATTNHOST_TEST_SRCDIR");
    uint32_t passed = 0;
    char *json = NULL;
    snprintf(path, sizeof path, "plugins.path=%s", fixture(plugin));
    snprintf(trace, sizeof trace, "workload.trace=%s/examples/traces/mini_mooncake.jsonl",
             source ? source : ".");
    const char *const sets[] = {path,
                                trace,
                                "platform.device=cpu",
                                "attention.attention_backend=example_rows",
                                "model.num_layers=2",
                                "model.num_q_heads=4",
                                "model.num_kv_heads=2",
                                "model.head_dim=16",
                                "workload.length_scale=0.02",
                                "workload.chunked_prefill_size=64",
                                "verify.rate=1"};
    attn_status status =
        attnhost_run(NULL, sets, sizeof sets / sizeof *sets, &passed, &json, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s: %s", plugin, host_error_text(&error));
    ck_assert_msg(passed == 1, "%s: %.1500s", plugin, json);
    cJSON *report = cJSON_Parse(json);
    const cJSON *rows = cJSON_GetObjectItem(cJSON_GetObjectItem(report, "tokens"), "decode");
    ck_assert(cJSON_IsNumber(rows) && rows->valueint > 10);
    char *digest = strdup(cJSON_GetObjectItem(report, "digest")->valuestring);
    cJSON_Delete(report);
    attnhost_free_text(json);
    return digest;
}

TEST_OF(pretended, a_plugin_of_the_major_before_computes_the_same)
{
    char *now = run_digest("pretended_v2"), *before = run_digest("pretended_v1");
    ck_assert_str_eq(now, before);
    free(now);
    free(before);
}

TEST_OF(pretended, older_ones_are_refused_with_a_sentence)
{
    ck_assert_int_eq(attnhost_load_plugin(host, fixture("example_rows"), &error.base),
                     ATTN_INCOMPATIBLE_VERSION);
    const char *said = host_error_text(&error);
    ck_assert_msg(strstr(said, "example_rows.so: supports no ABI major of this host; accepted: "
                               "1..2; its message: ABI major 1..2: accepted 0"),
                  "%s", said);
    /* Its entry does not ask which majors the host speaks. */
    ck_assert_int_eq(attnhost_load_plugin(host, fixture("fixture_describe_fails"), &error.base),
                     ATTN_INCOMPATIBLE_VERSION);
    said = host_error_text(&error);
    ck_assert_msg(strstr(said, "fixture_describe_fails.so: chose ABI major 0; accepted: 1..2"),
                  "%s", said);
}

GROUP(pretended, .set_up = setup, .tear_down = teardown);
TESTS("adapters");
