/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * embed: an engine that uses attnhost for its attention layers and for nothing else.
 *
 *   cc -O2 -o embed embed.c $(pkg-config --cflags --libs attnhost) -lm
 *   ./embed [PLUGIN_FILE_OR_FOLDER [BACKEND [DECODE_BACKEND]]]
 *
 * What is the engine's, in vLLM's words: the scheduler (continuous batching with chunked prefill),
 * the KV cache (a tensor [blocks, 2, page, heads, dim] for each layer, K and V are strided views of
 * it), two KV groups with block tables of their own (window layers, whose blocks are freed once
 * they fall out of the window, and global layers), query_start_loc, seq_lens, slot_mapping with -1
 * for padding, the stream and the loop. With DECODE_BACKEND, BACKEND serves prefill and the other
 * one decode, composed by a few lines instead of an ini.
 *
 * The model has no weights: q, k and v are a hash of where they belong, so that every output row
 * can be compared with a softmax in fp64 over keys that are computed anew.
 */
#include <attnhost.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 4, /* even ones have a window, odd ones see everything */
    Q_HEADS = 4,
    KV_HEADS = 2,
    DIM = 32,
    PAGE = 4,
    SLIDING_WINDOW = 12, /* as a model's config counts: the query is one of the 12 */
    CHUNK = 16,          /* prefill tokens of a request in one step */
    REQUESTS = 5,
    PAD_TO = 8, /* batches are padded to this many tokens, as for graphs */
    MAX_SEQS = REQUESTS + PAD_TO,
    MAX_TOKENS = REQUESTS * CHUNK + PAD_TO,
    MAX_LEN = 64,
    MAX_BLOCKS = MAX_LEN / PAGE,
    BLOCK_SIZE = 2 * PAGE * KV_HEADS * DIM, /* elements */
    GROUPS = 2,
    POOL_BLOCKS = 1 + REQUESTS * MAX_BLOCKS /* block 0 is the null block */
};

static const int prompt_len[REQUESTS] = {37, 5, 21, 1, 50};
static const int output_len[REQUESTS] = {9, 4, 12, 20, 3};
/* Both groups have their own pool. The window's is small: without freeing it would run out. */
static const int pool_blocks[GROUPS] = {21, POOL_BLOCKS};
static const int window_left[GROUPS] = {SLIDING_WINDOW - 1, -1};

/* A KV group: which blocks each request owns, and which are free. */
typedef struct kv_group {
    int32_t table[REQUESTS][MAX_BLOCKS]; /* 0 = not allocated, or freed behind the window */
    int32_t free[POOL_BLOCKS];
    int num_free, least_free;
} kv_group;

/* One step's arrays for one group. An engine has them on the device; on the CPU they are here. */
typedef struct group_arrays {
    int32_t block_table[MAX_SEQS][MAX_BLOCKS];
    int64_t slot_mapping[MAX_TOKENS];
    int32_t kv_indptr[MAX_SEQS + 1], kv_indices[MAX_SEQS * MAX_BLOCKS], last_page_len[MAX_SEQS];
    int32_t req_to_token[REQUESTS + 1][MAX_LEN];
} group_arrays;

/* A sequence of a batch: `new_tokens` of a request, or padding. */
typedef struct scheduled {
    int request; /* -1 = padding */
    int new_tokens;
} scheduled;

typedef struct engine {
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    void *workspace[ATTN_REGION_COUNT];
    attn_stream stream; /* a CUstream on a GPU; NULL on the CPU */
    uint32_t index_forms, needs_host_lens, modes;
    int32_t fill; /* seq_len of padding */

    float *kv[LAYERS]; /* [blocks, 2, PAGE, KV_HEADS, DIM] */
    kv_group group[GROUPS];
    int computed[REQUESTS]; /* num_computed_tokens */

    scheduled seq[MAX_SEQS];
    int32_t query_start_loc[MAX_SEQS + 1], seq_lens[MAX_SEQS], num_computed[MAX_SEQS];
    int32_t req_pool_indices[MAX_SEQS];
    group_arrays arrays[GROUPS];
    attn_kv_batch kv_batch[GROUPS];
    attn_batch batch;

    float q[MAX_TOKENS][Q_HEADS][DIM], out[MAX_TOKENS][Q_HEADS][DIM];
    float k[MAX_TOKENS][KV_HEADS][DIM], v[MAX_TOKENS][KV_HEADS][DIM];
    long batches[ATTN_MODE_COUNT], rows_checked;
} engine;

/* ---- Errors ---------------------------------------------------------------------------------- */

static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

static void check(attn_status status, const char *what)
{
    if (status == ATTN_OK)
        return;
    fprintf(stderr, "embed: %s: %s: %s\n", what, attnhost_status_name(status), message);
    exit(1);
}

static void require(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "embed: %s\n", what);
    exit(1);
}

static void *allocate(size_t size, size_t alignment)
{
    void *memory = NULL;
    require(posix_memalign(&memory, alignment < 64 ? 64 : alignment, size) == 0, "out of memory");
    return memory;
}

/* ---- Model: vectors by hash, and what attention is ------------------------------------------- */

/* An element of q (kind 0), k (1) or v (2), in [-1, 1). */
static float element(int kind, int layer, int request, int position, int head, int d)
{
    uint64_t x = (uint64_t)kind << 60 | (uint64_t)layer << 52 | (uint64_t)request << 44 |
                 (uint64_t)position << 24 | (uint64_t)head << 16 | (uint64_t)d;
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return (float)((int64_t)(x ^ x >> 33) >> 40) / (float)(1 << 23);
}

/* Row `position` of `request` in fp64, over the keys that it sees. */
static void oracle(int layer, int request, int position, int head, double *out)
{
    int left = window_left[layer % GROUPS], kv_head = head / (Q_HEADS / KV_HEADS);
    int first = left >= 0 && position > left ? position - left : 0;
    double score[MAX_LEN], max = -INFINITY, total = 0;
    for (int j = first; j <= position; j++) {
        score[j] = 0;
        for (int d = 0; d < DIM; d++)
            score[j] += (double)element(0, layer, request, position, head, d) *
                        element(1, layer, request, j, kv_head, d);
        max = fmax(max, score[j]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (int j = first; j <= position; j++) {
        double p = exp(score[j] - max);
        total += p;
        for (int d = 0; d < DIM; d++)
            out[d] += p * element(2, layer, request, j, kv_head, d);
    }
    for (int d = 0; d < DIM; d++)
        out[d] /= total;
}

static void check_row(const engine *e, int layer, int row, int request, int position)
{
    for (int head = 0; head < Q_HEADS; head++) {
        double expected[DIM];
        oracle(layer, request, position, head, expected);
        for (int d = 0; d < DIM; d++) {
            double got = e->out[row][head][d];
            if (fabs(got - expected[d]) <= 1e-5) /* of values up to 1; NaN fails, too */
                continue;
            fprintf(stderr,
                    "embed: layer %d request %d position %d head %d element %d: "
                    "got %.9g, expected %.9g\n",
                    layer, request, position, head, d, got, expected[d]);
            exit(1);
        }
    }
}

/* ---- KV cache: blocks of two groups ---------------------------------------------------------- */

/* All blocks but the null block start as NaN, and are NaN again when freed: a key that no query can
 * see must not reach a result. */
static void poison_block(engine *e, int group, int32_t block)
{
    for (int layer = group; layer < LAYERS; layer += GROUPS)
        for (int i = 0; i < BLOCK_SIZE; i++)
            e->kv[layer][block * BLOCK_SIZE + i] = NAN;
}

/* A guard block before the null block shows whether anybody took -1 for a slot. */
static void make_cache(engine *e)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        size_t size = (size_t)pool_blocks[layer % GROUPS] * BLOCK_SIZE;
        e->kv[layer] = (float *)allocate((BLOCK_SIZE + size) * sizeof(float), 64) + BLOCK_SIZE;
        memset(e->kv[layer], 0, size * sizeof(float));
        for (int i = 1; i <= BLOCK_SIZE; i++)
            e->kv[layer][-i] = 1;
    }
    for (int g = 0; g < GROUPS; g++) {
        for (int32_t block = pool_blocks[g] - 1; block > 0; block--) {
            poison_block(e, g, block);
            e->group[g].free[e->group[g].num_free++] = block;
        }
        e->group[g].least_free = e->group[g].num_free;
    }
}

static void allocate_blocks(kv_group *group, int request, int from, int to)
{
    for (int b = (from + PAGE - 1) / PAGE; b * PAGE < to; b++) {
        require(group->num_free > 0, "a KV group is full");
        group->table[request][b] = group->free[--group->num_free];
    }
    if (group->num_free < group->least_free)
        group->least_free = group->num_free;
}

/* Free blocks of positions below `end`. Their entries become the null block: a backend may read the
 * entry, never what is behind it. */
static void free_blocks(engine *e, int g, int request, int end)
{
    kv_group *group = &e->group[g];
    for (int b = 0; (b + 1) * PAGE <= end; b++) {
        int32_t block = group->table[request][b];
        if (block == 0)
            continue;
        poison_block(e, g, block);
        group->free[group->num_free++] = block;
        group->table[request][b] = 0;
    }
}

/* K (part 0) or V (part 1) of a layer as [blocks, PAGE, KV_HEADS, DIM]: vLLM's kv_cache.unbind(1).
 */
static void view_cache(const engine *e, int layer, int part, attn_tensor *view)
{
    const int64_t half = BLOCK_SIZE / 2;
    const int64_t shape[] = {pool_blocks[layer % GROUPS], PAGE, KV_HEADS, DIM};
    const int64_t strides[] = {2 * half, KV_HEADS * DIM, DIM, 1};
    check(attnhost_tensor_init(view, e->kv[layer] + part * half, ATTN_DEVICE_CPU, 0, ATTN_F32, 4,
                               shape, strides, &error),
          "view of the KV cache");
}

/* ---- Batch: from the scheduler's words to attn_batch ----------------------------------------- */

/* The arrays of a batch lie on the device. Their host twins are for planning: an engine that keeps
 * them on the device alone gives NULL, unless the backend says that it needs them. */
static attn_i32_array on_device(const engine *e, const int32_t *array)
{
    return (attn_i32_array){.host = e->needs_host_lens ? array : NULL, .device = array};
}

static void fill_slots(engine *e, int g, int s)
{
    int request = e->seq[s].request;
    for (int t = 0; t < e->seq[s].new_tokens; t++) {
        int position = e->num_computed[s] + t, row = e->query_start_loc[s] + t;
        e->arrays[g].slot_mapping[row] =
            request < 0
                ? -1 /* nothing is written for padding */
                : (int64_t)e->group[g].table[request][position / PAGE] * PAGE + position % PAGE;
    }
}

/* The block table's row, and what the other index forms make of it. */
static void fill_indices(engine *e, int g, int s)
{
    group_arrays *a = &e->arrays[g];
    int request = e->seq[s].request, len = e->seq_lens[s], pages = (len + PAGE - 1) / PAGE;
    const int32_t *table = request < 0 ? NULL : e->group[g].table[request];
    for (int b = 0; b < MAX_BLOCKS; b++)
        a->block_table[s][b] = table ? table[b] : 0;
    a->kv_indptr[s + 1] = a->kv_indptr[s] + pages;
    for (int b = 0; b < pages; b++)
        a->kv_indices[a->kv_indptr[s] + b] = a->block_table[s][b];
    a->last_page_len[s] = len == 0 ? 0 : (len - 1) % PAGE + 1;
    for (int j = 0; table && j < len; j++) /* row 0 belongs to padding and stays zero */
        a->req_to_token[request + 1][j] = table[j / PAGE] * PAGE + j % PAGE;
}

/* One group, in the index forms that the backend reads. */
static void fill_group(engine *e, int g, int num_seqs)
{
    group_arrays *a = &e->arrays[g];
    for (int s = 0; s < num_seqs; s++) {
        fill_slots(e, g, s);
        fill_indices(e, g, s);
    }
    attn_kv_batch *kv = &e->kv_batch[g];
    *kv = (attn_kv_batch){.struct_size = sizeof *kv, .page_size = PAGE};
    kv->index_forms = e->index_forms;
    kv->out_cache_loc.device = a->slot_mapping;
    kv->out_cache_loc.host = e->needs_host_lens ? a->slot_mapping : NULL;
    if (e->index_forms & ATTN_INDEX_BLOCK_TABLE) {
        kv->block_table = on_device(e, a->block_table[0]);
        kv->block_table_stride = MAX_BLOCKS;
    }
    if (e->index_forms & ATTN_INDEX_CSR) {
        kv->kv_indptr = on_device(e, a->kv_indptr);
        kv->kv_indices = on_device(e, a->kv_indices);
        kv->last_page_len = on_device(e, a->last_page_len);
    }
    if (e->index_forms & ATTN_INDEX_REQ_TO_TOKEN) {
        kv->req_to_token = on_device(e, a->req_to_token[0]);
        kv->req_to_token_stride = MAX_LEN;
    }
}

/* Sequence s of the batch: lengths with and without its new tokens, and where its rows lie. */
static void fill_sequence(engine *e, int s)
{
    int request = e->seq[s].request, new_tokens = e->seq[s].new_tokens;
    e->num_computed[s] = request < 0 ? 0 : e->computed[request];
    e->seq_lens[s] = request < 0 ? e->fill : e->computed[request] + new_tokens;
    e->query_start_loc[s + 1] = e->query_start_loc[s] + new_tokens;
    e->req_pool_indices[s] = request + 1;
    for (int g = 0; g < GROUPS && request >= 0; g++)
        allocate_blocks(&e->group[g], request, e->computed[request], e->seq_lens[s]);
    if (new_tokens > e->batch.max_q_len)
        e->batch.max_q_len = new_tokens;
    if (e->seq_lens[s] > e->batch.max_kv_len)
        e->batch.max_kv_len = e->seq_lens[s];
}

/* `e->seq` holds the batch, extends before decodes. Padding is sequences of one query behind it. */
static void build_batch(engine *e, uint32_t mode, int num_seqs, int num_decodes)
{
    attn_batch *batch = &e->batch;
    *batch = (attn_batch){.struct_size = sizeof *batch, .mode = mode, .num_seqs = num_seqs};
    for (int s = 0; s < batch->num_seqs; s++) {
        fill_sequence(e, s);
        if (s + 1 == num_seqs) {
            batch->num_real_seqs = num_seqs;
            batch->num_real_tokens = e->query_start_loc[num_seqs];
        }
        if (s + 1 == batch->num_seqs && e->query_start_loc[s + 1] % PAD_TO != 0)
            e->seq[batch->num_seqs++] = (scheduled){.request = -1, .new_tokens = 1};
    }
    batch->num_tokens = e->query_start_loc[batch->num_seqs];
    if (mode == ATTN_MODE_MIXED)
        batch->num_decode_seqs = num_decodes + batch->num_seqs - num_seqs;
    for (int g = 0; g < GROUPS; g++)
        fill_group(e, g, batch->num_seqs);
    batch->seq_lens = on_device(e, e->seq_lens);
    batch->prefix_lens = on_device(e, e->num_computed);
    batch->q_indptr = on_device(e, e->query_start_loc);
    batch->req_pool_indices = on_device(e, e->req_pool_indices);
    batch->num_kv_groups = GROUPS;
    batch->kv_groups = e->kv_batch;
}

/* ---- A step: plan once, forward each layer --------------------------------------------------- */

static void fill_vectors(engine *e, int layer)
{
    memset(e->q, 0, sizeof e->q);
    memset(e->k, 0, sizeof e->k);
    memset(e->v, 0, sizeof e->v);
    for (int s = 0; s < e->batch.num_real_seqs; s++)
        for (int t = 0; t < e->seq[s].new_tokens; t++) {
            int row = e->query_start_loc[s] + t, r = e->seq[s].request;
            int position = e->num_computed[s] + t;
            for (int i = 0; i < Q_HEADS * DIM; i++)
                e->q[row][i / DIM][i % DIM] = element(0, layer, r, position, i / DIM, i % DIM);
            for (int i = 0; i < KV_HEADS * DIM; i++) {
                e->k[row][i / DIM][i % DIM] = element(1, layer, r, position, i / DIM, i % DIM);
                e->v[row][i / DIM][i % DIM] = element(2, layer, r, position, i / DIM, i % DIM);
            }
        }
    for (int i = 0; i < MAX_TOKENS * Q_HEADS * DIM; i++)
        (&e->out[0][0][0])[i] = NAN; /* so that a row that nobody writes is seen */
}

static void forward_layer(engine *e, int layer)
{
    attn_tensor q, k, v, out, k_cache, v_cache;
    const int64_t q_shape[] = {e->batch.num_tokens, Q_HEADS, DIM};
    const int64_t kv_shape[] = {e->batch.num_tokens, KV_HEADS, DIM};
    attn_tensor *const rows[] = {&q, &out, &k, &v};
    float *const data[] = {e->q[0][0], e->out[0][0], e->k[0][0], e->v[0][0]};
    for (int i = 0; i < 4; i++)
        check(attnhost_tensor_init(rows[i], data[i], ATTN_DEVICE_CPU, 0, ATTN_F32, 3,
                                   i < 2 ? q_shape : kv_shape, NULL, &error),
              "operand");
    view_cache(e, layer, 0, &k_cache);
    view_cache(e, layer, 1, &v_cache);
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {
        [ATTN_ROLE_Q] = &q,
        [ATTN_ROLE_K] = &k,
        [ATTN_ROLE_V] = &v,
        [ATTN_ROLE_OUT] = &out,
        [ATTN_ROLE_K_CACHE] = &k_cache,
        [ATTN_ROLE_V_CACHE] = &v_cache,
    };
    attn_forward_args args = {.struct_size = sizeof args,
                              .flags = ATTN_FORWARD_SAVE_KV,
                              .num_operands = ATTN_ROLE_COUNT,
                              .operands = operands};
    check(attnhost_forward(e->metadata, layer, &args, e->stream, &error), "forward");
}

static void check_layer(engine *e, int layer)
{
    for (int s = 0; s < e->batch.num_real_seqs; s++)
        for (int t = 0; t < e->seq[s].new_tokens; t++, e->rows_checked++)
            check_row(e, layer, e->query_start_loc[s] + t, e->seq[s].request,
                      e->num_computed[s] + t);
    for (int row = e->batch.num_real_tokens; row < e->batch.num_tokens; row++)
        for (int i = 0; i < Q_HEADS * DIM; i++)
            require(isfinite(e->out[row][i / DIM][i % DIM]), "a row of padding is not finite");
}

static void run_batch(engine *e, uint32_t mode, int num_seqs, int num_decodes)
{
    if (num_seqs == 0)
        return;
    build_batch(e, mode, num_seqs, num_decodes);
    check(attnhost_init_forward_metadata(e->metadata, &e->batch, e->stream, &error), "plan");
    for (int layer = 0; layer < LAYERS; layer++) {
        fill_vectors(e, layer);
        forward_layer(e, layer);
        check_layer(e, layer); /* on a GPU: synchronise the stream first */
    }
    e->batches[mode]++;
    for (int s = 0; s < num_seqs; s++) {
        int r = e->seq[s].request;
        int computed = e->computed[r] += e->seq[s].new_tokens;
        int finished = computed == prompt_len[r] + output_len[r] - 1;
        for (int g = 0; g < GROUPS; g++)
            if (finished)
                free_blocks(e, g, r, MAX_LEN);
            else if (window_left[g] >= 0)
                free_blocks(e, g, r, computed - window_left[g]);
    }
}

/* ---- Scheduler ------------------------------------------------------------------------------- */

/* Put the prefilling (or the decoding) requests behind `count` sequences; request r arrives at step
 * r. The first output token comes from prefill, so the last one is never computed. */
static int schedule(engine *e, int step, int decoding, int count)
{
    for (int r = 0; r < REQUESTS && r <= step; r++) {
        int left = prompt_len[r] - e->computed[r];
        int finished = e->computed[r] == prompt_len[r] + output_len[r] - 1;
        if (finished || decoding != (left <= 0))
            continue;
        int new_tokens = decoding ? 1 : left < CHUNK ? left : CHUNK;
        e->seq[count++] = (scheduled){.request = r, .new_tokens = new_tokens};
    }
    return count;
}

static int run_step(engine *e, int step)
{
    int extends = schedule(e, step, 0, 0);
    int all = schedule(e, step, 1, extends), decodes = all - extends;
    if (extends > 0 && decodes > 0 && e->modes & ATTN_MODE_BIT(ATTN_MODE_MIXED)) {
        run_batch(e, ATTN_MODE_MIXED, all, decodes);
        return 1;
    }
    scheduled decoding[MAX_SEQS];
    memcpy(decoding, e->seq + extends, (size_t)decodes * sizeof *decoding);
    run_batch(e, ATTN_MODE_EXTEND, extends, 0);
    memcpy(e->seq, decoding, (size_t)decodes * sizeof *decoding);
    run_batch(e, ATTN_MODE_DECODE, decodes, decodes);
    return all > 0;
}

/* ---- Set-up: load, ask, compose -------------------------------------------------------------- */

/* The model: a layer group for each kind of layer, each with its KV group. */
typedef struct model {
    attn_device device;
    attn_bounds bounds;
    attn_layer layers[GROUPS][LAYERS / GROUPS];
    attn_layer_group groups[GROUPS];
    attn_problem problems[GROUPS];
} model;

static void describe_group(model *m, int g)
{
    for (int l = 0; l < LAYERS / GROUPS; l++) {
        int32_t id = l * GROUPS + g;
        m->layers[g][l] =
            (attn_layer){.struct_size = sizeof(attn_layer), .layer_id = id, .kv_buffer = id};
    }
    m->groups[g] = (attn_layer_group){.struct_size = sizeof(attn_layer_group),
                                      .kind = ATTN_KIND_SOFTMAX,
                                      .attn_type = ATTN_TYPE_DECODER,
                                      .kv_group = g,
                                      .num_q_heads = Q_HEADS,
                                      .num_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .v_head_dim = DIM,
                                      .window_left = window_left[g],
                                      .window_right = 0, /* causal */
                                      .sm_scale = 1,
                                      .num_layers = LAYERS / GROUPS,
                                      .layers = m->layers[g]};
    m->problems[g] = (attn_problem){.struct_size = sizeof(attn_problem),
                                    .device = &m->device,
                                    .group = &m->groups[g],
                                    .bounds = &m->bounds,
                                    .kv_layout = ATTN_LAYOUT_KV_NHD,
                                    .q_dtype = ATTN_F32,
                                    .kv_dtype = ATTN_F32,
                                    .out_dtype = ATTN_F32,
                                    .page_size = PAGE,
                                    .tp_size = 1};
}

static void describe_model(model *m)
{
    m->device.struct_size = sizeof m->device;
    check(attnhost_device_init(&m->device, ATTN_DEVICE_CPU, 0, &error), "device");
    m->bounds = (attn_bounds){.struct_size = sizeof(attn_bounds),
                              .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                              .max_seqs = MAX_SEQS,
                              .max_tokens = MAX_TOKENS,
                              .max_q_len = CHUNK,
                              .max_kv_len = MAX_LEN,
                              .max_kv_tokens = MAX_SEQS * MAX_LEN};
    for (int g = 0; g < GROUPS; g++)
        describe_group(m, g);
}

/* Ask before anything is allocated; with `loud` print what is in the way. */
static int is_served(engine *e, const char *name, model *m, uint32_t modes, int loud)
{
    int served = 1;
    m->bounds.modes = modes;
    for (int g = 0; g < GROUPS; g++) {
        attn_reason reasons[8];
        attn_verdict verdict = {
            .struct_size = sizeof verdict, .reasons_capacity = 8, .reasons = reasons};
        for (int r = 0; r < 8; r++)
            reasons[r] = (attn_reason){.struct_size = sizeof(attn_reason)};
        check(attnhost_query(e->host, name, &m->problems[g], &verdict, &error), "query");
        served = served && verdict.supported;
        for (uint32_t r = 0; loud && !verdict.supported && r < verdict.num_reasons && r < 8; r++)
            fprintf(stderr, "embed: %s %s: %s: accepted %s\n", name, reasons[r].child,
                    reasons[r].got, reasons[r].accepted);
        if (verdict.supported && verdict.graph_seq_len_fill > e->fill)
            e->fill = verdict.graph_seq_len_fill;
    }
    return served;
}

/* Engines have a workspace already: the scratch is the engine's, the rest the library allocates. */
static void make_metadata(engine *e, const attn_bounds *bounds)
{
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    check(attnhost_metadata_size(e->backend, ATTN_METADATA_EAGER, bounds, &size, &error),
          "metadata size");
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT; space++) {
        uint32_t region = ATTN_REGION(space, ATTN_USE_SCRATCH);
        if (size.size[region] == 0)
            continue;
        e->workspace[region] = allocate(size.size[region], size.alignment[region]);
        memory.base[region] = e->workspace[region];
        memory.size[region] = size.size[region];
    }
    check(attnhost_metadata_create(e->backend, ATTN_METADATA_EAGER, bounds, &memory, &e->metadata,
                                   &error),
          "metadata");
}

static void load_plugins(engine *e, const char *path)
{
    attnhost_params params = {.struct_size = sizeof params, .log_level = ATTN_LOG_WARNING};
    check(attnhost_create(&params, &e->host, &error), "host");
    size_t length = path ? strlen(path) : 0;
    if (!path)
        check(attnhost_load_installed(e->host, &error), "installed plugins");
    else if (length > 3 && strcmp(path + length - 3, ".so") == 0)
        check(attnhost_load_plugin(e->host, path, &error), path);
    else
        check(attnhost_load_directory(e->host, path, &error), path);
}

static void set_up(engine *e, const char *path, const char *backend, const char *decode)
{
    const uint32_t plain = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE);
    model m = {.bounds = {0}};
    load_plugins(e, path);
    if (decode) { /* what a section [backend.both] of an ini would say */
        const char *const options[] = {"prefill", backend, "decode", decode};
        check(attnhost_define_backend(e->host, "both", "hybrid_phase", options, 2, &error),
              "define");
        backend = "both";
    }
    describe_model(&m);
    e->modes = plain | ATTN_MODE_BIT(ATTN_MODE_MIXED);
    if (!is_served(e, backend, &m, e->modes, 0))
        e->modes = plain;
    require(is_served(e, backend, &m, e->modes, 1), "the backend cannot serve this model");
    check(attnhost_compose(e->host, backend, m.problems, GROUPS, &e->backend, &error), "compose");
    check(attnhost_backend_prepare(e->backend, NULL, NULL, &error), "prepare");
    e->index_forms = attnhost_backend_index_forms(e->backend);
    e->needs_host_lens = attnhost_backend_needs_host_lens(e->backend);
    make_metadata(e, &m.bounds);
    make_cache(e);
}

static void tear_down(engine *e)
{
    attnhost_metadata_destroy(e->metadata);
    attnhost_backend_destroy(e->backend);
    attnhost_destroy(e->host);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        free(e->workspace[r]);
    for (int layer = 0; layer < LAYERS; layer++)
        free(e->kv[layer] - BLOCK_SIZE);
    free(e);
}

/* ---- Main ------------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    engine *e = allocate(sizeof *e, 64);
    memset(e, 0, sizeof *e);
    set_up(e, argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : "cpu_native",
           argc > 3 ? argv[3] : NULL);
    int step = 0;
    while (run_step(e, step) || step < REQUESTS)
        step++;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 1; i <= BLOCK_SIZE; i++)
            require(e->kv[layer][-i] == 1, "slot -1 was written");
    for (int g = 0; g < GROUPS; g++)
        require(e->group[g].num_free == pool_blocks[g] - 1, "blocks were leaked");
    printf("steps %d, batches: extend %ld, decode %ld, mixed %ld\n", step,
           e->batches[ATTN_MODE_EXTEND], e->batches[ATTN_MODE_DECODE], e->batches[ATTN_MODE_MIXED]);
    printf("peak blocks: window %d of %d, global %d of %d\n",
           pool_blocks[0] - 1 - e->group[0].least_free, pool_blocks[0] - 1,
           pool_blocks[1] - 1 - e->group[1].least_free, pool_blocks[1] - 1);
    printf("rows checked against fp64: %ld, all equal\n", e->rows_checked);
    tear_down(e);
    return 0;
}
