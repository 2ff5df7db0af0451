/* SPDX-License-Identifier: Apache-2.0
 *
 * silence.c: a child's processor time, and whether any of its threads is runnable.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* clock_getcpuclockid */
#endif
#include "host/check/suite/silence.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "host/base/clock.h"

/* Of all threads of a process; 0 if there is none. */
static int64_t processor_time(pid_t child)
{
    clockid_t clock;
    struct timespec used;
    if (clock_getcpuclockid(child, &clock) != 0 || clock_gettime(clock, &used) != 0)
        return 0;
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* The state of a thread follows its name, which may hold anything. */
static bool is_thread_runnable(pid_t child, const char *thread)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/stat", (int)child, thread);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *end = strrchr(text, ')');
    return end && strlen(end) > 2 && (end[2] == 'R' || end[2] == 'D');
}

static bool is_runnable(pid_t child)
{
    char path[32];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/task", (int)child);
    DIR *threads = opendir(path);
    for (struct dirent *entry; threads && !found && (entry = readdir(threads));)
        found = entry->d_name[0] != '.' && is_thread_runnable(child, entry->d_name);
    if (threads)
        closedir(threads);
    return found;
}

void silence_begin(struct silence *silence, pid_t child)
{
    int64_t now = clock_now_ns();
    *silence = (struct silence){.began = now, .seen = now, .used = processor_time(child)};
}

int64_t silence_own(int64_t wall, int64_t used, bool is_runnable)
{
    if (used > 0)
        return used < wall ? used : wall;
    return is_runnable ? 0 : wall;
}

void silence_update(struct silence *silence, pid_t child)
{
    enum { LEAST = 5000000 }; /* a look at all threads is not for every wake-up */
    int64_t now = clock_now_ns(), wall = now - silence->seen;
    if (wall < LEAST)
        return;
    int64_t used = processor_time(child);
    silence->own += silence_own(wall, used - silence->used, is_runnable(child));
    silence->seen = now;
    silence->used = used;
}

int64_t silence_left(const struct silence *silence, int64_t inactivity)
{
    int64_t own = inactivity - silence->own;
    int64_t wall = SILENCE_WALL * inactivity - (silence->seen - silence->began);
    return own < wall ? own : wall;
}
