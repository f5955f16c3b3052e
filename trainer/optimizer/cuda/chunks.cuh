// All rows of a rank in one launch. Each block of threads takes one chunk of one run of rows, from a table that is
// uploaded once. A chunk has 8 Ki elements (AdamW in float32 moves 229 KB for a chunk); this keeps the last wave of
// blocks short. The tables cost 8 bytes a chunk and 64 bytes a run.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/staging.h"
#include "trainer/optimizer/element_update.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft::cuda {

inline constexpr int threads_of_block = 256;
inline constexpr std::int64_t chunk_elements = 8192;

// These operations must not be fused: the CPU does not fuse them either.
struct DeviceMath {
  __device__ static float fma(float a, float b, float c) { return fmaf(a, b, c); }
  __device__ static float subtract(float a, float b) { return __fsub_rn(a, b); }
  __device__ static float multiply(float a, float b) { return __fmul_rn(a, b); }
  __device__ static float divide(float a, float b) { return __fdiv_rn(a, b); }
  __device__ static float root(float a) { return __fsqrt_rn(a); }
  __device__ static std::uint32_t to_bits(float a) { return __float_as_uint(a); }
  __device__ static float from_bits(std::uint32_t a) { return __uint_as_float(a); }
};

// Calls body<T>, or body<T, U>, for dtypes of parameters and states: bfloat16, or else float32.
template <typename Body>
void with_state_type(DType dtype, Body body) {
  if (dtype == DType::bfloat16) return body.template operator()<bfloat16>();
  body.template operator()<float>();
}
template <typename Body>
void with_state_types(DType first, DType second, Body body) {
  with_state_type(
      first, [&]<typename T>() { with_state_type(second, [&]<typename U>() { body.template operator()<T, U>(); }); });
}

// One run of rows; unused states are null.
struct Descriptor {
  void* parameters;
  const float* gradients;
  void* first_state;
  void* second_state;
  std::uint64_t first_index, name_key;
  std::int64_t tensor;
  std::int32_t last_chunk_elements;
  std::int32_t group;
};
// One chunk of a run. The last chunk of a run may have fewer elements.
struct Chunk {
  std::int32_t descriptor, index;
};
// The chunks of one launch.
struct ChunkTable {
  const Descriptor* descriptors;
  const Chunk* chunks;
  std::int32_t chunk_count;
};

// The elements of one chunk. P are parameters, S states.
template <typename P, typename S>
struct ChunkArrays {
  P* parameters;
  const float* gradients;
  S *first_state, *second_state;
  std::uint64_t first_index;
  int size;

  __device__ ChunkArrays(const ChunkTable& table, const Descriptor& run) {
    const Chunk chunk = table.chunks[blockIdx.x];
    // This chunk is the last of its run if the next chunk of the list belongs to another run.
    const bool last = blockIdx.x + 1 == static_cast<unsigned>(table.chunk_count) ||
                      table.chunks[blockIdx.x + 1].descriptor != chunk.descriptor;
    const std::int64_t begin = chunk.index * chunk_elements;
    size = last ? run.last_chunk_elements : static_cast<int>(chunk_elements);
    parameters = static_cast<P*>(run.parameters) + begin;
    gradients = run.gradients + begin;
    first_state = static_cast<S*>(run.first_state) + begin;
    second_state = static_cast<S*>(run.second_state) + begin;
    first_index = run.first_index + static_cast<std::uint64_t>(begin);
  }
};

// Number of elements in 16 bytes, the widest access.
template <typename T>
constexpr int widest = 16 / static_cast<int>(sizeof(T));
// Distance from `address` to the next multiple of 16 bytes, in elements.
template <typename T>
__device__ int elements_to_alignment(const T* address) {
  return static_cast<int>((16 - reinterpret_cast<std::uintptr_t>(address) % 16) % 16 / sizeof(T));
}
// Whether `address` + `head` elements is a multiple of 16 bytes.
template <typename T>
__device__ bool is_aligned(const T* address, int head) {
  return elements_to_alignment(address) == head % widest<T>;
}

// Loads `width` elements as float32, with accesses of 16 bytes if `width` elements fill them.
template <int width, typename T>
__device__ void load_elements(const T* from, float (&to)[width]) {
  constexpr int piece = width < widest<T> ? width : widest<T>;
#pragma unroll
  for (int i = 0; i < width; i += piece) {
    const Vector<T, piece> vector = load_vector<piece>(from + i);
#pragma unroll
    for (int j = 0; j < piece; ++j) to[i + j] = widened<DeviceMath>(vector[j]);
  }
}
template <int width, typename T>
__device__ void store_elements(T* to, const float (&values)[width], const std::uint64_t (&bits)[width],
                               RoundedArray array) {
  constexpr int piece = width < widest<T> ? width : widest<T>;
#pragma unroll
  for (int i = 0; i < width; i += piece) {
    Vector<T, piece> vector;
#pragma unroll
    for (int j = 0; j < piece; ++j) {
      assign_rounded<DeviceMath>(vector[j], values[i + j], bits_for(array, bits[i + j]));
    }
    store_vector(to + i, vector);
  }
}

// Uploads a table into an int32 tensor. The tensor counts as workspace although it lives as long as the optimizer: the
// optimizer's bucket is predicted to the byte and holds states only.
template <typename Entry>
Tensor upload(Stream& stream, MemoryLedger& ledger, const std::vector<Entry>& entries) {
  static_assert(sizeof(Entry) % sizeof(std::int32_t) == 0);
  constexpr std::int64_t words = sizeof(Entry) / sizeof(std::int32_t);
  Tensor table = ledger.allocate_on(stream, Bucket::workspace, DType::int32, std::ssize(entries), words);
  std::vector<std::int32_t> content(entries.size() * words);
  std::ranges::copy(std::as_bytes(std::span(entries)), std::as_writable_bytes(std::span(content)).begin());
  write<std::int32_t>(stream, content, table);
  return table;
}

// The chunks of a tensor's runs.
struct ChunkRange {
  std::int32_t begin, end;
};

// The chunk table of a set of runs, in device memory.
class Chunks {
 public:
  Chunks(Stream& stream, MemoryLedger& ledger, std::span<const UpdateRows> runs) {
    std::vector<Descriptor> descriptors;
    std::vector<Chunk> chunks;
    for (const UpdateRows& run : runs) {
      const std::int64_t size = run.parameters.size(), run_chunks = (size + chunk_elements - 1) / chunk_elements;
      for (std::int64_t index = 0; index < run_chunks; ++index) {
        chunks.push_back({static_cast<std::int32_t>(descriptors.size()), static_cast<std::int32_t>(index)});
      }
      descriptors.push_back({run.parameters.data(), elements<float>(run.gradients), run.first_state.data(),
                             run.second_state.data(), run.first_index, run.name_key, run.tensor,
                             static_cast<std::int32_t>(size - (run_chunks - 1) * chunk_elements), run.group});
      const auto end = static_cast<std::int32_t>(chunks.size()), begin = end - static_cast<std::int32_t>(run_chunks);
      if (descriptors.size() > 1 && descriptors[descriptors.size() - 2].tensor == run.tensor) {
        ranges_.back().end = end;
      } else {
        ranges_.push_back({begin, end});
      }
    }
    descriptors_ = upload(stream, ledger, descriptors);
    chunks_ = upload(stream, ledger, chunks);
  }

  ChunkTable table() const {
    return {reinterpret_cast<const Descriptor*>(descriptors_.view().data()),
            reinterpret_cast<const Chunk*>(chunks_.view().data()), static_cast<std::int32_t>(chunks_.rows())};
  }
  dim3 blocks() const { return dim3(static_cast<unsigned>(chunks_.rows())); }
  // Chunk ranges; neighbouring runs of one tensor share a range.
  const std::vector<ChunkRange>& ranges() const { return ranges_; }

 private:
  Tensor descriptors_, chunks_;
  std::vector<ChunkRange> ranges_;
};

}  // namespace weft::cuda
