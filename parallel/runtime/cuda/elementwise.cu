// Element-wise work at memory bandwidth. With n elements of s bytes, the bytes moved are
//   cast n (s + s'), add n (s + 2 s'), divide_by_root 8 n, combine 3 n s, fill n s, copy_columns 2 n s.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/element_type.h"

namespace weft::cuda {
namespace {

// An Operation has a vector `width`, a type Loaded and three functions. load(at) reads the vector at element `at`,
// store(at, loaded) writes that vector, and one(at) does both for a single element. Only the thread that writes an
// element reads that element, so source and destination may be the same tensor.
template <typename Operation>
__global__ void __launch_bounds__(extent_threads, 4) apply_kernel(const Operation operation, const Extent extent) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * extent_threads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * extent_threads + threadIdx.x;
  const auto place = [&](std::int64_t vector) { return extent.head + vector * Operation::width; };
  for (std::int64_t first = thread; first < extent.vectors; first += vectors_in_flight * threads) {
    typename Operation::Loaded loaded[vectors_in_flight];
#pragma unroll
    for (int i = 0; i < vectors_in_flight; ++i) {
      // Past the end, load the first vector again, so that no load waits for a condition.
      const std::int64_t vector = first + i * threads;
      loaded[i] = operation.load(place(vector < extent.vectors ? vector : first));
    }
#pragma unroll
    for (int i = 0; i < vectors_in_flight; ++i) {
      const std::int64_t vector = first + i * threads;
      if (vector < extent.vectors) operation.store(place(vector), loaded[i]);
    }
  }
  const std::int64_t in_vectors = extent.vectors * Operation::width;
  for (std::int64_t i = thread; i < extent.count - in_vectors; i += threads) {
    operation.one(i < extent.head ? i : i + in_vectors);
  }
}

template <typename Operation>
void apply(cudaStream_t stream, const Operation& operation, const Extent& extent) {
  const std::int64_t alone = extent.count - extent.vectors * Operation::width;
  launch(stream, blocks_for(std::max(extent.vectors, alone), extent_threads * vectors_in_flight), extent_threads, 0,
         apply_kernel<Operation>, operation, extent);
}

template <typename From, typename To>
struct Cast {
  static constexpr int width = common_width<From, To>;
  using Loaded = Vector<From, width>;
  const From* from;
  To* to;

  __device__ Loaded load(std::int64_t at) const { return load_vector<width>(from + at); }
  __device__ void store(std::int64_t at, const Loaded& loaded) const {
    Vector<To, width> result;
#pragma unroll
    for (int i = 0; i < width; ++i) result[i] = from_float<To>(to_float(loaded[i]));
    store_vector(to + at, result);
  }
  __device__ void one(std::int64_t at) const {
    to[at] = from_float<To>(to_float(from[at]));
  }
};

// function(source, destination) is the new destination.
template <typename From, typename To, typename Function>
struct Update {
  static constexpr int width = common_width<From, To>;
  struct Loaded {
    Vector<From, width> source;
    Vector<To, width> result;
  };
  const From* from;
  To* to;
  Function function;

  __device__ Loaded load(std::int64_t at) const { return {load_vector<width>(from + at), load_vector<width>(to + at)}; }
  __device__ void store(std::int64_t at, Loaded& loaded) const {
#pragma unroll
    for (int i = 0; i < width; ++i) loaded.result[i] = function(loaded.source[i], loaded.result[i]);
    store_vector(to + at, loaded.result);
  }
  __device__ void one(std::int64_t at) const {
    to[at] = function(from[at], to[at]);
  }
};
struct Added {
  template <typename From, typename To>
  __device__ To operator()(From source, To destination) const {
    return from_float<To>(to_float(destination) + to_float(source));
  }
};
// Rounded as on the CPU.
struct Combined {
  float factor, destination_factor;
  template <typename T>
  __device__ T operator()(T source, T destination) const {
    return from_float<T>(fmaf(factor, to_float(source), __fmul_rn(destination_factor, to_float(destination))));
  }
};

struct DivideByRoot {
  static constexpr int width = 4;
  using Loaded = Vector<float>;
  const double* square_sum;
  float* data;

  __device__ double factor() const { return *square_sum == 0.0 ? 0.0 : 1.0 / sqrt(*square_sum); }
  __device__ Loaded load(std::int64_t at) const { return load_vector(data + at); }
  __device__ void store(std::int64_t at, Loaded& loaded) const {
    const double by = factor();
#pragma unroll
    for (int i = 0; i < width; ++i) loaded[i] = static_cast<float>(loaded[i] * by);
    store_vector(data + at, loaded);
  }
  __device__ void one(std::int64_t at) const {
    data[at] = static_cast<float>(data[at] * factor());
  }
};

template <typename T>
struct Fill {
  static constexpr int width = common_width<T>;
  struct Loaded {};
  T* data;
  T value;

  __device__ Loaded load(std::int64_t) const { return {}; }
  __device__ void store(std::int64_t at, const Loaded&) const {
    Vector<T> result;
#pragma unroll
    for (int i = 0; i < width; ++i) result[i] = value;
    store_vector(data + at, result);
  }
  __device__ void one(std::int64_t at) const {
    data[at] = value;
  }
};

void cast(Stream& stream, ConstTensorView source, TensorView destination) {
  with_elements(source.dtype(), [&]<typename E, typename From>() {
    with_elements(destination.dtype(), [&]<typename F, typename To>() {
      const Cast<From, To> operation{elements<E>(source), elements<F>(destination)};
      apply(native(stream), operation, extent_of(source.size(), operation.width, operation.from, operation.to));
    });
  });
}

template <typename E, typename F, typename Function>
void update(Stream& stream, ConstTensorView source, TensorView destination, const Function& function) {
  const Update<typename DeviceElement<E>::type, typename DeviceElement<F>::type, Function> operation{
      elements<E>(source), elements<F>(destination), function};
  apply(native(stream), operation, extent_of(source.size(), operation.width, operation.from, operation.to));
}

void add(Stream& stream, ConstTensorView source, TensorView destination) {
  with_element_type(source.dtype(), [&](auto element) {
    using E = decltype(element);
    if (destination.dtype() == DType::float32) {
      update<E, float>(stream, source, destination, Added());
    } else {
      update<E, E>(stream, source, destination, Added());
    }
  });
}

void combine(Stream& stream, float factor, ConstTensorView source, float destination_factor, TensorView destination) {
  const Combined combined{factor, destination_factor};
  if (source.dtype() == DType::bfloat16) {
    update<bfloat16, bfloat16>(stream, source, destination, combined);
  } else {
    update<float, float>(stream, source, destination, combined);
  }
}

void divide_by_root(Stream& stream, ConstTensorView square_sum, TensorView destination) {
  float* data = elements<float>(destination);
  apply(native(stream), DivideByRoot{elements<double>(square_sum), data}, extent_of(destination.size(), 4, data));
}

void fill(Stream& stream, TensorView destination, float value) {
  with_stored_type(destination.dtype(), "filled", [&](auto element) {
    auto* data = elements<decltype(element)>(destination);
    using T = std::remove_pointer_t<decltype(data)>;
    apply(native(stream), Fill<T>{data, static_cast<T>(value)}, extent_of(destination.size(), Fill<T>::width, data));
  });
}

// Copies a rectangle of words. `from_step` and `to_step` are the distances between rows, in words.
template <typename Word>
__global__ void copy_rows_kernel(const Word* from, std::int64_t from_step, Word* to, std::int64_t to_step,
                                 std::int64_t rows, std::int64_t words) {
  for_row_items(rows, words,
                [=](std::int64_t row, std::int64_t word) { to[row * to_step + word] = from[row * from_step + word]; });
}

void copy_columns(Stream& stream, ConstTensorView source, std::int64_t source_column, TensorView destination,
                  std::int64_t destination_column, std::int64_t columns) {
  const std::int64_t size = size_of(source.dtype()), bytes = columns * size;
  const std::int64_t from_step = source.columns() * size, to_step = destination.columns() * size;
  const std::byte* from = source.data() + source_column * size;
  std::byte* to = destination.data() + destination_column * size;
  const auto queue = [&](auto word) {
    using Word = decltype(word);
    constexpr std::int64_t width = sizeof(Word);
    const RowGrid grid = row_grid(source.rows(), bytes / width);
    launch(native(stream), grid.blocks, grid.threads, 0, copy_rows_kernel<Word>, reinterpret_cast<const Word*>(from),
           from_step / width, reinterpret_cast<Word*>(to), to_step / width, source.rows(), bytes / width);
  };
  const std::uintptr_t all = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                             static_cast<std::uintptr_t>(from_step | to_step | bytes);
  if (all % sizeof(uint4) == 0) return queue(uint4());
  if (all % sizeof(uint2) == 0) return queue(uint2());
  if (all % sizeof(std::uint32_t) == 0) return queue(std::uint32_t());
  queue(std::uint16_t());
}

}  // namespace

const ElementwiseKernels elementwise_kernels = {
    cast, add, combine, divide_by_root, fill, square_sum, count_nonfinite, copy_columns, reduce_elements};

}  // namespace weft::cuda
