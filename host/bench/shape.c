/* SPDX-License-Identifier: Apache-2.0
 *
 * shape.c: shapes from text, and back.
 */
#include "host/bench/shape.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/text.h"
#include "host/base/round.h"

/* ---- Keys ------------------------------------------------------------------------------------ */

enum kind { KIND_INT, KIND_LENS, KIND_WORD, KIND_DTYPE, KIND_NUMBER };

struct word {
    const char *name;
    int32_t value;
};

struct key {
    const char *name;
    enum kind kind;
    size_t offset;            /* in struct bench_shape */
    int32_t min, max;         /* KIND_INT, KIND_LENS; a KIND_NUMBER is from 0 to max */
    const struct word *words; /* KIND_WORD */
    const char *help;
};

static const struct word modes[] = {{"decode", ATTN_MODE_DECODE},
                                    {"extend", ATTN_MODE_EXTEND},
                                    {"prefill", ATTN_MODE_EXTEND},
                                    {"mixed", ATTN_MODE_MIXED},
                                    {NULL, 0}};
static const struct word answers[] = {{"yes", 1}, {"no", 0}, {NULL, 0}};
static const struct word layouts[] = {
    {"any", BENCH_LAYOUT_ANY}, {"nhd", BENCH_LAYOUT_NHD}, {"hnd", BENCH_LAYOUT_HND}, {NULL, 0}};
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

#define KEY(name, kind, member, ...)                                                               \
    {                                                                                              \
        name, kind, offsetof(struct bench_shape, member), __VA_ARGS__                              \
    }

static const struct key keys[] = {
    KEY("mode", KIND_WORD, mode, 0, 0, modes, "prefill is another word for extend"),
    KEY("batch", KIND_INT, batch, 1, 65536, NULL, "sequences"),
    KEY("decodes", KIND_INT, decodes, 0, 65536, NULL,
        "mixed: how many of them, the last ones, have one query"),
    KEY("q_len", KIND_LENS, q_len, 1, MAX_LEN, NULL,
        "new tokens of a sequence; left out: kv_len, so no prefix"),
    KEY("kv_len", KIND_LENS, kv_len, 1, MAX_LEN, NULL, "keys of a sequence, the new ones included"),
    KEY("q_heads", KIND_INT, q_heads, 1, MAX_DIM, NULL, "query heads, a multiple of kv_heads"),
    KEY("kv_heads", KIND_INT, kv_heads, 1, MAX_DIM, NULL, "key and value heads"),
    KEY("head_dim", KIND_INT, head_dim, 1, MAX_DIM, NULL, "elements of a query or key"),
    KEY("v_head_dim", KIND_INT, v_head_dim, 1, MAX_DIM, NULL,
        "elements of a value; left out: head_dim"),
    KEY("dtype", KIND_DTYPE, dtype, 0, 0, NULL, "of queries"),
    KEY("new_kv_dtype", KIND_DTYPE, new_kv_dtype, 0, 0, NULL,
        "of new keys and values; left out: dtype"),
    KEY("kv_dtype", KIND_DTYPE, kv_dtype, 0, 0, NULL, "of the cache; left out: dtype"),
    KEY("out_dtype", KIND_DTYPE, out_dtype, 0, 0, NULL,
        "of outputs; left out: dtype, or beside fp8 queries bf16, the ini's type if there is one"),
    KEY("page_size", KIND_INT, page_size, 1, 65536, NULL, "tokens of a page"),
    KEY("window", KIND_INT, window, 0, MAX_LEN, NULL,
        "keys that a query sees, itself counted; 0 = no limit"),
    KEY("causal", KIND_WORD, causal, 0, 0, answers, "no: later keys are seen as well"),
    KEY("chunk", KIND_INT, chunk, 0, MAX_LEN, NULL,
        "a query sees only its own chunk of this many keys; 0 = off"),
    KEY("logit_cap", KIND_NUMBER, logit_cap, 0, 1000000, NULL, "soft cap of scores; 0 = off"),
    KEY("sm_scale", KIND_NUMBER, sm_scale, 0, 1000000, NULL,
        "factor of scores; 0 = 1/sqrt(head_dim)"),
    KEY("sinks", KIND_WORD, sinks, 0, 0, answers, "one more logit for each query head"),
    KEY("alibi", KIND_WORD, alibi, 0, 0, answers, "scores fall with the distance"),
    KEY("layout", KIND_WORD, layout, 0, 0, layouts, "of the cache; any: nhd where it is served"),
    KEY("new_kv", KIND_WORD, new_kv, 0, 0, new_kvs,
        "new keys: given and saved; given, not saved; in the cache already"),
    KEY("scales", KIND_WORD, scales, 0, 0, granularities,
        "of an fp8 cache: one, or one for each head"),
    KEY("input_scales", KIND_WORD, input_scales, 0, 0, input_granularities,
        "of fp8 queries, and of fp8 new keys and values: one, one for each key and value head, or "
        "one for each of these in each sequence"),
};

enum { NUM_KEYS = sizeof keys / sizeof keys[0] };

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
        strbuf_appendf(text, "a number from 0 to %d", key->max);
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
    const char *names[8];
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
    for (int k = 0; k < NUM_KEYS && !found; k++)
        if (strcmp(keys[k].name, name) == 0)
            found = &keys[k];
    if (!found)
        return fail_key(p, name);
    for (size_t s = 0; s < p->num_settings; s++)
        if (p->settings[s].key == found)
            return host_fail(p->error, ATTN_CONFIG_ERROR,
                             "--shape %s: %s is given twice; accepted: once, with several values "
                             "as %s=A:B",
                             p->text, name, name);
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

static attn_status check(const struct parsing *p, const struct bench_shape *shape)
{
    bool mixed = shape->mode == ATTN_MODE_MIXED;
    if (shape->q_heads % shape->kv_heads != 0)
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
    return check_lengths(p, shape);
}

/* Shape number `index` of all combinations: the settings' counts are the digits of the number, the
 * last setting's the lowest one. */
static attn_status add_combination(const struct parsing *p, const struct bench_shape *base,
                                   size_t index, struct bench_shape *made)
{
    *made = *base;
    for (size_t s = p->num_settings; s-- > 0;) {
        const struct setting *setting = &p->settings[s];
        set_member(made, setting->key, &setting->values[index % setting->count]);
        index /= setting->count;
    }
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

static const char *word_of(const struct word *words, int32_t value)
{
    for (const struct word *word = words; word->name; word++)
        if (word->value == value)
            return word->name;
    return "?";
}

const char *bench_shape_mode_name(const struct bench_shape *shape)
{
    return word_of(modes, shape->mode);
}

const char *bench_shape_layout_name(const struct bench_shape *shape)
{
    return word_of(layouts, shape->layout);
}

const char *bench_shape_new_kv_name(const struct bench_shape *shape)
{
    return word_of(new_kvs, shape->new_kv);
}

const char *bench_shape_scales_name(const struct bench_shape *shape)
{
    return word_of(granularities, shape->scales);
}

const char *bench_shape_input_scales_name(const struct bench_shape *shape)
{
    return word_of(input_granularities, shape->input_scales);
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

/* Queries, the cache where it differs, and what is of another type than one would think. */
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
        strbuf_appendf(text, " inputs-%s", bench_shape_input_scales_name(shape));
}

static void append_unusual(const struct bench_shape *shape, strbuf *text)
{
    if (shape->page_size != 16)
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
        strbuf_appendf(text, " %s", bench_shape_layout_name(shape));
    if (shape->new_kv)
        strbuf_appendf(text, " kv-%s", bench_shape_new_kv_name(shape));
}

void bench_shape_text(const struct bench_shape *shape, char *text, size_t size)
{
    strbuf all;
    strbuf_init(&all);
    strbuf_appendf(&all, "%s B%d", bench_shape_mode_name(shape), shape->batch);
    if (shape->mode == ATTN_MODE_MIXED)
        strbuf_appendf(&all, " (%d decodes)", shape->decodes);
    if (shape->mode != ATTN_MODE_DECODE && !same_lens(&shape->q_len, &shape->kv_len))
        append_lens("q", &shape->q_len, &all);
    append_lens("kv", &shape->kv_len, &all);
    strbuf_appendf(&all, " H%d/%d D%d", shape->q_heads, shape->kv_heads, shape->head_dim);
    if (shape->v_head_dim != shape->head_dim)
        strbuf_appendf(&all, "/%d", shape->v_head_dim);
    append_dtypes(shape, &all);
    append_unusual(shape, &all);
    snprintf(text, size, "%s", strbuf_text(&all));
    strbuf_finish(&all);
}
