/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3_fixture.h: what tests of fa3_like's inside begin with: a problem that is accepted, an
 * instance on a driver of the test, which takes down what it hears, and a batch. Nothing is
 * computed; device memory is host memory that no code reads.
 */
#ifndef FA3_FIXTURE_H
#define FA3_FIXTURE_H

#include "plugins/fa3_like/fa3_like.h"

enum { TEST_SMS = 24, TEST_Q_HEADS = 8, TEST_KV_HEADS = 2, TEST_DIM = 128, TEST_LAYER = 3 };
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
    unsigned grid_y, grid_z;
    union {
        fa3_plan_call plan;
        fa3_rows_call rows;
        struct fa3_forward_params forward;
        struct fa3_codes_params codes;
        struct fa3_turn_params turn;
        fa3_scales_call scales;
        fa3_widen_call widen;
        fa3_gather_call gather;
        fa3_join_call join;
        fi_plan_call fi_plan;
        fi_call fi_call; /* of fi_save too */
    } params;
} seen_launch;

extern seen_launch launches[TEST_MAX_LAUNCHES];
extern int num_launches, num_fills;

seen_map read_map(const struct fa3_tensor_map *map);

/* A problem with room for what it points to. */
typedef struct test_problem {
    attn_device device;
    attn_layer layer;
    attn_layer_group group;
    attn_mla_dims mla;
    attn_bounds bounds;
    attn_problem problem;
} test_problem;

/* One that is accepted: bf16, all modes, 8 heads of 128 over 2 KV heads, pages of 48. */
void make_problem(test_problem *t);

/* The same of codes: q, k, v and the cache are e4m3, inputs have scales by `granularity`. */
void make_codes_problem(test_problem *t, uint32_t granularity);

/* The same of expanded latents: 8 heads of 192 and 128, latents of 512 + 64; an output of fp32. */
void make_expanded_problem(test_problem *t);

/* An instance for it, metadata and a batch; what stands in `problem` at make_instance() counts. */
typedef struct test_run {
    test_problem of;
    attn_instance instance;
    fa3_instance own;
    fi_group base;
    fa3_group group;
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

#endif /* FA3_FIXTURE_H */
