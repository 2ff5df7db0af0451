/* SPDX-License-Identifier: Apache-2.0
 *
 * embed.h: the structs of attnhost.h's handles.
 *
 * The executor and the commands use the functions of attnhost.h like any engine; this header gives
 * them the thread pool, the registry and the device too. select/open_host.c makes a host from a
 * configuration.
 */
#ifndef HOST_EMBED_EMBED_H
#define HOST_EMBED_EMBED_H

#include "attnhost.h"
#include "host/base/error.h"
#include "host/plugin/compose.h"

struct attnhost {
    struct host_log log;
    struct threads *threads;
    struct device_allocator allocator; /* functions are NULL = the kinds' own */
    struct registry registry;
    struct composer composer;
    uint32_t num_backends; /* alive */
};

/* Memory that several metadata share. */
struct embed_scratch {
    void *base;
    uint64_t size;
    uint64_t alignment;
    uint32_t users; /* users: metadata, and the backend while it is the newest of its space */
};

/* A layer of a backend. */
struct embed_layer {
    int32_t layer_id;
    uint32_t flags;                     /* ATTN_GROUP_* */
    attn_dtype dtypes[ATTN_ROLE_COUNT]; /* of its operands; NONE = not checked */
    const char *whose[ATTN_ROLE_COUNT]; /* source of the dtype, for messages; static */
    int32_t device_type;                /* ATTN_DEVICE_* */
    uint32_t min_alignment, kv_strides; /* as the problem promises */
    uint32_t private_operands; /* that calls bring: bits, by their places in the type's list */
    attn_dtype q_dtype;
    int32_t num_q_heads, num_kv_heads;
};

struct attnhost_backend {
    attnhost *host;
    struct device *device;
    struct compose_node *root;
    attn_child child; /* the root's instance */
    uint32_t index_forms;
    uint32_t host_arrays; /* ATTN_HOST_* */
    int32_t *kv_groups;   /* groups of attn_batch.kv_groups that its layers read */
    uint32_t num_kv_groups;
    int32_t *state_groups; /* groups of attn_batch.state_groups that its linear layers use */
    uint32_t num_state_groups;
    int32_t max_top_k;          /* of its sparse layers; 0 = it has none */
    struct embed_layer *layers; /* by layer_id */
    size_t num_layers;
    struct embed_scratch *scratch[ATTN_SPACE_COUNT]; /* the newest of each space; may be NULL */
    uint32_t num_metadata;                           /* alive */
    struct embed_merge *merge;                       /* NULL = not loaded */
};

/* attnhost_load_installed() with another folder in place of the one that plugins are installed in.
 */
attn_status embed_load_found(attnhost *host, const char *folder, attn_error *error);

/* Are the problems readable: all pointers present, one device, unique layer ids? INVALID_ARGUMENT.
 */
attn_status embed_check_problems(const attn_problem *problems, uint32_t num_problems,
                                 attn_error *error);

/* Is a layer group of the engine readable, with its dimensions and layers? INVALID_ARGUMENT. */
attn_status embed_check_group(const attn_layer_group *group, attn_error *error);

/* INVALID_ARGUMENT where a struct of the engine ends before `member`, the last that it must have:
 * its struct_size was not set, or it is another struct. `what` names it. */
#define EMBED_CHECK_SIZE(pointer, type, member, what, error)                                       \
    (ATTN_HAS(pointer, type, member)                                                               \
         ? ATTN_OK                                                                                 \
         : embed_fail_size(what, (pointer)->struct_size, sizeof(type), error))
attn_status embed_fail_size(const char *what, uint32_t got, size_t needed, attn_error *error);

/* All layers of these problems by layer_id; the caller frees *layers. OUT_OF_HOST_MEMORY. */
attn_status embed_list_layers(const attn_problem *problems, uint32_t num_problems,
                              struct embed_layer **layers, size_t *num_layers, attn_error *error);

/* Can the arguments of a forward be passed on? INVALID_ARGUMENT names the operand. */
attn_status embed_check_args(const attnhost_backend *backend, int32_t layer_id,
                             const attn_forward_args *args, attn_error *error);

/* Note which private operands the layers' calls bring. INTERNAL: the backend accepts one that its
 * type does not declare. */
attn_status embed_note_private(attnhost_backend *backend, const attn_problem *problems,
                               uint32_t num_problems, attn_error *error);

/* Does a forward of the layer bring these, as they are declared, and no others? INVALID_ARGUMENT
 * names the operand. */
attn_status embed_check_private(const attnhost_backend *backend, const struct embed_layer *layer,
                                const attn_forward_args *args, attn_error *error);

/* Around calls into the plugins of a backend: on CUDA the device's primary context is current in
 * between, and afterwards the one that was before, which may be none. embed_leave() takes the value
 * that embed_enter() stored in `entered`. Where the context is current already, as it mostly is,
 * nothing is changed.
 */
attn_status embed_enter(const attnhost_backend *backend, int *entered, attn_error *error);
void embed_leave(const attnhost_backend *backend, int entered);

/* After a failure in a backend's plugins: append to the message the size that the engine's
 * allocator refused. */
attn_status embed_fail(const attnhost_backend *backend, attn_status status, const host_error *said,
                       attn_error *error);

/* Unload what attnhost_merge() loaded; the device is entered. */
void embed_merge_finish(attnhost_backend *backend);

/* The backend's explanation of the choices that it made in prepare(), or NULL. */
const char *embed_explanation(const attnhost_backend *backend);

/* Copy a sized struct of `size` bytes into one whose owner set struct_size: no more than there is
 * room for, and struct_size stays. */
void embed_give(void *to, const void *from, size_t size);

#endif /* HOST_EMBED_EMBED_H */
