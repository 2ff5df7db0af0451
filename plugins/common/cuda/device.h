/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h: the device of an instance: that of the context current in create.
 */
#ifndef PLUGINS_CUDA_DEVICE_H
#define PLUGINS_CUDA_DEVICE_H

#include "attn_plugin.h"
#include "plugins/common/cuda/cuda_api.h"

/* First step of create: checks arguments and problems that `type` supports, opens the driver. */
attn_status cuda_create_begin(const attn_backend_type *type, const attn_problem *problems,
                              uint32_t num_problems, const attn_options *options,
                              const attn_services *services, attn_instance *const *instance,
                              const cuda_api **cuda, attn_error *error);

typedef struct cuda_facts {
    int ordinal;
    uint32_t sm;            /* 10 * major + minor of the compute capability */
    uint32_t num_sms;       /* multiprocessors */
    uint32_t shared_memory; /* bytes one block may opt in to */
} cuda_facts;

/* Queries the current device, and compares it with the problem's. BAD_STATE without a current
 * context; DEPENDENCY_MISSING if its architecture differs; otherwise a failure of the driver. */
attn_status cuda_facts_find(const cuda_api *cuda, const attn_device *asked, cuda_facts *facts,
                            attn_error *error);

#endif /* PLUGINS_CUDA_DEVICE_H */
