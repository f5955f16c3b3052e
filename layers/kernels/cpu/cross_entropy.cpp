#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

// Vocabularies are long: float32 sums of this many entries are added up in double.
constexpr std::int64_t sum_block = 1024;

WEFT_MULTIVERSION float largest(const float* logits, std::int64_t count) {
  return lane_maximum(logits, count);
}

WEFT_MULTIVERSION float exponential_sum(const float* logits, float maximum, std::int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += exponential(logits[i] - maximum);
  return sum;
}

// The column of a target in this shard, or -1 if another shard has it.
std::int64_t local_column(std::int32_t target, std::int64_t begin, std::int64_t columns) {
  const std::int64_t column = target - begin;
  return column >= 0 && column < columns ? column : -1;
}

}  // namespace

void vocabulary_sums(KernelContext&, ConstTensorView logits, ConstTensorView targets, std::int64_t begin,
                     TensorView maximum, TensorView sums) {
  const std::int64_t tokens = logits.rows(), columns = logits.columns();
  const float* row = logits.as<float>().data();
  for (std::int64_t t = 0; t < tokens; ++t, row += columns) {
    const float row_maximum = largest(row, columns);
    const float from = row_maximum == -std::numeric_limits<float>::infinity() ? 0.0f : row_maximum;
    double sum = 0;
    for (std::int64_t i = 0; i < columns; i += sum_block) {
      sum += exponential_sum(row + i, from, std::min(sum_block, columns - i));
    }
    const std::int64_t target = local_column(targets.as<std::int32_t>()[t], begin, columns);
    maximum.as<float>()[t] = row_maximum;
    sums.as<float>()[2 * t] = static_cast<float>(sum);
    sums.as<float>()[2 * t + 1] = target < 0 ? 0.0f : row[target] - from;
  }
}

void shift_vocabulary_sums(KernelContext&, ConstTensorView of_shard, ConstTensorView maximum, ConstTensorView targets,
                           Range entries, TensorView sums) {
  for (std::int64_t t = 0; t < maximum.size(); ++t) {
    const float by = of_shard.as<float>()[t] - maximum.as<float>()[t];
    if (by == 0.0f) continue;
    const bool here = local_column(targets.as<std::int32_t>()[t], entries.begin, entries.count) >= 0;
    sums.as<float>()[2 * t] *= std::exp(by);
    if (here) sums.as<float>()[2 * t + 1] += by;
  }
}

WEFT_MULTIVERSION void cross_entropy_gradient(KernelContext&, ConstTensorView logits, ConstTensorView maximum,
                                              ConstTensorView sums, ConstTensorView targets, std::int64_t begin,
                                              float factor, TensorView dlogits, TensorView loss_sum) {
  const std::int64_t columns = logits.columns();
  with_element_type(
      dlogits.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const float* row = logits.as<float>().data();
        T* gradient = dlogits.as<T>().data();
        double loss = 0;
        for (std::int64_t t = 0; t < logits.rows(); ++t, row += columns, gradient += columns) {
          if (targets.as<std::int32_t>()[t] < 0) {
            std::fill_n(gradient, columns, T{});
            continue;
          }
          const float row_maximum = maximum.as<float>()[t], sum = sums.as<float>()[2 * t];
          loss += std::log(static_cast<double>(sum)) - sums.as<float>()[2 * t + 1];
          const std::int64_t target = local_column(targets.as<std::int32_t>()[t], begin, columns);
          // Computed before the row is written, because the row may be the logits themselves; rounded once.
          const float at_target = target < 0 ? 0.0f : factor * (exponential(row[target] - row_maximum) / sum - 1.0f);
          const float scale = factor / sum;
#pragma omp simd
          for (std::int64_t i = 0; i < columns; ++i) assign(gradient[i], scale * exponential(row[i] - row_maximum));
          if (target >= 0) assign(gradient[target], at_target);
        }
        if (!loss_sum.empty()) loss_sum.as<double>()[0] += loss;
      });
}

}  // namespace weft::cpu
