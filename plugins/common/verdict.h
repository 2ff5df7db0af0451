/* SPDX-License-Identifier: Apache-2.0
 *
 * verdict.h: how our plugins write what query answers.
 *
 *   verdict_begin   -> supported, no reasons
 *   verdict_refuse  -> one reason more; call it for everything that is in the way, not the first
 *   verdict_end     -> into the caller's struct, no byte beyond its struct_size
 */
#ifndef PLUGINS_VERDICT_H
#define PLUGINS_VERDICT_H

#include "attn_problem.h"

/* Start `verdict`, a copy that is ours, from the caller's `given`: whose array of reasons is used
 * in place. */
void verdict_begin(const attn_verdict *given, attn_verdict *verdict);

/* Add the reason "field got: accepted ...". `accepted` is a list as attn_reason describes it;
 * `got_format` is printf's, and what it makes is cut to fit. */
void verdict_refuse(attn_verdict *verdict, uint32_t code, uint32_t field, const char *accepted,
                    const char *got_format, ...) __attribute__((format(printf, 5, 6)));

/* The same for two fields that do not go together: `field` would have to change because of
 * `with_field`. */
void verdict_refuse_with(attn_verdict *verdict, uint32_t field, uint32_t with_field,
                         const char *accepted, const char *got_format, ...)
    __attribute__((format(printf, 5, 6)));

/* Write the answer into the caller's struct. */
void verdict_end(const attn_verdict *verdict, attn_verdict *given);

/* "field" as it stands in texts; "" for 0 and for fields that these headers do not know. */
const char *verdict_field_name(uint32_t field);

/* The name of a data type ("bf16"); "absent" for none, "unknown" for others. */
const char *verdict_dtype_name(attn_dtype dtype);

/* Names of ATTN_KIND_*, ATTN_TYPE_* and ATTN_SCALE_*; "unknown" for others. */
const char *verdict_kind_name(uint32_t kind);
const char *verdict_attn_type_name(uint32_t attn_type);
const char *verdict_granularity_name(uint32_t granularity);

#endif /* PLUGINS_VERDICT_H */
