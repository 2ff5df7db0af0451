/* SPDX-License-Identifier: Apache-2.0
 *
 * check_hybrid: hybrid_phase between a mock host and mock children (hybrid_mock.h): what it says of
 * options, bounds and modes, structs of other sizes, and what remains allocated when memory runs out. What its
 * children are asked and given is judged by stand_ins.sh.
 */
#include "plugins/hybrid/tests/hybrid_fixture.h"

#include <string.h>

/* ---- Routing --------------------------------------------------------------------------------- */

/* A no of either child is the composite's, though no mode is routed to it yet. */
LOOP_OF(routing, no_mode_is_no_licence, 0, 3)
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

/* Metadata for IDLE alone asks whichever child exists. */
TEST_OF(routing, idle_metadata_of_one_phase)
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

TEST_OF(verdicts, reasons_are_named_and_counted)
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

/* ---- Sizes of structs (STRUCT-02, STRUCT-05) ------------------------------------------------- */

/* Of a smaller struct nothing after its end is written, of a larger one nothing after ours. */
LOOP_OF(sizes, verdict_of_another_size, 0, 4)
{
    struct {
        attn_verdict verdict;
        unsigned char more[32];
    } given;
    static const uint32_t sizes[] = {offsetof(attn_verdict, graph_level),
                                     offsetof(attn_verdict, device_bytes), sizeof(attn_verdict),
                                     sizeof given};
    start();
    PRE->verdict.traits = DEC->verdict.traits = ATTN_TRAIT_DETERMINISTIC;
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

TEST_OF(sizes, reasons_of_another_size)
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

TEST_OF(sizes, problem_and_bounds_of_another_size)
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

TEST_OF(sizes, memory_of_another_size)
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

/* ---- Create ---------------------------------------------------------------------------------- */

LOOP_OF(create, create_without_an_option, 0, 3)
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

LOOP_OF(create, create_without_child_services, 0, 2)
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

/* Whichever allocation fails: nothing is left. */
TEST_OF(create, create_runs_out_of_memory)
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

/* ---- Bounds ---------------------------------------------------------------------------------- */

LOOP_OF(bounds, batch_beyond_the_bounds, 0, 8)
{
    static const uint32_t fields[] = {
        ATTN_FIELD_MAX_SEQS, ATTN_FIELD_MAX_TOKENS, ATTN_FIELD_MAX_Q_LEN, ATTN_FIELD_MAX_KV_LEN,
        ATTN_FIELD_MODES,    ATTN_FIELD_MODES,      ATTN_FIELD_BATCH,     ATTN_FIELD_BATCH};
    start();
    bounds.modes = BIT(EXTEND) | BIT(DECODE) | BIT(MIXED);
    ready();
    make_mixed(0);
    make_args();
    ck_assert_int_eq(plan(&mixed), ATTN_OK);
    int planned = PRE->calls[MOCK_INIT];
    switch (_i) {
    case 0:
        mixed.num_seqs = bounds.max_seqs + 1;
        break;
    case 1:
        mixed.num_tokens = bounds.max_tokens + 1;
        break;
    case 2:
        mixed.max_q_len = bounds.max_q_len + 1;
        break;
    case 3:
        mixed.max_kv_len = bounds.max_kv_len + 1;
        break;
    case 4:
        mixed.mode = ATTN_MODE_TARGET_VERIFY;
        break;
    case 5:
        mixed.mode = 40;
        break;
    case 6:
        mixed.num_decode_seqs = SEQS + 1;
        break;
    case 7:
        mixed.num_decode_seqs = -1;
        break;
    }
    ck_assert_int_eq(plan(&mixed), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(error.field, fields[_i]);
    ck_assert_int_eq(PRE->calls[MOCK_INIT], planned);
    /* The batch before it is gone, too. */
    ck_assert_int_eq(OPS->forward_extend(metadata, 4, &args, NULL, &error), ATTN_BAD_STATE);
    finish();
}

/* A KV group's own lengths count, or else the batch's; what the device alone has is not counted here. */
LOOP_OF(bounds, lengths_on_the_device_alone, 0, 2)
{
    static const int32_t lengths[SEQS] = {400, 400, 400, 400, 400};
    start();
    device.type = ATTN_DEVICE_CUDA;
    bounds.modes = BIT(EXTEND) | BIT(DECODE) | BIT(MIXED);
    ready();
    make_mixed(0);
    mixed.seq_lens.host = lengths;
    for (uint32_t g = 0; g < mixed.num_kv_groups; g++) {
        kv[g].kv_lens.host = NULL;
        kv[g].kv_lens.device = _i ? NULL : lengths;
    }
    ck_assert_int_eq(plan(&mixed), _i ? ATTN_INVALID_ARGUMENT : ATTN_OK);
    ck_assert(!_i || error.field == ATTN_FIELD_MAX_KV_TOKENS);
    finish();
}

/* Modes beyond those of create. */
TEST_OF(bounds, metadata_of_modes_not_created_for)
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

/* Layers of which batches of a mode are not: what was planned for them before is gone. */
TEST_OF(bounds, layers_of_other_batches)
{
    start();
    attn_bounds extends = bounds;
    bounds.modes = BIT(EXTEND) | BIT(DECODE);
    extends.modes = BIT(EXTEND);
    problems[1].bounds = &extends;
    ready();
    make_args();
    attn_batch extend = plain_batch(ATTN_MODE_EXTEND), decode = plain_batch(ATTN_MODE_DECODE);
    ck_assert_int_eq(plan(&extend), ATTN_OK);
    ck_assert_int_eq(OPS->forward_extend(metadata, 9, &args, NULL, &error), ATTN_OK);
    ck_assert_int_eq(plan(&decode), ATTN_OK);
    ck_assert_int_eq(OPS->forward_decode(metadata, 4, &args, NULL, &error), ATTN_OK);
    ck_assert_int_eq(OPS->forward_decode(metadata, 9, &args, NULL, &error), ATTN_INVALID_ARGUMENT);
    ck_assert_uint_eq(error.field, ATTN_FIELD_LAYER_ID);
    finish();
}

/* ---- The plugin ------------------------------------------------------------------------------ */

TEST_OF(calls, entry_and_describe)
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

TESTS("hybrid");
