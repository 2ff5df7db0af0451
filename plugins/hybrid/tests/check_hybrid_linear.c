/* SPDX-License-Identifier: Apache-2.0
 *
 * check_hybrid_linear: hybrid_linear between a mock host and mock children (hybrid_mock.h): how its list
 * of layers is read, and what is left behind when memory runs out. "pre" has the full-attention
 * layers, "dec" the linear ones. What its children are asked and given is judged by stand_ins.sh.
 */
#include "plugins/hybrid/tests/hybrid_fixture.h"

#include <string.h>

static void use_list(const char *list)
{
    values[2].text = list;
}

static attn_status query_group(int p, attn_verdict *verdict)
{
    return composite->query(composite, &options, &mock_services, &problems[p], verdict, &error);
}

static void check_layers(const mock_child *child, uint32_t count, const int32_t *ids)
{
    ck_assert_uint_eq(child->num_layers, count);
    for (uint32_t l = 0; l < count; l++)
        ck_assert_int_eq(child->layer_ids[l], ids[l]);
}

/* ---- Routing --------------------------------------------------------------------------------- */

/* Which layers go to whom: {list, layers of pre, layers of dec}, in order of groups. */
static const struct {
    const char *list;
    uint32_t num_pre, num_dec;
    int32_t pre[3], dec[3];
} routes[] = {
    {"", 2, 1, {4, 5}, {9}},       {"4,5", 2, 1, {4, 5}, {9}},
    {"5", 1, 2, {5}, {4, 9}},      {"9 , 4", 2, 1, {4, 9}, {5}},
    {"0-4", 1, 2, {4}, {5, 9}},    {" 5 , 6-2147483647 ", 2, 1, {5, 9}, {4}},
    {"4-9", 3, 0, {4, 5, 9}, {0}}, {"6-8,77", 0, 3, {0}, {4, 5, 9}},
};

LOOP_OF(routing, layers_go_by_kind_or_list, 0, COUNT(routes))
{
    start_linear();
    use_list(routes[_i].list);
    ck_assert_msg(create() == ATTN_OK, "%s", message);
    ck_assert_int_eq(PRE->live, routes[_i].num_pre > 0);
    ck_assert_int_eq(DEC->live, routes[_i].num_dec > 0);
    PRE->queries = DEC->queries = 0;
    if (PRE->live)
        check_layers(PRE, routes[_i].num_pre, routes[_i].pre);
    if (DEC->live)
        check_layers(DEC, routes[_i].num_dec, routes[_i].dec);
    ck_assert_msg(create_metadata() == ATTN_OK, "%s", message);
    attn_batch batch = plain_batch(ATTN_MODE_EXTEND);
    make_args();
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    for (int l = 0; l < 3; l++) {
        int before = PRE->calls[MOCK_FORWARD_EXTEND], to_pre = 0;
        for (uint32_t p = 0; p < routes[_i].num_pre; p++)
            to_pre |= routes[_i].pre[p] == layers[l].layer_id;
        ck_assert_int_eq(
            OPS->forward_extend(metadata, layers[l].layer_id, &args, (attn_stream)0x5, &error),
            ATTN_OK);
        ck_assert_int_eq(PRE->calls[MOCK_FORWARD_EXTEND] - before, to_pre);
        const mock_child *child = to_pre ? PRE : DEC;
        ck_assert_int_eq(child->layer_id, layers[l].layer_id);
        ck_assert_ptr_eq(child->stream, (attn_stream)0x5);
        ck_assert_ptr_eq(child->args.operands, args.operands);
    }
    finish();
}

/* A group that both have a part of is asked of both, each with its layers; the group itself, its
 * other members, and the caller's layers are as they were. */
TEST_OF(routing, a_shared_group_is_asked_of_both)
{
    static const int32_t four = 4, five = 5;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start_linear();
    use_list("5");
    groups[0].head_dim = 77;
    ck_assert_int_eq(query_group(0, &verdict), ATTN_OK);
    check_layers(PRE, 1, &five);
    check_layers(DEC, 1, &four);
    ck_assert_uint_eq(groups[0].num_layers, 2);
    ck_assert_ptr_eq(groups[0].layers, layers);
    ck_assert_int_eq(mock_allocated, 0);
    mock_allocate_left = 0;
    ck_assert_int_eq(query_group(0, &verdict), ATTN_OUT_OF_HOST_MEMORY);
    ck_assert_int_eq(query_group(1, &verdict), ATTN_OK); /* needs no memory */
    DEC->query_status = ATTN_CHILD_FAILED;
    mock_allocate_left = -1;
    ck_assert_int_eq(query_group(0, &verdict), ATTN_CHILD_FAILED);
    ck_assert_int_eq(mock_allocated, 0);
}

LOOP_OF(routing, malformed_lists_are_refused, 0, 14)
{
    static const char *const lists[] = {"x",          "1,",           ",1",   "1-",   "-1",
                                        "5-4",        "1 2",          "1--2", "1,,2", " ",
                                        "2147483648", "0-2147483648", "1;2"};
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start_linear();
    if (_i == (int)(sizeof lists / sizeof lists[0])) {
        use_list("2147483647"); /* the largest there can be */
        ck_assert_int_eq(query_group(0, &verdict), ATTN_OK);
        return;
    }
    use_list(lists[_i]);
    values[2].place = "a.ini:7";
    ck_assert_int_eq(query_group(0, &verdict), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(message, "a.ini:7: full_attn_layers = '"));
    ck_assert_uint_eq(error.field, ATTN_FIELD_OPTION);
    ck_assert_int_eq(create(), ATTN_CONFIG_ERROR);
    ck_assert_ptr_null(instance);
    check_nothing_left();
}

LOOP_OF(routing, children_have_to_be_named, 0, 2)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start_linear();
    values[_i] = values[2];
    ck_assert_int_eq(query_group(0, &verdict), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(message, _i == 0 ? "option full" : "option linear"));
    ck_assert_int_eq(create(), ATTN_CONFIG_ERROR);
    ck_assert_ptr_null(instance);
}

/* ---- Failures ---------------------------------------------------------------------------------- */

/* Whichever allocation fails: nothing is left. A group that is cut needs one more. */
TEST_OF(failures, create_runs_out_of_memory)
{
    attn_status status = ATTN_OUT_OF_HOST_MEMORY;
    int failed = 0;
    for (int allowed = 0; status != ATTN_OK; allowed++) {
        start_linear();
        use_list("4");
        mock_allocate_left = allowed;
        status = create();
        if (status == ATTN_OK)
            break;
        ck_assert_int_eq(status, ATTN_OUT_OF_HOST_MEMORY);
        ck_assert_ptr_null(instance);
        check_nothing_left();
        failed++;
    }
    ck_assert_int_ge(failed, 5);
    finish();
}

TESTS("hybrid_linear");
