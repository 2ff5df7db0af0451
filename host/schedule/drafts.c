/* SPDX-License-Identifier: Apache-2.0
 *
 * drafts.c: trees of drafts: their growth, and the accepted drafts.
 */
#include "host/schedule/drafts.h"

#include "host/base/mix.h"

#define DRAFTS_STATE UINT64_C(0x6472616674656420)

/* Words of a token's stream. */
enum { WORD_RIGHT = 0, WORD_GUESS = 1, WORD_PARENT = 1 };

static uint64_t state_of(const struct drafts *drafts, int64_t request, int64_t position)
{
    uint64_t state = mix_absorb(DRAFTS_STATE, drafts->seed);
    state = mix_absorb(state, (uint64_t)request);
    return mix_absorb(state, (uint64_t)position);
}

int32_t drafts_depth(const struct drafts *drafts)
{
    return drafts->tokens > 0 ? (drafts->tokens - 2) / drafts->top_k + 1 : 0;
}

bool drafts_right(const struct drafts *drafts, int64_t request, int64_t position)
{
    uint64_t word = mix_stream(state_of(drafts, request, position), WORD_RIGHT);
    return word >> 11 < (uint64_t)(drafts->rate * 0x1p53);
}

/* First row of a depth; the row after its last. */
static int32_t first_row(const struct drafts *drafts, int32_t depth)
{
    return depth == 0 ? 0 : 1 + (depth - 1) * drafts->top_k;
}

static int32_t end_row(const struct drafts *drafts, int32_t depth)
{
    int32_t end = depth == 0 ? 1 : first_row(drafts, depth) + drafts->top_k;
    return end < drafts->tokens ? end : drafts->tokens;
}

/* One of the rows of a depth. */
static int32_t draw_row(const struct drafts *drafts, int32_t depth, uint64_t word)
{
    int32_t first = first_row(drafts, depth);
    return first + (int32_t)mix_below((uint32_t)word, (uint64_t)(end_row(drafts, depth) - first));
}

/* The rows at `depth`, whose first guess is returned; `above` is that of the depth above. */
static int32_t grow_depth(const struct drafts *drafts, uint64_t state, int32_t depth, int32_t above,
                          struct draft_tree *tree)
{
    int32_t guess = draw_row(drafts, depth, mix_stream(state, WORD_GUESS));
    for (int32_t row = first_row(drafts, depth); row < end_row(drafts, depth); row++) {
        uint64_t word = mix_stream(state, WORD_PARENT + (uint64_t)row);
        tree->depth[row] = (uint8_t)depth;
        tree->parent[row] = (uint8_t)(row == guess ? above : draw_row(drafts, depth - 1, word));
    }
    return guess;
}

void drafts_grow(const struct drafts *drafts, int64_t request, int64_t position, int32_t most,
                 struct draft_tree *tree)
{
    int32_t depths = drafts_depth(drafts), guess = 0;
    bool right = true;
    *tree = (struct draft_tree){.committed = 1};
    for (int32_t depth = 1; depth <= depths; depth++) {
        uint64_t state = state_of(drafts, request, position + depth);
        guess = grow_depth(drafts, state, depth, guess, tree);
        right = right && depth < most && drafts_right(drafts, request, position + depth);
        if (right)
            tree->path[tree->committed++] = (uint8_t)guess;
    }
}
