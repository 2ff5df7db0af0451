/* SPDX-License-Identifier: Apache-2.0
 *
 * radix_private.h: the tree's data, for radix_cache.c (prefixes and states) and radix_window.c
 * (window pages) alone.
 */
#ifndef HOST_CACHE_RADIX_PRIVATE_H
#define HOST_CACHE_RADIX_PRIVATE_H

#include <sys/queue.h>

#include "host/cache/radix_cache.h"

struct radix_node {
    struct radix_node *parent;        /* NULL = root */
    struct radix_node *older, *newer; /* neighbours in the list by last use */
    struct radix_node *chain;         /* next in the hash bucket */
    uint64_t id;                      /* stands for the node in its children's hashes */
    uint64_t hash;
    int64_t num_locks; /* of this node and all below it */
    int64_t num_children;
    int64_t num_pages;
    token_key *keys; /* [num_pages * page_size] */
    int32_t *pages;  /* [num_pages] */
    int32_t state;   /* slot of the state at the node's end; 0 = none */
    int32_t num_pins;
    TAILQ_ENTRY(radix_node) by_state_use; /* while it has a state that is not pinned */
    int32_t
        *windows; /* [num_pages], the first num_gone of them gone; NULL = there is no such pool */
    int64_t num_gone;                      /* num_pages without such a pool */
    int64_t num_holds;                     /* of its window pages; with any, none is gone */
    TAILQ_ENTRY(radix_node) by_window_use; /* while it has window pages without a hold */
};

struct radix_cache {
    struct slots *slots;
    struct slots *windows; /* NULL = there is no such pool */
    struct slots *states;  /* NULL = there are none */
    int64_t page_size;     /* tokens */
    struct radix_node root;
    struct radix_node *oldest, *newest;
    TAILQ_HEAD(, radix_node) states_by_use;  /* least recent first; pinned ones are not in it */
    TAILQ_HEAD(, radix_node) windows_by_use; /* likewise; held ones are not in it */
    struct radix_node **buckets;
    uint64_t num_buckets; /* a power of two */
    uint64_t num_nodes;   /* in the buckets */
    uint64_t last_id;
    int64_t num_pages;
    int64_t num_evictable;
    int64_t num_evictable_windows;
};

/* Split `lower` after its first num_upper pages and return the new node above it; NULL = out of
 * memory. `lower` stays the end of its path, so its holders notice nothing. */
struct radix_node *radix_split(struct radix_cache *cache, struct radix_node *lower,
                               int64_t num_upper);

/* The child of `parent` along `keys`, of num_pages pages; split where only its beginning is equal,
 * so that all of it matches. NULL = there is none. */
struct radix_node *radix_follow(struct radix_cache *cache, struct radix_node *parent,
                                const token_key *keys, int64_t num_pages);

void radix_lock_node(struct radix_cache *cache, struct radix_node *node);

/* ---- What becomes of window pages (radix_window.c); nothing without such a pool -------------- */

/* The path to `node` has been used. */
void radix_window_touch(struct radix_cache *cache, struct radix_node *node);

/* Move the window pages of the first upper->num_pages pages of `lower`, which still has all, to
 * `upper`, which is new. */
void radix_window_split(struct radix_cache *cache, struct radix_node *upper,
                        struct radix_node *lower);

/* The last `cut` pages of the node, which no request holds, are about to be freed. */
void radix_window_cut(struct radix_cache *cache, struct radix_node *node, int64_t cut);

/* The caller's windows[0 .. node->num_pages) become the node's, or the node's the caller's; the
 * caller holds them from now on. */
void radix_window_take(struct radix_cache *cache, struct radix_node *node, int32_t *windows);

#endif /* HOST_CACHE_RADIX_PRIVATE_H */
