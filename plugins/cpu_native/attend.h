/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.h: a worker's state during a unit of work: private to attend.c and to the code of mla/
 * that replaces it. */
#ifndef CPU_NATIVE_ATTEND_H
#define CPU_NATIVE_ATTEND_H

#include "cpu_native.h"
#include "plugins/cpu_native/mla/kernels.h"

/* A worker's part of the scratch. memory.c knows its size. */
typedef struct worker_scratch {
    row_block block; /* of the split at hand; its acc lies in the partial results where it stays */
    float *out;      /* [rows][value_stride] of all splits so far, and their max and sum */
    float *out_max;
    float *out_sum;
    float *key_panels;
    float *value_panels;
    float *temp;          /* [16 * MAX_DIM] */
    float *key_positions; /* [TILE_KEYS] */
    /* Of the tile at hand; while values are added up, keys are those of the next one. */
    tile_source keys;
    tile_source *values;
    tile_source *next_values;
    tile_source value_sources[2];
    uint64_t *next_visible;
    latent_tile tile; /* absorbed: of `values`, in the place of panels */
    char *latents[2]; /* absorbed: [TILE_KEYS] new rows of the value sources, as in the cache */
} worker_scratch;

static inline void *take_bytes(char **next, size_t bytes)
{
    void *taken = *next;
    *next += (bytes + 63) / 64 * 64;
    return taken;
}

static inline float *take_floats(char **next, int64_t count)
{
    return take_bytes(next, (size_t)count * sizeof(float));
}

/* Row r of a unit under a KV head: which query of its sequence, which query head, and which row of
 * the operands. */
typedef struct row_place {
    int32_t query;
    int32_t head;
    int32_t row;
} row_place;

static inline row_place place_of(const layer_call *call, const work_unit *unit, int32_t kv_head,
                                 int32_t r)
{
    const int32_t ratio = call->group->ratio;
    const int64_t row = unit->row + r;
    const int32_t query = (int32_t)(row / ratio);
    return (row_place){.query = query,
                       .head = kv_head * ratio + (int32_t)(row % ratio),
                       .row = call->plan->sequences[unit->seq].first_row + query};
}

#endif /* CPU_NATIVE_ATTEND_H */
