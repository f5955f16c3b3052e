// Sums and maxima over the same elements of several arrays: n s (inputs + outputs) bytes for n elements of s bytes.
#include <algorithm>
#include <type_traits>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/element_type.h"

namespace weft::cuda {
namespace {

constexpr std::size_t most_arrays = 64;

// The type in which elements of type T are combined. Sums of int32 are unsigned, so that they wrap around.
template <typename T, typename Combine>
using Accumulator = std::conditional_t<
    std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>, float,
    std::conditional_t<std::is_same_v<T, std::int32_t> && std::is_same_v<Combine, AddTo>, std::uint32_t, T>>;

template <typename A, typename T>
__device__ A widened(T value) {
  if constexpr (std::is_same_v<A, float>) {
    return to_float(value);
  } else {
    return static_cast<A>(value);
  }
}
template <typename T, typename A>
__device__ T narrowed(A value) {
  if constexpr (std::is_same_v<A, float>) {
    return from_float<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

// Passed by value, because only the host knows the pointers.
template <typename T>
struct Arrays {
  const T* inputs[most_arrays];
  T* outputs[most_arrays];
  int input_count, output_count;
};

template <typename T, typename A, typename Combine, int N>
__device__ void reduce_at(const Arrays<T>& arrays, std::int64_t at) {
  A partial[N];
  Vector<T, N> loaded = load_vector<N>(arrays.inputs[0] + at);
#pragma unroll
  for (int i = 0; i < N; ++i) partial[i] = widened<A>(loaded[i]);
#pragma unroll 4
  for (int rank = 1; rank < arrays.input_count; ++rank) {
    loaded = load_vector<N>(arrays.inputs[rank] + at);
#pragma unroll
    for (int i = 0; i < N; ++i) partial[i] = Combine()(partial[i], widened<A>(loaded[i]));
  }
#pragma unroll
  for (int i = 0; i < N; ++i) loaded[i] = narrowed<T>(partial[i]);
  for (int rank = 0; rank < arrays.output_count; ++rank) store_vector(arrays.outputs[rank] + at, loaded);
}

// The thread that writes an element has read it from every input, so an output may be one of the inputs.
template <typename T, typename A, typename Combine>
__global__ void __launch_bounds__(extent_threads, 4)
    reduce_kernel(const __grid_constant__ Arrays<T> arrays, const Extent extent) {
  constexpr int width = common_width<T>;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * extent_threads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * extent_threads + threadIdx.x;
  for (std::int64_t vector = thread; vector < extent.vectors; vector += threads) {
    reduce_at<T, A, Combine, width>(arrays, extent.head + vector * width);
  }
  const std::int64_t in_vectors = extent.vectors * width;
  for (std::int64_t i = thread; i < extent.count - in_vectors; i += threads) {
    reduce_at<T, A, Combine, 1>(arrays, i < extent.head ? i : i + in_vectors);
  }
}

template <typename Element, typename Combine>
void reduce_arrays(cudaStream_t stream, std::span<const std::byte* const> inputs, std::int64_t begin,
                   std::int64_t count, std::span<std::byte* const> outputs) {
  using T = typename DeviceElement<Element>::type;
  using A = Accumulator<T, Combine>;
  constexpr int width = common_width<T>;
  Arrays<T> arrays{};
  Extent extent = extent_of(count, width, reinterpret_cast<const T*>(inputs.front()) + begin);
  // All arrays are accessed in vectors, or none.
  const auto noted = [&](auto* array) {
    if (elements_before_vector(array, width) != extent.head) extent = {count, 0, 0};
    return array;
  };
  for (const std::byte* input : inputs) {
    arrays.inputs[arrays.input_count++] = noted(reinterpret_cast<const T*>(input) + begin);
  }
  for (std::byte* output : outputs) arrays.outputs[arrays.output_count++] = noted(reinterpret_cast<T*>(output));
  const std::int64_t steps = std::max(extent.vectors, count - extent.vectors * width);
  launch(stream, blocks_for(steps, extent_threads), extent_threads, 0, reduce_kernel<T, A, Combine>, arrays, extent);
}

template <typename Combine>
void reduce_any(cudaStream_t stream, DType dtype, std::span<const std::byte* const> inputs, std::int64_t begin,
                std::int64_t count, std::span<std::byte* const> outputs) {
  with_stored_type(dtype, "reduced", [&](auto element) {
    reduce_arrays<decltype(element), Combine>(stream, inputs, begin, count, outputs);
  });
}

}  // namespace

void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs) {
  require(inputs.size() <= most_arrays && outputs.size() <= most_arrays, "a reduction takes 64 arrays at most");
  switch (reduce) {
    case Reduce::sum:
      return reduce_any<AddTo>(native(stream), dtype, inputs, begin, count, outputs);
    case Reduce::max:
      return reduce_any<LargerOf>(native(stream), dtype, inputs, begin, count, outputs);
  }
}

}  // namespace weft::cuda
