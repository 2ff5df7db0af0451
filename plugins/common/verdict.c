/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/verdict.h"
#include "plugins/common/copy_sized.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void verdict_begin(const attn_verdict *given, attn_verdict *verdict)
{
    COPY_SIZED(verdict, given);
    memset((char *)verdict + sizeof verdict->struct_size, 0,
           sizeof *verdict - sizeof verdict->struct_size);
    verdict->supported = 1;
    verdict->reasons_capacity = given->reasons_capacity;
    verdict->reasons = given->reasons;
}

/* Add `reason`, with its two texts. */
static void refuse(attn_verdict *verdict, attn_reason *reason, const char *accepted,
                   const char *got_format, va_list args)
{
    vsnprintf(reason->got, sizeof reason->got, got_format, args);
    snprintf(reason->accepted, sizeof reason->accepted, "%s", accepted);
    verdict->supported = 0;
    uint32_t index = verdict->num_reasons++;
    if (index >= verdict->reasons_capacity)
        return;
    /* The walk of attn_at(), on an array that is written. */
    attn_reason *to =
        (attn_reason *)((char *)verdict->reasons + (size_t)index * verdict->reasons->struct_size);
    uint32_t size = to->struct_size;
    memcpy(to, reason, size < sizeof *reason ? size : sizeof *reason);
    to->struct_size = size;
}

void verdict_refuse(attn_verdict *verdict, uint32_t code, uint32_t field, const char *accepted,
                    const char *got_format, ...)
{
    attn_reason reason = {.struct_size = sizeof reason, .code = code, .field = field};
    va_list args;
    va_start(args, got_format);
    refuse(verdict, &reason, accepted, got_format, args);
    va_end(args);
}

void verdict_refuse_with(attn_verdict *verdict, uint32_t field, uint32_t with_field,
                         const char *accepted, const char *got_format, ...)
{
    attn_reason reason = {.struct_size = sizeof reason,
                          .code = ATTN_REASON_COMBINATION,
                          .field = field,
                          .with_field = with_field};
    va_list args;
    va_start(args, got_format);
    refuse(verdict, &reason, accepted, got_format, args);
    va_end(args);
}

void verdict_end(const attn_verdict *verdict, attn_verdict *given)
{
    uint32_t size = given->struct_size;
    memcpy(given, verdict, size < sizeof *verdict ? size : sizeof *verdict);
    given->struct_size = size;
}

const char *verdict_field_name(uint32_t field)
{
    static const char *const names[ATTN_FIELD_COUNT] = {[ATTN_FIELD_NONE] = "",
#define FIELD_NAME(name, value, text) [value] = text,
                                                        ATTN_FIELD_MAP(FIELD_NAME)
#undef FIELD_NAME
    };
    return field < ATTN_FIELD_COUNT && names[field] ? names[field] : "";
}

const char *verdict_dtype_name(attn_dtype dtype)
{
    static const struct {
        attn_dtype dtype;
        const char *name;
    } names[] = {
        {ATTN_DTYPE_NONE, "absent"}, {ATTN_I32, "i32"},
        {ATTN_I64, "i64"},           {ATTN_U8, "u8"},
        {ATTN_U16, "u16"},           {ATTN_F16, "f16"},
        {ATTN_F32, "f32"},           {ATTN_F64, "f64"},
        {ATTN_BF16, "bf16"},         {ATTN_FP8_E4M3, "fp8_e4m3"},
        {ATTN_FP8_E5M2, "fp8_e5m2"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].dtype == dtype)
            return names[i].name;
    return "unknown";
}

static const char *name_of(const char *const *names, uint32_t count, uint32_t value)
{
    return value < count ? names[value] : "unknown";
}

const char *verdict_kind_name(uint32_t kind)
{
    static const char *const names[ATTN_KIND_COUNT] = {"softmax", "mla", "linear", "sparse"};
    return name_of(names, ATTN_KIND_COUNT, kind);
}

const char *verdict_attn_type_name(uint32_t attn_type)
{
    static const char *const names[ATTN_TYPE_COUNT] = {"decoder", "encoder_only", "cross"};
    return name_of(names, ATTN_TYPE_COUNT, attn_type);
}

const char *verdict_granularity_name(uint32_t granularity)
{
    static const char *const names[ATTN_SCALE_COUNT] = {"none", "per_tensor", "per_head"};
    return name_of(names, ATTN_SCALE_COUNT, granularity);
}
