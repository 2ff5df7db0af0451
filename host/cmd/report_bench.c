/* SPDX-License-Identifier: Apache-2.0
 *
 * report_bench.c: the figures of a bench.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/cmd/report_page.h"

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(page_get(object, key));
    return text ? text : "";
}

static bool ran(const cJSON *run)
{
    return strcmp(text_of(run, "outcome"), "ran") == 0;
}

/* A row for each backend that ran on a shape. */
static void add_shares(struct figure *figure, const cJSON *entry)
{
    const cJSON *run;
    cJSON_ArrayForEach(run, page_get(entry, "backends"))
    {
        char label[300];
        if (!ran(run) || figure_is_full(figure))
            continue;
        snprintf(label, sizeof label, "%.80s, %.200s", text_of(run, "backend"),
                 text_of(entry, "text"));
        figure_text(figure, label);
        figure_number(figure, 100 * page_number(run, "fraction"));
        figure_number(figure, page_number(run, "median_us"));
        figure_end_row(figure);
    }
}

static void shares(struct page *page, const cJSON *results)
{
    static const char *const columns[] = {"backend, shape", "% of ceiling", "median us"};
    const cJSON *entry;
    struct figure figure;
    figure_begin(&figure, columns, 3);
    cJSON_ArrayForEach(entry, results) add_shares(&figure, entry);
    page_figure(page, &figure, "Share of the nearer ceiling",
                "Time that memory or arithmetic alone would take, as a share of the measured time.",
                "set xrange [0:*]\nset yrange [*:*] reverse\nset ytics font ',9'\nset key off\n"
                "set xlabel '% of ceiling'\nset offsets 0,0,0.5,0.5\n"
                "plot $d using 2:0:(0):2:($0-0.35):($0+0.35):ytic(1) with boxxyerror lt 1");
}

/* What arithmetic and reading memory leave; unknown of products that the matrix ceiling is not of.
 * Files of before there were any do not say what they are compared with. */
static double roof_of(const cJSON *entry, double matrix, double roof)
{
    bool known = !cJSON_IsNull(page_get(entry, "compute_ceiling"));
    return known ? fmin(matrix, roof) : roof < matrix ? roof : (double)NAN;
}

static void roofline(struct page *page, const cJSON *report)
{
    static const char *const columns[] = {"flop/byte", "flop/s", "roof"};
    double read = page_number(report, "ceilings.read.bytes_per_s");
    double matrix = page_number(report, "ceilings.matrix.flop_per_s");
    const cJSON *entry, *run;
    bool open = false;
    struct figure figure;
    if (!isfinite(read) || !isfinite(matrix))
        return;
    figure_begin(&figure, columns, 3);
    cJSON_ArrayForEach(entry, page_get(report, "results")) cJSON_ArrayForEach(
        run, page_get(entry, "backends")) if (ran(run) && !figure_is_full(&figure))
    {
        double intensity = page_number(entry, "flop") / page_number(entry, "bytes");
        figure_number(&figure, intensity);
        figure_number(&figure, page_number(run, "flop_per_s"));
        figure_number(&figure, roof_of(entry, matrix, read * intensity));
        open |= !isfinite(roof_of(entry, matrix, read * intensity));
        figure_end_row(&figure);
    }
    char script[320];
    snprintf(script, sizeof script,
             "set logscale xy\nset xlabel 'flop/byte'\nset ylabel 'flop/s'\nset format '10^{%%T}'\n"
             "set format '%%g'\nroof(x) = %.15g * x < %.15g ? %.15g * x : %.15g\n"
             "plot [0.1:10000] roof(x) with lines lt 2 title 'roof', "
             "$d using 1:2 with points lt 1 ps 1.2",
             read, matrix, read, matrix);
    page_figure(page, &figure, "Roofline",
                open ? "Ceilings from the same run: memory reads, and bf16 arithmetic. fp8 "
                       "products, which have no roof in the table, may be above it."
                     : "Ceilings from the same run: memory reads, and arithmetic.",
                script);
}

/* The time of a backend on a shape; NaN if it did not run. */
static double median_of(const cJSON *entry, const char *backend)
{
    const cJSON *run;
    cJSON_ArrayForEach(run,
                       page_get(entry, "backends")) if (strcmp(text_of(run, "backend"), backend) ==
                                                        0) return page_number(run, "median_us");
    return NAN;
}

static const char *mode_of(const cJSON *entry)
{
    return text_of(page_get(entry, "shape"), "mode");
}

/* Softmax where a report of an older version has no kinds. */
static const char *kind_of_shape(const cJSON *entry)
{
    const cJSON *shape = page_get(entry, "shape");
    return page_get(shape, "kind") ? text_of(shape, "kind") : "softmax";
}

static bool is_alike(const cJSON *entry, const char *mode, const char *kind)
{
    return strcmp(mode_of(entry), mode) == 0 && strcmp(kind_of_shape(entry), kind) == 0;
}

/* Of the shapes of a kind and a mode, by the keys that are seen; its backends are those of its first shape. */
static void add_sweep(struct page *page, const cJSON *results, const cJSON *first)
{
    enum { MOST = 8 };
    const char *columns[MOST + 1] = {"keys"};
    size_t count = 1;
    const cJSON *entry, *run;
    struct figure figure;
    char script[224], title[80];
    cJSON_ArrayForEach(run, page_get(first, "backends")) if (count <= MOST) columns[count++] =
        text_of(run, "backend");
    figure_begin(&figure, columns, count);
    cJSON_ArrayForEach(entry, results)
    {
        if (!is_alike(entry, mode_of(first), kind_of_shape(first)) || figure_is_full(&figure))
            continue;
        figure_number(&figure, page_number(entry, "seen_keys"));
        for (size_t c = 1; c < count; c++)
            figure_number(&figure, median_of(entry, columns[c]));
        figure_end_row(&figure);
    }
    snprintf(script, sizeof script,
             "set logscale xy\nset xlabel 'keys of all sequences'\nset ylabel 'us'\n"
             "plot for [i=2:%zu] $d using 1:i with points ps 1.2",
             count);
    bool is_softmax = strcmp(kind_of_shape(first), "softmax") == 0;
    snprintf(title, sizeof title, "Time by the number of keys, %s%.32s", is_softmax ? "" : "mla ",
             mode_of(first));
    page_figure(page, &figure, title, "Medians; each point is a shape.", script);
}

static void sweep(struct page *page, const cJSON *results, const char *mode, const char *kind)
{
    const cJSON *entry, *first = NULL;
    int shapes = 0;
    cJSON_ArrayForEach(entry, results) if (is_alike(entry, mode, kind))
    {
        first = first ? first : entry;
        shapes++;
    }
    if (shapes > 1)
        add_sweep(page, results, first);
}

/* A kind and mode that has several shapes is a sweep; recurrences have no keys. */
static void sweeps(struct page *page, const cJSON *results)
{
    static const char *const modes[] = {"decode", "extend", "mixed"};
    static const char *const kinds[] = {"softmax", "mla"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
            sweep(page, results, modes[m], kinds[k]);
}

void page_bench(struct page *page, const cJSON *report)
{
    const cJSON *results = page_get(report, "results");
    shares(page, results);
    roofline(page, report);
    sweeps(page, results);
}
