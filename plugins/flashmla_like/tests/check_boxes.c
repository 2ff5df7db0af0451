/* SPDX-License-Identifier: Apache-2.0
 *
 * check_boxes.c: the tensor maps of latents, by a driver that notes down what it is asked for.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include <string.h>

#include "tests/tools/test_main.h"

enum { PAGES = 5, PAGE = 32, LORA = 512, ROPE = 64, DIM = LORA + ROPE, MAPS = 2 };

static struct seen_map {
    char *address;
    uint64_t shape[4], strides[3];
    unsigned box[4], swizzle;
} seen[MAPS];
static int num_seen;

static int encode(cuda_tensor_map *map, unsigned type, unsigned rank, void *address,
                  const uint64_t *shape, const uint64_t *strides, const unsigned *box,
                  const unsigned *element_strides, unsigned interleave, unsigned swizzle,
                  unsigned l2_promotion, unsigned fill)
{
    (void)type, (void)element_strides, (void)interleave, (void)l2_promotion, (void)fill;
    ck_assert_uint_eq(rank, 4);
    ck_assert_int_lt(num_seen, MAPS);
    struct seen_map *to = &seen[num_seen++];
    to->address = address;
    to->swizzle = swizzle;
    memcpy(to->shape, shape, sizeof to->shape);
    memcpy(to->strides, strides, sizeof to->strides);
    memcpy(to->box, box, sizeof to->box);
    memset(map, num_seen, sizeof *map);
    return CUDA_OK;
}

/* A layer that is for boxes; each test changes what makes it none. */
typedef struct boxes_case {
    cuda_api cuda;
    cuda_group group;
    attn_instance instance;
    attn_tensor cache;
    mla_call call;
} boxes_case;

static _Alignas(16) char memory[16];

static void make_case(boxes_case *t)
{
    memset(t, 0, sizeof *t);
    num_seen = 0;
    t->cuda.cuTensorMapEncodeTiled = encode;
    t->group.kv_dtype = ATTN_BF16;
    t->instance.cuda = &t->cuda;
    t->instance.groups = &t->group;
    t->cache = (attn_tensor){.struct_size = sizeof t->cache,
                             .data = memory,
                             .dtype = ATTN_BF16,
                             .ndim = 3,
                             .shape = {PAGES, PAGE, DIM},
                             .strides = {2 * PAGE * DIM, DIM + 8, 1}};
    t->call.rows = MLA_ROWS;
    t->call.page_size = PAGE;
    t->call.lora = LORA;
    t->call.rope = ROPE;
    t->call.operands.aligned = CALL_ALIGNED_CACHE;
}

static int boxed(boxes_case *t)
{
    attn_error error = {.struct_size = sizeof error};
    ck_assert_uint_eq(fm_make_boxes(&t->instance, 0, &t->cache, &t->call, &error), ATTN_OK);
    ck_assert_int_eq(num_seen, t->call.boxed ? MAPS : 0);
    return t->call.boxed;
}

static void check_map(int i, int first, uint64_t elements)
{
    ck_assert_ptr_eq(seen[i].address, memory + first * 2);
    ck_assert_uint_eq(seen[i].shape[0], elements);
    ck_assert_uint_eq(seen[i].shape[1], PAGE);
    ck_assert_uint_eq(seen[i].shape[2], PAGES);
    ck_assert_uint_eq(seen[i].strides[0], (DIM + 8) * 2);
    ck_assert_uint_eq(seen[i].strides[1], 2 * PAGE * DIM * 2);
    ck_assert_uint_eq(seen[i].box[0] * 2, 128);
    ck_assert_uint_eq(seen[i].box[1], MLA_BOX);
    ck_assert_uint_eq(seen[i].box[2] * seen[i].box[3], 1);
}

TEST_OF(boxes, both_parts_have_a_map)
{
    boxes_case t;
    make_case(&t);
    ck_assert_int_eq(boxed(&t), 1);
    check_map(0, 0, LORA);
    check_map(1, LORA, ROPE);
    for (int i = 0; i < MAPS; i++)
        ck_assert_int_eq(*(const char *)&t.call.maps[i], i + 1); /* what encode() left there */
}

/* The stride of the only page may be anything. */
TEST_OF(boxes, one_page_has_no_next_one)
{
    boxes_case t;
    make_case(&t);
    t.cache.shape[0] = 1;
    t.cache.strides[0] = 3;
    ck_assert_int_eq(boxed(&t), 1);
    ck_assert_uint_eq(seen[0].strides[1] % 16, 0);
}

/* Few rows over e4m3: one map, of both parts. */
TEST_OF(boxes, codes_have_one_map)
{
    attn_error error = {.struct_size = sizeof error};
    boxes_case t;
    make_case(&t);
    t.group.kv_dtype = t.cache.dtype = ATTN_FP8_E4M3;
    t.cache.strides[1] = DIM + 16;
    t.call.rows = 16;
    ck_assert_uint_eq(fm_make_boxes(&t.instance, 0, &t.cache, &t.call, &error), ATTN_OK);
    ck_assert_int_eq(t.call.boxed, 1);
    ck_assert_int_eq(num_seen, 1);
    ck_assert_uint_eq(seen[0].shape[0], DIM);
    ck_assert_uint_eq(seen[0].box[0], 128);
}

LOOP_OF(boxes, others_have_none, 0, 8)
{
    static const int slots[1];
    boxes_case t[8];
    for (int i = 0; i < 8; i++)
        make_case(&t[i]);
    t[0].call.rows = 32;
    t[1].group.kv_dtype = ATTN_FP8_E4M3;
    t[2].call.page_size = PAGE - 8;
    t[3].call.batch.req_to_token = slots;
    t[4].call.rope = 0;
    t[5].call.operands.aligned = 0;
    t[6].cache.shape[0] = 0;
    t[7].cuda.cuTensorMapEncodeTiled = NULL;
    ck_assert_int_eq(boxed(&t[_i]), 0);
}

/* A stride that no map can have is an error, not another kernel's work. */
TEST_OF(boxes, strides_have_limits)
{
    boxes_case t;
    char message[256] = "";
    attn_error error = {
        .struct_size = sizeof error, .capacity = sizeof message, .message = message};
    make_case(&t);
    t.cache.strides[0] = INT64_C(1) << 40;
    ck_assert_uint_eq(fm_make_boxes(&t.instance, 0, &t.cache, &t.call, &error),
                      ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(message, "latent_cache"));
}

TESTS("flashmla_like boxes");
