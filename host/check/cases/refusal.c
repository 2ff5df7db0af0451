/* SPDX-License-Identifier: Apache-2.0
 *
 * refusal.c: judging the status and error of a call that must fail.
 */
#include "host/check/cases/refusal.h"

#include <string.h>

#include "host/base/text.h"

static bool is_utf8(const char *text)
{
    while (*text && text_utf8_length(text))
        text += text_utf8_length(text);
    return !*text;
}

bool refusal_is_told(struct check_run *run, attn_status status, const char *what)
{
    const char *text = check_error_text(run);
    if (status == ATTN_OK)
        check_fail(run, "%s: succeeded; accepted: a failure", what);
    else if (status < 0 || status >= ATTN_STATUS_COUNT)
        check_fail(run, "%s: status %d: accepted 0..%d", what, status, ATTN_STATUS_COUNT - 1);
    else if (run->error.base.code != status)
        check_fail(run, "%s: error.code is %d: accepted %d, what was returned (%s)", what,
                   run->error.base.code, status, text);
    else if (!*text)
        check_fail(run, "%s: %s without a message", what, host_status_name(status));
    else if (!is_utf8(text))
        check_fail(run, "%s: the message is not UTF-8", what);
    else
        return true;
    return false;
}

bool refusal_gives(const struct check_subject *subject, attn_status status, attn_status wanted)
{
    return status == wanted || (status == ATTN_CHILD_FAILED && subject->type &&
                                subject->type->flags & ATTN_BACKEND_COMPOSITE);
}

bool refusal_is(struct check_run *run, attn_status status, attn_status wanted, const char *what)
{
    if (!refusal_gives(run->subject, status, wanted)) {
        const char *text = check_error_text(run);
        check_fail(run, "%s: %s%s%s%s: accepted %s", what, host_status_name(status),
                   *text ? " (" : "", text, *text ? ")" : "", host_status_name(wanted));
        return false;
    }
    return refusal_is_told(run, status, what);
}

bool refusal_names(const struct check_run *run, const char *const *words)
{
    for (; *words; words++)
        if (strstr(check_error_text(run), *words))
            return true;
    return false;
}
