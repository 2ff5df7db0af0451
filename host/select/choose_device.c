/* SPDX-License-Identifier: Apache-2.0
 *
 * choose_device.c: a selection on the configured device, or on the better one of those present; and
 * the form of latent layers that suits the device. */
#include "host/select/select.h"

#include <string.h>

#include "host/device/device.h"
#include "host/base/error.h"
#include "host/select/platform.h"
#include "host/base/text.h"

/* A device and the selection on it. */
struct attempt {
    attn_device device;
    struct selection *selection;
    host_error error;
    attn_status status;
};

static void try_device(struct attempt *attempt, attnhost *host, const struct config *config,
                       const struct model *model, int32_t type)
{
    attn_device device = {.struct_size = sizeof device};
    host_error_init(&attempt->error);
    attempt->selection = NULL;
    attempt->status = device_describe(type, 0, &device, &attempt->error.base);
    attempt->device = device;
    /* A driver that fails counts as absent. */
    if (attempt->status && attempt->status != ATTN_OUT_OF_HOST_MEMORY)
        attempt->status = ATTN_DEPENDENCY_MISSING;
    if (attempt->status == ATTN_OK)
        attempt->status =
            select_create(host, config, model, &device, &attempt->selection, &attempt->error.base);
}

/* Is another device worth a try? Not where the configuration is wrong or memory ran out. */
static bool may_differ(const struct attempt *attempt)
{
    return attempt->status == ATTN_UNSUPPORTED || attempt->status == ATTN_DEPENDENCY_MISSING;
}

/* Does the configuration name backends? Then they decide the device. */
static bool has_names(const struct config *config)
{
    const struct config_attention *keys = &config->attention;
    return strcmp(keys->attention_backend, "auto") != 0 ||
           (keys->prefill_attention_backend && keys->decode_attention_backend) ||
           keys->routes.count > 0;
}

static attn_status keep(struct attempt *kept, struct attempt *other, attn_device *device,
                        struct selection **selection, attn_error *error)
{
    select_destroy(other->selection);
    *device = kept->device;
    *selection = kept->selection;
    return kept->status ? host_fail(error, kept->status, "%s", host_error_text(&kept->error))
                        : ATTN_OK;
}

/* Neither device serves: the result is the selection on the processor, which is always present,
 * with the reasons of both. */
static attn_status keep_neither(struct attempt *cpu, struct attempt *cuda, attn_device *device,
                                struct selection **selection, attn_error *error)
{
    bool asked = cuda->selection != NULL;
    attn_status status = keep(cpu, cuda, device, selection, error);
    return asked ? host_fail(error, status, "%s; on cuda:0: %s", host_error_text(&cpu->error),
                             host_error_text(&cuda->error))
                 : status;
}

/* "auto; cuda:0: WHY". */
static attn_status note(struct selection *selection, const struct attempt *refused,
                        const char *name, attn_error *error)
{
    strbuf text;
    strbuf_init(&text);
    strbuf_appendf(&text, "auto; %s: %s", name, host_error_text(&refused->error));
    selection->device_note = strbuf_steal(&text);
    return selection->device_note
               ? ATTN_OK
               : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a note");
}

/* Named backends are tried on the processor first, so that no driver is loaded for them. */
static attn_status select_automatic(attnhost *host, const struct config *config,
                                    const struct model *model, attn_device *device,
                                    struct selection **selection, attn_error *error)
{
    struct attempt cpu, cuda;
    bool cpu_first = has_names(config);
    struct attempt *first = cpu_first ? &cpu : &cuda, *second = cpu_first ? &cuda : &cpu;
    second->selection = NULL;
    try_device(first, host, config, model, cpu_first ? ATTN_DEVICE_CPU : ATTN_DEVICE_CUDA);
    if (!may_differ(first))
        return keep(first, second, device, selection, error);
    try_device(second, host, config, model, cpu_first ? ATTN_DEVICE_CUDA : ATTN_DEVICE_CPU);
    if (second->status)
        return keep_neither(&cpu, &cuda, device, selection, error);
    attn_status status = note(second->selection, first, cpu_first ? "cpu" : "cuda:0", error);
    if (status) {
        select_destroy(first->selection);
        select_destroy(second->selection);
        return status;
    }
    return keep(second, first, device, selection, error);
}

attn_status select_create_here(attnhost *host, const struct config *config,
                               const struct model *model, attn_device *device,
                               struct selection **selection, attn_error *error)
{
    if (!config->platform.simulate && config->platform.device.type == CONFIG_DEVICE_AUTO)
        return select_automatic(host, config, model, device, selection, error);
    attn_status status = platform_describe(config, device, error);
    return status ? status : select_create(host, config, model, device, selection, error);
}

attn_status select_settle_form(attnhost *host, const struct config *config, struct model *model,
                               attn_error *error)
{
    if (config->attention.mla_prefill != CONFIG_MLA_AUTO || !model_has_latents(model))
        return ATTN_OK;
    attn_device device = {.struct_size = sizeof device};
    struct selection *selection = NULL;
    host_error said;
    host_error_init(&said);
    model_set_expanded(model, true);
    attn_status status = select_create_here(host, config, model, &device, &selection, &said.base);
    if (status != ATTN_OK || device.type != ATTN_DEVICE_CUDA)
        model_set_expanded(model, false);
    select_destroy(selection);
    return status == ATTN_OUT_OF_HOST_MEMORY
               ? host_fail(error, status, "%s", host_error_text(&said))
               : ATTN_OK;
}
