/* SPDX-License-Identifier: Apache-2.0
 *
 * radix_cache.c: prefixes and states in the tree.
 *
 * All nodes but the root are in one hash table, by (parent, first page). Nodes that are not locked
 * are in one list, by last use, in which a child always stands before its parent:
 *   - a use moves the nodes of a path to the newer end, the deepest first;
 *   - a locked child has locked ancestors, so a node enters the list after its children;
 *   - the upper half of a node that is split goes right after the lower half.
 * Hence the oldest node of the list is a leaf: what to evict next is found without a search.
 */
#include "host/cache/radix_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/mix.h"

#define FIRST_BUCKETS 64 /* a power of two */

attn_status radix_cache_create(struct slots *slots, struct slots *windows, struct slots *states,
                               struct radix_cache **cache, attn_error *error)
{
    struct radix_cache *made = calloc(1, sizeof *made);
    if (made)
        made->buckets = calloc(FIRST_BUCKETS, sizeof(struct radix_node *));
    if (!made || !made->buckets) {
        free(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "prefix cache: no memory");
    }
    TAILQ_INIT(&made->states_by_use);
    TAILQ_INIT(&made->windows_by_use);
    made->slots = slots;
    made->windows = windows;
    made->states = states;
    made->page_size = slots->page_size;
    made->num_buckets = FIRST_BUCKETS;
    *cache = made;
    return ATTN_OK;
}

static void free_node(struct radix_node *node)
{
    free(node->keys);
    free(node->pages);
    free(node->windows);
    free(node);
}

void radix_cache_destroy(struct radix_cache *cache)
{
    if (!cache)
        return;
    for (uint64_t i = 0; i < cache->num_buckets; i++) {
        for (struct radix_node *node = cache->buckets[i], *next; node; node = next) {
            next = node->chain;
            free_node(node);
        }
    }
    free(cache->buckets);
    free(cache);
}

struct radix_node *radix_cache_root(struct radix_cache *cache)
{
    return &cache->root;
}

/* ---- List by last use ------------------------------------------------------------------------ */

static void list_remove(struct radix_cache *cache, struct radix_node *node)
{
    *(node->older ? &node->older->newer : &cache->oldest) = node->newer;
    *(node->newer ? &node->newer->older : &cache->newest) = node->older;
    node->older = node->newer = NULL;
}

/* Put `node` right after `older`, on its newer side; NULL = as the oldest of all. */
static void list_insert(struct radix_cache *cache, struct radix_node *older,
                        struct radix_node *node)
{
    node->older = older;
    node->newer = older ? older->newer : cache->oldest;
    *(node->older ? &node->older->newer : &cache->oldest) = node;
    *(node->newer ? &node->newer->older : &cache->newest) = node;
}

/* The path to `node` has been used. Above the first locked node all are locked. */
static void touch_path(struct radix_cache *cache, struct radix_node *node)
{
    for (; node->parent && node->num_locks == 0; node = node->parent) {
        list_remove(cache, node);
        list_insert(cache, cache->newest, node);
    }
}

/* ---- Hash table ------------------------------------------------------------------------------ */

static uint64_t hash_first_page(const struct radix_cache *cache, const struct radix_node *parent,
                                const token_key *keys)
{
    uint64_t hash = parent->id;
    for (int64_t i = 0; i < cache->page_size; i++)
        hash = mix_absorb(mix_absorb(hash, keys[i].a), keys[i].b);
    return hash;
}

static struct radix_node **bucket_of(const struct radix_cache *cache, uint64_t hash)
{
    return &cache->buckets[hash & (cache->num_buckets - 1)];
}

static void table_add(struct radix_cache *cache, struct radix_node *node)
{
    struct radix_node **bucket = bucket_of(cache, node->hash);
    node->chain = *bucket;
    *bucket = node;
    cache->num_nodes++;
}

static void table_remove(struct radix_cache *cache, struct radix_node *node)
{
    struct radix_node **link = bucket_of(cache, node->hash);
    while (*link != node)
        link = &(*link)->chain;
    *link = node->chain;
    cache->num_nodes--;
}

/* Without memory for more buckets, the chains only grow longer. */
static void table_grow_if_full(struct radix_cache *cache)
{
    if (cache->num_nodes < cache->num_buckets)
        return;
    struct radix_node **old = cache->buckets;
    uint64_t num_old = cache->num_buckets;
    struct radix_node **more = calloc(num_old * 2, sizeof(struct radix_node *));
    if (!more)
        return;
    cache->buckets = more;
    cache->num_buckets = num_old * 2;
    cache->num_nodes = 0;
    for (uint64_t i = 0; i < num_old; i++) {
        for (struct radix_node *node = old[i], *next; node; node = next) {
            next = node->chain;
            table_add(cache, node);
        }
    }
    free(old);
}

static size_t key_bytes(const struct radix_cache *cache, int64_t num_pages)
{
    return (size_t)(num_pages * cache->page_size) * sizeof(token_key);
}

static struct radix_node *find_child(const struct radix_cache *cache,
                                     const struct radix_node *parent, const token_key *keys)
{
    uint64_t hash = hash_first_page(cache, parent, keys);
    struct radix_node *node = *bucket_of(cache, hash);
    while (node && (node->hash != hash || node->parent != parent ||
                    memcmp(node->keys, keys, key_bytes(cache, 1)) != 0))
        node = node->chain;
    return node;
}

/* ---- Tree ------------------------------------------------------------------------------------ */

/* A node in no table, list or count yet, with copies of keys and pages; NULL = out of memory. */
static struct radix_node *make_node(struct radix_cache *cache, struct radix_node *parent,
                                    const token_key *keys, const int32_t *pages, int64_t num_pages)
{
    struct radix_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->keys = malloc(key_bytes(cache, num_pages));
    node->pages = malloc((size_t)num_pages * sizeof *node->pages);
    if (cache->windows)
        node->windows = calloc((size_t)num_pages, sizeof *node->windows);
    if (!node->keys || !node->pages || (cache->windows && !node->windows)) {
        free_node(node);
        return NULL;
    }
    memcpy(node->keys, keys, key_bytes(cache, num_pages));
    memcpy(node->pages, pages, (size_t)num_pages * sizeof *node->pages);
    node->parent = parent;
    node->num_pages = node->num_gone = num_pages;
    node->id = ++cache->last_id;
    node->hash = hash_first_page(cache, parent, keys);
    return node;
}

struct radix_node *radix_split(struct radix_cache *cache, struct radix_node *lower,
                               int64_t num_upper)
{
    struct radix_node *upper =
        make_node(cache, lower->parent, lower->keys, lower->pages, num_upper);
    if (!upper)
        return NULL;
    table_remove(cache, lower);
    radix_window_split(cache, upper, lower);
    lower->num_pages -= num_upper;
    memmove(lower->keys, lower->keys + num_upper * cache->page_size,
            key_bytes(cache, lower->num_pages));
    memmove(lower->pages, lower->pages + num_upper,
            (size_t)lower->num_pages * sizeof *lower->pages);
    lower->parent = upper;
    lower->hash = hash_first_page(cache, upper, lower->keys);
    upper->num_children = 1;
    upper->num_locks = lower->num_locks;
    if (upper->num_locks == 0)
        list_insert(cache, lower, upper);
    table_add(cache, upper);
    table_add(cache, lower);
    table_grow_if_full(cache);
    return upper;
}

struct radix_node *radix_follow(struct radix_cache *cache, struct radix_node *parent,
                                const token_key *keys, int64_t num_pages)
{
    struct radix_node *child = num_pages > 0 ? find_child(cache, parent, keys) : NULL;
    if (!child)
        return NULL;
    int64_t most = child->num_pages < num_pages ? child->num_pages : num_pages;
    int64_t equal = 1;
    while (equal < most && memcmp(child->keys + equal * cache->page_size,
                                  keys + equal * cache->page_size, key_bytes(cache, 1)) == 0)
        equal++;
    return equal == child->num_pages ? child : radix_split(cache, child, equal);
}

int64_t radix_cache_match(struct radix_cache *cache, const token_key *keys, int64_t num_pages,
                          int32_t *pages, struct radix_node **node)
{
    struct radix_node *end = &cache->root, *child;
    int64_t matched = 0;
    while ((child =
                radix_follow(cache, end, keys + matched * cache->page_size, num_pages - matched))) {
        memcpy(pages + matched, child->pages, (size_t)child->num_pages * sizeof *pages);
        matched += child->num_pages;
        end = child;
    }
    touch_path(cache, end);
    radix_window_touch(cache, end);
    *node = end;
    return matched;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

void radix_lock_node(struct radix_cache *cache, struct radix_node *node)
{
    if (node->num_locks++ == 0) {
        list_remove(cache, node);
        cache->num_evictable -= node->num_pages;
    }
}

void radix_cache_lock(struct radix_cache *cache, struct radix_node *node)
{
    for (; node->parent; node = node->parent)
        radix_lock_node(cache, node);
}

void radix_cache_unlock(struct radix_cache *cache, struct radix_node *node)
{
    for (; node->parent; node = node->parent) {
        assert(node->num_locks > 0);
        if (--node->num_locks == 0) {
            list_insert(cache, cache->newest, node);
            cache->num_evictable += node->num_pages;
        }
    }
}

/* ---- Insertion ------------------------------------------------------------------------------- */

/* The tree already has the keys of these pages: free the caller's copies. */
static void replace_duplicates(struct radix_cache *cache, const struct radix_node *node,
                               int32_t *pages)
{
    for (int64_t i = 0; i < node->num_pages; i++) {
        slots_free_page(cache->slots, pages[i]);
        pages[i] = node->pages[i];
    }
}

/* A new node at the end of a path, with one lock; NULL = out of memory. */
static struct radix_node *append(struct radix_cache *cache, struct radix_node *parent,
                                 const token_key *keys, const int32_t *pages, int64_t num_pages)
{
    struct radix_node *child = make_node(cache, parent, keys, pages, num_pages);
    if (!child)
        return NULL;
    child->num_locks = 1;
    parent->num_children++;
    cache->num_pages += num_pages;
    table_add(cache, child);
    table_grow_if_full(cache);
    return child;
}

/* With `windows`, which may be NULL, the caller's window pages. */
static int64_t insert(struct radix_cache *cache, const token_key *keys, int64_t num_pages,
                      int32_t *pages, int32_t *windows, struct radix_node **node)
{
    struct radix_node *end = *node, *child;
    int64_t taken = 0;
    while (taken < num_pages) {
        const token_key *rest = keys + taken * cache->page_size;
        if ((child = radix_follow(cache, end, rest, num_pages - taken))) {
            radix_lock_node(cache, child);
            replace_duplicates(cache, child, pages + taken);
        } else if (!(child = append(cache, end, rest, pages + taken, num_pages - taken))) {
            break;
        }
        if (windows)
            radix_window_take(cache, child, windows + taken);
        taken += child->num_pages;
        end = child;
    }
    *node = end;
    return taken;
}

int64_t radix_cache_insert(struct radix_cache *cache, const token_key *keys, int64_t num_pages,
                           int32_t *pages, struct radix_node **node)
{
    return insert(cache, keys, num_pages, pages, NULL, node);
}

int64_t radix_cache_insert_windows(struct radix_cache *cache, const token_key *keys,
                                   int64_t num_pages, int32_t *pages, int32_t *windows,
                                   struct radix_node **node)
{
    return insert(cache, keys, num_pages, pages, windows, node);
}

/* ---- States ---------------------------------------------------------------------------------- */

struct radix_node *radix_cache_find_state(struct radix_cache *cache, struct radix_node *node,
                                          int64_t *num_pages)
{
    (void)cache;
    for (; node->parent && !node->state; node = node->parent)
        *num_pages -= node->num_pages;
    return node;
}

int32_t radix_cache_state(const struct radix_node *node)
{
    return node->state;
}

void radix_cache_pin_state(struct radix_cache *cache, struct radix_node *node)
{
    assert(node->state > 0 && node->num_locks > 0);
    if (node->num_pins++ == 0)
        TAILQ_REMOVE(&cache->states_by_use, node, by_state_use);
}

void radix_cache_unpin_state(struct radix_cache *cache, struct radix_node *node)
{
    assert(node->num_pins > 0);
    if (--node->num_pins == 0)
        TAILQ_INSERT_TAIL(&cache->states_by_use, node, by_state_use);
}

static void drop_state(struct radix_cache *cache, struct radix_node *node)
{
    if (!node->state)
        return;
    assert(node->num_pins == 0);
    TAILQ_REMOVE(&cache->states_by_use, node, by_state_use);
    slots_free_page(cache->states, node->state);
    node->state = 0;
}

int32_t radix_cache_take_state(struct radix_cache *cache)
{
    int32_t slot = 0;
    if (cache->states->num_free == 0 && !TAILQ_EMPTY(&cache->states_by_use))
        drop_state(cache, TAILQ_FIRST(&cache->states_by_use));
    return slots_alloc_extend(cache->states, 0, 1, 0, &slot) ? slot : 0;
}

void radix_cache_put_state(struct radix_cache *cache, struct radix_node *node, int64_t pages_back,
                           int32_t slot)
{
    while (node->parent && pages_back >= node->num_pages) {
        pages_back -= node->num_pages;
        node = node->parent;
    }
    if (pages_back > 0 && node->parent)
        node = radix_split(cache, node, node->num_pages - pages_back);
    if (!node || !node->parent || node->state) {
        slots_free_page(cache->states, slot);
        return;
    }
    node->state = slot;
    TAILQ_INSERT_TAIL(&cache->states_by_use, node, by_state_use);
}

void radix_cache_drop_states(struct radix_cache *cache)
{
    while (!TAILQ_EMPTY(&cache->states_by_use))
        drop_state(cache, TAILQ_FIRST(&cache->states_by_use));
}

/* ---- Eviction -------------------------------------------------------------------------------- */

static void remove_leaf(struct radix_cache *cache, struct radix_node *node)
{
    node->parent->num_children--;
    list_remove(cache, node);
    table_remove(cache, node);
    free_node(node);
}

int64_t radix_cache_evict(struct radix_cache *cache, int64_t num_pages)
{
    int64_t freed = 0;
    while (freed < num_pages && cache->oldest) {
        struct radix_node *leaf = cache->oldest;
        assert(leaf->num_children == 0 && leaf->num_locks == 0);
        int64_t wanted = num_pages - freed;
        int64_t cut = wanted < leaf->num_pages ? wanted : leaf->num_pages;
        drop_state(cache, leaf);
        radix_window_cut(cache, leaf, cut);
        leaf->num_pages -= cut;
        for (int64_t i = 0; i < cut; i++)
            slots_free_page(cache->slots, leaf->pages[leaf->num_pages + i]);
        if (leaf->num_pages == 0)
            remove_leaf(cache, leaf);
        freed += cut;
    }
    cache->num_pages -= freed;
    cache->num_evictable -= freed;
    return freed;
}

void radix_cache_flush(struct radix_cache *cache)
{
    radix_cache_evict(cache, cache->num_evictable);
}

int64_t radix_cache_pages(const struct radix_cache *cache)
{
    return cache->num_pages;
}

int64_t radix_cache_evictable(const struct radix_cache *cache)
{
    return cache->num_evictable;
}
