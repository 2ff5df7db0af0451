/* SPDX-License-Identifier: Apache-2.0
 *
 * write_junit.c: JUnit XML that satisfies both schemas in use: the one of Ant's reports
 * (windyroad/JUnit-Schema) and the one of Jenkins' xUnit plugin. A test suite for each backend. A
 * failure is the result of a check; an error kept it from having a result. */
#include "host/check/suite/result.h"

#include "host/base/configured.h"

#include <string.h>
#include <unistd.h>

/* Text is valid UTF-8 without control characters already. */
static void write_text(const char *text, FILE *file)
{
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'&', "&amp;"},  {'<', "&lt;"},   {'>', "&gt;"},
                    {'"', "&quot;"}, {'\n', "&#10;"}, {'\t', "&#9;"}};
    for (; *text; text++) {
        const char *entity = NULL;
        for (size_t e = 0; e < sizeof entities / sizeof *entities && !entity; e++)
            entity = *text == entities[e].c ? entities[e].entity : NULL;
        if (entity)
            fputs(entity, file);
        else
            fputc(*text, file);
    }
}

static void write_attribute(const char *name, const char *text, FILE *file)
{
    fprintf(file, " %s=\"", name);
    write_text(text, file);
    fputc('"', file);
}

static bool is_error(enum check_code code)
{
    return check_code_fails(code) && code != CHECK_FAIL;
}

static void write_failure(const char *element, const struct check_result *result, FILE *file)
{
    fprintf(file, "      <%s", element);
    write_attribute("type", check_code_name(result->code), file);
    write_attribute("message", result->text, file);
    fputc('>', file);
    write_text(result->check->sentence, file);
    if (result->trail[0]) {
        fputs("&#10;where: ", file);
        write_text(result->trail, file);
    }
    if (result->output[0]) {
        fputs("&#10;printed: ", file);
        write_text(result->output, file);
    }
    fprintf(file, "</%s>\n", element);
}

static void write_case(const struct check_result *result, FILE *file)
{
    const char *name = strchr(result->id, '/') + 1;
    fputs("    <testcase", file);
    write_attribute("name", name, file);
    fputs(" classname=\"", file);
    write_text(result->backend, file);
    fprintf(file, ".%s\" time=\"%lld.%06lld\"", result->check->rule,
            (long long)(result->ns / 1000000000), (long long)(result->ns / 1000 % 1000000));
    if (result->code == CHECK_PASS || result->code == CHECK_WARN) {
        fputs("/>\n", file);
        return;
    }
    fputs(">\n", file);
    if (check_code_fails(result->code)) {
        write_failure(is_error(result->code) ? "error" : "failure", result, file);
    } else {
        fputs("      <skipped", file);
        write_attribute("message", result->text, file);
        fputs("/>\n", file);
    }
    fputs("    </testcase>\n", file);
}

/* ---- Suites ---------------------------------------------------------------------------------- */

static bool is_first_of_suite(const struct check_report *report, size_t index)
{
    for (size_t r = 0; r < index; r++)
        if (strcmp(report->results[r].backend, report->results[index].backend) == 0)
            return false;
    return true;
}

struct totals {
    size_t tests, failures, errors, skipped;
    int64_t ns;
};

static struct totals count(const struct check_report *report, const char *backend)
{
    struct totals totals = {0};
    for (size_t r = 0; r < report->num_results; r++) {
        const struct check_result *result = &report->results[r];
        if (strcmp(result->backend, backend) != 0)
            continue;
        totals.tests++;
        totals.failures += result->code == CHECK_FAIL;
        totals.errors += is_error(result->code);
        totals.skipped += result->code == CHECK_SKIP || result->code == CHECK_WAIVED;
        totals.ns += result->ns;
    }
    return totals;
}

static void write_property(const char *name, const char *value, FILE *file)
{
    fputs("      <property", file);
    write_attribute("name", name, file);
    write_attribute("value", value, file);
    fputs("/>\n", file);
}

static void write_properties(const struct check_report *report, FILE *file)
{
    char number[32];
    fputs("    <properties>\n", file);
    write_property("plugin", report->file, file);
    write_property("plugin.version", report->version[0] ? report->version : "unknown", file);
    write_property("plugin.sha256", report->sha256[0] ? report->sha256 : "unknown", file);
    snprintf(number, sizeof number, "%llu", (unsigned long long)report->params->seed);
    write_property("seed", number, file);
    write_property("attnhost", ATTNHOST_VERSION, file);
    if (report->profile)
        write_property("profile", report->profile, file);
    fputs("    </properties>\n", file);
}

/* Warnings pass; they are listed in the text at the suite's end. */
static void write_warnings(const struct check_report *report, const char *backend, FILE *file)
{
    fputs("    <system-out>", file);
    for (size_t r = 0; r < report->num_results; r++) {
        const struct check_result *result = &report->results[r];
        if (result->code != CHECK_WARN || strcmp(result->backend, backend) != 0)
            continue;
        write_text(result->id, file);
        fputs(": ", file);
        write_text(result->text, file);
        fputs("&#10;", file);
    }
    fputs("</system-out>\n    <system-err/>\n", file);
}

static void write_suite(const struct check_report *report, const char *backend, size_t id,
                        FILE *file)
{
    char started[32] = "", host[256] = "";
    struct tm utc;
    const struct totals totals = count(report, backend);
    if (gmtime_r(&report->started, &utc))
        strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%S", &utc);
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        snprintf(host, sizeof host, "localhost");
    fprintf(file, "  <testsuite id=\"%zu\"", id);
    write_attribute("package", report->name, file);
    write_attribute("name", backend, file);
    write_attribute("timestamp", started, file);
    write_attribute("hostname", host, file);
    fprintf(file,
            " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" "
            "time=\"%lld.%06lld\">\n",
            totals.tests, totals.failures, totals.errors, totals.skipped,
            (long long)(totals.ns / 1000000000), (long long)(totals.ns / 1000 % 1000000));
    write_properties(report, file);
    for (size_t r = 0; r < report->num_results; r++)
        if (strcmp(report->results[r].backend, backend) == 0)
            write_case(&report->results[r], file);
    write_warnings(report, backend, file);
    fputs("  </testsuite>\n", file);
}

bool write_junit(const struct check_report *report, FILE *file)
{
    size_t suites = 0;
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n", file);
    for (size_t r = 0; r < report->num_results; r++)
        if (is_first_of_suite(report, r))
            write_suite(report, report->results[r].backend, suites++, file);
    fputs("</testsuites>\n", file);
    return true;
}
