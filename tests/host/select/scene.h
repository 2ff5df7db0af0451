/* SPDX-License-Identifier: Apache-2.0
 *
 * scene.h: a selection, from plugins and settings on.
 */
#ifndef TESTS_SELECT_SCENE_H
#define TESTS_SELECT_SCENE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/embed/embed.h"
#include "host/select/open_host.h"
#include "host/select/platform.h"
#include "host/select/select.h"
#include "tests/tools/test_main.h"

struct scene {
    attnhost *host;
    struct config *config;
    struct model *model;
    struct selection *selection;
    host_error error;
    attn_status status; /* of the selection */
};

static inline const char *environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value ? value : otherwise;
}

static inline void load_plugin(attnhost *host, const char *variable, const char *folder,
                               const char *file)
{
    HOST_ERROR(error);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", environment(variable, folder), file);
    attn_status status = attnhost_load_plugin(host, path, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
}

static inline void scene_create(struct scene *scene)
{
    memset(scene, 0, sizeof *scene);
    host_error_init(&scene->error);
    ck_assert_int_eq(attnhost_create(NULL, &scene->host, NULL), ATTN_OK);
}

/* Backends and a model; the settings themselves are right. */
static inline attn_status scene_define(struct scene *scene, const char *ini,
                                       const char *const *sets, size_t num_sets)
{
    attn_error *error = &scene->error.base;
    attn_status status =
        config_load_text(ini, strlen(ini), "t.ini", NULL, sets, num_sets, &scene->config, error);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&scene->error));
    status = open_host_define_backends(scene->host, scene->config, error);
    return status ? status : model_create(scene->config, &scene->model, error);
}

static inline void scene_choose(struct scene *scene)
{
    attn_device device;
    attn_status status = platform_describe(scene->config, &device, &scene->error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&scene->error));
    scene->status = select_create(scene->host, scene->config, scene->model, &device,
                                  &scene->selection, &scene->error.base);
}

static inline void scene_end(struct scene *scene)
{
    select_destroy(scene->selection);
    model_destroy(scene->model);
    config_destroy(scene->config);
    attnhost_destroy(scene->host);
}

/* One that ends with its block. */
#define SCENE(name) struct scene name __attribute__((cleanup(scene_end)))

#endif /* TESTS_SELECT_SCENE_H */
