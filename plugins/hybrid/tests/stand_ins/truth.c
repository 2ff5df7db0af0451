/* SPDX-License-Identifier: Apache-2.0
 *
 * truth.c: what candidates that are measured give: the oracle's output, so that a composite
 * that has its children judged finds them right.
 */
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/reference/reference.h"

/* The truth of the call before this one, which comes again and again while samples are taken. */
struct stand_truth {
    int32_t layer_id;
    uint32_t mode;
    int32_t num_tokens, num_seqs;
    char *query; /* bytes of operand Q then, */
    uint64_t query_bytes;
    double *out; /* and what was computed from it: [tokens, heads, dim] */
};

static uint64_t row_elements(const attn_tensor *tensor)
{
    return (uint64_t)(tensor->shape[1] * tensor->shape[2]);
}

static char *row_at(const attn_tensor *tensor, int64_t row)
{
    return (char *)tensor->data + tensor->byte_offset +
           (uint64_t)(row * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
}

/* Rows of Q lie one after the other. */
static uint64_t query_bytes(const attn_tensor *query, const attn_batch *batch)
{
    return (uint64_t)batch->num_tokens * row_elements(query) * attn_dtype_size(query->dtype);
}

static bool is_known(const struct stand_truth *truth, const attn_batch *batch, int32_t layer_id,
                     const attn_tensor *query)
{
    return truth->out && truth->layer_id == layer_id && truth->mode == batch->mode &&
           truth->num_tokens == batch->num_tokens && truth->num_seqs == batch->num_seqs &&
           truth->query_bytes == query_bytes(query, batch) &&
           memcmp(truth->query, row_at(query, 0), truth->query_bytes) == 0;
}

static void forget(struct stand_truth *truth)
{
    free(truth->query);
    free(truth->out);
    *truth = (struct stand_truth){0};
}

static attn_status learn(struct stand_truth *truth, const attn_problem *problem,
                         const attn_batch *batch, int32_t layer_id, const attn_forward_args *args,
                         uint32_t reads)
{
    const reference_options options = {.reads_new_unquantised = reads, .without_bars = 1};
    const attn_tensor *query = attn_operand(args, ATTN_ROLE_Q);
    reference_result result;
    forget(truth);
    attn_status status = reference_forward(problem, batch, layer_id, args, &options, &result, NULL);
    if (status != ATTN_OK)
        return status;
    *truth = (struct stand_truth){.layer_id = layer_id,
                                  .mode = batch->mode,
                                  .num_tokens = batch->num_tokens,
                                  .num_seqs = batch->num_seqs,
                                  .query = malloc(query_bytes(query, batch) + 1),
                                  .query_bytes = query_bytes(query, batch),
                                  .out = result.out};
    result.out = NULL;
    reference_result_finish(&result);
    if (!truth->query) {
        forget(truth);
        return ATTN_OUT_OF_HOST_MEMORY;
    }
    memcpy(truth->query, row_at(query, 0), truth->query_bytes);
    return ATTN_OK;
}

attn_status stand_give_truth(struct stand_scene *scene, const attn_problem *problem,
                             const attn_batch *batch, int32_t layer_id,
                             const attn_forward_args *args, uint32_t reads)
{
    const attn_tensor *out = attn_operand(args, ATTN_ROLE_OUT);
    if (!scene->truth)
        scene->truth = calloc(1, sizeof *scene->truth);
    if (!scene->truth)
        return ATTN_OUT_OF_HOST_MEMORY;
    attn_status status = ATTN_OK;
    if (!is_known(scene->truth, batch, layer_id, attn_operand(args, ATTN_ROLE_Q)))
        status = learn(scene->truth, problem, batch, layer_id, args, reads);
    int64_t count = (int64_t)row_elements(out);
    for (int64_t t = 0; t < batch->num_tokens && status == ATTN_OK; t++)
        dtype_from_double(out->dtype, scene->truth->out + t * count, count, row_at(out, t));
    return status;
}

void stand_free_truth(struct stand_scene *scene)
{
    if (scene->truth)
        forget(scene->truth);
    free(scene->truth);
    scene->truth = NULL;
}
