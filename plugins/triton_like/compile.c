/* SPDX-License-Identifier: Apache-2.0
 *
 * compile.c: kernels from source files to loaded functions.
 *
 * A build is one source and a set of constants. All inputs identify it: the compiler's version, the
 * options, the source and its path (line tables name it), and the headers. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* NSIG */
#endif
#include "triton_like.h"

#include "plugins/common/cuda/launch.h"
#include "attn_plugin_util.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUM_OPTIONS = 4,
    MAX_PIECES = 3 + 2 * MAX_HEADERS + NUM_OPTIONS + MAX_CONSTANTS,
    LOG_SHOWN = 600
};

/* Arguments of NVRTC. */
typedef struct compile_job {
    kernel_sources sources;
    char version[48]; /* of NVRTC */
    char architecture[48];
    int num_options;
    const char *options[NUM_OPTIONS + MAX_CONSTANTS];
} compile_job;

/* ---- NVRTC ----------------------------------------------------------------------------------- */

/* The first error of the compiler's log, which begins with file and line. */
static attn_status compile_error(const nvrtc_api *nvrtc, nvrtc_program program, int result,
                                 const char *path, attn_error *error)
{
    size_t size = 0;
    char *log = NULL;
    if (nvrtc->nvrtcGetProgramLogSize(program, &size) == 0 && size > 0)
        log = calloc(1, size + 1);
    if (log && nvrtc->nvrtcGetProgramLog(program, log) != 0)
        *log = '\0';
    const char *at = log ? strstr(log, "): error") : NULL;
    if (log && !at)
        at = strstr(log, " error");
    while (at && at > log && at[-1] != '\n')
        at--;
    attn_status status = attn_util_fail(error, ATTN_DEPENDENCY_MISSING, "compiling %s: %s: %.*s",
                                        path, nvrtc->nvrtcGetErrorString(result), LOG_SHOWN,
                                        at    ? at
                                        : log ? log
                                              : "no log");
    free(log);
    return status;
}

/* The compiler puts handlers of its own before many signals and does not put all of them back, but
 * they are the process's (ERR-03). */
static int compile_quietly(const nvrtc_api *nvrtc, nvrtc_program program, const compile_job *job)
{
    struct sigaction before[NSIG];
    for (int s = 1; s < NSIG; s++)
        sigaction(s, NULL, &before[s]);
    int result = nvrtc->nvrtcCompileProgram(program, job->num_options, job->options);
    for (int s = 1; s < NSIG; s++)
        if (s != SIGKILL && s != SIGSTOP)
            sigaction(s, &before[s], NULL);
    return result;
}

static attn_status compile(const nvrtc_api *nvrtc, const compile_job *job, void **binary,
                           size_t *size, attn_error *error)
{
    const kernel_sources *sources = &job->sources;
    nvrtc_program program = NULL;
    int result =
        nvrtc->nvrtcCreateProgram(&program, sources->source, sources->path, sources->num_headers,
                                  (const char *const *)sources->headers, sources->names);
    if (result != 0)
        return attn_util_fail(error, ATTN_INTERNAL, "nvrtcCreateProgram: %s",
                              nvrtc->nvrtcGetErrorString(result));
    attn_status status = ATTN_OK;
    result = compile_quietly(nvrtc, program, job);
    if (result != 0) {
        status = compile_error(nvrtc, program, result, sources->path, error);
    } else if (nvrtc->nvrtcGetCUBINSize(program, size) != 0 || *size == 0 ||
               !(*binary = malloc(*size))) {
        status = attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no room for the kernels of %s",
                                sources->path);
    } else if (nvrtc->nvrtcGetCUBIN(program, *binary) != 0) {
        status = attn_util_fail(error, ATTN_INTERNAL, "nvrtcGetCUBIN of %s failed", sources->path);
    }
    nvrtc->nvrtcDestroyProgram(&program);
    return status;
}

/* ---- A module -------------------------------------------------------------------------------- */

/* Load the kernel from the cache; 0 if it is not there, or the driver refuses it. */
static int load_cached(const attn_instance *instance, cache_entry *entry, cuda_module *module)
{
    size_t size = 0;
    void *binary = cache_read(entry, &size);
    if (!binary)
        return 0;
    int result = instance->cuda->cuModuleLoadData(module, binary);
    free(binary);
    return result == CUDA_OK;
}

static attn_status load_compiled(attn_instance *instance, const compile_job *job,
                                 cache_entry *entry, cuda_module *module, attn_error *error)
{
    void *binary = NULL;
    size_t size = 0;
    instance->counter.compiled++;
    attn_status status = compile(instance->nvrtc, job, &binary, &size, error);
    if (status == ATTN_OK) {
        int result = instance->cuda->cuModuleLoadData(module, binary);
        if (result != CUDA_OK)
            status = cuda_fail(instance->cuda, result, "kernels", "cuModuleLoadData", error);
        else
            cache_write(entry, binary, size);
    }
    free(binary);
    return status;
}

/* Logged once: the only effect is that the next start compiles again. */
static void warn_of_cache(attn_instance *instance, const cache_entry *entry)
{
    char text[sizeof entry->trouble + 64];
    if (!*entry->trouble || instance->cache_warned)
        return;
    snprintf(text, sizeof text, "triton_like: %s: kernels are compiled again", entry->trouble);
    instance->services->log(instance->services->ctx, ATTN_LOG_WARNING, text);
    instance->cache_warned = 1;
}

static void set_options(const attn_instance *instance, const kernel_constants *constants,
                        compile_job *job)
{
    int major = 0, minor = 0;
    instance->nvrtc->nvrtcVersion(&major, &minor);
    snprintf(job->version, sizeof job->version, "nvrtc %d.%d", major, minor);
    snprintf(job->architecture, sizeof job->architecture, "--gpu-architecture=sm_%u",
             instance->device.sm);
    job->options[job->num_options++] = job->architecture;
    job->options[job->num_options++] = "-std=c++17";
    job->options[job->num_options++] = "-lineinfo";
    if (major >= 13) /* a header that it finds by itself would not be in the key */
        job->options[job->num_options++] = "--no-source-include";
    for (int i = 0; i < constants->count; i++)
        job->options[job->num_options++] = constants->text[i];
}

static void find_entry(const attn_instance *instance, const compile_job *job, cache_entry *entry)
{
    const char *pieces[MAX_PIECES];
    int count = 0;
    pieces[count++] = job->version;
    pieces[count++] = job->sources.path;
    pieces[count++] = job->sources.source;
    for (int i = 0; i < job->sources.num_headers; i++) {
        pieces[count++] = job->sources.names[i];
        pieces[count++] = job->sources.headers[i];
    }
    for (int i = 0; i < job->num_options; i++)
        pieces[count++] = job->options[i];
    cache_find(instance->options.cache_dir, pieces, count, entry);
}

static attn_status load_module(attn_instance *instance, const char *name,
                               const kernel_constants *constants, cuda_module *module,
                               attn_error *error)
{
    compile_job job = {.num_options = 0};
    cache_entry entry;
    attn_status status = sources_init(&job.sources, instance->options.kernel_dir, name, error);
    if (status != ATTN_OK)
        return status;
    set_options(instance, constants, &job);
    find_entry(instance, &job, &entry);
    if (load_cached(instance, &entry, module))
        instance->counter.cached++;
    else
        status = load_compiled(instance, &job, &entry, module, error);
    warn_of_cache(instance, &entry);
    sources_finish(&job.sources);
    return status;
}

/* ---- A build --------------------------------------------------------------------------------- */

static attn_status find_function(const attn_instance *instance, cuda_module module,
                                 const char *name, int32_t shared, cuda_function *function,
                                 attn_error *error)
{
    const cuda_wants wants = {.shared = (uint32_t)shared};
    return cuda_function_find(instance->cuda, &instance->device, module, name, &wants, function,
                              error);
}

/* Load a kernel file if the group's modes need it, and find its first kernel. */
static attn_status build_file(attn_instance *instance, const triton_group *group,
                              kernel_build *build, const kernel_constants *constants, int file,
                              cuda_function *function, attn_error *error)
{
    static const struct {
        const char *file, *kernel;
    } names[FILE_COUNT] = {[FILE_EXTEND] = {"extend.cu", "attn_extend"},
                           [FILE_DECODE] = {"decode.cu", "attn_decode"},
                           [FILE_SAVE_KV] = {"save_kv.cu", "attn_save_kv"}};
    const int32_t shared[FILE_COUNT] = {
        [FILE_EXTEND] = build->shape.extend_shared, [FILE_DECODE] = build->shape.decode_shared};
    if (!(group->files & 1u << file))
        return ATTN_OK;
    attn_status status =
        load_module(instance, names[file].file, constants, &build->modules[file], error);
    return status != ATTN_OK ? status
                             : find_function(instance, build->modules[file], names[file].kernel,
                                             shared[file], function, error);
}

attn_status triton_build(attn_instance *instance, triton_group *group, int variant,
                         attn_error *error)
{
    const cuda_api *cuda = instance->cuda;
    kernel_build *build = &group->builds[variant];
    kernel_constants constants;
    build->shape = triton_shape(group, variant, instance->device.shared_memory);
    triton_constants(group, variant, &build->shape, &instance->options, &constants);
    attn_status status =
        build_file(instance, group, build, &constants, FILE_EXTEND, &build->extend, error);
    if (status == ATTN_OK)
        status = build_file(instance, group, build, &constants, FILE_DECODE, &build->decode, error);
    if (status == ATTN_OK && build->decode)
        status = find_function(instance, build->modules[FILE_DECODE], "attn_reduce", 0,
                               &build->reduce, error);
    if (status == ATTN_OK)
        status = build_file(instance, group, build, &constants, FILE_SAVE_KV, &build->save, error);
    build->is_whole = status == ATTN_OK;
    if (status != ATTN_OK)
        triton_build_finish(cuda, build);
    return status;
}

void triton_build_finish(const cuda_api *cuda, kernel_build *build)
{
    for (size_t i = 0; i < sizeof build->modules / sizeof build->modules[0]; i++)
        if (build->modules[i])
            cuda->cuModuleUnload(build->modules[i]);
    *build = (kernel_build){0};
}
