/* SPDX-License-Identifier: Apache-2.0
 *
 * log.c: formatting of log lines, and the callback that gets them.
 */
#include "host/base/log.h"
#include "host/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t logs_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t writer_left = PTHREAD_COND_INITIALIZER;
static struct host_log *logs;

static void write_to_stderr(void *ctx, uint32_t level, const char *message)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    (void)ctx;
    fprintf(stderr, "attnhost: %s: %s\n", names[level <= ATTN_LOG_DEBUG ? level : ATTN_LOG_DEBUG],
            message);
}

void host_log_init(struct host_log *log, attnhost_log write, void *ctx, uint32_t level)
{
    memset(log, 0, sizeof *log);
    log->write = write ? write : write_to_stderr;
    log->ctx = ctx;
    log->level = level;
    pthread_mutex_init(&log->mutex, NULL);
    pthread_mutex_lock(&logs_mutex);
    log->next = logs;
    logs = log;
    pthread_mutex_unlock(&logs_mutex);
}

void host_log_finish(struct host_log *log)
{
    pthread_mutex_lock(&logs_mutex);
    struct host_log **link = &logs;
    while (*link != log)
        link = &(*link)->next;
    *link = log->next;
    while (log->writers > 0)
        pthread_cond_wait(&writer_left, &logs_mutex);
    pthread_mutex_unlock(&logs_mutex);
    pthread_mutex_destroy(&log->mutex);
}

void host_log_write(struct host_log *log, uint32_t level, const char *format, ...)
{
    char message[1024];
    va_list args;
    if (level > log->level)
        return;
    va_start(args, format);
    text_vformat(message, sizeof message, format, args);
    va_end(args);
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    pthread_mutex_lock(&log->mutex);
    log->write(log->ctx, level, message);
    pthread_mutex_unlock(&log->mutex);
}

void host_log_write_newest(uint32_t level, const char *message)
{
    pthread_mutex_lock(&logs_mutex);
    struct host_log *log = logs;
    if (log)
        log->writers++;
    pthread_mutex_unlock(&logs_mutex);
    if (!log)
        return;
    host_log_write(log, level, "%s", message); /* the user's code: not under our mutex */
    pthread_mutex_lock(&logs_mutex);
    if (--log->writers == 0)
        pthread_cond_broadcast(&writer_left);
    pthread_mutex_unlock(&logs_mutex);
}
