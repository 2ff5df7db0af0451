/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_stream.c: streams, events and graphs of an NVIDIA GPU.
 */
#include "host/device/cuda.h"

#include "host/base/error.h"

#include <stdlib.h>

/* ---- Streams and events ---------------------------------------------------------------------- */

static cuda_event event_of(struct device_event *event)
{
    return (cuda_event)event;
}

attn_status cuda_stream_create(const struct device *device, attn_stream *stream, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_stream made = NULL;
    cuda_result result;
    IN_CONTEXT(cuda, result, cuStreamCreate(&made, CUDA_STREAM_NON_BLOCKING));
    if (result == CUDA_SUCCESS)
        *stream = made;
    return cuda_check(cuda, result, "cuStreamCreate", error);
}

void cuda_stream_destroy(const struct device *device, attn_stream stream)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuStreamSynchronize(stream)); /* the driver itself would not wait */
    IN_CONTEXT(cuda, result, cuStreamDestroy(stream));
}

attn_status cuda_event_create(const struct device *device, int timed, struct device_event **event,
                              attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_event made = NULL;
    cuda_result result;
    IN_CONTEXT(cuda, result,
               cuEventCreate(&made, timed ? CUDA_EVENT_DEFAULT : CUDA_EVENT_DISABLE_TIMING));
    if (result == CUDA_SUCCESS)
        *event = (struct device_event *)made;
    return cuda_check(cuda, result, "cuEventCreate", error);
}

void cuda_event_destroy(const struct device *device, struct device_event *event)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuEventDestroy(event_of(event)));
}

attn_status cuda_event_record(const struct device *device, struct device_event *event,
                              attn_stream stream, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuEventRecord(event_of(event), stream));
    return cuda_check(cuda, result, "cuEventRecord", error);
}

attn_status cuda_event_query(const struct device *device, struct device_event *event, int *done,
                             attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuEventQuery(event_of(event)));
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
        *done = result == CUDA_SUCCESS;
        return ATTN_OK;
    }
    return cuda_check(cuda, result, "cuEventQuery", error);
}

attn_status cuda_event_synchronize(const struct device *device, struct device_event *event,
                                   attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuEventSynchronize(event_of(event)));
    return cuda_check(cuda, result, "cuEventSynchronize", error);
}

attn_status cuda_event_elapsed(const struct device *device, struct device_event *start,
                               struct device_event *end, double *microseconds, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    float milliseconds = 0;
    cuda_result result;
    IN_CONTEXT(cuda, result, cuEventElapsedTime(&milliseconds, event_of(start), event_of(end)));
    /* An event that was never recorded is an invalid handle to the driver. */
    if (result == CUDA_ERROR_INVALID_HANDLE)
        return host_fail(error, ATTN_BAD_STATE,
                         "cuda:%d: cuEventElapsedTime: an event is not timed or was not recorded",
                         cuda->id);
    if (result == CUDA_SUCCESS)
        *microseconds = (double)milliseconds * 1e3;
    return cuda_check(cuda, result, "cuEventElapsedTime", error);
}

attn_status cuda_stream_wait(const struct device *device, attn_stream stream,
                             struct device_event *event, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuStreamWaitEvent(stream, event_of(event), 0));
    return cuda_check(cuda, result, "cuStreamWaitEvent", error);
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

struct device_graph {
    cuda_graph graph;
    cuda_exec exec;
    size_t num_nodes;
};

/* Other threads may allocate while this one captures, as an embedding engine's do; a backend that
 * allocates or waits in forward is found out. */
attn_status cuda_capture_begin(const struct device *device, attn_stream stream, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuStreamBeginCapture(stream, CUDA_CAPTURE_THREAD_LOCAL));
    return cuda_check(cuda, result, "cuStreamBeginCapture", error);
}

void cuda_graph_destroy(const struct device *device, struct device_graph *graph)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    if (graph->exec)
        IN_CONTEXT(cuda, result, cuGraphExecDestroy(graph->exec));
    if (graph->graph)
        IN_CONTEXT(cuda, result, cuGraphDestroy(graph->graph));
    free(graph);
}

static attn_status instantiate(struct cuda *cuda, struct device_graph *graph, attn_error *error)
{
    cuda_result result;
    IN_CONTEXT(cuda, result, cuGraphGetNodes(graph->graph, NULL, &graph->num_nodes));
    if (result != CUDA_SUCCESS)
        return cuda_check(cuda, result, "cuGraphGetNodes", error);
    IN_CONTEXT(cuda, result, cuGraphInstantiate(&graph->exec, graph->graph, 0));
    return cuda_check(cuda, result, "cuGraphInstantiate", error);
}

static attn_status drop_capture(struct cuda *cuda, attn_stream stream, attn_error *error)
{
    cuda_graph captured = NULL;
    cuda_result result;
    IN_CONTEXT(cuda, result, cuStreamEndCapture(stream, &captured));
    if (result == CUDA_SUCCESS && captured)
        IN_CONTEXT(cuda, result, cuGraphDestroy(captured));
    attn_status status = cuda_status(result);
    return status == ATTN_CAPTURE_UNSUPPORTED
               ? ATTN_OK
               : cuda_check(cuda, result, "cuStreamEndCapture", error);
}

attn_status cuda_capture_end(const struct device *device, attn_stream stream,
                             struct device_graph **graph, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    if (!graph)
        return drop_capture(cuda, stream, error);
    struct device_graph *made = calloc(1, sizeof *made);
    if (!made) {
        drop_capture(cuda, stream, NULL);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "cuda:%d: no memory for a graph",
                         cuda->id);
    }
    IN_CONTEXT(cuda, result, cuStreamEndCapture(stream, &made->graph));
    attn_status status = cuda_check(cuda, result, "cuStreamEndCapture", error);
    if (status == ATTN_OK)
        status = instantiate(cuda, made, error);
    if (status != ATTN_OK)
        cuda_graph_destroy(device, made);
    else
        *graph = made;
    return status;
}

attn_status cuda_graph_launch(const struct device *device, const struct device_graph *graph,
                              attn_stream stream, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuGraphLaunch(graph->exec, stream));
    return cuda_check(cuda, result, "cuGraphLaunch", error);
}

uint64_t cuda_graph_num_nodes(const struct device_graph *graph)
{
    return graph->num_nodes;
}
