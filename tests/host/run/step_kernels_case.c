/* SPDX-License-Identifier: Apache-2.0
 *
 * step_kernels_case.c: random work for the host's kernels, done twice and compared.
 */
#include "tests/host/run/step_kernels_case.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/mix.h"
#include "host/workload/generator_linear.h"

#define GOOD(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&c->error))

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

/* ---- A case ---------------------------------------------------------------------------------- */

uint64_t step_case_random(struct step_case *c, uint64_t count)
{
    return mix_below((uint32_t)(mix_stream(c->seed, c->num_random++) >> 32), count);
}

/* In [least, most]. */
static int32_t between(struct step_case *c, int32_t least, int32_t most)
{
    return least + (int32_t)step_case_random(c, (uint64_t)(most - least) + 1);
}

#define ONE_OF(array) ((array)[step_case_random(c, COUNT(array))])

/* Some with a common prefix. */
static void make_workload(struct step_case *c)
{
    static const double scales[] = {1, 0.31, 0.05, 0.003};
    for (int r = 0; r < CASE_REQUESTS; r++) {
        int32_t input = between(c, 1, CASE_HASH_IDS * 512);
        for (int i = 0; i < CASE_HASH_IDS; i++)
            c->hash_ids[r][i] = i < 3 ? i + 100 : between(c, 0, 1 << 30);
        c->requests[r] = (trace_request){
            .input_length = input,
            .output_length = between(c, 0, 300),
            .num_hash_ids = r == 1 ? 0 : (input + 512 - 1) / 512,
            .hash_ids = c->hash_ids[r],
        };
    }
    struct trace trace = {
        .block_tokens = 512, .num_requests = CASE_REQUESTS, .requests = c->requests};
    GOOD(workload_init(
        &c->workload, &trace,
        &(workload_params){.length_scale = ONE_OF(scales), .max_context_len = 1 << 20},
        &c->error.base));
}

static void make_layers(struct step_case *c)
{
    static const int32_t dims[] = {1, 3, 7, 8, 16, 40, 64, 80, 128, 129};
    static const int32_t rights[] = {0, -1, 3};
    for (int32_t l = 0; l < CASE_LAYERS; l++) {
        generator_layer *layer = &c->layers[l];
        layer->kv_layer = l;
        layer->num_kv_heads = between(c, 1, 3);
        layer->head_dim = ONE_OF(dims);
        layer->v_head_dim = step_case_random(c, 8) == 0 ? 0 : ONE_OF(dims);
        if (l == CASE_LAYERS - 1) /* shares the keys and values of another one */
            *layer = c->layers[step_case_random(c, CASE_LAYERS - 1)];
        layer->num_q_heads = layer->num_kv_heads * between(c, 1, 3);
        layer->window_left = between(c, -1, 30);
        layer->window_right = ONE_OF(rights);
        layer->attention_chunk = between(c, 0, 1) * 24;
        layer->num_keys = step_case_random(c, 4) == 0 ? between(c, 1, 50) : 0;
    }
    GOOD(generator_init(&c->generator, mix_word(c->seed), c->layers, CASE_LAYERS, between(c, 1, 32),
                        between(c, 0, 100), &c->error.base));
}

void step_case_init(struct step_case *c, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    host_error_init(&c->error);
    c->seed = mix_word(seed + 1);
    make_workload(c);
    make_layers(c);
}

void step_case_finish(struct step_case *c)
{
    workload_finish(&c->workload);
}

void step_case_create(struct step_case *c, struct device *device, uint64_t seed)
{
    step_case_init(c, seed);
    GOOD(threads_create(2, &c->threads, &c->error.base));
    GOOD(device_open(ATTN_DEVICE_CPU, 0, &c->devices[CASE_CPU], &c->error.base));
    c->devices[CASE_DEVICE] = device;
    GOOD(device_stream_create(device, &c->streams[CASE_DEVICE], &c->error.base));
    for (int which = CASE_CPU; which <= CASE_DEVICE; which++)
        GOOD(step_kernels_create(c->devices[which], &c->generator, &c->workload, c->threads,
                                 &c->kernels[which], &c->error.base));
}

void step_case_destroy(struct step_case *c)
{
    for (int which = CASE_CPU; which <= CASE_DEVICE; which++)
        step_kernels_destroy(c->kernels[which]);
    device_stream_destroy(c->devices[CASE_DEVICE], c->streams[CASE_DEVICE]);
    device_close(c->devices[CASE_CPU]);
    threads_destroy(c->threads);
    step_case_finish(c);
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* Random bytes, to be overwritten by what an input holds. */
static struct twin *make_twin(struct step_case *c, size_t bytes, size_t guard)
{
    ck_assert_int_lt(c->num_twins, CASE_TWINS);
    struct twin *twin = &c->twins[c->num_twins++];
    size_t all = bytes + 2 * guard;
    *twin = (struct twin){.bytes = bytes, .guard = guard, .device_bytes = all};
    if (c->too_small == c->num_twins)
        twin->device_bytes = 1;
    twin->memory[CASE_CPU] = malloc(all + (all == 0));
    twin->memory[CASE_DEVICE] =
        device_allocate(c->devices[CASE_DEVICE], ATTN_SPACE_DEVICE, twin->device_bytes, 1);
    ck_assert(twin->memory[CASE_CPU] && twin->memory[CASE_DEVICE]);
    for (size_t i = 0; i < all; i++)
        twin->memory[CASE_CPU][i] = (char)step_case_random(c, 256);
    return twin;
}

static struct twin *make_ints(struct step_case *c, size_t count)
{
    return make_twin(c, count * sizeof(int32_t), 0);
}

/* An output: exactly its size, or with guards that move it off 16-byte borders or keep it there. */
static struct twin *make_output(struct step_case *c, size_t bytes)
{
    static const size_t guards[] = {0, 4, 32};
    return make_twin(c, bytes, ONE_OF(guards));
}

static void *at(const struct twin *twin, int which)
{
    return twin ? twin->memory[which] + twin->guard : NULL;
}

static int32_t *ints(const struct twin *twin)
{
    return at(twin, CASE_CPU);
}

static void upload(struct step_case *c)
{
    for (int t = 0; t < c->num_twins; t++)
        GOOD(device_copy(c->devices[CASE_DEVICE], c->twins[t].memory[CASE_DEVICE],
                         c->twins[t].memory[CASE_CPU], c->twins[t].device_bytes,
                         c->streams[CASE_DEVICE], &c->error.base));
}

static void compare(struct step_case *c, const struct twin *twin)
{
    char *seen = malloc(twin->device_bytes + 1);
    ck_assert_ptr_nonnull(seen);
    GOOD(device_copy(c->devices[CASE_DEVICE], seen, twin->memory[CASE_DEVICE], twin->device_bytes,
                     c->streams[CASE_DEVICE], &c->error.base));
    GOOD(device_synchronize(c->devices[CASE_DEVICE], c->streams[CASE_DEVICE], &c->error.base));
    size_t i = 0;
    while (i < twin->device_bytes && seen[i] == twin->memory[CASE_CPU][i])
        i++;
    ck_assert_msg(i == twin->device_bytes,
                  "seed %llu, array %d of the work: byte %zu differs, of %zu with %zu on each side",
                  (unsigned long long)c->seed, (int)(twin - c->twins) + 1, i, twin->bytes,
                  twin->guard);
    free(seen);
}

static void drop_twins(struct step_case *c)
{
    while (c->num_twins > 0) {
        struct twin *twin = &c->twins[--c->num_twins];
        device_release(c->devices[CASE_DEVICE], ATTN_SPACE_DEVICE, twin->memory[CASE_DEVICE]);
        free(twin->memory[CASE_CPU]);
    }
}

/* ---- Both ------------------------------------------------------------------------------------ */

typedef attn_status (*work_call)(struct step_case *c, int which, const void *work);

static struct device_graph *capture(struct step_case *c, work_call call, const void *work)
{
    struct device_graph *graph = NULL;
    const struct device *device = c->devices[CASE_DEVICE];
    GOOD(device_capture_begin(device, c->streams[CASE_DEVICE], &c->error.base));
    GOOD(call(c, CASE_DEVICE, work));
    GOOD(device_capture_end(device, c->streams[CASE_DEVICE], &graph, &c->error.base));
    return graph;
}

static void run_both(struct step_case *c, work_call call, const void *work)
{
    const struct device *device = c->devices[CASE_DEVICE];
    attn_stream stream = c->streams[CASE_DEVICE];
    struct device_graph *graph = c->with_graph ? capture(c, call, work) : NULL;
    upload(c);
    GOOD(call(c, CASE_CPU, work));
    if (graph)
        GOOD(device_graph_launch(device, graph, stream, &c->error.base));
    else
        GOOD(call(c, CASE_DEVICE, work));
    attn_status status = device_synchronize(device, stream, &c->error.base);
    ck_assert_msg(status == ATTN_OK || (c->too_small && status == ATTN_DEVICE_LOST), "%s",
                  host_error_text(&c->error));
    for (int t = 0; t < c->num_twins && !c->too_small; t++)
        compare(c, &c->twins[t]);
    device_graph_destroy(device, graph);
    drop_twins(c);
}

/* ---- Vectors --------------------------------------------------------------------------------- */

struct rows_case {
    struct twin *request, *position;
    int32_t count;
};

/* Of all requests, with padding in between. */
static struct rows_case make_rows(struct step_case *c)
{
    struct rows_case rows = {.count = between(c, 0, 20)};
    rows.request = make_ints(c, (size_t)rows.count);
    for (int32_t row = 0; row < rows.count; row++)
        ints(rows.request)[row] = between(c, -1, 3 * CASE_REQUESTS - 1); /* drafts among them */
    return rows;
}

/* Padding has none; what is there must not matter. */
static void make_positions(struct step_case *c, struct rows_case *rows)
{
    rows->position = make_ints(c, (size_t)rows->count);
    for (int32_t row = 0; row < rows->count; row++) {
        int32_t request = ints(rows->request)[row];
        const workload_request *r =
            &c->workload.requests[request < 0 ? 0 : request % CASE_REQUESTS];
        if (request >= 0)
            ints(rows->position)[row] =
                between(c, 0, (int32_t)(r->input_length + r->output_length) - 1);
    }
}

static struct step_rows rows_at(const struct rows_case *rows, int which)
{
    return (struct step_rows){
        .request = at(rows->request, which),
        .position = at(rows->position, which),
        .count = rows->count,
    };
}

struct generate_case {
    int32_t layer;
    attn_dtype dtype;
    struct rows_case rows;
    struct twin *q, *k, *v;
    bool kv_alone;
};

uint32_t step_case_vectors(const generator_layer *layer, attn_dtype dtype, void *q, void *k,
                           void *v, struct step_vectors *list)
{
    static const attn_layer_group group = {.kind = ATTN_KIND_SOFTMAX};
    int32_t heads = layer->num_q_heads, kv = layer->num_kv_heads, dim = layer->head_dim;
    const struct step_vectors all[] = {
        {{ATTN_ROLE_Q, heads, dim, dtype, GENERATOR_QUERY, 0}, &group, q},
        {{ATTN_ROLE_K, kv, dim, dtype, GENERATOR_KEY, 0}, &group, k},
        {{ATTN_ROLE_V, kv, layer->v_head_dim, dtype, GENERATOR_VALUE, 0}, &group, v},
    };
    memcpy(list, all, sizeof all);
    if (layer->latent) { /* the last word of queries and of latents */
        int32_t first = (dim - 1) / 8 * 8;
        list[0].operand =
            (struct row_operand){ATTN_ROLE_Q_PE, heads, dim - first, dtype, GENERATOR_QUERY, first};
        list[1].operand =
            (struct row_operand){ATTN_ROLE_K_PE, 0, dim - first, dtype, GENERATOR_KEY, first};
        return k ? 2 : 1;
    }
    return k ? 3 : 1;
}

static attn_status call_generate(struct step_case *c, int which, const void *work)
{
    const struct generate_case *g = work;
    struct step_rows rows = rows_at(&g->rows, which);
    struct step_vectors vectors[OPERANDS_MAX];
    uint32_t count = step_case_vectors(&c->layers[g->layer], g->dtype, at(g->q, which),
                                       at(g->k, which), at(g->v, which), vectors);
    return step_kernels_generate(c->kernels[which], g->layer, &rows, vectors + g->kv_alone,
                                 count - g->kv_alone, c->streams[which], &c->error.base);
}

void step_case_generate(struct step_case *c, int32_t layer, attn_dtype dtype)
{
    const generator_layer *l = &c->layers[layer];
    struct generate_case g = {.layer = layer, .dtype = dtype, .rows = make_rows(c)};
    make_positions(c, &g.rows);
    size_t head_bytes = (size_t)g.rows.count * attn_dtype_size(dtype);
    g.q = make_output(c, head_bytes * (size_t)(l->num_q_heads * l->head_dim));
    if (step_case_random(c, 3) > 0) {
        g.k = make_output(c, head_bytes * (size_t)(l->num_kv_heads * l->head_dim));
        g.v = make_output(c, head_bytes * (size_t)(l->num_kv_heads * l->v_head_dim));
        g.kv_alone = step_case_random(c, 3) == 0; /* an encoder's */
    }
    run_both(c, call_generate, &g);
}

/* ---- Rows of an indexer ---------------------------------------------------------------------- */

enum { INDEXED = 4 };

/* A query beside the three operands, the weights of which are fp32 in any case. */
struct indexed_case {
    int32_t layer;
    struct rows_case rows;
    struct row_operand operands[INDEXED];
    struct twin *outputs[INDEXED];
};

static attn_status call_generate_indexed(struct step_case *c, int which, const void *work)
{
    static const attn_layer_group group = {.kind = ATTN_KIND_SPARSE};
    const struct indexed_case *g = work;
    struct step_rows rows = rows_at(&g->rows, which);
    struct step_vectors vectors[INDEXED];
    for (uint32_t i = 0; i < INDEXED; i++)
        vectors[i] = (struct step_vectors){g->operands[i], &group, at(g->outputs[i], which)};
    return step_kernels_generate(c->kernels[which], g->layer, &rows, vectors, INDEXED,
                                 c->streams[which], &c->error.base);
}

void step_case_generate_indexed(struct step_case *c, int32_t layer, attn_dtype dtype)
{
    static const int32_t dims[] = {1, 7, 8, 20, 128}, heads[] = {1, 2, 5, 64};
    const generator_layer *l = &c->layers[layer];
    int32_t num_heads = ONE_OF(heads), dim = ONE_OF(dims);
    struct indexed_case g = {
        .layer = layer,
        .rows = make_rows(c),
        .operands = {{ATTN_ROLE_Q, l->num_q_heads, l->head_dim, dtype, GENERATOR_QUERY, 0},
                     {ATTN_ROLE_INDEX_Q, num_heads, dim, dtype,
                      GENERATOR_OPERAND + ATTN_ROLE_INDEX_Q, 0},
                     {ATTN_ROLE_INDEX_WEIGHTS, 0, num_heads, ATTN_F32,
                      GENERATOR_OPERAND + ATTN_ROLE_INDEX_WEIGHTS, 0},
                     {ATTN_ROLE_INDEX_K, 0, dim, dtype, GENERATOR_OPERAND + ATTN_ROLE_INDEX_K, 0}},
    };
    make_positions(c, &g.rows);
    for (uint32_t i = 0; i < INDEXED; i++)
        g.outputs[i] = make_output(c, (size_t)g.rows.count * operands_row_bytes(&g.operands[i]));
    run_both(c, call_generate_indexed, &g);
}

/* ---- Rows of linear layers ------------------------------------------------------------------- */

struct linear_case {
    attn_linear_dims dims;
    attn_layer_group group;
    int32_t layer;
    struct rows_case rows;
    uint32_t count;
    struct row_operand operands[3];
    struct twin *outputs[3];
};

/* Of any family, with heads whose factors change within a word, at its border, or not at all. */
static void make_linear(struct step_case *c, struct linear_case *g)
{
    static const int32_t dims[] = {1, 3, 8, 16, 20, 64, 129}, heads[] = {1, 2, 3, 8, 40};
    static const uint32_t flags[] = {0, ATTN_LINEAR_RAW_GATES, ATTN_LINEAR_QK_L2NORM,
                                     ATTN_LINEAR_RAW_GATES | ATTN_LINEAR_QK_L2NORM};
    g->dims = (attn_linear_dims){
        .struct_size = sizeof g->dims,
        .family = (uint32_t)step_case_random(c, ATTN_LINEAR_COUNT),
        .flags = ONE_OF(flags),
        .num_k_heads = between(c, 1, 3),
        .head_k_dim = ONE_OF(dims),
        .num_v_heads = ONE_OF(heads),
        .head_v_dim = ONE_OF(dims),
    };
    if (g->dims.family == ATTN_LINEAR_SHORT_CONV) {
        g->dims.num_k_heads = 0;
        g->dims.conv_width = 4;
    }
    g->group = (attn_layer_group){
        .struct_size = sizeof g->group, .kind = ATTN_KIND_LINEAR, .linear = &g->dims};
    g->layer = between(c, 0, CASE_LAYERS - 1);
}

static attn_status call_generate_linear(struct step_case *c, int which, const void *work)
{
    const struct linear_case *g = work;
    struct step_rows rows = rows_at(&g->rows, which);
    struct step_vectors vectors[3];
    for (uint32_t i = 0; i < g->count; i++)
        vectors[i] = (struct step_vectors){g->operands[i], &g->group, at(g->outputs[i], which)};
    return step_kernels_generate(c->kernels[which], g->layer, &rows, vectors, g->count,
                                 c->streams[which], &c->error.base);
}

void step_case_generate_linear(struct step_case *c, attn_dtype dtype)
{
    static const uint32_t roles[] = {ATTN_ROLE_MIXED_QKV, ATTN_ROLE_GATE_A, ATTN_ROLE_GATE_B};
    struct linear_case g = {.rows = make_rows(c)};
    make_linear(c, &g);
    make_positions(c, &g.rows);
    for (size_t r = 0; r < COUNT(roles); r++) {
        int32_t elements = (int32_t)generator_linear_elements(&g.group, roles[r]);
        attn_dtype own = generator_linear_dtype(&g.group, roles[r], dtype);
        if (elements == 0)
            continue;
        g.operands[g.count] = (struct row_operand){
            .role = roles[r],
            .dim = elements,
            .dtype = own,
            .stream = GENERATOR_OPERAND + (int32_t)roles[r],
        };
        g.outputs[g.count++] =
            make_output(c, (size_t)(g.rows.count * elements) * attn_dtype_size(own));
    }
    run_both(c, call_generate_linear, &g);
}

/* ---- Indices --------------------------------------------------------------------------------- */

struct update_case {
    struct twin *updates, *slots, *table;
    int32_t num_updates, longest, stride;
};

static attn_status call_update(struct step_case *c, int which, const void *work)
{
    const struct update_case *u = work;
    return step_kernels_update_table(c->kernels[which], at(u->updates, which), u->num_updates,
                                     u->longest, at(u->slots, which), at(u->table, which),
                                     u->stride, c->streams[which], &c->error.base);
}

/* Each update has its own row; the last one ends where table and slots end. */
void step_case_update_table(struct step_case *c)
{
    struct update_case u = {.num_updates = between(c, 0, 5), .stride = between(c, 1, 600)};
    int32_t num_slots = u.stride + between(c, 0, 40);
    u.updates = make_twin(c, (size_t)u.num_updates * sizeof(struct step_update), 0);
    u.slots = make_ints(c, (size_t)num_slots);
    u.table = make_output(c, (size_t)(u.num_updates + 1) * (size_t)u.stride * sizeof(int32_t));
    for (int32_t i = 0; i < u.num_updates; i++) {
        int32_t first = between(c, 0, u.stride - 1);
        int32_t count = i == 1 ? 0 : u.stride - first;
        struct step_update update = {
            .row = u.num_updates - i,
            .first = first,
            .count = count,
            .source = num_slots - count,
        };
        memcpy((struct step_update *)at(u.updates, CASE_CPU) + i, &update, sizeof update);
        u.longest = count > u.longest ? count : u.longest;
    }
    run_both(c, call_update, &u);
}

struct index_case {
    struct twin *table, *req_pool_indices, *kv_lens, *block_table, *kv_indptr, *kv_indices;
    int32_t stride, num_seqs, page_size, max_pages, block_table_stride;
};

static attn_status call_index(struct step_case *c, int which, const void *work)
{
    const struct index_case *i = work;
    struct step_index index = {
        .req_to_token = at(i->table, which),
        .req_to_token_stride = i->stride,
        .req_pool_indices = at(i->req_pool_indices, which),
        .kv_lens = at(i->kv_lens, which),
        .num_seqs = i->num_seqs,
        .page_size = i->page_size,
        .max_pages = i->max_pages,
        .block_table = at(i->block_table, which),
        .block_table_stride = i->block_table_stride,
        .kv_indptr = at(i->kv_indptr, which),
        .kv_indices = at(i->kv_indices, which),
    };
    return step_kernels_index_pages(c->kernels[which], &index, c->streams[which], &c->error.base);
}

static void make_sequences(struct step_case *c, struct index_case *i, int32_t num_rows)
{
    int32_t *indptr = ints(i->kv_indptr);
    if (indptr)
        indptr[0] = 3; /* need not be 0 */
    for (int32_t s = 0; s < i->num_seqs; s++) {
        int32_t len = s == 2 ? 0 : between(c, 1, i->stride);
        int32_t pages = (len + i->page_size - 1) / i->page_size;
        ints(i->kv_lens)[s] = len;
        ints(i->req_pool_indices)[s] = between(c, 0, num_rows - 1);
        if (indptr)
            indptr[s + 1] = indptr[s] + pages;
        i->max_pages = pages > i->max_pages ? pages : i->max_pages;
    }
}

/* A table of blocks, indices, or both. */
void step_case_index_pages(struct step_case *c)
{
    struct index_case i = {
        .stride = between(c, 1, 400), .num_seqs = between(c, 0, 6), .page_size = between(c, 1, 20)};
    int32_t num_rows = between(c, 1, 4);
    uint64_t form = step_case_random(c, 3);
    i.table = make_ints(c, (size_t)(num_rows * i.stride));
    for (int32_t n = 0; n < num_rows * i.stride; n++)
        ints(i.table)[n] &= INT32_MAX;
    i.req_pool_indices = make_ints(c, (size_t)i.num_seqs);
    i.kv_lens = make_ints(c, (size_t)i.num_seqs);
    if (form != 0)
        i.kv_indptr = make_ints(c, (size_t)i.num_seqs + 1);
    make_sequences(c, &i, num_rows);
    i.block_table_stride = i.max_pages + between(c, 0, 3);
    if (form != 0)
        i.kv_indices = make_output(c, (size_t)ints(i.kv_indptr)[i.num_seqs] * sizeof(int32_t));
    if (form != 1)
        i.block_table =
            make_output(c, (size_t)(i.num_seqs * i.block_table_stride) * sizeof(int32_t));
    run_both(c, call_index, &i);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static const int32_t row_elements[] = {1, 5, 8, 96, 120, 129, 1024, 2600};

struct watch_case {
    struct rows_case rows;
    struct twin *output, *first;
    attn_dtype dtype;
    int32_t layer, row_elements;
};

static attn_status call_watch(struct step_case *c, int which, const void *work)
{
    const struct watch_case *w = work;
    struct step_rows rows = rows_at(&w->rows, which);
    struct step_output output = {at(w->output, which), w->dtype, w->row_elements};
    return step_kernels_watch(c->kernels[which], w->layer, &rows, &output, at(w->first, which),
                              c->streams[which], &c->error.base);
}

/* The upper half of an infinity, or of a NaN whose fraction is all in that half. */
static uint16_t bad_half(struct step_case *c, attn_dtype dtype)
{
    uint16_t infinity = dtype == ATTN_F16 ? 0x7c00 : 0x7f80;
    uint16_t sign = step_case_random(c, 2) ? 0x8000 : 0;
    return (uint16_t)(infinity | sign | step_case_random(c, 2));
}

/* Random finite elements, and now and then one that is not. */
static void fill_output(struct step_case *c, const struct twin *twin, attn_dtype dtype)
{
    size_t size = attn_dtype_size(dtype), count = twin->bytes / size;
    for (size_t i = 0; i < count; i++) {
        char *end = (char *)at(twin, CASE_CPU) + (i + 1) * size;
        uint16_t half = bad_half(c, dtype);
        end[-1] &= ~4; /* a bit of the exponent, whatever the type */
        if (step_case_random(c, count) == 0)
            memcpy(end - sizeof half, &half, sizeof half);
    }
}

void step_case_watch(struct step_case *c, attn_dtype dtype)
{
    struct watch_case w = {.rows = make_rows(c), .dtype = dtype};
    uint64_t before = step_case_random(c, 3) == 0 ? UINT64_C(2) << 32 | 3 : UINT64_MAX;
    w.layer = between(c, 0, 3);
    w.row_elements = ONE_OF(row_elements);
    w.output = make_output(c, (size_t)(w.rows.count * w.row_elements) * attn_dtype_size(dtype));
    w.first = make_twin(c, sizeof before, 0);
    fill_output(c, w.output, dtype);
    memcpy(at(w.first, CASE_CPU), &before, sizeof before);
    run_both(c, call_watch, &w);
}

struct gather_case {
    struct twin *indptr, *rows, *offset, *to, *output;
    attn_dtype dtype;
    int32_t layer, row_elements, max_rows;
};

static attn_status call_gather(struct step_case *c, int which, const void *work)
{
    const struct gather_case *g = work;
    struct step_sample sample = {
        .indptr = at(g->indptr, which),
        .rows = at(g->rows, which),
        .offset = at(g->offset, which),
        .to = at(g->to, which),
    };
    struct step_output output = {at(g->output, which), g->dtype, g->row_elements};
    return step_kernels_gather(c->kernels[which], g->layer, &sample, &output, g->max_rows,
                               c->streams[which], &c->error.base);
}

/* How many rows each layer samples, which ones, and where they go. */
static size_t make_sample(struct step_case *c, struct gather_case *g, int32_t num_rows)
{
    uint64_t offset[CASE_LAYERS], bytes = 0;
    size_t row_bytes = (size_t)g->row_elements * attn_dtype_size(g->dtype);
    int32_t indptr[CASE_LAYERS + 1] = {0};
    g->indptr = make_ints(c, CASE_LAYERS + 1);
    for (int32_t l = 0; l < CASE_LAYERS; l++) {
        indptr[l + 1] = indptr[l] + between(c, 0, num_rows);
        offset[l] = bytes += step_case_random(c, 2) * attn_dtype_size(g->dtype);
        bytes += (uint64_t)(indptr[l + 1] - indptr[l]) * row_bytes;
    }
    memcpy(at(g->indptr, CASE_CPU), indptr, sizeof indptr);
    g->rows = make_ints(c, (size_t)indptr[CASE_LAYERS]);
    for (int32_t i = 0; i < indptr[CASE_LAYERS]; i++)
        ints(g->rows)[i] = between(c, 0, num_rows - 1);
    g->offset = make_twin(c, sizeof offset, 0);
    memcpy(at(g->offset, CASE_CPU), offset, sizeof offset);
    return bytes;
}

void step_case_gather(struct step_case *c, attn_dtype dtype)
{
    int32_t num_rows = between(c, 1, 20);
    struct gather_case g = {.dtype = dtype,
                            .layer = between(c, 0, CASE_LAYERS - 1),
                            .row_elements = ONE_OF(row_elements),
                            .max_rows = num_rows};
    size_t bytes = make_sample(c, &g, num_rows);
    g.to = make_output(c, bytes);
    g.output = make_output(c, (size_t)(num_rows * g.row_elements) * attn_dtype_size(dtype));
    run_both(c, call_gather, &g);
}

struct keys_case {
    struct gather_case gather;
    struct step_keys keys;
    struct twin *chosen, *q_indptr, *requests, *kv_lens, *table;
};

static attn_status call_keys(struct step_case *c, int which, const void *work)
{
    const struct keys_case *k = work;
    const struct gather_case *g = &k->gather;
    struct step_sample sample = {at(g->indptr, which), at(g->rows, which), at(g->offset, which),
                                 at(g->to, which)};
    struct step_keys keys = k->keys;
    keys.chosen = at(k->chosen, which);
    keys.q_indptr = at(k->q_indptr, which);
    keys.req_pool_indices = at(k->requests, which);
    keys.kv_lens = at(k->kv_lens, which);
    keys.req_to_token = at(k->table, which);
    return step_kernels_keys(c->kernels[which], g->layer, &sample, 0, &keys, g->max_rows,
                             c->streams[which], &c->error.base);
}

/* Sequences of whole pages in any order; slots of the row's own, of others, and none. */
static void make_keys(struct step_case *c, struct keys_case *k, int32_t num_rows)
{
    struct step_keys *keys = &k->keys;
    int32_t stride = between(c, 1, 6) * keys->page_size, pages = 40;
    keys->req_to_token_stride = stride;
    k->q_indptr = make_ints(c, (size_t)keys->num_seqs + 1);
    k->requests = make_ints(c, (size_t)keys->num_seqs);
    k->kv_lens = make_ints(c, (size_t)keys->num_seqs);
    k->table = make_ints(c, (size_t)(keys->num_seqs * stride));
    k->chosen = make_ints(c, (size_t)(num_rows * keys->count));
    for (int32_t s = 0; s < keys->num_seqs; s++) {
        ints(k->q_indptr)[s] = s * num_rows / keys->num_seqs;
        ints(k->requests)[s] = keys->num_seqs - 1 - s;
        ints(k->kv_lens)[s] = between(c, 1, stride);
    }
    ints(k->q_indptr)[keys->num_seqs] = num_rows;
    for (int32_t i = 0; i < keys->num_seqs * stride; i += keys->page_size)
        for (int32_t page = between(c, 0, pages - 1), o = 0; o < keys->page_size; o++)
            ints(k->table)[i + o] = page * keys->page_size + o;
    for (int32_t i = 0; i < num_rows * keys->count; i++)
        ints(k->chosen)[i] = between(c, -1, pages * keys->page_size - 1);
}

void step_case_keys(struct step_case *c)
{
    int32_t num_rows = between(c, 1, 20);
    struct keys_case k = {.keys = {.count = between(c, 1, 70),
                                   .none = -2,
                                   .num_seqs = between(c, 1, num_rows < 4 ? num_rows : 4),
                                   .page_size = 1 << step_case_random(c, 4)}};
    k.gather = (struct gather_case){.dtype = ATTN_F32,
                                    .layer = between(c, 0, CASE_LAYERS - 1),
                                    .row_elements = k.keys.count,
                                    .max_rows = num_rows};
    make_keys(c, &k, num_rows);
    size_t bytes = make_sample(c, &k.gather, num_rows);
    k.gather.to = make_output(c, bytes);
    run_both(c, call_keys, &k);
}

struct move_case {
    struct twin *list, *indptr, *data;
    struct step_cache cache;
    int32_t num_seqs;
};

static attn_status call_move(struct step_case *c, int which, const void *work)
{
    const struct move_case *m = work;
    struct step_moves moves = {at(m->list, which), at(m->indptr, which), m->num_seqs};
    struct step_cache cache = m->cache;
    cache.data = at(m->data, which);
    return step_kernels_move(c->kernels[which], &moves, &cache, c->streams[which], &c->error.base);
}

/* Each sequence has a stretch of slots of its own, in which its moves follow each other downwards,
 * as those of accepted drafts do. */
static void make_moves(struct step_case *c, struct move_case *m, int32_t slots_per_seq)
{
    struct step_move list[4 * 8];
    int32_t indptr[5] = {0}, count = 0;
    for (int32_t s = 0; s < m->num_seqs; s++) {
        int32_t to = s * slots_per_seq, from = to, end = to + slots_per_seq;
        while ((from += between(c, 1, 3)) < end && count < 8 * (s + 1))
            list[count++] = (struct step_move){from, to++};
        indptr[s + 1] = count;
    }
    m->list = make_twin(c, (size_t)(count + 1) * sizeof *list, 0);
    memcpy(at(m->list, CASE_CPU), list, (size_t)count * sizeof *list);
    m->indptr = make_ints(c, (size_t)m->num_seqs + 1);
    memcpy(at(m->indptr, CASE_CPU), indptr, ((size_t)m->num_seqs + 1) * sizeof *indptr);
}

/* Slots of one piece, or of one for each of three heads, whose bytes are whole words or not. */
void step_case_move(struct step_case *c)
{
    enum { SLOTS_PER_SEQ = 8, HEADS = 3 };
    static const int32_t pages[] = {1, 4, 16}, bytes[] = {2, 16, 48, 70};
    struct move_case m = {.num_seqs = between(c, 1, 4)};
    bool heads_first = step_case_random(c, 2);
    int64_t piece = ONE_OF(bytes);
    m.cache.page_size = ONE_OF(pages);
    m.cache.num_pieces = heads_first ? HEADS : 1;
    m.cache.piece_bytes = m.cache.slot_bytes = piece;
    m.cache.piece_stride = piece * m.cache.page_size;
    m.cache.page_bytes = m.cache.piece_stride * m.cache.num_pieces;
    make_moves(c, &m, SLOTS_PER_SEQ);
    int64_t slots = (int64_t)m.num_seqs * SLOTS_PER_SEQ;
    int64_t num_pages = (slots + m.cache.page_size - 1) / m.cache.page_size;
    m.data = make_output(c, (size_t)(num_pages * m.cache.page_bytes));
    run_both(c, call_move, &m);
}

void step_case_everything(struct step_case *c)
{
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        for (int32_t layer = 0; layer < CASE_LAYERS; layer++) {
            step_case_generate(c, layer, dtypes[d]);
            step_case_generate_indexed(c, layer, dtypes[d]);
        }
        for (int i = 0; i < 2; i++)
            step_case_generate_linear(c, dtypes[d]);
        step_case_watch(c, dtypes[d]);
        step_case_gather(c, dtypes[d]);
        step_case_keys(c);
        step_case_update_table(c);
        step_case_index_pages(c);
        step_case_move(c);
    }
}
