/* SPDX-License-Identifier: Apache-2.0
 *
 * composite_cost: what composites cost over their children alone.
 *
 *   composite_cost [--json FILE] [--rounds N] HYBRID.so
 *
 * Each composite of the plugin is put over a backend that does nothing, one, two and three levels
 * deep, each level over the one below with all its children, through the plugin's tables and
 * services of this program. A sample is a block of calls; the samples of a round follow each other,
 * the backend alone among them, and what is reported is the median over the rounds of a level's
 * time less that of as many calls of the backend alone as the level made.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_plugin.h"
#include "host/base/clock.h"

enum {
    LAYERS = 48,
    DEPTH = 3,
    MAX_VALUES = 16,
    MAX_ROUNDS = 4001,
    MAX_SEQS = 256,
    BLOCK_NS = 60000
};

/* ---- The backend that does nothing ----------------------------------------------------------- */

static int64_t leaf_calls;

struct attn_instance {
    int unused;
};

struct attn_metadata {
    int unused;
};

static attn_instance leaf_instance;
static attn_metadata leaf_metadata;

static void leaf_destroy(attn_instance *instance)
{
    (void)instance;
}

static uint32_t leaf_index_forms(attn_instance *instance)
{
    (void)instance;
    return ATTN_INDEX_BLOCK_TABLE;
}

static attn_status leaf_metadata_size(attn_instance *instance, uint32_t kind,
                                      const attn_bounds *bounds, attn_memory_size *size,
                                      attn_error *error)
{
    (void)instance, (void)kind, (void)bounds, (void)size, (void)error;
    return ATTN_OK;
}

static attn_status leaf_metadata_create(attn_instance *instance, uint32_t kind,
                                        const attn_bounds *bounds, const attn_memory *memory,
                                        attn_metadata **metadata, attn_error *error)
{
    (void)instance, (void)kind, (void)bounds, (void)memory, (void)error;
    *metadata = &leaf_metadata;
    return ATTN_OK;
}

static attn_status leaf_plan(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                             attn_error *error)
{
    (void)metadata, (void)batch, (void)stream, (void)error;
    leaf_calls++;
    return ATTN_OK;
}

static void leaf_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}

static attn_status leaf_forward(attn_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream,
                                attn_error *error)
{
    (void)metadata, (void)layer_id, (void)args, (void)stream, (void)error;
    leaf_calls++;
    return ATTN_OK;
}

static const attn_backend_ops leaf_ops = {
    .struct_size = sizeof leaf_ops,
    .destroy = leaf_destroy,
    .index_forms = leaf_index_forms,
    .metadata_size = leaf_metadata_size,
    .metadata_create = leaf_metadata_create,
    .init_forward_metadata = leaf_plan,
    .metadata_destroy = leaf_metadata_destroy,
    .forward_extend = leaf_forward,
    .forward_decode = leaf_forward,
};

static const attn_backend_type leaf_type = {
    .struct_size = sizeof leaf_type, .name = "leaf", .doc = "nothing", .ops = &leaf_ops};

/* ---- The tree -------------------------------------------------------------------------------- */

/* Level 0 is the leaf. */
struct level {
    char name[16];
    const attn_backend_type *type;
    attn_option_value values[MAX_VALUES];
    attn_options options;
};

static struct level levels[DEPTH + 1];
static attn_services services;

static const struct level *find_level(const char *name)
{
    int l = 0;
    while (l < DEPTH && strcmp(levels[l].name, name) != 0)
        l++;
    return &levels[l];
}

static void log_nothing(void *ctx, uint32_t level, const char *message)
{
    (void)ctx, (void)level, (void)message;
}

static void *allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    (void)ctx, (void)space;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void release(void *ctx, uint32_t space, void *memory)
{
    (void)ctx, (void)space;
    free(memory);
}

static attn_status parallel_for(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    (void)ctx;
    attn_status status = ATTN_OK;
    for (int64_t t = 0; t < num_tasks && status == ATTN_OK; t++)
        status = task(arg, t, 0);
    return status;
}

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    const struct level *level = find_level(name);
    (void)ctx;
    if (level->type != &leaf_type)
        return level->type->query(level->type, &level->options, &services, problem, verdict, error);
    verdict->supported = 1;
    verdict->graph_level = ATTN_GRAPH_ALWAYS;
    return ATTN_OK;
}

static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error)
{
    const struct level *level = find_level(name);
    (void)ctx;
    child->type = level->type;
    child->instance = &leaf_instance;
    if (level->type == &leaf_type)
        return ATTN_OK;
    return level->type->create(level->type, problems, num_problems, &level->options, &services,
                               &child->instance, error);
}

/* The options of a type, with every child that it needs being the level below. */
static void set_options(struct level *level, const char *below)
{
    level->options = (attn_options){.struct_size = sizeof level->options, .values = level->values};
    for (uint32_t o = 0; o < level->type->num_options && o < MAX_VALUES; o++) {
        const attn_option *option = attn_at(level->type->options, o);
        const char *text = option->flags & ATTN_OPTION_REQUIRED ? below : option->default_text;
        attn_option_value *value = &level->values[level->options.num_values];
        if (!text)
            continue;
        *value = (attn_option_value){.struct_size = sizeof *value,
                                     .type = option->type,
                                     .key = option->key,
                                     .integer = strtoll(text, NULL, 10),
                                     .real = strtod(text, NULL),
                                     .text = text,
                                     .place = "default"};
        level->options.num_values++;
    }
}

static void set_levels(const attn_backend_type *type)
{
    for (int l = 0; l <= DEPTH; l++) {
        snprintf(levels[l].name, sizeof levels[l].name, "level%d", l);
        levels[l].type = l == 0 ? &leaf_type : type;
        if (l > 0)
            set_options(&levels[l], levels[l - 1].name);
    }
}

/* ---- Model and batch ------------------------------------------------------------------------- */

static attn_device device = {.struct_size = sizeof device, .type = ATTN_DEVICE_CPU};
static attn_layer layers[LAYERS];
static attn_layer_group groups[2];
static attn_bounds bounds;
static attn_problem problems[2];
static const attn_linear_dims linear = {.struct_size = sizeof linear};

/* Every fourth layer is a full-attention one, as in models with both kinds. */
static void set_model(void)
{
    uint32_t counts[2] = {0, 0};
    for (int32_t id = 0; id < LAYERS; id++) {
        uint32_t g = id % 4 != 3, at = g == 0 ? counts[0]++ : LAYERS / 4 + counts[1]++;
        layers[at] = (attn_layer){.struct_size = sizeof *layers, .layer_id = id, .kv_buffer = id};
    }
    bounds =
        (attn_bounds){.struct_size = sizeof bounds,
                      .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE) |
                               ATTN_MODE_BIT(ATTN_MODE_MIXED),
                      .mask_kinds = 1,
                      .max_seqs = MAX_SEQS,
                      .max_tokens = 16 * MAX_SEQS,
                      .max_q_len = 4096,
                      .max_kv_len = 4096,
                      .max_kv_tokens = 4096 * MAX_SEQS};
    for (int g = 0; g < 2; g++) {
        groups[g] = (attn_layer_group){.struct_size = sizeof groups[g],
                                       .kind = g == 0 ? ATTN_KIND_SOFTMAX : ATTN_KIND_LINEAR,
                                       .kv_group = g == 0 ? 0 : -1,
                                       .num_layers = counts[g],
                                       .layers = g == 0 ? layers : layers + LAYERS / 4,
                                       .linear = g == 0 ? NULL : &linear};
        problems[g] = (attn_problem){.struct_size = sizeof problems[g],
                                     .device = &device,
                                     .group = &groups[g],
                                     .bounds = &bounds,
                                     .page_size = 16,
                                     .tp_size = 1};
    }
}

static int32_t lens[MAX_SEQS + 1], q_indptr[MAX_SEQS + 1];
static attn_kv_batch kv;
static attn_state_batch state;
static attn_batch batch;

/* The last half of the sequences of a MIXED batch decode. */
static void set_batch(uint32_t mode, int32_t seqs)
{
    for (int32_t s = 0; s <= seqs; s++)
        lens[s < seqs ? s : 0] = 2048, q_indptr[s] = s;
    attn_i32_array len = {lens, lens}, indptr = {q_indptr, q_indptr};
    kv = (attn_kv_batch){.struct_size = sizeof kv, .page_size = 16, .kv_lens = len};
    state = (attn_state_batch){.struct_size = sizeof state, .slot = len, .dst_slot = len};
    batch = (attn_batch){.struct_size = sizeof batch,
                         .mode = mode,
                         .num_seqs = seqs,
                         .num_tokens = seqs,
                         .num_real_seqs = seqs,
                         .num_real_tokens = seqs,
                         .num_decode_seqs = mode == ATTN_MODE_MIXED ? seqs / 2 : 0,
                         .first_decode_seq = mode == ATTN_MODE_MIXED ? seqs - seqs / 2 : 0,
                         .decode_q_len = mode == ATTN_MODE_MIXED,
                         .max_q_len = 1,
                         .max_kv_len = 2048,
                         .num_kv_groups = 1,
                         .seq_lens = len,
                         .prefix_lens = len,
                         .q_indptr = indptr,
                         .kv_groups = &kv,
                         .num_state_groups = 1,
                         .state_groups = &state};
}

/* ---- Samples --------------------------------------------------------------------------------- */

/* What is called: a level of the tree, or the leaf alone. */
struct subject {
    const attn_backend_ops *ops;
    attn_instance *instance;
    attn_metadata *metadata;
    void *memory;
};

enum what { FORWARD, PLAN };

static attn_tensor tensors[6];
static const attn_tensor *operands[ATTN_ROLE_COUNT];
static attn_forward_args args;

static void set_args(void)
{
    for (int role = 0; role < 6; role++) {
        tensors[role] = (attn_tensor){.struct_size = sizeof *tensors,
                                      .data = tensors,
                                      .dtype = ATTN_BF16,
                                      .ndim = 3,
                                      .alignment = 64,
                                      .shape = {MAX_SEQS, 8, 128},
                                      .strides = {1024, 128, 1}};
        operands[role] = &tensors[role];
    }
    args = (attn_forward_args){.struct_size = sizeof args,
                               .flags = ATTN_FORWARD_SAVE_KV,
                               .num_operands = ATTN_ROLE_COUNT,
                               .operands = operands};
}

static void fail(const char *what)
{
    fprintf(stderr, "composite_cost: %s\n", what);
    exit(EXIT_FAILURE);
}

/* One pass: a call for each layer, or one plan. */
static void pass(const struct subject *s, enum what what)
{
    attn_status status = ATTN_OK;
    if (what == PLAN)
        status = s->ops->init_forward_metadata(s->metadata, &batch, NULL, NULL);
    for (int32_t l = 0; what == FORWARD && l < LAYERS; l++)
        status |= (batch.mode == ATTN_MODE_DECODE
                       ? s->ops->forward_decode
                       : s->ops->forward_extend)(s->metadata, l, &args, NULL, NULL);
    if (status != ATTN_OK)
        fail("a call failed");
}

static double sample(const struct subject *s, enum what what, int passes)
{
    int64_t begin = clock_now_ns();
    for (int p = 0; p < passes; p++)
        pass(s, what);
    return (double)(clock_now_ns() - begin) / passes / (what == FORWARD ? LAYERS : 1);
}

static void open_subject(struct subject *s, int level)
{
    char text[256] = "";
    attn_error error = {.struct_size = sizeof error, .capacity = sizeof text, .message = text};
    attn_child child = {.struct_size = sizeof child};
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    const uint32_t host = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA);
    *s = (struct subject){.ops = &leaf_ops};
    if (child_create(NULL, levels[level].name, problems, 2, &child, &error) != ATTN_OK)
        fail(text);
    s->ops = child.type->ops;
    s->instance = child.instance;
    if (s->ops->metadata_size(s->instance, ATTN_METADATA_EAGER, &bounds, &size, &error) != ATTN_OK)
        fail(text);
    s->memory = aligned_alloc(64, (size.size[host] + 64) / 64 * 64);
    memory.base[host] = s->memory;
    memory.size[host] = size.size[host];
    if (s->ops->metadata_create(s->instance, ATTN_METADATA_EAGER, &bounds, &memory, &s->metadata,
                                &error) != ATTN_OK)
        fail(text);
}

static void close_subject(struct subject *s)
{
    s->ops->metadata_destroy(s->metadata);
    s->ops->destroy(s->instance);
    free(s->memory);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

struct figure {
    const char *composite, *what;
    int32_t seqs;
    int depth;
    double calls; /* of the leaf, for one of the level */
    double alone, median, p10, p90;
};

static struct figure figures[512];
static int num_figures, rounds = 401;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *sorted, int count, double p)
{
    return sorted[(int)(p * (count - 1) + 0.5)];
}

static double calls_of(const struct subject *s, enum what what)
{
    int64_t before = leaf_calls;
    pass(s, what);
    return (double)(leaf_calls - before) / (what == FORWARD ? LAYERS : 1);
}

/* Passes that last about BLOCK_NS. */
static int passes_for(const struct subject *s, enum what what)
{
    double ns = sample(s, what, 100) * (what == FORWARD ? LAYERS : 1);
    return 1 + (int)(BLOCK_NS / (ns > 1 ? ns : 1));
}

static void measure(const struct subject *subjects, const char *composite, const char *name,
                    enum what what)
{
    static double times[DEPTH + 1][MAX_ROUNDS], over[MAX_ROUNDS];
    int passes[DEPTH + 1];
    for (int l = 0; l <= DEPTH; l++)
        passes[l] = passes_for(&subjects[l], what);
    for (int r = 0; r < rounds; r++)
        for (int l = 0; l <= DEPTH; l++) {
            int turn = (l + r) % (DEPTH + 1);
            times[turn][r] = sample(&subjects[turn], what, passes[turn]);
        }
    for (int l = 1; l <= DEPTH; l++) {
        struct figure *f = &figures[num_figures++];
        *f = (struct figure){.composite = composite,
                             .what = name,
                             .seqs = batch.num_seqs,
                             .depth = l,
                             .calls = calls_of(&subjects[l], what)};
        for (int r = 0; r < rounds; r++)
            over[r] = times[l][r] - f->calls * times[0][r];
        qsort(over, (size_t)rounds, sizeof *over, ascending);
        f->median = quantile(over, rounds, 0.5);
        f->p10 = quantile(over, rounds, 0.1);
        f->p90 = quantile(over, rounds, 0.9);
        memcpy(over, times[0], (size_t)rounds * sizeof *over);
        qsort(over, (size_t)rounds, sizeof *over, ascending);
        f->alone = quantile(over, rounds, 0.5);
    }
}

static void measure_type(const attn_backend_type *type)
{
    static const struct {
        uint32_t mode;
        const char *forward, *plan;
    } modes[] = {{ATTN_MODE_DECODE, "forward decode", "plan decode"},
                 {ATTN_MODE_EXTEND, "forward extend", "plan extend"},
                 {ATTN_MODE_MIXED, "forward mixed", "plan mixed"}};
    static const int32_t sizes[] = {2, 32, MAX_SEQS};
    struct subject subjects[DEPTH + 1];
    set_levels(type);
    for (int l = 0; l <= DEPTH; l++)
        open_subject(&subjects[l], l);
    for (int m = 0; m < 3; m++)
        for (int n = 0; n < 3; n++) {
            set_batch(modes[m].mode, sizes[n]);
            for (int l = 0; l <= DEPTH; l++)
                pass(&subjects[l], PLAN);
            if (n == 1)
                measure(subjects, type->name, modes[m].forward, FORWARD);
            measure(subjects, type->name, modes[m].plan, PLAN);
        }
    for (int l = DEPTH; l >= 0; l--)
        close_subject(&subjects[l]);
}

/* ---- Output ---------------------------------------------------------------------------------- */

static void print_table(void)
{
    printf("%-14s %-15s %5s %6s %6s %9s %9s   %s\n", "composite", "call", "seqs", "levels", "calls",
           "alone ns", "over ns", "p10 .. p90");
    for (int n = 0; n < num_figures; n++) {
        const struct figure *f = &figures[n];
        printf("%-14s %-15s %5d %6d %6.2f %9.1f %9.1f   %.1f .. %.1f\n", f->composite, f->what,
               f->seqs, f->depth, f->calls, f->alone, f->median, f->p10, f->p90);
    }
}

static void print_json(const char *path)
{
    FILE *file = strcmp(path, "-") ? fopen(path, "we") : stdout;
    if (!file)
        fail("the JSON file cannot be written");
    fprintf(file, "{\"rounds\": %d, \"layers\": %d, \"figures\": [", rounds, LAYERS);
    for (int n = 0; n < num_figures; n++) {
        const struct figure *f = &figures[n];
        fprintf(file,
                "%s\n  {\"composite\": \"%s\", \"call\": \"%s\", \"seqs\": %d, \"levels\": %d, "
                "\"child_calls\": %.3f, \"alone_ns\": %.2f, \"over_ns\": %.2f, "
                "\"p10\": %.2f, \"p90\": %.2f}",
                n ? "," : "", f->composite, f->what, f->seqs, f->depth, f->calls, f->alone,
                f->median, f->p10, f->p90);
    }
    fprintf(file, "\n]}\n");
    if (file != stdout)
        fclose(file);
}

/* ---- The program ----------------------------------------------------------------------------- */

static void measure_plugin(const char *file)
{
    attn_host_info info = {sizeof info, 0,   ATTN_ABI_MAJOR, ATTN_ABI_MINOR, "composite_cost",
                           "1",         NULL};
    attn_plugin plugin = {.struct_size = sizeof plugin};
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    attn_plugin_entry_fn entry = NULL;
    if (!library)
        fail(dlerror());
    *(void **)&entry = dlsym(library, ATTN_PLUGIN_ENTRY);
    if (!entry || entry(&info, &plugin, NULL) != ATTN_OK)
        fail("the file is no plugin of this ABI");
    for (uint32_t b = 0; b < plugin.num_backends; b++) {
        const attn_backend_type *type;
        if (plugin.describe(b, &type, NULL) == ATTN_OK && type->flags & ATTN_BACKEND_COMPOSITE)
            measure_type(type);
    }
}

int main(int argc, char **argv)
{
    const char *json = NULL, *file = NULL;
    for (int a = 1; a < argc; a++) {
        if (strcmp(argv[a], "--json") == 0 && a + 1 < argc)
            json = argv[++a];
        else if (strcmp(argv[a], "--rounds") == 0 && a + 1 < argc)
            rounds = atoi(argv[++a]);
        else
            file = argv[a];
    }
    if (!file || rounds < 1 || rounds > MAX_ROUNDS)
        fail("usage: composite_cost [--json FILE] [--rounds 1..4001] HYBRID.so");
    services = (attn_services){.struct_size = sizeof services,
                               .num_workers = 1,
                               .log = log_nothing,
                               .allocate = allocate,
                               .release = release,
                               .parallel_for = parallel_for,
                               .child_query = child_query,
                               .child_create = child_create};
    set_model();
    set_args();
    measure_plugin(file);
    print_table();
    if (json)
        print_json(json);
    return EXIT_SUCCESS;
}
