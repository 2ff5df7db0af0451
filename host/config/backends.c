/* SPDX-License-Identifier: Apache-2.0
 *
 * backends.c: the sections [backend.NAME], kept as they were written: only the backend type,
 * which is not known yet, can say what its options mean.
 */
#include <stdlib.h>
#include <string.h>

#include "host/config/keys.h"
#include "host/base/error.h"

static void option_finish(struct config_option *option)
{
    free(option->key);
    free(option->value);
    free(option->place);
}

static void backend_finish(struct config_backend *backend)
{
    for (size_t i = 0; i < backend->num_options; i++)
        option_finish(&backend->options[i]);
    free(backend->options);
    free(backend->name);
    free(backend->type);
    free(backend->place);
}

void config_backends_finish(struct config_backends *list)
{
    for (size_t i = 0; i < list->count; i++)
        backend_finish(&list->items[i]);
    free(list->items);
    memset(list, 0, sizeof *list);
}

static attn_status replace_text(char **text, const char *with, attn_error *error)
{
    char *copy = strdup(with);
    if (!copy)
        return config_no_memory(error);
    free(*text);
    *text = copy;
    return ATTN_OK;
}

const char *config_backend_section(const char *section)
{
    static const char prefix[] = "backend.";
    if (strncmp(section, prefix, strlen(prefix)) != 0)
        return NULL;
    const char *name = section + strlen(prefix);
    bool good =
        config_is_word(name) && !strchr(name, '.') && strlen(name) <= CONFIG_MAX_BACKEND_NAME;
    return good ? name : NULL;
}

attn_status config_backend_require(const struct config_source *source, const char *name,
                                   struct config_backend **backend, attn_error *error)
{
    struct config_backends *list = &source->config->backends;
    for (size_t i = 0; i < list->count; i++) {
        *backend = &list->items[i];
        if (strcmp(list->items[i].name, name) == 0)
            return ATTN_OK;
    }
    if (list->count == CONFIG_MAX_BACKENDS)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: [backend.%s] is one section too many; accepted: up to %d backends",
                         source->place, name, CONFIG_MAX_BACKENDS);
    struct config_backend *items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items)
        return config_no_memory(error);
    list->items = items;
    struct config_backend added = {
        .name = strdup(name), .type = strdup(name), .place = strdup(source->place)};
    if (!added.name || !added.type || !added.place) {
        backend_finish(&added);
        return config_no_memory(error);
    }
    *backend = &items[list->count++];
    **backend = added;
    return ATTN_OK;
}

static attn_status take_type(const struct config_source *source, struct config_backend *backend,
                             const char *type, attn_error *error)
{
    if (!config_is_word(type))
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: backend.%s.type = '%.200s' is not a name; accepted: the name of a "
                         "backend type, by default '%s'",
                         source->place, backend->name, type, backend->name);
    if (backend->has_type && source->line != 0)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: backend.%s.type is given twice, first at %s; accepted: once",
                         source->place, backend->name, backend->place);
    attn_status status = replace_text(&backend->type, type, error);
    if (status == ATTN_OK)
        status = replace_text(&backend->place, source->place, error);
    backend->has_type = backend->has_type || status == ATTN_OK;
    return status;
}

/* --set replaces what the ini gave for this key. */
static void remove_overridden_options(struct config_backend *backend, const char *key)
{
    size_t kept = 0;
    for (size_t i = 0; i < backend->num_options; i++) {
        struct config_option *option = &backend->options[i];
        if (option->line != 0 && strcmp(option->key, key) == 0)
            option_finish(option);
        else
            backend->options[kept++] = *option;
    }
    backend->num_options = kept;
}

attn_status config_backend_take(const struct config_source *source, const char *name,
                                const char *key, const char *text, attn_error *error)
{
    if (!config_is_word(key))
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: '%.100s' in [backend.%s] is not a key; accepted: letters, digits, "
                         "'_', '-' and '.'",
                         source->place, key, name);
    struct config_backend *backend = NULL;
    attn_status status = config_backend_require(source, name, &backend, error);
    if (status != ATTN_OK)
        return status;
    if (strcmp(key, "type") == 0)
        return take_type(source, backend, text, error);
    if (source->line == 0)
        remove_overridden_options(backend, key);
    size_t size = (backend->num_options + 1) * sizeof *backend->options;
    struct config_option *options = realloc(backend->options, size);
    if (!options)
        return config_no_memory(error);
    backend->options = options;
    struct config_option option = {.key = strdup(key),
                                   .value = strdup(text),
                                   .place = strdup(source->place),
                                   .base = source->base,
                                   .line = source->line};
    if (!option.key || !option.value || !option.place) {
        option_finish(&option);
        return config_no_memory(error);
    }
    options[backend->num_options++] = option;
    return ATTN_OK;
}

/* Where `key` of the backend was given, or NULL. */
static const char *find_option_place(const struct config_backend *backend, const char *key)
{
    if (strcmp(key, "type") == 0)
        return backend->has_type ? backend->place : NULL;
    for (size_t i = 0; i < backend->num_options; i++)
        if (strcmp(backend->options[i].key, key) == 0)
            return backend->options[i].place;
    return NULL;
}

const char *config_backends_place(const struct config_backends *list, const char *key)
{
    if (strncmp(key, "backend.", 8) != 0)
        return NULL;
    const char *name = key + 8, *dot = strchr(name, '.');
    for (size_t i = 0; dot && i < list->count; i++) {
        size_t length = strlen(list->items[i].name);
        if (length == (size_t)(dot - name) && memcmp(list->items[i].name, name, length) == 0)
            return find_option_place(&list->items[i], dot + 1);
    }
    return NULL;
}

const struct config_backend *config_backend(const struct config *config, const char *name)
{
    for (size_t i = 0; i < config->backends.count; i++)
        if (strcmp(config->backends.items[i].name, name) == 0)
            return &config->backends.items[i];
    return NULL;
}
