/* SPDX-License-Identifier: Apache-2.0
 *
 * check_hybrid: hybrid_phase between a mock host and mock children (hybrid_mock.h): what it asks
 * them, what it answers, and what remains allocated when one fails. check_hybrid_batch.c has the rest.
 */
#include "plugins/hybrid/tests/hybrid_fixture.h"

#include <string.h>

/* ---- Routing --------------------------------------------------------------------------------- */

/* Which modes the children are asked about, made for and given metadata for. */
START_TEST(children_hear_of_their_modes_alone)
{
    static const struct {
        uint32_t modes;
        int spec;
        uint32_t pre, dec;
        int both; /* nothing is routed, and both are asked */
    } table[] = {
        {BIT(EXTEND), 0, BIT(EXTEND), 0, 0},
        {BIT(DECODE) | BIT(IDLE), 0, 0, BIT(DECODE), 0},
        {BIT(MIXED), 0, BIT(EXTEND), BIT(DECODE), 0},
        {BIT(EXTEND) | BIT(TARGET_VERIFY), 1, BIT(EXTEND), BIT(TARGET_VERIFY), 0},
        {BIT(DECODE) | BIT(DRAFT_EXTEND), 0, BIT(DRAFT_EXTEND), BIT(DECODE), 0},
        {ALL_MODES, 1, BIT(EXTEND), BIT(DECODE) | BIT(TARGET_VERIFY) | BIT(DRAFT_EXTEND), 0},
        {BIT(IDLE), 0, BIT(IDLE), BIT(IDLE), 1},
        {0, 0, 0, 0, 1},                      /* not known yet */
        {1u << 20, 0, 1u << 20, 1u << 20, 0}, /* unknown: both are to refuse it */
    };
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    bounds.modes = table[_i].modes;
    values[2].integer = table[_i].spec;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    const uint32_t modes[MOCK_CHILDREN] = {table[_i].pre, table[_i].dec};
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].queries, modes[c] != 0 || table[_i].both);
        ck_assert_uint_eq(mock_children[c].bounds.modes, modes[c]);
    }
    ready();
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].live, modes[c] != 0 || table[_i].both);
        ck_assert_int_eq(mock_children[c].live_metadata, modes[c] != 0 || table[_i].both);
        ck_assert_uint_eq(mock_children[c].bounds.modes, modes[c]);
        ck_assert_uint_eq(mock_children[c].num_problems, modes[c] != 0 || table[_i].both ? 2 : 0);
    }
    finish();
}
END_TEST

/* A no of either child is the composite's, though no mode is routed to it yet. */
START_TEST(no_mode_is_no_licence)
{
    static const uint32_t modes[] = {0, BIT(IDLE), 0};
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start();
    bounds.modes = modes[_i];
    mock_child *child = &mock_children[_i % 2];
    child->verdict.supported = 0;
    child->verdict.num_reasons = 1;
    child->reasons[0] = (attn_reason){
        .struct_size = sizeof reason, .code = ATTN_REASON_HEAD_DIM, .field = ATTN_FIELD_HEAD_DIM};
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_str_eq(reason.child, child->name);
    ck_assert_int_eq(create(), ATTN_UNSUPPORTED);
    check_nothing_left();
}
END_TEST

/* Metadata for IDLE alone asks whichever child exists. */
START_TEST(idle_metadata_of_one_phase)
{
    start();
    bounds.modes = BIT(EXTEND) | BIT(IDLE);
    ck_assert_int_eq(create(), ATTN_OK);
    bounds.modes = BIT(IDLE);
    ck_assert_msg(create_metadata() == ATTN_OK, "%s", message);
    ck_assert_int_eq(PRE->live_metadata, 1);
    attn_batch batch = plain_batch(ATTN_MODE_IDLE);
    ck_assert_int_eq(plan(&batch), ATTN_OK);
    ck_assert_int_eq(PRE->calls[MOCK_INIT], 0);
    finish();
}
END_TEST

/* A child that only decodes has one query for each sequence. */
START_TEST(decode_bounds_are_narrow)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(PRE->bounds.max_q_len, 20);
    ck_assert_int_eq(PRE->bounds.max_tokens, 40);
    ck_assert_int_eq(DEC->bounds.max_q_len, 1);
    ck_assert_int_eq(DEC->bounds.max_tokens, 6);
    ck_assert_int_eq(DEC->bounds.max_kv_len, 100);
    ck_assert_int_eq(DEC->bounds.max_kv_tokens, 600);
    bounds.max_tokens = 4; /* fewer rows than sequences */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(DEC->bounds.max_tokens, 4);
    bounds.max_seqs = bounds.max_tokens = 0; /* not known yet */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(DEC->bounds.max_tokens, 0);
    values[2].integer = 1; /* drafts have several queries */
    bounds.max_tokens = 40;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_int_eq(DEC->bounds.max_q_len, 20);
    ck_assert_int_eq(DEC->bounds.max_tokens, 40);
}
END_TEST

/* A layer group is shown only to the children that serve a mode of it. */
START_TEST(group_without_modes_is_left_out)
{
    start();
    attn_bounds encoder = bounds;
    encoder.modes = BIT(EXTEND);
    problems[0].bounds = &encoder;
    ready();
    ck_assert_uint_eq(PRE->num_problems, 2);
    ck_assert_uint_eq(DEC->num_problems, 1);
    ck_assert_ptr_eq(DEC->problem.group, &groups[1]);
    finish();
}
END_TEST

/* ---- When MIXED is not split ----------------------------------------------------------------- */

static const attn_mla_dims mla = {sizeof mla, 512, 64, 128};

static void set_up_split(int how)
{
    bounds.modes = BIT(EXTEND) | BIT(DECODE) | BIT(MIXED);
    problems[1] = problems[0];
    groups[1].kv_group = 0;
    switch (how) {
    case 0: /* plain: split */
        break;
    case 1: /* a rounded cache whose new tokens both read alike: split */
        problems[0].kv_dtype = ATTN_FP8_E4M3;
        PRE->verdict.reads_new_kv_unquantised = DEC->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 2: /* one of them reads them from the arguments */
        problems[0].kv_dtype = ATTN_FP8_E4M3;
        PRE->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 3:
        groups[0].kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
        DEC->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 4: /* not rounded, so that it does not matter: split */
        PRE->verdict.reads_new_kv_unquantised = ALL_MODES;
        break;
    case 5: /* each layer's own chosen keys are operands: split */
        groups[0].kind = ATTN_KIND_SPARSE;
        break;
    case 6: /* forms of latent attention differ */
        groups[0].mla = &mla;
        problems[0].mla_expanded = BIT(EXTEND) | BIT(MIXED);
        break;
    case 7: /* one form: split */
        groups[0].mla = &mla;
        problems[0].mla_expanded = BIT(EXTEND) | BIT(MIXED) | BIT(DECODE) | BIT(TARGET_VERIFY);
        break;
    }
}

START_TEST(mixed_is_split_only_where_it_can_be)
{
    static const int expected[] = {1, 1, 0, 0, 1, 1, 0, 1};
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    set_up_split(_i);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    uint32_t whole = expected[_i] ? 0 : BIT(MIXED);
    ck_assert_uint_eq(PRE->bounds.modes, BIT(EXTEND) | whole);
    ck_assert_uint_eq(DEC->bounds.modes, BIT(DECODE));
    ck_assert_uint_eq(verdict.graph_level, whole ? ATTN_GRAPH_ALWAYS : ATTN_GRAPH_UNIFORM);
    ck_assert_uint_eq(PRE->problem.mla_expanded, problems[0].mla_expanded & (BIT(EXTEND) | whole));
    ck_assert_uint_eq(DEC->problem.mla_expanded, problems[0].mla_expanded & BIT(DECODE));
    uint32_t reads = verdict.reads_new_kv_unquantised;
    ck_assert_int_eq((reads & BIT(MIXED)) != 0, (reads & BIT(EXTEND)) != 0);
    ck_assert_uint_eq(reads & ~bounds.modes, 0);

    groups[1].kind = ATTN_KIND_SOFTMAX; /* the other group alone could be split */
    ready();
    make_mixed(0);
    make_args();
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_OK);
    ck_assert_int_eq(mock_ordered, expected[_i] ? 2 : 1);
    ck_assert_uint_eq(PRE->batch.mode, expected[_i] ? ATTN_MODE_EXTEND : ATTN_MODE_MIXED);
    finish();
}
END_TEST

/* MIXED alone: its rows come in MIXED's form, and what its halves answer is MIXED's answer; nothing
 * is said of modes that do not occur. */
START_TEST(mixed_alone_stands_for_its_halves)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    bounds.modes = BIT(MIXED);
    groups[0].mla = &mla;
    problems[0].mla_expanded = BIT(MIXED);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(PRE->problem.mla_expanded, BIT(EXTEND));
    ck_assert_uint_eq(DEC->problem.mla_expanded, BIT(DECODE));

    PRE->verdict.reads_new_kv_unquantised = DEC->verdict.reads_new_kv_unquantised = ALL_MODES;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.reads_new_kv_unquantised, BIT(MIXED));
}
END_TEST

/* Whole MIXED batches move decode rows to another child: no batch invariance. */
START_TEST(whole_mixed_is_not_batch_invariant)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start();
    set_up_split(6);
    PRE->verdict.notes = DEC->verdict.notes = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_BATCH_INVARIANT;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.notes, ATTN_NOTE_DETERMINISTIC);
    problems[0].need_notes = ATTN_NOTE_BATCH_INVARIANT;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(reason.code, ATTN_REASON_DETERMINISM);
    ck_assert_str_eq(reason.accepted, "deterministic");
    values[1].text = "pre"; /* one child for both: nothing moves */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
}
END_TEST

/* A child that cannot serve its rows says so; it is not passed over by not splitting. */
START_TEST(refusal_of_rows_is_not_hidden)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start();
    bounds.modes = BIT(MIXED);
    problems[0].kv_dtype = ATTN_FP8_E4M3;
    PRE->verdict.reads_new_kv_unquantised = ALL_MODES;
    DEC->refused_modes = BIT(DECODE);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_str_eq(reason.child, "dec");
}
END_TEST

/* ---- Verdicts -------------------------------------------------------------------------------- */

static void refuse(mock_child *child, uint32_t r, uint32_t field, const char *inner)
{
    child->verdict.supported = 0;
    child->verdict.num_reasons = r + 1;
    child->reasons[r] = (attn_reason){.struct_size = sizeof(attn_reason), .code = 1 + field};
    child->reasons[r].field = field;
    strcpy(child->reasons[r].child, inner);
    strcpy(child->reasons[r].got, "got");
    strcpy(child->reasons[r].accepted, "accepted");
}

START_TEST(yes_is_merged)
{
    attn_verdict verdict = {.struct_size = sizeof verdict, .supported = 7, .num_reasons = 9};
    start();
    bounds.modes = BIT(EXTEND) | BIT(DECODE);
    PRE->verdict = (attn_verdict){.supported = 1,
                                  .graph_level = ATTN_GRAPH_SINGLE_TOKEN,
                                  .notes = ATTN_NOTE_PROMISES | ATTN_NOTE_REDUCED_PRECISION,
                                  .reads_new_kv_unquantised = BIT(EXTEND) | BIT(DECODE),
                                  .graph_seq_len_fill = 0,
                                  .cost_hint = 1.5,
                                  .device_bytes = 100,
                                  .pinned_bytes = 20,
                                  .host_bytes = 3};
    DEC->verdict = (attn_verdict){.supported = 1,
                                  .graph_level = ATTN_GRAPH_UNIFORM,
                                  .notes = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_FIRST_CALL_SLOW,
                                  .graph_seq_len_fill = 1,
                                  .cost_hint = 0.5,
                                  .device_bytes = 11,
                                  .pinned_bytes = 7,
                                  .host_bytes = 5};
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    ck_assert_uint_eq(verdict.num_reasons, 0);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_SINGLE_TOKEN);
    ck_assert_uint_eq(verdict.notes, ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_REDUCED_PRECISION |
                                         ATTN_NOTE_FIRST_CALL_SLOW);
    /* A child's word on the modes that it serves, not on the other's. */
    ck_assert_uint_eq(verdict.reads_new_kv_unquantised, BIT(EXTEND));
    ck_assert_int_eq(verdict.graph_seq_len_fill, 1);
    ck_assert(verdict.cost_hint == 1.5);
    ck_assert_uint_eq(verdict.device_bytes, 111 + 2 * MOCK_GAPS);
    ck_assert_uint_eq(verdict.pinned_bytes, 27 + 2 * MOCK_GAPS);
    ck_assert_uint_gt(verdict.host_bytes, 8 + 2 * MOCK_GAPS); /* and its own */
    bounds.max_seqs = 0; /* bounds not known: no own bytes either */
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.host_bytes, 8 + 2 * MOCK_GAPS);
}
END_TEST

START_TEST(reasons_are_named_and_counted)
{
    attn_reason reasons[4];
    start();
    refuse(PRE, 0, ATTN_FIELD_HEAD_DIM, "");
    refuse(PRE, 1, ATTN_FIELD_PAGE_SIZE, "inner");
    refuse(DEC, 0, ATTN_FIELD_KV_LAYOUT, "a_name_that_fills_it_up_to_31_ch");
    DEC->reasons[0].child[31] = '\0';
    for (uint32_t capacity = 0; capacity <= 4; capacity++) {
        attn_verdict verdict = {
            .struct_size = sizeof verdict, .reasons_capacity = capacity, .reasons = reasons};
        if (capacity == 0)
            verdict.reasons = NULL;
        for (int r = 0; r < 4; r++)
            reasons[r] = (attn_reason){.struct_size = sizeof reasons[r], .child = "untouched"};
        ck_assert_int_eq(query(&verdict), ATTN_OK);
        ck_assert_uint_eq(verdict.supported, 0);
        ck_assert_uint_eq(verdict.num_reasons, 3);
        ck_assert_uint_eq(verdict.reasons_capacity, capacity);
        static const char *const child[] = {"pre", "pre/inner", "dec/a_name_that_fills_it_up_to_"};
        for (uint32_t r = 0; r < 4; r++) {
            ck_assert_str_eq(reasons[r].child, r < capacity && r < 3 ? child[r] : "untouched");
            if (r < capacity && r < 3) {
                ck_assert_str_eq(reasons[r].got, "got");
                ck_assert_str_eq(reasons[r].accepted, "accepted");
            }
        }
    }
}
END_TEST

START_TEST(one_no_is_a_no)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    refuse(&mock_children[_i], 0, ATTN_FIELD_HEAD_DIM, "");
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(verdict.num_reasons, 1);
    ck_assert_int_eq(create(), ATTN_UNSUPPORTED);
    ck_assert_str_eq(message, _i == MOCK_PRE ? "pre: head_dim got: accepted accepted"
                                             : "dec: head_dim got: accepted accepted");
    ck_assert_uint_eq(error.field, ATTN_FIELD_HEAD_DIM);
    ck_assert_ptr_null(instance);
    check_nothing_left();
}
END_TEST

/* A split batch is cut at a row of the batch's choosing: no capture of any batch whatever. */
START_TEST(mixed_limits_the_graph_level)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    start();
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_UNIFORM);
    problems[0].graph_level = ATTN_GRAPH_UNIFORM;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    problems[0].graph_level = ATTN_GRAPH_ALWAYS;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(reason.code, ATTN_REASON_GRAPH_LEVEL);
    ck_assert_uint_eq(reason.field, ATTN_FIELD_GRAPH_LEVEL);
    ck_assert_str_eq(reason.child, "");
    ck_assert_str_eq(reason.got, "3");
    ck_assert_str_eq(reason.accepted, "0..2");
    bounds.modes &= ~BIT(MIXED);
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 1);
    ck_assert_uint_eq(verdict.graph_level, ATTN_GRAPH_ALWAYS);

    bounds.modes |= BIT(MIXED);
    problems[0].graph_level = ATTN_GRAPH_NEVER;
    ck_assert_int_eq(create(), ATTN_OK);
    size.struct_size = sizeof size;
    ck_assert_int_eq(OPS->metadata_size(instance, ATTN_METADATA_GRAPH, &bounds, &size, &error),
                     ATTN_CAPTURE_UNSUPPORTED);
    bounds.modes = BIT(DECODE);
    ck_assert_int_eq(OPS->metadata_size(instance, ATTN_METADATA_GRAPH, &bounds, &size, &error),
                     ATTN_OK);
    ck_assert_uint_eq(DEC->kind, ATTN_METADATA_GRAPH);
    ck_assert_int_eq(PRE->calls[MOCK_METADATA_SIZE], 0);
    finish();
}
END_TEST

/* ---- Sizes of structs (STRUCT-02, STRUCT-05) ------------------------------------------------- */

/* Of a smaller struct nothing after its end is written, of a larger one nothing after ours. */
START_TEST(verdict_of_another_size)
{
    struct {
        attn_verdict verdict;
        unsigned char more[32];
    } given;
    static const uint32_t sizes[] = {offsetof(attn_verdict, graph_level),
                                     offsetof(attn_verdict, device_bytes), sizeof(attn_verdict),
                                     sizeof given};
    start();
    PRE->verdict.notes = DEC->verdict.notes = ATTN_NOTE_DETERMINISTIC;
    PRE->verdict.device_bytes = 5;
    uint32_t last = sizes[_i] < sizeof given.verdict ? sizes[_i] : (uint32_t)sizeof given.verdict;
    memset(&given, 0xEE, sizeof given);
    given.verdict.struct_size = sizes[_i];
    given.verdict.reasons_capacity = 0;
    given.verdict.reasons = NULL;
    ck_assert_int_eq(query(&given.verdict), ATTN_OK);
    ck_assert_uint_eq(given.verdict.struct_size, sizes[_i]);
    ck_assert_uint_eq(given.verdict.supported, 1);
    for (size_t b = last; b < sizeof given; b++)
        ck_assert_uint_eq(((unsigned char *)&given)[b], 0xEE);
    if (ATTN_HAS(&given.verdict, attn_verdict, device_bytes))
        ck_assert_uint_eq(given.verdict.device_bytes, 5 + MOCK_GAPS);
}
END_TEST

START_TEST(reasons_of_another_size)
{
    struct {
        attn_reason reason;
        unsigned char more[24];
    } reasons[3];
    start();
    memset(reasons, 0xEE, sizeof reasons);
    for (int r = 0; r < 3; r++)
        reasons[r].reason.struct_size = sizeof reasons[r];
    problems[0].graph_level = ATTN_GRAPH_ALWAYS;
    refuse(PRE, 0, ATTN_FIELD_HEAD_DIM, "");
    refuse(DEC, 0, ATTN_FIELD_PAGE_SIZE, "x");
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 3, .reasons = &reasons[0].reason};
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(verdict.num_reasons, 3);
    static const char *const child[] = {"pre", "dec/x", ""};
    for (int r = 0; r < 3; r++) {
        ck_assert_str_eq(reasons[r].reason.child, child[r]);
        ck_assert_uint_eq(reasons[r].reason.struct_size, sizeof reasons[r]);
        ck_assert_uint_eq(reasons[r].more[0], 0xEE);
    }
}
END_TEST

START_TEST(problem_and_bounds_of_another_size)
{
    struct {
        attn_bounds bounds;
        uint64_t more[2];
    } wide;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    memset(&wide, 0xEE, sizeof wide);
    wide.bounds = bounds;
    wide.bounds.struct_size = sizeof wide;
    problems[0].bounds = &wide.bounds;
    problems[0].struct_size = offsetof(attn_problem, features);
    problems[0].features = (const char *const *)(uintptr_t)1;
    ck_assert_int_eq(query(&verdict), ATTN_OK);
    ck_assert_uint_eq(DEC->bounds.struct_size, sizeof(attn_bounds));
    ck_assert_uint_eq(DEC->problem.struct_size, sizeof(attn_problem));
    ck_assert_ptr_null(DEC->problem.features);
}
END_TEST

START_TEST(memory_of_another_size)
{
    start();
    ck_assert_int_eq(create(), ATTN_OK);
    ck_assert_int_eq(create_metadata(), ATTN_OK);
    attn_metadata *other = NULL;
    attn_memory_size small;
    memset(&small, 0xEE, sizeof small);
    small.struct_size = offsetof(attn_memory_size, alignment);
    ck_assert_int_eq(OPS->metadata_size(instance, 0, &bounds, &small, &error), ATTN_OK);
    ck_assert_mem_eq(small.size, size.size, sizeof size.size);
    ck_assert_uint_eq(small.alignment[0], 0xEEEEEEEEEEEEEEEEu);
    ck_assert_uint_eq(small.struct_size, offsetof(attn_memory_size, alignment));
    memory.struct_size = offsetof(attn_memory, size); /* sizes that are not part of it are 0 */
    ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &memory, &other, &error),
                     ATTN_BUFFER_TOO_SMALL);
    ck_assert_ptr_null(other);
    finish();
}
END_TEST

/* ---- Create ---------------------------------------------------------------------------------- */

START_TEST(create_without_an_option)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    start();
    if (_i == 0)
        values[0] = values[2];
    else if (_i == 1)
        values[1] = values[2];
    else
        options.num_values = 0;
    ck_assert_int_eq(query(&verdict), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(message, _i == 1 ? "option decode" : "option prefill"));
    ck_assert_uint_eq(error.field, ATTN_FIELD_OPTION);
    message[0] = '\0';
    ck_assert_int_eq(create(), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(message, _i == 1 ? "option decode" : "option prefill"));
    ck_assert_ptr_null(instance);
    check_nothing_left();
    ck_assert_int_eq(
        hybrid_phase_type.query(&hybrid_phase_type, NULL, &mock_services, problems, &verdict, NULL),
        ATTN_CONFIG_ERROR);
}
END_TEST

START_TEST(create_without_child_services)
{
    attn_verdict verdict = {.struct_size = sizeof verdict};
    attn_services services = mock_services;
    start();
    if (_i == 0)
        services.child_query = NULL;
    else
        services.child_create = NULL;
    ck_assert_int_eq(hybrid_phase_type.query(&hybrid_phase_type, &options, &services, problems,
                                             &verdict, &error),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(hybrid_phase_type.create(&hybrid_phase_type, problems, 2, &options, &services,
                                              &instance, &error),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_null(instance);
    check_nothing_left();
}
END_TEST

START_TEST(create_fails_in_a_child)
{
    start();
    mock_children[_i].create_status = ATTN_DEPENDENCY_MISSING;
    ck_assert_int_eq(create(), ATTN_DEPENDENCY_MISSING);
    ck_assert_int_eq(error.code, ATTN_DEPENDENCY_MISSING);
    ck_assert_ptr_null(instance);
    ck_assert_int_eq(PRE->calls[MOCK_DESTROY], _i == MOCK_DEC);
    check_nothing_left();
    mock_children[_i].create_status = ATTN_OK;
    mock_children[_i].query_status = ATTN_DEVICE_LOST;
    ck_assert_int_eq(create(), ATTN_DEVICE_LOST);
    ck_assert_ptr_null(instance);
    check_nothing_left();
}
END_TEST

/* Whichever allocation fails: nothing is left. */
START_TEST(create_runs_out_of_memory)
{
    attn_status status = ATTN_OUT_OF_HOST_MEMORY;
    int failed = 0;
    for (int allowed = 0; status != ATTN_OK; allowed++) {
        start();
        mock_allocate_left = allowed;
        status = create();
        if (status == ATTN_OK)
            break;
        ck_assert_int_eq(status, ATTN_OUT_OF_HOST_MEMORY);
        ck_assert_ptr_null(instance);
        check_nothing_left();
        failed++;
    }
    ck_assert_int_ge(failed, 3);
    finish();
}
END_TEST

START_TEST(children_are_destroyed_last_first)
{
    start();
    ready();
    finish();
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        ck_assert_int_eq(mock_children[c].calls[MOCK_DESTROY], 1);
        ck_assert_int_eq(mock_children[c].calls[MOCK_METADATA_DESTROY], 1);
    }
    OPS->destroy(NULL);
    OPS->metadata_destroy(NULL);
}
END_TEST

/* ---- Memory ---------------------------------------------------------------------------------- */

enum {
    DEVICE_SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    DEVICE_METADATA = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    DEVICE_ZEROED = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_ZEROED),
    PINNED_METADATA = ATTN_REGION(ATTN_SPACE_PINNED, ATTN_MEMORY_METADATA),
    HOST_SCRATCH = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_SCRATCH),
    HOST_METADATA = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

static void ask_memory(mock_child *child, uint32_t region, uint64_t bytes, uint64_t alignment)
{
    child->size.size[region] = bytes;
    child->size.alignment[region] = alignment;
}

static void ask_odd_memory(void)
{
    ask_memory(PRE, DEVICE_SCRATCH, 1000, 256);
    ask_memory(DEC, DEVICE_SCRATCH, 1001, 16);
    ask_memory(PRE, DEVICE_METADATA, 33, 1);
    ask_memory(DEC, DEVICE_METADATA, 100, 512);
    ask_memory(PRE, DEVICE_ZEROED, 7, 0);
    ask_memory(DEC, DEVICE_ZEROED, 5, 4);
    ask_memory(DEC, PINNED_METADATA, 3, 2);
    ask_memory(PRE, PINNED_METADATA, 0, 4096); /* an alignment of nothing */
    ask_memory(PRE, HOST_SCRATCH, 77, 8);
    ask_memory(PRE, HOST_METADATA, 13, 4096); /* so that there is a gap before it */
    ask_memory(DEC, HOST_METADATA, 5000, 1);
}

START_TEST(memory_is_what_the_children_need)
{
    start();
    ask_odd_memory();
    ready();
    ck_assert_uint_eq(size.size[DEVICE_SCRATCH], 1001); /* shared: the larger of the two */
    ck_assert_uint_eq(size.alignment[DEVICE_SCRATCH], 256);
    ck_assert_uint_eq(size.size[DEVICE_METADATA], 512 + 100);
    ck_assert_uint_eq(size.alignment[DEVICE_METADATA], 512);
    ck_assert_uint_eq(size.size[DEVICE_ZEROED], 8 + 5);
    ck_assert_uint_eq(size.alignment[DEVICE_ZEROED], 4);
    ck_assert_uint_eq(size.size[PINNED_METADATA], 3);
    ck_assert_uint_eq(size.alignment[PINNED_METADATA], 2);
    ck_assert_uint_eq(size.size[HOST_SCRATCH], 77);
    ck_assert_uint_eq(size.alignment[HOST_METADATA], 4096);
    ck_assert_uint_eq(size.size[HOST_METADATA] % 4096, (13 + 5000) % 4096);
    for (int c = 0; c < MOCK_CHILDREN; c++)
        for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
            const mock_child *child = &mock_children[c];
            const unsigned char *bytes = child->memory.base[r];
            uint64_t alignment = child->size.alignment[r];
            ck_assert_uint_eq(child->memory.size[r], child->size.size[r]);
            if (child->size.size[r] == 0)
                continue;
            ck_assert_uint_eq(alignment ? (uintptr_t)bytes % alignment : 0, 0);
            ck_assert(bytes >= (unsigned char *)memory.base[r]);
            ck_assert(bytes + child->size.size[r] <=
                      (unsigned char *)memory.base[r] + memory.size[r]);
            /* Each child has filled its part; scratch alone may be shared. */
            for (uint64_t b = 0; r % ATTN_MEMORY_COUNT != 0 && b < child->size.size[r]; b++)
                ck_assert_uint_eq(bytes[b], 0xA0u + (unsigned)c);
        }
    ck_assert_ptr_eq(PRE->memory.base[DEVICE_SCRATCH], memory.base[DEVICE_SCRATCH]);
    ck_assert_ptr_eq(DEC->memory.base[DEVICE_SCRATCH], memory.base[DEVICE_SCRATCH]);
    make_mixed(0); /* its own part is not theirs */
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    ck_assert_ptr_eq(DEC->kv[1].kv_lens.device, kv[1].kv_lens.device + EXTENDS);
    finish();
}
END_TEST

/* One byte less, and one byte off, in every region. */
START_TEST(memory_too_small_or_misaligned)
{
    start();
    ask_odd_memory();
    ready();
    attn_metadata *other = NULL;
    int refused = 0;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        if (size.size[r] == 0)
            continue;
        attn_memory less = memory;
        less.size[r]--;
        error.needed = 0;
        ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &less, &other, &error),
                         ATTN_BUFFER_TOO_SMALL);
        ck_assert_uint_eq(error.needed, size.size[r]);
        less = memory;
        less.base[r] = NULL;
        ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &less, &other, &error),
                         ATTN_BUFFER_TOO_SMALL);
        refused++;
        if (size.alignment[r] <= 1)
            continue;
        less = memory;
        less.base[r] = (char *)less.base[r] + size.alignment[r] / 2;
        ck_assert_int_eq(OPS->metadata_create(instance, 0, &bounds, &less, &other, &error),
                         ATTN_INVALID_ARGUMENT);
    }
    ck_assert_int_eq(refused, 6);
    ck_assert_ptr_null(other);
    ck_assert_int_eq(PRE->calls[MOCK_METADATA_CREATE], 1); /* ready()'s */
    finish();
}
END_TEST

START_TEST(metadata_fails_in_a_child)
{
    start();
    ck_assert_int_eq(create(), ATTN_OK);
    mock_children[_i].slot_status[MOCK_METADATA_CREATE] = ATTN_OUT_OF_DEVICE_MEMORY;
    ck_assert_int_eq(create_metadata(), ATTN_OUT_OF_DEVICE_MEMORY);
    ck_assert_str_eq(message, _i == MOCK_PRE ? "child pre: as planned" : "child dec: as planned");
    ck_assert_ptr_null(metadata);
    ck_assert_int_eq(PRE->live_metadata, 0);
    ck_assert_int_eq(DEC->live_metadata, 0);
    ck_assert_int_eq(PRE->calls[MOCK_METADATA_DESTROY], _i == MOCK_DEC);
    check_guards();
    finish();
}
END_TEST

/* Modes beyond those of create. */
START_TEST(metadata_of_modes_not_created_for)
{
    start();
    bounds.modes = BIT(EXTEND);
    ck_assert_int_eq(create(), ATTN_OK);
    bounds.modes = BIT(EXTEND) | BIT(DECODE);
    size.struct_size = sizeof size;
    ck_assert_int_eq(OPS->metadata_size(instance, 0, &bounds, &size, &error), ATTN_UNSUPPORTED);
    ck_assert_uint_eq(error.field, ATTN_FIELD_MODES);
    finish();
}
END_TEST

/* ---- The plugin ------------------------------------------------------------------------------ */

START_TEST(entry_and_describe)
{
    attn_host_info host = {sizeof host, 0, ATTN_ABI_MAJOR, 0, "host", "1", NULL};
    struct {
        attn_plugin plugin;
        unsigned char more[16];
    } given;
    const attn_backend_type *type = NULL;
    start();
    memset(&given, 0, sizeof given);
    given.plugin.struct_size = sizeof given;
    ck_assert_int_eq(attn_plugin_entry(&host, &given.plugin, &error), ATTN_OK);
    ck_assert_uint_eq(given.plugin.struct_size, sizeof given);
    ck_assert_uint_eq(given.plugin.abi_major, ATTN_ABI_MAJOR);
    ck_assert_str_eq(given.plugin.name, "hybrid");
    ck_assert_uint_eq(given.plugin.num_backends, 4);
    ck_assert_int_eq(given.plugin.describe(0, &type, &error), ATTN_OK);
    ck_assert_ptr_eq(type, &hybrid_phase_type);
    ck_assert_uint_eq(type->flags, ATTN_BACKEND_COMPOSITE);
    ck_assert_int_eq(given.plugin.describe(4, &type, &error), ATTN_INVALID_ARGUMENT);
    host.abi_major_min = host.abi_major_max = ATTN_ABI_MAJOR + 1;
    ck_assert_int_eq(attn_plugin_entry(&host, &given.plugin, &error), ATTN_INCOMPATIBLE_VERSION);
}
END_TEST

static Suite *hybrid_suite(void)
{
    static const struct test_row tests[] = {
        {"routing", &children_hear_of_their_modes_alone, 9},
        {"routing", &no_mode_is_no_licence, 3},
        {"routing", &idle_metadata_of_one_phase, 1},
        {"routing", &decode_bounds_are_narrow, 1},
        {"routing", &group_without_modes_is_left_out, 1},
        {"split", &mixed_is_split_only_where_it_can_be, 8},
        {"split", &mixed_alone_stands_for_its_halves, 1},
        {"split", &whole_mixed_is_not_batch_invariant, 1},
        {"split", &refusal_of_rows_is_not_hidden, 1},
        {"verdicts", &yes_is_merged, 1},
        {"verdicts", &reasons_are_named_and_counted, 1},
        {"verdicts", &one_no_is_a_no, 2},
        {"verdicts", &mixed_limits_the_graph_level, 1},
        {"sizes", &verdict_of_another_size, 4},
        {"sizes", &reasons_of_another_size, 1},
        {"sizes", &problem_and_bounds_of_another_size, 1},
        {"sizes", &memory_of_another_size, 1},
        {"create", &create_without_an_option, 3},
        {"create", &create_without_child_services, 2},
        {"create", &create_fails_in_a_child, 2},
        {"create", &create_runs_out_of_memory, 1},
        {"create", &children_are_destroyed_last_first, 1},
        {"memory", &memory_is_what_the_children_need, 1},
        {"memory", &memory_too_small_or_misaligned, 1},
        {"memory", &metadata_fails_in_a_child, 2},
        {"memory", &metadata_of_modes_not_created_for, 1},
        {"calls", &entry_and_describe, 1},
    };
    return suite_of_rows("hybrid", tests, sizeof tests / sizeof tests[0]);
}

int main(void)
{
    return test_main(hybrid_suite());
}
