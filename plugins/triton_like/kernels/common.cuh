/* SPDX-License-Identifier: Apache-2.0
 *
 * common.cuh: what the kernels share: types of the model at hand, instructions, conversions, where
 * a key lies and who sees it.
 *
 * The plugin defines, for one layer group (see constants.c):
 *   Q_DTYPE KV_DTYPE OUT_DTYPE   DTYPE_*
 *   HEAD_DIM V_DIM               elements; HEAD_PAD V_PAD: rounded up to 16
 *   GQA KV_HEADS                 query heads of one KV head; KV heads
 *   WINDOW_LEFT CHUNK            -1 and 0 = off
 *   SM_SCALE_BITS LOGIT_CAP_BITS floats as their bits; a cap of 0 = off
 *   HAS_ALIBI HAS_SINKS CUSTOM_MASK SCALE_PER_HEAD SPLIT_PROBABILITIES   0 or 1
 *   PAGE_SIZE
 *   ROW_TILES KEY_TILE           extend: 16-row tiles of a warp; keys of a tile
 *   EXTEND_SHARED DECODE_SHARED  bytes of shared memory, checked
 *   WARPS STAGES                 decode: warps of a block, groups of keys in flight of each
 *   DECODE_BLOCKS                decode: blocks that a multiprocessor runs at once
 *   PARTIAL_DTYPE                of partial results
 */
#include "params.h"
#include "splits.h"

#define DTYPE_F32  0
#define DTYPE_F16  1
#define DTYPE_BF16 2
#define DTYPE_E4M3 3
#define DTYPE_E5M2 4

#define KV_IS_FP8         (KV_DTYPE == DTYPE_E4M3 || KV_DTYPE == DTYPE_E5M2)
#define KV_BYTES          (KV_IS_FP8 ? 1 : 2)
#define Q_HEADS           (KV_HEADS * GQA)
#define SM_SCALE          __int_as_float(SM_SCALE_BITS)
#define LOGIT_CAP         __int_as_float(LOGIT_CAP_BITS)
#define HAS_CAP           (LOGIT_CAP_BITS != 0)
#define LOG2E             1.4426950408889634f
#define LN2               0.6931471805599453f
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

/* The larger one, where a constant is needed. */
#define MOST(a, b) ((a) > (b) ? (a) : (b))

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

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

/* A 16-bit type, chosen when this is compiled. */
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

/* The two fp8 codes in a half of a word as two f16 values: exact, as f16 has every value of both
 * kinds of fp8; NaN and infinity stay what they are. e5m2 is the upper half of f16. Of e4m3, where
 * there is no instruction for it, exponent and fraction are put where f16 has them; the value is
 * then too small by 2^8, which an exact product makes good, and NaN would be 480. */
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

/* The same as two values of Q_DTYPE; bf16 has every fp8 value, too. */
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

/* 16 bytes from device memory into shared memory, asynchronously. */
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

/* Two matrices; lanes 0 to 15 say where. */
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

/* c += a * b: 16x16 times 16x8, operands of `dtype`, fp32 sums. */
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

/* What is left of two values when `word` holds them in 16 bits each, as a word of the same kind.
 * With it a probability keeps twice the bits. */
template <int dtype> __device__ __forceinline__ u32 remainder16(u32 word, float low, float high)
{
    return pack16<dtype>(low - load16<dtype>((u16)word), high - load16<dtype>((u16)(word >> 16)));
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* ---- Sequences ------------------------------------------------------------------------------- */

/* Sequences and query rows of the batch; of a graph's, as the last planning left them. */
__device__ __forceinline__ int num_seqs(const kernel_params &p)
{
    return p.counts ? p.counts[COUNT_SEQS] : p.num_seqs;
}

__device__ __forceinline__ int num_tokens(const kernel_params &p)
{
    return p.counts ? p.counts[COUNT_TOKENS] : p.num_tokens;
}

/* Sequences before this one are attn_extend's, it and those behind it attn_decode's. */
__device__ __forceinline__ int first_split_seq(const kernel_params &p)
{
    if (p.split_part == SPLIT_ALL)
        return 0;
    int decode = p.counts ? p.counts[COUNT_DECODE_SEQS] : p.num_decode_seqs;
    return num_seqs(p) - (p.split_part == SPLIT_DECODE ? decode : 0);
}

/* A sequence of the batch. */
struct sequence {
    int first_row; /* of its queries */
    int q_len;
    int prefix_len; /* position of query 0 */
    int kv_len;
    int new_key; /* key of row new_row of k and v; below 0 in padding */
    int new_row;
    int first_new;    /* keys from here on are read from k and v */
    const int *table; /* its row of req_to_token or block_table */
};

__device__ __forceinline__ void find_sequence(const kernel_params &p, int s, sequence &q)
{
    if (p.q_indptr) {
        q.first_row = p.q_indptr[s];
        q.q_len = p.q_indptr[s + 1] - q.first_row;
        q.prefix_len = p.prefix_lens ? p.prefix_lens[s] : 0;
    } else {
        q.first_row = s;
        q.q_len = 1;
        q.prefix_len = p.seq_lens[s] - 1;
    }
    q.kv_len = p.kv_lens ? p.kv_lens[s] : q.q_len;
    int num_new = q.q_len;
    q.new_row = q.first_row;
    if (p.new_indptr) {
        q.new_row = p.new_indptr[s];
        num_new = p.new_indptr[s + 1] - q.new_row;
    }
    q.new_key = q.kv_len - num_new;
    q.first_new = p.k ? max(q.new_key, 0) : q.kv_len;
    q.table = 0;
    if (p.block_table)
        q.table = p.block_table + (i64)s * p.table_stride;
    else if (p.req_to_token)
        q.table = p.req_to_token + (i64)p.req_pool_indices[s] * p.table_stride;
}

/* A block's search for its work: the sequences before `base` have `before` pieces of it. */
struct search {
    int base;
    int before;
};

/* Find piece `wanted` of the work that sequences [at.base, end) have, count(s) pieces each: the
 * sequence `s`, and which one of its pieces. False if there are not as many. All lanes search
 * together, each counts for one sequence of 32. */
template <typename Count>
__device__ __forceinline__ bool find_piece(search &at, int end, int wanted, Count count, int &s,
                                           int &piece)
{
    int lane = (int)threadIdx.x & 31;
    for (; at.base < end; at.base += 32) {
        int mine = at.base + lane < end ? count(at.base + lane) : 0, sum = mine;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? other : 0;
        }
        u32 enough = __ballot_sync(~0u, wanted < at.before + sum);
        if (enough) {
            int owner = __ffs((int)enough) - 1;
            s = at.base + owner;
            piece = wanted - at.before - __shfl_sync(~0u, sum - mine, owner);
            return true;
        }
        at.before += __shfl_sync(~0u, sum, 31);
    }
    return false;
}

/* What block_table or req_to_token have for key j, its page or its slot; NULL for a new token. It
 * is loaded long before it is used, so that nothing waits for it. */
__device__ __forceinline__ const int *find_entry(const kernel_params &p, const sequence &q, int j)
{
    return j < q.first_new ? q.table + (p.block_table ? j / PAGE_SIZE : j) : 0;
}

/* Where a key and its value lie. */
struct key_place {
    const char *k;
    const char *v;
};

__device__ __forceinline__ key_place find_key(const kernel_params &p, const sequence &q, int head,
                                              int j, int entry)
{
    key_place place;
    if (j >= q.first_new) {
        i64 row = q.new_row + (j - q.new_key);
        place.k = (const char *)p.k + row * p.k_row + head * p.k_head;
        place.v = (const char *)p.v + row * p.v_row + head * p.v_head;
        return place;
    }
    i64 page = p.block_table ? entry : entry / PAGE_SIZE;
    int offset = (p.block_table ? j : entry) % PAGE_SIZE;
    place.k =
        (const char *)p.k_cache + page * p.k_page + offset * p.k_token + head * p.k_cache_head;
    place.v =
        (const char *)p.v_cache + page * p.v_page + offset * p.v_token + head * p.v_cache_head;
    return place;
}

__device__ __forceinline__ float k_scale_of(const kernel_params &p, int head)
{
    int at = SCALE_PER_HEAD ? head : 0;
    return p.k_scale_device ? p.k_scale_device[at] : p.k_scales[at];
}

__device__ __forceinline__ float v_scale_of(const kernel_params &p, int head)
{
    int at = SCALE_PER_HEAD ? head : 0;
    return p.v_scale_device ? p.v_scale_device[at] : p.v_scales[at];
}

/* ---- Who sees what --------------------------------------------------------------------------- */

/* What one query sees: keys at positions [lo, hi); a custom mask thins them out. */
struct row_view {
    int lo;
    int hi;
#if HAS_ALIBI || CUSTOM_MASK
    int position;
#endif
#if HAS_ALIBI
    float slope;
#endif
#if CUSTOM_MASK
    i64 bit;       /* of key 0 in the sequence's bits */
    int first_bit; /* keys before are seen without a bit */
    int end_bit;
#endif
};

__device__ __forceinline__ int floor_to_chunk(int i)
{
    return CHUNK > 0 ? (i - (i < 0 ? CHUNK - 1 : 0)) / (CHUNK > 0 ? CHUNK : 1) * CHUNK : 0;
}

/* The positions that window and chunk leave to position i. */
__device__ __forceinline__ void position_range(const kernel_params &p, int i, int &lo, int &hi)
{
    i64 from = -0x7fffffffll, to = 0x7fffffff;
    if (WINDOW_LEFT >= 0)
        from = (i64)i - WINDOW_LEFT;
    if (p.window_right >= 0)
        to = (i64)i + p.window_right + 1;
    if (CHUNK > 0) {
        i64 start = floor_to_chunk(i);
        i64 end = CUSTOM_MASK ? start + CHUNK : (i64)i + 1;
        from = from > start ? from : start;
        to = to < end ? to : end;
    }
    lo = (int)(from > -0x7fffffffll ? from : -0x7fffffffll);
    hi = (int)(to < 0x7fffffff ? to : 0x7fffffff);
}

__device__ __forceinline__ int query_position(const kernel_params &p, const sequence &q, int t)
{
    if (CUSTOM_MASK && p.positions)
        return p.positions[q.first_row + t];
    return q.prefix_len + t;
}

/* The keys [lo, hi) that at least one of the queries [t0, t1] may see. Without a custom mask each
 * of them is seen by one. */
__device__ __forceinline__ void find_outline(const kernel_params &p, const sequence &q, int t0,
                                             int t1, int &lo, int &hi)
{
    int ignored;
    lo = 0;
    hi = q.kv_len;
    if (!(CUSTOM_MASK && p.positions)) { /* else a new key may be anywhere */
        position_range(p, q.prefix_len + t0, lo, ignored);
        position_range(p, q.prefix_len + t1, ignored, hi);
    }
    lo = max(lo, 0);
    hi = min(hi, q.kv_len);
    if (lo >= hi)
        lo = hi = 0;
}

/* Row r of a tile's rows: query t, query head `head`. t < 0: not a row, sees nothing. */
__device__ __forceinline__ void find_view(const kernel_params &p, const sequence &q, int s, int t,
                                          int head, row_view &view)
{
    view.lo = view.hi = 0;
#if HAS_ALIBI || CUSTOM_MASK
    view.position = 0;
#endif
#if HAS_ALIBI
    view.slope = t >= 0 ? p.slopes[head] : 0.0f;
#endif
#if CUSTOM_MASK
    view.bit = 0;
    view.first_bit = view.end_bit = 0;
#endif
    if (t < 0)
        return;
    int i = query_position(p, q, t);
    position_range(p, i, view.lo, view.hi);
#if HAS_ALIBI || CUSTOM_MASK
    view.position = i;
#endif
#if CUSTOM_MASK
    if (p.mask_bits) {
        int columns = p.mask_qlen ? q.q_len : q.kv_len;
        view.first_bit = p.mask_qlen ? q.prefix_len : 0;
        view.end_bit = view.first_bit + columns;
        view.bit = p.mask_indptr[s] * 8 + (i64)t * columns - view.first_bit;
    }
#endif
}

__device__ __forceinline__ int key_position(const kernel_params &p, const sequence &q, int j)
{
    int n = j - q.prefix_len;
    return CUSTOM_MASK && p.positions && n >= 0 && n < q.q_len ? p.positions[q.first_row + n] : j;
}

/* Does the row see key j? Keys from `end` on are not there. */
__device__ __forceinline__ bool sees_key(const kernel_params &p, const sequence &q,
                                         const row_view &view, int j, int end)
{
    bool seen = j < end;
    int at = seen ? key_position(p, q, j) : j;
    seen = seen && view.lo <= at && at < view.hi;
#if CUSTOM_MASK
    if (seen && p.mask_bits && j >= view.first_bit) {
        i64 bit = view.bit + j;
        seen = j < view.end_bit && (p.mask_bits[bit >> 3] >> (bit & 7) & 1);
    }
#endif
    return seen;
}

/* The logit of key j in units of log 2, -inf if it is not seen. `score` is scaled by sm_scale (and
 * by log2(e) where neither ALiBi nor the cap is in the way). */
__device__ __forceinline__ float finish_score(const kernel_params &p, const sequence &q,
                                              const row_view &view, int j, bool seen, float score)
{
#if HAS_ALIBI
    score -= view.slope * fabsf((float)(view.position - (seen ? key_position(p, q, j) : j)));
#endif
    if (HAS_CAP)
        score = LOGIT_CAP * LOG2E * tanhf(score * (1.0f / (HAS_CAP ? LOGIT_CAP : 1.0f)));
    else if (HAS_ALIBI)
        score *= LOG2E;
    return seen ? score : NEGATIVE_INFINITY;
}

/* Factor of q.k that finish_score expects. */
#define SCORE_FACTOR (SM_SCALE * (HAS_CAP || HAS_ALIBI ? 1.0f : LOG2E))

/* ---- Hidden values --------------------------------------------------------------------------- */

/* A key that no row of a warp sees has probability 0 in all of them, but 0 x NaN is NaN, and what
 * lies where nobody looks may be anything (KV-06). Window, chunk and the causal rule hide keys at
 * the ends only, which are not read; a custom mask hides them anywhere. So with one the values of
 * keys that none of the warp's rows sees are cleared in registers, by a word for two neighbouring
 * keys, as scores and values have them: keys (lane & 3) * 2 and the next of each 8. */

/* `seen` has bit 2 * j + e if a row of this lane sees key e of its two of the j-th 8: those that
 * any row of the warp sees. */
__device__ __forceinline__ u32 seen_by_any(u32 seen)
{
    seen |= __shfl_xor_sync(~0u, seen, 4);
    seen |= __shfl_xor_sync(~0u, seen, 8);
    return seen | __shfl_xor_sync(~0u, seen, 16);
}

/* Bits of a word that hold values of keys that are seen. */
__device__ __forceinline__ u32 seen_halves(u32 seen, int j)
{
    return (seen >> 2 * j & 1 ? 0xffffu : 0) | (seen >> 2 * j & 2 ? 0xffff0000u : 0);
}

/* ---- Shared memory --------------------------------------------------------------------------- */

/* Rows of 16-bit elements in shared memory are padded by 16 bytes, so that the 8 rows of a matrix
 * lie in different banks. */
#define K_STRIDE ((HEAD_PAD + 8) * 2)
#define V_STRIDE ((V_PAD + 8) * 2)
/* Rows of fp8 codes, for the same reason, are an odd number of 16-byte pieces. */
#define K_CODES ((HEAD_PAD / 16 | 1) * 16)
#define V_CODES ((V_PAD / 16 | 1) * 16)

/* Copy a row of `dim` elements of `size` bytes as far as lane `lane` of `lanes` has to: for rows
 * that do not begin, or end, at multiples of 16 bytes. */
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

/* Copy as much of a row of `dim` elements of `size` bytes as one of 8 lanes has to: all 8 take 128
 * bytes in a row at a time. */
template <int dim, int size>
__device__ __forceinline__ void copy_row(char *to, const char *from, int lane)
{
    constexpr int pieces = dim * size / 16;
#pragma unroll
    for (int piece = 0; piece < pieces; piece += 8)
        if (pieces % 8 == 0 || piece + lane < pieces)
            copy16(shared_address(to) + (piece + lane) * 16, from + (piece + lane) * 16);
}

/* Zero the columns of keys or queries between HEAD_DIM and HEAD_PAD, which no copy writes to. */
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

/* Queries [row0, row0 + count) of a KV head into shared memory, by all threads. There are `rows`:
 * the last of them stands for those that are not there. */
template <int count, int threads>
__device__ __forceinline__ void load_queries(const kernel_params &p, const sequence &q, int row0,
                                             int rows, int head, char *to)
{
    int lane = (int)threadIdx.x % 8;
    clear_pad<2>(to, K_STRIDE, count, (int)threadIdx.x, threads);
    for (int r = (int)threadIdx.x / 8; r < count; r += threads / 8) {
        int row = min(row0 + r, rows - 1);
        const char *from = (const char *)p.q + (i64)(q.first_row + row / GQA) * p.q_row +
                           (i64)(head * GQA + row % GQA) * p.q_head;
        if (HEAD_DIM % 8 == 0 && p.aligned & ALIGNED_Q)
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
    return (char *)p.out + (i64)row * p.out_row + (i64)head * p.out_head;
}

__device__ __forceinline__ void store_lse(const kernel_params &p, int row, int head, float lse)
{
    if (p.lse)
        *(float *)((char *)p.lse + (i64)row * p.lse_row + (i64)head * p.lse_head) = lse;
}

/* Output and LSE of a row of no sequence, by all threads of a block. */
__device__ __forceinline__ void clear_row(const kernel_params &p, int row, int head)
{
    for (int d = (int)threadIdx.x; d < V_DIM; d += (int)blockDim.x)
        store_out(p, out_row(p, row, head), d, 0.0f);
    if (threadIdx.x == 0)
        store_lse(p, row, head, NEGATIVE_INFINITY);
}
