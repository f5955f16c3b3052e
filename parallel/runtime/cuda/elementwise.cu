// Element-wise work at memory bandwidth. With n elements of s bytes, the bytes moved are
//   cast n (s + s'), add n (s + 2 s'), scale 8 n, fill n s, square_sum and count_nonfinite 4 n, copy_columns 2 n s,
//   reduce_elements n s (inputs + outputs).
#include <cuda_runtime.h>

#include <algorithm>

#include "parallel/runtime/cuda/check.h"
#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/row_grid.cuh"
#include "parallel/runtime/cuda/stream.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int block_threads = 256;
// Vectors that a thread loads before it stores the first of them.
constexpr int vectors_in_flight = 4;

// An operation on `count` elements: `vectors` vectors from element `head` on, what is left one by one.
struct Extent {
  std::int64_t count, head, vectors;
};

// An operation has a vector `width`, a type Loaded, load(at) that reads the vector at element `at`, store(at, loaded)
// that writes it, and one(at) that does both for a single element. What it writes it read itself, if at all, so source
// and destination may be one.
template <typename Operation>
__global__ void __launch_bounds__(block_threads, 4) apply_kernel(const Operation operation, const Extent extent) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * block_threads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  const auto place = [&](std::int64_t vector) { return extent.head + vector * Operation::width; };
  for (std::int64_t first = thread; first < extent.vectors; first += vectors_in_flight * threads) {
    typename Operation::Loaded loaded[vectors_in_flight];
#pragma unroll
    for (int i = 0; i < vectors_in_flight; ++i) {
      // Past the end, the first again, so that no load waits for a condition.
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

// How many elements stand before the first one that begins a vector.
template <typename T>
std::int64_t elements_before_vector(const T* data, int width) {
  const std::uintptr_t bytes = width * sizeof(T), past = reinterpret_cast<std::uintptr_t>(data) % bytes;
  if (past % sizeof(T) != 0) return -1;
  return static_cast<std::int64_t>((bytes - past) % bytes / sizeof(T));
}

// In vectors where all arrays reach a vector boundary at the same element.
template <typename... T>
Extent extent_of(std::int64_t count, int width, const T*... arrays) {
  const std::int64_t heads[] = {elements_before_vector(arrays, width)...};
  const std::int64_t head = heads[0];
  for (std::int64_t other : heads) {
    if (other != head || head < 0 || head > count) return {count, 0, 0};
  }
  return {count, head, (count - head) / width};
}

template <typename Operation>
void apply(cudaStream_t stream, const Operation& operation, const Extent& extent) {
  const std::int64_t alone = extent.count - extent.vectors * Operation::width;
  const std::int64_t steps = std::max(extent.vectors, alone), of_block = block_threads * vectors_in_flight;
  const std::int64_t blocks = std::min<std::int64_t>((steps + of_block - 1) / of_block, (std::int64_t{1} << 31) - 1);
  launch(stream, static_cast<unsigned>(blocks), block_threads, 0, apply_kernel<Operation>, operation, extent);
}

// 16 bytes of the wider type.
template <typename A, typename B = A>
constexpr int common_width = 16 / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

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

template <typename From, typename To>
struct Add {
  static constexpr int width = common_width<From, To>;
  struct Loaded {
    Vector<From, width> source;
    Vector<To, width> sum;
  };
  const From* from;
  To* to;

  __device__ Loaded load(std::int64_t at) const { return {load_vector<width>(from + at), load_vector<width>(to + at)}; }
  __device__ void store(std::int64_t at, Loaded& loaded) const {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      loaded.sum[i] = from_float<To>(to_float(loaded.sum[i]) + to_float(loaded.source[i]));
    }
    store_vector(to + at, loaded.sum);
  }
  __device__ void one(std::int64_t at) const {
    to[at] = from_float<To>(to_float(to[at]) + to_float(from[at]));
  }
};

struct Scale {
  static constexpr int width = 4;
  using Loaded = Vector<float>;
  float* data;
  float factor;

  __device__ Loaded load(std::int64_t at) const { return load_vector(data + at); }
  __device__ void store(std::int64_t at, Loaded& loaded) const {
#pragma unroll
    for (int i = 0; i < width; ++i) loaded[i] *= factor;
    store_vector(data + at, loaded);
  }
  __device__ void one(std::int64_t at) const {
    data[at] *= factor;
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

template <typename From, typename To>
void cast_elements(cudaStream_t stream, const From* from, To* to, std::int64_t count) {
  apply(stream, Cast<From, To>{from, to}, extent_of(count, Cast<From, To>::width, from, to));
}
template <typename From, typename To>
void add_elements(cudaStream_t stream, const From* from, To* to, std::int64_t count) {
  apply(stream, Add<From, To>{from, to}, extent_of(count, Add<From, To>::width, from, to));
}
template <typename T>
void fill_elements(cudaStream_t stream, T* data, std::int64_t count, T value) {
  apply(stream, Fill<T>{data, value}, extent_of(count, Fill<T>::width, data));
}

void cast(Stream& stream, ConstTensorView source, TensorView destination) {
  if (source.empty()) return;
  if (source.dtype() == destination.dtype()) {
    WEFT_CUDA_CHECK(cudaMemcpyAsync(destination.data(), source.data(), static_cast<std::size_t>(source.bytes()),
                                    cudaMemcpyDeviceToDevice, native(stream)));
  } else if (source.dtype() == DType::float32) {
    cast_elements(native(stream), elements<float>(source), elements<bfloat16>(destination), source.size());
  } else {
    cast_elements(native(stream), elements<bfloat16>(source), elements<float>(destination), source.size());
  }
}

void add(Stream& stream, ConstTensorView source, TensorView destination) {
  if (source.empty()) return;
  if (destination.dtype() == DType::bfloat16) {
    add_elements(native(stream), elements<bfloat16>(source), elements<bfloat16>(destination), source.size());
  } else if (source.dtype() == DType::bfloat16) {
    add_elements(native(stream), elements<bfloat16>(source), elements<float>(destination), source.size());
  } else {
    add_elements(native(stream), elements<float>(source), elements<float>(destination), source.size());
  }
}

void scale(Stream& stream, TensorView destination, float factor) {
  float* data = elements<float>(destination);
  if (!destination.empty()) apply(native(stream), Scale{data, factor}, extent_of(destination.size(), 4, data));
}

void fill(Stream& stream, TensorView destination, float value) {
  if (destination.empty()) return;
  switch (destination.dtype()) {
    case DType::float32:
      return fill_elements(native(stream), elements<float>(destination), destination.size(), value);
    case DType::bfloat16:
      return fill_elements(native(stream), elements<bfloat16>(destination), destination.size(),
                           __float2bfloat16_rn(value));
    case DType::float64:
      return fill_elements(native(stream), elements<double>(destination), destination.size(),
                           static_cast<double>(value));
    case DType::int32:
      return fill_elements(native(stream), elements<std::int32_t>(destination), destination.size(),
                           static_cast<std::int32_t>(value));
  }
}

// Four elements at a time are given to threads by their number alone, whatever the address, so that the order of
// additions depends on the size alone.
constexpr int sum_threads = 512, sum_width = 4;

// sums[block] = the block's part of the sum of squares; added to what stands there if `adds`.
__global__ void __launch_bounds__(sum_threads, 2)
    square_sum_kernel(const float* data, std::int64_t count, bool aligned, bool adds, double* sums) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * sum_threads;
  const std::int64_t vectors = count / sum_width;
  std::int64_t vector = static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  const std::int64_t alone = vectors * sum_width + vector;
  double sums_of_place[sum_width] = {};
#pragma unroll 4
  for (; vector < vectors; vector += threads) {
    const float* from = data + vector * sum_width;
    Vector<float, sum_width> loaded;
    if (aligned) {
      loaded = load_vector(from);
    } else {
#pragma unroll
      for (int i = 0; i < sum_width; ++i) loaded[i] = from[i];
    }
#pragma unroll
    for (int i = 0; i < sum_width; ++i) {
      const double value = loaded[i];
      sums_of_place[i] += value * value;
    }
  }
  double sum = (sums_of_place[0] + sums_of_place[1]) + (sums_of_place[2] + sums_of_place[3]);
  // Fewer than four are left, for the first threads.
  if (alone < count) sum += static_cast<double>(data[alone]) * data[alone];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = adds ? sums[blockIdx.x] + sum : sum;
}

__global__ void __launch_bounds__(sum_threads, 2) add_sums_kernel(const double* sums, int count, double* total) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += sum_threads) sum += sums[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *total += sum;
}

// Memory for one operation on a stream, outside every ledger: a few KiB that nobody predicts.
class StreamScratch {
 public:
  StreamScratch(cudaStream_t stream, std::size_t bytes) : stream_(stream) {
    WEFT_CUDA_CHECK(cudaMallocAsync(&data_, bytes, stream));
  }
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;
  // An error shows in the next call that is checked.
  ~StreamScratch() { static_cast<void>(cudaFreeAsync(data_, stream_)); }
  void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

// One block does small tensors alone. Of larger ones, blocks leave their sums in scratch memory, which one more block
// adds up.
void square_sum(Stream& stream, ConstTensorView source, TensorView sum) {
  if (source.empty()) return;
  constexpr std::int64_t of_block = 32 * sum_threads * sum_width, most_blocks = 1024;
  const float* data = elements<float>(source);
  double* total = elements<double>(sum);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  const auto blocks = static_cast<int>(std::min((source.size() + of_block - 1) / of_block, most_blocks));
  if (blocks == 1) {
    launch(native(stream), 1, sum_threads, 0, square_sum_kernel, data, source.size(), aligned, true, total);
    return;
  }
  const StreamScratch scratch(native(stream), static_cast<std::size_t>(blocks) * sizeof(double));
  auto* sums = static_cast<double*>(scratch.data());
  launch(native(stream), static_cast<unsigned>(blocks), sum_threads, 0, square_sum_kernel, data, source.size(), aligned,
         false, sums);
  launch(native(stream), 1, sum_threads, 0, add_sums_kernel, sums, blocks, total);
}

// The exponent of a NaN or an infinity is all ones.
__device__ int is_nonfinite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
}

__global__ void __launch_bounds__(sum_threads, 2)
    count_nonfinite_kernel(const float* data, const Extent extent, int* count) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * sum_threads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  int found = 0;
#pragma unroll 4
  for (std::int64_t vector = thread; vector < extent.vectors; vector += threads) {
    const Vector<float> loaded = load_vector(data + extent.head + vector * sum_width);
#pragma unroll
    for (int i = 0; i < sum_width; ++i) found += is_nonfinite(loaded[i]);
  }
  const std::int64_t in_vectors = extent.vectors * sum_width;
  for (std::int64_t i = thread; i < extent.count - in_vectors; i += threads) {
    found += is_nonfinite(data[i < extent.head ? i : i + in_vectors]);
  }
  found = sum_of_block(found);
  if (threadIdx.x == 0 && found != 0) atomicAdd(count, found);  // of integers: any order gives the same
}

void count_nonfinite(Stream& stream, ConstTensorView source, TensorView count) {
  if (source.empty()) return;
  constexpr std::int64_t of_block = 8 * sum_threads * sum_width, most_blocks = 4096;
  const auto blocks = std::min((source.size() + of_block - 1) / of_block, most_blocks);
  const float* data = elements<float>(source);
  launch(native(stream), static_cast<unsigned>(blocks), sum_threads, 0, count_nonfinite_kernel, data,
         extent_of(source.size(), sum_width, data), elements<std::int32_t>(count));
}

// A rectangle of words. Steps are from row to row, in words.
template <typename Word>
__global__ void copy_rows_kernel(const Word* from, std::int64_t from_step, Word* to, std::int64_t to_step,
                                 std::int64_t rows, std::int64_t words) {
  for_row_items(rows, words,
                [=](std::int64_t row, std::int64_t word) { to[row * to_step + word] = from[row * from_step + word]; });
}

struct RowCopy {
  const std::byte* from;
  std::byte* to;
  std::int64_t from_step, to_step, bytes, rows;  // of a row in bytes

  // Whether all of it consists of whole aligned words.
  template <typename Word>
  bool in_words() const {
    const std::uintptr_t all = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                               static_cast<std::uintptr_t>(from_step | to_step | bytes);
    return all % sizeof(Word) == 0;
  }
  template <typename Word>
  void queue(cudaStream_t stream) const {
    constexpr std::int64_t width = sizeof(Word);
    const RowGrid grid = row_grid(rows, bytes / width);
    launch(stream, grid.blocks, grid.threads, 0, copy_rows_kernel<Word>, reinterpret_cast<const Word*>(from),
           from_step / width, reinterpret_cast<Word*>(to), to_step / width, rows, bytes / width);
  }
};

void copy_columns(Stream& stream, ConstTensorView source, std::int64_t source_column, TensorView destination,
                  std::int64_t destination_column, std::int64_t columns) {
  const std::int64_t width = size_of(source.dtype());
  const RowCopy copy{source.data() + source_column * width,
                     destination.data() + destination_column * width,
                     source.columns() * width,
                     destination.columns() * width,
                     columns * width,
                     source.rows()};
  if (copy.in_words<uint4>()) return copy.queue<uint4>(native(stream));
  if (copy.in_words<uint2>()) return copy.queue<uint2>(native(stream));
  if (copy.in_words<std::uint32_t>()) return copy.queue<std::uint32_t>(native(stream));
  copy.queue<std::uint16_t>(native(stream));
}

constexpr std::size_t most_arrays = 64;

// What is stored, and what it is combined in.
template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<__nv_bfloat16> {
  using type = float;
};
// Wraps around.
template <>
struct Accumulator<std::int32_t> {
  using type = std::uint32_t;
};

template <typename A, typename T>
__device__ A widened(T value) {
  return static_cast<A>(value);
}
template <>
__device__ inline float widened<float, __nv_bfloat16>(__nv_bfloat16 value) {
  return to_float(value);
}
template <typename T, typename A>
__device__ T narrowed(A value) {
  return static_cast<T>(value);
}
template <>
__device__ inline __nv_bfloat16 narrowed<__nv_bfloat16, float>(float value) {
  return from_float<__nv_bfloat16>(value);
}

// Passed by value, as the pointers are known to the host only.
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

// An element is written by the thread that has read it from every input: an output may be one of them.
template <typename T, typename A, typename Combine>
__global__ void __launch_bounds__(block_threads, 4)
    reduce_kernel(const __grid_constant__ Arrays<T> arrays, const Extent extent) {
  constexpr int width = common_width<T>;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * block_threads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
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
  // Maxima of integers are those of signed ones.
  using A = std::conditional_t<std::is_same_v<T, std::int32_t> && std::is_same_v<Combine, LargerOf>, T,
                               typename Accumulator<T>::type>;
  constexpr int width = common_width<T>;
  Arrays<T> arrays{};
  Extent extent{};
  const auto note = [&](const T* array, bool first) {
    const Extent own = extent_of(count, width, array);
    // All in vectors or none.
    if (first || own.vectors == 0) extent = own;
    if (own.head != extent.head) extent = {count, 0, 0};
    return extent.vectors > 0;
  };
  bool vectors = true;
  for (const std::byte* input : inputs) {
    const T* array = reinterpret_cast<const T*>(input) + begin;
    const bool first = arrays.input_count == 0;
    arrays.inputs[arrays.input_count++] = array;
    if (vectors) vectors = note(array, first);
  }
  for (std::byte* output : outputs) {
    T* array = reinterpret_cast<T*>(output);
    arrays.outputs[arrays.output_count++] = array;
    if (vectors) vectors = note(array, false);
  }
  const std::int64_t steps = std::max(extent.vectors, count - extent.vectors * width);
  const std::int64_t blocks =
      std::min<std::int64_t>((steps + block_threads - 1) / block_threads, (std::int64_t{1} << 31) - 1);
  launch(stream, static_cast<unsigned>(blocks), block_threads, 0, reduce_kernel<T, A, Combine>, arrays, extent);
}

template <typename Combine>
void reduce_any(cudaStream_t stream, DType dtype, std::span<const std::byte* const> inputs, std::int64_t begin,
                std::int64_t count, std::span<std::byte* const> outputs) {
  switch (dtype) {
    case DType::float32:
      return reduce_arrays<float, Combine>(stream, inputs, begin, count, outputs);
    case DType::bfloat16:
      return reduce_arrays<bfloat16, Combine>(stream, inputs, begin, count, outputs);
    case DType::float64:
      return reduce_arrays<double, Combine>(stream, inputs, begin, count, outputs);
    case DType::int32:
      return reduce_arrays<std::int32_t, Combine>(stream, inputs, begin, count, outputs);
  }
}

void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs) {
  require(inputs.size() <= most_arrays && outputs.size() <= most_arrays, "a reduction takes 64 arrays at most");
  if (count == 0 || inputs.empty()) return;
  switch (reduce) {
    case Reduce::sum:
      return reduce_any<AddTo>(native(stream), dtype, inputs, begin, count, outputs);
    case Reduce::max:
      return reduce_any<LargerOf>(native(stream), dtype, inputs, begin, count, outputs);
  }
}

}  // namespace

const ElementwiseKernels elementwise_kernels = {
    cast, add, scale, fill, square_sum, count_nonfinite, copy_columns, reduce_elements};

}  // namespace weft::cuda
