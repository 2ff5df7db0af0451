/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: the parameters of a forward kernel. Plain C, the same for the host and for the device:
 * members of fixed width, the wide ones first, no gaps. It is passed by value as a kernel's only
 * parameter, so that TMA can read its tensor maps in place.
 */
#ifndef FA3_LIKE_PARAMS_H
#define FA3_LIKE_PARAMS_H

#ifdef __CUDACC_RTC__
typedef int int32_t;
typedef unsigned uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#ifdef __cplusplus
#define FA3_ALIGN alignas(64)
#else
#define FA3_ALIGN _Alignas(64)
#endif

/* A CUtensorMap, as cuTensorMapEncodeTiled fills it. */
struct fa3_tensor_map {
    FA3_ALIGN uint64_t opaque[16];
};

/* Bounds of an unlimited window: no sequence has more keys. */
#define FA3_UNBOUNDED (1 << 29)

/* A tile of a list, with all that a block needs: 32 bytes. */
struct fa3_entry {
    int32_t sequence, tile;
    int32_t q_start; /* row of the sequence's first query */
    int32_t queries; /* of the sequence */
    int32_t keys;
    int32_t position; /* of the sequence's query 0; key 0 is at 0 */
    int32_t reserved[2];
};

/* New keys, or values, and the cache to save them to; strides in units of 16 bytes. */
struct fa3_save {
    uint64_t from, to;
    uint32_t from_row, from_head;
    uint32_t page, token, head;
    uint32_t page_size;
};

/* Layouts of maps, 4 dimensions each, 16-bit elements, 128-byte swizzle, L2 promotion 128 bytes:
 *
 *   q, o    {dim, query, head, batch}        box {64, 64, 1, 1}; ragged: query = token, batch 1
 *   k, v    {dim, key, kv head, batch}       box {64, box_rows, 1, 1}; ragged: key = token, batch 1
 *           {dim, slot of page, kv head, page}   for a paged cache, either order of slots and heads
 *
 * A map has the true head dimension; TMA fills boxes beyond it with zeros. box_rows: keys of a box:
 * the tile's keys or, for a paged cache, gcd(page_size, the tile's keys), a multiple of 8.
 *
 * Query t of a sequence is at position k_length - q_length + t, or at positions[sequence] + t. It
 * sees keys position - window_left to position + window_right, as far as they exist; with a chunk,
 * only keys of its own chunk. */
struct fa3_forward_params {
    struct fa3_tensor_map q, k, v, o;
    struct fa3_tensor_map k_new, v_new; /* rows of new keys and values, with has_new; a box has a
                                         * tile's keys */
    struct fa3_tensor_map k_pages,
        v_pages;                    /* of the cache, with save_box: boxes of so many slots */
    struct fa3_save k_save, v_save; /* with has_new */
    uint64_t slots;                 /* int64 [rows]: of new rows; negative: not saved; 0: an earlier
                                     * kernel saves all rows */

    uint64_t out;         /* the output: for fp32 all of it, else partial tiles only */
    uint64_t lse;         /* float, natural logarithm; 0: not needed */
    uint64_t q_starts;    /* int32 [batch + 1]: ragged queries; 0: q_length queries each */
    uint64_t k_starts;    /* int32 [batch + 1]: ragged keys; 0: see k_lengths */
    uint64_t k_lengths;   /* int32 [batch]: keys of each sequence; 0: k_length each, or k_starts */
    uint64_t positions;   /* int32 [batch]: of each sequence's query 0; key 0 is at 0. May be
                           * negative, or after the last key. 0: the last query is at the last
                           * key */
    uint64_t block_table; /* int32 [batch][table_stride]: pages of each sequence; 0: not paged */
    uint64_t tiles;       /* struct fa3_entry [tile_count], capacity tile_room; 0: by arithmetic */
    uint64_t tile_count;  /* int32: number of entries in `tiles` */
    uint64_t counter;     /* uint32 [2]: zero before the first launch; a launch leaves it zero */
    uint64_t sinks;       /* float [heads_q]: an additional logit of each row's sum; 0: none */
    uint64_t kv_scales;   /* float [2][kv heads]: factors of keys, and of values; 0: all 1 */
    int64_t out_token;    /* strides of the output, in elements */
    int64_t out_head;
    int64_t out_batch;
    int64_t lse_token; /* strides of the LSE */
    int64_t lse_head;
    int64_t lse_batch;
    int64_t out_split; /* of splits; 0: there are none */
    int64_t lse_split;
    int64_t table_stride;

    int32_t batch;
    int32_t heads_q;
    int32_t heads_per_kv; /* query heads that share a KV head */
    int32_t q_length;     /* the longest of the batch */
    int32_t k_length;
    int32_t page_size; /* slots of a page; not paged: FA3_UNBOUNDED */
    int32_t box_rows;
    int32_t q_tiles;      /* tiles of q_length queries */
    int32_t section;      /* (sequence, head) pairs, or heads of a list, whose tiles run together,
                           * for the L2; at least 1 */
    int32_t window_left;  /* FA3_UNBOUNDED: all keys before */
    int32_t window_right; /* 0: causal; FA3_UNBOUNDED: all keys after */
    float score_log2;     /* scale of the scores times log2(e); with a cap: cap * log2(e) */
    float score_cap;      /* scale / cap, 0: no cap */
    int32_t chunk;        /* 0: off; else at least 64 keys, with window_right 0, in kernels with
                           * `chunks` */
    int32_t out_f32;      /* 1: the output is fp32, and `o` is unused; else of the queries' type */
    int32_t splits;       /* parts of a tile's keys, each with its own output and LSE in fp32, whose
                           * rows start with the batch's first; 0: not split */
    int32_t tile_room;    /* capacity of `tiles` */
    int32_t has_new;  /* 1: the keys of a sequence of as many keys as queries are in k_new, v_new,
                       * in the rows of its queries */
    int32_t save_box; /* 16 or 32: a tile saves so many rows at a time from a stage, if their slots
                       * are contiguous; 0: row by row */
    int32_t is_early; /* 1: this kernel reads nothing that the previous kernel writes, except the
                       * cache, if k and v are the cache; the previous kernel starts this one after
                       * its own wait */
};

/* One fp32 factor per sequence and KV head; a stride of 0 means shared. at == 0: 1. */
struct fa3_scale {
    uint64_t at;
    int32_t sequence, head; /* strides, in elements */
};

/* A forward kernel over e4m3, head dimension 128: maps of q, k and v are of bytes, with boxes of
 * 128 columns. score_log2 and score_cap exclude the fp8 scales. */
struct fa3_codes_params {
    struct fa3_forward_params forward;
    struct fa3_scale q_scale, k_scale, v_scale;
    uint64_t turned;       /* values, transposed by fa3_turn_values: [tile][kv head][16 KiB] */
    uint64_t turned_first; /* int32 [batch]: each sequence's first tile; 0: sequences are
                            * turned_tiles apart */
    int32_t turned_tiles;  /* capacity of a sequence, in tiles of 128 keys */
    int32_t reserved;
};

/* Parameters of fa3_turn_values: a grid of tiles, KV heads, sequences; 128 threads a block. */
struct fa3_turn_params {
    uint64_t v;
    uint64_t turned, turned_first;
    uint64_t k_starts, k_lengths, block_table; /* as in fa3_forward_params */
    int64_t v_token, v_head, v_outer;          /* strides of v in bytes; outer: page or sequence */
    int64_t table_stride;
    int32_t turned_tiles;
    int32_t k_length;
    int32_t page_size;
    int32_t reserved;
    uint64_t seqs; /* int32: number of sequences; 0: that of the grid */
};

/* Launch parameters and tile sizes of a kernel: each cubin has one beside its kernel, named after
 * it with the suffix _shape. */
struct fa3_shape {
    int32_t tile_queries;
    int32_t tile_keys;
    int32_t head_dim;
    int32_t head_dim_v;
    int32_t threads;
    int32_t shared_bytes;
    int32_t is_f16; /* else bf16 */
    int32_t chunks; /* 1: supports params.chunk; 0: chunk must be 0 */
};

#endif
