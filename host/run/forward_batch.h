/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_batch.h: a step of the scheduler as the attn_batch that backends read.
 *
 * The arrays exist in two places. On the device they lie in one block that is allocated once for
 * the largest step, so their addresses are the same for every batch, as graphs need it. The host
 * writes them in staging blocks of the same shape, several, so that the next batches can be written
 * while earlier ones are still on their way. On the CPU both are one block.
 *
 * Each KV group of the model is in a pool of the scheduler's, whose slots and table it has. That of
 * cross attention, in the encoder's pool, has lengths and new rows of its own.
 *
 * req_to_token: on the CPU the scheduler's own table is handed on. On another device the batch
 * keeps a copy there, which step_kernels.h brings up to date; page ids are taken from it there,
 * too, so no list of keys ever crosses the bus.
 */
#ifndef HOST_RUN_FORWARD_BATCH_H
#define HOST_RUN_FORWARD_BATCH_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/device/device.h"
#include "host/model/model.h"
#include "host/run/shared_prefix.h"
#include "host/run/step_kernels.h"
#include "host/schedule/scheduler.h"

/* A pool's part of a step. */
struct batch_pool {
    const int64_t *slots; /* where the new tokens go, row by row */
    const int32_t
        *req_to_token; /* [rows, stride] slots by position; the step's are in it already */
    const struct scheduler_move *moves; /* TARGET_VERIFY: what moves in the caches after the step */
};

/* A step: extend sequences first, then num_decode sequences of one row each. Those of a
 * verification have equally many. */
struct batch_step {
    uint32_t mode; /* ATTN_MODE_EXTEND, _DECODE, _MIXED, _IDLE, _TARGET_VERIFY, _DRAFT_EXTEND; */
                   /* MODEL_MODE_ENCODE */
    int32_t num_sequences;
    int32_t num_decode; /* MIXED: the last ones; else 0 */
    const struct scheduler_seq *sequences;
    struct batch_pool pools[SCHEDULER_POOLS];
    int32_t req_to_token_stride; /* elements */
    int32_t num_snapshots;
    const struct scheduler_snapshot *snapshots;
    const struct draft_tree *trees; /* [num_sequences] TARGET_VERIFY; else NULL */
    const int32_t *moves_indptr;    /* [num_sequences + 1] likewise, into each pool's moves */
    int32_t padded;       /* DECODE, TARGET_VERIFY: sequences to pad the batch to; 0 = none */
    int32_t seq_len_fill; /* seq_len of those; with drafts at least that of their rows */
    bool tells_shared;    /* padded: the graph is captured with hints of shared prefixes */
};

/* Bounds of the arrays. */
struct forward_batch_params {
    const struct device *device;
    uint32_t num_staging; /* batches that may be on their way at once; 1 on the CPU */
    int32_t max_seqs, max_tokens;
    int64_t max_kv_tokens; /* keys of a step, each sequence rounded up to pages */
    int32_t max_kv_len;
    int32_t page_size;
    uint32_t index_forms;              /* ATTN_INDEX_* to fill */
    uint32_t num_kv_groups;            /* of the model; 0 = one, in the pool of all positions */
    int kv_pools[MODEL_KV_COUNT];      /* SCHEDULER_* of each */
    int32_t max_top_k;                 /* of sparse layers; 0 = there are none */
    bool has_state;                    /* recurrent layers: fill attn_batch.state */
    struct drafts drafts;              /* zeros: there are none */
    bool tells_shared;                 /* fill attn_batch.shared_prefix in DECODE */
    bool has_positions;                /* trees: fill attn_batch.positions */
    int32_t num_requests;              /* of the workload: numbers of rejected drafts follow it */
    int32_t table_rows, table_columns; /* of req_to_token; not read on the CPU */
};

/* Those of a KV group. */
struct batch_group_arrays {
    int64_t *out_cache_loc;
    int32_t *block_table, *kv_indices; /* device only */
};

/* Where the arrays are in a block. */
struct batch_arrays {
    uint64_t *watch; /* step_kernels_watch(): all bits set until a row is not finite */
    int32_t *num_real_seqs, *num_real_tokens;
    int32_t *seq_lens, *prefix_lens, *q_indptr, *req_pool_indices;
    int32_t *kv_indptr, *last_page_len;
    struct batch_runs {
        int32_t *seq_indptr, *prefix_len;
    } runs[SHARED_PREFIX_LEVELS]; /* with tells_shared */
    uint8_t *mask_bits;           /* of trees, as the next */
    int64_t *mask_indptr;
    int32_t *state_slot, *state_dst, *state_initial; /* with has_state, as is snapshots */
    int32_t *row_request, *row_position;
    int32_t *snapshots;
    struct batch_encoder {
        int32_t *kv_lens, *new_indptr, *kv_indptr, *last_page_len;
        int32_t *row_request, *row_position; /* of new keys */
    } encoder;                               /* with a KV group in its pool */
    struct batch_group_arrays groups[MODEL_KV_COUNT];
};

/* Arrays of a KV group that kernels read in place, in pinned memory. */
struct batch_group_staging {
    struct step_update *updates; /* [max_seqs] of req_to_token */
    int32_t num_updates, longest_update;
    int32_t *changed; /* their slots, one after the other; grows */
    int64_t changed_capacity;
    struct step_move *moves; /* of trees */
};

/* A block of host memory that the device copies from. */
struct batch_staging {
    void *memory;
    struct batch_arrays arrays;
    struct batch_group_staging groups[MODEL_KV_COUNT];
    int32_t *moves_indptr; /* of trees: pinned */
    int32_t num_moved;     /* sequences whose moves these are; 0 = nothing moves */
};

struct forward_batch {
    struct forward_batch_params params;
    attn_sparse_batch sparse;
    uint32_t mode;    /* of the step that was filled last */
    attn_batch batch; /* what is handed to backends: the batch that was filled last */
    attn_kv_batch kv[MODEL_KV_COUNT]; /* its KV groups */
    attn_state_batch state;           /* its one state group, if there are states */
    attn_speculation spec;            /* of a verification */
    attn_mask mask;                   /* of one of trees */
    struct shared_prefix shared;      /* with tells_shared: of the last DECODE batch */
    attn_shared_prefix levels[SHARED_PREFIX_LEVELS];
    struct step_rows rows;                 /* the request of each row; device arrays */
    struct step_rows encoder_rows;         /* and the encoder's new keys */
    struct batch_arrays arrays;            /* on the device */
    void *memory;                          /* of these; on the CPU staging[0]'s */
    int32_t *req_to_token[MODEL_KV_COUNT]; /* copies on the device; NULL on the CPU */
    const int32_t *tables[MODEL_KV_COUNT]; /* what kernels read: those, or the scheduler's own */
    int32_t table_stride;
    struct batch_staging *staging;
};

/* Allocate. OUT_OF_HOST_MEMORY or OUT_OF_DEVICE_MEMORY names the bytes; on failure nothing is left.
 * Released by forward_batch_finish(). */
attn_status forward_batch_init(struct forward_batch *batch,
                               const struct forward_batch_params *params, attn_error *error);

/* Nothing of it is in use. A zeroed one is fine. */
void forward_batch_finish(struct forward_batch *batch);

/* Write batch->batch and its arrays from a step within the bounds into staging block `slot`, which
 * nothing that was enqueued reads any more. INTERNAL if the step is not within the bounds,
 * OUT_OF_HOST_MEMORY. On the CPU the batch is complete then, but for its page ids. */
attn_status forward_batch_fill(struct forward_batch *batch, uint32_t slot,
                               const struct batch_step *step, attn_error *error);

/* Enqueue the work that completes the last filled batch on the device: the copy of `slot`, the
 * update of req_to_token, page ids. */
attn_status forward_batch_upload(struct forward_batch *batch, uint32_t slot,
                                 const struct step_kernels *kernels, attn_stream stream,
                                 attn_error *error);

/* The moves in a KV group of the batch that was filled into `slot`, in memory that kernels read;
 * none: num_seqs is 0. */
struct step_moves forward_batch_moves(const struct forward_batch *batch, uint32_t slot,
                                      uint32_t group);

#endif /* HOST_RUN_FORWARD_BATCH_H */
