/* SPDX-License-Identifier: Apache-2.0
 *
 * log.h: messages for the user, one line each, one at a time.
 */
#ifndef HOST_BASE_LOG_H
#define HOST_BASE_LOG_H

#include "attnhost.h"

#include <pthread.h>

struct host_log {
    attnhost_log write; /* never NULL */
    void *ctx;
    uint32_t level; /* messages above it are dropped */
    pthread_mutex_t mutex;
    struct host_log *next; /* of all logs of the process, newest first */
    uint32_t writers;      /* calls of host_log_write_newest() that are in it */
};

/* `write` NULL = lines on stderr. The struct must not move until host_log_finish(). */
void host_log_init(struct host_log *log, attnhost_log write, void *ctx, uint32_t level);

/* Waits for other threads' host_log_write_newest(). Not from within `write`. */
void host_log_finish(struct host_log *log);

/* Newlines and control characters in the message become spaces. Any thread. */
void host_log_write(struct host_log *log, uint32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Write to the newest log, for messages that belong to no host; dropped if there is no log. `write`
 * may create hosts. Any thread. */
void host_log_write_newest(uint32_t level, const char *message);

#endif /* HOST_BASE_LOG_H */
