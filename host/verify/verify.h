/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.h: compare output rows of a run with the fp64 oracle.
 *
 * Keys and values are functions of the trace (generator.h), so the oracle makes them again, rounds
 * them as they are stored, and computes a sampled row alone. Nothing is read from the KV pool: the
 * rows that read it show whether a backend saved it right.
 *
 * Every row of a verification is judged, whether it stays or not: a rejected draft is a token that
 * follows from the trace, too (draft_tree.h), like those above it in its tree. */
#ifndef HOST_VERIFY_VERIFY_H
#define HOST_VERIFY_VERIFY_H

#include <stdbool.h>

#include "attnhost.h"
#include "host/workload/draft_tree.h"
#include "host/workload/generator.h"
#include "host/model/model.h"
#include "host/base/threads.h"
#include "host/workload/workload.h"

/* Quantisation of one layer's KV, as the pool stores it; a latent has k alone. */
struct verify_scales {
    attn_dtype kv_dtype;
    const float *k, *v; /* one value, or one for each KV head; NULL if the cache needs none */
    uint32_t count;     /* 1 or the number of KV heads */
    bool packed;        /* mla.latent_fp8/1: each row has its own scales */
};

/* One sequence of a step and the rows of it that are sampled. */
struct verify_sequence {
    int64_t request;
    int64_t prefix_len;    /* tokens before the first row of the step */
    int64_t num_rows;      /* rows of the step; of a verification the tree's, all of them */
    int64_t first_row;     /* its first row in the output tensor */
    int64_t first_sampled; /* into the list of sampled rows */
    int64_t num_sampled;
    int64_t encoder_len;    /* keys of an encoder, for cross attention; 0 = it has none */
    int64_t encoder_new;    /* of these the last ones, which are new in this step */
    const uint8_t *stored;  /* recurrent layers: where the state it starts from was stored before */
                            /* (state_history.h), nowhere after prefix_len; NULL = nowhere */
    struct draft_tree tree; /* of a verification; zeros: it is none */
};

static inline bool verify_has_tree(const struct verify_sequence *sequence)
{
    return sequence->tree.committed > 0;
}

/* Is row `t` of the sequence a rejected draft? */
static inline bool verify_is_rejected(const struct verify_sequence *sequence, int64_t t)
{
    return verify_has_tree(sequence) && t >= 0 && !draft_tree_keeps(&sequence->tree, (int32_t)t);
}

/* The token of a row: the number that it goes by (workload_tokens()), and where it stands. */
struct verify_token {
    int64_t request, position;
};

/* Of row `t` of the sequence, or, negative, of one before it. */
static inline struct verify_token verify_token_of(const struct workload *workload,
                                                  const struct verify_sequence *sequence, int64_t t)
{
    struct verify_token token = {sequence->request, sequence->prefix_len + t};
    if (verify_has_tree(sequence) && t >= 0) {
        token.request = draft_tree_number(&sequence->tree, sequence->request,
                                          workload->num_requests, (int32_t)t);
        token.position = sequence->prefix_len + sequence->tree.depth[t];
    }
    return token;
}

/* Which row it is, for people: its request, its position, and of a rejected draft the row of the
 * tree. */
enum { VERIFY_PLACE_TEXT = 96 };
void verify_place_text(const struct verify_sequence *sequence, int64_t t,
                       char text[VERIFY_PLACE_TEXT]);

/* A step as verification sees it. `sampled` holds rows counted from each sequence's first. */
struct verify_step {
    uint32_t mode; /* ATTN_MODE_* */
    int64_t num_sequences;
    const struct verify_sequence *sequences;
    const int32_t *sampled;
    int compact; /* 1 = `out` holds the sampled rows alone, in their order; first_row is not read */
    int32_t most_chosen; /* sparse layers: entries of a sampled row, top_k of them; */
    const int32_t
        *chosen; /* [sampled, most_chosen] places of keys in the row's sequence, -1 = of */
                 /* no key, VERIFY_NO_ENTRY = nothing */
};

enum { VERIFY_NO_ENTRY = -2 };

struct verifier;

/* All that is borrowed outlives the verifier. `reads_new_unquantised` is the backend's answer for
 * each layer group: a mask of modes for each of model.num_groups. */
/* Called at the first failure, by the thread that judges. */
typedef void (*verify_failed)(void *ctx, const char *text);

struct verify_params {
    const struct model *model;
    const struct workload *workload;
    const struct generator *generator;
    const struct verify_scales *scales;    /* [model.num_groups] */
    const uint32_t *reads_new_unquantised; /* [model.num_groups] */
    struct threads *threads;
    bool concurrent;      /* a second thread judges the rows; for models */
                          /* without recurrent layers */
    verify_failed failed; /* NULL = none */
    void *failed_ctx;
    uint64_t max_kept_bytes; /* of scores, for each thread: where rows of a KV head have more of */
                             /* them, keys and values are made again for so many rows; 0 = 64 MiB */
};

enum { VERIFY_FAILURE_TEXT = 256 };

/* What was found. A row is one (request, position, layer), all heads of it. */
struct verify_result {
    int64_t rows_failed;
    int64_t rows_unjudged; /* sampled, but a signal ended verification first */
    double max_abs_error;  /* of finite outputs; a NaN is a failure, not an error's size */
    double max_rel_error;  /* of the same: a row's error over its largest |truth| */
    double max_of_bar;     /* a row's error over its bar; INFINITY where finiteness disagrees */
    char first_failure[VERIFY_FAILURE_TEXT]; /* for people; "" if none */
};

attn_status verifier_create(const struct verify_params *params, struct verifier **verifier,
                            attn_error *error);

/* NULL is accepted. */
void verifier_destroy(struct verifier *verifier);

/* The sampled rows of one layer are to be judged: `out` is [tokens, heads, dim] in host memory,
 * with heads and dim as operands_output() says. Its elements are read up to verifier_judge(), or
 * with `concurrent`, where it is compact, copied; all else is copied. */
attn_status verifier_add(struct verifier *verifier, const struct verify_step *step, int32_t layer,
                         const attn_tensor *out, attn_error *error);

/* Judge what was added, all of it at once: rows of many layers keep more threads at work than those
 * of one. With `concurrent` the rows go to the judging thread, and this call waits only while its queue
 * is full; verifier_wait() reports the errors. */
attn_status verifier_judge(struct verifier *verifier, attn_error *error);

/* Wait until all rows that were handed over are judged; call it before verifier_of_bar() and
 * verifier_result(). Returns the first error. */
attn_status verifier_wait(struct verifier *verifier, attn_error *error);

/* The largest max_of_bar of a layer's rows, of those of decode steps or of all others; negative if
 * none was judged. */
double verifier_of_bar(const struct verifier *verifier, int32_t layer, bool decode);

/* Everything found so far. */
void verifier_result(const struct verifier *verifier, struct verify_result *result);

#endif /* HOST_VERIFY_VERIFY_H */
