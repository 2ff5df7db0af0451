/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_backend.h: a backend type, its instances and their metadata.
 *
 *   type      static tables: its name, what it can do, how it is configured
 *   instance  one for each device and place in a composition, made for a model's layer groups
 *   metadata  what was planned for a batch; many may live at once
 *
 * Life of an instance:
 *
 *   query -> create -> prepare -> metadata_size -> metadata_create
 *         -> { init_forward_metadata -> forward_extend | forward_decode, one call per layer } ...
 *         -> metadata_destroy -> destroy
 *
 * With GRAPH metadata the first init_forward_metadata prepares a capture, the forwards that follow
 * are captured, and every later init_forward_metadata puts new contents at the old addresses for a
 * replay, which calls no forward. Kernels may read the batch's device arrays in the graph.
 *
 * On a CUDA device the host makes the device's primary context current in the calling thread for
 * each of these calls except query and get_extension; the backend leaves it current.
 */
#ifndef ATTN_BACKEND_H
#define ATTN_BACKEND_H

#include "attn_types.h"
#include "attn_problem.h"
#include "attn_batch.h"
#include "attn_services.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_metadata attn_metadata; /* a plugin's own, opaque to the host */

/* ---- Memory ---------------------------------------------------------------------------------- */

/* What a region of memory is for. */
enum attn_memory_purpose {
    ATTN_MEMORY_SCRATCH = 0,  /* undefined at entry of each forward; shared by all on one stream */
    ATTN_MEMORY_METADATA = 1, /* this metadata's own, from create to destroy */
    ATTN_MEMORY_ZEROED =
        2, /* the same, zeroed by the host before metadata_create and again after a */
           /* failed forward (counters that kernels leave at zero) */
    ATTN_MEMORY_COUNT = 3
};

/* Regions: spaces times uses. */
#define ATTN_REGION(space, use) ((space) * (uint32_t)ATTN_MEMORY_COUNT + (use))
#define ATTN_REGION_COUNT       9u

/* The same numbers by name, for languages without macros. */
enum attn_region {
    ATTN_REGION_DEVICE_SCRATCH = 0,
    ATTN_REGION_DEVICE_METADATA = 1,
    ATTN_REGION_DEVICE_ZEROED = 2,
    ATTN_REGION_PINNED_SCRATCH = 3,
    ATTN_REGION_PINNED_METADATA = 4,
    ATTN_REGION_PINNED_ZEROED = 5,
    ATTN_REGION_HOST_SCRATCH = 6,
    ATTN_REGION_HOST_METADATA = 7,
    ATTN_REGION_HOST_ZEROED = 8
};

/* Bytes that metadata needs, by region. */
typedef struct attn_memory_size {
    uint32_t struct_size;
    uint32_t reserved;                     /* 0 */
    uint64_t size[ATTN_REGION_COUNT];      /* bytes; 0 = none */
    uint64_t alignment[ATTN_REGION_COUNT]; /* power of two; 0 = 1 */
} attn_memory_size;

/* Memory that the host provides, by region: at least the size and alignment asked for. It does not
 * move until metadata_destroy. One byte too few is refused with BUFFER_TOO_SMALL. */
typedef struct attn_memory {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    void *base[ATTN_REGION_COUNT];
    uint64_t size[ATTN_REGION_COUNT]; /* bytes */
} attn_memory;

/* What metadata is for. */
enum attn_metadata_kind {
    ATTN_METADATA_EAGER = 0, /* any batch within the bounds */
    ATTN_METADATA_GRAPH = 1  /* capture and replay; launch shapes depend on the bounds alone */
};

/* ---- Instance -------------------------------------------------------------------------------- */

/* Progress of prepare(): `done` of `total` steps, and what is being done. (may be NULL) */
typedef void (*attn_progress)(void *ctx, uint32_t done, uint32_t total, const char *what);

/* What can be done with an instance. Static storage. Slots are never NULL unless marked. */
typedef struct attn_backend_ops {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */

    /* Free the instance. NULL is accepted; so is one whose device is lost. All its metadata has
     * been destroyed and its streams are idle. [instance-thread & !capturing] */
    void (*destroy)(attn_instance *instance);

    /* Compile, tune and warm up for the problems given to create, so that no step has to. May take
     * minutes. The host calls it after create and before metadata_create, which may return
     * BAD_STATE without it. Once it has succeeded, further calls do nothing. (optional; NULL =
     * nothing to prepare) [instance-thread & !capturing] */
    attn_status (*prepare)(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error);

    /* The forms of KV indices that the instance reads: a mask of ATTN_INDEX_*, constant for the
     * instance. A composite returns the union of its children's. [instance-thread] */
    uint32_t (*index_forms)(attn_instance *instance);

    /* Memory that metadata of this kind needs for batches within `bounds`. The answer depends on
     * the arguments alone and grows with the bounds. Returns UNSUPPORTED for what query refuses,
     * CAPTURE_UNSUPPORTED for GRAPH beyond the graph level in query's verdict, and INVALID_ARGUMENT
     * for an unknown kind.
     * [instance-thread & !capturing] */
    attn_status (*metadata_size)(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error);

    /* Make metadata in memory the caller owns. BUFFER_TOO_SMALL if a region is smaller than
     * metadata_size reports, INVALID_ARGUMENT if one is misaligned. *metadata is set only on
     * success.
     * [instance-thread & !capturing] */
    attn_status (*metadata_create)(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error);

    /* Plan a batch for all layer groups. Host work and copies on `stream`; waits for nothing.
     * A batch beyond the bounds is INVALID_ARGUMENT. The batch is read during the call, its device
     * arrays also by the forwards that follow. [instance-thread & !capturing] */
    attn_status (*init_forward_metadata)(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error);

    /* Free what metadata_create allocated beyond the caller's memory. NULL is accepted.
     * [instance-thread & !capturing] */
    void (*metadata_destroy)(attn_metadata *metadata);

    /* Run one layer of the batch planned last. Only enqueues on `stream`: no allocation, no
     * synchronisation, no I/O. forward_decode serves DECODE, forward_extend every other mode.
     * Output rows of padding are finite; nothing but OUT, LSE and the cache slots or state slots of
     * this batch is written. BAD_STATE before the first init_forward_metadata.
     * (either may be NULL: a backend for one phase; query then refuses the other phase's modes)
     * [instance-thread] */
    attn_status (*forward_extend)(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);
    attn_status (*forward_decode)(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);

    /* An extension of the instance by id "attn.<name>/<rev>"; NULL = absent. What it points to
     * carries its own context and never receives the instance, so that a composite can pass on the
     * answer of its children, unless two of them differ; ATTN_EXTENSION_PATHS, which is given
     * metadata, it does not pass on. (optional) [any-thread] */
    const void *(*get_extension)(attn_instance *instance, const char *id);
} attn_backend_ops;

/* ---- Private operands ------------------------------------------------------------------------ */

/* Extents of a private operand that follow from the layer or the call. */
enum attn_extent {
    ATTN_EXTENT_ANY = 0,       /* as the vendor says */
    ATTN_EXTENT_TOKENS = -1,   /* rows of OUT */
    ATTN_EXTENT_Q_HEADS = -2,  /* num_q_heads */
    ATTN_EXTENT_KV_HEADS = -3, /* num_kv_heads */
    ATTN_EXTENT_KEYS = -4,     /* as many as the batch's longest sequence has keys, or more */
    ATTN_EXTENT_LAST = -4
};

/* An operand outside the roles, known only to one vendor's backends: an additive bias, parameters
 * of a variant that is compiled for a model. Problems name it among their features, calls bring it
 * in attn_forward_args.named. Static storage. */
typedef struct attn_private_operand {
    uint32_t struct_size;
    attn_dtype dtype;  /* ATTN_DTYPE_NONE = the problem's q_dtype */
    uint32_t ndim;     /* 1..ATTN_MAX_DIMS */
    uint32_t reserved; /* 0 */
    const char *name;  /* "vendor.name", each [a-z][a-z0-9_]*, not attn; at most 63 bytes */
    const char *doc;   /* one line, never NULL */
    int64_t shape[ATTN_MAX_DIMS]; /* each > 0, or ATTN_EXTENT_* */
} attn_private_operand;

/* ---- Type ------------------------------------------------------------------------------------ */

/* attn_backend_type.flags */
enum attn_backend_flag {
    ATTN_BACKEND_COMPOSITE = 1 << 0, /* serves through children (BACKEND_REF options) */
    /* Built where its kernels could not be compiled: query answers as if they were there, so that
     * the backend can be explained; create fails with DEPENDENCY_MISSING. */
    ATTN_BACKEND_WITHOUT_KERNELS = 1 << 1
};

/* A kind of backend. It lies in the plugin's static storage, with all that it points to. */
struct attn_backend_type {
    uint32_t struct_size;
    uint32_t flags;   /* ATTN_BACKEND_* */
    const char *name; /* [a-z][a-z0-9_]*, unique in a host */
    const char *doc;  /* one line, never NULL */
    uint32_t num_options;
    uint32_t num_layouts;
    const attn_option *options; /* array; walk with attn_at() */
    const char *const *layouts; /* layout ids it can read; a composite: those it passes on */
    const attn_backend_ops *ops;

    /* Can a backend with these options solve this problem? No GPU work, no side effect, the same
     * answer for the same question. What it accepts must run, and what it refuses, create and
     * metadata_create refuse too. Unknown bits and ids in the problem mean "no". Returns ATTN_OK
     * for a no as well; errors are for arguments that make no sense and impossible options.
     * `services` may lack everything but log, allocate, parallel_for and the child calls.
     * [any-thread] */
    attn_status (*query)(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error);

    /* Make an instance for the layer groups of a model (array; walk with attn_at(); all on one
     * device). UNSUPPORTED if query says no to one of them, with its first reason in the message;
     * DEPENDENCY_MISSING if a driver, library or kernel is missing. `options` and `problems` are
     * read only during the call; `services` lives as long as the instance. *instance is set only on
     * success. [instance-thread & !capturing] */
    attn_status (*create)(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error);

    uint32_t num_operands;                /* private ones, 32 at most */
    uint32_t reserved;                    /* 0 */
    const attn_private_operand *operands; /* array; walk with attn_at(); NULL = none */
};

#ifdef __cplusplus
}
#endif

#endif /* ATTN_BACKEND_H */
