/* SPDX-License-Identifier: Apache-2.0
 *
 * build.h: building a model, layer by layer. Private to model/. */
#ifndef HOST_MODEL_BUILD_H
#define HOST_MODEL_BUILD_H

#include "host/model/model.h"

enum {
    MODEL_MAX_LAYERS = 4096,
    MODEL_MAX_HEADS = 4096,
    MODEL_MAX_DIM = 65536,         /* of a head */
    MODEL_MAX_CONTEXT = INT32_MAX, /* tokens */
    MODEL_DEFAULT_CONTEXT = 32768, /* where a model has no limit itself (recurrences) */
    MODEL_DEFAULT_ENCODER = 4096   /* tokens of an image or a sentence where nothing is said */
};

/* A layer's parameters: an attn_layer_group whose layers are not set yet, with room for what its
 * pointers point to. */
struct model_spec {
    attn_layer_group group;
    attn_mla_dims mla;
    attn_linear_dims linear;
    attn_sparse_dims sparse;
};

/* Causal softmax attention without window, chunk, cap; sm_scale 1 / sqrt(head_dim). */
void model_spec_softmax(struct model_spec *spec, int32_t num_q_heads, int32_t num_kv_heads,
                        int32_t head_dim, int32_t v_head_dim);

/* Bidirectional attention of an encoder. */
void model_spec_encoder(struct model_spec *spec, int32_t num_heads, int32_t head_dim);

/* Keys of an encoder, seen by all queries. */
void model_spec_cross(struct model_spec *spec, int32_t num_heads, int32_t num_kv_heads,
                      int32_t head_dim, int32_t v_head_dim);

/* Latent attention; the ABI's head_dim is nope + rope, sm_scale its inverse root. */
void model_spec_mla(struct model_spec *spec, int32_t num_heads, int32_t kv_lora_rank,
                    int32_t nope_dim, int32_t rope_dim, int32_t v_head_dim);

/* Latent attention, as model_spec_mla() made it, to the top_k keys that an index picks. `label_dim`
 * elements of `dtype` are a key of the index; 0 = nothing is known of them. */
void model_spec_sparse(struct model_spec *spec, int32_t top_k, int32_t label_dim,
                       int32_t index_heads, attn_dtype dtype);

/* A recurrence; `dims` is copied. Head counts of the group are those of the recurrence. */
void model_spec_linear(struct model_spec *spec, const attn_linear_dims *dims);

/* An empty model; NULL when memory ran out. `config` says which layers have a KV group of their
 * own; NULL = none. */
struct model *model_new(const char *name, const char *architecture, const struct config *config);

/* Append a layer, of which the model has the heads of rank tp_rank, with its own buffer where its
 * kind has one, to the group of equal parameters or to a new one. `stack` is static.
 * OUT_OF_HOST_MEMORY; CONFIG_ERROR beyond MODEL_MAX_LAYERS. */
attn_status model_add_layer(struct model *model, const struct model_spec *spec, const char *stack,
                            int32_t block, attn_error *error);

/* Append a layer that reads the buffer of the layer `owner` (an id) and never writes it. */
attn_status model_add_shared_layer(struct model *model, const struct model_spec *spec,
                                   const char *stack, int32_t block, int32_t owner,
                                   attn_error *error);

/* Append a layer of the draft model: as a model of one rank has it, or `whole`. */
attn_status model_add_draft_layer(struct model *model, const struct model_spec *spec, bool whole,
                                  int32_t block, attn_error *error);

/* Append the draft model that [speculative] describes (draft.c). */
attn_status model_add_drafts(struct model *model, const struct config *config, attn_error *error);

/* Set values that depend on all layers (limits of KV groups). Call once, after the last layer. */
void model_settle(struct model *model);

#endif /* HOST_MODEL_BUILD_H */
