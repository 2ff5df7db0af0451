/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c: the builder that groups layers, and queries of a model.
 */
#include "host/model/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/model/build.h"
#include "host/base/text.h"

/* ---- Parameters of a layer ------------------------------------------------------------------- */

static void spec_init(struct model_spec *spec, uint32_t kind, uint32_t attn_type)
{
    memset(spec, 0, sizeof *spec);
    spec->group.struct_size = sizeof spec->group;
    spec->group.kind = kind;
    spec->group.attn_type = attn_type;
    spec->group.window_left = -1;
    spec->group.window_right = attn_type == ATTN_TYPE_DECODER ? 0 : -1;
}

static void spec_heads(struct model_spec *spec, int32_t num_q_heads, int32_t num_kv_heads,
                       int32_t head_dim, int32_t v_head_dim)
{
    spec->group.num_q_heads = num_q_heads;
    spec->group.num_kv_heads = num_kv_heads;
    spec->group.head_dim = head_dim;
    spec->group.v_head_dim = v_head_dim;
    spec->group.sm_scale = (float)(1.0 / sqrt((double)head_dim));
}

void model_spec_softmax(struct model_spec *spec, int32_t num_q_heads, int32_t num_kv_heads,
                        int32_t head_dim, int32_t v_head_dim)
{
    spec_init(spec, ATTN_KIND_SOFTMAX, ATTN_TYPE_DECODER);
    spec_heads(spec, num_q_heads, num_kv_heads, head_dim, v_head_dim);
}

void model_spec_encoder(struct model_spec *spec, int32_t num_heads, int32_t head_dim)
{
    spec_init(spec, ATTN_KIND_SOFTMAX, ATTN_TYPE_ENCODER_ONLY);
    spec_heads(spec, num_heads, num_heads, head_dim, head_dim);
}

void model_spec_cross(struct model_spec *spec, int32_t num_heads, int32_t num_kv_heads,
                      int32_t head_dim, int32_t v_head_dim)
{
    spec_init(spec, ATTN_KIND_SOFTMAX, ATTN_TYPE_CROSS);
    spec_heads(spec, num_heads, num_kv_heads, head_dim, v_head_dim);
}

void model_spec_mla(struct model_spec *spec, int32_t num_heads, int32_t kv_lora_rank,
                    int32_t nope_dim, int32_t rope_dim, int32_t v_head_dim)
{
    spec_init(spec, ATTN_KIND_MLA, ATTN_TYPE_DECODER);
    spec_heads(spec, num_heads, num_heads, nope_dim + rope_dim, v_head_dim);
    spec->mla.struct_size = sizeof spec->mla;
    spec->mla.kv_lora_rank = kv_lora_rank;
    spec->mla.nope_dim = nope_dim;
    spec->mla.rope_dim = rope_dim;
}

void model_spec_sparse(struct model_spec *spec, int32_t top_k, int32_t label_dim,
                       int32_t index_heads, attn_dtype dtype)
{
    spec->group.kind = ATTN_KIND_SPARSE;
    spec->sparse = (attn_sparse_dims){
        .struct_size = sizeof spec->sparse,
        .index_kind = ATTN_SPARSE_TOKEN,
        .top_k = top_k,
        .block_size = 1,
        .label_dim = label_dim,
        .label_dtype = label_dim ? dtype : (attn_dtype)ATTN_DTYPE_NONE,
        .index_heads = label_dim ? index_heads : 0,
        .index_dtype = label_dim ? dtype : (attn_dtype)ATTN_DTYPE_NONE,
    };
}

void model_spec_linear(struct model_spec *spec, const attn_linear_dims *dims)
{
    spec_init(spec, ATTN_KIND_LINEAR, ATTN_TYPE_DECODER);
    spec->linear = *dims;
    spec->linear.struct_size = sizeof spec->linear;
    /* The ABI's rule is query heads = a multiple of KV heads; in a recurrence the values' heads are
     * the many, the keys' heads the few. */
    spec_heads(spec, dims->num_v_heads, dims->num_k_heads, dims->head_k_dim, dims->head_v_dim);
    if (dims->family != ATTN_LINEAR_GDN && dims->family != ATTN_LINEAR_KDA)
        spec->group.sm_scale = 1; /* only the delta rules scale their queries */
}

/* ---- Grouping -------------------------------------------------------------------------------- */

static bool same_dims(const void *a, const void *b, size_t size)
{
    return (!a && !b) || (a && b && memcmp(a, b, size) == 0);
}

/* Equal in everything that a backend plans by. Compared field by field: the structs hold pointers
 * and floats. */
static bool same_parameters(const attn_layer_group *a, const attn_layer_group *b)
{
    return a->kind == b->kind && a->attn_type == b->attn_type && a->flags == b->flags &&
           a->kv_group == b->kv_group && a->state_group == b->state_group &&
           a->num_q_heads == b->num_q_heads && a->num_kv_heads == b->num_kv_heads &&
           a->head_dim == b->head_dim && a->v_head_dim == b->v_head_dim &&
           a->window_left == b->window_left && a->window_right == b->window_right &&
           a->attention_chunk == b->attention_chunk &&
           !(a->sm_scale < b->sm_scale || a->sm_scale > b->sm_scale) &&
           !(a->logit_cap < b->logit_cap || a->logit_cap > b->logit_cap) &&
           same_dims(a->mla, b->mla, sizeof *a->mla) &&
           same_dims(a->linear, b->linear, sizeof *a->linear) &&
           same_dims(a->sparse, b->sparse, sizeof *a->sparse);
}

/* `array` of `count` elements grown by one, zeroed; false when memory ran out. The capacity is the
 * next power of two, so the test for growth needs no member of its own. */
static bool grow(void *array, uint32_t count, size_t size)
{
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    if (count == 0 || (count & (count - 1)) == 0) {
        grown = realloc(old, (count ? (size_t)count * 2 : 1) * size);
        if (!grown)
            return false;
        memcpy(array, &grown, sizeof grown);
        old = grown;
    }
    memset((char *)old + (size_t)count * size, 0, size);
    return true;
}

static bool copy_dims(const void *dims, size_t size, const void *out)
{
    void *copy = malloc(size);
    if (!copy)
        return false;
    memcpy(copy, dims, size);
    memcpy((void *)(uintptr_t)out, &copy, sizeof copy);
    return true;
}

static void group_finish(attn_layer_group *group)
{
    free((void *)(uintptr_t)group->layers);
    free((void *)(uintptr_t)group->mla);
    free((void *)(uintptr_t)group->linear);
    free((void *)(uintptr_t)group->sparse);
}

/* A new, empty group with its own copies of the dimensions. */
static bool group_copy(const attn_layer_group *from, attn_layer_group *to)
{
    attn_layer_group group = *from;
    group.num_layers = 0;
    group.layers = NULL;
    group.mla = NULL;
    group.linear = NULL;
    group.sparse = NULL;
    bool ok = (!from->mla || copy_dims(from->mla, sizeof *from->mla, &group.mla)) &&
              (!from->linear || copy_dims(from->linear, sizeof *from->linear, &group.linear)) &&
              (!from->sparse || copy_dims(from->sparse, sizeof *from->sparse, &group.sparse));
    if (!ok) {
        group_finish(&group);
        return false;
    }
    *to = group;
    return true;
}

/* The index of the group with these parameters, made if there is none; false without memory. Draft
 * layers may have groups of their own. */
static bool find_group(struct model *model, const attn_layer_group *parameters, uint32_t *index)
{
    for (uint32_t i = model->first_draft_group; i < model->num_groups; i++)
        if (same_parameters(&model->groups[i], parameters)) {
            *index = i;
            return true;
        }
    if (!grow(&model->groups, model->num_groups, sizeof *model->groups) ||
        !group_copy(parameters, &model->groups[model->num_groups]))
        return false;
    *index = model->num_groups++;
    return true;
}

/* Index of the KV group that holds `holds`, made if there is none. */
static int32_t find_kv_group(struct model *model, uint32_t holds)
{
    for (uint32_t i = 0; i < model->num_kv_groups; i++)
        if (model->kv_groups[i].holds == holds)
            return (int32_t)i;
    model->kv_groups[model->num_kv_groups] =
        (struct model_kv_group){.holds = holds, .window_left = -1};
    return (int32_t)model->num_kv_groups++;
}

static void set_pointers(attn_layer_group *group, const struct model_spec *spec)
{
    group->mla = spec->mla.struct_size ? &spec->mla : NULL;
    group->linear = spec->linear.struct_size ? &spec->linear : NULL;
    group->sparse = spec->sparse.struct_size ? &spec->sparse : NULL;
}

/* Which keys a layer reads. */
static uint32_t held_for(const struct model *model, const attn_layer_group *group)
{
    bool sees_all = group->window_left < 0 && group->attention_chunk == 0;
    if (group->attn_type == ATTN_TYPE_CROSS)
        return MODEL_KV_ENCODER;
    return model->has_window_pool && !sees_all ? MODEL_KV_WINDOW : MODEL_KV_DECODER;
}

/* The spec's group with its pointers set, in its KV group. */
static attn_layer_group spec_group(struct model *model, const struct model_spec *spec)
{
    attn_layer_group group = spec->group;
    set_pointers(&group, spec);
    group.kv_group = 0;
    if (!model_group_has_kv(&group))
        return group;
    group.kv_group = find_kv_group(model, held_for(model, &group));
    struct model_kv_group *kv = &model->kv_groups[group.kv_group];
    kv->num_layers++;
    if (kv->holds == MODEL_KV_WINDOW && group.window_left > kv->window_left)
        kv->window_left = group.window_left;
    if (kv->holds == MODEL_KV_WINDOW && group.attention_chunk > kv->chunk)
        kv->chunk = group.attention_chunk;
    return group;
}

/* A layer that reads another's cache must see it: both in one pool. */
static attn_status check_owner(const struct model *model, const attn_layer_group *parameters,
                               int32_t owner, attn_error *error)
{
    if (owner < 0 || model->groups[model->layers[owner].group].kv_group == parameters->kv_group)
        return ATTN_OK;
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s: layer %u reads the KV of layer %d, and one of them has a window or "
                     "chunks: kv_cache.hybrid_swa_memory: accepted no",
                     model->name, model->num_layers, owner);
}

static attn_status add_layer(struct model *model, const struct model_spec *spec, const char *stack,
                             int32_t block, int32_t owner, attn_error *error)
{
    if (model->num_layers >= MODEL_MAX_LAYERS)
        return host_fail(error, ATTN_CONFIG_ERROR, "%s: more than %d attention layers", model->name,
                         MODEL_MAX_LAYERS);
    attn_layer_group parameters = spec_group(model, spec);
    attn_status status = check_owner(model, &parameters, owner, error);
    if (status != ATTN_OK)
        return status;
    bool owns =
        owner < 0 && (model_group_has_kv(&parameters) || model_group_has_state(&parameters));
    uint32_t index;
    if (!find_group(model, &parameters, &index))
        goto no_memory;
    attn_layer_group *group = &model->groups[index];
    if (!grow(&group->layers, group->num_layers, sizeof *group->layers) ||
        !grow(&model->layers, model->num_layers, sizeof *model->layers) ||
        (owns && !grow(&model->buffers, model->num_buffers, sizeof *model->buffers)))
        goto no_memory;

    int32_t id = (int32_t)model->num_layers;
    int32_t buffer = owns         ? (int32_t)model->num_buffers
                     : owner >= 0 ? model->layers[owner].kv_buffer
                                  : -1;
    if (owns)
        model->buffers[model->num_buffers++] = (struct model_buffer){id, index};
    model->layers[model->num_layers++] =
        (struct model_layer){id, index, group->num_layers, buffer, block, stack, false};
    attn_layer *layers = (attn_layer *)(uintptr_t)group->layers;
    layers[group->num_layers++] = (attn_layer){
        sizeof(attn_layer), owner >= 0 ? (uint32_t)ATTN_LAYER_KV_READ_ONLY : 0u, id, buffer};
    return ATTN_OK;
no_memory:
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: no memory for its layers", model->name);
}

/* ---- Tensor parallelism ---------------------------------------------------------------------- */

/* One rank's share of heads. Heads that are fewer than ranks are replicated, where they may be:
 * each rank has one, and so many ranks have the same. */
static attn_status share_heads(const struct model *model, const char *what, bool replicates,
                               int32_t *heads, attn_error *error)
{
    int32_t ranks = model->tp_size;
    bool few = replicates && *heads > 0 && ranks % *heads == 0;
    if (*heads % ranks != 0 && !few)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: layer %u has %d %s: accepted a multiple of model.tp_size = %d%s",
                         model->name, model->num_layers, *heads, what, ranks,
                         replicates ? ", or a divisor" : "");
    *heads = *heads % ranks == 0 ? *heads / ranks : 1;
    return ATTN_OK;
}

/* Latents are the same for all heads, so every rank has them whole. */
static attn_status share_softmax(const struct model *model, attn_layer_group *group, bool latent,
                                 attn_error *error)
{
    attn_status status = share_heads(model, "query heads", false, &group->num_q_heads, error);
    if (latent)
        group->num_kv_heads = group->num_q_heads;
    else if (!status)
        status = share_heads(model, "KV heads", true, &group->num_kv_heads, error);
    return status;
}

/* Mamba2's groups are replicated as KV heads are. */
static attn_status share_linear(const struct model *model, struct model_spec *spec,
                                attn_error *error)
{
    attn_linear_dims *dims = &spec->linear;
    bool groups = dims->family == ATTN_LINEAR_MAMBA2;
    attn_status status = share_heads(model, "heads of values", false, &dims->num_v_heads, error);
    if (!status)
        status = share_heads(model, groups ? "groups" : "heads of keys", groups, &dims->num_k_heads,
                             error);
    dims->num_groups = dims->num_groups ? dims->num_k_heads : 0;
    spec->group.num_q_heads = dims->num_v_heads;
    spec->group.num_kv_heads = dims->num_k_heads;
    return status;
}

/* A layer of the whole model, as this rank has it. */
static attn_status add_share(struct model *model, const struct model_spec *spec, const char *stack,
                             int32_t block, int32_t owner, attn_error *error)
{
    struct model_spec own = *spec;
    bool linear = own.linear.struct_size > 0, latent = own.mla.struct_size > 0;
    attn_status status =
        linear ? share_linear(model, &own, error) : share_softmax(model, &own.group, latent, error);
    return status ? status : add_layer(model, &own, stack, block, owner, error);
}

attn_status model_add_layer(struct model *model, const struct model_spec *spec, const char *stack,
                            int32_t block, attn_error *error)
{
    return add_share(model, spec, stack, block, -1, error);
}

attn_status model_add_shared_layer(struct model *model, const struct model_spec *spec,
                                   const char *stack, int32_t block, int32_t owner,
                                   attn_error *error)
{
    return add_share(model, spec, stack, block, owner, error);
}

attn_status model_add_draft_layer(struct model *model, const struct model_spec *spec, bool whole,
                                  int32_t block, attn_error *error)
{
    attn_status status = whole ? add_share(model, spec, "draft", block, -1, error)
                               : add_layer(model, spec, "draft", block, -1, error);
    if (status == ATTN_OK)
        model->layers[model->num_layers - 1].is_draft = true;
    return status;
}

static bool is_encoder(const struct model *model, uint32_t layer)
{
    return model->groups[model->layers[layer].group].attn_type == ATTN_TYPE_ENCODER_ONLY;
}

bool model_has_tower(const struct model *model)
{
    bool found = false;
    for (uint32_t l = 0; l < model->num_layers; l++)
        found |= is_encoder(model, l);
    return found && !model_encodes(model);
}

const struct model_kv_group *model_kv_group_of(const struct model *model, uint32_t holds)
{
    for (uint32_t g = 0; g < model->num_kv_groups; g++)
        if (model->kv_groups[g].holds == holds)
            return &model->kv_groups[g];
    return NULL;
}

bool model_crosses(const struct model *model)
{
    for (uint32_t g = 0; g < model->num_groups; g++)
        if (model->groups[g].attn_type == ATTN_TYPE_CROSS)
            return true;
    return false;
}

bool model_layer_runs(const struct model *model, uint32_t layer, uint32_t mode)
{
    bool encodes = mode == MODEL_MODE_ENCODE;
    if (encodes || model_has_tower(model))
        if (is_encoder(model, layer) != encodes)
            return false;
    bool drafts = mode == ATTN_MODE_DRAFT_EXTEND, verifies = mode == ATTN_MODE_TARGET_VERIFY;
    return model->layers[layer].is_draft ? !verifies : !drafts;
}

bool model_group_drafts(const struct model *model, const attn_layer_group *group)
{
    const attn_layer *first = group->layers;
    return model->first_draft_group > 0 && model->layers[first->layer_id].is_draft;
}

bool model_mode_decodes(uint32_t mode)
{
    return mode == ATTN_MODE_DECODE || mode == ATTN_MODE_TARGET_VERIFY ||
           mode == ATTN_MODE_DRAFT_EXTEND;
}

void model_settle(struct model *model)
{
    for (uint32_t i = 0; i < model->num_kv_groups; i++)
        model->kv_groups[i].max_kv_len = model->kv_groups[i].holds == MODEL_KV_ENCODER
                                             ? model->max_encoder_len
                                             : model->max_context_len;
}

/* ---- Life ------------------------------------------------------------------------------------ */

struct model *model_new(const char *name, const char *architecture, const struct config *config)
{
    struct model *model = calloc(1, sizeof *model);
    if (!model)
        return NULL;
    model->name = strdup(name);
    model->architecture = strdup(architecture);
    if (!model->name || !model->architecture) {
        model_destroy(model);
        return NULL;
    }
    model->tp_size = config && config->model.tp_size > 0 ? (int32_t)config->model.tp_size : 1;
    model->tp_rank = config ? (int32_t)config->model.tp_rank : 0;
    model->has_window_pool = config && config->kv_cache.hybrid_swa_memory;
    return model;
}

/* A copy of a sized struct as this host knows it; members that the other side lacks are 0. */
static void copy_sized(void *to, const void *from, size_t size)
{
    uint32_t given = *(const uint32_t *)from, written = (uint32_t)size;
    memset(to, 0, size);
    memcpy(to, from, given < size ? given : size);
    memcpy(to, &written, sizeof written);
}

/* The engine's group with its own layers; `mla` ... are room for what its pointers point to. */
static bool copy_given_group(struct model *model, const attn_layer_group *given)
{
    struct model_spec spec;
    memset(&spec, 0, sizeof spec);
    copy_sized(&spec.group, given, sizeof spec.group);
    if (given->mla)
        copy_sized(&spec.mla, given->mla, sizeof spec.mla);
    if (given->linear)
        copy_sized(&spec.linear, given->linear, sizeof spec.linear);
    if (given->sparse)
        copy_sized(&spec.sparse, given->sparse, sizeof spec.sparse);
    set_pointers(&spec.group, &spec);
    attn_layer_group *group = &model->groups[model->num_groups];
    attn_layer *layers = calloc(given->num_layers, sizeof *layers);
    if (!layers || !group_copy(&spec.group, group)) {
        free(layers);
        return false;
    }
    for (uint32_t l = 0; l < given->num_layers; l++)
        copy_sized(&layers[l], attn_at(given->layers, l), sizeof *layers);
    group->kv_scale_granularity = ATTN_SCALE_NONE;
    group->layers = layers;
    group->num_layers = given->num_layers;
    model->num_layers += given->num_layers;
    model->num_groups++;
    return true;
}

attn_status model_create_groups(const char *name, const attn_layer_group *groups, uint32_t count,
                                const struct config *config, int32_t max_encoder_len,
                                struct model **out, attn_error *error)
{
    struct model *model = model_new(name, "groups", NULL);
    bool good = model && (model->groups = calloc(count, sizeof *model->groups));
    for (uint32_t g = 0; g < count && good; g++)
        good = copy_given_group(model, attn_at(groups, g));
    if (!good) {
        model_destroy(model);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: no memory for a model", name);
    }
    model->dtype = config->model.dtype;
    model->max_context_len = config->model.max_context_len ? (int32_t)config->model.max_context_len
                                                           : MODEL_DEFAULT_CONTEXT;
    model->max_encoder_len = max_encoder_len;
    model_set_expanded(model, config->attention.mla_prefill == CONFIG_MLA_EXPANDED);
    *out = model;
    return ATTN_OK;
}

bool model_has_latents(const struct model *model)
{
    for (uint32_t g = 0; g < model->num_groups; g++)
        if (model->groups[g].kind == ATTN_KIND_MLA)
            return true;
    return false;
}

void model_set_expanded(struct model *model, bool expanded)
{
    model->mla_expanded =
        expanded && model_has_latents(model) ? ATTN_MODE_BIT(ATTN_MODE_EXTEND) : 0;
}

/* What kv_cache.label_dtype says of the layers that have an indexer. Engines that keep labels in
 * e4m3 multiply codes by codes: index queries are of that type, too. */
static attn_status set_label_dtype(const struct config *config, struct model *model,
                                   attn_error *error)
{
    attn_dtype dtype = config->kv_cache.label_dtype;
    for (uint32_t g = 0; g < model->num_groups && dtype; g++) {
        attn_sparse_dims *sparse = (void *)(uintptr_t)model->groups[g].sparse;
        if (!sparse || sparse->index_heads == 0)
            continue;
        if (dtype == ATTN_FP8_E4M3 && sparse->label_dim % 4 != 0)
            return config_fail(config, "kv_cache.label_dtype", error,
                               "fp8_e4m3 with labels of %d elements: accepted with a multiple of 4",
                               sparse->label_dim);
        sparse->label_dtype = dtype;
        if (dtype == ATTN_FP8_E4M3)
            sparse->index_dtype = dtype;
    }
    return ATTN_OK;
}

attn_status model_create(const struct config *config, struct model **model, attn_error *error)
{
    if (config->model.tp_rank > 0 && config->model.tp_rank >= config->model.tp_size)
        return config_fail(config, "model.tp_rank", error,
                           "%lld: accepted 0 to %lld, below tp_size",
                           (long long)config->model.tp_rank, (long long)config->model.tp_size - 1);
    attn_status status = config->model.config
                             ? model_create_hf(config->model.config, config, model, error)
                             : model_create_ini(config, model, error);
    if (status != ATTN_OK && config->model.config)
        config_name_file(config, "model.config", config->model.config, error);
    if (status == ATTN_OK)
        model_set_expanded(*model, config->attention.mla_prefill == CONFIG_MLA_EXPANDED);
    if (status != ATTN_OK)
        return status;
    status = set_label_dtype(config, *model, error);
    if (status == ATTN_OK && config->speculative.draft_tokens > 0)
        status = model_add_drafts(*model, config, error);
    if (status != ATTN_OK) {
        model_destroy(*model);
        *model = NULL;
    }
    return status;
}

void model_destroy(struct model *model)
{
    if (!model)
        return;
    for (uint32_t i = 0; i < model->num_groups; i++)
        group_finish(&model->groups[i]);
    free(model->groups);
    free(model->layers);
    free(model->buffers);
    free(model->architecture);
    free(model->name);
    free(model);
}

/* ---- Questions ------------------------------------------------------------------------------- */

bool model_group_has_kv(const attn_layer_group *group)
{
    return group->kind != ATTN_KIND_LINEAR && group->attn_type != ATTN_TYPE_ENCODER_ONLY;
}

bool model_group_has_state(const attn_layer_group *group)
{
    return group->kind == ATTN_KIND_LINEAR;
}

bool model_group_decodes(const attn_layer_group *group)
{
    return group->attn_type != ATTN_TYPE_ENCODER_ONLY;
}

bool model_encodes(const struct model *model)
{
    bool encodes = true;
    for (uint32_t g = 0; g < model->num_groups; g++)
        encodes = encodes && model->groups[g].attn_type == ATTN_TYPE_ENCODER_ONLY;
    return encodes;
}

static const char *name_of(const char *const *names, size_t count, uint32_t index)
{
    return index < count ? names[index] : "?";
}

const char *model_kind_name(uint32_t kind)
{
#define NAME(name, value, text) [value] = (text),
    static const char *const names[ATTN_KIND_COUNT] = {ATTN_KIND_MAP(NAME)};
#undef NAME
    return name_of(names, ATTN_KIND_COUNT, kind);
}

const char *model_attn_type_name(uint32_t attn_type)
{
    static const char *const names[ATTN_TYPE_COUNT] = {"decoder", "encoder_only", "cross"};
    return name_of(names, ATTN_TYPE_COUNT, attn_type);
}

const char *model_linear_name(uint32_t family)
{
    static const char *const names[ATTN_LINEAR_COUNT] = {"gdn", "mamba2", "kda", "lightning",
                                                         "short_conv"};
    return name_of(names, ATTN_LINEAR_COUNT, family);
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* Text into a fixed buffer; if it does not fit, it is cut and marked once, at the end. */
struct cut_text {
    char *text;
    size_t size, length;
};

static void cut_append(struct cut_text *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void cut_append(struct cut_text *out, const char *format, ...)
{
    if (out->length + 1 >= out->size)
        return;
    va_list args;
    va_start(args, format);
    int wanted = text_vformat(out->text + out->length, out->size - out->length, format, args);
    va_end(args);
    if (wanted < 0)
        return;
    out->length += (size_t)wanted;
    if (out->length >= out->size) {
        out->length = out->size - 1;
        if (out->size > 4)
            memcpy(out->text + out->size - 4, "...", 4);
    }
}

static int32_t layer_id(const attn_layer_group *group, uint32_t index)
{
    return ((const attn_layer *)attn_at(group->layers, index))->layer_id;
}

/* How many layers from this one on follow each other at the same distance: two next to each other,
 * or three and more that are apart; else 1. */
static uint32_t run_of(const attn_layer_group *group, uint32_t begin, int32_t *step)
{
    uint32_t end = begin + 1;
    *step = end < group->num_layers ? layer_id(group, end) - layer_id(group, begin) : 1;
    while (end < group->num_layers && layer_id(group, end) - layer_id(group, end - 1) == *step)
        end++;
    uint32_t count = end - begin;
    return *step == 1 || (*step > 1 && count > 2) ? count : 1;
}

void model_layers_text(const attn_layer_group *group, char *text, size_t size)
{
    struct cut_text out = {text, size, 0};
    if (size > 0)
        text[0] = '\0';
    for (uint32_t i = 0, count; i < group->num_layers; i += count) {
        int32_t first = layer_id(group, i), step;
        const char *comma = out.length > 0 ? "," : "";
        count = run_of(group, i, &step);
        int32_t last = first + step * (int32_t)(count - 1);
        if (count == 1)
            cut_append(&out, "%s%d", comma, first);
        else if (step == 1)
            cut_append(&out, "%s%d-%d", comma, first, last);
        else
            cut_append(&out, "%s%d-%d/%d", comma, first, last, step);
    }
}

static void append_masks(struct cut_text *out, const attn_layer_group *group)
{
    if (group->window_left >= 0)
        cut_append(out, ", window_left %d", group->window_left);
    if (group->window_right > 0)
        cut_append(out, ", window_right %d", group->window_right);
    if (group->attention_chunk > 0)
        cut_append(out, ", attention_chunk %d", group->attention_chunk);
    if (group->logit_cap > 0)
        cut_append(out, ", logit_cap %g", (double)group->logit_cap);
    if (group->flags & ATTN_GROUP_HAS_SINKS)
        cut_append(out, ", sinks");
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        cut_append(out, ", alibi");
}

/* Bounds of Mamba2's time step and of KDA's log decay, where a model has them. */
static void append_bounds(struct cut_text *out, const attn_linear_dims *dims)
{
    if (dims->dt_max > 0)
        cut_append(out, ", dt %g..%g", (double)dims->dt_min, (double)dims->dt_max);
    else if (dims->dt_min > 0)
        cut_append(out, ", dt at least %g", (double)dims->dt_min);
    if (dims->lower_bound < 0)
        cut_append(out, ", lower_bound %g", (double)dims->lower_bound);
}

static void append_linear(struct cut_text *out, const struct model *model,
                          const attn_layer_group *group)
{
    const attn_linear_dims *dims = group->linear;
    cut_append(out, "linear %s, %d key heads of %d, %d value heads of %d, conv width %d",
               model_linear_name(dims->family), dims->num_k_heads, dims->head_k_dim,
               dims->num_v_heads, dims->head_v_dim, dims->conv_width);
    if (model->conv_bias && dims->conv_width > 0)
        cut_append(out, " with bias");
    if (dims->family != ATTN_LINEAR_SHORT_CONV)
        cut_append(out, ", sm_scale %g", (double)group->sm_scale);
    append_bounds(out, dims);
}

void model_group_text(const struct model *model, const attn_layer_group *group, char *text,
                      size_t size)
{
    struct cut_text out = {text, size, 0};
    if (size > 0)
        text[0] = '\0';
    if (group->linear) {
        append_linear(&out, model, group);
        return;
    }
    cut_append(&out, "%s %s, %d query heads", model_kind_name(group->kind),
               model_attn_type_name(group->attn_type), group->num_q_heads);
    if (group->mla)
        cut_append(&out, ", kv_lora_rank %d, rope_dim %d, nope_dim %d", group->mla->kv_lora_rank,
                   group->mla->rope_dim, group->mla->nope_dim);
    else
        cut_append(&out, ", %d kv heads, head_dim %d", group->num_kv_heads, group->head_dim);
    if (group->mla || group->v_head_dim != group->head_dim)
        cut_append(&out, ", v_head_dim %d", group->v_head_dim);
    cut_append(&out, ", sm_scale %g", (double)group->sm_scale);
    if (group->sparse)
        cut_append(&out, ", top_k %d", group->sparse->top_k);
    if (group->sparse && group->sparse->index_heads > 0)
        cut_append(&out, " by %d x %d", group->sparse->index_heads, group->sparse->label_dim);
    if (group->sparse && dtype_is_fp8(group->sparse->label_dtype))
        cut_append(&out, ", labels %s", dtype_name(group->sparse->label_dtype));
    append_masks(&out, group);
    if (model->has_window_pool && held_for(model, group) == MODEL_KV_WINDOW)
        cut_append(&out, ", in the KV pool of windows");
}
