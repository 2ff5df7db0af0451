/* SPDX-License-Identifier: Apache-2.0
 *
 * check_state_history.c: histories against plain sets of positions: where a state was stored, what
 * goes with it to another slot, what stays behind, and the number that stands for a history.
 */
#include "host/base/error.h"
#include "host/verify/state_history.h"
#include "tests/tools/test_main.h"

#include <stdbool.h>
#include <string.h>

enum { SLOTS = 6, TOKENS = 67 };

/* As the histories have to be. */
static struct state_history history;
static int64_t num_tokens;
static bool expected[SLOTS][TOKENS];

static void open_history(int64_t max_tokens)
{
    HOST_ERROR(error);
    memset(expected, 0, sizeof expected);
    num_tokens = max_tokens;
    ck_assert_msg(state_history_init(&history, SLOTS, max_tokens, &error.base) == ATTN_OK, "%s",
                  host_error_text(&error));
}

static void close_history(void)
{
    state_history_finish(&history);
}

/* (Check's assertions are too slow for each position.) */
static void compare(void)
{
    for (int32_t slot = 1; slot < SLOTS; slot++) {
        const uint8_t *stored = state_history_of(&history, slot);
        int64_t position = 0;
        while (position < num_tokens &&
               !!state_is_stored(stored, position) == expected[slot][position])
            position++;
        ck_assert_msg(position == num_tokens, "%lld tokens: slot %d, position %lld: expected %d",
                      (long long)num_tokens, slot, (long long)position, expected[slot][position]);
    }
    ck_assert_ptr_null(state_history_of(&history, 0));
}

/* The state of slot `from`, gone on to `position` tokens, is in slot `to`, here and there. */
static void stored(int32_t from, int32_t to, int64_t position)
{
    const struct state_write write = {from, to, position};
    bool set[TOKENS] = {false};
    if (from != 0)
        memcpy(set, expected[from], sizeof set);
    set[position - 1] = true;
    if (to != 0)
        memcpy(expected[to], set, sizeof set);
    state_history_write(&history, &write);
}

/* ---- Where states were stored ---------------------------------------------------------------- */

TEST_OF(places, nothing_at_first)
{
    const struct state_history none = {0};
    struct state_history finished = {0};
    open_history(TOKENS);
    compare();
    for (int32_t slot = 0; slot < SLOTS; slot++)
        ck_assert_ptr_null(state_history_of(&none, slot));
    ck_assert_int_eq(state_is_stored(NULL, 0), 0);
    ck_assert_int_eq(state_is_stored(NULL, 1000000), 0);
    close_history();
    ck_assert_ptr_null(history.bits);
    state_history_finish(&finished);
    close_history();
}

/* Prefill in chunks and decode, in one slot, next to neighbours that have all or nothing. */
TEST_OF(places, behind_each_step)
{
    open_history(TOKENS);
    for (int64_t position = 1; position <= TOKENS; position++)
        stored(position == 1 ? 0 : 1, 1, position);
    static const int64_t ends[] = {7, 8, 9, 24, 31, 32, 33, 34, 64, TOKENS};
    for (size_t n = 0; n < sizeof ends / sizeof ends[0]; n++) {
        stored(n == 0 ? 0 : 2, 2, ends[n]);
        compare();
    }
    close_history();
}

/* Who begins as zero in a slot has nothing of who had it before; who is dropped leaves no mark. */
TEST_OF(places, slots_are_used_again)
{
    open_history(TOKENS);
    stored(0, 3, 5);
    stored(3, 3, 60);
    stored(0, 4, 66);
    stored(0, 3, 9);
    compare();
    stored(3, 0, 10);
    stored(0, 0, 1);
    compare();
    close_history();
}

/* Two requests go on from a snapshot of a third's, each in its own slot, while the third goes on,
 * and the snapshot is what it was. */
TEST_OF(places, prefixes_are_shared)
{
    open_history(TOKENS);
    stored(0, 1, 16);
    stored(1, 5, 20); /* the snapshot, in the midst of a step */
    stored(1, 1, 40);
    stored(5, 2, 21);
    stored(5, 3, 48);
    compare();
    stored(2, 2, 22);
    stored(1, 1, 41);
    stored(5, 4, 67);
    compare();
    close_history();
}

/* Lengths about whole bytes: the last position of a slot is not the first of the next one. */
TEST_OF(places, any_length)
{
    for (int64_t tokens = 1; tokens <= TOKENS; tokens++) {
        open_history(tokens);
        stored(0, SLOTS - 1, tokens);
        stored(0, 2, tokens);
        stored(0, 3, 1);
        stored(2, 1, tokens);
        compare();
        close_history();
    }
}

static uint64_t random_state;

static uint32_t below(uint32_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

LOOP_OF(places, any_writes, 0, 8)
{
    random_state = (uint64_t)_i;
    open_history(1 + below(TOKENS));
    for (int n = 0; n < 200; n++) {
        stored((int32_t)below(SLOTS), (int32_t)below(SLOTS),
               1 + (int64_t)below((uint32_t)num_tokens));
        compare();
    }
    close_history();
}

/* ---- Histories as numbers -------------------------------------------------------------------- */

static uint64_t mix(int32_t slot, int64_t count)
{
    return state_history_mix(state_history_of(&history, slot), count);
}

/* Of two slots whose histories part at `position`: equal numbers up to there, other ones beyond. */
static void part_at(int32_t a, int32_t b, int64_t position)
{
    int64_t count = 0;
    while (count <= TOKENS && (mix(a, count) == mix(b, count)) == (count <= position))
        count++;
    ck_assert_msg(count > TOKENS, "they part at %lld: the first %lld", (long long)position,
                  (long long)count);
}

/* One position more, wherever it is, and nothing after the ones that are asked for. */
TEST_OF(numbers, one_position_more)
{
    open_history(TOKENS);
    for (int64_t position = 0; position < TOKENS; position++) {
        stored(0, 1, 1);
        stored(1, 1, 40);
        memcpy(expected[2], expected[1], sizeof expected[2]);
        if (position == 0 || position == 39)
            continue;
        stored(1, 2, position + 1);
        part_at(1, 2, position);
    }
    close_history();
}

/* The same bits of another byte are another history, and so is the number of steps. */
TEST_OF(numbers, each_set_has_its_own)
{
    open_history(TOKENS);
    uint64_t seen[TOKENS];
    for (int64_t position = 0; position < TOKENS; position++) {
        stored(0, 1, position + 1);
        seen[position] = mix(1, TOKENS);
        ck_assert_uint_ne(seen[position], mix(2, TOKENS));
        int64_t other = 0;
        while (seen[other] != seen[position])
            other++;
        ck_assert_int_eq(other, position);
    }
    close_history();
}

/* However it came to be; and a state that was never stored is as one without a history. */
TEST_OF(numbers, equal_sets_are_equal)
{
    open_history(TOKENS);
    for (int64_t count = 0; count <= TOKENS; count++)
        ck_assert_uint_eq(mix(0, count), mix(3, count));
    stored(0, 1, 9);
    stored(1, 1, 33);
    stored(1, 1, 66);
    stored(0, 4, 66);
    stored(4, 4, 9);
    stored(4, 2, 33);
    part_at(1, 2, TOKENS);
    ck_assert_uint_ne(mix(1, TOKENS), mix(4, TOKENS));
    close_history();
}

TESTS("state_history");
