/* SPDX-License-Identifier: Apache-2.0
 *
 * table.h: an ordered table that says which child serves what.
 *
 *   row   conditions, all of which have to hold, and a child; the first row that matches serves
 *         layers=0-3,8   layer ids                     kind=softmax,mla,linear,sparse
 *         phase=prefill,decode,verify,draft            batch=1-8   sequences, padding included
 *         kv=0-4096      keys of the longest sequence  a range may be open: 9-
 *   last  the default row, which has no conditions: so there is no gap
 *
 * What is known of a batch on the host decides: its mode, num_seqs and max_kv_len. A row that can
 * never match, because the rows before it cover it, is an error.
 */
#ifndef HYBRID_ROUTE_TABLE_H
#define HYBRID_ROUTE_TABLE_H

#include "attn_plugin.h"
#include "plugins/hybrid/core/pick.h"

enum { ROUTE_MAX_ROWS = PICK_MAX_CHILDREN, ROUTE_MAX_RANGES = 16 };

/* Both ends belong to it. */
typedef struct route_range {
    int32_t first, last;
} route_range;

typedef struct route_row {
    const char *text;  /* conditions as given, "" for the default; valid while the options are */
    const char *place; /* "file:line" */
    uint32_t child;    /* index into the children */
    uint32_t kinds;    /* 1 << ATTN_KIND_* */
    uint32_t phases;   /* 1 << PICK_* */
    route_range batch, kv;
    uint32_t num_layers; /* ranges; 0 = all layers */
    route_range layers[ROUTE_MAX_RANGES];
} route_row;

typedef struct route_table {
    uint32_t num_rows; /* >= 1, the default included */
    uint32_t num_children;
    const char *children[ROUTE_MAX_ROWS]; /* each name once; valid while the options are */
    route_row rows[ROUTE_MAX_ROWS];
} route_table;

/* Rows that a layer can meet: bit r. */
typedef uint32_t route_mask;

enum { ROUTE_NUM_OPTIONS = 3 };
extern const attn_option route_option_list[ROUTE_NUM_OPTIONS];

/* Read and check the options. CONFIG_ERROR with the place, the number (from 1) and the text of the
 * row that is malformed or can never match. */
attn_status route_table_read(const attn_options *options, route_table *table, attn_error *error);

/* "row 2 'phase=decode -> fast'" into `text`, cut to `size`. */
void route_row_text(const route_table *table, uint32_t row, char *text, size_t size);

/* The rows whose conditions on layer and kind hold. A kind that is not known holds everywhere, so
 * that all children refuse it. */
route_mask route_rows_of_layer(const route_table *table, uint32_t kind, int32_t layer_id);

/* The child that serves a batch of these layers. */
uint32_t route_choose(const route_table *table, route_mask rows, uint32_t phase, int32_t num_seqs,
                      int32_t max_kv_len);

/* The work routed to `child` from batches of these layers in `phase` of at most `max_seqs`
 * sequences and `max_kv_len` keys (INT32_MAX = no limit known). */
pick_reach route_reach(const route_table *table, route_mask rows, uint32_t phase, int32_t max_seqs,
                       int32_t max_kv_len, uint32_t child);

#endif /* HYBRID_ROUTE_TABLE_H */
