/* SPDX-License-Identifier: Apache-2.0
 *
 * fi_fixture.h: what tests of flashinfer_like's inside begin with: a problem that is accepted, an
 * instance on a driver of the test, which takes down what it hears, and a batch. Nothing is
 * computed; device memory is host memory that no code reads.
 */
#ifndef FI_FIXTURE_H
#define FI_FIXTURE_H

#include "plugins/flashinfer_like/flashinfer_like.h"

enum { TEST_SMS = 20, TEST_Q_HEADS = 8, TEST_KV_HEADS = 2, TEST_DIM = 128, TEST_LAYER = 3 };
enum { TEST_PAGE = 48, TEST_PAGES = 100, TEST_ROWS = 700, TEST_MAX_LAUNCHES = 8 };

/* What a tensor map was made of. */
typedef struct seen_map {
    const void *data;
    uint64_t shape[4], strides[3];
    uint32_t box[4];
    uint32_t type, swizzle;
} seen_map;

typedef struct seen_launch {
    const char *name;
    unsigned grid, threads, shared;
    int programmatic;
    union {
        fi_plan_call plan;
        fi_call call; /* of fi_save too */
    } params;
} seen_launch;

extern seen_launch launches[TEST_MAX_LAUNCHES];
extern int num_launches, num_fills;

seen_map read_map(const fi_tensor_map *map);

/* A problem with room for what it points to. */
typedef struct test_problem {
    attn_device device;
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
} test_problem;

/* One that is accepted: bf16, all modes, 8 heads of 128 over 2 KV heads, pages of 48. */
void make_problem(test_problem *t);

/* An instance for it, metadata and a batch; what stands in `problem` at make_instance() counts. */
typedef struct test_run {
    test_problem of;
    attn_instance instance;
    fi_group group;
    attn_util_layer layer;
    attn_metadata *metadata;
    attn_memory memory;
    attn_batch batch;
    attn_kv_batch kv;
    attn_mask mask;
    attn_tensor q, k, v, out, lse, k_cache, v_cache, sinks;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scale; /* of an fp8 cache */
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
} test_run;

/* `problem` NULL = make_problem()'s. */
void run_begin(test_run *t, const test_problem *problem, uint32_t kind);
void run_end(test_run *t);

/* Plan the batch and run the layer: what was launched stands in `launches`. */
attn_status run_batch(test_run *t, uint32_t mode, int32_t seqs, int32_t tokens, int32_t q_len);

/* Arrays and operands of the batch, by address alone. */
extern const int32_t seq_lens[], prefix_lens[], q_indptr[], kv_lens[], block_table[];
extern const int64_t out_cache_loc[];

extern char test_message[1024];
extern attn_error test_error;

#endif /* FI_FIXTURE_H */
