/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c: see options.h. One row of `kinds` for each ATTN_OPTION_* parses its text and formats
 * its accepted values; declarations, defaults and ini values all use it.
 */
#include "host/plugin/options.h"

#include "host/config/config.h"
#include "host/base/error.h"
#include "host/base/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_LENGTH 63

int options_is_name(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && length <= NAME_MAX_LENGTH && text[0] >= 'a' && text[0] <= 'z' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

int options_is_backend_name(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && length <= NAME_MAX_LENGTH &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
               length;
}

/* ---- Kinds of options ------------------------------------------------------------------------ */

/* Parse `text` into `value`; NULL, or what is wrong with it ("is not an integer"). */
typedef const char *(*parse_fn)(const attn_option *option, const char *text,
                                attn_option_value *value);

static bool has_range(const attn_option *option)
{
    return option->min <= option->max;
}

static bool in_range(const attn_option *option, double number)
{
    return !has_range(option) || (option->min <= number && number <= option->max);
}

static const char *parse_bool(const attn_option *option, const char *text, attn_option_value *value)
{
    (void)option;
    bool yes;
    if (!text_parse_bool(text, &yes))
        return "is not a yes or no";
    value->integer = yes;
    return NULL;
}

static const char *parse_int(const attn_option *option, const char *text, attn_option_value *value)
{
    if (!text_parse_int64(text, &value->integer))
        return "is not an integer";
    return in_range(option, (double)value->integer) ? NULL : "is out of range";
}

static const char *parse_float(const attn_option *option, const char *text,
                               attn_option_value *value)
{
    if (!text_parse_double(text, &value->real))
        return "is not a finite number";
    return in_range(option, value->real) ? NULL : "is out of range";
}

static const char *parse_size(const attn_option *option, const char *text, attn_option_value *value)
{
    uint64_t bytes;
    if (!text_parse_size(text, &bytes))
        return "is not a number of bytes";
    if (bytes > INT64_MAX || !in_range(option, (double)bytes))
        return "is out of range";
    value->integer = (int64_t)bytes;
    return NULL;
}

static const char *parse_enum(const attn_option *option, const char *text, attn_option_value *value)
{
    for (uint32_t c = 0; c < option->num_choices; c++) {
        if (strcmp(text, option->choices[c]) == 0) {
            value->integer = c;
            return NULL;
        }
    }
    return "is not among the choices";
}

static const char *parse_text(const attn_option *option, const char *text, attn_option_value *value)
{
    (void)option, (void)text, (void)value;
    return NULL;
}

static const char *parse_backend_ref(const attn_option *option, const char *text,
                                     attn_option_value *value)
{
    (void)value;
    if (!*text && option->default_text && !*option->default_text)
        return NULL; /* no child, which is the default here */
    return options_is_backend_name(text) ? NULL : "is not a backend's name";
}

static const struct kind {
    const char *name;
    parse_fn parse;
    const char *accepted; /* NULL = from the range or the choices */
    bool has_range;
} kinds[ATTN_OPTION_COUNT] = {
    [ATTN_OPTION_BOOL] = {"bool", parse_bool, "yes, no", false},
    [ATTN_OPTION_INT] = {"int", parse_int, NULL, true},
    [ATTN_OPTION_FLOAT] = {"float", parse_float, NULL, true},
    [ATTN_OPTION_STRING] = {"string", parse_text, "any text", false},
    [ATTN_OPTION_ENUM] = {"enum", parse_enum, NULL, false},
    [ATTN_OPTION_SIZE] = {"size", parse_size, NULL, true},
    [ATTN_OPTION_PATH] = {"path", parse_text, "a path", false},
    [ATTN_OPTION_BACKEND_REF] = {"backend-ref", parse_backend_ref,
                                 "the name of a backend or of a [backend.NAME] section", false},
};

const char *options_type_name(uint32_t type)
{
    return type < ATTN_OPTION_COUNT ? kinds[type].name : "?";
}

static void append_choices(const attn_option *option, strbuf *text)
{
    for (uint32_t c = 0; c < option->num_choices; c++)
        strbuf_appendf(text, "%s%s", c ? ", " : "", option->choices[c]);
}

static void append_range(const attn_option *option, strbuf *text)
{
    static const char *const any[ATTN_OPTION_COUNT] = {
        [ATTN_OPTION_INT] = "any integer",
        [ATTN_OPTION_FLOAT] = "any finite number",
        [ATTN_OPTION_SIZE] = "bytes, with K, M or G after the number",
    };
    if (has_range(option))
        strbuf_appendf(text, "%.15g..%.15g", option->min, option->max);
    else
        strbuf_append(text, any[option->type]);
    if (option->unit)
        strbuf_appendf(text, " %s", option->unit);
}

void options_accepted(const attn_option *option, char *text, size_t capacity)
{
    strbuf accepted;
    strbuf_init(&accepted);
    if (option->type >= ATTN_OPTION_COUNT)
        strbuf_append(&accepted, "?");
    else if (kinds[option->type].accepted)
        strbuf_append(&accepted, kinds[option->type].accepted);
    else if (option->type == ATTN_OPTION_ENUM)
        append_choices(option, &accepted);
    else
        append_range(option, &accepted);
    snprintf(text, capacity, "%s", strbuf_text(&accepted));
    strbuf_finish(&accepted);
}

/* ---- Declarations ---------------------------------------------------------------------------- */

static const attn_option *option_at(const attn_backend_type *type, uint32_t index)
{
    return attn_at(type->options, index);
}

/* Does the key or alias of an option before `end` equal `key`? */
static bool is_taken(const attn_backend_type *type, uint32_t end, const char *key)
{
    for (uint32_t o = 0; o < end; o++) {
        const attn_option *option = option_at(type, o);
        if (strcmp(option->key, key) == 0 ||
            (option->deprecated_alias && strcmp(option->deprecated_alias, key) == 0))
            return true;
    }
    return false;
}

static const char *check_choices(const attn_option *option)
{
    if (option->type != ATTN_OPTION_ENUM)
        return option->num_choices || option->choices ? "has choices but is not an enum" : NULL;
    if (option->num_choices == 0 || !option->choices)
        return "is an enum without choices";
    for (uint32_t c = 0; c < option->num_choices; c++) {
        if (!option->choices[c] || !*option->choices[c])
            return "has an empty choice";
        for (uint32_t before = 0; before < c; before++)
            if (strcmp(option->choices[before], option->choices[c]) == 0)
                return "has a choice twice";
    }
    return NULL;
}

static const char *check_default(const attn_option *option)
{
    attn_option_value value = {.struct_size = sizeof value};
    bool required = option->flags & ATTN_OPTION_REQUIRED;
    if (!option->default_text)
        return required || option->flags & ATTN_OPTION_REPEATED
                   ? NULL
                   : "has no default, but is not required";
    if (required)
        return "is required, but has a default";
    if (kinds[option->type].parse(option, option->default_text, &value))
        return "has a default that is not accepted";
    if (option->type == ATTN_OPTION_PATH && *option->default_text && *option->default_text != '/')
        return "has a relative path as default";
    return NULL;
}

/* NULL, or what is wrong with the declaration, as "option KEY ...". */
static const char *check_option(const attn_backend_type *type, uint32_t index)
{
    const attn_option *option = option_at(type, index);
    const uint32_t known_flags = ATTN_OPTION_REQUIRED | ATTN_OPTION_REPEATED;
    if (!options_is_name(option->key))
        return "has a key that is not [a-z][a-z0-9_]*";
    if (strcmp(option->key, "type") == 0)
        return "has the key of a section's backend type";
    if (is_taken(type, index, option->key))
        return "is declared twice";
    if (option->deprecated_alias && (!options_is_name(option->deprecated_alias) ||
                                     strcmp(option->deprecated_alias, option->key) == 0 ||
                                     is_taken(type, index, option->deprecated_alias)))
        return "has an alias that is malformed or taken";
    if (option->type >= ATTN_OPTION_COUNT)
        return "is of an unknown type";
    if (option->flags & ~known_flags)
        return "has unknown flags";
    if (!option->doc || !*option->doc)
        return "has no doc";
    if (!text_is_line(option->doc))
        return "has a doc that is not UTF-8, or has control characters";
    if (isnan(option->min) || isnan(option->max))
        return "has NaN in its range";
    const char *wrong = check_choices(option);
    return wrong ? wrong : check_default(option);
}

attn_status options_check_type(const attn_backend_type *type, attn_error *error)
{
    if (type->num_options > 0 && !type->options)
        return host_fail(error, ATTN_INTERNAL, "backend type %s: options are NULL", type->name);
    for (uint32_t o = 0; o < type->num_options; o++) {
        const attn_option *option = option_at(type, o);
        if (!ATTN_HAS(option, attn_option, deprecated_alias))
            return host_fail(
                error, ATTN_INTERNAL,
                "backend type %s: option %u: struct_size is %u; accepted is %zu or more",
                type->name, o, option->struct_size, sizeof(attn_option));
        if (!option->key)
            return host_fail(error, ATTN_INTERNAL, "backend type %s: option %u has no key",
                             type->name, o);
        const char *wrong = check_option(type, o);
        if (wrong)
            return host_fail(error, ATTN_INTERNAL, "backend type %s: option %s %s", type->name,
                             option->key, wrong);
    }
    return ATTN_OK;
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* What is being parsed. */
struct parsing {
    const attn_backend_type *type;
    const char *name;  /* the backend's */
    const char *place; /* where the backend is defined; NULL = nowhere */
    const struct options_text *texts;
    size_t count;
    struct options *options;
    attn_error *error;
};

static attn_status out_of_memory(attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "options: out of memory");
}

/* Room was made for every string there can be; takes `text` over. */
static const char *keep(struct options *options, char *text)
{
    if (text)
        options->strings[options->num_strings++] = text;
    return text;
}

static bool is_alias(const attn_option *option, const char *key)
{
    return option->deprecated_alias && strcmp(option->deprecated_alias, key) == 0;
}

static bool is_named(const attn_option *option, const char *key)
{
    return strcmp(option->key, key) == 0 || is_alias(option, key);
}

static attn_status fail_value(struct parsing *p, const attn_option *option,
                              const struct options_text *text, const char *wrong)
{
    char accepted[256];
    options_accepted(option, accepted, sizeof accepted);
    attn_status status =
        host_fail(p->error, ATTN_CONFIG_ERROR, "%s: backend.%s.%s = '%.200s' %s; accepted: %s",
                  text->place, p->name, text->key, text->value, wrong, accepted);
    if (p->error)
        p->error->field = ATTN_FIELD_OPTION;
    return status;
}

static attn_status add_value(struct parsing *p, const attn_option *option,
                             const struct options_text *text)
{
    struct options *options = p->options;
    attn_option_value value = {
        .struct_size = sizeof value, .type = option->type, .key = option->key};
    const char *wrong = kinds[option->type].parse(option, text->value, &value);
    if (wrong)
        return fail_value(p, option, text, wrong);
    bool relative = option->type == ATTN_OPTION_PATH && *text->value;
    value.text =
        keep(options, relative ? config_path(text->base, text->value) : strdup(text->value));
    value.place = keep(options, strdup(text->place));
    if (!value.text || !value.place)
        return out_of_memory(p->error);
    options->values[options->view.num_values++] = value;
    return ATTN_OK;
}

static attn_status warn_of_alias(struct parsing *p, const attn_option *option,
                                 const struct options_text *text)
{
    strbuf warning;
    strbuf_init(&warning);
    strbuf_appendf(&warning, "%s: backend.%s.%s is deprecated; write %s", text->place, p->name,
                   text->key, option->key);
    char *sentence = strbuf_steal(&warning);
    if (!sentence)
        return out_of_memory(p->error);
    p->options->warnings[p->options->num_warnings++] = sentence;
    return ATTN_OK;
}

/* All texts of one option, or its default. */
static attn_status add_option(struct parsing *p, const attn_option *option)
{
    const struct options_text *first = NULL;
    for (size_t t = 0; t < p->count; t++) {
        const struct options_text *text = &p->texts[t];
        if (!is_named(option, text->key))
            continue;
        if (first && !(option->flags & ATTN_OPTION_REPEATED))
            return host_fail(p->error, ATTN_CONFIG_ERROR,
                             "%s: backend.%s.%s is given twice, first at %s; accepted: once",
                             text->place, p->name, text->key, first->place);
        first = first ? first : text;
        attn_status status = is_alias(option, text->key) ? warn_of_alias(p, option, text) : ATTN_OK;
        if (status == ATTN_OK)
            status = add_value(p, option, text);
        if (status != ATTN_OK)
            return status;
    }
    if (first)
        return ATTN_OK;
    if (option->flags & ATTN_OPTION_REQUIRED) {
        char accepted[256];
        options_accepted(option, accepted, sizeof accepted);
        return host_fail(p->error, ATTN_CONFIG_ERROR,
                         "%s%sbackend.%s.%s is missing, and backend type %s requires it; "
                         "accepted: %s",
                         p->place ? p->place : "", p->place ? ": " : "", p->name, option->key,
                         p->type->name, accepted);
    }
    if (!option->default_text)
        return ATTN_OK;
    struct options_text given = {option->key, option->default_text, "default", "/"};
    return add_value(p, option, &given);
}

/* The keys of a type, as a list for text_nearest() and for people. NULL without memory. */
static const char **list_keys(const attn_backend_type *type, strbuf *text)
{
    const char **keys = calloc(type->num_options + 1, sizeof *keys);
    for (uint32_t o = 0; keys && o < type->num_options; o++) {
        keys[o] = option_at(type, o)->key;
        strbuf_appendf(text, "%s%s", o ? ", " : "", keys[o]);
    }
    return keys;
}

static attn_status fail_unknown(struct parsing *p, const struct options_text *text)
{
    strbuf all;
    strbuf_init(&all);
    const char **keys = list_keys(p->type, &all);
    const char *nearest = keys ? text_nearest(text->key, keys, p->type->num_options) : NULL;
    attn_status status = host_fail(
        p->error, ATTN_CONFIG_ERROR,
        "%s: backend.%s.%s is not an option of backend type %s%s%s%s; accepted: %s", text->place,
        p->name, text->key, p->type->name, nearest ? " (did you mean " : "", nearest ? nearest : "",
        nearest ? "?)" : "", all.length ? strbuf_text(&all) : "none");
    free(keys);
    strbuf_finish(&all);
    return status;
}

static attn_status check_keys(struct parsing *p)
{
    for (size_t t = 0; t < p->count; t++) {
        bool known = false;
        for (uint32_t o = 0; o < p->type->num_options && !known; o++)
            known = is_named(option_at(p->type, o), p->texts[t].key);
        if (!known)
            return fail_unknown(p, &p->texts[t]);
    }
    return ATTN_OK;
}

attn_status options_create(const attn_backend_type *type, const char *name, const char *place,
                           const struct options_text *texts, size_t count, struct options **options,
                           attn_error *error)
{
    size_t most = count + type->num_options; /* values there can be */
    struct options *made = calloc(1, sizeof *made);
    struct parsing p = {type, name, place, texts, count, made, error};
    if (!made)
        return out_of_memory(error);
    made->values = calloc(most + 1, sizeof *made->values);
    made->strings = calloc(2 * most + 1, sizeof *made->strings);
    made->warnings = calloc(count + 1, sizeof *made->warnings);
    attn_status status =
        made->values && made->strings && made->warnings ? check_keys(&p) : out_of_memory(error);
    for (uint32_t o = 0; o < type->num_options && status == ATTN_OK; o++)
        status = add_option(&p, option_at(type, o));
    if (status != ATTN_OK) {
        options_destroy(made);
        return status;
    }
    made->view.struct_size = sizeof made->view;
    made->view.values = made->values;
    *options = made;
    return ATTN_OK;
}

void options_destroy(struct options *options)
{
    if (!options)
        return;
    for (size_t s = 0; s < options->num_strings; s++)
        free(options->strings[s]);
    for (size_t w = 0; w < options->num_warnings; w++)
        free(options->warnings[w]);
    free(options->warnings);
    free(options->strings);
    free(options->values);
    free(options);
}
