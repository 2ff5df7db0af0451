/* SPDX-License-Identifier: Apache-2.0
 *
 * common.cuh: code that the kernels share: types of the model, instructions, conversions, places of
 * keys and their visibility.
 *
 * The plugin defines, for one layer group (see constants.c):
 *   Q_DTYPE KV_DTYPE OUT_DTYPE   DTYPE_*
 *   HEAD_DIM V_DIM               elements; HEAD_PAD V_PAD: rounded up to 16 * TEAM
 *   TEAM                         warps that share the columns of a row, 1 or 2
 *   GQA KV_HEADS                 query heads of one KV head; KV heads
 *   WINDOW_LEFT CHUNK            -1 and 0 = off
 *   SM_SCALE_BITS LOGIT_CAP_BITS floats as their bits; a cap of 0 = off
 *   HAS_ALIBI HAS_SINKS CUSTOM_MASK SCALE_PER_HEAD SPLIT_PROBABILITIES   0 or 1
 *   PAGE_SIZE
 *   ROW_TILES KEY_TILE           extend: 16-row tiles of a team; keys of a tile
 *   EXTEND_WARPS                 extend: warps of a block
 *   EXTEND_SHARED DECODE_SHARED  bytes of shared memory, checked
 *   WARPS STAGES                 decode: warps of a block, groups of keys in flight of each team
 *   DECODE_BLOCKS                decode: blocks that a multiprocessor runs at once
 *   PARTIAL_DTYPE                of partial results
 */
#include "params.h"
#include "plugins/common/cuda/elements.cuh"
#include "plugins/common/cuda/mask.cuh"
#include "plugins/common/cuda/softmax.cuh"
#include "plugins/common/cuda/work.cuh"
#include "splits.h"

#define DTYPE_F32  0 /* DTYPE_*: ELEMENT_* of elements.cuh, for the preprocessor */
#define DTYPE_F16  1
#define DTYPE_BF16 2
#define DTYPE_E4M3 3
#define DTYPE_E5M2 4
static_assert(DTYPE_F32 == ELEMENT_F32 && DTYPE_F16 == ELEMENT_F16 && DTYPE_BF16 == ELEMENT_BF16 &&
                  DTYPE_E4M3 == ELEMENT_E4M3 && DTYPE_E5M2 == ELEMENT_E5M2,
              "the plugin's data types are numbered as the shared kernels'");

#define KV_IS_FP8         (KV_DTYPE == DTYPE_E4M3 || KV_DTYPE == DTYPE_E5M2)
#define KV_BYTES          (KV_IS_FP8 ? 1 : 2)
#define Q_HEADS           (KV_HEADS * GQA)
#define SM_SCALE          __int_as_float(SM_SCALE_BITS)
#define LOGIT_CAP         __int_as_float(LOGIT_CAP_BITS)
#define HAS_CAP           (LOGIT_CAP_BITS != 0)
#define LOG2E             SOFTMAX_LOG2E
#define LN2               SOFTMAX_LN2
#define NEGATIVE_INFINITY SOFTMAX_EMPTY

#define HEAD_SLICE (HEAD_PAD / TEAM) /* columns of a warp */
#define V_SLICE    (V_PAD / TEAM)

/* The larger of two constants. */
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- Conversions ----------------------------------------------------------------------------- */

__device__ __forceinline__ float f16_to_f32(u16 bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ u16 f32_to_f16(float value)
{
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float bf16_to_f32(u16 bits)
{
    return __uint_as_float((u32)bits << 16);
}

__device__ __forceinline__ u16 f32_to_bf16(float value)
{
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/* A 16-bit element of a type known at compile time as fp32. */
template <int dtype> __device__ __forceinline__ float load16(u16 bits)
{
    return dtype == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

template <int dtype> __device__ __forceinline__ u16 store16(float value)
{
    return dtype == DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value);
}

/* Two values in one word, the first in the low half. */
template <int dtype> __device__ __forceinline__ u32 pack16(float low, float high)
{
    u32 word;
    if (dtype == DTYPE_F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* The two fp8 codes in one half of a word as two f16 values. The conversion is exact, as f16 has
 * every value of both fp8 types; NaN and infinity are kept. e5m2 is the upper half of f16. For e4m3
 * without a conversion instruction, exponent and fraction move to their places in f16. The value is
 * then too small by 2^8, which an exact multiplication corrects; NaN would read as 480. */
template <int half> __device__ __forceinline__ u32 codes_to_f16(u32 codes)
{
#if KV_DTYPE == DTYPE_E4M3 && __CUDA_ARCH__ >= 890
    u32 values;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(values) : "h"((u16)(codes >> half * 16)));
    return values;
#else
    u32 spread = __byte_perm(codes, 0, half ? 0x3424 : 0x1404); /* into the upper bytes */
    if (KV_DTYPE == DTYPE_E5M2)
        return spread;
    u32 values = (spread & 0x80008000u) | (spread & 0x7f007f00u) >> 1;
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(values) : "r"(0x5c005c00u));
    return values | __vcmpeq2(values & 0x7fff7fffu, 0x5f805f80u);
#endif
}

/* The same as two values of Q_DTYPE. bf16 has every fp8 value, too. */
template <int half> __device__ __forceinline__ u32 codes_to_query(u32 codes)
{
    u32 values = codes_to_f16<half>(codes);
    if (Q_DTYPE == DTYPE_F16)
        return values;
    return pack16<DTYPE_BF16>(f16_to_f32((u16)values), f16_to_f32((u16)(values >> 16)));
}

/* ---- Instructions ---------------------------------------------------------------------------- */

__device__ __forceinline__ u32 shared_address(const void *pointer)
{
    return (u32)__cvta_generic_to_shared(pointer);
}

/* Copy 16 bytes from device memory to shared memory, asynchronously. */
__device__ __forceinline__ void copy16(u32 shared, const void *source)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(source) : "memory");
}

/* The same for 4 bytes. */
__device__ __forceinline__ void copy4(u32 shared, const void *source)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(source) : "memory");
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int pending> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

/* Two matrices; lanes 0 to 15 give the row addresses. */
__device__ __forceinline__ void load_matrices(u32 (&r)[2], u32 shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[2], u32 shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared)
                 : "memory");
}

/* c += a * b: 16x16 times 16x8, operands of `dtype`, sums in fp32. */
template <int dtype>
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    if (dtype == DTYPE_F16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The rounding errors of two values that `word` holds in 16 bits each, as a word of the same type.
 * With this second part a probability has twice the bits. The part may be 0 or negative where the
 * probability is not, so it multiplies finite values only: infinite ones are in the sums of the
 * first part. */
template <int dtype> __device__ __forceinline__ u32 remainder16(u32 word, float low, float high)
{
    return pack16<dtype>(low - load16<dtype>((u16)word), high - load16<dtype>((u16)(word >> 16)));
}

/* Two 16-bit values, with 0 in place of one that is not finite. */
template <int dtype> __device__ __forceinline__ u32 finite16(u32 word)
{
    u32 exponents = dtype == DTYPE_F16 ? 0x7c007c00u : 0x7f807f80u;
    return word & ~__vcmpeq2(word & exponents, exponents);
}

/* ---- Teams ----------------------------------------------------------------------------------- */

/* A row of more than 256 columns does not fit in a warp's registers, so the TEAM warps of a team
 * share it. Each has HEAD_SLICE columns of queries and keys, and V_SLICE of values. They add their
 * parts of the scores through shared memory; then each computes the same probabilities. */
__device__ __forceinline__ int team_of()
{
    return (int)threadIdx.x / (32 * TEAM);
}

/* The warp's slice of the columns of its team. */
__device__ __forceinline__ int slice_of()
{
    return TEAM == 1 ? 0 : (int)threadIdx.x / 32 % TEAM;
}

__device__ __forceinline__ int team_lane()
{
    return (int)threadIdx.x % (32 * TEAM);
}

/* Make what a team's threads wrote to shared memory visible to the team. */
__device__ __forceinline__ void team_sync()
{
    if (TEAM == 1)
        __syncwarp();
    else
        asm volatile("barrier.cta.sync %0, %1;" ::"r"(1 + team_of()), "n"(32 * TEAM) : "memory");
}

/* Add the scores of a team's warps, each of which has some of the columns. `room` has `tiles` words
 * of four scores per lane for each warp; it is the team's until the next team_sync(). */
template <int tiles> __device__ __forceinline__ void share_scores(float (*score)[4], float4 *room)
{
    if (TEAM == 1)
        return;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < tiles; j++)
        room[(warp * tiles + j) * 32 + lane] =
            make_float4(score[j][0], score[j][1], score[j][2], score[j][3]);
    team_sync();
#pragma unroll
    for (int j = 0; j < tiles; j++) {
        float4 other = room[((warp ^ 1) * tiles + j) * 32 + lane];
        score[j][0] += other.x;
        score[j][1] += other.y;
        score[j][2] += other.z;
        score[j][3] += other.w;
    }
}

/* ---- Sequences ------------------------------------------------------------------------------- */

/* The first sequence of attn_decode; those before it are attn_extend's. */
__device__ __forceinline__ int first_split_seq(const kernel_params &p)
{
    if (p.split_part == SPLIT_ALL)
        return 0;
    int decode = index_num_decode_seqs(&p.batch);
    return index_num_seqs(&p.batch) - (p.split_part == SPLIT_DECODE ? decode : 0);
}

__device__ __forceinline__ void find_sequence(const kernel_params &p, int s, index_sequence &q)
{
    index_find_sequence(&p.batch, p.operands.k != 0, s, &q);
}

__device__ __forceinline__ const int *find_entry(const kernel_params &p, const index_sequence &q,
                                                 int j)
{
    return index_entry(&p.batch, &q, PAGE_SIZE, j);
}

__device__ __forceinline__ index_place find_key(const kernel_params &p, const index_sequence &q,
                                                int head, int j, int entry)
{
    return index_find_key(&p.operands, &p.batch, &q, PAGE_SIZE, head, j, entry);
}

__device__ __forceinline__ float k_scale_of(const kernel_params &p, int head)
{
    int at = SCALE_PER_HEAD ? head : 0;
    return p.operands.k_scale_device ? p.operands.k_scale_device[at] : p.operands.k_scales[at];
}

__device__ __forceinline__ float v_scale_of(const kernel_params &p, int head)
{
    int at = SCALE_PER_HEAD ? head : 0;
    return p.operands.v_scale_device ? p.operands.v_scale_device[at] : p.operands.v_scales[at];
}

/* ---- Who sees what --------------------------------------------------------------------------- */

__device__ __forceinline__ mask_rule rule_of(const kernel_params &p)
{
    mask_rule rule = {WINDOW_LEFT, p.batch.window_right, CHUNK, CUSTOM_MASK, 0};
    return rule;
}

/* The positions that the window and chunk of position i allow. */
__device__ __forceinline__ void position_range(const kernel_params &p, int i, int &lo, int &hi)
{
    mask_rule rule = rule_of(p);
    mask_positions(&rule, i, &lo, &hi);
}

/* The keys [lo, hi) that at least one of the queries [t0, t1] may see. */
__device__ __forceinline__ void find_outline(const kernel_params &p, const index_sequence &q,
                                             int t0, int t1, int &lo, int &hi)
{
    mask_rule rule = rule_of(p);
    mask_outline(&rule, &p.batch, &q, t0, t1, &lo, &hi);
}

/* What one query sees, and how far its head's window reaches. */
struct row_view {
    mask_view keys;
#if HAS_ALIBI
    float slope;
#endif
};

/* Row r of a tile: query t, query head `head`. t < 0: no row, sees nothing. */
__device__ __forceinline__ void find_view(const kernel_params &p, const index_sequence &q, int s,
                                          int t, int head, row_view &view)
{
    mask_rule rule = rule_of(p);
#if HAS_ALIBI
    view.slope = t >= 0 ? p.operands.slopes[head] : 0.0f;
#endif
    mask_find_view(&rule, &p.batch, &q, s, t, &view.keys);
}

/* Does the row see key j? Keys from `end` on do not exist. */
__device__ __forceinline__ bool sees_key(const kernel_params &p, const index_sequence &q,
                                         const row_view &view, int j, int end)
{
    mask_rule rule = rule_of(p);
    return mask_sees(&rule, &p.batch, &q, &view.keys, j, end);
}

/* The logit of key j in units of log 2, -inf if the row does not see it. `score` is scaled by
 * SCORE_FACTOR. */
__device__ __forceinline__ float finish_score(const kernel_params &p, const index_sequence &q,
                                              const row_view &view, int j, bool seen, float score)
{
    float slope = 0.0f, distance = 0.0f;
#if HAS_ALIBI
    mask_rule rule = rule_of(p);
    slope = view.slope;
    distance =
        fabsf((float)(view.keys.position - (seen ? mask_key_position(&rule, &p.batch, &q, j) : j)));
#endif
    score = softmax_logit(score, LOGIT_CAP, HAS_ALIBI, slope, distance);
    return seen ? score : NEGATIVE_INFINITY;
}

/* The factor of q.k that finish_score() expects. */
#define SCORE_FACTOR softmax_factor(SM_SCALE, HAS_CAP || HAS_ALIBI)

/* ---- Hidden values --------------------------------------------------------------------------- */

/* A key that no row of a warp sees has probability 0, but 0 x NaN is NaN, and places that no query
 * sees may hold anything (KV-06). Window, chunk and the causal rule hide keys only at the ends,
 * which are not read; a custom mask may hide any. So with a custom mask the values of keys that
 * none of the warp's rows sees are cleared in registers, by a word for two neighbouring keys, as
 * scores and values have them: keys (lane & 3) * 2 and the next of each 8. Places after a tile's
 * last key, which repeat that key, are cleared in shared memory: its value may be infinite. */

/* Bit 2 * j + e of `seen` is set if a row of this lane sees key e of its two in the j-th 8 keys.
 * The result has the bits of all rows of the warp. */
__device__ __forceinline__ u32 seen_by_any(u32 seen)
{
    seen |= __shfl_xor_sync(~0u, seen, 4);
    seen |= __shfl_xor_sync(~0u, seen, 8);
    return seen | __shfl_xor_sync(~0u, seen, 16);
}

/* Mask of a word of two values: ones where the key is seen. */
__device__ __forceinline__ u32 seen_halves(u32 seen, int j)
{
    return (seen >> 2 * j & 1 ? 0xffffu : 0) | (seen >> 2 * j & 2 ? 0xffff0000u : 0);
}

/* ---- Shared memory --------------------------------------------------------------------------- */

/* Rows of 16-bit elements in shared memory are padded by 16 bytes, so that the 8 rows of a matrix
 * are in different banks. */
#define K_STRIDE ((HEAD_PAD + 8) * 2)
#define V_STRIDE ((V_PAD + 8) * 2)
/* Rows of fp8 codes have an odd number of 16-byte pieces, for the same reason. */
#define K_CODES ((HEAD_PAD / 16 | 1) * 16)
#define V_CODES ((V_PAD / 16 | 1) * 16)

/* Copy lane `lane`'s part, of `lanes`, of a row of `dim` elements of `size` bytes. For rows that do
 * not begin or end at multiples of 16 bytes. */
template <int dim, int size>
__device__ __forceinline__ void copy_row_slow(char *to, const char *from, int lane, int lanes)
{
#pragma unroll 1
    for (int d = lane; d < dim; d += lanes) {
        if (size == 1)
            ((u8 *)to)[d] = ((const u8 *)from)[d];
        else
            ((u16 *)to)[d] = ((const u16 *)from)[d];
    }
}

/* Copy one lane's part, of 8 lanes, of a row of `dim` elements of `size` bytes. The 8 lanes take
 * 128 contiguous bytes at a time. */
template <int dim, int size>
__device__ __forceinline__ void copy_row(char *to, const char *from, int lane)
{
    constexpr int pieces = dim * size / 16;
#pragma unroll
    for (int piece = 0; piece < pieces; piece += 8)
        if (pieces % 8 == 0 || piece + lane < pieces)
            copy16(shared_address(to) + (piece + lane) * 16, from + (piece + lane) * 16);
}

/* Zero whole rows. */
__device__ __forceinline__ void clear_rows(char *rows, int bytes, int thread, int threads)
{
    for (int i = thread * 16; i < bytes; i += threads * 16)
        *(uint4 *)(rows + i) = make_uint4(0, 0, 0, 0);
}

/* Zero the columns of keys or queries from HEAD_DIM to HEAD_PAD, which no copy writes. */
template <int size>
__device__ __forceinline__ void clear_pad(char *rows, int stride, int count, int thread,
                                          int threads)
{
    constexpr int pad = HEAD_PAD - HEAD_DIM, some = pad ? pad : 1;
    for (int i = thread; i < count * pad; i += threads) {
        char *at = rows + i / some * stride + (HEAD_DIM + i % some) * size;
        if (size == 1)
            *(u8 *)at = 0;
        else
            *(u16 *)at = 0;
    }
}

/* Copy queries [row0, row0 + count) of a KV head to shared memory, by all threads. `rows` exist:
 * the last of them stands in for the others. */
template <int count, int threads>
__device__ __forceinline__ void load_queries(const kernel_params &p, const index_sequence &q,
                                             int row0, int rows, int head, char *to)
{
    int lane = (int)threadIdx.x % 8;
    clear_pad<2>(to, K_STRIDE, count, (int)threadIdx.x, threads);
    for (int r = (int)threadIdx.x / 8; r < count; r += threads / 8) {
        int row = min(row0 + r, rows - 1);
        const char *from = (const char *)p.operands.q +
                           (i64)(q.first_row + row / GQA) * p.operands.q_row +
                           (i64)(head * GQA + row % GQA) * p.operands.q_head;
        if (HEAD_DIM % 8 == 0 && p.operands.aligned & CALL_ALIGNED_Q)
            copy_row<HEAD_DIM, 2>(to + r * K_STRIDE, from, lane);
        else
            copy_row_slow<HEAD_DIM, 2>(to + r * K_STRIDE, from, lane, 8);
    }
}

/* ---- Outputs --------------------------------------------------------------------------------- */

__device__ __forceinline__ void store_out(const kernel_params &p, char *row, int d, float value)
{
#if OUT_DTYPE == DTYPE_F32
    ((float *)row)[d] = value;
#else
    ((u16 *)row)[d] = store16<OUT_DTYPE>(value);
#endif
}

__device__ __forceinline__ char *out_row(const kernel_params &p, int row, int head)
{
    return (char *)p.operands.out + (i64)row * p.operands.out_row + (i64)head * p.operands.out_head;
}

__device__ __forceinline__ void store_lse(const kernel_params &p, int row, int head, float lse)
{
    if (p.operands.lse)
        *(float *)((char *)p.operands.lse + (i64)row * p.operands.lse_row +
                   (i64)head * p.operands.lse_head) = lse;
}

/* Clear output and LSE of a row of no sequence, by all threads of a block. */
__device__ __forceinline__ void clear_row(const kernel_params &p, int row, int head)
{
    for (int d = (int)threadIdx.x; d < V_DIM; d += (int)blockDim.x)
        store_out(p, out_row(p, row, head), d, 0.0f);
    if (threadIdx.x == 0)
        store_lse(p, row, head, NEGATIVE_INFINITY);
}
