/* SPDX-License-Identifier: Apache-2.0
 *
 * negotiation.c: the group NEGO: versions, extensions, optional slots.
 */
#include "host/check/contract/contract.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"
#include "host/check/cases/service_counter.h"
#include "host/plugin/code_paths.h"
#include "host/base/configured.h"

/* ---- The entry ------------------------------------------------------------------------------- */

static const struct loader_plugin *record_of(const struct check_run *run)
{
    return run->subject->host->registry.plugins[run->subject->plugin];
}

attn_plugin_entry_fn check_find_entry(struct check_run *run)
{
    attn_plugin_entry_fn entry = NULL;
    void *address = dlsym(record_of(run)->handle, ATTN_PLUGIN_ENTRY);
    memcpy(&entry, &address, sizeof entry);
    if (!entry)
        check_fail(run, "%s has no symbol %s", run->subject->object, ATTN_PLUGIN_ENTRY);
    return entry;
}

attn_host_info check_host_of(const struct check_run *run, uint32_t oldest, uint32_t newest,
                             uint32_t minor)
{
    return (attn_host_info){.struct_size = sizeof(attn_host_info),
                            .abi_major_min = oldest,
                            .abi_major_max = newest,
                            .abi_minor = minor,
                            .name = "attnhost check",
                            .version = ATTNHOST_VERSION,
                            .source = run->subject->source};
}

static attn_status call_entry(struct check_run *run, attn_plugin_entry_fn entry,
                              const attn_host_info *host, attn_plugin *plugin)
{
    *plugin = (attn_plugin){.struct_size = sizeof *plugin};
    return entry(host, plugin, check_error(run));
}

/* Ranges without the majors that the plugin speaks, and one with all of them. */
static void run_majors(struct check_run *run)
{
    attn_plugin_entry_fn entry = check_find_entry(run);
    uint32_t mine = record_of(run)->table.abi_major;
    attn_host_info newer = check_host_of(run, mine + 1000, mine + 1005, 0),
                   older = check_host_of(run, 0, mine, 0);
    attn_host_info all = check_host_of(run, 0, UINT32_MAX, UINT32_MAX);
    attn_plugin plugin;
    if (!entry)
        return;
    attn_status status = call_entry(run, entry, &newer, &plugin);
    if (!refusal_is(run, status, ATTN_INCOMPATIBLE_VERSION, "a host of newer majors"))
        return;
    if (mine > 0) {
        older.abi_major_max = 0; /* older than 1.0, which no stable plugin speaks */
        status = call_entry(run, entry, &older, &plugin);
        if (status != ATTN_OK &&
            !refusal_is(run, status, ATTN_INCOMPATIBLE_VERSION, "a host of older majors"))
            return;
        CHECK_THAT(run, status != ATTN_OK || plugin.abi_major == 0,
                   "a host of major 0: the plugin picked %u", plugin.abi_major);
    }
    check_good(run, call_entry(run, entry, &all, &plugin), "a host of all majors");
    status = entry(&newer, &plugin, NULL);
    CHECK_THAT(run, status == ATTN_INCOMPATIBLE_VERSION,
               "without attn_error: %s: accepted "
               "INCOMPATIBLE_VERSION",
               host_status_name(status));
}

/* Equal but for where the caller's memory is. */
static bool same_plugin(const attn_plugin *a, const attn_plugin *b)
{
    return a->abi_major == b->abi_major && a->num_backends == b->num_backends &&
           strcmp(a->name, b->name) == 0 && strcmp(a->version, b->version) == 0 &&
           strcmp(a->vendor, b->vendor) == 0 && strcmp(a->doc, b->doc) == 0 &&
           a->describe == b->describe && a->init == b->init && a->fini == b->fini &&
           a->get_extension == b->get_extension;
}

static void run_minors(struct check_run *run)
{
    static const uint32_t minors[] = {0, 1, ATTN_ABI_MINOR, ATTN_ABI_MINOR + 1, 1000, UINT32_MAX};
    attn_plugin_entry_fn entry = check_find_entry(run);
    for (size_t m = 0; entry && m < sizeof minors / sizeof minors[0]; m++) {
        attn_host_info host = check_host_of(run, ATTN_ABI_MAJOR, ATTN_ABI_MAJOR, minors[m]);
        attn_plugin plugin;
        attn_status status = call_entry(run, entry, &host, &plugin);
        CHECK_THAT(run,
                   check_good(run, status, "a host of minor %u", minors[m]) &&
                       same_plugin(&plugin, &record_of(run)->table),
                   "a host of minor %u gets another table", minors[m]);
    }
}

static void run_again(struct check_run *run)
{
    attn_plugin_entry_fn entry = check_find_entry(run);
    attn_host_info host = check_host_of(run, ATTN_ABI_MAJOR, ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
    for (int n = 0; entry && n < 8; n++) {
        attn_plugin plugin;
        attn_status status = call_entry(run, entry, &host, &plugin);
        CHECK_THAT(run,
                   check_good(run, status, "call %d", n + 2) &&
                       same_plugin(&plugin, &record_of(run)->table),
                   "call %d fills in another table than the first one", n + 2);
    }
}

/* ---- Extensions ------------------------------------------------------------------------------ */

/* The one that is asked: a plugin or an instance. */
struct asked {
    const attn_plugin *plugin;
    const attn_backend_ops *ops;
    attn_instance *instance;
};

static const void *ask_extension(const struct asked *asked, const char *id)
{
    return asked->plugin ? asked->plugin->get_extension(id)
                         : asked->ops->get_extension(asked->instance, id);
}

/* Around an id that is known: one more character, one less, others before it. */
static void check_around(struct check_run *run, const struct asked *asked, const char *known)
{
    char id[160];
    static const char *const behind[] = {"x", "0", " ", "/1", "\n"};
    static const char *const before[] = {"x", " ", "attn."};
    size_t length = strlen(known);
    for (size_t t = 0; t < sizeof behind / sizeof behind[0]; t++) {
        snprintf(id, sizeof id, "%s%s", known, behind[t]);
        CHECK_THAT(run, !ask_extension(asked, id), "id '%s' is answered as if it were '%s'", id,
                   known);
    }
    for (size_t t = 0; t < sizeof before / sizeof before[0]; t++) {
        snprintf(id, sizeof id, "%s%s", before[t], known);
        CHECK_THAT(run, !ask_extension(asked, id), "id '%s' is answered as if it were '%s'", id,
                   known);
    }
    snprintf(id, sizeof id, "%.*s", (int)length - 1, known);
    CHECK_THAT(run, !ask_extension(asked, id), "id '%s' is answered as if it were '%s'", id, known);
}

/* Each text in the file that looks like an id may be one that it knows. */
static void check_ids_of_file(struct check_run *run, const struct asked *asked, const char *bytes,
                              size_t size)
{
    char id[128];
    for (size_t at = 0; at + 5 < size && run->code == CHECK_PASS; at++) {
        size_t length = 0;
        if (memcmp(bytes + at, "attn.", 5) != 0)
            continue;
        while (at + length < size && length < sizeof id - 1 && bytes[at + length] > ' ' &&
               bytes[at + length] < 127) {
            id[length] = bytes[at + length];
            length++;
        }
        id[length] = '\0';
        if (ask_extension(asked, id))
            check_around(run, asked, id);
    }
}

static void check_extensions(struct check_run *run, const struct asked *asked)
{
    static const char *const unknown[] = {"",
                                          "a",
                                          "attn.",
                                          "attn.no_such_extension/1",
                                          "attn.no_such_extension",
                                          "attn./1",
                                          "no_such_vendor.thing/99",
                                          "attn.gr\xC3\xB6\xC3\x9F/1"};
    for (size_t u = 0; u < sizeof unknown / sizeof unknown[0]; u++)
        CHECK_THAT(run, !ask_extension(asked, unknown[u]), "the unknown id '%s' is answered",
                   unknown[u]);
    FILE *file = fopen(run->subject->object, "rb");
    char *bytes = NULL;
    long size = 0;
    if (file && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0)
        bytes = malloc((size_t)size);
    if (bytes && fseek(file, 0, SEEK_SET) == 0 &&
        fread(bytes, 1, (size_t)size, file) == (size_t)size)
        check_ids_of_file(run, asked, bytes, (size_t)size);
    else
        check_fail(run, "%s cannot be read", run->subject->object);
    free(bytes);
    if (file)
        fclose(file);
}

static void run_plugin_extensions(struct check_run *run)
{
    struct asked asked = {.plugin = &record_of(run)->table};
    if (asked.plugin->get_extension)
        check_extensions(run, &asked);
}

static void run_instance_extensions(struct check_run *run)
{
    struct rig rig;
    attn_instance *instance = NULL;
    const attn_backend_ops *ops = run->subject->type->ops;
    if (!ops->get_extension || !rig_open(&rig, run, run->seed))
        return;
    if (rig_create_for(&rig, &instance)) {
        struct asked asked = {.ops = ops, .instance = instance};
        check_extensions(run, &asked);
        rig_destroy(&rig, instance);
    }
    rig_close(&rig);
}

/* ---- Paths ----------------------------------------------------------------------------------- */

/* A table of paths and the metadata that it is asked about. */
struct telling {
    struct check_run *run;
    struct rig *rig;
    const attn_code_paths *paths;
    const attn_metadata *metadata;
};

/* The rows of the batch that was planned last, in every layer. */
static void check_rows(const struct telling *telling, int batch, const char *when)
{
    const struct rig *rig = telling->rig;
    for (int l = 0; l < RIG_LAYERS; l++) {
        int64_t rows[ATTN_MAX_CODE_PATHS];
        attn_status status = code_paths_ask(
            telling->paths, telling->metadata, rig->question.layers[l].layer_id,
            rig->batches[batch].batch.num_real_tokens, rows, check_error(telling->run));
        CHECK_THAT(telling->run, status == ATTN_OK, "%s batch%s: %s", rig_batch_name(rig, batch),
                   when, check_error_text(telling->run));
        for (uint32_t p = telling->paths->num_paths; p < ATTN_MAX_CODE_PATHS; p++)
            CHECK_THAT(telling->run, rows[p] == 0, "%s batch%s: rows[%u] was written, of %u",
                       rig_batch_name(rig, batch), when, p, telling->paths->num_paths);
    }
}

/* Before a batch was planned, and of a layer that is another's. */
static void check_untold(const struct telling *telling, int32_t layer_id, attn_status accepted,
                         const char *what)
{
    int64_t rows[ATTN_MAX_CODE_PATHS];
    attn_status status =
        telling->paths->rows(telling->metadata, layer_id, rows, check_error(telling->run));
    refusal_is(telling->run, status, accepted, what);
}

/* The batches of one metadata, then one batch for `other`, after which the first still reports its
 * own. */
static void check_batches(struct telling *telling, attn_metadata *metadata, attn_metadata *other)
{
    struct rig *rig = telling->rig;
    int last = rig->num_batches - 1;
    telling->metadata = metadata;
    check_untold(telling, rig->question.layers[0].layer_id, ATTN_BAD_STATE,
                 "rows by path before a batch was planned");
    for (int b = 0; b <= last && telling->run->code == CHECK_PASS; b++)
        if (rig_good(rig, rig_plan(rig, metadata, b), "init_forward_metadata"))
            check_rows(telling, b, "");
    check_untold(telling, 1 << 20, ATTN_INVALID_ARGUMENT, "rows by path of layer 1048576");
    if (telling->run->code == CHECK_PASS &&
        rig_good(rig, rig_plan(rig, other, 0), "init_forward_metadata"))
        check_rows(telling, last, ", when another metadata has been given a batch");
}

/* With a second metadata of the instance. */
static void check_session(struct telling *telling, const struct rig_session *session)
{
    struct rig_session more;
    if (!rig_metadata_open(&more, telling->rig, session->instance))
        return;
    check_batches(telling, session->metadata, more.metadata);
    rig_metadata_close(&more, telling->rig);
}

static void check_code_paths(struct rig *rig, struct rig_session *session)
{
    struct telling telling = {.run = rig->run, .rig = rig};
    telling.paths = rig->ops->get_extension(session->instance, ATTN_EXTENSION_CODE_PATHS);
    if (rig->run->subject->type->flags & ATTN_BACKEND_COMPOSITE)
        CHECK_THAT(rig->run, !telling.paths, "a composite has the extension %s: accepted NULL",
                   ATTN_EXTENSION_CODE_PATHS);
    else if (!telling.paths)
        check_skip(rig->run, "it reports no paths: it has no extension %s",
                   ATTN_EXTENSION_CODE_PATHS);
    else if (code_paths_check(telling.paths, check_error(rig->run)) != ATTN_OK)
        check_fail(rig->run, "%s: %s", ATTN_EXTENSION_CODE_PATHS, check_error_text(rig->run));
    else
        check_session(&telling, session);
}

static void run_paths(struct check_run *run)
{
    if (run->subject->type->ops->get_extension)
        rig_run_check(run,
                      &(const struct rig_check){.body = check_code_paths, .plans_alone = true});
    else
        check_skip(run, "it has no extensions");
}

/* ---- Optional slots -------------------------------------------------------------------------- */

/* A life with services that lack some; the results must be those of the first. */
static void check_services(struct rig *rig, struct service_counter *counter,
                           char *const expected[RIG_BATCHES], const char *without)
{
    char *results[RIG_BATCHES];
    rig->services = &counter->table;
    check_note(rig->run, "services without %s", without);
    if (!rig_life(rig, results))
        return;
    const char *left = service_counter_left(counter);
    if (left)
        check_fail(rig->run, "services without %s: after destroy there is %s", without, left);
    if (counter->strange)
        check_fail(rig->run, "services without %s: a call with an invalid argument", without);
    for (int b = 0; b < rig->num_batches; b++) {
        const char *what = rig_difference(rig, b, expected[b], results[b]);
        if (what)
            check_fail(rig->run, "services without %s: %s of the %s batch differs", without, what,
                       rig_batch_name(rig, b));
    }
    rig_free(results);
}

static void run_services(struct check_run *run)
{
    static const char *const names[SERVICE_SLOTS] = {"trace_begin and trace_end", "poll_error",
                                                     "get_extension"};
    struct rig rig;
    struct service_counter counter;
    char *expected[RIG_BATCHES];
    if (!rig_open(&rig, run, run->seed))
        return;
    service_counter_init(&counter, run->subject->services);
    rig.services = &counter.table;
    if (rig_life(&rig, expected)) {
        for (int slot = 0; slot < SERVICE_SLOTS; slot++) {
            service_counter_init(&counter, run->subject->services);
            service_counter_hide(&counter, (enum service_counter_slot)slot);
            check_services(&rig, &counter, expected, names[slot]);
        }
        service_counter_init(&counter, run->subject->services);
        for (int slot = 0; slot < SERVICE_SLOTS; slot++)
            service_counter_hide(&counter, (enum service_counter_slot)slot);
        check_services(&rig, &counter, expected, "anything optional");
        rig_free(expected);
    }
    rig_close(&rig);
}

/* A phase whose slot is NULL is a mode that query refuses. */
static void run_phases(struct check_run *run)
{
    static const uint32_t extends = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    static const uint32_t decodes = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    const attn_backend_ops *ops = run->subject->type->ops;
    struct rig_question question;
    char why[512];
    if (!rig_find(&question, run->subject, why, sizeof why)) {
        check_skip(run, "query accepts no plain softmax problem on this device: %s", why);
        return;
    }
    CHECK_THAT(run, ops->forward_extend || ops->forward_decode,
               "forward_extend and forward_decode are both NULL");
    question.bounds.modes = extends;
    CHECK_THAT(run, ops->forward_extend || !rig_accepts(run->subject, &question.problems[0]),
               "forward_extend is NULL, and query accepts EXTEND");
    question.bounds.modes = decodes;
    CHECK_THAT(run, ops->forward_decode || !rig_accepts(run->subject, &question.problems[0]),
               "forward_decode is NULL, and query accepts DECODE");
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_nego[] = {
    CHECK_ROW("NEGO-01", majors, NULL, CHECK_ONCE,
              "a host without a common major gets INCOMPATIBLE_VERSION"),
    CHECK_ROW("NEGO-02", minors, NULL, CHECK_ONCE,
              "the entry returns the same tables for any minor of the host"),
    CHECK_ROW("NEGO-03", again, NULL, CHECK_ONCE, "the entry gives the same answer every time"),
    CHECK_ROW("NEGO-04", plugin_extensions, NULL, CHECK_ONCE,
              "the plugin returns NULL for an unknown extension id, and compares whole ids"),
    CHECK_ROW("NEGO-04", instance_extensions, NULL, 0,
              "an instance returns NULL for an unknown extension id, and compares whole ids"),
    CHECK_ROW("NEGO-05", services, rig_count_seeds, 0,
              "results are the same if any optional service is NULL"),
    CHECK_ROW("NEGO-05", phases, NULL, 0,
              "a backend without one of the forward slots refuses that phase's modes"),
    CHECK_ROW("NEGO-08", paths, rig_count_seeds, 0,
              "each row of a batch is counted in exactly one of the instance's code paths"),
    {.rule = NULL},
};
