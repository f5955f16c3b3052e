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
  const std::int32_t* const slot = slots.as<std::int32_t>().data();
  const float* const weights_of_choices = pointer_or_null(weights);
  const std::int64_t hidden = y.columns(), choices = slots.columns();
  with_element_type(
      y.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        float sum[block_columns];
        T* to = y.as<T>().data();
        for (std::int64_t first = 0; first < slots.size(); first += choices, to += hidden) {
          for (std::int64_t begin = 0; begin < hidden; begin += block_columns) {
            const std::int64_t width = hidden - begin < block_columns ? hidden - begin : block_columns;
            for (std::int64_t i = 0; i < width; ++i) sum[i] = 0.0f;
            for (std::int64_t choice = first; choice < first + choices; ++choice) {
              if (slot[choice] == no_expert) continue;
              const float weight = weights_of_choices != nullptr ? weights_of_choices[choice] : 1.0f;
              const T* row = permuted.as<T>().data() + slot[choice] * hidden + begin;
#pragma omp simd
              for (std::int64_t i = 0; i < width; ++i) sum[i] += weight * static_cast<float>(row[i]);
            }
#pragma omp simd
            for (std::int64_t i = 0; i < width; ++i) assign(to[begin + i], static_cast<float>(to[begin + i]) + sum[i]);
          }
        }
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
          const T *dy_row = gradient + i / choices * hidden, *row = rows + slot[i] * hidden;
          T* drow = drows + slot[i] * hidden;
          if (dweight != nullptr) {
            dweight[i] = lane_sum(
                hidden, [=](std::int64_t c) __attribute__((always_inline)) {
                  return static_cast<float>(dy_row[c]) * static_cast<float>(row[c]);
                });
          }
          const float scale = weight != nullptr ? weight[i] : 1.0f;
#pragma omp simd
          for (std::int64_t c = 0; c < hidden; ++c) assign(drow[c], scale * static_cast<float>(dy_row[c]));
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

}  // namespace weft::cpu
