/* SPDX-License-Identifier: Apache-2.0
 *
 * bit_names.h: fields of the ABI that are sets of bits (modes, mask_kinds, uses ...), and the names
 * of their members in texts.
 */
#ifndef HOST_BASE_BIT_NAMES_H
#define HOST_BASE_BIT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is the field (ATTN_FIELD_*) a set? */
bool bit_names_is_field(uint32_t field);

/* The member `bit` of the field's sets; NULL for a field that is no set, and for an unknown bit. */
const char *bit_names_member(uint32_t field, uint32_t bit);

/* Add the member called `word`; "empty" adds none. False: there is no such member. */
bool bit_names_add(uint32_t field, const char *word, uint32_t *set);

/* "lse, unsaved_kv"; "empty" for none, unknown bits as one number. Cut to fit. */
void bit_names_text(uint32_t field, uint32_t set, char *text, size_t capacity);

#endif /* HOST_BASE_BIT_NAMES_H */
