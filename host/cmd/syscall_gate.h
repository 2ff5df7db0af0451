/* SPDX-License-Identifier: Apache-2.0
 *
 * syscall_gate.h: finds system calls by which a plugin's own code, not a function of the C library,
 * ends a thread. Linux 5.11 on x86-64 hands over the calls that come from outside a range of
 * addresses; elsewhere there is no gate, and all functions do nothing. */
#ifndef HOST_CMD_SYSCALL_GATE_H
#define HOST_CMD_SYSCALL_GATE_H

#include <signal.h>
#include <stdbool.h>

/* Have the calls of this thread handed over, as SIGSYS, from now on or again. */
void syscall_gate_close(void);

/* In a handler of SIGSYS: is it a call that ends the thread, or the process? *handed_over: it is one
 * of this thread, whatever it does. When the handler returns it is made, as are all that follow
 * until the gate is closed. */
bool syscall_gate_ends(const siginfo_t *info, void *context, bool *handed_over);

#endif /* HOST_CMD_SYSCALL_GATE_H */
