/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c: partial results of the same queries over disjoint keys, merged into one: on the
 * processor in fp64, on CUDA by the kernels of kernels/merge_kernels.cu in fp32.
 */
#include "host/embed/embed.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/embed/kernels/merge_launch.h"
#include "host/base/configured.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernels as PTX. In a build without nvcc this is a placeholder, which a driver refuses; the
 * fake driver of tests may accept it. */
#ifdef HAVE_NVCC
extern const unsigned char merge_kernels_fatbin[];
extern const uint64_t merge_kernels_fatbin_size;
#define IMAGE      merge_kernels_fatbin
#define IMAGE_SIZE merge_kernels_fatbin_size
#else
static const char no_image[] = "this host was built without nvcc: it has no device kernels";
#define IMAGE      no_image
#define IMAGE_SIZE (sizeof no_image - 1)
#endif

/* The kernels, loaded on a backend's device. */
struct embed_merge {
    struct device_module *module;
#define FUNCTION(name) struct device_function *name;
    MERGE_KERNELS(FUNCTION)
#undef FUNCTION
};

/* ---- What is merged -------------------------------------------------------------------------- */

/* What is wrong with a tensor that should be on this device and agree with the first output; NULL =
 * nothing. */
static const char *find_misfit(const attn_tensor *tensor, const attn_tensor *first,
                               int32_t device_type, int32_t device_id, uint32_t ndim)
{
    if (!tensor)
        return "is NULL";
    if (!ATTN_HAS(tensor, attn_tensor, strides))
        return "has no struct_size; accepted: the sizeof of the struct";
    if (tensor->device_type != device_type || tensor->device_id != device_id)
        return device_type == ATTN_DEVICE_CPU ? "is not in host memory"
                                              : "is not on the backend's device";
    if (tensor->ndim != ndim || memcmp(tensor->shape, first->shape, ndim * sizeof(int64_t)) != 0)
        return ndim == 3 ? "differs in shape from the first output"
                         : "does not have the shape [tokens, heads] of the first output";
    if (ndim == 2 && tensor->dtype != ATTN_F32)
        return "is not fp32";
    if (tensor->dtype != ATTN_F32 && tensor->dtype != ATTN_F16 && tensor->dtype != ATTN_BF16)
        return "is neither fp32 nor fp16 nor bf16";
    return NULL;
}

static struct merge_tensor view_of(const attn_tensor *tensor)
{
    return (struct merge_tensor){.data = (char *)tensor->data + tensor->byte_offset,
                                 .strides = {tensor->strides[0], tensor->strides[1],
                                             tensor->ndim == 3 ? tensor->strides[2] : 1},
                                 .dtype = tensor->dtype};
}

/* One tensor of the work, checked. `name` with its index, if that is not negative. */
static attn_status add(struct merge_tensor *view, const attn_tensor *tensor,
                       const attn_tensor *first, const attn_device *device, uint32_t ndim,
                       const char *name, int index, attn_error *error)
{
    char number[16] = "";
    const char *misfit = find_misfit(tensor, first, device->type, device->id, ndim);
    if (misfit && index >= 0)
        snprintf(number, sizeof number, "[%d]", index);
    if (misfit)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "merge: %s%s %s", name, number, misfit);
    *view = view_of(tensor);
    return ATTN_OK;
}

/* `lse` may be NULL: it is not wanted. */
static attn_status describe(struct merge_launch *work, const attn_device *device,
                            const attn_tensor *const *outs, const attn_tensor *const *lses,
                            uint32_t num_parts, const attn_tensor *out, const attn_tensor *lse,
                            attn_error *error)
{
    if (num_parts < 1 || num_parts > MERGE_MAX_PARTS)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "merge: %u parts; accepted: 1..%d",
                         num_parts, MERGE_MAX_PARTS);
    memset(work, 0, sizeof *work);
    attn_status status = ATTN_OK;
    for (uint32_t p = 0; p < num_parts && status == ATTN_OK; p++) {
        status = add(&work->outs[p], outs[p], outs[0], device, 3, "outs", (int)p, error);
        if (status == ATTN_OK)
            status = add(&work->lses[p], lses[p], outs[0], device, 2, "lses", (int)p, error);
    }
    if (status == ATTN_OK)
        status = add(&work->out, out, outs[0], device, 3, "out", -1, error);
    if (status == ATTN_OK && lse)
        status = add(&work->lse, lse, outs[0], device, 2, "lse", -1, error);
    if (status != ATTN_OK)
        return status;
    work->num_parts = num_parts;
    work->num_heads = outs[0]->shape[1];
    work->dim = outs[0]->shape[2];
    work->num_rows = outs[0]->shape[0] * work->num_heads;
    if (work->num_rows > INT32_MAX)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "merge: %lld tokens of %lld heads; accepted: 2^31 - 1 rows or fewer",
                         (long long)outs[0]->shape[0], (long long)work->num_heads);
    return ATTN_OK;
}

/* ---- The processor --------------------------------------------------------------------------- */

/* Where a row, a token's head, begins. */
static char *row_of(const struct merge_launch *work, const struct merge_tensor *tensor, int64_t row)
{
    int64_t token = row / work->num_heads, head = row % work->num_heads;
    return tensor->data + (token * tensor->strides[0] + head * tensor->strides[1]) *
                              (int64_t)attn_dtype_size(tensor->dtype);
}

/* The weight of each part of a row, and the LSE of all of them. A NaN makes all of it NaN. */
static double weigh(const struct merge_launch *work, int64_t row, double *weights)
{
    double largest = -(double)INFINITY, total = 0;
    for (uint32_t p = 0; p < work->num_parts; p++) {
        weights[p] = dtype_load(ATTN_F32, row_of(work, &work->lses[p], row), 0);
        if (isnan(weights[p]) || isnan(largest))
            largest = (double)NAN;
        else if (weights[p] > largest)
            largest = weights[p];
    }
    if (isinf(largest) && largest < 0) {
        memset(weights, 0, work->num_parts * sizeof *weights);
        return largest;
    }
    for (uint32_t p = 0; p < work->num_parts; p++)
        total += weights[p] = exp(weights[p] - largest);
    for (uint32_t p = 0; p < work->num_parts; p++)
        weights[p] /= total;
    return largest + log(total);
}

static void merge_row(const struct merge_launch *work, int64_t row)
{
    double weights[MERGE_MAX_PARTS], lse = weigh(work, row, weights);
    for (int64_t d = 0; d < work->dim; d++) {
        double sum = 0;
        for (uint32_t p = 0; p < work->num_parts; p++) {
            const struct merge_tensor *out = &work->outs[p];
            if (weights[p] != 0) /* a part that saw no key may hold anything */
                sum += weights[p] *
                       dtype_load(out->dtype, row_of(work, out, row), d * out->strides[2]);
        }
        dtype_store(work->out.dtype, row_of(work, &work->out, row), d * work->out.strides[2], sum);
    }
    if (work->lse.data)
        dtype_store(ATTN_F32, row_of(work, &work->lse, row), 0, lse);
}

enum { ROWS_OF_A_TASK = 32 };

static attn_status merge_some(void *arg, int64_t task, uint32_t worker)
{
    const struct merge_launch *work = arg;
    int64_t end = (task + 1) * ROWS_OF_A_TASK;
    (void)worker;
    for (int64_t row = task * ROWS_OF_A_TASK; row < end && row < work->num_rows; row++)
        merge_row(work, row);
    return ATTN_OK;
}

attn_status attnhost_merge_states(const attn_tensor *out_a, const attn_tensor *lse_a,
                                  const attn_tensor *out_b, const attn_tensor *lse_b,
                                  const attn_tensor *out, const attn_tensor *lse, attn_error *error)
{
    const attn_tensor *const outs[] = {out_a, out_b}, *const lses[] = {lse_a, lse_b};
    const attn_device cpu = {.type = ATTN_DEVICE_CPU};
    struct merge_launch work;
    attn_status status = lse ? describe(&work, &cpu, outs, lses, 2, out, lse, error)
                             : host_fail(error, ATTN_INVALID_ARGUMENT, "merge: lse is NULL");
    for (int64_t row = 0; status == ATTN_OK && row < work.num_rows; row++)
        merge_row(&work, row);
    return status;
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

static attn_status load_kernels(attnhost_backend *backend, attn_error *error)
{
    struct embed_merge *made = backend->merge ? NULL : calloc(1, sizeof *made);
    if (backend->merge)
        return ATTN_OK;
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "merge: out of memory");
    attn_status status = device_module_load(backend->device, IMAGE, IMAGE_SIZE,
                                            "the host's kernels", &made->module, error);
#ifndef HAVE_NVCC
    if (status == ATTN_DEPENDENCY_MISSING)
        host_fail(error, status, "merge: %s", no_image);
#endif
#define FIND(name)                                                                                 \
    if (status == ATTN_OK)                                                                         \
        status = device_function(backend->device, made->module, "merge_" #name, &made->name, error);
    MERGE_KERNELS(FIND)
#undef FIND
    if (status != ATTN_OK) {
        device_module_unload(backend->device, made->module);
        free(made);
        return status;
    }
    backend->merge = made;
    return ATTN_OK;
}

void embed_merge_finish(attnhost_backend *backend)
{
    if (!backend->merge)
        return;
    device_module_unload(backend->device, backend->merge->module);
    free(backend->merge);
}

static attn_status launch(attnhost_backend *backend, struct merge_launch *work, attn_stream stream,
                          attn_error *error)
{
    uint32_t rows = (uint32_t)work->num_rows, block[3] = {MERGE_BLOCK, 1, 1};
    int64_t columns = (work->dim + MERGE_BLOCK - 1) / MERGE_BLOCK;
    uint32_t outs[3] = {rows, (uint32_t)(columns < 65535 ? columns : 65535), 1};
    uint32_t lses[3] = {(rows + MERGE_BLOCK - 1) / MERGE_BLOCK, 1, 1};
    void *arguments[] = {work};
    attn_status status = load_kernels(backend, error);
    if (status != ATTN_OK || rows == 0)
        return status;
    if (work->dim > 0)
        status = device_launch(backend->device, backend->merge->out, outs, block, arguments, stream,
                               error);
    if (status == ATTN_OK && work->lse.data)
        status = device_launch(backend->device, backend->merge->lse, lses, block, arguments, stream,
                               error);
    return status;
}

/* ---- Either ---------------------------------------------------------------------------------- */

attn_status attnhost_merge(attnhost_backend *backend, const attn_tensor *const *outs,
                           const attn_tensor *const *lses, uint32_t num_parts,
                           const attn_tensor *out, const attn_tensor *lse, attn_stream stream,
                           attn_error *error)
{
    struct merge_launch work;
    int entered;
    attn_status status =
        describe(&work, &backend->device->info, outs, lses, num_parts, out, lse, error);
    if (status != ATTN_OK)
        return status;
    if (backend->device->type == ATTN_DEVICE_CPU) {
        int64_t tasks = (work.num_rows + ROWS_OF_A_TASK - 1) / ROWS_OF_A_TASK;
        status = threads_for(backend->host->threads, tasks, merge_some, &work);
        return status == ATTN_OK ? status
                                 : host_fail(error, status, "merge: the thread pool failed");
    }
    status = embed_enter(backend, &entered, error);
    if (status == ATTN_OK) {
        status = launch(backend, &work, stream, error);
        embed_leave(backend, entered);
    }
    return status;
}
