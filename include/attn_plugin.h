/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_plugin.h: the contract between attnhost and an attention backend in a shared object.
 *
 * A plugin is a shared object that exports one function, attn_plugin_entry. The host opens it with
 * RTLD_NOW | RTLD_LOCAL, looks the entry up in that object alone, and negotiates a version. All
 * other calls go through the tables that the entry returns. Include this header and nothing else:
 *
 *   attn_types.h     status, errors, dtypes, tensors
 *   attn_problem.h   layer groups, problems, verdicts
 *   attn_batch.h     batches and forward arguments
 *   attn_services.h  options, and what the host does for a plugin
 *   attn_backend.h   backend types, instances, metadata
 *   attn_ext_*.h     extensions, each optional and in a header of its own
 *
 * attn_plugin_util.h holds code that most plugins share; it includes this header and is not part of
 * the contract. docs/ABI.md numbers every rule. examples/plugin is a plugin to copy.
 *
 * The entry is a function, not data: dlsym of data is not portable, and a call lets both sides
 * agree on a version before either reads a table.
 */
#ifndef ATTN_PLUGIN_H
#define ATTN_PLUGIN_H

#include "attn_types.h"
#include "attn_problem.h"
#include "attn_batch.h"
#include "attn_services.h"
#include "attn_backend.h"
#include "attn_ext_code_paths.h"
#include "attn_ext_explain.h"
#include "attn_ext_judge.h"
#include "attn_ext_layouts.h"
#include "attn_ext_private_operands.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Marks the one function a plugin exports. */
#if defined(__GNUC__) || defined(__clang__)
#define ATTN_EXPORT __attribute__((visibility("default")))
#else
#define ATTN_EXPORT
#endif

#define ATTN_PLUGIN_ENTRY "attn_plugin_entry"

/* The host that calls the entry. */
typedef struct attn_host_info {
    uint32_t struct_size;
    uint32_t abi_major_min; /* oldest major the host supports */
    uint32_t abi_major_max; /* newest major the host supports */
    uint32_t abi_minor;     /* minor of the newest major; information only: never refuse by it */
    const char *name;       /* of the host, never NULL */
    const char *version;    /* of the host, never NULL */
    /* For a plugin that runs source files: the source to open, an absolute path ("/a/kernel.py") or
     * "module:Class". Each source is a separate plugin; equal sources get equal tables. NULL, or
     * beyond struct_size = the plugin's own file. */
    const char *source;
} attn_host_info;

/* Does the host support this major? An entry passes ATTN_ABI_MAJOR. [any-thread] */
static inline int attn_host_speaks(const attn_host_info *host, uint32_t major)
{
    return host->abi_major_min <= major && major <= host->abi_major_max;
}

/* Filled in by the entry. The caller allocates it, zeroed except struct_size. All strings are
 * static. */
typedef struct attn_plugin {
    uint32_t struct_size;
    uint32_t abi_major;    /* chosen, within the host's range */
    uint32_t abi_minor;    /* of the headers it was built with */
    uint32_t num_backends; /* >= 1 */
    const char *name;      /* [a-z][a-z0-9_]*, never NULL */
    const char *version;   /* never NULL */
    const char *vendor;    /* never NULL */
    const char *doc;       /* one line, never NULL */
    const char *build;     /* fingerprint for reports (compiler, CUDA, commit); NULL = none */

    /* Backend type `index` < num_backends. Pure: no CUDA, files, threads, environment; under
     * 100 ms; works on a machine without a GPU and before init. [any-thread] */
    attn_status (*describe)(uint32_t index, const attn_backend_type **type, attn_error *error);

    /* init is called once before the first create, fini once after the last destroy. The host pairs
     * the calls: a second init comes only after fini. A plugin may not touch a driver before init.
     * `services` lives until fini. (optional, both or neither) [main-thread] */
    attn_status (*init)(const attn_services *services, attn_error *error);
    void (*fini)(void);

    /* An extension of the plugin by id "attn.<name>/<rev>"; NULL = absent. (optional)
     * [any-thread] */
    const void *(*get_extension)(const char *id);
} attn_plugin;

/* The one exported function. Fills *plugin and returns ATTN_OK, or INCOMPATIBLE_VERSION if it
 * supports no major in [abi_major_min, abi_major_max]. Pure, like describe. [any-thread] */
ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error);

typedef attn_status (*attn_plugin_entry_fn)(const attn_host_info *host, attn_plugin *plugin,
                                            attn_error *error);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_PLUGIN_H */
