/* SPDX-License-Identifier: Apache-2.0
 *
 * check_hybrid_linear: hybrid_linear between a mock host and mock children (hybrid_mock.h): which
 * layers each is asked about and made for, what it is given of a batch, what is left behind when
 * one fails. "pre" has the full-attention layers, "dec" the linear ones.
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

START_TEST(layers_go_by_kind_or_list)
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
END_TEST

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
END_TEST

START_TEST(malformed_lists_are_refused)
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
END_TEST

START_TEST(children_have_to_be_named)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start_linear();
    values[_i] = values[2];
    ck_assert_int_eq(query_group(0, &verdict), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(message, _i == 0 ? "option full" : "option linear"));
    ck_assert_int_eq(create(), ATTN_CONFIG_ERROR);
    ck_assert_ptr_null(instance);
}
END_TEST

/* ---- Verdicts -------------------------------------------------------------------------------- */

/* The answer about a group is that of the child which has it, and the composite's own memory. */
TEST_OF(routing, verdict_is_that_of_the_layers)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start_linear();
    PRE->verdict.graph_level = ATTN_GRAPH_UNIFORM;
    PRE->verdict.host_bytes = 1000;
    DEC->verdict.graph_level = ATTN_GRAPH_SINGLE_TOKEN;
    DEC->verdict.notes = ATTN_NOTE_DETERMINISTIC;
    DEC->verdict.device_bytes = 30;
    ck_assert_int_eq(query_group(0, &verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_UNIFORM);
    ck_assert_uint_eq(verdict.notes, 0);
    ck_assert_uint_gt(verdict.host_bytes, 1000);
    ck_assert_int_eq(DEC->queries, 0);
    ck_assert_int_eq(query_group(1, &verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_SINGLE_TOKEN);
    ck_assert_uint_eq(verdict.notes, ATTN_NOTE_DETERMINISTIC);
    ck_assert_uint_eq(verdict.device_bytes, 30 + MOCK_GAPS);
    ck_assert_int_eq(PRE->queries, 1);
    use_list("4"); /* both: the lower level, what both keep */
    ck_assert_int_eq(query_group(0, &verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_SINGLE_TOKEN);
    ck_assert_uint_eq(verdict.notes, 0);
    ck_assert_uint_gt(verdict.host_bytes, 1000);
}
END_TEST

TEST_OF(routing, a_no_has_the_childs_name)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start_linear();
    DEC->verdict.supported = 0;
    DEC->verdict.num_reasons = 1;
    DEC->reasons[0] = (attn_reason){.struct_size = sizeof reason,
                                    .code = ATTN_REASON_STATE,
                                    .field = ATTN_FIELD_STATE_LAYOUT,
                                    .got = "a",
                                    .accepted = "b"};
    ck_assert_int_eq(query_group(0, &verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    ck_assert_int_eq(query_group(1, &verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_str_eq(reason.child, "dec");
    ck_assert_int_eq(create(), ATTN_UNSUPPORTED);
    ck_assert_str_eq(message, "dec: state_layout a: accepted b");
    check_nothing_left();
}
END_TEST

/* ---- Batches --------------------------------------------------------------------------------- */

/* KV groups to the one, states to the other; nothing else of the batch is changed. */
TEST_OF(batches, batches_have_what_the_layers_need)
{
    attn_sparse_batch sparse = {.struct_size = sizeof sparse};
    start_linear();
    ready();
    make_mixed(BASE);
    mixed.sparse = &sparse;
    ck_assert_msg(plan(&mixed) == ATTN_OK, "%s", message);
    ck_assert_uint_eq(PRE->batch.num_kv_groups, 1);
    ck_assert_ptr_eq(PRE->batch.kv_groups, kv);
    ck_assert_uint_eq(PRE->batch.num_state_groups, 0);
    ck_assert_ptr_null(PRE->batch.state_groups);
    ck_assert_ptr_null(PRE->batch.sparse);
    ck_assert_uint_eq(DEC->batch.num_kv_groups, 0);
    ck_assert_ptr_null(DEC->batch.kv_groups);
    ck_assert_uint_eq(DEC->batch.num_state_groups, 1);
    ck_assert_ptr_eq(DEC->batch.state_groups, &state);
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        attn_batch expected = mixed;
        expected.num_kv_groups = mock_children[c].batch.num_kv_groups;
        expected.kv_groups = mock_children[c].batch.kv_groups;
        expected.num_state_groups = mock_children[c].batch.num_state_groups;
        expected.state_groups = mock_children[c].batch.state_groups;
        expected.sparse = NULL;
        ck_assert_mem_eq(&mock_children[c].batch, &expected, sizeof expected);
        ck_assert_ptr_eq(mock_children[c].stream, (attn_stream)0x77);
    }
    ck_assert_ptr_eq(mixed.state_groups, &state); /* the caller's is as it was */
    finish();
}
END_TEST

TEST_OF(batches, sparse_layers_keep_their_indices)
{
    attn_sparse_batch sparse = {.struct_size = sizeof sparse};
    start_linear();
    groups[0].kind = ATTN_KIND_SPARSE;
    ready();
    make_mixed(0);
    mixed.sparse = &sparse;
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_ptr_eq(PRE->batch.sparse, &sparse);
    ck_assert_ptr_null(DEC->batch.sparse);
    finish();
}
END_TEST

/* A batch of smaller headers has no `sparse`, and a larger one more than we know. */
START_TEST(batch_of_another_size)
{
    start_linear();
    ready();
    struct {
        attn_batch batch;
        unsigned char more[64];
    } given;
    memset(&given, 0xEE, sizeof given);
    make_mixed(0);
    given.batch = mixed;
    given.batch.struct_size = (uint32_t)(_i == 0 ? offsetof(attn_batch, sparse) : sizeof given);
    ck_assert_int_eq(plan(&given.batch), ATTN_OK);
    ck_assert_uint_eq(PRE->batch.struct_size, sizeof(attn_batch));
    ck_assert_ptr_null(PRE->batch.sparse);
    finish();
}
END_TEST

TEST_OF(batches, idle_reaches_nobody)
{
    start_linear();
    ready();
    make_args();
    attn_batch batch = plain_batch(ATTN_MODE_IDLE);
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    ck_assert_int_eq(PRE->calls[MOCK_INIT] + DEC->calls[MOCK_INIT], 0);
    ck_assert_int_eq(mock_ordered, 0);
    finish();
}
END_TEST

TEST_OF(batches, batch_beyond_the_bounds)
{
    start_linear();
    ready();
    make_mixed(0);
    mixed.num_seqs = 7;
    ck_assert_int_eq(plan(&mixed), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(error.field, ATTN_FIELD_MAX_SEQS);
    ck_assert_int_eq(PRE->calls[MOCK_INIT], 0);
    finish();
}
END_TEST

TEST_OF(batches, forward_without_its_batch)
{
    start_linear();
    ready();
    make_args();
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    ck_assert_int_eq(OPS->forward_decode(metadata, 9, &args, NULL, &error), ATTN_BAD_STATE);
    attn_batch batch = plain_batch(ATTN_MODE_EXTEND);
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    ck_assert_int_eq(OPS->forward_decode(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    for (int32_t layer = -1; layer < 12; layer++)
        if (layer != 4 && layer != 5 && layer != 9) {
            ck_assert_int_eq(OPS->forward_extend(metadata, layer, &args, NULL, &error),
                             ATTN_INVALID_ARGUMENT);
            ck_assert_uint_eq(error.field, ATTN_FIELD_LAYER_ID);
        }
    ck_assert_int_eq(mock_ordered, 0);
    finish();
}
END_TEST

/* ---- Memory and failures --------------------------------------------------------------------- */

enum {
    DEVICE_SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    DEVICE_METADATA = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    HOST_METADATA = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

TEST_OF(failures, memory_is_the_sum)
{
    start_linear();
    PRE->size.size[DEVICE_SCRATCH] = 10, DEC->size.size[DEVICE_SCRATCH] = 12;
    PRE->size.size[DEVICE_METADATA] = 3, DEC->size.size[DEVICE_METADATA] = 100;
    DEC->size.alignment[DEVICE_METADATA] = 64;
    PRE->size.size[HOST_METADATA] = 5000;
    ready();
    ck_assert_uint_eq(size.size[DEVICE_SCRATCH], 12);
    ck_assert_uint_eq(size.size[DEVICE_METADATA], 164);
    ck_assert_uint_gt(size.size[HOST_METADATA], 5000);
    ck_assert_ptr_eq(DEC->memory.base[DEVICE_METADATA], (char *)memory.base[DEVICE_METADATA] + 64);
    attn_memory less = memory;
    attn_metadata *other = NULL;
    less.size[DEVICE_METADATA]--;
    ck_assert_int_eq(
        OPS->metadata_create(instance, ATTN_METADATA_EAGER, &bounds, &less, &other, &error),
        ATTN_BUFFER_TOO_SMALL);
    ck_assert_uint_eq(error.needed, 164);
    ck_assert_ptr_null(other);
    finish();
}
END_TEST

/* Whatever fails in a child: status and name come through, and nothing of its sibling is left. */
START_TEST(failures_name_the_child)
{
    static const int slots[] = {MOCK_PREPARE, MOCK_METADATA_SIZE, MOCK_INIT, MOCK_FORWARD_EXTEND,
                                MOCK_FORWARD_DECODE};
    int c = _i % 2, slot = slots[_i / 2];
    start_linear();
    ready();
    make_args();
    attn_batch batch =
        plain_batch(slot == MOCK_FORWARD_DECODE ? ATTN_MODE_DECODE : ATTN_MODE_EXTEND);
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    mock_children[c].slot_status[slot] = ATTN_TIMEOUT;
    attn_status status = ATTN_OK;
    if (slot == MOCK_PREPARE)
        status = OPS->prepare(instance, NULL, NULL, &error);
    else if (slot == MOCK_METADATA_SIZE)
        status = OPS->metadata_size(instance, ATTN_METADATA_EAGER, &bounds, &size, &error);
    else if (slot == MOCK_INIT)
        status = plan(&batch);
    else if (slot == MOCK_FORWARD_EXTEND)
        status = OPS->forward_extend(metadata, c == MOCK_PRE ? 5 : 9, &args, NULL, &error);
    else
        status = OPS->forward_decode(metadata, c == MOCK_PRE ? 4 : 9, &args, NULL, &error);
    ck_assert_int_eq(status, ATTN_TIMEOUT);
    ck_assert_str_eq(message, c == MOCK_PRE ? "child pre: as planned" : "child dec: as planned");
    if (slot == MOCK_INIT)
        ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    finish();
}
END_TEST

START_TEST(metadata_fails_in_a_child)
{
    start_linear();
    ck_assert_int_eq(create(), ATTN_OK);
    mock_children[_i].slot_status[MOCK_METADATA_CREATE] = ATTN_OUT_OF_DEVICE_MEMORY;
    ck_assert_int_eq(create_metadata(), ATTN_OUT_OF_DEVICE_MEMORY);
    ck_assert_str_eq(message, _i == MOCK_PRE ? "child pre: as planned" : "child dec: as planned");
    ck_assert_ptr_null(metadata);
    ck_assert_int_eq(PRE->live_metadata + DEC->live_metadata, 0);
    ck_assert_int_eq(PRE->calls[MOCK_METADATA_DESTROY], _i == MOCK_DEC);
    check_guards();
    finish();
}
END_TEST

START_TEST(create_fails_in_a_child)
{
    start_linear();
    mock_children[_i].create_status = ATTN_DEPENDENCY_MISSING;
    ck_assert_int_eq(create(), ATTN_DEPENDENCY_MISSING);
    ck_assert_ptr_null(instance);
    ck_assert_int_eq(PRE->calls[MOCK_DESTROY], _i == MOCK_DEC);
    check_nothing_left();
}
END_TEST

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
END_TEST

static Suite *hybrid_linear_suite(void)
{
    Suite *suite = suite_create("hybrid_linear");
    TCase *routing = tcase_create("routing"), *batches = tcase_create("batches");
    TCase *failures = tcase_create("failures");
    tcase_add_loop_test(routing, layers_go_by_kind_or_list, 0,
                        (int)(sizeof routes / sizeof routes[0]));
    tcase_add_loop_test(routing, malformed_lists_are_refused, 0, 14);
    tcase_add_loop_test(routing, children_have_to_be_named, 0, 2);
    tcase_add_loop_test(batches, batch_of_another_size, 0, 2);
    tcase_add_loop_test(failures, failures_name_the_child, 0, 10);
    tcase_add_loop_test(failures, metadata_fails_in_a_child, 0, 2);
    tcase_add_loop_test(failures, create_fails_in_a_child, 0, 2);
    suite_add_tcase(suite, routing);
    suite_add_tcase(suite, batches);
    suite_add_tcase(suite, failures);
    return suite;
}

int main(void)
{
    return test_main(hybrid_linear_suite());
}
