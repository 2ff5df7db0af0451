/* SPDX-License-Identifier: Apache-2.0
 *
 * check_fi_arrivals.c: who merges an item that blocks share: each slice of its rows once, when all
 * parts are there, whatever the blocks' order, however long each waits; and the counter is 0 again.
 *
 * Blocks are functions here. At every look at the counter other blocks may run, from their begin to
 * their end, before it goes on: drawn at random.
 */
#include "host/base/mix.h"
#include "tests/tools/test_main.h"

static void let_others_run(void);

#define PORTABLE_AT(pointer) (let_others_run(), (pointer))

#include "plugins/flashinfer_like/kernels/arrivals.cuh"
#include "plugins/flashinfer_like/kernels/shapes.h"

enum { CASES = 200000, MOST_BLOCKS = 48 };

/* Check takes a note of every assertion: too slow for one a block. */
#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what))                                                                               \
            ck_abort_msg("case %d: not so: %s", case_number, #what);                               \
    } while (0)

static int case_number;
static uint64_t drawn;

static struct {
    int counter, count, slices;
    int begun;           /* blocks, that have left their part */
    unsigned merged;     /* slices, a bit each */
    int mergers, others; /* blocks that merged slices; slices that were not the merger's own */
} now;

static int draw(int end)
{
    return (int)(mix_stream(0, drawn++) % (uint64_t)end);
}

static void run_block(void)
{
    now.begun++;
    u32 mine = arrivals_come(&now.counter, now.count, now.slices, draw(4));
    if (mine == 0)
        return;
    REQUIRE(now.begun == now.count);
    REQUIRE((now.merged & mine) == 0);
    now.merged |= mine;
    now.mergers++;
    now.others += count_bits(mine) - 1;
    arrivals_end(&now.counter, now.slices, mine);
}

static void let_others_run(void)
{
    while (now.begun < now.count && draw(4) == 0)
        run_block();
}

TEST_OF(arrivals, each_slice_once)
{
    int mergers = 0, others = 0;
    for (case_number = 0; case_number < CASES; case_number++) {
        now.count = 2 + draw(MOST_BLOCKS - 1);
        now.slices = 1 + draw(int_min(now.count, ARRIVALS_SLICES));
        now.counter = now.begun = now.mergers = now.others = 0;
        now.merged = 0;
        while (now.begun < now.count)
            run_block();
        REQUIRE(now.merged == (1u << now.slices) - 1);
        REQUIRE(now.counter == 0);
        mergers += now.mergers > 1;
        others += now.others > 0;
    }
    ck_assert_int_gt(mergers, CASES / 10); /* several merged, and some gave up */
    ck_assert_int_gt(others, CASES / 10);
}

/* How many slices a team has: four warps have tiles of few rows, eight of many; of wide heads two
 * warpgroups count as two. */
static int slices_of(int rows, int count, int warps)
{
    int shift = arrivals_shift(rows, count, warps), n = arrivals_slices(rows, shift);
    ck_assert(shift >= 0 && shift <= ARRIVALS_ALL);
    ck_assert(n << shift >= rows && (n - 1) << shift < rows);
    return n;
}

/* Slices cover all rows. There are no more of them than a counter has bits for, and than there are
 * blocks, one less for few parts of up to half a tile. */
TEST_OF(arrivals, slices)
{
    static const int most[] = {[2] = FI_WIDE_ROWS, [4] = FI_ROWS, [8] = FI_PREFILL_ROWS};
    for (int warps = 2; warps <= 8; warps *= 2)
        for (int rows = 1; rows <= most[warps]; rows++)
            for (int count = 2; count < 300; count++) {
                int n = slices_of(rows, count, warps);
                int most_slices = count - (count < FI_SEVERAL && rows <= FI_HALF_ROWS);
                ck_assert(n == 1 || (n <= ARRIVALS_SLICES && n <= most_slices));
            }
    ck_assert_int_eq(slices_of(16, FI_SEVERAL - 1, 4), 1);
    ck_assert_int_eq(slices_of(16, ARRIVALS_MOST + 1, 4), 1);
    ck_assert_int_eq(slices_of(16, 128, 4), 16);
    ck_assert_int_eq(slices_of(8, 32, 2), 8);
    ck_assert_int_eq(slices_of(128, 16, 8), 16);
    ck_assert_int_eq(slices_of(64, FI_SEVERAL_MANY - 1, 8), 1);
    ck_assert_int_eq(slices_of(64, 5, 8), 4);
    ck_assert_int_eq(slices_of(65, FI_SEVERAL - 1, 8), 5);
    ck_assert_int_eq(slices_of(128, FI_SEVERAL_MANY, 8), 4);
    ck_assert_int_eq(1 << ARRIVALS_ALL, FI_PREFILL_ROWS);
}

GROUP(arrivals, .timeout = 300);
TESTS("fi_arrivals");
