/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_cost: what planning a batch takes on the host, of flashinfer_like's library.
 *
 *   plan_cost [--json FILE] [--rounds N]
 *
 * The plan itself is made on the device (kernels/plan.cu), by one launch for each layer group, so
 * the host does little: it checks the batch and fills in that kernel's arguments. That is
 * init_forward_metadata here, under a driver whose calls do nothing: a launch of a real one comes
 * on top. Beside it the planner itself as C, which nothing but tests runs: what a host would take
 * that planned by itself. A sample is a block of calls; the subjects of a round follow each other,
 * and what is reported is the median over the rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_plugin.h"
#include "host/base/clock.h"
#include "host/base/mix.h"
#include "plugins/flashinfer_like/flashinfer_like.h"
#include "plugins/flashinfer_like/kernels/plan.cuh"

enum {
    SEQS = 256,
    MOST_KEYS = 8192, /* lengths are spread evenly below it: 4096 on average */
    QUERIES = 64,     /* of a sequence of EXTEND */
    PAGE_SIZE = 16,
    MOST_PAGES = MOST_KEYS / PAGE_SIZE + 1,
    MAX_ROUNDS = 4001,
    BLOCK_NS = 60000
};

static void fail(const char *message)
{
    fprintf(stderr, "plan_cost: %s\n", message);
    exit(EXIT_FAILURE);
}

/* ---- A driver whose calls do nothing --------------------------------------------------------- */

static int64_t launches;

static int launch(cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                  cuda_stream stream, void **params, void **extra)
{
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
    (void)block_z, (void)shared, (void)stream, (void)params, (void)extra;
    launches++;
    return CUDA_OK;
}

static int launch_ex(const cuda_launch_config *config, cuda_function function, void **params,
                     void **extra)
{
    (void)config, (void)function, (void)params, (void)extra;
    launches++;
    return CUDA_OK;
}

/* But this: the planner reads the counts of a graph's batch. */
static int fill(cuda_address at, unsigned value, size_t count, cuda_stream stream)
{
    (void)stream;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)at)[i] = value;
    return CUDA_OK;
}

static const cuda_api driver = {
    .cuMemsetD32Async = fill, .cuLaunchKernel = launch, .cuLaunchKernelEx = launch_ex};

/* ---- The batch ------------------------------------------------------------------------------- */

static int32_t lens[SEQS], prefixes[SEQS], q_indptr[SEQS + 1], table[SEQS * MOST_PAGES];
static int64_t slots[SEQS * QUERIES];
static attn_kv_batch kv;

/* DECODE, or EXTEND after a prefix: shorter sequences are all new. */
static attn_batch make_batch(uint32_t mode)
{
    int32_t queries = mode == ATTN_MODE_DECODE ? 1 : QUERIES;
    for (int32_t s = 0; s < SEQS; s++) {
        lens[s] = 1 + (int32_t)mix_below((uint32_t)mix_stream(1, (uint64_t)s), MOST_KEYS);
        lens[s] = lens[s] < queries ? queries : lens[s];
        prefixes[s] = lens[s] - queries;
        q_indptr[s + 1] = q_indptr[s] + queries;
    }
    kv = (attn_kv_batch){.struct_size = sizeof kv,
                         .index_forms = ATTN_INDEX_BLOCK_TABLE,
                         .page_size = PAGE_SIZE,
                         .block_table_stride = MOST_PAGES,
                         .kv_lens = {NULL, lens},
                         .out_cache_loc = {NULL, slots},
                         .block_table = {NULL, table}};
    return (attn_batch){.struct_size = sizeof(attn_batch),
                        .mode = mode,
                        .num_seqs = SEQS,
                        .num_tokens = SEQS * queries,
                        .num_real_seqs = SEQS,
                        .num_real_tokens = SEQS * queries,
                        .max_q_len = queries,
                        .max_kv_len = MOST_KEYS,
                        .num_kv_groups = 1,
                        .kv_groups = &kv,
                        .seq_lens = {NULL, lens},
                        .prefix_lens = {NULL, prefixes},
                        .q_indptr = {NULL, q_indptr}};
}

/* ---- Subjects -------------------------------------------------------------------------------- */

enum what { WHOLE, PLANNER };

struct subject {
    const char *name;
    uint32_t kind, mode;
    int invariant;
    enum what what;
    fi_group group;
    attn_instance instance;
    attn_metadata *metadata;
    attn_batch batch;
    fi_plan_call call;
    double times[MAX_ROUNDS];
    double calls; /* launches of one */
};

static struct subject subjects[] = {
    {.name = "decode, eager", .kind = ATTN_METADATA_EAGER, .mode = ATTN_MODE_DECODE},
    {.name = "decode, graph, again", .kind = ATTN_METADATA_GRAPH, .mode = ATTN_MODE_DECODE},
    {.name = "decode, batch_invariant",
     .kind = ATTN_METADATA_GRAPH,
     .mode = ATTN_MODE_DECODE,
     .invariant = 1},
    {.name = "extend, eager", .kind = ATTN_METADATA_EAGER, .mode = ATTN_MODE_EXTEND},
    {.name = "planner in C, decode",
     .kind = ATTN_METADATA_GRAPH,
     .mode = ATTN_MODE_DECODE,
     .what = PLANNER},
    {.name = "planner in C, extend",
     .kind = ATTN_METADATA_EAGER,
     .mode = ATTN_MODE_EXTEND,
     .what = PLANNER},
};

enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

static void call_once(struct subject *s)
{
    if (s->what == PLANNER)
        fi_plan_all(&s->call);
    else if (fi_init_forward_metadata(s->metadata, &s->batch, NULL, NULL) != ATTN_OK)
        fail("a batch was refused");
}

/* A group of 32 / 8 heads of 128 on 132 multiprocessors. */
static void make_group(struct subject *s, const attn_bounds *bounds)
{
    static const attn_layer layer = {.struct_size = sizeof layer};
    static const attn_device device = {
        .struct_size = sizeof device, .type = ATTN_DEVICE_CUDA, .sm = 90, .num_sms = DEFAULT_SMS};
    const attn_layer_group group = {.struct_size = sizeof group,
                                    .num_q_heads = 32,
                                    .num_kv_heads = 8,
                                    .head_dim = 128,
                                    .v_head_dim = 128,
                                    .window_left = -1,
                                    .sm_scale = 0.0883883f,
                                    .num_layers = 1,
                                    .layers = &layer};
    const attn_problem problem = {.struct_size = sizeof problem,
                                  .device = &device,
                                  .group = &group,
                                  .bounds = bounds,
                                  .kv_layout = ATTN_LAYOUT_KV_NHD,
                                  .q_dtype = ATTN_BF16,
                                  .kv_dtype = ATTN_BF16,
                                  .out_dtype = ATTN_BF16,
                                  .page_size = PAGE_SIZE,
                                  .tp_size = 1};
    fi_options options = fi_read_options(NULL);
    options.is_invariant = s->invariant;
    fi_group_init(&s->group, &problem, DEFAULT_SMS, &options);
}

static void open_subject(struct subject *s)
{
    char text[256] = "";
    attn_error error = {.struct_size = sizeof error, .capacity = sizeof text, .message = text};
    const attn_bounds bounds = {.struct_size = sizeof bounds,
                                .modes = ATTN_MODE_BIT(s->mode),
                                .mask_kinds = 1,
                                .max_seqs = SEQS,
                                .max_tokens = SEQS * QUERIES,
                                .max_q_len = QUERIES,
                                .max_kv_len = MOST_KEYS,
                                .max_kv_tokens = (int64_t)SEQS * MOST_KEYS};
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    make_group(s, &bounds);
    s->instance = (attn_instance){.cuda = &driver,
                                  .facts = {.sm = 90, .num_sms = DEFAULT_SMS},
                                  .num_groups = 1,
                                  .groups = &s->group};
    s->batch = make_batch(s->mode);
    if (fi_metadata_size(&s->instance, s->kind, &bounds, &size, &error) != ATTN_OK)
        fail(text);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        memory.size[region] = size.size[region];
        memory.base[region] = aligned_alloc(4096, (size.size[region] + 4095) / 4096 * 4096);
    }
    if (fi_metadata_create(&s->instance, s->kind, &bounds, &memory, &s->metadata, &error) !=
            ATTN_OK ||
        fi_init_forward_metadata(s->metadata, &s->batch, NULL, &error) != ATTN_OK)
        fail(text);
    fi_plan_of(s->metadata, 0, FI_SEQUENCES, &s->call);
    int64_t before = launches;
    call_once(s);
    s->calls = (double)(launches - before);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static double sample(struct subject *s, int passes)
{
    int64_t begin = clock_now_ns();
    for (int p = 0; p < passes; p++)
        call_once(s);
    return (double)(clock_now_ns() - begin) / passes / 1000;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const struct subject *s, int rounds, double p)
{
    return s->times[(int)(p * (rounds - 1) + 0.5)];
}

/* All subjects look at the same arrays, which are filled anew for each. */
static void measure(int rounds)
{
    int passes[SUBJECTS];
    for (int i = 0; i < SUBJECTS; i++) {
        make_batch(subjects[i].mode);
        passes[i] = 1 + (int)(BLOCK_NS / 1000 / sample(&subjects[i], 20));
    }
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < SUBJECTS; i++) {
            struct subject *s = &subjects[(i + r) % SUBJECTS];
            make_batch(s->mode);
            s->times[r] = sample(s, passes[(i + r) % SUBJECTS]);
        }
    for (int i = 0; i < SUBJECTS; i++)
        qsort(subjects[i].times, (size_t)rounds, sizeof(double), ascending);
}

/* ---- Output ---------------------------------------------------------------------------------- */

static void print_table(int rounds)
{
    printf("%-24s %8s %9s   %s\n", "call", "launches", "us", "p10 .. p90");
    for (int i = 0; i < SUBJECTS; i++)
        printf("%-24s %8.0f %9.3f   %.3f .. %.3f\n", subjects[i].name, subjects[i].calls,
               quantile(&subjects[i], rounds, 0.5), quantile(&subjects[i], rounds, 0.1),
               quantile(&subjects[i], rounds, 0.9));
}

static void print_json(const char *path, int rounds)
{
    FILE *file = strcmp(path, "-") ? fopen(path, "we") : stdout;
    if (!file)
        fail("the JSON file cannot be written");
    fprintf(file, "{\"rounds\": %d, \"seqs\": %d, \"figures\": [", rounds, SEQS);
    for (int i = 0; i < SUBJECTS; i++)
        fprintf(file,
                "%s\n  {\"call\": \"%s\", \"launches\": %.0f, \"us\": %.4f, \"p10\": %.4f, "
                "\"p90\": %.4f}",
                i ? "," : "", subjects[i].name, subjects[i].calls,
                quantile(&subjects[i], rounds, 0.5), quantile(&subjects[i], rounds, 0.1),
                quantile(&subjects[i], rounds, 0.9));
    fprintf(file, "\n]}\n");
    if (file != stdout)
        fclose(file);
}

int main(int argc, char **argv)
{
    const char *json = NULL;
    int rounds = 401;
    for (int a = 1; a < argc; a++) {
        if (strcmp(argv[a], "--json") == 0 && a + 1 < argc)
            json = argv[++a];
        else if (strcmp(argv[a], "--rounds") == 0 && a + 1 < argc)
            rounds = atoi(argv[++a]);
        else
            rounds = 0;
    }
    if (rounds < 1 || rounds > MAX_ROUNDS)
        fail("usage: plan_cost [--json FILE] [--rounds 1..4001]");
    for (int i = 0; i < SUBJECTS; i++)
        open_subject(&subjects[i]);
    measure(rounds);
    print_table(rounds);
    if (json)
        print_json(json, rounds);
    return EXIT_SUCCESS;
}
