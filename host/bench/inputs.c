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
#include "host/kinds/mla.h"
#include "host/workload/generator_linear.h"
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

/* Dimensions of a query and a key; a recurrence's sm_scale goes by those of its keys. */
static int32_t key_dim(const struct bench_shape *shape)
{
    int32_t dim = bench_shape_is_linear(shape) ? shape->head_k_dim : shape->head_dim;
    return dim > 0 ? dim : 1;
}

static void init_attention(const struct bench_shape *shape, attn_layer_group *group)
{
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
        .kv_group = 0,
        .state_group = -1,
        .logit_cap = (float)shape->logit_cap,
        .kv_scale_granularity =
            dtype_is_fp8(shape->kv_dtype) ? (uint32_t)shape->scales : (uint32_t)ATTN_SCALE_NONE,
        .input_scale_granularity = input_granularity(shape),
    };
    if (shape->layout == BENCH_LAYOUT_LATENT_FP8)
        group->kv_scale_granularity = ATTN_SCALE_NONE;
}

static void init_mla(const struct bench_shape *shape, attn_mla_dims *mla)
{
    *mla = (attn_mla_dims){
        .struct_size = sizeof *mla,
        .kv_lora_rank = shape->kv_lora_rank,
        .rope_dim = shape->rope_dim,
        .nope_dim = shape->nope_dim,
    };
}

static void init_sparse(const struct bench_shape *shape, attn_sparse_dims *sparse)
{
    *sparse = (attn_sparse_dims){
        .struct_size = sizeof *sparse,
        .index_kind = ATTN_SPARSE_TOKEN,
        .top_k = shape->top_k,
        .block_size = 1,
        .label_dim = shape->label_dim,
        .label_dtype = shape->label_dtype,
        .index_heads = shape->index_heads,
        .index_dtype = shape->label_dtype,
    };
}

static void init_linear(const struct bench_shape *shape, attn_linear_dims *linear)
{
    uint32_t family = (uint32_t)(shape->kind - BENCH_LINEAR);
    *linear = shape->linear;
    linear->struct_size = sizeof *linear;
    linear->family = family;
    linear->flags &= ~(uint32_t)ATTN_LINEAR_RAW_GATES;
    linear->flags |= shape->gates ? (uint32_t)ATTN_LINEAR_RAW_GATES : 0u;
    linear->num_k_heads = shape->k_heads;
    linear->num_v_heads = shape->v_heads;
    linear->head_k_dim = shape->head_k_dim;
    linear->head_v_dim = shape->head_v_dim;
    linear->num_groups = family == ATTN_LINEAR_MAMBA2 ? shape->k_heads : 0;
    linear->conv_width = shape->conv_width;
    linear->state_dtype = shape->state_dtype;
    linear->conv_dtype =
        shape->conv_width > 1 ? bench_shape_conv_dtype(shape) : (attn_dtype)ATTN_DTYPE_NONE;
}

static void init_group(const struct bench_shape *shape, struct bench_problem *problem)
{
    attn_layer_group *group = &problem->group;
    init_attention(shape, group);
    if (bench_shape_is_latent(shape)) {
        init_mla(shape, &problem->mla);
        group->kind = ATTN_KIND_MLA;
        group->mla = &problem->mla;
    }
    if (shape->kind == BENCH_SPARSE) {
        init_sparse(shape, &problem->sparse);
        group->kind = ATTN_KIND_SPARSE;
        group->sparse = &problem->sparse;
    }
    if (bench_shape_is_linear(shape)) {
        init_linear(shape, &problem->linear);
        *group = (attn_layer_group){.struct_size = sizeof *group,
                                    .kind = ATTN_KIND_LINEAR,
                                    .kv_group = -1,
                                    .window_left = -1,
                                    .linear = &problem->linear};
    }
    group->sm_scale =
        shape->sm_scale > 0 ? (float)shape->sm_scale : (float)(1 / sqrt((double)key_dim(shape)));
    group->num_layers = 1;
    group->layers = &problem->layer;
}

void bench_layouts(const struct bench_shape *shape, const char *layouts[2])
{
    static const char *const all[] = {
        [BENCH_LAYOUT_NHD] = ATTN_LAYOUT_KV_NHD,
        [BENCH_LAYOUT_HND] = ATTN_LAYOUT_KV_HND,
        [BENCH_LAYOUT_LATENT_FP8] = ATTN_LAYOUT_MLA_LATENT_FP8,
        [BENCH_LAYOUT_KV] = ATTN_LAYOUT_STATE_SSM_KV,
        [BENCH_LAYOUT_VK] = ATTN_LAYOUT_STATE_SSM_VK,
    };
    int32_t any = shape->kind == BENCH_SOFTMAX ? BENCH_LAYOUT_NHD : BENCH_LAYOUT_KV;
    layouts[0] = all[shape->layout ? shape->layout : any];
    layouts[1] = shape->layout ? NULL : all[any + 1];
    if (bench_shape_is_latent(shape) && !shape->layout)
        layouts[0] = ATTN_LAYOUT_MLA_LATENT, layouts[1] = NULL;
    if (shape->kind == BENCH_LINEAR + ATTN_LINEAR_SHORT_CONV)
        layouts[0] = ATTN_LAYOUT_STATE_CONV, layouts[1] = NULL;
}

static void init_bounds(const struct bench_shape *shape, attn_bounds *bounds)
{
    struct bench_count count;
    bench_shape_count(shape, &count);
    *bounds = (attn_bounds){
        .struct_size = sizeof *bounds,
        .modes = ATTN_MODE_BIT((uint32_t)shape->mode),
        .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
        .uses = !bench_shape_is_linear(shape) && shape->new_kv == BENCH_NEW_KV_ARGS
                    ? (uint32_t)ATTN_USES_UNSAVED_KV
                    : 0u,
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
    bool is_linear = bench_shape_is_linear(shape);
    bool has_state = is_linear && strcmp(layout, ATTN_LAYOUT_STATE_CONV) != 0;
    init_group(shape, problem);
    init_bounds(shape, &problem->bounds);
    problem->problem = (attn_problem){
        .struct_size = sizeof problem->problem,
        .graph_level = graph_level,
        .device = device,
        .group = &problem->group,
        .bounds = &problem->bounds,
        .kv_layout = is_linear ? NULL : layout,
        .state_layout = has_state ? layout : NULL,
        .q_dtype = shape->dtype,
        .new_kv_dtype = is_linear || shape->new_kv_dtype == shape->dtype
                            ? (attn_dtype)ATTN_DTYPE_NONE
                            : shape->new_kv_dtype,
        .kv_dtype = is_linear ? shape->dtype : shape->kv_dtype,
        .out_dtype = shape->out_dtype,
        .page_size = is_linear ? 0 : shape->page_size,
        .mla_expanded = shape->form == ATTN_MLA_EXPANDED ? ATTN_MODE_BIT((uint32_t)shape->mode) : 0,
        .tp_size = 1,
    };
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* As much of a model as kinds ask for. */
static struct model model_of(const struct bench_shape *shape)
{
    return (struct model){.dtype = shape->dtype, .conv_bias = shape->conv_bias};
}

/* Of a new token's row. */
static attn_dtype row_dtype(const struct bench_shape *shape, const struct row_operand *row)
{
    switch (row->role) {
    case ATTN_ROLE_K:
    case ATTN_ROLE_V:
    case ATTN_ROLE_C_KV:
    case ATTN_ROLE_K_PE:
    case ATTN_ROLE_INDEX_K:
        return shape->new_kv_dtype;
    case ATTN_ROLE_OUT:
        return shape->out_dtype;
    default:
        return row->dtype;
    }
}

static void add_operand(struct bench_inputs *inputs, struct bench_operand operand)
{
    uint64_t bytes = (uint64_t)(operand.units * operand.elements) * attn_dtype_size(operand.dtype);
    operand.at = inputs->copy_bytes;
    inputs->list[inputs->num_operands++] = operand;
    inputs->copy_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_row(struct bench_inputs *inputs, const struct row_operand *row)
{
    int64_t tokens = inputs->count.tokens;
    struct bench_operand operand = {.role = row->role,
                                    .unit = BENCH_PER_TOKEN,
                                    .dtype = row_dtype(&inputs->shape, row),
                                    .units = tokens,
                                    .elements = operands_row_elements(row),
                                    .ndim = row->heads ? 3 : 2,
                                    .shape = {tokens, row->heads, row->dim}};
    if (!row->heads)
        operand.shape[1] = row->dim;
    add_operand(inputs, operand);
}

/* Page 0 and slot 0 are padding. */
static uint32_t list_stored(const struct bench_inputs *inputs, const char *layout,
                            struct kind_tensor *list)
{
    const struct kind_pool pool = {.layout = layout,
                                   .kv_dtype = inputs->shape.kv_dtype,
                                   .num_pages = inputs->count.pages + 1,
                                   .page_size = inputs->shape.page_size,
                                   .num_slots = 2 * (int64_t)inputs->shape.batch + 1};
    return kind_of(&inputs->problem.group)->tensors(&inputs->problem.group, &pool, list);
}

/* The keys that rows choose, and how many. */
static void add_choice(struct bench_inputs *inputs)
{
    int64_t tokens = inputs->count.tokens, most = inputs->shape.top_k;
    add_operand(inputs, (struct bench_operand){.role = ATTN_ROLE_SPARSE_INDICES,
                                               .unit = BENCH_PER_TOKEN,
                                               .dtype = ATTN_I32,
                                               .units = tokens,
                                               .elements = most,
                                               .ndim = 2,
                                               .shape = {tokens, most}});
    add_operand(inputs, (struct bench_operand){.role = ATTN_ROLE_SPARSE_COUNT,
                                               .unit = BENCH_PER_TOKEN,
                                               .dtype = ATTN_I32,
                                               .units = tokens,
                                               .elements = 1,
                                               .ndim = 1,
                                               .shape = {tokens}});
}

/* A call with a given choice has no operands of the indexer; a call for the choice alone has only
 * those. */
static bool is_left_out(const struct bench_shape *shape, uint32_t role)
{
    bool index =
        role == ATTN_ROLE_INDEX_Q || role == ATTN_ROLE_INDEX_WEIGHTS || role == ATTN_ROLE_INDEX_K;
    return shape->choice == (index ? BENCH_CHOICE_GIVEN : BENCH_CHOICE_ALONE);
}

/* Rows, the output, the choice, then what is stored. Layouts differ in the order of elements alone. */
static void list_operands(struct bench_inputs *inputs)
{
    const struct bench_shape *shape = &inputs->shape;
    const attn_layer_group *group = &inputs->problem.group;
    const struct kind_ops *kind = kind_of(group);
    const struct kind_form *form = shape->form == ATTN_MLA_EXPANDED ? kind->expanded : kind->form;
    const struct model model = model_of(shape);
    struct row_operand rows[OPERANDS_MAX + 1];
    struct kind_tensor stored[KIND_MAX_TENSORS];
    const char *layouts[2];
    uint32_t count = form->list(&model, group, rows);
    if (form != kind->form) { /* latents are saved, too */
        struct row_operand absorbed[OPERANDS_MAX];
        uint32_t all = kind->form->list(&model, group, absorbed);
        for (uint32_t i = all - operands_count_kv(absorbed, all); i < all; i++)
            rows[count++] = absorbed[i];
    }
    struct row_operand out = {.role = ATTN_ROLE_OUT};
    form->output(group, &out);
    rows[count++] = out;
    for (uint32_t i = 0; i < count; i++)
        if (!is_left_out(shape, rows[i].role))
            add_row(inputs, &rows[i]);
    if (shape->kind == BENCH_SPARSE)
        add_choice(inputs);
    bench_layouts(shape, layouts);
    count = list_stored(inputs, layouts[0], stored);
    for (uint32_t i = 0; i < count; i++) {
        struct bench_operand operand = {.role = stored[i].role,
                                        .unit = bench_shape_is_linear(shape) ? BENCH_PER_SLOT
                                                                             : BENCH_PER_PAGE,
                                        .dtype = stored[i].dtype,
                                        .units = stored[i].shape[0],
                                        .elements = 1};
        for (uint32_t d = 1; d < stored[i].ndim; d++)
            operand.elements *= stored[i].shape[d];
        add_operand(inputs, operand);
    }
}

/* ---- Constants ------------------------------------------------------------------------------- */

static uint32_t list_constants(const struct bench_inputs *inputs)
{
    const struct model model = model_of(&inputs->shape);
    return kind_of(&inputs->problem.group)->constants(&model, &inputs->problem.group);
}

/* dtype and shape; returns how many elements these are. */
static int64_t describe_constant(const struct bench_inputs *inputs, uint32_t role,
                                 attn_tensor *tensor)
{
    const struct model model = model_of(&inputs->shape);
    int64_t elements = 1;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor};
    kind_of(&inputs->problem.group)
        ->describe_constant(&model, &inputs->problem.group, role, tensor);
    for (uint32_t d = 0; d < tensor->ndim; d++)
        elements *= tensor->shape[d];
    return elements;
}

/* Of one layer; the other one is there so that lightning's decays have a last layer. */
static attn_status open_generator(uint64_t seed, struct generator *generator, attn_error *error)
{
    static const generator_layer layers[2] = {{.kv_layer = 0}, {.kv_layer = 1}};
    return generator_init(generator, seed, layers, 2, 1, 0, error);
}

static attn_status fill_constants(const struct bench_inputs *inputs, uint64_t seed,
                                  attn_error *error)
{
    const attn_layer_group *group = &inputs->problem.group;
    struct generator generator;
    attn_status status = open_generator(seed, &generator, error);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT && status == ATTN_OK; role++) {
        attn_tensor tensor;
        if (!inputs->arrays.constants[role])
            continue;
        int64_t elements = describe_constant(inputs, role, &tensor);
        float *values = malloc((size_t)elements * sizeof *values);
        if (!values)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a layer's constants");
        kind_of(group)->make_constant(&generator, group, 0, role, values);
        for (int64_t i = 0; i < elements; i++)
            dtype_quantise(tensor.dtype, inputs->arrays.constants[role], i, values[i], 1);
        free(values);
    }
    return status;
}

/* ---- Index arrays ---------------------------------------------------------------------------- */

/* Keys of sequence `s` that lie in a cache. */
static int32_t stored_keys(const struct bench_shape *shape, int32_t s)
{
    return bench_shape_is_linear(shape) ? 0 : bench_shape_kv_len(shape, s);
}

static int32_t pages_of(const struct bench_shape *shape, int32_t s)
{
    return (int32_t)units_for(stored_keys(shape, s), shape->page_size);
}

static int32_t longest(const struct bench_shape *shape)
{
    int32_t most = 0;
    for (int32_t s = 0; s < shape->batch; s++) {
        int32_t keys = stored_keys(shape, s);
        most = keys > most ? keys : most;
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
    a->state_slots = carve(base, &used, 2 * seqs, sizeof *a->state_slots);
    a->has_initial = carve(base, &used, seqs, sizeof *a->has_initial);
    for (uint32_t role = 0, given = list_constants(inputs); role < ATTN_ROLE_COUNT; role++) {
        attn_tensor tensor;
        if (!(given >> role & 1))
            continue;
        int64_t elements = describe_constant(inputs, role, &tensor);
        a->constants[role] = carve(base, &used, elements, attn_dtype_size(tensor.dtype));
    }
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
    int32_t kv_len = stored_keys(shape, s), page_size = shape->page_size;
    int32_t *slots = a->req_to_token + (int64_t)(s + 1) * inputs->kv.req_to_token_stride;
    int32_t *table = a->block_table + (int64_t)s * inputs->kv.block_table_stride;
    const int32_t *pages = a->kv_indices + a->kv_indptr[s];
    for (int32_t p = 0; p < pages_of(shape, s); p++)
        table[p] = pages[p];
    for (int32_t j = 0; j < kv_len; j++)
        slots[j] = pages[j / page_size] * page_size + j % page_size;
    for (int32_t t = 0; kv_len && t < bench_shape_q_len(shape, s); t++)
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
    shuffle_pages(a->state_slots, 2 * (int64_t)shape->batch, mix_absorb(seed, 1));
    for (int32_t s = 0; s < shape->batch; s++) {
        int32_t q_len = bench_shape_q_len(shape, s), kv_len = bench_shape_kv_len(shape, s);
        int32_t pages = pages_of(shape, s);
        a->seq_lens[s] = kv_len;
        a->prefix_lens[s] = kv_len - q_len;
        a->q_indptr[s + 1] = a->q_indptr[s] + q_len;
        a->req_pool_indices[s] = s + 1;
        a->kv_indptr[s + 1] = a->kv_indptr[s] + pages;
        a->has_initial[s] = kv_len > q_len;
        a->last_page_len[s] = pages ? kv_len - (pages - 1) * shape->page_size : 0;
        fill_slots(inputs, s);
    }
    a->real[0] = shape->batch;
    a->real[1] = (int32_t)inputs->count.tokens;
    fill_scales(inputs);
}

/* ---- The batch ------------------------------------------------------------------------------- */

/* The device's address of `array`, which lies in the host's block. */
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

static void init_state_batch(struct bench_inputs *inputs)
{
    const struct bench_arrays *a = &inputs->arrays;
    inputs->states = (attn_state_batch){
        .struct_size = sizeof inputs->states,
        .slot = both(inputs, a->state_slots),
        .dst_slot = both(inputs, a->state_slots + inputs->shape.batch),
        .has_initial = both(inputs, a->has_initial),
    };
}

static void init_batch(struct bench_inputs *inputs)
{
    bool is_linear = bench_shape_is_linear(&inputs->shape);
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
        .num_kv_groups = is_linear ? 0 : 1,
        .num_state_groups = is_linear ? 1 : 0,
        .num_real_seqs_device = on_device(inputs, &a->real[0]),
        .num_real_tokens_device = on_device(inputs, &a->real[1]),
        .seq_lens = both(inputs, a->seq_lens),
        .prefix_lens = both(inputs, a->prefix_lens),
        .q_indptr = both(inputs, a->q_indptr),
        .req_pool_indices = both(inputs, a->req_pool_indices),
        .kv_groups = is_linear ? NULL : &inputs->kv,
        .sparse = shape->kind == BENCH_SPARSE ? &inputs->sparse : NULL,
        .state_groups = is_linear ? &inputs->states : NULL,
    };
    inputs->sparse = (attn_sparse_batch){sizeof inputs->sparse, shape->top_k};
    init_kv_batch(inputs);
    init_state_batch(inputs);
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
    status = fill_constants(inputs, seed, error);
    inputs->device_block = inputs->block;
    if (status == ATTN_OK && device->type != ATTN_DEVICE_CPU) {
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

/* The repeated pattern: elements, from any one on, or whole rows. */
struct pattern {
    const char *bytes;
    uint64_t size, count; /* bytes of a piece; pieces */
};

/* The sum of four uniform numbers: near to normal, of variance 1. */
static float random_normal(uint64_t seed, uint64_t i)
{
    uint64_t bits = mix_stream(seed, i);
    double sum = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) +
                 (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
    return (float)((sum / 65536 - 2) * 1.7320508);
}

/* The first of the scales is that of what is fp8. */
static void fill_random(attn_dtype dtype, const float *scales, uint64_t seed, char *pool)
{
    float scale = dtype_is_fp8(dtype) ? scales[0] : 1;
    for (int64_t i = 0; i < POOL; i++)
        dtype_quantise(dtype, pool, i, random_normal(seed, (uint64_t)i), scale);
}

/* Fill an operand: a part of the pattern, which differs between operands and copies, then what is
 * there is doubled until the operand is full. */
static attn_status fill_operand(const struct bench_inputs *inputs, char *to, uint64_t bytes,
                                const struct pattern *pattern, uint64_t hash, attn_error *error)
{
    uint64_t skip = mix_below((uint32_t)hash, (pattern->count + 1) / 2) * pattern->size;
    uint64_t filled = pattern->count * pattern->size - skip;
    filled = filled < bytes ? filled : bytes;
    attn_status status =
        device_copy(inputs->device, to, pattern->bytes + skip, filled, NULL, error);
    while (filled < bytes && status == ATTN_OK) {
        uint64_t more = bytes - filled < filled ? bytes - filled : filled;
        status = device_copy(inputs->device, to + filled, to, more, NULL, error);
        filled += more;
    }
    return status;
}

static uint64_t operand_bytes(const struct bench_operand *operand)
{
    return (uint64_t)(operand->units * operand->elements) * attn_dtype_size(operand->dtype);
}

/* Of a state: its own type; a convolution's is in the pool of new keys. */
static attn_dtype cache_dtype(const struct bench_shape *shape)
{
    return bench_shape_is_linear(shape) ? shape->state_dtype : shape->kv_dtype;
}

/* Each pool of one type and one scale; a type that is not fp8 takes no notice of the scale. */
static void fill_pools(const struct bench_inputs *inputs, uint64_t seed, char *pools[NUM_POOLS])
{
    const struct bench_shape *shape = &inputs->shape;
    const struct bench_arrays *a = &inputs->arrays;
    fill_random(shape->dtype, a->input_scales[0], mix_absorb(seed, 2), pools[POOL_Q]);
    fill_random(bench_shape_is_linear(shape) ? bench_shape_conv_dtype(shape) : shape->new_kv_dtype,
                a->input_scales[1], mix_absorb(seed, 2), pools[POOL_NEW_KV]);
    fill_random(cache_dtype(shape), a->k_scale, mix_absorb(seed, 3), pools[POOL_CACHE]);
}

/* The pool that an operand is made of; -1 = its rows are made one by one. An output, which is
 * written before it is read, gets any bytes: those of queries. */
static int pool_of(uint32_t role)
{
    switch (role) {
    case ATTN_ROLE_K:
    case ATTN_ROLE_V:
    case ATTN_ROLE_C_KV:
    case ATTN_ROLE_K_PE:
    case ATTN_ROLE_INDEX_K:
    case ATTN_ROLE_CONV_STATE:
        return POOL_NEW_KV;
    case ATTN_ROLE_K_CACHE:
    case ATTN_ROLE_V_CACHE:
    case ATTN_ROLE_STATE:
        return POOL_CACHE;
    case ATTN_ROLE_MIXED_QKV:
    case ATTN_ROLE_GATE_A:
    case ATTN_ROLE_GATE_B:
        return -1;
    default:
        return POOL_Q;
    }
}

/* Rows of a recurrence, of as many tokens as fit into `room` bytes. */
static attn_status make_rows(const struct bench_inputs *inputs, const struct bench_operand *operand,
                             uint64_t seed, uint64_t room, char *to, struct pattern *pattern,
                             attn_error *error)
{
    struct generator generator;
    uint64_t size = (uint64_t)operand->elements * attn_dtype_size(operand->dtype);
    uint64_t count =
        room / size < (uint64_t)operand->units ? room / size : (uint64_t)operand->units;
    attn_status status = open_generator(seed, &generator, error);
    *pattern = (struct pattern){to, size, count ? count : 1};
    for (uint64_t t = 0; t < pattern->count && status == ATTN_OK; t++)
        generator_linear_row(&generator, &inputs->problem.group, 0, (token_key){1, t},
                             operand->role, operand->dtype, to + t * size);
    return status;
}

/* Latents in rows with scales: codes of e4m3, fp32 scales, elements in bf16. */
static void make_packed(const struct bench_inputs *inputs, uint64_t seed, uint64_t room, char *to,
                        struct pattern *pattern)
{
    const struct bench_shape *shape = &inputs->shape;
    uint64_t size = (uint64_t)mla_packed_bytes(&inputs->problem.mla);
    int32_t lora = shape->kv_lora_rank, scales = lora / MLA_PACKED_SCALED;
    *pattern = (struct pattern){to, size, room / size};
    for (uint64_t r = 0; r < pattern->count; r++) {
        char *row = to + r * size;
        float *scale = (float *)(void *)(row + lora);
        for (int32_t n = 0; n < scales; n++)
            scale[n] = (float)(shape->row_scales ? 1 + n % 3 : 1 << n % 3) / 64;
        for (int32_t d = 0; d < lora; d++)
            dtype_quantise(ATTN_FP8_E4M3, row, d, random_normal(seed, r * size + (uint64_t)d),
                           scale[d / MLA_PACKED_SCALED]);
        for (int32_t d = 0; d < shape->rope_dim; d++)
            dtype_quantise(ATTN_BF16, row + lora + scales * (int32_t)sizeof *scale, d,
                           random_normal(seed, r * size + (uint64_t)(lora + d)), 1);
    }
}

/* Pages of labels: codes of e4m3, then their scales. */
static void make_labels(const struct bench_inputs *inputs, const struct bench_operand *operand,
                        uint64_t seed, uint64_t room, char *to, struct pattern *pattern)
{
    const struct bench_shape *shape = &inputs->shape;
    uint64_t size = (uint64_t)operand->elements;
    int64_t codes = (int64_t)shape->page_size * shape->label_dim;
    *pattern = (struct pattern){to, size, room / size ? room / size : 1};
    for (uint64_t page = 0; page < pattern->count; page++) {
        char *labels = to + page * size;
        float *scales = (float *)(void *)(labels + codes);
        for (int64_t i = 0; i < codes; i++)
            dtype_quantise(ATTN_FP8_E4M3, labels, i, random_normal(seed, page * size + (uint64_t)i),
                           1.0f / 64);
        for (int32_t n = 0; n < shape->page_size; n++)
            scales[n] = (float)(1 + n % 3) / 64;
    }
}

/* Of a type of their own. */
static void make_index(const struct bench_operand *operand, uint64_t seed, char *to,
                       struct pattern *pattern)
{
    static const float one = 1;
    fill_random(operand->dtype, &one, seed, to);
    *pattern = (struct pattern){to, attn_dtype_size(operand->dtype), POOL};
}

/* Make what operand number `o` repeats; in `rows` where its rows are made one by one. */
static attn_status make_pattern(const struct bench_inputs *inputs, uint32_t o, uint64_t seed,
                                char *const pools[NUM_POOLS], char *rows, struct pattern *pattern,
                                attn_error *error)
{
    const struct bench_operand *operand = &inputs->list[o];
    int pool = pool_of(operand->role);
    if (pool < 0)
        return make_rows(inputs, operand, mix_absorb(seed, 2), POOL * sizeof(float), rows, pattern,
                         error);
    if (operand->role == ATTN_ROLE_LABEL_CACHE && operand->dtype == ATTN_U8)
        make_labels(inputs, operand, mix_absorb(seed, 3), POOL * sizeof(float), rows, pattern);
    else if (operand->role == ATTN_ROLE_LABEL_CACHE || operand->role == ATTN_ROLE_INDEX_Q ||
             operand->role == ATTN_ROLE_INDEX_WEIGHTS)
        make_index(operand, mix_absorb(seed, 4 + operand->role), rows, pattern);
    else if (operand->role == ATTN_ROLE_LATENT_CACHE && operand->dtype == ATTN_U8)
        make_packed(inputs, mix_absorb(seed, 3), POOL * sizeof(float), rows, pattern);
    else
        *pattern =
            (struct pattern){pools[operand->role == ATTN_ROLE_LATENT_CACHE ? POOL_CACHE : pool],
                             attn_dtype_size(operand->dtype), POOL};
    return ATTN_OK;
}

/* The largest number up to `from` that has no divisor in common with n. */
static uint64_t coprime(uint64_t from, uint64_t n)
{
    for (uint64_t tried = from; tried > 1; tried--) {
        uint64_t a = tried, b = n;
        while (b != 0) {
            uint64_t rest = a % b;
            a = b, b = rest;
        }
        if (a == 1)
            return tried;
    }
    return 1;
}

/* Slots of `count` keys of the first n of sequence `s`, any, each once. */
static void choose_keys(const struct bench_inputs *inputs, int32_t s, int64_t n, uint64_t hash,
                        int32_t *slots, int32_t count)
{
    const int32_t *all =
        inputs->arrays.req_to_token + (int64_t)(s + 1) * inputs->kv.req_to_token_stride;
    uint64_t at = mix_below((uint32_t)hash, (uint64_t)n);
    uint64_t step = coprime(1 + mix_below((uint32_t)(hash >> 32), (uint64_t)n), (uint64_t)n);
    for (int32_t i = 0; i < count; i++, at = (at + step) % (uint64_t)n)
        slots[i] = all[at];
}

/* The choice that is given: of each row, min(top_k, keys that it sees); -1 after them. */
static attn_status fill_choice(const struct bench_inputs *inputs, uint32_t o, uint32_t copy,
                               uint64_t seed, char *rows, attn_error *error)
{
    const struct bench_shape *shape = &inputs->shape;
    const struct bench_arrays *a = &inputs->arrays;
    int64_t most = inputs->list[o].elements, room = POOL / most > 0 ? POOL / most : 1;
    char *to = inputs->operands + copy * inputs->copy_bytes + inputs->list[o].at;
    bool indices = inputs->list[o].role == ATTN_ROLE_SPARSE_INDICES;
    int32_t *made = (int32_t *)(void *)rows;
    int64_t first = 0, row = 0;
    attn_status status = ATTN_OK;
    for (int32_t s = 0; s < shape->batch && status == ATTN_OK; s++)
        for (int32_t t = 0; t < bench_shape_q_len(shape, s) && status == ATTN_OK; t++, row++) {
            int64_t seen = (int64_t)a->prefix_lens[s] + t + 1;
            int32_t count = (int32_t)(seen < shape->top_k ? seen : shape->top_k);
            int32_t *here = made + (row - first) * most;
            here[0] = count;
            for (int64_t i = 0; indices && i < most; i++)
                here[i] = -1;
            if (indices)
                choose_keys(inputs, s, seen, mix_stream(seed, (uint64_t)row), here, count);
            if (row + 1 - first < room && row + 1 < inputs->list[o].units)
                continue;
            uint64_t unit = (uint64_t)most * sizeof *made;
            status = device_copy(inputs->device, to + (uint64_t)first * unit, rows,
                                 (uint64_t)(row + 1 - first) * unit, NULL, error);
            if (status == ATTN_OK)
                status = device_synchronize(inputs->device, NULL, error);
            first = row + 1;
        }
    return status;
}

static bool is_given_choice(const struct bench_inputs *inputs, uint32_t o)
{
    return inputs->shape.choice == BENCH_CHOICE_GIVEN &&
           (inputs->list[o].role == ATTN_ROLE_SPARSE_INDICES ||
            inputs->list[o].role == ATTN_ROLE_SPARSE_COUNT);
}

static attn_status fill_copies(const struct bench_inputs *inputs, uint64_t seed,
                               char *const pools[NUM_POOLS], char *rows, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t o = 0; o < inputs->num_operands && status == ATTN_OK; o++) {
        struct pattern pattern;
        for (uint32_t c = 0; is_given_choice(inputs, o) && c < inputs->copies && status == ATTN_OK;
             c++)
            status = fill_choice(inputs, o, c, mix_absorb(seed, 5 + c), rows, error);
        if (is_given_choice(inputs, o) || status != ATTN_OK)
            continue;
        status = make_pattern(inputs, o, seed, pools, rows, &pattern, error);
        for (uint32_t c = 0; c < inputs->copies && status == ATTN_OK; c++)
            status = fill_operand(
                inputs, inputs->operands + c * inputs->copy_bytes + inputs->list[o].at,
                operand_bytes(&inputs->list[o]), &pattern,
                mix_stream(seed, (uint64_t)c * BENCH_MAX_OPERANDS + (uint64_t)o), error);
        if (status == ATTN_OK) /* rows are made anew for the next operand */
            status = device_synchronize(inputs->device, NULL, error);
    }
    return status;
}

static attn_status fill_values(const struct bench_inputs *inputs, uint64_t seed, attn_error *error)
{
    const uint64_t pool_bytes = POOL * sizeof(float);
    uint64_t row_bytes = pool_bytes;
    for (uint32_t o = 0; o < inputs->num_operands; o++) {
        uint64_t bytes = (uint64_t)inputs->list[o].elements * sizeof(float);
        if (inputs->list[o].unit == BENCH_PER_TOKEN && bytes > row_bytes)
            row_bytes = bytes;
    }
    char *pools[NUM_POOLS], *block = malloc(NUM_POOLS * pool_bytes + row_bytes);
    if (!block)
        return fail_memory(inputs, ATTN_SPACE_HOST, NUM_POOLS * pool_bytes + row_bytes,
                           "random values", error);
    for (uint64_t p = 0; p < NUM_POOLS; p++)
        pools[p] = block + p * pool_bytes;
    fill_pools(inputs, seed, pools);
    attn_status status = fill_copies(inputs, seed, pools, block + NUM_POOLS * pool_bytes, error);
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
    const char *layouts[2];
    bench_shape_count(shape, &made->count);
    bench_layouts(shape, layouts);
    bench_problem_init(&made->problem, shape, &device->info, layouts[0], ATTN_GRAPH_NEVER);
    list_operands(made);
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

/* Operand number `o` of a copy. */
static void view_operand(const struct bench_inputs *inputs, char *copy, uint32_t o,
                         const struct kind_tensor *stored, attn_tensor *tensor)
{
    const struct bench_operand *operand = &inputs->list[o];
    bool is_row = operand->unit == BENCH_PER_TOKEN;
    view(inputs, copy + operand->at, operand->dtype, is_row ? operand->ndim : stored->ndim,
         is_row ? operand->shape : stored->shape, tensor);
}

static void view_constant(const struct bench_inputs *inputs, uint32_t role, attn_tensor *tensor)
{
    attn_tensor described;
    describe_constant(inputs, role, &described);
    view(inputs, inputs->device_block + (inputs->arrays.constants[role] - inputs->block),
         described.dtype, described.ndim, described.shape, tensor);
}

/* Scales of operands that are fp8 and given. */
static void set_scales(const struct bench_inputs *inputs, struct bench_call *call)
{
    static const uint32_t roles[] = {ATTN_ROLE_Q, ATTN_ROLE_K, ATTN_ROLE_V};
    int fp8 = dtype_is_fp8(inputs->shape.kv_dtype);
    if (bench_shape_is_linear(&inputs->shape))
        return;
    bool one = fp8 && inputs->shape.layout != BENCH_LAYOUT_LATENT_FP8;
    if (bench_shape_is_latent(&inputs->shape)) {
        call->scales[ATTN_ROLE_LATENT_CACHE] = one ? &inputs->k_scale : NULL;
        if (dtype_is_fp8(inputs->shape.dtype))
            call->scales[ATTN_ROLE_Q_NOPE] = call->scales[ATTN_ROLE_Q_PE] =
                &inputs->input_scales[0];
        return;
    }
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
    struct kind_tensor stored[KIND_MAX_TENSORS];
    uint32_t first = inputs->num_operands - list_stored(inputs, layout, stored), used = 0;
    bool given = bench_shape_is_linear(s) || s->new_kv != BENCH_NEW_KV_CACHED;
    memset(call, 0, sizeof *call);
    for (uint32_t o = 0; o < inputs->num_operands; o++) {
        uint32_t role = inputs->list[o].role;
        attn_tensor *tensor = &call->tensors[used++];
        view_operand(inputs, at, o, &stored[o < first ? 0 : o - first], tensor);
        call->operands[role] = given || pool_of(role) != POOL_NEW_KV ? tensor : NULL;
    }
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        if (!inputs->arrays.constants[role])
            continue;
        attn_tensor *tensor = &call->tensors[used++];
        view_constant(inputs, role, tensor);
        call->operands[role] = tensor;
    }
    set_scales(inputs, call);
    call->args = (attn_forward_args){
        .struct_size = sizeof call->args,
        .flags = !bench_shape_is_linear(s) && s->new_kv == BENCH_NEW_KV_SAVED
                     ? (uint32_t)ATTN_FORWARD_SAVE_KV
                     : 0u,
        .num_operands = ATTN_ROLE_COUNT,
        .num_scales = ATTN_ROLE_COUNT,
        .operands = call->operands,
        .scales = call->scales,
    };
}

/* ---- Parts of a copy ------------------------------------------------------------------------- */

struct bench_region bench_inputs_units(const struct bench_inputs *inputs, uint32_t operand,
                                       int64_t first, int64_t count)
{
    const struct bench_operand *o = &inputs->list[operand];
    uint64_t unit = (uint64_t)o->elements * attn_dtype_size(o->dtype);
    return (struct bench_region){o->at + (uint64_t)first * unit, (uint64_t)count * unit};
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
