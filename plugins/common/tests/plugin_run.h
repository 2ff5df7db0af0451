/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_run.h: what tests of a CUDA plugin's launches begin with: a driver that notes its calls,
 * an instance with a metadata, and a batch. Nothing is computed; device memory is host memory that
 * no code reads.
 */
#ifndef PLUGIN_RUN_H
#define PLUGIN_RUN_H

#include "attn_plugin_util.h"
#include "plugins/common/cuda/cuda_api.h"
#include "plugins/common/tests/plugin_problem.h"

enum { TEST_PAGES = 100, TEST_ROWS = 700, TEST_MAX_LAUNCHES = 8 };

/* ---- A driver that notes its calls ----------------------------------------------------------- */

/* What a tensor map was made of. */
typedef struct seen_map {
    const void *data;
    uint64_t shape[4], strides[3];
    uint32_t box[4];
    uint32_t type, swizzle;
} seen_map;

/* Of a struct that the plugin declares as its kernels' parameter. */
seen_map read_map(const void *map);

/* What the plugin's kernels take: its own fixture completes the type. */
union seen_params;

typedef struct seen_launch {
    const char *name;
    unsigned grid[3], blocks, threads, shared; /* `blocks` of the grid */
    int programmatic;
    union seen_params *params;
} seen_launch;

extern seen_launch launches[TEST_MAX_LAUNCHES];
extern int num_launches, num_fills;

/* A function is its name. */
extern const cuda_api seen_driver;

/* Names with spaces in between. */
void expect_launches(const char *names);

/* ---- Runs ------------------------------------------------------------------------------------ */

/* An instance for it, metadata and a batch; what stands in `problem` at run_begin() counts. */
typedef struct test_run {
    test_problem of;
    attn_instance *instance;
    struct test_own *own; /* the plugin's: what the instance consists of */
    attn_util_layer layer;
    attn_metadata *metadata;
    attn_memory memory;
    attn_batch batch;
    int32_t num_decodes; /* of a MIXED batch, its last ones, of one query each */
    int32_t max_kv_len;  /* of the batch; 0 = 2000 */
    attn_kv_batch kv;
    attn_mask mask;
    attn_tensor q, k, v, out, lse, k_cache, v_cache, sinks, c_kv, k_pe, latents;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scales[ATTN_ROLE_COUNT];
    const attn_scale *scale_list[ATTN_ROLE_COUNT];
    attn_forward_args args; /* without scales, unless make_operands sets them */
} test_run;

/* The plugin's part of a run. */
typedef struct test_plugin {
    const attn_backend_ops *ops;
    /* Set `instance` and `own`, as create does but for modules and functions. */
    void (*make_instance)(test_run *t, const attn_problem *problem);
    void (*make_operands)(test_run *t); /* what make_operands of a run leaves; NULL = nothing */
    /* Check the shape of a launch; returns the size of its parameters. */
    size_t (*expect_launch)(const seen_launch *seen);
} test_plugin;

extern const test_plugin plugin_of_test;

/* `problem` NULL = make_problem()'s. */
void run_begin(test_run *t, const test_problem *problem, uint32_t kind);
void run_end(test_run *t);

/* Plan the batch and run the layer: what was launched stands in `launches`. */
attn_status run_batch(test_run *t, uint32_t mode, int32_t seqs, int32_t tokens, int32_t q_len);

/* Contiguous. */
attn_tensor dense_tensor(void *data, attn_dtype dtype, uint32_t ndim, const int64_t *shape);

/* A metadata with a byte less than the run's in any region is refused, and the error says how much
 * is needed. */
void expect_memory_needed(const test_run *t, uint32_t kind);

/* That all rows of the batch go by these paths: {path, rows}, ended by -1. */
void expect_rows(const test_run *t, const int *expected);

#define EXPECT_ROWS(t, ...) expect_rows(t, (const int[]){__VA_ARGS__, -1})

/* Arrays and operands of the batch, by address alone. */
extern const int32_t seq_lens[], prefix_lens[], q_indptr[], kv_lens[], block_table[];
extern const int64_t out_cache_loc[];

#endif /* PLUGIN_RUN_H */
