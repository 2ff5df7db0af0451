/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: cpu_native, attention on the host's processor: names, options, and the exported
 * function.
 *
 * The plugin to read first, and to copy. A reader meets:
 *
 *   1. plugin.c      options and tables
 *   2. query.c       limits
 *   3. instance.c    an instance for a model's layer groups
 *   4. memory.c      memory for a batch
 *   5. plan.c        a batch cut into units of work
 *   6. forward.c     a layer: operands.c checks, save.c writes KV, attend.c computes
 *   7. kernels.inc   the inner loops
 *
 * All of it reads as softmax attention; latent attention has its own folder (mla/mla.h). */
#include "cpu_native.h"

#include "plugins/common/plugin_entry.h"
#include "attn_plugin_util.h"

#include <string.h>

/* ---- Options --------------------------------------------------------------------------------- */

static const char *const index_choices[] = {"req_to_token", "block_table", "csr", "all"};

enum { DEFAULT_SPLIT = 512 };

static const attn_option options_declared[] = {
    CPU_ISA_OPTION,
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_INT,
     .key = "kv_split_tokens",
     .default_text = "512",
     .min = TILE_KEYS,
     .max = 1 << 20,
     .unit = "tokens",
     .doc = "keys per split of a long sequence, rounded up to 64s; results depend on it"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_ENUM,
     .key = "kv_index",
     .default_text = "block_table",
     .min = 1,
     .num_choices = 4,
     .choices = index_choices,
     .doc = "form of KV indices to ask for; all = all three, to test an engine"},
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_BOOL,
     .key = "round_probabilities",
     .default_text = "yes",
     .min = 1,
     .doc = "absorbed latent attention in bf16: multiply values by probabilities rounded to bf16, "
            "where the processor can; no = by fp32, slower"},
};

/* Splits end where tiles do. */
static attn_status read_split(const attn_option_value *value, cpu_options *options,
                              attn_error *error)
{
    int32_t given = 0;
    attn_status status = attn_util_option_number(value, TILE_KEYS, 1 << 20, &given, error);
    if (status == ATTN_OK)
        options->split = (given + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    return status;
}

/* Index of an ENUM's value among its choices. */
static attn_status read_choice(const attn_option_value *value, int64_t *choice, attn_error *error)
{
    if (value->integer < 0 || value->integer > 3)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "%s: %s: choice %lld: accepted 0..3", value->place, value->key,
                                    (long long)value->integer);
    *choice = value->integer;
    return ATTN_OK;
}

attn_status cpu_options_read(const attn_options *given, cpu_options *options, attn_error *error)
{
    const uint32_t all = ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR;
    int64_t isa = CPU_ISA_AUTO, form = 1; /* block_table */
    attn_status status = ATTN_OK;
    options->split = DEFAULT_SPLIT;
    options->round_probabilities = 1;
    for (uint32_t i = 0; given && i < given->num_values && status == ATTN_OK; i++) {
        const attn_option_value *value = attn_at(given->values, i);
        if (strcmp(value->key, "isa") == 0)
            status = read_choice(value, &isa, error);
        else if (strcmp(value->key, "kv_index") == 0)
            status = read_choice(value, &form, error);
        else if (strcmp(value->key, "kv_split_tokens") == 0)
            status = read_split(value, options, error);
        else if (strcmp(value->key, "round_probabilities") == 0)
            options->round_probabilities = value->integer != 0;
    }
    options->isa = (int32_t)isa;
    options->index_forms = form == 3 ? all : 1u << form;
    return status;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND,
                                      ATTN_LAYOUT_MLA_LATENT, ATTN_LAYOUT_MLA_LATENT_FP8};

static const attn_backend_ops ops = {
    .struct_size = sizeof(attn_backend_ops),
    .destroy = cpu_destroy,
    .index_forms = cpu_index_forms,
    .metadata_size = cpu_metadata_size,
    .metadata_create = cpu_metadata_create,
    .init_forward_metadata = cpu_init_forward_metadata,
    .metadata_destroy = cpu_metadata_destroy,
    .forward_extend = cpu_forward_extend,
    .forward_decode = cpu_forward_decode,
    .get_extension = attn_util_no_extension,
};

const attn_backend_type cpu_native_type = {
    .struct_size = sizeof(attn_backend_type),
    .name = "cpu_native",
    .doc = "softmax and latent attention on the processor, fp32 sums, any mask, any page size",
    .num_options = sizeof options_declared / sizeof options_declared[0],
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .options = options_declared,
    .layouts = layouts,
    .ops = &ops,
    .query = cpu_query,
    .create = cpu_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&cpu_native_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "cpu_native",
        .doc = "attention on the host's processor",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
