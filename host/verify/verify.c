/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c: passes each layer's rows to the method of its kind, and collects the results.
 */
#include "host/verify/verify.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/interrupt.h"
#include "host/kinds/kinds.h"
#include "host/verify/method.h"

/* Bytes that wait to be judged, at most, those of the last batch aside. */
#define MOST_HANDED_OVER (UINT64_C(16) << 20)

static const struct verify_method *const methods[KIND_JUDGED_COUNT] = {
    [KIND_JUDGED_AS_ATTENTION] = &verify_attention,
    [KIND_JUDGED_AS_RECURRENCE] = &verify_linear,
};

/* Rows of some layers, which are judged together. Each entry has a block of memory of its own. */
struct batch {
    struct batch *next; /* handed over after it */
    struct verify_entry *entries;
    int64_t count, room;
    uint64_t bytes; /* of the blocks */
};

/* Work for the thread that judges during the run. */
struct queue {
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the rest, and what is found in the verifier */
    pthread_cond_t changed;
    struct batch *first, *last;
    uint64_t bytes; /* of all */
    bool ends;
    attn_status status; /* the first that was not good; nothing is judged after it */
    host_error said;
};

struct verifier {
    const struct model *model;
    void *made[KIND_JUDGED_COUNT]; /* by the methods; NULL = no layer of the model needs it */
    struct verify_result result;
    double (*of_bar)[2]; /* [num_layers], the second of decode steps; negative = none judged */
    struct batch *batch; /* that is being added to; NULL = nothing was added */
    struct queue *queue; /* NULL = the caller judges */
    verify_failed failed;
    void *failed_ctx;
};

static attn_status start_queue(struct verifier *verifier, attn_error *error);
static void end_queue(struct queue *queue);

static void free_batch(struct batch *batch)
{
    for (int64_t e = 0; batch && e < batch->count; e++)
        free((void *)(uintptr_t)batch->entries[e].step.sequences);
    if (batch)
        free(batch->entries);
    free(batch);
}

attn_status verifier_create(const struct verify_params *params, struct verifier **verifier,
                            attn_error *error)
{
    const struct model *model = params->model;
    struct verifier *made = calloc(1, sizeof *made);
    attn_status status = ATTN_OK;
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for verification");
    made->model = model;
    made->of_bar = calloc(model->num_layers + 1u, sizeof *made->of_bar);
    if (!made->of_bar)
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for verification");
    for (uint32_t l = 0; made->of_bar && l < model->num_layers; l++)
        made->of_bar[l][0] = made->of_bar[l][1] = -1;
    for (uint32_t g = 0; g < model->num_groups && status == ATTN_OK; g++) {
        uint32_t judged = kind_of(&model->groups[g])->judged;
        if (!made->made[judged])
            status = methods[judged]->create(params, &made->made[judged], error);
    }
    made->failed = params->failed;
    made->failed_ctx = params->failed_ctx;
    if (status == ATTN_OK && params->concurrent)
        status = start_queue(made, error);
    if (status != ATTN_OK)
        verifier_destroy(made);
    else
        *verifier = made;
    return status;
}

void verifier_destroy(struct verifier *verifier)
{
    if (!verifier)
        return;
    end_queue(verifier->queue);
    free_batch(verifier->batch);
    for (uint32_t m = 0; m < KIND_JUDGED_COUNT; m++)
        if (verifier->made[m])
            methods[m]->destroy(verifier->made[m]);
    free(verifier->of_bar);
    free(verifier);
}

/* ---- What is added --------------------------------------------------------------------------- */

/* The copied part of a step: its sequences with sampled rows, the rows and, with `concurrent`,
 * their elements. */
struct sizes {
    int64_t sequences, sampled;
    uint64_t chosen;   /* bytes */
    uint64_t elements; /* likewise */
};

static struct sizes measure(const struct verify_step *step, const attn_tensor *out, bool concurrent)
{
    struct sizes sizes = {0};
    for (int64_t s = 0; s < step->num_sequences; s++) {
        sizes.sequences += step->sequences[s].num_sampled > 0;
        sizes.sampled += step->sequences[s].num_sampled;
    }
    if (step->chosen)
        sizes.chosen = (uint64_t)sizes.sampled * (uint64_t)step->most_chosen * sizeof *step->chosen;
    if (concurrent)
        sizes.elements = (uint64_t)(out->shape[0] * out->strides[0]) * attn_dtype_size(out->dtype);
    return sizes;
}

/* Into one block, which begins with the sequences; elements are no wider than a sampled row's
 * number. */
static attn_status copy_entry(struct verify_entry *entry, const struct sizes *sizes,
                              uint64_t *bytes, attn_error *error)
{
    const struct verify_sequence *from = entry->step.sequences;
    uint64_t of_sequences = (uint64_t)sizes->sequences * sizeof *from;
    uint64_t of_sampled = (uint64_t)sizes->sampled * sizeof *entry->step.sampled;
    struct verify_sequence *sequences =
        malloc(of_sequences + of_sampled + sizes->chosen + sizes->elements);
    if (!sequences)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "no memory for the verification of %lld rows", (long long)sizes->sampled);
    int32_t *sampled = (int32_t *)(sequences + sizes->sequences);
    int64_t count = 0;
    for (int64_t s = 0; s < entry->step.num_sequences; s++)
        if (from[s].num_sampled > 0)
            sequences[count++] = from[s];
    memcpy(sampled, entry->step.sampled, of_sampled);
    char *next = (char *)(sampled + sizes->sampled);
    if (sizes->chosen > 0) {
        memcpy(next, entry->step.chosen, sizes->chosen);
        entry->step.chosen = (const int32_t *)(const void *)next;
        next += sizes->chosen;
    }
    if (sizes->elements > 0) {
        memcpy(next, (const char *)entry->out.data + entry->out.byte_offset, sizes->elements);
        entry->out.data = next;
        entry->out.byte_offset = 0;
    }
    entry->step.num_sequences = count;
    entry->step.sequences = sequences;
    entry->step.sampled = sampled;
    *bytes += of_sequences + of_sampled + sizes->chosen + sizes->elements;
    return ATTN_OK;
}

/* Room for one more. */
static bool make_room(struct verifier *verifier)
{
    if (!verifier->batch)
        verifier->batch = calloc(1, sizeof *verifier->batch);
    struct batch *batch = verifier->batch;
    if (!batch || batch->count < batch->room)
        return batch != NULL;
    int64_t room = 2 * batch->room + 8;
    struct verify_entry *entries = realloc(batch->entries, (size_t)room * sizeof *entries);
    if (!entries)
        return false;
    batch->entries = entries;
    batch->room = room;
    return true;
}

attn_status verifier_add(struct verifier *verifier, const struct verify_step *step, int32_t layer,
                         const attn_tensor *out, attn_error *error)
{
    struct sizes sizes = measure(step, out, verifier->queue != NULL);
    if (sizes.sampled == 0)
        return ATTN_OK;
    if (!make_room(verifier))
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for verification");
    struct batch *batch = verifier->batch;
    struct verify_entry *entry = &batch->entries[batch->count];
    *entry = (struct verify_entry){.step = *step, .layer = layer, .out = *out};
    attn_status status = copy_entry(entry, &sizes, &batch->bytes, error);
    batch->count += status == ATTN_OK;
    return status;
}

/* ---- Judgement ------------------------------------------------------------------------------- */

static uint32_t judged_as(const struct verifier *verifier, int32_t layer)
{
    const struct model *model = verifier->model;
    return kind_of(&model->groups[model->layers[layer].group])->judged;
}

/* Methods stop after a signal, at any point of their work. */
static void note_unjudged(struct batch *batch, int64_t begin, int64_t end)
{
    for (int64_t e = begin; e < end && interrupt_seen(); e++)
        for (int64_t s = 0; s < batch->entries[e].step.num_sequences; s++)
            batch->entries[e].result.rows_unjudged +=
                batch->entries[e].step.sequences[s].num_sampled;
}

/* Those that follow each other and are of one method go to it together. */
static attn_status judge_entries(struct verifier *verifier, struct batch *batch, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int64_t begin = 0, end = 0; begin < batch->count && status == ATTN_OK; begin = end) {
        uint32_t judged = judged_as(verifier, batch->entries[begin].layer);
        while (end < batch->count && judged_as(verifier, batch->entries[end].layer) == judged)
            end++;
        if (!interrupt_seen())
            status = methods[judged]->check(verifier->made[judged], &batch->entries[begin],
                                            end - begin, error);
        note_unjudged(batch, begin, end);
    }
    return status;
}

static void add_result(struct verifier *verifier, const struct verify_entry *entry)
{
    struct verify_result *all = &verifier->result;
    double *worst = &verifier->of_bar[entry->layer][model_mode_decodes(entry->step.mode)];
    all->rows_failed += entry->result.rows_failed;
    all->rows_unjudged += entry->result.rows_unjudged;
    all->max_abs_error = fmax(all->max_abs_error, entry->result.max_abs_error);
    all->max_rel_error = fmax(all->max_rel_error, entry->result.max_rel_error);
    all->max_of_bar = fmax(all->max_of_bar, entry->result.max_of_bar);
    *worst = fmax(*worst, entry->result.max_of_bar);
    if (all->first_failure[0] || !entry->result.first_failure[0])
        return;
    memcpy(all->first_failure, entry->result.first_failure, sizeof all->first_failure);
    if (verifier->failed)
        verifier->failed(verifier->failed_ctx, all->first_failure);
}

static void add_results(struct verifier *verifier, const struct batch *batch)
{
    for (int64_t e = 0; e < batch->count; e++)
        add_result(verifier, &batch->entries[e]);
}

/* ---- The judging thread ---------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct verifier *verifier = arg;
    struct queue *queue = verifier->queue;
    pthread_mutex_lock(&queue->mutex);
    while (queue->first || !queue->ends) {
        struct batch *batch = queue->first;
        if (!batch) {
            pthread_cond_wait(&queue->changed, &queue->mutex);
            continue;
        }
        if (queue->status == ATTN_OK && !queue->ends) {
            pthread_mutex_unlock(&queue->mutex);
            attn_status status = judge_entries(verifier, batch, &queue->said.base);
            pthread_mutex_lock(&queue->mutex);
            queue->status = status;
            add_results(verifier, batch);
        }
        queue->first = batch->next;
        queue->bytes -= batch->bytes;
        free_batch(batch);
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static attn_status start_queue(struct verifier *verifier, attn_error *error)
{
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for verification");
    host_error_init(&queue->said);
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->changed, NULL);
    verifier->queue = queue;
    if (threads_start_one(&queue->thread, work, verifier))
        return ATTN_OK;
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
    verifier->queue = NULL;
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no thread for verification");
}

/* Rows that are not judged yet are dropped: the run is over. */
static void end_queue(struct queue *queue)
{
    if (!queue)
        return;
    pthread_mutex_lock(&queue->mutex);
    queue->ends = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
}

/* Wait until no more than so many bytes are handed over; none: until all is judged. */
static void wait_for(struct queue *queue, uint64_t bytes)
{
    while (queue->first && queue->bytes > bytes)
        pthread_cond_wait(&queue->changed, &queue->mutex);
}

static void hand_over(struct queue *queue, struct batch *batch)
{
    pthread_mutex_lock(&queue->mutex);
    wait_for(queue, MOST_HANDED_OVER);
    if (queue->first)
        queue->last->next = batch;
    else
        queue->first = batch;
    queue->last = batch;
    queue->bytes += batch->bytes;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
}

/* ---- To the caller --------------------------------------------------------------------------- */

attn_status verifier_judge(struct verifier *verifier, attn_error *error)
{
    struct batch *batch = verifier->batch;
    verifier->batch = NULL;
    if (!batch)
        return ATTN_OK;
    if (verifier->queue) {
        hand_over(verifier->queue, batch);
        return ATTN_OK;
    }
    attn_status status = judge_entries(verifier, batch, error);
    add_results(verifier, batch);
    free_batch(batch);
    return status;
}

attn_status verifier_wait(struct verifier *verifier, attn_error *error)
{
    struct queue *queue = verifier->queue;
    if (!queue)
        return ATTN_OK;
    pthread_mutex_lock(&queue->mutex);
    wait_for(queue, 0);
    attn_status status = queue->status;
    pthread_mutex_unlock(&queue->mutex);
    return status == ATTN_OK ? ATTN_OK
                             : host_fail(error, status, "%s", host_error_text(&queue->said));
}

double verifier_of_bar(const struct verifier *verifier, int32_t layer, bool decode)
{
    return verifier->of_bar[layer][decode];
}

void verifier_result(const struct verifier *verifier, struct verify_result *result)
{
    *result = verifier->result;
}
