/* SPDX-License-Identifier: Apache-2.0
 *
 * method.h: methods to judge rows of a layer, one for each KIND_JUDGED_* of kinds.h. Private to
 * verify.c and the methods.
 */
#ifndef HOST_VERIFY_METHOD_H
#define HOST_VERIFY_METHOD_H

#include "host/verify/verify.h"

/* Sampled rows of one layer. */
struct verify_entry {
    struct verify_step step; /* sequences are those with sampled rows */
    int32_t layer;
    attn_tensor out;
    struct verify_result result; /* what was found; zeros before */
};

struct verify_method {
    /* Create a judge; *self is passed to the other functions. The parameters outlive it. */
    attn_status (*create)(const struct verify_params *params, void **self, attn_error *error);
    void (*destroy)(void *self);
    /* Judge entries, as if one after the other. */
    attn_status (*check)(void *self, struct verify_entry *entries, int64_t count,
                         attn_error *error);
};

extern const struct verify_method verify_attention; /* attention.c */
extern const struct verify_method verify_linear;    /* linear.c */

#endif /* HOST_VERIFY_METHOD_H */
