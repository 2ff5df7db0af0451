/* SPDX-License-Identifier: Apache-2.0
 *
 * waivers.h: known failures, each accepted until a given day. A file of lines
 *
 *   ID-PATTERN PLUGIN VERSION-PATTERN EXPIRY REASON
 *   cpu_native/KV-06.pages/17 cpu_native 0.1.* 2026-03-31 https://example.org/issue/12
 *
 * A line that begins with `#` is a comment. A waiver that has expired, or that waives nothing, is a
 * failure itself.
 */
#ifndef HOST_CHECK_SUITE_WAIVERS_H
#define HOST_CHECK_SUITE_WAIVERS_H

#include <stdbool.h>

#include "attn_types.h"

struct waiver {
    const char *pattern, *plugin, *version, *expiry, *reason; /* in the file's text */
    int line;
    bool used;
};

struct waivers {
    char *file;
    char *text; /* the file's, cut into words */
    struct waiver *items;
    size_t count;
    char today[11]; /* "2026-03-31", in UTC */
};

/* Read a file; CONFIG_ERROR with "file:line" for the first thing that is wrong. `today` is compared
 * with expiries. On failure there is nothing to finish. */
attn_status waivers_load(const char *file, const char *today, struct waivers *waivers,
                         attn_error *error);
void waivers_finish(struct waivers *waivers);

/* The waiver in force for a failed case of this plugin, which is marked as used; or NULL. */
const struct waiver *waivers_find(struct waivers *waivers, const char *id, const char *plugin,
                                  const char *version);

/* Has it expired? It is still valid on its last day. */
bool waiver_has_expired(const struct waivers *waivers, const struct waiver *waiver);

#endif /* HOST_CHECK_SUITE_WAIVERS_H */
