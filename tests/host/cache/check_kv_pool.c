/* SPDX-License-Identifier: Apache-2.0
 *
 * check_kv_pool.c: shapes of every layout, what stands in fresh memory, and memory that runs out.
 */
#include "host/cache/kv_pool.h"

#include <math.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/model/build.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/tools/test_main.h"

/* ---- A device that counts, and fails on request ---------------------------------------------- */

static int allocations, live, fail_at, fills, fail_fill_at;
static uint64_t largest;

static void *count_allocate(const struct device *device, uint32_t space, uint64_t size,
                            uint64_t alignment)
{
    ck_assert_uint_eq(space, ATTN_SPACE_DEVICE);
    ck_assert_uint_ge(size, 1);
    largest = size > largest ? size : largest;
    if (++allocations == fail_at)
        return NULL;
    void *memory = device_cpu.allocate(device, space, size, alignment);
    live += memory != NULL;
    return memory;
}

static void count_release(const struct device *device, uint32_t space, void *memory)
{
    ck_assert_uint_eq(space, ATTN_SPACE_DEVICE);
    live--;
    device_cpu.release(device, space, memory);
}

static attn_status count_fill(const struct device *device, void *memory, int byte, uint64_t size,
                              attn_stream stream, attn_error *error)
{
    if (++fills == fail_fill_at)
        return host_fail(error, ATTN_DEVICE_LOST, "fill %d", fills);
    return device_cpu.fill(device, memory, byte, size, stream, error);
}

static struct device_ops ops;
static struct device device;
static struct model model;
static struct kv_pool *pool;
static struct model_layer layers[4];
static struct model_buffer buffers[4];
static attn_layer_group groups[2];
static attn_mla_dims mla;
static attn_linear_dims linear;

static void set_up(void)
{
    ops = device_cpu;
    ops.allocate = count_allocate;
    ops.release = count_release;
    ops.fill = count_fill;
    device = (struct device){.type = ATTN_DEVICE_CPU, .ops = &ops};
    memset(groups, 0, sizeof groups);
    memset(layers, 0, sizeof layers);
    model = (struct model){
        .num_layers = 1,
        .num_groups = 1,
        .num_buffers = 1,
        .layers = layers,
        .groups = groups,
        .buffers = buffers,
    };
    buffers[0] = (struct model_buffer){0, 0};
    groups[0] = (attn_layer_group){.struct_size = sizeof *groups,
                                   .num_q_heads = 6,
                                   .num_kv_heads = 3,
                                   .head_dim = 20,
                                   .v_head_dim = 9};
    mla = (attn_mla_dims){sizeof mla, 512, 64, 128};
    linear = (attn_linear_dims){.struct_size = sizeof linear,
                                .family = ATTN_LINEAR_GDN,
                                .num_k_heads = 2,
                                .num_v_heads = 6,
                                .head_k_dim = 5,
                                .head_v_dim = 7,
                                .conv_width = 4,
                                .state_dtype = ATTN_F32,
                                .conv_dtype = ATTN_BF16};
    pool = NULL;
    allocations = live = fail_at = fills = fail_fill_at = 0;
    largest = 0;
}

static void tear_down(void)
{
    kv_pool_destroy(pool);
    ck_assert_int_eq(live, 0);
}

static const struct kv_pool_buffer *create(const struct kv_pool_group *group, int32_t page_size,
                                           int64_t num_pages, int64_t num_slots, bool poison)
{
    struct kv_pool_params params = {group, page_size, num_pages, num_slots, poison, 0, 0};
    ck_assert_int_eq(kv_pool_create(&model, &params, &device, &pool, NULL), ATTN_OK);
    return &pool->buffers[0];
}

/* The tensor of a role, or NULL. */
static const attn_tensor *tensor_of(const struct kv_pool_buffer *buffer, uint32_t role)
{
    for (uint32_t t = 0; t < buffer->num_tensors; t++)
        if (buffer->tensors[t].role == role)
            return &buffer->tensors[t].tensor;
    return NULL;
}

static void make_linear(attn_layer_group *group)
{
    group->kind = ATTN_KIND_LINEAR;
    group->linear = &linear;
}

/* A layer of a second group, with a state, next to that with a cache. */
static const struct kv_pool_group cache_and_state[] = {
    {ATTN_LAYOUT_KV_NHD, NULL, ATTN_F32}, {NULL, ATTN_LAYOUT_STATE_SSM_KV, ATTN_DTYPE_NONE}};

static void add_linear_layer(void)
{
    make_linear(&groups[1]);
    buffers[1] = (struct model_buffer){1, 1};
    model.num_groups = model.num_buffers = 2;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static void is_tensor(const attn_tensor *tensor, attn_dtype dtype, uint32_t ndim,
                      const int64_t *shape)
{
    int64_t stride = 1;
    ck_assert_uint_eq(tensor->struct_size, sizeof *tensor);
    ck_assert_uint_eq(tensor->dtype, dtype);
    ck_assert_uint_eq(tensor->ndim, ndim);
    ck_assert_int_eq(tensor->device_type, ATTN_DEVICE_CPU);
    ck_assert_int_eq(tensor->device_id, 0);
    ck_assert_uint_eq(tensor->byte_offset, 0);
    ck_assert_uint_eq(tensor->flags, 0);
    ck_assert_ptr_nonnull(tensor->data);
    ck_assert_uint_eq((uintptr_t)tensor->data % tensor->alignment, 0);
    ck_assert_uint_ge(tensor->alignment, 64);
    for (uint32_t d = ndim; d-- > 0;) {
        ck_assert_int_eq(tensor->shape[d], shape[d]);
        ck_assert_int_eq(tensor->strides[d], stride);
        stride *= shape[d];
    }
}

#define is_tensor(tensor, dtype, ...)                                                              \
    is_tensor(tensor, dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                   \
              (const int64_t[]){__VA_ARGS__})

TEST_OF(shapes, nhd)
{
    struct kv_pool_group group = {ATTN_LAYOUT_KV_NHD, NULL, ATTN_F16};
    const struct kv_pool_buffer *buffer = create(&group, 5, 7, 0, false);
    is_tensor(tensor_of(buffer, ATTN_ROLE_K_CACHE), ATTN_F16, 7, 5, 3, 20);
    is_tensor(tensor_of(buffer, ATTN_ROLE_V_CACHE), ATTN_F16, 7, 5, 3, 9);
    ck_assert_ptr_null(tensor_of(buffer, ATTN_ROLE_STATE));
    ck_assert_ptr_null(tensor_of(buffer, ATTN_ROLE_CONV_STATE));
    ck_assert_uint_eq(pool->bytes, 7 * 5 * 3 * (20 + 9) * 2);
    ck_assert_uint_eq(kv_pool_bytes_held(&model, &group, MODEL_KV_DECODER), 3 * (20 + 9) * 2);
}

TEST_OF(shapes, hnd)
{
    struct kv_pool_group group = {ATTN_LAYOUT_KV_HND, NULL, ATTN_FP8_E5M2};
    const struct kv_pool_buffer *buffer = create(&group, 5, 7, 0, false);
    is_tensor(tensor_of(buffer, ATTN_ROLE_K_CACHE), ATTN_FP8_E5M2, 7, 3, 5, 20);
    is_tensor(tensor_of(buffer, ATTN_ROLE_V_CACHE), ATTN_FP8_E5M2, 7, 3, 5, 9);
    ck_assert_uint_eq(kv_pool_bytes_held(&model, &group, MODEL_KV_DECODER), 3 * (20 + 9));
}

TEST_OF(shapes, mla_latent)
{
    struct kv_pool_group group = {ATTN_LAYOUT_MLA_LATENT, NULL, ATTN_BF16};
    groups[0].kind = ATTN_KIND_MLA;
    groups[0].mla = &mla;
    const struct kv_pool_buffer *buffer = create(&group, 64, 3, 0, false);
    is_tensor(tensor_of(buffer, ATTN_ROLE_LATENT_CACHE), ATTN_BF16, 3, 64, 576);
    ck_assert_uint_eq(buffer->num_tensors, 1);
    ck_assert_uint_eq(kv_pool_bytes_held(&model, &group, MODEL_KV_DECODER), 1152);
}

TEST_OF(shapes, mla_latent_fp8)
{
    struct kv_pool_group group = {ATTN_LAYOUT_MLA_LATENT_FP8, NULL, ATTN_FP8_E4M3};
    groups[0].kind = ATTN_KIND_MLA;
    groups[0].mla = &mla;
    const struct kv_pool_buffer *buffer = create(&group, 64, 3, 0, false);
    is_tensor(tensor_of(buffer, ATTN_ROLE_LATENT_CACHE), ATTN_U8, 3, 64, 656);
    ck_assert_uint_eq(buffer->num_tensors, 1);
    ck_assert_uint_eq(kv_pool_bytes_held(&model, &group, MODEL_KV_DECODER), 656);
}

TEST_OF(shapes, states)
{
    make_linear(&groups[0]);
    struct kv_pool_group kv = {NULL, ATTN_LAYOUT_STATE_SSM_KV, ATTN_DTYPE_NONE};
    const struct kv_pool_buffer *buffer = create(&kv, 1, 1, 4, false);
    ck_assert_ptr_null(tensor_of(buffer, ATTN_ROLE_K_CACHE));
    ck_assert_ptr_null(tensor_of(buffer, ATTN_ROLE_V_CACHE));
    is_tensor(tensor_of(buffer, ATTN_ROLE_STATE), ATTN_F32, 4, 6, 5, 7);
    is_tensor(tensor_of(buffer, ATTN_ROLE_CONV_STATE), ATTN_BF16, 4, 6 * 7 + 2 * 2 * 5, 3);
    ck_assert_uint_eq(kv_pool_bytes_held(&model, &kv, MODEL_KV_DECODER), 0);
    kv_pool_destroy(pool);

    struct kv_pool_group vk = {NULL, ATTN_LAYOUT_STATE_SSM_VK, ATTN_DTYPE_NONE};
    buffer = create(&vk, 1, 1, 4, false);
    is_tensor(tensor_of(buffer, ATTN_ROLE_STATE), ATTN_F32, 4, 6, 7, 5);
}

/* Mamba2: B and C once for each group of heads. */
TEST_OF(shapes, states_with_groups)
{
    make_linear(&groups[0]);
    linear.family = ATTN_LINEAR_MAMBA2;
    linear.num_groups = 3;
    linear.num_k_heads = 3;
    struct kv_pool_group group = {NULL, ATTN_LAYOUT_STATE_SSM_VK, ATTN_DTYPE_NONE};
    const struct kv_pool_buffer *buffer = create(&group, 1, 1, 4, false);
    is_tensor(tensor_of(buffer, ATTN_ROLE_CONV_STATE), ATTN_BF16, 4, 6 * 7 + 2 * 3 * 5, 3);
}

TEST_OF(shapes, states_without_convolution)
{
    make_linear(&groups[0]);
    struct kv_pool_group group = {NULL, ATTN_LAYOUT_STATE_SSM_KV, ATTN_DTYPE_NONE};
    linear.conv_width = 1;
    ck_assert_ptr_null(tensor_of(create(&group, 1, 1, 4, false), ATTN_ROLE_CONV_STATE));
    kv_pool_destroy(pool);
    linear.conv_width = 4;
    linear.conv_dtype = ATTN_DTYPE_NONE;
    ck_assert_ptr_null(tensor_of(create(&group, 1, 1, 4, false), ATTN_ROLE_CONV_STATE));
    kv_pool_destroy(pool);
    linear.conv_dtype = ATTN_F32;
    linear.family = ATTN_LINEAR_SHORT_CONV;
    const struct kv_pool_buffer *buffer = create(&group, 1, 1, 4, false);
    ck_assert_ptr_null(tensor_of(buffer, ATTN_ROLE_STATE));
    is_tensor(tensor_of(buffer, ATTN_ROLE_CONV_STATE), ATTN_F32, 4, 62, 3);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

/* Four layers: 0 and 2 of a wide group, 1 of a narrow one, 3 reads what layer 0 keeps. */
TEST_OF(shapes, layers_that_share_have_one_buffer)
{
    struct model_spec wide, narrow;
    struct model *shared = model_new("shared", "test", NULL);
    ck_assert_ptr_nonnull(shared);
    model_spec_softmax(&wide, 4, 2, 16, 8);
    model_spec_softmax(&narrow, 4, 1, 16, 16);
    ck_assert_int_eq(model_add_layer(shared, &wide, "decoder", 0, NULL), ATTN_OK);
    ck_assert_int_eq(model_add_layer(shared, &narrow, "decoder", 1, NULL), ATTN_OK);
    ck_assert_int_eq(model_add_layer(shared, &wide, "decoder", 2, NULL), ATTN_OK);
    ck_assert_int_eq(model_add_shared_layer(shared, &wide, "decoder", 3, 0, NULL), ATTN_OK);
    struct kv_pool_group both[] = {{ATTN_LAYOUT_KV_NHD, NULL, ATTN_F32},
                                   {ATTN_LAYOUT_KV_HND, NULL, ATTN_BF16}};
    struct kv_pool_params params = {both, 2, 3, 0, false, 0, 0};
    ck_assert_int_eq(kv_pool_create(shared, &params, &device, &pool, NULL), ATTN_OK);
    ck_assert_uint_eq(pool->num_buffers, 3);
    is_tensor(tensor_of(&pool->buffers[0], ATTN_ROLE_K_CACHE), ATTN_F32, 3, 2, 2, 16);
    is_tensor(tensor_of(&pool->buffers[1], ATTN_ROLE_K_CACHE), ATTN_BF16, 3, 1, 2, 16);
    is_tensor(tensor_of(&pool->buffers[2], ATTN_ROLE_V_CACHE), ATTN_F32, 3, 2, 2, 8);
    ck_assert_ptr_ne(tensor_of(&pool->buffers[0], ATTN_ROLE_K_CACHE)->data,
                     tensor_of(&pool->buffers[2], ATTN_ROLE_K_CACHE)->data);
    ck_assert_int_eq(shared->layers[3].kv_buffer, shared->layers[0].kv_buffer);
    uint64_t per_token = 2 * (2 * (16 + 8) * 4) + 1 * (16 + 16) * 2;
    ck_assert_uint_eq(kv_pool_bytes_held(shared, both, MODEL_KV_DECODER), per_token);
    ck_assert_uint_eq(pool->bytes, per_token * 2 * 3);
    ck_assert_int_eq(live, 6);
    model_destroy(shared);
}

/* A layer with a window, one with chunks and one that sees all: the first two have the pages of
 * windows. One across has those of encoders. Who shares a cache must be in its pool. */
TEST_OF(shapes, layers_with_windows_have_their_pages)
{
    struct config config = {.kv_cache.hybrid_swa_memory = true};
    struct model *mixed = model_new("mixed", "test", &config);
    struct model_spec spec;
    HOST_ERROR(error);
    ck_assert_ptr_nonnull(mixed);
    model_spec_softmax(&spec, 4, 2, 16, 16);
    spec.group.window_left = 7;
    ck_assert_int_eq(model_add_layer(mixed, &spec, "decoder", 0, NULL), ATTN_OK);
    spec.group.window_left = -1;
    ck_assert_int_eq(model_add_layer(mixed, &spec, "decoder", 1, NULL), ATTN_OK);
    ck_assert_int_eq(model_add_shared_layer(mixed, &spec, "decoder", 2, 0, &error.base),
                     ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "kv_cache.hybrid_swa_memory"));
    spec.group.attention_chunk = 9;
    ck_assert_int_eq(model_add_layer(mixed, &spec, "decoder", 2, NULL), ATTN_OK);
    model_spec_cross(&spec, 4, 2, 16, 16);
    ck_assert_int_eq(model_add_layer(mixed, &spec, "cross", 2, NULL), ATTN_OK);
    const struct model_kv_group *group = &mixed->kv_groups[mixed->groups[0].kv_group];
    ck_assert_uint_eq(group->holds, MODEL_KV_WINDOW);
    ck_assert_int_eq(group->window_left, 7);
    ck_assert_int_eq(group->chunk, 9);
    ck_assert_uint_eq(group->num_layers, 2);
    char text[256];
    model_group_text(mixed, &mixed->groups[0], text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "window_left 7, in the KV pool of windows"));
    model_group_text(mixed, &mixed->groups[1], text, sizeof text);
    ck_assert_ptr_null(strstr(text, "pool"));
    struct kv_pool_group one = {ATTN_LAYOUT_KV_NHD, NULL, ATTN_BF16}, each[] = {one, one, one, one};
    struct kv_pool_params params = {each, 2, 3, 0, false, 5, 7};
    ck_assert_int_eq(kv_pool_create(mixed, &params, &device, &pool, NULL), ATTN_OK);
    is_tensor(tensor_of(&pool->buffers[0], ATTN_ROLE_K_CACHE), ATTN_BF16, 5, 2, 2, 16);
    is_tensor(tensor_of(&pool->buffers[1], ATTN_ROLE_K_CACHE), ATTN_BF16, 3, 2, 2, 16);
    is_tensor(tensor_of(&pool->buffers[2], ATTN_ROLE_K_CACHE), ATTN_BF16, 5, 2, 2, 16);
    is_tensor(tensor_of(&pool->buffers[3], ATTN_ROLE_V_CACHE), ATTN_BF16, 7, 2, 2, 16);
    ck_assert_uint_eq(kv_pool_bytes_held(mixed, each, MODEL_KV_WINDOW), 2 * 128);
    ck_assert_uint_eq(kv_pool_bytes_held(mixed, each, MODEL_KV_ENCODER), 128);
    ck_assert_uint_eq(kv_pool_bytes_held(mixed, each, MODEL_KV_DECODER), 128);
    model_destroy(mixed);
}

TEST_OF(shapes, no_buffer_at_all)
{
    model.num_buffers = 0;
    struct kv_pool_group group = {NULL, NULL, ATTN_DTYPE_NONE};
    create(&group, 1, 1, 0, true);
    ck_assert_uint_eq(pool->num_buffers, 0);
    ck_assert_uint_eq(pool->bytes, 0);
    ck_assert_int_eq(allocations, 0);
    ck_assert_uint_eq(kv_pool_bytes_held(&model, &group, MODEL_KV_DECODER), 0);
    kv_pool_destroy(NULL);
}

/* ---- Fresh memory ---------------------------------------------------------------------------- */

/* Entry 0 is zero; of the others every element is NaN. */
static void is_poisoned(const attn_tensor *tensor)
{
    int64_t padding = tensor->strides[0], count = tensor->shape[0] * padding;
    ck_assert_int_gt(count, padding);
    for (int64_t i = 0; i < count; i++) {
        double x = dtype_load(tensor->dtype, tensor->data, i);
        ck_assert_msg(i < padding ? !(x < 0 || x > 0) && !isnan(x) : isnan(x), "element %lld: %g",
                      (long long)i, x);
    }
}

TEST_OF(fresh, poison)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_FP8_E4M3,
                                        ATTN_FP8_E5M2};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        struct kv_pool_group group = {ATTN_LAYOUT_KV_NHD, NULL, dtypes[d]};
        const struct kv_pool_buffer *buffer = create(&group, 3, 4, 0, true);
        is_poisoned(tensor_of(buffer, ATTN_ROLE_K_CACHE));
        is_poisoned(tensor_of(buffer, ATTN_ROLE_V_CACHE));
        kv_pool_destroy(pool);
    }
    make_linear(&groups[0]);
    struct kv_pool_group group = {NULL, ATTN_LAYOUT_STATE_SSM_KV, ATTN_DTYPE_NONE};
    const struct kv_pool_buffer *buffer = create(&group, 1, 1, 3, true);
    is_poisoned(tensor_of(buffer, ATTN_ROLE_STATE));
    is_poisoned(tensor_of(buffer, ATTN_ROLE_CONV_STATE));
}

/* Of the packed latent each part reads as NaN: fp8, the scales in fp32, rope in bf16. */
TEST_OF(fresh, poison_of_packed_latent)
{
    struct kv_pool_group group = {ATTN_LAYOUT_MLA_LATENT_FP8, NULL, ATTN_FP8_E4M3};
    groups[0].kind = ATTN_KIND_MLA;
    groups[0].mla = &mla;
    const struct kv_pool_buffer *buffer = create(&group, 2, 2, 0, true);
    const uint8_t *bytes = tensor_of(buffer, ATTN_ROLE_LATENT_CACHE)->data;
    for (int i = 0; i < 2 * 656; i++)
        ck_assert_uint_eq(bytes[i], 0);
    for (int row = 2; row < 4; row++) {
        const uint8_t *at = bytes + row * 656;
        for (int i = 0; i < 512; i++)
            ck_assert_double_nan(dtype_load(ATTN_FP8_E4M3, at, i));
        for (int i = 0; i < 4; i++)
            ck_assert_double_nan(dtype_load(ATTN_F32, at + 512, i));
        for (int i = 0; i < 64; i++)
            ck_assert_double_nan(dtype_load(ATTN_BF16, at + 528, i));
    }
}

/* Without poison the padding is zero all the same: slot 0 of states too. */
TEST_OF(fresh, padding_is_zero)
{
    add_linear_layer();
    create(cache_and_state, 3, 2, 2, false);
    for (uint32_t b = 0; b < 2; b++) {
        const struct kv_pool_buffer *buffer = &pool->buffers[b];
        ck_assert_uint_eq(buffer->num_tensors, 2);
        for (uint32_t t = 0; t < 2; t++) {
            const attn_tensor *tensor = &buffer->tensors[t].tensor;
            for (int64_t i = 0; i < tensor->strides[0]; i++)
                ck_assert_double_eq(dtype_load(tensor->dtype, tensor->data, i), 0);
        }
    }
}

/* A group with states in a pool without slots: no byte is written. */
TEST_OF(fresh, no_slots)
{
    add_linear_layer();
    create(cache_and_state, 3, 0, 0, true);
    ck_assert_int_eq(tensor_of(&pool->buffers[0], ATTN_ROLE_K_CACHE)->shape[0], 0);
    ck_assert_int_eq(tensor_of(&pool->buffers[1], ATTN_ROLE_STATE)->shape[0], 0);
    ck_assert_uint_eq(pool->bytes, 0);
}

/* ---- On a GPU -------------------------------------------------------------------------------- */

/* Each byte that was not written is the poison's; fetched in a separate stream. */
static void is_filled_on(const struct device *gpu, const attn_tensor *tensor)
{
    uint64_t entry = (uint64_t)tensor->strides[0] * attn_dtype_size(tensor->dtype);
    uint64_t bytes = entry * (uint64_t)tensor->shape[0];
    unsigned char *seen = malloc(bytes);
    attn_stream stream;
    ck_assert_int_eq(tensor->device_type, ATTN_DEVICE_CUDA);
    ck_assert_int_eq(device_stream_create(gpu, &stream, NULL), ATTN_OK);
    ck_assert_int_eq(device_copy(gpu, seen, tensor->data, bytes, stream, NULL), ATTN_OK);
    ck_assert_int_eq(device_synchronize(gpu, stream, NULL), ATTN_OK);
    device_stream_destroy(gpu, stream);
    for (uint64_t b = 0; b < bytes; b++)
        ck_assert_uint_eq(seen[b], b < entry ? 0 : 0xFF);
    free(seen);
}

/* Memory that the host cannot touch; and an engine's stream, for which the legacy one would wait,
 * stands still. */
TEST_OF(fresh, filled_on_cuda)
{
    struct kv_pool_params params = {cache_and_state, 3, 5, 3, true, 0, 0};
    struct cuda_driver driver;
    struct device *gpu;
    cuda_stream engines;
    use_fake_cuda();
    ck_assert_int_eq(device_open(ATTN_DEVICE_CUDA, 0, &gpu, NULL), ATTN_OK);
    ck_assert_int_eq(cuda_driver_init(&driver, NULL, NULL), ATTN_OK);
    ck_assert_int_eq(device_enter(gpu, NULL), ATTN_OK);
    void *memory = device_allocate(gpu, ATTN_SPACE_DEVICE, 16, 1);
    ck_assert_uint_eq(driver.cuStreamCreate(&engines, 0), CUDA_SUCCESS);
    fake.hold(engines, 1);
    ck_assert_int_eq(device_fill(gpu, memory, 1, 16, engines, NULL), ATTN_OK);
    add_linear_layer();
    ck_assert_int_eq(kv_pool_create(&model, &params, gpu, &pool, NULL), ATTN_OK);
    is_filled_on(gpu, tensor_of(&pool->buffers[0], ATTN_ROLE_K_CACHE));
    is_filled_on(gpu, tensor_of(&pool->buffers[0], ATTN_ROLE_V_CACHE));
    is_filled_on(gpu, tensor_of(&pool->buffers[1], ATTN_ROLE_STATE));
    is_filled_on(gpu, tensor_of(&pool->buffers[1], ATTN_ROLE_CONV_STATE));
    fake.hold(engines, 0);
    kv_pool_destroy(pool);
    pool = NULL;
    device_stream_destroy(gpu, engines);
    device_release(gpu, ATTN_SPACE_DEVICE, memory);
    device_leave(gpu);
    device_close(gpu);
    cuda_driver_finish(&driver);
    assert_nothing_left();
    assert_clean();
}

/* Nothing still writes to memory that is given back. */
TEST_OF(fresh, fill_that_fails_on_cuda)
{
    struct kv_pool_group group = {ATTN_LAYOUT_KV_NHD, NULL, ATTN_BF16};
    struct kv_pool_params params = {&group, 16, 5000, 0, true, 0, 0};
    struct device *gpu;
    use_fake_cuda();
    ck_assert_int_eq(device_open(ATTN_DEVICE_CUDA, 0, &gpu, NULL), ATTN_OK);
    for (uint64_t nth = 1; nth <= 4; nth++) {
        fake.inject("cuMemsetD8Async", nth, CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(kv_pool_create(&model, &params, gpu, &pool, NULL), ATTN_INVALID_ARGUMENT);
        ck_assert_ptr_null(pool);
    }
    device_close(gpu);
    assert_nothing_left();
    assert_clean();
}

/* ---- Memory that runs out -------------------------------------------------------------------- */

/* Whichever allocation fails, the ones before it are given back, and the message has the bytes. */
TEST_OF(memory, out_of_memory)
{
    static const uint64_t bytes[] = {4 * 2 * 60 * 4, 4 * 2 * 27 * 4, 3 * 6 * 35 * 4,
                                     3 * 62 * 3 * 2};
    static const int32_t types[] = {ATTN_DEVICE_CPU, ATTN_DEVICE_CUDA};
    add_linear_layer();
    struct kv_pool_params params = {cache_and_state, 2, 4, 3, true, 0, 0};
    for (int n = 0; n < 8; n++) {
        uint64_t before = 0;
        char wanted[128];
        HOST_ERROR(error);
        device.type = types[n / 4];
        allocations = 0;
        fail_at = n % 4 + 1;
        for (int i = 0; i < n % 4; i++)
            before += bytes[i];
        ck_assert_int_eq(kv_pool_create(&model, &params, &device, &pool, &error.base),
                         n < 4 ? ATTN_OUT_OF_HOST_MEMORY : ATTN_OUT_OF_DEVICE_MEMORY);
        snprintf(wanted, sizeof wanted, "KV pool: %llu bytes for one tensor, after %llu bytes",
                 (unsigned long long)bytes[n % 4], (unsigned long long)before);
        ck_assert_msg(strstr(host_error_text(&error), wanted) != NULL, "%s, not %s",
                      host_error_text(&error), wanted);
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(pool);
    }
}

TEST_OF(memory, fill_that_fails)
{
    struct kv_pool_group group = {ATTN_LAYOUT_KV_NHD, NULL, ATTN_F32};
    struct kv_pool_params params = {&group, 2, 4, 0, true, 0, 0};
    for (fail_fill_at = 1; fail_fill_at <= 4; fail_fill_at++) {
        fills = 0;
        ck_assert_int_eq(kv_pool_create(&model, &params, &device, &pool, NULL), ATTN_DEVICE_LOST);
        ck_assert_int_eq(live, 0);
        ck_assert_ptr_null(pool);
    }
}

/* 2^60 pages of 2^13 bytes are not 0 bytes. */
TEST_OF(memory, sizes_do_not_wrap)
{
    groups[0].num_kv_heads = 1;
    groups[0].head_dim = 1024;
    struct kv_pool_group group = {ATTN_LAYOUT_KV_NHD, NULL, ATTN_F32};
    struct kv_pool_params params = {&group, 2, INT64_C(1) << 60, 0, true, 0, 0};
    ck_assert_int_eq(kv_pool_create(&model, &params, &device, &pool, NULL),
                     ATTN_OUT_OF_HOST_MEMORY);
    ck_assert_uint_eq(largest, UINT64_MAX);
}

TESTS("kv_pool", .set_up = set_up, .tear_down = tear_down);
