/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: the attnhost command: finds the named command (commands.h) and runs it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/warden.h"
#include "host/base/interrupt.h"
#include "host/base/text.h"
#include "host/plugin/loader.h"
#include "host/plugin/scan.h"
#include "host/base/configured.h"

#define COMMANDS_ADDRESS(name) &command_##name,
static const struct command *const commands[] = {COMMANDS(COMMANDS_ADDRESS)};

#define NUM_COMMANDS (sizeof commands / sizeof commands[0])

static void print_help(FILE *file)
{
    arguments_print_text(file, commands_about);
    fputs("\nusage: attnhost COMMAND [ARGUMENT]...\n\n", file);
    for (size_t c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary) {
            fprintf(file, "  %-8s  ", commands[c]->name);
            text_wrap(file, commands[c]->summary, 12, 12);
            putc('\n', file);
        }
    fputs("\n`attnhost help COMMAND` explains a command; `attnhost -V` prints the version.\n\n",
          file);
    arguments_print_text(file, commands_exit_codes);
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

static const struct command *find_command(const char *name)
{
    for (size_t c = 0; c < NUM_COMMANDS; c++)
        if (strcmp(name, commands[c]->name) == 0)
            return commands[c];
    return NULL;
}

/* getopt's messages begin with argv[0]. */
static int run_command(const struct command *command, int argc, char **argv)
{
    char name[32];
    if (!command->run) {
        fputs(command->about, stderr);
        return EXIT_USAGE;
    }
    snprintf(name, sizeof name, "attnhost %s", command->name);
    argv[0] = name;
    if (command->ends_early)
        interrupt_take();
    if (command->calls_plugins) {
        signal(SIGXFSZ, SIG_DFL); /* the warden catches it, and names a plugin that it ends */
        warden_begin(name);
        loader_keep_mapped();
        scan_configure("/proc/self/exe");
    }
    return warden_end(name, arguments_run(command, argc, argv));
}

/* The next file that is opened would get the number of a closed standard stream, and receive our
 * messages. */
static void open_standard(void)
{
    for (int descriptor = 0; descriptor <= STDERR_FILENO; descriptor++)
        if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
            open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    open_standard();
    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes fails a write, as a full disk does */
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    bool help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2)) {
        print_help(stdout);
        return warden_end("attnhost", EXIT_GOOD);
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("attnhost %s, plugin ABI %u.%u\n", ATTNHOST_VERSION, ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
        return warden_end("attnhost", EXIT_GOOD);
    }
    const char *name = help ? argv[2] : argv[1];
    const struct command *command = find_command(name);
    if (!command)
        return unknown_command(name);
    if (help) {
        char option[] = "--help";
        char *words[] = {argv[0], option, NULL};
        return run_command(command, 2, words);
    }
    return run_command(command, argc - 1, argv + 1);
}
