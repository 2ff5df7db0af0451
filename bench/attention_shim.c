/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_shim.c: a backend behind attnhost.h, for the scripts here.
 */
#include "attention_shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    bench_setup setup;
    int32_t rows;      /* of q */
    int32_t max_pages; /* of a sequence */
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    attn_layer *layers;
    attn_tensor (*tensors)[ATTN_ROLE_COUNT];
    attn_scale scale;
    attn_kv_batch kv_batch;
    attn_batch batch;
    char *index; /* the block that the arrays below lie in */
    size_t index_bytes;
    const char *index_copy; /* the block where the device reads it; NULL = not placed yet */
    int64_t *out_cache_loc; /* [rows] */
    int32_t *pages;         /* [seqs][max_pages], which is block table and CSR indices alike */
    int32_t *req_to_token;  /* [seqs + 1][max_pages * page_size] */
    int32_t *seq_lens, *prefix_lens, *last_page_len, *request; /* [seqs] */
    int32_t *q_indptr, *kv_indptr;                             /* [seqs + 1] */
    int32_t *num_real;                                         /* sequences, rows */
    attn_error error;
    char message[512];
};

/* ---- The batch ------------------------------------------------------------------------------- */

static attn_status out_of_memory(bench *b)
{
    snprintf(b->message, sizeof b->message, "out of memory");
    return ATTN_OUT_OF_HOST_MEMORY;
}

static attn_status allocate_index(bench *b)
{
    size_t seqs = (size_t)b->setup.num_seqs, pages = (size_t)b->max_pages;
    size_t total = (size_t)b->rows * sizeof *b->out_cache_loc;
    const struct {
        int32_t **array;
        size_t count;
    } parts[] = {
        {&b->pages, seqs * pages},
        {&b->req_to_token, (seqs + 1) * pages * (size_t)b->setup.page_size},
        {&b->seq_lens, seqs},
        {&b->prefix_lens, seqs},
        {&b->last_page_len, seqs},
        {&b->request, seqs},
        {&b->q_indptr, seqs + 1},
        {&b->kv_indptr, seqs + 1},
        {&b->num_real, 2},
    };
    size_t at = total;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        total += parts[i].count * sizeof(int32_t);
    b->index = calloc(1, total);
    if (!b->index)
        return out_of_memory(b);
    b->index_bytes = total;
    b->out_cache_loc = (int64_t *)(void *)b->index;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].array = (int32_t *)(void *)(b->index + at);
        at += parts[i].count * sizeof(int32_t);
    }
    return ATTN_OK;
}

/* Pages 1, 2, ... in an order that no prefetcher knows (Fisher and Yates, fixed seed). */
static void shuffle_pages(bench *b)
{
    int32_t count = b->setup.num_seqs * b->max_pages;
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
    int32_t size = b->setup.page_size;
    return b->pages[seq * b->max_pages + position / size] * size + position % size;
}

static void fill_index(bench *b)
{
    int32_t tokens = b->setup.num_tokens, new_tokens = b->setup.decode ? 1 : tokens;
    size_t slots = (size_t)b->max_pages * (size_t)b->setup.page_size;
    for (int32_t s = 0; s < b->setup.num_seqs; s++) {
        int32_t *row = b->req_to_token + (size_t)(s + 1) * slots;
        b->seq_lens[s] = tokens;
        b->prefix_lens[s] = tokens - new_tokens;
        b->q_indptr[s + 1] = b->q_indptr[s] + new_tokens;
        b->kv_indptr[s + 1] = b->kv_indptr[s] + b->max_pages;
        b->last_page_len[s] = (tokens - 1) % b->setup.page_size + 1;
        b->request[s] = s + 1;
        for (int32_t j = 0; j < tokens; j++)
            row[j] = slot_of(b, s, j);
        for (int32_t t = 0; t < new_tokens; t++)
            b->out_cache_loc[b->q_indptr[s] + t] = slot_of(b, s, tokens - new_tokens + t);
    }
    b->num_real[0] = b->setup.num_seqs;
    b->num_real[1] = b->rows;
}

/* An array of the block, here and in the device's copy. */
static attn_i32_array both(const bench *b, const int32_t *array)
{
    const char *copy = b->index_copy + ((const char *)array - b->index);
    return (attn_i32_array){array, (const int32_t *)(const void *)copy};
}

/* All three index forms are right, whichever the backend reads. */
static void fill_batch(bench *b)
{
    const bench_setup *setup = &b->setup;
    b->kv_batch = (attn_kv_batch){
        .struct_size = sizeof b->kv_batch,
        .index_forms = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR,
        .page_size = setup->page_size,
        .req_to_token_stride = b->max_pages * setup->page_size,
        .block_table_stride = b->max_pages,
        .out_cache_loc = {b->out_cache_loc, (const int64_t *)(const void *)b->index_copy},
        .req_to_token = both(b, b->req_to_token),
        .block_table = both(b, b->pages),
        .kv_indptr = both(b, b->kv_indptr),
        .kv_indices = both(b, b->pages),
        .last_page_len = both(b, b->last_page_len),
    };
    b->batch = (attn_batch){
        .struct_size = sizeof b->batch,
        .mode = setup->decode ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND,
        .num_seqs = setup->num_seqs,
        .num_tokens = b->rows,
        .num_real_seqs = setup->num_seqs,
        .num_real_tokens = b->rows,
        .max_q_len = setup->decode ? 1 : setup->num_tokens,
        .max_kv_len = setup->num_tokens,
        .num_kv_groups = 1,
        .num_real_seqs_device = setup->graph ? both(b, b->num_real).device : NULL,
        .num_real_tokens_device = setup->graph ? both(b, b->num_real + 1).device : NULL,
        .seq_lens = both(b, b->seq_lens),
        .prefix_lens = both(b, b->prefix_lens),
        .q_indptr = both(b, b->q_indptr),
        .req_pool_indices = both(b, b->request),
        .kv_groups = &b->kv_batch,
    };
}

/* ---- The backend ----------------------------------------------------------------------------- */

static attn_bounds bounds_of(const bench *b)
{
    const bench_setup *setup = &b->setup;
    return (attn_bounds){
        .struct_size = sizeof(attn_bounds),
        .modes = ATTN_MODE_BIT(setup->decode ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND),
        .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
        .uses = setup->decode || setup->save_kv ? 0 : ATTN_USES_UNSAVED_KV,
        .max_seqs = setup->num_seqs,
        .max_tokens = b->rows,
        .max_q_len = setup->decode ? 1 : setup->num_tokens,
        .max_kv_len = setup->num_tokens,
        .max_kv_tokens = (int64_t)setup->num_seqs * b->max_pages * setup->page_size};
}

static attn_layer_group group_of(const bench *b)
{
    const bench_setup *setup = &b->setup;
    for (int32_t i = 0; i < setup->num_layers; i++)
        b->layers[i] =
            (attn_layer){.struct_size = sizeof(attn_layer), .layer_id = i, .kv_buffer = i};
    return (attn_layer_group){.struct_size = sizeof(attn_layer_group),
                              .kind = ATTN_KIND_SOFTMAX,
                              .attn_type = ATTN_TYPE_DECODER,
                              .num_q_heads = setup->num_q_heads,
                              .num_kv_heads = setup->num_kv_heads,
                              .head_dim = setup->head_dim,
                              .v_head_dim = setup->head_dim,
                              .window_left = -1,
                              .window_right = 0, /* causal */
                              .sm_scale = setup->sm_scale,
                              .kv_scale_granularity = setup->kv_dtype == setup->dtype
                                                          ? ATTN_SCALE_NONE
                                                          : ATTN_SCALE_PER_TENSOR,
                              .num_layers = (uint32_t)setup->num_layers,
                              .layers = b->layers};
}

static uint32_t graph_level_of(const bench_setup *setup)
{
    if (!setup->graph)
        return ATTN_GRAPH_NEVER;
    return setup->decode ? ATTN_GRAPH_SINGLE_TOKEN : ATTN_GRAPH_UNIFORM;
}

static attn_status compose(bench *b)
{
    static const char name[] = "bench"; /* the backend's own section, with the options */
    const bench_setup *setup = &b->setup;
    attn_device device = {.struct_size = sizeof device};
    attn_bounds bounds = bounds_of(b);
    attn_layer_group group = group_of(b);
    attn_problem problem = {.struct_size = sizeof problem,
                            .graph_level = graph_level_of(setup),
                            .device = &device,
                            .group = &group,
                            .bounds = &bounds,
                            .kv_layout = ATTN_LAYOUT_KV_NHD,
                            .q_dtype = setup->dtype,
                            .kv_dtype = setup->kv_dtype,
                            .out_dtype = setup->dtype,
                            .page_size = setup->page_size,
                            .tp_size = 1};
    attn_status status = attnhost_device_init(&device, setup->device_type, 0, &b->error);
    if (status == ATTN_OK)
        status = attnhost_define_backend(b->host, name, setup->backend, setup->options,
                                         setup->num_options, &b->error);
    if (status == ATTN_OK)
        status = attnhost_compose(b->host, name, &problem, 1, &b->backend, &b->error);
    if (status == ATTN_OK)
        status = attnhost_backend_prepare(b->backend, NULL, NULL, &b->error);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(b->backend,
                                          setup->graph ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER,
                                          &bounds, NULL, &b->metadata, &b->error);
    return status;
}

static attn_status load(bench *b)
{
    const char *plugin = b->setup.plugin;
    if (!plugin)
        return attnhost_load_installed(b->host, &b->error);
    if (*plugin && plugin[strlen(plugin) - 1] == '/')
        return attnhost_load_directory(b->host, plugin, &b->error);
    return attnhost_load_plugin(b->host, plugin, &b->error);
}

static attn_status open_backend(bench *b)
{
    attnhost_params params = {.struct_size = sizeof params,
                              .num_threads = (uint32_t)b->setup.num_threads,
                              .log_level = ATTN_LOG_WARNING};
    b->layers = calloc((size_t)b->setup.num_layers, sizeof *b->layers);
    b->tensors = calloc((size_t)b->setup.num_layers, sizeof *b->tensors);
    if (!b->layers || !b->tensors)
        return out_of_memory(b);
    attn_status status = allocate_index(b);
    if (status != ATTN_OK)
        return status;
    shuffle_pages(b);
    fill_index(b);
    if (b->setup.device_type == ATTN_DEVICE_CPU)
        bench_place_index(b, b->index);
    status = attnhost_create(&params, &b->host, &b->error);
    if (status == ATTN_OK)
        status = load(b);
    if (status == ATTN_OK)
        status = compose(b);
    b->setup.plugin = b->setup.backend = NULL; /* the caller's, for this call alone */
    b->setup.options = NULL;
    return status;
}

bench *bench_create(const bench_setup *setup, attn_status *status)
{
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->error = (attn_error){
        .struct_size = sizeof b->error, .capacity = sizeof b->message, .message = b->message};
    *status = ATTN_INVALID_ARGUMENT;
    if (setup->struct_size != sizeof *setup) {
        snprintf(b->message, sizeof b->message, "bench_setup of %u bytes: accepted %zu",
                 setup->struct_size, sizeof *setup);
        return b;
    }
    b->setup = *setup;
    b->rows = setup->num_seqs * (setup->decode ? 1 : setup->num_tokens);
    b->max_pages = (setup->num_tokens + setup->page_size - 1) / setup->page_size;
    b->scale = (attn_scale){.struct_size = sizeof b->scale,
                            .granularity = ATTN_SCALE_PER_TENSOR,
                            .count = 1,
                            .host = &b->setup.kv_scale};
    *status = open_backend(b);
    return b;
}

void bench_destroy(bench *b)
{
    attnhost_metadata_destroy(b->metadata);
    attnhost_backend_destroy(b->backend);
    attnhost_destroy(b->host);
    free(b->layers);
    free(b->tensors);
    free(b->index);
    free(b);
}

/* ---- Use ------------------------------------------------------------------------------------- */

const char *bench_message(const bench *b)
{
    return b->message;
}

int32_t bench_num_pages(const bench *b)
{
    return b->setup.num_seqs * b->max_pages + 1;
}

const int32_t *bench_pages(const bench *b, int32_t *stride)
{
    *stride = b->max_pages;
    return b->pages;
}

const void *bench_index(const bench *b, int64_t *bytes)
{
    *bytes = (int64_t)b->index_bytes;
    return b->index;
}

void bench_place_index(bench *b, void *device)
{
    b->index_copy = device;
    fill_batch(b);
}

attn_status bench_bind(bench *b, int32_t layer, const bench_tensors *t)
{
    const bench_setup *s = &b->setup;
    const int64_t q[] = {b->rows, s->num_q_heads, s->head_dim};
    const int64_t kv[] = {b->rows, s->num_kv_heads, s->head_dim};
    const int64_t cache[] = {bench_num_pages(b), s->page_size, s->num_kv_heads, s->head_dim};
    const struct {
        uint32_t role, ndim;
        attn_dtype dtype;
        void *data;
        const int64_t *shape;
    } views[] = {
        {ATTN_ROLE_Q, 3, s->dtype, t->q, q},
        {ATTN_ROLE_K, 3, s->dtype, t->k, kv},
        {ATTN_ROLE_V, 3, s->dtype, t->v, kv},
        {ATTN_ROLE_OUT, 3, s->dtype, t->out, q},
        {ATTN_ROLE_K_CACHE, 4, s->kv_dtype, t->k_cache, cache},
        {ATTN_ROLE_V_CACHE, 4, s->kv_dtype, t->v_cache, cache},
    };
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < sizeof views / sizeof views[0] && status == ATTN_OK; i++) {
        attn_tensor *tensor = &b->tensors[layer][views[i].role];
        *tensor = (attn_tensor){0};
        if (views[i].data)
            status = attnhost_tensor_init(tensor, views[i].data, s->device_type, 0, views[i].dtype,
                                          views[i].ndim, views[i].shape, NULL, &b->error);
    }
    return status;
}

attn_status bench_plan(bench *b, void *stream)
{
    if (!b->index_copy) {
        snprintf(b->message, sizeof b->message, "bench_plan before bench_place_index");
        return ATTN_BAD_STATE;
    }
    return attnhost_init_forward_metadata(b->metadata, &b->batch, stream, &b->error);
}

attn_status bench_forward(bench *b, int32_t layer, void *stream, int32_t capturing)
{
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
    const attn_scale *scales[ATTN_ROLE_COUNT] = {NULL};
    attn_forward_args args = {.struct_size = sizeof args,
                              .flags = (b->setup.save_kv ? ATTN_FORWARD_SAVE_KV : 0u) |
                                       (capturing ? ATTN_FORWARD_CAPTURING : 0u),
                              .num_operands = ATTN_ROLE_COUNT,
                              .num_scales = ATTN_ROLE_COUNT,
                              .operands = operands,
                              .scales = scales};
    for (uint32_t role = ATTN_ROLE_Q; role <= ATTN_ROLE_V_CACHE; role++)
        if (b->tensors[layer][role].struct_size != 0)
            operands[role] = &b->tensors[layer][role];
    if (b->setup.kv_dtype != b->setup.dtype)
        scales[ATTN_ROLE_K_CACHE] = scales[ATTN_ROLE_V_CACHE] = &b->scale;
    return attnhost_forward(b->metadata, layer, &args, stream, &b->error);
}

attn_status bench_steps(bench *b, int32_t count)
{
    attn_status status = ATTN_OK;
    for (int32_t step = 0; step < count && status == ATTN_OK; step++) {
        status = bench_plan(b, NULL);
        for (int32_t layer = 0; layer < b->setup.num_layers && status == ATTN_OK; layer++)
            status = bench_forward(b, layer, NULL, 0);
    }
    return status;
}

attn_status bench_step_times(bench *b, bench_graph_launch launch, void *graph, void *stream,
                             double seconds[2])
{
    double begin = bench_now();
    attn_status status = bench_plan(b, stream);
    double planned = bench_now();
    int result = status == ATTN_OK ? launch(graph, stream) : 0;
    double launched = bench_now();
    seconds[0] = planned - begin;
    seconds[1] = launched - planned;
    if (result != 0) {
        snprintf(b->message, sizeof b->message, "cuGraphLaunch: %d", result);
        return ATTN_INTERNAL;
    }
    return status;
}
