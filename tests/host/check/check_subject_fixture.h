/* SPDX-License-Identifier: Apache-2.0
 *
 * check_subject_fixture.h: a backend as the subject of checks, and cases of them in this process.
 * Each test program has its own copy.
 */
#ifndef CHECK_SUBJECT_FIXTURE_H
#define CHECK_SUBJECT_FIXTURE_H

#include "host/check/cases/kind.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "tests/tools/test_main.h"

#include <stdio.h>
#include <stdlib.h>

static attnhost *host;
static struct check_subject subject;
static host_error error;

#define GOOD(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))

/* Load a file of a folder that the environment names. */
static inline void load_plugin(const char *folder_variable, const char *name, char path[4096])
{
    const char *folder = getenv(folder_variable);
    char joined[4096];
    ck_assert_msg(folder != NULL, "%s is not set", folder_variable);
    snprintf(joined, sizeof joined, "%s/%s", folder, name);
    ck_assert_msg(realpath(joined, path) != NULL, "%s", joined);
    GOOD(attnhost_load_plugin(host, path, &error.base));
}

static inline void open_host(void)
{
    attnhost_params params = {.struct_size = sizeof params, .num_threads = 2};
    host_error_init(&error);
    GOOD(attnhost_create(&params, &host, &error.base));
}

/* Make a subject of a backend; the plugin's file is in `path`. */
static inline void open_subject(const char *backend, const char *path, int32_t device_type)
{
    subject = (struct check_subject){
        .host = host, .file = path, .object = path, .backend = backend, .seed = 7};
    GOOD(device_open(device_type, 0, &subject.device, &error.base));
    GOOD(device_open(ATTN_DEVICE_CPU, 0, &subject.cpu, &error.base));
    GOOD(device_enter(subject.device, &error.base));
    GOOD(compose_resolve(&host->composer, backend, subject.device, &subject.node, &error.base));
    for (uint32_t n = 0; n < compose_num_nodes(subject.node); n++)
        GOOD(loader_acquire(compose_node_at(subject.node, n)->type->plugin, &error.base));
    subject.plugin = subject.node->type->plugin_index;
    subject.type = subject.node->type->type;
    subject.options = &subject.node->options->view;
    subject.services = &subject.node->services;
    subject.fake_device = device_type == ATTN_DEVICE_CUDA;
}

static inline void close_subject(void)
{
    for (uint32_t n = 0; n < compose_num_nodes(subject.node); n++)
        loader_release(compose_node_at(subject.node, n)->type->plugin);
    compose_destroy(subject.node);
    device_leave(subject.device);
    device_close(subject.cpu);
    device_close(subject.device);
    attnhost_destroy(host);
}

static inline int32_t count_cases(const struct check *check)
{
    int32_t count = kind_count(check, &subject);
    return count < 0 ? 1 : count;
}

static inline struct check_run run_case(const struct check *check, int32_t index)
{
    struct check_run run = {.subject = &subject,
                            .check = check,
                            .index = index,
                            .seed = mix_word(subject.seed + (uint64_t)index)};
    check->run(&run);
    return run;
}

#endif /* CHECK_SUBJECT_FIXTURE_H */
