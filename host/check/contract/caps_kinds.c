/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_kinds.c: are query's answers about each kind of layer right and complete? Problems of
 * softmax layers, and of latent and linear ones, whose own numbers are set to anything: ranks,
 * parts of a head, forms, families, flags, widths, states. And does metadata need no more memory
 * than the verdict says? */
#include "host/check/contract/caps.h"

#include "host/check/cases/numerics.h"

/* ---- CAPS-02: what is accepted is created ---------------------------------------------------- */

static bool lacks_means(attn_status status)
{
    return status == ATTN_OUT_OF_HOST_MEMORY || status == ATTN_OUT_OF_DEVICE_MEMORY ||
           status == ATTN_DEPENDENCY_MISSING;
}

static bool are_known(const attn_bounds *bounds)
{
    return bounds->max_seqs > 0 && bounds->max_tokens > 0 && bounds->max_q_len > 0 &&
           bounds->max_kv_len > 0;
}

/* Create it and get the size of its metadata: other checks compute it. */
static bool look_created(struct caps_visit *visit, const struct caps_problem *p,
                         const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    attn_memory_size size = {.struct_size = sizeof size};
    attn_instance *instance = NULL;
    if (answer->status != ATTN_OK || !answer->verdict.supported || p->elsewhere)
        return true;
    attn_status status = numerics_create(visit->run, NULL, &p->problem, &instance);
    const bool made = status == ATTN_OK;
    if (made && are_known(&p->bounds) && p->bounds.max_kv_tokens > 0 &&
        !subject->type->ops->prepare)
        status = subject->type->ops->metadata_size(instance, ATTN_METADATA_EAGER, &p->bounds, &size,
                                                   check_error(visit->run));
    if (made)
        subject->type->ops->destroy(instance);
    if (status == ATTN_OK || lacks_means(status))
        return true;
    return caps_tell(visit, p, "query accepts, %s gives %s %.300s",
                     made ? "metadata_size" : "create", host_status_name(status),
                     check_error_text(visit->run));
}

CHECK_COUNT(mla, caps_count_kind_cases(subject, ATTN_KIND_MLA))
CHECK_COUNT(linear, caps_count_kind_cases(subject, ATTN_KIND_LINEAR))

/* ---- WORK-02: memory -------------------------------------------------------------------------- */

enum { MEASURED = 4 }; /* one in so many of those that are accepted */

static uint64_t bytes_of_space(const attn_memory_size *size, uint32_t space)
{
    uint64_t bytes = 0;
    for (uint32_t use = 0; use < ATTN_MEMORY_COUNT; use++)
        bytes += size->size[ATTN_REGION(space, use)];
    return bytes;
}

/* A verdict speaks of the whole problem: it adds up all that an instance keeps for all forms and modes together. */
static bool look_promised(struct caps_visit *visit, const struct caps_problem *p,
                          const struct caps_answer *answer)
{
    const struct check_subject *subject = visit->run->subject;
    static const char *const names[ATTN_SPACE_COUNT] = {"device", "pinned", "host"};
    const attn_verdict *verdict = &answer->verdict; /* 0 says nothing */
    const uint64_t most[ATTN_SPACE_COUNT] = {verdict->device_bytes, verdict->pinned_bytes,
                                             verdict->host_bytes};
    attn_memory_size size = {.struct_size = sizeof size};
    attn_instance *instance = NULL;
    if (answer->status != ATTN_OK || !answer->verdict.supported || p->elsewhere ||
        !are_known(&p->bounds) || visit->accepted % MEASURED != 0)
        return true;
    /* Other checks cover other faults of these two calls. */
    if (numerics_create(visit->run, NULL, &p->problem, &instance) != ATTN_OK)
        return true;
    attn_status status =
        subject->type->ops->metadata_size(instance, ATTN_METADATA_EAGER, &p->bounds, &size, NULL);
    subject->type->ops->destroy(instance);
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT && status == ATTN_OK; space++) {
        const uint64_t needed = bytes_of_space(&size, space);
        if (most[space] > 0 && needed > most[space])
            return caps_tell(
                visit, p, "metadata_size asks for %llu bytes: the verdict's %s_bytes are %llu",
                (unsigned long long)needed, names[space], (unsigned long long)most[space]);
    }
    return true;
}

/* ---- CAPS-05: what is unknown ---------------------------------------------------------------- */

static const struct caps_unknown latent_unknowns[] = {
    CAPS_BITS("bit 31 of mla_expanded", ATTN_FIELD_MLA_EXPANDED, false, problem.mla_expanded,
              1u << 31),
    CAPS_BITS("the bit of mla_expanded after the last mode", ATTN_FIELD_MLA_EXPANDED, false,
              problem.mla_expanded, 1u << ATTN_MODE_COUNT),
    {"kv_layout mla.latent/1000", ATTN_FIELD_KV_LAYOUT, {{0}}, "mla.latent/1000", false},
    CAPS_VALUE("attn_type 1000 of latent layers", ATTN_FIELD_ATTN_TYPE, false, group.attn_type,
               1000),
    CAPS_VALUE("kv_dtype of code 99 of latent layers", ATTN_FIELD_KV_DTYPE, false, problem.kv_dtype,
               ATTN_DTYPE(99, 8)),
    CAPS_VALUE("kv_scale_granularity 1000 of latent layers", ATTN_FIELD_SCALE_GRANULARITY, false,
               group.kv_scale_granularity, 1000),
    CAPS_VALUE("the attn_type of latent layers after the last one", ATTN_FIELD_ATTN_TYPE, false,
               group.attn_type, ATTN_TYPE_COUNT),
    CAPS_VALUE("the kv_scale_granularity of latent layers after the last one",
               ATTN_FIELD_SCALE_GRANULARITY, false, group.kv_scale_granularity, ATTN_SCALE_COUNT),
};

static const struct caps_unknown linear_unknowns[] = {
    CAPS_VALUE("linear.family 1000", ATTN_FIELD_LINEAR_FAMILY, false, linear.family, 1000),
    CAPS_VALUE("the linear.family after the last one", ATTN_FIELD_LINEAR_FAMILY, false,
               linear.family, ATTN_LINEAR_COUNT),
    CAPS_BITS("bit 31 of linear.flags", ATTN_FIELD_LINEAR_FLAGS, false, linear.flags, 1u << 31),
    CAPS_BITS("the bit of linear.flags after the last one", ATTN_FIELD_LINEAR_FLAGS, false,
              linear.flags, ATTN_LINEAR_FLAG_ALL + 1u),
    CAPS_VALUE("linear.state_dtype of code 99", ATTN_FIELD_STATE_DTYPE, false, linear.state_dtype,
               ATTN_DTYPE(99, 16)),
    CAPS_VALUE("linear.conv_dtype of code 99", ATTN_FIELD_CONV_DTYPE, false, linear.conv_dtype,
               ATTN_DTYPE(99, 16)),
    {"state_layout state.ssm.kv/1000",
     ATTN_FIELD_STATE_LAYOUT,
     {{0}},
     ATTN_LAYOUT_STATE_SSM_KV "000",
     false},
    CAPS_VALUE("attn_type 1000 of linear layers", ATTN_FIELD_ATTN_TYPE, false, group.attn_type,
               1000),
};

enum {
    LATENT_UNKNOWNS = sizeof latent_unknowns / sizeof latent_unknowns[0],
    LINEAR_UNKNOWNS = sizeof linear_unknowns / sizeof linear_unknowns[0]
};

/* One of a kind that is not served says so. */
CHECK_COUNT(mla_unknown, count_mla(subject) > 1 ? LATENT_UNKNOWNS : 1)
CHECK_COUNT(linear_unknown, count_linear(subject) > 1 ? LINEAR_UNKNOWNS * ATTN_LINEAR_COUNT : 1)

/* Of this family, and with inputs that are kept. A convolution alone has no state. */
static bool make_family(const struct check_run *run, uint32_t family,
                        const struct caps_unknown *unknown, struct caps_problem *p)
{
    bool means_nothing =
        family == ATTN_LINEAR_SHORT_CONV && unknown->field == ATTN_FIELD_STATE_DTYPE;
    caps_set_number(p, ATTN_FIELD_LINEAR_FAMILY, family);
    p->linear.conv_width = 4;
    return !means_nothing && caps_accepts(run->subject, p);
}

static int32_t count_of_any(int32_t count)
{
    int32_t all = 0;
    while (caps_unknown_of_any(all))
        all++;
    return count > 1 ? all : 1;
}

CHECK_COUNT(mla_unknown_any, count_of_any(count_mla(subject)))
CHECK_COUNT(linear_unknown_any, count_of_any(count_linear(subject)))

/* `family` counts where the kind has such. */
static void refuse_of_kind(struct check_run *run, uint32_t kind, uint32_t family,
                           const struct caps_unknown *unknown)
{
    struct caps_problem p;
    char refusal[CAPS_TEXT] =
        "query accepts no such family with a convolution of 4, or none has this parameter";
    bool found = caps_find_plain(run->subject, grid_of(run->subject), kind, &p, refusal);
    if (found && kind == ATTN_KIND_LINEAR)
        found = make_family(run, family, unknown, &p);
    if (found)
        caps_must_refuse(run, &p, unknown);
    else
        check_skip(run, "%s", refusal);
}

CHECK_RUN(mla_unknown, refuse_of_kind(run, ATTN_KIND_MLA, 0, &latent_unknowns[run->index]))
CHECK_RUN(mla_unknown_any, refuse_of_kind(run, ATTN_KIND_MLA, 0, caps_unknown_of_any(run->index)))
CHECK_RUN(linear_unknown,
          refuse_of_kind(run, ATTN_KIND_LINEAR, (uint32_t)run->index / LINEAR_UNKNOWNS,
                         &linear_unknowns[run->index % LINEAR_UNKNOWNS]))

/* Families in turn. */
CHECK_RUN(linear_unknown_any,
          refuse_of_kind(run, ATTN_KIND_LINEAR, (uint32_t)run->index % ATTN_LINEAR_COUNT,
                         caps_unknown_of_any(run->index)))

/* ---- Table ----------------------------------------------------------------------------------- */

/* The checks of random problems of each kind of layer, and of query's answers. */
#define LOOKS(name, look)                                                                          \
    CHECK_RUN(name, caps_visit_problems(run, look))                                                \
    CHECK_RUN(mla_##name, caps_visit_kind(run, ATTN_KIND_MLA, look))                               \
    CHECK_RUN(linear_##name, caps_visit_kind(run, ATTN_KIND_LINEAR, look))
#define KIND_ROWS(rule, name, sentence)                                                            \
    CHECK_ROW(rule, mla_##name, count_mla, 0, sentence " (latent layers)"),                        \
        CHECK_ROW(rule, linear_##name, count_linear, 0, sentence " (linear layers)")
#define LOOK_ROWS(rule, name, sentence)                                                            \
    CHECK_ROW(rule, name, caps_count_cases, 0, sentence), KIND_ROWS(rule, name, sentence)

LOOKS(same_answer, caps_look_same)
LOOKS(refused, caps_look_create)
LOOKS(refused_bounds, caps_look_bounds)
LOOKS(reasons, caps_look_reasons)
LOOKS(listed, caps_look_listed)
LOOKS(language, caps_look_language)
LOOKS(capacity, caps_look_capacity)
LOOKS(promises, caps_look_promises)
LOOKS(promised, look_promised)
CHECK_RUN(mla_created, caps_visit_kind(run, ATTN_KIND_MLA, look_created))
CHECK_RUN(linear_created, caps_visit_kind(run, ATTN_KIND_LINEAR, look_created))

const struct check check_caps_kinds[] = {
    LOOK_ROWS("CAPS-01", same_answer,
              "query gives equal answers to equal questions, and does not change the question"),
    KIND_ROWS("CAPS-02", created,
              "a problem that query accepts can be created, and has a metadata size"),
    LOOK_ROWS("CAPS-03", refused,
              "create refuses with UNSUPPORTED every problem that query refuses"),
    LOOK_ROWS("CAPS-03", refused_bounds,
              "metadata_size and metadata_create refuse bounds that query refuses"),
    LOOK_ROWS("CAPS-04", reasons, "a refusal gives all its reasons, and no others"),
    LOOK_ROWS("CAPS-04", listed,
              "a problem changed to what a reason accepts is not refused for the same field again"),
    CHECK_ROW("CAPS-05", mla_unknown, count_mla_unknown, 0,
              "query refuses an unknown bit, id or enumerator of latent layers"),
    CHECK_ROW("CAPS-05", linear_unknown, count_linear_unknown, 0,
              "query refuses an unknown bit, id or enumerator of linear layers"),
    CHECK_ROW(
        "CAPS-05", mla_unknown_any, count_mla_unknown_any, 0,
        "query refuses an unknown bit, id or enumerator that any layer may have (latent layers)"),
    CHECK_ROW(
        "CAPS-05", linear_unknown_any, count_linear_unknown_any, 0,
        "query refuses an unknown bit, id or enumerator that any layer may have (linear layers)"),
    LOOK_ROWS("CAPS-06", language, "`accepted` is a list of numbers, ranges and words"),
    LOOK_ROWS("CAPS-07", capacity,
              "query counts all reasons, and writes those that fit into the caller's array"),
    LOOK_ROWS("CAPS-12", promises,
              "a trait that is a promise is accepted in required_traits, and then kept"),
    {.rule = NULL},
};

const struct check check_caps_memory[] = {
    LOOK_ROWS("WORK-02", promised, "metadata needs no more memory than the verdict says"),
    {.rule = NULL},
};
