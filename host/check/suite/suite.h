/* SPDX-License-Identifier: Apache-2.0
 *
 * suite.h: all checks of a plugin, in order: the file, then each backend, in a sandbox.
 */
#ifndef HOST_CHECK_SUITE_SUITE_H
#define HOST_CHECK_SUITE_SUITE_H

#include <nettle/sha2.h>

#include "host/check/suite/groups.h"
#include "host/base/progress.h"
#include "host/check/suite/outcome.h"
#include "host/check/suite/replay.h"
#include "host/check/suite/result.h"
#include "host/check/suite/sandbox.h"

/* Changes of the process state around the cases of one backend (rule ERR-03): the first of each
 * kind. */
struct suite_surroundings {
    char *backend;
    size_t cases;
    struct suite_sight {
        size_t times;
        char *text; /* of the first case; NULL = none */
    } sights[CORE_ENDS - CORE_SILENT + 1];
    enum sandbox_end end; /* of its child, the worst */
};

struct shards;

struct suite {
    const struct check_params *params;
    struct shards *shards; /* which do most; NULL = none */
    struct suite_shard {
        size_t index,
            count;   /* which cases are run; count 0 = all; the last one has the CHECK_ALONE ones */
        size_t turn; /* cases so far */
        int gate;    /* nothing is run before the other end is closed; < 0: none */
    } shard;
    struct check_report *report;
    struct sandbox sandbox;
    struct suite_surroundings *surroundings;
    size_t num_surroundings;
    struct progress progress;
    FILE *list; /* ids are written here instead of being run; NULL = run */
    size_t listed;
    struct sha256_ctx cases;    /* of report->cases_sha256 */
    bool late;                  /* the time for everything is over */
    bool stopped;               /* nothing more can be asked */
    enum check_outcome outcome; /* CHECK_GOOD, or why the report is nothing to go by */
    char why[512];              /* with another outcome */
};

/* Run the suite, or list it on `list` (NULL = run), or run the case of `replay` (NULL = all that
 * pass the filters). CHECK_GOOD: the report has the results; else the command line or the tool
 * failed, and `error` has the reason. */
enum check_outcome suite_run(const struct check_params *params, const struct replay *replay,
                             FILE *list, struct check_report *report, attn_error *error);

/* ---- Parts ----------------------------------------------------------------------------------- */

/* A case to be run. */
struct suite_case {
    const char *backend;
    const struct check *check;
    int32_t index; /* < 0: the check has one */
    uint64_t seed;
    uint32_t without;
    const char *device; /* as in the answer to "subject" */
};

/* Run only the cases of suite->shard, which is set; afterwards the caller reads the suite and its
 * report, and does not finish them. */
void suite_run_shard(struct suite *suite, const struct check_params *params,
                     struct check_report *report);

/* Open the sandbox and the plugin. The suite is zeroed before, and may be stopped afterwards.
 * suite_finish() in any case. */
void suite_open(struct suite *suite, const struct check_params *params,
                struct check_report *report);
void suite_finish(struct suite *suite);

/* Prepare a backend: its device. false if it cannot be called; then `why` (of size 512) has the
 * reason. */
bool suite_subject(struct suite *suite, struct check_backend *backend, char why[512]);

/* Run a case, once more alone in a new child if it crashed in one that others used before. The
 * result's texts are the caller's: suite_result_finish(). */
void suite_run_case(struct suite *suite, const struct suite_case *what,
                    struct check_result *result);
void suite_result_finish(struct check_result *result);

/* Note that nothing more can be asked, if a question ended so. */
void suite_note_end(struct suite *suite, const struct sandbox_reply *reply);

/* Does this id pass the filters? */
bool suite_wants(const struct suite *suite, const char *id);

/* Write a line on suite->list instead of running. */
void suite_list(struct suite *suite, const struct check_result *result);

/* The outcome of a case without an answer. */
enum check_code suite_code_of(enum sandbox_end end);

/* A question: {"ask": ask, name: value, "device": device}; `name` and `device` may be NULL. To be
 * given to sandbox_ask(). */
cJSON *suite_question(const char *ask, const char *name, const char *value, const char *device);

/* ---- Changes of process state by cases, per backend (surroundings.c) ----------------------------
 */

/* Note output and changes during a case, or while the plugin was opened for it. */
void surroundings_case(struct suite *suite, const char *backend, const char *id,
                       const struct sandbox_reply *reply);

/* Note how the child ended in which the backend's cases ran. */
void surroundings_end(struct suite *suite, const char *backend, const struct sandbox_reply *reply);

/* The notes, to be merged into those of another suite in another process. */
cJSON *surroundings_object(const struct suite *suite);
void surroundings_merge(struct suite *suite, const cJSON *object);

/* Add a result for each kind of change that passes the filters, for each backend. */
void surroundings_report(struct suite *suite);

void surroundings_finish(struct suite *suite);

#endif /* HOST_CHECK_SUITE_SUITE_H */
