/* SPDX-License-Identifier: Apache-2.0
 *
 * kinds.h: differences between kinds of layers, in one table with a row per ATTN_KIND_*. Other code
 * tests a property here, not the kind.
 *
 *   softmax.c   softmax attention over keys and values
 *   mla.c       latent attention, absorbed or expanded; its layouts (mla.h)
 *   linear.c    recurrences: a state instead of a cache
 *   sparse.c    latent attention to the keys that an indexer chooses
 *   attention.c what all but recurrences have in common
 *
 * docs/ARCHITECTURE.md says what a new kind needs. What it is called, whether it has a cache or a
 * state, and what it is read from are the model's (model.h).
 */
#ifndef HOST_KINDS_KINDS_H
#define HOST_KINDS_KINDS_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/config/config.h"
#include "host/kinds/operands.h"
#include "host/model/model.h"
#include "host/workload/generator.h"
#include "host/workload/workload.h"

enum { KIND_MAX_LAYOUTS = 2, KIND_MAX_TENSORS = 2, KIND_MAX_CONSTANTS = 5 };

/* ---- Rows of a step -------------------------------------------------------------------------- */

/* A way to call a layer: what it is given and writes. */
struct kind_form {
    /* Operands that have a row for each row of a step; returns how many. New keys and values, which
     * a layer that only reads its cache is not given, stand last: GENERATOR_KEY, _VALUE. */
    uint32_t (*list)(const struct model *model, const attn_layer_group *group,
                     struct row_operand *list);
    /* heads and dim of the output's rows. */
    void (*output)(const attn_layer_group *group, struct row_operand *out);
    /* Fill in heads, dimensions and masks of a geometry that is zero except for kv_layer; NULL =
     * the rows are not made of queries, keys and values. */
    void (*geometry)(const attn_layer_group *group, generator_layer *geometry);
};

/* Which row is made, and of what. */
struct kind_row {
    const struct generator *generator;
    const struct workload *workload;
    const attn_layer_group *group;
    int32_t layer; /* the generator's: operands_form() */
    int64_t request, position;
};

/* ---- Pools ----------------------------------------------------------------------------------- */

/* What a layer's buffer in the pools is made of. */
struct kind_pool {
    const char *layout; /* one of the kind's */
    attn_dtype kv_dtype;
    int64_t num_pages, page_size; /* of a cache */
    int64_t num_slots;            /* of states */
};

/* Which of the scales of the configuration a tensor is stored with. */
enum { KIND_SCALE_NONE, KIND_SCALE_KEY, KIND_SCALE_VALUE };

/* A dense tensor of the buffer; pages or slots are its first dimension. */
struct kind_tensor {
    uint32_t role;  /* ATTN_ROLE_* under which the layer is given it */
    uint32_t scale; /* KIND_SCALE_* */
    attn_dtype dtype;
    uint32_t ndim;
    int64_t shape[4];
};

/* ---- The table ------------------------------------------------------------------------------- */

/* How output rows are judged (host/verify). */
enum {
    KIND_JUDGED_AS_ATTENTION,  /* a row alone, from the keys that it sees */
    KIND_JUDGED_AS_RECURRENCE, /* by replay of all rows before it */
    KIND_JUDGED_COUNT
};

struct kind_ops {
    /* Rows. */
    const struct kind_form *form;
    const struct kind_form *expanded; /* that model.mla_expanded asks for; NULL = there is none */
    void (*make_row)(const struct kind_row *row, const struct row_operand *operand, void *to);

    /* What is the same at every step: a mask of 1 << ATTN_ROLE_*, KIND_MAX_CONSTANTS at most; the
     * dtype and shape of one; its elements. */
    uint32_t (*constants)(const struct model *model, const attn_layer_group *group);
    void (*describe_constant)(const struct model *model, const attn_layer_group *group,
                              uint32_t role, attn_tensor *tensor);
    void (*make_constant)(const struct generator *generator, const attn_layer_group *group,
                          int32_t layer, uint32_t role, float *values);

    /* Layout ids, of a cache or of a state, in the host's order; which of them the configuration
     * allows (NULL = all); whether it asks for one that the layers cannot have (NULL = never). */
    const char *layouts[KIND_MAX_LAYOUTS];
    bool (*allows)(const struct config_kv_cache *cache, const attn_layer_group *group,
                   attn_dtype kv_dtype, uint32_t layout);
    attn_status (*check_layout)(const struct config *config, const attn_layer_group *group,
                                attn_dtype kv_dtype, attn_error *error);
    /* Tensors of a buffer, KIND_MAX_TENSORS at most; returns how many. */
    uint32_t (*tensors)(const attn_layer_group *group, const struct kind_pool *pool,
                        struct kind_tensor *list);
    /* Is the cache quantised by scales of the configuration? NULL = it is. */
    bool (*is_scaled)(const struct config_kv_cache *cache);
    const char *one_scale; /* why it cannot have one for each head; NULL = it can */
    bool has_values;       /* values are vectors of their own, not parts of keys */

    /* The key that names a backend for such layers, and what it says; NULL = those of attention. */
    const char *backend_key;
    const char *(*backend)(const struct config_attention *attention);

    uint32_t judged; /* KIND_JUDGED_*: how a run does it */
};

/* Element d of head `head` of an indexer's operand, INDEX_Q, INDEX_WEIGHTS or INDEX_K, of a token in
 * a layer: in units of 1 / GENERATOR_UNITS. Of INDEX_K the layer is that which owns the labels. */
void sparse_index_raw(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                      uint32_t role, int32_t dim, int16_t *out);

/* The row of a group of a model. */
const struct kind_ops *kind_of(const attn_layer_group *group);

/* Layout ids that the group can have, KIND_MAX_LAYOUTS of them; NULL = none, or no more. */
const char *const *kind_layouts(const attn_layer_group *group);

/* Is the group called in the expanded form in some mode? */
bool kind_expands(const struct model *model, const attn_layer_group *group);

/* Type of what a group writes: the model's, but fp32 for layers that have an expanded form, as
 * partial results are merged before anything is rounded. */
attn_dtype kind_out_dtype(const struct model *model, const attn_layer_group *group);

/* The rows, each in its file. */
#define KINDS(ROW)                                                                                 \
    ROW(SOFTMAX, softmax)                                                                          \
    ROW(MLA, mla)                                                                                  \
    ROW(LINEAR, linear)                                                                            \
    ROW(SPARSE, sparse)
#define KIND_DECLARE(kind, name) extern const struct kind_ops kind_##name;
KINDS(KIND_DECLARE)
#undef KIND_DECLARE

#endif /* HOST_KINDS_KINDS_H */
