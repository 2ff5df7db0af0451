/* SPDX-License-Identifier: Apache-2.0
 *
 * platform.h: which device problems are posed for: one of this machine, or a simulated one.
 */
#ifndef HOST_PLATFORM_H
#define HOST_PLATFORM_H

#include "attn_plugin.h"
#include "host/config.h"

/* Describe the device that [platform] asks for: the simulated one if platform.simulate is given,
 * else the device of this machine; `auto` is the processor. CONFIG_ERROR for a compute capability
 * that is not in the table (it lists them), DEPENDENCY_MISSING for a device that is not here. */
attn_status platform_describe(const struct config *config, attn_device *device, attn_error *error);

/* Describe a typical device of compute capability `sm` (90 = 9.0); 0, or -1 for an unknown one. */
int platform_simulate(uint32_t sm, attn_device *device);

/* "cpu", "cuda sm90": what rules are looked up by, for people. */
void platform_text(const attn_device *device, char *text, size_t size);

#endif /* HOST_PLATFORM_H */
