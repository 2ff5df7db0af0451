/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_problem.h: problems put to a backend, and its verdicts.
 *
 *   attn_layer_group   equal layers of a model, described once
 *   attn_problem       a layer group on a device, with dtypes, layout, modes and bounds
 *   attn_verdict       yes with traits and costs, or no with all reasons
 *
 * docs/ABI.md, group MEAN, defines positions, windows, scores and sinks. Below, i is a query's
 * absolute position and j a key's.
 */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include "attn_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Modes ----------------------------------------------------------------------------------- */

/* Origin of a batch's rows. DECODE runs by forward_decode, every other mode by forward_extend; IDLE
 * has no rows and makes no call. Names as in SGLang's ForwardMode. X(NAME, value, "name in texts")
 */
#define ATTN_MODE_MAP(X)                                                                           \
    X(EXTEND, 0, "extend") /* new tokens after a prefix that may be empty */                       \
    X(DECODE, 1, "decode") /* one query per sequence, in row s; q_indptr is not read */            \
    X(MIXED, 2, "mixed")   /* extend rows, preceded or followed by sequences that decode */        \
    X(IDLE, 3, "idle")     /* no call; the output is empty */                                      \
    X(TARGET_VERIFY, 4, "target_verify") /* draft tokens of each sequence, target model */         \
    X(DRAFT_EXTEND, 5, "draft_extend")   /* accepted tokens through the draft model */

enum attn_mode {
#define ATTN_MODE_ENUM(name, value, text) ATTN_MODE_##name = value,
    ATTN_MODE_MAP(ATTN_MODE_ENUM)
#undef ATTN_MODE_ENUM
        ATTN_MODE_COUNT = 6
};
#define ATTN_MODE_BIT(mode) (1u << (mode)) /* sets of modes are masks of these */

/* The same masks by name, for languages without macros. */
enum attn_mode_bit {
#define ATTN_MODE_BIT_ENUM(name, value, text) ATTN_MODE_BIT_##name = 1 << (value),
    ATTN_MODE_MAP(ATTN_MODE_BIT_ENUM)
#undef ATTN_MODE_BIT_ENUM
        ATTN_MODE_BIT_ALL = (1 << 6) - 1
};

/* ---- Mask kinds ------------------------------------------------------------------------------ */

/* Which keys a query sees, before window_left and attention_chunk exclude some.
 * X(NAME, value, "name in texts") */
#define ATTN_MASK_MAP(X)                                                                           \
    X(LAYER, 0, "layer") /* as the layer says: j <= i + window_right */                            \
    X(NONE, 1, "none")   /* all keys, whatever window_right says (prefix partials) */              \
    X(FULL, 2, "full")   /* bits over all kv_len keys, the new ones included */                    \
    X(QLEN, 3, "qlen")   /* bits over the new tokens; all prefix keys are seen */

enum attn_mask_kind {
#define ATTN_MASK_ENUM(name, value, text) ATTN_MASK_##name = value,
    ATTN_MASK_MAP(ATTN_MASK_ENUM)
#undef ATTN_MASK_ENUM
        ATTN_MASK_COUNT = 4
};
#define ATTN_MASK_BIT(kind) (1u << (kind)) /* sets of mask kinds are masks of these */

/* The same masks by name. */
enum attn_mask_bit {
#define ATTN_MASK_BIT_ENUM(name, value, text) ATTN_MASK_BIT_##name = 1 << (value),
    ATTN_MASK_MAP(ATTN_MASK_BIT_ENUM)
#undef ATTN_MASK_BIT_ENUM
        ATTN_MASK_BIT_ALL = (1 << 4) - 1
};

/* ---- Layers ---------------------------------------------------------------------------------- */

/* attn_layer_group.kind. X(NAME, value, "name in texts") */
#define ATTN_KIND_MAP(X)                                                                           \
    X(SOFTMAX, 0, "softmax") /* softmax over a KV cache with per-head keys and values */           \
    X(MLA, 1, "mla")         /* multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) */     \
    X(LINEAR, 2, "linear")   /* recurrent state instead of a KV cache */                           \
    X(SPARSE, 3, "sparse")   /* softmax over a chosen subset of the KV cache */

enum attn_layer_kind {
#define ATTN_KIND_ENUM(name, value, text) ATTN_KIND_##name = (value),
    ATTN_KIND_MAP(ATTN_KIND_ENUM)
#undef ATTN_KIND_ENUM
        ATTN_KIND_COUNT = 4
};

/* attn_layer_group.attn_type */
enum attn_attention_type {
    ATTN_TYPE_DECODER = 0,      /* self attention with a KV cache */
    ATTN_TYPE_ENCODER_ONLY = 1, /* self attention among a batch's own tokens; no cache */
    ATTN_TYPE_CROSS = 2,        /* an encoder's keys; no i: no window, causal rule, chunk, ALiBi */
    ATTN_TYPE_COUNT = 3
};

/* attn_layer_group.flags */
enum attn_group_flag {
    ATTN_GROUP_HAS_SINKS = 1 << 0, /* operand SINKS is given: one extra logit per query head */
    ATTN_GROUP_HAS_ALIBI = 1 << 1  /* operand ALIBI_SLOPES is given */
};

/* Granularity of quantisation scales: their number, and what each one covers. */
enum attn_scale_granularity {
    ATTN_SCALE_NONE = 0,           /* the operand is not quantised */
    ATTN_SCALE_PER_TENSOR = 1,     /* one scale */
    ATTN_SCALE_PER_HEAD = 2,       /* one per KV head; a query head uses its KV head's */
    ATTN_SCALE_PER_SEQ_HEAD = 3,   /* [S, kv_heads], padding sequences included */
    ATTN_SCALE_PER_TOKEN_HEAD = 4, /* caches only: [slots, kv_heads], including slots that the */
                                   /* call writes; new tokens are read from the arguments, */
                                   /* unrounded (KV-14) */
    ATTN_SCALE_COUNT = 5
};

/* attn_layer.flags. X(NAME, bit, "name in texts") */
#define ATTN_LAYER_MAP(X)                                                                          \
    X(KV_READ_ONLY, 0, "kv_read_only") /* another layer owns kv_buffer: calls have k = v = NULL */ \
                                       /* and use the owner's scales */

enum attn_layer_flag {
#define ATTN_LAYER_ENUM(name, bit, text) ATTN_LAYER_##name = 1 << (bit),
    ATTN_LAYER_MAP(ATTN_LAYER_ENUM)
#undef ATTN_LAYER_ENUM
        ATTN_LAYER_ALL = (1 << 1) - 1
};

/* One layer of a group. */
typedef struct attn_layer {
    uint32_t struct_size;
    uint32_t flags;    /* ATTN_LAYER_* */
    int32_t layer_id;  /* >= 0, unique in an instance (CAPS-11); argument of forward */
    int32_t kv_buffer; /* buffer of the pool that holds its KV or state; layers may share one */
} attn_layer;

/* Dimensions of latent attention; sizes in elements. A call uses one of two forms:
 *
 *   absorbed  Operands q_nope and q_pe. All query heads share one key, c_kv | k_pe, which is a row
 *             of the latent cache; its value is c_kv. s = sm_scale * (q_nope . c_kv + q_pe . k_pe).
 *             Outputs are kv_lora_rank wide.
 *   expanded  Operands q, k and v, head_dim = nope_dim + rope_dim. Keys are the rows of k alone.
 *             The caller attends to earlier keys in other calls and merges by LSE: for a chunk of
 *             the prefix it expands k and v, and kv_lens and kv_new_indptr give the chunk's place.
 *             The latent cache is not read. With SAVE_KV, c_kv and k_pe, which have as many rows
 *             as k, are written to it.
 *
 * num_kv_heads counts the heads of k and v. */
typedef struct attn_mla_dims {
    uint32_t struct_size;
    int32_t kv_lora_rank; /* width of the latent and of the absorbed form's value; e.g. 512 */
    int32_t rope_dim;     /* width of the position-encoded key part; e.g. 64; 0 = none */
    int32_t nope_dim;     /* width of a head's key part without position encoding; e.g. 128 */
} attn_mla_dims;

/* attn_linear_dims.family; recurrences as the named papers and their authors' code state them. */
enum attn_linear_family {
    ATTN_LINEAR_GDN = 0,        /* gated delta net, arXiv 2412.06464 */
    ATTN_LINEAR_MAMBA2 = 1,     /* state space duality, arXiv 2405.21060 */
    ATTN_LINEAR_KDA = 2,        /* Kimi delta attention, arXiv 2510.26692 */
    ATTN_LINEAR_LIGHTNING = 3,  /* lightning attention, arXiv 2401.04658, 2501.08313 */
    ATTN_LINEAR_SHORT_CONV = 4, /* causal depthwise convolution, no recurrence */
    ATTN_LINEAR_COUNT = 5
};

/* attn_linear_dims.flags. X(NAME, bit, "name in texts") */
#define ATTN_LINEAR_FLAG_MAP(X)                                                                    \
    X(QK_L2NORM, 0, "qk_l2norm") /* q and k are L2-normalised (eps 1e-6) by the backend */         \
    X(RAW_GATES, 1,                                                                                \
      "raw_gates")      /* compute gates from a, b, A_log, dt_bias; else a, b are final gates */   \
    X(CONV_IDENTITY, 2, /* no activation after the convolution; else SiLU */                       \
      "conv_identity")

enum attn_linear_flag {
#define ATTN_LINEAR_FLAG_ENUM(name, bit, text) ATTN_LINEAR_##name = 1 << (bit),
    ATTN_LINEAR_FLAG_MAP(ATTN_LINEAR_FLAG_ENUM)
#undef ATTN_LINEAR_FLAG_ENUM
        ATTN_LINEAR_FLAG_ALL = (1 << 3) - 1
};

/* Dimensions of a linear layer; sizes in elements.
 *
 * All families share one recurrence. Each v head h has a state S [K, V], read from a slot or
 * zero; q and k are those of k head h / (num_v_heads / num_k_heads). For each token
 *
 *   S <- diag(e^g) S;  u = beta (v - S'k) (gdn, kda), beta v (others);  S <- S + k u'
 *   o = sm_scale S'q + D v;  out = o, or o * silu(z) where z is given
 *
 *              g, the log decay                       beta        q, k, v of mixed_qkv's channels
 *   gdn        -e^A_log softplus(a + dt_bias)         sigmoid(b)  q, k, v
 *   kda        the same for each channel of k, or     sigmoid(b)  q, k, v
 *              lower_bound sigmoid(e^A_log (a + dt_bias))
 *   mamba2     -e^A_log dt                            dt          C, B, x, in the order x, B, C
 *              dt = softplus(a + dt_bias), clamped to dt_min..dt_max
 *   lightning  A_log itself                           1           q, k, v
 *
 * if RAW_GATES is set; else a is g (fp32) and b is beta (fp32). Lightning attention has neither a
 * nor b, and always A_log. QK_L2NORM: q and k become x / sqrt(sum x^2 + 1e-6). The convolution
 * comes first: with conv_width W, channel c of token t becomes silu(bias[c] + sum_w weight[c][w]
 * x[c][t - W + 1 + w]); inputs before the sequence's first token come from its convolution state,
 * or are 0. Family short_conv has only the convolution: out is its num_v_heads x head_v_dim
 * channels; num_k_heads and head_k_dim are 0.
 */
typedef struct attn_linear_dims {
    uint32_t struct_size;
    uint32_t family;        /* ATTN_LINEAR_* */
    uint32_t flags;         /* ATTN_LINEAR_* flags */
    int32_t num_k_heads;    /* heads of q and k */
    int32_t num_v_heads;    /* heads of v, the state and the output; a multiple of num_k_heads */
    int32_t head_k_dim;     /* K of the state */
    int32_t head_v_dim;     /* V of the state */
    int32_t num_groups;     /* Mamba2: groups that share B and C, = num_k_heads; else 0 */
    int32_t conv_width;     /* taps of the short convolution; 0 = none */
    int32_t chunk;          /* chunk of the chunked form the model was trained with; 0 = any */
    attn_dtype state_dtype; /* of the state pool: ATTN_F32 or ATTN_BF16 */
    attn_dtype conv_dtype;  /* of the convolution's pool; ATTN_DTYPE_NONE = none */
    float dt_min;           /* Mamba2: bounds of dt; */
    float dt_max;           /* 0 = no upper bound */
    float lower_bound;      /* KDA: of the log decay; 0 = the softplus form */
} attn_linear_dims;

/* attn_sparse_dims.index_kind: meaning of an entry of operand SPARSE_INDICES: a slot, or the number
 * of a block of the sequence's keys. -1 selects nothing. */
enum attn_sparse_index_kind {
    ATTN_SPARSE_TOKEN = 0,    /* one key, for all heads of a query */
    ATTN_SPARSE_BLOCK = 1,    /* block_size keys, for all heads of a query */
    ATTN_SPARSE_PER_HEAD = 2, /* block_size keys, for one KV head of a query */
    ATTN_SPARSE_COUNT = 3
};

/* A layer that attends to a chosen subset of the cache. The cache holds per-head keys and values
 * or, with `mla`, latents, which are read in the absorbed form.
 *
 * A layer with an indexer (index_heads > 0; ATTN_SPARSE_TOKEN, `mla`) can choose the keys itself,
 * as DeepSeek sparse attention does (DeepSeek-V3.2, arXiv 2512.02556). Each key j has a label k[j],
 * a row of the label cache, in addition to its latent, and
 *
 *   logit(t, j) = sum_h w[t, h] * max(0, q[t, h] . k[j])          h < index_heads
 *
 * with q of INDEX_Q and w of INDEX_WEIGHTS. Of the n keys that row t sees (window, causal rule,
 * chunk, mask) it chooses the min(top_k, n) with the largest logits; ties may be broken either way.
 * The operands of a call determine which of these steps it runs (attn_batch.h).
 *
 * The label cache has the slots of the layer's KV group. With label_dtype ATTN_FP8_E4M3 it is a
 * tensor of bytes; a page holds page_size rows of label_dim fp8 values, then page_size scales in
 * fp32 (the layout of DeepGEMM, vLLM and SGLang; 132 bytes per token at label_dim 128): k[j] =
 * value * scale. A writer uses the scale max(1e-4, the largest finite magnitude) / 448 in fp32 and
 * rounds values as KV-04 of docs/ABI.md says. With other dtypes it is [pages, page_size,
 * label_dim], without scales. */
typedef struct attn_sparse_dims {
    uint32_t struct_size;
    uint32_t index_kind;    /* ATTN_SPARSE_* */
    int32_t top_k;          /* indices per query (and per KV head, if PER_HEAD) */
    int32_t block_size;     /* keys for each index; 1 for ATTN_SPARSE_TOKEN */
    int32_t label_dim;      /* elements of a label, and of a head of INDEX_Q; a multiple of 4 */
                            /* for e4m3; 0 = no label cache */
    attn_dtype label_dtype; /* of the label cache; ATTN_DTYPE_NONE = none */
    int32_t index_heads;    /* heads of INDEX_Q; 0 = no indexer, the engine chooses */
    attn_dtype index_dtype; /* of INDEX_Q, which has no scale; ATTN_DTYPE_NONE = no indexer */
} attn_sparse_dims;

/* Layers that differ only in their ids and buffers. A model is a list of groups, passed to create,
 * so that one batch can have several plans (window and global, self and cross).
 *
 * Key j is seen by query i iff i - window_left <= j <= i + window_right, -1 = no limit on that
 * side; causal is window_right = 0. (A model's sliding_window W counts the query, so window_left is
 * W-1.) With attention_chunk c > 0 it must also hold that floor(j / c) == floor(i / c) and j <= i.
 * Score: s = sm_scale * q.k - slope[h] * |i - j|, then c * tanh(s / c) for logit_cap c > 0, then
 * the mask; a sink is one more logit in the denominator, neither scaled nor capped. */
typedef struct attn_layer_group {
    uint32_t struct_size;
    uint32_t kind;           /* ATTN_KIND_* */
    uint32_t attn_type;      /* ATTN_TYPE_* */
    uint32_t flags;          /* ATTN_GROUP_* */
    int32_t kv_group;        /* index into attn_batch.kv_groups; -1 = no cache */
    int32_t state_group;     /* index into attn_batch.state_groups; -1 = no state */
    int32_t num_q_heads;     /* query heads of this rank; a multiple of num_kv_heads. LINEAR */
                             /* takes heads and dimensions from `linear` and ignores those here */
    int32_t num_kv_heads;    /* query head h reads KV head h / (num_q_heads / num_kv_heads) */
    int32_t head_dim;        /* elements of q and k in one head */
    int32_t v_head_dim;      /* elements of v and of the output in one head */
    int32_t window_left;     /* -1 = no limit, else >= 0 */
    int32_t window_right;    /* -1 = no limit, 0 = causal, else > 0 */
    int32_t attention_chunk; /* keys; 0 = off */
    float sm_scale;          /* factor of q.k, finite */
    float logit_cap;         /* 0 = off, else > 0 */
    uint32_t kv_scale_granularity; /* ATTN_SCALE_*; NONE iff the KV dtype needs no scale, or the */
                                   /* layout has its own; PER_TENSOR for latents, as these have */
                                   /* no heads */
    uint32_t input_scale_granularity; /* ATTN_SCALE_* of q, new k and new v, where they are fp8; */
                                      /* NONE iff none of them is fp8 (MEAN-22) */
    uint32_t num_layers;              /* >= 1 */
    const attn_layer *layers;         /* array; walk with attn_at() */
    const attn_mla_dims *mla;         /* NULL unless kind is MLA (or SPARSE over a latent cache) */
    const attn_linear_dims *linear;   /* NULL unless kind is LINEAR */
    const attn_sparse_dims *sparse;   /* NULL unless kind is SPARSE */
} attn_layer_group;

/* ---- Devices --------------------------------------------------------------------------------- */

/* attn_device.cpu_isa: extensions that both processor and operating system support. */
enum attn_cpu_isa {
    ATTN_CPU_AVX2 = 1 << 0,   /* with FMA and F16C */
    ATTN_CPU_AVX512 = 1 << 1, /* F, BW, DQ, VL */
    ATTN_CPU_AVX512BF16 = 1 << 2,
    ATTN_CPU_AMX_BF16 = 1 << 3, /* tile state enabled by the operating system */
    ATTN_CPU_NEON = 1 << 4,
    ATTN_CPU_SVE = 1 << 5
};

/* The device that runs a problem. It may be simulated (`platform.simulate`). */
typedef struct attn_device {
    uint32_t struct_size;
    int32_t type;            /* ATTN_DEVICE_* */
    int32_t id;              /* CUDA ordinal; 0 on the CPU */
    uint32_t sm;             /* CUDA: 10 * major + minor of the compute capability; else 0 */
    uint32_t num_sms;        /* CUDA: multiprocessors; else 0 */
    uint32_t shared_memory;  /* CUDA: bytes one block may opt in to; else 0 */
    uint32_t driver_version; /* CUDA: cuDriverGetVersion, 13000 = 13.0; else 0 */
    uint32_t cpu_isa;        /* CPU: ATTN_CPU_*; else 0 */
    uint64_t memory_bytes;   /* total; 0 = unknown */
    uint64_t l2_bytes;       /* last-level cache; 0 = unknown */
} attn_device;

/* ---- Layout ids ------------------------------------------------------------------------------ */

/* Public and versioned; each id names one shape. Outer strides are free, the innermost is 1. Two
 * backends share a buffer only if their ids are equal. Keys are stored after position encoding. A
 * vendor's own layout is named "vendor.name/rev" (docs/ABI.md, PRIV-04; attn_layouts). */
#define ATTN_LAYOUT_KV_NHD     "kv.nhd/1"     /* K, V separate: [pages, page_size, kv_heads, dim] */
#define ATTN_LAYOUT_KV_HND     "kv.hnd/1"     /* K, V separate: [pages, kv_heads, page_size, dim] */
#define ATTN_LAYOUT_MLA_LATENT "mla.latent/1" /* [pages, page_size, kv_lora_rank + rope_dim] */
#define ATTN_LAYOUT_MLA_LATENT_FP8                                                                 \
    "mla.latent_fp8/1" /* [pages, page_size, 656] uint8: docs/ABI.md, KV-11 */
#define ATTN_LAYOUT_STATE_SSM_KV "state.ssm.kv/1" /* [slots, heads, K, V] */
#define ATTN_LAYOUT_STATE_SSM_VK "state.ssm.vk/1" /* [slots, heads, V, K] */
#define ATTN_LAYOUT_STATE_CONV   "state.conv/1"   /* [slots, channels, width - 1], oldest first */

/* ---- Where operands lie ---------------------------------------------------------------------- */

/* attn_problem.kv_strides: what an engine guarantees about the strides of K_CACHE and V_CACHE. */
enum attn_kv_strides {
    ATTN_KV_STRIDES_ANY = 0,   /* independent */
    ATTN_KV_STRIDES_EQUAL = 1, /* equal, in elements; V may be narrower or wider than K */
    ATTN_KV_STRIDES_COUNT = 2
};

/* Alignment in bytes that every operand has, whatever the problem says: its element size, and at
 * least 16 on CUDA and ROCm, where kernels load vectors. [any-thread] */
static inline uint32_t attn_guaranteed_alignment(int32_t device_type, attn_dtype dtype)
{
    uint32_t size = attn_dtype_size(dtype);
    int loads_vectors = device_type == ATTN_DEVICE_CUDA || device_type == ATTN_DEVICE_ROCM;
    return loads_vectors && size < 16u ? 16u : size;
}

/* ---- Problem --------------------------------------------------------------------------------- */

/* attn_problem.uses and attn_bounds.uses: optional parts that batches and calls may have.
 * X(NAME, bit, "name in texts") */
#define ATTN_USES_MAP(X)                                                                           \
    X(POSITIONS, 0, "positions")   /* batch.positions with a custom mask (explicit positions) */   \
    X(MULTI_ITEM, 1, "multi_item") /* batch.multi_item */                                          \
    X(SHARED_PREFIX, 2, "shared_prefix") /* batch.shared_prefix (a hint; may be ignored) */        \
    X(UNSAVED_KV, 3, "unsaved_kv")       /* calls with k, v but without SAVE_KV */                 \
    X(LSE, 4, "lse")                     /* calls that want the LSE */                             \
    X(OMIT_SINK, 5, "omit_sink")         /* calls with OMIT_SINK */                                \
    X(DECODES_FIRST, 6, "decodes_first") /* MIXED batches whose first sequences decode */          \
    X(DECODE_DRAFTS, 7, "decode_drafts") /* MIXED batches whose decode_q_len is above 1 */         \
    X(SHARED_NEW_KV, 8, "shared_new_kv") /* new keys that other sequences of the batch read too */

enum attn_uses {
#define ATTN_USES_ENUM(name, bit, text) ATTN_USES_##name = 1 << (bit),
    ATTN_USES_MAP(ATTN_USES_ENUM)
#undef ATTN_USES_ENUM
        ATTN_USES_ALL = (1 << 9) - 1
};

/* The two forms of latent attention. */
enum attn_mla_form {
    ATTN_MLA_ABSORBED = 0, /* q_nope includes W_UK; keys are latent and rope, values the latent */
    ATTN_MLA_EXPANDED = 1  /* K and V are expanded per head; ordinary attention */
};

/* Can a forward be captured into a graph? Each level includes the ones below it. */
enum attn_graph_level {
    ATTN_GRAPH_NEVER = 0,
    ATTN_GRAPH_SINGLE_TOKEN = 1, /* batches with one query per sequence */
    ATTN_GRAPH_UNIFORM = 2,      /* batches with the same number of queries per sequence */
    ATTN_GRAPH_ALWAYS = 3,       /* any batch within the bounds */
    ATTN_GRAPH_COUNT = 4
};

/* The largest batch that metadata can hold. 0 = not known yet (query only). */
typedef struct attn_bounds {
    uint32_t struct_size;
    uint32_t modes;      /* ATTN_MODE_BIT set */
    uint32_t mask_kinds; /* ATTN_MASK_BIT set */
    uint32_t uses;       /* ATTN_USES_* */
    int32_t max_seqs;    /* sequences of a batch */
    int32_t max_tokens;  /* query rows of a batch */
    int32_t max_q_len;   /* queries of one sequence */
    int32_t max_kv_len;  /* keys of one sequence, in any KV group */
    int32_t max_sms;     /* CUDA: multiprocessors available to launches; 0 = all. Fewer where */
                         /* other work overlaps, or in a green context */
    int32_t max_prefix_levels; /* with ATTN_USES_SHARED_PREFIX: levels of batch.shared_prefix; */
                               /* 0 = 1 */
    int64_t max_kv_tokens; /* keys of a batch in one KV group, each sequence rounded up to pages */
} attn_bounds;

/* Everything that a backend needs to decide whether it can serve a layer group. */
typedef struct attn_problem {
    uint32_t struct_size;
    uint32_t graph_level; /* ATTN_GRAPH_* wanted */
    const attn_device *device;
    const attn_layer_group *group;
    const attn_bounds *bounds;
    const char *kv_layout;    /* layout id of the KV cache; NULL if the group has none */
    const char *state_layout; /* layout id of the recurrent state; NULL if the group has none */
    attn_dtype q_dtype;       /* of q; for linear layers of mixed_qkv */
    attn_dtype new_kv_dtype;  /* of new k and v (KV-16); ATTN_DTYPE_NONE = q_dtype */
    attn_dtype kv_dtype;      /* of the KV cache; = q_dtype without a cache */
    attn_dtype out_dtype;     /* of the output, with a scale if fp8; the LSE is always fp32 */
    int32_t page_size;        /* tokens per page, >= 1; 0 without a cache */
    uint32_t required_traits; /* required traits, of those in ATTN_TRAIT_PROMISES */
    uint32_t mla_expanded;    /* ATTN_MODE_BIT set of the modes called in the expanded form */
    int32_t tp_rank;          /* information only: head counts are this rank's */
    int32_t tp_size;          /* >= 1 */
    uint32_t min_alignment;   /* bytes, a power of two, to which the engine aligns all operands, */
                              /* if above attn_guaranteed_alignment(); 0 = no more than that */
    uint32_t kv_strides;      /* ATTN_KV_STRIDES_* that the engine guarantees */
    uint32_t num_features;    /* required features */
    const char *const *features; /* ids "attn.<name>/<rev>", and names "vendor.name" of private */
                                 /* operands that calls bring; an unknown one means unsupported */
} attn_problem;

/* The dtype of new k and v: new_kv_dtype, or q_dtype if that is NONE. [any-thread] */
static inline attn_dtype attn_new_kv_dtype(const attn_problem *problem)
{
    return problem->new_kv_dtype != ATTN_DTYPE_NONE ? problem->new_kv_dtype : problem->q_dtype;
}

/* ---- Verdict --------------------------------------------------------------------------------- */

/* Properties of a supported problem. X(NAME, bit, "name in texts") */
#define ATTN_TRAIT_MAP(X)                                                                          \
    X(DETERMINISTIC, 0, "deterministic")         /* equal batches give equal bits */               \
    X(BATCH_INVARIANT, 1, "batch_invariant")     /* other sequences of a batch change no bit */    \
    X(REDUCED_PRECISION, 2, "reduced_precision") /* accumulates in less than fp32 */               \
    X(RUNTIME_COMPILATION, 3, "runtime_compilation") /* prepare() compiles */                      \
    X(FIRST_CALL_SLOW, 4, "first_call_slow")                                                       \
    X(COOPERATIVE_LAUNCH, 5, "cooperative_launch")                                                 \
    X(DEPENDENT_LAUNCH, 6, "dependent_launch") /* programmatic dependent launch */                 \
    X(SM_BUDGET, 7, "sm_budget")               /* launches keep to max_sms of the bounds */        \
    X(CUT_INVARIANT, 8, "cut_invariant")       /* where a prompt is cut changes no bit */

enum attn_trait {
#define ATTN_TRAIT_ENUM(name, bit, text) ATTN_TRAIT_##name = 1 << (bit),
    ATTN_TRAIT_MAP(ATTN_TRAIT_ENUM)
#undef ATTN_TRAIT_ENUM
        ATTN_TRAIT_ALL = (1 << 9) - 1,

    /* Traits that are promises: a problem may require them, and a composite has one only if all its
     * children have it. The other traits are warnings: a composite has one if any child has it. */
    ATTN_TRAIT_PROMISES = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT |
                          ATTN_TRAIT_CUT_INVARIANT | ATTN_TRAIT_SM_BUDGET
};

/* Host arrays of a batch that a backend may need for planning; bits of a mask, named as in
 * attn_batch.h. X(NAME, bit, "name in texts") */
#define ATTN_HOST_MAP(X)                                                                           \
    X(SEQ_LENS, 0, "seq_lens")                                                                     \
    X(PREFIX_LENS, 1, "prefix_lens")     /* not in DECODE */                                       \
    X(Q_INDPTR, 2, "q_indptr")           /* not in DECODE */                                       \
    X(KV_LENS, 3, "kv_lens")             /* from here on: only where the device array is */        \
    X(KV_NEW_INDPTR, 4, "kv_new_indptr") /* present, in each KV group that the layers read */      \
    X(KV_INDPTR, 5, "kv_indptr")                                                                   \
    X(LAST_PAGE_LEN, 6, "last_page_len")                                                           \
    X(MASK_INDPTR, 7, "mask.indptr")

enum attn_host_array {
#define ATTN_HOST_ENUM(name, bit, text) ATTN_HOST_##name = 1 << (bit),
    ATTN_HOST_MAP(ATTN_HOST_ENUM)
#undef ATTN_HOST_ENUM
        ATTN_HOST_ALL = (1 << 8) - 1
};

/* Why a problem is refused. X(name, value) */
#define ATTN_REASON_MAP(X)                                                                         \
    X(ARCH, 1)                                                                                     \
    X(DRIVER, 2)                                                                                   \
    X(DTYPE, 3)                                                                                    \
    X(HEADS, 4)                                                                                    \
    X(HEAD_DIM, 5)                                                                                 \
    X(PAGE_SIZE, 6)                                                                                \
    X(KV_LAYOUT, 7)                                                                                \
    X(LAYER_KIND, 8)                                                                               \
    X(ATTN_TYPE, 9)                                                                                \
    X(MASK_KIND, 10)                                                                               \
    X(WINDOW, 11)                                                                                  \
    X(CHUNK, 12)                                                                                   \
    X(LOGIT_CAP, 13)                                                                               \
    X(SINKS, 14)                                                                                   \
    X(ALIBI, 15)                                                                                   \
    X(SCALE_GRANULARITY, 16)                                                                       \
    X(STATE, 17)                                                                                   \
    X(SPARSITY, 18)                                                                                \
    X(MLA_FORM, 19)                                                                                \
    X(MODE, 20)                                                                                    \
    X(USES, 21)                                                                                    \
    X(BOUNDS, 22)                                                                                  \
    X(GRAPH_LEVEL, 23)                                                                             \
    X(DETERMINISM, 24)                                                                             \
    X(MEMORY, 25)                                                                                  \
    X(COMBINATION, 26)                                                                             \
    X(UNKNOWN_FEATURE, 27)                                                                         \
    X(CHILD_REJECTED, 28)                                                                          \
    X(DEPENDENCY, 29)                                                                              \
    X(OTHER, 30)                                                                                   \
    X(OPERANDS, 31)

enum attn_reason_code {
#define ATTN_REASON_ENUM(name, value) ATTN_REASON_##name = value,
    ATTN_REASON_MAP(ATTN_REASON_ENUM)
#undef ATTN_REASON_ENUM
        ATTN_REASON_COUNT = 32
};

/* Fields that a reason, or an error, can name. X(NAME, value, "name in texts") */
#define ATTN_FIELD_MAP(X)                                                                          \
    X(DEVICE_TYPE, 1, "device.type")                                                               \
    X(DEVICE_SM, 2, "device.sm")                                                                   \
    X(DEVICE_SHARED_MEMORY, 3, "device.shared_memory")                                             \
    X(DEVICE_DRIVER, 4, "device.driver_version")                                                   \
    X(DEVICE_CPU_ISA, 5, "device.cpu_isa")                                                         \
    X(KIND, 6, "kind")                                                                             \
    X(ATTN_TYPE, 7, "attn_type")                                                                   \
    X(NUM_Q_HEADS, 8, "num_q_heads")                                                               \
    X(NUM_KV_HEADS, 9, "num_kv_heads")                                                             \
    X(GQA_RATIO, 10, "num_q_heads/num_kv_heads")                                                   \
    X(HEAD_DIM, 11, "head_dim")                                                                    \
    X(V_HEAD_DIM, 12, "v_head_dim")                                                                \
    X(WINDOW_LEFT, 13, "window_left")                                                              \
    X(WINDOW_RIGHT, 14, "window_right")                                                            \
    X(ATTENTION_CHUNK, 15, "attention_chunk")                                                      \
    X(SM_SCALE, 16, "sm_scale")                                                                    \
    X(LOGIT_CAP, 17, "logit_cap")                                                                  \
    X(SINKS, 18, "has_sinks")                                                                      \
    X(ALIBI, 19, "has_alibi")                                                                      \
    X(SCALE_GRANULARITY, 20, "kv_scale_granularity")                                               \
    X(NUM_LAYERS, 21, "num_layers")                                                                \
    X(LAYERS, 22, "layers")                                                                        \
    X(KV_LAYOUT, 23, "kv_layout")                                                                  \
    X(STATE_LAYOUT, 24, "state_layout")                                                            \
    X(Q_DTYPE, 25, "q_dtype")                                                                      \
    X(KV_DTYPE, 26, "kv_dtype")                                                                    \
    X(OUT_DTYPE, 27, "out_dtype")                                                                  \
    X(PAGE_SIZE, 28, "page_size")                                                                  \
    X(MODES, 29, "modes")                                                                          \
    X(MASK_KINDS, 30, "mask_kinds")                                                                \
    X(USES, 31, "uses")                                                                            \
    X(MAX_SEQS, 32, "max_seqs")                                                                    \
    X(MAX_TOKENS, 33, "max_tokens")                                                                \
    X(MAX_Q_LEN, 34, "max_q_len")                                                                  \
    X(MAX_KV_LEN, 35, "max_kv_len")                                                                \
    X(MAX_KV_TOKENS, 36, "max_kv_tokens")                                                          \
    X(GRAPH_LEVEL, 37, "graph_level")                                                              \
    X(REQUIRED_TRAITS, 38, "required_traits")                                                      \
    X(MLA_EXPANDED, 39, "mla_expanded")                                                            \
    X(KV_LORA_RANK, 40, "mla.kv_lora_rank")                                                        \
    X(ROPE_DIM, 41, "mla.rope_dim")                                                                \
    X(NOPE_DIM, 42, "mla.nope_dim")                                                                \
    X(LINEAR_FAMILY, 43, "linear.family")                                                          \
    X(LINEAR_FLAGS, 44, "linear.flags")                                                            \
    X(LINEAR_HEADS, 45, "linear.heads")                                                            \
    X(LINEAR_DIMS, 46, "linear.dims")                                                              \
    X(CONV_WIDTH, 47, "linear.conv_width")                                                         \
    X(STATE_DTYPE, 48, "linear.state_dtype")                                                       \
    X(INDEX_KIND, 49, "sparse.index_kind")                                                         \
    X(TOP_K, 50, "sparse.top_k")                                                                   \
    X(BLOCK_SIZE, 51, "sparse.block_size")                                                         \
    X(LABEL_CACHE, 52, "sparse.label_cache")                                                       \
    X(FEATURE, 53, "features")                                                                     \
    X(CHILD, 54, "child")                                                                          \
    X(OPTION, 55, "option")                                                                        \
    X(MEMORY, 56, "memory")                                                                        \
    X(OPERAND, 57, "operand")                                                                      \
    X(SCALE, 58, "scale")                                                                          \
    X(BATCH, 59, "batch")                                                                          \
    X(STRIDE, 60, "stride")                                                                        \
    X(LAYER_ID, 61, "layer_id")                                                                    \
    X(CONV_DTYPE, 62, "linear.conv_dtype")                                                         \
    X(INDEX_FORMS, 63, "index_forms")                                                              \
    X(MIN_ALIGNMENT, 64, "min_alignment")                                                          \
    X(KV_STRIDES, 65, "kv_strides")                                                                \
    X(NEW_KV_DTYPE, 66, "new_kv_dtype")                                                            \
    X(INPUT_SCALE_GRANULARITY, 67, "input_scale_granularity")                                      \
    X(INDEX_HEADS, 68, "sparse.index_heads")                                                       \
    X(INDEX_DTYPE, 69, "sparse.index_dtype")                                                       \
    X(LABEL_DTYPE, 70, "sparse.label_dtype")

enum attn_field {
    ATTN_FIELD_NONE = 0,
#define ATTN_FIELD_ENUM(name, value, text) ATTN_FIELD_##name = value,
    ATTN_FIELD_MAP(ATTN_FIELD_ENUM)
#undef ATTN_FIELD_ENUM
        ATTN_FIELD_COUNT = 71
};

/* One reason of a refusal, for people and for programs: "head_dim 192: accepted 64, 128, 256".
 *
 * `got` and `accepted` are NUL-terminated text, truncated to fit. `accepted` is a list separated by
 * ", ". An item is a number ("64"), a range ("16..256"), a stepped range ("16..256/16"), or a word
 * ("bf16", "absent"); "nothing" if no value of this field is accepted. For a set (modes,
 * mask_kinds, uses, required_traits, mla_expanded, linear.flags, flags of layers) it lists the
 * allowed members ("lse, unsaved_kv"), "empty" if none is allowed. Setting every named field to an
 * accepted value makes the problem supported; leaving any of them unchanged does not. For
 * COMBINATION, `field` is the field to change and `with_field` the one it conflicts with. */
typedef struct attn_reason {
    uint32_t struct_size;
    uint32_t code;       /* ATTN_REASON_* */
    uint32_t field;      /* ATTN_FIELD_* */
    uint32_t with_field; /* ATTN_FIELD_* of a COMBINATION, else 0 */
    char child[32];      /* CHILD_REJECTED and forwarded reasons: the child's name; else "" */
    char got[64];
    char accepted[160];
} attn_reason;

/* The answer of query. The caller owns the struct and the array of reasons.
 *
 * `num_reasons` counts all reasons and may exceed `reasons_capacity`; only the first
 * reasons_capacity are written, in the order in which a person should read them. */
typedef struct attn_verdict {
    uint32_t struct_size;
    uint32_t supported;        /* 1 = yes, 0 = no: at least one reason */
    uint32_t num_reasons;      /* out */
    uint32_t reasons_capacity; /* in: elements of `reasons` */
    attn_reason *reasons;      /* in: array, struct_size set in each; NULL if capacity is 0 */
    /* The members below are defined only if supported. */
    uint32_t graph_level;              /* ATTN_GRAPH_*: the highest level supported */
    uint32_t traits;                   /* ATTN_TRAIT_* */
    uint32_t reads_new_kv_unquantised; /* ATTN_MODE_BIT set: modes in which new tokens are read */
                                       /* from the arguments, not as rounded into the cache */
    int32_t graph_seq_len_fill;        /* seq_len of padding sequences in a graph: 0 or 1 */
    uint32_t host_arrays;              /* ATTN_HOST_* set: host arrays that these layers need in */
                                       /* every batch */
    uint32_t reserved;                 /* 0 */
    double cost_hint;                  /* relative time of a forward, 1 = typical; 0 = no opinion */
    uint64_t device_bytes; /* upper bound for all metadata regions, within the problem's */
    uint64_t pinned_bytes; /* bounds; 0 if these are not known */
    uint64_t host_bytes;
} attn_verdict;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_PROBLEM_H */
