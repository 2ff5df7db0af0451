/* SPDX-License-Identifier: Apache-2.0
 *
 * write_markdown.c: a summary for people: what failed, how many of each rule, what the backends can
 * do as their own query answers it.
 */
#include "host/check/result.h"

#include <string.h>

#include "host/check/json.h"

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

/* Is it told by itself, or only counted? */
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

static const cJSON *find_matter(const struct check_backend *backend, const char *matter)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, backend->matrix) if (strcmp(json_text(row, "matter"), matter) ==
                                                 0) return row;
    return NULL;
}

static void write_values(const cJSON *row, FILE *file)
{
    const cJSON *value, *values = cJSON_GetObjectItemCaseSensitive(row, "values");
    const char *separator = "";
    cJSON_ArrayForEach(value, values)
    {
        fprintf(file, "%s%s", separator, value->valuestring);
        separator = ", ";
    }
    if (!*separator)
        fputs(row ? "none" : "-", file);
}

static void write_row(const struct check_report *report, const char *matter, FILE *file)
{
    fprintf(file, "| %s |", matter);
    for (size_t b = 0; b < report->num_backends; b++) {
        fputc(' ', file);
        write_values(find_matter(&report->backends[b], matter), file);
        fputs(" |", file);
    }
    fputc('\n', file);
}

/* The matters of a backend that no backend before it was asked about. */
static void write_rows(const struct check_report *report, size_t backend, FILE *file)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, report->backends[backend].matrix)
    {
        const char *matter = json_text(row, "matter");
        bool told = false;
        for (size_t before = 0; before < backend; before++)
            told |= find_matter(&report->backends[before], matter) != NULL;
        if (!told)
            write_row(report, matter, file);
    }
}

/* A row for each matter, a column for each backend. */
static void write_matrix(const struct check_report *report, FILE *file)
{
    size_t columns = 0;
    for (size_t b = 0; b < report->num_backends; b++)
        columns += report->backends[b].matrix != NULL;
    if (!columns)
        return;
    fputs("\n## Capabilities, as `query` answers them\n\n| |", file);
    for (size_t b = 0; b < report->num_backends; b++)
        fprintf(file, " `%s` |", report->backends[b].name);
    fputs("\n|---|", file);
    for (size_t b = 0; b < report->num_backends; b++)
        fputs("---|", file);
    fputc('\n', file);
    for (size_t b = 0; b < report->num_backends; b++)
        write_rows(report, b, file);
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
    write_matrix(report, file);
    return true;
}
