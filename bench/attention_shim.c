/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_shim.c: what cpu_attention.py times, compiled by it when it runs.
 *
 *   bench_*   a backend driven through attnhost.h as an engine does: a paged NHD cache whose pages
 *             are shuffled, all layers of a step planned once, then forwarded one by one. Tensors
 *             belong to the caller.
 *   roof_*    what this processor can do at most: fused multiply-adds, and reading memory
 */
#include <attnhost.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- A backend ------------------------------------------------------------------------------- */

/* What is measured; the twin of the class Shape in cpu_attention.py. */
typedef struct bench_shape {
    int32_t decode;     /* 1: one query for each sequence, 0: all tokens are new, no prefix */
    int32_t num_seqs;   /* of the batch */
    int32_t num_tokens; /* keys of each sequence */
    int32_t num_q_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t num_layers;
    int32_t page_size;
    int32_t num_threads;
    uint32_t dtype; /* of all tensors, attn_dtype */
    float sm_scale;
} bench_shape;

/* Where a layer's tensors lie; the twin of the class Tensors. Q, out: [rows, q_heads, dim]; k, v:
 * [rows, kv_heads, dim]; caches: [pages, page_size, kv_heads, dim], page 0 is padding. */
typedef struct bench_tensors {
    void *q, *k, *v, *out, *k_cache, *v_cache;
} bench_tensors;

typedef struct bench {
    bench_shape shape;
    int32_t rows;      /* of q */
    int32_t max_pages; /* of a sequence */
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    attn_layer *layers;
    attn_kv_batch kv_batch;
    attn_batch batch;
    int32_t *pages; /* [seqs][max_pages], which is block table and CSR indices alike */
    int32_t *seq_lens, *prefix_lens, *q_indptr, *kv_indptr, *last_page_len, *request, *req_to_token;
    int64_t *out_cache_loc;
    attn_tensor (*tensors)[ATTN_ROLE_COUNT];
    attn_error error;
    char message[512];
} bench;

static attn_status out_of_memory(bench *b)
{
    snprintf(b->message, sizeof b->message, "out of memory");
    return ATTN_OUT_OF_HOST_MEMORY;
}

static attn_status allocate_arrays(bench *b)
{
    size_t seqs = (size_t)b->shape.num_seqs, layers = (size_t)b->shape.num_layers;
    size_t slots = (size_t)b->max_pages * (size_t)b->shape.page_size;
    b->layers = calloc(layers, sizeof *b->layers);
    b->tensors = calloc(layers, sizeof *b->tensors);
    b->pages = calloc(seqs * (size_t)b->max_pages, sizeof *b->pages);
    b->seq_lens = calloc(seqs, sizeof *b->seq_lens);
    b->prefix_lens = calloc(seqs, sizeof *b->prefix_lens);
    b->q_indptr = calloc(seqs + 1, sizeof *b->q_indptr);
    b->kv_indptr = calloc(seqs + 1, sizeof *b->kv_indptr);
    b->last_page_len = calloc(seqs, sizeof *b->last_page_len);
    b->request = calloc(seqs, sizeof *b->request);
    b->req_to_token = calloc((seqs + 1) * slots, sizeof *b->req_to_token);
    b->out_cache_loc = calloc((size_t)b->rows, sizeof *b->out_cache_loc);
    if (!b->layers || !b->tensors || !b->pages || !b->seq_lens || !b->prefix_lens || !b->q_indptr ||
        !b->kv_indptr || !b->last_page_len || !b->request || !b->req_to_token || !b->out_cache_loc)
        return out_of_memory(b);
    return ATTN_OK;
}

/* Pages 1, 2, ... in an order that no prefetcher knows (Fisher and Yates, fixed seed). */
static void shuffle_pages(bench *b)
{
    int32_t count = b->shape.num_seqs * b->max_pages;
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int32_t j = (int32_t)((random >> 33) % (uint64_t)(i + 1));
        b->pages[i] = b->pages[j];
        b->pages[j] = i + 1;
    }
}

static int32_t slot_of(const bench *b, int32_t seq, int32_t position)
{
    int32_t size = b->shape.page_size;
    return b->pages[seq * b->max_pages + position / size] * size + position % size;
}

static attn_i32_array both(const int32_t *array)
{
    return (attn_i32_array){array, array};
}

static void fill_sequences(bench *b)
{
    int32_t tokens = b->shape.num_tokens, new_tokens = b->shape.decode ? 1 : tokens;
    int32_t slots = b->max_pages * b->shape.page_size;
    for (int32_t s = 0; s < b->shape.num_seqs; s++) {
        b->seq_lens[s] = tokens;
        b->prefix_lens[s] = tokens - new_tokens;
        b->q_indptr[s + 1] = b->q_indptr[s] + new_tokens;
        b->kv_indptr[s + 1] = b->kv_indptr[s] + b->max_pages;
        b->last_page_len[s] = (tokens - 1) % b->shape.page_size + 1;
        b->request[s] = s + 1;
        for (int32_t j = 0; j < tokens; j++)
            b->req_to_token[(s + 1) * slots + j] = slot_of(b, s, j);
        for (int32_t t = 0; t < new_tokens; t++)
            b->out_cache_loc[b->q_indptr[s] + t] = slot_of(b, s, tokens - new_tokens + t);
    }
}

/* All three index forms are right, whichever the backend reads. */
static void fill_batch(bench *b)
{
    b->kv_batch = (attn_kv_batch){
        .struct_size = sizeof b->kv_batch,
        .index_forms = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR,
        .page_size = b->shape.page_size,
        .req_to_token_stride = b->max_pages * b->shape.page_size,
        .block_table_stride = b->max_pages,
        .out_cache_loc = {b->out_cache_loc, b->out_cache_loc},
        .req_to_token = both(b->req_to_token),
        .block_table = both(b->pages),
        .kv_indptr = both(b->kv_indptr),
        .kv_indices = both(b->pages),
        .last_page_len = both(b->last_page_len),
    };
    b->batch = (attn_batch){
        .struct_size = sizeof b->batch,
        .mode = b->shape.decode ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND,
        .num_seqs = b->shape.num_seqs,
        .num_tokens = b->rows,
        .num_real_seqs = b->shape.num_seqs,
        .num_real_tokens = b->rows,
        .max_q_len = b->shape.decode ? 1 : b->shape.num_tokens,
        .max_kv_len = b->shape.num_tokens,
        .num_kv_groups = 1,
        .seq_lens = both(b->seq_lens),
        .prefix_lens = both(b->prefix_lens),
        .q_indptr = both(b->q_indptr),
        .req_pool_indices = both(b->request),
        .kv_groups = &b->kv_batch,
    };
}

static attn_status compose(bench *b, const char *backend)
{
    const bench_shape *shape = &b->shape;
    attn_device device = {.struct_size = sizeof device};
    attn_bounds bounds = {.struct_size = sizeof bounds,
                          .modes = ATTN_MODE_BIT(b->batch.mode),
                          .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                          .max_seqs = shape->num_seqs,
                          .max_tokens = b->rows,
                          .max_q_len = b->batch.max_q_len,
                          .max_kv_len = shape->num_tokens,
                          .max_kv_tokens =
                              (int64_t)shape->num_seqs * b->max_pages * shape->page_size};
    attn_layer_group group = {.struct_size = sizeof group,
                              .kind = ATTN_KIND_SOFTMAX,
                              .attn_type = ATTN_TYPE_DECODER,
                              .num_q_heads = shape->num_q_heads,
                              .num_kv_heads = shape->num_kv_heads,
                              .head_dim = shape->head_dim,
                              .v_head_dim = shape->head_dim,
                              .window_left = -1,
                              .window_right = 0, /* causal */
                              .sm_scale = shape->sm_scale,
                              .num_layers = (uint32_t)shape->num_layers,
                              .layers = b->layers};
    attn_problem problem = {.struct_size = sizeof problem,
                            .device = &device,
                            .group = &group,
                            .bounds = &bounds,
                            .kv_layout = ATTN_LAYOUT_KV_NHD,
                            .q_dtype = shape->dtype,
                            .kv_dtype = shape->dtype,
                            .out_dtype = shape->dtype,
                            .page_size = shape->page_size,
                            .tp_size = 1};
    for (int32_t i = 0; i < shape->num_layers; i++)
        b->layers[i] =
            (attn_layer){.struct_size = sizeof(attn_layer), .layer_id = i, .kv_buffer = i};
    attn_status status = attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, &b->error);
    if (status == ATTN_OK)
        status = attnhost_compose(b->host, backend, &problem, 1, &b->backend, &b->error);
    if (status == ATTN_OK)
        status = attnhost_backend_prepare(b->backend, NULL, NULL, &b->error);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(b->backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                          &b->metadata, &b->error);
    return status;
}

static attn_status open_backend(bench *b, const char *plugin, const char *backend)
{
    attnhost_params params = {.struct_size = sizeof params,
                              .num_threads = (uint32_t)b->shape.num_threads,
                              .log_level = ATTN_LOG_WARNING};
    attn_status status = allocate_arrays(b);
    if (status != ATTN_OK)
        return status;
    shuffle_pages(b);
    fill_sequences(b);
    fill_batch(b);
    status = attnhost_create(&params, &b->host, &b->error);
    if (status == ATTN_OK)
        status = plugin ? attnhost_load_plugin(b->host, plugin, &b->error)
                        : attnhost_load_installed(b->host, &b->error);
    return status == ATTN_OK ? compose(b, backend) : status;
}

/* Make a backend for the shape. `plugin` NULL = the installed ones. NULL only without memory; else
 * *status tells, and bench_message why. */
bench *bench_create(const char *plugin, const char *backend, const bench_shape *shape,
                    attn_status *status)
{
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->shape = *shape;
    b->rows = shape->num_seqs * (shape->decode ? 1 : shape->num_tokens);
    b->max_pages = (shape->num_tokens + shape->page_size - 1) / shape->page_size;
    b->error = (attn_error){
        .struct_size = sizeof b->error, .capacity = sizeof b->message, .message = b->message};
    *status = open_backend(b, plugin, backend);
    return b;
}

void bench_destroy(bench *b)
{
    attnhost_metadata_destroy(b->metadata);
    attnhost_backend_destroy(b->backend);
    attnhost_destroy(b->host);
    free(b->layers);
    free(b->tensors);
    free(b->pages);
    free(b->seq_lens);
    free(b->prefix_lens);
    free(b->q_indptr);
    free(b->kv_indptr);
    free(b->last_page_len);
    free(b->request);
    free(b->req_to_token);
    free(b->out_cache_loc);
    free(b);
}

/* Why the last call failed. Lives as long as the bench. */
const char *bench_message(const bench *b)
{
    return b->message;
}

/* Pages of a cache, page 0 included. */
int32_t bench_num_pages(const bench *b)
{
    return b->shape.num_seqs * b->max_pages + 1;
}

/* Slot of a sequence's position. */
int32_t bench_slot(const bench *b, int32_t seq, int32_t position)
{
    return slot_of(b, seq, position);
}

/* Give a layer its tensors. */
attn_status bench_bind(bench *b, int32_t layer, const bench_tensors *t)
{
    const bench_shape *s = &b->shape;
    const int64_t q[] = {b->rows, s->num_q_heads, s->head_dim};
    const int64_t kv[] = {b->rows, s->num_kv_heads, s->head_dim};
    const int64_t cache[] = {bench_num_pages(b), s->page_size, s->num_kv_heads, s->head_dim};
    const struct {
        uint32_t role, ndim;
        void *data;
        const int64_t *shape;
    } views[] = {
        {ATTN_ROLE_Q, 3, t->q, q},
        {ATTN_ROLE_K, 3, t->k, kv},
        {ATTN_ROLE_V, 3, t->v, kv},
        {ATTN_ROLE_OUT, 3, t->out, q},
        {ATTN_ROLE_K_CACHE, 4, t->k_cache, cache},
        {ATTN_ROLE_V_CACHE, 4, t->v_cache, cache},
    };
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < sizeof views / sizeof views[0] && status == ATTN_OK; i++)
        status =
            attnhost_tensor_init(&b->tensors[layer][views[i].role], views[i].data, ATTN_DEVICE_CPU,
                                 0, s->dtype, views[i].ndim, views[i].shape, NULL, &b->error);
    return status;
}

static attn_status forward(bench *b, int32_t layer)
{
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
    attn_forward_args args = {.struct_size = sizeof args,
                              .flags = ATTN_FORWARD_SAVE_KV,
                              .num_operands = ATTN_ROLE_COUNT,
                              .operands = operands};
    for (uint32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V_CACHE; role++)
        if (b->tensors[layer][role].struct_size != 0)
            operands[role] = &b->tensors[layer][role];
    return attnhost_forward(b->metadata, layer, &args, NULL, &b->error);
}

/* `count` times a step: plan the batch, forward every layer. */
attn_status bench_steps(bench *b, int32_t count)
{
    attn_status status = ATTN_OK;
    for (int32_t step = 0; step < count && status == ATTN_OK; step++) {
        status = attnhost_init_forward_metadata(b->metadata, &b->batch, NULL, &b->error);
        for (int32_t layer = 0; layer < b->shape.num_layers && status == ATTN_OK; layer++)
            status = forward(b, layer);
    }
    return status;
}

/* ---- Roofs ----------------------------------------------------------------------------------- */

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));

enum {
    SUMS = 12,
    MAX_THREADS = 256
}; /* sums: more than latency times pipes, fewer than registers */

typedef struct roof {
    pthread_barrier_t *start;
    int64_t iterations;
    const char *data; /* NULL: multiply-adds; else `iterations` groups of SUMS vectors are read */
    double seconds;
} roof;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void multiply_add(int64_t iterations)
{
    volatile float factors[2] = {0.999f, 0.001f}; /* volatile: nothing may be known of them */
    const vf a = (vf){0} + factors[0], c = (vf){0} + factors[1];
    vf sum[SUMS];
    for (int i = 0; i < SUMS; i++)
        sum[i] = (vf){0} + (float)i;
    for (int64_t n = 0; n < iterations; n++)
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            sum[i] = sum[i] * a + c;
    for (int i = 1; i < SUMS; i++)
        sum[0] += sum[i];
    factors[0] = sum[0][0];
}

static void read_memory(const char *data, int64_t iterations)
{
    volatile int32_t sink;
    vi seen[SUMS] = {{0}};
    for (int64_t n = 0; n < iterations; n++, data += SUMS * sizeof(vi))
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            seen[i] |= ((const vi *)(const void *)data)[i];
    for (int i = 1; i < SUMS; i++)
        seen[0] |= seen[i];
    sink = seen[0][0];
    (void)sink;
}

static void *roof_thread(void *arg)
{
    roof *r = arg;
    pthread_barrier_wait(r->start);
    double start = now();
    if (r->data)
        read_memory(r->data, r->iterations);
    else
        multiply_add(r->iterations);
    r->seconds = now() - start;
    return NULL;
}

/* Seconds of the slowest thread; < 0 if threads cannot be made. The caller is one of them. */
static double roof_run(int32_t num_threads, int64_t iterations, const char *data)
{
    roof roofs[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    pthread_barrier_t start;
    double seconds = 0;
    if (num_threads > MAX_THREADS || pthread_barrier_init(&start, NULL, (unsigned)num_threads))
        return -1;
    for (int32_t i = 0; i < num_threads; i++) {
        const char *part = data ? data + (size_t)(i * iterations) * SUMS * sizeof(vi) : NULL;
        roofs[i] = (roof){.start = &start, .iterations = iterations, .data = part};
        if (i > 0 && pthread_create(&threads[i], NULL, roof_thread, &roofs[i]) != 0)
            abort(); /* the others wait at the barrier for ever */
    }
    roof_thread(&roofs[0]);
    for (int32_t i = 0; i < num_threads; i++) {
        if (i > 0)
            pthread_join(threads[i], NULL);
        seconds = roofs[i].seconds > seconds ? roofs[i].seconds : seconds;
    }
    pthread_barrier_destroy(&start);
    return seconds;
}

/* fp32 operations a second of all threads, an addition and a multiplication each count. */
double roof_flops(int32_t num_threads)
{
    const int64_t iterations = 1000000;
    double seconds = roof_run(num_threads, iterations, NULL);
    return 2.0 * SUMS * LANES * (double)iterations * num_threads / seconds;
}

/* Bytes a second that all threads read from `data`, 64-byte aligned. */
double roof_bandwidth(int32_t num_threads, const void *data, int64_t bytes)
{
    int64_t iterations = bytes / num_threads / (int64_t)(SUMS * sizeof(vi));
    double seconds = roof_run(num_threads, iterations, data);
    return (double)(iterations * num_threads) * SUMS * sizeof(vi) / seconds;
}
