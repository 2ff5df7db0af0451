/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c: functions of a module, and their launches.
 */
#include "plugins/common/cuda/launch.h"
#include "attn_plugin_util.h"

#include <inttypes.h>

/* ---- Functions ------------------------------------------------------------------------------- */

static int opt_in(const cuda_api *cuda, cuda_function function, const cuda_wants *wants)
{
    const int carveout = wants->carveout > 0 ? wants->carveout : wants->shared > 0 ? 100 : 0;
    int result = CUDA_OK;
    if (wants->shared > 0)
        result = cuda->cuFuncSetAttribute(function, CUDA_FUNCTION_MAX_DYNAMIC_SHARED,
                                          (int)wants->shared);
    if (result == CUDA_OK && carveout > 0)
        result = cuda->cuFuncSetAttribute(function, CUDA_FUNCTION_SHARED_CARVEOUT, carveout);
    if (result == CUDA_OK && wants->large_clusters)
        result = cuda->cuFuncSetAttribute(function, CUDA_FUNCTION_LARGE_CLUSTERS, 1);
    return result;
}

attn_status cuda_function_find(const cuda_api *cuda, const cuda_facts *facts, cuda_module module,
                               const char *name, const cuda_wants *wants, cuda_function *function,
                               attn_error *error)
{
    cuda_function found = NULL;
    if (wants->shared > facts->shared_memory)
        return attn_util_fail_field(
            error, ATTN_UNSUPPORTED, ATTN_FIELD_DEVICE_SHARED_MEMORY,
            "kernel %s: %u bytes of shared memory: accepted up to %u on this "
            "device, sm_%u",
            name, wants->shared, facts->shared_memory, facts->sm);
    int result = cuda->cuModuleGetFunction(&found, module, name);
    if (result == CUDA_OK)
        result = opt_in(cuda, found, wants);
    if (result != CUDA_OK)
        return cuda_fail(cuda, result, "kernels", name, error);
    *function = found;
    return ATTN_OK;
}

/* ---- Launches -------------------------------------------------------------------------------- */

static attn_status check(const cuda_launch *launch, attn_error *error)
{
    static const int64_t most[3] = {INT32_MAX, 65535, 65535};
    for (int i = 0; i < 3; i++) {
        if (launch->grid[i] < 0 || launch->grid[i] > most[i])
            return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                                  "launch of %s: grid[%d] is %" PRId64 ": accepted 0..%" PRId64,
                                  launch->name, i, launch->grid[i], most[i]);
        if (launch->cluster[i] > 0 && launch->grid[i] % launch->cluster[i] != 0)
            return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                                  "launch of %s: grid[%d] is %" PRId64
                                  ": accepted multiples of its cluster's, %u",
                                  launch->name, i, launch->grid[i], launch->cluster[i]);
    }
    return ATTN_OK;
}

static unsigned or_one(uint32_t extent)
{
    return extent ? extent : 1;
}

/* Lists the launch's attributes; returns their number. */
static unsigned list_attributes(const cuda_launch *launch, cuda_launch_attribute to[3])
{
    unsigned count = 0;
    const uint32_t *cluster = launch->cluster;
    if (cluster[0] | cluster[1] | cluster[2]) {
        to[count] = (cuda_launch_attribute){.id = CUDA_LAUNCH_CLUSTER};
        to[count].value.cluster.x = or_one(cluster[0]);
        to[count].value.cluster.y = or_one(cluster[1]);
        to[count++].value.cluster.z = or_one(cluster[2]);
    }
    if (launch->cooperative) {
        to[count] = (cuda_launch_attribute){.id = CUDA_LAUNCH_COOPERATIVE};
        to[count++].value.cooperative = 1;
    }
    if (launch->programmatic) {
        to[count] = (cuda_launch_attribute){.id = CUDA_LAUNCH_PROGRAMMATIC};
        to[count++].value.programmatic = 1;
    }
    return count;
}

static int enqueue(const cuda_api *cuda, const cuda_launch_config *config, cuda_function function,
                   void **params)
{
    if (config->num_attributes > 0)
        return cuda->cuLaunchKernelEx(config, function, params, NULL);
    return cuda->cuLaunchKernel(function, config->grid_x, config->grid_y, config->grid_z,
                                config->block_x, config->block_y, config->block_z, config->shared,
                                config->stream, params, NULL);
}

attn_status cuda_launch_run(const cuda_api *cuda, const cuda_launch *launch, void **params,
                            cuda_stream stream, attn_error *error)
{
    cuda_launch_attribute attributes[3];
    attn_status status = check(launch, error);
    if (status != ATTN_OK || !launch->grid[0] || !launch->grid[1] || !launch->grid[2])
        return status;
    cuda_launch_config config = {.grid_x = (unsigned)launch->grid[0],
                                 .grid_y = (unsigned)launch->grid[1],
                                 .grid_z = (unsigned)launch->grid[2],
                                 .block_x = or_one(launch->block[0]),
                                 .block_y = or_one(launch->block[1]),
                                 .block_z = or_one(launch->block[2]),
                                 .shared = launch->shared,
                                 .stream = stream,
                                 .attributes = attributes,
                                 .num_attributes = list_attributes(launch, attributes)};
    if (!cuda->cuLaunchKernelEx) {
        if (config.num_attributes > (launch->programmatic ? 1u : 0u))
            return attn_util_fail_field(
                error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_DEVICE_DRIVER,
                "launch of %s: this driver has no cuLaunchKernelEx: accepted one of "
                "CUDA 11.8 and later",
                launch->name);
        config.num_attributes = 0;
    }
    int result = enqueue(cuda, &config, launch->function, params);
    return result == CUDA_OK ? ATTN_OK : cuda_fail(cuda, result, "launch", launch->name, error);
}
