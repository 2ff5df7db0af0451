/* SPDX-License-Identifier: Apache-2.0
 *
 * rig.c: batches and arena.
 */
#include "host/check/cases/rig_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/mix.h"
#include "host/check/cases/draw.h"

enum { STATE_SLOTS = 1 + 2 * RIG_SEQS };

/* ---- Batches --------------------------------------------------------------------------------- */

/* Lengths: `decodes` sequences of one query come last. */
static void draw_lengths(struct draw *draw, attn_batch *batch, struct rig_arrays *arrays)
{
    int32_t row = 0, decodes = batch->num_decode_seqs;
    if (batch->mode == ATTN_MODE_DECODE)
        decodes = batch->num_seqs;
    batch->max_q_len = batch->max_kv_len = 1;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t left = batch->num_seqs - s - 1;
        int32_t most = RIG_TOKENS - row - left < RIG_Q_LEN ? RIG_TOKENS - row - left : RIG_Q_LEN;
        int32_t queries = s >= batch->num_seqs - decodes ? 1 : 1 + draw_below(draw, most);
        int32_t prefix =
            s == 0 ? 5 + draw_below(draw, 20) : draw_below(draw, RIG_KV_LEN - queries + 1);
        arrays->q_indptr[s] = row;
        arrays->prefix_lens[s] = prefix;
        arrays->seq_lens[s] = prefix + queries;
        arrays->requests[s] = s + 1;
        row += queries;
        batch->max_q_len = queries > batch->max_q_len ? queries : batch->max_q_len;
        if (prefix + queries > batch->max_kv_len)
            batch->max_kv_len = prefix + queries;
    }
    arrays->q_indptr[batch->num_seqs] = row;
    batch->num_tokens = batch->num_real_tokens = row;
}

/* Pages 1 .. count in any order. */
static void shuffle_pages(struct draw *draw, int32_t *pages, int32_t count)
{
    for (int32_t p = 0; p < count; p++) {
        int32_t other = draw_below(draw, p + 1);
        pages[p] = pages[other];
        pages[other] = p + 1;
    }
}

static void fill_kv(struct draw *draw, const attn_batch *batch, struct rig_arrays *arrays, int g,
                    int32_t page_size)
{
    int32_t pages[RIG_SEQS * RIG_KV_LEN], stride = rig_pages(RIG_KV_LEN, page_size), count = 0;
    shuffle_pages(draw, pages, RIG_SEQS * stride);
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t len = arrays->seq_lens[s], used = rig_pages(len, page_size);
        arrays->kv[g].kv_indptr[s] = count;
        for (int32_t p = 0; p < used; p++) {
            arrays->kv[g].block_table[s * stride + p] = pages[s * stride + p];
            arrays->kv[g].kv_indices[count++] = pages[s * stride + p];
        }
        arrays->kv[g].last_page_len[s] = len - (used - 1) * page_size;
        for (int32_t j = 0; j < len; j++) {
            int32_t slot = pages[s * stride + j / page_size] * page_size + j % page_size;
            int32_t query = j - arrays->prefix_lens[s];
            arrays->kv[g].req_to_token[arrays->requests[s] * RIG_KV_LEN + j] = slot;
            if (query >= 0)
                arrays->kv[g].out_cache_loc[arrays->q_indptr[s] + query] = slot;
        }
    }
    arrays->kv[g].kv_indptr[batch->num_seqs] = count;
}

/* For each query slots of keys that it sees, evenly among them; -1 where it sees fewer. */
static void choose_keys(const attn_batch *batch, struct rig_arrays *arrays, int g)
{
    for (int32_t s = 0; s < batch->num_seqs; s++)
        for (int32_t t = arrays->q_indptr[s]; t < arrays->q_indptr[s + 1]; t++) {
            const int32_t *slots = &arrays->kv[g].req_to_token[arrays->requests[s] * RIG_KV_LEN];
            int32_t seen = arrays->prefix_lens[s] + t - arrays->q_indptr[s] + 1;
            int32_t count = seen < RIG_TOP_K ? seen : RIG_TOP_K;
            for (int32_t i = 0; i < RIG_TOP_K; i++)
                arrays->kv[g].chosen[t * RIG_TOP_K + i] = i < count ? slots[i * seen / count] : -1;
        }
}

#define PAIR(member)                                                                               \
    {                                                                                              \
        .host = b->host->member, .device = b->device->member                                       \
    }

/* Where states are: of every other sequence updated in place, in each state group other slots. */
static void fill_states(const attn_batch *batch, struct rig_arrays *arrays)
{
    for (int32_t s = 0; s < batch->num_seqs; s++)
        for (int g = 0; g < RIG_GROUPS; g++) {
            int32_t slot = 1 + (s + g) % RIG_SEQS;
            arrays->state[g].slot[s] = slot;
            arrays->state[g].dst_slot[s] = s % 2 ? slot : slot + RIG_SEQS;
            arrays->state[g].has_initial[s] = 1;
        }
}

static void set_states(struct rig_batch *b)
{
    for (int g = 0; g < RIG_GROUPS; g++)
        b->states[g] = (attn_state_batch){.struct_size = sizeof b->states[g],
                                          .slot = PAIR(state[g].slot),
                                          .dst_slot = PAIR(state[g].dst_slot),
                                          .has_initial = PAIR(state[g].has_initial)};
    b->batch.state_groups = b->states;
    b->batch.num_state_groups = RIG_GROUPS;
}

static void set_views(struct rig_batch *b, int32_t page_size)
{
    b->batch.seq_lens = (attn_i32_array)PAIR(seq_lens);
    b->batch.prefix_lens = (attn_i32_array)PAIR(prefix_lens);
    b->batch.q_indptr = (attn_i32_array)PAIR(q_indptr);
    b->batch.req_pool_indices = (attn_i32_array)PAIR(requests);
    b->batch.kv_groups = b->kv;
    b->batch.num_kv_groups = RIG_GROUPS;
    for (int g = 0; g < RIG_GROUPS; g++)
        b->kv[g] = (attn_kv_batch){.struct_size = sizeof b->kv[g],
                                   .page_size = page_size,
                                   .req_to_token_stride = RIG_KV_LEN,
                                   .block_table_stride = rig_pages(RIG_KV_LEN, page_size),
                                   .out_cache_loc = PAIR(kv[g].out_cache_loc)};
}

/* Fill in the forms that an instance asks for. */
static void set_forms(struct rig_batch *b, uint32_t forms)
{
    const attn_i32_array absent = {NULL, NULL};
    for (int g = 0; g < RIG_GROUPS; g++) {
        attn_kv_batch *kv = &b->kv[g];
        int pages = forms & ATTN_INDEX_BLOCK_TABLE, csr = forms & ATTN_INDEX_CSR;
        int slots = forms & ATTN_INDEX_REQ_TO_TOKEN;
        kv->index_forms = forms;
        kv->req_to_token = slots ? (attn_i32_array)PAIR(kv[g].req_to_token) : absent;
        kv->block_table = pages ? (attn_i32_array)PAIR(kv[g].block_table) : absent;
        kv->kv_indptr = csr ? (attn_i32_array)PAIR(kv[g].kv_indptr) : absent;
        kv->kv_indices = csr ? (attn_i32_array)PAIR(kv[g].kv_indices) : absent;
        kv->last_page_len = csr ? (attn_i32_array)PAIR(kv[g].last_page_len) : absent;
    }
}

static attn_status make_batch(struct rig *rig, struct rig_batch *b, uint32_t mode, uint64_t seed)
{
    struct draw draw = {.seed = mix_absorb(seed, mode)};
    int32_t page_size = rig->question.problems[0].page_size;
    page_size = page_size > 0 ? page_size : 1;
    b->host = calloc(1, sizeof *b->host);
    b->device = device_allocate(rig->device, ATTN_SPACE_DEVICE, sizeof *b->device, 64);
    if (!b->host || !b->device)
        return host_fail(&rig->error.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for a batch");
    b->batch =
        (attn_batch){.struct_size = sizeof b->batch,
                     .mode = mode,
                     .num_seqs = mode == ATTN_MODE_EXTEND ? 2 + draw_below(&draw, 2) : RIG_SEQS,
                     .num_decode_seqs = mode == ATTN_MODE_MIXED ? 2 : 0,
                     .decode_q_len = mode == ATTN_MODE_MIXED};
    if (mode == ATTN_MODE_MIXED)
        b->batch.first_decode_seq = b->batch.num_seqs - b->batch.num_decode_seqs;
    b->batch.num_real_seqs = b->batch.num_seqs;
    draw_lengths(&draw, &b->batch, b->host);
    for (int g = 0; g < RIG_GROUPS; g++)
        fill_kv(&draw, &b->batch, b->host, g, page_size);
    for (int g = 0; g < RIG_GROUPS; g++)
        choose_keys(&b->batch, b->host, g);
    set_views(b, page_size);
    fill_states(&b->batch, b->host);
    if (rig_is_linear(&rig->question))
        set_states(b);
    b->sparse = (attn_sparse_batch){.struct_size = sizeof b->sparse, .max_count = RIG_TOP_K};
    if (rig->question.groups[0].kind == ATTN_KIND_SPARSE)
        b->batch.sparse = &b->sparse;
    return device_copy(rig->device, b->device, b->host, sizeof *b->host, rig->stream,
                       &rig->error.base);
}

static attn_status make_batches(struct rig *rig, uint64_t seed)
{
    static const uint32_t modes[RIG_BATCHES] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE,
                                                ATTN_MODE_MIXED};
    attn_status status = ATTN_OK;
    for (int m = 0; m < RIG_BATCHES && status == ATTN_OK; m++) {
        struct rig_batch *b = &rig->batches[rig->num_batches];
        if (!(rig->question.bounds.modes & ATTN_MODE_BIT(modes[m])))
            continue;
        rig->given_batches[rig->num_batches++] = &b->batch;
        status = make_batch(rig, b, modes[m], seed);
    }
    return status;
}

const char *rig_batch_name(const struct rig *rig, int batch)
{
    uint32_t mode = rig->batches[batch].batch.mode;
    return mode == ATTN_MODE_EXTEND ? "extend" : mode == ATTN_MODE_DECODE ? "decode" : "mixed";
}

const char *rig_a_batch(const struct rig *rig, int batch)
{
    uint32_t mode = rig->batches[batch].batch.mode;
    return mode == ATTN_MODE_EXTEND   ? "an extend"
           : mode == ATTN_MODE_DECODE ? "a decode"
                                      : "a mixed";
}

/* ---- Arena ----------------------------------------------------------------------------------- */

/* Of the parts of a linear layer: mixed_qkv, a, b, out, state; the last one is not used. */
static void set_linear_shape(const struct rig *rig, enum rig_part part, attn_tensor *tensor)
{
    const attn_problem *problem = &rig->question.problems[0];
    const attn_linear_dims *linear = &rig->question.linear;
    int64_t heads = linear->num_v_heads, dim = linear->head_k_dim;
    const struct {
        uint32_t ndim;
        attn_dtype dtype;
        int64_t shape[4];
    } forms[RIG_PARTS] = {
        [RIG_Q] = {2, problem->q_dtype, {RIG_TOKENS, (2 * linear->num_k_heads + heads) * dim}},
        [RIG_K] = {2, ATTN_F32, {RIG_TOKENS, heads}},
        [RIG_V] = {2, ATTN_F32, {RIG_TOKENS, heads}},
        [RIG_OUT] = {3, problem->out_dtype, {RIG_TOKENS, heads, dim}},
        [RIG_CACHE_1] = {4, ATTN_F32, {STATE_SLOTS, heads, dim, dim}},
        [RIG_CACHE_2] = {1, ATTN_F32, {1}},
    };
    tensor->ndim = forms[part].ndim;
    tensor->dtype = forms[part].dtype;
    memcpy(tensor->shape, forms[part].shape, sizeof forms[part].shape);
}

static void set_softmax_shape(const struct rig *rig, enum rig_part part, attn_tensor *tensor)
{
    const attn_problem *problem = &rig->question.problems[0];
    const attn_layer_group *group = problem->group;
    int64_t pages = 1 + (int64_t)RIG_SEQS * rig_pages(RIG_KV_LEN, problem->page_size);
    int64_t heads = part == RIG_Q || part == RIG_OUT ? group->num_q_heads : group->num_kv_heads;
    int64_t dim = part == RIG_V || part == RIG_OUT || part == RIG_CACHE_2 ? group->v_head_dim
                                                                          : group->head_dim;
    int hnd = strcmp(problem->kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    tensor->dtype = problem->q_dtype;
    tensor->ndim = 3;
    tensor->shape[0] = RIG_TOKENS;
    tensor->shape[1] = heads;
    tensor->shape[2] = dim;
    if (part == RIG_CACHE_1 || part == RIG_CACHE_2) {
        int64_t page = problem->page_size;
        int64_t shape[] = {pages, hnd ? heads : page, hnd ? page : heads, dim};
        tensor->ndim = 4;
        memcpy(tensor->shape, shape, sizeof shape);
    }
}

/* Of a latent layer, absorbed: q_nope, c_kv, k_pe, out, latent cache, q_pe. */
static void set_latent_shape(const struct rig *rig, enum rig_part part, attn_tensor *tensor)
{
    const attn_problem *problem = &rig->question.problems[0];
    const attn_mla_dims *latent = &rig->question.latent;
    int64_t heads = problem->group->num_q_heads, page = problem->page_size;
    int64_t pages = 1 + (int64_t)RIG_SEQS * rig_pages(RIG_KV_LEN, problem->page_size);
    const struct {
        uint32_t ndim;
        int64_t shape[3];
    } forms[RIG_PARTS] = {
        [RIG_Q] = {3, {RIG_TOKENS, heads, latent->kv_lora_rank}},
        [RIG_K] = {2, {RIG_TOKENS, latent->kv_lora_rank}},
        [RIG_V] = {2, {RIG_TOKENS, latent->rope_dim}},
        [RIG_OUT] = {3, {RIG_TOKENS, heads, latent->kv_lora_rank}},
        [RIG_CACHE_1] = {3, {pages, page, latent->kv_lora_rank + latent->rope_dim}},
        [RIG_CACHE_2] = {3, {RIG_TOKENS, heads, latent->rope_dim}},
    };
    tensor->ndim = forms[part].ndim;
    tensor->dtype = problem->q_dtype;
    memcpy(tensor->shape, forms[part].shape, sizeof forms[part].shape);
}

static void set_shape(const struct rig *rig, enum rig_part part, attn_tensor *tensor)
{
    *tensor = (attn_tensor){.struct_size = sizeof *tensor,
                            .device_type = rig->device->type,
                            .device_id = rig->device->id,
                            .alignment = 256};
    if (rig->question.groups[0].kind == ATTN_KIND_LINEAR)
        set_linear_shape(rig, part, tensor);
    else if (rig->question.groups[0].kind == ATTN_KIND_SOFTMAX)
        set_softmax_shape(rig, part, tensor);
    else
        set_latent_shape(rig, part, tensor);
    int64_t stride = 1;
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        tensor->strides[d] = stride;
        stride *= tensor->shape[d];
    }
}

/* The choice of a sparse layer: rig_forward() brings the batch's. */
static void set_indices(struct rig *rig, struct rig_layer *layer)
{
    layer->indices = (attn_tensor){.struct_size = sizeof layer->indices,
                                   .device_type = rig->device->type,
                                   .device_id = rig->device->id,
                                   .data = rig->choice,
                                   .dtype = ATTN_I32,
                                   .ndim = 2,
                                   .alignment = 4,
                                   .shape = {RIG_TOKENS, RIG_TOP_K},
                                   .strides = {RIG_TOP_K, 1}};
    if (rig->question.groups[0].kind == ATTN_KIND_SPARSE)
        layer->operands[ATTN_ROLE_SPARSE_INDICES] = &layer->indices;
}

static void lay_out(struct rig *rig)
{
    const struct rig_part_info *parts = rig_parts(&rig->question);
    for (int l = 0; l < RIG_LAYERS; l++) {
        struct rig_layer *layer = &rig->layers[l];
        for (int p = 0; p < RIG_PARTS; p++) {
            attn_tensor *tensor = &layer->tensors[p];
            set_shape(rig, (enum rig_part)p, tensor);
            layer->bytes[p] =
                (uint64_t)(tensor->shape[0] * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
            layer->offsets[p] = rig->arena_bytes + 256;
            rig->arena_bytes =
                (layer->offsets[p] + layer->bytes[p] + RIG_RED_ZONE + 255) & ~(uint64_t)255;
            if (parts[p].role < ATTN_ROLE_COUNT)
                layer->operands[parts[p].role] = tensor;
        }
        set_indices(rig, layer);
        layer->args = (attn_forward_args){.struct_size = sizeof layer->args,
                                          .flags = ATTN_FORWARD_SAVE_KV,
                                          .num_operands = ATTN_ROLE_COUNT,
                                          .operands = layer->operands};
        rig->given_args[l] = &layer->args;
    }
}

/* A number in [-2, 2); of the gates of a linear layer below 0, and in [0, 1). */
static double number_of(const struct rig *rig, int part, uint64_t seed, uint64_t count)
{
    double x = (double)(int32_t)(mix_stream(seed, count) >> 32) * 0x1p-30;
    if (!rig_is_linear(&rig->question))
        return x;
    return part == RIG_K ? -fabs(x) : part == RIG_V ? fabs(x) / 2 : x;
}

/* Numbers everywhere; outputs NaN. */
static void fill_image(struct rig *rig, uint64_t seed)
{
    uint64_t count = 0;
    memset(rig->image, RIG_RED, rig->arena_bytes);
    for (int l = 0; l < RIG_LAYERS; l++)
        for (int p = 0; p < RIG_PARTS; p++) {
            const struct rig_layer *layer = &rig->layers[l];
            char *part = rig->image + layer->offsets[p];
            attn_dtype dtype = layer->tensors[p].dtype;
            int64_t elements = (int64_t)layer->bytes[p] / attn_dtype_size(dtype);
            if (p == RIG_OUT)
                memset(part, 0xFF, layer->bytes[p]);
            for (int64_t i = 0; p != RIG_OUT && i < elements; i++)
                dtype_store(dtype, part, i, number_of(rig, p, seed, count++));
        }
}

static attn_status make_arena(struct rig *rig, uint64_t seed)
{
    rig->choice = device_allocate(rig->device, ATTN_SPACE_DEVICE, RIG_CHOICE_BYTES, 256);
    lay_out(rig);
    rig->image = malloc(rig->arena_bytes);
    rig->arena = device_allocate(rig->device, ATTN_SPACE_DEVICE, rig->arena_bytes, 256);
    if (!rig->image || !rig->arena || !rig->choice)
        return host_fail(&rig->error.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for operands");
    fill_image(rig, seed);
    for (int l = 0; l < RIG_LAYERS; l++)
        for (int p = 0; p < RIG_PARTS; p++)
            rig->layers[l].tensors[p].data = (char *)rig->arena + rig->layers[l].offsets[p];
    return rig_reset(rig);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void set_given(struct rig *rig)
{
    const struct check_subject *subject = rig->subject;
    rig->type = subject->type;
    rig->options = subject->options;
    rig->services = subject->services;
    rig->problems = rig->question.problems;
    rig->bounds = &rig->question.bounds;
    rig->given_error = &rig->error.base;
    host_error_init(&rig->error);
}

/* Cases with seeds of their own go through the kinds that the subject serves. */
static int seeds_of_kind(const struct check_subject *subject)
{
    return subject->exhaustive ? 50 : 4;
}

static int rank_of(const struct check_run *run)
{
    return run->check->count == rig_count_seeds ? run->index / seeds_of_kind(run->subject) : 0;
}

static bool rig_open_with(struct rig *rig, struct check_run *run, uint64_t seed,
                          struct compose_node *child)
{
    char why[512];
    const struct check_subject *subject = run->subject;
    memset(rig, 0, sizeof *rig);
    rig->subject = subject;
    rig->device = subject->device;
    rig->ops = subject->type->ops;
    set_given(rig);
    if (!(child && rig_find_for(&rig->question, subject, rank_of(run), child, &rig->verdict, why,
                                sizeof why)) &&
        !rig_find_for(&rig->question, subject, rank_of(run), NULL, &rig->verdict, why,
                      sizeof why)) {
        check_skip(run, "query accepts no plain problem on this device: %s", why);
        return false;
    }
    attn_status status = device_stream_create(rig->device, &rig->stream, &rig->error.base);
    if (status == ATTN_OK)
        status = make_batches(rig, seed);
    if (status == ATTN_OK)
        status = make_arena(rig, seed);
    if (status == ATTN_OK)
        return true;
    check_fail(run, "making operands: %s", host_error_text(&rig->error));
    rig_close(rig);
    return false;
}

bool rig_open(struct rig *rig, struct check_run *run, uint64_t seed)
{
    return rig_open_with(rig, run, seed, NULL);
}

bool rig_open_for_child(struct rig *rig, struct check_run *run, uint64_t seed, uint32_t child)
{
    const struct compose_node *node = run->subject->node;
    return rig_open_with(rig, run, seed, child < node->num_children ? node->children[child] : NULL);
}

void rig_close(struct rig *rig)
{
    device_stream_destroy(rig->device, rig->stream);
    for (int b = 0; b < rig->num_batches; b++) {
        free(rig->batches[b].host);
        device_release(rig->device, ATTN_SPACE_DEVICE, rig->batches[b].device);
    }
    free(rig->image);
    device_release(rig->device, ATTN_SPACE_DEVICE, rig->arena);
    device_release(rig->device, ATTN_SPACE_DEVICE, rig->choice);
}

int32_t rig_count_seeds(const struct check_subject *subject)
{
    return seeds_of_kind(subject) * rig_count_kinds(subject);
}

/* ---- What depends on an instance ------------------------------------------------------------- */

attn_status rig_create(struct rig *rig, attn_instance **instance)
{
    host_error_init(&rig->error);
    attn_status status = rig->type->create(rig->type, rig->problems, RIG_GROUPS, rig->options,
                                           rig->services, instance, rig->given_error);
    if (status != ATTN_OK || !*instance)
        return status;
    rig->index_forms = rig->ops->index_forms(*instance);
    for (int b = 0; b < rig->num_batches; b++)
        set_forms(&rig->batches[b], rig->index_forms);
    return status;
}
