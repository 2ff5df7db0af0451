/* SPDX-License-Identifier: Apache-2.0
 *
 * work.c: the group WORK: the memory of metadata, and the bounds it is made for.
 */
#include "host/check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/cases/refusal.h"
#include "host/check/cases/rig.h"
#include "host/base/round.h"

/* A metadata that a failed create must leave alone. */
static char sentinel;
#define UNTOUCHED ((attn_metadata *)(void *)&sentinel)

static const char *const space_names[ATTN_SPACE_COUNT] = {"device", "pinned", "host"};
static const char *const use_names[ATTN_MEMORY_COUNT] = {"scratch", "metadata", "zeroed"};

static void name_region(uint32_t region, char text[32])
{
    snprintf(text, 32, "%s %s", space_names[region / ATTN_MEMORY_COUNT],
             use_names[region % ATTN_MEMORY_COUNT]);
}

/* ---- WORK-02: sizes -------------------------------------------------------------------------- */

static bool same_size(const attn_memory_size *a, const attn_memory_size *b)
{
    return memcmp(a->size, b->size, sizeof a->size) == 0 &&
           memcmp(a->alignment, b->alignment, sizeof a->alignment) == 0;
}

static void check_equal(struct rig *rig, struct rig_session *session, attn_instance *other,
                        const char *when)
{
    attn_memory_size size;
    if (rig_good(rig, rig_metadata_size(rig, other, &size), "metadata_size") &&
        !same_size(&size, &session->memory.size))
        check_fail(rig->run, "metadata_size of an equal instance gives another answer%s", when);
}

static void check_same(struct rig *rig, struct rig_session *session)
{
    attn_memory_size size;
    attn_instance *other = NULL;
    for (int n = 0; n < 3; n++) {
        if (!rig_good(rig, rig_metadata_size(rig, session->instance, &size), "metadata_size"))
            return;
        CHECK_THAT(rig->run, same_size(&size, &session->memory.size),
                   "metadata_size gives different answers to equal questions");
        if (!rig_good(rig, rig_plan(rig, session->metadata, n % rig->num_batches),
                      "init_forward_metadata"))
            return;
    }
    if (!rig_good(rig, rig_create(rig, &other), "a second create"))
        return;
    check_equal(rig, session, other, "");
    if (rig->run->code == CHECK_PASS && rig_prepare(rig, other) == ATTN_OK)
        check_equal(rig, session, other, " after prepare");
    rig_destroy(rig, other);
}

static void check_alignments(struct rig *rig, struct rig_session *session)
{
    char name[32];
    (void)rig;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        uint64_t alignment = session->memory.size.alignment[r];
        name_region(r, name);
        CHECK_THAT(rig->run, (alignment & (alignment - 1)) == 0,
                   "metadata_size, %s: alignment %llu: accepted powers of two", name,
                   (unsigned long long)alignment);
    }
    check_same(rig, session);
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

/* The bound that a batch exceeds, and its names in messages. */
struct excess {
    const char *name;
    uint32_t field;
    const char *words[3];
};

enum {
    BEYOND_SEQS,
    BEYOND_TOKENS,
    BEYOND_Q_LEN,
    BEYOND_KV_LEN,
    BEYOND_KV_TOKENS,
    BEYOND_MODES,
    BEYOND_COUNT
};

static const struct excess excesses[BEYOND_COUNT] = {
    {"max_seqs", ATTN_FIELD_MAX_SEQS, {"max_seqs", "num_seqs", NULL}},
    {"max_tokens", ATTN_FIELD_MAX_TOKENS, {"max_tokens", "num_tokens", NULL}},
    {"max_q_len", ATTN_FIELD_MAX_Q_LEN, {"max_q_len", NULL}},
    {"max_kv_len", ATTN_FIELD_MAX_KV_LEN, {"max_kv_len", NULL}},
    {"max_kv_tokens", ATTN_FIELD_MAX_KV_TOKENS, {"max_kv_tokens", NULL}},
    {"modes", ATTN_FIELD_MODES, {"mode", NULL}},
};

static void change_bound(attn_bounds *bounds, int which, int64_t value)
{
    int32_t *const members[] = {&bounds->max_seqs, &bounds->max_tokens, &bounds->max_q_len,
                                &bounds->max_kv_len};
    if (which < BEYOND_KV_TOKENS)
        *members[which] = (int32_t)value;
    else
        bounds->max_kv_tokens = value;
}

/* Is no region of `more` smaller than that of `less`? */
static void expect_growth(struct check_run *run, const attn_memory_size *less,
                          const attn_memory_size *more, const char *what)
{
    char name[32];
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        name_region(r, name);
        CHECK_THAT(run, more->size[r] >= less->size[r],
                   "with %s, %s is %llu bytes, less than the %llu before", what, name,
                   (unsigned long long)more->size[r], (unsigned long long)less->size[r]);
    }
}

static void check_growth(struct rig *rig, struct rig_session *session)
{
    attn_bounds bounds;
    attn_memory_size last, size;
    char what[64];
    rig->bounds = &bounds;
    for (int which = 0; which < BEYOND_MODES; which++) {
        bounds = rig->question.bounds;
        last = session->memory.size;
        const attn_bounds *plain = &rig->question.bounds;
        const int64_t values[] = {plain->max_seqs, plain->max_tokens, plain->max_q_len,
                                  plain->max_kv_len, plain->max_kv_tokens};
        for (int factor = 2; factor <= 64; factor *= 2) {
            attn_problem problem = rig->question.problems[0];
            change_bound(&bounds, which, values[which] * factor);
            problem.bounds = &bounds;
            if (!rig_accepts(rig->run->subject, &problem))
                break;
            snprintf(what, sizeof what, "%s %d times as large", excesses[which].name, factor);
            if (!rig_good(rig, rig_metadata_size(rig, session->instance, &size),
                          "metadata_size of larger bounds that query accepts"))
                return;
            expect_growth(rig->run, &last, &size, what);
            last = size;
        }
    }
    rig->bounds = &rig->question.bounds;
}

/* Fewer modes, mask kinds or uses need no more. */
static void check_sets(struct rig *rig, struct rig_session *session)
{
    attn_bounds bounds = rig->question.bounds;
    attn_memory_size size;
    attn_problem problem = rig->question.problems[0];
    check_growth(rig, session);
    rig->bounds = problem.bounds = &bounds;
    for (uint32_t bit = 0; bit < ATTN_MODE_COUNT; bit++) {
        bounds.modes = rig->question.bounds.modes & (1u << bit);
        if (!bounds.modes || !rig_accepts(rig->run->subject, &problem))
            continue;
        if (rig_good(rig, rig_metadata_size(rig, session->instance, &size),
                     "metadata_size of a single mode"))
            expect_growth(rig->run, &size, &session->memory.size, "all modes instead of one");
    }
    rig->bounds = &rig->question.bounds;
}

/* ---- WORK-03: exactly what was asked for ----------------------------------------------------- */

/* The results with `extra` bytes more than asked for; nothing around the memory changes. */
static void run_with(struct rig *rig, struct rig_session *session, uint64_t extra,
                     char *results[RIG_BATCHES])
{
    struct regions memory;
    attn_metadata *metadata = NULL;
    char name[32];
    attn_status status = rig_memory_init(&memory, rig, &session->memory.size, extra);
    CHECK_THAT(rig->run, status == ATTN_OK, "no memory of the size that metadata_size returns");
    status = rig_metadata_create(rig, session->instance, &memory, &metadata);
    if (rig_good(rig, status, "metadata_create")) {
        for (int b = 0; b < rig->num_batches && rig->run->code == CHECK_PASS; b++)
            results[b] = rig_run(rig, metadata, b);
        device_synchronize(rig->device, rig->stream, NULL);
        rig->ops->metadata_destroy(metadata);
    }
    uint32_t damaged = regions_damage(&memory);
    if (damaged < ATTN_REGION_COUNT) {
        name_region(damaged, name);
        check_fail(rig->run, "bytes around the region %s were written", name);
    }
    regions_finish(&memory);
}

static void check_exact(struct rig *rig, struct rig_session *session)
{
    char *exact[RIG_BATCHES] = {NULL}, *roomy[RIG_BATCHES] = {NULL};
    run_with(rig, session, 0, exact);
    if (rig->run->code == CHECK_PASS)
        run_with(rig, session, 8192, roomy);
    for (int b = 0; b < rig->num_batches; b++)
        rig_expect(rig, b, exact[b], roomy[b], "with more memory than required");
}

/* metadata_create must fail with this status, and leave its output alone. */
static bool refuses(struct rig *rig, struct rig_session *session, const attn_memory *memory,
                    attn_status wanted, const char *what)
{
    attn_metadata *metadata = UNTOUCHED;
    attn_status status =
        rig->ops->metadata_create(session->instance, ATTN_METADATA_EAGER, rig->bounds, memory,
                                  &metadata, check_error(rig->run));
    if (status == ATTN_OK)
        rig->ops->metadata_destroy(metadata);
    if (!refusal_is(rig->run, status, wanted, what))
        return false;
    if (metadata != UNTOUCHED)
        check_fail(rig->run, "%s: fails, but sets its output", what);
    return metadata == UNTOUCHED;
}

static void check_small(struct rig *rig, struct rig_session *session)
{
    char name[32], what[160];
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        uint64_t size = session->memory.size.size[r];
        name_region(r, name);
        if (size == 0)
            continue;
        for (int none = 0; none < 2; none++) {
            attn_memory memory = session->memory.memory;
            memory.size[r] = none ? 0 : size - 1;
            if (none)
                memory.base[r] = NULL;
            snprintf(what, sizeof what,
                     "metadata_create, %s of %llu bytes where %llu were asked "
                     "for",
                     name, (unsigned long long)memory.size[r], (unsigned long long)size);
            check_note(rig->run, "%s", what);
            if (!refuses(rig, session, &memory, ATTN_BUFFER_TOO_SMALL, what))
                return;
            CHECK_THAT(rig->run, rig->run->error.base.needed == size, "%s: error.needed is %llu",
                       what, (unsigned long long)rig->run->error.base.needed);
        }
    }
}

static void check_misaligned(struct rig *rig, struct rig_session *session)
{
    char name[32], what[160];
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        const attn_memory_size *size = &session->memory.size;
        name_region(r, name);
        if (size->size[r] == 0 || size->alignment[r] <= 1)
            continue;
        for (uint64_t by = 1; by < size->alignment[r]; by *= 2) {
            attn_memory memory = session->memory.memory;
            memory.base[r] = (char *)memory.base[r] - by; /* its size is still there */
            snprintf(what, sizeof what, "metadata_create, %s %llu bytes off its alignment of %llu",
                     name, (unsigned long long)by, (unsigned long long)size->alignment[r]);
            check_note(rig->run, "%s", what);
            if (!refuses(rig, session, &memory, ATTN_INVALID_ARGUMENT, what))
                return;
        }
    }
}

static void check_kinds(struct rig *rig, struct rig_session *session)
{
    static const uint32_t kinds[] = {2, 1000, UINT32_MAX};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        attn_memory_size size = {.struct_size = sizeof size};
        attn_metadata *metadata = UNTOUCHED;
        attn_status status = rig->ops->metadata_size(session->instance, kinds[k], rig->bounds,
                                                     &size, check_error(rig->run));
        if (!refusal_is(rig->run, status, ATTN_INVALID_ARGUMENT,
                        "metadata_size of an unknown kind"))
            return;
        status =
            rig->ops->metadata_create(session->instance, kinds[k], rig->bounds,
                                      &session->memory.memory, &metadata, check_error(rig->run));
        if (!refusal_is(rig->run, status, ATTN_INVALID_ARGUMENT,
                        "metadata_create of an unknown kind"))
            return;
        CHECK_THAT(rig->run, metadata == UNTOUCHED, "metadata_create fails, but sets its output");
    }
}

/* ---- WORK-04, WORK-05: what regions hold ----------------------------------------------------- */

/* A run with other bytes in the scratch before each forward. */
static char *run_dirty(struct rig *rig, struct rig_session *session, int batch)
{
    attn_status status = rig_reset(rig, batch);
    if (status == ATTN_OK)
        status = rig_plan(rig, session->metadata, batch);
    for (int l = 0; l < RIG_LAYERS && status == ATTN_OK; l++) {
        regions_fill(&session->memory, ATTN_MEMORY_SCRATCH, l == 1 ? 0x7F : 0xFF, NULL);
        status = rig_forward(rig, session->metadata, batch, l);
    }
    if (!rig_good(rig, status, "with its scratch overwritten before each forward"))
        return NULL;
    return rig_result(rig, batch);
}

static void check_scratch(struct rig *rig, struct rig_session *session, int b)
{
    char *clean = rig_run(rig, session->metadata, b);
    char *dirty = clean ? run_dirty(rig, session, b) : NULL;
    rig_expect(rig, b, clean, dirty, "when scratch is overwritten before each forward");
}

/* Plan once, compute the same several times. */
static void check_repeat(struct rig *rig, struct rig_session *session, int batch, char *first)
{
    for (int n = 0; n < 4 && rig->run->code == CHECK_PASS; n++) {
        attn_status status = rig_reset(rig, batch);
        if (status == ATTN_OK)
            status = rig_forward_all(rig, session->metadata, batch);
        if (!rig_good(rig, status, "a repeated forward"))
            return;
        char *again = rig_result(rig, batch);
        const char *what =
            again ? rig_difference(rig, batch, first, again) : "the fetching of results";
        if (what)
            check_fail(rig->run, "forward number %d of one plan: %s of the %s batch differs", n + 2,
                       what, rig_batch_name(rig, batch));
        free(again);
    }
}

static void check_zeroed(struct rig *rig, struct rig_session *session, int b)
{
    char *first = rig_run(rig, session->metadata, b);
    if (!first)
        return;
    check_repeat(rig, session, b, first);
    /* After a failed forward the host zeroes them. */
    uint32_t roles[ATTN_ROLE_COUNT];
    rig_needed_roles(rig, roles);
    const attn_tensor **first_operand = &rig->batches[b].layers[0].operands[roles[0]];
    const attn_tensor *kept = *first_operand;
    *first_operand = NULL;
    attn_status status = rig_forward(rig, session->metadata, b, 0);
    *first_operand = kept;
    refusal_is(rig->run, status, ATTN_INVALID_ARGUMENT, "forward without its first operand");
    device_synchronize(rig->device, rig->stream, NULL);
    regions_fill(&session->memory, ATTN_MEMORY_ZEROED, 0, NULL);
    if (rig->run->code == CHECK_PASS)
        check_repeat(rig, session, b, first);
    free(first);
}

/* ---- WORK-06: beyond the bounds -------------------------------------------------------------- */

/* Let one bound be one less than the batch needs, or the least there is. false: it cannot. */
static bool tighten(struct rig *rig, int batch, int which, bool least, attn_bounds *bounds)
{
    const attn_batch *b = &rig->batches[batch].batch;
    int32_t page = rig->question.spec.page_size; /* 0 of linear layers */
    int64_t kv_tokens = 0, longest = 0;
    for (int32_t s = 0; s < b->num_seqs; s++) {
        const int32_t length = b->seq_lens.host[s];
        kv_tokens += round_up(length, page > 0 ? page : 1);
        longest = length > longest ? length : longest;
    }
    *bounds = rig->question.bounds;
    const int64_t needed[] = {b->num_seqs, b->num_tokens, b->max_q_len, longest, kv_tokens};
    if (which == BEYOND_MODES)
        bounds->modes &= ~ATTN_MODE_BIT(b->mode);
    else
        change_bound(bounds, which, least && needed[which] > 1 ? 1 : needed[which] - 1);
    attn_problem problem = rig->question.problems[0];
    problem.bounds = bounds;
    /* Sums of host arrays are known only to those who read them. */
    if (which == BEYOND_KV_TOKENS && rig->device->type != ATTN_DEVICE_CPU &&
        !(rig->verdict.host_arrays & ATTN_HOST_SEQ_LENS))
        return false;
    return bounds->max_seqs > 0 && bounds->max_tokens > 0 && bounds->max_q_len > 0 &&
           bounds->max_kv_len > 0 && bounds->modes != 0 && rig_accepts(rig->run->subject, &problem);
}

static void exceed(struct rig *rig, struct rig_session *session, int batch,
                   const struct excess *excess)
{
    char what[96];
    struct rig_session tight;
    snprintf(what, sizeof what, "%s batch beyond the bound %s", rig_a_batch(rig, batch),
             excess->name);
    check_note(rig->run, "%s", what);
    if (!rig_metadata_open(&tight, rig, session->instance))
        return;
    attn_status status = rig_plan(rig, tight.metadata, batch);
    if (refusal_is(rig->run, status, ATTN_INVALID_ARGUMENT, what) &&
        rig->run->error.base.field != excess->field && !refusal_names(rig->run, excess->words))
        check_fail(rig->run, "%s: '%s' does not name the bound, nor does error.field (%u)", what,
                   check_error_text(rig->run), rig->run->error.base.field);
    if (rig->run->code == CHECK_PASS && regions_damage(&tight.memory) < ATTN_REGION_COUNT)
        check_fail(rig->run, "%s: bytes around the memory of the metadata were written", what);
    rig_metadata_close(&tight, rig);
}

static void check_beyond(struct rig *rig, struct rig_session *session)
{
    attn_bounds bounds;
    for (int which = 0; which < BEYOND_COUNT; which++)
        for (int b = 0; b < 2 * rig->num_batches && rig->run->code == CHECK_PASS; b++) {
            if (!tighten(rig, b / 2, which, b % 2, &bounds))
                continue;
            rig->bounds = &bounds;
            exceed(rig, session, b / 2, &excesses[which]);
            rig->bounds = &rig->question.bounds;
        }
}

/* Parts of a batch that the bounds do not mention. */
static void check_parts(struct rig *rig, struct rig_session *session)
{
    static const char *const mask_words[] = {"mask", NULL}, *const item_words[] = {"multi", NULL};
    static const char *const position_words[] = {"position", NULL};
    attn_batch *batch = &rig->batches[0].batch, kept = *batch;
    const attn_mask none = {.struct_size = sizeof none, .kind = ATTN_MASK_NONE};
    const attn_mask unknown = {.struct_size = sizeof unknown, .kind = 1000};
    attn_multi_item items = {.struct_size = sizeof items,
                             .token_pos_stride = RIG_KV_LEN,
                             .prefix_lens = kept.prefix_lens,
                             .token_pos = (const uint16_t *)(const void *)kept.seq_lens.device,
                             .max_item_len = kept.seq_lens};
    const struct {
        const attn_mask *mask;
        const attn_multi_item *items;
        int positions;
        uint32_t field;
        const char *const *words;
        const char *what;
    } parts[] = {
        {&none, NULL, 0, ATTN_FIELD_MASK_KINDS, mask_words, "a batch with mask kind NONE"},
        {&unknown, NULL, 0, ATTN_FIELD_MASK_KINDS, mask_words, "a batch with an unknown mask kind"},
        {NULL, &items, 0, ATTN_FIELD_USES, item_words, "a batch with multi_item"},
        {NULL, NULL, 1, ATTN_FIELD_USES, position_words, "a batch with positions"},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0] && rig->run->code == CHECK_PASS; p++) {
        *batch = kept;
        batch->mask = parts[p].mask;
        batch->multi_item = parts[p].items;
        if (parts[p].positions)
            batch->positions = kept.prefix_lens;
        check_note(rig->run, "%s that the bounds exclude", parts[p].what);
        attn_status status = rig_plan(rig, session->metadata, 0);
        if (refusal_is(rig->run, status, ATTN_INVALID_ARGUMENT, parts[p].what) &&
            rig->run->error.base.field != parts[p].field &&
            !refusal_names(rig->run, parts[p].words))
            check_fail(rig->run, "%s that the bounds exclude: '%s' does not name it", parts[p].what,
                       check_error_text(rig->run));
    }
    *batch = kept;
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_work[] = {
    RIG_ROW("WORK-02", sizes, NULL, 0,
            "metadata_size gives equal answers to equal questions, with alignments that are "
            "powers of two",
            .body = check_alignments, .plans_alone = true),
    RIG_ROW("WORK-02", growth, NULL, 0, "no region becomes smaller when a bound grows",
            .body = check_sets, .plans_alone = true),
    RIG_ROW("WORK-03", exact, rig_count_seeds, 0,
            "exactly the memory of metadata_size is enough, more also works, and nothing around "
            "it is touched",
            .body = check_exact),
    RIG_ROW("WORK-03", too_small, NULL, 0,
            "a region that is one byte too small, or absent, is BUFFER_TOO_SMALL with the required "
            "size",
            .body = check_small, .plans_alone = true),
    RIG_ROW("WORK-03", misaligned, NULL, 0, "a misaligned region is INVALID_ARGUMENT",
            .body = check_misaligned, .plans_alone = true),
    RIG_ROW("WORK-03", kinds, NULL, 0, "an unknown kind of metadata is INVALID_ARGUMENT",
            .body = check_kinds, .plans_alone = true),
    RIG_ROW("WORK-04", scratch, rig_count_seeds, 0,
            "results do not change if scratch is overwritten before each forward",
            .each = check_scratch),
    RIG_ROW("WORK-05", zeroed, rig_count_seeds, 0,
            "a forward leaves the ZEROED regions in the state that the next forward needs",
            .each = check_zeroed),
    RIG_ROW("WORK-06", bounds, rig_count_seeds, 0,
            "a batch beyond a bound is INVALID_ARGUMENT, and the message names the bound",
            .body = check_beyond, .plans_alone = true),
    RIG_ROW("WORK-06", parts, rig_count_seeds, 0,
            "a batch with parts that the bounds exclude is INVALID_ARGUMENT, and the message "
            "names the parts",
            .body = check_parts, .plans_alone = true),
    {.rule = NULL},
};
