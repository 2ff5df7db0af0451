/* SPDX-License-Identifier: Apache-2.0
 *
 * selection_api.h: a selection as structs of attnhost.h, which `explain` prints.
 */
#ifndef HOST_SELECT_SELECTION_API_H
#define HOST_SELECT_SELECTION_API_H

#include <stdio.h>

#include <cjson/cJSON.h>

#include "host/select/select.h"

/* Convert a selection to the structs of attnhost.h, where *selected borrows from it: selection,
 * config and model outlive it. `status` and `message` are the result of select_create().
 * OUT_OF_HOST_MEMORY. */
attn_status selection_api_create(const attnhost *host, const struct config *config,
                                 const struct selection *selection, attn_status status,
                                 const char *message, const attnhost_selection **selected,
                                 attn_error *error);

/* Select on the configured device, and report it. *selected owns config and model from now on; they
 * are freed at once if there is none. As attnhost_select(). */
attn_status selection_api_select(attnhost *host, struct config *config, struct model *model,
                                 const attnhost_selection **selected, attn_error *error);

/* Everything: device, model, groups, each candidate with its reasons. For `explain`. */
void selection_api_print(const attnhost_selection *selected, FILE *file);

/* The same as JSON; NULL when memory ran out. The caller deletes it. */
cJSON *selection_api_to_json(const attnhost_selection *selected);

#endif /* HOST_SELECT_SELECTION_API_H */
