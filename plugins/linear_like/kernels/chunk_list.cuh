/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_list.cuh: decides on the device which sequences are processed in chunks, and lists these
 * chunks and their segments, so that graphs may replay any batch within their bounds.
 */
#ifndef LINEAR_LIKE_CHUNK_LIST_CUH
#define LINEAR_LIKE_CHUNK_LIST_CUH

#include "plugins/linear_like/kernels/chunk_tile.cuh"

/* ---- The list of chunks ---------------------------------------------------------------------- */

/* Lists a sequence's chunks from place `at` on, unless it is negative, and returns their number. Of
 * `all` chunks the first `late` are placed after the others. By a warp. A chunk ends at a row with
 * a snapshot, or after 64 rows. */
DEVICE int list_chunks(const linear_call &call, int number, const linear_sequence &sequence, int at,
                       int all = 0, int late = 0)
{
    const int lane = threadIdx.x % 32, n = sequence.num_rows;
    linear_chunk *list = call.chunks.list;
    int from = 0, count = 0;
    const auto add = [&](int end, int snapshot) {
        const int pieces = (end - from + CHUNK_ROWS - 1) / CHUNK_ROWS;
        for (int i = lane; at >= 0 && i < pieces; i += 32) {
            const int first = from + i * CHUNK_ROWS;
            const int place = count + i - late;
            list[at + (place < 0 ? place + all : place)] = {
                number, first, int_min(CHUNK_ROWS, end - first), i + 1 == pieces ? snapshot : 0};
        }
        count += pieces;
        from = end;
    };
    for (int t = 0; call.batch.snapshots && t < n; t += 256) {
        int slots[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = t + 32 * i + lane;
            slots[i] = row < n ? linear_snapshot(&call.batch, sequence.first_row + row) : 0;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            for (u32 cuts = __ballot_sync(~0u, slots[i] != 0); cuts; cuts &= cuts - 1) {
                const int bit = __ffs((int)cuts) - 1;
                add(t + 32 * i + bit + 1, __shfl_sync(~0u, slots[i], bit));
            }
    }
    if (from < n)
        add(n, 0);
    return count;
}

/* ---- The list of segments -------------------------------------------------------------------- */

DEVICE int sum_of_warp(int x)
{
    return __reduce_add_sync(~0u, x);
}

/* The chunks of sequence `s` in [first, end). */
DEVICE int find_chunks(const linear_chunks &chunks, int s, int real, int first, int end, int *from)
{
    if (s >= real)
        return 0;
    const int begin = chunks.sequences[2 * s], count = chunks.sequences[2 * s + 1];
    *from = begin > first ? begin : first;
    return int_max(0, int_min(end, begin + count) - *from);
}

/* The length of a segment in chunks, in a window whose sequences have `total` chunks, the longest
 * `longest`. By a warp. Sequences are cut if all segments run at once, and the estimated time
 * decreases: the time of a chunk for each chunk of a segment, 3/4 more for each chunk of the
 * previous pass, which computes states only; 3/4 for each segment whose state is passed through;
 * that of two chunks for a launch. */
DEVICE int find_segment(const linear_chunks &chunks, int real, int first, int end, int total,
                        int longest)
{
    const int lane = threadIdx.x % 32, room = chunks.room;
    int length = int_max(CHUNK_SEGMENT_LEAST, (total + room - 1) / room);
    length = int_max(length, (longest + CHUNK_SEGMENT_MOST - 1) / CHUNK_SEGMENT_MOST);
    for (; length < longest; length += 1 + length / 16) {
        int segments = 0, from;
        for (int s = lane; s < (real + 31) / 32 * 32; s += 32)
            segments += (find_chunks(chunks, s, real, first, end, &from) + length - 1) / length;
        if (sum_of_warp(segments) <= room)
            break;
    }
    const int passed = (longest + length - 1) / length - 2;
    return 7 * length + 3 * passed + 8 < 4 * longest - longest / 4 ? length : longest;
}

/* Is a batch's only sequence of `count` chunks worth cutting into three? The last segment has half
 * of the chunks; earlier, states of less than a third are computed. */
DEVICE bool is_worth_three(int count)
{
    return 2 * count + 3 * (count / 4) + 11 < 4 * count - count / 4;
}

/* The begin of segment `i` of a sequence. Of a delta rule's three segments the first is longer than
 * the second, which also computes M. */
DEVICE int find_edge(int count, int segments, bool three, bool delta, int i)
{
    if (!three)
        return (int)((i64)count * i / segments);
    return i == 0 ? 0 : i == 1 ? (delta ? 5 : 4) * count / 16 : i == 2 ? count / 2 : count;
}

/* Lists the segments of a window, by a warp. */
DEVICE void list_segments(const linear_call &call, int real, int window)
{
    const linear_chunks &chunks = call.chunks;
    const int lane = threadIdx.x % 32, first = window * chunks.window;
    const int end = int_min(*chunks.count, first + chunks.window), whole = (real + 31) / 32 * 32;
    linear_segment *to = chunks.segments + (i64)window * chunks.most_segments;
    int active = 0, total = 0, longest = 0, rows = 0, at = 0, from = 0;
    for (int s = lane; s < whole; s += 32) {
        const int count = find_chunks(chunks, s, real, first, end, &from);
        active += count > 0, total += count, longest = int_max(longest, count);
        if (count > 0)
            rows = int_max(rows, linear_find_sequence(&call.batch, s).num_rows);
    }
    active = sum_of_warp(active), total = sum_of_warp(total);
    longest = __reduce_max_sync(~0u, longest);
    /* The batch decides, not its bounds, so that graphs give the same bits. */
    const bool delta =
        call.dims.family == LINEAR_FAMILY_GDN || call.dims.family == LINEAR_FAMILY_KDA;
    const bool cut =
        __reduce_max_sync(~0u, rows) >= CHUNK_SEGMENT_ROWS(chunks.room) && active < chunks.room;
    const bool three = cut && chunks.room == 2 && is_worth_three(longest);
    const int length = cut && !three ? find_segment(chunks, real, first, end, total, longest)
                                     : int_max(1, longest);
    for (int s = lane; s < whole; s += 32) {
        const int count = find_chunks(chunks, s, real, first, end, &from);
        const int segments = three && count > 0 ? 3 : (count + length - 1) / length;
        int sum = segments;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? other : 0;
        }
        for (int i = 0; i < segments; i++)
            to[at + sum - segments + i] = {s, from + find_edge(count, segments, three, delta, i),
                                           from + find_edge(count, segments, three, delta, i + 1),
                                           i, segments};
        at += __shfl_sync(~0u, sum, 31);
    }
    for (int i = at + lane; i < chunks.most_segments; i += 32)
        to[i] = {0, 0, 0, 0, 0};
}

/* By one block: one warp per sequence. */
DEVICE void list_block(const linear_call &call)
{
    const linear_chunks &chunks = call.chunks;
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int real = linear_num_real(&call.batch);
    if (chunks.strips)
        pdl_launch_dependents();
    for (int s = warp; s < real; s += warps) {
        const linear_sequence sequence = linear_find_sequence(&call.batch, s);
        int count = 0;
        if (sequence.num_rows >= CHUNK_LEAST)
            count = list_chunks(call, s, sequence, -1);
        if (count > 2 * ((sequence.num_rows + CHUNK_ROWS - 1) / CHUNK_ROWS))
            count = 0;
        if (lane == 0)
            chunks.sequences[2 * s + 1] = count;
    }
    __syncthreads();
    if (warp == 0) {
        int before = 0, longest = 0;
        for (int s = lane; s < (real + 31) / 32 * 32; s += 32) {
            int count = s < real ? chunks.sequences[2 * s + 1] : 0, sum = count;
            longest = int_max(longest, count);
            for (int step = 1; step < 32; step *= 2) {
                int other = __shfl_up_sync(~0u, sum, step);
                sum += lane >= step ? other : 0;
            }
            if (s < real)
                chunks.sequences[2 * s] = before + sum - count;
            before += __shfl_sync(~0u, sum, 31);
        }
        longest = __reduce_max_sync(~0u, longest);
        /* The batch decides, not its bounds, so that graphs give the same bits. */
        const bool strips = linear_has_strips(&call, before, longest);
        const int by_strips = strips ? before : linear_count_beside(&call, before, longest);
        if (lane == 0)
            chunks.count[0] = before - by_strips, chunks.count[1] = by_strips,
            chunks.count[2] = chunks.count[3] = 0;
    }
    __syncthreads();
    const int others = chunks.count[0], late = others ? chunks.count[1] : 0;
    for (int s = warp; s < real; s += warps)
        if (chunks.sequences[2 * s + 1]) {
            list_chunks(call, s, linear_find_sequence(&call.batch, s), chunks.sequences[2 * s],
                        others + late, late);
            __syncwarp();
            if (late && lane == 0)
                chunks.sequences[2 * s + 1] = others;
        }
    __syncthreads();
    for (int window = warps - 1 - warp; window * (i64)chunks.window < chunks.most; window += warps)
        list_segments(call, real, window);
}

#endif /* LINEAR_LIKE_CHUNK_LIST_CUH */
