/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: the kernels that are built, as the plugin's C knows them: the one table.
 *
 * A pair of head dimensions has a kernel for few rows (attend.cuh) and one for many (prefill.cuh),
 * each built for bf16 (attend_NAME_bf16.cu, prefill_NAME_bf16.cu) and fp16; and the same two over
 * caches of e4m3 and e5m2 (attend_NAME_bf16_e4m3.cu and so on), if there are any. The files of few
 * rows may have another kernel, which is faster where a block goes through many items; those of many
 * rows, up to 128 dimensions, have one for FI_HALF_ROWS and, without fp8, one for groups with
 * slopes. To add a pair: twelve such files, or four without fp8, their names in Makefile.am.inc, and
 * a line here.
 */
#ifndef FI_SHAPES_H
#define FI_SHAPES_H

/* X(name, head_dim, v_head_dim, attend: stages, bytes of shared memory, the same for many items
 * (0: there is no such kernel); attend over fp8: the same three; prefill: keys of a unit, stages,
 * tiles of queries, bytes of shared memory; prefill over fp8: the same, before the bytes units of
 * codes), smaller ones first. X16: the same without kernels over fp8, and without their numbers. A
 * multiprocessor has one block of any, but for many items over fp8.
 *
 * Of attend, memory is at its best with some 96 to 128 KiB on their way; more of them are worse, by
 * 1 to 3 %. Of prefill, 64 keys where registers have no room for scores of 128 beside the sums. */
#define FI_SHAPES(X, X16)                                                                          \
    X(d64, 64, 64, 6, 107120, 148640, 10, 173232, 70224, 128, 3, 2, 132608, 128, 3, 2, 2, 198144)  \
    X16(d80, 80, 80, 4, 143952, 156768, 128, 2, 2, 198144)                                         \
    X(d96, 96, 96, 4, 143952, 156768, 8, 144528, 72272, 128, 2, 2, 198144, 128, 2, 1, 2, 230912)   \
    X(d128, 128, 128, 4, 148048, 164960, 8, 148624, 74320, 128, 2, 2, 198144, 128, 2, 1, 2,        \
      230912)                                                                                      \
    X(d192, 192, 192, 4, 215888, 0, 5, 183200, 0, 64, 2, 2, 198144, 64, 2, 1, 2, 214528)           \
    X(d192_v128, 192, 128, 5, 220000, 0, 6, 171440, 0, 128, 2, 1, 214528, 64, 2, 2, 2, 230912)     \
    X(d256, 256, 256, 3, 222016, 0, 5, 189344, 0, 64, 2, 1, 198144, 64, 2, 1, 1, 230912)

/* Heads whose sums two warpgroups share (wide.cuh), on Hopper alone: one kernel, of tiles of
 * FI_WIDE_ROWS, for any number of rows. X(name, head_dim, v_head_dim, keys of a unit, stages of keys,
 * of values, bytes of shared memory). To add one: two files, names in Makefile.am.inc, a line here. */
#define FI_WIDE_SHAPES(X) X(d512, 512, 512, 32, 3, 2, 208896)
#define FI_WIDE_ROWS      64
#define FI_WIDE_PIECES    4 /* of a row of a part: 128 columns of it each */

/* Teams of four warps: one multiplies and one copies; two copy where a unit is larger. For many
 * items, two multiply, an item each in turn. fp8 has half of the bytes, so half of the time for its
 * products: two multiply, a unit each in turn; of more than 128 columns a thread's sums have no
 * room for two. For many items there are two blocks with a team each instead. */
#define FI_ATTEND_PRODUCERS(dim) ((dim) > 128 ? 2 : 1)
#define FI_CODES_TEAMS(v_dim)    ((v_dim) > 128 ? 1 : 2)
#define FI_CODES_MANY_STAGES     4

/* Of attend: blocks of a multiprocessor. Of short rows it is two, with fewer stages: while one
 * waits for a merge, or for its first keys, the other multiplies. Longer rows lose more by fewer
 * registers and stages than that saves. For many items there are as many stages as fit. */
#define FI_ATTEND_ROOM(dim)         ((dim) > 64 ? 1 : 2)
#define FI_MANY_STAGES(dim, stages) ((dim) > 64 ? (stages) : 8)

/* Of prefill for half a tile's rows, on Hopper, where a warpgroup has registers for all columns:
 * units of FI_KEYS keys as decode has them, for it waits for memory as well; of 64 dimensions, whose
 * keys come in half of the time, of twice as many. One warpgroup copies, one multiplies. */
#define FI_HALF_STAGES(dim) 4
#define FI_HALF_KEYS(dim)   ((dim) > 64 ? FI_KEYS : 128)
#define FI_HALF_SLOTS       2 /* tiles of queries */
#define FI_HALF_PANELS(dim) (((dim) + 63) / 64)
#define FI_HALF_BYTES(dim, v_dim)                                                                  \
    ((dim) > 128 ? 0                                                                               \
                 : 128 * (FI_HALF_SLOTS * FI_HALF_ROWS * FI_HALF_PANELS(dim) +                     \
                          FI_HALF_STAGES(dim) * FI_HALF_KEYS(dim) *                                \
                              (FI_HALF_PANELS(dim) + FI_HALF_PANELS(v_dim))) +                     \
                       1536)

/* Most dimensions of prefill's kernels for groups with slopes (prefill_slopes.cuh), on Hopper. */
#define FI_SLOPES_DIM         128
#define FI_SLOPES_BYTES(keys) ((keys)*128) /* of shared memory, more than others */

/* The same over fp8: two warpgroups copy, one keys and one values, and what is on its way are codes.
 * Units are larger: a warpgroup that multiplies alone waits for each of its steps. */
#define FI_HALF_CODES_KEYS   128
#define FI_HALF_CODES_STAGES 2
#define FI_HALF_CODES_SLOTS  2
#define FI_HALF_CODES_BYTES(dim, v_dim, whole)                                                     \
    ((dim) > 128 || !(whole)                                                                       \
         ? 0                                                                                       \
         : 128 * (FI_HALF_SLOTS * FI_HALF_ROWS * FI_HALF_PANELS(dim) +                             \
                  FI_HALF_CODES_KEYS *                                                             \
                      (FI_HALF_CODES_STAGES * (FI_HALF_PANELS(dim) + FI_HALF_PANELS(v_dim)) +      \
                       FI_HALF_CODES_SLOTS * 2)) +                                                 \
               2560)

/* The same kernels for sm_80 to sm_89, which have no copy engine and no warpgroups, and less shared
 * memory: 99 KiB a block but for sm_80 and sm_87, which have 163. Teams of one, units of 64 keys.
 */
#define FI_SM80_STAGES(dim)              ((dim) > 128 ? 1 : 2) /* of prefill */
#define FI_SM80_CODES_STAGES(dim)        ((dim) > 64 ? 1 : 2)
#define FI_SM80_CODE_SLOTS(dim)          ((dim) > 128 ? 1 : 2)
#define FI_SM80_ATTEND_STAGES(dim)       ((dim) > 128 ? 1 : (dim) > 64 ? 2 : 5)
#define FI_SM80_ATTEND_CODES_STAGES(dim) ((dim) > 128 ? 2 : 5)

/* X(name, head_dim, v_head_dim, bytes of shared memory: attend, the same over fp8, prefill, the
 * same over fp8), in the order of FI_SHAPES. */
#define FI_SHAPES_SM80(X, X16)                                                                     \
    X(d64, 64, 64, 90720, 86624, 50688, 83456)                                                     \
    X16(d80, 80, 80, 78384, 99840)                                                                 \
    X(d96, 96, 96, 78384, 88672, 99840, 99840)                                                     \
    X(d128, 128, 128, 82480, 90720, 99840, 99840)                                                  \
    X(d192, 192, 192, 68384, 84848, 99840, 132608)                                                 \
    X(d192_v128, 192, 128, 56096, 64368, 91648, 116224)                                            \
    X(d256, 256, 256, 90912, 90992, 132608, 165376)

#ifdef __CUDACC__

/* A line as the files of the kernels read it: FI_LINE(d128, stages). */
struct fi_line {
    int dim, v_dim, stages, many_shared, codes_stages, codes_many_shared;
    int keys, prefill_stages, q_slots;
    int codes_keys, prefill_codes_stages, codes_q_slots, code_slots;
};
#define FI_LINE(line, number) fi_line_##line.number
#define LINE(name, dim, v_dim, stages, shared, many, codes_stages, codes_shared, codes_many, keys, \
             prefill_stages, q_slots, prefill_shared, codes_keys, prefill_codes_stages,            \
             codes_q_slots, code_slots, prefill_codes_shared)                                      \
    static constexpr fi_line fi_line_##name = {                                                    \
        dim,       v_dim,          stages,  many,       codes_stages,         codes_many,          \
        keys,      prefill_stages, q_slots, codes_keys, prefill_codes_stages, codes_q_slots,       \
        code_slots};
#define LINE_16(name, dim, v_dim, stages, shared, many, ...)                                       \
    LINE(name, dim, v_dim, stages, shared, many, 0, 0, 0, __VA_ARGS__, 0, 0, 0, 0, 0)
FI_SHAPES(LINE, LINE_16)
#undef LINE
#undef LINE_16

/* What the names of kernels say of their queries, and of their cache. */
#define FI_HALF_bf16  false
#define FI_HALF_f16   true
#define FI_CODES_e4m3 ELEMENT_E4M3
#define FI_CODES_e5m2 ELEMENT_E5M2

#else

#include <stdint.h>

/* From KERNEL_CODES on: over fp8. MANY: of few rows, where a block has many items. */
enum {
    KERNEL_ATTEND = 0,
    KERNEL_ATTEND_MANY = 1,
    KERNEL_PREFILL = 2,
    KERNEL_PREFILL_HALF = 3,
    KERNEL_CODES = 4,
    KERNEL_CODES_MANY = 5,
    KERNEL_PREFILL_CODES = 6,
    KERNEL_PREFILL_HALF_CODES = 7,
    KERNEL_COUNT = 8
};
enum { WARPS_OF_A_UNIT = 4 }; /* that copy it */

static inline int fi_is_prefill(int kernel)
{
    return kernel == KERNEL_PREFILL || kernel == KERNEL_PREFILL_HALF ||
           kernel == KERNEL_PREFILL_CODES || kernel == KERNEL_PREFILL_HALF_CODES;
}

typedef struct fi_kernel {
    const char *name; /* without "_bf16" and the like */
    int32_t rows;     /* of a tile */
    int32_t keys;     /* of a unit */
    uint32_t threads; /* 0 = there is no such kernel */
    uint32_t shared;  /* bytes */
    int32_t blocks;   /* that a multiprocessor has at once */
    int32_t begin;    /* units that take as long as an item's begin and end */
} fi_kernel;

/* A line of a table. */
typedef struct fi_shape {
    int32_t dim, dim_v;
    int32_t
        has_hopper; /* kernels of sm_90a: they take boxes, and wait for the kernel before them */
    fi_kernel kernels[KERNEL_COUNT];
} fi_shape;

#define FI_TEAM(bytes, teams) ((bytes) ? (teams)*128 : 0)
#define FI_SHAPE(name, dim, v_dim, stages, shared, many_shared, codes_stages, codes_shared,        \
                 codes_many_shared, keys, prefill_stages, q_slots, prefill_shared, codes_keys,     \
                 prefill_codes_stages, codes_q_slots, code_slots, prefill_codes_shared)            \
    {                                                                                              \
        dim, v_dim, 1,                                                                             \
        {                                                                                          \
            {"fi_attend_" #name,  FI_ROWS, FI_KEYS, (1 + FI_ATTEND_PRODUCERS(dim)) * 128, shared,  \
             FI_ATTEND_ROOM(dim), 2},                                                              \
                {"fi_attend_many_" #name,                                                          \
                 FI_ROWS,                                                                          \
                 FI_KEYS,                                                                          \
                 FI_TEAM(many_shared, 3),                                                          \
                 many_shared,                                                                      \
                 1,                                                                                \
                 2},                                                                               \
                {"fi_prefill_" #name, FI_PREFILL_ROWS, keys, 384, prefill_shared, 1, 0},           \
                {"fi_prefill_half_" #name,                                                         \
                 FI_HALF_ROWS,                                                                     \
                 FI_HALF_KEYS(dim),                                                                \
                 FI_TEAM(FI_HALF_BYTES(dim, v_dim), 2),                                            \
                 FI_HALF_BYTES(dim, v_dim),                                                        \
                 1,                                                                                \
                 0},                                                                               \
                {"fi_attend_" #name,                                                               \
                 FI_ROWS,                                                                          \
                 FI_KEYS,                                                                          \
                 FI_TEAM(codes_shared, FI_CODES_TEAMS(v_dim) + 1),                                 \
                 codes_shared,                                                                     \
                 1,                                                                                \
                 (v_dim) > 128 ? 5 : 10},                                                          \
                {"fi_attend_many_" #name, FI_ROWS, FI_KEYS, FI_TEAM(codes_many_shared, 2),         \
                 codes_many_shared,       2,       6},                                             \
                {"fi_prefill_" #name,                                                              \
                 FI_PREFILL_ROWS,                                                                  \
                 codes_keys,                                                                       \
                 FI_TEAM(prefill_codes_shared, 3),                                                 \
                 prefill_codes_shared,                                                             \
                 1,                                                                                \
                 0},                                                                               \
            {                                                                                      \
                "fi_prefill_half_" #name, FI_HALF_ROWS, FI_HALF_CODES_KEYS,                        \
                    FI_TEAM(FI_HALF_CODES_BYTES(dim, v_dim, prefill_codes_shared), 3),             \
                    FI_HALF_CODES_BYTES(dim, v_dim, prefill_codes_shared), 1, 0                    \
            }                                                                                      \
        }                                                                                          \
    }
#define FI_SHAPE_16(name, dim, v_dim, stages, shared, many_shared, ...)                            \
    FI_SHAPE(name, dim, v_dim, stages, shared, many_shared, 0, 0, 0, __VA_ARGS__, 0, 0, 0, 0, 0)

#define FI_SHAPE_WIDE(name, dim, v_dim, keys, k_stages, stages, shared)                            \
    {                                                                                              \
        dim, v_dim, 1,                                                                             \
        {                                                                                          \
            [KERNEL_PREFILL] = { "fi_prefill_" #name, FI_WIDE_ROWS, keys, 512, shared, 1, 0 }      \
        }                                                                                          \
    }

#define FI_SHAPE_SM80(name, dim, v_dim, shared, codes_shared, prefill_shared,                      \
                      prefill_codes_shared)                                                        \
    {                                                                                              \
        dim, v_dim, 0,                                                                             \
        {                                                                                          \
            [KERNEL_ATTEND] = {"fi_attend_" #name, FI_ROWS, FI_KEYS, 256, shared, 1, 2},           \
            [KERNEL_PREFILL] =                                                                     \
                {"fi_prefill_" #name, FI_PREFILL_ROWS, FI_KEYS, 384, prefill_shared, 1, 0},        \
            [KERNEL_CODES] = {"fi_attend_" #name, FI_ROWS, FI_KEYS, FI_TEAM(codes_shared, 2),      \
                              codes_shared,       1,       5},                                     \
            [KERNEL_PREFILL_CODES] = {                                                             \
                "fi_prefill_" #name,                                                               \
                FI_PREFILL_ROWS,                                                                   \
                FI_KEYS,                                                                           \
                FI_TEAM(prefill_codes_shared, 3),                                                  \
                prefill_codes_shared,                                                              \
                1,                                                                                 \
                0                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
#define FI_SHAPE_SM80_16(name, dim, v_dim, shared, prefill_shared)                                 \
    FI_SHAPE_SM80(name, dim, v_dim, shared, 0, prefill_shared, 0)

#endif
#endif /* FI_SHAPES_H */
