/* SPDX-License-Identifier: Apache-2.0
 *
 * prefixes.cuh: the first keys that a sequence shares with others, C and CUDA alike. Levels of runs
 * of sequences (attn_shared_prefix); each run lies within a run of the previous level:
 *
 *   level 0   |---------- run: system prompt ----------|  keys 0 to 1023
 *   level 1   |-- run: document --|  |------ run ------|  keys 1024 to 8191, if `least` or more
 *   sequence   0     1     2     3    4     5     6     7  read its other keys alone
 *
 * The keys of a run are planned and read once for all of its sequences, if all runs together save
 * enough.
 */
#ifndef FI_PREFIXES_CUH
#define FI_PREFIXES_CUH

#include "plugins/common/cuda/work.cuh"
#include "plugins/flashinfer_like/kernels/plan.h"

/* The first keys that a sequence shares, as runs of `levels` (bit l = level l) have them. `before`:
 * those of the levels before the last one considered. */
typedef struct plan_share {
    int keys;
    int before;
    int levels;
} plan_share;

/* Levels 0 to `count` - 1 for sequence s. All sequences of a run get the same answer, as each run
 * lies within a run of the previous level. */
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

/* Reads of keys that run r of a level saves: all of its sequences but one. */
PORTABLE i64 plan_count_saved(const fi_prefixes *p, int level, int r)
{
    int first = index_int(p->level[level].seq_indptr, r);
    int seqs = index_int(p->level[level].seq_indptr, r + 1) - first;
    if (seqs < 2)
        return 0;
    plan_share share = plan_find_share(p, level + 1, first);
    return share.levels >> level & 1 ? (i64)(seqs - 1) * (share.keys - share.before) : 0;
}

/* Levels to use if all runs together save `saved` keys: all or none. */
PORTABLE int plan_choose_levels(const fi_plan_call *p, i64 saved)
{
    return saved >= p->prefixes.worth ? p->prefixes.levels : 0;
}

/* Run r of the level in planning, by its first sequence. */
PORTABLE plan_share plan_find_run(const fi_plan_call *p, int r)
{
    return plan_find_share(&p->prefixes, p->level + 1, index_int(p->batch.q_indptr, r));
}

#endif /* FI_PREFIXES_CUH */
