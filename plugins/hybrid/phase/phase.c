/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_phase: prefill by one backend, decode by another, over one KV cache.
 *
 *   mode                          child
 *   EXTEND                        prefill
 *   DECODE                        decode
 *   TARGET_VERIFY, DRAFT_EXTEND   as speculative_attention_mode says
 *   MIXED                         extend rows to prefill, decode rows to decode
 *   IDLE                          neither
 *
 * Both children are asked with the caller's layout, so a cache that one of them cannot read is a
 * reason of that child. MIXED goes to the prefill child whole where it cannot be split
 * (core/split.h). core/pick.h applies the table. */
#include "plugins/hybrid/core/hybrid.h"

#include "attn_plugin_util.h"
#include "plugins/hybrid/core/pick.h"

#include <string.h>

enum { PREFILL = 0, DECODE = 1, NUM_CHILDREN = 2 };

/* ---- Options --------------------------------------------------------------------------------- */

typedef struct phase_options {
    const char *child[NUM_CHILDREN]; /* names of backends; valid during the call */
    uint32_t spec_child;             /* the child of TARGET_VERIFY and DRAFT_EXTEND */
} phase_options;

static const char *const spec_choices[] = {"prefill", "decode"};

static const attn_option options_declared[] = {
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

/* CONFIG_ERROR if a child is not named. */
static attn_status read_options(const attn_options *options, phase_options *read, attn_error *error)
{
    memset(read, 0, sizeof *read);
    for (uint32_t v = 0; options && v < options->num_values; v++) {
        const attn_option_value *value = attn_at(options->values, v);
        if (strcmp(value->key, "prefill") == 0)
            read->child[PREFILL] = value->text;
        else if (strcmp(value->key, "decode") == 0)
            read->child[DECODE] = value->text;
        else if (strcmp(value->key, "speculative_attention_mode") == 0)
            read->spec_child = value->integer == 1 ? DECODE : PREFILL;
    }
    for (int c = 0; c < NUM_CHILDREN; c++)
        if (!read->child[c])
            return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                        "option %s is required: the name of a backend",
                                        options_declared[c].key);
    return ATTN_OK;
}

/* ---- Rules ----------------------------------------------------------------------------------- */

static uint32_t part_of(const void *ctx, const attn_layer_group *group, int32_t layer_id)
{
    (void)ctx, (void)group, (void)layer_id;
    return 0;
}

/* `ctx` is who serves drafts. */
static uint32_t choose(const void *ctx, uint32_t part, uint32_t phase, int32_t num_seqs,
                       int32_t max_kv_len)
{
    (void)part, (void)num_seqs, (void)max_kv_len;
    return phase == PICK_PREFILL ? PREFILL : phase == PICK_DECODE ? DECODE : *(const uint32_t *)ctx;
}

static pick_reach reach(const void *ctx, uint32_t part, uint32_t phase, int32_t max_seqs,
                        int32_t max_kv_len, uint32_t child)
{
    if (choose(ctx, part, phase, max_seqs, max_kv_len) != child)
        return (pick_reach){0, 0};
    return (pick_reach){.max_seqs = max_seqs, .max_kv_len = max_kv_len};
}

static const pick_rules rules = {.num_children = NUM_CHILDREN,
                                 .part_of = part_of,
                                 .choose = choose,
                                 .reach = reach,
                                 .halves_apart = 1};

/* ---- Query and create ------------------------------------------------------------------------ */

static attn_status query(const attn_backend_type *type, const attn_options *given,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    (void)type;
    phase_options options;
    attn_status status = fanout_check_services(services, error);
    if (status == ATTN_OK)
        status = read_options(given, &options, error);
    if (status != ATTN_OK)
        return status;
    picker pick = {.rules = &rules, .ctx = &options.spec_child};
    return pick_query(services, &pick, options.child, problem, verdict, error);
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *given,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    phase_options options;
    attn_status status = read_options(given, &options, error);
    if (status == ATTN_OK)
        status = fanout_check_problems(type, given, services, problems, num_problems, error);
    if (status != ATTN_OK)
        return status;
    picker pick = {.rules = &rules, .ctx = &options.spec_child};
    attn_instance *made = NULL;
    status = pick_create(services, &pick, options.child, problems, num_problems,
                         sizeof options.spec_child, &made, error);
    if (status != ATTN_OK)
        return status;
    *(uint32_t *)made->own = options.spec_child;
    made->pick.ctx = made->own;
    *instance = made;
    return ATTN_OK;
}

/* ---- Type ------------------------------------------------------------------------------------ */

const attn_backend_type hybrid_phase_type = {
    .struct_size = sizeof hybrid_phase_type,
    .flags = ATTN_BACKEND_COMPOSITE,
    .name = "hybrid_phase",
    .doc = "prefill by one backend, decode by another",
    .num_options = sizeof options_declared / sizeof options_declared[0],
    .num_layouts = FANOUT_NUM_LAYOUTS,
    .options = options_declared,
    .layouts = fanout_layouts,
    .ops = &pick_ops,
    .query = query,
    .create = create,
};
