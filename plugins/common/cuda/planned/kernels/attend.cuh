/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.cuh: tiles of 16 rows against any keys, for decode and short queries: bound by how fast
 * keys come.
 *
 *   products  teams of four warps: of a unit of 64 keys, warp w has keys 16 w to 16 w + 15
 *   copies    one team or two: the same keys and their values, `stages` units ahead
 *
 * A block goes through its units (plan.h) one after the other. The warps
 * that copy look up pages and start copies, across the ends of items; what is there they never look
 * at. The warps that multiply wait for a unit and are done with it, each by itself. At the end of
 * an item their sums become one: the output, or, where other blocks have parts of the item, a part
 * of it in device memory; the last of these blocks merges the parts, in their order, so that
 * results are the same each time.
 *
 * Where blocks have many items, two teams that multiply take them in turn: one ends an item, and
 * begins its next, while the other multiplies (FI_ATTEND_MANY). Over fp8, where one team is too
 * slow for that, they take units in turn, and for many items there are two blocks of a team each
 * (FI_ATTEND_CODES_MANY). shapes.h says which kernel has how many.
 *
 * What a multiprocessor does for a unit of D 128, bf16: 32 KiB come in some 1860 cycles, at 4.6
 * TB/s. The products of a warp take 1120 of them, most of it latency. To look up a page and to
 * start its four boxes of the copy engine, one page at a time, takes a warp 1500: so boxes go in
 * runs. To copy the same keys row by row, as small pages and keys that are not in the cache need
 * it, takes 1900. What is done once an item, and not in a loop, takes a warp five cycles an
 * instruction: to end an item and to begin the next is 8000 cycles.
 *
 * fp8 keys become f16, exactly, on their way from shared memory to the products. Queries become f16
 * too: each row is multiplied by a power of two that has its largest element near 2^15, so that
 * nothing of them is lost that fp32 sums would have kept. Values become what probabilities are
 * rounded to: f16 where that has room for them, else what queries are. Scales of keys are part of
 * the scores' factor, those of values are applied at the item's end.
 */
#ifndef PLANNED_ATTEND_CUH
#define PLANNED_ATTEND_CUH

#include "plugins/common/cuda/planned/kernels/feed.cuh"
#include "plugins/common/cuda/planned/kernels/shapes.h"

#define PASS_ROWS 4 /* that warps exchange at a time */

/* teams: that multiply in turn. copiers: teams that copy in turn. blocks: of a multiprocessor.
 * half: queries are of fp16, else of bf16; so is the cache, or it is quantised. */
template <int dim_, int v_dim_, int stages_, int teams_, int copiers_, int blocks_, bool half_,
          bool quantised_>
struct attend_shape {
    static constexpr int dim = dim_;
    static constexpr int v_dim = v_dim_;
    static constexpr int stages = stages_;
    static constexpr int teams = teams_;
    static constexpr int copiers = copiers_;
    static constexpr int blocks = blocks_;
    static constexpr bool half = half_;
    static constexpr bool quantised = quantised_;
    static constexpr int warps = teams * WARPS; /* that multiply */
    /* Two teams take turns by items, where one is fast enough: the one ends an item and begins its
     * next while the other multiplies. */
    static constexpr bool by_item = teams == 2 && !quantised;
    static constexpr int item_warps = by_item ? WARPS : warps; /* that have an item together */
    static constexpr int item_threads = item_warps * 32;
    static constexpr int apart = warps / item_warps; /* items at a time */
    /* More than all were launched with is not to be had, and who asks for it waits for ever. */
    static constexpr int copy_registers = blocks == 2  ? 72
                                          : teams == 1 ? 112
                                          : quantised  ? 104
                                                       : 88;
    static constexpr int product_registers = blocks == 2  ? 184
                                             : teams == 1 ? 240
                                             : quantised  ? 200
                                                          : 208;
    static constexpr int size = quantised ? 1 : 2; /* bytes of an element */
    static constexpr int panel = 128 / size;       /* elements of a row that lie side by side */
    static constexpr int k_bytes = (dim + panel - 1) / panel * PANEL_BYTES; /* of a group */
    static constexpr int v_bytes = (v_dim + panel - 1) / panel * PANEL_BYTES;
    /* Probabilities are worked with times 2^lift where they become f16, which has few small
     * numbers. */
    static constexpr int lift = half || quantised ? 15 : 0;
    static constexpr int stage_bytes = WARPS * (k_bytes + v_bytes);
    /* Queries of more than 128 dimensions stay in shared memory: registers are for the sums. Their
     * rows lie 16 bytes more apart than they are long, for the banks. */
    static constexpr bool q_in_shared = dim > 128;
    static constexpr int q_stride = dim * 2 + 16;
    static constexpr int q_at = stages * stage_bytes;
    static constexpr int backs_at = q_at + (q_in_shared ? FI_ROWS * q_stride : 0);
    static constexpr int exchange_at = backs_at + (q_in_shared && quantised ? FI_ROWS * 4 : 0);
    static constexpr int exchange_stride = v_dim + 4;
    static constexpr int exchange_bytes = item_warps * PASS_ROWS * exchange_stride * 4;
    static constexpr int tops_at = exchange_at + apart * exchange_bytes;
    static constexpr int tops_bytes = 2 * item_warps * FI_ROWS * 4 + 16;
    static constexpr int barriers_at = tops_at + apart * tops_bytes;
    static constexpr int shared_bytes = barriers_at + 2 * stages * 8;
    static constexpr int merged = v_dim > 128 ? 4 : 8; /* parts of an item, at a time */

    static_assert(dim % 32 == 0 && v_dim % 32 == 0, "rows are copied by whole warps");
    static_assert(teams * product_registers + copiers * copy_registers <=
                      65536 / blocks / 128 / (teams + copiers) / 8 * 8 * (teams + copiers),
                  "registers");
    static_assert(stages >= 2, "one is read while another comes");
    static_assert(FI_KEYS == WARPS * GROUP_KEYS, "each warp has a group of a unit");
};

/* A place in the ring of stages, and which round of it. */
struct ring {
    int stage;
    u32 parity;
};

template <typename S> static __device__ __forceinline__ void ring_next(ring &r)
{
    r.parity ^= r.stage + 1 == S::stages;
    r.stage = r.stage + 1 == S::stages ? 0 : r.stage + 1;
}

template <typename S> static __device__ __forceinline__ u32 full_barrier(char *shared, int stage)
{
    return shared_address(shared) + S::barriers_at + stage * 8;
}

template <typename S> static __device__ __forceinline__ u32 empty_barrier(char *shared, int stage)
{
    return shared_address(shared) + S::barriers_at + (S::stages + stage) * 8;
}

/* ---- Teams that multiply ----------------------------------------------------------------------
 */

enum { ITEM_BARRIER = 1, TURN_BARRIER = 3 }; /* and those after them, for the other team */

static __device__ __forceinline__ int my_team(void)
{
    return (int)threadIdx.x / (WARPS * 32);
}

/* Of the threads that have an item together, this one's number, and its warp's. */
template <typename S> static __device__ __forceinline__ int item_thread(void)
{
    return (int)threadIdx.x % S::item_threads;
}

template <typename S> static __device__ __forceinline__ int item_warp(void)
{
    return item_thread<S>() / 32;
}

template <typename S> static __device__ __forceinline__ void item_sync(void)
{
    named_sync(ITEM_BARRIER + (S::by_item ? my_team() : 0), S::item_threads);
}

/* Products go through the units in their order, whoever's they are: a team that ran ahead would
 * take a stage's last round for its own. */
static __device__ __forceinline__ void turn_take(int team)
{
    named_sync(TURN_BARRIER + team, 2 * WARPS * 32);
}

static __device__ __forceinline__ void turn_give(int team)
{
    named_arrive(TURN_BARRIER + team, 2 * WARPS * 32);
}

/* ---- Copies -----------------------------------------------------------------------------------
 */

/* How many of this team's units of the item, from the one at hand on, are boxes of the cache. */
template <typename S>
static __device__ __forceinline__ int count_boxes(const fi_call &c, const feed &f)
{
    int units = min(f.at.left, f.at.units - f.at.unit);
    int room = f.q.first_new - GROUP_KEYS - cursor_key(f.at); /* keys that a box may begin after */
    if (!c.has_maps || room < 0)
        return 0;
    return (min(units, room / FI_KEYS + 1) + S::copiers - 1) / S::copiers;
}

/* A run of them. Nothing is asked for each that is the same for all: a warp takes some five cycles
 * an instruction, and those who multiply want to issue theirs. A lane looks up one of 32 units. */
template <typename S>
static __device__ __forceinline__ void copy_boxes(const fi_call &c, feed &f, int run, ring &r,
                                                  char *shared)
{
    int lane = (int)threadIdx.x & 31, head = f.at.head;
    int key = cursor_key(f.at) + lane * S::copiers * FI_KEYS;
    u32 keys = shared_address(shared) + warp_part() * S::k_bytes;
    u32 values = shared_address(shared) + WARPS * S::k_bytes + warp_part() * S::v_bytes;
#pragma unroll 1
    for (int first = 0; first < run; first += 32, key += 32 * S::copiers * FI_KEYS) {
        int entry = first + lane < run ? *find_entry(c, f.q, key) : 0;
        int offset = box_offset(c, key);
#pragma unroll 1
        for (int i = 0; i < min(32, run - first); i++) {
            int page = __shfl_sync(~0u, entry, i), at = __shfl_sync(~0u, offset, i);
            u32 full = full_barrier<S>(shared, r.stage), stage = r.stage * S::stage_bytes;
            barrier_wait(empty_barrier<S>(shared, r.stage), r.parity);
            if (lane == 0) {
                barrier_arrive_expect(full, S::k_bytes + S::v_bytes);
#pragma unroll
                for (int d = 0; d < S::dim; d += S::panel)
                    tensor_load(keys + stage + d / S::panel * PANEL_BYTES, &c.k_map, full, d, at,
                                head, page);
#pragma unroll
                for (int d = 0; d < S::v_dim; d += S::panel)
                    tensor_load(values + stage + d / S::panel * PANEL_BYTES, &c.v_map, full, d, at,
                                head, page);
            }
            __syncwarp();
            for (int team = 0; team < S::copiers; team++)
                ring_next<S>(r);
        }
    }
    f.at.unit += (run - 1) * S::copiers;
    f.at.left -= (run - 1) * S::copiers;
    for (int team = 0; team < S::copiers; team++)
        feed_next(c, f);
}

/* Those who multiply will begin this item later: its queries are brought to the L1, a line by a
 * lane. What the plan and the batch tell of it is there already, as this warp has looked it up. */
template <typename S>
static __device__ __forceinline__ void touch_queries(const fi_call &c, const feed &f)
{
    constexpr int lines = (S::dim * 2 + 127) / 128; /* of a row */
    int lane = (int)threadIdx.x & 31, r = warp_part() + lane / lines * WARPS;
    if (r >= item_rows(c, f.q, f.at.tile, FI_ROWS))
        return;
    i64 row;
    int head;
    find_short_row(c, f.q, f.at, r, &row, &head);
    touch((const char *)c.operands.q + row * c.operands.q_row + head * c.operands.q_head +
          lane % lines * 128);
}

/* All that a warp copies. Pages are looked up a unit before they are needed. */
template <typename S>
static __device__ __forceinline__ void copy_units(const fi_call &c, const cursor &at, char *shared)
{
    ring r = {0, 1}; /* the first round finds all stages free */
    feed f = {at};
    index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &f.q);
    for (int team = (int)threadIdx.x / (WARPS * 32) - S::teams; team > 0; team--) {
        feed_next(c, f);
        ring_next<S>(r);
    }
    feed_look_up<S>(c, f);
    feed_prefetch<S>(c, f);
    grid_wait();
    PROFILE_BEGIN;
#pragma unroll 1
    while (f.at.left > 0) {
        PROFILE_UNIT;
        int run = count_boxes<S>(c, f);
        if (f.at.unit < S::copiers && (f.at.at != at.at || f.at.head != at.head))
            touch_queries<S>(c, f);
        if (run > 0) {
            copy_boxes<S>(c, f, run, r, shared);
            feed_look_up<S>(c, f);
            continue;
        }
        feed next = f;
        for (int team = 0; team < S::copiers; team++)
            feed_next(c, next);
        feed_look_up<S>(c, next);
        PROFILE(0);
        barrier_wait(empty_barrier<S>(shared, r.stage), r.parity);
        PROFILE(1);
        feed_start<S>(c, f, shared + r.stage * S::stage_bytes, full_barrier<S>(shared, r.stage));
        PROFILE(2);
        for (int team = 0; team < S::copiers; team++)
            ring_next<S>(r);
        f = next;
    }
    PROFILE_END("copies");
}

/* ---- An item ----------------------------------------------------------------------------------
 */

/* What a warp holds of an item: its rows' queries, and what they came to. */
template <typename S> struct item {
    index_sequence q;
    int all_lo,
        all_hi; /* keys that every row sees; none, if there is more to a logit than a product */
    u32 a[S::q_in_shared ? 1 : S::dim / 16][4];
    float factor[S::quantised ? 2 : 1]; /* of the rows' scores; else it is the call's */
    float top[2];                       /* of rows lane / 4 and that + 8, in units of log 2 */
    float sum[2];                       /* this lane's part */
    float out[S::v_dim / 8][4];
};

/* The rows' queries as operand `a`, from device memory. */
template <typename S, bool aligned>
static __device__ __forceinline__ void take_queries(const fi_call &c, const cursor &at, item<S> &it,
                                                    char *shared)
{
    int lane = (int)threadIdx.x & 31, last = item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    if constexpr (S::q_in_shared) {
        item_sync<S>(); /* the item before is done with its own */
        for (int i = item_thread<S>(); i < FI_ROWS * S::dim / 2; i += S::item_threads) {
            i64 row;
            int head, r = i / (S::dim / 2), d = i % (S::dim / 2);
            find_short_row(c, it.q, at, min(r, last), &row, &head);
            const char *from =
                (const char *)c.operands.q + row * c.operands.q_row + head * c.operands.q_head;
            *(u32 *)(shared + S::q_at + r * S::q_stride + d * 4) = load_pair(from + d * 4, aligned);
        }
        item_sync<S>();
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i64 row;
            int head;
            find_short_row(c, it.q, at, min(h * 8 + lane / 4, last), &row, &head);
            const char *from = (const char *)c.operands.q + row * c.operands.q_row +
                               head * c.operands.q_head + (lane & 3) * 4;
#pragma unroll
            for (int d = 0; d < S::dim / 16; d++) {
                it.a[d][h] = load_pair(from + d * 32, aligned);
                it.a[d][h + 2] = load_pair(from + d * 32 + 16, aligned);
            }
        }
    }
}

/* The power of two that brings a row whose largest magnitude is `most` to 2^14 .. 2^15; `back` is
 * its inverse. */
static __device__ __forceinline__ float find_lift(float most, float *back)
{
    u32 exponent = max(f32_bits(most) >> 23, 15u);
    *back = bits_f32((exponent - 14) << 23);
    return bits_f32((268 - exponent) << 23);
}

template <typename S> static __device__ __forceinline__ float2 unpack_query(u32 pair)
{
    if (S::half)
        return unpack_half(pair);
    return make_float2(bits_f32(pair << 16), bits_f32(pair & 0xffff0000u));
}

/* The same for keys of fp8. A lane's four codes of a row are two pairs of neighbours, so of 16
 * dimensions it has 4 t to 4 t + 3 where it would have 2 t, 2 t + 1, 2 t + 8 and 2 t + 9: the
 * queries are put in that order. */
template <typename S, bool aligned>
static __device__ __forceinline__ void lift_queries(const fi_call &c, const cursor &at, item<S> &it)
{
    int lane = (int)threadIdx.x & 31, last = item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    float scale = c.scale * k_scale_of(c, at.head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head;
        float most = 0.0f, back;
        find_short_row(c, it.q, at, min(h * 8 + lane / 4, last), &row, &head);
        const char *from = (const char *)c.operands.q + row * c.operands.q_row +
                           head * c.operands.q_head + (lane & 3) * 8;
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++) {
            u32 &pair = it.a[S::q_in_shared ? 0 : n / 2][h + n % 2 * 2];
            pair = load_pair(from + n / 2 * 32 + n % 2 * 4, aligned);
            float2 x = unpack_query<S>(pair);
            most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
        }
        float lift = find_lift(softmax_quad_max(most), &back);
        it.factor[S::quantised ? h : 0] = back * scale;
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++) {
            u32 &pair = it.a[S::q_in_shared ? 0 : n / 2][h + n % 2 * 2];
            float2 x = unpack_query<S>(pair);
            pair = pack_pair<true>(x.x * lift, x.y * lift);
        }
    }
}

/* That in shared memory: a row by a warp. */
template <typename S>
static __device__ __forceinline__ void lift_queries_shared(const fi_call &c, const cursor &at,
                                                           item<S> &it, char *shared)
{
    constexpr int pairs = S::dim / 2;
    int lane = (int)threadIdx.x & 31, last = item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
    float scale = c.scale * k_scale_of(c, at.head);
    float *backs = (float *)(shared + S::backs_at);
    item_sync<S>(); /* the item before is done with its own */
#pragma unroll 1
    for (int r = item_warp<S>(); r < FI_ROWS; r += S::item_warps) {
        i64 row;
        int head;
        float most = 0.0f, back;
        u32 mine[pairs / 32];
        find_short_row(c, it.q, at, min(r, last), &row, &head);
        const char *from =
            (const char *)c.operands.q + row * c.operands.q_row + head * c.operands.q_head;
#pragma unroll
        for (int n = 0; n < pairs / 32; n++) {
            mine[n] = load_pair(from + (n * 32 + lane) * 4, aligned);
            float2 x = unpack_query<S>(mine[n]);
            most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
        }
        float lift = find_lift(softmax_warp_max(most), &back);
#pragma unroll
        for (int n = 0; n < pairs / 32; n++) {
            int d = n * 32 + lane; /* pair d % 8 of 16 dimensions, and where it goes */
            int to = d / 8 * 8 + d % 2 * 4 + d % 8 / 2;
            float2 x = unpack_query<S>(mine[n]);
            *(u32 *)(shared + S::q_at + r * S::q_stride + to * 4) =
                pack_pair<true>(x.x * lift, x.y * lift);
        }
        if (lane == 0)
            backs[r] = back * scale;
    }
    item_sync<S>();
    for (int h = 0; h < 2; h++)
        it.factor[S::quantised ? h : 0] = backs[h * 8 + lane / 4];
}

template <typename S, bool aligned>
static __device__ __forceinline__ void find_queries(const fi_call &c, const cursor &at, item<S> &it,
                                                    char *shared)
{
    if constexpr (S::quantised)
        lift_queries<S, aligned>(c, at, it);
    else
        take_queries<S, aligned>(c, at, it, shared);
}

/* What of an item the plan and the batch tell. */
template <typename S>
static __device__ __forceinline__ void item_find(const fi_call &c, const cursor &at, item<S> &it)
{
    index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &it.q);
}

template <typename S>
static __device__ __forceinline__ void item_begin(const fi_call &c, const cursor &at, item<S> &it,
                                                  char *shared)
{
    mask_rule rule = rule_of(c);
    int ignored;
    int last = at.tile.row0 + item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    mask_positions(&rule, it.q.prefix_len + short_query(c, last), &it.all_lo, &ignored);
    int first = short_query(c, at.tile.row0);
    mask_positions(&rule, it.q.prefix_len + first, &ignored, &it.all_hi);
    it.all_hi = min(it.all_hi, at.tile.hi);
    it.all_hi = min(it.all_hi, end_of_all(c, it.q, at.tile.seq, first));
    if (c.custom || c.cap != 0 || c.operands.slopes)
        it.all_hi = 0;
    /* A branch for all of them: predicates would have each of both kinds of loads issued. */
    if (S::quantised && S::q_in_shared)
        lift_queries_shared<S>(c, at, it, shared);
    else if (c.operands.aligned & CALL_ALIGNED_Q)
        find_queries<S, true>(c, at, it, shared);
    else
        find_queries<S, false>(c, at, it, shared);
    for (int h = 0; h < 2; h++) {
        it.top[h] = SOFTMAX_EMPTY;
        it.sum[h] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < S::v_dim / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            it.out[d][e] = 0.0f;
}

/* ---- A group of keys --------------------------------------------------------------------------
 */

/* score[j]: products of the rows with keys 8j to 8j + 7. */
template <typename S>
static __device__ __forceinline__ void score_keys(const item<S> &it, const char *shared,
                                                  const char *k, float (&score)[2][4])
{
    int lane = (int)threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
    u32 keys = shared_address(k) + piece_at<PANEL_BYTES>(row, lane >> 3 & 1);
    u32 queries = shared_address(shared) + S::q_at + (lane & 15) * S::q_stride + (lane >> 4) * 16;
    float odd[2][4] = {}; /* two sums for each: half as many products wait for one another */
#pragma unroll
    for (int d = 0; d < S::dim / 16; d++) {
        u32 a[4], b[4];
        if (S::q_in_shared)
            load_matrices(a, queries + d * 32);
        for (int n = 0; n < 4 && !S::q_in_shared; n++)
            a[n] = it.a[S::q_in_shared ? 0 : d][n];
        load_matrices(b, (keys ^ (d & 3) << 5) + d / 4 * PANEL_BYTES);
        multiply<S::half>(d % 2 ? odd[0] : score[0], a, b[0], b[1]);
        multiply<S::half>(d % 2 ? odd[1] : score[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] += odd[n / 4][n % 4];
}

/* The same of fp8: a matrix has 16 dimensions of 8 keys. */
template <typename S>
static __device__ __forceinline__ void score_codes(const item<S> &it, const char *shared,
                                                   const char *k, float (&score)[2][4])
{
    int lane = (int)threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
    u32 keys = shared_address(k) + piece_at<PANEL_BYTES>(row, lane >> 3 & 1);
    u32 queries = shared_address(shared) + S::q_at + (lane & 15) * S::q_stride + (lane >> 4) * 16;
    float odd[2][4] = {};
#pragma unroll
    for (int d = 0; d < S::dim / 32; d++) {
        u32 codes[4];
        load_matrices(codes, (keys ^ (d & 3) << 5) + d / 4 * PANEL_BYTES);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 a[4], low, high;
            if (S::q_in_shared)
                load_matrices(a, queries + d * 64 + half * 32);
            for (int n = 0; n < 4 && !S::q_in_shared; n++)
                a[n] = it.a[S::q_in_shared ? 0 : d * 2 + half][n];
            widen_codes(codes[half], low, high);
            multiply<true>(half ? odd[0] : score[0], a, low, high);
            widen_codes(codes[2 + half], low, high);
            multiply<true>(half ? odd[1] : score[1], a, low, high);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] += odd[n / 4][n % 4];
}

/* Scores, already scaled, to logits of what is seen. Returns which: bit 2j + e for key e of this
 * lane's two of the j-th 8. */
template <typename S>
static __device__ u32 hide_keys(const fi_call &c, const cursor &at, const item<S> &it,
                                float (&score)[2][4])
{
    mask_rule rule = rule_of(c);
    int lane = (int)threadIdx.x & 31, from = cursor_key(at);
    u32 seen = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mask_view view;
        int row = at.tile.row0 + h * 8 + lane / 4;
        int there = row < it.q.q_len * c.ratio, query = short_query(c, row);
        mask_find_view(&rule, &c.batch, &it.q, at.tile.seq, there ? query : -1, &view);
        const float *slopes = there ? c.operands.slopes : 0;
        float slope = slopes ? slopes[at.head * c.ratio + row - query * c.ratio] : 0.0f;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            int key = from + n / 2 * 8 + (lane & 3) * 2 + n % 2;
            bool sees = mask_sees(&rule, &c.batch, &it.q, &view, key, at.tile.hi);
            float &x = score[n / 2][h * 2 + n % 2];
            int position = sees ? mask_key_position(&rule, &c.batch, &it.q, key) : key;
            x = softmax_logit(x, c.cap, slopes != 0, slope,
                              fabsf((float)(view.position - position)));
            x = sees ? x : SOFTMAX_EMPTY;
            seen |= sees ? 1u << n : 0;
        }
    }
    /* What any row of the warp sees. */
    seen |= __shfl_xor_sync(~0u, seen, 4);
    seen |= __shfl_xor_sync(~0u, seen, 8);
    return seen | __shfl_xor_sync(~0u, seen, 16);
}

/* Logits become probabilities by the largest so far; what was summed up follows it. */
template <typename S>
static __device__ __forceinline__ void weigh_keys(float (&score)[2][4], item<S> &it)
{
    float shrink[2];
    bool grown = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float here = fmaxf(fmaxf(score[0][h * 2], score[0][h * 2 + 1]),
                           fmaxf(score[1][h * 2], score[1][h * 2 + 1]));
        float top = fmaxf(it.top[h], softmax_quad_max(here)), base = softmax_base(top);
        shrink[h] = softmax_exp2(it.top[h] - base);
        grown |= top != it.top[h];
        it.top[h] = top;
        it.sum[h] *= shrink[h];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float &x = score[n / 2][h * 2 + n % 2];
            x = softmax_exp2(x - (base - S::lift));
            it.sum[h] += x;
        }
    }
    if (__any_sync(~0u, grown)) { /* else shrink is 1, or there is nothing yet */
#pragma unroll
        for (int d = 0; d < S::v_dim / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                it.out[d][e] *= shrink[e / 2];
    }
}

/* Does f16 lose less of the warp's probabilities, lifted as they are, than bf16 would? Of those
 * that are not too small for it, or 0. */
static __device__ __forceinline__ bool fit_half(const float (&score)[2][4])
{
    u32 least = ~0u; /* 0 becomes the largest */
#pragma unroll
    for (int n = 0; n < 8; n++)
        least = min(least, f32_bits(score[n / 4][n % 4]) - 1);
    return __all_sync(~0u, least >= 0x38800000u - 1); /* 2^-14 */
}

/* Probabilities as operand `a`, and all bits of the keys that some row sees, two keys in each. Of
 * the values of the others, which may be anything, nothing is left: 0 times NaN is NaN. */
struct weights {
    u32 p[4], kept[2];
};

template <bool half>
static __device__ __forceinline__ weights round_weights(const float (&score)[2][4], u32 seen)
{
    weights w;
#pragma unroll
    for (int e = 0; e < 4; e++)
        w.p[e] = pack_pair<half>(score[e / 2][e % 2 * 2], score[e / 2][e % 2 * 2 + 1]);
#pragma unroll
    for (int j = 0; j < 2; j++)
        w.kept[j] = (seen >> 2 * j & 1 ? 0xffffu : 0) | (seen >> 2 * j & 2 ? 0xffff0000u : 0);
    return w;
}

/* out += probabilities x values. */
template <typename S>
static __device__ __forceinline__ void add_values(const weights &w, const char *v, item<S> &it)
{
    int lane = (int)threadIdx.x & 31;
    u32 values = shared_address(v) + piece_at<PANEL_BYTES>(lane & 15, lane >> 4);
#pragma unroll
    for (int d = 0; d < S::v_dim / 16; d++) {
        u32 b[4];
        load_matrices_transposed(b, (values ^ (d & 3) << 5) + d / 4 * PANEL_BYTES);
        multiply<S::half>(it.out[d * 2], w.p, b[0] & w.kept[0], b[1] & w.kept[1]);
        multiply<S::half>(it.out[d * 2 + 1], w.p, b[2] & w.kept[0], b[3] & w.kept[1]);
    }
}

/* Two codes of e4m3 from f16 to bf16, which has all of their values too. */
static __device__ __forceinline__ u32 half_to_bf16(u32 pair)
{
    float2 x = unpack_half(pair);
    return pack_pair<false>(x.x, x.y);
}

/* The same of fp8: a lane of a transposed matrix has two dimensions of two keys, so of 16
 * dimensions out[2 n] has the even ones and out[2 n + 1] the odd ones. */
template <typename S, bool half>
static __device__ __forceinline__ void add_codes(const weights &w, const char *v, item<S> &it)
{
    int lane = (int)threadIdx.x & 31;
    u32 values = shared_address(v) + piece_at<PANEL_BYTES>(lane & 15, lane >> 4);
#pragma unroll
    for (int d = 0; d < S::v_dim / 32; d++) {
        u32 codes[4];
        load_matrices_transposed(codes, (values ^ (d & 3) << 5) + d / 4 * PANEL_BYTES);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            u32 even[2], odd[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                widen_codes(__byte_perm(codes[n * 2 + j] & w.kept[j], 0, 0x3120), even[j], odd[j]);
                if (!half) {
                    even[j] = half_to_bf16(even[j]);
                    odd[j] = half_to_bf16(odd[j]);
                }
            }
            multiply<half>(it.out[d * 4 + n * 2], w.p, even[0], even[1]);
            multiply<half>(it.out[d * 4 + n * 2 + 1], w.p, odd[0], odd[1]);
        }
    }
}

template <typename S>
static __device__ __forceinline__ void attend_group(const fi_call &c, const cursor &at, item<S> &it,
                                                    const char *shared, const char *stage)
{
    float score[2][4] = {};
    int from = cursor_key(at);
    u32 seen = 15;
    const char *k = stage + warp_part() * S::k_bytes;
    const char *v = stage + WARPS * S::k_bytes + warp_part() * S::v_bytes;
    if constexpr (S::quantised)
        score_codes<S>(it, shared, k, score);
    else
        score_keys<S>(it, shared, k, score);
#pragma unroll
    for (int n = 0; n < 8; n++)
        score[n / 4][n % 4] *= S::quantised ? it.factor[S::quantised ? n % 4 / 2 : 0] : c.scale;
    if (from < it.all_lo || from + GROUP_KEYS > it.all_hi)
        seen = hide_keys<S>(c, at, it, score);
    weigh_keys<S>(score, it);
    if constexpr (!S::quantised)
        add_values<S>(round_weights<S::half>(score, seen), v, it);
    else if (S::half || fit_half(score))
        add_codes<S, true>(round_weights<true>(score, seen), v, it);
    else
        add_codes<S, false>(round_weights<false>(score, seen), v, it);
}

/* ---- Results ----------------------------------------------------------------------------------
 */

/* Levels whose runs have left something for the item's rows: none over fp8. */
template <typename S> static __device__ __forceinline__ int shared_levels(const cursor &at)
{
    return S::quantised ? 0 : at.tile.levels;
}

/* What came of some keys, and of keys after them, together. Splits are added one by one, by the
 * block that has an item's first one or by the one that comes last, so both have to round alike:
 * the compiler has no say in it. */
struct sum_of_two {
    float2 numbers; /* largest logit, denominator */
    float before, after;

    __device__ __forceinline__ float values(float x, float y) const
    {
        return __fmaf_rn(y, after, __fmul_rn(x, before));
    }
};

static __device__ __forceinline__ sum_of_two add_two(float2 x, float2 y)
{
    sum_of_two both;
    float top = fmaxf(x.x, y.x), base = softmax_base(top);
    both.before = softmax_exp2(__fsub_rn(x.x, base));
    both.after = softmax_exp2(__fsub_rn(y.x, base));
    both.numbers = make_float2(top, both.values(x.y, y.y));
    return both;
}

/* The numbers of row r of a split, or of all splits up to it. Of each split the same instructions
 * add up what the warps have of its denominator. */
template <typename S>
static __device__ __forceinline__ float2 add_numbers(const float *tops, int r, bool is_added,
                                                     const float2 *before)
{
    float top = SOFTMAX_EMPTY, total = 0.0f;
    for (int w = 0; w < S::item_warps; w++)
        top = fmaxf(top, tops[w * FI_ROWS + r]);
    float base = softmax_base(top);
    for (int w = 0; w < S::item_warps; w++)
        total = __fmaf_rn(softmax_exp2(__fsub_rn(tops[w * FI_ROWS + r], base)),
                          tops[(S::item_warps + w) * FI_ROWS + r], total);
    float2 numbers = make_float2(top, total);
    return is_added ? add_two(*before, numbers).numbers : numbers;
}

/* Row r of the item from the warps' parts of it in shared memory: four columns of it, from d on. */
template <typename S, bool splits>
static __device__ __forceinline__ void
finish_row(const fi_call &c, const cursor &at, const item<S> &it, int r, int d,
           const float *exchange, const float *tops, bool is_shared, const parts &shared_by)
{
    i64 row;
    int head;
    find_short_row(c, it.q, at, r, &row, &head);
    float sink = is_shared ? SOFTMAX_EMPTY : sink_of(c, head), top = sink;
    int levels = is_shared ? 0 : shared_levels<S>(at);
    for (int w = 0; w < S::item_warps; w++)
        top = fmaxf(top, tops[w * FI_ROWS + r]);
    for (int l = 0; levels >> l; l++)
        if (levels >> l & 1)
            top = fmaxf(top, c.prior_row[prior_slot(c, l, row, head) * 2]);
    float base = softmax_base(top), total = softmax_exp2(sink - base);
    float4 x = {0, 0, 0, 0};
    for (int w = 0; w < S::item_warps; w++) {
        float weight = softmax_exp2(tops[w * FI_ROWS + r] - base);
        const float4 y =
            *(const float4 *)(exchange + (w * PASS_ROWS + r % PASS_ROWS) * S::exchange_stride + d);
        total += weight * tops[(S::item_warps + w) * FI_ROWS + r];
        x.x += weight * y.x;
        x.y += weight * y.y;
        x.z += weight * y.z;
        x.w += weight * y.w;
    }
    for (int l = 0; levels >> l; l++) {
        if (!(levels >> l & 1))
            continue;
        i64 slot = prior_slot(c, l, row, head);
        const float2 numbers = *(const float2 *)(c.prior_row + slot * 2);
        const float4 y = *(const float4 *)(c.prior + slot * S::v_dim + d);
        float weight = softmax_exp2(numbers.x - base);
        total += weight * numbers.y;
        x.x += weight * y.x;
        x.y += weight * y.y;
        x.z += weight * y.z;
        x.w += weight * y.w;
    }
    if (is_shared) {
        i64 slot = (i64)shared_by.mine * FI_ROWS + r;
        float4 *there = (float4 *)(c.partial + slot * S::v_dim + d);
        if (shared_by.is_added) {
            const sum_of_two both =
                add_two(*(const float2 *)(c.partial_row + slot * 2), make_float2(top, total));
            const float4 y = *there;
            x = make_float4(both.values(y.x, x.x), both.values(y.y, x.y), both.values(y.z, x.z),
                            both.values(y.w, x.w));
        }
        *there = x;
        if (d == 0 && !splits)
            *(float2 *)(c.partial_row + slot * 2) = make_float2(top, total);
        return;
    }
    softmax_row end = {top, total};
    float factor = softmax_end(&end);
    store_four(c, out_row(c, row, head), d,
               make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor));
    if (d == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* Row r of an item that blocks share, by a warp: a lane has a part's numbers, and every 32nd
 * column. The numbers and sums of several parts are on their way together, as each wait costs as
 * much as a unit of keys. */
template <typename S>
static __device__ void merge_row(const fi_call &c, const parts &p, int levels, int r, i64 row,
                                 int head)
{
    constexpr int columns = S::v_dim / 32;
    int lane = (int)threadIdx.x & 31;
    float sink = sink_of(c, head), top = sink, total = 0.0f, x[columns] = {};
    if (lane == 0)
        total = softmax_exp2(sink - softmax_base(sink));
    auto row_of = [&](int i) { return part_slot(p, i) * FI_ROWS + r; };
    for (int begin = 0; begin < p.count; begin += S::merged) {
        int here = min(S::merged, p.count - begin);
        float y[S::merged][columns];
        float2 numbers = {SOFTMAX_EMPTY, 0.0f};
        if (lane < here)
            numbers = __ldcg((const float2 *)(c.partial_row + row_of(begin + lane) * 2));
#pragma unroll
        for (int i = 0; i < S::merged; i++) {
            const float *from = c.partial + row_of(begin + min(i, here - 1)) * S::v_dim + lane;
#pragma unroll
            for (int n = 0; n < columns; n++)
                y[i][n] = __ldcg(from + n * 32);
        }
        float higher = fmaxf(top, softmax_warp_max(numbers.x)), base = softmax_base(higher);
        float shrink = softmax_exp2(top - base), share = softmax_exp2(numbers.x - base);
        top = higher;
        total = total * shrink + share * numbers.y;
#pragma unroll
        for (int n = 0; n < columns; n++)
            x[n] *= shrink;
#pragma unroll
        for (int i = 0; i < S::merged; i++) {
            float weight = __shfl_sync(~0u, share, i);
#pragma unroll
            for (int n = 0; n < columns; n++)
                x[n] += i < here ? weight * y[i][n] : 0.0f;
        }
    }
    for (int l = 0; levels >> l; l++) {
        if (!(levels >> l & 1))
            continue;
        i64 slot = prior_slot(c, l, row, head);
        const float2 numbers = *(const float2 *)(c.prior_row + slot * 2);
        float higher = fmaxf(top, numbers.x), base = softmax_base(higher);
        float shrink = softmax_exp2(top - base), weight = softmax_exp2(numbers.x - base);
        top = higher;
        total = total * shrink + (lane == 0 ? weight * numbers.y : 0.0f);
#pragma unroll
        for (int n = 0; n < columns; n++)
            x[n] = x[n] * shrink + weight * c.prior[slot * S::v_dim + n * 32 + lane];
    }
    softmax_row end = {top, softmax_warp_sum(total)};
    float factor = softmax_end(&end);
#pragma unroll
    for (int n = 0; n < columns; n++)
        element_store(c.out_dtype, out_row(c, row, head), n * 32 + lane, x[n] * factor);
    if (lane == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* The same of splits, one after the other; several are on their way together. */
template <typename S>
static __device__ __forceinline__ void merge_splits(const fi_call &c, int first, int second,
                                                    int count, int r, i64 row, int head)
{
    parts p = {};
    p.first = first, p.second = second, p.step = 1;
    constexpr int columns = S::v_dim / 32;
    int lane = (int)threadIdx.x & 31;
    float2 numbers = make_float2(SOFTMAX_EMPTY, 0.0f);
    float x[columns] = {};
#pragma unroll 1
    for (int begin = 0; begin < count; begin += S::merged) {
        int here = min(S::merged, count - begin);
        float y[S::merged][columns];
        float2 of[S::merged];
#pragma unroll
        for (int i = 0; i < S::merged; i++) {
            i64 slot = part_slot(p, begin + min(i, here - 1)) * FI_ROWS + r;
            of[i] = __ldcg((const float2 *)(c.partial_row + slot * 2));
#pragma unroll
            for (int n = 0; n < columns; n++)
                y[i][n] = __ldcg(c.partial + slot * S::v_dim + lane + n * 32);
        }
#pragma unroll
        for (int i = 0; i < S::merged; i++) {
            if (i >= here)
                break;
            const sum_of_two both = add_two(numbers, of[i]);
            bool is_first = begin + i == 0;
            numbers = is_first ? of[i] : both.numbers;
#pragma unroll
            for (int n = 0; n < columns; n++)
                x[n] = is_first ? y[i][n] : both.values(x[n], y[i][n]);
        }
    }
    float sink = sink_of(c, head), top = fmaxf(numbers.x, sink), base = softmax_base(top);
    float shrink = softmax_exp2(numbers.x - base);
    softmax_row end = {top, numbers.y * shrink + softmax_exp2(sink - base)};
    float factor = softmax_end(&end) * shrink;
#pragma unroll
    for (int n = 0; n < columns; n++)
        element_store(c.out_dtype, out_row(c, row, head), n * 32 + lane, x[n] * factor);
    if (lane == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* Leave the block's part of an item; the last one merges them. */
template <typename S, bool splits>
static __device__ void merge_parts(const fi_call &c, const cursor &at, const item<S> &it,
                                   const parts &p, int rows, int *is_last)
{
    if (!p.ends)
        return;
    if (item_thread<S>() == 0) {
        *is_last = p.arriving == p.all || add_acq_rel(p.counter, p.arriving) == p.all - p.arriving;
        if (*is_last && p.arriving < p.all)
            *p.counter = 0;
    }
    item_sync<S>();
    if (!*is_last)
        return;
    for (int r = item_warp<S>(); r < rows; r += S::item_warps) {
        i64 row;
        int head;
        find_short_row(c, it.q, at, r, &row, &head);
        if (splits)
            merge_splits<S>(c, p.first, p.second, p.count, r, row, head);
        else
            merge_row<S>(c, p, shared_levels<S>(at), r, row, head);
    }
}

/* A lane's part of row lane / 4 + 8 h. */
template <typename S>
static __device__ __forceinline__ void exchange_row(const item<S> &it, int h, float *row,
                                                    float factor)
{
    int quarter = (int)threadIdx.x & 3;
    if constexpr (S::quantised) {
#pragma unroll
        for (int n = 0; n < S::v_dim / 16; n++) {
            const float(&even)[4] = it.out[n * 2], (&odd)[4] = it.out[n * 2 + 1];
            *(float4 *)(row + n * 16 + quarter * 4) =
                make_float4(even[h * 2] * factor, odd[h * 2] * factor, even[h * 2 + 1] * factor,
                            odd[h * 2 + 1] * factor);
        }
    } else {
#pragma unroll
        for (int d = 0; d < S::v_dim / 8; d++)
            *(float2 *)(row + d * 8 + quarter * 2) =
                make_float2(it.out[d][h * 2] * factor, it.out[d][h * 2 + 1] * factor);
    }
}

/* A part of an item has ended; `at` is its last unit. `is_first`: it is the block's first item. */
template <typename S, bool splits>
static __device__ __forceinline__ void item_end(const fi_call &c, const cursor &at,
                                                const fi_start &start, bool is_first, item<S> &it,
                                                char *shared)
{
    int team = S::by_item ? my_team() : 0, thread = item_thread<S>();
    float *exchange = (float *)(shared + S::exchange_at + team * S::exchange_bytes);
    float *tops = (float *)(shared + S::tops_at + team * S::tops_bytes);
    int lane = thread & 31, warp = thread / 32;
    int rows = item_rows(c, it.q, at.tile, FI_ROWS);
    bool whole = walk_has_whole(splits ? c.split : 0, &at, &start, is_first);
    const parts p = splits ? find_splits(c, at, start, is_first)
                           : find_shared(c, block_here(), start, is_first);
    constexpr float unlift = 1.0f / (1 << S::lift);
    float out_factor = S::quantised ? unlift * v_scale_of(c, at.head) : unlift;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = softmax_quad_sum(it.sum[h]);
        int r = h * 8 + lane / 4;
        if ((lane & 3) == 0) {
            tops[warp * FI_ROWS + r] = it.top[h];
            tops[(S::item_warps + warp) * FI_ROWS + r] = total * unlift;
        }
    }
    for (int first = 0; first < rows; first += PASS_ROWS) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = h * 8 + lane / 4 - first;
            if (r < 0 || r >= PASS_ROWS)
                continue;
            exchange_row<S>(it, h, exchange + (warp * PASS_ROWS + r) * S::exchange_stride,
                            out_factor);
        }
        item_sync<S>();
        for (int i = thread; i < PASS_ROWS * (S::v_dim / 4); i += S::item_threads) {
            int d = i % (S::v_dim / 4) * 4, r = first + i / (S::v_dim / 4);
            if (r < rows)
                finish_row<S, splits>(c, at, it, r, d, exchange, tops, !whole, p);
        }
        /* Nobody else looks at a split's numbers any more when they are written. */
        int mine = first + thread;
        bool leaves = !whole && splits && thread < PASS_ROWS && mine < rows;
        float2 *numbers = (float2 *)(c.partial_row + ((i64)p.mine * FI_ROWS + mine) * 2), sum;
        if (leaves)
            sum = add_numbers<S>(tops, mine, p.is_added, numbers);
        item_sync<S>();
        if (leaves)
            *numbers = sum;
    }
    if (!whole)
        merge_parts<S, splits>(c, at, it, p, rows, (int *)(tops + 2 * S::item_warps * FI_ROWS));
}

/* ---- The kernel -------------------------------------------------------------------------------
 */

/* To the item that is this team's after the other one's. */
template <typename S>
static __device__ __forceinline__ void pass_item(const fi_call &c, cursor &at, ring &r)
{
    int stage = r.stage + walk_past(&c, block_here(), &at, FI_KEYS);
    r.parity ^= stage / S::stages & 1;
    r.stage = stage % S::stages;
}

/* All that a warp multiplies. */
template <typename S, bool splits>
static __device__ __forceinline__ void attend_units(const fi_call &c, const fi_start &start,
                                                    cursor at, item<S> &it, char *shared)
{
    ring r = {0, 0};
    int team = my_team(), turn = 0;
    bool is_first = true;
    if (S::by_item && team == 1) {
        pass_item<S>(c, at, r);
        if (at.left == 0)
            return;
        is_first = false;
        item_find<S>(c, at, it);
    }
    PROFILE_BEGIN;
    item_begin<S>(c, at, it, shared);
    if (S::by_item && team == 1)
        turn_take(team);
#pragma unroll 1
    for (;;) {
        PROFILE_UNIT;
        PROFILE(0);
        if (S::by_item || S::teams == 1 || turn == team) {
            barrier_wait(full_barrier<S>(shared, r.stage), r.parity);
            PROFILE(1);
            if (cursor_key(at) < at.tile.hi)
                attend_group<S>(c, at, it, shared, shared + r.stage * S::stage_bytes);
            __syncwarp();
            if ((threadIdx.x & 31) == 0)
                barrier_arrive(empty_barrier<S>(shared, r.stage));
        }
        turn = turn + 1 == S::teams ? 0 : turn + 1;
        ring_next<S>(r);
        bool ends = walk_ends_part(splits ? c.split : 0, &at), is_over = at.unit == at.units - 1;
        PROFILE(2);
        if (S::by_item && is_over && at.left > 1)
            turn_give(1 - team);
        if (ends)
            item_end<S, splits>(c, at, start, is_first, it, shared);
        PROFILE(3);
        walk_next(&c, block_here(), &at, FI_KEYS);
        if (S::by_item && is_over && at.left > 0)
            pass_item<S>(c, at, r);
        if (at.left == 0)
            break;
        if (ends) {
            is_first &= !is_over;
            turn = splits ? 0 : turn; /* which team has which unit of a split is no chance */
            item_find<S>(c, at, it);
            item_begin<S>(c, at, it, shared);
            if (S::by_item && is_over)
                turn_take(team);
        }
    }
    PROFILE_END("products");
}

template <typename S, bool splits>
static __device__ __forceinline__ void attend(const fi_call &c, char *shared)
{
    const fi_start start = c.starts[blockIdx.y];
    const cursor at = walk_begin(&c, block_here(), &start, FI_KEYS);
    if (threadIdx.x < S::stages) {
        barrier_init(full_barrier<S>(shared, (int)threadIdx.x), WARPS);
        barrier_init(empty_barrier<S>(shared, (int)threadIdx.x), WARPS);
    }
    __syncthreads();
    if (threadIdx.x >= S::warps * 32) {
        registers_release<S::copy_registers>();
        if (at.left > 0)
            copy_units<S>(c, at, shared);
        grid_wait();
        grid_launch_dependents();
    } else {
        item<S> it;
        registers_take<S::product_registers>();
        if (at.left > 0)
            item_find<S>(c, at, it);
        grid_wait();
        grid_launch_dependents();
        if (at.left > 0)
            attend_units<S, splits>(c, start, at, it, shared);
    }
    clear_padding(c, S::v_dim, (int)(blockIdx.y * gridDim.x + blockIdx.x),
                  (int)(gridDim.x * gridDim.y));
#ifdef FI_PROFILE
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        fi_launches++;
#endif
}

#define CHECK_BYTES(bytes, ...)                                                                    \
    static_assert(bytes == 0 || attend_shape<__VA_ARGS__>::shared_bytes == bytes,                  \
                  "the table's bytes of shared memory");
#define CHECK_SHAPE(name, dim, v_dim, stages, shared, many_shared, codes_stages, codes_shared,     \
                    codes_many_shared, ...)                                                        \
    CHECK_BYTES(shared, dim, v_dim, stages, 1, FI_ATTEND_COPIERS(dim), 1, false, false)            \
    CHECK_BYTES(many_shared, dim, v_dim, stages, 2, 1, 1, false, false)                            \
    CHECK_BYTES(codes_shared, dim, v_dim, codes_stages, FI_CODES_TEAMS(v_dim), 1, 1, false, true)  \
    CHECK_BYTES(codes_many_shared, dim, v_dim, FI_CODES_MANY_STAGES, 1, 1, 2, false, true)
FI_SHAPES(CHECK_SHAPE)
#undef CHECK_SHAPE
#undef CHECK_BYTES

#define FI_KERNEL(name, splits, dim, v_dim, stages, teams, copiers, blocks, half, quantised)       \
    extern "C" __global__ void __launch_bounds__((teams + copiers) * WARPS * 32, blocks)           \
        name(const __grid_constant__ fi_call c)                                                    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        using shape = attend_shape<dim, v_dim, stages, teams, copiers, blocks, half, quantised>;   \
        attend<shape, splits>(c, shared);                                                          \
    }

/* Where items are cut into splits, a row's bits are the same whatever the rest of its batch: by a
 * kernel of its own, as what that takes would slow the other one by a twentieth. */
#define FI_KERNELS(name, ...)                                                                      \
    FI_KERNEL(name, false, __VA_ARGS__)                                                            \
    FI_KERNEL(name##_splits, true, __VA_ARGS__)

/* Kernels; their line in shapes.h has the same numbers. */
#define FI_ATTEND(name, dim, v_dim, stages, half)                                                  \
    FI_KERNELS(name, dim, v_dim, stages, 1, FI_ATTEND_COPIERS(dim), 1, half, false)
#define FI_ATTEND_MANY(name, dim, v_dim, stages, half)                                             \
    FI_KERNEL(name, false, dim, v_dim, stages, 2, 1, 1, half, false)
#define FI_ATTEND_CODES(name, dim, v_dim, stages, half)                                            \
    FI_KERNELS(name, dim, v_dim, stages, FI_CODES_TEAMS(v_dim), 1, 1, half, true)
#define FI_ATTEND_CODES_MANY(name, dim, v_dim, half)                                               \
    FI_KERNEL(name, false, dim, v_dim, FI_CODES_MANY_STAGES, 1, 1, 2, half, true)

#endif /* PLANNED_ATTEND_CUH */
