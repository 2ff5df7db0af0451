/* SPDX-License-Identifier: Apache-2.0
 *
 * interrupt.c: the signal handlers, and the flag that jobs poll.
 */
#include "host/base/interrupt.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "host/base/clock.h"

/* A terminal, or timeout(1), may send a signal twice, once to the process and once to its group. */
#define TWICE_NS 250000000

static volatile sig_atomic_t seen;
static volatile int64_t seen_ns;

static void (*on_second)(int number);

void interrupt_set_second(void (*handler)(int number))
{
    on_second = handler;
}

static void note(int number)
{
    if (!seen) {
        seen_ns = clock_now_ns();
        seen = number;
    } else if (clock_now_ns() - seen_ns > TWICE_NS) {
        signal(number, SIG_DFL);
        if (on_second)
            on_second(number);
        raise(number); /* when this handler has returned */
    }
}

void interrupt_take(void)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note}, before; /* without SA_RESTART: waits end */
    sigemptyset(&action.sa_mask);
    for (size_t s = 0; s < sizeof taken / sizeof *taken; s++)
        if (sigaction(taken[s], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(taken[s], &action, NULL);
}

int interrupt_seen(void)
{
    return seen;
}
