/* SPDX-License-Identifier: Apache-2.0
 *
 * products.cuh: a warpgroup's products of 64 rows by few columns, both operands in shared memory.
 */
#ifndef FLASHMLA_LIKE_PRODUCTS_CUH
#define FLASHMLA_LIKE_PRODUCTS_CUH

#include "plugins/common/cuda/warpgroup.cuh"

/* sums[64 x columns] (+)= A[64 x 16] * B[columns x 16]^T of bf16; `turned`: A lies as [16 x 64].
 * "wgmma.mma_async.sync.aligned.m64nNk16.f32.bf16.bf16" */
template <int columns, int turned> struct product_few;

template <int turned> struct product_few<8, turned> {
    static PTX void run(float (&s)[4], unsigned long long a, unsigned long long b, int add)
    {
#if HAS_HOPPER
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3}, "
                     "%4, %5, p, 1, 1, %7, 0;\n}"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "l"(a), "l"(b), "r"(add), "n"(turned));
#endif
    }
};

template <int turned> struct product_few<16, turned> {
    static PTX void run(float (&s)[8], unsigned long long a, unsigned long long b, int add)
    {
#if HAS_HOPPER
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "%8, %9, p, 1, 1, %11, 0;\n}"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),
                       "+f"(s[6]), "+f"(s[7])
                     : "l"(a), "l"(b), "r"(add), "n"(turned));
#endif
    }
};

template <int turned> struct product_few<32, turned> {
    static PTX void run(float (&s)[16], unsigned long long a, unsigned long long b, int add)
    {
#if HAS_HOPPER
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, "
                     "%8, %9, %10, %11, %12, %13, %14, %15}, "
                     "%16, %17, p, 1, 1, %19, 0;\n}"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),
                       "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),
                       "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15])
                     : "l"(a), "l"(b), "r"(add), "n"(turned));
#endif
    }
};

template <int turned> struct product_few<64, turned> {
    static PTX void run(float (&s)[32], unsigned long long a, unsigned long long b, int add)
    {
#if HAS_HOPPER
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, "
                     "%8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31}, "
                     "%32, %33, p, 1, 1, %35, 0;\n}"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),
                       "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),
                       "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]),
                       "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]),
                       "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]),
                       "+f"(s[30]), "+f"(s[31])
                     : "l"(a), "l"(b), "r"(add), "n"(turned));
#endif
    }
};

#endif /* FLASHMLA_LIKE_PRODUCTS_CUH */
