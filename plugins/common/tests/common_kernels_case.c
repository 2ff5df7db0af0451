/* SPDX-License-Identifier: Apache-2.0
 *
 * common_kernels_case.c: random inputs for the kernels that plugins share.
 */
#include "plugins/common/tests/common_kernels_case.h"

#include <stdlib.h>

const float case_scales[CASE_SCALES] = {1.0f,        0.5f,      3.0f,    0.1f,          7.25f,
                                        0.0078125f,  1e-3f,     448.0f,  57344.0f,      1e-5f,
                                        0x1p-20f,    0x1p-40f,  0x1p30f, 1e30f,         1.0000001f,
                                        0.99999994f, 0x1p-126f, 1e-42f,  3.4028235e38f, 0.03f};

static unsigned next(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory)
        abort();
    return memory;
}

/* ---- Saving ---------------------------------------------------------------------------------- */

static void fill_side(save_case *c, int side, unsigned *state)
{
    save_kv_side *s = side ? &c->call.v : &c->call.k;
    u32 value = 0;
    for (i64 row = 0; row < SAVE_ROWS; row++)
        for (int head = 0; head < SAVE_HEADS; head++)
            for (int d = 0; d < SAVE_DIM; d++, value++) {
                char *at = (char *)c->from[side] + row * s->from_row + head * s->from_head;
                u32 bits = side ? value * 40503u + 77 : value;
                if (c->call.from_dtype == ELEMENT_F32)
                    ((any32 *)at)[d] = next(state) << 8 ^ next(state);
                else
                    ((any16 *)at)[d] = (u16)bits;
            }
}

static void fill_slots(save_case *c, unsigned *state)
{
    i64 all[SAVE_PAGES * SAVE_PAGE];
    for (int i = 0; i < SAVE_PAGES * SAVE_PAGE; i++) {
        int other = (int)(next(state) % (unsigned)(i + 1));
        all[i] = all[other];
        all[other] = i;
    }
    for (int row = 0; row < SAVE_ROWS; row++)
        c->slots[row] = row % 9 == 8 ? -1 : all[row];
}

void save_case_init(save_case *c, unsigned seed, int from_dtype, int to_dtype, float scale,
                    int per_head)
{
    i64 in = element_size(from_dtype), out = element_size(to_dtype);
    i64 vector = (SAVE_DIM + 3) * out; /* with a gap */
    unsigned state = seed * 7919u + 1;
    int hnd = seed % 2 == 1;
    memset(c, 0, sizeof *c);
    c->from_bytes = (size_t)(SAVE_ROWS * (SAVE_HEADS + 1) * SAVE_DIM * in);
    c->to_bytes = (size_t)(SAVE_PAGES * (SAVE_PAGE * SAVE_HEADS * vector + 5 * out));
    c->scales = take(SAVE_HEADS * sizeof *c->scales);
    c->slots = take(SAVE_ROWS * sizeof *c->slots);
    for (int head = 0; head < SAVE_HEADS; head++)
        c->scales[head] = per_head ? scale * (float)(head + 1) : scale;
    c->call.from_dtype = from_dtype;
    c->call.to_dtype = to_dtype;
    c->call.page_size = SAVE_PAGE;
    c->call.slots = c->slots;
    for (int side = 0; side < 2; side++) {
        c->from[side] = take(c->from_bytes);
        memset(c->from[side], 0xEE, c->from_bytes);
        c->to[side] = take(c->to_bytes);
        save_kv_side made = {.from = c->from[side],
                             .to = c->to[side],
                             .from_row = (SAVE_HEADS + 1) * SAVE_DIM * in,
                             .from_head = SAVE_DIM * in,
                             .to_page = SAVE_PAGE * SAVE_HEADS * vector + 5 * out,
                             .to_token = hnd ? vector : SAVE_HEADS * vector,
                             .to_head = hnd ? SAVE_PAGE * vector : vector,
                             .scales = element_is_fp8(to_dtype) ? c->scales : NULL,
                             .scale_stride = per_head,
                             .dim = SAVE_DIM};
        *(side ? &c->call.v : &c->call.k) = made;
        fill_side(c, side, &state);
    }
    fill_slots(c, &state);
    save_case_poison(c);
}

void save_case_finish(save_case *c)
{
    for (int side = 0; side < 2; side++) {
        free(c->from[side]);
        free(c->to[side]);
    }
    free(c->scales);
    free(c->slots);
}

void save_case_poison(save_case *c)
{
    memset(c->to[0], 0xA5, c->to_bytes);
    memset(c->to[1], 0xA5, c->to_bytes);
}

void save_case_run(save_case *c)
{
    for (int head = 0; head < SAVE_HEADS; head++)
        save_kv_rows(&c->call, 0, SAVE_ROWS, 1, head, 0, 1);
}

/* ---- Merging --------------------------------------------------------------------------------- */

static float draw(unsigned *state, float size)
{
    return ((float)(next(state) % 20001u) - 10000.0f) / 10000.0f * size;
}

static float draw_lse(unsigned *state, int kind)
{
    unsigned chance = next(state) % 10u;
    if (kind == MERGE_ALL_EMPTY || chance == 0 || (kind == MERGE_HALF_EMPTY && chance < 5))
        return MERGE_EMPTY;
    switch (kind) {
    case MERGE_EQUAL:
        return 3.25f;
    case MERGE_FAR:
        return draw(state, 5000.0f);
    case MERGE_HUGE:
        return draw(state, 1e30f);
    default:
        return draw(state, 12.0f);
    }
}

static void fill_states(merge_case *c, unsigned *state, int kind)
{
    const merge_states *s = &c->states;
    for (i64 row = 0; row < MERGE_ROWS; row++)
        for (int head = 0; head < MERGE_HEADS; head++)
            for (int i = 0; i < s->count; i++) {
                float lse = draw_lse(state, kind), nothing = bits_f32(0x7fc00000);
                char *out = c->out_in + (merge_state_out(s, row, head, i) - (const char *)s->out);
                char *at = c->lse_in + row * s->lse_row + head * s->lse_head + i * s->lse_state;
                element_store(ELEMENT_F32, at, 0, lse);
                for (int d = 0; d < c->result.dim; d++)
                    element_store(s->dtype, out, d,
                                  lse == MERGE_EMPTY ? nothing : draw(state, 4.0f));
            }
}

void merge_case_init(merge_case *c, unsigned seed, int kind, int count, int in_dtype, int out_dtype)
{
    static const int dims[] = {64, 1, 33, 128, 7};
    unsigned state = seed * 104729u + 17;
    int dim = dims[seed % 5];
    i64 in = element_size(in_dtype) * (i64)(dim + 2),
        out = element_size(out_dtype) * (i64)(dim + 1);
    memset(c, 0, sizeof *c);
    c->sink = seed % 2 ? draw(&state, 3.0f) : MERGE_EMPTY;
    /* In turn: the states of a row together, as decode leaves them, or each state by itself. */
    int together = seed / 2 % 2 == 0;
    i64 pairs = MERGE_ROWS * MERGE_HEADS;
    c->out_in_bytes = (size_t)(pairs * count * in);
    c->lse_in_bytes = (size_t)(pairs * count * 4);
    c->out_bytes = (size_t)(pairs * out);
    c->lse_bytes = (size_t)(MERGE_ROWS * (MERGE_HEADS + 1) * 4);
    c->out_in = take(c->out_in_bytes);
    c->lse_in = take(c->lse_in_bytes);
    c->out = take(c->out_bytes);
    c->lse = take(c->lse_bytes);
    memset(c->out_in, 0xEE, c->out_in_bytes);
    c->states = (merge_states){.out = c->out_in,
                               .lse = c->lse_in,
                               .out_state = together ? in : pairs * in,
                               .out_head = together ? count * in : in,
                               .out_row = MERGE_HEADS * (together ? count * in : in),
                               .lse_state = together ? 4 : pairs * 4,
                               .lse_head = together ? count * 4 : 4,
                               .lse_row = MERGE_HEADS * (together ? count * 4 : 4),
                               .count = count,
                               .dtype = in_dtype};
    c->result = (merge_result){.out = c->out,
                               .lse = c->lse,
                               .out_row = MERGE_HEADS * out,
                               .out_head = out,
                               .lse_row = (MERGE_HEADS + 1) * 4,
                               .lse_head = 4,
                               .dtype = out_dtype,
                               .dim = dim};
    fill_states(c, &state, kind);
    merge_case_poison(c);
}

void merge_case_finish(merge_case *c)
{
    free(c->out_in);
    free(c->lse_in);
    free(c->out);
    free(c->lse);
}

void merge_case_poison(merge_case *c)
{
    memset(c->out, 0xA5, c->out_bytes);
    memset(c->lse, 0xA5, c->lse_bytes);
}

merge_states merge_case_state(const merge_case *c, int index)
{
    merge_states one = c->states;
    one.out = (const char *)one.out + index * one.out_state;
    one.lse = (const char *)one.lse + index * one.lse_state;
    one.count = 1;
    return one;
}

void merge_case_run(merge_case *c, int two, int lanes)
{
    for (i64 row = 0; row < MERGE_ROWS; row++)
        for (int head = 0; head < MERGE_HEADS; head++)
            for (int lane = 0; lane < lanes; lane++) {
                if (two) {
                    merge_states a = merge_case_state(c, 0), b = merge_case_state(c, 1);
                    merge_two(&a, &b, &c->result, row, head, lane, lanes);
                } else {
                    merge_many(&c->states, c->sink, &c->result, row, head, lane, lanes);
                }
            }
}
