/* SPDX-License-Identifier: Apache-2.0
 *
 * order_runner.c: runners that execute a job's tasks in other orders and on other workers.
 */
#include "host/check/relations/order_runner.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host/base/mix.h"

enum { REGIONS = 2, AMID_TASKS = 2 };

/* After how many pages a task is held up. */
static const int amid_pages[ORDERS - ORDER_AMID] = {1, 2, 3, 4, 6, 9};

const char *order_name(int order)
{
    static const char *const names[] = {
        [ORDER_REVERSED] = "tasks in the opposite order, by one worker",
        [ORDER_INTERLEAVED] = "every other task first",
        [ORDER_ONE_WORKER] = "one worker for all tasks",
        [ORDER_IN_TURN] = "each task by another worker than the one before",
        [ORDER_DELAYED] = "each task after the two that follow it",
        [ORDER_SHUFFLED] = "tasks and workers in any order"};
    return order < ORDER_AMID ? names[order] : "tasks amid others";
}

/* ---- One after the other --------------------------------------------------------------------- */

/* Task number n of `count`, in this order. */
static int64_t task_at(const struct order_runner *runner, const int64_t *shuffled, int64_t n,
                       int64_t count)
{
    int64_t whole = count / 3 * 3, half = (count + 1) / 2;
    switch (runner->order) {
    case ORDER_REVERSED:
        return count - 1 - n;
    case ORDER_INTERLEAVED:
        return n < half ? 2 * n : 2 * (n - half) + 1;
    case ORDER_DELAYED:
        return n < whole ? n / 3 * 3 + (n + 1) % 3 : n;
    case ORDER_SHUFFLED:
        return shuffled[n];
    default:
        return n;
    }
}

static uint32_t worker_at(const struct order_runner *runner, int64_t n)
{
    uint64_t word = mix_stream(mix_absorb(runner->seed, (uint64_t)runner->jobs), (uint64_t)n);
    switch (runner->order) {
    case ORDER_REVERSED:
        return ORDER_WORKERS - 1;
    case ORDER_ONE_WORKER:
        return ORDER_WORKERS / 2;
    case ORDER_SHUFFLED:
        return (uint32_t)mix_below((uint32_t)(word >> 32), ORDER_WORKERS);
    default:
        return (uint32_t)((n + runner->jobs) % ORDER_WORKERS);
    }
}

static int64_t *shuffle(const struct order_runner *runner, int64_t count)
{
    int64_t *order = calloc((size_t)count, sizeof *order);
    uint64_t seed = mix_absorb(runner->seed, ~(uint64_t)runner->jobs);
    for (int64_t n = 0; order && n < count; n++) {
        uint32_t bits = (uint32_t)(mix_stream(seed, (uint64_t)n) >> 32);
        int64_t other = (int64_t)mix_below(bits, (uint64_t)n + 1);
        order[n] = order[other];
        order[other] = n;
    }
    return order;
}

static attn_status run_in_order(const struct order_runner *runner, int64_t num_tasks,
                                attn_task task, void *arg)
{
    int64_t *shuffled = shuffle(runner, num_tasks);
    attn_status status = shuffled ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
    for (int64_t n = 0; n < num_tasks && status == ATTN_OK; n++)
        status = task(arg, task_at(runner, shuffled, n, num_tasks), worker_at(runner, n));
    free(shuffled);
    return status;
}

/* ---- One amid another ------------------------------------------------------------------------ */

/* State for the signal handler; there is one such job at a time. */
static struct amid {
    char *begin[REGIONS], *end[REGIONS]; /* whole pages around the scratch */
    uintptr_t page;                      /* bytes */
    struct sigaction before;
    int pages; /* that may still be touched before the others have their turn */
    bool armed;

    pthread_t thread; /* which runs the others */
    sem_t go, done;
    bool stop;
    attn_task task;
    void *arg;
    int64_t next, num_tasks; /* tasks from `next` on have not begun */
    uint32_t worker;
    attn_status status;
} amid;

void order_watch(const struct case_session *session)
{
    amid.page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int n = 0; n < REGIONS; n++) {
        uint32_t region = ATTN_REGION(n ? ATTN_SPACE_HOST : ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH);
        uintptr_t base = session ? (uintptr_t)session->memory.memory.base[region] : 0;
        uintptr_t end = base + (session ? session->memory.memory.size[region] : 0);
        bool empty = base == end;
        amid.begin[n] = empty ? NULL : (char *)(base / amid.page * amid.page);
        amid.end[n] = empty ? NULL : (char *)((end + amid.page - 1) / amid.page * amid.page);
    }
}

static void open_or_close(bool open)
{
    amid.armed = !open;
    for (int n = 0; n < REGIONS; n++)
        if (amid.begin[n])
            mprotect(amid.begin[n], (size_t)(amid.end[n] - amid.begin[n]),
                     open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static bool is_watched(const char *at)
{
    for (int n = 0; n < REGIONS; n++)
        if (amid.begin[n] <= at && at < amid.end[n])
            return true;
    return false;
}

/* Tasks that have not begun, by another worker: it has a thread of its own, as workers do. */
static void run_others(void)
{
    for (int n = 0; n < AMID_TASKS && amid.next < amid.num_tasks && amid.status == ATTN_OK; n++)
        amid.status = amid.task(amid.arg, amid.next++, amid.worker);
}

static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        while (sem_wait(&amid.go) != 0)
            ;
        if (amid.stop)
            return NULL;
        run_others();
        sem_post(&amid.done);
    }
}

static void wait_for_others(void)
{
    sem_post(&amid.go);
    while (sem_wait(&amid.done) != 0)
        ;
}

/* A task has touched its scratch. Any other fault is raised again for its own handler. */
static void on_touch(int number, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    (void)number, (void)context;
    if (!amid.armed || !is_watched(at)) {
        sigaction(SIGSEGV, &amid.before, NULL);
        return;
    }
    if (--amid.pages > 0) {
        mprotect((void *)((uintptr_t)at / amid.page * amid.page), amid.page,
                 PROT_READ | PROT_WRITE);
        return;
    }
    open_or_close(true);
    wait_for_others();
}

static attn_status run_held_up(const struct order_runner *runner)
{
    int64_t held_up = 0;
    while (amid.next < amid.num_tasks && amid.status == ATTN_OK) {
        uint32_t worker = (uint32_t)((held_up + runner->jobs) % ORDER_WORKERS);
        int64_t own = amid.next++;
        amid.worker = (worker + 1 + (uint32_t)(held_up % (ORDER_WORKERS - 1))) % ORDER_WORKERS;
        amid.pages = amid_pages[runner->order - ORDER_AMID];
        open_or_close(false);
        attn_status status = amid.task(amid.arg, own, worker);
        open_or_close(true);
        amid.status = amid.status == ATTN_OK ? status : amid.status;
        held_up++;
    }
    return amid.status;
}

static attn_status run_amid(const struct order_runner *runner, int64_t num_tasks, attn_task task,
                            void *arg)
{
    struct sigaction action = {.sa_sigaction = on_touch, .sa_flags = SA_SIGINFO};
    amid.task = task;
    amid.arg = arg;
    amid.next = 0;
    amid.num_tasks = num_tasks;
    amid.status = ATTN_OK;
    amid.stop = false;
    sem_init(&amid.go, 0, 0);
    sem_init(&amid.done, 0, 0);
    if (pthread_create(&amid.thread, NULL, serve, NULL) != 0)
        return ATTN_OUT_OF_HOST_MEMORY;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &amid.before);
    attn_status status = run_held_up(runner);
    sigaction(SIGSEGV, &amid.before, NULL);
    amid.stop = true;
    sem_post(&amid.go);
    pthread_join(amid.thread, NULL);
    sem_destroy(&amid.go);
    sem_destroy(&amid.done);
    return status;
}

attn_status order_run(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    struct order_runner *runner = ctx;
    runner->jobs++;
    if (runner->order < ORDER_AMID)
        return run_in_order(runner, num_tasks, task, arg);
    return run_amid(runner, num_tasks, task, arg);
}
