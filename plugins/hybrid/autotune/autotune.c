/* SPDX-License-Identifier: Apache-2.0
 *
 * autotune.c: picks the fastest of several candidates for each class of batches (autotune.h);
 * pick.h runs the batches.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr */
#endif
#include "autotune.h"

#include "plugins/hybrid/core/hybrid.h"
#include "attn_plugin_util.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const int32_t tune_batch_ends[TUNE_BATCHES] = {1, 4, 16, 64, INT32_MAX};
const int32_t tune_length_ends[TUNE_LENGTHS] = {512, 4096, 32768, INT32_MAX};

/* ---- Options --------------------------------------------------------------------------------- */

enum { NUM_OPTIONS = 6 };

static const attn_option option_list[NUM_OPTIONS] = {
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BACKEND_REF,
     .flags = ATTN_OPTION_REQUIRED | ATTN_OPTION_REPEATED,
     .key = "candidate",
     .min = 1,
     .doc = "a candidate backend; the first one serves classes that are not measured"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_PATH,
     .key = "store",
     .default_text = "",
     .min = 1,
     .doc = "file that keeps decisions for the next start; none by default"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_FLOAT,
     .key = "margin",
     .default_text = "0.05",
     .max = 10,
     .doc = "share of the current holder's time by which a candidate must be faster to replace it"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_INT,
     .key = "rounds",
     .default_text = "7",
     .min = 3,
     .max = TUNE_MAX_ROUNDS,
     .doc = "samples of each candidate per class; candidates alternate"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_FLOAT,
     .key = "seconds",
     .default_text = "20",
     .max = 86400,
     .unit = "s",
     .doc = "time for all measurements; classes that it does not reach go to the first candidate"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_SIZE,
     .key = "memory",
     .default_text = "64M",
     .min = 1 << 20,
     .max = 1e15,
     .unit = "bytes",
     .doc = "largest KV cache of a measurement; longer batches read pages more than once"},
};

/* The candidates' names, each once, and the rest into *read, which may be NULL. */
static attn_status read_options(const attn_options *options, const char **names, uint32_t *count,
                                tune_options *read, attn_error *error)
{
    tune_options other = {.margin = 0.05, .seconds = 20, .rounds = 7, .memory = 64u << 20};
    *count = 0;
    for (uint32_t v = 0; options && v < options->num_values; v++) {
        const attn_option_value *value = attn_at(options->values, v);
        uint32_t c = 0;
        if (strcmp(value->key, "candidate") == 0) {
            while (c < *count && strcmp(names[c], value->text) != 0)
                c++;
            if (c == PICK_MAX_CHILDREN)
                return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                            "%s: more than %d candidates", value->place,
                                            PICK_MAX_CHILDREN);
            names[c] = value->text;
            *count += c == *count;
        } else if (strcmp(value->key, "store") == 0) {
            snprintf(other.store, sizeof other.store, "%s", value->text);
        } else if (strcmp(value->key, "margin") == 0) {
            other.margin = value->real;
        } else if (strcmp(value->key, "seconds") == 0) {
            other.seconds = value->real;
        } else if (strcmp(value->key, "rounds") == 0) {
            other.rounds = value->integer;
        } else if (strcmp(value->key, "memory") == 0) {
            other.memory = (uint64_t)value->integer;
        }
    }
    if (read)
        *read = other;
    return *count > 0 ? ATTN_OK
                      : attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                             "option candidate is required: the name of a backend");
}

/* ---- Classes --------------------------------------------------------------------------------- */

static int32_t first_batch(uint32_t batch)
{
    return batch == 0 ? 1 : tune_batch_ends[batch - 1] + 1;
}

static int32_t first_length(uint32_t length)
{
    return length == 0 ? 1 : tune_length_ends[length - 1] + 1;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

int tune_class_exists(const tune_group *group, uint32_t index, int32_t *num_seqs, int32_t *kv_len)
{
    uint32_t phase, batch, length;
    tune_class_of(index, &phase, &batch, &length);
    uint32_t mode = phase == TUNE_DECODE ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND;
    uint32_t modes = ATTN_MODE_BIT(mode);
    if (group->splits)
        modes |= ATTN_MODE_BIT(ATTN_MODE_MIXED);
    *num_seqs = least(tune_batch_ends[batch], group->bounds.max_seqs);
    if (phase == TUNE_PREFILL)
        *num_seqs = least(*num_seqs, group->bounds.max_tokens);
    *kv_len = least(tune_length_ends[length], group->bounds.max_kv_len);
    return group->bounds.modes & modes && *num_seqs >= first_batch(batch) &&
           *kv_len >= first_length(length);
}

static void range_text(int32_t first, int32_t last, const char *unit, char *text, size_t size)
{
    if (last == INT32_MAX)
        snprintf(text, size, "%d or more %ss", first, unit);
    else if (first == last)
        snprintf(text, size, "%d %s", first, unit);
    else
        snprintf(text, size, "%d-%d %ss", first, last, unit);
}

void tune_class_text(uint32_t index, char *text, size_t size)
{
    uint32_t phase, batch, length;
    tune_class_of(index, &phase, &batch, &length);
    char seqs[48], keys[48];
    range_text(first_batch(batch), tune_batch_ends[batch], "sequence", seqs, sizeof seqs);
    range_text(first_length(length), tune_length_ends[length], "key", keys, sizeof keys);
    snprintf(text, size, "%s, %s, %s", phase == TUNE_DECODE ? "decode" : "prefill", seqs, keys);
}

static uint32_t find_range(const int32_t *ends, int32_t value)
{
    uint32_t range = 0;
    while (value > ends[range])
        range++;
    return range;
}

/* ---- Rules ----------------------------------------------------------------------------------- */

/* A number that identifies a group's parameters: equal layers are measured once. */
static uint32_t part_of(const void *ctx, const attn_layer_group *group, int32_t layer_id)
{
    (void)ctx, (void)layer_id;
    const int32_t what[] = {
        (int32_t)group->kind, (int32_t)group->attn_type, (int32_t)group->flags,
        group->kv_group,      group->num_q_heads,        group->num_kv_heads,
        group->head_dim,      group->v_head_dim,         group->window_left,
        group->window_right,  group->attention_chunk,    (int32_t)(group->logit_cap * 256)};
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++)
        hash = (hash ^ (uint32_t)what[i]) * 16777619u;
    return hash;
}

static const tune_group *find_group(const tuning *own, uint32_t part)
{
    for (uint32_t g = 0; g < own->num_groups; g++)
        if (own->groups[g].part == part)
            return &own->groups[g];
    return NULL;
}

uint32_t tune_first_left(const tuning *own)
{
    uint32_t c = 0;
    while (c < own->rules.num_children && own->dropped >> c & 1u)
        c++;
    return c < own->rules.num_children ? c : 0;
}

static uint32_t choose(const void *ctx, uint32_t part, uint32_t phase, int32_t num_seqs,
                       int32_t max_kv_len)
{
    const tune_group *group = find_group(ctx, part);
    uint32_t batch = find_range(tune_batch_ends, num_seqs);
    uint32_t length = find_range(tune_length_ends, max_kv_len);
    if (!group || phase > PICK_DECODE)
        return tune_first_left(ctx);
    uint32_t own_phase = phase == PICK_DECODE ? TUNE_DECODE : TUNE_PREFILL;
    const tune_class *at = &group->classes[tune_class_index(own_phase, batch, length)];
    return at->from == TUNE_UNDECIDED ? tune_first_left(ctx) : at->choice;
}

/* The work that the decisions route to a child. */
static pick_reach decided(const void *ctx, uint32_t part, uint32_t phase, int32_t max_seqs,
                          int32_t max_kv_len, uint32_t child)
{
    pick_reach all = {0, 0};
    for (uint32_t b = 0; b < TUNE_BATCHES && first_batch(b) <= max_seqs; b++)
        for (uint32_t l = 0; l < TUNE_LENGTHS && first_length(l) <= max_kv_len; l++) {
            if (choose(ctx, part, phase, first_batch(b), first_length(l)) != child)
                continue;
            int32_t seqs = least(tune_batch_ends[b], max_seqs);
            int32_t keys = least(tune_length_ends[l], max_kv_len);
            all.max_seqs = seqs > all.max_seqs ? seqs : all.max_seqs;
            all.max_kv_len = keys > all.max_kv_len ? keys : all.max_kv_len;
        }
    return all;
}

static uint32_t choose_first(const void *ctx, uint32_t part, uint32_t phase, int32_t num_seqs,
                             int32_t max_kv_len)
{
    (void)ctx, (void)part, (void)phase, (void)num_seqs, (void)max_kv_len;
    return 0;
}

/* For queries and sizes, any candidate may serve any class, so that they are the same before and
 * after decisions. */
static pick_reach reach_all(const void *ctx, uint32_t part, uint32_t phase, int32_t max_seqs,
                            int32_t max_kv_len, uint32_t child)
{
    (void)ctx, (void)part, (void)phase, (void)child;
    return (pick_reach){max_seqs, max_kv_len};
}

static pick_rules open_rules(uint32_t num_children)
{
    return (pick_rules){.num_children = num_children,
                        .part_of = part_of,
                        .choose = choose_first,
                        .reach = reach_all};
}

/* ---- Query and create ------------------------------------------------------------------------ */

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    (void)type;
    const char *names[PICK_MAX_CHILDREN];
    uint32_t count;
    attn_status status = fanout_check_services(services, error);
    if (status == ATTN_OK)
        status = read_options(options, names, &count, NULL, error);
    if (status != ATTN_OK)
        return status;
    pick_rules rules = open_rules(count);
    picker pick = {.rules = &rules};
    return pick_query(services, &pick, names, problem, verdict, error);
}

static void describe_group(const attn_problem *problem, tune_group *group)
{
    ATTN_UTIL_READ(&group->problem, problem);
    ATTN_UTIL_READ(&group->group, problem->group);
    ATTN_UTIL_READ(&group->bounds, problem->bounds);
    const char *layout = problem->kv_layout ? problem->kv_layout : "no cache";
    int32_t first = INT32_MAX, last = 0;
    for (uint32_t l = 0; l < problem->group->num_layers; l++) {
        const attn_layer *layer = attn_at(problem->group->layers, l);
        first = least(first, layer->layer_id);
        last = layer->layer_id > last ? layer->layer_id : last;
    }
    group->layer_id = first;
    group->is_hnd = strcmp(layout, ATTN_LAYOUT_KV_HND) == 0;
    group->part = part_of(NULL, &group->group, 0);
    snprintf(group->layers, sizeof group->layers, first == last ? "%d" : "%d-%d", first, last);
    const attn_layer_group *g = &group->group;
    snprintf(group->text, sizeof group->text,
             "kind %u type %u flags %u heads %d/%d dim %d/%d window %d,%d chunk %d cap %s q %s "
             "new %s kv %s out %s scale %u %s page %d",
             g->kind, g->attn_type, g->flags, g->num_q_heads, g->num_kv_heads, g->head_dim,
             g->v_head_dim, g->window_left, g->window_right, g->attention_chunk,
             attn_util_number((double)g->logit_cap).text, attn_util_dtype_name(problem->q_dtype),
             attn_util_dtype_name(attn_new_kv_dtype(problem)),
             attn_util_dtype_name(problem->kv_dtype), attn_util_dtype_name(problem->out_dtype),
             g->kv_scale_granularity, layout, problem->page_size);
    /* Pointers that do not outlive create. */
    group->problem.group = NULL;
    group->problem.bounds = NULL;
    group->problem.device = NULL;
    group->problem.kv_layout = group->problem.state_layout = NULL;
    group->problem.features = NULL;
    group->group.layers = NULL;
    group->group.mla = NULL;
    group->group.linear = NULL;
    group->group.sparse = NULL;
}

/* The file that a backend's strings lie in tells one build from another. */
static void describe_candidate(const char *name, const fanout_child *child, char *text, size_t size)
{
    Dl_info where;
    struct stat file;
    if (!child->doc || dladdr(child->doc, &where) == 0 || stat(where.dli_fname, &file) != 0) {
        snprintf(text, size, "%s", name);
        return;
    }
    const char *base = strrchr(where.dli_fname, '/');
    snprintf(text, size, "%s (%.24s, %lld bytes of %lld.%ld)", name,
             base ? base + 1 : where.dli_fname, (long long)file.st_size,
             (long long)file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
}

static void fill_own(tuning *own, const attn_services *services, const fanout *children,
                     const char *const *names, const attn_problem *problems, uint32_t num_problems,
                     const tune_options *options)
{
    own->options = *options;
    own->rules = (pick_rules){.num_children = children->num_children,
                              .part_of = part_of,
                              .choose = choose,
                              .reach = reach_all,
                              .decided = decided};
    ATTN_UTIL_READ(&own->device, problems->device);
    snprintf(own->device_text, sizeof own->device_text,
             own->device.type == ATTN_DEVICE_CUDA ? "cuda sm_%u, %u multiprocessors"
                                                  : "cpu isa 0x%x, %u threads",
             own->device.type == ATTN_DEVICE_CUDA ? own->device.sm : own->device.cpu_isa,
             own->device.type == ATTN_DEVICE_CUDA ? own->device.num_sms : services->num_workers);
    own->num_groups = num_problems;
    for (uint32_t p = 0; p < num_problems; p++)
        describe_group(attn_at(problems, p), &own->groups[p]);
    for (uint32_t c = 0; c < children->num_children; c++)
        describe_candidate(names[c], &children->children[c], own->versions[c],
                           sizeof own->versions[c]);
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    const char *names[PICK_MAX_CHILDREN];
    uint32_t count;
    tune_options read;
    attn_status status = read_options(options, names, &count, &read, error);
    if (status == ATTN_OK)
        status = fanout_check_problems(type, options, services, problems, num_problems, error);
    if (status != ATTN_OK)
        return status;
    pick_rules rules = open_rules(count);
    picker pick = {.rules = &rules};
    attn_instance *made = NULL;
    size_t size = sizeof(tuning) + num_problems * sizeof(tune_group);
    status = pick_create(services, &pick, names, problems, num_problems, size, &made, error);
    if (status != ATTN_OK)
        return status;
    tuning *own = made->own;
    fill_own(own, services, &made->children, names, problems, num_problems, &read);
    made->pick.rules = &own->rules;
    made->pick.ctx = own;
    for (uint32_t g = 0; g < own->num_groups; g++)
        own->groups[g].splits = made->pick.split_mixed;
    *instance = made;
    return ATTN_OK;
}

/* ---- Prepare --------------------------------------------------------------------------------- */

void tune_log(const attn_instance *instance, uint32_t level, const char *format, ...)
{
    char text[512] = "autotune: ";
    size_t length = strlen(text);
    const attn_services *services = instance->children.services;
    va_list args;
    va_start(args, format);
    vsnprintf(text + length, sizeof text - length, format, args);
    va_end(args);
    services->log(services->ctx, level, text);
}

static attn_status prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error)
{
    tuning *own = instance->own;
    attn_status status = fanout_op_prepare(instance, progress, progress_ctx, error);
    if (status == ATTN_OK && own->options.store[0])
        status = tune_store_read(instance, error);
    if (status == ATTN_OK)
        status = tune_measure(instance, progress, progress_ctx, error);
    if (status != ATTN_OK)
        return status;
    if (own->options.store[0])
        tune_store_write(instance);
    return tune_tell(instance, error);
}

static void destroy(attn_instance *instance)
{
    if (!instance)
        return;
    const attn_services *services = instance->children.services;
    services->release(services->ctx, ATTN_SPACE_HOST, ((tuning *)instance->own)->report);
    fanout_op_destroy(instance);
}

static const void *get_extension(attn_instance *instance, const char *id)
{
    const char *report = ((const tuning *)instance->own)->report;
    if (strcmp(id, ATTN_EXTENSION_EXPLAIN) == 0)
        return report ? report : "";
    return fanout_op_get_extension(instance, id);
}

/* ---- Type ------------------------------------------------------------------------------------ */

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = destroy,
    .prepare = prepare,
    .index_forms = fanout_op_index_forms,
    .metadata_size = pick_metadata_size,
    .metadata_create = pick_metadata_create,
    .init_forward_metadata = pick_init_forward_metadata,
    .metadata_destroy = pick_metadata_destroy,
    .forward_extend = pick_forward_extend,
    .forward_decode = pick_forward_decode,
    .get_extension = get_extension,
};

const attn_backend_type autotune_type = {
    .struct_size = sizeof autotune_type,
    .flags = ATTN_BACKEND_COMPOSITE,
    .name = "autotune",
    .doc = "the fastest of several backends for each phase, batch size and length, as measured",
    .num_options = NUM_OPTIONS,
    .num_layouts = FANOUT_NUM_LAYOUTS,
    .options = option_list,
    .layouts = fanout_layouts,
    .ops = &ops,
    .query = query,
    .create = create,
};
