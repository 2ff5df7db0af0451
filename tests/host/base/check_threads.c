/* SPDX-License-Identifier: Apache-2.0
 *
 * check_threads.c: tasks on workers: each once, at the same time, errors and ends.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* pthread_setattr_default_np */
#endif
#include "host/base/threads.h"

#include "host/base/error.h"
#include "host/plugin/services.h"
#include "tests/tools/test_main.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_TASKS = 5000, MAX_WORKERS = 16 };

/* Results of tasks. */
struct notes {
    _Atomic int runs[MAX_TASKS];
    _Atomic int busy[MAX_WORKERS];
    _Atomic int overlaps;  /* two tasks at once with one worker id */
    _Atomic int strangers; /* worker ids out of range */
    pthread_t thread[MAX_WORKERS];
    _Atomic int moved; /* a worker id that changed its thread */
    uint32_t num_workers;
    int64_t plain[MAX_TASKS]; /* not atomic: the caller must see it */
};

static struct notes notes;

static void forget(uint32_t num_workers)
{
    memset(&notes, 0, sizeof notes);
    notes.num_workers = num_workers;
}

static void pause_for(long microseconds)
{
    struct timespec time = {.tv_nsec = microseconds * 1000};
    nanosleep(&time, NULL);
}

static attn_status note(void *arg, int64_t task, uint32_t worker)
{
    (void)arg;
    if (worker >= notes.num_workers) {
        notes.strangers++;
        return ATTN_OK;
    }
    if (atomic_fetch_add(&notes.busy[worker], 1) != 0)
        notes.overlaps++;
    notes.runs[task]++;
    notes.plain[task] = task * task;
    if (notes.thread[worker] && !pthread_equal(notes.thread[worker], pthread_self()))
        notes.moved++;
    notes.thread[worker] = pthread_self();
    atomic_fetch_sub(&notes.busy[worker], 1);
    return ATTN_OK;
}

static struct threads *make(uint32_t num_threads)
{
    struct threads *threads = NULL;
    ck_assert_int_eq(threads_create(num_threads, &threads, NULL), ATTN_OK);
    return threads;
}

TEST_OF(threads, every_task_runs_once)
{
    static const uint32_t sizes[] = {1, 2, 3, 7};
    static const int64_t counts[] = {0, 1, 2, 3, 6, 7, 8, 97, MAX_TASKS};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct threads *threads = make(sizes[s]);
        ck_assert_uint_eq(threads_num_workers(threads), sizes[s]);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            forget(sizes[s]);
            ck_assert_int_eq(threads_for(threads, counts[c], note, NULL), ATTN_OK);
            for (int64_t t = 0; t < MAX_TASKS; t++) {
                ck_assert_int_eq(notes.runs[t], t < counts[c]);
                ck_assert_int_eq(notes.plain[t], t < counts[c] ? t * t : 0);
            }
            ck_assert_int_eq(notes.overlaps, 0);
            ck_assert_int_eq(notes.strangers, 0);
        }
        threads_destroy(threads);
    }
}

TEST_OF(threads, workers_keep_their_ids)
{
    struct threads *threads = make(4);
    forget(4);
    for (int job = 0; job < 300; job++) {
        ck_assert_int_eq(threads_for(threads, 1 + job % 11, note, NULL), ATTN_OK);
        if (job % 30 == 0)
            pause_for(500); /* long enough to fall asleep */
    }
    ck_assert_int_eq(notes.moved, 0);
    ck_assert_int_eq(notes.overlaps, 0);
    ck_assert(notes.thread[0] && pthread_equal(notes.thread[0], pthread_self()));
    threads_destroy(threads);
}

/* Task i waits until task 1 - i has begun: only two threads at once can do that. */
static _Atomic int begun[2];

static attn_status meet(void *arg, int64_t task, uint32_t worker)
{
    (void)arg, (void)worker;
    begun[task] = 1;
    for (int tries = 0; tries < 20000 && !begun[1 - task]; tries++)
        pause_for(100);
    return begun[1 - task] ? ATTN_OK : ATTN_TIMEOUT;
}

TEST_OF(threads, tasks_run_at_the_same_time)
{
    struct threads *threads = make(2);
    for (int job = 0; job < 20; job++) {
        begun[0] = begun[1] = 0;
        ck_assert_int_eq(threads_for(threads, 2, meet, NULL), ATTN_OK);
        if (job % 5 == 0)
            pause_for(300);
    }
    threads_destroy(threads);
}

static attn_status fail_at(void *arg, int64_t task, uint32_t worker)
{
    (void)worker;
    notes.runs[task]++;
    return task == *(int64_t *)arg ? ATTN_TIMEOUT : ATTN_OK;
}

TEST_OF(threads, first_error_wins_and_stops_the_rest)
{
    int64_t bad = 3;
    struct threads *threads = make(1);
    forget(1);
    ck_assert_int_eq(threads_for(threads, 100, fail_at, &bad), ATTN_TIMEOUT);
    for (int64_t t = 0; t < 100; t++)
        ck_assert_int_eq(notes.runs[t], t <= bad); /* one thread goes in order */
    forget(1);
    ck_assert_int_eq(threads_for(threads, 5, note, NULL), ATTN_OK); /* it is no lasting error */
    threads_destroy(threads);

    threads = make(3);
    forget(3);
    ck_assert_int_eq(threads_for(threads, MAX_TASKS, fail_at, &bad), ATTN_TIMEOUT);
    for (int64_t t = 0; t < MAX_TASKS; t++)
        ck_assert_int_le(notes.runs[t], 1);
    threads_destroy(threads);
}

static attn_status nest(void *arg, int64_t task, uint32_t worker)
{
    (void)task, (void)worker;
    return threads_for(arg, 2, note, NULL);
}

TEST_OF(threads, nesting_is_refused)
{
    for (uint32_t size = 1; size <= 3; size++) {
        struct threads *threads = make(size);
        forget(size);
        ck_assert_int_eq(threads_for(threads, 1, nest, threads), ATTN_BAD_STATE);
        ck_assert_int_eq(threads_for(threads, 9, nest, threads), ATTN_BAD_STATE);
        for (int64_t t = 0; t < 2; t++)
            ck_assert_int_eq(notes.runs[t], 0);
        ck_assert_int_eq(threads_for(threads, 2, note, NULL), ATTN_OK);
        threads_destroy(threads);
    }
}

static attn_status nest_here(void *arg, int64_t task, uint32_t worker)
{
    (void)task, (void)worker;
    return arg ? threads_for(arg, 2, note, NULL) : threads_for_here(2, note, NULL);
}

static attn_status nest_here_in_pool(void *arg, int64_t task, uint32_t worker)
{
    (void)arg;
    return nest_here(NULL, task, worker);
}

TEST_OF(threads, on_this_thread)
{
    struct threads *threads = make(2);
    forget(1);
    ck_assert_int_eq(threads_for_here(7, note, NULL), ATTN_OK);
    for (int64_t t = 0; t < 7; t++)
        ck_assert_int_eq(notes.runs[t], 1);
    ck_assert_int_eq(threads_for_here(0, note, NULL), ATTN_OK);
    ck_assert_int_eq(threads_for_here(-1, note, NULL), ATTN_INVALID_ARGUMENT);
    forget(2);
    ck_assert_int_eq(threads_for_here(1, nest_here, NULL), ATTN_BAD_STATE);
    ck_assert_int_eq(threads_for_here(1, nest_here, threads), ATTN_BAD_STATE);
    ck_assert_int_eq(threads_for(threads, 3, nest_here_in_pool, NULL), ATTN_BAD_STATE);
    for (int64_t t = 0; t < 2; t++)
        ck_assert_int_eq(notes.runs[t], 0);
    ck_assert_int_eq(threads_for_here(2, note, NULL), ATTN_OK);
    threads_destroy(threads);
}

TEST_OF(threads, plugin_services_do_not_nest)
{
    attn_services *services = services_create_for_plugin();
    ck_assert_ptr_nonnull(services);
    forget(1);
    ck_assert_int_eq(services->parallel_for(services->ctx, 1, nest_here, NULL), ATTN_BAD_STATE);
    ck_assert_int_eq(services->parallel_for(services->ctx, 2, note, NULL), ATTN_OK);
    ck_assert_int_eq(notes.runs[1], 1);
    free(services);
}

TEST_OF(threads, bad_arguments)
{
    HOST_ERROR(error);
    struct threads *threads = NULL;
    ck_assert_int_eq(threads_create(THREADS_MAX + 1, &threads, &error.base), ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_null(threads);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "4097"));
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "0..4096"));
    threads = make(2);
    ck_assert_int_eq(threads_for(threads, -1, note, NULL), ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(threads_for(threads, 1, NULL, NULL), ATTN_INVALID_ARGUMENT);
    threads_destroy(threads);
    threads_destroy(NULL);
}

TEST_OF(threads, zero_means_all_cpus)
{
    struct threads *threads = make(0);
    uint32_t workers = threads_num_workers(threads);
    ck_assert_uint_ge(workers, 1);
    ck_assert_uint_le(workers, THREADS_MAX);
    threads_destroy(threads);
}

/* A separate job for each thread; the pool takes them in turn. */
struct caller {
    struct threads *threads;
    _Atomic int64_t sum;
    attn_status status;
};

static attn_status add(void *arg, int64_t task, uint32_t worker)
{
    (void)worker;
    atomic_fetch_add(&((struct caller *)arg)->sum, task);
    return ATTN_OK;
}

static void *call_often(void *arg)
{
    struct caller *caller = arg;
    for (int job = 0; job < 200 && caller->status == ATTN_OK; job++)
        caller->status = threads_for(caller->threads, 13, add, caller);
    return NULL;
}

TEST_OF(threads, several_callers)
{
    struct caller callers[3] = {0};
    pthread_t thread[3];
    struct threads *threads = make(3);
    for (int c = 0; c < 3; c++) {
        callers[c].threads = threads;
        ck_assert_int_eq(pthread_create(&thread[c], NULL, call_often, &callers[c]), 0);
    }
    for (int c = 0; c < 3; c++) {
        pthread_join(thread[c], NULL);
        ck_assert_int_eq(callers[c].status, ATTN_OK);
        ck_assert_int_eq(callers[c].sum, 200 * 78);
    }
    threads_destroy(threads);
}

/* A runner that begins at the end, as worker 2, and fails where the test says. */
struct backward {
    int64_t order[8];
    int count, runs;
    uint32_t worker;
    attn_status nested;
    struct threads *threads;
};

static attn_status note_backward(void *arg, int64_t task, uint32_t worker)
{
    struct backward *backward = arg;
    backward->order[backward->count++] = task;
    backward->worker = worker;
    backward->nested = threads_for(backward->threads, 1, note_backward, backward);
    return task == 1 ? ATTN_INTERNAL : ATTN_OK;
}

static attn_status run_backward(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    attn_status status = ATTN_OK;
    ((struct backward *)ctx)->runs++;
    while (num_tasks-- > 0 && status == ATTN_OK)
        status = task(arg, num_tasks, 2);
    return status;
}

TEST_OF(threads, a_runner_instead_of_the_pool)
{
    struct backward backward = {.threads = make(3)};
    threads_set_runner(backward.threads, run_backward, &backward);
    ck_assert_int_eq(threads_for(backward.threads, 4, note_backward, &backward), ATTN_INTERNAL);
    ck_assert_int_eq(backward.count, 3);
    for (int n = 0; n < 3; n++)
        ck_assert_int_eq(backward.order[n], 3 - n);
    ck_assert_uint_eq(backward.worker, 2);
    ck_assert_int_eq(backward.nested, ATTN_BAD_STATE);
    ck_assert_int_eq(threads_for(backward.threads, -1, note_backward, &backward),
                     ATTN_INVALID_ARGUMENT);
    threads_set_runner(backward.threads, NULL, NULL);
    struct caller caller = {.threads = backward.threads};
    ck_assert_int_eq(threads_for(backward.threads, 13, add, &caller), ATTN_OK);
    ck_assert_int_eq(caller.sum, 78);
    ck_assert_int_eq(backward.runs, 1);
    threads_destroy(backward.threads);
}

/* A task on a thread of the runner's own. */
struct elsewhere {
    attn_task task;
    void *arg;
    uint32_t worker;
    attn_status status;
};

static void *run_one(void *arg)
{
    struct elsewhere *one = arg;
    one->status = one->task(one->arg, 1, one->worker);
    return NULL;
}

static attn_status run_on_a_thread(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    struct elsewhere one = {task, arg, *(uint32_t *)ctx, ATTN_OK};
    pthread_t thread;
    ck_assert_int_eq(num_tasks, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_one, &one), 0);
    pthread_join(thread, NULL);
    return one.status;
}

/* Threads that are not the pool's: a task that nests is refused there too, and so is a worker that
 * plugins have no memory for. */
TEST_OF(threads, borrowed_threads)
{
    uint32_t worker = 2;
    struct backward backward = {.count = 0};
    HOST_ERROR(error);
    ck_assert_int_eq(threads_borrow(0, run_on_a_thread, &worker, &backward.threads, &error.base),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(threads_borrow(3, run_on_a_thread, &worker, &backward.threads, &error.base),
                     ATTN_OK);
    ck_assert_uint_eq(threads_num_workers(backward.threads), 3);
    ck_assert_int_eq(threads_for(backward.threads, 1, note_backward, &backward), ATTN_INTERNAL);
    ck_assert_int_eq(backward.nested, ATTN_BAD_STATE);
    ck_assert_int_eq(backward.count, 1);
    worker = 3;
    ck_assert_int_eq(threads_for(backward.threads, 1, note_backward, &backward),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(backward.count, 1);
    threads_destroy(backward.threads);
}

/* Stacks that do not fit in the address space. */
TEST_OF(threads, threads_that_the_system_refuses)
{
    struct threads *threads = NULL;
    pthread_attr_t before, large;
    HOST_ERROR(error);
    ck_assert_int_eq(pthread_getattr_default_np(&before), 0);
    ck_assert_int_eq(pthread_getattr_default_np(&large), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&large, (size_t)1 << 47), 0);
    ck_assert_int_eq(pthread_setattr_default_np(&large), 0);
    attn_status status = threads_create(3, &threads, &error.base);
    ck_assert_int_eq(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&large);
    ck_assert_int_eq(status, ATTN_OUT_OF_HOST_MEMORY);
    const bool is_full =
        strstr(host_error_text(&error), " of 3: Resource temporarily unavailable; ");
    const bool is_invalid =
        strstr(host_error_text(&error), " of 3: Invalid argument; "); /* valgrind */
    ck_assert_msg(is_full || is_invalid, "%s", host_error_text(&error));
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "accepted: as many as ulimit -u"));
}

TESTS("threads");
