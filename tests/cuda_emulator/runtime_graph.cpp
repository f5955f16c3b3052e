// CUDA graphs of what one stream captured. Streams refuse more of a capture than the real ones do: events, allocations
// and communication.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "call.h"

using namespace weft::cuda_emulator;

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  return call("cudaStreamBeginCapture", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (handle == nullptr || handle == cudaStreamLegacy || stream->capture) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_shared<Graph>();
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", [&](State& state, State::Lock&) {
    *graph = nullptr;
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!stream->capture) return cudaErrorIllegalState;
    *graph = reinterpret_cast<cudaGraph_t>(stream->capture.get());
    state.graphs[*graph] = std::move(stream->capture);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", [&](State& state, State::Lock&) {
    return state.graphs.erase(graph) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  });
}

extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", [&](State& state, State::Lock&) {
    const auto found = state.graphs.find(graph);
    if (found == state.graphs.end()) return cudaErrorInvalidValue;
    auto copy = std::make_shared<Graph>(*found->second);
    *executable = reinterpret_cast<cudaGraphExec_t>(copy.get());
    state.executables[*executable] = std::move(copy);
    ++state.counters.graphs;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                           cudaGraphExecUpdateResultInfo* result) {
  return call("cudaGraphExecUpdate", [&](State& state, State::Lock&) {
    const auto present = state.executables.find(executable);
    const auto other = state.graphs.find(graph);
    if (present == state.executables.end() || other == state.graphs.end()) return cudaErrorInvalidValue;
    const auto alike = [](const QueuedOperation& left, const QueuedOperation& right) {
      return left.operation.name == right.operation.name;
    };
    const bool same = std::ranges::equal(present->second->operations, other->second->operations, alike);
    result->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    if (!same) return cudaErrorGraphExecUpdateFailure;
    present->second->operations = other->second->operations;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return call("cudaGraphLaunch", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    const auto found = state.executables.find(executable);
    if (!stream || found == state.executables.end()) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    ++state.counters.graph_launches;
    for (const QueuedOperation& operation : found->second->operations) state.add(*stream, operation);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call("cudaGraphExecDestroy", [&](State& state, State::Lock&) {
    return state.executables.erase(executable) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  });
}
