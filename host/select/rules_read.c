/* SPDX-License-Identifier: Apache-2.0
 *
 * rules_read.c: rules from the text of an ini; its format is described at the head of
 * selection.ini.
 *
 * The keys are a table of the same kind as that of the configuration, so that values are parsed and
 * mistakes are reported in the same way.
 */
#include "host/select/rules_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/config/ini.h"
#include "host/base/error.h"
#include "host/select/platform.h"

/* ---- Platforms ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    struct rule_platform platform;
} platforms[] = {
    {"any", {0, 0, UINT32_MAX, 0}},
    {"cpu", {ATTN_DEVICE_CPU, 0, UINT32_MAX, 0}},
    {"cpu_amx", {ATTN_DEVICE_CPU, 0, UINT32_MAX, ATTN_CPU_AMX_BF16}},
    {"cuda", {ATTN_DEVICE_CUDA, 0, UINT32_MAX, 0}},
    {"rocm", {ATTN_DEVICE_ROCM, 0, UINT32_MAX, 0}},
    {"xpu", {ATTN_DEVICE_ONEAPI, 0, UINT32_MAX, 0}},
    {"npu", {ATTN_DEVICE_EXT_DEV, 0, UINT32_MAX, 0}},
};

/* "sm90"; false if it is none. */
static bool parse_capability(const char *text, uint32_t *sm)
{
    uint64_t number;
    if (strncmp(text, "sm", 2) != 0 || !text_parse_uint64(text + 2, &number) || number > 999)
        return false;
    *sm = (uint32_t)number;
    return true;
}

/* "sm90", "sm75+", "sm100-sm109"; the text is the caller's to be cut. */
static bool parse_capabilities(char *text, struct rule_platform *platform)
{
    char *plus = strchr(text, '+'), *dash = strchr(text, '-');
    platform->type = ATTN_DEVICE_CUDA;
    if (plus && !plus[1])
        *plus = '\0';
    else if (dash)
        *dash = '\0';
    if (!parse_capability(text, &platform->min_sm))
        return false;
    platform->max_sm = plus ? UINT32_MAX : platform->min_sm;
    return !dash ||
           (parse_capability(dash + 1, &platform->max_sm) && platform->min_sm <= platform->max_sm);
}

static bool parse_platform(const char *item, size_t length, struct rule_platform *platform)
{
    char text[32];
    if (length >= sizeof text)
        return false;
    memcpy(text, item, length);
    text[length] = '\0';
    for (size_t i = 0; i < sizeof platforms / sizeof *platforms; i++)
        if (strcmp(platforms[i].name, text) == 0) {
            *platform = platforms[i].platform;
            return true;
        }
    return parse_capabilities(text, platform);
}

static const char *parse_platforms(const struct config_key *key, const struct config_value *value,
                                   void *member)
{
    struct rule_platforms *list = member;
    const char *cursor = value->text, *item;
    size_t length;
    (void)key;
    list->text = strdup(value->text);
    if (!list->text)
        return text_out_of_memory;
    while ((item = text_next_item(&cursor, &length))) {
        struct rule_platform read = {0}, *place;
        if (!parse_platform(item, length, &read))
            return "has a word that is not a platform";
        place = config_add_item(&list->items, &list->count, sizeof *place);
        if (!place)
            return text_out_of_memory;
        *place = read;
    }
    return NULL;
}

static void finish_platforms(void *member)
{
    struct rule_platforms *list = member;
    free(list->items);
    free(list->text);
    memset(list, 0, sizeof *list);
}

static void accept_platforms(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "any of ");
    for (size_t i = 0; i < sizeof platforms / sizeof *platforms; i++)
        strbuf_appendf(text, "%s, ", platforms[i].name);
    strbuf_append(text, "sm90, sm75+, sm100-sm109");
}

static const struct config_kind kind_platforms = {parse_platforms, finish_platforms,
                                                  accept_platforms, false};

/* ---- The table of keys ----------------------------------------------------------------------- */

static const char *const section_names[RULE_KINDS] = {"backend", "order", "exclude"};

/* config_key.flags */
enum {
    OF_BACKEND = 1 << RULE_BACKEND,
    OF_ORDER = 1 << RULE_ORDER,
    OF_EXCLUDE = 1 << RULE_EXCLUDE,
    OF_BOTH = OF_ORDER | OF_EXCLUDE,
    OF_ALL = OF_BACKEND | OF_BOTH,
    REQUIRED = 1 << RULE_KINDS
};

#define KIND_WORD(name, value, text) {text, value},
static const struct config_choice kind_words[] = {ATTN_KIND_MAP(KIND_WORD){NULL, 0}};
static const struct config_choice type_words[] = {{"decoder", ATTN_TYPE_DECODER},
                                                  {"encoder_only", ATTN_TYPE_ENCODER_ONLY},
                                                  {"cross", ATTN_TYPE_CROSS},
                                                  {NULL, 0}};
static const struct config_choice has_words[] = {{"sinks", RULE_HAS_SINKS},
                                                 {"chunk", RULE_HAS_CHUNK},
                                                 {"window", RULE_HAS_WINDOW},
                                                 {"cap", RULE_HAS_CAP},
                                                 {"alibi", RULE_HAS_ALIBI},
                                                 {"unequal_v", RULE_HAS_UNEQUAL_V},
                                                 {NULL, 0}};
static const struct config_choice plugin_words[] = {{"none", 1}, {NULL, 0}};
static const struct config_choice dtype_words[] = {
    {"f32", ATTN_F32},           {"f16", ATTN_F16},           {"bf16", ATTN_BF16},
    {"fp8_e4m3", ATTN_FP8_E4M3}, {"fp8_e5m2", ATTN_FP8_E5M2}, {NULL, 0}};

#define KEY(name_, member_, kind_, flags_, ...)                                                    \
    {                                                                                              \
        .name = name_, .offset = offsetof(struct rule, member_), .kind = &(kind_),                 \
        .flags = (flags_), __VA_ARGS__                                                             \
    }

static const struct config_key keys[] = {
    KEY("aliases", aliases, config_kind_names, OF_BACKEND, .min = 0),
    KEY("former", former, config_kind_names, OF_BACKEND, .min = 0),
    KEY("plugin", plugin, config_kind_set, OF_BACKEND, .choices = plugin_words),
    KEY("platform", platforms, kind_platforms, OF_ALL, .min = 0),
    KEY("kind", kinds, config_kind_set, OF_BOTH, .choices = kind_words),
    KEY("attn_type", attn_types, config_kind_set, OF_BOTH, .choices = type_words),
    KEY("has", has, config_kind_set, OF_BOTH, .choices = has_words),
    KEY("model", models, config_kind_set, OF_BOTH, .choices = rule_model_words),
    KEY("model_has", model_has, config_kind_set, OF_BOTH, .choices = rule_some_words),
    KEY("architecture", architectures, config_kind_names, OF_BOTH, .min = 0),
    KEY("num_q_heads", num_q_heads, config_kind_ranges, OF_BOTH, .min = 1, .max = 65536),
    KEY("kv_dtype", kv_dtypes, config_kind_set, OF_BOTH, .choices = dtype_words),
    KEY("speculative", drafts, config_kind_set, OF_BOTH, .choices = rule_draft_words),
    KEY("backends", backends, config_kind_names, OF_BOTH | REQUIRED, .min = 0),
    KEY("accepted", accepted, config_kind_text, OF_EXCLUDE | REQUIRED, .min = 0),
    KEY("text", text, config_kind_text, OF_ALL | REQUIRED, .min = 0),
};
enum { NUM_KEYS = sizeof keys / sizeof *keys };

static void *member_of(struct rule *rule, const struct config_key *key)
{
    return (char *)rule + key->offset;
}

/* Was it given? Every member begins with a pointer that is NULL as long as it was not. */
static bool is_given(const struct rule *rule, const struct config_key *key)
{
    void *first;
    memcpy(&first, (const char *)rule + key->offset, sizeof first);
    return first != NULL;
}

/* ---- Sections -------------------------------------------------------------------------------- */

struct reading {
    struct rules *rules;
    const char *name;  /* of the file */
    struct rule *rule; /* the section that is being read; NULL = none yet */
    int kind;          /* of it: RULE_BACKEND ... */
};

static attn_status check_complete(const struct reading *reading, attn_error *error)
{
    const struct rule *rule = reading->rule;
    for (size_t i = 0; rule && i < NUM_KEYS; i++)
        if (keys[i].flags & REQUIRED && keys[i].flags & (1u << reading->kind) &&
            !is_given(rule, &keys[i]))
            return host_fail(error, ATTN_CONFIG_ERROR,
                             "%s: [%s.%s] has no key '%s'; accepted: a section with it",
                             rule->place, section_names[reading->kind], rule->name, keys[i].name);
    return ATTN_OK;
}

static attn_status fail_section(const struct reading *reading, const char *section, int line,
                                attn_error *error)
{
    static const char *const accepted[] = {"backend.TYPE", "order.NAME", "exclude.NAME"};
    const char *dot = strchr(section, '.');
    char stem[64];
    snprintf(stem, sizeof stem, "%.*s", dot ? (int)(dot - section) : 50, section);
    const char *near = text_nearest(stem, section_names, RULE_KINDS);
    strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < RULE_KINDS; i++)
        strbuf_appendf(&text, "%s[%s]", i ? ", " : "", accepted[i]);
    attn_status status =
        host_fail(error, ATTN_CONFIG_ERROR, "%s:%d: unknown section [%s]%s%s%s accepted: %s",
                  reading->name, line, section, near ? ", did you mean [" : ";", near ? near : "",
                  near ? ".NAME]?" : "", strbuf_text(&text));
    strbuf_finish(&text);
    return status;
}

static attn_status take_section(void *user, const char *section, int line, attn_error *error)
{
    struct reading *reading = user;
    attn_status status = check_complete(reading, error);
    const char *dot = strchr(section, '.');
    int kind = 0;
    while (kind < RULE_KINDS &&
           (!dot || strlen(section_names[kind]) != (size_t)(dot - section) ||
            strncmp(section, section_names[kind], (size_t)(dot - section)) != 0))
        kind++;
    if (status)
        return status;
    if (kind == RULE_KINDS || !config_is_word(dot + 1))
        return fail_section(reading, section, line, error);
    struct rule_list *list = &reading->rules->lists[kind];
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, dot + 1) == 0)
            return host_fail(error, ATTN_CONFIG_ERROR,
                             "%s:%d: [%s] is given twice, first at %s; accepted: once",
                             reading->name, line, section, list->items[i].place);
    struct rule *rule = config_add_item(&list->items, &list->count, sizeof *rule);
    if (!rule)
        return config_no_memory(error);
    strbuf place;
    strbuf_init(&place);
    strbuf_appendf(&place, "%s:%d", reading->name, line);
    rule->place = strbuf_steal(&place);
    rule->name = strdup(dot + 1);
    reading->rule = rule;
    reading->kind = kind;
    return rule->place && rule->name ? ATTN_OK : config_no_memory(error);
}

/* ---- Values ---------------------------------------------------------------------------------- */

static attn_status fail_key(const struct reading *reading, const char *section, const char *name,
                            int line, attn_error *error)
{
    const char *names[NUM_KEYS];
    size_t count = 0;
    strbuf text;
    for (size_t i = 0; i < NUM_KEYS; i++)
        if (keys[i].flags & (1u << reading->kind))
            names[count++] = keys[i].name;
    strbuf_init(&text);
    config_append_accepted(&text, name, names, count, "''");
    attn_status status = host_fail(error, ATTN_CONFIG_ERROR, "%s:%d: unknown key '%.60s' in [%s]%s",
                                   reading->name, line, name, section, strbuf_text(&text));
    strbuf_finish(&text);
    return status;
}

/* Parse one value into its member. */
static attn_status parse_value(const struct reading *reading, const char *section,
                               const struct config_key *key, const char *text, int line,
                               attn_error *error)
{
    char place[512];
    snprintf(place, sizeof place, "%.480s:%d", reading->name, line);
    const struct config_value value = {.text = text, .place = place};
    const char *problem =
        *text ? key->kind->parse(key, &value, member_of(reading->rule, key)) : "is empty";
    if (problem == text_out_of_memory)
        return config_no_memory(error);
    return problem ? config_bad_value(section, key, &value, problem, error) : ATTN_OK;
}

static attn_status take_value(void *user, const char *section, const char *name, const char *text,
                              int line, attn_error *error)
{
    struct reading *reading = user;
    size_t i = 0;
    if (!reading->rule)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s:%d: '%.60s' comes before the first section; accepted: [section] first",
                         reading->name, line, name);
    while (i < NUM_KEYS &&
           (strcmp(keys[i].name, name) != 0 || !(keys[i].flags & (1u << reading->kind))))
        i++;
    if (i == NUM_KEYS)
        return fail_key(reading, section, name, line, error);
    if (is_given(reading->rule, &keys[i]))
        return host_fail(error, ATTN_CONFIG_ERROR, "%s:%d: %s.%s is given twice; accepted: once",
                         reading->name, line, section, name);
    return parse_value(reading, section, &keys[i], text, line, error);
}

/* ---- The whole ------------------------------------------------------------------------------- */

/* The names of all [backend.TYPE] sections, as many as there are; NULL when memory ran out. */
static const char **backend_names(const struct rules *rules)
{
    const struct rule_list *list = &rules->lists[RULE_BACKEND];
    const char **names = calloc(list->count + 1, sizeof *names);
    for (size_t i = 0; names && i < list->count; i++)
        names[i] = list->items[i].name;
    return names;
}

/* A type that a rule names must have a section, so that a misspelt name is not taken for a type
 * that is not installed. */
static attn_status check_backends(const struct rules *rules, int kind, const struct rule *rule,
                                  attn_error *error)
{
    for (size_t i = 0; !rule->all && i < rule->backends.count; i++) {
        const char *name = rule->backends.items[i];
        if (rules_backend(rules, name))
            continue;
        const char **names = backend_names(rules);
        if (!names)
            return config_no_memory(error);
        const char *near = text_nearest(name, names, rules->lists[RULE_BACKEND].count);
        attn_status status =
            host_fail(error, ATTN_CONFIG_ERROR,
                      "%s: %s.%s.backends = '%s' has no section [backend.%s]%s%s%s; accepted: a "
                      "type with one",
                      rule->place, section_names[kind], rule->name, name, name,
                      near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
        free(names);
        return status;
    }
    return ATTN_OK;
}

static attn_status check_aliases(const struct rules *rules, const struct rule *rule,
                                 const struct config_texts *aliases, attn_error *error)
{
    for (size_t i = 0; i < aliases->count; i++) {
        const char *alias = aliases->items[i];
        const struct rule *first = rules_alias(rules, alias), *type = rules_backend(rules, alias);
        if (first != rule || type)
            return host_fail(error, ATTN_CONFIG_ERROR,
                             "%s: backend.%s: the name '%s' is taken at %s; accepted: one section "
                             "for a name",
                             rule->place, rule->name, alias, type ? type->place : first->place);
    }
    return ATTN_OK;
}

/* Checks across sections. */
static attn_status check_together(struct rules *rules, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int kind = 0; kind < RULE_KINDS; kind++) {
        for (size_t i = 0; i < rules->lists[kind].count && !status; i++) {
            struct rule *rule = &rules->lists[kind].items[i];
            rule->all = kind == RULE_EXCLUDE && rule->backends.count == 1 &&
                        strcmp(rule->backends.items[0], "all") == 0;
            status = check_backends(rules, kind, rule, error);
            if (!status)
                status = check_aliases(rules, rule, &rule->aliases, error);
            if (!status)
                status = check_aliases(rules, rule, &rule->former, error);
        }
    }
    return status;
}

attn_status rules_create_text(const char *text, size_t length, const char *name, struct rules **out,
                              attn_error *error)
{
    struct rules *rules = calloc(1, sizeof *rules);
    if (!rules)
        return config_no_memory(error);
    struct reading reading = {.rules = rules, .name = name};
    const struct config_ini_handler handler = {&reading, take_section, take_value};
    attn_status status = config_ini_read(text, length, name, &handler, error);
    if (!status)
        status = check_complete(&reading, error);
    if (!status)
        status = check_together(rules, error);
    if (status)
        rules_destroy(rules);
    else
        *out = rules;
    return status;
}

void rules_destroy(struct rules *rules)
{
    if (!rules)
        return;
    for (int kind = 0; kind < RULE_KINDS; kind++) {
        struct rule_list *list = &rules->lists[kind];
        for (size_t i = 0; i < list->count; i++) {
            for (size_t k = 0; k < NUM_KEYS; k++)
                if (keys[k].kind->finish)
                    keys[k].kind->finish(member_of(&list->items[i], &keys[k]));
            free(list->items[i].name);
            free(list->items[i].place);
        }
        free(list->items);
    }
    free(rules);
}
