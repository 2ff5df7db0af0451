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
    ROWS_BLOCKS = 8,             /* blocks of fa3_rows for each multiprocessor, at most, */
    ROWS_BLOCK_BYTES = 16 << 10, /* of new keys and values that one has */
    /* Rows that tiles of up to SAVE_BOX_QUERIES save at a time, of pages of a multiple of
     * SAVE_BOX_LEAST, where a multiprocessor has SAVE_BOX_WAVES tiles, and a KV head SAVE_BOX_HEADS
     * query heads; long prompts need one. */
    SAVE_BOX = 32,
    SAVE_BOX_LEAST = 16,
    SAVE_BOX_QUERIES = 192,
    SAVE_BOX_WAVES = 4,
    SAVE_BOX_HEADS = 2,
    /* Least query heads of a KV head whose tiles save other rows, and of prompts of SAVE_LONG tokens
     * or more: each saves its share, which takes as long as products of few keys. */
    SAVE_HEADS = 8,
    SAVE_HEADS_LONG = 4,
    SAVE_LONG = 1024,
    L2_SECTION = 32 << 20, /* bytes of keys and values that are worked on together, */
    SECTION_WAVES = 8      /* where there are so many tiles for each multiprocessor */
};

/* ---- Options --------------------------------------------------------------------------------- */

/* `tiles`: which of the batches that forward kernels can serve they get. SHARED: all, by low tiles,
 * whose keys are shared out to as many parts as there is room for. */
enum { TILES_AUTO = 0, TILES_ALWAYS = 1, TILES_NEVER = 2, TILES_SHARED = 3, TILES_COUNT = 4 };

/* Never for batch_invariant: forward kernels promise no equal bits. */
int fa3_read_tiles(const attn_options *options);

/* ---- Layer groups ---------------------------------------------------------------------------- */

extern const fa3_tile fa3_tiles[];
extern const uint32_t fa3_num_tiles;

/* Its tiles, or the low ones; or NULL. */
const fa3_tile *fa3_find_tile(int32_t dim, int32_t dim_v, int is_low);

/* What there is of a group beside the library's fi_group. */
typedef struct fa3_group {
    const fa3_tile *tile; /* NULL = none of its batches are for tiles */
    const fa3_tile *low;  /* NULL = there are none of fewer queries */
    cuda_function forward, low_forward;
    int has_codes;        /* q is e4m3; the library has it as bf16 */
    attn_dtype new_dtype; /* of new k, v, where it is */
    uint32_t granularity; /* ATTN_SCALE_* of q, and of new k, v that are e4m3 */
    int gathers;          /* tiles cannot read its cache, but rows that are made of it */
    int is_expanded;      /* expanded latents; the library has softmax layers */
    uint32_t expanded;    /* modes that are called so */
    cuda_group latents;   /* what is saved, as keys and values of one head */
} fa3_group;

/* The tiles of a problem that query accepts; the kernel is left to the caller. `option`: TILES_* */
fa3_group fa3_group_of(const attn_problem *problem, int option);

/* ---- Codes: q, new k and v of e4m3 ----------------------------------------------------------- */

/* The one shape of tiles over codes. */
extern const fa3_tile fa3_codes_tile;

int fa3_has_codes(const attn_problem *problem);

/* The problem as the library has it, in structs of ours: of q, new k and v in bf16; of expanded
 * latents softmax layers. Of any other a copy. */
void fa3_plain_problem(const attn_problem *given, attn_problem *problem, attn_layer_group *group);

/* Adds reasons that are about codes alone. */
void fa3_check_codes(const attn_problem *problem, attn_verdict *verdict);

/* Where a group's parts of the scratch memory lie. Bytes. */
typedef struct fa3_codes_layout {
    uint64_t q_at, k_at, v_at; /* bf16, for the library */
    uint64_t scales_at;        /* of q, k, v that the host has; then of the cache */
    uint64_t turned_at;        /* values for tiles */
    uint64_t scales_each;      /* numbers of each of the three */
    uint64_t size;             /* 0 of a group without codes */
} fa3_codes_layout;

fa3_codes_layout fa3_layout_codes(const fa3_group *group, const cuda_group *base,
                                  const attn_bounds *bounds);

/* What calls of the batch that is planned will check of their rows: host arrays are gone then. */
void fa3_note_rows(attn_metadata *metadata, uint32_t index);

/* ---- Gathered keys --------------------------------------------------------------------------- */

/* Is a group's cache one that tiles cannot read, but rows that are made of it? */
int fa3_gathers(const cuda_group *group);

/* Where they lie in the scratch memory. Bytes. */
typedef struct fa3_gather_layout {
    uint64_t v_at;      /* of values; keys are first */
    uint64_t scales_at; /* of the cache, as the device has them */
    uint64_t rows;      /* that there is room for */
    uint64_t size;      /* 0 of a group that gathers nothing */
} fa3_gather_layout;

fa3_gather_layout fa3_layout_gather(const fa3_group *group, const cuda_group *base,
                                    const attn_bounds *bounds);

/* Is there room for the keys of the batch that is planned, or of any of the graph's? */
int fa3_may_gather(const attn_metadata *metadata, uint32_t index);

/* ---- Parts of tiles -------------------------------------------------------------------------- */

/* Where parts lie in the scratch memory, after gathered keys. Bytes. */
typedef struct fa3_join_layout {
    uint64_t at, lse_at;
    uint64_t size; /* 0 of a group whose tiles have no parts */
} fa3_join_layout;

fa3_join_layout fa3_layout_join(const fa3_group *group, const cuda_group *base,
                                const attn_bounds *bounds);

/* Parts of a tile that there is room for. */
int64_t fa3_most_splits(const cuda_group *base, const cuda_extent *extent);

/* ---- Latent attention in the expanded form --------------------------------------------------- */

/* Of kind mla, which is served in this form alone. */
int fa3_is_expanded(const attn_problem *problem);

void fa3_plain_expanded(attn_problem *problem, attn_layer_group *group);

/* What is saved, as keys and values of one head. */
cuda_group fa3_latents_of(const attn_problem *problem);

/* All reasons against it, but for what the library would say to fa3_plain_expanded(). */
attn_status fa3_check_expanded(const cuda_question *ask, const attn_options *options,
                               attn_verdict *verdict, attn_error *error);

/* UNSUPPORTED for bounds beyond what it takes, INVALID_ARGUMENT for bounds that are not known. */
attn_status fa3_require_expanded(uint32_t expanded, const attn_bounds *bounds, attn_error *error);

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status fa3_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *verdict, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

/* What there is of an instance beside the library's attn_instance: its `own`. */
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
    fa3_group *groups;    /* [num_groups]; groups and modules lie behind this */
} fa3_instance;

attn_status fa3_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error);
void fa3_destroy(attn_instance *instance);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* A batch as a layer group sees it, by the names of FlashAttention's callers. What is NULL follows
 * from another: queries from cu_seqlens_q, or one for each sequence (DECODE); keys by
 * cache_seqlens, or by cu_seqlens_k, where they are rows of k and v and there are no others. */
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
    int is_tiled;           /* this batch's tiles are planned: */
    const fa3_tile *tile;   /* these; NULL = not yet */
    int splits;             /* parts of each tile's keys; 1 = they are not shared out */
    fa3_given given;        /* of expanded latents: room, and the batch's own; else NULL */
    int32_t *ahead_first;   /* of turned values, or of gathered keys; else NULL */
    int is_gathered;        /* this batch's keys are */
    int64_t named_rows;     /* of codes: rows of q before the end of those that the batch names; */
    int64_t named_new_rows; /* the same of new k and v; -1 = the host does not know */
} fa3_metadata;

/* Where the parts of a group's plan lie in its memory. Bytes. */
typedef struct fa3_plan_layout {
    int64_t most_tiles;
    uint64_t tiles_at, slow_at, first_tile_at, marks_at, ahead_at;
    uint64_t given_at, given_each; /* three lists of so many bytes */
    uint64_t size;
} fa3_plan_layout;

/* Of no bytes for a group without tiles. */
fa3_plan_layout fa3_layout_plan(const fa3_group *group, const attn_bounds *bounds);

/* What there is of metadata beside the library's attn_metadata: its `own`. */
typedef struct fa3_own {
    uint64_t counter;     /* device: two numbers that every forward kernel leaves at 0 */
    fa3_metadata *groups; /* [num_groups] */
    fi_part *parts;       /* [num_groups] of a batch in tiles, what the library works on */
    char *scratch;        /* device: of the layer that is worked on */
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

/* Adds its own bytes to the library's. */
void fa3_tell_memory(const fa3_group *group, const cuda_group *base, const attn_bounds *bounds,
                     attn_verdict *verdict);

/* ---- The choice ------------------------------------------------------------------------------ */

/* Can the forward kernels multiply scores by the group's scale? Else its rows go one by one. */
int fa3_has_scale(const cuda_group *group);

/* Can the forward kernels serve any batch of the problem? */
int fa3_may_tile(const attn_problem *problem);

/* Is the batch that was taken, or any of the graph's, for tiles in group `index`, but for the part
 * of it that is set then? */
int fa3_is_for_tiles(const attn_metadata *metadata, uint32_t index, fi_part *part);

/* May calls of a batch in tiles bring keys that are in no page, which only the library reads? */
int fa3_may_be_unsaved(const attn_metadata *metadata, uint32_t index);

/* Are the group's keys in pages that tiles cannot read? A call that brings no keys is the library's
 * then. */
int fa3_has_small_pages(const attn_metadata *metadata, uint32_t index);

/* Are its pages such that the copy engine has boxes for them? */
int fa3_has_boxes(const cuda_group *group);

/* ---- Paths ----------------------------------------------------------------------------------- */

/* Behind the library's. */
enum {
    FA3_PATH_RAGGED = FI_NUM_PATHS,
    FA3_PATH_PAGED,
    FA3_PATH_CODES,
    FA3_PATH_GATHERED,
    FA3_PATH_IF_SAVED,
    FA3_NUM_PATHS
};

/* Count a group's rows of the batch that was planned. */
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

/* Multiprocessors to launch for. */
int64_t fa3_num_sms(const layer_call *call);

/* Operands of codes into call->rows, and scales that the host has to the device. */
attn_status fa3_take_codes(layer_call *call, attn_stream stream, attn_error *error);

/* Operands of expanded latents into call->rows, which saves nothing; latents are saved. */
attn_status fa3_take_expanded(layer_call *call, attn_stream stream, attn_error *error);

/* Where fa3_rows leaves the cache's scales for tiles. */
float *fa3_cache_scales(const layer_call *call);

/* Values of the cache to where tiles read them, and where that is. */
attn_status fa3_turn_values(const layer_call *call, struct fa3_codes_params *p, attn_stream stream,
                            attn_error *error);

/* Where fa3_rows leaves the cache's scales for tiles over gathered keys; NULL: it has none. */
float *fa3_gather_scales(const layer_call *call);

/* Gathered keys, or values, [rows, kv heads, dim]. */
attn_tensor fa3_gathered(const layer_call *call, int values);

/* Keys and values of the batch to where tiles read them; new ones are saved, if they are to be. */
attn_status fa3_gather(const layer_call *call, attn_stream stream, attn_error *error);

/* Outputs of a launch of tiles are parts, and then they are joined. */
void fa3_set_parts(const layer_call *call, struct fa3_forward_params *p);
attn_status fa3_join(const layer_call *call, const struct fa3_forward_params *parts,
                     attn_stream stream, attn_error *error);

/* A layer of codes by the library: q, k and v as bf16. */
attn_status fa3_forward_widened(layer_call *call, int decode, int32_t layer_id, attn_stream stream,
                                attn_error *error);

/* All of DECODE is the library's. */
attn_status fa3_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);
attn_status fa3_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);

#endif /* FA3_LIKE_H */
