/* SPDX-License-Identifier: Apache-2.0
 *
 * operand_text.c: describing an operand's strides and offsets.
 */
#include "host/check/cases/operand_text.h"

#include "host/base/operand_roles.h"
#include "host/base/text.h"

#include <stdbool.h>
#include <stdio.h>

uint64_t operand_span(const attn_tensor *tensor)
{
    int64_t last = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] == 0)
            return 0;
        last += (tensor->shape[d] - 1) * tensor->strides[d];
    }
    return (uint64_t)last * attn_dtype_size(tensor->dtype);
}

static bool is_dense(const attn_tensor *tensor)
{
    int64_t stride = 1;
    for (uint32_t d = tensor->ndim; d-- > 0; stride *= tensor->shape[d])
        if (tensor->strides[d] != stride && tensor->shape[d] > 1)
            return false;
    return true;
}

static void append_numbers(strbuf *text, const char *before, uint32_t count, const int64_t *numbers)
{
    strbuf_append(text, before);
    for (uint32_t d = 0; d < count; d++)
        strbuf_appendf(text, d ? ", %lld" : "[%lld", (long long)numbers[d]);
    strbuf_append(text, "]");
}

void operand_text(const attn_tensor *const operands[ATTN_ROLE_COUNT], char *text, size_t size)
{
    strbuf all;
    strbuf_init(&all);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *tensor = operands[role];
        if (!tensor || is_dense(tensor))
            continue;
        strbuf_appendf(&all, "; %s", role_name(role));
        append_numbers(&all, " ", tensor->ndim, tensor->shape);
        append_numbers(&all, " strides ", tensor->ndim, tensor->strides);
    }
    snprintf(text, size, "%s", strbuf_text(&all));
    strbuf_finish(&all);
}
