/* SPDX-License-Identifier: Apache-2.0
 *
 * mla.c: latent attention. In the absorbed form a query is q_nope | q_pe, the one key of all heads
 * is a latent row c_kv | k_pe, and its value is c_kv. In the expanded form k and v are given, and
 * the latent cache is written at most.
 */
#include "host/reference/call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Operands -------------------------------------------------------------------------------- */

int reference_is_absorbed(const attn_problem *problem, uint32_t mode)
{
    const attn_layer_group *group = problem->group;
    if (group->kind == ATTN_KIND_SPARSE)
        return group->mla != NULL;
    return group->kind == ATTN_KIND_MLA && !(problem->mla_expanded & ATTN_MODE_BIT(mode));
}

attn_status reference_mla_check(const reference_call *call, attn_error *error)
{
    const attn_layer_group *group = call->group;
    const attn_mla_dims *mla = group->mla;
    if (!mla)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "a group of kind mla has no mla dimensions");
    if (mla->kv_lora_rank < 1 || mla->rope_dim < 0 || mla->nope_dim < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_lora_rank %d, rope_dim %d, nope_dim %d: accepted 1 and more; "
                         "rope_dim may be 0",
                         mla->kv_lora_rank, mla->rope_dim, mla->nope_dim);
    if (group->head_dim != mla->nope_dim + mla->rope_dim)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "head_dim %d: accepted nope_dim + rope_dim, %d", group->head_dim,
                         mla->nope_dim + mla->rope_dim);
    if (group->attn_type != ATTN_TYPE_DECODER)
        return host_fail(error, ATTN_UNSUPPORTED,
                         "latent attention of attn_type %u has no oracle: accepted %d",
                         group->attn_type, ATTN_TYPE_DECODER);
    return ATTN_OK;
}

/* New latent rows, `rows` of them, or any number for -1. */
static attn_status find_new_latents(reference_call *call, const attn_forward_args *args,
                                    int64_t rows, attn_error *error)
{
    attn_dtype dtype = attn_new_kv_dtype(call->problem);
    int64_t c_shape[] = {rows, call->group->mla->kv_lora_rank};
    call->c_kv = attn_operand(args, ATTN_ROLE_C_KV);
    call->k_pe = attn_operand(args, ATTN_ROLE_K_PE);
    attn_status status =
        reference_check_tensor(call->c_kv, ATTN_ROLE_C_KV, dtype, 2, c_shape, error);
    if (status != ATTN_OK)
        return status;
    int64_t pe_shape[] = {call->c_kv->shape[0], call->group->mla->rope_dim};
    return reference_check_tensor(call->k_pe, ATTN_ROLE_K_PE, dtype, 2, pe_shape, error);
}

/* q_nope and q_pe. */
static attn_status find_queries(reference_call *call, const attn_forward_args *args,
                                attn_error *error)
{
    const attn_mla_dims *mla = call->group->mla;
    attn_dtype dtype = call->problem->q_dtype;
    call->q = attn_operand(args, ATTN_ROLE_Q_NOPE);
    call->q_pe = attn_operand(args, ATTN_ROLE_Q_PE);
    int64_t nope_shape[] = {-1, call->group->num_q_heads, mla->kv_lora_rank};
    attn_status status =
        reference_check_tensor(call->q, ATTN_ROLE_Q_NOPE, dtype, 3, nope_shape, error);
    if (status != ATTN_OK)
        return status;
    call->num_rows = call->q->shape[0];
    int64_t pe_shape[] = {call->num_rows, call->group->num_q_heads, mla->rope_dim};
    return reference_check_tensor(call->q_pe, ATTN_ROLE_Q_PE, dtype, 3, pe_shape, error);
}

attn_status reference_mla_find_absorbed(reference_call *call, const attn_forward_args *args,
                                        attn_error *error)
{
    const attn_mla_dims *mla = call->group->mla;
    call->dim = mla->kv_lora_rank + mla->rope_dim;
    call->v_dim = mla->kv_lora_rank;
    call->kv_heads = 1;
    attn_status status = call->index_only ? ATTN_OK : find_queries(call, args, error);
    if (status != ATTN_OK)
        return status;
    if (!attn_operand(args, ATTN_ROLE_C_KV) && !attn_operand(args, ATTN_ROLE_K_PE))
        return ATTN_OK;
    status = find_new_latents(call, args, -1, error);
    if (status == ATTN_OK) {
        call->has_new = 1;
        call->num_new = call->c_kv->shape[0];
    }
    return status;
}

/* ---- Cache ----------------------------------------------------------------------------------- */

int32_t reference_mla_packed_bytes(const attn_mla_dims *mla)
{
    return mla->kv_lora_rank + mla->kv_lora_rank / REFERENCE_MLA_SCALED * (int32_t)sizeof(float) +
           2 * mla->rope_dim;
}

attn_status reference_mla_check_packed(const attn_mla_dims *mla, attn_dtype kv_dtype,
                                       attn_error *error)
{
    if (mla->kv_lora_rank % REFERENCE_MLA_SCALED != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_lora_rank %d in " ATTN_LAYOUT_MLA_LATENT_FP8
                         ": accepted multiples of %d",
                         mla->kv_lora_rank, REFERENCE_MLA_SCALED);
    if (kv_dtype != ATTN_FP8_E4M3)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_dtype %s in " ATTN_LAYOUT_MLA_LATENT_FP8 ": accepted %s",
                         dtype_name(kv_dtype), dtype_name(ATTN_FP8_E4M3));
    return ATTN_OK;
}

static attn_status find_latent_scale(reference_call *call, const attn_forward_args *args,
                                     attn_error *error)
{
    uint32_t granularity = call->group->kv_scale_granularity;
    uint32_t accepted = !call->packed && dtype_is_fp8(call->problem->kv_dtype)
                            ? ATTN_SCALE_PER_TENSOR
                            : ATTN_SCALE_NONE;
    if (granularity != accepted)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_scale_granularity %u of a latent cache: accepted %u", granularity,
                         accepted);
    if (accepted == ATTN_SCALE_NONE)
        return ATTN_OK;
    return reference_find_scale(&call->latent_scale, call, args, ATTN_ROLE_LATENT_CACHE, accepted,
                                error);
}

attn_status reference_mla_find_cache(reference_call *call, const attn_forward_args *args,
                                     attn_error *error)
{
    const attn_mla_dims *mla = call->group->mla;
    const char *layout = call->problem->kv_layout;
    attn_status status = ATTN_OK;
    if (call->expanded && !call->save_kv)
        return ATTN_OK;
    if (call->index_only && !call->c_kv) {
        call->num_slots = call->label_cache ? call->label_cache->shape[0] * call->problem->page_size
                                            : (int64_t)INT32_MAX + 1;
        return ATTN_OK;
    }
    if (call->expanded)
        status = find_new_latents(call, args, call->num_new, error);
    if (status != ATTN_OK)
        return status;
    if (!layout || (strcmp(layout, ATTN_LAYOUT_MLA_LATENT) != 0 &&
                    strcmp(layout, ATTN_LAYOUT_MLA_LATENT_FP8) != 0))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_layout %s: accepted " ATTN_LAYOUT_MLA_LATENT
                         ", " ATTN_LAYOUT_MLA_LATENT_FP8,
                         layout ? layout : "is missing");
    call->packed = strcmp(layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0;
    int64_t shape[] = {-1, call->problem->page_size,
                       call->packed ? reference_mla_packed_bytes(mla)
                                    : mla->kv_lora_rank + mla->rope_dim};
    if (call->packed)
        status = reference_mla_check_packed(mla, call->problem->kv_dtype, error);
    call->latent_cache = attn_operand(args, ATTN_ROLE_LATENT_CACHE);
    if (status == ATTN_OK)
        status = reference_check_tensor(call->latent_cache, ATTN_ROLE_LATENT_CACHE,
                                        call->packed ? ATTN_U8 : call->problem->kv_dtype, 3, shape,
                                        error);
    if (status != ATTN_OK)
        return status;
    call->num_slots = call->latent_cache->shape[0] * call->problem->page_size;
    return find_latent_scale(call, args, error);
}

static char *latent_row(const reference_call *call, const attn_tensor *cache, int64_t slot)
{
    int64_t index[] = {slot / call->problem->page_size, slot % call->problem->page_size};
    return reference_element(cache, index, 2);
}

/* ---- Storing --------------------------------------------------------------------------------- */

/* The scale of a block: the least power of two that brings its largest finite element into e4m3. */
static float scale_of(const double *x)
{
    float largest = 0;
    for (int32_t d = 0; d < REFERENCE_MLA_SCALED; d++) {
        float magnitude = fabsf((float)x[d]);
        if (magnitude > largest && !isinf(magnitude))
            largest = magnitude;
    }
    int exponent;
    double most = frexp((double)largest / dtype_largest(ATTN_FP8_E4M3), &exponent);
    exponent -= most <= 0.5; /* 2^(exponent - 1) itself */
    return largest > 0 && exponent > FLT_MIN_EXP - 1 ? (float)ldexp(1, exponent) : FLT_MIN;
}

void reference_mla_pack(const attn_mla_dims *mla, attn_dtype dtype, const void *c_kv,
                        const void *k_pe, void *row)
{
    int32_t lora = mla->kv_lora_rank, element = attn_dtype_size(dtype);
    char *scales = (char *)row + lora,
         *pe = scales + lora / REFERENCE_MLA_SCALED * (int32_t)sizeof(float);
    for (int64_t first = 0; first < lora; first += REFERENCE_MLA_SCALED) {
        double x[REFERENCE_MLA_SCALED];
        dtype_to_double(dtype, (const char *)c_kv + first * element, REFERENCE_MLA_SCALED, x);
        float scale = scale_of(x);
        memcpy(scales + first / REFERENCE_MLA_SCALED * (int64_t)sizeof scale, &scale, sizeof scale);
        float narrow[REFERENCE_MLA_SCALED];
        dtype_from_double(ATTN_F32, x, REFERENCE_MLA_SCALED, narrow);
        dtype_quantise_all(ATTN_FP8_E4M3, narrow, REFERENCE_MLA_SCALED, scale, (char *)row + first);
    }
    for (int32_t d = 0; d < mla->rope_dim; d++)
        dtype_store(ATTN_BF16, pe, d, dtype_load(dtype, k_pe, d));
}

void reference_mla_store(const reference_call *call, int64_t new_row, const attn_tensor *image,
                         int64_t slot)
{
    int32_t lora = call->group->mla->kv_lora_rank;
    char *to = latent_row(call, image, slot);
    int64_t index[] = {new_row, 0};
    const char *c_kv = reference_element(call->c_kv, index, 2);
    const char *k_pe = reference_element(call->k_pe, index, 2);
    if (call->packed) {
        reference_mla_pack(call->group->mla, call->c_kv->dtype, c_kv, k_pe, to);
        return;
    }
    float scale = reference_scale(call, call->latent_scale, 0, 0, 0);
    for (int32_t d = 0; d < lora + call->group->mla->rope_dim; d++) {
        double x = d < lora ? dtype_load(call->c_kv->dtype, c_kv, d)
                            : dtype_load(call->k_pe->dtype, k_pe, d - lora);
        dtype_quantise(image->dtype, to, d, (float)x, scale);
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* The first `count` elements of a new latent as a reader of the cache will find them. */
static void round_latent(const reference_call *call, int32_t count, double *x)
{
    int32_t lora = call->group->mla->kv_lora_rank;
    if (!call->packed) {
        float scale = reference_scale(call, call->latent_scale, 0, 0, 0);
        dtype_as_stored(call->problem->kv_dtype, x, count, scale);
        return;
    }
    for (int32_t d = 0; d < lora; d += REFERENCE_MLA_SCALED)
        dtype_as_stored(ATTN_FP8_E4M3, x + d, REFERENCE_MLA_SCALED, scale_of(x + d));
    dtype_as_stored(ATTN_BF16, x + lora, count - lora, 1);
}

static void read_new(const reference_call *call, int64_t row, int32_t count, double *x)
{
    int32_t lora = call->group->mla->kv_lora_rank;
    int64_t index[] = {row, 0};
    dtype_to_double(call->c_kv->dtype, reference_element(call->c_kv, index, 2), lora, x);
    dtype_to_double(call->k_pe->dtype, reference_element(call->k_pe, index, 2), count - lora,
                    x + lora);
    if (call->as_stored)
        round_latent(call, count, x);
}

void reference_mla_unpack(const attn_mla_dims *mla, const void *row, int32_t count, double *x)
{
    int32_t lora = mla->kv_lora_rank;
    const char *scales = (const char *)row + lora;
    const char *pe = scales + lora / REFERENCE_MLA_SCALED * (int32_t)sizeof(float);
    dtype_to_double(ATTN_FP8_E4M3, row, lora, x);
    for (int32_t part = 0; part < lora / REFERENCE_MLA_SCALED; part++) {
        float scale;
        memcpy(&scale, scales + part * (int32_t)sizeof scale, sizeof scale);
        for (int32_t d = part * REFERENCE_MLA_SCALED; d < (part + 1) * REFERENCE_MLA_SCALED; d++)
            x[d] *= (double)scale;
    }
    dtype_to_double(ATTN_BF16, pe, count - lora, x + lora);
}

void reference_mla_read(const reference_call *call, const reference_sequence *sequence, int64_t j,
                        int32_t count, double *x)
{
    int64_t first_new = sequence->kv_len - sequence->num_new;
    if (j >= first_new && call->c_kv) {
        read_new(call, sequence->first_new_row + j - first_new, count, x);
        return;
    }
    const char *from = latent_row(call, call->latent_cache, reference_slot(call, sequence, j));
    float scale = reference_scale(call, call->latent_scale, 0, 0, 0);
    if (call->packed) {
        reference_mla_unpack(call->group->mla, from, count, x);
        return;
    }
    dtype_dequantise_all(call->latent_cache->dtype, from, count, scale, x);
}

void reference_mla_query(const reference_call *call, int64_t row, int32_t head, double *query)
{
    int64_t index[] = {row, head};
    dtype_to_double(call->q->dtype, reference_element(call->q, index, 2), call->v_dim, query);
    dtype_to_double(call->q_pe->dtype, reference_element(call->q_pe, index, 2),
                    call->dim - call->v_dim, query + call->v_dim);
    if (!call->q_scale)
        return;
    const double nope = (double)reference_scale(call, call->q_scale, 0, 0, 0);
    const double pe = (double)reference_scale(call, call->q_pe_scale, 0, 0, 0);
    for (int32_t d = 0; d < call->dim; d++)
        query[d] *= d < call->v_dim ? nope : pe;
}
