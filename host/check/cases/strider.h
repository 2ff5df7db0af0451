/* SPDX-License-Identifier: Apache-2.0
 *
 * strider.h: a backend in front of the one that is checked, whose forwards find their operands
 * elsewhere: other outer strides, gaps of poison between vectors, a byte_offset.
 *
 * The case and its judgement know nothing of it: an operand is copied before the forward, and what
 * was written is copied back after it. So it serves softmax, latent and linear layers alike, and
 * any operand of the role map. A gap that was written to fails the forward; but those between
 * vectors that lie far apart are zero, and no check reads them afterwards.
 */
#ifndef HOST_CHECK_CASES_STRIDER_H
#define HOST_CHECK_CASES_STRIDER_H

#include <stdbool.h>

#include "host/check/cases/front.h"
#include "host/device/device.h"

/* How operands lie. */
enum strider_form {
    STRIDER_GAPS,   /* gaps of another length between the vectors of each dimension */
    STRIDER_TURNED, /* and the outer dimensions in the opposite order */
    STRIDER_FORMS,
    STRIDER_FAR = STRIDER_FORMS /* dense, but for one dimension that takes all to beyond 2^32 */
};

/* There is one at a time in a process: slots of a backend have no context. */
struct strider {
    struct front front;
    const struct device *device;
    uint64_t seed;
    enum strider_form form;
    uint32_t roles; /* a set of bits: operands that lie otherwise; the others stay where they are */
    uint32_t given; /* those that forwards had so far */
    uint32_t far_dim; /* of STRIDER_FAR: operands that have several there lie otherwise */
    uint32_t
        dims[ATTN_ROLE_COUNT]; /* a bit for each outer dimension of which an operand had several */
};

void strider_init(struct strider *strider, const attn_backend_type *inner,
                  const struct device *device, uint64_t seed);
void strider_finish(struct strider *strider);

/* "k_cache", or "all operands" where there are several. */
const char *strider_name(const struct strider *strider);

#endif /* HOST_CHECK_CASES_STRIDER_H */
