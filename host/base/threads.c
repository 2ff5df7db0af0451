/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.c: how jobs are published to workers, and how workers sleep.
 *
 * A job is published in one atomic word:
 *
 *   bit 0        OPEN: workers may still join
 *   bits 1..15   workers that have joined and not left
 *   bits 16..63  number of the job
 *
 * A worker joins by adding one to an open word and leaves by taking it off again. The caller closes
 * the word when no task is left, and waits for those who joined, not for all: a thread that wakes
 * up late finds the word closed and causes no delay.
 *
 * A thread sleeps under `mutex` and is counted in `sleepers` before it reads the word for the last
 * time; a thread that changes the word reads `sleepers` afterwards. Both are sequentially
 * consistent, so one of the two sees the other. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* sched_getaffinity */
#endif
#include "host/base/threads.h"

#include "host/base/limits.h"
#include "host/base/error.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPEN       UINT64_C(1)
#define JOINED_ONE UINT64_C(2)
#define JOINED_ALL UINT64_C(0xfffe)
#define JOB_SHIFT  16

/* About 10 microseconds of pauses: longer than the serial work between two layers usually takes,
 * shorter than a wake-up from sleep costs on both sides. */
#define SPINS 400

#define CACHE_LINE 64

/* Bytes for a handler of signals, with room for the widest registers. */
#define ALTERNATE_STACK ((size_t)1 << 16)

struct threads {
    uint32_t num_workers;  /* threads, the caller included */
    uint32_t num_borrowed; /* workers of the runner; 0 = as many as the pool has */
    uint32_t
        spins; /* 0 if threads outnumber CPUs: a spinning thread would keep others from running */

    pthread_mutex_t callers; /* held during a job */

    pthread_mutex_t mutex; /* of the two conditions */
    pthread_cond_t published;
    pthread_cond_t left;

    _Alignas(CACHE_LINE) _Atomic uint64_t word;
    _Atomic uint32_t sleepers;
    _Atomic bool caller_sleeps;
    _Atomic bool stop;

    /* The job; written before it is published. */
    attn_task task;
    void *arg;
    int64_t num_tasks;
    threads_runner runner; /* NULL = this pool */
    void *runner_ctx;
    _Alignas(CACHE_LINE) _Atomic int64_t next;
    _Alignas(CACHE_LINE) _Atomic attn_status status;

    struct worker {
        struct threads *threads;
        uint32_t index;
        pthread_t thread;
        void *stack; /* its alternate one, of ALTERNATE_STACK bytes; NULL = no memory for it */
    } workers[];     /* [num_workers]; the first one is the calling thread */
};

/* Is this thread running a task? Nesting would wait for itself. */
static _Thread_local bool in_task;

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- A job ----------------------------------------------------------------------------------- */

static void run_tasks(struct threads *threads, uint32_t worker)
{
    in_task = true;
    while (atomic_load_explicit(&threads->status, memory_order_relaxed) == ATTN_OK) {
        int64_t i = atomic_fetch_add_explicit(&threads->next, 1, memory_order_relaxed);
        if (i >= threads->num_tasks)
            break;
        attn_status status = threads->task(threads->arg, i, worker);
        attn_status none = ATTN_OK;
        if (status != ATTN_OK)
            atomic_compare_exchange_strong(&threads->status, &none, status);
    }
    in_task = false;
}

/* Join the job if it is open and not the one with number *seen. */
static bool join(struct threads *threads, uint64_t *seen)
{
    uint64_t word = atomic_load(&threads->word);
    while (word & OPEN && word >> JOB_SHIFT != *seen) {
        if (atomic_compare_exchange_weak(&threads->word, &word, word + JOINED_ONE)) {
            *seen = word >> JOB_SHIFT;
            return true;
        }
    }
    return false;
}

static void leave(struct threads *threads)
{
    uint64_t word = atomic_fetch_sub(&threads->word, JOINED_ONE) - JOINED_ONE;
    if ((word & (OPEN | JOINED_ALL)) == 0 && atomic_load(&threads->caller_sleeps)) {
        pthread_mutex_lock(&threads->mutex);
        pthread_cond_signal(&threads->left);
        pthread_mutex_unlock(&threads->mutex);
    }
}

/* ---- Workers --------------------------------------------------------------------------------- */

/* Until there is a job to join (true) or the pool ends (false). */
static bool wait_for_job(struct threads *threads, uint64_t *seen)
{
    for (uint32_t spin = 0; spin < threads->spins; spin++) {
        if (join(threads, seen))
            return true;
        pause_cpu();
    }
    bool joined = false;
    pthread_mutex_lock(&threads->mutex);
    atomic_fetch_add(&threads->sleepers, 1);
    while (!(joined = join(threads, seen)) && !atomic_load(&threads->stop))
        pthread_cond_wait(&threads->published, &threads->mutex);
    atomic_fetch_sub(&threads->sleepers, 1);
    pthread_mutex_unlock(&threads->mutex);
    return joined;
}

/* Give the thread an alternate signal stack unless it has one, so that the handler of fatal signals
 * can report a stack overflow. The starter of the thread allocates it: the thread itself may start
 * during a watched call in which allocating is a fault. */
static bool use_alternate_stack(void *memory)
{
    stack_t stack;
    if (!memory || sigaltstack(NULL, &stack) != 0 || !(stack.ss_flags & SS_DISABLE))
        return false;
    stack = (stack_t){.ss_sp = memory, .ss_size = ALTERNATE_STACK};
    return sigaltstack(&stack, NULL) == 0;
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    uint64_t seen = 0;
    const stack_t none = {.ss_flags = SS_DISABLE};
    bool is_used = use_alternate_stack(worker->stack);
    while (wait_for_job(worker->threads, &seen)) {
        run_tasks(worker->threads, worker->index);
        leave(worker->threads);
    }
    if (is_used)
        sigaltstack(&none, NULL);
    return NULL;
}

/* ---- Caller ---------------------------------------------------------------------------------- */

static void publish(struct threads *threads)
{
    uint64_t job = (atomic_load(&threads->word) >> JOB_SHIFT) + 1;
    atomic_store(&threads->word, job << JOB_SHIFT | OPEN);
    uint32_t sleepers = atomic_load(&threads->sleepers);
    if (sleepers == 0)
        return;
    pthread_mutex_lock(&threads->mutex);
    if (threads->num_tasks - 1 >= (int64_t)sleepers)
        pthread_cond_broadcast(&threads->published);
    else
        for (int64_t i = 1; i < threads->num_tasks; i++)
            pthread_cond_signal(&threads->published);
    pthread_mutex_unlock(&threads->mutex);
}

static bool all_left(struct threads *threads)
{
    return (atomic_load(&threads->word) & JOINED_ALL) == 0;
}

static void close_and_wait(struct threads *threads)
{
    atomic_fetch_and(&threads->word, ~OPEN);
    for (uint32_t spin = 0; spin < threads->spins && !all_left(threads); spin++)
        pause_cpu();
    if (all_left(threads))
        return;
    pthread_mutex_lock(&threads->mutex);
    atomic_store(&threads->caller_sleeps, true);
    while (!all_left(threads))
        pthread_cond_wait(&threads->left, &threads->mutex);
    atomic_store(&threads->caller_sleeps, false);
    pthread_mutex_unlock(&threads->mutex);
}

void threads_set_runner(struct threads *threads, threads_runner run, void *ctx)
{
    threads->runner = run;
    threads->runner_ctx = ctx;
}

/* A job that a runner runs. */
struct foreign_job {
    attn_task task;
    void *arg;
    uint32_t num_workers;
};

/* Marks the thread that runs a task, whichever it is: calls from within the task are refused. */
static attn_status run_foreign_task(void *arg, int64_t index, uint32_t worker)
{
    const struct foreign_job *job = arg;
    if (worker >= job->num_workers)
        return ATTN_INVALID_ARGUMENT;
    bool before = in_task;
    in_task = true;
    attn_status status = job->task(job->arg, index, worker);
    in_task = before;
    return status;
}

static attn_status run_elsewhere(struct threads *threads, int64_t num_tasks, attn_task task,
                                 void *arg)
{
    struct foreign_job job = {task, arg, threads_num_workers(threads)};
    return threads->runner(threads->runner_ctx, num_tasks, run_foreign_task, &job);
}

/* By the pool; `callers` is held. */
static attn_status run_job(struct threads *threads, int64_t num_tasks, attn_task task, void *arg)
{
    threads->task = task;
    threads->arg = arg;
    threads->num_tasks = num_tasks;
    atomic_store_explicit(&threads->next, 0, memory_order_relaxed);
    atomic_store_explicit(&threads->status, ATTN_OK, memory_order_relaxed);
    bool shared = num_tasks > 1 && threads->num_workers > 1;
    if (shared)
        publish(threads);
    run_tasks(threads, 0);
    if (shared)
        close_and_wait(threads);
    return atomic_load(&threads->status);
}

attn_status threads_for(struct threads *threads, int64_t num_tasks, attn_task task, void *arg)
{
    if (in_task)
        return ATTN_BAD_STATE;
    if (num_tasks < 0 || !task)
        return ATTN_INVALID_ARGUMENT;
    if (num_tasks == 0)
        return ATTN_OK;
    pthread_mutex_lock(&threads->callers);
    attn_status status = threads->runner ? run_elsewhere(threads, num_tasks, task, arg)
                                         : run_job(threads, num_tasks, task, arg);
    pthread_mutex_unlock(&threads->callers);
    return status;
}

attn_status threads_for_here(int64_t num_tasks, attn_task task, void *arg)
{
    if (in_task)
        return ATTN_BAD_STATE;
    if (num_tasks < 0 || !task)
        return ATTN_INVALID_ARGUMENT;
    attn_status status = ATTN_OK;
    in_task = true;
    for (int64_t i = 0; i < num_tasks && status == ATTN_OK; i++)
        status = task(arg, i, 0);
    in_task = false;
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Processors that this process may use: those of its mask, as far as its cgroups let it. */
static uint32_t count_cpus(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (count <= 0) /* more CPUs than cpu_set_t has room for */
        count = online > 0 ? (int)online : 1;
    uint32_t quota = limits_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && quota < (uint32_t)count)
        count = (int)quota;
    return count < THREADS_MAX ? (uint32_t)count : THREADS_MAX;
}

bool threads_start_one(pthread_t *thread, void *(*body)(void *arg), void *arg)
{
    static const int of_the_thread[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t s = 0; s < sizeof of_the_thread / sizeof *of_the_thread; s++)
        sigdelset(&others, of_the_thread[s]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    int why = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why != 0)
        errno = why;
    return why == 0;
}

static attn_status start_workers(struct threads *threads, uint32_t num_threads)
{
    attn_status status = ATTN_OK;
    for (uint32_t i = 1; i < num_threads && status == ATTN_OK; i++) {
        struct worker *worker = &threads->workers[i];
        worker->threads = threads;
        worker->index = i;
        worker->stack = malloc(ALTERNATE_STACK);
        if (threads_start_one(&worker->thread, work, worker)) {
            threads->num_workers++;
        } else {
            free(worker->stack);
            status = ATTN_OUT_OF_HOST_MEMORY;
        }
    }
    return status;
}

/* A pool with one worker, the caller. */
static attn_status make(uint32_t num_threads, struct threads **threads, attn_error *error)
{
    if (num_threads > THREADS_MAX)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%u threads: accepted 0..%d", num_threads,
                         THREADS_MAX);
    void *memory;
    size_t size = sizeof(struct threads) + num_threads * sizeof(struct worker);
    if (posix_memalign(&memory, CACHE_LINE, size) != 0)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "threads: out of memory");
    struct threads *made = memset(memory, 0, size);
    made->num_workers = 1;
    pthread_mutex_init(&made->callers, NULL);
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->published, NULL);
    pthread_cond_init(&made->left, NULL);
    *threads = made;
    return ATTN_OK;
}

attn_status threads_create(uint32_t num_threads, struct threads **threads, attn_error *error)
{
    uint32_t num_cpus = count_cpus();
    struct threads *made = NULL;
    if (num_threads == 0)
        num_threads = num_cpus;
    attn_status status = make(num_threads, &made, error);
    if (status != ATTN_OK)
        return status;
    made->spins = num_threads <= num_cpus ? SPINS : 0;
    if (start_workers(made, num_threads) != ATTN_OK) {
        const char *why = strerror(errno);
        uint32_t started = made->num_workers;
        threads_destroy(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "threads: thread %u of %u: %s; accepted: as many as ulimit -u, pids.max "
                         "of the cgroup and memory allow",
                         started + 1, num_threads, why);
    }
    *threads = made;
    return ATTN_OK;
}

attn_status threads_borrow(uint32_t num_threads, threads_runner run, void *ctx,
                           struct threads **threads, attn_error *error)
{
    if (num_threads == 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "parallel_for with num_threads 0: accepted: 1..%d, the workers it has",
                         THREADS_MAX);
    attn_status status = make(num_threads, threads, error);
    if (status == ATTN_OK) {
        (*threads)->num_borrowed = num_threads;
        threads_set_runner(*threads, run, ctx);
    }
    return status;
}

void threads_destroy(struct threads *threads)
{
    if (!threads)
        return;
    pthread_mutex_lock(&threads->mutex);
    atomic_store(&threads->stop, true);
    pthread_cond_broadcast(&threads->published);
    pthread_mutex_unlock(&threads->mutex);
    for (uint32_t i = 1; i < threads->num_workers; i++) {
        pthread_join(threads->workers[i].thread, NULL);
        free(threads->workers[i].stack);
    }
    pthread_cond_destroy(&threads->left);
    pthread_cond_destroy(&threads->published);
    pthread_mutex_destroy(&threads->mutex);
    pthread_mutex_destroy(&threads->callers);
    free(threads);
}

uint32_t threads_num_workers(const struct threads *threads)
{
    return threads->num_borrowed ? threads->num_borrowed : threads->num_workers;
}
