/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c: rows of recurrences, replayed and judged.
 *
 * The work is cut into (sequence, group of v heads) pieces. A piece goes through the rows some at a
 * time: it makes the operands of its heads, lets the oracle go on by them, and judges the rows that
 * are sampled. Verdicts are gathered when all pieces are done, in the order of rows and heads.
 */
#include "host/verify/linear.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/interrupt.h"
#include "host/workload/generator_linear.h"
#include "host/verify/state_history.h"
#include "host/verify/linear_kept.h"
#include "host/verify/method.h"
#include "host/verify/row.h"

#define DEFAULT_MAX_KEPT_BYTES (UINT64_C(1) << 30)

/* Rows that are made and replayed at a time. */
enum { ROWS = 32 };

/* What one thread computes in. */
struct worker_memory {
    reference_scratch scratch;
    uint8_t *memory;
    uint64_t bytes;
};

/* A layer as the oracle wants it; made when it is first checked. */
struct layer_entry {
    reference_linear_layer layer;
    double *constants; /* NULL = not made yet */
};

struct linear_verifier {
    struct linear_verifier_params params;
    struct layer_entry *layers; /* [model.num_layers] */
    uint32_t num_workers;
    struct worker_memory *workers; /* [num_workers] */
    struct kept_replays kept;
    int64_t rows_replayed;
};

/* A sequence's share of the work. */
struct job {
    const struct verify_sequence *sequence;
    struct kept_replay *replay;
    int64_t from, to; /* positions */
    int64_t branch;   /* rejected drafts: from `to` up to there, not part of the replay */
};

/* One call of linear_verifier_check, as its tasks see it. */
struct check {
    struct linear_verifier *verifier;
    const struct verify_step *step;
    const attn_layer_group *group;
    const reference_linear_layer *layer;
    const attn_tensor *out;
    int32_t layer_id;
    int64_t num_jobs;
    struct job *jobs;             /* [num_sequences]; of the round */
    struct row_verdict *verdicts; /* [sampled rows, v_heads]: heads of sampled rows */
};

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status linear_verifier_create(const struct linear_verifier_params *params,
                                   struct linear_verifier **verifier, attn_error *error)
{
    struct linear_verifier *made = calloc(1, sizeof *made);
    uint32_t num_workers = threads_num_workers(params->threads);
    if (made) {
        made->layers = calloc((size_t)params->model->num_layers + 1, sizeof *made->layers);
        made->workers = calloc(num_workers, sizeof *made->workers);
    }
    if (!made || !made->layers || !made->workers) {
        if (made) {
            free(made->layers);
            free(made->workers);
        }
        free(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "verification for %u threads",
                         num_workers);
    }
    made->params = *params;
    made->kept.max_bytes = params->max_kept_bytes ? params->max_kept_bytes : DEFAULT_MAX_KEPT_BYTES;
    made->num_workers = num_workers;
    for (uint32_t w = 0; w < num_workers; w++)
        reference_scratch_init(&made->workers[w].scratch);
    *verifier = made;
    return ATTN_OK;
}

void linear_verifier_destroy(struct linear_verifier *verifier)
{
    if (!verifier)
        return;
    kept_finish(&verifier->kept);
    for (uint32_t w = 0; w < verifier->num_workers; w++) {
        reference_scratch_finish(&verifier->workers[w].scratch);
        free(verifier->workers[w].memory);
    }
    for (uint32_t l = 0; l < verifier->params.model->num_layers; l++)
        free(verifier->layers[l].constants);
    free(verifier->workers);
    free(verifier->layers);
    free(verifier);
}

struct linear_verifier_stats linear_verifier_stats(const struct linear_verifier *verifier)
{
    return (struct linear_verifier_stats){.rows_replayed = verifier->rows_replayed,
                                          .kept_bytes = verifier->kept.bytes,
                                          .max_kept_bytes = verifier->kept.most_bytes};
}

/* ---- Constants ------------------------------------------------------------------------------- */

static bool is_given(const struct check *check, uint32_t role)
{
    bool conv_bias = check->verifier->params.model->conv_bias;
    return (generator_linear_given(check->group, conv_bias) & 1u << role) != 0;
}

/* A constant as doubles at *next; NULL if the layer is not given it. */
static const double *make_constant(const struct check *check, uint32_t role, float *floats,
                                   double **next)
{
    int64_t count = generator_linear_elements(check->group, role);
    const double *made = *next;
    if (!is_given(check, role))
        return NULL;
    generator_linear_constant(check->verifier->params.generator, check->group, check->layer_id,
                              role, floats);
    for (int64_t n = 0; n < count; n++)
        *(*next)++ = (double)floats[n];
    return made;
}

/* D: one for a head is one for each of its elements. */
static const double *make_skip(const struct check *check, float *floats, double **next)
{
    const attn_linear_dims *dims = check->group->linear;
    double *made = *next;
    if (!make_constant(check, ATTN_ROLE_D_SKIP, floats, next))
        return NULL;
    for (int32_t h = 0; h < dims->num_v_heads; h++)
        for (int32_t j = 0; j < dims->head_v_dim; j++)
            made[(int64_t)h * dims->head_v_dim + j] = (double)floats[h];
    *next = made + (int64_t)dims->num_v_heads * dims->head_v_dim;
    return made;
}

static attn_status make_layer(const struct check *check, struct layer_entry *entry,
                              attn_error *error)
{
    reference_linear_layer *layer = &entry->layer;
    attn_dtype dtype = check->verifier->params.model->dtype;
    attn_status status =
        reference_linear_layer_init(layer, check->group, dtype, check->out->dtype, error);
    if (status != ATTN_OK)
        return status;
    int64_t values = (int64_t)layer->dims.num_v_heads * layer->dims.head_v_dim;
    int64_t keys = (int64_t)layer->dims.num_v_heads * (layer->dims.head_k_dim + 1);
    int64_t most = (int64_t)layer->channels * (layer->dims.conv_width + 1) + values + keys;
    float *floats = malloc((size_t)most * sizeof *floats);
    double *next = entry->constants = malloc((size_t)most * sizeof *next);
    if (!floats || !next) {
        free(floats);
        free(next);
        entry->constants = NULL;
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "verification: no memory for constants");
    }
    layer->weight = make_constant(check, ATTN_ROLE_CONV_WEIGHT, floats, &next);
    layer->bias = make_constant(check, ATTN_ROLE_CONV_BIAS, floats, &next);
    layer->a_log = make_constant(check, ATTN_ROLE_A_LOG, floats, &next);
    layer->dt_bias = make_constant(check, ATTN_ROLE_DT_BIAS, floats, &next);
    layer->skip = make_skip(check, floats, &next);
    free(floats);
    return ATTN_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Where a piece of rows is made and judged, all in a worker's memory. */
struct piece {
    double *mixed, *a, *b, *z;     /* as reference_linear_rows; NULL = the layer is not given it */
    double *truth;                 /* [ROWS, heads, V] */
    double *actual;                /* [V] */
    reference_row_result *results; /* [ROWS, heads] */
    uint8_t wanted[ROWS];
};

/* Room for ROWS rows of an operand at *at; NULL if the layer is not given it. */
static double *operand_at(const struct check *check, uint32_t role, uint8_t *memory, uint64_t *at)
{
    double *operand = memory ? (double *)(void *)(memory + *at) : NULL;
    if (!is_given(check, role))
        return NULL;
    *at += (uint64_t)(ROWS * generator_linear_elements(check->group, role)) * sizeof(double);
    return operand;
}

/* Lay the piece out at `memory` (NULL = only count); returns the bytes it takes. */
static uint64_t lay_out(const struct check *check, uint8_t *memory, struct piece *piece)
{
    const attn_linear_dims *dims = check->group->linear;
    uint64_t heads = (uint64_t)kept_part_heads(dims), v_dim = (uint64_t)dims->head_v_dim, at = 0;
    piece->mixed = operand_at(check, ATTN_ROLE_MIXED_QKV, memory, &at);
    piece->a = operand_at(check, ATTN_ROLE_GATE_A, memory, &at);
    piece->b = operand_at(check, ATTN_ROLE_GATE_B, memory, &at);
    piece->z = operand_at(check, ATTN_ROLE_GATE_Z, memory, &at);
    uint64_t truth = at, actual = truth + ROWS * heads * v_dim * sizeof(double);
    uint64_t results = actual + v_dim * sizeof(double);
    if (memory) {
        piece->truth = (double *)(void *)(memory + truth);
        piece->actual = (double *)(void *)(memory + actual);
        piece->results = (reference_row_result *)(void *)(memory + results);
    }
    return results + ROWS * heads * sizeof *piece->results;
}

static attn_status reserve(struct worker_memory *worker, uint64_t bytes)
{
    if (bytes <= worker->bytes)
        return ATTN_OK;
    free(worker->memory);
    worker->memory = malloc(bytes);
    worker->bytes = worker->memory ? bytes : 0;
    return worker->memory ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
}

/* Elements [first, first + count) of a row operand, where they stand in a whole row. */
static void make_part(const struct check *check, token_key key, uint32_t role, double *row,
                      int64_t first, int64_t count)
{
    if (row)
        generator_linear_part(check->verifier->params.generator, check->group, check->layer_id, key,
                              role, ATTN_F64, first, count, row + first);
}

/* Operands of the replay's heads in the row at `position`, as row t of the piece. */
static void make_row(const struct check *check, const reference_linear_replay *replay,
                     const struct verify_sequence *sequence, int64_t position, int64_t t,
                     const struct piece *piece)
{
    const attn_linear_dims *dims = check->group->linear;
    int64_t heads = dims->num_v_heads, first = replay->first_head, count = replay->num_heads;
    int64_t keys = dims->family == ATTN_LINEAR_KDA ? dims->head_k_dim : 1, v = dims->head_v_dim;
    const struct workload *workload = check->verifier->params.workload;
    struct verify_token token =
        verify_token_of(workload, sequence, position - sequence->prefix_len);
    token_key key = workload_token_key(workload, token.request, token.position);
    for (int part = 0; part < 3; part++)
        make_part(check, key, ATTN_ROLE_MIXED_QKV, piece->mixed + t * check->layer->channels,
                  replay->channels.first[part], replay->channels.count[part]);
    make_part(check, key, ATTN_ROLE_GATE_A, piece->a ? piece->a + t * heads * keys : NULL,
              first * keys, count * keys);
    make_part(check, key, ATTN_ROLE_GATE_B, piece->b ? piece->b + t * heads : NULL, first, count);
    make_part(check, key, ATTN_ROLE_GATE_Z, piece->z ? piece->z + t * heads * v : NULL, first * v,
              count * v);
}

/* ---- Judging --------------------------------------------------------------------------------- */

/* Row t of the piece is the sampled row `sampled`. */
static void judge_row(const struct check *check, const struct verify_sequence *sequence,
                      const reference_linear_replay *replay, int64_t sampled, int64_t t,
                      const struct piece *piece)
{
    int32_t v_dim = check->group->linear->head_v_dim;
    int64_t row =
        check->step->compact ? sampled : sequence->first_row + check->step->sampled[sampled];
    for (int32_t h = 0; h < replay->num_heads; h++) {
        int64_t entry = t * replay->num_heads + h;
        int32_t head = replay->first_head + h;
        row_verdict_make(check->out, row, head, piece->truth + entry * v_dim, NULL, v_dim,
                         &piece->results[entry], piece->actual,
                         &check->verdicts[sampled * check->group->linear->num_v_heads + head]);
    }
}

/* ---- Replaying ------------------------------------------------------------------------------- */

/* Is the state loaded before the row at `position`, as it was stored after the one before? */
static int is_loaded(const struct job *job, int64_t position)
{
    return position > 0 && state_is_stored(job->sequence->stored, position - 1);
}

/* Rows of a piece: to where the state is loaded next, the end, or ROWS. */
static int64_t piece_length(const struct job *job, int64_t position, int64_t end)
{
    int64_t count = 1;
    while (count < ROWS && position + count < end && !is_loaded(job, position + count))
        count++;
    return count;
}

static attn_status replay_piece(const struct check *check, const struct job *job,
                                reference_linear_replay *replay, int64_t position, int64_t count,
                                struct piece *piece, reference_scratch *scratch)
{
    const struct verify_sequence *sequence = job->sequence;
    const int32_t *sampled = check->step->sampled + sequence->first_sampled;
    int64_t first = position - sequence->prefix_len; /* row of the step */
    reference_linear_rows rows = {count, piece->mixed, piece->a, piece->b, piece->z};
    if (is_loaded(job, position))
        reference_linear_replay_store(replay);
    memset(piece->wanted, 0, sizeof piece->wanted);
    for (int64_t t = 0; t < count; t++)
        make_row(check, replay, sequence, position + t, t, piece);
    for (int64_t s = 0; s < sequence->num_sampled; s++)
        if (sampled[s] >= first && sampled[s] < first + count)
            piece->wanted[sampled[s] - first] = 1;
    attn_status status = reference_linear_replay_advance(replay, &rows, piece->wanted, scratch,
                                                         piece->truth, piece->results, NULL);
    if (status != ATTN_OK)
        return status;
    for (int64_t s = 0; s < sequence->num_sampled; s++)
        if (sampled[s] >= first && sampled[s] < first + count)
            judge_row(check, sequence, replay, sequence->first_sampled + s, sampled[s] - first,
                      piece);
    return ATTN_OK;
}

static attn_status replay_rows(const struct check *check, const struct job *job,
                               reference_linear_replay *replay, int64_t from, int64_t to,
                               struct piece *piece, reference_scratch *scratch)
{
    attn_status status = ATTN_OK;
    for (int64_t position = from; position < to && status == ATTN_OK && !interrupt_seen();) {
        int64_t count = piece_length(job, position, to);
        status = replay_piece(check, job, replay, position, count, piece, scratch);
        position += count;
    }
    return status;
}

/* The rejected drafts, a chain that continues from the last row that stays. The replay remains at
 * that row. */
static attn_status replay_branch(const struct check *check, const struct job *job,
                                 const reference_linear_replay *replay, struct piece *piece,
                                 reference_scratch *scratch)
{
    reference_linear_replay branch;
    attn_status status = reference_linear_replay_copy(&branch, replay, NULL);
    if (status == ATTN_OK)
        status = replay_rows(check, job, &branch, job->to, job->branch, piece, scratch);
    reference_linear_replay_finish(&branch);
    return status;
}

/* Task: job * parts + part. */
static attn_status check_task(void *arg, int64_t task, uint32_t worker)
{
    const struct check *check = arg;
    struct worker_memory *memory = &check->verifier->workers[worker];
    int32_t num_parts = kept_num_parts(check->group->linear);
    const struct job *job = &check->jobs[task / num_parts];
    reference_linear_replay *replay = &job->replay->parts[task % num_parts];
    struct piece piece = {0};
    attn_status status = reserve(memory, lay_out(check, NULL, &piece));
    if (status != ATTN_OK)
        return status;
    lay_out(check, memory->memory, &piece);
    if (job->from == 0)
        reference_linear_replay_reset(replay);
    status = replay_rows(check, job, replay, job->from, job->to, &piece, &memory->scratch);
    if (status == ATTN_OK && job->branch > job->to)
        status = replay_branch(check, job, replay, &piece, &memory->scratch);
    return status;
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* Hash of the replay's stores before the row at `position`. A store after the row before that
 * comes when it goes on: nothing may go on from there. */
static uint64_t stores_before(const struct verify_sequence *sequence, int64_t position)
{
    return state_history_mix(sequence->stored, position - 1);
}

/* From where a sequence is replayed, and how far: through its last sampled row; where a sampled row
 * is rejected, through the last one that stays. It goes on from a state that was stored in other
 * places only from the first token. */
static void describe_job(const struct verify_step *step, const struct verify_sequence *sequence,
                         struct kept_replay *replay, struct job *job)
{
    int64_t least = INT64_MAX, end = 0, branch = 0;
    for (int64_t s = 0; s < sequence->num_sampled; s++) {
        int64_t t = step->sampled[sequence->first_sampled + s];
        bool rejected = verify_is_rejected(sequence, t);
        int64_t position = sequence->prefix_len + (rejected ? sequence->tree.committed : t);
        int64_t after = position + !rejected;
        least = position < least ? position : least;
        end = after > end ? after : end;
        if (rejected && sequence->prefix_len + t + 1 > branch)
            branch = sequence->prefix_len + t + 1;
    }
    int goes_on =
        replay->position <= least && replay->stores == stores_before(sequence, replay->position);
    *job = (struct job){.sequence = sequence,
                        .replay = replay,
                        .from = goes_on ? replay->position : 0,
                        .to = end,
                        .branch = branch};
}

/* As many sequences from `first` on as their states may be held of; *next is the one after. */
static attn_status collect_jobs(struct check *check, int64_t first, int64_t *next,
                                attn_error *error)
{
    struct kept_replays *kept = &check->verifier->kept;
    attn_status status = ATTN_OK;
    check->num_jobs = 0;
    kept_begin(kept);
    for (*next = first; *next < check->step->num_sequences && status == ATTN_OK; ++*next) {
        const struct verify_sequence *sequence = &check->step->sequences[*next];
        struct kept_replay *replay;
        if (sequence->num_sampled == 0)
            continue;
        status = kept_find(kept, sequence->request, check->layer_id, check->layer, &replay, error);
        if (status != ATTN_OK || !replay)
            break;
        describe_job(check->step, sequence, replay, &check->jobs[check->num_jobs++]);
    }
    return status;
}

static attn_status replay_sequences(struct check *check, attn_error *error)
{
    struct linear_verifier *verifier = check->verifier;
    int32_t num_parts = kept_num_parts(check->group->linear);
    attn_status status = ATTN_OK;
    for (int64_t next = 0; next < check->step->num_sequences && status == ATTN_OK;) {
        status = collect_jobs(check, next, &next, error);
        if (status != ATTN_OK)
            break;
        status =
            threads_for(verifier->params.threads, check->num_jobs * num_parts, check_task, check);
        if (status != ATTN_OK)
            host_fail(error, status, "verification of layer %d: %s", check->layer_id,
                      host_status_name(status));
        for (int64_t j = 0; j < check->num_jobs; j++) {
            const struct job *job = &check->jobs[j];
            job->replay->position = job->to;
            job->replay->stores = stores_before(job->sequence, job->to);
            verifier->rows_replayed += job->to - job->from;
            if (job->branch > job->to)
                verifier->rows_replayed += job->branch - job->to;
        }
    }
    if (status != ATTN_OK)
        kept_drop_round(&verifier->kept); /* their parts are at different positions */
    kept_end(&verifier->kept);
    return status;
}

/* ---- Results --------------------------------------------------------------------------------- */

static void add_row(const struct check *check, const struct verify_sequence *sequence,
                    int64_t sampled, struct verify_result *result)
{
    int32_t heads = check->group->linear->num_v_heads;
    int failed = 0;
    for (int32_t head = 0; head < heads; head++) {
        const struct row_verdict *found = &check->verdicts[sampled * heads + head];
        row_verdict_add_error(found, result);
        if (found->verdict.code == REFERENCE_PASS)
            continue;
        failed = 1;
        if (!result->first_failure[0])
            row_verdict_text(found, sequence, check->step->sampled[sampled], check->layer_id, head,
                             result->first_failure);
    }
    result->rows_failed += failed;
}

static void add_results(const struct check *check, struct verify_result *result)
{
    for (int64_t s = 0; s < check->step->num_sequences; s++) {
        const struct verify_sequence *sequence = &check->step->sequences[s];
        for (int64_t n = 0; n < sequence->num_sampled; n++)
            add_row(check, sequence, sequence->first_sampled + n, result);
    }
}

/* Entries that the list of sampled rows has. */
static int64_t count_sampled(const struct verify_step *step)
{
    int64_t count = 0;
    for (int64_t s = 0; s < step->num_sequences; s++) {
        const struct verify_sequence *sequence = &step->sequences[s];
        if (sequence->num_sampled > 0 && sequence->first_sampled + sequence->num_sampled > count)
            count = sequence->first_sampled + sequence->num_sampled;
    }
    return count;
}

attn_status linear_verifier_check(struct linear_verifier *verifier, const struct verify_step *step,
                                  int32_t layer, const attn_tensor *out,
                                  struct verify_result *result, attn_error *error)
{
    const struct model *model = verifier->params.model;
    struct layer_entry *entry = &verifier->layers[layer];
    struct check check = {.verifier = verifier,
                          .step = step,
                          .group = &model->groups[model->layers[layer].group],
                          .layer = &entry->layer,
                          .out = out,
                          .layer_id = layer};
    int64_t num_sampled = count_sampled(step);
    attn_status status = ATTN_OK;
    if (num_sampled == 0)
        return ATTN_OK;
    if (!entry->constants)
        status = make_layer(&check, entry, error);
    if (status != ATTN_OK)
        return status;
    entry->layer.out_dtype = out->dtype;
    size_t heads = (size_t)check.group->linear->num_v_heads;
    check.jobs = calloc((size_t)step->num_sequences, sizeof *check.jobs);
    check.verdicts = calloc((size_t)num_sampled * heads, sizeof *check.verdicts);
    if (!check.jobs || !check.verdicts)
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "verification of %lld rows",
                           (long long)num_sampled);
    if (status == ATTN_OK)
        status = replay_sequences(&check, error);
    if (status == ATTN_OK)
        add_results(&check, result);
    free(check.jobs);
    free(check.verdicts);
    return status;
}

/* ---- The method ------------------------------------------------------------------------------ */

static attn_status create(const struct verify_params *params, void **self, attn_error *error)
{
    const struct linear_verifier_params own = {
        .model = params->model,
        .workload = params->workload,
        .generator = params->generator,
        .threads = params->threads,
    };
    struct linear_verifier *made;
    attn_status status = linear_verifier_create(&own, &made, error);
    if (status == ATTN_OK)
        *self = made;
    return status;
}

static void destroy(void *self)
{
    linear_verifier_destroy(self);
}

static attn_status check_entries(void *self, struct verify_entry *entries, int64_t count,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int64_t e = 0; e < count && status == ATTN_OK; e++)
        status = linear_verifier_check(self, &entries[e].step, entries[e].layer, &entries[e].out,
                                       &entries[e].result, error);
    return status;
}

const struct verify_method verify_linear = {create, destroy, check_entries};
