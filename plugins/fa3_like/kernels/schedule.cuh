/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.cuh: which tiles a block takes, and in which order. One block a multiprocessor, each
 * takes the next tile when it begins one (an atomic counter, fetched ahead), longest first:
 *
 *   section 0                            section 1
 *   | last tile  of all its pairs |      |
 *   | last but one ...            | ->   | ...      a pair: sequence and query head
 *   | first tile                  |      |
 *
 * The pairs of a section are so few that their keys and values stay in the L2, and pairs that share
 * a KV head are neighbours, so blocks that run together read the same lines. Causal tiles grow with
 * their number, so the short ones end the section and fill up what the long ones left.
 *
 * Of a list of tiles, which has the longest first, a section is of query heads, and has all tiles.
 */
#ifndef FA3_LIKE_SCHEDULE_CUH
#define FA3_LIKE_SCHEDULE_CUH

#include "plugins/fa3_like/kernels/pipeline.cuh"

/* Tile `index` of a list: all that is in its entry, and its head. The entry is on its way before it
 * is known whether there is one, where a section has all heads. */
DEVICE bool find_listed(const struct fa3_forward_params &p, int index, struct work *w)
{
    const int count = *(const int *)p.tile_count;
    int head = 0;
    if (p.section < p.heads_q) {
        if (index >= count * p.heads_q)
            return false;
        head = index / (p.section * count) * p.section;
    }
    const int heads = min(p.section, p.heads_q - head), at = index - head * count;
    const int4 *entry = (const int4 *)p.tiles + min(at / heads, p.tile_room - 1) * 2;
    const int4 first = entry[0], rest = entry[1];
    w->sequence = first.x;
    w->tile = first.y;
    w->head = head + at % heads;
    w->q_start = first.z;
    w->queries = first.w;
    w->keys = rest.x;
    w->position = rest.y;
    return index < count * p.heads_q;
}

/* The same in the order above. */
DEVICE bool find_place(const struct fa3_forward_params &p, int index, struct work *w)
{
    const int pairs = p.batch * p.heads_q;
    if (index >= pairs * p.q_tiles)
        return false;
    const int section = index / (p.section * p.q_tiles);
    const int first = section * p.section;
    const int width = min(p.section, pairs - first);
    const int inside = index - first * p.q_tiles;
    const int pair = first + inside % width;
    w->tile = p.q_tiles - 1 - inside / width;
    w->head = pair % p.heads_q;
    w->sequence = pair / p.heads_q;
    const int *starts = (const int *)p.q_starts, *k_starts = (const int *)p.k_starts;
    w->q_start = starts ? starts[w->sequence] : 0;
    w->queries = starts ? starts[w->sequence + 1] - w->q_start : p.q_length;
    w->keys = p.k_length;
    if (p.k_lengths)
        w->keys = ((const int *)p.k_lengths)[w->sequence];
    else if (k_starts)
        w->keys = k_starts[w->sequence + 1] - k_starts[w->sequence];
    w->position = p.positions ? ((const int *)p.positions)[w->sequence] : w->keys - w->queries;
    return true;
}

/* Where the chunk begins that a position is in. */
DEVICE int chunk_begin(int chunk, int position)
{
    const unsigned at = max(position, 0);
    return __builtin_expect(chunk != 0, 0) ? at - at % (unsigned)chunk : 0;
}

/* The first key that a query at `position` sees, be there one or not. */
DEVICE int first_key(int window_left, int chunk, int position)
{
    return max(position - window_left, chunk_begin(chunk, position));
}

/* All there is to know of tile `index`; queries 0 where the order is at its end. */
template <typename T> DEVICE struct work work_of(const struct fa3_forward_params &p, int index)
{
    struct work w;
    const int splits = max(p.splits, 1), place = splits > 1 ? index / splits : index;
    w.split = index - place * splits;
    if (!(p.tiles ? find_listed(p, place, &w) : find_place(p, place, &w)))
        w.queries = 0;
    w.is_new = p.has_new && w.keys == w.queries;
    const int first = w.position + w.tile * T::queries;
    const int last = w.position + min((w.tile + 1) * T::queries, w.queries) - 1;
    const int end = min(w.keys, last + p.window_right + 1);
    w.first_key = first_key(p.window_left, T::chunks ? p.chunk : 0, first);
    w.k_start = w.first_key / T::keys;
    w.k_end = end > w.first_key ? (end + T::keys - 1) / T::keys : w.k_start;
    if (p.splits > 1) {
        const int tiles = w.k_end - w.k_start;
        w.k_end = w.k_start + tiles * (w.split + 1) / p.splits;
        w.k_start += tiles * w.split / p.splits;
    }
    return w;
}

/* The last block of a grid to finish leaves the counter as it was before the launch. */
DEVICE void schedule_finish(const struct fa3_forward_params &p)
{
    unsigned *counter = (unsigned *)p.counter;
    if (atomicAdd(counter + 1, 1) == gridDim.x - 1) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

#endif
