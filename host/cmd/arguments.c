/* SPDX-License-Identifier: Apache-2.0
 *
 * arguments.c: parsing of command lines; --help and completions.
 */
#include "host/cmd/arguments.h"

#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/message.h"
#include "host/base/text.h"
#include "host/base/output.h"
#include "host/cmd/exit_codes.h"
#include "host/plugin/loader.h"

/* FIRST_ROW + r gives getopt the row; GO_ON is no exit code: the command line is still being read.
 */
enum { FIRST_ROW = 256, GO_ON = -1 };

static size_t num_rows(const struct command *command)
{
    size_t count = 0;
    while (command->options[count].name)
        count++;
    return count;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void complain(const struct arguments *arguments, const char *format, va_list args)
{
    strbuf message;
    strbuf_init(&message);
    strbuf_appendf(&message, "attnhost %s: ", arguments->command->name);
    strbuf_appendv(&message, format, args);
    message_print(stderr, strbuf_text(&message));
    strbuf_finish(&message);
}

void arguments_complain(const struct arguments *arguments, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(arguments, format, args);
    va_end(args);
}

static int point_to_help(const struct arguments *arguments)
{
    fprintf(stderr, "`attnhost %s --help` lists what is accepted\n", arguments->command->name);
    return EXIT_USAGE;
}

int arguments_refuse(const struct arguments *arguments, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(arguments, format, args);
    va_end(args);
    return point_to_help(arguments);
}

static int no_memory(const struct arguments *arguments)
{
    arguments_complain(arguments, "no memory");
    return EXIT_RUN_TIME;
}

/* ---- Help ------------------------------------------------------------------------------------ */

static void print_usage(const struct command *command)
{
    const char *before = "usage:";
    for (const char *line = command->usage; *line; before = "      ") {
        size_t length = strcspn(line, "\n");
        printf("%s attnhost %s %.*s\n", before, command->name, (int)length, line);
        line += length + (line[length] == '\n');
    }
}

/* "--name VALUE" */
static size_t write_left(const struct option_row *row, char *text, size_t size)
{
    return (size_t)snprintf(text, size, "--%s%s%s", row->name, row->value ? " " : "",
                            row->value ? row->value : "");
}

static void print_options(const struct command *command)
{
    char left[128];
    size_t widest = 0;
    for (const struct option_row *row = command->options; row->name; row++) {
        size_t width = write_left(row, left, sizeof left);
        widest = width > widest ? width : widest;
    }
    for (const struct option_row *row = command->options; row->name; row++) {
        write_left(row, left, sizeof left);
        printf("  %-*s   ", (int)widest, left);
        text_wrap(stdout, row->help ? row->help : row->key, 2 + widest + 3, 2 + widest + 3);
        putchar('\n');
    }
    puts("  --help");
}

void arguments_print_text(FILE *file, const char *text)
{
    strbuf paragraph;
    strbuf_init(&paragraph);
    while (*text) {
        size_t length = strcspn(text, "\n");
        bool verbatim = length == 0 || *text == ' ';
        if (!verbatim)
            strbuf_appendf(&paragraph, "%s%.*s", paragraph.length ? " " : "", (int)length, text);
        text += length + (text[length] == '\n');
        if (paragraph.length && (verbatim || !*text || *text == '\n' || *text == ' ')) {
            text_wrap(file, strbuf_text(&paragraph), 0, 0);
            putc('\n', file);
            strbuf_finish(&paragraph);
        }
        if (verbatim)
            fprintf(file, "%.*s\n", (int)length, text - length - 1);
    }
    strbuf_finish(&paragraph);
}

static int print_help(const struct command *command)
{
    print_usage(command);
    putchar('\n');
    arguments_print_text(stdout, command->about);
    putchar('\n');
    print_options(command);
    putchar('\n');
    if (command->more)
        command->more(stdout);
    arguments_print_text(stdout, command->ending);
    return EXIT_GOOD;
}

/* ---- Values ---------------------------------------------------------------------------------- */

bool option_read_uint64(const char *text, void *place)
{
    return text_parse_uint64(text, place);
}

bool option_read_seconds(const char *text, void *place)
{
    double seconds;
    if (!text_parse_double(text, &seconds) || seconds <= 0 || seconds > 1e6)
        return false;
    *(double *)place = seconds;
    return true;
}

bool option_read_device(const char *text, void *place)
{
    uint64_t ordinal;
    bool numbered =
        strncmp(text, "cuda:", 5) == 0 && text_parse_uint64(text + 5, &ordinal) && ordinal < 1024;
    if (!numbered && strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0)
        return false;
    *(const char **)place = text;
    return true;
}

/* "key=value", or `text` as it stands if key is NULL. */
static bool add_set(struct arguments *arguments, const char *key, const char *text)
{
    size_t size = (key ? strlen(key) + 1 : 0) + strlen(text) + 1;
    char **sets = realloc(arguments->sets, (arguments->num_sets + 1) * sizeof *sets);
    char *set = malloc(size);
    if (sets)
        arguments->sets = sets;
    if (!sets || !set) {
        free(set);
        return false;
    }
    snprintf(set, size, "%s%s%s", key ? key : "", key ? "=" : "", text);
    sets[arguments->num_sets++] = set;
    return true;
}

bool arguments_is_plugin(const char *target)
{
    size_t length = strlen(target);
    return (length > 3 && strcmp(target + length - 3, ".so") == 0) || loader_is_source(target);
}

bool arguments_set(struct arguments *arguments, const char *key, const char *value)
{
    return add_set(arguments, key, value);
}

static int take_value(struct arguments *arguments, const struct option_row *row, const char *value)
{
    void *place = (char *)arguments->values + row->place;
    bool good = true;
    switch (row->kind) {
    case OPTION_SWITCH:
        *(bool *)place = true;
        break;
    case OPTION_TEXT:
        *(const char **)place = value;
        break;
    case OPTION_LIST:
        good = text_list_add(place, value);
        break;
    case OPTION_VALUE:
        if (row->read(value, place))
            break;
        arguments_complain(arguments, "--%s '%.100s': accepted %s", row->name, value,
                           row->accepted);
        return EXIT_USAGE;
    case OPTION_SET:
    case OPTION_KEY:
        good = add_set(arguments, row->key, value);
        break;
    }
    return good ? GO_ON : no_memory(arguments);
}

/* ---- The command line ------------------------------------------------------------------------ */

/* The rows as getopt wants them, to be freed; NULL when memory ran out. */
static struct option *list_options(const struct command *command)
{
    size_t count = num_rows(command);
    struct option *options = calloc(count + 2, sizeof *options);
    for (size_t r = 0; options && r < count; r++)
        options[r] = (struct option){command->options[r].name,
                                     command->options[r].kind == OPTION_SWITCH ? no_argument
                                                                               : required_argument,
                                     NULL, FIRST_ROW + (int)r};
    if (options)
        options[count] = (struct option){"help", no_argument, NULL, 'h'};
    return options;
}

static int take_option(struct arguments *arguments, int option, const char *value)
{
    if (option == 'h')
        return print_help(arguments->command);
    if (option < FIRST_ROW)
        return point_to_help(arguments); /* getopt has said what is wrong */
    return take_value(arguments, &arguments->command->options[option - FIRST_ROW], value);
}

static int take_target(struct arguments *arguments, int count, char **names)
{
    const struct command *command = arguments->command;
    bool optional = command->target == TARGET_AT_MOST_ONE;
    bool many = command->target == TARGET_MANY;
    if ((count > 1 && !many) || (count == 0 && !optional))
        return arguments_refuse(arguments, "%d names given: accepted %s%s", count,
                                many       ? "one and more "
                                : optional ? "at most one "
                                           : "one ",
                                command->names);
    arguments->targets = names;
    arguments->num_targets = (size_t)count;
    arguments->target = count ? names[0] : NULL;
    return GO_ON;
}

static int parse(struct arguments *arguments, int argc, char **argv)
{
    struct option *options = list_options(arguments->command);
    if (!options)
        return no_memory(arguments);
    int option, code = GO_ON;
    optind = 0; /* begin again: a process may parse more than one command line */
    while (code == GO_ON && (option = getopt_long(argc, argv, "h", options, NULL)) != -1)
        code = take_option(arguments, option, optarg);
    free(options);
    return code == GO_ON ? take_target(arguments, argc - optind, argv + optind) : code;
}

/* ---- The command line as text ---------------------------------------------------------------- */

/* A word as a shell reads it back. */
static void append_word(strbuf *line, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./,:@%";
    if (*word && word[strspn(word, plain)] == '\0') {
        strbuf_append(line, word);
        return;
    }
    strbuf_append(line, "'");
    for (; *word; word++)
        strbuf_append(line, *word == '\'' ? "'\\''" : (char[]){*word, '\0'});
    strbuf_append(line, "'");
}

/* Before getopt sorts the words. NULL when memory ran out. */
static char *line_of(int argc, char **argv)
{
    strbuf line;
    strbuf_init(&line);
    strbuf_append(&line, argv[0]); /* "attnhost NAME" */
    for (int w = 1; w < argc; w++) {
        strbuf_append(&line, " ");
        append_word(&line, argv[w]);
    }
    return strbuf_steal(&line);
}

static void finish(struct arguments *arguments)
{
    free(arguments->line);
    const struct option_row *row = arguments->command->options;
    for (; arguments->values && row->name; row++)
        if (row->kind == OPTION_LIST)
            text_list_finish((void *)((char *)arguments->values + row->place));
    for (size_t s = 0; s < arguments->num_sets; s++)
        free(arguments->sets[s]);
    free(arguments->sets);
    free(arguments->values);
}

int arguments_run(const struct command *command, int argc, char **argv)
{
    struct arguments arguments = {
        .command = command, .values = calloc(1, command->size + 1), .line = line_of(argc, argv)};
    if (!arguments.values || !arguments.line) {
        finish(&arguments);
        return no_memory(&arguments);
    }
    if (command->defaults)
        memcpy(arguments.values, command->defaults, command->size);
    int code = parse(&arguments, argc, argv);
    if (code == GO_ON)
        code = command->run(&arguments);
    finish(&arguments);
    return code;
}

/* ---- The configuration ----------------------------------------------------------------------- */

/* No output is written over them. */
static void forbid_inputs(const char *path, const struct config *config)
{
    char file[PATH_MAX];
    output_forbid(path, "the configuration");
    output_forbid(config->workload.trace, "the trace");
    output_forbid(config->attention.rules, "the rules");
    output_forbid(config->model.config, "the model's configuration");
    if (config->model.config &&
        snprintf(file, sizeof file, "%s/config.json", config->model.config) < PATH_MAX)
        output_forbid(file, "the model's configuration");
    for (size_t p = 0; p < config->plugins.path.count; p++)
        output_forbid(config->plugins.path.items[p], "a plugin");
}

int arguments_load_config(const struct arguments *arguments, const char *path,
                          struct config **config)
{
    host_error error;
    host_error_init(&error);
    attn_status status = config_load(path, (const char *const *)arguments->sets,
                                     arguments->num_sets, config, &error.base);
    if (status != ATTN_OK)
        arguments_complain(arguments, "%s", host_error_text(&error));
    else
        forbid_inputs(path, *config);
    return exit_code_of(status);
}
