/* SPDX-License-Identifier: Apache-2.0
 *
 * check_step_kernels.c: the host's kernels on the processor against their definitions, and the CUDA
 * ones, on the fake driver, against the processor. tests/host/run/device_step_kernels.c does the
 * latter on a GPU.
 */
#include "host/base/operand_roles.h"
#include "host/device/cuda_driver.h"
#include "host/run/kernels/launch.h"
#include "host/reference/reference.h"
#include "host/base/configured.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/host_kernels.h"
#include "tests/host/run/step_kernels_case.h"
#include "tests/tools/test_main.h"

#include <float.h>
#include <math.h>

static host_error error;

#define GOOD(call)          ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))
#define FAILS(call, status) ck_assert_int_eq(call, status)

/* ---- The processor --------------------------------------------------------------------------- */

static struct device *cpu;
static struct threads *threads;
static struct step_kernels *kernels;
static struct step_case some;

static void set_up_cpu(void)
{
    host_error_init(&error);
    step_case_init(&some, 1);
    GOOD(threads_create(3, &threads, &error.base));
    GOOD(device_open(ATTN_DEVICE_CPU, 0, &cpu, &error.base));
    GOOD(step_kernels_create(cpu, &some.generator, &some.workload, threads, &kernels, &error.base));
}

static void tear_down_cpu(void)
{
    step_kernels_destroy(kernels);
    step_kernels_destroy(NULL);
    device_close(cpu);
    threads_destroy(threads);
    step_case_finish(&some);
}

enum { NUM_ROWS = 150 };

/* The rows that the vectors below are of: more than a thread takes at a time, each tenth padding.
 */
static int32_t requests[NUM_ROWS], positions[NUM_ROWS];

static struct step_rows list_rows(void)
{
    for (int32_t row = 0; row < NUM_ROWS; row++) {
        int32_t request = (int32_t)step_case_random(&some, CASE_REQUESTS);
        const workload_request *r = &some.workload.requests[request];
        requests[row] = row % 10 == 7 ? -1 : request;
        positions[row] =
            (int32_t)step_case_random(&some, (uint64_t)(r->input_length + r->output_length));
    }
    return (struct step_rows){requests, positions, NUM_ROWS};
}

/* One head of a row as generator.h defines it. */
static void expect_head(int32_t layer, int32_t role, int32_t row, int32_t head, int32_t dim,
                        attn_dtype dtype, char *out)
{
    int16_t raw[GENERATOR_MAX_DIM] = {0};
    int8_t narrow[GENERATOR_MAX_DIM];
    if (requests[row] >= 0 && role == GENERATOR_QUERY)
        generator_query(&some.generator, &some.workload, requests[row], positions[row], layer, head,
                        raw);
    if (requests[row] >= 0 && role != GENERATOR_QUERY) {
        token_key key = workload_token_key(&some.workload, requests[row], positions[row]);
        generator_kv(&some.generator, key, layer, head, role, narrow);
        for (int32_t d = 0; d < dim; d++)
            raw[d] = narrow[d];
    }
    generator_convert(raw, dim, dtype, out);
}

static void check_operand(const char *got, int32_t layer, int32_t role, int32_t heads, int32_t dim,
                          attn_dtype dtype)
{
    size_t bytes = (size_t)dim * attn_dtype_size(dtype);
    char *expected = malloc(bytes + 1);
    for (int32_t row = 0; row < NUM_ROWS; row++)
        for (int32_t head = 0; head < heads; head++) {
            const char *at = got + ((size_t)row * (size_t)heads + (size_t)head) * bytes;
            expect_head(layer, role, row, head, dim, dtype, expected);
            ck_assert_msg(memcmp(at, expected, bytes) == 0, "layer %d, role %d, row %d, head %d",
                          layer, role, row, head);
        }
    free(expected);
}

static void *poisoned(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    ck_assert_ptr_nonnull(memory);
    return memset(memory, 0xa5, bytes + 1);
}

LOOP_OF(processor, vectors_are_those_of_the_generator, 0, 3 * CASE_LAYERS)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    attn_dtype dtype = dtypes[_i / CASE_LAYERS];
    int32_t l = _i % CASE_LAYERS;
    struct step_rows rows = list_rows();
    const generator_layer *layer = &some.layers[l];
    size_t head_bytes = NUM_ROWS * attn_dtype_size(dtype);
    size_t q_bytes = head_bytes * (size_t)(layer->num_q_heads * layer->head_dim);
    size_t k_bytes = head_bytes * (size_t)(layer->num_kv_heads * layer->head_dim);
    size_t v_bytes = head_bytes * (size_t)(layer->num_kv_heads * layer->v_head_dim);
    char *q = poisoned(q_bytes), *k = poisoned(k_bytes), *v = poisoned(v_bytes);
    char *query = poisoned(q_bytes);
    struct step_vectors vectors[OPERANDS_MAX];
    uint32_t count = step_case_vectors(layer, dtype, q, k, v, vectors);
    GOOD(step_kernels_generate(kernels, l, &rows, vectors, count, NULL, &error.base));
    count = step_case_vectors(layer, dtype, query, NULL, NULL, vectors);
    GOOD(step_kernels_generate(kernels, l, &rows, vectors, count, NULL, &error.base));
    check_operand(q, l, GENERATOR_QUERY, layer->num_q_heads, layer->head_dim, dtype);
    check_operand(k, l, GENERATOR_KEY, layer->num_kv_heads, layer->head_dim, dtype);
    check_operand(v, l, GENERATOR_VALUE, layer->num_kv_heads, layer->v_head_dim, dtype);
    ck_assert_mem_eq(q, query, q_bytes + 1); /* with the poison after it */
    free(q);
    free(k);
    free(v);
    free(query);
}

/* Elements [first, first + dim) of each head, in rows of their own. */
TEST_OF(processor, operands_are_parts_of_vectors)
{
    enum { LORA = 27, ROPE = 10, WHOLE = LORA + ROPE, HEADS = 3 };
    static const struct row_operand parts[] = {
        {ATTN_ROLE_Q_NOPE, HEADS, LORA, ATTN_BF16, GENERATOR_QUERY, 0},
        {ATTN_ROLE_Q_PE, HEADS, ROPE, ATTN_BF16, GENERATOR_QUERY, LORA},
        {ATTN_ROLE_C_KV, 0, LORA, ATTN_BF16, GENERATOR_KEY, 0},
        {ATTN_ROLE_K_PE, 0, ROPE, ATTN_BF16, GENERATOR_KEY, LORA},
    };
    static const attn_layer_group group = {.kind = ATTN_KIND_MLA};
    struct step_rows rows = list_rows();
    struct step_vectors vectors[OPERANDS_MAX];
    some.layers[1] = (generator_layer){.kv_layer = 1,
                                       .num_q_heads = HEADS,
                                       .num_kv_heads = 1,
                                       .head_dim = WHOLE,
                                       .v_head_dim = LORA,
                                       .window_left = -1,
                                       .latent = 1};
    for (int i = 0; i < 4; i++)
        vectors[i] = (struct step_vectors){
            .operand = parts[i],
            .group = &group,
            .memory = poisoned(NUM_ROWS * (size_t)operands_row_bytes(&parts[i])),
        };
    GOOD(step_kernels_generate(kernels, 1, &rows, vectors, 4, NULL, &error.base));
    for (int i = 0; i < 4; i++) {
        int32_t heads = parts[i].heads > 0 ? parts[i].heads : 1;
        const uint16_t *got = vectors[i].memory;
        for (int32_t row = 0; row < NUM_ROWS; row++)
            for (int32_t head = 0; head < heads; head++, got += parts[i].dim) {
                uint16_t whole[WHOLE];
                expect_head(1, parts[i].stream, row, head, WHOLE, ATTN_BF16, (char *)whole);
                ck_assert_msg(memcmp(got, whole + parts[i].first, (size_t)parts[i].dim * 2) == 0,
                              "%s, row %d, head %d", role_name(parts[i].role), row, head);
            }
        ck_assert_int_eq(*(const unsigned char *)got, 0xa5);
        free(vectors[i].memory);
    }
}

TEST_OF(processor, table_is_updated)
{
    const int32_t slots[] = {10, 11, 12, 13, 14, 15};
    const struct step_update updates[] = {{2, 1, 3, 2}, {0, 0, 1, 5}, {1, 2, 0, 0}};
    int32_t table[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22};
    const int32_t expected[] = {15, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14};
    GOOD(step_kernels_update_table(kernels, updates, 3, 3, slots, table, 4, NULL, &error.base));
    ck_assert_mem_eq(table, expected, sizeof table);
}

TEST_OF(processor, pages_are_indexed)
{
    const int32_t table[] = {12, 13, 14, 30, 31, 32, 9, -1, 3, 4, 5, 0, 0, 0, 0, 0};
    const int32_t rows[] = {1, 0, 0}, lens[] = {2, 7, 0}, indptr[] = {1, 2, 5, 5};
    int32_t blocks[] = {-7, -7, -7, -7, -7, -7, -7, -7, -7, -7, -7, -7};
    int32_t indices[] = {-7, -7, -7, -7, -7, -7};
    const int32_t expected_blocks[] = {1, -7, -7, -7, 4, 10, 3, -7, -7, -7, -7, -7};
    const int32_t expected_indices[] = {-7, 1, 4, 10, 3, -7};
    struct step_index index = {
        .req_to_token = table,
        .req_to_token_stride = 8,
        .req_pool_indices = rows,
        .kv_lens = lens,
        .num_seqs = 3,
        .page_size = 3,
        .max_pages = 3,
        .block_table = blocks,
        .block_table_stride = 4,
        .kv_indptr = indptr,
        .kv_indices = indices,
    };
    GOOD(step_kernels_index_pages(kernels, &index, NULL, &error.base));
    ck_assert_mem_eq(blocks, expected_blocks, sizeof blocks);
    ck_assert_mem_eq(indices, expected_indices, sizeof indices);
}

TEST_OF(processor, outputs_are_watched)
{
    static const int32_t owners[] = {0, -1, 4, 4};
    const struct step_rows rows = {owners, NULL, 4};
    const float values[] = {1, FLT_MAX, NAN, 2, -3, 0, 4, 5};
    float data[8];
    struct step_output output = {data, ATTN_F32, 2};
    uint64_t first = UINT64_MAX;
    memcpy(data, values, sizeof data);
    GOOD(step_kernels_watch(kernels, 3, &rows, &output, &first, NULL, &error.base));
    ck_assert_uint_eq(first, UINT64_MAX); /* padding may hold what it likes */
    ck_assert(data[0] == 1 && data[2] == 0 && data[3] == 0 && data[7] == 5);
    data[7] = -INFINITY;
    GOOD(step_kernels_watch(kernels, 3, &rows, &output, &first, NULL, &error.base));
    ck_assert_uint_eq(first, UINT64_C(3) << 32 | 3);
    data[4] = NAN;
    GOOD(step_kernels_watch(kernels, 3, &rows, &output, &first, NULL, &error.base));
    ck_assert_uint_eq(first, UINT64_C(3) << 32 | 2);
    GOOD(step_kernels_watch(kernels, 4, &rows, &output, &first, NULL, &error.base));
    ck_assert_uint_eq(first, UINT64_C(3) << 32 | 2); /* the first of all */
    GOOD(step_kernels_watch(kernels, 0, &rows, &output, &first, NULL, &error.base));
    ck_assert_uint_eq(first, 2);
}

/* Each pattern of 16 bits by itself, judged by what it means. */
TEST_OF(processor, every_half_is_judged)
{
    const struct step_rows rows = {(int32_t[]){0}, NULL, 1};
    int num_wrong = 0;
    for (uint32_t bits = 0; bits < 65536; bits++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            uint16_t half = (uint16_t)bits;
            struct step_output output = {&half, is_bf16 ? ATTN_BF16 : ATTN_F16, 1};
            uint32_t exponent = is_bf16 ? bits >> 7 & 255 : bits >> 10 & 31;
            uint64_t first = UINT64_MAX;
            step_kernels_watch(kernels, 0, &rows, &output, &first, NULL, NULL);
            num_wrong += (first == 0) != (exponent == (is_bf16 ? 255 : 31));
        }
    ck_assert_int_eq(num_wrong, 0);
}

TEST_OF(processor, rows_are_gathered)
{
    const uint16_t data[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int32_t indptr[] = {0, 1, 3, 3}, sampled[] = {0, 2, 1};
    const uint64_t offset[] = {0, 8, 99};
    uint16_t to[12], expected[12] = {0};
    struct step_sample sample = {indptr, sampled, offset, to};
    struct step_output output = {(void *)(uintptr_t)data, ATTN_BF16, 3};
    memset(to, 0, sizeof to);
    for (int32_t layer = 0; layer < 3; layer++)
        GOOD(step_kernels_gather(kernels, layer, &sample, &output, 3, NULL, &error.base));
    memcpy(expected, data, 6);
    memcpy(expected + 4, data + 6, 6);
    memcpy(expected + 7, data + 3, 6);
    ck_assert_mem_eq(to, expected, sizeof to);
}

TEST_OF(processor, other_types_are_refused)
{
    const struct step_rows rows = {requests, positions, 1};
    char memory[4096];
    struct step_vectors vectors = {
        .operand = {ATTN_ROLE_K_PE, 0, 1, ATTN_F64, GENERATOR_KEY, 0},
        .memory = memory,
    };
    struct step_output output = {memory, ATTN_FP8_E4M3, 1};
    uint64_t first = 0;
    FAILS(step_kernels_generate(kernels, 0, &rows, &vectors, 1, NULL, &error.base),
          ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "k_pe: got data type"));
    vectors.operand.dtype = ATTN_F32;
    vectors.operand.stream = GENERATOR_NEEDLE;
    FAILS(step_kernels_generate(kernels, 0, &rows, &vectors, 1, NULL, &error.base),
          ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "k_pe: got stream 4"));
    FAILS(step_kernels_watch(kernels, 0, &rows, &output, &first, NULL, &error.base),
          ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "accepted: f32, f16 and bf16"));
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

static struct device *device;

static void set_up_fake(void)
{
    use_fake_cuda();
    host_kernels_define(&fake);
    host_error_init(&error);
}

static void open_fake(void)
{
    set_up_fake();
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
}

static void close_fake(void)
{
    device_close(device);
    assert_nothing_left();
    assert_clean();
    fake.reset();
}

LOOP_OF(cuda, cuda_is_equal_to_the_processor, 0, 40)
{
    struct step_case c;
    open_fake();
    if (_i % 2 == 1)
        host_kernels_cut_grids(1);
    step_case_create(&c, device, (uint64_t)_i);
    step_case_everything(&c);
    step_case_destroy(&c);
    close_fake();
}

/* Parts of vectors of the one KV head that latent attention has; its queries are halved. */
TEST_OF(cuda, cuda_makes_latents)
{
    struct step_case c;
    open_fake();
    step_case_create(&c, device, 7);
    c.layers[0].latent = 1;
    c.layers[0].num_kv_heads = 1;
    step_case_generate(&c, 0, ATTN_BF16);
    step_case_generate(&c, 0, ATTN_F32);
    step_case_destroy(&c);
    close_fake();
}

/* What the kernel does not make is refused, not made otherwise. */
TEST_OF(cuda, cuda_makes_queries_and_keys_alone)
{
    struct step_case c;
    struct step_rows rows = {NULL, NULL, 1};
    open_fake();
    step_case_create(&c, device, 3);
    c.layers[0].v_head_dim = c.layers[0].head_dim;
    for (int wrong = 0; wrong < 3; wrong++) {
        struct step_vectors vectors[OPERANDS_MAX];
        uint32_t count = step_case_vectors(&c.layers[0], ATTN_F16, &c, &c, &c, vectors);
        HOST_ERROR(said);
        if (wrong == 0) {
            vectors[2].operand.role = ATTN_ROLE_MIXED_QKV;
            vectors[2].operand.stream = GENERATOR_OPERAND + ATTN_ROLE_MIXED_QKV;
        }
        if (wrong == 1) {
            vectors[0].operand.first = 4;
            vectors[0].operand.dim = 1;
        }
        if (wrong == 2)
            vectors[1].operand.dim++;
        FAILS(step_kernels_generate(c.kernels[CASE_DEVICE], 0, &rows, vectors, count,
                                    c.streams[CASE_DEVICE], &said.base),
              ATTN_INVALID_ARGUMENT);
        ck_assert_msg(strstr(host_error_text(&said), "a GPU makes ") != NULL, "%s",
                      host_error_text(&said));
    }
    ck_assert_uint_eq(fake.num_calls("cuLaunchKernel"), 0);
    step_case_destroy(&c);
    close_fake();
}

/* All of it is kernels: none runs outside the graphs. */
LOOP_OF(cuda, cuda_graphs_see_new_contents, 0, 6)
{
    struct step_case c;
    struct fake_cuda_counters counters;
    open_fake();
    step_case_create(&c, device, 1000 + (uint64_t)_i);
    c.with_graph = 1;
    step_case_everything(&c);
    step_case_destroy(&c);
    fake.get_counters(&counters);
    ck_assert_uint_eq(counters.launches, 0);
    ck_assert_uint_eq(counters.fills, 0);
    ck_assert_uint_gt(counters.captured, 10);
    ck_assert_uint_eq(counters.captured, counters.replayed);
    close_fake();
}

/* An array that is too small on the device: each of those of each kernel. */
static const struct {
    const char *name;
    int num_arrays;
} works[] = {{"generate", 5}, {"update", 3}, {"index", 6},
             {"watch", 3},    {"gather", 5}, {"move", 3}};

enum { NUM_WORKS = sizeof works / sizeof *works };

static void do_work(struct step_case *c, int work)
{
    if (work == 0)
        step_case_generate(c, 0, ATTN_F16);
    else if (work == 1)
        step_case_update_table(c);
    else if (work == 2)
        step_case_index_pages(c);
    else if (work == 3)
        step_case_watch(c, ATTN_F32);
    else if (work == 4)
        step_case_gather(c, ATTN_BF16);
    else
        step_case_move(c);
}

/* Of many random ones, some touch the array, and lose the device then and only then. */
LOOP_OF(cuda, bounds_are_kept, 0, NUM_WORKS)
{
    for (int array = 1; array <= works[_i].num_arrays; array++) {
        int faults = 0;
        for (uint64_t seed = 0; seed < 20; seed++) {
            struct step_case c;
            open_fake();
            step_case_create(&c, device, seed);
            c.too_small = array;
            do_work(&c, _i);
            ck_assert_int_eq(device_is_lost(device), *fake.first_fault() != '\0');
            faults += device_is_lost(device);
            if (device_is_lost(device))
                ck_assert_msg(strncmp(fake.first_fault(), "kernel: ", 8) == 0, "%s",
                              fake.first_fault());
            step_case_destroy(&c);
            device_close(device);
            assert_nothing_left();
        }
        ck_assert_msg(faults > 3, "%s, array %d: %d faults", works[_i].name, array, faults);
    }
    fake.reset();
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* Kernels on a device, and one launch of each. */
static attn_status try_everything(attn_error *failure)
{
    struct step_kernels *made = NULL;
    attn_stream stream = NULL;
    attn_status status = device_open(ATTN_DEVICE_CUDA, 0, &device, failure);
    if (status != ATTN_OK)
        return status;
    status = step_kernels_create(device, &some.generator, &some.workload, NULL, &made, failure);
    ck_assert((made != NULL) == (status == ATTN_OK));
    if (status == ATTN_OK)
        status = device_stream_create(device, &stream, failure);
    char *memory = device_allocate(device, ATTN_SPACE_DEVICE, 65536, 1);
    if (status == ATTN_OK && !memory)
        status = host_fail(failure, device_exhausted(device, ATTN_SPACE_DEVICE), "no memory");
    int32_t *ints = (int32_t *)memory;
    struct step_rows rows = {ints, ints, 1};
    struct step_vectors vectors[OPERANDS_MAX];
    uint32_t num_vectors = step_case_vectors(&some.layers[0], ATTN_F16, memory + 4096,
                                             memory + 4096, memory + 4096, vectors);
    struct step_output output = {memory, ATTN_F16, 8};
    struct step_index index = {ints, 1, ints, ints, 1, 1, 1, ints + 512, 1, ints, NULL};
    struct step_sample sample = {ints, ints, (uint64_t *)memory, memory};
    if (status == ATTN_OK)
        status = device_fill(device, memory, 0, 65536, stream, failure);
    if (status == ATTN_OK)
        status = step_kernels_generate(made, 0, &rows, vectors, num_vectors, stream, failure);
    if (status == ATTN_OK)
        status =
            step_kernels_update_table(made, (void *)memory, 1, 1, ints, ints, 1, stream, failure);
    if (status == ATTN_OK)
        status = step_kernels_index_pages(made, &index, stream, failure);
    if (status == ATTN_OK)
        status = step_kernels_watch(made, 0, &rows, &output, (uint64_t *)memory, stream, failure);
    if (status == ATTN_OK)
        status = step_kernels_gather(made, 0, &sample, &output, 1, stream, failure);
    if (status == ATTN_OK)
        status = device_synchronize(device, stream, failure);
    device_stream_destroy(device, stream); /* waits, also where the line above did not get there */
    device_release(device, ATTN_SPACE_DEVICE, memory);
    step_kernels_destroy(made);
    device_close(device);
    return status;
}

static const struct {
    const char *call;
    cuda_result result;
    attn_status status;
} failures[] = {
    {"cuModuleLoadDataEx", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_DEVICE_MEMORY},
    {"cuModuleLoadDataEx", CUDA_ERROR_INVALID_PTX, ATTN_DEPENDENCY_MISSING},
    {"cuModuleGetFunction", CUDA_ERROR_NOT_FOUND, ATTN_DEPENDENCY_MISSING},
    {"cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, ATTN_OUT_OF_DEVICE_MEMORY},
    {"cuMemcpyAsync", CUDA_ERROR_NOT_PERMITTED, ATTN_BAD_STATE},
    {"cuStreamSynchronize", CUDA_ERROR_NOT_SUPPORTED, ATTN_UNSUPPORTED},
    {"cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, ATTN_INVALID_ARGUMENT},
};

TEST_OF(failures, failure_at_every_call)
{
    step_case_init(&some, 1);
    set_up_fake();
    GOOD(try_everything(&error.base));
    ck_assert_uint_eq(fake.num_calls("cuLaunchKernel"), 5);
    ck_assert_uint_eq(fake.num_calls("cuModuleUnload"), 1);
    uint64_t destroys = fake.num_calls("cuStreamDestroy");
    for (size_t f = 0; f < sizeof failures / sizeof *failures; f++) {
        /* A stream that is destroyed is waited for, and has no one to report to. */
        uint64_t may_pass = strcmp(failures[f].call, "cuStreamSynchronize") == 0 ? destroys : 0;
        int happened = 1;
        uint64_t nth = 0;
        while (happened) {
            set_up_fake();
            fake.inject(failures[f].call, ++nth, failures[f].result);
            attn_status status = try_everything(&error.base);
            happened = fake.injected();
            int fails = happened && !(status == ATTN_OK && may_pass > 0);
            may_pass -= happened && !fails;
            ck_assert_msg(status == (fails ? failures[f].status : ATTN_OK),
                          "%s, call %llu: status %d: %s", failures[f].call, (unsigned long long)nth,
                          status, host_error_text(&error));
            ck_assert_int_eq(*host_error_text(&error) != '\0', fails);
            assert_nothing_left();
            assert_clean();
        }
        ck_assert_msg(nth > 1, "%s is not called", failures[f].call);
        ck_assert_uint_eq(may_pass, 0);
    }
    fake.reset();
    step_case_finish(&some);
}

/* The device is lost at each call of all; nothing stays, and no loss is reported as anything else.
 */
TEST_OF(failures, loss_at_every_call)
{
    struct fake_cuda_counters counters;
    uint64_t num_lost = 0;
    step_case_init(&some, 1);
    set_up_fake();
    GOOD(try_everything(&error.base));
    fake.get_counters(&counters);
    for (uint64_t nth = 1; nth <= counters.calls; nth++) {
        set_up_fake();
        fake.inject(NULL, nth, CUDA_ERROR_LAUNCH_FAILED);
        attn_status status = try_everything(&error.base);
        ck_assert_msg(status == ATTN_OK || status == ATTN_DEVICE_LOST, "call %llu: status %d",
                      (unsigned long long)nth, status);
        num_lost += status == ATTN_DEVICE_LOST;
    }
    ck_assert_uint_gt(num_lost, counters.calls / 2);
    fake.reset();
    step_case_finish(&some);
}

/* A driver that refuses what a build without nvcc has for kernels. */
TEST_OF(failures, without_nvcc)
{
    struct step_kernels *made = NULL;
    step_case_init(&some, 1);
    open_fake();
    fake.inject("cuModuleLoadDataEx", 1, CUDA_ERROR_INVALID_IMAGE);
    FAILS(step_kernels_create(device, &some.generator, &some.workload, NULL, &made, &error.base),
          ATTN_DEPENDENCY_MISSING);
#ifdef HAVE_NVCC
    const char *expected = "cuda:0: the host's kernels: cuModuleLoadDataEx: "
                           "CUDA_ERROR_INVALID_IMAGE";
#else
    const char *expected = "cuda:0: this host was built without nvcc: it has no device kernels";
#endif
    ck_assert_msg(strncmp(host_error_text(&error), expected, strlen(expected)) == 0, "%s",
                  host_error_text(&error));
    ck_assert_ptr_null(made);
    close_fake();
    step_case_finish(&some);
}

/* ---- Suite ----------------------------------------------------------------------------------- */

GROUP(processor, .set_up = set_up_cpu, .tear_down = tear_down_cpu);
TESTS("step_kernels");
