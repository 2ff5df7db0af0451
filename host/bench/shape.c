/* SPDX-License-Identifier: Apache-2.0
 *
 * shape.c: shapes from text, and back.
 */
#include "host/bench/shape.h"

#include <float.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/text.h"
#include "host/base/round.h"
#include "host/kinds/mla.h"
#include "host/workload/generator.h"

/* ---- Keys ------------------------------------------------------------------------------------ */

/* Kinds of layers, as bits 1 << BENCH_*. */
enum {
    LAYERS_SOFTMAX = 1 << BENCH_SOFTMAX,
    LAYERS_MLA = 1 << BENCH_MLA,
    LAYERS_SPARSE = 1 << BENCH_SPARSE,
    LAYERS_LATENT = LAYERS_MLA | LAYERS_SPARSE,
    LAYERS_CACHE = LAYERS_SOFTMAX | LAYERS_LATENT,
    LAYERS_SHORT_CONV = 1 << (BENCH_LINEAR + ATTN_LINEAR_SHORT_CONV),
    LAYERS_LINEAR = (1 << (BENCH_LINEAR + ATTN_LINEAR_COUNT)) - (1 << BENCH_LINEAR),
    LAYERS_RECURRENT = LAYERS_LINEAR & ~LAYERS_SHORT_CONV,
    LAYERS_GATED = LAYERS_RECURRENT & ~(1 << (BENCH_LINEAR + ATTN_LINEAR_LIGHTNING)),
    LAYERS_ALL = LAYERS_CACHE | LAYERS_LINEAR
};

enum kind { KIND_INT, KIND_LENS, KIND_WORD, KIND_DTYPE, KIND_NUMBER };

struct word {
    const char *name;
    int32_t value;
};

struct key {
    const char *name;
    uint32_t layers; /* LAYERS_*: kinds that have it */
    enum kind kind;
    size_t offset;    /* in struct bench_shape */
    int32_t min, max; /* KIND_INT, KIND_LENS; a KIND_NUMBER is 0, or normal in fp32 and up to max */
    const struct word *words; /* KIND_WORD */
    const char *help;
};

static const struct word layer_kinds[] = {{"softmax", BENCH_SOFTMAX},
                                          {"mla", BENCH_MLA},
                                          {"sparse", BENCH_SPARSE},
                                          {"gdn", BENCH_LINEAR + ATTN_LINEAR_GDN},
                                          {"kda", BENCH_LINEAR + ATTN_LINEAR_KDA},
                                          {"mamba2", BENCH_LINEAR + ATTN_LINEAR_MAMBA2},
                                          {"ssd", BENCH_LINEAR + ATTN_LINEAR_MAMBA2},
                                          {"lightning", BENCH_LINEAR + ATTN_LINEAR_LIGHTNING},
                                          {"short_conv", BENCH_LINEAR + ATTN_LINEAR_SHORT_CONV},
                                          {NULL, 0}};
static const struct word forms[] = {
    {"absorbed", ATTN_MLA_ABSORBED}, {"expanded", ATTN_MLA_EXPANDED}, {NULL, 0}};
static const struct word choices[] = {{"computed", BENCH_CHOICE_COMPUTED},
                                      {"given", BENCH_CHOICE_GIVEN},
                                      {"alone", BENCH_CHOICE_ALONE},
                                      {NULL, 0}};
static const struct word row_scales[] = {{"powers_of_two", 0}, {"any", 1}, {NULL, 0}};
static const struct word gate_forms[] = {{"raw", 1}, {"computed", 0}, {NULL, 0}};
static const struct word modes[] = {{"decode", ATTN_MODE_DECODE},
                                    {"extend", ATTN_MODE_EXTEND},
                                    {"prefill", ATTN_MODE_EXTEND},
                                    {"mixed", ATTN_MODE_MIXED},
                                    {NULL, 0}};
static const struct word answers[] = {{"yes", 1}, {"no", 0}, {NULL, 0}};
static const struct word layouts[] = {{"any", BENCH_LAYOUT_ANY},
                                      {"nhd", BENCH_LAYOUT_NHD},
                                      {"hnd", BENCH_LAYOUT_HND},
                                      {"latent_fp8", BENCH_LAYOUT_LATENT_FP8},
                                      {"kv", BENCH_LAYOUT_KV},
                                      {"vk", BENCH_LAYOUT_VK},
                                      {NULL, 0}};
static const struct word new_kvs[] = {{"saved", BENCH_NEW_KV_SAVED},
                                      {"args", BENCH_NEW_KV_ARGS},
                                      {"cached", BENCH_NEW_KV_CACHED},
                                      {NULL, 0}};
static const struct word granularities[] = {
    {"tensor", ATTN_SCALE_PER_TENSOR}, {"head", ATTN_SCALE_PER_HEAD}, {NULL, 0}};
static const struct word input_granularities[] = {{"tensor", ATTN_SCALE_PER_TENSOR},
                                                  {"head", ATTN_SCALE_PER_HEAD},
                                                  {"seq_head", ATTN_SCALE_PER_SEQ_HEAD},
                                                  {NULL, 0}};
static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_FP8_E4M3, ATTN_FP8_E5M2};

enum { MAX_LEN = 1 << 27, MAX_DIM = 4096, NUM_DTYPES = sizeof dtypes / sizeof dtypes[0] };

#define KEY(name, layers, kind, member, ...)                                                       \
    {                                                                                              \
        name, LAYERS_##layers, kind, offsetof(struct bench_shape, member), __VA_ARGS__             \
    }

static const struct key keys[] = {
    KEY("kind", ALL, KIND_WORD, kind, 0, 0, layer_kinds,
        "kind of layer: softmax attention, latent attention (mla), latent attention with an "
        "indexer (sparse), or a recurrence; ssd is a synonym for mamba2"),
    KEY("mode", ALL, KIND_WORD, mode, 0, 0, modes,
        "kind of batch; prefill is a synonym for extend"),
    KEY("batch", ALL, KIND_INT, batch, 1, 65536, NULL, "number of sequences"),
    KEY("decodes", ALL, KIND_INT, decodes, 0, 65536, NULL,
        "mixed: number of sequences, at the end of the batch, with one query"),
    KEY("q_len", ALL, KIND_LENS, q_len, 1, MAX_LEN, NULL,
        "new tokens per sequence; default: kv_len, so no prefix"),
    KEY("kv_len", ALL, KIND_LENS, kv_len, 1, MAX_LEN, NULL,
        "keys per sequence, new ones included; for a recurrence, tokens: if above q_len, it "
        "resumes from a state"),
    KEY("q_heads", CACHE, KIND_INT, q_heads, 1, MAX_DIM, NULL,
        "query heads; a multiple of kv_heads in softmax layers; heads is a synonym"),
    KEY("kv_heads", SOFTMAX, KIND_INT, kv_heads, 1, MAX_DIM, NULL, "key and value heads"),
    KEY("head_dim", SOFTMAX, KIND_INT, head_dim, 1, MAX_DIM, NULL, "elements of a query or key"),
    KEY("v_head_dim", CACHE, KIND_INT, v_head_dim, 1, MAX_DIM, NULL,
        "elements of a value; default: head_dim; for expanded latents, nope_dim"),
    KEY("dtype", ALL, KIND_DTYPE, dtype, 0, 0, NULL, "dtype of queries, or of a recurrence's rows"),
    KEY("new_kv_dtype", CACHE, KIND_DTYPE, new_kv_dtype, 0, 0, NULL,
        "dtype of new keys and values; default: dtype"),
    KEY("kv_dtype", CACHE, KIND_DTYPE, kv_dtype, 0, 0, NULL, "dtype of the cache; default: dtype"),
    KEY("out_dtype", ALL, KIND_DTYPE, out_dtype, 0, 0, NULL,
        "dtype of outputs; default: dtype; with fp8 queries, the ini's type or bf16"),
    KEY("page_size", CACHE, KIND_INT, page_size, 1, 65536, NULL, "tokens per page"),
    KEY("window", SOFTMAX, KIND_INT, window, 0, MAX_LEN, NULL,
        "keys that a query sees, including its own; 0 = no limit"),
    KEY("causal", SOFTMAX, KIND_WORD, causal, 0, 0, answers, "no: queries also see later keys"),
    KEY("chunk", SOFTMAX, KIND_INT, chunk, 0, MAX_LEN, NULL,
        "a query sees only its own chunk of this many keys; 0 = off"),
    KEY("logit_cap", SOFTMAX, KIND_NUMBER, logit_cap, 0, 1000000, NULL,
        "soft cap of scores; 0 = off"),
    KEY("sm_scale", ALL, KIND_NUMBER, sm_scale, 0, 1000000, NULL,
        "factor of scores; 0 = 1/sqrt(head_dim)"),
    KEY("sinks", SOFTMAX, KIND_WORD, sinks, 0, 0, answers, "one additional logit per query head"),
    KEY("alibi", SOFTMAX, KIND_WORD, alibi, 0, 0, answers, "ALiBi: scores fall with distance"),
    KEY("layout", ALL, KIND_WORD, layout, 0, 0, layouts,
        "layout of the cache (nhd, hnd; latent_fp8: packed latents) or of states (kv, vk); any: "
        "the first supported one of nhd, hnd or of kv, vk; plain latents for mla"),
    KEY("new_kv", CACHE, KIND_WORD, new_kv, 0, 0, new_kvs,
        "new keys: passed and saved; passed, not saved; already in the cache"),
    KEY("scales", SOFTMAX, KIND_WORD, scales, 0, 0, granularities,
        "scales of an fp8 cache: one, or one per head"),
    KEY("input_scales", SOFTMAX, KIND_WORD, input_scales, 0, 0, input_granularities,
        "scales of fp8 queries and fp8 new keys and values: one, one per KV head, or one per KV "
        "head and sequence"),
    KEY("kv_lora_rank", LATENT, KIND_INT, kv_lora_rank, 1, MAX_DIM, NULL, "elements of a latent"),
    KEY("rope_dim", LATENT, KIND_INT, rope_dim, 0, MAX_DIM, NULL,
        "elements of a key's position-encoded part"),
    KEY("nope_dim", LATENT, KIND_INT, nope_dim, 1, MAX_DIM, NULL,
        "elements of a head's key part without positions, before absorption"),
    KEY("form", MLA, KIND_WORD, form, 0, 0, forms,
        "form of latent attention: queries on latents, or keys and values per head (a prompt "
        "without prefix)"),
    KEY("row_scales", LATENT, KIND_WORD, row_scales, 0, 0, row_scales,
        "scales in rows of latent_fp8: powers of two, as backends and DeepSeek's quantiser write "
        "them, or of any size, as vLLM and SGLang write them"),
    KEY("top_k", SPARSE, KIND_INT, top_k, 1, 65536, NULL, "number of keys chosen per query"),
    KEY("index_heads", SPARSE, KIND_INT, index_heads, 1, MAX_DIM, NULL, "heads of the indexer"),
    KEY("label_dim", SPARSE, KIND_INT, label_dim, 4, GENERATOR_MAX_DIM, NULL,
        "elements of a key's label and of a head of the indexer"),
    KEY("label_dtype", SPARSE, KIND_DTYPE, label_dtype, 0, 0, NULL,
        "dtype of labels and of the indexer's queries: f32, f16, bf16 or fp8_e4m3"),
    KEY("choice", SPARSE, KIND_WORD, choice, 0, 0, choices,
        "choice of keys: computed by the indexer; given, to measure attention only; or alone, "
        "without attention"),
    KEY("k_heads", RECURRENT, KIND_INT, k_heads, 1, MAX_DIM, NULL,
        "heads of q and k; for mamba2, groups"),
    KEY("v_heads", LINEAR, KIND_INT, v_heads, 1, MAX_DIM, NULL,
        "heads of v, the state and the output, a multiple of k_heads"),
    KEY("head_k_dim", RECURRENT, KIND_INT, head_k_dim, 1, MAX_DIM, NULL,
        "rows of a head's state; elements of q and k"),
    KEY("head_v_dim", LINEAR, KIND_INT, head_v_dim, 1, MAX_DIM, NULL,
        "columns of a head's state; elements of v"),
    KEY("conv_width", LINEAR, KIND_INT, conv_width, 0, 64, NULL,
        "taps of the convolution before the recurrence; 0 = none"),
    KEY("gates", GATED, KIND_WORD, gates, 0, 0, gate_forms,
        "raw: the backend computes decays from gates; computed: final decays in fp32"),
    KEY("state_dtype", RECURRENT, KIND_DTYPE, state_dtype, 0, 0, NULL,
        "dtype of states: f32 or bf16"),
};

enum { NUM_KEYS = sizeof keys / sizeof keys[0] };

static const char *word_of(const struct word *words, int32_t value)
{
    for (const struct word *word = words; word->name; word++)
        if (word->value == value)
            return word->name;
    return "?";
}

static void append_accepted(const struct key *key, strbuf *text)
{
    switch (key->kind) {
    case KIND_WORD:
        for (const struct word *word = key->words; word->name; word++)
            strbuf_appendf(text, "%s%s", word == key->words ? "" : ", ", word->name);
        break;
    case KIND_DTYPE:
        for (int d = 0; d < NUM_DTYPES; d++)
            strbuf_appendf(text, "%s%s", d ? ", " : "", dtype_name(dtypes[d]));
        break;
    case KIND_NUMBER:
        strbuf_appendf(text, "0, or a number from 1.2e-38 to %d", key->max);
        break;
    default:
        strbuf_appendf(text, "%d to %d, A-BxF, A-B/S%s", key->min, key->max,
                       key->kind == KIND_LENS ? ", N+N" : "");
    }
}

void bench_shape_print_keys(FILE *file)
{
    for (int k = 0; k < NUM_KEYS; k++) {
        enum { COLUMN = 2 + 12 + 2 };
        strbuf text;
        strbuf_init(&text);
        strbuf_appendf(&text, "%s (", keys[k].help);
        append_accepted(&keys[k], &text);
        strbuf_append(&text, ")");
        fprintf(file, "  %-12s  ", keys[k].name);
        text_wrap(file, strbuf_text(&text), COLUMN, COLUMN);
        putc('\n', file);
        strbuf_finish(&text);
    }
}

void bench_shape_init(struct bench_shape *base)
{
    *base = (struct bench_shape){
        .mode = ATTN_MODE_DECODE,
        .batch = 1,
        .decodes = -1,
        .kv_len = {.count = 1, .items = {1024}},
        .q_heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .dtype = ATTN_BF16,
        .page_size = 16,
        .causal = 1,
        .scales = ATTN_SCALE_PER_TENSOR,
        .input_scales = ATTN_SCALE_PER_TENSOR,
    };
}

/* What layers of the kind are like in a model that has them: DeepSeek-V3 and V3.2, Qwen3-Next, Kimi-Linear,
 * Nemotron-H, MiniMax-01, LFM2. */
static void take_kind_defaults(struct bench_shape *shape)
{
    static const struct {
        int32_t k_heads, v_heads, k_dim, v_dim, conv_width;
    } families[ATTN_LINEAR_COUNT] = {
        [ATTN_LINEAR_GDN] = {16, 32, 128, 128, 4},
        [ATTN_LINEAR_KDA] = {32, 32, 128, 128, 4},
        [ATTN_LINEAR_MAMBA2] = {8, 128, 128, 64, 4},
        [ATTN_LINEAR_LIGHTNING] = {64, 64, 128, 128, 0},
        [ATTN_LINEAR_SHORT_CONV] = {0, 16, 0, 128, 3},
    };
    const uint32_t flags[ATTN_LINEAR_COUNT] = {
        [ATTN_LINEAR_GDN] = ATTN_LINEAR_QK_L2NORM,
        [ATTN_LINEAR_KDA] = ATTN_LINEAR_QK_L2NORM,
        [ATTN_LINEAR_SHORT_CONV] = ATTN_LINEAR_CONV_IDENTITY,
    };
    shape->v_head_dim = 0;
    if (shape->kind == BENCH_SPARSE) {
        shape->top_k = 2048;
        shape->index_heads = 64;
        shape->label_dim = 128;
        shape->label_dtype = ATTN_FP8_E4M3;
    }
    if (bench_shape_is_latent(shape)) {
        shape->q_heads = 128;
        shape->kv_lora_rank = 512;
        shape->rope_dim = 64;
        shape->nope_dim = 128;
        shape->page_size = 64;
    }
    if (!bench_shape_is_linear(shape))
        return;
    int32_t family = shape->kind - BENCH_LINEAR;
    shape->k_heads = families[family].k_heads;
    shape->v_heads = families[family].v_heads;
    shape->head_k_dim = families[family].k_dim;
    shape->head_v_dim = families[family].v_dim;
    shape->conv_width = families[family].conv_width;
    shape->gates = (LAYERS_GATED >> shape->kind & 1) != 0;
    shape->state_dtype = ATTN_F32;
    shape->linear.flags = flags[family];
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* One value of a key. */
struct value {
    int32_t integer; /* KIND_INT, KIND_WORD */
    attn_dtype dtype;
    double number;
    struct bench_lens lens;
};

/* A key with all its values. */
struct setting {
    const struct key *key;
    struct value *values;
    size_t count, capacity;
};

/* A text while it is parsed. */
struct parsing {
    const char *text; /* as it was written */
    struct setting settings[NUM_KEYS];
    size_t num_settings;
    attn_error *error;
};

static attn_status out_of_memory(attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "--shape: no memory");
}

/* "--shape TEXT: KEY = 'VALUE' WHAT; accepted: ..." */
static attn_status fail_value(const struct parsing *p, const struct key *key, const char *value,
                              const char *what)
{
    strbuf accepted;
    strbuf_init(&accepted);
    append_accepted(key, &accepted);
    attn_status status =
        host_fail(p->error, ATTN_CONFIG_ERROR, "--shape %s: %s = '%s' %s; accepted: %s", p->text,
                  key->name, value, what, strbuf_text(&accepted));
    strbuf_finish(&accepted);
    return status;
}

static attn_status add_value(const struct parsing *p, struct setting *setting,
                             const struct value *value)
{
    if (setting->count == setting->capacity) {
        size_t capacity = setting->capacity ? 2 * setting->capacity : 4;
        struct value *grown = realloc(setting->values, capacity * sizeof *grown);
        if (!grown)
            return out_of_memory(p->error);
        setting->values = grown;
        setting->capacity = capacity;
    }
    setting->values[setting->count++] = *value;
    return ATTN_OK;
}

static attn_status add_integer(const struct parsing *p, struct setting *setting, int64_t integer)
{
    struct value value = {.integer = (int32_t)integer,
                          .lens = {.count = 1, .items = {(int32_t)integer}}};
    return add_value(p, setting, &value);
}

/* A number of the key in text[0 .. length). */
static bool parse_number(const struct key *key, const char *text, size_t length, int64_t *number)
{
    char digits[24];
    uint64_t value;
    if (length >= sizeof digits)
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    if (!text_parse_uint64(digits, &value) || value > (uint64_t)key->max ||
        value < (uint64_t)key->min)
        return false;
    *number = (int64_t)value;
    return true;
}

/* "A-BxF" or "A-B/S". */
static attn_status add_range(const struct parsing *p, struct setting *setting, const char *item)
{
    const struct key step_key = {.min = 1, .max = INT32_MAX};
    const char *dash = strchr(item, '-'), *sign = strpbrk(dash, "x/");
    int64_t first, last, step;
    if (!sign || !parse_number(setting->key, item, (size_t)(dash - item), &first) ||
        !parse_number(setting->key, dash + 1, (size_t)(sign - dash - 1), &last) ||
        !parse_number(&step_key, sign + 1, strlen(sign + 1), &step))
        return fail_value(p, setting->key, item, "is not a range");
    bool times = *sign == 'x';
    if (first > last || (times && (step < 2 || first == 0)))
        return fail_value(p, setting->key, item, "is a range without an end");
    attn_status status = ATTN_OK;
    for (; first <= last && status == ATTN_OK; first = times ? first * step : first + step) {
        if (setting->count > BENCH_MAX_SHAPES)
            return fail_value(p, setting->key, item, "has too many values");
        status = add_integer(p, setting, first);
    }
    if (status == ATTN_OK && setting->values[setting->count - 1].integer != last)
        return fail_value(p, setting->key, item, "does not reach its end by its step");
    return status;
}

/* "N+N+N". */
static attn_status add_lens(const struct parsing *p, struct setting *setting, const char *item)
{
    struct value value = {.lens.count = 0};
    for (const char *at = item; at;) {
        size_t length = strcspn(at, "+");
        int64_t number;
        if (value.lens.count == BENCH_MAX_LENS)
            return fail_value(p, setting->key, item, "has more than 64 lengths");
        if (!parse_number(setting->key, at, length, &number))
            return fail_value(p, setting->key, item, "has a number out of range");
        value.lens.items[value.lens.count++] = (int32_t)number;
        at = at[length] ? at + length + 1 : NULL;
    }
    return add_value(p, setting, &value);
}

static attn_status add_integers(const struct parsing *p, struct setting *setting, const char *item)
{
    int64_t number;
    if (strchr(item, '-'))
        return add_range(p, setting, item);
    if (setting->key->kind == KIND_LENS && strchr(item, '+'))
        return add_lens(p, setting, item);
    if (!parse_number(setting->key, item, strlen(item), &number))
        return fail_value(p, setting->key, item, "is not a number in range");
    return add_integer(p, setting, number);
}

static attn_status add_word(const struct parsing *p, struct setting *setting, const char *item)
{
    const char *names[sizeof layer_kinds / sizeof layer_kinds[0]]; /* the longest list */
    size_t count = 0;
    for (const struct word *word = setting->key->words; word->name; word++) {
        if (text_equal_ignoring_case(word->name, item))
            return add_integer(p, setting, word->value);
        names[count++] = word->name;
    }
    char what[96];
    const char *near = text_nearest(item, names, count);
    snprintf(what, sizeof what, "is not a choice%s%s%s", near ? ", did you mean '" : "",
             near ? near : "", near ? "'?" : "");
    return fail_value(p, setting->key, item, what);
}

static bool is_operand_dtype(attn_dtype dtype)
{
    bool found = false;
    for (int d = 0; d < NUM_DTYPES; d++)
        found |= dtypes[d] == dtype;
    return found;
}

static attn_status add_dtype(const struct parsing *p, struct setting *setting, const char *item)
{
    struct value value = {.integer = 0};
    if (dtype_parse(item, &value.dtype) != 0 || !is_operand_dtype(value.dtype))
        return fail_value(p, setting->key, item, "is not a data type here");
    return add_value(p, setting, &value);
}

static attn_status add_item(const struct parsing *p, struct setting *setting, const char *item)
{
    struct value value = {.integer = 0};
    switch (setting->key->kind) {
    case KIND_WORD:
        return add_word(p, setting, item);
    case KIND_DTYPE:
        return add_dtype(p, setting, item);
    case KIND_NUMBER:
        if (!text_parse_double(item, &value.number) || value.number < 0 ||
            (value.number > 0 && value.number < (double)FLT_MIN) ||
            value.number > setting->key->max)
            return fail_value(p, setting->key, item, "is not a number in range");
        return add_value(p, setting, &value);
    default:
        return add_integers(p, setting, item);
    }
}

/* ---- Parsing --------------------------------------------------------------------------------- */

static attn_status fail_key(const struct parsing *p, const char *name)
{
    const char *names[NUM_KEYS];
    strbuf all;
    strbuf_init(&all);
    for (int k = 0; k < NUM_KEYS; k++) {
        names[k] = keys[k].name;
        strbuf_appendf(&all, "%s%s", k ? ", " : "", names[k]);
    }
    const char *near = text_nearest(name, names, NUM_KEYS);
    attn_status status =
        host_fail(p->error, ATTN_CONFIG_ERROR, "--shape %s: '%s' is not a key%s%s%s; accepted: %s",
                  p->text, name, near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "",
                  strbuf_text(&all));
    strbuf_finish(&all);
    return status;
}

/* A setting for `name`, which stands once in a shape. */
static attn_status open_setting(struct parsing *p, const char *name, struct setting **setting)
{
    const struct key *found = NULL;
    const char *key = strcmp(name, "heads") == 0 ? "q_heads" : name;
    for (int k = 0; k < NUM_KEYS && !found; k++)
        if (strcmp(keys[k].name, key) == 0)
            found = &keys[k];
    if (!found)
        return fail_key(p, name);
    for (size_t s = 0; s < p->num_settings; s++)
        if (p->settings[s].key == found)
            return host_fail(p->error, ATTN_CONFIG_ERROR,
                             "--shape %s: %s is given twice; accepted: once, with several values "
                             "as %s=A:B",
                             p->text, key, key);
    *setting = &p->settings[p->num_settings++];
    **setting = (struct setting){.key = found};
    return ATTN_OK;
}

/* "KEY=ITEM:ITEM", which is cut up. */
static attn_status parse_pair(struct parsing *p, char *pair)
{
    struct setting *setting = NULL;
    char *equals = strchr(pair, '=');
    if (!equals)
        return host_fail(p->error, ATTN_CONFIG_ERROR,
                         "--shape %s: '%s' has no '='; accepted: KEY=VALUE[,KEY=VALUE]...", p->text,
                         pair);
    *equals = '\0';
    attn_status status = open_setting(p, pair, &setting);
    for (char *item = equals + 1; item && status == ATTN_OK;) {
        char *colon = strchr(item, ':');
        if (colon)
            *colon = '\0';
        status = add_item(p, setting, item);
        item = colon ? colon + 1 : NULL;
    }
    return status;
}

static attn_status parse_pairs(struct parsing *p)
{
    char *copy = strdup(p->text);
    attn_status status = copy ? ATTN_OK : out_of_memory(p->error);
    for (char *pair = copy; pair && status == ATTN_OK;) {
        char *comma = strchr(pair, ',');
        if (comma)
            *comma = '\0';
        status = parse_pair(p, pair);
        pair = comma ? comma + 1 : NULL;
    }
    free(copy);
    return status;
}

static void set_member(struct bench_shape *shape, const struct key *key, const struct value *value)
{
    char *member = (char *)shape + key->offset;
    switch (key->kind) {
    case KIND_LENS:
        memcpy(member, &value->lens, sizeof value->lens);
        break;
    case KIND_DTYPE:
        memcpy(member, &value->dtype, sizeof value->dtype);
        break;
    case KIND_NUMBER:
        memcpy(member, &value->number, sizeof value->number);
        break;
    default:
        memcpy(member, &value->integer, sizeof value->integer);
    }
}

/* ---- A complete shape ------------------------------------------------------------------------ */

static void derive_dtypes(const struct bench_shape *base, struct bench_shape *shape)
{
    if (shape->new_kv_dtype == ATTN_DTYPE_NONE)
        shape->new_kv_dtype = shape->dtype;
    if (shape->kv_dtype == ATTN_DTYPE_NONE)
        shape->kv_dtype = shape->dtype;
    if (shape->out_dtype == ATTN_DTYPE_NONE)
        shape->out_dtype = dtype_is_fp8(shape->dtype) ? base->dtype : shape->dtype;
}

static void derive_latent(struct bench_shape *shape)
{
    shape->kv_heads = shape->q_heads;
    shape->head_dim = shape->nope_dim + shape->rope_dim;
    if (shape->v_head_dim == 0)
        shape->v_head_dim = shape->nope_dim;
}

static void derive(const struct bench_shape *base, struct bench_shape *shape)
{
    if (shape->q_len.count == 0 && shape->mode != ATTN_MODE_DECODE)
        shape->q_len = shape->kv_len;
    else if (shape->q_len.count == 0)
        shape->q_len = (struct bench_lens){.count = 1, .items = {1}};
    if (shape->mode != ATTN_MODE_MIXED && shape->decodes < 0)
        shape->decodes = 0;
    else if (shape->decodes < 0)
        shape->decodes = shape->batch / 2;
    if (bench_shape_is_latent(shape))
        derive_latent(shape);
    if (shape->v_head_dim == 0)
        shape->v_head_dim = shape->head_dim;
    derive_dtypes(base, shape);
}

__attribute__((format(printf, 2, 3))) static attn_status fail_shape(const struct parsing *p,
                                                                    const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return host_fail(p->error, ATTN_CONFIG_ERROR, "--shape %s: %s", p->text, what);
}

static attn_status check_lengths(const struct parsing *p, const struct bench_shape *shape)
{
    int64_t tokens = 0, slots = 0;
    for (int32_t s = 0; s < shape->batch; s++) {
        int32_t q_len = bench_shape_q_len(shape, s), kv_len = bench_shape_kv_len(shape, s);
        if (q_len > kv_len)
            return fail_shape(p, "q_len = %d of sequence %d: accepted 1 to its kv_len, %d", q_len,
                              s, kv_len);
        tokens += q_len;
        slots += round_up(kv_len, shape->page_size);
    }
    if (tokens > INT32_MAX)
        return fail_shape(p, "%lld new tokens: accepted up to %d", (long long)tokens, INT32_MAX);
    if (slots > INT32_MAX - shape->page_size)
        return fail_shape(p, "%lld slots of the cache: accepted up to %d", (long long)slots,
                          INT32_MAX - shape->page_size);
    return ATTN_OK;
}

/* Layouts that the kind has. */
static attn_status check_layout(const struct parsing *p, const struct bench_shape *shape)
{
    static const struct {
        int32_t first, last;
        const char *accepted;
    } kinds[] = {{BENCH_LAYOUT_NHD, BENCH_LAYOUT_HND, "any, nhd, hnd"},
                 {BENCH_LAYOUT_LATENT_FP8, BENCH_LAYOUT_LATENT_FP8, "any, latent_fp8"},
                 {BENCH_LAYOUT_LATENT_FP8, BENCH_LAYOUT_LATENT_FP8, "any, latent_fp8"},
                 {BENCH_LAYOUT_KV, BENCH_LAYOUT_VK, "any, kv, vk"}};
    int32_t k = shape->kind < BENCH_LINEAR ? shape->kind : BENCH_LINEAR;
    if (shape->layout == BENCH_LAYOUT_ANY ||
        (shape->layout >= kinds[k].first && shape->layout <= kinds[k].last))
        return ATTN_OK;
    return fail_shape(p, "layout = %s of kind=%s: accepted %s", word_of(layouts, shape->layout),
                      word_of(layer_kinds, shape->kind), kinds[k].accepted);
}

static attn_status check_latent(const struct parsing *p, const struct bench_shape *shape)
{
    host_error said;
    host_error_init(&said);
    const attn_mla_dims dims = {.kv_lora_rank = shape->kv_lora_rank, .rope_dim = shape->rope_dim};
    if (dtype_is_fp8(shape->new_kv_dtype) || dtype_is_fp8(shape->out_dtype))
        return fail_shape(p,
                          "fp8 new latents or outputs of kind=%s: accepted f32, f16, bf16; the "
                          "cache may be fp8",
                          word_of(layer_kinds, shape->kind));
    if (dtype_is_fp8(shape->dtype) &&
        (shape->kind != BENCH_MLA || shape->form == ATTN_MLA_EXPANDED ||
         shape->layout == BENCH_LAYOUT_LATENT_FP8 ||
         shape->input_scales != (int32_t)ATTN_SCALE_PER_TENSOR))
        return fail_shape(p, "fp8 queries of latent attention: accepted kind=mla, form=absorbed, a "
                             "plain layout and input_scales=per_tensor");
    if (shape->layout == BENCH_LAYOUT_LATENT_FP8 &&
        mla_check_packed(&dims, shape->kv_dtype, &said.base) != ATTN_OK)
        return fail_shape(p, "%s", host_error_text(&said));
    if (shape->row_scales && shape->layout != BENCH_LAYOUT_LATENT_FP8)
        return fail_shape(p, "row_scales = any: accepted only with layout=latent_fp8");
    for (int32_t s = 0; shape->form == ATTN_MLA_EXPANDED && s < shape->batch; s++)
        if (bench_shape_q_len(shape, s) != bench_shape_kv_len(shape, s))
            return fail_shape(p,
                              "form = expanded with a prefix (sequence %d): accepted q_len = "
                              "kv_len; new keys are the only ones",
                              s);
    return ATTN_OK;
}

static attn_status check_sparse(const struct parsing *p, const struct bench_shape *shape)
{
    if (shape->label_dtype == ATTN_FP8_E5M2 ||
        (shape->label_dtype == ATTN_FP8_E4M3 && shape->label_dim % 4 != 0))
        return fail_shape(p,
                          "label_dtype = %s with label_dim = %d: accepted f32, f16, bf16, or "
                          "fp8_e4m3 with a multiple of 4",
                          dtype_name(shape->label_dtype), shape->label_dim);
    if (shape->choice != BENCH_CHOICE_COMPUTED && shape->new_kv == BENCH_NEW_KV_ARGS)
        return fail_shape(p, "choice = %s with new_kv = args: accepted saved, cached",
                          word_of(choices, shape->choice));
    return ATTN_OK;
}

static attn_status check_linear(const struct parsing *p, const struct bench_shape *shape)
{
    bool is_recurrent = (LAYERS_RECURRENT >> shape->kind & 1) != 0;
    if (is_recurrent && shape->v_heads % shape->k_heads != 0)
        return fail_shape(p, "v_heads = %d: accepted multiples of k_heads, %d", shape->v_heads,
                          shape->k_heads);
    if (!is_recurrent && shape->conv_width < 1)
        return fail_shape(p, "conv_width = 0 of kind=short_conv: accepted 1 to 64");
    if (shape->state_dtype != ATTN_F32 && shape->state_dtype != ATTN_BF16)
        return fail_shape(p, "state_dtype = %s: accepted f32, bf16",
                          dtype_name(shape->state_dtype));
    if (dtype_is_fp8(shape->dtype) || shape->out_dtype != shape->dtype)
        return fail_shape(p,
                          "dtype = %s, out_dtype = %s of a recurrence: accepted f32, f16, bf16, "
                          "the same for both",
                          dtype_name(shape->dtype), dtype_name(shape->out_dtype));
    return ATTN_OK;
}

static attn_status check_kind(const struct parsing *p, const struct bench_shape *shape)
{
    attn_status status = check_layout(p, shape);
    if (status != ATTN_OK || shape->kind == BENCH_SOFTMAX)
        return status;
    if (!bench_shape_is_latent(shape))
        return check_linear(p, shape);
    status = check_latent(p, shape);
    return status == ATTN_OK && shape->kind == BENCH_SPARSE ? check_sparse(p, shape) : status;
}

static attn_status check(const struct parsing *p, const struct bench_shape *shape)
{
    bool mixed = shape->mode == ATTN_MODE_MIXED;
    if (shape->kind == BENCH_SOFTMAX && shape->q_heads % shape->kv_heads != 0)
        return fail_shape(p, "q_heads = %d: accepted multiples of kv_heads, %d", shape->q_heads,
                          shape->kv_heads);
    if (!mixed && shape->decodes != 0)
        return fail_shape(p, "decodes = %d: accepted only with mode=mixed", shape->decodes);
    if (mixed && (shape->decodes < 1 || shape->decodes >= shape->batch))
        return fail_shape(p,
                          "decodes = %d of a mixed batch of %d: accepted 1 and more, and less "
                          "than the batch",
                          shape->decodes, shape->batch);
    for (int32_t i = 0; shape->mode == ATTN_MODE_DECODE && i < shape->q_len.count; i++)
        if (shape->q_len.items[i] != 1)
            return fail_shape(p, "q_len = %d of a decode: accepted 1", shape->q_len.items[i]);
    attn_status status = check_lengths(p, shape);
    return status == ATTN_OK ? check_kind(p, shape) : status;
}

/* "--shape TEXT: head_dim is not a key of kind=mla; accepted: ..." */
static attn_status fail_foreign_key(const struct parsing *p, const struct key *key, int32_t kind)
{
    strbuf all;
    strbuf_init(&all);
    for (int k = 0; k < NUM_KEYS; k++)
        if (keys[k].layers >> kind & 1)
            strbuf_appendf(&all, "%s%s", all.length ? ", " : "", keys[k].name);
    attn_status status = host_fail(p->error, ATTN_CONFIG_ERROR,
                                   "--shape %s: %s is not a key of kind=%s; accepted: %s", p->text,
                                   key->name, word_of(layer_kinds, kind), strbuf_text(&all));
    strbuf_finish(&all);
    return status;
}

/* The kind that all settings are of. */
static attn_status settle_kind(const struct parsing *p, const struct bench_shape *base,
                               struct bench_shape *made)
{
    if (made->kind != base->kind)
        take_kind_defaults(made);
    for (size_t s = 0; s < p->num_settings; s++)
        if (!(p->settings[s].key->layers >> made->kind & 1))
            return fail_foreign_key(p, p->settings[s].key, made->kind);
    return ATTN_OK;
}

/* Shape number `index` of all combinations: the settings' counts are the digits of the number, the
 * last setting's the lowest one. */
static attn_status add_combination(const struct parsing *p, const struct bench_shape *base,
                                   size_t index, struct bench_shape *made)
{
    size_t digits[NUM_KEYS];
    *made = *base;
    for (size_t s = p->num_settings; s-- > 0; index /= p->settings[s].count) {
        digits[s] = index % p->settings[s].count;
        if (p->settings[s].key->words == layer_kinds)
            made->kind = p->settings[s].values[digits[s]].integer;
    }
    attn_status status = settle_kind(p, base, made);
    if (status != ATTN_OK)
        return status;
    for (size_t s = 0; s < p->num_settings; s++)
        set_member(made, p->settings[s].key, &p->settings[s].values[digits[s]]);
    derive(base, made);
    return check(p, made);
}

static attn_status combine(const struct parsing *p, struct bench_shapes *shapes,
                           const struct bench_shape *base)
{
    size_t total = 1;
    for (size_t s = 0; s < p->num_settings; s++) {
        total *= p->settings[s].count;
        if (shapes->count + total > BENCH_MAX_SHAPES)
            return host_fail(p->error, ATTN_CONFIG_ERROR,
                             "--shape %s: more than %d shapes in all; accepted: up to %d", p->text,
                             BENCH_MAX_SHAPES, BENCH_MAX_SHAPES);
    }
    struct bench_shape *grown =
        realloc(shapes->items, (shapes->count + total) * sizeof *shapes->items);
    if (!grown)
        return out_of_memory(p->error);
    shapes->items = grown;
    for (size_t i = 0; i < total; i++) {
        attn_status status = add_combination(p, base, i, &grown[shapes->count]);
        if (status != ATTN_OK)
            return status;
        shapes->count++;
    }
    return ATTN_OK;
}

attn_status bench_shapes_add(struct bench_shapes *shapes, const char *text,
                             const struct bench_shape *base, attn_error *error)
{
    struct parsing parsing = {.text = text, .error = error};
    attn_status status = parse_pairs(&parsing);
    if (status == ATTN_OK)
        status = combine(&parsing, shapes, base);
    for (size_t s = 0; s < parsing.num_settings; s++)
        free(parsing.settings[s].values);
    return status;
}

void bench_shapes_finish(struct bench_shapes *shapes)
{
    free(shapes->items);
    *shapes = (struct bench_shapes){0};
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void take_word(const struct key *key, int32_t value, struct bench_shape_value *taken)
{
    taken->type = key->words == answers ? BENCH_VALUE_BOOL : BENCH_VALUE_TEXT;
    taken->integer = value;
    taken->text = word_of(key->words, value);
}

static void take_value(const struct bench_shape *shape, const struct key *key,
                       struct bench_shape_value *value)
{
    const char *member = (const char *)shape + key->offset;
    int32_t integer = 0;
    attn_dtype dtype = ATTN_DTYPE_NONE;
    *value = (struct bench_shape_value){.name = key->name};
    switch (key->kind) {
    case KIND_LENS:
        value->type = BENCH_VALUE_LENS;
        value->lens = (const struct bench_lens *)(const void *)member;
        break;
    case KIND_DTYPE:
        memcpy(&dtype, member, sizeof dtype);
        value->type = BENCH_VALUE_TEXT;
        value->text = dtype_name(dtype);
        break;
    case KIND_NUMBER:
        value->type = BENCH_VALUE_NUMBER;
        memcpy(&value->number, member, sizeof value->number);
        break;
    default:
        memcpy(&integer, member, sizeof integer);
        value->integer = integer;
        if (key->kind == KIND_WORD)
            take_word(key, integer, value);
    }
}

bool bench_shape_value(const struct bench_shape *shape, int index, struct bench_shape_value *value)
{
    for (int k = 0; k < NUM_KEYS; k++)
        if ((keys[k].layers >> shape->kind & 1) && index-- == 0) {
            take_value(shape, &keys[k], value);
            return true;
        }
    return false;
}

bool bench_shape_is_linear(const struct bench_shape *shape)
{
    return shape->kind >= BENCH_LINEAR;
}

bool bench_shape_is_latent(const struct bench_shape *shape)
{
    return (LAYERS_LATENT >> shape->kind & 1) != 0;
}

bool bench_shape_is_absorbed(const struct bench_shape *shape)
{
    return bench_shape_is_latent(shape) && shape->form == ATTN_MLA_ABSORBED;
}

int64_t bench_shape_channels(const struct bench_shape *shape)
{
    return 2 * (int64_t)shape->k_heads * shape->head_k_dim +
           (int64_t)shape->v_heads * shape->head_v_dim;
}

attn_dtype bench_shape_conv_dtype(const struct bench_shape *shape)
{
    attn_dtype own = shape->linear.conv_dtype;
    return own != ATTN_DTYPE_NONE ? own : shape->dtype;
}

bool bench_shape_has_codes(const struct bench_shape *shape)
{
    return dtype_is_fp8(shape->dtype) && dtype_is_fp8(shape->kv_dtype);
}

static void append_lens(const char *name, const struct bench_lens *lens, strbuf *text)
{
    strbuf_appendf(text, " %s", name);
    for (int32_t i = 0; i < lens->count; i++)
        strbuf_appendf(text, "%s%d", i ? "+" : "", lens->items[i]);
}

static bool same_lens(const struct bench_lens *a, const struct bench_lens *b)
{
    return a->count == b->count &&
           memcmp(a->items, b->items, (size_t)a->count * sizeof a->items[0]) == 0;
}

/* The type of queries, that of the cache if it differs, and other types that are not the default.
 */
static void append_dtypes(const struct bench_shape *shape, strbuf *text)
{
    bool fp8 = dtype_is_fp8(shape->dtype) || dtype_is_fp8(shape->new_kv_dtype);
    strbuf_appendf(text, " %s", dtype_name(shape->dtype));
    if (shape->kv_dtype != shape->dtype)
        strbuf_appendf(text, "/%s", dtype_name(shape->kv_dtype));
    if (shape->new_kv_dtype != shape->dtype)
        strbuf_appendf(text, " new-%s", dtype_name(shape->new_kv_dtype));
    if (shape->out_dtype != (dtype_is_fp8(shape->dtype) ? ATTN_BF16 : shape->dtype))
        strbuf_appendf(text, " out-%s", dtype_name(shape->out_dtype));
    if (fp8 && shape->input_scales != ATTN_SCALE_PER_TENSOR)
        strbuf_appendf(text, " inputs-%s", word_of(input_granularities, shape->input_scales));
}

static void append_unusual(const struct bench_shape *shape, strbuf *text)
{
    if (shape->page_size != (bench_shape_is_latent(shape) ? 64 : 16))
        strbuf_appendf(text, " page%d", shape->page_size);
    if (shape->window)
        strbuf_appendf(text, " window%d", shape->window);
    if (shape->chunk)
        strbuf_appendf(text, " chunk%d", shape->chunk);
    if (!shape->causal)
        strbuf_append(text, " full");
    if (shape->logit_cap > 0)
        strbuf_appendf(text, " cap%g", shape->logit_cap);
    if (shape->sinks)
        strbuf_append(text, " sinks");
    if (shape->alibi)
        strbuf_append(text, " alibi");
    if (shape->layout)
        strbuf_appendf(text, " %s", word_of(layouts, shape->layout));
    if (shape->row_scales)
        strbuf_appendf(text, " scales-%s", word_of(row_scales, shape->row_scales));
    if (shape->new_kv)
        strbuf_appendf(text, " kv-%s", word_of(new_kvs, shape->new_kv));
}

static void append_sparse(const struct bench_shape *shape, strbuf *text)
{
    strbuf_appendf(text, " top%d", shape->top_k);
    if (shape->choice != BENCH_CHOICE_GIVEN)
        strbuf_appendf(text, " of-%dx%d-%s", shape->index_heads, shape->label_dim,
                       dtype_name(shape->label_dtype));
    if (shape->choice != BENCH_CHOICE_COMPUTED)
        strbuf_appendf(text, " %s", word_of(choices, shape->choice));
}

/* Heads and dimensions; for a recurrence, its state, too. */
static void append_dims(const struct bench_shape *shape, strbuf *text)
{
    bool has_keys = (LAYERS_RECURRENT >> shape->kind & 1) != 0;
    if (shape->kind == BENCH_SOFTMAX) {
        strbuf_appendf(text, " H%d/%d D%d", shape->q_heads, shape->kv_heads, shape->head_dim);
        if (shape->v_head_dim != shape->head_dim)
            strbuf_appendf(text, "/%d", shape->v_head_dim);
    } else if (bench_shape_is_absorbed(shape)) {
        strbuf_appendf(text, " H%d D%d+%d", shape->q_heads, shape->kv_lora_rank, shape->rope_dim);
        if (shape->kind == BENCH_SPARSE)
            append_sparse(shape, text);
    } else if (shape->kind == BENCH_MLA) {
        strbuf_appendf(text, " expanded H%d D%d/%d", shape->q_heads, shape->head_dim,
                       shape->v_head_dim);
    } else if (has_keys) {
        strbuf_appendf(text, " H%d/%d D%dx%d", shape->k_heads, shape->v_heads, shape->head_k_dim,
                       shape->head_v_dim);
        strbuf_appendf(text, " state-%s", dtype_name(shape->state_dtype));
    } else {
        strbuf_appendf(text, " C%lld", (long long)bench_shape_channels(shape));
    }
    if (bench_shape_is_linear(shape) && shape->conv_width)
        strbuf_appendf(text, " conv%d", shape->conv_width);
    if ((LAYERS_GATED >> shape->kind & 1) && !shape->gates)
        strbuf_append(text, " gates-computed");
}

void bench_shape_text(const struct bench_shape *shape, char *text, size_t size)
{
    strbuf all;
    strbuf_init(&all);
    if (shape->kind != BENCH_SOFTMAX)
        strbuf_appendf(&all, "%s ", word_of(layer_kinds, shape->kind));
    strbuf_appendf(&all, "%s B%d", word_of(modes, shape->mode), shape->batch);
    if (shape->mode == ATTN_MODE_MIXED)
        strbuf_appendf(&all, " (%d decodes)", shape->decodes);
    if (shape->mode != ATTN_MODE_DECODE && !same_lens(&shape->q_len, &shape->kv_len))
        append_lens("q", &shape->q_len, &all);
    append_lens("kv", &shape->kv_len, &all);
    append_dims(shape, &all);
    append_dtypes(shape, &all);
    if (!bench_shape_is_linear(shape))
        append_unusual(shape, &all);
    else if (shape->layout)
        strbuf_appendf(&all, " %s", word_of(layouts, shape->layout));
    snprintf(text, size, "%s", strbuf_text(&all));
    strbuf_finish(&all);
}
