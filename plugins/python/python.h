/* SPDX-License-Identifier: Apache-2.0
 *
 * python.h: backends that are written in Python, each a class of a source (a .py file, or
 * "module:Class").
 *
 *   capi.c      the interpreter
 *   source.c    a source: its plugin's table, its classes
 *   declare.c   declarations of a class: limits, ranges, options
 *   query.c     questions, answered by the declaration; `supports` of the class is asked last
 *   instance.c  instances and metadata
 *   batch.c     a batch as Python sees it
 *   forward.c   operands, checked and handed over without a copy (DLPack)
 *
 * The other side is python/attnhost/backend.py, which is embedded (embed.sh). The GIL is held in
 * calls alone. */
#ifndef PLUGINS_PYTHON_PYTHON_H
#define PLUGINS_PYTHON_PYTHON_H

#include "plugins/python/capi.h"

/* python/attnhost/backend.py, NUL-terminated. */
extern const char python_module[];

/* A range of a number of the problem: "16..256/16, 512". */
struct python_range {
    uint32_t field; /* ATTN_FIELD_* */
    char *accepted; /* as attn_reason writes it */
};

/* A class. Never freed: the host may keep what points to it as long as the process lives. */
struct python_kind {
    attn_backend_type type; /* first: the host calls back with its address */
    py_object *object;      /* _Kind of backend.py */
    attn_util_limits limits;
    uint32_t devices; /* set of 1 << ATTN_DEVICE_* */
    uint32_t num_layouts;
    char **layouts;
    uint32_t num_ranges;
    struct python_range *ranges;
    uint32_t index_forms; /* ATTN_INDEX_* */
    uint32_t host_arrays; /* ATTN_HOST_* */
    uint32_t caps_logits; /* 1 = logit_cap is served */
    uint32_t asks;        /* 1 = the class has a predicate */
    uint32_t saves;       /* 1 = the class saves new keys itself */
    double cost_hint;
};

/* Fill in `kind` from its object. CONFIG_ERROR names the fault. With the GIL. */
attn_status python_declare(struct python_kind *kind, attn_error *error);

/* The slots of every kind's type. */
extern const attn_backend_ops python_ops;
attn_status python_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *answer, attn_error *error);
attn_status python_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error);

/* The values of options as a tuple of (key, value); those of every option where there are none. */
py_object *python_options(const attn_options *options);

/* A problem as a tuple: _Problem of backend.py. */
py_object *python_problem(const attn_util_question *question);

/* ---- Instances ------------------------------------------------------------------------------- */

struct python_layer {
    attn_mla_dims mla; /* of latent layers; zero of others */
    int32_t page_size; /* of its problem */
    int32_t is_hnd;    /* its cache is in kv.hnd/1 */
    int32_t has_cache; /* 0 = encoder_only */
};

struct attn_instance {
    attn_util_model model;
    const struct python_kind *kind;
    struct python_layer *layers; /* [model.num_layers] */
    int32_t device_type, device_id;
    py_object *object;  /* _Instance */
    py_object *convert; /* capsule -> tensor; or numpy.ndarray, */
    int32_t is_numpy;   /* which takes a buffer */
    int32_t reserved;
};

/* A tensor that stays: caches, sinks. */
struct python_kept {
    attn_tensor of;
    py_object *tensor;
};

struct attn_metadata {
    attn_instance *instance;
    attn_bounds bounds;
    uint32_t kind, mode;
    int32_t planned;
    int32_t reserved;
    py_object *object;        /* _Metadata */
    py_object *forward;       /* its method */
    struct python_kept *kept; /* [num_layers][ATTN_ROLE_COUNT] */
    attn_batch batch;         /* of the last plan, on a processor; its structs are the caller's */
    attn_kv_batch *kv;        /* [num_kv_groups] copies */
};

/* A view of the tensor as Python's library has it; no copy. NULL with *error. With the GIL. */
py_object *python_tensor(const attn_instance *instance, const attn_tensor *tensor,
                         attn_error *error);

/* An array of a batch, of `ndim` dimensions, dense but for `stride` between rows; None if both
 * pointers are NULL. Reads device memory where there is some. */
py_object *python_batch(const attn_metadata *metadata, const attn_batch *batch, void *stream,
                        attn_error *error);

attn_status python_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);
attn_status python_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);

#endif /* PLUGINS_PYTHON_PYTHON_H */
