/* SPDX-License-Identifier: Apache-2.0
 *
 * tile.cuh: the part of a state that a thread keeps in registers, and its way to and from a pool.
 *
 * A warp has 4 * `values` elements of v and all of k. Eight lanes share an element of v and divide
 * k among them; each lane has `keys` elements of k for `values` elements of v:
 *
 *   state.ssm.kv/1   lane % 4 says which values, lane / 4 which keys: k = lane / 4 + 8 j
 *   state.ssm.vk/1   lane / 8 says which values, lane % 8 which keys: k = 32 (j / 4) + 4 (lane % 8)
 *                    + j % 4
 *
 * so that both read rows of their layout in whole sectors, and the sum over k takes three shuffles.
 * In shared memory a vector over k is kept in the order of the lanes' registers: four elements of a
 * lane are one access, eight lanes read all banks.
 */
#ifndef LINEAR_LIKE_TILE_CUH
#define LINEAR_LIKE_TILE_CUH

#include "plugins/linear_like/kernels/rows.cuh"

#define DEVICE static __device__ __forceinline__

/* The keys and values of a lane, and the index of its first value and first key. */
template <int KEYS, int VALUES, bool VK, bool BF16> struct tile_place {
    int keys;  /* the lane's part of k, 0..7 */
    int value; /* the first of its values */

    __device__ __forceinline__ tile_place(int first, int warp, int lane)
    {
        keys = VK ? lane % 8 : lane / 4;
        value = first + (warp * 4 + (VK ? lane / 8 : lane % 4)) * VALUES;
    }

    __device__ __forceinline__ int key(int j) const
    {
        return VK ? j / 4 * 32 + keys * 4 + j % 4 : keys + 8 * j;
    }
};

/* The place of element k of a vector over k in shared memory. */
template <bool VK> DEVICE int tile_position(int k)
{
    return VK ? k : k / 32 * 32 + k % 8 * 4 + k / 8 % 4;
}

/* The sum over the eight lanes that share a value. */
template <bool VK> DEVICE float tile_sum(float x)
{
    constexpr int first = VK ? 1 : 4;
    x += __shfl_xor_sync(~0u, x, first);
    x += __shfl_xor_sync(~0u, x, first * 2);
    return x + __shfl_xor_sync(~0u, x, first * 4);
}

/* ---- Elements -------------------------------------------------------------------------------- */

template <bool BF16> DEVICE float pool_load(const char *from)
{
    return BF16 ? element_from_bf16(*(const u16 *)from) : *(const float *)from;
}

template <bool BF16> DEVICE void pool_store(char *to, float x)
{
    if (BF16)
        *(u16 *)to = element_to_bf16(x);
    else
        *(float *)to = x;
}

/* Load COUNT neighbouring elements, aligned to their total size. */
template <int COUNT, bool BF16> DEVICE void pool_load_vector(const char *from, float (&x)[COUNT])
{
    static_assert(COUNT == 4 || COUNT == 2, "one access");
    if constexpr (!BF16 && COUNT == 4) {
        float4 y = __ldcs((const float4 *)from);
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    } else if constexpr (!BF16) {
        float2 y = __ldcs((const float2 *)from);
        x[0] = y.x, x[1] = y.y;
    } else if constexpr (COUNT == 4) {
        uint2 y = __ldcs((const uint2 *)from);
        x[0] = bits_f32(y.x << 16), x[1] = bits_f32(y.x & 0xffff0000);
        x[2] = bits_f32(y.y << 16), x[3] = bits_f32(y.y & 0xffff0000);
    } else {
        u32 y = __ldcs((const u32 *)from);
        x[0] = bits_f32(y << 16), x[1] = bits_f32(y & 0xffff0000);
    }
}

DEVICE u32 pack_bf16(float low, float high)
{
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <int COUNT, bool BF16> DEVICE void pool_store_vector(char *to, const float (&x)[COUNT])
{
    if constexpr (!BF16 && COUNT == 4)
        __stcs((float4 *)to, make_float4(x[0], x[1], x[2], x[3]));
    else if constexpr (!BF16)
        __stcs((float2 *)to, make_float2(x[0], x[1]));
    else if constexpr (COUNT == 4)
        __stcs((uint2 *)to, make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])));
    else
        __stcs((u32 *)to, pack_bf16(x[0], x[1]));
}

/* ---- Between a pool and registers ------------------------------------------------------------ */

template <int KEYS, int VALUES> struct tile {
    float at[VALUES][KEYS];
};

/* Rows and columns beyond the state are 0, and are not written. */
template <int KEYS, int VALUES, bool VK, bool BF16>
DEVICE void tile_load(const linear_call &call, int slot, int head,
                      const tile_place<KEYS, VALUES, VK, BF16> &place, tile<KEYS, VALUES> &s)
{
    constexpr int size = BF16 ? 2 : 4;
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const char *from = o.state + slot * o.state_slot + head * o.state_head;
    const bool whole = o.aligned & LINEAR_ALIGNED_STATE;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            s.at[i][j] = 0;
    if (slot == 0)
        return;
    if (VK && whole) {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
#pragma unroll
            for (int j = 0; j < KEYS; j += 4) {
                float x[4];
                if (place.value + i >= d.v_dim || place.key(j) >= d.k_dim)
                    continue;
                pool_load_vector<4, BF16>(
                    from + (place.value + i) * o.state_row + place.key(j) * size, x);
                s.at[i][j] = x[0], s.at[i][j + 1] = x[1];
                s.at[i][j + 2] = x[2], s.at[i][j + 3] = x[3];
            }
    } else if (!VK && whole) {
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            float x[VALUES];
            if (place.value >= d.v_dim || place.key(j) >= d.k_dim)
                continue;
            pool_load_vector<VALUES, BF16>(from + place.key(j) * o.state_row + place.value * size,
                                           x);
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                s.at[i][j] = x[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                int v = place.value + i, k = place.key(j);
                if (v < d.v_dim && k < d.k_dim)
                    s.at[i][j] =
                        pool_load<BF16>(from + (VK ? v : k) * o.state_row + (VK ? k : v) * size);
            }
    }
}

template <int KEYS, int VALUES, bool VK, bool BF16>
DEVICE void tile_store(const linear_call &call, int slot, int head,
                       const tile_place<KEYS, VALUES, VK, BF16> &place, const tile<KEYS, VALUES> &s)
{
    constexpr int size = BF16 ? 2 : 4;
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    char *to = o.state + slot * o.state_slot + head * o.state_head;
    const bool whole = o.aligned & LINEAR_ALIGNED_STATE;
    if (slot == 0)
        return;
    if (VK && whole) {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
#pragma unroll
            for (int j = 0; j < KEYS; j += 4) {
                const float x[4] = {s.at[i][j], s.at[i][j + 1], s.at[i][j + 2], s.at[i][j + 3]};
                if (place.value + i < d.v_dim && place.key(j) < d.k_dim)
                    pool_store_vector<4, BF16>(
                        to + (place.value + i) * o.state_row + place.key(j) * size, x);
            }
    } else if (!VK && whole) {
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            float x[VALUES];
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                x[i] = s.at[i][j];
            if (place.value < d.v_dim && place.key(j) < d.k_dim)
                pool_store_vector<VALUES, BF16>(
                    to + place.key(j) * o.state_row + place.value * size, x);
        }
    } else {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                int v = place.value + i, k = place.key(j);
                if (v < d.v_dim && k < d.k_dim)
                    pool_store<BF16>(to + (VK ? v : k) * o.state_row + (VK ? k : v) * size,
                                     s.at[i][j]);
            }
    }
}

#endif /* LINEAR_LIKE_TILE_CUH */
