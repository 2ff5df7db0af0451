/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attnhost.h: attention backends inside your own engine (link with -lattnhost).
 *
 * The lower level, nearly all of this file, owns plugins, backends and their metadata and nothing
 * else: KV tensors, block tables, slots, batches, streams and the loop stay with the engine. A
 * batch is the ABI's attn_batch and a layer's tensors are its attn_forward_args: what an engine
 * fills in is what a plugin reads.
 *
 *   attnhost          a set of plugins, a pool of threads, backends defined by an ini or by calls
 *   attnhost_backend  a backend with its children, made for the layer groups of a model
 *   attnhost_metadata what was planned for a batch; many may live at once
 *
 *   attnhost_create            make a host
 *   attnhost_load_plugin       give it plugins
 *   attnhost_select            ask which backends serve a model, or about one by attnhost_query
 *   attnhost_compose           once per model
 *   attnhost_metadata_create   once, for the largest batch
 *   loop: attnhost_init_forward_metadata   once per batch
 *         attnhost_forward                 once per layer
 *   attnhost_metadata_destroy, attnhost_backend_destroy, attnhost_destroy
 *
 * From vLLM's CommonAttentionMetadata to attn_batch: attnhost_paged_batch_init. From SGLang's
 * ForwardBatch nothing is needed, as the ABI has its words; q_indptr is qo_indptr. K and V may be
 * strided views of one tensor.
 *
 * Structs are sized as in the ABI: set struct_size to sizeof before the call. Returned strings live
 * as long as the object they came from, unless their comment says otherwise. Every function that
 * returns attn_status accepts a NULL error and writes its outputs only on success.
 *
 * On CUDA, memory, streams and graphs are the engine's and belong to the device's primary context,
 * the one that the runtime API and PyTorch use. The calling thread may have any context current, or
 * none: the library makes the primary one current for plugins and restores the caller's on return.
 * To capture: plan a batch on GRAPH metadata, begin the capture, forward all layers with
 * ATTN_FORWARD_CAPTURING, end it. Before each replay, refill the same device arrays and plan again,
 * as examples/embed_cuda.c does.
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

/* What the library exports; everything else in it is hidden. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

typedef struct attnhost attnhost;
typedef struct attnhost_backend attnhost_backend;
typedef struct attnhost_metadata attnhost_metadata;
typedef struct attnhost_selection attnhost_selection;

/* ---- Host ------------------------------------------------------------------------------------ */

/* Takes a message for the user: UTF-8 without a newline, valid during the call. `level` is
 * ATTN_LOG_*. Called from any thread, but never from two at once. */
typedef void (*attnhost_log)(void *ctx, uint32_t level, const char *message);

/* Memory from the engine's own allocator: `size` bytes, > 0, in `space` (ATTN_SPACE_*) of a device,
 * at a multiple of `alignment`, a power of two. NULL when exhausted. `release` gets what `allocate`
 * gave for the same device and space. Each is called by the thread that is calling into the
 * library, with the device's context current, and never during a forward or a capture; by several
 * threads at once only if the engine calls with several. */
typedef void *(*attnhost_allocate)(void *ctx, int32_t device_type, int32_t device_id,
                                   uint32_t space, uint64_t size, uint64_t alignment);
typedef void (*attnhost_release)(void *ctx, int32_t device_type, int32_t device_id, uint32_t space,
                                 void *memory);

/* Threads of the engine: run task(arg, 0 .. num_tasks - 1, worker) and wait, as
 * attn_services.parallel_for says. `worker` is below num_threads, and no two tasks with the same
 * one run at once. A task's status other than ATTN_OK is returned, and tasks that have not begun
 * need not run. Called once at a time for a host, with num_tasks > 0, in forwards too. */
typedef attn_status (*attnhost_parallel_for)(void *ctx, int64_t num_tasks, attn_task task,
                                             void *arg);

/* How a host is made. All zero except struct_size is a good choice. */
typedef struct attnhost_params {
    uint32_t struct_size;
    uint32_t num_threads; /* of the pool, the calling thread included; 0 = the CPUs this process */
                          /* may run on; with parallel_for the workers it has, > 0 */
    uint32_t log_level;   /* messages above it are dropped; ATTN_LOG_ERROR (0) passes only errors */
    uint32_t reserved;    /* 0 */
    attnhost_log log;     /* NULL = lines on stderr */
    void *log_ctx;
    /* Memory of backends and their metadata, whatever its space; both or neither. What the host
     * keeps for itself, and what a plugin takes in init, is malloc's. */
    attnhost_allocate allocate; /* NULL = the C library's, or the driver's */
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
 * memory or threads run out; INVALID_ARGUMENT for more than 4096 threads, one of allocate and
 * release, or parallel_for without num_threads. [any-thread] */
attn_status attnhost_create(const attnhost_params *params, attnhost **host, attn_error *error);

/* Free the host; its backends must be gone. Files of plugins that were initialised stay mapped
 * until the process ends. NULL is accepted. [host-thread] */
void attnhost_destroy(attnhost *host);

/* ---- Plugins --------------------------------------------------------------------------------- */

/* Load one file. Symbolic links are resolved; the file and its folder must not be writable by
 * others, and must belong to root or to the user. Nothing is searched for: a path without a slash
 * is a file of the working directory. Loading a file twice is ATTN_OK.
 *
 * A refused file stays on record with its reason, which is also returned here:
 * INVALID_ARGUMENT (no such file, not trusted, not a shared object, no entry), CONFIG_ERROR (pin
 * does not match, name already taken), INCOMPATIBLE_VERSION, INTERNAL (tables are malformed), or
 * what the plugin answered. [host-thread] */
attn_status attnhost_load_plugin(attnhost *host, const char *file, attn_error *error);

/* Load every *.so of a folder, in the order of their names. ATTN_OK also when some were refused
 * (see attnhost_plugin); CONFIG_ERROR if the folder cannot be read or others can write to it.
 * [host-thread] */
attn_status attnhost_load_directory(attnhost *host, const char *directory, attn_error *error);

/* Load the folders of the environment variable ATTNHOST_PLUGIN_PATH (separated by colons, absolute;
 * ignored when the process runs with elevated privileges), then the folder that plugins are
 * installed in, if it exists. A file whose backends are already loaded is skipped: it stays on
 * record as CONFIG_ERROR, shadowed by the earlier file. [host-thread] */
attn_status attnhost_load_installed(attnhost *host, attn_error *error);

/* From now on `file` is loaded only if the SHA-256 of its content is `sha256` (64 hexadecimal
 * digits). INVALID_ARGUMENT for malformed digits, BAD_STATE if the file is loaded already.
 * [host-thread] */
attn_status attnhost_pin_plugin(attnhost *host, const char *file, const char *sha256,
                                attn_error *error);

/* A plugin on record. Only `build` may be NULL; other strings are "" where a refused file gave
 * none. */
typedef struct attnhost_plugin_info {
    uint32_t struct_size;
    int32_t status;     /* ATTN_OK = usable; else why it was refused */
    const char *reason; /* a sentence that names the file; "" for a usable one */
    const char *file;   /* absolute, links resolved where it exists */
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

/* Plugins on record, usable and refused, in the order in which they were loaded. [host-reader] */
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

/* Backend types of all usable plugins. [host-reader] */
uint32_t attnhost_num_types(const attnhost *host);

/* The backend type with this index. INVALID_ARGUMENT beyond the last. [host-reader] */
attn_status attnhost_type(const attnhost *host, uint32_t index, attnhost_type_info *info,
                          attn_error *error);

/* ---- Configuration --------------------------------------------------------------------------- */

/* Read an ini: its [plugins] section is loaded, its [backend.NAME] sections are defined; other
 * sections are checked and have no effect here. CONFIG_ERROR with "file:line: ..." for the first
 * thing that is wrong; if a plugin marked critical is refused, the error is that of its refusal.
 * [host-thread] */
attn_status attnhost_configure_file(attnhost *host, const char *path, attn_error *error);

/* The same for `length` bytes of text, called `name` in messages; relative paths are relative to
 * the folder `base` (NULL = the working directory). [host-thread] */
attn_status attnhost_configure_text(attnhost *host, const char *text, uint64_t length,
                                    const char *name, const char *base, attn_error *error);

/* What a section [backend.NAME] does: `name` stands for backend type `type` with these options.
 * `type` NULL = name. `pairs` holds num_options pairs of key and value; a repeated option may
 * appear several times; relative paths are relative to the working directory. The type need not be
 * loaded yet; options are checked when the backend is used. CONFIG_ERROR if `name` is malformed or
 * already defined. Everything is copied. [host-thread] */
attn_status attnhost_define_backend(attnhost *host, const char *name, const char *type,
                                    const char *const *pairs, uint32_t num_options,
                                    attn_error *error);

/* ---- Questions ------------------------------------------------------------------------------- */

/* Describe a device of this machine, for attn_problem.device. `type` is ATTN_DEVICE_*.
 * DEPENDENCY_MISSING if this host cannot drive it. [any-thread] */
attn_status attnhost_device_init(attn_device *device, int32_t type, int32_t id, attn_error *error);

/* Can the backend `name` (a defined one, or a type with its defaults) solve the problem? The device
 * may be one that this machine does not have. ATTN_OK for a no as well: see verdict->supported and
 * its reasons. CONFIG_ERROR for an unknown name (with the nearest one), wrong options, a cycle or a
 * missing child; INTERNAL if the answer contradicts itself. [host-reader] */
attn_status attnhost_query(const attnhost *host, const char *name, const attn_problem *problem,
                           attn_verdict *verdict, attn_error *error);

/* ---- Selection ------------------------------------------------------------------------------- */

/* What is to be served: the text of a Hugging Face config.json, or layer groups. Set the one, leave
 * the other 0. */
typedef struct attnhost_model {
    uint32_t struct_size;
    uint32_t num_groups;
    const attn_layer_group *groups; /* array; kv_scale_granularity is not read (kv_cache.k_scale) */
    const char *config;             /* `config_length` bytes */
    uint64_t config_length;
    const char *name;        /* for messages, and for people; NULL = "model" */
    int32_t max_encoder_len; /* with groups: tokens that an encoder reads at most; 0 = none */
    uint32_t uses;           /* ATTN_USES_* that batches and calls have beyond what settings say; */
    uint32_t modes;          /* ATTN_MODE_BIT set, likewise: the backend of prompts serves them */
    uint32_t reserved;       /* 0 */
} attnhost_model;

/* attnhost_candidate.state */
enum attnhost_standing {
    ATTNHOST_CAN_SERVE = 0,    /* the only one without reasons */
    ATTNHOST_CANNOT_SERVE = 1, /* asked: its own reasons */
    ATTNHOST_EXCLUDED = 2,     /* a rule takes it out, so it was not asked */
    ATTNHOST_ABSENT = 3        /* not asked: not installed, a composite, options that are wrong */
};

/* One reason for a no. Strings are never NULL. */
typedef struct attnhost_reason {
    uint32_t struct_size;
    uint32_t code;          /* ATTN_REASON_*; 0 = no backend gave it */
    const char *code_name;  /* "HEAD_DIM"; else "RULE", "NOT_INSTALLED", "COMPOSITE", "NO_ANSWER" */
    const char *field;      /* "head_dim" */
    const char *with_field; /* of a COMBINATION; else "" */
    const char *child;      /* of CHILD_REJECTED: whose reason it is; else "" */
    const char *got;        /* "192" */
    const char *accepted;   /* "64, 128" */
    const char *text;       /* all of it: "head_dim 192: accepted 64, 128" */
    const char *rule;       /* of RULE: the rule's name; else "" */
} attnhost_reason;

/* A backend that was thought of for a phase. */
typedef struct attnhost_candidate {
    uint32_t struct_size;
    uint32_t state; /* ATTNHOST_CAN_SERVE ... */
    const char *name;
    const char *what;            /* what it is, for people; "" = the rules do not know it */
    const char *aliases;         /* other names that it is known by, "fa3, flash"; or "" */
    const attn_verdict *verdict; /* of a yes, with `reasons` NULL; else NULL */
    const attnhost_reason *reasons;
    uint32_t num_reasons;
    uint32_t reserved; /* 0 */
} attnhost_candidate;

/* Who serves a phase of a layer group. */
typedef struct attnhost_phase {
    uint32_t struct_size;
    int32_t chosen;    /* index of a candidate; -1 = none */
    int32_t preferred; /* of `auto`: what it would be if all it looks for were installed; -1 */
    uint32_t num_candidates;
    const char *name;                     /* "prefill", "decode" */
    const char *wanted;                   /* what was asked for: "auto" or a name */
    const char *why;                      /* the rule or the setting that led to the candidates */
    const attnhost_candidate *candidates; /* in the order in which they are tried */
} attnhost_phase;

/* What is done for a layer group. */
typedef struct attnhost_group {
    uint32_t struct_size;
    int32_t unit; /* index of the unit that serves it; -1 = nothing does */
    const attn_layer_group *group;
    const char *layers;          /* "0-3,5" */
    const char *what;            /* "softmax decoder, 32 query heads, ..." */
    const char *kv_layout;       /* layout id; NULL = no cache, or no unit */
    const char *state_layout;    /* layout id; NULL = no state, or no unit */
    uint32_t decode_graph_level; /* ATTN_GRAPH_* of decode batches; NEVER without unit or decode */
    uint32_t num_phases;         /* encoders have prefill alone */
    const attnhost_phase *phases;
    /* Device memory of metadata, at most; 0 = unknown. For batches of all phases, which share it
     * (those of a phase alone: its candidate's verdict), and for a graph of decode batches, of
     * which all graphs share the scratch part. */
    uint64_t device_bytes;
    uint64_t graph_device_bytes;
} attnhost_group;

/* What is to be composed: attnhost_compose(host, backend, problems, num_problems, ...), and then
 * metadata within problems->bounds. */
typedef struct attnhost_unit {
    uint32_t struct_size;
    uint32_t modes;               /* ATTN_MODE_BIT set that its groups were asked for */
    const char *backend;          /* a name that the host knows from now on */
    const char *type;             /* "hybrid_phase", "hybrid_linear" where two were joined; else */
                                  /* `backend` */
    const attn_problem *problems; /* one for each of its groups */
    const uint32_t *groups;       /* their indices in attnhost_selection.groups, ascending */
    uint32_t num_problems;
    uint32_t reserved; /* 0 */
} attnhost_unit;

/* Which backend serves which layers in which phase, and why no other: all that `attnhost explain`
 * prints. Arrays are walked by attn_at(). */
struct attnhost_selection {
    uint32_t struct_size;
    int32_t status; /* ATTN_OK: all layers are served; on a simulated platform, they would be; */
                    /* UNSUPPORTED, DEPENDENCY_MISSING: some are not */
    const char *message; /* why not; "" */
    attn_device device;
    const char *device_name; /* "cpu", "cuda sm90" */
    const char *device_note; /* why `auto` took this device and not the one before it; or NULL */
    int32_t max_sms; /* multiprocessors that launches may count on; 0 = all (platform.max_sms) */
    const char *simulated;    /* the platform in the place of a real one; or NULL */
    const char *model;        /* its name */
    const char *architecture; /* "LlamaForCausalLM"; "groups" */
    attn_dtype dtype;         /* of queries, new keys and values */
    int32_t max_context_len;  /* tokens */
    uint32_t num_layers;
    uint32_t num_groups;
    uint32_t num_units;
    uint32_t reserved; /* 0 */
    const attnhost_group *groups;
    const attnhost_unit *units;
    const char *notes; /* lines for people, each with its '\n'; mostly "" */
};

/* Choose backends for a model, as `attnhost run` does. `settings` are texts "section.key=value" of
 * the ini (`attnhost run --print-config` lists them), of the sections platform (which device, or
 * which one to simulate), attention (names; `auto` is the default), kv_cache (page_size, dtype,
 * layout; of k_scale and v_scale, which an fp8 cache needs, only how many there are), workload
 * (max_running_requests, chunked_prefill_size, mixed: the bounds of batches), cuda_graph (for the
 * notes), and model.dtype, model.max_context_len. Backends that the host has defined can be named;
 * routes are defined by attnhost_configure_text(), and named "routes".
 *
 * ATTN_OK for a no as well: see (*selection)->status. CONFIG_ERROR for a wrong setting, an unknown
 * backend or architecture; INVALID_ARGUMENT for groups that cannot be looked at. Pairs of backends
 * that are chosen for the two phases are defined in the host. The model is read only during the
 * call. [host-thread] */
attn_status attnhost_select(attnhost *host, const attnhost_model *model,
                            const char *const *settings, uint32_t num_settings,
                            const attnhost_selection **selection, attn_error *error);

/* Free a selection with all that it points to. NULL is accepted. [any-thread] */
void attnhost_selection_destroy(const attnhost_selection *selection);

/* ---- Backends -------------------------------------------------------------------------------- */

/* Make the backend `name` with all its children for the layer groups of a model (`problems`: array,
 * struct_size set in each, all on one device). Errors are those of attnhost_query, and UNSUPPORTED,
 * DEPENDENCY_MISSING, CHILD_FAILED ... from the backend, with its name before the message. A
 * failure leaves nothing allocated. The problems are read only during the call.
 *
 * A backend uses its host's pool and tables: while it lives, no [host-thread] call except loading
 * and defining may be made, and not even those while it is in use. [host-thread & !capturing] */
attn_status attnhost_compose(attnhost *host, const char *name, const attn_problem *problems,
                             uint32_t num_problems, attnhost_backend **backend, attn_error *error);

/* Free a backend and its children; its metadata must be gone and its streams idle. NULL is
 * accepted. [host-thread & !capturing] */
void attnhost_backend_destroy(attnhost_backend *backend);

/* Compile, tune and warm up, so that no step has to; may take minutes. Having nothing to do is
 * ATTN_OK. `progress` may be NULL. [backend-thread & !capturing] */
attn_status attnhost_backend_prepare(attnhost_backend *backend, attn_progress progress,
                                     void *progress_ctx, attn_error *error);

/* Forms of KV indices that every batch must carry: a mask of ATTN_INDEX_*, constant for the
 * backend. [backend-thread] */
uint32_t attnhost_backend_index_forms(const attnhost_backend *backend);

/* Host arrays that every batch must have, because some backend of the tree plans with them: a mask
 * of ATTN_HOST_*, constant for the backend; 0 = device arrays are enough. [backend-thread] */
uint32_t attnhost_backend_host_arrays(const attnhost_backend *backend);

/* One place of a composition. */
typedef struct attnhost_node_info {
    uint32_t struct_size;
    uint32_t depth;          /* 0 for the backend itself, 1 for its children ... */
    const char *name;        /* as asked for */
    const char *type;        /* name of its backend type */
    const char *plugin_file; /* absolute */
    int64_t rows;            /* query rows its forwards have computed, summed over layers; */
                             /* 0 where there are children */
    uint32_t num_children;
    uint32_t num_paths; /* that its instance tells of (ATTN_EXTENSION_PATHS) */
} attnhost_node_info;

/* One of the ways by which a place computes rows. */
typedef struct attnhost_path_info {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const char *name;
    const char *doc; /* one line */
    int64_t rows;    /* as those of the node, of which these are some */
} attnhost_path_info;

/* Places of a composition, each before its children. [backend-thread] */
uint32_t attnhost_backend_num_nodes(const attnhost_backend *backend);

/* The place with this index. INVALID_ARGUMENT beyond the last. [backend-thread] */
attn_status attnhost_backend_node(const attnhost_backend *backend, uint32_t index,
                                  attnhost_node_info *info, attn_error *error);

/* Path number `path` of that place. INVALID_ARGUMENT beyond the last. [backend-thread] */
attn_status attnhost_backend_path(const attnhost_backend *backend, uint32_t index, uint32_t path,
                                  attnhost_path_info *info, attn_error *error);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* Memory that metadata of this kind needs for batches within `bounds`, by region (ATTN_REGION). It
 * grows with the bounds. UNSUPPORTED for bounds that query refuses.
 * [backend-thread & !capturing] */
attn_status attnhost_metadata_size(attnhost_backend *backend, uint32_t kind,
                                   const attn_bounds *bounds, attn_memory_size *size,
                                   attn_error *error);

/* Make metadata. Where `memory` gives a region's base, the region is the caller's and must not move
 * until attnhost_metadata_destroy; the other regions are allocated here (`memory` NULL = all of
 * them). Allocated scratch is one region, shared by all metadata of the backend made without
 * scratch of their own, so their forwards must go to one stream. For forwards on several streams,
 * give each metadata its own scratch; engines usually have a workspace for it.
 *
 * BUFFER_TOO_SMALL (needed = bytes) if a given region is too small, INVALID_ARGUMENT if it is
 * misaligned or `kind` is unknown, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY. ZEROED regions, given
 * or allocated, are zero when this returns; it waits for no stream of the engine, so nothing may
 * still be using them. [backend-thread & !capturing] */
attn_status attnhost_metadata_create(attnhost_backend *backend, uint32_t kind,
                                     const attn_bounds *bounds, const attn_memory *memory,
                                     attnhost_metadata **metadata, attn_error *error);

/* Free metadata and what was allocated for it. Its stream is idle. NULL is accepted.
 * [backend-thread & !capturing] */
void attnhost_metadata_destroy(attnhost_metadata *metadata);

/* Plan a batch for all layers. What is wrong with the batch itself is INVALID_ARGUMENT: an unknown
 * mode, one outside the bounds, more sequences or tokens than the bounds, a KV group or an index
 * form that is missing, missing host arrays where they are needed, host arrays that contradict the
 * batch or each other (attn_batch.h, "what the host has checked"), a struct_size that is not set;
 * the error's field is BATCH. An IDLE batch is not passed to the backend. After a failure the
 * metadata has no batch. [backend-thread & !capturing] */
attn_status attnhost_init_forward_metadata(attnhost_metadata *metadata, const attn_batch *batch,
                                           attn_stream stream, attn_error *error);

/* Run one layer of the batch planned last: DECODE calls the backend's forward_decode, IDLE calls
 * nothing, every other mode calls forward_extend. Only enqueues on `stream`. BAD_STATE without a
 * batch, UNSUPPORTED if the backend does not serve this phase, INVALID_ARGUMENT, with the role's
 * name, for sinks or slopes that the layer's group does not announce (ATTN_GROUP_HAS_*), for an
 * operand whose dtype is not the problem's (last column of ATTN_ROLE_MAP) and for a tensor or scale
 * whose struct_size is not set. After a failure the ZEROED regions
 * are zeroed again (on `stream`), so that the next batch starts clean. [backend-thread] */
attn_status attnhost_forward(attnhost_metadata *metadata, int32_t layer_id,
                             const attn_forward_args *args, attn_stream stream, attn_error *error);

/* Merge partial results of the same queries over disjoint keys into one, in the stream's order:
 *   lse = log(sum exp(lses[p])),  out = sum exp(lses[p] - lse) outs[p]
 * where all parts are empty (-inf) out is 0 and lse -inf; a part that is empty may hold anything in
 * its output. outs, out: [tokens, heads, dim] fp32, fp16 or bf16; lses, lse: [tokens, heads] fp32;
 * any strides, on the backend's device. `out` and `lse` may be the views of one of the parts; `lse`
 * may be NULL. On the CPU computed in fp64, by the host's threads; on CUDA enqueued, in fp32.
 *
 * The first call for a backend on CUDA loads kernels, and is not for a capture; one with no tokens
 * does nothing else. INVALID_ARGUMENT for parts other than 1..16, or tensors whose shapes, types or
 * devices do not match; DEPENDENCY_MISSING where this library was built without CUDA kernels.
 * [backend-thread] */
attn_status attnhost_merge(attnhost_backend *backend, const attn_tensor *const *outs,
                           const attn_tensor *const *lses, uint32_t num_parts,
                           const attn_tensor *out, const attn_tensor *lse, attn_stream stream,
                           attn_error *error);

/* ---- Whole runs ------------------------------------------------------------------------------ */

/* The upper level: what `attnhost run` does, with the host's own pools, scheduler and trace
 * readers. Reads the ini `path` (NULL = defaults), applies `sets` ("section.key=value"), serves the
 * trace. *json gets the report as JSON text, to be released with attnhost_free_text(); *passed is 1
 * if no verified row was wrong and no KV leaked. Returns CONFIG_ERROR for an error in the
 * configuration, UNSUPPORTED if the backend cannot serve it, DEPENDENCY_MISSING if a critical
 * plugin is refused, and INTERNAL, with a message, if the run itself fails. [any-thread] */
attn_status attnhost_run(const char *path, const char *const *sets, uint32_t num_sets,
                         uint32_t *passed, char **json, attn_error *error);

/* Release a text that attnhost_run() returned. NULL is accepted. [any-thread] */
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
    int32_t block_size;          /* tokens of a block: the ABI's page */
    int32_t block_table_stride;  /* elements between two rows */
    uint32_t reserved;           /* 0 */
    attn_i32_array block_table;  /* [num_reqs, stride] */
    attn_i64_array slot_mapping; /* [num_actual_tokens] -1 = not written; absent = nothing is */
} attnhost_paged_group;

/* A step of such an engine, in the words of vLLM's CommonAttentionMetadata. */
typedef struct attnhost_paged_batch {
    uint32_t struct_size;
    uint32_t num_groups;
    int32_t num_reqs;
    int32_t num_actual_tokens;          /* query rows */
    int32_t max_query_len;              /* 0 = look for it in query_start_loc.host */
    int32_t max_seq_len;                /* 0 = look for it in seq_lens.host */
    attn_i32_array query_start_loc;     /* [num_reqs + 1] */
    attn_i32_array seq_lens;            /* [num_reqs] new tokens included */
    attn_i32_array num_computed_tokens; /* [num_reqs] absent = computed into the room below */
    int32_t *room;                      /* [num_reqs] host memory, or NULL; needs the host arrays */
    const attnhost_paged_group *groups; /* array; walk with attn_at() */
} attnhost_paged_batch;

/* Make *batch and kv_groups[num_groups], the caller's, of a step: DECODE if every request has one
 * query, else EXTEND. They point to the step's arrays. What a step does not say (mask, drafts,
 * state, other index forms) is 0, and for the caller to add.
 *
 * `room` is the host copy of prefix_lens; it stands for the device's, too, where query_start_loc
 * has one array for both, as on the CPU. INVALID_ARGUMENT names the array: one that is absent
 * (num_computed_tokens on the device, in EXTEND), or host arrays that contradict each other.
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
