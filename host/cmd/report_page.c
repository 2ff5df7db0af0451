/* SPDX-License-Identifier: Apache-2.0
 *
 * report_page.c: writing of the page: tables, and gnuplot's drawings.
 */
#include "host/cmd/report_page.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/output.h"

/* ---- JSON ------------------------------------------------------------------------------------ */

const cJSON *page_get(const cJSON *object, const char *path)
{
    char key[64];
    while (object && *path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = cJSON_GetObjectItemCaseSensitive(object, key);
        path += length + (path[length] == '.');
    }
    return object;
}

double page_number(const cJSON *object, const char *path)
{
    const cJSON *item = page_get(object, path);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* ---- Figures --------------------------------------------------------------------------------- */

void page_text(strbuf *html, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<':
            strbuf_append(html, "&lt;");
            break;
        case '>':
            strbuf_append(html, "&gt;");
            break;
        case '&':
            strbuf_append(html, "&amp;");
            break;
        case '"':
            strbuf_append(html, "&quot;");
            break;
        default:
            if ((unsigned char)*text >= 32)
                strbuf_append_bytes(html, text, 1);
        }
}

/* Leave out characters that gnuplot interprets, or that end a cell. */
static void put_quoted(strbuf *plot, const char *text)
{
    strbuf_append(plot, "\"");
    for (; *text; text++)
        if ((unsigned char)*text >= 32 && !strchr("\"\\`$@", *text))
            strbuf_append_bytes(plot, text, 1);
    strbuf_append(plot, "\"");
}

static void begin_cell(struct figure *figure)
{
    strbuf_append(&figure->rows, figure->in_row ? "" : "<tr>");
    strbuf_append(&figure->plot, figure->in_row ? "\t" : "");
    figure->in_row = true;
}

void figure_begin(struct figure *figure, const char *const *columns, size_t count)
{
    *figure = (struct figure){.in_row = false};
    strbuf_init(&figure->plot);
    strbuf_init(&figure->rows);
    for (size_t c = 0; c < count; c++) {
        begin_cell(figure);
        put_quoted(&figure->plot, columns[c]);
        strbuf_append(&figure->rows, "<th>");
        page_text(&figure->rows, columns[c]);
        strbuf_append(&figure->rows, "</th>");
    }
    figure_end_row(figure);
}

void figure_number(struct figure *figure, double value)
{
    begin_cell(figure);
    strbuf_appendf(&figure->plot, isfinite(value) ? "%.15g" : "?", value);
    strbuf_appendf(&figure->rows, isfinite(value) ? "<td>%.15g</td>" : "<td></td>", value);
}

void figure_text(struct figure *figure, const char *text)
{
    begin_cell(figure);
    put_quoted(&figure->plot, text);
    strbuf_append(&figure->rows, "<td>");
    page_text(&figure->rows, text);
    strbuf_append(&figure->rows, "</td>");
}

void figure_end_row(struct figure *figure)
{
    strbuf_append(&figure->plot, "\n");
    strbuf_append(&figure->rows, "</tr>\n");
    figure->in_row = false;
    figure->num_rows++;
}

bool figure_is_full(const struct figure *figure)
{
    return figure->num_rows > FIGURE_ROWS;
}

/* ---- gnuplot --------------------------------------------------------------------------------- */

static const char frame[] =
    "set terminal svg size 760,340 dynamic name 'f%u' font 'sans-serif,13' noenhanced\n"
    "set datafile separator tab\nset datafile missing '?'\nset key autotitle columnhead outside\n"
    "set grid\nset border 3\nset tics nomirror\nset style fill solid 0.8\nset boxwidth 0.8\n"
    "set linetype 1 lc rgb '#3b82c4' lw 2 pt 7\nset linetype 2 lc rgb '#d9772b' lw 2 pt 5\n"
    "set linetype 3 lc rgb '#3f9c6b' lw 2 pt 9\nset linetype 4 lc rgb '#b45cb0' lw 2 pt 13\n"
    "set linetype 5 lc rgb '#c2a526' lw 2 pt 11\nset linetype cycle 5\n";

/* The SVG from its tag on, with ids of its own: a page has many. */
static void take_svg(strbuf *svg, const strbuf *drawn, unsigned int number)
{
    const char *text = strstr(strbuf_text(drawn), "<svg");
    for (const char *next; text && (next = strstr(text, "gpPt")); text = next + 4) {
        strbuf_append_bytes(svg, text, (size_t)(next - text));
        strbuf_appendf(svg, "f%u-pt", number);
    }
    strbuf_append(svg, text ? text : "");
}

/* What it prints for a script in a file; false if that is no SVG. */
static bool run_gnuplot(const char *file, strbuf *drawn)
{
    char command[128], bytes[4096];
    size_t count;
    snprintf(command, sizeof command, "gnuplot %s 2>/dev/null", file);
    FILE *pipe = popen(command, "r");
    while (pipe && (count = fread(bytes, 1, sizeof bytes, pipe)) > 0)
        strbuf_append_bytes(drawn, bytes, count);
    return pipe && pclose(pipe) == 0 && strstr(strbuf_text(drawn), "</svg>");
}

static bool draw(unsigned int number, const struct figure *figure, const char *script, strbuf *svg)
{
    char file[] = "/tmp/attnhost-report-XXXXXX";
    int descriptor = mkstemp(file);
    FILE *stream = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!stream)
        return false;
    fprintf(stream, frame, number);
    fprintf(stream, "$d << END_OF_DATA\n%sEND_OF_DATA\n%s\n", strbuf_text(&figure->plot), script);
    strbuf drawn;
    strbuf_init(&drawn);
    bool good = fclose(stream) == 0 && run_gnuplot(file, &drawn);
    unlink(file);
    take_svg(svg, &drawn, number);
    strbuf_finish(&drawn);
    return good;
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* "FOLDER/01-time-to-first-token.svg" */
static void svg_path(const struct page *page, const char *title, char *path, size_t size)
{
    int length = snprintf(path, size, "%s/%02u-", page->svg_folder, page->num_figures);
    size_t at = length < 0 ? 0 : (size_t)length;
    for (; *title && at + sizeof ".svg" < size; title++) {
        char c = (char)tolower((unsigned char)*title);
        bool word = isalnum((unsigned char)c);
        if (word || path[at - 1] != '-')
            path[at++] = word ? c : '-';
    }
    snprintf(path + at, size - at, ".svg");
}

/* A drawing in a file of its own has its title, and a style with the page's colours, light and
 * dark. */
static void write_svg(struct page *page, const char *title, const strbuf *svg)
{
    static const char style[] =
        "<style>\nsvg{" PAGE_LIGHT
        "color-scheme:light dark;background:var(--paper);color:var(--ink)}\n"
        "@media (prefers-color-scheme:dark){svg{" PAGE_DARK "}}\n" PAGE_INK "</style>\n";
    char path[4096], why[160];
    const char *tag = strbuf_text(svg);
    size_t length = strcspn(tag, ">") + 1;
    svg_path(page, title, path, sizeof path);
    struct output output;
    if (!output_prepare(&output, path, why)) {
        snprintf(page->why, sizeof page->why, "--svg: %.300s: %s", path, why);
        page->is_refused = true;
        return;
    }
    FILE *file = output_open(&output);
    if (file)
        fprintf(file, "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n%.*s\n<title>%s</title>\n%s%s",
                (int)length, tag, title, style, tag + length);
    if (!file || output_close(&output, true) != 0)
        snprintf(page->why, sizeof page->why, "--svg: %.300s cannot be written", path);
}

/* ---- Both ------------------------------------------------------------------------------------ */

static void add_figure(struct page *page, const struct figure *figure, const char *title,
                       const char *note, const char *script)
{
    strbuf svg;
    strbuf_init(&svg);
    unsigned int number = ++page->num_figures;
    if (!draw(number, figure, script, &svg))
        snprintf(page->why, sizeof page->why, "gnuplot could not draw \"%.80s\"", title);
    else if (page->svg_folder && !page->why[0])
        write_svg(page, title, &svg);
    strbuf_appendf(&page->html, "<figure id=\"figure-%u\">\n<figcaption>", number);
    page_text(&page->html, title);
    strbuf_append(&page->html, "</figcaption>\n");
    strbuf_append(&page->html, strbuf_text(&svg));
    strbuf_append(&page->html, "<p>");
    page_text(&page->html, note);
    if (figure_is_full(figure))
        strbuf_appendf(&page->html, " No more than %d rows are shown.", FIGURE_ROWS);
    strbuf_appendf(&page->html,
                   "</p>\n<details><summary>numbers</summary><table>\n%s</table></details>\n"
                   "</figure>\n",
                   strbuf_text(&figure->rows));
    strbuf_finish(&svg);
}

void page_figure(struct page *page, struct figure *figure, const char *title, const char *note,
                 const char *script)
{
    if (figure->num_rows > 1) /* the columns are one */
        add_figure(page, figure, title, note, script);
    strbuf_finish(&figure->plot);
    strbuf_finish(&figure->rows);
}
