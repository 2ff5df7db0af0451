/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c: the stored layout of the ABI (layout.golden), as assertions for the compiler.
 *
 * layout_table.inc is made from the stored file by layout_table.awk. tests/abi/headers.sh compiles
 * this file as C11, C17 and C++17 under gcc and clang; it is never linked or run.
 */
#include "attn_plugin.h"

#include <stddef.h>

#ifdef __cplusplus
#define LAYOUT_ASSERT(condition, message) static_assert(condition, message)
#else
#define LAYOUT_ASSERT(condition, message) _Static_assert(condition, message)
#endif

/* Enumerators may be unsigned in one language and signed in the other: compare as int64. */
#define LAYOUT_CONST(name, value)                                                                  \
    LAYOUT_ASSERT((int64_t)(name) == (int64_t)(value), #name " is not " #value);
#define LAYOUT_SIZE(type, size)                                                                    \
    LAYOUT_ASSERT(sizeof(type) == (size), "sizeof(" #type ") is not " #size);
#define LAYOUT_FIRST(type)                                                                         \
    LAYOUT_ASSERT(offsetof(type, struct_size) == 0, #type " does not start with struct_size");
#define LAYOUT_MEMBER(type, member, offset, size)                                                  \
    LAYOUT_ASSERT(offsetof(type, member) == (offset), #type "." #member " is not at " #offset);    \
    LAYOUT_ASSERT(sizeof(((type *)0)->member) == (size), #type "." #member " is not of " #size);
#define LAYOUT_ADD(type, member) +sizeof(((type *)0)->member)
#define LAYOUT_NO_PADDING(type, sum)                                                               \
    LAYOUT_ASSERT(sizeof(type) == (0 sum), #type " has implicit padding");

#include "layout_table.inc"

/* The data types are written as numbers: each is what ATTN_DTYPE() makes of DLPack's code and bits.
 */
#define LAYOUT_DTYPE(name, code, bits)                                                             \
    LAYOUT_ASSERT(ATTN_##name == ATTN_DTYPE(code, bits), #name " is not " #code ", " #bits);
LAYOUT_DTYPE(I32, 0, 32)
LAYOUT_DTYPE(I64, 0, 64)
LAYOUT_DTYPE(U8, 1, 8)
LAYOUT_DTYPE(U16, 1, 16)
LAYOUT_DTYPE(F16, 2, 16)
LAYOUT_DTYPE(F32, 2, 32)
LAYOUT_DTYPE(F64, 2, 64)
LAYOUT_DTYPE(BF16, 4, 16)
LAYOUT_DTYPE(FP8_E4M3, 10, 8)
LAYOUT_DTYPE(FP8_E5M2, 12, 8)
