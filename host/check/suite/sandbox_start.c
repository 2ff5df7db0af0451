/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox_start.c: start of a child: the running program, with pipes as its standard files, and
 * with the preloaded library that watches calls. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* pipe2 */
#endif
#include "host/check/suite/sandbox.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/configured.h"
#include "host/base/data_files.h"
#include "host/base/sanitizers.h"

extern char **environ;

/* ---- Environment ----------------------------------------------------------------------------- */

/* A sanitizer's run time has to come before all other libraries. */
static bool find_watch(char path[PATH_MAX])
{
#if HAS_SANITIZER
    (void)path;
    return false;
#else
    static const char *const places[] = {".libs/attnhost_watch.so",
                                         "../lib/attnhost/attnhost_watch.so",
                                         ATTNHOST_PKGLIB_DIR "/attnhost_watch.so"};
    return data_file_find(places, sizeof places / sizeof *places, path);
#endif
}

/* That of this process with LD_PRELOAD as `preload` says ("LD_PRELOAD=..."; "" = as it is). The
 * array is to be freed; NULL when memory ran out. */
static char **environment_of_child(char preload[2 * PATH_MAX])
{
    char watch[PATH_MAX];
    size_t count = 0, kept = 0;
    const char *before = getenv("LD_PRELOAD");
    preload[0] = '\0';
    if (find_watch(watch) && (!before || strlen(before) < PATH_MAX - 32))
        snprintf(preload, 2 * PATH_MAX, "LD_PRELOAD=%s%s%s", watch, before && *before ? ":" : "",
                 before ? before : "");
    while (environ[count])
        count++;
    char **variables = calloc(count + 2, sizeof *variables);
    for (size_t v = 0; variables && v < count; v++)
        if (!*preload || strncmp(environ[v], "LD_PRELOAD=", 11) != 0)
            variables[kept++] = environ[v];
    if (variables && *preload)
        variables[kept] = preload;
    return variables;
}

/* ---- Start ----------------------------------------------------------------------------------- */

/* A pipe whose ends are not among the numbers that the child's get. */
static bool make_pipe(int ends[2])
{
    int made[2];
    ends[0] = ends[1] = -1;
    if (pipe2(made, O_CLOEXEC) != 0)
        return false;
    for (int e = 0; e < 2; e++) {
        ends[e] = fcntl(made[e], F_DUPFD_CLOEXEC, CHILD_FD_TRAIL + 1);
        close(made[e]);
    }
    return ends[0] >= 0 && ends[1] >= 0;
}

static void close_pipe(const int ends[2])
{
    for (int e = 0; e < 2; e++)
        if (ends[e] >= 0)
            close(ends[e]);
}

/* In its own process group, with no signal blocked or ignored. */
static bool set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    return posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                    POSIX_SPAWN_SETSIGDEF) == 0 &&
           posix_spawnattr_setpgroup(attributes, 0) == 0 &&
           posix_spawnattr_setsigmask(attributes, &none) == 0 &&
           posix_spawnattr_setsigdefault(attributes, &all) == 0;
}

static bool set_files(posix_spawn_file_actions_t *files, int questions, int answers, int output,
                      int trail)
{
    return posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0) == 0 &&
           posix_spawn_file_actions_adddup2(files, output, 1) == 0 &&
           posix_spawn_file_actions_adddup2(files, output, 2) == 0 &&
           posix_spawn_file_actions_adddup2(files, answers, CHILD_FD_ANSWERS) == 0 &&
           posix_spawn_file_actions_adddup2(files, questions, CHILD_FD_QUESTIONS) == 0 &&
           posix_spawn_file_actions_adddup2(files, trail, CHILD_FD_TRAIL) == 0;
}

static bool spawn(struct sandbox *sandbox, int questions, int answers, int output)
{
    char preload[2 * PATH_MAX];
    struct params_numbers numbers;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    char **argv = params_of_child(sandbox->params, &numbers);
    char **variables = environment_of_child(preload);
    int trail = fcntl(sandbox->trail_fd, F_DUPFD_CLOEXEC, CHILD_FD_TRAIL + 1);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&files);
    bool good =
        argv && variables && trail >= 0 && set_attributes(&attributes) &&
        set_files(&files, questions, answers, output, trail) &&
        posix_spawn(&sandbox->child, sandbox->program, &files, &attributes, argv, variables) == 0;
    if (!good)
        sandbox->child = 0;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    free(variables);
    free(argv);
    if (trail >= 0)
        close(trail);
    return good;
}

bool sandbox_start(struct sandbox *sandbox)
{
    int questions[2], answers[2], output[2];
    bool good = make_pipe(questions);
    good = make_pipe(answers) && good;
    good = make_pipe(output) && good;
    good = good && spawn(sandbox, questions[0], answers[1], output[1]);
    if (!good) {
        close_pipe(questions);
        close_pipe(answers);
        close_pipe(output);
        return false;
    }
    close(questions[0]);
    close(answers[1]);
    close(output[1]);
    sandbox->questions = questions[1];
    sandbox->answers = answers[0];
    sandbox->output = output[0];
    fcntl(sandbox->answers, F_SETFL, O_NONBLOCK);
    fcntl(sandbox->output, F_SETFL, O_NONBLOCK);
    sandbox->runs = 0;
    return true;
}
