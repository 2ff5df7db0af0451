/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost check-child: the process that opens the plugin, started by check/suite/sandbox.c: reads
 * questions, a line each, and writes answers, a line each, until there are no more.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* getline */
#endif
#include "host/check/suite/child.h"

#include <errno.h>
#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host/cmd/commands.h"
#include "host/cmd/exit_codes.h"

/* Dies with its parent, leaves no core file, and adopts processes that lose their parent. What
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

/* A case takes and releases megabytes, thousands of times over: pages that went back to the kernel in between would
 * cost a fault each. */
static void keep_released_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
#endif
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

/* false when there is no parent to answer. */
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

#define AT(member) offsetof(struct check_params, member)

static const struct option_row options[] = {
    OPTION_ROW_TEXT("backend", "NAME", AT(backend), "look at this backend alone"),
    OPTION_ROW_LIST("with", "OTHER.so", AT(with), "load this plugin too"),
    OPTION_ROW_LIST("option", "KEY=VALUE", AT(options), "of the backends that declare it"),
    OPTION_ROW_VALUE("seed", "N", AT(seed), "of the suite", OPTION_UINT64),
    OPTION_ROW_SWITCH("exhaustive", AT(exhaustive), "all combinations"),
    OPTION_ROW_VALUE("repeat", "N", AT(repeat), "runs of each numeric case",
                     .read = params_read_repeat, .accepted = PARAMS_ACCEPTS_REPEAT),
    OPTION_END,
};

static int run(struct arguments *arguments)
{
    struct check_params *params = arguments->values;
    struct check_trail *trail = prepare();
    FILE *questions = trail ? fdopen(CHILD_FD_QUESTIONS, "r") : NULL;
    if (!questions) {
        arguments_complain(arguments, "started only by `attnhost check`");
        return EXIT_USAGE;
    }
    params->plugin = arguments->target;
    keep_released_memory();
    struct check_child *child = check_child_create(params, trail);
    char *line = NULL;
    size_t size = 0;
    while (child && getline(&line, &size, questions) > 0 && answer(child, line))
        ;
    free(line);
    fclose(questions);
    check_child_destroy(child);
    return child ? EXIT_GOOD : EXIT_RUN_TIME;
}

const struct command command_check_child = {
    .name = "check-child",
    .usage = "PLUGIN.so [OPTION]...",
    .names = "plugin file",
    .about = "Answers the questions of `attnhost check`, which starts it, about a plugin.\n",
    .options = options,
    .ending = "",
    .size = sizeof(struct check_params),
    .run = run,
};
