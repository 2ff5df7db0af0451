/* SPDX-License-Identifier: Apache-2.0
 *
 * route: an ordered table says which child serves which layers, phases, batch sizes and lengths
 * (table.h); the first row that matches does. What is made of it is pick.h.
 */
#include "plugins/hybrid/core/hybrid.h"

#include "plugins/hybrid/core/pick.h"
#include "table.h"
#include "attn_plugin_util.h"

/* ---- Rules ----------------------------------------------------------------------------------- */

/* A part is the rows that its layers can meet. */
static uint32_t part_of(const void *ctx, const attn_layer_group *group, int32_t layer_id)
{
    return route_rows_of_layer(ctx, group->kind, layer_id);
}

static uint32_t choose(const void *ctx, uint32_t part, uint32_t phase, int32_t num_seqs,
                       int32_t max_kv_len)
{
    return route_choose(ctx, part, phase, num_seqs, max_kv_len);
}

static pick_reach reach(const void *ctx, uint32_t part, uint32_t phase, int32_t max_seqs,
                        int32_t max_kv_len, uint32_t child)
{
    return route_reach(ctx, part, phase, max_seqs, max_kv_len, child);
}

static pick_rules rules_of(const route_table *table)
{
    return (pick_rules){
        .num_children = table->num_children, .part_of = part_of, .choose = choose, .reach = reach};
}

/* ---- Query and create ------------------------------------------------------------------------ */

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    (void)type;
    route_table table;
    attn_status status = fanout_check_services(services, error);
    if (status == ATTN_OK)
        status = route_table_read(options, &table, error);
    if (status != ATTN_OK)
        return status;
    pick_rules rules = rules_of(&table);
    picker pick = {.rules = &rules, .ctx = &table};
    return pick_query(services, &pick, table.children, problem, verdict, error);
}

/* What an instance keeps. */
struct routes {
    pick_rules rules;
    route_table table; /* without texts and names: they were the options' */
};

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    route_table table;
    attn_status status = route_table_read(options, &table, error);
    if (status == ATTN_OK)
        status = fanout_check_problems(type, options, services, problems, num_problems, error);
    if (status != ATTN_OK)
        return status;
    pick_rules rules = rules_of(&table);
    picker pick = {.rules = &rules, .ctx = &table};
    attn_instance *made = NULL;
    status = pick_create(services, &pick, table.children, problems, num_problems,
                         sizeof(struct routes), &made, error);
    if (status != ATTN_OK)
        return status;
    struct routes *own = made->own;
    *own = (struct routes){.rules = rules, .table = table};
    for (uint32_t r = 0; r < ROUTE_MAX_ROWS; r++) {
        own->table.children[r] = NULL;
        own->table.rows[r].text = own->table.rows[r].place = NULL;
    }
    made->pick.rules = &own->rules;
    made->pick.ctx = &own->table;
    *instance = made;
    return ATTN_OK;
}

/* ---- Type ------------------------------------------------------------------------------------ */

const attn_backend_type route_type = {
    .struct_size = sizeof route_type,
    .flags = ATTN_BACKEND_COMPOSITE,
    .name = "route",
    .doc = "an ordered table of layers, phases, batch sizes and lengths, and the backend of each",
    .num_options = ROUTE_NUM_OPTIONS,
    .num_layouts = FANOUT_NUM_LAYOUTS,
    .options = route_option_list,
    .layouts = fanout_layouts,
    .ops = &pick_ops,
    .query = query,
    .create = create,
};
