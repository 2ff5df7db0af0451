/* SPDX-License-Identifier: Apache-2.0
 *
 * triton_like.h: the plugin's own declarations.
 *
 *   plugin.c     options and tables
 *   query.c      what it can do
 *   constants.c  a layer group as constants of its kernels
 *   sources.c    the text of a kernel and of all that it includes
 *   compile.c    kernels from source to loaded functions, by NVRTC; cache.c keeps the results
 *   instance.c   an instance for a model's layer groups
 *   metadata.c   memory, and a batch checked against its bounds
 *   forward.c    a layer: operands to kernel parameters, launches
 *   kernels/     the kernels; params.h and splits.h are shared with them
 */
#ifndef TRITON_LIKE_H
#define TRITON_LIKE_H

#include "attn_plugin.h"
#include "plugins/common/cuda/device.h"
#include "plugins/common/cuda/plan.h"
#include "plugins/triton_like/kernels/params.h"
#include "plugins/triton_like/kernels/splits.h"

enum {
    MAX_PATH = 1024,
    MIN_DIM = 16,
    MAX_DIM = 512,
    MAX_WARP_DIM = 256, /* columns of a row that a warp has registers for */
    MAX_DEFAULT_SPLITS = 64,
    DEFAULT_SPLIT_TILE = 512,
    DEFAULT_SMS = 132,   /* multiprocessors of a device that does not say */
    MAX_SPLIT_ROWS = 64, /* rows of a sequence up to which the keys are split among blocks */
    MAX_CONSTANTS = 32,
    CONSTANT_SIZE = 48,
    MAX_HEADERS = 32,
    HEADER_NAME_SIZE = 128,
    CACHE_KEY_SIZE = 32 /* SHA-256 */
};

/* ---- Options --------------------------------------------------------------------------------- */

typedef struct triton_options {
    int32_t num_kv_splits; /* 0 = by the device */
    int32_t split_tile;    /* keys; never 0 */
    int32_t reduce_in_fp32;
    int32_t split_probabilities;
    char kernel_dir[MAX_PATH];
    char cache_dir[MAX_PATH]; /* "" = by default */
} triton_options;

/* Read and check options; NULL = all defaults. CONFIG_ERROR. */
attn_status triton_options_read(const attn_options *given, triton_options *options,
                                attn_error *error);

/* ---- Layer groups ---------------------------------------------------------------------------- */

/* Which build of the attention kernels a batch needs. */
enum { VARIANT_PLAIN = 0, VARIANT_CUSTOM = 1, VARIANT_COUNT = 2 };

/* Tiles of a build, chosen for the device's shared memory. */
typedef struct kernel_shape {
    int32_t team; /* warps that share the columns of a row */
    int32_t extend_warps;
    int32_t row_tiles;
    int32_t key_tile;
    int32_t extend_shared; /* bytes */
    int32_t warps;
    int32_t stages;
    int32_t decode_shared; /* bytes */
    int32_t decode_blocks; /* that a multiprocessor runs at once */
} kernel_shape;

/* The functions of one variant, and the modules that hold them. */
/* The kernel files; a build has a module of each that the group's modes need. */
enum { FILE_EXTEND = 0, FILE_DECODE = 1, FILE_SAVE_KV = 2, FILE_COUNT = 3 };

typedef struct kernel_build {
    int32_t is_whole; /* all needed kernels are loaded */
    kernel_shape shape;
    cuda_module modules[FILE_COUNT];
    cuda_function extend;
    cuda_function decode;
    cuda_function reduce;
    cuda_function save;
} kernel_build;

typedef struct triton_group {
    cuda_group base; /* the first member: cuda_plan_take() walks over groups */
    uint32_t num_sms;
    uint32_t variants; /* set of 1 << VARIANT_* that batches may need */
    uint32_t files;    /* set of 1 << FILE_*: the kernels that their modes need */
    kernel_build builds[VARIANT_COUNT];
} triton_group;

/* "-DNAME=VALUE" options of a build. */
typedef struct kernel_constants {
    int count;
    char text[MAX_CONSTANTS][CONSTANT_SIZE];
} kernel_constants;

/* Warps that share the columns of a group's rows. */
int32_t triton_team(const triton_group *group);

/* A dimension of the group, rounded up to 16 columns for each warp of a team. */
int32_t triton_pad(const triton_group *group, int32_t dim);

/* The set of variants for mask kinds; 0 = not known yet, any. */
uint32_t triton_variants(uint32_t mask_kinds);

/* The set of kernel files for modes; 0 = not known yet, any. */
uint32_t triton_files(const triton_group *group, uint32_t modes);

/* A group from a problem that query accepts; layers are left to the caller. */
void triton_group_init(triton_group *group, const attn_problem *problem);

/* Tiles that fit into `shared_memory` bytes of a block (0 = unknown: the least of sm_80 and later).
 */
kernel_shape triton_shape(const triton_group *group, int variant, uint32_t shared_memory);

/* The constants of a variant's kernels. */
void triton_constants(const triton_group *group, int variant, const kernel_shape *shape,
                      const triton_options *options, kernel_constants *constants);

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status triton_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error);
/* Refusals of bounds by query, as one message: UNSUPPORTED, or INVALID_ARGUMENT for unknown bounds.
 */
attn_status triton_require_bounds(const attn_bounds *bounds, attn_error *error);

extern const attn_backend_type triton_like_type;

/* ---- Compiling ------------------------------------------------------------------------------- */

/* The extension attn.compile_counter/1 of an instance: kernel files since it was created. It lives
 * as long as the instance. */
#define COMPILE_COUNTER_ID "attn.compile_counter/1"
typedef struct compile_counter {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t compiled; /* runs of NVRTC */
    uint64_t cached;   /* binaries taken from the cache instead */
} compile_counter;

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    const nvrtc_api *nvrtc;
    triton_options options;
    cuda_facts device;
    int32_t prepared;
    uint32_t num_groups;
    triton_group *groups; /* the groups and their layers lie after the instance */
    compile_counter counter;
    int32_t cache_warned; /* that binaries cannot be kept has been said */
};

/* Compile, or fetch from the cache, and load all kernels of a group's variant. */
attn_status triton_build(attn_instance *instance, triton_group *group, int variant,
                         attn_error *error);
void triton_build_finish(const cuda_api *cuda, kernel_build *build);

/* The texts of a build: a kernel file, and the headers that it includes, by the names in its
 * #include lines. */
typedef struct kernel_sources {
    char path[MAX_PATH + 32];
    char *source;
    int num_headers;
    char *headers[MAX_HEADERS];
    const char *names[MAX_HEADERS];
    char name_texts[MAX_HEADERS][HEADER_NAME_SIZE];
} kernel_sources;

/* Read `name` in `folder` and all that it includes. DEPENDENCY_MISSING with the file's path; then
 * there is nothing to finish. */
attn_status sources_init(kernel_sources *sources, const char *folder, const char *name,
                         attn_error *error);
void sources_finish(kernel_sources *sources);

/* A binary by its key. */
typedef struct cache_entry {
    uint8_t key[CACHE_KEY_SIZE];
    char path[MAX_PATH + 96];     /* "" = there is no folder that we may trust and write to */
    char trouble[MAX_PATH + 256]; /* the error message; "" = none so far */
} cache_entry;

/* The entry of `count` pieces of text, each of which counts with its length: its file is named by
 * their SHA-256, in the cache folder, which is made if need be. A folder that others could write to
 * is not used. */
void cache_find(const char *cache_dir, const char *const *pieces, int count, cache_entry *entry);
/* The stored file, bit for bit as written under this key; NULL = none. The caller frees it. */
void *cache_read(cache_entry *entry, size_t *size);
/* Store it at once or not at all, even if others do the same. */
void cache_write(cache_entry *entry, const void *data, size_t size);

/* A whole file as text; NULL, with errno, if it cannot be read. The caller frees it. */
char *read_file(const char *path, size_t *size);

/* ---- Instance -------------------------------------------------------------------------------- */

attn_status triton_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error);
void triton_destroy(attn_instance *instance);
attn_status triton_prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error);
uint32_t triton_index_forms(attn_instance *instance);

/* ---- Metadata -------------------------------------------------------------------------------- */

struct attn_metadata {
    attn_instance *instance;
    cuda_plan plan;
    char *scratch; /* partial results */
};

/* SPLIT_*: of which sequences of a batch of this mode a group shares out the keys among blocks. */
int32_t triton_split_part(const triton_group *group, uint32_t mode, const attn_bounds *bounds);

/* The most splits that a sequence within the bounds gets. */
int32_t triton_grid_splits(const triton_group *group, const triton_options *options,
                           const attn_bounds *bounds);

/* Partial results of a group in scratch memory: outputs, then denominators, then how many splits
 * there are. Bytes. */
typedef struct triton_scratch {
    uint64_t lse_at;
    uint64_t used_at;
    uint64_t size;
} triton_scratch;

triton_scratch triton_scratch_layout(const triton_group *group, const triton_options *options,
                                     const attn_bounds *bounds);

attn_status triton_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error);
attn_status triton_metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error);
attn_status triton_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error);

/* ---- Forward --------------------------------------------------------------------------------- */

attn_status triton_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);
attn_status triton_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);

#endif /* TRITON_LIKE_H */
