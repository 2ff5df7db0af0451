/* SPDX-License-Identifier: Apache-2.0
 *
 * Metadata, batches and forward of attnhost.h, and its helpers. */
#include "host/plugin/loader.h"
#include "tests/host/embed/batch_fixture.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

/* ---- Pins ------------------------------------------------------------------------------------ */

static attn_status pin(const char *name, const char *sha256)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s.so", fixtures, name);
    return attnhost_pin_plugin(host, path, sha256, &error.base);
}

/* The SHA-256 of a fixture as digits, lower-case or upper-case. */
static void digits_of(const char *name, const char *format, char digits[65])
{
    char path[4400];
    uint8_t bytes[32];
    snprintf(path, sizeof path, "%s/%s.so", fixtures, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(loader_hash(file, bytes), 0);
    for (int i = 0; i < 32; i++)
        snprintf(digits + 2 * i, 3, format, bytes[i]);
    close(file);
}

TEST_OF(attnhost, a_pinned_plugin_is_that_file_alone)
{
    char digits[65], upper[65], longer[66];
    digits_of("tunable", "%02x", digits);
    digits_of("tunable", "%02X", upper);
    snprintf(longer, sizeof longer, "%s0", digits);
    ck_assert_int_eq(pin("tunable", longer), ATTN_INVALID_ARGUMENT);
    assert_says("accepted: 64 hexadecimal digits");
    longer[63] = 'g';
    longer[64] = '\0';
    ck_assert_int_eq(pin("tunable", longer), ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(pin("fixture_good", digits), ATTN_BAD_STATE); /* it is loaded already */
    ck_assert_int_eq(pin("choosy", digits), ATTN_OK);              /* another file's */
    ck_assert_int_ne(load("choosy"), ATTN_OK);
    assert_says("SHA-256");
    ck_assert_int_eq(pin("tunable", upper), ATTN_OK);
    ck_assert_int_eq(load("tunable"), ATTN_OK);
}

/* ---- Metadata -------------------------------------------------------------------------------- */

#define SCRATCH ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)
#define ZEROED  ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_ZEROED)

TEST_OF(attnhost, memory_is_given_or_allocated)
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

TEST_OF(attnhost, scratch_is_shared_and_never_moves)
{
    BACKEND(backend) = compose("fixture_one");
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
}

/* ---- Batches --------------------------------------------------------------------------------- */

TEST_OF(attnhost, dispatch_by_mode)
{
    BACKEND(backend) = compose("fixture_one");
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
}

/* A backend may know devices that this host does not drive: it can be asked, and the host says by
 * name what it does not drive. */
TEST_OF(attnhost, devices_of_others)
{
    static const struct {
        int32_t type;
        const char *name;
    } types[] = {
#define TYPE(type_name, value, text) {ATTN_DEVICE_##type_name, text},
        ATTN_DEVICE_MAP(TYPE)
#undef TYPE
    };
    for (size_t n = 0; n < sizeof types / sizeof *types; n++) {
        attn_verdict verdict = {.struct_size = sizeof verdict};
        attn_device opened = {.struct_size = sizeof opened};
        attnhost_backend *backend = NULL;
        char sentence[64];
        if (types[n].type == ATTN_DEVICE_CPU || types[n].type == ATTN_DEVICE_CUDA)
            continue;
        make_problems();
        device.type = types[n].type;
        ck_assert_int_eq(attnhost_query(host, "fixture_one", problems, &verdict, &error.base),
                         ATTN_OK);
        ck_assert_uint_eq(verdict.supported, !attn_device_is_memory(types[n].type));
        ck_assert_int_eq(attnhost_compose(host, "fixture_one", problems, 2, &backend, &error.base),
                         ATTN_DEPENDENCY_MISSING);
        ck_assert_ptr_null(backend);
        snprintf(sentence, sizeof sentence, "device: %s (type %d) %s", types[n].name, types[n].type,
                 attn_device_is_memory(types[n].type) ? "is memory, not a device"
                                                      : "cannot be driven by this host");
        assert_says(sentence);
        assert_says("accepted: cpu (1), cuda (2)");
        ck_assert_int_eq(attnhost_device_init(&opened, types[n].type, 0, &error.base),
                         ATTN_DEPENDENCY_MISSING);
        assert_says(types[n].name);
    }
    ck_assert_str_eq(attn_device_name(5), "unknown");
}

TEST_OF(attnhost, one_phase_alone)
{
    BACKEND(backend) = compose("fixture_two");
    attnhost_metadata *metadata = make_metadata(backend, NULL);
    ck_assert_int_eq(plan(metadata, ATTN_MODE_EXTEND), ATTN_INVALID_ARGUMENT);
    assert_says(
        "batch.seq_lens.host is absent; accepted: a host array, as this backend plans with it");
    batch.seq_lens.host = lens;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, &error.base),
                     ATTN_INVALID_ARGUMENT);
    assert_says(
        "batch.q_indptr.host is absent; accepted: a host array, as this backend plans with it");
    batch.q_indptr.host = indptr;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(forward(metadata, 1), ATTN_UNSUPPORTED);
    assert_says("fixture_two: layer 1: batch.mode is 0; the backend serves only DECODE");
    make_batch(ATTN_MODE_DECODE);
    batch.seq_lens.host = lens;
    ck_assert_int_eq(attnhost_init_forward_metadata(metadata, &batch, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(forward(metadata, 1), ATTN_OK);
    attnhost_metadata_destroy(metadata);
}

TEST_OF(attnhost, counters_are_zeroed_after_a_failure)
{
    BACKEND(backend) = compose("fixture_one");
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
}

/* ---- Helpers --------------------------------------------------------------------------------- */

TEST_OF(attnhost, tensors)
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

TEST_OF(attnhost, merge)
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
    assert_says("merge: lse does not have the shape");
}

GROUP(attnhost, .set_up = setup, .tear_down = teardown);
TESTS("attnhost");
