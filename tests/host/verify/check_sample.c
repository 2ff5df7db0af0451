/* SPDX-License-Identifier: Apache-2.0
 *
 * check_sample.c: the sample function against values computed by independent/trace_model.py.
 */
#include "host/verify/sample.h"

#include <math.h>

#include "tests/tools/test_main.h"

TEST_OF(rows, thresholds)
{
    ck_assert_uint_eq(sample_threshold(0), 0);
    ck_assert_uint_eq(sample_threshold(-1), 0);
    ck_assert_uint_eq(sample_threshold((double)NAN), 0);
    ck_assert_uint_eq(sample_threshold(1), UINT64_C(1) << 53);
    ck_assert_uint_eq(sample_threshold(7), UINT64_C(1) << 53);
    ck_assert_uint_eq(sample_threshold(0.5), UINT64_C(1) << 52);
    ck_assert_uint_eq(sample_threshold(0.1), UINT64_C(900719925474099));
    ck_assert_uint_eq(sample_threshold(0x1p-53), 1);
    ck_assert_uint_eq(sample_threshold(0x1p-54), 0);
}

/* The upper 53 bits of known states: a rate of `share` just leaves the row out, the next larger
 * multiple of 2^-53 takes it in. */
static const struct {
    uint64_t seed;
    int64_t request, position;
    int32_t layer;
    uint64_t share;
} known[] = {
    {0, 0, 0, 0, UINT64_C(0x1c40beea7bc364)},
    {1, 2, 3, 4, UINT64_C(0xb4113a606b547)},
    {UINT64_MAX, 1999, 123191, 60, UINT64_C(0xcb0a6bdd4e104)},
    {42, 7, 0, 1, UINT64_C(0x476343b13b8c9)},
};

static int sample_row(uint64_t seed, int64_t request, int64_t position, int32_t layer, double rate)
{
    uint64_t state = sample_row_state(seed, request, position);
    return sample_in_layer(state, layer, sample_threshold(rate));
}

static int sample_known(int index, uint64_t share)
{
    return sample_row(known[index].seed, known[index].request, known[index].position,
                      known[index].layer, ldexp((double)share, -53));
}

LOOP_OF(rows, known_rows, 0, COUNT(known))
{
    ck_assert_int_eq(sample_known(_i, known[_i].share), 0);
    ck_assert_int_eq(sample_known(_i, known[_i].share + 1), 1);
}

static int count_rows(double rate)
{
    int count = 0;
    for (int request = 0; request < 5; request++)
        for (int position = 0; position < 100; position++)
            for (int layer = 0; layer < 4; layer++)
                count += sample_row(7, request, position, layer, rate);
    return count;
}

TEST_OF(rows, counts)
{
    ck_assert_int_eq(count_rows(0), 0);
    ck_assert_int_eq(count_rows(0.01), 20);
    ck_assert_int_eq(count_rows(0.25), 480);
    ck_assert_int_eq(count_rows(0.9), 1807);
    ck_assert_int_eq(count_rows(1), 2000);
}

TESTS("sample");
