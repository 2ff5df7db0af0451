/* SPDX-License-Identifier: Apache-2.0
 *
 * phase_query: what hybrid_phase is told, where it sends each mode, and what it can do.
 *
 * A MIXED batch is split by rows where it may be (split.h), else it goes to the prefill child
 * whole.
 */
#include "phase.h"

#include "plugins/hybrid/core/split.h"
#include "plugins/common/plugin_error.h"
#include "plugins/common/verdict.h"

#include <string.h>

#define BIT(mode)   ATTN_MODE_BIT(ATTN_MODE_##mode)
#define SPEC_MODES  (BIT(TARGET_VERIFY) | BIT(DRAFT_EXTEND))
#define KNOWN_MODES (ATTN_MODE_BIT(ATTN_MODE_COUNT) - 1u)

/* ---- Options --------------------------------------------------------------------------------- */

static const char *const spec_choices[] = {"prefill", "decode"};

const attn_option phase_option_list[PHASE_NUM_OPTIONS] = {
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BACKEND_REF,
     .flags = ATTN_OPTION_REQUIRED,
     .key = "prefill",
     .min = 1,
     .doc = "backend of EXTEND batches and of the extend rows of MIXED ones"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BACKEND_REF,
     .flags = ATTN_OPTION_REQUIRED,
     .key = "decode",
     .min = 1,
     .doc = "backend of DECODE batches and of the decode rows of MIXED ones"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_ENUM,
     .key = "speculative_attention_mode",
     .default_text = "prefill",
     .min = 1,
     .num_choices = 2,
     .choices = spec_choices,
     .doc = "which of the two serves TARGET_VERIFY and DRAFT_EXTEND"},
};

attn_status phase_read_options(const attn_options *options, phase_options *read, attn_error *error)
{
    memset(read, 0, sizeof *read);
    for (uint32_t v = 0; options && v < options->num_values; v++) {
        const attn_option_value *value = attn_at(options->values, v);
        if (strcmp(value->key, "prefill") == 0)
            read->child[PHASE_PREFILL] = value->text;
        else if (strcmp(value->key, "decode") == 0)
            read->child[PHASE_DECODE] = value->text;
        else if (strcmp(value->key, "speculative_attention_mode") == 0)
            read->spec_child = value->integer == 1 ? PHASE_DECODE : PHASE_PREFILL;
    }
    for (int c = 0; c < NUM_PHASES; c++)
        if (!read->child[c])
            return plugin_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                     "option %s is required: the name of a backend",
                                     phase_option_list[c].key);
    return ATTN_OK;
}

/* ---- Routing --------------------------------------------------------------------------------- */

static uint32_t own_mode(int c)
{
    return c == PHASE_PREFILL ? BIT(EXTEND) : BIT(DECODE);
}

static uint32_t routed_modes(int c, uint32_t modes, const phase_routing *routing)
{
    uint32_t routed = modes & own_mode(c);
    if (c == routing->spec_child)
        routed |= modes & SPEC_MODES;
    if (modes & BIT(MIXED) && routing->split_mixed)
        routed |= own_mode(c);
    else if (c == PHASE_PREFILL)
        routed |= modes & BIT(MIXED);
    /* What this version does not know is asked of both, so that it is refused by both. */
    return routed | (modes & ~KNOWN_MODES);
}

int phase_asks(int c, uint32_t modes, const phase_routing *routing, uint32_t *routed)
{
    *routed = routed_modes(c, modes, routing);
    if (*routed != 0)
        return 1;
    if (modes & ~BIT(IDLE))
        return 0;
    *routed = modes;
    return 1;
}

int phase_narrow_problem(int c, const attn_problem *problem, const phase_routing *routing,
                         child_problem *narrowed)
{
    uint32_t modes;
    int asked = phase_asks(c, problem->bounds->modes, routing, &modes);
    fanout_narrow_problem(problem, modes, narrowed);
    /* Rows of a split MIXED batch come in MIXED's form of latent attention. */
    if (problem->bounds->modes & BIT(MIXED) && routing->split_mixed &&
        problem->mla_expanded & BIT(MIXED))
        narrowed->problem.mla_expanded |= own_mode(c);
    return asked;
}

attn_status phase_decide_split(const attn_services *services, const phase_options *options,
                               const attn_problem *problem, int *split, attn_error *error)
{
    *split = 1;
    if (!(problem->bounds->modes & BIT(MIXED)))
        return ATTN_OK;
    *split = split_is_possible(problem);
    if (!*split || !split_is_rounded(problem))
        return ATTN_OK;
    int prefill = -1, decode = -1;
    attn_status status = split_reads_unquantised(services, options->child[PHASE_PREFILL], problem,
                                                 BIT(EXTEND), &prefill, error);
    if (status == ATTN_OK)
        status = split_reads_unquantised(services, options->child[PHASE_DECODE], problem,
                                         BIT(DECODE), &decode, error);
    /* A child that cannot serve its rows is to say so in query, with its reasons. */
    *split = prefill == decode || prefill < 0 || decode < 0;
    return status;
}

/* ---- Query ----------------------------------------------------------------------------------- */

/* What the composite adds to its children's answers. */
static void add_own_answer(const attn_problem *problem, const phase_options *options, int split,
                           attn_verdict *verdict)
{
    uint32_t modes = problem->bounds->modes;
    if (modes & BIT(MIXED) && split) {
        split_limit_graph_level(problem, verdict);
        if (verdict->reads_new_kv_unquantised & BIT(EXTEND))
            verdict->reads_new_kv_unquantised |= BIT(MIXED);
    } else if (modes & BIT(MIXED) && modes & BIT(DECODE) &&
               strcmp(options->child[PHASE_PREFILL], options->child[PHASE_DECODE]) != 0) {
        /* Whole MIXED batches take decode rows to the prefill child. */
        split_limit_invariance(problem, verdict);
    }
    verdict->reads_new_kv_unquantised &= modes;
    if (problem->bounds->max_seqs > 0) {
        int32_t group = problem->group->kv_group;
        verdict->host_bytes += phase_metadata_bytes(group < 0 ? 0 : (uint32_t)group + 1);
    }
}

/* A MIXED batch that is not split for the kind of its layers, which a child refuses: with a kind
 * that it accepts it would be split, and of that the composite's own answer is to speak. */
static attn_status judge_as_split(const attn_services *services, const phase_options *options,
                                  const attn_problem *problem, const phase_routing *routing,
                                  int *split, attn_error *error)
{
    attn_status status = ATTN_OK;
    *split = routing->split_mixed;
    if (problem->group->kind != ATTN_KIND_SPARSE)
        return ATTN_OK;
    for (int c = 0; c < NUM_PHASES && !*split && status == ATTN_OK; c++) {
        child_problem narrowed;
        if (phase_narrow_problem(c, problem, routing, &narrowed))
            status = fanout_refuses_field(services, options->child[c], &narrowed.problem,
                                          ATTN_FIELD_KIND, split, error);
    }
    return status;
}

attn_status phase_query(const attn_backend_type *type, const attn_options *given,
                        const attn_services *services, const attn_problem *problem,
                        attn_verdict *verdict, attn_error *error)
{
    (void)type;
    phase_options options;
    phase_routing routing = {.split_mixed = 1};
    attn_status status = fanout_check_services(services, error);
    if (status == ATTN_OK)
        status = phase_read_options(given, &options, error);
    if (status == ATTN_OK)
        status = phase_decide_split(services, &options, problem, &routing.split_mixed, error);
    if (status != ATTN_OK)
        return status;
    routing.spec_child = options.spec_child;

    attn_verdict merged;
    fanout_verdict_begin(verdict, &merged);
    for (int c = 0; c < NUM_PHASES && status == ATTN_OK; c++) {
        child_problem narrowed;
        if (!phase_narrow_problem(c, problem, &routing, &narrowed))
            continue;
        status = fanout_verdict_add(services, options.child[c], &narrowed.problem, &merged, error);
    }
    int split = routing.split_mixed;
    if (status == ATTN_OK && !merged.supported)
        status = judge_as_split(services, &options, problem, &routing, &split, error);
    if (status != ATTN_OK)
        return status;
    add_own_answer(problem, &options, split, &merged);
    verdict_end(&merged, verdict);
    return ATTN_OK;
}
