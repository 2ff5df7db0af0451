/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost list: lists plugins and backends, and why some are not usable here.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/base/json_add.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/words.h"
#include "host/select/matrix.h"
#include "host/select/open_host.h"
#include "host/select/probe.h"

struct values {
    bool json, matrix, words;
};

#define AT(member) offsetof(struct values, member)

static const struct option_row options[] = {
    OPTION_ROW_SET,
    OPTION_ROW_SWITCH("json", AT(json), "the same as JSON"),
    OPTION_ROW_SWITCH(
        "matrix", AT(matrix),
        "capabilities of backends side by side, as a Markdown table: each row changes one "
        "property of a plain problem"),
    OPTION_ROW_SWITCH(
        "words", AT(words),
        "print the ABI's numbers with their names instead, for languages without C macros; "
        "columns are set, value, constant and word, separated by tabs"),
    OPTION_END,
};

/* "usable", "composite", or "not here: ..." */
static void state_of(const attnhost *host, const attn_backend_type *type, char *text, size_t size)
{
    static const char other_kind[] = "kind softmax: accepted ";
    char why[320];
    if (type->flags & ATTN_BACKEND_COMPOSITE)
        snprintf(text, size, "usable, a composite");
    else if (type->flags & ATTN_BACKEND_WITHOUT_KERNELS)
        snprintf(text, size, "built without kernels: can be explained, not run; build with nvcc");
    else if (probe_here(host, type, why, sizeof why))
        snprintf(text, size, "usable");
    else if (strncmp(why, other_kind, strlen(other_kind)) == 0)
        snprintf(text, size, "usable, serves %s layers", why + strlen(other_kind));
    else
        snprintf(text, size, "not on this machine's cpu%s%s", why[0] ? ": " : "", why);
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* The name in a column of its own, then what the backend is and whether it can be used. */
static void print_backend(const char *name, const char *doc, const char *state)
{
    enum { COLUMN = 4 + 16 + 1 };
    printf("    %-16s ", name);
    text_wrap(stdout, doc, strlen(name) > 16 ? 4 + strlen(name) + 1 : COLUMN, COLUMN);
    printf("\n%*s", COLUMN, "");
    text_wrap(stdout, state, COLUMN, COLUMN);
    putchar('\n');
}

static void print_plugin(const attnhost *host, const attnhost_plugin_info *plugin,
                         const char *shadowed_by)
{
    if (shadowed_by) {
        printf("%s\n  not used: %s already provides it\n", plugin->file, shadowed_by);
        return;
    }
    if (plugin->status) {
        printf("%s\n  refused (%s): %s\n", plugin->file, attnhost_status_name(plugin->status),
               plugin->reason);
        return;
    }
    printf("%s\n", plugin->file);
    text_wrap_line(stdout, 2, 6, "%s %s by %s, ABI %u.%u: %s", plugin->name, plugin->version,
                   plugin->vendor, plugin->abi_major, plugin->abi_minor, plugin->doc);
    for (uint32_t i = 0; i < plugin->num_backends; i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        char state[384];
        if (attnhost_type(host, plugin->first_backend + i, &info, NULL))
            continue;
        state_of(host, info.type, state, sizeof state);
        print_backend(info.type->name, info.type->doc, state);
    }
}

static int print_all(const attnhost *host)
{
    uint32_t count = attnhost_num_plugins(host);
    for (uint32_t i = 0; i < count; i++) {
        attnhost_plugin_info plugin = {.struct_size = sizeof plugin};
        if (attnhost_plugin(host, i, &plugin, NULL) == ATTN_OK)
            print_plugin(host, &plugin, host->registry.plugins[i]->shadowed_by);
    }
    if (count == 0)
        fputs("attnhost list: no plugins found; accepted: folders in [plugins] path or "
              "ATTNHOST_PLUGIN_PATH, or installed plugins\n",
              stderr);
    return EXIT_GOOD;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Memory that runs out on the way shows as a NULL from cJSON_Print() or as a missing entry; the
 * sums of a list are small enough that the first allocation to fail is the printing. */
static cJSON *plugin_json(const attnhost *host, const attnhost_plugin_info *plugin,
                          const char *shadowed_by)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "file", plugin->file);
    cJSON_AddStringToObject(object, "status", attnhost_status_name(plugin->status));
    cJSON_AddStringToObject(object, "reason", plugin->reason);
    cJSON_AddStringToObject(object, "shadowed_by", shadowed_by ? shadowed_by : "");
    cJSON_AddStringToObject(object, "name", plugin->name);
    cJSON_AddStringToObject(object, "version", plugin->version);
    cJSON_AddStringToObject(object, "vendor", plugin->vendor);
    cJSON *backends = cJSON_AddArrayToObject(object, "backends");
    for (uint32_t i = 0; i < plugin->num_backends; i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        char state[384];
        if (attnhost_type(host, plugin->first_backend + i, &info, NULL))
            continue;
        cJSON *backend = cJSON_CreateObject();
        state_of(host, info.type, state, sizeof state);
        cJSON_AddStringToObject(backend, "name", info.type->name);
        cJSON_AddStringToObject(backend, "doc", info.type->doc);
        cJSON_AddBoolToObject(backend, "usable", strncmp(state, "usable", 6) == 0);
        cJSON_AddStringToObject(backend, "state", state);
        if (!cJSON_AddItemToArray(backends, backend))
            cJSON_Delete(backend);
    }
    return object;
}

static int print_json(const attnhost *host)
{
    cJSON *array = cJSON_CreateArray();
    for (uint32_t i = 0; i < attnhost_num_plugins(host); i++) {
        attnhost_plugin_info plugin = {.struct_size = sizeof plugin};
        if (attnhost_plugin(host, i, &plugin, NULL))
            continue;
        cJSON *object = plugin_json(host, &plugin, host->registry.plugins[i]->shadowed_by);
        if (!cJSON_AddItemToArray(array, object))
            cJSON_Delete(object);
    }
    char *text = json_take_text(array, true);
    int code = text ? EXIT_GOOD : EXIT_RUN_TIME;
    fputs(text ? text : "attnhost list: no memory for the answer\n", text ? stdout : stderr);
    free(text);
    return code;
}

/* ---- Matrix ---------------------------------------------------------------------------------- */

/* Backends that are no column of the matrix: composites, or all others. A cJSON array, the
 * caller's; NULL when memory ran out. */
static cJSON *list_others(const attnhost *host, const struct matrix_column *columns,
                          uint32_t num_columns, bool composite)
{
    cJSON *names = cJSON_CreateArray();
    for (uint32_t i = 0, c = 0; names && i < attnhost_num_types(host); i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        if (attnhost_type(host, i, &info, NULL))
            continue;
        bool shown = c < num_columns && columns[c].name == info.type->name;
        c += shown;
        if (shown || !(info.type->flags & ATTN_BACKEND_COMPOSITE) == composite)
            continue;
        if (!json_add_text_item(names, info.type->name)) {
            cJSON_Delete(names);
            names = NULL;
        }
    }
    return names;
}

/* Of the columns, those whose kernels are not in this build. A cJSON array, the caller's; NULL when
 * memory ran out. */
static cJSON *list_without_kernels(const attnhost *host, const struct matrix_column *columns,
                                   uint32_t num_columns)
{
    cJSON *names = cJSON_CreateArray();
    for (uint32_t c = 0; names && c < num_columns; c++) {
        const struct registry_type *found = registry_find(&host->registry, columns[c].name);
        if (!found || !(found->type->flags & ATTN_BACKEND_WITHOUT_KERNELS) ||
            json_add_text_item(names, columns[c].name))
            continue;
        cJSON_Delete(names);
        names = NULL;
    }
    return names;
}

static void print_others(const cJSON *names, const char *sentence)
{
    const char *separator = sentence;
    const cJSON *name;
    cJSON_ArrayForEach(name, names)
    {
        printf("%s`%s`", separator, name->valuestring);
        separator = ", ";
    }
    if (separator != sentence)
        puts(".");
}

/* The columns are the caller's; *num_columns of them are filled in any case. */
static bool ask_all(const attnhost *host, struct matrix_column *columns, uint32_t *num_columns)
{
    for (uint32_t i = 0; i < attnhost_num_types(host); i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        if (attnhost_type(host, i, &info, NULL))
            continue;
        cJSON *rows = matrix_ask(host, info.type);
        if (!rows)
            return false;
        if (cJSON_GetArraySize(rows) > 0)
            columns[(*num_columns)++] = (struct matrix_column){info.type->name, rows};
        else
            cJSON_Delete(rows);
    }
    return true;
}

/* What the table is made of; backends in the order in which they were found. */
struct matrix_parts {
    struct matrix_column *columns;
    uint32_t num_columns;
    cJSON *composites, *others, *without_kernels;
};

static bool ask_matrix(const attnhost *host, struct matrix_parts *parts)
{
    parts->columns = calloc(attnhost_num_types(host) + 1u, sizeof *parts->columns);
    if (!parts->columns || !ask_all(host, parts->columns, &parts->num_columns))
        return false;
    parts->composites = list_others(host, parts->columns, parts->num_columns, true);
    parts->others = list_others(host, parts->columns, parts->num_columns, false);
    parts->without_kernels = list_without_kernels(host, parts->columns, parts->num_columns);
    return parts->composites && parts->others && parts->without_kernels;
}

static void finish_matrix(struct matrix_parts *parts)
{
    for (uint32_t c = 0; c < parts->num_columns; c++)
        cJSON_Delete((cJSON *)parts->columns[c].rows);
    cJSON_Delete(parts->composites);
    cJSON_Delete(parts->others);
    cJSON_Delete(parts->without_kernels);
    free(parts->columns);
}

/* {"backends": {NAME: {MATTER: [VALUE ...]}}, "composites": [NAME ...], "others": [NAME ...],
 * "without_kernels": [NAME ...]} */
static char *matrix_json(struct matrix_parts *parts)
{
    cJSON *root = cJSON_CreateObject(), *backends = cJSON_AddObjectToObject(root, "backends");
    bool good = backends != NULL;
    for (uint32_t c = 0; good && c < parts->num_columns; c++) {
        cJSON *rows = matrix_rows_json(parts->columns[c].rows);
        good = cJSON_AddItemToObject(backends, parts->columns[c].name, rows);
    }
    good = good && cJSON_AddItemReferenceToObject(root, "composites", parts->composites) &&
           cJSON_AddItemReferenceToObject(root, "others", parts->others) &&
           cJSON_AddItemReferenceToObject(root, "without_kernels", parts->without_kernels);
    return json_take_text(root, good);
}

static int print_text(char *text)
{
    int code = text ? EXIT_GOOD : EXIT_RUN_TIME;
    if (text)
        fputs(text, stdout);
    else
        fputs("attnhost list: no memory for the answer\n", stderr);
    free(text);
    return code;
}

static int print_matrix(const attnhost *host, bool json)
{
    struct matrix_parts parts = {.columns = NULL};
    bool good = ask_matrix(host, &parts);
    int code = EXIT_GOOD;
    if (!good || json) {
        code = print_text(good ? matrix_json(&parts) : NULL);
    } else {
        matrix_write(parts.columns, parts.num_columns, stdout);
        print_others(parts.composites, "\nCapabilities of composites are their children's: ");
        print_others(parts.others,
                     "\nNot in this table, as they do not serve plain softmax attention: ");
        print_others(parts.without_kernels, "\nBuilt without kernels here: ");
    }
    finish_matrix(&parts);
    return code;
}

/* ---- The command ----------------------------------------------------------------------------- */

static int list(const struct arguments *arguments, const struct config *config)
{
    const struct values *values = arguments->values;
    host_error error;
    attnhost *host = NULL;
    host_error_init(&error);
    int code = exit_code_of(open_host(config, &host, &error.base));
    if (code != EXIT_GOOD)
        arguments_complain(arguments, "%s", host_error_text(&error));
    else if (values->matrix)
        code = print_matrix(host, values->json);
    else
        code = values->json ? print_json(host) : print_all(host);
    attnhost_destroy(host);
    return code;
}

static int run(struct arguments *arguments)
{
    if (((const struct values *)arguments->values)->words) {
        words_print();
        return EXIT_GOOD;
    }
    struct config *config = NULL;
    const char *ini = arguments->target;
    if (ini && arguments_is_plugin(ini)) {
        if (!arguments_set(arguments, "plugins.path", ini))
            return EXIT_RUN_TIME;
        ini = NULL;
    }
    int code = arguments_load_config(arguments, ini, &config);
    if (code == EXIT_GOOD)
        code = list(arguments, config);
    config_destroy(config);
    return code;
}

const struct command command_list = {
    .name = "list",
    .summary = "list plugins and backends, and why some are not usable here",
    .usage = "[CONFIG.ini|PLUGIN.so|PLUGIN.py] [OPTION]...",
    .names = "CONFIG.ini or plugin file",
    .target = TARGET_AT_MOST_ONE,
    .calls_plugins = true,
    .about =
        "Lists plugin files and their backends, and why some are not usable here. A refused file "
        "is\n"
        "listed with its reason. The search path is the ini's paths, the folders of\n"
        "ATTNHOST_PLUGIN_PATH and the folder of installed plugins. A plugin file named on the\n"
        "command line comes first, as with --set plugins.path=FILE.\n",
    .options = options,
    .ending = "The list goes to stdout, everything else to stderr. Exit codes: 0 success;\n"
              "2 usage or configuration; 3 a critical plugin is refused.\n"
              "\n"
              "examples:\n"
              "  attnhost list\n"
              "  attnhost list ./my_plugin.so\n"
              "  attnhost list --set plugins.path=/opt/my/plugins --json\n"
              "  attnhost list --matrix\n"
              "  attnhost list --words | grep -w head_dim\n",
    .size = sizeof(struct values),
    .run = run,
};
