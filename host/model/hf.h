/* SPDX-License-Identifier: Apache-2.0
 *
 * hf.h: the families of Hugging Face models. Private to model_hf*.c.
 *
 * Each architecture name maps to a family, which knows the names of the fields, and to defaults,
 * which stand in for fields that Transformers' configuration classes let a file leave out.
 */
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
    HF_PERIOD_LINEAR = 5   /* linear, but every period-th is full */
};

/* hf_defaults.flags */
enum {
    HF_SINKS = 1 << 0,            /* one sink logit per query head */
    HF_QUERY_SCALAR = 1 << 1,     /* sm_scale = query_pre_attn_scalar ^ -1/2 */
    HF_SOFTCAP = 1 << 2,          /* attn_logit_softcapping caps scores */
    HF_PADDED_POSITIONS = 1 << 3, /* two of max_position_embeddings are no positions (RoBERTa) */
    HF_SPARSE_INDEX = 1 << 4      /* index_topk keys for each query (DeepSeek-V3.2) */
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
    uint32_t flags; /* HF_* */
    double query_scalar;
    double softcap;
    attn_dtype dtype; /* ATTN_DTYPE_NONE = f32, as Transformers takes a missing one */
};

struct hf_source {
    const struct hf_defaults *defaults;
    struct json_reader root; /* the whole file */
    struct json_reader text; /* its text_config, or the root */
    struct model *model;
};

struct hf_architecture {
    const char *name;
    void (*build)(struct hf_source *source); /* adds all layers; errors stick to the readers */
    const struct hf_defaults *defaults;
};

extern const struct hf_architecture hf_architectures[];
extern const size_t hf_num_architectures;

/* Families. */
void hf_build_dense(struct hf_source *source);      /* softmax, windows, chunks, gated delta net */
void hf_build_mla(struct hf_source *source);        /* DeepSeek and Kimi */
void hf_build_falcon_h1(struct hf_source *source);  /* attention next to Mamba2 in each block */
void hf_build_nemotron_h(struct hf_source *source); /* one of attention, Mamba2, MLP in a block */
void hf_build_mamba2(struct hf_source *source);
void hf_build_minimax(struct hf_source *source); /* softmax and lightning attention */
void hf_build_lfm2(struct hf_source *source);    /* softmax and short convolutions */
void hf_build_bert(struct hf_source *source);
void hf_build_modernbert(struct hf_source *source);
void hf_build_whisper(struct hf_source *source);

/* ---- What families share --------------------------------------------------------------------- */

/* Has nothing gone wrong so far? */
bool hf_ok(const struct hf_source *source);

/* model_add_layer(), whose error sticks as the readers' do. */
void hf_add(struct hf_source *source, const struct model_spec *spec, const char *stack,
            int32_t block);

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

/* The dtype of recurrent state: mamba_ssm_dtype, else f32. */
attn_dtype hf_state_dtype(const struct hf_source *source);

/* "bfloat16" and the like of a field; `otherwise` if absent. */
attn_dtype hf_dtype(const struct json_reader *reader, const char *keys, attn_dtype otherwise);

#endif /* HOST_MODEL_HF_H */
