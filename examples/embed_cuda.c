/* SPDX-License-Identifier: Apache-2.0
 *
 * embed_cuda: an engine on a GPU that uses attnhost for its attention layers and for nothing else.
 * embed.c is one on the CPU, with more of an engine around.
 *
 *   cc -O2 -o embed_cuda embed_cuda.c $(pkg-config --cflags --libs attnhost) -lm -ldl
 *   ./embed_cuda [PLUGIN_FILE_OR_FOLDER [BACKEND]]
 *
 * The engine's are: the device memory (KV cache, inputs, outputs, workspace), the stream, and the
 * graphs. Prefill runs eagerly. Decode replays one graph for all layers: there is one for each of a
 * few batch sizes, captured at start-up; a batch is padded to the next of them. Before each replay
 * the step's lengths, tables, slots and vectors are copied to where the graph reads them, and
 * attnhost_init_forward_metadata() plans the batch. Without a GPU it says so and exits with 77.
 */
#include "cuda_min.h"
#include "embed_model.h"

enum {
    CHUNK = 16, /* prefill tokens of a request in one step */
    REQUESTS = 7,
    NUM_GRAPHS = 3,
    MAX_SEQS = 8, /* the largest captured batch */
    MAX_TOKENS = REQUESTS * CHUNK,
    MAX_BLOCKS = MAX_LEN / PAGE,
    HALF = PAGE * KV_HEADS * DIM,            /* elements of a block's K, and of its V */
    POOL_BLOCKS = 1 + REQUESTS * MAX_BLOCKS, /* block 0 is the null block */
    NO_GPU = 77
};

static const int captured_size[NUM_GRAPHS] = {2, 4, MAX_SEQS};
static const int prompt_len[REQUESTS] = {37, 5, 21, 1, 50, 16, 30};
static const int output_len[REQUESTS] = {9, 24, 12, 40, 3, 7, 15};

/* Attention is computed from bf16 into fp32: a probability may be rounded to 8 bits. */
static const double tolerance = 4e-3;

/* All that a step reads, uploaded in one copy and always to the same place, for a graph has baked
 * in the addresses. (A real engine computes q, k and v on the device.) */
typedef struct inputs {
    _Alignas(256) uint16_t q[LAYERS][MAX_TOKENS][Q_HEADS][DIM]; /* bf16 */
    uint16_t k[LAYERS][MAX_TOKENS][KV_HEADS][DIM], v[LAYERS][MAX_TOKENS][KV_HEADS][DIM];
    int64_t slot_mapping[GROUPS][MAX_TOKENS];
    int32_t block_table[GROUPS][MAX_SEQS][MAX_BLOCKS];
    int32_t req_to_token[GROUPS][REQUESTS + 1][MAX_LEN]; /* row 0 is padding's */
    int32_t query_start_loc[MAX_SEQS + 1], seq_lens[MAX_SEQS], num_computed[MAX_SEQS];
    int32_t req_pool_indices[MAX_SEQS];
    int32_t num_real_seqs, num_real_tokens;
} inputs;

typedef float outputs[LAYERS][MAX_TOKENS][Q_HEADS][DIM];

/* Decode of up to `size` sequences. */
typedef struct decode_graph {
    int size;
    attnhost_metadata *metadata;
    CUgraphExec exec;
    long replays;
} decode_graph;

typedef struct engine {
    model model;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr kv[LAYERS]; /* bf16 [blocks, 2, PAGE, KV_HEADS, DIM] */
    inputs *in;             /* pinned; its twin on the device is what the kernels read */
    outputs *out;           /* pinned; likewise what they write */
    CUdeviceptr in_device, out_device;
    CUdeviceptr workspace;
    uint64_t workspace_size;

    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *eager;
    decode_graph graphs[NUM_GRAPHS];
    uint32_t index_forms;
    int32_t fill; /* seq_len of padding */

    int computed[REQUESTS];                   /* num_computed_tokens */
    int request[MAX_SEQS], num_new[MAX_SEQS]; /* what a step is about; request -1 = padding */
    attn_kv_batch kv_batch[GROUPS];
    attn_batch batch;
    long prefills, rows_checked;
} engine;

static void check_cuda(int result, const char *call)
{
    const char *name = "?";
    if (result == 0)
        return;
    cuda.cuGetErrorName(result, &name);
    fprintf(stderr, "embed_cuda: %s: %s\n", call, name);
    exit(1);
}

#define CUDA(call) check_cuda(cuda.call, #call)

/* ---- Device memory --------------------------------------------------------------------------- */

static CUdeviceptr address_of(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

static void *pointer_to(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

/* The null block is zero, since padding may read it; the others are NaN before their first use: a
 * key that no query can see must not reach a result. */
static void make_memory(engine *e)
{
    const size_t block = 2 * HALF * sizeof(uint16_t);
    for (int layer = 0; layer < LAYERS; layer++) {
        CUDA(cuMemAlloc(&e->kv[layer], POOL_BLOCKS * block));
        CUDA(cuMemsetD8Async(e->kv[layer], 0, block, e->stream));
        CUDA(cuMemsetD8Async(e->kv[layer] + block, 0xFF, (POOL_BLOCKS - 1) * block, e->stream));
    }
    CUDA(cuMemAlloc(&e->in_device, sizeof *e->in));
    CUDA(cuMemAlloc(&e->out_device, sizeof *e->out));
    void *in = NULL, *out = NULL;
    CUDA(cuMemHostAlloc(&in, sizeof *e->in, 0));
    CUDA(cuMemHostAlloc(&out, sizeof *e->out, 0));
    e->in = in;
    e->out = out;
}

/* In the order of the stream; outputs become NaN, so that a row that is not written is seen. */
static void upload(engine *e)
{
    CUDA(cuMemcpyAsync(e->in_device, address_of(e->in), sizeof *e->in, e->stream));
    CUDA(cuMemsetD8Async(e->out_device, 0xFF, sizeof *e->out, e->stream));
}

static void download(engine *e)
{
    CUDA(cuMemcpyAsync(address_of(e->out), e->out_device, sizeof *e->out, e->stream));
    CUDA(cuStreamSynchronize(e->stream));
}

/* ---- A step's inputs ------------------------------------------------------------------------- */

/* The two KV groups give out their blocks in different orders. */
static int32_t block_of(int g, int request, int position)
{
    return 1 + position / PAGE * REQUESTS + (request + 3 * g) % REQUESTS;
}

static int32_t slot_of(int g, int request, int position)
{
    return block_of(g, request, position) * PAGE + position % PAGE;
}

/* A token's vector; its values have no more bits than bf16, the upper half of fp32. */
static void fill_row(int kind, int layer, int request, int position, int heads, uint16_t *to)
{
    float row[Q_HEADS * DIM];
    make_row(kind, layer, request, position, heads, row);
    for (int i = 0; i < heads * DIM; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
}

static void fill_token(engine *e, int row, int request, int position)
{
    inputs *in = e->in;
    for (int layer = 0; layer < LAYERS; layer++) {
        fill_row(QUERY, layer, request, position, Q_HEADS, in->q[layer][row][0]);
        fill_row(KEY, layer, request, position, KV_HEADS, in->k[layer][row][0]);
        fill_row(VALUE, layer, request, position, KV_HEADS, in->v[layer][row][0]);
    }
    for (int g = 0; g < GROUPS; g++)
        in->slot_mapping[g][row] = slot_of(g, request, position);
}

static void fill_request(engine *e, int s)
{
    inputs *in = e->in;
    int request = e->request[s], computed = e->computed[request];
    in->num_computed[s] = computed;
    in->seq_lens[s] = computed + e->num_new[s];
    in->req_pool_indices[s] = request + 1;
    for (int g = 0; g < GROUPS; g++)
        for (int j = 0; j < in->seq_lens[s]; j++) {
            in->block_table[g][s][j / PAGE] = block_of(g, request, j);
            in->req_to_token[g][request + 1][j] = slot_of(g, request, j);
        }
    for (int t = 0; t < e->num_new[s]; t++)
        fill_token(e, in->query_start_loc[s] + t, request, computed + t);
}

/* Zero but for its length, and nothing is written for it. */
static void fill_padding(engine *e, int s)
{
    e->in->seq_lens[s] = e->fill;
    for (int g = 0; g < GROUPS; g++)
        e->in->slot_mapping[g][e->in->query_start_loc[s]] = -1;
}

/* `num_real` sequences of the engine's, then padding up to `num_seqs`. */
static void fill_inputs(engine *e, int num_real, int num_seqs)
{
    inputs *in = e->in;
    memset(in, 0, sizeof *in);
    for (int s = 0; s < num_seqs; s++) {
        if (s >= num_real) {
            e->request[s] = -1;
            e->num_new[s] = 1;
        }
        in->query_start_loc[s + 1] = in->query_start_loc[s] + e->num_new[s];
        if (s < num_real)
            fill_request(e, s);
        else
            fill_padding(e, s);
    }
    in->num_real_seqs = num_real;
    in->num_real_tokens = in->query_start_loc[num_real];
}

/* ---- Batch: where all this lies -------------------------------------------------------------- */

/* The place on the device of a part of the inputs. */
static void *on_device(const engine *e, const void *part)
{
    return pointer_to(e->in_device + (size_t)((const char *)part - (const char *)e->in));
}

static attn_i32_array both(const engine *e, const int32_t *array)
{
    return (attn_i32_array){.host = array, .device = on_device(e, array)};
}

static void fill_kv_group(engine *e, int g)
{
    const inputs *in = e->in;
    attn_kv_batch *kv = &e->kv_batch[g];
    *kv = (attn_kv_batch){
        .struct_size = sizeof *kv, .index_forms = e->index_forms, .page_size = PAGE};
    kv->out_cache_loc.host = in->slot_mapping[g];
    kv->out_cache_loc.device = on_device(e, in->slot_mapping[g]);
    if (e->index_forms & ATTN_INDEX_BLOCK_TABLE) {
        kv->block_table = both(e, in->block_table[g][0]);
        kv->block_table_stride = MAX_BLOCKS;
    }
    if (e->index_forms & ATTN_INDEX_REQ_TO_TOKEN) {
        kv->req_to_token = both(e, in->req_to_token[g][0]);
        kv->req_to_token_stride = MAX_LEN;
    }
}

static void fill_batch(engine *e, uint32_t mode, int num_seqs)
{
    const inputs *in = e->in;
    attn_batch *batch = &e->batch;
    *batch = (attn_batch){.struct_size = sizeof *batch,
                          .mode = mode,
                          .num_seqs = num_seqs,
                          .num_tokens = in->query_start_loc[num_seqs],
                          .num_real_seqs = in->num_real_seqs,
                          .num_real_tokens = in->num_real_tokens,
                          .num_kv_groups = GROUPS,
                          .seq_lens = both(e, in->seq_lens),
                          .prefix_lens = both(e, in->num_computed),
                          .q_indptr = both(e, in->query_start_loc),
                          .req_pool_indices = both(e, in->req_pool_indices),
                          .kv_groups = e->kv_batch};
    if (mode == ATTN_MODE_DECODE) { /* for kernels in a graph, which keeps the host's scalars */
        batch->num_real_seqs_device = on_device(e, &in->num_real_seqs);
        batch->num_real_tokens_device = on_device(e, &in->num_real_tokens);
    }
    for (int s = 0; s < num_seqs; s++) {
        if (e->num_new[s] > batch->max_q_len)
            batch->max_q_len = e->num_new[s];
        if (in->seq_lens[s] > batch->max_kv_len)
            batch->max_kv_len = in->seq_lens[s];
    }
    for (int g = 0; g < GROUPS; g++)
        fill_kv_group(e, g);
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static void forward_layer(engine *e, attnhost_metadata *metadata, int layer, uint32_t flags)
{
    const attn_device *gpu = &e->model.device;
    const int64_t q_shape[] = {e->batch.num_tokens, Q_HEADS, DIM};
    const int64_t kv_shape[] = {e->batch.num_tokens, KV_HEADS, DIM};
    const int64_t cache_shape[] = {POOL_BLOCKS, PAGE, KV_HEADS, DIM};
    const int64_t cache_strides[] = {2 * HALF, KV_HEADS * DIM, DIM, 1};
    uint16_t *cache = pointer_to(e->kv[layer]);
    float *rows = (float *)pointer_to(e->out_device) + layer * MAX_TOKENS * Q_HEADS * DIM;
    attn_tensor q = view(gpu, on_device(e, e->in->q[layer]), ATTN_BF16, 3, q_shape, NULL);
    attn_tensor k = view(gpu, on_device(e, e->in->k[layer]), ATTN_BF16, 3, kv_shape, NULL);
    attn_tensor v = view(gpu, on_device(e, e->in->v[layer]), ATTN_BF16, 3, kv_shape, NULL);
    attn_tensor out = view(gpu, rows, ATTN_F32, 3, q_shape, NULL);
    attn_tensor k_cache = view(gpu, cache, ATTN_BF16, 4, cache_shape, cache_strides);
    attn_tensor v_cache = view(gpu, cache + HALF, ATTN_BF16, 4, cache_shape, cache_strides);
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {
        [ATTN_ROLE_Q] = &q,
        [ATTN_ROLE_K] = &k,
        [ATTN_ROLE_V] = &v,
        [ATTN_ROLE_OUT] = &out,
        [ATTN_ROLE_K_CACHE] = &k_cache,
        [ATTN_ROLE_V_CACHE] = &v_cache,
    };
    attn_forward_args args = {.struct_size = sizeof args,
                              .flags = ATTN_FORWARD_SAVE_KV | flags,
                              .num_operands = ATTN_ROLE_COUNT,
                              .operands = operands};
    check(attnhost_forward(metadata, layer, &args, e->stream, &error), "forward");
}

/* Upload the inputs and plan them. */
static void plan(engine *e, attnhost_metadata *metadata, uint32_t mode, int num_real, int num_seqs)
{
    fill_inputs(e, num_real, num_seqs);
    fill_batch(e, mode, num_seqs);
    upload(e);
    check(attnhost_init_forward_metadata(metadata, &e->batch, e->stream, &error), "plan");
}

/* The first plan of GRAPH metadata prepares the capture, with a batch of nothing but padding. */
static void capture(engine *e, decode_graph *graph)
{
    CUgraph captured = NULL;
    plan(e, graph->metadata, ATTN_MODE_DECODE, 0, graph->size);
    CUDA(cuStreamBeginCapture(e->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int layer = 0; layer < LAYERS; layer++)
        forward_layer(e, graph->metadata, layer, ATTN_FORWARD_CAPTURING);
    CUDA(cuStreamEndCapture(e->stream, &captured));
    CUDA(cuGraphInstantiate(&graph->exec, captured, 0));
    CUDA(cuGraphDestroy(captured));
    CUDA(cuStreamSynchronize(e->stream)); /* the inputs are free to be filled again */
}

/* ---- A step ---------------------------------------------------------------------------------- */

static void check_outputs(engine *e, int num_real)
{
    const inputs *in = e->in;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int s = 0; s < num_real; s++)
            for (int t = 0; t < e->num_new[s]; t++, e->rows_checked++)
                check_row((*e->out)[layer][in->query_start_loc[s] + t][0], layer, e->request[s],
                          in->num_computed[s] + t, tolerance);
        for (int row = in->num_real_tokens; row < e->batch.num_tokens; row++)
            for (int i = 0; i < Q_HEADS * DIM; i++)
                require(isfinite((*e->out)[layer][row][i / DIM][i % DIM]),
                        "a row of padding is not finite");
    }
}

static void prefill(engine *e, int num_seqs)
{
    plan(e, e->eager, ATTN_MODE_EXTEND, num_seqs, num_seqs);
    for (int layer = 0; layer < LAYERS; layer++)
        forward_layer(e, e->eager, layer, 0);
    e->prefills++;
}

static void decode(engine *e, int num_seqs)
{
    decode_graph *graph = e->graphs;
    while (graph->size < num_seqs)
        graph++;
    plan(e, graph->metadata, ATTN_MODE_DECODE, num_seqs, graph->size);
    CUDA(cuGraphLaunch(graph->exec, e->stream));
    graph->replays++;
}

/* The first output token comes from prefill, so the last one is never computed. */
static int is_finished(const engine *e, int request)
{
    return e->computed[request] == prompt_len[request] + output_len[request] - 1;
}

/* Run what is in prefill, or in decode, as one batch; request r arrives at step r. */
static void run_phase(engine *e, int step, uint32_t mode)
{
    int count = 0;
    for (int r = 0; r < REQUESTS && r <= step; r++) {
        int left = prompt_len[r] - e->computed[r];
        if (is_finished(e, r) || (mode == ATTN_MODE_DECODE) != (left <= 0))
            continue;
        e->request[count] = r;
        e->num_new[count++] = left <= 0 ? 1 : left < CHUNK ? left : CHUNK;
    }
    if (count == 0)
        return;
    if (mode == ATTN_MODE_DECODE)
        decode(e, count);
    else
        prefill(e, count);
    download(e);
    check_outputs(e, count);
    for (int s = 0; s < count; s++)
        e->computed[e->request[s]] += e->num_new[s];
}

/* ---- Set-up ---------------------------------------------------------------------------------- */

static attn_bounds bounds_of_graph(const model *m, int size)
{
    attn_bounds bounds = m->bounds;
    bounds.modes = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    bounds.max_seqs = bounds.max_tokens = size;
    bounds.max_q_len = 1;
    bounds.max_kv_tokens = size * MAX_LEN;
    return bounds;
}

enum { SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH) };

/* One workspace for all, as all run on one stream; the largest need of either kind. */
static void make_workspace(engine *e)
{
    const attn_bounds largest[] = {e->model.bounds, bounds_of_graph(&e->model, MAX_SEQS)};
    for (uint32_t kind = ATTN_METADATA_EAGER; kind <= ATTN_METADATA_GRAPH; kind++) {
        attn_memory_size size = {.struct_size = sizeof size};
        check(attnhost_metadata_size(e->backend, kind, &largest[kind], &size, &error),
              "metadata size");
        if (size.size[SCRATCH] > e->workspace_size)
            e->workspace_size = size.size[SCRATCH];
    }
    if (e->workspace_size > 0)
        CUDA(cuMemAlloc(&e->workspace, e->workspace_size));
}

/* The scratch is the engine's workspace, the rest the library allocates. */
static attnhost_metadata *make_metadata(engine *e, uint32_t kind, const attn_bounds *bounds)
{
    attnhost_metadata *metadata = NULL;
    attn_memory memory = {.struct_size = sizeof memory};
    memory.base[SCRATCH] = pointer_to(e->workspace);
    memory.size[SCRATCH] = e->workspace_size;
    check(attnhost_metadata_create(e->backend, kind, bounds, &memory, &metadata, &error),
          "metadata");
    return metadata;
}

static void open_device(engine *e)
{
    attn_device *device = &e->model.device;
    device->struct_size = sizeof *device;
    if (attnhost_device_init(device, ATTN_DEVICE_CUDA, 0, &error) != ATTN_OK) {
        printf("embed_cuda: no GPU here: %s\n", message);
        exit(NO_GPU);
    }
    const char *missing = cuda_open();
    require(!missing, missing);
    CUDA(cuDeviceGet(&e->device, 0));
    CUDA(cuDevicePrimaryCtxRetain(&e->context, e->device));
    CUDA(cuCtxSetCurrent(e->context));
    CUDA(cuStreamCreate(&e->stream, CU_STREAM_NON_BLOCKING));
}

static void set_up(engine *e, const char *path, const char *backend)
{
    model *m = &e->model;
    open_device(e);
    make_memory(e);
    e->host = load_plugins(path);
    describe_model(m, ATTN_BF16, ATTN_GRAPH_SINGLE_TOKEN, MAX_SEQS, MAX_TOKENS, CHUNK);
    e->fill = ask(e->host, backend, m);
    check(attnhost_compose(e->host, backend, m->problems, GROUPS, &e->backend, &error), "compose");
    check(attnhost_backend_prepare(e->backend, NULL, NULL, &error), "prepare");
    e->index_forms = attnhost_backend_index_forms(e->backend);
    require(!(e->index_forms & ATTN_INDEX_CSR), "this engine keeps no lists of page ids (CSR)");
    make_workspace(e);
    e->eager = make_metadata(e, ATTN_METADATA_EAGER, &m->bounds);
    for (int i = 0; i < NUM_GRAPHS; i++) {
        attn_bounds bounds = bounds_of_graph(m, captured_size[i]);
        e->graphs[i].size = captured_size[i];
        e->graphs[i].metadata = make_metadata(e, ATTN_METADATA_GRAPH, &bounds);
        capture(e, &e->graphs[i]);
    }
}

static void tear_down(engine *e)
{
    for (int i = 0; i < NUM_GRAPHS; i++) {
        CUDA(cuGraphExecDestroy(e->graphs[i].exec));
        attnhost_metadata_destroy(e->graphs[i].metadata);
    }
    attnhost_metadata_destroy(e->eager);
    attnhost_backend_destroy(e->backend);
    attnhost_destroy(e->host);
    for (int layer = 0; layer < LAYERS; layer++)
        CUDA(cuMemFree(e->kv[layer]));
    CUDA(cuMemFree(e->in_device));
    CUDA(cuMemFree(e->out_device));
    CUDA(cuMemFree(e->workspace));
    CUDA(cuMemFreeHost(e->in));
    CUDA(cuMemFreeHost(e->out));
    CUDA(cuStreamDestroy(e->stream));
    CUDA(cuDevicePrimaryCtxRelease(e->device));
}

int main(int argc, char **argv)
{
    static engine the_engine;
    engine *e = &the_engine;
    int step = 0, finished = 0;
    set_up(e, argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : "triton_like");
    for (; finished < REQUESTS; step++) {
        run_phase(e, step, ATTN_MODE_EXTEND);
        run_phase(e, step, ATTN_MODE_DECODE);
        finished = 0;
        for (int r = 0; r < REQUESTS; r++)
            finished += is_finished(e, r);
    }
    printf("steps %d, prefills %ld, replays", step, e->prefills);
    for (int i = 0; i < NUM_GRAPHS; i++)
        printf(" of %d: %ld%s", e->graphs[i].size, e->graphs[i].replays,
               i + 1 < NUM_GRAPHS ? "," : "\n");
    printf("rows checked against fp64: %ld, all equal\n", e->rows_checked);
    tear_down(e);
    return 0;
}
