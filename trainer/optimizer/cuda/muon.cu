// Muon's passes over elements, with the same roundings as on the CPU: an operation must not be fused here unless it is
// fused in optimizer_kernels.cpp.
//
// Bytes an element, with a momentum of m bytes and messages of s bytes: momentum 4 + 2 m + s, change 8 + s.
#include <algorithm>

#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "trainer/optimizer/cuda/chunks.cuh"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft::cuda {
namespace {

// Elements that a thread loads at once. Rows have no alignment, so there are no vector loads.
constexpr int elements_in_flight = 8;
constexpr std::int64_t most_blocks = 4096;

unsigned blocks_for(std::int64_t count) {
  const std::int64_t of_block = threads_of_block * elements_in_flight;
  return static_cast<unsigned>(std::min((count + of_block - 1) / of_block, most_blocks));
}

// Calls load(slot, i) for all elements in flight, then store(slot, i) for each of these elements.
template <typename Load, typename Store>
__device__ void for_elements(std::int64_t count, Load load, Store store) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * threads_of_block;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x;
  for (std::int64_t first = thread; first < count; first += elements_in_flight * threads) {
#pragma unroll
    for (int slot = 0; slot < elements_in_flight; ++slot) {
      if (first + slot * threads < count) load(slot, first + slot * threads);
    }
#pragma unroll
    for (int slot = 0; slot < elements_in_flight; ++slot) {
      if (first + slot * threads < count) store(slot, first + slot * threads);
    }
  }
}

// `update` may be null.
template <typename Momentum, typename Update>
__global__ void __launch_bounds__(threads_of_block)
    momentum_kernel(const float* gradient_scale, float rate, const float* gradients, Momentum* momentum, Update* update,
                    std::int64_t count) {
  const float scale = *gradient_scale;
  const bool is_void = !is_finite(scale);
  float gradient[elements_in_flight], before[elements_in_flight];
  for_elements(
      count,
      [&](int slot, std::int64_t i) {
        gradient[slot] = gradients[i];
        before[slot] = to_float(momentum[i]);
      },
      [&](int slot, std::int64_t i) {
        const float scaled = __fmul_rn(scale, gradient[slot]);
        const float moved = fmaf(rate, before[slot], scaled);
        if (!is_void) momentum[i] = from_float<Momentum>(moved);
        if (update != nullptr) update[i] = from_float<Update>(is_void ? 0.0f : fmaf(rate, moved, scaled));
      });
}

template <typename Direction>
__global__ void __launch_bounds__(threads_of_block)
    change_kernel(const float* gradient_scale, float step_size, float decay, const Direction* direction, float* values,
                  std::int64_t count) {
  if (!is_finite(*gradient_scale)) return;
  float toward[elements_in_flight], before[elements_in_flight];
  for_elements(
      count,
      [&](int slot, std::int64_t i) {
        toward[slot] = to_float(direction[i]);
        before[slot] = values[i];
      },
      [&](int slot, std::int64_t i) {
        values[i] = __fsub_rn(before[slot], fmaf(decay, before[slot], __fmul_rn(step_size, toward[slot])));
      });
}

void momentum(Stream& stream, const MuonMomentum& rows) {
  const std::int64_t count = rows.momentum.size();
  with_state_types(rows.momentum.dtype(), rows.update.dtype(), [&]<typename M, typename U>() {
    launch(native(stream), blocks_for(count), threads_of_block, 0,
           momentum_kernel<typename DeviceElement<M>::type, typename DeviceElement<U>::type>,
           elements<float>(rows.gradient_scale), rows.rate, elements<float>(rows.gradients), elements<M>(rows.momentum),
           rows.update.empty() ? nullptr : elements<U>(rows.update), count);
  });
}

void change(Stream& stream, const MuonChange& rows) {
  const std::int64_t count = rows.values.size();
  with_state_type(rows.direction.dtype(), [&]<typename D>() {
    launch(native(stream), blocks_for(count), threads_of_block, 0, change_kernel<typename DeviceElement<D>::type>,
           elements<float>(rows.gradient_scale), rows.step_size, rows.decay, elements<D>(rows.direction),
           elements<float>(rows.values), count);
  });
}

}  // namespace

MuonKernels muon_kernels() {
  return {momentum, change};
}

}  // namespace weft::cuda
