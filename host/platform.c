/* SPDX-License-Identifier: Apache-2.0
 *
 * platform.c: devices to pose problems for.
 *
 * A simulated device is a row of a table: one well-known product of each compute capability, with
 * the numbers that its maker publishes. It lets `explain` tell what would be chosen there.
 */
#include "host/platform.h"

#include <stdio.h>
#include <string.h>

#include "attnhost.h"
#include "host/error.h"
#include "host/text.h"

struct product {
    uint32_t sm;
    uint32_t num_sms;
    uint32_t shared_memory_kib; /* one block may opt in to; CUDA C Programming Guide, table of */
                                /* technical specifications */
    uint32_t memory_gib;
    uint32_t l2_mib;
};

static const struct product products[] = {
    {75, 40, 64, 16, 4},       /* T4 */
    {80, 108, 163, 80, 40},    /* A100 */
    {86, 84, 99, 48, 6},       /* A40 */
    {89, 142, 99, 48, 96},     /* L40S */
    {90, 132, 227, 80, 50},    /* H100 */
    {100, 148, 227, 180, 126}, /* B200 */
    {103, 148, 227, 270, 126}, /* B300 */
    {120, 188, 99, 96, 128},   /* RTX PRO 6000 */
};
enum { NUM_PRODUCTS = sizeof products / sizeof *products };

int platform_simulate(uint32_t sm, attn_device *device)
{
    for (size_t i = 0; i < NUM_PRODUCTS; i++) {
        const struct product *product = &products[i];
        if (product->sm != sm)
            continue;
        *device = (attn_device){.struct_size = sizeof *device,
                                .type = ATTN_DEVICE_CUDA,
                                .sm = sm,
                                .num_sms = product->num_sms,
                                .shared_memory = product->shared_memory_kib << 10,
                                .driver_version = 13000,
                                .memory_bytes = (uint64_t)product->memory_gib << 30,
                                .l2_bytes = (uint64_t)product->l2_mib << 20};
        return 0;
    }
    return -1;
}

static attn_status fail_unknown(const struct config *config, attn_error *error)
{
    strbuf list;
    strbuf_init(&list);
    for (size_t i = 0; i < NUM_PRODUCTS; i++)
        strbuf_appendf(&list, "%ssm%u", i ? ", " : "", products[i].sm);
    attn_status status =
        config_fail(config, "platform.simulate", error, "sm%lld is not known: accepted %s",
                    (long long)config->platform.simulate, strbuf_text(&list));
    strbuf_finish(&list);
    return status;
}

attn_status platform_describe(const struct config *config, attn_device *device, attn_error *error)
{
    const struct config_platform *platform = &config->platform;
    if (platform->simulate)
        return platform_simulate((uint32_t)platform->simulate, device) ? fail_unknown(config, error)
                                                                       : ATTN_OK;
    int32_t type =
        platform->device.type == CONFIG_DEVICE_AUTO ? ATTN_DEVICE_CPU : platform->device.type;
    memset(device, 0, sizeof *device);
    device->struct_size = sizeof *device;
    attn_status status = attnhost_device_init(device, type, platform->device.index, error);
    return status ? host_fail_prefix(error, "%s: platform.device",
                                     config_place(config, "platform.device"))
                  : ATTN_OK;
}

void platform_text(const attn_device *device, char *text, size_t size)
{
    if (device->type == ATTN_DEVICE_CPU)
        snprintf(text, size, "cpu");
    else
        snprintf(text, size, "cuda sm%u", device->sm);
}
