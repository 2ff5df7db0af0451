/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_util_errors.h: error messages with a field, truncated at character boundaries; reads and
 * writes of sized structs; names of fields, roles, data types and kinds, as hosts print them. Part
 * of attn_plugin_util.h, which states common rules.
 */
#ifndef ATTN_UTIL_ERRORS_H
#define ATTN_UTIL_ERRORS_H

#include "attn_plugin.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Marks a printf-like function: index of the format, and of its first argument. */
#if defined(__GNUC__) || defined(__clang__)
#define ATTN_UTIL_PRINTF(place, first) __attribute__((format(printf, place, first)))
#else
#define ATTN_UTIL_PRINTF(place, first)
#endif

/* ---- Errors ---------------------------------------------------------------------------------- */

/* If a text was cut inside a multi-byte character, end it before that character. */
static inline void attn_util_cut(char *text)
{
    size_t length = strlen(text), start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (need > length - (start - 1))
        text[start - 1] = '\0';
}

/* vsnprintf() that truncates at a character boundary. */
ATTN_UTIL_PRINTF(3, 0)
static inline void attn_util_format(char *text, size_t capacity, const char *format, va_list args)
{
    int length = vsnprintf(text, capacity, format, args);
    if (length >= 0 && capacity > 0 && (size_t)length >= capacity)
        attn_util_cut(text);
}

/* A number as text: %g, with a decimal point in every locale. */
typedef struct attn_util_decimal {
    char text[32];
} attn_util_decimal;

static inline attn_util_decimal attn_util_number(double value)
{
    attn_util_decimal number;
    char *to = number.text;
    snprintf(number.text, sizeof number.text, "%g", value);
    for (const char *from = number.text; *from; from++) {
        int is_plain = (*from >= '0' && *from <= '9') || (*from >= 'a' && *from <= 'z') ||
                       *from == '-' || *from == '+';
        if (is_plain)
            *to++ = *from;
        else if (to > number.text && to[-1] != '.') /* a decimal sign may have several bytes */
            *to++ = '.';
    }
    *to = '\0';
    return number;
}

/* Write code, field and message. Used by the functions below. */
ATTN_UTIL_PRINTF(4, 0)
static inline void attn_util_write_error(attn_error *error, attn_status code, uint32_t field,
                                         const char *format, va_list args)
{
    error->code = code;
    error->field = field;
    if (error->message && error->capacity > 0)
        attn_util_format(error->message, error->capacity, format, args);
}

/* Write `code` and the formatted message into *error, and return `code`. */
ATTN_UTIL_PRINTF(3, 4)
static inline attn_status attn_util_fail(attn_error *error, attn_status code, const char *format,
                                         ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        attn_util_write_error(error, code, ATTN_FIELD_NONE, format, args);
        va_end(args);
    }
    return code;
}

/* The same, with the offending field (ATTN_FIELD_*). */
ATTN_UTIL_PRINTF(4, 5)
static inline attn_status attn_util_fail_field(attn_error *error, attn_status code, uint32_t field,
                                               const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        attn_util_write_error(error, code, field, format, args);
        va_end(args);
    }
    return code;
}

/* Prepend "prefix: " to the message in *error, and return `code`. */
ATTN_UTIL_PRINTF(3, 4)
static inline attn_status attn_util_fail_prefix(attn_error *error, attn_status code,
                                                const char *format, ...)
{
    if (!error)
        return code;
    error->code = code;
    if (error->message && error->capacity > 0) {
        char prefix[256], rest[1024];
        va_list args;
        va_start(args, format);
        attn_util_format(prefix, sizeof prefix, format, args);
        va_end(args);
        snprintf(rest, sizeof rest, "%s", error->message);
        int length = snprintf(error->message, error->capacity, "%s: %s", prefix, rest);
        if (length >= 0 && (uint32_t)length >= error->capacity)
            attn_util_cut(error->message);
    }
    return code;
}

/* ---- Sized structs --------------------------------------------------------------------------- */

/* Copy a sized struct of the other side, which may use older or newer headers, into one of `size`
 * bytes: copy the part that both have, and zero the rest. */
static inline void attn_util_read(void *to, uint32_t size, const void *from)
{
    uint32_t theirs = *(const uint32_t *)from;
    if (theirs >= size) { /* the common case: the compiler knows the size */
        memcpy(to, from, size);
    } else {
        memset(to, 0, size);
        memcpy(to, from, theirs);
    }
    *(uint32_t *)to = size;
}

/* The same with the size of *to. */
#define ATTN_UTIL_READ(to, from) attn_util_read((to), (uint32_t)sizeof *(to), (from))

/* Copy a struct of `size` bytes into a sized one of the other side: the part that both have. The
 * other side's struct_size stays. */
static inline void attn_util_write(void *to, const void *from, uint32_t size)
{
    uint32_t theirs = *(const uint32_t *)to;
    memcpy(to, from, theirs < size ? theirs : size);
    *(uint32_t *)to = theirs;
}

/* The same with the size of *from. */
#define ATTN_UTIL_WRITE(to, from) attn_util_write((to), (from), (uint32_t)sizeof *(from))

/* Initialise a sized struct: all zero, except struct_size = sizeof *to. */
#define ATTN_UTIL_INIT(to)                                                                         \
    (memset((to), 0, sizeof *(to)), (void)((to)->struct_size = (uint32_t)sizeof *(to)))

/* ---- Names ----------------------------------------------------------------------------------- */

/* Name of a field (ATTN_FIELD_*) in messages; "" for none and for unknown fields. */
static inline const char *attn_util_field_name(uint32_t field)
{
#define ATTN_UTIL_NAME(name, value, text)                                                          \
    case value:                                                                                    \
        return text;
    switch (field) {
        ATTN_FIELD_MAP(ATTN_UTIL_NAME)
    default:
        return "";
    }
}

/* Name of an operand's role (ATTN_ROLE_*); "?" for unknown roles. */
static inline const char *attn_util_role_name(uint32_t role)
{
#define ATTN_UTIL_ROLE(name, value, text, dtype) ATTN_UTIL_NAME(name, value, text)
    switch (role) {
        ATTN_ROLE_MAP(ATTN_UTIL_ROLE)
    default:
        return "?";
    }
#undef ATTN_UTIL_ROLE
#undef ATTN_UTIL_NAME
}

/* Name of a data type ("bf16"); "absent" for none, "unknown" for others. */
static inline const char *attn_util_dtype_name(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_DTYPE_NONE:
        return "absent";
    case ATTN_I32:
        return "i32";
    case ATTN_I64:
        return "i64";
    case ATTN_U8:
        return "u8";
    case ATTN_U16:
        return "u16";
    case ATTN_F16:
        return "f16";
    case ATTN_F32:
        return "f32";
    case ATTN_F64:
        return "f64";
    case ATTN_BF16:
        return "bf16";
    case ATTN_FP8_E4M3:
        return "fp8_e4m3";
    case ATTN_FP8_E5M2:
        return "fp8_e5m2";
    default:
        return "unknown";
    }
}

/* ATTN_KIND_*; "unknown" for others. */
static inline const char *attn_util_kind_name(uint32_t kind)
{
#define ATTN_UTIL_NAME(name, value, text)                                                          \
    case value:                                                                                    \
        return text;
    switch (kind) {
        ATTN_KIND_MAP(ATTN_UTIL_NAME)
    default:
        return "unknown";
    }
#undef ATTN_UTIL_NAME
}

/* ATTN_TYPE_*; "unknown" for others. */
static inline const char *attn_util_attn_type_name(uint32_t attn_type)
{
    static const char *const names[ATTN_TYPE_COUNT] = {"decoder", "encoder_only", "cross"};
    return attn_type < ATTN_TYPE_COUNT ? names[attn_type] : "unknown";
}

/* ATTN_SCALE_*; "unknown" for others. */
static inline const char *attn_util_granularity_name(uint32_t granularity)
{
    static const char *const names[ATTN_SCALE_COUNT] = {"none", "per_tensor", "per_head",
                                                        "per_seq_head", "per_token_head"};
    return granularity < ATTN_SCALE_COUNT ? names[granularity] : "unknown";
}

/* Name of member `bit` of a set field: a mode, mask kind, use, trait, flag or index form. NULL for
 * fields that are not sets, and for unknown bits. */
static inline const char *attn_util_member_name(uint32_t field, uint32_t bit)
{
#define ATTN_UTIL_MEMBER(name, value, text) text,
    static const char *const modes[] = {ATTN_MODE_MAP(ATTN_UTIL_MEMBER)};
    static const char *const masks[] = {ATTN_MASK_MAP(ATTN_UTIL_MEMBER)};
    static const char *const uses[] = {ATTN_USES_MAP(ATTN_UTIL_MEMBER)};
    static const char *const traits[] = {ATTN_TRAIT_MAP(ATTN_UTIL_MEMBER)};
    static const char *const layers[] = {ATTN_LAYER_MAP(ATTN_UTIL_MEMBER)};
    static const char *const linear[] = {ATTN_LINEAR_FLAG_MAP(ATTN_UTIL_MEMBER)};
    static const char *const forms[] = {ATTN_INDEX_MAP(ATTN_UTIL_MEMBER)};
#undef ATTN_UTIL_MEMBER
#define ATTN_UTIL_PICK(names) (bit < sizeof(names) / sizeof((names)[0]) ? (names)[bit] : NULL)
    switch (field) {
    case ATTN_FIELD_MODES:
    case ATTN_FIELD_MLA_EXPANDED:
        return ATTN_UTIL_PICK(modes);
    case ATTN_FIELD_MASK_KINDS:
        return ATTN_UTIL_PICK(masks);
    case ATTN_FIELD_USES:
        return ATTN_UTIL_PICK(uses);
    case ATTN_FIELD_REQUIRED_TRAITS:
        return ATTN_UTIL_PICK(traits);
    case ATTN_FIELD_LAYERS:
        return ATTN_UTIL_PICK(layers);
    case ATTN_FIELD_LINEAR_FLAGS:
        return ATTN_UTIL_PICK(linear);
    case ATTN_FIELD_INDEX_FORMS:
        return ATTN_UTIL_PICK(forms);
    default:
        return NULL;
    }
#undef ATTN_UTIL_PICK
}

/* A set as text in reasons: "lse, unsaved_kv"; unknown bits as "0x40"; "empty" for none. */
static inline void attn_util_set_text(uint32_t field, uint32_t set, char *text, size_t capacity)
{
    uint32_t unknown = 0;
    size_t length = 0;
    snprintf(text, capacity, "%s", set ? "" : "empty");
    for (uint32_t bit = 0; bit < 32; bit++) {
        const char *name = attn_util_member_name(field, bit);
        if (!(set >> bit & 1u))
            continue;
        if (!name)
            unknown |= 1u << bit;
        else
            snprintf(text + length, capacity - length, "%s%s", length ? ", " : "", name);
        length = strlen(text);
    }
    if (unknown)
        snprintf(text + length, capacity - length, "%s%#x", length ? ", " : "", unknown);
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_UTIL_ERRORS_H */
