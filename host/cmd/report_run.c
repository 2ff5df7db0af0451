/* SPDX-License-Identifier: Apache-2.0
 *
 * report_run.c: the figures of a run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/cmd/report_page.h"

/* ---- Lists side by side ---------------------------------------------------------------------- */

static void begin_lists(const cJSON *const *lists, int count, const cJSON **items)
{
    for (int i = 0; i < count; i++)
        items[i] = cJSON_IsArray(lists[i]) ? lists[i]->child : NULL;
}

/* The number there, and on to the next; `none` at the end of the list, NaN where it is no number.
 */
static double take_number(const cJSON **item, double none)
{
    const cJSON *taken = *item;
    if (!taken)
        return none;
    *item = taken->next;
    return cJSON_IsNumber(taken) ? taken->valuedouble : NAN;
}

/* ---- Distributions --------------------------------------------------------------------------- */

/* Percentiles of two lists, side by side; no figure if both are empty. */
static void distribution(struct page *page, const cJSON *times, const char *const names[2],
                         const char *title, const char *note, const char *unit)
{
    const char *columns[] = {"percentile", names[0], names[1]};
    const cJSON *lists[2], *items[2];
    struct figure figure;
    char script[256];
    for (int i = 0; i < 2; i++)
        lists[i] = page_get(page_get(times, names[i]), "percentiles");
    if (cJSON_GetArraySize(lists[0]) + cJSON_GetArraySize(lists[1]) == 0)
        return;
    figure_begin(&figure, columns, 3);
    begin_lists(lists, 2, items);
    for (int p = 0; p <= 100; p++) {
        figure_number(&figure, p);
        for (int i = 0; i < 2; i++)
            figure_number(&figure, take_number(&items[i], NAN));
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
    const cJSON *series = page_get(report, "series"), *lists[3], *items[3];
    struct figure figure;
    char script[192];
    for (int c = 0; c < 3; c++)
        lists[c] = page_get(series, columns[c]);
    figure_begin(&figure, columns, 3);
    begin_lists(lists, 3, items);
    while (items[0] && !figure_is_full(&figure)) {
        for (int c = 0; c < 3; c++)
            figure_number(&figure, take_number(&items[c], constant));
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
        if (!path->string || !cJSON_IsNumber(path) || figure_is_full(&figure))
            continue; /* an array has no names */
        figure_text(&figure, path->string);
        figure_number(&figure, path->valuedouble);
        figure_end_row(&figure);
    }
    page_figure(page, &figure, "Rows computed by each backend", "Query rows times layers.",
                "set yrange [0:*]\nset key off\nplot $d using 2:xtic(1) with boxes");
}

/* Choices that differ in phase or backend, each a line of the plot; all beyond the last share it.
 */
struct lines {
    const cJSON *choices[64];
    int count;
};

static int line_of(struct lines *lines, const cJSON *choice)
{
    int l = 0;
    while (
        l < lines->count &&
        !(cJSON_Compare(page_get(lines->choices[l], "phase"), page_get(choice, "phase"), true) &&
          cJSON_Compare(page_get(lines->choices[l], "backend"), page_get(choice, "backend"), true)))
        l++;
    if (l == (int)(sizeof lines->choices / sizeof *lines->choices))
        return l;
    if (l == lines->count)
        lines->choices[lines->count++] = choice;
    return l + 1;
}

/* A row for each layer of "0-3,5-9/2". */
static void add_layers(struct figure *figure, const cJSON *choice, struct lines *lines)
{
    const char *layers = cJSON_GetStringValue(page_get(choice, "layers"));
    const char *phase = cJSON_GetStringValue(page_get(choice, "phase"));
    const char *backend = cJSON_GetStringValue(page_get(choice, "backend"));
    int64_t *ids;
    size_t count;
    if (!layers || !phase || !backend ||
        text_parse_range_list(layers, 0, INT32_MAX, 1 << 16, &ids, &count))
        return;
    int line = line_of(lines, choice);
    for (size_t i = 0; i < count && !figure_is_full(figure); i++) {
        char label[160];
        snprintf(label, sizeof label, "%s: %s", phase, backend);
        figure_number(figure, (double)ids[i]);
        figure_text(figure, label);
        figure_number(figure, line);
        figure_end_row(figure);
    }
    free(ids);
}

static void composition(struct page *page, const cJSON *report)
{
    static const char *const columns[] = {"layer", "phase: backend", "line"};
    struct lines lines = {.count = 0};
    const cJSON *choice;
    struct figure figure;
    figure_begin(&figure, columns, 3);
    cJSON_ArrayForEach(choice, page_get(report, "composition"))
    {
        if (figure_is_full(&figure))
            break;
        add_layers(&figure, choice, &lines);
    }
    page_figure(page, &figure, "Backend of each layer and phase",
                "As it was chosen before the run.",
                "set xlabel 'layer'\nset offsets 0.5,0.5,0.5,0.5\nset key off\n"
                "plot $d using 1:3:ytic(2) with points ps 1.2");
}

/* ---- Verification ---------------------------------------------------------------------------- */

static void bars(struct page *page, const cJSON *report)
{
    static const char *const columns[] = {"layer", "prefill", "decode"};
    const cJSON *of_bar = page_get(report, "verify.of_bar"), *lists[2], *items[2];
    struct figure figure;
    for (int c = 0; c < 2; c++)
        lists[c] = page_get(of_bar, columns[1 + c]);
    begin_lists(lists, 2, items);
    if (!items[0])
        return;
    figure_begin(&figure, columns, 3);
    for (int l = 0; items[0] && !figure_is_full(&figure); l++) {
        figure_number(&figure, l);
        for (int c = 0; c < 2; c++)
            figure_number(&figure, take_number(&items[c], NAN));
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
                 "All requests, on both clocks.", "ms");
    distribution(page, page_get(report, "tpot_ms"), clocks, "Time per output token",
                 "Requests with at least two output tokens, on both clocks.", "ms");
    distribution(page, page_get(report, "latency_us"), phases, "Step times",
                 "All layers of a step, without the host's other work.", "us");
    over_time(page, report, tokens, NAN, "Tokens over time", "Rows computed in each bin of steps.",
              "tokens");
    over_time(page, report, pool, page_number(report, "kv.capacity"), "KV occupancy over time",
              "Largest value of any step in a bin, cached prefixes included.", "tokens");
    paths(page, report);
    composition(page, report);
    bars(page, report);
}
