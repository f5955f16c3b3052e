// Streams, events and what is queued on them other than copies.
#include <cuda_runtime_api.h>

#include "call.h"
#include "cuda_emulator/kernel.h"

using namespace weft::cuda_emulator;

namespace {

std::shared_ptr<Event> find_event(const State& state, cudaEvent_t handle) {
  const auto found = state.events.find(handle);
  return found == state.events.end() ? nullptr : found->second;
}

// Whether the last record so far has happened. An event that was never recorded counts as if it had.
std::function<bool()> happened(const Event& event) {
  return [recording = event.last] { return recording == nullptr || recording->happened; };
}

// Something runs at each question, so that asking in a loop comes to an end, but no more than one thing. A caller that
// takes "not ready" for "ready" is found out.
cudaError_t query(State& state, const std::function<bool()>& done) {
  if (done()) return cudaSuccess;
  state.step();
  state.end_drain();
  return done() ? cudaSuccess : cudaErrorNotReady;
}

}  // namespace

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  return call("cudaStreamCreate", [&](State& state, State::Lock&) {
    if (flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    auto stream = std::make_shared<Stream>();
    stream->device = current_device();
    stream->blocking = flags != cudaStreamNonBlocking;
    stream->priority = priority;
    *handle = reinterpret_cast<cudaStream_t>(stream.get());
    state.active.push_back(stream);
    state.streams[*handle] = std::move(stream);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

extern "C" cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return call("cudaStreamGetPriority", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    *priority = stream->priority;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call("cudaStreamDestroy", [&](State& state, State::Lock&) {
    const auto found = state.streams.find(handle);
    if (found == state.streams.end()) return cudaErrorInvalidResourceHandle;
    found->second->destroyed = true;
    state.streams.erase(found);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", [&](State& state, State::Lock& lock) {
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    state.wait(lock, State::drained(stream));
    state.give_back_reserves();
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    return stream->capture ? cudaErrorStreamCaptureUnsupported : query(state, State::drained(stream));
  });
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  return call("cudaStreamWaitEvent", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    const auto event = find_event(state, event_handle);
    if (!stream || !event) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    Operation wait{"wait for an event", happened(*event), [] {}};
    state.add(*stream, {std::move(wait), 0, false, nullptr});
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return call("cudaEventCreate", [&](State& state, State::Lock&) {
    auto event = std::make_shared<Event>();
    event->timing = (flags & cudaEventDisableTiming) == 0;
    *handle = reinterpret_cast<cudaEvent_t>(event.get());
    state.events[*handle] = std::move(event);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call("cudaEventDestroy", [&](State& state, State::Lock&) {
    return state.events.erase(handle) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call("cudaEventRecord", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(stream_handle);
    const auto event = find_event(state, handle);
    if (!stream || !event) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    const auto recording = event->last = std::make_shared<Recording>();
    const auto happen = [recording] {
      recording->happened = true;
      recording->time = std::chrono::steady_clock::now();
    };
    state.add(*stream, {{"record an event", {}, happen}, 0, false, nullptr});
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", [&](State& state, State::Lock& lock) {
    const auto event = find_event(state, handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    state.wait(lock, happened(*event));
    state.give_back_reserves();
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", [&](State& state, State::Lock&) {
    const auto event = find_event(state, handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    return query(state, happened(*event));
  });
}

extern "C" cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin_handle, cudaEvent_t end_handle) {
  return call("cudaEventElapsedTime", [&](State& state, State::Lock&) {
    const auto begin = find_event(state, begin_handle), end = find_event(state, end_handle);
    if (!begin || !end || !begin->timing || !end->timing || !begin->last || !end->last)
      return cudaErrorInvalidResourceHandle;
    if (!begin->last->happened || !end->last->happened) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->last->time - begin->last->time).count();
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return call("cudaLaunchHostFunc", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (function == nullptr) return cudaErrorInvalidValue;
    state.add(*stream, {{"host function", {}, [function, data] { function(data); }}, 0, true, nullptr});
    return cudaSuccess;
  });
}

namespace weft::cuda_emulator {

cudaError_t enqueue_kernel(cudaStream_t handle, KernelLaunch launch) {
  return call("cudaLaunchKernel", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const dim3 threads = launch.threads, blocks = launch.blocks;
    const std::uint64_t count = std::uint64_t{threads.x} * threads.y * threads.z;
    if (count == 0 || count > 1024 || threads.z > 64 || blocks.x > 2147483647u || blocks.y > 65535 || blocks.z > 65535)
      return cudaErrorInvalidConfiguration;
    if (launch.shared_bytes > std::size_t{227} << 10) return cudaErrorInvalidValue;
    for (const void* pointer : launch.pointers) {
      // The kernel would fault; a launch that says so is easier to find.
      if (pointer != nullptr && !state.arena.contains(pointer) && !state.is_pinned(pointer)) {
        state.report(cudaErrorIllegalAddress, std::string("a kernel launched at ") + launch.place.file_name() + ":" +
                                                  std::to_string(launch.place.line()) +
                                                  " was given a pointer to host memory");
        return cudaErrorIllegalAddress;
      }
    }
    ++state.counters.kernels;
    auto shared = std::make_shared<KernelLaunch>(std::move(launch));
    state.add(*stream,
              {{"kernel", {}, [&state, shared] { state.processor.run(*shared, state.random()); }}, 0, false, nullptr});
    return cudaSuccess;
  });
}

}  // namespace weft::cuda_emulator
