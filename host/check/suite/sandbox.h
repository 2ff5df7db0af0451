/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.h: requests to a child process that may crash, hang, exit or leave orphans.
 *
 * One child answers many questions. When it dies or hangs, it is killed with its process group and
 * all descendants, and reaped; the next question starts another one. The parent never opens the
 * plugin. */
#ifndef HOST_CHECK_SUITE_SANDBOX_H
#define HOST_CHECK_SUITE_SANDBOX_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "attn_types.h"
#include "host/check/suite/child.h"
#include "host/base/text.h"

/* How a question ended. */
enum sandbox_end {
    SANDBOX_ANSWERED,
    SANDBOX_CRASHED,     /* the child ended, by a signal or by itself */
    SANDBOX_HUNG,        /* no sign of life for as long as is allowed */
    SANDBOX_LATE,        /* the time for the whole run is over; the question was not asked, or was
                          * cut short */
    SANDBOX_INTERRUPTED, /* SIGINT, SIGTERM or SIGHUP */
    SANDBOX_BROKEN       /* no child can be started */
};

struct sandbox_reply {
    enum sandbox_end end;
    cJSON *answer;     /* of SANDBOX_ANSWERED */
    char text[256];    /* how it ended: "signal 11 (Segmentation fault)"; "" if answered */
    char trail[512];   /* the last note of a child that did not answer */
    strbuf output;     /* output on stdout and stderr meanwhile */
    int64_t ns;        /* it took */
    bool child_is_new; /* nothing was run in this child before */
};

struct sandbox {
    const struct check_params *params;
    const char *program;        /* to start children from */
    struct check_child *inside; /* --in-process: the child is this process */
    pid_t child;                /* 0 = none */
    int questions, answers, output;
    int trail_fd;
    struct check_trail *trail; /* shared */
    strbuf heard;              /* of an answer, so far */
    int64_t runs;              /* questions "run" that this child was asked */
    int64_t deadline_ns;
    int signals; /* signalfd for interruptions, and for the end of children */
    sigset_t mask_before;
    struct sigaction pipe_before;
    int interrupted;  /* the signal; 0 = none */
    pid_t *strangers; /* children that this process had before */
    size_t num_strangers;
};

/* From here on signals are read by sandbox_ask(). `params` is borrowed. */
attn_status sandbox_open(struct sandbox *sandbox, const struct check_params *params,
                         attn_error *error);

/* Also when sandbox_open() failed. Leaves no process. */
void sandbox_close(struct sandbox *sandbox);

/* Ask; the question is deleted. The reply is the caller's in any case. */
void sandbox_ask(struct sandbox *sandbox, cJSON *question, struct sandbox_reply *reply);

/* Tell the child, if there is one, to end; false if there was none. The answer to "quit". */
bool sandbox_end(struct sandbox *sandbox, struct sandbox_reply *reply);

/* Sleep until a signal comes, at most so long, and note it if it interrupts. */
void sandbox_pause(struct sandbox *sandbox, int milliseconds);

/* Start a child; there is none. false if that cannot be. (sandbox_start.c) */
bool sandbox_start(struct sandbox *sandbox);

/* End the child, whatever state it is in. */
void sandbox_kill(struct sandbox *sandbox);

void sandbox_reply_finish(struct sandbox_reply *reply);

#endif /* HOST_CHECK_SUITE_SANDBOX_H */
