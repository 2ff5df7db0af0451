/* SPDX-License-Identifier: Apache-2.0
 *
 * order_runner.h: the tasks of a job in unusual orders and by unusual workers, decided by the seed
 * alone, so that a fault is the same on an idle machine and on a busy one.
 *
 * ORDER_AMID has two tasks at work at once without any luck: the scratch is closed before a task,
 * and where the task has touched so many pages of it, other tasks are run to their end by another
 * worker, in another thread, before it goes on.
 */
#ifndef HOST_CHECK_RELATIONS_ORDER_RUNNER_H
#define HOST_CHECK_RELATIONS_ORDER_RUNNER_H

#include <stdint.h>

#include "attn_services.h"
#include "host/check/cases/forward_case_session.h"

enum { ORDER_WORKERS = 5 };

enum order {
    ORDER_REVERSED,    /* the last task first, all by the last worker */
    ORDER_INTERLEAVED, /* every other task, then the rest; workers in turn */
    ORDER_ONE_WORKER,  /* as they come, all by a worker in the middle */
    ORDER_IN_TURN,     /* as they come, each by another worker than the one before */
    ORDER_DELAYED,     /* each after the two that follow it */
    ORDER_SHUFFLED,    /* any order, any worker */
    ORDER_AMID,        /* and so on: one more for each number of pages */
    ORDERS = ORDER_AMID + 6
};

/* Initialised in place and never copied. */
struct order_runner {
    int order; /* enum order */
    uint64_t seed;
    int64_t jobs; /* so far */
};

/* Words for what an order does. */
const char *order_name(int order);

/* The scratch of this session is what ORDER_AMID closes; NULL = none any more. */
void order_watch(const struct case_session *session);

/* A threads_runner; ctx = struct order_runner. */
attn_status order_run(void *ctx, int64_t num_tasks, attn_task task, void *arg);

#endif /* HOST_CHECK_RELATIONS_ORDER_RUNNER_H */
