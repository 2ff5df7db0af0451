/* SPDX-License-Identifier: Apache-2.0
 *
 * step_kernels_cuda.c: launches the kernels of kernels/step_kernels.cu, and uploads the parts of
 * the workload that they read. */
#include "host/run/step_kernels_private.h"

#include <stdlib.h>

#include "host/base/error.h"
#include "host/base/operand_roles.h"
#include "host/run/kernels/launch.h"
#include "host/workload/generator_linear.h"
#include "host/workload/vectors.h"
#include "host/base/configured.h"

/* The kernels as PTX, which the driver compiles for its device; a build without nvcc has a
 * placeholder, which a driver refuses; the fake driver of tests may accept it. */
#ifdef HAVE_NVCC
extern const unsigned char step_kernels_fatbin[];
extern const uint64_t step_kernels_fatbin_size;
#define IMAGE      step_kernels_fatbin
#define IMAGE_SIZE step_kernels_fatbin_size
#else
static const char no_image[] = "this host was built without nvcc: it has no device kernels";
#define IMAGE      no_image
#define IMAGE_SIZE (sizeof no_image - 1)
#endif

struct step_cuda {
    struct device_module *module;
#define FUNCTION(name) struct device_function *name;
    STEP_KERNELS(FUNCTION)
#undef FUNCTION
    struct request_tokens *requests; /* the device's, and what they point to */
    int64_t *hash_ids;
};

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status load_kernels(const struct device *device, struct step_cuda *cuda,
                                attn_error *error)
{
    attn_status status =
        device_module_load(device, IMAGE, IMAGE_SIZE, "the host's kernels", &cuda->module, error);
#ifndef HAVE_NVCC
    if (status == ATTN_DEPENDENCY_MISSING)
        return host_fail(error, status, "cuda:%d: %s", device->id, no_image);
#endif
#define FIND(name)                                                                                 \
    if (status == ATTN_OK)                                                                         \
        status = device_function(device, cuda->module, "step_" #name, &cuda->name, error);
    STEP_KERNELS(FIND)
#undef FIND
    return status;
}

/* Memory of the device with the contents of `from`. */
static attn_status upload(const struct device *device, const void *from, uint64_t size,
                          const char *what, void **memory, attn_error *error)
{
    *memory = device_allocate(device, ATTN_SPACE_DEVICE, size, sizeof(uint64_t));
    if (!*memory)
        return device_no_memory(device, ATTN_SPACE_DEVICE, error,
                                "cuda:%d: no memory for %llu bytes of %s", device->id,
                                (unsigned long long)size, what);
    return device_copy_wait(device, *memory, from, size, NULL, error);
}

static int64_t count_hash_ids(const struct workload *workload)
{
    int64_t count = 0;
    for (int64_t r = 0; r < workload->num_requests; r++)
        count += workload->requests[r].num_blocks;
    return count;
}

/* All that is used of the trace's hash ids, one request after the other. */
static attn_status upload_hash_ids(const struct device *device, const struct workload *workload,
                                   struct step_cuda *cuda, attn_error *error)
{
    int64_t count = count_hash_ids(workload), at = 0;
    int64_t *ids = calloc((size_t)count + 1, sizeof *ids);
    void *memory = NULL;
    if (!ids)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %lld hash ids",
                         (long long)count);
    for (int64_t r = 0; r < workload->num_requests; r++) {
        struct request_tokens tokens = workload_tokens(workload, r);
        for (int64_t i = 0; i < tokens.num_blocks; i++)
            ids[at++] = tokens.hash_ids[i];
    }
    attn_status status =
        upload(device, ids, (uint64_t)count * sizeof *ids, "hash ids", &memory, error);
    cuda->hash_ids = memory;
    free(ids);
    return status;
}

static attn_status upload_requests(const struct device *device, const struct workload *workload,
                                   struct step_cuda *cuda, attn_error *error)
{
    size_t count = (size_t)workload->num_requests;
    struct request_tokens *requests = calloc(count + 1, sizeof *requests);
    const int64_t *ids = cuda->hash_ids;
    void *memory = NULL;
    if (!requests)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %zu requests", count);
    for (size_t r = 0; r < count; r++) {
        requests[r] = workload_tokens(workload, (int64_t)r);
        requests[r].hash_ids = ids;
        ids += requests[r].num_blocks;
    }
    attn_status status =
        upload(device, requests, count * sizeof *requests, "requests", &memory, error);
    cuda->requests = memory;
    free(requests);
    return status;
}

attn_status step_cuda_create(const struct device *device, const struct workload *workload,
                             struct step_cuda **cuda, attn_error *error)
{
    struct step_cuda *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the host's kernels");
    attn_status status = load_kernels(device, made, error);
    if (status == ATTN_OK)
        status = upload_hash_ids(device, workload, made, error);
    if (status == ATTN_OK)
        status = upload_requests(device, workload, made, error);
    if (status == ATTN_OK) {
        *cuda = made;
        return ATTN_OK;
    }
    device_synchronize(device, NULL, NULL); /* a copy may be under way */
    step_cuda_destroy(device, made);
    return status;
}

void step_cuda_destroy(const struct device *device, struct step_cuda *cuda)
{
    if (!cuda)
        return;
    device_release(device, ATTN_SPACE_DEVICE, cuda->requests);
    device_release(device, ATTN_SPACE_DEVICE, cuda->hash_ids);
    device_module_unload(device, cuda->module);
    free(cuda);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* `pieces` pieces of work for up to `threads` threads each (launch.h). */
static attn_status launch(const struct step_kernels *kernels, struct device_function *function,
                          int32_t pieces, uint64_t threads, void *argument, attn_stream stream,
                          attn_error *error)
{
    uint64_t blocks = threads / STEP_BLOCK + (threads % STEP_BLOCK > 0);
    uint32_t grid[3] = {(uint32_t)pieces, STEP_MAX_GRID_Y, 1}, block[3] = {STEP_BLOCK, 1, 1};
    void *arguments[] = {argument};
    if (pieces < 1 || blocks == 0)
        return ATTN_OK;
    if (blocks < STEP_MAX_GRID_Y)
        grid[1] = (uint32_t)blocks;
    return device_launch(kernels->device, function, grid, block, arguments, stream, error);
}

/* Is it made of a stream of its own? */
static bool is_own(const struct row_operand *operand)
{
    return operand->stream == GENERATOR_OPERAND + (int32_t)operand->role;
}

/* An operand of an indexer? */
static bool is_indexed(const struct row_operand *operand)
{
    return is_own(operand) &&
           (operand->role == ATTN_ROLE_INDEX_Q || operand->role == ATTN_ROLE_INDEX_WEIGHTS ||
            operand->role == ATTN_ROLE_INDEX_K);
}

static bool is_linear(const struct row_operand *operand)
{
    return is_own(operand) && !is_indexed(operand);
}

/* The stream's vectors are so wide. */
static int32_t width_of(const generator_layer *geometry, int32_t stream)
{
    return stream == GENERATOR_VALUE ? geometry->v_head_dim : geometry->head_dim;
}

/* Of which layer the streams are: labels and latents of the one that owns the cache. */
static int32_t layer_of(const generator_layer *geometry, const struct row_operand *operand,
                        int32_t layer)
{
    bool own = operand->role == ATTN_ROLE_INDEX_Q || operand->role == ATTN_ROLE_INDEX_WEIGHTS;
    return own ? layer : geometry->kv_layer;
}

/* The kernel makes queries, keys, values and operands of an indexer, in whole words. */
static attn_status place_vectors(const generator_layer *geometry, int32_t layer,
                                 const struct step_vectors *vectors, uint32_t num_vectors,
                                 struct generate_vectors *placed, attn_error *error)
{
    for (uint32_t i = 0; i < num_vectors; i++) {
        const struct row_operand *operand = &vectors[i].operand;
        int32_t end = operand->first + operand->dim;
        bool known = operand->stream == GENERATOR_QUERY || operand->stream == GENERATOR_KEY ||
                     operand->stream == GENERATOR_VALUE;
        bool whole = is_indexed(operand) && operand->first == 0;
        bool piece = known && end <= width_of(geometry, operand->stream);
        if (i >= GENERATE_MAX || (!whole && !piece) || operand->first % VECTORS_GROUP != 0)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "%s: a GPU makes only queries, keys, values and operands of an "
                             "indexer, in pieces that begin at multiples of %d",
                             role_name(operand->role), VECTORS_GROUP);
        placed->list[i] = (struct generate_vector){
            .data = vectors[i].memory,
            .dtype = operand->dtype,
            .stream = operand->stream,
            .layer = layer_of(geometry, operand, layer),
            .heads = operand->heads > 0 ? operand->heads : 1,
            .dim = operand->dim,
            .first_word = operand->first / VECTORS_GROUP,
        };
    }
    placed->count = (int32_t)num_vectors;
    return ATTN_OK;
}

static uint64_t count_words(const struct generate_vectors *placed)
{
    uint64_t words = 0;
    for (int32_t i = 0; i < placed->count; i++)
        words += (uint64_t)(placed->list[i].dim + VECTORS_GROUP - 1) / VECTORS_GROUP *
                 (uint64_t)placed->list[i].heads;
    return words;
}

static attn_status generate_vectors(const struct step_kernels *kernels, int32_t layer,
                                    const struct step_rows *rows,
                                    const struct step_vectors *vectors, uint32_t num_vectors,
                                    attn_stream stream, attn_error *error)
{
    const generator_layer *geometry = &kernels->generator->layers[layer];
    struct generate_launch work = {
        .generator = *kernels->generator,
        .geometry = *geometry,
        .requests = kernels->cuda->requests,
        .num_requests = (int32_t)kernels->workload->num_requests,
        .rows = *rows,
        .layer = layer,
    };
    attn_status status = place_vectors(geometry, layer, vectors, num_vectors, &work.vectors, error);
    if (status != ATTN_OK)
        return status;
    work.generator.layers = NULL;
    work.num_words = count_words(&work.vectors);
    return launch(kernels, kernels->cuda->generate, rows->count, work.num_words, &work, stream,
                  error);
}

/* Parameters of an operand for the kernel; its exponents follow those of earlier operands. */
static attn_status place_linear(const struct step_kernels *kernels,
                                const struct step_vectors *vectors,
                                struct generate_linear_launch *work, int32_t *num_exponents,
                                attn_error *error)
{
    const struct row_operand *operand = &vectors->operand;
    struct generate_linear_operand made = {
        .data = vectors->memory,
        .role = operand->role,
        .dtype = operand->dtype,
        .elements = (int32_t)operands_row_elements(operand),
        .exponents_at = *num_exponents,
    };
    generator_linear_factors(vectors->group, operand->role, &made.factors);
    if (!is_linear(operand) || operand->first != 0 || work->num_operands == GENERATE_MAX_LINEAR)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: got stream %d with operands of linear layers, accepted: up to %d "
                         "whole operands of these",
                         role_name(operand->role), operand->stream, GENERATE_MAX_LINEAR);
    if (made.factors.count > GENERATE_MAX_FACTORS - *num_exponents)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: a GPU makes computed gates of up to %d heads",
                         role_name(operand->role), GENERATE_MAX_FACTORS - *num_exponents);
    for (int32_t i = 0; i < made.factors.count; i++)
        work->exponents[(*num_exponents)++] = (int8_t)generator_linear_exponent(
            kernels->generator, vectors->group, work->layer, operand->role, i);
    work->num_words += ((uint64_t)made.elements + VECTORS_GROUP - 1) / VECTORS_GROUP;
    work->operands[work->num_operands++] = made;
    return ATTN_OK;
}

static attn_status generate_linear(const struct step_kernels *kernels, int32_t layer,
                                   const struct step_rows *rows, const struct step_vectors *vectors,
                                   uint32_t num_vectors, attn_stream stream, attn_error *error)
{
    int32_t num_exponents = 0;
    attn_status status = ATTN_OK;
    struct generate_linear_launch work = {
        .generator = *kernels->generator,
        .requests = kernels->cuda->requests,
        .num_requests = (int32_t)kernels->workload->num_requests,
        .rows = *rows,
        .layer = layer,
    };
    work.generator.layers = NULL;
    for (uint32_t i = 0; i < num_vectors && status == ATTN_OK; i++)
        status = place_linear(kernels, &vectors[i], &work, &num_exponents, error);
    return status == ATTN_OK ? launch(kernels, kernels->cuda->generate_linear, rows->count,
                                      work.num_words, &work, stream, error)
                             : status;
}

attn_status step_cuda_generate(const struct step_kernels *kernels, int32_t layer,
                               const struct step_rows *rows, const struct step_vectors *vectors,
                               uint32_t num_vectors, attn_stream stream, attn_error *error)
{
    bool linear = num_vectors > 0 && is_linear(&vectors[0].operand);
    return (linear ? generate_linear : generate_vectors)(kernels, layer, rows, vectors, num_vectors,
                                                         stream, error);
}

attn_status step_cuda_update_table(const struct step_kernels *kernels,
                                   const struct step_update *updates, int32_t num_updates,
                                   int32_t longest, const int32_t *slots, int32_t *req_to_token,
                                   int64_t stride, attn_stream stream, attn_error *error)
{
    struct update_table_launch work = {
        .updates = updates,
        .slots = slots,
        .req_to_token = req_to_token,
        .stride = stride,
    };
    uint64_t threads = longest > 0 ? (uint64_t)longest : 0;
    return launch(kernels, kernels->cuda->update_table, num_updates, threads, &work, stream, error);
}

attn_status step_cuda_index_pages(const struct step_kernels *kernels,
                                  const struct step_index *index, attn_stream stream,
                                  attn_error *error)
{
    struct index_pages_launch work = {.index = *index};
    uint64_t threads = index->max_pages > 0 ? (uint64_t)index->max_pages : 0;
    return launch(kernels, kernels->cuda->index_pages, index->num_seqs, threads, &work, stream,
                  error);
}

/* As many threads for a row as it has pieces of 16 bytes. */
static uint64_t threads_of_row(uint64_t bytes)
{
    return (bytes + 15) / 16;
}

static uint64_t row_bytes(const struct step_output *output)
{
    return (uint64_t)output->row_elements * attn_dtype_size(output->dtype);
}

attn_status step_cuda_watch(const struct step_kernels *kernels, int32_t layer,
                            const struct step_rows *rows, const struct step_output *output,
                            uint64_t *first, attn_stream stream, attn_error *error)
{
    struct watch_launch work = {.rows = *rows, .output = *output, .first = first, .layer = layer};
    return launch(kernels, kernels->cuda->watch, rows->count, threads_of_row(row_bytes(output)),
                  &work, stream, error);
}

attn_status step_cuda_gather(const struct step_kernels *kernels, int32_t layer,
                             const struct step_sample *sample, const struct step_output *output,
                             int32_t max_rows, attn_stream stream, attn_error *error)
{
    struct gather_launch work = {
        .sample = *sample,
        .rows = output->data,
        .row_bytes = row_bytes(output),
        .layer = layer,
    };
    return launch(kernels, kernels->cuda->gather, max_rows, threads_of_row(work.row_bytes), &work,
                  stream, error);
}

attn_status step_cuda_keys(const struct step_kernels *kernels, int32_t layer,
                           const struct step_sample *sample, uint64_t skip,
                           const struct step_keys *keys, int32_t max_rows, attn_stream stream,
                           attn_error *error)
{
    struct keys_launch work = {.keys = *keys, .sample = *sample, .skip = skip, .layer = layer};
    return launch(kernels, kernels->cuda->keys, max_rows, (uint64_t)keys->count, &work, stream,
                  error);
}

attn_status step_cuda_move(const struct step_kernels *kernels, const struct step_moves *moves,
                           const struct step_cache *cache, attn_stream stream, attn_error *error)
{
    struct move_launch work = {.moves = *moves, .cache = *cache};
    return launch(kernels, kernels->cuda->move, moves->num_seqs,
                  threads_of_row((uint64_t)cache->piece_bytes), &work, stream, error);
}
