/* SPDX-License-Identifier: Apache-2.0
 *
 * radix_cache.h: the prefix cache, which lets requests share the KV of equal beginnings.
 *
 * A radix tree over sequences of token keys. An edge holds a run of whole pages: their keys, and
 * the page each lies in. Whole pages only: a page that two sequences fill differently cannot be
 * shared, and one that is whole is never written again.
 *
 *            root
 *           /    \            a node stands for the pages from the root to its end;
 *     [p1 p2 p3]  [p9]        children begin with different pages
 *       /     \
 *   [p4 p5]   [p7]
 *
 * A node is locked while a running request reads its pages; a lock holds for the whole path to the
 * root. What is not locked may be evicted, least recently used first and leaves before their
 * parents, page by page from a leaf's end.
 *
 * Pages in the tree belong to the tree; it returns evicted ones to the slots. Nodes that a caller
 * has not locked stay valid until the next radix_cache_insert(), _evict() or _flush().
 *
 * States. A model with recurrent layers can start after a prefix only where the state at its end
 * was kept, too. So a node may carry the number of a state slot: the state after the last of its
 * tokens. State slots belong to the tree from radix_cache_put_state() on; a node that is shortened
 * or goes loses its own, and where no slot is free the one that was used least recently is taken.
 * A pinned state stays where it is, for it is about to be read.
 *
 * Windows. Layers with a sliding window may keep their KV in a pool of their own (`windows`), whose
 * pages are worth keeping as long as a request's window may begin before them. So a page of the
 * tree has up to two numbers: that in the pool of all positions, and that in the pool of windows,
 * which may be gone before the former is. In a node they go from the front: its first pages have
 * none, the others have one. Those that no window holds are evicted by themselves, least recently
 * used first; a node whose pages go takes them along. A window's hold ends between two nodes, which
 * are split where it begins, so a held node has all its window pages.
 *
 * Children are found by a hash of their first page, and keys are compared themselves, so a match
 * takes time in proportion to the pages matched, and no two prefixes are ever mistaken for one
 * another. Where host memory runs out, less is cached or matched; nothing fails.
 */
#ifndef HOST_CACHE_RADIX_CACHE_H
#define HOST_CACHE_RADIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/cache/slots.h"
#include "host/workload/token_key.h"

struct radix_cache;
struct radix_node;

/* An empty cache over the pages of `slots`, those of `windows` of the same size (NULL = no layers
 * have a pool of their own) and, one for each page, the state slots of `states` (NULL = the model
 * has no states). All must outlive it. OUT_OF_HOST_MEMORY. */
attn_status radix_cache_create(struct slots *slots, struct slots *windows, struct slots *states,
                               struct radix_cache **cache, attn_error *error);

/* Pages still cached are not given back to the slots. NULL is accepted. */
void radix_cache_destroy(struct radix_cache *cache);

/* The node of the empty prefix; locking it has no effect. */
struct radix_node *radix_cache_root(struct radix_cache *cache);

/* The longest cached prefix of keys[0 .. num_pages * page_size), in whole pages: their number, the
 * pages into pages[0 .. num_pages), and the node where the prefix ends into *node. Counts as a use
 * of the prefix. */
int64_t radix_cache_match(struct radix_cache *cache, const token_key *keys, int64_t num_pages,
                          int32_t *pages, struct radix_node **node);

/* Put num_pages more pages after *node, which the caller has locked: keys[0 .. num_pages *
 * page_size) and pages[0 .. num_pages) are what follows the prefix that *node stands for.
 *
 * Returns how many the tree took, from the front; less than num_pages only where host memory ran
 * out. The pages taken are the tree's now, and the caller's lock has moved on to *node, where they
 * end. A page whose keys the tree had already is a duplicate: it is freed, and pages[i] becomes
 * the tree's. */
int64_t radix_cache_insert(struct radix_cache *cache, const token_key *keys, int64_t num_pages,
                           int32_t *pages, struct radix_node **node);

/* Locks are counted: each lock needs one unlock. */
void radix_cache_lock(struct radix_cache *cache, struct radix_node *node);
void radix_cache_unlock(struct radix_cache *cache, struct radix_node *node);

/* Free up to num_pages pages that are not locked; returns how many: min(num_pages, evictable). */
int64_t radix_cache_evict(struct radix_cache *cache, int64_t num_pages);

/* Free all pages that are not locked. */
void radix_cache_flush(struct radix_cache *cache);

/* ---- States ---------------------------------------------------------------------------------- */

/* The deepest node with a state on the path from the root to `node`, of *num_pages pages, which
 * becomes its depth; the root, of no pages, if there is none. */
struct radix_node *radix_cache_find_state(struct radix_cache *cache, struct radix_node *node,
                                          int64_t *num_pages);

/* The slot of the state at the node's end; 0 = none. */
int32_t radix_cache_state(const struct radix_node *node);

/* The node's state is not taken until it is unpinned as often as it was pinned. The caller has
 * locked the node. Counts as a use of the state. */
void radix_cache_pin_state(struct radix_cache *cache, struct radix_node *node);
void radix_cache_unpin_state(struct radix_cache *cache, struct radix_node *node);

/* A slot to write a state to, which the caller owns: a free one, or the one that was used least
 * recently; 0 = all are pinned or other callers'. */
int32_t radix_cache_take_state(struct radix_cache *cache);

/* `slot`, which the caller owned, holds the state `pages_back` pages before the end of the path to
 * `node`. It is freed if there is a state already, or nothing to keep it with. */
void radix_cache_put_state(struct radix_cache *cache, struct radix_node *node, int64_t pages_back,
                           int32_t slot);

/* Free all states that are not pinned. */
void radix_cache_drop_states(struct radix_cache *cache);

/* ---- Windows --------------------------------------------------------------------------------- */

/* The first page that is seen from the end of the first `num_pages` ones; it does not fall as
 * num_pages grows. */
typedef int64_t (*radix_first_seen)(const void *context, int64_t num_pages);

/* The deepest node on the path to `node`, of *num_pages pages, whose window is complete: from the
 * first page that is seen from the node's end to its last page. *num_pages becomes its depth. */
struct radix_node *radix_cache_find_window(struct radix_cache *cache, struct radix_node *node,
                                           radix_first_seen first_seen, const void *context,
                                           int64_t *num_pages);

/* Hold the window pages of the path to `node`, of num_pages pages, from page `from` on, and list
 * them at windows[from .. num_pages). They are there, and the caller has locked the node. False,
 * and nothing is held, where host memory ran out. */
bool radix_cache_hold_window(struct radix_cache *cache, struct radix_node *node, int64_t num_pages,
                             int64_t from, int32_t *windows);

/* Release the window pages [from, to) of the caller's hold, which begins at `from`. Returns where
 * it begins now: `to`, or less if host memory ran out. */
int64_t radix_cache_pass_window(struct radix_cache *cache, struct radix_node *node,
                                int64_t num_pages, int64_t from, int64_t to);

/* radix_cache_insert() for pages that all have window pages. The caller holds the window before
 * them, and from now on also the window of the pages that the tree took. Duplicates are freed
 * likewise, and windows[i] becomes the tree's. */
int64_t radix_cache_insert_windows(struct radix_cache *cache, const token_key *keys,
                                   int64_t num_pages, int32_t *pages, int32_t *windows,
                                   struct radix_node **node);

/* Free up to num_pages window pages without a hold; returns how many: min(num_pages, evictable). */
int64_t radix_cache_evict_windows(struct radix_cache *cache, int64_t num_pages);

/* Window pages that can be evicted. */
int64_t radix_cache_evictable_windows(const struct radix_cache *cache);

/* ---- Figures --------------------------------------------------------------------------------- */

/* Pages in the tree, and those of them that can be evicted. */
int64_t radix_cache_pages(const struct radix_cache *cache);
int64_t radix_cache_evictable(const struct radix_cache *cache);

#endif /* HOST_CACHE_RADIX_CACHE_H */
