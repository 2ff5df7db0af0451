/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: the rows of all sequences, then what is left when they are done, as states
 * of the convolution are read by several blocks.
 */
#include "linear_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/linear_like/kernels/heads.h"

enum { PAD_BLOCKS = 32 };

/* One call. */
typedef struct layer_call {
    const attn_metadata *metadata;
    const linear_group *group;
    linear_call params;
    unsigned *readers; /* linear_decode_call.readers */
    int64_t slots;
} layer_call;

static attn_status find_layer(layer_call *call, int32_t layer_id, attn_error *error)
{
    const attn_instance *instance = call->metadata->instance;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        for (uint32_t n = 0; n < instance->groups[i].num_layers; n++)
            if (instance->groups[i].layers[n] == layer_id) {
                call->group = &instance->groups[i];
                return ATTN_OK;
            }
    return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                "layer_id %d is not of this instance", layer_id);
}

/* `early`: the kernel may begin before the previous one has ended. */
static attn_status launch(const layer_call *call, cuda_function function, const char *name,
                          int early, int64_t blocks, int threads, int shared, void **params,
                          attn_stream stream, attn_error *error)
{
    const cuda_launch run = {.function = function,
                             .name = name,
                             .programmatic = early && call->metadata->instance->facts.sm >= 90,
                             .grid = {blocks, 1, 1},
                             .block = {(uint32_t)threads},
                             .shared = (uint32_t)shared};
    return cuda_launch_run(call->metadata->instance->cuda, &run, params, stream, error);
}

/* As many warps as a head has values for, as more threads share the work before a step. */
static int find_warps(const linear_dims *d, int values)
{
    int warps = STEPS_MAX_WARPS;
    while (warps > 1 && STEPS_COLUMNS(warps / 2, values) >= d->v_dim)
        warps /= 2;
    return warps;
}

/* Does linear_decode_* serve the batch, which must have one row per sequence? It rounds differently
 * from linear_steps_*, so in a BATCH_INVARIANT group, which has no chunks, the mode alone decides.
 */
static int is_decode(const layer_call *call)
{
    const cuda_plan *plan = &call->metadata->plan;
    return call->group->decode && cuda_plan_extent(plan).q_len == 1 &&
           (call->group->by_chunks || plan->batch.mode == ATTN_MODE_DECODE);
}

/* Does one launch serve the batch, without linear_finish? */
static int is_one_launch(const layer_call *call)
{
    return is_decode(call) && (call->group->dims.width <= 1 || call->readers);
}

/* May the batch have padding? It may in a graph, or with rows that belong to no sequence. */
static int may_have_padding(const layer_call *call)
{
    const attn_batch *batch = &call->metadata->plan.batch;
    return call->metadata->plan.kind == ATTN_METADATA_GRAPH || batch->num_real_seqs_device ||
           batch->num_real_tokens < batch->num_tokens;
}

/* One row per sequence, by parts of heads, for any layer. */
static cuda_launch describe_parts(const linear_group *g, int vectors)
{
    const int bf16 = g->state_dtype == ATTN_BF16, values = DECODE_VALUES(bf16);
    const int warps = find_warps(&g->dims, values), columns = STEPS_COLUMNS(warps, values);
    return (cuda_launch){.function = g->decode,
                         .name = "linear_decode",
                         .grid = {(g->dims.v_dim + columns - 1) / columns, g->dims.v_heads},
                         .block = {(uint32_t)(32 * warps)},
                         .shared = (uint32_t)DECODE_SHARED(warps, vectors, bf16)};
}

static cuda_launch describe_slices(const linear_group *g, int vectors)
{
    const int size = (int)attn_dtype_size(g->state_dtype), columns = SLICE_COLUMNS(size);
    return (cuda_launch){.function = g->slices,
                         .name = "linear_slices",
                         .grid = {g->dims.v_dim / columns, g->dims.v_heads},
                         .block = {(uint32_t)HEADS_THREADS(columns, size, SLICE_PARTS)},
                         .shared = (uint32_t)SLICE_SHARED(vectors, size)};
}

static cuda_launch describe_heads(const linear_group *g)
{
    const linear_dims *d = &g->dims;
    const int size = (int)attn_dtype_size(g->state_dtype);
    const int columns = HEADS_COLUMNS(d->vk, d->v_dim, size);
    return (cuda_launch){.function = g->heads,
                         .name = "linear_heads",
                         .grid = {d->v_dim / columns, d->v_heads},
                         .block = {(uint32_t)HEADS_THREADS(columns, size, HEADS_PARTS)},
                         .shared = (uint32_t)HEADS_SHARED(columns, size)};
}

/* Whole heads, or slices for few heads, or parts if operands are not aligned. */
static cuda_launch describe_decode(const layer_call *call, int64_t seqs)
{
    const int need = LINEAR_ALIGNED_FOURS | LINEAR_ALIGNED_HEADS;
    const linear_group *g = call->group;
    const linear_dims *d = &g->dims;
    const int vectors = d->family == LINEAR_FAMILY_KDA ? 3 : 2;
    if (!g->heads || (call->params.operands.aligned & need) != need)
        return describe_parts(g, vectors);
    return seqs * d->v_heads * d->k_dim * d->v_dim <= SLICES_MOST ? describe_slices(g, vectors)
                                                                  : describe_heads(g);
}

static linear_heads_call give_heads(const layer_call *call, int64_t seqs)
{
    const linear_dims *d = &call->group->dims;
    const int64_t head = (int64_t)d->k_dim * d->v_dim * attn_dtype_size(call->group->state_dtype);
    const int kept = seqs * d->v_heads * head >= HEADS_KEPT_LEAST;
    return (linear_heads_call){.decode = {.call = call->params, .readers = call->readers},
                               .slots = (int)call->slots,
                               .kept = kept,
                               .prefetched = kept ? 0 : HEADS_PREFETCHED};
}

/* A launch has at most MOST sequences. linear_decode_* read linear_heads_call's first member only.
 */
static attn_status launch_decode(layer_call *call, attn_stream stream, attn_error *error)
{
    enum { MOST = 65534 };
    const int64_t seqs = cuda_plan_extent(&call->metadata->plan).seqs;
    linear_heads_call given = give_heads(call, seqs);
    cuda_launch run = describe_decode(call, seqs);
    attn_status status = ATTN_OK;
    for (int first = 0; first < seqs && status == ATTN_OK; first += MOST) {
        int count = (int)(seqs - first < MOST ? seqs - first : MOST);
        const int pads = is_one_launch(call) && may_have_padding(call) && first + count == seqs;
        void *params[] = {&given, &first, &count};
        run.grid[2] = count + pads;
        run.programmatic = call->metadata->instance->facts.sm >= 90;
        status = cuda_launch_run(call->metadata->instance->cuda, &run, params, stream, error);
    }
    return status;
}

static attn_status launch_steps(layer_call *call, attn_stream stream, attn_error *error)
{
    const linear_dims *d = &call->group->dims;
    const cuda_extent e = cuda_plan_extent(&call->metadata->plan);
    const int keys = call->group->lane_keys, values = STEPS_VALUES(keys);
    const int warps = find_warps(d, values), columns = STEPS_COLUMNS(warps, values);
    const int vectors = d->family == LINEAR_FAMILY_KDA ? 3 : 2;
    void *params[] = {&call->params};
    if (is_decode(call))
        return launch_decode(call, stream, error);
    return launch(call, call->group->steps, "linear_steps", call->params.chunks.sequences != NULL,
                  e.seqs * d->v_heads * ((d->v_dim + columns - 1) / columns), 32 * warps,
                  STEPS_SHARED(STEPS_ROWS, keys, vectors, columns), params, stream, error);
}

static int goes_by_vectors(const layer_call *call)
{
    const linear_group *g = call->group;
    return call->params.operands.aligned & LINEAR_ALIGNED_ROWS && g->dims.width <= 4 &&
           g->dims.v_dim % 8 == 0 && g->convolve_vectors && g->out_dtype == g->q_dtype;
}

static attn_status launch_convolve(layer_call *call, attn_stream stream, attn_error *error)
{
    const linear_group *g = call->group;
    const cuda_extent e = cuda_plan_extent(&call->metadata->plan);
    const int vectors = goes_by_vectors(call);
    const int64_t threads = g->dims.channels / (vectors ? CONVOLVE_NUMBER : 1);
    int rows = linear_convolve_rows(threads, e.tokens);
    const int64_t pieces = (e.tokens + rows - 1) / rows;
    void *params[] = {&call->params, &rows};
    return launch(call, vectors ? g->convolve_vectors : g->convolve, "linear_convolve", 0,
                  pieces * ((threads + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS), CONVOLVE_THREADS,
                  0, params, stream, error);
}

static attn_status launch_finish(layer_call *call, attn_stream stream, attn_error *error)
{
    const linear_dims *d = &call->group->dims;
    const cuda_extent e = cuda_plan_extent(&call->metadata->plan);
    int pad_blocks = may_have_padding(call) ? PAD_BLOCKS : 0;
    int64_t blocks = d->width > 1 ? (d->channels + FINISH_THREADS - 1) / FINISH_THREADS : 0;
    void *params[] = {&call->params, &pad_blocks};
    return launch(call, call->group->finish, "linear_finish", 1, e.seqs * blocks + pad_blocks,
                  FINISH_THREADS, 0, params, stream, error);
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    if (!metadata || !args)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    layer_call call = {.metadata = metadata};
    attn_status status = cuda_plan_check_forward(&metadata->plan, decode, error);
    if (status != ATTN_OK || metadata->plan.batch.mode == ATTN_MODE_IDLE)
        return status;
    status = find_layer(&call, layer_id, error);
    if (status == ATTN_OK)
        status = linear_take_operands(metadata, call.group, args, &call.params, &call.slots, error);
    if (status != ATTN_OK)
        return status;
    if (call.group->dims.width > 1 && call.params.operands.aligned & LINEAR_ALIGNED_FOURS)
        call.readers = metadata->readers;
    status = linear_launch_chunks(metadata, call.group, &call.params, stream, error);
    if (status == ATTN_OK)
        status = call.group->steps ? launch_steps(&call, stream, error)
                                   : launch_convolve(&call, stream, error);
    return status == ATTN_OK && !is_one_launch(&call) ? launch_finish(&call, stream, error)
                                                      : status;
}

attn_status linear_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, 0, layer_id, args, stream, error);
}

attn_status linear_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, 1, layer_id, args, stream, error);
}
