// Sort of choices by expert, and moves of rows. All kernels except the sort are bound by memory bandwidth; rows move in
// units of 16 bytes if addresses allow it.
//
// Bytes, with R bytes per row and n = T K choices: permute_rows reads T R, writes n R. unpermute_rows reads n R + T R,
// writes T R. unpermute_rows_backward reads n R (only for dweights) + T R (K times, all except one from a cache),
// writes n R. move_blocks reads and writes the blocks once. sort_by_expert moves about 28 n, plus 16 n for each 8 bits
// of the number of experts.
#include <thrust/binary_search.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>
#include <thrust/tabulate.h>
#include <thrust/transform.h>

#include <algorithm>
#include <bit>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/thrust.cuh"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int threads_of_block = 256;
constexpr int warps_of_block = threads_of_block / warp_size;
// Units that a lane moves at a time; their loads are in flight together.
constexpr int units_of_lane = 4;

__device__ std::int64_t warp_of_grid() {
  return static_cast<std::int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / warp_size;
}

// Number of sorted keys equal to `expert`.
struct CountOf {
  const std::uint32_t* sorted_experts;  // no_expert, the largest, comes last
  std::int64_t count;

  __host__ __device__ std::int32_t operator()(std::uint32_t expert) const {
    const auto range = thrust::equal_range(thrust::seq, sorted_experts, sorted_experts + count, expert);
    return static_cast<std::int32_t>(range.second - range.first);
  }
};

// Grid: tokens in x, parts of a row in y. A warp reads its part of a row once and writes it to every choice.
template <typename Unit>
__global__ void permute_kernel(const Unit* x, const std::int32_t* slots, std::int64_t tokens, int choices,
                               std::int64_t units, Unit* permuted) {
  const std::int64_t token = warp_of_grid();
  if (token >= tokens) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * (warp_size * units_of_lane) + lane_of_warp();
  Unit part[units_of_lane];
#pragma unroll
  for (int i = 0; i < units_of_lane; ++i) {
    if (first + i * warp_size < units) part[i] = x[token * units + first + i * warp_size];
  }
  for (int k = 0; k < choices; ++k) {
    const std::int32_t slot = slots[token * choices + k];
    if (slot == no_expert) continue;
    Unit* row = permuted + slot * units;
#pragma unroll
    for (int i = 0; i < units_of_lane; ++i) {
      if (first + i * warp_size < units) row[first + i * warp_size] = part[i];
    }
  }
}

// Grid as for permute_kernel; a thread owns its elements of y, so the sum over choices is in order.
template <typename T, int width>
__global__ void unpermute_kernel(const T* permuted, const std::int32_t* slots, const float* weights,
                                 std::int64_t tokens, int choices, std::int64_t hidden, T* y) {
  const std::int64_t token = warp_of_grid();
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.y) * warp_size + lane_of_warp()) * width;
  if (token >= tokens || first >= hidden) return;
  float sum[width] = {};
#pragma unroll 4
  for (int k = 0; k < choices; ++k) {
    const std::int64_t choice = token * choices + k;
    if (slots[choice] == no_expert) continue;
    const float weight = weights != nullptr ? weights[choice] : 1.0f;
    const auto row = load_vector<width>(permuted + slots[choice] * hidden + first);
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] = fmaf(weight, to_float(row[i]), sum[i]);
  }
  auto out = load_vector<width>(y + token * hidden + first);
#pragma unroll
  for (int i = 0; i < width; ++i) out[i] = from_float<T>(to_float(out[i]) + sum[i]);
  store_vector(y + token * hidden + first, out);
}

// A warp computes one choice; the warps of one token read its dy at about the same time. `permuted` may be `dpermuted`.
template <typename T, int width>
__global__ void unpermute_backward_kernel(const T* dy, const T* permuted, const std::int32_t* slots,
                                          const float* weights, std::int64_t choice_count, int choices,
                                          std::int64_t hidden, T* dpermuted, float* dweights) {
  const std::int64_t choice = warp_of_grid();
  if (choice >= choice_count) return;
  if (slots[choice] == no_expert) {
    if (dweights != nullptr && lane_of_warp() == 0) dweights[choice] = 0.0f;
    return;
  }
  dy += choice / choices * hidden;
  const std::int64_t place = slots[choice] * hidden;
  const float weight = weights != nullptr ? weights[choice] : 1.0f;
  float product = 0.0f;
#pragma unroll 2
  for (std::int64_t at = lane_of_warp() * width; at < hidden; at += warp_size * width) {
    const auto gradient = load_vector<width>(dy + at);
    if (dweights != nullptr) {
      const auto row = load_vector<width>(permuted + place + at);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        product = fmaf(to_float(gradient[i]), to_float(row[i]), product);
      }
    }
    Vector<T, width> out;
#pragma unroll
    for (int i = 0; i < width; ++i) out[i] = from_float<T>(weight * to_float(gradient[i]));
    store_vector(dpermuted + place + at, out);
  }
  if (dweights == nullptr) return;
  product = sum_of_warp(product);
  if (lane_of_warp() == 0) dweights[choice] = product;
}

// Blocks of one launch of move_kernel, in units. Passed by value, because the host's spans may be gone when the kernel
// runs.
template <int capacity>
struct BlockList {
  std::int64_t from[capacity], to[capacity], units[capacity];
  std::int32_t first_part[capacity];  // of the grid
  int count;
};
constexpr int units_of_part = threads_of_block * units_of_lane;

// A block of threads copies one part of a block of rows.
template <typename Unit, int capacity>
__global__ void move_kernel(const Unit* source, Unit* destination, const BlockList<capacity> blocks) {
  const auto part = static_cast<std::int32_t>(blockIdx.x);
  int block = 0, end = blocks.count;  // the last block that begins at this part or before is in [block, end)
  while (end - block > 1) {
    const int middle = (block + end) / 2;
    if (blocks.first_part[middle] <= part) {
      block = middle;
    } else {
      end = middle;
    }
  }
  const std::int64_t first = static_cast<std::int64_t>(part - blocks.first_part[block]) * units_of_part + threadIdx.x;
  const std::int64_t units = blocks.units[block];
  source += blocks.from[block];
  destination += blocks.to[block];
  Unit moved[units_of_lane];
#pragma unroll
  for (int i = 0; i < units_of_lane; ++i) {
    if (first + i * threads_of_block < units) moved[i] = source[first + i * threads_of_block];
  }
#pragma unroll
  for (int i = 0; i < units_of_lane; ++i) {
    if (first + i * threads_of_block < units) destination[first + i * threads_of_block] = moved[i];
  }
}

template <typename Unit, int capacity>
void move_in_launches(cudaStream_t stream, const Unit* source, std::span<const std::int64_t> from,
                      std::span<const std::int64_t> to, std::span<const std::int64_t> counts, std::int64_t row_units,
                      Unit* destination) {
  constexpr std::int64_t largest_grid = 0x7fffffff;
  BlockList<capacity> blocks;
  blocks.count = 0;
  std::int64_t parts = 0;
  const auto flush = [&] {
    launch(stream, dim3(static_cast<unsigned>(parts)), dim3(threads_of_block), 0, move_kernel<Unit, capacity>, source,
           destination, blocks);
    blocks.count = 0;
    parts = 0;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const std::int64_t units = counts[i] * row_units, more = (units + units_of_part - 1) / units_of_part;
    if (blocks.count == capacity || parts + more > largest_grid) flush();
    blocks.from[blocks.count] = from[i] * row_units;
    blocks.to[blocks.count] = to[i] * row_units;
    blocks.units[blocks.count] = units;
    blocks.first_part[blocks.count] = static_cast<std::int32_t>(parts);
    ++blocks.count;
    parts += more;
  }
  flush();
}

// A thread for each choice.
__global__ void within_kernel(const std::int32_t* indices, std::int64_t count, std::int32_t first, std::int32_t experts,
                              std::int32_t* within) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x;
  if (i >= count) return;
  const std::int32_t expert = indices[i];
  within[i] = expert >= first && expert - first < experts ? expert - first : no_expert;
}

// A thread for each token: it looks for an earlier choice of the same part among the few that it has written.
__global__ void parts_kernel(const std::int32_t* indices, std::int64_t tokens, int choices, std::int32_t experts,
                             std::int32_t* parts) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x;
  if (token >= tokens) return;
  indices += token * choices;
  parts += token * choices;
  for (int k = 0; k < choices; ++k) {
    std::int32_t part = indices[k] == no_expert ? no_expert : indices[k] / experts;
    for (int before = 0; before < k; ++before) {
      if (parts[before] == part) part = no_expert;
    }
    parts[k] = part;
  }
}

struct SlotOrNone {
  __host__ __device__ std::int32_t operator()(std::int32_t expert, std::int32_t slot) const {
    return expert == no_expert ? no_expert : slot;
  }
};

}  // namespace

void choices_within(KernelContext& context, ConstTensorView indices, std::int64_t first, std::int64_t experts,
                    TensorView within) {
  launch(native(context.stream), dim3(blocks_for(indices.size(), threads_of_block)), dim3(threads_of_block), 0,
         within_kernel, elements<std::int32_t>(indices), indices.size(), static_cast<std::int32_t>(first),
         static_cast<std::int32_t>(experts), elements<std::int32_t>(within));
}

void parts_chosen(KernelContext& context, ConstTensorView indices, std::int64_t experts, TensorView parts) {
  launch(native(context.stream), dim3(blocks_for(indices.rows(), threads_of_block)), dim3(threads_of_block), 0,
         parts_kernel, elements<std::int32_t>(indices), indices.rows(), static_cast<int>(indices.columns()),
         static_cast<std::int32_t>(experts), elements<std::int32_t>(parts));
}

// Expert indices beyond `counts` are not detected: only the low bits of indices are sorted. Those of no_expert, all
// ones, are larger than those of any expert.
void sort_by_expert(KernelContext& context, ConstTensorView indices, bool some_unrouted, TensorView counts,
                    TensorView slots) {
  const cudaStream_t stream = native(context.stream);
  const std::int64_t count = indices.size(), experts = counts.size();
  Tensor sorted_experts = context.workspace(DType::int32, count, 1);
  if (count > 0) {
    const std::int64_t largest = some_unrouted ? experts : experts - 1;
    const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest))));
    const auto scratch_bytes = static_cast<std::int64_t>(sort_scratch_bytes(count, bits));
    Tensor numbers = context.workspace(DType::int32, count, 1);
    Tensor sorted_choices = context.workspace(DType::int32, count, 1);
    Tensor scratch = context.workspace(DType::int32, (scratch_bytes + 3) / 4, 1);
    auto* const number = elements<std::int32_t>(numbers.view());
    auto* const sorted = elements<std::int32_t>(sorted_choices.view());
    auto* const slot = elements<std::int32_t>(slots);
    thrust_on(stream, [=](const auto& policy) { thrust::sequence(policy, number, number + count); });
    sort_pairs(stream, elements<std::int32_t>(indices), elements<std::int32_t>(sorted_experts.view()), number, sorted,
               count, bits, scratch.view().data(), static_cast<std::size_t>(scratch_bytes));
    thrust_on(stream, [=](const auto& policy) {
      const thrust::counting_iterator<std::int32_t> place(0);
      thrust::scatter(policy, place, place + count, sorted, slot);
    });
    if (some_unrouted) {
      const auto* const expert = elements<std::int32_t>(indices);
      thrust_on(stream, [=](const auto& policy) {
        thrust::transform(policy, expert, expert + count, slot, slot, SlotOrNone());
      });
    }
  }
  // Counted from sorted keys, so that no counter is shared.
  auto* const result = elements<std::int32_t>(counts);
  const CountOf count_of{reinterpret_cast<const std::uint32_t*>(sorted_experts.view().data()), count};
  thrust_on(stream, [=](const auto& policy) { thrust::tabulate(policy, result, result + experts, count_of); });
}

void add_counts(KernelContext& context, ConstTensorView counts, TensorView totals) {
  const auto* const count = elements<std::int32_t>(counts);
  auto* const total = elements<double>(totals);
  const std::int64_t experts = counts.size();
  thrust_on(native(context.stream), [=](const auto& policy) {
    thrust::transform(policy, count, count + experts, total, total, thrust::plus<double>());
  });
}

void permute_rows(KernelContext& context, ConstTensorView x, ConstTensorView slots, TensorView permuted) {
  const std::int64_t row_bytes = x.columns() * size_of(x.dtype());
  with_units(row_bytes, x.data(), permuted.data(), [&](auto unit) {
    using Unit = decltype(unit);
    const std::int64_t units = row_bytes / static_cast<std::int64_t>(sizeof(Unit));
    launch(native(context.stream),
           dim3(blocks_for(x.rows(), warps_of_block), blocks_for(units, warp_size * units_of_lane)),
           dim3(threads_of_block), 0, permute_kernel<Unit>, reinterpret_cast<const Unit*>(x.data()),
           elements<std::int32_t>(slots), x.rows(), static_cast<int>(slots.columns()), units,
           reinterpret_cast<Unit*>(permuted.data()));
  });
}

void unpermute_rows(KernelContext& context, ConstTensorView permuted, ConstTensorView slots, ConstTensorView weights,
                    TensorView y) {
  const std::int64_t hidden = y.columns();
  with_vectors(y.dtype(), vectorise(y.dtype(), hidden, {permuted, y}), [&]<typename E, typename T, int width>() {
    launch(native(context.stream), dim3(blocks_for(y.rows(), warps_of_block), blocks_for(hidden, warp_size * width)),
           dim3(threads_of_block), 0, unpermute_kernel<T, width>, elements<E>(permuted), elements<std::int32_t>(slots),
           pointer_or_null(weights), y.rows(), static_cast<int>(slots.columns()), hidden, elements<E>(y));
  });
}

void unpermute_rows_backward(KernelContext& context, ConstTensorView dy, ConstTensorView permuted,
                             ConstTensorView slots, ConstTensorView weights, TensorView dpermuted,
                             TensorView dweights) {
  const bool vectors = vectorise(dy.dtype(), dy.columns(), {dy, permuted, dpermuted});
  with_vectors(dy.dtype(), vectors, [&]<typename E, typename T, int width>() {
    launch(native(context.stream), dim3(blocks_for(slots.size(), warps_of_block)), dim3(threads_of_block), 0,
           unpermute_backward_kernel<T, width>, elements<E>(dy), elements<E>(permuted), elements<std::int32_t>(slots),
           pointer_or_null(weights), slots.size(), static_cast<int>(slots.columns()), dy.columns(),
           elements<E>(dpermuted), dweights.empty() ? nullptr : elements<float>(dweights));
  });
}

void move_blocks(KernelContext& context, ConstTensorView source, std::span<const std::int64_t> from,
                 std::span<const std::int64_t> to, std::span<const std::int64_t> counts, TensorView destination) {
  for (std::size_t block = 0; block < counts.size(); ++block) {
    const std::int64_t count = counts[block];
    require(count >= 0 && from[block] >= 0 && from[block] + count <= source.rows() && to[block] >= 0 &&
                to[block] + count <= destination.rows(),
            "a block lies inside its tensors");
  }
  const std::int64_t row_bytes = source.columns() * size_of(source.dtype());
  if (row_bytes == 0) return;
  with_units(row_bytes, source.data(), destination.data(), [&](auto unit) {
    using Unit = decltype(unit);
    const auto run = [&](auto move) {
      move(native(context.stream), reinterpret_cast<const Unit*>(source.data()), from, to, counts,
           row_bytes / static_cast<std::int64_t>(sizeof(Unit)), reinterpret_cast<Unit*>(destination.data()));
    };
    // The list is a kernel parameter, so few blocks use a short list. Parameters of a kernel may have 32 KiB.
    constexpr int few = 64, many = 1024;
    if (counts.size() <= few) {
      run(move_in_launches<Unit, few>);
    } else {
      run(move_in_launches<Unit, many>);
    }
  });
}

}  // namespace weft::cuda
