/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c: from an ini and --set texts to struct config.
 *
 * Two passes. The first checks every value in order against its row, and keeps it as a config_entry
 * (or as a config_option of a backend section), so that the first wrong line is reported and --set
 * can replace values of the ini. The second parses the remaining entries, or the defaults, into the
 * members.
 */
#include "host/config/config.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/config/ini.h"
#include "host/config/keys.h"
#include "host/base/error.h"
#include "host/base/text.h"

attn_status config_no_memory(attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "config: out of memory");
}

/* ---- Paths ----------------------------------------------------------------------------------- */

char *config_path(const char *base, const char *text)
{
    if (*text == '/')
        return strdup(text);
    while (text[0] == '.' && (text[1] == '/' || text[1] == '\0')) {
        text += 1 + (text[1] == '/');
        while (*text == '/')
            text++;
    }
    if (!*text)
        return strdup(base);
    strbuf path;
    strbuf_init(&path);
    size_t length = strlen(base);
    strbuf_append_bytes(&path, base, length);
    if (length > 0 && base[length - 1] != '/')
        strbuf_append(&path, "/");
    strbuf_append(&path, text);
    return strbuf_steal(&path);
}

/* "/a/b" for "/a/b/c.ini", "." for "c.ini". */
static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* ---- What was not understood ----------------------------------------------------------------- */

void config_append_accepted(strbuf *text, const char *word, const char *const *names, size_t count,
                            const char *quotes)
{
    const char *nearest = text_nearest(word, names, count);
    if (nearest)
        strbuf_appendf(text, ", did you mean %c%s%c?", quotes[0], nearest, quotes[1]);
    strbuf_append(text, nearest ? " accepted: " : "; accepted: ");
    for (size_t i = 0; i < count; i++)
        strbuf_appendf(text, "%s%s", i ? ", " : "", names[i]);
}

static attn_status unknown_section(const struct config_source *source, const char *section,
                                   attn_error *error)
{
    const char *names[CONFIG_MAX_KEYS + 1];
    size_t count = config_key_names(NULL, names);
    names[count++] = "backend.NAME";
    /* "bakend.x" is near to "backend.x"; the NAME is the user's own */
    const char *dot = strchr(section, '.'), *word = section;
    char with_name[CONFIG_MAX_SECTION + 1];
    if (dot && dot - section < CONFIG_MAX_BACKEND_NAME) {
        snprintf(with_name, sizeof with_name, "%.*s.NAME", (int)(dot - section), section);
        word = with_name;
    }
    strbuf text;
    strbuf_init(&text);
    strbuf_appendf(&text, "unknown section [%.100s]", section);
    config_append_accepted(&text, word, names, count, "[]");
    attn_status status =
        host_fail(error, ATTN_CONFIG_ERROR, "%s: %s", source->place, strbuf_text(&text));
    strbuf_finish(&text);
    return status;
}

static attn_status unknown_key(const struct config_source *source, const char *section,
                               const char *name, attn_error *error)
{
    const char *names[CONFIG_MAX_KEYS], *sections[CONFIG_MAX_KEYS];
    size_t count = config_key_names(section, names);
    size_t num_sections = config_key_names(NULL, sections);
    int64_t number;
    strbuf text;
    strbuf_init(&text);
    strbuf_appendf(&text, "unknown key '%.100s' in [%s]", name, section);
    size_t found = 0;
    for (size_t i = 0; i < num_sections; i++)
        if (config_key_find(sections[i], name, &number))
            strbuf_appendf(&text, found++ ? " or [%s]" : " (it belongs to [%s]", sections[i]);
    strbuf_append(&text, found ? ")" : "");
    config_append_accepted(&text, name, names, count, "''");
    attn_status status =
        host_fail(error, ATTN_CONFIG_ERROR, "%s: %s", source->place, strbuf_text(&text));
    strbuf_finish(&text);
    return status;
}

/* ---- Values ---------------------------------------------------------------------------------- */

attn_status config_bad_value(const char *section, const struct config_key *key,
                             const struct config_value *value, const char *problem,
                             attn_error *error)
{
    bool typed = key->flags & CONFIG_BY_LAYER_TYPE;
    strbuf accepted;
    strbuf_init(&accepted);
    key->kind->accepted(key, &accepted);
    attn_status status = host_fail(
        error, ATTN_CONFIG_ERROR, "%s: %s.%s%s = '%.200s' %s; accepted: %s", value->place, section,
        typed ? config_layer_name(value->number) : "", typed ? strchr(key->name, '.') : key->name,
        value->text, problem, strbuf_text(&accepted));
    strbuf_finish(&accepted);
    return status;
}

/* Can the text be parsed? Into a separate member: the real one is filled when all is known. */
static attn_status check_value(const struct config_key *key, const struct config_value *value,
                               attn_error *error)
{
    _Alignas(max_align_t) char member[CONFIG_MEMBER_SIZE] = {0};
    if (!*value->text)
        return *key->default_text ? config_bad_value(key->section, key, value, "is empty", error)
                                  : ATTN_OK;
    const char *problem = key->kind->parse(key, value, member);
    if (key->kind->finish)
        key->kind->finish(member);
    if (problem == text_out_of_memory)
        return config_no_memory(error);
    return problem ? config_bad_value(key->section, key, value, problem, error) : ATTN_OK;
}

static void entry_finish(struct config_entry *entry)
{
    free(entry->name);
    free(entry->value);
    free(entry->place);
}

/* --set replaces all earlier values of the key; of a repeatable key only the ini's. */
static void remove_overridden(struct config *config, const struct config_key *key, int64_t number)
{
    size_t kept = 0;
    for (size_t i = 0; i < config->num_entries; i++) {
        struct config_entry *entry = &config->entries[i];
        bool same = entry->key == key && entry->number == number;
        if (same && !(entry->from_set && key->flags & CONFIG_REPEATABLE))
            entry_finish(entry);
        else
            config->entries[kept++] = *entry;
    }
    config->num_entries = kept;
}

static attn_status refuse_second(const struct config_source *source, const struct config_key *key,
                                 int64_t number, const char *name, attn_error *error)
{
    for (size_t i = 0; i < source->config->num_entries; i++) {
        const struct config_entry *entry = &source->config->entries[i];
        if (entry->key == key && entry->number == number)
            return host_fail(error, ATTN_CONFIG_ERROR,
                             "%s: %s.%s is given twice, first at %s; accepted: once", source->place,
                             key->section, name, entry->place);
    }
    return ATTN_OK;
}

static attn_status add_entry(const struct config_source *source, const struct config_key *key,
                             int64_t number, const char *name, const char *text, attn_error *error)
{
    struct config *config = source->config;
    if (config->num_entries == CONFIG_MAX_VALUES)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: %s.%s is one value too many; accepted: up to %d values",
                         source->place, key->section, name, CONFIG_MAX_VALUES);
    size_t size = (config->num_entries + 1) * sizeof *config->entries;
    struct config_entry *entries = realloc(config->entries, size);
    if (!entries)
        return config_no_memory(error);
    config->entries = entries;
    strbuf full_name;
    strbuf_init(&full_name);
    strbuf_appendf(&full_name, "%s.%s", key->section, name);
    struct config_entry entry = {
        .key = key,
        .number = number,
        .name = strbuf_steal(&full_name),
        .value = strdup(text),
        .place = strdup(source->place),
        .base = source->base,
        .from_set = source->line == 0,
    };
    if (!entry.name || !entry.value || !entry.place) {
        entry_finish(&entry);
        return config_no_memory(error);
    }
    entries[config->num_entries++] = entry;
    return ATTN_OK;
}

static attn_status take_typed(const struct config_source *source, const char *section,
                              const char *name, const char *text, attn_error *error)
{
    int64_t number = 0;
    const struct config_key *key = config_key_find(section, name, &number);
    if (!key)
        return unknown_key(source, section, name, error);
    struct config_value value = {text, source->base, source->place, number};
    attn_status status = check_value(key, &value, error);
    if (status != ATTN_OK)
        return status;
    if (source->line == 0)
        remove_overridden(source->config, key, number);
    else if (!(key->flags & CONFIG_REPEATABLE))
        status = refuse_second(source, key, number, name, error);
    return status == ATTN_OK ? add_entry(source, key, number, name, text, error) : status;
}

/* ---- Sources --------------------------------------------------------------------------------- */

static attn_status check_section(const struct config_source *source, const char *section,
                                 attn_error *error)
{
    const char *names[CONFIG_MAX_KEYS];
    if (config_backend_section(section) || (*section && config_key_names(section, names) > 0))
        return ATTN_OK;
    if (strcmp(section, "backend") == 0 || strncmp(section, "backend.", 8) == 0)
        return host_fail(
            error, ATTN_CONFIG_ERROR,
            "%s: [%.100s] does not name a backend; accepted: [backend.NAME] with up to "
            "%d letters, digits, '_' and '-'",
            source->place, section, CONFIG_MAX_BACKEND_NAME);
    return unknown_section(source, section, error);
}

static attn_status take_value(const struct config_source *source, const char *section,
                              const char *key, const char *text, attn_error *error)
{
    const char *backend = config_backend_section(section);
    return backend ? config_backend_take(source, backend, key, text, error)
                   : take_typed(source, section, key, text, error);
}

static char *make_place(const char *name, int line)
{
    strbuf place;
    strbuf_init(&place);
    strbuf_appendf(&place, "%s:%d", name, line);
    return strbuf_steal(&place);
}

static attn_status ini_section(void *user, const char *section, int line, attn_error *error)
{
    struct config *config = user;
    struct config_source source = {config, config->ini_base, make_place(config->name, line), line};
    if (!source.place)
        return config_no_memory(error);
    attn_status status = check_section(&source, section, error);
    const char *name = status == ATTN_OK ? config_backend_section(section) : NULL;
    struct config_backend *backend = NULL;
    if (name) /* it may stay empty */
        status = config_backend_require(&source, name, &backend, error);
    free(source.place);
    return status;
}

static attn_status ini_value(void *user, const char *section, const char *key, const char *text,
                             int line, attn_error *error)
{
    struct config *config = user;
    struct config_source source = {config, config->ini_base, make_place(config->name, line), line};
    attn_status status;
    if (!source.place)
        return config_no_memory(error);
    if (!*section)
        status = host_fail(error, ATTN_CONFIG_ERROR,
                           "%s: '%.100s' comes before the first section; accepted: [section] first",
                           source.place, key);
    else
        status = take_value(&source, section, key, text, error);
    free(source.place);
    return status;
}

/* The '.' between section and key, which is the second one in "backend.NAME.key"; NULL = none. */
static char *find_key_dot(char *name)
{
    char *dot = strchr(name, '.');
    return dot && strncmp(name, "backend.", 8) == 0 ? strchr(dot + 1, '.') : dot;
}

/* `text` is a writable copy of one --set. */
static attn_status take_set(struct config *config, char *text, attn_error *error)
{
    struct config_source source = {config, config->set_base, (char[]){"--set"}, 0};
    for (const char *c = text; *c; c++)
        if (config_ini_is_control(*c))
            return host_fail(error, ATTN_CONFIG_ERROR,
                             "--set: a control character (0x%02x); accepted: text",
                             (unsigned char)*c);
    char *equals = strchr(text, '=');
    if (equals)
        *equals = '\0';
    char *dot = equals ? find_key_dot(text) : NULL;
    if (!dot || dot == text || !dot[1])
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "--set: '%.100s' names no value; accepted: section.key=value", text);
    *dot = '\0';
    char *value = equals + 1, *end = value + strlen(value);
    while (text_is_space(*value))
        value++;
    while (end > value && text_is_space(end[-1]))
        *--end = '\0';
    attn_status status = check_section(&source, text, error);
    return status == ATTN_OK ? take_value(&source, text, dot + 1, value, error) : status;
}

static attn_status take_sets(struct config *config, const char *const *sets, size_t num_sets,
                             attn_error *error)
{
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < num_sets && status == ATTN_OK; i++) {
        char *text = strdup(sets[i]);
        status = text ? take_set(config, text, error) : config_no_memory(error);
        free(text);
    }
    return status;
}

/* ---- The struct ------------------------------------------------------------------------------ */

static attn_status fill_member(struct config *config, const struct config_key *key,
                               attn_error *error)
{
    void *member = (char *)config + key->offset;
    const char *problem = NULL;
    bool given = false;
    for (size_t i = 0; i < config->num_entries && !problem; i++) {
        const struct config_entry *entry = &config->entries[i];
        if (entry->key != key || !*entry->value)
            continue;
        struct config_value value = {entry->value, entry->base, entry->place, entry->number};
        problem = key->kind->parse(key, &value, member);
        given = true;
    }
    if (!given && *key->default_text) {
        struct config_value value = {key->default_text, config->ini_base, "default", 0};
        problem = key->kind->parse(key, &value, member);
    }
    if (problem && problem != text_out_of_memory)
        return host_fail(error, ATTN_INTERNAL, "config: %s.%s %s", key->section, key->name,
                         problem);
    return problem ? config_no_memory(error) : ATTN_OK;
}

static attn_status fill(struct config *config, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < config_num_keys && status == ATTN_OK; i++)
        status = fill_member(config, &config_keys[i], error);
    return status;
}

/* Rules that tie several keys together. */
static attn_status check_together(const struct config *config, attn_error *error)
{
    if (config_is_set(config, "kv_cache.max_total_tokens") &&
        config_is_set(config, "kv_cache.mem_fraction"))
        return config_fail(config, "kv_cache.mem_fraction", error,
                           "kv_cache.max_total_tokens is given too, at %s; accepted: one of them",
                           config_place(config, "kv_cache.max_total_tokens"));
    return ATTN_OK;
}

static struct config *config_create(const char *name, const char *base)
{
    struct config *config = calloc(1, sizeof *config);
    if (!config)
        return NULL;
    config->name = strdup(name);
    config->set_base = text_working_folder();
    if (config->set_base)
        config->ini_base = config_path(config->set_base, base);
    if (!config->name || !config->ini_base) {
        config_destroy(config);
        return NULL;
    }
    return config;
}

attn_status config_load_text(const char *text, size_t length, const char *name, const char *base,
                             const char *const *sets, size_t num_sets, struct config **out,
                             attn_error *error)
{
    struct config *config = config_create(name, base ? base : ".");
    if (!config)
        return config_no_memory(error);
    struct config_ini_handler handler = {config, ini_section, ini_value};
    attn_status status = config_ini_read(text, length, name, &handler, error);
    if (status == ATTN_OK)
        status = take_sets(config, sets, num_sets, error);
    if (status == ATTN_OK)
        status = fill(config, error);
    if (status == ATTN_OK)
        status = check_together(config, error);
    if (status == ATTN_OK)
        *out = config;
    else
        config_destroy(config);
    return status;
}

attn_status config_load(const char *path, const char *const *sets, size_t num_sets,
                        struct config **out, attn_error *error)
{
    if (!path)
        return config_load_text("", 0, "default", NULL, sets, num_sets, out, error);
    char *text = NULL;
    size_t length = 0;
    attn_status status = config_ini_read_file(path, &text, &length, error);
    if (status != ATTN_OK)
        return status;
    char *base = directory_of(path);
    status = base ? config_load_text(text, length, path, base, sets, num_sets, out, error)
                  : config_no_memory(error);
    free(base);
    free(text);
    return status;
}

void config_destroy(struct config *config)
{
    if (!config)
        return;
    for (size_t i = 0; i < config_num_keys; i++)
        if (config_keys[i].kind->finish)
            config_keys[i].kind->finish((char *)config + config_keys[i].offset);
    for (size_t i = 0; i < config->num_entries; i++)
        entry_finish(&config->entries[i]);
    config_backends_finish(&config->backends);
    free(config->entries);
    free(config->name);
    free(config->ini_base);
    free(config->set_base);
    free(config);
}

/* ---- Questions ------------------------------------------------------------------------------- */

/* Where it was given, or NULL. */
static const char *find_place(const struct config *config, const char *key)
{
    for (size_t i = 0; i < config->num_entries; i++) {
        const struct config_entry *entry = &config->entries[i];
        if (*entry->value && strcmp(entry->name, key) == 0)
            return entry->place;
    }
    return config_backends_place(&config->backends, key);
}

bool config_is_set(const struct config *config, const char *key)
{
    return find_place(config, key) != NULL;
}

static bool is_among(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

const char *config_find_set(const struct config *config, const char *section,
                            const char *const *others)
{
    for (size_t i = 0; i < config->num_entries; i++) {
        const struct config_entry *entry = &config->entries[i];
        if (*entry->value && strcmp(entry->key->section, section) == 0 &&
            !is_among(entry->name, others))
            return entry->name;
    }
    return NULL;
}

const char *config_place(const struct config *config, const char *key)
{
    const char *place = find_place(config, key);
    return place ? place : "default";
}

attn_status config_fail(const struct config *config, const char *key, attn_error *error,
                        const char *format, ...)
{
    const char *place = find_place(config, key);
    char message[768];
    va_list args;
    va_start(args, format);
    text_vformat(message, sizeof message, format, args);
    va_end(args);
    return host_fail(error, ATTN_CONFIG_ERROR, "%s: %s: %s", place ? place : config->name, key,
                     message);
}

void config_name_file(const struct config *config, const char *key, const char *path,
                      attn_error *error)
{
    const char *place = find_place(config, key);
    if (access(path, R_OK) != 0)
        host_fail_prefix(error, "%s: %s", place ? place : config->name, key);
}
