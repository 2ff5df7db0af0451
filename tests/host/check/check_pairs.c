/* SPDX-License-Identifier: Apache-2.0
 *
 * check_pairs: prefill by one backend, decode by another, on the processor, for every ordered pair
 * of backends with code of their own. device_pairs.c does the same on a GPU.
 */
#include <stdlib.h>

#include "host/check/cases/service_counter.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "tests/host/check/pairs_case.h"
#include "tests/tools/plain_problem.h"
#include "tests/tools/test_main.h"

static const char *const backends[] = {"cpu_native", "example_rows"};
enum { BACKENDS = sizeof backends / sizeof backends[0] };

static struct pairs_place place;
static attnhost *host;
static char text[PAIRS_TEXT];

static void add(char *file)
{
    place.files[place.num_files++] = file;
}

static void open_place(void)
{
    place = (struct pairs_place){.device = "cpu"};
    add(pairs_file("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "cpu_native.so"));
    add(pairs_file("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", "hybrid.so"));
    add(pairs_file("ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs", "example_rows.so"));
    add(pairs_file("ATTNHOST_TEST_FIXTURE_DIR", "tests/fixtures/.libs", "choosy.so"));
    host = pairs_host(&place, text);
    ck_assert_msg(host != NULL, "%s", text);
}

static void close_place(void)
{
    attnhost_destroy(host);
    for (int f = 0; f < place.num_files; f++)
        free((char *)(uintptr_t)place.files[f]);
}

LOOP_OF(pairs, pairs_agree_with_the_first_alone, 0, (BACKENDS * (BACKENDS - 1) * PAIRS_VARIANTS))
{
    int pair = _i / PAIRS_VARIANTS, first = pair / (BACKENDS - 1), second = pair % (BACKENDS - 1);
    second += second >= first;
    ck_assert_int_eq(pairs_share_a_layout(host, backends[first], backends[second]), 1);
    const char *wrong =
        pairs_judge(&place, host, backends[first], backends[second], _i % PAIRS_VARIANTS, text);
    ck_assert_msg(!wrong, "%s", wrong);
}

/* decode_hnd reads HND alone, example_rows NHD alone, and where NHD is wanted cpu_native reads
 * that.
 */
LOOP_OF(pairs, pairs_of_other_layouts_are_refused, 0, 2)
{
    const char *wrong;
    ck_assert_int_eq(pairs_share_a_layout(host, "example_rows", "decode_hnd"), 0);
    if (_i == 0)
        wrong = pairs_judge(&place, host, "example_rows", "decode_hnd", 0, text);
    else
        wrong = pairs_refused(&place, "cpu_native", "decode_hnd", "kv_cache.layout=nhd", text);
    ck_assert_msg(!wrong, "%s", wrong);
}

/* The same by the composite itself: the reason is the child's, and create has allocated nothing
 * when it refuses. */
LOOP_OF(pairs, other_layouts_allocate_nothing, 0, 2)
{
    static const char *const pairs[] = {"prefill", "example_rows", "decode", "decode_hnd"};
    struct plain_problem plain;
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    HOST_ERROR(error);
    struct compose_node *node;
    struct service_counter counter;
    attn_instance *instance = NULL;
    plain_problem_init(&plain, 0, ATTN_BF16);
    if (_i == 1)
        plain.problem.kv_layout = ATTN_LAYOUT_KV_HND;
    ck_assert_int_eq(attnhost_define_backend(host, "pair", "hybrid_phase", pairs, 2, &error.base),
                     ATTN_OK);
    ck_assert_int_eq(compose_resolve(&host->composer, "pair", NULL, &node, &error.base), ATTN_OK);
    ck_assert_int_eq(compose_query(node, &plain.problem, &verdict, &error.base), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, 0);
    ck_assert_uint_eq(reason.code, ATTN_REASON_KV_LAYOUT);
    ck_assert_str_eq(reason.child, _i == 0 ? "decode_hnd" : "example_rows");
    service_counter_init(&counter, &node->services);
    const attn_backend_type *type = node->type->type;
    ck_assert_int_eq(type->create(type, &plain.problem, 1, &node->options->view, &counter.table,
                                  &instance, &error.base),
                     ATTN_UNSUPPORTED);
    ck_assert_ptr_null(instance);
    ck_assert_uint_eq(counter.num_allocations, 0);
    ck_assert_uint_eq(error.base.field, ATTN_FIELD_KV_LAYOUT);
    compose_destroy(node);
}

GROUP(pairs, .set_up = open_place, .tear_down = close_place, .timeout = 120);
TESTS("pairs");
