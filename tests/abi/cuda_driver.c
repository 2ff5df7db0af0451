/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_driver.c: the host's declarations of the CUDA driver API are those of cuda.h. It is compiled
 * by cuda_driver.sh, never run.
 *
 * Handles have the same struct tags in both and an enumeration without negative values is an
 * unsigned int, so the calls can be compared as they stand.
 */
#include <cuda.h>

#include "host/device/cuda_driver.h"

#define SAME_RESULT(name, value, status) _Static_assert(CUDA_##name == (value), #name);
CUDA_RESULT_MAP(SAME_RESULT)

#define SAME_CONSTANT(name, theirs, value) _Static_assert((theirs) == (value), #theirs);
CUDA_CONSTANT_MAP(SAME_CONSTANT)

#define SAME_TYPE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs);
SAME_TYPE(cuda_result, CUresult)
SAME_TYPE(cuda_device, CUdevice)
SAME_TYPE(cuda_pointer, CUdeviceptr)
SAME_TYPE(cuda_launch_attribute, CUlaunchAttribute)
SAME_TYPE(cuda_launch_config, CUlaunchConfig)

#define SAME_PLACE(ours, our_member, theirs, their_member)                                         \
    _Static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member), #their_member);
SAME_PLACE(cuda_launch_attribute, id, CUlaunchAttribute, id)
SAME_PLACE(cuda_launch_attribute, value, CUlaunchAttribute, value)
SAME_PLACE(cuda_launch_attribute, value.cooperative, CUlaunchAttribute, value.cooperative)
SAME_PLACE(cuda_launch_attribute, value.cluster.y, CUlaunchAttribute, value.clusterDim.y)
SAME_PLACE(cuda_launch_attribute, value.programmatic_serialization, CUlaunchAttribute,
           value.programmaticStreamSerializationAllowed)
SAME_PLACE(cuda_launch_config, grid_z, CUlaunchConfig, gridDimZ)
SAME_PLACE(cuda_launch_config, block_x, CUlaunchConfig, blockDimX)
SAME_PLACE(cuda_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes)
SAME_PLACE(cuda_launch_config, stream, CUlaunchConfig, hStream)
SAME_PLACE(cuda_launch_config, attributes, CUlaunchConfig, attrs)
SAME_PLACE(cuda_launch_config, num_attributes, CUlaunchConfig, numAttrs)

/* The calls, by the names that cuda.h gives the symbols: an assignment between function pointers of
 * different types does not compile. The launch's struct has one name in each header. */
#define cuda_launch_config                  CUlaunchConfig
#define SAME_CALL(name, symbol, parameters) cuda_result(*const same_##symbol) parameters = name;
CUDA_DRIVER_CALLS(SAME_CALL)

/* And each symbol is the one that the plain name stands for, but for one whose second version, of
 * CUDA 12.8, has the same parameters: the host takes the one that older drivers have, too. */
#undef cuEventElapsedTime
#define TEXT(name)  #name
#define VALUE(name) TEXT(name)
#define SAME_SYMBOL(name, symbol, parameters)                                                      \
    _Static_assert(__builtin_strcmp(VALUE(name), #symbol) == 0, #symbol);
CUDA_DRIVER_CALLS(SAME_SYMBOL)
