/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h: a model: its attention layers, and nothing else.
 *
 *   struct model
 *     layers[]      every attention layer in order; layer_id is the index
 *     groups[]      layers that differ in nothing but ids and buffers, as the ABI describes them
 *     kv_groups[]   sets of layers that share slots: the decoder's cache, the encoder's, and with
 *                   kv_cache.hybrid_swa_memory that of the decoder's layers with a window or chunks
 *     buffers[]     one for each layer that owns a cache or a state
 *
 * A model comes from the [model] section (model/ini.c) or from a Hugging Face config.json
 * (model/hf.c); both add layers one by one to a builder, which groups them.
 *
 * The decoder's layers come first, encoders and vision towers after them, so that a tower does not
 * shift the numbers of the text model. A block with two mixers (attention next to a state space
 * model) is two layers; a block without one (an MLP of its own) is none: `block` says where in the
 * checkpoint's stack a layer is.
 */
#ifndef HOST_MODEL_MODEL_H
#define HOST_MODEL_MODEL_H

#include <stdbool.h>
#include <stdio.h>

#include "attn_plugin.h"
#include "host/config/config.h"

/* What a KV group holds the keys of. */
enum { MODEL_KV_DECODER = 0, MODEL_KV_ENCODER = 1, MODEL_KV_WINDOW = 2, MODEL_KV_COUNT = 3 };

struct model_layer {
    int32_t layer_id;  /* its index in model.layers */
    uint32_t group;    /* index into model.groups */
    uint32_t index;    /* index into that group's layers */
    int32_t kv_buffer; /* index into model.buffers; -1 = no cache and no state */
    int32_t block;     /* index in its stack of the checkpoint */
    const char *stack; /* static: "decoder", "encoder", "vision", "cross", "draft" */
    bool is_draft;     /* the draft model's, not the target's */
};

struct model_kv_group {
    uint32_t holds;      /* MODEL_KV_* */
    int32_t max_kv_len;  /* keys of one sequence at most */
    uint32_t num_layers; /* that read it */
    int32_t window_left; /* MODEL_KV_WINDOW: the widest of its layers, -1 = none has one; */
    int32_t chunk;       /* the largest, 0 = none has one */
};

/* A cache or state of one layer; other layers may read it (ATTN_LAYER_KV_READ_ONLY). */
struct model_buffer {
    int32_t layer_id; /* the owner */
    uint32_t group;   /* the owner's: its shape follows from attn_layer_group */
};

struct model {
    char *name;         /* the config.json, or the ini's name; for people */
    char *architecture; /* "LlamaForCausalLM"; "ini" */
    attn_dtype dtype;   /* of activations, and of the KV cache unless kv_cache.dtype is given */
    int32_t tp_size;    /* ranks that share the heads; those of the groups are one rank's */
    int32_t tp_rank;
    int32_t max_context_len; /* tokens of one request, prompt and output together */
    uint32_t mla_expanded;   /* modes that latent layers are called for in the expanded form */
    int32_t max_encoder_len; /* tokens an encoder reads at most; 0 = there is none */
    uint32_t uses, modes;    /* of batches, beyond what the configuration says */
    bool has_window_pool;    /* kv_cache.hybrid_swa_memory */
    bool has_type[CONFIG_LAYER_COUNT]; /* which types of layers a [model] section has */
    bool conv_bias;                    /* the convolutions of its linear layers have a bias */
    const char *left_out;              /* static: layers that the ABI cannot describe, or NULL */
    uint32_t num_left_out;             /* how many of them there are; they are not in `layers` */
    uint32_t first_draft_group; /* from it on groups are the draft model's alone; 0 = none is */
    uint32_t num_layers;
    uint32_t num_groups;
    uint32_t num_kv_groups;
    uint32_t num_buffers;
    struct model_layer *layers;
    attn_layer_group *groups; /* kv_scale_granularity is NONE: problem_init() fills it */
    struct model_kv_group kv_groups[MODEL_KV_COUNT];
    struct model_buffer *buffers;
};

/* The model that `config` describes: its [model] section, or the config.json it names; with
 * [speculative] also the draft model's layers, which come last. *model is the caller's.
 * CONFIG_ERROR names file, place, what was got and what is accepted. */
attn_status model_create(const struct config *config, struct model **model, attn_error *error);

/* From a [model] section without `config`. */
attn_status model_create_ini(const struct config *config, struct model **model, attn_error *error);

/* From a Hugging Face config.json. `config` gives what the user may override: dtype and
 * max_context_len; NULL = nothing. */
attn_status model_create_hf(const char *path, const struct config *config, struct model **model,
                            attn_error *error);

/* The same from text in memory, called `name` in messages. */
attn_status model_create_hf_text(const char *text, size_t length, const char *name,
                                 const struct config *config, struct model **model,
                                 attn_error *error);

/* A model of an engine's own groups, which embed_check_group() has accepted: copies, with the
 * engine's ids, buffers and KV groups. It only serves queries: layers, kv_groups and buffers stay
 * empty. `config` gives dtype and max_context_len, and the form of latent layers. */
attn_status model_create_groups(const char *name, const attn_layer_group *groups, uint32_t count,
                                const struct config *config, int32_t max_encoder_len,
                                struct model **model, attn_error *error);

/* The mode of steps in which the encoders next to a decoder run, a vision tower's layers; as a
 * batch that is EXTEND. */
enum { MODEL_MODE_ENCODE = ATTN_MODE_COUNT };

/* Are there encoders next to layers of a decoder? */
bool model_has_tower(const struct model *model);

/* The KV group that holds MODEL_KV_*; NULL = there is none. */
const struct model_kv_group *model_kv_group_of(const struct model *model, uint32_t holds);

/* Does a decoder read an encoder's keys, by cross attention? Then requests share no prefixes: the
 * keys of a request depend on the input of its encoder. */
bool model_crosses(const struct model *model);

/* Does a layer run in batches of this mode? The draft model's run where prompts are computed and in
 * DRAFT_EXTEND, the target's in all modes but that. */
bool model_layer_runs(const struct model *model, uint32_t layer, uint32_t mode);

/* Is the group, one of the model's or a copy, the draft model's alone? */
bool model_group_drafts(const struct model *model, const attn_layer_group *group);

/* Do batches of this mode hold no row of a prompt? */
bool model_mode_decodes(uint32_t mode);

/* Does it have latent layers? */
bool model_has_latents(const struct model *model);

/* Prompts' latent layers are called in the expanded form, or in the absorbed one. */
void model_set_expanded(struct model *model, bool expanded);

/* NULL is accepted. */
void model_destroy(struct model *model);

/* Does this group have a KV cache (or latent cache)? Does it have a recurrent state? */
bool model_group_has_kv(const attn_layer_group *group);
bool model_group_has_state(const attn_layer_group *group);

/* Does the group have a decode phase? Encoders run once, in EXTEND. */
bool model_group_decodes(const attn_layer_group *group);

/* Is every layer an encoder's: each prompt is one pass, nothing is cached or decoded? */
bool model_encodes(const struct model *model);

/* "0-3,5,8-40/2" : the ids of a group's layers, cut to `size` bytes with "..." at the end. */
enum { MODEL_LAYERS_TEXT = 1024 };
void model_layers_text(const attn_layer_group *group, char *text, size_t size);

/* "softmax decoder, 32 query heads, 8 kv heads, head_dim 128, sm_scale 0.0883883, window_left
 * 4095": one group of the model for people, cut to `size`. */
void model_group_text(const struct model *model, const attn_layer_group *group, char *text,
                      size_t size);

/* The name in ATTN_KIND_MAP; "?" for an unknown kind. */
const char *model_kind_name(uint32_t kind);

/* "decoder", "encoder_only", "cross"; "?" for an unknown type. */
const char *model_attn_type_name(uint32_t attn_type);

/* "gdn", "mamba2" ...; "?" for an unknown family. */
const char *model_linear_name(uint32_t family);

#endif /* HOST_MODEL_MODEL_H */
