/* SPDX-License-Identifier: Apache-2.0
 *
 * say.c: functions by which a running case reports.
 */
#include <stdarg.h>
#include <stdio.h>

#include "host/check/check.h"
#include "host/check/trail.h"
#include "host/base/text.h"

/* The first report stays. */
static void say(struct check_run *run, enum check_code code, const char *format, va_list args)
{
    if (run->code != CHECK_PASS)
        return;
    run->code = code;
    int length = vsnprintf(run->text, sizeof run->text, format, args);
    if (length >= (int)sizeof run->text)
        text_cut_incomplete(run->text);
}

void check_fail(struct check_run *run, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(run, CHECK_FAIL, format, args);
    va_end(args);
}

void check_warn(struct check_run *run, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(run, CHECK_WARN, format, args);
    va_end(args);
}

void check_skip(struct check_run *run, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(run, CHECK_SKIP, format, args);
    va_end(args);
}

attn_error *check_error(struct check_run *run)
{
    host_error_init(&run->error);
    return &run->error.base;
}

const char *check_error_text(const struct check_run *run)
{
    return host_error_text(&run->error);
}

bool check_good(struct check_run *run, attn_status status, const char *what, ...)
{
    char text[200];
    va_list args;
    va_start(args, what);
    vsnprintf(text, sizeof text, what, args);
    va_end(args);
    if (status != ATTN_OK)
        check_fail(run, "%s: %s: %s", text, host_status_name(status), check_error_text(run));
    return status == ATTN_OK;
}

void check_report_status(struct check_run *run, attn_status status, const char *text,
                         const char *what)
{
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(run, "%s", text);
    else if (status == ATTN_OUT_OF_DEVICE_MEMORY || status == ATTN_OUT_OF_HOST_MEMORY)
        check_skip(run, "%s; %s", text, what);
    else
        check_fail(run, "%s; %s", text, what);
}

void check_note(struct check_run *run, const char *format, ...)
{
    if (!run->trail)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(run->trail->text, sizeof run->trail->text, format, args);
    va_end(args);
    check_trail_live(run->trail);
}
