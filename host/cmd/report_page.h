/* SPDX-License-Identifier: Apache-2.0
 *
 * report_page.h: a page of figures: each a table, and its drawing by gnuplot from the same numbers.
 */
#ifndef HOST_CMD_REPORT_PAGE_H
#define HOST_CMD_REPORT_PAGE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "host/base/text.h"

/* Colours, of the page and of drawings by themselves. */
#define PAGE_LIGHT "--paper:#fff;--ink:#1b1f24;"
#define PAGE_DARK  "--paper:#15181c;--ink:#dfe3e8;"
#define PAGE_INK                                                                                   \
    "svg [stroke=\"black\"]{stroke:currentColor}svg [fill=\"black\"]{fill:currentColor}\n"         \
    "svg [color=\"black\"]{color:inherit}svg [font-family]{font-family:sans-serif}\n"

struct page {
    strbuf html;
    unsigned int num_figures;
    const char *svg_folder; /* NULL = drawings are in the page alone */
    char why[512];          /* it cannot be drawn; "" = so far it could */
    bool is_refused;        /* because the name of a file is taken */
};

/* Rows of a figure: more than any run or bench has. A page of a file that claims more stays small.
 */
enum { FIGURE_ROWS = 4096 };

/* A figure in the making: columns, then rows. */
struct figure {
    strbuf plot; /* the data, as gnuplot takes them */
    strbuf rows; /* the same, of the table */
    bool in_row;
    int num_rows; /* ended, the columns among them */
};

void figure_begin(struct figure *figure, const char *const *columns, size_t count);
void figure_number(struct figure *figure, double value); /* NaN: there is none */
void figure_text(struct figure *figure, const char *text);
void figure_end_row(struct figure *figure);

/* Is there no room for another row? To be asked before each. */
bool figure_is_full(const struct figure *figure);

/* Draw it, unless it has no row: `script` are gnuplot's commands, in which $d is the data; and
 * release it. `title`: words without what means something in HTML. */
void page_figure(struct page *page, struct figure *figure, const char *title, const char *note,
                 const char *script);

/* Text in HTML. */
void page_text(strbuf *html, const char *text);

/* report_run.c, report_bench.c: all figures of a report. */
void page_run(struct page *page, const cJSON *report);
void page_bench(struct page *page, const cJSON *report);

/* A number, or NaN. `path`: "kv.peak" */
double page_number(const cJSON *object, const char *path);
const cJSON *page_get(const cJSON *object, const char *path);

#endif /* HOST_CMD_REPORT_PAGE_H */
