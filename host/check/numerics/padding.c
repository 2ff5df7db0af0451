/* SPDX-License-Identifier: Apache-2.0
 *
 * padding.c: what stands for nothing: sequences and rows of padding in every mode, in memory that
 * held NaN before; page 0, whatever it holds.
 *
 * Page 0 may be written at any time, so its contents change no row. Where no sequence is padding,
 * nothing may be read there for its value: it holds NaN. What padding reads there is finite, as
 * what padding has written.
 */
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numerics.h"
#include "host/check/cases/sequel_draw.h"

#include "host/base/mix.h"

#include <string.h>

enum { MODES = MODE_DRAFT + 1, FINITE = 0x42 /* as every byte, a number of every type */ };

static void fill_page_0(struct forward_case *c, int byte)
{
    static const enum case_part_id caches[] = {PART_K_CACHE, PART_V_CACHE, PART_LATENT_CACHE};
    for (int n = 0; n < 3; n++) {
        const struct case_shape *shape = &c->shapes[caches[n]];
        int32_t heads = caches[n] == PART_LATENT_CACHE ? 1 : c->spec.num_kv_heads;
        size_t size = (size_t)shape->shape[shape->ndim > 0 ? shape->ndim - 1 : 0] *
                      attn_dtype_size(shape->dtype);
        for (int64_t slot = 0; c->parts[caches[n]].bytes && slot < c->spec.page_size; slot++)
            for (int32_t h = 0; h < heads; h++)
                memset(case_slot_vector(c, c->image, caches[n], slot, h), byte, size);
    }
}

/* A padding sequence that reads page 0 must find numbers; so must rows of no sequence. */
static void judge(struct check_run *run, const struct case_spec *spec, const attn_options *options)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};
    struct forward_case *c = numerics_case(run, spec, NULL);
    struct case_session *session = NULL;
    if (c) {
        fill_page_0(c, spec->padded || spec->spare ? FINITE : CASE_POISON);
        session = numerics_session(run, c, spec, options, &setup);
    }
    if (session)
        numerics_judge(run, session, c, spec);
    case_session_destroy(session);
    forward_case_destroy(c);
}

/* Up to so many sequences and rows of padding, if query accepts them. A MIXED batch has no rows of
 * no sequence: nothing says to which of its halves they would belong. */
static void pad(struct case_spec *spec, const struct grid *grid, const attn_options *options,
                int32_t index)
{
    static const int32_t sequences[] = {1, 2, 5, 0}, rows[] = {0, 7, 1};
    struct case_spec padded = *spec;
    padded.padded = sequences[index % 4] ? spec->num_sequences + sequences[index % 4] : 0;
    if (spec->mode != ATTN_MODE_DECODE && spec->mode != ATTN_MODE_MIXED)
        padded.spare = rows[index % 3];
    if (grid_accepts_spec(grid, options, &padded, NULL, 0))
        *spec = padded;
}

static void run_one(struct check_run *run, bool latent, bool padded)
{
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct case_spec spec;
    bool found = false;
    CHECK_THAT(run, grid, "no memory for the grid");
    for (int32_t n = 0; n < MODES && !found; n++) {
        const struct sequel_wish wish = {
            .latent = latent, .padded = padded, .modes = 1u << (run->index + n) % MODES};
        found = sequel_draw(grid, &wish, mix_absorb(run->seed, (uint64_t)n), &point, &spec);
    }
    if (found) {
        const attn_options *options = grid_options(grid, &point);
        spec.padded = 0;
        if (padded)
            pad(&spec, grid, options, run->index / MODES);
        judge(run, &spec, options);
    } else {
        check_skip(run, "query refuses every case that was drawn%s%s", grid->refusal[0] ? ": " : "",
                   grid->refusal);
    }
    grid_release(run->subject, grid);
}

/* ---- Table ----------------------------------------------------------------------------------- */

#define CASES(name, latent, padded, number)                                                        \
    CHECK_COUNT(name, sequel_count(subject, latent, number))                                       \
    CHECK_RUN(name, run_one(run, latent, padded))

CASES(padded, false, true, 12 * MODES)
CASES(mla_padded, true, true, 6 * MODES)
CASES(page_zero, false, false, 4 * MODES)
CASES(mla_page_zero, true, false, 3 * MODES)

const struct check check_padding[] = {
    CHECK_CASES("CAPT-04", padded, "sequences and rows of padding are finite and change nothing"),
    CHECK_CASES("INVAR-01", page_zero, "where nothing is padding, page 0 may hold NaN"),
    CHECK_CASES("CAPT-04", mla_padded, "latent layers: padding is finite and changes nothing"),
    CHECK_CASES("INVAR-01", mla_page_zero,
                "latent layers: where nothing is padding, page 0 may hold NaN"),
    {.rule = NULL},
};
