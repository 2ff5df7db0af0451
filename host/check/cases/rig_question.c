/* SPDX-License-Identifier: Apache-2.0
 *
 * rig_question.c: a rig's problems, by kind of layer, and the operands of such layers.
 */
#include "host/check/cases/rig_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/base/error.h"

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
static const int32_t dims[] = {64, 128, 96, 256, 32};
static const int32_t page_sizes[] = {16, 1, 32, 64, 128, 256};

enum {
    NUM_MODE_SETS = sizeof mode_sets / sizeof mode_sets[0],
    NUM_DTYPES = sizeof dtypes / sizeof dtypes[0],
    NUM_LAYOUTS = sizeof layouts / sizeof layouts[0],
    NUM_DIMS = sizeof dims / sizeof dims[0],
    NUM_PAGE_SIZES = sizeof page_sizes / sizeof page_sizes[0],
    NUM_QUESTIONS = NUM_MODE_SETS * NUM_DTYPES * NUM_LAYOUTS * NUM_DIMS * NUM_PAGE_SIZES,
    NUM_FAMILIES = 2,
    NUM_LINEAR_QUESTIONS = NUM_MODE_SETS * NUM_DTYPES * NUM_LAYOUTS * NUM_FAMILIES * NUM_DIMS,
    NUM_LATENTS = 2,
    NUM_LATENT_QUESTIONS = NUM_MODE_SETS * NUM_DTYPES * NUM_LATENTS * NUM_PAGE_SIZES
};
static const char *const state_layouts[NUM_LAYOUTS] = {ATTN_LAYOUT_STATE_SSM_KV,
                                                       ATTN_LAYOUT_STATE_SSM_VK};
static const uint32_t state_families[NUM_FAMILIES] = {ATTN_LINEAR_GDN, ATTN_LINEAR_MAMBA2};
static const attn_mla_dims latents[NUM_LATENTS] = {
    {.struct_size = sizeof(attn_mla_dims), .kv_lora_rank = 512, .rope_dim = 64, .nope_dim = 128},
    {.struct_size = sizeof(attn_mla_dims), .kv_lora_rank = 64, .rope_dim = 32, .nope_dim = 32},
};

/* A digit of *number, which loses it. */
static int digit(int *number, int base)
{
    int value = *number % base;
    *number /= base;
    return value;
}

static void set_bounds(attn_bounds *bounds, uint32_t modes, int32_t page_size)
{
    int decodes = modes == ATTN_MODE_BIT(ATTN_MODE_DECODE);
    *bounds = (attn_bounds){.struct_size = sizeof *bounds,
                            .modes = modes,
                            .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                            .max_seqs = RIG_SEQS,
                            .max_tokens = decodes ? RIG_SEQS : RIG_TOKENS,
                            .max_q_len = decodes ? 1 : RIG_Q_LEN,
                            .max_kv_len = RIG_KV_LEN};
    bounds->max_kv_tokens = (int64_t)RIG_SEQS * rig_pages(RIG_KV_LEN, page_size) * page_size;
}

/* Question `number` of those that are tried. */
static void set_softmax_question(struct rig_question *q, const attn_device *device, int number)
{
    static const int32_t layer_ids[RIG_LAYERS] = {3, 11, 7};
    int32_t page_size = page_sizes[digit(&number, NUM_PAGE_SIZES)];
    int32_t dim = dims[digit(&number, NUM_DIMS)];
    const char *layout = layouts[digit(&number, NUM_LAYOUTS)];
    attn_dtype dtype = dtypes[digit(&number, NUM_DTYPES)];
    set_bounds(&q->bounds, mode_sets[number], page_size);
    for (int l = 0; l < RIG_LAYERS; l++)
        q->layers[l] = (attn_layer){
            .struct_size = sizeof q->layers[l], .layer_id = layer_ids[l], .kv_buffer = l};
    for (int g = 0; g < RIG_GROUPS; g++) {
        q->groups[g] = (attn_layer_group){.struct_size = sizeof q->groups[g],
                                          .kind = ATTN_KIND_SOFTMAX,
                                          .attn_type = ATTN_TYPE_DECODER,
                                          .kv_group = g,
                                          .state_group = g,
                                          .num_q_heads = 4,
                                          .num_kv_heads = 2,
                                          .head_dim = dim,
                                          .v_head_dim = dim,
                                          .window_left = -1,
                                          .sm_scale = 1.0f / sqrtf((float)dim),
                                          .num_layers = g == 0 ? 2 : 1,
                                          .layers = &q->layers[g == 0 ? 0 : 2]};
        q->problems[g] = (attn_problem){.struct_size = sizeof q->problems[g],
                                        .device = device,
                                        .group = &q->groups[g],
                                        .bounds = &q->bounds,
                                        .kv_layout = layout,
                                        .q_dtype = dtype,
                                        .kv_dtype = dtype,
                                        .out_dtype = dtype,
                                        .page_size = page_size,
                                        .tp_size = 1};
    }
}

/* Question `number` of those about linear layers: the same, but for what makes them linear. */
static void set_linear_question(struct rig_question *q, const attn_device *device, int number)
{
    int32_t dim = dims[digit(&number, NUM_DIMS)];
    uint32_t family = state_families[digit(&number, NUM_FAMILIES)];
    const char *layout = state_layouts[digit(&number, NUM_LAYOUTS)];
    attn_dtype dtype = dtypes[digit(&number, NUM_DTYPES)];
    set_softmax_question(q, device, 0);
    set_bounds(&q->bounds, mode_sets[number], 1);
    q->linear = (attn_linear_dims){.struct_size = sizeof q->linear,
                                   .family = family,
                                   .flags = family == ATTN_LINEAR_GDN ? ATTN_LINEAR_QK_L2NORM : 0,
                                   .num_k_heads = 2,
                                   .num_v_heads = 4,
                                   .head_k_dim = dim,
                                   .head_v_dim = dim,
                                   .num_groups = family == ATTN_LINEAR_MAMBA2 ? 2 : 0,
                                   .state_dtype = ATTN_F32};
    for (int g = 0; g < RIG_GROUPS; g++) {
        attn_problem *problem = &q->problems[g];
        q->groups[g].kind = ATTN_KIND_LINEAR;
        q->groups[g].linear = &q->linear;
        q->groups[g].head_dim = q->groups[g].v_head_dim = dim;
        q->groups[g].sm_scale = 1.0f / sqrtf((float)dim);
        problem->kv_layout = NULL;
        problem->state_layout = layout;
        problem->page_size = 0;
        problem->q_dtype = problem->kv_dtype = problem->out_dtype = dtype;
    }
}

/* Question `number` of those about latent layers, in the absorbed form. */
static void set_latent_question(struct rig_question *q, const attn_device *device, int number)
{
    int32_t page_size = page_sizes[digit(&number, NUM_PAGE_SIZES)];
    const attn_mla_dims *dims_of = &latents[digit(&number, NUM_LATENTS)];
    attn_dtype dtype = dtypes[digit(&number, NUM_DTYPES)];
    set_softmax_question(q, device, 0);
    set_bounds(&q->bounds, mode_sets[number], page_size);
    q->latent = *dims_of;
    for (int g = 0; g < RIG_GROUPS; g++) {
        attn_layer_group *group = &q->groups[g];
        attn_problem *problem = &q->problems[g];
        group->kind = ATTN_KIND_MLA;
        group->mla = &q->latent;
        group->num_kv_heads = group->num_q_heads;
        group->head_dim = dims_of->nope_dim + dims_of->rope_dim;
        group->v_head_dim = dims_of->nope_dim;
        group->sm_scale = 1.0f / sqrtf((float)group->head_dim);
        problem->kv_layout = ATTN_LAYOUT_MLA_LATENT;
        problem->page_size = page_size;
        problem->q_dtype = problem->kv_dtype = problem->out_dtype = dtype;
    }
}

/* The same, but that the engine chooses keys for each query. */
static void set_sparse_question(struct rig_question *q, const attn_device *device, int number)
{
    set_latent_question(q, device, number);
    q->sparse = (attn_sparse_dims){.struct_size = sizeof q->sparse,
                                   .index_kind = ATTN_SPARSE_TOKEN,
                                   .top_k = RIG_TOP_K,
                                   .block_size = 1,
                                   .label_dtype = ATTN_DTYPE_NONE,
                                   .index_dtype = ATTN_DTYPE_NONE};
    for (int g = 0; g < RIG_GROUPS; g++) {
        q->groups[g].kind = ATTN_KIND_SPARSE;
        q->groups[g].sparse = &q->sparse;
    }
}

bool rig_is_linear(const struct rig_question *question)
{
    return question->groups[0].kind == ATTN_KIND_LINEAR;
}

void rig_spoil_layout(attn_problem *problem)
{
    if (problem->state_layout)
        problem->state_layout = "state.no_such_layout/1";
    else
        problem->kv_layout = "kv.no_such_layout/1";
}

/* ---- Parts ----------------------------------------------------------------------------------- */

#define GIVEN(role, name)                                                                          \
    {                                                                                              \
        ATTN_ROLE_##role, RIG_GIVEN, name, name " was written"                                     \
    }
#define WRITTEN(role)                                                                              \
    {                                                                                              \
        ATTN_ROLE_##role, RIG_WRITTEN, "the output",                                               \
            "rows of the output beyond the batch were written"                                     \
    }
#define CACHE(role, use, name)                                                                     \
    {                                                                                              \
        ATTN_ROLE_##role, use, name, "slots of " name " that are not the batch's were written"     \
    }

static const struct rig_part_info softmax_parts[RIG_PARTS] = {
    [RIG_Q] = GIVEN(Q, "q"),
    [RIG_K] = GIVEN(K, "k"),
    [RIG_V] = GIVEN(V, "v"),
    [RIG_OUT] = WRITTEN(OUT),
    [RIG_CACHE_1] = CACHE(K_CACHE, RIG_PAGES, "the K cache"),
    [RIG_CACHE_2] = CACHE(V_CACHE, RIG_PAGES, "the V cache"),
};

static const struct rig_part_info linear_parts[RIG_PARTS] = {
    [RIG_Q] = GIVEN(MIXED_QKV, "mixed_qkv"),
    [RIG_K] = GIVEN(GATE_A, "a"),
    [RIG_V] = GIVEN(GATE_B, "b"),
    [RIG_OUT] = WRITTEN(OUT),
    [RIG_CACHE_1] = CACHE(STATE, RIG_STATES, "the state"),
    [RIG_CACHE_2] = {ATTN_ROLE_COUNT, RIG_GIVEN, "nothing", "memory between operands was written"},
};

static const struct rig_part_info latent_parts[RIG_PARTS] = {
    [RIG_Q] = GIVEN(Q_NOPE, "q_nope"),
    [RIG_K] = GIVEN(C_KV, "c_kv"),
    [RIG_V] = GIVEN(K_PE, "k_pe"),
    [RIG_OUT] = WRITTEN(OUT),
    [RIG_CACHE_1] = CACHE(LATENT_CACHE, RIG_PAGES, "the latent cache"),
    [RIG_CACHE_2] = GIVEN(Q_PE, "q_pe"),
};

const struct rig_part_info *rig_parts(const struct rig_question *question)
{
    switch (question->groups[0].kind) {
    case ATTN_KIND_LINEAR:
        return linear_parts;
    case ATTN_KIND_MLA:
    case ATTN_KIND_SPARSE:
        return latent_parts;
    default:
        return softmax_parts;
    }
}

int rig_needed_roles(const struct rig_question *question, uint32_t roles[RIG_ROLES])
{
    const struct rig_part_info *parts = rig_parts(question);
    int count = 0;
    for (int p = 0; p < RIG_PARTS; p++)
        if (parts[p].role < ATTN_ROLE_COUNT)
            roles[count++] = parts[p].role;
    if (question->groups[0].kind == ATTN_KIND_SPARSE)
        roles[count++] = ATTN_ROLE_SPARSE_INDICES;
    return count;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* 1, 0, or -1 with the error's message; reasons or message in `why`. */
static int ask(const struct check_subject *subject, const attn_problem *problem,
               attn_verdict *verdict, char *why, size_t size)
{
    attn_reason reasons[4];
    host_error error;
    for (int r = 0; r < 4; r++)
        reasons[r] = (attn_reason){.struct_size = sizeof reasons[r]};
    *verdict =
        (attn_verdict){.struct_size = sizeof *verdict, .reasons_capacity = 4, .reasons = reasons};
    host_error_init(&error);
    attn_status status = subject->type->query(subject->type, subject->options, subject->services,
                                              problem, verdict, &error.base);
    verdict->reasons = NULL;
    if (status != ATTN_OK) {
        snprintf(why, size, "%s: %s", host_status_name(status), host_error_text(&error));
        return -1;
    }
    size_t length = 0;
    if (size > 0)
        why[0] = '\0';
    for (uint32_t r = 0; r < verdict->num_reasons && r < 4 && length < size; r++)
        length += (size_t)snprintf(why + length, size - length, "%s%.63s where %.159s is accepted",
                                   r ? "; " : "", reasons[r].got, reasons[r].accepted);
    return verdict->supported == 1;
}

bool rig_accepts(const struct check_subject *subject, const attn_problem *problem)
{
    attn_verdict verdict;
    char why[8];
    return ask(subject, problem, &verdict, why, sizeof why) == 1;
}

/* NULL accepts everything. */
static bool child_accepts(struct compose_node *child, const attn_problem *problem)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    host_error error;
    host_error_init(&error);
    return !child || (compose_query(child, problem, &verdict, &error.base) == ATTN_OK &&
                      verdict.supported == 1);
}

/* Kinds of layers, in the order in which they are tried. */
static const struct {
    void (*set)(struct rig_question *question, const attn_device *device, int number);
    int num_questions;
} kinds[] = {
    {set_softmax_question, NUM_QUESTIONS},
    {set_linear_question, NUM_LINEAR_QUESTIONS},
    {set_latent_question, NUM_LATENT_QUESTIONS},
    {set_sparse_question, NUM_LATENT_QUESTIONS},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

/* The first question of a kind. */
static bool find_of_kind(struct rig_question *question, const struct check_subject *subject,
                         int kind, struct compose_node *child, attn_verdict *verdict, char *why,
                         size_t size)
{
    char unused[8];
    for (int number = 0; number < kinds[kind].num_questions; number++) {
        kinds[kind].set(question, &subject->device->info, number);
        if (ask(subject, &question->problems[0], verdict, number ? unused : why,
                number ? sizeof unused : size) == 1 &&
            child_accepts(child, &question->problems[0]))
            return true;
    }
    return false;
}

bool rig_find_for(struct rig_question *question, const struct check_subject *subject, int rank,
                  struct compose_node *child, attn_verdict *verdict, char *why, size_t size)
{
    char unused[8];
    for (int k = 0; k < NUM_KINDS; k++)
        if (find_of_kind(question, subject, k, child, verdict, k ? unused : why,
                         k ? sizeof unused : size) &&
            rank-- == 0)
            return true;
    return false;
}

int rig_count_kinds(const struct check_subject *subject)
{
    struct rig_question question;
    attn_verdict verdict;
    char unused[8];
    int count = 0;
    for (int k = 0; k < NUM_KINDS; k++)
        count += find_of_kind(&question, subject, k, NULL, &verdict, unused, sizeof unused);
    return count > 0 ? count : 1;
}

bool rig_find(struct rig_question *question, const struct check_subject *subject, char *why,
              size_t size)
{
    attn_verdict verdict;
    return rig_find_for(question, subject, 0, NULL, &verdict, why, size);
}
