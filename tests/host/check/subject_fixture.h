/* SPDX-License-Identifier: Apache-2.0
 *
 * subject_fixture.h: a backend as the conformance suite's checks get it, for tests of the checks.
 */
#ifndef SUBJECT_FIXTURE_H
#define SUBJECT_FIXTURE_H

#include "host/check/check.h"
#include "host/check/cases/forward_case.h"

#include "host/base/error.h"
#include "tests/tools/test_main.h"

#include <stdio.h>

struct subject_fixture {
    attnhost *host;
    struct device *device, *cpu;
    struct compose_node *node;
    struct check_subject subject;
    struct case_backend backend;
};

static host_error failure;

#define GOOD(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&failure))

static inline void subject_load(struct subject_fixture *f, const char *dir, const char *name)
{
    char path[4400];
    const char *folder = getenv(dir);
    ck_assert_msg(folder != NULL, "%s is not set", dir);
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    GOOD(attnhost_load_plugin(f->host, path, &failure.base));
}

static inline void subject_create_host(struct subject_fixture *f, uint32_t num_threads)
{
    attnhost_params params = {.struct_size = sizeof params, .num_threads = num_threads};
    *f = (struct subject_fixture){0};
    host_error_init(&failure);
    GOOD(attnhost_create(&params, &f->host, &failure.base));
}

/* The backend `name`, which is loaded, on a device. */
static inline void subject_resolve(struct subject_fixture *f, const char *name, int32_t device)
{
    GOOD(device_open(ATTN_DEVICE_CPU, 0, &f->cpu, &failure.base));
    f->device = f->cpu;
    if (device != ATTN_DEVICE_CPU)
        GOOD(device_open(device, 0, &f->device, &failure.base));
    GOOD(compose_resolve(&f->host->composer, name, f->device, &f->node, &failure.base));
    GOOD(loader_acquire(f->node->type->plugin, &failure.base));
    f->node->acquired = 1;
    f->backend = (struct case_backend){.type = f->node->type->type,
                                       .options = &f->node->options->view,
                                       .services = &f->node->services};
    f->subject = (struct check_subject){.host = f->host,
                                        .type = f->backend.type,
                                        .backend = name,
                                        .node = f->node,
                                        .options = f->backend.options,
                                        .services = f->backend.services,
                                        .device = f->device,
                                        .cpu = f->cpu,
                                        .seed = 1};
}

static inline void subject_destroy(struct subject_fixture *f)
{
    compose_destroy(f->node);
    if (f->device != f->cpu)
        device_close(f->device);
    device_close(f->cpu);
    attnhost_destroy(f->host);
}

#endif /* SUBJECT_FIXTURE_H */
