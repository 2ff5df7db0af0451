/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_shim.c: a backend through attnhost.h, for the scripts here. */
#include "attention_shim.h"
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    shim shim;
    bench_setup setup;
    int32_t rows;      /* of q */
    int32_t max_pages; /* of a sequence */
    attn_scale scale;
    attn_kv_batch kv_batch;
    attn_shared_prefix prefix;
    attn_speculation speculation;
    int64_t *out_cache_loc; /* [rows]; this and the arrays below lie in shim.index */
    int32_t *pages;         /* [seqs][max_pages], which is block table and CSR indices alike */
    int32_t *req_to_token;  /* [seqs + 1][max_pages * page_size] */
    int32_t *seq_lens, *prefix_lens, *last_page_len, *request; /* [seqs] */
    int32_t *q_indptr, *kv_indptr, *run_indptr;                /* [seqs + 1] */
    int32_t *run_len;                                          /* [seqs] */
    int32_t *num_real;                                         /* sequences, rows */
};

/* ---- The batch ------------------------------------------------------------------------------- */

/* Where the arrays lie in a block that begins at `index`; NULL: how large it is, alone. */
static size_t lay_out_index(bench *b, char *index)
{
    size_t seqs = (size_t)b->setup.num_seqs, pages = (size_t)b->max_pages;
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
        {&b->run_indptr, seqs + 1},
        {&b->run_len, seqs},
        {&b->num_real, 2},
    };
    size_t at = (size_t)b->rows * sizeof *b->out_cache_loc;
    b->out_cache_loc = (int64_t *)(void *)index;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].array = index ? (int32_t *)(void *)(index + at) : NULL;
        at += parts[i].count * sizeof(int32_t);
    }
    return at;
}

static int32_t slot_of(const bench *b, int32_t seq, int32_t position)
{
    int32_t size = b->setup.page_size;
    return b->pages[seq * b->max_pages + position / size] * size + position % size;
}

/* All sequences are one run; a graph has room for as many runs as sequences. */
static void share_pages(bench *b)
{
    int32_t shared = b->setup.num_shared / b->setup.page_size;
    for (int32_t s = 1; s < b->setup.num_seqs; s++)
        memcpy(b->pages + s * b->max_pages, b->pages, (size_t)shared * sizeof *b->pages);
    for (int32_t s = 1; s <= b->setup.num_seqs; s++)
        b->run_indptr[s] = b->setup.num_seqs;
    b->run_len[0] = shared * b->setup.page_size;
}

static void fill_index(bench *b)
{
    int32_t tokens = b->setup.num_tokens, new_tokens = b->setup.num_new;
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

/* All three index forms are right, whichever the backend reads. */
static void fill_batch(shim *s)
{
    bench *b = (bench *)s; /* which begins with it */
    const bench_setup *setup = &b->setup;
    b->kv_batch = (attn_kv_batch){
        .struct_size = sizeof b->kv_batch,
        .index_forms = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR,
        .page_size = setup->page_size,
        .req_to_token_stride = b->max_pages * setup->page_size,
        .block_table_stride = b->max_pages,
        .out_cache_loc = {b->out_cache_loc, (const int64_t *)(const void *)s->index_copy},
        .req_to_token = shim_both(&b->shim, b->req_to_token),
        .block_table = shim_both(&b->shim, b->pages),
        .kv_indptr = shim_both(&b->shim, b->kv_indptr),
        .kv_indices = shim_both(&b->shim, b->pages),
        .last_page_len = shim_both(&b->shim, b->last_page_len),
    };
    b->prefix = (attn_shared_prefix){.struct_size = sizeof b->prefix,
                                     .num_groups = (uint32_t)setup->num_seqs,
                                     .seq_indptr = shim_both(&b->shim, b->run_indptr),
                                     .prefix_len = shim_both(&b->shim, b->run_len)};
    b->speculation = (attn_speculation){
        .struct_size = sizeof b->speculation, .num_draft_tokens = setup->num_new, .top_k = 1};
    b->shim.batch = (attn_batch){
        .struct_size = sizeof b->shim.batch,
        .mode = (uint32_t)setup->mode,
        .num_seqs = setup->num_seqs,
        .num_tokens = b->rows,
        .num_real_seqs = setup->num_seqs,
        .num_real_tokens = b->rows,
        .max_q_len = setup->num_new,
        .max_kv_len = setup->num_tokens,
        .num_kv_groups = 1,
        .num_prefix_levels = setup->num_shared > 0,
        .shared_prefix = setup->num_shared > 0 ? &b->prefix : NULL,
        .num_real_seqs_device = setup->graph ? shim_both(&b->shim, b->num_real).device : NULL,
        .num_real_tokens_device = setup->graph ? shim_both(&b->shim, b->num_real + 1).device : NULL,
        .seq_lens = shim_both(&b->shim, b->seq_lens),
        .prefix_lens = shim_both(&b->shim, b->prefix_lens),
        .q_indptr = shim_both(&b->shim, b->q_indptr),
        .req_pool_indices = shim_both(&b->shim, b->request),
        .kv_groups = &b->kv_batch,
        .speculation = setup->mode == ATTN_MODE_TARGET_VERIFY ? &b->speculation : NULL,
    };
}

/* ---- The backend ----------------------------------------------------------------------------- */

/* Where there is one, keys that are not saved are in the cache already. */
static int has_prefix(const bench_setup *setup)
{
    return setup->mode == ATTN_MODE_DECODE || setup->num_new < setup->num_tokens;
}

static attn_bounds bounds_of(const bench *b)
{
    const bench_setup *setup = &b->setup;
    return (attn_bounds){
        .struct_size = sizeof(attn_bounds),
        .modes = ATTN_MODE_BIT((uint32_t)setup->mode),
        .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
        .uses = setup->num_shared > 0                 ? (uint32_t)ATTN_USES_SHARED_PREFIX
                : setup->save_kv || has_prefix(setup) ? 0
                                                      : (uint32_t)ATTN_USES_UNSAVED_KV,
        .max_prefix_levels = setup->num_shared > 0,
        .max_seqs = setup->num_seqs,
        .max_tokens = b->rows,
        .max_q_len = setup->num_new,
        .max_kv_len = setup->num_tokens,
        .max_kv_tokens = (int64_t)setup->num_seqs * b->max_pages * setup->page_size};
}

static attn_layer_group group_of(const bench *b)
{
    const bench_setup *setup = &b->setup;
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
                              .layers = b->shim.layers};
}

static uint32_t graph_level_of(const bench_setup *setup)
{
    if (!setup->graph)
        return ATTN_GRAPH_NEVER;
    return setup->mode == ATTN_MODE_DECODE ? ATTN_GRAPH_SINGLE_TOKEN : ATTN_GRAPH_UNIFORM;
}

static attn_status compose(bench *b)
{
    const bench_setup *setup = &b->setup;
    attn_bounds bounds = bounds_of(b);
    attn_layer_group group = group_of(b);
    attn_problem problem = {.struct_size = sizeof problem,
                            .graph_level = graph_level_of(setup),
                            .group = &group,
                            .bounds = &bounds,
                            .kv_layout = ATTN_LAYOUT_KV_NHD,
                            .q_dtype = setup->dtype,
                            .kv_dtype = setup->kv_dtype,
                            .out_dtype = setup->dtype,
                            .page_size = setup->page_size,
                            .tp_size = 1};
    return shim_compose(&b->shim, setup->backend, setup->options, setup->num_options, &problem,
                        setup->graph ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER);
}

static attn_status open_backend(bench *b)
{
    const bench_setup *setup = &b->setup;
    b->rows = setup->num_seqs * setup->num_new;
    b->max_pages = (setup->num_tokens + setup->page_size - 1) / setup->page_size;
    const shim_params params = {.device_type = setup->device_type,
                                .num_layers = setup->num_layers,
                                .num_threads = setup->num_threads,
                                .index_bytes = lay_out_index(b, NULL),
                                .describe = fill_batch,
                                .plugin = setup->plugin};
    attn_status status = shim_open(&b->shim, &params);
    if (status != ATTN_OK)
        return status;
    lay_out_index(b, b->shim.index);
    shim_shuffle_pages(b->pages, setup->num_seqs * b->max_pages);
    share_pages(b);
    fill_index(b);
    if (setup->device_type == ATTN_DEVICE_CPU)
        bench_place_index(b, b->shim.index);
    b->scale = (attn_scale){.struct_size = sizeof b->scale,
                            .granularity = ATTN_SCALE_PER_TENSOR,
                            .count = 1,
                            .host = &b->setup.kv_scale};
    if (setup->kv_dtype != setup->dtype)
        b->shim.scales[ATTN_ROLE_K_CACHE] = b->shim.scales[ATTN_ROLE_V_CACHE] = &b->scale;
    b->shim.flags = setup->save_kv ? ATTN_FORWARD_SAVE_KV : 0;
    return compose(b);
}

bench *bench_create(const bench_setup *setup, attn_status *status)
{
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *status = shim_init(&b->shim, "bench_setup", setup->struct_size, sizeof *setup);
    if (*status == ATTN_OK) {
        b->setup = *setup;
        *status = open_backend(b);
        b->setup.plugin = b->setup.backend = NULL; /* the caller's, for this call alone */
        b->setup.options = NULL;
    }
    return b;
}

void bench_destroy(bench *b)
{
    shim_destroy(&b->shim);
}

/* ---- Use ------------------------------------------------------------------------------------- */

const char *bench_message(const bench *b)
{
    return shim_message(&b->shim);
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
    return shim_index(&b->shim, bytes);
}

void bench_place_index(bench *b, void *device)
{
    shim_place_index(&b->shim, device);
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
    for (size_t i = 0; i < sizeof views / sizeof views[0] && status == ATTN_OK; i++)
        status = shim_bind(&b->shim, layer, views[i].role, views[i].data, views[i].dtype,
                           views[i].ndim, views[i].shape);
    return status;
}

attn_status bench_plan(bench *b, void *stream)
{
    return shim_plan(&b->shim, stream);
}

attn_status bench_forward(bench *b, int32_t layer, void *stream, int32_t capturing)
{
    return shim_forward(&b->shim, layer, capturing ? ATTN_FORWARD_CAPTURING : 0, stream);
}

attn_status bench_steps(bench *b, int32_t count)
{
    return shim_steps(&b->shim, count);
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
        snprintf(b->shim.message, sizeof b->shim.message, "cuGraphLaunch: %d", result);
        return ATTN_INTERNAL;
    }
    return status;
}
