/* SPDX-License-Identifier: Apache-2.0
 *
 * report_run.c: the figures of a run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/cmd/report_page.h"

/* ---- Distributions --------------------------------------------------------------------------- */

/* Percentiles of two, side by side; nothing where neither has any. */
static void distribution(struct page *page, const cJSON *times, const char *const names[2],
                         const char *title, const char *note, const char *unit)
{
    const char *columns[] = {"percentile", names[0], names[1]};
    const cJSON *lists[2];
    struct figure figure;
    char script[256];
    for (int i = 0; i < 2; i++)
        lists[i] = page_get(page_get(times, names[i]), "percentiles");
    if (cJSON_GetArraySize(lists[0]) + cJSON_GetArraySize(lists[1]) == 0)
        return;
    figure_begin(&figure, columns, 3);
    for (int p = 0; p <= 100; p++) {
        figure_number(&figure, p);
        for (int i = 0; i < 2; i++) {
            const cJSON *item = cJSON_GetArrayItem(lists[i], p);
            figure_number(&figure, item ? item->valuedouble : NAN);
        }
        figure_end_row(&figure);
    }
    snprintf(script, sizeof script,
             "set xlabel '%s'\nset ylabel 'percentile'\nset yrange [0:100]\nset logscale x\n"
             "plot for [i=2:3] $d using i:1 with lines title columnheader(i)",
             unit);
    page_figure(page, &figure, title, note, script);
}

/* ---- Over time ------------------------------------------------------------------------------- */

static void over_time(struct page *page, const cJSON *report, const char *const columns[3],
                      double constant, const char *title, const char *note, const char *label)
{
    const cJSON *series = page_get(report, "series"), *times = page_get(series, "wall_s");
    struct figure figure;
    char script[192];
    figure_begin(&figure, columns, 3);
    for (int b = 0; b < cJSON_GetArraySize(times); b++) {
        figure_number(&figure, cJSON_GetArrayItem(times, b)->valuedouble);
        for (int c = 1; c < 3; c++) {
            const cJSON *item = cJSON_GetArrayItem(page_get(series, columns[c]), b);
            figure_number(&figure, item ? item->valuedouble : constant);
        }
        figure_end_row(&figure);
    }
    snprintf(script, sizeof script,
             "set xlabel 's (wall clock)'\nset ylabel '%s'\nset yrange [0:*]\n"
             "plot for [i=2:3] $d using 1:i with steps",
             label);
    page_figure(page, &figure, title, note, script);
}

/* ---- Paths ----------------------------------------------------------------------------------- */

static void paths(struct page *page, const cJSON *report)
{
    static const char *const columns[] = {"backend", "rows"};
    struct figure figure;
    const cJSON *path;
    figure_begin(&figure, columns, 2);
    cJSON_ArrayForEach(path, page_get(report, "paths"))
    {
        figure_text(&figure, path->string);
        figure_number(&figure, path->valuedouble);
        figure_end_row(&figure);
    }
    page_figure(page, &figure, "Rows computed by each backend", "Query rows times layers.",
                "set yrange [0:*]\nset key off\nplot $d using 2:xtic(1) with boxes");
}

/* A row for each layer of "0-3,5-9/2". */
static void add_layers(struct figure *figure, const cJSON *choice, int number)
{
    const char *layers = cJSON_GetStringValue(page_get(choice, "layers"));
    const char *phase = cJSON_GetStringValue(page_get(choice, "phase"));
    const char *backend = cJSON_GetStringValue(page_get(choice, "backend"));
    int64_t *ids;
    size_t count;
    if (!layers || !phase || !backend ||
        text_parse_range_list(layers, 0, INT32_MAX, 1 << 16, &ids, &count))
        return;
    for (size_t i = 0; i < count; i++) {
        char label[160];
        snprintf(label, sizeof label, "%s: %s", phase, backend);
        figure_number(figure, (double)ids[i]);
        figure_text(figure, label);
        figure_number(figure, number);
        figure_end_row(figure);
    }
    free(ids);
}

/* The line of the plot that a choice belongs to: that of the first with its phase and backend. */
static int line_of(const cJSON *composition, const cJSON *choice)
{
    int line = 0;
    const cJSON *other;
    cJSON_ArrayForEach(other, composition)
    {
        line++;
        if (cJSON_Compare(page_get(other, "phase"), page_get(choice, "phase"), true) &&
            cJSON_Compare(page_get(other, "backend"), page_get(choice, "backend"), true))
            break;
    }
    return line;
}

static void composition(struct page *page, const cJSON *report)
{
    static const char *const columns[] = {"layer", "phase: backend", "line"};
    const cJSON *choices = page_get(report, "composition"), *choice;
    struct figure figure;
    figure_begin(&figure, columns, 3);
    cJSON_ArrayForEach(choice, choices) add_layers(&figure, choice, line_of(choices, choice));
    page_figure(page, &figure, "Backend of each layer and phase",
                "As it was chosen before the run.",
                "set xlabel 'layer'\nset offsets 0.5,0.5,0.5,0.5\nset key off\n"
                "plot $d using 1:3:ytic(2) with points ps 1.2");
}

/* ---- Verification ---------------------------------------------------------------------------- */

static void bars(struct page *page, const cJSON *report)
{
    static const char *const columns[] = {"layer", "prefill", "decode"};
    const cJSON *of_bar = page_get(report, "verify.of_bar");
    struct figure figure;
    int layers = cJSON_GetArraySize(page_get(of_bar, "prefill"));
    if (layers == 0)
        return;
    figure_begin(&figure, columns, 3);
    for (int l = 0; l < layers; l++) {
        figure_number(&figure, l);
        for (int c = 1; c < 3; c++) {
            const cJSON *item = cJSON_GetArrayItem(page_get(of_bar, columns[c]), l);
            figure_number(&figure, cJSON_IsNumber(item) ? item->valuedouble : NAN);
        }
        figure_end_row(&figure);
    }
    page_figure(page, &figure, "Largest error over its bar",
                "Of the rows that were compared with the fp64 oracle, for each layer; above 1 is a "
                "failure.",
                "set xlabel 'layer'\nset yrange [0:*]\nset offsets 0.5,0.5,0,0\n"
                "plot for [i=2:3] $d using 1:i with points ps 1.2, 1 with lines lc rgb '#c0392b' "
                "title 'bar'");
}

/* ---- The run --------------------------------------------------------------------------------- */

void page_run(struct page *page, const cJSON *report)
{
    static const char *const clocks[] = {"wall", "virtual"}, *const phases[] = {"prefill",
                                                                                "decode"};
    static const char *const tokens[] = {"wall_s", "prefill", "decode"};
    static const char *const pool[] = {"wall_s", "kv_tokens", "capacity"};
    distribution(page, page_get(report, "ttft_ms"), clocks, "Time to first token",
                 "Of requests, on both clocks.", "ms");
    distribution(page, page_get(report, "tpot_ms"), clocks, "Time per output token",
                 "Of requests with two output tokens and more, on both clocks.", "ms");
    distribution(page, page_get(report, "latency_us"), phases, "Step times",
                 "All layers of a step, without what the host does around them.", "us");
    over_time(page, report, tokens, NAN, "Tokens over time", "Rows computed in each bin of steps.",
              "tokens");
    over_time(page, report, pool, page_number(report, "kv.capacity"), "KV occupancy over time",
              "The most of any step of a bin, cached prefixes included.", "tokens");
    paths(page, report);
    composition(page, report);
    bars(page, report);
}
