/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: the parameters of linear_like's kernels: the layer's operands, its dimensions, the
 * batch. Included by the plugin, by its kernels, and by their stand-ins in tests.
 *
 * Strides are in bytes; constants of a head are fp32, with strides in elements. Pointers are to
 * device memory. Every launch reads the arrays of the batch on the device, so a replayed graph sees
 * their new contents.
 */
#ifndef LINEAR_LIKE_PARAMS_H
#define LINEAR_LIKE_PARAMS_H

#define LINEAR_MAX_DIM   256 /* of a head */
#define LINEAR_MAX_WIDTH 8   /* of the convolution */

/* linear_dims.family: ATTN_LINEAR_*. */
#define LINEAR_FAMILY_GDN        0
#define LINEAR_FAMILY_MAMBA2     1
#define LINEAR_FAMILY_KDA        2
#define LINEAR_FAMILY_LIGHTNING  3
#define LINEAR_FAMILY_SHORT_CONV 4

/* linear_operands.aligned: what a thread accesses at once is aligned to its size. */
#define LINEAR_ALIGNED_STATE    1  /* four elements of a state's row */
#define LINEAR_ALIGNED_ROWS     2  /* 16 bytes of mixed_qkv and out, and of z where it is given */
#define LINEAR_ALIGNED_STATE_16 4  /* 16 bytes of a state's row */
#define LINEAR_ALIGNED_FOURS    8  /* bf16, four taps or none; four channels of all they need */
#define LINEAR_ALIGNED_HEADS    16 /* 16 bytes of a head's state, which is contiguous */

typedef struct linear_operands {
    const char *mixed;    /* [tokens, channels] */
    char *out;            /* [tokens, v_heads, v_dim] */
    const char *a;        /* [tokens, v_heads] or, KDA, [tokens, v_heads, k_dim]; NULL = none */
    const char *b;        /* [tokens, v_heads]; NULL = 1 */
    const char *z;        /* [tokens, v_heads, v_dim]; NULL = none */
    const char *weight;   /* [channels, width]; NULL = no convolution */
    const char *bias;     /* [channels]; NULL = 0 */
    char *state;          /* [slots, v_heads, rows, columns] */
    char *conv;           /* [slots, channels, width - 1] */
    const float *a_log;   /* [v_heads] */
    const float *dt_bias; /* of head h, channel i: [h * dt_bias_stride + i] */
    const float *skip;    /* of head h, element j: [h * skip_stride + j * skip_step]; NULL = 0 */

    long long mixed_row;
    long long out_row, out_head;
    long long a_row, a_head;
    long long b_row;
    long long z_row, z_head;
    long long weight_row;
    long long state_slot, state_head, state_row;
    long long conv_slot, conv_channel;
    long long dt_bias_stride;
    long long skip_stride;
    int skip_step; /* 0: one for a head */
    int aligned;   /* LINEAR_ALIGNED_* */
} linear_operands;

typedef struct linear_dims {
    int family;
    int k_heads; /* 0: short_conv */
    int v_heads;
    int ratio; /* v heads of a k head */
    int k_dim;
    int v_dim;
    int channels;
    int first[3]; /* channels of q, k and v */
    int width;    /* of the convolution; 0 = none */
    int silu;     /* after the convolution */
    int l2_norm;  /* of q and k */
    int raw;      /* gates are computed here */
    int vk;       /* rows of a state are v's */
    int dtype;    /* ELEMENT_* of mixed_qkv, z, the weights, and raw gates */
    int out_dtype;
    int state_dtype; /* ELEMENT_F32 or ELEMENT_BF16 */
    int conv_dtype;
    float sm_scale;
    float dt_min;
    float dt_max; /* infinite = no bound */
    float lower_bound;
} linear_dims;

typedef struct linear_batch {
    const int *q_indptr;    /* [seqs + 1]; NULL = row s belongs to sequence s */
    const int *slot;        /* [seqs] */
    const int *dst_slot;    /* [seqs]; NULL = slot */
    const int *has_initial; /* [seqs]; NULL = all 1 */
    const int *snapshots;   /* [tokens]; NULL = none */
    const int *num_real;    /* sequences without padding; NULL = num_real_seqs */
    const int *counts;      /* [CALL_COUNTS] of a graph's batch; NULL = those below */
    int num_seqs;
    int num_tokens;
    int num_real_seqs;
} linear_batch;

/* A chunk of a sequence. */
typedef struct linear_chunk {
    int sequence;
    int first; /* row within the sequence */
    int rows;
    int snapshot; /* slot that gets the state after it; 0 = none */
} linear_chunk;

/* A segment of a sequence's chunks in a window: all of them, or a part that runs in parallel with
 * other parts. The segments of a sequence are adjacent. */
typedef struct linear_segment {
    int sequence;
    int from, to; /* chunks of the list; from == to: no segment */
    int number;   /* among the sequence's segments in this window */
    int count;
} linear_segment;

/* Sequences processed in chunks, and data passed between kernels, in device memory. A launch
 * processes `window` chunks of the list, which limits the memory for tiles. */
typedef struct linear_chunks {
    int *sequences; /* [seqs, 2]: first chunk and number of chunks; 0 = row by row. NULL = all row
                     * by row */
    int *count; /* [4]: number of chunks not by strips, and by strips; two counts of parts taken by
                 * wide blocks */
    linear_chunk *list; /* [most] a sequence's chunks are adjacent; chunks by strips are last */
    char *keys;         /* [window, heads of keys, CHUNK_RULE_KEYS_BYTES()] */
    char *values;       /* [window, v_heads, CHUNK_VALUES_BYTES()] */
    /* [window, CHUNK_ROWS, channels] after the convolution; operands.mixed then points into it.
     * Either bf16 of all channels; or, if the convolution writes tiles of q and k, fp16 of v's rows
     * times a power of two each, then row_numbers(). NULL = rows are in the batch */
    char *rows;
    float *carry; /* [2, v_heads, panels, CHUNK_CARRY] states that pass between launches */
    linear_segment *segments; /* [windows, most_segments] */
    char *results; /* [room, v_heads, CHUNK_RESULT_BYTES], of a window's first segments */
    int most;
    int window;
    int together;      /* most v heads of a k head that a block prepares; KDA: 1 */
    int most_segments; /* of a window */
    int raw;           /* linear_wide_inverse reads rows of q and k from the batch: there are no
                        * tiles */
    int room;          /* most segments of a window, if sequences are cut; below 2: none are */
    int two_slices;    /* KDA with a norm: a block of linear_states_* has two slices of values */
    int strips;        /* blocks of linear_strips_*; 0: not used */
} linear_chunks;

typedef struct linear_call {
    linear_operands operands;
    linear_dims dims;
    linear_batch batch;
    linear_chunks chunks;
} linear_call;

/* Parameters of linear_decode_*. readers: [seqs, k_heads, 2] counts of readers of q's and k's
 * convolution inputs, 0 between launches; NULL = linear_finish keeps inputs, or there are none. */
typedef struct linear_decode_call {
    linear_call call;
    unsigned *readers;
} linear_decode_call;

#ifdef __CUDACC__
#define LINEAR_ALIGN(bytes) __align__(bytes)
#else
#define LINEAR_ALIGN(bytes) __attribute__((aligned(bytes)))
#endif

/* CUtensorMaps of q, k and v in mixed_qkv: dimensions {element of a head, row, head, 1}, boxes of
 * 64 x 64 with the 128-byte swizzle. */
typedef struct linear_map {
    LINEAR_ALIGN(128) unsigned long long opaque[16];
} linear_map;

typedef struct linear_maps {
    linear_map q, k, v;
} linear_maps;

/* The same, and a map of the output. */
typedef struct linear_wide_maps {
    linear_maps rows;
    linear_map out;
} linear_wide_maps;

#endif /* LINEAR_LIKE_PARAMS_H */
