/* SPDX-License-Identifier: Apache-2.0
 *
 * load_watch.c: the new process that opens the object, and the comparison of its two looks.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* strsignal, NSIG */
#endif
#include "host/check/contract/load_watch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/check/cases/process_resources.h"
#include "host/plugin/process_state.h"
#include "host/plugin/elf_file.h"
#include "host/base/text.h"

extern char **environ;

/* Where the process that opens the file reports, and how it ends. */
enum { REPORT_FD = 3, OPENED = 0, NOT_OPENED = 1 };

/* ---- The process that opens the file --------------------------------------------------------- */

/* Visible state of a process. */
struct view {
    struct process_resources resources;
    bool driver; /* a CUDA driver is mapped */
    struct process_state state;
};

static bool has_driver(void)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && fgets(line, sizeof line, maps))
        found = strstr(line, "/libcuda.so") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static void look(struct view *view)
{
    process_take(&view->resources);
    view->driver = has_driver();
    process_state_take(&view->state);
}

/* Describe the changes; "" = none. */
static void print_changes(const struct view *before, const struct view *now)
{
    char changes[PROCESS_STATE_KINDS][256];
    const char *gained = process_gained(&before->resources, &now->resources);
    process_state_restore(&before->state, changes);
    if (gained)
        dprintf(REPORT_FD, "left %s", gained);
    else if (now->resources.num_fds < before->resources.num_fds)
        dprintf(REPORT_FD, "closed a file that was open");
    else if (now->driver && !before->driver)
        dprintf(REPORT_FD, "opened the CUDA driver");
    for (int kind = 0; kind < PROCESS_STATE_KINDS; kind++)
        if (changes[kind][0])
            dprintf(REPORT_FD, "changed the process: %s", changes[kind]);
}

/* The effects of these libraries are not the file's. A library that only the file can find is
 * opened by the file. */
static void open_needed(const char *path)
{
    struct elf_file elf;
    const char *name;
    if (elf_open(path, &elf, NULL))
        return;
    for (size_t n = 0; (name = elf_needed(&elf, n)); n++)
        dlopen(name, RTLD_NOW | RTLD_LOCAL);
    elf_close(&elf);
}

void load_watch_open(const char *file)
{
    struct view before, now;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_needed(file);
    look(&before);
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        dprintf(REPORT_FD, "cannot be opened: %s", why ? why : "no reason given");
        _exit(NOT_OPENED);
    }
    look(&now);
    print_changes(&before, &now);
    _exit(OPENED); /* destructors are not what is asked about */
}

/* ---- The process that asks ------------------------------------------------------------------- */

static bool spawn(const char *file, int output, pid_t *process)
{
    posix_spawn_file_actions_t files;
    char *argv[] = {(char *)"attnhost", (char *)"check-load", (char *)file, NULL};
    posix_spawn_file_actions_init(&files);
    bool good = posix_spawn_file_actions_adddup2(&files, output, REPORT_FD) == 0 &&
                posix_spawn(process, "/proc/self/exe", &files, NULL, argv, environ) == 0;
    posix_spawn_file_actions_destroy(&files);
    return good;
}

/* All that can be read, on one line. */
static void read_report(int descriptor, char *text, size_t size)
{
    size_t done = 0;
    for (ssize_t count; (count = read(descriptor, text + done, size - 1 - done)) > 0;)
        done += (size_t)count;
    text[done] = '\0';
    for (char *c = text; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    text_cut_incomplete(text);
}

enum load_watch_result load_watch(const char *file, char *text, size_t size)
{
    int ends[2], status = 0;
    pid_t process;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(text, size, "no pipe can be made");
        return LOAD_WATCH_FAILED;
    }
    bool good = spawn(file, ends[1], &process);
    close(ends[1]);
    if (!good)
        snprintf(text, size, "it cannot be started");
    else
        read_report(ends[0], text, size);
    close(ends[0]);
    if (good)
        waitpid(process, &status, 0);
    if (good && WIFSIGNALED(status))
        snprintf(text, size, "ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (good && WEXITSTATUS(status) == OPENED)
        return *text ? LOAD_WATCH_EFFECT : LOAD_WATCH_NOTHING;
    return LOAD_WATCH_FAILED;
}
