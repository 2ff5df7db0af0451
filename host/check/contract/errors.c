/* SPDX-License-Identifier: Apache-2.0
 *
 * errors.c: the group ERR: messages of failing calls. The suite itself watches the process state
 * that a plugin must not change (ERR-03) around every case of every group; only errno, which the
 * host's own calls change, too, is checked around single calls. */
#include "host/check/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"
#include "host/base/operand_roles.h"
#include "host/base/text.h"

/* ---- Calls that fail ------------------------------------------------------------------------- */

/* All it takes for each of them. The ids have characters of several bytes, so that a message that
 * repeats them can be cut within one. */
struct stage {
    struct rig *rig;
    struct rig_session *session; /* NULL = none is needed */
};

#define ODD_ID                                                                                     \
    "attn.gr\xC3\xB6\xC3\x9F"                                                                      \
    "e-\xE2\x82\xAC-\xF0\x9F\x92\xA1-\xC3\xA4\xC3\xB6\xC3\xBC/1"

/* Without heads of keys; of a recurrence, without heads at all. */
static attn_status query_senseless(struct stage *stage, attn_error *error)
{
    struct rig *rig = stage->rig;
    attn_layer_group group = rig->question.groups[0];
    attn_linear_dims dims;
    attn_problem problem = rig->question.problems[0];
    attn_verdict verdict = {.struct_size = sizeof verdict};
    group.num_kv_heads = 0;
    if (group.linear) {
        dims = *group.linear;
        dims.num_v_heads = 0;
        group.linear = &dims;
    }
    problem.group = &group;
    attn_status status =
        rig->type->query(rig->type, rig->options, rig->services, &problem, &verdict, error);
    /* Some plugins refuse it with a reason, others as invalid. */
    return status == ATTN_OK && verdict.supported == 0 ? (attn_status)ATTN_STATUS_COUNT : status;
}

static attn_status create_with(struct rig *rig, const char *feature, const char *layout,
                               attn_error *error)
{
    attn_instance *instance = NULL;
    attn_problem problem = rig->question.problems[0];
    if (feature) {
        problem.num_features = 1;
        problem.features = &feature;
    }
    if (layout && problem.state_layout)
        problem.state_layout = layout;
    else if (layout)
        problem.kv_layout = layout;
    attn_status status =
        rig->type->create(rig->type, &problem, 1, rig->options, rig->services, &instance, error);
    if (status == ATTN_OK)
        rig_destroy(rig, instance);
    return status;
}

static attn_status create_feature(struct stage *stage, attn_error *error)
{
    return create_with(stage->rig, ODD_ID, NULL, error);
}

static attn_status create_layout(struct stage *stage, attn_error *error)
{
    return create_with(stage->rig, NULL, ODD_ID, error);
}

static attn_status size_kind(struct stage *stage, attn_error *error)
{
    attn_memory_size size = {.struct_size = sizeof size};
    return stage->rig->ops->metadata_size(stage->session->instance, UINT32_MAX, stage->rig->bounds,
                                          &size, error);
}

static attn_status size_modes(struct stage *stage, attn_error *error)
{
    attn_memory_size size = {.struct_size = sizeof size};
    attn_bounds bounds = *stage->rig->bounds;
    bounds.modes |= 1u << 31;
    return stage->rig->ops->metadata_size(stage->session->instance, ATTN_METADATA_EAGER, &bounds,
                                          &size, error);
}

static attn_status make_without_memory(struct stage *stage, attn_error *error)
{
    attn_memory none = {.struct_size = sizeof none};
    attn_metadata *metadata = NULL;
    const struct rig_session *session = stage->session;
    attn_status status = stage->rig->ops->metadata_create(
        session->instance, ATTN_METADATA_EAGER, stage->rig->bounds, &none, &metadata, error);
    uint64_t needed = 0;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        needed += session->memory.size.size[r];
    if (status != ATTN_OK || needed > 0)
        return status;
    stage->rig->ops->metadata_destroy(metadata);
    return ATTN_STATUS_COUNT; /* it needs none */
}

static attn_status forward_first(struct stage *stage, attn_error *error)
{
    struct rig *rig = stage->rig;
    rig->given_error = error;
    attn_status status = rig_forward(rig, stage->session->metadata, 0, 0);
    rig->given_error = &rig->run->error.base;
    return status;
}

static attn_status plan_too_many(struct stage *stage, attn_error *error)
{
    struct rig *rig = stage->rig;
    attn_batch batch = rig->batches[0].batch;
    batch.num_seqs = batch.num_real_seqs = RIG_SEQS + 1;
    return rig->ops->init_forward_metadata(stage->session->metadata, &batch, rig->stream, error);
}

static attn_status forward_unknown_layer(struct stage *stage, attn_error *error)
{
    int32_t *layer_id = &stage->rig->question.layers[0].layer_id, kept = *layer_id;
    if (rig_plan(stage->rig, stage->session->metadata, 0) != ATTN_OK)
        return ATTN_INTERNAL;
    *layer_id = INT32_MAX;
    attn_status status = forward_first(stage, error);
    *layer_id = kept;
    return status;
}

static attn_status forward_without_out(struct stage *stage, attn_error *error)
{
    const attn_tensor **out = &stage->rig->batches[0].layers[0].operands[ATTN_ROLE_OUT];
    const attn_tensor *kept = *out;
    if (rig_plan(stage->rig, stage->session->metadata, 0) != ATTN_OK)
        return ATTN_INTERNAL;
    *out = NULL;
    attn_status status = forward_first(stage, error);
    *out = kept;
    return status;
}

enum { NEEDS_NOTHING, NEEDS_METADATA, NEEDS_FORWARD };

/* ATTN_STATUS_COUNT from a call: it does not fail here. */
static const struct failing {
    const char *what;
    int needs; /* NEEDS_* */
    attn_status wanted;
    attn_status (*call)(struct stage *stage, attn_error *error);
} failings[] = {
    {"query without heads", NEEDS_NOTHING, ATTN_INVALID_ARGUMENT, query_senseless},
    {"create with an unknown feature", NEEDS_NOTHING, ATTN_UNSUPPORTED, create_feature},
    {"create with an unknown layout", NEEDS_NOTHING, ATTN_UNSUPPORTED, create_layout},
    {"metadata_size of an unknown kind", NEEDS_METADATA, ATTN_INVALID_ARGUMENT, size_kind},
    {"metadata_size of an unknown mode", NEEDS_METADATA, ATTN_UNSUPPORTED, size_modes},
    {"metadata_create without memory", NEEDS_METADATA, ATTN_BUFFER_TOO_SMALL, make_without_memory},
    {"forward before init_forward_metadata", NEEDS_METADATA, ATTN_BAD_STATE, forward_first},
    {"init_forward_metadata of too many sequences", NEEDS_METADATA, ATTN_INVALID_ARGUMENT,
     plan_too_many},
    {"forward of an unknown layer", NEEDS_FORWARD, ATTN_INVALID_ARGUMENT, forward_unknown_layer},
    {"forward without the operand out", NEEDS_FORWARD, ATTN_INVALID_ARGUMENT, forward_without_out},
};
enum { NUM_FAILINGS = sizeof failings / sizeof failings[0] };

CHECK_COUNT(failings, NUM_FAILINGS)

/* Call `body` on the stage of case run->index. */
typedef void (*body_fn)(struct check_run *run, struct stage *stage, const struct failing *failing);

static void with_stage(struct check_run *run, body_fn body)
{
    struct rig rig;
    struct rig_session session;
    struct stage stage = {.rig = &rig};
    const struct failing *failing = &failings[run->index];
    if (!rig_open(&rig, run, run->seed))
        return;
    if (failing->needs == NEEDS_NOTHING) {
        body(run, &stage, failing);
    } else if (failing->needs == NEEDS_METADATA ? rig_session_open_without(&session, &rig)
                                                : rig_session_open(&session, &rig)) {
        stage.session = &session;
        body(run, &stage, failing);
        rig_session_close(&session, &rig);
    }
    rig_close(&rig);
}

/* ---- ERR-01, ERR-02 -------------------------------------------------------------------------- */

static void judge_code(struct check_run *run, struct stage *stage, const struct failing *failing)
{
    attn_status status = failing->call(stage, check_error(run));
    if (status != ATTN_STATUS_COUNT)
        refusal_is(run, status, failing->wanted, failing->what);
}

CHECK_RUN(codes, with_stage(run, judge_code))

/* `whole` cut to a capacity. */
static void cut(const char *whole, size_t capacity, char *text)
{
    snprintf(text, capacity, "%s", whole);
    if (strlen(whole) >= capacity)
        text_cut_incomplete(text);
}

enum { ROOM = 1024, GUARD = 16 };

static void judge_capacity(struct check_run *run, struct stage *stage,
                           const struct failing *failing, attn_status wanted, const char *whole,
                           size_t capacity)
{
    unsigned char room[ROOM + GUARD];
    char expected[ROOM];
    memset(room, CASE_RED, sizeof room);
    attn_error error = {
        .struct_size = sizeof error, .capacity = (uint32_t)capacity, .message = (char *)room};
    check_note(run, "%s, capacity %zu", failing->what, capacity);
    attn_status status = failing->call(stage, &error);
    CHECK_THAT(run, status == wanted && error.code == status,
               "%s, capacity %zu: %s, code %d: accepted %s", failing->what, capacity,
               host_status_name(status), error.code, host_status_name(wanted));
    for (size_t b = capacity; b < capacity + GUARD; b++)
        CHECK_THAT(run, room[b] == CASE_RED, "%s, capacity %zu: byte %zu was written",
                   failing->what, capacity, b);
    if (capacity == 0)
        return;
    cut(whole, capacity, expected);
    CHECK_THAT(run, memchr(room, '\0', capacity), "%s, capacity %zu: the message is not terminated",
               failing->what, capacity);
    CHECK_THAT(run, strcmp((char *)room, expected) == 0,
               "%s, capacity %zu: '%s': accepted '%s', cut at a character boundary", failing->what,
               capacity, (char *)room, expected);
}

static void judge_message(struct check_run *run, struct stage *stage, const struct failing *failing)
{
    char whole[sizeof run->error.text];
    attn_error silent = {.struct_size = sizeof silent, .capacity = 64};
    attn_status status = failing->call(stage, check_error(run));
    if (status == ATTN_STATUS_COUNT || !refusal_is(run, status, failing->wanted, failing->what))
        return;
    snprintf(whole, sizeof whole, "%s", check_error_text(run));
    check_note(run, "%s, no attn_error", failing->what);
    attn_status wanted = status;
    status = failing->call(stage, NULL);
    CHECK_THAT(run, status == wanted, "%s, no attn_error: %s: accepted %s", failing->what,
               host_status_name(status), host_status_name(wanted));
    check_note(run, "%s, message NULL", failing->what);
    status = failing->call(stage, &silent);
    CHECK_THAT(run, status == wanted && silent.code == status,
               "%s, message NULL: %s, code %d: accepted %s", failing->what,
               host_status_name(status), silent.code, host_status_name(wanted));
    for (size_t capacity = 0; capacity <= strlen(whole) + 1 && run->code == CHECK_PASS; capacity++)
        judge_capacity(run, stage, failing, wanted, whole, capacity);
}

CHECK_RUN(messages, with_stage(run, judge_message))

/* A successful call does not write the error. */
static void run_success(struct check_run *run)
{
    struct rig rig;
    struct rig_session session;
    char text[16] = "untouched";
    const attn_error expected = {.struct_size = sizeof expected,
                                 .code = 77,
                                 .field = 78,
                                 .capacity = sizeof text,
                                 .message = text,
                                 .needed = 79};
    attn_error error = expected;
    if (!rig_open(&rig, run, run->seed))
        return;
    rig.given_error = &error;
    if (rig_session_open(&session, &rig)) {
        for (int b = 0; b < rig.num_batches; b++)
            free(rig_run(&rig, session.metadata, b));
        rig_session_close(&session, &rig);
        if (memcmp(&error, &expected, sizeof error) != 0 || strcmp(text, "untouched") != 0)
            check_fail(run, "a call that succeeds writes into attn_error: code %d, '%.15s'",
                       error.code, text);
    }
    rig_close(&rig);
}

/* ---- ERR-05 ---------------------------------------------------------------------------------- */

/* Does a text have the word, with no letter, digit or underscore next to it? */
static bool has_word(const char *text, const char *word)
{
    const char *set = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if ((at == text || !strchr(set, at[-1])) && (!at[length] || !strchr(set, at[length])))
            return true;
    return false;
}

static void leave_out(struct rig *rig, attn_metadata *metadata, int batch, uint32_t role)
{
    char what[64];
    const attn_tensor **operand = &rig->batches[batch].layers[0].operands[role], *kept = *operand;
    if (!rig_good(rig, rig_plan(rig, metadata, batch), "init_forward_metadata"))
        return;
    snprintf(what, sizeof what, "%s forward without the operand %s", rig_a_batch(rig, batch),
             role_name(role));
    check_note(rig->run, "%s", what);
    *operand = NULL;
    attn_status status = rig_forward(rig, metadata, batch, 0);
    *operand = kept;
    if (refusal_is(rig->run, status, ATTN_INVALID_ARGUMENT, what) &&
        !has_word(check_error_text(rig->run), role_name(role)))
        check_fail(rig->run, "%s: '%s' does not name it", what, check_error_text(rig->run));
}

static void check_roles(struct rig *rig, struct rig_session *session)
{
    uint32_t roles[ATTN_ROLE_COUNT];
    int count = rig_needed_roles(rig, roles);
    for (int b = 0; b < rig->num_batches; b++)
        for (int r = 0; r < count && rig->run->code == CHECK_PASS; r++)
            leave_out(rig, session->metadata, b, roles[r]);
    if (rig->run->code == CHECK_PASS)
        free(rig_run(rig, session->metadata, 0));
}

/* Sinks and slopes, which only some layers have. */
static void run_head_roles(struct check_run *run)
{
    static const uint32_t head_roles[] = {ATTN_ROLE_SINKS, ATTN_ROLE_ALIBI_SLOPES};
    static const uint32_t flags[] = {ATTN_GROUP_HAS_SINKS, ATTN_GROUP_HAS_ALIBI};
    struct rig rig;
    struct rig_session session;
    int tried = 0;
    for (int r = 0; r < 2 && run->code == CHECK_PASS; r++) {
        if (!rig_open(&rig, run, run->seed))
            return;
        rig.question.groups[0].flags = rig.question.groups[1].flags = flags[r];
        if (rig_accepts(run->subject, &rig.question.problems[0]) &&
            rig_session_open(&session, &rig)) {
            tried++;
            leave_out(&rig, session.metadata, 0, head_roles[r]);
            rig_session_close(&session, &rig);
        }
        rig_close(&rig);
    }
    if (tried == 0 && run->code == CHECK_PASS)
        check_skip(run, "query accepts neither sinks nor ALiBi");
}

/* ---- ERR-03: errno --------------------------------------------------------------------------- */

/* The last failing call of the C library sets errno: to a number of the system, never to 0. */
static bool errno_is_good(struct check_run *run, const char *slot)
{
    int number = errno;
    bool good = number > 0 && number < 4096;
    if (!good)
        check_fail(run, "after %s errno is %d, before: %d; accepted a number that this system uses",
                   slot, number, EDOM);
    return good;
}

static bool query_keeps_errno(const struct rig *rig)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    errno = EDOM;
    rig->type->query(rig->type, rig->options, rig->services, rig->problems, &verdict, NULL);
    return errno_is_good(rig->run, "query");
}

static bool batches_keep_errno(struct rig *rig, attn_metadata *metadata)
{
    bool good = true;
    for (int batch = 0; batch < rig->num_batches && good; batch++) {
        errno = EDOM;
        attn_status status = rig_plan(rig, metadata, batch);
        good = errno_is_good(rig->run, "init_forward_metadata") &&
               rig_good(rig, status, "init_forward_metadata");
        for (int layer = 0; layer < RIG_LAYERS && good; layer++) {
            errno = EDOM;
            status = rig_forward(rig, metadata, batch, layer);
            good = errno_is_good(rig->run, "forward") && rig_good(rig, status, "forward");
        }
    }
    return good;
}

static void run_errno(struct check_run *run)
{
    struct rig rig;
    struct rig_session session;
    if (!rig_open(&rig, run, run->seed))
        return;
    errno = EDOM;
    if (query_keeps_errno(&rig) && rig_session_open(&session, &rig)) {
        if (errno_is_good(run, "create, metadata_size and metadata_create"))
            batches_keep_errno(&rig, session.metadata);
        errno = EDOM;
        rig_session_close(&session, &rig);
        if (run->code == CHECK_PASS)
            errno_is_good(run, "metadata_destroy and destroy");
    }
    rig_close(&rig);
}

/* ---- ERR-06 ---------------------------------------------------------------------------------- */

static void judge_prefix(struct check_run *run, struct stage *stage, const struct failing *failing)
{
    const char *name = run->subject->type->name;
    attn_status status = failing->call(stage, check_error(run));
    if (status != ATTN_OK && status != ATTN_STATUS_COUNT &&
        strncmp(check_error_text(run), name, strlen(name)) == 0)
        check_warn(run, "%s: '%s' begins with the backend's own name", failing->what,
                   check_error_text(run));
}

CHECK_RUN(prefix, with_stage(run, judge_prefix))

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_err[] = {
    CHECK_ROW("ERR-01", codes, count_failings, 0,
              "a call that must fail returns the status of its rule"),
    CHECK_ROW("ERR-02", messages, count_failings, 0,
              "a failure writes a UTF-8 message truncated at a character boundary, or none if the "
              "caller wants none"),
    CHECK_ROW("ERR-02", success, NULL, 0, "a call that succeeds does not write to the error"),
    CHECK_ROW("ERR-03", errno, NULL, 0,
              "the plugin never sets errno to 0 or to a number that the system does not define"),
    RIG_ROW("ERR-05", roles, rig_count_seeds, 0,
            "a missing operand is INVALID_ARGUMENT, and the message names it", .body = check_roles),
    CHECK_ROW("ERR-05", head_roles, NULL, 0,
              "missing sinks or ALiBi slopes are INVALID_ARGUMENT, and the message names them"),
    CHECK_ROW("ERR-06", prefix, count_failings, 0,
              "a message does not begin with the backend's own name"),
    {.rule = NULL},
};
