/* SPDX-License-Identifier: Apache-2.0
 *
 * report_page.h: a page of figures: each a table, and its drawing by gnuplot from the same numbers.
 */
#ifndef HOST_CMD_REPORT_PAGE_H
#define HOST_CMD_REPORT_PAGE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "host/base/text.h"

struct page {
    strbuf html;
    unsigned int num_figures;
    const char *why; /* it cannot be drawn; NULL = so far it could */
};

/* A figure in the making: columns, then rows. */
struct figure {
    strbuf plot; /* the data, as gnuplot takes them */
    strbuf rows; /* the same, of the table */
    bool in_row;
};

void figure_begin(struct figure *figure, const char *const *columns, size_t count);
void figure_number(struct figure *figure, double value); /* NaN: there is none */
void figure_text(struct figure *figure, const char *text);
void figure_end_row(struct figure *figure);

/* Draw it: `script` are gnuplot's commands, in which $d is the data; and release it. */
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
