/* SPDX-License-Identifier: Apache-2.0
 *
 * caps.c: are query's answers right and complete?
 *
 * Ten thousand random problems, a thousand to a case: points of the grid, with up to five fields
 * set to anything. Accepted problems are created and run, and refused ones are refused everywhere.
 * Reasons name exactly the fields that must change: with accepted values for all of them query
 * accepts, with all but one it refuses. */
#include "host/check/contract/caps.h"
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numerics.h"

#include "host/base/error.h"
#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"

#include <string.h>

enum {
    RUN_EVERY = 8,      /* accepted problems, unless the run is exhaustive */
    COMPILE_EVERY = 64, /* where each is likely to be compiled first */
    SIZE_EVERY = 8,     /* refused bounds */
    LARGE_DIM = 512     /* heads beyond it are few among the problems: all of them are run */
};

/* ---- CAPS-01: the same answer ---------------------------------------------------------------- */

bool caps_look_same(struct caps_visit *visit, const struct caps_problem *p,
                    const struct caps_answer *answer)
{
    struct caps_problem asked;
    struct caps_answer again;
    caps_problem_copy(&asked, p);
    caps_ask(visit->run->subject, &asked.problem, &again);
    if (!caps_same_answer(answer, &again))
        return caps_tell(visit, p, "query gives another answer the second time");
    if (memcmp(&asked.group, &p->group, offsetof(attn_layer_group, layers)) != 0 ||
        memcmp(&asked.bounds, &p->bounds, sizeof p->bounds) != 0 ||
        memcmp(&asked.device, &p->device, sizeof p->device) != 0)
        return caps_tell(visit, p, "query changes its problem argument");
    return true;
}

/* ---- CAPS-02: what is accepted runs ---------------------------------------------------------- */

/* The problem's own bounds, reduced to small memory. */
static void widen_bounds(attn_bounds *bounds, const attn_bounds *wanted)
{
    static const int32_t most[] = {256, 2048, 2048, 16384};
    const int32_t *from[] = {&wanted->max_seqs, &wanted->max_tokens, &wanted->max_q_len,
                             &wanted->max_kv_len};
    int32_t *to[] = {&bounds->max_seqs, &bounds->max_tokens, &bounds->max_q_len,
                     &bounds->max_kv_len};
    for (int n = 0; n < 4; n++)
        if (*from[n] > *to[n])
            *to[n] = *from[n] < most[n] ? *from[n] : most[n];
    if (wanted->max_kv_tokens > bounds->max_kv_tokens)
        bounds->max_kv_tokens = wanted->max_kv_tokens < 65536 ? wanted->max_kv_tokens : 65536;
    bounds->modes = wanted->modes;
    bounds->mask_kinds = wanted->mask_kinds;
    bounds->uses = wanted->uses;
}

/* Create, metadata and a forward for the problem as it was asked about. */
static bool run_problem(struct caps_visit *visit, const struct caps_problem *p,
                        const struct case_spec *spec)
{
    struct check_run *run = visit->run;
    struct forward_case *c = numerics_case(run, spec, NULL);
    if (!c)
        return false;
    attn_problem *problem = &c->posed.problem;
    problem->graph_level = p->problem.graph_level;
    problem->required_traits = p->problem.required_traits;
    problem->mla_expanded = p->problem.mla_expanded;
    c->posed.layers[0].flags = p->layers[0].flags;
    c->posed.group.num_layers = p->group.num_layers;
    widen_bounds(&c->posed.bounds, &p->bounds);
    bool good = numerics_judge_alone(run, c, NULL);
    forward_case_destroy(c);
    return good;
}

static bool look_runs(struct caps_visit *visit, const struct caps_problem *p,
                      const struct caps_answer *answer)
{
    struct case_spec spec;
    int64_t every =
        visit->grid->traits & ATTN_TRAIT_RUNTIME_COMPILATION ? COMPILE_EVERY : RUN_EVERY;
    bool chosen = visit->run->subject->exhaustive || visit->accepted % every == 0 ||
                  p->group.head_dim > LARGE_DIM;
    if (answer->status != ATTN_OK || !answer->verdict.supported || !chosen ||
        !caps_problem_spec(p, visit->seed, &spec))
        return true;
    return run_problem(visit, p, &spec);
}

/* ---- CAPS-03: what is refused stays refused -------------------------------------------------- */

bool caps_look_create(struct caps_visit *visit, const struct caps_problem *p,
                      const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    char here;
    attn_instance *const untouched = (attn_instance *)(void *)&here;
    attn_instance *instance = untouched;
    if (answer->status == ATTN_OK && answer->verdict.supported)
        return true;
    attn_status status = numerics_create(visit->run, NULL, &p->problem, &instance);
    bool good = answer->status == ATTN_OK ? refusal_gives(subject, status, ATTN_UNSUPPORTED)
                                          : status == answer->status || status == ATTN_UNSUPPORTED;
    if (status == ATTN_OK)
        subject->type->ops->destroy(instance);
    if (!good)
        return caps_tell(visit, p, "query refuses, create gives %s %.300s: accepted UNSUPPORTED",
                         host_status_name(status), check_error_text(visit->run));
    if (instance != untouched)
        return caps_tell(visit, p, "create fails, but sets its output");
    if (!check_error_text(visit->run)[0])
        return caps_tell(visit, p, "create fails without a message");
    return true;
}

static bool only_bounds(const struct caps_answer *answer)
{
    uint32_t count = caps_num_reasons(answer);
    for (uint32_t r = 0; r < count; r++)
        if (!caps_is_bound(answer->reasons[r].field))
            return false;
    return count > 0 && answer->verdict.num_reasons <= CAPS_MAX_REASONS;
}

/* An instance of the same problem within other bounds refuses metadata for these. */
static bool refuses_metadata(struct caps_visit *visit, const struct caps_problem *p,
                             attn_instance *instance)
{
    const attn_backend_ops *ops = visit->run->subject->type->ops;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    attn_metadata *metadata = NULL;
    attn_status status = ops->metadata_size(instance, ATTN_METADATA_EAGER, &p->bounds, &size,
                                            check_error(visit->run));
    if (!refusal_gives(visit->run->subject, status, ATTN_UNSUPPORTED))
        return caps_tell(visit, p,
                         "query refuses bounds for which metadata_size gives %s %.300s: accepted "
                         "UNSUPPORTED",
                         host_status_name(status), check_error_text(visit->run));
    status = ops->metadata_create(instance, ATTN_METADATA_EAGER, &p->bounds, &memory, &metadata,
                                  check_error(visit->run));
    if (refusal_gives(visit->run->subject, status, ATTN_UNSUPPORTED) && !metadata)
        return true;
    return caps_tell(
        visit, p, "query refuses bounds for which metadata_create gives %s: accepted UNSUPPORTED",
        host_status_name(status));
}

bool caps_look_bounds(struct caps_visit *visit, const struct caps_problem *p,
                      const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    struct caps_problem within;
    attn_instance *instance = NULL;
    /* For other kinds, few problems are refused for their bounds alone. */
    int64_t every = p->group.kind == ATTN_KIND_SOFTMAX ? SIZE_EVERY : 1;
    if (!only_bounds(answer) || p->elsewhere || visit->refused % every != 0)
        return true;
    caps_problem_copy(&within, p);
    within.bounds = visit->plain.bounds;
    if (!caps_accepts(subject, &within) ||
        numerics_create(visit->run, NULL, &within.problem, &instance) != ATTN_OK)
        return true;
    bool good = refuses_metadata(visit, p, instance);
    subject->type->ops->destroy(instance);
    return good;
}

/* ---- CAPS-05: what is unknown ---------------------------------------------------------------- */

/* And the first number after the members, which a wrong `<=` would accept. */
static const struct caps_unknown unknowns[] = {
    CAPS_VALUE("kind 1000", ATTN_FIELD_KIND, true, group.kind, 1000),
    CAPS_VALUE("attn_type 1000", ATTN_FIELD_ATTN_TYPE, true, group.attn_type, 1000),
    CAPS_BITS("bit 31 of the group's flags", 0, true, group.flags, 1u << 31),
    CAPS_BITS("bit 31 of a layer's flags", 0, true, layers[0].flags, 1u << 31),
    CAPS_VALUE("kv_scale_granularity 1000", ATTN_FIELD_SCALE_GRANULARITY, false,
               group.kv_scale_granularity, 1000),
    CAPS_VALUE("device.type 1000", ATTN_FIELD_DEVICE_TYPE, true, device.type, 1000),
    {"q_dtype of code 99",
     ATTN_FIELD_Q_DTYPE,
     {CAPS_CHANGE(problem.q_dtype, ATTN_DTYPE(99, 16), false),
      CAPS_CHANGE(problem.kv_dtype, ATTN_DTYPE(99, 16), false)},
     NULL,
     true},
    CAPS_VALUE("kv_dtype of code 99", ATTN_FIELD_KV_DTYPE, false, problem.kv_dtype,
               ATTN_DTYPE(99, 8)),
    CAPS_VALUE("out_dtype of code 99", ATTN_FIELD_OUT_DTYPE, true, problem.out_dtype,
               ATTN_DTYPE(99, 16)),
    {"kv_layout kv.nhd/1000", ATTN_FIELD_KV_LAYOUT, {{0}}, "kv.nhd/1000", false},
    {"kv_layout kv.nhd/10", ATTN_FIELD_KV_LAYOUT, {{0}}, ATTN_LAYOUT_KV_NHD "0", false},
    CAPS_BITS("bit 31 of modes", ATTN_FIELD_MODES, true, bounds.modes, 1u << 31),
    CAPS_BITS("bit 31 of mask_kinds", ATTN_FIELD_MASK_KINDS, true, bounds.mask_kinds, 1u << 31),
    CAPS_BITS("bit 31 of uses", ATTN_FIELD_USES, true, bounds.uses, 1u << 31),
    CAPS_VALUE("graph_level 1000", ATTN_FIELD_GRAPH_LEVEL, true, problem.graph_level, 1000),
    CAPS_VALUE("bit 31 of required_traits", ATTN_FIELD_REQUIRED_TRAITS, true,
               problem.required_traits, 1u << 31),
    CAPS_VALUE("feature attn.unheard_of/1", ATTN_FIELD_FEATURE, true, problem.num_features, 1),
    CAPS_VALUE("the kind after the last one", ATTN_FIELD_KIND, true, group.kind, ATTN_KIND_COUNT),
    CAPS_VALUE("the attn_type after the last one", ATTN_FIELD_ATTN_TYPE, true, group.attn_type,
               ATTN_TYPE_COUNT),
    CAPS_BITS("the bit of the group's flags after the last one", 0, true, group.flags,
              ATTN_GROUP_HAS_ALIBI << 1),
    CAPS_BITS("the bit of a layer's flags after the last one", 0, true, layers[0].flags,
              ATTN_LAYER_ALL + 1u),
    CAPS_VALUE("the kv_scale_granularity after the last one", ATTN_FIELD_SCALE_GRANULARITY, false,
               group.kv_scale_granularity, ATTN_SCALE_COUNT),
    CAPS_BITS("the bit of modes after the last one", ATTN_FIELD_MODES, true, bounds.modes,
              1u << ATTN_MODE_COUNT),
    CAPS_BITS("the bit of mask_kinds after the last one", ATTN_FIELD_MASK_KINDS, true,
              bounds.mask_kinds, 1u << ATTN_MASK_COUNT),
    CAPS_BITS("the bit of uses after the last one", ATTN_FIELD_USES, true, bounds.uses,
              ATTN_USES_ALL + 1u),
    CAPS_VALUE("the graph_level after the last one", ATTN_FIELD_GRAPH_LEVEL, true,
               problem.graph_level, ATTN_GRAPH_COUNT),
    CAPS_VALUE("the bit of required_traits after the last one", ATTN_FIELD_REQUIRED_TRAITS, true,
               problem.required_traits, ATTN_TRAIT_ALL + 1u),
    /* Scales of tokens are a cache's alone. */
    {"input_scale_granularity per_token_head",
     ATTN_FIELD_INPUT_SCALE_GRANULARITY,
     {CAPS_CHANGE(problem.q_dtype, ATTN_FP8_E4M3, false),
      CAPS_CHANGE(problem.new_kv_dtype, ATTN_FP8_E4M3, false),
      CAPS_CHANGE(group.input_scale_granularity, ATTN_SCALE_PER_TOKEN_HEAD, false)},
     NULL,
     false},
};

enum { UNKNOWNS = sizeof unknowns / sizeof unknowns[0] };

CHECK_COUNT(unknown, UNKNOWNS)

const struct caps_unknown *caps_unknown_of_any(int32_t n)
{
    for (int32_t u = 0; u < UNKNOWNS; u++)
        if (unknowns[u].of_any && n-- == 0)
            return &unknowns[u];
    return NULL;
}

static void set_unknown(struct caps_problem *p, const struct caps_unknown *unknown)
{
    bool of_state = unknown->field == ATTN_FIELD_STATE_LAYOUT;
    for (int n = 0; n < CAPS_CHANGES && unknown->changes[n].member; n++) {
        char *member = (char *)p + unknown->changes[n].member;
        uint32_t value = 0;
        if (unknown->changes[n].is_added)
            memcpy(&value, member, sizeof value);
        value |= unknown->changes[n].value;
        memcpy(member, &value, sizeof value);
    }
    if (unknown->layout)
        *(of_state ? &p->problem.state_layout : &p->problem.kv_layout) = unknown->layout;
    p->features[0] = "attn.unheard_of/1";
    p->problem.features = p->problem.num_features ? p->features : NULL;
}

void caps_must_refuse(struct check_run *run, struct caps_problem *p,
                      const struct caps_unknown *unknown)
{
    struct caps_answer answer;
    set_unknown(p, unknown);
    caps_ask(run->subject, &p->problem, &answer);
    CHECK_THAT(run, answer.status == ATTN_OK, "query with %s gives %s %s: accepted a refusal",
               unknown->what, host_status_name(answer.status), host_error_text(&answer.error));
    CHECK_THAT(run, !answer.verdict.supported, "query accepts %s", unknown->what);
    CHECK_THAT(run, !unknown->field || caps_names_field(&answer, unknown->field),
               "query refuses %s, but gives no reason with that field", unknown->what);
}

/* A plain problem with one value that must be refused. */
static void must_refuse(struct check_run *run, const struct caps_unknown *unknown)
{
    struct grid *grid = grid_of(run->subject);
    struct caps_problem p;
    struct case_spec spec;
    if (!grid_accepts(grid, &grid->base, &spec, NULL, 0)) {
        check_skip(run, "%s", grid->refusal);
        return;
    }
    caps_problem_init(&p, &spec, &run->subject->device->info);
    caps_must_refuse(run, &p, unknown);
}

CHECK_RUN(unknown, must_refuse(run, &unknowns[run->index]))

/* ---- CAPS-10: devices ------------------------------------------------------------------------ */

static const struct caps_unknown memories[] = {
    CAPS_VALUE("device.type cuda_host", ATTN_FIELD_DEVICE_TYPE, true, device.type,
               ATTN_DEVICE_CUDA_HOST),
    CAPS_VALUE("device.type rocm_host", ATTN_FIELD_DEVICE_TYPE, true, device.type,
               ATTN_DEVICE_ROCM_HOST),
    CAPS_VALUE("device.type cuda_managed", ATTN_FIELD_DEVICE_TYPE, true, device.type,
               ATTN_DEVICE_CUDA_MANAGED),
};

CHECK_COUNT(memories, (int32_t)(sizeof memories / sizeof memories[0]))

CHECK_RUN(memory, must_refuse(run, &memories[run->index]))

/* ---- CAPS-08: how new tokens are read -------------------------------------------------------- */

/* The bit of each mode, asked alone and with others, within small bounds and large ones. */
static bool look_new_tokens(struct caps_visit *visit, const struct caps_problem *p,
                            const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    uint32_t modes = p->bounds.modes, reads = answer->verdict.reads_new_kv_unquantised;
    if (answer->status != ATTN_OK || !answer->verdict.supported)
        return true;
    for (uint32_t mode = 0; mode < ATTN_MODE_COUNT; mode++) {
        struct caps_problem alone;
        struct caps_answer other;
        if (!(modes & ATTN_MODE_BIT(mode)))
            continue;
        caps_problem_copy(&alone, p);
        alone.bounds.modes = ATTN_MODE_BIT(mode);
        alone.bounds.max_seqs = alone.bounds.max_tokens = 2;
        alone.bounds.max_kv_len = 100;
        alone.bounds.max_q_len = 1;
        caps_ask(subject, &alone.problem, &other);
        if (other.status != ATTN_OK || !other.verdict.supported ||
            !((other.verdict.reads_new_kv_unquantised ^ reads) & ATTN_MODE_BIT(mode)))
            continue;
        return caps_tell(visit, p,
                         "reads_new_kv_unquantised of a mode depends on other modes or on bounds");
    }
    return true;
}

/* ---- KV-14: scales per token ----------------------------------------------------------------- */

static bool look_as_given(struct caps_visit *visit, const struct caps_problem *p,
                          const struct caps_answer *answer)
{
    uint32_t modes = p->bounds.modes & ~ATTN_MODE_BIT(ATTN_MODE_IDLE);
    if (answer->status != ATTN_OK || !answer->verdict.supported ||
        p->group.kv_scale_granularity != ATTN_SCALE_PER_TOKEN_HEAD ||
        (answer->verdict.reads_new_kv_unquantised & modes) == modes)
        return true;
    return caps_tell(visit, p, "with scales per token reads_new_kv_unquantised lacks a mode");
}

/* ---- CAPS-12: promises ----------------------------------------------------------------------- */

bool caps_look_promises(struct caps_visit *visit, const struct caps_problem *p,
                        const struct caps_answer *answer)
{
    struct caps_problem asked;
    struct caps_answer again;
    const uint32_t promised = answer->verdict.traits & ATTN_TRAIT_PROMISES;
    if (answer->status != ATTN_OK || !answer->verdict.supported)
        return true;
    caps_problem_copy(&asked, p);
    asked.problem.required_traits |= promised;
    caps_ask(visit->run->subject, &asked.problem, &again);
    if (again.status == ATTN_OK && again.verdict.supported &&
        (again.verdict.traits & promised) == promised)
        return true;
    return caps_tell(visit, p, "the verdict loses a trait when required_traits asks for it");
}

/* ---- CAPS-11: ids of layers ------------------------------------------------------------------ */

static const struct layer_ids {
    const char *what;
    int32_t ids[2];
    bool apart; /* two groups of a layer each, not one of two */
} layer_ids[] = {
    {"a layer_id twice", {5, 5}, false},
    {"a layer_id in two groups", {5, 5}, true},
    {"a layer_id below 0", {5, -1}, false},
};

CHECK_COUNT(layer_ids, (int32_t)(sizeof layer_ids / sizeof layer_ids[0]))

static attn_status create_ids(struct rig *rig, const struct layer_ids *named, attn_error *error)
{
    attn_instance *instance = NULL;
    attn_layer layers[2] = {rig->question.layers[0], rig->question.layers[0]};
    attn_layer_group groups[2] = {rig->question.groups[0], rig->question.groups[0]};
    attn_problem problems[2] = {rig->question.problems[0], rig->question.problems[0]};
    for (int n = 0; n < 2; n++) {
        layers[n].layer_id = named->ids[n];
        groups[n].layers = &layers[n];
        groups[n].num_layers = named->apart ? 1 : 2;
        problems[n].group = &groups[n];
    }
    attn_status status = rig->type->create(rig->type, problems, named->apart ? 2 : 1, rig->options,
                                           rig->services, &instance, error);
    if (status == ATTN_OK)
        rig_destroy(rig, instance);
    return status;
}

static void run_layer_ids(struct check_run *run)
{
    const struct layer_ids *named = &layer_ids[run->index];
    struct rig rig;
    if (!rig_open(&rig, run, run->seed))
        return;
    attn_status status = create_ids(&rig, named, check_error(run));
    refusal_is(run, status, ATTN_INVALID_ARGUMENT, named->what);
    rig_close(&rig);
}

/* ---- Table ----------------------------------------------------------------------------------- */

CHECK_RUN(accepted, caps_visit_problems(run, look_runs))
CHECK_RUN(new_tokens, caps_visit_problems(run, look_new_tokens))
CHECK_RUN(as_given, caps_visit_problems(run, look_as_given))

const struct check check_caps[] = {
    CHECK_ROW("CAPS-02", accepted, caps_count_cases, CHECK_NEEDS_COMPUTE,
              "a problem that query accepts can be created and planned, and its results are right"),
    CHECK_ROW("CAPS-05", unknown, count_unknown, 0,
              "query refuses an unknown bit, id or enumerator, and names its field"),
    CHECK_ROW("CAPS-08", new_tokens, caps_count_cases, 0,
              "the verdict fixes for each mode whether new tokens are read rounded or as given"),
    CHECK_ROW("KV-14", as_given, caps_count_cases, 0,
              "with scales per token new tokens are read as given in every mode"),
    CHECK_ROW("CAPS-10", memory, count_memories, 0,
              "query refuses device types that name memory only"),
    CHECK_ROW("CAPS-11", layer_ids, count_layer_ids, 0,
              "create refuses layer ids that are negative or not unique"),
    {.rule = NULL},
};
