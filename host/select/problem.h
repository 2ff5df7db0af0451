/* SPDX-License-Identifier: Apache-2.0
 *
 * problem.h: the problem for backends: a layer group of a model, on a device, with the KV cache and
 * batches of the configuration.
 */
#ifndef HOST_SELECT_PROBLEM_H
#define HOST_SELECT_PROBLEM_H

#include "attn_plugin.h"
#include "host/config/config.h"
#include "host/model/model.h"

/* An attn_problem with all that it points to but the layers, dimensions and layout ids, which are
 * borrowed. Initialised in place and never copied: `problem` points into the struct. */
struct problem {
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
};

/* Modes that a run of this configuration has, as ATTN_MODE_BIT sets. The verification of drafts, if
 * there are any, is with the phase that speculative_attention_mode names. */
uint32_t problem_prefill_modes(const struct config *config);
uint32_t problem_decode_modes(const struct config *config);

/* Drafts at each depth: from [speculative], or from attention.speculative_eagle_topk; 0 = there are
 * no drafts. */
int64_t problem_draft_topk(const struct config *config);

/* Can these layers be run with these drafts? CONFIG_ERROR names the key. */
attn_status problem_check_drafts(const struct config *config, const struct model *model,
                                 attn_error *error);

/* Does a batch that verifies trees need explicit positions, because some layer depends on them? */
bool problem_has_positions(const struct config *config, const struct model *model);

/* CONFIG_LAYER_* by which [kv_cache] names a group: CROSS, CHUNKED, SLIDING by its mask, else FULL.
 */
int64_t problem_cache_type(const attn_layer_group *group);

/* Type of a layer group's KV cache: kv_cache.<layer_type>.dtype, kv_cache.dtype, or the model's. */
attn_dtype problem_kv_dtype(const struct config *config, const struct model *model,
                            const attn_layer_group *group);

/* Are scales that are given for fp8 caches one, or one for each KV head of every group? Packed
 * latents that are asked for (kv_cache.latent_layout) have none. CONFIG_ERROR names the key. */
attn_status problem_check_scales(const struct config *config, const struct model *model,
                                 attn_error *error);

/* Scales of an fp8 cache: how many, and one of k_scale or v_scale; 1 where none is given, as
 * engines take it where a checkpoint has none. *keys names the keys with that default; NULL = none.
 */
uint32_t problem_num_scales(const struct config *config);
float problem_scale(const struct config_doubles *given, uint32_t index);
const char *problem_scales_taken(const struct config *config, const struct model *model);

/* Can the model's layers have the layouts that the configuration asks for? CONFIG_ERROR names the
 * key. */
attn_status problem_check_layouts(const struct config *config, const struct model *model,
                                  attn_error *error);

/* Pose the problem of model->groups[group] for batches of these modes. `layout` is a KV layout id,
 * or a state layout id for a linear group; it is ignored for groups without either. No graph level
 * is required: the verdict's graph level decides the captures. `model`, `layout` outlive the
 * problem, `device` is copied. */
void problem_init(struct problem *problem, const struct config *config, const struct model *model,
                  uint32_t group, const attn_device *device, uint32_t modes, const char *layout);

/* Extend bounds with these modes by the needs of the group's calls in the expanded form: partial
 * results over chunks of the prefix. Nothing if it has no such form in them. */
void problem_bounds_expand(attn_bounds *bounds, const struct model *model,
                           const attn_layer_group *group);

/* Extend bounds with this mode by the needs of verifications: masks and positions of trees. */
void problem_bounds_drafts(attn_bounds *bounds, const struct config *config,
                           const struct model *model);

/* Bounds of the batches a run makes, for the modes given. */
void problem_bounds(attn_bounds *bounds, const struct config *config, const struct model *model,
                    uint32_t modes);

#endif /* HOST_SELECT_PROBLEM_H */
