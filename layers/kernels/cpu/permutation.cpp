#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

// Columns summed at a time: a block of sums stays in the first-level cache while the rows of all choices are added.
constexpr std::int64_t block_columns = 256;

template <typename T>
WEFT_INLINE void gather_rows(const T* permuted, const std::int32_t* slots, const float* weights, std::int64_t tokens,
                             std::int64_t choices, std::int64_t hidden, T* y) {
  float sum[block_columns];
  for (std::int64_t token = 0; token < tokens; ++token, y += hidden) {
    for (std::int64_t begin = 0; begin < hidden; begin += block_columns) {
      const std::int64_t width = hidden - begin < block_columns ? hidden - begin : block_columns;
      for (std::int64_t i = 0; i < width; ++i) sum[i] = 0.0f;
      for (std::int64_t k = 0; k < choices; ++k) {
        const std::int64_t choice = token * choices + k;
        const float weight = weights != nullptr ? weights[choice] : 1.0f;
        if (slots[choice] == no_expert) continue;
        const T* row = permuted + slots[choice] * hidden + begin;
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) sum[i] += weight * static_cast<float>(row[i]);
      }
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) assign(y[begin + i], static_cast<float>(y[begin + i]) + sum[i]);
    }
  }
}

template <typename T>
WEFT_INLINE void scale_row(const T* from, float weight, std::int64_t hidden, T* to) {
#pragma omp simd
  for (std::int64_t i = 0; i < hidden; ++i) assign(to[i], weight * static_cast<float>(from[i]));
}

template <typename T>
WEFT_INLINE float dot_row(const T* a, const T* b, std::int64_t hidden) {
  return lane_sum(
      hidden, [ a, b ](std::int64_t i)
                  __attribute__((always_inline)) { return static_cast<float>(a[i]) * static_cast<float>(b[i]); });
}

const float* pointer_or_null(ConstTensorView weights) {
  return weights.empty() ? nullptr : weights.as<float>().data();
}

}  // namespace

void choices_within(KernelContext&, ConstTensorView indices, std::int64_t first, std::int64_t experts,
                    TensorView within) {
  std::ranges::transform(indices.as<std::int32_t>(), within.as<std::int32_t>().begin(), [&](std::int32_t expert) {
    return expert >= first && expert < first + experts ? static_cast<std::int32_t>(expert - first) : no_expert;
  });
}

void parts_chosen(KernelContext&, ConstTensorView indices, std::int64_t experts, TensorView parts) {
  const std::int32_t* expert = indices.as<std::int32_t>().data();
  std::int32_t* part = parts.as<std::int32_t>().data();
  for (std::int64_t token = 0; token < indices.rows(); ++token, part += indices.columns()) {
    for (std::int64_t k = 0; k < indices.columns(); ++k, ++expert) {
      const std::int32_t here = *expert == no_expert ? no_expert : static_cast<std::int32_t>(*expert / experts);
      part[k] = std::find(part, part + k, here) == part + k ? here : no_expert;
    }
  }
}

Tensor sort_workspace(KernelContext& context, std::int64_t experts) {
  return context.ledger.allocate(Bucket::workspace, DType::int32, experts, 1);
}

void sort_by_expert(KernelContext& context, ConstTensorView indices, bool some_unrouted, TensorView counts,
                    TensorView slots) {
  const auto chosen = indices.as<std::int32_t>();
  const auto slot = slots.as<std::int32_t>(), count = counts.as<std::int32_t>();
  std::ranges::fill(count, 0);
  for (const std::int32_t expert : chosen) {
    if (some_unrouted && expert == no_expert) continue;
    require(expert >= 0 && expert < std::ssize(count), "a token chooses among its experts");
    ++count[static_cast<std::size_t>(expert)];
  }
  Tensor workspace = sort_workspace(context, counts.size());
  const auto next = workspace.as<std::int32_t>();
  std::exclusive_scan(count.begin(), count.end(), next.begin(), 0);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    slot[i] = chosen[i] == no_expert ? no_expert : next[static_cast<std::size_t>(chosen[i])]++;
  }
}

void add_counts(KernelContext&, ConstTensorView counts, TensorView totals) {
  const auto count = counts.as<std::int32_t>();
  const auto total = totals.as<double>();
  for (std::size_t i = 0; i < count.size(); ++i) total[i] += count[i];
}

void permute_rows(KernelContext&, ConstTensorView x, ConstTensorView slots, TensorView permuted) {
  const std::int64_t row_bytes = x.columns() * size_of(x.dtype());
  const std::byte* from = x.data();
  const std::int32_t* slot = slots.as<std::int32_t>().data();
  for (std::int64_t token = 0; token < x.rows(); ++token, from += row_bytes) {
    for (std::int64_t k = 0; k < slots.columns(); ++k, ++slot) {
      if (*slot != no_expert) std::memcpy(permuted.data() + *slot * row_bytes, from, row_bytes);
    }
  }
}

WEFT_MULTIVERSION void unpermute_rows(KernelContext&, ConstTensorView permuted, ConstTensorView slots,
                                      ConstTensorView weights, TensorView y) {
  with_element_type(
      y.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        gather_rows(permuted.as<T>().data(), slots.as<std::int32_t>().data(), pointer_or_null(weights), y.rows(),
                    slots.columns(), y.columns(), y.as<T>().data());
      });
}

WEFT_MULTIVERSION void unpermute_rows_backward(KernelContext&, ConstTensorView dy, ConstTensorView permuted,
                                               ConstTensorView slots, ConstTensorView weights, TensorView dpermuted,
                                               TensorView dweights) {
  const std::int32_t* slot = slots.as<std::int32_t>().data();
  const float* weight = pointer_or_null(weights);
  float* dweight = dweights.empty() ? nullptr : dweights.as<float>().data();
  const std::int64_t hidden = dy.columns(), choices = slots.columns();
  with_element_type(
      dy.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const T* rows = permuted.as<T>().data();
        T* drows = dpermuted.as<T>().data();
        const T* gradient = dy.as<T>().data();
        for (std::int64_t i = 0; i < slots.size(); ++i) {
          if (slot[i] == no_expert) {
            if (dweight != nullptr) dweight[i] = 0.0f;
            continue;
          }
          const T* dy_row = gradient + i / choices * hidden;
          const std::int64_t at = slot[i] * hidden;
          if (dweight != nullptr) dweight[i] = dot_row(dy_row, rows + at, hidden);
          scale_row(dy_row, weight != nullptr ? weight[i] : 1.0f, hidden, drows + at);
        }
      });
}

void move_blocks(KernelContext&, ConstTensorView source, std::span<const std::int64_t> from,
                 std::span<const std::int64_t> to, std::span<const std::int64_t> counts, TensorView destination) {
  for (std::size_t block = 0; block < counts.size(); ++block) {
    const ConstTensorView rows = source.rows_from(from[block], counts[block]);
    const TensorView place = destination.rows_from(to[block], counts[block]);
    if (!rows.empty()) std::memcpy(place.data(), rows.data(), rows.bytes());
  }
}

const PermutationKernels permutation_kernels = {choices_within, parts_chosen,   sort_by_expert,          add_counts,
                                                permute_rows,   unpermute_rows, unpermute_rows_backward, move_blocks};

}  // namespace weft::cpu
