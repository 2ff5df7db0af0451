/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: the parameters of a forward kernel. Plain C, the same for the host and for the
 * device: members of fixed width, the wide ones first, no gaps. It travels by value as a kernel's
 * one parameter, so that the copy engine can read the tensor maps where they lie.
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

/* Bounds of a window where there is none: no sequence has more keys. */
#define FA3_UNBOUNDED (1 << 29)

/* A tile of a list: all that a block has to look up of it, 32 bytes. */
struct fa3_entry {
    int32_t sequence, tile;
    int32_t q_start; /* row of the sequence's first query, */
    int32_t queries; /* how many it has, */
    int32_t keys;
    int32_t position; /* and that of query 0, where key 0 stands at 0 */
    int32_t reserved[2];
};

/* New keys, or values, and the cache that they are saved to; strides in pieces of 16 bytes. */
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
 * A head dimension that is no multiple of 64 is the map's bound: the copy engine fills up with
 * zeros. box_rows: keys of a box: the tile's keys, or for a paged cache gcd(page_size, the tile's
 * keys), a multiple of 8.
 *
 * Query t of a sequence stands at position k_length - q_length + t, or where `positions` says, and
 * sees keys position - window_left .. position + window_right, as far as they exist; with a chunk
 * only those of its own chunk: from the last multiple of it on that is no more than the position.
 */
struct fa3_forward_params {
    struct fa3_tensor_map q, k, v, o;
    struct fa3_tensor_map k_new, v_new; /* rows of the call's keys and values, where has_new; a box
                                         * has a tile's keys */
    struct fa3_tensor_map k_pages,
        v_pages;                    /* the cache's, where save_box: boxes of so many slots */
    struct fa3_save k_save, v_save; /* where has_new */
    uint64_t slots;                 /* int64 [rows]: of new rows; below 0: not saved; 0: all of
                                         * them are saved by the kernel before */

    uint64_t out;         /* the output: all of it if it is fp32, else of tiles that are not full */
    uint64_t lse;         /* float, natural logarithm; 0: not wanted */
    uint64_t q_starts;    /* int32 [batch + 1]: ragged queries; 0: q_length queries each */
    uint64_t k_starts;    /* int32 [batch + 1]: ragged keys; 0: see k_lengths */
    uint64_t k_lengths;   /* int32 [batch]: keys of each sequence; 0: k_length each, or k_starts */
    uint64_t positions;   /* int32 [batch]: of each sequence's query 0, where key 0 stands at 0; it
                           * may be below 0, or after the last key. 0: queries end with the keys */
    uint64_t block_table; /* int32 [batch][table_stride]: pages of each sequence; 0: not paged */
    uint64_t tiles; /* struct fa3_entry [tile_count], with room for tile_room; 0: by arithmetic */
    uint64_t tile_count; /* int32: how many entries `tiles` has */
    uint64_t counter;    /* uint32 [2]: zero before the first launch; a launch leaves it zero */
    uint64_t sinks;      /* float [heads_q]: a logit that joins each row's sum; 0: none */
    uint64_t kv_scales;  /* float [2][kv heads]: factors of keys, and of values; 0: 1 */
    int64_t out_token;   /* strides of the output, in elements */
    int64_t out_head;
    int64_t out_batch;
    int64_t lse_token; /* strides of the LSE */
    int64_t lse_head;
    int64_t lse_batch;
    int64_t out_split; /* of parts; 0 where there are none */
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
    int32_t section;      /* (sequence, head) pairs whose tiles run together, for the L2; of a list
                           * heads; at least 1 */
    int32_t window_left;  /* FA3_UNBOUNDED: all keys before */
    int32_t window_right; /* 0: causal; FA3_UNBOUNDED: all keys after */
    float score_log2;     /* scale of the scores times log2(e); with a cap: cap * log2(e) */
    float score_cap;      /* scale / cap, 0: no cap */
    int32_t chunk;        /* 0: none; else 64 keys or more, window_right is 0, and it has them */
    int32_t out_f32;      /* 1: the output is fp32, and `o` any map; else of the queries' type */
    int32_t splits;       /* parts that a tile's keys are shared out to, each with an output and an
                           * LSE of its own in fp32, whose rows begin with the batch's first; 0: one */
    int32_t tile_room;    /* entries that `tiles` has room for */
    int32_t has_new;  /* 1: a sequence of as many keys as queries has its keys in k_new, v_new, as
                           * the rows of its queries */
    int32_t save_box; /* 16 or 32: a tile saves so many rows at a time, from a stage, where their
                           * slots lie side by side; 0: row by row */
    int32_t is_early; /* 1: nothing is read that the kernel before writes, but for k and v where
                           * they are the cache; it lets this one start once it has waited itself */
};

/* One fp32 factor of each sequence and KV head; strides are 0 where they share it. at == 0: 1. */
struct fa3_scale {
    uint64_t at;
    int32_t sequence, head; /* strides, in elements */
};

/* A forward kernel of codes (e4m3), head dimension 128: maps of q, k and v are of bytes, their
 * boxes are 128 wide. score_log2 and score_cap are without the codes' scales. */
struct fa3_codes_params {
    struct fa3_forward_params forward;
    struct fa3_scale q_scale, k_scale, v_scale;
    uint64_t turned;       /* values as fa3_turn_values leaves them: [tile][kv head][16 KiB] */
    uint64_t turned_first; /* int32 [batch]: each sequence's first tile; 0: turned_tiles apart */
    int32_t turned_tiles;  /* tiles of 128 keys a sequence has room for */
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
    uint64_t seqs; /* int32: how many sequences there are; 0: as many as the grid has */
};

/* What a kernel needs from its launch, and what its tiles are: each cubin has one of these beside
 * its kernel, under the kernel's name with _shape after it. */
struct fa3_shape {
    int32_t tile_queries;
    int32_t tile_keys;
    int32_t head_dim;
    int32_t head_dim_v;
    int32_t threads;
    int32_t shared_bytes;
    int32_t is_f16; /* else bf16 */
    int32_t chunks; /* 1: has them, 0: params.chunk has to be 0 */
};

#endif
