/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_api.c: the plugins' declarations of the CUDA driver API are those of cuda.h. It is compiled
 * by cuda_driver.sh, never run.
 *
 * A handle is a void pointer there, so that no other header need be included; for the comparison
 * of the calls the names of the handles stand for cuda.h's.
 */
#include <cuda.h>

#include "plugins/common/cuda/cuda_api.h"

#include <stddef.h>

#define SAME_CONSTANT(name, theirs, value) _Static_assert((int)(theirs) == (value), #theirs);
CUDA_API_CONSTANTS(SAME_CONSTANT)

#define SAME_TYPE(ours, theirs)                                                                    \
    _Static_assert(sizeof(ours) == sizeof(theirs) && _Alignof(ours) >= _Alignof(theirs), #theirs);
SAME_TYPE(cuda_context, CUcontext)
SAME_TYPE(cuda_module, CUmodule)
SAME_TYPE(cuda_function, CUfunction)
SAME_TYPE(cuda_stream, CUstream)
SAME_TYPE(cuda_event, CUevent)
SAME_TYPE(cuda_graph, CUgraph)
SAME_TYPE(cuda_graph_exec, CUgraphExec)
SAME_TYPE(cuda_address, CUdeviceptr)
SAME_TYPE(cuda_launch_attribute, CUlaunchAttribute)
SAME_TYPE(cuda_launch_config, CUlaunchConfig)
SAME_TYPE(cuda_tensor_map, CUtensorMap)

#define SAME_PLACE(ours, our_member, theirs, their_member)                                         \
    _Static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member), #their_member);
SAME_PLACE(cuda_launch_attribute, id, CUlaunchAttribute, id)
SAME_PLACE(cuda_launch_attribute, value, CUlaunchAttribute, value)
SAME_PLACE(cuda_launch_attribute, value.cooperative, CUlaunchAttribute, value.cooperative)
SAME_PLACE(cuda_launch_attribute, value.cluster.z, CUlaunchAttribute, value.clusterDim.z)
SAME_PLACE(cuda_launch_attribute, value.programmatic, CUlaunchAttribute,
           value.programmaticStreamSerializationAllowed)
SAME_PLACE(cuda_launch_config, grid_z, CUlaunchConfig, gridDimZ)
SAME_PLACE(cuda_launch_config, block_x, CUlaunchConfig, blockDimX)
SAME_PLACE(cuda_launch_config, shared, CUlaunchConfig, sharedMemBytes)
SAME_PLACE(cuda_launch_config, stream, CUlaunchConfig, hStream)
SAME_PLACE(cuda_launch_config, attributes, CUlaunchConfig, attrs)
SAME_PLACE(cuda_launch_config, num_attributes, CUlaunchConfig, numAttrs)

/* The calls by their symbols: an assignment between function pointers of different types does not
 * compile. Results are enumerations there and integers here. */
#define cuda_context       CUcontext
#define cuda_module        CUmodule
#define cuda_function      CUfunction
#define cuda_stream        CUstream
#define cuda_event         CUevent
#define cuda_graph         CUgraph
#define cuda_graph_exec    CUgraphExec
#define cuda_address       CUdeviceptr
#define cuda_launch_config CUlaunchConfig
#define cuda_tensor_map    CUtensorMap
#define uint64_t           cuuint64_t
#define SAME_CALL(result, name, parameters)                                                        \
    __typeof__(cuInit(0))(*const same_##name) parameters = name;
CUDA_API_CORE(SAME_CALL)
CUDA_API_MORE(SAME_CALL)
