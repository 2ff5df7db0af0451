/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.c: a tile of latents, in place of the panels of keys and values of softmax attention. */
#include "mla.h"

void mla_lay_out(const cpu_group *group, char **next, worker_scratch *w)
{
    w->tile = (latent_tile){
        .lora = group->mla.lora,
        .dim = group->dim,
        .row_bytes = mla_row_bytes(group),
        .piece = take_floats(next, TILE_KEYS * LATENT_PIECE),
        .codes = take_bytes(next, sizeof(uint16_t) * TILE_KEYS * LATENT_SCALED),
        .scales = take_floats(next, TILE_KEYS),
    };
    for (int i = 0; i < 2; i++)
        w->latents[i] = take_bytes(next, (size_t)TILE_KEYS * (size_t)w->tile.row_bytes);
}

/* q_nope and q_pe of the rows, side by side and packed. */
void mla_load_queries(const layer_call *call, const work_unit *unit, const worker_scratch *w)
{
    const cpu_kernels *kernels = call->instance->kernels;
    const int32_t lora = call->group->mla.lora;
    row_format nope = {.dtype = call->group->q_dtype, .decode = call->group->decode_q}, pe = nope;
    if (call->q_scales) {
        nope.scale = call->q_scales[0];
        pe.scale = call->mla.q_pe_scales[0];
    }
    for (int32_t r = 0; r < panel_round(unit->rows); r += 8) {
        int count = 0;
        for (; count < 8 && r + count < unit->rows; count++) {
            row_place place = place_of(call, unit, 0, r + count);
            float *query = w->temp + (int64_t)count * MAX_DIM;
            kernels->convert(new_row(call->q, place.row, place.head), &nope, lora, query);
            kernels->convert(new_row(call->mla.q_pe, place.row, place.head), &pe,
                             call->group->mla.rope, query + lora);
        }
        if (call->group->mla.bf16)
            kernels->latents->pack_queries_bf16(&w->block, r, count, w->temp);
        else
            kernels->latents->pack_queries(&w->block, r, count, w->temp);
    }
}

const char *mla_keep_row(const layer_call *call, int64_t row, int key, worker_scratch *w)
{
    char *rows = w->latents[w->next_values - w->value_sources];
    char *to = rows + (int64_t)key * w->tile.row_bytes;
    mla_store_row(call, row, to);
    return to;
}

void mla_score_tile(const layer_call *call, worker_scratch *w)
{
    const latent_kernels *kernels = call->instance->kernels->latents;
    uint64_t seen = 0;
    for (int32_t r = 0; r < w->block.rows; r++)
        seen |= w->block.visible[r];
    w->tile.hidden = 0;
    for (int32_t r = 0; r < w->block.rows; r++)
        w->tile.hidden |= w->block.visible[r] != seen;
    w->tile.source = w->values;
    w->tile.first = __builtin_ctzll(seen) / LATENT_KEYS * LATENT_KEYS;
    w->tile.end = (63 - __builtin_clzll(seen)) / LATENT_KEYS * LATENT_KEYS + LATENT_KEYS;
    if (call->group->mla.bf16)
        kernels->score_bf16(&w->block, &w->tile);
    else
        kernels->score(&w->block, &w->tile);
    kernels->softmax(&w->block, &w->tile, &call->group->rule, w->key_positions);
}

void mla_add_tile(const layer_call *call, int more, worker_scratch *w)
{
    const latent_kernels *kernels = call->instance->kernels->latents;
    (call->group->mla.rounded ? kernels->accumulate_bf16
                              : kernels->accumulate)(&w->block, &w->tile, more ? &w->keys : NULL);
}
