/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_pool.h: the memory of KV caches and recurrent states.
 *
 * One buffer for each layer that owns one (model.buffers), in the layout its layer group's problem
 * names. The kind of the layer decides which tensors a buffer has, and their shapes (kinds.h):
 *
 *   kv.nhd/1, kv.hnd/1    k_cache and v_cache, [pages, ...]
 *   mla.latent/1, _fp8/1  latent_cache, whose first part is the value
 *   state.*               state [slots, heads, ...] and conv_state [slots, channels, width - 1]
 *
 * Page 0 and state slot 0 are padding: zero at the start, never allocated. A slot of the allocator
 * is page * page_size + offset in every buffer of a KV group alike. */
#ifndef HOST_CACHE_KV_POOL_H
#define HOST_CACHE_KV_POOL_H

#include "attn_plugin.h"
#include "host/device/device.h"
#include "host/kinds/kinds.h"
#include "host/model/model.h"

/* What the pool is made of; one entry for each layer group of the model. */
struct kv_pool_group {
    const char *kv_layout;    /* of its cache; NULL = it has none */
    const char *state_layout; /* of its state; NULL = it has none */
    attn_dtype kv_dtype;
};

struct kv_pool_params {
    const struct kv_pool_group *groups; /* [model.num_groups] */
    int32_t page_size;                  /* tokens */
    int64_t num_pages;                  /* page 0 included */
    int64_t num_state_slots;            /* slot 0 included; 0 = the model has no state */
    bool poison;               /* fill unwritten memory with NaN, so that reads of it show */
    int64_t num_window_pages;  /* likewise, of layers in MODEL_KV_WINDOW */
    int64_t num_encoder_pages; /* and in MODEL_KV_ENCODER */
};

struct kv_pool_tensor {
    uint32_t role;  /* ATTN_ROLE_* under which layers are given it */
    uint32_t scale; /* KIND_SCALE_* that it is stored with */
    attn_tensor tensor;
};

struct kv_pool_buffer {
    uint32_t num_tensors;
    struct kv_pool_tensor tensors[KIND_MAX_TENSORS];
};

struct kv_pool {
    const struct device *device;
    uint32_t num_buffers;
    struct kv_pool_buffer *buffers; /* [model.num_buffers] */
    void **memory;                  /* what was allocated */
    uint32_t num_memory;
    uint64_t bytes; /* in all */
};

/* Bytes that one more token takes in the buffers of the layers whose KV group holds MODEL_KV_*; states take none. */
uint64_t kv_pool_bytes_held(const struct model *model, const struct kv_pool_group *groups,
                            uint32_t holds);

/* Bytes that one more state slot takes in all buffers together. */
uint64_t kv_pool_bytes_per_state(const struct model *model, const struct kv_pool_group *groups);

/* Allocate all buffers and fill them; complete on return, for use in any stream. OUT_OF_HOST_MEMORY
 * or OUT_OF_DEVICE_MEMORY names the bytes; nothing stays allocated then. The pool is the caller's.
 */
attn_status kv_pool_create(const struct model *model, const struct kv_pool_params *params,
                           const struct device *device, struct kv_pool **pool, attn_error *error);

/* Fill a page of the layers whose KV group holds MODEL_KV_*, or a state slot, like unwritten
 * memory, so that reads of it show. Complete on return. */
attn_status kv_pool_spoil_page(const struct kv_pool *pool, const struct model *model,
                               uint32_t holds, int32_t page, attn_error *error);
attn_status kv_pool_spoil_state(const struct kv_pool *pool, const struct model *model, int32_t slot,
                                attn_error *error);

/* NULL is accepted. */
void kv_pool_destroy(struct kv_pool *pool);

#endif /* HOST_CACHE_KV_POOL_H */
