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

DEVICE int tiles_in_all(const struct fa3_forward_params &p)
{
    const int splits = max(p.splits, 1);
    if (p.tiles)
        return *(const int *)p.tile_count * p.heads_q * splits;
    return p.batch * p.heads_q * p.q_tiles * splits;
}

/* Tile `index` of the order above: tile, head, sequence. */
DEVICE void place_of(const struct fa3_forward_params &p, int index, struct work *w)
{
    if (p.tiles) {
        const int count = *(const int *)p.tile_count;
        const int head = index / (p.section * count) * p.section; /* the section's first */
        const int heads = min(p.section, p.heads_q - head), at = index - head * count;
        const int *entry = (const int *)p.tiles + at / heads * 2;
        w->sequence = entry[0];
        w->tile = entry[1];
        w->head = head + at % heads;
        return;
    }
    const int pairs = p.batch * p.heads_q;
    const int section = index / (p.section * p.q_tiles);
    const int first = section * p.section;
    const int width = min(p.section, pairs - first);
    const int inside = index - first * p.q_tiles;
    const int pair = first + inside % width;
    w->tile = p.q_tiles - 1 - inside / width;
    w->head = pair % p.heads_q;
    w->sequence = pair / p.heads_q;
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
    w.queries = 0;
    if (index >= tiles_in_all(p))
        return w;
    w.split = p.splits > 1 ? index % p.splits : 0;
    place_of(p, p.splits > 1 ? index / p.splits : index, &w);
    const int *starts = (const int *)p.q_starts;
    w.q_start = starts ? starts[w.sequence] : 0;
    w.queries = starts ? starts[w.sequence + 1] - w.q_start : p.q_length;
    w.keys = p.k_length;
    if (p.k_lengths)
        w.keys = ((const int *)p.k_lengths)[w.sequence];
    else if (p.k_starts)
        w.keys = ((const int *)p.k_starts)[w.sequence + 1] - ((const int *)p.k_starts)[w.sequence];

    w.position = p.positions ? ((const int *)p.positions)[w.sequence] : w.keys - w.queries;
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
