/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c: a batch as arrays for a backend in Python.
 */
#include "plugins/python/python.h"

/* The batch that is passed on. */
struct pass {
    const attn_metadata *metadata;
    attn_error *error;
    bool failed;
};

static bool on_processor(const struct pass *pass)
{
    return pass->metadata->instance->device_type == ATTN_DEVICE_CPU;
}

/* Rows whose number only the device knows: a view that may exceed them, to be cut. */
#define UNKNOWN ((int64_t)INT32_MAX)

static py_object *pass_array(struct pass *pass, const void *data, attn_dtype dtype, int32_t device,
                             int64_t rows, int64_t stride)
{
    attn_tensor tensor;
    if (!data)
        return python_none();
    ATTN_UTIL_INIT(&tensor);
    tensor.data = (void *)(uintptr_t)data;
    tensor.device_type = device;
    tensor.device_id = device == ATTN_DEVICE_CPU ? 0 : pass->metadata->instance->device_id;
    tensor.dtype = dtype;
    tensor.ndim = stride ? 2 : 1;
    tensor.shape[0] = rows;
    tensor.shape[1] = stride;
    tensor.strides[0] = stride ? stride : 1;
    tensor.strides[1] = 1;
    py_object *made = python_tensor(pass->metadata->instance, &tensor, pass->error);
    pass->failed |= !made;
    return made ? made : python_none();
}

/* The device's array if there is one; `stride` = 0 for a vector. */
static py_object *pass_i32(struct pass *pass, const attn_i32_array *array, int64_t rows,
                           int64_t stride)
{
    const void *data = array->device ? array->device : array->host;
    int32_t device =
        array->device ? pass->metadata->instance->device_type : (int32_t)ATTN_DEVICE_CPU;
    return pass_array(pass, data, ATTN_I32, device, rows, stride);
}

/* The host's copy as an array of the processor: gone after the plan. */
static py_object *pass_host(struct pass *pass, const attn_i32_array *array, int64_t rows)
{
    return pass_array(pass, array->host, ATTN_I32, ATTN_DEVICE_CPU, rows, 0);
}

/* Rows of new keys, as far as they are known. */
static int64_t count_new_rows(const struct pass *pass, const attn_batch *batch,
                              const attn_kv_batch *kv)
{
    int64_t first, count;
    if (!on_processor(pass))
        return UNKNOWN;
    attn_util_new_rows(batch, kv, 0, batch->num_seqs, &first, &count);
    return first + count;
}

static int64_t last_of(const struct pass *pass, const attn_i32_array *array, int64_t at)
{
    return on_processor(pass) && attn_util_i32(array) ? attn_util_i32(array)[at] : UNKNOWN;
}

/* One more than the highest row of req_to_token. */
static int64_t count_requests(const struct pass *pass, const attn_batch *batch)
{
    const int32_t *rows = attn_util_i32(&batch->req_pool_indices);
    int64_t count = 1;
    if (!on_processor(pass) || !rows)
        return UNKNOWN;
    for (int32_t s = 0; s < batch->num_seqs; s++)
        count = rows[s] >= count ? (int64_t)rows[s] + 1 : count;
    return count;
}

/* _KV of backend.py. */
static py_object *pass_kv(struct pass *pass, const attn_batch *batch, uint32_t group)
{
    attn_kv_batch kv;
    int64_t seqs = batch->num_seqs;
    ATTN_UTIL_READ(&kv, attn_at(batch->kv_groups, group));
    py_object *tuple = py.PyTuple_New(11);
    const void *slots = kv.out_cache_loc.device ? kv.out_cache_loc.device : kv.out_cache_loc.host;
    int32_t slots_device =
        kv.out_cache_loc.device ? pass->metadata->instance->device_type : (int32_t)ATTN_DEVICE_CPU;
    python_put(tuple, 0, python_int(kv.page_size));
    python_put(tuple, 1, pass_i32(pass, &kv.kv_lens, seqs, 0));
    python_put(tuple, 2, pass_host(pass, &kv.kv_lens, seqs));
    python_put(tuple, 3, pass_i32(pass, &kv.kv_new_indptr, seqs + 1, 0));
    python_put(tuple, 4, pass_host(pass, &kv.kv_new_indptr, seqs + 1));
    python_put(
        tuple, 5,
        pass_array(pass, slots, ATTN_I64, slots_device, count_new_rows(pass, batch, &kv), 0));
    python_put(tuple, 6, pass_i32(pass, &kv.block_table, seqs, kv.block_table_stride));
    python_put(
        tuple, 7,
        pass_i32(pass, &kv.req_to_token, count_requests(pass, batch), kv.req_to_token_stride));
    python_put(tuple, 8, pass_i32(pass, &kv.kv_indptr, seqs + 1, 0));
    python_put(tuple, 9, pass_i32(pass, &kv.kv_indices, last_of(pass, &kv.kv_indptr, seqs), 0));
    python_put(tuple, 10, pass_i32(pass, &kv.last_page_len, seqs, 0));
    return tuple;
}

static py_object *pass_kv_groups(struct pass *pass, const attn_batch *batch)
{
    py_object *groups = py.PyTuple_New(batch->num_kv_groups);
    for (uint32_t g = 0; g < batch->num_kv_groups; g++)
        python_put(groups, (int)g,
                   attn_util_has_kv_group(&pass->metadata->instance->model, g)
                       ? pass_kv(pass, batch, g)
                       : python_none());
    return groups;
}

/* (kind, bits, indptr of bytes) */
static py_object *pass_mask(struct pass *pass, const attn_batch *batch)
{
    const attn_mask none = {.struct_size = sizeof none}, *mask = batch->mask ? batch->mask : &none;
    int32_t device = pass->metadata->instance->device_type;
    const int64_t *indptr = mask->indptr.device ? mask->indptr.device : mask->indptr.host;
    int32_t indptr_device = mask->indptr.device ? device : (int32_t)ATTN_DEVICE_CPU;
    int64_t bytes = on_processor(pass) && indptr ? indptr[batch->num_seqs] : UNKNOWN;
    py_object *tuple = py.PyTuple_New(3);
    python_put(
        tuple, 0,
        python_text(attn_util_member_name(ATTN_FIELD_MASK_KINDS, attn_util_mask_kind(batch))));
    python_put(tuple, 1, pass_array(pass, mask->bits, ATTN_U8, device, bytes, 0));
    python_put(tuple, 2,
               pass_array(pass, indptr, ATTN_I64, indptr_device, (int64_t)batch->num_seqs + 1, 0));
    return tuple;
}

/* In the order of Batch of backend.py. */
py_object *python_batch(const attn_metadata *metadata, const attn_batch *batch, void *stream,
                        attn_error *error)
{
    struct pass pass = {.metadata = metadata, .error = error};
    bool decode = batch->mode == ATTN_MODE_DECODE;
    const attn_i32_array absent = {NULL, NULL};
    const attn_i32_array *prefix = decode ? &absent : &batch->prefix_lens;
    const attn_i32_array *indptr = decode ? &absent : &batch->q_indptr;
    int64_t seqs = batch->num_seqs;
    const int64_t numbers[] = {batch->num_seqs,        batch->num_tokens,
                               batch->num_real_seqs,   batch->num_real_tokens,
                               batch->num_decode_seqs, batch->first_decode_seq,
                               batch->decode_q_len,    batch->max_q_len,
                               batch->max_kv_len,      (int64_t)(uintptr_t)stream};
    enum { COUNT = sizeof numbers / sizeof numbers[0] };
    py_object *tuple = py.PyTuple_New(COUNT + 11);
    for (int n = 0; n < COUNT; n++)
        python_put(tuple, n, python_int(numbers[n]));
    python_put(tuple, COUNT, python_text(attn_util_member_name(ATTN_FIELD_MODES, batch->mode)));
    python_put(tuple, COUNT + 1, pass_i32(&pass, &batch->seq_lens, seqs, 0));
    python_put(tuple, COUNT + 2, pass_host(&pass, &batch->seq_lens, seqs));
    python_put(tuple, COUNT + 3, pass_i32(&pass, prefix, seqs, 0));
    python_put(tuple, COUNT + 4, pass_host(&pass, prefix, seqs));
    python_put(tuple, COUNT + 5, pass_i32(&pass, indptr, seqs + 1, 0));
    python_put(tuple, COUNT + 6, pass_host(&pass, indptr, seqs + 1));
    python_put(tuple, COUNT + 7, pass_i32(&pass, &batch->positions, batch->num_tokens, 0));
    python_put(tuple, COUNT + 8, pass_i32(&pass, &batch->req_pool_indices, seqs, 0));
    python_put(tuple, COUNT + 9, pass_kv_groups(&pass, batch));
    python_put(tuple, COUNT + 10, pass_mask(&pass, batch));
    if (!pass.failed)
        return tuple;
    py.Py_DecRef(tuple);
    return NULL;
}
