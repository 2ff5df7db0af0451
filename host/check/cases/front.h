/* SPDX-License-Identifier: Apache-2.0
 *
 * front.h: a backend in front of the one under test, with the same slots except for the replaced
 * ones. */
#ifndef HOST_CHECK_CASES_FRONT_H
#define HOST_CHECK_CASES_FRONT_H

#include <stdbool.h>

#include "attn_plugin.h"

/* Initialised in place and never copied; it outlives the sessions that were given its type. It comes first in a struct,
 * so that the type that a slot is given leads there. */
struct front {
    attn_backend_type type; /* what sessions call */
    attn_backend_ops ops;
    const attn_backend_type *inner;
};

void front_init(struct front *front, const attn_backend_type *inner);

static inline attn_status front_forward(const attn_backend_ops *ops, bool decode,
                                        attn_metadata *metadata, int32_t layer_id,
                                        const attn_forward_args *args, attn_stream stream,
                                        attn_error *error)
{
    return (decode ? ops->forward_decode : ops->forward_extend)(metadata, layer_id, args, stream,
                                                                error);
}

/* Both slots, by forward(decode, ...). */
#define FRONT_FORWARD(phase, decode)                                                               \
    static attn_status forward_##phase(attn_metadata *metadata, int32_t layer_id,                  \
                                       const attn_forward_args *args, attn_stream stream,          \
                                       attn_error *error)                                          \
    {                                                                                              \
        return forward(decode, metadata, layer_id, args, stream, error);                           \
    }
#define FRONT_FORWARDS FRONT_FORWARD(extend, false) FRONT_FORWARD(decode, true)

/* Put them into a table, where `inner` has them. */
#define FRONT_SET_FORWARDS(table, inner)                                                           \
    ((table).forward_extend = (inner)->forward_extend ? forward_extend : NULL,                     \
     (table).forward_decode = (inner)->forward_decode ? forward_decode : NULL)

#endif /* HOST_CHECK_CASES_FRONT_H */
