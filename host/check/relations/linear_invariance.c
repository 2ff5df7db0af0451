/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_invariance.c: invariance of a linear layer's results under cuts of a sequence, the
 * instance that computes each part, and the order of the batch.
 *
 * As in check/relations/invariance.c each variant is judged by the oracle; where a backend has
 * declared it, bits are also equal.
 */
#include "host/check/cases/kind.h"
#include "host/check/cases/draw.h"
#include "host/check/cases/other_host.h"
#include "host/check/cases/setting.h"

#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

/* ---- Splits ---------------------------------------------------------------------------------- */

enum { SPLIT_DECODE, SPLIT_SINGLE, SPLIT_HALF, SPLIT_CHUNK, SPLIT_RANDOM, SPLIT_TAIL, SPLITS };
enum { FORMS = 4 }; /* of a state: two layouts, two dtypes */

/* In fp32 passing a state on rounds nothing that the oracle does not round, in bf16 it does.
 * `convolves`: a convolution keeps inputs, whatever was drawn, as it does where it is all there is.
 */
static void set_form(struct case_spec *spec, int32_t form, bool convolves)
{
    struct linear_spec *linear = &spec->linear;
    convolves |= linear->family == ATTN_LINEAR_SHORT_CONV;
    linear->vk = form % 2;
    linear->state_dtype = form / 2 ? ATTN_BF16 : ATTN_F32;
    linear->conv_dtype = spec->q_dtype;
    if (convolves && linear->width < 2 && linear->k_dim != 1 && linear->v_dim != 1)
        linear->width = 4;
}

static void change_split(struct case_spec *spec, int32_t index)
{
    int32_t split = index % SPLITS, form = index / SPLITS;
    bool by_row = split == SPLIT_DECODE || split == SPLIT_SINGLE;
    bool decodes = split == SPLIT_DECODE || split == SPLIT_TAIL;
    /* Rows that are each judged by themselves are few. */
    linear_set_extend(spec, by_row && form / 2 ? "20i 11p 0i 3ip" : "130i 65p 0i 9ip");
    spec->linear.padded = 0;
    spec->linear.modes = decodes ? ATTN_MODE_BIT(ATTN_MODE_DECODE) : 0;
    set_form(spec, form, (split + form / 2) % 2);
}

/* Rows of the next part, of `left`. */
static int32_t part_rows(int32_t split, int32_t first, int32_t left, uint64_t seed)
{
    int32_t rows = left;
    if (split == SPLIT_DECODE || split == SPLIT_SINGLE)
        rows = 1;
    else if (split == SPLIT_HALF)
        rows = first == 0 ? (left + 1) / 2 : left;
    else if (split == SPLIT_CHUNK)
        rows = 64;
    else if (split == SPLIT_RANDOM)
        rows = 1 + draw_at(seed, (uint64_t)first, 40);
    else if (left > 5)
        rows = left - 5;
    else
        rows = 1;
    return rows < left ? rows : left;
}

static bool run_parts(struct kind_case *k, int32_t split)
{
    const struct case_spec *spec = &k->at.spec;
    bool decodes = split == SPLIT_DECODE || split == SPLIT_TAIL;
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        int32_t first = 0, all = spec->sequences[s].num_new;
        do {
            int32_t rows = all > 0 ? part_rows(split, first, all - first, k->run->seed) : 0;
            const struct linear_part part = {.sequence = s,
                                             .first = first,
                                             .rows = rows,
                                             .mode = rows == 1 && decodes ? ATTN_MODE_DECODE
                                                                          : ATTN_MODE_EXTEND};
            if (!linear_part(k, &part))
                return false;
            first += rows;
        } while (first < all);
    }
    return true;
}

static void judge_splits(struct kind_case *k)
{
    if (linear_begin(k) && run_parts(k, k->variant % SPLITS))
        linear_judge_parts(k);
}

/* ---- The same bits --------------------------------------------------------------------------- */

enum { LAYOUTS = 2 };

/* A state of fp32: one of 16 bits is rounded where a sequence is cut. */
static void change_cuts(struct case_spec *spec, int32_t index)
{
    change_split(spec, SPLIT_CHUNK);
    linear_set_extend(spec, "130i 65p 9i");
    set_form(spec, index, true);
}

/* All sequences in one batch, then each alone and in parts. */
static void judge_cuts(struct kind_case *k)
{
    static const int32_t splits[] = {SPLIT_SINGLE, SPLIT_CHUNK, SPLIT_RANDOM};
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    void *whole = NULL;
    if (kind_make(k) && kind_declares(k, ATTN_TRAIT_CUT_INVARIANT))
        k->session = kind_session(k, k->run->subject, &setup);
    if (k->session && kind_judge(k))
        whole = kind_keep(k);
    for (int n = 0; whole && n < 3; n++)
        if (!linear_reset(k) || !run_parts(k, splits[n]) || !linear_judge_parts(k) ||
            !kind_left(
                k, whole,
                "a sequence cut into parts has other bits than in a batch with other sequences"))
            break;
    free(whole);
}

/* ---- Accepted drafts ------------------------------------------------------------------------- */

enum { VERIFIED = 7 }; /* rows that are verified at once */

static void change_accepted(struct case_spec *spec, int32_t index)
{
    change_split(spec, index * SPLITS + (index % 2 ? SPLIT_HALF : SPLIT_CHUNK));
    linear_set_extend(spec, "12i 75ip");
    spec->linear.modes = ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY);
    spec->linear.snapshots = true;
}

/* Some rows are verified, some of those accepted, and the rest goes on from there. */
static bool run_accepted(struct kind_case *k, int32_t s)
{
    int32_t accepted = 1 + (int32_t)((k->run->seed + (uint64_t)s) % (VERIFIED - 2));
    const struct linear_part verified = {
        .sequence = s, .rows = VERIFIED, .mode = ATTN_MODE_TARGET_VERIFY, .snapshots = true};
    while (!linear_case_has_snapshot(k->c, s, accepted - 1))
        accepted++;
    const struct linear_part rest = {.sequence = s,
                                     .first = accepted,
                                     .rows = k->at.spec.sequences[s].num_new - accepted,
                                     .snapshots = true,
                                     .accepted = true};
    return linear_part(k, &verified) && linear_part(k, &rest);
}

static void judge_accepted(struct kind_case *k)
{
    if (linear_begin(k) && run_accepted(k, 0) && run_accepted(k, 1))
        linear_judge_parts(k);
}

/* ---- Hand-off -------------------------------------------------------------------------------- */

/* The first rows of all sequences by one session, the others, one by one, by another. */
static bool run_handed(struct kind_case *k, struct case_session *first, struct case_session *second)
{
    struct case_session *own = k->session;
    bool good = true;
    for (int32_t s = 0; s < k->at.spec.num_sequences && good; s++) {
        int32_t rows = k->at.spec.sequences[s].num_new, prefill = rows > 4 ? rows - 4 : rows;
        struct linear_part part = {.sequence = s, .rows = prefill};
        k->session = first;
        good = linear_part(k, &part);
        k->session = second;
        part = (struct linear_part){.sequence = s, .rows = 1, .mode = ATTN_MODE_DECODE};
        for (part.first = prefill; part.first < rows && good; part.first++)
            good = linear_part(k, &part);
    }
    k->session = own;
    return good;
}

/* With the case's session alone, then to the other one, then from it. `same`: with equal bits. */
static void judge_handed(struct kind_case *k, struct case_session *other, bool same)
{
    struct case_session *own = k->session;
    struct case_session *const pairs[][2] = {{own, own}, {own, other}, {other, own}};
    void *alone = NULL;
    for (int n = 0; n < 3; n++) {
        if (!linear_reset(k) || !run_handed(k, pairs[n][0], pairs[n][1]) || !linear_judge_parts(k))
            break;
        if (same && n == 0)
            alone = kind_keep(k);
        else if (alone && memcmp(alone, k->c->actual, k->c->bytes) != 0)
            kind_report(k, ATTN_OK,
                        "a state that another instance reads, or has written, gives other bits");
    }
    free(alone);
}

enum { HANDED_FORMS = 2 }; /* of each variant: fp32 and bf16, one in each layout */

static void change_handed(struct case_spec *spec, int32_t index)
{
    int32_t variant = index / HANDED_FORMS, dtype = index % HANDED_FORMS;
    change_split(spec, SPLIT_TAIL);
    linear_set_extend(spec, "72i 0i 21");
    set_form(spec, 2 * dtype + (variant + dtype) % 2, true);
}

/* To a session of this subject: the case's own on another number of threads, or with another value of one option. */
static void hand_to(struct kind_case *k, const struct check_subject *subject, bool same)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER};
    struct case_session *other = kind_session(k, subject, &setup);
    if (other)
        judge_handed(k, other,
                     same && case_session_verdict(other)->traits & ATTN_TRAIT_DETERMINISTIC);
    case_session_destroy(other);
}

static void hand_to_threads(struct check_run *run, void *ctx)
{
    hand_to(ctx, run->subject, true);
}

static void hand_to_setting(struct kind_case *k, const struct setting *setting)
{
    struct check_run *run = k->run;
    struct check_subject subject = *run->subject;
    char what[3 * SETTING_TEXT], reason[LINEAR_TEXT] = "";
    struct options *options = setting_open(run, setting, 1, what);
    if (!options)
        return;
    subject.options = &options->view;
    if (linear_accepts(&subject, &k->at.spec, reason))
        hand_to(k, &subject, false);
    else
        check_skip(run, "%s: %s", what, reason);
    options_destroy(options);
}

CHECK_COUNT(handed, HANDED_FORMS *linear_count_families(subject) * (1 + setting_count_all(subject)))

static void run_linear_handed(struct check_run *run)
{
    struct kind_case k = {.run = run, .kind = &linear_layers};
    struct setting setting;
    int32_t variant = run->index / linear_count_families(run->subject) / HANDED_FORMS;
    if (linear_find_case(run, change_handed, &k.at.spec) && linear_begin(&k)) {
        if (variant == 0) {
            other_host_use(run, 3, hand_to_threads, &k);
        } else {
            setting_find(run->subject, variant - 1, &setting);
            hand_to_setting(&k, &setting);
        }
    }
    kind_close(&k);
}

/* ---- The rest of the batch ------------------------------------------------- */

static void judge_permuted(struct kind_case *k)
{
    int32_t *turn = &k->at.spec.linear.turn;
    for (*turn = 0; *turn < k->at.spec.num_sequences && k->run->code == CHECK_PASS; ++*turn)
        kind_run(k);
}

/* ---- Anything -------------------------------------------------------------------------------- */

enum { RANDOM_CASES = 60 };

static int32_t count_random(const struct check_subject *subject)
{
    int32_t count = subject->exhaustive ? 40 * RANDOM_CASES : RANDOM_CASES;
    return linear_families(subject) ? count : 1;
}

/* Complications that are left out to make a failing case smaller. */
static void leave_out(struct case_spec *spec, uint32_t without)
{
    struct linear_spec *linear = &spec->linear;
    if (without & 1)
        linear->padded = 0;
    if (without & 2)
        spec->first_row = 0;
    if (without & 4)
        linear->snapshots = false;
    if (without & 8)
        linear->gap = 0;
    if (without & 16)
        linear->z = linear->bias = false;
    if (without & 32)
        spec->num_sequences = 1;
}

static void run_linear_random(struct check_run *run)
{
    struct case_spec spec;
    uint32_t set = linear_families(run->subject);
    char reason[LINEAR_TEXT] = "";
    uint32_t family =
        set ? linear_family_at(set, (int32_t)(run->seed % (uint32_t)__builtin_popcount(set)))
            : ATTN_LINEAR_GDN;
    if (!linear_find(run->subject, family, run->seed, NULL, 0, &spec, reason)) {
        check_skip(run, "%s", reason);
        return;
    }
    leave_out(&spec, run->without);
    numerics_run(run, &spec, NULL);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_linear_invar[] = {
    OWN_ROW("INVAR-01", linear_accepted, judge_accepted,
            "after a verification, a sequence resumes from the snapshot of any of its rows",
            LINEAR(change_accepted, FORMS)),
    OWN_ROW("INVAR-01", linear_permuted, judge_permuted,
            "the order of the sequences and of their slots changes no result",
            LINEAR(linear_set_many, 1)),
    OWN_ROW("INVAR-01", linear_splits, judge_splits,
            "a sequence may be cut anywhere: each part resumes from the state of the part before",
            LINEAR(change_split, FORMS *SPLITS)),
    OWN_ROW("INVAR-04", linear_cuts, judge_cuts,
            "CUT_INVARIANT: where a sequence is cut changes no bit of linear layers",
            LINEAR(change_cuts, LAYOUTS)),
    CHECK_ROW("INVAR-01", linear_handed, count_handed, CHECK_NEEDS_COMPUTE,
              "an instance resumes from a state that another instance wrote"),
    CHECK_ROW("INVAR-01", linear_random, count_random, CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE,
              "linear layers are right for random problems that query accepts"),
    {.rule = NULL},
};
