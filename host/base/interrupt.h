/* SPDX-License-Identifier: Apache-2.0
 *
 * interrupt.h: SIGINT, SIGTERM and SIGHUP as requests to stop: a job polls for one, finishes what
 * it is doing, and reports. The second signal ends the process at once.
 */
#ifndef HOST_BASE_INTERRUPT_H
#define HOST_BASE_INTERRUPT_H

/* Install the handlers; ignored signals stay ignored. For a process of our own, not for an
 * embedding program. */
void interrupt_take(void);

/* Called in the handler of a second signal, before the process ends. */
void interrupt_set_second(void (*handler)(int number));

/* The signal that came, or 0. */
int interrupt_seen(void);

#endif /* HOST_BASE_INTERRUPT_H */
