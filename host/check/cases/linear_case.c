/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_case.c: the memory of a linear case, its run and its judgement.
 */
#include "host/check/cases/linear_case.h"

#include "host/check/cases/draw.h"
#include "host/check/cases/operand_text.h"
#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/base/operand_roles.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What lies in the case's memory: operands by role, then arrays of the batch. */
enum {
    LINEAR_INDPTR = ATTN_ROLE_COUNT,
    LINEAR_SLOT,
    LINEAR_DST,
    LINEAR_INITIAL,
    LINEAR_SNAPSHOTS,
    LINEAR_SEQ_LENS,
    LINEAR_PREFIX_LENS,
    LINEAR_REQUESTS,
    LINEAR_OTHERS, /* slots of the other state group */
    LINEAR_PARTS
};

struct part {
    uint64_t offset;
    uint64_t bytes; /* 0 = it is not there */
};

struct linear_case {
    struct linear_spec spec;
    uint64_t seed;
    const struct device *device;
    attn_device info;
    struct linear_posed posed;
    int32_t num_rows;  /* of a tensor of rows; first_row and padding included */
    int32_t num_slots; /* of the pools */
    struct part parts[LINEAR_PARTS];
    uint64_t bytes;
    char *image;  /* what the case begins with */
    char *after;  /* what the device had when it was judged */
    char *memory; /* the device's */
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_state_batch states[LINEAR_STATE_GROUPS];
    attn_batch batch;
    attn_forward_args args;
    struct far_places places; /* of slots, where they are spread */
    struct far_pool pools[2];
    char *host;              /* what host arrays have */
    char *planning;          /* what they point to until the batch is planned */
    uint32_t host_arrays;    /* ATTN_HOST_* that must be there */
    reference_report judged; /* all that was compared */
};

static const uint32_t pool_roles[] = {ATTN_ROLE_STATE, ATTN_ROLE_CONV_STATE};

/* ---- Layout ---------------------------------------------------------------------------------- */

static void add_part(struct linear_case *c, int part, uint64_t bytes)
{
    c->parts[part] = (struct part){.offset = c->bytes + CASE_RED_ZONE, .bytes = bytes};
    c->bytes = (c->parts[part].offset + bytes + 63) / 64 * 64;
}

/* What an operand is aligned to: 64 bytes, or as the problem promises. */
static uint32_t alignment_of(const struct linear_case *c, attn_dtype dtype)
{
    uint32_t guaranteed = attn_guaranteed_alignment(c->device->type, dtype);
    if (!c->spec.exactly_aligned)
        return 64;
    return c->spec.min_alignment > guaranteed ? c->spec.min_alignment : guaranteed;
}

/* Elements between outermost rows, so that they are aligned as well as the innermost ones. */
static int64_t gap_between(const struct linear_case *c, attn_dtype dtype, int64_t width,
                           int64_t gap)
{
    uint64_t row = (uint64_t)width * attn_dtype_size(dtype), unit = row & (~row + 1);
    if (unit > c->spec.min_alignment)
        unit = c->spec.min_alignment;
    int64_t least = (int64_t)unit / attn_dtype_size(dtype);
    return gap > 0 && gap < least ? least : gap;
}

/* Elements of an outermost row, without the gap after it. */
static int64_t row_of(const attn_tensor *tensor)
{
    return tensor->ndim > 1 ? tensor->strides[1] * tensor->shape[1] : 1;
}

static void add_operand(struct linear_case *c, uint32_t role, attn_dtype dtype, uint32_t ndim,
                        const int64_t *shape, int64_t gap)
{
    attn_tensor *tensor = &c->tensors[role];
    int64_t count = 1;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor,
                            .device_type = c->device->type,
                            .device_id = c->device->id,
                            .dtype = dtype,
                            .ndim = ndim,
                            .alignment = alignment_of(c, dtype)};
    gap = gap_between(c, dtype, shape[ndim - 1], gap);
    for (uint32_t d = ndim; d-- > 0;) {
        tensor->shape[d] = shape[d];
        tensor->strides[d] = count + (d == 0 && ndim > 1 ? gap : 0);
        count = tensor->strides[d] * shape[d];
    }
    if (c->spec.exactly_aligned) /* an odd multiple */
        c->bytes =
            (c->bytes + CASE_RED_ZONE) / (2ull * tensor->alignment) * (2ull * tensor->alignment) +
            3ull * tensor->alignment - CASE_RED_ZONE;
    add_part(c, (int)role, (uint64_t)count * attn_dtype_size(dtype));
    c->operands[role] = tensor;
}

#define ADD(role, dtype, gap, ...)                                                                 \
    add_operand(c, ATTN_ROLE_##role, dtype,                                                        \
                (uint32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                    \
                (int64_t[]){__VA_ARGS__}, gap)

static int32_t channels_of(const struct linear_spec *spec)
{
    return 2 * spec->k_heads * spec->k_dim + spec->v_heads * spec->v_dim;
}

static void add_gates(struct linear_case *c)
{
    const struct linear_spec *spec = &c->spec;
    bool raw = spec->flags & ATTN_LINEAR_RAW_GATES, kda = spec->family == ATTN_LINEAR_KDA;
    attn_dtype dtype = raw ? spec->q_dtype : ATTN_F32;
    int64_t heads = spec->v_heads;
    if (spec->family == ATTN_LINEAR_SHORT_CONV)
        return;
    if (raw || spec->family == ATTN_LINEAR_LIGHTNING)
        ADD(A_LOG, ATTN_F32, 0, heads);
    if (spec->family == ATTN_LINEAR_LIGHTNING)
        return;
    if (kda)
        ADD(GATE_A, dtype, spec->gap, c->num_rows, heads, spec->k_dim);
    else
        ADD(GATE_A, dtype, spec->gap, c->num_rows, heads);
    if (!raw || spec->family != ATTN_LINEAR_MAMBA2)
        ADD(GATE_B, dtype, spec->gap, c->num_rows, heads);
    if (raw && kda && spec->gap)
        ADD(DT_BIAS, ATTN_F32, 0, heads * spec->k_dim);
    else if (raw && kda)
        ADD(DT_BIAS, ATTN_F32, 0, heads, spec->k_dim);
    else if (raw)
        ADD(DT_BIAS, ATTN_F32, 0, heads);
}

static void lay_out(struct linear_case *c)
{
    const struct linear_spec *spec = &c->spec;
    int64_t heads = spec->v_heads, channels = channels_of(spec), rows = c->num_rows;
    int32_t sequences = spec->num_sequences + spec->padded;
    ADD(MIXED_QKV, spec->q_dtype, spec->gap, rows, channels);
    ADD(OUT, spec->out_dtype, spec->gap, rows, heads, spec->v_dim);
    if (spec->z)
        ADD(GATE_Z, spec->q_dtype, spec->gap, rows, heads, spec->v_dim);
    if (spec->width > 0)
        ADD(CONV_WEIGHT, spec->q_dtype, 0, channels, spec->width);
    if (spec->width > 0 && spec->bias)
        ADD(CONV_BIAS, spec->q_dtype, 0, channels);
    if (spec->width > 1)
        ADD(CONV_STATE, spec->conv_dtype, spec->gap, c->num_slots, channels, spec->width - 1);
    if (spec->family != ATTN_LINEAR_SHORT_CONV)
        ADD(STATE, spec->state_dtype, spec->gap, c->num_slots, heads,
            spec->vk ? spec->v_dim : spec->k_dim, spec->vk ? spec->k_dim : spec->v_dim);
    add_gates(c);
    if (spec->skip == 1)
        ADD(D_SKIP, ATTN_F32, 0, heads);
    if (spec->skip == 2)
        ADD(D_SKIP, ATTN_F32, 0, heads, spec->v_dim);
    for (int part = LINEAR_INDPTR; part < LINEAR_PARTS; part++)
        add_part(c, part, (uint64_t)((part == LINEAR_SNAPSHOTS ? rows : sequences) + 1) * 4);
    c->bytes += CASE_RED_ZONE;
}

static int32_t *array_of(const struct linear_case *c, char *base, int part)
{
    return (int32_t *)(void *)(base + c->parts[part].offset);
}

/* ---- Contents -------------------------------------------------------------------------------- */

/* In (-1, 1), a function of the seed, the part and the place. */
static double uniform(const struct linear_case *c, uint32_t role, int64_t index)
{
    uint64_t word =
        mix_stream(mix_absorb(c->seed + (uint64_t)c->spec.layer, role), (uint64_t)index);
    return (double)(int64_t)(word >> 11) * 0x1p-52 - 1;
}

/* Queries and keys of some rows are nearly nothing, so that the epsilon of their norm shows. */
static bool is_faint(const struct linear_case *c, int64_t index)
{
    int64_t channels = channels_of(&c->spec);
    return c->spec.flags & ATTN_LINEAR_QK_L2NORM &&
           index % channels < 2 * (int64_t)c->spec.k_heads * c->spec.k_dim &&
           uniform(c, LINEAR_PARTS + 1, index / channels) > 0.5;
}

/* What an operand's element is; `head` of those that have one. */
static double value_of(const struct linear_case *c, uint32_t role, int64_t index, int64_t head)
{
    const struct linear_spec *spec = &c->spec;
    double x = uniform(c, role, index);
    bool raw = spec->flags & ATTN_LINEAR_RAW_GATES;
    bool unnormalised = !(spec->flags & ATTN_LINEAR_QK_L2NORM) &&
                        (spec->family == ATTN_LINEAR_GDN || spec->family == ATTN_LINEAR_KDA);
    switch (role) {
    case ATTN_ROLE_MIXED_QKV:
        if (is_faint(c, index))
            return 0.001 * x;
        /* fall through */
    case ATTN_ROLE_CONV_STATE: /* keys of a delta rule are not to be longer than 1 */
        return unnormalised ? 0.9 * x / sqrt((double)spec->k_dim) : 1.5 * x;
    case ATTN_ROLE_CONV_WEIGHT:
        return 0.7 * x;
    case ATTN_ROLE_CONV_BIAS:
        return unnormalised ? 0.1 * x / sqrt((double)spec->k_dim) : 0.3 * x;
    case ATTN_ROLE_GATE_Z:
        return 2 * x;
    case ATTN_ROLE_GATE_A: /* raw, or a log decay: every other head forgets slowly, or even grows */
        if (raw)
            return spec->steep ? 30 * x : 2 * x;
        if (x > 0.8 && !spec->steep)
            return 0.2 * (x - 0.8);
        return -fabs(x) * (spec->steep ? 60 : head % 2 ? 1 : 0.02);
    case ATTN_ROLE_GATE_B:
        return raw ? 2 * x : fabs(x);
    case ATTN_ROLE_A_LOG:
        if (spec->family == ATTN_LINEAR_LIGHTNING)
            return -fabs(x) * (spec->steep ? 20 : head % 2 ? 0.7 : 0.01);
        return head % 2 ? 1 + x : -4 + x;
    default:
        return x;
    }
}

/* Which dimension of an operand is that of the v heads; -1 = none. */
static int head_dimension(uint32_t role)
{
    return role == ATTN_ROLE_GATE_A || role == ATTN_ROLE_GATE_B ? 1
           : role == ATTN_ROLE_A_LOG                            ? 0
                                                                : -1;
}

/* Whose sequence stands at place s of the batch. */
static int32_t sequence_at(const struct linear_case *c, int32_t s)
{
    int32_t count = c->spec.num_sequences;
    return s < count ? (s + c->spec.turn) % count : s;
}

static bool has_rows(uint32_t role)
{
    return role == ATTN_ROLE_MIXED_QKV || role == ATTN_ROLE_GATE_A || role == ATTN_ROLE_GATE_B ||
           role == ATTN_ROLE_GATE_Z;
}

/* The row that has the same contents in the batch that is not turned. */
static int64_t row_unturned(const struct linear_case *c, int64_t row)
{
    const int32_t *indptr = array_of(c, c->image, LINEAR_INDPTR);
    for (int32_t s = 0; s < c->spec.num_sequences; s++)
        if (indptr[s] <= row && row < indptr[s + 1]) {
            int64_t first = c->spec.first_row;
            for (int32_t n = 0; n < sequence_at(c, s); n++)
                first += linear_sequence(&c->spec, n)->rows;
            return first + row - indptr[s];
        }
    return row;
}

static void fill_operand(struct linear_case *c, uint32_t role)
{
    const attn_tensor *tensor = &c->tensors[role];
    int64_t outer = tensor->shape[0], inner = 1;
    int dimension = head_dimension(role);
    for (uint32_t d = 1; d < tensor->ndim; d++)
        inner *= tensor->shape[d];
    for (int64_t o = 0; o < outer; o++) {
        int64_t from = has_rows(role) ? row_unturned(c, o) : o;
        for (int64_t n = 0; n < inner; n++) {
            int64_t head = dimension == 0   ? o
                           : dimension == 1 ? n / (tensor->ndim == 3 ? tensor->shape[2] : 1)
                                            : 0;
            dtype_store(tensor->dtype, c->image + c->parts[role].offset, o * tensor->strides[0] + n,
                        value_of(c, role, from * inner + n, head));
        }
    }
}

/* Slots 1 .. count in any order. */
static void shuffle(const struct linear_case *c, int32_t *slots, int32_t count)
{
    for (int32_t n = 0; n < count; n++) {
        uint64_t turn = (uint64_t)(c->spec.turn * LINEAR_STATE_GROUPS + c->spec.state_group);
        uint64_t seed = mix_absorb(c->seed, LINEAR_PARTS + turn);
        int32_t other = draw_at(seed, (uint64_t)n, n + 1);
        slots[n] = slots[other];
        slots[other] = n + 1;
    }
}

/* Where a sequence is cut by its snapshots: at one of its ends, before or after a multiple of 64
 * rows, as chunks are, within the first of these, anywhere. */
static int32_t place_of_cut(uint64_t stream, int32_t rows)
{
    int32_t any = draw_at(stream, 1, rows), chunk = any / 64 * 64;
    switch (mix_stream(stream, 0) >> 62) {
    case 0:
        return any % 2 ? 0 : any % 4 ? rows - 1 : rows - 2;
    case 1:
        return chunk - 2 + any % 4;
    case 2:
        return any % 64;
    default:
        return any;
    }
}

static bool is_cut(const struct linear_case *c, int32_t sequence, int32_t row, int32_t rows)
{
    bool found = false;
    for (int32_t n = 0; n < c->spec.cuts; n++) {
        uint64_t stream = mix_absorb(c->seed, LINEAR_PARTS + 2);
        stream = mix_absorb(mix_absorb(stream, (uint64_t)sequence), (uint64_t)n);
        found |= row == place_of_cut(stream, rows);
    }
    return found;
}

/* Of row `row` of the batch, which is row t of a sequence of so many rows. */
static bool has_snapshot(const struct linear_case *c, int32_t sequence, int32_t row, int32_t t,
                         int32_t rows)
{
    const struct linear_spec *spec = &c->spec;
    if (!spec->snapshots)
        return false;
    if (spec->cuts > 0)
        return is_cut(c, sequence, t, rows);
    return spec->sparse > 0 ? row % spec->sparse == spec->sparse - 1 : row % 3 != 1;
}

static void fill_sequence(struct linear_case *c, int32_t s, int32_t row, const int32_t **next)
{
    const struct linear_spec *spec = &c->spec;
    const struct linear_case_sequence *sequence = linear_sequence(spec, sequence_at(c, s));
    bool real = s < spec->num_sequences;
    int32_t rows = real ? sequence->rows : 1;
    int32_t slot = real ? *(*next)++ : 0, other = real ? *(*next)++ : 0;
    bool initial = spec->absent & LINEAR_WITHOUT_INITIAL || sequence->has_initial;
    bool in_place = spec->absent & LINEAR_WITHOUT_DST;
    array_of(c, c->image, LINEAR_INDPTR)[s] = row;
    array_of(c, c->image, LINEAR_INDPTR)[s + 1] = row + rows;
    array_of(c, c->image, LINEAR_SLOT)[s] = slot;
    array_of(c, c->image, LINEAR_DST)[s] = !real                ? 0
                                           : in_place           ? slot
                                           : sequence->dropped  ? 0
                                           : sequence->in_place ? slot
                                                                : other;
    array_of(c, c->image, LINEAR_INITIAL)[s] = real && initial;
    array_of(c, c->image, LINEAR_PREFIX_LENS)[s] = real && initial ? 7 : 0;
    array_of(c, c->image, LINEAR_SEQ_LENS)[s] = real ? rows + (initial ? 7 : 0) : 0;
    array_of(c, c->image, LINEAR_REQUESTS)[s] = real ? s + 1 : 0;
    array_of(c, c->image, LINEAR_OTHERS)[s] = real ? c->num_slots - 1 - s : 0;
    for (int32_t t = 0; t < rows; t++) {
        bool is_kept = real && has_snapshot(c, sequence_at(c, s), row + t, t, rows);
        array_of(c, c->image, LINEAR_SNAPSHOTS)[row + t] = is_kept ? *(*next)++ : real ? -1 : 0;
    }
}

static attn_status fill_arrays(struct linear_case *c, attn_error *error)
{
    const struct linear_spec *spec = &c->spec;
    int32_t *slots = calloc((size_t)c->num_slots, sizeof *slots), row = spec->first_row;
    const int32_t *next = slots;
    if (!slots)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for slots");
    shuffle(c, slots, c->num_slots - 1 - spec->num_sequences);
    for (int32_t s = 0; s < spec->num_sequences + spec->padded; s++) {
        fill_sequence(c, s, row, &next);
        row = array_of(c, c->image, LINEAR_INDPTR)[s + 1];
    }
    for (; row < c->num_rows; row++)
        array_of(c, c->image, LINEAR_SNAPSHOTS)[row] = -1;
    free(slots);
    return ATTN_OK;
}

/* One slot of a pool to state `number`. */
static void fill_slot(struct linear_case *c, uint32_t role, int32_t slot, int32_t number)
{
    const attn_tensor *pool = &c->tensors[role];
    int64_t size = 1;
    for (uint32_t d = 1; d < pool->ndim; d++)
        size *= pool->shape[d];
    for (int64_t n = 0; n < size; n++)
        dtype_store(pool->dtype, c->image + c->parts[role].offset, slot * pool->strides[0] + n,
                    value_of(c, role, number * size + n, 0));
}

/* Pools: NaN but for slots that are read, and slot 0, which holds what a state that was dropped has
 * left there. */
static void fill_pool(struct linear_case *c, uint32_t role)
{
    const attn_tensor *pool = &c->tensors[role];
    for (int64_t slot = 0; slot < c->num_slots; slot++)
        memset(c->image + c->parts[role].offset +
                   (uint64_t)(slot * pool->strides[0]) * attn_dtype_size(pool->dtype),
               CASE_POISON, (uint64_t)row_of(pool) * attn_dtype_size(pool->dtype));
    fill_slot(c, role, 0, 0);
    for (int32_t s = 0; s < c->spec.num_sequences; s++)
        if (array_of(c, c->image, LINEAR_INITIAL)[s])
            fill_slot(c, role, array_of(c, c->image, LINEAR_SLOT)[s], 1 + sequence_at(c, s));
}

static attn_status fill(struct linear_case *c, attn_error *error)
{
    memset(c->image, CASE_RED, c->bytes);
    attn_status status = fill_arrays(c, error);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT && status == ATTN_OK; role++) {
        if (!c->operands[role])
            continue;
        if (role == ATTN_ROLE_STATE || role == ATTN_ROLE_CONV_STATE)
            fill_pool(c, role);
        else if (role == ATTN_ROLE_OUT)
            memset(c->image + c->parts[role].offset, CASE_POISON, c->parts[role].bytes);
        else
            fill_operand(c, role);
    }
    /* Padding has zero operands. */
    int32_t end = array_of(c, c->image, LINEAR_INDPTR)[c->spec.num_sequences];
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (c->operands[role] && has_rows(role)) {
            uint64_t from = (uint64_t)(end * c->tensors[role].strides[0]) *
                            attn_dtype_size(c->tensors[role].dtype);
            memset(c->image + c->parts[role].offset + from, 0, c->parts[role].bytes - from);
        }
    return status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void count(struct linear_case *c)
{
    const struct linear_spec *spec = &c->spec;
    int32_t rows = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        rows += linear_sequence(spec, s)->rows;
    c->num_rows = spec->first_row + rows + spec->padded + spec->spare;
    c->num_slots = 3 + 3 * spec->num_sequences +
                   (spec->most_kept > 0 ? spec->most_kept
                    : spec->snapshots   ? rows
                                        : 0);
}

static int32_t *host_array_of(const struct linear_case *c, char *host, int part, uint32_t array)
{
    bool is_given =
        host && (c->host_arrays & array ||
                 case_host_has(c->spec.host, mix_absorb(c->seed, LINEAR_PARTS), (uint32_t)part));
    return is_given ? array_of(c, host, part) : NULL;
}

static void point(struct linear_case *c, char *base, char *host, attn_batch *batch,
                  attn_state_batch *states)
{
#define PAIR(part, needed)                                                                         \
    {                                                                                              \
        .host = host_array_of(c, host, part, needed), .device = array_of(c, base, part)            \
    }
    const struct linear_spec *spec = &c->spec;
    attn_state_batch *state = &states[spec->state_group];
    int32_t sequences = spec->num_sequences + spec->padded;
    int32_t real = array_of(c, c->image, LINEAR_INDPTR)[spec->num_sequences] - spec->first_row;
    int mixed = spec->mode == ATTN_MODE_MIXED, last = mixed && !spec->decodes_first;
    int32_t decodes = spec->decodes < spec->num_sequences ? spec->decodes : spec->num_sequences;
    for (int32_t g = 0; g < LINEAR_STATE_GROUPS; g++)
        states[g] =
            (attn_state_batch){.struct_size = sizeof *states, .slot = PAIR(LINEAR_OTHERS, 0)};
    state->slot = (attn_i32_array)PAIR(LINEAR_SLOT, 0);
    if (!(spec->absent & LINEAR_WITHOUT_DST) || spec->padded > 0)
        state->dst_slot = (attn_i32_array)PAIR(LINEAR_DST, 0);
    if (!(spec->absent & LINEAR_WITHOUT_INITIAL) || spec->padded > 0)
        state->has_initial = (attn_i32_array)PAIR(LINEAR_INITIAL, 0);
    if (spec->snapshots)
        state->snapshots = (attn_i32_array)PAIR(LINEAR_SNAPSHOTS, 0);
    *batch = (attn_batch){.struct_size = sizeof *batch,
                          .mode = spec->mode,
                          .num_seqs = sequences,
                          .num_tokens = real + spec->padded + spec->spare,
                          .num_real_seqs = spec->num_sequences,
                          .num_real_tokens = real,
                          .num_decode_seqs = last ? decodes + spec->padded : mixed * decodes,
                          .first_decode_seq = last ? spec->num_sequences - decodes : 0,
                          .decode_q_len = mixed ? spec->decode_q_len : 0,
                          .max_q_len = c->posed.bounds.max_q_len,
                          .max_kv_len = c->posed.bounds.max_kv_len,
                          .num_state_groups = LINEAR_STATE_GROUPS,
                          .seq_lens = PAIR(LINEAR_SEQ_LENS, ATTN_HOST_SEQ_LENS),
                          .prefix_lens = PAIR(LINEAR_PREFIX_LENS, ATTN_HOST_PREFIX_LENS),
                          .q_indptr = PAIR(LINEAR_INDPTR, ATTN_HOST_Q_INDPTR),
                          .req_pool_indices = PAIR(LINEAR_REQUESTS, 0),
                          .state_groups = states};
#undef PAIR
}

static attn_status allocate(struct linear_case *c, attn_error *error)
{
    c->image = calloc(1, c->bytes);
    c->after = calloc(1, c->bytes);
    c->memory = device_allocate(c->device, ATTN_SPACE_DEVICE, c->bytes, 512);
    c->planning = malloc(c->bytes);
    if (!c->image || !c->after || !c->planning)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a case");
    if (!c->memory)
        return host_fail(error, device_exhausted(c->device, ATTN_SPACE_DEVICE),
                         "no memory for a case of %llu bytes", (unsigned long long)c->bytes);
    return fill(c, error);
}

/* The pools as the backend has them, and the arrays of the batch that name their slots. */
static attn_status spread_slots(struct linear_case *c, attn_error *error)
{
    static const int arrays[] = {LINEAR_SLOT, LINEAR_DST, LINEAR_SNAPSHOTS, LINEAR_OTHERS};
    c->host = c->image;
    if (c->spec.spread == SPREAD_NONE)
        return ATTN_OK;
    attn_status status =
        far_places_init(&c->places, c->device, c->spec.spread, c->num_slots, c->seed, error);
    for (int n = 0; n < 2 && status == ATTN_OK; n++)
        if (c->operands[pool_roles[n]]) {
            status = far_pool_init(&c->pools[n], &c->places, &c->tensors[pool_roles[n]], error);
            c->operands[pool_roles[n]] = &c->pools[n].tensor;
        }
    c->host = malloc(c->bytes);
    if (!c->host)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a case");
    memcpy(c->host, c->image, c->bytes);
    for (size_t n = 0; n < sizeof arrays / sizeof arrays[0] && status == ATTN_OK; n++)
        for (uint64_t i = 0; i < c->parts[arrays[n]].bytes / sizeof(int32_t); i++) {
            int32_t *slot = &array_of(c, c->host, arrays[n])[i];
            *slot = (int32_t)far_place(&c->places, *slot);
        }
    return status;
}

attn_status linear_case_create(const struct linear_spec *spec, uint64_t seed,
                               const struct device *device, struct linear_case **c,
                               attn_error *error)
{
    struct linear_case *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a case");
    made->spec = *spec;
    made->seed = seed;
    made->device = device;
    made->info = device->info;
    linear_pose(&made->posed, spec, &made->info);
    count(made);
    lay_out(made);
    attn_status status = allocate(made, error);
    if (status != ATTN_OK) {
        linear_case_destroy(made);
        return status;
    }
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        made->tensors[role].data = made->memory + made->parts[role].offset;
    made->args = (attn_forward_args){.struct_size = sizeof made->args,
                                     .num_operands = ATTN_ROLE_COUNT,
                                     .operands = made->operands};
    status = spread_slots(made, error);
    if (status != ATTN_OK) {
        linear_case_destroy(made);
        return status;
    }
    *c = made;
    return ATTN_OK;
}

void linear_case_destroy(struct linear_case *c)
{
    if (!c)
        return;
    device_release(c->device, ATTN_SPACE_DEVICE, c->memory);
    for (int n = 0; n < 2; n++)
        far_pool_finish(&c->pools[n]);
    far_places_finish(&c->places);
    if (c->host != c->image)
        free(c->host);
    free(c->image);
    free(c->planning);
    free(c->after);
    free(c);
}

attn_status linear_case_refill(struct linear_case *c, uint64_t seed, int32_t turn,
                               attn_error *error)
{
    c->seed = seed;
    c->spec.turn = turn;
    return fill(c, error);
}

bool linear_case_has_snapshot(const struct linear_case *c, int32_t sequence, int32_t row)
{
    int32_t first = array_of(c, c->image, LINEAR_INDPTR)[sequence];
    return array_of(c, c->image, LINEAR_SNAPSHOTS)[first + row] > 0;
}

attn_problem *linear_case_problem(struct linear_case *c)
{
    return &c->posed.problem;
}

/* ---- Running --------------------------------------------------------------------------------- */

attn_status linear_case_reset(struct linear_case *c, struct case_session *session,
                              attn_error *error)
{
    attn_status status =
        device_copy(c->device, c->memory, c->host, c->bytes, session->stream, error);
    for (int n = 0; n < 2 && status == ATTN_OK; n++)
        if (c->pools[n].memory)
            status = far_pool_send(&c->pools[n], c->image + c->parts[pool_roles[n]].offset,
                                   session->stream, error);
    return status == ATTN_OK ? device_synchronize(c->device, session->stream, error) : status;
}

/* What host arrays point to, after those that the backend needs were noted: copies of what is in
 * `from`, until the batch is planned. */
static char *host_arrays(struct linear_case *c, const struct case_session *session,
                         const char *from)
{
    c->host_arrays = session->host_arrays;
    for (int n = LINEAR_INDPTR; n < LINEAR_PARTS; n++)
        memcpy(array_of(c, c->planning, n), from + c->parts[n].offset, c->parts[n].bytes);
    return c->planning;
}

/* What the batch was planned from is gone: host arrays, and the structs. */
static void forget_plan(struct linear_case *c)
{
    for (int n = LINEAR_INDPTR; n < LINEAR_PARTS; n++)
        memset(array_of(c, c->planning, n), CASE_RED, c->parts[n].bytes);
    memset(c->states, CASE_RED, sizeof c->states);
    memset(&c->batch, CASE_RED, sizeof c->batch);
}

static attn_status plan(struct linear_case *c, struct case_session *session, attn_error *error)
{
    attn_status status = session_enter(session, error);
    if (status != ATTN_OK)
        return status;
    status = session->backend.type->ops->init_forward_metadata(session->metadata, &c->batch,
                                                               session->stream, error);
    session_leave(session);
    forget_plan(c);
    return status;
}

static attn_status call(struct linear_case *c, struct case_session *session, uint32_t mode,
                        const attn_forward_args *args, attn_error *error)
{
    const attn_backend_ops *ops = session->backend.type->ops;
    attn_status status = session_spoil_scratch(session, error);
    if (status == ATTN_OK)
        status = session_enter(session, error);
    if (status != ATTN_OK)
        return status;
    status = (mode == ATTN_MODE_DECODE ? ops->forward_decode : ops->forward_extend)(
        session->metadata, c->posed.layer.layer_id, args, session->stream, error);
    session_leave(session);
    session->num_runs++;
    return status == ATTN_OK ? device_synchronize(c->device, session->stream, error) : status;
}

static attn_status run(struct linear_case *c, struct case_session *session,
                       const attn_forward_args *args, attn_error *error)
{
    const uint32_t mode = c->batch.mode;
    attn_status status = plan(c, session, error);
    return status == ATTN_OK ? call(c, session, mode, args, error) : status;
}

/* The slot from which a part goes on. */
static int32_t slot_of(const struct linear_case *c, const struct linear_part *part, int32_t row)
{
    if (part->accepted)
        return array_of(c, c->image, LINEAR_SNAPSHOTS)[row - 1];
    return array_of(c, c->image, part->first ? LINEAR_DST : LINEAR_SLOT)[part->sequence];
}

/* The arrays of a part, in the place of those of the batch; the host's are in `after`. Snapshots
 * are found by the row, so theirs stays. */
static attn_status put_arrays(struct linear_case *c, struct case_session *session,
                              const struct linear_part *part, attn_error *error)
{
    int32_t s = part->sequence, row = array_of(c, c->image, LINEAR_INDPTR)[s] + part->first;
    int32_t dst = array_of(c, c->image, LINEAR_DST)[s];
    int32_t initial = array_of(c, c->image, LINEAR_INITIAL)[s];
    int32_t prefix = array_of(c, c->image, LINEAR_PREFIX_LENS)[s] + part->first;
    const int32_t values[][2] = {{row, row + part->rows},
                                 {slot_of(c, part, row), 0},
                                 {dst, 0},
                                 {part->first || initial, 0},
                                 {-1, -1},
                                 {prefix + part->rows, 0},
                                 {prefix, 0},
                                 {s + 1, 0},
                                 {array_of(c, c->image, LINEAR_OTHERS)[s], 0}};
    attn_status status = ATTN_OK;
    for (int n = LINEAR_INDPTR; n < LINEAR_PARTS && status == ATTN_OK; n++) {
        const int32_t *value = values[n - LINEAR_INDPTR];
        uint64_t bytes = n == LINEAR_INDPTR ? 8 : 4;
        if (n == LINEAR_SNAPSHOTS) {
            memcpy(array_of(c, c->after, n), array_of(c, c->image, n), c->parts[n].bytes);
            continue;
        }
        memcpy(array_of(c, c->after, n), value, bytes);
        status =
            device_copy(c->device, array_of(c, c->memory, n), value, bytes, session->stream, error);
    }
    return status == ATTN_OK ? device_synchronize(c->device, session->stream, error) : status;
}

/* Operands whose rows begin with row `row`: a DECODE batch has its sequences in rows 0, 1 ... */
static void shift_rows(const struct linear_case *c, int32_t row, attn_tensor *tensors,
                       const attn_tensor **operands)
{
    static const uint32_t roles[] = {ATTN_ROLE_MIXED_QKV, ATTN_ROLE_GATE_A, ATTN_ROLE_GATE_B,
                                     ATTN_ROLE_GATE_Z, ATTN_ROLE_OUT};
    memcpy(tensors, c->tensors, sizeof c->tensors);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        operands[role] = c->operands[role] ? &tensors[role] : NULL;
    for (size_t n = 0; n < sizeof roles / sizeof roles[0]; n++) {
        attn_tensor *tensor = &tensors[roles[n]];
        tensor->shape[0] -= row;
        tensor->byte_offset = (uint64_t)(row * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
        tensor->alignment = attn_dtype_size(tensor->dtype);
    }
}

/* The batch that a part is. */
static void point_part(struct linear_case *c, char *base, char *host,
                       const struct linear_part *part, attn_batch *batch, attn_state_batch *states)
{
    point(c, base, host, batch, states);
    if (!part->snapshots)
        states[c->spec.state_group].snapshots = (attn_i32_array){NULL, NULL};
    batch->mode = part->mode;
    batch->num_seqs = batch->num_real_seqs = 1;
    batch->num_tokens = batch->num_real_tokens = part->rows;
    batch->num_decode_seqs = batch->first_decode_seq = batch->decode_q_len = 0;
}

static attn_status run_part(struct linear_case *c, struct case_session *session,
                            const struct linear_part *part, attn_error *error)
{
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args = c->args;
    attn_status status = put_arrays(c, session, part, error);
    if (status != ATTN_OK)
        return status;
    point_part(c, c->memory, host_arrays(c, session, c->after), part, &c->batch, c->states);
    if (part->mode == ATTN_MODE_DECODE) {
        shift_rows(c, array_of(c, c->image, LINEAR_INDPTR)[part->sequence] + part->first, tensors,
                   operands);
        args.operands = operands;
    }
    return run(c, session, &args, error);
}

attn_status linear_case_forward(struct linear_case *c, struct case_session *session,
                                const struct linear_part *part, attn_error *error)
{
    if (part)
        return run_part(c, session, part, error);
    point(c, c->memory, host_arrays(c, session, c->host), &c->batch, c->states);
    return run(c, session, &c->args, error);
}

attn_status linear_case_plan(struct linear_case *c, struct linear_case *const *others,
                             int32_t num_others, struct case_session *session, attn_error *error)
{
    point(c, c->memory, host_arrays(c, session, c->host), &c->batch, c->states);
    for (int32_t n = 0; n < num_others; n++) {
        struct linear_case *other = others[n];
        int32_t group = other->spec.state_group;
        point(other, other->memory, host_arrays(other, session, other->host), &other->batch,
              other->states);
        if (group != c->spec.state_group)
            c->states[group] = other->states[group];
    }
    attn_status status = plan(c, session, error);
    for (int32_t n = 0; n < num_others; n++)
        forget_plan(others[n]);
    return status;
}

attn_status linear_case_call(struct linear_case *c, struct case_session *session, attn_error *error)
{
    return call(c, session, c->spec.mode, &c->args, error);
}

attn_status linear_case_try(struct linear_case *c, struct case_session *session, case_change change,
                            void *ctx, attn_error *error)
{
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args = c->args;
    memcpy(operands, c->operands, sizeof operands);
    args.operands = operands;
    if (change)
        change(ctx, &args, operands, NULL);
    point(c, c->memory, host_arrays(c, session, c->host), &c->batch, c->states);
    attn_status status = run(c, session, &args, error);
    if (status != ATTN_OK)
        session_begin_anew(session);
    return status;
}

bool linear_case_has(const struct linear_case *c, uint32_t role)
{
    return c->operands[role] != NULL;
}

bool linear_case_needs(const struct linear_case *c, uint32_t role)
{
    return linear_case_has(c, role) && role != ATTN_ROLE_GATE_Z && role != ATTN_ROLE_D_SKIP &&
           role != ATTN_ROLE_CONV_BIAS;
}

/* ---- Judging --------------------------------------------------------------------------------- */

/* Tensors of the case in another copy of its memory. */
static void move_tensors(const struct linear_case *c, char *base, attn_tensor *tensors,
                         const attn_tensor **operands)
{
    memcpy(tensors, c->tensors, sizeof c->tensors);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        tensors[role].data = base + c->parts[role].offset;
        operands[role] = c->operands[role] ? &tensors[role] : NULL;
    }
}

/* What may differ, made equal: outputs of the batch's rows, slots that are written. */
static void allow(const struct linear_case *c, const reference_states *states, char *image)
{
    const attn_tensor *out = &c->tensors[ATTN_ROLE_OUT];
    static const uint32_t pools[] = {ATTN_ROLE_STATE, ATTN_ROLE_CONV_STATE};
    uint64_t row = (uint64_t)out->strides[0] * attn_dtype_size(out->dtype);
    uint64_t used = (uint64_t)row_of(out) * attn_dtype_size(out->dtype);
    for (int32_t r = c->spec.first_row; r < c->num_rows; r++) {
        uint64_t at = c->parts[ATTN_ROLE_OUT].offset + (uint64_t)r * row;
        memcpy(image + at, c->after + at, used);
    }
    for (size_t n = 0; n < 2; n++)
        for (int64_t e = -1; c->operands[pools[n]] && e < states->count; e++) {
            const attn_tensor *pool = &c->tensors[pools[n]];
            uint64_t size = attn_dtype_size(pool->dtype);
            uint64_t slot = e < 0 ? 0 : (uint64_t)states->entries[e].slot;
            uint64_t at = c->parts[pools[n]].offset + slot * (uint64_t)pool->strides[0] * size;
            memcpy(image + at, c->after + at, (uint64_t)row_of(pool) * size);
        }
}

/* The part that a byte is in, or after. */
static int part_before(const struct linear_case *c, uint64_t at)
{
    int part = 0;
    for (int p = 0; p < LINEAR_PARTS; p++)
        if (c->parts[p].bytes > 0 && c->parts[p].offset <= at &&
            c->parts[p].offset >= c->parts[part].offset)
            part = p;
    return part;
}

/* Has anything else been written? */
static bool check_rest(struct linear_case *c, const reference_states *states, char *text,
                       size_t size)
{
    char *image = malloc(c->bytes);
    uint64_t at = 0;
    if (!image) {
        snprintf(text, size, "no memory for a copy of the case");
        return false;
    }
    memcpy(image, c->image, c->bytes);
    allow(c, states, image);
    while (at < c->bytes && image[at] == c->after[at])
        at++;
    free(image);
    if (at == c->bytes)
        return true;
    int part = part_before(c, at);
    snprintf(text, size, "byte %lld of part %d (an operand's role, or an array) was written",
             (long long)(at - c->parts[part].offset), part);
    return false;
}

static bool compare(struct linear_case *c, const reference_result *result,
                    const reference_states *states, char *text, size_t size)
{
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    reference_report report = {0};
    host_error error;
    host_error_init(&error);
    move_tensors(c, c->after, tensors, operands);
    attn_status status =
        reference_compare(result, operands[ATTN_ROLE_OUT], NULL, &report, &error.base);
    if (status == ATTN_OK)
        status = reference_compare_states(states, operands[ATTN_ROLE_STATE],
                                          operands[ATTN_ROLE_CONV_STATE], &report, &error.base);
    reference_report_add(&c->judged, &report);
    if (status != ATTN_OK)
        snprintf(text, size, "%s", host_error_text(&error));
    else if (report.rows_failed + report.padding_failed > 0)
        snprintf(text, size, "%lld of %lld rows and states, %lld of padding; %s",
                 (long long)report.rows_failed, (long long)report.rows_checked,
                 (long long)report.padding_failed, report.message);
    return status == ATTN_OK && report.rows_failed + report.padding_failed == 0;
}

/* Arrays that are as they were sent become what they are in the image. */
static void take_back_arrays(struct linear_case *c)
{
    for (int n = LINEAR_SLOT; n < LINEAR_PARTS; n++) {
        uint64_t at = c->parts[n].offset, bytes = c->parts[n].bytes;
        if (memcmp(c->after + at, c->host + at, bytes) == 0)
            memcpy(c->after + at, c->image + at, bytes);
    }
}

attn_status linear_case_fetch(struct linear_case *c, struct case_session *session,
                              attn_error *error)
{
    attn_status status =
        device_copy(c->device, c->after, c->memory, c->bytes, session->stream, error);
    if (status == ATTN_OK)
        status = device_synchronize(c->device, session->stream, error);
    if (status == ATTN_OK && c->host != c->image)
        take_back_arrays(c);
    for (int n = 0; n < 2 && status == ATTN_OK; n++)
        if (c->pools[n].memory)
            status = far_pool_fetch(&c->pools[n], c->after + c->parts[pool_roles[n]].offset,
                                    session->stream, error);
    if (status == ATTN_OK)
        status = device_synchronize(c->device, session->stream, error);
    return status == ATTN_OK ? session_check_memory(session, error) : status;
}

/* Judge the results fetched last against the expected ones of a batch that begins with the case's
 * memory as it is in `base`. */
static bool judge(struct linear_case *c, char *base, const attn_batch *batch, bool whole,
                  char *text, size_t size)
{
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args = c->args;
    reference_result result;
    reference_states states;
    host_error error;
    host_error_init(&error);
    move_tensors(c, base, tensors, operands);
    args.operands = operands;
    attn_status status = reference_linear_forward(&c->posed.problem, batch, c->posed.layer.layer_id,
                                                  &args, &result, &states, &error.base);
    if (status != ATTN_OK) {
        snprintf(text, size, "%s", host_error_text(&error));
        return false;
    }
    /* Rows of padding that no sequence has are finite, no more. */
    for (int64_t row = result.num_rows - c->spec.spare; whole && row < result.num_rows; row++)
        result.kind[row] = REFERENCE_ROW_PADDING;
    bool good =
        compare(c, &result, &states, text, size) && (!whole || check_rest(c, &states, text, size));
    reference_result_finish(&result);
    reference_states_finish(&states);
    return good;
}

bool linear_case_judge(struct linear_case *c, struct case_session *session, bool whole, char *text,
                       size_t size)
{
    attn_batch batch;
    attn_state_batch states[LINEAR_STATE_GROUPS];
    host_error error;
    host_error_init(&error);
    point(c, c->image, NULL, &batch, states);
    if (linear_case_fetch(c, session, &error.base) == ATTN_OK)
        return judge(c, c->image, &batch, whole, text, size);
    snprintf(text, size, "%s", host_error_text(&error));
    return false;
}

/* Run the part between two looks at the device: `before` is what it had, with the part's arrays. */
static attn_status run_seen(struct linear_case *c, struct case_session *session,
                            const struct linear_part *part, char *before, attn_error *error)
{
    const uint64_t arrays = c->parts[LINEAR_INDPTR].offset;
    attn_status status = linear_case_fetch(c, session, error);
    if (status != ATTN_OK)
        return status;
    memcpy(before, c->after, c->bytes);
    status = run_part(c, session, part, error);
    if (status == ATTN_OK)
        status = linear_case_fetch(c, session, error);
    memcpy(before + arrays, c->after + arrays, c->bytes - arrays);
    return status;
}

bool linear_case_judge_part(struct linear_case *c, struct case_session *session,
                            const struct linear_part *part, char *text, size_t size)
{
    attn_batch batch;
    attn_state_batch states[LINEAR_STATE_GROUPS];
    host_error error;
    host_error_init(&error);
    char *before = malloc(c->bytes);
    attn_status status =
        before ? run_seen(c, session, part, before, &error.base)
               : host_fail(&error.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for a copy of a case");
    bool good = status == ATTN_OK;
    if (good) {
        point_part(c, before, NULL, part, &batch, states);
        batch.mode = ATTN_MODE_EXTEND; /* the same row, where the batch has it */
        good = judge(c, before, &batch, false, text, size);
    } else {
        snprintf(text, size, "%s", host_error_text(&error));
    }
    free(before);
    return good;
}

void linear_case_operands(const struct linear_case *c, char *text, size_t size)
{
    operand_text(c->operands, text, size);
}

const reference_report *linear_case_report(const struct linear_case *c)
{
    return &c->judged;
}

void linear_case_tell_difference(const struct linear_case *c, const void *bytes, char *text,
                                 size_t size)
{
    const char *before = bytes;
    uint64_t at = 0;
    while (at + 1 < c->bytes && before[at] == c->after[at])
        at++;
    int part = part_before(c, at);
    uint64_t begin = c->parts[part].offset;
    if (part >= ATTN_ROLE_COUNT || at - begin >= c->parts[part].bytes) {
        snprintf(text, size, "byte %lld of part %d: got 0x%02x, before 0x%02x",
                 (long long)(at - begin), part, (uint8_t)c->after[at], (uint8_t)before[at]);
        return;
    }
    const attn_tensor *tensor = &c->tensors[part];
    uint64_t width = attn_dtype_size(tensor->dtype), element = (at - begin) / width;
    uint64_t row = (uint64_t)tensor->strides[0];
    uint32_t bits[2] = {0};
    memcpy(&bits[0], c->after + begin + element * width, width);
    memcpy(&bits[1], before + begin + element * width, width);
    snprintf(text, size, "%s, row %lld, element %lld: got %.9g (0x%x), before %.9g (0x%x)",
             role_name((uint32_t)part), (long long)(element / row), (long long)(element % row),
             dtype_load(tensor->dtype, c->after + begin, (int64_t)element), bits[0],
             dtype_load(tensor->dtype, before + begin, (int64_t)element), bits[1]);
}

const void *linear_case_bytes(const struct linear_case *c, uint64_t *size)
{
    *size = c->bytes;
    return c->after;
}
