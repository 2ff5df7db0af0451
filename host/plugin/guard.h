/* SPDX-License-Identifier: Apache-2.0
 *
 * guard.h: the plugin call that this thread is in.
 *
 * Every call of a plugin's code stands between guard_enter() and guard_leave(), so that a plugin
 * that ends the process there, by exit() or by a crash, can be named (cmd/warden.h does), and what
 * the call changed in the process is found and undone:
 *
 *   after every call            rounding and denormals
 *   after those outside a step  the whole FPU control word, and the state that guard_watch
 *                               compares; that belongs to the process, so the command sets
 *                               guard_watch, and an embedded library does not
 *   after a step's plan         the same, once in GUARD_STEPS steps
 *
 * A forward pays about 4 ns for it.
 *
 * Each change is reported once for a plugin. Calls nest: a composite calls its children. */
#ifndef HOST_PLUGIN_GUARD_H
#define HOST_PLUGIN_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "attn_services.h"
#include "host/base/fpu.h"

/* The owner of the called code. Borrowed members live as long as the calls. */
struct guard_party {
    const char *file;    /* the plugin's */
    const char *backend; /* its name in the configuration; NULL = the plugin as such */
};

enum { GUARD_NO_LAYER = -1 };

struct guard_call {
    const struct guard_party *party;
    const char *entry; /* "forward_decode"; static */
    int32_t layer;     /* GUARD_NO_LAYER = the call is not about one */
    bool is_hot;       /* part of a step, once a layer */
    uint64_t fpu;      /* when it was entered */
    uint32_t home;     /* *guard_home then */
    struct guard_call *outer;
};

/* The innermost call of this thread, or NULL. Readable in a signal handler. */
extern _Thread_local struct guard_call *guard_current
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* A copy for guard_describe(), not on a stack, which a plugin may have unmapped. */
struct guard_copy {
    struct guard_party party;
    struct guard_call call;
};
extern _Thread_local struct guard_copy guard_copy
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* guard_current's copy, where that is not NULL. */
const struct guard_call *guard_copied(void);

/* Compares the state of the process after a call, or NULL. Set before the first plugin is loaded.
 */
typedef void (*guard_watcher)(const struct guard_call *call);
extern guard_watcher guard_watch __attribute__((visibility("hidden")));

/* Prepares a thread for a task that runs on it, each time; or NULL. Set with guard_watch. */
extern void (*guard_before_task)(void) __attribute__((visibility("hidden")));

/* A mark of this process: memory that the kernel wipes in a child, however it was forked. */
extern const volatile uint32_t *guard_home __attribute__((visibility("hidden")));

/* From now on, `returned` is called in a forked child that returns from a plugin call which its
 * parent entered; it does not return. Before the first plugin is loaded; without effect on Linux
 * before 4.14. */
void guard_watch_children(void (*returned)(const struct guard_call *call));

/* In a child. */
void guard_end_child(const struct guard_call *call);

/* "bad: forward_decode of layer 3 (/path/bad.so)"; cut where it does not fit. Calls nothing that a
 * signal handler may not call. Returns `text`. */
const char *guard_describe(const struct guard_call *call, char *text, size_t size);

/* Ignore changes, for a caller that looks for them itself. For the whole process. */
void guard_let_be(void);

/* Report, once for each plugin and `kind` (a small number), that a call has changed `what`, and
 * whether it was restored. */
void guard_report(const struct guard_call *call, unsigned int kind, const char *what,
                  bool is_restored);

/* The kind of guard_report() that the guard uses itself; others are above. */
enum { GUARD_KIND_FPU, GUARD_KIND_ALIGNMENT, GUARD_KINDS_OF_OTHERS };

/* Compare all of the FPU's control word; put it back and report. */
void guard_check_fpu(const struct guard_call *call);

/* After a call that is not hot. */
void guard_check_all(const struct guard_call *call);

/* Before a report: compare the state since the last check of steps, and blame the plugin that was
 * called last outside of forwards. Its party must still exist. */
void guard_settle(void);

/* After the plan of a step. */
enum { GUARD_STEPS = 16 };
void guard_check_sometimes(const struct guard_call *call);

static inline void guard_set_current(struct guard_call *call)
{
    guard_current = call;
    if (!call)
        return;
    guard_copy.party = *call->party;
    guard_copy.call.entry = call->entry;
    guard_copy.call.layer = call->layer;
}

static inline void guard_push(struct guard_call *call, const struct guard_party *party,
                              const char *entry, int32_t layer, bool is_hot)
{
    call->party = party;
    call->entry = entry;
    call->layer = layer;
    call->is_hot = is_hot;
    call->fpu = is_hot && fpu_sums_as_default() ? FPU_DEFAULT : fpu_control();
    call->home = *guard_home;
    call->outer = guard_current;
    guard_set_current(call);
}

static inline void guard_check_home(const struct guard_call *call)
{
    if (__builtin_expect(call->home != *guard_home, 0))
        guard_end_child(call);
}

static inline void guard_enter(struct guard_call *call, const struct guard_party *party,
                               const char *entry)
{
    guard_push(call, party, entry, GUARD_NO_LAYER, false);
}

static inline void guard_leave(struct guard_call *call)
{
    guard_check_home(call);
    guard_check_all(call);
    guard_set_current(call->outer);
}

/* The same for a call of a step. */
static inline void guard_enter_hot(struct guard_call *call, const struct guard_party *party,
                                   const char *entry, int32_t layer)
{
    guard_push(call, party, entry, layer, true);
}

static inline void guard_leave_hot(struct guard_call *call)
{
    guard_check_home(call);
    if (__builtin_expect(call->fpu != FPU_DEFAULT || !fpu_sums_as_default(), 0))
        guard_check_fpu(call);
    guard_set_current(call->outer);
}

/* A task that a plugin passes to parallel_for: each worker runs it within the plugin call of this
 * thread. `run` gets a task of our own for that. */
typedef attn_status (*guard_runner)(void *ctx, int64_t num_tasks, attn_task task, void *arg);
attn_status guard_parallel_for(guard_runner run, void *ctx, int64_t num_tasks, attn_task task,
                               void *arg);

#endif /* HOST_PLUGIN_GUARD_H */
