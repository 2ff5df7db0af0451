/* SPDX-License-Identifier: Apache-2.0
 *
 * restrided.h: a backend in front of the one under test that moves the operands of forwards: other
 * outer strides, gaps of poison between vectors, a byte_offset.
 *
 * The case and its judge do not notice: an operand is copied before the forward, and written data
 * is copied back after it. So it serves softmax, latent and linear layers alike, and any operand of
 * the role map. A write to a gap fails the forward; only gaps between vectors that lie far apart
 * are zero, and are not checked afterwards. */
#ifndef HOST_CHECK_CASES_RESTRIDED_H
#define HOST_CHECK_CASES_RESTRIDED_H

#include "host/check/cases/front.h"
#include "host/device/device.h"

/* How operands lie. */
enum restrided_form {
    RESTRIDED_GAPS,   /* gaps of another length between the vectors of each dimension */
    RESTRIDED_TURNED, /* and the outer dimensions in the opposite order */
    RESTRIDED_FORMS,
    RESTRIDED_FAR = RESTRIDED_FORMS /* dense, but for one dimension that takes all to beyond 2^32 */
};

/* There is one at a time in a process: slots of a backend have no context. */
struct restrided {
    struct front front;
    const struct device *device;
    uint64_t seed;
    enum restrided_form form;
    uint32_t roles; /* a set of bits: operands that lie otherwise; the others stay where they are */
    uint32_t given; /* those that forwards had so far */
    uint32_t far_dim; /* of RESTRIDED_FAR: operands that have several there lie otherwise */
    uint32_t
        dims[ATTN_ROLE_COUNT]; /* a bit for each outer dimension of which an operand had several */
};

void restrided_init(struct restrided *restrided, const attn_backend_type *inner,
                    const struct device *device, uint64_t seed);
void restrided_finish(struct restrided *restrided);

/* "k_cache", or "all operands" where there are several. */
const char *restrided_name(const struct restrided *restrided);

#endif /* HOST_CHECK_CASES_RESTRIDED_H */
