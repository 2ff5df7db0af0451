/* SPDX-License-Identifier: Apache-2.0
 *
 * prefixes.cuh: which first keys a sequence shares with others, C and CUDA alike. Levels of runs of
 * sequences (attn_shared_prefix), each within one of the level before:
 *
 *   level 0   |---------- run: system prompt ----------|  keys 0 to 1023
 *   level 1   |-- run: document --|  |------ run ------|  keys 1024 to 8191, if `least` or more
 *   sequence   0     1     2     3    4     5     6     7  the others, each by itself
 *
 * What a run has is planned and read once, for all of its sequences, where all runs together save
 * enough of it.
 */
#ifndef FI_PREFIXES_CUH
#define FI_PREFIXES_CUH

#include "plugins/common/cuda/work.cuh"
#include "plugins/flashinfer_like/kernels/plan.h"

/* The first keys of a sequence that it shares: those that runs of `levels` have (bit l = level l),
 * of them those of levels before the last one that was asked for. */
typedef struct plan_share {
    int keys;
    int before;
    int levels;
} plan_share;

/* What levels 0 to `count` - 1 do for sequence s. All sequences of a run get the same answer, as a
 * run lies within one of the level before. */
PORTABLE plan_share plan_find_share(const fi_prefixes *p, int count, int s)
{
    plan_share share = {0, 0, 0};
    for (int l = 0; l < count; l++) {
        const fi_runs *runs = &p->level[l];
        int r = work_find_row(runs->seq_indptr, runs->count, s);
        share.before = share.keys;
        if (r < 0 || index_int(runs->seq_indptr, r + 1) - index_int(runs->seq_indptr, r) < 2 ||
            index_int(runs->prefix_len, r) - share.keys < p->least)
            continue;
        share.keys = index_int(runs->prefix_len, r);
        share.levels |= 1 << l;
    }
    return share;
}

/* Keys that need not be read once more thanks to run r of a level: by all of its sequences but one.
 */
PORTABLE i64 plan_count_saved(const fi_prefixes *p, int level, int r)
{
    int first = index_int(p->level[level].seq_indptr, r);
    int seqs = index_int(p->level[level].seq_indptr, r + 1) - first;
    if (seqs < 2)
        return 0;
    plan_share share = plan_find_share(p, level + 1, first);
    return share.levels >> level & 1 ? (i64)(seqs - 1) * (share.keys - share.before) : 0;
}

/* Levels that are worth it if all runs together save so many keys: all of them, or none. */
PORTABLE int plan_choose_levels(const fi_plan_call *p, i64 saved)
{
    return saved >= p->prefixes.worth ? p->prefixes.levels : 0;
}

/* Run r of the level that is planned, by its first sequence. */
PORTABLE plan_share plan_find_run(const fi_plan_call *p, int r)
{
    return plan_find_share(&p->prefixes, p->level + 1, index_int(p->batch.q_indptr, r));
}

#endif /* FI_PREFIXES_CUH */
