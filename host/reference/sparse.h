/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.h: key choices of a layer with an indexer (attn_sparse_dims), and checks of a backend's
 * choice.
 *
 *   row    reference_index_logits() gives the logits of one query with what fp32 may do to each;
 *          reference_judge_choice() judges the keys that were chosen by them
 *   call   reference_check_choice() does so for all rows of a forward, from the ABI's structs
 *
 * A choice is right if it has min(top_k, keys that are seen) keys, each seen and named once, and no
 * key that was left out has a logit that is larger than that of one that was taken, by more than
 * both their bars. So which of equal keys are taken is free, and sets of logits are compared, not
 * sets of keys. The attention to the choice is then judged as any other: it is a mask.
 *
 * Bars admit products and sums in fp32, in any order; docs/ABI.md, "The pass rule".
 */
#ifndef HOST_REFERENCE_SPARSE_H
#define HOST_REFERENCE_SPARSE_H

#include "host/reference/reference.h"

/* ---- Labels ---------------------------------------------------------------------------------- */

/* Bytes that a label of the cache takes, in e4m3 with its scale. */
int32_t reference_label_bytes(const attn_sparse_dims *sparse);

/* Write a label as number `offset` of a page of page_size labels. */
void reference_label_store(const attn_sparse_dims *sparse, int64_t page_size, const double *label,
                           void *page, int64_t offset);

/* The value that is read from that label. */
void reference_label_load(const attn_sparse_dims *sparse, int64_t page_size, const void *page,
                          int64_t offset, double *label);

/* A label as it will be read from the cache. */
void reference_label_round(const attn_sparse_dims *sparse, double *label);

/* ---- One row --------------------------------------------------------------------------------- */

/* The indexer's side of one query. */
typedef struct reference_index {
    int32_t heads;
    int32_t dim; /* label_dim */
    int32_t top_k;
    int32_t multiplies_codes; /* q and labels are fp8 */
    int64_t kv_len;
    const double *q;       /* [heads, dim] */
    const double *weights; /* [heads] */
    reference_sight sight;
} reference_index;

/* Where labels come from: write that of key j to label[dim]. */
typedef struct reference_labels {
    void (*read)(void *ctx, int64_t j, double *label);
    void *ctx;
} reference_labels;

/* logits[kv_len], -INFINITY of keys that are not seen, and bars[kv_len] (NULL = not wanted); `label`
 * has room for dim. */
void reference_index_logits(const reference_index *index, const reference_labels *labels,
                            double *label, double *logits, double *bars);

/* The fault of a choice. */
enum {
    REFERENCE_CHOICE_RIGHT = 0,
    REFERENCE_CHOICE_COUNT = 1,  /* not as many keys as there are to choose */
    REFERENCE_CHOICE_NO_KEY = 2, /* not one of the sequence's */
    REFERENCE_CHOICE_TWICE = 3,
    REFERENCE_CHOICE_UNSEEN = 4, /* by this query */
    REFERENCE_CHOICE_WORSE = 5   /* than `rival`, which was left out */
};
typedef struct reference_choice {
    int32_t code;
    int32_t count, expected; /* keys */
    int64_t key, rival;
    double logit, rival_logit, bar; /* bar: what both may be off by */
} reference_choice;

/* Judge keys[0 .. count); chosen[kv_len] gets a 1 for each that is one of the sequence's. `bars`
 * NULL = none. */
reference_choice reference_judge_choice(const double *logits, const double *bars, int64_t kv_len,
                                        int32_t top_k, const int64_t *keys, int32_t count,
                                        uint8_t *chosen);

/* The oracle's own choice, of equal keys the first: a 1 at each. */
void reference_choose(const double *logits, int64_t kv_len, int32_t top_k, uint8_t *chosen);

/* In words, for people: "key 7 (logit 0.25) is chosen, key 9 (logit 0.5) is not". */
enum { REFERENCE_CHOICE_TEXT = 160 };
void reference_choice_text(const reference_choice *choice, char text[REFERENCE_CHOICE_TEXT]);

/* ---- A whole forward ------------------------------------------------------------------------- */

/* Over any number of calls. Zero it once. */
typedef struct reference_choice_report {
    int64_t rows_checked;
    int64_t rows_failed;
    int64_t logits_checked;
    int64_t logits_failed;
    int32_t first_code; /* REFERENCE_CHOICE_* of the first row that failed */
    double worst;       /* of logits: error / bar */
    char message[256];  /* the first failure; "" if none */
} reference_choice_report;

/* Judge what a call with INDEX_Q or INDEX_LOGITS wrote: INDEX_LOGITS (with INDEX_Q), and
 * SPARSE_INDICES with SPARSE_COUNT, as far as they are given. Reads all as reference_forward()
 * does; labels of new keys are taken from INDEX_K where it is saved. */
attn_status reference_check_choice(const attn_problem *problem, const attn_batch *batch,
                                   int32_t layer_id, const attn_forward_args *args,
                                   reference_choice_report *report, attn_error *error);

/* reference_expected_kv() for the label cache. */
attn_status reference_expected_labels(const attn_problem *problem, const attn_batch *batch,
                                      int32_t layer_id, const attn_forward_args *args,
                                      const attn_tensor *image, attn_error *error);

#endif /* HOST_REFERENCE_SPARSE_H */
