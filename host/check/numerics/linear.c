/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c: linear layers against the oracle: the recurrences and their slots. Invariances are in
 * check/relations/linear_invariance.c.
 */
#include "host/check/cases/kind.h"

#include "host/base/error.h"

enum { FAMILY_CASES = 24, CUTS = 12 };

/* ---- Families -------------------------------------------------------------------------------- */

/* Values of one element or one channel, and what is given for each of them as a column. */
static void make_narrow(struct linear_spec *spec, bool values)
{
    if (spec->k_heads == 0)
        return;
    spec->k_dim = values ? 16 : 1;
    spec->v_dim = values ? 1 : 16;
    spec->width = spec->gap = 0;
    if (spec->family == ATTN_LINEAR_MAMBA2)
        spec->skip = 2;
    if (spec->family == ATTN_LINEAR_KDA)
        spec->flags |= ATTN_LINEAR_RAW_GATES;
}

/* Every mode, in both layouts; narrow heads in the last cases. */
static void vary_mode(struct case_spec *spec, int32_t index)
{
    if (index >= FAMILY_CASES - 2)
        make_narrow(&spec->linear, index == FAMILY_CASES - 2);
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_TARGET_VERIFY,
                                     ATTN_MODE_EXTEND, ATTN_MODE_MIXED,  ATTN_MODE_DRAFT_EXTEND};
    spec->linear.vk = index / 6 % 2;
    if (spec->mode == modes[index % 6])
        return;
    linear_set_mode(spec, modes[index % 6]);
    spec->linear.snapshots = spec->mode == ATTN_MODE_TARGET_VERIFY;
}

/* Half of the decode batches have dimensions that no vector divides, where the backend has them. */
static void vary_dims(struct case_spec *spec, int32_t index)
{
    vary_mode(spec, index);
    if (spec->mode != ATTN_MODE_DECODE || index < FAMILY_CASES / 2 || spec->linear.k_heads == 0)
        return;
    spec->linear.k_dim |= 1;
    spec->linear.v_dim |= 1;
}

static void run_family(struct check_run *run, uint32_t family)
{
    static const spec_change changes[] = {vary_dims, vary_mode, NULL};
    struct case_spec spec;
    char reason[LINEAR_TEXT] = "";
    for (int n = 0; n < 3; n++)
        if (linear_find(run->subject, family, run->seed, changes[n], run->index, &spec, reason)) {
            numerics_run(run, &spec, NULL);
            return;
        }
    check_skip(run, "%s", reason);
}

#define FAMILY(name, family)                                                                       \
    CHECK_COUNT(name, linear_families(subject) >> (family)&1 ? FAMILY_CASES : 1)                   \
    CHECK_RUN(name, run_family(run, family))

FAMILY(linear_gdn, ATTN_LINEAR_GDN)
FAMILY(linear_ssd, ATTN_LINEAR_MAMBA2)
FAMILY(linear_kda, ATTN_LINEAR_KDA)
FAMILY(linear_lightning, ATTN_LINEAR_LIGHTNING)
FAMILY(linear_short_conv, ATTN_LINEAR_SHORT_CONV)

/* ---- Cases of every family ------------------------------------------------------------------- */

SPEC_CHANGE(change_slots, linear_set_extend(spec, "5ip 0i 0 3id 70 1i 0ip 2p"))

static void change_snapshots(struct case_spec *spec, int32_t index)
{
    linear_set_extend(spec, "4i 1i 1i 70ip 1");
    spec->linear.sparse = index ? 23 : 0;
    spec->mode = ATTN_MODE_TARGET_VERIFY;
    spec->linear.snapshots = true;
}

/* Long sequences, new ones and others, in all modes that have such, with few snapshots or none. */
static void change_cuts(struct case_spec *spec, int32_t index)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DRAFT_EXTEND, ATTN_MODE_MIXED};
    static const int32_t rows[] = {65, 100, 128, 70, 131, 190, 64, 80};
    linear_set_extend(spec, "0 0 0 0");
    for (int32_t s = 0; s < 4; s++)
        spec->sequences[s] =
            (struct case_sequence){.num_new = s < 3 ? rows[(index + 3 * s) % 8] : 1,
                                   .has_initial = (s + index / 2) % 2,
                                   .in_place = index / 4 % 2};
    spec->linear.snapshots = true;
    spec->linear.cuts = 1 + index % 4;
    linear_set_mode(spec, modes[index % 3]);
}

static void change_places(struct case_spec *spec, int32_t index)
{
    static const uint32_t alignments[] = {0, 64, 256};
    change_slots(spec, index);
    if (index % 2)
        spec->linear.gap = 16;
    spec->min_alignment = alignments[index % 3];
    spec->linear.exactly_aligned = true;
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_linear[] = {
    CHECK_CASES("MEAN-18", linear_gdn, "gated delta net computes its recurrence"),
    CHECK_CASES("MEAN-18", linear_ssd, "Mamba2 computes its recurrence"),
    CHECK_CASES("MEAN-18", linear_kda, "Kimi delta attention computes its recurrence"),
    CHECK_CASES("MEAN-18", linear_lightning, "lightning attention computes its recurrence"),
    CHECK_CASES("MEAN-18", linear_short_conv,
                "a short convolution reads the inputs of its state, then the call's"),
    ROW("KV-09", linear_slots,
        "states are read from slot and written to dst_slot, in place or not, also for "
        "sequences without rows",
        LINEAR(change_slots, 1)),
    ROW("KV-09", linear_snapshots,
        "a snapshot is the state after its row, and does not change results",
        LINEAR(change_snapshots, 2)),
    ROW("KV-09", linear_cuts,
        "snapshots at any rows of long sequences, new or resumed, do not change results",
        LINEAR_MORE(change_cuts, CUTS, 40)),
    ROW("STRUCT-10", linear_places,
        "results are right for operands of linear layers with exactly the alignment of the problem",
        LINEAR(change_places, 6)),
    {.rule = NULL},
};
