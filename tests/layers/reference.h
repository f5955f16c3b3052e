// Oracles for the kernels: the formulas in double, in plain loops, sharing no code with what they check.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "layers/kernels/token_kernels.h"

namespace weft::reference {

// Every element within `tolerance` of the reference; NaN is never near.
inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance,
                        std::string_view what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::abs(found[i] - expected[i]) <= tolerance)
        << what << " element " << i << ": " << found[i] << " for " << expected[i] << ", tolerance " << tolerance;
  }
}

inline double largest_magnitude(const std::vector<double>& numbers) {
  double largest = 0;
  for (double number : numbers) largest = std::max(largest, std::abs(number));
  return largest;
}
inline double inner_product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The columns of head h of q, k (after the query heads) or v (after the key heads) in row t of a fused qkv.
struct HeadLayout {
  HeadShape heads;

  std::size_t q(std::int64_t t, std::int64_t head) const { return at(t, head); }
  std::size_t k(std::int64_t t, std::int64_t head) const { return at(t, heads.query_heads + pair(head)); }
  std::size_t v(std::int64_t t, std::int64_t head) const {
    return at(t, heads.query_heads + heads.key_value_heads) + static_cast<std::size_t>(pair(head) * heads.value_dim);
  }
  std::size_t out(std::int64_t t, std::int64_t head) const {
    return static_cast<std::size_t>((t * heads.query_heads + head) * heads.value_dim);
  }
  std::size_t at(std::int64_t t, std::int64_t slot) const {
    return static_cast<std::size_t>(t * columns() + slot * heads.head_dim);
  }
  std::int64_t columns() const {
    return (heads.query_heads + heads.key_value_heads) * heads.head_dim + heads.key_value_heads * heads.value_dim;
  }
  std::int64_t pair(std::int64_t head) const { return head / (heads.query_heads / heads.key_value_heads); }
};

struct AttentionResult {
  std::vector<double> out, log_sum_exp;
};
// The full matrix of scores of each sequence and head.
AttentionResult attention(const HeadShape& heads, const std::vector<double>& qkv);
std::vector<double> attention_gradient(const HeadShape& heads, const std::vector<double>& qkv,
                                       const std::vector<double>& dout);

struct RotaryWeights {
  std::vector<double> q, k;  // empty without QK-norm
};
std::vector<double> rotary(const RotaryOptions& options, const std::vector<double>& qkv, const RotaryWeights& weights);

// Loss summed over tokens, and its gradient.
struct CrossEntropyResult {
  double loss = 0;
  std::vector<double> dlogits;
};
CrossEntropyResult cross_entropy(const std::vector<double>& logits, std::int64_t columns,
                                 const std::vector<std::int32_t>& targets);

}  // namespace weft::reference
