/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_kept.h: private to verify/linear.c: the states that were replayed, by request and
 * layer, in bounded memory.
 */
#ifndef HOST_VERIFY_LINEAR_KEPT_H
#define HOST_VERIFY_LINEAR_KEPT_H

#include "host/reference/linear_replay.h"

/* A request's replay in a layer, up to its last verified row. */
struct kept_replay {
    int64_t request;
    int32_t layer;
    int32_t num_parts;
    reference_linear_replay *parts; /* the v heads, in order */
    int64_t position;               /* of the next row */
    uint64_t stores;                /* after which rows but the last states were stored: */
                                    /* state_history_mix() */
    uint64_t bytes;
    uint64_t round;           /* when it was last asked for */
    struct kept_replay *next; /* asked for before this one */
};

struct kept_replays {
    struct kept_replay *latest; /* a list in the order in which they were asked for */
    uint64_t bytes;
    uint64_t most_bytes; /* there ever were */
    uint64_t max_bytes;
    uint64_t round; /* replays of this round are in use and not dropped */
};

/* Heads of one part, a piece of work; what is computed does not depend on it. */
int32_t kept_part_heads(const attn_linear_dims *dims);
int32_t kept_num_parts(const attn_linear_dims *dims);

/* Begin a round: replays of earlier rounds may be dropped. */
void kept_begin(struct kept_replays *kept);

/* The replay of a request in a layer, a new one at position 0 if there is none; older ones are
 * dropped to make room. *found = NULL: it is in use, or there is no room next to those in use.
 * OUT_OF_HOST_MEMORY. */
attn_status kept_find(struct kept_replays *kept, int64_t request, int32_t layer_id,
                      const reference_linear_layer *layer, struct kept_replay **found,
                      attn_error *error);

/* The round is over: drop what is more than the bound. */
void kept_end(struct kept_replays *kept);

/* Drop what this round has used. */
void kept_drop_round(struct kept_replays *kept);

/* Drop everything. */
void kept_finish(struct kept_replays *kept);

#endif /* HOST_VERIFY_LINEAR_KEPT_H */
