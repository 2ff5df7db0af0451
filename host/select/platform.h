/* SPDX-License-Identifier: Apache-2.0
 *
 * platform.h: the device of problems: one of this machine, or a simulated one.
 */
#ifndef HOST_SELECT_PLATFORM_H
#define HOST_SELECT_PLATFORM_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/config/config.h"

/* Describe the device that [platform] asks for: the simulated one if platform.simulate is given,
 * else the device of this machine; `auto` is the processor
 * (select_create_here() looks for a better one). CONFIG_ERROR for a platform
 * that is not in the table (with the nearest one and all), DEPENDENCY_MISSING for a device that is
 * not here. */
attn_status platform_describe(const struct config *config, attn_device *device, attn_error *error);

/* Describe a typical device of a platform, "sm90", "gfx942", "cpu_amx" ...; 0, or -1 for an unknown
 * one. */
int platform_simulate(const char *name, attn_device *device);

/* Is it one that this host cannot drive? Such are only simulated: rules show what would be chosen
 * on them, and no backend is asked. */
bool platform_is_foreign(const attn_device *device);

/* "cpu", "cuda", "rocm" ..., by the names of rules: "npu" for ext_dev, "xpu" for oneapi. */
const char *platform_type_name(int32_t type);

/* "cpu", "cuda sm90": what rules are looked up by, for people. */
void platform_text(const attn_device *device, char *text, size_t size);

#endif /* HOST_SELECT_PLATFORM_H */
