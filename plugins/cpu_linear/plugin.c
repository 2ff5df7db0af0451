/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: cpu_linear, recurrent layers on the host's processor: names, options, and the exported
 * function. */
#include "cpu_linear.h"

#include "attn_plugin_util.h"
#include "plugins/common/plugin_entry.h"

#include <string.h>

/* ---- Options --------------------------------------------------------------------------------- */

enum { DEFAULT_RECURRENT = 8 };

static const attn_option options_declared[] = {
    CPU_ISA_OPTION,
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_INT,
     .key = "recurrent_tokens",
     .default_text = "8",
     .min = 1,
     .max = 1 << 20,
     .unit = "tokens",
     .doc =
         "sequences of at most this many new tokens go token by token, longer ones in chunks; the "
         "last bits of results depend on it"},
};

attn_status linear_options_read(const attn_options *given, linear_options *options,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    *options = (linear_options){.isa = CPU_ISA_AUTO, .recurrent_tokens = DEFAULT_RECURRENT};
    for (uint32_t i = 0; given && i < given->num_values && status == ATTN_OK; i++) {
        const attn_option_value *value = attn_at(given->values, i);
        if (strcmp(value->key, "isa") == 0)
            status =
                attn_util_option_number(value, CPU_ISA_AUTO, CPU_ISA_AVX512, &options->isa, error);
        else if (strcmp(value->key, "recurrent_tokens") == 0)
            status = attn_util_option_number(value, 1, 1 << 20, &options->recurrent_tokens, error);
    }
    return status;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char *const layouts[] = {ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK,
                                      ATTN_LAYOUT_STATE_CONV};

/* No index form: linear layers have no keys to look for. */
static uint32_t index_forms(attn_instance *instance)
{
    (void)instance;
    return 0;
}

static const attn_backend_ops ops = {
    .struct_size = sizeof(attn_backend_ops),
    .destroy = linear_destroy,
    .index_forms = index_forms,
    .metadata_size = linear_metadata_size,
    .metadata_create = linear_metadata_create,
    .init_forward_metadata = linear_init_forward_metadata,
    .metadata_destroy = linear_metadata_destroy,
    .forward_extend = linear_forward_extend,
    .forward_decode = linear_forward_decode,
    .get_extension = attn_util_no_extension,
};

const attn_backend_type cpu_linear_type = {
    .struct_size = sizeof(attn_backend_type),
    .name = "cpu_linear",
    .doc = "recurrent layers on the processor: gated delta net, Mamba2, KDA, lightning, short conv",
    .num_options = sizeof options_declared / sizeof options_declared[0],
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .options = options_declared,
    .layouts = layouts,
    .ops = &ops,
    .query = linear_query,
    .create = linear_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&cpu_linear_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "cpu_linear",
        .doc = "recurrent layers on the host's processor",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
