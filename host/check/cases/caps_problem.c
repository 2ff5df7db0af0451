/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_problem.c: drawing and mending of random problems, field by field.
 */
#include "host/check/cases/caps_problem.h"
#include "host/check/cases/draw.h"

#include "host/base/dtype.h"
#include "host/base/mix.h"
#include "host/plugin/layouts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Problems -------------------------------------------------------------------------------- */

static void link_parts(struct caps_problem *p)
{
    p->group.layers = p->layers;
    p->group.mla = p->group.mla ? &p->mla : NULL;
    p->group.linear = p->group.linear ? &p->linear : NULL;
    p->group.sparse = p->group.sparse ? &p->sparse : NULL;
    p->problem.device = &p->device;
    p->problem.group = &p->group;
    p->problem.bounds = &p->bounds;
    p->problem.features = p->problem.num_features ? p->features : NULL;
}

void caps_problem_init(struct caps_problem *p, const struct case_spec *spec,
                       const attn_device *device)
{
    struct spec_problem posed;
    spec_problem_init(&posed, spec, device);
    memset(p, 0, sizeof *p);
    p->device = *device;
    memcpy(p->layers, posed.layers, sizeof p->layers);
    p->group = posed.group;
    p->bounds = posed.bounds;
    p->problem = posed.problem;
    p->mla = (attn_mla_dims){sizeof p->mla, 512, 64, 128};
    p->linear = (attn_linear_dims){.struct_size = sizeof p->linear,
                                   .num_k_heads = 2,
                                   .num_v_heads = 4,
                                   .head_k_dim = 64,
                                   .head_v_dim = 64,
                                   .conv_width = 4,
                                   .state_dtype = ATTN_F32,
                                   .conv_dtype = ATTN_F32}; /* goes with any q_dtype */
    p->sparse = (attn_sparse_dims){.struct_size = sizeof p->sparse, .top_k = 64, .block_size = 1};
    link_parts(p);
}

void caps_problem_copy(struct caps_problem *to, const struct caps_problem *from)
{
    *to = *from;
    link_parts(to);
}

/* ---- Setting a field ------------------------------------------------------------------------- */

/* All members of a set, and the first number beyond them. */
#define EVERY(kind)  ((1 << ATTN_##kind##_COUNT) - 1)
#define BEYOND(kind) (1 << ATTN_##kind##_COUNT)

/* Fields that are numbers: where their members lie, if they are one each, and what they are set to;
 * values of no list are mixed with listed ones. Fields with values come first. */
enum number_type { NUMBER_NONE, NUMBER_I32, NUMBER_U32, NUMBER_I64, NUMBER_FLOAT };
struct number_field {
    struct caps_values of;
    enum number_type type;
    size_t offset; /* in struct caps_problem */
};
#define AT(member) offsetof(struct caps_problem, member)
#define FIELD(name, type, member, ...)                                                             \
    {                                                                                              \
        {ATTN_FIELD_##name, sizeof((double[]){__VA_ARGS__}) / sizeof(double), {__VA_ARGS__}},      \
            NUMBER_##type, AT(member)                                                              \
    }
enum { FIELDS_WITH_VALUES = 32 };

static const struct number_field number_fields[] = {
    FIELD(DEVICE_TYPE, I32, device.type, 1, 2, 77),
    FIELD(DEVICE_SM, U32, device.sm, 0, 70, 80, 90, 100),
    FIELD(DEVICE_CPU_ISA, U32, device.cpu_isa, 0, 3),
    FIELD(KIND, U32, group.kind, 0, 1, 2, 3, 4),
    FIELD(ATTN_TYPE, U32, group.attn_type, 0, 1, 2, 3),
    FIELD(NUM_Q_HEADS, I32, group.num_q_heads, 1, 2, 8, 64, 128, 3),
    FIELD(NUM_KV_HEADS, I32, group.num_kv_heads, 1, 2, 8, 16, 5),
    FIELD(HEAD_DIM, I32, group.head_dim, 0, 1, 7, 64, 72, 128, 192, 256, 576, 4096),
    FIELD(V_HEAD_DIM, I32, group.v_head_dim, 0, 1, 7, 64, 72, 128, 192, 256, 512, 4096),
    FIELD(WINDOW_LEFT, I32, group.window_left, -1, 0, 15, 127, 4096),
    FIELD(WINDOW_RIGHT, I32, group.window_right, -1, 0, 3, 100),
    FIELD(ATTENTION_CHUNK, I32, group.attention_chunk, 0, 1, 64, 8192),
    FIELD(LOGIT_CAP, FLOAT, group.logit_cap, 0, 30, 50),
    {{ATTN_FIELD_SINKS, 2, {0, 1}}, NUMBER_NONE, 0},
    {{ATTN_FIELD_ALIBI, 2, {0, 1}}, NUMBER_NONE, 0},
    FIELD(SCALE_GRANULARITY, U32, group.kv_scale_granularity, 0, 1, 2, 3, 4, 5),
    FIELD(INPUT_SCALE_GRANULARITY, U32, group.input_scale_granularity, 0, 1, 2, 3, 4, 5),
    FIELD(NUM_LAYERS, U32, group.num_layers, 1, 2),
    FIELD(LAYERS, U32, layers[0].flags, 0, 1, 256),
    FIELD(PAGE_SIZE, I32, problem.page_size, 1, 3, 16, 64, 128, 256, 1000),
    FIELD(MODES, U32, bounds.modes, 0, 1, 2, 3, 4, 8, 16, EVERY(MODE), BEYOND(MODE), 0x80000001),
    FIELD(MASK_KINDS, U32, bounds.mask_kinds, 0, 1, 2, 4, 8, EVERY(MASK), BEYOND(MASK), 0x40000001),
    FIELD(USES, U32, bounds.uses, 0, 1, 2, 4, 8, 16, 32, 64, 128, ATTN_USES_ALL,
          ATTN_USES_ALL + 1.0, 0x20000000),
    FIELD(MAX_SEQS, I32, bounds.max_seqs, -1, 0, 1, 64, 4096, 2147483647),
    FIELD(MAX_TOKENS, I32, bounds.max_tokens, -5, 0, 64, 8192, 2147483647),
    FIELD(MAX_Q_LEN, I32, bounds.max_q_len, -1, 0, 64, 8192),
    FIELD(MAX_KV_LEN, I32, bounds.max_kv_len, -1, 0, 512, 131072, 2147483647),
    FIELD(MAX_KV_TOKENS, I64, bounds.max_kv_tokens, -1, 0, 4096, 1 << 20, 1e12),
    FIELD(GRAPH_LEVEL, U32, problem.graph_level, 0, 1, 2, 3, 4),
    FIELD(REQUIRED_TRAITS, U32, problem.required_traits, 0, 1, 2, 3, 4, ATTN_TRAIT_SM_BUDGET,
          ATTN_TRAIT_ALL, ATTN_TRAIT_ALL + 1.0, 1 << 20),
    FIELD(MIN_ALIGNMENT, U32, problem.min_alignment, 0, 16, 64, 256),
    FIELD(KV_STRIDES, U32, problem.kv_strides, ATTN_KV_STRIDES_ANY, ATTN_KV_STRIDES_EQUAL),
    {{.field = ATTN_FIELD_DEVICE_SHARED_MEMORY}, NUMBER_U32, AT(device.shared_memory)},
    {{.field = ATTN_FIELD_DEVICE_DRIVER}, NUMBER_U32, AT(device.driver_version)},
    {{.field = ATTN_FIELD_SM_SCALE}, NUMBER_FLOAT, AT(group.sm_scale)},
    {{.field = ATTN_FIELD_MLA_EXPANDED}, NUMBER_U32, AT(problem.mla_expanded)},
    {{.field = ATTN_FIELD_KV_LORA_RANK}, NUMBER_I32, AT(mla.kv_lora_rank)},
    {{.field = ATTN_FIELD_ROPE_DIM}, NUMBER_I32, AT(mla.rope_dim)},
    {{.field = ATTN_FIELD_NOPE_DIM}, NUMBER_I32, AT(mla.nope_dim)},
    {{.field = ATTN_FIELD_LINEAR_FAMILY}, NUMBER_U32, AT(linear.family)},
    {{.field = ATTN_FIELD_LINEAR_FLAGS}, NUMBER_U32, AT(linear.flags)},
    {{.field = ATTN_FIELD_CONV_WIDTH}, NUMBER_I32, AT(linear.conv_width)},
    {{.field = ATTN_FIELD_INDEX_KIND}, NUMBER_U32, AT(sparse.index_kind)},
    {{.field = ATTN_FIELD_TOP_K}, NUMBER_I32, AT(sparse.top_k)},
    {{.field = ATTN_FIELD_BLOCK_SIZE}, NUMBER_I32, AT(sparse.block_size)},
    {{.field = ATTN_FIELD_LABEL_CACHE}, NUMBER_I32, AT(sparse.label_dim)},
};

static const struct number_field dtype_fields[] = {
    {{.field = ATTN_FIELD_Q_DTYPE}, NUMBER_U32, AT(problem.q_dtype)},
    {{.field = ATTN_FIELD_KV_DTYPE}, NUMBER_U32, AT(problem.kv_dtype)},
    {{.field = ATTN_FIELD_OUT_DTYPE}, NUMBER_U32, AT(problem.out_dtype)},
    {{.field = ATTN_FIELD_NEW_KV_DTYPE}, NUMBER_U32, AT(problem.new_kv_dtype)},
    {{.field = ATTN_FIELD_STATE_DTYPE}, NUMBER_U32, AT(linear.state_dtype)},
    {{.field = ATTN_FIELD_CONV_DTYPE}, NUMBER_U32, AT(linear.conv_dtype)},
};

#define NUM_FIELDS(fields) (sizeof(fields) / sizeof((fields)[0]))

static const struct number_field *find_field(const struct number_field *fields, size_t count,
                                             uint32_t field)
{
    for (size_t n = 0; n < count; n++)
        if (fields[n].of.field == field)
            return &fields[n];
    return NULL;
}

static void write_number(struct caps_problem *p, const struct number_field *at, double value)
{
    char *to = (char *)p + at->offset;
    int64_t whole = value >= 9.2e18 ? INT64_MAX : value <= -9.2e18 ? INT64_MIN : (int64_t)value;
    int32_t i32 = (int32_t)(whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : whole);
    uint32_t u32 = (uint32_t)whole;
    float real = (float)value;
    switch (at->type) {
    case NUMBER_I32:
        memcpy(to, &i32, sizeof i32);
        break;
    case NUMBER_U32:
        memcpy(to, &u32, sizeof u32);
        break;
    case NUMBER_I64:
        memcpy(to, &whole, sizeof whole);
        break;
    case NUMBER_FLOAT:
        memcpy(to, &real, sizeof real);
        break;
    case NUMBER_NONE:
        break;
    }
}

static void set_flag(uint32_t *flags, uint32_t flag, bool on)
{
    *flags = on ? *flags | flag : *flags & ~flag;
}

static void drop_features(struct caps_problem *p)
{
    p->problem.num_features = 0;
    p->problem.features = NULL;
    p->group.flags &= (uint32_t)(ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI);
}

/* Layer kinds come with their dimensions; sparse layers are over latents where the cache is of these. */
static void complete_kind(struct caps_problem *p)
{
    const char *layout = p->problem.kv_layout;
    bool is_latent = p->group.kind == ATTN_KIND_SPARSE && layout && strncmp(layout, "mla.", 4) == 0;
    p->group.mla = p->group.kind == ATTN_KIND_MLA || is_latent ? &p->mla : NULL;
    p->group.linear = p->group.kind == ATTN_KIND_LINEAR ? &p->linear : NULL;
    p->group.sparse = p->group.kind == ATTN_KIND_SPARSE ? &p->sparse : NULL;
}

/* A convolution alone has no keys; all others have some. */
static void complete_family(struct caps_problem *p)
{
    attn_linear_dims *dims = &p->linear;
    if (dims->family == ATTN_LINEAR_SHORT_CONV) {
        dims->num_k_heads = dims->head_k_dim = 0;
    } else if (dims->num_k_heads == 0) {
        dims->num_k_heads = 2;
        dims->head_k_dim = 64;
    }
    dims->num_groups = dims->family == ATTN_LINEAR_MAMBA2 ? dims->num_k_heads : 0;
}

/* One number for both dimensions of a state. */
static void set_state_dims(struct caps_problem *p, int32_t dim)
{
    p->linear.head_v_dim = dim;
    if (p->linear.family != ATTN_LINEAR_SHORT_CONV)
        p->linear.head_k_dim = dim;
}

bool caps_can_set(uint32_t field)
{
    return find_field(number_fields, NUM_FIELDS(number_fields), field) ||
           caps_is_dtype_field(field) || field == ATTN_FIELD_GQA_RATIO ||
           field == ATTN_FIELD_FEATURE || field == ATTN_FIELD_LINEAR_DIMS ||
           field == ATTN_FIELD_KV_LAYOUT || field == ATTN_FIELD_STATE_LAYOUT;
}

bool caps_is_dtype_field(uint32_t field)
{
    return find_field(dtype_fields, NUM_FIELDS(dtype_fields), field) != NULL;
}

bool caps_is_bound(uint32_t field)
{
    return (field >= ATTN_FIELD_MODES && field <= ATTN_FIELD_MAX_KV_TOKENS);
}

bool caps_set_number(struct caps_problem *p, uint32_t field, double value)
{
    const struct number_field *at = find_field(number_fields, NUM_FIELDS(number_fields), field);
    if (at)
        write_number(p, at, value);
    if (field == ATTN_FIELD_KIND)
        complete_kind(p);
    else if (field == ATTN_FIELD_LINEAR_FAMILY)
        complete_family(p);
    else if (field == ATTN_FIELD_LAYERS)
        p->layers[1].flags = p->layers[0].flags; /* the field stands for those of all layers */
    else if (field == ATTN_FIELD_SINKS)
        set_flag(&p->group.flags, ATTN_GROUP_HAS_SINKS, value != 0);
    else if (field == ATTN_FIELD_ALIBI)
        set_flag(&p->group.flags, ATTN_GROUP_HAS_ALIBI, value != 0);
    else if (field == ATTN_FIELD_GQA_RATIO)
        p->group.num_q_heads = (int32_t)value * p->group.num_kv_heads;
    else if (field == ATTN_FIELD_FEATURE)
        drop_features(p);
    else if (field == ATTN_FIELD_LINEAR_DIMS)
        set_state_dims(p, (int32_t)value);
    else
        return at != NULL;
    return true;
}

/* ---- Words ----------------------------------------------------------------------------------- */

struct word {
    uint32_t field;
    const char *word;
    double value;
};

#define KIND_WORD(name, value, text) {ATTN_FIELD_KIND, text, value},
static const struct word words[] = {
    {ATTN_FIELD_DEVICE_TYPE, "cpu", ATTN_DEVICE_CPU},
    {ATTN_FIELD_DEVICE_TYPE, "cuda", ATTN_DEVICE_CUDA},
    {ATTN_FIELD_DEVICE_CPU_ISA, "avx2", ATTN_CPU_AVX2},
    {ATTN_FIELD_DEVICE_CPU_ISA, "avx512", ATTN_CPU_AVX2 | ATTN_CPU_AVX512},
    ATTN_KIND_MAP(KIND_WORD){ATTN_FIELD_ATTN_TYPE, "decoder", ATTN_TYPE_DECODER},
    {ATTN_FIELD_ATTN_TYPE, "encoder_only", ATTN_TYPE_ENCODER_ONLY},
    {ATTN_FIELD_ATTN_TYPE, "cross", ATTN_TYPE_CROSS},
    {ATTN_FIELD_SCALE_GRANULARITY, "none", ATTN_SCALE_NONE},
    {ATTN_FIELD_SCALE_GRANULARITY, "per_tensor", ATTN_SCALE_PER_TENSOR},
    {ATTN_FIELD_SCALE_GRANULARITY, "per_head", ATTN_SCALE_PER_HEAD},
    {ATTN_FIELD_SCALE_GRANULARITY, "per_seq_head", ATTN_SCALE_PER_SEQ_HEAD},
    {ATTN_FIELD_SCALE_GRANULARITY, "per_token_head", ATTN_SCALE_PER_TOKEN_HEAD},
    {ATTN_FIELD_INPUT_SCALE_GRANULARITY, "none", ATTN_SCALE_NONE},
    {ATTN_FIELD_INPUT_SCALE_GRANULARITY, "per_tensor", ATTN_SCALE_PER_TENSOR},
    {ATTN_FIELD_INPUT_SCALE_GRANULARITY, "per_head", ATTN_SCALE_PER_HEAD},
    {ATTN_FIELD_INPUT_SCALE_GRANULARITY, "per_seq_head", ATTN_SCALE_PER_SEQ_HEAD},
    {ATTN_FIELD_KV_STRIDES, "any", ATTN_KV_STRIDES_ANY},
    {ATTN_FIELD_KV_STRIDES, "equal", ATTN_KV_STRIDES_EQUAL},
    {ATTN_FIELD_SINKS, "absent", 0},
    {ATTN_FIELD_ALIBI, "absent", 0},
    {ATTN_FIELD_FEATURE, "absent", 0},
    {ATTN_FIELD_LOGIT_CAP, "absent", 0},
    {ATTN_FIELD_LABEL_CACHE, "absent", 0},
    {ATTN_FIELD_LINEAR_FAMILY, "gdn", ATTN_LINEAR_GDN},
    {ATTN_FIELD_LINEAR_FAMILY, "mamba2", ATTN_LINEAR_MAMBA2},
    {ATTN_FIELD_LINEAR_FAMILY, "kda", ATTN_LINEAR_KDA},
    {ATTN_FIELD_LINEAR_FAMILY, "lightning", ATTN_LINEAR_LIGHTNING},
    {ATTN_FIELD_LINEAR_FAMILY, "short_conv", ATTN_LINEAR_SHORT_CONV},
};

/* A layout that the public ids do not have cannot be tried: false. */
static bool set_layout(const char **layout, const char *word)
{
    if (strcmp(word, "absent") == 0) {
        *layout = NULL;
        return true;
    }
    *layout = layouts_public(word) ? layouts_public(word) : *layout;
    return layouts_public(word) != NULL;
}

static bool set_kv_layout(struct caps_problem *p, const char *word)
{
    if (!set_layout(&p->problem.kv_layout, word))
        return false;
    if (p->group.kind == ATTN_KIND_SPARSE)
        complete_kind(p);
    return true;
}

bool caps_set_word(struct caps_problem *p, uint32_t field, const char *word)
{
    const struct number_field *dtype = find_field(dtype_fields, NUM_FIELDS(dtype_fields), field);
    attn_dtype parsed;
    if (dtype) {
        bool absent = field == ATTN_FIELD_NEW_KV_DTYPE && strcmp(word, "absent") == 0;
        if (absent)
            parsed = ATTN_DTYPE_NONE;
        else if (dtype_parse(word, &parsed) != 0)
            return false;
        memcpy((char *)p + dtype->offset, &parsed, sizeof parsed);
        return true;
    }
    if (field == ATTN_FIELD_KV_LAYOUT)
        return set_kv_layout(p, word);
    if (field == ATTN_FIELD_STATE_LAYOUT)
        return set_layout(&p->problem.state_layout, word);
    for (size_t n = 0; n < NUM_FIELDS(words); n++)
        if (words[n].field == field && strcmp(words[n].word, word) == 0)
            return caps_set_number(p, field, words[n].value);
    return false;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* A number: digits, with an optional minus and fraction, but not the dots of a range. */
static const char *read_number(const char *text, double *value)
{
    const char *end = text + (*text == '-');
    if (!isdigit((unsigned char)*end))
        return NULL;
    while (isdigit((unsigned char)*end))
        end++;
    if (end[0] == '.' && isdigit((unsigned char)end[1]))
        for (end++; isdigit((unsigned char)*end);)
            end++;
    char digits[64] = "";
    if ((size_t)(end - text) >= sizeof digits)
        return NULL;
    memcpy(digits, text, (size_t)(end - text));
    *value = strtod(digits, NULL);
    return end;
}

static const char *read_range(const char *text, struct caps_item *item)
{
    const char *end = read_number(text, &item->from);
    item->is_number = true;
    item->to = item->from;
    item->step = 1;
    if (end && strncmp(end, "..", 2) == 0)
        end = read_number(end + 2, &item->to);
    if (end && *end == '/')
        end = read_number(end + 1, &item->step);
    return end && item->to >= item->from && item->step > 0 ? end : NULL;
}

/* Words begin with a letter and hold no range. */
static const char *read_word(const char *text, struct caps_item *item)
{
    size_t length = strcspn(text, ",");
    item->is_number = false;
    if (length == 0 || length >= sizeof item->word || !isalpha((unsigned char)*text))
        return NULL;
    memcpy(item->word, text, length);
    item->word[length] = '\0';
    return strstr(item->word, "..") ? NULL : text + length;
}

int caps_next_item(const char **text, struct caps_item *item)
{
    const char *at = *text;
    if (*at == '\0' || strcmp(at, "nothing") == 0)
        return 0;
    const char *end =
        isdigit((unsigned char)*at) || *at == '-' ? read_range(at, item) : read_word(at, item);
    if (!end)
        return -1;
    if (strncmp(end, ", ", 2) == 0 && end[2] != '\0')
        end += 2;
    else if (*end != '\0')
        return -1;
    *text = end;
    return 1;
}

/* ---- Random problems ------------------------------------------------------------------------- */

const attn_dtype caps_dtypes[CAPS_DTYPES] = {ATTN_F32,      ATTN_F16, ATTN_BF16, ATTN_FP8_E4M3,
                                             ATTN_FP8_E5M2, ATTN_F64, ATTN_I32,  ATTN_U8};
static const char *const any_layout[] = {
    ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND, ATTN_LAYOUT_MLA_LATENT,
    "kv.nhd/2",         "kv.nhd/1 ",        ATTN_LAYOUT_STATE_SSM_KV};

static void set_any_dtype(struct caps_problem *p, int32_t field, uint64_t seed)
{
    attn_dtype dtype = caps_dtypes[draw_at(seed, 1, CAPS_DTYPES)];
    memcpy((char *)p + dtype_fields[field].offset, &dtype, sizeof dtype);
}

void caps_set_value(struct caps_problem *p, const struct caps_values *of, uint64_t seed)
{
    caps_set_number(p, of->field, of->values[draw_at(seed, 1, of->count)]);
}

void caps_set_related(struct caps_problem *p, uint64_t seed)
{
    enum { MOST = 4, DTYPES = 4 };
    static const uint32_t related[][MOST] = {
        {ATTN_FIELD_SCALE_GRANULARITY, ATTN_FIELD_INPUT_SCALE_GRANULARITY}, /* and dtypes */
        {ATTN_FIELD_NUM_Q_HEADS, ATTN_FIELD_NUM_KV_HEADS},
        {ATTN_FIELD_HEAD_DIM, ATTN_FIELD_V_HEAD_DIM},
        {ATTN_FIELD_WINDOW_LEFT, ATTN_FIELD_WINDOW_RIGHT, ATTN_FIELD_ATTENTION_CHUNK},
        {ATTN_FIELD_ATTN_TYPE, ATTN_FIELD_MODES, ATTN_FIELD_MASK_KINDS, ATTN_FIELD_USES},
        {ATTN_FIELD_MAX_SEQS, ATTN_FIELD_MAX_TOKENS, ATTN_FIELD_MAX_Q_LEN, ATTN_FIELD_MAX_KV_LEN},
    };
    int32_t which = draw_at(seed, 0, (int32_t)NUM_FIELDS(related) + 1) - 1; /* dtypes twice */
    const uint32_t *fields = related[which < 0 ? 0 : which];
    for (int32_t n = 0; n < DTYPES && which <= 0; n++)
        if (draw_at(seed, 2 + (uint64_t)n, 4) > 0)
            set_any_dtype(p, n, mix_absorb(seed, (uint64_t)n));
    for (int32_t n = 0; n < MOST && fields[n]; n++)
        if (draw_at(seed, 8 + (uint64_t)n, which <= 0 ? 2 : 4) > 0)
            caps_set_value(p, &find_field(number_fields, FIELDS_WITH_VALUES, fields[n])->of,
                           mix_absorb(seed, MOST + (uint64_t)n));
}

void caps_set_anything(struct caps_problem *p, uint64_t seed)
{
    enum { NUMBERS = FIELDS_WITH_VALUES, DTYPES = 4, OTHERS = 4 };
    int32_t which = draw_at(seed, 0, NUMBERS + DTYPES + OTHERS);
    if (which < NUMBERS) {
        caps_set_value(p, &number_fields[which].of, seed);
        p->elsewhere |= number_fields[which].of.field <= ATTN_FIELD_DEVICE_CPU_ISA;
    } else if (which < NUMBERS + DTYPES) {
        set_any_dtype(p, which - NUMBERS, seed);
    } else if (which < NUMBERS + DTYPES + 2) {
        p->problem.kv_layout = any_layout[draw_at(seed, 1, (int32_t)NUM_FIELDS(any_layout))];
        if (p->group.kind == ATTN_KIND_SPARSE)
            complete_kind(p);
    } else if (which == NUMBERS + DTYPES + 2) {
        p->group.flags |= 1u << (2 + draw_at(seed, 1, 30));
    } else {
        p->features[0] = "attn.unheard_of/1";
        p->problem.num_features = 1;
        p->problem.features = p->features;
    }
}

/* Make the cache's fields agree with whether there is a cache: a problem that contradicts itself
 * has no well-defined repair. */
static void complete_cache(struct caps_problem *p)
{
    bool encoder = p->group.attn_type == ATTN_TYPE_ENCODER_ONLY;
    if (encoder)
        p->problem.kv_layout = NULL;
    else if (!p->problem.kv_layout)
        p->problem.kv_layout = ATTN_LAYOUT_KV_NHD;
    if (encoder || p->problem.page_size == 0)
        p->problem.page_size = encoder ? 0 : 16;
}

void caps_problem_random(struct caps_problem *p, const struct grid *grid, uint64_t seed)
{
    static const int32_t how_many[] = {0, 1, 1, 1, 2, 2, 3, 5};
    struct grid_point point = grid->base;
    struct case_spec spec;
    for (uint64_t n = 0; n < 8; n++) {
        struct grid_point drawn = grid_random(grid, seed, n);
        if (grid_spec(grid, &drawn, &spec)) {
            point = drawn;
            break;
        }
    }
    point.value[AXIS_FORM] = 0; /* the options are the backend's own */
    grid_spec(grid, &point, &spec);
    caps_problem_init(p, &spec, &grid->backend.device->info);
    int32_t count = how_many[draw_at(seed, 1000, 8)];
    for (int32_t n = 0; n < count; n++)
        caps_set_anything(p, mix_absorb(seed, (uint64_t)n + 1));
    if (draw_at(seed, 1001, 5) == 0)
        caps_set_related(p, mix_absorb(seed, 1001));
    complete_cache(p);
}

/* ---- Telling it ------------------------------------------------------------------------------ */

/* The fields that only this kind of layer has. */
static void describe_kind(const struct caps_problem *p, char *text, size_t size)
{
    const attn_linear_dims *dims = &p->linear;
    if (p->group.mla)
        snprintf(text, size, ", latents of %d and %d, nope_dim %d, expanded %#x",
                 p->mla.kv_lora_rank, p->mla.rope_dim, p->mla.nope_dim, p->problem.mla_expanded);
    else if (p->group.linear)
        snprintf(text, size,
                 ", family %u, linear flags %#x, heads %d/%d of %d/%d, width %d, state %s, inputs "
                 "%s, state layout %s",
                 dims->family, dims->flags, dims->num_k_heads, dims->num_v_heads, dims->head_k_dim,
                 dims->head_v_dim, dims->conv_width, dtype_name(dims->state_dtype),
                 dtype_name(dims->conv_dtype),
                 p->problem.state_layout ? p->problem.state_layout : "absent");
}

void caps_problem_describe(const struct caps_problem *p, char *text, size_t size)
{
    const attn_layer_group *g = &p->group;
    const attn_bounds *b = &p->bounds;
    snprintf(text, size,
             "device %d sm %u isa %#x, kind %u, attn_type %u, flags %#x, layers %u of flags %#x, "
             "heads %d/%d, dim %d/%d, window %d, %d, chunk %d, cap %g, granularity %u and %u, "
             "layout %s, q %s new k, v %s kv %s out %s, page %d, modes %#x, masks %#x, uses %#x, "
             "bounds %d %d %d %d %lld, "
             "graph %u, traits %#x, features %u",
             p->device.type, p->device.sm, p->device.cpu_isa, g->kind, g->attn_type, g->flags,
             g->num_layers, p->layers[0].flags, g->num_q_heads, g->num_kv_heads, g->head_dim,
             g->v_head_dim, g->window_left, g->window_right, g->attention_chunk,
             (double)g->logit_cap, g->kv_scale_granularity, g->input_scale_granularity,
             p->problem.kv_layout ? p->problem.kv_layout : "absent", dtype_name(p->problem.q_dtype),
             dtype_name(attn_new_kv_dtype(&p->problem)), dtype_name(p->problem.kv_dtype),
             dtype_name(p->problem.out_dtype), p->problem.page_size, b->modes, b->mask_kinds,
             b->uses, b->max_seqs, b->max_tokens, b->max_q_len, b->max_kv_len,
             (long long)b->max_kv_tokens, p->problem.graph_level, p->problem.required_traits,
             p->problem.num_features);
    size_t length = strlen(text);
    describe_kind(p, text + length, size - length);
}

/* ---- A batch for it -------------------------------------------------------------------------- */

/* One of the bits of a set; -1 = it is empty. */
static int32_t pick_bit(uint32_t set, uint64_t seed, uint64_t n)
{
    if (set == 0)
        return -1;
    for (int32_t skip = draw_at(seed, n, __builtin_popcount(set)); skip > 0; skip--)
        set &= set - 1;
    return __builtin_ctz(set);
}

static int32_t bounded(int32_t wanted, int64_t bound)
{
    return bound > 0 && bound < wanted ? (int32_t)bound : wanted;
}

/* A few sequences, queries and keys within the bounds. */
static bool fit_lengths(const struct caps_problem *p, struct case_spec *spec)
{
    const attn_bounds *b = &p->bounds;
    bool decode = spec->mode == ATTN_MODE_DECODE;
    int64_t page = spec->page_size > 0 ? spec->page_size : 1;
    spec->num_sequences = bounded(3, b->max_seqs);
    int32_t q_len = bounded(decode ? 1 : 5, b->max_q_len);
    while (spec->num_sequences > 1 && b->max_tokens > 0 &&
           (int64_t)spec->num_sequences * q_len > b->max_tokens)
        spec->num_sequences--;
    q_len = bounded(q_len, b->max_tokens);
    while (spec->num_sequences > 1 && b->max_kv_tokens > 0 &&
           b->max_kv_tokens / spec->num_sequences / page * page < q_len + 20)
        spec->num_sequences--;
    int32_t keys = bounded(q_len + 20, b->max_kv_len);
    if (b->max_kv_tokens > 0)
        keys = bounded(keys, b->max_kv_tokens / spec->num_sequences / page * page);
    if (b->max_kv_tokens > 0 && b->max_kv_tokens / spec->num_sequences / page == 0)
        return false;
    if (q_len > keys)
        q_len = keys;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        spec->sequences[s] = (struct case_sequence){
            .prefix_len = spec->attn_type == ATTN_TYPE_ENCODER_ONLY ? 0 : keys - q_len,
            .num_new = q_len,
            .num_new_keys = spec->attn_type == ATTN_TYPE_CROSS && !spec->from_cache ? q_len : 0};
    return q_len > 0;
}

/* The batch has each of its optional uses in some cases. */
static void choose_uses(const struct caps_problem *p, uint64_t seed, struct case_spec *spec)
{
    uint32_t uses = p->bounds.uses;
    bool cached = spec->attn_type != ATTN_TYPE_ENCODER_ONLY;
    bool custom = spec->mask_kind == ATTN_MASK_FULL || spec->mask_kind == ATTN_MASK_QLEN;
    bool cross = spec->attn_type == ATTN_TYPE_CROSS;
    spec->explicit_positions =
        uses & ATTN_USES_POSITIONS && custom && !cross && draw_at(seed, 10, 2);
    spec->multi_item = uses & ATTN_USES_MULTI_ITEM && spec->mask_kind == ATTN_MASK_LAYER &&
                       !cross && draw_at(seed, 11, 2);
    spec->wants_lse = uses & ATTN_USES_LSE;
    if (uses & ATTN_USES_OMIT_SINK && draw_at(seed, 12, 2))
        spec->flags |= ATTN_FORWARD_OMIT_SINK;
    spec->from_cache =
        cached && (p->layers[0].flags & ATTN_LAYER_KV_READ_ONLY || draw_at(seed, 13, 4) == 0);
    bool unsaved = uses & ATTN_USES_UNSAVED_KV && draw_at(seed, 14, 2);
    if (cached && !spec->from_cache && !unsaved)
        spec->flags |= ATTN_FORWARD_SAVE_KV;
}

bool caps_problem_spec(const struct caps_problem *p, uint64_t seed, struct case_spec *spec)
{
    const attn_layer_group *g = &p->group;
    uint32_t modes = p->bounds.modes & ~ATTN_MODE_BIT(ATTN_MODE_IDLE);
    int32_t mode = pick_bit(modes, seed, 1), mask = pick_bit(p->bounds.mask_kinds, seed, 2);
    bool is_sparse = g->kind == ATTN_KIND_SPARSE && !g->mla &&
                     p->sparse.index_kind == ATTN_SPARSE_TOKEN && p->sparse.block_size == 1 &&
                     p->sparse.label_dim == 0;
    if ((g->kind != ATTN_KIND_SOFTMAX && !is_sparse) || p->elsewhere || mode < 0 || mask < 0)
        return false;
    bool encoder = g->attn_type == ATTN_TYPE_ENCODER_ONLY;
    if (encoder && p->layers[0].flags & ATTN_LAYER_KV_READ_ONLY) /* of what? */
        return false;
    *spec = (struct case_spec){.mode = (uint32_t)mode,
                               .attn_type = g->attn_type,
                               .q_dtype = p->problem.q_dtype,
                               .new_kv_dtype = p->problem.new_kv_dtype,
                               .kv_dtype = p->problem.kv_dtype,
                               .out_dtype = p->problem.out_dtype,
                               .kv_layout = encoder ? NULL : p->problem.kv_layout,
                               .num_q_heads = g->num_q_heads,
                               .num_kv_heads = g->num_kv_heads,
                               .head_dim = g->head_dim,
                               .v_head_dim = g->v_head_dim,
                               .page_size = encoder ? 0 : p->problem.page_size,
                               .min_alignment = p->problem.min_alignment,
                               .kv_strides = p->problem.kv_strides,
                               .index_form = ATTN_INDEX_BLOCK_TABLE,
                               .slots = SLOTS_SHUFFLED_PAGES,
                               .mask_kind = (uint32_t)mask,
                               .top_k = is_sparse ? p->sparse.top_k : 0,
                               .window_left = g->window_left,
                               .window_right = g->window_right,
                               .attention_chunk = g->attention_chunk,
                               .logit_cap = g->logit_cap,
                               .sm_scale = g->sm_scale,
                               .alibi = g->flags & ATTN_GROUP_HAS_ALIBI,
                               .sinks = g->flags & ATTN_GROUP_HAS_SINKS,
                               .scale_granularity = g->kv_scale_granularity,
                               .input_granularity = g->input_scale_granularity};
    choose_uses(p, seed, spec);
    return fit_lengths(p, spec) && !case_spec_defect(spec);
}
