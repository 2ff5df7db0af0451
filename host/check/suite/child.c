/* SPDX-License-Identifier: Apache-2.0
 *
 * child.c: the child's loop: read a request, call the plugin, answer.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* waitid */
#endif
#include "host/check/suite/child_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "host/check/suite/case_id.h"
#include "host/check/cases/grid.h"
#include "host/check/cases/kind.h"
#include "host/check/suite/json.h"
#include "host/check/spy/spy.h"
#include "host/plugin/guard.h"
#include "host/base/clock.h"
#include "host/select/matrix.h"
#include "host/select/platform.h"
#include "host/base/text.h"

/* ---- Answers --------------------------------------------------------------------------------- */

static void add_text(cJSON *answer, const char *name, const char *text)
{
    cJSON_AddStringToObject(answer, name, text ? text : "");
}

/* Only here: an answer has "outcome" exactly once. */
static void conclude(cJSON *answer, enum check_outcome outcome, const char *why)
{
    cJSON_AddNumberToObject(answer, "outcome", outcome);
    add_text(answer, "why", why);
}

/* ---- open, subject --------------------------------------------------------------------------- */

static void answer_open(struct check_child *child, cJSON *answer)
{
    HOST_ERROR(error);
    enum check_outcome outcome = child_open(child, &error);
    conclude(answer, outcome, host_error_text(&error));
    if (outcome != CHECK_GOOD)
        return;
    const attn_plugin *plugin = &child->host->registry.plugins[child->plugin]->table;
    add_text(answer, "file", child->file);
    add_text(answer, "name", plugin->name);
    add_text(answer, "version", plugin->version);
    add_text(answer, "vendor", plugin->vendor);
    add_text(answer, "build", plugin->build);
    cJSON_AddNumberToObject(answer, "abi_major", plugin->abi_major);
    cJSON_AddNumberToObject(answer, "abi_minor", plugin->abi_minor);
    cJSON *backends = cJSON_AddArrayToObject(answer, "backends");
    for (uint32_t s = 0; s < child->num_subjects; s++)
        cJSON_AddItemToArray(backends, cJSON_CreateString(child->subjects[s].type->name));
}

/* The subject of a question; NULL with the reason in the answer. */
static struct child_subject *require_subject(struct check_child *child, const cJSON *question,
                                             const char *backend, cJSON *answer)
{
    struct child_subject *subject = child_subject(child, backend, json_text(question, "device"));
    if (subject && subject->outcome == CHECK_GOOD)
        return subject;
    conclude(answer, subject ? subject->outcome : CHECK_USAGE,
             subject ? host_error_text(&subject->error) : "no such backend");
    return NULL;
}

/* The subject of an id's check: the file, or a backend. NULL with the reason in the answer. */
static const struct check_subject *require_view(struct check_child *child, const cJSON *question,
                                                const struct check **check, int32_t *index,
                                                cJSON *answer)
{
    char backend[CASE_ID_SIZE];
    if (!case_id_parse(json_text(question, "id"), backend, check, index)) {
        conclude(answer, CHECK_USAGE, "no such check");
        return NULL;
    }
    if ((*check)->needs & CHECK_ONCE)
        return &child->file_view;
    const struct child_subject *subject = require_subject(child, question, backend, answer);
    return subject ? &subject->view : NULL;
}

static void answer_subject(struct check_child *child, const cJSON *question, cJSON *answer)
{
    char device[16], platform[32], about[256];
    const struct child_subject *subject =
        require_subject(child, question, json_text(question, "backend"), answer);
    if (!subject)
        return;
    const attn_device *info = &subject->device->info;
    child_device_text(subject->device, device);
    platform_text(info, platform, sizeof platform);
    if (info->type == ATTN_DEVICE_CUDA)
        snprintf(about, sizeof about, "%s, driver %u.%u%s", platform, info->driver_version / 1000,
                 info->driver_version % 1000 / 10, subject->view.fake_device ? " (fake)" : "");
    else if (host_error_text(&subject->missing)[0])
        snprintf(about, sizeof about, "%s, which it refuses: %s", platform,
                 host_error_text(&subject->missing));
    else
        snprintf(about, sizeof about, "%s", platform);
    conclude(answer, CHECK_GOOD, "");
    add_text(answer, "device", device);
    add_text(answer, "about", about);
    add_text(answer, "missing", host_error_text(&subject->missing));
}

/* ---- count ----------------------------------------------------------------------------------- */

/* The fake driver runs host functions that its user defines. Only the user knows which backends
 * have theirs there. */
static bool fake_has_kernels(const char *backend)
{
    const char *list = getenv("ATTNHOST_FAKE_KERNELS"), *item;
    size_t length;
    while (list && (item = text_next_item(&list, &length)))
        if (length == strlen(backend) && strncmp(item, backend, length) == 0)
            return true;
    return false;
}

/* The reason why the check cannot run on this subject; NULL = it can. */
static const char *misses(const struct check_subject *subject, const struct check *check)
{
    if (check->needs & CHECK_NEEDS_CHILD && !(subject->type->flags & ATTN_BACKEND_COMPOSITE))
        return "the backend is not a composite";
    if (check->needs & CHECK_NEEDS_CUDA && subject->device->type != ATTN_DEVICE_CUDA)
        return "the backend is checked on the CPU; accepted: a CUDA device";
    if (check->needs & CHECK_NEEDS_COMPUTE && subject->fake_device &&
        !fake_has_kernels(subject->backend))
        return "the CUDA driver is the tests' fake, which does not run this backend's kernels";
    return NULL;
}

/* Which cases there are follows from the grid, once it has been asked for. */
static void add_grid(cJSON *answer, const struct check_subject *view)
{
    const struct grid *grid = view->grid ? *view->grid : NULL;
    if (!grid)
        return;
    cJSON_AddNumberToObject(answer, "grid_points", grid->num_points);
    add_text(answer, "grid_sha256", grid->digest);
}

static void answer_count(struct check_child *child, const cJSON *question, cJSON *answer)
{
    const struct check *check;
    int32_t index, count = -1;
    const struct check_subject *view = require_view(child, question, &check, &index, answer);
    if (!view)
        return;
    const char *skip = check->needs & CHECK_ONCE ? NULL : misses(view, check);
    if (!skip)
        count = kind_count(check, view);
    if (count == 0)
        skip = "it has no case for this backend";
    conclude(answer, CHECK_GOOD, "");
    cJSON_AddNumberToObject(answer, "count", skip ? -1 : count);
    add_text(answer, "skip", skip);
    add_grid(answer, view);
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Errors of work that is still running on the device belong to this case. */
static bool settle(const struct device *device)
{
    if (!device || device->type != ATTN_DEVICE_CUDA)
        return false;
    device_synchronize(device, NULL, NULL);
    return device_is_lost(device);
}

static int64_t call(struct check_run *run, bool *lost)
{
    const struct device *device = run->subject->device;
    int64_t start = clock_now_ns();
    if (device && device_enter(device, NULL)) {
        check_fail(run, "the context of the device cannot be entered");
        *lost = device_is_lost(device);
        return 0;
    }
    run->check->run(run);
    int64_t ns = clock_now_ns() - start;
    *lost = settle(device);
    if (device)
        device_leave(device);
    if (*lost && run->code == CHECK_FAIL)
        run->code = CHECK_DEVICE_LOST;
    if (run->code == CHECK_SKIP && !run->text[0]) {
        run->code = CHECK_FAIL;
        snprintf(run->text, sizeof run->text, "the check was skipped without a reason");
    }
    return ns;
}

static void run_case(struct check_run *run, cJSON *answer)
{
    bool lost = false;
    int64_t ns = call(run, &lost);
    conclude(answer, CHECK_GOOD, "");
    add_text(answer, "code", check_code_name(run->code));
    add_text(answer, "text", run->text);
    cJSON_AddNumberToObject(answer, "ns", (double)ns);
    cJSON_AddBoolToObject(answer, "lost", lost);
}

static void answer_run(struct check_child *child, const cJSON *question, cJSON *answer)
{
    struct check_run run = {.trail = child->trail,
                            .without = (uint32_t)json_number(question, "without")};
    run.subject = require_view(child, question, &run.check, &run.index, answer);
    if (!run.subject)
        return;
    if (!text_parse_uint64(json_text(question, "seed"), &run.seed)) {
        conclude(answer, CHECK_USAGE, "no such case");
        return;
    }
    run.index = run.index < 0 ? 0 : run.index;
    run_case(&run, answer);
}

/* ---- matrix ---------------------------------------------------------------------------------- */

static void answer_matrix(struct check_child *child, const cJSON *question, cJSON *answer)
{
    const struct child_subject *subject =
        require_subject(child, question, json_text(question, "backend"), answer);
    if (!subject)
        return;
    conclude(answer, CHECK_GOOD, "");
    cJSON_AddItemToObject(answer, "rows", matrix_ask(child->host, subject->type));
}

/* ---- quit ------------------------------------------------------------------------------------ */

static void answer_quit(struct check_child *child, cJSON *answer)
{
    siginfo_t info = {0};
    child_close(child);
    conclude(answer, CHECK_GOOD, "");
    /* Zombies too: a process that starts another also waits for it. */
    cJSON_AddBoolToObject(answer, "processes",
                          waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0);
}

/* ---- The child ------------------------------------------------------------------------------- */

static void add_changes(cJSON *answer, char changes[PROCESS_STATE_KINDS][256])
{
    cJSON *list = cJSON_AddArrayToObject(answer, "changes");
    for (int kind = 0; kind < PROCESS_STATE_KINDS; kind++)
        cJSON_AddItemToArray(list, cJSON_CreateString(changes[kind]));
}

static void answer_any(struct check_child *child, const cJSON *question, cJSON *answer)
{
    const char *ask = json_text(question, "ask");
    if (strcmp(ask, "open") == 0)
        answer_open(child, answer);
    else if (strcmp(ask, "subject") == 0)
        answer_subject(child, question, answer);
    else if (strcmp(ask, "count") == 0)
        answer_count(child, question, answer);
    else if (strcmp(ask, "run") == 0)
        answer_run(child, question, answer);
    else if (strcmp(ask, "matrix") == 0)
        answer_matrix(child, question, answer);
    else
        answer_quit(child, answer);
}

/* Flush the plugin's output before the answer. */
cJSON *check_child_answer(struct check_child *child, const cJSON *question)
{
    char changes[PROCESS_STATE_KINDS][256];
    cJSON *answer = cJSON_CreateObject();
    process_state_take(&child->before);
    answer_any(child, question, answer);
    process_state_restore(&child->before, changes);
    fflush(stdout);
    fflush(stderr);
    add_changes(answer, changes);
    return answer;
}

/* A plugin's log message is a sign of life. */
static void take_log(void *ctx, uint32_t level, const char *message)
{
    struct check_trail *trail = ctx;
    (void)level, (void)message;
    check_trail_live(trail);
}

struct check_child *check_child_create(const struct check_params *params, struct check_trail *trail)
{
    struct check_child *child = calloc(1, sizeof *child);
    attnhost_params host = {.struct_size = sizeof host,
                            .log_level = ATTN_LOG_WARNING,
                            .log = trail ? take_log : NULL,
                            .log_ctx = trail};
    guard_let_be();          /* the suite itself compares the process state around a question */
    spy_install(NULL, NULL); /* before anything opens the driver; without it checks are skipped */
    if (!child || attnhost_create(&host, &child->host, NULL)) {
        free(child);
        return NULL;
    }
    child->params = params;
    child->trail = trail;
    return child;
}

void check_child_destroy(struct check_child *child)
{
    if (!child)
        return;
    child_close(child);
    free(child->subjects);
    free(child->file);
    free(child);
}
