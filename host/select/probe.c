/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.c: capabilities by queries. Each property is a row of a table: a name, values, and their
 * member in the problem.
 */
#include "host/select/probe.h"

#include <string.h>

#include "host/device/device.h"
#include "host/base/dtype.h"
#include "host/base/bit_names.h"
#include "host/base/text.h"
#include "host/select/platform.h"
#include "host/select/select.h"

enum { MAX_REASONS = 16 };

static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
enum { NUM_DTYPES = sizeof dtypes / sizeof *dtypes };

void probe_init(struct probe *probe, const attn_device *device, attn_dtype dtype,
                const char *layout)
{
    memset(probe, 0, sizeof *probe);
    for (int32_t i = 0; i < 2; i++)
        probe->layers[i] = (attn_layer){sizeof(attn_layer), 0, i, i};
    struct problem *asked = &probe->asked;
    asked->device = *device;
    asked->group = (attn_layer_group){.struct_size = sizeof asked->group,
                                      .num_q_heads = 8,
                                      .num_kv_heads = 4,
                                      .head_dim = 64,
                                      .v_head_dim = 64,
                                      .window_left = -1,
                                      .sm_scale = 0.125f,
                                      .num_layers = 2,
                                      .layers = probe->layers};
    asked->bounds =
        (attn_bounds){.struct_size = sizeof asked->bounds,
                      .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE),
                      .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER)};
    asked->problem = (attn_problem){.struct_size = sizeof asked->problem,
                                    .device = &asked->device,
                                    .group = &asked->group,
                                    .bounds = &asked->bounds,
                                    .kv_layout = layout,
                                    .q_dtype = dtype,
                                    .kv_dtype = dtype,
                                    .out_dtype = dtype,
                                    .page_size = 16,
                                    .tp_size = 1};
}

int probe_ask(const attnhost *host, const char *backend, const struct probe *probe,
              attn_verdict *verdict, attn_reason *reasons, uint32_t capacity)
{
    memset(reasons, 0, capacity * sizeof *reasons);
    for (uint32_t i = 0; i < capacity; i++)
        reasons[i].struct_size = sizeof *reasons;
    *verdict = (attn_verdict){
        .struct_size = sizeof *verdict, .reasons_capacity = capacity, .reasons = reasons};
    if (attnhost_query(host, backend, &probe->asked.problem, verdict, NULL))
        return -1;
    return verdict->supported ? 1 : 0;
}

/* An answer without its reasons. */
static int accepts(const attnhost *host, const char *backend, const struct probe *probe)
{
    attn_verdict verdict;
    attn_reason reasons[1];
    return probe_ask(host, backend, probe, &verdict, reasons, 1) == 1;
}

static int find_on(const attnhost *host, const attn_backend_type *type, const attn_device *device,
                   struct probe *probe)
{
    for (uint32_t l = 0; l < type->num_layouts; l++)
        for (size_t d = 0; d < NUM_DTYPES; d++) {
            probe_init(probe, device, dtypes[d], type->layouts[l]);
            if (accepts(host, type->name, probe))
                return 1;
        }
    return 0;
}

int probe_find(const attnhost *host, const attn_backend_type *type, struct probe *probe)
{
    static const char *const simulated[] = {"sm90", "sm80", "sm89", "sm100", "sm120"};
    attn_device device = {.struct_size = sizeof device};
    if (device_describe(ATTN_DEVICE_CPU, 0, &device, NULL) == ATTN_OK &&
        find_on(host, type, &device, probe))
        return 1;
    for (size_t i = 0; i < sizeof simulated / sizeof *simulated; i++)
        if (platform_simulate(simulated[i], &device) == 0 && find_on(host, type, &device, probe))
            return 1;
    return 0;
}

int probe_here(const attnhost *host, const attn_backend_type *type, char *why, size_t size)
{
    struct probe probe;
    attn_device device = {.struct_size = sizeof device};
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    snprintf(why, size, "%s", "");
    if (device_describe(ATTN_DEVICE_CPU, 0, &device, NULL))
        return 0;
    if (find_on(host, type, &device, &probe))
        return 1;
    probe_init(&probe, &device, ATTN_F32, type->num_layouts ? type->layouts[0] : NULL);
    if (probe_ask(host, type->name, &probe, &verdict, reasons, MAX_REASONS) == 0 &&
        verdict.num_reasons > 0)
        select_reason_text(&reasons[0], why, size);
    return 0;
}

/* ---- Matters --------------------------------------------------------------------------------- */

/* The backend under query, and the receiver of its answers. */
struct visit {
    const attnhost *host;
    const attn_backend_type *type;
    struct probe *probe;
    probe_see see;
    void *ctx;
};

static void see(const struct visit *visit, const char *matter, const char *value)
{
    visit->see(visit->ctx, matter, value, accepts(visit->host, visit->type->name, visit->probe));
}

/* Simulated ones, but for the processor. */
static void visit_devices(const struct visit *visit)
{
    static const char *const simulated[] = {"sm75", "sm80",  "sm86",  "sm89",
                                            "sm90", "sm100", "sm103", "sm120"};
    attn_device *device = &visit->probe->asked.device;
    const attn_device before = *device;
    char value[16];
    if (device_describe(ATTN_DEVICE_CPU, 0, device, NULL) == ATTN_OK)
        see(visit, "devices", "cpu");
    for (size_t i = 0; i < sizeof simulated / sizeof *simulated; i++) {
        snprintf(value, sizeof value, "sm_%s", simulated[i] + 2);
        if (platform_simulate(simulated[i], device) == 0)
            see(visit, "devices", value);
    }
    *device = before;
}

static void visit_layouts(const struct visit *visit)
{
    attn_problem *problem = &visit->probe->asked.problem;
    const char *before = problem->kv_layout;
    for (uint32_t l = 0; l < visit->type->num_layouts; l++) {
        problem->kv_layout = visit->type->layouts[l];
        see(visit, "layouts", problem->kv_layout);
    }
    problem->kv_layout = before;
}

static void visit_dtypes(const struct visit *visit)
{
    attn_problem *problem = &visit->probe->asked.problem;
    const attn_problem before = *problem;
    for (size_t i = 0; i < NUM_DTYPES; i++) {
        problem->q_dtype = problem->kv_dtype = problem->out_dtype = dtypes[i];
        see(visit, "query types", dtype_name(dtypes[i]));
    }
    *problem = before;
}

/* A line for each type of queries. */
static void visit_caches(const struct visit *visit)
{
    static const attn_dtype caches[] = {ATTN_F32, ATTN_BF16, ATTN_F16, ATTN_FP8_E4M3,
                                        ATTN_FP8_E5M2};
    attn_problem *problem = &visit->probe->asked.problem;
    attn_layer_group *group = &visit->probe->asked.group;
    const attn_problem before = *problem;
    char matter[64];
    for (size_t i = 0; i < NUM_DTYPES; i++) {
        problem->q_dtype = problem->out_dtype = dtypes[i];
        snprintf(matter, sizeof matter, "KV cache types, %s queries", dtype_name(dtypes[i]));
        for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
            problem->kv_dtype = caches[c];
            group->kv_scale_granularity =
                dtype_is_fp8(caches[c]) ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_NONE;
            see(visit, matter, dtype_name(caches[c]));
        }
    }
    *problem = before;
    problem->kv_dtype = ATTN_FP8_E4M3;
    group->kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    see(visit, "fp8 scales", "per_tensor");
    group->kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    see(visit, "fp8 scales", "per_head");
    group->kv_scale_granularity = ATTN_SCALE_PER_SEQ_HEAD;
    see(visit, "fp8 scales", "per_seq_head");
    group->kv_scale_granularity = ATTN_SCALE_PER_TOKEN_HEAD;
    see(visit, "fp8 scales", "per_token_head");
    group->kv_scale_granularity = ATTN_SCALE_NONE;
    *problem = before;
}

/* Operands that may be fp8 together with an fp8 cache. */
static void visit_fp8_operands(const struct visit *visit)
{
    static const char *const granularities[] = {[ATTN_SCALE_PER_TENSOR] = "per_tensor",
                                                [ATTN_SCALE_PER_HEAD] = "per_head",
                                                [ATTN_SCALE_PER_SEQ_HEAD] = "per_seq_head"};
    attn_problem *problem = &visit->probe->asked.problem;
    attn_layer_group *group = &visit->probe->asked.group;
    const attn_problem before = *problem;
    problem->kv_dtype = ATTN_FP8_E4M3;
    group->kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    problem->q_dtype = problem->new_kv_dtype = ATTN_FP8_E4M3;
    for (uint32_t g = ATTN_SCALE_PER_TENSOR; g <= ATTN_SCALE_PER_SEQ_HEAD; g++) {
        group->input_scale_granularity = g;
        see(visit, "scales of fp8 q, k, v", granularities[g]);
    }
    problem->new_kv_dtype = before.q_dtype;
    for (uint32_t g = ATTN_SCALE_PER_TENSOR; g <= ATTN_SCALE_PER_SEQ_HEAD; g++) {
        group->input_scale_granularity = g;
        see(visit, "scales of fp8 q alone", granularities[g]);
    }
    group->input_scale_granularity = ATTN_SCALE_NONE;
    problem->q_dtype = before.q_dtype;
    problem->new_kv_dtype = ATTN_DTYPE_NONE;
    problem->out_dtype = ATTN_FP8_E4M3;
    see(visit, "fp8 outputs", "fp8_e4m3");
    group->kv_scale_granularity = ATTN_SCALE_NONE;
    *problem = before;
}

static void visit_numbers(const struct visit *visit)
{
    static const int32_t dims[] = {1, 16, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512};
    static const int32_t pages[] = {1, 2, 8, 16, 32, 48, 64, 128, 256};
    struct problem *asked = &visit->probe->asked;
    char value[16];
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        asked->group.head_dim = asked->group.v_head_dim = dims[i];
        snprintf(value, sizeof value, "%d", dims[i]);
        see(visit, "head_dim", value);
    }
    asked->group.head_dim = asked->group.v_head_dim = 64;
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        asked->problem.page_size = pages[i];
        snprintf(value, sizeof value, "%d", pages[i]);
        see(visit, "page_size", value);
    }
    asked->problem.page_size = 16;
}

static void visit_bits(const struct visit *visit)
{
    attn_bounds *bounds = &visit->probe->asked.bounds;
    const attn_bounds before = *bounds;
    for (uint32_t i = 0; i < ATTN_MODE_COUNT; i++) {
        bounds->modes = ATTN_MODE_BIT(i);
        if (i != ATTN_MODE_IDLE)
            see(visit, "modes", bit_names_member(ATTN_FIELD_MODES, i));
    }
    *bounds = before;
    for (uint32_t i = 0; i < ATTN_MASK_COUNT; i++) {
        bounds->mask_kinds = ATTN_MASK_BIT(i);
        bounds->modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
        see(visit, "masks", bit_names_member(ATTN_FIELD_MASK_KINDS, i));
    }
    *bounds = before;
    for (uint32_t i = 0; 1u << i < ATTN_USES_ALL; i++) {
        bounds->uses = 1u << i;
        bounds->mask_kinds =
            1u << i == ATTN_USES_POSITIONS ? ATTN_MASK_BIT(ATTN_MASK_FULL) : before.mask_kinds;
        bounds->modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
        see(visit, "uses", bit_names_member(ATTN_FIELD_USES, i));
    }
    *bounds = before;
}

static void encoder_only(struct problem *asked)
{
    asked->group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    asked->group.window_right = -1;
    asked->bounds.modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    asked->problem.kv_layout = NULL;
    asked->problem.page_size = 0;
}

/* Of DeepSeek's sizes, decode in the absorbed form. */
static void latent(struct problem *asked)
{
    static const attn_mla_dims dims = {
        .struct_size = sizeof dims, .kv_lora_rank = 512, .rope_dim = 64, .nope_dim = 128};
    asked->group.kind = ATTN_KIND_MLA;
    asked->group.num_kv_heads = asked->group.num_q_heads;
    asked->group.head_dim = dims.nope_dim + dims.rope_dim;
    asked->group.v_head_dim = 128;
    asked->group.mla = &dims;
    asked->bounds.modes = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    asked->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT;
}

static void visit_features(const struct visit *visit)
{
    static const char *const names[] = {"window", "window_right", "chunk", "logit_cap",    "sinks",
                                        "alibi",  "v_head_dim",   "cross", "encoder_only", "mla"};
    struct problem *asked = &visit->probe->asked;
    attn_layer_group *group = &asked->group;
    const attn_layer_group before = *group;
    const attn_bounds bounds = asked->bounds;
    const attn_problem problem = asked->problem;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        switch (i) {
        case 0:
            group->window_left = 31;
            break;
        case 1:
            group->window_left = group->window_right = 31;
            break;
        case 2:
            group->attention_chunk = 32;
            break;
        case 3:
            group->logit_cap = 30;
            break;
        case 4:
            group->flags = ATTN_GROUP_HAS_SINKS;
            break;
        case 5:
            group->flags = ATTN_GROUP_HAS_ALIBI;
            break;
        case 6:
            group->v_head_dim = 32;
            break;
        case 7:
            group->attn_type = ATTN_TYPE_CROSS;
            group->window_right = -1;
            break;
        case 8:
            encoder_only(asked);
            break;
        default:
            latent(asked);
            break;
        }
        see(visit, "layers", names[i]);
        *group = before;
        asked->bounds = bounds;
        asked->problem = problem;
    }
}

static void visit_graphs(const struct visit *visit)
{
    static const char *const levels[] = {"never", "single_token", "uniform", "always"};
    attn_problem *problem = &visit->probe->asked.problem;
    attn_bounds *bounds = &visit->probe->asked.bounds;
    const uint32_t modes = bounds->modes;
    bounds->modes = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    for (uint32_t i = ATTN_GRAPH_SINGLE_TOKEN; i < ATTN_GRAPH_COUNT; i++) {
        problem->graph_level = i;
        see(visit, "graphs of decode", levels[i]);
    }
    problem->graph_level = ATTN_GRAPH_NEVER;
    bounds->modes = modes;
}

void probe_visit(const attnhost *host, const attn_backend_type *type, struct probe *probe,
                 probe_see see_value, void *ctx)
{
    const struct visit visit = {host, type, probe, see_value, ctx};
    visit_devices(&visit);
    visit_layouts(&visit);
    visit_dtypes(&visit);
    visit_caches(&visit);
    visit_fp8_operands(&visit);
    visit_numbers(&visit);
    visit_bits(&visit);
    visit_features(&visit);
    visit_graphs(&visit);
}

/* ---- Print ----------------------------------------------------------------------------------- */

struct print {
    FILE *file;
    char matter[64]; /* of the line that is being made */
    strbuf values;
};

static void print_line(struct print *print)
{
    if (print->matter[0])
        text_wrap_line(print->file, 2, 4, "%s:%s", print->matter,
                       print->values.length ? strbuf_text(&print->values) : " none");
    strbuf_finish(&print->values);
}

static void print_value(void *ctx, const char *matter, const char *value, int accepted)
{
    struct print *print = ctx;
    if (strcmp(matter, print->matter) != 0) {
        print_line(print);
        snprintf(print->matter, sizeof print->matter, "%s", matter);
    }
    if (accepted)
        strbuf_appendf(&print->values, " %s", value);
}

/* Which arrays of a batch the plain problem takes on the host. */
static void print_host_arrays(const attnhost *host, const attn_backend_type *type,
                              const struct probe *probe, FILE *file)
{
    attn_verdict verdict;
    attn_reason reasons[1];
    if (probe_ask(host, type->name, probe, &verdict, reasons, 1) != 1)
        return;
    fputs("  host arrays that it plans with:", file);
#define HOST_ARRAY(name, bit, text)                                                                \
    if (verdict.host_arrays & ATTN_HOST_##name)                                                    \
        fputs(" " text, file);
    ATTN_HOST_MAP(HOST_ARRAY)
#undef HOST_ARRAY
    fputs(verdict.host_arrays ? "\n" : " none\n", file);
}

void probe_print(const attnhost *host, const attn_backend_type *type, struct probe *probe,
                 FILE *file)
{
    struct print print = {.file = file};
    char device[32];
    platform_text(&probe->asked.device, device, sizeof device);
    text_wrap_line(file, 2, 4,
                   "queried for %s, layout %s; each line changes one property of a plain problem",
                   device, probe->asked.problem.kv_layout);
    print_host_arrays(host, type, probe, file);
    probe_visit(host, type, probe, print_value, &print);
    print_line(&print);
}
