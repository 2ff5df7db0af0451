/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_run_fixture.h: a small run of linear layers: a model of one family, three requests, whole
 * forwards of the oracle over what the generator makes of them.
 */
#ifndef LINEAR_RUN_FIXTURE_H
#define LINEAR_RUN_FIXTURE_H

#include "host/workload/generator_linear.h"
#include "host/model/model.h"
#include "host/reference/linear.h"
#include "host/base/threads.h"

#include <stdbool.h>

/* Models: every family, gates raw and computed; head counts of one part and of several; a state of
 * each dtype; a convolution and none. */
enum {
    RUN_MODELS = 8,
    RUN_DELTA = 0,
    RUN_SMALL_STATE = 3,          /* of a family whose state grows, in bf16 */
    RUN_LONG_MAMBA2 = RUN_MODELS, /* of the long runs: large states, in bf16 */
    RUN_LONG_DELTA,
    RUN_ALL_MODELS,
    RUN_LAYERS = 2,
    RUN_REQUESTS = 3,   /* of 37, 20 and 5 tokens of input */
    RUN_MAX_LEN = 64,   /* tokens of each, output included, */
    RUN_LONG_LEN = 400, /* and of the long runs */
    RUN_MAX_HEADS = 12,
    RUN_MAX_DIM = 24,
    RUN_MAX_CHANNELS = 512,
    RUN_CHUNK = 16
};

struct linear_run {
    struct model *model;
    const attn_layer_group *group; /* the only one */
    struct workload workload;
    struct generator generator;
    struct threads *threads;
    int64_t root, accepted; /* of a verification that forwards end with: from the token at `root` */
                            /* on so many stay, the others are drafts that are turned down; 0 = */
                            /* there is none */
};
extern struct linear_run run;

void linear_run_init(int number, uint32_t num_threads);
void linear_run_seed(uint64_t seed);
void linear_run_finish(void);

/* Rows [first, first + count) of a request in a layer, through tensors in the model's dtype. Slot 1
 * of the pools is read if `first` > 0, and slot 2 holds what is written. */
struct forward {
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_forward_args args;
    attn_state_batch state_batch;
    attn_batch batch;
    attn_problem problem;
    int32_t indptr[2], slot, dst, initial;
    reference_result result;
    reference_states states;
};

/* `before`: the results of the forward before it; NULL = from zero. */
struct forward *forward_create(int64_t request, int32_t layer, int64_t first, int64_t count,
                               const reference_states *before, bool with_z);
void forward_destroy(struct forward *f);

#endif /* LINEAR_RUN_FIXTURE_H */
