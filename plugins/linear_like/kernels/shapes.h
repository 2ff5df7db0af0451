/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: sizes that launches and kernels of linear_like share.
 */
#ifndef LINEAR_LIKE_SHAPES_H
#define LINEAR_LIKE_SHAPES_H

/* ---- steps.cuh: the recurrence, token by token ----------------------------------------------- */

#define STEPS_ROWS        8 /* rows prepared in shared memory at a time */
#define STEPS_MAX_WARPS   4
#define STEPS_DECODE_KEYS 16 /* of a lane, in kernels for single rows */

/* A lane's elements of v, for `keys` elements of k; a block's elements of v. */
#define STEPS_VALUES(keys)           ((keys) > 16 ? 2 : 4)
#define STEPS_COLUMNS(warps, values) ((warps)*4 * (values))

/* Bytes of shared memory for `rows` rows at once; `vectors`: q and k, and decays if each channel
 * has its own. */
#define STEPS_SHARED(rows, keys, vectors, columns)                                                 \
    ((rows) * ((vectors)*8 * (keys) + (columns) + 5) * 4)

/* decode.cuh: bytes of a block: its part of the state, vectors over k, its values, four numbers. */
#define DECODE_BLOCKS       6 /* per multiprocessor */
#define DECODE_VALUES(bf16) ((bf16) ? 8 : 4)
#define DECODE_SHARED(warps, vectors, bf16)                                                        \
    ((warps)*32 * 256 +                                                                            \
     ((vectors)*8 * STEPS_DECODE_KEYS + STEPS_COLUMNS(warps, DECODE_VALUES(bf16)) + 4) * 4)

/* decode_heads.cuh: keys; a lane's parts of 16 bytes of a head, of a slice; bytes of a slice. The
 * macros take values of a block, bytes of an element, vectors. */
#define HEADS_KEYS       128
#define HEADS_PARTS      16
#define HEADS_KEPT_LEAST (96 << 20) /* linear_heads_call.kept: bytes of a launch */
#define HEADS_PREFETCHED (24 << 20) /* linear_heads_call.prefetched, of others */
#define SLICE_PARTS      8
#define SLICE_BYTES      16384
#define SLICES_MOST                                                                                \
    (4 << 20) /* elements of a launch; with more, heads are
                                                       * faster */
#define HEADS_MOST_THREADS                  256
#define HEADS_THREADS(columns, size, parts) ((columns)*HEADS_KEYS * (size) / (16 * (parts)))
#define HEADS_COLUMNS(vk, v_dim, size)                                                             \
    ((vk) && (v_dim) * (size) > 256 ? 256 / (size) : (v_dim)) /* vk: 128 threads at most */
#define SLICE_COLUMNS(size) (SLICE_BYTES / (HEADS_KEYS * (size)))
#define SLICE_SHARED(vectors, size)                                                                \
    (16 + ((vectors)*HEADS_KEYS + SLICE_COLUMNS(size) + 4 +                                        \
           32 / SLICE_PARTS * (2 * SLICE_COLUMNS(size) + 1)) *                                     \
              4)
/* More than a block needs, so that a multiprocessor has 128 KB of states: copies are slower with
 * 192. */
#define HEADS_SHARED(columns, size) ((227 << 10) * ((columns) * (size)) / 1024 - 1024)

/* ---- chunks.cuh: the recurrence, chunk by chunk ---------------------------------------------- */

#define CHUNK_ROWS             64
#define CHUNK_LEAST            32  /* least rows of a sequence processed in chunks */
#define CHUNK_MAX_KEYS         128 /* and values: tiles have as many columns */
#define CHUNK_MAX_WIDTH        4   /* of the convolution */
#define CHUNK_PANEL            16  /* values of a warp */
#define CHUNK_PLAN_THREADS     1024
#define CHUNK_READY_THREADS    128
#define CHUNK_READY_HEADS      4   /* most v heads of a block */
#define CHUNK_READY_BLOCKS     400 /* blocks */
#define CHUNK_CHANNELS_THREADS 256 /* the same for KDA, whose blocks have one v head */
#define CHUNK_CHANNELS_BLOCKS  2   /* per multiprocessor */
#define CHUNK_STATE_WARPS      4
#define CHUNK_STATE_THREADS    (96 * CHUNK_STATE_WARPS) /* two warpgroups, and one that copies */

/* The data of a chunk besides q, k and their products: u; w and u of (I + A) x = b; (I + A)^-1,
 * with rows of v from the batch; the same, with rows and tiles from the convolution; the same two
 * with a decay per channel, so that k is stored twice: decayed from the chunk's first row on, and
 * to its end. */
#define CHUNK_PLAIN          0
#define CHUNK_SOLVED         1
#define CHUNK_INVERSE        2
#define CHUNK_TILES          3
#define CHUNK_CHANNELS       4
#define CHUNK_CHANNELS_TILES 5

#define CHUNK_BY_CHANNELS(rule) ((rule) >= CHUNK_CHANNELS)
#define CHUNK_ONE_DECAY(rule)   ((rule) == CHUNK_INVERSE || (rule) == CHUNK_TILES)
#define CHUNK_HAS_TILES(rule)   ((rule) == CHUNK_TILES || (rule) == CHUNK_CHANNELS_TILES)
/* Rules whose blocks of linear_states_* process several parts; the others lack registers. */
#define CHUNK_IN_TURN(rule) CHUNK_BY_CHANNELS(rule)

/* Scales of tiles, as fp16 has few bits for small numbers: of (I + A)^-1, of products of normalised
 * rows, of KDA's decayed rows. */
#define CHUNK_INVERSE_ROOM 128.0f
#define PRODUCTS_ROOM      32768.0f
#define CHANNELS_UP        256.0f

/* Sizes: tiles of q and k; numbers of rows; products of queries and keys; w or the inverse; u by
 * panels. */
#define CHUNK_TILE                  (CHUNK_ROWS * CHUNK_MAX_KEYS * 2)
#define CHUNK_KEYS_BYTES            (2 * CHUNK_TILE)
#define CHUNK_RULE_KEYS_BYTES(rule) (CHUNK_KEYS_BYTES + (CHUNK_BY_CHANNELS(rule) ? CHUNK_TILE : 0))
#define CHUNK_NUMBERS               2048
#define CHUNK_PRODUCTS              (CHUNK_ROWS * CHUNK_ROWS * 2)
#define CHUNK_TRIANGLE              (10 * 16 * 16 * 2)
#define CHUNK_PANEL_BYTES           (CHUNK_ROWS * CHUNK_PANEL * 2)
#define CHUNK_V_ROW                 (CHUNK_PANEL * CHUNK_STATE_WARPS * 2 + 16)
#define CHUNK_VALUES_BYTES(panels, rule)                                                           \
    (CHUNK_NUMBERS + (CHUNK_ONE_DECAY(rule)     ? 2 * CHUNK_TRIANGLE                               \
                      : (rule) >= CHUNK_INVERSE ? 2 * CHUNK_PRODUCTS                               \
                                                : CHUNK_PRODUCTS + ((rule) ? CHUNK_TILE : 0) +     \
                                                      (panels)*CHUNK_PANEL_BYTES))
#define CHUNK_CARRY (CHUNK_PANEL * CHUNK_MAX_KEYS) /* floats of a panel's state */

/* Segments of the sequences of a window: at most as many as run at once, since more would run one
 * after the other. */
#define CHUNK_SEGMENT_BLOCKS 132
#define CHUNK_SEGMENT_LEAST  8  /* chunks */
#define CHUNK_SEGMENT_MOST   24 /* segments of a sequence */
/* With room for two segments a sequence has three: the last one is as long as the first two
 * together, which multiprocessors process in sequence meanwhile. */
#define CHUNK_SEGMENTS(room) ((room) == 2 ? 3 : (room))
/* Least rows of the longest sequence for cutting; with fewer, the additional launch costs more than
 * is gained. */
#define CHUNK_SEGMENT_ROWS(room) (CHUNK_ROWS * ((room) > 2 ? 18 : 24))
#define CHUNK_SEGMENT_PARTS(panels, delta)                                                         \
    ((delta) && (panels) <= CHUNK_STATE_WARPS                                                      \
         ? 2                                                                                       \
         : ((panels) + CHUNK_STATE_WARPS - 1) / CHUNK_STATE_WARPS)
#define CHUNK_ROOM(heads, panels, delta)                                                           \
    (CHUNK_SEGMENT_BLOCKS / ((heads)*CHUNK_SEGMENT_PARTS(panels, delta)))

/* The result of a segment, which maps a state S to S M + N: N, by panels; M as numbers of its rows,
 * two tiles of 64 rows, and two tiles of its rounding errors. The first segment of a sequence
 * stores the state after it as N, and the state before it in place of M. */
#define CHUNK_RESULT_STATE(panels) ((panels)*CHUNK_CARRY * 4)
#define CHUNK_RESULT_NUMBERS       (CHUNK_MAX_KEYS * 4)
#define CHUNK_RESULT_BYTES(panels)                                                                 \
    (CHUNK_RESULT_STATE(panels) + CHUNK_RESULT_NUMBERS + 4 * CHUNK_TILE)

/* The most chunks of a batch: a sequence whose snapshots more than double its chunks is processed
 * row by row. */
#define CHUNK_MOST(tokens, seqs, snapshots)                                                        \
    (((tokens) / CHUNK_ROWS + (seqs)) * ((snapshots) ? 2 : 1))

/* Bytes of shared memory. */
#define CHUNK_STAGE       (16 * 64 * 2) /* of a tile, written by a warp at a time */
#define CHUNK_READY_GATES ((4 + CHUNK_READY_HEADS * 3) * 64 * 4)
#define CHUNK_READY_SHARED(delta, width)                                                           \
    (2 * CHUNK_TILE + CHUNK_READY_GATES + 4 * CHUNK_STAGE +                                        \
     ((delta) || (width) > 0 ? CHUNK_PRODUCTS : 0))
#define CHUNK_READY_LEFTS (CHUNK_READY_HEADS * 3 * 64 * 4)
#define CHUNK_READY_GIVEN (2 * 8 * 32 * 4)
#define CHUNK_INVERSE_SHARED                                                                       \
    (2 * CHUNK_TILE + CHUNK_READY_GATES + CHUNK_READY_LEFTS + CHUNK_READY_GIVEN)
#define CHUNK_CHANNELS_SHARED                                                                      \
    (CHUNK_READY_SHARED(1, 0) + 4 * CHUNK_STAGE + CHUNK_TILE + (64 * 132 + 5 * 128) * 4)
/* Four tiles; numbers; the exchange between warps; the system; decays of blocks. */
#define CHUNK_EXCHANGE (12 * CHUNK_STAGE)
#define CHUNK_CHANNELS_INVERSE_SHARED                                                              \
    (4 * CHUNK_TILE + CHUNK_READY_GATES + CHUNK_EXCHANGE + CHUNK_PRODUCTS + 18 * CHUNK_MAX_KEYS * 4)
/* Stages of the two warpgroups, and of keys with the decay to the chunk's end, which the first
 * warpgroup needs later; then the data passed between them, and buffers to transpose outputs. */
#define CHUNK_STATE_STAGES        3
#define CHUNK_OUTPUT_STAGES       2
#define CHUNK_UPDATE_STAGES(rule) (CHUNK_BY_CHANNELS(rule) ? 2 : 0)
#define CHUNK_STATE_SLICES(rule)  (CHUNK_BY_CHANNELS(rule) ? 2 : 1) /* of a block, at most */
#define CHUNK_STATE_STAGE(rule)                                                                    \
    (CHUNK_TILE + CHUNK_NUMBERS +                                                                  \
     ((rule) >= CHUNK_INVERSE                                                                      \
          ? CHUNK_PRODUCTS + CHUNK_STATE_SLICES(rule) * CHUNK_ROWS * CHUNK_V_ROW                   \
          : ((rule) ? CHUNK_TILE : 0) + CHUNK_STATE_WARPS * CHUNK_PANEL_BYTES))
#define CHUNK_OUTPUT_STAGE(rule)                                                                   \
    (CHUNK_TILE + CHUNK_PRODUCTS + (CHUNK_BY_CHANNELS(rule) ? 0 : CHUNK_NUMBERS) +                 \
     ((rule) ? 0 : CHUNK_STATE_WARPS * CHUNK_PANEL_BYTES))
/* Passed in the layout of operand registers; or as tiles in two buffers, with factors of their
 * rows. KDA's warpgroups pass nothing. */
#define CHUNK_PLACES 2
#define CHUNK_HANDED(rule)                                                                         \
    (CHUNK_BY_CHANNELS(rule)                                                                       \
         ? 0                                                                                       \
         : ((rule) >= CHUNK_INVERSE ? CHUNK_PLACES * (CHUNK_TILE + CHUNK_PRODUCTS + 512)           \
                                    : 14 * 2048) +                                                 \
               CHUNK_STATE_WARPS * 2048)
#define CHUNK_STATES_SHARED(rule)                                                                  \
    (CHUNK_STATE_STAGES * CHUNK_STATE_STAGE(rule) +                                                \
     CHUNK_OUTPUT_STAGES * CHUNK_OUTPUT_STAGE(rule) + CHUNK_UPDATE_STAGES(rule) * CHUNK_TILE +     \
     CHUNK_HANDED(rule) + 128)

/* states_wide.cuh: least blocks of a launch; stages; the two warpgroups' outputs; barriers. */
#define WIDE_BLOCKS 96
#define WIDE_STAGES 3
#define WIDE_STAGE  (3 * CHUNK_TILE + CHUNK_NUMBERS + 2 * CHUNK_PRODUCTS)
#define WIDE_TASKS  8
#define WIDE_SHARED (WIDE_STAGES * WIDE_STAGE + 2 * CHUNK_PRODUCTS + WIDE_TASKS * 32 + 256)

/* channels_strips.cuh: rows of a strip; warps that prepare strips, and as many that propagate
 * states; strips in shared memory, and bytes of each; registers of warpgroups of 128 threads, after
 * a convolution and without one: at most 512 in all. */
#define STRIP_ROWS                   16
#define STRIP_WARPS                  8
#define STRIP_SLOTS                  11
#define STRIP_THREADS                (2 * 32 * STRIP_WARPS)
#define STRIP_TILES                  (STRIP_ROWS * (3 * CHUNK_MAX_KEYS * 2 + 128))
#define STRIP_V_ROW                  (CHUNK_MAX_KEYS * 2 + 16)
#define STRIP_NUMBERS                1280
#define STRIP_READY_REGISTERS(tiles) ((tiles) ? 96 : 104)
#define STRIP_STATE_REGISTERS(tiles) ((tiles) ? 160 : 152)
#ifndef STRIP_BLOCKS
#define STRIP_BLOCKS(sms) (sms)
#endif
/* The number of chunks, from the first on, that go by strips, if the batch has only one sequence in
 * chunks, and its heads are less than half of the multiprocessors, but not much less.
 * Multiprocessors without a head prepare the other chunks meanwhile; a chunk of a head takes them
 * 14/17 of the time of its strips. */
#define STRIPS_BESIDE_LEAST 96 /* chunks; fewer have not been measured */
#define STRIPS_BESIDE(chunks, heads, sms)                                                          \
    ((chunks) < STRIPS_BESIDE_LEAST || 2 * (heads) > (sms) || 20 * (heads) < 9 * (sms)             \
         ? 0                                                                                       \
         : (int)((chunks)*14LL * (heads) / (14 * (heads) + 17 * ((sms) - (heads)))))
#define STRIP_SHARED                                                                               \
    (STRIP_SLOTS * (STRIP_TILES + STRIP_ROWS * STRIP_V_ROW + STRIP_NUMBERS + 2 * 8) +              \
     STRIP_WARPS * STRIP_ROWS * STRIP_ROWS * 4)

/* chunk_fused.cuh: stages of rows of q, k and v; of states; numbers per element of a state; stages
 * of numbers of rows; warpgroups. */
#define FUSED_STAGES           3
#define FUSED_STATES           2
#define FUSED_PARTS            2
#define FUSED_GATES            6
#define FUSED_GATE_WARPS       3
#define FUSED_OUTPUT_GROUPS    2
#define FUSED_THREADS          (128 * (2 + FUSED_OUTPUT_GROUPS))
#define FUSED_REGISTERS        144 /* of warpgroups of 128 threads: at most 512 in all */
#define FUSED_OUTPUT_REGISTERS 160
#define FUSED_COPY_REGISTERS   48
#define FUSED_NUMBERS          2560
#define FUSED_TURN             (CHUNK_ROWS * 64 * 2)
#define FUSED_STAGE            (2 * CHUNK_TILE + CHUNK_STATE_WARPS * CHUNK_PANEL_BYTES)
#define FUSED_SHARED                                                                               \
    (FUSED_STAGES * FUSED_STAGE + FUSED_STATES * FUSED_PARTS * CHUNK_TILE +                        \
     FUSED_OUTPUT_GROUPS * FUSED_TURN + FUSED_GATES * FUSED_NUMBERS + 256)

/* ---- rows.cu: the convolution alone, and what is left when all rows are done ----------------- */

#define CONVOLVE_THREADS 128
#define CONVOLVE_NUMBER  8     /* channels of a thread that has several */
#define CONVOLVE_AHEAD   4     /* rows whose inputs are in flight; a multiple of the taps */
#define CONVOLVE_BLOCKS  4     /* per multiprocessor */
#define CONVOLVE_MOST    64    /* rows of a thread */
#define CONVOLVE_LEAST   8     /* if more would leave multiprocessors idle: */
#define CONVOLVE_ENOUGH  65536 /* threads */
/* Threads for a row of a chunk, from a layer's linear_dims; a k head includes both q and k. */
#define CONVOLVE_HEAD_THREADS    (2 * CHUNK_MAX_KEYS / CONVOLVE_NUMBER)
#define CONVOLVE_VALUE_THREADS   (CHUNK_MAX_KEYS / CONVOLVE_NUMBER)
#define CONVOLVE_ROW_THREADS(d)  ((d).channels / CONVOLVE_NUMBER)
#define CONVOLVE_TILE_THREADS(d) /* whole warps */                                                 \
    ((d).k_heads * CONVOLVE_HEAD_THREADS + ((d).v_heads + 1) / 2 * 2 * CONVOLVE_VALUE_THREADS)
/* Numbers of the rows of a chunk: q times k of each k head; the factor of v's rows of each v
 * head. */
#define CHUNK_ROW_NUMBERS(d) (((d).k_heads + (d).v_heads) * CHUNK_ROWS)
#define FINISH_THREADS       256

#endif /* LINEAR_LIKE_SHAPES_H */
