/* SPDX-License-Identifier: Apache-2.0
 *
 * shared_prefix.c: the choice of levels and runs that save most keys.
 */
#include "host/run/shared_prefix.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

/* Sequences [first, end) have their first `len` keys in common, and no other sequence has them. */
struct shared_prefix_block {
    int32_t first, end, len;
    int32_t inside; /* blocks from this one on lie within it, up to itself */
    int32_t level;  /* it is a run of; -1 = of none */
    /* While a level is chosen: what is saved by the best choice among it and the blocks within it,
     * and whether it is that choice. */
    int64_t saved[SHARED_PREFIX_LEVELS];
    bool best[SHARED_PREFIX_LEVELS];
};

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status shared_prefix_init(struct shared_prefix *shared, int32_t max_seqs, attn_error *error)
{
    size_t seqs = (size_t)max_seqs;
    memset(shared, 0, sizeof *shared);
    shared->shared_lens = calloc(seqs, sizeof *shared->shared_lens);
    shared->blocks = calloc(seqs, sizeof *shared->blocks);
    shared->open = calloc(seqs, sizeof *shared->open);
    bool good = shared->shared_lens && shared->blocks && shared->open;
    for (int l = 0; l < SHARED_PREFIX_LEVELS; l++) {
        struct shared_prefix_level *level = &shared->levels[l];
        level->seq_indptr = calloc(seqs + 1, sizeof *level->seq_indptr);
        level->prefix_len = calloc(seqs, sizeof *level->prefix_len);
        good = good && level->seq_indptr && level->prefix_len;
    }
    if (good)
        return ATTN_OK;
    shared_prefix_finish(shared);
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                     "no memory for shared prefixes of %d sequences", max_seqs);
}

void shared_prefix_finish(struct shared_prefix *shared)
{
    for (int l = 0; l < SHARED_PREFIX_LEVELS; l++) {
        free(shared->levels[l].seq_indptr);
        free(shared->levels[l].prefix_len);
    }
    free(shared->shared_lens);
    free(shared->blocks);
    free(shared->open);
    memset(shared, 0, sizeof *shared);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* A block ends before a sequence that shares less with its predecessor; open blocks with no more
 * common keys than that continue. */
static void find_blocks(struct shared_prefix *shared)
{
    struct shared_prefix_block *open = shared->open;
    int32_t num_open = 0;
    shared->num_blocks = 0;
    for (int32_t s = 1; s <= shared->num_seqs; s++) {
        struct shared_prefix_block next = {.first = s - 1,
                                           .len = s < shared->num_seqs ? shared->shared_lens[s] : 0,
                                           .inside = shared->num_blocks,
                                           .level = -1};
        while (num_open > 0 && open[num_open - 1].len > next.len) {
            struct shared_prefix_block *closed = &open[--num_open];
            next.first = closed->first;
            next.inside = closed->inside;
            closed->end = s;
            shared->blocks[shared->num_blocks++] = *closed;
        }
        if (next.len > 0 && (num_open == 0 || open[num_open - 1].len < next.len))
            open[num_open++] = next;
    }
}

/* ---- The choice ------------------------------------------------------------------------------ */

/* Of the blocks [from, to) the sum over those that lie within no other one. */
static int64_t sum_saved(const struct shared_prefix_block *blocks, int32_t from, int32_t to,
                         int level)
{
    int64_t sum = 0;
    for (int32_t b = to - 1; b >= from; b = blocks[b].inside - 1)
        sum += blocks[b].saved[level];
    return sum;
}

/* Choose runs of `level`, and of those within it, among blocks [from, to), whose first `base` keys
 * are read once already; returns the keys saved. */
static int64_t choose(struct shared_prefix_block *blocks, int32_t from, int32_t to, int32_t base,
                      int level)
{
    if (level == SHARED_PREFIX_LEVELS)
        return 0;
    for (int32_t b = from; b < to; b++) {
        struct shared_prefix_block *block = &blocks[b];
        int64_t within = sum_saved(blocks, block->inside, b, level), own = -1;
        if (block->len - base >= SHARED_PREFIX_MIN_KEYS)
            own = (int64_t)(block->end - block->first - 1) * (block->len - base) +
                  choose(blocks, block->inside, b, block->len, level + 1);
        block->best[level] = own >= within;
        block->saved[level] = own >= within ? own : within;
    }
    return sum_saved(blocks, from, to, level);
}

/* Mark the blocks that were chosen. */
static void mark(struct shared_prefix *shared, int32_t from, int32_t to, int32_t base, int level)
{
    struct shared_prefix_block *blocks = shared->blocks;
    if (level == SHARED_PREFIX_LEVELS)
        return;
    int64_t saved = choose(blocks, from, to, base, level);
    if (level == 0)
        shared->saved_keys = saved;
    for (int32_t b = to; b-- > from;) {
        struct shared_prefix_block *block = &blocks[b];
        if (!block->best[level])
            continue;
        block->level = level;
        if (shared->num_levels <= level)
            shared->num_levels = level + 1;
        if (level == 0)
            shared->shared_rows += block->end - block->first;
        mark(shared, block->inside, b, block->len, level + 1);
        b = block->inside; /* those within it are done */
    }
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static void add_run(struct shared_prefix_level *level, int32_t first, int32_t end, int32_t len)
{
    if (first == end)
        return;
    level->seq_indptr[level->num_runs] = first;
    level->prefix_len[level->num_runs++] = len;
    level->seq_indptr[level->num_runs] = end;
}

/* Runs of level `l` within [first, end), where all share `len` keys; *block is the first block that
 * does not end before them. */
static void write_runs(struct shared_prefix *shared, int l, int32_t first, int32_t end, int32_t len,
                       int32_t *block)
{
    struct shared_prefix_level *level = &shared->levels[l];
    for (; *block < shared->num_blocks && shared->blocks[*block].end <= end; ++*block) {
        const struct shared_prefix_block *chosen = &shared->blocks[*block];
        if (chosen->level != l)
            continue;
        add_run(level, first, chosen->first, len);
        add_run(level, chosen->first, chosen->end, chosen->len);
        first = chosen->end;
    }
    add_run(level, first, end, len);
}

static void write_level(struct shared_prefix *shared, int l)
{
    const struct shared_prefix_level *outer = l > 0 ? &shared->levels[l - 1] : NULL;
    int32_t block = 0;
    if (!outer)
        write_runs(shared, l, 0, shared->num_seqs, 0, &block);
    for (int32_t r = 0; outer && r < outer->num_runs; r++)
        write_runs(shared, l, outer->seq_indptr[r], outer->seq_indptr[r + 1], outer->prefix_len[r],
                   &block);
}

/* Note what the sequences share; returns whether that is as it was. */
static bool note_seqs(struct shared_prefix *shared, const struct scheduler_seq *seqs,
                      int32_t num_seqs)
{
    bool same = shared->num_seqs == num_seqs;
    for (int32_t s = 0; s < num_seqs; s++) {
        same = same && shared->shared_lens[s] == seqs[s].shared_len;
        shared->shared_lens[s] = seqs[s].shared_len;
    }
    shared->num_seqs = num_seqs;
    return same;
}

void shared_prefix_plan(struct shared_prefix *shared, const struct scheduler_seq *seqs,
                        int32_t num_seqs)
{
    if (note_seqs(shared, seqs, num_seqs))
        return;
    shared->num_levels = 0;
    shared->shared_rows = 0;
    find_blocks(shared);
    mark(shared, 0, shared->num_blocks, 0, 0);
    for (int l = 0; l < SHARED_PREFIX_LEVELS; l++)
        shared->levels[l].num_runs = shared->levels[l].seq_indptr[0] = 0;
    for (int l = 0; l < shared->num_levels; l++)
        write_level(shared, l);
}
