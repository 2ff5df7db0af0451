/* SPDX-License-Identifier: Apache-2.0
 *
 * compile.c: kernels from source files to loaded functions.
 *
 * A build is one source and a set of constants. What identifies it is everything that goes in: the
 * compiler's version, the options, the source and the shared headers.
 */
#include "triton_like.h"

#include "plugins/common/plugin_error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_HEADERS = 3, NUM_OPTIONS = 3, LOG_SHOWN = 600 };

static const char *const header_names[NUM_HEADERS] = {"common.cuh", "params.h", "splits.h"};

/* The texts of a build. */
typedef struct sources {
    char path[MAX_PATH + 32];
    char *source;
    char *headers[NUM_HEADERS];
} sources;

static void sources_finish(sources *texts)
{
    free(texts->source);
    for (int i = 0; i < NUM_HEADERS; i++)
        free(texts->headers[i]);
}

static attn_status read_source(const char *folder, const char *name, sources *texts, char **text,
                               attn_error *error)
{
    size_t size = 0;
    snprintf(texts->path, sizeof texts->path, "%s/%s", folder, name);
    *text = read_file(texts->path, &size);
    if (*text)
        return ATTN_OK;
    return plugin_fail_field(error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_OPTION,
                             "triton_like: kernel source %s: %s; see option kernel_dir",
                             texts->path, strerror(errno));
}

static attn_status read_sources(const char *folder, const char *name, sources *texts,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    memset(texts, 0, sizeof *texts);
    for (int i = 0; i < NUM_HEADERS && status == ATTN_OK; i++)
        status = read_source(folder, header_names[i], texts, &texts->headers[i], error);
    if (status == ATTN_OK)
        status = read_source(folder, name, texts, &texts->source, error);
    return status;
}

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
    const char *at = log ? strstr(log, "error") : NULL;
    while (at && at > log && at[-1] != '\n')
        at--;
    attn_status status =
        plugin_fail(error, ATTN_DEPENDENCY_MISSING, "triton_like: compiling %s: %s: %.*s", path,
                    nvrtc->nvrtcGetErrorString(result), LOG_SHOWN,
                    at    ? at
                    : log ? log
                          : "no log");
    free(log);
    return status;
}

static attn_status compile(const nvrtc_api *nvrtc, const sources *texts, const char *const *options,
                           int num_options, void **binary, size_t *size, attn_error *error)
{
    nvrtc_program program = NULL;
    int result = nvrtc->nvrtcCreateProgram(&program, texts->source, texts->path, NUM_HEADERS,
                                           (const char *const *)texts->headers, header_names);
    if (result != 0)
        return plugin_fail(error, ATTN_INTERNAL, "triton_like: nvrtcCreateProgram: %s",
                           nvrtc->nvrtcGetErrorString(result));
    attn_status status = ATTN_OK;
    result = nvrtc->nvrtcCompileProgram(program, num_options, options);
    if (result != 0) {
        status = compile_error(nvrtc, program, result, texts->path, error);
    } else if (nvrtc->nvrtcGetCUBINSize(program, size) != 0 || *size == 0 ||
               !(*binary = malloc(*size))) {
        status = plugin_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                             "triton_like: no room for the kernels of %s", texts->path);
    } else if (nvrtc->nvrtcGetCUBIN(program, *binary) != 0) {
        status = plugin_fail(error, ATTN_INTERNAL, "triton_like: nvrtcGetCUBIN of %s failed",
                             texts->path);
    }
    nvrtc->nvrtcDestroyProgram(&program);
    return status;
}

/* ---- A module -------------------------------------------------------------------------------- */

/* Load what is in the cache; 0 if there is nothing, or nothing that the driver takes. */
static int load_cached(const attn_instance *instance, const cache_entry *entry, cuda_module *module)
{
    size_t size = 0;
    void *binary = cache_read(entry, &size);
    if (!binary)
        return 0;
    int result = instance->cuda->cuModuleLoadData(module, binary);
    free(binary);
    return result == CUDA_OK;
}

static attn_status load_compiled(attn_instance *instance, const sources *texts,
                                 const char *const *options, int num_options,
                                 const cache_entry *entry, cuda_module *module, attn_error *error)
{
    void *binary = NULL;
    size_t size = 0;
    attn_status status =
        compile(instance->nvrtc, texts, options, num_options, &binary, &size, error);
    if (status == ATTN_OK) {
        int result = instance->cuda->cuModuleLoadData(module, binary);
        if (result != CUDA_OK)
            status = cuda_fail(instance->cuda, result, "triton_like", "cuModuleLoadData", error);
        else
            cache_write(entry, binary, size);
        instance->num_compiled++;
    }
    free(binary);
    return status;
}

static attn_status load_module(attn_instance *instance, const char *name,
                               const kernel_constants *constants, cuda_module *module,
                               attn_error *error)
{
    char architecture[48], version[48];
    const char *options[NUM_OPTIONS + MAX_CONSTANTS];
    const char *pieces[NUM_OPTIONS + MAX_CONSTANTS + NUM_HEADERS + 4];
    int num_options = 0, count = 0, major = 0, minor = 0;
    sources texts;
    attn_status status = read_sources(instance->options.kernel_dir, name, &texts, error);
    if (status != ATTN_OK) {
        sources_finish(&texts);
        return status;
    }
    instance->nvrtc->nvrtcVersion(&major, &minor);
    snprintf(version, sizeof version, "nvrtc %d.%d", major, minor);
    snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%u", instance->sm);
    options[num_options++] = architecture;
    options[num_options++] = "-std=c++17";
    options[num_options++] = "-lineinfo";
    for (int i = 0; i < constants->count; i++)
        options[num_options++] = constants->text[i];

    pieces[count++] = version;
    pieces[count++] = name;
    pieces[count++] = texts.source;
    for (int i = 0; i < NUM_HEADERS; i++)
        pieces[count++] = texts.headers[i];
    for (int i = 0; i < num_options; i++)
        pieces[count++] = options[i];
    cache_entry entry;
    cache_find(instance->options.cache_dir, pieces, count, &entry);
    if (load_cached(instance, &entry, module))
        instance->num_cached++;
    else
        status = load_compiled(instance, &texts, options, num_options, &entry, module, error);
    sources_finish(&texts);
    return status;
}

/* ---- A build --------------------------------------------------------------------------------- */

static attn_status find_function(const cuda_api *cuda, cuda_module module, const char *name,
                                 int32_t shared, cuda_function *function, attn_error *error)
{
    int result = cuda->cuModuleGetFunction(function, module, name);
    if (result == CUDA_OK && shared > 0)
        result = cuda->cuFuncSetAttribute(*function, CUDA_FUNCTION_MAX_DYNAMIC_SHARED, shared);
    return result == CUDA_OK ? ATTN_OK : cuda_fail(cuda, result, "triton_like", name, error);
}

attn_status triton_build(attn_instance *instance, triton_group *group, int variant,
                         attn_error *error)
{
    const cuda_api *cuda = instance->cuda;
    kernel_build *build = &group->builds[variant];
    kernel_constants constants;
    build->shape = triton_shape(group, variant, instance->shared_memory);
    triton_constants(group, variant, &build->shape, &instance->options, &constants);
    attn_status status = load_module(instance, "extend.cu", &constants, &build->modules[0], error);
    if (status == ATTN_OK)
        status = load_module(instance, "decode.cu", &constants, &build->modules[1], error);
    if (status == ATTN_OK)
        status = load_module(instance, "save_kv.cu", &constants, &build->modules[2], error);
    if (status == ATTN_OK)
        status = find_function(cuda, build->modules[0], "attn_extend", build->shape.extend_shared,
                               &build->extend, error);
    if (status == ATTN_OK)
        status = find_function(cuda, build->modules[1], "attn_decode", build->shape.decode_shared,
                               &build->decode, error);
    if (status == ATTN_OK)
        status = find_function(cuda, build->modules[1], "attn_reduce", 0, &build->reduce, error);
    if (status == ATTN_OK)
        status = find_function(cuda, build->modules[2], "attn_save_kv", 0, &build->save, error);
    return status;
}

void triton_build_finish(const cuda_api *cuda, kernel_build *build)
{
    for (size_t i = 0; i < sizeof build->modules / sizeof build->modules[0]; i++)
        if (build->modules[i])
            cuda->cuModuleUnload(build->modules[i]);
    *build = (kernel_build){0};
}
