/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.c: expected contents of the KV cache after a forward, bit for bit.
 */
#include "host/reference/call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <string.h>

/* From a new k or v, of `given` scale, into a cache, of `scale`. */
static void store_vector(const reference_call *call, const attn_tensor *from,
                         const attn_scale *given, const attn_scale *scale, int32_t s,
                         int64_t new_row, int32_t kv_head, const attn_tensor *image, int64_t slot)
{
    int64_t index[] = {new_row, kv_head};
    const char *vector = reference_element(from, index, 2);
    char *to = reference_slot_vector(call, image, slot, kv_head);
    float before = reference_scale(call, given, s, 0, kv_head);
    float factor = reference_scale(call, scale, s, slot, kv_head);
    for (int64_t d = 0; d < from->shape[2]; d++)
        dtype_quantise(image->dtype, to, d, (float)dtype_dequantise(from->dtype, vector, d, before),
                       factor);
}

static attn_status store_sequence(const reference_call *call, const reference_sequence *sequence,
                                  const attn_tensor *k_image, const attn_tensor *v_image,
                                  attn_error *error)
{
    for (int64_t n = 0; n < sequence->num_new; n++) {
        int64_t row = sequence->first_new_row + n, slot = reference_new_slot(call, row);
        if (slot < 0) /* not written */
            continue;
        if (slot >= call->num_slots)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "out_cache_loc of new key %lld is %lld: accepted -1..%lld",
                             (long long)row, (long long)slot, (long long)call->num_slots - 1);
        if (call->c_kv)
            reference_mla_store(call, row, k_image, slot);
        for (int32_t h = 0; h < call->kv_heads && !call->latent_cache; h++) {
            store_vector(call, call->k, call->new_k_scale, call->k_scale, sequence->index, row, h,
                         k_image, slot);
            store_vector(call, call->v, call->new_v_scale, call->v_scale, sequence->index, row, h,
                         v_image, slot);
        }
    }
    return ATTN_OK;
}

static attn_status check_image(const attn_tensor *cache, const attn_tensor *image, const char *name,
                               attn_error *error)
{
    if (image && image->ndim == cache->ndim && image->dtype == cache->dtype &&
        memcmp(image->shape, cache->shape, cache->ndim * sizeof cache->shape[0]) == 0)
        return ATTN_OK;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "the image of %s differs from it in shape or dtype", name);
}

attn_status reference_expected_kv(const attn_problem *problem, const attn_batch *batch,
                                  int32_t layer_id, const attn_forward_args *args,
                                  const attn_tensor *k_image, const attn_tensor *v_image,
                                  attn_error *error)
{
    if (batch->mode == ATTN_MODE_IDLE || problem->group->attn_type == ATTN_TYPE_ENCODER_ONLY)
        return ATTN_OK;
    reference_call call;
    attn_status status = reference_call_init(&call, problem, batch, layer_id, args, NULL, error);
    if (status == ATTN_OK && call.latent_cache)
        status = check_image(call.latent_cache, k_image, "latent_cache", error);
    if (status == ATTN_OK && call.k_cache)
        status = check_image(call.k_cache, k_image, "k_cache", error);
    if (status == ATTN_OK && call.v_cache)
        status = check_image(call.v_cache, v_image, "v_cache", error);
    if (status != ATTN_OK || !call.save_kv)
        return status;
    for (int32_t s = 0; s < reference_num_real_seqs(batch) && status == ATTN_OK; s++) {
        reference_sequence sequence;
        status = reference_sequence_init(&sequence, &call, s, error);
        if (status == ATTN_OK)
            status = store_sequence(&call, &sequence, k_image, v_image, error);
    }
    return status;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Bytes of one vector that differ; *first = the element of the first one. */
static int64_t differing_bytes(const char *a, const char *b, int64_t count, uint32_t element_size,
                               int64_t *first)
{
    int64_t differing = 0;
    for (int64_t n = 0; n < count * (int64_t)element_size; n++) {
        if (a[n] == b[n])
            continue;
        if (differing++ == 0)
            *first = n / (int64_t)element_size;
    }
    return differing;
}

int64_t reference_compare_kv(const attn_problem *problem, const attn_tensor *cache,
                             const attn_tensor *image, int64_t place[4])
{
    int hnd = strcmp(problem->kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int has_heads = cache->ndim == 4; /* a latent has none; labels in e4m3 are a page's bytes */
    int64_t differing = 0, first = 0, dim = cache->shape[cache->ndim - 1];
    for (int64_t page = 0; page < cache->shape[0]; page++)
        for (int64_t i = 0; i < (cache->ndim > 2 ? cache->shape[1] : 1); i++)
            for (int64_t j = 0; j < (has_heads ? cache->shape[2] : 1); j++) {
                int64_t index[] = {page, i, j};
                int64_t bytes = differing_bytes(reference_element(cache, index, cache->ndim - 1),
                                                reference_element(image, index, cache->ndim - 1),
                                                dim, attn_dtype_size(cache->dtype), &first);
                if (bytes > 0 && differing == 0 && place)
                    memcpy(place, (int64_t[4]){page, hnd ? j : i, hnd ? i : j, first},
                           4 * sizeof place[0]);
                differing += bytes;
            }
    return differing;
}
