/* SPDX-License-Identifier: Apache-2.0
 *
 * method.h: how rows of a layer are judged, a method for each KIND_JUDGED_* of kinds.h. Private to
 * verify.c and the methods.
 */
#ifndef HOST_VERIFY_METHOD_H
#define HOST_VERIFY_METHOD_H

#include "host/verify/verify.h"

struct verify_method {
    /* What judges; *self is for the others. The parameters outlive it. */
    attn_status (*create)(const struct verify_params *params, void **self, attn_error *error);
    void (*destroy)(void *self);
    /* verifier_check() of a step that has sampled rows. What is found is added to *result, whose
     * first failure stays. */
    attn_status (*check)(void *self, const struct verify_step *step, int32_t layer,
                         const attn_tensor *out, struct verify_result *result, attn_error *error);
};

extern const struct verify_method verify_attention; /* attention.c */
extern const struct verify_method verify_linear;    /* linear.c */

#endif /* HOST_VERIFY_METHOD_H */
