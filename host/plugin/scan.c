/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.c: starting of the scanner, and reading of its verdict.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* pipe2, POSIX_SPAWN_SETPGROUP */
#endif
#include "host/plugin/scan.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host/base/clock.h"
#include "host/plugin/loader.h"
#include "host/plugin/scan_cache.h"
#include "host/base/log.h"
#include "host/base/text.h"

extern char **environ;

static const char *scanner;
static _Atomic double limit_s = 10;
enum {
    SOURCE_FACTOR = 12
}; /* a source imports libraries that take seconds, or many on a cold disk */

static double limit_of(const char *file)
{
    return loader_is_source(file) ? SOURCE_FACTOR * limit_s : limit_s;
}

/* Files that survived, in the order in which this process opens them: a file is scanned together
 * with these, since a corrupt one may be harmless alone. */
enum { MAX_COMPANY = 64 };
static struct {
    pthread_mutex_t mutex;
    char *files[MAX_COMPANY];
    int count;
    uint64_t hash;
} company = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void scan_configure(const char *program)
{
    scanner = program;
}

void scan_set_limit(double seconds)
{
    limit_s = seconds;
}

/* ---- The process ----------------------------------------------------------------------------- */

enum { OUT, ERR, NUM_PIPES };

/* A scan that is going on. */
struct scan {
    pid_t process;
    int pipes[NUM_PIPES];
    char said[NUM_PIPES][4096]; /* the end of what it prints */
    size_t length[NUM_PIPES];
};

static void say_unscanned(const char *file, int why)
{
    char message[512];
    snprintf(message, sizeof message,
             "%.300s: no process could be started to open it first (%s); this process opens it",
             file, strerror(why));
    host_log_write_newest(ATTN_LOG_WARNING, message);
}

static bool start(const char *file, struct scan *scan)
{
    int ends[NUM_PIPES][2] = {{-1, -1}, {-1, -1}};
    char *words[3 + MAX_COMPANY + 1] = {(char *)(uintptr_t)scanner, "scan",
                                        (char *)(uintptr_t)file};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    bool good = pipe2(ends[OUT], O_CLOEXEC) == 0 && pipe2(ends[ERR], O_CLOEXEC) == 0;
    int why = good ? 0 : errno;
    for (int c = 0; c < company.count; c++)
        words[3 + c] = company.files[c];
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[OUT][1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, ends[ERR][1], STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP); /* to be killed as a whole */
    if (good)
        why = posix_spawn(&scan->process, scanner, &files, &attributes, words, environ);
    good = why == 0;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    for (int p = 0; p < NUM_PIPES; p++) {
        scan->pipes[p] = good ? ends[p][0] : -1;
        if (ends[p][1] >= 0)
            close(ends[p][1]);
        if (!good && ends[p][0] >= 0)
            close(ends[p][0]);
    }
    if (!good)
        say_unscanned(file, why);
    return good;
}

/* Read what is there; false at the end. The first half is dropped when there is no room. */
static bool listen(struct scan *scan, int p)
{
    size_t room = sizeof scan->said[p] - 1 - scan->length[p];
    if (room == 0) {
        size_t half = sizeof scan->said[p] / 2;
        memmove(scan->said[p], scan->said[p] + half, scan->length[p] - half);
        scan->length[p] -= half;
        room = half;
    }
    ssize_t count = read(scan->pipes[p], scan->said[p] + scan->length[p], room);
    if (count > 0)
        scan->length[p] += (size_t)count;
    scan->said[p][scan->length[p]] = '\0';
    return count > 0 || (count < 0 && errno == EINTR);
}

/* Until the scanner has closed its stdout and stderr, or `end`; false when the time is over. A
 * process that it leaves running may hold them open, so only the scanner's own end counts. */
static bool follow(struct scan *scan, int64_t end_ns)
{
    struct pollfd wait[NUM_PIPES] = {{.fd = scan->pipes[OUT], .events = POLLIN},
                                     {.fd = scan->pipes[ERR], .events = POLLIN}};
    while (wait[OUT].fd >= 0 || wait[ERR].fd >= 0) {
        int64_t left = end_ns - clock_now_ns();
        if (left <= 0)
            return false;
        siginfo_t info = {.si_pid = 0};
        int milliseconds = left > 50000000 ? 50 : (int)(left / 1000000) + 1;
        int ready = poll(wait, NUM_PIPES, milliseconds);
        for (int p = 0; p < NUM_PIPES; p++)
            if (ready > 0 && wait[p].fd >= 0 && wait[p].revents && !listen(scan, p))
                wait[p].fd = -1;
        bool gone = waitid(P_PID, (id_t)scan->process, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                    info.si_pid == scan->process;
        if (gone && ready == 0)
            return true;
    }
    return true;
}

static void end(struct scan *scan)
{
    kill(-scan->process, SIGKILL);
    while (waitpid(scan->process, NULL, 0) < 0 && errno == EINTR)
        ;
    for (int p = 0; p < NUM_PIPES; p++)
        close(scan->pipes[p]);
}

/* ---- Its verdict ----------------------------------------------------------------------------- */

/* The part of the warden's last message that names the plugin and the cause; NULL without a
 * message. */
static char *last_words(struct scan *scan, const char *after)
{
    char *found = NULL, *next = strstr(scan->said[ERR], after);
    for (; next; next = strstr(next, after))
        found = next += strlen(after);
    if (found)
        found[strcspn(found, "\n")] = '\0';
    return found;
}

/* How a process without a message ended, as its parent sees it: by a system call of its own, or by
 * a signal that no handler can catch. */
static const char *silent_end(const struct scan *scan, char text[64])
{
    const struct timespec pause = {.tv_nsec = 1000000};
    siginfo_t info = {.si_pid = 0};
    for (int tries = 0; tries < 100 && info.si_pid == 0; tries++) { /* its streams close earlier */
        waitid(P_PID, (id_t)scan->process, &info, WEXITED | WNOHANG | WNOWAIT);
        if (info.si_pid == 0)
            nanosleep(&pause, NULL);
    }
    const char *name =
        info.si_pid && info.si_code != CLD_EXITED ? sigabbrev_np(info.si_status) : NULL;
    if (name)
        snprintf(text, 64, "SIG%s", name);
    else if (info.si_pid)
        snprintf(text, 64, "a system call, with exit code %d", info.si_status);
    else
        snprintf(text, 64, "unknown means");
    return text;
}

static void judge(struct scan *scan, const char *file, bool in_time, struct scan_verdict *verdict)
{
    const char *words = in_time ? last_words(scan, "the process was ended by ") : NULL;
    char how[64];
    *verdict = (struct scan_verdict){.survived = false};
    /* Effects of a plugin at the end of the process come after the scanner's message. */
    if (in_time && !words && strcmp(scan->said[OUT], SCAN_SURVIVED "\n") == 0) {
        verdict->survived = true;
    } else if (!in_time) {
        words = last_words(scan, "was ended by SIGABRT in ");
        text_format(verdict->reason, sizeof verdict->reason, "it did not end within %g s: %s",
                    limit_of(file), words ? words : "in an unknown place");
    } else {
        snprintf(verdict->reason, sizeof verdict->reason, "it ended the process by %s",
                 words ? words : silent_end(scan, how));
    }
}

/* false if it cannot be scanned. */
static bool scan(const char *file, struct scan_verdict *verdict)
{
    struct scan scan = {.process = 0};
    if (!start(file, &scan))
        return false;
    bool in_time = follow(&scan, clock_now_ns() + (int64_t)(limit_of(file) * 1e9));
    if (!in_time) {
        kill(scan.process, SIGABRT); /* its handler reports the current call */
        follow(&scan, clock_now_ns() + 500000000);
    }
    judge(&scan, file, in_time, verdict);
    end(&scan);
    return true;
}

static attn_status tell(const char *file, const struct scan_verdict *verdict, bool kept,
                        attn_error *error)
{
    char path[4096];
    if (verdict->survived)
        return ATTN_OK;
    return host_fail(error, ATTN_INTERNAL, "%s: opened in a process of its own, %s%s%s%s", file,
                     verdict->reason, kept ? " (remembered in " : "",
                     kept ? scan_cache_path(path) : "", kept ? ")" : "");
}

static attn_status find_or_scan(const char *file, attn_error *error)
{
    struct scan_key key;
    struct scan_verdict verdict;
    if (!scan_key_make(file, company.hash, &key))
        return ATTN_OK;
    if (scan_cache_find(file, &key, &verdict))
        return tell(file, &verdict, true, error);
    if (!scan(file, &verdict))
        return ATTN_OK;
    scan_cache_keep(file, &key, &verdict);
    return tell(file, &verdict, false, error);
}

static void join_company(const char *file)
{
    if (loader_is_source(file))
        return; /* no object: there is nothing to be opened */
    for (int c = 0; c < company.count; c++)
        if (strcmp(company.files[c], file) == 0)
            return;
    char *copy = company.count < MAX_COMPANY ? strdup(file) : NULL;
    if (!copy)
        return;
    company.files[company.count++] = copy;
    company.hash = scan_company_add(company.hash, file);
}

attn_status scan_file(const char *file, attn_error *error)
{
    if (!scanner)
        return ATTN_OK;
    pthread_mutex_lock(&company.mutex);
    attn_status status = find_or_scan(file, error);
    if (status == ATTN_OK)
        join_company(file);
    pthread_mutex_unlock(&company.mutex);
    return status;
}
