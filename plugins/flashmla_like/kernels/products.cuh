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

/* The same of fp16 with A in registers; B lies as [columns x 16]. */
template <int columns> struct product_held {
    static PTX void run(float (&s)[columns / 2], const unsigned (&a)[4], unsigned long long b,
                        int add)
    {
        product_register<columns, true, 0>(s, a, b, add);
    }
};

template <> struct product_held<8> {
    static PTX void run(float (&s)[4], const unsigned (&a)[4], unsigned long long b, int add)
    {
#if HAS_HOPPER
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
                     "%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, %8, p, 1, 1, 0;\n}"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
    }
};

template <> struct product_held<16> {
    static PTX void run(float (&s)[8], const unsigned (&a)[4], unsigned long long b, int add)
    {
#if HAS_HOPPER
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "{%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),
                       "+f"(s[6]), "+f"(s[7])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
    }
};

template <> struct product_held<32> {
    static PTX void run(float (&s)[16], const unsigned (&a)[4], unsigned long long b, int add)
    {
#if HAS_HOPPER
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, "
                     "%8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]),
                       "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]),
                       "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
    }
};

#endif /* FLASHMLA_LIKE_PRODUCTS_CUH */
