/* SPDX-License-Identifier: Apache-2.0
 *
 * The example for authors of plugins, where it must not serve as a bad example: what it refuses,
 * and batches whose arrays contradict their counts. That it computes what it should is shown by
 * `make installcheck`, which runs it under the oracle.
 */
#include "tests/host/embed/attnhost_fixture.h"

#include <math.h>

#define ALL_MODES (ATTN_MODE_BIT(ATTN_MODE_COUNT) - 1)

static const int32_t table[4 * 7];
static int32_t lens[5] = {1, 9, 4, 4, 4};
static const int32_t prefixes[4] = {0, 5, 0, 0};
static attn_kv_batch kv[2];
static attn_batch batch;

static void make_batch(uint32_t mode, int32_t num_seqs, int32_t num_tokens, const int32_t *indptr)
{
    for (int g = 0; g < 2; g++)
        kv[g] = (attn_kv_batch){.struct_size = sizeof kv[g],
                                .index_forms = ATTN_INDEX_BLOCK_TABLE,
                                .page_size = 16,
                                .block_table_stride = 7,
                                .block_table = {NULL, table}};
    batch = (attn_batch){.struct_size = sizeof batch,
                         .mode = mode,
                         .num_seqs = num_seqs,
                         .num_tokens = num_tokens,
                         .first_decode_seq = mode == ATTN_MODE_MIXED ? num_seqs : 0,
                         .decode_q_len = mode == ATTN_MODE_MIXED,
                         .max_kv_len = 9,
                         .num_kv_groups = 2,
                         .seq_lens = {NULL, lens},
                         .prefix_lens = {NULL, prefixes},
                         .q_indptr = {NULL, indptr},
                         .kv_groups = kv};
}

static attnhost_backend *compose_example(void)
{
    ck_assert_msg(load("example_rows") == ATTN_OK, "%s", host_error_text(&error));
    return compose("example_rows");
}

static attnhost_metadata *make_metadata(attnhost_backend *backend)
{
    attnhost_metadata *metadata = NULL;
    attn_status status = attnhost_metadata_create(backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                                  &metadata, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    return metadata;
}

/* Device arrays alone: the host cannot look into them, the plugin can. */
static void assert_batch(attnhost_metadata *metadata, attn_status status, const char *part)
{
    host_error_init(&error);
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base), status);
    assert_says(part);
}

TEST_OF(example_rows, inconsistent_batches)
{
    static const int32_t good[3] = {3, 4, 7}, jump[3] = {0, 100000, 100060}, falls[3] = {4, 2, 8},
                         below[3] = {-2, 0, 1}, wraps[3] = {INT32_MIN, 0, INT32_MAX};
    attnhost_backend *backend = compose_example();
    attnhost_metadata *metadata = make_metadata(backend);
    make_batch(ATTN_MODE_EXTEND, 2, 4, good);
    assert_batch(metadata, ATTN_OK, "");
    make_batch(ATTN_MODE_EXTEND, 2, 4, jump);
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "q_indptr covers 100060 rows: accepted 0..4");
    make_batch(ATTN_MODE_MIXED, 2, 4, falls);
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "q_indptr[0] 4 and the next 2");
    make_batch(ATTN_MODE_EXTEND, 2, 4, below);
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "q_indptr[0] -2");
    make_batch(ATTN_MODE_EXTEND, 2, 4, wraps);
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "q_indptr[0]");
    make_batch(ATTN_MODE_EXTEND, 2, 3, good);
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "covers 4 rows: accepted 0..3");
    make_batch(ATTN_MODE_EXTEND, 2, 4, good);
    lens[1] = bounds.max_kv_len + 1;
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "sequence 1 of 101 keys: accepted 0..100");
    lens[1] = 9;
    kv[1].kv_lens.device = falls;
    lens[1] = -1;
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "sequence 1 of -1 keys");
    lens[1] = 9;
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

/* The bounds may have room for fewer rows than sequences. The host refuses a DECODE batch of more;
 * the plugin has to on its own, since a composite may be its caller. */
TEST_OF(example_rows, more_sequences_than_tokens)
{
    attnhost_backend *backend = compose_example();
    bounds.max_tokens = 2;
    attnhost_metadata *metadata = make_metadata(backend);
    const attn_backend_ops *ops = backend->child.type->ops;
    make_batch(ATTN_MODE_DECODE, 4, 2, NULL);
    host_error_init(&error);
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                     ATTN_INVALID_ARGUMENT);
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory memory = {.struct_size = sizeof memory};
    attn_metadata *own = NULL;
    ck_assert_int_eq(
        ops->metadata_size(backend->child.instance, ATTN_METADATA_EAGER, &bounds, &size, NULL),
        ATTN_OK);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        memory.size[r] = (size.size[r] + 63) / 64 * 64;
        memory.base[r] = size.size[r] ? aligned_alloc(64, memory.size[r]) : NULL;
    }
    ck_assert_int_eq(ops->metadata_create(backend->child.instance, ATTN_METADATA_EAGER, &bounds,
                                          &memory, &own, &error.base),
                     ATTN_OK);
    for (int32_t num_tokens = 2; num_tokens <= 4; num_tokens += 2) {
        make_batch(ATTN_MODE_DECODE, 4, num_tokens, NULL);
        host_error_init(&error);
        ck_assert_int_eq(ops->init_forward_metadata(own, &batch, NULL, &error.base),
                         ATTN_INVALID_ARGUMENT);
        assert_says(num_tokens == 2 ? "num_tokens 2 in DECODE: accepted 4"
                                    : "num_tokens 4: accepted 0..2, max_tokens");
    }
    ops->metadata_destroy(own);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        free(memory.base[r]);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

/* ---- Rows of padding that no sequence has ---------------------------------------------------- */

TEST_OF(example_rows, padding_rows)
{
    enum { TOKENS = 5, Q_HEADS = 4, KV_HEADS = 2, DIM = 64, PAGES = 1 };
    static float q[TOKENS * Q_HEADS * DIM], out[TOKENS * Q_HEADS * DIM];
    static float cache[PAGES * 16 * KV_HEADS * DIM];
    static const int32_t indptr[3] = {0, 1, 3};
    const int64_t rows[] = {TOKENS, Q_HEADS, DIM}, pages[] = {PAGES, 16, KV_HEADS, DIM};
    attn_tensor tq, tout, tcache;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) {
        q[i] = 1;
        out[i] = -7;
    }
    for (size_t i = 0; i < sizeof cache / sizeof *cache; i++)
        cache[i] = 2;
    attnhost_backend *backend = compose_example();
    attnhost_metadata *metadata = make_metadata(backend);
    make_batch(ATTN_MODE_EXTEND, 2, TOKENS, indptr);
    assert_batch(metadata, ATTN_OK, "");
    ck_assert_int_eq(
        attnhost_tensor_init(&tq, q, ATTN_DEVICE_CPU, 0, ATTN_F32, 3, rows, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(
        attnhost_tensor_init(&tout, out, ATTN_DEVICE_CPU, 0, ATTN_F32, 3, rows, NULL, NULL),
        ATTN_OK);
    ck_assert_int_eq(
        attnhost_tensor_init(&tcache, cache, ATTN_DEVICE_CPU, 0, ATTN_F32, 4, pages, NULL, NULL),
        ATTN_OK);
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {[ATTN_ROLE_Q] = &tq,
                                                    [ATTN_ROLE_OUT] = &tout,
                                                    [ATTN_ROLE_K_CACHE] = &tcache,
                                                    [ATTN_ROLE_V_CACHE] = &tcache};
    const attn_forward_args args = {
        .struct_size = sizeof args, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
    ck_assert_msg(attnhost_forward(metadata, 0, &args, NULL, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
    for (int r = 0; r < TOKENS; r++)
        for (int i = 0; i < Q_HEADS * DIM; i++)
            ck_assert_float_eq_tol(out[r * Q_HEADS * DIM + i], r < 3 ? 2 : 0, 1e-5f);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

/* ---- New keys -------------------------------------------------------------------------------- */

enum { NEW_ROWS = 5, NEW_Q_HEADS = 4, NEW_KV_HEADS = 2, NEW_DIM = 64, NEW_PREFIX = 5 };

/* All scores are 0, so that a row is the mean of the values that it sees: 2 in the cache, where
 * there is NaN after the prefix, and 3 in the arguments. */
static void assert_reads_arguments(attnhost_metadata *metadata, uint32_t flags)
{
    static float q[NEW_ROWS * NEW_Q_HEADS * NEW_DIM], out[NEW_ROWS * NEW_Q_HEADS * NEW_DIM];
    static float k[NEW_ROWS * NEW_KV_HEADS * NEW_DIM], v[NEW_ROWS * NEW_KV_HEADS * NEW_DIM];
    static float cache[2][16 * NEW_KV_HEADS * NEW_DIM];
    const int64_t rows[] = {NEW_ROWS, NEW_Q_HEADS, NEW_DIM},
                  pages[] = {1, 16, NEW_KV_HEADS, NEW_DIM},
                  new_rows[] = {NEW_ROWS, NEW_KV_HEADS, NEW_DIM};
    float *const data[] = {q, k, v, out, cache[0], cache[1]};
    const int64_t *const sizes[] = {rows, new_rows, new_rows, rows, pages, pages};
    static const uint32_t roles[] = {ATTN_ROLE_Q,   ATTN_ROLE_K,       ATTN_ROLE_V,
                                     ATTN_ROLE_OUT, ATTN_ROLE_K_CACHE, ATTN_ROLE_V_CACHE};
    attn_tensor tensors[6];
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {NULL};
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        out[i] = -7;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        v[i] = 3;
    for (size_t i = 0; i < sizeof cache[0] / sizeof cache[0][0]; i++) {
        int is_prefix = i < NEW_PREFIX * NEW_KV_HEADS * NEW_DIM;
        cache[0][i] = is_prefix ? 0 : NAN;
        cache[1][i] = is_prefix ? 2 : NAN;
    }
    for (int t = 0; t < 6; t++) {
        ck_assert_int_eq(attnhost_tensor_init(&tensors[t], data[t], ATTN_DEVICE_CPU, 0, ATTN_F32,
                                              t < 4 ? 3 : 4, sizes[t], NULL, NULL),
                         ATTN_OK);
        operands[roles[t]] = &tensors[t];
    }
    const attn_forward_args args = {.struct_size = sizeof args,
                                    .flags = flags,
                                    .num_operands = ATTN_ROLE_COUNT,
                                    .operands = operands};
    ck_assert_msg(attnhost_forward(metadata, 1, &args, NULL, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
    for (int r = 0; r < NEW_ROWS; r++) {
        float mean = r == 0 ? 3 : (2.0f * NEW_PREFIX + 3.0f * (float)r) / (float)(NEW_PREFIX + r);
        for (int i = 0; i < NEW_Q_HEADS * NEW_DIM; i++)
            ck_assert_float_eq_tol(out[r * NEW_Q_HEADS * NEW_DIM + i], mean, 1e-5f);
    }
}

TEST_OF(example_rows, new_keys_that_are_not_saved)
{
    static const int32_t indptr[3] = {0, 1, 5};
    static const int64_t nowhere[NEW_ROWS] = {-1, -1, -1, -1, -1};
    attnhost_backend *backend = NULL;
    ck_assert_int_eq(load("example_rows"), ATTN_OK);
    make_problems();
    bounds.uses = ATTN_USES_UNSAVED_KV;
    ck_assert_msg(attnhost_compose(host, "example_rows", problems, 2, &backend, &error.base) ==
                      ATTN_OK,
                  "%s", host_error_text(&error));
    attnhost_metadata *metadata = make_metadata(backend);
    make_batch(ATTN_MODE_EXTEND, 2, NEW_ROWS, indptr);
    for (int g = 0; g < 2; g++)
        kv[g].out_cache_loc.device = nowhere;
    assert_batch(metadata, ATTN_OK, "");
    assert_reads_arguments(metadata, ATTN_FORWARD_SAVE_KV);
    assert_reads_arguments(metadata, 0);
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

/* A batch brings KV groups of other backends, too: nothing in them is this one's concern. */
TEST_OF(example_rows, groups_of_others)
{
    static const int32_t indptr[3] = {0, 1, 5}, own[2] = {1, 9};
    attnhost_backend *backend = NULL;
    ck_assert_int_eq(load("example_rows"), ATTN_OK);
    make_problems();
    ck_assert_int_eq(attnhost_compose(host, "example_rows", &problems[1], 1, &backend, &error.base),
                     ATTN_OK);
    attnhost_metadata *metadata = make_metadata(backend);
    make_batch(ATTN_MODE_EXTEND, 2, NEW_ROWS, indptr);
    kv[1].kv_lens.device = own;
    lens[1] = bounds.max_kv_len + 1;
    assert_batch(metadata, ATTN_OK, "");
    kv[1].kv_lens.device = NULL;
    assert_batch(metadata, ATTN_INVALID_ARGUMENT, "sequence 1 of 101 keys: accepted 0..100");
    lens[1] = 9;
    attnhost_metadata_destroy(metadata);
    attnhost_backend_destroy(backend);
}

/* ---- What it refuses ------------------------------------------------------------------------- */

static attn_reason reasons[16];

static uint32_t ask(void)
{
    for (int r = 0; r < 16; r++)
        reasons[r] = (attn_reason){.struct_size = sizeof reasons[r]};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 16, .reasons = reasons};
    ck_assert_int_eq(attnhost_query(host, "example_rows", problems, &verdict, &error.base),
                     ATTN_OK);
    return verdict.supported ? 0 : verdict.num_reasons;
}

/* One item of a list: a number, a range, a stepped range or a word. */
static int is_item(const char *text, size_t length)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyz0123456789_./";
    return length > 0 && strspn(text, word) >= length;
}

static void assert_grammar(const char *accepted)
{
    while (1) {
        const char *end = strstr(accepted, ", ");
        size_t length = end ? (size_t)(end - accepted) : strlen(accepted);
        ck_assert_msg(is_item(accepted, length), "'%s' begins with no item", accepted);
        if (!end)
            return;
        accepted = end + 2;
    }
}

TEST_OF(example_rows, reasons_are_lists)
{
    static const char *const features[] = {"attn.unheard_of/1"};
    ck_assert_int_eq(load("example_rows"), ATTN_OK);
    make_problems();
    ck_assert_uint_eq(ask(), 0);
    device.type = ATTN_DEVICE_CUDA;
    bounds.modes = ALL_MODES;
    bounds.mask_kinds = 15;
    bounds.uses = 63;
    layers[0].flags = 8;
    groups[0].kind = ATTN_KIND_MLA;
    groups[0].attn_type = ATTN_TYPE_CROSS;
    groups[0].attention_chunk = 8;
    groups[0].flags = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI;
    groups[0].kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    problems[0].q_dtype = problems[0].kv_dtype = ATTN_F16;
    problems[0].kv_layout = ATTN_LAYOUT_KV_HND;
    problems[0].graph_level = ATTN_GRAPH_ALWAYS;
    problems[0].required_traits = 64;
    problems[0].num_features = 1;
    problems[0].features = features;
    uint32_t count = ask();
    ck_assert_uint_ge(count, 16);
    for (uint32_t r = 0; r < 16; r++)
        assert_grammar(reasons[r].accepted);
}

/* Every named field set to what is accepted: supported. */
TEST_OF(example_rows, dtypes_are_named)
{
    ck_assert_int_eq(load("example_rows"), ATTN_OK);
    make_problems();
    problems[0].kv_dtype = ATTN_BF16;
    ck_assert_uint_eq(ask(), 1);
    ck_assert_uint_eq(reasons[0].field, ATTN_FIELD_KV_DTYPE);
    ck_assert_str_eq(reasons[0].got, "bf16");
    ck_assert_str_eq(reasons[0].accepted, "f32");
    problems[0].q_dtype = ATTN_F16;
    ck_assert_uint_eq(ask(), 2);
    ck_assert_str_eq(reasons[0].got, "f16");
    ck_assert_str_eq(reasons[0].accepted, "bf16");
    ck_assert_uint_eq(reasons[1].field, ATTN_FIELD_OUT_DTYPE);
    ck_assert_str_eq(reasons[1].accepted, "bf16");
    problems[0].q_dtype = problems[0].out_dtype = ATTN_BF16;
    ck_assert_uint_eq(ask(), 0);
}

TEST_OF(example_rows, unknown_flags)
{
    ck_assert_int_eq(load("example_rows"), ATTN_OK);
    make_problems();
    groups[0].flags = 1u << 31;
    ck_assert_uint_eq(ask(), 1);
    ck_assert_uint_eq(reasons[0].code, ATTN_REASON_UNKNOWN_FEATURE);
    ck_assert_str_eq(reasons[0].accepted, "absent");
}

TEST_OF(example_rows, create_names_the_field)
{
    ck_assert_int_eq(load("example_rows"), ATTN_OK);
    attnhost_backend *backend = compose("example_rows");
    const attn_backend_type *type = registry_find(&host->registry, "example_rows")->type;
    attn_services services = {.struct_size = sizeof services};
    attn_instance *instance = NULL;
    groups[1].attention_chunk = 8;
    host_error_init(&error);
    ck_assert_int_eq(type->create(type, problems, 2, NULL, &services, &instance, &error.base),
                     ATTN_UNSUPPORTED);
    ck_assert_str_eq(host_error_text(&error), "attention_chunk 8: accepted 0 (of 1 reasons)");
    ck_assert_uint_eq(error.base.field, ATTN_FIELD_ATTENTION_CHUNK);
    attnhost_backend_destroy(backend);
}

GROUP(example_rows, .set_up = setup, .tear_down = teardown);
TESTS("example_rows");
