/* SPDX-License-Identifier: Apache-2.0
 *
 * case.c: a batch of random numbers, and candidates run on it.
 *
 * So that a key which is wrongly seen or missed changes a row, attention is peaked: each query is
 * a multiple of a key that it sees, by turns its own, the one before it and the first. Pages that
 * are only read may serve several sequences, so that the cache keeps to its size; pages that are
 * written are a sequence's own.
 *
 * All is made on the host; on a GPU each block has a copy on the device, by the driver's own calls.
 */
#include "autotune.h"

#include "plugins/common/cuda/cuda_api.h"
#include "attn_plugin_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_QUERIES = 64, MAX_BLOCKS = 32, ALIGNMENT = TUNE_ALIGNMENT };

/* The plan of a candidate. */
struct planned {
    attn_metadata *metadata;
    void *memory[ATTN_REGION_COUNT];
};

/* Memory of the batch. */
struct block {
    void *host;
    void *device; /* the same block on the CPU */
    uint64_t bytes;
};

struct tune_case {
    attn_instance *instance;
    const cuda_api *cuda; /* NULL on the CPU */
    cuda_stream stream;
    const tune_group *group;
    const attn_services *services;
    uint32_t phase;
    int32_t num_seqs, kv_len, q_len, prefix;
    int32_t page, pages_of_seq, first_tail; /* pages from first_tail on are written */
    int64_t num_pages;
    uint64_t random;
    double factor; /* a query is this many times its key */
    struct planned planned[PICK_MAX_CHILDREN];
    struct block blocks[MAX_BLOCKS];
    uint32_t num_blocks;
    int32_t *block_table;
    attn_batch batch;
    attn_kv_batch *kv_groups;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scale;
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
    uint64_t out_bytes;
    void *out;  /* output as the host sees it */
    void *kept; /* output of another candidate */
    tune_view view;
};

/* A block of the host, and of the device where that is another. */
static void *take(tune_case *tune, uint64_t bytes)
{
    const attn_services *services = tune->services;
    if (tune->num_blocks == MAX_BLOCKS)
        return NULL;
    struct block *block = &tune->blocks[tune->num_blocks++];
    block->bytes = bytes ? bytes : 1;
    block->host = services->allocate(services->ctx, ATTN_SPACE_HOST, block->bytes, ALIGNMENT);
    block->device =
        tune->cuda ? services->allocate(services->ctx, ATTN_SPACE_DEVICE, block->bytes, ALIGNMENT)
                   : block->host;
    return block->device ? block->host : NULL;
}

/* Where the device sees a block. */
static void *on_device(const tune_case *tune, const void *host)
{
    uint32_t b = 0;
    while (b < tune->num_blocks && tune->blocks[b].host != host)
        b++;
    return b < tune->num_blocks ? tune->blocks[b].device : NULL;
}

static int32_t *take_i32(tune_case *tune, int64_t count)
{
    return take(tune, (uint64_t)count * sizeof(int32_t));
}

/* ---- Numbers --------------------------------------------------------------------------------- */

/* Bits of the exponent and of the mantissa. */
static void format_of(attn_dtype dtype, int *exponent, int *mantissa)
{
    *exponent = dtype == ATTN_F16 || dtype == ATTN_FP8_E5M2 ? 5 : dtype == ATTN_FP8_E4M3 ? 4 : 8;
    *mantissa = (int)attn_dtype_size(dtype) * 8 - 1 - *exponent;
}

static uint32_t draw(tune_case *tune)
{
    tune->random = tune->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(tune->random >> 32);
}

static void put(void *to, uint64_t index, attn_dtype dtype, uint32_t bits)
{
    switch (attn_dtype_size(dtype)) {
    case 1:
        ((uint8_t *)to)[index] = (uint8_t)bits;
        break;
    case 2:
        ((uint16_t *)to)[index] = (uint16_t)bits;
        break;
    default:
        ((uint32_t *)to)[index] = bits;
    }
}

/* Numbers of either sign with 1/4 <= |x| < 1. */
static void fill(tune_case *tune, void *to, uint64_t count, attn_dtype dtype)
{
    int exponent, mantissa;
    format_of(dtype, &exponent, &mantissa);
    uint32_t bias = (1u << (exponent - 1)) - 1;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t r = draw(tune), sign = r >> 31, e = bias - 1 - (r >> 30 & 1u);
        uint32_t fraction = r & ((1u << mantissa) - 1u);
        put(to, i, dtype, sign << (exponent + mantissa) | e << mantissa | fraction);
    }
}

/* A normal number, as all numbers here except outputs. */
double tune_number(const void *from, uint64_t index, attn_dtype dtype)
{
    int exponent, mantissa;
    format_of(dtype, &exponent, &mantissa);
    uint32_t size = attn_dtype_size(dtype), bits = 0;
    memcpy(&bits, (const char *)from + index * size, size); /* little-endian */
    int32_t bias = (1 << (exponent - 1)) - 1,
            e = (int32_t)(bits >> mantissa & ((1u << exponent) - 1));
    double fraction = (double)(bits & ((1u << mantissa) - 1u)) / (double)(1u << mantissa);
    double value = e == 0 ? ldexp(fraction, 1 - bias)
                   : e == (1 << exponent) - 1 && dtype != ATTN_FP8_E4M3
                       ? (fraction > 0 ? (double)NAN : (double)INFINITY)
                       : ldexp(1 + fraction, e - bias);
    return bits >> (exponent + mantissa) & 1u ? -value : value;
}

/* The bits of a number that the type has, or of one a little nearer to zero. */
static uint32_t bits_of(double value, attn_dtype dtype)
{
    int exponent, mantissa, e;
    format_of(dtype, &exponent, &mantissa);
    double fraction = frexp(fabs(value), &e); /* in [1/2, 1) */
    int32_t bias = (1 << (exponent - 1)) - 1;
    uint32_t top = (uint32_t)((2 * fraction - 1) * (double)(1u << mantissa));
    uint32_t sign = value < 0 ? 1u << (exponent + mantissa) : 0;
    return value == 0 ? 0 : sign | (uint32_t)(e - 1 + bias) << mantissa | top;
}

/* ---- The batch ------------------------------------------------------------------------------- */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Which page a sequence's j-th page is: its own where it is written. */
static int32_t page_of(const tune_case *tune, int32_t seq, int32_t j)
{
    int64_t tail = tune->pages_of_seq - tune->first_tail, own = tune->num_seqs * tail;
    int64_t shared = tune->num_pages - 1 - own;
    if (j >= tune->first_tail)
        return (int32_t)(1 + seq * tail + (j - tune->first_tail));
    return (int32_t)(1 + own + ((int64_t)seq * tune->first_tail + j) % shared);
}

static void choose_lengths(tune_case *tune, int32_t num_seqs, int32_t kv_len, uint64_t memory)
{
    const tune_group *group = tune->group;
    const attn_layer_group *g = &group->group;
    int32_t each = group->bounds.max_tokens / num_seqs;
    tune->num_seqs = num_seqs;
    tune->kv_len = kv_len;
    tune->q_len = 1;
    if (tune->phase == TUNE_PREFILL)
        tune->q_len = least(least(MAX_QUERIES, kv_len), least(group->bounds.max_q_len, each));
    if (tune->q_len < 1)
        tune->q_len = 1;
    tune->prefix = kv_len - tune->q_len;
    tune->page = group->problem.page_size;
    tune->pages_of_seq = (kv_len + tune->page - 1) / tune->page;
    tune->first_tail = tune->prefix / tune->page;
    uint64_t bytes = (uint64_t)tune->page * (uint64_t)g->num_kv_heads *
                     (uint64_t)(g->head_dim + g->v_head_dim) *
                     attn_dtype_size(group->problem.kv_dtype);
    int64_t wanted = (int64_t)num_seqs * tune->first_tail, most = (int64_t)(memory / bytes);
    int64_t shared = wanted < most ? wanted : most;
    if (shared < 1 && wanted > 0)
        shared = 1;
    tune->num_pages = 1 + (int64_t)num_seqs * (tune->pages_of_seq - tune->first_tail) + shared;
}

static attn_i32_array both(const tune_case *tune, const int32_t *array)
{
    return (attn_i32_array){array, on_device(tune, array)};
}

/* Arrays with one element for each sequence. */
static int fill_sequences(tune_case *tune)
{
    int32_t n = tune->num_seqs, *lens = take_i32(tune, n), *prefixes = take_i32(tune, n);
    int32_t *indptr = take_i32(tune, n + 1), *rows = take_i32(tune, n);
    if (!lens || !prefixes || !indptr || !rows)
        return 0;
    for (int32_t s = 0; s <= n; s++)
        indptr[s] = s * tune->q_len;
    for (int32_t s = 0; s < n; s++) {
        lens[s] = tune->kv_len;
        prefixes[s] = tune->prefix;
        rows[s] = s + 1;
    }
    int decode = tune->phase == TUNE_DECODE;
    tune->batch = (attn_batch){.struct_size = sizeof tune->batch,
                               .mode = decode ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND,
                               .num_seqs = n,
                               .num_tokens = n * tune->q_len,
                               .num_real_seqs = n,
                               .num_real_tokens = n * tune->q_len,
                               .max_q_len = tune->q_len,
                               .max_kv_len = tune->kv_len,
                               .num_kv_groups = tune->instance->layers.groups.num_kv_groups,
                               .seq_lens = both(tune, lens),
                               .prefix_lens = both(tune, prefixes),
                               .q_indptr = both(tune, indptr),
                               .req_pool_indices = both(tune, rows),
                               .kv_groups = tune->kv_groups};
    return 1;
}

/* Pages in all three forms; the same for all KV groups, whose layers are not called. */
static int fill_pages(tune_case *tune)
{
    int32_t n = tune->num_seqs, pages = tune->pages_of_seq, stride = pages * tune->page;
    if (((int64_t)n + 1) * stride > INT32_MAX / 8)
        return 0;
    int32_t *table = take_i32(tune, (int64_t)n * pages), *indptr = take_i32(tune, n + 1);
    int32_t *slots = take_i32(tune, (int64_t)(n + 1) * stride), *last = take_i32(tune, n);
    int64_t *locations = take(tune, (uint64_t)(n * tune->q_len) * sizeof *locations);
    if (!table || !indptr || !slots || !last || !locations)
        return 0;
    memset(slots, 0, (size_t)stride * sizeof *slots);
    indptr[0] = 0;
    for (int32_t s = 0; s < n; s++) {
        indptr[s + 1] = (s + 1) * pages;
        last[s] = tune->kv_len - (pages - 1) * tune->page;
        for (int32_t j = 0; j < pages; j++)
            table[s * pages + j] = page_of(tune, s, j);
        for (int32_t j = 0; j < stride; j++)
            slots[(s + 1) * stride + j] =
                table[s * pages + j / tune->page] * tune->page + j % tune->page;
        for (int32_t t = 0; t < tune->q_len; t++)
            locations[s * tune->q_len + t] = slots[(s + 1) * stride + tune->prefix + t];
    }
    tune->block_table = table;
    for (uint32_t g = 0; g < tune->instance->layers.groups.num_kv_groups; g++)
        tune->kv_groups[g] = (attn_kv_batch){
            .struct_size = sizeof tune->kv_groups[g],
            .index_forms = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR,
            .page_size = tune->page,
            .req_to_token_stride = stride,
            .block_table_stride = pages,
            .kv_lens = tune->batch.seq_lens,
            .out_cache_loc = {locations, on_device(tune, locations)},
            .req_to_token = both(tune, slots),
            .block_table = both(tune, table),
            .kv_indptr = both(tune, indptr),
            .kv_indices = both(tune, table),
            .last_page_len = both(tune, last)};
    return 1;
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* A dense tensor of random numbers, or of none. */
static int give(tune_case *tune, uint32_t role, attn_dtype dtype, uint32_t ndim,
                const int64_t *shape)
{
    attn_tensor *t = &tune->tensors[role];
    *t = (attn_tensor){.struct_size = sizeof *t,
                       .device_type = tune->cuda ? ATTN_DEVICE_CUDA : ATTN_DEVICE_CPU,
                       .device_id = ((const tuning *)tune->instance->own)->device.id,
                       .dtype = dtype,
                       .ndim = ndim,
                       .alignment = ALIGNMENT};
    int64_t count = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        t->shape[d] = shape[d];
        t->strides[d] = count;
        count *= shape[d];
    }
    t->data = take(tune, (uint64_t)count * attn_dtype_size(dtype));
    tune->operands[role] = t;
    if (t->data)
        fill(tune, t->data, (uint64_t)count, dtype);
    return t->data != NULL;
}

static int give_cache(tune_case *tune, uint32_t role, int64_t dim)
{
    const tune_group *group = tune->group;
    int64_t heads = group->group.num_kv_heads, wider = dim;
    if (group->problem.kv_strides == ATTN_KV_STRIDES_EQUAL)
        wider = group->group.head_dim > group->group.v_head_dim ? group->group.head_dim
                                                                : group->group.v_head_dim;
    int64_t shape[4] = {tune->num_pages, tune->page, heads, wider};
    if (group->is_hnd) {
        shape[1] = heads;
        shape[2] = tune->page;
    }
    tune->scales[role] = group->group.kv_scale_granularity == ATTN_SCALE_NONE ? NULL : &tune->scale;
    int good = give(tune, role, group->problem.kv_dtype, 4, shape);
    tune->tensors[role].shape[3] = dim;
    return good;
}

/* Index of the first element of a key in the cache. */
static uint64_t key_at(const tune_case *tune, int32_t seq, int32_t position, int32_t head)
{
    const attn_tensor *cache = &tune->tensors[ATTN_ROLE_K_CACHE];
    int64_t page = tune->block_table[seq * tune->pages_of_seq + position / tune->page];
    int64_t slot = position % tune->page;
    int64_t at = tune->group->is_hnd ? head * cache->strides[1] + slot * cache->strides[2]
                                     : slot * cache->strides[1] + head * cache->strides[2];
    return (uint64_t)(page * cache->strides[0] + at);
}

/* Let a query point at a key that it sees. */
static void aim(tune_case *tune, int32_t seq, int32_t t, int32_t head)
{
    const attn_layer_group *g = &tune->group->group;
    const attn_tensor *k = &tune->tensors[ATTN_ROLE_K], *q = &tune->tensors[ATTN_ROLE_Q];
    int32_t i = tune->prefix + t, kv_head = head / (g->num_q_heads / g->num_kv_heads);
    int32_t oldest = g->window_left >= 0 && i > g->window_left ? i - g->window_left : 0;
    if (g->attention_chunk > 0 && oldest < i / g->attention_chunk * g->attention_chunk)
        oldest = i / g->attention_chunk * g->attention_chunk;
    int32_t target = head % 3 == 0 ? i : head % 3 == 1 ? oldest : i > oldest ? i - 1 : i;
    int fresh = target >= tune->prefix;
    uint64_t from = fresh ? (uint64_t)((seq * tune->q_len + target - tune->prefix) * k->strides[0] +
                                       kv_head * k->strides[1])
                          : key_at(tune, seq, target, kv_head);
    uint64_t to = (uint64_t)((seq * tune->q_len + t) * q->strides[0] + head * q->strides[1]);
    const attn_tensor *source = fresh ? k : &tune->tensors[ATTN_ROLE_K_CACHE];
    for (int32_t d = 0; d < g->head_dim; d++)
        put(q->data, to + (uint64_t)d, q->dtype,
            bits_of(tune->factor * tune_number(source->data, from + (uint64_t)d, source->dtype),
                    q->dtype));
}

/* High enough that one key outweighs all the others; |k|^2 is some 0.4 * head_dim. A power of two,
 * so that nothing is rounded. */
static void choose_factor(tune_case *tune)
{
    const attn_layer_group *g = &tune->group->group;
    double length = 0.4 * g->head_dim * fabs((double)g->sm_scale);
    double wanted = 3 + log((double)tune->kv_len);
    tune->factor = length > 0 ? exp2(round(log2(wanted / length))) : 1;
}

static int give_per_head(tune_case *tune, uint32_t role, uint32_t flag, float value)
{
    const attn_layer_group *g = &tune->group->group;
    if (!(g->flags & flag))
        return 1;
    if (!give(tune, role, ATTN_F32, 1, (const int64_t[]){g->num_q_heads}))
        return 0;
    for (int32_t h = 0; h < g->num_q_heads; h++)
        ((float *)tune->tensors[role].data)[h] = value;
    return 1;
}

static int fill_operands(tune_case *tune)
{
    const attn_problem *problem = &tune->group->problem;
    const attn_layer_group *g = &tune->group->group;
    const attn_dtype new_kv = attn_new_kv_dtype(problem);
    int64_t rows = tune->batch.num_tokens;
    uint32_t scales =
        attn_util_scale_count(g->kv_scale_granularity, g->num_kv_heads, tune->batch.num_seqs,
                              (int64_t)tune->num_pages * tune->page);
    float *ones = take(tune, (uint64_t)scales * sizeof *ones);
    if (!ones)
        return 0;
    for (uint32_t n = 0; n < scales; n++)
        ones[n] = 1;
    tune->scale = (attn_scale){.struct_size = sizeof tune->scale,
                               .granularity = g->kv_scale_granularity,
                               .count = scales,
                               .host = ones};
    int good =
        give(tune, ATTN_ROLE_Q, problem->q_dtype, 3,
             (const int64_t[]){rows, g->num_q_heads, g->head_dim}) &&
        give(tune, ATTN_ROLE_K, new_kv, 3, (const int64_t[]){rows, g->num_kv_heads, g->head_dim}) &&
        give(tune, ATTN_ROLE_V, new_kv, 3,
             (const int64_t[]){rows, g->num_kv_heads, g->v_head_dim}) &&
        give(tune, ATTN_ROLE_OUT, problem->out_dtype, 3,
             (const int64_t[]){rows, g->num_q_heads, g->v_head_dim}) &&
        give_cache(tune, ATTN_ROLE_K_CACHE, g->head_dim) &&
        give_cache(tune, ATTN_ROLE_V_CACHE, g->v_head_dim) &&
        give_per_head(tune, ATTN_ROLE_SINKS, ATTN_GROUP_HAS_SINKS, 0.0f) &&
        give_per_head(tune, ATTN_ROLE_ALIBI_SLOPES, ATTN_GROUP_HAS_ALIBI, 0.01f);
    if (!good)
        return 0;
    choose_factor(tune);
    for (int32_t s = 0; s < tune->num_seqs; s++)
        for (int32_t t = 0; t < tune->q_len; t++)
            for (int32_t h = 0; h < g->num_q_heads; h++)
                aim(tune, s, t, h);
    tune->out_bytes =
        (uint64_t)(rows * g->num_q_heads * g->v_head_dim) * attn_dtype_size(problem->out_dtype);
    tune->kept = take(tune, tune->out_bytes);
    tune->args = (attn_forward_args){.struct_size = sizeof tune->args,
                                     .flags = ATTN_FORWARD_SAVE_KV,
                                     .num_operands = ATTN_ROLE_COUNT,
                                     .num_scales = ATTN_ROLE_COUNT,
                                     .operands = tune->operands,
                                     .scales = tune->scales};
    return tune->kept != NULL;
}

/* The bounds of this batch. */
static attn_bounds bounds_of(const tune_case *tune)
{
    attn_bounds bounds = tune->group->bounds;
    bounds.modes = ATTN_MODE_BIT(tune->batch.mode);
    bounds.max_seqs = tune->num_seqs;
    bounds.max_tokens = tune->batch.num_tokens;
    bounds.max_q_len = tune->q_len;
    bounds.max_kv_len = tune->kv_len;
    bounds.max_kv_tokens = (int64_t)tune->num_seqs * tune->pages_of_seq * tune->page;
    return bounds;
}

static attn_i32_array of_host(attn_i32_array array)
{
    return (attn_i32_array){array.host, NULL};
}

/* The batch without what lies on the device; a layer's one KV group is like the others. */
static int view_batch(tune_case *tune)
{
    attn_batch *batch = &tune->view.batch;
    attn_kv_batch *groups = take(tune, batch->num_kv_groups * sizeof *groups);
    if (!groups)
        return 0;
    batch->seq_lens = of_host(batch->seq_lens);
    batch->prefix_lens = of_host(batch->prefix_lens);
    batch->q_indptr = of_host(batch->q_indptr);
    batch->req_pool_indices = of_host(batch->req_pool_indices);
    for (uint32_t g = 0; g < batch->num_kv_groups; g++) {
        groups[g] = tune->kv_groups[g];
        groups[g].kv_lens = of_host(groups[g].kv_lens);
        groups[g].req_to_token = of_host(groups[g].req_to_token);
        groups[g].block_table = of_host(groups[g].block_table);
        groups[g].kv_indptr = of_host(groups[g].kv_indptr);
        groups[g].kv_indices = of_host(groups[g].kv_indices);
        groups[g].last_page_len = of_host(groups[g].last_page_len);
        groups[g].out_cache_loc.device = NULL;
    }
    batch->kv_groups = groups;
    return 1;
}

/* Before upload(): tensors lie on the host still. */
static int make_view(tune_case *tune)
{
    tune_view *view = &tune->view;
    const tune_group *group = tune->group;
    view->instance = tune->instance;
    view->problem = group->problem;
    view->problem.device = &((const tuning *)tune->instance->own)->device;
    view->bounds = bounds_of(tune);
    view->problem.bounds = &view->bounds;
    view->problem.kv_layout = group->is_hnd ? ATTN_LAYOUT_KV_HND : ATTN_LAYOUT_KV_NHD;
    view->layer = (attn_layer){.struct_size = sizeof view->layer,
                               .layer_id = group->layer_id,
                               .kv_buffer = group->layer_id};
    view->group = group->group;
    view->group.num_layers = 1;
    view->group.layers = &view->layer;
    view->problem.group = &view->group;
    view->batch = tune->batch;
    view->args = tune->args;
    view->args.operands = view->operands;
    memcpy(view->tensors, tune->tensors, sizeof view->tensors);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        view->tensors[role].device_type = ATTN_DEVICE_CPU;
        view->tensors[role].device_id = 0;
        view->operands[role] = tune->operands[role] ? &view->tensors[role] : NULL;
    }
    view->out = tune->tensors[ATTN_ROLE_OUT].data;
    view->kept = tune->kept;
    return view_batch(tune);
}

const tune_view *tune_case_view(const tune_case *tune)
{
    return &tune->view;
}

/* Copy all blocks to the device, and let the tensors lie there. */
static attn_status upload(tune_case *tune, attn_error *error)
{
    tune->out = tune->tensors[ATTN_ROLE_OUT].data;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (tune->operands[role])
            tune->tensors[role].data = on_device(tune, tune->tensors[role].data);
    int result = CUDA_OK;
    for (uint32_t b = 0; tune->cuda && b < tune->num_blocks && result == CUDA_OK; b++) {
        const struct block *block = &tune->blocks[b];
        result = tune->cuda->cuMemcpyHtoD_v2((cuda_address)(uintptr_t)block->device, block->host,
                                             block->bytes);
    }
    return result == CUDA_OK ? ATTN_OK
                             : cuda_fail(tune->cuda, result, "autotune", "cuMemcpyHtoD", error);
}

/* The driver, on a GPU, and a stream of our own. */
static attn_status open_device(tune_case *tune, attn_error *error)
{
    const int32_t device = ((const tuning *)tune->instance->own)->device.type;
    if (device != ATTN_DEVICE_CUDA)
        return ATTN_OK;
    const cuda_api *cuda = NULL;
    attn_status status = cuda_api_get(&cuda, error);
    if (status != ATTN_OK)
        return status;
    if (!cuda->cuStreamCreate || !cuda->cuStreamDestroy_v2 || !cuda->cuStreamSynchronize ||
        !cuda->cuMemcpyHtoD_v2 || !cuda->cuMemcpyDtoH_v2 || !cuda->cuMemsetD8_v2)
        return attn_util_fail(error, ATTN_DEPENDENCY_MISSING,
                              "the driver lacks calls to measure with");
    tune->cuda = cuda;
    enum { NON_BLOCKING = 1 };
    int result = cuda->cuStreamCreate(&tune->stream, NON_BLOCKING);
    return result == CUDA_OK ? ATTN_OK
                             : cuda_fail(cuda, result, "autotune", "cuStreamCreate", error);
}

attn_status tune_case_create(attn_instance *instance, const tune_group *group, uint32_t phase,
                             int32_t num_seqs, int32_t kv_len, uint64_t memory, tune_case **made,
                             attn_error *error)
{
    const attn_services *services = instance->children.services;
    tune_case *tune = services->allocate(services->ctx, ATTN_SPACE_HOST, sizeof *tune, ALIGNMENT);
    if (!tune)
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "a batch to measure");
    memset(tune, 0, sizeof *tune);
    tune->instance = instance;
    tune->services = services;
    tune->group = group;
    tune->phase = phase;
    tune->random = 88172645463325252u + (uint64_t)num_seqs * 1000003u + (uint64_t)kv_len;
    choose_lengths(tune, num_seqs, kv_len, memory);
    attn_status status = open_device(tune, error);
    if (status != ATTN_OK) {
        tune_case_destroy(tune);
        return status;
    }
    tune->kv_groups = take(tune, instance->layers.groups.num_kv_groups * sizeof *tune->kv_groups);
    if (!tune->kv_groups || !fill_sequences(tune) || !fill_pages(tune) || !fill_operands(tune) ||
        !make_view(tune)) {
        tune_case_destroy(tune);
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "a batch to measure");
    }
    status = upload(tune, error);
    if (status != ATTN_OK)
        tune_case_destroy(tune);
    else
        *made = tune;
    return status;
}

/* ---- Candidates ------------------------------------------------------------------------------ */

static void unplan(tune_case *tune, uint32_t c)
{
    struct planned *planned = &tune->planned[c];
    if (planned->metadata)
        tune->instance->child[c].ops->metadata_destroy(planned->metadata);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        tune->services->release(tune->services->ctx, r / ATTN_MEMORY_COUNT, planned->memory[r]);
    memset(planned, 0, sizeof *planned);
}

void tune_case_destroy(tune_case *tune)
{
    if (!tune)
        return;
    if (tune->stream) /* nothing may be under way that reads what is freed */
        tune->cuda->cuStreamSynchronize(tune->stream);
    for (uint32_t c = 0; c < PICK_MAX_CHILDREN; c++)
        unplan(tune, c);
    for (uint32_t b = 0; b < tune->num_blocks; b++) {
        if (tune->cuda)
            tune->services->release(tune->services->ctx, ATTN_SPACE_DEVICE, tune->blocks[b].device);
        tune->services->release(tune->services->ctx, ATTN_SPACE_HOST, tune->blocks[b].host);
    }
    if (tune->stream)
        tune->cuda->cuStreamDestroy_v2(tune->stream);
    tune->services->release(tune->services->ctx, ATTN_SPACE_HOST, tune);
}

/* Memory of the device. */
static void set_bytes(const tune_case *tune, void *memory, unsigned char value, uint64_t bytes)
{
    if (tune->cuda)
        tune->cuda->cuMemsetD8_v2((cuda_address)(uintptr_t)memory, value, bytes);
    else
        memset(memory, value, bytes);
}

static attn_status take_regions(tune_case *tune, uint32_t c, const attn_memory_size *size,
                                attn_memory *memory, attn_error *error)
{
    *memory = (attn_memory){.struct_size = sizeof *memory};
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (size->size[r] == 0)
            continue;
        uint64_t alignment = size->alignment[r] > ALIGNMENT ? size->alignment[r] : ALIGNMENT;
        memory->size[r] = size->size[r];
        memory->base[r] = tune->planned[c].memory[r] = tune->services->allocate(
            tune->services->ctx, r / ATTN_MEMORY_COUNT, size->size[r], alignment);
        if (!memory->base[r])
            return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "metadata to measure with");
        if (r % ATTN_MEMORY_COUNT == ATTN_MEMORY_ZEROED &&
            r / ATTN_MEMORY_COUNT == ATTN_SPACE_DEVICE)
            set_bytes(tune, memory->base[r], 0, size->size[r]);
        else if (r % ATTN_MEMORY_COUNT == ATTN_MEMORY_ZEROED)
            memset(memory->base[r], 0, size->size[r]);
    }
    return ATTN_OK;
}

attn_status tune_case_plan(tune_case *tune, uint32_t c, attn_error *error)
{
    const fanout *children = &tune->instance->children;
    const fanout_child *child = &children->children[c];
    attn_bounds bounds = bounds_of(tune);
    attn_memory_size size;
    attn_memory memory;
    unplan(tune, c);
    attn_status status =
        fanout_metadata_size(children, c, ATTN_METADATA_EAGER, &bounds, &size, error);
    if (status == ATTN_OK)
        status = take_regions(tune, c, &size, &memory, error);
    if (status == ATTN_OK)
        status = child->ops->metadata_create(child->instance, ATTN_METADATA_EAGER, &bounds, &memory,
                                             &tune->planned[c].metadata, error);
    if (status == ATTN_OK)
        status =
            fanout_plan(children, c, tune->planned[c].metadata, &tune->batch, tune->stream, error);
    return status;
}

attn_status tune_case_replan(tune_case *tune, uint32_t c, attn_error *error)
{
    return fanout_plan(&tune->instance->children, c, tune->planned[c].metadata, &tune->batch, NULL,
                       error);
}

attn_status tune_case_run(tune_case *tune, uint32_t c, attn_error *error)
{
    return fanout_forward(&tune->instance->children, c, tune->planned[c].metadata,
                          tune->phase == TUNE_DECODE, tune->group->layer_id, &tune->args,
                          tune->stream, error);
}

attn_status tune_case_wait(tune_case *tune, attn_error *error)
{
    int result = tune->cuda ? tune->cuda->cuStreamSynchronize(tune->stream) : CUDA_OK;
    return result == CUDA_OK
               ? ATTN_OK
               : cuda_fail(tune->cuda, result, "autotune", "cuStreamSynchronize", error);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

void tune_case_poison(tune_case *tune)
{
    set_bytes(tune, tune->tensors[ATTN_ROLE_OUT].data, 0xff, tune->out_bytes);
    if (tune->cuda) /* the stream does not wait for it */
        tune->cuda->cuStreamSynchronize(NULL);
}

attn_status tune_case_fetch(tune_case *tune, attn_error *error)
{
    attn_status status = tune_case_wait(tune, error);
    if (status != ATTN_OK || !tune->cuda)
        return status;
    const void *data = tune->tensors[ATTN_ROLE_OUT].data;
    int result =
        tune->cuda->cuMemcpyDtoH_v2(tune->out, (cuda_address)(uintptr_t)data, tune->out_bytes);
    return result == CUDA_OK ? ATTN_OK
                             : cuda_fail(tune->cuda, result, "autotune", "cuMemcpyDtoH", error);
}

void tune_case_keep_output(tune_case *tune)
{
    memcpy(tune->kept, tune->out, tune->out_bytes);
}
