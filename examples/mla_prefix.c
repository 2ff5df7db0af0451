/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_prefix: latent attention (MLA, DeepSeek-V2) in the expanded form, over a prompt that comes in
 * pieces: an engine on the CPU.
 *
 *   cc -O2 -o mla_prefix mla_prefix.c $(pkg-config --cflags --libs attnhost) -lm
 *   ./mla_prefix [PLUGIN_FILE_OR_FOLDER [BACKEND]]
 *
 * In the expanded form a call sees the keys that it is given, and nothing of the cache. So a step
 * whose requests have a prefix is several calls for a layer:
 *
 *   1. the new rows among themselves, causal; their latents are saved into the cache
 *   2. for each chunk of the prefix: the engine gathers its latents, expands them into K and V of
 *      each head, and calls with ATTN_MASK_NONE, since all of these keys are seen by every new row
 *   3. attnhost_merge of both results, by their LSE, into the first one
 *
 * Each of the calls is a batch of its own, so there is separate metadata for the chunks.
 */
#include <attnhost.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADS = 4,
    LORA = 512, /* of the latent; DeepSeek's numbers */
    ROPE = 64,
    NOPE = 128,
    V_DIM = 128,
    DIM = NOPE + ROPE,
    ROW = LORA + ROPE, /* of the cache: the latent, then the key part that all heads share */
    REQUESTS = 2,
    PAGE = 16,
    MAX_LEN = 160,
    MAX_BLOCKS = MAX_LEN / PAGE,
    CHUNK = 40, /* prefix keys of a request in one call */
    MAX_ROWS = REQUESTS * 64
};

/* New tokens of each request in each step: request 1 joins later, without a prefix. */
static const int steps[][REQUESTS] = {{64, 0}, {37, 21}, {7, 5}};
enum { STEPS = sizeof steps / sizeof *steps };

static char message[512];
static attn_error error = {
    .struct_size = sizeof error, .capacity = sizeof message, .message = message};

static void check(attn_status status, const char *what)
{
    if (status == ATTN_OK)
        return;
    fprintf(stderr, "mla_prefix: %s: %s: %s\n", what, attnhost_status_name(status), message);
    exit(1);
}

/* ---- A layer without a model: everything is a hash of where it belongs ----------------------- */

enum { LATENT, PE, QUERY, UK, UV };

static float element(int kind, int a, int b, int c)
{
    uint64_t x = (uint64_t)kind << 56 | (uint64_t)a << 40 | (uint64_t)b << 20 | (uint64_t)c;
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return (float)((int64_t)(x ^ x >> 33) >> 57) / 64;
}

static float up_k[HEADS][NOPE][LORA], up_v[HEADS][V_DIM][LORA]; /* W_UK, W_UV */

static void make_weights(void)
{
    for (int h = 0; h < HEADS; h++)
        for (int d = 0; d < NOPE; d++)
            for (int r = 0; r < LORA; r++) {
                up_k[h][d][r] = element(UK, h, d, r) / 16;
                up_v[h][d][r] = element(UV, h, d, r) / 16;
            }
}

static void make_latent(int request, int position, float *row)
{
    for (int r = 0; r < ROW; r++)
        row[r] = element(r < LORA ? LATENT : PE, request, position, r);
}

/* What an engine's up-projection does: K and V of all heads from a row of the cache. */
static void expand(const float *row, float *k, float *v)
{
    for (int h = 0; h < HEADS; h++)
        for (int d = 0; d < NOPE; d++) {
            double key = 0, value = 0;
            for (int r = 0; r < LORA; r++) {
                key += (double)up_k[h][d][r] * row[r];
                value += (double)up_v[h][d][r] * row[r];
            }
            k[h * DIM + d] = (float)key;
            v[h * V_DIM + d] = (float)value;
        }
    for (int h = 0; h < HEADS; h++)
        memcpy(k + h * DIM + NOPE, row + LORA, ROPE * sizeof *k);
}

/* ---- The engine ------------------------------------------------------------------------------ */

typedef struct engine {
    attnhost *host;
    attnhost_backend *backend;
    attnhost_metadata *new_rows, *chunk;
    int32_t computed[REQUESTS];
    int32_t block_table[REQUESTS][MAX_BLOCKS];
    float cache[(1 + REQUESTS * MAX_BLOCKS) * PAGE][ROW]; /* block 0 is padding */
    /* The step: */
    int num_tokens;
    int32_t query_start_loc[REQUESTS + 1], seq_lens[REQUESTS], num_computed[REQUESTS];
    int64_t slot_mapping[MAX_ROWS];
    attn_batch batch;
    attn_kv_batch kv;
    /* Rows of a call: */
    float q[MAX_ROWS][HEADS * DIM], k[MAX_ROWS][HEADS * DIM], v[MAX_ROWS][HEADS * V_DIM];
    float latent[MAX_ROWS][ROW];
    float out[2][MAX_ROWS][HEADS * V_DIM], lse[2][MAX_ROWS][HEADS]; /* merged, and of a chunk */
    long rows_checked, chunks;
} engine;

static attn_i32_array both(const int32_t *array)
{
    return (attn_i32_array){array, array};
}

static attn_tensor view(void *data, uint32_t ndim, const int64_t *shape, const int64_t *strides)
{
    attn_tensor made;
    check(attnhost_tensor_init(&made, data, ATTN_DEVICE_CPU, 0, ATTN_F32, ndim, shape, strides,
                               &error),
          "tensor");
    return made;
}

static attn_tensor rows_of(void *data, int rows, int heads, int dim)
{
    const int64_t shape[] = {rows, heads, dim};
    return view(data, dim ? 3 : 2, shape, NULL);
}

/* Where a request's key lies in the cache. */
static int slot_of(const engine *e, int request, int position)
{
    return e->block_table[request][position / PAGE] * PAGE + position % PAGE;
}

static void fill_step(engine *e, const int *num_new)
{
    e->num_tokens = 0;
    for (int r = 0; r < REQUESTS; r++) {
        e->num_computed[r] = e->computed[r];
        e->seq_lens[r] = e->computed[r] + num_new[r];
        e->query_start_loc[r] = e->num_tokens;
        for (int t = 0; t < num_new[r]; t++, e->num_tokens++) {
            int position = e->computed[r] + t, row = e->num_tokens;
            e->slot_mapping[row] = slot_of(e, r, position);
            for (int i = 0; i < HEADS * DIM; i++)
                e->q[row][i] = element(QUERY, r, position, i);
            make_latent(r, position, e->latent[row]);
            expand(e->latent[row], e->k[row], e->v[row]);
        }
    }
    e->query_start_loc[REQUESTS] = e->num_tokens;
    const attnhost_paged_group group = {.struct_size = sizeof group,
                                        .block_size = PAGE,
                                        .block_table_stride = MAX_BLOCKS,
                                        .block_table = both(e->block_table[0]),
                                        .slot_mapping = {e->slot_mapping, e->slot_mapping}};
    const attnhost_paged_batch words = {.struct_size = sizeof words,
                                        .num_groups = 1,
                                        .num_reqs = REQUESTS,
                                        .num_actual_tokens = e->num_tokens,
                                        .query_start_loc = both(e->query_start_loc),
                                        .seq_lens = both(e->seq_lens),
                                        .num_computed_tokens = both(e->num_computed),
                                        .groups = &group};
    check(attnhost_paged_batch_init(&e->batch, &e->kv, &words, &error), "batch");
}

/* A call with `num_keys` rows of K and V, its results into out[result]. */
static void call(engine *e, attnhost_metadata *metadata, int num_keys, int result, uint32_t flags)
{
    const int64_t cache_shape[] = {1 + REQUESTS * MAX_BLOCKS, PAGE, ROW};
    const int64_t c_kv_shape[] = {num_keys, LORA}, k_pe_shape[] = {num_keys, ROPE};
    const int64_t strides[] = {ROW, 1};
    attn_tensor q = rows_of(e->q, e->num_tokens, HEADS, DIM);
    attn_tensor k = rows_of(e->k, num_keys, HEADS, DIM);
    attn_tensor v = rows_of(e->v, num_keys, HEADS, V_DIM);
    attn_tensor out = rows_of(e->out[result], e->num_tokens, HEADS, V_DIM);
    attn_tensor lse = rows_of(e->lse[result], e->num_tokens, HEADS, 0);
    attn_tensor c_kv = view(e->latent[0], 2, c_kv_shape, strides);
    attn_tensor k_pe = view(e->latent[0] + LORA, 2, k_pe_shape, strides);
    attn_tensor cache = view(e->cache, 3, cache_shape, NULL);
    int saves = (flags & ATTN_FORWARD_SAVE_KV) != 0;
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {
        [ATTN_ROLE_Q] = &q,
        [ATTN_ROLE_K] = &k,
        [ATTN_ROLE_V] = &v,
        [ATTN_ROLE_OUT] = &out,
        [ATTN_ROLE_LSE] = &lse,
        [ATTN_ROLE_C_KV] = saves ? &c_kv : NULL,
        [ATTN_ROLE_K_PE] = saves ? &k_pe : NULL,
        [ATTN_ROLE_LATENT_CACHE] = &cache,
    };
    const attn_forward_args args = {.struct_size = sizeof args,
                                    .flags = flags,
                                    .num_operands = ATTN_ROLE_COUNT,
                                    .operands = operands};
    check(attnhost_forward(metadata, 0, &args, NULL, &error), "forward");
}

/* Keys first .. first + CHUNK of each prefix, out of the cache. Returns how many there are. */
static int gather(engine *e, int first, int32_t *kv_lens, int32_t *kv_new_indptr)
{
    int count = 0;
    for (int r = 0; r < REQUESTS; r++) {
        int end = e->num_computed[r] < first + CHUNK ? e->num_computed[r] : first + CHUNK;
        kv_new_indptr[r] = count;
        kv_lens[r] = end > first ? end : 0;
        for (int position = first; position < end; position++, count++)
            expand(e->cache[slot_of(e, r, position)], e->k[count], e->v[count]);
    }
    kv_new_indptr[REQUESTS] = count;
    return count;
}

static void merge_chunk(engine *e)
{
    attn_tensor outs[2], lses[2];
    for (int i = 0; i < 2; i++) {
        outs[i] = rows_of(e->out[i], e->num_tokens, HEADS, V_DIM);
        lses[i] = rows_of(e->lse[i], e->num_tokens, HEADS, 0);
    }
    const attn_tensor *const parts[] = {&outs[0], &outs[1]}, *const sums[] = {&lses[0], &lses[1]};
    check(attnhost_merge(e->backend, parts, sums, 2, &outs[0], &lses[0], NULL, &error), "merge");
}

/* One layer of a step. */
static void run_layer(engine *e)
{
    const attn_mask everything = {.struct_size = sizeof everything, .kind = ATTN_MASK_NONE};
    int32_t kv_lens[REQUESTS], kv_new_indptr[REQUESTS + 1];
    check(attnhost_init_forward_metadata(e->new_rows, &e->batch, NULL, &error), "plan");
    call(e, e->new_rows, e->num_tokens, 0, ATTN_FORWARD_SAVE_KV);
    for (int first = 0, num_keys; (num_keys = gather(e, first, kv_lens, kv_new_indptr)) > 0;
         first += CHUNK) {
        attn_kv_batch kv = e->kv;
        attn_batch batch = e->batch;
        kv.kv_lens = both(kv_lens);
        kv.kv_new_indptr = both(kv_new_indptr);
        kv.out_cache_loc = (attn_i64_array){NULL, NULL};
        batch.kv_groups = &kv;
        batch.mask = &everything;
        check(attnhost_init_forward_metadata(e->chunk, &batch, NULL, &error), "plan a chunk");
        call(e, e->chunk, num_keys, 1, 0);
        merge_chunk(e);
        e->chunks++;
    }
}

/* ---- Against all keys at once, in fp64 ------------------------------------------------------- */

static const double sm_scale = 0.07216878364870322; /* 1 / sqrt(DIM) */

static void check_head(const engine *e, int request, int row, int position, int head)
{
    static float k[MAX_LEN][HEADS * DIM], v[MAX_LEN][HEADS * V_DIM];
    double score[MAX_LEN], largest = -INFINITY, total = 0;
    for (int j = 0; j <= position; j++) {
        float latent[ROW];
        if (head == 0) {
            make_latent(request, j, latent);
            expand(latent, k[j], v[j]);
        }
        score[j] = 0;
        for (int d = 0; d < DIM; d++)
            score[j] += sm_scale * e->q[row][head * DIM + d] * k[j][head * DIM + d];
        largest = fmax(largest, score[j]);
    }
    for (int j = 0; j <= position; j++)
        total += score[j] = exp(score[j] - largest);
    for (int d = 0; d < V_DIM; d++) {
        double expected = 0, got = e->out[0][row][head * V_DIM + d];
        for (int j = 0; j <= position; j++)
            expected += score[j] / total * v[j][head * V_DIM + d];
        if (fabs(got - expected) <= 1e-4)
            continue;
        fprintf(stderr, "mla_prefix: request %d position %d head %d: got %.9g, expected %.9g\n",
                request, position, head, got, expected);
        exit(1);
    }
}

/* The first and the last rows of each request. */
static void check_step(engine *e)
{
    for (int r = 0; r < REQUESTS; r++) {
        int num_new = e->query_start_loc[r + 1] - e->query_start_loc[r];
        for (int t = 0; t<num_new; t += num_new> 1 ? num_new - 1 : 1, e->rows_checked++)
            for (int h = 0; h < HEADS; h++)
                check_head(e, r, e->query_start_loc[r] + t, e->num_computed[r] + t, h);
    }
}

/* ---- Set-up ---------------------------------------------------------------------------------- */

static void load_plugins(engine *e, const char *path)
{
    size_t length = path ? strlen(path) : 0;
    check(attnhost_create(NULL, &e->host, &error), "host");
    if (!path)
        check(attnhost_load_installed(e->host, &error), "installed plugins");
    else if (length > 3 && strcmp(path + length - 3, ".so") == 0)
        check(attnhost_load_plugin(e->host, path, &error), path);
    else
        check(attnhost_load_directory(e->host, path, &error), path);
}

/* Calls over a chunk have their own mask, K and V that are not saved, and an LSE. */
static void compose(engine *e, const char *name)
{
    attn_device device = {.struct_size = sizeof device};
    check(attnhost_device_init(&device, ATTN_DEVICE_CPU, 0, &error), "device");
    const attn_bounds bounds = {.struct_size = sizeof bounds,
                                .modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND),
                                .mask_kinds =
                                    ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
                                .uses = ATTN_USES_LSE | ATTN_USES_UNSAVED_KV,
                                .max_seqs = REQUESTS,
                                .max_tokens = MAX_ROWS,
                                .max_q_len = MAX_ROWS,
                                .max_kv_len = MAX_LEN,
                                .max_kv_tokens = REQUESTS * MAX_LEN};
    const attn_mla_dims mla = {
        .struct_size = sizeof mla, .kv_lora_rank = LORA, .rope_dim = ROPE, .nope_dim = NOPE};
    const attn_layer layer = {.struct_size = sizeof layer};
    const attn_layer_group group = {.struct_size = sizeof group,
                                    .kind = ATTN_KIND_MLA,
                                    .num_q_heads = HEADS,
                                    .num_kv_heads = HEADS,
                                    .head_dim = DIM,
                                    .v_head_dim = V_DIM,
                                    .window_left = -1,
                                    .sm_scale = (float)sm_scale,
                                    .num_layers = 1,
                                    .layers = &layer,
                                    .mla = &mla};
    const attn_problem problem = {.struct_size = sizeof problem,
                                  .device = &device,
                                  .group = &group,
                                  .bounds = &bounds,
                                  .kv_layout = ATTN_LAYOUT_MLA_LATENT,
                                  .q_dtype = ATTN_F32,
                                  .kv_dtype = ATTN_F32,
                                  .out_dtype = ATTN_F32,
                                  .page_size = PAGE,
                                  .mla_expanded = ATTN_MODE_BIT(ATTN_MODE_EXTEND),
                                  .tp_size = 1};
    check(attnhost_compose(e->host, name, &problem, 1, &e->backend, &error), "compose");
    attnhost_metadata **both[] = {&e->new_rows, &e->chunk};
    for (int i = 0; i < 2; i++)
        check(attnhost_metadata_create(e->backend, ATTN_METADATA_EAGER, &bounds, NULL, both[i],
                                       &error),
              "metadata");
}

int main(int argc, char **argv)
{
    engine *e = calloc(1, sizeof *e);
    if (!e)
        return 1;
    make_weights();
    load_plugins(e, argc > 1 ? argv[1] : NULL);
    compose(e, argc > 2 ? argv[2] : "cpu_native");
    for (int r = 0; r < REQUESTS; r++)
        for (int b = 0; b < MAX_BLOCKS; b++)
            e->block_table[r][b] = 1 + b * REQUESTS + r;
    for (int s = 0; s < STEPS; s++) {
        fill_step(e, steps[s]);
        run_layer(e);
        check_step(e);
        for (int r = 0; r < REQUESTS; r++)
            e->computed[r] += steps[s][r];
    }
    printf("steps %d, chunks of prefixes %ld\n", STEPS, e->chunks);
    printf("rows checked against fp64: %ld, all equal\n", e->rows_checked);
    attnhost_metadata_destroy(e->chunk);
    attnhost_metadata_destroy(e->new_rows);
    attnhost_backend_destroy(e->backend);
    attnhost_destroy(e->host);
    free(e);
    return 0;
}
