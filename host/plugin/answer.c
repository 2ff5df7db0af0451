/* SPDX-License-Identifier: Apache-2.0
 *
 * answer.c: bounds checks of texts, verdicts and tables.
 */
#include "host/plugin/answer.h"
#include "host/base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

attn_status answer_status(attn_status status)
{
    return status >= 0 && status < ATTN_STATUS_COUNT ? status : ATTN_INTERNAL;
}

attn_status answer_fail(attn_status status, const host_error *said, attn_error *error,
                        const char *format, ...)
{
    char prefix[512];
    va_list args;
    va_start(args, format);
    text_vformat(prefix, sizeof prefix, format, args);
    va_end(args);
    status = answer_status(status);
    const char *text = host_error_text(said);
    if (!*text)
        text = host_status_name(status);
    host_fail(error, status, "%s: %.*s", prefix, (int)sizeof said->text - 1, text);
    if (error) {
        error->field = said->base.field < ATTN_FIELD_COUNT ? said->base.field : ATTN_FIELD_NONE;
        if (ATTN_HAS(error, attn_error, needed))
            error->needed = said->base.needed;
    }
    return status;
}

static void terminate_texts(attn_verdict *verdict)
{
    uint32_t count = verdict->num_reasons < verdict->reasons_capacity ? verdict->num_reasons
                                                                      : verdict->reasons_capacity;
    for (uint32_t r = 0; r < count; r++) {
        attn_reason *reason = (attn_reason *)(uintptr_t)attn_at(verdict->reasons, r);
        if (ATTN_HAS(reason, attn_reason, child))
            reason->child[sizeof reason->child - 1] = '\0';
        if (ATTN_HAS(reason, attn_reason, got))
            reason->got[sizeof reason->got - 1] = '\0';
        if (ATTN_HAS(reason, attn_reason, accepted))
            reason->accepted[sizeof reason->accepted - 1] = '\0';
    }
}

/* Upper bound on the reasons of an answer; callers allocate this many. */
enum { MAX_REASONS = 1024 };

/* NULL, or the contradiction in the verdict. */
static const char *find_defect(const attn_verdict *verdict)
{
    if (verdict->supported > 1)
        return "supported is neither 0 nor 1";
    if (!verdict->supported && verdict->num_reasons > MAX_REASONS)
        return "num_reasons is above 1024";
    if (!verdict->supported)
        return verdict->num_reasons == 0 ? "it refuses without a reason" : NULL;
    if (verdict->num_reasons > 0)
        return "it accepts the problem, but gives reasons for a refusal";
    if (verdict->graph_level >= ATTN_GRAPH_COUNT)
        return "graph_level is none of ATTN_GRAPH_*";
    if (verdict->graph_seq_len_fill != 0 && verdict->graph_seq_len_fill != 1)
        return "graph_seq_len_fill is neither 0 nor 1";
    if (verdict->host_arrays & ~(uint32_t)ATTN_HOST_ALL)
        return "host_arrays has bits that are none of ATTN_HOST_*";
    if (!isfinite(verdict->cost_hint) || verdict->cost_hint < 0)
        return "cost_hint is not a finite number >= 0";
    return NULL;
}

attn_status answer_check_verdict(const char *name, attn_verdict *verdict, attn_error *error)
{
    if (verdict->reasons_capacity > 0)
        terminate_texts(verdict);
    const char *defect = find_defect(verdict);
    if (!defect)
        return ATTN_OK;
    return host_fail(error, ATTN_INTERNAL, "%s: defect of the plugin: in query's verdict %s", name,
                     defect);
}
