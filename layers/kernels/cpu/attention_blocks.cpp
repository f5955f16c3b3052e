#include "layers/kernels/cpu/attention_blocks.h"

#include <limits>

#include "layers/kernels/cpu/kernels.h"
#include "parallel/runtime/element_type.h"

namespace weft {
namespace {

// Scores of keys that the row does not see, up to the next whole vector behind its position, become -infinity, whose
// exponential is zero. Rows of any length are then processed in whole vectors. Returns the number of columns to
// process.
WEFT_INLINE std::int64_t mask_to_vector(const ScoreBlock& block, std::int64_t row, float* score) {
  constexpr std::int64_t lanes = 16;
  const std::int64_t visible = block.visible(row), hidden = block.hidden(row);
  if (hidden >= visible) return 0;
  const std::int64_t padded = std::min(block.columns, (visible + lanes - 1) / lanes * lanes);
  std::fill(score, score + hidden, -std::numeric_limits<float>::infinity());
  std::fill(score + visible, score + padded, -std::numeric_limits<float>::infinity());
  return padded;
}

}  // namespace

WEFT_MULTIVERSION void softmax_block(const ScoreBlock& block, float scale, float* scores, Elements probabilities,
                                     RunningSoftmax softmax, float* out, std::int64_t value_dim) {
  with_element_type(
      probabilities.dtype, [&](auto element) __attribute__((always_inline)) {
        auto* probability = probabilities.as<decltype(element)>();
        for (std::int64_t r = 0; r < block.rows; ++r, probability += block.columns) {
          float* score = scores + r * block.columns;
          const std::int64_t count = mask_to_vector(block, r, score);
          const float before = block.first ? -std::numeric_limits<float>::infinity() : softmax.maximum[r];
          const float maximum = std::max(before, lane_maximum(score, count));
          const float shift = scale * maximum;
          const float block_sum = lane_sum(
              count, [=](std::int64_t c) __attribute__((always_inline)) {
                const float value = exponential(scale * score[c] - shift);
                assign(probability[c], value);
                return value;
              });
          for (std::int64_t c = count; c < block.columns; ++c) assign(probability[c], 0.0f);
          softmax.maximum[r] = maximum;
          if (block.first) {
            softmax.sum[r] = block_sum;
          } else {
            const float factor = exponential(scale * (before - maximum));
            softmax.sum[r] = softmax.sum[r] * factor + block_sum;
            float* row = out + r * value_dim;
#pragma omp simd
            for (std::int64_t i = 0; i < value_dim; ++i) row[i] *= factor;
          }
        }
      });
}

WEFT_MULTIVERSION void gradient_block(const ScoreBlock& block, float scale, RowStatistics rows, float* scores,
                                      const float* dprobabilities, Elements probabilities, Elements dscores) {
  with_element_type(
      probabilities.dtype, [&](auto element) __attribute__((always_inline)) {
        auto *to_probability = probabilities.as<decltype(element)>(), *to_dscore = dscores.as<decltype(element)>();
        for (std::int64_t r = 0; r < block.rows; ++r) {
          const std::int64_t begin = r * block.columns, end = begin + mask_to_vector(block, r, scores + begin);
          const float log_sum_exp = rows.log_sum_exp[r * rows.stride], product = rows.product[r];
#pragma omp simd
          for (std::int64_t c = begin; c < end; ++c) {
            const float probability = exponential(scale * scores[c] - log_sum_exp);
            const float dscore = scale * probability * (dprobabilities[c] - product);
            assign(to_probability[c], probability);
            assign(to_dscore[c], dscore);
          }
          for (std::int64_t c = end; c < begin + block.columns; ++c) {
            assign(to_probability[c], 0.0f);
            assign(to_dscore[c], 0.0f);
          }
        }
      });
}

WEFT_MULTIVERSION void store_rows(const float* from, const float* factors, std::int64_t rows, std::int64_t columns,
                                  Elements to, std::int64_t stride) {
  with_element_type(
      to.dtype, [&](auto element) __attribute__((always_inline)) {
        auto* row = to.as<decltype(element)>();
        for (std::int64_t r = 0; r < rows; ++r, row += stride) {
          const float factor = factors == nullptr ? 1.0f : factors[r];
#pragma omp simd
          for (std::int64_t i = 0; i < columns; ++i) assign(row[i], from[r * columns + i] * factor);
        }
      });
}

WEFT_MULTIVERSION void multiply_rows(ConstElements a, std::int64_t a_stride, ConstElements b, std::int64_t b_stride,
                                     std::int64_t rows, std::int64_t columns, float* products) {
  with_element_type(
      a.dtype, [&](auto element) __attribute__((always_inline)) {
        const auto *a_row = a.as<decltype(element)>(), *b_row = b.as<decltype(element)>();
        for (std::int64_t r = 0; r < rows; ++r, a_row += a_stride, b_row += b_stride) {
          products[r] = lane_sum(
              columns, [=](std::int64_t i)
                           __attribute__((always_inline)) { return float(a_row[i]) * float(b_row[i]); });
        }
      });
}

}  // namespace weft
