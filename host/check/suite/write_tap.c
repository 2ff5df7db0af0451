/* SPDX-License-Identifier: Apache-2.0
 *
 * write_tap.c: TAP 13 (https://testanything.org/tap-version-13-specification.html), as Automake's
 * driver reads it: WAIVED is a known failure (TODO), WARN passes with a comment.
 */
#include "host/check/suite/result.h"

#include <string.h>

#include "host/plugin/loader.h"

static const char head[] = "TAP version 13\n";

/* Each line of a text as a comment. */
static void write_comment(const char *label, const char *text, FILE *file)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        fprintf(file, "# %s%.*s\n", label, (int)length, text);
        text += length + (text[length] == '\n');
    }
}

/* After a directive, on one line. */
static void write_directive(const char *directive, const char *text, FILE *file)
{
    fprintf(file, " # %s ", directive);
    for (; *text; text++)
        fputc(*text == '\n' ? ' ' : *text, file);
}

void write_tap_result(const struct check_result *result, size_t number, FILE *file)
{
    bool bad = check_code_fails(result->code) || result->code == CHECK_WAIVED;
    char label[32];
    if (number == 1)
        fputs(head, file);
    fprintf(file, "%s %zu - %s", bad ? "not ok" : "ok", number, result->id);
    if (result->code == CHECK_SKIP)
        write_directive("SKIP", result->text, file);
    if (result->code == CHECK_WAIVED)
        write_directive("TODO", result->text, file);
    fputc('\n', file);
    if (check_code_fails(result->code) || result->code == CHECK_WARN) {
        snprintf(label, sizeof label, "%s: ", check_code_name(result->code));
        write_comment(label, result->text, file);
        write_comment("where: ", result->trail, file);
        write_comment("printed: ", result->output, file);
        fprintf(file, "# rule %s: %s\n", result->check->rule, result->check->sentence);
    }
    fflush(file);
}

void write_tap_end(const struct check_report *report, FILE *file)
{
    if (report->num_results == 0)
        fputs(head, file);
    if (report->cut)
        fprintf(file, "# cut short %s\n", report->cut);
    if (report->params->quick)
        fputs("# a sample of the cases: --quick\n", file);
    if (report->params->repeat > 1)
        fprintf(file, "# numeric cases were run %u times: --repeat\n", report->params->repeat);
    if (loader_is_source(report->params->plugin))
        fputs("# " CHECK_SOURCE_UNJUDGED "\n", file);
    if (report->profile)
        fprintf(file, "# judged by profile %s\n", report->profile);
    if (report->refused)
        fprintf(file, "Bail out! %.*s\n", (int)strcspn(report->refused, "\n"), report->refused);
    else if (report->interrupted)
        fprintf(file, "Bail out! interrupted by signal %d\n", report->interrupted);
    else
        fprintf(file, "1..%zu%s\n", report->num_results,
                report->num_results ? "" : " # SKIP nothing to check");
}
