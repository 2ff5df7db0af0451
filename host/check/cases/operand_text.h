/* SPDX-License-Identifier: Apache-2.0
 *
 * operand_text.h: layout of operands: the bytes that they span, and their strides as text, for
 * reports of failures.
 */
#ifndef HOST_CHECK_CASES_OPERAND_TEXT_H
#define HOST_CHECK_CASES_OPERAND_TEXT_H

#include "attn_plugin.h"

#include <stddef.h>

/* The bytes between a tensor's first element and the end of its last; 0 = it has none. */
uint64_t operand_span(const attn_tensor *tensor);

/* "; k_cache [24, 16, 2, 64] strides [2080, 130, 65, 1]; ..." of the operands, by role, whose
 * strides are not those of a dense tensor; "" if all are dense. Cut where the text ends. */
void operand_text(const attn_tensor *const operands[ATTN_ROLE_COUNT], char *text, size_t size);

#endif /* HOST_CHECK_CASES_OPERAND_TEXT_H */
