/* SPDX-License-Identifier: Apache-2.0
 *
 * keys.c: the table of keys, and finding a row in it.
 *
 * A new key is one row here and one member in config.h.
 */
#include "host/config/keys.h"

#include <string.h>

/* ---- Choices --------------------------------------------------------------------------------- */

#define LAYER_TYPE(name, word, kind) {word, CONFIG_LAYER_##name},
static const struct config_choice layer_types[] = {CONFIG_LAYER_MAP(LAYER_TYPE){NULL, 0}};
#undef LAYER_TYPE
static const struct config_choice model_dtypes[] = {
    {"f32", ATTN_F32}, {"f16", ATTN_F16}, {"bf16", ATTN_BF16}, {NULL, 0}};
static const struct config_choice cache_dtypes[] = {
    {"auto", ATTN_DTYPE_NONE},
    {"f32", ATTN_F32},
    {"f16", ATTN_F16},
    {"bf16", ATTN_BF16},
    {"fp8_e4m3", ATTN_FP8_E4M3},
    {"fp8_e5m2", ATTN_FP8_E5M2},
    {NULL, 0},
};
static const struct config_choice label_dtypes[] = {
    {"auto", ATTN_DTYPE_NONE}, {"f32", ATTN_F32},           {"f16", ATTN_F16},
    {"bf16", ATTN_BF16},       {"fp8_e4m3", ATTN_FP8_E4M3}, {NULL, 0}};
static const struct config_choice attn_types[] = {
    {"decoder", ATTN_TYPE_DECODER}, {"encoder_only", ATTN_TYPE_ENCODER_ONLY}, {NULL, 0}};
static const struct config_choice linear_families[] = {{"gdn", ATTN_LINEAR_GDN + 1},
                                                       {"mamba2", ATTN_LINEAR_MAMBA2 + 1},
                                                       {"kda", ATTN_LINEAR_KDA + 1},
                                                       {"lightning", ATTN_LINEAR_LIGHTNING + 1},
                                                       {"short_conv", ATTN_LINEAR_SHORT_CONV + 1},
                                                       {NULL, 0}};
static const struct config_choice speculative_modes[] = {
    {"prefill", CONFIG_SPECULATIVE_PREFILL}, {"decode", CONFIG_SPECULATIVE_DECODE}, {NULL, 0}};
static const struct config_choice mla_forms[] = {{"auto", CONFIG_MLA_AUTO},
                                                 {"absorbed", CONFIG_MLA_ABSORBED},
                                                 {"expanded", CONFIG_MLA_EXPANDED},
                                                 {NULL, 0}};
static const struct config_choice layouts[] = {{"auto", CONFIG_LAYOUT_AUTO},
                                               {"nhd", CONFIG_LAYOUT_NHD},
                                               {"hnd", CONFIG_LAYOUT_HND},
                                               {NULL, 0}};
static const struct config_choice latent_layouts[] = {{"auto", CONFIG_LATENT_AUTO},
                                                      {"latent", CONFIG_LATENT_PLAIN},
                                                      {"latent_fp8", CONFIG_LATENT_FP8},
                                                      {NULL, 0}};
static const struct config_choice formats[] = {
    {"auto", CONFIG_FORMAT_AUTO},         {"mooncake", CONFIG_FORMAT_MOONCAKE},
    {"bailian", CONFIG_FORMAT_BAILIAN},   {"azure", CONFIG_FORMAT_AZURE},
    {"burstgpt", CONFIG_FORMAT_BURSTGPT}, {NULL, 0}};
static const struct config_choice too_longs[] = {{"refuse", CONFIG_TOO_LONG_REFUSE},
                                                 {"skip", CONFIG_TOO_LONG_SKIP},
                                                 {"cut", CONFIG_TOO_LONG_CUT},
                                                 {NULL, 0}};
static const struct config_choice clocks[] = {
    {"virtual", CONFIG_CLOCK_VIRTUAL}, {"wall", CONFIG_CLOCK_WALL}, {NULL, 0}};

/* ---- The table ------------------------------------------------------------------------------- */

/* Rows of a section stand together: the order here is the order of --print-config. */
#define KEY(section_, name_, member_, kind_, default_, ...)                                        \
    {                                                                                              \
        .section = #section_, .name = name_, .kind = &config_kind_##kind_,                         \
        .offset = offsetof(struct config, section_.member_), .default_text = default_, __VA_ARGS__ \
    }
#define RANGE(min_, max_) .min = (min_), .max = (max_)
#define WORDS(choices_)   .choices = (choices_)
#define BY_LAYER_TYPE     .flags = CONFIG_BY_LAYER_TYPE

/* clang-format off */
const struct config_key config_keys[] = {
    KEY(plugins, "path", path, paths, "", .flags = CONFIG_REPEATABLE,
        .help = "A directory whose .so files are loaded, a .so or .py file, or module:Class; loaded in this order."),
    KEY(plugins, "pin.<n>", pins, pin, "", .flags = CONFIG_NUMBERED,
        .help = "Load this plugin file only if its content has this digest."),
    KEY(plugins, "critical", critical, words, "", .flags = CONFIG_REPEATABLE,
        .help = "A plugin whose refusal ends the program; other refusals are only noted."),
    KEY(plugins, "scan_seconds", scan_seconds, double, "10", RANGE(0.01, 3600),
        .help = "Seconds that a new plugin may take to open, in a separate process."),

    KEY(platform, "device", device, device, "auto",
        .help = "Device of attention; auto: a CUDA device if it can serve and no CPU backend is named."),
    KEY(platform, "simulate", simulate, word, "",
        .help = "Select as if on this platform: sm90, gfx942, npu, cpu_amx ... (for explain)."),
    KEY(platform, "max_sms", max_sms, int, "0", RANGE(0, 65535),
        .help = "CUDA: multiprocessors available to launches, if others are busy; 0 = all."),

    KEY(model, "config", config, path, "",
        .help = "A Hugging Face config.json that describes the model."),
    KEY(model, "num_layers", num_layers, int, "", RANGE(1, 4096),
        .help = "Attention layers."),
    KEY(model, "num_q_heads", num_q_heads, int, "", RANGE(1, 4096),
        .help = "Query heads."),
    KEY(model, "num_kv_heads", num_kv_heads, int, "", RANGE(1, 4096),
        .help = "Key and value heads, a divisor of num_q_heads; left out: num_q_heads."),
    KEY(model, "head_dim", head_dim, int, "", RANGE(1, 4096),
        .help = "Elements of a query or key vector of one head."),
    KEY(model, "v_head_dim", v_head_dim, int, "", RANGE(1, 4096),
        .help = "Elements of a value vector of one head; left out: head_dim."),
    KEY(model, "layer_types", layer_types, pattern, "", WORDS(layer_types),
        .help = "Type of each layer; a shorter pattern is repeated up to num_layers."),
    KEY(model, "num_kv_shared_layers", num_kv_shared_layers, int, "0", RANGE(0, 4095),
        .help = "The last N layers read the cache of the last earlier layer of their type."),
    KEY(model, "<layer_type>.num_q_heads", by_type.num_q_heads, ints_by_type, "", RANGE(1, 4096),
        BY_LAYER_TYPE, .help = "Query heads of layers of one type; for linear layers, heads of v."),
    KEY(model, "<layer_type>.num_kv_heads", by_type.num_kv_heads, ints_by_type, "", RANGE(1, 4096),
        BY_LAYER_TYPE, .help = "Key and value heads of layers of one type; for linear layers, heads of k."),
    KEY(model, "<layer_type>.head_dim", by_type.head_dim, ints_by_type, "", RANGE(1, 4096),
        BY_LAYER_TYPE, .help = "Elements of a query or key vector of one head, for layers of one type."),
    KEY(model, "<layer_type>.v_head_dim", by_type.v_head_dim, ints_by_type, "", RANGE(1, 4096),
        BY_LAYER_TYPE, .help = "Elements of a value vector of one head, for layers of one type."),
    KEY(model, "<layer_type>.logit_cap", by_type.logit_cap, doubles_by_type, "", RANGE(1.2e-38, 1e6),
        .flags = CONFIG_BY_LAYER_TYPE | CONFIG_OR_ZERO, .help = "logit_cap of layers of one type."),
    KEY(model, "<layer_type>.sm_scale", by_type.sm_scale, doubles_by_type, "", RANGE(1.2e-38, 1e6), /* normal in fp32 */
        BY_LAYER_TYPE, .help = "sm_scale of layers of one type."),
    KEY(model, "<layer_type>.sinks", by_type.sinks, bools_by_type, "", BY_LAYER_TYPE,
        .help = "sinks of layers of one type."),
    KEY(model, "<layer_type>.alibi", by_type.alibi, bools_by_type, "", BY_LAYER_TYPE,
        .help = "alibi of layers of one type."),
    KEY(model, "sliding_window", sliding_window, int, "", RANGE(1, 2147483647),
        .help = "Tokens that a query of a sliding layer sees, including its own."),
    KEY(model, "attention_chunk", attention_chunk, int, "", RANGE(1, 2147483647),
        .help = "Tokens of a chunk; a query of a chunked layer sees only its own chunk."),
    KEY(model, "logit_cap", logit_cap, double, "0", RANGE(1.2e-38, 1e6), .flags = CONFIG_OR_ZERO,
        .help = "Scores s become cap * tanh(s / cap); 0 = off."),
    KEY(model, "sinks", sinks, bool, "no",
        .help = "Add one logit per query head to the softmax's denominator."),
    KEY(model, "alibi", alibi, bool, "no",
        .help = "Lower scores linearly with the distance between query and key."),
    KEY(model, "sm_scale", sm_scale, double, "", RANGE(1.2e-38, 1e6),
        .help = "Factor of the scores; left out: 1 / sqrt(head_dim)."),
    KEY(model, "dtype", dtype, dtype, "bf16", WORDS(model_dtypes),
        .help = "Type of queries, new keys and values, and outputs."),
    KEY(model, "kv_lora_rank", kv_lora_rank, int, "", RANGE(1, 65536),
        .help = "MLA: elements of the latent; setting it makes the layers MLA layers."),
    KEY(model, "qk_rope_head_dim", qk_rope_head_dim, int, "", RANGE(0, 4096),
        .help = "MLA: elements of a head with position encoding; 0 = none."),
    KEY(model, "qk_nope_head_dim", qk_nope_head_dim, int, "", RANGE(1, 4096),
        .help = "MLA: elements of a head without position encoding."),
    KEY(model, "index_topk", index_topk, int, "", RANGE(1, 2147483647),
        .help = "Keys that each query of a sparse layer reads; sparse layers are MLA layers."),
    KEY(model, "index_head_dim", index_head_dim, int, "", RANGE(1, 65536),
        .help = "Elements of a key of a sparse layer's indexer."),
    KEY(model, "index_n_heads", index_n_heads, int, "64", RANGE(1, 1024),
        .help = "Query heads of a sparse layer's indexer."),
    KEY(model, "linear_family", linear_family, choice, "", WORDS(linear_families),
        .help = "Recurrence of linear layers; linear.num_q_heads and similar keys set their shape."),
    KEY(model, "linear_conv_kernel_dim", linear_conv, int, "", RANGE(1, 64),
        .help = "Taps of the short convolution before linear layers; left out: none."),
    KEY(model, "max_context_len", max_context_len, int, "", RANGE(1, 2147483647),
        .help = "Tokens of the longest request, input and output."),
    KEY(model, "tp_size", tp_size, int, "1", RANGE(1, 4096),
        .help = "Ranks of tensor parallelism; layers have the heads of one rank."),
    KEY(model, "tp_rank", tp_rank, int, "0", RANGE(0, 4095),
        .help = "Rank of tensor parallelism, below tp_size."),
    KEY(model, "attn_type", attn_type, choice, "decoder", WORDS(attn_types),
        .help = "encoder_only: every token sees every token, without a cache."),

    KEY(attention, "attention_backend", attention_backend, word, "auto",
        .help = "Backend of all phases: auto, a backend, an alias or the NAME of a section."),
    KEY(attention, "prefill_attention_backend", prefill_attention_backend, word, "",
        .help = "Backend of prefill; left out: attention_backend."),
    KEY(attention, "decode_attention_backend", decode_attention_backend, word, "",
        .help = "Backend of decode; left out: attention_backend."),
    KEY(attention, "mm_attention_backend", mm_attention_backend, word, "",
        .help = "Backend of encoder_only layers, such as a vision tower's; left out: auto."),
    KEY(attention, "linear_attn_backend", linear_attn_backend, word, "",
        .help = "Backend of linear layers; left out: auto."),
    KEY(attention, "speculative_attention_mode", speculative_attention_mode, choice, "prefill",
        WORDS(speculative_modes),
        .help = "The phase whose backend verifies drafts."),
    KEY(attention, "speculative_eagle_topk", speculative_eagle_topk, int, "0", RANGE(0, 64),
        .help = "Branches of a draft tree, 1 = a chain; for explain without [speculative]."),
    KEY(attention, "mla_prefill", mla_prefill, choice, "auto", WORDS(mla_forms),
        .help = "MLA: form of prompt-only steps; expanded has fp32 outputs; auto: expanded on a GPU whose backends serve it."),
    KEY(attention, "batch_invariant", batch_invariant, bool, "no",
        .help = "Use only backends whose results do not depend on the rest of the batch, bit for bit; for recurrent layers, nor on prompt cuts."),
    KEY(attention, "rules", rules, path, "",
        .help = "A file of selection rules that replaces the installed selection.ini."),
    KEY(attention, "route.<n>", routes, route, "", .flags = CONFIG_NUMBERED,
        .help = "The first matching route, by ascending n, names the backend; at most 31 with conditions, and a last one without."),

    KEY(kv_cache, "page_size", page_size, int, "1", RANGE(1, 65536),
        .help = "Tokens per page."),
    KEY(kv_cache, "dtype", dtype, dtype, "auto", WORDS(cache_dtypes),
        .help = "Type of the cached keys and values; auto: the model's."),
    KEY(kv_cache, "<layer_type>.dtype", dtypes, dtypes_by_type, "", WORDS(cache_dtypes), BY_LAYER_TYPE,
        .help = "Type of the cache of sliding, chunked or cross layers; full: all others."),
    KEY(kv_cache, "k_scale", k_scale, doubles, "", RANGE(1.2e-38, 3.4e38), /* normal in fp32 */
        .help = "Scale of cached keys or latents of fp8: stored = key / scale; left out: 1."),
    KEY(kv_cache, "v_scale", v_scale, doubles, "", RANGE(1.2e-38, 3.4e38),
        .help = "Scale of cached values, as k_scale; latents have none."),
    KEY(kv_cache, "layout", layout, choice, "auto", WORDS(layouts),
        .help = "nhd: [pages, page_size, heads, dim]; hnd: [pages, heads, page_size, dim]."),
    KEY(kv_cache, "latent_layout", latent_layout, choice, "auto", WORDS(latent_layouts),
        .help = "latent: elements of dtype; latent_fp8: fp8_e4m3 with scales in each row."),
    KEY(kv_cache, "label_dtype", label_dtype, dtype, "auto", WORDS(label_dtypes),
        .help = "Type of the cached labels of sparse layers; auto: the model's. fp8_e4m3: index queries, too."),
    KEY(kv_cache, "max_total_tokens", max_total_tokens, int, "", RANGE(1, 1099511627776),
        .help = "Tokens that the cache holds; left out: computed from mem_fraction."),
    KEY(kv_cache, "max_encoder_tokens", max_encoder_tokens, int, "", RANGE(1, 1099511627776),
        .help = "Encoder tokens that the pool of cross attention holds; left out: enough for all concurrent requests."),
    KEY(kv_cache, "mem_fraction", mem_fraction, double, "0.8", RANGE(0, 1),
        .flags = CONFIG_ABOVE_MIN,
        .help = "Share of the free device memory at start for the cache."),
    KEY(kv_cache, "hybrid_swa_memory", hybrid_swa_memory, bool, "no",
        .help = "Give layers with a sliding window or chunks a separate pool, whose pages are freed when no query can see them."),
    KEY(kv_cache, "swa_full_tokens_ratio", swa_full_tokens_ratio, double, "0.8", RANGE(0, 1),
        .flags = CONFIG_ABOVE_MIN,
        .help = "Tokens of the hybrid_swa_memory pool, as a share of the other layers' pool."),
    KEY(kv_cache, "prefix_cache", prefix_cache, bool, "yes",
        .help = "Keep the cache of finished requests for later ones with the same prefix."),
    KEY(kv_cache, "await_prefix", await_prefix, bool, "yes",
        .help = "Let a request wait one step for a shared prefix of at least 32 tokens that another request computes in that step."),
    KEY(kv_cache, "cached_states", cached_states, int, "32", RANGE(0, 1048576),
        .help = "Recurrent states in the prefix cache; 0: recurrent models share no prefixes."),

    KEY(cuda_graph, "enable", enable, bool, "yes",
        .help = "Capture decode steps into CUDA graphs if the backend supports it."),
    KEY(cuda_graph, "bs", bs, ranges, "1 2 4 8-64/8", RANGE(1, 65536),
        .help = "Batch sizes to capture."),

    KEY(workload, "trace", trace, path, "",
        .help = "Trace of requests: a Mooncake or Bailian .jsonl, an Azure LLM or BurstGPT .csv file, plain or gzipped."),
    KEY(workload, "format", format, choice, "auto", WORDS(formats),
        .help = "Format of the trace; auto: detected from its content."),
    KEY(workload, "block_tokens", block_tokens, int, "0", RANGE(0, 1073741824),
        .help = "Prompt tokens per hash id of the trace; 0: computed from the numbers of ids, 512 (bailian: 16) if several sizes fit."),
    KEY(workload, "length_scale", length_scale, double, "1", RANGE(0, 1000),
        .flags = CONFIG_ABOVE_MIN,
        .help = "Factor of all lengths of the trace."),
    KEY(workload, "chunked_prefill_size", chunked_prefill_size, int, "2048",
        RANGE(-1, 2147483647),
        .help = "Prompt tokens of a step; longer prompts are split. 0 or -1: never split."),
    KEY(workload, "max_running_requests", max_running_requests, int, "64", RANGE(1, 65536),
        .help = "Largest number of concurrent requests."),
    KEY(workload, "max_requests", max_requests, int, "0", RANGE(0, 2147483647),
        .help = "Number of requests to read from the start of the trace; 0 = all."),
    KEY(workload, "too_long", too_long, choice, "skip", WORDS(too_longs),
        .help = "Action on a request longer than the model's context: skip (leave it out, warn, count it), cut (shorten it, warn, count it) or refuse (an error)."),
    KEY(workload, "clock", clock, choice, "virtual", WORDS(clocks),
        .help = "virtual: requests arrive in order, without waiting; wall: at their timestamps."),
    KEY(workload, "mixed", mixed, bool, "no",
        .help = "Let one batch hold prompt chunks and decodes."),
    KEY(workload, "seed", seed, uint64, "1",
        .help = "Seed of all vectors and of the choice of verified rows."),
    KEY(workload, "num_threads", num_threads, int, "0", RANGE(0, 1024),
        .help = "Threads of the CPU plugins; 0 = one per processor that the process may use, cgroup quotas "
                "included."),

    KEY(speculative, "draft_tokens", draft_tokens, int, "0", RANGE(0, 64),
        .help = "Tokens of a request verified at once: the last token and its drafts; 0 = no drafts."),
    KEY(speculative, "config", config, path, "",
        .help = "The draft model's config.json; left out: one layer like the target's last."),
    KEY(speculative, "num_layers", num_layers, int, "1", RANGE(1, 4096),
        .help = "Layers of a draft model that has no config.json."),
    KEY(speculative, "num_q_heads", num_q_heads, int, "", RANGE(1, 4096),
        .help = "Query heads of a draft model without config.json; this and its other shape keys default to the target's last layer."),
    KEY(speculative, "num_kv_heads", num_kv_heads, int, "", RANGE(1, 4096),
        .help = "Key and value heads of a draft model without config.json."),
    KEY(speculative, "head_dim", head_dim, int, "", RANGE(1, 4096),
        .help = "Elements of a query or key vector of one head of the draft model."),
    KEY(speculative, "v_head_dim", v_head_dim, int, "", RANGE(1, 4096),
        .help = "Elements of a value vector of one head of the draft model; left out: head_dim."),
    KEY(speculative, "sliding_window", sliding_window, int, "", RANGE(1, 2147483647),
        .help = "Tokens that a query of the draft model sees, including its own."),
    KEY(speculative, "kv_dtype", kv_dtype, dtype, "auto", WORDS(cache_dtypes),
        .help = "Type of the draft model's cache; auto: as in [kv_cache]."),
    KEY(speculative, "topk", topk, int, "1", RANGE(1, 63),
        .help = "Drafts at each depth of the tree; 1 = a chain."),
    KEY(speculative, "acceptance", acceptance, double, "0.7", RANGE(0, 1),
        .help = "Probability that a draft is accepted, drawn for each token."),
    KEY(speculative, "seed", seed, uint64, "1",
        .help = "Seed of these draws."),

    KEY(verify, "rate", rate, double, "0.01", RANGE(0, 1),
        .help = "Share of the computed rows compared with the reference; 0 = none."),
    KEY(verify, "fail_fast", fail_fast, bool, "no",
        .help = "End a run at the first wrong row, with a report up to that point."),
};
/* clang-format on */

_Static_assert(sizeof config_keys / sizeof *config_keys <= CONFIG_MAX_KEYS, "names[] has room");

const size_t config_num_keys = sizeof config_keys / sizeof *config_keys;

/* Does "route.12" fit the row "route.<n>"? Leading zeros do not: route.1 has one name. */
static bool match_numbered(const struct config_key *key, const char *name, int64_t *number)
{
    size_t stem = strlen(key->name) - strlen("<n>");
    if (strncmp(key->name, name, stem) != 0)
        return false;
    const char *digits = name + stem;
    if (digits[0] == '+' || (digits[0] == '0' && digits[1]))
        return false;
    return text_parse_int64(digits, number) && *number >= 0 && *number <= CONFIG_MAX_NUMBER;
}

const char *config_layer_name(int64_t type)
{
    return type >= 0 && type < CONFIG_LAYER_COUNT ? layer_types[type].name : "?";
}

/* Does "sliding.head_dim" fit the row "<layer_type>.head_dim"? */
static bool match_layer_type(const struct config_key *key, const char *name, int64_t *number)
{
    size_t length = strcspn(name, ".");
    if (strcmp(name + length, key->name + strlen("<layer_type>")) != 0)
        return false;
    for (const struct config_choice *type = layer_types; type->name; type++)
        if (strlen(type->name) == length && strncmp(type->name, name, length) == 0) {
            *number = type->value;
            return true;
        }
    return false;
}

static bool match(const struct config_key *key, const char *name, int64_t *number)
{
    if (key->flags & CONFIG_NUMBERED)
        return match_numbered(key, name, number);
    if (key->flags & CONFIG_BY_LAYER_TYPE)
        return match_layer_type(key, name, number);
    return strcmp(key->name, name) == 0;
}

const struct config_key *config_key_find(const char *section, const char *name, int64_t *number)
{
    for (size_t i = 0; i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        if (strcmp(key->section, section) != 0)
            continue;
        *number = 0;
        if (match(key, name, number))
            return key;
    }
    return NULL;
}

size_t config_key_names(const char *section, const char *names[CONFIG_MAX_KEYS])
{
    size_t count = 0;
    for (size_t i = 0; i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        if (section && strcmp(key->section, section) == 0)
            names[count++] = key->name;
        /* rows of a section stand together */
        if (!section && (i == 0 || strcmp(key->section, key[-1].section) != 0))
            names[count++] = key->section;
    }
    return count;
}
