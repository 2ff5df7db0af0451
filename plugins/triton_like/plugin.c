/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: triton_like, attention on CUDA by kernels that are plain source files, compiled at load
 * for the given model: names, options, and the exported function.
 */
#define _GNU_SOURCE /* dladdr */
#include "triton_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/plugin_entry.h"
#include "plugins/common/configured.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KERNEL_DIR ATTNHOST_KERNEL_DIR "/triton_like" /* where they are installed */

/* ---- Options --------------------------------------------------------------------------------- */

static const attn_option options_declared[] = {
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_INT,
     .key = "num_kv_splits",
     .default_text = "0",
     .min = 0,
     .max = MAX_SPLITS,
     .doc = "most blocks that share the keys of one sequence and KV head in decode; 0 = enough for "
            "one sequence to give every multiprocessor two blocks, at most 64",
     .deprecated_alias = "triton_attention_num_kv_splits"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_INT,
     .key = "split_tile_size",
     .default_text = "0",
     .min = 0,
     .max = 1 << 20,
     .unit = "tokens",
     .doc = "keys per block if several blocks share them; 0 = 512",
     .deprecated_alias = "triton_attention_split_tile_size"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BOOL,
     .key = "reduce_in_fp32",
     .default_text = "yes",
     .min = 1,
     .doc = "keep partial results of decode in fp32; no = in the type of q, half the traffic",
     .deprecated_alias = "triton_attention_reduce_in_fp32"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BOOL,
     .key = "split_probabilities",
     .default_text = "no",
     .min = 1,
     .doc = "multiply values by probabilities in two 16-bit parts, with smaller errors than the "
            "single rounding of other 16-bit kernels; adds half as many products"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_PATH,
     .key = "kernel_dir",
     .default_text = KERNEL_DIR,
     .min = 1,
     .doc = "folder of the kernels' sources; kernels/triton_like next to the plugin's file takes "
            "precedence over the default"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_PATH,
     .key = "cache_dir",
     .default_text = "",
     .min = 1,
     .doc = "folder of compiled kernels; empty = attnhost/triton_like in the user's cache folder"},
};

static attn_status read_path(const attn_option_value *value, char *path, attn_error *error)
{
    if (snprintf(path, MAX_PATH, "%s", value->text) >= MAX_PATH)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "%s: %s is longer than %d bytes", value->place, value->key,
                                    MAX_PATH - 1);
    return ATTN_OK;
}

static attn_status read_option(const attn_option_value *value, triton_options *options,
                               attn_error *error)
{
    if (strcmp(value->key, "num_kv_splits") == 0) {
        return attn_util_option_number(value, 0, MAX_SPLITS, &options->num_kv_splits, error);
    } else if (strcmp(value->key, "split_tile_size") == 0) {
        attn_status status =
            attn_util_option_number(value, 0, 1 << 20, &options->split_tile, error);
        if (status == ATTN_OK && options->split_tile == 0)
            options->split_tile = DEFAULT_SPLIT_TILE;
        return status;
    } else if (strcmp(value->key, "reduce_in_fp32") == 0) {
        options->reduce_in_fp32 = value->integer != 0;
    } else if (strcmp(value->key, "split_probabilities") == 0) {
        options->split_probabilities = value->integer != 0;
    } else if (strcmp(value->key, "kernel_dir") == 0) {
        return read_path(value, options->kernel_dir, error);
    } else if (strcmp(value->key, "cache_dir") == 0) {
        return read_path(value, options->cache_dir, error);
    }
    return ATTN_OK;
}

/* Kernels that came with the plugin, as in a wheel or a tree that was moved after the build, go
 * before those of where it was meant to be installed: another version may lie there. */
static void find_kernels(char *kernel_dir)
{
    Dl_info info;
    char beside[MAX_PATH];
    if (strcmp(kernel_dir, KERNEL_DIR) != 0 ||
        !dladdr((void *)(uintptr_t)&triton_like_type, &info) || !info.dli_fname)
        return;
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash ? (int)(slash - info.dli_fname) : 1;
    if (snprintf(beside, sizeof beside, "%.*s/kernels/triton_like", length,
                 slash ? info.dli_fname : ".") < MAX_PATH &&
        access(beside, R_OK) == 0)
        memcpy(kernel_dir, beside, sizeof beside);
}

attn_status triton_options_read(const attn_options *given, triton_options *options,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    *options = (triton_options){.split_tile = DEFAULT_SPLIT_TILE, .reduce_in_fp32 = 1};
    snprintf(options->kernel_dir, sizeof options->kernel_dir, "%s", KERNEL_DIR);
    for (uint32_t i = 0; given && i < given->num_values && status == ATTN_OK; i++)
        status = read_option(attn_at(given->values, i), options, error);
    return status;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND};

static const void *get_extension(attn_instance *instance, const char *id)
{
    return strcmp(id, COMPILE_COUNTER_ID) == 0 ? &instance->counter : NULL;
}

static attn_status prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error)
{
    find_kernels(instance->options.kernel_dir);
    return triton_prepare(instance, progress, progress_ctx, error);
}

static const attn_backend_ops ops = {
    .struct_size = sizeof(attn_backend_ops),
    .destroy = triton_destroy,
    .prepare = prepare,
    .index_forms = triton_index_forms,
    .metadata_size = triton_metadata_size,
    .metadata_create = triton_metadata_create,
    .init_forward_metadata = triton_init_forward_metadata,
    .metadata_destroy = cuda_metadata_destroy,
    .forward_extend = triton_forward_extend,
    .forward_decode = triton_forward_decode,
    .get_extension = get_extension,
};

const attn_backend_type triton_like_type = {
    .struct_size = sizeof(attn_backend_type),
    .name = "triton_like",
    .doc = "softmax attention on CUDA, sm_80 and later, compiled at load for the model at hand",
    .num_options = sizeof options_declared / sizeof options_declared[0],
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .options = options_declared,
    .layouts = layouts,
    .ops = &ops,
    .query = triton_query,
    .create = triton_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&triton_like_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "triton_like",
        .doc = "attention on CUDA by kernels that NVRTC compiles at load",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
