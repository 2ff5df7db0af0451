/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_linear: the full-attention layers of a model by one backend, its linear layers by another.
 *
 *   full_attn_layers   child
 *   not given          by the layer's kind: linear ones to `linear`, all others to `full`
 *   "3,7,11-15"        these layers to `full`, all others to `linear`
 *
 * Each child is queried, created and planned only for its own layers. A layer group that both serve
 * in part is shown to both, each with its part. */
#include "plugins/hybrid/core/hybrid.h"

#include "linear.h"
#include "attn_plugin_util.h"
#include "plugins/hybrid/core/slice.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

/* ---- Options --------------------------------------------------------------------------------- */

enum { NUM_OPTIONS = 3 };

static const attn_option option_list[NUM_OPTIONS] = {
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BACKEND_REF,
     .flags = ATTN_OPTION_REQUIRED,
     .key = "full",
     .min = 1,
     .doc = "backend of the full-attention layers"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BACKEND_REF,
     .flags = ATTN_OPTION_REQUIRED,
     .key = "linear",
     .min = 1,
     .doc = "backend of the linear layers"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_STRING,
     .key = "full_attn_layers",
     .default_text = "",
     .min = 1,
     .doc =
         "layers that `full` serves, as in 3,7,11-15; `linear` serves all others; empty = by kind"},
};

struct linear_options {
    const char *child[NUM_LINEAR]; /* names of backends; valid during the call */
    const char *layers;            /* "" = by kind */
};

/* A number at *text, which moves past it; -1 = none, or too large a one. */
static int64_t read_id(const char **text)
{
    int64_t id = -1;
    while (**text >= '0' && **text <= '9' && id <= INT32_MAX)
        id = (id < 0 ? 0 : id) * 10 + (*(*text)++ - '0');
    return id <= INT32_MAX ? id : -1;
}

/* The next range of a list that is not at its end; 0 = malformed. */
static int read_range(const char **text, int64_t *first, int64_t *last)
{
    *text += strspn(*text, " ");
    *first = *last = read_id(text);
    if (**text == '-') {
        ++*text;
        *last = read_id(text);
    }
    *text += strspn(*text, " ");
    if (*first < 0 || *last < *first || (**text && **text != ','))
        return 0;
    if (**text == ',')
        return *++*text != '\0';
    return 1;
}

static int list_is_good(const char *list)
{
    int64_t first, last;
    while (*list)
        if (!read_range(&list, &first, &last))
            return 0;
    return 1;
}

static int list_has(const char *list, int32_t id)
{
    int64_t first, last;
    while (*list && read_range(&list, &first, &last))
        if (first <= id && id <= last)
            return 1;
    return 0;
}

static attn_status read_options(const attn_options *options, struct linear_options *read,
                                attn_error *error)
{
    *read = (struct linear_options){.layers = ""};
    for (uint32_t v = 0; options && v < options->num_values; v++) {
        const attn_option_value *value = attn_at(options->values, v);
        if (strcmp(value->key, "full") == 0)
            read->child[LINEAR_FULL] = value->text;
        else if (strcmp(value->key, "linear") == 0)
            read->child[LINEAR_LINEAR] = value->text;
        else if (strcmp(value->key, "full_attn_layers") == 0)
            read->layers = value->text;
        if (!list_is_good(read->layers))
            return attn_util_fail_field(
                error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                "%s: full_attn_layers = '%s': accepted layers and ranges of "
                "them, as in 3,7,11-15",
                value->place, read->layers);
    }
    for (int c = 0; c < NUM_LINEAR; c++)
        if (!read->child[c])
            return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                        "option %s is required: the name of a backend",
                                        option_list[c].key);
    return ATTN_OK;
}

/* ---- Routing --------------------------------------------------------------------------------- */

static int serves(const void *ctx, uint32_t c, const attn_layer_group *group,
                  const attn_layer *layer)
{
    const struct linear_options *options = ctx;
    int full = *options->layers ? list_has(options->layers, layer->layer_id)
                                : group->kind != ATTN_KIND_LINEAR;
    return full == (c == LINEAR_FULL);
}

/* `problem` as child `c` has to solve it, finished by the caller; *count layers of it are its. */
static attn_status narrow(const struct linear_options *options, const attn_services *services,
                          uint32_t c, const attn_problem *problem, child_problem *narrowed,
                          uint32_t *count, attn_error *error)
{
    fanout_narrow_problem(problem, problem->bounds->modes, narrowed);
    return fanout_narrow_layers(services, narrowed, serves, options, c, count, error);
}

/* ---- Query ----------------------------------------------------------------------------------- */

static attn_status ask_child(const struct linear_options *options, const attn_services *services,
                             uint32_t c, const attn_problem *problem, attn_verdict *merged,
                             attn_error *error)
{
    child_problem narrowed;
    uint32_t count;
    attn_status status = narrow(options, services, c, problem, &narrowed, &count, error);
    if (status == ATTN_OK && count > 0)
        status = fanout_verdict_add(services, options->child[c], &narrowed.problem, merged, error);
    fanout_problem_finish(services, &narrowed);
    return status;
}

static attn_status query(const attn_backend_type *type, const attn_options *given,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    (void)type;
    struct linear_options options;
    attn_verdict merged;
    attn_status status = fanout_check_services(services, error);
    if (status == ATTN_OK)
        status = read_options(given, &options, error);
    if (status != ATTN_OK)
        return status;
    fanout_verdict_begin(verdict, &merged);
    for (uint32_t c = 0; c < NUM_LINEAR && status == ATTN_OK; c++)
        status = ask_child(&options, services, c, problem, &merged, error);
    if (status != ATTN_OK)
        return status;
    if (problem->bounds->max_seqs > 0)
        merged.host_bytes += linear_metadata_bytes();
    attn_util_verdict_end(&merged, verdict);
    return ATTN_OK;
}

/* ---- Instance -------------------------------------------------------------------------------- */

struct route_context {
    const struct linear_options *options;
    const attn_services *services;
};

static attn_status route(const void *ctx, uint32_t c, const attn_problem *problem,
                         child_problem *narrowed, int *asked, attn_error *error)
{
    const struct route_context *context = ctx;
    uint32_t count;
    attn_status status =
        narrow(context->options, context->services, c, problem, narrowed, &count, error);
    *asked = count > 0;
    return status;
}

static void note_needs(attn_instance *instance, const attn_problem *problems)
{
    for (uint32_t l = 0; l < instance->layers.count; l++) {
        const fanout_layer *layer = &instance->layers.items[l];
        const attn_problem *problem = attn_at(problems, layer->group);
        const fanout_limits limits = fanout_limits_of(problem->bounds);
        instance->needs[layer->child] |= slice_needs(problem->group);
        fanout_limits_add(&instance->limits[layer->child], &limits);
        fanout_limits_add(&instance->all_limits, &limits);
        slice_groups_add(&instance->groups[layer->child], problem->group);
    }
}

/* An instance without children. */
static attn_instance *make(const attn_problem *problems, uint32_t num_problems,
                           const struct linear_options *options, const attn_services *services,
                           attn_error *error)
{
    size_t size = sizeof(attn_instance) +
                  attn_util_count_layers(problems, num_problems) * sizeof(fanout_layer);
    attn_instance *made = fanout_allocate(services, size, offsetof(attn_instance, child),
                                          NUM_LINEAR, problems, error);
    if (!made)
        return NULL;
    made->layers.items = made->items;
    fanout_list_layers(problems, num_problems, serves, options, NUM_LINEAR, &made->layers);
    note_needs(made, problems);
    return made;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *given,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    struct linear_options options;
    attn_status status = read_options(given, &options, error);
    if (status == ATTN_OK)
        status = fanout_check_problems(type, given, services, problems, num_problems, error);
    if (status != ATTN_OK)
        return status;
    attn_instance *made = make(problems, num_problems, &options, services, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    struct route_context context = {&options, services};
    return fanout_create_all(made, options.child, problems, num_problems, route, &context, instance,
                             error);
}

/* ---- Type ------------------------------------------------------------------------------------ */

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = fanout_op_destroy,
    .prepare = fanout_op_prepare,
    .index_forms = fanout_op_index_forms,
    .metadata_size = linear_metadata_size,
    .metadata_create = linear_metadata_create,
    .init_forward_metadata = linear_init_forward_metadata,
    .metadata_destroy = linear_metadata_destroy,
    .forward_extend = linear_forward_extend,
    .forward_decode = linear_forward_decode,
    .get_extension = fanout_op_get_extension,
};

const attn_backend_type hybrid_linear_type = {
    .struct_size = sizeof hybrid_linear_type,
    .flags = ATTN_BACKEND_COMPOSITE,
    .name = "hybrid_linear",
    .doc = "full-attention layers by one backend, linear layers by another",
    .num_options = NUM_OPTIONS,
    .num_layouts = FANOUT_NUM_LAYOUTS,
    .options = option_list,
    .layouts = fanout_layouts,
    .ops = &ops,
    .query = query,
    .create = create,
};
