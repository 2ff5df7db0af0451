/* SPDX-License-Identifier: Apache-2.0
 *
 * check_route: the composite `route` between a mock host and mock children (hybrid_mock.h): how its
 * table is read and what is found wrong with it, compared with a plain search through all batches;
 * bounds, refusals, and what remains allocated when something fails. What else its children are asked
 * and given is judged by stand_ins.sh.
 */
#include "plugins/hybrid/route/table.h"
#include "plugins/hybrid/tests/hybrid_fixture.h"

#include <stdio.h>
#include <string.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

enum { MAX_VALUES = 80 };

static attn_option_value route_values[MAX_VALUES];
static attn_options route_options;

static void add_value(uint32_t type, const char *key, const char *text, const char *place)
{
    uint32_t v = route_options.num_values++;
    ck_assert_uint_lt(v, MAX_VALUES);
    route_values[v] = (attn_option_value){.struct_size = sizeof route_values[v],
                                          .type = type,
                                          .key = key,
                                          .text = text,
                                          .place = place};
}

static void no_rows(void)
{
    route_options = (attn_options){sizeof route_options, 0, route_values};
}

static const char *const places[] = {"t.ini:1", "t.ini:2", "t.ini:3", "t.ini:4", "t.ini:5"};

/* A row; both options are in order, as the host gives them. */
static void row(const char *when, const char *then)
{
    uint32_t index = route_options.num_values / 2;
    const char *place = index < 5 ? places[index] : "t.ini:6";
    add_value(ATTN_OPTION_STRING, "when", when, place);
    add_value(ATTN_OPTION_BACKEND_REF, "then", then, place);
}

static void otherwise(const char *name)
{
    add_value(ATTN_OPTION_BACKEND_REF, "otherwise", name, "t.ini:9");
}

static route_table table;

static attn_status read_table(void)
{
    memset(message, 0, sizeof message);
    error =
        (attn_error){.struct_size = sizeof error, .capacity = sizeof message, .message = message};
    return route_table_read(&route_options, &table, &error);
}

static void assert_says(const char *word)
{
    ck_assert_msg(strstr(message, word), "'%s' is not in: %s", word, message);
}

TEST_OF(table, a_row_is_read)
{
    no_rows();
    row("layers=0-3,8,10-  kind=softmax,sparse\tphase=decode,draft batch=2-8 kv=-", "a");
    ck_assert_int_eq(read_table(), ATTN_CONFIG_ERROR); /* kv=- has no number */
    no_rows();
    row("  layers=0-3,8,10-  kind=softmax,sparse\tphase=decode,draft batch=2-8 kv=7 ", "a");
    row("batch=9-", "b");
    otherwise("a");
    ck_assert_msg(read_table() == ATTN_OK, "%s", message);
    const route_row *r = &table.rows[0];
    ck_assert_uint_eq(table.num_rows, 3);
    ck_assert_uint_eq(table.num_children, 2);
    ck_assert_str_eq(table.children[r->child], "a");
    ck_assert_str_eq(table.children[table.rows[1].child], "b");
    ck_assert_uint_eq(table.rows[2].child, r->child);
    ck_assert_uint_eq(r->kinds, 1u << ATTN_KIND_SOFTMAX | 1u << ATTN_KIND_SPARSE);
    ck_assert_uint_eq(r->phases, 1u << PICK_DECODE | 1u << PICK_DRAFT);
    ck_assert_int_eq(r->batch.first, 2);
    ck_assert_int_eq(r->batch.last, 8);
    ck_assert_int_eq(r->kv.first, 7);
    ck_assert_int_eq(r->kv.last, 7);
    ck_assert_uint_eq(r->num_layers, 3);
    ck_assert_int_eq(r->layers[2].first, 10);
    ck_assert_int_eq(r->layers[2].last, INT32_MAX);
    ck_assert_int_eq(table.rows[1].batch.last, INT32_MAX);
    ck_assert_uint_eq(table.rows[1].phases, 15);
}

LOOP_OF(table, a_malformed_row_is_told, 0, 17)
{
    static const struct {
        const char *when, *says;
    } wrong[] = {
        {"phase=decode layer=1", "'layer=1' is not a condition; accepted: layers, kind"},
        {"decode", "'decode' is not a condition; accepted: KEY=VALUE"},
        {"phase=decode,", "'phase=decode,' is not a list of phases; accepted: prefill"},
        {"phase=extend", "not a list of phases"},
        {"kind=dense", "not a list of kinds; accepted: softmax"},
        {"layers=3-1", "not a list of at most 16 ranges"},
        {"layers=1,,2", "not a list of at most 16"},
        {"layers=0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32", "at most 16"},
        {"layers=2147483648", "not a list of"},
        {"batch=0", "not a range of sequences; accepted: such as 1-8 or 9-"},
        {"batch=1-8,10", "not a range of sequences"},
        {"kv=5-4", "not a range of keys"},
        {"kv=", "not a range of keys"},
        {"kv=1 kv=2", "'kv=2' is given twice"},
        {"layers=1 layers=2", "'layers=2' is given twice"},
        {"", "has no condition"},
        {"   ", "has no condition"},
    };
    ck_assert_int_lt(_i, (int)(sizeof wrong / sizeof wrong[0]));
    no_rows();
    row("batch=1", "a");
    row(wrong[_i].when, "b");
    otherwise("c");
    ck_assert_int_eq(read_table(), ATTN_CONFIG_ERROR);
    ck_assert_int_eq((int)error.field, ATTN_FIELD_OPTION);
    assert_says(wrong[_i].says);
    assert_says("t.ini:2: row 2 '");
}

/* Rows that can never match; `by` is the row that is named, 0 = several, -1 = it can match. */
LOOP_OF(table, a_shadowed_row_is_told, 0, 12)
{
    static const struct {
        const char *rows[4];
        int shadowed, by;
    } cases[] = {
        {{"phase=decode", "phase=decode batch=1-8"}, 2, 1},
        {{"batch=1-8", "phase=decode"}, 0, -1},
        {{"kv=0-4096", "kv=4097-", "phase=decode"}, 3, 0},
        {{"kv=0-4096", "kv=4098-", "phase=decode"}, 0, -1}, /* kv = 4097 is left */
        {{"layers=0-3", "layers=4-7", "layers=2-6"}, 3, 0},
        {{"layers=0-3", "layers=5-7", "layers=2-6"}, 0, -1},
        {{"layers=0-3,5-7", "layers=1,6-7 batch=3"}, 2, 1},
        {{"layers=0-3,5-7", "layers=1,4 batch=3"}, 0, -1},
        {{"phase=prefill", "phase=decode,verify,draft kind=softmax,mla",
          "kind=mla,softmax batch=1-"},
         3,
         0},
        {{"phase=prefill", "phase=decode,verify kind=softmax,mla", "kind=mla,softmax batch=1-"},
         0,
         -1},
        {{"batch=1-8 kv=0-100", "batch=5-20 kv=50-200", "batch=6-8 kv=0-200"}, 3, 0},
        {{"batch=1-8 kv=0-100", "batch=5-20 kv=50-200", "batch=4-8 kv=0-200"}, 0, -1},
    };
    char says[64];
    ck_assert_int_lt(_i, (int)(sizeof cases / sizeof cases[0]));
    no_rows();
    for (int r = 0; r < 4 && cases[_i].rows[r]; r++)
        row(cases[_i].rows[r], r % 2 ? "a" : "b");
    otherwise("a");
    attn_status status = read_table();
    ck_assert_msg(status == (cases[_i].shadowed ? ATTN_CONFIG_ERROR : ATTN_OK), "%s", message);
    if (!cases[_i].shadowed)
        return;
    snprintf(says, sizeof says, "%s: row %d '", places[cases[_i].shadowed - 1], cases[_i].shadowed);
    assert_says(says);
    assert_says("can never match");
    if (cases[_i].by > 0)
        snprintf(says, sizeof says, "(%s)", places[cases[_i].by - 1]);
    else
        snprintf(says, sizeof says, "the rows before it together");
    assert_says(says);
}

TEST_OF(table, a_table_has_to_be_whole)
{
    no_rows();
    row("batch=1", "a");
    ck_assert_int_eq(read_table(), ATTN_CONFIG_ERROR);
    assert_says("otherwise is required");
    otherwise("b");
    add_value(ATTN_OPTION_STRING, "when", "batch=2", "t.ini:7");
    ck_assert_int_eq(read_table(), ATTN_CONFIG_ERROR);
    assert_says("2 times `when` and 1 times `then`");
    no_rows();
    for (int r = 0; r < ROUTE_MAX_ROWS; r++)
        row("batch=1", "a");
    otherwise("b");
    ck_assert_int_eq(read_table(), ATTN_CONFIG_ERROR);
    assert_says("more than 31 rows");
}

/* ---- Tables and a plain search --------------------------------------------------------------- */

enum { MAX_SEQS = 6, MAX_KEYS = 7, MAX_LAYER = 3 };

static uint64_t state_of_random;

static uint32_t draw(uint32_t below)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state_of_random >> 33) % below;
}

static char row_texts[5][128];

/* Conditions at random, on few values so that rows meet. */
static void random_row(int r)
{
    static const char *const phases[] = {"prefill", "decode", "verify,draft", "decode,prefill"};
    char *text = row_texts[r];
    uint32_t first = draw(MAX_KEYS), seqs = 1 + draw(MAX_SEQS);
    size_t room = sizeof row_texts[r], length = 0;
    do {
        length = 0, text[0] = '\0';
        if (draw(2))
            length += (size_t)snprintf(text + length, room - length, "phase=%s ", phases[draw(4)]);
        if (draw(2))
            length += (size_t)snprintf(text + length, room - length, "kv=%u-%u ", first,
                                       first + draw(MAX_KEYS));
        if (draw(2))
            length += (size_t)snprintf(text + length, room - length, "batch=%u-%u ", seqs,
                                       seqs + draw(MAX_SEQS));
        if (draw(2))
            length += (size_t)snprintf(text + length, room - length, "layers=%u,%u- ",
                                       draw(MAX_LAYER), draw(MAX_LAYER + 2));
        if (draw(4) == 0)
            length += (size_t)snprintf(text + length, room - length, "kind=softmax");
    } while (length == 0);
    static const char *const names[] = {"a", "b", "c"};
    row(text, names[draw(3)]);
}

/* The rows that some batch within the limits matches, and the work routed to each child. */
static uint32_t search(route_mask rows, uint32_t phase, int32_t seqs, int32_t keys,
                       pick_reach reach[3])
{
    uint32_t met = 0;
    memset(reach, 0, 3 * sizeof *reach);
    for (int32_t s = 1; s <= seqs; s++)
        for (int32_t k = 0; k <= keys; k++) {
            uint32_t c = route_choose(&table, rows, phase, s, k);
            reach[c].max_seqs = s > reach[c].max_seqs ? s : reach[c].max_seqs;
            reach[c].max_kv_len = k > reach[c].max_kv_len ? k : reach[c].max_kv_len;
            for (uint32_t r = 0; r < table.num_rows; r++) {
                const route_row *at = &table.rows[r];
                if (rows >> r & 1u && at->phases >> phase & 1u && at->batch.first <= s &&
                    s <= at->batch.last && at->kv.first <= k && k <= at->kv.last) {
                    met |= 1u << r;
                    break;
                }
            }
        }
    return met;
}

/* A row is refused exactly if no batch, layer, kind and phase matches it, and each child's share is
 * the one that the search finds. Values beyond the limits stand for all larger ones. */
LOOP_OF(table, reach_is_what_a_search_finds, 0, 4)
{
    int refused = 0;
    state_of_random = (uint64_t)_i + 1;
    for (int round = 0; round < 300; round++) {
        uint32_t num_rows = 1 + draw(5), met = 0;
        no_rows();
        for (uint32_t r = 0; r < num_rows; r++)
            random_row((int)r);
        otherwise("a");
        attn_status status = read_table();
        for (int32_t layer = 0; layer <= MAX_LAYER + 3; layer++)
            for (uint32_t kind = 0; kind < 2; kind++)
                for (uint32_t phase = 0; phase < PICK_PHASES; phase++) {
                    pick_reach found[3];
                    route_mask rows = route_rows_of_layer(&table, kind, layer);
                    int32_t seqs = 1 + (int32_t)draw(MAX_SEQS), keys = (int32_t)draw(MAX_KEYS);
                    met |= search(rows, phase, 3 * MAX_SEQS, 3 * MAX_KEYS, found);
                    search(rows, phase, seqs, keys, found);
                    for (uint32_t c = 0; c < table.num_children && status == ATTN_OK; c++) {
                        pick_reach reach = route_reach(&table, rows, phase, seqs, keys, c);
                        ck_assert_int_eq(reach.max_seqs, found[c].max_seqs);
                        ck_assert_int_eq(reach.max_kv_len, found[c].max_kv_len);
                    }
                }
        uint32_t all = (1u << num_rows) - 1;
        ck_assert_msg((met & all) == all ? status == ATTN_OK : status == ATTN_CONFIG_ERROR,
                      "met 0x%x of 0x%x: %s", met, all, message);
        refused += status != ATTN_OK;
    }
    ck_assert_int_gt(refused, 30);
    ck_assert_int_lt(refused, 270);
}

/* ---- The composite --------------------------------------------------------------------------- */

/* Rows follow; nothing else is different from the fixture's start. */
static void start_rows(void)
{
    start();
    composite = &route_type;
    no_rows();
}

static void end_rows(const char *name)
{
    otherwise(name);
    options = route_options;
}

/* Asked are the modes, bounds and layers with which a child can be picked, and no others. */
TEST_OF(query, children_are_asked_what_can_reach_them)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start_rows();
    bounds.modes = BIT(EXTEND) | BIT(DECODE);
    row("phase=decode kv=0-30 batch=1-4 layers=5", "pre");
    row("phase=decode kv=0-20", "pre");
    end_rows("dec");
    ck_assert_msg(query(&verdict) == ATTN_OK, "%s", message);
    ck_assert_uint_eq(verdict.supported, 1);
    ck_assert_int_eq(PRE->queries, 1);
    ck_assert_uint_eq(PRE->bounds.modes, BIT(DECODE));
    ck_assert_int_eq(PRE->bounds.max_kv_len, 30);
    ck_assert_int_eq(PRE->bounds.max_seqs, 6);
    ck_assert_int_eq(PRE->bounds.max_q_len, 1);
    ck_assert_int_eq(PRE->bounds.max_tokens, 6);
    ck_assert_int_eq(DEC->queries, 1);
    ck_assert_uint_eq(DEC->bounds.modes, BIT(EXTEND) | BIT(DECODE));
    ck_assert_int_eq(DEC->bounds.max_kv_len, 100);
    ck_assert_int_eq(DEC->bounds.max_q_len, 20);
    bounds.max_kv_len = 20; /* now the rows before the default take all decodes */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(DEC->bounds.modes, BIT(EXTEND));
    bounds.max_kv_len = bounds.max_seqs = 0; /* not known yet */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(PRE->bounds.max_kv_len, 0);
    ck_assert_uint_eq(DEC->bounds.modes, BIT(EXTEND) | BIT(DECODE));
}

TEST_OF(query, a_refusal_has_the_childs_name)
{
    attn_reason reasons[2] = {{.struct_size = sizeof *reasons}, {.struct_size = sizeof *reasons}};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 2, .reasons = reasons};
    start_rows();
    bounds.modes = BIT(EXTEND) | BIT(DECODE);
    row("phase=decode", "pre");
    end_rows("dec");
    PRE->refused_modes = BIT(EXTEND); /* which is never routed to it */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    PRE->refused_modes = BIT(DECODE);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 1);
    ck_assert_str_eq(reasons[0].child, "pre");
    ck_assert_int_eq(create(), ATTN_UNSUPPORTED);
    assert_says("pre: ");
    check_nothing_left();
}

/* A table that is wrong is refused wherever it is given. */
TEST_OF(query, a_wrong_table_is_refused_by_query_and_create)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start_rows();
    row("phase=decode", "pre");
    row("phase=decode kv=7", "pre");
    end_rows("dec");
    ck_assert_int_eq(query(&verdict), ATTN_CONFIG_ERROR);
    assert_says("t.ini:2: row 2 'phase=decode kv=7 -> pre' can never match");
    ck_assert_int_eq(create(), ATTN_CONFIG_ERROR);
    check_nothing_left();
}

/* Whatever fails on the way, nothing remains allocated. */
TEST_OF(batch, failures_leave_nothing)
{
    static const int slots[] = {MOCK_METADATA_SIZE, MOCK_METADATA_CREATE};
    start_rows();
    bounds.modes = BIT(EXTEND) | BIT(DECODE) | BIT(MIXED);
    row("phase=decode layers=5", "pre");
    end_rows("dec");
    for (int left = 0; left < 8; left++) {
        mock_allocate_left = left;
        attn_status status = create();
        mock_allocate_left = -1;
        ck_assert(status == ATTN_OK || status == ATTN_OUT_OF_HOST_MEMORY);
        if (status == ATTN_OK)
            OPS->destroy(instance);
        check_nothing_left();
    }
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        mock_children[c].create_status = ATTN_DEPENDENCY_MISSING;
        ck_assert_int_eq(create(), ATTN_DEPENDENCY_MISSING);
        mock_children[c].create_status = ATTN_OK;
        check_nothing_left();
    }
    ck_assert_int_eq(create(), ATTN_OK);
    for (int i = 0; i < 4; i++) {
        mock_child *child = &mock_children[i % 2];
        child->slot_status[slots[i / 2]] = ATTN_OUT_OF_DEVICE_MEMORY;
        if (i < 2) {
            size = (attn_memory_size){.struct_size = sizeof size};
            ck_assert_int_eq(
                OPS->metadata_size(instance, ATTN_METADATA_EAGER, &bounds, &size, &error),
                ATTN_OUT_OF_DEVICE_MEMORY);
        } else {
            ck_assert_int_eq(create_metadata(), ATTN_OUT_OF_DEVICE_MEMORY);
        }
        assert_says(child->name);
        child->slot_status[slots[i / 2]] = ATTN_OK;
        ck_assert_int_eq(child->live_metadata + mock_children[!(i % 2)].live_metadata, 0);
        for (uint32_t r = 0; i >= 2 && r < ATTN_REGION_COUNT; r++)
            free(memory.base[r]);
    }
    memset(&memory, 0, sizeof memory);
    metadata = NULL;
    finish();
}

/* A batch beyond the bounds is refused though its halves are within, and no forward is served. */
TEST_OF(batch, bounds_are_of_the_whole_batch)
{
    start_rows();
    bounds.modes = BIT(EXTEND) | BIT(DECODE) | BIT(MIXED);
    bounds.max_seqs = 4;
    row("phase=decode", "pre");
    end_rows("dec");
    ready();
    make_args();
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    make_mixed(0);
    ck_assert_int_eq(plan(&mixed), ATTN_INVALID_ARGUMENT);
    assert_says("num_seqs 5: accepted 0..4");
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    attn_batch idle = plain_batch(ATTN_MODE_IDLE);
    ck_assert_int_eq(plan(&idle), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    ck_assert_int_eq(mock_ordered, 0);
    finish();
}

TESTS("route");
