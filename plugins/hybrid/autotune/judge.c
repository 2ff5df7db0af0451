/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c: correctness of candidates. The host's judge (attn_judge: the oracle and the pass rule)
 * checks row by row; this file chooses the rows: a sample of each candidate's, and those in which
 * two candidates differ most, since a fault of either is most likely there.
 */
#include "autotune.h"

#include <math.h>
#include <string.h>

/* Keys that are visited for a sample, and its rows at least. */
enum { MAX_KEYS = 1 << 17, MIN_SAMPLED = 8 };

const attn_judge *tune_find_judge(const attn_instance *instance)
{
    const attn_services *services = instance->children.services;
    if (!ATTN_HAS(services, attn_services, get_extension) || !services->get_extension)
        return NULL;
    const attn_judge *found = services->get_extension(services->ctx, ATTN_EXTENSION_JUDGE);
    return found && ATTN_HAS(found, attn_judge, judge) ? found : NULL;
}

/* ---- Which rows ------------------------------------------------------------------------------ */

static tune_row entry_at(const tune_view *view, int64_t entry)
{
    int64_t heads = view->group.num_q_heads;
    return (tune_row){.row = entry / heads, .head = (int32_t)(entry % heads)};
}

static int64_t count_entries(const tune_view *view)
{
    return (int64_t)view->batch.num_tokens * view->group.num_q_heads;
}

uint32_t tune_sample_rows(const tune_case *tune, tune_row rows[TUNE_MAX_SAMPLED])
{
    const tune_view *view = tune_case_view(tune);
    int64_t entries = count_entries(view), count = MAX_KEYS / view->batch.max_kv_len;
    count = count > TUNE_MAX_SAMPLED ? TUNE_MAX_SAMPLED : count < MIN_SAMPLED ? MIN_SAMPLED : count;
    count = count > entries ? entries : count;
    for (int64_t i = 0; i < count; i++)
        rows[i] = entry_at(view, count > 1 ? i * (entries - 1) / (count - 1) : 0);
    return (uint32_t)count;
}

/* The largest difference of an entry; NaN counts as infinite. */
static double distance(const tune_view *view, int64_t entry)
{
    uint64_t dim = (uint64_t)view->group.v_head_dim, first = (uint64_t)entry * dim;
    attn_dtype dtype = view->problem.out_dtype;
    double most = 0;
    for (uint64_t i = first; i < first + dim; i++) {
        double apart = fabs(tune_number(view->out, i, dtype) - tune_number(view->kept, i, dtype));
        if (isnan(apart))
            return INFINITY;
        most = apart > most ? apart : most;
    }
    return most;
}

uint32_t tune_find_farthest(const tune_case *tune, tune_row rows[TUNE_FARTHEST])
{
    const tune_view *view = tune_case_view(tune);
    double apart[TUNE_FARTHEST];
    uint32_t count = 0;
    for (int64_t entry = 0; entry < count_entries(view); entry++) {
        double far = distance(view, entry);
        uint32_t at = count < TUNE_FARTHEST ? count++ : TUNE_FARTHEST;
        for (; at > 0 && far > apart[at - 1]; at--)
            if (at < TUNE_FARTHEST) {
                apart[at] = apart[at - 1];
                rows[at] = rows[at - 1];
            }
        if (at < TUNE_FARTHEST) {
            apart[at] = far;
            rows[at] = entry_at(view, entry);
        }
    }
    return count;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* Does the candidate read new keys as they are given, in batches of this mode? */
static uint32_t reads_new_unquantised(const tune_view *view, uint32_t candidate)
{
    const attn_services *services = view->instance->children.services;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    attn_status status = services->child_query(services->ctx, view->instance->child[candidate].name,
                                               &view->problem, &verdict, NULL);
    return status == ATTN_OK && verdict.supported ? verdict.reads_new_kv_unquantised : 0;
}

struct question {
    const tune_view *view;
    const attn_judge *judge;
    attn_forward_args args;
    uint32_t reads_new_unquantised;
    tune_row *rows;
    attn_error *error; /* of the first row: all have the same reason */
};

static attn_status ask(void *arg, int64_t task, uint32_t worker)
{
    const struct question *question = arg;
    tune_row *row = &question->rows[task];
    (void)worker;
    return question->judge->judge(&question->view->problem, &question->view->batch,
                                  question->view->layer.layer_id, &question->args,
                                  question->reads_new_unquantised, row->row, row->head, &row->off,
                                  task == 0 ? question->error : NULL);
}

attn_status tune_judge(tune_case *tune, uint32_t candidate, int kept, tune_row *rows,
                       uint32_t count, const tune_row **worst, attn_error *error)
{
    const tune_view *view = tune_case_view(tune);
    const attn_services *services = view->instance->children.services;
    attn_tensor out = view->tensors[ATTN_ROLE_OUT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    struct question question = {.view = view,
                                .judge = tune_find_judge(view->instance),
                                .args = view->args,
                                .reads_new_unquantised = reads_new_unquantised(view, candidate),
                                .rows = rows,
                                .error = error};
    memcpy(operands, view->operands, sizeof operands);
    memcpy(&out.data, kept ? &view->kept : &view->out, sizeof out.data);
    operands[ATTN_ROLE_OUT] = &out;
    question.args.operands = operands;
    attn_status status = services->parallel_for(services->ctx, count, ask, &question);
    *worst = rows;
    for (uint32_t r = 1; r < count && status == ATTN_OK; r++)
        if (rows[r].off > (*worst)->off)
            *worst = &rows[r];
    return status;
}
