/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost_fixture.h: a host with fixture_good and fixture_pair loaded, and a problem of two layer
 * groups; for tests of attnhost.h. Each test program has its own copy. */
#ifndef ATTNHOST_FIXTURE_H
#define ATTNHOST_FIXTURE_H

#include "attnhost.h"
#include "host/embed/embed.h"

#include "host/base/error.h"
#include "tests/fixtures/fixture.h"
#include "tests/tools/plain_problem.h"
#include "tests/tools/test_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fixtures[4096];
static attnhost *host;
static host_error error;
static char logged[8192];

static inline void take_message(void *ctx, uint32_t level, const char *message)
{
    size_t length = strlen(logged);
    (void)ctx;
    snprintf(logged + length, sizeof logged - length, "%u %s\n", level, message);
}

static inline attn_status load(const char *name)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s.so", fixtures, name);
    return attnhost_load_plugin(host, path, &error.base);
}

static inline void setup(void)
{
    const char *built = getenv("ATTNHOST_TEST_FIXTURE_DIR");
    ck_assert_msg(built && realpath(built, fixtures), "ATTNHOST_TEST_FIXTURE_DIR is not set");
    attnhost_params params = {.struct_size = sizeof params,
                              .num_threads = 2,
                              .log_level = ATTN_LOG_DEBUG,
                              .log = take_message};
    host_error_init(&error);
    logged[0] = '\0';
    ck_assert_int_eq(attnhost_create(&params, &host, NULL), ATTN_OK);
    ck_assert_int_eq(load("fixture_good"), ATTN_OK);
    ck_assert_int_eq(load("fixture_pair"), ATTN_OK);
}

static inline void teardown(void)
{
    attnhost_destroy(host);
}

static inline void assert_says(const char *part)
{
    ck_assert_msg(strstr(host_error_text(&error), part) != NULL, "'%s' is not in '%s'", part,
                  host_error_text(&error));
}

static inline const struct fixture_counters *counters_of(const char *plugin)
{
    const struct loader_plugin *found = registry_find_plugin(&host->registry, plugin);
    ck_assert_ptr_nonnull(found);
    return found->table.get_extension(FIXTURE_COUNTERS);
}

static inline void define(const char *name, const char *type, const char *key, const char *value,
                          const char *key2, const char *value2)
{
    const char *pairs[] = {key, value, key2, value2};
    uint32_t count = key2 ? 2 : key ? 1 : 0;
    ck_assert_int_eq(attnhost_define_backend(host, name, type, pairs, count, &error.base), ATTN_OK);
}

/* ---- A problem ------------------------------------------------------------------------------- */

static attn_device device;
static attn_layer layers[2];
static attn_layer_group groups[2];
static attn_bounds bounds;
static attn_problem problems[2];

/* Two KV groups of one layer each. */
static inline void make_problems(void)
{
    struct plain_problem plain;
    for (int p = 0; p < 2; p++) {
        plain_problem_init(&plain, p, ATTN_F32);
        layers[p] = plain.layer;
        groups[p] = plain.group;
        groups[p].layers = &layers[p];
        problems[p] = plain.problem;
        problems[p].device = &device;
        problems[p].group = &groups[p];
        problems[p].bounds = &bounds;
    }
    device.struct_size = sizeof device;
    ck_assert_int_eq(attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, NULL), ATTN_OK);
    bounds = plain.bounds;
    bounds.modes |= ATTN_MODE_BIT(ATTN_MODE_MIXED);
    bounds.max_seqs = 8;
    bounds.max_tokens = 33;
    bounds.max_q_len = 17;
    bounds.max_kv_len = 100;
    bounds.max_kv_tokens = 800;
}

static inline void end_backend(attnhost_backend **backend)
{
    attnhost_backend_destroy(*backend);
}

/* One that ends with its block. */
#define BACKEND(name) attnhost_backend *name __attribute__((cleanup(end_backend)))

static inline attnhost_backend *compose(const char *name)
{
    attnhost_backend *backend = NULL;
    make_problems();
    attn_status status = attnhost_compose(host, name, problems, 2, &backend, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return backend;
}

static inline attn_status fail_compose(const char *name)
{
    attnhost_backend *backend = NULL;
    host_error_init(&error);
    attn_status status = attnhost_compose(host, name, problems, 2, &backend, &error.base);
    ck_assert_ptr_null(backend);
    ck_assert_int_eq(host->num_backends, 0);
    return status;
}

#endif /* ATTNHOST_FIXTURE_H */
