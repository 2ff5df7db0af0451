/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.c: forwards with one fault, of any kind of layer. Each fails with the status of its rule, and the next one,
 * without a fault, is right.
 */
#include "host/check/cases/kind.h"

#include <string.h>

#include "host/base/error.h"
#include "host/base/operand_roles.h"

/* ---- Faults ---------------------------------------------------------------------------------- */

enum {
    CAPTURING,
    READ_ONLY,
    NO_OPERAND,
    UNSAVED,
    NARROW,
    NO_SCALE,
    NO_VALUE,
    ONE_LESS,
    ONE_MORE,
    OTHER_GRANULARITY,
    NO_GRANULARITY,
    NOWHERE,
    NO_ARRAY,
    FAULTS
};

static const struct fault {
    uint32_t of; /* KIND_*: which operands may have it; 0 = the call itself */
    attn_status status;
    bool is_named; /* the message names the operand */
    const char *what;
} faults[FAULTS] = {
    [CAPTURING] = {0, ATTN_CAPTURE_UNSUPPORTED, false, "with CAPTURING"},
    [READ_ONLY] = {KIND_WRITTEN, ATTN_INVALID_ARGUMENT, false, "is read-only"},
    [NO_OPERAND] = {KIND_NEEDED, ATTN_INVALID_ARGUMENT, true, "is missing"},
    [UNSAVED] = {KIND_SAVED, ATTN_INVALID_ARGUMENT, true, "is not to be saved"},
    [NARROW] = {KIND_KEYED, ATTN_INVALID_ARGUMENT, true, "has no column for the last key"},
    [NO_SCALE] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, true, "is missing"},
    [NO_VALUE] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, true, "has count 0"},
    [ONE_LESS] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, true, "has one value too few"},
    [ONE_MORE] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, true, "has one value too many"},
    [OTHER_GRANULARITY] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, true, "has another granularity"},
    [NO_GRANULARITY] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, true, "is for unscaled"},
    [NOWHERE] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, true, "is nowhere"},
    /* Scales of the roles after it are missing, too. */
    [NO_ARRAY] = {KIND_SCALED, ATTN_INVALID_ARGUMENT, false, "is beyond num_scales"},
};

/* A fault at work. */
struct spoilt {
    int fault;
    uint32_t role;
    int32_t keys;       /* of the longest sequence */
    attn_tensor tensor; /* what the forward is given instead */
    attn_scale scale;
};

static void spoil_scale(struct spoilt *spoilt, attn_forward_args *args, const attn_scale **given)
{
    attn_scale *scale = &spoilt->scale;
    *scale = **given;
    *given = spoilt->fault == NO_SCALE ? NULL : scale;
    if (spoilt->fault == NO_VALUE)
        scale->count = 0;
    else if (spoilt->fault == ONE_LESS)
        scale->count--;
    else if (spoilt->fault == ONE_MORE)
        scale->count++;
    else if (spoilt->fault == OTHER_GRANULARITY)
        scale->granularity =
            scale->granularity == ATTN_SCALE_PER_HEAD ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_PER_HEAD;
    else if (spoilt->fault == NO_GRANULARITY)
        scale->granularity = ATTN_SCALE_NONE;
    else if (spoilt->fault == NOWHERE)
        scale->host = scale->device = NULL;
    else if (spoilt->fault == NO_ARRAY)
        args->num_scales = spoilt->role;
}

static void spoil(void *ctx, attn_forward_args *args, const attn_tensor **operands,
                  const attn_scale **scales)
{
    struct spoilt *spoilt = ctx;
    if (spoilt->fault == CAPTURING) {
        args->flags |= ATTN_FORWARD_CAPTURING;
    } else if (spoilt->fault == NO_OPERAND) {
        operands[spoilt->role] = NULL;
    } else if (spoilt->fault == UNSAVED) {
        args->flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
        operands[ATTN_ROLE_C_KV] = operands[ATTN_ROLE_K_PE] = NULL;
    } else if (spoilt->fault == READ_ONLY || spoilt->fault == NARROW) {
        spoilt->tensor = *operands[spoilt->role];
        operands[spoilt->role] = &spoilt->tensor;
        if (spoilt->fault == NARROW)
            spoilt->tensor.shape[1] = spoilt->keys - 1;
        else
            spoilt->tensor.flags |= ATTN_TENSOR_READ_ONLY;
    } else {
        spoil_scale(spoilt, args, &scales[spoilt->role]);
    }
}

/* ---- Forwards -------------------------------------------------------------------------------- */

static void try_fault(struct kind_case *k, int which, uint32_t role)
{
    const struct fault *fault = &faults[which];
    struct spoilt spoilt = {.fault = which, .role = role};
    for (int32_t s = 0; s < k->c->lengths.num_real_seqs; s++)
        if (k->c->lengths.kv_len[s] > spoilt.keys)
            spoilt.keys = k->c->lengths.kv_len[s];
    const char *name = fault->of ? role_name(role) : "";
    attn_status status = case_session_try(k->session, k->c, spoil, &spoilt, check_error(k->run));
    if (status != fault->status || (fault->is_named && !strstr(check_error_text(k->run), name)))
        check_fail(k->run, "a forward %s%s%s%s gives %s %s: accepted %s%s",
                   !fault->of                 ? ""
                   : fault->of == KIND_SCALED ? "whose scale of "
                                              : "whose ",
                   name, fault->of ? " " : "", fault->what, host_status_name(status),
                   check_error_text(k->run), host_status_name(fault->status),
                   fault->is_named ? " with the operand's name" : "");
}

/* Without computation it is enough that the forward succeeds. */
static void try_without_fault(struct kind_case *k)
{
    if (k->run->check->needs & CHECK_NEEDS_COMPUTE)
        kind_judge(k);
    else if (case_session_try(k->session, k->c, NULL, NULL, check_error(k->run)) != ATTN_OK)
        check_fail(k->run, "after forwards with a fault, one without: %s",
                   check_error_text(k->run));
}

/* The relation's faults, each of every operand that may have it. */
static void judge_faults(struct kind_case *k)
{
    const struct case_setup exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};
    const struct relation *relation = k->run->check->relation;
    if (relation->last_fault <= READ_ONLY && k->run->subject->device->type != ATTN_DEVICE_CPU) {
        check_skip(k->run, "applies only to calls on a CPU");
        return;
    }
    if (kind_make(k))
        k->session = kind_session(k, k->run->subject, &exactly);
    for (int which = relation->first_fault; k->session && which <= relation->last_fault; which++)
        for (uint32_t role = 0; role < (faults[which].of ? ATTN_ROLE_COUNT : 1); role++)
            if (!faults[which].of || kind_operand(k, role) & faults[which].of)
                try_fault(k, which, role);
    if (k->session && k->run->code == CHECK_PASS)
        try_without_fault(k);
}

#define WITH(first, last)                                                                          \
    {                                                                                              \
        .judge = judge_faults, .first_fault = first, .last_fault = last                            \
    }
static const struct relation capturing = WITH(CAPTURING, CAPTURING),
                             read_only = WITH(READ_ONLY, READ_ONLY),
                             without_operand = WITH(NO_OPERAND, NARROW),
                             without_scale = WITH(NO_SCALE, NO_SCALE),
                             other_scale = WITH(NO_VALUE, NO_ARRAY);

/* ---- Table ----------------------------------------------------------------------------------- */

/* Slots are read from and written to, in place or not, and one sequence has no rows. */
SPEC_CHANGE(change_slots, linear_set_extend(spec, "5ip 0i 3"))

/* Logits of an indexer are an operand. */
SPEC_CHANGE(keep_logits, spec->indexer.by_steps = spec->indexer.heads > 0)

#define SOME_LATENTS(forms, dims, ...) LATENT(forms, MLA_LATENT, BIT(dims), __VA_ARGS__)
#define FP8_OPERANDS                   EACH(INPUTS), OF(OUT, E4M3), PLAIN_AND_QUANTISED
#define PLAIN                          SOFTMAX(BOTH_PHASES, NTH(LAYOUT, 0))

const struct check check_faults[] = {
    ROW_NEEDS("KV-05", missing_scale, without_scale, 0, "a missing scale is INVALID_ARGUMENT",
              SOFTMAX(QUANTISED, BOTH_PHASES)),
    ROW_NEEDS("KV-05", missing_input_scale, without_scale, 0,
              "a missing scale of q, k, v or the output is INVALID_ARGUMENT",
              SOFTMAX(FP8_OPERANDS, BOTH_PHASES)),
    ROW_NEEDS("KV-05", mla_missing_scale, without_scale, 0,
              "a missing scale of a latent cache is named",
              SOME_LATENTS(BOTH_FORMS, MLA_SMALL, SCALED, BOTH_PHASES)),
    ROW_NEEDS("KV-05", few_scales, other_scale, 0,
              "scales of a wrong count or granularity are INVALID_ARGUMENT",
              SOFTMAX(QUANTISED, BOTH_PHASES, SAVED_OR_NOT)),
    ROW_NEEDS(
        "KV-05", few_input_scales, other_scale, 0,
        "scales of q, k, v or the output with a wrong count or granularity are INVALID_ARGUMENT",
        SOFTMAX(FP8_OPERANDS, BOTH_PHASES)),
    ROW_NEEDS("KV-05", mla_few_scales, other_scale, 0,
              "a latent cache's scale with a wrong count or granularity is INVALID_ARGUMENT",
              SOME_LATENTS(MLA_ABSORBED, MLA_ONE_BLOCK, SCALED, BOTH_PHASES, SAVED_OR_NOT)),
    ALL_ROWS("CAPT-01", no_capture, capturing, CHECK_NEEDS_COMPUTE,
             "on a CPU a call with ATTN_FORWARD_CAPTURING is CAPTURE_UNSUPPORTED", PLAIN,
             SOME_LATENTS(BOTH_FORMS, MLA_SMALL, BOTH_PHASES), LINEAR(change_slots, 1)),
    ALL_ROWS("PURE-02", read_only, read_only, CHECK_NEEDS_COMPUTE,
             "a read-only operand that the call would write is INVALID_ARGUMENT", PLAIN,
             SOME_LATENTS(BOTH_FORMS, MLA_SMALL, BOTH_PHASES), LINEAR(change_slots, 1)),
    ROW_AS("ERR-05", chosen_roles, without_operand, "a missing operand of a sparse layer is named",
           SPARSE(GIVEN, BOTH_PHASES)),
    ROW_AS("ERR-05", sparse_roles, without_operand,
           "a missing, unsaved or narrow operand of a sparse layer over latents is named",
           LATENT_VARIED(keep_logits, 1, MLA_ABSORBED, MLA_LATENT, BIT(MLA_SMALL),
                         OF(CHOICE, GIVEN, E4M3), BOTH_PHASES)),
    ROW_AS("PURE-02", sparse_read_only, read_only,
           "a read-only operand that a sparse layer's call would write is INVALID_ARGUMENT",
           SPARSE_LATENT(BOTH_PHASES)),
    ROW_AS("ERR-05", mla_roles, without_operand, "a missing operand of a latent layer is named",
           SOME_LATENTS(BOTH_FORMS, MLA_SMALL, BOTH_PHASES)),
    ROW_AS("ERR-05", linear_roles, without_operand, "a missing operand of a linear layer is named",
           LINEAR(change_slots, 1)),
    {.rule = NULL},
};
