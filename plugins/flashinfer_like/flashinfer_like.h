/* SPDX-License-Identifier: Apache-2.0
 *
 * flashinfer_like.h: softmax attention, planned and shared out evenly, for any mix of lengths. All
 * but plugin.c is a library, which fa3_like links beside kernels of its own; fa3_like's structs
 * begin with this library's. The prefix is `fi`, as the design is FlashInfer's.
 *
 *   query.c      options, and what it can do
 *   choose.c     few rows or many: which kernel
 *   instance.c   an instance for a model's layer groups, and its kernels
 *   metadata.c   memory, and a batch: checked, and planned on the device
 *   code_paths.c a batch's rows by code path, for reports
 *   forward.c    a layer: operands to the kernels' parameters, launches
 *   kernels/     the kernels; shapes.h is the table of the attention kernels, plan.h their
 *                arguments, plan.cuh the planner
 */
#ifndef PLUGINS_FLASHINFER_LIKE_H
#define PLUGINS_FLASHINFER_LIKE_H

#include "attn_plugin.h"
#include "plugins/common/cuda/device.h"
#include "plugins/common/cuda/plan.h"
#include "plugins/flashinfer_like/kernels/plan.h"
#include "plugins/flashinfer_like/kernels/shapes.h"

enum {
    DEFAULT_SMS = 132,          /* multiprocessors of a device that does not tell */
    MERGE_SEVERAL = 4,          /* 64ths of a unit: a part of few rows, by several blocks */
    MERGE_SEVERAL_MANY = 1,     /* of many rows */
    SHORT_ROWS = FI_SHORT_ROWS, /* of a sequence and KV head, at most, for tiles of FI_ROWS */
    SHORT_MOST = 64,            /* the same where an estimate says that they are sooner */
    SAVE_BLOCKS = 8,            /* blocks of fi_save for each multiprocessor */
    ALONE_KEYS = 1024,          /* of one sequence: more go to one block a multiprocessor */
    ALONE_HEADS = 8,            /* KV heads of it, at least; */
    ALONE_MANY = 32,            /* of so many, as many keys are enough */
    FEW_SAVED = 4,              /* new keys of a sequence that attention over fp8 saves */
    SAVE_PIECES = 1024,         /* of 16 bytes: what a block of attention saves on its way */
    LEAST_SPLIT = FI_KEYS,      /* keys, as FI_OPTIONS says */
    MOST_SPLIT = 1 << 20
};

/* ---- Options --------------------------------------------------------------------------------- */

/* All products use tensor cores, for any ratio of heads (docs/kernels/ has the reason), so AUTO and
 * ALWAYS are the same. */
enum { TENSOR_CORES_AUTO = 0, TENSOR_CORES_ALWAYS = 1, TENSOR_CORES_NEVER = 2, TENSOR_CORES_COUNT };

/* When keys that sequences share are read once for all of them. */
enum { WHEN_AUTO = 0, WHEN_ALWAYS = 1, WHEN_NEVER = 2, WHEN_COUNT = 3 };

/* The texts of these values, for a plugin's options. */
extern const char *const fi_whens[WHEN_COUNT];
extern const char *const fi_tensor_cores[TENSOR_CORES_COUNT];
#define FI_OPTIONS                                                                                 \
    {.struct_size = sizeof(attn_option),                                                           \
     .type = ATTN_OPTION_ENUM,                                                                     \
     .key = "cascade",                                                                             \
     .default_text = "auto",                                                                       \
     .min = 1,                                                                                     \
     .num_choices = WHEN_COUNT,                                                                    \
     .choices = fi_whens,                                                                          \
     .doc = "read keys that sequences of a DECODE batch share, according to its hint, once for "   \
            "all of them; auto = if that saves more than it costs"},                               \
        {.struct_size = sizeof(attn_option),                                                       \
         .type = ATTN_OPTION_ENUM,                                                                 \
         .key = "many_items",                                                                      \
         .default_text = "auto",                                                                   \
         .min = 1,                                                                                 \
         .num_choices = WHEN_COUNT,                                                                \
         .choices = fi_whens,                                                                      \
         .doc =                                                                                    \
             "use, if available, the kernel for decode and short queries that overlaps the end "   \
             "of a block's item with the start of its next; auto = if a block has several items"}, \
        {.struct_size = sizeof(attn_option),                                                       \
         .type = ATTN_OPTION_ENUM,                                                                 \
         .key = "half_tiles",                                                                      \
         .default_text = "auto",                                                                   \
         .min = 1,                                                                                 \
         .num_choices = WHEN_COUNT,                                                                \
         .choices = fi_whens,                                                                      \
         .doc = "use, if available, tiles of 64 rows, which read keys once, for up to 64 rows of " \
                "a sequence and KV head outside DECODE, as in verifications; auto = from 17 rows " \
                "on, if estimated faster"},                                                        \
        {.struct_size = sizeof(attn_option),                                                       \
         .type = ATTN_OPTION_SIZE,                                                                 \
         .key = "workspace_size",                                                                  \
         .default_text = "128M",                                                                   \
         .min = 1 << 20,                                                                           \
         .max = 1099511627776.0,                                                                   \
         .doc = "limit of a layer's scratch for partial results; only the required amount is "     \
                "allocated, at most 35 MB on 132 multiprocessors unless batch_invariant is on. A " \
                "lower limit means fewer blocks"},                                                 \
        {.struct_size = sizeof(attn_option),                                                       \
         .type = ATTN_OPTION_BOOL,                                                                 \
         .key = "batch_invariant",                                                                 \
         .default_text = "off",                                                                    \
         .doc = "bits of a row's results do not depend on the rest of its batch; also on if a "    \
                "problem requires that trait. Slower: sequences have fixed splits, tiles of many " \
                "rows none, and shared prefixes are read by each sequence"},                       \
    {                                                                                              \
        .struct_size = sizeof(attn_option), .type = ATTN_OPTION_INT, .key = "split_tile_size",     \
        .default_text = "1024", .min = LEAST_SPLIT, .max = MOST_SPLIT,                             \
        .doc = "with batch_invariant: keys per split of a tile of few rows, a power of two. "      \
               "Smaller splits balance short batches better, but need more merging; scratch "      \
               "grows with the splits of max_kv_len"                                               \
    }

/* The further options of a plugin whose only kernels are the library's. */
#define FI_KERNEL_OPTIONS                                                                          \
    {                                                                                              \
        .struct_size = sizeof(attn_option), .type = ATTN_OPTION_ENUM, .key = "use_tensor_cores",   \
        .default_text = "auto", .min = 1, .num_choices = TENSOR_CORES_COUNT,                       \
        .choices = fi_tensor_cores,                                                                \
        .doc = "tensor cores for decode; auto and always are the same, as CUDA cores would not "   \
               "be faster for any ratio of heads; never is refused"                                \
    }

typedef struct fi_options {
    int cascade;       /* WHEN_* */
    int many_items;    /* WHEN_* */
    int half_tiles;    /* WHEN_* */
    int64_t workspace; /* bytes */
    int tensor_cores;  /* TENSOR_CORES_* */
    int is_invariant;  /* as requested; fi_group's tells whether it holds */
    int64_t split;     /* keys */
} fi_options;

fi_options fi_read_options(const attn_options *given);

/* The value of a key, a number or an index of its option's choices; `otherwise` if it is not given.
 */
int64_t fi_read_option(const attn_options *given, const char *key, int64_t otherwise);

/* ---- Layer groups ---------------------------------------------------------------------------- */

enum { TYPE_BF16 = 0, TYPE_F16 = 1, TYPE_COUNT = 2 }; /* the type of queries */

extern const fi_shape fi_shapes[];
extern const uint32_t fi_num_shapes;

/* The shape of these head dimensions, or NULL. */
const fi_shape *fi_find_shape(int32_t dim, int32_t dim_v);

/* Which kernels the device gets: those of sm_90a, or those of FI_LEAST_SM and later ones. */
enum { FI_LEAST_SM = 80 };
int fi_has_hopper(const attn_device *device);

/* The shape, among the device's kernels. */
const fi_shape *fi_find_shape_for(const attn_device *device, int32_t dim, int32_t dim_v);

typedef struct fi_group {
    cuda_group base; /* the first member: cuda_plan_take() walks over groups */
    const fi_shape *shape;
    uint32_t num_sms;
    fi_options options;
    int is_invariant;                      /* a row's bits do not depend on the rest of its batch */
    cuda_function functions[KERNEL_COUNT]; /* those for the type of its cache */
} fi_group;

/* May a batch of the group use this kernel? It must exist for the shape and the cache's type, and
 * must not be one for many items if bits must not depend on the number of items. */
int fi_has_kernel(const fi_group *group, int kernel);

/* Bytes of shared memory of a block of the group's kernel. */
uint32_t fi_shared_bytes(const fi_group *group, int kernel);

/* Does the shape have one kernel for any number of rows, wide.cuh's? */
int fi_is_wide(const fi_shape *shape);

/* A kernel's grid, see plan.h. */
typedef struct fi_grid {
    uint32_t lanes, columns;
} fi_grid;

fi_grid fi_find_grid(const fi_group *group, int kernel, const attn_bounds *bounds);

/* Bytes of the workspace per block. */
int64_t fi_block_bytes(const fi_group *group, const attn_bounds *bounds);

/* The most splits of an item of few rows within the bounds, if the group is invariant; else 0. */
int64_t fi_most_splits(const fi_group *group, const attn_bounds *bounds);

/* fi_find_grid() for the multiprocessors that the bounds allow. */
fi_grid fi_bounded_grid(const fi_group *group, int kernel, const attn_bounds *bounds);

/* Keys that a warp copies at a time, and keys of the cache that it copies in one box, which lie in
 * one page; 1: they are copied row by row. */
int fi_warp_keys(const fi_group *group, int kernel);
int fi_box_keys(const fi_group *group, int kernel);

/* The group of a problem that query accepts, on a device of `num_sms`; the caller adds layers and
 * kernels. */
void fi_group_init(fi_group *group, const attn_problem *problem, uint32_t num_sms,
                   const fi_options *options);

/* Must a row's bits not depend on the rest of its batch? */
int fi_is_invariant(const attn_problem *problem, const fi_options *options);

/* ---- The choice ------------------------------------------------------------------------------ */

/* The tiles of `size` rows that sequences are cut into, with `ratio` rows per query. */
int64_t fi_count_tiles(const cuda_extent *extent, int64_t ratio, int64_t size);

/* A measure of the cycles that 128 rows take for `keys` keys, which each kind of kernel scales; and
 * the cycles of a batch by tiles of FI_PREFILL_ROWS. */
int64_t fi_key_cycles(int64_t keys, int64_t dims);
int64_t fi_prefill_cycles(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                          int64_t sms);

/* Are tiles of FI_ROWS faster for sequences of `keys` keys than larger ones? */
int fi_is_short(const cuda_group *group, const cuda_extent *extent, int64_t keys, int64_t sms);

/* Is there a kernel for tiles of FI_HALF_ROWS, and is it faster for sequences of `keys` keys than
 * tiles of FI_ROWS? */
int fi_is_half(const fi_group *group, const cuda_extent *extent, int64_t keys, int64_t sms);

/* The KERNEL_* of tiles of FI_HALF_ROWS. */
static inline int fi_half_kernel(const fi_group *group)
{
    return cuda_is_fp8(group->base.kv_dtype) ? KERNEL_PREFILL_HALF_CODES : KERNEL_PREFILL_HALF;
}

/* Are a batch's tiles of FI_ROWS so many that the kernel for many items is faster? `keys`: of a
 * sequence; `sms`: those that the batch may have. */
int fi_is_many(const fi_group *group, const cuda_extent *extent, int64_t keys, int64_t sms);

/* ---- Query ----------------------------------------------------------------------------------- */

/* What the library can serve, on the devices of a plugin's own kernels. `codes`: what all of these
 * are compiled for, as cuda_codes_check() reads it. */
attn_status fi_answer(const char *codes, const attn_options *options, const attn_problem *problem,
                      attn_verdict *verdict, attn_error *error);
attn_status fi_query(const attn_backend_type *type, const attn_options *options,
                     const attn_services *services, const attn_problem *problem,
                     attn_verdict *verdict, attn_error *error);
/* Fail, with one message, for bounds that query rejects: UNSUPPORTED, or INVALID_ARGUMENT for
 * unknown ones. */
attn_status fi_require_bounds(const attn_bounds *bounds, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    cuda_facts facts;
    fi_options options;
    cuda_module plan_module;
    cuda_function plan;
    cuda_function save;
    cuda_module *modules; /* by shape, image and type; NULL = not needed */
    uint32_t num_groups;
    fi_group *groups; /* groups, layers, modules and `own` follow this struct in memory */
    void *own;        /* what a plugin adds to the library's struct */
};

/* The create of attn_backend_type; instance->own gets `own_size` bytes of zeros for the plugin. */
attn_status fi_create_with(const attn_backend_type *type, const attn_problem *problems,
                           uint32_t num_problems, const attn_options *options,
                           const attn_services *services, uint64_t own_size,
                           attn_instance **instance, attn_error *error);
attn_status fi_create(const attn_backend_type *type, const attn_problem *problems,
                      uint32_t num_problems, const attn_options *options,
                      const attn_services *services, attn_instance **instance, attn_error *error);
void fi_destroy(attn_instance *instance);
uint32_t fi_index_forms(attn_instance *instance);

/* A layer and its group; INVALID_ARGUMENT for a layer of another instance. */
attn_status fi_find_layer(const attn_instance *instance, int32_t layer_id, uint32_t *index,
                          const attn_util_layer **layer, attn_error *error);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* Byte offsets of the parts of a group's plan. */
typedef struct fi_plan_layout {
    int64_t most_tiles;
    uint64_t first_tile_at, before_at, tiles_at, starts_at;
    uint64_t size;
} fi_plan_layout;

/* The layouts of plans for a batch's sequences, for those with few rows, and for the runs of a
 * level of shared prefixes. */
fi_plan_layout fi_layout_plan(const fi_group *group, const attn_bounds *bounds);
fi_plan_layout fi_layout_few(const fi_group *group, const attn_bounds *bounds);
fi_plan_layout fi_layout_runs(const fi_group *group, const attn_bounds *bounds);

/* The most levels of shared prefixes that the group's keys are read by within the bounds. There are
 * none with windows, chunks or ALiBi, over fp8, and for an encoder's keys, which prefixes do not
 * describe. */
int fi_num_levels(const fi_group *group, const attn_bounds *bounds);

/* Byte offsets in scratch memory of the parts of items that several blocks share. */
typedef struct fi_workspace_layout {
    uint64_t rows_at;
    uint64_t size;
} fi_workspace_layout;

fi_workspace_layout fi_layout_workspace(const fi_group *group, const attn_bounds *bounds,
                                        int kernel);

/* Byte offsets of the results of runs, which sequences merge; they follow the parts. */
typedef struct fi_prior_layout {
    uint64_t at, rows_at;
    uint64_t size; /* of scratch memory, parts included */
} fi_prior_layout;

fi_prior_layout fi_layout_prior(const fi_group *group, const attn_bounds *bounds);

/* Consecutive sequences of a batch that the library serves, while a plugin's own kernels serve the
 * others, save all new keys and clear padding. */
typedef struct fi_part {
    int first_seq, num_seqs;
    int q_len; /* the longest; 0 = no part: the library serves all of the batch */
} fi_part;

/* What the host knows about the shared prefixes of a batch, or of a graph's replay. */
typedef struct fi_told {
    int levels;   /* 0 = it knows nothing */
    int64_t keys; /* that need not be read again */
    int64_t rows; /* of sequences whose shared keys are read once, without padding */
} fi_told;

struct attn_metadata {
    attn_instance *instance;
    cuda_plan plan;
    char *plans;          /* device: of the groups, one after the other */
    char *workspace;      /* device */
    int32_t *arrived;     /* device: counters that every attention kernel leaves at 0 */
    fi_prefixes prefixes; /* of a DECODE batch, in device memory */
    int64_t shared_keys;  /* that prefixes save reading; -1 = not known */
    fi_told hinted;
    /* [num_groups] rows of the batch by path; the library's paths come first */
    int64_t (*rows)[ATTN_MAX_CODE_PATHS];
    int is_settled; /* a kernel was launched after the plan's, so the next may begin before that one
                     * has ended */
    void *own;      /* what a plugin adds to the library's struct */
    const fi_part *parts; /* [num_groups], for an eager batch; NULL = none */
};

/* The group's part of the batch, or NULL. */
const fi_part *fi_part_of(const attn_metadata *metadata, uint32_t index);

/* The most keys of a sequence of the planned batch, or of any of a graph's. */
int64_t fi_most_keys(const cuda_plan *plan, const cuda_group *group);

/* The plans of a group; those of shared prefixes are numbered by level: 0, 1, ... */
enum {
    FI_SEQUENCES = -1, /* all sequences of the batch, or those that are not in FI_BESIDE */
    FI_BESIDE = -2     /* sequences of few rows, which have their own kernel */
};

/* Does a group have both plans, for the planned batch or for any of a graph's? */
int fi_has_beside(const attn_metadata *metadata, uint32_t index);

/* The KERNEL_* for a plan of a group, in the planned batch or in any of a graph's. */
int fi_find_kernel(const attn_metadata *metadata, uint32_t index, int plan);

/* The levels by which the group's keys are read in the planned batch. */
int fi_planned_levels(const attn_metadata *metadata, const fi_group *group);

/* Does the planner use runs for the group? -1 = only the device knows. */
int fi_uses_runs(const attn_metadata *metadata, const fi_group *group);

/* A plan of group `index` in the metadata's memory, as the planner's argument: FI_SEQUENCES,
 * FI_BESIDE, or a level. */
void fi_plan_of(const attn_metadata *metadata, uint32_t index, int plan, fi_plan_call *call);

attn_status fi_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                             attn_memory_size *size, attn_error *error);
attn_status fi_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                               const attn_memory *memory, attn_metadata **metadata,
                               attn_error *error);
/* fi_init_forward_metadata() in two steps: check and take the batch, and set `is_worked_on` if
 * there is anything to plan; then plan each group that this library forwards. */
attn_status fi_take_batch(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                          int *is_worked_on, attn_error *error);
attn_status fi_plan_group(attn_metadata *metadata, uint32_t index, attn_stream stream,
                          attn_error *error);
attn_status fi_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                     attn_stream stream, attn_error *error);

/* Set the verdict's bytes of device and host memory. */
void fi_tell_memory(const attn_problem *problem, const fi_options *options, attn_verdict *verdict);

/* ---- Paths ----------------------------------------------------------------------------------- */

enum {
    FI_PATH_RAGGED = 0,
    FI_PATH_PAGED = 1,
    FI_PATH_UNTOLD = 2,
    FI_PATH_FEW = 3,
    FI_PATH_DECODE = 4,
    FI_PATH_CASCADE = 5,
    FI_PATH_DECODE_UNTOLD = 6,
    FI_NUM_PATHS = 7
};

/* The paths' names and descriptions (attn_code_paths); a plugin appends its own. */
#define FI_PATH(name_, doc_)                                                                       \
    {                                                                                              \
        .struct_size = sizeof(attn_code_path), .name = name_, .doc = doc_                          \
    }
#define FI_PATHS                                                                                   \
    FI_PATH("prefill_ragged", "tiles of 64 or 128 rows, of sequences whose keys are all new and "  \
                              "are read from the arguments"),                                      \
        FI_PATH("prefill_paged",                                                                   \
                "tiles of 64 or 128 rows, of sequences that have keys in the cache"),              \
        FI_PATH("prefill_untold", "rows outside DECODE whose path only the device knows, by "      \
                                  "cached keys or by few rows"),                                   \
        FI_PATH("few_rows", "tiles of 16 rows, of sequences with few rows outside DECODE"),        \
        FI_PATH("decode", "rows of DECODE, each over all of its keys"),                            \
        FI_PATH("cascade", "rows of DECODE that share one read of their first keys"),              \
        FI_PATH("decode_untold",                                                                   \
                "rows of DECODE for which only the device knows whether they share keys")

/* The host array of [S + 1] rows of new k and v, or NULL. */
const int32_t *fi_new_rows(const attn_batch *batch, const attn_kv_batch *kv);

/* Count the rows by path of a group's planned batch, or of its part, in metadata->rows[index], and
 * return their sum. */
int64_t fi_count_rows(attn_metadata *metadata, uint32_t index);

/* attn_code_paths.rows in two steps: find the group, then read its counts. A layer that is called
 * without k and v reads all keys from the cache. */
attn_status fi_find_rows(const attn_metadata *metadata, int32_t layer_id, uint32_t *index,
                         const attn_util_layer **layer, attn_error *error);
void fi_read_rows(const attn_metadata *metadata, uint32_t index, const attn_util_layer *layer,
                  int64_t rows[FI_NUM_PATHS]);

/* For a plugin whose only paths are the library's. */
const void *fi_get_extension(attn_instance *instance, const char *id);

/* ---- Forward --------------------------------------------------------------------------------- */

attn_status fi_forward_extend(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error);
attn_status fi_forward_decode(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error);

#endif /* PLUGINS_FLASHINFER_LIKE_H */
