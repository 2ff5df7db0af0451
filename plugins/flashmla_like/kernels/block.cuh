/* SPDX-License-Identifier: Apache-2.0
 *
 * block.cuh: shared by all kernels: shared memory and barriers, iteration over units, visible keys,
 * copies of latents, and the frame of a kernel of four or five warpgroups with one role each. All
 * warpgroups iterate over the same units and tiles. Barriers pass tiles (full, empty) and
 * probabilities (p_full, p_empty) between them.
 */
#ifndef FLASHMLA_LIKE_BLOCK_CUH
#define FLASHMLA_LIKE_BLOCK_CUH

#include "plugins/flashmla_like/kernels/plan.cuh"
#include "plugins/common/cuda/merge_states.cuh"
#include "plugins/common/cuda/save_kv.cuh"
#include "plugins/common/cuda/softmax.cuh"
#include "plugins/common/cuda/warpgroup.cuh"

#include <stddef.h>

#define PANELS (MLA_DIM / PANEL)

/* ---- Shared memory ----------------------------------------------------------------------------- */

template <int N> struct mla_shared {
    unsigned q, tiles, p;
    float *exchange; /* [4 warps][N] */
    float *factor;   /* [N] factors of outputs */
    float *q_scale;  /* [N] factors of scores: e4m3 only */
    int *lo, *hi;    /* [N] keys that a row sees */
    unsigned full, empty, p_full, p_empty;
    unsigned scored;              /* 64 rows only: the scores of a tile are complete */
    unsigned raw_full, raw_empty; /* 64 rows over fp8 only: fp8 tiles to be widened */
    unsigned raw;                 /* packed latents, 16 rows and more: scales in fp16 */
    unsigned odd;                 /* packed latents only: flags of their scales */
    unsigned scores;              /* packed latents, 16 rows and more: scores */
};

/* One of the buffers of probabilities (`bytes` each) and factors. */
template <int N, int bytes> DEVICE mla_shared<N> part_buffer(mla_shared<N> m, int slot)
{
    m.p += slot * bytes;
    m.factor += slot * N;
    m.p_full += slot * 8;
    m.p_empty += slot * 8;
    return m;
}

/* The buffer in which warps exchange maxima: two buffers alternate, so that no warp waits for
 * readers of the previous maxima. */
template <int N, int scorers> DEVICE mla_shared<N> exchange_buffer(mla_shared<N> m, int slot)
{
    m.exchange += slot * (4 * scorers * N);
    return m;
}

DEVICE void copy_async(unsigned to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}

/* The L2 policy of latents: those that only one block reads are evicted first. Code, plans and
 * tables, which are read again, stay. */
DEVICE unsigned long long codes_policy(const mla_call &c)
{
    unsigned long long once, normal;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    return c.pair == 1 ? once : normal;
}

DEVICE void copy_async_by(unsigned to, const void *from, int bytes, unsigned long long policy)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
        "l"(from), "r"(bytes), "l"(policy)
        : "memory");
}

/* Arrives when this thread's copies so far have completed. */
DEVICE void copy_arrive(unsigned barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Copies 16 bytes from an address that is a multiple of 2. */
DEVICE void copy_slow(unsigned to, const char *from, int bytes)
{
    u32 words[4] = {0, 0, 0, 0};
    const any16 *halves = (const any16 *)from;
    if (bytes)
        for (int i = 0; i < 4; i++)
            words[i] = halves[2 * i] | (u32)halves[2 * i + 1] << 16;
    shared_store(to, make_uint4(words[0], words[1], words[2], words[3]));
}

/* ---- Work ------------------------------------------------------------------------------------ */

/* The block's range, and the block's number in its pair. `pair` is 1 or 2. */
DEVICE int block_range(const mla_call &c)
{
    return (int)blockIdx.x >> (c.pair - 1);
}

DEVICE int block_half(const mla_call &c)
{
    return (int)blockIdx.x & (c.pair - 1);
}

/* Iterates over a range's units. */
struct mla_walk {
    mla_unit u;         /* without its sequence */
    const mla_unit *at; /* its address, valid until its first tile */
    int unit;           /* its number */
    int t0, t1;         /* tiles */
};

/* The last fields of the range's mla_start: the first unit's number, the end of the units, the
 * range's length. */
DEVICE int4 walk_line(const mla_call &c)
{
    return *(const int4 *)&c.starts[block_range(c)].unit;
}

/* Reads the unit at w.at, without its sequence. */
DEVICE void walk_read(mla_walk &w)
{
    const int4 x = *(const int4 *)w.at;
    w.u.first_row = x.x;
    w.u.begin = x.y;
    w.u.first_tile = x.z;
    w.u.tiles = x.w;
}

/* The unit's sequence, while w.at is valid. */
DEVICE void walk_sequence(const mla_call &c, const mla_walk &w, index_sequence *q)
{
    *q = w.at->q;
    if (c.shrinks)
        q->kv_len = index_int(c.batch.kv_lens, q->first_row - index_int(c.batch.q_indptr, 0));
    q->first_new = c.operands.k ? q->first_new : q->kv_len;
}

/* The same later. */
DEVICE void walk_sequence_again(const mla_call &c, mla_walk &w, index_sequence *q)
{
    w.at = c.units + w.unit;
    walk_sequence(c, w, q);
}

DEVICE bool walk_here(const mla_call &c, mla_walk &w, int range)
{
    plan_tiles(&w.u, range, block_range(c), &w.t0, &w.t1);
    return w.t0 < w.t1;
}

/* Starts at the range's first unit; false: the range has no tiles. */
DEVICE bool walk_begin(const mla_call &c, mla_walk &w)
{
    const int4 line = walk_line(c);
    w.at = &c.starts[block_range(c)].first;
    walk_read(w);
    w.unit = line.x;
    return w.unit < line.y && walk_here(c, w, line.z);
}

/* Moves to the next unit; false: the range has none. If the range has no tiles of it, the unit lies
 * after the range's end, or so close before it that the next range has all of its tiles. */
DEVICE bool walk_next(const mla_call &c, mla_walk &w)
{
    if (++w.unit >= c.most_units)
        return false;
    const int4 line = walk_line(c);
    w.at = c.units + w.unit;
    walk_read(w); /* before the check of w.unit, so that both loads overlap */
    return w.unit < line.y && walk_here(c, w, line.z);
}

/* Does the range have the unit's end? If not, this is its last unit. */
DEVICE bool walk_ends(const mla_walk &w)
{
    return w.t1 == w.u.tiles;
}

/* Starts before the first unit, for kernels without registers for walk_begin(). */
DEVICE mla_walk walk_before(const mla_call &c)
{
    mla_walk w;
    w.unit = walk_line(c).x - 1;
    return w;
}

/* Reads the unit again, so that code after its tiles needs no registers for it. */
DEVICE void walk_again(const mla_call &c, mla_walk &w)
{
    w.at = c.units + w.unit;
    walk_read(w);
    walk_here(c, w, walk_line(c).z);
}

DEVICE bool walk_whole(const mla_walk &w)
{
    return w.t0 == 0 && w.t1 == w.u.tiles;
}

/* This block's first row in the sequence. */
template <int N> DEVICE int first_row(const mla_call &c, const mla_walk &w)
{
    return w.u.first_row + block_half(c) * N;
}

/* The place of the parts of this block's unit, counted in states of N rows. */
DEVICE i64 part_place(const mla_call &c, const mla_walk &w)
{
    return (i64)plan_part_place(&c, block_range(c), w.t0 == 0) * c.pair + block_half(c);
}

/* Parts store rows in groups of eight. So the eight rows of adjacent dimensions that a warp of
 * mla_merge reads are contiguous. */
#define PART_EIGHT (MLA_LORA * 8)

/* The address of dimension d of row n in the block's part. */
template <int N> DEVICE float *part_find(const mla_call &c, const mla_walk &w, int n, int d)
{
    return c.parts + part_place(c, w) * (MLA_LORA * N) + n / 8 * PART_EIGHT + d * 8 + n % 8;
}

/* A row's query and head. With one query there is no division: code that runs once per unit takes
 * as long as it is. */
struct row_place {
    int query, head;
};

DEVICE row_place row_find(const mla_call &c, const index_sequence &q, int row)
{
    row_place at = {0, row};
    if (q.q_len > 1) {
        at.query = row / c.heads;
        at.head = row - at.query * c.heads;
    }
    return at;
}

DEVICE char *row_out(const mla_call &c, const index_sequence &q, int row)
{
    const row_place at = row_find(c, q, row);
    return (char *)c.operands.out + (q.first_row + at.query) * c.operands.out_row +
           at.head * c.operands.out_head;
}

DEVICE float *row_lse(const mla_call &c, const index_sequence &q, int row)
{
    const row_place at = row_find(c, q, row);
    return (float *)((char *)c.operands.lse + (q.first_row + at.query) * c.operands.lse_row +
                     at.head * c.operands.lse_head);
}

/* The unit's sequence, and the keys [*lo, *hi) that at least one of its rows sees. */
template <int N>
DEVICE void unit_begin(const mla_call &c, const mla_walk &w, const mask_rule &rule,
                       index_sequence *q, int *lo, int *hi)
{
    const int rows = N * c.pair;
    walk_sequence(c, w, q);
    const int last = int_min(w.u.first_row + rows, q->q_len * c.heads) - 1;
    mask_outline(&rule, &c.batch, q, row_find(c, *q, w.u.first_row).query,
                 row_find(c, *q, last).query, lo, hi);
}

/* The keys [*lo, *hi) that a row of the block sees; none if the row does not exist. */
template <int N>
DEVICE void row_seen(const mla_call &c, const mla_walk &w, const index_sequence &q,
                     const mask_rule &rule, int n, int *lo, int *hi)
{
    const int row = first_row<N>(c, w) + n;
    int from = 0, to = 0;
    if (row < q.q_len * c.heads) {
        const int t = row_find(c, q, row).query;
        mask_outline(&rule, &c.batch, &q, t, t, &from, &to);
    }
    *lo = from;
    *hi = to;
}

/* The keys [*lo, *hi) that every row of the block sees: the first query has the lowest end, the
 * last query the highest begin. */
template <int N>
DEVICE void all_see(const mla_call &c, const mla_walk &w, const index_sequence &q,
                    const mla_shared<N> &m, int *lo, int *hi)
{
    *lo = m.lo[int_min(N, q.q_len * c.heads - first_row<N>(c, w)) - 1];
    *hi = m.hi[0];
}

/* ---- Latents --------------------------------------------------------------------------------- */

/* The source of a lane's row, one of a warp's 16 of a tile. */
struct mla_source {
    const char *c_kv, *k_pe;
    int bytes; /* 16, or 0 for zeros */
};

/* The table's entry for key j, read one tile ahead; 0 for keys that are not read there. */
DEVICE int find_entry(const mla_call &c, const index_sequence &q, int lo, int hi, int j)
{
    return j >= lo && j < hi && j < q.first_new ? *index_entry(&c.batch, &q, c.page_size, j) : 0;
}

DEVICE mla_source find_source(const mla_call &c, const index_sequence &q, int lo, int hi, int j,
                              int entry)
{
    mla_source from = {(const char *)c.operands.k_cache, (const char *)c.operands.v_cache, 0};
    if (j < lo || j >= hi)
        return from;
    index_place at = index_find_key(&c.operands, &c.batch, &q, c.page_size, 0, j, entry);
    from.c_kv = at.k;
    from.k_pe = at.v;
    from.bytes = 16;
    return from;
}

DEVICE const char *shuffle_pointer(const char *pointer, int lane)
{
    return (const char *)__shfl_sync(~0u, (unsigned long long)pointer, lane);
}

/* Copies a warp's quarter of a tile of T latents. Eight lanes copy the 128 bytes of a row in a
 * panel, four rows at a time. `panels`: the number of panels, from the first on. */
template <int T, int panels = PANELS>
DEVICE void load_tile(const mla_call &c, const mla_source &mine, unsigned tile, int warp, int lane,
                      bool aligned)
{
    const int piece = lane % 8, lora = c.lora - piece * 8, rope = c.rope - piece * 8;
#pragma unroll
    for (int i = 0; i < T / 16; i++) {
        int row = i * 4 + lane / 8;
        const char *c_kv = shuffle_pointer(mine.c_kv, row) + piece * 16;
        const char *k_pe = shuffle_pointer(mine.k_pe, row) + piece * 16;
        int bytes = __shfl_sync(~0u, mine.bytes, row);
        unsigned to = tile + swizzled(warp * (T / 4) + row, piece);
        if (aligned) {
#pragma unroll
            for (int p = 0; p < panels && p < PANELS - 1; p++)
                copy_async(to + p * (T * ROW_BYTES), c_kv + p * ROW_BYTES,
                           p * PANEL < lora ? bytes : 0);
            if (panels == PANELS)
                copy_async(to + (PANELS - 1) * (T * ROW_BYTES), k_pe, rope > 0 ? bytes : 0);
        } else {
            for (int p = 0; p < panels && p < PANELS - 1; p++)
                copy_slow(to + p * (T * ROW_BYTES), c_kv + p * ROW_BYTES,
                          p * PANEL < lora ? bytes : 0);
            if (panels == PANELS)
                copy_slow(to + (PANELS - 1) * (T * ROW_BYTES), k_pe, rope > 0 ? bytes : 0);
        }
    }
}

/* Are the table's entries slots at equal distances, across pages? */
DEVICE bool slots_in_line(const mla_call &c)
{
    const call_operands &o = c.operands;
    return c.batch.req_to_token && o.k_page == c.page_size * o.k_token &&
           o.v_page == c.page_size * o.v_token;
}

/* find_source(), without divisions if slots have equal distances. */
DEVICE mla_source find_line_source(const mla_call &c, const index_sequence &q, int lo, int hi,
                                   int j, int entry)
{
    if (!slots_in_line(c) || j >= q.first_new)
        return find_source(c, q, lo, hi, j, entry);
    mla_source from = {(const char *)c.operands.k_cache, (const char *)c.operands.v_cache, 0};
    if (j >= lo && j < hi) {
        from.c_kv += entry * c.operands.k_token;
        from.k_pe += entry * c.operands.v_token;
        from.bytes = 16;
    }
    return from;
}

/* Do latents have the full width, and is each of a warp's rows contiguous? */
DEVICE bool source_whole(const mla_call &c, const mla_source &mine)
{
    const bool one = mine.k_pe - mine.c_kv == MLA_LORA * 2;
    return c.lora == MLA_LORA && c.rope == MLA_ROPE && __all_sync(~0u, one);
}

/* load_tile() for such rows, with fewer instructions: these limit a loading warp. */
template <int T, int panels = PANELS>
DEVICE void load_whole(const mla_source &mine, unsigned tile, int warp, int lane)
{
#pragma unroll
    for (int i = 0; i < T / 16; i++) {
        const int row = i * 4 + lane / 8;
        const char *from = shuffle_pointer(mine.c_kv, row) + lane % 8 * 16;
        const int bytes = __shfl_sync(~0u, mine.bytes, row);
        const unsigned to = tile + swizzled(warp * (T / 4) + row, lane % 8);
#pragma unroll
        for (int p = 0; p < panels; p++)
            copy_async(to + p * (T * ROW_BYTES), from + p * ROW_BYTES, bytes);
    }
}

/* The loop of warpgroup 0 over all tiles of T latents. `mine`: a lane's key of a tile. find()
 * returns its source from its table entry; load() copies to a slot of the ring and arrives at a
 * barrier. */
template <int N, int T, int stages, class finder, class loader>
DEVICE void feed_tiles(const mla_call &c, const mla_shared<N> &m, int mine, const finder &find,
                       const loader &load)
{
    const mask_rule rule = plan_rule(&c);
    ring<stages> at;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        int lo, hi;
        unit_begin<N>(c, w, rule, &q, &lo, &hi);
        int j = (w.u.first_tile + w.t0) * T + mine;
        int entry = find_entry(c, q, lo, hi, j);
        for (int t = w.t0; t < w.t1; t++) {
            const auto now = find(q, lo, hi, j, entry);
            j += T;
            entry = find_entry(c, q, lo, hi, j);
            barrier_wait(m.empty + 8 * at.slot, at.phase ^ 1);
            load(now, at.slot, m.full + 8 * at.slot);
            at.advance();
        }
    }
}

/* ---- New latents, and rows of no sequence ------------------------------------------------------ */

/* Copies new latents to their slots. In this launch they are read from the operands instead. */
DEVICE void save_latents(const mla_call &c, int to_dtype, int thread, int threads)
{
    const call_operands *o = &c.operands;
    const int *indptr = c.batch.new_indptr ? c.batch.new_indptr : c.batch.q_indptr;
    i64 first = indptr ? index_int(indptr, 0) : 0, end = index_num_seqs(&c.batch);
    if (indptr)
        end = index_int(indptr, end);
    const float *scales = o->k_scale_device ? o->k_scale_device : o->k_scales;
    save_kv_call call = {
        {o->k, o->k_cache, o->k_row, 0, o->k_page, o->k_token, 0, scales, 0, c.lora},
        {o->v, o->v_cache, o->v_row, 0, o->v_page, o->v_token, 0, scales, 0, c.rope},
        c.batch.out_cache_loc,
        c.page_size,
        ELEMENT_BF16,
        to_dtype};
    save_kv_rows(&call, first + (int)blockIdx.x, end, (int)gridDim.x, 0, thread, threads);
}

/* Clears rows of no sequence: their output must be finite. */
DEVICE void clear_padding(const mla_call &c, int thread, int threads)
{
    const int *indptr = c.batch.q_indptr;
    int seqs = index_num_seqs(&c.batch), first = indptr ? index_int(indptr, seqs) : seqs;
    int end = (indptr ? index_int(indptr, 0) : 0) + index_num_tokens(&c.batch);
    for (int row = first + (int)blockIdx.x; row < end; row += (int)gridDim.x) {
        for (int i = thread; i < c.heads * c.lora; i += threads)
            element_store(c.out_f32 ? ELEMENT_F32 : ELEMENT_BF16,
                          (char *)c.operands.out + row * c.operands.out_row +
                              i / c.lora * c.operands.out_head,
                          i % c.lora, 0.0f);
        for (int h = thread; h < c.heads && c.operands.lse; h += threads)
            *(float *)((char *)c.operands.lse + row * c.operands.lse_row +
                       h * c.operands.lse_head) = SOFTMAX_EMPTY;
    }
}

/* Work of warpgroups 2 and 3 while the first tile is loaded; `dtype`: of the cache. */
DEVICE void begin_rows(const mla_call &c, int dtype, int thread)
{
    if (c.operands.save)
        save_latents(c, dtype, thread, 2 * GROUP_THREADS);
    clear_padding(c, thread, 2 * GROUP_THREADS);
}

/* ---- Kernel ------------------------------------------------------------------------------------ */

#define DEVICE_MEMBER __device__ __forceinline__

/* The roles of a kernel's warpgroups, as calls with `memory`, or with `c` and `m`. */
#define MLA_ROLES(found, feeds, scores, adds)                                                      \
    static DEVICE_MEMBER mla_shared<rows> find(unsigned char *memory)                              \
    {                                                                                              \
        return found;                                                                              \
    }                                                                                              \
    static DEVICE_MEMBER void feed(const mla_call &c, const mla_shared<rows> &m)                   \
    {                                                                                              \
        feeds;                                                                                     \
    }                                                                                              \
    static DEVICE_MEMBER void score(const mla_call &c, const mla_shared<rows> &m)                  \
    {                                                                                              \
        scores;                                                                                    \
    }                                                                                              \
    static DEVICE_MEMBER void add_up(const mla_call &c, const mla_shared<rows> &m)                 \
    {                                                                                              \
        adds;                                                                                      \
    }

/* `start`: registers of each thread at launch. */
template <int start, int registers> DEVICE void setmaxnreg(void)
{
    if constexpr (registers < start)
        setmaxnreg_dec<registers>();
    else if constexpr (registers > start)
        setmaxnreg_inc<registers>();
}

/* Called by one thread. */
template <class roles> DEVICE void barriers_init(const mla_shared<roles::rows> &m)
{
    for (int i = 0; i < roles::stages; i++) {
        barrier_init(m.full + 8 * i, roles::fillers);
        barrier_init(m.empty + 8 * i, 12);
    }
    for (int i = 0; i < roles::buffers; i++) {
        barrier_init(m.p_full + 8 * i, roles::scorers * GROUP_THREADS);
        barrier_init(m.p_empty + 8 * i, 2 * GROUP_THREADS);
    }
    for (int i = 0; i < roles::turns; i++)
        barrier_init(m.scored + 8 * i, 4);
    for (int i = 0; i < roles::raws; i++) {
        barrier_init(m.raw_full + 8 * i, GROUP_THREADS);
        barrier_init(m.raw_empty + 8 * i, 8);
    }
    fence_barrier_init();
}

/* Loads the lines of arguments that blocks read into the constant cache, while the previous kernel
 * still runs. */
DEVICE void fetch_arguments(const mla_call &c)
{
    constexpr int line = 64, scales = offsetof(mla_call, operands.k_scales) / line;
    constexpr int batch = offsetof(mla_call, batch) / line, end = offsetof(mla_call, maps) / line;
    const unsigned *words = (const unsigned *)&c;
    unsigned any = 0;
#pragma unroll
    for (int i = 0; i < end; i++)
        if (i <= scales || i >= batch)
            any |= words[i * line / 4];
    if (any == 0xfeedbeef) /* keeps the loads from being optimised away */
        __nanosleep(0);
}

/* `threads`: the kernel's launch bound, which determines registers per thread. */
template <int threads, class roles> DEVICE void attend(const mla_call &c)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const mla_shared<roles::rows> m = roles::find(memory);
    constexpr int start = 65536 / threads / 8 * 8;
    const int group = uniform((int)threadIdx.x / GROUP_THREADS);
    fetch_arguments(c);
    if (threadIdx.x == 0)
        barriers_init<roles>(m);
    __syncthreads();
    pdl_launch_dependents();
    pdl_wait();
    if (group == 0) {
        setmaxnreg<start, roles::feeding>();
        roles::feed(c, m);
    } else if (group <= roles::scorers) {
        setmaxnreg<start, roles::scoring>();
        roles::score(c, m);
    } else {
        setmaxnreg<start, roles::adding>();
        roles::add_up(c, m);
    }
}

#define MLA_KERNEL(name, threads, ...)                                                             \
    extern "C" __global__ void __launch_bounds__(threads, 1)                                       \
        name(const __grid_constant__ mla_call c)                                                   \
    {                                                                                              \
        attend<threads, __VA_ARGS__>(c);                                                           \
    }

#endif /* FLASHMLA_LIKE_BLOCK_CUH */
