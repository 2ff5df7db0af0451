/* SPDX-License-Identifier: Apache-2.0
 *
 * shared_prefix.h: the hint of which sequences of a decode batch share their first keys
 * (attn_shared_prefix), made from what each sequence shares with the one before it.
 *
 * Sequences that share keys form blocks, which lie within one another: all with the system prompt,
 * of these the ones with one document. A level is a choice of blocks none of which lies within
 * another. With a level a run of n sequences and k keys is read k times instead of n k times; an
 * inner run of n sequences saves n - 1 times the keys that it has more than the outer one. The
 * choice is the one that saves most.
 *
 * Two levels, as traces have prompts and conversations under them: what a third one adds is keys
 * that several requests of one conversation share at the same time, and each level costs every row
 * of the batch one more partial result to merge.
 */
#ifndef HOST_RUN_SHARED_PREFIX_H
#define HOST_RUN_SHARED_PREFIX_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/schedule/scheduler.h"

enum {
    SHARED_PREFIX_LEVELS = 2,
    /* Keys that a run must share, an inner one beyond the outer one's: with fewer, merging the
     * partial results of two rows costs what reading the keys twice does. */
    SHARED_PREFIX_MIN_KEYS = 64
};

/* A level of attn_shared_prefix: runs that cover all sequences, in order. Runs that share nothing
 * (beyond their run in the level before) are fillers. */
struct shared_prefix_level {
    int32_t num_runs;
    int32_t *seq_indptr; /* [max_seqs + 1] */
    int32_t *prefix_len; /* [max_seqs] */
};

struct shared_prefix_block;

struct shared_prefix {
    int32_t num_levels; /* that save anything; each has runs */
    struct shared_prefix_level levels[SHARED_PREFIX_LEVELS];
    int64_t shared_rows; /* sequences in a run that saves keys */
    int64_t saved_keys;  /* that a layer need not read */
    /* private */
    int32_t num_seqs, num_blocks;
    int32_t *shared_lens;               /* [max_seqs] what this is the plan of */
    struct shared_prefix_block *blocks; /* [max_seqs], the inner ones before the outer one */
    struct shared_prefix_block *open;   /* [max_seqs] while they are found */
};

/* OUT_OF_HOST_MEMORY; on failure nothing is left. */
attn_status shared_prefix_init(struct shared_prefix *shared, int32_t max_seqs, attn_error *error);

/* A zeroed one is fine. */
void shared_prefix_finish(struct shared_prefix *shared);

/* Choose the runs for a batch of these sequences, by their shared_len. For the sequences of the
 * plan before, in which all share what they did, nothing is done. */
void shared_prefix_plan(struct shared_prefix *shared, const struct scheduler_seq *seqs,
                        int32_t num_seqs);

#endif /* HOST_RUN_SHARED_PREFIX_H */
