/* SPDX-License-Identifier: Apache-2.0
 *
 * flashmla_like.h: absorbed latent attention on Hopper, by the file that has each part.
 *
 *   query.c     which problems it takes
 *   instance.c  groups, kernels                kernels/mla.h says what is launched
 *   metadata.c  a batch, planned on the device
 *   operands.c  tensors of a layer
 *   boxes.c     tensor maps of a layer's pages
 *   forward.c   launches
 */
#ifndef FLASHMLA_LIKE_H
#define FLASHMLA_LIKE_H

#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/plan.h"
#include "plugins/flashmla_like/kernels/mla.h"

/* Kernels of 8, 16, 32 and 64 rows for each kind of latents; FM_LATENT_CODED, for e4m3 queries over
 * codes, lacks the one of 32 rows. */
enum { FM_KERNELS = 4 };
enum { FM_LATENT_BF16, FM_LATENT_CODES, FM_LATENT_PACKED, FM_LATENT_CODED, FM_LATENTS };

enum {
    FM_INDEX_FORMS = ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_CSR,
    FM_ALIGNMENT = 256
};

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    cuda_facts facts;
    cuda_module module;
    cuda_function plan, merge, attend[FM_LATENTS][FM_KERNELS];
    int whole;   /* flashmla_like_keep_whole(): no unit is divided */
    int shrinks; /* flashmla_like_let_shrink(): kv_lens may become less */
    int fixed;   /* tiles of a part with BATCH_INVARIANT, where kernel and division depend on the
                * sequence alone; 0 without */
    uint32_t num_groups;
    cuda_group *groups; /* each has one KV head; their layers follow them in memory */
};

/* How a batch is divided among blocks for a group. */
typedef struct fm_shape {
    int kernel; /* second index of attn_instance.attend */
    int rows;   /* rows of a block */
    int pair;   /* blocks per unit */
    int ranges; /* ranges of the line of units */
    int fixed;  /* ranges of one part each, see mla_call */
} fm_shape;

struct attn_metadata {
    attn_instance *instance;
    cuda_plan plan;
    char *plans;   /* device: a plan for each group */
    char *scratch; /* device: parts, used by one layer at a time */
};

/* ---- By file --------------------------------------------------------------------------------- */

attn_status fm_query(const attn_backend_type *type, const attn_options *options,
                     const attn_services *services, const attn_problem *problem,
                     attn_verdict *verdict, attn_error *error);
attn_status fm_require_bounds(const attn_bounds *bounds, attn_error *error);

attn_status fm_create(const attn_backend_type *type, const attn_problem *problems,
                      uint32_t num_problems, const attn_options *options,
                      const attn_services *services, attn_instance **instance, attn_error *error);
void fm_destroy(attn_instance *instance);

/* The FM_LATENT_* of a group. */
int fm_latents(const cuda_group *group);

/* Latents per tile of the kernel of `rows` rows. */
int fm_tile(int latents, int rows);

/* Bytes of shared memory of a block of instance->attend[latents][kernel]. */
uint32_t fm_shared(int latents, int kernel);

uint32_t fm_index_forms(attn_instance *instance);
attn_status fm_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                             attn_memory_size *size, attn_error *error);
attn_status fm_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                               const attn_memory *memory, attn_metadata **metadata,
                               attn_error *error);
attn_status fm_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                     attn_stream stream, attn_error *error);

/* How the planned batch is divided for group `index`; the same for planning and for each forward.
 */
fm_shape fm_find_shape(const attn_metadata *metadata, uint32_t index);

/* Fill in a call of group `index`, but for its operands. */
void fm_describe(const attn_metadata *metadata, uint32_t index, mla_call *call);

/* Check a layer's tensors and put their addresses and byte strides into `call`. */
attn_status fm_take_operands(const attn_metadata *metadata, uint32_t index,
                             const attn_util_layer *layer, const attn_forward_args *args,
                             mla_call *call, attn_error *error);

/* Fill in call->boxed and call->maps for group `index`, whose call is described: tensor maps of
 * `cache` [pages, page_size, lora + rope], where kernels copy its pages by boxes. INVALID_ARGUMENT
 * for strides beyond a tensor map's; a failure of the driver. */
attn_status fm_make_boxes(const attn_instance *instance, uint32_t index, const attn_tensor *cache,
                          mla_call *call, attn_error *error);

attn_status fm_forward_extend(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error);
attn_status fm_forward_decode(attn_metadata *metadata, int32_t layer_id,
                              const attn_forward_args *args, attn_stream stream, attn_error *error);

#endif /* FLASHMLA_LIKE_H */
