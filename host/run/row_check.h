/* SPDX-License-Identifier: Apache-2.0
 *
 * row_check.h: which output rows of a run are sampled, and how each is judged; the sampled rows
 * enter the digest and the counts.
 *
 * A run has one; it outlives the executors, of which a run has several if its device is lost. The
 * order for a step: row_check_list() before it runs, row_check_layer() for each layer when the
 * outputs are there, row_check_judge(), row_check_end() last.
 */
#ifndef HOST_RUN_ROW_CHECK_H
#define HOST_RUN_ROW_CHECK_H

#include "host/config/config.h"
#include "host/run/forward_batch.h"
#include "host/run/report.h"
#include "host/schedule/scheduler.h"
#include "host/verify/state_history.h"
#include "host/verify/verify.h"

struct row_check;

/* Called for each row that enters the digest, with its bytes; what tests use to compare runs. */
typedef void (*row_check_listener)(void *ctx, int64_t request, int64_t position, int32_t layer,
                                   const void *row, uint64_t bytes);

/* All that is borrowed outlives it. */
struct row_check_params {
    const struct config *config;
    const struct model *model;
    const struct workload *workload;
    const struct generator *generator;
    const struct verify_scales *scales;    /* [model.num_groups] */
    const uint32_t *reads_new_unquantised; /* [model.num_groups]: verify_params */
    struct threads *threads;
    bool concurrent;              /* a thread judges rows during the run: verify_params */
    int32_t max_tokens, max_seqs; /* of a step */
    int32_t num_state_slots;      /* slot 0 included; 0 = the model has no recurrent state */
    row_check_listener listener;  /* NULL = none */
    void *listener_ctx;
};

attn_status row_check_create(const struct row_check_params *params, struct row_check **check,
                             attn_error *error);

/* Has anything failed so far? The first failure is printed to stderr. Any thread. */
bool row_check_has_failed(const struct row_check *check);

/* NULL is accepted. */
void row_check_destroy(struct row_check *check);

/* States that a sequence of a step writes at most: its own and its snapshots. */
static inline int32_t row_list_writes_per_seq(const struct drafts *drafts)
{
    return 1 + scheduler_snapshots_per_seq(drafts);
}

/* The sequences of a step, and its sampled rows by layer. The arrays are the caller's; the last
 * three are what step_kernels_gather() reads, and may be NULL if verify.rate is 0. */
struct row_list {
    uint32_t mode;
    int32_t num_sequences;
    int32_t num_rows;
    struct verify_sequence *sequences; /* [max_seqs] */
    int32_t num_writes;
    struct state_write *writes; /* [row_list_writes_per_seq() * max_seqs] of recurrent states */
    int32_t *indptr;            /* [layers + 1] into rows */
    int32_t *rows;              /* [max_tokens * layers] rows of the step, ascending */
    uint64_t *offset;           /* [layers] where a layer's rows are gathered to, in bytes */
};

/* Bytes of an output row of a layer in steps of this mode. */
uint64_t row_check_row_bytes(const struct row_check *check, uint32_t mode, int32_t layer);

/* List the sampled rows of a step, all layers, into `list`. offset is left to the caller. */
void row_check_list(const struct row_check *check, const struct batch_step *step,
                    struct row_list *list);

/* A layer is to be judged: `rows` are its sampled output rows in the order of the list, in host
 * memory, where they stay up to row_check_judge(); after them, of a sparse layer, what they chose
 * (verify_step.chosen). */
attn_status row_check_layer(struct row_check *check, const struct row_list *list, int32_t layer,
                            void *rows, attn_error *error);

/* Judge the layers so far, or have them judged while the run goes on; and wait until they are. */
attn_status row_check_judge(struct row_check *check, attn_error *error);
attn_status row_check_wait(struct row_check *check, attn_error *error);

/* A row that is not finite: `watch` as step_kernels_watch() leaves it; all bits set = none. */
void row_check_watch(struct row_check *check, const struct row_list *list, uint64_t watch);

/* A forward wrote outside its outputs; `what` describes it. */
void row_check_trespass(struct row_check *check, const char *text);

/* The step is over: its rows count as computed from now on. */
attn_status row_check_end(struct row_check *check, const struct row_list *list, attn_error *error);

/* No row of the requests below `first` will come any more: nothing is kept for them. */
void row_check_pass(struct row_check *check, int64_t first);

/* Fill in the report's verification and digest. Once, at the end, after row_check_wait().
 * OUT_OF_HOST_MEMORY. */
attn_status row_check_report(struct row_check *check, struct report *report, attn_error *error);

#endif /* HOST_RUN_ROW_CHECK_H */
