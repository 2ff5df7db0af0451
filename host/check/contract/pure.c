/* SPDX-License-Identifier: Apache-2.0
 *
 * pure.c: the part of the group PURE that any device can check: the writes of a forward, the time
 * of reads from a batch and, on the processor, the calls of a forward. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr, RTLD_DEFAULT */
#endif
#include "host/check/check.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/cases/layout_converter.h"
#include "host/check/cases/rig.h"
#include "host/check/spy/watch.h"

/* ---- PURE-01 --------------------------------------------------------------------------------- */

static watch_begin_fn find_begin(void)
{
    watch_begin_fn function = NULL;
    void *found = dlsym(RTLD_DEFAULT, WATCH_BEGIN);
    memcpy(&function, &found, sizeof found);
    return function;
}

static watch_end_fn find_end(void)
{
    watch_end_fn function = NULL;
    void *found = dlsym(RTLD_DEFAULT, WATCH_END);
    memcpy(&function, &found, sizeof found);
    return function;
}

/* The object that an address lies in. */
static const char *object_of(const void *address)
{
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname)
        return "?";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static attn_status watched_forward(struct rig *rig, attn_metadata *metadata, int batch, int layer,
                                   struct watch_report *report)
{
    bool converted = rig->run->subject->converter != NULL; /* whose copies are not checked */
    if (converted)
        layout_converter_watch(find_begin(), find_end(), report);
    else
        find_begin()();
    attn_status status = rig_forward(rig, metadata, batch, layer);
    if (converted)
        layout_converter_watch(NULL, NULL, NULL);
    else
        find_end()(report);
    return status;
}

/* Watch every forward of a batch; the first one that calls something reports it. */
static void watch_forwards(struct rig *rig, struct rig_session *session, int batch)
{
    for (int round = 0; round < 3 && rig->run->code == CHECK_PASS; round++) {
        if (!rig_good(rig, rig_plan(rig, session->metadata, batch), "init_forward_metadata"))
            return;
        for (int l = 0; l < RIG_LAYERS; l++) {
            struct watch_report report = {.count = 0};
            attn_status status = watched_forward(rig, session->metadata, batch, l, &report);
            if (!rig_good(rig, status, "forward"))
                return;
            CHECK_THAT(rig->run, report.count == 0,
                       "%s forward makes %llu forbidden calls, the first is %s() from %s",
                       rig_a_batch(rig, batch), (unsigned long long)report.count, report.first,
                       object_of(report.caller));
        }
    }
}

static void run_calls(struct check_run *run)
{
    if (run->subject->device->type != ATTN_DEVICE_CPU) {
        check_skip(run, "for backends on the processor; a GPU's driver allocates as it likes");
        return;
    }
    if (run->subject->source) {
        check_skip(run, CHECK_SOURCE_UNJUDGED);
        return;
    }
    if (!find_begin() || !find_end()) {
        check_skip(run, "%s is not preloaded into this process", WATCH_FILE);
        return;
    }
    rig_run_check(run, &(const struct rig_check){.each = watch_forwards});
}

/* ---- PURE-02 --------------------------------------------------------------------------------- */

static void check_inputs(struct rig *rig, struct rig_session *session, int b)
{
    char *result = rig_run(rig, session->metadata, b);
    const char *what = result ? rig_trespass(rig, b, result) : NULL;
    if (what)
        check_fail(rig->run, "%s forward: %s was written where a forward must not write",
                   rig_a_batch(rig, b), what);
    free(result);
}

/* ---- PURE-06 --------------------------------------------------------------------------------- */

/* Plan, then spoil the batch's structs and host arrays; they come back afterwards. */
static char *run_spoilt(struct rig *rig, attn_metadata *metadata, int batch)
{
    attn_status status = rig_reset(rig, batch);
    if (status == ATTN_OK)
        status = rig_plan(rig, metadata, batch);
    rig_spoil_batch(rig, batch);
    if (status == ATTN_OK)
        status = rig_forward_all(rig, metadata, batch);
    rig_restore_batch(rig, batch);
    return rig_good(rig, status, "with the batch overwritten after init_forward_metadata")
               ? rig_result(rig, batch)
               : NULL;
}

static void check_host_arrays(struct rig *rig, struct rig_session *session, int b)
{
    char *expected = rig_run(rig, session->metadata, b);
    char *result = expected ? run_spoilt(rig, session->metadata, b) : NULL;
    rig_expect(rig, b, expected, result,
               "when the batch and its host arrays are overwritten after init_forward_metadata");
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_pure[] = {
    CHECK_ROW(
        "PURE-01", calls, rig_count_seeds, 0,
        "a forward on a CPU makes no allocation and no I/O, starts no thread and does not sleep"),
    RIG_ROW("PURE-02", inputs, rig_count_seeds, 0,
            "a forward writes only its outputs and the batch's slots", .each = check_inputs),
    RIG_ROW("PURE-06", host_arrays, rig_count_seeds, 0,
            "the batch and its host arrays are not read after init_forward_metadata",
            .each = check_host_arrays),
    {.rule = NULL},
};
