/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_latent.c: the parts specific to cases of latent attention: the form, rows of the
 * latent cache, and the latents that expanded keys were expanded from.
 */
#include "host/check/cases/forward_case_private.h"

#include "host/base/dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Specs ----------------------------------------------------------------------------------- */

bool case_is_packed(const struct case_spec *spec)
{
    return spec->kv_layout && strcmp(spec->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0;
}

void case_spec_set_form(struct case_spec *spec, bool expanded)
{
    struct case_latent *latent = &spec->latent;
    latent->expanded = expanded;
    spec->num_kv_heads = expanded ? spec->num_q_heads : 1;
    spec->head_dim = (expanded ? latent->nope_dim : latent->kv_lora_rank) + latent->rope_dim;
    spec->v_head_dim = expanded ? latent->v_dim : latent->kv_lora_rank;
}

const char *case_latent_defect(const struct case_spec *spec)
{
    const struct case_latent *latent = &spec->latent;
    struct case_spec formed = *spec;
    if (latent->kv_lora_rank == 0)
        return NULL;
    case_spec_set_form(&formed, latent->expanded);
    if (latent->rope_dim < 0 || latent->nope_dim < 1 || latent->v_dim < 1 ||
        spec->num_kv_heads != formed.num_kv_heads || spec->head_dim != formed.head_dim ||
        spec->v_head_dim != formed.v_head_dim)
        return "latent";
    if (spec->attn_type != ATTN_TYPE_DECODER)
        return "attn_type";
    if (case_is_packed(spec) &&
        (latent->kv_lora_rank % 128 != 0 || spec->kv_dtype != ATTN_FP8_E4M3))
        return "kv_layout";
    if (spec->scale_granularity > ATTN_SCALE_PER_TENSOR)
        return "scale_granularity";
    if (latent->expanded && spec->from_cache)
        return "from_cache";
    if (latent->expanded && spec->read_only_layer)
        return "read_only_layer";
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++)
        if (spec->sequences[s].chunk_end < 0 ||
            (latent->expanded && spec->partial &&
             spec->sequences[s].num_new_keys > spec->sequences[s].chunk_end))
            return "sequences";
    return NULL;
}

void case_latent_pose(struct spec_problem *posed, const struct case_spec *spec)
{
    const struct case_latent *latent = &spec->latent;
    attn_layer_group *group = &posed->group;
    posed->mla = (attn_mla_dims){.struct_size = sizeof posed->mla,
                                 .kv_lora_rank = latent->kv_lora_rank,
                                 .rope_dim = latent->rope_dim,
                                 .nope_dim = latent->nope_dim};
    group->kind = ATTN_KIND_MLA;
    group->mla = &posed->mla;
    group->num_kv_heads = spec->num_q_heads; /* of k and v, whichever form is used */
    group->head_dim = latent->nope_dim + latent->rope_dim;
    group->v_head_dim = latent->v_dim;
    if (spec->sm_scale == 0)
        group->sm_scale = 1 / sqrtf((float)group->head_dim);
    posed->problem.mla_expanded = latent->expanded ? ATTN_MODE_BIT(spec->mode) : 0;
}

int32_t case_latent_width(const struct case_spec *spec)
{
    const attn_mla_dims mla = {.struct_size = sizeof mla,
                               .kv_lora_rank = spec->latent.kv_lora_rank,
                               .rope_dim = spec->latent.rope_dim};
    return case_is_packed(spec) ? reference_mla_packed_bytes(&mla)
                                : mla.kv_lora_rank + mla.rope_dim;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

float *case_latent_of(const struct forward_case *c, int32_t s, int32_t j)
{
    const struct case_latent *latent = &c->spec.latent;
    float *first = case_is_absorbed(&c->spec) ? c->tokens->k : c->tokens->latents;
    return first + case_key_token(c, s, j) * (latent->kv_lora_rank + latent->rope_dim);
}

void case_latent_make(struct forward_case *c)
{
    int32_t width = c->spec.latent.kv_lora_rank + c->spec.latent.rope_dim;
    attn_dtype dtype = attn_new_kv_dtype(&c->posed.problem);
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
        for (int32_t j = 0; j < c->lengths.kv_len[s]; j++) {
            uint64_t stream = case_stream(c->seed, DRAW_LATENT, (uint64_t)s, (uint64_t)j, 0);
            float *latent = case_latent_of(c, s, j);
            for (int32_t d = 0; d < width; d++)
                latent[d] = case_unit(stream, (uint64_t)d);
            dtype_round_floats(dtype, latent, width);
        }
}

/* ---- Placing --------------------------------------------------------------------------------- */

/* Scales of another writer, that of vLLM and SGLang: the largest magnitude of a block / 448. */
static void rescale(int32_t lora, const float *latent, char *row)
{
    for (int32_t first = 0; first < lora; first += REFERENCE_MLA_SCALED) {
        float scale = 0;
        for (int32_t d = first; d < first + REFERENCE_MLA_SCALED; d++)
            if (isfinite(latent[d]))
                scale = fmaxf(scale, fabsf(latent[d]) / 448);
        scale = fmaxf(scale, FLT_MIN);
        memcpy(row + lora + first / REFERENCE_MLA_SCALED * (int32_t)sizeof scale, &scale,
               sizeof scale);
        dtype_quantise_all(ATTN_FP8_E4M3, latent + first, REFERENCE_MLA_SCALED, scale, row + first);
    }
}

/* The writer of a packed latent: a backend, another writer, or either. */
static bool is_foreign(const struct forward_case *c, const float *latent)
{
    const uint64_t writer = draw_at(case_stream(c->seed, DRAW_LATENT, 0, 0, 3), 0, 3);
    return writer == 2 ? latent[0] > 0 : writer;
}

static void put_cached(struct forward_case *c, int64_t slot, const float *latent)
{
    const float *scale = case_part(c, PART_LATENT_SCALE);
    char *to = case_slot_vector(c, c->image, PART_LATENT_CACHE, slot, 0);
    int32_t lora = c->spec.latent.kv_lora_rank, rope = c->spec.latent.rope_dim;
    if (case_is_packed(&c->spec)) {
        reference_mla_pack(&c->posed.mla, ATTN_F32, latent, latent + lora, to);
        if (is_foreign(c, latent))
            rescale(lora, latent, to);
    } else
        dtype_quantise_all(c->spec.kv_dtype, latent, lora + rope, scale ? *scale : 1, to);
}

void case_latent_put(struct forward_case *c, int64_t row, int64_t slot, const float *latent)
{
    int32_t lora = c->spec.latent.kv_lora_rank;
    attn_dtype dtype = attn_new_kv_dtype(&c->posed.problem);
    if (row < 0) {
        put_cached(c, slot, latent);
        return;
    }
    dtype_from_float(dtype, latent, lora, case_vector(c, c->image, PART_C_KV, row, 0, 0));
    dtype_from_float(dtype, latent + lora, c->spec.latent.rope_dim,
                     case_vector(c, c->image, PART_K_PE, row, 0, 0));
}

void case_latent_fill_scale(struct forward_case *c)
{
    uint64_t stream = case_stream(c->seed, DRAW_LATENT, 0, 0, 1);
    float *scale = case_part(c, PART_LATENT_SCALE);
    if (scale)
        *scale = c->spec.special_values ? 0x1p-4f : 0.02f + 0.01f * (float)draw_at(stream, 0, 10);
    if (scale && c->spec.key_size > 0) /* no larger than it has to be */
        *scale = c->spec.key_size * (0.009f + 0.05f * *scale);
}

/* ---- Judging --------------------------------------------------------------------------------- */

void case_allow_nan(attn_dtype dtype, int32_t at, int32_t count, char *expected, const char *actual)
{
    uint32_t size = attn_dtype_size(dtype);
    expected += at;
    actual += at;
    for (int32_t d = 0; d < count; d++)
        if (isnan(dtype_load(dtype, expected, d)) && isnan(dtype_load(dtype, actual, d)))
            memcpy(expected + (uint32_t)d * size, actual + (uint32_t)d * size, size);
}

void case_latent_allow_nan(const struct case_spec *spec, char *expected, const char *actual)
{
    int32_t lora = spec->latent.kv_lora_rank, rope = spec->latent.rope_dim;
    if (!case_is_packed(spec)) {
        case_allow_nan(spec->kv_dtype, 0, lora + rope, expected, actual);
        return;
    }
    case_allow_nan(ATTN_FP8_E4M3, 0, lora, expected, actual);
    case_allow_nan(ATTN_BF16, case_latent_width(spec) - 2 * rope, rope, expected, actual);
}
