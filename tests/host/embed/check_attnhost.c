/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata, batches and forward behind attnhost.h, and its helpers.
 */
#include "tests/host/embed/attnhost_fixture.h"

#include <math.h>

/* ---- Metadata -------------------------------------------------------------------------------- */

static attnhost_metadata *make_metadata(attnhost_backend *backend, const attn_memory *memory)
{
    attnhost_metadata *metadata = NULL;
    attn_status status = attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, memory,
                                                  &metadata, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return metadata;
}

#define SCRATCH ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_USE_SCRATCH)
#define ZEROED  ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_ZEROED)

START_TEST(memory_is_given_or_allocated)
{
    static _Alignas(256) char scratch[33 * 64 + 256];
    static _Alignas(16) char zeroed[16];
    attnhost_backend *backend = compose("fixture_one");
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    attnhost_metadata *none = NULL;
    ck_assert_int_eq(attnhost_metadata_size(backend, ATTN_METADATA_EAGER, &bounds, &size, NULL),
                     ATTN_OK);
    ck_assert_uint_eq(size.size[SCRATCH], 33 * 64);
    ck_assert_uint_eq(size.alignment[SCRATCH], 256);
    ck_assert_uint_eq(size.alignment[5], 1);
    ck_assert_int_eq(attnhost_metadata_size(backend, 2, &bounds, &size, &error.base),
                     ATTN_INVALID_ARGUMENT);

    memory.base[SCRATCH] = scratch;
    memory.size[SCRATCH] = 33 * 64 - 1;
    ck_assert_int_eq(attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, &memory, &none,
                                              &error.base),
                     ATTN_BUFFER_TOO_SMALL);
    ck_assert_uint_eq(error.base.needed, 33 * 64);
    assert_says("device scratch memory has 2111 bytes; accepted: 2112 or more");
    memory.base[SCRATCH] = scratch + 128;
    memory.size[SCRATCH] = 33 * 64;
    ck_assert_int_eq(attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, &memory, &none,
                                              &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("multiple of 256");
    ck_assert_ptr_null(none);
    ck_assert_uint_eq(backend->num_metadata, 0);

    memset(scratch, 0, sizeof scratch);
    memset(zeroed, 0x11, sizeof zeroed);
    memory.base[SCRATCH] = scratch;
    memory.base[ZEROED] = zeroed;
    memory.size[ZEROED] = sizeof zeroed;
    attnhost_metadata *metadata = make_metadata(backend, &memory);
    ck_assert_uint_eq((unsigned char)scratch[33 * 64 - 1], 0xCD); /* the plugin wrote in it */
    ck_assert_int_eq(scratch[33 * 64], 0);
    for (size_t b = 0; b < sizeof zeroed; b++)
        ck_assert_int_eq(zeroed[b], 0);
    ck_assert_ptr_null(backend->scratch[ATTN_SPACE_DEVICE]); /* none of its own was needed */
    attnhost_metadata_destroy(metadata);
    attnhost_metadata_destroy(NULL);
    attnhost_backend_destroy(backend);
    attnhost_backend_destroy(NULL);
}
END_TEST

START_TEST(scratch_is_shared_and_never_moves)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *first = make_metadata(backend, NULL);
    struct embed_scratch *small = backend->scratch[ATTN_SPACE_DEVICE];
    ck_assert_uint_eq(small->users, 2);
    bounds.max_tokens = 5;
    attnhost_metadata *second = make_metadata(backend, NULL);
    ck_assert_ptr_eq(backend->scratch[ATTN_SPACE_DEVICE], small);
    ck_assert_uint_eq(small->users, 3);
    bounds.max_tokens = 1000;
    attnhost_metadata *third = make_metadata(backend, NULL);
    struct embed_scratch *large = backend->scratch[ATTN_SPACE_DEVICE];
    ck_assert_ptr_ne(large, small);
    ck_assert_uint_ge(large->size, 64000);
    ck_assert_uint_eq(large->users, 2);
    ck_assert_uint_eq(small->users, 2);
    memset(small->base, 1, small->size); /* still there */
    attnhost_metadata_destroy(first);
    attnhost_metadata_destroy(second);
    attnhost_metadata_destroy(third);
    ck_assert_uint_eq(large->users, 1);
    ck_assert_int_eq(counters_of("fixture_good")->metadata, 0);
    bounds.max_seqs = 77;
    attnhost_metadata *none = NULL;
    ck_assert_int_eq(
        attnhost_metadata_create(backend, ATTN_METADATA_GRAPH, &bounds, NULL, &none, &error.base),
        ATTN_UNSUPPORTED);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: 77 sequences are too odd");
    ck_assert_uint_eq(large->users, 1);
    attnhost_backend_destroy(backend);
}
END_TEST

/* ---- Batches --------------------------------------------------------------------------------- */

static const int32_t lens[3] = {1, 9, 4}, prefixes[3] = {0, 5, 4}, indptr[4] = {0, 1, 5, 5};
static const int32_t table[3 * 7];
static attn_kv_batch kv[2];
static attn_batch batch;
static const attn_forward_args args = {.struct_size = sizeof args};

static void make_batch(uint32_t mode)
{
    for (int g = 0; g < 2; g++)
        kv[g] = (attn_kv_batch){.struct_size = sizeof kv[g],
                                .index_forms = ATTN_INDEX_BLOCK_TABLE,
                                .page_size = 16,
                                .block_table_stride = 7,
                                .block_table = {NULL, table}};
    int32_t tokens = mode == ATTN_MODE_DECODE ? 3 : 5;
    batch = (attn_batch){.struct_size = sizeof batch,
                         .mode = mode,
                         .num_seqs = 3,
                         .num_tokens = tokens,
                         .num_real_seqs = 3,
                         .num_real_tokens = tokens,
                         .max_q_len = 4,
                         .max_kv_len = 9,
                         .num_kv_groups = 2,
                         .seq_lens = {NULL, lens},
                         .prefix_lens = {NULL, prefixes},
                         .q_indptr = {NULL, indptr},
                         .kv_groups = kv};
}

static attn_status plan(attnhost_metadata *metadata, uint32_t mode)
{
    make_batch(mode);
    return attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base);
}

static attn_status forward(attnhost_metadata *metadata, int32_t layer_id)
{
    host_error_init(&error);
    return attnhost_forward(metadata, layer_id, &args, NULL, &error.base);
}

START_TEST(dispatch_by_mode)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    const struct fixture_counters *counters = counters_of("fixture_good");
    ck_assert_int_eq(forward(metadata, 0), ATTN_BAD_STATE);
    assert_says("fixture_one: layer 0: forward before attnhost_init_forward_metadata");
    const struct {
        uint32_t mode;
        int extends, decodes;
    } steps[] = {{ATTN_MODE_EXTEND, 1, 0},
                 {ATTN_MODE_DECODE, 1, 1},
                 {ATTN_MODE_IDLE, 1, 1},
                 {ATTN_MODE_MIXED, 2, 1}};
    int extends = counters->extends, decodes = counters->decodes;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        ck_assert_int_eq(plan(metadata, steps[s].mode), ATTN_OK);
        ck_assert_int_eq(forward(metadata, 0), ATTN_OK);
        ck_assert_int_eq(counters->extends - extends, steps[s].extends);
        ck_assert_int_eq(counters->decodes - decodes, steps[s].decodes);
    }
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

START_TEST(one_phase_alone)
{
    attnhost_backend *backend = compose("fixture_two");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_EXTEND), ATTN_INVALID_ARGUMENT);
    assert_says("batch.seq_lens.host, which this backend needs, is absent");
    batch.seq_lens.host = lens;
    batch.q_indptr.host = indptr;
    batch.prefix_lens.host = prefixes;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(forward(metadata, 1), ATTN_UNSUPPORTED);
    assert_says("fixture_two: layer 1: batch.mode is 0, and the backend serves only DECODE");
    make_batch(ATTN_MODE_DECODE);
    batch.seq_lens.host = lens;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(forward(metadata, 1), ATTN_OK);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

START_TEST(counters_are_zeroed_after_a_failure)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_DECODE), ATTN_OK);
    ck_assert_int_eq(forward(metadata, FIXTURE_LAYER_FAILS), ATTN_INVALID_ARGUMENT);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: layer 99: q is missing");
    ck_assert_int_eq(forward(metadata, 0), ATTN_OK);
    ck_assert_int_eq(forward(metadata, FIXTURE_LAYER_SILENT), ATTN_TIMEOUT);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: layer 98: TIMEOUT");
    ck_assert_int_eq(forward(metadata, FIXTURE_LAYER_NONSENSE), ATTN_INTERNAL);
    ck_assert_str_eq(host_error_text(&error), "fixture_one: layer 97: INTERNAL");
    ck_assert_int_eq(attnhost_forward(metadata, FIXTURE_LAYER_FAILS, &args, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(forward(metadata, 0), ATTN_OK);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

/* Spoil one member of a good EXTEND batch at a time. */
#define ASSERT_BAD_BATCH(part, spoil)                                                              \
    do {                                                                                           \
        make_batch(ATTN_MODE_EXTEND);                                                              \
        spoil;                                                                                     \
        host_error_init(&error);                                                                   \
        ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),      \
                         ATTN_INVALID_ARGUMENT);                                                   \
        assert_says(part);                                                                         \
        ck_assert_int_eq(forward(metadata, 0), ATTN_BAD_STATE);                                    \
    } while (0)

START_TEST(bad_batches)
{
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_EXTEND), ATTN_OK);
    ASSERT_BAD_BATCH("batch.mode is 6; accepted: 0..5", batch.mode = 6);
    ASSERT_BAD_BATCH("the modes of the bounds", batch.mode = ATTN_MODE_TARGET_VERIFY);
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
    attnhost_backend_destroy(backend);
}
END_TEST

/* A host array is there to be read: one that contradicts the batch would make a backend write past
 * its memory. */
START_TEST(bad_indptr)
{
    static const int32_t falling[4] = {0, 5, 3, 5}, jump[4] = {0, 1000, 1060, 1060},
                         negative[4] = {-1, 0, 3, 4}, moved[4] = {7, 8, 12, 12};
    static const int64_t mask_falls[4] = {0, 8, 7, 9};
    const attn_mask mask = {.struct_size = sizeof mask, .indptr = {mask_falls, NULL}};
    const attn_shared_prefix shared = {
        .struct_size = sizeof shared, .num_groups = 3, .seq_indptr = {jump, jump}};
    attnhost_backend *backend = compose("fixture_one");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    make_batch(ATTN_MODE_EXTEND);
    batch.q_indptr.host = moved; /* rows of a slice */
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ASSERT_BAD_BATCH("q_indptr[2] is 3; accepted: at least 5", batch.q_indptr.host = falling);
    ASSERT_BAD_BATCH("q_indptr[0] is -1; accepted: at least 0", batch.q_indptr.host = negative);
    ASSERT_BAD_BATCH("q_indptr[3] - q_indptr[0] is 1060; accepted: 0..5",
                     batch.q_indptr.host = jump);
    ASSERT_BAD_BATCH("mask.indptr[2] is 7; accepted: at least 8", batch.mask = &mask);
    ASSERT_BAD_BATCH("shared_prefix.seq_indptr[3]", batch.shared_prefix = &shared);
    ASSERT_BAD_BATCH("kv_new_indptr[2] is 3", kv[1].kv_new_indptr.host = falling);
    ASSERT_BAD_BATCH("kv_indptr[2] is 3", kv[0].kv_indptr.host = falling);
    make_batch(ATTN_MODE_DECODE);
    batch.q_indptr.host = falling; /* not read in DECODE */
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}
END_TEST

/* ---- Helpers --------------------------------------------------------------------------------- */

START_TEST(tensors)
{
    static _Alignas(64) float data[2 * 3 * 5];
    const int64_t shape[] = {2, 3, 5}, strides[] = {15, 1, 3}, negative[] = {15, -1, 3};
    attn_tensor tensor;
    ck_assert_int_eq(
        attnhost_tensor_init(&tensor, data, ATTN_DEVICE_CPU, 0, ATTN_F32, 3, shape, NULL, NULL),
        ATTN_OK);
    ck_assert_int_eq(tensor.strides[0], 15);
    ck_assert_int_eq(tensor.strides[1], 5);
    ck_assert_int_eq(tensor.strides[2], 1);
    ck_assert_uint_ge(tensor.alignment, 64);
    ck_assert_uint_eq((uintptr_t)data % tensor.alignment, 0);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data + 1, ATTN_DEVICE_CPU, 0, ATTN_F32, 3, shape,
                                          strides, NULL),
                     ATTN_OK);
    ck_assert_uint_eq(tensor.alignment, 4);
    ck_assert_int_eq(tensor.strides[2], 3);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, 1, 0, ATTN_F32, 3, shape, negative, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, 1, 0, ATTN_F32, 0, shape, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, data, 1, 0, ATTN_F32, 7, shape, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(attnhost_tensor_init(&tensor, NULL, 1, 0, ATTN_F32, 3, shape, NULL, NULL),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(
        attnhost_tensor_init(&tensor, data, 1, 0, ATTN_DTYPE_NONE, 3, shape, NULL, NULL),
        ATTN_INVALID_ARGUMENT);
}
END_TEST

/* A view of [1, 3, 2] outputs or [1, 3] LSEs. */
static attn_tensor view(float *data, uint32_t ndim)
{
    static const int64_t shape[] = {1, 3, 2};
    attn_tensor tensor;
    ck_assert_int_eq(
        attnhost_tensor_init(&tensor, data, ATTN_DEVICE_CPU, 0, ATTN_F32, ndim, shape, NULL, NULL),
        ATTN_OK);
    return tensor;
}

START_TEST(merge)
{
    /* Head 0: weights 1/4 and 3/4. Head 1: b is empty and holds rubbish. Head 2: both empty. */
    float inf = (float)INFINITY, not_a_number = (float)NAN;
    float oa[6] = {4, 8, 1, 2, 0, 0}, la[3] = {0, -1e4f, -inf};
    float ob[6] = {8, 0, not_a_number, inf, 5, 5}, lb[3] = {logf(3), -inf, -inf};
    float oc[6], lc[3];
    attn_tensor out_a = view(oa, 3), lse_a = view(la, 2), out_b = view(ob, 3), lse_b = view(lb, 2);
    attn_tensor out = view(oc, 3), lse = view(lc, 2);
    ck_assert_int_eq(attnhost_merge_states(&out_a, &lse_a, &out_b, &lse_b, &out, &lse, NULL),
                     ATTN_OK);
    static const float expected[6] = {7, 2, 1, 2, 0, 0};
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq_tol(oc[i], expected[i], 1e-6f);
    ck_assert_float_eq_tol(lc[0], logf(4), 1e-6f);
    ck_assert_float_eq(lc[1], -1e4f);
    ck_assert(isinf(lc[2]) && lc[2] < 0);
    /* In place gives the same. */
    ck_assert_int_eq(attnhost_merge_states(&out_a, &lse_a, &out_b, &lse_b, &out_b, &lse_b, NULL),
                     ATTN_OK);
    ck_assert_mem_eq(ob, oc, sizeof oc);
    ck_assert_mem_eq(lb, lc, sizeof lc);
    lse.shape[1] = 2;
    ck_assert_int_eq(attnhost_merge_states(&out_a, &lse_a, &out_b, &lse_b, &out, &lse, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says("merge: lse is of another shape");
}
END_TEST

static Suite *suite(void)
{
    Suite *made = suite_create("attnhost");
    TCase *tests = tcase_create("attnhost");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, memory_is_given_or_allocated);
    tcase_add_test(tests, scratch_is_shared_and_never_moves);
    tcase_add_test(tests, dispatch_by_mode);
    tcase_add_test(tests, one_phase_alone);
    tcase_add_test(tests, counters_are_zeroed_after_a_failure);
    tcase_add_test(tests, bad_batches);
    tcase_add_test(tests, bad_indptr);
    tcase_add_test(tests, tensors);
    tcase_add_test(tests, merge);
    suite_add_tcase(made, tests);
    return made;
}

int main(void)
{
    return test_main(suite());
}
