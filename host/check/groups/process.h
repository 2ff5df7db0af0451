/* SPDX-License-Identifier: Apache-2.0
 *
 * process.h: what this process holds of the system: threads, open files, environment, memory.
 */
#ifndef HOST_CHECK_GROUPS_PROCESS_H
#define HOST_CHECK_GROUPS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROCESS_MAX_FDS = 1024, PROCESS_MAX_THREADS = 1024 };

struct process_state {
    uint64_t fds[PROCESS_MAX_FDS]; /* number and target, hashed; ascending by number */
    int num_fds;
    int threads[PROCESS_MAX_THREADS]; /* their ids; a CUDA driver's own are left out */
    int num_threads;
    int all_threads;      /* those without a place in the list, too */
    uint64_t environment; /* hashed */
};

/* Look at /proc/self and the environment. */
void process_take(struct process_state *state);

/* NULL, or what `after` has that `before` has not (threads, open files), or has otherwise
 * (environment). */
const char *process_gained(const struct process_state *before, const struct process_state *after);

/* The same for threads alone. */
bool process_gained_threads(const struct process_state *before, const struct process_state *after);

/* Is a thread that came between these two still there? */
bool process_keeps_thread(const struct process_state *before, const struct process_state *after,
                          const struct process_state *now);

/* Bytes of the heap that are in use, and of address space. Under a sanitizer, whose allocator keeps
 * what was freed, both are 0. */
struct process_memory {
    uint64_t heap, space;
};
void process_memory_take(struct process_memory *memory);

#endif /* HOST_CHECK_GROUPS_PROCESS_H */
