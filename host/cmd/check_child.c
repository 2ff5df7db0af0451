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

static const struct option_row options[] = {
    {.name = "backend",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .place = offsetof(struct check_params, backend),
     .help = "look at this backend alone"},
    {.name = "with",
     .value = "OTHER.so",
     .kind = OPTION_LIST,
     .place = offsetof(struct check_params, with),
     .help = "load this plugin too"},
    {.name = "option",
     .value = "KEY=VALUE",
     .kind = OPTION_LIST,
     .place = offsetof(struct check_params, options),
     .help = "of the backends that declare it"},
    {.name = "seed",
     .value = "N",
     .kind = OPTION_VALUE,
     .place = offsetof(struct check_params, seed),
     .read = option_read_uint64,
     .accepted = OPTION_ACCEPTS_UINT64,
     .help = "of the suite"},
    {.name = "exhaustive",
     .kind = OPTION_SWITCH,
     .place = offsetof(struct check_params, exhaustive),
     .help = "all combinations"},
    {.name = "repeat",
     .value = "N",
     .kind = OPTION_VALUE,
     .place = offsetof(struct check_params, repeat),
     .read = params_read_repeat,
     .accepted = PARAMS_ACCEPTS_REPEAT,
     .help = "runs of each numeric case"},
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
    .about = "Answers what `attnhost check`, which starts it, asks about a plugin.\n",
    .options = options,
    .ending = "",
    .size = sizeof(struct check_params),
    .run = run,
};
