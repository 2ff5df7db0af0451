/* SPDX-License-Identifier: Apache-2.0
 *
 * chunks.c: sequences that go by chunks: for which layers, in what memory, by which launches. Which
 * of a batch's sequences are long enough is found on the device.
 */
#include "linear_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/tensor_map.h"

#include <string.h>

enum {
    ALIGNMENT = 256,
    LEAST_DIM = 64,
    CHUNK_SM = 90, /* others have less shared memory, or have not been tried */
    /* Bytes of tiles; a batch that needs more takes more launches. CHUNK_INVERSE has room for 32,768 tokens of 16/32
     * heads: with the rest of these in launches of their own they took 5 % longer. */
    MOST_TILES = 384 << 20,
    MOST_TILES_INVERSE = 512 << 20
};

/* In a row of few elements the largest may be small by chance, and so may the accepted errors. */
static int is_tiled(int32_t dim)
{
    return dim % CHUNK_PANEL == 0 && dim >= LEAST_DIM && dim <= CHUNK_MAX_KEYS;
}

int linear_is_delta(const linear_dims *d)
{
    return d->family == LINEAR_FAMILY_GDN || d->family == LINEAR_FAMILY_KDA;
}

/* After a convolution rows are bf16. With these, the outputs of Mamba2 were within their error
 * bars, those of lightning not in every draw. */
int linear_is_fused(const linear_dims *d)
{
    return !linear_is_delta(d) && !d->l2_norm &&
           (d->width == 0 || d->family == LINEAR_FAMILY_MAMBA2);
}

/* Products of rows that are not normalised may overflow fp16. */
int linear_chunk_rule(const linear_dims *d)
{
    if (!linear_is_delta(d))
        return CHUNK_PLAIN;
    if (!d->l2_norm)
        return CHUNK_SOLVED;
    if (d->family == LINEAR_FAMILY_KDA)
        return d->width > 0 ? CHUNK_CHANNELS_TILES : CHUNK_CHANNELS;
    return d->width > 0 ? CHUNK_TILES : CHUNK_INVERSE;
}

int linear_convolves_first(const linear_dims *d)
{
    return d->width > 0 && (linear_is_fused(d) || CHUNK_HAS_TILES(linear_chunk_rule(d)));
}

uint32_t linear_ready_shared(const linear_dims *d)
{
    if (CHUNK_BY_CHANNELS(linear_chunk_rule(d)))
        return CHUNK_CHANNELS_INVERSE_SHARED;
    if (CHUNK_ONE_DECAY(linear_chunk_rule(d)))
        return CHUNK_INVERSE_SHARED;
    return d->family == LINEAR_FAMILY_KDA ? CHUNK_CHANNELS_SHARED
                                          : CHUNK_READY_SHARED(linear_is_delta(d), d->width);
}

/* Are fp16 products precise enough? They are if q, k and v were rounded to bf16 by a convolution or
 * a norm. Otherwise sums that cancel must be as precise as with fp32, whatever the state's type.
 * Only families without a delta rule are. */
static int is_rounded(const linear_dims *d)
{
    return d->width > 0 || d->l2_norm || !linear_is_delta(d);
}

int linear_goes_by_chunks(const linear_group *g, const attn_problem *problem)
{
    const linear_dims *d = &g->dims;
    attn_device device;
    ATTN_UTIL_READ(&device, problem->device);
    return device.sm == CHUNK_SM && d->family != LINEAR_FAMILY_SHORT_CONV &&
           !(problem->required_traits & LINEAR_INVARIANT) && g->q_dtype == ATTN_BF16 &&
           g->out_dtype == ATTN_BF16 && is_tiled(d->k_dim) && is_tiled(d->v_dim) &&
           d->width <= CHUNK_MAX_WIDTH && is_rounded(d);
}

/* ---- Scratch --------------------------------------------------------------------------------- */

static int key_heads(const linear_dims *d)
{
    return d->family == LINEAR_FAMILY_KDA ? d->v_heads : d->k_heads;
}

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t begin = *at;
    *at = (begin + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return begin;
}

/* The segments that sequences of a window may be cut into if the longest has enough rows; 0: none
 * are cut. */
static int find_room(const linear_dims *d, int64_t longest)
{
    const int room = CHUNK_ROOM(d->v_heads, d->v_dim / CHUNK_PANEL, linear_is_delta(d));
    return room >= 2 && longest >= CHUNK_SEGMENT_ROWS(room) ? room : 0;
}

/* The most segments of a window. */
static int most_segments(int room, int seqs)
{
    const int cut = CHUNK_SEGMENTS(room);
    return cut > seqs ? cut : seqs;
}

/* The channels of a row after the convolution that are not in tiles. */
static int row_channels(const linear_dims *d)
{
    return CHUNK_HAS_TILES(linear_chunk_rule(d)) ? d->v_heads * d->v_dim : d->channels;
}

/* Bytes of a chunk after the convolution. */
static uint64_t row_bytes(const linear_dims *d)
{
    if (!linear_convolves_first(d))
        return 0;
    return (uint64_t)row_channels(d) * CHUNK_ROWS * 2 +
           (CHUNK_HAS_TILES(linear_chunk_rule(d)) ? CHUNK_ROW_NUMBERS(*d) * sizeof(float) : 0);
}

/* The number of chunks comes first, then the sequences. */
linear_scratch linear_lay_out_scratch(const linear_group *group, const attn_bounds *bounds)
{
    const linear_dims *d = &group->dims;
    linear_scratch to = {0};
    if (!group->by_chunks || bounds->max_q_len < CHUNK_LEAST)
        return to;
    const int panels = d->v_dim / CHUNK_PANEL;
    const uint64_t seqs = (uint64_t)bounds->max_seqs, heads = (uint64_t)d->v_heads;
    const int fused = linear_is_fused(d); /* without tiles */
    const int rule = linear_chunk_rule(d);
    const uint64_t keys =
        fused ? 0 : (uint64_t)key_heads(d) * (uint64_t)CHUNK_RULE_KEYS_BYTES(rule);
    const uint64_t values = fused ? 0 : heads * (uint64_t)CHUNK_VALUES_BYTES(panels, rule);
    const uint64_t rows = row_bytes(d);
    const uint64_t most = CHUNK_MOST((uint64_t)bounds->max_tokens, seqs, 1);
    const uint64_t chunk = keys + values + rows;
    uint64_t window = chunk ? CHUNK_MOST((uint64_t)bounds->max_tokens, seqs, 0) : most;
    const uint64_t tiles = rule == CHUNK_INVERSE ? MOST_TILES_INVERSE : MOST_TILES;
    if (chunk && window > tiles / chunk)
        window = tiles / chunk + 1;
    to.room = find_room(d, bounds->max_q_len);
    to.most = most_segments(to.room, bounds->max_seqs);
    uint64_t at = ALIGNMENT;
    take(&at, 2 * seqs * sizeof(int32_t));
    to.list = take(&at, most * sizeof(linear_chunk));
    to.segments =
        take(&at, (most + window - 1) / window * (uint64_t)to.most * sizeof(linear_segment));
    to.results = take(&at, (uint64_t)to.room * heads * (uint64_t)CHUNK_RESULT_BYTES(panels));
    to.carry = take(&at, chunk ? 2 * heads * (uint64_t)panels * CHUNK_CARRY * sizeof(float) : 0);
    to.keys = take(&at, window * keys);
    to.values = take(&at, window * values);
    to.rows = take(&at, window * rows);
    to.bytes = at;
    to.window = (int32_t)window;
    return to;
}

/* Blocks that linear_strips_* may have; 0 where it has nothing to do. `most`: chunks. */
static int find_strips(const attn_metadata *metadata, const linear_group *group, int most)
{
    const linear_dims *d = &group->dims;
    const int64_t seqs = cuda_plan_extent(&metadata->plan).seqs;
    const int blocks =
        STRIP_BLOCKS(cuda_plan_num_sms(&metadata->plan, metadata->instance->facts.num_sms));
    const int beside = !linear_convolves_first(d) && STRIPS_BESIDE(most, d->v_heads, blocks) > 0;
    return group->strips && (beside || 4 * seqs * d->v_heads >= 3 * blocks) ? blocks : 0;
}

static void point(const attn_metadata *metadata, const linear_group *group, linear_call *call)
{
    const linear_scratch parts = linear_lay_out_scratch(group, &metadata->plan.bounds);
    const cuda_extent e = cuda_plan_extent(&metadata->plan);
    const int most = (int)CHUNK_MOST(e.tokens, e.seqs, call->batch.snapshots != NULL);
    char *base = metadata->scratch;
    call->chunks =
        (linear_chunks){.count = (int *)(void *)base,
                        .sequences = (int *)(void *)(base + ALIGNMENT),
                        .list = (linear_chunk *)(void *)(base + parts.list),
                        .segments = (linear_segment *)(void *)(base + parts.segments),
                        .results = base + parts.results,
                        .carry = (float *)(void *)(base + parts.carry),
                        .keys = base + parts.keys,
                        .values = base + parts.values,
                        .rows = linear_convolves_first(&group->dims) ? base + parts.rows : NULL,
                        .most = most,
                        .window = parts.window,
                        .most_segments = parts.most,
                        .strips = find_strips(metadata, group, most),
                        .room = find_room(&group->dims, e.q_len)};
}

/* ---- Launches -------------------------------------------------------------------------------- */

static int ready_threads(const linear_dims *d)
{
    return d->family == LINEAR_FAMILY_KDA ? CHUNK_CHANNELS_THREADS : CHUNK_READY_THREADS;
}

/* Blocks of linear_ready_* per chunk and k head. */
static int ready_parts(const linear_dims *d, int together)
{
    return (d->ratio + together - 1) / together;
}

/* Blocks of linear_ready_* per chunk. */
static int64_t ready_blocks(const linear_dims *d, int together)
{
    return d->family == LINEAR_FAMILY_KDA ? d->v_heads
                                          : (int64_t)d->k_heads * ready_parts(d, together);
}

/* v heads that share the products of q and k; fewer if multiprocessors would be idle. */
static int find_together(const linear_dims *d, int at_once)
{
    int together = CHUNK_READY_HEADS;
    while (together > 1 && at_once * ready_blocks(d, together) < CHUNK_READY_BLOCKS)
        together /= 2;
    return together;
}

/* Set the grid of linear_ready_*. If channels have decays, each block takes chunks one after the
 * other; without a convolution, the chunks of one head, if that leaves few multiprocessors without
 * a block. With one decay, the grid is {part, k head, chunk}, so that a block begins without
 * divisions. */
static void set_ready_grid(const attn_metadata *metadata, const linear_dims *d,
                           const linear_chunks *chunks, int at_once, cuda_launch *to)
{
    const int rule = linear_chunk_rule(d);
    const int64_t blocks = at_once * ready_blocks(d, chunks->together);
    const int64_t most =
        CHUNK_CHANNELS_BLOCKS *
        (int64_t)cuda_plan_num_sms(&metadata->plan, metadata->instance->facts.num_sms);
    const int64_t beyond = most % d->v_heads;
    to->grid[0] = CHUNK_BY_CHANNELS(rule) && blocks > most ? most : blocks;
    if (rule == CHUNK_CHANNELS && blocks > most && 16 * beyond <= most)
        to->grid[0] -= beyond;
    to->grid[1] = to->grid[2] = 1;
    if (!CHUNK_ONE_DECAY(rule))
        return;
    to->grid[0] = ready_parts(d, chunks->together);
    to->grid[1] = d->k_heads;
    to->grid[2] = at_once;
}

/* Do blocks get whole heads? There must be enough sequences for all multiprocessors, and none that
 * may be cut. */
static int goes_wide(const attn_metadata *metadata, const linear_group *group,
                     const linear_call *call)
{
    const cuda_extent e = cuda_plan_extent(&metadata->plan);
    return group->wide && call->chunks.room == 0 && !call->operands.z &&
           e.tokens / e.q_len * group->dims.v_heads >= WIDE_BLOCKS;
}

static uint32_t states_threads(const linear_group *group)
{
    return group->ready ? CHUNK_STATE_THREADS : FUSED_THREADS;
}

static uint32_t states_shared(const linear_group *group)
{
    const int rule = linear_chunk_rule(&group->dims);
    return group->ready ? (uint32_t)CHUNK_STATES_SHARED(rule) : (uint32_t)FUSED_SHARED;
}

/* The last launch of a window, for states and outputs. Blocks of whole heads, and those of
 * CHUNK_IN_TURN if sequences are not cut, take one part after the other, and copy the first chunks
 * of the next part during the last ones of a part. */
static cuda_launch states_launch(const attn_metadata *metadata, const linear_group *group,
                                 const linear_call *call)
{
    const linear_dims *d = &group->dims;
    const int wide = goes_wide(metadata, group, call), room = call->chunks.room;
    const int slice = CHUNK_PANEL * CHUNK_STATE_WARPS;
    const int columns = wide ? CHUNK_MAX_KEYS : slice * (1 + call->chunks.two_slices);
    const int seqs = (int)cuda_plan_extent(&metadata->plan).seqs;
    const int64_t most = cuda_plan_num_sms(&metadata->plan, metadata->instance->facts.num_sms);
    int64_t blocks =
        (int64_t)most_segments(room, seqs) * d->v_heads * ((d->v_dim + columns - 1) / columns);
    if ((wide || CHUNK_IN_TURN(linear_chunk_rule(d))) && room == 0 && blocks > most)
        blocks = most;
    return (cuda_launch){.function = wide ? group->wide : group->states,
                         .name = wide ? "linear_wide" : "linear_states",
                         .programmatic = wide,
                         .grid = {blocks, 1, 1},
                         .block = {states_threads(group)},
                         .shared = wide ? WIDE_SHARED : states_shared(group)};
}

/* The launch of linear_strips_*, after the convolution, for the chunks that linear_list leaves to
 * it; later launches skip them. */
static cuda_launch strips_launch(const linear_group *group, const linear_chunks *chunks)
{
    return (cuda_launch){.function = group->strips,
                         .name = "linear_strips",
                         .programmatic = 1,
                         .grid = {chunks->strips, 1, 1},
                         .block = {STRIP_THREADS},
                         .shared = STRIP_SHARED};
}

/* Do blocks have two slices of values if sequences are not cut? Such a block takes longer, so
 * multiprocessors must have no more than two thirds of the rounds. */
static int takes_two_slices(const attn_metadata *metadata, const linear_dims *d,
                            const linear_chunks *chunks, int seqs)
{
    const int64_t heads = (int64_t)seqs * d->v_heads;
    const int64_t sms = cuda_plan_num_sms(&metadata->plan, metadata->instance->facts.num_sms);
    return CHUNK_BY_CHANNELS(linear_chunk_rule(d)) && chunks->room == 0 &&
           3 * ((heads + sms - 1) / sms) <= 2 * ((2 * heads + sms - 1) / sms);
}

/* A map of heads of `dim` elements, which are adjacent in a row, in boxes of 64 x 64. */
static attn_status make_map(const attn_metadata *metadata, cuda_tensor_box box, linear_map *to,
                            attn_error *error)
{
    cuda_tensor_map map;
    box.dtype = ATTN_BF16;
    box.rank = 4;
    box.shape[3] = 1, box.strides[3] = 16;
    box.box[0] = 64, box.box[1] = CHUNK_ROWS, box.box[2] = box.box[3] = 1;
    box.swizzle = box.l2 = 128;
    attn_status status = cuda_tensor_map_make(metadata->instance->cuda, &box, &map, error);
    if (status == ATTN_OK)
        memcpy(to, &map, sizeof *to);
    return status;
}

/* A map of `rows` rows of q, k or v (part 0, 1 or 2) in operands.mixed. */
static attn_status map_rows(const attn_metadata *metadata, const linear_call *call, int part,
                            int64_t rows, linear_map *to, attn_error *error)
{
    const linear_dims *d = &call->dims;
    const int heads = part == 2 ? d->v_heads : d->k_heads, dim = part == 2 ? d->v_dim : d->k_dim;
    const char *from = call->operands.mixed + (int64_t)d->first[part] * 2;
    const cuda_tensor_box box = {.name = "mixed_qkv",
                                 .data = (void *)(uintptr_t)from,
                                 .shape = {dim, rows, heads},
                                 .strides = {0, call->operands.mixed_row, (int64_t)dim * 2}};
    return make_map(metadata, box, to, error);
}

static attn_status make_maps(const attn_metadata *metadata, const linear_call *call, int64_t rows,
                             linear_maps *maps, attn_error *error)
{
    attn_status status = map_rows(metadata, call, 0, rows, &maps->q, error);
    if (status == ATTN_OK)
        status = map_rows(metadata, call, 1, rows, &maps->k, error);
    return status == ATTN_OK ? map_rows(metadata, call, 2, rows, &maps->v, error) : status;
}

/* Boxes of linear_wide_* may reach beyond a sequence, but not beyond the batch. */
static attn_status make_wide_maps(const attn_metadata *metadata, const linear_call *call,
                                  linear_wide_maps *maps, attn_error *error)
{
    const int64_t tokens = cuda_plan_extent(&metadata->plan).tokens;
    const int64_t rows = call->chunks.rows ? (int64_t)call->chunks.window * CHUNK_ROWS : tokens;
    const linear_dims *d = &call->dims;
    const linear_operands *o = &call->operands;
    const cuda_tensor_box box = {.name = "out",
                                 .data = o->out,
                                 .shape = {d->v_dim, tokens, d->v_heads},
                                 .strides = {0, o->out_row, o->out_head}};
    attn_status status = make_maps(metadata, call, rows, &maps->rows, error);
    return status == ATTN_OK ? make_map(metadata, box, &maps->out, error) : status;
}

/* The call for kernels after the convolution, which also did the norm if it wrote tiles. */
static linear_call after_convolution(const linear_call *call)
{
    linear_call after = *call;
    if (!call->chunks.rows)
        return after;
    after.operands.mixed = call->chunks.rows;
    after.operands.mixed_row = (int64_t)row_channels(&call->dims) * 2;
    after.dims.width = 0;
    if (CHUNK_HAS_TILES(linear_chunk_rule(&call->dims)))
        after.dims.first[2] = after.dims.l2_norm = 0;
    return after;
}

int linear_convolve_rows(int64_t threads, int64_t rows)
{
    int each = CONVOLVE_MOST;
    while (each > CONVOLVE_LEAST && threads * ((rows + each - 1) / each) < CONVOLVE_ENOUGH)
        each /= 2;
    return each;
}

static attn_status launch_convolve(const attn_metadata *metadata, const linear_group *group,
                                   linear_call *call, int first, int at_once, attn_stream stream,
                                   attn_error *error)
{
    const linear_dims *d = &call->dims;
    const int tiles = CHUNK_HAS_TILES(linear_chunk_rule(d));
    const int threads = tiles ? CONVOLVE_TILE_THREADS(*d) : CONVOLVE_ROW_THREADS(*d);
    int rows = linear_convolve_rows(threads, (int64_t)at_once * CHUNK_ROWS);
    const int blocks = (threads + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS;
    void *params[] = {call, &first, &rows};
    const cuda_launch run = {.function = group->convolve_chunks,
                             .name = "linear_convolve_chunks",
                             .grid = {(int64_t)at_once * (CHUNK_ROWS / rows) * blocks, 1, 1},
                             .block = {CONVOLVE_THREADS}};
    return cuda_launch_run(metadata->instance->cuda, &run, params, stream, error);
}

/* Chunks that strips leave to the other kernels, at most. */
static int find_others(const linear_chunks *chunks, const linear_dims *d, int64_t seqs)
{
    const int beside = seqs == 1 && chunks->strips && !chunks->rows
                           ? STRIPS_BESIDE(chunks->most, d->v_heads, chunks->strips)
                           : 0;
    const int others = chunks->most - beside;
    return beside && others < STRIPS_BESIDE_LEAST ? STRIPS_BESIDE_LEAST - 1 : others;
}

attn_status linear_launch_chunks(const attn_metadata *metadata, const linear_group *group,
                                 linear_call *call, attn_stream stream, attn_error *error)
{
    const linear_dims *d = &group->dims;
    const cuda_api *cuda = metadata->instance->cuda;
    const cuda_extent e = cuda_plan_extent(&metadata->plan);
    if (!group->by_chunks || e.q_len < CHUNK_LEAST ||
        !(call->operands.aligned & LINEAR_ALIGNED_ROWS))
        return ATTN_OK;
    point(metadata, group, call);
    linear_chunks *chunks = &call->chunks;
    const int at_once = chunks->window < chunks->most ? chunks->window : chunks->most;
    chunks->together = find_together(d, at_once);
    chunks->two_slices = takes_two_slices(metadata, d, chunks, (int)e.seqs);
    linear_call after = after_convolution(call);
    after.chunks.raw = goes_wide(metadata, group, call);
    int first = 0;
    linear_wide_maps maps;
    attn_status status = ATTN_OK;
    if (!group->ready)
        status = make_maps(metadata, &after, INT32_MAX, &maps.rows, error);
    else if (after.chunks.raw)
        status = make_wide_maps(metadata, &after, &maps, error);
    if (status != ATTN_OK)
        return status;
    void *mapped[] = {&after, &maps, &first}, *plain[] = {&after, &first};
    void **params = group->ready ? plain : mapped;
    const cuda_launch list = {.function = group->list,
                              .name = "linear_list",
                              .grid = {1, 1, 1},
                              .block = {CHUNK_PLAN_THREADS}};
    cuda_launch ready = {.function = group->ready,
                         .name = "linear_ready",
                         .block = {(uint32_t)ready_threads(d)},
                         .shared = linear_ready_shared(d)};
    set_ready_grid(metadata, d, chunks, at_once, &ready);
    const int parts = CHUNK_SEGMENT_PARTS(d->v_dim / CHUNK_PANEL, linear_chunk_rule(d));
    const cuda_launch segments = {.function = group->segments,
                                  .name = "linear_segments",
                                  .grid = {(int64_t)chunks->room * d->v_heads * parts, 1, 1},
                                  .block = {states_threads(group)},
                                  .shared = states_shared(group)};
    const cuda_launch states = states_launch(metadata, group, call);
    const cuda_launch strips = strips_launch(group, chunks);
    status = cuda_launch_run(cuda, &list, params, stream, error);
    const int others = find_others(chunks, d, e.seqs);
    for (; first < others && status == ATTN_OK; first += chunks->window) {
        if (chunks->rows)
            status = launch_convolve(metadata, group, call, first, at_once, stream, error);
        if (status == ATTN_OK && chunks->strips && first == 0)
            status = cuda_launch_run(cuda, &strips, params, stream, error);
        ready.programmatic = chunks->strips && first == 0 && !chunks->rows; /* beside strips */
        if (status == ATTN_OK && group->ready)
            status = cuda_launch_run(cuda, &ready, params, stream, error);
        if (status == ATTN_OK && chunks->room > 0)
            status = cuda_launch_run(cuda, &segments, params, stream, error);
        if (status == ATTN_OK)
            status =
                cuda_launch_run(cuda, &states, after.chunks.raw ? mapped : params, stream, error);
    }
    return status;
}
