/* SPDX-License-Identifier: Apache-2.0
 *
 * struct.c: the group STRUCT: every struct of the ABI, passed smaller (without members that may be
 * absent) or at its exact size, with a page after it that must not be touched, and larger, with
 * poison at its end. The whole use of a backend gives the same each time. */
#include "host/check/contract/contract.h"

#include <stdlib.h>
#include <string.h>

#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"
#include "host/check/cases/sized.h"

/* ---- Structs of a life ----------------------------------------------------------------------- */

/* Puts copies of the size `to` into the place of a rig's structs. false: no memory. */
typedef bool (*swap_fn)(struct rig *rig, struct sized *sized, size_t to);

/* *pointer, to a struct or to the first of some, gets a copy. */
static bool swap(struct sized *sized, void *pointer, size_t size, uint32_t count, size_t to)
{
    const void *from, *copy;
    memcpy(&from, pointer, sizeof from);
    copy = from ? sized_copy(sized, from, size, count, to) : NULL;
    memcpy(pointer, &copy, sizeof copy);
    return copy || !from;
}
#define SWAP(pointer, count) swap(sized, &(pointer), sizeof *(pointer), count, to)

static bool swap_problems(struct rig *rig, struct sized *sized, size_t to)
{
    return SWAP(rig->problems, RIG_GROUPS);
}

static bool swap_groups(struct rig *rig, struct sized *sized, size_t to)
{
    static const size_t needed[] = {[ATTN_KIND_MLA] = offsetof(attn_layer_group, linear),
                                    [ATTN_KIND_LINEAR] = offsetof(attn_layer_group, sparse),
                                    [ATTN_KIND_SPARSE] = sizeof(attn_layer_group)};
    uint32_t kind = rig->question.groups[0].kind;
    if (kind != ATTN_KIND_SOFTMAX && to < needed[kind])
        to = needed[kind]; /* the dimensions */
    return SWAP(rig->question.problems[0].group, 1) && SWAP(rig->question.problems[1].group, 1);
}

static bool swap_layers(struct rig *rig, struct sized *sized, size_t to)
{
    return SWAP(rig->question.groups[0].layers, 2) && SWAP(rig->question.groups[1].layers, 1);
}

static bool swap_bounds(struct rig *rig, struct sized *sized, size_t to)
{
    bool good = SWAP(rig->bounds, 1);
    for (int g = 0; g < RIG_GROUPS; g++)
        rig->question.problems[g].bounds = rig->bounds;
    return good;
}

static bool swap_device(struct rig *rig, struct sized *sized, size_t to)
{
    return SWAP(rig->question.problems[0].device, 1) && SWAP(rig->question.problems[1].device, 1);
}

static bool swap_options(struct rig *rig, struct sized *sized, size_t to)
{
    return SWAP(rig->options, 1);
}

static bool swap_values(struct rig *rig, struct sized *sized, size_t to)
{
    attn_options *options = sized_copy(sized, rig->options, sizeof *options, 1, sizeof *options);
    rig->options = options;
    return options && (options->num_values == 0 || SWAP(options->values, options->num_values));
}

static bool swap_services(struct rig *rig, struct sized *sized, size_t to)
{
    return SWAP(rig->services, 1);
}

static bool swap_batch(struct rig *rig, struct sized *sized, size_t to)
{
    bool good = true;
    for (int b = 0; b < rig->num_batches; b++)
        good = good && SWAP(rig->given_batches[b], 1);
    return good;
}

/* Members after the last form that is filled in may be absent. */
static bool swap_kv_groups(struct rig *rig, struct sized *sized, size_t to)
{
    bool good = true;
    if (to < sizeof(attn_kv_batch))
        to = rig->index_forms & ATTN_INDEX_CSR           ? sizeof(attn_kv_batch)
             : rig->index_forms & ATTN_INDEX_BLOCK_TABLE ? offsetof(attn_kv_batch, kv_indptr)
                                                         : offsetof(attn_kv_batch, block_table);
    for (int b = 0; b < rig->num_batches; b++)
        good = good && SWAP(rig->batches[b].batch.kv_groups, rig->batches[b].batch.num_kv_groups);
    return good;
}

static bool swap_state_groups(struct rig *rig, struct sized *sized, size_t to)
{
    bool good = true;
    for (int b = 0; b < rig->num_batches; b++)
        good = good &&
               SWAP(rig->batches[b].batch.state_groups, rig->batches[b].batch.num_state_groups);
    return good;
}

static bool swap_args(struct rig *rig, struct sized *sized, size_t to)
{
    bool good = true;
    for (int n = 0; n < rig->num_batches * RIG_LAYERS; n++) {
        attn_forward_args *args = &rig->batches[n / RIG_LAYERS].layers[n % RIG_LAYERS].args;
        if (to < sizeof *args) /* without `scales` */
            args->num_scales = 0;
        good = good && SWAP(rig->given_args[n / RIG_LAYERS][n % RIG_LAYERS], 1);
    }
    return good;
}

static bool swap_tensors(struct rig *rig, struct sized *sized, size_t to)
{
    bool good = true;
    for (int n = 0; n < rig->num_batches * RIG_LAYERS; n++)
        for (int role = 0; role < ATTN_ROLE_COUNT; role++)
            good =
                good && SWAP(rig->batches[n / RIG_LAYERS].layers[n % RIG_LAYERS].operands[role], 1);
    return good;
}

/* ---- Structs that are written ---------------------------------------------------------------- */

/* Like a struct of a life, with its own check; `session` is an open one. */
typedef void (*judge_fn)(struct rig *rig, struct rig_session *session, struct sized *sized,
                         size_t to);

static void judge_verdict(struct rig *rig, struct rig_session *session, struct sized *sized,
                          size_t to)
{
    const attn_verdict empty = {.struct_size = sizeof empty};
    attn_verdict *verdict = sized_copy(sized, &empty, sizeof empty, 1, to);
    (void)session;
    attn_status status = rig->type->query(rig->type, rig->options, rig->services, rig->problems,
                                          verdict, check_error(rig->run));
    if (!rig_good(rig, status, "query"))
        return;
    CHECK_THAT(rig->run, verdict->supported == 1 && verdict->num_reasons == 0,
               "attn_verdict of %zu bytes: supported %u, num_reasons %u: accepted 1, 0", to,
               verdict->supported, verdict->num_reasons);
    CHECK_THAT(rig->run,
               to < sizeof *verdict || (verdict->graph_level == rig->verdict.graph_level &&
                                        verdict->traits == rig->verdict.traits),
               "attn_verdict of %zu bytes: graph_level or traits differ", to);
}

/* Query a problem that must be refused for several reasons. */
static attn_status ask_wrong(struct rig *rig, attn_reason *reasons, uint32_t capacity,
                             attn_verdict *verdict)
{
    static const char *const features[] = {"attn.no_such_feature/1"};
    attn_bounds bounds = rig->question.bounds;
    attn_problem problem = rig->question.problems[0];
    bounds.modes |= 1u << 31;
    bounds.mask_kinds |= 1u << 31;
    problem.bounds = &bounds;
    rig_spoil_layout(&problem);
    problem.required_traits = 1u << 31;
    problem.num_features = 1;
    problem.features = features;
    *verdict = (attn_verdict){
        .struct_size = sizeof *verdict, .reasons_capacity = capacity, .reasons = reasons};
    return rig->type->query(rig->type, rig->options, rig->services, &problem, verdict,
                            check_error(rig->run));
}

static void judge_reasons(struct rig *rig, struct rig_session *session, struct sized *sized,
                          size_t to)
{
    enum { CAPACITY = 8 };
    attn_reason plain[CAPACITY], zero[CAPACITY];
    attn_verdict expected, got;
    (void)session;
    memset(zero, 0, sizeof zero);
    for (int r = 0; r < CAPACITY; r++) {
        zero[r].struct_size = sizeof zero[r];
        plain[r] = zero[r];
    }
    attn_reason *moved = sized_copy(sized, zero, sizeof zero[0], CAPACITY, to);
    if (!moved || !rig_good(rig, ask_wrong(rig, plain, CAPACITY, &expected), "query") ||
        !rig_good(rig, ask_wrong(rig, moved, CAPACITY, &got), "query"))
        return;
    CHECK_THAT(rig->run, !expected.supported && expected.num_reasons == got.num_reasons,
               "%u reasons in elements of %zu bytes, %u in elements of %zu bytes", got.num_reasons,
               to, expected.num_reasons, sizeof plain[0]);
    for (uint32_t r = 0; r < got.num_reasons && r < CAPACITY; r++) {
        const attn_reason *reason = attn_at(moved, r);
        CHECK_THAT(rig->run,
                   reason->struct_size == to && reason->code == plain[r].code &&
                       reason->field == plain[r].field && strcmp(reason->got, plain[r].got) == 0,
                   "reason %u in elements of %zu bytes is code %u, field %u, '%.63s': accepted %u, "
                   "%u, '%s', as in elements of %zu bytes",
                   r, to, reason->code, reason->field, reason->got, plain[r].code, plain[r].field,
                   plain[r].got, sizeof plain[0]);
    }
}

static void judge_memory_size(struct rig *rig, struct rig_session *session, struct sized *sized,
                              size_t to)
{
    const attn_memory_size empty = {.struct_size = sizeof empty};
    attn_memory_size *size = sized_copy(sized, &empty, sizeof empty, 1, to);
    attn_status status = rig->ops->metadata_size(session->instance, ATTN_METADATA_EAGER,
                                                 rig->bounds, size, check_error(rig->run));
    if (rig_good(rig, status, "metadata_size"))
        CHECK_THAT(rig->run,
                   memcmp(size->size, session->memory.size.size, sizeof size->size) == 0 &&
                       memcmp(size->alignment, session->memory.size.alignment,
                              sizeof size->alignment) == 0,
                   "attn_memory_size of %zu bytes: other sizes", to);
}

static void judge_memory(struct rig *rig, struct rig_session *session, struct sized *sized,
                         size_t to)
{
    attn_metadata *metadata = NULL;
    const attn_memory *memory = sized_copy(sized, &session->memory.memory, sizeof *memory, 1, to);
    rig->ops->metadata_destroy(session->metadata);
    regions_fill(&session->memory, ATTN_MEMORY_ZEROED, 0, NULL);
    attn_status status =
        rig->ops->metadata_create(session->instance, ATTN_METADATA_EAGER, rig->bounds, memory,
                                  &metadata, check_error(rig->run));
    session->metadata = metadata;
    if (rig_good(rig, status, "metadata_create"))
        free(rig_run(rig, metadata, 0));
}

/* Two failures: one that names a field, one that gives the bytes needed. */
static void judge_error(struct rig *rig, struct rig_session *session, struct sized *sized,
                        size_t to)
{
    char text[256] = "";
    const attn_error empty = {
        .struct_size = sizeof empty, .capacity = sizeof text, .message = text};
    attn_error *error = sized_copy(sized, &empty, sizeof empty, 1, to);
    attn_memory none = {.struct_size = sizeof none};
    attn_metadata *metadata = NULL;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_status status =
        rig->ops->metadata_size(session->instance, UINT32_MAX, rig->bounds, &size, error);
    CHECK_THAT(rig->run, status != ATTN_OK && error->code == status && *text,
               "attn_error of %zu bytes: metadata_size of an unknown kind gives %d, code %d, '%s'",
               to, status, error->code, text);
    text[0] = '\0';
    status = rig->ops->metadata_create(session->instance, ATTN_METADATA_EAGER, rig->bounds, &none,
                                       &metadata, error);
    uint64_t needed = 0;
    for (int r = 0; r < (int)ATTN_REGION_COUNT; r++)
        needed += session->memory.size.size[r];
    CHECK_THAT(rig->run, needed == 0 || (status == ATTN_BUFFER_TOO_SMALL && *text),
               "attn_error of %zu bytes: metadata_create without memory gives %s, '%s'", to,
               host_status_name(status), text);
}

/* ---- Table of structs ------------------------------------------------------------------------ */

enum stage { BEFORE_CREATE, BEFORE_PLAN, BY_ITSELF };

struct shape {
    const char *name;
    size_t size, smaller; /* smaller = size: nothing of it may be absent */
    enum stage stage;
    swap_fn swap;
    judge_fn judge;
    bool may_zero; /* what follows may become zero */
};

#define WHOLE(type)         sizeof(type), sizeof(type)
#define UNTIL(type, member) sizeof(type), offsetof(type, member)

static const struct shape shapes[] = {
    {"attn_layer_group", UNTIL(attn_layer_group, mla), BEFORE_CREATE, swap_groups, NULL, false},
    {"attn_bounds", WHOLE(attn_bounds), BEFORE_CREATE, swap_bounds, NULL, false},
    {"attn_device", UNTIL(attn_device, memory_bytes), BEFORE_CREATE, swap_device, NULL, false},
    {"attn_options", WHOLE(attn_options), BEFORE_CREATE, swap_options, NULL, false},
    {"attn_services", UNTIL(attn_services, poll_error), BEFORE_CREATE, swap_services, NULL, false},
    {"attn_batch", UNTIL(attn_batch, mask), BEFORE_PLAN, swap_batch, NULL, false},
    {"attn_forward_args", UNTIL(attn_forward_args, scales), BEFORE_PLAN, swap_args, NULL, false},
    {"attn_tensor", WHOLE(attn_tensor), BEFORE_PLAN, swap_tensors, NULL, false},
    {"attn_verdict", UNTIL(attn_verdict, graph_level), BY_ITSELF, NULL, judge_verdict, true},
    {"attn_memory_size", WHOLE(attn_memory_size), BY_ITSELF, NULL, judge_memory_size, true},
    {"attn_memory", WHOLE(attn_memory), BY_ITSELF, NULL, judge_memory, false},
    {"attn_error", UNTIL(attn_error, needed), BY_ITSELF, NULL, judge_error, false},
};

/* Elements of an array are aligned, whatever their size is. */
_Static_assert(offsetof(attn_problem, kv_strides) % _Alignof(attn_problem) == 0, "a whole stride");

static const struct shape arrays[] = {
    {"attn_problem[]", UNTIL(attn_problem, kv_strides), BEFORE_CREATE, swap_problems, NULL, false},
    {"attn_layer[]", WHOLE(attn_layer), BEFORE_CREATE, swap_layers, NULL, false},
    {"attn_option_value[]", WHOLE(attn_option_value), BEFORE_CREATE, swap_values, NULL, false},
    {"attn_kv_batch[]", UNTIL(attn_kv_batch, block_table), BEFORE_PLAN, swap_kv_groups, NULL,
     false},
    {"attn_state_batch[]", UNTIL(attn_state_batch, snapshots), BEFORE_PLAN, swap_state_groups, NULL,
     false},
    {"attn_reason[]", UNTIL(attn_reason, accepted), BY_ITSELF, NULL, judge_reasons, true},
};

/* ---- Run ------------------------------------------------------------------------------------- */

static void compare(struct rig *rig, attn_metadata *metadata, char *const expected[RIG_BATCHES],
                    const struct shape *shape, size_t to)
{
    for (int b = 0; b < rig->num_batches && rig->run->code == CHECK_PASS; b++) {
        char *result = rig_run(rig, metadata, b);
        const char *what = result ? rig_difference(rig, b, expected[b], result) : NULL;
        if (what)
            check_fail(rig->run,
                       "%s of %zu bytes: %s of the %s batch differs from that with %zu bytes",
                       shape->name, to, what, rig_batch_name(rig, b), shape->size);
        free(result);
    }
}

static void run_shape(struct rig *rig, const struct shape *shape, size_t to,
                      char *const expected[RIG_BATCHES])
{
    struct sized sized = {.num_copies = 0};
    struct rig_session session;
    bool good = shape->stage != BEFORE_CREATE || shape->swap(rig, &sized, to);
    check_note(rig->run, "%s of %zu bytes instead of %zu", shape->name, to, shape->size);
    if (good && rig_session_open(&session, rig)) {
        if (shape->stage == BEFORE_PLAN)
            good = shape->swap(rig, &sized, to);
        if (shape->judge)
            shape->judge(rig, &session, &sized, to);
        else if (good)
            compare(rig, session.metadata, expected, shape, to);
        rig_session_close(&session, rig);
    }
    if (!good)
        check_fail(rig->run, "no memory for copies of %s", shape->name);
    if (!sized_is_whole(&sized, shape->may_zero))
        check_fail(rig->run, "%s of %zu bytes: the bytes after the known %zu were written",
                   shape->name, to, shape->size);
    sized_finish(&sized);
}

/* Case 2 i: shape i, smaller; 2 i + 1: larger. */
static void run_case(struct check_run *run, const struct shape *table)
{
    const struct shape *shape = &table[run->index / 2];
    size_t to = run->index % 2 ? shape->size + SIZED_EXTRA : shape->smaller;
    struct rig plain, rig;
    char *expected[RIG_BATCHES];
    if (!rig_open(&plain, run, run->seed))
        return;
    if (rig_life(&plain, expected)) {
        if (rig_open(&rig, run, run->seed)) {
            run_shape(&rig, shape, to, expected);
            rig_close(&rig);
        }
        rig_free(expected);
    }
    rig_close(&plain);
}

CHECK_COUNT(sizes, 2 * (int32_t)(sizeof shapes / sizeof shapes[0]))
CHECK_COUNT(arrays, 2 * (int32_t)(sizeof arrays / sizeof arrays[0]))
CHECK_RUN(sizes, run_case(run, shapes))
CHECK_RUN(arrays, run_case(run, arrays))

static void run_reserved(struct check_run *run)
{
    const attn_backend_ops *ops = run->subject->type->ops;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_instance *instance = NULL;
    struct rig rig;
    CHECK_THAT(run, ops->reserved == 0, "attn_backend_ops.reserved is %u: accepted 0",
               ops->reserved);
    if (!rig_open(&rig, run, run->seed))
        return;
    if (rig_create_for(&rig, &instance)) {
        attn_status status = rig_metadata_size(&rig, instance, &size);
        if (rig_good(&rig, status, "metadata_size") && size.reserved != 0)
            check_fail(run, "attn_memory_size.reserved is %u: accepted 0", size.reserved);
        rig_destroy(&rig, instance);
    }
    rig_close(&rig);
}

/* ---- The entry ------------------------------------------------------------------------------- */

struct entry_sizes {
    size_t host, plugin, error;
};

/* Both calls of an entry: a good one, and one that fails. */
static void call_entry(struct check_run *run, attn_plugin_entry_fn entry,
                       const struct entry_sizes *sizes)
{
    char text[256] = "";
    struct sized sized = {.num_copies = 0};
    const attn_plugin empty = {.struct_size = sizeof empty};
    const attn_error silent = {
        .struct_size = sizeof silent, .capacity = sizeof text, .message = text};
    attn_host_info good = check_host_of(run, ATTN_ABI_MAJOR, ATTN_ABI_MAJOR, ATTN_ABI_MINOR);
    attn_host_info bad = good;
    bad.abi_major_min = bad.abi_major_max = ATTN_ABI_MAJOR + 1000;
    check_note(run, "attn_host_info of %zu bytes, attn_plugin of %zu, attn_error of %zu",
               sizes->host, sizes->plugin, sizes->error);
    const attn_host_info *host = sized_copy(&sized, &good, sizeof good, 1, sizes->host);
    const attn_host_info *other = sized_copy(&sized, &bad, sizeof bad, 1, sizes->host);
    attn_plugin *plugin = sized_copy(&sized, &empty, sizeof empty, 1, sizes->plugin);
    attn_error *error = sized_copy(&sized, &silent, sizeof silent, 1, sizes->error);
    attn_status status = entry(host, plugin, error);
    if (status != ATTN_OK)
        check_fail(run, "attn_host_info of %zu bytes, attn_plugin of %zu: %s: %s", sizes->host,
                   sizes->plugin, host_status_name(status), text);
    else if (plugin->num_backends == 0 || !plugin->name || !plugin->describe)
        check_fail(run, "attn_plugin of %zu bytes is not filled in", sizes->plugin);
    status = entry(other, plugin, error);
    if (status != ATTN_INCOMPATIBLE_VERSION || error->code != status || !*text)
        check_fail(run, "attn_error of %zu bytes: an entry without a common major gives %s, '%s'",
                   sizes->error, host_status_name(status), text);
    if (!sized_is_whole(&sized, true))
        check_fail(run,
                   "attn_plugin of %zu bytes, attn_error of %zu: the bytes after them were written",
                   sizes->plugin, sizes->error);
    sized_finish(&sized);
}

static void run_entry(struct check_run *run)
{
    const struct entry_sizes sizes[] = {
        {sizeof(attn_host_info), sizeof(attn_plugin), sizeof(attn_error)},
        {sizeof(attn_host_info) + SIZED_EXTRA, sizeof(attn_plugin) + SIZED_EXTRA,
         sizeof(attn_error) + SIZED_EXTRA},
        {sizeof(attn_host_info), offsetof(attn_plugin, get_extension),
         offsetof(attn_error, needed)},
    };
    const attn_plugin_entry_fn entry = check_find_entry(run);
    for (size_t s = 0; entry && s < sizeof sizes / sizeof sizes[0]; s++)
        call_entry(run, entry, &sizes[s]);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_structs[] = {
    CHECK_ROW("STRUCT-02", entry, NULL, CHECK_ONCE,
              "the entry accepts structs that are smaller or larger than its own"),
    CHECK_ROW(
        "STRUCT-02", sizes, count_sizes, 0,
        "members beyond a smaller struct count as zero and are not accessed; extra members of a "
        "larger struct are not written"),
    CHECK_ROW("STRUCT-05", arrays, count_arrays, 0,
              "arrays are walked by the struct_size of their first element"),
    CHECK_ROW("STRUCT-06", reserved, NULL, 0, "reserved members are zero"),
    {.rule = NULL},
};
