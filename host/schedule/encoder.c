/* SPDX-License-Identifier: Apache-2.0
 *
 * encoder.c: the pool of what cross attention reads: an encoder's keys, as many for each request
 * that runs, from its start to its end.
 *
 * Nothing there grows, is shared or is passed, so a request takes all its pages at once, and no
 * other has to make room for them later.
 */
#include <assert.h>

#include "host/schedule/private.h"

int32_t scheduler_encoder_rows(const struct scheduler *scheduler)
{
    const struct scheduler_params *params = &scheduler->params;
    int32_t length = max_i32(params->encoder_len, params->cross_len);
    return length > 0 ? max_i32(length, params->chunked_prefill_size) : 0;
}

int32_t scheduler_encoder_starts(const struct scheduler *scheduler)
{
    int32_t length = scheduler->params.cross_len;
    return length > 0 ? scheduler_encoder_rows(scheduler) / length : INT32_MAX;
}

static struct pool *pool_of(struct scheduler *scheduler)
{
    return &scheduler->pools[SCHEDULER_ENCODER];
}

bool scheduler_encoder_has_room(const struct scheduler *scheduler)
{
    const struct slots *slots = &scheduler->pools[SCHEDULER_ENCODER].slots;
    int32_t length = scheduler->params.cross_len;
    return length == 0 || slots_pages(slots, length) <= slots->num_free;
}

void scheduler_encoder_take(struct scheduler *scheduler, const struct request *request)
{
    int32_t length = scheduler->params.cross_len;
    struct pool *pool = pool_of(scheduler);
    if (length == 0)
        return;
    int32_t row = request_table_acquire(&pool->table);
    bool done =
        slots_alloc_extend(&pool->slots, 0, length, 0, request_table_row(&pool->table, row));
    assert(row == request->row && done);
    (void)request, (void)done;
}

void scheduler_encoder_give_back(struct scheduler *scheduler, const struct request *request)
{
    int32_t length = scheduler->params.cross_len;
    struct pool *pool = pool_of(scheduler);
    if (length == 0)
        return;
    for (int32_t page = 0; page < slots_pages(&pool->slots, length); page++)
        slots_free_page(&pool->slots, page_at(scheduler, SCHEDULER_ENCODER, request, page));
    request_table_release(&pool->table, request->row, length);
}

void scheduler_encoder_emit(struct scheduler *scheduler, struct scheduler_seq *seq)
{
    struct scheduler_step *step = &scheduler->step;
    struct pool *pool = pool_of(scheduler);
    seq->encoder_len = scheduler->params.cross_len;
    seq->encoder_new = seq->prefix_len == 0 ? seq->encoder_len : 0;
    const int32_t *row = request_table_row(&pool->table, seq->row);
    for (int32_t i = 0; i < seq->encoder_new; i++)
        pool->out_cache_loc[step->num_encoder_new++] = row[i];
}
