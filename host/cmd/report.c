/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost report: the JSON of runs and benches as one page of figures.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/base/error.h"
#include "host/base/output.h"
#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/report_page.h"
#include "host/model/json.h"

struct values {
    const char *output;
    const char *svg;
};

#define AT(member) offsetof(struct values, member)

static const struct option_row options[] = {
    OPTION_ROW_TEXT("output", "FILE.html|-", AT(output),
                    "file of the page (default: -, stdout; with --svg, no page)"),
    OPTION_ROW_TEXT("svg", "FOLDER", AT(svg),
                    "also write each figure as a file in this folder, which is created if missing"),
    OPTION_END,
};

static const char head[] =
    "<!DOCTYPE html>\n"
    "<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
    "<meta name=\"viewport\" content=\"width=device-width\"/><title>attnhost report</title>\n"
    "<style>\n"
    ":root{" PAGE_LIGHT "color-scheme:light dark}\n"
    "@media (prefers-color-scheme:dark){:root{" PAGE_DARK "}}\n"
    "body{background:var(--paper);color:var(--ink);font:15px/1.45 sans-serif;max-width:50em;"
    "margin:2em auto;padding:0 1em}\n"
    "figure{margin:2em 0}figcaption{font-weight:bold}svg{width:100%;height:auto}\n" PAGE_INK
    "td,th{text-align:right;padding:0 .6em}dt{font-weight:bold}dd{overflow-wrap:anywhere}\n"
    "</style></head><body>\n";

static void add_fact(struct page *page, const cJSON *report, const char *path, const char *name)
{
    const cJSON *item = page_get(report, path);
    char *text = cJSON_IsString(item) ? NULL : item ? cJSON_PrintUnformatted(item) : NULL;
    const char *shown = cJSON_IsString(item) ? item->valuestring : text;
    if (shown) {
        strbuf_appendf(&page->html, "<dt>%s</dt><dd>", name);
        page_text(&page->html, shown);
        strbuf_append(&page->html, "</dd>\n");
    }
    cJSON_free(text);
}

static void add_facts(struct page *page, const cJSON *report)
{
    static const char *const facts[][2] = {
        {"command", "command"},        {"attnhost", "version"},
        {"commit", "commit"},          {"device.name", "device"},
        {"requests", "requests"},      {"steps", "steps"},
        {"wall_s", "seconds"},         {"verify.rows_checked", "rows checked"},
        {"digest", "digest"},          {"verify.rows_failed", "rows failed"},
        {"interrupted", "interrupted"}};
    strbuf_append(&page->html, "<dl>\n");
    for (size_t f = 0; f < sizeof facts / sizeof *facts; f++)
        add_fact(page, report, facts[f][0], facts[f][1]);
    strbuf_append(&page->html, "</dl>\n");
}

/* A report is a bench's if it has results, a run's if it has steps. */
static int add_report(const struct arguments *arguments, struct page *page, const char *path)
{
    host_error error;
    host_error_init(&error);
    output_forbid(path, "a report");
    cJSON *report = json_parse_file(path, &error.base);
    if (!report) {
        arguments_complain(arguments, "%s", host_error_text(&error));
        return EXIT_USAGE;
    }
    bool bench = cJSON_IsArray(page_get(report, "results"));
    bool run = cJSON_IsObject(page_get(report, "series"));
    if (bench || run) {
        strbuf_append(&page->html, "<h1>");
        page_text(&page->html, path);
        strbuf_append(&page->html, "</h1>\n");
        add_facts(page, report);
        (bench ? page_bench : page_run)(page, report);
    } else {
        arguments_complain(arguments,
                           "%s: no report; accepted: what `attnhost run --json` or "
                           "`attnhost bench --json` has written",
                           path);
    }
    cJSON_Delete(report);
    return bench || run ? EXIT_GOOD : EXIT_USAGE;
}

static int write_page(const struct arguments *arguments, const char *path, const strbuf *html)
{
    char why[160];
    struct output output;
    bool standard = !path || strcmp(path, "-") == 0;
    if (!standard && !output_prepare(&output, path, why)) {
        arguments_complain(arguments, "--output %s: %s", path, why);
        return EXIT_USAGE;
    }
    FILE *file = standard ? stdout : output_open(&output);
    bool good = file && fputs(strbuf_text(html), file) != EOF;
    if (standard) /* what became of it main() says */
        return good ? EXIT_GOOD : EXIT_RUN_TIME;
    if (file)
        good = output_close(&output, good) == 0 && good;
    if (!good)
        arguments_complain(arguments, "--output %s: cannot be written: %s", path, strerror(errno));
    return good ? EXIT_GOOD : EXIT_RUN_TIME;
}

/* For figures; NULL = none. */
static bool make_folder(const struct arguments *arguments, const char *path)
{
    struct stat info;
    bool good =
        !path || mkdir(path, 0777) == 0 || (stat(path, &info) == 0 && S_ISDIR(info.st_mode));
    if (!good)
        arguments_complain(arguments, "--svg %s: %s; accepted: a folder, or a new name", path,
                           strerror(errno));
    return good;
}

static int run(struct arguments *arguments)
{
    const struct values *values = arguments->values;
    struct page page = {.svg_folder = values->svg};
    if (system("gnuplot --version >/dev/null 2>&1") != 0) {
        arguments_complain(arguments, "gnuplot draws the figures and is not found; Debian, Ubuntu: "
                                      "apt-get install gnuplot-nox");
        return EXIT_RUN_TIME;
    }
    if (!make_folder(arguments, values->svg))
        return EXIT_USAGE;
    strbuf_init(&page.html);
    strbuf_append(&page.html, head);
    int code = EXIT_GOOD;
    for (size_t t = 0; t < arguments->num_targets && code == EXIT_GOOD; t++)
        code = add_report(arguments, &page, arguments->targets[t]);
    strbuf_append(&page.html, "</body></html>\n");
    if (code == EXIT_GOOD && (page.why[0] || page.html.failed)) {
        arguments_complain(arguments, "%s", page.why[0] ? page.why : "no memory for the page");
        code = page.is_refused ? EXIT_USAGE : EXIT_RUN_TIME;
    }
    if (code == EXIT_GOOD && (values->output || !values->svg))
        code = write_page(arguments, values->output, &page.html);
    strbuf_finish(&page.html);
    return code;
}

const struct command command_report = {
    .name = "report",
    .summary = "draw the JSON of runs and benches as one HTML page",
    .usage = "REPORT.json... [OPTION]...",
    .names = "REPORT.json",
    .target = TARGET_MANY,
    .about =
        "Draws files from `attnhost run --json` and `attnhost bench --json`, in the given order, "
        "as\n"
        "one self-contained HTML page in the reader's light or dark theme. Runs: distributions of\n"
        "TTFT, TPOT and step times, tokens and KV over time, code paths, errors against their "
        "bars.\n"
        "Benches: shares of the ceilings, a roofline and sweeps. The numbers follow each figure. "
        "Only\n"
        "this command needs gnuplot (Debian: gnuplot-nox).\n",
    .options = options,
    .ending = "Exit codes: 0 success; 2 usage, or no report; 5 gnuplot is missing or failed.\n"
              "\n"
              "examples:\n"
              "  attnhost report run.json bench.json --output report.html\n"
              "  attnhost report run.json --svg figures\n",
    .size = sizeof(struct values),
    .run = run,
};
