/* SPDX-License-Identifier: Apache-2.0
 *
 * private_operands.h: private operands, known only to one vendor's backends: attn_private_operand.
 */
#ifndef HOST_PLUGIN_PRIVATE_OPERANDS_H
#define HOST_PLUGIN_PRIVATE_OPERANDS_H

#include <stdbool.h>

#include "attn_plugin.h"

/* A type declares no more; sets of them are masks of 32 bits. */
enum { OPERANDS_PRIVATE_MAX = 32 };

/* Is it the name of a private operand, "vendor.name"? Ids of features have a revision. */
bool operands_is_private(const char *name);

/* The place of an operand in the type's list, or -1. */
int operands_find(const attn_backend_type *type, const char *name);

/* The first private operand among the features of a problem, or NULL. */
const char *operands_first(const attn_problem *problem);

#endif /* HOST_PLUGIN_PRIVATE_OPERANDS_H */
