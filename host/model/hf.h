/* SPDX-License-Identifier: Apache-2.0
 *
 * hf.h: the families of Hugging Face models. Private to model/hf*.c.
 *
 * Each architecture name maps to a family, which knows the names of the fields, and to defaults,
 * which stand in for fields that Transformers' configuration classes let a file leave out. */
#ifndef HOST_MODEL_HF_H
#define HOST_MODEL_HF_H

#include "host/model/build.h"
#include "host/model/json.h"

/* Which layers are of which type where the file has no layer_types. Layers count from 0. */
enum {
    HF_ALL_FULL = 0,
    HF_ALL_SLIDING = 1,    /* if sliding_window is not null */
    HF_UPPER_SLIDING = 2,  /* from max_window_layers on, if use_sliding_window */
    HF_PERIOD_SLIDING = 3, /* sliding, but every period-th is full */
    HF_PERIOD_CHUNKED = 4, /* chunked with RoPE, but every period-th is full without */
    HF_PERIOD_LINEAR = 5,  /* linear, but every period-th is full */
    HF_LISTED_SLIDING = 6  /* full; windows need use_sliding_window and layer_types */
};

/* hf_defaults.flags */
enum {
    HF_SINKS = 1 << 0,            /* one sink logit per query head */
    HF_QUERY_SCALAR = 1 << 1,     /* sm_scale = query_pre_attn_scalar ^ -1/2 */
    HF_SOFTCAP = 1 << 2,          /* attn_logit_softcapping caps scores */
    HF_PADDED_POSITIONS = 1 << 3, /* two of max_position_embeddings are no positions (RoBERTa) */
    HF_SPARSE_INDEX = 1 << 4,     /* index_topk keys for each query (DeepSeek-V3.2, GLM-5) */
    HF_MULTIPLIER = 1 << 5,       /* sm_scale = attention_multiplier (Granite) */
    HF_UNIT_SCALE = 1 << 6,       /* sm_scale = 1: queries and keys are normalised (Gemma 3n, 4) */
    HF_ALIBI = 1 << 7,
    HF_BIDIRECTIONAL = 1 << 8,  /* use_bidirectional_attention makes it an encoder (Gemma 3, 4) */
    HF_SHARED_KV = 1 << 9,      /* the last num_kv_shared_layers read earlier layers' caches */
    HF_LAYER_HEADS = 1 << 10,   /* full layers have heads of their own (Gemma 4) */
    HF_LAST_FULL = 1 << 11,     /* the last layer is full, whatever the file says (Gemma 4) */
    HF_GATES_GIVEN = 1 << 12,   /* the delta net's gates are not the usual ones (OLMo Hybrid) */
    HF_LISTED_LINEAR = 1 << 13, /* which layers are linear is in layer_types (Kimi Linear) */
    HF_NO_TOWER = 1 << 14,      /* towers are not read */
    HF_MULTI_QUERY = 1 << 15,   /* multi_query, true by default: one KV head (Falcon) */
    HF_HEADS_LISTED = 1 << 16,  /* num_attention_heads_per_layer (Laguna) */
    HF_BY_KEYS = 1 << 17,       /* no known architecture: the keys alone describe it */
    HF_FLOOR_DIM = 1 << 18,     /* head_dim is hidden_size // heads, rounded down */
    HF_ROOT_SCALE = 1 << 19,    /* attention_multiplier, else 1 / sqrt(head_dim) */
    HF_FROM_THE_END = 1 << 20,  /* periods are counted from the last layer, which is full (Muse) */
    HF_TWO_IN_ONE = 1 << 21,    /* num_layers blocks of two attention layers each (LongCat) */
    HF_ATTN_CONFIG = 1 << 22,   /* attn_config says what is about attention (DBRX, MPT) */
    HF_SLIDING_HEADS = 1 << 23, /* sliding layers have query heads of their own (Step 3.7) */
    HF_SAYS_ALIBI = 1 << 24     /* alibi, false by default (Falcon) */
};

/* 0 = the field must be in the file (or follows from others). */
struct hf_defaults {
    int32_t num_layers;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t max_positions;
    int32_t window;
    int32_t pattern; /* HF_ALL_FULL ... */
    int32_t period;
    uint32_t flags;      /* HF_* */
    int32_t index_heads; /* of HF_SPARSE_INDEX */
    double query_scalar;
    double softcap;
    attn_dtype dtype; /* ATTN_DTYPE_NONE = f32, as Transformers takes a missing one */
};

struct hf_source {
    const struct hf_defaults *defaults;
    struct json_reader root; /* the whole file */
    struct json_reader text; /* its text_config, or the root */
    struct model *model;
    bool is_wrapper; /* its row is the text model's: towers are left out */
};

struct hf_architecture {
    const char *name;
    void (*build)(struct hf_source *source); /* adds all layers; errors stick to the readers */
    const struct hf_defaults *defaults;
};

extern const struct hf_architecture hf_architectures[];
extern const size_t hf_num_architectures;

/* The text model of a multimodal wrapper. */
struct hf_text_type {
    const char *model_type, *architecture;
};
extern const struct hf_text_type hf_text_types[];
extern const size_t hf_num_text_types;

/* Architectures whose attention the ABI cannot describe, and why. */
struct hf_beyond {
    const char *name, *why;
};
extern const struct hf_beyond hf_beyond[];
extern const size_t hf_num_beyond;

/* Families. */
void hf_build_dense(struct hf_source *source);      /* softmax, windows, chunks, gated delta net */
void hf_build_mla(struct hf_source *source);        /* DeepSeek and Kimi */
void hf_build_falcon_h1(struct hf_source *source);  /* attention next to Mamba2 in each block */
void hf_build_nemotron_h(struct hf_source *source); /* one of attention, Mamba2, MLP in a block */
void hf_build_bamba(struct hf_source *source);      /* attention or Mamba2 */
void hf_build_granite_hybrid(struct hf_source *source);
void hf_build_zamba2(struct hf_source *source); /* Mamba2, in some blocks after attention */
void hf_build_mamba2(struct hf_source *source);
void hf_build_jamba(struct hf_source *source);           /* attention or Mamba-1 */
void hf_build_recurrent_gemma(struct hf_source *source); /* windows or RG-LRU */
void hf_build_minimax(struct hf_source *source);         /* softmax and lightning attention */
void hf_build_lfm2(struct hf_source *source);            /* softmax and short convolutions */
void hf_build_bert(struct hf_source *source);
void hf_build_modernbert(struct hf_source *source);
void hf_build_whisper(struct hf_source *source); /* encoder, and decoder with cross attention */
void hf_build_decoder(struct hf_source *source); /* such a decoder alone */

/* ---- What families share --------------------------------------------------------------------- */

/* True until the first error. */
bool hf_ok(const struct hf_source *source);

/* model_add_layer(), whose error sticks as the readers' do. */
void hf_add(struct hf_source *source, const struct model_spec *spec, const char *stack,
            int32_t block);

/* model_add_shared_layer(), in the same way. */
void hf_add_shared(struct hf_source *source, const struct model_spec *spec, const char *stack,
                   int32_t block, int32_t owner);

/* Integers of the text model in [1, max]; `otherwise` 0 = required. */
int32_t hf_int(const struct hf_source *source, const char *keys, int32_t otherwise, int32_t max);

int32_t hf_num_layers(const struct hf_source *source);

struct hf_heads {
    int32_t num_heads, num_kv_heads, head_dim;
};

/* Heads of softmax attention; head_dim follows from hidden_size where it is not given. */
struct hf_heads hf_read_heads(const struct hf_source *source);

/* Elements of a head of an object whose heads share `hidden` elements evenly. */
int32_t hf_split_heads(const struct json_reader *reader, const char *hidden_keys,
                       int32_t num_heads);

/* A Mamba2 recurrence from its numbers, and whether its convolution has a bias; head counts that do
 * not divide are an error at `key`. */
void hf_mamba2_dims(const struct hf_source *source, const char *key, attn_linear_dims *dims);

/* The dtype of recurrent state: mamba_ssm_dtype or mamba_ssm_cache_dtype, else f32. */
attn_dtype hf_state_dtype(const struct hf_source *source);

/* A name that a list of layers may have, and what it means. A name's first mention of a type is the
 * one that messages show; the others are older files'. */
struct hf_layer_name {
    const char *name; /* NULL ends the list */
    int type;
};

/* What element `index` of the list `key` means; a name that is not known is an error. */
int hf_layer_type(const struct hf_source *source, const char *key, const cJSON *list, int32_t index,
                  const struct hf_layer_name *names);

/* Element `index` of a list is wrong. */
void hf_fail_item(const struct hf_source *source, const char *list, int32_t index,
                  const cJSON *item, const char *accepted);

/* Is it a whole number from 0 to `most`? */
bool hf_is_index(const cJSON *item, int32_t most);

/* Note layers of a kind that the ABI cannot describe; `what` is static. */
void hf_leave_out(struct hf_source *source, const char *what);

/* Keys whose names suggest attention, but which do not change it here; say why at the call. */
void hf_no_matter(const struct json_reader *reader, const char *keys);

/* Refuse each unread key that is about attention and not neutral (hf_keys.c). */
void hf_check_unread(const struct hf_source *source, const struct json_reader *reader);

/* Refuse every unread key that sounds like attention: for models that are read by their keys. */
void hf_check_unknown(const struct hf_source *source, const struct json_reader *reader);

/* "bfloat16" and the like of a field; `otherwise` if absent. */
attn_dtype hf_dtype(const struct json_reader *reader, const char *keys, attn_dtype otherwise);

#endif /* HOST_MODEL_HF_H */
