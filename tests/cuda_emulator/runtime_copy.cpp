// Copies and fills. Both sides are checked when the host asks, as the real runtime does. A range that leaves its block
// or a direction that does not fit the pointers is an invalid argument.
#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "call.h"

using namespace weft::cuda_emulator;

namespace {

// A rectangle of bytes on either side; a plain copy has one row.
struct Copy {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::size_t destination_pitch = 0, source_pitch = 0, width = 0, height = 1;

  void run() const {
    for (std::size_t row = 0; row < height; ++row)
      std::memmove(destination + row * destination_pitch, source + row * source_pitch, width);
  }
};

std::size_t extent(std::size_t pitch, const Copy& copy) {
  return (copy.height - 1) * pitch + copy.width;
}

cudaError_t check(const State& state, const Copy& copy, cudaMemcpyKind kind) {
  const bool to_device = state.arena.contains(copy.destination), from_device = state.arena.contains(copy.source);
  if (copy.destination == nullptr || copy.source == nullptr) return cudaErrorInvalidValue;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (kind != cudaMemcpyDefault) {
    const bool says_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool says_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (says_to_device != to_device || says_from_device != from_device) return cudaErrorInvalidValue;
  }
  if (to_device && state.find_block(copy.destination, extent(copy.destination_pitch, copy)) == nullptr)
    return cudaErrorInvalidValue;
  if (from_device && state.find_block(copy.source, extent(copy.source_pitch, copy)) == nullptr)
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t queue(State& state, State::Lock& lock, Copy copy, cudaMemcpyKind kind, cudaStream_t handle) {
  const auto stream = state.find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.height > 1 && (copy.destination_pitch < copy.width || copy.source_pitch < copy.width))
    return cudaErrorInvalidValue;
  if (const cudaError_t error = check(state, copy, kind); error != cudaSuccess) return error;
  ++state.counters.copies;
  const bool to_pageable = !state.arena.contains(copy.destination) &&
                           !state.is_pinned(copy.destination, extent(copy.destination_pitch, copy));
  const bool from_pageable =
      !state.arena.contains(copy.source) && !state.is_pinned(copy.source, extent(copy.source_pitch, copy));
  state.counters.pageable_copies += to_pageable || from_pageable;
  Operation operation{"copy", {}, [copy] { copy.run(); }};
  if (from_pageable) {
    // The source is read before the call returns.
    auto staged = std::make_shared<std::vector<std::byte>>(copy.source, copy.source + extent(copy.source_pitch, copy));
    operation.run = [copy, staged]() mutable {
      copy.source = staged->data();
      copy.run();
    };
  }
  state.add(*stream, {std::move(operation), 0, false, nullptr});
  // The call returns only when the bytes are there.
  if (to_pageable) state.wait(lock, State::drained(stream));
  return cudaSuccess;
}

Copy plain(void* destination, const void* source, std::size_t bytes) {
  return {static_cast<std::byte*>(destination), static_cast<const std::byte*>(source), 0, 0, bytes, 1};
}

}  // namespace

extern "C" cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                                       cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](State& state, State::Lock& lock) {
    return queue(state, lock, plain(destination, source, bytes), kind, stream);
  });
}

extern "C" cudaError_t cudaMemcpy(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&](State& state, State::Lock& lock) {
    const cudaError_t error = queue(state, lock, plain(destination, source, bytes), kind, nullptr);
    if (error == cudaSuccess) state.wait(lock, State::drained(state.find_stream(nullptr)));
    return error;
  });
}

extern "C" cudaError_t cudaMemcpy2DAsync(void* destination, std::size_t destination_pitch, const void* source,
                                         std::size_t source_pitch, std::size_t width, std::size_t height,
                                         cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpy2DAsync", [&](State& state, State::Lock& lock) {
    const Copy copy{static_cast<std::byte*>(destination),
                    static_cast<const std::byte*>(source),
                    destination_pitch,
                    source_pitch,
                    width,
                    height};
    return queue(state, lock, copy, kind, stream);
  });
}

extern "C" cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t handle) {
  return call("cudaMemsetAsync", [&](State& state, State::Lock&) {
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (state.find_block(address, bytes) == nullptr) return cudaErrorInvalidValue;
    state.add(*stream, {{"fill", {}, [=] { std::memset(address, value, bytes); }}, 0, false, nullptr});
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
  return cudaMemsetAsync(address, value, bytes, nullptr);
}
