/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid.h: the composites of this plugin.
 */
#ifndef HYBRID_H
#define HYBRID_H

#include "attn_plugin.h"

/* hybrid_phase: one child for prefill, one for decode. */
extern const attn_backend_type hybrid_phase_type;

/* hybrid_linear: one child for full-attention layers, one for linear layers. */
extern const attn_backend_type hybrid_linear_type;

/* route: a table of children, by layer, phase, batch size and length. */
extern const attn_backend_type route_type;

/* autotune: of several children the fastest, as measured. */
extern const attn_backend_type autotune_type;

#endif /* HYBRID_H */
