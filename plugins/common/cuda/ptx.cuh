/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx.cuh: the instructions of Hopper (sm_90a) without a CUDA C intrinsic, and related older ones;
 * those of Ampere are in flashinfer_like/kernels/mma.cuh and triton_like/kernels/common.cuh. Each
 * wrapper names the section of the PTX ISA (version 9.0) that defines it. This is device code
 * without host headers, so NVRTC can compile it, too.
 *
 * Addresses of shared memory are 32-bit numbers (see shared_address), as the instructions take
 * them.
 *
 * Compiled for sm_80 to sm_89 (HAS_HOPPER is 0): ordering and waits that these lack do nothing,
 * instructions with a substitute use it, and TMA copies, which no kernel may use there, trap.
 */
#ifndef PLUGINS_COMMON_CUDA_PTX_CUH
#define PLUGINS_COMMON_CUDA_PTX_CUH

#define PTX __device__ __forceinline__

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
#define HAS_HOPPER 0
#else
#define HAS_HOPPER 1
#endif

/* ---- Addresses and lanes --------------------------------------------------------------------- */

/* "State spaces": the shared-memory address of a generic pointer. */
static PTX unsigned shared_address(const void *pointer)
{
    return (unsigned)__cvta_generic_to_shared(pointer);
}

/* "Special registers": the thread's number in its block, read at the place of use. Values derived
 * from it then occupy no registers in the loops before. */
static PTX int thread_here(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* ---- Barriers in shared memory --------------------------------------------------------------- */

/* "mbarrier.init": a barrier whose phase completes after `arrivals` arrivals. */
static PTX void barrier_init(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* "fence.mbarrier_init": makes new barriers known to the copy engine and to a cluster. */
static PTX void fence_barrier_init(void)
{
#if HAS_HOPPER
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* "mbarrier.arrive" */
static PTX void barrier_arrive(unsigned barrier)
{
#if HAS_HOPPER
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
                 : "memory");
#endif
}

/* "mbarrier.arrive", announcing the bytes that copies will add to this phase. */
static PTX void barrier_arrive_expect(unsigned barrier, unsigned bytes)
{
#if HAS_HOPPER
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
#else
    if (bytes > 0)
        __trap();
    barrier_arrive(barrier);
#endif
}

/* "mbarrier.test_wait": has the phase of this parity completed? */
static PTX bool barrier_test(unsigned barrier, unsigned parity)
{
    unsigned over;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over != 0;
}

/* "mbarrier.try_wait": the same, but may suspend the thread for a while. */
static PTX bool barrier_try_wait(unsigned barrier, unsigned parity)
{
#if HAS_HOPPER
    unsigned over;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over != 0;
#else
    return barrier_test(barrier, parity);
#endif
}

static PTX void barrier_wait(unsigned barrier, unsigned parity)
{
    while (!barrier_try_wait(barrier, parity))
        ;
}

/* "barrier{.cta}.sync": waits until `threads` threads have arrived at named barrier `id`. */
static PTX void named_sync(int id, int threads)
{
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* "barrier{.cta}.arrive": arrives without waiting. */
static PTX void named_arrive(int id, int threads)
{
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- Fences, registers, dependent launches --------------------------------------------------- */

/* "fence.proxy.async": makes earlier ordinary stores to shared memory visible to the copy engine
 * and the tensor cores. */
static PTX void fence_async_shared(void)
{
#if HAS_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* "setmaxnreg": a warpgroup releases registers (dec), or acquires released ones (inc). */
template <int registers> static PTX void setmaxnreg_dec(void)
{
#if HAS_HOPPER
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

template <int registers> static PTX void setmaxnreg_inc(void)
{
#if HAS_HOPPER
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

/* "griddepcontrol": waits for the preceding grid; lets the next one start. */
static PTX void pdl_wait(void)
{
#if HAS_HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static PTX void pdl_launch_dependents(void)
{
#if HAS_HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- Tensor copies --------------------------------------------------------------------------- */

/* "prefetch": fetches a tensor map before its first use. */
static PTX void tensor_map_prefetch(const void *map)
{
#if HAS_HOPPER
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/* "cp.async.bulk.tensor": copies a box of a 4-dimensional tensor to shared memory; `barrier` counts
 * its bytes. Elements outside of the tensor arrive as zeros. */
static PTX void tensor_load(unsigned to, const void *map, unsigned barrier, int c0, int c1, int c2,
                            int c3)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
#else
    __trap();
#endif
}

/* The same with an L2 cache policy. */
static PTX void tensor_load_by(unsigned to, const void *map, unsigned barrier, int c0, int c1,
                               int c2, int c3, unsigned long long policy)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
                 : "memory");
#else
    __trap();
#endif
}

/* The same from shared memory to the tensor; elements outside of it are not written. */
static PTX void tensor_store(const void *map, unsigned from, int c0, int c1, int c2, int c3)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
#else
    __trap();
#endif
}

/* "cp.async.bulk.commit_group" and "cp.async.bulk.wait_group": this thread's stores so far become a
 * group; waits until all groups have read shared memory. */
static PTX void store_commit(void)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

static PTX void store_wait_read(void)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

/* "ld.shared", "st.shared": 4, 8, or 16 bytes. */
static PTX unsigned shared_load_word(unsigned address)
{
    unsigned x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

static PTX void shared_store_pair(unsigned address, unsigned first, unsigned second)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
                 : "memory");
}

static PTX uint4 shared_load(unsigned address)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

static PTX void shared_store(unsigned address, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
}

/* "stmatrix": four 8 x 8 matrices of 16-bit elements; each lane gives a row's address. */
static PTX void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d)
{
#if HAS_HOPPER
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
#else
    const int lane = (int)threadIdx.x & 31;
    const unsigned x[4] = {a, b, c, d};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const unsigned row = __shfl_sync(0xffffffff, address, i * 8 + lane / 4);
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(x[i]) : "memory");
    }
#endif
}

/* "ldmatrix" with .trans: four 8 x 8 matrices of 16-bit elements; each lane gives a row's address,
 * and gets two elements of a column. */
static PTX void load_matrices_turned(unsigned address, unsigned (&x)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* "elect.sync": true in one lane of a warp whose lanes all call it. The compiler then keeps
 * warp-uniform values in uniform registers, from which copies take their operands. */
static PTX bool elected(void)
{
    unsigned mine = 1;
#if HAS_HOPPER
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(mine));
#else
    __trap();
#endif
    return mine;
}

/* "cp.async.bulk": copies `bytes` bytes of global memory; `barrier` counts them. */
static PTX void bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
#else
    __trap();
#endif
}

/* The same with an L2 cache policy. */
static PTX void bulk_load_by(unsigned to, const void *from, unsigned bytes, unsigned barrier,
                             unsigned long long policy)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
#else
    __trap();
#endif
}

/* ---- Arithmetic ------------------------------------------------------------------------------ */

/* "ex2": 2^x; -inf gives 0. */
static PTX float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* "tanh" */
static PTX float tanh_fast(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* "cvt": two floats as a pair of 16-bit elements, the first in the low half, rounded to nearest. */
template <bool is_f16> static PTX unsigned pack_pair(float first, float second)
{
    unsigned pair;
    if constexpr (is_f16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

/* "cvt": four floats as e4m3, the first in the lowest byte, rounded to nearest, saturated at
 * 448. */
static PTX unsigned pack_codes(float a, float b, float c, float d)
{
    unsigned codes;
    asm("{\n.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n}"
        : "=r"(codes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return codes;
}

/* ---- Products of a warpgroup ----------------------------------------------------------------- */

/* "Asynchronous warpgroup level matrix shared memory layout": a descriptor of a matrix in shared
 * memory with the 128-byte swizzle. `leading` and `stride` are in bytes. If rows lie along the
 * product's inner dimension, `stride` is the distance of 8 rows from the next 8, and `leading` is
 * ignored. If rows lie across it, `leading` is the distance of 64 columns from the next 64, and
 * `stride` that of 8 rows of the inner dimension from the next 8. */
static PTX unsigned long long matrix_descriptor(unsigned address, unsigned leading, unsigned stride)
{
    return (unsigned long long)((address & 0x3ffff) >> 4) |
           (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
           1ull << 62;
}

/* A descriptor advanced by `bytes`. */
static PTX unsigned long long descriptor_advance(unsigned long long descriptor, unsigned bytes)
{
    return descriptor + (bytes >> 4);
}

/* "wgmma.fence": later products may read registers and shared memory written before it. */
static PTX void wgmma_fence(void)
{
#if HAS_HOPPER
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/* "wgmma.commit_group" */
static PTX void wgmma_commit(void)
{
#if HAS_HOPPER
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* "wgmma.wait_group": waits until at most `pending` groups are in flight. */
template <int pending> static PTX void wgmma_wait(void)
{
#if HAS_HOPPER
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}

/* No instruction: makes the compiler assume that `values` change here, so that it moves no use of a
 * product's result before the wait. */
template <int count> static PTX void wgmma_arrived(float (&values)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(values[i])::"memory");
}

/* "wgmma.mma_async": operands by number, eight at a time; the sums start at %0. */
#define PTX_D0   "%0, %1, %2, %3, %4, %5, %6, %7"
#define PTX_D8   "%8, %9, %10, %11, %12, %13, %14, %15"
#define PTX_D16  "%16, %17, %18, %19, %20, %21, %22, %23"
#define PTX_D24  "%24, %25, %26, %27, %28, %29, %30, %31"
#define PTX_D32  "%32, %33, %34, %35, %36, %37, %38, %39"
#define PTX_D40  "%40, %41, %42, %43, %44, %45, %46, %47"
#define PTX_D48  "%48, %49, %50, %51, %52, %53, %54, %55"
#define PTX_D56  "%56, %57, %58, %59, %60, %61, %62, %63"
#define PTX_D64  "%64, %65, %66, %67, %68, %69, %70, %71"
#define PTX_D72  "%72, %73, %74, %75, %76, %77, %78, %79"
#define PTX_D80  "%80, %81, %82, %83, %84, %85, %86, %87"
#define PTX_D88  "%88, %89, %90, %91, %92, %93, %94, %95"
#define PTX_D96  "%96, %97, %98, %99, %100, %101, %102, %103"
#define PTX_D104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define PTX_D112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define PTX_D120 "%120, %121, %122, %123, %124, %125, %126, %127"

#define PTX_SUMS8(d, i)                                                                            \
    "+f"(d[(i) + 0]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]),      \
        "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define PTX_LIST_8           "%0, %1, %2, %3"
#define PTX_SUMS_8(d)        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define PTX_SHARED_8         "%4, %5"
#define PTX_SHARED_FLAG_8    "%6"
#define PTX_SHARED_TURNS_8   "%7, %8"
#define PTX_REGISTER_8       "{%4, %5, %6, %7}, %8"
#define PTX_REGISTER_FLAG_8  "%9"
#define PTX_REGISTER_TURN_8  "%10"
#define PTX_LIST_16          PTX_D0
#define PTX_SUMS_16(d)       PTX_SUMS8(d, 0)
#define PTX_SHARED_16        "%8, %9"
#define PTX_SHARED_FLAG_16   "%10"
#define PTX_SHARED_TURNS_16  "%11, %12"
#define PTX_REGISTER_16      "{%8, %9, %10, %11}, %12"
#define PTX_REGISTER_FLAG_16 "%13"
#define PTX_REGISTER_TURN_16 "%14"
#define PTX_LIST_32          PTX_D0 ", " PTX_D8
#define PTX_SUMS_32(d)       PTX_SUMS8(d, 0), PTX_SUMS8(d, 8)
#define PTX_SHARED_32        "%16, %17"
#define PTX_SHARED_FLAG_32   "%18"
#define PTX_SHARED_TURNS_32  "%19, %20"
#define PTX_REGISTER_32      "{%16, %17, %18, %19}, %20"
#define PTX_REGISTER_FLAG_32 "%21"
#define PTX_REGISTER_TURN_32 "%22"
#define PTX_LIST_48          PTX_D0 ", " PTX_D8 ", " PTX_D16
#define PTX_SUMS_48(d)       PTX_SUMS8(d, 0), PTX_SUMS8(d, 8), PTX_SUMS8(d, 16)
#define PTX_SHARED_48        "%24, %25"
#define PTX_SHARED_FLAG_48   "%26"
#define PTX_SHARED_TURNS_48  "%27, %28"
#define PTX_REGISTER_48      "{%24, %25, %26, %27}, %28"
#define PTX_REGISTER_FLAG_48 "%29"
#define PTX_REGISTER_TURN_48 "%30"
#define PTX_LIST_64          PTX_D0 ", " PTX_D8 ", " PTX_D16 ", " PTX_D24
#define PTX_SUMS_64(d)       PTX_SUMS8(d, 0), PTX_SUMS8(d, 8), PTX_SUMS8(d, 16), PTX_SUMS8(d, 24)
#define PTX_SHARED_64        "%32, %33"
#define PTX_SHARED_FLAG_64   "%34"
#define PTX_SHARED_TURNS_64  "%35, %36"
#define PTX_REGISTER_64      "{%32, %33, %34, %35}, %36"
#define PTX_REGISTER_FLAG_64 "%37"
#define PTX_REGISTER_TURN_64 "%38"
#define PTX_LIST_80          PTX_D0 ", " PTX_D8 ", " PTX_D16 ", " PTX_D24 ", " PTX_D32
#define PTX_SUMS_80(d)                                                                             \
    PTX_SUMS8(d, 0), PTX_SUMS8(d, 8), PTX_SUMS8(d, 16), PTX_SUMS8(d, 24), PTX_SUMS8(d, 32)
#define PTX_SHARED_80        "%40, %41"
#define PTX_SHARED_FLAG_80   "%42"
#define PTX_SHARED_TURNS_80  "%43, %44"
#define PTX_REGISTER_80      "{%40, %41, %42, %43}, %44"
#define PTX_REGISTER_FLAG_80 "%45"
#define PTX_REGISTER_TURN_80 "%46"
#define PTX_LIST_96          PTX_D0 ", " PTX_D8 ", " PTX_D16 ", " PTX_D24 ", " PTX_D32 ", " PTX_D40
#define PTX_SUMS_96(d)                                                                             \
    PTX_SUMS8(d, 0), PTX_SUMS8(d, 8), PTX_SUMS8(d, 16), PTX_SUMS8(d, 24), PTX_SUMS8(d, 32),        \
        PTX_SUMS8(d, 40)
#define PTX_SHARED_96        "%48, %49"
#define PTX_SHARED_FLAG_96   "%50"
#define PTX_SHARED_TURNS_96  "%51, %52"
#define PTX_REGISTER_96      "{%48, %49, %50, %51}, %52"
#define PTX_REGISTER_FLAG_96 "%53"
#define PTX_REGISTER_TURN_96 "%54"
#define PTX_LIST_128                                                                               \
    PTX_D0 ", " PTX_D8 ", " PTX_D16 ", " PTX_D24 ", " PTX_D32 ", " PTX_D40 ", " PTX_D48 ","        \
           " " PTX_D56
#define PTX_SUMS_128(d)                                                                            \
    PTX_SUMS8(d, 0), PTX_SUMS8(d, 8), PTX_SUMS8(d, 16), PTX_SUMS8(d, 24), PTX_SUMS8(d, 32),        \
        PTX_SUMS8(d, 40), PTX_SUMS8(d, 48), PTX_SUMS8(d, 56)
#define PTX_SHARED_128        "%64, %65"
#define PTX_SHARED_FLAG_128   "%66"
#define PTX_SHARED_TURNS_128  "%67, %68"
#define PTX_REGISTER_128      "{%64, %65, %66, %67}, %68"
#define PTX_REGISTER_FLAG_128 "%69"
#define PTX_REGISTER_TURN_128 "%70"
#define PTX_LIST_192                                                                               \
    PTX_D0 ", " PTX_D8 ", " PTX_D16 ", " PTX_D24 ", " PTX_D32 ", " PTX_D40 ", " PTX_D48            \
           ", " PTX_D56 ", " PTX_D64 ", " PTX_D72 ", " PTX_D80 ", " PTX_D88
#define PTX_SUMS_192(d)                                                                            \
    PTX_SUMS8(d, 0), PTX_SUMS8(d, 8), PTX_SUMS8(d, 16), PTX_SUMS8(d, 24), PTX_SUMS8(d, 32),        \
        PTX_SUMS8(d, 40), PTX_SUMS8(d, 48), PTX_SUMS8(d, 56), PTX_SUMS8(d, 64), PTX_SUMS8(d, 72),  \
        PTX_SUMS8(d, 80), PTX_SUMS8(d, 88)
#define PTX_SHARED_192        "%96, %97"
#define PTX_SHARED_FLAG_192   "%98"
#define PTX_SHARED_TURNS_192  "%99, %100"
#define PTX_REGISTER_192      "{%96, %97, %98, %99}, %100"
#define PTX_REGISTER_FLAG_192 "%101"
#define PTX_REGISTER_TURN_192 "%102"
#define PTX_LIST_256                                                                               \
    PTX_D0 ", " PTX_D8 ", " PTX_D16 ", " PTX_D24 ", " PTX_D32 ", " PTX_D40 ", " PTX_D48            \
           ", " PTX_D56 ", " PTX_D64 ", " PTX_D72 ", " PTX_D80 ", " PTX_D88 ", " PTX_D96           \
           ", " PTX_D104 ", " PTX_D112 ", " PTX_D120
#define PTX_SUMS_256(d)                                                                            \
    PTX_SUMS8(d, 0), PTX_SUMS8(d, 8), PTX_SUMS8(d, 16), PTX_SUMS8(d, 24), PTX_SUMS8(d, 32),        \
        PTX_SUMS8(d, 40), PTX_SUMS8(d, 48), PTX_SUMS8(d, 56), PTX_SUMS8(d, 64), PTX_SUMS8(d, 72),  \
        PTX_SUMS8(d, 80), PTX_SUMS8(d, 88), PTX_SUMS8(d, 96), PTX_SUMS8(d, 104),                   \
        PTX_SUMS8(d, 112), PTX_SUMS8(d, 120)
#define PTX_SHARED_256        "%128, %129"
#define PTX_SHARED_FLAG_256   "%130"
#define PTX_SHARED_TURNS_256  "%131, %132"
#define PTX_REGISTER_256      "{%128, %129, %130, %131}, %132"
#define PTX_REGISTER_FLAG_256 "%133"
#define PTX_REGISTER_TURN_256 "%134"

#define PTX_WGMMA_SHARED(n, type)                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PTX_SHARED_FLAG_##n                           \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" PTX_LIST_##n \
                 "}, " PTX_SHARED_##n ", p, 1, 1, " PTX_SHARED_TURNS_##n ";\n}"                    \
                 : PTX_SUMS_##n(sums)                                                              \
                 : "l"(a), "l"(b), "r"(add), "n"(turn_a), "n"(turn))
#define PTX_WGMMA_REGISTER(n, type)                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PTX_REGISTER_FLAG_##n                         \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" PTX_LIST_##n \
                 "}, " PTX_REGISTER_##n ", p, 1, 1, " PTX_REGISTER_TURN_##n ";\n}"                 \
                 : PTX_SUMS_##n(sums)                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(turn))
#define PTX_WGMMA_EITHER(kind, n)                                                                  \
    if constexpr (columns == n) {                                                                  \
        if constexpr (is_f16)                                                                      \
            PTX_WGMMA_##kind(n, "f16");                                                            \
        else                                                                                       \
            PTX_WGMMA_##kind(n, "bf16");                                                           \
    }
#define PTX_WGMMA_ALL(kind)                                                                        \
    PTX_WGMMA_EITHER(kind, 8)                                                                      \
    PTX_WGMMA_EITHER(kind, 16)                                                                     \
    PTX_WGMMA_EITHER(kind, 32)                                                                     \
    PTX_WGMMA_EITHER(kind, 48)                                                                     \
    PTX_WGMMA_EITHER(kind, 64)                                                                     \
    PTX_WGMMA_EITHER(kind, 80)                                                                     \
    PTX_WGMMA_EITHER(kind, 96)                                                                     \
    PTX_WGMMA_EITHER(kind, 128)                                                                    \
    PTX_WGMMA_EITHER(kind, 192)                                                                    \
    PTX_WGMMA_EITHER(kind, 256)

/* Any other width would compile to no product at all. */
#define PTX_WGMMA_KNOWN()                                                                          \
    static_assert(columns == 8 || columns == 16 || columns == 32 || columns == 48 ||               \
                      columns == 64 || columns == 80 || columns == 96 || columns == 128 ||         \
                      columns == 192 || columns == 256,                                            \
                  "a product of so many columns is not written yet")

/* sums[64 x columns] = (add ? sums : 0) + a[64 x 16] * b[16 x columns], both in shared memory.
 * `turn`: b's rows lie across the inner dimension (as values do), otherwise along it (as keys do).
 * `turn_a`: the same for a. */
template <int columns, bool is_f16, int turn, int turn_a = 0>
static PTX void wgmma_ss(float (&sums)[columns / 2], unsigned long long a, unsigned long long b,
                         int add)
{
    PTX_WGMMA_KNOWN();
    PTX_WGMMA_ALL(SHARED)
}

/* The same with a in registers. */
template <int columns, bool is_f16, int turn>
static PTX void wgmma_rs(float (&sums)[columns / 2], const unsigned *a, unsigned long long b,
                         int add)
{
    PTX_WGMMA_KNOWN();
    PTX_WGMMA_ALL(REGISTER)
}

/* The same for e4m3: sums[64 x 128] = (add ? sums : 0) + a[64 x 32] * b[32 x 128]. Rows of both lie
 * along the inner dimension, the only way for 8-bit elements. */
static PTX void wgmma_ss_e4m3(float (&sums)[64], unsigned long long a, unsigned long long b,
                              int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PTX_SHARED_FLAG_128 ", 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" PTX_LIST_128
                 "}, " PTX_SHARED_128 ", p, 1, 1;\n}"
                 : PTX_SUMS_128(sums)
                 : "l"(a), "l"(b), "r"(add));
}

static PTX void wgmma_rs_e4m3(float (&sums)[64], const unsigned *a, unsigned long long b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PTX_REGISTER_FLAG_128 ", 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" PTX_LIST_128
                 "}, " PTX_REGISTER_128 ", p, 1, 1;\n}"
                 : PTX_SUMS_128(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* The same for fewer columns. */
static PTX void wgmma_rs_e4m3(float (&sums)[32], const unsigned *a, unsigned long long b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PTX_REGISTER_FLAG_64 ", 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" PTX_LIST_64
                 "}, " PTX_REGISTER_64 ", p, 1, 1;\n}"
                 : PTX_SUMS_64(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* "mma.sync" of a warp: sums[16 x 8] += a[16 x 32] * b[32 x 8], e4m3. */
static PTX void mma_e4m3(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
