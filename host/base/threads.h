/* SPDX-License-Identifier: Apache-2.0
 *
 * threads.h: one pool of threads for everything that computes on the CPU.
 *
 * Workers live as long as the pool and wait between jobs, first spinning for a few microseconds,
 * then asleep. The thread that calls threads_for() is worker 0 and works too; the others are 1 ..
 * num_workers - 1, each always the same thread. Tasks are claimed one by one, so uneven ones
 * balance.
 */
#ifndef HOST_BASE_THREADS_H
#define HOST_BASE_THREADS_H

#include <pthread.h>
#include <stdbool.h>

#include "attn_services.h"

struct threads;

enum { THREADS_MAX = 4096 };

/* A pool of num_threads threads, the caller of threads_for() included; 0 = as many as there are
 * CPUs this process may run on. INVALID_ARGUMENT above THREADS_MAX, OUT_OF_HOST_MEMORY if the
 * system gives no more threads. */
attn_status threads_create(uint32_t num_threads, struct threads **threads, attn_error *error);

/* Let `run` run the jobs of this pool: in any order, on any threads and with any workers below
 * num_workers, but never two tasks with the same worker at once; NULL = the pool runs them. For an
 * engine's own threads, and for checks that results do not depend on the order. No job may be
 * running. */
typedef attn_status (*threads_runner)(void *ctx, int64_t num_tasks, attn_task task, void *arg);
void threads_set_runner(struct threads *threads, threads_runner run, void *ctx);

/* A pool without threads of its own, for such a runner with num_threads workers.
 * INVALID_ARGUMENT for none or above THREADS_MAX, OUT_OF_HOST_MEMORY. */
attn_status threads_borrow(uint32_t num_threads, threads_runner run, void *ctx,
                           struct threads **threads, attn_error *error);

/* No job is running. NULL is accepted. */
void threads_destroy(struct threads *threads);

/* How many tasks may run at once, >= 1. */
uint32_t threads_num_workers(const struct threads *threads);

/* Run task(arg, i, worker) for each i in [0, num_tasks), in any order, and wait for all of them.
 * The first status that is not ATTN_OK is returned; tasks that have not begun then never begin.
 * BAD_STATE from within a task of any pool; INVALID_ARGUMENT for num_tasks < 0. Calls of several
 * threads are served one after the other. What the tasks wrote is seen by the caller. */
attn_status threads_for(struct threads *threads, int64_t num_tasks, attn_task task, void *arg);

/* The same without a pool: all tasks on this thread, in order, as worker 0. */
attn_status threads_for_here(int64_t num_tasks, attn_task task, void *arg);

/* Start a thread, which the caller joins. Signals are left to the embedding program's threads,
 * except those that the thread's own instructions raise. False and errno if the system starts none.
 */
bool threads_start_one(pthread_t *thread, void *(*body)(void *arg), void *arg);

#endif /* HOST_BASE_THREADS_H */
