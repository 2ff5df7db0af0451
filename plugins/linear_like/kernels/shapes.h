/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: what launches and kernels of linear_like agree on.
 */
#ifndef LINEAR_LIKE_SHAPES_H
#define LINEAR_LIKE_SHAPES_H

/* ---- steps.cuh: the recurrence, token by token ----------------------------------------------- */

#define STEPS_ROWS        8 /* made ready in shared memory together */
#define STEPS_MAX_WARPS   4
#define STEPS_DECODE_KEYS 16 /* of a lane, that there are kernels for single rows for */

/* Elements of v that a lane has, for so many of k, and those of a block. */
#define STEPS_VALUES(keys)           ((keys) > 16 ? 2 : 4)
#define STEPS_COLUMNS(warps, values) ((warps)*4 * (values))

/* Bytes of shared memory, for so many rows at once; `vectors`: q and k, and decays where each
 * channel has its own. */
#define STEPS_SHARED(rows, keys, vectors, columns)                                                 \
    ((rows) * ((vectors)*8 * (keys) + (columns) + 5) * 4)

/* decode.cuh: those of a block: its part of the state, vectors over k, its values, four numbers. */
#define DECODE_BLOCKS       6 /* of a multiprocessor */
#define DECODE_VALUES(bf16) ((bf16) ? 8 : 4)
#define DECODE_SHARED(warps, vectors, bf16)                                                        \
    ((warps)*32 * 256 +                                                                            \
     ((vectors)*8 * STEPS_DECODE_KEYS + STEPS_COLUMNS(warps, DECODE_VALUES(bf16)) + 4) * 4)

/* decode_heads.cuh: keys; parts of 16 bytes that a lane has of a head, of a slice; bytes of a slice. Then
 * values of a block, bytes of an element, vectors. */
#define HEADS_KEYS                          128
#define HEADS_PARTS                         16
#define HEADS_KEPT_LEAST                    (96 << 20) /* linear_heads_call.kept: bytes of a launch */
#define HEADS_PREFETCHED                    (24 << 20) /* linear_heads_call.prefetched, of others */
#define SLICE_PARTS                         8
#define SLICE_BYTES                         16384
#define SLICES_MOST                         (4 << 20) /* elements of a launch; heads are faster then */
#define HEADS_MOST_THREADS                  256
#define HEADS_THREADS(columns, size, parts) ((columns)*HEADS_KEYS * (size) / (16 * (parts)))
#define HEADS_COLUMNS(vk, v_dim, size)                                                             \
    ((vk) && (v_dim) * (size) > 256 ? 256 / (size) : (v_dim)) /* vk: 128 threads at most */
#define SLICE_COLUMNS(size) (SLICE_BYTES / (HEADS_KEYS * (size)))
#define SLICE_SHARED(vectors, size)                                                                \
    (16 + ((vectors)*HEADS_KEYS + SLICE_COLUMNS(size) + 4 +                                        \
           32 / SLICE_PARTS * (2 * SLICE_COLUMNS(size) + 1)) *                                     \
              4)
/* More than a block needs: a multiprocessor has 128 KB of states, as copies are slower with 192. */
#define HEADS_SHARED(columns, size) ((227 << 10) * ((columns) * (size)) / 1024 - 1024)

/* ---- chunks.cuh: the recurrence, chunk by chunk ---------------------------------------------- */

#define CHUNK_ROWS             64
#define CHUNK_LEAST            32  /* rows of a sequence that goes by chunks */
#define CHUNK_MAX_KEYS         128 /* and values: tiles have as many columns */
#define CHUNK_MAX_WIDTH        4   /* of the convolution */
#define CHUNK_PANEL            16  /* values of a warp */
#define CHUNK_PLAN_THREADS     1024
#define CHUNK_READY_THREADS    128
#define CHUNK_READY_HEADS      4   /* v heads of a block, at most; fewer where there are fewer */
#define CHUNK_READY_BLOCKS     400 /* blocks */
#define CHUNK_CHANNELS_THREADS 256 /* the same of KDA, whose blocks have one */
#define CHUNK_CHANNELS_BLOCKS  2   /* of a multiprocessor */
#define CHUNK_STATE_WARPS      4
#define CHUNK_STATE_THREADS    (96 * CHUNK_STATE_WARPS) /* two warpgroups, and one that copies */

/* What there is of a chunk beside q, k and products of these: u; w and u of (I + A) x = b; (I + A)^-1,
 * where rows of v can come from the batch as they are; the same, with rows and tiles from the
 * convolution; the same as these two where each channel has its own decay, so that k has two: from the
 * chunk's first row on, and to its end. */
#define CHUNK_PLAIN          0
#define CHUNK_SOLVED         1
#define CHUNK_INVERSE        2
#define CHUNK_TILES          3
#define CHUNK_CHANNELS       4
#define CHUNK_CHANNELS_TILES 5

#define CHUNK_BY_CHANNELS(rule) ((rule) >= CHUNK_CHANNELS)
#define CHUNK_ONE_DECAY(rule)   ((rule) == CHUNK_INVERSE || (rule) == CHUNK_TILES)
#define CHUNK_HAS_TILES(rule)   ((rule) == CHUNK_TILES || (rule) == CHUNK_CHANNELS_TILES)
/* Where blocks of linear_states_* may have several parts: others' registers do not suffice. */
#define CHUNK_IN_TURN(rule) CHUNK_BY_CHANNELS(rule)

/* fp16 has few bits for small numbers: (I + A)^-1, products of normalised rows, KDA's rows with their decays
 * are in tiles times these. */
#define CHUNK_INVERSE_ROOM 128.0f
#define PRODUCTS_ROOM      32768.0f
#define CHANNELS_UP        256.0f

/* Tiles: q and k; the numbers of rows, products of queries and keys, w or the inverse, u by panels. */
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

/* Segments of the sequences of a window that are cut: at most as many as multiprocessors have room
 * for at once, as more would go one after the other. */
#define CHUNK_SEGMENT_BLOCKS 132
#define CHUNK_SEGMENT_LEAST  8  /* chunks */
#define CHUNK_SEGMENT_MOST   24 /* segments of a sequence */
/* Where there is room for two, a sequence has three: the last one is as long as the first two, which
 * multiprocessors pass one after the other beside it. */
#define CHUNK_SEGMENTS(room) ((room) == 2 ? 3 : (room))
/* Rows of a sequence, if any of the batch is to be cut: with fewer a launch more costs what is gained. */
#define CHUNK_SEGMENT_ROWS(room) (CHUNK_ROWS * ((room) > 2 ? 18 : 24))
#define CHUNK_SEGMENT_PARTS(panels, delta)                                                         \
    ((delta) && (panels) <= CHUNK_STATE_WARPS                                                      \
         ? 2                                                                                       \
         : ((panels) + CHUNK_STATE_WARPS - 1) / CHUNK_STATE_WARPS)
#define CHUNK_ROOM(heads, panels, delta)                                                           \
    (CHUNK_SEGMENT_BLOCKS / ((heads)*CHUNK_SEGMENT_PARTS(panels, delta)))

/* The result of a segment, which makes S M + N of a state S: N, by panels; M as numbers of its rows
 * and two tiles of 64 rows, and two tiles of what is left of M. The first segment of a sequence has
 * the state after it as N, and the state before it in the place of M. */
#define CHUNK_RESULT_STATE(panels) ((panels)*CHUNK_CARRY * 4)
#define CHUNK_RESULT_NUMBERS       (CHUNK_MAX_KEYS * 4)
#define CHUNK_RESULT_BYTES(panels)                                                                 \
    (CHUNK_RESULT_STATE(panels) + CHUNK_RESULT_NUMBERS + 4 * CHUNK_TILE)

/* Chunks of a batch at most: a sequence with more than twice as many as without snapshots goes row
 * by row. */
#define CHUNK_MOST(tokens, seqs, snapshots)                                                        \
    (((tokens) / CHUNK_ROWS + (seqs)) * ((snapshots) ? 2 : 1))

/* Bytes of shared memory. */
#define CHUNK_STAGE       (16 * 64 * 2) /* what a warp writes of a tile at a time */
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
/* Four tiles; numbers; what warps of a block exchange; the system; decays of blocks. */
#define CHUNK_EXCHANGE (12 * CHUNK_STAGE)
#define CHUNK_CHANNELS_INVERSE_SHARED                                                              \
    (4 * CHUNK_TILE + CHUNK_READY_GATES + CHUNK_EXCHANGE + CHUNK_PRODUCTS + 18 * CHUNK_MAX_KEYS * 4)
/* Stages of the two warpgroups, and of keys with the decay to the chunk's end, which the first needs later;
 * what they hand on and what outputs are turned in. */
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
/* As operands in registers; or as tiles of two chunks, with what their rows are to be multiplied by. KDA's warpgroups
 * hand nothing on. */
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

/* states_wide.cuh: blocks of a launch, at least; stages; the two warpgroups' outputs; barriers. */
#define WIDE_BLOCKS 96
#define WIDE_STAGES 3
#define WIDE_STAGE  (3 * CHUNK_TILE + CHUNK_NUMBERS + 2 * CHUNK_PRODUCTS)
#define WIDE_TASKS  8
#define WIDE_SHARED (WIDE_STAGES * WIDE_STAGE + 2 * CHUNK_PRODUCTS + WIDE_TASKS * 32 + 256)

/* channels_strips.cuh: rows of a strip; warps that make strips ready, and as many that pass states on; strips in shared
 * memory, and bytes of each; registers of warpgroups of 128 threads, after a convolution and without one: 512 in all,
 * at most. */
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
/* Of the chunks of a sequence, the batch's only one that goes by chunks: how many, from the first on, go by strips where
 * heads fill less than half of the multiprocessors, but not much less. The others are made ready meanwhile by
 * multiprocessors that have no head, of which a chunk of a head takes 14/17 of the time that its strips take. */
#define STRIPS_BESIDE_LEAST 96 /* chunks; fewer have not been raced */
#define STRIPS_BESIDE(chunks, heads, sms)                                                          \
    ((chunks) < STRIPS_BESIDE_LEAST || 2 * (heads) > (sms) || 20 * (heads) < 9 * (sms)             \
         ? 0                                                                                       \
         : (int)((chunks)*14LL * (heads) / (14 * (heads) + 17 * ((sms) - (heads)))))
#define STRIP_SHARED                                                                               \
    (STRIP_SLOTS * (STRIP_TILES + STRIP_ROWS * STRIP_V_ROW + STRIP_NUMBERS + 2 * 8) +              \
     STRIP_WARPS * STRIP_ROWS * STRIP_ROWS * 4)

/* chunk_fused.cuh: stages of rows of q, k and v, of states, each as so many numbers, of numbers of
 * rows; warpgroups. */
#define FUSED_STAGES           3
#define FUSED_STATES           2
#define FUSED_PARTS            2
#define FUSED_GATES            6
#define FUSED_GATE_WARPS       3
#define FUSED_OUTPUT_GROUPS    2
#define FUSED_THREADS          (128 * (2 + FUSED_OUTPUT_GROUPS))
#define FUSED_REGISTERS        144 /* of warpgroups of 128 threads: 512 in all, at most */
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
#define CONVOLVE_NUMBER  8     /* channels of a thread, where it has several */
#define CONVOLVE_AHEAD   4     /* rows whose inputs are on their way; a multiple of the taps */
#define CONVOLVE_BLOCKS  4     /* of a multiprocessor */
#define CONVOLVE_MOST    64    /* rows of a thread */
#define CONVOLVE_LEAST   8     /* where more would leave multiprocessors idle: */
#define CONVOLVE_ENOUGH  65536 /* threads */
/* Threads for a row of a chunk, of a layer's linear_dims: of a k head both q and k. */
#define CONVOLVE_HEAD_THREADS    (2 * CHUNK_MAX_KEYS / CONVOLVE_NUMBER)
#define CONVOLVE_VALUE_THREADS   (CHUNK_MAX_KEYS / CONVOLVE_NUMBER)
#define CONVOLVE_ROW_THREADS(d)  ((d).channels / CONVOLVE_NUMBER)
#define CONVOLVE_TILE_THREADS(d) /* whole warps */                                                 \
    ((d).k_heads * CONVOLVE_HEAD_THREADS + ((d).v_heads + 1) / 2 * 2 * CONVOLVE_VALUE_THREADS)
/* Numbers of the rows of a chunk: q times k of each k head; of each v head what its rows are to be
 * multiplied by. */
#define CHUNK_ROW_NUMBERS(d) (((d).k_heads + (d).v_heads) * CHUNK_ROWS)
#define FINISH_THREADS       256

#endif /* LINEAR_LIKE_SHAPES_H */
