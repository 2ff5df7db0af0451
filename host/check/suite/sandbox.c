/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.c: starting, watching and killing of the child.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* memfd_create, strsignal */
#endif
#include "host/check/suite/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host/check/suite/json.h"
#include "host/check/suite/silence.h"
#include "host/base/clock.h"
#include "host/base/error.h"

enum {
    GRACE_MS = 1000,     /* between SIGTERM and SIGKILL */
    KILL_MS = 10000,     /* for SIGKILL to take effect */
    MAX_OUTPUT = 1 << 16 /* bytes kept of the output during a question */
};

/* ---- Processes that lost their parent -------------------------------------------------------- */

/* The parent of a process, as /proc/PID/stat gives it after the name, which may contain anything.
 */
static pid_t parent_of(const char *process)
{
    char path[280], text[512] = "";
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%s/stat", process);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && sscanf(name_end, ") %*c %d", &parent) == 1 ? parent : 0;
}

/* The children of this process, malloc'ed; NULL and 0 if there are none. */
static pid_t *list_descendants(size_t *count)
{
    pid_t *list = NULL, self = getpid();
    DIR *processes = opendir("/proc");
    *count = 0;
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || parent_of(entry->d_name) != self)
            continue;
        pid_t *grown = realloc(list, (*count + 1) * sizeof *list);
        if (!grown)
            break;
        list = grown;
        list[(*count)++] = (pid_t)atoi(entry->d_name);
    }
    if (processes)
        closedir(processes);
    return list;
}

static bool is_stranger(const struct sandbox *sandbox, pid_t process)
{
    for (size_t s = 0; s < sandbox->num_strangers; s++)
        if (sandbox->strangers[s] == process)
            return true;
    return false;
}

/* All children but strangers, and their children, which lose their parent and become ours. */
static void kill_descendants(const struct sandbox *sandbox)
{
    enum { ROUNDS = 1000 }; /* of parents whose children show up when they are gone */
    size_t killed = 1;
    for (int round = 0; round < ROUNDS && killed; round++) {
        size_t count;
        pid_t *list = list_descendants(&count);
        killed = 0;
        for (size_t c = 0; c < count; c++)
            if (!is_stranger(sandbox, list[c])) {
                kill(list[c], SIGKILL);
                waitpid(list[c], NULL, 0);
                killed++;
            }
        free(list);
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool share_trail(struct sandbox *sandbox)
{
    sandbox->trail_fd = memfd_create("attnhost-trail", MFD_CLOEXEC);
    if (sandbox->trail_fd < 0 || ftruncate(sandbox->trail_fd, sizeof *sandbox->trail) != 0)
        return false;
    void *trail = mmap(NULL, sizeof *sandbox->trail, PROT_READ | PROT_WRITE, MAP_SHARED,
                       sandbox->trail_fd, 0);
    sandbox->trail = trail == MAP_FAILED ? NULL : trail;
    return sandbox->trail != NULL;
}

static bool take_signals(struct sandbox *sandbox)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t s = 0; s < sizeof taken / sizeof *taken; s++)
        sigaddset(&set, taken[s]);
    sigprocmask(SIG_BLOCK, &set, &sandbox->mask_before);
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, &sandbox->pipe_before); /* a question to a dead child */
    sandbox->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return sandbox->signals >= 0;
}

attn_status sandbox_open(struct sandbox *sandbox, const struct check_params *params,
                         attn_error *error)
{
    memset(sandbox, 0, sizeof *sandbox);
    sandbox->params = params;
    sandbox->program = "/proc/self/exe";
    sandbox->questions = sandbox->answers = sandbox->output = -1;
    sandbox->trail_fd = sandbox->signals = -1;
    strbuf_init(&sandbox->heard);
    sandbox->deadline_ns =
        params->timeout > 0 ? clock_now_ns() + (int64_t)(params->timeout * 1e9) : INT64_MAX;
    if (params->in_process) {
        sandbox->inside = check_child_create(params, NULL);
        return sandbox->inside ? ATTN_OK
                               : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
    }
    sandbox->strangers = list_descendants(&sandbox->num_strangers);
    bool good = take_signals(sandbox);
    good = good && share_trail(sandbox) && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    return good
               ? ATTN_OK
               : host_fail(error, ATTN_INTERNAL, "children cannot be watched: %s", strerror(errno));
}

void sandbox_close(struct sandbox *sandbox)
{
    check_child_destroy(sandbox->inside);
    sandbox_kill(sandbox);
    strbuf_finish(&sandbox->heard);
    if (sandbox->trail)
        munmap(sandbox->trail, sizeof *sandbox->trail);
    if (sandbox->trail_fd >= 0)
        close(sandbox->trail_fd);
    /* A terminal, or timeout(1), may send a signal twice: the report is to be written all the same.
     */
    if (sandbox->signals >= 0 && !sandbox->interrupted) {
        close(sandbox->signals);
        sigaction(SIGPIPE, &sandbox->pipe_before, NULL);
        sigprocmask(SIG_SETMASK, &sandbox->mask_before, NULL);
    }
    free(sandbox->strangers);
}

void sandbox_reply_finish(struct sandbox_reply *reply)
{
    cJSON_Delete(reply->answer);
    strbuf_finish(&reply->output);
    memset(reply, 0, sizeof *reply);
}

/* ---- End ------------------------------------------------------------------------------------- */

static bool has_ended(const struct sandbox *sandbox, int options)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)sandbox->child, &info, WEXITED | WNOWAIT | options) == 0 &&
           info.si_pid == sandbox->child;
}

/* Until the child has ended or the time is over. */
static bool await_end(const struct sandbox *sandbox, int milliseconds)
{
    const struct timespec pause = {0, 2000000};
    int64_t end = clock_now_ns() + (int64_t)milliseconds * 1000000;
    while (!has_ended(sandbox, WNOHANG)) {
        if (clock_now_ns() > end)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* Kill the group while its leader, though dead, still keeps its number. Waiting is limited, as a
 * process within a driver may not end. */
static int reap(struct sandbox *sandbox)
{
    int status = SIGKILL;
    kill(-sandbox->child, SIGKILL);
    if (await_end(sandbox, KILL_MS))
        waitpid(sandbox->child, &status, 0);
    kill_descendants(sandbox);
    sandbox->child = 0;
    close(sandbox->questions);
    close(sandbox->answers);
    close(sandbox->output);
    sandbox->questions = sandbox->answers = sandbox->output = -1;
    strbuf_finish(&sandbox->heard);
    return status;
}

static void terminate(const struct sandbox *sandbox)
{
    kill(-sandbox->child, SIGTERM);
    if (!await_end(sandbox, GRACE_MS))
        kill(-sandbox->child, SIGKILL);
}

void sandbox_kill(struct sandbox *sandbox)
{
    if (!sandbox->child)
        return;
    terminate(sandbox);
    reap(sandbox);
}

static void describe_end(int status, char *text, size_t size)
{
    if (WIFSIGNALED(status))
        snprintf(text, size, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, size, "exit(%d)", WEXITSTATUS(status));
}

/* ---- Hear ------------------------------------------------------------------------------------ */

/* Read the available output. */
static void read_output(struct sandbox *sandbox, strbuf *output)
{
    char chunk[4096];
    for (ssize_t count; (count = read(sandbox->output, chunk, sizeof chunk)) > 0;)
        if (output->length < MAX_OUTPUT)
            strbuf_append_bytes(output, chunk, (size_t)count);
}

/* The answer, once its line is complete. */
static cJSON *read_answer(struct sandbox *sandbox)
{
    char chunk[4096];
    for (ssize_t count; (count = read(sandbox->answers, chunk, sizeof chunk)) > 0;)
        strbuf_append_bytes(&sandbox->heard, chunk, (size_t)count);
    const char *text = strbuf_text(&sandbox->heard);
    if (sandbox->heard.length == 0 || text[sandbox->heard.length - 1] != '\n')
        return NULL;
    cJSON *answer = cJSON_Parse(text);
    strbuf_finish(&sandbox->heard);
    return answer;
}

/* Which signal arrived: one that interrupts, or 0. The end of a child is handled elsewhere. */
static int read_signals(const struct sandbox *sandbox)
{
    struct signalfd_siginfo info;
    int interrupted = 0;
    while (read(sandbox->signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD)
            interrupted = (int)info.ssi_signo;
    return interrupted;
}

void sandbox_pause(struct sandbox *sandbox, int milliseconds)
{
    struct pollfd file = {sandbox->signals, POLLIN, 0};
    poll(&file, 1, milliseconds);
    int signal_now = read_signals(sandbox);
    sandbox->interrupted = signal_now ? signal_now : sandbox->interrupted;
}

/* ---- Ask ------------------------------------------------------------------------------------- */

static void keep_trail(const struct sandbox *sandbox, struct sandbox_reply *reply)
{
    memcpy(reply->trail, sandbox->trail->text, sizeof sandbox->trail->text);
    reply->trail[sizeof sandbox->trail->text - 1] = '\0';
}

static void describe_stop(const struct sandbox *sandbox, struct sandbox_reply *reply)
{
    const struct check_params *params = sandbox->params;
    if (reply->end == SANDBOX_LATE)
        snprintf(reply->text, sizeof reply->text, "the time limit of all cases, %g s, was reached",
                 params->timeout);
    else
        snprintf(reply->text, sizeof reply->text, "interrupted");
}

static void stop(struct sandbox *sandbox, struct sandbox_reply *reply, enum sandbox_end end)
{
    reply->end = end;
    describe_stop(sandbox, reply);
    keep_trail(sandbox, reply);
    terminate(sandbox);
    read_output(sandbox, &reply->output);
    reap(sandbox);
}

static void crashed(struct sandbox *sandbox, struct sandbox_reply *reply)
{
    read_output(sandbox, &reply->output);
    keep_trail(sandbox, reply);
    reply->end = SANDBOX_CRASHED;
    describe_end(reap(sandbox), reply->text, sizeof reply->text);
}

/* Sleep until something happens, or until `limit_ns`. A pipe that the child closed always has
 * something to say. */
static void sleep_until(const struct sandbox *sandbox, int64_t limit_ns)
{
    const struct timespec pause = {0, 2000000};
    struct pollfd files[] = {
        {sandbox->answers, POLLIN, 0}, {sandbox->output, POLLIN, 0}, {sandbox->signals, POLLIN, 0}};
    int64_t wait = (limit_ns - clock_now_ns()) / 1000000 + 1;
    poll(files, 3, wait < 0 ? 0 : wait > 1000 ? 1000 : (int)wait);
    if ((files[0].revents | files[1].revents) & POLLHUP)
        nanosleep(&pause, NULL);
}

static int64_t inactivity_ns(const struct sandbox *sandbox)
{
    return (int64_t)(sandbox->params->inactivity * 1e9);
}

/* The message names the limit. */
static void stop_hung(struct sandbox *sandbox, struct sandbox_reply *reply,
                      const struct silence *silence)
{
    bool own = silence->own >= inactivity_ns(sandbox);
    double limit = sandbox->params->inactivity;
    stop(sandbox, reply, SANDBOX_HUNG);
    snprintf(reply->text, sizeof reply->text, "no sign of life for %g s%s",
             own ? limit : SILENCE_WALL * limit,
             own ? " of its own time" : " on the clock, in most of which it did not run");
}

/* Poll the child once; false when the question has ended. */
static bool look(struct sandbox *sandbox, struct sandbox_reply *reply, struct silence *silence)
{
    int64_t now = clock_now_ns();
    int signal_now = read_signals(sandbox);
    bool ended = has_ended(sandbox, WNOHANG); /* before the last look at its answer */
    sandbox->interrupted = signal_now ? signal_now : sandbox->interrupted;
    read_output(sandbox, &reply->output);
    reply->answer = read_answer(sandbox);
    if (reply->answer) {
        read_output(sandbox, &reply->output);
        reply->end = SANDBOX_ANSWERED;
        return false;
    }
    if (ended)
        crashed(sandbox, reply);
    else if (sandbox->interrupted)
        stop(sandbox, reply, SANDBOX_INTERRUPTED);
    else if (now > sandbox->deadline_ns)
        stop(sandbox, reply, SANDBOX_LATE);
    else if (silence_left(silence, inactivity_ns(sandbox)) <= 0)
        stop_hung(sandbox, reply, silence);
    else
        return true;
    return false;
}

static void await_answer(struct sandbox *sandbox, struct sandbox_reply *reply)
{
    struct silence silence;
    uint64_t seen = atomic_load(&sandbox->trail->count);
    silence_begin(&silence, sandbox->child);
    while (look(sandbox, reply, &silence)) {
        int64_t limit = clock_now_ns() + silence_left(&silence, inactivity_ns(sandbox));
        sleep_until(sandbox, limit < sandbox->deadline_ns ? limit : sandbox->deadline_ns);
        uint64_t count = atomic_load(&sandbox->trail->count);
        if (count != seen)
            silence_begin(&silence, sandbox->child);
        else
            silence_update(&silence, sandbox->child);
        seen = count;
    }
}

/* A child that died since its last answer is found dead by await_answer(). */
static void send(const struct sandbox *sandbox, const char *text)
{
    size_t length = strlen(text);
    for (size_t done = 0; done < length;) {
        ssize_t count = write(sandbox->questions, text + done, length - done);
        if (count < 0 && errno != EINTR)
            return;
        done += count > 0 ? (size_t)count : 0;
    }
}

static void ask_child(struct sandbox *sandbox, const cJSON *question, struct sandbox_reply *reply)
{
    char *text = cJSON_PrintUnformatted(question);
    strbuf line;
    strbuf_init(&line);
    strbuf_appendf(&line, "%s\n", text ? text : "");
    cJSON_free(text);
    if (!sandbox->child && !sandbox_start(sandbox)) {
        reply->end = SANDBOX_BROKEN;
        snprintf(reply->text, sizeof reply->text, "no process can be started: %s", strerror(errno));
    } else {
        sandbox->trail->text[0] = '\0';
        reply->child_is_new = sandbox->runs == 0;
        sandbox->runs += strcmp(json_text(question, "ask"), "run") == 0;
        send(sandbox, strbuf_text(&line));
        await_answer(sandbox, reply);
    }
    strbuf_finish(&line);
}

/* A new child does not know the plugin yet. */
static bool open_child(struct sandbox *sandbox, struct sandbox_reply *reply)
{
    cJSON *open = cJSON_CreateObject();
    cJSON_AddStringToObject(open, "ask", "open");
    ask_child(sandbox, open, reply);
    cJSON_Delete(open);
    return reply->end == SANDBOX_ANSWERED;
}

static void ask(struct sandbox *sandbox, const cJSON *question, struct sandbox_reply *reply)
{
    if (sandbox->inside) {
        reply->answer = check_child_answer(sandbox->inside, question);
        reply->end = reply->answer ? SANDBOX_ANSWERED : SANDBOX_BROKEN;
        return;
    }
    bool opens = strcmp(json_text(question, "ask"), "open") == 0;
    if (!sandbox->child && !opens) {
        if (!open_child(sandbox, reply))
            return;
        cJSON_Delete(reply->answer);
        reply->answer = NULL;
    }
    ask_child(sandbox, question, reply);
}

void sandbox_ask(struct sandbox *sandbox, cJSON *question, struct sandbox_reply *reply)
{
    memset(reply, 0, sizeof *reply);
    strbuf_init(&reply->output);
    int64_t start_ns = clock_now_ns();
    if (!sandbox->inside && (sandbox->interrupted || start_ns > sandbox->deadline_ns)) {
        reply->end = sandbox->interrupted ? SANDBOX_INTERRUPTED : SANDBOX_LATE;
        describe_stop(sandbox, reply);
    } else {
        ask(sandbox, question, reply);
    }
    reply->ns = clock_now_ns() - start_ns;
    cJSON_Delete(question);
}

bool sandbox_end(struct sandbox *sandbox, struct sandbox_reply *reply)
{
    memset(reply, 0, sizeof *reply);
    if (sandbox->inside || !sandbox->child)
        return false;
    cJSON *quit = cJSON_CreateObject();
    cJSON_AddStringToObject(quit, "ask", "quit");
    sandbox_ask(sandbox, quit, reply);
    if (reply->end != SANDBOX_ANSWERED)
        return true;
    close(sandbox->questions); /* the end of its questions */
    sandbox->questions = -1;
    cJSON *said = reply->answer;
    reply->answer = NULL;
    await_answer(sandbox, reply); /* an end is no answer */
    reply->answer = said;
    if (reply->end == SANDBOX_CRASHED && strcmp(reply->text, "exit(0)") == 0) {
        reply->end = SANDBOX_ANSWERED;
        reply->text[0] = '\0';
    }
    return true;
}
