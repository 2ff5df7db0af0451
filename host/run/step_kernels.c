/* SPDX-License-Identifier: Apache-2.0
 *
 * step_kernels.c: the host's computations in a step, on the CPU; on CUDA it calls
 * step_kernels_cuda.c.
 */
#include "host/run/step_kernels_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/operand_roles.h"
#include "host/base/round.h"
#include "host/kinds/kinds.h"

#define ROWS_PER_TASK 64

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status step_kernels_create(const struct device *device, const struct generator *generator,
                                const struct workload *workload, struct threads *threads,
                                struct step_kernels **kernels, attn_error *error)
{
    struct step_kernels *made = calloc(1, sizeof *made);
    attn_status status = ATTN_OK;
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the host's kernels");
    made->device = device;
    made->generator = generator;
    made->workload = workload;
    made->threads = threads;
    if (device->type != ATTN_DEVICE_CPU)
        status = step_cuda_create(device, workload, &made->cuda, error);
    if (status != ATTN_OK)
        free(made);
    else
        *kernels = made;
    return status;
}

void step_kernels_destroy(struct step_kernels *kernels)
{
    if (!kernels)
        return;
    step_cuda_destroy(kernels->device, kernels->cuda);
    free(kernels);
}

/* Of which types outputs may be, and vectors other than index queries in e4m3. */
static attn_status check_dtype(attn_dtype dtype, const char *what, attn_error *error)
{
    if (dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16)
        return ATTN_OK;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s: got data type 0x%x, accepted: f32, f16 and bf16", what, dtype);
}

/* ---- Vectors --------------------------------------------------------------------------------- */

struct fill {
    const struct step_kernels *kernels;
    int32_t layer;
    const struct step_rows *rows;
    const struct step_vectors *vectors;
    uint32_t num_vectors;
};

/* Does the generator have the stream that the operand is made of? */
static bool has_stream(const struct row_operand *operand)
{
    return operand->stream == GENERATOR_OPERAND + (int32_t)operand->role ||
           (operand->stream >= GENERATOR_KEY && operand->stream <= GENERATOR_QUERY);
}

static attn_status check_vectors(const struct step_vectors *vectors, uint32_t num_vectors,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t v = 0; v < num_vectors && status == ATTN_OK; v++) {
        const struct row_operand *operand = &vectors[v].operand;
        const char *name = role_name(operand->role);
        bool may_be_code = operand->role == ATTN_ROLE_INDEX_Q;
        if (!may_be_code || operand->dtype != ATTN_FP8_E4M3)
            status = check_dtype(operand->dtype, name, error);
        if (status == ATTN_OK && !has_stream(operand))
            status = host_fail(error, ATTN_INVALID_ARGUMENT,
                               "%s: got stream %d, accepted: keys, values, queries and operands of "
                               "linear layers",
                               name, operand->stream);
    }
    return status;
}

/* One row of one operand. */
static void fill_row(const struct fill *fill, const struct step_vectors *vectors, int64_t row)
{
    const struct row_operand *operand = &vectors->operand;
    uint64_t bytes = operands_row_bytes(operand);
    char *to = (char *)vectors->memory + (uint64_t)row * bytes;
    const struct kind_row made = {
        .generator = fill->kernels->generator,
        .workload = fill->kernels->workload,
        .group = vectors->group,
        .layer = fill->layer,
        .request = fill->rows->request[row],
        .position = fill->rows->position[row],
    };
    if (made.request < 0)
        memset(to, 0, bytes);
    else
        kind_of(vectors->group)->make_row(&made, operand, to);
}

static attn_status fill_task(void *arg, int64_t task, uint32_t worker)
{
    (void)worker;
    const struct fill *fill = arg;
    int64_t first = task * ROWS_PER_TASK, last = first + ROWS_PER_TASK;
    if (last > fill->rows->count)
        last = fill->rows->count;
    for (int64_t row = first; row < last; row++)
        for (uint32_t v = 0; v < fill->num_vectors; v++)
            fill_row(fill, &fill->vectors[v], row);
    return ATTN_OK;
}

attn_status step_kernels_generate(const struct step_kernels *kernels, int32_t layer,
                                  const struct step_rows *rows, const struct step_vectors *vectors,
                                  uint32_t num_vectors, attn_stream stream, attn_error *error)
{
    attn_status status = check_vectors(vectors, num_vectors, error);
    if (status != ATTN_OK)
        return status;
    if (kernels->cuda)
        return step_cuda_generate(kernels, layer, rows, vectors, num_vectors, stream, error);
    struct fill fill = {kernels, layer, rows, vectors, num_vectors};
    int64_t num_tasks = units_for(rows->count, ROWS_PER_TASK);
    status = threads_for(kernels->threads, num_tasks, fill_task, &fill);
    return status == ATTN_OK ? ATTN_OK : host_fail(error, status, "generating vectors failed");
}

/* ---- Indices --------------------------------------------------------------------------------- */

attn_status step_kernels_update_table(const struct step_kernels *kernels,
                                      const struct step_update *updates, int32_t num_updates,
                                      int32_t longest, const int32_t *slots, int32_t *req_to_token,
                                      int64_t stride, attn_stream stream, attn_error *error)
{
    if (kernels->cuda)
        return step_cuda_update_table(kernels, updates, num_updates, longest, slots, req_to_token,
                                      stride, stream, error);
    for (int32_t u = 0; u < num_updates; u++) {
        const struct step_update *update = &updates[u];
        int32_t *row = req_to_token + update->row * stride + update->first;
        for (int32_t i = 0; i < update->count; i++)
            row[i] = slots[(int64_t)update->source + i];
    }
    return ATTN_OK;
}

attn_status step_kernels_index_pages(const struct step_kernels *kernels,
                                     const struct step_index *index, attn_stream stream,
                                     attn_error *error)
{
    if (kernels->cuda)
        return step_cuda_index_pages(kernels, index, stream, error);
    for (int32_t s = 0; s < index->num_seqs; s++) {
        const int32_t *slots =
            index->req_to_token + index->req_pool_indices[s] * index->req_to_token_stride;
        int64_t pages = units_for(index->kv_lens[s], index->page_size);
        for (int64_t p = 0; p < pages; p++) {
            int32_t page = slots[p * index->page_size] / index->page_size;
            if (index->block_table)
                index->block_table[s * index->block_table_stride + p] = page;
            if (index->kv_indices)
                index->kv_indices[index->kv_indptr[s] + p] = page;
        }
    }
    return ATTN_OK;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static size_t row_bytes(const struct step_output *output)
{
    return (size_t)output->row_elements * attn_dtype_size(output->dtype);
}

static int is_finite_f32(const char *row, int64_t count)
{
    const uint32_t exponent = 0x7f800000u;
    int finite = 1;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, row + i * (int64_t)sizeof bits, sizeof bits);
        finite &= (bits & exponent) != exponent;
    }
    return finite;
}

static int is_finite_16(const char *row, int64_t count, uint16_t exponent)
{
    int finite = 1;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, row + i * (int64_t)sizeof bits, sizeof bits);
        finite &= (bits & exponent) != exponent;
    }
    return finite;
}

static int is_finite_row(const char *row, const struct step_output *output)
{
    if (output->dtype == ATTN_F32)
        return is_finite_f32(row, output->row_elements);
    return is_finite_16(row, output->row_elements, output->dtype == ATTN_F16 ? 0x7c00 : 0x7f80);
}

attn_status step_kernels_watch(const struct step_kernels *kernels, int32_t layer,
                               const struct step_rows *rows, const struct step_output *output,
                               uint64_t *first, attn_stream stream, attn_error *error)
{
    attn_status status = check_dtype(output->dtype, "outputs", error);
    if (status != ATTN_OK)
        return status;
    if (kernels->cuda)
        return step_cuda_watch(kernels, layer, rows, output, first, stream, error);
    for (int32_t r = 0; r < rows->count; r++) {
        char *row = (char *)output->data + (size_t)r * row_bytes(output);
        uint64_t place = (uint64_t)layer << 32 | (uint32_t)r;
        if (rows->request[r] < 0)
            memset(row, 0, row_bytes(output));
        else if (place < *first && !is_finite_row(row, output))
            *first = place;
    }
    return ATTN_OK;
}

attn_status step_kernels_gather(const struct step_kernels *kernels, int32_t layer,
                                const struct step_sample *sample, const struct step_output *output,
                                int32_t max_rows, attn_stream stream, attn_error *error)
{
    if (kernels->cuda)
        return step_cuda_gather(kernels, layer, sample, output, max_rows, stream, error);
    char *to = (char *)sample->to + sample->offset[layer];
    for (int32_t i = sample->indptr[layer]; i < sample->indptr[layer + 1]; i++) {
        memcpy(to, (const char *)output->data + (size_t)sample->rows[i] * row_bytes(output),
               row_bytes(output));
        to += row_bytes(output);
    }
    return ATTN_OK;
}

/* ---- Keys that rows chose -------------------------------------------------------------------- */

static int32_t key_in(const struct step_keys *keys, const int32_t *slots, int32_t kv_len,
                      int32_t slot)
{
    for (int32_t first = 0; slot >= 0 && first < kv_len; first += keys->page_size)
        if (slots[first] / keys->page_size == slot / keys->page_size)
            return first + slot % keys->page_size;
    return slot == -1 ? keys->none : -1;
}

attn_status step_kernels_keys(const struct step_kernels *kernels, int32_t layer,
                              const struct step_sample *sample, uint64_t skip,
                              const struct step_keys *keys, int32_t max_rows, attn_stream stream,
                              attn_error *error)
{
    if (kernels->cuda)
        return step_cuda_keys(kernels, layer, sample, skip, keys, max_rows, stream, error);
    int32_t first = sample->indptr[layer], end = sample->indptr[layer + 1];
    char *base = (char *)sample->to + sample->offset[layer] + (uint64_t)(end - first) * skip;
    int32_t *to = (int32_t *)(void *)base;
    for (int32_t i = first; i < end; i++) {
        const int32_t *chosen = keys->chosen + (int64_t)sample->rows[i] * keys->count;
        int32_t s = 0;
        while (s + 1 < keys->num_seqs && keys->q_indptr[s + 1] <= sample->rows[i])
            s++;
        const int32_t *slots =
            keys->req_to_token + keys->req_pool_indices[s] * keys->req_to_token_stride;
        for (int32_t n = 0; n < keys->count; n++)
            *to++ = key_in(keys, slots, keys->kv_lens[s], chosen[n]);
    }
    return ATTN_OK;
}

/* ---- Caches ---------------------------------------------------------------------------------- */

static char *slot_of(const struct step_cache *cache, int64_t slot)
{
    return (char *)cache->data + slot / cache->page_size * cache->page_bytes +
           slot % cache->page_size * cache->slot_bytes;
}

attn_status step_kernels_move(const struct step_kernels *kernels, const struct step_moves *moves,
                              const struct step_cache *cache, attn_stream stream, attn_error *error)
{
    if (kernels->cuda)
        return step_cuda_move(kernels, moves, cache, stream, error);
    for (int32_t m = moves->indptr[0]; m < moves->indptr[moves->num_seqs]; m++) {
        char *to = slot_of(cache, moves->list[m].to);
        const char *from = slot_of(cache, moves->list[m].from);
        for (int32_t p = 0; p < cache->num_pieces; p++)
            memcpy(to + p * cache->piece_stride, from + p * cache->piece_stride,
                   (size_t)cache->piece_bytes);
    }
    return ATTN_OK;
}
