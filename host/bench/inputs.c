/* SPDX-License-Identifier: Apache-2.0
 *
 * inputs.c: see inputs.h. First the problem, then index arrays, then values.
 */
#include "host/bench/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attnhost.h"
#include "host/bench/timer.h"
#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/workload/generator.h"
#include "host/base/mix.h"
#include "host/base/round.h"

enum { ALIGNMENT = 256, MAX_COPIES = 1024 };

/* ---- The problem ----------------------------------------------------------------------------- */

static int is_uniform(const struct bench_shape *shape)
{
    for (int32_t s = 1; s < shape->batch; s++)
        if (bench_shape_q_len(shape, s) != bench_shape_q_len(shape, 0))
            return 0;
    return 1;
}

uint32_t bench_graph_level(const struct bench_shape *shape)
{
    if (shape->mode == ATTN_MODE_DECODE)
        return ATTN_GRAPH_SINGLE_TOKEN;
    return shape->mode == ATTN_MODE_EXTEND && is_uniform(shape) ? ATTN_GRAPH_UNIFORM
                                                                : ATTN_GRAPH_ALWAYS;
}

static uint32_t input_granularity(const struct bench_shape *shape)
{
    int fp8 = dtype_is_fp8(shape->dtype) || dtype_is_fp8(shape->new_kv_dtype);
    return fp8 ? (uint32_t)shape->input_scales : (uint32_t)ATTN_SCALE_NONE;
}

static void init_group(const struct bench_shape *shape, const attn_layer *layer,
                       attn_layer_group *group)
{
    float scale =
        shape->sm_scale > 0 ? (float)shape->sm_scale : (float)(1 / sqrt((double)shape->head_dim));
    *group = (attn_layer_group){
        .struct_size = sizeof *group,
        .kind = ATTN_KIND_SOFTMAX,
        .attn_type = ATTN_TYPE_DECODER,
        .flags = (shape->sinks ? (uint32_t)ATTN_GROUP_HAS_SINKS : 0u) |
                 (shape->alibi ? (uint32_t)ATTN_GROUP_HAS_ALIBI : 0u),
        .num_q_heads = shape->q_heads,
        .num_kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .v_head_dim = shape->v_head_dim,
        .window_left = shape->window - 1,
        .window_right = shape->causal ? 0 : -1,
        .attention_chunk = shape->chunk,
        .sm_scale = scale,
        .logit_cap = (float)shape->logit_cap,
        .kv_scale_granularity =
            dtype_is_fp8(shape->kv_dtype) ? (uint32_t)shape->scales : (uint32_t)ATTN_SCALE_NONE,
        .input_scale_granularity = input_granularity(shape),
        .num_layers = 1,
        .layers = layer,
    };
}

static void init_bounds(const struct bench_shape *shape, attn_bounds *bounds)
{
    struct bench_count count;
    bench_shape_count(shape, &count);
    *bounds = (attn_bounds){
        .struct_size = sizeof *bounds,
        .modes = ATTN_MODE_BIT((uint32_t)shape->mode),
        .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
        .uses = shape->new_kv == BENCH_NEW_KV_ARGS ? (uint32_t)ATTN_USES_UNSAVED_KV : 0u,
        .max_seqs = shape->batch,
        .max_tokens = (int32_t)count.tokens,
        .max_kv_tokens = count.pages * shape->page_size,
    };
    for (int32_t s = 0; s < shape->batch; s++) {
        int32_t q_len = bench_shape_q_len(shape, s), kv_len = bench_shape_kv_len(shape, s);
        bounds->max_q_len = q_len > bounds->max_q_len ? q_len : bounds->max_q_len;
        bounds->max_kv_len = kv_len > bounds->max_kv_len ? kv_len : bounds->max_kv_len;
    }
}

void bench_problem_init(struct bench_problem *problem, const struct bench_shape *shape,
                        const attn_device *device, const char *layout, uint32_t graph_level)
{
    problem->layer = (attn_layer){.struct_size = sizeof problem->layer};
    init_group(shape, &problem->layer, &problem->group);
    init_bounds(shape, &problem->bounds);
    problem->problem = (attn_problem){
        .struct_size = sizeof problem->problem,
        .graph_level = graph_level,
        .device = device,
        .group = &problem->group,
        .bounds = &problem->bounds,
        .kv_layout = layout,
        .q_dtype = shape->dtype,
        .new_kv_dtype =
            shape->new_kv_dtype == shape->dtype ? (attn_dtype)ATTN_DTYPE_NONE : shape->new_kv_dtype,
        .kv_dtype = shape->kv_dtype,
        .out_dtype = shape->out_dtype,
        .page_size = shape->page_size,
        .tp_size = 1,
    };
}

/* ---- Index arrays ---------------------------------------------------------------------------- */

static int32_t pages_of(const struct bench_shape *shape, int32_t s)
{
    return (int32_t)units_for(bench_shape_kv_len(shape, s), shape->page_size);
}

static int32_t longest(const struct bench_shape *shape)
{
    int32_t most = 0;
    for (int32_t s = 0; s < shape->batch; s++) {
        int32_t kv_len = bench_shape_kv_len(shape, s);
        most = kv_len > most ? kv_len : most;
    }
    return most;
}

/* Room for `count` elements of `size` bytes; with base NULL only the size is counted. */
static void *carve(char *base, uint64_t *used, int64_t count, size_t size)
{
    void *at = base ? base + *used : NULL;
    *used = (*used + (uint64_t)count * size + 63) / 64 * 64;
    return at;
}

/* Values that a scale has. */
static uint32_t count_scales(const struct bench_shape *shape, uint32_t granularity)
{
    uint32_t heads = (uint32_t)shape->kv_heads;
    switch (granularity) {
    case ATTN_SCALE_NONE:
        return 0;
    case ATTN_SCALE_PER_TENSOR:
        return 1;
    case ATTN_SCALE_PER_HEAD:
        return heads;
    default: /* PER_SEQ_HEAD */
        return (uint32_t)shape->batch * heads;
    }
}

/* One path for counting and for use, so that they cannot differ. */
static uint64_t lay_out(const struct bench_inputs *inputs, char *base, struct bench_arrays *a)
{
    const struct bench_shape *shape = &inputs->shape;
    int64_t seqs = shape->batch, row = longest(shape), pages = inputs->count.pages;
    uint64_t used = 0;
    a->out_cache_loc = carve(base, &used, inputs->count.tokens, sizeof *a->out_cache_loc);
    a->seq_lens = carve(base, &used, seqs, sizeof *a->seq_lens);
    a->prefix_lens = carve(base, &used, seqs, sizeof *a->prefix_lens);
    a->q_indptr = carve(base, &used, seqs + 1, sizeof *a->q_indptr);
    a->req_pool_indices = carve(base, &used, seqs, sizeof *a->req_pool_indices);
    a->real = carve(base, &used, 2, sizeof *a->real);
    a->req_to_token = carve(base, &used, (seqs + 1) * row, sizeof *a->req_to_token);
    a->block_table =
        carve(base, &used, seqs * units_for(row, shape->page_size), sizeof *a->block_table);
    a->kv_indptr = carve(base, &used, seqs + 1, sizeof *a->kv_indptr);
    a->kv_indices = carve(base, &used, pages, sizeof *a->kv_indices);
    a->last_page_len = carve(base, &used, seqs, sizeof *a->last_page_len);
    a->k_scale = carve(base, &used, shape->kv_heads, sizeof *a->k_scale);
    a->v_scale = carve(base, &used, shape->kv_heads, sizeof *a->v_scale);
    for (int i = 0; i < 3; i++)
        a->input_scales[i] = carve(base, &used, count_scales(shape, input_granularity(shape)),
                                   sizeof *a->input_scales[i]);
    a->out_scale = carve(base, &used, 1, sizeof *a->out_scale);
    a->sinks = carve(base, &used, shape->q_heads, sizeof *a->sinks);
    a->slopes = carve(base, &used, shape->q_heads, sizeof *a->slopes);
    return used;
}

/* Pages 1 .. count in random order. */
static void shuffle_pages(int32_t *pages, int64_t count, uint64_t seed)
{
    for (int64_t p = 0; p < count; p++)
        pages[p] = (int32_t)(p + 1);
    for (int64_t p = count; p-- > 1;) {
        int64_t other =
            (int64_t)mix_below((uint32_t)mix_stream(seed, (uint64_t)p), (uint64_t)p + 1);
        int32_t page = pages[p];
        pages[p] = pages[other];
        pages[other] = page;
    }
}

/* Where sequence `s` has its keys, in all three forms; row 0 of req_to_token is no request's. */
static void fill_slots(const struct bench_inputs *inputs, int32_t s)
{
    const struct bench_shape *shape = &inputs->shape;
    const struct bench_arrays *a = &inputs->arrays;
    int32_t kv_len = bench_shape_kv_len(shape, s), page_size = shape->page_size;
    int32_t *slots = a->req_to_token + (int64_t)(s + 1) * inputs->kv.req_to_token_stride;
    int32_t *table = a->block_table + (int64_t)s * inputs->kv.block_table_stride;
    const int32_t *pages = a->kv_indices + a->kv_indptr[s];
    for (int32_t p = 0; p < pages_of(shape, s); p++)
        table[p] = pages[p];
    for (int32_t j = 0; j < kv_len; j++)
        slots[j] = pages[j / page_size] * page_size + j % page_size;
    for (int32_t t = 0; t < bench_shape_q_len(shape, s); t++)
        a->out_cache_loc[a->q_indptr[s] + t] = slots[a->prefix_lens[s] + t];
}

/* Scales that differ where they may, by no more than a half, so that values have about unit
 * variance with each of them; those of the cache 1/64 .. 3/64. Outputs are means of its values. */
static void fill_scales(struct bench_inputs *inputs)
{
    const struct bench_shape *shape = &inputs->shape;
    struct bench_arrays *a = &inputs->arrays;
    uint32_t count = count_scales(shape, input_granularity(shape));
    uint32_t heads = (uint32_t)shape->kv_heads;
    for (int32_t h = 0; h < shape->kv_heads; h++)
        a->k_scale[h] = a->v_scale[h] = (float)(1 + h % 3) / 64;
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t n = 0; n < count; n++)
            a->input_scales[i][n] = (float)(4 + (n / heads + n % heads + i) % 3) / 256;
    *a->out_scale = 1.0f / 32;
}

static void fill_arrays(struct bench_inputs *inputs, uint64_t seed)
{
    const struct bench_shape *shape = &inputs->shape;
    struct bench_arrays *a = &inputs->arrays;
    shuffle_pages(a->kv_indices, inputs->count.pages, mix_absorb(seed, 1));
    for (int32_t s = 0; s < shape->batch; s++) {
        int32_t q_len = bench_shape_q_len(shape, s), kv_len = bench_shape_kv_len(shape, s);
        int32_t pages = pages_of(shape, s);
        a->seq_lens[s] = kv_len;
        a->prefix_lens[s] = kv_len - q_len;
        a->q_indptr[s + 1] = a->q_indptr[s] + q_len;
        a->req_pool_indices[s] = s + 1;
        a->kv_indptr[s + 1] = a->kv_indptr[s] + pages;
        a->last_page_len[s] = kv_len - (pages - 1) * shape->page_size;
        fill_slots(inputs, s);
    }
    a->real[0] = shape->batch;
    a->real[1] = (int32_t)inputs->count.tokens;
    fill_scales(inputs);
    for (int32_t h = 0; h < shape->q_heads; h++) {
        a->sinks[h] = (float)(h % 7 - 3) / 2;
        a->slopes[h] = generator_alibi_slope(h, shape->q_heads);
    }
}

/* ---- The batch ------------------------------------------------------------------------------- */

/* Where the device has what lies at `array` in the host's block. */
static const void *on_device(const struct bench_inputs *inputs, const void *array)
{
    return inputs->device_block + ((const char *)array - inputs->block);
}

static attn_i32_array both(const struct bench_inputs *inputs, const int32_t *array)
{
    return (attn_i32_array){.host = array, .device = on_device(inputs, array)};
}

static void init_kv_batch(struct bench_inputs *inputs)
{
    const struct bench_arrays *a = &inputs->arrays;
    attn_kv_batch *kv = &inputs->kv;
    kv->struct_size = sizeof *kv;
    kv->index_forms = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR;
    kv->page_size = inputs->shape.page_size;
    kv->kv_lens = both(inputs, a->seq_lens);
    kv->out_cache_loc =
        (attn_i64_array){.host = a->out_cache_loc, .device = on_device(inputs, a->out_cache_loc)};
    kv->req_to_token = both(inputs, a->req_to_token);
    kv->block_table = both(inputs, a->block_table);
    kv->kv_indptr = both(inputs, a->kv_indptr);
    kv->kv_indices = both(inputs, a->kv_indices);
    kv->last_page_len = both(inputs, a->last_page_len);
}

static void init_batch(struct bench_inputs *inputs)
{
    const struct bench_shape *shape = &inputs->shape;
    const struct bench_arrays *a = &inputs->arrays;
    attn_bounds bounds;
    int mixed = shape->mode == ATTN_MODE_MIXED;
    init_bounds(shape, &bounds);
    inputs->batch = (attn_batch){
        .struct_size = sizeof inputs->batch,
        .mode = (uint32_t)shape->mode,
        .num_seqs = shape->batch,
        .num_tokens = bounds.max_tokens,
        .num_real_seqs = shape->batch,
        .num_real_tokens = bounds.max_tokens,
        .num_decode_seqs = shape->decodes,
        .first_decode_seq = mixed ? shape->batch - shape->decodes : 0,
        .decode_q_len = mixed,
        .max_q_len = bounds.max_q_len,
        .max_kv_len = bounds.max_kv_len,
        .num_kv_groups = 1,
        .num_real_seqs_device = on_device(inputs, &a->real[0]),
        .num_real_tokens_device = on_device(inputs, &a->real[1]),
        .seq_lens = both(inputs, a->seq_lens),
        .prefix_lens = both(inputs, a->prefix_lens),
        .q_indptr = both(inputs, a->q_indptr),
        .req_pool_indices = both(inputs, a->req_pool_indices),
        .kv_groups = &inputs->kv,
    };
    init_kv_batch(inputs);
}

static attn_scale make_scale(const struct bench_inputs *inputs, uint32_t granularity,
                             const float *values)
{
    return (attn_scale){
        .struct_size = sizeof(attn_scale),
        .granularity = granularity,
        .count = count_scales(&inputs->shape, granularity),
        .host = values,
        .device = on_device(inputs, values),
    };
}

static void make_scales(struct bench_inputs *inputs)
{
    const struct bench_arrays *a = &inputs->arrays;
    const uint32_t granularity = (uint32_t)inputs->shape.scales;
    inputs->k_scale = make_scale(inputs, granularity, a->k_scale);
    inputs->v_scale = make_scale(inputs, granularity, a->v_scale);
    for (int i = 0; i < 3; i++)
        inputs->input_scales[i] =
            make_scale(inputs, input_granularity(&inputs->shape), a->input_scales[i]);
    inputs->out_scale = make_scale(inputs, ATTN_SCALE_PER_TENSOR, a->out_scale);
}

static attn_status fail_memory(const struct bench_inputs *inputs, uint32_t space, uint64_t bytes,
                               const char *what, attn_error *error)
{
    return device_no_memory(inputs->device, space, error, "no memory for %llu MiB of %s",
                            (unsigned long long)(bytes >> 20), what);
}

/* The arrays here, and a copy of them on the device. */
static attn_status make_arrays(struct bench_inputs *inputs, uint64_t seed, attn_error *error)
{
    const struct device *device = inputs->device;
    attn_status status = ATTN_OK;
    int32_t row = longest(&inputs->shape);
    inputs->kv.req_to_token_stride = row;
    inputs->kv.block_table_stride = (int32_t)units_for(row, inputs->shape.page_size);
    inputs->block_bytes = lay_out(inputs, NULL, &inputs->arrays);
    inputs->block = calloc(1, inputs->block_bytes);
    if (!inputs->block)
        return fail_memory(inputs, ATTN_SPACE_HOST, inputs->block_bytes, "index arrays", error);
    lay_out(inputs, inputs->block, &inputs->arrays);
    fill_arrays(inputs, seed);
    inputs->device_block = inputs->block;
    if (device->type != ATTN_DEVICE_CPU) {
        inputs->device_block =
            device_allocate(device, ATTN_SPACE_DEVICE, inputs->block_bytes, ALIGNMENT);
        if (!inputs->device_block)
            return fail_memory(inputs, ATTN_SPACE_DEVICE, inputs->block_bytes, "index arrays",
                               error);
        status = device_copy(device, inputs->device_block, inputs->block, inputs->block_bytes, NULL,
                             error);
    }
    init_batch(inputs);
    make_scales(inputs);
    return status;
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Random elements, of which operands are made by repetition. */
enum { POOL = 1 << 19, POOL_Q = 0, POOL_NEW_KV, POOL_CACHE, NUM_POOLS };

/* Sums of four uniform numbers: near to normal, of variance 1. The first of the scales is theirs.
 */
static void fill_random(attn_dtype dtype, const float *scales, uint64_t seed, char *pool)
{
    float scale = dtype_is_fp8(dtype) ? scales[0] : 1;
    for (int64_t i = 0; i < POOL; i++) {
        uint64_t bits = mix_stream(seed, (uint64_t)i);
        double sum = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) +
                     (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
        dtype_quantise(dtype, pool, i, (float)((sum / 65536 - 2) * 1.7320508), scale);
    }
}

/* Fill an operand: a piece of the pool, which differs between operands and copies, then what is
 * there is doubled until the operand is full. */
static attn_status fill_operand(const struct bench_inputs *inputs, char *to, uint64_t bytes,
                                const char *pool, uint64_t size, uint64_t hash, attn_error *error)
{
    uint64_t skip = mix_below((uint32_t)hash, POOL / 2) * size, filled = POOL * size - skip;
    filled = filled < bytes ? filled : bytes;
    attn_status status = device_copy(inputs->device, to, pool + skip, filled, NULL, error);
    while (filled < bytes && status == ATTN_OK) {
        uint64_t more = bytes - filled < filled ? bytes - filled : filled;
        status = device_copy(inputs->device, to + filled, to, more, NULL, error);
        filled += more;
    }
    return status;
}

static int64_t heads_of(const struct bench_shape *shape, int operand)
{
    return operand == BENCH_Q || operand == BENCH_OUT ? shape->q_heads : shape->kv_heads;
}

static int64_t dim_of(const struct bench_shape *shape, int operand)
{
    bool values = operand == BENCH_V || operand == BENCH_OUT || operand == BENCH_V_CACHE;
    return values ? shape->v_head_dim : shape->head_dim;
}

/* Elements of each operand. */
static void list_elements(const struct bench_inputs *inputs, int64_t elements[BENCH_OPERANDS])
{
    const struct bench_shape *shape = &inputs->shape;
    int64_t tokens = inputs->count.tokens, slots = (inputs->count.pages + 1) * shape->page_size;
    for (int o = 0; o < BENCH_OPERANDS; o++)
        elements[o] = (o == BENCH_K_CACHE || o == BENCH_V_CACHE ? slots : tokens) *
                      heads_of(shape, o) * dim_of(shape, o);
}

static attn_dtype dtype_of(const struct bench_shape *shape, int operand)
{
    const attn_dtype dtypes[BENCH_OPERANDS] = {
        [BENCH_Q] = shape->dtype,          [BENCH_K] = shape->new_kv_dtype,
        [BENCH_V] = shape->new_kv_dtype,   [BENCH_OUT] = shape->out_dtype,
        [BENCH_K_CACHE] = shape->kv_dtype, [BENCH_V_CACHE] = shape->kv_dtype,
    };
    return dtypes[operand];
}

/* Each pool of one type and one scale; a type that is not fp8 takes no notice of the scale. */
static void fill_pools(const struct bench_inputs *inputs, uint64_t seed, char *pools[NUM_POOLS])
{
    const struct bench_shape *shape = &inputs->shape;
    const struct bench_arrays *a = &inputs->arrays;
    fill_random(shape->dtype, a->input_scales[0], mix_absorb(seed, 2), pools[POOL_Q]);
    fill_random(shape->new_kv_dtype, a->input_scales[1], mix_absorb(seed, 2), pools[POOL_NEW_KV]);
    fill_random(shape->kv_dtype, a->k_scale, mix_absorb(seed, 3), pools[POOL_CACHE]);
}

/* An output, which is written before anybody reads it, gets any bytes: those of queries. */
static attn_status fill_copies(const struct bench_inputs *inputs, uint64_t seed,
                               char *pools[NUM_POOLS], attn_error *error)
{
    static const int sources[BENCH_OPERANDS] = {
        [BENCH_Q] = POOL_Q,   [BENCH_K] = POOL_NEW_KV,      [BENCH_V] = POOL_NEW_KV,
        [BENCH_OUT] = POOL_Q, [BENCH_K_CACHE] = POOL_CACHE, [BENCH_V_CACHE] = POOL_CACHE,
    };
    const struct bench_shape *shape = &inputs->shape;
    const attn_dtype pool_dtypes[NUM_POOLS] = {shape->dtype, shape->new_kv_dtype, shape->kv_dtype};
    int64_t elements[BENCH_OPERANDS];
    attn_status status = ATTN_OK;
    list_elements(inputs, elements);
    fill_pools(inputs, seed, pools);
    for (uint32_t c = 0; c < inputs->copies; c++)
        for (int o = 0; o < BENCH_OPERANDS && status == ATTN_OK; o++)
            status =
                fill_operand(inputs, inputs->operands + c * inputs->copy_bytes + inputs->where[o],
                             (uint64_t)elements[o] * attn_dtype_size(dtype_of(shape, o)),
                             pools[sources[o]], attn_dtype_size(pool_dtypes[sources[o]]),
                             mix_stream(seed, (uint64_t)c * BENCH_OPERANDS + (uint64_t)o), error);
    if (status == ATTN_OK)
        status = device_synchronize(inputs->device, NULL, error);
    return status;
}

static attn_status fill_values(const struct bench_inputs *inputs, uint64_t seed, attn_error *error)
{
    char *pools[NUM_POOLS], *block = malloc(NUM_POOLS * POOL * sizeof(float));
    if (!block)
        return fail_memory(inputs, ATTN_SPACE_HOST, NUM_POOLS * POOL * sizeof(float),
                           "random values", error);
    for (uint64_t p = 0; p < NUM_POOLS; p++)
        pools[p] = block + p * POOL * sizeof(float);
    attn_status status = fill_copies(inputs, seed, pools, error);
    free(block);
    return status;
}

/* Copies that reach beyond the cache, at least two, in at most half of the memory that is free. */
static uint32_t choose_copies(const struct bench_inputs *inputs)
{
    const struct device *device = inputs->device;
    uint64_t available = 0, total = 0;
    double wanted = ceil((double)bench_beyond_cache(device) / inputs->count.bytes);
    if (wanted < 2)
        wanted = 2;
    if (wanted > MAX_COPIES)
        wanted = MAX_COPIES;
    if (device_memory(device, &available, &total, NULL) != ATTN_OK)
        return 1;
    double room = (double)(available / 2 / inputs->copy_bytes);
    return (uint32_t)(room < 1 ? 1 : room < wanted ? room : wanted);
}

static attn_status make_operands(struct bench_inputs *inputs, uint64_t seed, attn_error *error)
{
    int64_t elements[BENCH_OPERANDS];
    list_elements(inputs, elements);
    for (int o = 0; o < BENCH_OPERANDS; o++) {
        uint64_t bytes = (uint64_t)elements[o] * attn_dtype_size(dtype_of(&inputs->shape, o));
        inputs->where[o] = inputs->copy_bytes;
        inputs->copy_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    inputs->copies = choose_copies(inputs);
    uint64_t bytes = inputs->copies * inputs->copy_bytes;
    inputs->operands = device_allocate(inputs->device, ATTN_SPACE_DEVICE, bytes, ALIGNMENT);
    if (!inputs->operands)
        return fail_memory(inputs, ATTN_SPACE_DEVICE, bytes, "operands", error);
    return fill_values(inputs, seed, error);
}

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status bench_inputs_create(const struct device *device, const struct bench_shape *shape,
                                uint64_t seed, struct bench_inputs **inputs, attn_error *error)
{
    struct bench_inputs *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a shape's inputs");
    made->device = device;
    made->shape = *shape;
    bench_shape_count(shape, &made->count);
    attn_status status = make_arrays(made, seed, error);
    if (status == ATTN_OK)
        status = make_operands(made, seed, error);
    if (status != ATTN_OK)
        bench_inputs_destroy(made);
    else
        *inputs = made;
    return status;
}

void bench_inputs_destroy(struct bench_inputs *inputs)
{
    if (!inputs)
        return;
    device_synchronize(inputs->device, NULL, NULL); /* copies that were enqueued before a failure */
    device_release(inputs->device, ATTN_SPACE_DEVICE, inputs->operands);
    if (inputs->device_block != inputs->block)
        device_release(inputs->device, ATTN_SPACE_DEVICE, inputs->device_block);
    free(inputs->block);
    free(inputs);
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* A dense view; extents and addresses are right by construction. */
static void view(const struct bench_inputs *inputs, void *data, attn_dtype dtype, uint32_t ndim,
                 const int64_t *shape, attn_tensor *tensor)
{
    tensor->struct_size = sizeof *tensor;
    attnhost_tensor_init(tensor, data, inputs->device->type, inputs->device->id, dtype, ndim, shape,
                         NULL, NULL);
}

static void view_rows(const struct bench_inputs *inputs, char *copy, int operand, int32_t heads,
                      int32_t dim, attn_tensor *tensor)
{
    const int64_t shape[] = {inputs->count.tokens, heads, dim};
    view(inputs, copy + inputs->where[operand], dtype_of(&inputs->shape, operand), 3, shape,
         tensor);
}

static void view_cache(const struct bench_inputs *inputs, char *copy, int operand, int32_t dim,
                       const char *layout, attn_tensor *tensor)
{
    const struct bench_shape *s = &inputs->shape;
    int64_t pages = inputs->count.pages + 1;
    const int64_t nhd[] = {pages, s->page_size, s->kv_heads, dim};
    const int64_t hnd[] = {pages, s->kv_heads, s->page_size, dim};
    const int64_t *shape = strcmp(layout, ATTN_LAYOUT_KV_HND) == 0 ? hnd : nhd;
    view(inputs, copy + inputs->where[operand], s->kv_dtype, 4, shape, tensor);
}

static void view_heads(const struct bench_inputs *inputs, const float *values, attn_tensor *tensor)
{
    const int64_t shape[] = {inputs->shape.q_heads};
    view(inputs, inputs->device_block + ((const char *)values - inputs->block), ATTN_F32, 1, shape,
         tensor);
}

/* Of what is fp8, and given. */
static void set_scales(const struct bench_inputs *inputs, struct bench_call *call)
{
    static const uint32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V};
    int fp8 = dtype_is_fp8(inputs->shape.kv_dtype);
    call->scales[ATTN_ROLE_K_CACHE] = fp8 ? &inputs->k_scale : NULL;
    call->scales[ATTN_ROLE_V_CACHE] = fp8 ? &inputs->v_scale : NULL;
    for (int i = 0; i < 3; i++) {
        const attn_tensor *operand = call->operands[roles[i]];
        if (operand && dtype_is_fp8(operand->dtype))
            call->scales[roles[i]] = &inputs->input_scales[i];
    }
    if (dtype_is_fp8(inputs->shape.out_dtype))
        call->scales[ATTN_ROLE_OUT] = &inputs->out_scale;
}

void bench_inputs_call(const struct bench_inputs *inputs, uint32_t copy, const char *layout,
                       struct bench_call *call)
{
    const struct bench_shape *s = &inputs->shape;
    char *at = inputs->operands + copy * inputs->copy_bytes;
    int cached = s->new_kv == BENCH_NEW_KV_CACHED;
    memset(call, 0, sizeof *call);
    view_rows(inputs, at, BENCH_Q, s->q_heads, s->head_dim, &call->q);
    view_rows(inputs, at, BENCH_K, s->kv_heads, s->head_dim, &call->k);
    view_rows(inputs, at, BENCH_V, s->kv_heads, s->v_head_dim, &call->v);
    view_rows(inputs, at, BENCH_OUT, s->q_heads, s->v_head_dim, &call->out);
    view_cache(inputs, at, BENCH_K_CACHE, s->head_dim, layout, &call->k_cache);
    view_cache(inputs, at, BENCH_V_CACHE, s->v_head_dim, layout, &call->v_cache);
    view_heads(inputs, inputs->arrays.sinks, &call->sinks);
    view_heads(inputs, inputs->arrays.slopes, &call->slopes);
    call->operands[ATTN_ROLE_Q] = &call->q;
    call->operands[ATTN_ROLE_K] = cached ? NULL : &call->k;
    call->operands[ATTN_ROLE_V] = cached ? NULL : &call->v;
    call->operands[ATTN_ROLE_OUT] = &call->out;
    call->operands[ATTN_ROLE_K_CACHE] = &call->k_cache;
    call->operands[ATTN_ROLE_V_CACHE] = &call->v_cache;
    call->operands[ATTN_ROLE_SINKS] = s->sinks ? &call->sinks : NULL;
    call->operands[ATTN_ROLE_ALIBI_SLOPES] = s->alibi ? &call->slopes : NULL;
    set_scales(inputs, call);
    call->args = (attn_forward_args){
        .struct_size = sizeof call->args,
        .flags = s->new_kv == BENCH_NEW_KV_SAVED ? (uint32_t)ATTN_FORWARD_SAVE_KV : 0u,
        .num_operands = ATTN_ROLE_COUNT,
        .num_scales = ATTN_ROLE_COUNT,
        .operands = call->operands,
        .scales = call->scales,
    };
}

/* ---- Parts of a copy ------------------------------------------------------------------------- */

struct bench_region bench_inputs_rows(const struct bench_inputs *inputs, int operand, int64_t first,
                                      int64_t count)
{
    const struct bench_shape *shape = &inputs->shape;
    uint64_t row = (uint64_t)(heads_of(shape, operand) * dim_of(shape, operand)) *
                   attn_dtype_size(dtype_of(shape, operand));
    return (struct bench_region){inputs->where[operand] + (uint64_t)first * row,
                                 (uint64_t)count * row};
}

struct bench_region bench_inputs_page(const struct bench_inputs *inputs, int operand, int64_t page)
{
    int64_t slots = inputs->shape.page_size;
    return bench_inputs_rows(inputs, operand, page * slots, slots);
}

void bench_inputs_mirror(const struct bench_inputs *inputs, char *operands,
                         struct bench_inputs *mirror)
{
    static const struct device host = {.type = ATTN_DEVICE_CPU};
    *mirror = *inputs;
    mirror->device = &host;
    mirror->copies = 1;
    mirror->operands = operands;
    mirror->device_block = inputs->block;
    init_batch(mirror);
    make_scales(mirror);
}
