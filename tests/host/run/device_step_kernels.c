/* SPDX-License-Identifier: Apache-2.0
 *
 * device_step_kernels.c: the host's kernels on a GPU against the processor, to the bit, and at
 * sizes at which 32 bits do not count the elements; skipped where there is no GPU, or no nvcc was
 * there to compile them.
 */
#include "tests/tools/gpu_test.h"
#include "tests/host/run/step_kernels_case.h"
#include "tests/tools/test_main.h"
#include "host/base/configured.h"

#include <stdio.h>
#include <string.h>

#ifdef HAVE_NVCC

static struct device *device;
static host_error error;

#define GOOD(call) ck_assert_msg((call) == ATTN_OK, "%s", host_error_text(&error))

static void open_gpu(void)
{
    host_error_init(&error);
    GOOD(device_open(ATTN_DEVICE_CUDA, 0, &device, &error.base));
}

LOOP_OF(gpu, gpu_is_equal_to_the_processor, 0, 8)
{
    open_gpu();
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct step_case c;
        step_case_create(&c, device, 40 * (uint64_t)_i + seed);
        c.with_graph = seed % 3 == 2;
        step_case_everything(&c);
        step_case_destroy(&c);
    }
    device_close(device);
}

/* ---- Large ----------------------------------------------------------------------------------- */

/* 2^32 elements and some of queries, in all of a driver's rows; two bytes each. */
enum { LARGE_ROWS = 262144, LARGE_HEADS = 129, LARGE_KV_HEADS = 3, LARGE_DIM = 128 };
enum { LARGE_ROW = LARGE_HEADS * LARGE_DIM, LARGE_KV_ROW = LARGE_KV_HEADS * LARGE_DIM };
enum { LARGE_SAMPLED = 40 };

struct large {
    struct step_case c;
    int32_t *request, *position;               /* the host's */
    int32_t *device_request, *device_position; /* the device's */
    uint16_t *q, *k, *v;
    uint64_t *first;
    attn_stream stream;
};

static void *allocate(uint64_t size)
{
    void *memory = device_allocate(device, ATTN_SPACE_DEVICE, size, 1);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static int32_t *upload_ints(const int32_t *from)
{
    int32_t *memory = allocate(LARGE_ROWS * sizeof *from);
    GOOD(device_copy(device, memory, from, LARGE_ROWS * sizeof *from, NULL, &error.base));
    GOOD(device_synchronize(device, NULL, &error.base));
    return memory;
}

static void large_create(struct large *l)
{
    memset(l, 0, sizeof *l);
    step_case_create(&l->c, device, 7);
    l->stream = l->c.streams[CASE_DEVICE];
    l->c.layers[2] = (generator_layer){.kv_layer = 2,
                                       .num_q_heads = LARGE_HEADS,
                                       .num_kv_heads = LARGE_KV_HEADS,
                                       .head_dim = LARGE_DIM,
                                       .v_head_dim = LARGE_DIM,
                                       .window_left = 100};
    l->request = calloc(LARGE_ROWS, sizeof *l->request);
    l->position = calloc(LARGE_ROWS, sizeof *l->position);
    ck_assert(l->request && l->position);
    for (int32_t row = 0; row < LARGE_ROWS; row++) {
        l->request[row] = row % 9 == 4 ? -1 : row % CASE_REQUESTS;
        l->position[row] = row;
    }
    l->device_request = upload_ints(l->request);
    l->device_position = upload_ints(l->position);
    l->q = allocate((uint64_t)LARGE_ROWS * LARGE_ROW * 2);
    l->k = allocate((uint64_t)LARGE_ROWS * LARGE_KV_ROW * 2);
    l->v = allocate((uint64_t)LARGE_ROWS * LARGE_KV_ROW * 2);
    l->first = allocate(sizeof *l->first);
}

static void large_destroy(struct large *l)
{
    void *const memory[] = {l->q, l->k, l->v, l->first, l->device_request, l->device_position};
    for (size_t m = 0; m < sizeof memory / sizeof *memory; m++)
        device_release(device, ATTN_SPACE_DEVICE, memory[m]);
    free(l->request);
    free(l->position);
    step_case_destroy(&l->c);
}

static struct step_rows large_rows(const struct large *l)
{
    return (struct step_rows){l->device_request, l->device_position, LARGE_ROWS};
}

static void large_generate(struct large *l)
{
    struct device_event *start, *end;
    struct step_rows rows = large_rows(l);
    struct step_vectors vectors[OPERANDS_MAX];
    uint32_t count = step_case_vectors(&l->c.layers[2], ATTN_BF16, l->q, l->k, l->v, vectors);
    double us;
    GOOD(device_event_create(device, 1, &start, &error.base));
    GOOD(device_event_create(device, 1, &end, &error.base));
    GOOD(device_event_record(device, start, l->stream, &error.base));
    GOOD(step_kernels_generate(l->c.kernels[CASE_DEVICE], 2, &rows, vectors, count, l->stream,
                               &error.base));
    GOOD(device_event_record(device, end, l->stream, &error.base));
    GOOD(device_event_synchronize(device, end, &error.base));
    GOOD(device_event_elapsed(device, start, end, &us, &error.base));
    printf("# generate: %.0f us for %d rows of %d elements, bf16\n", us, LARGE_ROWS,
           LARGE_ROW + 2 * LARGE_KV_ROW);
    device_event_destroy(device, start);
    device_event_destroy(device, end);
}

/* Row `row` of an operand, from the device. */
static void fetch_row(struct large *l, const uint16_t *operand, int32_t row, size_t elements,
                      uint16_t *to)
{
    GOOD(device_copy(device, to, operand + (uint64_t)row * elements, elements * sizeof *to,
                     l->stream, &error.base));
    GOOD(device_synchronize(device, l->stream, &error.base));
}

static void check_row(struct large *l, int32_t row)
{
    static uint16_t q[LARGE_ROW], k[LARGE_KV_ROW], v[LARGE_KV_ROW], seen[LARGE_ROW];
    struct step_rows rows = {l->request + row, l->position + row, 1};
    struct step_vectors vectors[OPERANDS_MAX];
    uint32_t count = step_case_vectors(&l->c.layers[2], ATTN_BF16, q, k, v, vectors);
    GOOD(
        step_kernels_generate(l->c.kernels[CASE_CPU], 2, &rows, vectors, count, NULL, &error.base));
    fetch_row(l, l->q, row, LARGE_ROW, seen);
    ck_assert_msg(memcmp(q, seen, sizeof q) == 0, "query %d", row);
    fetch_row(l, l->k, row, LARGE_KV_ROW, seen);
    ck_assert_msg(memcmp(k, seen, sizeof k) == 0, "key %d", row);
    fetch_row(l, l->v, row, LARGE_KV_ROW, seen);
    ck_assert_msg(memcmp(v, seen, sizeof v) == 0, "value %d", row);
}

/* Infinity in the very last element, which is no padding's, is found, and padding stays zero. */
static void check_watch(struct large *l)
{
    struct step_rows rows = large_rows(l);
    struct step_output output = {l->q, ATTN_BF16, LARGE_ROW};
    const uint16_t infinity = 0x7f80;
    uint64_t seen = UINT64_MAX;
    GOOD(device_copy(device, l->q + (uint64_t)LARGE_ROWS * LARGE_ROW - 1, &infinity, 2, l->stream,
                     &error.base));
    GOOD(device_copy(device, l->first, &seen, sizeof seen, l->stream, &error.base));
    GOOD(step_kernels_watch(l->c.kernels[CASE_DEVICE], 6, &rows, &output, l->first, l->stream,
                            &error.base));
    GOOD(device_copy(device, &seen, l->first, sizeof seen, l->stream, &error.base));
    GOOD(device_synchronize(device, l->stream, &error.base));
    ck_assert_uint_eq(seen, UINT64_C(6) << 32 | (LARGE_ROWS - 1));
}

/* The last row before the infinity, as a sample of layer 0, over the keys. */
static void check_gather(struct large *l)
{
    static uint16_t expected[LARGE_ROW], seen[LARGE_ROW];
    const int32_t indices[3] = {0, 1, LARGE_ROWS - 2};
    const uint64_t offset = 6;
    int32_t *ints = allocate(sizeof indices);
    uint64_t *offsets = allocate(sizeof offset);
    struct step_sample sample = {ints, ints + 2, offsets, l->k};
    struct step_output output = {l->q, ATTN_BF16, LARGE_ROW};
    GOOD(device_copy(device, ints, indices, sizeof indices, l->stream, &error.base));
    GOOD(device_copy(device, offsets, &offset, sizeof offset, l->stream, &error.base));
    GOOD(step_kernels_gather(l->c.kernels[CASE_DEVICE], 0, &sample, &output, 1, l->stream,
                             &error.base));
    fetch_row(l, l->q, LARGE_ROWS - 2, LARGE_ROW, expected);
    fetch_row(l, l->k + offset / 2, 0, LARGE_ROW, seen);
    ck_assert_mem_eq(seen, expected, sizeof seen);
    device_release(device, ATTN_SPACE_DEVICE, ints);
    device_release(device, ATTN_SPACE_DEVICE, offsets);
}

TEST_OF(gpu, more_elements_than_32_bits_count)
{
    static struct large l;
    uint64_t available, total;
    const uint64_t needed = (uint64_t)LARGE_ROWS * (LARGE_ROW + 2 * LARGE_KV_ROW) * 2 + (64 << 20);
    open_gpu();
    GOOD(device_memory(device, &available, &total, &error.base));
    if (available < needed) {
        printf("# large: skipped: %llu bytes of the device are free, %llu needed\n",
               (unsigned long long)available, (unsigned long long)needed);
        device_close(device);
        return;
    }
    large_create(&l);
    large_generate(&l);
    for (int32_t i = 0; i < LARGE_SAMPLED; i++)
        check_row(&l, (int32_t)((int64_t)i * (LARGE_ROWS - 1) / (LARGE_SAMPLED - 1)));
    check_watch(&l);
    check_gather(&l);
    large_destroy(&l);
    device_close(device);
}

/* Rows of more words than a grid has threads for: each thread makes several. */
TEST_OF(gpu, wider_than_a_grid)
{
    enum { ROWS = 2, HEADS = 1 << 17, DIM = 540 };
    const size_t bytes = (size_t)ROWS * HEADS * DIM * 2;
    static int32_t owners[ROWS] = {-1, 3}, positions[ROWS] = {0, 17};
    struct step_case c;
    open_gpu();
    step_case_create(&c, device, 9);
    c.layers[1] = (generator_layer){.kv_layer = 1,
                                    .num_q_heads = HEADS,
                                    .num_kv_heads = 1,
                                    .head_dim = DIM,
                                    .v_head_dim = 1,
                                    .window_left = -1};
    int32_t *ints = allocate(2 * sizeof owners);
    struct step_rows rows = {owners, positions, ROWS}, there = {ints, ints + ROWS, ROWS};
    struct step_vectors made[OPERANDS_MAX], on_device[OPERANDS_MAX];
    step_case_vectors(&c.layers[1], ATTN_F16, malloc(bytes), NULL, NULL, made);
    step_case_vectors(&c.layers[1], ATTN_F16, allocate(bytes), NULL, NULL, on_device);
    char *seen = malloc(bytes);
    ck_assert(made[0].memory && seen);
    GOOD(device_copy(device, ints, owners, sizeof owners, NULL, &error.base));
    GOOD(device_copy(device, ints + ROWS, positions, sizeof positions, NULL, &error.base));
    GOOD(device_synchronize(device, NULL, &error.base));
    GOOD(step_kernels_generate(c.kernels[CASE_CPU], 1, &rows, made, 1, NULL, &error.base));
    GOOD(step_kernels_generate(c.kernels[CASE_DEVICE], 1, &there, on_device, 1,
                               c.streams[CASE_DEVICE], &error.base));
    GOOD(
        device_copy(device, seen, on_device[0].memory, bytes, c.streams[CASE_DEVICE], &error.base));
    GOOD(device_synchronize(device, c.streams[CASE_DEVICE], &error.base));
    ck_assert(memcmp(seen, made[0].memory, bytes) == 0);
    device_release(device, ATTN_SPACE_DEVICE, on_device[0].memory);
    device_release(device, ATTN_SPACE_DEVICE, ints);
    free(made[0].memory);
    free(seen);
    step_case_destroy(&c);
    device_close(device);
}

/* ---- Suite ----------------------------------------------------------------------------------- */

GROUP(gpu, .timeout = 240);

GPU_TESTS("step_kernels on a GPU");

#else

NO_GPU_TESTS("no nvcc at configure time: the host's kernels are not here");

#endif
