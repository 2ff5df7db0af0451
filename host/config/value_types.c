/* SPDX-License-Identifier: Apache-2.0
 *
 * value_types.c: the types of values of the ini; for each, how it is parsed, freed and described.
 * Those of numbered keys are in config/numbered.c.
 */
#include "host/config/keys.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"

enum { MAX_LIST = 4096 }; /* elements of any list; a bound on what a short text can ask for */

bool config_is_word(const char *text)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t length = strspn(text, letters);
    return length > 0 && text[length] == '\0';
}

void *config_add_item(void *items_pointer, size_t *count, size_t size)
{
    void *items;
    memcpy(&items, items_pointer, sizeof items);
    char *grown = realloc(items, (*count + 1) * size);
    if (!grown)
        return NULL;
    memcpy(items_pointer, &grown, sizeof grown);
    return memset(grown + (*count)++ * size, 0, size);
}

/* ---- Numbers and words ----------------------------------------------------------------------- */

static bool in_range(const struct config_key *key, double value)
{
    bool above = key->flags & CONFIG_ABOVE_MIN ? value > key->min : value >= key->min;
    bool zero = key->flags & CONFIG_OR_ZERO && !(value < 0 || value > 0);
    return zero || (above && value <= key->max);
}

static const char *parse_int(const struct config_key *key, const struct config_value *value,
                             void *member)
{
    int64_t number;
    if (!text_parse_int64(value->text, &number))
        return "is not an integer";
    if (!in_range(key, (double)number))
        return "is out of range";
    *(int64_t *)member = number;
    return NULL;
}

static void accept_int(const struct config_key *key, strbuf *text)
{
    strbuf_appendf(text, "an integer from %.0f to %.0f", key->min, key->max);
}

static const char *parse_uint64(const struct config_key *key, const struct config_value *value,
                                void *member)
{
    (void)key;
    return text_parse_uint64(value->text, member) ? NULL : "is not a 64-bit unsigned integer";
}

static void accept_uint64(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "an integer from 0 to 18446744073709551615");
}

static const char *parse_double(const struct config_key *key, const struct config_value *value,
                                void *member)
{
    double number;
    if (!text_parse_double(value->text, &number))
        return "is not a finite number";
    if (!in_range(key, number))
        return "is out of range";
    *(double *)member = number;
    return NULL;
}

static void accept_range(const struct config_key *key, strbuf *text)
{
    if (key->flags & CONFIG_ABOVE_MIN)
        strbuf_appendf(text, "above %.0f and up to %.12g", key->min, key->max);
    else
        strbuf_appendf(text, "from %.12g to %.12g", key->min, key->max);
}

static void accept_double(const struct config_key *key, strbuf *text)
{
    strbuf_append(text, key->flags & CONFIG_OR_ZERO ? "0, or a number " : "a number ");
    accept_range(key, text);
}

static const char *parse_bool(const struct config_key *key, const struct config_value *value,
                              void *member)
{
    (void)key;
    return text_parse_bool(value->text, member) ? NULL : "is neither yes nor no";
}

static void accept_bool(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "yes or no");
}

static const struct config_choice *find_choice(const struct config_choice *choices,
                                               const char *text, size_t length)
{
    for (; choices->name; choices++)
        if (strlen(choices->name) == length && memcmp(choices->name, text, length) == 0)
            return choices;
    return NULL;
}

static const char *parse_choice(const struct config_key *key, const struct config_value *value,
                                void *member)
{
    const struct config_choice *choice =
        find_choice(key->choices, value->text, strlen(value->text));
    if (!choice)
        return "is not one of the choices";
    *(int32_t *)member = (int32_t)choice->value;
    return NULL;
}

/* The choices' names, and what dtype_parse() knows as other names of the same types. */
static const char *parse_dtype(const struct config_key *key, const struct config_value *value,
                               void *member)
{
    const struct config_choice *choice =
        find_choice(key->choices, value->text, strlen(value->text));
    attn_dtype dtype = ATTN_DTYPE_NONE;
    if (choice)
        dtype = (attn_dtype)choice->value;
    else if (dtype_parse(value->text, &dtype) != 0 || dtype == ATTN_DTYPE_NONE)
        return "is not one of the choices";
    for (choice = key->choices; choice->name; choice++) {
        if (choice->value == dtype) {
            *(attn_dtype *)member = dtype;
            return NULL;
        }
    }
    return "is not one of the choices";
}

static void accept_choice(const struct config_key *key, strbuf *text)
{
    for (const struct config_choice *choice = key->choices; choice->name; choice++)
        strbuf_appendf(text, "%s%s", choice == key->choices ? "" : ", ", choice->name);
}

/* One element of an array by layer type. */
static const char *parse_int_of_type(const struct config_key *key, const struct config_value *value,
                                     void *member)
{
    return parse_int(key, value, (int64_t *)member + value->number);
}

static const char *parse_double_of_type(const struct config_key *key,
                                        const struct config_value *value, void *member)
{
    return parse_double(key, value, (double *)member + value->number);
}

static const char *parse_bool_of_type(const struct config_key *key,
                                      const struct config_value *value, void *member)
{
    return parse_bool(key, value, (bool *)member + value->number);
}

static const char *parse_dtype_of_type(const struct config_key *key,
                                       const struct config_value *value, void *member)
{
    return parse_dtype(key, value, (attn_dtype *)member + value->number);
}

const struct config_kind config_kind_ints_by_type = {parse_int_of_type, NULL, accept_int, false};
const struct config_kind config_kind_doubles_by_type = {parse_double_of_type, NULL, accept_double,
                                                        false};
const struct config_kind config_kind_bools_by_type = {parse_bool_of_type, NULL, accept_bool, false};
const struct config_kind config_kind_dtypes_by_type = {parse_dtype_of_type, NULL, accept_choice,
                                                       false};
const struct config_kind config_kind_int = {parse_int, NULL, accept_int, false};
const struct config_kind config_kind_uint64 = {parse_uint64, NULL, accept_uint64, false};
const struct config_kind config_kind_double = {parse_double, NULL, accept_double, false};
const struct config_kind config_kind_bool = {parse_bool, NULL, accept_bool, false};
const struct config_kind config_kind_choice = {parse_choice, NULL, accept_choice, false};
const struct config_kind config_kind_dtype = {parse_dtype, NULL, accept_choice, false};

/* ---- Text and paths -------------------------------------------------------------------------- */

static const char *keep_text(char *text, void *member)
{
    if (!text)
        return text_out_of_memory;
    *(char **)member = text;
    return NULL;
}

static void finish_text(void *member)
{
    free(*(char **)member);
    *(char **)member = NULL;
}

static const char *parse_word(const struct config_key *key, const struct config_value *value,
                              void *member)
{
    (void)key;
    if (!config_is_word(value->text))
        return "is not a name";
    return keep_text(strdup(value->text), member);
}

static void accept_word(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "a name of letters, digits, '_', '-' and '.'");
}

static const char *parse_path(const struct config_key *key, const struct config_value *value,
                              void *member)
{
    (void)key;
    return keep_text(config_path(value->base, value->text), member);
}

static void accept_path(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "a path");
}

static void finish_texts(void *member)
{
    struct config_texts *list = member;
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    memset(list, 0, sizeof *list);
}

/* Append what `parse` makes of the value to a list of strings. */
static const char *parse_into_texts(const struct config_key *key, const struct config_value *value,
                                    void *member,
                                    const char *(*parse)(const struct config_key *,
                                                         const struct config_value *, void *))
{
    struct config_texts *list = member;
    char *text = NULL;
    const char *problem = parse(key, value, &text);
    if (problem)
        return problem;
    char **item = config_add_item(&list->items, &list->count, sizeof *item);
    if (!item) {
        free(text);
        return text_out_of_memory;
    }
    *item = text;
    return NULL;
}

static const char *parse_words(const struct config_key *key, const struct config_value *value,
                               void *member)
{
    return parse_into_texts(key, value, member, parse_word);
}

static const char *parse_paths(const struct config_key *key, const struct config_value *value,
                               void *member)
{
    return parse_into_texts(key, value, member, parse_path);
}

static const char *parse_text(const struct config_key *key, const struct config_value *value,
                              void *member)
{
    (void)key;
    return keep_text(strdup(value->text), member);
}

static void accept_text(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "one line of text");
}

/* A name, or the start of one with a '*' after it. */
static bool is_pattern(const char *item, size_t length)
{
    char name[64];
    if (length > 1 && item[length - 1] == '*')
        length--;
    if (length >= sizeof name)
        return false;
    memcpy(name, item, length);
    name[length] = '\0';
    return config_is_word(name);
}

static const char *parse_names(const struct config_key *key, const struct config_value *value,
                               void *member)
{
    struct config_texts *list = member;
    const char *cursor = value->text, *item;
    size_t length;
    (void)key;
    while ((item = text_next_item(&cursor, &length))) {
        if (!is_pattern(item, length))
            return "has a word that is not a name";
        char **place = config_add_item(&list->items, &list->count, sizeof *place);
        if (!place || !(*place = strndup(item, length)))
            return text_out_of_memory;
    }
    return NULL;
}

static void accept_names(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "names of letters, digits, '_', '-' and '.', separated by spaces");
}

const struct config_kind config_kind_text = {parse_text, finish_text, accept_text, false};
const struct config_kind config_kind_names = {parse_names, finish_texts, accept_names, false};
const struct config_kind config_kind_word = {parse_word, finish_text, accept_word, false};
const struct config_kind config_kind_path = {parse_path, finish_text, accept_path, true};
const struct config_kind config_kind_words = {parse_words, finish_texts, accept_word, false};
const struct config_kind config_kind_paths = {parse_paths, finish_texts, accept_path, true};

/* ---- Lists ----------------------------------------------------------------------------------- */

static void finish_ints(void *member)
{
    struct config_ints *list = member;
    free(list->items);
    memset(list, 0, sizeof *list);
}

static void finish_doubles(void *member)
{
    struct config_doubles *list = member;
    free(list->items);
    memset(list, 0, sizeof *list);
}

static const char *parse_ranges(const struct config_key *key, const struct config_value *value,
                                void *member)
{
    struct config_ints *list = member;
    return text_parse_range_list(value->text, (int64_t)key->min, (int64_t)key->max, MAX_LIST,
                                 &list->items, &list->count);
}

static void accept_ranges(const struct config_key *key, strbuf *text)
{
    strbuf_appendf(text, "ascending integers from %.0f to %.0f such as 1 2 4 8-64/8", key->min,
                   key->max);
}

static const char *parse_double_item(const struct config_key *key, const char *item, size_t length,
                                     struct config_doubles *list)
{
    char text[64];
    double number;
    if (length >= sizeof text)
        return "is not a list of finite numbers";
    memcpy(text, item, length);
    text[length] = '\0';
    if (!text_parse_double(text, &number))
        return "is not a list of finite numbers";
    if (!in_range(key, number))
        return "has a number out of range";
    if (list->count == MAX_LIST)
        return "has too many numbers";
    double *place = config_add_item(&list->items, &list->count, sizeof *place);
    if (!place)
        return text_out_of_memory;
    *place = number;
    return NULL;
}

static const char *parse_doubles(const struct config_key *key, const struct config_value *value,
                                 void *member)
{
    const char *cursor = value->text, *item, *problem = NULL;
    size_t length;
    while (!problem && (item = text_next_item(&cursor, &length)))
        problem = parse_double_item(key, item, length, member);
    return problem;
}

static void accept_doubles(const struct config_key *key, strbuf *text)
{
    strbuf_append(text, "a number, or one per KV head, each ");
    accept_range(key, text);
}

/* Append `repeat` times the choice that `item` names. */
static const char *add_choices(const struct config_key *key, const char *item, size_t length,
                               uint64_t repeat, struct config_ints *list)
{
    const struct config_choice *choice = find_choice(key->choices, item, length);
    if (!choice)
        return "has a word that is not one of the choices";
    if (repeat == 0 || repeat > MAX_LIST - list->count)
        return "has a repetition out of range";
    for (; repeat > 0; repeat--) {
        int64_t *place = config_add_item(&list->items, &list->count, sizeof *place);
        if (!place)
            return text_out_of_memory;
        *place = choice->value;
    }
    return NULL;
}

/* `name` or `name*count`. */
static const char *parse_pattern_item(const struct config_key *key, const char *item, size_t length,
                                      struct config_ints *list)
{
    const char *star = memchr(item, '*', length);
    uint64_t repeat = 1;
    if (!star)
        return add_choices(key, item, length, repeat, list);
    char digits[24];
    size_t num_digits = length - (size_t)(star + 1 - item);
    if (num_digits >= sizeof digits)
        return "has a repetition out of range";
    memcpy(digits, star + 1, num_digits);
    digits[num_digits] = '\0';
    if (!text_parse_uint64(digits, &repeat))
        return "has a repetition that is not NAME*COUNT";
    return add_choices(key, item, (size_t)(star - item), repeat, list);
}

static const char *parse_pattern(const struct config_key *key, const struct config_value *value,
                                 void *member)
{
    const char *cursor = value->text, *item, *problem = NULL;
    size_t length;
    while (!problem && (item = text_next_item(&cursor, &length)))
        problem = parse_pattern_item(key, item, length, member);
    return problem;
}

static void accept_pattern(const struct config_key *key, strbuf *text)
{
    strbuf_append(text, "words such as sliding*5 full, each one of ");
    accept_choice(key, text);
}

static const char *parse_set(const struct config_key *key, const struct config_value *value,
                             void *member)
{
    struct config_ints *list = member;
    const char *cursor = value->text, *item, *problem = NULL;
    size_t length;
    while (!problem && (item = text_next_item(&cursor, &length))) {
        problem = add_choices(key, item, length, 1, list);
        for (size_t i = 0; !problem && i + 1 < list->count; i++)
            if (list->items[i] == list->items[list->count - 1])
                problem = "has a word twice";
    }
    return problem;
}

static void accept_set(const struct config_key *key, strbuf *text)
{
    strbuf_append(text, "any of ");
    accept_choice(key, text);
}

const struct config_kind config_kind_ranges = {parse_ranges, finish_ints, accept_ranges, false};
const struct config_kind config_kind_doubles = {parse_doubles, finish_doubles, accept_doubles,
                                                false};
const struct config_kind config_kind_pattern = {parse_pattern, finish_ints, accept_pattern, false};
const struct config_kind config_kind_set = {parse_set, finish_ints, accept_set, false};

/* ---- Devices --------------------------------------------------------------------------------- */

static const char *parse_device(const struct config_key *key, const struct config_value *value,
                                void *member)
{
    struct config_device device = {CONFIG_DEVICE_AUTO, 0};
    uint64_t index = 0;
    (void)key;
    if (strcmp(value->text, "cpu") == 0)
        device.type = ATTN_DEVICE_CPU;
    else if (strcmp(value->text, "cuda") == 0)
        device.type = ATTN_DEVICE_CUDA;
    else if (strncmp(value->text, "cuda:", 5) == 0 && text_parse_uint64(value->text + 5, &index))
        device.type = ATTN_DEVICE_CUDA;
    else if (strcmp(value->text, "auto") != 0)
        return "is not a device";
    if (index > 1023)
        return "is out of range";
    device.index = (int32_t)index;
    *(struct config_device *)member = device;
    return NULL;
}

static void accept_device(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "auto, cpu, cuda (the first one) or cuda:N");
}

const struct config_kind config_kind_device = {parse_device, NULL, accept_device, false};
