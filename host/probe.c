/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.c: capabilities by asking. Each matter is a row of a table: a name, values, and where in
 * the problem they go.
 */
#include "host/probe.h"

#include <string.h>

#include "host/dtype.h"
#include "host/platform.h"
#include "host/select.h"

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
    static const uint32_t simulated[] = {90, 80, 89, 100, 120};
    attn_device device = {.struct_size = sizeof device};
    if (attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, NULL) == ATTN_OK &&
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
    if (attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, NULL))
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

static void print_flag(const attnhost *host, const char *backend, const struct probe *probe,
                       const char *name, FILE *file)
{
    if (accepts(host, backend, probe))
        fprintf(file, " %s", name);
}

static void print_dtypes(const attnhost *host, const char *backend, struct probe *probe, FILE *file)
{
    static const attn_dtype caches[] = {ATTN_F32, ATTN_BF16, ATTN_F16, ATTN_FP8_E4M3,
                                        ATTN_FP8_E5M2};
    attn_problem *problem = &probe->asked.problem;
    const attn_problem before = *problem;
    fputs("  query types:", file);
    for (size_t i = 0; i < NUM_DTYPES; i++) {
        problem->q_dtype = problem->kv_dtype = problem->out_dtype = dtypes[i];
        print_flag(host, backend, probe, dtype_name(dtypes[i]), file);
    }
    *problem = before;
    fprintf(file, "\n  KV cache types, queries %s:", dtype_name(before.q_dtype));
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        problem->kv_dtype = caches[i];
        probe->asked.group.kv_scale_granularity =
            dtype_is_fp8(caches[i]) ? ATTN_SCALE_PER_TENSOR : ATTN_SCALE_NONE;
        print_flag(host, backend, probe, dtype_name(caches[i]), file);
    }
    probe->asked.group.kv_scale_granularity = ATTN_SCALE_NONE;
    *problem = before;
    fputs("\n", file);
}

static void print_numbers(const attnhost *host, const char *backend, struct probe *probe,
                          FILE *file)
{
    static const int32_t dims[] = {1, 16, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512};
    static const int32_t pages[] = {1, 2, 8, 16, 32, 48, 64, 128, 256};
    struct problem *asked = &probe->asked;
    char name[16];
    fputs("  head_dim:", file);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        asked->group.head_dim = asked->group.v_head_dim = dims[i];
        snprintf(name, sizeof name, "%d", dims[i]);
        print_flag(host, backend, probe, name, file);
    }
    asked->group.head_dim = asked->group.v_head_dim = 64;
    fputs("\n  page_size:", file);
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        asked->problem.page_size = pages[i];
        snprintf(name, sizeof name, "%d", pages[i]);
        print_flag(host, backend, probe, name, file);
    }
    asked->problem.page_size = 16;
    fputs("\n", file);
}

static void print_bits(const attnhost *host, const char *backend, struct probe *probe, FILE *file)
{
    static const char *const modes[] = {"extend", "decode",        "mixed",
                                        "idle",   "target_verify", "draft_extend"};
    static const char *const masks[] = {"layer", "none", "full", "qlen"};
    static const char *const uses[] = {"positions",  "multi_item", "shared_prefix",
                                       "unsaved_kv", "lse",        "omit_sink"};
    attn_bounds *bounds = &probe->asked.bounds;
    const attn_bounds before = *bounds;
    fputs("  modes:", file);
    for (uint32_t i = 0; i < ATTN_MODE_COUNT; i++) {
        bounds->modes = ATTN_MODE_BIT(i);
        if (i != ATTN_MODE_IDLE)
            print_flag(host, backend, probe, modes[i], file);
    }
    *bounds = before;
    fputs("\n  masks:", file);
    for (uint32_t i = 0; i < ATTN_MASK_COUNT; i++) {
        bounds->mask_kinds = ATTN_MASK_BIT(i);
        bounds->modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
        print_flag(host, backend, probe, masks[i], file);
    }
    *bounds = before;
    fputs("\n  uses:", file);
    for (uint32_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        bounds->uses = 1u << i;
        bounds->mask_kinds =
            1u << i == ATTN_USES_POSITIONS ? ATTN_MASK_BIT(ATTN_MASK_FULL) : before.mask_kinds;
        bounds->modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
        print_flag(host, backend, probe, uses[i], file);
    }
    *bounds = before;
    fputs("\n", file);
}

static void encoder_only(struct problem *asked)
{
    asked->group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    asked->group.window_right = -1;
    asked->bounds.modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    asked->problem.kv_layout = NULL;
    asked->problem.page_size = 0;
}

static void print_features(const attnhost *host, const char *backend, struct probe *probe,
                           FILE *file)
{
    static const char *const names[] = {"window",    "window_right", "chunk",
                                        "logit_cap", "sinks",        "alibi",
                                        "cross",     "encoder_only", "v_head_dim"};
    struct problem *asked = &probe->asked;
    attn_layer_group *group = &asked->group;
    const attn_layer_group before = *group;
    const attn_bounds bounds = asked->bounds;
    const attn_problem problem = asked->problem;
    fputs("  layers:", file);
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
            group->attn_type = ATTN_TYPE_CROSS;
            group->window_right = -1;
            break;
        case 7:
            encoder_only(asked);
            break;
        default:
            group->v_head_dim = 32;
            break;
        }
        print_flag(host, backend, probe, names[i], file);
        *group = before;
        asked->bounds = bounds;
        asked->problem = problem;
    }
    fputs("\n", file);
}

void probe_print(const attnhost *host, const char *backend, struct probe *probe, FILE *file)
{
    char device[32];
    platform_text(&probe->asked.device, device, sizeof device);
    fprintf(file, "  asked on %s, layout %s; each line changes one thing of a plain problem\n",
            device, probe->asked.problem.kv_layout);
    print_dtypes(host, backend, probe, file);
    print_numbers(host, backend, probe, file);
    print_bits(host, backend, probe, file);
    print_features(host, backend, probe, file);
}
