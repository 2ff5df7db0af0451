/* SPDX-License-Identifier: Apache-2.0
 *
 * check_child.c: the sub-command that sandbox.c starts: reads questions, a line each, and writes
 * answers, a line each, until there are no more.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* getline */
#endif
#include "host/check/suite/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host/cmd/exit_codes.h"

/* Dies with its parent, leaves no core file, and is told of processes that lost their parent. What
 * the plugin starts does not get our descriptors. */
static struct check_trail *prepare(void)
{
    const struct rlimit none = {0, 0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setrlimit(RLIMIT_CORE, &none);
    for (int fd = CHILD_FD_ANSWERS; fd <= CHILD_FD_TRAIL; fd++)
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
            return NULL;
    void *trail = mmap(NULL, sizeof(struct check_trail), PROT_READ | PROT_WRITE, MAP_SHARED,
                       CHILD_FD_TRAIL, 0);
    return trail == MAP_FAILED ? NULL : trail;
}

static bool write_line(const char *text)
{
    size_t length = strlen(text);
    char *line = malloc(length + 1);
    bool good = line != NULL;
    if (good) {
        memcpy(line, text, length);
        line[length] = '\n';
    }
    for (size_t done = 0; good && done <= length;) {
        ssize_t count = write(CHILD_FD_ANSWERS, line + done, length + 1 - done);
        good = count > 0 || (count < 0 && errno == EINTR);
        done += count > 0 ? (size_t)count : 0;
    }
    free(line);
    return good;
}

/* false when there is nobody to answer. */
static bool answer(struct check_child *child, const char *line)
{
    cJSON *question = cJSON_Parse(line);
    cJSON *said = question ? check_child_answer(child, question) : NULL;
    char *text = said ? cJSON_PrintUnformatted(said) : NULL;
    bool good = text && write_line(text);
    cJSON_free(text);
    cJSON_Delete(said);
    cJSON_Delete(question);
    return good;
}

int cmd_check_child(int argc, char **argv)
{
    struct check_params params = {.command = "check-child", .help = ""};
    struct check_trail *trail = prepare();
    FILE *questions = trail ? fdopen(CHILD_FD_QUESTIONS, "r") : NULL;
    if (!questions) {
        fputs("attnhost check-child: started by `attnhost check` alone\n", stderr);
        return EXIT_USAGE;
    }
    int code = params_parse(&params, argc, argv);
    struct check_child *child = code == PARAMS_GO_ON ? check_child_create(&params, trail) : NULL;
    char *line = NULL;
    size_t size = 0;
    while (child && getline(&line, &size, questions) > 0 && answer(child, line))
        ;
    free(line);
    fclose(questions);
    check_child_destroy(child);
    params_finish(&params);
    return child ? EXIT_GOOD : EXIT_RUN_TIME;
}
