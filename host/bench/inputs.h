/* SPDX-License-Identifier: Apache-2.0
 *
 * inputs.h: what a shape's forwards work on: the problem, a batch with shuffled pages in all
 * index forms, and operands with random values, in several copies.
 *
 * Forwards go through the copies in turn, so that none finds in a cache what it read the time
 * before. The batch is the same for all of them; the memory holds a copy after the other.
 */
#ifndef HOST_BENCH_INPUTS_H
#define HOST_BENCH_INPUTS_H

#include "host/bench/shape.h"
#include "host/device/device.h"

/* ---- The problem ----------------------------------------------------------------------------- */

/* An attn_problem of one layer (layer_id 0) with all that it points to but the device and the
 * layout. Initialised in place and never copied. */
struct bench_problem {
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
};

/* `layout` is a KV layout id; `graph_level` what is wanted of ATTN_GRAPH_*. */
void bench_problem_init(struct bench_problem *problem, const struct bench_shape *shape,
                        const attn_device *device, const char *layout, uint32_t graph_level);

/* The ATTN_GRAPH_* level at which a batch of this shape can be captured. */
uint32_t bench_graph_level(const struct bench_shape *shape);

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* The index arrays of the batch, as the host sees them. On a device there is a copy of the block.
 */
struct bench_arrays {
    int64_t *out_cache_loc;
    int32_t *seq_lens, *prefix_lens, *q_indptr, *req_pool_indices, *real;
    int32_t *req_to_token, *block_table, *kv_indptr, *kv_indices, *last_page_len;
    float *k_scale, *v_scale, *sinks, *slopes;
    float *input_scales[3]; /* of q, k and v, as far as they are fp8 */
    float *out_scale;
};

/* Operands of a copy. */
enum { BENCH_Q, BENCH_K, BENCH_V, BENCH_OUT, BENCH_K_CACHE, BENCH_V_CACHE, BENCH_OPERANDS };

struct bench_inputs {
    const struct device *device;
    struct bench_shape shape;
    struct bench_count count;
    uint32_t copies;
    uint64_t copy_bytes;            /* of one copy's operands */
    uint64_t where[BENCH_OPERANDS]; /* of each operand in a copy: bytes from its start */
    char *operands;                 /* [copies][copy_bytes], the device's */
    char *block;                    /* of the arrays, the host's */
    char *device_block;             /* the same on the device; on the CPU the same block */
    uint64_t block_bytes;
    struct bench_arrays arrays; /* in `block` */
    attn_batch batch;
    attn_kv_batch kv;
    attn_scale k_scale, v_scale, input_scales[3], out_scale;
};

/* Make the inputs: copies enough for a working set beyond the last-level cache, as memory allows.
 * Values are near to normally distributed, of about unit variance. OUT_OF_DEVICE_MEMORY (or _HOST_)
 * names the bytes. The device is borrowed. */
attn_status bench_inputs_create(const struct device *device, const struct bench_shape *shape,
                                uint64_t seed, struct bench_inputs **inputs, attn_error *error);

/* NULL is accepted. */
void bench_inputs_destroy(struct bench_inputs *inputs);

/* One forward's arguments; entries of the arrays point into the struct, which stays in place. */
struct bench_call {
    attn_tensor q, k, v, out, k_cache, v_cache, sinks, slopes;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
};

/* The arguments of a forward on copy `copy` in a layout that the problem may have. */
void bench_inputs_call(const struct bench_inputs *inputs, uint32_t copy, const char *layout,
                       struct bench_call *call);

/* ---- Parts of a copy ------------------------------------------------------------------------- */

struct bench_region {
    uint64_t at, bytes; /* from the start of a copy */
};

/* Rows [first, first + count) of q, k, v or out. */
struct bench_region bench_inputs_rows(const struct bench_inputs *inputs, int operand, int64_t first,
                                      int64_t count);

/* A page of k_cache or v_cache, in any layout. */
struct bench_region bench_inputs_page(const struct bench_inputs *inputs, int operand, int64_t page);

/* The same inputs in host memory: `operands` has room for one copy and is the caller's, the arrays
 * are borrowed. The mirror is not destroyed, and stays in place. */
void bench_inputs_mirror(const struct bench_inputs *inputs, char *operands,
                         struct bench_inputs *mirror);

#endif /* HOST_BENCH_INPUTS_H */
