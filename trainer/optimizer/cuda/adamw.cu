// AdamW over all rows of a rank in one launch, however many and uneven they are: a block of threads takes one chunk of
// one run of rows, found in a table that is uploaded once.
//
// Bytes an element: 16 read, 12 written. A chunk is 8 Ki elements (229 KB moved), which keeps the last wave of blocks
// short; the table costs 8 bytes a chunk and 40 a run.
#include <array>
#include <bit>

#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/stream.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/staging.h"
#include "trainer/optimizer/cuda/kernels.h"

namespace weft::cuda {
namespace {

constexpr int threads_of_block = 256;
constexpr std::int64_t chunk_elements = 8192;

// Of one run of rows.
struct Descriptor {
  float* parameters;
  const float* gradients;
  float* first_moment;
  float* second_moment;
  std::int32_t last_chunk_elements;
  std::int32_t decayed;
};
// A chunk of a run; the runs' last chunks may be short.
struct Chunk {
  std::int32_t descriptor, index;
};

// The CPU's update_loop, rounding for rounding: nothing may be fused here that it does not fuse.
__device__ void update(const AdamwFactors& factors, float decay, float gradient_scale, float& parameter,
                       float raw_gradient, float& first_moment, float& second_moment) {
  const float gradient = __fmul_rn(gradient_scale, raw_gradient);
  const float first = fmaf(factors.first_rate, __fsub_rn(gradient, first_moment), first_moment);
  const float second = fmaf(factors.second_rate, fmaf(gradient, gradient, -second_moment), second_moment);
  const float ratio = __fdiv_rn(first, fmaf(__fsqrt_rn(second), factors.second_scale, factors.eps));
  const float change = fmaf(decay, parameter, __fmul_rn(factors.step_size, ratio));
  first_moment = first;
  second_moment = second;
  parameter = __fsub_rn(parameter, change);
}

// How far `address` is from the next multiple of 16 bytes, in floats.
__device__ int floats_to_alignment(const float* address) {
  return static_cast<int>((16 - reinterpret_cast<std::uintptr_t>(address) % 16) % 16 / sizeof(float));
}

__global__ void __launch_bounds__(threads_of_block)
    adamw_kernel(const Descriptor* descriptors, const Chunk* chunks, std::int32_t chunk_count, AdamwFactors factors,
                 const float* gradient_scale) {
  const Chunk chunk = chunks[blockIdx.x];
  const Descriptor run = descriptors[chunk.descriptor];
  // The next chunk of the list tells whether this one is the last of its run.
  const bool last =
      blockIdx.x + 1 == static_cast<unsigned>(chunk_count) || chunks[blockIdx.x + 1].descriptor != chunk.descriptor;
  const int size = last ? run.last_chunk_elements : static_cast<int>(chunk_elements);
  const std::int64_t begin = chunk.index * chunk_elements;
  float* const parameters = run.parameters + begin;
  const float* const gradients = run.gradients + begin;
  float* const first_moment = run.first_moment + begin;
  float* const second_moment = run.second_moment + begin;
  const float scale = *gradient_scale, decay = run.decayed != 0 ? factors.decay : 0.0f;
  const auto update_at = [&](int i) {
    update(factors, decay, scale, parameters[i], gradients[i], first_moment[i], second_moment[i]);
  };

  // Vectors where all four arrays have the same place in 16 bytes: after `head` elements, and before the rest.
  const int head = min(size, floats_to_alignment(parameters));
  const bool vectors = floats_to_alignment(gradients) == floats_to_alignment(parameters) &&
                       floats_to_alignment(first_moment) == floats_to_alignment(parameters) &&
                       floats_to_alignment(second_moment) == floats_to_alignment(parameters);
  const int thread = static_cast<int>(threadIdx.x);
  if (!vectors) {
    for (int i = thread; i < size; i += threads_of_block) update_at(i);
    return;
  }
  constexpr int width = Vector<float>::size;
  const int end = head + (size - head) / width * width;
  if (thread < head) update_at(thread);
  if (end + thread < size) update_at(end + thread);
#pragma unroll 2
  for (int i = head + thread * width; i < end; i += threads_of_block * width) {
    Vector<float> parameter = load_vector(parameters + i), first = load_vector(first_moment + i),
                  second = load_vector(second_moment + i);
    const Vector<float> gradient = load_vector(gradients + i);
#pragma unroll
    for (int j = 0; j < width; ++j) update(factors, decay, scale, parameter[j], gradient[j], first[j], second[j]);
    store_vector(parameters + i, parameter);
    store_vector(first_moment + i, first);
    store_vector(second_moment + i, second);
  }
}

// One thread. As clip_factor (trainer/gradient_norm.h).
__global__ void clip_scale_kernel(const double* square_sum, double largest, float* gradient_scale) {
  const double norm = sqrt(*square_sum);
  *gradient_scale = static_cast<float>(largest > 0.0 && norm > largest ? largest / norm : 1.0);
}

// The bytes of a table as tensors hold them. Workspace, though they stay: the optimizer's bucket is predicted to the
// byte and means moments.
template <typename Entry>
Tensor upload(Stream& stream, MemoryLedger& ledger, const std::vector<Entry>& entries) {
  static_assert(sizeof(Entry) % sizeof(std::int32_t) == 0);
  constexpr std::int64_t words = sizeof(Entry) / sizeof(std::int32_t);
  Tensor table = ledger.allocate_on(stream, Bucket::workspace, DType::int32, std::ssize(entries), words);
  std::vector<std::int32_t> bytes;
  bytes.reserve(entries.size() * words);
  for (const Entry& entry : entries) {
    const auto entry_words = std::bit_cast<std::array<std::int32_t, words>>(entry);
    bytes.insert(bytes.end(), entry_words.begin(), entry_words.end());
  }
  write<std::int32_t>(stream, bytes, table);
  return table;
}

class CudaAdamw final : public AdamwUpdate {
 public:
  CudaAdamw(Stream& stream, MemoryLedger& ledger, const std::vector<AdamwRows>& runs) {
    std::vector<Descriptor> descriptors;
    std::vector<Chunk> chunks;
    for (const AdamwRows& run : runs) {
      const std::int64_t size = run.parameters.size();
      require(run.gradients.size() == size && run.first_moment.size() == size && run.second_moment.size() == size,
              "gradient and moments are as long as the parameters");
      if (size == 0) continue;
      const std::int64_t run_chunks = (size + chunk_elements - 1) / chunk_elements;
      for (std::int64_t index = 0; index < run_chunks; ++index) {
        chunks.push_back({static_cast<std::int32_t>(descriptors.size()), static_cast<std::int32_t>(index)});
      }
      descriptors.push_back({elements<float>(run.parameters), elements<float>(run.gradients),
                             elements<float>(run.first_moment), elements<float>(run.second_moment),
                             static_cast<std::int32_t>(size - (run_chunks - 1) * chunk_elements),
                             static_cast<std::int32_t>(run.decayed)});
    }
    descriptors_ = upload(stream, ledger, descriptors);
    chunks_ = upload(stream, ledger, chunks);
  }

  void run(Stream& stream, const AdamwStep& step, ConstTensorView gradient_scale) override {
    launch(native(stream), dim3(static_cast<unsigned>(chunks_.rows())), dim3(threads_of_block), 0, adamw_kernel,
           reinterpret_cast<const Descriptor*>(descriptors_.view().data()),
           reinterpret_cast<const Chunk*>(chunks_.view().data()), static_cast<std::int32_t>(chunks_.rows()),
           adamw_factors(step), elements<float>(gradient_scale));
  }

 private:
  Tensor descriptors_, chunks_;
};

std::unique_ptr<AdamwUpdate> make_adamw(Stream& stream, MemoryLedger& ledger, std::vector<AdamwRows> rows) {
  return std::make_unique<CudaAdamw>(stream, ledger, rows);
}

void clip_scale(Stream& stream, ConstTensorView square_sum, double largest, TensorView gradient_scale) {
  launch(native(stream), dim3(1), dim3(1), 0, clip_scale_kernel, elements<double>(square_sum), largest,
         elements<float>(gradient_scale));
}

}  // namespace

OptimizerKernels optimizer_kernels() {
  return {make_adamw, clip_scale};
}

}  // namespace weft::cuda
