/* SPDX-License-Identifier: Apache-2.0
 *
 * waivers.c: parsing of waivers, and matching them with failures.
 */
#include "host/check/suite/waivers.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/suite/case_id.h"
#include "host/check/suite/lines.h"
#include "host/base/error.h"

/* ---- Read ------------------------------------------------------------------------------------ */

/* YYYY-MM-DD, so that texts compare as days do. */
static bool is_date(const char *text)
{
    static const char form[] = "dddd-dd-dd";
    for (size_t c = 0; c < sizeof form; c++) {
        bool digit = text[c] >= '0' && text[c] <= '9';
        if (form[c] == 'd' ? !digit : text[c] != form[c])
            return false;
    }
    int month = atoi(text + 5), day = atoi(text + 8);
    return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

static attn_status take_line(void *ctx, const char *place, int number, char *line,
                             attn_error *error)
{
    struct waivers *waivers = ctx;
    char *rest = line;
    struct waiver waiver = {.line = number};
    waiver.pattern = lines_word(&rest);
    waiver.plugin = lines_word(&rest);
    waiver.version = lines_word(&rest);
    waiver.expiry = lines_word(&rest);
    waiver.reason = rest;
    if (!*waiver.reason)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: a word is missing; accepted: ID-PATTERN PLUGIN VERSION-PATTERN "
                         "YYYY-MM-DD REASON",
                         place);
    if (!is_date(waiver.expiry))
        return host_fail(error, ATTN_CONFIG_ERROR, "%s: expiry '%.40s': accepted YYYY-MM-DD", place,
                         waiver.expiry);
    struct waiver *items = realloc(waivers->items, (waivers->count + 1) * sizeof *items);
    if (!items)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
    waivers->items = items;
    items[waivers->count++] = waiver;
    return ATTN_OK;
}

attn_status waivers_load(const char *file, const char *today, struct waivers *waivers,
                         attn_error *error)
{
    memset(waivers, 0, sizeof *waivers);
    snprintf(waivers->today, sizeof waivers->today, "%s", today);
    waivers->file = strdup(file);
    attn_status status = waivers->file ? lines_read(file, "a file of waivers", take_line, waivers,
                                                    &waivers->text, error)
                                       : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
    if (status)
        waivers_finish(waivers);
    return status;
}

void waivers_finish(struct waivers *waivers)
{
    free(waivers->items);
    free(waivers->text);
    free(waivers->file);
    memset(waivers, 0, sizeof *waivers);
}

/* ---- Use ------------------------------------------------------------------------------------- */

bool waiver_has_expired(const struct waivers *waivers, const struct waiver *waiver)
{
    return strcmp(waivers->today, waiver->expiry) > 0;
}

const struct waiver *waivers_find(struct waivers *waivers, const char *id, const char *plugin,
                                  const char *version)
{
    for (size_t w = 0; w < waivers->count; w++) {
        struct waiver *waiver = &waivers->items[w];
        if (strcmp(waiver->plugin, plugin) != 0 || waiver_has_expired(waivers, waiver) ||
            fnmatch(waiver->version, version, 0) != 0 || !case_id_matches(waiver->pattern, id))
            continue;
        waiver->used = true;
        return waiver;
    }
    return NULL;
}
