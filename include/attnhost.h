/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attnhost.h: attention backends inside your own engine (link with -lattnhost).
 *
 * The lower level, nearly all of this file, owns only plugins, backends and their metadata. The
 * engine owns KV tensors, block tables, slots, batches, streams and the loop. It fills in the ABI's
 * attn_batch and attn_forward_args, which plugins read unchanged.
 *
 *   attnhost          a set of plugins, a pool of threads, backends defined by an ini or by calls
 *   attnhost_backend  a backend with its children, made for the layer groups of a model
 *   attnhost_metadata the plan of a batch; many may exist at once
 *
 *   attnhost_create            make a host
 *   attnhost_load_plugin       load plugins
 *   attnhost_select            choose backends for a model (attnhost_query: query one backend)
 *   attnhost_compose           once per model
 *   attnhost_metadata_create   once, for the largest batch
 *   loop: attnhost_init_forward_metadata   once per batch
 *         attnhost_forward                 once per layer
 *   attnhost_metadata_destroy, attnhost_backend_destroy, attnhost_destroy
 *
 * attnhost_paged_batch_init converts vLLM's CommonAttentionMetadata to an attn_batch. SGLang's
 * ForwardBatch needs no conversion, as the ABI uses its names; q_indptr is qo_indptr. K and V may
 * be strided views of one tensor.
 *
 * Structs are sized as in the ABI: set struct_size to sizeof before the call. Returned strings live
 * as long as the object they came from, unless their comment says otherwise. Every function that
 * returns attn_status accepts a NULL error and writes its outputs only on success.
 *
 * On CUDA the engine owns memory, streams and graphs. They belong to the device's primary context,
 * which the runtime API and PyTorch use. The calling thread may have any context current, or none:
 * the library makes the primary context current for plugins and restores the caller's on return. To
 * capture: plan a batch on GRAPH metadata, begin the capture, forward all layers with
 * ATTN_FORWARD_CAPTURING, end the capture. Before each replay, refill the same device arrays and
 * plan again, as examples/embed_cuda.c does.
 *
 * Thread tags, the last line of a function's comment:
 *   [any-thread]      any thread at any time
 *   [host-reader]     any thread, but not while a [host-thread] call on the same host runs
 *   [host-thread]     one thread at a time for one host, no other call on it at the same time
 *   [backend-thread]  one thread at a time for one backend and all its metadata
 *   & !capturing      not while the stream is being captured into a graph
 */
#ifndef ATTNHOST_H
#define ATTNHOST_H

#include "attn_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exported symbols; everything else in the library is hidden. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

typedef struct attnhost attnhost;
typedef struct attnhost_backend attnhost_backend;
typedef struct attnhost_metadata attnhost_metadata;
typedef struct attnhost_selection attnhost_selection;

/* ---- Host ------------------------------------------------------------------------------------ */

/* Takes a message for the user: UTF-8 without a newline, valid during the call. `level` is
 * ATTN_LOG_*. Called from any thread, but never concurrently. */
typedef void (*attnhost_log)(void *ctx, uint32_t level, const char *message);

/* The engine's own allocator: `size` bytes, > 0, in `space` (ATTN_SPACE_*) of a device, at a
 * multiple of `alignment`, a power of two. NULL when exhausted. `release` gets memory that
 * `allocate` returned for the same device and space. Both are called on the thread that called into
 * the library, with the device's context current, and never during a forward or a capture. They are
 * called concurrently only if the engine calls the library concurrently. */
typedef void *(*attnhost_allocate)(void *ctx, int32_t device_type, int32_t device_id,
                                   uint32_t space, uint64_t size, uint64_t alignment);
typedef void (*attnhost_release)(void *ctx, int32_t device_type, int32_t device_id, uint32_t space,
                                 void *memory);

/* The engine's own threads: run task(arg, 0 .. num_tasks - 1, worker) and wait, as
 * attn_services.parallel_for says. `worker` is below num_threads, and no two tasks with the same
 * worker run at once. If a task fails, return its status; tasks that have not begun need not run. A
 * host never calls this concurrently; it calls it in forwards too, with num_tasks > 0. */
typedef attn_status (*attnhost_parallel_for)(void *ctx, int64_t num_tasks, attn_task task,
                                             void *arg);

/* Parameters of a host. All zero except struct_size is a good choice. */
typedef struct attnhost_params {
    uint32_t struct_size;
    uint32_t num_threads; /* of the pool, including the calling thread; 0 = number of CPUs that */
                          /* this process may use; with parallel_for: its workers, > 0 */
    uint32_t log_level;   /* messages above it are dropped; ATTN_LOG_ERROR (0) passes only errors */
    uint32_t reserved;    /* 0 */
    attnhost_log log;     /* NULL = lines on stderr */
    void *log_ctx;
    /* Memory of backends and their metadata, in all spaces; both or neither. The host's own data,
     * and memory that a plugin allocates in init, come from malloc. */
    attnhost_allocate allocate; /* NULL = the C library, or the driver */
    attnhost_release release;
    void *memory_ctx;
    attnhost_parallel_for parallel_for; /* NULL = a pool of the host's own */
    void *parallel_ctx;
} attnhost_params;

/* Version of the library, "MAJOR.MINOR.PATCH". Static. [any-thread] */
const char *attnhost_version(void);

/* "UNSUPPORTED" for ATTN_UNSUPPORTED; "?" for a number that is not a status. Static. [any-thread]
 */
const char *attnhost_status_name(attn_status status);

/* Make a host without plugins. `params` may be NULL (all zero) and is copied. OUT_OF_HOST_MEMORY if
 * memory or threads run out; INVALID_ARGUMENT for more than 4096 threads, allocate without release
 * or the reverse, or parallel_for without num_threads. [any-thread] */
attn_status attnhost_create(const attnhost_params *params, attnhost **host, attn_error *error);

/* Free the host; its backends must have been destroyed. Files of plugins that were initialised stay
 * mapped until the process ends. Accepts NULL. [host-thread] */
void attnhost_destroy(attnhost *host);

/* ---- Plugins --------------------------------------------------------------------------------- */

/* Load one file. Symbolic links are resolved; the file and its folder must not be writable by
 * others, and must belong to root or to the user. No search path applies: a path without a slash is
 * relative to the working directory. Loading a file twice is ATTN_OK.
 *
 * A refused file stays on record with its reason, which is also returned here: INVALID_ARGUMENT (no
 * such file, not trusted, not a shared object, no entry), CONFIG_ERROR (pin does not match, name
 * already taken), INCOMPATIBLE_VERSION, INTERNAL (malformed tables), or the plugin's own status.
 * [host-thread] */
attn_status attnhost_load_plugin(attnhost *host, const char *file, attn_error *error);

/* Load every *.so of a folder, in the order of their names. ATTN_OK even if some were refused (see
 * attnhost_plugin); CONFIG_ERROR if the folder cannot be read or others can write to it.
 * [host-thread] */
attn_status attnhost_load_directory(attnhost *host, const char *directory, attn_error *error);

/* Load the folders of the environment variable ATTNHOST_PLUGIN_PATH (separated by colons, absolute;
 * ignored when the process runs with elevated privileges), then the folder of installed plugins, if
 * it exists. A file whose backends are already loaded is skipped: it stays on record as
 * CONFIG_ERROR, shadowed by the earlier file. [host-thread] */
attn_status attnhost_load_installed(attnhost *host, attn_error *error);

/* Load `file` from now on only if the SHA-256 of its content is `sha256` (64 hexadecimal digits).
 * INVALID_ARGUMENT for malformed digits, BAD_STATE if the file is loaded already. [host-thread] */
attn_status attnhost_pin_plugin(attnhost *host, const char *file, const char *sha256,
                                attn_error *error);

/* A plugin on record. Only `build` may be NULL; other strings are "" where a refused file gave
 * none. */
typedef struct attnhost_plugin_info {
    uint32_t struct_size;
    int32_t status;     /* ATTN_OK = usable; else why it was refused */
    const char *reason; /* a sentence that names the file; "" if usable */
    const char *file;   /* absolute; links resolved if it exists */
    const char *name;
    const char *version;
    const char *vendor;
    const char *doc;
    const char *build; /* NULL = not given */
    uint32_t abi_major;
    uint32_t abi_minor;
    uint32_t num_backends;  /* 0 if refused */
    uint32_t first_backend; /* index of its first backend; the others follow */
} attnhost_plugin_info;

/* Number of plugins on record, usable and refused, in load order. [host-reader] */
uint32_t attnhost_num_plugins(const attnhost *host);

/* The plugin with this index. INVALID_ARGUMENT beyond the last. [host-reader] */
attn_status attnhost_plugin(const attnhost *host, uint32_t index, attnhost_plugin_info *info,
                            attn_error *error);

/* A backend type of a usable plugin. */
typedef struct attnhost_type_info {
    uint32_t struct_size;
    uint32_t plugin;               /* index of its plugin */
    const attn_backend_type *type; /* the plugin's own table: name, doc, options, layouts */
} attnhost_type_info;

/* Number of backend types of all usable plugins. [host-reader] */
uint32_t attnhost_num_types(const attnhost *host);

/* The backend type with this index. INVALID_ARGUMENT beyond the last. [host-reader] */
attn_status attnhost_type(const attnhost *host, uint32_t index, attnhost_type_info *info,
                          attn_error *error);

/* ---- Configuration --------------------------------------------------------------------------- */

/* Read an ini: load the files of its [plugins] section and define its [backend.NAME] sections;
 * other sections are checked and have no effect here. CONFIG_ERROR with "file:line: ..." for the
 * first error; if a plugin marked critical is refused, the error is its refusal. [host-thread] */
attn_status attnhost_configure_file(attnhost *host, const char *path, attn_error *error);

/* The same for `length` bytes of text, called `name` in messages; relative paths are relative to
 * the folder `base` (NULL = the working directory). [host-thread] */
attn_status attnhost_configure_text(attnhost *host, const char *text, uint64_t length,
                                    const char *name, const char *base, attn_error *error);

/* The same as a section [backend.NAME]: `name` stands for backend type `type` with these options.
 * `type` NULL = name. `pairs` holds num_options pairs of key and value; a repeated option may
 * appear several times; relative paths are relative to the working directory. The type need not be
 * loaded yet; options are checked when the backend is used. CONFIG_ERROR if `name` is malformed or
 * already defined. Everything is copied. [host-thread] */
attn_status attnhost_define_backend(attnhost *host, const char *name, const char *type,
                                    const char *const *pairs, uint32_t num_options,
                                    attn_error *error);

/* ---- Queries --------------------------------------------------------------------------------- */

/* Describe a device of this machine, for attn_problem.device. `type` is ATTN_DEVICE_*.
 * DEPENDENCY_MISSING if this host does not support it. [any-thread] */
attn_status attnhost_device_init(attn_device *device, int32_t type, int32_t id, attn_error *error);

/* Can the backend `name` (a defined one, or a type with its defaults) run the problem? The machine
 * need not have the device. Returns ATTN_OK for a no too: see verdict->supported and its reasons.
 * CONFIG_ERROR for an unknown name (with the nearest one), wrong options, a cycle or a missing
 * child; INTERNAL if the verdict contradicts itself. [host-reader] */
attn_status attnhost_query(const attnhost *host, const char *name, const attn_problem *problem,
                           attn_verdict *verdict, attn_error *error);

/* ---- Selection ------------------------------------------------------------------------------- */

/* The model to serve: the text of a Hugging Face config.json, or layer groups. Set one and leave
 * the other 0. */
typedef struct attnhost_model {
    uint32_t struct_size;
    uint32_t num_groups;
    const attn_layer_group *groups; /* array; kv_scale_granularity is not read (kv_cache.k_scale) */
    const char *config;             /* text of the config.json, `config_length` bytes */
    uint64_t config_length;
    const char *name;        /* for messages; NULL = "model" */
    int32_t max_encoder_len; /* with groups: most tokens of an encoder; 0 = none */
    uint32_t uses;           /* ATTN_USES_* of batches and calls, in addition to the settings' */
    uint32_t modes;          /* ATTN_MODE_BIT set, in addition to the settings'; the prefill */
                             /* backend serves these modes */
    uint32_t reserved;       /* 0 */
} attnhost_model;

/* attnhost_candidate.state */
enum attnhost_standing {
    ATTNHOST_CAN_SERVE = 0,    /* queried; the only state without reasons */
    ATTNHOST_CANNOT_SERVE = 1, /* queried; reasons are its own */
    ATTNHOST_EXCLUDED = 2,     /* not queried: a rule excludes it */
    ATTNHOST_ABSENT = 3        /* not queried: not installed, a composite, or wrong options */
};

/* One reason of a refusal. Strings are never NULL. */
typedef struct attnhost_reason {
    uint32_t struct_size;
    uint32_t code;          /* ATTN_REASON_*; 0 = not a backend's reason */
    const char *code_name;  /* "HEAD_DIM"; else "RULE", "NOT_INSTALLED", "COMPOSITE", "NO_ANSWER" */
    const char *field;      /* "head_dim" */
    const char *with_field; /* of a COMBINATION; else "" */
    const char *child;      /* of CHILD_REJECTED: name of the child; else "" */
    const char *got;        /* "192" */
    const char *accepted;   /* "64, 128" */
    const char *text;       /* the whole reason: "head_dim 192: accepted 64, 128" */
    const char *rule;       /* of RULE: the rule's name; else "" */
} attnhost_reason;

/* A backend considered for a phase. */
typedef struct attnhost_candidate {
    uint32_t struct_size;
    uint32_t state; /* ATTNHOST_CAN_SERVE ... */
    const char *name;
    const char *what;            /* description, for people; "" = not in the rules */
    const char *aliases;         /* its other names, "fa3, flash"; or "" */
    const attn_verdict *verdict; /* for CAN_SERVE, with `reasons` NULL; else NULL */
    const attnhost_reason *reasons;
    uint32_t num_reasons;
    uint32_t reserved; /* 0 */
} attnhost_candidate;

/* The backend for a phase of a layer group. */
typedef struct attnhost_phase {
    uint32_t struct_size;
    int32_t chosen;    /* index of a candidate; -1 = none */
    int32_t preferred; /* of `auto`: the choice if all candidates were installed; else -1 */
    uint32_t num_candidates;
    const char *name;                     /* "prefill", "decode" */
    const char *wanted;                   /* requested: "auto" or a name */
    const char *why;                      /* the rule or setting that gave the candidates */
    const attnhost_candidate *candidates; /* in the order in which they are tried */
} attnhost_phase;

/* Selection for a layer group. */
typedef struct attnhost_group {
    uint32_t struct_size;
    int32_t unit; /* index of the unit that serves it; -1 = none */
    const attn_layer_group *group;
    const char *layers;          /* "0-3,5" */
    const char *what;            /* "softmax decoder, 32 query heads, ..." */
    const char *kv_layout;       /* layout id; NULL = no cache, or no unit */
    const char *state_layout;    /* layout id; NULL = no state, or no unit */
    uint32_t decode_graph_level; /* ATTN_GRAPH_* of decode batches; NEVER without unit or decode */
    uint32_t num_phases;         /* encoders have only prefill */
    const attnhost_phase *phases;
    /* Upper bounds of metadata's device memory; 0 = unknown. The first is for eager batches of all
     * phases, which share it (a candidate's verdict has that of its phase alone). The second is for
     * one graph of decode batches; all graphs share its scratch. */
    uint64_t device_bytes;
    uint64_t graph_device_bytes;
} attnhost_group;

/* Arguments of attnhost_compose(host, backend, problems, num_problems, ...); make metadata within
 * problems->bounds. */
typedef struct attnhost_unit {
    uint32_t struct_size;
    uint32_t modes;               /* ATTN_MODE_BIT set of its problems */
    const char *backend;          /* a name that is defined in the host from now on */
    const char *type;             /* "hybrid_phase" or "hybrid_linear" if backends were combined; */
                                  /* else `backend` */
    const attn_problem *problems; /* one for each of its groups */
    const uint32_t *groups;       /* their indices in attnhost_selection.groups, ascending */
    uint32_t num_problems;
    uint32_t reserved; /* 0 */
} attnhost_unit;

/* The backend of each layer group and phase, and why the others were not chosen: everything that
 * `attnhost explain` prints. Walk arrays with attn_at(). */
struct attnhost_selection {
    uint32_t struct_size;
    int32_t status;      /* ATTN_OK: all layers are served (or would be, if simulated); */
                         /* UNSUPPORTED, DEPENDENCY_MISSING: some are not */
    const char *message; /* why some are not served; else "" */
    attn_device device;
    const char *device_name; /* "cpu", "cuda sm90" */
    const char *device_note; /* why `auto` skipped a preferred device; or NULL */
    int32_t max_sms;         /* multiprocessors available to launches; 0 = all (platform.max_sms) */
    const char *simulated;   /* the simulated platform; or NULL */
    const char *model;       /* the model's name */
    const char *architecture; /* "LlamaForCausalLM"; "groups" */
    attn_dtype dtype;         /* of queries, new keys and values */
    int32_t max_context_len;  /* tokens */
    uint32_t num_layers;
    uint32_t num_groups;
    uint32_t num_units;
    uint32_t reserved; /* 0 */
    const attnhost_group *groups;
    const attnhost_unit *units;
    const char *notes; /* lines for people, each ending in '\n'; usually "" */
};

/* Choose backends for a model, as `attnhost run` does. `settings` are the ini's settings as
 * "section.key=value" (`attnhost run --print-config` lists them). These have an effect: platform
 * (the device, real or simulated), attention (names; `auto` is the default), kv_cache (page_size,
 * dtype, layout, and the number of values of k_scale and v_scale, which an fp8 cache needs),
 * workload (max_running_requests, chunked_prefill_size, mixed: the bounds of batches), cuda_graph
 * (for `notes`), model.dtype and model.max_context_len. Backends defined in the host can be named;
 * define routes by attnhost_configure_text() and name them "routes".
 *
 * Returns ATTN_OK even if no backend serves: see (*selection)->status. CONFIG_ERROR for a wrong
 * setting, an unknown backend or architecture; INVALID_ARGUMENT for malformed groups. If different
 * backends are chosen for the two phases, their combination is defined in the host. The model is
 * read only during the call. [host-thread] */
attn_status attnhost_select(attnhost *host, const attnhost_model *model,
                            const char *const *settings, uint32_t num_settings,
                            const attnhost_selection **selection, attn_error *error);

/* Free a selection and everything that it points to. Accepts NULL. [any-thread] */
void attnhost_selection_destroy(const attnhost_selection *selection);

/* ---- Backends -------------------------------------------------------------------------------- */

/* Make the backend `name` with all its children for the layer groups of a model (`problems`: array,
 * struct_size set in each, all on one device). Errors are those of attnhost_query, and UNSUPPORTED,
 * DEPENDENCY_MISSING, CHILD_FAILED ... from the backend, whose name precedes the message. A failure
 * leaves nothing allocated. The problems are read only during the call.
 *
 * A backend uses its host's pool and tables. While it exists, the only [host-thread] calls allowed
 * are those that load plugins and define backends, and only while the backend is not in use.
 * [host-thread & !capturing] */
attn_status attnhost_compose(attnhost *host, const char *name, const attn_problem *problems,
                             uint32_t num_problems, attnhost_backend **backend, attn_error *error);

/* Free a backend and its children; its metadata must have been destroyed and its streams be idle.
 * Accepts NULL. [host-thread & !capturing] */
void attnhost_backend_destroy(attnhost_backend *backend);

/* Compile, tune and warm up, so that no step has to; may take minutes. ATTN_OK if there is nothing
 * to do. `progress` may be NULL. [backend-thread & !capturing] */
attn_status attnhost_backend_prepare(attnhost_backend *backend, attn_progress progress,
                                     void *progress_ctx, attn_error *error);

/* Forms of KV indices that every batch must carry: a mask of ATTN_INDEX_*, constant for the
 * backend. [backend-thread] */
uint32_t attnhost_backend_index_forms(const attnhost_backend *backend);

/* Host arrays that every batch must have, because some backend of the tree plans with them: a mask
 * of ATTN_HOST_*, constant for the backend; 0 = device arrays are enough. [backend-thread] */
uint32_t attnhost_backend_host_arrays(const attnhost_backend *backend);

/* One node of a composition. */
typedef struct attnhost_node_info {
    uint32_t struct_size;
    uint32_t depth;          /* 0 for the backend itself, 1 for its children ... */
    const char *name;        /* as requested */
    const char *type;        /* name of its backend type */
    const char *plugin_file; /* absolute */
    int64_t rows;            /* query rows computed by its forwards, summed over layers; */
                             /* 0 for a node with children */
    uint32_t num_children;
    uint32_t num_paths; /* code paths that its instance reports (ATTN_EXTENSION_CODE_PATHS) */
} attnhost_node_info;

/* One of a node's code paths. */
typedef struct attnhost_code_path_info {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const char *name;
    const char *doc; /* one line */
    int64_t rows;    /* query rows computed by this path, a part of the node's */
} attnhost_code_path_info;

/* Number of nodes of a composition; a node comes before its children. [backend-thread] */
uint32_t attnhost_backend_num_nodes(const attnhost_backend *backend);

/* The node with this index. INVALID_ARGUMENT beyond the last. [backend-thread] */
attn_status attnhost_backend_node(const attnhost_backend *backend, uint32_t index,
                                  attnhost_node_info *info, attn_error *error);

/* Code path number `path` of that node. INVALID_ARGUMENT beyond the last. [backend-thread] */
attn_status attnhost_backend_code_path(const attnhost_backend *backend, uint32_t index,
                                       uint32_t path, attnhost_code_path_info *info,
                                       attn_error *error);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* Memory that metadata of this kind needs for batches within `bounds`, by region (ATTN_REGION). It
 * grows with the bounds. UNSUPPORTED for bounds that query refuses.
 * [backend-thread & !capturing] */
attn_status attnhost_metadata_size(attnhost_backend *backend, uint32_t kind,
                                   const attn_bounds *bounds, attn_memory_size *size,
                                   attn_error *error);

/* Make metadata. A region whose base is set in `memory` belongs to the caller and must not move
 * until attnhost_metadata_destroy; this function allocates the other regions (`memory` NULL = all
 * of them). Allocated scratch is one region, shared by all metadata of the backend made without
 * scratch of their own, so their forwards must go to one stream. For forwards on several streams,
 * give each metadata its own scratch; engines usually have a workspace for it.
 *
 * BUFFER_TOO_SMALL (needed = bytes) if a given region is too small, INVALID_ARGUMENT if it is
 * misaligned or `kind` is unknown, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY. ZEROED regions, given
 * or allocated, are zero on return. This function waits for no stream of the engine, so no pending
 * work may use them. [backend-thread & !capturing] */
attn_status attnhost_metadata_create(attnhost_backend *backend, uint32_t kind,
                                     const attn_bounds *bounds, const attn_memory *memory,
                                     attnhost_metadata **metadata, attn_error *error);

/* Free metadata and the memory allocated for it. Its stream must be idle. Accepts NULL.
 * [backend-thread & !capturing] */
void attnhost_metadata_destroy(attnhost_metadata *metadata);

/* Plan a batch for all layers. Errors in the batch itself are INVALID_ARGUMENT with field BATCH: an
 * unknown mode or one outside the bounds, more sequences or tokens than the bounds, a missing KV
 * group, index form or required host array, host arrays that contradict the batch or each other
 * (attn_batch.h, "checks by the host"), an unset struct_size. An IDLE batch is not passed to the
 * backend. After a failure the metadata has no batch. [backend-thread & !capturing] */
attn_status attnhost_init_forward_metadata(attnhost_metadata *metadata, const attn_batch *batch,
                                           attn_stream stream, attn_error *error);

/* Run one layer of the batch planned last: DECODE calls the backend's forward_decode, IDLE calls
 * nothing, every other mode calls forward_extend. Only enqueues on `stream`. BAD_STATE without a
 * batch; UNSUPPORTED if the backend does not serve this phase; INVALID_ARGUMENT, with the role's
 * name, for sinks or slopes that the layer's group does not declare (ATTN_GROUP_HAS_*), for an
 * operand whose dtype is not the problem's (last column of ATTN_ROLE_MAP), and for a tensor or
 * scale with an unset struct_size. After a failure the ZEROED regions are zeroed again (on
 * `stream`), so that the next batch starts clean. [backend-thread] */
attn_status attnhost_forward(attnhost_metadata *metadata, int32_t layer_id,
                             const attn_forward_args *args, attn_stream stream, attn_error *error);

/* Merge partial results of the same queries over disjoint keys, in stream order:
 *   lse = log(sum exp(lses[p])),  out = sum exp(lses[p] - lse) outs[p]
 * If all parts are empty (lse -inf), out is 0 and lse is -inf; the output of an empty part may hold
 * anything. outs, out: [tokens, heads, dim] fp32, fp16 or bf16; lses, lse: [tokens, heads] fp32;
 * any strides, on the backend's device. `out` and `lse` may be the views of one of the parts; `lse`
 * may be NULL. On the CPU the host's threads compute in fp64; on CUDA a kernel is enqueued, in
 * fp32.
 *
 * The first call for a backend on CUDA loads kernels, so it must not be captured; a call with no
 * tokens only loads them. INVALID_ARGUMENT unless num_parts is in 1..16 and shapes, types and
 * devices match; DEPENDENCY_MISSING if this library was built without CUDA kernels.
 * [backend-thread] */
attn_status attnhost_merge(attnhost_backend *backend, const attn_tensor *const *outs,
                           const attn_tensor *const *lses, uint32_t num_parts,
                           const attn_tensor *out, const attn_tensor *lse, attn_stream stream,
                           attn_error *error);

/* ---- Whole runs ------------------------------------------------------------------------------ */

/* The upper level: the same as `attnhost run`, with the host's own pools, scheduler and trace
 * readers. Reads the ini `path` (NULL = defaults), applies `sets` ("section.key=value") and serves
 * the trace. *json gets the report as JSON text, freed by attnhost_free_text(); *passed is 1 if no
 * verified row was wrong and no KV leaked. Returns CONFIG_ERROR for an error in the configuration,
 * UNSUPPORTED if the backend cannot serve it, DEPENDENCY_MISSING if a critical plugin is refused,
 * and INTERNAL, with a message, if the run itself fails. [any-thread] */
attn_status attnhost_run(const char *path, const char *const *sets, uint32_t num_sets,
                         uint32_t *passed, char **json, attn_error *error);

/* Free a text that attnhost_run() returned. Accepts NULL. [any-thread] */
void attnhost_free_text(char *text);

/* ---- Helpers --------------------------------------------------------------------------------- */

/* Make *tensor a view of `data`: `ndim` extents, and as many strides in elements (NULL = dense,
 * row-major). Alignment is that of the address, 4096 at most. INVALID_ARGUMENT for a bad ndim, a
 * negative extent or stride, a type narrower than a byte, or NULL data with elements.
 * [any-thread] */
attn_status attnhost_tensor_init(attn_tensor *tensor, void *data, int32_t device_type,
                                 int32_t device_id, attn_dtype dtype, uint32_t ndim,
                                 const int64_t *shape, const int64_t *strides, attn_error *error);

/* A KV group of an engine with block tables. */
typedef struct attnhost_paged_group {
    uint32_t struct_size;
    int32_t block_size;          /* tokens per block; a block is the ABI's page */
    int32_t block_table_stride;  /* elements between two rows */
    uint32_t reserved;           /* 0 */
    attn_i32_array block_table;  /* [num_reqs, stride] */
    attn_i64_array slot_mapping; /* [num_actual_tokens] -1 = not written; absent = none written */
} attnhost_paged_group;

/* A step of such an engine, with the names of vLLM's CommonAttentionMetadata. */
typedef struct attnhost_paged_batch {
    uint32_t struct_size;
    uint32_t num_groups;
    int32_t num_reqs;
    int32_t num_actual_tokens;          /* query rows */
    int32_t max_query_len;              /* 0 = compute it from query_start_loc.host */
    int32_t max_seq_len;                /* 0 = compute it from seq_lens.host */
    attn_i32_array query_start_loc;     /* [num_reqs + 1] */
    attn_i32_array seq_lens;            /* [num_reqs] new tokens included */
    attn_i32_array num_computed_tokens; /* [num_reqs] absent = computed into `room` */
    int32_t *room;                      /* [num_reqs] host memory, or NULL; needs the host arrays */
    const attnhost_paged_group *groups; /* array; walk with attn_at() */
} attnhost_paged_batch;

/* Fill in the caller's *batch and kv_groups[num_groups] from a step: DECODE if every request has
 * one query, else EXTEND. They point to the step's arrays. Members without a counterpart in the
 * step (mask, drafts, state, other index forms) are 0; the caller may set them.
 *
 * `room` receives the host copy of prefix_lens; it is the device array too if both pointers of
 * query_start_loc are equal, as on the CPU. INVALID_ARGUMENT names the array at fault: an absent
 * one (num_computed_tokens on the device, in EXTEND), or host arrays that contradict each other.
 * [any-thread] */
attn_status attnhost_paged_batch_init(attn_batch *batch, attn_kv_batch *kv_groups,
                                      const attnhost_paged_batch *step, attn_error *error);

/* attnhost_merge() of two parts in host memory, on the calling thread; `lse` is not NULL.
 * [any-thread] */
attn_status attnhost_merge_states(const attn_tensor *out_a, const attn_tensor *lse_a,
                                  const attn_tensor *out_b, const attn_tensor *lse_b,
                                  const attn_tensor *out, const attn_tensor *lse,
                                  attn_error *error);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif /* ATTNHOST_H */
