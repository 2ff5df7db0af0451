/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost inspect: what a backend or a plugin file can do, and its options.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/cmd/exit_codes.h"
#include "host/select/open_host.h"
#include "host/plugin/options.h"
#include "host/select/probe.h"
#include "host/select/rules.h"
#include "host/base/text.h"

struct values {
    const char *config; /* NULL = not given */
};

static const struct option_row options[] = {
    {.name = "config",
     .value = "CONFIG.ini",
     .kind = OPTION_TEXT,
     .place = offsetof(struct values, config),
     .help = "look for the backend in the plugins of this ini"},
    OPTION_ROW_SET,
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
    printf("\n%*s%s%s%s%s", COLUMN, "", options_type_name(option->type),
           option->flags & ATTN_OPTION_REPEATED ? ", repeatable" : "", accepted[0] ? ": " : "",
           accepted);
    if (option->flags & ATTN_OPTION_REQUIRED)
        puts("; required");
    else
        printf("; default %s\n", option->default_text ? option->default_text : "none");
}

static void print_type(const attnhost *host, const attn_backend_type *type)
{
    struct probe probe;
    printf("\n%s: %s\n", type->name, type->doc);
    fputs("  layouts:", stdout);
    for (uint32_t i = 0; i < type->num_layouts; i++)
        printf(" %s", type->layouts[i]);
    putchar('\n');
    printf("  options of [backend.NAME] with type = %s:%s\n", type->name,
           type->num_options ? "" : " none");
    for (uint32_t i = 0; i < type->num_options; i++)
        print_option(attn_at(type->options, i));
    if (type->flags & ATTN_BACKEND_COMPOSITE)
        puts("  a composite: it can do what its children can");
    else if (probe_find(host, type, &probe))
        probe_print(host, type, &probe, stdout);
    else
        puts("  accepts no plain softmax problem");
}

/* ---- What is meant --------------------------------------------------------------------------- */

static int inspect_file(attnhost *host, const char *file)
{
    host_error error;
    host_error_init(&error);
    if (attnhost_load_plugin(host, file, &error.base)) {
        fprintf(stderr, "attnhost inspect: %s\n", host_error_text(&error));
        return EXIT_PLUGIN;
    }
    /* A file that was on record already need not be the last one: the host knows it resolved. */
    char *resolved = realpath(file, NULL);
    for (uint32_t i = 0; resolved && i < attnhost_num_plugins(host); i++) {
        attnhost_plugin_info plugin = {.struct_size = sizeof plugin};
        if (attnhost_plugin(host, i, &plugin, NULL) || strcmp(plugin.file, resolved) != 0)
            continue;
        printf("%s\n%s %s by %s, ABI %u.%u: %s\n", plugin.file, plugin.name, plugin.version,
               plugin.vendor, plugin.abi_major, plugin.abi_minor, plugin.doc);
        if (plugin.build)
            printf("build: %s\n", plugin.build);
        for (uint32_t b = 0; b < plugin.num_backends; b++) {
            attnhost_type_info info = {.struct_size = sizeof info};
            if (attnhost_type(host, plugin.first_backend + b, &info, NULL) == ATTN_OK)
                print_type(host, info.type);
        }
        break;
    }
    free(resolved);
    return EXIT_GOOD;
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

/* A backend that the ini defines: what it is made of, and then its type. NULL = there is none. */
static const char *print_definition(const attnhost *host, const char *name)
{
    const struct compose_definition *definition = composer_find(&host->composer, name);
    if (!definition)
        return NULL;
    printf("backend %s (%s), of type %s\n", name, definition->place, definition->type);
    for (size_t t = 0; t < definition->num_texts; t++)
        printf("  %-12s %s (%s)\n", definition->texts[t].key, definition->texts[t].value,
               definition->texts[t].place);
    return definition->type;
}

static int inspect_name(const attnhost *host, const struct rules *rules, const char *given)
{
    const char *type = print_definition(host, given);
    const char *name = type ? type : given;
    const struct rule *stands_for = rules_alias(rules, name);
    const char *alias = stands_for ? stands_for->name : NULL;
    for (uint32_t i = 0; i < attnhost_num_types(host); i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        attnhost_plugin_info plugin = {.struct_size = sizeof plugin};
        if (attnhost_type(host, i, &info, NULL) ||
            (strcmp(info.type->name, name) != 0 && (!alias || strcmp(info.type->name, alias) != 0)))
            continue;
        if (attnhost_plugin(host, info.plugin, &plugin, NULL) == ATTN_OK)
            printf("%s\n", plugin.file);
        print_type(host, info.type);
        return EXIT_GOOD;
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
    size_t length = strlen(target);
    return strchr(target, '/') || (length > 3 && strcmp(target + length - 3, ".so") == 0);
}

/* A file alone, so that a backend of the same name that is installed does not stand in its way. */
static int open_for(const char *target, const struct config *config, attnhost **host,
                    attn_error *error)
{
    if (is_file(target))
        return attnhost_create(NULL, host, error) == ATTN_OK ? EXIT_GOOD : EXIT_RUN_TIME;
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
        code = inspect_file(host, arguments->target);
    else
        code = inspect_name(host, rules, arguments->target);
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
    .summary = "what a backend or a plugin file can do, and its options",
    .usage = "BACKEND|PLUGIN.so [OPTION]...",
    .names = "backend or plugin file",
    .calls_plugins = true,
    .about =
        "Shows a backend, or all backends of a plugin file: layouts, what it needs, options with\n"
        "their defaults and what they accept, and what it can do, found out by asking it. No GPU\n"
        "is needed: a CUDA backend is asked about simulated ones. What contains a slash or ends "
        "in\n"
        ".so is a file; else it is a backend's name, an alias (fa3), or, with --config, a backend\n"
        "of that ini: its options as given are shown as well (`routes` is what "
        "attention.route.<n>\n"
        "make).\n",
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
