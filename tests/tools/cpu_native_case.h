/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_native_case.h: random forward passes for check_cpu_native.c: a layer group, a batch, a
 * poisoned KV cache, operands with needles at the borders.
 *
 * A case is made from a seed and a few wishes, so that a failure is repeated by its seed. Unused
 * slots hold NaN, unused indices are huge, outputs are poisoned and have red zones around them.
 */
#ifndef CPU_NATIVE_CASE_H
#define CPU_NATIVE_CASE_H

#include "attn_plugin.h"

enum { CASE_MAX_SEQS = 6 };

/* What a case is to be like. -1 = drawn from the seed. */
typedef struct case_wishes {
    int32_t attn_type;
    int32_t mode;
    int32_t mask_kind;
    int32_t index_form; /* ATTN_INDEX_* */
    int32_t growing;    /* 1 = scores grow along the keys by more than 100 */
    int32_t max_len;    /* keys of a sequence, about; 0 = 200 */
} case_wishes;

#define CASE_ANYTHING ((case_wishes){-1, -1, -1, -1, -1, 0})

/* A tensor with its memory. */
typedef struct case_tensor {
    attn_tensor tensor;
    char *memory;
    uint64_t bytes;
} case_tensor;

typedef struct attn_case {
    uint64_t seed;
    uint64_t draws;

    attn_device device;
    attn_layer layer;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem;

    int32_t q_len[CASE_MAX_SEQS];
    int32_t prefix[CASE_MAX_SEQS];
    int32_t kv_len[CASE_MAX_SEQS];
    int32_t num_new[CASE_MAX_SEQS];
    int32_t from_cache; /* k = v = NULL */
    int32_t growing;

    attn_batch batch;
    attn_kv_batch kv;
    attn_mask mask;
    attn_multi_item items;
    int32_t *seq_lens, *prefix_lens, *q_indptr, *positions, *requests, *kv_lens, *new_indptr;
    int32_t *req_to_token, *block_table, *kv_indptr, *kv_indices, *last_page_len;
    int64_t *out_cache_loc, *mask_indptr;
    uint8_t *mask_bits;
    int32_t *item_prefix;
    uint16_t *token_pos;
    int32_t *pages; /* a permutation of the pages that are handed out */
    int32_t num_pages;
    int32_t pages_of_seq; /* entries of a block table row */

    case_tensor q, k, v, k_cache, v_cache, out, lse;
    float sinks[64], slopes[64], k_scales[64], v_scales[64];
    attn_tensor sinks_tensor, slopes_tensor;
    attn_scale k_scale, v_scale;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
} attn_case;

attn_case *case_create(uint64_t seed, const case_wishes *wishes);
/* The same with this head_dim and as many query heads of a KV head; 0 = drawn. */
attn_case *case_create_shaped(uint64_t seed, const case_wishes *wishes, int32_t dim, int32_t ratio);
void case_destroy(attn_case *c);

/* Poison out and LSE. */
void case_poison(attn_case *c);
/* Bytes around the rows of out and LSE that were written to. */
int64_t case_red_zone(const attn_case *c);

/* Bytes of the caches that are not what they were before, the images, with the new keys: page and offset
 * of the first. Rows of padding may have been saved at slot 0, which no sequence reads. The images are
 * written to. */
int64_t case_wrong_keys(const attn_case *c, char *k_image, char *v_image, int64_t place[2]);

/* A random number below `count` of this case. */
int32_t case_draw(attn_case *c, int32_t count);

/* One line about a case, for messages. */
void case_describe(const attn_case *c, char *text, size_t size);

#endif /* CPU_NATIVE_CASE_H */
