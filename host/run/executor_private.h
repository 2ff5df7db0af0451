/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_private.h: shared by executor.c (a step), executor_operands.c (operands of its
 * forwards), executor_create.c (creation), executor_rows.c (sampled rows), executor_fences.c
 * (writes outside the outputs) and graph_runner.c (captured steps).
 *
 * Memory of a step: the rows of one layer's operands, for the widest layer and the largest step;
 * they are made again for each layer, so memory never holds more than one layer's vectors. Steps in
 * flight share them, as they share the stream.
 */
#ifndef HOST_RUN_EXECUTOR_PRIVATE_H
#define HOST_RUN_EXECUTOR_PRIVATE_H

#include "host/run/executor.h"
#include "host/kinds/kinds.h"
#include "host/run/step_kernels.h"

#define EXECUTOR_ALIGNMENT 256u
#define EXECUTOR_FENCE     256u /* bytes after the rows of an operand's memory */

/* A composed backend. */
struct unit {
    attnhost_backend *backend;
    uint32_t index_forms;
    bool takes_shared; /* its DECODE batches have a shared_prefix */
};

/* Arrays of step_sample, in one block: indptr, offset, rows. */
struct sample_arrays {
    void *memory;
    int32_t *indptr;  /* [layers + 1] */
    uint64_t *offset; /* [layers] */
    int32_t *rows;    /* [layers * max_tokens] */
};

/* Chunks of prefixes, by their arrays (executor_prefix.c). */
struct prefix_lists {
    int32_t *entries;
    int32_t num_chunks; /* there is room for */
};

/* A step on its way. */
struct flight {
    struct row_list list;
    struct sample_arrays sample; /* pinned, list's arrays; the device's own on the CPU */
    char *outputs;               /* pinned: sampled rows that came back */
    uint64_t *watch;             /* pinned */
    char *fences;                /* pinned: [num_layers] of EXECUTOR_FENCE bytes that came back */
    int32_t judged;              /* layers whose rows are judged */
    bool settled;                /* waited for and judged */
    struct prefix_lists chunks;  /* pinned: of the prefixes of a step in the expanded form */
    struct device_event *start, *end;
    uint32_t mode;
    struct report_shared shared; /* shared prefixes in its batch's hint */
    int64_t submit_ns;           /* the host's time in executor_submit */
    int64_t forward_ns; /* of that, in init_forward_metadata and forwards, or the graph's launch */
};

/* Decode batches of one padded size, captured. */
struct graph_entry {
    int32_t size;
    bool tells_shared;            /* with what backends do for shared prefixes; else without */
    attnhost_metadata **metadata; /* [num_units], GRAPH */
    struct device_graph *graph;
};

struct graph_runner {
    struct graph_entry *entries; /* ascending by size */
    uint32_t count;
    int32_t seq_len_fill;
};

/* State that is the same at every step. */
struct layer_constants {
    uint32_t count;
    uint32_t roles[KIND_MAX_CONSTANTS];
    uint64_t offsets[KIND_MAX_CONSTANTS]; /* bytes into executor.constants_memory */
    attn_tensor tensors[KIND_MAX_CONSTANTS];
};

/* Calls of the expanded form over chunks of prefixes: their keys and values are as many rows as a
 * step has at most, in the memory of the step's own. */
struct prefix_calls {
    attnhost_metadata **metadata; /* [num_units]; NULL, all or one, = there are no such calls */
    int32_t *planned;             /* [num_units] the chunk that metadata were planned for */
    struct prefix_lists lists;    /* the device's */
    struct prefix_lists *staged;  /* of the flight that was listed last; on the CPU the same */
    int32_t num_chunks;           /* of that step */
    float *out, *lse;             /* what a chunk gives, as wide as the layer's own */
};

struct executor {
    struct executor_params params;
    attn_stream stream;
    struct step_kernels *kernels;
    uint32_t num_units;
    struct unit *units;
    attnhost_metadata **eager;         /* [num_units] EAGER metadata */
    struct layer_constants *constants; /* [num_layers] */
    void *constants_memory;            /* of theirs; on the device */
    struct graph_runner graphs;
    struct prefix_calls prefix;

    struct forward_batch batch;
    void *operands[ATTN_ROLE_COUNT]; /* by role: [max_tokens, widest]; NULL = no layer has it */
    struct sample_arrays sample;
    char *fences;   /* [num_layers], on the device; on the CPU flights[0].fences */
    char *gathered; /* sampled rows; on the CPU flights[0].outputs */
    int64_t gathered_capacity;

    uint32_t num_flights; /* of the ring */
    struct flight *flights;
    uint32_t first, in_flight;
};

static inline bool executor_on_cpu(const struct executor *executor)
{
    return executor->params.device->type == ATTN_DEVICE_CPU;
}

/* One layer's operands; entries of `operands` and `scales` point into the struct, into the pool, or
 * are NULL. */
struct layer_operands {
    int32_t form; /* operands_form() of the layer */
    uint32_t num_vectors, num_latents;
    uint32_t num_encoded; /* of the vectors: the last ones, whose rows are an encoder's */
    struct step_vectors vectors[OPERANDS_MAX]; /* what is made for the form, then for the latents */
    attn_tensor rows[OPERANDS_MAX];            /* the same as it is handed over */
    struct row_operand written, choice;
    attn_tensor out, lse, chosen;
    attn_scale key_scale, value_scale;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
};

/* How the layers of a step are enqueued. */
struct layers_run {
    attnhost_metadata *const *metadata; /* [num_units] */
    const struct batch_step *step;      /* for the probe; NULL = a capture or its warm-up */
    struct flight *flight;              /* NULL likewise */
    uint32_t flags;                     /* ATTN_FORWARD_CAPTURING */
};

/* Wait for the steps in flight before the one that is being submitted, and judge their rows: of a
 * row that two steps compute, the earlier one counts. */
attn_status executor_settle_earlier(struct executor *executor, attn_error *error);

/* Enqueue, if rows are verified: NaN into dense rows, so that an unwritten row cannot pass as the
 * previous one. NULL is fine. */
attn_status executor_poison(const struct executor *executor, const attn_tensor *rows,
                            attn_error *error);

/* Add the hints of shared prefixes to the bounds. */
void executor_bounds_shared(attn_bounds *bounds);

/* The unit that serves a layer. */
int32_t executor_unit_of(const struct executor *executor, int32_t layer);

/* Enqueue all layers of the batch that was filled last. */
attn_status executor_run_layers(struct executor *executor, const struct layers_run *run,
                                attn_error *error);

/* init_forward_metadata of each unit. */
attn_status executor_plan(struct executor *executor, attnhost_metadata *const *metadata,
                          attn_error *error);

/* ---- Constants (executor_constants.c) -------------------------------------------------------- */

attn_status executor_constants_create(struct executor *executor, attn_error *error);
void executor_constants_destroy(struct executor *executor);

/* ---- Operands (executor_operands.c) ---------------------------------------------------------- */

/* Memory for the rows of all operands. */
attn_status executor_operands_create(struct executor *executor, attn_error *error);
void executor_operands_destroy(struct executor *executor);

/* What the forward of layer `l` over `rows` rows is given; `flags` are ATTN_FORWARD_* besides
 * SAVE_KV. */
void executor_operands_set(struct executor *executor, int32_t l, int64_t rows, uint32_t flags,
                           struct layer_operands *operands);

/* Dense rows of an operand, in memory of the executor. */
void executor_view_rows(const struct executor *executor, const struct row_operand *operand,
                        void *memory, int64_t rows, attn_tensor *tensor);

/* ---- Prefixes of the expanded form (executor_prefix.c) --------------------------------------- */

/* Nothing if no layer is called in the expanded form. */
attn_status executor_prefix_create(struct executor *executor, attn_error *error);
void executor_prefix_destroy(struct executor *executor);

/* Before the layers of a step that is run eagerly: list the keys of its prefixes, if layers are
 * called in the expanded form in its mode. Enqueues their upload. */
attn_status executor_prefix_list(struct executor *executor, const struct batch_step *step,
                                 struct flight *flight, attn_error *error);

/* After the forward over the new rows of a layer in the expanded form, whose operands these are:
 * the partial results over the prefixes of the step are merged into its output, chunk by chunk. */
attn_status executor_prefix_run(struct executor *executor, const struct layers_run *run,
                                int32_t layer, const struct layer_operands *operands,
                                attn_error *error);

/* ---- Sampled rows (executor_rows.c) ---------------------------------------------------------- */

attn_status executor_rows_create(struct executor *executor, attn_error *error);
void executor_rows_destroy(struct executor *executor);

/* List the rows of a step, lay them out, upload the lists. */
attn_status executor_rows_list(struct executor *executor, struct flight *flight,
                               const struct batch_step *step, attn_error *error);

/* Before a layer: make room if its rows do not fit after those of the layers before it. */
attn_status executor_rows_make_room(struct executor *executor, struct flight *flight, int32_t layer,
                                    attn_error *error);

/* Enqueue: gather the layer's rows. */
attn_status executor_rows_gather(struct executor *executor, struct flight *flight, int32_t layer,
                                 const struct step_output *output, attn_error *error);

/* Enqueue: bring back the gathered rows, and the watch. */
attn_status executor_rows_fetch(struct executor *executor, struct flight *flight,
                                attn_error *error);

/* The step is over and everything has come back: judge it. */
attn_status executor_rows_judge(struct executor *executor, struct flight *flight,
                                attn_error *error);

/* ---- Fences (executor_fences.c) -------------------------------------------------------------- */

/* Sums over the operands that a layer only reads. */
struct fence_sums {
    uint32_t count;
    uint64_t of[OPERANDS_MAX + KIND_MAX_CONSTANTS];
};

attn_status executor_fences_create(struct executor *executor, attn_error *error);
void executor_fences_destroy(struct executor *executor);

/* Before a layer's forward, and after it; enqueued as it is. Nothing if no rows are verified. */
attn_status executor_fences_raise(struct executor *executor, int32_t layer,
                                  const struct layer_operands *operands, struct fence_sums *sums,
                                  attn_error *error);
attn_status executor_fences_look(struct executor *executor, struct flight *flight, int32_t layer,
                                 const struct layer_operands *operands,
                                 const struct fence_sums *before, attn_error *error);

/* Enqueue: bring the fences back. When the step is over: judge them. */
attn_status executor_fences_fetch(struct executor *executor, struct flight *flight,
                                  attn_error *error);
void executor_fences_judge(struct executor *executor, const struct flight *flight);

/* ---- Graphs (graph_runner.c) ----------------------------------------------------------------- */

/* Sequences of the largest graph that a step can fill. */
int32_t graph_runner_most(const struct executor *executor);

/* Capture what can be, largest size first. */
attn_status graph_runner_create(struct executor *executor, attn_error *error);
void graph_runner_destroy(struct executor *executor);

/* The entry that a step is replayed from: the smallest that holds it, of those that tell of shared
 * prefixes, or do not, as the step does; NULL = run it eagerly. */
const struct graph_entry *graph_runner_find(struct executor *executor,
                                            const struct batch_step *step);

#endif /* HOST_RUN_EXECUTOR_PRIVATE_H */
