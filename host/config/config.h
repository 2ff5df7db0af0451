/* SPDX-License-Identifier: Apache-2.0
 *
 * config.h: the configuration, as one typed struct.
 *
 * Every key is one row of the table in config/keys.c: it names the member below, the type, the
 * default, what is accepted and the help text. From that table the ini is parsed, checked, printed
 * (config_print) and misspelt keys are corrected. To add a key: one member here, one row there.
 *
 * Three sources, later ones win: the table's defaults, the ini, "section.key=value" texts of the
 * command line (`--set`). A key that is not repeatable may stand once in the ini; of several --set
 * the last wins; a --set of a repeatable key replaces what the ini gave, further ones are added.
 *
 * An empty value (`key =`) means "not given" where that is the default, and is an error elsewhere.
 * Relative paths of the ini are relative to its directory, those of --set to the working directory;
 * in the struct every path is absolute.
 */
#ifndef HOST_CONFIG_CONFIG_H
#define HOST_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "attn_plugin.h"

/* ---- Lists ----------------------------------------------------------------------------------- */

/* `items` is NULL when `count` is 0. Strings belong to the config. */
struct config_texts {
    char **items;
    size_t count;
};

struct config_ints {
    int64_t *items;
    size_t count;
};

struct config_doubles {
    double *items;
    size_t count;
};

/* ---- [plugins] ------------------------------------------------------------------------------- */

/* pin.<n> = FILE SHA256: the file is loaded only if its content has this digest. */
struct config_pin {
    int64_t number;    /* <n> */
    const char *place; /* "file:line" */
    char *file;        /* absolute */
    uint8_t sha256[32];
};

struct config_pins {
    struct config_pin *items; /* ascending by number */
    size_t count;
};

struct config_plugins {
    struct config_texts path; /* directories and .so files, in search order */
    struct config_pins pins;
    struct config_texts critical; /* plugins whose refusal is fatal */
    double scan_seconds;          /* for each */
};

/* ---- [platform] ------------------------------------------------------------------------------ */

enum { CONFIG_DEVICE_AUTO = 0 }; /* else ATTN_DEVICE_CPU, ATTN_DEVICE_CUDA */

struct config_device {
    int32_t type;  /* CONFIG_DEVICE_AUTO or ATTN_DEVICE_* */
    int32_t index; /* CUDA ordinal, else 0 */
};

struct config_platform {
    struct config_device device;
    char *simulate;  /* a platform that platform.c knows; NULL = the real device */
    int64_t max_sms; /* multiprocessors that launches may use; 0 = all */
};

/* ---- [model] --------------------------------------------------------------------------------- */

/* X(NAME, "word") */
#define CONFIG_LAYER_MAP(X)                                                                        \
    X(FULL, "full", SOFTMAX)                                                                       \
    X(SLIDING, "sliding", SOFTMAX)                                                                 \
    X(CHUNKED, "chunked", SOFTMAX)                                                                 \
    X(LINEAR, "linear", LINEAR)                                                                    \
    X(CROSS, "cross", SOFTMAX)                                                                     \
    X(ENCODER, "encoder", SOFTMAX)                                                                 \
    X(SPARSE, "sparse", SPARSE)
#define CONFIG_LAYER_ENUM(name, word, kind) CONFIG_LAYER_##name,
enum { CONFIG_LAYER_MAP(CONFIG_LAYER_ENUM) CONFIG_LAYER_COUNT };
#undef CONFIG_LAYER_ENUM

/* The word of CONFIG_LAYER_*. */
const char *config_layer_name(int64_t type);

/* Keys of one layer type, <layer_type>.head_dim and the like, which replace those of all layers. 0 =
 * not given; where 0 is a value too, config_is_set() knows. */
struct config_layer_keys {
    int64_t num_q_heads[CONFIG_LAYER_COUNT];
    int64_t num_kv_heads[CONFIG_LAYER_COUNT];
    int64_t head_dim[CONFIG_LAYER_COUNT];
    int64_t v_head_dim[CONFIG_LAYER_COUNT];
    double logit_cap[CONFIG_LAYER_COUNT];
    double sm_scale[CONFIG_LAYER_COUNT];
    bool sinks[CONFIG_LAYER_COUNT];
    bool alibi[CONFIG_LAYER_COUNT];
};

/* 0 = not given, unless stated otherwise. */
struct config_model {
    char *config; /* a Hugging Face config.json; NULL = the keys below are the model */
    int64_t num_layers;
    int64_t num_q_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t v_head_dim;
    struct config_layer_keys by_type;
    struct config_ints layer_types; /* CONFIG_LAYER_*, repetitions written out */
    int64_t num_kv_shared_layers;   /* that read the cache of an earlier layer */
    int64_t sliding_window;         /* tokens, the query itself counted: window_left + 1 */
    int64_t attention_chunk;        /* tokens; 0 = off */
    double logit_cap;               /* 0 = off */
    bool sinks;
    bool alibi;
    double sm_scale; /* 0 = 1 / sqrt(head_dim) */
    attn_dtype dtype;
    int64_t kv_lora_rank;
    int64_t qk_rope_head_dim;
    int64_t qk_nope_head_dim;
    int64_t index_topk;      /* keys that a query of a sparse layer reads */
    int64_t index_head_dim;  /* of the index's keys; 0 = nothing is known of them */
    int64_t index_n_heads;   /* of its queries */
    int32_t linear_family;   /* ATTN_LINEAR_* + 1; 0 = not given */
    int64_t linear_conv;     /* taps; 0 = no convolution */
    int64_t tp_size;         /* ranks that share the heads; 0 = 1 */
    int64_t tp_rank;         /* rank of these layers, below tp_size */
    int64_t max_context_len; /* tokens */
    int32_t attn_type;       /* ATTN_TYPE_DECODER or ATTN_TYPE_ENCODER_ONLY */
};

/* ---- [attention] ----------------------------------------------------------------------------- */

enum { CONFIG_SPECULATIVE_PREFILL = 0, CONFIG_SPECULATIVE_DECODE = 1 };

/* route.<n> = CONDITIONS -> NAME, not yet parsed. */
struct config_route {
    int64_t number;    /* <n> */
    const char *place; /* "file:line" */
    char *text;
};

struct config_routes {
    struct config_route *items; /* ascending by number */
    size_t count;
};

enum { CONFIG_MLA_AUTO = 0, CONFIG_MLA_ABSORBED = 1, CONFIG_MLA_EXPANDED = 2 };

/* Backend names: "auto", a backend type, a [backend.NAME] section or an alias; NULL = not given. */
struct config_attention {
    char *attention_backend;            /* never NULL */
    char *prefill_attention_backend;    /* NULL = attention_backend */
    char *decode_attention_backend;     /* NULL = attention_backend */
    char *mm_attention_backend;         /* NULL = auto */
    char *linear_attn_backend;          /* NULL = auto */
    int32_t speculative_attention_mode; /* CONFIG_SPECULATIVE_* */
    int64_t speculative_eagle_topk;     /* 0 = no drafts, 1 = a chain, more = a tree */
    int32_t mla_prefill;                /* CONFIG_MLA_* */
    bool batch_invariant;               /* only backends whose rows depend on no batch */
    char *rules;                        /* a file; NULL = the installed one */
    struct config_routes routes;
};

/* ---- [backend.NAME] -------------------------------------------------------------------------- */

/* An option as it was written; the backend type's own declarations check it later. A key that was
 * given several times is here several times, in order. */
struct config_option {
    char *key;
    char *value;      /* never NULL; "" for `key =` */
    char *place;      /* "file:line" or "--set" */
    const char *base; /* absolute directory that a relative path is relative to: config_path() */
    int line;         /* 0 for --set */
};

struct config_backend {
    char *name;  /* NAME of the section */
    char *type;  /* its key `type`: the backend type it configures; by default NAME */
    char *place; /* where it first stood; where `type` was given, if it was */
    bool has_type;
    struct config_option *options; /* all keys but `type` */
    size_t num_options;
};

struct config_backends {
    struct config_backend *items; /* in order of appearance, one per NAME */
    size_t count;
};

/* ---- The other sections ---------------------------------------------------------------------- */

enum { CONFIG_LAYOUT_AUTO = 0, CONFIG_LAYOUT_NHD = 1, CONFIG_LAYOUT_HND = 2 };

enum { CONFIG_LATENT_AUTO = 0, CONFIG_LATENT_PLAIN = 1, CONFIG_LATENT_FP8 = 2 };

struct config_kv_cache {
    int64_t page_size;                     /* tokens */
    attn_dtype dtype;                      /* ATTN_DTYPE_NONE = as the model */
    attn_dtype dtypes[CONFIG_LAYER_COUNT]; /* by layer type; ATTN_DTYPE_NONE = dtype */
    struct config_doubles k_scale;         /* none, one, or one per KV head */
    struct config_doubles v_scale;
    int32_t layout;               /* CONFIG_LAYOUT_* */
    int32_t latent_layout;        /* CONFIG_LATENT_* */
    attn_dtype label_dtype;       /* of sparse layers' labels; ATTN_DTYPE_NONE = as the model */
    int64_t max_total_tokens;     /* 0 = from mem_fraction */
    int64_t max_encoder_tokens;   /* of cross attention's pool; 0 = of all requests that run */
    double mem_fraction;          /* of the device memory that is free at start */
    bool hybrid_swa_memory;       /* layers with a window or chunks have a pool of their own */
    double swa_full_tokens_ratio; /* tokens of that pool over those of the other */
    bool prefix_cache;
    bool await_prefix;
    int64_t cached_states; /* recurrent states that the prefix cache keeps */
};

struct config_cuda_graph {
    bool enable;
    struct config_ints bs; /* batch sizes to capture, ascending */
};

enum {
    CONFIG_FORMAT_AUTO = 0,
    CONFIG_FORMAT_MOONCAKE = 1,
    CONFIG_FORMAT_AZURE = 2,
    CONFIG_FORMAT_BAILIAN = 3,
    CONFIG_FORMAT_BURSTGPT = 4
};

enum { CONFIG_TOO_LONG_REFUSE = 0, CONFIG_TOO_LONG_SKIP = 1, CONFIG_TOO_LONG_CUT = 2 };

enum { CONFIG_CLOCK_VIRTUAL = 0, CONFIG_CLOCK_WALL = 1 };

struct config_workload {
    char *trace;          /* NULL = not given */
    int32_t format;       /* CONFIG_FORMAT_* */
    int64_t block_tokens; /* that a hash id stands for; 0 = found in the trace */
    double length_scale;
    int64_t chunked_prefill_size; /* tokens; 0 or -1 = prompts are not split */
    int64_t max_running_requests;
    int64_t max_requests; /* 0 = the whole trace */
    int32_t too_long;     /* CONFIG_TOO_LONG_* */
    int32_t clock;        /* CONFIG_CLOCK_* */
    bool mixed;
    uint64_t seed;
    int64_t num_threads; /* 0 = all */
};

/* Of the draft model, 0 or NULL = as the target's last layer that has a KV cache. */
struct config_speculative {
    char *config;       /* its config.json */
    int64_t num_layers; /* of the keys below */
    int64_t num_q_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t v_head_dim;
    int64_t sliding_window; /* tokens, the query itself counted */
    attn_dtype kv_dtype;    /* of its cache; ATTN_DTYPE_NONE = as the target's */
    int64_t draft_tokens;   /* rows of a request in a verification; 0 = no drafts */
    int64_t topk;           /* 1 = a chain */
    double acceptance;      /* share of the drafts that are right */
    uint64_t seed;
};

struct config_verify {
    double rate;    /* share of the computed rows, 0 to 1 */
    bool fail_fast; /* the first failure ends a run */
};

struct config_entry;

struct config {
    struct config_plugins plugins;
    struct config_platform platform;
    struct config_model model;
    struct config_attention attention;
    struct config_backends backends;
    struct config_kv_cache kv_cache;
    struct config_cuda_graph cuda_graph;
    struct config_workload workload;
    struct config_speculative speculative;
    struct config_verify verify;

    /* Private state */
    char *name;     /* the ini's name in messages; "default" without an ini */
    char *ini_base; /* absolute directories for config_path() */
    char *set_base;
    struct config_entry *entries; /* what was given, in order; overridden ones are removed */
    size_t num_entries;
};

/* ---- Load ------------------------------------------------------------------------------------ */

/* Read the ini at `path` (NULL = no ini, defaults only), then apply `sets`, texts of the form
 * section.key=value. On success *out is the caller's, for config_destroy(). CONFIG_ERROR with the
 * place, what was got and what is accepted for the first thing that is wrong, an unreadable file
 * included; OUT_OF_HOST_MEMORY. */
attn_status config_load(const char *path, const char *const *sets, size_t num_sets,
                        struct config **out, attn_error *error);

/* The same for an ini that is in memory already: `length` bytes of `text`, called `name` in
 * messages, with relative paths relative to `base` (NULL = the working directory). */
attn_status config_load_text(const char *text, size_t length, const char *name, const char *base,
                             const char *const *sets, size_t num_sets, struct config **out,
                             attn_error *error);

/* NULL is accepted. */
void config_destroy(struct config *config);

/* ---- Ask ------------------------------------------------------------------------------------- */

/* Was "section.key" given a value by the ini or by --set? Works for numbered keys
 * ("attention.route.2") and for backend sections ("backend.NAME.key"). */
bool config_is_set(const struct config *config, const char *key);

/* The first given key of `section` that is not in `others`, a list that ends with NULL; NULL =
 * there is none. Lives as long as the config. */
const char *config_find_set(const struct config *config, const char *section,
                            const char *const *others);

/* Where: "file:line", "--set", or "default" when it was not given. Of a repeatable key the first.
 * Never NULL; lives as long as the config. */
const char *config_place(const struct config *config, const char *key);

/* The section [backend.NAME], or NULL. */
const struct config_backend *config_backend(const struct config *config, const char *name);

/* Write "PLACE: SECTION.KEY: message" for a value that turned out wrong later; returns
 * CONFIG_ERROR. */
attn_status config_fail(const struct config *config, const char *key, attn_error *error,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Put "PLACE: SECTION.KEY: " before the message if the file `path`, which the key names, cannot be
 * read at all. Otherwise the message already has a file and a line. */
void config_name_file(const struct config *config, const char *key, const char *path,
                      attn_error *error);

/* `text` itself if it is absolute, else base/text without leading "./" parts. malloc'ed, the caller
 * frees it; NULL when memory ran out. */
char *config_path(const char *base, const char *text);

/* ---- Show ------------------------------------------------------------------------------------ */

/* Write the whole configuration as an ini that reads back as the same configuration: every key with
 * its help, what it accepts, its default and where it was set; keys not set are commented out. */
void config_print(const struct config *config, FILE *file);

#endif /* HOST_CONFIG_CONFIG_H */
