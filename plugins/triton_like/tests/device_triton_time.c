/* SPDX-License-Identifier: Apache-2.0
 *
 * device_triton_time.c: how fast triton_like's kernels are, medians over device events.
 */
#include "plugins/triton_like/tests/device_triton_like.h"

#include <stdio.h>
#include <stdlib.h>

#include "host/base/dtype.h"

enum { BATCHES = 7 };

typedef struct bench {
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
    attn_batch batch;
    attn_kv_batch kv;
    buffers memory;
    attn_tensor q, k, v, out, k_cache, v_cache;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scale;
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
} bench;

/* Random values of about unit size, a block of them repeated. */
static attn_tensor bench_tensor(bench *b, attn_dtype dtype, uint32_t ndim, const int64_t *shape)
{
    enum { BLOCK = 1 << 20 };
    static char block[BLOCK];
    attn_tensor tensor = {.struct_size = sizeof tensor,
                          .device_type = ATTN_DEVICE_CUDA,
                          .dtype = dtype,
                          .ndim = ndim,
                          .alignment = 256};
    int64_t size = attn_dtype_size(dtype), total = size;
    for (uint32_t d = ndim, stride = 1; d-- > 0; stride *= (uint32_t)shape[d]) {
        tensor.shape[d] = shape[d];
        tensor.strides[d] = stride;
        total *= shape[d];
    }
    for (int64_t i = 0; i < BLOCK / size; i++)
        dtype_store(dtype, block, i, (double)(rand() % 2001 - 1000) / 600.0);
    cuda_address address;
    must(cuda->cuMemAlloc_v2(&address, (size_t)total), "cuMemAlloc");
    for (int64_t at = 0; at < total; at += BLOCK)
        must(cuda->cuMemcpyHtoD_v2(address + (cuda_address)at, block,
                                   (size_t)(total - at < BLOCK ? total - at : BLOCK)),
             "cuMemcpyHtoD");
    b->memory.address[b->memory.count++] = address;
    tensor.data = (void *)(uintptr_t)address;
    return tensor;
}

static attn_i32_array bench_ints(bench *b, const int32_t *values, int64_t count)
{
    return (attn_i32_array){.device = upload(&b->memory, values, (size_t)count * sizeof *values)};
}

enum { Q_HEADS = 32, KV_HEADS = 8, DIM = 128, PAGE = 16 };

/* What is timed: `seqs` sequences of `len` tokens, all new or with one new token each; MIXED: with
 * `decode_seqs` of `decode_len` after them, that have one. */
typedef struct bench_shape {
    uint32_t mode;
    int32_t seqs, len;
    int32_t decode_seqs, decode_len;
    attn_dtype kv_dtype;
    int64_t splits;  /* 0 = by default */
    int64_t tile;    /* likewise */
    int64_t precise; /* split_probabilities */
} bench_shape;

static void bench_problem(bench *b, const bench_shape *shape, int32_t q_len)
{
    int32_t decode_len = shape->decode_seqs > 0 ? shape->decode_len : 0;
    b->group = (attn_layer_group){.struct_size = sizeof b->group,
                                  .num_q_heads = Q_HEADS,
                                  .num_kv_heads = KV_HEADS,
                                  .head_dim = DIM,
                                  .v_head_dim = DIM,
                                  .window_left = -1,
                                  .sm_scale = 0.08838834764831845f,
                                  .num_layers = 1,
                                  .layers = &b->layer};
    b->bounds = (attn_bounds){.struct_size = sizeof b->bounds,
                              .modes = ATTN_MODE_BIT(shape->mode),
                              .mask_kinds = 1,
                              .max_seqs = shape->seqs + shape->decode_seqs,
                              .max_tokens = shape->seqs * q_len + shape->decode_seqs,
                              .max_q_len = q_len,
                              .max_kv_len = shape->len > decode_len ? shape->len : decode_len};
    if (shape->kv_dtype != ATTN_BF16)
        b->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    b->problem = (attn_problem){.struct_size = sizeof b->problem,
                                .device = &gpu.device,
                                .group = &b->group,
                                .bounds = &b->bounds,
                                .kv_layout = ATTN_LAYOUT_KV_NHD,
                                .q_dtype = ATTN_BF16,
                                .kv_dtype = shape->kv_dtype,
                                .out_dtype = ATTN_BF16,
                                .page_size = PAGE,
                                .tp_size = 1};
}

/* Lengths, rows and scattered pages: odd multiples visit every page once. Returns the pages. */
static int64_t bench_indices(bench *b, const bench_shape *shape, int32_t q_len)
{
    int32_t seqs = b->bounds.max_seqs, pages = (b->bounds.max_kv_len + PAGE - 1) / PAGE;
    int64_t total = (int64_t)seqs * pages;
    int32_t *ints = calloc((size_t)total + (size_t)seqs * 3 + 1, sizeof *ints);
    int32_t *lens = ints, *prefixes = ints + seqs, *rows = ints + 2 * seqs,
            *table = rows + seqs + 1;
    for (int32_t s = 0; s < seqs; s++) {
        int one = shape->mode == ATTN_MODE_DECODE || s >= shape->seqs;
        lens[s] = s < shape->seqs ? shape->len : shape->decode_len;
        prefixes[s] = one ? lens[s] - 1 : 0;
        rows[s + 1] = rows[s] + (one ? 1 : q_len);
        for (int32_t i = 0; i < pages; i++)
            table[(int64_t)s * pages + i] = (int32_t)(1 + ((int64_t)s * pages + i) * 7919 % total);
    }
    b->batch.seq_lens = bench_ints(b, lens, seqs);
    b->batch.prefix_lens = bench_ints(b, prefixes, seqs);
    if (shape->mode != ATTN_MODE_DECODE)
        b->batch.q_indptr = bench_ints(b, rows, seqs + 1);
    b->kv = (attn_kv_batch){.struct_size = sizeof b->kv,
                            .index_forms = ATTN_INDEX_BLOCK_TABLE,
                            .page_size = PAGE,
                            .block_table_stride = pages};
    b->kv.block_table = bench_ints(b, table, total);
    free(ints);
    return total + 1;
}

static void bench_create(bench *b, const bench_shape *shape)
{
    static const float one = 1;
    int32_t q_len = shape->mode == ATTN_MODE_DECODE ? 1 : shape->len;
    *b = (bench){.layer = {.struct_size = sizeof b->layer}};
    bench_problem(b, shape, q_len);
    b->batch = (attn_batch){.struct_size = sizeof b->batch,
                            .mode = shape->mode,
                            .num_seqs = b->bounds.max_seqs,
                            .num_tokens = b->bounds.max_tokens,
                            .num_real_seqs = b->bounds.max_seqs,
                            .num_real_tokens = b->bounds.max_tokens,
                            .num_decode_seqs = shape->decode_seqs,
                            .max_q_len = q_len,
                            .max_kv_len = b->bounds.max_kv_len,
                            .num_kv_groups = 1,
                            .kv_groups = &b->kv};
    int64_t pages = bench_indices(b, shape, q_len), rows = b->bounds.max_tokens;
    int64_t q_shape[] = {rows, Q_HEADS, DIM}, k_shape[] = {rows, KV_HEADS, DIM};
    int64_t cache_shape[] = {pages, PAGE, KV_HEADS, DIM};
    b->q = bench_tensor(b, ATTN_BF16, 3, q_shape);
    b->out = bench_tensor(b, ATTN_BF16, 3, q_shape);
    b->k = bench_tensor(b, ATTN_BF16, 3, k_shape);
    b->v = bench_tensor(b, ATTN_BF16, 3, k_shape);
    b->k_cache = bench_tensor(b, shape->kv_dtype, 4, cache_shape);
    b->v_cache = bench_tensor(b, shape->kv_dtype, 4, cache_shape);
    b->operands[ATTN_ROLE_Q] = &b->q;
    b->operands[ATTN_ROLE_OUT] = &b->out;
    b->operands[ATTN_ROLE_K] = &b->k;
    b->operands[ATTN_ROLE_V] = &b->v;
    b->operands[ATTN_ROLE_K_CACHE] = &b->k_cache;
    b->operands[ATTN_ROLE_V_CACHE] = &b->v_cache;
    b->scale = (attn_scale){.struct_size = sizeof b->scale,
                            .granularity = ATTN_SCALE_PER_TENSOR,
                            .count = 1,
                            .host = &one};
    b->scales[ATTN_ROLE_K_CACHE] = b->scales[ATTN_ROLE_V_CACHE] = &b->scale;
    b->args = (attn_forward_args){.struct_size = sizeof b->args,
                                  .num_operands = ATTN_ROLE_COUNT,
                                  .num_scales = ATTN_ROLE_COUNT,
                                  .operands = b->operands,
                                  .scales = b->scales};
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Milliseconds of one forward: the median of BATCHES means, after as many for warming up. */
static double time_forward(setup *u, bench *b, int calls)
{
    float times[BATCHES];
    cuda_event from, to;
    must(cuda->cuEventCreate(&from, 0), "cuEventCreate");
    must(cuda->cuEventCreate(&to, 0), "cuEventCreate");
    triton_need(
        type->ops->init_forward_metadata(u->metadata[0], &b->batch, u->stream, &triton_error),
        "init");
    for (int round = -2; round < BATCHES; round++) {
        must(cuda->cuEventRecord(from, u->stream), "cuEventRecord");
        for (int i = 0; i < calls; i++)
            triton_need(forward(u, 0, b->batch.mode, 0, &b->args), "forward");
        must(cuda->cuEventRecord(to, u->stream), "cuEventRecord");
        must(cuda->cuEventSynchronize(to), "cuEventSynchronize");
        if (round >= 0)
            must(cuda->cuEventElapsedTime(&times[round], from, to), "cuEventElapsedTime");
    }
    cuda->cuEventDestroy_v2(from);
    cuda->cuEventDestroy_v2(to);
    qsort(times, BATCHES, sizeof times[0], compare_floats);
    printf("#   spread %.4f .. %.4f ms\n", (double)times[0] / calls,
           (double)times[BATCHES - 1] / calls);
    return (double)times[BATCHES / 2] / calls;
}

static void time_shape(bench_shape shape)
{
    bench b;
    setup u;
    bench_create(&b, &shape);
    setup_create(&u, &b.problem, shape.splits, shape.tile, shape.precise);
    int decode = shape.mode == ATTN_MODE_DECODE;
    double ms = time_forward(&u, &b, decode ? 50 : shape.len > 4096 ? 5 : 20);
    double flop = 4.0 * shape.seqs * Q_HEADS * DIM * shape.len * (shape.len + 1) / 2;
    double keys =
        decode ? (double)shape.seqs * shape.len : (double)shape.decode_seqs * shape.decode_len;
    double bytes = 2.0 * keys * KV_HEADS * DIM * attn_dtype_size(shape.kv_dtype);
    printf("# %s B=%d S=%d", decode ? "decode" : "prefill causal", shape.seqs, shape.len);
    if (shape.decode_seqs > 0)
        printf(" and decode B=%d S=%d", shape.decode_seqs, shape.decode_len);
    printf(" kv %s splits %lld tile %lld%s: %.4f ms", dtype_name(shape.kv_dtype),
           (long long)shape.splits, (long long)shape.tile,
           shape.precise ? " (split_probabilities yes)" : "", ms);
    if (decode)
        printf(", %.0f GB/s of %.0f MB\n", bytes / ms * 1e-6, bytes * 1e-6);
    else
        printf(", %.1f TFLOP/s, %.0f MB of decode rows\n", flop / ms * 1e-9, bytes * 1e-6);
    setup_destroy(&u);
    release_all(&b.memory);
}

static void time_decode(int32_t seqs, int32_t len, attn_dtype kv_dtype, int64_t splits,
                        int64_t tile)
{
    time_shape((bench_shape){ATTN_MODE_DECODE, seqs, len, 0, 0, kv_dtype, splits, tile, 0});
}

static void time_prefill(int32_t seqs, int32_t len, attn_dtype kv_dtype, int64_t precise)
{
    time_shape((bench_shape){ATTN_MODE_EXTEND, seqs, len, 0, 0, kv_dtype, 0, 0, precise});
}

void time_all(void)
{
    static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_FP8_E4M3};
    for (int64_t precise = 0; precise < 2; precise++) {
        time_prefill(1, 2048, ATTN_BF16, precise);
        time_prefill(1, 8192, ATTN_BF16, precise);
        time_prefill(8, 2048, ATTN_BF16, precise);
        time_prefill(2, 8192, ATTN_BF16, precise);
    }
    for (int i = 0; i < 2; i++) {
        static const int32_t shapes[][2] = {{1, 1024},  {1, 8192},   {1, 32768}, {1, 131072},
                                            {2, 32768}, {4, 16384},  {8, 8192},  {8, 32768},
                                            {32, 4096}, {128, 1024}, {128, 4096}};
        for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
            time_decode(shapes[n][0], shapes[n][1], dtypes[i], 0, 0);
        for (int64_t splits = 1; splits <= 16; splits *= 2)
            time_decode(32, 4096, dtypes[i], splits, 256);
        time_decode(128, 4096, dtypes[i], 8, 256);
        for (int64_t tile = 128; tile <= 1024; tile *= 2) {
            time_decode(1, 1024, dtypes[i], 0, tile);
            time_decode(1, 8192, dtypes[i], 0, tile);
            time_decode(32, 4096, dtypes[i], 0, tile);
        }
    }
    time_shape((bench_shape){ATTN_MODE_MIXED, 1, 2048, 1, 65536, ATTN_BF16, 0, 0, 0});
    time_shape((bench_shape){ATTN_MODE_MIXED, 1, 2048, 32, 4096, ATTN_BF16, 0, 0, 0});
    time_prefill(1, 2048, ATTN_BF16, 0);
}
