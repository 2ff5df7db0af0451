/* SPDX-License-Identifier: Apache-2.0
 *
 * save.c: new labels into the cache.
 */
#include "sparse.h"

#include <math.h>
#include <string.h>

/* That of a page's label `offset`, after its codes; of codes alone. */
static char *label_scale(const layer_call *call, int64_t page, int64_t offset)
{
    const cpu_group *group = call->group;
    return call->sparse.labels + page * call->sparse.label_page +
           (int64_t)group->page_size * group->sparse.label + offset * (int64_t)sizeof(float);
}

/* The scale that maps the largest finite magnitude to the largest number of e4m3. */
static float choose_scale(const float *x, int32_t count)
{
    float largest = 1e-4f;
    for (int32_t d = 0; d < count; d++) {
        float magnitude = fabsf(x[d]);
        if (magnitude > largest && magnitude < INFINITY)
            largest = magnitude;
    }
    return largest / 448.0f;
}

/* Each rounded once: a zero keeps its sign, which it loses where kernels store a row of an output. */
static void put_elements(const float *x, int32_t count, attn_dtype dtype, void *to)
{
    for (int32_t d = 0; d < count; d++)
        if (dtype == ATTN_F32)
            ((float *)to)[d] = x[d];
        else
            ((uint16_t *)to)[d] = dtype == ATTN_F16 ? f32_to_f16(x[d]) : f32_to_bf16(x[d]);
}

void sparse_save_row(const layer_call *call, int64_t row, int64_t slot)
{
    const cpu_group *group = call->group;
    const sparse_group *sparse = &group->sparse;
    const int64_t page = slot / group->page_size, offset = slot % group->page_size;
    const row_format format = {.dtype = group->new_dtype};
    char *to =
        call->sparse.labels + page * call->sparse.label_page + offset * call->sparse.label_token;
    const char *from = new_row(call->sparse.k, row, 0);
    float x[MAX_LABEL];
    if (sparse->label_dtype == group->new_dtype) {
        memcpy(to, from, (size_t)sparse->label * attn_dtype_size(group->new_dtype));
        return;
    }
    call->instance->kernels->convert(from, &format, sparse->label, x);
    if (sparse->label_dtype != ATTN_FP8_E4M3) {
        put_elements(x, sparse->label, sparse->label_dtype, to);
        return;
    }
    const float scale = choose_scale(x, sparse->label);
    for (int32_t d = 0; d < sparse->label; d++)
        ((uint8_t *)to)[d] = f32_to_fp8(x[d] / scale, &fp8_e4m3);
    memcpy(label_scale(call, page, offset), &scale, sizeof scale);
}
