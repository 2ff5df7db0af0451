/* SPDX-License-Identifier: Apache-2.0
 *
 * operand_text.c: describing an operand's strides and offsets.
 */
#include "host/check/cases/operand_text.h"

#include "host/base/operand_roles.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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

static void append(char *text, size_t size, const char *more)
{
    size_t length = strlen(text);
    snprintf(text + length, size - length, "%s", more);
}

static void append_numbers(char *text, size_t size, const char *before, uint32_t count,
                           const int64_t *numbers)
{
    append(text, size, before);
    for (uint32_t d = 0; d < count; d++) {
        char number[32];
        snprintf(number, sizeof number, d ? ", %lld" : "[%lld", (long long)numbers[d]);
        append(text, size, number);
    }
    append(text, size, "]");
}

void operand_text(const attn_tensor *const operands[ATTN_ROLE_COUNT], char *text, size_t size)
{
    text[0] = '\0';
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *tensor = operands[role];
        if (!tensor || is_dense(tensor))
            continue;
        append(text, size, "; ");
        append(text, size, role_name(role));
        append_numbers(text, size, " ", tensor->ndim, tensor->shape);
        append_numbers(text, size, " strides ", tensor->ndim, tensor->strides);
    }
}
