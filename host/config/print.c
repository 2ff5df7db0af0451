/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c: the configuration as an ini, for --print-config. '#' lines explain, ';' lines are
 * keys that were not set. Paths are printed absolute, so that the ini may be stored anywhere; but
 * which options of a [backend.NAME] are paths is not known here, these are printed as written.
 */
#include <stdlib.h>
#include <string.h>

#include "host/config/ini.h"
#include "host/config/keys.h"

/* A file's name may hold anything, a line end too. */
static void print_text(FILE *file, const char *text)
{
    for (; *text; text++)
        fputc(config_ini_is_control(*text) ? '?' : *text, file);
}

static void print_place(FILE *file, const char *place)
{
    fputs("# Set at ", file);
    print_text(file, place);
    fputs(".\n", file);
}

/* In quotes, as ini.h reads it. */
static void print_quoted(FILE *file, const char *text)
{
    putc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', file);
        putc(*text, file);
    }
    putc('"', file);
}

/* `prefix` `key = value`; as comments when no line of an ini could hold it. */
static void print_line(FILE *file, const char *prefix, const char *key, const char *value)
{
    enum config_ini_form form = config_ini_form_of(key, value);
    if (form == CONFIG_INI_NOT_AT_ALL) {
        fputs("# Too long for a line of an ini, or it holds a control character; give it with "
              "--set:\n",
              file);
        prefix = "; ";
    }
    fprintf(file, "%s%s =%s", prefix, key, *value ? " " : "");
    (form == CONFIG_INI_QUOTED ? print_quoted : print_text)(file, value);
    fputc('\n', file);
}

static void print_entry(FILE *file, const struct config_entry *entry)
{
    const char *name = strchr(entry->name, '.') + 1;
    bool is_path = entry->key->kind->is_path && *entry->value;
    char *path = is_path ? config_path(entry->base, entry->value) : NULL;
    print_place(file, entry->place);
    print_line(file, "", name, path ? path : entry->value);
    free(path);
}

static void print_key(const struct config *config, const struct config_key *key, FILE *file)
{
    strbuf accepted;
    strbuf_init(&accepted);
    key->kind->accepted(key, &accepted);
    fprintf(file, "\n# %s\n# Accepted: %s%s%s. Default: %s.\n", key->help, strbuf_text(&accepted),
            key->flags & CONFIG_REPEATABLE ? "; may be repeated" : "",
            key->flags & CONFIG_NUMBERED        ? "; n from 0 to 9999"
            : key->flags & CONFIG_BY_LAYER_TYPE ? "; layer_type as in model.layer_types"
                                                : "",
            *key->default_text ? key->default_text : "not given");
    strbuf_finish(&accepted);
    bool given = false;
    for (size_t i = 0; i < config->num_entries; i++) {
        if (config->entries[i].key == key) {
            print_entry(file, &config->entries[i]);
            given = true;
        }
    }
    if (!given)
        print_line(file, "; ", key->name, key->default_text);
}

static void print_backend(const struct config_backend *backend, FILE *file)
{
    fprintf(file, "\n[backend.%s]\n", backend->name);
    if (backend->has_type)
        print_place(file, backend->place);
    print_line(file, backend->has_type ? "" : "; ", "type", backend->type);
    for (size_t i = 0; i < backend->num_options; i++) {
        const struct config_option *option = &backend->options[i];
        print_place(file, option->place);
        print_line(file, "", option->key, option->value);
    }
}

void config_print(const struct config *config, FILE *file)
{
    const char *section = "";
    fputs("# Configuration of ", file);
    print_text(file, config->name);
    fputs(". Keys after ';' were not given.\n", file);
    for (size_t i = 0; i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        if (strcmp(section, key->section) != 0)
            fprintf(file, "\n[%s]\n", key->section);
        section = key->section;
        print_key(config, key, file);
    }
    for (size_t i = 0; i < config->backends.count; i++)
        print_backend(&config->backends.items[i], file);
}
