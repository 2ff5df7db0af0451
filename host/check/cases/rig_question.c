/* SPDX-License-Identifier: Apache-2.0
 *
 * rig_question.c: the questions of a rig, by kinds of layers. */
#include "host/check/cases/rig.h"

#include "host/base/round.h"

/* ---- Question -------------------------------------------------------------------------------- */

static const uint32_t mode_sets[] = {
    ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE) |
        ATTN_MODE_BIT(ATTN_MODE_MIXED),
    ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE),
    ATTN_MODE_BIT(ATTN_MODE_EXTEND),
    ATTN_MODE_BIT(ATTN_MODE_DECODE),
};
static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_F16, ATTN_F32};
static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND};
static const uint32_t families[] = {ATTN_LINEAR_GDN, ATTN_LINEAR_MAMBA2};
static const struct case_latent latents[] = {
    {.kv_lora_rank = 512, .rope_dim = 64, .nope_dim = 128, .v_dim = 128},
    {.kv_lora_rank = 64, .rope_dim = 32, .nope_dim = 32, .v_dim = 32},
};
static const int32_t dims[] = {64, 128, 96, 256, 32};
static const int32_t page_sizes[] = {16, 1, 32, 64, 128, 256};

/* An element of an array by a digit of *number, which loses it. */
#define NEXT(array, number) array[next(&(number), (int)(sizeof array / sizeof array[0]))]
static int next(int *number, int base)
{
    int value = *number % base;
    *number /= base;
    return value;
}

/* What is left of the number, which is 0 for all that are asked, is the set of modes. */
static int set_softmax(struct case_spec *spec, int number)
{
    spec->page_size = NEXT(page_sizes, number);
    spec->head_dim = spec->v_head_dim = NEXT(dims, number);
    spec->num_kv_heads = 2;
    spec->kv_layout = NEXT(layouts, number);
    spec->q_dtype = spec->kv_dtype = spec->out_dtype = NEXT(dtypes, number);
    return number;
}

static int set_linear(struct case_spec *spec, int number)
{
    struct linear_spec *linear = &spec->linear;
    spec->kind = ATTN_KIND_LINEAR;
    linear->k_dim = linear->v_dim = NEXT(dims, number);
    linear->family = NEXT(families, number);
    linear->flags = linear->family == ATTN_LINEAR_GDN ? ATTN_LINEAR_QK_L2NORM : 0;
    linear->k_heads = 2;
    linear->v_heads = 4;
    linear->vk = next(&number, 2);
    spec->q_dtype = spec->out_dtype = NEXT(dtypes, number);
    linear->state_dtype = ATTN_F32;
    return number;
}

static int set_latent(struct case_spec *spec, int number)
{
    spec->page_size = NEXT(page_sizes, number);
    spec->latent = NEXT(latents, number);
    spec->kv_layout = ATTN_LAYOUT_MLA_LATENT;
    spec->q_dtype = spec->kv_dtype = spec->out_dtype = NEXT(dtypes, number);
    case_spec_set_form(spec, false);
    return number;
}

static int set_sparse(struct case_spec *spec, int number)
{
    spec->top_k = 8;
    return set_latent(spec, number);
}

/* Kinds of layers, in the order in which they are tried. */
static int (*const kinds[])(struct case_spec *spec, int number) = {set_softmax, set_linear,
                                                                   set_latent, set_sparse};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

static void set_bounds(attn_bounds *bounds, uint32_t modes, int32_t page_size)
{
    bool decodes = modes == ATTN_MODE_BIT(ATTN_MODE_DECODE);
    *bounds = (attn_bounds){.struct_size = sizeof *bounds,
                            .modes = modes,
                            .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                            .max_seqs = RIG_SEQS,
                            .max_tokens = decodes ? RIG_SEQS : RIG_TOKENS,
                            .max_q_len = decodes ? 1 : RIG_Q_LEN,
                            .max_kv_len = RIG_KV_LEN,
                            .max_kv_tokens =
                                RIG_SEQS * round_up(RIG_KV_LEN, page_size > 0 ? page_size : 1)};
}

/* Question `number` of those that are tried of a kind; false: there are no more. */
static bool set_question(struct rig_question *q, const attn_device *device, int kind, int number)
{
    static const int32_t layer_ids[RIG_LAYERS] = {3, 11, 7};
    q->spec = (struct case_spec){.num_q_heads = 4,
                                 .window_left = -1,
                                 .flags = ATTN_FORWARD_SAVE_KV,
                                 .slots = SLOTS_SHUFFLED_PAGES,
                                 .host = HOST_ALL};
    int modes = kinds[kind](&q->spec, number);
    if (modes >= (int)(sizeof mode_sets / sizeof mode_sets[0]))
        return false;
    spec_problem_init(&q->posed, &q->spec, device);
    set_bounds(&q->bounds, mode_sets[modes], q->spec.page_size);
    for (int l = 0; l < RIG_LAYERS; l++)
        q->layers[l] = (attn_layer){
            .struct_size = sizeof q->layers[l], .layer_id = layer_ids[l], .kv_buffer = l};
    for (int g = 0; g < RIG_GROUPS; g++) {
        q->groups[g] = q->posed.group;
        q->groups[g].kv_group = q->groups[g].state_group = g;
        q->groups[g].num_layers = g == 0 ? 2 : 1;
        q->groups[g].layers = &q->layers[g == 0 ? 0 : 2];
        q->problems[g] = q->posed.problem;
        q->problems[g].group = &q->groups[g];
        q->problems[g].bounds = &q->bounds;
    }
    return true;
}

void rig_spoil_layout(attn_problem *problem)
{
    if (problem->state_layout)
        problem->state_layout = "state.no_such_layout/1";
    else
        problem->kv_layout = "kv.no_such_layout/1";
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* If not, `why` is the first reason, or the error. */
static bool ask(const struct check_subject *subject, const attn_problem *problem,
                attn_verdict *verdict, char *why, size_t size)
{
    const struct case_backend backend = {subject->type, subject->options, subject->services};
    return case_query(&backend, problem, verdict, why, size) == ATTN_OK && verdict->supported == 1;
}

bool rig_accepts(const struct check_subject *subject, const attn_problem *problem)
{
    attn_verdict verdict;
    return ask(subject, problem, &verdict, NULL, 0);
}

/* NULL accepts everything. */
static bool child_accepts(struct compose_node *child, const attn_problem *problem)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    HOST_ERROR(error);
    return !child || (compose_query(child, problem, &verdict, &error.base) == ATTN_OK &&
                      verdict.supported == 1);
}

/* The first question of a kind. `why` is the answer to the very first one. */
static bool find_of_kind(struct rig_question *question, const struct check_subject *subject,
                         int kind, struct compose_node *child, attn_verdict *verdict, char *why,
                         size_t size)
{
    for (int number = 0; set_question(question, &subject->device->info, kind, number); number++) {
        bool first = kind == 0 && number == 0;
        if (ask(subject, &question->problems[0], verdict, first ? why : NULL, size) &&
            child_accepts(child, &question->problems[0]))
            return true;
    }
    return false;
}

bool rig_find_for(struct rig_question *question, const struct check_subject *subject, int rank,
                  struct compose_node *child, attn_verdict *verdict, char *why, size_t size)
{
    for (int k = 0; k < NUM_KINDS; k++)
        if (find_of_kind(question, subject, k, child, verdict, why, size) && rank-- == 0)
            return true;
    return false;
}

int rig_count_kinds(const struct check_subject *subject)
{
    struct rig_question question;
    attn_verdict verdict;
    int count = 0;
    for (int k = 0; k < NUM_KINDS; k++)
        count += find_of_kind(&question, subject, k, NULL, &verdict, NULL, 0);
    return count > 0 ? count : 1;
}

bool rig_find(struct rig_question *question, const struct check_subject *subject, char *why,
              size_t size)
{
    attn_verdict verdict;
    return rig_find_for(question, subject, 0, NULL, &verdict, why, size);
}
