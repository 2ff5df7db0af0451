/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.c: the arrays of a worker, laid out in one block of memory.
 */
#include "scratch.h"

static int64_t panels(int64_t n)
{
    return (n + PANEL - 1) / PANEL * PANEL;
}

static float *take(float *memory, int64_t *used, int64_t count)
{
    float *taken = memory ? memory + *used : NULL;
    *used += panels(count);
    return taken;
}

int64_t linear_scratch_init(linear_scratch *s, const linear_group *group, float *memory)
{
    int64_t used = 0, k = panels(group->k_dim), v = panels(group->v_dim), wide = k > v ? k : v;
    s->k_stride = k;
    s->v_stride = v;
    s->log_decay = 0;
    s->whole_low = 0;
    s->inputs = take(memory, &used, (MAX_WIDTH - 1 + CHUNK) * wide);
    s->weights = take(memory, &used, (1 + MAX_WIDTH) * wide);
    s->state_inputs = take(memory, &used, (MAX_WIDTH - 1) * wide);
    s->v = take(memory, &used, CHUNK * v);
    s->out = take(memory, &used, CHUNK * v);
    if (group->family == ATTN_LINEAR_SHORT_CONV)
        return used;
    s->q = take(memory, &used, CHUNK * k);
    s->k = take(memory, &used, CHUNK * k);
    s->k_transposed = take(memory, &used, k * CHUNK);
    s->qk = take(memory, &used, CHUNK * CHUNK);
    s->kk = take(memory, &used, CHUNK * CHUNK);
    s->qk_decayed = take(memory, &used, CHUNK * CHUNK);
    s->kk_decayed = take(memory, &used, CHUNK * CHUNK);
    s->q_decayed = take(memory, &used, CHUNK * k);
    s->k_decayed = take(memory, &used, CHUNK * k);
    s->k_to_end = take(memory, &used, CHUNK * k);
    s->decay = take(memory, &used, group->vector ? CHUNK * k : CHUNK);
    s->beta = take(memory, &used, CHUNK);
    s->whole = take(memory, &used, k);
    s->states = take(memory, &used, HEAD_BLOCK * group->k_dim * v);
    return used;
}

int64_t linear_scratch_floats(const linear_group *group)
{
    linear_scratch scratch;
    return linear_scratch_init(&scratch, group, NULL);
}
