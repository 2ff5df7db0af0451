/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3_like.h: the plugin's own declarations. Batches that its forward kernels are not the fastest
 * for, or cannot serve, are those of plugins/flashinfer_like, which every instance and all
 * metadata here begin with; choose.c tells which are which.
 *
 *   plugin.c         tables
 *   query.c          what it can do
 *   instance.c       an instance for a model's layer groups, and its kernels
 *   choose.c         whose batch it is
 *   code_paths.c     a batch's rows by code path, for reports
 *   metadata.c       memory, and a batch: checked, and planned on the device
 *   codes.c          queries, and new keys and values, of e4m3
 *   gather.c         caches that tiles cannot read
 *   join.c           few tiles, whose keys are shared out
 *   expanded.c       latent attention in the expanded form
 *   forward.c        a layer: operands to the kernels' parameters, two launches
 *   kernels/         the kernels; shapes.h is the table of the forward kernels, params.h and
 *                    batch.h are their arguments
 */
#ifndef FA3_LIKE_H
#define FA3_LIKE_H

#include "attn_plugin.h"
#include "attn_plugin_util.h"
#include "plugins/flashinfer_like/flashinfer_like.h"
#include "plugins/fa3_like/kernels/batch.h"
#include "plugins/fa3_like/kernels/params.h"
#include "plugins/fa3_like/kernels/shapes.h"

enum {
    ROWS_FEW = 8,                /* blocks of fa3_rows where tiles save all new rows */
    ROWS_BLOCKS = 8,             /* most blocks of fa3_rows per multiprocessor, and */
    ROWS_BLOCK_BYTES = 16 << 10, /* bytes of new keys and values per block */
    /* Most rows that a tile of up to SAVE_BOX_QUERIES queries saves at a time, SAVE_BOX_LEAST at
     * least, if each multiprocessor has SAVE_BOX_WAVES tiles and each KV head SAVE_BOX_HEADS query
     * heads (one for long prompts). */
    SAVE_BOX = 32,
    SAVE_BOX_LEAST = 16,
    SAVE_BOX_QUERIES = 192,
    SAVE_BOX_WAVES = 4,
    SAVE_BOX_HEADS = 2,
    /* Least query heads of a KV head for its tiles to save rows one at a time, and the same for
     * prompts of SAVE_LONG tokens or more. Each head saves its share, which takes as long as
     * products of few keys. */
    SAVE_HEADS = 8,
    SAVE_HEADS_LONG = 4,
    SAVE_LONG = 1024,
    L2_SECTION = 32 << 20, /* bytes of keys and values that tiles work on together, */
    SECTION_WAVES = 8      /* if each multiprocessor has so many tiles */
};

/* ---- Options --------------------------------------------------------------------------------- */

/* `tiles`: which batches forward kernels serve, of those that they can. SHARED: all, by low tiles,
 * with keys split into as many parts as the scratch memory holds. */
enum { TILES_AUTO = 0, TILES_ALWAYS = 1, TILES_NEVER = 2, TILES_SHARED = 3, TILES_COUNT = 4 };

/* Never for batch_invariant: forward kernels promise no equal bits. */
int fa3_read_tiles(const attn_options *options);

/* ---- Layer groups ---------------------------------------------------------------------------- */

extern const fa3_tile fa3_tiles[];
extern const uint32_t fa3_num_tiles;

/* The tiles, or the low tiles, of these head dimensions; NULL = there are none. */
const fa3_tile *fa3_find_tile(int32_t dim, int32_t dim_v, int is_low);

/* What this plugin adds to the library's fi_group. */
typedef struct fa3_group {
    const fa3_tile *tile; /* NULL = tiles serve none of its batches */
    const fa3_tile *low;  /* tiles of fewer queries; NULL = none */
    cuda_function forward, low_forward;
    int has_codes;        /* q is e4m3; the library reads it as bf16 */
    attn_dtype new_dtype; /* of new k and v; used if has_codes */
    uint32_t granularity; /* ATTN_SCALE_* of q, and of new k, v that are e4m3 */
    int gathers;          /* tiles read rows that are gathered from its cache */
    int is_expanded;      /* latents in expanded form; the library sees softmax layers */
    uint32_t expanded;    /* modes that are called in expanded form */
    cuda_group latents;   /* the saved latents, as keys and values of one head */
} fa3_group;

/* The group of a problem that query accepts, but for its kernels. `option`: TILES_* */
fa3_group fa3_group_of(const attn_problem *problem, int option);

/* ---- Codes: q, new k and v of e4m3 ----------------------------------------------------------- */

/* The one shape of tiles over codes. */
extern const fa3_tile fa3_codes_tile;

int fa3_has_codes(const attn_problem *problem);

/* Write to `problem` and `group` what the library serves: with codes, q and new k and v in bf16;
 * for expanded latents, softmax layers; for any other problem, a copy. */
void fa3_plain_problem(const attn_problem *given, attn_problem *problem, attn_layer_group *group);

/* Add the reasons that concern codes only. */
void fa3_check_codes(const attn_problem *problem, attn_verdict *verdict);

/* Byte offsets of a group's parts of the scratch memory. */
typedef struct fa3_codes_layout {
    uint64_t q_at, k_at, v_at; /* bf16, for the library */
    uint64_t scales_at;        /* the scales of q, k and v that the host has, then the cache's */
    uint64_t turned_at;        /* values as tiles read them */
    uint64_t scales_each;      /* numbers for each of q, k and v */
    uint64_t size;             /* 0 for a group without codes */
} fa3_codes_layout;

fa3_codes_layout fa3_layout_codes(const fa3_group *group, const cuda_group *base,
                                  const attn_bounds *bounds);

/* Keep the row counts that calls of the planned batch check, as host arrays are gone by then. */
void fa3_note_rows(attn_metadata *metadata, uint32_t index);

/* ---- Gathered keys --------------------------------------------------------------------------- */

/* Do tiles read rows that are gathered from a group's cache, as they cannot read the cache? */
int fa3_gathers(const cuda_group *group);

/* Byte offsets of gathered rows in the scratch memory. */
typedef struct fa3_gather_layout {
    uint64_t v_at;      /* values; keys are first */
    uint64_t scales_at; /* the cache's scales */
    uint64_t rows;      /* most rows of keys, and of values */
    uint64_t size;      /* 0 for a group that gathers nothing */
} fa3_gather_layout;

fa3_gather_layout fa3_layout_gather(const fa3_group *group, const cuda_group *base,
                                    const attn_bounds *bounds);

/* Is there room for the keys of the batch that is planned, or of any of the graph's? */
int fa3_may_gather(const attn_metadata *metadata, uint32_t index);

/* ---- Parts of tiles -------------------------------------------------------------------------- */

/* Byte offsets of parts in the scratch memory, after gathered rows. */
typedef struct fa3_join_layout {
    uint64_t at, lse_at;
    uint64_t size; /* 0 for a group whose tiles have no parts */
} fa3_join_layout;

fa3_join_layout fa3_layout_join(const fa3_group *group, const cuda_group *base,
                                const attn_bounds *bounds);

/* The most parts of a tile that the scratch memory holds. */
int64_t fa3_most_splits(const cuda_group *base, const cuda_extent *extent);

/* ---- Latent attention in the expanded form --------------------------------------------------- */

/* Is the problem of kind mla, which this plugin serves in expanded form only? */
int fa3_is_expanded(const attn_problem *problem);

void fa3_plain_expanded(attn_problem *problem, attn_layer_group *group);

/* The latents to save, as keys and values of one head. */
cuda_group fa3_latents_of(const attn_problem *problem);

/* Add the reasons against an expanded problem, but for those that the library finds in
 * fa3_plain_expanded()'s. */
attn_status fa3_check_expanded(const cuda_question *ask, const attn_options *options,
                               attn_verdict *verdict, attn_error *error);

/* UNSUPPORTED for bounds that the expanded form does not accept, INVALID_ARGUMENT for unknown ones.
 */
attn_status fa3_require_expanded(uint32_t expanded, const attn_bounds *bounds, attn_error *error);

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status fa3_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *verdict, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

/* What this plugin adds to the library's attn_instance, as its `own`. */
typedef struct fa3_instance {
    cuda_module rows_module;
    cuda_function plan;
    cuda_function rows;
    cuda_module codes_module;
    cuda_function store_scales, widen, turn;
    cuda_module gather_module, join_module;
    cuda_function gather, join;
    cuda_module codes_modules[TYPE_COUNT]; /* of forward kernels, by the outputs' type */
    cuda_module *modules; /* [num_tiles][TYPE_COUNT] of forward kernels; NULL = not needed */
    int option;           /* TILES_* */
    fa3_group *groups;    /* [num_groups]; groups and modules follow this struct in memory */
} fa3_instance;

attn_status fa3_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error);
void fa3_destroy(attn_instance *instance);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* A batch for a layer group, by the names of FlashAttention's callers. Queries are those of
 * cu_seqlens_q, or, if that is NULL, one for each sequence (DECODE). With cu_seqlens_k, all keys
 * are rows of k and v; else cache_seqlens counts them. */
typedef struct fa3_metadata {
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_k;
    const int32_t *cache_seqlens;
    const int32_t *page_table; /* [num_seqs, page_table_stride]; NULL = no pages, or none that the
                                  copy engine can read */
    int64_t page_table_stride;
    int32_t max_seqlen_q;
    int32_t max_seqlen_k;
    int32_t window_left; /* FA3_UNBOUNDED = no limit */
    int32_t window_right;
    fa3_plan *plan; /* on the device, as are its lists; NULL = the group has no tiles */
    struct fa3_entry *tiles;
    int32_t *slow;
    int is_tiled;           /* this batch's tiles are planned */
    const fa3_tile *tile;   /* the planned ones; NULL = not yet */
    int splits;             /* parts of each tile's keys; 1 = they are not split */
    fa3_given given;        /* for expanded latents: memory for lists, and the batch's arrays */
    int32_t *ahead_first;   /* for turned values or gathered keys; else NULL */
    int is_gathered;        /* this batch's keys are gathered */
    int64_t named_rows;     /* for codes: end of the rows of q that the batch names, and */
    int64_t named_new_rows; /* the same for new k and v; -1 = unknown to the host */
} fa3_metadata;

/* Byte offsets of the parts of a group's plan. */
typedef struct fa3_plan_layout {
    int64_t most_tiles;
    uint64_t tiles_at, slow_at, first_tile_at, marks_at, ahead_at;
    uint64_t given_at, given_each; /* three lists of given_each bytes */
    uint64_t size;
} fa3_plan_layout;

/* Its size is 0 for a group without tiles. */
fa3_plan_layout fa3_layout_plan(const fa3_group *group, const attn_bounds *bounds);

/* What this plugin adds to the library's attn_metadata, as its `own`. */
typedef struct fa3_own {
    uint64_t counter;     /* device: two numbers that every forward kernel leaves at 0 */
    fa3_metadata *groups; /* [num_groups] */
    fi_part *parts;       /* [num_groups]: the library's part of a batch in tiles */
    char *scratch;        /* device: used by one layer at a time */
} fa3_own;

attn_status fa3_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                              attn_memory_size *size, attn_error *error);
attn_status fa3_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error);
attn_status fa3_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error);

/* The planned batch as kernels read it. */
void fa3_fill_batch(const attn_metadata *metadata, uint32_t index, call_batch *batch);

/* Add this plugin's bytes to the library's. */
void fa3_tell_memory(const fa3_group *group, const cuda_group *base, const attn_bounds *bounds,
                     attn_verdict *verdict);

/* ---- The choice ------------------------------------------------------------------------------ */

/* Can the forward kernels multiply scores by the group's scale? If not, rows go one by one. */
int fa3_has_scale(const cuda_group *group);

/* Can the forward kernels serve any batch of the problem? */
int fa3_may_tile(const attn_problem *problem);

/* Do tiles serve the taken batch, or any of the graph's, in group `index`? Then `part` is set to
 * what the library serves of it. */
int fa3_is_for_tiles(const attn_metadata *metadata, uint32_t index, fi_part *part);

/* May calls of a batch in tiles bring keys that are in no page, which only the library reads? */
int fa3_may_be_unsaved(const attn_metadata *metadata, uint32_t index);

/* Are the group's keys in pages that tiles cannot read? The library then serves calls without k and
 * v. */
int fa3_has_small_pages(const attn_metadata *metadata, uint32_t index);

/* Can the copy engine read the group's pages in boxes? */
int fa3_has_boxes(const cuda_group *group);

/* ---- Paths ----------------------------------------------------------------------------------- */

/* They follow the library's paths. */
enum {
    FA3_PATH_RAGGED = FI_NUM_PATHS,
    FA3_PATH_PAGED,
    FA3_PATH_CODES,
    FA3_PATH_GATHERED,
    FA3_PATH_IF_SAVED,
    FA3_NUM_PATHS
};

/* Count the rows of a group in the planned batch, by path. */
void fa3_count_rows(attn_metadata *metadata, uint32_t index);

const void *fa3_get_extension(attn_instance *instance, const char *id);

/* ---- Forward --------------------------------------------------------------------------------- */

/* One call. */
typedef struct layer_call {
    attn_metadata *metadata;
    const attn_instance *instance;
    const fa3_instance *kernels;
    const cuda_group *group;
    const fa3_group *tiles; /* of the group */
    const attn_util_layer *layer;
    const fa3_metadata *view;
    const attn_kv_batch *kv;
    uint32_t index; /* of the group */
    attn_forward_args args;
    fa3_rows_call rows; /* with the operands */
} layer_call;

/* The multiprocessors that launches may use. */
int64_t fa3_num_sms(const layer_call *call);

/* Put the operands of codes into call->rows, and copy the host's scales to the device. */
attn_status fa3_take_codes(layer_call *call, attn_stream stream, attn_error *error);

/* Put the operands of expanded latents into call->rows, which saves nothing, and save the latents.
 */
attn_status fa3_take_expanded(layer_call *call, attn_stream stream, attn_error *error);

/* Where fa3_rows leaves the cache's scales for tiles. */
float *fa3_cache_scales(const layer_call *call);

/* Write the cache's values as tiles read them, and set their address in `p`. */
attn_status fa3_turn_values(const layer_call *call, struct fa3_codes_params *p, attn_stream stream,
                            attn_error *error);

/* Where fa3_rows leaves the cache's scales for tiles over gathered keys; NULL: the cache has none.
 */
float *fa3_gather_scales(const layer_call *call);

/* The gathered keys, or values, [rows, kv heads, dim]. */
attn_tensor fa3_gathered(const layer_call *call, int values);

/* Gather the batch's keys and values for tiles, and save the new ones of a call that saves. */
attn_status fa3_gather(const layer_call *call, attn_stream stream, attn_error *error);

/* Make a launch of tiles write parts, which fa3_join() then joins to outputs. */
void fa3_set_parts(const layer_call *call, struct fa3_forward_params *p);
attn_status fa3_join(const layer_call *call, const struct fa3_forward_params *parts,
                     attn_stream stream, attn_error *error);

/* Let the library serve a layer of codes, with q, k and v widened to bf16. */
attn_status fa3_forward_widened(layer_call *call, int decode, int32_t layer_id, attn_stream stream,
                                attn_error *error);

/* The library serves all DECODE batches. */
attn_status fa3_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);
attn_status fa3_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);

#endif /* FA3_LIKE_H */
