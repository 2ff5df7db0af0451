/* SPDX-License-Identifier: Apache-2.0
 *
 * padding.c: padding: sequences and rows of padding in every mode, in memory that held NaN before;
 * and page 0 with any contents.
 *
 * Where page 0 has no keys, its contents change no row; if no sequence is padding, either, its
 * contents must not matter: it holds NaN. Padding reads finite values there. In other cases page 0
 * has keys like any other, and some new keys, and all rows of padding, have no slot: a backend that
 * writes those to page 0 fails. */
#include "host/check/cases/forward_case_session.h"
#include "host/check/cases/numerics.h"
#include "host/check/cases/sequel_draw.h"

#include "host/base/mix.h"

#include <string.h>

enum { MODES = MODE_DRAFT + 1, FINITE = 0x42 /* as every byte, a number of every type */ };

/* The subject of a case. */
enum matter { PADDING, PAGE_0_UNREAD, PAGE_0_HAS_KEYS };

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

/* A padding sequence that reads page 0 must find finite numbers; so must rows that belong to no
 * sequence. */
static void judge(struct check_run *run, const struct case_spec *spec, const attn_options *options)
{
    struct forward_case *c = numerics_case(run, spec, NULL);
    if (c && !spec->keys_in_page_0)
        fill_page_0(c, spec->padded || spec->spare ? FINITE : CASE_POISON);
    if (c)
        numerics_judge_alone(run, c, options);
    forward_case_destroy(c);
}

/* Up to so many sequences and rows of padding, if query accepts them. A MIXED batch has no rows
 * outside of sequences, as they would belong to neither of its halves. */
static void pad(struct case_spec *spec, const struct grid *grid, const attn_options *options,
                int32_t index)
{
    static const int32_t sequences[] = {1, 2, 5, 0}, rows[] = {0, 7, 1};
    struct case_spec padded = *spec;
    padded.padded = sequences[index % 4] ? spec->num_sequences + sequences[index % 4] : 0;
    if (spec->mode != ATTN_MODE_DECODE && spec->mode != ATTN_MODE_MIXED)
        padded.spare = rows[index % 3];
    grid_take(grid, options, &padded, spec);
}

/* With keys in page 0, padding in every other case, and, where keys are saved, some that are not. */
static void place(struct case_spec *spec, const struct grid *grid, const attn_options *options,
                  int32_t index)
{
    struct case_spec unwritten = *spec;
    unwritten.unwritten_slots = true;
    spec->keys_in_page_0 = unwritten.keys_in_page_0 = true;
    if (index % 2)
        pad(spec, grid, options, index);
    else if (spec->flags & ATTN_FORWARD_SAVE_KV)
        grid_take(grid, options, &unwritten, spec);
}

static void run_one(struct check_run *run, bool latent, enum matter matter)
{
    bool padded = matter == PADDING;
    struct grid *grid = grid_of(run->subject);
    struct grid_point point;
    struct case_spec spec;
    bool found = false;
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
        else if (matter == PAGE_0_HAS_KEYS)
            place(&spec, grid, options, run->index / MODES);
        judge(run, &spec, options);
    } else {
        check_skip(run, "query refuses all drawn cases%s%s", grid->refusal[0] ? ": " : "",
                   grid->refusal);
    }
}

/* ---- Table ----------------------------------------------------------------------------------- */

#define CASES(name, latent, matter, number)                                                        \
    CHECK_COUNT(name, sequel_count(subject, latent, number))                                       \
    CHECK_RUN(name, run_one(run, latent, matter))

CASES(padded, false, PADDING, 12 * MODES)
CASES(mla_padded, true, PADDING, 6 * MODES)
CASES(page_zero, false, PAGE_0_UNREAD, 4 * MODES)
CASES(mla_page_zero, true, PAGE_0_UNREAD, 3 * MODES)
CASES(page_zero_keys, false, PAGE_0_HAS_KEYS, 4 * MODES)
CASES(mla_page_zero_keys, true, PAGE_0_HAS_KEYS, 2 * MODES)

const struct check check_padding[] = {
    CHECK_CASES("CAPT-04", padded,
                "padding sequences and rows are finite and change no other result"),
    CHECK_CASES("INVAR-01", page_zero, "page 0 may hold NaN in batches without padding"),
    CHECK_CASES("CAPT-04", mla_padded,
                "padding is finite and changes no other result (latent layers)"),
    CHECK_CASES("INVAR-01", mla_page_zero,
                "page 0 may hold NaN in batches without padding (latent layers)"),
    CHECK_CASES("KV-06", page_zero_keys, "page 0 may hold keys, and nothing else is written to it"),
    CHECK_CASES("KV-06", mla_page_zero_keys,
                "page 0 may hold keys, and nothing else is written to it (latent layers)"),
    {.rule = NULL},
};
