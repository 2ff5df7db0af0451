/* SPDX-License-Identifier: Apache-2.0
 *
 * channels_strips.cuh: KDA with a norm in one kernel, by chunks of 16 rows (strips), if sequences
 * times heads fill the GPU: neither keys nor products of a chunk pass through memory. Rows come
 * from the batch or (TILES) from the convolution.
 *
 * A block has a head of a sequence, and a ring of strips in shared memory. Each of eight warps
 * prepares every eighth strip by itself: it copies its rows, and computes q and k with their decays
 * in place, products within the strip, and T = (I + A)^-1 beta. Two warpgroups propagate the states
 * of 64 values each from strip to strip, and write their outputs, as states_whole.cuh does. A strip
 * needs no products with rows of other strips, and T is one block, because the state is known after
 * each strip.
 *
 * If the heads of one long sequence leave half of the multiprocessors idle, its first chunks go by
 * strips, while those multiprocessors prepare the other chunks for linear_states_channels.
 */
#ifndef LINEAR_LIKE_CHANNELS_STRIPS_CUH
#define LINEAR_LIKE_CHANNELS_STRIPS_CUH

#include "plugins/linear_like/kernels/chunk_channels_inverse.cuh"
#include "plugins/linear_like/kernels/chunk_states.cuh"

/* ---- Shared memory ----------------------------------------------------------------------- */

/* Offsets in a strip's tiles, in halves of 64 channels: rows of k, then of q; keys decayed to the
 * strip's end (in the same place earlier: raw gates, then log decays); T and, 32 bytes further in
 * each row, P. */
enum {
    STRIP_TILE = STRIP_ROWS * 128,
    STRIP_Q = STRIP_TILE,
    STRIP_HALF = 2 * STRIP_TILE,
    STRIP_ENDS = 2 * STRIP_HALF,
    STRIP_SYSTEM = STRIP_ENDS + 2 * STRIP_TILE,
    STRIP_PRODUCTS = 32
};

/* A strip's numbers: decays of channels, grouped by the lanes of a state's row to avoid bank
 * conflicts; then numbers of each row; then each value's largest element, times STRIP_ROWS. */
enum {
    STRIP_DECAY = 0,
    STRIP_DECAY_LANE = CHUNK_MAX_KEYS / 4 + 4,
    STRIP_OWN = 4 * STRIP_DECAY_LANE,
    STRIP_Q_TIMES = STRIP_OWN + STRIP_ROWS,
    STRIP_K_TIMES = STRIP_Q_TIMES + STRIP_ROWS,
    STRIP_LARGEST = STRIP_K_TIMES + STRIP_ROWS,
    STRIP_V_TIMES = STRIP_Q_TIMES /* after a convolution */
};

/* Decayed rows are scaled by CHANNELS_UP. */

struct strip_slot {
    char *tiles, *values;
    float *numbers;
};

struct strip_memory {
    char *tiles, *values;
    float *numbers, *squares;
    unsigned barriers;

    __device__ __forceinline__ explicit strip_memory(char *from)
    {
        tiles = from;
        values = tiles + STRIP_SLOTS * STRIP_TILES;
        numbers = (float *)(values + STRIP_SLOTS * STRIP_ROWS * STRIP_V_ROW);
        squares = numbers + STRIP_SLOTS * STRIP_NUMBERS / 4;
        barriers = shared_address(squares + STRIP_WARPS * STRIP_ROWS * STRIP_ROWS);
    }

    __device__ __forceinline__ strip_slot slot(int n) const
    {
        return {tiles + n * STRIP_TILES, values + n * (STRIP_ROWS * STRIP_V_ROW),
                numbers + n * (STRIP_NUMBERS / 4)};
    }

    __device__ __forceinline__ unsigned made(int n) const
    {
        return barriers + 8 * n;
    }

    __device__ __forceinline__ unsigned passed(int n) const
    {
        return barriers + 8 * (STRIP_SLOTS + n);
    }
};

/* A slot of the ring, and the parity of its round. */
struct strip_ring {
    int slot;
    unsigned round;

    __device__ __forceinline__ void advance(int by)
    {
        slot += by;
        if (slot >= STRIP_SLOTS)
            slot -= STRIP_SLOTS, round ^= 1;
    }
};

/* ---- Parts ------------------------------------------------------------------------------- */

/* Finds part `part` of a launch (a head of a sequence), or the block's next part with chunks.
 * Blocks take parts back and forth, so that each has long and short sequences. */
DEVICE bool find_head(const linear_call &call, unsigned &part, states_work &work)
{
    const unsigned heads = call.dims.v_heads, parts = linear_num_real(&call.batch) * heads;
    for (; part < parts; part = (2 * (part / gridDim.x) + 2) * gridDim.x - 1 - part) {
        const int s = part / heads, *chunks = call.chunks.sequences + 2 * s;
        if (chunks[1] == 0)
            continue;
        if (call.chunks.count[0]) /* the list's last chunks, which are the sequence's first */
            chunks = call.chunks.count;
        work.from = work.begin = chunks[0];
        work.to = work.end = work.from + chunks[1];
        work.first = work.index = work.number = work.lead = 0, work.count = 1;
        work.head = part % heads;
        work.sequence = linear_find_sequence(&call.batch, s);
        return true;
    }
    return false;
}

DEVICE bool find_next_head(const linear_call &call, unsigned &part, states_work &work)
{
    part = (2 * (part / gridDim.x) + 2) * gridDim.x - 1 - part;
    work.passed += work.to - work.from;
    return find_head(call, part, work);
}

/* The position in the chunks of the block's parts, counted over all parts. */
struct strip_turn {
    unsigned part;
    int n;
    states_work work;

    /* Advances by `more` chunks. False: there is none. */
    __device__ __forceinline__ bool skip(const linear_call &call, int more)
    {
        n += more;
        while (n >= work.passed + work.to - work.from)
            if (!find_next_head(call, part, work))
                return false;
        return true;
    }

    __device__ __forceinline__ int index(void) const
    {
        return work.from - work.passed + n;
    }
};

/* ---- Rows and gates ---------------------------------------------------------------------- */

/* Rows of a strip. */
struct strip_rows {
    i64 first; /* of the batch */
    i64 row;   /* of the list's chunks */
    int rows, head;

    /* Strip `number` of a chunk of `chunk_rows` rows, which starts at row `from` of its
     * sequence. */
    __device__ __forceinline__ strip_rows(const strip_turn &turn, int from, int chunk_rows,
                                          int number)
    {
        first = turn.work.sequence.first_row + from + number * STRIP_ROWS;
        row = (i64)turn.index() * CHUNK_ROWS + number * STRIP_ROWS;
        rows = int_min(STRIP_ROWS, chunk_rows - number * STRIP_ROWS);
        head = turn.work.head;
    }
};

/* The address of a lane's gates in row `row`. */
DEVICE const char *strip_gates(const linear_call &call, const strip_rows &at, int row, int place,
                               int size)
{
    const linear_operands &o = call.operands;
    return o.a + (at.first + row) * o.a_row + at.head * o.a_head + (i64)(place * 8) * size;
}

/* Copies tiles of q and k and rows of v from the convolution, by a warp. */
DEVICE void fetch_tiles(const linear_call &call, const strip_rows &at, const strip_slot &slot,
                        int lane)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const i64 chunk = at.row / CHUNK_ROWS * d.v_heads + at.head;
    const char *from = call.chunks.keys + chunk * CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS_TILES) +
                       at.row % CHUNK_ROWS * 128 + lane * 16;
    const unsigned to = shared_address(slot.tiles) + lane * 16;
#pragma unroll
    for (int i = 0; i < 16; i++) /* quarters of q's and k's halves */
        copy_async(to + i / 8 * STRIP_HALF + (1 - i / 4 % 2) * STRIP_Q + i % 4 * 512,
                   from + i / 8 * (CHUNK_TILE / 2) + i / 4 % 2 * CHUNK_TILE + i % 4 * 512);
    const int row = lane / 16, place = lane % 16;
    const char *v = o.mixed + (at.row + row) * o.mixed_row + (at.head * d.v_dim + place * 8) * 2;
    const unsigned values = shared_address(slot.values) + row * STRIP_V_ROW + place * 16;
#pragma unroll
    for (int r = 0; r < STRIP_ROWS / 2; r++, v += 2 * o.mixed_row)
        copy_or_clear(values + r * 2 * STRIP_V_ROW, v, place * 8 < d.v_dim);
}

/* Copies rows of q, k and v from the batch, and raw gates, by a warp; missing rows are 0. */
template <bool TILES>
DEVICE void fetch_strip(const linear_call &call, const strip_rows &at, const strip_slot &slot,
                        int lane)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int row = lane / 16, place = lane % 16;
    const int key_head = d.ratio == 1 ? at.head : at.head / d.ratio;
    const int rows = place * 8 < d.k_dim ? at.rows - row : 0;
    const int value_rows = place * 8 < d.v_dim ? at.rows - row : 0;
    const char *q = o.mixed + (at.first + row) * o.mixed_row +
                    (d.first[0] + key_head * d.k_dim + place * 8) * 2;
    const i64 to_k = (i64)(d.first[1] - d.first[0]) * 2;
    const i64 to_v = (i64)(d.first[2] + at.head * d.v_dim - d.first[0] - key_head * d.k_dim) * 2;
    const char *gates = strip_gates(call, at, row, place, 2);
    const bool vector = ((u64)gates | (u64)(2 * o.a_row)) % 16 == 0;
    const char *from = gates;
    const unsigned offset = row * 128 + ((place ^ row) & 7) * 16;
    const unsigned keys = shared_address(slot.tiles) + place / 8 * STRIP_HALF;
    const unsigned logs = shared_address(slot.tiles) + STRIP_ENDS + place / 8 * STRIP_TILE;
    const unsigned values = shared_address(slot.values) + row * STRIP_V_ROW + place * 16;
    if (TILES)
        fetch_tiles(call, at, slot, lane);
#pragma unroll
    for (int r = 0; r < STRIP_ROWS / 2; r++) {
        const unsigned to = (offset ^ r % 4 * 32) + r * 256;
        if (!TILES) {
            copy_or_clear(keys + STRIP_Q + to, q, 2 * r < rows);
            copy_or_clear(keys + to, q + to_k, 2 * r < rows);
            copy_or_clear(values + r * 2 * STRIP_V_ROW, q + to_v, 2 * r < value_rows);
        }
        if (d.raw && vector)
            copy_or_clear(logs + to, from, 2 * r < rows);
        q += 2 * o.mixed_row, from += 2 * o.a_row;
    }
    copy_commit();
    if (!d.raw || vector)
        return;
#pragma unroll 1
    for (int r = 0; r < STRIP_ROWS / 2; r++)
        *(uint4 *)(slot.tiles + STRIP_ENDS + place / 8 * STRIP_TILE + (offset ^ r % 4 * 32) +
                   r * 256) = 2 * r < rows ? load_apart((const u16 *)(gates + 2 * r * o.a_row))
                                           : make_uint4(0, 0, 0, 0);
}

DEVICE u32 add_pairs(u32 x, u32 y)
{
    u32 z;
    asm("add.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* Packs log decays of eight channels of a row, in units of log 2 / LOGS_UP. */
template <typename FIND> DEVICE uint4 pack_logs(const float (&x)[8], bool there, FIND find)
{
    const u32 least = there ? 0xf80ff80f : 0; /* e^-90, twice: the state vanishes */
    u32 packed[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        packed[i] =
            larger_or_nan(pack_half(find(x[2 * i], 2 * i), find(x[2 * i + 1], 2 * i + 1)), least);
    return make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

/* Factors of raw gates: log decays are `up` times a function of gates times `by` plus a bias of the
 * channel. */
struct raw_factors {
    float by, up;
};

DEVICE raw_factors find_raw_factors(const linear_call &call, float a_log)
{
    constexpr float in_log_2 = 1.4426950408889634f;
    const float a = expf(a_log), bound = call.dims.lower_bound * (in_log_2 * LOGS_UP);
    return bound != 0 ? raw_factors{a * -in_log_2, bound} : raw_factors{in_log_2, a * -LOGS_UP};
}

/* Log decays of eight channels from raw gates. */
template <typename WRITE>
DEVICE void find_raw_logs(const linear_call &call, const raw_factors &f, const float (&bias)[8],
                          WRITE write)
{
    const float by = f.by, up = f.up;
    if (call.dims.lower_bound != 0)
        write(
            [&](float x, int i) { return up * reciprocal_fast(1 + exp2_fast(x * by + bias[i])); });
    else
        write([&](float x, int i) { return softplus_fast(x * by + bias[i]) * up; });
}

/* Replaces the strip's raw gates by log decays. A lane has eight channels of every second row.
 * True: the decays of the whole strip have reciprocals. */
DEVICE bool find_strip_logs(const linear_call &call, const strip_rows &at, const strip_slot &slot,
                            int lane)
{
    constexpr float range = 100; /* in units of log 2 */
    constexpr float in_log_2 = 1.4426950408889634f;
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int row = lane / 16, place = lane % 16;
    const bool here = place * 8 < d.k_dim;
    const int rows = here ? at.rows : 0;
    char *const logs = slot.tiles + STRIP_ENDS + place / 8 * STRIP_TILE;
    const unsigned offset = tile_offset(row, place % 8);
    raw_factors f = {};
    float bias[8] = {};
    u32 sums[4] = {0, 0, 0, 0};
    if (d.raw) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (here)
                bias[i] = o.dt_bias[at.head * o.dt_bias_stride + place * 8 + i];
        f = find_raw_factors(call, o.a_log[at.head]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            bias[i] *= f.by;
    }
    const auto place_of = [&](int n) { return (uint4 *)(logs + (offset ^ n % 4 * 32) + n * 256); };
    const auto keep = [&](int n, const uint4 &made) {
        *place_of(n) = made;
        sums[0] = add_pairs(sums[0], made.x), sums[1] = add_pairs(sums[1], made.y);
        sums[2] = add_pairs(sums[2], made.z), sums[3] = add_pairs(sums[3], made.w);
    };
    /* Without a branch, and each row is loaded before the previous one is computed; otherwise each
     * load is waited for. */
    const auto find_raw_rows = [&](auto find) {
        uint4 next = *place_of(0);
#pragma unroll 1
        for (int n = 0; n < STRIP_ROWS / 2; n += 2)
#pragma unroll
            for (int i = n; i < n + 2; i++) {
                const uint4 from[1] = {next};
                float x[8];
                next = *place_of((i + 1) % (STRIP_ROWS / 2));
                unpack_gates(from, x);
                keep(i, pack_logs(x, row + 2 * i < rows, find));
            }
    };
    if (d.raw)
        find_raw_logs(call, f, bias, find_raw_rows);
#pragma unroll 1
    for (int n = 0; !d.raw && n < STRIP_ROWS / 2; n++) {
        const int r = row + 2 * n;
        uint4 from[2] = {};
        float x[8];
        const float *gates = (const float *)strip_gates(call, at, r, place, 4);
        if (r < rows)
            from[0] = load_apart(gates), from[1] = load_apart(gates + 4);
        unpack_gates(from, x);
        keep(n, pack_logs(x, r < rows, [](float x, int) { return x * (in_log_2 * LOGS_UP); }));
    }
    bool in_range = true;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 sum = add_pairs(sums[i], __shfl_xor_sync(~0u, sums[i], 16));
        in_range =
            in_range && half_low(sum) >= -range * LOGS_UP && half_high(sum) >= -range * LOGS_UP;
    }
    return __all_sync(~0u, in_range);
}

/* Lengths of 16 rows, and products of their own q and k, by a warp: diagonals of the products of
 * eight rows of q and of k with the same rows of k and of q. `q`, `k`: the first rows in tiles;
 * `half`: bytes to the second half of the channels. keep(row, own, q_times, k_times) gets the
 * factors that normalise rows. */
template <typename KEEP>
DEVICE void find_lengths(unsigned q, unsigned k, unsigned half, int lane, KEEP keep)
{
    const int second = lane / 8 % 2;
    const unsigned left = (second ? k : q) + tile_offset(lane % 8, lane / 16);
    const unsigned right = (lane < 16 ? k : q) + tile_offset(lane % 8, second);
    float with_k[2][4] = {}, with_q[2][4] = {};
#pragma unroll
    for (int step = 0; step < 8; step++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const unsigned from = w * 1024 + step / 4 * half;
            u32 x[4], y[4];
            load_matrices((left ^ step % 4 * 32) + from, x);
            load_matrices((right ^ step % 4 * 32) + from, y);
            multiply_bf16(with_k[w], x, y[0], y[1]);
            multiply_bf16(with_q[w], x, y[2], y[3]);
        }
    if (lane % 4 != lane / 8) /* lanes on the diagonals have one of two columns */
        return;
#pragma unroll
    for (int w = 0; w < 2; w++) {
        const bool odd = lane / 4 % 2;
        keep(8 * w + lane / 4, odd ? with_k[w][1] : with_k[w][0],
             rsqrtf((odd ? with_q[w][1] : with_q[w][0]) + 1e-6f),
             rsqrtf((odd ? with_k[w][3] : with_k[w][2]) + 1e-6f));
    }
}

/* Writes the factors that normalise rows of q and k, and each row's q times its own k, times the
 * outputs' scale. */
DEVICE void find_strip_lengths(const linear_call &call, const strip_slot &slot, int lane)
{
    const unsigned k = shared_address(slot.tiles);
    find_lengths(k + STRIP_Q, k, STRIP_HALF, lane,
                 [&](int r, float own, float q_times, float k_times) {
                     slot.numbers[STRIP_Q_TIMES + r] = q_times;
                     slot.numbers[STRIP_K_TIMES + r] = k_times;
                     slot.numbers[STRIP_OWN + r] = own * q_times * k_times * call.dims.sm_scale;
                 });
}

/* Writes the largest elements of a lane's four values; after a convolution rows are fp16, times
 * STRIP_V_TIMES each. */
template <bool TILES> DEVICE void find_largest(const strip_slot &slot, int lane)
{
    float x[4] = {};
    u32 most[2] = {0, 0};
    constexpr int at_once = TILES ? 4 : 16;
#pragma unroll at_once
    for (int r = 0; r < STRIP_ROWS; r++) {
        const uint2 v = *(const uint2 *)(slot.values + r * STRIP_V_ROW + lane * 8);
        if (TILES) {
            const float times = slot.numbers[STRIP_V_TIMES + r];
            x[0] = fmaxf(x[0], fabsf(half_low(v.x) * times));
            x[1] = fmaxf(x[1], fabsf(half_high(v.x) * times));
            x[2] = fmaxf(x[2], fabsf(half_low(v.y) * times));
            x[3] = fmaxf(x[3], fabsf(half_high(v.y) * times));
            continue;
        }
        most[0] = larger_magnitudes<false>(most[0], v.x);
        most[1] = larger_magnitudes<false>(most[1], v.y);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!TILES)
            x[i] = fabsf(bits_f32(i % 2 ? most[i / 2] & 0xffff0000 : most[i / 2] << 16));
        x[i] *= STRIP_ROWS;
    }
    *(float4 *)(slot.numbers + STRIP_LARGEST + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
}

/* ---- Decays and products ----------------------------------------------------------------- */

/* Sums log decays of 16 channels from the strip's first row on. `ones`: a triangle of ones on and
 * below the diagonal. */
DEVICE void sum_strip(unsigned logs, const u32 (&ones)[4], float (&to)[2][4])
{
    u32 x[4];
    load_matrices_turned(logs, x);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[h][e] = 0;
        multiply(to[h], ones, x[2 * h], x[2 * h + 1]);
    }
}

/* The value of the same channels in the lane with the strip's last row. */
DEVICE float2 of_last_row(float2 x, int lane)
{
    return make_float2(__shfl_sync(~0u, x.x, lane | 28), __shfl_sync(~0u, x.y, lane | 28));
}

/* A lane's part of 16 channels: replaces rows by decayed rows, and adds products within the strip,
 * whose operands stay in registers. */
template <bool TILES, bool IN_RANGE>
DEVICE void decay_strip(const strip_slot &slot, unsigned at, int step, const u32 (&ones)[4],
                        const float (&q_times)[2], const float (&k_times)[2], int lane,
                        block_products &products)
{
    const unsigned tiles = shared_address(slot.tiles), place = at ^ step % 4 * 32;
    const unsigned keys = tiles + step / 4 * STRIP_HALF + place;
    const unsigned logs = tiles + STRIP_ENDS + step / 4 * STRIP_TILE + place;
    u32 q_raw[4], k_raw[4], q_left[4], k_left[4], ends[4];
    float sums[2][4];
    sum_strip(logs, ones, sums);
    load_matrices(keys + STRIP_Q, q_raw);
    load_matrices(keys, k_raw);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        /* The decay of the whole strip. */
        const float2 low = make_float2(sums[h][2], sums[h][3]);
        const float2 whole = of_last_row(IN_RANGE ? exp2_pair(low.x, low.y) : low, lane);
        float x[4], y[4], right[2][2];
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const int i = 2 * h + w;
            const float2 sum = make_float2(sums[h][2 * w], sums[h][2 * w + 1]);
            const float2 down = exp2_pair(sum.x, sum.y);
            /* With reciprocals: from the row back to the strip's begin, and from there to its
             * end. */
            const float2 end =
                IN_RANGE ? exp2_pair(-sum.x, -sum.y) : exp2_pair(whole.x - sum.x, whole.y - sum.y);
            const u32 up = 0x5c005c00; /* CHANNELS_UP, twice */
            const float2 q =
                unpack_two<TILES>(TILES ? multiply_pairs(q_raw[i], up) : q_raw[i], q_times[w]);
            const float2 k =
                unpack_two<TILES>(TILES ? multiply_pairs(k_raw[i], up) : k_raw[i], k_times[w]);
            const float kx = k.x * end.x, ky = k.y * end.y;
            x[w] = q.x * down.x, x[2 + w] = q.y * down.y;
            y[w] = k.x * down.x, y[2 + w] = k.y * down.y;
            q_left[i] = pack_half(x[w], x[2 + w]);
            k_left[i] = pack_half(y[w], y[2 + w]);
            ends[i] = IN_RANGE ? pack_half(kx * whole.x, ky * whole.y) : pack_half(kx, ky);
            right[w][0] = kx, right[w][1] = ky;
            if (w == 1 && lane / 4 == 7)
                *(float2 *)(slot.numbers + STRIP_DECAY + lane % 4 * STRIP_DECAY_LANE + 4 * step +
                            2 * h) = down;
        }
#pragma unroll
        for (int w = 0; IN_RANGE && w < 2; w++) {
            multiply_tf32(products.q[w], x, right[w][0], right[w][1]);
            multiply_tf32(products.k[w], y, right[w][0], right[w][1]);
        }
    }
    store_matrices(keys + STRIP_Q, q_left);
    store_matrices(keys, k_left);
    store_matrices(logs, ends);
}

/* 16 rows of tiles and of their log decays, with the distances of halves of 64 channels; `to`: the
 * products within them, [2][16][16], of queries and of keys. */
struct pairwise_rows {
    const char *q, *k, *logs;
    int half, logs_half;
    const float *q_times, *k_times;
    float *to;
};

/* Products within a block whose decays have no reciprocals, by a warp, four channels per lane.
 * Reads what decay_strip() has not overwritten yet. */
template <bool TILES, class ROWS>
static __device__ __noinline__ void multiply_pairs_of_rows(char *memory, int number, int lane)
{
    const ROWS m(memory, number);
    const int place = lane / 2 % 8, side = lane / 16;
    for (int j = 0; j < 15; j++) {
        const int from = tile_offset(j, place) + lane % 2 * 8;
        const uint2 key = *(const uint2 *)(m.k + side * m.half + from);
        const float2 first = unpack_two<TILES>(key.x, m.k_times[j]);
        const float2 second = unpack_two<TILES>(key.y, m.k_times[j]);
        const float y[4] = {first.x, first.y, second.x, second.y};
        float sum[4] = {};
        for (int i = j + 1; i < 16; i++) {
            const int at = tile_offset(i, place) + lane % 2 * 8;
            const uint2 logs = *(const uint2 *)(m.logs + side * m.logs_half + at);
            const uint2 q = *(const uint2 *)(m.q + side * m.half + at);
            const uint2 k = *(const uint2 *)(m.k + side * m.half + at);
            float of_q = 0, of_k = 0;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const u32 log = e < 2 ? logs.x : logs.y;
                const float2 of = unpack_two<TILES>(e < 2 ? q.x : q.y, m.q_times[i]);
                const float2 with = unpack_two<TILES>(e < 2 ? k.x : k.y, m.k_times[i]);
                sum[e] += (e % 2 ? half_high(log) : half_low(log)) * (1 / LOGS_UP);
                const float decayed = y[e] * exp2_fast(sum[e]);
                of_q += (e % 2 ? of.y : of.x) * decayed;
                of_k += (e % 2 ? with.y : with.x) * decayed;
            }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                of_q += __shfl_xor_sync(~0u, of_q, step);
                of_k += __shfl_xor_sync(~0u, of_k, step);
            }
            if (lane > 0)
                continue;
            m.to[16 * i + j] = of_q;
            m.to[256 + 16 * i + j] = of_k;
        }
    }
    __syncwarp();
}

/* Loads products of queries or of keys in the layout of a warp's sums. */
DEVICE void take_products(const float *from, int lane, float (&sums)[2][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        sums[n / 4][n % 4] =
            from[(lane / 4 + n % 4 / 2 * 8) * 16 + n / 4 * 8 + lane % 4 * 2 + n % 2];
}

/* Products within a strip without reciprocals are stored in the place of T. */
struct strip_pairwise : pairwise_rows {
    __device__ __forceinline__ strip_pairwise(char *memory, int number)
    {
        const strip_slot slot = strip_memory(memory).slot(number);
        q = slot.tiles + STRIP_Q, k = slot.tiles, logs = slot.tiles + STRIP_ENDS;
        half = STRIP_HALF, logs_half = STRIP_TILE;
        q_times = slot.numbers + STRIP_Q_TIMES, k_times = slot.numbers + STRIP_K_TIMES;
        to = (float *)(slot.tiles + STRIP_SYSTEM);
    }
};

DEVICE void take_one_by_one(const strip_slot &slot, int lane, block_products &to)
{
    const float *from = (const float *)(slot.tiles + STRIP_SYSTEM);
    take_products(from, lane, to.q);
    take_products(from + 256, lane, to.k);
    __syncwarp(); /* before T and P are written there */
}

/* Writes T and P of a strip. `products` are multiplied by `times`; `beta`: of a lane's row. */
DEVICE void write_strip(const strip_slot &slot, float *square, float times, float beta, int lane,
                        block_products &products)
{
    const float of_column = __shfl_sync(~0u, beta, lane % 16) * CHUNK_INVERSE_ROOM;
    const float of_half = __shfl_sync(~0u, beta, lane % 8) * CHUNK_INVERSE_ROOM;
    char *const system = slot.tiles + STRIP_SYSTEM;
    const unsigned at = lane % 16 * 128 + ((lane / 16 ^ lane) & 7) * 16;
    u32 packed[4];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * n + lane % 4 * 2 + e % 2 >= lane / 4 + e / 2 * 8)
                products.q[n][e] = 0;
    pack_block(products.q, PRODUCTS_ROOM * times, PRODUCTS_ROOM * times, packed);
    store_matrices(shared_address(system) + (at ^ STRIP_PRODUCTS), packed);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float by = __shfl_sync(~0u, beta, lane / 4 + 8 * e) * times;
            *(float2 *)(square + (lane / 4 + 8 * e) * 16 + n * 8 + lane % 4 * 2) =
                make_float2(products.k[n][2 * e] * by, products.k[n][2 * e + 1] * by);
        }
    __syncwarp();
    invert_square(square, lane, [&](int i, int j, float x) {
        *(u16 *)(system + i * 128 + ((j / 8 ^ i) & 7) * 16 + j % 8 * 2) =
            (u16)pack_half(x * (j == lane % 16 ? of_column : of_half), 0);
    });
}

/* ---- Preparation of strips --------------------------------------------------------------- */

/* Loads the input of beta of row `r` of `rows`. `first`: of the batch. */
DEVICE u32 load_beta(const linear_call &call, i64 first, int r, int rows, int head)
{
    const linear_operands &o = call.operands;
    if (r >= rows || !o.b)
        return 0;
    return linear_load_bits(call.dims.raw ? call.dims.dtype : ELEMENT_F32,
                            o.b + (first + r) * o.b_row, head);
}

/* `b`: from load_beta(), for row `r` of `rows`. Without a divergent branch. */
DEVICE float find_beta(const linear_call &call, u32 b, int r, int rows)
{
    float beta = 1;
    if (call.operands.b && call.dims.raw) {
        const float x = bits_f32(b << 16), y = exp2_fast(-fabsf(x) * 1.4426950408889634f);
        beta = reciprocal_fast(1 + y) * (x < 0 ? y : 1);
    } else if (call.operands.b) {
        beta = bits_f32(b);
    }
    return r < rows ? beta : 0;
}

/* Loads the convolution's number for a lane: a row's q times its own k; in the other half of lanes,
 * the factor of its v. */
DEVICE float load_number(const linear_call &call, const strip_rows &at, int lane)
{
    const linear_dims &d = call.dims;
    const float x = row_numbers(call, at.row / CHUNK_ROWS,
                                lane < STRIP_ROWS
                                    ? at.head / d.ratio
                                    : d.k_heads + at.head)[at.row % CHUNK_ROWS + lane % STRIP_ROWS];
    return lane < STRIP_ROWS ? x * d.sm_scale : x;
}

/* Prepares the warp's strips: one of every second chunk. */
template <bool TILES>
DEVICE void make_strips(const linear_call &call, const strip_memory &m, strip_turn turn, int warp,
                        int lane)
{
    const linear_chunk *list = call.chunks.list;
    const int row = lane / 4, column = lane % 4 * 2;
    const u32 one = 0x1c00; /* 1 / LOGS_UP */
    const u32 corner = (column <= row ? one : 0) | (column + 1 <= row ? one << 16 : 0);
    const u32 ones[4] = {corner, one | one << 16, 0, corner};
    const unsigned place = lane % 16 * 128 + ((lane / 16 ^ lane) & 7) * 16;
    float *const square = m.squares + warp * (STRIP_ROWS * STRIP_ROWS);
    strip_ring ring = {warp, 0};
    if (!turn.skip(call, warp / 4))
        return;
    strip_rows at(turn, list[turn.index()].first, list[turn.index()].rows, warp % 4);
    fetch_strip<TILES>(call, at, m.slot(ring.slot), lane);
    u32 b = load_beta(call, at.first, lane, at.rows, at.head);
    float number = TILES ? load_number(call, at, lane) : 0;
#pragma unroll 1
    for (bool more = true; more;) {
        const strip_slot slot = m.slot(ring.slot);
        const unsigned made = m.made(ring.slot);
        more = turn.skip(call, 2);
        /* One field of the next chunk in each lane, loaded well before its use. */
        const int next = ((const int *)(list + (more ? turn.index() : 0)))[lane % 4];
        copy_wait<0>();
        const bool in_range = find_strip_logs(call, at, slot, lane);
        __syncwarp();
        if (TILES)
            slot.numbers[(lane < STRIP_ROWS ? STRIP_OWN : STRIP_V_TIMES) + lane % STRIP_ROWS] =
                number;
        else
            find_strip_lengths(call, slot, lane);
        __syncwarp();
        find_largest<TILES>(slot, lane);
        __syncwarp();
        float q_times[2] = {}, k_times[2] = {};
#pragma unroll
        for (int w = 0; !TILES && w < 2; w++) {
            q_times[w] = slot.numbers[STRIP_Q_TIMES + row + 8 * w] * CHANNELS_UP;
            k_times[w] = slot.numbers[STRIP_K_TIMES + row + 8 * w] * CHANNELS_UP;
        }
        if (!in_range)
            multiply_pairs_of_rows<TILES, strip_pairwise>(m.tiles, ring.slot, lane);
        block_products products = {};
        if (in_range)
#pragma unroll 1
            for (int step = 0; step < 8; step++)
                decay_strip<TILES, true>(slot, place, step, ones, q_times, k_times, lane, products);
        else
#pragma unroll 1
            for (int step = 0; step < 8; step++)
                decay_strip<TILES, false>(slot, place, step, ones, q_times, k_times, lane,
                                          products);
        const float beta = find_beta(call, b, lane, at.rows);
        if (more) {
            at = strip_rows(turn, __shfl_sync(~0u, next, 1), __shfl_sync(~0u, next, 2), warp % 4);
            ring.advance(STRIP_WARPS);
            barrier_wait(m.passed(ring.slot), ring.round ^ 1);
            fetch_strip<TILES>(call, at, m.slot(ring.slot), lane);
            b = load_beta(call, at.first, lane, at.rows, at.head);
            number = TILES ? load_number(call, at, lane) : 0;
        }
        if (!in_range)
            take_one_by_one(slot, lane, products);
        write_strip(slot, square, in_range ? TRUNCATED / (CHANNELS_UP * CHANNELS_UP) : 1, beta,
                    lane, products);
        fence_async_shared();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(made);
    }
}

/* ---- States and outputs ------------------------------------------------------------------ */

/* The largest elements of a state's rows. */
DEVICE void largest_of_state(const state_tile &s, float (&largest)[2])
{
    largest[0] = largest[1] = 0;
#pragma unroll
    for (int n = 0; n < 64; n++)
        largest[n % 4 / 2] = fmaxf(largest[n % 4 / 2], fabsf(s[n]));
    largest[0] = largest_of_row(largest[0]), largest[1] = largest_of_row(largest[1]);
}

/* A power of two for each row, in units of which its state is kept, and a bound of the state's
 * length in these units: a step of the rule adds at most the row's v to it. fp16 holds states,
 * right sides and updates for bounds up to STRIP_MOST. Units change rarely, and before any
 * product. */
#define STRIP_MOST  112.0f
#define STRIP_LEAST 2.0f

struct strip_units {
    float unit[2], bound[2];
};

/* Called before 16 rows of v whose magnitudes sum to at most `largest`. */
DEVICE void fit_units(const float (&largest)[2], state_tile &s, strip_units &u)
{
    bool fits = true;
    float times[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float need = u.bound[i] + largest[i] * bits_f32(0x7f000000 - f32_bits(u.unit[i]));
        fits = fits && need >= STRIP_LEAST && need <= STRIP_MOST;
        u.bound[i] = need;
    }
    if (__all_sync(~0u, fits))
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float power;
        const float scale = find_scale(fmaxf(u.bound[i] * u.unit[i], 1e-30f), &power);
        times[i] = u.unit[i] * scale * 16;
        u.bound[i] *= times[i];
        u.unit[i] = power / 16;
    }
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] *= times[n % 4 / 2];
}

/* The state times k and q of a strip (scaled by CHANNELS_UP): of keys, then of queries. */
DEVICE void multiply_strip(const left_operand<16> &held, unsigned tiles, float (&x)[16])
{
    const unsigned long long b = matrix_descriptor(tiles, 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; step++)
        wgmma_rs<32, true, 0>(x, held.at[step],
                              descriptor_advance(b, step / 4 * STRIP_HALF + step % 4 * 32),
                              step > 0);
    wgmma_commit();
}

DEVICE u32 multiply_bf16_pairs(u32 x, u32 y)
{
    u32 z;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* Outputs of a strip for the warp's 16 values, in the place of its v. */
struct strip_outputs {
    int slot;
    char *to; /* the first row */
    int rows;
};

/* Stores them. Without a branch, as the state's product is in flight. */
DEVICE void write_outputs(const linear_call &call, const strip_memory &m, const strip_outputs &x,
                          int warp, int lane)
{
    const unsigned turn =
        shared_address(m.values) + x.slot * (STRIP_ROWS * STRIP_V_ROW) + warp * (CHUNK_PANEL * 2);
    asm volatile("{\n.reg .pred p;\n.reg .b32 a, b, c, d;\n"
                 "setp.lt.s32 p, %0, %1;\n"
                 "@p ld.shared.v4.b32 {a, b, c, d}, [%2];\n"
                 "@p st.global.v4.b32 [%3], {a, b, c, d};\n}" ::"r"(lane / 2),
                 "r"(x.rows), "r"(turn + lane / 2 * STRIP_V_ROW + lane % 2 * 16),
                 "l"(x.to + lane / 2 * call.operands.out_row + lane % 2 * 16)
                 : "memory");
}

/* The state after a strip, and its outputs. */
template <bool TILES>
DEVICE void pass_strip(const linear_call &call, const strip_memory &m, const strip_slot &slot,
                       int warp, int lane, const whole_place &place, const strip_outputs &outputs,
                       state_tile &s, strip_units &u)
{
#if HAS_HOPPER
    const unsigned tiles = __shfl_sync(~0u, shared_address(slot.tiles), 0);
    char *const values = slot.values + warp * (CHUNK_PANEL * 2);
    const float one[2] = {1, 1};
    left_operand<16> held;
    u32 v[4], side[4], kept[4], added[4];
    float x[16], update[8];
    float2 own[2], times[2];
    const float *numbers = slot.numbers + STRIP_LARGEST + warp * CHUNK_PANEL + lane / 4;
    const float largest[2] = {numbers[0], numbers[8]};
    const unsigned from =
        shared_address(values) + (lane % 8 + lane / 16 * 8) * STRIP_V_ROW + lane / 8 % 2 * 16;
    if (!TILES)
        load_matrices_turned(from, v);
    fit_units(largest, s, u);
    pack_left<0, 16, 16>(s, one, held);
    multiply_strip(held, tiles, x);

#pragma unroll
    for (int i = 0; i < 64; i += 8) {
        const float4 by =
            *(const float4 *)(slot.numbers + STRIP_DECAY + lane % 4 * STRIP_DECAY_LANE + i / 2);
        s[i] *= by.x, s[i + 1] *= by.y, s[i + 2] *= by.x, s[i + 3] *= by.y;
        s[i + 4] *= by.z, s[i + 5] *= by.w, s[i + 6] *= by.z, s[i + 7] *= by.w;
    }
    if (TILES) {
        load_matrices_turned(from, v);
        load_pairs(slot.numbers + STRIP_V_TIMES + lane % 4 * 2, times);
    }
    const u32 down[2] = {0x7f000000 - f32_bits(u.unit[0]), 0x7f000000 - f32_bits(u.unit[1])};
#pragma unroll
    for (int i = 0; !TILES && i < 4; i++)
        v[i] = multiply_bf16_pairs(v[i], down[i % 2] | down[i % 2] >> 16);
    wgmma_arrived(s);
    wgmma_wait<0>();
    wgmma_arrived(x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float by = bits_f32(down[i % 2]);
        const float first = TILES ? half_low(v[i]) * (times[i / 2].x * by) : bits_f32(v[i] << 16);
        const float second =
            TILES ? half_high(v[i]) * (times[i / 2].y * by) : bits_f32(v[i] & 0xffff0000);
        x[2 * i] = first - x[2 * i] * (1 / CHANNELS_UP);
        x[2 * i + 1] = second - x[2 * i + 1] * (1 / CHANNELS_UP);
        side[i] = pack_half(x[2 * i], x[2 * i + 1]);
    }
    const unsigned long long system = matrix_descriptor(tiles + STRIP_SYSTEM, 16, 1024);
    wgmma_fence();
    wgmma_rs<16, true, 0>(update, side, system, 0);
    wgmma_commit();
    float(&o)[8] = *(float(*)[8])(x + 8);
#pragma unroll
    for (int i = 0; i < 8; i++)
        o[i] *= CHUNK_INVERSE_ROOM * PRODUCTS_ROOM / CHANNELS_UP;
    wgmma_wait<0>();
    wgmma_arrived(update);
    const u32 lower = 0x02000200; /* 1 / (CHUNK_INVERSE_ROOM * CHANNELS_UP), twice */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        kept[i] = pack_half(update[2 * i], update[2 * i + 1]);
        added[i] = multiply_pairs(kept[i], lower);
    }
    wgmma_fence();
    wgmma_rs<16, true, 0>(o, kept, descriptor_advance(system, STRIP_PRODUCTS), 1);
    wgmma_commit();
    wgmma_rs<128, true, 1>(s, added, matrix_descriptor(tiles + STRIP_ENDS, STRIP_TILE, 1024), 1);
    wgmma_commit();
    load_pairs(slot.numbers + STRIP_OWN + lane % 4 * 2, own);
    const float scale = call.dims.sm_scale;
#pragma unroll
    for (int i = 0; i < 8; i++)
        update[i] *=
            u.unit[i / 2 % 2] * (1 / CHUNK_INVERSE_ROOM) * (i % 2 ? own[i / 4].y : own[i / 4].x);
    wgmma_wait<1>();
    wgmma_arrived(o);
#pragma unroll
    for (int i = 0; i < 8; i++)
        o[i] =
            o[i] * (u.unit[i / 2 % 2] * (scale / (CHUNK_INVERSE_ROOM * PRODUCTS_ROOM))) + update[i];
    if (call.operands.z)
        gate_whole(call, place, lane, o);
    u32 packed[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        packed[i] = pack_two(ELEMENT_BF16, o[2 * i], o[2 * i + 1]);
    store_matrices_turned(shared_address(values) + (lane % 8 + lane / 16 * 8) * STRIP_V_ROW +
                              lane / 8 % 2 * 16,
                          packed);
    __syncwarp();
    write_outputs(call, m, outputs, warp, lane);
    wgmma_wait<0>();
    wgmma_arrived(s);
    __syncwarp();
    if (lane == 0)
        barrier_arrive(m.passed(outputs.slot));
#else
    __trap();
#endif
}

/* Processes a part, by a warp for its values. */
template <bool TILES>
DEVICE void pass_head(const linear_call &call, const states_work &work, const strip_memory &m,
                      strip_ring &ring, int warp, int lane)
{
    const linear_operands &o = call.operands;
    const bool here = warp < call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, warp * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    state_tile s = {};
    strip_units u = {{1, 1}, {0, 0}};
    if (here)
        load_first_state(call, work, warp, lane, s);
    linear_chunk next = call.chunks.list[work.from];
#pragma unroll 1
    for (int i = work.from; i < work.to; i++) {
        const linear_chunk chunk = next;
        const int snapshot = __shfl_sync(~0u, chunk.snapshot, 0);
        if (i + 1 < work.to) /* here, where nothing waits for it */
            next = call.chunks.list[i + 1];
        const i64 row = work.sequence.first_row + chunk.first;
        whole_place place = {
            o.out + row * o.out_row + work.head * o.out_head + warp * (CHUNK_PANEL * 2),
            here ? chunk.rows : 0, o.z + row * o.z_row + work.head * o.z_head + at.value * 2};
        largest_of_state(s, u.bound);
        u.bound[0] *= 16, u.bound[1] *= 16; /* more than sqrt(128) */
#pragma unroll 1
        for (int strip = 0; strip < CHUNK_ROWS / STRIP_ROWS; strip++) {
            barrier_wait(m.made(ring.slot), ring.round);
            wgmma_wait<0>(); /* no effect, but tells ptxas that no product is in flight */
            const strip_outputs outputs = {ring.slot, place.to, place.rows};
            pass_strip<TILES>(call, m, m.slot(ring.slot), warp, lane, place, outputs, s, u);
            ring.advance(1);
            place.to += STRIP_ROWS * o.out_row, place.z += STRIP_ROWS * o.z_row;
            place.rows -= STRIP_ROWS;
        }
        if (here && snapshot) {
            restore_state(s, u.unit);
            pass_state<true>(call, snapshot, at, s);
        }
    }
    restore_state(s, u.unit);
    states_work last = work;
    if (!TILES && call.chunks.count[0]) /* other kernels continue */
        last.end++, last.first = call.chunks.window;
    if (here)
        store_last_state(call, last, warp, lane, s);
}

/* ---- A block ----------------------------------------------------------------------------- */

template <bool TILES> DEVICE void strips_block(const linear_call &call, char *memory)
{
    const int lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32 % STRIP_WARPS, 0);
    const int passes = __shfl_sync(~0u, threadIdx.x / (32 * STRIP_WARPS), 0);
    const strip_memory m(memory);
    strip_turn turn;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STRIP_SLOTS; i++)
            barrier_init(m.made(i), 1), barrier_init(m.passed(i), STRIP_WARPS);
        fence_barrier_init();
    }
    __syncthreads();
    pdl_wait(); /* for the list */
    pdl_launch_dependents();
    turn.part = blockIdx.x, turn.n = 0, turn.work.passed = 0;
    if (!call.chunks.count[1] || !find_head(call, turn.part, turn.work))
        return;
    if (passes == 0) {
        setmaxnreg_dec<STRIP_READY_REGISTERS(TILES)>();
        make_strips<TILES>(call, m, turn, warp, lane);
    } else {
        strip_ring ring = {0, 0};
        setmaxnreg_inc<STRIP_STATE_REGISTERS(TILES)>();
        do
            pass_head<TILES>(call, turn.work, m, ring, warp, lane);
        while (find_next_head(call, turn.part, turn.work));
    }
}

#endif /* LINEAR_LIKE_CHANNELS_STRIPS_CUH */
