/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost inspect: shows capabilities and options of a backend or plugin file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/base/json_add.h"
#include "host/cmd/exit_codes.h"
#include "host/plugin/loader.h"
#include "host/plugin/scan.h"
#include "host/select/matrix.h"
#include "host/select/open_host.h"
#include "host/plugin/options.h"
#include "host/select/probe.h"
#include "host/select/rules.h"
#include "host/base/text.h"

struct values {
    const char *config; /* NULL = not given */
    bool json;
};

#define AT(member) offsetof(struct values, member)

static const struct option_row options[] = {
    OPTION_ROW_TEXT("config", "CONFIG.ini", AT(config), "search the plugins of this ini"),
    OPTION_ROW_SET,
    OPTION_ROW_SWITCH("json", AT(json), "the same as JSON"),
    OPTION_END,
};

/* ---- One backend ----------------------------------------------------------------------------- */

static void print_option(const attn_option *option)
{
    enum { COLUMN = 4 + 19 + 1 };
    char accepted[256];
    options_accepted(option, accepted, sizeof accepted);
    printf("    %-19s ", option->key);
    text_wrap(stdout, option->doc, strlen(option->key) > 19 ? 5 + strlen(option->key) : COLUMN,
              COLUMN);
    putchar('\n');
    bool required = option->flags & ATTN_OPTION_REQUIRED;
    text_wrap_line(stdout, COLUMN, COLUMN, "%s%s%s%s; %s%s", options_type_name(option->type),
                   option->flags & ATTN_OPTION_REPEATED ? ", repeatable" : "",
                   accepted[0] ? ": " : "", accepted, required ? "required" : "default ",
                   required                  ? ""
                   : !option->default_text   ? "none"
                   : option->default_text[0] ? option->default_text
                                             : "empty");
}

static uint32_t count_operands(const attn_backend_type *type)
{
    return ATTN_HAS(type, attn_backend_type, operands) ? type->num_operands : 0;
}

static void print_type(const attnhost *host, const attn_backend_type *type)
{
    struct probe probe;
    strbuf layouts;
    strbuf_init(&layouts);
    for (uint32_t i = 0; i < type->num_layouts; i++)
        strbuf_appendf(&layouts, " %s", type->layouts[i]);
    putchar('\n');
    text_wrap_line(stdout, 0, 2, "%s: %s", type->name, type->doc);
    text_wrap_line(stdout, 2, 4, "layouts:%s", strbuf_text(&layouts));
    strbuf_finish(&layouts);
    for (uint32_t i = 0; i < count_operands(type); i++) {
        const attn_private_operand *operand = attn_at(type->operands, i);
        text_wrap_line(stdout, 2, 4, "private operand %s: %s", operand->name, operand->doc);
    }
    printf("  options of [backend.NAME] with type = %s:%s\n", type->name,
           type->num_options ? "" : " none");
    for (uint32_t i = 0; i < type->num_options; i++)
        print_option(attn_at(type->options, i));
    if (type->flags & ATTN_BACKEND_WITHOUT_KERNELS)
        text_wrap_line(stdout, 2, 4,
                       "built without kernels: the capabilities below are those of a full build; "
                       "create fails");
    if (type->flags & ATTN_BACKEND_COMPOSITE)
        puts("a composite: its capabilities are its children's");
    else if (probe_find(host, type, &probe))
        probe_print(host, type, &probe, stdout);
    else
        puts("  accepts no plain softmax problem");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* As text, or null. */
static bool add_default(cJSON *object, const char *text)
{
    return text ? json_add_text(object, "default", text)
                : cJSON_AddNullToObject(object, "default") != NULL;
}

static bool add_option(cJSON *list, const attn_option *option)
{
    char accepted[256];
    cJSON *object = cJSON_CreateObject();
    options_accepted(option, accepted, sizeof accepted);
    return json_add_item(list, object) && json_add_text(object, "key", option->key) &&
           json_add_text(object, "type", options_type_name(option->type)) &&
           cJSON_AddBoolToObject(object, "repeatable", option->flags & ATTN_OPTION_REPEATED) &&
           cJSON_AddBoolToObject(object, "required", option->flags & ATTN_OPTION_REQUIRED) &&
           add_default(object, option->default_text) &&
           json_add_text(object, "accepted", accepted) && json_add_text(object, "doc", option->doc);
}

/* What it accepts, asked as `list --matrix` does; {} for a composite. */
static bool add_accepts(cJSON *object, const attnhost *host, const attn_backend_type *type)
{
    cJSON *rows =
        type->flags & ATTN_BACKEND_COMPOSITE ? cJSON_CreateArray() : matrix_ask(host, type);
    cJSON *accepts = rows ? matrix_rows_json(rows) : NULL;
    cJSON_Delete(rows);
    return accepts && cJSON_AddItemToObject(object, "accepts", accepts);
}

static bool add_type(cJSON *list, const attnhost *host, const attn_backend_type *type)
{
    cJSON *object = cJSON_CreateObject();
    bool good = json_add_item(list, object) && json_add_text(object, "name", type->name) &&
                json_add_text(object, "doc", type->doc) &&
                cJSON_AddBoolToObject(object, "composite", type->flags & ATTN_BACKEND_COMPOSITE) &&
                cJSON_AddBoolToObject(object, "without_kernels",
                                      type->flags & ATTN_BACKEND_WITHOUT_KERNELS);
    cJSON *layouts = good ? cJSON_AddArrayToObject(object, "layouts") : NULL;
    good = layouts != NULL;
    for (uint32_t i = 0; good && i < type->num_layouts; i++)
        good = json_add_text_item(layouts, type->layouts[i]);
    cJSON *operands = good ? cJSON_AddArrayToObject(object, "private_operands") : NULL;
    good = operands != NULL;
    for (uint32_t i = 0; good && i < count_operands(type); i++)
        good = json_add_text_item(operands,
                                  ((const attn_private_operand *)attn_at(type->operands, i))->name);
    cJSON *made = good ? cJSON_AddArrayToObject(object, "options") : NULL;
    good = made != NULL;
    for (uint32_t i = 0; good && i < type->num_options; i++)
        good = add_option(made, attn_at(type->options, i));
    return good && add_accepts(object, host, type);
}

static bool add_plugin(cJSON *root, const attnhost_plugin_info *plugin)
{
    char abi[32];
    snprintf(abi, sizeof abi, "%u.%u", plugin->abi_major, plugin->abi_minor);
    return json_add_text(root, "file", plugin->file) && json_add_text(root, "name", plugin->name) &&
           json_add_text(root, "version", plugin->version) &&
           json_add_text(root, "vendor", plugin->vendor) && json_add_text(root, "abi", abi) &&
           json_add_text(root, "doc", plugin->doc) &&
           json_add_text(root, "build", plugin->build ? plugin->build : "");
}

static bool add_definition(cJSON *root, const struct compose_definition *definition)
{
    cJSON *object = cJSON_AddObjectToObject(root, "definition");
    cJSON *given = cJSON_AddObjectToObject(object, "options");
    bool good = json_add_text(object, "place", definition->place) &&
                json_add_text(object, "type", definition->type);
    for (size_t t = 0; good && t < definition->num_texts; t++)
        good = json_add_text(given, definition->texts[t].key, definition->texts[t].value);
    return good;
}

/* ---- What is found --------------------------------------------------------------------------- */

/* A plugin with one of its backends, or with all; and what the ini makes of it. */
struct found {
    const struct compose_definition *definition; /* NULL = none */
    attnhost_plugin_info plugin;
    const attn_backend_type *type; /* NULL = all of the plugin's */
};

static const attn_backend_type *found_type(const attnhost *host, const struct found *found,
                                           uint32_t index)
{
    attnhost_type_info info = {.struct_size = sizeof info};
    if (attnhost_type(host, found->plugin.first_backend + index, &info, NULL) ||
        (found->type && found->type != info.type))
        return NULL;
    return info.type;
}

static int print_json(const attnhost *host, const struct found *found)
{
    cJSON *root = cJSON_CreateObject();
    bool good = (!found->definition || add_definition(root, found->definition)) &&
                add_plugin(root, &found->plugin);
    cJSON *list = good ? cJSON_AddArrayToObject(root, "backends") : NULL;
    good = list != NULL;
    for (uint32_t b = 0; good && b < found->plugin.num_backends; b++) {
        const attn_backend_type *type = found_type(host, found, b);
        good = !type || add_type(list, host, type);
    }
    char *text = json_take_text(root, good);
    int code = text ? EXIT_GOOD : EXIT_RUN_TIME;
    fputs(text ? text : "attnhost inspect: no memory for the answer\n", text ? stdout : stderr);
    free(text);
    return code;
}

/* A backend that the ini defines: what it is made of. */
static void print_definition(const char *name, const struct compose_definition *definition)
{
    printf("backend %s (%s), of type %s\n", name, definition->place, definition->type);
    for (size_t t = 0; t < definition->num_texts; t++)
        printf("  %-12s %s (%s)\n", definition->texts[t].key, definition->texts[t].value,
               definition->texts[t].place);
}

static int print_found(const attnhost *host, const char *given, const struct found *found)
{
    const attnhost_plugin_info *plugin = &found->plugin;
    if (found->definition)
        print_definition(given, found->definition);
    printf("%s\n", plugin->file);
    if (!found->type) {
        text_wrap_line(stdout, 0, 2, "%s %s by %s, ABI %u.%u: %s", plugin->name, plugin->version,
                       plugin->vendor, plugin->abi_major, plugin->abi_minor, plugin->doc);
        if (plugin->build)
            printf("build: %s\n", plugin->build);
    }
    for (uint32_t b = 0; b < plugin->num_backends; b++)
        if (found_type(host, found, b))
            print_type(host, found_type(host, found, b));
    return EXIT_GOOD;
}

static int tell(const struct arguments *arguments, const attnhost *host, const struct found *found)
{
    const struct values *values = arguments->values;
    return values->json ? print_json(host, found) : print_found(host, arguments->target, found);
}

/* ---- What is meant --------------------------------------------------------------------------- */

static int inspect_file(const struct arguments *arguments, attnhost *host)
{
    const char *file = arguments->target;
    host_error error;
    host_error_init(&error);
    if (attnhost_load_plugin(host, file, &error.base)) {
        fprintf(stderr, "attnhost inspect: %s\n", host_error_text(&error));
        return EXIT_PLUGIN;
    }
    /* A file that was loaded before need not be the last one; the host lists it by its resolved
     * path. */
    char *resolved = realpath(file, NULL);
    int code = EXIT_GOOD;
    for (uint32_t i = 0; resolved && i < attnhost_num_plugins(host); i++) {
        struct found found = {.plugin = {.struct_size = sizeof found.plugin}};
        if (attnhost_plugin(host, i, &found.plugin, NULL) ||
            strcmp(found.plugin.file, resolved) != 0)
            continue;
        code = tell(arguments, host, &found);
        break;
    }
    free(resolved);
    return code;
}

static int fail_unknown(const attnhost *host, const char *name)
{
    uint32_t count = attnhost_num_types(host);
    const char **names = calloc(count + 1, sizeof *names);
    if (!names)
        return EXIT_RUN_TIME;
    for (uint32_t i = 0; i < count; i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        if (attnhost_type(host, i, &info, NULL) == ATTN_OK)
            names[i] = info.type->name;
    }
    const char *near = text_nearest(name, names, count);
    fprintf(stderr, "attnhost inspect: no backend is called '%s'%s%s%s: accepted", name,
            near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
    for (uint32_t i = 0; i < count; i++)
        fprintf(stderr, "%s %s", i ? "," : "", names[i] ? names[i] : "?");
    fputs(count ? "; plugins.path names other folders of plugins\n"
                : " none: no plugin is loaded; plugins.path names folders of them\n",
          stderr);
    free(names);
    return EXIT_USAGE;
}

static int inspect_name(const struct arguments *arguments, const attnhost *host,
                        const struct rules *rules)
{
    const char *given = arguments->target;
    struct found found = {.definition = composer_find(&host->composer, given),
                          .plugin = {.struct_size = sizeof found.plugin}};
    const char *name = found.definition ? found.definition->type : given;
    const struct rule *stands_for = rules_alias(rules, name);
    const char *alias = stands_for ? stands_for->name : NULL;
    for (uint32_t i = 0; i < attnhost_num_types(host); i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        if (attnhost_type(host, i, &info, NULL) ||
            (strcmp(info.type->name, name) != 0 && (!alias || strcmp(info.type->name, alias) != 0)))
            continue;
        found.type = info.type;
        if (attnhost_plugin(host, info.plugin, &found.plugin, NULL) == ATTN_OK)
            return tell(arguments, host, &found);
    }
    if (!alias && !rules_backend(rules, name))
        return fail_unknown(host, name);
    if (alias)
        fprintf(stderr,
                "attnhost inspect: %s stands for %s, which is not installed; plugins.path names "
                "other folders of plugins\n",
                name, alias);
    else
        fprintf(stderr,
                "attnhost inspect: %s is not installed; plugins.path names other folders "
                "of plugins\n",
                name);
    return EXIT_NO_BACKEND;
}

static int is_file(const char *target)
{
    return strchr(target, '/') || arguments_is_plugin(target);
}

/* Only the file, so that an installed backend of the same name does not take precedence. */
static int open_for(const char *target, const struct config *config, attnhost **host,
                    attn_error *error)
{
    if (is_file(target)) {
        scan_set_limit(config->plugins.scan_seconds);
        return attnhost_create(NULL, host, error) == ATTN_OK ? EXIT_GOOD : EXIT_RUN_TIME;
    }
    return exit_code_of(open_host(config, host, error));
}

static int inspect(const struct arguments *arguments, const struct config *config)
{
    host_error error;
    attnhost *host = NULL;
    struct rules *rules = NULL;
    host_error_init(&error);
    int code = exit_code_of(rules_create(config, &rules, &error.base));
    if (code == EXIT_GOOD)
        code = open_for(arguments->target, config, &host, &error.base);
    if (code != EXIT_GOOD)
        arguments_complain(arguments, "%s", host_error_text(&error));
    else if (is_file(arguments->target))
        code = inspect_file(arguments, host);
    else
        code = inspect_name(arguments, host, rules);
    attnhost_destroy(host);
    rules_destroy(rules);
    return code;
}

static int run(struct arguments *arguments)
{
    const struct values *values = arguments->values;
    struct config *config = NULL;
    int code = arguments_load_config(arguments, values->config, &config);
    if (code == EXIT_GOOD)
        code = inspect(arguments, config);
    config_destroy(config);
    return code;
}

const struct command command_inspect = {
    .name = "inspect",
    .summary = "show the capabilities and options of a backend or plugin file",
    .usage = "BACKEND|PLUGIN.so|PLUGIN.py [OPTION]...",
    .names = "backend or plugin file",
    .calls_plugins = true,
    .about =
        "Shows a backend, or all backends of a plugin file: layouts, requirements, options with\n"
        "defaults and accepted values, and capabilities, which it queries. Needs no GPU: CUDA\n"
        "backends are queried for simulated ones. A name with a slash, or ending in .so or .py, is "
        "a\n"
        "file; module:Class is a Python class; any other name is a backend, an alias (fa3) or, "
        "with\n"
        "--config, a backend of that ini, which is shown with its options as given (`routes` "
        "stands\n"
        "for the keys attention.route.<n>).\n",
    .options = options,
    .ending = "The answer goes to stdout, everything else to stderr. Exit codes: 0 success;\n"
              "2 usage, configuration or an unknown backend; 3 the plugin file, or a critical\n"
              "plugin, is refused; 4 an alias whose backend is not installed.\n"
              "\n"
              "examples:\n"
              "  attnhost inspect cpu_native\n"
              "  attnhost inspect ./build/my_plugin.so\n",
    .size = sizeof(struct values),
    .run = run,
};
