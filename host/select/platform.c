/* SPDX-License-Identifier: Apache-2.0
 *
 * platform.c: devices to pose problems for.
 *
 * A simulated device is a row of a table: one well-known product of each platform, with the numbers
 * that its maker publishes. It lets `explain` show what would be chosen there.
 */
#include "host/select/platform.h"

#include <stdio.h>
#include <string.h>

#include "host/config/keys.h"
#include "host/device/device.h"
#include "host/base/error.h"
#include "host/base/text.h"

struct product {
    const char *name;
    int32_t type; /* ATTN_DEVICE_* */
    uint32_t sm;
    uint32_t num_sms;
    uint32_t shared_memory_kib; /* one block may opt in to; CUDA C Programming Guide, table of */
                                /* technical specifications */
    uint32_t memory_gib;
    uint32_t l2_mib;
    uint32_t cpu_isa;
};

/* 0 = unknown, or of no meaning. */
enum {
    AVX512 = ATTN_CPU_AVX2 | ATTN_CPU_AVX512,
    AMX = AVX512 | ATTN_CPU_AVX512BF16 | ATTN_CPU_AMX_BF16
};

static const struct product products[] = {
    {"sm75", ATTN_DEVICE_CUDA, 75, 40, 64, 16, 4, 0},    /* T4 */
    {"sm80", ATTN_DEVICE_CUDA, 80, 108, 163, 80, 40, 0}, /* A100 */
    {"sm86", ATTN_DEVICE_CUDA, 86, 84, 99, 48, 6, 0},    /* A40 */
    {"sm87", ATTN_DEVICE_CUDA, 87, 16, 163, 64, 4, 0},   /* Jetson AGX Orin */
    {"sm89", ATTN_DEVICE_CUDA, 89, 142, 99, 48, 96, 0},  /* L40S */
    {"sm90", ATTN_DEVICE_CUDA, 90, 132, 227, 80, 50, 0}, /* H100 */
    {"h200", ATTN_DEVICE_CUDA, 90, 132, 227, 141, 50, 0},
    {"sm100", ATTN_DEVICE_CUDA, 100, 148, 227, 180, 126, 0}, /* B200 */
    {"sm103", ATTN_DEVICE_CUDA, 103, 148, 227, 270, 126, 0}, /* B300 */
    {"sm110", ATTN_DEVICE_CUDA, 110, 20, 227, 128, 32, 0},   /* Jetson T5000 (Thor) */
    {"sm120", ATTN_DEVICE_CUDA, 120, 188, 99, 96, 128, 0},   /* RTX PRO 6000 */
    {"sm121", ATTN_DEVICE_CUDA, 121, 48, 99, 128, 24, 0},    /* GB10 */
    {"gfx942", ATTN_DEVICE_ROCM, 0, 0, 0, 0, 0, 0},          /* nothing is asked about these four */
    {"gfx950", ATTN_DEVICE_ROCM, 0, 0, 0, 0, 0, 0},
    {"npu", ATTN_DEVICE_EXT_DEV, 0, 0, 0, 0, 0, 0},
    {"xpu", ATTN_DEVICE_ONEAPI, 0, 0, 0, 0, 0, 0},
    {"cpu", ATTN_DEVICE_CPU, 0, 0, 0, 0, 0, ATTN_CPU_AVX2},
    {"cpu_amx", ATTN_DEVICE_CPU, 0, 0, 0, 0, 0, AMX},
};
enum { NUM_PRODUCTS = sizeof products / sizeof *products };

/* Their common names. */
static const struct {
    const char *name, *product;
} nicknames[] = {
    {"t4", "sm75"},    {"a100", "sm80"},  {"a40", "sm86"},      {"orin", "sm87"},
    {"l40s", "sm89"},  {"h100", "sm90"},  {"b200", "sm100"},    {"b300", "sm103"},
    {"thor", "sm110"}, {"gb10", "sm121"}, {"mi300x", "gfx942"}, {"mi350x", "gfx950"},
};
enum { NUM_NICKNAMES = sizeof nicknames / sizeof *nicknames };

int platform_simulate(const char *name, attn_device *device)
{
    for (size_t i = 0; i < NUM_NICKNAMES; i++)
        if (text_equal_ignoring_case(nicknames[i].name, name))
            name = nicknames[i].product;
    for (size_t i = 0; i < NUM_PRODUCTS; i++) {
        const struct product *product = &products[i];
        if (!text_equal_ignoring_case(product->name, name))
            continue;
        *device = (attn_device){.struct_size = sizeof *device,
                                .type = product->type,
                                .sm = product->sm,
                                .num_sms = product->num_sms,
                                .shared_memory = product->shared_memory_kib << 10,
                                .driver_version = product->sm ? 13000 : 0,
                                .cpu_isa = product->cpu_isa,
                                .memory_bytes = (uint64_t)product->memory_gib << 30,
                                .l2_bytes = (uint64_t)product->l2_mib << 20};
        return 0;
    }
    return -1;
}

static attn_status fail_unknown(const struct config *config, attn_error *error)
{
    const char *names[NUM_PRODUCTS + NUM_NICKNAMES], *got = config->platform.simulate;
    strbuf list;
    strbuf_init(&list);
    for (size_t i = 0; i < NUM_PRODUCTS; i++)
        names[i] = products[i].name;
    for (size_t i = 0; i < NUM_NICKNAMES; i++)
        names[NUM_PRODUCTS + i] = nicknames[i].name;
    config_append_accepted(&list, got, names, NUM_PRODUCTS + NUM_NICKNAMES, "''");
    attn_status status = config_fail(config, "platform.simulate", error, "'%.60s' is not known%s",
                                     got, strbuf_text(&list));
    strbuf_finish(&list);
    return status;
}

attn_status platform_describe(const struct config *config, attn_device *device, attn_error *error)
{
    const struct config_platform *platform = &config->platform;
    if (platform->simulate)
        return platform_simulate(platform->simulate, device) ? fail_unknown(config, error)
                                                             : ATTN_OK;
    int32_t type =
        platform->device.type == CONFIG_DEVICE_AUTO ? ATTN_DEVICE_CPU : platform->device.type;
    memset(device, 0, sizeof *device);
    device->struct_size = sizeof *device;
    attn_status status = device_describe(type, platform->device.index, device, error);
    if (status == ATTN_OK)
        return ATTN_OK;
    host_fail_suffix(error, "; accepted here: cpu; what a GPU would be given: attnhost explain "
                            "--set platform.simulate=sm90");
    return host_fail_prefix(error, "%s: platform.device", config_place(config, "platform.device"));
}

bool platform_is_foreign(const attn_device *device)
{
    return device->type != ATTN_DEVICE_CPU && device->type != ATTN_DEVICE_CUDA;
}

const char *platform_type_name(int32_t type)
{
    return type == ATTN_DEVICE_EXT_DEV  ? "npu"
           : type == ATTN_DEVICE_ONEAPI ? "xpu"
                                        : attn_device_name(type);
}

void platform_text(const attn_device *device, char *text, size_t size)
{
    if (device->sm)
        snprintf(text, size, "cuda sm%u", device->sm);
    else
        snprintf(text, size, "%s", platform_type_name(device->type));
}
