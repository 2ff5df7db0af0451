/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_case.c: the contents of a case of a linear layer, and its forward in parts. */
#include "host/check/cases/linear_case.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/round.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Streams that belong to no operand; the stream of an operand is its role. */
enum { DRAW_LINEAR = ATTN_ROLE_COUNT + 9, DRAW_FAINT, DRAW_CUTS };

/* ---- Layout ---------------------------------------------------------------------------------- */

void linear_lengths_init(struct case_lengths *l, const struct case_spec *spec)
{
    const struct linear_spec *linear = &spec->linear;
    const int32_t count = spec->num_sequences;
    const bool mixed = spec->mode == ATTN_MODE_MIXED, last = mixed && !spec->decodes_first;
    const int32_t decodes = linear->decodes < count ? linear->decodes : count;
    memset(l, 0, sizeof *l);
    l->num_real_seqs = count;
    l->num_seqs = count + linear->padded;
    l->num_decode_seqs = last ? decodes + linear->padded : mixed * decodes;
    l->first_decode_seq = last ? count - decodes : 0;
    l->decode_q_len = mixed ? spec->decode_q_len : 0;
    l->spare = spec->spare;
    l->max_q_len = 1;
    l->first_row[0] = spec->first_row;
    for (int32_t s = 0; s < l->num_seqs; s++) {
        l->q_len[s] = s < count ? case_sequence_at(spec, (s + linear->turn) % count)->num_new : 1;
        l->first_row[s + 1] = l->first_row[s] + l->q_len[s];
        l->max_q_len = l->q_len[s] > l->max_q_len ? l->q_len[s] : l->max_q_len;
    }
    l->max_kv_len = l->max_q_len + 8;
}

/* Rows of tensors, those before the first sequence and padding included. */
static int32_t rows_of(const struct forward_case *c)
{
    return c->lengths.first_row[c->lengths.num_seqs] + c->lengths.spare;
}

/* The row after those of all sequences. */
static int32_t first_padding(const struct forward_case *c)
{
    return c->lengths.first_row[c->lengths.num_real_seqs];
}

/* Elements between outermost rows: `gap`, or as few more as STRUCT-10 wants. */
static int64_t gap_between(const struct forward_case *c, attn_dtype dtype, int64_t width,
                           int64_t gap)
{
    uint64_t row = (uint64_t)width * attn_dtype_size(dtype), unit = row & (~row + 1);
    uint64_t promised = attn_guaranteed_alignment(c->device->type, dtype);
    if (promised < c->spec.min_alignment)
        promised = c->spec.min_alignment;
    int64_t least = (int64_t)(unit < promised ? unit : promised) / attn_dtype_size(dtype);
    return least > 1 ? (gap + least - 1) / least * least : gap;
}

/* Elements of an outermost row, without the gap after it. */
static int64_t row_of(const struct case_shape *shape)
{
    return shape->ndim > 1 ? shape->strides[1] * shape->shape[1] : 1;
}

static void add_operand(struct forward_case *c, enum case_part_id part, attn_dtype dtype,
                        uint32_t ndim, const int64_t *extents, int64_t gap)
{
    const struct case_spec *spec = &c->spec;
    c->shapes[part] = (struct case_shape){
        .ndim = ndim,
        .dtype = dtype,
        .byte_offset = spec->linear.exactly_aligned ? case_byte_offset(c, dtype) : 64};
    if (spec->linear.exactly_aligned) /* an odd multiple of what is promised */
        c->bytes = round_up(c->bytes + CASE_RED_ZONE, 2 * CASE_ALIGNMENT) - CASE_RED_ZONE;
    case_add_shape(c, part, extents, 0, gap_between(c, dtype, extents[ndim - 1], gap));
}

#define ADD(part, dtype, gap, ...)                                                                 \
    add_operand(c, PART_##part, dtype,                                                             \
                (uint32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                    \
                (int64_t[]){__VA_ARGS__}, gap)

static int32_t channels_of(const struct linear_spec *spec)
{
    return 2 * spec->k_heads * spec->k_dim + spec->v_heads * spec->v_dim;
}

static void add_gates(struct forward_case *c)
{
    const struct linear_spec *spec = &c->spec.linear;
    bool raw = spec->flags & ATTN_LINEAR_RAW_GATES, kda = spec->family == ATTN_LINEAR_KDA;
    attn_dtype dtype = raw ? c->spec.q_dtype : ATTN_F32;
    int64_t heads = spec->v_heads;
    if (spec->family == ATTN_LINEAR_SHORT_CONV)
        return;
    if (raw || spec->family == ATTN_LINEAR_LIGHTNING)
        ADD(A_LOG, ATTN_F32, 0, heads);
    if (spec->family == ATTN_LINEAR_LIGHTNING)
        return;
    if (kda)
        ADD(GATE_A, dtype, spec->gap, rows_of(c), heads, spec->k_dim);
    else
        ADD(GATE_A, dtype, spec->gap, rows_of(c), heads);
    if (!raw || spec->family != ATTN_LINEAR_MAMBA2)
        ADD(GATE_B, dtype, spec->gap, rows_of(c), heads);
    if (raw && kda && spec->gap)
        ADD(DT_BIAS, ATTN_F32, 0, heads * spec->k_dim);
    else if (raw && kda)
        ADD(DT_BIAS, ATTN_F32, 0, heads, spec->k_dim);
    else if (raw)
        ADD(DT_BIAS, ATTN_F32, 0, heads);
}

void linear_lay_out(struct forward_case *c)
{
    static const enum case_part_id arrays[] = {PART_Q_INDPTR,    PART_STATE_SLOT,  PART_STATE_DST,
                                               PART_INITIAL,     PART_OTHER_SLOTS, PART_SEQ_LENS,
                                               PART_PREFIX_LENS, PART_REQUESTS};
    const struct case_spec *spec = &c->spec;
    const struct linear_spec *linear = &spec->linear;
    int64_t heads = linear->v_heads, channels = channels_of(linear), rows = rows_of(c);
    const int64_t sequences = c->lengths.num_seqs;
    int32_t kept = linear->most_kept > 0 ? linear->most_kept
                   : linear->snapshots   ? first_padding(c) - spec->first_row
                                         : 0;
    c->num_pages = 3 + 3 * spec->num_sequences + kept;
    ADD(MIXED_QKV, spec->q_dtype, linear->gap, rows, channels);
    ADD(OUT, spec->out_dtype, linear->gap, rows, heads, linear->v_dim);
    if (linear->z)
        ADD(GATE_Z, spec->q_dtype, linear->gap, rows, heads, linear->v_dim);
    if (linear->width > 0)
        ADD(CONV_WEIGHT, spec->q_dtype, 0, channels, linear->width);
    if (linear->width > 0 && linear->bias)
        ADD(CONV_BIAS, spec->q_dtype, 0, channels);
    if (linear->width > 1)
        ADD(CONV_STATE, linear->conv_dtype, linear->gap, c->num_pages, channels, linear->width - 1);
    if (linear->family != ATTN_LINEAR_SHORT_CONV)
        ADD(STATE, linear->state_dtype, linear->gap, c->num_pages, heads,
            linear->vk ? linear->v_dim : linear->k_dim, linear->vk ? linear->k_dim : linear->v_dim);
    add_gates(c);
    if (linear->skip == 1)
        ADD(D_SKIP, ATTN_F32, 0, heads);
    if (linear->skip == 2)
        ADD(D_SKIP, ATTN_F32, 0, heads, linear->v_dim);
    c->arrays_first = c->bytes;
    for (size_t n = 0; n < sizeof arrays / sizeof arrays[0]; n++)
        case_add_part(c, arrays[n], (uint64_t)(sequences + 1) * sizeof(int32_t));
    case_add_part(c, PART_SNAPSHOTS, (uint64_t)(rows + 1) * sizeof(int32_t));
    c->arrays_end = c->bytes;
}

static int32_t *array_of(const struct forward_case *c, enum case_part_id part)
{
    return case_part(c, part);
}

/* The first element of an operand's part in `image`. */
static char *first_of(const struct forward_case *c, enum case_part_id part)
{
    return case_vector(c, c->image, part, 0, 0, 0);
}

/* ---- Contents -------------------------------------------------------------------------------- */

/* In (-1, 1), a function of the seed, the part and the place. */
static double uniform(const struct forward_case *c, uint32_t role, int64_t index)
{
    uint64_t word =
        mix_stream(mix_absorb(c->seed + (uint64_t)c->spec.linear.layer, role), (uint64_t)index);
    return (double)(int64_t)(word >> 11) * 0x1p-52 - 1;
}

/* Queries and keys of some rows are nearly zero, so that the epsilon of their norm matters. */
static bool is_faint(const struct forward_case *c, int64_t index)
{
    int64_t channels = channels_of(&c->spec.linear);
    return c->spec.linear.flags & ATTN_LINEAR_QK_L2NORM &&
           index % channels < 2 * (int64_t)c->spec.linear.k_heads * c->spec.linear.k_dim &&
           uniform(c, DRAW_FAINT, index / channels) > 0.5;
}

/* The value of an operand's element; `head` for operands with heads. */
static double value_of(const struct forward_case *c, uint32_t role, int64_t index, int64_t head)
{
    const struct linear_spec *spec = &c->spec.linear;
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
static int32_t sequence_at(const struct forward_case *c, int32_t s)
{
    int32_t count = c->spec.num_sequences;
    return s < count ? (s + c->spec.linear.turn) % count : s;
}

/* The row that has the same contents in the batch that is not turned. */
static int64_t row_unturned(const struct forward_case *c, int64_t row)
{
    const int32_t *indptr = c->lengths.first_row;
    for (int32_t s = 0; s < c->spec.num_sequences; s++)
        if (indptr[s] <= row && row < indptr[s + 1]) {
            int64_t first = c->spec.first_row;
            for (int32_t n = 0; n < sequence_at(c, s); n++)
                first += case_sequence_at(&c->spec, n)->num_new;
            return first + row - indptr[s];
        }
    return row;
}

static void fill_operand(struct forward_case *c, enum case_part_id part)
{
    const uint32_t role = case_part_kinds[part].number;
    const struct case_shape *tensor = &c->shapes[part];
    int64_t outer = tensor->shape[0], inner = 1;
    int dimension = head_dimension(role);
    for (uint32_t d = 1; d < tensor->ndim; d++)
        inner *= tensor->shape[d];
    for (int64_t o = 0; o < outer; o++) {
        int64_t from = case_part_is(part, CASE_ROWS) ? row_unturned(c, o) : o;
        for (int64_t n = 0; n < inner; n++) {
            int64_t head = dimension == 0   ? o
                           : dimension == 1 ? n / (tensor->ndim == 3 ? tensor->shape[2] : 1)
                                            : 0;
            dtype_store(tensor->dtype, first_of(c, part), o * tensor->strides[0] + n,
                        value_of(c, role, from * inner + n, head));
        }
    }
}

/* Slots 1 .. count in any order. */
static void shuffle(const struct forward_case *c, int32_t *slots, int32_t count)
{
    for (int32_t n = 0; n < count; n++) {
        uint64_t turn =
            (uint64_t)(c->spec.linear.turn * LINEAR_STATE_GROUPS + c->spec.linear.state_group);
        uint64_t seed = mix_absorb(c->seed, DRAW_LINEAR + turn);
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

static bool is_cut(const struct forward_case *c, int32_t sequence, int32_t row, int32_t rows)
{
    bool found = false;
    for (int32_t n = 0; n < c->spec.linear.cuts; n++) {
        uint64_t stream = mix_absorb(c->seed, DRAW_CUTS);
        stream = mix_absorb(mix_absorb(stream, (uint64_t)sequence), (uint64_t)n);
        found |= row == place_of_cut(stream, rows);
    }
    return found;
}

/* Of row `row` of the batch, which is row t of a sequence of so many rows. */
static bool has_snapshot(const struct forward_case *c, int32_t sequence, int32_t row, int32_t t,
                         int32_t rows)
{
    const struct linear_spec *spec = &c->spec.linear;
    if (!spec->snapshots)
        return false;
    if (spec->cuts > 0)
        return is_cut(c, sequence, t, rows);
    return spec->sparse > 0 ? row % spec->sparse == spec->sparse - 1 : row % 3 != 1;
}

static void fill_sequence(struct forward_case *c, int32_t s, const int32_t **next)
{
    const struct case_spec *spec = &c->spec;
    const struct case_sequence *sequence = case_sequence_at(spec, sequence_at(c, s));
    const int32_t row = c->lengths.first_row[s], rows = c->lengths.q_len[s];
    bool real = s < spec->num_sequences;
    int32_t slot = real ? *(*next)++ : 0, other = real ? *(*next)++ : 0;
    bool initial = real && (spec->linear.absent & LINEAR_WITHOUT_INITIAL || sequence->has_initial);
    bool in_place = spec->linear.absent & LINEAR_WITHOUT_DST;
    array_of(c, PART_Q_INDPTR)[s] = row;
    array_of(c, PART_Q_INDPTR)[s + 1] = row + rows;
    array_of(c, PART_STATE_SLOT)[s] = slot;
    array_of(c, PART_STATE_DST)[s] = !real                ? 0
                                     : in_place           ? slot
                                     : sequence->dropped  ? 0
                                     : sequence->in_place ? slot
                                                          : other;
    array_of(c, PART_INITIAL)[s] = initial;
    array_of(c, PART_PREFIX_LENS)[s] = initial ? 7 : 0;
    array_of(c, PART_SEQ_LENS)[s] = real ? rows + (initial ? 7 : 0) : 0;
    array_of(c, PART_REQUESTS)[s] = real ? s + 1 : 0;
    array_of(c, PART_OTHER_SLOTS)[s] = real ? c->num_pages - 1 - s : 0;
    for (int32_t t = 0; t < rows; t++) {
        bool is_kept = real && has_snapshot(c, sequence_at(c, s), row + t, t, rows);
        array_of(c, PART_SNAPSHOTS)[row + t] = is_kept ? *(*next)++ : real ? -1 : 0;
    }
}

static attn_status fill_arrays(struct forward_case *c, attn_error *error)
{
    int32_t *slots = calloc((size_t)c->num_pages, sizeof *slots);
    const int32_t *next = slots;
    if (!slots)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for slots");
    shuffle(c, slots, c->num_pages - 1 - c->spec.num_sequences);
    for (int32_t s = 0; s < c->lengths.num_seqs; s++)
        fill_sequence(c, s, &next);
    for (int32_t row = c->lengths.first_row[c->lengths.num_seqs]; row < rows_of(c); row++)
        array_of(c, PART_SNAPSHOTS)[row] = -1;
    free(slots);
    return ATTN_OK;
}

/* One slot of a pool to state `number`. */
static void fill_slot(struct forward_case *c, enum case_part_id part, int32_t slot, int32_t number)
{
    const struct case_shape *pool = &c->shapes[part];
    int64_t size = row_of(pool);
    for (int64_t n = 0; n < size; n++)
        dtype_store(pool->dtype, first_of(c, part), slot * pool->strides[0] + n,
                    value_of(c, case_part_kinds[part].number, number * size + n, 0));
}

/* Pools: NaN but for slots that are read, and slot 0, which holds what a state that was dropped has
 * left there. */
static void fill_pool(struct forward_case *c, enum case_part_id part)
{
    const struct case_shape *pool = &c->shapes[part];
    for (int64_t slot = 0; slot < c->num_pages; slot++)
        memset(case_vector(c, c->image, part, slot, 0, 0), CASE_POISON,
               (uint64_t)row_of(pool) * attn_dtype_size(pool->dtype));
    fill_slot(c, part, 0, 0);
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
        if (array_of(c, PART_INITIAL)[s])
            fill_slot(c, part, array_of(c, PART_STATE_SLOT)[s], 1 + sequence_at(c, s));
}

/* An operand's bytes from row `row` on. */
static void set_bytes(struct forward_case *c, enum case_part_id part, int64_t row, int byte)
{
    char *from = case_vector(c, c->image, part, row, 0, 0);
    memset(from, byte, c->parts[part].bytes - (uint64_t)(from - (char *)case_part(c, part)));
}

/* Padding has zero operands. */
attn_status linear_fill(struct forward_case *c, attn_error *error)
{
    attn_status status = fill_arrays(c, error);
    for (enum case_part_id part = 0; part < CASE_PARTS && status == ATTN_OK; part++) {
        if (!c->parts[part].bytes || !case_part_is(part, CASE_OPERAND))
            continue;
        if (case_part_is(part, CASE_POOL))
            fill_pool(c, part);
        else if (case_part_is(part, CASE_OUTPUT))
            set_bytes(c, part, 0, CASE_POISON);
        else
            fill_operand(c, part);
        if (case_part_is(part, CASE_ROWS))
            set_bytes(c, part, first_padding(c), 0);
    }
    return status;
}

static void allow_slot(const struct forward_case *c, int64_t slot, char *expected, char *actual)
{
    static const enum case_part_id pools[] = {PART_STATE, PART_CONV_STATE};
    for (int n = 0; n < 2; n++)
        if (c->parts[pools[n]].bytes)
            memcpy(case_vector(c, expected, pools[n], slot, 0, 0),
                   case_vector(c, actual, pools[n], slot, 0, 0),
                   (uint64_t)row_of(&c->shapes[pools[n]]) *
                       attn_dtype_size(c->shapes[pools[n]].dtype));
}

void linear_allow_slots(const struct forward_case *c, char *expected, char *actual)
{
    allow_slot(c, 0, expected, actual);
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
        allow_slot(c, array_of(c, PART_STATE_DST)[s], expected, actual);
    for (int32_t row = 0; row < first_padding(c); row++)
        if (c->spec.linear.snapshots && array_of(c, PART_SNAPSHOTS)[row] > 0)
            allow_slot(c, array_of(c, PART_SNAPSHOTS)[row], expected, actual);
}

/* ---- Parts ----------------------------------------------------------------------------------- */

bool linear_case_has_snapshot(const struct forward_case *c, int32_t sequence, int32_t row)
{
    return array_of(c, PART_SNAPSHOTS)[c->lengths.first_row[sequence] + row] > 0;
}

attn_status linear_case_reset(struct forward_case *c, struct case_session *session,
                              attn_error *error)
{
    return device_copy_wait(c->device, c->memory, c->image, c->bytes, session->stream, error);
}

/* The slot from which a part goes on. */
static int32_t slot_of(const struct forward_case *c, const struct linear_part *part, int32_t row)
{
    if (part->accepted)
        return array_of(c, PART_SNAPSHOTS)[row - 1];
    return array_of(c, part->first ? PART_STATE_DST : PART_STATE_SLOT)[part->sequence];
}

/* The arrays of a part, in the place of those of the batch, on the device and in `planning`. Snapshots are found by
 * the row, so theirs stays. */
static attn_status put_arrays(struct forward_case *c, struct case_session *session,
                              const struct linear_part *part, attn_error *error)
{
    const int32_t s = part->sequence, row = c->lengths.first_row[s] + part->first;
    const int32_t prefix = array_of(c, PART_PREFIX_LENS)[s] + part->first;
    const struct {
        enum case_part_id array;
        int32_t values[2];
    } given[] = {{PART_Q_INDPTR, {row, row + part->rows}},
                 {PART_STATE_SLOT, {slot_of(c, part, row)}},
                 {PART_STATE_DST, {array_of(c, PART_STATE_DST)[s]}},
                 {PART_INITIAL, {part->first || array_of(c, PART_INITIAL)[s]}},
                 {PART_SEQ_LENS, {prefix + part->rows}},
                 {PART_PREFIX_LENS, {prefix}},
                 {PART_REQUESTS, {s + 1}},
                 {PART_OTHER_SLOTS, {array_of(c, PART_OTHER_SLOTS)[s]}}};
    attn_status status = ATTN_OK;
    case_bring_plan(c, c->image);
    for (size_t n = 0; n < sizeof given / sizeof given[0] && status == ATTN_OK; n++) {
        uint64_t offset = c->parts[given[n].array].offset, bytes = n == 0 ? 8 : 4;
        memcpy(c->planning + offset, given[n].values, bytes);
        status = device_copy_wait(c->device, c->memory + offset, given[n].values, bytes,
                                  session->stream, error);
    }
    return status;
}

/* Operands whose rows begin with row `row`: a DECODE batch has its sequences in rows 0, 1 ... */
static void shift_rows(struct case_view *view, const struct forward_case *c, int32_t row)
{
    for (enum case_part_id part = 0; part < CASE_PARTS; part++) {
        if (!c->parts[part].bytes || !case_part_is(part, CASE_ROWS | CASE_OUTPUT))
            continue;
        attn_tensor *tensor = &view->tensors[case_part_kinds[part].number];
        tensor->shape[0] -= row;
        tensor->byte_offset +=
            (uint64_t)(row * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
        tensor->alignment = attn_dtype_size(tensor->dtype);
    }
}

/* For the oracle a part that decodes is a row where the batch has it. */
void linear_view_part(struct case_view *view, const struct forward_case *c, bool for_backend)
{
    const struct linear_part *part = c->part;
    if (!part->snapshots)
        view->states[c->spec.linear.state_group].snapshots = (attn_i32_array){NULL, NULL};
    view->batch.mode = for_backend ? part->mode : (uint32_t)ATTN_MODE_EXTEND;
    view->batch.num_seqs = view->batch.num_real_seqs = 1;
    view->batch.num_tokens = view->batch.num_real_tokens = part->rows;
    view->batch.max_q_len = part->rows > 1 ? part->rows : 1;
    view->batch.num_decode_seqs = view->batch.first_decode_seq = view->batch.decode_q_len = 0;
    if (view->batch.mode == ATTN_MODE_DECODE)
        shift_rows(view, c, c->lengths.first_row[part->sequence] + part->first);
}

attn_status linear_case_forward(struct forward_case *c, struct case_session *session,
                                const struct linear_part *part, attn_error *error)
{
    attn_status status = put_arrays(c, session, part, error);
    if (status == ATTN_OK)
        status = session_spoil_scratch(session, error);
    if (status == ATTN_OK)
        status = device_enter(session->device, error);
    if (status != ATTN_OK)
        return status;
    c->part = part;
    status = session_plan(session, c, &c->lengths, 0, error);
    if (status == ATTN_OK)
        status = session_call(session, c, &c->lengths, &(struct case_call){.second = false}, error);
    c->part = NULL;
    device_leave(session->device);
    session->num_runs++;
    return status == ATTN_OK ? device_synchronize(c->device, session->stream, error) : status;
}

/* The oracle's view: `before`, with the arrays of the part, which the device has now. */
static void take_arrays(const struct forward_case *c, char *before)
{
    for (enum case_part_id n = 0; n < CASE_PARTS; n++) {
        const struct case_part *part = &c->parts[n];
        if (!case_part_is(n, CASE_OPERAND))
            memcpy(before + part->offset, c->actual + part->offset, part->bytes);
    }
}

/* Run the part, and fetch the device's contents before (into `before`) and after it. */
static attn_status run_seen(struct forward_case *c, struct case_session *session,
                            const struct linear_part *part, char *before, attn_error *error)
{
    attn_status status = session_fetch(session, c, error);
    if (status != ATTN_OK)
        return status;
    memcpy(before, c->actual, c->bytes);
    status = linear_case_forward(c, session, part, error);
    if (status == ATTN_OK)
        status = session_fetch(session, c, error);
    take_arrays(c, before);
    return status;
}

void linear_case_judge_part(struct forward_case *c, struct case_session *session,
                            const struct linear_part *part, struct case_verdict *verdict)
{
    HOST_ERROR(error);
    char *before = malloc(c->bytes);
    attn_status status =
        before ? run_seen(c, session, part, before, &error.base)
               : host_fail(&error.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for a copy of a case");
    *verdict = (struct case_verdict){.good = status == ATTN_OK, .status = status};
    if (status == ATTN_OK)
        session_judge_part(session, c, part, before, verdict);
    else
        snprintf(verdict->text, sizeof verdict->text, "%s", host_error_text(&error));
    free(before);
}
