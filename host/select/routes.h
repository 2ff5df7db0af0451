/* SPDX-License-Identifier: Apache-2.0
 *
 * routes.h: the keys [attention] route.<n>, from texts to a backend.
 *
 * They define a backend ROUTES_NAME of type `route`: a row for each route in ascending n, and the
 * default. The default is the backend of a last route without conditions, else attention_backend,
 * which then has to be named. The plugin parses the conditions. */
#ifndef HOST_SELECT_ROUTES_H
#define HOST_SELECT_ROUTES_H

#include <stdio.h>

#include <cjson/cJSON.h>

#include "host/plugin/compose.h"
#include "host/config/config.h"
#include "host/select/select.h"
#include "host/base/text.h"

#define ROUTES_NAME "routes"

/* Define the backend, if there are routes. CONFIG_ERROR with file:line for a route without a name,
 * a gap (no default), one without conditions that is not the last, and other keys that set the
 * same. */
attn_status routes_define(struct composer *composer, const struct config *config,
                          attn_error *error);

/* "attention.route.1..9 (t.ini:27)": the place of the routes. */
void routes_where(const struct config *config, strbuf *text);

/* " (attention.route.2, t.ini:28)": the routes that lead to the child of ROUTES_NAME whose reason
 * it is; nothing if none does. */
void routes_to_child(const struct config *config, const attn_reason *reason, strbuf *text);

/* A line for each row, of these keys or of a [backend.NAME] of type `route`, that matches no graph
 * of decode steps. Rows are matched by the bound of a graph, `longest` keys (called `whose`), so a
 * row for shorter sequences never matches. No line if nothing is captured. Conditions have been
 * checked. */
void routes_beyond_graphs(const struct composer *composer, const struct config *config,
                          const struct selection *selection, int32_t longest, const char *whose,
                          strbuf *text);

/* A line for each such row that matches no step, as none of its phases is in `phases` ("prefill,
 * decode"); `when` is the reason ("of encoders"). */
void routes_never(const struct composer *composer, const struct selection *selection,
                  const char *phases, const char *when, strbuf *text);

/* One line for each route and for the default; nothing if there are none. For `explain`. */
void routes_print(const struct config *config, FILE *file);

/* The same as an array "routes" of `object`, absent if there are none. 0 when memory ran out. */
int routes_add_json(const struct config *config, cJSON *object);

#endif /* HOST_SELECT_ROUTES_H */
