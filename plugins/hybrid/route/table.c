/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c: reading the table, and what can be found out about it without a batch.
 *
 * Whether earlier rows cover a row is decided exactly, by boxes: what a row leaves of a box is cut
 * into at most two boxes for each range and one for each set, and each is carried on to the next
 * row. Tables are small.
 */
#include "table.h"

#include "attn_plugin_util.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[ATTN_KIND_COUNT] = {
    [ATTN_KIND_SOFTMAX] = "softmax",
    [ATTN_KIND_MLA] = "mla",
    [ATTN_KIND_LINEAR] = "linear",
    [ATTN_KIND_SPARSE] = "sparse",
};
static const char *const phase_names[PICK_PHASES] = {
    [PICK_PREFILL] = "prefill",
    [PICK_DECODE] = "decode",
    [PICK_VERIFY] = "verify",
    [PICK_DRAFT] = "draft",
};

static const route_range everything = {0, INT32_MAX};

/* ---- Options --------------------------------------------------------------------------------- */

const attn_option route_option_list[ROUTE_NUM_OPTIONS] = {
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_STRING,
     .flags = ATTN_OPTION_REPEATED,
     .key = "when",
     .min = 1,
     .doc = "conditions of a row: layers=0-3 kind=softmax phase=decode batch=1-8 kv=0-4096"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BACKEND_REF,
     .flags = ATTN_OPTION_REPEATED,
     .key = "then",
     .min = 1,
     .doc = "backend of the row: the n-th one belongs to the n-th `when`"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BACKEND_REF,
     .flags = ATTN_OPTION_REQUIRED,
     .key = "otherwise",
     .min = 1,
     .doc = "backend of everything that no row matches"},
};

/* ---- A row ----------------------------------------------------------------------------------- */

/* The next number of decimal digits, which int32_t holds; NULL = there is none. */
static const char *read_number(const char *text, int32_t *number)
{
    int64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        value = value * 10 + (*at - '0');
        if (value > INT32_MAX)
            return NULL;
    }
    *number = (int32_t)value;
    return at > text ? at : NULL;
}

/* "3", "0-3" or "4-". Returns what follows, or NULL. */
static const char *read_range(const char *text, route_range *range)
{
    const char *at = read_number(text, &range->first);
    range->last = range->first;
    if (!at || *at != '-')
        return at;
    at++;
    if (*at < '0' || *at > '9') {
        range->last = INT32_MAX;
        return at;
    }
    at = read_number(at, &range->last);
    return at && range->first <= range->last ? at : NULL;
}

/* A comma-separated list of layers. */
static int read_layers(const char *text, route_row *row)
{
    const char *at = text;
    do {
        if (row->num_layers == ROUTE_MAX_RANGES)
            return 0;
        at = read_range(at + (at != text), &row->layers[row->num_layers++]);
    } while (at && *at == ',');
    return at && !*at;
}

/* A comma-separated list of names as a set of their indices; 0 = not one. */
static uint32_t read_names(const char *text, const char *const *names, uint32_t count)
{
    uint32_t set = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        uint32_t n = 0;
        while (n < count && (strlen(names[n]) != length || strncmp(names[n], text, length) != 0))
            n++;
        if (n == count)
            return 0;
        set |= 1u << n;
        if (!text[length])
            return set;
        text += length + 1;
    }
}

static int read_one_range(const char *text, route_range *range)
{
    const char *at = read_range(text, range);
    return at && !*at;
}

enum { SEEN_LAYERS = 1, SEEN_KIND = 2, SEEN_PHASE = 4, SEEN_BATCH = 8, SEEN_KV = 16 };

/* One condition; NULL, or what is wrong with it. */
static const char *read_condition(const char *key, const char *value, uint32_t *seen,
                                  route_row *row)
{
    uint32_t bit = 0;
    int good = 0;
    if (strcmp(key, "layers") == 0) {
        bit = SEEN_LAYERS;
        good = *seen & bit || read_layers(value, row);
    } else if (strcmp(key, "kind") == 0) {
        bit = SEEN_KIND;
        good = (row->kinds = read_names(value, kind_names, ATTN_KIND_COUNT)) != 0;
    } else if (strcmp(key, "phase") == 0) {
        bit = SEEN_PHASE;
        good = (row->phases = read_names(value, phase_names, PICK_PHASES)) != 0;
    } else if (strcmp(key, "batch") == 0) {
        bit = SEEN_BATCH;
        good = read_one_range(value, &row->batch) && row->batch.last >= 1;
    } else if (strcmp(key, "kv") == 0) {
        bit = SEEN_KV;
        good = read_one_range(value, &row->kv);
    } else {
        return "is not a condition; accepted: layers, kind, phase, batch, kv";
    }
    if (*seen & bit)
        return "is given twice; accepted: once";
    *seen |= bit;
    if (good)
        return NULL;
    return bit == SEEN_LAYERS  ? "is not a list of at most 16 ranges; accepted: such as 0-3,8"
           : bit == SEEN_KIND  ? "is not a list of kinds; accepted: softmax, mla, linear, sparse"
           : bit == SEEN_PHASE ? "is not a list of phases; accepted: prefill, decode, verify, draft"
           : bit == SEEN_BATCH ? "is not a range of sequences; accepted: such as 1-8 or 9-"
                               : "is not a range of keys; accepted: such as 0-4096 or 4097-";
}

static void match_everything(route_row *row)
{
    row->kinds = (1u << ATTN_KIND_COUNT) - 1;
    row->phases = (1u << PICK_PHASES) - 1;
    row->batch = row->kv = everything;
}

void route_row_text(const route_table *table, uint32_t row, char *text, size_t size)
{
    const route_row *r = &table->rows[row];
    if (row + 1 == table->num_rows)
        snprintf(text, size, "the default '%s'", table->children[r->child]);
    else
        snprintf(text, size, "row %u '%s -> %s'", row + 1, r->text, table->children[r->child]);
}

static attn_status read_row(route_table *table, uint32_t index, attn_error *error)
{
    route_row *row = &table->rows[index];
    char word[160];
    uint32_t seen = 0;
    match_everything(row);
    for (const char *at = row->text;;) {
        at += strspn(at, " \t");
        size_t length = strcspn(at, " \t");
        if (length == 0)
            break;
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        char *equals = strchr(word, '=');
        const char *wrong = "is not a condition; accepted: KEY=VALUE";
        if (equals && length < sizeof word) {
            *equals = '\0';
            wrong = read_condition(word, equals + 1, &seen, row);
            *equals = '=';
        }
        if (wrong)
            return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                        "%s: row %u '%s -> %s': '%s' %s", row->place, index + 1,
                                        row->text, table->children[row->child], word, wrong);
        at += length;
    }
    if (seen == 0)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "%s: row %u '-> %s' has no condition; accepted: at least one "
                                    "(`otherwise` names the backend of all else)",
                                    row->place, index + 1, table->children[row->child]);
    return ATTN_OK;
}

/* ---- What rows cover ------------------------------------------------------------------------- */

typedef struct route_box {
    int any_layer; /* the mask of rows says whether a layer is theirs; kinds and layers say nothing
                    */
    uint32_t kinds, phases;
    route_range layers, batch, kv;
} route_box;

static int covered(const route_table *table, uint32_t row, uint32_t range, uint32_t end,
                   route_mask rows, const route_box *box);

static int overlap(route_range a, route_range b)
{
    return a.first <= b.last && b.first <= a.last;
}

/* Is what lies on either side of `cut` covered by what follows? The box keeps the middle. */
static int sides_covered(const route_table *table, uint32_t row, uint32_t range, uint32_t end,
                         route_mask rows, route_box *box, route_range *side, route_range cut)
{
    route_range whole = *side;
    if (whole.first < cut.first) {
        *side = (route_range){whole.first, cut.first - 1};
        if (!covered(table, row, range, end, rows, box))
            return 0;
        whole.first = cut.first;
    }
    if (whole.last > cut.last) {
        *side = (route_range){cut.last + 1, whole.last};
        if (!covered(table, row, range, end, rows, box))
            return 0;
        whole.last = cut.last;
    }
    *side = whole;
    return 1;
}

/* The same for a set. */
static int rest_covered(const route_table *table, uint32_t row, uint32_t range, uint32_t end,
                        route_mask rows, route_box *box, uint32_t *set, uint32_t cut)
{
    uint32_t inside = *set & cut;
    *set &= ~cut;
    if (*set && !covered(table, row, range, end, rows, box))
        return 0;
    *set = inside;
    return 1;
}

/* Is each point of the box matched by one of the rows `row` (from its range of layers `range` on)
 * to end - 1 that are in `rows`? */
static int covered(const route_table *table, uint32_t row, uint32_t range, uint32_t end,
                   route_mask rows, const route_box *box)
{
    for (; row < end; row++, range = 0) {
        const route_row *r = &table->rows[row];
        int all = box->any_layer || r->num_layers == 0;
        uint32_t ranges = all ? 1 : r->num_layers, kinds = box->any_layer ? ~0u : r->kinds;
        if (!(rows >> row & 1u) || !(kinds & box->kinds) || !(r->phases & box->phases) ||
            !overlap(r->batch, box->batch) || !overlap(r->kv, box->kv))
            continue;
        for (; range < ranges; range++) {
            route_range layers = all ? everything : r->layers[range];
            route_box rest = *box;
            if (!overlap(layers, box->layers))
                continue;
            range++; /* later ranges cover the rest */
            return rest_covered(table, row, range, end, rows, &rest, &rest.kinds, kinds) &&
                   rest_covered(table, row, range, end, rows, &rest, &rest.phases, r->phases) &&
                   sides_covered(table, row, range, end, rows, &rest, &rest.batch, r->batch) &&
                   sides_covered(table, row, range, end, rows, &rest, &rest.kv, r->kv) &&
                   sides_covered(table, row, range, end, rows, &rest, &rest.layers, layers);
        }
    }
    return 0;
}

static route_box box_of(const route_row *row, uint32_t range)
{
    return (route_box){.kinds = row->kinds,
                       .phases = row->phases,
                       .layers = row->num_layers ? row->layers[range] : everything,
                       .batch = row->batch,
                       .kv = row->kv};
}

/* Can a row match anything that the rows before it leave? */
static int can_match(const route_table *table, uint32_t row)
{
    const route_row *r = &table->rows[row];
    uint32_t ranges = r->num_layers ? r->num_layers : 1;
    for (uint32_t i = 0; i < ranges; i++) {
        route_box box = box_of(r, i);
        if (!covered(table, 0, 0, row, ~0u, &box))
            return 1;
    }
    return 0;
}

/* The row before `row` that covers all of it by itself; `row` = several do it together. */
static uint32_t find_shadow(const route_table *table, uint32_t row)
{
    const route_row *r = &table->rows[row];
    uint32_t ranges = r->num_layers ? r->num_layers : 1;
    for (uint32_t before = 0; before < row; before++) {
        int all = 1;
        for (uint32_t i = 0; i < ranges && all; i++) {
            route_box box = box_of(r, i);
            all = covered(table, before, 0, before + 1, 1u << before, &box);
        }
        if (all)
            return before;
    }
    return row;
}

static attn_status check_rows(const route_table *table, attn_error *error)
{
    for (uint32_t r = 1; r + 1 < table->num_rows; r++) {
        char text[192], other[192] = "the rows before it together";
        if (can_match(table, r))
            continue;
        uint32_t shadow = find_shadow(table, r);
        route_row_text(table, r, text, sizeof text);
        if (shadow < r)
            route_row_text(table, shadow, other, sizeof other);
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "%s: %s can never match: %s%s%s%s match first; accepted: "
                                    "another order or other conditions",
                                    table->rows[r].place, text, other, shadow < r ? " (" : "",
                                    shadow < r ? table->rows[shadow].place : "",
                                    shadow < r ? ")" : "");
    }
    return ATTN_OK;
}

/* ---- The table ------------------------------------------------------------------------------- */

static uint32_t add_child(route_table *table, const char *name)
{
    uint32_t c = 0;
    while (c < table->num_children && strcmp(table->children[c], name) != 0)
        c++;
    if (c == table->num_children)
        table->children[table->num_children++] = name;
    return c;
}

/* Collect the values into rows; the default is the last one. */
static attn_status collect(const attn_options *options, route_table *table, attn_error *error)
{
    uint32_t whens = 0, thens = 0;
    const attn_option_value *otherwise = NULL;
    for (uint32_t v = 0; options && v < options->num_values; v++) {
        const attn_option_value *value = attn_at(options->values, v);
        int is_when = strcmp(value->key, "when") == 0, is_then = strcmp(value->key, "then") == 0;
        if (strcmp(value->key, "otherwise") == 0)
            otherwise = value;
        if ((is_when ? whens : thens) == ROUTE_MAX_ROWS - 1 && (is_when || is_then))
            return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                        "%s: %s: more than %d rows; accepted: at most %d",
                                        value->place, value->key, ROUTE_MAX_ROWS - 1,
                                        ROUTE_MAX_ROWS - 1);
        if (is_when) {
            table->rows[whens].text = value->text + strspn(value->text, " \t");
            table->rows[whens++].place = value->place;
        } else if (is_then) {
            table->rows[thens++].child = add_child(table, value->text);
        }
    }
    if (!otherwise)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "option otherwise is required: the name of a backend");
    if (whens != thens)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "%s: %u times `when` and %u times `then`; accepted: as many of "
                                    "one as of the other",
                                    whens ? table->rows[0].place : otherwise->place, whens, thens);
    route_row *last = &table->rows[whens];
    last->text = "";
    last->place = otherwise->place;
    last->child = add_child(table, otherwise->text);
    match_everything(last);
    table->num_rows = whens + 1;
    return ATTN_OK;
}

attn_status route_table_read(const attn_options *options, route_table *table, attn_error *error)
{
    memset(table, 0, sizeof *table);
    attn_status status = collect(options, table, error);
    for (uint32_t r = 0; status == ATTN_OK && r + 1 < table->num_rows; r++)
        status = read_row(table, r, error);
    return status == ATTN_OK ? check_rows(table, error) : status;
}

/* ---- Use ------------------------------------------------------------------------------------- */

static int has_layer(const route_row *row, int32_t layer_id)
{
    int found = row->num_layers == 0;
    for (uint32_t i = 0; i < row->num_layers && !found; i++)
        found = row->layers[i].first <= layer_id && layer_id <= row->layers[i].last;
    return found;
}

route_mask route_rows_of_layer(const route_table *table, uint32_t kind, int32_t layer_id)
{
    route_mask rows = 1u << (table->num_rows - 1);
    for (uint32_t r = 0; r + 1 < table->num_rows; r++)
        if ((kind >= ATTN_KIND_COUNT || table->rows[r].kinds >> kind & 1u) &&
            has_layer(&table->rows[r], layer_id))
            rows |= 1u << r;
    return rows;
}

static int holds(route_range range, int32_t value)
{
    return range.first <= value && value <= range.last;
}

uint32_t route_choose(const route_table *table, route_mask rows, uint32_t phase, int32_t num_seqs,
                      int32_t max_kv_len)
{
    uint32_t r = 0;
    for (; r + 1 < table->num_rows; r++) {
        const route_row *row = &table->rows[r];
        if (rows >> r & 1u && row->phases >> phase & 1u && holds(row->batch, num_seqs) &&
            holds(row->kv, max_kv_len))
            break;
    }
    return table->rows[r].child;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Cut off the upper end of `side`, a range of `box`, as far as the rows before `row` cover it. */
static void trim(const route_table *table, uint32_t row, route_mask rows, route_box *box,
                 route_range *side, size_t member)
{
    for (int trimmed = 1; trimmed;) {
        trimmed = 0;
        for (uint32_t before = 0; before < row && !trimmed; before++) {
            const route_range *range = (const void *)((const char *)&table->rows[before] + member);
            route_range whole = *side;
            if (range->first <= whole.first || !holds(*range, whole.last))
                continue;
            side->first = range->first;
            trimmed = covered(table, 0, 0, row, rows, box);
            side->first = whole.first;
            if (trimmed)
                side->last = range->first - 1;
        }
    }
}

pick_reach route_reach(const route_table *table, route_mask rows, uint32_t phase, int32_t max_seqs,
                       int32_t max_kv_len, uint32_t child)
{
    pick_reach part = {0, 0};
    for (uint32_t r = 0; r < table->num_rows; r++) {
        const route_row *row = &table->rows[r];
        route_box box = {.any_layer = 1, .kinds = ~0u, .phases = 1u << phase, .layers = everything};
        box.batch = (route_range){most(row->batch.first, 1), least(row->batch.last, max_seqs)};
        box.kv = (route_range){row->kv.first, least(row->kv.last, max_kv_len)};
        if (row->child != child || !(rows >> r & 1u) || !(row->phases & box.phases) ||
            box.batch.first > box.batch.last || box.kv.first > box.kv.last ||
            covered(table, 0, 0, r, rows, &box))
            continue;
        trim(table, r, rows, &box, &box.batch, offsetof(route_row, batch));
        trim(table, r, rows, &box, &box.kv, offsetof(route_row, kv));
        part.max_seqs = most(part.max_seqs, box.batch.last);
        part.max_kv_len = most(part.max_kv_len, box.kv.last);
    }
    return part;
}
