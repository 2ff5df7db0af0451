/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_problem.h: a problem that every CUDA plugin with paged caches accepts, and what a plugin's
 * .so answers to it and to others.
 */
#ifndef PLUGIN_PROBLEM_H
#define PLUGIN_PROBLEM_H

#include "attn_plugin.h"

enum { TEST_SMS = 24, TEST_Q_HEADS = 8, TEST_KV_HEADS = 2, TEST_DIM = 128, TEST_LAYER = 3 };
enum { TEST_PAGE = 48 };

extern char test_message[1024];
extern attn_error test_error;

/* Fails with the message of `test_error`. */
void need(attn_status status);

/* A problem with room for what it points to. */
typedef struct test_problem {
    attn_device device;
    attn_layer layer;
    attn_layer_group group;
    attn_mla_dims mla;
    attn_bounds bounds;
    attn_problem problem;
} test_problem;

/* One that is accepted: bf16, all modes, 8 heads of 128 over 2 KV heads, pages of 48. */
void make_problem(test_problem *t);

/* ---- The .so --------------------------------------------------------------------------------- */

extern const attn_backend_type *test_type;

/* Opens NAME.so, whose one type has that name, as `test_type`. */
void open_plugin_of(const char *name);

/* The reasons of the last refused_fields(). */
extern attn_reason reasons[16];

/* The fields that are refused, as a set of bits; 0 = supported. */
uint64_t refused_fields(const test_problem *t);

/* Numbers of 64 and more go round; none of those that a test expects meets another. */
#define FIELD(name) (UINT64_C(1) << ATTN_FIELD_##name % 64)

/* A problem of MAKE, as `t`, with something changed, and what is refused then. */
#define EXPECT_OF(make, fields, ...)                                                               \
    do {                                                                                           \
        test_problem asked;                                                                        \
        make(&asked);                                                                              \
        test_problem *t = &asked;                                                                  \
        __VA_ARGS__;                                                                               \
        ck_assert_uint_eq(refused_fields(t), fields);                                              \
    } while (0)
#define EXPECT(fields, ...) EXPECT_OF(make_problem, fields, __VA_ARGS__)

/* Without kernels, a driver or a context create says what is missing and leaves nothing. */
void expect_create_refuses(void);

#endif /* PLUGIN_PROBLEM_H */
