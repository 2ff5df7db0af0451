/* SPDX-License-Identifier: Apache-2.0
 *
 * strides.c: operands with other strides: a generator over all roles of a forward. Each operand
 * alone, then all together, in both forms of restrided.h; results are judged as usual.
 */
#include "host/check/cases/kind.h"
#include "host/check/cases/restrided.h"

#include <stdio.h>

enum { TEXT = 800 };

/* ---- The generator --------------------------------------------------------------------------- */

/* Forwards with each operand moved by itself, then with all of them; the first one moves none, to
 * see which there are. The message begins with the operand's name. */
static void move_each(struct kind_case *k, struct restrided *restrided)
{
    for (int n = -1; n < (int)ATTN_ROLE_COUNT + RESTRIDED_FORMS; n++) {
        bool all = n >= (int)ATTN_ROLE_COUNT;
        restrided->roles = n < 0 ? 0 : all ? restrided->given : restrided->given & BIT(n);
        restrided->form = all ? (enum restrided_form)(n - (int)ATTN_ROLE_COUNT) : RESTRIDED_TURNED;
        if (n >= 0 && restrided->roles == 0)
            continue;
        check_note(k->run, "%s with other strides", restrided_name(restrided));
        struct case_verdict verdict = {.good = true};
        char text[TEXT];
        numerics_judge_into(k->run, k->session, k->c, &verdict);
        if (verdict.good)
            continue;
        snprintf(text, sizeof text, "%s with other strides%s: %s", restrided_name(restrided),
                 n >= 0 && restrided->form == RESTRIDED_TURNED
                     ? " and outer dimensions turned round"
                     : "",
                 verdict.text);
        kind_report(k, verdict.status, text);
        return;
    }
}

/* The same, one dimension at a time so far apart that no 32 bits count what lies between: on the
 * CPU all operands that have several there at once, and each alone where that fails, to name it; on
 * a GPU, which has to have the memory, each alone. */
static void move_far(struct kind_case *k, struct restrided *restrided)
{
    struct case_verdict verdict = {.good = true};
    char text[TEXT];
    bool on_cpu = restrided->device->type == ATTN_DEVICE_CPU, alone = !on_cpu, failed = false;
    restrided->roles = 0;
    restrided->form = RESTRIDED_FAR;
    if (!kind_judge(k))
        return;
    for (uint32_t d = 0; d + 1 < ATTN_MAX_DIMS; d++)
        for (int n = -1; n < (int)ATTN_ROLE_COUNT; n++) {
            if (n < 0 ? alone : !(alone && restrided->dims[n] >> d & 1))
                continue;
            restrided->far_dim = d;
            restrided->roles = n < 0 ? restrided->given : BIT(n);
            check_note(k->run, "%s far apart along dimension %u", restrided_name(restrided), d);
            numerics_judge_into(k->run, k->session, k->c, &verdict);
            if (verdict.good)
                continue;
            snprintf(text, sizeof text, "%s far apart along dimension %u: %s",
                     restrided_name(restrided), d, verdict.text);
            if (n >= 0) {
                kind_report(k, verdict.status, text);
                return;
            }
            alone = failed = true;
        }
    if (failed)
        kind_report(k, verdict.status, text);
}

/* As far as query accepts: every optional operand, and dimensions that differ. */
static void enrich(const struct grid *grid, const attn_options *options, struct case_spec *spec)
{
    enum { LSE, SINKS, SLOPES, VALUES, CHANGES };
    for (int change = 0; change < CHANGES; change++) {
        struct case_spec richer = *spec;
        richer.wants_lse |= change == LSE;
        richer.sinks |= change == SINKS;
        richer.alibi |= change == SLOPES;
        if (change == VALUES && spec->latent.kv_lora_rank == 0)
            richer.v_head_dim = 33;
        grid_take(grid, options, &richer, spec);
    }
}

/* A case whose operands may lie anyhow, with as many of them as there can be. */
static bool may_move(struct kind_case *k)
{
    struct case_spec *spec = &k->at.spec;
    if (spec->kind == ATTN_KIND_LINEAR) /* it was made rich already */
        return true;
    if (spec->min_alignment > 0 || spec->kv_strides != ATTN_KV_STRIDES_ANY) {
        check_skip(k->run,
                   "query requires min_alignment %u, kv_strides %u: operands cannot have arbitrary "
                   "strides",
                   spec->min_alignment, spec->kv_strides);
        return false;
    }
    enrich(k->at.grid, k->at.options, spec);
    return true;
}

static void judge_moved(struct kind_case *k,
                        void (*move)(struct kind_case *k, struct restrided *restrided))
{
    const struct case_setup exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};
    struct check_subject subject = *k->run->subject;
    struct restrided restrided;
    restrided_init(&restrided, subject.type, subject.device, k->run->seed);
    subject.type = &restrided.front.type;
    if (may_move(k) && kind_make(k))
        k->session = kind_session(k, &subject, &exactly);
    if (k->session)
        move(k, &restrided);
    case_session_destroy(k->session);
    k->session = NULL;
    restrided_finish(&restrided);
}

static void judge_each(struct kind_case *k)
{
    judge_moved(k, move_each);
}

/* The fake driver fills what it allocates, which is some GiB here. */
static void judge_far(struct kind_case *k)
{
    if (k->run->subject->fake_device)
        check_skip(k->run, "the fake driver fills its memory: no operands of some GiB");
    else
        judge_moved(k, move_far);
}

static const struct relation restrided_each = {.judge = judge_each},
                             far_apart = {.judge = judge_far};

/* ---- Table ----------------------------------------------------------------------------------- */

enum { LINEAR_VARIANTS = 4 };

/* Every operand that the family has: raw gates, z, bias, D for each element; both layouts. */
static void make_rich(struct case_spec *spec, int32_t index)
{
    struct linear_spec *linear = &spec->linear;
    linear_set_extend(spec, index % 2 ? "1i" : "1i 37ip 1 2id");
    if (index % 2)
        linear_set_mode(spec, ATTN_MODE_DECODE);
    linear->vk = index / 2 % 2;
    linear->padded = index % 2 ? 2 : 0;
    linear->z = linear->bias = true;
    linear->width = 4;
    if (linear->family == ATTN_LINEAR_MAMBA2)
        linear->skip = 2;
    if (linear->family != ATTN_LINEAR_LIGHTNING && linear->family != ATTN_LINEAR_SHORT_CONV)
        linear->flags |= ATTN_LINEAR_RAW_GATES;
    if (linear->family != ATTN_LINEAR_SHORT_CONV) {
        linear->k_heads = 2;
        linear->v_heads = 4;
        linear->k_dim = 24;
    }
    linear->v_dim = 20;
}

#define LATENTS LATENT(BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), THREE_MODES)
#define RICH    LINEAR(make_rich, LINEAR_VARIANTS)

const struct check check_strides[] = {
    ALL_ROWS("INVAR-01", strides, restrided_each, CHECK_NEEDS_COMPUTE,
             "each operand, constants and states too, may have any outer strides, gaps and a "
             "byte_offset",
             SOFTMAX(THREE_MODES, EACH(LAYOUT), OF(SOURCE, SAVED, UNSAVED, SHARED),
                     OF(KV, AS_Q, E4M3_PER_HEAD)),
             LATENTS, RICH),
    ROW_AS(
        "INVAR-01", sparse_strides, restrided_each,
        "operands and caches of a sparse layer may have any outer strides, gaps and a byte_offset",
        SPARSE_LATENT(BOTH_PHASES)),
    {.rule = NULL},
};

const struct check check_far_operands[] = {
    ALL_ROWS(
        "INVAR-01", far_operands, far_apart, CHECK_NEEDS_COMPUTE,
        "vectors of an operand, states and constants included, may be more than 2^32 "
        "elements apart",
        SOFTMAX(BOTH_PHASES, EACH(LAYOUT), OF(SOURCE, SAVED, UNSAVED), OF(KV, AS_Q, E4M3_PER_HEAD)),
        LATENTS, RICH),
    {.rule = NULL},
};
