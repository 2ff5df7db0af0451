/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: the attnhost command: finds the command that is meant (commands.h) and runs it.
 */
#include <stdio.h>
#include <string.h>

#include "host/cmd/commands.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/warden.h"
#include "host/base/text.h"

#define COMMANDS_ADDRESS(name) &command_##name,
static const struct command *const commands[] = {COMMANDS(COMMANDS_ADDRESS)};

#define NUM_COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *file)
{
    fputs(
        "attnhost loads attention backends from shared objects and composes them by an ini file.\n"
        "\n"
        "usage: attnhost COMMAND [ARGUMENT]...\n"
        "\n",
        file);
    for (size_t c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary)
            fprintf(file, "  %-8s  %s\n", commands[c]->name, commands[c]->summary);
    fputs("\n"
          "`attnhost COMMAND --help` explains a command; `attnhost --version` prints the version.\n"
          "\n"
          "exit codes: 0 success; 1 a check or verification failed; 2 usage or configuration;\n"
          "3 a plugin file is refused; 4 no backend can serve; 5 the run failed;\n"
          "77 nothing could be checked here\n",
          file);
}

static int unknown_command(const char *name)
{
    const char *names[NUM_COMMANDS];
    size_t count = 0;
    for (size_t c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary)
            names[count++] = commands[c]->name;
    const char *near = text_nearest(name, names, count);
    fprintf(stderr, "attnhost: unknown command '%s'", name);
    if (near)
        fprintf(stderr, ", did you mean '%s'?", near);
    fputs(" (accepted:", stderr);
    for (size_t c = 0; c < count; c++)
        fprintf(stderr, " %s", names[c]);
    fputs(")\n", stderr);
    return EXIT_USAGE;
}

/* getopt's messages begin with argv[0]. */
static int run_command(const struct command *command, int argc, char **argv)
{
    char name[32];
    snprintf(name, sizeof name, "attnhost %s", command->name);
    argv[0] = name;
    if (command->calls_plugins)
        warden_begin(name);
    return warden_end(name, arguments_run(command, argc, argv));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return EXIT_GOOD;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("attnhost %s, plugin ABI %u.%u\n", ATTNHOST_VERSION, ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
        return EXIT_GOOD;
    }
    for (size_t c = 0; c < NUM_COMMANDS; c++)
        if (strcmp(argv[1], commands[c]->name) == 0)
            return run_command(commands[c], argc - 1, argv + 1);
    return unknown_command(argv[1]);
}
