/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * example_rows: a whole attention backend in one file, to be copied.
 *
 * It computes attention the plain way: for one query and one head all scores are written to
 * scratch, then normalised, then multiplied with the values. That is slower than an online softmax
 * over tiles and easy to follow. It serves paged prefill and decode of decoder layers, f32 and
 * bf16, in the layout kv.nhd/1, through block tables, with causal masks, windows and soft caps.
 *
 * How to make a backend of your own from it:
 *   1. rename it: `name` in the type and in the entry;
 *   2. say what it can do: query(), one check a line, every reason;
 *   3. remember what a forward needs of the layers: create();
 *   4. ask for memory: metadata_size(), and lay it out: metadata_create();
 *   5. look at a batch once: init_forward_metadata();
 *   6. compute: forward();
 *   7. build it with nothing but the headers (Makefile), name it in an ini, run it.
 *
 * The tables and the exported function stand last.
 */
#include <attn_plugin.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Errors ---------------------------------------------------------------------------------- */

/* Where a text was cut within a character of several bytes, end it before that character. */
static void cut_at_character(char *text)
{
    size_t length = strlen(text), start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    unsigned char lead = start > 0 ? (unsigned char)text[start - 1] : 0;
    size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
    if (start > 0 && bytes > length - (start - 1))
        text[start - 1] = '\0';
}

__attribute__((format(printf, 3, 4))) static attn_status fail(attn_error *error, attn_status code,
                                                              const char *format, ...)
{
    if (!error)
        return code;
    error->code = code;
    if (error->message && error->capacity > 0) {
        va_list args;
        va_start(args, format);
        int length = vsnprintf(error->message, error->capacity, format, args);
        va_end(args);
        if (length >= 0 && (uint32_t)length >= error->capacity)
            cut_at_character(error->message);
    }
    return code;
}

/* ---- Sized structs --------------------------------------------------------------------------- */

/* A host may have been built with older or newer headers: of its structs only what struct_size
 * covers is there. Take one: the part that both have, and zero after it. */
static void take(void *to, uint32_t size, const void *from)
{
    uint32_t theirs = *(const uint32_t *)from;
    memset(to, 0, size);
    memcpy(to, from, theirs < size ? theirs : size);
    *(uint32_t *)to = size;
}

/* Fill one of the host's: the part that both have, and struct_size stays the host's. */
static void give(void *to, const void *from, uint32_t size)
{
    uint32_t theirs = *(uint32_t *)to;
    memcpy(to, from, theirs < size ? theirs : size);
    *(uint32_t *)to = theirs;
}

/* ---- 2. Query -------------------------------------------------------------------------------- */

/* Append a reason if `ok` is 0. All reasons are reported, not only the first. `accepted` is a list
 * of numbers, ranges and words; sets are given as the numbers that their bits make (attn_reason).
 */
static void require(attn_verdict *verdict, int ok, uint32_t code, uint32_t field, const char *got,
                    const char *accepted)
{
    if (ok)
        return;
    if (verdict->num_reasons < verdict->reasons_capacity) {
        attn_reason reason = {.code = code, .field = field};
        snprintf(reason.got, sizeof reason.got, "%s", got);
        snprintf(reason.accepted, sizeof reason.accepted, "%s", accepted);
        cut_at_character(reason.got);
        give((void *)(uintptr_t)attn_at(verdict->reasons, verdict->num_reasons), &reason,
             sizeof reason);
    }
    verdict->num_reasons++;
    verdict->supported = 0;
}

/* The same for a number: none of the bits or values beyond what is served. */
static void require_number(attn_verdict *verdict, int ok, uint32_t code, uint32_t field,
                           uint32_t got, const char *accepted)
{
    char text[16];
    snprintf(text, sizeof text, "%u", got);
    require(verdict, ok, code, field, text, accepted);
}

#define SERVED_MODES                                                                               \
    (ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE) |                           \
     ATTN_MODE_BIT(ATTN_MODE_MIXED) | ATTN_MODE_BIT(ATTN_MODE_IDLE))
#define SERVED_MASKS (ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE))

enum {
    SERVED_USES =
        ATTN_USES_LSE | ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_OMIT_SINK,
    KNOWN_GROUP_FLAGS = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI,
    SERVED_NOTES = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_BATCH_INVARIANT
};

static int is_float_type(attn_dtype dtype)
{
    return dtype == ATTN_F32 || dtype == ATTN_BF16;
}

/* Types are called in reasons as they are in an ini. */
static const char *type_name(attn_dtype dtype)
{
    return dtype == ATTN_F32        ? "f32"
           : dtype == ATTN_BF16     ? "bf16"
           : dtype == ATTN_F16      ? "f16"
           : dtype == ATTN_FP8_E4M3 ? "fp8_e4m3"
           : dtype == ATTN_FP8_E5M2 ? "fp8_e5m2"
                                    : "unknown";
}

/* Names for what attn_problem.h numbers. */
static const char *name_of(const char *const *names, uint32_t num_names, uint32_t value)
{
    return value < num_names ? names[value] : "unknown";
}

static void check_layers(const attn_layer_group *group, attn_verdict *verdict)
{
    static const char *const kinds[] = {"softmax", "mla", "linear", "sparse"};
    static const char *const types[] = {"decoder", "encoder_only", "cross"};
    static const char *const scales[] = {"none", "per_tensor", "per_head"};
    require(verdict, group->kind == ATTN_KIND_SOFTMAX, ATTN_REASON_LAYER_KIND, ATTN_FIELD_KIND,
            name_of(kinds, ATTN_KIND_COUNT, group->kind), "softmax");
    require(verdict, group->attn_type == ATTN_TYPE_DECODER, ATTN_REASON_ATTN_TYPE,
            ATTN_FIELD_ATTN_TYPE, name_of(types, ATTN_TYPE_COUNT, group->attn_type), "decoder");
    require_number(verdict, group->attention_chunk == 0, ATTN_REASON_CHUNK,
                   ATTN_FIELD_ATTENTION_CHUNK, (uint32_t)group->attention_chunk, "0");
    require(verdict, !(group->flags & ATTN_GROUP_HAS_SINKS), ATTN_REASON_SINKS, ATTN_FIELD_SINKS,
            "1", "0");
    require(verdict, !(group->flags & ATTN_GROUP_HAS_ALIBI), ATTN_REASON_ALIBI, ATTN_FIELD_ALIBI,
            "1", "0");
    /* Bits that are not known here may ask for anything: they are refused. */
    require(verdict, !(group->flags & ~(uint32_t)KNOWN_GROUP_FLAGS), ATTN_REASON_UNKNOWN_FEATURE,
            ATTN_FIELD_FEATURE, "unknown group flags", "absent");
    require(verdict, group->kv_scale_granularity == ATTN_SCALE_NONE, ATTN_REASON_SCALE_GRANULARITY,
            ATTN_FIELD_SCALE_GRANULARITY,
            name_of(scales, ATTN_SCALE_COUNT, group->kv_scale_granularity), "none");
    for (uint32_t l = 0; l < group->num_layers; l++) {
        const attn_layer *layer = attn_at(group->layers, l);
        require_number(verdict, !(layer->flags & ~(uint32_t)ATTN_LAYER_KV_READ_ONLY),
                       ATTN_REASON_OTHER, ATTN_FIELD_LAYERS, layer->flags, "0..1");
    }
}

/* One dtype for all three: the query's if it is served, else the cache's, else f32. */
static void check_dtypes(const attn_problem *problem, attn_verdict *verdict)
{
    attn_dtype wanted = is_float_type(problem->q_dtype)    ? problem->q_dtype
                        : is_float_type(problem->kv_dtype) ? problem->kv_dtype
                                                           : ATTN_F32;
    const char *name = type_name(wanted);
    require(verdict, problem->q_dtype == wanted, ATTN_REASON_DTYPE, ATTN_FIELD_Q_DTYPE,
            type_name(problem->q_dtype), name);
    require(verdict, problem->kv_dtype == wanted, ATTN_REASON_DTYPE, ATTN_FIELD_KV_DTYPE,
            type_name(problem->kv_dtype), name);
    require(verdict, problem->out_dtype == wanted, ATTN_REASON_DTYPE, ATTN_FIELD_OUT_DTYPE,
            type_name(problem->out_dtype), name);
}

static void check_problem(const attn_problem *problem, attn_verdict *verdict)
{
    const attn_bounds *bounds = problem->bounds;
    const char *layout = problem->kv_layout ? problem->kv_layout : "absent";
    require(verdict, problem->device->type == ATTN_DEVICE_CPU, ATTN_REASON_ARCH,
            ATTN_FIELD_DEVICE_TYPE, problem->device->type == ATTN_DEVICE_CUDA ? "cuda" : "unknown",
            "cpu");
    require(verdict, strcmp(layout, ATTN_LAYOUT_KV_NHD) == 0, ATTN_REASON_KV_LAYOUT,
            ATTN_FIELD_KV_LAYOUT, layout, ATTN_LAYOUT_KV_NHD);
    require_number(verdict, !(bounds->modes & ~SERVED_MODES), ATTN_REASON_MODE, ATTN_FIELD_MODES,
                   bounds->modes, "0..15");
    require_number(verdict, !(bounds->mask_kinds & ~SERVED_MASKS), ATTN_REASON_MASK_KIND,
                   ATTN_FIELD_MASK_KINDS, bounds->mask_kinds, "0..3");
    require_number(verdict, !(bounds->uses & ~(uint32_t)SERVED_USES), ATTN_REASON_USES,
                   ATTN_FIELD_USES, bounds->uses, "0..60/4");
    require_number(verdict, problem->graph_level == ATTN_GRAPH_NEVER, ATTN_REASON_GRAPH_LEVEL,
                   ATTN_FIELD_GRAPH_LEVEL, problem->graph_level, "0");
    require_number(verdict, !(problem->need_notes & ~(uint32_t)SERVED_NOTES),
                   ATTN_REASON_DETERMINISM, ATTN_FIELD_NEED_NOTES, problem->need_notes, "0..3");
    for (uint32_t f = 0; f < problem->num_features; f++)
        require(verdict, 0, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_FEATURE, problem->features[f],
                "absent");
}

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *given,
                         attn_verdict *answer, attn_error *error)
{
    (void)type, (void)options, (void)services;
    attn_problem problem;
    attn_verdict verdict = {.supported = 1};
    take(&problem, sizeof problem, given);
    if (problem.group->num_kv_heads < 1 || problem.group->num_q_heads < 1 ||
        problem.group->num_q_heads % problem.group->num_kv_heads != 0)
        return fail(error, ATTN_INVALID_ARGUMENT,
                    "num_q_heads %d: accepted multiples of num_kv_heads, %d",
                    problem.group->num_q_heads, problem.group->num_kv_heads);
    if (problem.group->head_dim < 1 || problem.group->v_head_dim < 1 || problem.page_size < 1)
        return fail(error, ATTN_INVALID_ARGUMENT,
                    "head_dim %d, v_head_dim %d, page_size %d: accepted 1 and more",
                    problem.group->head_dim, problem.group->v_head_dim, problem.page_size);
    verdict.reasons_capacity = answer->reasons_capacity;
    verdict.reasons = answer->reasons;
    check_problem(&problem, &verdict);
    check_dtypes(&problem, &verdict);
    check_layers(problem.group, &verdict);
    if (verdict.supported) {
        /* One row is computed by one task, always in the same order: both notes hold. */
        verdict.notes = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_BATCH_INVARIANT;
        verdict.graph_level = ATTN_GRAPH_NEVER;
        verdict.cost_hint = 4;
    }
    give(answer, &verdict, sizeof verdict);
    return ATTN_OK;
}

/* ---- 3. Instance ----------------------------------------------------------------------------- */

/* What a forward needs to know of a layer. */
typedef struct layer_facts {
    int32_t layer_id;
    int32_t kv_group;
    int32_t num_q_heads, num_kv_heads;
    int32_t head_dim, v_head_dim;
    int32_t window_left, window_right;
    float sm_scale, logit_cap;
    attn_dtype dtype;
} layer_facts;

struct attn_instance {
    const attn_services *services;
    uint32_t num_kv_groups;
    int32_t max_v_head_dim;
    uint32_t num_layers;
    layer_facts layers[]; /* [num_layers] */
};

static void destroy(attn_instance *instance)
{
    if (instance)
        instance->services->release(instance->services->ctx, ATTN_SPACE_HOST, instance);
}

static void remember_group(attn_instance *instance, const attn_problem *problem)
{
    const attn_layer_group *group = problem->group;
    if ((uint32_t)group->kv_group >= instance->num_kv_groups)
        instance->num_kv_groups = (uint32_t)group->kv_group + 1;
    if (group->v_head_dim > instance->max_v_head_dim)
        instance->max_v_head_dim = group->v_head_dim;
    for (uint32_t l = 0; l < group->num_layers; l++)
        instance->layers[instance->num_layers++] = (layer_facts){
            .layer_id = ((const attn_layer *)attn_at(group->layers, l))->layer_id,
            .kv_group = group->kv_group,
            .num_q_heads = group->num_q_heads,
            .num_kv_heads = group->num_kv_heads,
            .head_dim = group->head_dim,
            .v_head_dim = group->v_head_dim,
            .window_left = group->window_left,
            .window_right = group->window_right,
            .sm_scale = group->sm_scale,
            .logit_cap = group->logit_cap,
            .dtype = problem->q_dtype,
        };
}

/* A field as it is called in texts. */
static const char *field_name(uint32_t field)
{
    switch (field) {
#define FIELD_NAME(name, value, text)                                                              \
    case value:                                                                                    \
        return text;
        ATTN_FIELD_MAP(FIELD_NAME)
#undef FIELD_NAME
    default:
        return "problem";
    }
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    uint32_t num_layers = 0;
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_problem *problem = attn_at(problems, p);
        attn_reason reason = {.struct_size = sizeof reason};
        attn_verdict verdict = {
            .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
        attn_status status = query(type, options, services, problem, &verdict, error);
        if (status != ATTN_OK)
            return status;
        if (!verdict.supported)
            return fail(error, ATTN_UNSUPPORTED, "%s %s: accepted %s", field_name(reason.field),
                        reason.got, reason.accepted);
        num_layers += problem->group->num_layers;
    }
    size_t size = sizeof(attn_instance) + num_layers * sizeof(layer_facts);
    attn_instance *made = services->allocate(services->ctx, ATTN_SPACE_HOST, size, 16);
    if (!made)
        return fail(error, ATTN_OUT_OF_HOST_MEMORY, "%zu bytes", size);
    memset(made, 0, size);
    made->services = services;
    for (uint32_t p = 0; p < num_problems; p++)
        remember_group(made, attn_at(problems, p));
    *instance = made;
    return ATTN_OK;
}

static uint32_t index_forms(attn_instance *instance)
{
    (void)instance;
    return ATTN_INDEX_BLOCK_TABLE;
}

/* ---- 4. Metadata ----------------------------------------------------------------------------- */

/* One query row of the batch. */
typedef struct row {
    int32_t seq; /* -1 = none: the row sees no key */
    int32_t position;
} row;

struct attn_metadata {
    attn_instance *instance;
    attn_bounds bounds;
    int planned;
    attn_batch batch; /* of the last init_forward_metadata */
    uint32_t mask_kind;
    attn_kv_batch *kv; /* [num_kv_groups] copies: the batch struct itself is gone by then */
    row *rows;         /* [max_tokens] */
    float *scratch;    /* [num_workers, max_kv_len + max_v_head_dim] scores, sums */
};

enum {
    HOST_METADATA = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA),
    HOST_SCRATCH = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_SCRATCH)
};

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    if (kind == ATTN_METADATA_GRAPH)
        return fail(error, ATTN_CAPTURE_UNSUPPORTED, "nothing can be captured on a processor");
    if (kind != ATTN_METADATA_EAGER)
        return fail(error, ATTN_INVALID_ARGUMENT, "metadata kind %u: accepted %u", kind,
                    ATTN_METADATA_EAGER);
    if (bounds->mask_kinds & ~SERVED_MASKS || bounds->uses & ~(uint32_t)SERVED_USES)
        return fail(error, ATTN_UNSUPPORTED, "mask_kinds 0x%x, uses 0x%x: accepted 0x%x, 0x%x",
                    bounds->mask_kinds, bounds->uses, SERVED_MASKS, SERVED_USES);
    if (bounds->modes & ~SERVED_MODES)
        return fail(error, ATTN_UNSUPPORTED, "modes 0x%x: accepted 0x%x", bounds->modes,
                    SERVED_MODES);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        size->size[r] = size->alignment[r] = 0;
    size->alignment[HOST_METADATA] = size->alignment[HOST_SCRATCH] = 16;
    size->size[HOST_METADATA] = sizeof(attn_metadata) +
                                instance->num_kv_groups * sizeof(attn_kv_batch) +
                                (uint64_t)bounds->max_tokens * sizeof(row);
    size->size[HOST_SCRATCH] = (uint64_t)instance->services->num_workers * sizeof(float) *
                               (uint64_t)(bounds->max_kv_len + instance->max_v_head_dim);
    return ATTN_OK;
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error)
{
    attn_memory_size size = {.struct_size = sizeof size};
    attn_status status = metadata_size(instance, kind, bounds, &size, error);
    if (status != ATTN_OK)
        return status;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (memory->size[r] < size.size[r] || (size.size[r] && !memory->base[r])) {
            if (error && ATTN_HAS(error, attn_error, needed))
                error->needed = size.size[r];
            return fail(error, ATTN_BUFFER_TOO_SMALL, "memory region %u: needed %llu bytes", r,
                        (unsigned long long)size.size[r]);
        }
        if (size.size[r] && (uintptr_t)memory->base[r] % 16 != 0)
            return fail(error, ATTN_INVALID_ARGUMENT, "memory region %u: accepted multiples of 16",
                        r);
    }
    attn_metadata *made = memory->base[HOST_METADATA];
    memset(made, 0, sizeof *made);
    made->instance = instance;
    take(&made->bounds, sizeof made->bounds, bounds);
    made->kv = (attn_kv_batch *)(made + 1);
    made->rows = (row *)(made->kv + instance->num_kv_groups);
    made->scratch = memory->base[HOST_SCRATCH];
    *metadata = made;
    return ATTN_OK;
}

static void metadata_destroy(attn_metadata *metadata)
{
    (void)metadata; /* all of it lies in the caller's memory */
}

/* ---- 5. A batch ------------------------------------------------------------------------------ */

static attn_status check_counts(const attn_metadata *metadata, const attn_batch *batch,
                                attn_error *error)
{
    const attn_bounds *bounds = &metadata->bounds;
    const struct {
        const char *name;
        int32_t got, most;
    } counts[] = {{"max_seqs", batch->num_seqs, bounds->max_seqs},
                  {"max_tokens", batch->num_tokens, bounds->max_tokens},
                  {"max_q_len", batch->max_q_len, bounds->max_q_len},
                  {"max_kv_len", batch->max_kv_len, bounds->max_kv_len}};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        if (counts[c].got < 0 || counts[c].got > counts[c].most)
            return fail(error, ATTN_INVALID_ARGUMENT, "batch beyond %s: %d, accepted 0..%d",
                        counts[c].name, counts[c].got, counts[c].most);
    if (batch->mode != ATTN_MODE_IDLE &&
        (batch->mode >= ATTN_MODE_COUNT || !(bounds->modes & ATTN_MODE_BIT(batch->mode))))
        return fail(error, ATTN_INVALID_ARGUMENT, "mode %u: accepted the set 0x%x", batch->mode,
                    bounds->modes);
    if (batch->positions.device || batch->multi_item)
        return fail(error, ATTN_INVALID_ARGUMENT, "positions or multi_item: accepted neither");
    if (batch->mode == ATTN_MODE_DECODE && batch->num_tokens != batch->num_seqs)
        return fail(error, ATTN_INVALID_ARGUMENT, "num_tokens %d in DECODE: accepted %d",
                    batch->num_tokens, batch->num_seqs);
    if (batch->num_kv_groups < metadata->instance->num_kv_groups)
        return fail(error, ATTN_INVALID_ARGUMENT, "batch has %u KV groups: needed %u",
                    batch->num_kv_groups, metadata->instance->num_kv_groups);
    return ATTN_OK;
}

/* Rows are listed in memory for max_tokens of them: an array that says more must not be believed.
 */
static attn_status check_indptr(const attn_batch *batch, attn_error *error)
{
    const int32_t *indptr = batch->q_indptr.device;
    if (batch->mode == ATTN_MODE_DECODE || batch->num_seqs == 0)
        return ATTN_OK;
    for (int32_t s = 0; s < batch->num_seqs; s++)
        if (indptr[s] < 0 || indptr[s + 1] < indptr[s])
            return fail(error, ATTN_INVALID_ARGUMENT,
                        "q_indptr[%d] %d and the next %d: accepted 0 and more, not decreasing", s,
                        indptr[s], indptr[s + 1]);
    if (indptr[batch->num_seqs] - indptr[0] > batch->num_tokens)
        return fail(error, ATTN_INVALID_ARGUMENT, "q_indptr covers %d rows: accepted 0..%d",
                    indptr[batch->num_seqs] - indptr[0], batch->num_tokens);
    return ATTN_OK;
}

/* Scores of one row are written to scratch for max_kv_len of them. */
static attn_status check_lens(const attn_metadata *metadata, const attn_batch *batch,
                              const int32_t *lens, int32_t page_size, attn_error *error)
{
    const attn_bounds *bounds = &metadata->bounds;
    int64_t kv_tokens = 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        if (lens[s] < 0 || lens[s] > bounds->max_kv_len)
            return fail(error, ATTN_INVALID_ARGUMENT,
                        "sequence %d of %d keys: accepted 0..%d, max_kv_len", s, lens[s],
                        bounds->max_kv_len);
        kv_tokens += ((int64_t)lens[s] + page_size - 1) / page_size * page_size;
    }
    if (kv_tokens > bounds->max_kv_tokens)
        return fail(error, ATTN_INVALID_ARGUMENT,
                    "%lld keys in whole pages: accepted 0..%lld, max_kv_tokens",
                    (long long)kv_tokens, (long long)bounds->max_kv_tokens);
    return ATTN_OK;
}

/* A batch may bring KV groups of other backends' layers: they are none of ours to look at. */
static int has_layers(const attn_instance *instance, uint32_t kv_group)
{
    for (uint32_t l = 0; l < instance->num_layers; l++)
        if ((uint32_t)instance->layers[l].kv_group == kv_group)
            return 1;
    return 0;
}

static attn_status check_batch(const attn_metadata *metadata, const attn_batch *batch,
                               attn_error *error)
{
    attn_status status = check_counts(metadata, batch, error);
    if (status == ATTN_OK)
        status = check_indptr(batch, error);
    for (uint32_t g = 0; g < metadata->instance->num_kv_groups && status == ATTN_OK; g++) {
        if (!has_layers(metadata->instance, g))
            continue;
        const attn_kv_batch *kv = attn_at(batch->kv_groups, g);
        const attn_i32_array *lens = kv->kv_lens.device ? &kv->kv_lens : &batch->seq_lens;
        if (kv->page_size < 1)
            return fail(error, ATTN_INVALID_ARGUMENT, "page_size %d: accepted 1 and more",
                        kv->page_size);
        status = check_lens(metadata, batch, lens->device, kv->page_size, error);
    }
    return status;
}

/* Which sequence each row belongs to, and where it sits. Rows of padding may belong to none. */
static void list_rows(attn_metadata *metadata)
{
    const attn_batch *batch = &metadata->batch;
    int32_t count = 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        if (batch->mode == ATTN_MODE_DECODE) {
            metadata->rows[count++] = (row){s, batch->seq_lens.device[s] - 1};
            continue;
        }
        const int32_t *indptr = batch->q_indptr.device;
        for (int32_t t = 0; t < indptr[s + 1] - indptr[s]; t++)
            metadata->rows[count++] = (row){s, batch->prefix_lens.device[s] + t};
    }
    while (count < batch->num_tokens)
        metadata->rows[count++] = (row){-1, 0};
}

static attn_status init_forward_metadata(attn_metadata *metadata, const attn_batch *given,
                                         attn_stream stream, attn_error *error)
{
    (void)stream; /* on the CPU all is done when the call returns */
    attn_batch *batch = &metadata->batch;
    metadata->planned = 0;
    take(batch, sizeof *batch, given);
    attn_status status = check_batch(metadata, batch, error);
    if (status != ATTN_OK)
        return status;
    metadata->mask_kind = batch->mask ? batch->mask->kind : (uint32_t)ATTN_MASK_LAYER;
    if (metadata->mask_kind >= ATTN_MASK_COUNT ||
        !(metadata->bounds.mask_kinds & ATTN_MASK_BIT(metadata->mask_kind)))
        return fail(error, ATTN_INVALID_ARGUMENT, "mask kind %u: accepted the set 0x%x",
                    metadata->mask_kind, metadata->bounds.mask_kinds);
    for (uint32_t g = 0; g < metadata->instance->num_kv_groups; g++)
        take(&metadata->kv[g], sizeof metadata->kv[g], attn_at(batch->kv_groups, g));
    list_rows(metadata);
    metadata->planned = 1;
    return ATTN_OK;
}

/* ---- 6. Forward ------------------------------------------------------------------------------ */

/* One call of forward, as its tasks see it. */
typedef struct work {
    const attn_metadata *metadata;
    const layer_facts *layer;
    const attn_kv_batch *kv;
    const attn_tensor *q, *k, *v, *out, *lse, *k_cache, *v_cache;
    int32_t first_row; /* of the tensors, for the batch's first query */
} work;

static void *element(const attn_tensor *tensor, int64_t i, int64_t j, int64_t k)
{
    int64_t offset = i * tensor->strides[0] + j * tensor->strides[1];
    if (tensor->ndim > 3)
        offset += k * tensor->strides[2];
    return (char *)tensor->data + tensor->byte_offset + offset * attn_dtype_size(tensor->dtype);
}

static float load(const void *base, attn_dtype dtype, int64_t index)
{
    if (dtype == ATTN_F32)
        return ((const float *)base)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)base)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bf16: to nearest, ties to even; NaN stays NaN. */
static void store(void *base, attn_dtype dtype, int64_t index, float value)
{
    if (dtype == ATTN_F32) {
        ((float *)base)[index] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        bits |= 0x00400000u;
    else
        bits += 0x7FFFu + (bits >> 16 & 1u);
    ((uint16_t *)base)[index] = (uint16_t)(bits >> 16);
}

/* Copy the new keys and values to their slots. The dtypes are equal, so bytes are copied. */
static attn_status save_row(void *arg, int64_t new_row, uint32_t worker)
{
    (void)worker;
    const work *w = arg;
    int64_t slot = w->kv->out_cache_loc.device[new_row];
    if (slot < 0)
        return ATTN_OK;
    int64_t page = slot / w->kv->page_size, offset = slot % w->kv->page_size;
    uint32_t size = attn_dtype_size(w->layer->dtype);
    for (int32_t h = 0; h < w->layer->num_kv_heads; h++) {
        memcpy(element(w->k_cache, page, offset, h), element(w->k, new_row, h, 0),
               (size_t)w->layer->head_dim * size);
        memcpy(element(w->v_cache, page, offset, h), element(w->v, new_row, h, 0),
               (size_t)w->layer->v_head_dim * size);
    }
    return ATTN_OK;
}

/* What one row sees of its sequence: keys [first, last]. Keys from first_new on are new and lie,
 * where k and v are given, in their rows new_row and following. */
typedef struct view {
    int32_t seq;
    int64_t first, last;
    int64_t first_new, new_row;
} view;

static view view_of(const work *w, const row *r)
{
    const attn_batch *batch = &w->metadata->batch;
    const attn_i32_array *lens = w->kv->kv_lens.device ? &w->kv->kv_lens : &batch->seq_lens;
    view seen = {.seq = r->seq, .first = 0, .last = -1};
    if (r->seq < 0)
        return seen;
    int64_t num_keys = lens->device[r->seq], num_new = 1;
    seen.last = num_keys - 1;
    seen.new_row = r->seq;
    const int32_t *indptr = w->kv->kv_new_indptr.device;
    if (!indptr && batch->mode != ATTN_MODE_DECODE)
        indptr = batch->q_indptr.device;
    if (indptr) {
        seen.new_row = indptr[r->seq];
        num_new = indptr[r->seq + 1] - indptr[r->seq];
    }
    seen.first_new = num_keys - num_new;
    if (w->layer->window_left >= 0 && r->position - w->layer->window_left > seen.first)
        seen.first = r->position - w->layer->window_left;
    if (w->metadata->mask_kind == ATTN_MASK_LAYER && w->layer->window_right >= 0 &&
        (int64_t)r->position + w->layer->window_right < seen.last)
        seen.last = (int64_t)r->position + w->layer->window_right;
    return seen;
}

/* Key or value j. New ones are read where they are given, for not all of them need be saved. */
static const void *key_or_value(const work *w, const view *seen, const attn_tensor *given,
                                const attn_tensor *cache, int64_t j, int32_t kv_head)
{
    if (given && j >= seen->first_new)
        return element(given, seen->new_row + j - seen->first_new, kv_head, 0);
    const attn_kv_batch *kv = w->kv;
    const int32_t *table = kv->block_table.device + (int64_t)seen->seq * kv->block_table_stride;
    return element(cache, table[j / kv->page_size], j % kv->page_size, kv_head);
}

/* Scores of the keys seen into scores[0 ..]; returns their maximum. */
static float score_keys(const work *w, const view *seen, int64_t q_row, int32_t head, float *scores)
{
    const layer_facts *layer = w->layer;
    int32_t kv_head = head / (layer->num_q_heads / layer->num_kv_heads);
    const void *q = element(w->q, q_row, head, 0);
    float max = -INFINITY;
    for (int64_t j = seen->first; j <= seen->last; j++) {
        const void *key = key_or_value(w, seen, w->k, w->k_cache, j, kv_head);
        float s = 0;
        for (int32_t d = 0; d < layer->head_dim; d++)
            s += load(q, layer->dtype, d) * load(key, layer->dtype, d);
        s *= layer->sm_scale;
        if (layer->logit_cap > 0)
            s = layer->logit_cap * tanhf(s / layer->logit_cap);
        scores[j - seen->first] = s;
        max = s > max ? s : max;
    }
    return max;
}

/* sums[d] = sum over the keys of exp(score - max) * value[d]; returns the sum of the exponentials.
 */
static float sum_values(const work *w, const view *seen, int32_t kv_head, float max,
                        const float *scores, float *sums)
{
    float total = 0;
    memset(sums, 0, (size_t)w->layer->v_head_dim * sizeof *sums);
    for (int64_t j = seen->first; j <= seen->last; j++) {
        const void *value = key_or_value(w, seen, w->v, w->v_cache, j, kv_head);
        float p = expf(scores[j - seen->first] - max);
        total += p;
        for (int32_t d = 0; d < w->layer->v_head_dim; d++)
            sums[d] += p * load(value, w->layer->dtype, d);
    }
    return total;
}

/* One row, one head: task = row * heads + head. */
static attn_status attend(void *arg, int64_t task, uint32_t worker)
{
    const work *w = arg;
    const layer_facts *layer = w->layer;
    int32_t head = (int32_t)(task % layer->num_q_heads);
    int32_t kv_head = head / (layer->num_q_heads / layer->num_kv_heads);
    const view seen = view_of(w, &w->metadata->rows[task / layer->num_q_heads]);
    int64_t q_row = w->first_row + task / layer->num_q_heads;
    int64_t scores_size = w->metadata->bounds.max_kv_len;
    float *scores = w->metadata->scratch +
                    (size_t)worker * (size_t)(scores_size + w->metadata->instance->max_v_head_dim);
    float *sums = scores + scores_size;

    float max = score_keys(w, &seen, q_row, head, scores);
    float total = sum_values(w, &seen, kv_head, max, scores, sums);
    /* A row that sees no key is 0, with an LSE of -inf. */
    int empty = seen.first > seen.last;
    void *out = element(w->out, q_row, head, 0);
    for (int32_t d = 0; d < layer->v_head_dim; d++)
        store(out, layer->dtype, d, empty ? 0 : sums[d] / total);
    if (w->lse)
        *(float *)element(w->lse, q_row, head, 0) = empty ? -INFINITY : max + logf(total);
    return ATTN_OK;
}

static const layer_facts *find_layer(const attn_instance *instance, int32_t layer_id)
{
    for (uint32_t l = 0; l < instance->num_layers; l++)
        if (instance->layers[l].layer_id == layer_id)
            return &instance->layers[l];
    return NULL;
}

/* What a forward writes must not be read-only: `written` says so of this operand. */
static attn_status take_operand(const attn_forward_args *args, uint32_t role, const char *name,
                                attn_dtype dtype, uint32_t ndim, int written,
                                const attn_tensor **operand, attn_error *error)
{
    *operand = attn_operand(args, role);
    if (!*operand)
        return fail(error, ATTN_INVALID_ARGUMENT, "operand %s is missing", name);
    if ((*operand)->dtype != dtype || (*operand)->ndim != ndim ||
        (ndim > 2 && (*operand)->strides[ndim - 1] != 1))
        return fail(error, ATTN_INVALID_ARGUMENT, "operand %s: wrong dtype, ndim or inner stride",
                    name);
    if (written && (*operand)->flags & ATTN_TENSOR_READ_ONLY)
        return fail(error, ATTN_INVALID_ARGUMENT, "operand %s is read-only", name);
    return ATTN_OK;
}

static attn_status take_operands(work *w, const attn_forward_args *args, attn_error *error)
{
    attn_dtype dtype = w->layer->dtype;
    int is_new = attn_operand(args, ATTN_ROLE_K) || attn_operand(args, ATTN_ROLE_V);
    int saves = is_new && args->flags & ATTN_FORWARD_SAVE_KV;
    attn_status status = take_operand(args, ATTN_ROLE_Q, "q", dtype, 3, 0, &w->q, error);
    if (status == ATTN_OK)
        status = take_operand(args, ATTN_ROLE_OUT, "out", dtype, 3, 1, &w->out, error);
    if (status == ATTN_OK)
        status =
            take_operand(args, ATTN_ROLE_K_CACHE, "k_cache", dtype, 4, saves, &w->k_cache, error);
    if (status == ATTN_OK)
        status =
            take_operand(args, ATTN_ROLE_V_CACHE, "v_cache", dtype, 4, saves, &w->v_cache, error);
    if (status == ATTN_OK && is_new)
        status = take_operand(args, ATTN_ROLE_K, "k", dtype, 3, 0, &w->k, error);
    if (status == ATTN_OK && is_new)
        status = take_operand(args, ATTN_ROLE_V, "v", dtype, 3, 0, &w->v, error);
    if (status == ATTN_OK && attn_operand(args, ATTN_ROLE_LSE))
        status = take_operand(args, ATTN_ROLE_LSE, "lse", ATTN_F32, 2, 1, &w->lse, error);
    return status;
}

/* New rows of k: where kv_new_indptr is absent they are the query's. */
static void new_rows(const work *w, int64_t *first, int64_t *count)
{
    const attn_batch *batch = &w->metadata->batch;
    const int32_t *indptr = w->kv->kv_new_indptr.device;
    *first = indptr ? indptr[0] : w->first_row;
    *count = indptr ? indptr[batch->num_seqs] - indptr[0] : batch->num_tokens;
}

/* parallel_for counts tasks from 0; new rows may begin elsewhere. */
typedef struct save_work {
    work *w;
    int64_t first;
} save_work;

static attn_status save_task(void *arg, int64_t task, uint32_t worker)
{
    const save_work *save = arg;
    return save_row(save->w, save->first + task, worker);
}

static attn_status forward(attn_metadata *metadata, int32_t layer_id, const attn_forward_args *args,
                           attn_stream stream, attn_error *error)
{
    (void)stream;
    const attn_services *services = metadata->instance->services;
    if (!metadata->planned)
        return fail(error, ATTN_BAD_STATE, "no batch is planned");
    if (args->flags & ATTN_FORWARD_CAPTURING)
        return fail(error, ATTN_CAPTURE_UNSUPPORTED, "nothing can be captured on a processor");
    work w = {.metadata = metadata, .layer = find_layer(metadata->instance, layer_id)};
    if (!w.layer)
        return fail(error, ATTN_INVALID_ARGUMENT, "layer_id %d is unknown", layer_id);
    w.kv = &metadata->kv[w.layer->kv_group];
    if (metadata->batch.mode != ATTN_MODE_DECODE && metadata->batch.num_seqs > 0)
        w.first_row = metadata->batch.q_indptr.device[0];
    attn_status status = take_operands(&w, args, error);
    if (status == ATTN_OK && w.k && args->flags & ATTN_FORWARD_SAVE_KV) {
        save_work save = {.w = &w};
        int64_t count;
        new_rows(&w, &save.first, &count);
        status = services->parallel_for(services->ctx, count, save_task, &save);
    }
    if (status != ATTN_OK)
        return status;
    int64_t tasks = (int64_t)metadata->batch.num_tokens * w.layer->num_q_heads;
    return services->parallel_for(services->ctx, tasks, attend, &w);
}

/* ---- 1. Tables and the entry ----------------------------------------------------------------- */

static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD};

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = destroy,
    .index_forms = index_forms,
    .metadata_size = metadata_size,
    .metadata_create = metadata_create,
    .init_forward_metadata = init_forward_metadata,
    .metadata_destroy = metadata_destroy,
    .forward_extend = forward,
    .forward_decode = forward,
};

static const attn_backend_type type = {
    .struct_size = sizeof type,
    .name = "example_rows",
    .doc = "paged attention one row at a time, as plain as it gets; an example to copy",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .ops = &ops,
    .query = query,
    .create = create,
};

static attn_status describe(uint32_t index, const attn_backend_type **described, attn_error *error)
{
    if (index != 0)
        return fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0", index);
    *described = &type;
    return ATTN_OK;
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    if (!attn_host_speaks(host, ATTN_ABI_MAJOR))
        return fail(error, ATTN_INCOMPATIBLE_VERSION, "ABI major %u..%u: accepted %u",
                    host->abi_major_min, host->abi_major_max, ATTN_ABI_MAJOR);
    attn_plugin mine = {
        .abi_major = ATTN_ABI_MAJOR,
        .abi_minor = ATTN_ABI_MINOR,
        .num_backends = 1,
        .name = "example",
        .version = "1.0",
        .vendor = "you",
        .doc = "a plugin built against the installed headers alone",
        .describe = describe,
    };
    give(plugin, &mine, sizeof mine);
    return ATTN_OK;
}
