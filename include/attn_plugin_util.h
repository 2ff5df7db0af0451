/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_plugin_util.h: what a plugin in C or C++ would otherwise write again. No part of the ABI: a
 * plugin may use all of it, some or none, and the functions are compiled into it.
 *
 *   errors          messages with a field, cut between characters
 *   sized structs   read and written as far as both sides know them
 *   names           of fields, roles, data types, kinds: as hosts call them
 *   verdicts        reasons, one call each
 *   problems        what makes no sense, what is beyond a plugin's limits
 *   instances       their memory, lists of layers
 *   memory          sizes that metadata_size tells and metadata_create checks
 *   batches         within bounds? whose rows, which keys?
 *   operands        by role, checked against a form; scales
 *   options         numbers
 *   the plugin      describe, the entry and its version
 *
 * C11 or C++17. Functions that return attn_status write what went wrong into *error, which may be
 * NULL. Without a tag of its own a function may be called by any thread at any time [any-thread].
 */
#ifndef ATTN_PLUGIN_UTIL_H
#define ATTN_PLUGIN_UTIL_H

#include "attn_plugin.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A function that formats as printf does: the format's place, and its first argument's. */
#if defined(__GNUC__) || defined(__clang__)
#define ATTN_UTIL_PRINTF(place, first) __attribute__((format(printf, place, first)))
#else
#define ATTN_UTIL_PRINTF(place, first)
#endif

/* ---- Errors ---------------------------------------------------------------------------------- */

/* Where a text was cut within a character of several bytes, end it before that character. */
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

/* vsnprintf() whose cut, if `capacity` is too small, lies between characters. */
ATTN_UTIL_PRINTF(3, 0)
static inline void attn_util_format(char *text, size_t capacity, const char *format, va_list args)
{
    int length = vsnprintf(text, capacity, format, args);
    if (length >= 0 && capacity > 0 && (size_t)length >= capacity)
        attn_util_cut(text);
}

/* A number as text: what %g says, with a point in every locale. */
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

/* Write code, field and message. For the functions below. */
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

/* The same, naming the field at fault (ATTN_FIELD_*). */
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

/* Put "prefix: " before the message that stands there already, and return `code`. */
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

/* Copy a sized struct of the other side, which may have been built with older or newer headers,
 * into one of `size` bytes: the part that both have, zero after it. */
static inline void attn_util_read(void *to, uint32_t size, const void *from)
{
    uint32_t theirs = *(const uint32_t *)from;
    if (theirs >= size) { /* nearly always, and then of a size that the compiler knows */
        memcpy(to, from, size);
    } else {
        memset(to, 0, size);
        memcpy(to, from, theirs);
    }
    *(uint32_t *)to = size;
}

/* The same with the size of what `to` points to. */
#define ATTN_UTIL_READ(to, from) attn_util_read((to), (uint32_t)sizeof *(to), (from))

/* Copy a struct of `size` bytes into a sized one of the other side: the part that both have;
 * struct_size stays theirs. */
static inline void attn_util_write(void *to, const void *from, uint32_t size)
{
    uint32_t theirs = *(const uint32_t *)to;
    memcpy(to, from, theirs < size ? theirs : size);
    *(uint32_t *)to = theirs;
}

/* The same with the size of what `from` points to. */
#define ATTN_UTIL_WRITE(to, from) attn_util_write((to), (from), (uint32_t)sizeof *(from))

/* Make a sized struct of one's own: zero but for struct_size, the size of what `to` points to. */
#define ATTN_UTIL_INIT(to)                                                                         \
    (memset((to), 0, sizeof *(to)), (void)((to)->struct_size = (uint32_t)sizeof *(to)))

/* ---- Names ----------------------------------------------------------------------------------- */

/* A field (ATTN_FIELD_*) as it stands in texts; "" for none and for those that are not known. */
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

/* An operand's role (ATTN_ROLE_*); "?" for those that are not known. */
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

/* A data type ("bf16"); "absent" for none, "unknown" for others. */
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
    static const char *const names[ATTN_KIND_COUNT] = {"softmax", "mla", "linear", "sparse"};
    return kind < ATTN_KIND_COUNT ? names[kind] : "unknown";
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

/* The member `bit` of a field that is a set: a mode, a mask kind, a use, a note, a flag, a form of
 * indices. NULL for fields that are none, and for bits that are not known. */
static inline const char *attn_util_member_name(uint32_t field, uint32_t bit)
{
#define ATTN_UTIL_MEMBER(name, value, text) text,
    static const char *const modes[] = {ATTN_MODE_MAP(ATTN_UTIL_MEMBER)};
    static const char *const masks[] = {ATTN_MASK_MAP(ATTN_UTIL_MEMBER)};
    static const char *const uses[] = {ATTN_USES_MAP(ATTN_UTIL_MEMBER)};
    static const char *const notes[] = {ATTN_NOTE_MAP(ATTN_UTIL_MEMBER)};
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
    case ATTN_FIELD_NEED_NOTES:
        return ATTN_UTIL_PICK(notes);
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

/* A set as reasons write it: "lse, unsaved_kv", bits that are not known as "0x40", "empty" for
 * none.
 */
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

/* ---- Verdicts --------------------------------------------------------------------------------
 *
 *   attn_util_verdict_begin   supported, no reasons
 *   attn_util_refuse          one reason more: for everything that is in the way, not the first
 *   attn_util_verdict_end     into the caller's struct, no byte beyond its struct_size
 */

/* Start `verdict`, which is ours, from the caller's `given`, whose array of reasons is used in
 * place. */
static inline void attn_util_verdict_begin(const attn_verdict *given, attn_verdict *verdict)
{
    ATTN_UTIL_INIT(verdict);
    verdict->supported = 1;
    verdict->reasons_capacity = given->reasons_capacity;
    verdict->reasons = given->reasons;
}

/* Add a reason with its two texts. For the functions below. */
ATTN_UTIL_PRINTF(6, 0)
static inline void attn_util_add_reason(attn_verdict *verdict, uint32_t code, uint32_t field,
                                        uint32_t with_field, const char *accepted,
                                        const char *got_format, va_list args)
{
    uint32_t index = verdict->num_reasons++;
    verdict->supported = 0;
    if (index >= verdict->reasons_capacity)
        return;
    attn_reason reason;
    ATTN_UTIL_INIT(&reason);
    reason.code = code;
    reason.field = field;
    reason.with_field = with_field;
    attn_util_format(reason.got, sizeof reason.got, got_format, args);
    snprintf(reason.accepted, sizeof reason.accepted, "%s", accepted);
    /* The walk of attn_at(), on an array that is written. */
    ATTN_UTIL_WRITE((char *)verdict->reasons + (size_t)index * verdict->reasons->struct_size,
                    &reason);
}

/* Add the reason "field got: accepted ..." (ATTN_REASON_*, ATTN_FIELD_*). `accepted` is a list as
 * attn_reason describes it; `got_format` is printf's, and what it makes is cut to fit. */
ATTN_UTIL_PRINTF(5, 6)
static inline void attn_util_refuse(attn_verdict *verdict, uint32_t code, uint32_t field,
                                    const char *accepted, const char *got_format, ...)
{
    va_list args;
    va_start(args, got_format);
    attn_util_add_reason(verdict, code, field, ATTN_FIELD_NONE, accepted, got_format, args);
    va_end(args);
}

/* The same for two fields that do not go together: `field` would have to change because of
 * `with_field`. */
ATTN_UTIL_PRINTF(5, 6)
static inline void attn_util_refuse_with(attn_verdict *verdict, uint32_t field, uint32_t with_field,
                                         const char *accepted, const char *got_format, ...)
{
    va_list args;
    va_start(args, got_format);
    attn_util_add_reason(verdict, ATTN_REASON_COMBINATION, field, with_field, accepted, got_format,
                         args);
    va_end(args);
}

/* The same for a field that is a set: refuse members that are not in `most`. Nothing else is a
 * reason: a set may have fewer. */
static inline void attn_util_refuse_excess(attn_verdict *verdict, uint32_t code, uint32_t field,
                                           uint32_t most, uint32_t got)
{
    char accepted[sizeof((attn_reason *)0)->accepted], text[sizeof((attn_reason *)0)->accepted];
    if (!(got & ~most))
        return;
    attn_util_set_text(field, most, accepted, sizeof accepted);
    attn_util_set_text(field, got, text, sizeof text);
    attn_util_refuse(verdict, code, field, accepted, "%s", text);
}

/* Write the answer into the caller's struct. */
static inline void attn_util_verdict_end(const attn_verdict *verdict, attn_verdict *given)
{
    ATTN_UTIL_WRITE(given, verdict);
}

/* ---- Problems that make no sense ------------------------------------------------------------- */

/* A problem in structs of ours, whatever size the caller's have; problem->group and so on still
 * point to the caller's. INVALID_ARGUMENT if one of the four is missing. */
static inline attn_status attn_util_read_problem(const attn_problem *given, attn_problem *problem,
                                                 attn_layer_group *group, attn_bounds *bounds,
                                                 attn_device *device, attn_error *error)
{
    if (!given || !given->group || !given->bounds || !given->device)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                              "problem, group, bounds or device is NULL");
    ATTN_UTIL_READ(problem, given);
    ATTN_UTIL_READ(group, given->group);
    ATTN_UTIL_READ(bounds, given->bounds);
    ATTN_UTIL_READ(device, given->device);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for a group without layers. */
static inline attn_status attn_util_require_layers(const attn_layer_group *group, attn_error *error)
{
    if (group->num_layers < 1 || !group->layers)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_NUM_LAYERS,
                                    "num_layers %u: accepted 1 and more", group->num_layers);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for numbers of heads that no layer can have. */
static inline attn_status attn_util_require_heads(const attn_layer_group *group, attn_error *error)
{
    if (group->num_kv_heads < 1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_NUM_KV_HEADS,
                                    "num_kv_heads %d: accepted 1 and more", group->num_kv_heads);
    if (group->num_q_heads < 1 || group->num_q_heads % group->num_kv_heads != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_NUM_Q_HEADS,
                                    "num_q_heads %d: accepted multiples of num_kv_heads, %d",
                                    group->num_q_heads, group->num_kv_heads);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for what is reckoned from the position of a query, which cross attention has
 * not (docs/ABI.md, MEAN-08). */
static inline attn_status attn_util_require_positionless(const attn_layer_group *group,
                                                         attn_error *error)
{
    const char *why = "cross attention has no query position";
    if (group->window_left != -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_LEFT,
                                    "window_left %d: accepted -1: %s", group->window_left, why);
    if (group->window_right != -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_RIGHT,
                                    "window_right %d: accepted -1: %s", group->window_right, why);
    if (group->attention_chunk != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_ATTENTION_CHUNK,
                                    "attention_chunk %d: accepted 0: %s", group->attention_chunk,
                                    why);
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_ALIBI,
                                    "has_alibi 1: accepted 0: %s", why);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for numbers of heads, or numbers of the softmax, that no layer can have. */
static inline attn_status attn_util_require_softmax(const attn_layer_group *group,
                                                    attn_error *error)
{
    attn_status status = attn_util_require_heads(group, error);
    if (status != ATTN_OK)
        return status;
    if (!isfinite(group->sm_scale))
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SM_SCALE,
                                    "sm_scale %s: accepted finite",
                                    attn_util_number((double)group->sm_scale).text);
    if (!isfinite(group->logit_cap) || group->logit_cap < 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LOGIT_CAP,
                                    "logit_cap %s: accepted 0, or finite above 0",
                                    attn_util_number((double)group->logit_cap).text);
    if (group->window_left < -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_LEFT,
                                    "window_left %d: accepted -1 and more", group->window_left);
    if (group->window_right < -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_RIGHT,
                                    "window_right %d: accepted -1 and more", group->window_right);
    if (group->attention_chunk < 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_ATTENTION_CHUNK,
                                    "attention_chunk %d: accepted 0 and more",
                                    group->attention_chunk);
    return ATTN_OK;
}

/* What the type's query says, with the first reason alone, into `verdict` and `reason`. */
static inline attn_status attn_util_ask(const attn_backend_type *type, const attn_options *options,
                                        const attn_services *services, const attn_problem *problem,
                                        attn_verdict *verdict, attn_reason *reason,
                                        attn_error *error)
{
    ATTN_UTIL_INIT(reason);
    ATTN_UTIL_INIT(verdict);
    verdict->reasons_capacity = 1;
    verdict->reasons = reason;
    return type->query(type, options, services, problem, verdict, error);
}

/* UNSUPPORTED, in the words of the first reason, if the type's query says no. What create begins
 * with, for each problem. */
static inline attn_status attn_util_require_support(const attn_backend_type *type,
                                                    const attn_options *options,
                                                    const attn_services *services,
                                                    const attn_problem *problem, attn_error *error)
{
    attn_reason reason;
    attn_verdict verdict;
    attn_status status = attn_util_ask(type, options, services, problem, &verdict, &reason, error);
    if (status != ATTN_OK || verdict.supported)
        return status;
    return attn_util_fail_field(
        error, ATTN_UNSUPPORTED, reason.field, "%s %s: accepted %s (of %u reasons)",
        attn_util_field_name(reason.field), reason.got, reason.accepted, verdict.num_reasons);
}

/* Layers of all problems. */
static inline uint32_t attn_util_count_layers(const attn_problem *problems, uint32_t num_problems)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < num_problems; p++)
        count += ((const attn_problem *)attn_at(problems, p))->group->num_layers;
    return count;
}

/* ---- Problems beyond a plugin's limits: each is a reason ------------------------------------- */

/* All modes, and all kinds of mask, that these headers know. */
enum {
    ATTN_UTIL_ALL_MODES = (1 << ATTN_MODE_COUNT) - 1,
    ATTN_UTIL_ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1
};

/* What a plugin takes. The first part is for attn_util_check_question() and the functions it calls
 * alone. */
typedef struct attn_util_limits {
    int32_t device_type;         /* ATTN_DEVICE_* */
    uint32_t num_dtypes;         /* elements of `dtypes` */
    const attn_dtype *dtypes;    /* of q, the cache and the output, which have the same one */
    const char *kv_layout;       /* ATTN_LAYOUT_* */
    int32_t max_head_dim;        /* of head_dim and v_head_dim */
    uint32_t chunks;             /* 1 = attention_chunk is served */
    uint32_t kinds;              /* set of 1 << ATTN_KIND_* */
    uint32_t attn_types;         /* set of 1 << ATTN_TYPE_* */
    uint32_t granularities;      /* set of 1 << ATTN_SCALE_* */
    uint32_t group_flags;        /* set of ATTN_GROUP_* */
    uint32_t layer_flags;        /* set of ATTN_LAYER_* */
    uint32_t modes;              /* set of ATTN_MODE_BIT */
    uint32_t mask_kinds;         /* set of ATTN_MASK_BIT */
    uint32_t uses;               /* set of ATTN_USES_* */
    uint32_t graph_level;        /* the highest ATTN_GRAPH_* */
    uint32_t notes;              /* set of ATTN_NOTE_* that are kept */
    uint32_t num_features;       /* elements of `features` */
    const char *const *features; /* that are known, names of private operands among them */
} attn_util_limits;

/* Refuse a value that is not in a set of 1 << value; `name` names values, of which there are
 * `count`. */
static inline void attn_util_check_member(uint32_t set, uint32_t value, uint32_t count,
                                          const char *(*name)(uint32_t), uint32_t code,
                                          uint32_t field, attn_verdict *verdict)
{
    char accepted[sizeof((attn_reason *)0)->accepted] = "";
    if (value < count && set >> value & 1u)
        return;
    for (uint32_t other = 0; other < count; other++)
        if (set >> other & 1u) {
            size_t length = strlen(accepted);
            snprintf(accepted + length, sizeof accepted - length, "%s%s", length ? ", " : "",
                     name(other));
        }
    attn_util_refuse(verdict, code, field, accepted, "%s", name(value));
}

/* Kind, type of attention, granularity of scales, and flags, those that are not known included. */
static inline void attn_util_check_group(const attn_util_limits *limits,
                                         const attn_layer_group *group, attn_verdict *verdict)
{
    const uint32_t known = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI;
    uint32_t excess = group->flags & ~limits->group_flags;
    attn_util_check_member(limits->kinds, group->kind, ATTN_KIND_COUNT, attn_util_kind_name,
                           ATTN_REASON_LAYER_KIND, ATTN_FIELD_KIND, verdict);
    attn_util_check_member(limits->attn_types, group->attn_type, ATTN_TYPE_COUNT,
                           attn_util_attn_type_name, ATTN_REASON_ATTN_TYPE, ATTN_FIELD_ATTN_TYPE,
                           verdict);
    attn_util_check_member(limits->granularities, group->kv_scale_granularity, ATTN_SCALE_COUNT,
                           attn_util_granularity_name, ATTN_REASON_SCALE_GRANULARITY,
                           ATTN_FIELD_SCALE_GRANULARITY, verdict);
    if (excess & ATTN_GROUP_HAS_SINKS)
        attn_util_refuse(verdict, ATTN_REASON_SINKS, ATTN_FIELD_SINKS, "0", "1");
    if (excess & ATTN_GROUP_HAS_ALIBI)
        attn_util_refuse(verdict, ATTN_REASON_ALIBI, ATTN_FIELD_ALIBI, "0", "1");
    if (excess & ~known)
        attn_util_refuse(verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_FEATURE, "absent",
                         "group flags %#x", group->flags);
}

/* For a backend whose q and new k, v have one dtype, that of the cache where it is not quantised:
 * the one that they have, or that q has to have because of the others; NONE = any that `is_served`.
 */
static inline attn_dtype attn_util_one_input(const attn_problem *problem,
                                             int (*is_served)(attn_dtype dtype))
{
    const attn_dtype given[3] = {problem->q_dtype, problem->kv_dtype, problem->new_kv_dtype};
    for (int g = 0; g < 3; g++)
        if (is_served(given[g]))
            return given[g];
    return ATTN_DTYPE_NONE;
}

/* For a backend whose new k, v have q's dtype, `one` (NONE = q's has to become one of several),
 * and which reads no quantised q, k or v: reasons for a problem that says otherwise. */
static inline void attn_util_check_inputs(const attn_problem *problem,
                                          const attn_layer_group *group, attn_dtype one,
                                          attn_verdict *verdict)
{
    if (problem->new_kv_dtype != ATTN_DTYPE_NONE && problem->new_kv_dtype != one)
        attn_util_refuse(verdict, ATTN_REASON_DTYPE, ATTN_FIELD_NEW_KV_DTYPE,
                         one != ATTN_DTYPE_NONE ? attn_util_dtype_name(one) : "absent", "%s",
                         attn_util_dtype_name(problem->new_kv_dtype));
    attn_util_check_member(1u << ATTN_SCALE_NONE, group->input_scale_granularity, ATTN_SCALE_COUNT,
                           attn_util_granularity_name, ATTN_REASON_SCALE_GRANULARITY,
                           ATTN_FIELD_INPUT_SCALE_GRANULARITY, verdict);
}

/* One data type for all of q, new k and v, the cache and the output: q's if it is served, else the
 * cache's, else the first that is. */
static inline void attn_util_check_one_dtype(const attn_util_limits *limits,
                                             const attn_problem *problem,
                                             const attn_layer_group *group, attn_verdict *verdict)
{
    const attn_dtype given[3] = {problem->q_dtype, problem->kv_dtype, problem->out_dtype};
    attn_dtype one = ATTN_DTYPE_NONE;
    for (uint32_t g = 0; g < 2 && one == ATTN_DTYPE_NONE; g++)
        for (uint32_t d = 0; d < limits->num_dtypes; d++)
            if (given[g] == limits->dtypes[d])
                one = given[g];
    if (one == ATTN_DTYPE_NONE)
        one = limits->dtypes[0];
    for (uint32_t g = 0; g < 3; g++)
        if (given[g] != one)
            attn_util_refuse(verdict, ATTN_REASON_DTYPE, (uint32_t)ATTN_FIELD_Q_DTYPE + g,
                             attn_util_dtype_name(one), "%s", attn_util_dtype_name(given[g]));
    attn_util_check_inputs(problem, group, one, verdict);
}

/* Flags of layers; one reason for all of them. */
static inline void attn_util_check_layers(const attn_util_limits *limits,
                                          const attn_layer_group *group, attn_verdict *verdict)
{
    uint32_t flags = 0;
    for (uint32_t n = 0; n < group->num_layers; n++)
        flags |= ((const attn_layer *)attn_at(group->layers, n))->flags;
    attn_util_refuse_excess(verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_LAYERS,
                            limits->layer_flags, flags);
}

/* A cache of keys and values apart, by pages. */
static inline void attn_util_check_kv_layout(const attn_problem *problem, attn_verdict *verdict)
{
    const char *layout = problem->kv_layout;
    if (!layout ||
        (strcmp(layout, ATTN_LAYOUT_KV_NHD) != 0 && strcmp(layout, ATTN_LAYOUT_KV_HND) != 0))
        attn_util_refuse(verdict, ATTN_REASON_KV_LAYOUT, ATTN_FIELD_KV_LAYOUT,
                         ATTN_LAYOUT_KV_NHD ", " ATTN_LAYOUT_KV_HND, "%s",
                         layout ? layout : "absent");
}

/* Refuse a number that is not in [low, high]. */
static inline void attn_util_check_range(int32_t value, int32_t low, int32_t high, uint32_t code,
                                         uint32_t field, attn_verdict *verdict)
{
    char accepted[48];
    if (value >= low && value <= high)
        return;
    snprintf(accepted, sizeof accepted, "%d..%d", low, high);
    attn_util_refuse(verdict, code, field, accepted, "%d", value);
}

/* Modes, masks, uses, and numbers below 0. */
static inline void attn_util_check_bounds(const attn_util_limits *limits, const attn_bounds *bounds,
                                          attn_verdict *verdict)
{
    attn_util_refuse_excess(verdict, ATTN_REASON_MODE, ATTN_FIELD_MODES, limits->modes,
                            bounds->modes);
    attn_util_refuse_excess(verdict, ATTN_REASON_MASK_KIND, ATTN_FIELD_MASK_KINDS,
                            limits->mask_kinds, bounds->mask_kinds);
    attn_util_refuse_excess(verdict, ATTN_REASON_USES, ATTN_FIELD_USES, limits->uses, bounds->uses);
    attn_util_check_range(bounds->max_seqs, 0, INT32_MAX, ATTN_REASON_BOUNDS, ATTN_FIELD_MAX_SEQS,
                          verdict);
    attn_util_check_range(bounds->max_tokens, 0, INT32_MAX, ATTN_REASON_BOUNDS,
                          ATTN_FIELD_MAX_TOKENS, verdict);
    attn_util_check_range(bounds->max_q_len, 0, INT32_MAX, ATTN_REASON_BOUNDS, ATTN_FIELD_MAX_Q_LEN,
                          verdict);
    attn_util_check_range(bounds->max_kv_len, 0, INT32_MAX, ATTN_REASON_BOUNDS,
                          ATTN_FIELD_MAX_KV_LEN, verdict);
    if (bounds->max_kv_tokens < 0)
        attn_util_refuse(verdict, ATTN_REASON_BOUNDS, ATTN_FIELD_MAX_KV_TOKENS, "0..2147483647",
                         "%" PRId64, bounds->max_kv_tokens);
}

static inline int attn_util_knows_feature(const attn_util_limits *limits, const char *feature)
{
    for (uint32_t i = 0; i < limits->num_features; i++)
        if (strcmp(limits->features[i], feature) == 0)
            return 1;
    return 0;
}

/* Graphs, notes, and features that are not known. */
static inline void attn_util_check_needs(const attn_util_limits *limits,
                                         const attn_problem *problem, attn_verdict *verdict)
{
    if (problem->graph_level > limits->graph_level) {
        char accepted[16] = "0";
        if (limits->graph_level > 0)
            snprintf(accepted, sizeof accepted, "0..%u", limits->graph_level);
        attn_util_refuse(verdict, ATTN_REASON_GRAPH_LEVEL, ATTN_FIELD_GRAPH_LEVEL, accepted, "%u",
                         problem->graph_level);
    }
    attn_util_refuse_excess(verdict, ATTN_REASON_DETERMINISM, ATTN_FIELD_NEED_NOTES, limits->notes,
                            problem->need_notes);
    for (uint32_t i = 0; i < problem->num_features; i++)
        if (!attn_util_knows_feature(limits, problem->features[i]))
            attn_util_refuse(verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_FEATURE, "absent",
                             "%s", problem->features[i]);
}

/* What query is asked, in structs of ours, and what it will answer. */
typedef struct attn_util_question {
    attn_problem problem; /* its pointers are the caller's */
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
    attn_verdict verdict;
} attn_util_question;

/* What query does first: the question, and a verdict without reasons. INVALID_ARGUMENT for what is
 * missing, and for a softmax that makes no sense. */
static inline attn_status attn_util_read_question(const attn_problem *given,
                                                  const attn_verdict *answer,
                                                  attn_util_question *question, attn_error *error)
{
    attn_status status = attn_util_read_problem(given, &question->problem, &question->group,
                                                &question->bounds, &question->device, error);
    if (status == ATTN_OK && question->group.kind == ATTN_KIND_SOFTMAX)
        status = attn_util_require_softmax(&question->group, error);
    if (status == ATTN_OK)
        attn_util_verdict_begin(answer, &question->verdict);
    return status;
}

/* All that the limits say, each excess a reason of the question's verdict: device, layout of the
 * cache, group, data types, layers, bounds, needs. */
static inline void attn_util_check_question(const attn_util_limits *limits,
                                            attn_util_question *question)
{
    attn_verdict *verdict = &question->verdict;
    const char *layout = question->problem.kv_layout ? question->problem.kv_layout : "absent";
    if (question->device.type != limits->device_type)
        attn_util_refuse(verdict, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_TYPE,
                         attn_device_name(limits->device_type), "%s",
                         attn_device_name(question->device.type));
    if (strcmp(layout, limits->kv_layout) != 0)
        attn_util_refuse(verdict, ATTN_REASON_KV_LAYOUT, ATTN_FIELD_KV_LAYOUT, limits->kv_layout,
                         "%s", layout);
    attn_util_check_range(question->group.head_dim, 1, limits->max_head_dim, ATTN_REASON_HEAD_DIM,
                          ATTN_FIELD_HEAD_DIM, verdict);
    attn_util_check_range(question->group.v_head_dim, 1, limits->max_head_dim, ATTN_REASON_HEAD_DIM,
                          ATTN_FIELD_V_HEAD_DIM, verdict);
    attn_util_check_range(question->problem.page_size, 1, INT32_MAX, ATTN_REASON_PAGE_SIZE,
                          ATTN_FIELD_PAGE_SIZE, verdict);
    if (question->group.attention_chunk > 0 && !limits->chunks)
        attn_util_refuse(verdict, ATTN_REASON_CHUNK, ATTN_FIELD_ATTENTION_CHUNK, "0", "%d",
                         question->group.attention_chunk);
    attn_util_check_group(limits, &question->group, verdict);
    attn_util_check_one_dtype(limits, &question->problem, &question->group, verdict);
    attn_util_check_layers(limits, &question->group, verdict);
    attn_util_check_bounds(limits, &question->bounds, verdict);
    attn_util_check_needs(limits, &question->problem, verdict);
}

/* UNSUPPORTED, in the words of the first reason, if attn_util_check_bounds() finds one. What
 * metadata_size begins with. */
static inline attn_status attn_util_require_bounds(const attn_util_limits *limits,
                                                   const attn_bounds *bounds, attn_error *error)
{
    attn_reason reason;
    attn_verdict verdict;
    ATTN_UTIL_INIT(&reason);
    ATTN_UTIL_INIT(&verdict);
    verdict.supported = 1;
    verdict.reasons_capacity = 1;
    verdict.reasons = &reason;
    attn_util_check_bounds(limits, bounds, &verdict);
    if (verdict.supported)
        return ATTN_OK;
    return attn_util_fail_field(error, ATTN_UNSUPPORTED, reason.field, "%s %s: accepted %s",
                                attn_util_field_name(reason.field), reason.got, reason.accepted);
}

/* The same, and INVALID_ARGUMENT for bounds of sequences, tokens or keys that are not known. */
static inline attn_status attn_util_require_known_bounds(const attn_util_limits *limits,
                                                         const attn_bounds *bounds,
                                                         attn_error *error)
{
    attn_status status = attn_util_require_bounds(limits, bounds, error);
    if (status != ATTN_OK)
        return status;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 || bounds->max_q_len == 0 ||
        bounds->max_kv_len == 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "bounds max_seqs %d, max_tokens %d, max_q_len %d, "
                                    "max_kv_len %d: accepted 1 and more",
                                    bounds->max_seqs, bounds->max_tokens, bounds->max_q_len,
                                    bounds->max_kv_len);
    return ATTN_OK;
}

/* ---- Instances ------------------------------------------------------------------------------- */

/* INVALID_ARGUMENT for arguments of create that are missing. */
static inline attn_status attn_util_require_create(const attn_problem *problems,
                                                   uint32_t num_problems,
                                                   const attn_services *services,
                                                   attn_instance *const *instance,
                                                   attn_error *error)
{
    if (!problems || num_problems == 0 || !services || !instance)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                              "problems, services or instance is missing");
    return ATTN_OK;
}

/* UNSUPPORTED for more than `most` layer groups. */
static inline attn_status attn_util_require_groups(uint32_t num_problems, uint32_t most,
                                                   attn_error *error)
{
    if (num_problems > most)
        return attn_util_fail(error, ATTN_UNSUPPORTED, "%u layer groups: accepted 1..%u",
                              num_problems, most);
    return ATTN_OK;
}

/* How many of the problems' layers have this id. */
static inline uint32_t attn_util_count_layer_id(const attn_problem *problems, uint32_t num_problems,
                                                int32_t layer_id)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_layer_group *group = ((const attn_problem *)attn_at(problems, p))->group;
        for (uint32_t n = 0; n < group->num_layers; n++)
            count += ((const attn_layer *)attn_at(group->layers, n))->layer_id == layer_id;
    }
    return count;
}

/* INVALID_ARGUMENT for an id of a layer that is below 0, or that two layers have (CAPS-11).
 * attn_util_list_layers() and attn_util_create_model() look at it themselves. */
static inline attn_status attn_util_require_layer_ids(const attn_problem *problems,
                                                      uint32_t num_problems, attn_error *error)
{
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_layer_group *group = ((const attn_problem *)attn_at(problems, p))->group;
        for (uint32_t n = 0; n < group->num_layers; n++) {
            int32_t id = ((const attn_layer *)attn_at(group->layers, n))->layer_id;
            if (id < 0 || attn_util_count_layer_id(problems, num_problems, id) > 1)
                return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                            "layer_id %d twice, or below 0", id);
        }
    }
    return ATTN_OK;
}

/* `size` bytes of host memory, aligned to 64 and not cleared, for services->release() of
 * ATTN_SPACE_HOST to free; NULL, with OUT_OF_HOST_MEMORY in *error.
 * [instance-thread & !capturing] */
static inline attn_instance *attn_util_allocate_instance(const attn_services *services,
                                                         uint64_t size, attn_error *error)
{
    void *made = services->allocate(services->ctx, ATTN_SPACE_HOST, size, 64);
    if (!made)
        attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                       "no memory for an instance of %" PRIu64 " bytes", size);
    return (attn_instance *)made;
}

/* A layer as an instance remembers it. */
typedef struct attn_util_layer {
    int32_t layer_id;
    int32_t kv_read_only; /* 1 = its cache is another layer's (ATTN_LAYER_KV_READ_ONLY) */
} attn_util_layer;

/* Write the layers of `group` to *next, which moves past them; `first` is the instance's first
 * one. INVALID_ARGUMENT for an id that is given twice, or below 0. */
static inline attn_status attn_util_list_layers(const attn_layer_group *group,
                                                const attn_util_layer *first,
                                                attn_util_layer **next, attn_error *error)
{
    for (uint32_t n = 0; n < group->num_layers; n++, ++*next) {
        const attn_layer *layer = (const attn_layer *)attn_at(group->layers, n);
        (*next)->layer_id = layer->layer_id;
        (*next)->kv_read_only = (layer->flags & ATTN_LAYER_KV_READ_ONLY) != 0;
        for (const attn_util_layer *other = first; other <= *next; other++)
            if (layer->layer_id < 0 || (other != *next && other->layer_id == layer->layer_id))
                return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                            "layer_id %d twice, or below 0", layer->layer_id);
    }
    return ATTN_OK;
}

/* Free what attn_util_allocate_instance() or attn_util_create_model() made; NULL is accepted.
 * [instance-thread & !capturing] */
static inline void attn_util_release(const attn_services *services, void *memory)
{
    services->release(services->ctx, ATTN_SPACE_HOST, memory);
}

/* A layer with all that its problem says of it. */
typedef struct attn_util_model_layer {
    int32_t layer_id;
    attn_dtype dtype;       /* of q */
    attn_layer_group group; /* a copy, whose pointers are NULL: they were the caller's */
} attn_util_model_layer;

/* The layers of an instance; what a small plugin's struct attn_instance begins with. */
typedef struct attn_util_model {
    const attn_services *services;
    uint32_t num_layers;
    uint32_t num_kv_groups;        /* the highest kv_group + 1 */
    int32_t max_v_head_dim;        /* of all layers */
    int32_t reserved;              /* 0 */
    attn_util_model_layer *layers; /* [num_layers], in the same memory */
} attn_util_model;

/* The layer of an id; NULL = none. */
static inline const attn_util_model_layer *attn_util_find_layer(const attn_util_model *model,
                                                                int32_t layer_id)
{
    for (uint32_t l = 0; l < model->num_layers; l++)
        if (model->layers[l].layer_id == layer_id)
            return &model->layers[l];
    return NULL;
}

/* Has the model a layer in this KV group? A batch may bring groups of other backends' layers. */
static inline int attn_util_has_kv_group(const attn_util_model *model, uint32_t kv_group)
{
    for (uint32_t l = 0; l < model->num_layers; l++)
        if ((uint32_t)model->layers[l].group.kv_group == kv_group)
            return 1;
    return 0;
}

/* Append a problem's layers. For attn_util_create_model(). INVALID_ARGUMENT. */
static inline attn_status attn_util_add_problem(attn_util_model *model, const attn_problem *problem,
                                                attn_error *error)
{
    attn_layer_group group;
    ATTN_UTIL_READ(&group, problem->group);
    for (uint32_t n = 0; n < group.num_layers; n++) {
        int32_t id = ((const attn_layer *)attn_at(group.layers, n))->layer_id;
        if (id < 0 || attn_util_find_layer(model, id))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                        "layer_id %d twice, or below 0", id);
        attn_util_model_layer *added = &model->layers[model->num_layers++];
        added->layer_id = id;
        added->dtype = problem->q_dtype;
        added->group = group;
        added->group.layers = NULL;
        added->group.mla = NULL;
        added->group.linear = NULL;
        added->group.sparse = NULL;
    }
    if ((uint32_t)group.kv_group >= model->num_kv_groups)
        model->num_kv_groups = (uint32_t)group.kv_group + 1;
    if (group.v_head_dim > model->max_v_head_dim)
        model->max_v_head_dim = group.v_head_dim;
    return ATTN_OK;
}

/* What create does in a small plugin: an instance of `size` bytes, zero but for the model that it
 * begins with; attn_util_release() frees it. UNSUPPORTED if the type's query says no to one of the
 * problems, INVALID_ARGUMENT, OUT_OF_HOST_MEMORY; *instance is set on success alone.
 * [instance-thread & !capturing] */
static inline attn_status attn_util_create_model(const attn_backend_type *type,
                                                 const attn_problem *problems,
                                                 uint32_t num_problems, const attn_options *options,
                                                 const attn_services *services, uint64_t size,
                                                 attn_instance **instance, attn_error *error)
{
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++)
        status = attn_util_require_support(type, options, services,
                                           (const attn_problem *)attn_at(problems, p), error);
    if (status != ATTN_OK)
        return status;
    uint64_t head = (size + 63) / 64 * 64;
    uint64_t layers =
        (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(attn_util_model_layer);
    attn_instance *made = attn_util_allocate_instance(services, head + layers, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    attn_util_model *model = (attn_util_model *)(void *)made;
    memset((void *)made, 0, (size_t)(head + layers));
    model->services = services;
    model->layers = (attn_util_model_layer *)(void *)((char *)(void *)made + head);
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++)
        status = attn_util_add_problem(model, (const attn_problem *)attn_at(problems, p), error);
    if (status == ATTN_OK)
        *instance = made;
    else
        attn_util_release(services, made);
    return status;
}

/* attn_backend_ops.destroy of an instance that attn_util_create_model() made.
 * [instance-thread & !capturing] */
static inline void attn_util_destroy_model(attn_instance *instance)
{
    if (instance)
        attn_util_release(((attn_util_model *)(void *)instance)->services, instance);
}

/* attn_backend_ops.index_forms of a backend that reads block tables alone. [instance-thread] */
static inline uint32_t attn_util_block_tables(attn_instance *instance)
{
    (void)instance;
    return ATTN_INDEX_BLOCK_TABLE;
}

/* ---- Memory of metadata ---------------------------------------------------------------------- */

/* `given` in a struct of ours. INVALID_ARGUMENT for none, or for a kind (ATTN_METADATA_*) that is
 * not known. */
static inline attn_status attn_util_read_bounds(uint32_t kind, const attn_bounds *given,
                                                attn_bounds *bounds, attn_error *error)
{
    if (kind > ATTN_METADATA_GRAPH)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata kind %u: accepted 0, 1",
                              kind);
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "bounds are NULL");
    ATTN_UTIL_READ(bounds, given);
    return ATTN_OK;
}

/* The same on a processor, where nothing is captured: CAPTURE_UNSUPPORTED for GRAPH. */
static inline attn_status attn_util_read_eager_bounds(uint32_t kind, const attn_bounds *given,
                                                      attn_bounds *bounds, attn_error *error)
{
    if (kind == ATTN_METADATA_GRAPH)
        return attn_util_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_GRAPH_LEVEL,
                                    "graph metadata: nothing can be captured on a processor");
    return attn_util_read_bounds(kind, given, bounds, error);
}

/* Clear the caller's struct after its struct_size, as far as that goes. */
static inline void attn_util_clear_size(attn_memory_size *size)
{
    memset((char *)size + sizeof size->struct_size, 0,
           size->struct_size - sizeof size->struct_size);
}

/* The answer of metadata_size on a processor, in bytes: scratch (DEVICE, SCRATCH), and the
 * metadata itself (HOST, METADATA). */
static inline void attn_util_tell_size(attn_memory_size *size, uint64_t scratch, uint64_t metadata,
                                       uint64_t alignment)
{
    attn_util_clear_size(size);
    size->size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH)] = scratch;
    size->alignment[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH)] = alignment;
    size->size[ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)] = metadata;
    size->alignment[ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)] = alignment;
}

/* Has the region (ATTN_REGION) `needed` bytes, aligned to `alignment`? BUFFER_TOO_SMALL with
 * error->needed, or INVALID_ARGUMENT; `name` is what the message calls it. */
static inline attn_status attn_util_check_region(const attn_memory *memory, uint32_t region,
                                                 const char *name, uint64_t needed,
                                                 uint64_t alignment, attn_error *error)
{
    if (memory->size[region] < needed || !memory->base[region]) {
        if (error && ATTN_HAS(error, attn_error, needed))
            error->needed = needed;
        return attn_util_fail_field(error, ATTN_BUFFER_TOO_SMALL, ATTN_FIELD_MEMORY,
                                    "%s is %" PRIu64 " bytes: accepted %" PRIu64 " and more", name,
                                    memory->size[region], needed);
    }
    if ((uintptr_t)memory->base[region] % alignment != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_MEMORY,
                                    "%s is not aligned to %" PRIu64 " bytes", name, alignment);
    return ATTN_OK;
}

/* Has memory what attn_util_tell_size() said? */
static inline attn_status attn_util_check_told(const attn_memory *memory, uint64_t scratch,
                                               uint64_t metadata, uint64_t alignment,
                                               attn_error *error)
{
    attn_status status =
        attn_util_check_region(memory, ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH),
                               "device scratch", scratch, alignment, error);
    if (status == ATTN_OK)
        status = attn_util_check_region(memory, ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA),
                                        "host metadata", metadata, alignment, error);
    return status;
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* For the processor, where both are the same memory; either will do while the call lasts. NULL =
 * not given. */
static inline const int32_t *attn_util_i32(const attn_i32_array *array)
{
    return array->device ? array->device : array->host;
}

/* Is `got` within the bound, whose name is `field` (ATTN_FIELD_MAX_*)? INVALID_ARGUMENT. */
static inline attn_status attn_util_check_count(const char *what, int64_t got, int64_t bound,
                                                uint32_t field, attn_error *error)
{
    if (got < 0 || got > bound)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field,
                                    "%s %" PRId64 ": accepted 0..%" PRId64 ", %s of this metadata",
                                    what, got, bound, attn_util_field_name(field));
    return ATTN_OK;
}

/* The same for a batch's sequences and tokens. */
static inline attn_status attn_util_check_counts(const attn_bounds *bounds, const attn_batch *batch,
                                                 attn_error *error)
{
    attn_status status = attn_util_check_count("num_seqs", batch->num_seqs, bounds->max_seqs,
                                               ATTN_FIELD_MAX_SEQS, error);
    if (status == ATTN_OK)
        status = attn_util_check_count("num_tokens", batch->num_tokens, bounds->max_tokens,
                                       ATTN_FIELD_MAX_TOKENS, error);
    return status;
}

/* INVALID_ARGUMENT if `got`, the number of a mode or of a kind of mask, is not one of the set that
 * the bounds have in `set_field` (ATTN_FIELD_MODES, ATTN_FIELD_MASK_KINDS): "mode mixed: accepted
 * decode, extend, the bounds of this metadata". */
static inline attn_status attn_util_check_chosen(const char *what, uint32_t got, uint32_t set_field,
                                                 uint32_t set, uint32_t error_field,
                                                 attn_error *error)
{
    const char *name = attn_util_member_name(set_field, got);
    char accepted[160], number[16];
    if (name && set >> got & 1u)
        return ATTN_OK;
    snprintf(number, sizeof number, "%" PRIu32, got);
    attn_util_set_text(set_field, set, accepted, sizeof accepted);
    return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, error_field,
                                "%s %s: accepted %s, the bounds of this metadata", what,
                                name ? name : number, accepted);
}

/* Is the mode known, and IDLE or within the bounds? INVALID_ARGUMENT. */
static inline attn_status attn_util_check_mode(const attn_bounds *bounds, uint32_t mode,
                                               attn_error *error)
{
    return attn_util_check_chosen("mode", mode, ATTN_FIELD_MODES,
                                  bounds->modes | ATTN_MODE_BIT(ATTN_MODE_IDLE), ATTN_FIELD_BATCH,
                                  error);
}

/* Is the kind of mask within the bounds? INVALID_ARGUMENT. */
static inline attn_status attn_util_check_mask_kind(const attn_bounds *bounds, uint32_t kind,
                                                    attn_error *error)
{
    return attn_util_check_chosen("mask kind", kind, ATTN_FIELD_MASK_KINDS, bounds->mask_kinds,
                                  ATTN_FIELD_MASK_KINDS, error);
}

/* The kind of a batch's mask (ATTN_MASK_*). */
static inline uint32_t attn_util_mask_kind(const attn_batch *batch)
{
    return batch->mask ? batch->mask->kind : (uint32_t)ATTN_MASK_LAYER;
}

/* Rows of queries as q_indptr lists them: none that is below 0, falls, or is one too many.
 * INVALID_ARGUMENT. */
static inline attn_status attn_util_check_indptr(const attn_batch *batch, attn_error *error)
{
    const int32_t *indptr = attn_util_i32(&batch->q_indptr);
    if (batch->mode == ATTN_MODE_DECODE || batch->num_seqs == 0)
        return ATTN_OK;
    for (int32_t s = 0; s < batch->num_seqs; s++)
        if (indptr[s] < 0 || indptr[s + 1] < indptr[s])
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                        "q_indptr[%d] %d and the next %d: accepted 0 and more, "
                                        "not decreasing",
                                        s, indptr[s], indptr[s + 1]);
    if (indptr[batch->num_seqs] - indptr[0] > batch->num_tokens)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "q_indptr covers %d rows: accepted 0..%d",
                                    indptr[batch->num_seqs] - indptr[0], batch->num_tokens);
    return ATTN_OK;
}

/* Is a batch what a processor's metadata for `bounds` is made for: counts and lengths, mode, kind
 * of mask, optional parts, q_indptr, at least `num_kv_groups` KV groups? INVALID_ARGUMENT. */
static inline attn_status attn_util_check_batch(const attn_bounds *bounds, const attn_batch *batch,
                                                uint32_t num_kv_groups, attn_error *error)
{
    uint32_t kind = attn_util_mask_kind(batch);
    attn_status status = attn_util_check_counts(bounds, batch, error);
    if (status == ATTN_OK)
        status = attn_util_check_count("max_q_len", batch->max_q_len, bounds->max_q_len,
                                       ATTN_FIELD_MAX_Q_LEN, error);
    if (status == ATTN_OK)
        status = attn_util_check_count("max_kv_len", batch->max_kv_len, bounds->max_kv_len,
                                       ATTN_FIELD_MAX_KV_LEN, error);
    if (status == ATTN_OK)
        status = attn_util_check_mode(bounds, batch->mode, error);
    if (status != ATTN_OK)
        return status;
    if (batch->mode == ATTN_MODE_DECODE && batch->num_tokens != batch->num_seqs)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "num_tokens %d in DECODE: accepted %d", batch->num_tokens,
                                    batch->num_seqs);
    status = attn_util_check_mask_kind(bounds, kind, error);
    if (status != ATTN_OK)
        return status;
    if ((attn_util_i32(&batch->positions) && !(bounds->uses & ATTN_USES_POSITIONS)) ||
        (batch->multi_item && !(bounds->uses & ATTN_USES_MULTI_ITEM)))
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_USES,
                                    "positions or multi_item: not among the uses of the bounds");
    if (batch->num_kv_groups < num_kv_groups)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "batch has %u KV groups: accepted %u and more",
                                    batch->num_kv_groups, num_kv_groups);
    return attn_util_check_indptr(batch, error);
}

/* INVALID_ARGUMENT: of the forms of a KV group's indices, arrays included, none is one that is
 * read.
 */
static inline attn_status attn_util_fail_index_forms(int32_t kv_group, uint32_t got,
                                                     uint32_t accepted, attn_error *error)
{
    char forms[64], wanted[64];
    attn_util_set_text(ATTN_FIELD_INDEX_FORMS, got, forms, sizeof forms);
    attn_util_set_text(ATTN_FIELD_INDEX_FORMS, accepted, wanted, sizeof wanted);
    return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                "index_forms of KV group %d are %s, arrays included: accepted one "
                                "of %s",
                                kv_group, forms, wanted);
}

/* Keys of each sequence in a KV group, on a processor. */
static inline const int32_t *attn_util_kv_lens(const attn_batch *batch, const attn_kv_batch *kv)
{
    const int32_t *lens = attn_util_i32(&kv->kv_lens);
    return lens ? lens : attn_util_i32(&batch->seq_lens);
}

/* Are the keys of a KV group within the bounds, each sequence and all of them in whole pages?
 * INVALID_ARGUMENT. */
static inline attn_status attn_util_check_kv(const attn_bounds *bounds, const attn_batch *batch,
                                             const attn_kv_batch *kv, attn_error *error)
{
    const int32_t *lens = attn_util_kv_lens(batch, kv);
    int64_t kv_tokens = 0;
    if (kv->page_size < 1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                    "page_size %d: accepted 1 and more", kv->page_size);
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        if (lens[s] < 0 || lens[s] > bounds->max_kv_len)
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_MAX_KV_LEN,
                                        "sequence %d of %d keys: accepted 0..%d, max_kv_len of "
                                        "this metadata",
                                        s, lens[s], bounds->max_kv_len);
        kv_tokens += ((int64_t)lens[s] + kv->page_size - 1) / kv->page_size * kv->page_size;
    }
    return attn_util_check_count("keys in whole pages", kv_tokens, bounds->max_kv_tokens,
                                 ATTN_FIELD_MAX_KV_TOKENS, error);
}

/* A query of a batch. */
typedef struct attn_util_row {
    int32_t seq;      /* its sequence; -1 = a row of padding, which has none */
    int32_t position; /* i, where it sits in the sequence */
} attn_util_row;

/* List the batch's num_tokens queries, of a batch that attn_util_check_batch() took, in the order
 * of their rows of the operands, of which the first is attn_util_first_row(). On a processor;
 * explicit positions are not looked at. */
static inline void attn_util_list_rows(const attn_batch *batch, attn_util_row *rows)
{
    const int32_t *indptr = attn_util_i32(&batch->q_indptr);
    int32_t count = 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int decode = batch->mode == ATTN_MODE_DECODE;
        int32_t queries = decode ? 1 : indptr[s + 1] - indptr[s];
        int32_t first =
            decode ? attn_util_i32(&batch->seq_lens)[s] - 1 : attn_util_i32(&batch->prefix_lens)[s];
        for (int32_t t = 0; t < queries; t++, count++) {
            rows[count].seq = s;
            rows[count].position = first + t;
        }
    }
    for (; count < batch->num_tokens; count++) {
        rows[count].seq = -1;
        rows[count].position = 0;
    }
}

/* Where in the operands the batch's queries begin, or, where it has no sequence, its padding. */
static inline int32_t attn_util_first_row(const attn_batch *batch)
{
    const int32_t *indptr = attn_util_i32(&batch->q_indptr);
    return indptr && batch->mode != ATTN_MODE_DECODE ? indptr[0] : 0;
}

/* Keys of a sequence in a KV group. */
typedef struct attn_util_keys {
    int64_t count;     /* the new ones included */
    int64_t first_new; /* those before it are in the cache alone */
    int64_t new_row;   /* the row of k, v and out_cache_loc of the first new one */
} attn_util_keys;

/* Rows of new keys: the first, and how many, of sequences [seq, seq + num_seqs). */
static inline void attn_util_new_rows(const attn_batch *batch, const attn_kv_batch *kv, int32_t seq,
                                      int32_t num_seqs, int64_t *first, int64_t *count)
{
    const int32_t *indptr = attn_util_i32(&kv->kv_new_indptr);
    if (!indptr && batch->mode != ATTN_MODE_DECODE)
        indptr = attn_util_i32(&batch->q_indptr);
    if (num_seqs == 0)
        indptr = NULL;
    *first = indptr ? indptr[seq] : seq;
    *count = indptr ? (int64_t)indptr[seq + num_seqs] - indptr[seq] : num_seqs;
}

/* The keys of sequence `seq`, on a processor. */
static inline attn_util_keys attn_util_find_keys(const attn_batch *batch, const attn_kv_batch *kv,
                                                 int32_t seq)
{
    attn_util_keys keys;
    int64_t num_new;
    keys.count = attn_util_kv_lens(batch, kv)[seq];
    attn_util_new_rows(batch, kv, seq, 1, &keys.new_row, &num_new);
    keys.first_new = keys.count - num_new;
    return keys;
}

/* The page of key `key` of a sequence, by the block table, on a processor. */
static inline int32_t attn_util_find_page(const attn_kv_batch *kv, int32_t seq, int64_t key)
{
    const int32_t *table = attn_util_i32(&kv->block_table);
    return table[(int64_t)seq * kv->block_table_stride + key / kv->page_size];
}

/* What a small plugin's struct attn_metadata begins with, on a processor. */
typedef struct attn_util_plan {
    const attn_util_model *model;
    attn_bounds bounds;
    attn_batch batch;      /* of the last init_forward_metadata; its structs are the caller's */
    attn_kv_batch *kv;     /* [num_kv_groups] copies */
    attn_util_row *rows;   /* [num_tokens] */
    int32_t planned;       /* 0 = there is no batch yet, or the last one was refused */
    uint32_t mask_kind;    /* ATTN_MASK_* */
    char *scratch;         /* [num_workers, worker_bytes] */
    uint64_t worker_bytes; /* a multiple of 64 */
} attn_util_plan;

/* What metadata for `kind` and `bounds` takes: a struct of `size` bytes that begins with a plan,
 * and its arrays; scratch of `worker_bytes` for each worker, which become a multiple of 64. Writes
 * a copy of the bounds. UNSUPPORTED beyond the limits, CAPTURE_UNSUPPORTED, INVALID_ARGUMENT. */
static inline attn_status attn_util_measure_plan(const attn_util_limits *limits,
                                                 const attn_util_model *model, uint32_t kind,
                                                 const attn_bounds *given, attn_bounds *bounds,
                                                 uint64_t *size, uint64_t *worker_bytes,
                                                 attn_error *error)
{
    attn_status status = attn_util_read_eager_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = attn_util_require_bounds(limits, bounds, error);
    if (status != ATTN_OK)
        return status;
    *worker_bytes = (*worker_bytes + 63) / 64 * 64;
    *size = (*size + 63) / 64 * 64;
    *size += model->num_kv_groups * (uint64_t)sizeof(attn_kv_batch) +
             (uint64_t)bounds->max_tokens * sizeof(attn_util_row);
    return ATTN_OK;
}

/* metadata_size of a small plugin. Errors are attn_util_measure_plan()'s.
 * [instance-thread & !capturing] */
static inline attn_status attn_util_size_plan(const attn_util_limits *limits,
                                              const attn_util_model *model, uint32_t kind,
                                              const attn_bounds *given, uint64_t size,
                                              uint64_t worker_bytes, attn_memory_size *told,
                                              attn_error *error)
{
    attn_bounds bounds;
    attn_status status =
        attn_util_measure_plan(limits, model, kind, given, &bounds, &size, &worker_bytes, error);
    if (status == ATTN_OK)
        attn_util_tell_size(told, model->services->num_workers * worker_bytes, size, 64);
    return status;
}

/* metadata_create of a small plugin, with the arguments that attn_util_size_plan() had: *metadata
 * lies in the caller's memory, zero but for the plan it begins with, so there is nothing to
 * destroy. The same errors, and BUFFER_TOO_SMALL. [instance-thread & !capturing] */
static inline attn_status attn_util_create_plan(const attn_util_limits *limits,
                                                const attn_util_model *model, uint32_t kind,
                                                const attn_bounds *given, uint64_t size,
                                                uint64_t worker_bytes, const attn_memory *memory,
                                                attn_metadata **metadata, attn_error *error)
{
    attn_bounds bounds;
    uint64_t head = (size + 63) / 64 * 64;
    attn_status status =
        attn_util_measure_plan(limits, model, kind, given, &bounds, &size, &worker_bytes, error);
    if (status == ATTN_OK)
        status = attn_util_check_told(memory, model->services->num_workers * worker_bytes, size, 64,
                                      error);
    if (status != ATTN_OK)
        return status;
    void *made = memory->base[ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA)];
    attn_util_plan *plan = (attn_util_plan *)made;
    memset(made, 0, (size_t)head);
    plan->model = model;
    plan->bounds = bounds;
    plan->kv = (attn_kv_batch *)(void *)((char *)made + head);
    plan->rows = (attn_util_row *)(void *)(plan->kv + model->num_kv_groups);
    plan->scratch = (char *)memory->base[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH)];
    plan->worker_bytes = worker_bytes;
    *metadata = (attn_metadata *)made;
    return ATTN_OK;
}

/* attn_backend_ops.init_forward_metadata of metadata that attn_util_create_plan() made: read the
 * batch, check it (attn_util_check_batch(), and attn_util_check_kv() for the model's KV groups) and
 * list its rows. INVALID_ARGUMENT, after which there is no batch. [instance-thread & !capturing] */
static inline attn_status attn_util_init_plan(attn_metadata *metadata, const attn_batch *batch,
                                              attn_stream stream, attn_error *error)
{
    attn_util_plan *plan = (attn_util_plan *)(void *)metadata;
    const attn_util_model *model = plan->model;
    (void)stream; /* on a processor all is done when the call returns */
    plan->planned = 0;
    ATTN_UTIL_READ(&plan->batch, batch);
    attn_status status =
        attn_util_check_batch(&plan->bounds, &plan->batch, model->num_kv_groups, error);
    for (uint32_t g = 0; g < model->num_kv_groups && status == ATTN_OK; g++) {
        ATTN_UTIL_READ(&plan->kv[g], attn_at(plan->batch.kv_groups, g));
        if (attn_util_has_kv_group(model, g))
            status = attn_util_check_kv(&plan->bounds, &plan->batch, &plan->kv[g], error);
    }
    if (status != ATTN_OK)
        return status;
    plan->mask_kind = attn_util_mask_kind(&plan->batch);
    attn_util_list_rows(&plan->batch, plan->rows);
    plan->planned = 1;
    return ATTN_OK;
}

/* attn_backend_ops.metadata_destroy of the same, which lies in the caller's memory.
 * [instance-thread & !capturing] */
static inline void attn_util_destroy_plan(attn_metadata *metadata)
{
    (void)metadata;
}

/* Can a batch of `mode`, if one is planned, be run by forward_decode (`decode`) or by
 * forward_extend? Both take IDLE. BAD_STATE. */
static inline attn_status attn_util_check_forward(int planned, uint32_t mode, int decode,
                                                  attn_error *error)
{
    if (!planned)
        return attn_util_fail(error, ATTN_BAD_STATE, "forward before a batch was planned");
    if (mode != ATTN_MODE_IDLE && decode != (mode == ATTN_MODE_DECODE))
        return attn_util_fail(error, ATTN_BAD_STATE, "%s for a batch of mode %u",
                              decode ? "forward_decode" : "forward_extend", mode);
    return ATTN_OK;
}

/* Run `count` tasks on the host's workers; a single one here. What a task returns, reported as a
 * failure of parallel_for. [instance-thread] */
static inline attn_status attn_util_run_tasks(const attn_services *services, int64_t count,
                                              attn_task task, void *arg, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (count == 1)
        status = task(arg, 0, 0);
    else if (count > 1)
        status = services->parallel_for(services->ctx, count, task, arg);
    if (status == ATTN_OK)
        return ATTN_OK;
    return attn_util_fail(error, status, "parallel_for failed with status %d", status);
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* What an operand has to look like. An extent of -1 takes any. */
typedef struct attn_util_form {
    attn_dtype dtype;
    int32_t device_type; /* ATTN_DEVICE_* */
    uint32_t ndim;
    int64_t shape[ATTN_MAX_DIMS];
    int32_t written; /* 1 = must not be READ_ONLY */
} attn_util_form;

/* The arguments of a forward on a processor, in a struct of ours. CAPTURE_UNSUPPORTED for one that
 * is to be captured, INVALID_ARGUMENT without the operands that are counted. */
static inline attn_status attn_util_read_args(const attn_forward_args *given,
                                              attn_forward_args *args, attn_error *error)
{
    ATTN_UTIL_READ(args, given);
    if (args->flags & ATTN_FORWARD_CAPTURING)
        return attn_util_fail(error, ATTN_CAPTURE_UNSUPPORTED,
                              "nothing can be captured on a processor");
    if (args->num_operands > 0 && !args->operands)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    if (args->num_scales > 0 && !args->scales)
        args->num_scales = 0;
    return ATTN_OK;
}

/* Address of the first element. */
static inline char *attn_util_data(const attn_tensor *tensor)
{
    return (char *)tensor->data + tensor->byte_offset;
}

/* Address of element [i][j][0]. */
static inline void *attn_util_at(const attn_tensor *tensor, int64_t i, int64_t j)
{
    return attn_util_data(tensor) +
           (i * tensor->strides[0] + j * tensor->strides[1]) * attn_dtype_size(tensor->dtype);
}

/* Address of element [i][j][k][0]. */
static inline void *attn_util_at4(const attn_tensor *tensor, int64_t i, int64_t j, int64_t k)
{
    return (char *)attn_util_at(tensor, i, j) +
           k * tensor->strides[2] * attn_dtype_size(tensor->dtype);
}

/* Dimensions, extents and strides of an operand. For attn_util_operand(). */
static inline attn_status attn_util_check_shape(const char *name, const attn_tensor *tensor,
                                                const attn_util_form *form, attn_error *error)
{
    if (tensor->ndim != form->ndim)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s has %u dimensions: accepted %u", name, tensor->ndim,
                                    form->ndim);
    int is_empty = 0; /* a tensor without elements has no strides that count */
    for (uint32_t d = 0; d < tensor->ndim; d++)
        is_empty |= tensor->shape[d] == 0;
    for (uint32_t d = 0; d < form->ndim; d++) {
        if (tensor->shape[d] < 0 || (form->shape[d] >= 0 && tensor->shape[d] != form->shape[d]))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                        "operand %s: shape[%u] is %" PRId64 ": accepted %" PRId64,
                                        name, d, tensor->shape[d], form->shape[d]);
        if (tensor->strides[d] < 0 ||
            (tensor->strides[d] == 0 && tensor->shape[d] > 1 && !is_empty))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_STRIDE,
                                        "operand %s: strides[%u] is %" PRId64
                                        ": accepted 1 and more",
                                        name, d, tensor->strides[d]);
    }
    uint32_t last = form->ndim - 1;
    if (tensor->strides[last] != 1 && tensor->shape[last] > 1 && !is_empty)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_STRIDE,
                                    "operand %s: innermost stride is %" PRId64 ": accepted 1", name,
                                    tensor->strides[last]);
    return ATTN_OK;
}

/* Data of an operand: there, and aligned to its elements. For attn_util_operand(). */
static inline attn_status attn_util_check_data(const char *name, const attn_tensor *tensor,
                                               attn_error *error)
{
    uint32_t size = attn_dtype_size(tensor->dtype);
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return ATTN_OK;
    if (!tensor->data)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s: data is NULL", name);
    if (size > 1 && (uintptr_t)attn_util_data(tensor) % size != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s: data is not aligned to its %u bytes", name, size);
    return ATTN_OK;
}

/* The operand of `role`, checked against `form`: dtype, device, number of dimensions, extents,
 * innermost stride 1, data present and aligned to its elements. INVALID_ARGUMENT, with the role's
 * name, if it is absent or looks otherwise. *operand is set on success alone. */
static inline attn_status attn_util_operand(const attn_forward_args *args, uint32_t role,
                                            const attn_util_form *form, const attn_tensor **operand,
                                            attn_error *error)
{
    const char *name = attn_util_role_name(role);
    const attn_tensor *tensor = attn_operand(args, role);
    if (!tensor)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s is missing", name);
    if (tensor->dtype != form->dtype)
        return attn_util_fail_field(
            error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND, "operand %s is %s: accepted %s", name,
            attn_util_dtype_name(tensor->dtype), attn_util_dtype_name(form->dtype));
    if (tensor->device_type != form->device_type)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s is on device type %s: accepted %s", name,
                                    attn_device_name(tensor->device_type),
                                    attn_device_name(form->device_type));
    if (form->written && tensor->flags & ATTN_TENSOR_READ_ONLY)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "operand %s is read-only", name);
    attn_status status = attn_util_check_shape(name, tensor, form, error);
    if (status == ATTN_OK)
        status = attn_util_check_data(name, tensor, error);
    if (status == ATTN_OK)
        *operand = tensor;
    return status;
}

/* The private operand of this name, or NULL. */
static inline const attn_tensor *attn_util_named(const attn_forward_args *args, const char *name)
{
    uint32_t count = ATTN_HAS(args, attn_forward_args, named) ? args->num_named : 0;
    for (uint32_t i = 0; i < count; i++) {
        const attn_named_operand *named = (const attn_named_operand *)attn_at(args->named, i);
        if (strcmp(named->name, name) == 0)
            return named->tensor;
    }
    return NULL;
}

/* Operands of softmax attention over a cache in the layout kv.nhd/1; NULL = not given. */
typedef struct attn_util_operands {
    const attn_tensor *q, *k, *v, *out, *lse, *k_cache, *v_cache;
    int32_t saves; /* 1 = new keys and values are to be written to the cache */
} attn_util_operands;

/* The operands of a call on a processor, each checked: q, out and the caches have to be there, k
 * and v both or neither, and what is written must not be READ_ONLY; all of type `dtype`.
 * CAPTURE_UNSUPPORTED, INVALID_ARGUMENT. */
static inline attn_status attn_util_read_operands(const attn_forward_args *given,
                                                  const attn_layer_group *group, attn_dtype dtype,
                                                  attn_util_operands *operands, attn_error *error)
{
    attn_forward_args args;
    attn_status status = attn_util_read_args(given, &args, error);
    if (status != ATTN_OK)
        return status;
    int32_t is_new = attn_operand(&args, ATTN_ROLE_K) || attn_operand(&args, ATTN_ROLE_V);
    int32_t is_lse = attn_operand(&args, ATTN_ROLE_LSE) != NULL;
    memset(operands, 0, sizeof *operands);
    operands->saves = is_new && args.flags & ATTN_FORWARD_SAVE_KV;
    const int32_t q_heads = group->num_q_heads, kv_heads = group->num_kv_heads;
    const int32_t dim = group->head_dim, v_dim = group->v_head_dim, cpu = ATTN_DEVICE_CPU;
    const struct {
        uint32_t role;
        int32_t is_there;
        const attn_tensor **to;
        attn_util_form form;
    } wanted[] = {
        {ATTN_ROLE_Q, 1, &operands->q, {dtype, cpu, 3, {-1, q_heads, dim}, 0}},
        {ATTN_ROLE_OUT, 1, &operands->out, {dtype, cpu, 3, {-1, q_heads, v_dim}, 1}},
        {ATTN_ROLE_K, is_new, &operands->k, {dtype, cpu, 3, {-1, kv_heads, dim}, 0}},
        {ATTN_ROLE_V, is_new, &operands->v, {dtype, cpu, 3, {-1, kv_heads, v_dim}, 0}},
        {ATTN_ROLE_LSE, is_lse, &operands->lse, {ATTN_F32, cpu, 2, {-1, q_heads}, 1}},
        {ATTN_ROLE_K_CACHE,
         1,
         &operands->k_cache,
         {dtype, cpu, 4, {-1, -1, kv_heads, dim}, operands->saves}},
        {ATTN_ROLE_V_CACHE,
         1,
         &operands->v_cache,
         {dtype, cpu, 4, {-1, -1, kv_heads, v_dim}, operands->saves}},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == ATTN_OK; i++)
        if (wanted[i].is_there)
            status = attn_util_operand(&args, wanted[i].role, &wanted[i].form, wanted[i].to, error);
    return status;
}

/* Copy the new keys and values of a batch to their slots, if the call says so; one row after the
 * other, in the calling thread. */
static inline void attn_util_save_kv(const attn_util_operands *operands, const attn_batch *batch,
                                     const attn_kv_batch *kv, const attn_layer_group *group)
{
    int64_t first, count;
    if (!operands->saves)
        return;
    size_t size = attn_dtype_size(operands->k->dtype);
    attn_util_new_rows(batch, kv, 0, batch->num_seqs, &first, &count);
    for (int64_t row = first; row < first + count; row++) {
        int64_t slot =
            (kv->out_cache_loc.device ? kv->out_cache_loc.device : kv->out_cache_loc.host)[row];
        int64_t page = slot / kv->page_size, offset = slot % kv->page_size;
        for (int32_t h = 0; h < group->num_kv_heads && slot >= 0; h++) {
            memcpy(attn_util_at4(operands->k_cache, page, offset, h),
                   attn_util_at(operands->k, row, h), (size_t)group->head_dim * size);
            memcpy(attn_util_at4(operands->v_cache, page, offset, h),
                   attn_util_at(operands->v, row, h), (size_t)group->v_head_dim * size);
        }
    }
}

/* Values of a scale of this granularity: of `heads` KV heads, for a batch of `seqs` sequences and a
 * cache of `slots`. */
static inline uint32_t attn_util_scale_count(uint32_t granularity, int32_t heads, int32_t seqs,
                                             int64_t slots)
{
    switch (granularity) {
    case ATTN_SCALE_PER_HEAD:
        return (uint32_t)heads;
    case ATTN_SCALE_PER_SEQ_HEAD:
        return (uint32_t)seqs * (uint32_t)heads;
    case ATTN_SCALE_PER_TOKEN_HEAD:
        return (uint32_t)slots * (uint32_t)heads;
    default:
        return 1;
    }
}

/* The place of a value: of KV head `head` of `heads`, sequence `seq`, slot `slot`, of those that
 * the granularity tells apart. */
static inline int64_t attn_util_scale_at(uint32_t granularity, int32_t heads, int64_t seq,
                                         int64_t slot, int64_t head)
{
    switch (granularity) {
    case ATTN_SCALE_PER_HEAD:
        return head;
    case ATTN_SCALE_PER_SEQ_HEAD:
        return seq * heads + head;
    case ATTN_SCALE_PER_TOKEN_HEAD:
        return slot * heads + head;
    default:
        return 0;
    }
}

/* The scale of a role of `granularity` with `count` values: its values on the host, each checked
 * to be finite and above 0, but those of slots, which may not all be in use. INVALID_ARGUMENT if it
 * is missing, of another granularity or count, or has no value that this process can read. */
static inline attn_status attn_util_scale(const attn_forward_args *args, uint32_t role,
                                          uint32_t granularity, uint32_t count,
                                          const float **values, attn_error *error)
{
    const char *name = attn_util_role_name(role);
    const attn_scale *scale = attn_operand_scale(args, role);
    if (!scale)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s is missing", name);
    if (scale->granularity != granularity)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s: granularity is %u: accepted %u", name,
                                    scale->granularity, granularity);
    if (scale->count != count)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s: count is %u: accepted %u", name, scale->count,
                                    count);
    const float *given = scale->host ? scale->host : scale->device;
    if (!given)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                    "scale of %s: both pointers are NULL", name);
    for (uint32_t i = 0; i < count && granularity != ATTN_SCALE_PER_TOKEN_HEAD; i++)
        if (!(given[i] > 0) || !isfinite(given[i]))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SCALE,
                                        "scale of %s: value %u is %s: accepted finite, above 0",
                                        name, i, attn_util_number((double)given[i]).text);
    *values = given;
    return ATTN_OK;
}

/* ---- Options --------------------------------------------------------------------------------- */

/* A number within [low, high], both of which fit. CONFIG_ERROR with place and key. */
static inline attn_status attn_util_option_number(const attn_option_value *value, int64_t low,
                                                  int64_t high, int32_t *to, attn_error *error)
{
    if (value->integer < low || value->integer > high)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "%s: %s = %" PRId64 ": accepted %" PRId64 "..%" PRId64,
                                    value->place, value->key, value->integer, low, high);
    *to = (int32_t)value->integer;
    return ATTN_OK;
}

/* ---- The plugin ------------------------------------------------------------------------------ */

/* attn_plugin_entry(): `mine` with struct_size, the ABI's version and, where it says none, the
 * build filled in, as far as the caller's struct goes. INCOMPATIBLE_VERSION if the host does not
 * drive the major of these headers. */
static inline attn_status attn_util_entry(const attn_host_info *host, const attn_plugin *mine,
                                          attn_plugin *plugin, attn_error *error)
{
    if (!attn_host_speaks(host, ATTN_ABI_MAJOR))
        return attn_util_fail(error, ATTN_INCOMPATIBLE_VERSION, "ABI major %u..%u: accepted %u",
                              host->abi_major_min, host->abi_major_max, ATTN_ABI_MAJOR);
    attn_plugin whole = *mine;
    whole.abi_major = ATTN_ABI_MAJOR;
    whole.abi_minor = ATTN_ABI_MINOR;
#ifdef __VERSION__
    if (!whole.build)
        whole.build = __VERSION__;
#endif
    ATTN_UTIL_WRITE(plugin, &whole);
    return ATTN_OK;
}

/* attn_plugin.describe over all of the plugin's types. INVALID_ARGUMENT past them. */
static inline attn_status attn_util_describe(const attn_backend_type *const *types, uint32_t count,
                                             uint32_t index, const attn_backend_type **type,
                                             attn_error *error)
{
    if (index >= count && count == 1)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0", index);
    if (index >= count)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0..%u", index,
                              count - 1);
    *type = types[index];
    return ATTN_OK;
}

/* attn_backend_ops.get_extension of a backend that has none. */
static inline const void *attn_util_no_extension(attn_instance *instance, const char *id)
{
    (void)instance;
    (void)id;
    return NULL;
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_PLUGIN_UTIL_H */
