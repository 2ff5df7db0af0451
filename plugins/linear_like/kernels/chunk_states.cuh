/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_states.cuh: the states of sequences from chunk to chunk, and all outputs, from what
 * chunk_ready.cuh has made of each chunk.
 *
 * A block has 64 values of a head and all of k, a warp 16 of them: the transposed state, 64 x 128,
 * is the sums of a warpgroup's product from the first chunk to the last. Sums of one product have
 * the shape of the next one's left operand:
 *
 *   U' = u - w S;  O = q S + P U';  S = decay S + k' U'
 *
 * all transposed: S' w', S' q', U'' P', U'' k. The first warpgroup passes the state on; the second
 * makes outputs of the state and of U', which it is handed as they are in the first one's
 * registers; where rows have one decay (GDN with a norm) as tiles, and its products are not transposed.
 *
 * A chunk makes S M + N of a state S. Where few sequences and heads would leave multiprocessors
 * idle, a sequence is cut into segments of chunks: linear_segments_* finds N and M of each but the
 * last, N as a state from 0 on, M as the state of the unit matrix with u = 0; then all segments go
 * at once, each from S <- S M + N through those before it. A plain rule's M is a decay.
 */
#ifndef LINEAR_LIKE_CHUNK_STATES_CUH
#define LINEAR_LIKE_CHUNK_STATES_CUH

#include "plugins/linear_like/kernels/chunk_tile.cuh"

/* Numbers of a chunk's rows and of its keys, in a tile's CHUNK_NUMBERS: products are multiplied by
 * them. */
enum {
    NUMBERS_Q = 0,
    NUMBERS_W = 64,
    NUMBERS_U = 128,
    NUMBERS_P = 192,
    NUMBERS_K = 256, /* and what is left of a row's update at the end of the chunk */
    NUMBERS_V = 320, /* u as the layer's v; of a delta rule there is none */
    NUMBERS_DECAY = 384,
    NUMBERS_MOST = 448 /* of a rule with one decay: the largest of NUMBERS_U */
};

/* A row's q times its k, which are no part of the products; without w, times beta. */
#define NUMBERS_OWN(delta) ((delta) ? NUMBERS_V : NUMBERS_W)

typedef float state_tile[64]; /* of k by eights: v r at k 2 q, 2 q + 1; v r + 8 at the same */

/* ---- States in a pool ------------------------------------------------------------------------ */

struct state_place {
    int head, value, key; /* of the first element: value + 8 for the second pair */
};

/* Elements of which the first is at `pool`; the lane has `keys` of k from there on. All loads wait for
 * memory together. */
template <bool STORE, bool BF16>
DEVICE void pass_elements(char *pool, i64 key, i64 value, int keys, state_tile &s)
{
#pragma unroll
    for (int n = 0; n < 64; n++) {
        const int k = n / 4 * 8 + n % 2;
        char *at = pool + k * key + (n % 4 / 2 * 8) * value;
        if (k >= keys)
            continue;
        if constexpr (STORE && BF16)
            *(u16 *)at = element_to_bf16(s[n]);
        else if constexpr (STORE)
            *(float *)at = s[n];
        else if constexpr (BF16)
            s[n] = element_from_bf16(*(const u16 *)at);
        else
            s[n] = *(const float *)at;
    }
}

template <bool STORE>
DEVICE void pass_state(const linear_call &call, int slot, const state_place &at, state_tile &s)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const bool bf16 = d.state_dtype == ELEMENT_BF16;
    const i64 size = bf16 ? 2 : 4;
    const i64 key = d.vk ? size : o.state_row, value = d.vk ? o.state_row : size;
    char *pool =
        o.state + slot * o.state_slot + at.head * o.state_head + at.key * key + at.value * value;
    if (bf16)
        pass_elements<STORE, true>(pool, key, value, d.k_dim - at.key, s);
    else
        pass_elements<STORE, false>(pool, key, value, d.k_dim - at.key, s);
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* Rows of sums times a power of two each: a left operand, and what its products are to be
 * multiplied by. COUNT: sums by eights. */
template <int COUNT> struct left_operand {
    u32 at[COUNT / 2][4];
    float times[2];
};

template <int COUNT>
DEVICE void scale_left(const float (&x)[4 * COUNT], left_operand<COUNT> &to, float (&scale)[2])
{
    float largest[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 4 * COUNT; n += 4) {
        largest[0] = fmaxf(largest[0], fmaxf(fabsf(x[n]), fabsf(x[n + 1])));
        largest[1] = fmaxf(largest[1], fmaxf(fabsf(x[n + 2]), fabsf(x[n + 3])));
    }
    scale[0] = find_scale(largest_of_row(largest[0]), &to.times[0]);
    scale[1] = find_scale(largest_of_row(largest[1]), &to.times[1]);
}

/* Eights [FROM, END) of it. */
template <int FROM, int END, int COUNT>
DEVICE void pack_left(const float (&x)[4 * COUNT], const float (&scale)[2], left_operand<COUNT> &to)
{
#pragma unroll
    for (int n = FROM; n < END; n++) {
        to.at[n / 2][n % 2 * 2] = pack_half(x[4 * n] * scale[0], x[4 * n + 1] * scale[0]);
        to.at[n / 2][n % 2 * 2 + 1] = pack_half(x[4 * n + 2] * scale[1], x[4 * n + 3] * scale[1]);
    }
}

template <int COUNT>
DEVICE void make_left(const float (&x)[4 * COUNT], left_operand<COUNT> &to, float (&scale)[2])
{
    scale_left<COUNT>(x, to, scale);
    pack_left<0, COUNT, COUNT>(x, scale, to);
}

/* What is left of x when it has been rounded to `a`. */
template <int COUNT>
DEVICE void make_rest(const float (&x)[4 * COUNT], const left_operand<COUNT> &a,
                      const float (&scale)[2], u32 (&rest)[COUNT / 2][4])
{
#pragma unroll
    for (int n = 0; n < COUNT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            rest[n / 2][n % 2 * 2 + i] =
                pack_rest(x[4 * n + 2 * i] * scale[i], x[4 * n + 2 * i + 1] * scale[i],
                          a.at[n / 2][n % 2 * 2 + i]);
}

/* ---- Products -------------------------------------------------------------------------------- */

/* sums[64 x 64] (+)= a[64 x 64] * (rows of a tile's half)', by a warpgroup; wait_product() before
 * they are used. */
DEVICE void multiply_rows(float (&sums)[32], const u32 *a, unsigned tile, bool add)
{
#if HAS_HOPPER
    const unsigned long long b = matrix_descriptor(tile, 16, 1024);
    products_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        product_register<64, true, 0>(sums, *(const u32(*)[4])(a + 4 * step),
                                      descriptor_advance(b, step * 32), add || step > 0);
    products_commit();
#else
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < 32; n++)
        sums[n] = add ? sums[n] : 0;
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 b[4];
            const u32(&left)[4] = *(const u32(*)[4])(a + 4 * step);
            load_matrices(tile + tile_offset(row, 2 * step + half) + pair * 2048, b);
            multiply(*(float(*)[4]) & sums[8 * pair], left, b[0], b[1]);
            multiply(*(float(*)[4]) & sums[8 * pair + 4], left, b[2], b[3]);
        }
#endif
}

/* sums[64 x 64] (+)= a[64 x 64] * (a panel of a tile). */
DEVICE void multiply_panel(float (&sums)[32], const u32 (&a)[4][4], unsigned panel, bool add)
{
#if HAS_HOPPER
    const unsigned long long b = matrix_descriptor(panel, CHUNK_TILE / 2, 1024);
    products_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        product_register<64, true, 1>(sums, a[step], descriptor_advance(b, step * 2048),
                                      add || step > 0);
    products_commit();
#else
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 32; n++)
        sums[n] = add ? sums[n] : 0;
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 b[4];
            load_matrices_turned(panel + tile_offset(lane % 16, 2 * pair + lane / 16) + step * 2048,
                                 b);
            multiply(*(float(*)[4]) & sums[8 * pair], a[step], b[0], b[1]);
            multiply(*(float(*)[4]) & sums[8 * pair + 4], a[step], b[2], b[3]);
        }
#endif
}

/* sums[64 x 64] = a b', of two tiles of rows of 16 * STEPS halves; wait_product() before they are
 * used. */
template <bool HALF, int STEPS>
DEVICE void multiply_shared(float (&sums)[32], unsigned a, unsigned b)
{
#if HAS_HOPPER
    const unsigned long long left = matrix_descriptor(a, 16, 1024);
    const unsigned long long right = matrix_descriptor(b, 16, 1024);
    products_fence();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const unsigned at = step / 4 * (CHUNK_TILE / 2) + step % 4 * 32;
        product_shared<64, HALF, 0>(sums, descriptor_advance(left, at),
                                    descriptor_advance(right, at), step > 0);
    }
    products_commit();
#else
    __trap();
#endif
}

/* Until at most PENDING of the products that were begun are under way. */
template <int PENDING> DEVICE void wait_product(float (&sums)[32])
{
    products_wait<PENDING>();
    products_arrived(sums);
}

/* ---- What the warpgroups hand on ------------------------------------------------------------- */

/* A left operand, each thread's as it is in its registers. */
template <int COUNT> DEVICE void hand_on(char *to, const left_operand<COUNT> &x)
{
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        ((uint4 *)to)[i * 128 + thread] =
            make_uint4(x.at[i][0], x.at[i][1], x.at[i][2], x.at[i][3]);
    ((float2 *)((uint4 *)to + COUNT / 2 * 128))[thread] = make_float2(x.times[0], x.times[1]);
}

template <int COUNT> DEVICE void take_over(const char *from, left_operand<COUNT> &x)
{
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        const uint4 y = ((const uint4 *)from)[i * 128 + thread];
        x.at[i][0] = y.x, x.at[i][1] = y.y, x.at[i][2] = y.z, x.at[i][3] = y.w;
    }
    const float2 y = ((const float2 *)((const uint4 *)from + COUNT / 2 * 128))[thread];
    x.times[0] = y.x, x.times[1] = y.y;
}

/* Named barriers: what is handed on is there; it has been taken over. */
enum { HANDED_STATE = 1, HANDED_UPDATES = 2, HANDED_TAKEN = 3 };

/* The same of rules with one decay, whose chunks take turns with two places: one more for odd chunks. */
enum { TURN_STATE = 1, TURN_UPDATES = 3, TURN_TAKEN = 5 };

/* ---- Shared memory --------------------------------------------------------------------------- */

/* Each warpgroup has a ring of stages of its own, and what it needs of a chunk in each: w, k, the
 * numbers, u for the state; q, the numbers, products and, where there is no w, u for the outputs.
 */
enum { STATE_STAGES = CHUNK_STATE_STAGES, OUTPUT_STAGES = CHUNK_OUTPUT_STAGES };

/* Rings: the states' warpgroup's, the outputs', and what the first needs last. */
enum { RING_STATE = 0, RING_OUTPUTS = 1, RING_UPDATES = 2 };

template <int RULE> struct states_memory {
    static constexpr int k = RULE == CHUNK_SOLVED ? CHUNK_TILE : 0;
    static constexpr int w = RULE == CHUNK_SOLVED ? 0 : k; /* what a state is multiplied by */
    static constexpr int inverse = k + CHUNK_TILE;
    static constexpr int state_numbers = inverse + (RULE >= CHUNK_INVERSE ? CHUNK_PRODUCTS : 0);
    static constexpr int state_u = state_numbers + CHUNK_NUMBERS; /* or rows of v */
    static constexpr int q = 0, output_numbers = CHUNK_TILE;
    static constexpr int products = output_numbers + CHUNK_NUMBERS;
    static constexpr int output_u = products + CHUNK_PRODUCTS;
    static constexpr int update_stages = CHUNK_UPDATE_STAGES(RULE);
    static constexpr int all_stages = STATE_STAGES + OUTPUT_STAGES + update_stages;

    static constexpr int outputs = STATE_STAGES * CHUNK_STATE_STAGE(RULE);
    static constexpr int later = outputs + OUTPUT_STAGES * CHUNK_OUTPUT_STAGE(RULE);

    char *stages, *state, *updates;
    float *turn; /* the warp's */
    unsigned barriers;

    __device__ __forceinline__ states_memory(char *from, int warp)
    {
        stages = from;
        state = stages + later + update_stages * CHUNK_TILE;
        updates = state + (CHUNK_ONE_DECAY(RULE) ? 2 * CHUNK_TILE : 9 * 2048);
        turn = (float *)(state + CHUNK_HANDED(RULE) - CHUNK_STATE_WARPS * 2048) + warp * 512;
        barriers = shared_address(state + CHUNK_HANDED(RULE));
    }

    /* What rows of a chunk's state and, after those, of its updates are to be multiplied by. */
    __device__ __forceinline__ float *scales(int place) const
    {
        return (float *)(updates + 2 * CHUNK_PRODUCTS) + place * 128;
    }

    __device__ __forceinline__ static int count(int ring)
    {
        return ring == RING_STATE     ? STATE_STAGES
               : ring == RING_OUTPUTS ? OUTPUT_STAGES
                                      : int_max(1, update_stages);
    }

    __device__ __forceinline__ char *stage(int ring, int n) const
    {
        const int i = n % count(ring);
        return stages + (ring == RING_STATE     ? i * CHUNK_STATE_STAGE(RULE)
                         : ring == RING_OUTPUTS ? outputs + i * CHUNK_OUTPUT_STAGE(RULE)
                                                : later + i * CHUNK_TILE);
    }

    __device__ __forceinline__ unsigned barrier(int ring, int n) const
    {
        const int first = ring == RING_STATE     ? 0
                          : ring == RING_OUTPUTS ? STATE_STAGES
                                                 : STATE_STAGES + OUTPUT_STAGES;
        return barriers + 8 * (first + n % count(ring));
    }

    __device__ __forceinline__ void wait(int ring, int n) const
    {
        barrier_wait(barrier(ring, n), n / count(ring) & 1);
    }

    /* A warp is done with a stage. Readers may be a stage apart, so a named barrier will not do. */
    __device__ __forceinline__ void free(int ring, int n) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(barrier(ring, n) + 8 * all_stages);
    }

    /* All of them are, with what was there before. */
    __device__ __forceinline__ void wait_free(int ring, int n) const
    {
        const int round = n / count(ring);
        if (round > 0)
            barrier_wait(barrier(ring, n) + 8 * all_stages, (round - 1) & 1);
    }
};

/* ---- Copies ---------------------------------------------------------------------------------- */

/* By the copy engine, or by all lanes of the warp. */
DEVICE void copy_bytes(char *to, const char *from, int bytes, unsigned barrier)
{
#if HAS_HOPPER
    bulk_load(shared_address(to), from, bytes, barrier);
#else
    (void)barrier;
    for (int i = threadIdx.x % 32 * 16; i < bytes; i += 32 * 16)
        copy_async(shared_address(to) + i, from + i);
#endif
}

/* A block's part of a launch: chunks [from, to) of the list, those of a sequence being [begin,
 * end); segment `number` of `count`. */
struct states_work {
    linear_sequence sequence;
    int first, begin, end, from, to;
    int index, number, count;
    int head, panel; /* the first of the block's */
    int lead;        /* stages of the state's ring that come before the chunks' */
};

/* The first row of operands.mixed that is the chunk's; `index`: of the window. */
DEVICE int find_row(const linear_call &call, const linear_sequence &sequence,
                    const linear_chunk &chunk, int index)
{
    return call.chunks.rows ? index * CHUNK_ROWS : sequence.first_row + chunk.first;
}

/* The result of a segment for the block's head; `index`: of the window's segments. */
DEVICE char *find_result(const linear_call &call, int index, int head)
{
    const i64 size = CHUNK_RESULT_BYTES(call.dims.v_dim / CHUNK_PANEL);
    return call.chunks.results + ((i64)index * call.dims.v_heads + head) * size;
}

/* The part of a lane of a warp's panel. */
DEVICE float *result_state(const linear_call &call, const states_work &work, int index, int panel,
                           int lane)
{
    return (float *)find_result(call, index, work.head) + panel * CHUNK_CARRY + lane * 4;
}

DEVICE char *result_matrix(const linear_call &call, const states_work &work, int index)
{
    return find_result(call, index, work.head) + CHUNK_RESULT_STATE(call.dims.v_dim / CHUNK_PANEL);
}

/* What the states' warpgroup needs of a chunk, but for rows of v. */
template <int RULE>
DEVICE void copy_for_state(const linear_call &call, const states_work &work, const char *keys,
                           const char *values, char *to, unsigned barrier)
{
    typedef states_memory<RULE> at;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const char *u = values + CHUNK_VALUES_BYTES(0, RULE) + work.panel * CHUNK_PANEL_BYTES;
    const int here =
        RULE >= CHUNK_INVERSE ? 0 : int_max(0, int_min(CHUNK_STATE_WARPS, panels - work.panel));
    if (HAS_HOPPER && threadIdx.x % 32 != 0)
        return;
#if HAS_HOPPER
    barrier_arrive_expect(barrier, at::state_u - at::w + here * CHUNK_PANEL_BYTES);
#endif
    if (RULE == CHUNK_SOLVED)
        copy_bytes(to + at::w, values + CHUNK_NUMBERS + CHUNK_PRODUCTS, CHUNK_TILE, barrier);
    copy_bytes(to + at::k, keys + CHUNK_TILE, CHUNK_TILE, barrier);
    if (RULE >= CHUNK_INVERSE)
        copy_bytes(to + at::inverse, values + CHUNK_NUMBERS + CHUNK_PRODUCTS, CHUNK_PRODUCTS,
                   barrier);
    copy_bytes(to + at::state_numbers, values, CHUNK_NUMBERS, barrier);
    if (here > 0)
        copy_bytes(to + at::state_u, u, here * CHUNK_PANEL_BYTES, barrier);
}

/* What that of the outputs needs. */
template <int RULE>
DEVICE void copy_for_outputs(const linear_call &call, const states_work &work, const char *keys,
                             const char *values, char *to, unsigned barrier)
{
    typedef states_memory<RULE> at;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const char *u = values + CHUNK_VALUES_BYTES(0, RULE) + work.panel * CHUNK_PANEL_BYTES;
    const int here = int_max(0, int_min(CHUNK_STATE_WARPS, panels - work.panel));
    if (HAS_HOPPER && threadIdx.x % 32 != 0)
        return;
#if HAS_HOPPER
    barrier_arrive_expect(barrier, CHUNK_TILE + CHUNK_NUMBERS + CHUNK_PRODUCTS +
                                       (RULE ? 0 : here * CHUNK_PANEL_BYTES));
#endif
    copy_bytes(to + at::q, keys, CHUNK_TILE, barrier);
    copy_bytes(to + at::output_numbers, values, CHUNK_NUMBERS + CHUNK_PRODUCTS, barrier);
    if (!RULE)
        copy_bytes(to + at::output_u, u, here * CHUNK_PANEL_BYTES, barrier);
}

/* A thread's copies so far count as an arrival once they are there. */
DEVICE void arrive_copied(unsigned barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/* ---- The state ------------------------------------------------------------------------------- */

/* What the rows of a chunk add to a state: u - w S. `x`: w S, if there is one. UNIT: u = 0. */
template <int RULE, bool UNIT>
DEVICE void find_updates(unsigned u, const float *numbers, const left_operand<16> &s, int lane,
                         float (&x)[32])
{
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        const int row = 16 * pair + lane % 8 + lane / 16 * 8;
        u32 b[4] = {0, 0, 0, 0};
        if constexpr (!UNIT)
            load_matrices_turned(u + panel_offset(row, lane / 8 % 2), b);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int at = 4 * (2 * pair + n), c = 8 * (2 * pair + n) + lane % 4 * 2;
            const float2 times = *(const float2 *)(numbers + NUMBERS_U + c);
            const float2 less = RULE ? *(const float2 *)(numbers + NUMBERS_W + c) : times;
            const float held[4] = {RULE ? x[at] * (less.x * s.times[0]) : 0,
                                   RULE ? x[at + 1] * (less.y * s.times[0]) : 0,
                                   RULE ? x[at + 2] * (less.x * s.times[1]) : 0,
                                   RULE ? x[at + 3] * (less.y * s.times[1]) : 0};
            x[at] = half_low(b[2 * n]) * times.x - held[0];
            x[at + 1] = half_high(b[2 * n]) * times.y - held[1];
            x[at + 2] = half_low(b[2 * n + 1]) * times.x - held[2];
            x[at + 3] = half_high(b[2 * n + 1]) * times.y - held[3];
        }
    }
}

/* The right side of (I + A) U = beta v - beta e^g k S. `x`: k S. UNIT: v = 0. `v`: the warp's, fp16 after a
 * convolution. */
template <int RULE, bool UNIT>
DEVICE void find_sides(unsigned v, const float *numbers, const float (&held)[2], int lane,
                       float (&x)[32])
{
    constexpr bool half = CHUNK_HAS_TILES(RULE);
    const unsigned from = v + (lane % 8 + lane / 16 * 8) * CHUNK_V_ROW + lane / 8 % 2 * 16;
    const float up[2] = {held[0] / CHANNELS_UP, held[1] / CHANNELS_UP};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 b[4] = {0, 0, 0, 0};
        float y[8] = {};
        if constexpr (!UNIT) {
            load_matrices_turned(from + pair * 16 * CHUNK_V_ROW, b);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                y[2 * i] = half ? half_low(b[i]) : bits_f32(b[i] << 16);
                y[2 * i + 1] = half ? half_high(b[i]) : bits_f32(b[i] & 0xffff0000);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int at = 4 * (2 * pair + n), c = 8 * (2 * pair + n) + lane % 4 * 2;
            const float2 times = *(const float2 *)(numbers + NUMBERS_U + c);
            if constexpr (RULE == CHUNK_CHANNELS) { /* beta */
#pragma unroll
                for (int e = 0; e < 4; e++)
                    x[at + e] =
                        (y[4 * n + e] - x[at + e] * up[e / 2]) * (e % 2 ? times.y : times.x);
                continue;
            }
            const float2 less = *(const float2 *)(numbers + NUMBERS_W + c);
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[at + e] = y[4 * n + e] * (e % 2 ? times.y : times.x) -
                            x[at + e] * ((e % 2 ? less.y : less.x) * held[e / 2]);
        }
    }
}

/* The updates of a chunk, (I + A)^-1 times the right side: `x` is that; then updates over `times`. */
DEVICE void solve_sides(unsigned inverse, float (&x)[32], float (&times)[2])
{
    left_operand<8> side;
    float scale[2];
    make_left(x, side, scale);
    multiply_rows(x, side.at[0], inverse, false);
    wait_product<0>(x);
    times[0] = side.times[0] * (1.0f / CHUNK_INVERSE_ROOM);
    times[1] = side.times[1] * (1.0f / CHUNK_INVERSE_ROOM);
}

/* Half of the state after the chunk. */
DEVICE void fold(const float *numbers, const float (&sums)[32], const left_operand<8> &a, int half,
                 int lane, state_tile &s)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int at = 4 * (8 * half + n);
        const float2 decay =
            *(const float2 *)(numbers + NUMBERS_DECAY + 8 * (8 * half + n) + lane % 4 * 2);
        s[at] = s[at] * decay.x + sums[4 * n] * a.times[0];
        s[at + 1] = s[at + 1] * decay.y + sums[4 * n + 1] * a.times[0];
        s[at + 2] = s[at + 2] * decay.x + sums[4 * n + 2] * a.times[1];
        s[at + 3] = s[at + 3] * decay.y + sums[4 * n + 3] * a.times[1];
    }
}

/* What a warpgroup passes from chunk to chunk: a state, whose parts it hands on to that of the
 * outputs; a state alone; what chunks make of the state before them. */
enum { PASS_HANDED, PASS_ALONE, PASS_MATRIX };

/* The largest magnitudes of a left operand's rows. */
DEVICE void largest_of_left(const left_operand<16> &a, float (&largest)[2])
{
    const u32 magnitude = 0x7fff7fff;
    u32 most[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) /* of numbers without a sign, order is that of their bits */
            most[i % 2] = __vmaxu2(most[i % 2], a.at[n][i] & magnitude);
#pragma unroll
    for (int i = 0; i < 2; i++)
        largest[i] = fmaxf(half_low(most[i]), half_high(most[i]));
}

/* A state after the decays of a chunk's channels, and the largest magnitudes of its rows. */
DEVICE void decay_channels(const float *numbers, int lane, state_tile &s, float (&largest)[2])
{
    largest[0] = largest[1] = 0;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 by = *(const float2 *)(numbers + NUMBERS_DECAY + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            s[4 * n + 2 * i] *= by.x, s[4 * n + 2 * i + 1] *= by.y;
            largest[i] =
                fmaxf(largest[i], fmaxf(fabsf(s[4 * n + 2 * i]), fabsf(s[4 * n + 2 * i + 1])));
        }
    }
}

/* The state after a chunk of KDA with (I + A)^-1; the state is `s` times `unit`, a power of two
 * for each row which keeps it within fp16's range. What is added to it has the same unit, so that the
 * product's sums are the state. */
template <int RULE, int PASS>
DEVICE void pass_scaled(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                        state_tile &s, float (&unit)[2])
{
    typedef states_memory<RULE> at;
    const float *numbers = (const float *)(stage + at::state_numbers);
    const unsigned from = shared_address(stage), k = from + at::k;
    const unsigned v = from + at::state_u + warp * (CHUNK_PANEL * 2);
    /* What outputs get of a row's update, and the state of it, is the same but for a constant. */
    constexpr bool same = CHUNK_BY_CHANNELS(RULE);
    const float one[2] = {1, 1}, decay = CHUNK_BY_CHANNELS(RULE) ? 1 : numbers[NUMBERS_DECAY];
    left_operand<16> held;
    left_operand<8> added, kept;
    float x[32], y[32], scale[2], times[2], largest[2], most[2] = {0, 0};
    float(&low)[32] = *(float(*)[32])s, (&high)[32] = *(float(*)[32])(s + 32);
    pack_left<0, 8, 16>(s, one, held);
    multiply_rows(x, held.at[0], k, false);
    pack_left<8, 16, 16>(s, one, held);
    multiply_rows(x, held.at[4], k + CHUNK_TILE / 2, true);
    held.times[0] = unit[0], held.times[1] = unit[1];
    if constexpr (CHUNK_BY_CHANNELS(RULE)) /* whose loads would wait for the stores below */
        decay_channels(numbers, lane, s, largest);
    if constexpr (PASS == PASS_HANDED) {
        if (n > 0)
            named_sync(HANDED_TAKEN, 64 * CHUNK_STATE_WARPS);
        hand_on(m.state, held);
        named_arrive(HANDED_STATE, 64 * CHUNK_STATE_WARPS);
    }
    if constexpr (!CHUNK_BY_CHANNELS(RULE))
        largest_of_left(held, largest);
    wait_product<0>(x);
    find_sides<RULE, PASS == PASS_MATRIX>(v, numbers, unit, lane, x);
    solve_sides(from + at::inverse, x, times);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 by = same ? make_float2(1, 1)
                               : *(const float2 *)(numbers + NUMBERS_K + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            y[4 * n + e] = x[4 * n + e] * (e % 2 ? by.y : by.x);
            most[e / 2] = fmaxf(most[e / 2], fabsf(y[4 * n + e]));
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float old = unit[i] * decay, all = times[i] * (same ? 1 / CHANNELS_UP : 1);
        const float up =
            find_scale(largest_of_row(fmaxf(most[i] * all, largest[i] * old)), &unit[i]);
        scale[i] = all * up;
        added.times[i] = unit[i] * CHANNELS_UP;
        const float factor = old * up;
#pragma unroll
        for (int n = 0; n < 16; n++)
            s[4 * n + 2 * i] *= factor, s[4 * n + 2 * i + 1] *= factor;
    }
    pack_left<0, 8, 8>(y, scale, added);
    if constexpr (CHUNK_BY_CHANNELS(RULE))
        m.wait(RING_UPDATES, n);
    const unsigned to =
        CHUNK_BY_CHANNELS(RULE) ? shared_address(m.stage(RING_UPDATES, n)) : from + at::k;
    multiply_panel(low, added.at, to, true);
    multiply_panel(high, added.at, to + CHUNK_TILE / 2, true);
    if constexpr (PASS == PASS_HANDED) {
        if constexpr (same) {
            hand_on(m.updates, added);
        } else {
            make_left(x, kept, scale);
            kept.times[0] *= times[0], kept.times[1] *= times[1];
            hand_on(m.updates, kept);
        }
        named_arrive(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    }
    wait_product<0>(low);
    products_arrived(high);
    if constexpr (CHUNK_BY_CHANNELS(RULE))
        m.free(RING_UPDATES, n);
}

/* A state in units of 1. */
DEVICE void restore_state(state_tile &s, float (&unit)[2])
{
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] *= unit[n % 4 / 2];
    unit[0] = unit[1] = 1;
}

/* In fp16's range. SMALL: rows of zeros have a small unit, so that they do not count. */
template <bool SMALL> DEVICE void scale_state(state_tile &s, float (&unit)[2])
{
    float largest[2] = {0, 0}, scale[2];
#pragma unroll
    for (int n = 0; n < 64; n++)
        largest[n % 4 / 2] = fmaxf(largest[n % 4 / 2], fabsf(s[n]));
    if constexpr (SMALL)
        largest[0] = largest_of_row(largest[0]), largest[1] = largest_of_row(largest[1]);
    scale[0] = find_scale(SMALL ? largest[0] : largest_of_row(largest[0]), &unit[0]);
    scale[1] = find_scale(SMALL ? largest[1] : largest_of_row(largest[1]), &unit[1]);
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] *= scale[n % 4 / 2];
#pragma unroll
    for (int i = 0; SMALL && i < 2; i++)
        unit[i] = largest[i] == 0 ? 1e-30f : unit[i];
}

/* ---- The state where a head has one decay ------------------------------------------------------ */

/* Of a chunk, known before its products are, for each row: what v and what the state gives for k are to be
 * multiplied by on the right side; the state itself; updates, by the outputs. */
struct turn_units {
    float side[2], held[2], state[2], kept[2];
};

/* The right side's power of two is the next state's, too: updates are its units as they are. Neither is
 * looked for in sums, as a step of the rule is a contraction: a state's row grows by no more than 64 of
 * v's elements, and the right side's elements are at most v's and what a row of length 1 gives of the
 * state. fp16 has room for both. What a state has lost to decays fp16 may no longer hold: a row counts as
 * 2^-14 at least, so that its unit follows in steps. `value`: the largest of v; `unit`: the state's, then
 * the next one's. */
DEVICE void find_units(const left_operand<16> &held, const float (&value)[2], float decay,
                       float (&unit)[2], turn_units &to)
{
    float state[2];
    largest_of_left(held, state);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float inverse;
        const float most = fmaxf(largest_of_row(state[i]), 1.0f / 16384) * unit[i];
        const float scale = find_scale(fmaxf(value[i] + 16 * most, 1e-30f), &inverse) * 2;
        inverse *= 0.5f / CHUNK_INVERSE_ROOM;
        to.side[i] = scale;
        to.held[i] = unit[i] * scale;
        to.state[i] = decay * (unit[i] * (scale * CHUNK_INVERSE_ROOM));
        to.kept[i] = unit[i] = inverse;
    }
}

/* Rows of v, turned, and the largest magnitude of each. `v`: the warp's. */
DEVICE void load_values(unsigned v, int lane, u32 (&to)[4][4], float (&largest)[2], bool half)
{
    const unsigned from = v + (lane % 8 + lane / 16 * 8) * CHUNK_V_ROW + lane / 8 % 2 * 16;
    const u32 magnitude = 0x7fff7fff;
    u32 most[2] = {0, 0};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        load_matrices_turned(from + pair * 16 * CHUNK_V_ROW, to[pair]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            most[i % 2] = __vmaxu2(most[i % 2], to[pair][i] & magnitude);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        largest[i] =
            largest_of_row(half ? fmaxf(half_low(most[i]), half_high(most[i]))
                                : fmaxf(bits_f32(most[i] << 16), bits_f32(most[i] & 0xffff0000)));
}

/* v of the right side. HALF: it is fp16, times numbers of its rows. */
template <bool HALF>
DEVICE void scale_values(const u32 (&v)[4][4], const float *numbers, const float (&times)[2],
                         int lane, float (&y)[32])
{
    u32 up[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        up[i] = f32_bits(times[i]) | f32_bits(times[i]) >> 16; /* a power of two, twice */
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if constexpr (HALF) {
            const float2 of = *(const float2 *)(numbers + NUMBERS_U + 8 * (i / 2) + lane % 4 * 2);
            y[2 * i] = half_low(v[i / 4][i % 4]) * (of.x * times[i % 2]);
            y[2 * i + 1] = half_high(v[i / 4][i % 4]) * (of.y * times[i % 2]);
        } else {
            u32 x;
            asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(v[i / 4][i % 4]), "r"(up[i % 2]));
            y[2 * i] = bits_f32(x << 16), y[2 * i + 1] = bits_f32(x & 0xffff0000);
        }
    }
}

/* Numbers of a chunk's rows, times those of the state's. */
DEVICE void spread_numbers(const float *numbers, const float (&times)[2], int lane, float (&to)[32])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 of = *(const float2 *)(numbers + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[4 * n + e] = (e % 2 ? of.y : of.x) * times[e / 2];
    }
}

/* A warp's rows of what is handed on to the outputs as a tile, and what they are to be multiplied by. Who
 * reads it, by the tensor cores, has the fence, as that takes time which the state has not. */
template <int COUNT>
DEVICE void write_handed(unsigned to, const left_operand<COUNT> &x, float *scales, int warp,
                         int lane)
{
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        store_matrices(to + tile_offset(16 * warp + lane % 16, 2 * i + lane / 16), x.at[i]);
    if (lane % 4 < 2)
        scales[16 * warp + lane / 4 + lane % 4 * 8] = lane % 4 ? x.times[1] : x.times[0];
}

/* s += a[64 x 64] * (a tile), of 128 columns. */
DEVICE void multiply_keys(state_tile &s, const u32 (&a)[4][4], unsigned tile)
{
    const unsigned long long b = matrix_descriptor(tile, CHUNK_TILE / 2, 1024);
    products_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        product_register<128, true, 1>(s, a[step], descriptor_advance(b, step * 2048), 1);
    products_commit();
}

/* The state after a chunk; `s` times `unit`. What a product needs is found while the one before it is
 * under way, so that little is left between them. */
template <int RULE, int PASS>
DEVICE void pass_turns(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                       state_tile &s, float (&unit)[2])
{
#if HAS_HOPPER
    typedef states_memory<RULE> at;
    constexpr bool half = RULE == CHUNK_TILES;
    const int place = n % 2;
    const float *numbers = (const float *)(stage + at::state_numbers);
    const unsigned from = __shfl_sync(~0u, shared_address(stage), 0), k = from + at::k;
    const float one[2] = {1, 1};
    left_operand<16> held;
    left_operand<8> side, added, kept;
    turn_units units;
    float x[32], y[32] = {}, by[32], value[2] = {0, 0};
    u32 v[4][4];
    float2 keys[8];
    pack_left<0, 8, 16>(s, one, held);
    multiply_rows(x, held.at[0], k, false);
    pack_left<8, 16, 16>(s, one, held);
    multiply_rows(x, held.at[4], k + CHUNK_TILE / 2, true);
    if constexpr (PASS == PASS_HANDED) {
        held.times[0] = unit[0], held.times[1] = unit[1];
        named_sync(TURN_TAKEN + place, 64 * CHUNK_STATE_WARPS);
        write_handed(shared_address(m.state) + place * CHUNK_TILE, held, m.scales(place), warp,
                     lane);
        named_arrive(TURN_STATE + place, 64 * CHUNK_STATE_WARPS);
    }
    if constexpr (PASS != PASS_MATRIX)
        load_values(from + at::state_u + warp * (CHUNK_PANEL * 2), lane, v, value, half);
    if constexpr (half)
        value[0] *= numbers[NUMBERS_MOST], value[1] *= numbers[NUMBERS_MOST];
    find_units(held, value, numbers[NUMBERS_DECAY], unit, units);
    if constexpr (PASS != PASS_MATRIX)
        scale_values<half>(v, numbers, units.side, lane, y);
    spread_numbers(numbers + NUMBERS_W, units.held, lane, by);
    products_arrived(y);
    products_arrived(by);
    wait_product<0>(x);
#pragma unroll
    for (int i = 0; i < 32; i++)
        x[i] = y[i] - x[i] * by[i];
    pack_left<0, 8, 8>(x, one, side);
    multiply_rows(x, side.at[0], from + at::inverse, false);
#pragma unroll
    for (int i = 0; i < 8; i++)
        keys[i] = *(const float2 *)(numbers + NUMBERS_K + 8 * i + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] *= units.state[i % 4 / 2];
    products_arrived(s);
    wait_product<0>(x);
#pragma unroll
    for (int i = 0; i < 32; i++)
        y[i] = x[i] * (i % 2 ? keys[i / 4].y : keys[i / 4].x);
    pack_left<0, 8, 8>(y, one, added);
    multiply_keys(s, added.at, k);
    if constexpr (PASS == PASS_HANDED) {
        pack_left<0, 8, 8>(x, one, kept);
        kept.times[0] = units.kept[0], kept.times[1] = units.kept[1];
        write_handed(shared_address(m.updates) + place * CHUNK_PRODUCTS, kept, m.scales(place) + 64,
                     warp, lane);
        named_arrive(TURN_UPDATES + place, 64 * CHUNK_STATE_WARPS);
    }
    products_wait<0>();
    products_arrived(s);
#else
    __trap();
#endif
}

/* The state after a chunk, the block's number `n`, of the other rules. EXACT: updates as two numbers each. */
template <int RULE, bool EXACT, int PASS>
DEVICE void pass_exact(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                       state_tile &s)
{
    typedef states_memory<RULE> at;
    const float *numbers = (const float *)(stage + at::state_numbers);
    const unsigned from = shared_address(stage), k = from + at::k;
    const unsigned u = from + at::state_u + warp * CHUNK_PANEL_BYTES;
    left_operand<16> held;
    left_operand<8> added, kept;
    float x[32], y[32], scale[2], low[32], high[32];
    u32 rest[4][4];
    scale_left<16>(s, held, scale);
    pack_left<0, 8, 16>(s, scale, held);
    if constexpr (RULE)
        multiply_rows(x, held.at[0], from + at::w, false);
    pack_left<8, 16, 16>(s, scale, held);
    if constexpr (RULE)
        multiply_rows(x, held.at[4], from + at::w + CHUNK_TILE / 2, true);
    if constexpr (PASS == PASS_HANDED) {
        if (n > 0)
            named_sync(HANDED_TAKEN, 64 * CHUNK_STATE_WARPS);
        hand_on(m.state, held);
        named_arrive(HANDED_STATE, 64 * CHUNK_STATE_WARPS);
    }
    if constexpr (RULE)
        wait_product<0>(x);
    find_updates<RULE, PASS == PASS_MATRIX>(u, numbers, held, lane, x);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 times = *(const float2 *)(numbers + NUMBERS_K + 8 * n + lane % 4 * 2);
        y[4 * n] = x[4 * n] * times.x, y[4 * n + 1] = x[4 * n + 1] * times.y;
        y[4 * n + 2] = x[4 * n + 2] * times.x, y[4 * n + 3] = x[4 * n + 3] * times.y;
    }
    if constexpr (EXACT && PASS == PASS_HANDED) { /* registers are short then */
        make_left(x, kept, scale);
        hand_on(m.updates, kept);
        named_arrive(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    }
    make_left(y, added, scale);
    if constexpr (EXACT)
        make_rest<8>(y, added, scale, rest);
    multiply_panel(low, added.at, k, false);
    if constexpr (EXACT)
        multiply_panel(low, rest, k, true);
    multiply_panel(high, added.at, k + CHUNK_TILE / 2, false);
    if constexpr (EXACT)
        multiply_panel(high, rest, k + CHUNK_TILE / 2, true);
    if constexpr (!EXACT && PASS == PASS_HANDED) {
        make_left(x, kept, scale);
        hand_on(m.updates, kept);
        named_arrive(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    }
    wait_product<EXACT ? 2 : 1>(low);
    fold(numbers, low, added, 0, lane, s);
    wait_product<0>(high);
    fold(numbers, high, added, 1, lane, s);
}

/* The state after a chunk: `s` times `unit`, which is 1 but for pass_scaled(). */
template <int RULE, bool EXACT, int PASS>
DEVICE void pass_chunk(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                       state_tile &s, float (&unit)[2])
{
    if constexpr (CHUNK_ONE_DECAY(RULE))
        pass_turns<RULE, PASS>(m, stage, n, warp, lane, s, unit);
    else if constexpr (RULE >= CHUNK_INVERSE)
        pass_scaled<RULE, PASS>(m, stage, n, warp, lane, s, unit);
    else
        pass_exact<RULE, EXACT, PASS>(m, stage, n, warp, lane, s);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

DEVICE void unpack_eight(int dtype, uint4 from, float (&x)[8])
{
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = dtype == ELEMENT_F16 ? half_low(words[i]) : bits_f32(words[i] << 16);
        x[2 * i + 1] = dtype == ELEMENT_F16 ? half_high(words[i]) : bits_f32(words[i] & 0xffff0000);
    }
}

DEVICE u32 pack_two(int dtype, float low, float high)
{
    u32 packed;
    if (dtype == ELEMENT_F16)
        return pack_half(low, high);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* For results of 16 bits, which these instructions' errors, of 2^-21, are far below. */
DEVICE float fast_silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

/* Eight values of a v head, those of a lane, in all rows. */
struct output_place {
    int head, value;
    bool here;
    float skip[8];
};

/* Eight neighbouring values of a row's output. `v`: those of u. */
template <int RULE>
DEVICE void write_eight(const linear_call &call, int row, const output_place &place, float (&x)[8],
                        uint4 z, uint4 v, float v_times, float own)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    float y[8];
    if (!RULE) {
        unpack_eight(ELEMENT_F16, v, y);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] += (own + place.skip[i]) * (y[i] * v_times);
    }
    if (o.z) {
        unpack_eight(d.dtype, z, y);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] *= fast_silu(y[i]);
    }
    *(uint4 *)(o.out + row * o.out_row + place.head * o.out_head + place.value * 2) =
        make_uint4(pack_two(d.out_dtype, x[0], x[1]), pack_two(d.out_dtype, x[2], x[3]),
                   pack_two(d.out_dtype, x[4], x[5]), pack_two(d.out_dtype, x[6], x[7]));
}

/* Sums of what updates give later rows, times `p`; a delta rule's own rows get own times theirs
 * besides. `x`: updates of two values in two rows. */
template <int RULE> DEVICE void add_own(float2 own, float2 p, const u32 *x, float (&sums)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sums[2 * i] = sums[2 * i] * p.x + (RULE ? own.x * half_low(x[i]) : 0);
        sums[2 * i + 1] = sums[2 * i + 1] * p.y + (RULE ? own.y * half_high(x[i]) : 0);
    }
}

/* The same times `times`, with what the state gives besides, where all rows have the same `p`, which is part of
 * `added`. */
DEVICE void add_all(float2 own, const float (&given)[2], const float (&added)[2],
                    const float (&times)[2], const u32 *x, const float *read, float (&sums)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sums[2 * i] =
            read[2 * i] * given[i] + sums[2 * i] * added[i] + half_low(x[i]) * (own.x * times[i]);
        sums[2 * i + 1] = read[2 * i + 1] * given[i] + sums[2 * i + 1] * added[i] +
                          half_high(x[i]) * (own.y * times[i]);
    }
}

/* Outputs of a delta rule that nothing more is done with: turned as they are stored, 16 bytes a
 * lane. */
template <int RULE>
DEVICE void write_turned(const linear_call &call, char *turn, const float *numbers,
                         const float (&read)[32], float (&added)[32], const float (&held)[2],
                         const left_operand<8> &kept, int row, int rows, const output_place &place,
                         int lane)
{
    const linear_operands &o = call.operands;
    const int dtype = call.dims.out_dtype, turned = lane % 8 + lane / 16 * 8;
    const float q = call.dims.sm_scale / CHANNELS_UP, all = call.dims.sm_scale / PRODUCTS_ROOM;
    const float of_state[2] = {held[0] * q, held[1] * q};
    const float of_rows[2] = {kept.times[0] * all, kept.times[1] * all};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 y[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 16 * pair + 8 * i + lane % 4 * 2, from = 4 * (2 * pair + i);
            if constexpr (CHUNK_BY_CHANNELS(RULE)) {
                float(&sums)[4] = *(float(*)[4])(added + from);
                add_all(*(const float2 *)(numbers + NUMBERS_OWN(true) + c), of_state, of_rows,
                        kept.times, kept.at[pair] + 2 * i, read + from, sums);
                y[2 * i] = pack_two(dtype, sums[0], sums[1]);
                y[2 * i + 1] = pack_two(dtype, sums[2], sums[3]);
                continue;
            }
            const float2 a = *(const float2 *)(numbers + NUMBERS_Q + c);
            const float2 p = *(const float2 *)(numbers + NUMBERS_P + c);
            const float2 own = *(const float2 *)(numbers + NUMBERS_OWN(true) + c);
            float(&sums)[4] = *(float(*)[4])(added + from);
            add_own<true>(own, p, kept.at[pair] + 2 * i, sums);
#pragma unroll
            for (int e = 0; e < 2; e++) /* a lane's value, and that + 8 */
                y[2 * i + e] = pack_two(
                    dtype, read[from + 2 * e] * (a.x * held[e]) + sums[2 * e] * kept.times[e],
                    read[from + 2 * e + 1] * (a.y * held[e]) + sums[2 * e + 1] * kept.times[e]);
        }
        store_matrices_turned(shared_address(turn) + panel_offset(16 * pair + turned, lane / 8 % 2),
                              y);
    }
    __syncwarp();
    char *to =
        o.out + (i64)(row + lane / 2) * o.out_row + place.head * o.out_head + place.value * 2;
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
        if (16 * pair + lane / 2 < rows && place.here)
            *(uint4 *)(to + 16 * pair * o.out_row) =
                *(const uint4 *)(turn + panel_offset(16 * pair + lane / 2, lane % 2));
}

/* Outputs of a chunk's rows, of which the first is `row` of the batch; turned in shared memory,
 * sixteen rows at a time. `last`: the other warpgroup has no chunk after it. */
template <int RULE>
DEVICE void write_chunk(const linear_call &call, const states_memory<RULE> &m, int n, int row,
                        int rows, bool last, const output_place &place, int warp, int lane)
{
    typedef states_memory<RULE> at;
    const linear_operands &o = call.operands;
    const char *stage = m.stage(1, n), *v = stage + at::output_u + warp * CHUNK_PANEL_BYTES;
    const float *numbers = (const float *)(stage + at::output_numbers);
    left_operand<16> s;
    left_operand<8> x;
    float read[32], added[32];
    uint4 z[4] = {};
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
        if (o.z && place.here && 16 * pair + lane / 2 < rows)
            z[pair] = *(const uint4 *)(o.z + (row + 16 * pair + lane / 2) * o.z_row +
                                       place.head * o.z_head + place.value * 2);
    named_sync(HANDED_STATE, 64 * CHUNK_STATE_WARPS);
    take_over(m.state, s);
    multiply_rows(read, s.at[0], shared_address(stage + at::q), false);
    multiply_rows(read, s.at[4], shared_address(stage + at::q) + CHUNK_TILE / 2, true);
    named_sync(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    take_over(m.updates, x);
    if (!last)
        named_arrive(HANDED_TAKEN, 64 * CHUNK_STATE_WARPS);
    multiply_rows(added, x.at[0], shared_address(stage + at::products), false);
    wait_product<0>(read);
    products_arrived(added);
    if (HAS_HOPPER && RULE && !o.z) {
        write_turned<RULE>(call, (char *)m.turn, numbers, read, added, s.times, x, row, rows, place,
                           lane);
        return;
    }
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * i + lane % 4 * 2, from = 4 * (2 * pair + i);
            const float2 a = *(const float2 *)(numbers + NUMBERS_Q + 16 * pair + c);
            const float2 p = *(const float2 *)(numbers + NUMBERS_P + 16 * pair + c);
            const float2 own = RULE ? *(const float2 *)(numbers + NUMBERS_OWN(true) + 16 * pair + c)
                                    : make_float2(0, 0);
            float *to = m.turn + c * 20 + lane / 4;
            float(&y)[4] = *(float(*)[4])(added + from);
            add_own<RULE>(own, p, x.at[pair] + 2 * i, y);
            to[0] = read[from] * (a.x * s.times[0]) + y[0] * x.times[0];
            to[20] = read[from + 1] * (a.y * s.times[0]) + y[1] * x.times[0];
            to[8] = read[from + 2] * (a.x * s.times[1]) + y[2] * x.times[1];
            to[28] = read[from + 3] * (a.y * s.times[1]) + y[3] * x.times[1];
        }
        __syncwarp();
        const int c = lane / 2, r = 16 * pair + c;
        if (r < rows && place.here) {
            const float4 low = *(const float4 *)(m.turn + c * 20 + lane % 2 * 8);
            const float4 high = *(const float4 *)(m.turn + c * 20 + lane % 2 * 8 + 4);
            float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            const uint4 values =
                RULE ? make_uint4(0, 0, 0, 0) : *(const uint4 *)(v + panel_offset(r, lane % 2));
            write_eight<RULE>(call, row + r, place, y, z[pair], values, numbers[NUMBERS_V + r],
                              numbers[NUMBERS_OWN(false) + r]);
        }
        __syncwarp();
    }
}

/* ---- Outputs where a head has one decay --------------------------------------------------------
 *
 * Rows of the products are those of the chunk, and are written as they are.
 */

/* What the state gives, in units of 1. */
DEVICE void scale_read(const float *scales, int lane, float (&read)[32])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 times = *(const float2 *)(scales + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            read[4 * n + e] *= e % 2 ? times.y : times.x;
    }
}

/* Outputs. `read`: q S, and they; `added`: P U; `x`: updates of the lane's rows, which are to be multiplied
 * by `scales`. */
DEVICE void combine_outputs(const float *numbers, const float *scales, const float (&added)[32],
                            const u32 (&x)[4][4], int warp, int lane, float (&read)[32])
{
    const int row = 16 * warp + lane / 4;
    const float p = numbers[NUMBERS_P];
    const float q[2] = {numbers[NUMBERS_Q + row], numbers[NUMBERS_Q + row + 8]};
    const float own[2] = {numbers[NUMBERS_OWN(true) + row], numbers[NUMBERS_OWN(true) + row + 8]};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 times = *(const float2 *)(scales + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const u32 two = x[n / 2][n % 2 * 2 + e / 2];
            const float update = e % 2 ? half_high(two) : half_low(two);
            const float sum = added[4 * n + e] * p + own[e / 2] * update;
            read[4 * n + e] = read[4 * n + e] * q[e / 2] + sum * (e % 2 ? times.y : times.x);
        }
    }
}

/* Outputs times SiLU of z. `row`: of the batch, of the lane's first; `rows`: that the chunk has from
 * there on. */
DEVICE void gate_outputs(const linear_call &call, int row, int rows, const output_place &place,
                         int lane, float (&x)[32])
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const int value = place.value + n / 2 * 8 + lane % 4 * 2, below = n % 2 * 8;
        u32 z = 0;
        if (below < rows && value < d.v_dim)
            z = *(const u32 *)(o.z + (i64)(row + below) * o.z_row + place.head * o.z_head +
                               value * 2);
        const bool half = d.dtype == ELEMENT_F16;
        x[2 * n] *= fast_silu(half ? half_low(z) : bits_f32(z << 16));
        x[2 * n + 1] *= fast_silu(half ? half_high(z) : bits_f32(z & 0xffff0000));
    }
}

/* By 16 bytes a lane; the same rows. */
DEVICE void store_outputs(const linear_call &call, char *turn, const float (&x)[32], int row,
                          int rows, const output_place &place, int lane)
{
    const linear_operands &o = call.operands;
    const int dtype = call.dims.out_dtype, piece = lane % 8;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = pack_two(dtype, x[8 * pair + 2 * i], x[8 * pair + 2 * i + 1]);
        store_matrices(shared_address(turn) + tile_offset(lane % 16, 2 * pair + lane / 16), y);
    }
    __syncwarp();
    char *to = o.out + (i64)(row + lane / 8) * o.out_row + place.head * o.out_head +
               (place.value + piece * 8) * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (4 * i + lane / 8 < rows && place.value + piece * 8 < call.dims.v_dim)
            *(uint4 *)(to + 4 * i * o.out_row) =
                *(const uint4 *)(turn + tile_offset(4 * i + lane / 8, piece));
}

/* Outputs of a chunk's rows, of which the first is `row` of the batch. `more`: the other warpgroup needs
 * the chunk's place again. */
template <int RULE>
DEVICE void write_turn(const linear_call &call, const states_memory<RULE> &m, int n, int row,
                       int rows, bool more, const output_place &place, int warp, int lane)
{
    typedef states_memory<RULE> at;
    const int turn = n % 2;
    const char *stage = m.stage(RING_OUTPUTS, n);
    const unsigned from = __shfl_sync(~0u, shared_address(stage), 0);
    float of[2][32]; /* the state, updates */
    u32 x[4][4];
    named_sync(TURN_STATE + turn, 64 * CHUNK_STATE_WARPS);
    fence_async_shared();
    multiply_shared<true, 8>(of[0], from + at::q,
                             __shfl_sync(~0u, shared_address(m.state) + turn * CHUNK_TILE, 0));
    const unsigned updates = __shfl_sync(~0u, shared_address(m.updates) + turn * CHUNK_PRODUCTS, 0);
    named_sync(TURN_UPDATES + turn, 64 * CHUNK_STATE_WARPS);
    fence_async_shared();
    multiply_shared<true, 4>(of[1], from + at::products, updates);
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
        load_matrices_turned(
            updates + tile_offset(16 * pair + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2),
            x[pair]);
    wait_product<0>(of[1]);
    products_arrived(of[0]);
    scale_read(m.scales(turn), lane, of[0]);
    combine_outputs((const float *)(stage + at::output_numbers), m.scales(turn) + 64, of[1], x,
                    warp, lane, of[0]);
    if (more)
        named_arrive(TURN_TAKEN + turn, 64 * CHUNK_STATE_WARPS);
    if (call.operands.z)
        gate_outputs(call, row + 16 * warp + lane / 4, rows - 16 * warp - lane / 4, place, lane,
                     of[0]);
    store_outputs(call, (char *)m.turn, of[0], row + 16 * warp, rows - 16 * warp, place, lane);
}

/* ---- A sequence ------------------------------------------------------------------------------ */

DEVICE void carry_state(float *carry, bool store, state_tile &s)
{
#pragma unroll
    for (int n = 0; n < 16; n++) {
        float4 *at = (float4 *)carry + n * 32;
        if (store) {
            *at = make_float4(s[4 * n], s[4 * n + 1], s[4 * n + 2], s[4 * n + 3]);
        } else {
            float4 x = *at;
            s[4 * n] = x.x, s[4 * n + 1] = x.y, s[4 * n + 2] = x.z, s[4 * n + 3] = x.w;
        }
    }
}

/* Half of a segment's matrix: M, or what is left of it. */
template <int RULE>
DEVICE void copy_matrix(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int n)
{
    const char *from = result_matrix(call, work, work.index - work.number + 1 + n / 2) +
                       CHUNK_RESULT_NUMBERS + n % 2 * (2 * CHUNK_TILE);
#if HAS_HOPPER
    if (threadIdx.x % 32 != 0)
        return;
    barrier_arrive_expect(m.barrier(0, n), 2 * CHUNK_TILE);
#endif
    copy_bytes(m.stage(0, n), from, 2 * CHUNK_TILE, m.barrier(0, n));
}

/* What a warpgroup needs of all chunks but rows of v, by a warp of its own. `ring`: RING_STATE or
 * RING_OUTPUTS. */
template <int RULE>
DEVICE void copy_chunks(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int ring)
{
    const linear_dims &d = call.dims;
    const int own = d.family == LINEAR_FAMILY_KDA, lead = ring == RING_STATE ? work.lead : 0;
    const i64 heads = own ? d.v_heads : d.k_heads, index = work.from - work.first;
    const i64 bytes = CHUNK_VALUES_BYTES(d.v_dim / CHUNK_PANEL, RULE);
    const char *keys =
        call.chunks.keys +
        (index * heads + (own ? work.head : work.head / d.ratio)) * CHUNK_RULE_KEYS_BYTES(RULE);
    const char *values = call.chunks.values + (index * d.v_heads + work.head) * bytes;
#pragma unroll 1
    for (int n = 0; n < lead + work.to - work.from; n++) {
        const unsigned barrier =
            ring == RING_STATE ? m.barrier(RING_STATE, n) : m.barrier(RING_OUTPUTS, n);
        if (ring == RING_STATE)
            m.wait_free(RING_STATE, n);
        else
            m.wait_free(RING_OUTPUTS, n);
        if (RULE && n < lead) {
            copy_matrix(call, work, m, n);
        } else {
            if (ring == RING_STATE)
                copy_for_state<RULE>(call, work, keys, values, m.stage(RING_STATE, n), barrier);
            else
                copy_for_outputs<RULE>(call, work, keys, values, m.stage(RING_OUTPUTS, n), barrier);
            keys += heads * CHUNK_RULE_KEYS_BYTES(RULE);
            values += d.v_heads * bytes;
        }
#if !HAS_HOPPER
        arrive_copied(barrier);
#endif
    }
}

/* Keys with the decays to the ends of all chunks, by a warp of its own. */
template <int RULE>
DEVICE void copy_updates(const linear_call &call, const states_work &work,
                         const states_memory<RULE> &m)
{
    const i64 heads = call.dims.v_heads, index = work.from - work.first;
    const char *keys = call.chunks.keys + 2 * CHUNK_TILE +
                       (index * heads + work.head) * CHUNK_RULE_KEYS_BYTES(RULE);
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const unsigned barrier = m.barrier(RING_UPDATES, n);
        m.wait_free(RING_UPDATES, n);
#if HAS_HOPPER
        if (threadIdx.x % 32 == 0) {
            barrier_arrive_expect(barrier, CHUNK_TILE);
            copy_bytes(m.stage(RING_UPDATES, n), keys, CHUNK_TILE, barrier);
        }
#else
        copy_bytes(m.stage(RING_UPDATES, n), keys, CHUNK_TILE, barrier);
        arrive_copied(barrier);
#endif
        keys += heads * CHUNK_RULE_KEYS_BYTES(RULE);
    }
}

/* Rows of v in all chunks, for the block's values, by a warp of its own: the copy engine takes 70 ns
 * for a row. A row lies 16 bytes further than banks repeat. */
template <int RULE>
DEVICE void copy_values(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m)
{
    const linear_dims &d = call.dims;
    const linear_chunk *list = call.chunks.list + work.from;
    const i64 apart = call.operands.mixed_row;
    const int row = threadIdx.x % 32 / 8, at = threadIdx.x % 8 * 16;
    const int width = (d.v_dim / CHUNK_PANEL - work.panel) * (CHUNK_PANEL * 2);
    const char *first = call.operands.mixed + row * apart +
                        (d.first[2] + work.head * d.v_dim + work.panel * CHUNK_PANEL) * 2 + at;
    int index = work.from - work.first, rows = list->rows;
    int begin = find_row(call, work.sequence, *list, index);
#pragma unroll 1
    for (int n = 0; n < work.lead + work.to - work.from; n++) {
        const unsigned to =
            shared_address(m.stage(0, n)) + states_memory<RULE>::state_u + row * CHUNK_V_ROW + at;
        const char *from = first + begin * apart;
        const int here = n >= work.lead && at < width ? rows - row : 0;
        m.wait_free(0, n);
#pragma unroll
        for (int i = 0; i < CHUNK_ROWS / 4; i++) {
            if (4 * i < here)
                copy_async(to + 4 * i * CHUNK_V_ROW, from);
            from += 4 * apart;
        }
        arrive_copied(m.barrier(0, n));
        if (n >= work.lead && n + 1 < work.lead + work.to - work.from) {
            list++, index++;
            begin = find_row(call, work.sequence, *list, index), rows = list->rows;
        }
    }
}

/* A state before the first chunk of a sequence, or of a launch. */
DEVICE void load_first_state(const linear_call &call, const states_work &work, int panel, int lane,
                             state_tile &s)
{
    const linear_chunks &chunks = call.chunks;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    const i64 half = (i64)call.dims.v_heads * panels * CHUNK_CARRY;
    const int odd = work.first / chunks.window % 2;
    float *carry = chunks.carry + ((i64)work.head * panels + panel) * CHUNK_CARRY + lane * 4;
    if (work.from > work.begin)
        carry_state(carry + (1 - odd) * half, false, s);
    else if (work.sequence.slot)
        pass_state<false>(call, work.sequence.slot, at, s);
}

/* The state after a sequence's chunks of a launch, for its slot or the next launch. */
DEVICE void store_last_state(const linear_call &call, const states_work &work, int panel, int lane,
                             state_tile &s)
{
    const linear_chunks &chunks = call.chunks;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    const i64 half = (i64)call.dims.v_heads * panels * CHUNK_CARRY;
    const int odd = work.first / chunks.window % 2;
    float *carry = chunks.carry + ((i64)work.head * panels + panel) * CHUNK_CARRY + lane * 4;
    if (work.number + 1 < work.count)
        return;
    if (work.to < work.end)
        carry_state(carry + odd * half, true, s);
    else if (work.sequence.dst)
        pass_state<true>(call, work.sequence.dst, at, s);
}

/* ---- Segments -------------------------------------------------------------------------------- */

/* S M, both as two numbers each; M is in stages n and n + 1 of the ring. */
template <int RULE>
DEVICE void pass_segment(const states_memory<RULE> &m, const float *numbers, int n, int lane,
                         state_tile &s)
{
    left_operand<16> a;
    float scale[2], low[32], high[32];
    u32 rest[8][4];
    const u32(&first)[4][4] = *(const u32(*)[4][4])a.at[0];
    const u32(&second)[4][4] = *(const u32(*)[4][4])a.at[4];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 times = *(const float2 *)(numbers + 8 * i + lane % 4 * 2);
        s[4 * i] *= times.x, s[4 * i + 1] *= times.y;
        s[4 * i + 2] *= times.x, s[4 * i + 3] *= times.y;
    }
    make_left<16>(s, a, scale);
    make_rest<16>(s, a, scale, rest);
    const unsigned whole = shared_address(m.stage(0, n));
    m.wait(0, n);
    multiply_panel(low, first, whole, false);
    multiply_panel(low, second, whole + CHUNK_TILE, true);
    multiply_panel(low, *(const u32(*)[4][4])rest[0], whole, true);
    multiply_panel(low, *(const u32(*)[4][4])rest[4], whole + CHUNK_TILE, true);
    multiply_panel(high, first, whole + CHUNK_TILE / 2, false);
    multiply_panel(high, second, whole + CHUNK_TILE * 3 / 2, true);
    multiply_panel(high, *(const u32(*)[4][4])rest[0], whole + CHUNK_TILE / 2, true);
    multiply_panel(high, *(const u32(*)[4][4])rest[4], whole + CHUNK_TILE * 3 / 2, true);
    const unsigned left = shared_address(m.stage(0, n + 1));
    m.wait(0, n + 1);
    multiply_panel(low, first, left, true);
    multiply_panel(low, second, left + CHUNK_TILE, true);
    multiply_panel(high, first, left + CHUNK_TILE / 2, true);
    multiply_panel(high, second, left + CHUNK_TILE * 3 / 2, true);
    wait_product<0>(low);
    products_arrived(high);
    m.free(0, n);
    m.free(0, n + 1);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = low[i] * a.times[i % 4 / 2];
        s[i + 32] = high[i] * a.times[i % 4 / 2];
    }
}

/* The state before segment `number`: S <- S M + N through all segments before it. */
template <int RULE>
DEVICE void begin_state(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int warp, int lane, state_tile &s)
{
    const int panel = work.panel + warp, origin = work.index - work.number;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    if (work.count == 1 && here)
        load_first_state(call, work, panel, lane, s);
    if (work.count == 1)
        return;
    if (work.number == 0 && here)
        carry_state((float *)(result_matrix(call, work, origin) + CHUNK_RESULT_NUMBERS) +
                        panel * CHUNK_CARRY + lane * 4,
                    false, s);
    else if (here)
        carry_state(result_state(call, work, origin, panel, lane), false, s);
#pragma unroll 1
    for (int i = 1; i < work.number; i++) {
        const float *numbers = (const float *)result_matrix(call, work, origin + i);
        if constexpr (RULE) {
            pass_segment(m, numbers, 2 * (i - 1), lane, s);
        } else {
            const float decay = numbers[0];
#pragma unroll
            for (int n = 0; n < 64; n++)
                s[n] *= decay;
        }
        if (!here)
            continue;
        const float4 *more = (const float4 *)result_state(call, work, origin + i, panel, lane);
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const float4 x = more[n * 32];
            s[4 * n] += x.x, s[4 * n + 1] += x.y, s[4 * n + 2] += x.z, s[4 * n + 3] += x.w;
        }
    }
}

/* What a segment makes of the state before it: rows of k from 64 * half on. */
template <int RULE>
DEVICE void pass_matrix(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int half, int warp, int lane)
{
    state_tile s;
    float unit[2] = {1, 1};
    const int row = 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] = 64 * half + row + n % 4 / 2 * 8 == n / 4 * 8 + lane % 4 * 2 + n % 2;
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        m.wait(0, n);
        pass_chunk<RULE, false, PASS_MATRIX>(m, m.stage(0, n), n, warp, lane, s, unit);
        m.free(0, n);
    }
    restore_state(s, unit);
    char *to = result_matrix(call, work, work.index);
    float *numbers = (float *)to + 64 * half;
    left_operand<16> a;
    float scale[2];
    u32 rest[8][4];
    make_left<16>(s, a, scale);
    make_rest<16>(s, a, scale, rest);
    to += CHUNK_RESULT_NUMBERS + half * CHUNK_TILE;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (lane % 4 == 0)
            numbers[row + 8 * i] = a.times[i];
#pragma unroll
        for (int n = 0; n < 16; n++) {
            char *at = to + tile_offset(row + 8 * i, n) + lane % 4 * 4;
            *(u32 *)at = a.at[n / 2][n % 2 * 2 + i];
            *(u32 *)(at + 2 * CHUNK_TILE) = rest[n / 2][n % 2 * 2 + i];
        }
    }
}

/* The state after a segment, from 0 on; after the first one of a sequence, from where it starts. */
template <int RULE, bool EXACT>
DEVICE void pass_alone(const linear_call &call, const states_work &work,
                       const states_memory<RULE> &m, int warp, int lane)
{
    const int panel = work.panel + warp;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    char *matrix = result_matrix(call, work, work.index);
    float decay = 1, unit[2] = {1, 1};
    state_tile s = {};
    if (here && work.number == 0) { /* kept: other segments may write where it is read */
        load_first_state(call, work, panel, lane, s);
        carry_state((float *)(matrix + CHUNK_RESULT_NUMBERS) + panel * CHUNK_CARRY + lane * 4, true,
                    s);
    }
    if (RULE >= CHUNK_INVERSE)
        scale_state<CHUNK_ONE_DECAY(RULE)>(s, unit);
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const char *stage = m.stage(0, n);
        m.wait(0, n);
        decay *= ((const float *)(stage + states_memory<RULE>::state_numbers))[NUMBERS_DECAY];
        pass_chunk<RULE, EXACT, PASS_ALONE>(m, stage, n, warp, lane, s, unit);
        m.free(0, n);
    }
    restore_state(s, unit);
    if (here)
        carry_state(result_state(call, work, work.index, panel, lane), true, s);
    if (!RULE && work.panel == 0 && threadIdx.x == 0)
        *(float *)matrix = decay;
}

/* ---- A segment ------------------------------------------------------------------------------- */

template <int RULE, bool EXACT>
DEVICE void pass_chunks(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int warp, int lane)
{
    const int panel = work.panel + warp;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    state_tile s = {};
    float unit[2] = {1, 1};
    begin_state(call, work, m, warp, lane, s);
    if (RULE >= CHUNK_INVERSE)
        scale_state<CHUNK_ONE_DECAY(RULE)>(s, unit);
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const int listed = call.chunks.list[work.from + n].snapshot;
        const int snapshot = CHUNK_ONE_DECAY(RULE) ? listed : __shfl_sync(~0u, listed, 0);
        m.wait(0, work.lead + n);
        pass_chunk<RULE, EXACT, PASS_HANDED>(m, m.stage(0, work.lead + n), n, warp, lane, s, unit);
        m.free(0, work.lead + n);
        if (here && snapshot) {
            if (RULE >= CHUNK_INVERSE)
                restore_state(s, unit);
            pass_state<true>(call, snapshot, at, s);
            if (RULE >= CHUNK_INVERSE)
                scale_state<CHUNK_ONE_DECAY(RULE)>(s, unit);
        }
    }
    restore_state(s, unit);
    if (here)
        store_last_state(call, work, panel, lane, s);
}

template <int RULE>
DEVICE void write_chunks(const linear_call &call, const states_work &work,
                         const states_memory<RULE> &m, int warp, int lane)
{
    output_place place;
    place.head = work.head;
    place.value = (work.panel + warp) * CHUNK_PANEL + lane % 2 * 8;
    place.here = place.value < call.dims.v_dim;
#pragma unroll
    for (int i = 0; i < 8; i++)
        place.skip[i] = place.here ? linear_skip(&call, work.head, place.value + i) : 0;
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const linear_chunk chunk = call.chunks.list[work.from + n];
        m.wait(1, n);
        write_chunk(call, m, n, work.sequence.first_row + chunk.first, chunk.rows,
                    work.from + n + 1 == work.to, place, warp, lane);
        m.free(1, n);
    }
}

template <int RULE>
DEVICE void write_turns(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int warp, int lane)
{
    const int count = work.to - work.from;
    output_place place;
    place.head = work.head;
    place.value = work.panel * CHUNK_PANEL; /* the block's first */
#pragma unroll 1
    for (int n = 0; n < int_min(2, count); n++)
        named_arrive(TURN_TAKEN + n, 64 * CHUNK_STATE_WARPS);
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const linear_chunk chunk = call.chunks.list[work.from + n];
        m.wait(RING_OUTPUTS, n);
        write_turn(call, m, n, work.sequence.first_row + chunk.first, chunk.rows, n + 2 < count,
                   place, warp, lane);
        m.free(RING_OUTPUTS, n);
    }
}

/* The block's part of segment `index` of the window from chunk `first` on; false: there is none. */
DEVICE bool find_work(const linear_call &call, int first, int index, states_work &work)
{
    const linear_chunks &chunks = call.chunks;
    const linear_segment segment =
        chunks.segments[(i64)(first / chunks.window) * chunks.most_segments + index];
    if (segment.from >= segment.to)
        return false;
    work.first = first;
    work.begin = chunks.sequences[2 * segment.sequence];
    work.end = work.begin + chunks.sequences[2 * segment.sequence + 1];
    work.from = segment.from, work.to = segment.to;
    work.index = index, work.number = segment.number, work.count = segment.count;
    work.lead = 0;
    work.sequence = linear_find_sequence(&call.batch, segment.sequence);
    return true;
}

/* Of stages that are filled, and of those that their `readers`, warps, are done with. */
template <int RULE> DEVICE void begin_barriers(unsigned barriers, int readers)
{
    constexpr int filling = HAS_HOPPER ? 1 : 32, rows = RULE >= CHUNK_INVERSE ? 32 : 0;
    constexpr int stages = states_memory<RULE>::all_stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(barriers + 8 * i, filling + (i < STATE_STAGES ? rows : 0));
            barrier_init(barriers + 8 * (stages + i), readers);
        }
        fence_barrier_init();
    }
    __syncthreads();
}

/* Rows of v that are never written are multiplied by 0: they are to be finite. */
template <int RULE> DEVICE void begin_values(const states_memory<RULE> &m)
{
    for (int n = 0; RULE >= CHUNK_INVERSE && n < STATE_STAGES; n++)
        for (int i = threadIdx.x; i < CHUNK_ROWS * CHUNK_V_ROW / 16;
             CHUNK_ONE_DECAY(RULE) ? i += blockDim.x : i += CHUNK_STATE_THREADS)
            ((uint4 *)(m.stage(0, n) + states_memory<RULE>::state_u))[i] = make_uint4(0, 0, 0, 0);
    fence_async_shared();
}

/* The warp of a warpgroup. Kernels of GDN were measured and checked without the broadcast, which lets the compiler
 * treat it as the same in all lanes. */
template <int RULE> DEVICE int find_warp(void)
{
    const int warp = threadIdx.x / 32 % CHUNK_STATE_WARPS;
    return CHUNK_ONE_DECAY(RULE) ? warp : __shfl_sync(~0u, warp, 0);
}

/* Blocks: segments, the last ones first as one may be longer, times v heads, times slices of 64 values.
 * Chunks of the list from `first` on. */
template <int RULE, bool EXACT>
DEVICE void states_block(const linear_call &call, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const int panels = d.v_dim / CHUNK_PANEL;
    const int slices = (panels + CHUNK_STATE_WARPS - 1) / CHUNK_STATE_WARPS;
    const int lane = threadIdx.x % 32;
    const int warp = find_warp<RULE>();
    /* The same in all lanes, and told so to the compiler. */
    const int group = __shfl_sync(~0u, threadIdx.x / (32 * CHUNK_STATE_WARPS), 0);
    const int rest = blockIdx.x / slices;
    states_work work;
    work.head = rest % d.v_heads;
    work.panel = blockIdx.x % slices * CHUNK_STATE_WARPS;
    if (!find_work(call, first, (gridDim.x / slices - 1 - rest) / d.v_heads, work))
        return;
    if (RULE && work.number > 1)
        work.lead = 2 * (work.number - 1);
    const states_memory<RULE> m(memory, warp);
    begin_values<RULE>(m);
    begin_barriers<RULE>(m.barriers, CHUNK_STATE_WARPS);
    if (group == 0) {
        registers_take<240>();
        pass_chunks<RULE, EXACT>(call, work, m, warp, lane);
    } else if (group == 1) {
        registers_take<240>();
        if constexpr (CHUNK_ONE_DECAY(RULE))
            write_turns<RULE>(call, work, m, warp, lane);
        else
            write_chunks<RULE>(call, work, m, warp, lane);
    } else {
        registers_release<24>();
        if (warp < 2)
            copy_chunks<RULE>(call, work, m, warp);
        else if (RULE >= CHUNK_INVERSE && warp == 2)
            copy_values(call, work, m);
        else if (CHUNK_BY_CHANNELS(RULE))
            copy_updates<RULE>(call, work, m);
    }
}

/* Results of segments that are not the last of a sequence. Blocks: segments, times v heads, times
 * parts: one warpgroup has 64 values, another 64 rows of the matrix. */
template <int RULE, bool EXACT>
DEVICE void segments_block(const linear_call &call, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const int panels = d.v_dim / CHUNK_PANEL, parts = CHUNK_SEGMENT_PARTS(panels, RULE);
    const int lane = threadIdx.x % 32;
    const int warp = find_warp<RULE>();
    const int group = __shfl_sync(~0u, threadIdx.x / (32 * CHUNK_STATE_WARPS), 0);
    const int rest = blockIdx.x / parts, part = blockIdx.x % parts;
    states_work work;
    work.head = rest % d.v_heads;
    work.panel = part * CHUNK_STATE_WARPS;
    if (!find_work(call, first, rest / d.v_heads, work) || work.number + 1 == work.count)
        return;
    const bool values = work.panel < panels, matrix = RULE && work.number > 0 && part < 2;
    if (!values && !matrix)
        return;
    const states_memory<RULE> m(memory, warp);
    begin_values<RULE>(m);
    begin_barriers<RULE>(m.barriers, (values + matrix) * CHUNK_STATE_WARPS);
    if (group == 0) {
        registers_take<240>();
        if (values)
            pass_alone<RULE, EXACT>(call, work, m, warp, lane);
    } else if (group == 1) {
        registers_take<240>();
        if constexpr (RULE)
            if (matrix)
                pass_matrix<RULE>(call, work, m, part, warp, lane);
    } else {
        registers_release<24>();
        if (warp == 0)
            copy_chunks<RULE>(call, work, m, RING_STATE);
        else if (RULE >= CHUNK_INVERSE && warp == 2)
            copy_values(call, work, m);
        else if (CHUNK_BY_CHANNELS(RULE) && warp == 3)
            copy_updates<RULE>(call, work, m);
    }
}

#endif /* LINEAR_LIKE_CHUNK_STATES_CUH */
