/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.h: shared code of kinds that attend to keys: rows of queries, keys and values from
 * generator.h, and sinks and slopes, one per query head. Slots of their rows of the table.
 */
#ifndef HOST_KINDS_ATTENTION_H
#define HOST_KINDS_ATTENTION_H

#include "host/kinds/kinds.h"

/* q, k and v; the expanded form of latent attention, too. */
extern const struct kind_form attention_form;

/* Masks that the generator aims its needles at, and the number of query heads. */
void attention_geometry(const attn_layer_group *group, generator_layer *geometry);

void attention_make_row(const struct kind_row *row, const struct row_operand *operand, void *to);

uint32_t attention_constants(const struct model *model, const attn_layer_group *group);
void attention_describe_constant(const struct model *model, const attn_layer_group *group,
                                 uint32_t role, attn_tensor *tensor);
void attention_make_constant(const struct generator *generator, const attn_layer_group *group,
                             int32_t layer, uint32_t role, float *values);

#endif /* HOST_KINDS_ATTENTION_H */
