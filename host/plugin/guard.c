/* SPDX-License-Identifier: Apache-2.0
 *
 * guard.c: the thread's current call, and the checks around it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* MADV_WIPEONFORK */
#endif
#include "host/plugin/guard.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host/base/log.h"

_Thread_local struct guard_call *guard_current;
_Thread_local struct guard_copy guard_copy;
guard_watcher guard_watch;
void (*guard_before_task)(void);

const struct guard_call *guard_copied(void)
{
    guard_copy.call.party = &guard_copy.party;
    return &guard_copy.call;
}

/* ---- Words ----------------------------------------------------------------------------------- */

struct cursor {
    char *text;
    size_t size, length;
};

static void append(struct cursor *to, const char *text)
{
    while (*text && to->length + 1 < to->size)
        to->text[to->length++] = *text++;
    to->text[to->length] = '\0';
}

static void append_number(struct cursor *to, int32_t number)
{
    char digits[12];
    size_t at = sizeof digits - 1;
    uint32_t rest = number < 0 ? 0u - (uint32_t)number : (uint32_t)number;
    digits[at] = '\0';
    do
        digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    append(to, number < 0 ? "-" : "");
    append(to, digits + at);
}

const char *guard_describe(const struct guard_call *call, char *text, size_t size)
{
    struct cursor to = {text, size, 0};
    text[0] = '\0';
    if (call->party->backend) {
        append(&to, call->party->backend);
        append(&to, ": ");
    }
    append(&to, call->entry);
    if (call->layer != GUARD_NO_LAYER) {
        append(&to, " of layer ");
        append_number(&to, call->layer);
    }
    append(&to, " (");
    append(&to, call->party->file);
    append(&to, ")");
    return text;
}

/* ---- Reports --------------------------------------------------------------------------------- */

/* A plugin that was reported; never removed. */
struct culprit {
    struct culprit *next;
    unsigned int kinds; /* bit by bit */
    char file[];
};

static pthread_mutex_t culprits_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct culprit *culprits;

static struct culprit *require_culprit(const char *file)
{
    for (struct culprit *culprit = culprits; culprit; culprit = culprit->next)
        if (strcmp(culprit->file, file) == 0)
            return culprit;
    size_t size = strlen(file) + 1;
    struct culprit *made = malloc(sizeof *made + size);
    if (!made)
        return NULL;
    memcpy(made->file, file, size);
    made->kinds = 0;
    made->next = culprits;
    culprits = made;
    return made;
}

static bool is_first(const char *file, unsigned int kind)
{
    pthread_mutex_lock(&culprits_mutex);
    struct culprit *culprit = require_culprit(file);
    bool first = !culprit || !(culprit->kinds >> kind & 1);
    if (culprit)
        culprit->kinds |= 1u << kind;
    pthread_mutex_unlock(&culprits_mutex);
    return first;
}

void guard_report(const struct guard_call *call, unsigned int kind, const char *what,
                  bool is_restored)
{
    char where[512], message[900];
    if (!is_first(call->party->file, kind))
        return;
    snprintf(message, sizeof message, "%s: defect of the plugin (ERR-03): %s; it %s",
             guard_describe(call, where, sizeof where), what,
             is_restored ? "was put back" : "cannot be put back");
    host_log_write_newest(ATTN_LOG_WARNING, message);
}

/* ---- Children -------------------------------------------------------------------------------- */

static const volatile uint32_t no_home;
const volatile uint32_t *guard_home = &no_home;
static void (*returned_from)(const struct guard_call *call);

void guard_watch_children(void (*returned)(const struct guard_call *call))
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    uint32_t *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, size, MADV_WIPEONFORK) != 0)
        return;
    *page = 1;
    returned_from = returned;
    guard_home = page;
}

void guard_end_child(const struct guard_call *call)
{
    returned_from(call);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static bool let_be;

void guard_let_be(void)
{
    let_be = true;
}

void guard_check_fpu(const struct guard_call *call)
{
    char what[160];
    uint64_t now = fpu_control();
    if (now == call->fpu || let_be)
        return;
    fpu_set_control(call->fpu);
    snprintf(what, sizeof what,
             "the FPU's control word (rounding, denormals, traps) is 0x%llx, before: 0x%llx",
             (unsigned long long)now, (unsigned long long)call->fpu);
    guard_report(call, GUARD_KIND_FPU, what, true);
}

static const struct guard_party *last_party;

void guard_check_all(const struct guard_call *call)
{
    if (fpu_clear_alignment_check() && !let_be) /* first: later code may make unaligned accesses */
        guard_report(call, GUARD_KIND_ALIGNMENT,
                     "the processor's check of alignment (flag AC) is on", true);
    guard_check_fpu(call);
    if (guard_watch && !let_be)
        guard_watch(call);
}

void guard_settle(void)
{
    const struct guard_call call = {last_party, "a step", GUARD_NO_LAYER, .fpu = fpu_control()};
    if (last_party)
        guard_check_all(&call);
}

void guard_check_sometimes(const struct guard_call *call)
{
    static _Atomic unsigned int steps;
    last_party = call->party;
    if (steps++ % GUARD_STEPS == GUARD_STEPS - 1)
        guard_check_all(call);
}

/* ---- On workers ------------------------------------------------------------------------------ */

struct guarded_job {
    attn_task task;
    void *arg;
    const struct guard_call *call;
};

static attn_status run_guarded(void *arg, int64_t task, uint32_t worker)
{
    const struct guarded_job *job = arg;
    struct guard_call call;
    guard_enter_hot(&call, job->call->party, job->call->entry, job->call->layer);
    if (guard_before_task)
        guard_before_task();
    attn_status status = job->task(job->arg, task, worker);
    guard_leave_hot(&call);
    return status;
}

attn_status guard_parallel_for(guard_runner run, void *ctx, int64_t num_tasks, attn_task task,
                               void *arg)
{
    struct guarded_job job = {task, arg, guard_current};
    return job.call && task ? run(ctx, num_tasks, run_guarded, &job)
                            : run(ctx, num_tasks, task, arg);
}
