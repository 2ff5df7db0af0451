/* SPDX-License-Identifier: Apache-2.0
 *
 * embed: an engine on the CPU that uses attnhost for its attention layers and for nothing else.
 * embed_cuda.c is one on a GPU.
 *
 *   cc -O2 -o embed embed.c $(pkg-config --cflags --libs attnhost) -lm
 *   ./embed [PLUGIN_FILE_OR_FOLDER [BACKEND [DECODE_BACKEND]]]
 *
 * What is the engine's, in vLLM's words: the scheduler (continuous batching with chunked prefill),
 * the KV cache (a tensor [blocks, 2, page, heads, dim] for each layer, K and V are strided views of
 * it), two KV groups with block tables of their own (window layers, whose blocks are freed once
 * they fall out of the window, and global layers), query_start_loc, seq_lens, slot_mapping and the
 * loop. With DECODE_BACKEND, BACKEND serves prefill and the other one decode, composed by a few
 * lines instead of an ini.
 */
#include "embed_model.h"

enum {
    CHUNK = 16, /* prefill tokens of a request in one step */
    REQUESTS = 5,
    MAX_TOKENS = REQUESTS * CHUNK,
    MAX_BLOCKS = MAX_LEN / PAGE,
    HALF = PAGE * KV_HEADS * DIM,           /* elements of a block's K, and of its V */
    POOL_BLOCKS = 1 + REQUESTS * MAX_BLOCKS /* block 0 is the null block */
};

static const int prompt_len[REQUESTS] = {37, 5, 21, 1, 50};
static const int output_len[REQUESTS] = {9, 4, 12, 20, 3};
/* Both groups have their own pool. The window's is small: without freeing it would run out. */
static const int pool_blocks[GROUPS] = {21, POOL_BLOCKS};

/* A KV group: which blocks each request owns, and which are free. */
typedef struct kv_group {
    int32_t table[REQUESTS][MAX_BLOCKS]; /* 0 = not allocated, or freed once outside the window */
    int32_t free[POOL_BLOCKS];
    int num_free;
} kv_group;

/* What one step is about: `num_new` tokens of each of `num_seqs` requests. */
typedef struct step {
    int num_seqs, num_tokens;
    int request[REQUESTS], num_new[REQUESTS];
    int32_t query_start_loc[REQUESTS + 1], seq_lens[REQUESTS], num_computed[REQUESTS];
    int32_t req_pool_indices[REQUESTS];
    int32_t block_table[GROUPS][REQUESTS][MAX_BLOCKS];
    int64_t slot_mapping[GROUPS][MAX_TOKENS];
    attn_kv_batch kv[GROUPS];
    attn_batch batch;
} step;

typedef struct engine {
    model model;
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    uint32_t index_forms;
    float *kv[LAYERS]; /* [blocks, 2, PAGE, KV_HEADS, DIM] */
    kv_group group[GROUPS];
    int32_t req_to_token[GROUPS][REQUESTS + 1][MAX_LEN]; /* row 0 is padding's */
    int computed[REQUESTS];                              /* num_computed_tokens */
    step now;
    float q[MAX_TOKENS][Q_HEADS][DIM], out[MAX_TOKENS][Q_HEADS][DIM];
    float k[MAX_TOKENS][KV_HEADS][DIM], v[MAX_TOKENS][KV_HEADS][DIM];
    long batches[ATTN_MODE_COUNT], rows_checked;
} engine;

/* ---- KV cache: blocks of two groups ---------------------------------------------------------- */

/* All blocks but the null block are NaN before their first use and after their last: a key that no
 * query can see must not reach a result. */
static void free_block(engine *e, int g, int32_t block)
{
    for (int layer = g; layer < LAYERS; layer += GROUPS)
        for (int i = 0; i < 2 * HALF; i++)
            e->kv[layer][2 * HALF * block + i] = NAN;
    e->group[g].free[e->group[g].num_free++] = block;
}

static void make_cache(engine *e)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        e->kv[layer] = calloc((size_t)pool_blocks[layer % GROUPS] * 2 * HALF, sizeof(float));
        require(e->kv[layer] != NULL, "out of memory");
    }
    for (int g = 0; g < GROUPS; g++)
        for (int32_t block = pool_blocks[g] - 1; block > 0; block--)
            free_block(e, g, block);
}

/* Blocks for positions from `from` to `to`, and where their tokens go. */
static void allocate_blocks(engine *e, int g, int request, int from, int to)
{
    kv_group *group = &e->group[g];
    for (int position = from; position < to; position++) {
        int32_t *block = &group->table[request][position / PAGE];
        require(*block || group->num_free > 0, "a KV group is full");
        if (*block == 0)
            *block = group->free[--group->num_free];
        e->req_to_token[g][request + 1][position] = *block * PAGE + position % PAGE;
    }
}

/* Free blocks of positions below `end`. Their entries become the null block: a backend may read the
 * entry, never what follows it. */
static void free_blocks(engine *e, int g, int request, int end)
{
    for (int b = 0; (b + 1) * PAGE <= end; b++) {
        int32_t *block = &e->group[g].table[request][b];
        if (*block != 0)
            free_block(e, g, *block);
        *block = 0;
        memset(&e->req_to_token[g][request + 1][b * PAGE], 0, PAGE * sizeof(int32_t));
    }
}

/* ---- Batch: from the scheduler's words to attn_batch ----------------------------------------- */

/* Arrays of a batch lie on the device; a twin on the host is for planning. Here both are one. */
static attn_i32_array both(const int32_t *array)
{
    return (attn_i32_array){.host = array, .device = array};
}

static void add_sequence(engine *e, int request, int num_new)
{
    step *now = &e->now;
    int s = now->num_seqs++, computed = e->computed[request];
    now->request[s] = request;
    now->num_new[s] = num_new;
    now->num_computed[s] = computed;
    now->seq_lens[s] = computed + num_new;
    now->req_pool_indices[s] = request + 1;
    for (int g = 0; g < GROUPS; g++) {
        allocate_blocks(e, g, request, computed, computed + num_new);
        memcpy(now->block_table[g][s], e->group[g].table[request], sizeof now->block_table[g][s]);
        for (int t = 0; t < num_new; t++)
            now->slot_mapping[g][now->num_tokens + t] =
                e->req_to_token[g][request + 1][computed + t];
    }
    now->num_tokens += num_new;
    now->query_start_loc[s + 1] = now->num_tokens;
}

/* What the library makes of vLLM's words; another index form, if the backend reads one, is added.
 */
static void fill_batch(engine *e)
{
    step *now = &e->now;
    attnhost_paged_group groups[GROUPS];
    for (int g = 0; g < GROUPS; g++)
        groups[g] =
            (attnhost_paged_group){.struct_size = sizeof groups[g],
                                   .block_size = PAGE,
                                   .block_table = both(now->block_table[g][0]),
                                   .block_table_stride = MAX_BLOCKS,
                                   .slot_mapping = {now->slot_mapping[g], now->slot_mapping[g]}};
    const attnhost_paged_batch words = {.struct_size = sizeof words,
                                        .num_groups = GROUPS,
                                        .num_reqs = now->num_seqs,
                                        .num_actual_tokens = now->num_tokens,
                                        .query_start_loc = both(now->query_start_loc),
                                        .seq_lens = both(now->seq_lens),
                                        .num_computed_tokens = both(now->num_computed),
                                        .groups = groups};
    check(attnhost_paged_batch_init(&now->batch, now->kv, &words, &error), "batch");
    now->batch.req_pool_indices = both(now->req_pool_indices);
    for (int g = 0; g < GROUPS && e->index_forms & ATTN_INDEX_REQ_TO_TOKEN; g++) {
        now->kv[g].index_forms |= ATTN_INDEX_REQ_TO_TOKEN;
        now->kv[g].req_to_token = both(e->req_to_token[g][0]);
        now->kv[g].req_to_token_stride = MAX_LEN;
    }
}

/* ---- A step: plan once, forward each layer --------------------------------------------------- */

static void fill_vectors(engine *e, int layer)
{
    const step *now = &e->now;
    for (int s = 0; s < now->num_seqs; s++)
        for (int t = 0; t < now->num_new[s]; t++) {
            int row = now->query_start_loc[s] + t, position = now->num_computed[s] + t;
            make_row(QUERY, layer, now->request[s], position, Q_HEADS, e->q[row][0]);
            make_row(KEY, layer, now->request[s], position, KV_HEADS, e->k[row][0]);
            make_row(VALUE, layer, now->request[s], position, KV_HEADS, e->v[row][0]);
        }
    for (int i = 0; i < MAX_TOKENS * Q_HEADS * DIM; i++)
        (&e->out[0][0][0])[i] = NAN; /* so that a row that is not written is seen */
}

/* Of the cache, K and V are shown as [blocks, PAGE, KV_HEADS, DIM]: vLLM's kv_cache.unbind(1). */
static void forward_layer(engine *e, int layer)
{
    const attn_device *cpu = &e->model.device;
    const int64_t q_shape[] = {e->now.num_tokens, Q_HEADS, DIM};
    const int64_t kv_shape[] = {e->now.num_tokens, KV_HEADS, DIM};
    const int64_t cache_shape[] = {pool_blocks[layer % GROUPS], PAGE, KV_HEADS, DIM};
    const int64_t strides[] = {2 * HALF, KV_HEADS * DIM, DIM, 1};
    attn_tensor q = view(cpu, e->q, ATTN_F32, 3, q_shape, NULL);
    attn_tensor k = view(cpu, e->k, ATTN_F32, 3, kv_shape, NULL);
    attn_tensor v = view(cpu, e->v, ATTN_F32, 3, kv_shape, NULL);
    attn_tensor out = view(cpu, e->out, ATTN_F32, 3, q_shape, NULL);
    attn_tensor k_cache = view(cpu, e->kv[layer], ATTN_F32, 4, cache_shape, strides);
    attn_tensor v_cache = view(cpu, e->kv[layer] + HALF, ATTN_F32, 4, cache_shape, strides);
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
    check(attnhost_forward(e->metadata, layer, &args, NULL, &error), "forward");
}

static void check_layer(engine *e, int layer)
{
    const step *now = &e->now;
    for (int s = 0; s < now->num_seqs; s++)
        for (int t = 0; t < now->num_new[s]; t++, e->rows_checked++)
            check_row(e->out[now->query_start_loc[s] + t][0], layer, now->request[s],
                      now->num_computed[s] + t, 1e-5);
}

static void run_batch(engine *e)
{
    if (e->now.num_seqs == 0)
        return;
    fill_batch(e);
    check(attnhost_init_forward_metadata(e->metadata, &e->now.batch, NULL, &error), "plan");
    for (int layer = 0; layer < LAYERS; layer++) {
        fill_vectors(e, layer);
        forward_layer(e, layer);
        check_layer(e, layer);
    }
    e->batches[e->now.batch.mode]++;
}

/* ---- Scheduler ------------------------------------------------------------------------------- */

/* The first output token comes from prefill, so the last one is never computed. */
static int is_finished(const engine *e, int request)
{
    return e->computed[request] == prompt_len[request] + output_len[request] - 1;
}

/* Run what is in prefill, or in decode, as one batch; request r arrives at step r. */
static void run_phase(engine *e, int number, uint32_t mode)
{
    e->now.num_seqs = e->now.num_tokens = 0;
    for (int r = 0; r < REQUESTS && r <= number; r++) {
        int left = prompt_len[r] - e->computed[r], num_new = left < CHUNK ? left : CHUNK;
        if (!is_finished(e, r) && (mode == ATTN_MODE_DECODE) == (left <= 0))
            add_sequence(e, r, left <= 0 ? 1 : num_new);
    }
    run_batch(e);
    for (int s = 0; s < e->now.num_seqs; s++) {
        int r = e->now.request[s], computed = e->computed[r] += e->now.num_new[s];
        for (int g = 0; g < GROUPS; g++)
            if (is_finished(e, r))
                free_blocks(e, g, r, MAX_LEN);
            else if (window_left[g] >= 0)
                free_blocks(e, g, r, computed - window_left[g]);
    }
}

/* ---- Set-up: load, ask, compose -------------------------------------------------------------- */

static void set_up(engine *e, const char *path, const char *backend, const char *decode)
{
    model *m = &e->model;
    m->device.struct_size = sizeof m->device;
    e->host = load_plugins(path);
    if (decode) { /* what a section [backend.both] of an ini would say */
        const char *const options[] = {"prefill", backend, "decode", decode};
        check(attnhost_define_backend(e->host, "both", "hybrid_phase", options, 2, &error),
              "define");
        backend = "both";
    }
    check(attnhost_device_init(&m->device, ATTN_DEVICE_CPU, 0, &error), "device");
    describe_model(m, ATTN_F32, ATTN_GRAPH_NEVER, REQUESTS, MAX_TOKENS, CHUNK);
    ask(e->host, backend, m);
    check(attnhost_compose(e->host, backend, m->problems, GROUPS, &e->backend, &error), "compose");
    check(attnhost_backend_prepare(e->backend, NULL, NULL, &error), "prepare");
    e->index_forms = attnhost_backend_index_forms(e->backend);
    require(!(e->index_forms & ATTN_INDEX_CSR), "this engine keeps no lists of page ids (CSR)");
    check(attnhost_metadata_create(e->backend, ATTN_METADATA_EAGER, &m->bounds, NULL, &e->metadata,
                                   &error),
          "metadata");
    make_cache(e);
}

static void tear_down(engine *e)
{
    attnhost_metadata_destroy(e->metadata);
    attnhost_backend_destroy(e->backend);
    attnhost_destroy(e->host);
    for (int layer = 0; layer < LAYERS; layer++)
        free(e->kv[layer]);
    free(e);
}

int main(int argc, char **argv)
{
    int finished = 0, number = 0;
    engine *e = calloc(1, sizeof *e);
    require(e != NULL, "out of memory");
    set_up(e, argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : "cpu_native",
           argc > 3 ? argv[3] : NULL);
    for (; finished < REQUESTS; number++) {
        run_phase(e, number, ATTN_MODE_EXTEND);
        run_phase(e, number, ATTN_MODE_DECODE);
        finished = 0;
        for (int r = 0; r < REQUESTS; r++)
            finished += is_finished(e, r);
    }
    for (int g = 0; g < GROUPS; g++)
        require(e->group[g].num_free == pool_blocks[g] - 1, "blocks were leaked");
    printf("steps %d, batches: extend %ld, decode %ld\n", number, e->batches[ATTN_MODE_EXTEND],
           e->batches[ATTN_MODE_DECODE]);
    printf("rows checked against fp64: %ld, all equal\n", e->rows_checked);
    tear_down(e);
    return 0;
}
