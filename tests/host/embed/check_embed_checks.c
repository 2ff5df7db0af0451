/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host says of an engine's mistakes before a plugin sees them: batches, arguments, structs
 * whose size was not set.
 */
#include "tests/host/embed/batch_fixture.h"

#include "host/base/operand_roles.h"

/* ---- Batches --------------------------------------------------------------------------------- */

/* Spoil one member of a good EXTEND batch at a time. */
#define ASSERT_BAD_BATCH(part, spoil)                                                              \
    do {                                                                                           \
        make_batch(ATTN_MODE_EXTEND);                                                              \
        spoil;                                                                                     \
        host_error_init(&error);                                                                   \
        ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),      \
                         ATTN_INVALID_ARGUMENT);                                                   \
        assert_says(part);                                                                         \
        ck_assert_uint_eq(error.base.field, ATTN_FIELD_BATCH);                                     \
        ck_assert_int_eq(forward(metadata, 0), ATTN_BAD_STATE);                                    \
    } while (0)

TEST_OF(checks, bad_batches)
{
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_EXTEND), ATTN_OK);
    ASSERT_BAD_BATCH("batch.mode is 6; accepted: 0..5", batch.mode = 6);
    ASSERT_BAD_BATCH(
        "batch.mode is target_verify; accepted: extend, decode, mixed, the modes of the "
        "bounds",
        batch.mode = ATTN_MODE_TARGET_VERIFY);
    ASSERT_BAD_BATCH("num_seqs is 9; accepted: 0..8", batch.num_seqs = 9);
    ASSERT_BAD_BATCH("num_seqs is -1", batch.num_seqs = -1);
    ASSERT_BAD_BATCH("num_tokens is 34; accepted: 0..33", batch.num_tokens = 34);
    ASSERT_BAD_BATCH("num_real_seqs is 4", batch.num_real_seqs = 4);
    ASSERT_BAD_BATCH("num_real_tokens is 6", batch.num_real_tokens = 6);
    ASSERT_BAD_BATCH("max_kv_len is 101", batch.max_kv_len = 101);
    ASSERT_BAD_BATCH("max_q_len is 18", batch.max_q_len = 18);
    ASSERT_BAD_BATCH("num_tokens is 5; accepted: num_seqs in DECODE, which is 3",
                     batch.mode = ATTN_MODE_DECODE);
    ASSERT_BAD_BATCH("seq_lens.device is absent", batch.seq_lens.device = NULL);
    ASSERT_BAD_BATCH("q_indptr.device is absent", batch.q_indptr.device = NULL);
    ASSERT_BAD_BATCH("prefix_lens.device is absent", batch.prefix_lens.device = NULL);
    ASSERT_BAD_BATCH("a layer uses group 1", batch.num_kv_groups = 1);
    ASSERT_BAD_BATCH("kv_groups[1].page_size is 0", kv[1].page_size = 0);
    ASSERT_BAD_BATCH("kv_groups[1].block_table is absent", kv[1].index_forms = ATTN_INDEX_CSR);
    ASSERT_BAD_BATCH("kv_groups[0].block_table is absent", kv[0].block_table.device = NULL);
    make_batch(ATTN_MODE_EXTEND);
    batch.num_seqs = 7;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                     ATTN_INTERNAL);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: seven sequences");
    ck_assert_int_eq(forward(metadata, 0), ATTN_BAD_STATE);
    attnhost_metadata_destroy(metadata);
}

/* Sequences of a MIXED batch that decode: where they are, and how many queries they have. */
TEST_OF(checks, bad_decodes)
{
    static const int32_t two_each[4] = {0, 1, 3, 5};
    BACKEND(backend) = compose("fixture_one");
    bounds.uses = ATTN_USES_DECODES_FIRST;
    attnhost_metadata *metadata = make_metadata(backend, NULL);
#define MIXED(count, first, queries)                                                               \
    (batch.mode = ATTN_MODE_MIXED, batch.num_decode_seqs = (count),                                \
     batch.first_decode_seq = (first), batch.decode_q_len = (queries))
    ASSERT_BAD_BATCH("num_decode_seqs is 1; accepted: 0..0", batch.num_decode_seqs = 1);
    ASSERT_BAD_BATCH("first_decode_seq is 1; accepted: 0", batch.first_decode_seq = 1);
    ASSERT_BAD_BATCH("decode_q_len is 1; accepted: 0", batch.decode_q_len = 1);
    ASSERT_BAD_BATCH("num_decode_seqs is 4; accepted: 0..3", MIXED(4, 0, 1));
    ASSERT_BAD_BATCH(
        "first_decode_seq is 1; accepted: 0, or num_seqs - num_decode_seqs, which is 2",
        MIXED(1, 1, 1));
    ASSERT_BAD_BATCH("decode_q_len is 0; accepted: 1 (more where the bounds use decode_drafts)",
                     MIXED(1, 2, 0));
    ASSERT_BAD_BATCH("decode_q_len is 2; accepted: 1", MIXED(1, 2, 2));
    ASSERT_BAD_BATCH("q_indptr[2] - q_indptr[1] is 2; accepted: decode_q_len of a sequence that "
                     "decodes, which is 1",
                     (MIXED(2, 1, 1), batch.q_indptr.host = two_each));
    make_batch(ATTN_MODE_EXTEND);
    MIXED(1, 0, 1);
    batch.q_indptr.host = two_each;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    attnhost_metadata_destroy(metadata);
    bounds.uses = ATTN_USES_DECODE_DRAFTS;
    metadata = make_metadata(backend, NULL);
    ASSERT_BAD_BATCH("first_decode_seq is 0; accepted: num_seqs - num_decode_seqs (or 0 where",
                     MIXED(1, 0, 1));
    make_batch(ATTN_MODE_EXTEND);
    MIXED(2, 1, 2);
    batch.q_indptr.host = two_each;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
#undef MIXED
    attnhost_metadata_destroy(metadata);
}

/* Which keys are chosen is each call's; how many at most is the batch's. */
TEST_OF(checks, bad_sparse)
{
    const attn_sparse_dims dims = {.struct_size = sizeof dims, .top_k = 64, .block_size = 1};
    attn_sparse_batch sparse = {.struct_size = sizeof sparse};
    BACKEND(backend) = NULL;
    make_problems();
    groups[1].kind = ATTN_KIND_SPARSE;
    groups[1].sparse = &dims;
    ck_assert_int_eq(attnhost_compose(host, "fixture_one", problems, 2, &backend, &error.base),
                     ATTN_OK);
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ASSERT_BAD_BATCH("batch.sparse, which sparse layers need, is absent", batch.sparse = NULL);
    ASSERT_BAD_BATCH("sparse.max_count is 0; accepted: 1..the largest top_k of the layers",
                     batch.sparse = &sparse);
    sparse.max_count = 65;
    ASSERT_BAD_BATCH("sparse.max_count is 65", batch.sparse = &sparse);
    sparse.max_count = 64;
    make_batch(ATTN_MODE_EXTEND);
    batch.sparse = &sparse;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    attnhost_metadata_destroy(metadata);
}

/* Linear layers need the slots of their state group, and each group is looked at. */
TEST_OF(checks, bad_state_groups)
{
    static const int32_t slots[3] = {4, 7, 9}, twice[3] = {4, 7, 4};
    attn_state_batch states[2];
    BACKEND(backend) = NULL;
    make_problems();
    groups[1].kind = ATTN_KIND_LINEAR;
    groups[1].state_group = 1;
    groups[1].linear = &(const attn_linear_dims){.struct_size = sizeof(attn_linear_dims)};
    ck_assert_int_eq(attnhost_compose(host, "fixture_one", problems, 2, &backend, &error.base),
                     ATTN_OK);
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    for (int g = 0; g < 2; g++)
        states[g] = (attn_state_batch){.struct_size = sizeof states[g], .slot = {slots, slots}};
#define STATES(count) (batch.num_state_groups = (count), batch.state_groups = states)
    ASSERT_BAD_BATCH("batch.state_groups has 0 elements; accepted: one for each state group (a "
                     "layer uses group 1)",
                     (void)batch);
    ASSERT_BAD_BATCH("batch.state_groups has 1 elements", STATES(1));
    make_batch(ATTN_MODE_EXTEND);
    STATES(2);
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    states[1].slot.host = twice;
    ASSERT_BAD_BATCH("batch.state_groups[1].slot[2] is 4, which sequence 0 writes, too", STATES(2));
    states[1].slot = (attn_i32_array){slots, NULL};
    ASSERT_BAD_BATCH("batch.state_groups[1].slot.device is absent", STATES(2));
#undef STATES
    attnhost_metadata_destroy(metadata);
}

/* A host array is there to be read: one that contradicts the batch would make a backend write past
 * its memory. */
TEST_OF(checks, bad_indptr)
{
    static const int32_t falling[4] = {0, 5, 3, 5}, jump[4] = {0, 1000, 1060, 1060},
                         negative[4] = {-1, 0, 3, 4}, moved[4] = {7, 8, 12, 12};
    static const int64_t mask_falls[4] = {0, 8, 7, 9};
    const attn_mask mask = {.struct_size = sizeof mask, .indptr = {mask_falls, NULL}};
    const attn_shared_prefix shared = {
        .struct_size = sizeof shared, .num_groups = 3, .seq_indptr = {jump, jump}};
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    make_batch(ATTN_MODE_EXTEND);
    batch.q_indptr.host = moved; /* rows of a slice */
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ASSERT_BAD_BATCH("q_indptr[2] is 3; accepted: at least 5", batch.q_indptr.host = falling);
    ASSERT_BAD_BATCH("q_indptr[0] is -1; accepted: at least 0", batch.q_indptr.host = negative);
    ASSERT_BAD_BATCH("q_indptr[3] - q_indptr[0] is 1060; accepted: 0..5",
                     batch.q_indptr.host = jump);
    ASSERT_BAD_BATCH("mask.indptr[2] is 7; accepted: at least 8", batch.mask = &mask);
    ASSERT_BAD_BATCH("shared_prefix.seq_indptr[3]",
                     (batch.shared_prefix = &shared, batch.num_prefix_levels = 1));
    ASSERT_BAD_BATCH("num_prefix_levels is 2; accepted: 1..1 with",
                     (batch.shared_prefix = &shared, batch.num_prefix_levels = 2));
    ASSERT_BAD_BATCH("num_prefix_levels is 0; accepted: 1..1 with", batch.shared_prefix = &shared);
    ASSERT_BAD_BATCH("kv_new_indptr[2] is 3", kv[1].kv_new_indptr.host = falling);
    ASSERT_BAD_BATCH("kv_indptr[2] is 3", kv[0].kv_indptr.host = falling);
    make_batch(ATTN_MODE_DECODE);
    batch.q_indptr.host = falling; /* not read in DECODE */
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    attnhost_metadata_destroy(metadata);
}

/* Lengths that contradict each other; padding may say what it likes. */
TEST_OF(checks, bad_lens)
{
    static const int32_t long_lens[3] = {1, 10, 4}, beyond[3] = {1, 9, 101},
                         negative[3] = {1, 9, -4}, new_tokens[5] = {0, 1, -4, 2, 3};
    static const int32_t four_more[4] = {0, 0, 5, 5};
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    make_batch(ATTN_MODE_EXTEND);
    batch.seq_lens.host = lens;
    batch.prefix_lens.host = prefixes;
    batch.q_indptr.host = indptr;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    batch.seq_lens.host = long_lens;
    batch.num_real_seqs = 1;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
#define HOST_ARRAYS(a, b, c)                                                                       \
    (batch.seq_lens.host = (a), batch.prefix_lens.host = (b), batch.q_indptr.host = (c))
    ASSERT_BAD_BATCH("seq_lens[1] is 10; accepted: prefix_lens[1] and the rows of q, 5 + 4",
                     (HOST_ARRAYS(long_lens, prefixes, indptr), batch.max_kv_len = 10));
    ASSERT_BAD_BATCH("q_indptr[2] - q_indptr[1] is 5; accepted: 0..max_q_len, which is 4",
                     HOST_ARRAYS(NULL, NULL, four_more));
    ASSERT_BAD_BATCH("batch.seq_lens[2] is 101; accepted: 0..max_kv_len, which is 9",
                     HOST_ARRAYS(beyond, NULL, NULL));
    ASSERT_BAD_BATCH("batch.seq_lens[2] is -4", HOST_ARRAYS(negative, NULL, NULL));
    ASSERT_BAD_BATCH("kv_groups[].kv_lens[2] is 101", kv[1].kv_lens.host = beyond);
    ASSERT_BAD_BATCH("positions[2] is -4; accepted: at least 0",
                     (HOST_ARRAYS(NULL, NULL, indptr), batch.positions.host = new_tokens));
    HOST_ARRAYS(NULL, NULL, indptr);
    batch.positions.host = new_tokens;
    batch.num_real_seqs = 1;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    attnhost_metadata_destroy(metadata);
}

TEST_OF(checks, bad_slots)
{
    static const int32_t apart[3] = {4, 7, 1 << 30}, twice[3] = {4, 7, 4}, padding[3] = {0, 7, 0},
                         negative[3] = {4, -7, 1}, below[2] = {-1, -7}, swapped[3] = {7, 4, 9},
                         fresh[3] = {0, 0, 0}, snapshots[5] = {-1, 20, -1, -1, 21},
                         clash[5] = {-1, 20, -1, 4, -1}, own[5] = {4, -1, -1, -1, -1},
                         elsewhere[3] = {40, 70, 90};
    attn_state_batch state = {.struct_size = sizeof state};
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
#define STATE(...)                                                                                 \
    (state = (attn_state_batch){.struct_size = sizeof state, __VA_ARGS__},                         \
     batch.state_groups = &state, batch.num_state_groups = 1, batch.q_indptr.host = indptr)
#define GOOD(...)                                                                                  \
    do {                                                                                           \
        make_batch(ATTN_MODE_EXTEND);                                                              \
        STATE(__VA_ARGS__);                                                                        \
        ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);   \
    } while (0)
    GOOD(.slot = {apart, NULL});
    GOOD(.slot = {apart, NULL}); /* what the batch before wrote is forgotten */
    GOOD(.slot = {padding, NULL});
    GOOD(.slot = {NULL, twice}); /* cannot be read here */
    GOOD(.slot = {twice, NULL}, .dst_slot = {apart, NULL}, .has_initial = {fresh, NULL});
    GOOD(.slot = {twice, NULL}, .dst_slot = {NULL, apart});
    GOOD(.slot = {apart, NULL}, .snapshots = {snapshots, NULL});
    ASSERT_BAD_BATCH("batch.state_groups[0].slot[2] is 4, which sequence 0 writes, too",
                     STATE(.slot = {twice, NULL}));
    ASSERT_BAD_BATCH("batch.state_groups[0].slot[1] is -7; accepted: 0 or more",
                     STATE(.slot = {negative, NULL}));
    ASSERT_BAD_BATCH(
        "batch.state_groups[0].slot[0] is 4, which sequence 1 writes; accepted: a slot "
        "that no other sequence writes",
        STATE(.slot = {apart, NULL}, .dst_slot = {swapped, NULL}));
    ASSERT_BAD_BATCH("batch.state_groups[0].dst_slot[2] is 4, which sequence 0 writes, too",
                     STATE(.slot = {apart, NULL}, .dst_slot = {twice, NULL}));
    ASSERT_BAD_BATCH("batch.state_groups[0].snapshots[3] is 4, which sequence 0 writes, too",
                     STATE(.slot = {apart, NULL}, .snapshots = {clash, NULL}));
    ASSERT_BAD_BATCH("batch.state_groups[0].snapshots[1] is -7; accepted: 0 or more",
                     STATE(.slot = {apart, NULL}, .snapshots = {below, NULL}));
    GOOD(.slot = {apart, NULL}, .dst_slot = {elsewhere, NULL}, .snapshots = {own, NULL},
         .has_initial = {fresh, NULL}); /* which is not read */
    ASSERT_BAD_BATCH(
        "batch.state_groups[0].slot[0] is 4, which receives a snapshot of the same sequence; "
        "accepted: a slot that receives no snapshot",
        STATE(.slot = {apart, NULL}, .dst_slot = {elsewhere, NULL}, .snapshots = {own, NULL}));
    attnhost_metadata_destroy(metadata);
}

/* Many slots, so that the table grows and its entries meet. */
TEST_OF(checks, many_slots)
{
    static int32_t slots[8], snapshots[33], rows[9];
    attn_state_batch state = {
        .struct_size = sizeof state, .slot = {slots, NULL}, .snapshots = {snapshots, NULL}};
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    make_batch(ATTN_MODE_EXTEND);
    batch.num_seqs = batch.num_real_seqs = 8;
    batch.num_tokens = batch.num_real_tokens = 33;
    batch.max_q_len = 5;
    batch.state_groups = &state;
    batch.num_state_groups = 1;
    batch.q_indptr.host = rows;
    for (int s = 0; s < 8; s++) {
        slots[s] = 64 * (s + 1);
        rows[s + 1] = s < 7 ? 4 * (s + 1) : 33;
    }
    for (int r = 0; r < 33; r++)
        snapshots[r] = 64 * (r + 10);
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    snapshots[32] = snapshots[3];
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("batch.state_groups[0].snapshots[32] is 832, which sequence 0 writes, too");
    attnhost_metadata_destroy(metadata);
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* Sinks and slopes are given if and only if the layer's group says so. */
TEST_OF(checks, unannounced_operands)
{
    static const uint32_t roles[] = {ATTN_ROLE_SINKS, ATTN_ROLE_ALIBI_SLOPES};
    static const uint32_t flags[] = {ATTN_GROUP_HAS_SINKS, ATTN_GROUP_HAS_ALIBI};
    static const char *const says[] = {"layer 0: sinks is given", "layer 0: alibi_slopes is given"};
    const attn_tensor tensor = {.struct_size = sizeof tensor, .dtype = ATTN_F32};
    for (int r = 0; r < 2; r++) {
        const attn_tensor *operands[ATTN_ROLE_COUNT] = {0};
        const attn_forward_args given = {
            .struct_size = sizeof given, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
        attnhost_backend *backend = NULL;
        operands[roles[r]] = &tensor;
        make_problems();
        groups[1].flags = flags[r];
        ck_assert_int_eq(attnhost_compose(host, "fixture_one", problems, 2, &backend, &error.base),
                         ATTN_OK);
        attnhost_metadata *metadata = make_metadata(backend, NULL);
        ck_assert_int_eq(plan(metadata, ATTN_MODE_DECODE), ATTN_OK);
        ck_assert_int_eq(attnhost_forward(metadata, 1, &given, NULL, &error.base), ATTN_OK);
        ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base),
                         ATTN_INVALID_ARGUMENT);
        assert_says(says[r]);
        attnhost_metadata_destroy(metadata);
        attnhost_backend_destroy(backend);
    }
}

/* What each role's operand is in a problem of these types; NONE = it has no use there. */
static void expect_dtypes(const attn_problem *problem, const attn_dtype expected[ATTN_ROLE_COUNT])
{
    for (uint32_t r = 0; r < ATTN_ROLE_COUNT; r++)
        ck_assert_msg(role_dtype(problem, r, NULL) == expected[r], "%s: 0x%x, expected 0x%x",
                      role_name(r), role_dtype(problem, r, NULL), expected[r]);
}

TEST_OF(checks, dtypes_of_roles)
{
    const attn_mla_dims mla = {.struct_size = sizeof mla};
    attn_sparse_dims sparse = {.struct_size = sizeof sparse, .label_dtype = ATTN_BF16};
    attn_linear_dims linear = {
        .struct_size = sizeof linear, .state_dtype = ATTN_F32, .conv_dtype = ATTN_BF16};
    attn_dtype expected[ATTN_ROLE_COUNT] = {
        [ATTN_ROLE_Q] = ATTN_F16,
        [ATTN_ROLE_K] = ATTN_F16,
        [ATTN_ROLE_V] = ATTN_F16,
        [ATTN_ROLE_OUT] = ATTN_BF16,
        [ATTN_ROLE_LSE] = ATTN_F32,
        [ATTN_ROLE_K_CACHE] = ATTN_FP8_E4M3,
        [ATTN_ROLE_V_CACHE] = ATTN_FP8_E4M3,
        [ATTN_ROLE_SINKS] = ATTN_F32,
        [ATTN_ROLE_ALIBI_SLOPES] = ATTN_F32,
        [ATTN_ROLE_Q_NOPE] = ATTN_F16,
        [ATTN_ROLE_Q_PE] = ATTN_F16,
        [ATTN_ROLE_C_KV] = ATTN_F16,
        [ATTN_ROLE_K_PE] = ATTN_F16,
        [ATTN_ROLE_MIXED_QKV] = ATTN_F16,
        [ATTN_ROLE_GATE_Z] = ATTN_F16,
        [ATTN_ROLE_A_LOG] = ATTN_F32,
        [ATTN_ROLE_DT_BIAS] = ATTN_F32,
        [ATTN_ROLE_D_SKIP] = ATTN_F32,
        [ATTN_ROLE_CONV_WEIGHT] = ATTN_F16,
        [ATTN_ROLE_CONV_BIAS] = ATTN_F16,
        [ATTN_ROLE_INDEX_WEIGHTS] = ATTN_F32,
        [ATTN_ROLE_INDEX_K] = ATTN_F16,
        [ATTN_ROLE_INDEX_LOGITS] = ATTN_F32,
    };
    make_problems();
    problems[0].q_dtype = ATTN_F16;
    problems[0].out_dtype = ATTN_BF16;
    problems[0].kv_dtype = ATTN_FP8_E4M3;
    expect_dtypes(problems, expected);
    groups[0].sparse = &sparse;
    expected[ATTN_ROLE_SPARSE_INDICES] = expected[ATTN_ROLE_SPARSE_COUNT] = ATTN_I32;
    expected[ATTN_ROLE_LABEL_CACHE] = ATTN_BF16;
    expect_dtypes(problems, expected);
    sparse.label_dtype = sparse.index_dtype = ATTN_FP8_E4M3;
    expected[ATTN_ROLE_LABEL_CACHE] = ATTN_U8;
    expected[ATTN_ROLE_INDEX_Q] = ATTN_FP8_E4M3;
    expect_dtypes(problems, expected);
    sparse.struct_size = offsetof(attn_sparse_dims, index_heads); /* of older headers */
    expected[ATTN_ROLE_INDEX_Q] = ATTN_DTYPE_NONE;
    expect_dtypes(problems, expected);
    groups[0].sparse = NULL;
    expected[ATTN_ROLE_SPARSE_INDICES] = expected[ATTN_ROLE_SPARSE_COUNT] = ATTN_DTYPE_NONE;
    expected[ATTN_ROLE_LABEL_CACHE] = ATTN_DTYPE_NONE;
    groups[0].mla = &mla;
    expected[ATTN_ROLE_LATENT_CACHE] = ATTN_FP8_E4M3;
    expect_dtypes(problems, expected);
    problems[0].kv_layout = ATTN_LAYOUT_MLA_LATENT_FP8;
    expected[ATTN_ROLE_LATENT_CACHE] = ATTN_U8;
    expect_dtypes(problems, expected);
    groups[0].mla = NULL;
    groups[0].linear = &linear;
    problems[0].kv_layout = NULL;
    expected[ATTN_ROLE_K_CACHE] = expected[ATTN_ROLE_V_CACHE] = ATTN_DTYPE_NONE;
    expected[ATTN_ROLE_LATENT_CACHE] = ATTN_DTYPE_NONE;
    expected[ATTN_ROLE_GATE_A] = expected[ATTN_ROLE_GATE_B] = ATTN_F32;
    expected[ATTN_ROLE_STATE] = ATTN_F32;
    expected[ATTN_ROLE_CONV_STATE] = ATTN_BF16;
    expect_dtypes(problems, expected);
    linear.flags = ATTN_LINEAR_RAW_GATES;
    expected[ATTN_ROLE_GATE_A] = expected[ATTN_ROLE_GATE_B] = ATTN_F16;
    expect_dtypes(problems, expected);
    ck_assert_uint_eq(role_dtype(problems, ATTN_ROLE_COUNT, NULL), ATTN_DTYPE_NONE);
}

/* An operand of every role that a softmax layer has, right and then of another type. */
TEST_OF(checks, wrong_dtypes)
{
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_DECODE), ATTN_OK);
    for (uint32_t r = 0; r <= ATTN_ROLE_V_CACHE; r++) {
        attn_tensor tensor = {.struct_size = sizeof tensor, .dtype = ATTN_F32};
        const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
        const attn_forward_args given = {
            .struct_size = sizeof given, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
        char says[128];
        operands[r] = &tensor;
        ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base), ATTN_OK);
        tensor.dtype = ATTN_BF16;
        host_error_init(&error);
        ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base),
                         ATTN_INVALID_ARGUMENT);
        snprintf(says, sizeof says, "layer 0: %s is bf16; accepted: f32, ", role_name(r));
        assert_says(says);
        ck_assert_uint_eq(error.base.field, ATTN_FIELD_OPERAND);
    }
    attnhost_metadata_destroy(metadata);
}

/* Runs of an inner level lie within those of the outer one, and share no fewer keys. */
TEST_OF(checks, prefix_levels_are_nested)
{
    static const int32_t outer[] = {0, 2, 3}, within[] = {0, 1, 2, 3}, across[] = {0, 1, 3};
    static const int32_t keys[] = {8, 0}, more[] = {8, 12, 0}, fewer[] = {8, 4, 0};
    attn_shared_prefix levels[2];
    BACKEND(backend) = compose("fixture_one");
    bounds.max_prefix_levels = 2;
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    for (int n = 0; n < 3; n++) {
        const int32_t *seqs = n == 1 ? across : within, *shared = n == 2 ? fewer : more;
        levels[0] = (attn_shared_prefix){
            .struct_size = sizeof *levels, .num_groups = 2, .seq_indptr = {outer, outer}};
        levels[0].prefix_len = (attn_i32_array){keys, keys};
        levels[1] = levels[0];
        levels[1].num_groups = n == 1 ? 2 : 3;
        levels[1].seq_indptr = (attn_i32_array){seqs, seqs};
        levels[1].prefix_len = (attn_i32_array){shared, shared};
        make_batch(ATTN_MODE_EXTEND);
        batch.shared_prefix = levels;
        batch.num_prefix_levels = 2;
        host_error_init(&error);
        ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                         n == 0 ? ATTN_OK : ATTN_INVALID_ARGUMENT);
        if (n > 0)
            assert_says(n == 1 ? "shared_prefix[1]: sequences 1..2 share 12 keys; accepted: a run "
                                 "within that of level 0, sequences 0..1, and at least its 8"
                               : "shared_prefix[1]: sequences 1..1 share 4 keys");
    }
    attnhost_metadata_destroy(metadata);
}

/* Launches of a graph are for as many levels and runs as its bounds have. */
TEST_OF(checks, a_graph_has_the_levels_of_its_bounds)
{
    attn_shared_prefix level = {.struct_size = sizeof level, .num_groups = 1};
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = NULL;
    ck_assert_int_eq(attnhost_metadata_create(backend, ATTN_METADATA_GRAPH, &bounds, NULL,
                                              &metadata, &error.base),
                     ATTN_OK);
    make_batch(ATTN_MODE_EXTEND);
    batch.shared_prefix = &level;
    batch.num_prefix_levels = 1;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("1 prefix levels, and level 0 has 1 runs; accepted in a graph: 1 levels of 8 runs, "
                "as in the bounds");
    level.num_groups = 8;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base), ATTN_OK);
    attnhost_metadata_destroy(metadata);
}

/* What the problem promises of where operands lie is held to: addresses, strides, equal caches. */
TEST_OF(checks, wrong_places)
{
    _Alignas(128) static char memory[512];
    const struct {
        uint32_t role;
        uint64_t offset;
        int64_t stride, width; /* K_CACHE's are 64 and 16 */
        uint32_t field;
        const char *says;
    } wrong[] = {
        {ATTN_ROLE_Q, 64, 64, 16, 0, NULL},
        {ATTN_ROLE_Q, 32, 64, 16, ATTN_FIELD_MIN_ALIGNMENT,
         "q: the address of its first element is "},
        {ATTN_ROLE_Q, 64, 72, 16, ATTN_FIELD_MIN_ALIGNMENT,
         "q: an outer stride is 288 bytes; accepted: multiples of 64 (STRUCT-10)"},
        /* rows of 48 bytes keep 16 of the alignment, rows of 128 no more than all of it */
        {ATTN_ROLE_Q, 64, 20, 12, 0, NULL},
        {ATTN_ROLE_Q, 64, 18, 12, ATTN_FIELD_MIN_ALIGNMENT, "72 bytes; accepted: multiples of 16"},
        {ATTN_ROLE_Q, 64, 48, 32, 0, NULL},
        {ATTN_ROLE_V_CACHE, 64, 64, 16, 0, NULL},
        {ATTN_ROLE_V_CACHE, 64, 80, 16, ATTN_FIELD_KV_STRIDES,
         "k_cache has strides[0] 64, v_cache 80; accepted: equal ones"},
    };
    make_problems();
    for (size_t p = 0; p < sizeof problems / sizeof *problems; p++) {
        problems[p].min_alignment = 64;
        problems[p].kv_strides = ATTN_KV_STRIDES_EQUAL;
    }
    BACKEND(backend) = NULL;
    ck_assert_int_eq(attnhost_compose(host, "fixture_one", problems, 2, &backend, NULL), ATTN_OK);
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_DECODE), ATTN_OK);
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        attn_tensor tensor = {.struct_size = sizeof tensor,
                              .data = memory,
                              .byte_offset = wrong[n].offset,
                              .dtype = ATTN_F32,
                              .ndim = 2,
                              .shape = {2, wrong[n].width},
                              .strides = {wrong[n].stride, 1}};
        attn_tensor keys = tensor;
        keys.byte_offset = keys.strides[0] = 64;
        keys.shape[1] = 16;
        const attn_tensor *operands[ATTN_ROLE_COUNT] = {[ATTN_ROLE_K_CACHE] = &keys};
        const attn_forward_args given = {
            .struct_size = sizeof given, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
        operands[wrong[n].role] = &tensor;
        host_error_init(&error);
        ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base),
                         wrong[n].says ? ATTN_INVALID_ARGUMENT : ATTN_OK);
        if (!wrong[n].says)
            continue;
        assert_says(wrong[n].says);
        ck_assert_uint_eq(error.base.field, wrong[n].field);
    }
    attnhost_metadata_destroy(metadata);
}

/* ---- Structs whose size was not set ---------------------------------------------------------- */

TEST_OF(checks, unset_sizes_of_problems)
{
    uint32_t *const sizes[] = {&problems[0].struct_size, &device.struct_size, &bounds.struct_size,
                               &groups[1].struct_size, &layers[0].struct_size};
    static const char *const says[] = {
        "problem 0: struct_size is 0; accepted: ", "problem 0: device: struct_size is 0",
        "problem 0: bounds: struct_size is 0", "problem 1: group: struct_size is 0",
        "problem 0: layers[0]: struct_size is 0"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        make_problems();
        *sizes[i] = 0;
        ck_assert_int_eq(fail_compose("fixture_one"), ATTN_INVALID_ARGUMENT);
        assert_says(says[i]);
    }
}

TEST_OF(checks, unset_sizes_of_steps)
{
    attn_mask mask = {0};
    attn_state_batch state = {0};
    attn_tensor tensor = {.dtype = ATTN_F32};
    attn_scale scale = {0};
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {[ATTN_ROLE_V] = &tensor};
    const attn_scale *scales[ATTN_ROLE_COUNT] = {[ATTN_ROLE_K_CACHE] = &scale};
    attn_forward_args given = {.struct_size = sizeof given,
                               .num_operands = ATTN_ROLE_COUNT,
                               .num_scales = ATTN_ROLE_COUNT,
                               .operands = operands,
                               .scales = scales};
    BACKEND(backend) = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ASSERT_BAD_BATCH("batch: struct_size is 0; accepted: ", batch.struct_size = 0);
    ASSERT_BAD_BATCH("batch.kv_groups[0]: struct_size is 0", kv[0].struct_size = 0);
    ASSERT_BAD_BATCH("batch.mask: struct_size is 0", batch.mask = &mask);
    ASSERT_BAD_BATCH("batch.state_groups[0]: struct_size is 0",
                     (batch.num_state_groups = 1, batch.state_groups = &state));
    ck_assert_int_eq(plan(metadata, ATTN_MODE_DECODE), ATTN_OK);
    ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("layer 0: v: struct_size is 0; accepted: ");
    tensor.struct_size = sizeof tensor;
    ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("layer 0: the scale of k_cache: struct_size is 0; accepted: ");
    scale.struct_size = sizeof scale;
    ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base), ATTN_OK);
    given.struct_size = 4;
    ck_assert_int_eq(attnhost_forward(metadata, 0, &given, NULL, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("layer 0: args: struct_size is 4");
    attnhost_metadata_destroy(metadata);
    bounds.struct_size = 0;
    ck_assert_int_eq(attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                              &metadata, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("bounds: struct_size is 0");
}

GROUP(checks, .set_up = setup, .tear_down = teardown);
TESTS("embed checks");
