/* SPDX-License-Identifier: Apache-2.0
 *
 * inputs.h: inputs of a shape's forwards: the problem, a batch with shuffled pages in all index
 * forms, and operands with random values, in several copies.
 *
 * Forwards rotate through the copies, so that a cache does not hold a forward's inputs from its
 * previous use. The batch is the same for all of them; the memory holds a copy after the other.
 *
 * A recurrence reads its states in one slot and writes them to another, so that each forward over a
 * copy starts from the same states. Its rows and constants are those of generator_linear.h, whose
 * decays are sensible; other operands are random.
 */
#ifndef HOST_BENCH_INPUTS_H
#define HOST_BENCH_INPUTS_H

#include "host/bench/shape.h"
#include "host/device/device.h"
#include "host/kinds/kinds.h"

/* ---- The problem ----------------------------------------------------------------------------- */

/* An attn_problem of one layer (layer_id 0) with all that it points to but the device and the
 * layout. Initialised in place and never copied. */
struct bench_problem {
    attn_layer layer;
    attn_mla_dims mla;
    attn_sparse_dims sparse;
    attn_linear_dims linear;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;
};

/* `layout` is one of bench_layouts(); `graph_level` what is wanted of ATTN_GRAPH_*. */
void bench_problem_init(struct bench_problem *problem, const struct bench_shape *shape,
                        const attn_device *device, const char *layout, uint32_t graph_level);

/* The layout ids of the cache or state that the shape allows, at most two; a short convolution has
 * the one of its inputs. NULL = no more. */
void bench_layouts(const struct bench_shape *shape, const char *layouts[2]);

/* The ATTN_GRAPH_* level at which a batch of this shape can be captured. */
uint32_t bench_graph_level(const struct bench_shape *shape);

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* The index arrays of the batch, as the host sees them. On a device there is a copy of the block.
 */
struct bench_arrays {
    int64_t *out_cache_loc;
    int32_t *seq_lens, *prefix_lens, *q_indptr, *req_pool_indices, *real;
    int32_t *req_to_token, *block_table, *kv_indptr, *kv_indices, *last_page_len;
    int32_t *state_slots; /* [2, batch]: those that are read, and those that are written */
    int32_t *has_initial; /* [batch] */
    float *k_scale, *v_scale;
    float *input_scales[3]; /* of q, k and v, as far as they are fp8 */
    float *out_scale;
    char *constants[ATTN_ROLE_COUNT]; /* of the layer: sinks, slopes, A_log ...; NULL = none */
};

/* The unit of an operand in a copy: rows of new tokens, pages of a cache, slots of states. */
enum { BENCH_PER_TOKEN, BENCH_PER_PAGE, BENCH_PER_SLOT };

struct bench_operand {
    uint32_t role; /* ATTN_ROLE_* */
    uint32_t unit; /* BENCH_PER_* */
    attn_dtype dtype;
    int64_t units, elements; /* how many there are, and elements of each */
    uint64_t at;             /* bytes from the start of a copy */
    uint32_t ndim;           /* BENCH_PER_TOKEN: of the tensor; others go by the layout */
    int64_t shape[3];
};

enum { BENCH_MAX_OPERANDS = 12 };

struct bench_inputs {
    const struct device *device;
    struct bench_shape shape;
    struct bench_problem problem; /* for what is asked of the kind; its layout is any */
    struct bench_count count;
    uint32_t copies;
    uint32_t num_operands;
    struct bench_operand list[BENCH_MAX_OPERANDS];
    uint64_t copy_bytes; /* of one copy's operands */
    char *operands;      /* [copies][copy_bytes], the device's */
    char *block;         /* of the arrays, the host's */
    char *device_block;  /* the same on the device; on the CPU the same block */
    uint64_t block_bytes;
    struct bench_arrays arrays; /* in `block` */
    attn_batch batch;
    attn_kv_batch kv;
    attn_state_batch states;
    attn_sparse_batch sparse;
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
    attn_tensor tensors[BENCH_MAX_OPERANDS + KIND_MAX_CONSTANTS];
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

/* Units [first, first + count) of operand number `operand`: rows, pages or slots, in any layout. */
struct bench_region bench_inputs_units(const struct bench_inputs *inputs, uint32_t operand,
                                       int64_t first, int64_t count);

/* The same inputs in host memory: `operands` has room for one copy and is the caller's, the arrays
 * are borrowed. The mirror is not destroyed, and stays in place. */
void bench_inputs_mirror(const struct bench_inputs *inputs, char *operands,
                         struct bench_inputs *mirror);

#endif /* HOST_BENCH_INPUTS_H */
