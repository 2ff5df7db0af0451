/* SPDX-License-Identifier: Apache-2.0
 *
 * embed.h: what is behind the handles of attnhost.h.
 *
 * The executor and the commands use the functions of attnhost.h like everybody else; this header is
 * for what they need beside: the thread pool, the registry, the device.
 */
#ifndef HOST_EMBED_EMBED_H
#define HOST_EMBED_EMBED_H

#include "attnhost.h"
#include "host/plugin/compose.h"
#include "host/config/config.h"

struct attnhost {
    struct host_log log;
    struct threads *threads;
    struct registry registry;
    struct composer composer;
    uint32_t num_backends; /* alive */
};

/* Memory that several metadata share. */
struct embed_scratch {
    void *base;
    uint64_t size;
    uint64_t alignment;
    uint32_t users; /* metadata, and the backend while it is the newest of its space */
};

struct attnhost_backend {
    attnhost *host;
    struct device *device;
    struct compose_node *root;
    attn_child child; /* the root's instance */
    uint32_t index_forms;
    uint32_t needs_host_lens;
    int32_t *kv_groups; /* groups of attn_batch.kv_groups that its layers read */
    uint32_t num_kv_groups;
    struct embed_scratch *scratch[ATTN_SPACE_COUNT]; /* the newest of each space; may be NULL */
    uint32_t num_metadata;                           /* alive */
};

/* Load the [plugins] section: pins, then paths in their order. CONFIG_ERROR for a path that does
 * not exist or a folder that cannot be searched; refused files stay on record. */
attn_status embed_load_plugins(attnhost *host, const struct config *config, attn_error *error);

/* The first plugin marked critical that is refused (its status and reason) or was not found
 * (DEPENDENCY_MISSING); ATTN_OK if there is none. */
attn_status embed_check_critical(const attnhost *host, const struct config *config,
                                 attn_error *error);

/* Define the [backend.NAME] sections, and the backend of the routes. */
attn_status embed_define_backends(attnhost *host, const struct config *config, attn_error *error);

/* Can the problems be looked at at all: pointers there, one device, layer ids unique?
 * INVALID_ARGUMENT. */
attn_status embed_check_problems(const attn_problem *problems, uint32_t num_problems,
                                 attn_error *error);

/* Around calls into the plugins of a backend: on CUDA the device's primary context is current in
 * between, and afterwards what was so before, which may be none. embed_leave() has to be told what
 * `entered` was set to. Where the context is current already, as it mostly is, nothing is changed.
 */
attn_status embed_enter(const attnhost_backend *backend, int *entered, attn_error *error);
void embed_leave(const attnhost_backend *backend, int entered);

/* What the backend tells of the choices that it made in prepare(), or NULL. */
const char *embed_explanation(const attnhost_backend *backend);

/* Copy a sized struct of `size` bytes into one whose owner set struct_size: no more than there is
 * room for, and struct_size stays. */
void embed_give(void *to, const void *from, size_t size);

#endif /* HOST_EMBED_EMBED_H */
