/* SPDX-License-Identifier: Apache-2.0
 *
 * process_resources.c: reading /proc/self: threads, open files, memory.
 */
#include "host/check/cases/process_resources.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "host/base/mix.h"
#include "host/base/sanitizers.h"

extern char **environ;

static uint64_t hash_text(uint64_t state, const char *text)
{
    for (; *text; text++)
        state = mix_absorb(state, (unsigned char)*text);
    return mix_absorb(state, 0);
}

/* ---- State ----------------------------------------------------------------------------------- */

/* A driver starts threads when it likes; it names them so. */
static bool is_of_driver(int thread)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", thread);
    FILE *file = fopen(path, "r");
    if (!file)
        return true; /* it has ended since */
    if (!fgets(name, sizeof name, file))
        name[0] = '\0';
    fclose(file);
    return strncmp(name, "cuda", 4) == 0;
}

static void take_threads(struct process_resources *state)
{
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        int thread = atoi(entry->d_name);
        if (thread <= 0 || is_of_driver(thread))
            continue;
        state->all_threads++;
        if (state->num_threads < PROCESS_MAX_THREADS)
            state->threads[state->num_threads++] = thread;
    }
    if (folder)
        closedir(folder);
}

static void take_fds(struct process_resources *state)
{
    for (int fd = 0; fd < PROCESS_MAX_FDS; fd++) {
        char path[64], target[512];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        state->fds[state->num_fds++] = hash_text((uint64_t)fd, target);
    }
}

void process_take(struct process_resources *state)
{
    memset(state, 0, sizeof *state);
    take_threads(state);
    take_fds(state);
    for (char **variable = environ; variable && *variable; variable++)
        state->environment = hash_text(state->environment, *variable);
}

static bool has_thread(const struct process_resources *state, int thread)
{
    bool found = false;
    for (int t = 0; t < state->num_threads && !found; t++)
        found = state->threads[t] == thread;
    return found;
}

bool process_gained_threads(const struct process_resources *before,
                            const struct process_resources *after)
{
    bool gained = after->all_threads > before->all_threads;
    for (int t = 0; t < after->num_threads && !gained; t++)
        gained = !has_thread(before, after->threads[t]);
    return gained;
}

bool process_keeps_thread(const struct process_resources *before,
                          const struct process_resources *after,
                          const struct process_resources *now)
{
    bool kept = false;
    for (int t = 0; t < after->num_threads && !kept; t++)
        kept = !has_thread(before, after->threads[t]) && has_thread(now, after->threads[t]);
    return kept;
}

const char *process_gained(const struct process_resources *before,
                           const struct process_resources *after)
{
    if (process_gained_threads(before, after))
        return "a thread";
    for (int f = 0; f < after->num_fds; f++) {
        bool known = false;
        for (int b = 0; b < before->num_fds && !known; b++)
            known = before->fds[b] == after->fds[f];
        if (!known)
            return "an open file";
    }
    return before->environment != after->environment ? "another environment" : NULL;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

void process_memory_take(struct process_memory *memory)
{
    *memory = (struct process_memory){0, 0};
#if !HAS_SANITIZER
#ifdef __GLIBC__
    struct mallinfo2 info = mallinfo2();
    memory->heap = info.uordblks + info.hblkhd;
#endif
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%llu", &pages) == 1)
        memory->space = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    if (file)
        fclose(file);
#endif
}
