/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_plan.c: from the command line and the ini to a list of measurements.
 */
#include "host/cmd/bench_plan.h"

#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/bench/inputs.h"
#include "host/select/platform.h"
#include "host/select/problem.h"
#include "host/select/select.h"

/* What the entries are made from. */
struct plan {
    const struct arguments *arguments;
    const struct bench_values *values;
    const struct config *config;
    const struct model *model;         /* NULL = no CONFIG.ini */
    const struct selection *selection; /* NULL = --backend says */
    struct bench_report *report;
    attn_error *error;
};

static attn_status out_of_memory(attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the entries");
}

/* ---- Backends of an entry -------------------------------------------------------------------- */

/* Names of all --backend; they are counted if entry is NULL. */
static attn_status take_named(const struct plan *plan, struct bench_entry *entry, uint32_t *count)
{
    const struct text_list *lists = &plan->values->backends;
    attn_status status = ATTN_OK;
    *count = 0;
    for (size_t l = 0; l < lists->count; l++) {
        const char *cursor = lists->items[l], *item;
        size_t length;
        while (status == ATTN_OK && (item = text_next_item(&cursor, &length))) {
            if (length == 0)
                return host_fail(plan->error, ATTN_CONFIG_ERROR,
                                 "--backend %s: an empty name; accepted: NAME[,NAME]...",
                                 lists->items[l]);
            if (entry)
                status = bench_set_backend(entry, *count, item, length, plan->error);
            ++*count;
        }
    }
    if (*count == 0)
        return host_fail(plan->error, ATTN_CONFIG_ERROR,
                         "--backend '' names no backend; accepted: NAME[,NAME]...");
    return status;
}

static attn_status add_named(const struct plan *plan, const struct bench_shape *shape,
                             struct bench_entry **entry)
{
    uint32_t count;
    attn_status status = take_named(plan, NULL, &count);
    if (status != ATTN_OK)
        return status;
    *entry = bench_add_entry(plan->report, shape, count);
    return *entry ? take_named(plan, *entry, &count) : out_of_memory(plan->error);
}

/* The backend that is chosen for the shape's phase; if there is none, all candidates, whose entries
 * then say why. */
static attn_status add_chosen(const struct plan *plan, uint32_t group,
                              const struct bench_shape *shape, struct bench_entry **entry)
{
    uint32_t p = shape->mode == ATTN_MODE_DECODE ? SELECT_DECODE : SELECT_PREFILL;
    const struct select_phase *phase = &plan->selection->groups[group].phases[p];
    const char *chosen = select_backend(plan->selection, group, p);
    *entry = bench_add_entry(plan->report, shape, chosen ? 1 : phase->num_candidates);
    if (!*entry)
        return out_of_memory(plan->error);
    if (chosen)
        return bench_set_backend(*entry, 0, chosen, strlen(chosen), plan->error);
    attn_status status = ATTN_OK;
    (*entry)->num_runs = 0;
    for (uint32_t c = 0; c < phase->num_candidates && status == ATTN_OK; c++) {
        const struct select_candidate *candidate = &phase->candidates[c];
        if (!candidate->absent)
            status = bench_set_backend(*entry, (*entry)->num_runs++, candidate->name,
                                       strlen(candidate->name), plan->error);
    }
    return status;
}

/* ---- Entries --------------------------------------------------------------------------------- */

/* All shapes of a text; `group` is -1 without a model. */
static attn_status add_shapes(const struct plan *plan, int64_t group, const char *origin,
                              const char *text, const struct bench_shape *base)
{
    struct bench_shapes shapes = {0};
    attn_status status = bench_shapes_add(&shapes, text, base, plan->error);
    for (size_t s = 0; s < shapes.count && status == ATTN_OK; s++) {
        struct bench_entry *entry = NULL;
        if (group >= 0 && shapes.items[s].kind != base->kind)
            status = host_fail(plan->error, ATTN_CONFIG_ERROR,
                               "--shape %s: kind is not that of %s; accepted: shapes without kind, "
                               "which is the model's",
                               text, origin);
        if (status != ATTN_OK)
            break;
        status = plan->selection ? add_chosen(plan, (uint32_t)group, &shapes.items[s], &entry)
                                 : add_named(plan, &shapes.items[s], &entry);
        if (status == ATTN_OK)
            snprintf(entry->origin, sizeof entry->origin, "%s", origin);
    }
    bench_shapes_finish(&shapes);
    return status;
}

static attn_status add_all_shapes(const struct plan *plan, int64_t group, const char *origin,
                                  const struct bench_shape *base)
{
    const struct text_list *texts = &plan->values->shapes;
    attn_status status = ATTN_OK;
    for (size_t t = 0; t < texts->count && status == ATTN_OK; t++)
        status = add_shapes(plan, group, origin, texts->items[t], base);
    return status;
}

static attn_status add_given(const struct plan *plan)
{
    struct bench_shape base;
    bench_shape_init(&base);
    return add_all_shapes(plan, -1, "", &base);
}

/* ---- Of a model ------------------------------------------------------------------------------ */

static void latent_base(const struct plan *plan, const attn_layer_group *group,
                        struct bench_shape *base)
{
    base->kind = group->sparse ? BENCH_SPARSE : BENCH_MLA;
    base->kv_lora_rank = group->mla->kv_lora_rank;
    base->rope_dim = group->mla->rope_dim;
    base->nope_dim = group->mla->nope_dim;
    base->layout = plan->config->kv_cache.latent_layout == CONFIG_LATENT_FP8
                       ? BENCH_LAYOUT_LATENT_FP8
                       : BENCH_LAYOUT_ANY;
    if (!group->sparse)
        return;
    base->top_k = group->sparse->top_k;
    base->choice = group->sparse->index_heads == 0 ? BENCH_CHOICE_GIVEN : BENCH_CHOICE_COMPUTED;
    base->index_heads = group->sparse->index_heads > 0 ? group->sparse->index_heads : 1;
    base->label_dim = group->sparse->label_dim;
    base->label_dtype = group->sparse->label_dtype;
}

static void linear_base(const struct plan *plan, const attn_linear_dims *linear,
                        struct bench_shape *base)
{
    base->kind = BENCH_LINEAR + (int32_t)linear->family;
    base->linear = *linear;
    base->k_heads = linear->num_k_heads;
    base->v_heads = linear->num_v_heads;
    base->head_k_dim = linear->head_k_dim;
    base->head_v_dim = linear->head_v_dim;
    base->conv_width = linear->conv_width;
    base->gates = (linear->flags & ATTN_LINEAR_RAW_GATES) != 0;
    base->state_dtype = linear->state_dtype;
    base->conv_bias = plan->model->conv_bias;
    base->layout = BENCH_LAYOUT_ANY;
}

static void base_of_group(const struct plan *plan, const attn_layer_group *group,
                          struct bench_shape *base)
{
    const struct config_kv_cache *cache = &plan->config->kv_cache;
    bench_shape_init(base);
    base->q_heads = group->num_q_heads;
    base->kv_heads = group->num_kv_heads;
    base->head_dim = group->head_dim;
    base->v_head_dim = group->v_head_dim;
    base->dtype = plan->model->dtype;
    base->kv_dtype = problem_kv_dtype(plan->config, plan->model, group);
    base->page_size = (int32_t)cache->page_size;
    base->window = group->window_left + 1;
    base->causal = group->window_right == 0;
    base->chunk = group->attention_chunk;
    base->logit_cap = (double)group->logit_cap;
    base->sm_scale = (double)group->sm_scale;
    base->sinks = (group->flags & ATTN_GROUP_HAS_SINKS) != 0;
    base->alibi = (group->flags & ATTN_GROUP_HAS_ALIBI) != 0;
    base->layout = cache->layout == CONFIG_LAYOUT_NHD   ? BENCH_LAYOUT_NHD
                   : cache->layout == CONFIG_LAYOUT_HND ? BENCH_LAYOUT_HND
                                                        : BENCH_LAYOUT_ANY;
    base->scales =
        problem_num_scales(plan->config) > 1 ? ATTN_SCALE_PER_HEAD : ATTN_SCALE_PER_TENSOR;
    if (group->mla)
        latent_base(plan, group, base);
    if (group->kind == ATTN_KIND_LINEAR)
        linear_base(plan, group->linear, base);
}

/* A chunk of a prompt, and decodes of prompts of that length. */
static attn_status add_default_shapes(const struct plan *plan, uint32_t group, const char *origin,
                                      const struct bench_shape *base)
{
    const struct config_workload *workload = &plan->config->workload;
    int64_t chunk = workload->chunked_prefill_size, tokens = plan->model->max_context_len;
    bool expands =
        base->kind == BENCH_MLA && plan->model->mla_expanded & ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    char text[96];
    if (chunk > 0 && chunk < tokens)
        tokens = chunk;
    snprintf(text, sizeof text, "mode=extend,kv_len=%lld%s", (long long)tokens,
             expands ? ",form=expanded,out_dtype=f32" : "");
    attn_status status = add_shapes(plan, group, origin, text, base);
    snprintf(text, sizeof text, "mode=decode,batch=%lld,kv_len=%lld",
             (long long)workload->max_running_requests, (long long)tokens);
    return status == ATTN_OK ? add_shapes(plan, group, origin, text, base) : status;
}

static int is_measured(const attn_layer_group *group)
{
    return group->kind == ATTN_KIND_LINEAR ||
           ((group->kind != ATTN_KIND_SPARSE || group->mla) &&
            group->attn_type == ATTN_TYPE_DECODER && group->window_right <= 0);
}

static attn_status add_group(const struct plan *plan, uint32_t g)
{
    const attn_layer_group *group = &plan->model->groups[g];
    struct bench_shape base;
    char layers[64], origin[80], text[256];
    model_layers_text(group, layers, sizeof layers);
    if (!is_measured(group)) {
        model_group_text(plan->model, group, text, sizeof text);
        arguments_complain(plan->arguments,
                           "layers %s (%s) are not measured; accepted: decoder layers of softmax, "
                           "latent and sparse attention, and recurrent ones",
                           layers, text);
        return ATTN_OK;
    }
    snprintf(origin, sizeof origin, "layers %s", layers);
    base_of_group(plan, group, &base);
    return plan->values->shapes.count > 0 ? add_all_shapes(plan, g, origin, &base)
                                          : add_default_shapes(plan, g, origin, &base);
}

static attn_status add_groups(const struct plan *plan)
{
    attn_status status = ATTN_OK;
    for (uint32_t g = 0; g < plan->model->num_groups && status == ATTN_OK; g++)
        status = add_group(plan, g);
    if (status == ATTN_OK && plan->report->num_entries == 0)
        return host_fail(
            plan->error, ATTN_UNSUPPORTED,
            "%s: has no layer that is measured; accepted: decoder layers of softmax, latent "
            "and sparse attention, and recurrent ones",
            plan->model->name);
    return status;
}

/* ---- The device ------------------------------------------------------------------------------ */

/* A selection in which some layer group has no backend is good enough: its entry says why. */
static attn_status select_backends(struct plan *plan, attnhost *host, attn_device *device,
                                   struct selection **selection)
{
    host_error said;
    host_error_init(&said);
    attn_status status =
        select_create_here(host, plan->config, plan->model, device, selection, &said.base);
    plan->selection = *selection;
    if (!*selection)
        return host_fail(plan->error, status, "%s", host_error_text(&said));
    if ((*selection)->device_note)
        arguments_complain(plan->arguments, "device: %s (%s)", platform_type_name(device->type),
                           (*selection)->device_note);
    return ATTN_OK;
}

/* Is some layer of the model served by the backend on this type of device, if only in one phase?
 * What is wrong with its name or options is reported where it is measured. */
static attn_status serves_model(const struct plan *plan, attnhost *host, const struct model *model,
                                char *backend, int32_t type, bool *serves)
{
    struct config config = *plan->config; /* borrows all that it points to */
    struct selection *selection = NULL;
    attn_device device;
    host_error said;
    host_error_init(&said);
    config.platform.device = (struct config_device){.type = type};
    config.attention.attention_backend = backend;
    config.attention.prefill_attention_backend = config.attention.decode_attention_backend = NULL;
    config.attention.routes = (struct config_routes){0};
    attn_status status = select_create_here(host, &config, model, &device, &selection, &said.base);
    for (uint32_t g = 0; selection && g < selection->num_groups; g++)
        for (uint32_t p = 0; p < SELECT_PHASES; p++)
            *serves |= select_backend(selection, g, p) != NULL;
    select_destroy(selection);
    return status == ATTN_OUT_OF_HOST_MEMORY
               ? host_fail(plan->error, status, "%s", host_error_text(&said))
               : ATTN_OK;
}

/* The same of a shape. */
static attn_status serves_shape(const struct plan *plan, attnhost *host,
                                const struct bench_shape *shape, const char *backend, int32_t type,
                                bool *serves)
{
    struct config config = *plan->config;
    attn_device device;
    const char *layouts[2];
    attn_status status = ATTN_OK;
    config.platform.device = (struct config_device){.type = type};
    if (platform_describe(&config, &device, NULL) != ATTN_OK)
        return ATTN_OK;
    bench_layouts(shape, layouts);
    for (int l = 0; l < 2 && layouts[l] && !*serves && status != ATTN_OUT_OF_HOST_MEMORY; l++) {
        struct bench_problem problem;
        attn_verdict verdict = {.struct_size = sizeof verdict};
        bench_problem_init(&problem, shape, &device, layouts[l], ATTN_GRAPH_NEVER);
        status = attnhost_query(host, backend, &problem.problem, &verdict, NULL);
        *serves = status == ATTN_OK && verdict.supported;
    }
    return status == ATTN_OUT_OF_HOST_MEMORY
               ? host_fail(plan->error, status, "no memory to ask %s", backend)
               : ATTN_OK;
}

/* The same of the ini's model, or else of any shape. */
static attn_status serves_plan(const struct plan *plan, attnhost *host, char *backend, int32_t type,
                               bool *serves)
{
    attn_status status = ATTN_OK;
    *serves = false;
    if (plan->model)
        return serves_model(plan, host, plan->model, backend, type, serves);
    for (size_t e = 0; e < plan->report->num_entries && status == ATTN_OK && !*serves; e++)
        status = serves_shape(plan, host, &plan->report->entries[e].shape, backend, type, serves);
    return status;
}

/* The first --backend that serves on one type of device and not on the other, which is asked first;
 * NULL = there is none. */
static attn_status find_bound(const struct plan *plan, attnhost *host, int32_t type, int32_t other,
                              const char **bound)
{
    const struct bench_entry *entry = &plan->report->entries[0]; /* all have the same backends */
    attn_status status = ATTN_OK;
    *bound = NULL;
    for (uint32_t r = 0; r < entry->num_runs && status == ATTN_OK && !*bound; r++) {
        bool there = true, here = false;
        status = serves_plan(plan, host, entry->runs[r].backend, other, &there);
        if (status == ATTN_OK && !there)
            status = serves_plan(plan, host, entry->runs[r].backend, type, &here);
        if (here)
            *bound = entry->runs[r].backend;
    }
    return status;
}

/* The processor, for which no driver is loaded, unless a --backend serves only on a CUDA device. A
 * bench has one device, whose ceilings are compared with all results; if another backend serves
 * only on the processor, there is no device for both. Backends that serve nowhere are ignored;
 * their entries say why. */
static attn_status choose_device(const struct plan *plan, attnhost *host, attn_device *device)
{
    struct config config = *plan->config;
    const char *on_cuda = NULL, *on_cpu = NULL;
    if (config.platform.device.type != CONFIG_DEVICE_AUTO)
        return platform_describe(&config, device, plan->error);
    attn_status status = find_bound(plan, host, ATTN_DEVICE_CUDA, ATTN_DEVICE_CPU, &on_cuda);
    if (status == ATTN_OK && on_cuda)
        status = find_bound(plan, host, ATTN_DEVICE_CPU, ATTN_DEVICE_CUDA, &on_cpu);
    if (status != ATTN_OK)
        return status;
    if (on_cpu)
        return host_fail(plan->error, ATTN_CONFIG_ERROR,
                         "--backend: %s runs on cpu and %s on cuda:0, with no device in common; "
                         "accepted: backends with a device in common, or --device cpu or --device "
                         "cuda:0 to measure those of one",
                         on_cpu, on_cuda);
    config.platform.device.type = on_cuda ? ATTN_DEVICE_CUDA : ATTN_DEVICE_CPU;
    return platform_describe(&config, device, plan->error);
}

/* ---- All ------------------------------------------------------------------------------------- */

attn_status bench_plan(const struct arguments *arguments, const struct config *config,
                       attnhost *host, attn_device *device, struct bench_report *report,
                       attn_error *error)
{
    const struct bench_values *values = arguments->values;
    struct plan plan = {.arguments = arguments,
                        .values = values,
                        .config = config,
                        .report = report,
                        .error = error};
    bool named = values->backends.count > 0;
    struct model *model = NULL;
    struct selection *selection = NULL;
    attn_status status = arguments->target ? model_create(config, &model, error) : ATTN_OK;
    plan.model = model;
    if (status == ATTN_OK && !named && model)
        status = select_settle_form(host, config, model, error);
    if (status == ATTN_OK && !named)
        status = select_backends(&plan, host, device, &selection);
    if (status == ATTN_OK)
        status = model ? add_groups(&plan) : add_given(&plan);
    if (status == ATTN_OK && named)
        status = choose_device(&plan, host, device);
    select_destroy(selection);
    model_destroy(model);
    return status;
}
