/* SPDX-License-Identifier: Apache-2.0
 *
 * radix_window.c: the tree's pages in the pool of layers with a sliding window.
 *
 * A hold is taken node by node along the end of a path, and released from its front. Nodes are
 * never merged, so a hold begins at a node's first page for as long as it lasts. */
#include "host/cache/radix_private.h"

#include <assert.h>
#include <string.h>

static bool is_listed(const struct radix_node *node)
{
    return node->num_holds == 0 && node->num_gone < node->num_pages;
}

/* Take the node out of the list, or put it in as the one that was used last, before and after its
 * number of window pages or holds changes. */
static void unlist(struct radix_cache *cache, struct radix_node *node)
{
    if (!is_listed(node))
        return;
    TAILQ_REMOVE(&cache->windows_by_use, node, by_window_use);
    cache->num_evictable_windows -= node->num_pages - node->num_gone;
}

static void list(struct radix_cache *cache, struct radix_node *node)
{
    if (!is_listed(node))
        return;
    TAILQ_INSERT_TAIL(&cache->windows_by_use, node, by_window_use);
    cache->num_evictable_windows += node->num_pages - node->num_gone;
}

void radix_window_touch(struct radix_cache *cache, struct radix_node *node)
{
    for (; node->parent; node = node->parent) {
        unlist(cache, node);
        list(cache, node);
    }
}

void radix_window_split(struct radix_cache *cache, struct radix_node *upper,
                        struct radix_node *lower)
{
    int64_t num_upper = upper->num_pages;
    if (!cache->windows)
        return;
    unlist(cache, lower);
    memcpy(upper->windows, lower->windows, (size_t)num_upper * sizeof *upper->windows);
    memmove(lower->windows, lower->windows + num_upper,
            (size_t)(lower->num_pages - num_upper) * sizeof *lower->windows);
    upper->num_holds = lower->num_holds;
    upper->num_gone = lower->num_gone < num_upper ? lower->num_gone : num_upper;
    lower->num_gone -= upper->num_gone;
    lower->num_pages -= num_upper;
    list(cache, upper);
    list(cache, lower);
    lower->num_pages += num_upper;
}

/* Free window pages [first, end) of a node that is not listed. */
static void free_windows(struct radix_cache *cache, struct radix_node *node, int64_t first,
                         int64_t end)
{
    for (int64_t i = first; i < end; i++)
        slots_free_page(cache->windows, node->windows[i]);
}

void radix_window_cut(struct radix_cache *cache, struct radix_node *node, int64_t cut)
{
    int64_t kept = node->num_pages - cut;
    assert(node->num_holds == 0);
    unlist(cache, node);
    free_windows(cache, node, kept > node->num_gone ? kept : node->num_gone, node->num_pages);
    node->num_gone = kept < node->num_gone ? kept : node->num_gone;
    node->num_pages = kept;
    list(cache, node);
    node->num_pages += cut;
}

void radix_window_take(struct radix_cache *cache, struct radix_node *node, int32_t *windows)
{
    unlist(cache, node);
    for (int64_t i = 0; i < node->num_pages; i++) {
        if (i < node->num_gone) {
            node->windows[i] = windows[i];
        } else {
            slots_free_page(cache->windows, windows[i]);
            windows[i] = node->windows[i];
        }
    }
    node->num_gone = 0;
    node->num_holds++;
}

/* ---- Holds ----------------------------------------------------------------------------------- */

struct radix_node *radix_cache_find_window(struct radix_cache *cache, struct radix_node *node,
                                           radix_first_seen first_seen, const void *context,
                                           int64_t *num_pages)
{
    struct radix_node *end = node;
    int64_t begin = *num_pages;
    (void)cache;
    for (; node->parent && first_seen(context, *num_pages) < begin; node = node->parent) {
        begin -= node->num_pages;
        if (node->num_gone > 0 && first_seen(context, *num_pages) < begin + node->num_gone) {
            end = node->parent;
            *num_pages = begin;
        }
    }
    return end;
}

/* The node on the path to `node`, of num_pages pages, that ends with page `at` - 1; split there.
 * NULL = out of memory. */
static struct radix_node *cut_path(struct radix_cache *cache, struct radix_node *node,
                                   int64_t num_pages, int64_t at)
{
    int64_t begin = num_pages;
    for (; begin > at; node = node->parent) {
        begin -= node->num_pages;
        if (begin < at)
            return radix_split(cache, node, at - begin);
    }
    return node;
}

bool radix_cache_hold_window(struct radix_cache *cache, struct radix_node *node, int64_t num_pages,
                             int64_t from, int32_t *windows)
{
    struct radix_node *before = cut_path(cache, node, num_pages, from);
    if (!before)
        return false;
    for (int64_t end = num_pages; node != before; end -= node->num_pages, node = node->parent) {
        assert(node->num_gone == 0);
        unlist(cache, node);
        node->num_holds++;
        memcpy(windows + end - node->num_pages, node->windows,
               (size_t)node->num_pages * sizeof *windows);
    }
    return true;
}

int64_t radix_cache_pass_window(struct radix_cache *cache, struct radix_node *node,
                                int64_t num_pages, int64_t from, int64_t to)
{
    struct radix_node *before = cut_path(cache, node, num_pages, to);
    int64_t end = to;
    if (!before)
        return from;
    for (node = before; end > from; end -= node->num_pages, node = node->parent) {
        assert(node->num_holds > 0);
        node->num_holds--;
        list(cache, node);
    }
    assert(end == from);
    return to;
}

/* ---- Eviction -------------------------------------------------------------------------------- */

int64_t radix_cache_evict_windows(struct radix_cache *cache, int64_t num_pages)
{
    int64_t freed = 0;
    struct radix_node *node;
    while (freed < num_pages && (node = TAILQ_FIRST(&cache->windows_by_use))) {
        int64_t there = node->num_pages - node->num_gone, wanted = num_pages - freed;
        int64_t count = wanted < there ? wanted : there;
        free_windows(cache, node, node->num_gone, node->num_gone + count);
        if (count == there)
            TAILQ_REMOVE(&cache->windows_by_use, node, by_window_use);
        node->num_gone += count;
        cache->num_evictable_windows -= count;
        freed += count;
    }
    return freed;
}

int64_t radix_cache_evictable_windows(const struct radix_cache *cache)
{
    return cache->num_evictable_windows;
}
