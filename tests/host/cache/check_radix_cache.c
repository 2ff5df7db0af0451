/* SPDX-License-Identifier: Apache-2.0
 *
 * check_radix_cache.c: the prefix cache by literal examples, and by random use against a model that
 * keeps every cached prefix as a separate entry and searches them one by one.
 *
 * A page's content is named by one symbol; two symbols' pages differ in their last token only.
 */
#include "host/cache/radix_cache.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/mix.h"
#include "tests/tools/test_main.h"

#define MAX_DEPTH 9 /* pages of a sequence */
#define MAX_SIZE  5 /* tokens of a page */
#define NUM_PAGES 60

static struct slots slots, states, windows; /* the last two: zeroed where there are none */
static struct radix_cache *cache;

static void make_cache(int32_t page_size, int64_t num_pages)
{
    HOST_ERROR(error);
    attn_status status = slots_init(&slots, page_size, num_pages, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    status = radix_cache_create(&slots, windows.num_pages ? &windows : NULL,
                                states.num_pages ? &states : NULL, &cache, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
}

static void make_cache_with_states(int32_t page_size, int64_t num_states)
{
    HOST_ERROR(error);
    attn_status status = slots_init(&states, 1, num_states + 1, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
    make_cache(page_size, NUM_PAGES);
}

static void make_cache_with_windows(int64_t num_windows)
{
    ck_assert_int_eq(slots_init(&windows, 1, num_windows + 1, NULL), ATTN_OK);
    make_cache(1, NUM_PAGES);
}

static void tear_down(void)
{
    radix_cache_destroy(cache);
    cache = NULL;
    slots_finish(&slots);
    slots_finish(&states);
    slots_finish(&windows);
}

static void set_keys(const char *symbols, int64_t count, token_key *keys)
{
    for (int64_t i = 0; i < count; i++) {
        for (int32_t j = 0; j < slots.page_size; j++) {
            bool last = j == slots.page_size - 1;
            *keys++ = (token_key){(uint64_t)j, last ? (uint64_t)symbols[i] : 0};
        }
    }
}

static void take_pages(int64_t count, int32_t *pages)
{
    for (int64_t i = 0; i < count; i++) {
        ck_assert(slots_alloc_extend(&slots, 0, 1, 0, &pages[i]));
        pages[i] /= slots.page_size;
    }
}

static int64_t match(const char *symbols, int32_t *pages, struct radix_node **node)
{
    token_key keys[MAX_DEPTH * MAX_SIZE];
    int64_t count = (int64_t)strlen(symbols);
    set_keys(symbols, count, keys);
    return radix_cache_match(cache, keys, count, pages, node);
}

/* Put `symbols` after *node; the pages used are returned in pages[]. */
static void insert(const char *symbols, int32_t *pages, struct radix_node **node)
{
    token_key keys[MAX_DEPTH * MAX_SIZE];
    int64_t count = (int64_t)strlen(symbols);
    set_keys(symbols, count, keys);
    take_pages(count, pages);
    ck_assert_int_eq(radix_cache_insert(cache, keys, count, pages, node), count);
}

/* Insert after the root and let go. */
static void insert_unlocked(const char *symbols, int32_t *pages)
{
    struct radix_node *node = radix_cache_root(cache);
    insert(symbols, pages, &node);
    radix_cache_unlock(cache, node);
}

static void expect_match(const char *symbols, int64_t length)
{
    int32_t pages[MAX_DEPTH];
    struct radix_node *node;
    ck_assert_int_eq(match(symbols, pages, &node), length);
}

/* ---- Examples -------------------------------------------------------------------------------- */

TEST_OF(core, nothing_matches_in_an_empty_cache)
{
    make_cache(3, NUM_PAGES);
    int32_t page = -1;
    struct radix_node *node = NULL;
    ck_assert_int_eq(match("a", &page, &node), 0);
    ck_assert_ptr_eq(node, radix_cache_root(cache));
    ck_assert_int_eq(match("", &page, &node), 0);
    radix_cache_lock(cache, node);
    radix_cache_unlock(cache, node);
    ck_assert_int_eq(radix_cache_evict(cache, 5), 0);
    radix_cache_flush(cache);
    ck_assert_int_eq(radix_cache_pages(cache), 0);
}

TEST_OF(core, prefixes_are_shared_and_edges_split)
{
    make_cache(2, NUM_PAGES);
    int32_t first[4], second[4], found[4];
    insert_unlocked("abcd", first);
    insert_unlocked("abxy", second);
    ck_assert_int_eq(radix_cache_pages(cache), 6);
    ck_assert_int_eq(second[0], first[0]); /* the duplicates were freed */
    ck_assert_int_eq(second[1], first[1]);
    ck_assert_int_eq(slots_capacity(&slots) - slots_free_tokens(&slots), 6 * 2);
    struct radix_node *node;
    ck_assert_int_eq(match("abxz", found, &node), 3);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(found[i], second[i]);
    expect_match("abcd", 4);
    expect_match("abc", 3);
    expect_match("acbd", 1);
    expect_match("bcd", 0);
}

TEST_OF(core, a_lock_keeps_its_path_and_no_more)
{
    make_cache(1, NUM_PAGES);
    int32_t pages[MAX_DEPTH];
    struct radix_node *node;
    insert_unlocked("abcdef", pages);
    insert_unlocked("xyz", pages);
    ck_assert_int_eq(match("abc", pages, &node), 3);
    radix_cache_lock(cache, node);
    ck_assert_int_eq(radix_cache_evictable(cache), 6);
    ck_assert_int_eq(radix_cache_evict(cache, 100), 6);
    ck_assert_int_eq(radix_cache_pages(cache), 3);
    expect_match("abcdef", 3);
    expect_match("xyz", 0);
    radix_cache_unlock(cache, node);
    radix_cache_flush(cache);
    ck_assert_int_eq(slots_free_tokens(&slots), slots_capacity(&slots));
}

TEST_OF(core, eviction_is_least_recently_used_from_the_end)
{
    make_cache(1, NUM_PAGES);
    int32_t pages[MAX_DEPTH];
    insert_unlocked("abcd", pages);
    insert_unlocked("xyz", pages);
    expect_match("ab", 2); /* cd is the oldest now, then xyz, then ab */
    ck_assert_int_eq(radix_cache_evict(cache, 1), 1);
    expect_match("abcd", 3);
    ck_assert_int_eq(radix_cache_evict(cache, 1), 1); /* xyz: the match above used abc */
    expect_match("xyz", 2);
    ck_assert_int_eq(radix_cache_evict(cache, 4), 4); /* abc, then the end of xy */
    expect_match("ab", 0);
    expect_match("xyz", 1);
}

TEST_OF(core, a_split_leaves_handles_valid)
{
    make_cache(1, NUM_PAGES);
    int32_t pages[MAX_DEPTH], more[MAX_DEPTH];
    struct radix_node *deep = radix_cache_root(cache), *middle;
    insert("abcd", pages, &deep);
    ck_assert_int_eq(match("ab", more, &middle), 2);
    radix_cache_lock(cache, middle);
    insert("ef", more, &deep);
    radix_cache_unlock(cache, deep);
    ck_assert_int_eq(radix_cache_evictable(cache), 4);
    expect_match("abcdef", 6);
    radix_cache_unlock(cache, middle);
    ck_assert_int_eq(radix_cache_evictable(cache), 6);
}

/* Pages of the prefix of `symbols` that has a state, whose slot is *slot. */
static int64_t pages_with_state(const char *symbols, int32_t *slot)
{
    int32_t pages[MAX_DEPTH];
    struct radix_node *node;
    int64_t depth = match(symbols, pages, &node);
    node = radix_cache_find_state(cache, node, &depth);
    *slot = radix_cache_state(node);
    return depth;
}

static void expect_state(const char *symbols, int64_t depth, int32_t slot)
{
    int32_t found;
    ck_assert_int_eq(pages_with_state(symbols, &found), depth);
    ck_assert_int_eq(found, slot);
}

/* A state stands at one page and no other, wherever nodes end. */
TEST_OF(core, a_state_stays_at_its_page)
{
    make_cache_with_states(3, 4);
    int32_t pages[MAX_DEPTH];
    struct radix_node *deep = radix_cache_root(cache), *other;
    insert("abcdef", pages, &deep);
    int32_t end = radix_cache_take_state(cache), middle = radix_cache_take_state(cache);
    radix_cache_put_state(cache, deep, 0, end);
    radix_cache_put_state(cache, deep, 4, middle);
    expect_state("a", 0, 0);
    expect_state("ab", 2, middle);
    expect_state("abc", 2, middle);
    expect_state("abcde", 2, middle);
    expect_state("abcdef", 6, end);
    expect_state("abxy", 2, middle);
    ck_assert_int_eq(match("abcd", pages, &other), 4); /* splits cdef */
    expect_state("abcdef", 6, end);
    radix_cache_put_state(cache, deep, 3, radix_cache_take_state(cache)); /* c | def: within cd */
    ck_assert_int_eq(pages_with_state("abcd", pages), 3);
    radix_cache_unlock(cache, deep);
}

/* No request has looked for that prefix yet. */
TEST_OF(core, a_state_splits_a_node)
{
    make_cache_with_states(1, 4);
    int32_t pages[MAX_DEPTH];
    struct radix_node *node = radix_cache_root(cache);
    insert("abc", pages, &node);
    int32_t slot = radix_cache_take_state(cache);
    radix_cache_put_state(cache, node, 1, slot);
    expect_state("abc", 2, slot);
    radix_cache_unlock(cache, node);
}

TEST_OF(core, a_second_state_is_not_kept)
{
    make_cache_with_states(1, 4);
    int32_t pages[MAX_DEPTH];
    struct radix_node *node = radix_cache_root(cache);
    insert("abc", pages, &node);
    int32_t first = radix_cache_take_state(cache);
    radix_cache_put_state(cache, node, 0, first);
    radix_cache_put_state(cache, node, 0, radix_cache_take_state(cache));
    radix_cache_put_state(cache, node, 3, radix_cache_take_state(cache)); /* of no token */
    expect_state("abc", 3, first);
    ck_assert_int_eq(states.num_free, 3);
    radix_cache_unlock(cache, node);
}

/* What was used least recently is taken, what is pinned is not. */
TEST_OF(core, states_are_taken_by_last_use)
{
    make_cache_with_states(1, 2);
    int32_t pages[MAX_DEPTH];
    struct radix_node *x = radix_cache_root(cache), *y = x;
    insert("xxx", pages, &x);
    insert("yyy", pages, &y);
    int32_t first = radix_cache_take_state(cache), second = radix_cache_take_state(cache);
    ck_assert_int_eq(radix_cache_take_state(cache), 0); /* both are the caller's */
    radix_cache_put_state(cache, x, 0, first);
    radix_cache_put_state(cache, y, 0, second);
    radix_cache_pin_state(cache, x);
    radix_cache_unpin_state(cache, x);
    ck_assert_int_eq(radix_cache_take_state(cache), second); /* x was used since */
    expect_state("yyy", 0, 0);
    radix_cache_pin_state(cache, x);
    ck_assert_int_eq(radix_cache_take_state(cache), 0);
    radix_cache_drop_states(cache);
    expect_state("xxx", 3, first);
    radix_cache_unpin_state(cache, x);
    radix_cache_drop_states(cache);
    expect_state("xxx", 0, 0);
    ck_assert_int_eq(states.num_free, 1); /* and one is the caller's */
    radix_cache_unlock(cache, x);
    radix_cache_unlock(cache, y);
}

/* The page at which a state stands goes, and the state with it. */
TEST_OF(core, an_evicted_page_takes_its_state)
{
    make_cache_with_states(1, 4);
    int32_t pages[MAX_DEPTH];
    struct radix_node *node = radix_cache_root(cache);
    insert("abcdef", pages, &node);
    int32_t end = radix_cache_take_state(cache), middle = radix_cache_take_state(cache);
    radix_cache_put_state(cache, node, 0, end);
    radix_cache_put_state(cache, node, 3, middle);
    radix_cache_unlock(cache, node);
    ck_assert_int_eq(radix_cache_evict(cache, 1), 1);
    expect_state("abcdef", 3, middle);
    ck_assert_int_eq(states.num_free, 3);
    radix_cache_flush(cache);
    ck_assert_int_eq(states.num_free, 4);
}

/* More nodes than the table has buckets at first, some of them evicted on the way. */
TEST_OF(core, the_table_of_nodes_grows)
{
    enum { COUNT = 500, KEPT = 200 };
    make_cache(1, COUNT + 1);
    int32_t pages[COUNT], found;
    struct radix_node *node;
    for (int i = 0; i < COUNT; i++) {
        token_key key = {1, (uint64_t)i};
        node = radix_cache_root(cache);
        take_pages(1, &pages[i]);
        ck_assert_int_eq(radix_cache_insert(cache, &key, 1, &pages[i], &node), 1);
        radix_cache_unlock(cache, node);
    }
    ck_assert_int_eq(radix_cache_evict(cache, COUNT - KEPT), COUNT - KEPT);
    for (int i = 0; i < COUNT; i++) {
        token_key key = {1, (uint64_t)i};
        bool stays = i >= COUNT - KEPT;
        ck_assert_int_eq(radix_cache_match(cache, &key, 1, &found, &node), stays);
        ck_assert(!stays || found == pages[i]);
    }
    radix_cache_destroy(NULL);
}

/* ---- Windows --------------------------------------------------------------------------------- */

/* From the end of num_pages pages two are seen. */
static int64_t two_seen(const void *context, int64_t num_pages)
{
    (void)context;
    return num_pages > 2 ? num_pages - 2 : 0;
}

/* Put `symbols`, of pages with window pages from windows[0] on, after *node. */
static void insert_windows(const char *symbols, int32_t *pages, int32_t *window_pages,
                           struct radix_node **node)
{
    token_key keys[MAX_DEPTH];
    int64_t count = (int64_t)strlen(symbols);
    set_keys(symbols, count, keys);
    take_pages(count, pages);
    for (int64_t i = 0; i < count; i++)
        ck_assert(slots_alloc_extend(&windows, 0, 1, 0, &window_pages[i]));
    ck_assert_int_eq(radix_cache_insert_windows(cache, keys, count, pages, window_pages, node),
                     count);
}

/* The prefix of `symbols` that can be started after; it is let go of at once. */
static int64_t usable(const char *symbols)
{
    int32_t pages[MAX_DEPTH];
    struct radix_node *node;
    int64_t count = match(symbols, pages, &node);
    radix_cache_find_window(cache, node, two_seen, NULL, &count);
    return count;
}

/* A hold of "abcdefgh" is let go of page by page; window pages go from the front, and a prefix is
 * of use as long as its last two are there. */
TEST_OF(core, a_window_is_held_and_passed)
{
    int32_t pages[8], own[8], held[8];
    make_cache_with_windows(20);
    struct radix_node *node = radix_cache_root(cache);
    insert_windows("abcdefgh", pages, own, &node);
    ck_assert_int_eq(radix_cache_evictable_windows(cache), 0);
    ck_assert_int_eq(radix_cache_evict_windows(cache, 1), 0);
    ck_assert_int_eq(radix_cache_pass_window(cache, node, 8, 0, 5), 5);
    ck_assert_int_eq(radix_cache_evictable_windows(cache), 5);
    ck_assert_int_eq(radix_cache_evict_windows(cache, 3), 3);
    ck_assert_int_eq(windows.num_free, 15);
    ck_assert_int_eq(usable("abcdefgh"), 8);
    ck_assert_int_eq(usable("abcde"), 5);
    ck_assert_int_eq(usable("abcdx"), 0);
    ck_assert_int_eq(usable("abx"), 0);
    ck_assert_int_eq(radix_cache_pass_window(cache, node, 8, 5, 8), 8);
    ck_assert_int_eq(radix_cache_evictable_windows(cache), 5);
    ck_assert(radix_cache_hold_window(cache, node, 8, 6, held));
    ck_assert_int_eq(held[6], own[6]);
    ck_assert_int_eq(held[7], own[7]);
    ck_assert_int_eq(radix_cache_evict_windows(cache, 9), 3);
    ck_assert_int_eq(windows.num_free, 18);
    ck_assert_int_eq(usable("abcdefgh"), 8);
    radix_cache_pass_window(cache, node, 8, 6, 8);
    radix_cache_unlock(cache, node);
    radix_cache_flush(cache);
    ck_assert_int_eq(windows.num_free, 20);
    ck_assert_int_eq(slots.num_free, NUM_PAGES - 1);
}

/* Whoever computes a prefix again fills in what was gone; what was there is kept once. */
TEST_OF(core, window_pages_that_were_gone_are_filled_in)
{
    int32_t pages[8], own[8], again[8];
    make_cache_with_windows(20);
    struct radix_node *node = radix_cache_root(cache), *second = node;
    insert_windows("abcdef", pages, own, &node);
    radix_cache_pass_window(cache, node, 6, 0, 6);
    ck_assert_int_eq(radix_cache_evict_windows(cache, 4), 4);
    ck_assert_int_eq(usable("abcdef"), 6);
    ck_assert_int_eq(usable("abcde"), 0);
    insert_windows("abcdefg", pages, again, &second);
    ck_assert_int_eq(again[4], own[4]);
    ck_assert_int_eq(again[5], own[5]);
    ck_assert_int_eq(windows.num_free, 13);
    ck_assert_int_eq(usable("abcde"), 5);
    radix_cache_unlock(cache, node);
    radix_cache_pass_window(cache, second, 7, 0, 7);
    radix_cache_unlock(cache, second);
    ck_assert_int_eq(radix_cache_evict(cache, 2), 2);
    ck_assert_int_eq(windows.num_free, 15);
    ck_assert_int_eq(radix_cache_evictable_windows(cache), 5);
}

/* Without window pages a prefix is of no use, but where nothing is seen. */
TEST_OF(core, a_prefix_may_have_no_windows)
{
    int32_t pages[MAX_DEPTH];
    make_cache_with_windows(20);
    insert_unlocked("abcdef", pages);
    ck_assert_int_eq(usable("abcdef"), 0);
    ck_assert_int_eq(radix_cache_evictable_windows(cache), 0);
    ck_assert_int_eq(windows.num_free, 20);
}

/* Least recently used first. */
TEST_OF(core, window_pages_go_by_last_use)
{
    int32_t pages[8], own[8];
    make_cache_with_windows(20);
    for (int i = 0; i < 2; i++) {
        struct radix_node *node = radix_cache_root(cache);
        insert_windows(i == 0 ? "abc" : "xyz", pages, own, &node);
        radix_cache_pass_window(cache, node, 3, 0, 3);
        radix_cache_unlock(cache, node);
    }
    ck_assert_int_eq(usable("abc"), 3);
    ck_assert_int_eq(radix_cache_evict_windows(cache, 2), 2);
    ck_assert_int_eq(usable("abc"), 3);
    ck_assert_int_eq(usable("xyz"), 0);
}

/* ---- Random use ------------------------------------------------------------------------------ */

/* One cached page: the symbols from the root to it. */
struct entry {
    char path[MAX_DEPTH + 1];
    int32_t page;
    int locks;
    uint64_t last_use;
};

/* A request: what it has locked, and the node that it got for that. */
struct holder {
    bool active;
    char path[MAX_DEPTH + 1];
    struct radix_node *node;
};

#define HOLDERS 5

static struct entry entries[NUM_PAGES];
static int num_entries;
static struct holder holders[HOLDERS];
static uint64_t draws, uses;

static int draw(int below)
{
    return (int)(mix_stream(11, draws++) % (uint64_t)below);
}

static struct entry *find_entry(const char *path, size_t length)
{
    for (int i = 0; i < num_entries; i++)
        if (strlen(entries[i].path) == length && strncmp(entries[i].path, path, length) == 0)
            return &entries[i];
    return NULL;
}

static void draw_path(char *path)
{
    int length = draw(MAX_DEPTH + 1);
    for (int i = 0; i < length; i++)
        path[i] = (char)('a' + draw(2));
    path[length] = '\0';
}

/* Match, compare with the model, and lock. */
static void start_holder(struct holder *holder)
{
    int32_t pages[MAX_DEPTH];
    draw_path(holder->path);
    size_t matched = (size_t)match(holder->path, pages, &holder->node);
    uses++;
    for (size_t i = 0; i < matched; i++) {
        struct entry *entry = find_entry(holder->path, i + 1);
        ck_assert_ptr_nonnull(entry);
        ck_assert_int_eq(entry->page, pages[i]);
        entry->last_use = uses;
    }
    if (matched < strlen(holder->path))
        ck_assert_ptr_null(find_entry(holder->path, matched + 1));
    holder->path[matched] = '\0';
    if (draw(4) == 0)
        return; /* only looked */
    radix_cache_lock(cache, holder->node);
    for (size_t i = 0; i < matched; i++)
        find_entry(holder->path, i + 1)->locks++;
    holder->active = true;
}

static void extend_holder(struct holder *holder)
{
    char more[MAX_DEPTH + 1];
    int32_t pages[MAX_DEPTH];
    draw_path(more);
    size_t length = strlen(holder->path);
    more[draw((int)(MAX_DEPTH - length) + 1)] = '\0';
    size_t count = strlen(more);
    if ((int64_t)count * slots.page_size > slots_free_tokens(&slots))
        return;
    insert(more, pages, &holder->node);
    strcat(holder->path, more);
    for (size_t i = 0; i < count; i++) {
        struct entry *entry = find_entry(holder->path, length + i + 1);
        if (!entry) {
            entry = &entries[num_entries++];
            *entry = (struct entry){.page = pages[i]};
            memcpy(entry->path, holder->path, length + i + 1);
        }
        ck_assert_int_eq(entry->page, pages[i]);
        entry->locks++;
    }
}

static void end_holder(struct holder *holder)
{
    radix_cache_unlock(cache, holder->node);
    uses++;
    for (size_t length = 1; length <= strlen(holder->path); length++) {
        struct entry *entry = find_entry(holder->path, length);
        entry->locks--;
        entry->last_use = uses;
    }
    holder->active = false;
}

/* Whatever is no longer allocated must have been evictable, and no younger than what stays. */
static void evict(int count)
{
    int evictable = 0, kept = 0;
    for (int i = 0; i < num_entries; i++)
        evictable += entries[i].locks == 0;
    int expected = count < evictable ? count : evictable;
    ck_assert_int_eq(radix_cache_evict(cache, count), expected);
    uint64_t youngest_gone = 0, oldest_kept = UINT64_MAX;
    for (int i = 0; i < num_entries; i++) {
        const struct entry *entry = &entries[i];
        bool stays = slots.allocated[entry->page];
        ck_assert(stays || entry->locks == 0);
        if (!stays && entry->last_use > youngest_gone)
            youngest_gone = entry->last_use;
        if (stays && entry->locks == 0 && entry->last_use < oldest_kept)
            oldest_kept = entry->last_use;
        if (stays)
            entries[kept++] = entries[i];
    }
    ck_assert_int_eq(num_entries - kept, expected);
    ck_assert(youngest_gone <= oldest_kept);
    num_entries = kept;
    for (int i = 0; i < num_entries; i++) /* a page stays only with all before it */
        for (size_t length = strlen(entries[i].path); length > 1; length--)
            ck_assert_ptr_nonnull(find_entry(entries[i].path, length - 1));
}

static void expect_counts(void)
{
    int locked = 0;
    for (int i = 0; i < num_entries; i++)
        locked += entries[i].locks > 0;
    ck_assert_int_eq(radix_cache_pages(cache), num_entries);
    ck_assert_int_eq(radix_cache_evictable(cache), num_entries - locked);
    ck_assert_int_eq(slots_capacity(&slots) - slots_free_tokens(&slots),
                     (int64_t)num_entries * slots.page_size);
}

static const int32_t page_sizes[] = {1, 3, MAX_SIZE};

LOOP_OF(random, random_use, 0, 3)
{
    make_cache(page_sizes[_i], NUM_PAGES);
    draws = (uint64_t)_i << 32;
    num_entries = 0; /* without a process for each test, the last turn's are still there */
    memset(holders, 0, sizeof holders);
    int most = 0;
    for (int turn = 0; turn < 2500; turn++) {
        struct holder *holder = &holders[draw(HOLDERS)];
        int kind = draw(10);
        if (!holder->active)
            start_holder(holder);
        else if (kind < 5)
            extend_holder(holder);
        else
            end_holder(holder);
        if (slots_free_tokens(&slots) < MAX_DEPTH * slots.page_size || draw(20) == 0)
            evict(draw(8));
        expect_counts();
        most = num_entries > most ? num_entries : most;
    }
    ck_assert_int_gt(most, NUM_PAGES / 2);
    for (int i = 0; i < HOLDERS; i++)
        if (holders[i].active)
            end_holder(&holders[i]);
    radix_cache_flush(cache);
    ck_assert_int_eq(slots_free_tokens(&slots), slots_capacity(&slots));
}

/* ---- Long prompts ---------------------------------------------------------------------------- */

#define LONG  100000
#define CHUNK 512

/* A prompt put in chunk by chunk, and matched again and again: a step that walked the whole prompt
 * for each chunk, page or child would take minutes. */
TEST_OF(limits, long_prompts_take_linear_time)
{
    make_cache(1, LONG + 2);
    token_key *keys = malloc(LONG * sizeof *keys);
    int32_t *pages = malloc(LONG * sizeof *pages);
    int32_t *found = malloc(LONG * sizeof *found);
    ck_assert(keys && pages && found);
    for (int64_t i = 0; i < LONG; i++)
        keys[i] = token_key_of_block(i / CHUNK, i % CHUNK);
    struct radix_node *node = radix_cache_root(cache);
    take_pages(LONG, pages);
    for (int64_t done = 0; done < LONG; done += CHUNK) {
        int64_t count = LONG - done < CHUNK ? LONG - done : CHUNK;
        ck_assert_int_eq(radix_cache_insert(cache, keys + done, count, pages + done, &node), count);
    }
    radix_cache_unlock(cache, node);
    for (int turn = 0; turn < 50; turn++) {
        int64_t length = LONG - turn * 17;
        ck_assert_int_eq(radix_cache_match(cache, keys, length, found, &node), length);
        ck_assert_int_eq(memcmp(found, pages, (size_t)length * sizeof *found), 0);
    }
    for (int64_t left = LONG; left > 0; left -= CHUNK)
        radix_cache_evict(cache, CHUNK);
    ck_assert_int_eq(slots_free_tokens(&slots), slots_capacity(&slots));
    free(keys);
    free(pages);
    free(found);
}

#define CHILDREN 40000

/* As many children of the root, and a child of each whose page is like all others': a search along
 * children, or chains of equal hashes, would take minutes. */
TEST_OF(limits, many_children_take_linear_time)
{
    make_cache(1, 2 * CHILDREN + 1);
    int32_t pages[2], found[2];
    struct radix_node *node;
    for (int i = 0; i < CHILDREN; i++) {
        token_key keys[2] = {{2, (uint64_t)i}, {3, 3}};
        node = radix_cache_root(cache);
        take_pages(2, pages);
        ck_assert_int_eq(radix_cache_insert(cache, keys, 1, pages, &node), 1);
        ck_assert_int_eq(radix_cache_insert(cache, keys + 1, 1, pages + 1, &node), 1);
        radix_cache_unlock(cache, node);
        ck_assert_int_eq(radix_cache_match(cache, keys, 2, found, &node), 2);
        ck_assert(found[0] == pages[0] && found[1] == pages[1]);
    }
    radix_cache_flush(cache);
    ck_assert_int_eq(slots_free_tokens(&slots), slots_capacity(&slots));
}

GROUP(limits, .tags = "long", .tear_down = tear_down);
TESTS("radix_cache", .tear_down = tear_down);
