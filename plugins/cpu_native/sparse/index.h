/* SPDX-License-Identifier: Apache-2.0
 *
 * index.h: a sparse layer's choice of keys, in a layer group and in a call. */
#ifndef CPU_NATIVE_INDEX_H
#define CPU_NATIVE_INDEX_H

#include "attn_batch.h"

enum {
    MAX_LABEL = 512,
    MAX_INDEX_HEADS = 1024,
    INDEX_STEP = 8 /* heads of a register block of any kernels divide it */
};

/* A group whose rows attend to chosen latents. */
typedef struct sparse_group {
    int32_t top_k; /* 0: all keys that are seen */
    int32_t heads; /* of the indexer; 0: the caller chooses */
    int32_t label; /* elements of a label */
    attn_dtype q_dtype;
    attn_dtype label_dtype;
    float decode_q[256]; /* fp8: values of all codes; */
    float decode_label[256];
} sparse_group;

/* The keys of each row, as slots. */
typedef struct row_lists {
    int32_t *slots; /* row t at slots + t * stride; -1 = none */
    int64_t stride;
    int32_t *counts; /* NULL = `most` each */
    int64_t count_stride;
    int32_t most;
} row_lists;

/* Operands of a call, and memory for those that are not given. */
typedef struct sparse_operands {
    const attn_tensor *q;
    const attn_tensor *weights;
    const attn_tensor *k; /* new labels, to be saved */
    char *labels;         /* the cache */
    int64_t label_page;   /* bytes between two pages */
    int64_t label_token;  /* and between two labels of a page */
    int64_t num_pages;    /* of the caches that are given */
    int32_t labelled;     /* logits are computed */
    int32_t chosen;       /* keys are chosen by them */
    float *logits;        /* of rows from `first` on */
    int64_t logit_stride; /* elements */
    int64_t wave;         /* rows whose logits there is room for */
    int64_t first;
    row_lists lists;       /* of absolute rows */
    int32_t *given_counts; /* SPARSE_COUNT, to be written */
    int64_t given_stride;
} sparse_operands;

#endif /* CPU_NATIVE_INDEX_H */
