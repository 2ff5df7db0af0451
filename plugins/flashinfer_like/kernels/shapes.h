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

/* X(name, head_dim, v_head_dim, stages of attend, the same over fp8), smaller ones first. X16: the same
 * without kernels over fp8. All else follows from these, below.
 *
 * Of attend, memory is at its best with some 96 to 128 KiB on their way; more of them are worse, by
 * 1 to 3 %. */
#define FI_SHAPES(X, X16)                                                                          \
    X(d64, 64, 64, 6, 10)                                                                          \
    X16(d80, 80, 80, 4)                                                                            \
    X(d96, 96, 96, 4, 8)                                                                           \
    X(d128, 128, 128, 4, 8)                                                                        \
    X(d192, 192, 192, 4, 5)                                                                        \
    X(d192_v128, 192, 128, 5, 6)                                                                   \
    X(d256, 256, 256, 3, 5)

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
 * registers and stages than that saves. For many items, up to FI_MANY_DIM dimensions, there are as
 * many stages as fit, of 96 dimensions three: requests for parts of lines crowd the memory. Over fp8
 * there are two blocks. A multiprocessor has one block of any other kernel. */
#define FI_ATTEND_ROOM(dim)         ((dim) > 64 ? 1 : 2)
#define FI_MANY_DIM                 128
#define FI_MANY_STAGES(dim, stages) ((dim) == 96 ? 3 : (dim) > 64 ? (stages) : 8)

/* Bytes of shared memory of attend: stages with their barriers, queries of more than 128 dimensions,
 * what warps exchange, the rows' largest logits. `size`: of an element. attend_shape has the places. */
#define FI_PANELS(dim, size) (((dim) * (size) + 127) / 128) /* of 128 bytes of a row */
#define FI_ATTEND_BYTES(dim, v_dim, stages, teams, size)                                           \
    ((stages) * (FI_KEYS * 128 * (FI_PANELS(dim, size) + FI_PANELS(v_dim, size)) + 16) +           \
     ((dim) > 128 ? FI_ROWS * (2 * (dim) + 16 + ((size) == 1 ? 4 : 0)) : 0) +                      \
     (teams)*16 * ((dim) > 128 || (size) == 1 ? 4 : 8) * (((v_dim) + 31) / 32 * 32) +              \
     (teams)*512 + ((size) == 1 ? 1 : (teams)) * 16)
#define FI_MANY_BYTES(dim, v_dim, stages)                                                          \
    ((dim) > FI_MANY_DIM ? 0 : FI_ATTEND_BYTES(dim, v_dim, FI_MANY_STAGES(dim, stages), 2, 2))
#define FI_CODES_MANY_BYTES(dim, v_dim)                                                            \
    ((dim) > FI_MANY_DIM ? 0 : FI_ATTEND_BYTES(dim, v_dim, FI_CODES_MANY_STAGES, 1, 1))

/* The same of prefill: queries, keys and values, codes on their way, the control block. prefill_shape
 * has the places. */
#define FI_SHARED_MOST 232448 /* that a block can have: 227 KiB */
#define FI_PREFILL_BYTES(rows, dim, v_dim, keys, stages, q_slots, code_slots)                      \
    (128 * ((q_slots) * (rows)*FI_PANELS(dim, 2) +                                                 \
            (keys) * ((stages) * (FI_PANELS(dim, 2) + FI_PANELS(v_dim, 2)) +                       \
                      (code_slots) * (FI_PANELS(dim, 1) + FI_PANELS(v_dim, 1)))) +                 \
     ((rows) < FI_PREFILL_ROWS && (code_slots) ? 2560 : 1536))

/* Of prefill: keys of a unit (64 where registers have no room for scores of 128 beside the sums),
 * stages, tiles of queries: two if they fit. */
#define FI_PREFILL_KEYS(v_dim) ((v_dim) > 128 ? 64 : 128)
#define FI_PREFILL_STAGES(dim) ((dim) > 64 ? 2 : 3)
#define FI_PREFILL_OF(dim, v_dim, q_slots)                                                         \
    FI_PREFILL_BYTES(FI_PREFILL_ROWS, dim, v_dim, FI_PREFILL_KEYS(v_dim), FI_PREFILL_STAGES(dim),  \
                     q_slots, 0)
#define FI_Q_SLOTS(dim, v_dim) (FI_PREFILL_OF(dim, v_dim, 2) <= FI_SHARED_MOST ? 2 : 1)

/* The same over fp8; units of codes on their way: two if they fit, before a second tile of queries. */
#define FI_CODES_KEYS(dim) ((dim) > 128 ? 64 : 128)
#define FI_PREFILL_CODES_OF(dim, v_dim, q_slots, code_slots)                                       \
    FI_PREFILL_BYTES(FI_PREFILL_ROWS, dim, v_dim, FI_CODES_KEYS(dim), FI_PREFILL_STAGES(dim),      \
                     q_slots, code_slots)
#define FI_CODE_SLOTS(dim, v_dim) (FI_PREFILL_CODES_OF(dim, v_dim, 1, 2) <= FI_SHARED_MOST ? 2 : 1)
#define FI_CODES_Q_SLOTS(dim, v_dim)                                                               \
    (FI_PREFILL_CODES_OF(dim, v_dim, 2, FI_CODE_SLOTS(dim, v_dim)) <= FI_SHARED_MOST ? 2 : 1)

/* Of prefill for half a tile's rows, on Hopper, where a warpgroup has registers for all columns:
 * units of FI_KEYS keys as decode has them, for it waits for memory as well; of 64 dimensions, whose
 * keys come in half of the time, of twice as many. One warpgroup copies, one multiplies. */
#define FI_HALF_STAGES(dim) 4
#define FI_HALF_KEYS(dim)   ((dim) > 64 ? FI_KEYS : 128)
#define FI_HALF_SLOTS       2 /* tiles of queries */
#define FI_HALF_BYTES(dim, v_dim)                                                                  \
    ((dim) > 128 ? 0                                                                               \
                 : FI_PREFILL_BYTES(FI_HALF_ROWS, dim, v_dim, FI_HALF_KEYS(dim),                   \
                                    FI_HALF_STAGES(dim), FI_HALF_SLOTS, 0))

/* Most dimensions of prefill's kernels for groups with slopes (prefill_slopes.cuh), on Hopper. */
#define FI_SLOPES_DIM         128
#define FI_SLOPES_BYTES(keys) ((keys)*128) /* of shared memory, more than others */

/* The same over fp8: two warpgroups copy, one keys and one values, and what is on its way are codes.
 * Units are larger: a warpgroup that multiplies alone waits for each of its steps. */
#define FI_HALF_CODES_KEYS   128
#define FI_HALF_CODES_STAGES 2
#define FI_HALF_CODES_SLOTS  2
#define FI_HALF_CODES_BYTES(dim, v_dim)                                                            \
    ((dim) > 128 ? 0                                                                               \
                 : FI_PREFILL_BYTES(FI_HALF_ROWS, dim, v_dim, FI_HALF_CODES_KEYS,                  \
                                    FI_HALF_CODES_STAGES, FI_HALF_SLOTS, FI_HALF_CODES_SLOTS))

/* The same kernels for sm_80 to sm_89, which have no copy engine and no warpgroups, and less shared
 * memory: 99 KiB a block but for sm_80 and sm_87, which have 163. Teams of one, units of 64 keys.
 */
#define FI_SM80_STAGES(dim)              ((dim) > 128 ? 1 : 2) /* of prefill */
#define FI_SM80_CODES_STAGES(dim)        ((dim) > 64 ? 1 : 2)
#define FI_SM80_CODE_SLOTS(dim)          ((dim) > 128 ? 1 : 2)
#define FI_SM80_ATTEND_STAGES(dim)       ((dim) > 128 ? 1 : (dim) > 64 ? 2 : 5)
#define FI_SM80_ATTEND_CODES_STAGES(dim) ((dim) > 128 ? 2 : 5)

#ifdef __CUDACC__

/* A line as the files of the kernels read it: FI_LINE(d128, stages). */
struct fi_line {
    int dim, v_dim, stages, codes_stages;
    int keys, prefill_stages, q_slots;
    int codes_keys, codes_q_slots, code_slots;
};
#define FI_LINE(line, number) fi_line_##line.number
#define LINE(name, dim, v_dim, stages, codes_stages)                                               \
    static constexpr fi_line fi_line_##name = {dim,                                                \
                                               v_dim,                                              \
                                               stages,                                             \
                                               codes_stages,                                       \
                                               FI_PREFILL_KEYS(v_dim),                             \
                                               FI_PREFILL_STAGES(dim),                             \
                                               FI_Q_SLOTS(dim, v_dim),                             \
                                               FI_CODES_KEYS(dim),                                 \
                                               FI_CODES_Q_SLOTS(dim, v_dim),                       \
                                               FI_CODE_SLOTS(dim, v_dim)};
#define LINE_16(name, dim, v_dim, stages) LINE(name, dim, v_dim, stages, 0)
FI_SHAPES(LINE, LINE_16)
#undef LINE
#undef LINE_16

/* What the names of kernels say of their queries, and of their cache. */
#define FI_IS_F16_bf16 false
#define FI_IS_F16_f16  true
#define FI_CODES_e4m3  ELEMENT_E4M3
#define FI_CODES_e5m2  ELEMENT_E5M2

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

/* A kernel of so many teams; none without bytes. */
#define FI_KERNEL_OF(name, rows, keys, teams, bytes, blocks, begin)                                \
    {                                                                                              \
        name, rows, keys, (bytes) ? (teams)*128 : 0, bytes, blocks, begin                          \
    }
#define FI_SHAPE(name, dim, v_dim, stages, codes_stages)                                           \
    {                                                                                              \
        dim, v_dim, 1,                                                                             \
        {                                                                                          \
            [KERNEL_ATTEND] =                                                                      \
                FI_KERNEL_OF("fi_attend_" #name, FI_ROWS, FI_KEYS, 1 + FI_ATTEND_PRODUCERS(dim),   \
                             FI_ATTEND_BYTES(dim, v_dim, stages, 1, 2), FI_ATTEND_ROOM(dim), 2),   \
            [KERNEL_ATTEND_MANY] = FI_KERNEL_OF("fi_attend_many_" #name, FI_ROWS, FI_KEYS, 3,      \
                                                FI_MANY_BYTES(dim, v_dim, stages), 1, 2),          \
            [KERNEL_PREFILL] =                                                                     \
                FI_KERNEL_OF("fi_prefill_" #name, FI_PREFILL_ROWS, FI_PREFILL_KEYS(v_dim), 3,      \
                             FI_PREFILL_OF(dim, v_dim, FI_Q_SLOTS(dim, v_dim)), 1, 0),             \
            [KERNEL_PREFILL_HALF] =                                                                \
                FI_KERNEL_OF("fi_prefill_half_" #name, FI_HALF_ROWS, FI_HALF_KEYS(dim), 2,         \
                             FI_HALF_BYTES(dim, v_dim), 1, 0),                                     \
            [KERNEL_CODES] =                                                                       \
                FI_KERNEL_OF("fi_attend_" #name, FI_ROWS, FI_KEYS, FI_CODES_TEAMS(v_dim) + 1,      \
                             (codes_stages) ? FI_ATTEND_BYTES(dim, v_dim, codes_stages,            \
                                                              FI_CODES_TEAMS(v_dim), 1)            \
                                            : 0,                                                   \
                             1, (v_dim) > 128 ? 5 : 10),                                           \
            [KERNEL_CODES_MANY] =                                                                  \
                FI_KERNEL_OF("fi_attend_many_" #name, FI_ROWS, FI_KEYS, 2,                         \
                             (codes_stages) ? FI_CODES_MANY_BYTES(dim, v_dim) : 0, 2, 6),          \
            [KERNEL_PREFILL_CODES] = FI_KERNEL_OF(                                                 \
                "fi_prefill_" #name, FI_PREFILL_ROWS, FI_CODES_KEYS(dim), 3,                       \
                (codes_stages) ? FI_PREFILL_CODES_OF(dim, v_dim, FI_CODES_Q_SLOTS(dim, v_dim),     \
                                                     FI_CODE_SLOTS(dim, v_dim))                    \
                               : 0,                                                                \
                1, 0),                                                                             \
            [KERNEL_PREFILL_HALF_CODES] =                                                          \
                FI_KERNEL_OF("fi_prefill_half_" #name, FI_HALF_ROWS, FI_HALF_CODES_KEYS, 3,        \
                             (codes_stages) ? FI_HALF_CODES_BYTES(dim, v_dim) : 0, 1, 0),          \
        }                                                                                          \
    }
#define FI_SHAPE_16(name, dim, v_dim, stages) FI_SHAPE(name, dim, v_dim, stages, 0)

#define FI_SHAPE_WIDE(name, dim, v_dim, keys, k_stages, stages, shared)                            \
    {                                                                                              \
        dim, v_dim, 1,                                                                             \
        {                                                                                          \
            [KERNEL_PREFILL] = { "fi_prefill_" #name, FI_WIDE_ROWS, keys, 512, shared, 1, 0 }      \
        }                                                                                          \
    }

#define FI_SHAPE_SM80_16(name, dim, v_dim, ...) FI_SHAPE_EARLIER(name, dim, v_dim, 0)
#define FI_SHAPE_SM80(name, dim, v_dim, ...)    FI_SHAPE_EARLIER(name, dim, v_dim, 1)
#define FI_SHAPE_EARLIER(name, dim, v_dim, codes)                                                  \
    {                                                                                              \
        dim, v_dim, 0,                                                                             \
        {                                                                                          \
            [KERNEL_ATTEND] =                                                                      \
                FI_KERNEL_OF("fi_attend_" #name, FI_ROWS, FI_KEYS, 2,                              \
                             FI_ATTEND_BYTES(dim, v_dim, FI_SM80_ATTEND_STAGES(dim), 1, 2), 1, 2), \
            [KERNEL_PREFILL] = FI_KERNEL_OF(                                                       \
                "fi_prefill_" #name, FI_PREFILL_ROWS, FI_KEYS, 3,                                  \
                FI_PREFILL_BYTES(FI_PREFILL_ROWS, dim, v_dim, FI_KEYS, FI_SM80_STAGES(dim), 1, 0), \
                1, 0),                                                                             \
            [KERNEL_CODES] = FI_KERNEL_OF(                                                         \
                "fi_attend_" #name, FI_ROWS, FI_KEYS, 2,                                           \
                (codes) ? FI_ATTEND_BYTES(dim, v_dim, FI_SM80_ATTEND_CODES_STAGES(dim), 1, 1) : 0, \
                1, 5),                                                                             \
            [KERNEL_PREFILL_CODES] = FI_KERNEL_OF(                                                 \
                "fi_prefill_" #name, FI_PREFILL_ROWS, FI_KEYS, 3,                                  \
                (codes) ? FI_PREFILL_BYTES(FI_PREFILL_ROWS, dim, v_dim, FI_KEYS,                   \
                                           FI_SM80_CODES_STAGES(dim), 1, FI_SM80_CODE_SLOTS(dim))  \
                        : 0,                                                                       \
                1, 0),                                                                             \
        }                                                                                          \
    }

#endif
#endif /* FI_SHAPES_H */
