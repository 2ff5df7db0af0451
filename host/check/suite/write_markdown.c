/* SPDX-License-Identifier: Apache-2.0
 *
 * write_markdown.c: a summary for people: failures, counts by rule, capabilities from the backends'
 * query. */
#include "host/check/suite/result.h"

#include <stdlib.h>
#include <string.h>

#include "host/plugin/loader.h"
#include "host/select/matrix.h"
#include "host/base/configured.h"

/* In a table's cell: a bar would end it. */
static void write_cell(const char *text, FILE *file)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', file);
        fputc(*text == '\n' ? ' ' : *text, file);
    }
}

static void write_head(const struct check_report *report, FILE *file)
{
    fprintf(file, "# %s %s\n\n", report->name, report->version);
    fprintf(file, "`%s`, SHA-256 `%s`, ABI %u.%u. Checked by attnhost %s with seed %llu%s.\n\n",
            report->file, report->sha256, report->abi_major, report->abi_minor, ATTNHOST_VERSION,
            (unsigned long long)report->params->seed,
            report->params->exhaustive ? ", exhaustively" : "");
    if (report->refused)
        fprintf(file, "**Refused**: %s\n\n", report->refused);
    if (report->interrupted)
        fprintf(file, "**Interrupted** by signal %d.\n\n", report->interrupted);
    if (report->cut)
        fprintf(file, "**Cut short** %s.\n\n", report->cut);
    if (report->params->quick)
        fputs("A sample of the cases alone (`--quick`).\n\n", file);
    if (report->params->repeat > 1)
        fprintf(file, "Numeric cases were run %u times (`--repeat`).\n\n", report->params->repeat);
    if (loader_is_source(report->params->plugin))
        fputs("Note: " CHECK_SOURCE_UNJUDGED ".\n\n", file);
    if (report->profile)
        fprintf(file, "Judged by profile `%s`.\n\n", report->profile);
    for (size_t b = 0; b < report->num_backends; b++)
        fprintf(file, "- `%s` on %s\n", report->backends[b].name,
                report->backends[b].device[0] ? report->backends[b].about : "no device");
    fputs("\n| result | cases |\n|---|---|\n", file);
    for (int code = 0; code < CHECK_CODES; code++)
        if (report->counts[code])
            fprintf(file, "| %s | %zu |\n", check_code_name((enum check_code)code),
                    report->counts[code]);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

/* Is it listed by itself, or only counted? */
static bool stands_out(const struct check_result *result)
{
    return result->code != CHECK_PASS && result->code != CHECK_SKIP;
}

static void write_problems(const struct check_report *report, FILE *file)
{
    bool any = false;
    for (size_t r = 0; r < report->num_results; r++) {
        const struct check_result *result = &report->results[r];
        if (!stands_out(result))
            continue;
        if (!any)
            fputs("\n## Not passed\n\n| case | result | why |\n|---|---|---|\n", file);
        any = true;
        fprintf(file, "| `%s` | %s | ", result->id, check_code_name(result->code));
        write_cell(result->text, file);
        if (result->trail[0]) {
            fputs(" (at: ", file);
            write_cell(result->trail, file);
            fputc(')', file);
        }
        fputs(" |\n", file);
    }
}

/* A row for each check of a backend: the first result of it counts them all. */
static void write_check(const struct check_report *report, size_t first, FILE *file)
{
    const struct check_result *one = &report->results[first];
    size_t passed = 0, skipped = 0, all = 0;
    const char *why = "";
    for (size_t r = 0; r < report->num_results; r++) {
        const struct check_result *result = &report->results[r];
        if (result->check != one->check || strcmp(result->backend, one->backend) != 0)
            continue;
        if (r < first)
            return;
        all++;
        passed += result->code == CHECK_PASS;
        skipped += result->code == CHECK_SKIP;
        why = result->code == CHECK_SKIP ? result->text : why;
    }
    fprintf(file, "| `%s/%s.%s` | %s | %zu | %zu | %zu |", one->backend, one->check->rule,
            one->check->name, one->check->sentence, passed, skipped, all - passed - skipped);
    if (skipped) {
        fputc(' ', file);
        write_cell(why, file);
    }
    fputs(" |\n", file);
}

/* ---- Capabilities ---------------------------------------------------------------------------- */

static bool write_matrix(const struct check_report *report, FILE *file)
{
    struct matrix_column *columns = calloc(report->num_backends + 1, sizeof *columns);
    bool known = false;
    for (size_t b = 0; columns && b < report->num_backends; b++) {
        columns[b] = (struct matrix_column){report->backends[b].name, report->backends[b].matrix};
        known |= columns[b].rows != NULL;
    }
    if (known) {
        fputs("\n## Capabilities, as `query` answers them\n\n", file);
        matrix_write(columns, report->num_backends, file);
    }
    free(columns);
    return columns != NULL;
}

bool write_markdown(const struct check_report *report, FILE *file)
{
    write_head(report, file);
    write_problems(report, file);
    fputs("\n## Checks\n\n| check | what holds | passed | skipped | not passed | why skipped |\n"
          "|---|---|---|---|---|---|\n",
          file);
    for (size_t r = 0; r < report->num_results; r++)
        write_check(report, r, file);
    return write_matrix(report, file);
}
