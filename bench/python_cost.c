/* SPDX-License-Identifier: Apache-2.0
 *
 * python_cost: what a call costs when the backend is written in Python.
 *
 *   python_cost PLUGIN BACKEND...
 *
 * Each backend plans and forwards a DECODE batch of four sequences, as an engine calls it
 * (attnhost.h). Those of python_cost.py do nothing, so that their time is what the host, python.so
 * and attnhost.backend take over the bare function, a call of which takes 0.1 us. Medians of
 * blocks of 100 calls, the backends in turn.
 */
#include "examples/embed_model.h"
#include "host/base/clock.h"

enum { SEQS = 4, BLOCK = 100, ROUNDS = 201, MAX_BACKENDS = 8, PAGES = 1 + SEQS };

struct subject {
    const char *name;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    double forward_ns[ROUNDS], plan_ns[ROUNDS];
};

static model m;
static float cache[2][PAGES][PAGE][KV_HEADS][DIM], q[SEQS][Q_HEADS][DIM], out[SEQS][Q_HEADS][DIM];
static float k[SEQS][KV_HEADS][DIM], v[SEQS][KV_HEADS][DIM];
static int32_t indptr[SEQS + 1], lens[SEQS], computed[SEQS], requests[SEQS], table[SEQS];
static int64_t slots[SEQS];
static attn_kv_batch kv[GROUPS];
static attn_batch batch;

static attn_i32_array both(const int32_t *array)
{
    return (attn_i32_array){.host = array, .device = array};
}

static void make_batch(void)
{
    attnhost_paged_group groups[GROUPS];
    for (int s = 0; s < SEQS; s++) {
        indptr[s + 1] = s + 1;
        lens[s] = 2;
        computed[s] = 1;
        requests[s] = table[s] = s + 1;
        slots[s] = (int64_t)table[s] * PAGE + computed[s];
    }
    for (int g = 0; g < GROUPS; g++)
        groups[g] = (attnhost_paged_group){.struct_size = sizeof groups[g],
                                           .block_size = PAGE,
                                           .block_table = both(table),
                                           .block_table_stride = 1,
                                           .slot_mapping = {slots, slots}};
    const attnhost_paged_batch words = {.struct_size = sizeof words,
                                        .num_groups = GROUPS,
                                        .num_reqs = SEQS,
                                        .num_actual_tokens = SEQS,
                                        .query_start_loc = both(indptr),
                                        .seq_lens = both(lens),
                                        .num_computed_tokens = both(computed),
                                        .groups = groups};
    check(attnhost_paged_batch_init(&batch, kv, &words, &error), "batch");
    batch.req_pool_indices = both(requests);
}

static void open_subject(attnhost *host, struct subject *s)
{
    ask(host, s->name, &m);
    check(attnhost_compose(host, s->name, m.problems, GROUPS, &s->backend, &error), "compose");
    check(attnhost_backend_prepare(s->backend, NULL, NULL, &error), "prepare");
    check(attnhost_metadata_create(s->backend, ATTN_METADATA_EAGER, &m.bounds, NULL, &s->metadata,
                                   &error),
          "metadata");
}

static double time_plans(const struct subject *s)
{
    int64_t begin = clock_now_ns();
    for (int i = 0; i < BLOCK; i++)
        check(attnhost_init_forward_metadata(s->metadata, &batch, NULL, &error), "plan");
    return (double)(clock_now_ns() - begin) / BLOCK;
}

static double time_forwards(const struct subject *s)
{
    const int64_t q_shape[] = {SEQS, Q_HEADS, DIM}, kv_shape[] = {SEQS, KV_HEADS, DIM};
    const int64_t cache_shape[] = {PAGES, PAGE, KV_HEADS, DIM};
    attn_tensor tensors[ATTN_ROLE_COUNT] = {
        [ATTN_ROLE_Q] = view(&m.device, q, ATTN_F32, 3, q_shape, NULL),
        [ATTN_ROLE_K] = view(&m.device, k, ATTN_F32, 3, kv_shape, NULL),
        [ATTN_ROLE_V] = view(&m.device, v, ATTN_F32, 3, kv_shape, NULL),
        [ATTN_ROLE_OUT] = view(&m.device, out, ATTN_F32, 3, q_shape, NULL),
        [ATTN_ROLE_K_CACHE] = view(&m.device, cache[0], ATTN_F32, 4, cache_shape, NULL),
        [ATTN_ROLE_V_CACHE] = view(&m.device, cache[1], ATTN_F32, 4, cache_shape, NULL)};
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
    for (int role = 0; role < ATTN_ROLE_COUNT; role++)
        operands[role] = tensors[role].struct_size ? &tensors[role] : NULL;
    attn_forward_args args = {.struct_size = sizeof args,
                              .flags = ATTN_FORWARD_SAVE_KV,
                              .num_operands = ATTN_ROLE_COUNT,
                              .operands = operands};
    int64_t begin = clock_now_ns();
    for (int i = 0; i < BLOCK; i++)
        check(attnhost_forward(s->metadata, i % LAYERS, &args, NULL, &error), "forward");
    return (double)(clock_now_ns() - begin) / BLOCK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* "median (p10 .. p90)" of the samples, in us. */
static void print_samples(double samples[ROUNDS])
{
    qsort(samples, ROUNDS, sizeof *samples, ascending);
    printf("  %8.2f (%.2f .. %.2f)", samples[ROUNDS / 2] / 1e3, samples[ROUNDS / 10] / 1e3,
           samples[ROUNDS * 9 / 10] / 1e3);
}

int main(int argc, char **argv)
{
    static struct subject subjects[MAX_BACKENDS];
    int count = argc - 2;
    attnhost *host = NULL;
    attnhost_params params = {.struct_size = sizeof params, .log_level = ATTN_LOG_WARNING};
    require(count > 0 && count <= MAX_BACKENDS, "usage: python_cost PLUGIN BACKEND...");
    m.device.struct_size = sizeof m.device;
    check(attnhost_create(&params, &host, &error), "host");
    check(attnhost_load_plugin(host, argv[1], &error), argv[1]);
    check(attnhost_device_init(&m.device, ATTN_DEVICE_CPU, 0, &error), "device");
    describe_model(&m, ATTN_F32, ATTN_GRAPH_NEVER, SEQS, SEQS, 1);
    make_batch();
    for (int s = 0; s < count; s++) {
        subjects[s].name = argv[2 + s];
        open_subject(host, &subjects[s]);
    }
    for (int round = -20; round < ROUNDS; round++) /* below 0: warming up */
        for (int s = 0; s < count; s++) {
            subjects[s].plan_ns[round < 0 ? 0 : round] = time_plans(&subjects[s]);
            subjects[s].forward_ns[round < 0 ? 0 : round] = time_forwards(&subjects[s]);
        }
    printf("%-16s  us: forward, plan; median (p10 .. p90)\n", "backend");
    for (int s = 0; s < count; s++) {
        printf("%-16s", subjects[s].name);
        print_samples(subjects[s].forward_ns);
        print_samples(subjects[s].plan_ns);
        printf("\n");
        attnhost_metadata_destroy(subjects[s].metadata);
        attnhost_backend_destroy(subjects[s].backend);
    }
    attnhost_destroy(host);
    return 0;
}
