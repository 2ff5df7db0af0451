/* SPDX-License-Identifier: Apache-2.0
 *
 * device_triton_pool.c: triton_like's .so on a GPU with a KV pool of more than 2^31 elements, and a
 * thousand times over.
 *
 *   device_triton_pool [PAGES [REPETITIONS]]
 *
 * The pool is poisoned with NaN. Sequences have pages all over it: its last one, and those on both
 * sides of 2^31 bytes and of 2^31 elements. Each query is aligned with a key on one of those, so
 * that a wrong page moves its row far. Outputs are held to the oracle; afterwards the whole pool
 * must be what it was, but for the new keys. Then the same forward is repeated: to the bit, with
 * outputs and workspace poisoned before, red zones around everything. Prints TAP.
 */
#include "tests/tools/cuda_device.h"
#include "plugins/triton_like/tests/triton_device.h"

#include "attn_plugin.h"
#include "host/base/dtype.h"
#include "host/reference/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 16,
    KV_HEADS = 8,
    Q_HEADS = 32,
    DIM = 128,
    PAGE_BYTES = PAGE * KV_HEADS * DIM * 2,
    DEFAULT_PAGES = 134400, /* 2.2e9 elements, 4.4 GB */
    SEQS = 5,
    MAX_TOKENS = 160,
    MAX_KV = 1500,
    TABLE = (MAX_KV + PAGE - 1) / PAGE,
    CHUNK = 512 /* pages that are compared at once */
};

static const int32_t kv_lens[SEQS] = {1, 16, 77, 613, MAX_KV};
static const int32_t q_lens[SEQS] = {1, 9, 30, 50, 5}; /* the last: on a page with older keys */

static cuda_device cuda;
static const attn_backend_type *type;
static cuda_stream stream;
static int tests, failures;

static void result(int good, const char *what)
{
    tests++;
    failures += !good;
    printf("%sok %d - %s\n", good ? "" : "not ", tests, what);
}

/* ---- The plugin ------------------------------------------------------------------------------ */

/* The extension attn.compile_counter/1, as the plugin's README has it. */
struct compile_counter {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t compiled;
    uint64_t cached;
};

/* ---- The pool -------------------------------------------------------------------------------- */

/* K and V on the device, and what they must hold: the pages that are in use lie in host memory of
 * the same shape, of which the rest is never touched. */
typedef struct pool {
    int32_t pages;
    size_t bytes; /* of K, and of V */
    red_buffer device[2];
    char *image[2];
    unsigned char *used;        /* by page */
    int32_t table[SEQS][TABLE]; /* page 0 where there is none */
} pool;

static int pool_init(pool *p, int32_t pages)
{
    memset(p, 0, sizeof *p);
    p->pages = pages;
    p->bytes = (size_t)pages * PAGE_BYTES;
    p->used = calloc(1, (size_t)pages);
    for (int i = 0; i < 2; i++) {
        p->image[i] = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p->image[i] == MAP_FAILED)
            test_bail_out("mmap", "no address space");
        if (!cuda_try_take(&cuda, p->bytes, &p->device[i]))
            return 0;
    }
    return 1;
}

/* Pages where an index or an address that is too narrow would go wrong. */
static int special_pages(const pool *p, int32_t *pages)
{
    int64_t bytes31 = (INT64_C(1) << 31) / PAGE_BYTES, elements31 = bytes31 * 2;
    const int64_t wanted[] = {p->pages - 1,    1,
                              bytes31,         bytes31 - 1,
                              elements31,      elements31 - 1,
                              elements31 + 1,  p->pages - 2,
                              3 * bytes31 / 2, p->pages / 2};
    int count = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (wanted[i] > 0 && wanted[i] < p->pages)
            pages[count++] = (int32_t)wanted[i];
    return count;
}

static int32_t take_page(pool *p, int32_t wish)
{
    while (p->used[wish] || wish == 0)
        wish = (wish + 7919) % p->pages;
    p->used[wish] = 1;
    return wish;
}

/* The last page of the pool ends the longest sequence; the other special ones begin sequences, two
 * each, and the rest is spread. */
static void hand_out_pages(pool *p)
{
    int32_t special[16], next = 1;
    int count = special_pages(p, special), given = 1;
    p->table[SEQS - 1][TABLE - 1] = take_page(p, special[0]);
    for (int s = SEQS - 1; s >= 0; s--)
        for (int i = 0; i < (kv_lens[s] + PAGE - 1) / PAGE; i++) {
            if (p->table[s][i])
                continue;
            int is_special = given < count && (i < 2 || s == SEQS - 1);
            next = (int32_t)((next + INT64_C(104729)) % p->pages);
            p->table[s][i] = take_page(p, is_special ? special[given++] : next);
        }
}

static void random_bf16(uint16_t *to, int64_t count, uint32_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        *state = *state * 1664525u + 1013904223u;
        to[i] = dtype_bf16_bits(((double)(*state >> 8) / (1 << 24) - 0.5) * 3.3);
    }
}

/* New values in all pages in use, on both sides; poison everywhere else. */
static void fill_pool(pool *p, uint32_t seed)
{
    for (int i = 0; i < 2; i++) {
        cuda_poison(&cuda, &p->device[i]);
        for (int32_t page = 0; page < p->pages; page++) {
            size_t at = (size_t)page * PAGE_BYTES;
            if (!p->used[page])
                continue;
            random_bf16((uint16_t *)(void *)(p->image[i] + at), PAGE_BYTES / 2, &seed);
            cuda_upload(&cuda, &p->device[i], at, p->image[i] + at, PAGE_BYTES);
        }
    }
}

static void to_image(const pool *p, int side, int32_t page, char *bytes)
{
    if (p->used[page])
        memcpy(bytes, p->image[side] + (size_t)page * PAGE_BYTES, PAGE_BYTES);
    else
        memset(bytes, POISON, PAGE_BYTES);
}

/* Pages of K and V that are not what the image says. */
static long wrong_pages(const pool *p)
{
    char *got = malloc((size_t)CHUNK * PAGE_BYTES), right[PAGE_BYTES];
    long wrong = 0;
    for (int side = 0; side < 2; side++) {
        for (int32_t page = 0; page < p->pages; page++) {
            int32_t in_chunk = page % CHUNK, left = p->pages - page;
            if (in_chunk == 0)
                cuda_download(&cuda, &p->device[side], (size_t)page * PAGE_BYTES, got,
                              (size_t)(left < CHUNK ? left : CHUNK) * PAGE_BYTES);
            to_image(p, side, page, right);
            if (memcmp(right, got + (size_t)in_chunk * PAGE_BYTES, PAGE_BYTES) == 0)
                continue;
            if (wrong++ == 0)
                printf("# %c: page %d differs\n", side ? 'v' : 'k', page);
        }
        wrong += cuda_red_zones_hit(&cuda, &p->device[side]) != 0;
    }
    free(got);
    return wrong;
}

static void pool_finish(pool *p)
{
    for (int i = 0; i < 2; i++) {
        cuda_give(&cuda, &p->device[i]);
        if (p->image[i])
            munmap(p->image[i], p->bytes);
    }
    free(p->used);
}

/* ---- A forward ------------------------------------------------------------------------------- */

enum { OPERANDS = 5 }; /* q, k, v, out, lse */

static const int roles[OPERANDS] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_OUT,
                                    ATTN_ROLE_LSE};

/* What the oracle and the plugin are given: the same, in two memories. */
typedef struct view {
    attn_kv_batch kv;
    attn_batch batch;
    attn_tensor tensors[OPERANDS], k_cache, v_cache;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args;
} view;

typedef struct job {
    pool *pool;
    int hnd;
    uint32_t mode;
    int32_t tokens;
    int32_t ints[SEQS * (TABLE + 3) + 1]; /* seq_lens, prefix_lens, q_indptr, block table */
    int64_t slots[MAX_TOKENS];
    char *memory[OPERANDS];
    red_buffer device[OPERANDS + 2]; /* then ints and slots */
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
    view host, gpu;
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory regions;
    red_buffer workspace[2];
    char kernel_dir[4096];
} job;

static void make_problem(job *j)
{
    j->layer = (attn_layer){.struct_size = sizeof j->layer};
    j->group = (attn_layer_group){.struct_size = sizeof j->group,
                                  .num_q_heads = Q_HEADS,
                                  .num_kv_heads = KV_HEADS,
                                  .head_dim = DIM,
                                  .v_head_dim = DIM,
                                  .window_left = -1,
                                  .sm_scale = 0.08838834764831845f,
                                  .num_layers = 1,
                                  .layers = &j->layer};
    j->bounds = (attn_bounds){.struct_size = sizeof j->bounds,
                              .modes = ATTN_MODE_BIT(j->mode),
                              .mask_kinds = 1,
                              .uses = ATTN_USES_LSE,
                              .max_seqs = SEQS,
                              .max_tokens = MAX_TOKENS,
                              .max_q_len = 64,
                              .max_kv_len = MAX_KV};
    j->problem = (attn_problem){.struct_size = sizeof j->problem,
                                .device = &cuda.device,
                                .group = &j->group,
                                .bounds = &j->bounds,
                                .kv_layout = j->hnd ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD,
                                .q_dtype = ATTN_BF16,
                                .kv_dtype = ATTN_BF16,
                                .out_dtype = ATTN_BF16,
                                .page_size = PAGE,
                                .tp_size = 1};
}

static int32_t queries_of(const job *j, int s)
{
    return j->mode == ATTN_MODE_DECODE ? 1 : q_lens[s];
}

static int64_t slot_of(const job *j, int s, int32_t position)
{
    return (int64_t)j->pool->table[s][position / PAGE] * PAGE + position % PAGE;
}

/* Lengths, table and slots; one new key of an extend is not to be written. */
static void make_batch(job *j)
{
    int32_t *lens = j->ints, *prefix = lens + SEQS, *indptr = prefix + SEQS;
    memcpy(indptr + SEQS + 1, j->pool->table, sizeof j->pool->table);
    for (int s = 0; s < SEQS; s++) {
        lens[s] = kv_lens[s];
        prefix[s] = kv_lens[s] - queries_of(j, s);
        indptr[s] = j->tokens;
        for (int32_t i = 0; i < queries_of(j, s); i++)
            j->slots[j->tokens++] = slot_of(j, s, prefix[s] + i);
    }
    indptr[SEQS] = j->tokens;
    if (j->mode == ATTN_MODE_EXTEND)
        j->slots[indptr[3] + 5] = -1;
}

static const int64_t *operand_shape(const job *j, int i, attn_dtype *dtype)
{
    static int64_t shapes[OPERANDS][3];
    shapes[i][0] = j->tokens;
    shapes[i][1] = i == 1 || i == 2 ? KV_HEADS : Q_HEADS;
    shapes[i][2] = i == 4 ? 0 : DIM;
    *dtype = i == 4 ? ATTN_F32 : ATTN_BF16;
    return shapes[i];
}

static attn_tensor make_tensor(attn_dtype dtype, int32_t device_type, void *data, uint32_t ndim,
                               const int64_t *shape)
{
    attn_tensor tensor = {.struct_size = sizeof tensor,
                          .data = data,
                          .device_type = device_type,
                          .dtype = dtype,
                          .ndim = ndim,
                          .alignment = 256};
    int64_t stride = 1;
    for (uint32_t d = ndim; d-- > 0; stride *= shape[d]) {
        tensor.shape[d] = shape[d];
        tensor.strides[d] = stride;
    }
    return tensor;
}

/* One of the two views: `memory` holds operands, ints, slots, K and V. */
static void make_view(const job *j, view *v, int32_t device_type, void *const memory[OPERANDS + 4])
{
    const int32_t *ints = memory[OPERANDS];
    const int64_t nhd[] = {j->pool->pages, PAGE, KV_HEADS, DIM};
    const int64_t hnd[] = {j->pool->pages, KV_HEADS, PAGE, DIM};
    int decode = j->mode == ATTN_MODE_DECODE;
    v->kv = (attn_kv_batch){.struct_size = sizeof v->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = PAGE,
                            .block_table_stride = TABLE,
                            .block_table = {.device = ints + 3 * SEQS + 1},
                            .out_cache_loc = {.device = memory[OPERANDS + 1]}};
    v->batch = (attn_batch){.struct_size = sizeof v->batch,
                            .mode = j->mode,
                            .num_seqs = SEQS,
                            .num_tokens = j->tokens,
                            .num_real_seqs = SEQS,
                            .num_real_tokens = j->tokens,
                            .max_q_len = decode ? 1 : 64,
                            .max_kv_len = MAX_KV,
                            .num_kv_groups = 1,
                            .seq_lens = {.device = ints},
                            .prefix_lens = {.device = ints + SEQS},
                            .q_indptr = {.device = ints + 2 * SEQS},
                            .kv_groups = &v->kv};
    for (int i = 0; i < OPERANDS; i++) {
        attn_dtype dtype;
        const int64_t *shape = operand_shape(j, i, &dtype);
        v->tensors[i] = make_tensor(dtype, device_type, memory[i], shape[2] ? 3 : 2, shape);
        v->operands[roles[i]] = &v->tensors[i];
    }
    v->k_cache = make_tensor(ATTN_BF16, device_type, memory[OPERANDS + 2], 4, j->hnd ? hnd : nhd);
    v->v_cache = make_tensor(ATTN_BF16, device_type, memory[OPERANDS + 3], 4, j->hnd ? hnd : nhd);
    v->operands[ATTN_ROLE_K_CACHE] = &v->k_cache;
    v->operands[ATTN_ROLE_V_CACHE] = &v->v_cache;
    v->args = (attn_forward_args){.struct_size = sizeof v->args,
                                  .flags = ATTN_FORWARD_SAVE_KV,
                                  .num_operands = ATTN_ROLE_COUNT,
                                  .operands = v->operands};
}

static size_t operand_bytes(const job *j, int i)
{
    attn_dtype dtype;
    const int64_t *shape = operand_shape(j, i, &dtype);
    return (size_t)(shape[0] * shape[1] * (shape[2] ? shape[2] : 1)) * attn_dtype_size(dtype);
}

/* The key at a position, of the cache or new. */
static const uint16_t *key_at(const job *j, int s, int32_t position, int head)
{
    const int32_t *prefix = j->ints + SEQS, *indptr = prefix + SEQS;
    int64_t slot = slot_of(j, s, position), page = slot / PAGE, offset = slot % PAGE;
    if (position >= prefix[s])
        return (const uint16_t *)(const void *)j->memory[1] +
               ((int64_t)(indptr[s] + position - prefix[s]) * KV_HEADS + head) * DIM;
    int64_t within = j->hnd ? head * PAGE + offset : offset * KV_HEADS + head;
    return (const uint16_t *)(const void *)j->pool->image[0] + page * (PAGE_BYTES / 2) +
           within * DIM;
}

/* Each query is a key that it sees: in turn on one of the first pages of its sequence, on its last,
 * or itself. */
static void make_queries(job *j)
{
    uint16_t *to = (uint16_t *)(void *)j->memory[0];
    const int32_t *prefix = j->ints + SEQS, *indptr = prefix + SEQS;
    for (int s = 0; s < SEQS; s++)
        for (int32_t row = indptr[s]; row < indptr[s + 1]; row++)
            for (int head = 0; head < Q_HEADS; head++) {
                int32_t i = prefix[s] + row - indptr[s];
                const int32_t wishes[] = {head % 16, PAGE + head % 16, i, i - head, i / 2};
                int32_t wish = wishes[(row + head) % 5];
                wish = wish < 0 || wish > i ? i : wish;
                memcpy(to + ((int64_t)row * Q_HEADS + head) * DIM,
                       key_at(j, s, wish, head / (Q_HEADS / KV_HEADS)), DIM * 2);
            }
}

static void make_operands(job *j)
{
    uint32_t seed = 99 + j->mode;
    for (int i = 0; i < OPERANDS; i++)
        j->memory[i] = calloc(1, operand_bytes(j, i));
    for (int i = 1; i <= 2; i++)
        random_bf16((uint16_t *)(void *)j->memory[i], (int64_t)operand_bytes(j, i) / 2, &seed);
    make_queries(j);
    for (int i = 0; i < OPERANDS; i++) {
        j->device[i] = cuda_take(&cuda, operand_bytes(j, i));
        if (i < 3)
            cuda_upload(&cuda, &j->device[i], 0, j->memory[i], operand_bytes(j, i));
    }
    j->device[OPERANDS] = cuda_take(&cuda, sizeof j->ints);
    j->device[OPERANDS + 1] = cuda_take(&cuda, sizeof j->slots);
    cuda_upload(&cuda, &j->device[OPERANDS], 0, j->ints, sizeof j->ints);
    cuda_upload(&cuda, &j->device[OPERANDS + 1], 0, j->slots, sizeof j->slots);
}

static void make_instance(job *j)
{
    attn_memory_size size = {.struct_size = sizeof size};
    triton_kernel_dir(j->kernel_dir, sizeof j->kernel_dir);
    const attn_option_value values[] = {
        {.struct_size = sizeof values[0], .key = "kernel_dir", .text = j->kernel_dir},
        {.struct_size = sizeof values[0], .key = "num_kv_splits", .integer = 8, .text = ""},
        {.struct_size = sizeof values[0], .key = "split_tile_size", .integer = 64, .text = ""}};
    const attn_options options = {.struct_size = sizeof options, .num_values = 3, .values = values};
    triton_need(
        type->create(type, &j->problem, 1, &options, &triton_services, &j->instance, &triton_error),
        "create");
    triton_need(type->ops->prepare(j->instance, NULL, NULL, &triton_error), "prepare");
    triton_need(type->ops->metadata_size(j->instance, 0, &j->bounds, &size, &triton_error),
                "metadata_size");
    j->regions = (attn_memory){.struct_size = sizeof j->regions};
    for (uint32_t i = 0; i < ATTN_REGION_COUNT; i++) {
        uint64_t bytes = j->regions.size[i] = size.size[i];
        if (bytes && i >= ATTN_REGION(ATTN_SPACE_PINNED, 0)) {
            j->regions.base[i] = triton_host_region(bytes);
        } else if (bytes) {
            j->workspace[i] = cuda_take(&cuda, bytes);
            j->regions.base[i] = red_pointer(&j->workspace[i]);
        }
    }
    triton_need(type->ops->metadata_create(j->instance, 0, &j->bounds, &j->regions, &j->metadata,
                                           &triton_error),
                "metadata_create");
}

static void job_init(job *j, pool *p, uint32_t mode, int hnd)
{
    void *host[OPERANDS + 4], *gpu[OPERANDS + 4];
    memset(j, 0, sizeof *j);
    j->pool = p;
    j->hnd = hnd;
    j->mode = mode;
    make_problem(j);
    make_batch(j);
    make_operands(j);
    make_instance(j);
    for (int i = 0; i < OPERANDS + 2; i++) {
        host[i] = i < OPERANDS ? j->memory[i] : i == OPERANDS ? (void *)j->ints : j->slots;
        gpu[i] = red_pointer(&j->device[i]);
    }
    for (int side = 0; side < 2; side++) {
        host[OPERANDS + 2 + side] = p->image[side];
        gpu[OPERANDS + 2 + side] = red_pointer(&p->device[side]);
    }
    make_view(j, &j->host, ATTN_DEVICE_CPU, host);
    make_view(j, &j->gpu, ATTN_DEVICE_CUDA, gpu);
}

static void job_finish(job *j)
{
    type->ops->metadata_destroy(j->metadata);
    type->ops->destroy(j->instance);
    for (int i = 0; i < OPERANDS + 2; i++)
        cuda_give(&cuda, &j->device[i]);
    for (int i = 0; i < OPERANDS; i++)
        free(j->memory[i]);
    for (uint32_t i = ATTN_REGION(ATTN_SPACE_PINNED, 0); i < ATTN_REGION_COUNT; i++)
        free(j->regions.base[i]);
    cuda_give(&cuda, &j->workspace[0]);
    cuda_give(&cuda, &j->workspace[1]);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

/* One forward into poisoned outputs with a poisoned scratch; out and lse get what came of it. */
static void run(job *j, char *out, char *lse)
{
    cuda_poison(&cuda, &j->device[3]);
    cuda_poison(&cuda, &j->device[4]);
    cuda_poison(&cuda, &j->workspace[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)]);
    triton_need(type->ops->init_forward_metadata(j->metadata, &j->gpu.batch, stream, &triton_error),
                "init");
    triton_need(
        j->mode == ATTN_MODE_DECODE
            ? type->ops->forward_decode(j->metadata, 0, &j->gpu.args, stream, &triton_error)
            : type->ops->forward_extend(j->metadata, 0, &j->gpu.args, stream, &triton_error),
        "forward");
    cuda_must(&cuda, cuda.api->cuStreamSynchronize(stream), "the kernels");
    cuda_download(&cuda, &j->device[3], 0, out, operand_bytes(j, 3));
    cuda_download(&cuda, &j->device[4], 0, lse, operand_bytes(j, 4));
}

/* Red zones around everything but the pool. */
static size_t zones_hit(const job *j)
{
    size_t hits = 0;
    for (int i = 0; i < OPERANDS + 2; i++)
        hits += cuda_red_zones_hit(&cuda, &j->device[i]);
    for (int i = 0; i < 2; i++)
        if (j->workspace[i].bytes)
            hits += cuda_red_zones_hit(&cuda, &j->workspace[i]);
    return hits;
}

static int agrees_with_oracle(job *j)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    reference_options options = {0};
    reference_result truth = {0};
    reference_report report = {0};
    triton_need(type->query(type, NULL, NULL, &j->problem, &verdict, &triton_error), "query");
    options.reads_new_unquantised = verdict.reads_new_kv_unquantised;
    triton_need(reference_forward(&j->problem, &j->host.batch, 0, &j->host.args, &options, &truth,
                                  &triton_error),
                "reference_forward");
    triton_need(
        reference_compare(&truth, &j->host.tensors[3], &j->host.tensors[4], &report, &triton_error),
        "reference_compare");
    printf("# %lld rows and %lld LSE checked, %lld and %lld failed; worst %.3f of the bar\n",
           (long long)report.rows_checked, (long long)report.lse_checked,
           (long long)report.rows_failed, (long long)report.lse_failed, report.worst_ratio);
    if (!reference_report_passed(&report))
        printf("# %s\n", report.message);
    int passed = reference_report_passed(&report) &&
                 report.rows_checked == (int64_t)j->tokens * Q_HEADS && report.lse_checked > 0;
    reference_result_finish(&truth);
    return passed;
}

static int repeats(job *j, int repetitions)
{
    char *out = malloc(operand_bytes(j, 3)), *lse = malloc(operand_bytes(j, 4));
    int other = 0, hit = 0;
    for (int i = 0; i < repetitions; i++) {
        run(j, out, lse);
        other += memcmp(out, j->memory[3], operand_bytes(j, 3)) != 0 ||
                 memcmp(lse, j->memory[4], operand_bytes(j, 4)) != 0;
        hit += zones_hit(j) != 0;
    }
    printf("# %d repetitions: %d differ, %d wrote to red zones\n", repetitions, other, hit);
    free(out);
    free(lse);
    return other == 0 && hit == 0;
}

static void check(pool *p, uint32_t mode, int hnd, int repetitions)
{
    static job j;
    char what[128];
    const char *name = mode == ATTN_MODE_DECODE ? "decode" : "extend",
               *layout = hnd ? "HND" : "NHD";
    fill_pool(p, 1 + mode + (uint32_t)hnd * 100);
    job_init(&j, p, mode, hnd);
    const struct compile_counter *counter =
        type->ops->get_extension(j.instance, "attn.compile_counter/1");
    uint64_t compiled = counter ? counter->compiled : 0;
    run(&j, j.memory[3], j.memory[4]);
    snprintf(what, sizeof what, "%s, %s: agrees with the oracle", name, layout);
    result(agrees_with_oracle(&j), what);
    triton_need(reference_expected_kv(&j.problem, &j.host.batch, 0, &j.host.args, &j.host.k_cache,
                                      &j.host.v_cache, &triton_error),
                "reference_expected_kv");
    snprintf(what, sizeof what, "%s, %s: the same bits each time", name, layout);
    result(repeats(&j, repetitions), what);
    snprintf(what, sizeof what, "%s, %s: of the pool the new keys alone were written", name,
             layout);
    result(wrong_pages(p) == 0, what);
    snprintf(what, sizeof what, "%s, %s: no forward compiled", name, layout);
    result(counter && counter->compiled == compiled && counter->compiled + counter->cached > 0,
           what);
    job_finish(&j);
}

int main(int argc, char **argv)
{
    static pool p;
    int32_t pages = argc > 1 ? atoi(argv[1]) : DEFAULT_PAGES;
    int repetitions = argc > 2 ? atoi(argv[2]) : 1000;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!cuda_device_open(&cuda)) {
        printf("1..0 # SKIP %s\n", cuda.why);
        return EXIT_SUCCESS;
    }
    if (!pool_init(&p, pages)) {
        printf("1..0 # SKIP no %.1f GB of GPU memory for a pool\n", 2e-9 * (double)p.bytes);
        return EXIT_SUCCESS;
    }
    printf("# %d pages, %lld elements of K and as many of V\n", pages,
           (long long)pages * PAGE_BYTES / 2);
    type = triton_open();
    cuda_must(&cuda, cuda.api->cuStreamCreate(&stream, 0), "cuStreamCreate");
    hand_out_pages(&p);
    for (int hnd = 0; hnd < 2; hnd++) {
        check(&p, ATTN_MODE_DECODE, hnd, repetitions);
        check(&p, ATTN_MODE_EXTEND, hnd, repetitions);
    }
    pool_finish(&p);
    printf("1..%d\n", tests);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
