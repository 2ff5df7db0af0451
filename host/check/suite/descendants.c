/* SPDX-License-Identifier: Apache-2.0
 *
 * descendants.c: finding and ending processes that were adopted.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "host/check/suite/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The parent of a process, as /proc/PID/stat gives it after the name, which may contain anything.
 */
static pid_t parent_of(const char *process)
{
    char path[280], text[512] = "";
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%s/stat", process);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && sscanf(name_end, ") %*c %d", &parent) == 1 ? parent : 0;
}

pid_t *descendants_list(size_t *count)
{
    pid_t *list = NULL, self = getpid();
    DIR *processes = opendir("/proc");
    *count = 0;
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || parent_of(entry->d_name) != self)
            continue;
        pid_t *grown = realloc(list, (*count + 1) * sizeof *list);
        if (!grown)
            break;
        list = grown;
        list[(*count)++] = (pid_t)atoi(entry->d_name);
    }
    if (processes)
        closedir(processes);
    return list;
}

static int is_stranger(pid_t process, const pid_t *strangers, size_t num_strangers)
{
    for (size_t s = 0; s < num_strangers; s++)
        if (strangers[s] == process)
            return 1;
    return 0;
}

void descendants_kill(const pid_t *strangers, size_t num_strangers)
{
    enum { ROUNDS = 1000 }; /* of parents whose children show up when they are gone */
    size_t killed = 1;
    for (int round = 0; round < ROUNDS && killed; round++) {
        size_t count;
        pid_t *list = descendants_list(&count);
        killed = 0;
        for (size_t c = 0; c < count; c++)
            if (!is_stranger(list[c], strangers, num_strangers)) {
                kill(list[c], SIGKILL);
                waitpid(list[c], NULL, 0);
                killed++;
            }
        free(list);
    }
}
