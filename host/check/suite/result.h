/* SPDX-License-Identifier: Apache-2.0
 *
 * result.h: the results of a run of the suite: one list, which every writer reads.
 */
#ifndef HOST_CHECK_SUITE_RESULT_H
#define HOST_CHECK_SUITE_RESULT_H

#include <stdio.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "host/check/suite/case_id.h"
#include "host/check/suite/outcome.h"
#include "host/check/suite/params.h"
#include "host/check/suite/waivers.h"

/* What became of a case. */
struct check_result {
    const struct check *check; /* of the groups, or of check_core */
    char id[CASE_ID_SIZE];
    char *backend; /* before the slash */
    enum check_code code;
    enum check_code waived; /* of CHECK_WAIVED: what it was */
    char *text;             /* why; "" for PASS */
    char *trail;            /* the last note of what crashed or hung; "" = none */
    char *output;           /* what was printed meanwhile; "" = nothing */
    uint64_t seed;
    int64_t ns;
};

/* A backend that was looked at. */
struct check_backend {
    char *name;
    char *device;  /* "cuda:0"; "" = there was none to check it on */
    char *about;   /* "cuda sm90, driver 13.0" */
    char *missing; /* why its device or its children are not here; "" = they are */
    cJSON *matrix; /* array of {matter, values}; NULL = not asked, or not answered */
    int32_t grid_points;
    char grid_sha256[65]; /* of the grid that its cases come from; "" = none of them needs it */
};

struct check_report {
    const struct check_params *params;
    /* The plugin's own data; "" where it gives none. */
    char *file, *name, *version, *vendor, *build;
    uint32_t abi_major, abi_minor;
    char sha256[65]; /* "" if the file cannot be read */
    char *refused;   /* why it was not opened; NULL = it was, or was never tried */
    struct check_backend *backends;
    size_t num_backends;
    struct check_result *results;
    size_t num_results;
    size_t counts[CHECK_CODES];
    /* Cases that were to be run, and a digest of their ids, seeds and grids: equal on two machines
     * where the cases are. */
    size_t num_cases;
    char cases_sha256[65];   /* "" = there is no list of them */
    struct waivers *waivers; /* borrowed; NULL = none */
    time_t started;
    int64_t ns;
    int interrupted; /* a signal; 0 = none */
    const char *cut; /* why nothing was run after the last result; NULL = all was */
    FILE *tap;       /* results are written here as they come; NULL = nowhere */
    void (*added)(void *ctx, const struct check_result *result); /* called for each; NULL = not */
    void *added_ctx;
    const char *profile; /* what the backends were judged by; NULL = nothing */
    bool failed;         /* memory ran out: the list is not whole */
};

/* A report without results on params->plugin (borrowed as a whole), whose file is hashed. */
void check_report_init(struct check_report *report, const struct check_params *params);
void check_report_finish(struct check_report *report);

/* A copy that every format can hold, the caller's: UTF-8 of characters that XML has, no control
 * characters but tab and newline; bytes of others become '?'. NULL when memory ran out. */
char *check_report_clean(const char *text);

/* Replace a text by a clean copy of `value`. */
void check_report_set(struct check_report *report, char **text, const char *value);

/* Append a result: what it points to is copied, made valid UTF-8, and waived if a waiver says so.
 */
void check_report_add(struct check_report *report, const struct check_result *result);

/* Append a backend, to be filled in. NULL when memory ran out. */
struct check_backend *check_report_add_backend(struct check_report *report, const char *name);

/* CHECK_GOOD, CHECK_FAILURES, CHECK_NOTHING if every case was skipped, CHECK_REFUSED, CHECK_BROKEN.
 * Whether it was interrupted is not looked at. */
enum check_outcome check_report_outcome(const struct check_report *report);

/* ---- Writers --------------------------------------------------------------------------------- */

/* TAP 13 comes in parts: a line for each result, numbered from 1, and the plan. */
void write_tap_result(const struct check_result *result, size_t number, FILE *file);
void write_tap_end(const struct check_report *report, FILE *file);

/* JUnit XML, a suite for each backend; JSON with all there is; Markdown for people. false when
 * memory ran out. */
bool write_junit(const struct check_report *report, FILE *file);
bool write_json(const struct check_report *report, FILE *file);
bool write_markdown(const struct check_report *report, FILE *file);

#endif /* HOST_CHECK_SUITE_RESULT_H */
