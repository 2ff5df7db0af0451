/* SPDX-License-Identifier: Apache-2.0
 *
 * process_resources.h: this process's threads, open files, environment and memory.
 */
#ifndef HOST_CHECK_CASES_PROCESS_RESOURCES_H
#define HOST_CHECK_CASES_PROCESS_RESOURCES_H

#include <stdbool.h>
#include <stdint.h>

enum { PROCESS_MAX_FDS = 1024, PROCESS_MAX_THREADS = 1024 };

struct process_resources {
    uint64_t fds[PROCESS_MAX_FDS]; /* number and target, hashed; ascending by number */
    int num_fds;
    int threads[PROCESS_MAX_THREADS]; /* their ids; a CUDA driver's own are left out */
    int num_threads;
    int all_threads;      /* those without a place in the list, too */
    uint64_t environment; /* hashed */
};

/* Look at /proc/self and the environment. */
void process_take(struct process_resources *state);

/* NULL, or a thread or open file that only `after` has, or a difference in the environment. */
const char *process_gained(const struct process_resources *before,
                           const struct process_resources *after);

/* The same for threads alone. */
bool process_gained_threads(const struct process_resources *before,
                            const struct process_resources *after);

/* Is a thread that came between these two still there? */
bool process_keeps_thread(const struct process_resources *before,
                          const struct process_resources *after,
                          const struct process_resources *now);

/* Bytes of the heap that are in use, and of address space. Under a sanitizer, whose allocator keeps
 * what was freed, both are 0. */
struct process_memory {
    uint64_t heap, space;
};
void process_memory_take(struct process_memory *memory);

#endif /* HOST_CHECK_CASES_PROCESS_RESOURCES_H */
