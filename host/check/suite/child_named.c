/* SPDX-License-Identifier: Apache-2.0
 *
 * child_named.c: options of children: `--option NAME.KEY=VALUE`, where NAME is a backend of --with,
 * a child that the suite makes (stand_in_1), or another name, whose backend NAME.type names.
 */
#include "host/check/suite/child_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The length of the name that an option is for; 0 = it is for the backends under test. */
static size_t name_length(const char *option)
{
    size_t key = strcspn(option, "="), name = strcspn(option, ".");
    return name < key ? name : 0;
}

bool child_option_is_named(const char *option)
{
    return name_length(option) > 0;
}

static bool is_for(const char *option, const char *name, size_t length)
{
    return name_length(option) == length && strncmp(option, name, length) == 0;
}

/* Keys and values of one name, cut out of `copies`; *type is the value of NAME.type. */
static bool collect(const struct check_child *child, const char *name, size_t length,
                    const char *base, char **copies, struct options_text *texts, size_t *count,
                    const char **type)
{
    for (size_t o = 0; o < child->params->options.count; o++) {
        const char *option = child->params->options.items[o];
        if (!is_for(option, name, length))
            continue;
        char *copy = copies[o] = strdup(option + length + 1);
        if (!copy)
            return false;
        char *value = copy + strcspn(copy, "=");
        *value++ = '\0';
        if (strcmp(copy, "type") == 0)
            *type = value;
        else
            texts[(*count)++] = (struct options_text){copy, value, "--option", base};
    }
    return true;
}

/* Define the name of this option, with all its options. */
static attn_status define_name(struct check_child *child, const char *option, const char *base,
                               const char *stand_in, attn_error *error)
{
    size_t most = child->params->options.count, length = name_length(option), count = 0;
    struct options_text *texts = calloc(most, sizeof *texts);
    char **copies = calloc(most, sizeof *copies), *name = strndup(option, length);
    const char *type = NULL;
    attn_status status = ATTN_OUT_OF_HOST_MEMORY;
    if (texts && copies && name &&
        collect(child, option, length, base, copies, texts, &count, &type)) {
        if (!type && strncmp(name, "stand_in_", 9) == 0)
            type = stand_in;
        status =
            composer_define(&child->host->composer, name, type, "--option", texts, count, error);
    }
    for (size_t o = 0; copies && o < most; o++)
        free(copies[o]);
    free(copies);
    free(texts);
    free(name);
    return status;
}

/* Is this the first option of its name? */
static bool is_first(const struct check_child *child, size_t index)
{
    const char *const option = child->params->options.items[index];
    size_t length = name_length(option), before = 0;
    while (before < index && !is_for(child->params->options.items[before], option, length))
        before++;
    return length > 0 && before == index;
}

/* Does the backend exist, and are its options good? Checked when all names are known. */
static attn_status try_name(struct check_child *child, const char *option, attn_error *error)
{
    struct compose_node *trial = NULL;
    char *name = strndup(option, name_length(option));
    attn_status status = name ? compose_resolve(&child->host->composer, name, NULL, &trial, error)
                              : ATTN_OUT_OF_HOST_MEMORY;
    compose_destroy(trial);
    free(name);
    return status;
}

attn_status child_define_named(struct check_child *child, const char *stand_in, attn_error *error)
{
    const size_t count = child->params->options.count;
    char *base = text_working_folder();
    attn_status status = base ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
    for (size_t o = 0; o < count && status == ATTN_OK; o++)
        if (is_first(child, o))
            status = define_name(child, child->params->options.items[o], base, stand_in, error);
    for (size_t o = 0; o < count && status == ATTN_OK; o++)
        if (is_first(child, o))
            status = try_name(child, child->params->options.items[o], error);
    free(base);
    return status;
}
