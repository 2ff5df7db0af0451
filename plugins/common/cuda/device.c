/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: the current context's device, checked against the problem's.
 */
#include "plugins/common/cuda/device.h"
#include "attn_plugin_util.h"

attn_status cuda_create_begin(const attn_backend_type *type, const attn_problem *problems,
                              uint32_t num_problems, const attn_options *options,
                              const attn_services *services, attn_instance *const *instance,
                              const cuda_api **cuda, attn_error *error)
{
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        status = attn_util_require_support(type, options, services, attn_at(problems, i), error);
    return status == ATTN_OK ? cuda_api_get(cuda, error) : status;
}

attn_status cuda_facts_find(const cuda_api *cuda, const attn_device *asked, cuda_facts *facts,
                            attn_error *error)
{
    cuda_context context = NULL;
    int device = 0, major = 0, minor = 0, sms = 0, shared = 0;
    int result = cuda->cuCtxGetCurrent(&context);
    if (result == CUDA_OK && !context)
        return attn_util_fail(error, ATTN_BAD_STATE, "no CUDA context is current");
    if (result == CUDA_OK)
        result = cuda->cuCtxGetDevice(&device);
    if (result == CUDA_OK)
        result = cuda->cuDeviceGetAttribute(&major, CUDA_DEVICE_MAJOR, device);
    if (result == CUDA_OK)
        result = cuda->cuDeviceGetAttribute(&minor, CUDA_DEVICE_MINOR, device);
    if (result == CUDA_OK)
        result = cuda->cuDeviceGetAttribute(&sms, CUDA_DEVICE_MULTIPROCESSORS, device);
    if (result == CUDA_OK)
        result = cuda->cuDeviceGetAttribute(&shared, CUDA_DEVICE_SHARED_MEMORY_OPTIN, device);
    if (result != CUDA_OK)
        return cuda_fail(cuda, result, "device", "asking it", error);
    *facts = (cuda_facts){device, (uint32_t)(major * 10 + minor), (uint32_t)sms, (uint32_t)shared};
    if (facts->sm != asked->sm)
        return attn_util_fail_field(error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_DEVICE_SM,
                                    "the current device is sm_%u, the problem is for sm_%u",
                                    facts->sm, asked->sm);
    return ATTN_OK;
}
