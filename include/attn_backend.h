/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_backend.h: backend types, their instances and their metadata.
 *
 *   type      static tables: name, capabilities, options
 *   instance  one per device and node of a composition, made for a model's layer groups
 *   metadata  the plan of a batch; many may exist at once
 *
 * Life of an instance:
 *
 *   query -> create -> prepare -> metadata_size -> metadata_create
 *         -> { init_forward_metadata -> forward_extend | forward_decode, one call per layer } ...
 *         -> metadata_destroy -> destroy
 *
 * With GRAPH metadata, the first init_forward_metadata prepares a capture and the next forwards are
 * captured. Every later init_forward_metadata puts new contents at the same addresses for a replay;
 * a replay calls no forward. Captured kernels may read the batch's device arrays.
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
#include "attn_ext_private_operands.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_metadata attn_metadata; /* defined by the plugin, opaque to the host */

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Purpose of a memory region. */
enum attn_memory_purpose {
    ATTN_MEMORY_SCRATCH = 0,  /* undefined at entry of each forward; shared on one stream */
    ATTN_MEMORY_METADATA = 1, /* private to the metadata, from create to destroy */
    ATTN_MEMORY_ZEROED = 2,   /* as METADATA; the host zeroes it before metadata_create and after */
                              /* a failed forward (for counters that kernels leave at zero) */
    ATTN_MEMORY_COUNT = 3
};

/* A region is a pair of space and purpose. */
#define ATTN_REGION(space, purpose) ((space) * (uint32_t)ATTN_MEMORY_COUNT + (purpose))
#define ATTN_REGION_COUNT           9u

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

/* Memory that the host provides, by region, with at least the required size and alignment. It does
 * not move until metadata_destroy. A region that is too small is refused with BUFFER_TOO_SMALL. */
typedef struct attn_memory {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    void *base[ATTN_REGION_COUNT];
    uint64_t size[ATTN_REGION_COUNT]; /* bytes */
} attn_memory;

/* Kinds of metadata. */
enum attn_metadata_kind {
    ATTN_METADATA_EAGER = 0, /* any batch within the bounds */
    ATTN_METADATA_GRAPH = 1  /* capture and replay; launch shapes depend on the bounds alone */
};

/* ---- Instance -------------------------------------------------------------------------------- */

/* Progress of prepare(): `done` of `total` steps; `what` names the current one. (may be NULL) */
typedef void (*attn_progress)(void *ctx, uint32_t done, uint32_t total, const char *what);

/* Functions of an instance. Static storage. Slots are never NULL unless marked optional. */
typedef struct attn_backend_ops {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */

    /* Free the instance. Accepts NULL, and an instance whose device is lost. All its metadata has
     * been destroyed and its streams are idle. [instance-thread & !capturing] */
    void (*destroy)(attn_instance *instance);

    /* Compile, tune and warm up for the problems passed to create, so that no step has to. May take
     * minutes. The host calls it after create and before metadata_create, which may return
     * BAD_STATE without it. After a success further calls do nothing. (optional; NULL = nothing to
     * prepare) [instance-thread & !capturing] */
    attn_status (*prepare)(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error);

    /* The forms of KV indices that the instance reads: a mask of ATTN_INDEX_*, constant for the
     * instance. It applies to every KV group, as an engine keeps all its slots in one form. A
     * composite returns the union of its children's. [instance-thread] */
    uint32_t (*index_forms)(attn_instance *instance);

    /* Memory that metadata of this kind needs for batches within `bounds`. The answer depends on
     * the arguments alone and grows with the bounds. Returns UNSUPPORTED for bounds that query
     * refuses, CAPTURE_UNSUPPORTED for GRAPH above the graph level in query's verdict, and
     * INVALID_ARGUMENT for an unknown kind. [instance-thread & !capturing] */
    attn_status (*metadata_size)(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error);

    /* Make metadata in memory the caller owns. BUFFER_TOO_SMALL if a region is smaller than
     * metadata_size reports, INVALID_ARGUMENT if one is misaligned. *metadata is set only on
     * success. [instance-thread & !capturing] */
    attn_status (*metadata_create)(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error);

    /* Plan a batch for all layer groups. May work on the host and enqueue copies on `stream`; never
     * waits. INVALID_ARGUMENT for a batch beyond the bounds. The batch is read during the call; its
     * device arrays are also read by the forwards that follow. [instance-thread & !capturing] */
    attn_status (*init_forward_metadata)(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error);

    /* Free what metadata_create allocated in addition to the caller's memory. Accepts NULL.
     * [instance-thread & !capturing] */
    void (*metadata_destroy)(attn_metadata *metadata);

    /* Run one layer of the batch planned last. Only enqueues on `stream`: no allocation, no
     * synchronisation, no I/O. forward_decode serves DECODE, forward_extend every other mode.
     * Output rows of padding are finite. Writes only OUT, LSE and the cache slots or state slots of
     * this batch. BAD_STATE before the first init_forward_metadata. (either may be NULL in a
     * backend for one phase; query then refuses the other phase's modes) [instance-thread] */
    attn_status (*forward_extend)(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);
    attn_status (*forward_decode)(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);

    /* An extension of the instance by id "attn.<name>/<rev>"; NULL = absent. The extension carries
     * its own context and never receives the instance, so that a composite can return its
     * children's extension, unless two children differ. A composite does not return
     * ATTN_EXTENSION_CODE_PATHS, whose functions receive metadata. (optional) [any-thread] */
    const void *(*get_extension)(attn_instance *instance, const char *id);
} attn_backend_ops;

/* ---- Type ------------------------------------------------------------------------------------ */

/* attn_backend_type.flags */
enum attn_backend_flag {
    ATTN_BACKEND_COMPOSITE = 1 << 0, /* serves through children (BACKEND_REF options) */
    /* Built without its kernels, which could not be compiled: query answers as if they were
     * present, so that the backend can be explained; create fails with DEPENDENCY_MISSING. */
    ATTN_BACKEND_WITHOUT_KERNELS = 1 << 1
};

/* A backend type. Static storage of the plugin, including everything that it points to. */
struct attn_backend_type {
    uint32_t struct_size;
    uint32_t flags;   /* ATTN_BACKEND_* */
    const char *name; /* [a-z][a-z0-9_]*, unique in a host */
    const char *doc;  /* one line, never NULL */
    uint32_t num_options;
    uint32_t num_layouts;
    const attn_option *options; /* array; walk with attn_at() */
    const char *const *layouts; /* layout ids it can read; of a composite: its children's */
    const attn_backend_ops *ops;

    /* Can a backend with these options run this problem? No GPU work, no side effects, and equal
     * answers to equal questions. A problem that it accepts must run; create and metadata_create
     * refuse every problem that it refuses. Unknown bits and ids in the problem mean "no". Returns
     * ATTN_OK for a no too; errors are for malformed arguments and impossible options. Of
     * `services` only log, allocate, parallel_for and the child functions are guaranteed.
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
